"""The entries of a matrix, group by group, for what has to look at each group by itself.

The list is in the order of the groups, and within a group in the order of the rows.  Of labels it
takes a place for each entry; of blocks and diagonals, where each group starts says all.
"""

import numpy as np
from numba.extending import register_jitable

from .. import _math as m
from .._jit import helper, kernel
from . import short, simd
from .across import transpose
from .arrays import BLOCKS, DIAGONALS, LABELS, LOG, NO, NONE, ONE, STATUS, WANTED, YES

ROOM = 1 << 14  # entries of the groups that are listed at a time, about: they stay in a cache
ABREAST = 16  # diagonals that are copied at once, about a line of each row
AT_A_TIME = 64  # rows of them
AT_ONCE = 256  # groups that are projected by one call
LONG = 256  # entries of a group from which a call for each costs little


@register_jitable
def lie_in_order(kind, height, width, columns):
    """Whether the matrix itself is the list."""
    return kind == BLOCKS and (width == columns or height == 1)


@helper
def _diagonal(g, rows, columns):
    """Where a diagonal begins in the matrix, and its length."""
    down, right = max(rows - 1 - g, 0), max(g - rows + 1, 0)
    return down * columns + right, min(rows - down, columns - right)


@kernel
def find_groups(kind, height, width, labels, rows, columns, starts, places):
    """Where each group starts in the list, and for labels the place of each of its entries."""
    number = starts.size - 1
    starts[:] = 0
    if kind == LABELS:
        flat = labels.reshape(-1)
        for k in range(flat.size):
            starts[flat[k] + 1] += 1
        for g in range(number):
            starts[g + 1] += starts[g]
        for k in range(flat.size):
            g = flat[k]
            places[starts[g]] = k
            starts[g] += 1
        for g in range(number, 0, -1):  # each is where its group ends
            starts[g] = starts[g - 1]
        starts[0] = 0
    elif kind == DIAGONALS:
        for g in range(number):
            starts[g + 1] = starts[g] + _diagonal(g, rows, columns)[1]
    else:
        g = 0
        for top in range(0, rows, height):
            low = min(height, rows - top)
            for left in range(0, columns, width):
                starts[g + 1] = starts[g] + low * min(width, columns - left)
                g += 1


@helper
def _copy_diagonals(flat, rows, columns, first, last, starts, values, back):
    """Some neighbouring diagonals to the list, or `back`: a few rows at a time, for the caches."""
    for top in range(max(rows - last, 0), min(rows, rows - 1 - first + columns), AT_A_TIME):
        for g in range(first, last):
            at, count = _diagonal(g, rows, columns)
            down = max(rows - 1 - g, 0)
            place, step = starts[g] - starts[first], columns + 1
            for k in range(max(top - down, 0), min(top + AT_A_TIME - down, count)):
                if back:
                    flat[at + k * step] = values[place + k]
                else:
                    values[place + k] = flat[at + k * step]


@helper
def _copy_blocks(flat, at, columns, low, wide, width, values, place, back):
    """Blocks side by side to the list, or `back`; the first begins at `at`, and all are `wide`."""
    for left in range(0, wide, width):
        count = min(width, wide - left)
        for i in range(low):
            begin = at + i * columns + left
            for k in range(count):
                if back:
                    flat[begin + k] = values[place + k]
                else:
                    values[place + k] = flat[begin + k]
            place += count


@helper
def _copy_listed(x, kind, height, width, starts, places, first, last, values, back):
    """The groups first..last−1 of x to the front of `values`, or `back`."""
    rows, columns = x.shape
    flat, base = x.reshape(-1), starts[first]
    if kind == LABELS:
        for k in range(base, starts[last]):
            if back:
                flat[places[k]] = values[k - base]
            else:
                values[k - base] = flat[places[k]]
        return
    if kind == DIAGONALS:
        for g in range(first, last, ABREAST):
            end = min(g + ABREAST, last)
            _copy_diagonals(flat, rows, columns, g, end, starts, values[starts[g] - base :], back)
        return
    across = (columns + width - 1) // width
    g = first
    while g < last:
        block = g // across
        end = min(last, (block + 1) * across)
        low, left = min(height, rows - block * height), (g - block * across) * width
        wide = min((end - block * across) * width, columns) - left
        at, place = block * height * columns + left, starts[g] - base
        if width > 1:
            _copy_blocks(flat, at, columns, low, wide, width, values, place, back)
        elif back:
            transpose(values, place, low, wide, low, flat, at, columns)
        else:
            transpose(flat, at, columns, low, wide, values, place, low)
        g = end


@kernel
def gather(x, kind, height, width, starts, places, values, first, last):
    """The groups first..last−1 to their place in the list of all."""
    part = values[starts[first] : starts[last]]
    _copy_listed(x, kind, height, width, starts, places, first, last, part, NO)


# --- each onto an l1 ball ----------------------------------------------------------------------


@helper
def _panel(kind, starts, columns_of_line, first, last):
    """The end of the groups from `first` on that are done together: blocks, if they are alike."""
    begin, size, end = starts[first], starts[first + 1] - starts[first], first + 1
    while end < last and (starts[end + 1] - begin <= ROOM or end - first < columns_of_line):
        if kind == BLOCKS and starts[end + 1] - starts[end] != size:
            break
        end += 1
    return end


@helper
def _move(values, source, target, count):
    for k in range(count):
        values[target + k] = values[source + k]


@helper
def _shrink_alike(rows_at, values, size, radii, tol, table):
    """Project groups of one size; those of radius 0 vanish."""
    made = done = 0
    for g in range(radii.size):
        if radii[g] > 0.0:
            if made != g:  # the others make room, so that many are done at once
                _move(values, g * size, made * size, size)
            row = table[made - done]
            row[STATUS], row[WANTED] = m.GO, radii[g]
            made += 1
        if made - done == AT_ONCE or (g + 1 == radii.size and made > done):
            rows = values[done * size : made * size].reshape((made - done, size))
            short.project_by(
                rows_at, m.L1, YES, tol, NO, NO, rows, rows, table, NONE, np.int64(made - done)
            )
            done = made
    for g in range(radii.size - 1, -1, -1):
        if radii[g] > 0.0:
            made -= 1
            if made != g:
                _move(values, made * size, g * size, size)
        else:
            values[g * size : (g + 1) * size] = 0.0


@helper
def _shrink_one(rows_at, part, radius, tol, to, table):
    """Project a group; `to` may be it."""
    if radius > 0.0:
        row, table[0, STATUS], table[0, WANTED] = part.reshape((1, part.size)), m.GO, radius
        goal = to.reshape((1, part.size))
        short.project_by(rows_at, m.L1, YES, tol, NO, NO, row, goal, table, NONE, ONE)
    else:
        to[:] = 0.0


@kernel
def shrink(
    rows_at, x, kind, height, width, starts, places, radii, unit, tol, out, first, last,
):  # fmt: skip
    """Project the groups first..last−1 of x onto l1 balls; `radii` are those of `unit` times x.

    `out` may be `x`.  For `rows_at` see `short.project_by`; neither is 0.
    """
    flat, goal = x.reshape(-1), out.reshape(-1)
    straight = lie_in_order(kind, height, width, x.shape[1]) and unit == 1.0
    columns_of_line = simd.LINE // x.itemsize if kind == BLOCKS and width == 1 else 1
    table = np.empty((AT_ONCE, LOG))
    values = np.empty(min(starts[last] - starts[first], ROOM), x.dtype)
    g = first
    while g < last:
        begin, size = starts[g], starts[g + 1] - starts[g]
        if straight and size >= LONG:
            part, to = flat[begin : begin + size], goal[begin : begin + size]
            _shrink_one(rows_at, part, radii[g], tol, to, table)
            g += 1
            continue
        end = _panel(kind, starts, columns_of_line, g, last)
        room = starts[end] - begin
        if room > values.size:
            values = np.empty(room, x.dtype)
        part = values[:room]
        if radii[g:end].any():
            _copy_listed(x, kind, height, width, starts, places, g, end, part, NO)
            if unit != 1.0:
                part *= unit
            if kind == BLOCKS:
                _shrink_alike(rows_at, part, size, radii[g:end], tol, table)
            else:
                for j in range(g, end):
                    own = part[starts[j] - begin : starts[j + 1] - begin]
                    _shrink_one(rows_at, own, radii[j], tol, own, table)
            if unit != 1.0:
                part /= unit
        else:
            part[:] = 0.0
        _copy_listed(out, kind, height, width, starts, places, g, end, part, YES)
        g = end
