"""Norms of the groups of a matrix, and what is done to the groups: clip, scale, shrink.

A matrix is C-contiguous; its groups are given by a few numbers (`kind`, and for blocks
their shape ``height``, ``width``), or by a label for each entry.  Rows are blocks of
shape (1, N), columns blocks of shape (M, 1).

The loops take the matrix as one flat array and a row by the place of its first entry:
a slice a row costs more than a row of 200 entries.
"""

import math
from functools import cache

import numba
import numpy as np
from numba.core import types

from .. import _math as m
from .._jit import entry, helper, inlined, kernel
from . import lists, passes, short, simd
from .apart import address_of, call_at, taker
from .arrays import BLOCKS, DIAGONALS, LABELS, NO, NONE, ONE, REACHED, STATUS, YES
from .waiting import split_at

LINF, L2, L1 = 0, 1, 2  # norms of a group

PIECE = 512  # rows whose sums are taken by one thread, in one order
LOW = 8  # rows of a block below which its columns are joined as they are read
TILE = 4096  # columns whose running sums stay in the first cache


@helper
def _pieces_of(kind, height, rows):
    """In how many pieces the rows are cut; a piece lies within one row of blocks."""
    if kind == BLOCKS:
        return (rows + height - 1) // height * pieces_of_block(height)
    return (rows + PIECE - 1) // PIECE if kind == DIAGONALS else 1


@helper
def pieces_of_block(height):
    """Pieces of one row of blocks."""
    return (height + PIECE - 1) // PIECE


@helper
def _rows_of_piece(kind, height, rows, piece):
    """First row of the piece, and the row after its last."""
    if kind == LABELS:
        return 0, rows
    if kind == DIAGONALS:
        return piece * PIECE, min((piece + 1) * PIECE, rows)
    parts = pieces_of_block(height)
    block = piece // parts * height
    first = block + piece % parts * PIECE
    return first, min(first + PIECE, block + height, rows)


@helper
def _width_of_piece(kind, width, rows, columns, number):
    """How many groups a piece has room for.

    On diagonals not all: the pieces together would take the square of a tall matrix's height.
    """
    if kind == BLOCKS:
        return (columns + width - 1) // width
    return min(PIECE, rows) + columns - 1 if kind == DIAGONALS else number


@helper
def _fours(rows):
    """How many fours of rows are taken at once; from 16 rows on they leave the first cache."""
    return 2 if rows >= 8 else 1


@helper
def _larger(a, b):
    """The larger of two numbers; NaN wins."""
    return a if a >= b or a != a else b


@helper
def _joined(a, b, largest):
    """The larger of two registers of magnitudes, or their sum."""
    inlined()
    return simd.larger(a, b) if largest else simd.add(a, b)


@helper
def _halve(line, count, largest):
    """Join each two neighbours of ``line[:2 * count]``: the larger, or the sum."""
    width = simd.lanes(line)
    whole = count // width * width
    for j in range(0, whole, width):
        a, b = simd.load(line, 2 * j), simd.load(line, 2 * j + width)
        simd.store(_joined(simd.even(a, b), simd.odd(a, b), largest), line, j)
    for j in range(whole, count):
        a, b = line[2 * j], line[2 * j + 1]
        line[j] = _larger(a, b) if largest else a + b


@helper
def _join_neighbours(line, width, goal, place, number, largest):
    """Join each `width` neighbours of a line to a number, ``goal[place:place + number]``.

    The line, which has room for two registers more, is spent.
    """
    count, step = number * width, simd.lanes(line)
    while width % 2 == 0:
        count //= 2
        width //= 2
        _halve(line, count, largest)
    if width < step:
        if width > 1:  # from every entry on, most of them for nothing: but all at once
            for j in range(0, count, step):
                a = simd.load(line, j)
                for k in range(j + 1, j + width):
                    a = _joined(a, simd.load(line, k), largest)
                simd.store(a, line, j)
        for b in range(number):
            goal[place + b] = line[b * width]
        return
    for b in range(number):
        at, end = b * width, b * width + width
        a = simd.load(line, at)
        for j in range(at + step, end - step + 1, step):
            a = _joined(a, simd.load(line, j), largest)
        rest = simd.first_lanes(a, width % step)
        a = _joined(a, simd.load_part(line, end - width % step, rest), largest)
        goal[place + b] = simd.largest(a) if largest else simd.total(a)


@helper
def _low(height, width, columns):
    """Whether blocks are joined, four columns to one, as their few rows are read."""
    return 1 < width < columns and width % 4 == 0 and height < LOW


# --- linf ------------------------------------------------------------------------------


@helper
def _max_into(tops, place, flat, at, count):
    """Take a row of `count` entries into the running maxima from ``tops[place]`` on."""
    width = simd.lanes(flat)
    whole = count // width * width
    for j in range(0, whole, width):
        a = simd.magnitude(simd.load(flat, at + j))
        simd.store(simd.larger(simd.load(tops, place + j), a), tops, place + j)
    for j in range(whole, count):
        tops[place + j] = _larger(tops[place + j], abs(flat[at + j]))


@helper
def _max_down_4(flat, at, step):
    """The largest magnitudes of four registers, `step` entries apart."""
    inlined()
    a = simd.magnitude(simd.load(flat, at))
    b = simd.magnitude(simd.load(flat, at + step))
    c = simd.magnitude(simd.load(flat, at + 2 * step))
    d = simd.magnitude(simd.load(flat, at + 3 * step))
    return simd.larger(simd.larger(a, b), simd.larger(c, d))


@helper
def _max_into_4(tops, place, flat, at, step, count, fours):
    """Take once or twice four rows, `step` entries apart, at once."""
    width = simd.lanes(flat)
    whole = count // width * width
    for j in range(0, whole, width):
        top, i = simd.load(tops, place + j), at + j
        top = simd.larger(top, _max_down_4(flat, i, step))
        if fours == 2:
            top = simd.larger(top, _max_down_4(flat, i + 4 * step, step))
        simd.store(top, tops, place + j)
    for i in range(4 * fours):
        for j in range(whole, count):
            tops[place + j] = _larger(tops[place + j], abs(flat[at + i * step + j]))


@helper
def _max_ends(tops, place, flat, at, count):
    """Take a row's first register and its last two into the running maxima."""
    width = simd.lanes(flat)
    for j in (0, count - 2 * width, count - width):
        a = simd.magnitude(simd.load(flat, at + j))
        simd.store(simd.larger(simd.load(tops, place + j), a), tops, place + j)


@helper
def _max_by_fours(a, b, c, d):
    """The largest of each four neighbours."""
    inlined()
    ab = simd.larger(simd.even(a, b), simd.odd(a, b))
    cd = simd.larger(simd.even(c, d), simd.odd(c, d))
    return simd.larger(simd.even(ab, cd), simd.odd(ab, cd))


@helper
def _max_fours(flat, at, count, step, rows, tops, place):
    """The largest of each four neighbours, all rows together; four registers of `count` at once."""
    width = simd.lanes(flat)
    if rows == 4:  # as a loop it takes a tenth longer
        for j in range(at, at + count, 4 * width):
            a, b = _max_down_4(flat, j, step), _max_down_4(flat, j + width, step)
            c = _max_down_4(flat, j + 2 * width, step)
            d = _max_down_4(flat, j + 3 * width, step)
            simd.store(_max_by_fours(a, b, c, d), tops, place)
            place += width
        return
    for j in range(at, at + count, 4 * width):
        a = b = c = d = simd.splat(flat.dtype.type(0))
        i = j
        for _ in range(rows):
            a = simd.larger(a, simd.magnitude(simd.load(flat, i)))
            b = simd.larger(b, simd.magnitude(simd.load(flat, i + width)))
            c = simd.larger(c, simd.magnitude(simd.load(flat, i + 2 * width)))
            d = simd.larger(d, simd.magnitude(simd.load(flat, i + 3 * width)))
            i += step
        simd.store(_max_by_fours(a, b, c, d), tops, place)
        place += width


@helper
def _max_of(flat, at, count):
    """The largest magnitude of a row."""
    width = simd.lanes(flat)
    a = b = c = d = simd.splat(flat.dtype.type(0))
    whole = count // (4 * width) * (4 * width)
    for j in range(at, at + whole, 4 * width):
        a = simd.larger(a, simd.magnitude(simd.load(flat, j)))
        b = simd.larger(b, simd.magnitude(simd.load(flat, j + width)))
        c = simd.larger(c, simd.magnitude(simd.load(flat, j + 2 * width)))
        d = simd.larger(d, simd.magnitude(simd.load(flat, j + 3 * width)))
    a = simd.larger(simd.larger(a, b), simd.larger(c, d))
    while whole < count:
        rest = simd.first_lanes(a, count - whole)
        a = simd.larger(a, simd.magnitude(simd.load_part(flat, at + whole, rest)))
        whole += width
    return simd.largest(a)


@helper
def _copy_ends(flat, at, step, rows, count, ends):
    """Copy the ends of rows into the rows of `ends`, zeros behind each."""
    for i in range(rows):
        for j in range(ends.shape[1]):
            ends[i, j] = flat[at + i * step + j] if j < count else 0


@helper
def _max_of_low_blocks(x, height, width, tops, first, last):
    """`max_pieces` of blocks side by side that are `_low`."""
    rows, columns = x.shape
    flat, goal, length = x.reshape(-1), tops.reshape(-1), 4 * simd.lanes(x)
    whole, across = columns // length * length, (columns + width - 1) // width
    direct, fours, behind = width == 4 and whole == columns, across * (width // 4), whole // 4
    line = np.empty(0 if direct else fours + length, x.dtype)
    ends = np.empty((height if whole < columns else 0, length), x.dtype)
    for block in range(first, last):
        at, place = block * height * columns, block % len(tops) * across
        tall = min(height, rows - block * height)
        if direct:
            _max_fours(flat, at, whole, columns, tall, goal, place)
            continue
        _max_fours(flat, at, whole, columns, tall, line, 0)
        line[behind:fours] = 0
        if whole < columns:
            _copy_ends(flat, at + whole, columns, tall, columns - whole, ends)
            _max_fours(ends.reshape(-1), 0, length, length, tall, line, behind)
        _join_neighbours(line, width // 4, goal, place, across, True)


@kernel
def max_pieces(x, kind, height, width, labels, tops, first, last):
    """Fill rows first..last−1 of `tops`: the largest magnitudes of the pieces.

    Where `tops` has fewer rows, they are numbered round and round.  Of diagonals they have the
    piece's: the first is the one its last row begins with.
    """
    rows, columns = x.shape
    flat = x.reshape(-1)
    if kind == BLOCKS and _low(height, width, columns):
        _max_of_low_blocks(x, height, width, tops, first, last)
        return
    if kind == BLOCKS and height == 1 and width == columns:
        for i in range(first, last):
            tops[i % len(tops), 0] = _max_of(flat, i * columns, columns)
        return
    blocks = kind == BLOCKS and 1 < width < columns
    whole = (columns + width - 1) // width * width  # with zeros: all blocks are as wide
    line = np.empty(whole + 2 * simd.lanes(flat) if blocks else 0, x.dtype)
    for piece in range(first, last):
        top = tops[piece % len(tops)]
        begin, end = _rows_of_piece(kind, height, rows, piece)
        top[:] = 0
        if kind == DIAGONALS:
            i, width = begin, simd.lanes(flat)
            while i + 4 <= end and columns >= 3 * width:
                rest = 4 * _fours(end - i)  # less one: entries off the other rows' diagonals
                count = (columns + 1 - rest) // width * width
                at, place = i * columns, end - 1 - i  # from the piece's lowest diagonal
                _max_into_4(top, place, flat, at, columns + 1, count, rest // 4)
                for k in range(rest):
                    _max_ends(top, place - k, flat, at + k * columns, columns)
                i += rest
            while i < end:
                _max_into(top, end - 1 - i, flat, i * columns, columns)
                i += 1
        elif kind == LABELS:
            for i in range(begin, end):
                for j in range(columns):
                    g = labels[i, j]
                    top[g] = _larger(top[g], abs(x[i, j]))
        elif width == columns:
            for i in range(begin, end):
                top[0] = _larger(top[0], _max_of(flat, i * columns, columns))
        else:
            goal = line[:whole] if blocks else top
            goal[:] = 0
            for j in range(0, columns, TILE):
                count = min(TILE, columns - j)
                i = begin
                while i + 4 <= end:
                    fours = _fours(end - i)
                    _max_into_4(goal, j, flat, i * columns + j, columns, count, fours)
                    i += 4 * fours
                while i < end:
                    _max_into(goal, j, flat, i * columns + j, count)
                    i += 1
            if blocks:
                _join_neighbours(line, width, top, 0, top.size, True)


# --- l1, l2: sums ----------------------------------------------------------------------


@helper
def _term(value, squares, unit):
    """|value| or value² of the value in the given unit, in the data's precision."""
    a = value * unit
    return a * a if squares else abs(a)


@helper
def _terms(flat, j, squares, scale):
    """`_term` of a register."""
    a = simd.multiply(simd.load(flat, j), scale)
    return simd.multiply(a, a) if squares else simd.magnitude(a)


@helper
def _sum_into(sums, place, flat, at, count, squares, unit):
    """Add the terms of a row to the running sums from ``sums[place]`` on."""
    width, scale = simd.lanes(flat), simd.splat(unit)
    whole = count // width * width
    for j in range(0, whole, width):
        term = _terms(flat, at + j, squares, scale)
        simd.store(
            simd.add(simd.load_like(term, sums, place + j), simd.widen(term)), sums, place + j
        )
    for j in range(whole, count):
        sums[place + j] += np.float64(_term(flat[at + j], squares, unit))


@helper
def _sum_down_4(flat, at, step, squares, scale):
    """The sums of four registers of terms, `step` entries apart, in the data's precision."""
    inlined()
    ab = simd.add(_terms(flat, at, squares, scale), _terms(flat, at + step, squares, scale))
    cd = simd.add(
        _terms(flat, at + 2 * step, squares, scale), _terms(flat, at + 3 * step, squares, scale)
    )
    return simd.add(ab, cd)


@helper
def _sum_into_4(sums, place, flat, at, step, count, fours, squares, unit):
    """Add the terms of once or twice four rows, `step` entries apart, four by four."""
    width, scale = simd.lanes(flat), simd.splat(unit)
    whole = count // width * width
    for j in range(0, whole, width):
        total, i = simd.load_like(scale, sums, place + j), at + j
        total = simd.add(total, simd.widen(_sum_down_4(flat, i, step, squares, scale)))
        if fours == 2:
            i += 4 * step
            total = simd.add(total, simd.widen(_sum_down_4(flat, i, step, squares, scale)))
        simd.store(total, sums, place + j)
    for k in range(fours):
        for j in range(whole, count):  # in the same order: equal columns have equal sums
            first = at + 4 * k * step + j
            second = first + 2 * step
            ab = _term(flat[first], squares, unit) + _term(flat[first + step], squares, unit)
            cd = _term(flat[second], squares, unit) + _term(flat[second + step], squares, unit)
            sums[place + j] += np.float64(ab + cd)


@helper
def _sum_ends(sums, place, flat, at, count, head, tail, squares, unit):
    """Add a row's first `head` and last `tail` terms, in one register and in two."""
    width, scale = simd.lanes(flat), simd.splat(unit)
    none = simd.widen(simd.splat(unit - unit))
    for j in (0, count - 2 * width, count - width):
        first = 0 if j == 0 else min(max(count - tail - j, 0), width)  # lanes first..last−1
        last = head if j == 0 else width
        if first == last:
            continue
        terms = simd.widen(_terms(flat, at + j, squares, scale))
        terms = simd.where(simd.first_lanes(terms, last), terms, none)
        terms = simd.where(simd.first_lanes(terms, first), none, terms)
        simd.store(simd.add(simd.load_like(terms, sums, place + j), terms), sums, place + j)


@helper
def _sum_by_fours(a, b, c, d):
    """The sums of each four neighbours, as float64."""
    inlined()
    ab = simd.add(simd.even(a, b), simd.odd(a, b))
    cd = simd.add(simd.even(c, d), simd.odd(c, d))
    return simd.widen(simd.add(simd.even(ab, cd), simd.odd(ab, cd)))


@helper
def _sum_fours(flat, at, count, step, rows, squares, unit, sums, place):
    """`_max_fours` for sums of the terms, which are taken in the data's precision."""
    inlined()
    width, scale = simd.lanes(flat), simd.splat(unit)
    if rows == 4:
        for j in range(at, at + count, 4 * width):
            a = _sum_down_4(flat, j, step, squares, scale)
            b = _sum_down_4(flat, j + width, step, squares, scale)
            c = _sum_down_4(flat, j + 2 * width, step, squares, scale)
            d = _sum_down_4(flat, j + 3 * width, step, squares, scale)
            simd.store(_sum_by_fours(a, b, c, d), sums, place)
            place += width
        return
    for j in range(at, at + count, 4 * width):
        a = b = c = d = simd.splat(unit - unit)
        i = j
        for _ in range(rows):
            a = simd.add(a, _terms(flat, i, squares, scale))
            b = simd.add(b, _terms(flat, i + width, squares, scale))
            c = simd.add(c, _terms(flat, i + 2 * width, squares, scale))
            d = simd.add(d, _terms(flat, i + 3 * width, squares, scale))
            i += step
        simd.store(_sum_by_fours(a, b, c, d), sums, place)
        place += width


@helper
def _sum_of_low_blocks(x, squares, unit, height, width, sums, first, last):
    """`sum_pieces` of blocks side by side that are `_low`."""
    rows, columns = x.shape
    flat, goal, length = x.reshape(-1), sums.reshape(-1), 4 * simd.lanes(x)
    whole, across = columns // length * length, (columns + width - 1) // width
    direct, fours, behind = width == 4 and whole == columns, across * (width // 4), whole // 4
    line = np.empty(0 if direct else fours + length)
    ends = np.empty((height if whole < columns else 0, length), x.dtype)
    for block in range(first, last):
        at, place = block * height * columns, block % len(sums) * across
        tall = min(height, rows - block * height)
        to, start = (goal, place) if direct else (line, 0)
        if squares:  # asked once: asked at each register, it takes up to twice as long
            _sum_fours(flat, at, whole, columns, tall, True, unit, to, start)
        else:
            _sum_fours(flat, at, whole, columns, tall, False, unit, to, start)
        if direct:
            continue
        line[behind:fours] = 0.0
        if whole < columns:
            _copy_ends(flat, at + whole, columns, tall, columns - whole, ends)
            _sum_fours(ends.reshape(-1), 0, length, length, tall, squares, unit, line, behind)
        _join_neighbours(line, width // 4, goal, place, across, False)


@helper
def _sum_of(flat, at, count, squares, unit):
    """The sum over a row, in registers; four terms at a time as everywhere."""
    width, scale = simd.lanes(flat), simd.splat(unit)
    total = simd.widen(simd.splat(unit - unit))
    whole = count // (4 * width) * (4 * width)
    for j in range(at, at + whole, 4 * width):
        ab = simd.add(_terms(flat, j, squares, scale), _terms(flat, j + width, squares, scale))
        cd = simd.add(
            _terms(flat, j + 2 * width, squares, scale), _terms(flat, j + 3 * width, squares, scale)
        )
        total = simd.add(total, simd.widen(simd.add(ab, cd)))
    while whole < count:
        rest = simd.first_lanes(scale, count - whole)
        a = simd.multiply(simd.load_part(flat, at + whole, rest), scale)
        total = simd.add(total, simd.widen(simd.multiply(a, a) if squares else simd.magnitude(a)))
        whole += width
    return simd.total(total)


@helper
def sum_neighbours(line, width, totals):
    """The sums of each `width` neighbours; the line, which is two registers longer, is spent."""
    _join_neighbours(line, width, totals, 0, totals.size, False)


@kernel
def sum_pieces(x, squares, unit, kind, height, width, labels, sums, first, last):
    """Fill rows first..last−1 of `sums`: Σ|x| or Σx² over the pieces of the groups.

    For the rows of `sums` see `max_pieces`.  At most four terms are added in the data's precision,
    those of four columns in blocks of few rows, and all else in float64.
    """
    rows, columns = x.shape
    unit = x.dtype.type(unit)
    flat = x.reshape(-1)
    if kind == BLOCKS and _low(height, width, columns):
        _sum_of_low_blocks(x, squares, unit, height, width, sums, first, last)
        return
    if kind == BLOCKS and height == 1 and width == columns:
        for i in range(first, last):
            sums[i % len(sums), 0] = _sum_of(flat, i * columns, columns, squares, unit)
        return
    blocks = kind == BLOCKS and 1 < width < columns
    whole = (columns + width - 1) // width * width
    line = np.empty(whole + 2 * simd.lanes(flat) if blocks else 0)
    for piece in range(first, last):
        total = sums[piece % len(sums)]
        begin, end = _rows_of_piece(kind, height, rows, piece)
        total[:] = 0.0
        if kind == DIAGONALS:
            i, width = begin, simd.lanes(flat)
            while i + 4 <= end and columns >= 3 * width:
                rest = 4 * _fours(end - i)
                count = (columns + 1 - rest) // width * width
                at, place, tail = i * columns, end - 1 - i, columns - count
                _sum_into_4(total, place, flat, at, columns + 1, count, rest // 4, squares, unit)
                for k in range(rest):
                    row = at + k * columns
                    _sum_ends(total, place - k, flat, row, columns, k, tail - k, squares, unit)
                i += rest
            while i < end:
                _sum_into(total, end - 1 - i, flat, i * columns, columns, squares, unit)
                i += 1
        elif kind == LABELS:
            for i in range(begin, end):
                for j in range(columns):
                    total[labels[i, j]] += np.float64(_term(x[i, j], squares, unit))
        elif width == columns:
            for i in range(begin, end):
                total[0] += _sum_of(flat, i * columns, columns, squares, unit)
        else:
            goal = line[:whole] if blocks else total
            goal[:] = 0.0
            for j in range(0, columns, TILE):
                count = min(TILE, columns - j)
                i = begin
                while i + 4 <= end:
                    fours, at = _fours(end - i), i * columns + j
                    _sum_into_4(goal, j, flat, at, columns, count, fours, squares, unit)
                    i += 4 * fours
                while i < end:
                    _sum_into(goal, j, flat, i * columns + j, count, squares, unit)
                    i += 1
            if blocks:
                sum_neighbours(line, width, total)


@helper
def _join(pieces, kind, height, rows, norms, largest):
    """Add up the pieces of each group, or take the largest; `norms` is a flat array."""
    parts = pieces_of_block(height) if kind == BLOCKS else pieces.shape[0]
    across = pieces.shape[1]
    if parts == 1:  # each piece is a row of groups
        flat = pieces.reshape(-1)
        for j in range(norms.size):
            norms[j] = flat[j]
        return
    norms[:] = 0.0
    for p in range(pieces.shape[0]):
        first = p // parts * across
        if kind == DIAGONALS:
            first = max(rows - (p + 1) * PIECE, 0)
        target, source = norms[first : first + across], pieces[p]
        if largest:
            for j in range(across):  # NaN stays
                if target[j] == target[j] and not source[j] <= target[j]:
                    target[j] = source[j]
        else:
            for j in range(across):
                target[j] += source[j]


# --- what is done to the groups ----------------------------------------------------------


@helper
def spread(values, place, width, count, line):
    """Repeat values, from ``values[place]`` on, `width` times each, `count` entries in all.

    In the precision of the line, which has room for a register more: most blocks are written by
    whole registers, and what is too much is written over by the next.
    """
    real, step = line.dtype.type, simd.lanes(line)
    if width == 1:
        for j in range(count):
            line[j] = values[place + j]
        return
    j = 0
    if width == 4:  # the common small block
        zeros = simd.splat(real(0))
        while j + 4 * step <= count:
            four = simd.narrow(simd.load_like(zeros, values, place), zeros)
            simd.store_four_times(four, line, j)
            j, place = j + 4 * step, place + step
    if width <= step:
        while j < count:
            simd.store(simd.splat(real(values[place])), line, j)
            j, place = j + width, place + 1
        return
    while j < count:
        value, end = simd.splat(real(values[place])), min(j + width, count)
        for k in range(j, end, step):
            simd.store(value, line, k)
        j, place = end, place + 1


@helper
def _treated(a, value, clip, zeros):
    """A register, clipped or multiplied; adding zeros makes +0 of −0."""
    inlined()
    if clip:
        return simd.add(simd.copy_sign(simd.smaller(simd.magnitude(a), value), a), zeros)
    return simd.multiply_add(a, value, zeros)


@helper
def _treat(flat, at, count, clip, values, place, goal):
    """Clip or multiply a row by the values from ``values[place]`` on; none is below 0."""
    inlined()  # a call takes as long as fifty entries
    width, zeros = simd.lanes(flat), simd.splat(flat.dtype.type(0))
    whole = count // width * width
    for j in range(0, whole, width):
        a, value = simd.load(flat, at + j), simd.load(values, place + j)
        simd.store(_treated(a, value, clip, zeros), goal, at + j)
    if whole < count:
        rest = simd.first_lanes(zeros, count - whole)
        a = simd.load_part(flat, at + whole, rest)
        value = simd.load_part(values, place + whole, rest)
        simd.store_part(_treated(a, value, clip, zeros), rest, goal, at + whole)


@helper
def _treat_past(flat, at, count, clip, values, place, goal):
    """`_treat`, written past the caches."""
    width, zeros = simd.lanes(flat), simd.splat(flat.dtype.type(0))
    begin = min(passes.to_line(goal, at), count)
    whole = begin + (count - begin) // width * width
    _treat(flat, at, begin, clip, values, place, goal)
    for j in range(begin, whole, width):
        a, value = simd.load(flat, at + j), simd.load(values, place + j)
        simd.stream(_treated(a, value, clip, zeros), goal, at + j)
    _treat(flat, at + whole, count - whole, clip, values, place + whole, goal)


@helper
def _treat_all(flat, at, count, clip, value, goal):
    """`_treat` with one value."""
    inlined()
    width, zero = simd.lanes(flat), flat.dtype.type(0)
    same = simd.splat(value if value > zero else zero)
    whole = count // width * width
    if not value > zero:
        for j in range(0, whole, width):
            simd.store(same, goal, at + j)
    elif clip:
        for j in range(0, whole, width):
            a = simd.load(flat, at + j)
            simd.store(simd.copy_sign(simd.smaller(simd.magnitude(a), same), a), goal, at + j)
    else:
        for j in range(0, whole, width):
            simd.store(simd.multiply(simd.load(flat, at + j), same), goal, at + j)
    if whole < count:
        rest = simd.first_lanes(same, count - whole)
        a = _treated(simd.load_part(flat, at + whole, rest), same, clip, simd.splat(zero))
        simd.store_part(a, rest, goal, at + whole)


@helper
def _treat_all_past(flat, at, count, clip, value, goal):
    """`_treat_all`, written past the caches."""
    width, zero = simd.lanes(flat), flat.dtype.type(0)
    zeros, same = simd.splat(zero), simd.splat(value if value > zero else zero)
    begin = min(passes.to_line(goal, at), count)
    whole = begin + (count - begin) // width * width
    _treat_all(flat, at, begin, clip, value, goal)
    if value > zero:
        for j in range(begin, whole, width):
            simd.stream(_treated(simd.load(flat, at + j), same, clip, zeros), goal, at + j)
    else:
        for j in range(begin, whole, width):
            simd.stream(zeros, goal, at + j)
    _treat_all(flat, at + whole, count - whole, clip, value, goal)


@helper
def copy(values, to):
    """``to[: values.size] = values``, but for that Numba compiles an error message as well."""
    for i in range(values.size):
        to[i] = values[i]


@helper
def _factors(radii, norms, place, factors):
    """What the entries of groups are multiplied by, from the group `place` on."""
    old, new = norms[place : place + factors.size], radii[place : place + factors.size]
    for g in range(new.size):  # of slices: else the loop is not vectorised
        factors[g] = m.group_factor(old[g], new[g])


@kernel
def apply(x, kind, height, width, labels, radii, norms, out, first, last):
    """Clip the rows first..last−1 to the radii of their groups, or scale to them given norms."""
    rows, columns = x.shape
    flat, goal = x.reshape(-1), out.reshape(-1)
    real, clip = x.dtype.type, norms.size == 0
    across = (columns + width - 1) // width
    past = passes.beyond_caches(flat, goal)
    many, lowest = radii.size, 0
    if kind == DIAGONALS:  # only those that meet the rows
        many, lowest = last - first + columns - 1, rows - last
    line = np.empty((columns if kind != DIAGONALS else many) + simd.lanes(x), x.dtype)
    values = radii[lowest:] if kind == DIAGONALS else radii
    if not clip:  # those of all groups, or of a row of blocks
        values = np.empty(across if kind == BLOCKS else many, radii.dtype)
        if kind != BLOCKS:
            _factors(radii, norms, lowest, values)
    if kind == DIAGONALS:
        copy(values[:many], line)
    end = first  # of the rows that the line is right for
    for i in range(first, last):
        at, place = i * columns, 0
        if kind == BLOCKS and across == 1:
            g = i // height
            value = real(radii[g] if clip else m.group_factor(norms[g], radii[g]))
            if past:
                _treat_all_past(flat, at, columns, clip, value, goal)
            else:
                _treat_all(flat, at, columns, clip, value, goal)
            continue
        if kind == DIAGONALS:
            place = last - 1 - i
        elif kind == LABELS:
            for j in range(columns):
                line[j] = values[labels[i, j]]
        elif i == end:
            block = i // height
            end = block * height + height
            begin = block * across
            if not clip:
                _factors(radii, norms, begin, values)
                begin = 0
            spread(values, begin, width, columns, line)
        if past:
            _treat_past(flat, at, columns, clip, line, place, goal)
        else:
            _treat(flat, at, columns, clip, line, place, goal)
    if past:
        simd.drain()


@helper
def _are_safe(top, x, inner):
    """Whether the largest sum is such that nothing that matters over- or underflows."""
    if inner == L1:
        return math.isfinite(top)
    return inner == LINF or (1e-200 < top < 1e200 if x.itemsize == 8 else 1e-20 < top < 1e36)


# --- one matrix ----------------------------------------------------------------------------

# The parts are called by their addresses: a call needs either maxima or sums, not both.


@helper
def _finish(sums, squares, norms):
    """Turn sums or maxima into norms, of whatever precision these are."""
    real = norms.dtype.type
    if squares:
        for g in range(norms.size):
            norms[g] = math.sqrt(real(sums[g]))
    else:
        for g in range(norms.size):
            norms[g] = sums[g]


@helper
def _are_whole(kind, height):
    """Whether each piece is a row of groups."""
    return kind == BLOCKS and pieces_of_block(height) == 1


def _kinds_of_maxima(dtype):
    """The types of the arguments of `max_pieces`, for a matrix of a type of Numba."""
    x, labels, number = types.Array(dtype, 2, "C"), types.Array(types.intp, 2, "C"), types.int64
    return x, number, number, number, labels, x, number, number


def _kinds_of_sums(dtype):
    """The same for `sum_pieces`."""
    x, number, *layout = _kinds_of_maxima(dtype)[:5]
    sums = types.Array(types.float64, 2, "C")
    return x, types.boolean, types.float64, number, *layout, sums, number, number


def _kinds_of_whole(dtype, real):
    """The same for `whole_norms`, for norms of type `real`."""
    x, *layout = _kinds_of_maxima(dtype)[:5]
    norms, most, number = types.Array(real, 2, "C"), types.Array(types.float64, 1, "C"), types.int64
    return number, number, x, types.float64, *layout, number, norms, most, number, number


def _kinds_of_apply(dtype, real):
    """The same for `apply`."""
    x, *layout = _kinds_of_maxima(dtype)[:5]
    norms = types.Array(real, 1, "C")
    return x, *layout, norms, norms, x, types.int64, types.int64


def _kinds_of_shrink(dtype, real):
    """The same for `lists.shrink`."""
    x, *layout = _kinds_of_maxima(dtype)[:4]
    radii, lists_, number = types.Array(real, 1, "C"), types.Array(types.intp, 1, "C"), types.int64
    pair, scale = types.UniTuple(number, 2), types.float64
    return pair, x, *layout, lists_, lists_, radii, scale, scale, x, number, number


_to_max = taker(lambda given: _kinds_of_maxima(given[0].dtype))
_to_sum = taker(lambda given: _kinds_of_sums(given[0].dtype))
_to_whole = taker(lambda given: _kinds_of_whole(given[2].dtype, given[9].dtype))
to_apply = taker(lambda given: _kinds_of_apply(given[0].dtype, given[5].dtype))
_to_shrink = taker(lambda given: _kinds_of_shrink(given[1].dtype, given[7].dtype))


@cache
def norms_at(inner, dtype, real):
    """For `all_norms`: where `max_pieces`, `sum_pieces` (0: not needed) and `whole_norms` lie."""
    x, norms = numba.from_dtype(dtype), numba.from_dtype(real)
    if inner == LINF:
        maxima, sums = address_of(max_pieces, _kinds_of_maxima(x)), 0
    else:
        maxima, sums = 0, address_of(sum_pieces, _kinds_of_sums(x))
    return maxima, sums, address_of(whole_norms, _kinds_of_whole(x, norms))


@cache
def address_of_apply(dtype, real):
    """Where `apply` lies."""
    return address_of(apply, _kinds_of_apply(numba.from_dtype(dtype), numba.from_dtype(real)))


@cache
def addresses(inner, dtype, real):
    """For `project`: the same, and where `apply` lies, or `lists.shrink`."""
    if inner == L1:
        kinds = _kinds_of_shrink(numba.from_dtype(dtype), numba.from_dtype(real))
        last = address_of(lists.shrink, kinds)
    else:
        last = address_of_apply(dtype, real)
    return *norms_at(inner, dtype, real), last


@kernel
def whole_norms(
    maxima, sums, x, unit, kind, height, width, labels, inner, norms, most, first, last
):  # fmt: skip
    """Norms of the groups of pieces first..last−1, if `are_whole`; a row of `norms` for each.

    Some at a time, which stay in the cache until all is done.  ``most[first:last]`` takes the
    largest sums of some of them, and zeros.  For `maxima` and `sums` see `norms_at`.
    """
    across = norms.shape[1]
    some = max(TILE // max(across, 1), 1)
    tops = np.empty((some if inner == LINF else 0, across), x.dtype)
    totals = np.empty((0 if inner == LINF else some, across))
    most[first:last] = 0.0
    begin = first
    while begin < last:
        place = begin % some
        end = min(begin + some - place, last)
        done = norms[begin:end].reshape(-1)
        if inner == LINF:
            call_at(maxima, _to_max((x, kind, height, width, labels, tops, begin, end)))
            _finish(tops[place : place + end - begin].reshape(-1), NO, done)
        else:
            given = x, inner == L2, unit, kind, height, width, labels, totals, begin, end
            call_at(sums, _to_sum(given))
            found = totals[place : place + end - begin].reshape(-1)
            most[begin] = passes.largest(found, False)
            _finish(found, inner == L2, done)
        begin = end


@helper
def _join_norms(pieces, kind, height, rows, inner, norms):
    """The groups' norms from those of the pieces; returns the largest sum."""
    _join(pieces, kind, height, rows, norms, inner == LINF)
    if inner == LINF:
        return 1.0
    most = passes.largest(norms, False)
    _finish(norms, inner == L2, norms)
    return most


@helper
def _all_norms(places, x, unit, kind, height, width, labels, inner, norms, workers, desks):
    """Norms of all groups, l1 and l2 of `unit` times x; returns the largest sum.

    For the places see `norms_at`, for the workers and their desks `waiting.split_at`.
    """
    maxima, sums, whole = places
    count = _pieces_of(kind, height, len(x))
    across = _width_of_piece(kind, width, len(x), x.shape[1], norms.size)
    if _are_whole(kind, height):
        most, rows = np.empty(count), norms.reshape(count, across)
        given = maxima, sums, x, unit, kind, height, width, labels, inner, rows, most
        split_at(whole, _to_whole(given), count, workers, desks)
        return passes.largest(most, False)
    if inner == LINF:
        tops = np.empty((count, across), x.dtype)
        taken = _to_max((x, kind, height, width, labels, tops))
        split_at(maxima, taken, count, workers, desks)
        return _join_norms(tops, kind, height, len(x), inner, norms)
    totals = np.empty((count, across))
    taken = _to_sum((x, inner == L2, unit, kind, height, width, labels, totals))
    split_at(sums, taken, count, workers, desks)
    return _join_norms(totals, kind, height, len(x), inner, norms)


@helper
def _exchange_ties(norms, u, order):
    """Let the first of the largest norms be those that come first in the caller's order.

    u has the rule for ties in the kernels' order.  For `order` see `settle`.
    """
    top, given, number = passes.largest(norms, True), u.copy(), u.size
    down, source = number // max(order, 1), 0
    for i in range(number):
        g = number - 1 - i if order < 0 else i % order * down + i // order
        if norms[g] == top:
            while norms[source] != top:
                source += 1
            u[g] = given[source]
            source += 1


@helper
def _settle(norms, u, outer, feasible, order, radii, info):
    """Mend the projected norms u where the result is to be feasible, and report on them.

    `info` holds the status: `RESCALE` afterwards if u overflows.
    Where `radii` has room, it takes them, and `info` the score or the sum of the result's norms.
    `order`: 0 if the groups are in the caller's order, -1 if in the reverse; else they lie column
    by column in a grid of so many columns.
    """
    if order != 0 and info[STATUS] == m.TIED:
        _exchange_ties(norms, u, order)
    free = outer == m.CAI and info[STATUS] != m.FEASIBLE  # u may exceed the norms
    most = passes.largest(u, True) if free else 0.0
    if most == math.inf:  # also where nobody asks for them: the result is to have the same bits
        info[STATUS] = m.RESCALE
        return
    if feasible and free:
        factor = m.feasible_factor(passes.largest(norms, True), most)
        for g in range(norms.size):
            u[g] = min(u[g] * factor, norms[g])
    if radii.size:
        copy(u, radii)
        s, q, exponent = passes.moments(np.minimum(u, norms), True)
        info[REACHED] = math.ldexp(s, exponent)
        if outer == m.CAI:
            info[REACHED] = m.score(m.MAGNITUDES, norms.size, s, q)


@kernel
def project(
    search, rows_at, places, matrices, inner, kind, height, width, labels, starts, listed, order,
    room, outer, feasible, tol, out, radii, info, workers, desks, first, last,
):  # fmt: skip
    """The whole projection of the matrices first..last−1.

    Returns the largest status; `RESCALE` is that of matrices whose norms, or what they are
    projected to, need another unit, or for which the engine has to be compiled: see
    `short.project_by` for `search`, and for the `places` `addresses`.  With l1 norms, see
    `lists.shrink` for `rows_at`, `starts` and the places `listed`.  `room` has two rows of as many
    entries as there are groups: Numba would take them page by page where they are large.  For
    `order` and the rows of `radii` and `info` see `settle`; ``info[:, WANTED]`` brings in the level
    or radius.  For the workers and their desks see `waiting.split_at`.
    """
    norms, u = room[0], room[1]
    number, worst = norms.size, 0.0
    for b in range(first, last):
        x, to, about = matrices[b], out[b], info[b]
        top = _all_norms(
            places[:3], x, 1.0, kind, height, width, labels, inner, norms, workers, desks
        )
        if not _are_safe(top, x, inner):
            about[STATUS] = m.RESCALE
            worst = max(worst, about[STATUS])
            continue
        short.project_by(
            search, outer, YES, tol, YES, YES, norms.reshape(1, number), u.reshape(1, number),
            about.reshape(1, about.size), NONE, ONE,
        )  # fmt: skip
        if about[STATUS] == m.GO:
            about[STATUS] = m.RESCALE
        worst = max(worst, about[STATUS])
        if about[STATUS] == m.RESCALE or about[STATUS] == m.NONFINITE:
            continue
        _settle(norms, u, outer, feasible, order, radii[b], about)
        worst = max(worst, about[STATUS])
        if about[STATUS] == m.RESCALE:
            continue
        if about[STATUS] == m.FEASIBLE and inner != L2:
            copy(x.reshape(-1), to.reshape(-1))
            continue
        if inner == L1:
            taken = _to_shrink((rows_at, x, kind, height, width, starts, listed, u, 1.0, tol, to))
            split_at(places[3], taken, number, workers, desks)
            continue
        scaled = norms[: number if inner == L2 else 0]
        given = x, kind, height, width, labels, u, scaled, to
        split_at(places[3], to_apply(given), len(x), workers, desks)
    return worst


# The other steps, where Python takes them one by one.
pieces_of, width_of_piece, are_whole, join_norms, all_norms = map(
    entry, (_pieces_of, _width_of_piece, _are_whole, _join_norms, _all_norms)
)
are_safe, settle = entry(_are_safe), entry(_settle)
