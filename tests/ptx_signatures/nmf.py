"""The kernels of the nonnegative matrix factorisation."""

from numba import types

from conehoyer._cuda import hals

FLOAT, INT, BOOL = types.float64, types.int64, types.boolean


def array(kind, ndim):
    """An array's type."""
    return types.Array(kind, ndim, "C")


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    matrix, row = array(t, 2), array(t, 1)
    sums, parts, table = array(FLOAT, 1), array(FLOAT, 3), array(FLOAT, 2)
    flags = array(types.int32, 1)
    yield hals.sweep_blocks, (row, BOOL, matrix, matrix, INT, FLOAT, sums, sums)
    yield hals.row_goal, (INT, matrix, matrix, matrix, row, row)
    yield hals.row_move, (INT, matrix, row, row, matrix, parts)
    yield hals.end_sweep, (matrix, parts, BOOL, sums)
    yield hals.goals, (matrix, matrix, matrix, BOOL, matrix)
    yield hals.goal_distance, (matrix, matrix, matrix, sums)
    yield hals.summary, (sums, sums, BOOL, sums, sums, matrix, matrix, FLOAT, sums)
    yield hals.drop_short, (matrix, FLOAT)
    yield hals.row_tops, (matrix, sums)
    yield hals.clear_rows, (matrix, sums)
    yield hals.set_row, (matrix, INT, sums, FLOAT)
    yield hals.gaps, (matrix, BOOL, array(INT, 1), matrix, matrix, table)
    yield hals.row_squares, (table, sums)
    yield hals.describe, (row, table)
    yield hals.inner_product, (row, row, sums)
    yield hals.scaled, (row, FLOAT, FLOAT, row)
    yield hals.scaled_rows, (matrix, BOOL, flags, matrix)
    for result in {array(t, 3), parts}:
        yield hals.multiply, (matrix, BOOL, matrix, BOOL, INT, INT, result)
    yield hals.add_segments, (parts, matrix)
    yield hals.residual, (matrix, BOOL, matrix, matrix, sums)
