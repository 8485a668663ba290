"""Norms of the groups of a matrix, and what is done to the groups: clip, scale, shrink.

A matrix is C-contiguous; its groups are given by a few numbers (`kind`, and for blocks
their shape ``height``, ``width``), or by a label for each entry.  Rows are blocks of
shape (1, N), columns blocks of shape (M, 1).

For the norm linf the kernels read the numbers' bit patterns without the sign bit: they
are ordered as the magnitudes are, NaN and infinity come out on top, and integer loops
vectorise without a special case.
"""

import math

import numpy as np

from .. import _math as m
from .._jit import kernel
from . import engine, passes, simd

BLOCKS, DIAGONALS, LABELS = 0, 1, 2  # kinds of groups
LINF, L2, L1 = 0, 1, 2  # norms of a group

PIECE = 512  # rows whose sums are taken by one thread, in one order
TILE = 4096  # columns whose running sums stay in the first cache


@kernel
def pieces_of(kind, height, rows):
    """In how many pieces the rows are cut; a piece lies within one row of blocks."""
    if kind == BLOCKS:
        return (rows + height - 1) // height * pieces_of_block(height)
    return (rows + PIECE - 1) // PIECE if kind == DIAGONALS else 1


@kernel
def pieces_of_block(height):
    """Pieces of one row of blocks."""
    return (height + PIECE - 1) // PIECE


@kernel
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


# --- linf: the bit patterns ------------------------------------------------------------


@kernel
def _max_into(tops, bits, first, last, mask):
    """Take the rows first..last−1 into the running maxima of the columns."""
    for begin in range(0, tops.size, TILE):
        top = tops[begin : begin + TILE]
        end = begin + top.size
        i = first
        while i + 4 <= last:
            a, b = bits[i, begin:end], bits[i + 1, begin:end]
            c, d = bits[i + 2, begin:end], bits[i + 3, begin:end]
            for j in range(top.size):
                ab = max(a[j] & mask, b[j] & mask)
                top[j] = max(top[j], max(ab, max(c[j] & mask, d[j] & mask)))
            i += 4
        while i < last:
            a = bits[i, begin:end]
            for j in range(top.size):
                top[j] = max(top[j], a[j] & mask)
            i += 1


@kernel
def _max_of(row, mask):
    top = row[0] & mask
    for j in range(row.size):
        top = max(top, row[j] & mask)
    return top


@kernel
def _max_by_width(line, width, top, mask):
    """Maxima of neighbours, `width` at a time."""
    whole = 0
    if width == 4:
        whole = line.size // 4
        quads = line[: 4 * whole].reshape(whole, 4)
        for b in range(whole):
            pair = max(quads[b, 0], quads[b, 1])
            top[b] = max(pair, max(quads[b, 2], quads[b, 3]))
    elif width % 4 == 0:
        whole = line.size // width
        for b in range(whole):
            part, largest = line[b * width : (b + 1) * width], line[b * width]
            for j in range(0, width, 4):
                pair = max(part[j], part[j + 1])
                largest = max(largest, max(pair, max(part[j + 2], part[j + 3])))
            top[b] = largest
    for b in range(whole, top.size):
        top[b] = _max_of(line[b * width : (b + 1) * width], mask)


@kernel
def max_pieces(bits, mask, kind, height, width, labels, tops, first, last):
    """Fill rows first..last−1 of `tops`: the maxima of the pieces, as bit patterns."""
    rows, columns = bits.shape
    blocks = kind == BLOCKS and 1 < width < columns
    line = np.empty(columns if blocks else 0, bits.dtype)
    for piece in range(first, last):
        top = tops[piece]
        begin, end = _rows_of_piece(kind, height, rows, piece)
        top[:] = 0
        if kind == DIAGONALS:
            for i in range(begin, end):
                row, window = bits[i], top[rows - 1 - i : rows - 1 - i + columns]
                for j in range(columns):
                    window[j] = max(window[j], row[j] & mask)
        elif kind == LABELS:
            for i in range(begin, end):
                row, label = bits[i], labels[i]
                for j in range(columns):
                    g = label[j]
                    top[g] = max(top[g], row[j] & mask)
        elif width == columns:
            for i in range(begin, end):
                top[0] = max(top[0], _max_of(bits[i], mask))
        elif width == 1:
            _max_into(top, bits, begin, end, mask)
        else:
            line[:] = 0
            _max_into(line, bits, begin, end, mask)
            _max_by_width(line, width, top, mask)


# --- l1, l2: sums ----------------------------------------------------------------------


@kernel
def _term(value, squares, unit):
    """|value| or value² of the value in the given unit, in the data's precision."""
    a = value * unit
    return a * a if squares else abs(a)


@kernel
def _sum_by_width(line, width, total):
    """Sums of neighbours, `width` at a time."""
    whole = 0
    if width == 4:
        whole = line.size // 4
        quads = line[: 4 * whole].reshape(whole, 4)
        for b in range(whole):
            total[b] = (quads[b, 0] + quads[b, 1]) + (quads[b, 2] + quads[b, 3])
    elif width % 4 == 0:
        whole = line.size // width
        for b in range(whole):
            part, s = line[b * width : (b + 1) * width], 0.0
            for j in range(0, width, 4):
                s += (part[j] + part[j + 1]) + (part[j + 2] + part[j + 3])
            total[b] = s
    for b in range(whole, total.size):
        part, s = line[b * width : (b + 1) * width], 0.0
        for j in range(part.size):
            s += part[j]
        total[b] = s


@kernel
def _sum_into(sums, x, first, last, squares, unit):
    """Add the rows first..last−1 to the running sums of the columns."""
    for begin in range(0, sums.size, TILE):
        s = sums[begin : begin + TILE]
        end = begin + s.size
        i = first
        while i + 4 <= last:
            a, b = x[i, begin:end], x[i + 1, begin:end]
            c, d = x[i + 2, begin:end], x[i + 3, begin:end]
            if squares:
                for j in range(s.size):
                    ab = _term(a[j], True, unit) + _term(b[j], True, unit)
                    s[j] += ab + (_term(c[j], True, unit) + _term(d[j], True, unit))
            else:
                for j in range(s.size):
                    ab = _term(a[j], False, unit) + _term(b[j], False, unit)
                    s[j] += ab + (_term(c[j], False, unit) + _term(d[j], False, unit))
            i += 4
        while i < last:
            a = x[i, begin:end]
            for j in range(s.size):
                s[j] += _term(a[j], squares, unit)
            i += 1


@kernel
def _sum_of(row, squares, unit):
    """The sum over a row, in registers; four terms at a time as everywhere."""
    width = simd.lanes(row)
    scale = simd.splat(unit)
    total = simd.widen(simd.splat(unit - unit))
    whole = row.size // (4 * width) * (4 * width)
    for i in range(0, whole, 4 * width):
        a = simd.multiply(simd.load(row, i), scale)
        b = simd.multiply(simd.load(row, i + width), scale)
        c = simd.multiply(simd.load(row, i + 2 * width), scale)
        d = simd.multiply(simd.load(row, i + 3 * width), scale)
        if squares:
            ab = simd.multiply_add(a, a, simd.multiply(b, b))
            cd = simd.multiply_add(c, c, simd.multiply(d, d))
        else:
            ab = simd.add(simd.magnitude(a), simd.magnitude(b))
            cd = simd.add(simd.magnitude(c), simd.magnitude(d))
        total = simd.add(total, simd.widen(simd.add(ab, cd)))
    result = simd.total(total)
    for j in range(whole, row.size):
        result += np.float64(_term(row[j], squares, unit))
    return result


@kernel
def sum_pieces(x, squares, unit, kind, height, width, labels, sums, first, last):
    """Fill rows first..last−1 of `sums`: Σ|x| or Σx² over the pieces of the groups.

    At most four terms are added in the data's precision, all else in float64.
    """
    rows, columns = x.shape
    blocks = kind == BLOCKS and 1 < width < columns
    line = np.empty(columns if blocks else 0)
    for piece in range(first, last):
        total = sums[piece]
        begin, end = _rows_of_piece(kind, height, rows, piece)
        total[:] = 0.0
        if kind == DIAGONALS:
            for i in range(begin, end):
                row, window = x[i], total[rows - 1 - i : rows - 1 - i + columns]
                for j in range(columns):
                    window[j] += _term(row[j], squares, unit)
        elif kind == LABELS:
            for i in range(begin, end):
                row, label = x[i], labels[i]
                for j in range(columns):
                    total[label[j]] += _term(row[j], squares, unit)
        elif width == columns:
            for i in range(begin, end):
                total[0] += _sum_of(x[i], squares, unit)
        elif width == 1:
            _sum_into(total, x, begin, end, squares, unit)
        else:
            line[:] = 0.0
            _sum_into(line, x, begin, end, squares, unit)
            _sum_by_width(line, width, total)


@kernel
def join(pieces, kind, height, norms, largest):
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
        target, source = norms[first : first + across], pieces[p]
        if largest:
            for j in range(across):  # NaN stays
                if target[j] == target[j] and not source[j] <= target[j]:
                    target[j] = source[j]
        else:
            for j in range(across):
                target[j] += source[j]


# --- what is done to the groups ----------------------------------------------------------


@kernel
def _spread(values, width, line):
    """Repeat each value `width` times."""
    whole = 0
    if width == 4:  # the common small block: no inner loop
        whole = line.size // 4
        quads = line[: 4 * whole].reshape(whole, 4)
        for b in range(whole):
            quads[b, 0] = quads[b, 1] = quads[b, 2] = quads[b, 3] = values[b]
    elif width % 4 == 0:  # four stores at once become one
        whole = line.size // width
        for b in range(whole):
            part, value = line[b * width : (b + 1) * width], values[b]
            for j in range(0, width, 4):
                part[j] = part[j + 1] = part[j + 2] = part[j + 3] = value
    for b in range(whole, values.size):
        part = line[b * width : (b + 1) * width]
        for j in range(part.size):
            part[j] = values[b]


@kernel
def _clip(row, bounds, out):
    zero = row.dtype.type(0)
    for j in range(row.size):
        a = min(abs(row[j]), bounds[j])
        out[j] = math.copysign(a, row[j]) if bounds[j] > zero else zero


@kernel
def _multiply(row, factors, out):
    zero = row.dtype.type(0)
    for j in range(row.size):
        out[j] = row[j] * factors[j] if factors[j] > zero else zero


@kernel
def _clip_all(row, bound, out):
    """`_clip` with one bound."""
    for j in range(row.size):
        out[j] = math.copysign(min(abs(row[j]), bound), row[j])


@kernel
def _multiply_all(row, factor, out):
    """`_multiply` with one factor."""
    for j in range(row.size):
        out[j] = row[j] * factor


@kernel
def apply(x, clip, kind, height, width, labels, values, out, first, last):
    """Clip or multiply the rows first..last−1 by their groups' values."""
    rows, columns = x.shape
    line = np.empty(columns, x.dtype)
    across = (columns + width - 1) // width
    held = -1
    for i in range(first, last):
        row, target = x[i], out[i]
        if kind == BLOCKS and across == 1:
            value = values[i // height]
            if not value > 0.0 and value == value:
                target[:] = 0.0
            elif clip:
                _clip_all(row, value, target)
            else:
                _multiply_all(row, value, target)
            continue
        if kind == DIAGONALS:
            line = values[rows - 1 - i : rows - 1 - i + columns]
        elif kind == LABELS:
            label = labels[i]
            for j in range(columns):
                line[j] = values[label[j]]
        elif i // height != held:
            held = i // height
            part = values[held * across : (held + 1) * across]
            if width == 1:
                line = part
            else:
                _spread(part, width, line)
        if clip:
            _clip(row, line, target)
        else:
            _multiply(row, line, target)


@kernel
def in_range(top, x):
    """Whether the largest sum is such that no square that matters over- or underflows."""
    return 1e-200 < top < 1e200 if x.itemsize == 8 else 1e-20 < top < 1e36


@kernel
def shrink(values, starts, radii, norms, tol, first, last):
    """Project the groups first..last−1, which lie one after the other, onto l1 balls."""
    info, log, radius = np.empty((1, 4)), np.empty(0), np.empty(1)
    for g in range(first, last):
        part = values[starts[g] : starts[g + 1]]
        if radii[g] == 0.0:
            part[:] = 0.0
        elif radii[g] < norms[g]:
            radius[0] = radii[g]
            row = part.reshape(1, part.size)
            engine.project_rows(
                m.L1, True, radius, radius, tol, False, row, row, False, info, log, 0, 1
            )


# --- one matrix ----------------------------------------------------------------------------


@kernel
def all_norms(x, bits, mask, unit, kind, height, width, labels, across, inner, norms):
    """Norms of all groups by one thread (l2: squared); returns the largest."""
    count = pieces_of(kind, height, len(x))
    if inner == LINF:
        tops = np.empty((count, across), bits.dtype)
        max_pieces(bits, mask, kind, height, width, labels, tops, 0, count)
        join(tops.view(x.dtype), kind, height, norms, True)
    else:
        sums = np.empty((count, across))
        sum_pieces(x, inner == L2, unit, kind, height, width, labels, sums, 0, count)
        join(sums, kind, height, norms, False)
    return passes.largest(norms, False)


@kernel
def settle(norms, u, outer, feasible, clip, values, radii, info):
    """From the projected norms u: what the groups are clipped at or multiplied by.

    `info` holds the status; it takes the score or the sum of the result's norms.
    """
    if feasible and info[0] != m.FEASIBLE:
        top, most = passes.largest(norms, True), passes.largest(u, True)
        factor = top / most if most > top else 1.0
        for g in range(norms.size):
            u[g] = min(u[g] * factor, norms[g])
    one, none = values.dtype.type(1), values.dtype.type(0)
    for g in range(norms.size):
        radii[g] = u[g]
        values[g] = u[g]
    if not clip:
        for g in range(norms.size):
            # Squares that underflow count as zeros, and become zeros.
            whole = one if norms[g] > 0.0 else none
            values[g] = values.dtype.type(u[g] / norms[g]) if u[g] < norms[g] else whole
    for g in range(norms.size):
        u[g] = min(u[g], norms[g])
    _, s, q = passes.sums(u, True, 0.0, -math.inf)
    info[2] = s
    if outer == m.CAI:
        info[2] = s / q * s if q > 0.0 else 0.0


@kernel
def finish(x, clip, kind, height, width, labels, norms, u, outer, feasible, values, out, radii,
           info):  # fmt: skip
    """`settle` and `apply` by one thread."""
    settle(norms, u, outer, feasible, clip, values, radii, info)
    if info[0] == m.FEASIBLE and clip:
        for i in range(len(x)):
            row, target = x[i], out[i]
            for j in range(row.size):
                target[j] = row[j]
    elif info[0] != m.NONFINITE:
        apply(x, clip, kind, height, width, labels, values, out, 0, len(x))
