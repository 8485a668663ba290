"""The ℓ1,∞ ball."""

from numba import types

from conehoyer._cuda import l1inf

from .engine import FLOAT, INT, array


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector, whole, table = array(FLOAT, 1), array(INT, 1), array(FLOAT, 2)
    matrix, stack, flags = array(t, 2), array(t, 3), array(types.int32, 1)
    given = (
        FLOAT, vector, FLOAT, FLOAT, FLOAT, INT, INT, matrix, whole, array(FLOAT, 3), table,
        table, flags,
    )  # fmt: skip
    yield l1inf.project_each, given
    yield l1inf.project_large, (*given, INT, array(FLOAT, 3))
    yield l1inf.clip, (INT, INT, INT, whole, stack, table, table, stack, whole)
