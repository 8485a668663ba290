"""Scores, the level for a number of nonzeros, and the iterative projection."""

from numba import types

from conehoyer._cuda import iterative, levels, scores

from .engine import BOOL, FLOAT, INT, array


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector, table, flags = array(FLOAT, 1), array(FLOAT, 2), array(types.int32, 1)
    data, edges = array(t, 2), array(t, 1)
    yield scores.sum_parts, (INT, data, edges, array(FLOAT, 3))
    yield scores.score_rows, (INT, data, edges, array(FLOAT, 3), vector)
    yield scores.mean_of, (vector, vector)
    bits = types.int32 if t == types.float32 else types.int64
    k, histogram = (FLOAT, vector), array(INT, 2)
    yield levels.find_edges, (*k, array(bits, 2), INT, INT, array(bits, 1))
    yield levels.count_parts, (array(bits, 2), INT, INT, INT, array(bits, 1), histogram)
    ranks = array(INT, 1)
    yield levels.choose_digits, (*k, BOOL, INT, ranks, array(bits, 1), histogram)
    yield levels.keep_positive, (edges, edges)
    yield levels.first_levels, (*k, INT, edges, vector, vector, vector)
    yield levels.lower_levels, (*k, INT, table, vector, vector, vector, flags)
    given = (
        INT, BOOL, FLOAT, vector, FLOAT, FLOAT, FLOAT, vector, FLOAT, FLOAT, vector,
        data, data, table, flags,
    )  # fmt: skip
    yield iterative.project_rows, (*given, BOOL, array(types.int32, 1))
    yield iterative.project_long, (*given, INT, array(FLOAT, 3), array(t, 2))
