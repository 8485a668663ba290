"""The ℓ1,∞ ball and the group sparse projection."""

from numba import types

from conehoyer._cuda import gsp, l1inf

FLOAT, INT = types.float64, types.int64


def array(kind, ndim, layout="C"):
    """An array's type."""
    return types.Array(kind, ndim, layout)


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector, whole = array(FLOAT, 1), array(INT, 1)
    flags = array(types.int32, 1)
    matrix, table, stack = array(t, 2), array(FLOAT, 2), array(t, 3)
    yield l1inf.find_starts, (INT, INT, INT, INT, INT, whole)
    yield l1inf.arrange, (INT, INT, INT, stack, whole, matrix)
    yield l1inf.arrange_by, (whole, matrix, matrix)
    yield l1inf.label_range, (whole, whole)
    yield l1inf.begin_order, (whole,)
    yield l1inf.count_digits, (whole, whole, INT, array(INT, 2))
    yield l1inf.count_before, (whole,)
    yield l1inf.move_digits, (whole, whole, INT, array(INT, 2), whole)
    yield l1inf.find_label_starts, (whole, whole, whole)
    given = (
        FLOAT, vector, FLOAT, FLOAT, FLOAT, INT, INT, matrix, whole, array(FLOAT, 3), table,
        table, flags,
    )  # fmt: skip
    yield l1inf.project_each, given
    yield l1inf.project_large, (*given, INT, array(FLOAT, 3))
    yield l1inf.clip, (INT, INT, INT, whole, stack, table, table, stack, whole)
    yield l1inf.find_kept, (vector, array(types.boolean, 1))
    yield l1inf.find_mask, (INT, INT, INT, whole, table, array(types.boolean, 3))
    yield l1inf.clear, (whole,)
    yield l1inf.clear, (vector,)
    yield l1inf.clear, (array(types.boolean, 1),)
    numbers = table, array(INT, 2)
    yield gsp.enter, (INT, INT, INT, FLOAT, INT, INT, *numbers)
    yield gsp.take_tops, (matrix, INT, INT, INT, *numbers, table)
    yield gsp.begin, (*numbers, table, vector)
    yield gsp.proceed, (*numbers, table, FLOAT, vector)
    yield gsp.take_sums, (matrix, INT, INT, INT, *numbers, table, vector)
    yield gsp.write, (matrix, matrix, INT, INT, INT, *numbers, vector, whole)
    yield gsp.clear, (whole,)
    yield gsp.report, (*numbers, vector, table, vector)
