"""Norms of groups, and what the bilevel projection does to the groups."""

from numba import types

from conehoyer._cuda import bilevel, groups, projections

from .engine import BOOL, FLOAT, INT, array

WANTED = {"treat_words": ["ld.global.v", "st.global.v"]}


def signatures(t):
    """Kernels with their argument types, for data of type t."""
    vector, table = array(FLOAT, 1), array(FLOAT, 2)
    integers, flags = array(INT, 1), array(types.int32, 1)
    flat, matrices, rows = array(t, 1), array(t, 3), array(t, 2)
    for data in {flat, vector}:
        begin = INT, BOOL, vector, data
        yield groups.fold_columns, (*begin, *[INT] * 7, vector)
        yield groups.fold_blocks, (*begin, *[INT] * 7, vector)
    begin = INT, BOOL, vector, flat
    yield groups.fold_diagonals, (*begin, INT, INT, INT, vector)
    yield groups.join_diagonals, (BOOL, vector, INT, INT, INT, vector)
    yield groups.fold_listed, (*begin, integers, integers, INT, INT, vector)
    yield groups.take_roots, (vector,)
    yield bilevel.scale_bounds, (FLOAT, vector, FLOAT, FLOAT, INT, vector, vector)
    yield bilevel.make_room, (vector, vector)
    yield (
        bilevel.settle,
        (INT, INT, BOOL, BOOL, BOOL, *[vector] * 5, table, vector, vector),
    )
    yield bilevel.report_levels, (INT, INT, INT, BOOL, vector, vector, vector, table)
    for labels in (flags, integers):
        yield (
            bilevel.treat,
            (*[BOOL] * 2, *[INT] * 3, labels, flat, *[INT] * 3, vector, flags, INT, INT, flat),
        )
    yield (
        bilevel.treat_words,
        (BOOL, BOOL, INT, INT, flat, *[INT] * 3, vector, flags, INT, INT, flat),
    )
    yield bilevel.shrink, (BOOL, FLOAT, integers, vector, flags, rows, rows)
    yield bilevel.put_back, (BOOL, INT, INT, INT, integers, rows, flags, matrices)
    yield bilevel.put_back_by, (BOOL, integers, rows, flags, rows)
    yield projections.count_nonzeros, (rows, integers)
