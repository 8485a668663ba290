"""The group sparse projection."""

from conehoyer._cuda import gsp

from .engine import FLOAT, INT, array


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector, whole, table, matrix = array(FLOAT, 1), array(INT, 1), array(FLOAT, 2), array(t, 2)
    numbers = table, array(INT, 2)
    yield gsp.enter, (INT, INT, INT, FLOAT, INT, INT, *numbers)
    yield gsp.take_tops, (matrix, INT, INT, INT, *numbers, table)
    yield gsp.begin, (*numbers, table, vector)
    yield gsp.proceed, (*numbers, table, FLOAT, vector)
    yield gsp.take_sums, (matrix, INT, INT, INT, *numbers, table, vector)
    yield gsp.write, (matrix, matrix, INT, INT, INT, *numbers, vector, whole)
    yield gsp.report, (*numbers, vector, table, vector)
