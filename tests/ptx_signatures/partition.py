"""Which entries form a group."""

from conehoyer._cuda import partition

from .engine import BOOL, FLOAT, INT, array


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector, whole, table = array(FLOAT, 1), array(INT, 1), array(INT, 2)
    matrix, stack = array(t, 2), array(t, 3)
    yield partition.find_starts, (INT, INT, INT, INT, INT, whole)
    yield partition.arrange, (INT, INT, INT, stack, whole, matrix)
    yield partition.arrange_by, (whole, matrix, matrix)
    yield partition.label_range, (whole, whole)
    yield partition.begin_order, (whole,)
    yield partition.count_digits, (whole, whole, INT, table)
    yield partition.count_before, (whole,)
    yield partition.move_digits, (whole, whole, INT, table, whole)
    yield partition.find_label_starts, (whole, whole, whole)
    yield partition.find_kept, (vector, array(BOOL, 1))
    yield partition.find_mask, (INT, INT, INT, whole, array(FLOAT, 2), array(BOOL, 3))
