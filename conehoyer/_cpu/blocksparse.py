"""Products of a block-sparse matrix and a dense one, tile by tile in vector registers.

The blocks lie one behind the other, each column by column: entry i of column k of block b is
``values[(b * width + k) * tall + i]``, where ``tall`` is the height of a block rounded up to
whole tiles.  What a tile reads of the dense matrix is packed first, so that neighbours in the
tile are neighbours in memory.  Registers are read from multiples of their size, so that none lies
across two cache lines.  Where hardly a row of the dense matrix is read twice, that would take
longer than the product: it is read where it lies then.

The loop over the blocks of a row stands twice below: in a function of its own it is slower, as
``bench_blocksparse`` shows where half of the blocks or all are kept.  Its indices are unsigned,
since Numba asks of signed ones whether they count from the end: 4 % of the time in cache.

Each entry of a result is added up from the bias on, in the order of the columns, one fused
operation a term, so that neither the shape of a tile nor the number of workers change a bit.
"""

from typing import NamedTuple

import numpy as np

from .._jit import helper, kernel
from . import simd
from .arrays import NO, YES
from .simd import LINE
from .tiles import (
    ACCUMULATORS,
    BITS,
    ROWS,
    add_outer,
    anywhere,
    evenly,
    lanes,
    load_tile,
    spread_tile,
    store_tile,
    turn_tile,
    zero_tile,
)

_NEXT = 24 << 10  # bytes that are read again and again, from the first-level cache
_NEAR = 512 << 10  # the same, from the second-level cache
_OFTEN = 2  # reads of a row of x from which on it pays to pack all rows first
GATHERED = 8  # blocks of one row that a tile takes, if they have as many columns


class Layout(NamedTuple):
    """Where the blocks are."""

    height: int
    width: int
    tall: int
    indices: np.ndarray  # column of blocks, for each block
    first: np.ndarray  # block that each row of blocks begins with; one entry more


def rounded(height) -> int:
    """The height of blocks, rounded up to whole tiles."""
    rows = _rows(height)
    return -(-height // rows) * rows


def _rows(height):
    return -(-height // -(-height // ROWS))


def tiling(height, depth, lanes, n, packed=True) -> tuple[int, int]:
    """Rows of a tile for blocks of this height, and registers side by side for n columns.

    Twice the rows and half the columns are better where the `depth` rows of x that a row of blocks
    reads would not stay in the first-level cache otherwise, or many columns of the tile be empty.
    No column may be where x is not packed.
    """
    rows = _rows(height)
    vecs = _power(min(ACCUMULATORS // rows, 8))
    wide = vecs * lanes
    far = depth * vecs * BITS // 8 > _NEXT
    empty = 1.1 * -(-2 * n // wide) < 2 * -(-n // wide)  # a tenth slower otherwise
    if n <= lanes or (vecs > 2 and (far or empty)):
        vecs = 1 if n <= lanes else vecs // 2
        rows *= 2 if rounded(height) % (2 * rows) == 0 else 1
    while not packed and vecs * lanes > n:
        vecs //= 2
    return rows, vecs


def pays(uses, length, low) -> bool:
    """Whether to pack x, each of whose `length` rows is read so often on average.

    Not if most would be read once or never.  Strips that stay in the first-level cache cost
    nothing, though.  Nor do tiles along blocks that are lower than a register pay where they are
    the other way, unless a strip goes beyond the second-level cache: most of a register is idle.
    """
    return uses >= _OFTEN or length * BITS // 8 <= (_NEAR if low else _NEXT)


def turned_tiling(height, width, lanes, n, packed=True) -> tuple[int, int]:
    """Columns of x that a tile takes, and registers along the height, where x lies by columns.

    Tiles of one register take twice the columns, which is faster unless blocks are single columns,
    many columns of the tile would be empty, or x is not packed: as many columns of it, a power of
    two apart, would drive each other out of the cache.
    """
    vecs = min(2, -(-height // lanes))
    rows = _power(min(ACCUMULATORS // vecs, 8, n))
    twice = 2 * rows
    full = twice <= n and -(-n // twice) * twice <= 1.05 * -(-n // rows) * rows
    if packed and width > 1 and twice * vecs <= ACCUMULATORS and full:
        rows = twice
    return rows, vecs


@helper
def _aligned(size, like):
    """Memory for so many entries, from the beginning of a cache line on."""
    line = LINE // like.itemsize
    room = np.empty(size + line, like.dtype)
    ahead = -(room.ctypes.data // like.itemsize) % line
    return room[ahead : ahead + size]


# --- dense on the right, row by row ---------------------------------------------------------


@helper
def _pack(vecs, square, turned, x, left, right, wide, room):
    """Copy columns left..right−1 of x as strips, each one row behind the other, zeros behind.

    x comes transposed where `turned`; `square` has as many entries as a register.
    """
    flat = x.reshape(x.size)
    n, length = x.shape if turned else x.shape[::-1]
    strip = length * wide
    if turned:
        for column in range(left, right, wide):
            place = (column - left) // wide * strip
            _pack_columns(wide, square, x, column, room, place)
        return
    for k in range(length):
        place = k * wide
        for column in range(left, right - wide + 1, wide):
            row = load_tile(vecs, flat, (0,), k * n + column)
            store_tile(row, vecs, room, (0,), place)
            place += strip
        rest = (right - left) % wide
        if rest > 0:
            for j in range(wide):
                room[place + j] = x[k, right - rest + j] if j < rest else 0.0


@kernel
def multiply(
    rows, vecs, square, packed, turned, values, layout, bias, x, out, begin, end, low, high
):
    """Rows begin..end−1 of blocks of ``out = W @ x + bias``, in columns low..high−1.

    x and out have contiguous rows, but x comes transposed where `turned`; `square` has as many
    entries as a register, and low is a multiple of a tile's columns.  Where `packed` is empty, x
    is read where it lies: it is not turned, and no narrower than a tile.
    """
    height, width, tall = layout.height, layout.width, layout.tall
    indices, first = layout.indices, layout.first
    count, wide = len(rows), len(vecs) * lanes(x)
    n, length = x.shape if turned else x.shape[::-1]
    # As many strips of x as the second-level cache holds, each one row behind the other.
    in_place = len(packed) == 0
    strip = 0 if in_place else length * wide
    most = max(_NEAR // max(strip * x.itemsize, 1), 1) * wide
    as_is = in_place or (not turned and n == wide and x.ctypes.data % LINE == 0)
    step = n if in_place else wide  # from a row of x to the next
    room = _aligned(0 if as_is else strip * (min(most, high - low + wide - 1) // wide), x)
    source = x.reshape(x.size) if as_is else room
    flat = out.reshape(out.size)
    corner = _aligned(count * wide, x)
    down, across, aside = evenly(rows, 0, 1), evenly(rows, 0, n), evenly(rows, 0, wide)
    for left in range(low, high, most):
        right = min(left + most, high)
        if not as_is:
            _pack(vecs, square, turned, x, left, right, wide, room)
        for q in range(begin, end):
            for column in range(left, right, wide):
                offset = (column - left) // wide * strip
                if in_place:
                    column = offset = min(column, n - wide)  # the last takes some once more
                for t in range(0, tall, count):
                    row = q * height + t
                    tile = spread_tile(vecs, bias, down, row)
                    b, stop = first[q], first[q + 1]
                    entry = b * width * tall + t
                    if width == 1:  # two in turn: a tenth less time
                        while b + 1 < stop:
                            start = offset + indices[np.uintp(b)] * step
                            tile = add_outer(tile, vecs, values, down, entry, source, start)
                            entry += tall
                            start = offset + indices[np.uintp(b + 1)] * step
                            tile = add_outer(tile, vecs, values, down, entry, source, start)
                            entry += tall
                            b += 2
                    while b < stop:
                        base = indices[b] * width
                        entry = b * width * tall + t
                        start = offset + base * step
                        for _ in range(min(width, length - base)):
                            tile = add_outer(tile, vecs, values, down, entry, source, start)
                            entry += tall
                            start += step
                        b += 1
                    last = min(row + count, q * height + height, out.shape[0])
                    if row + count == last and column + wide <= n:
                        store_tile(tile, vecs, flat, across, row * n + column)
                    elif row < last:
                        store_tile(tile, vecs, corner, aside, 0)
                        for i in range(last - row):
                            for j in range(min(wide, n - column)):
                                out[row + i, column + j] = corner[i * wide + j]


# --- rows of single entries, gathered ---------------------------------------------------------


@kernel
def multiply_gathered(
    rows, vecs, square, turned, values, layout, tops, edges, bias, x, out, begin, end
):
    """What `multiply` does, for blocks of one row: those of one column of blocks share its x.

    The values lie column by column here; `tops` has the row of each block, and `edges` where a
    column begins.  A tile takes several blocks, wherever they are, and may reach beyond the last.
    """
    width, count, wide = layout.width, len(rows), len(vecs) * lanes(x)
    n, length = x.shape if turned else x.shape[::-1]
    strips = (n + wide - 1) // wide
    strip = length * wide
    room = _aligned(strip * strips, x)
    _pack(vecs, square, turned, x, 0, n, wide, room)
    flat, corner, line = out.reshape(out.size), _aligned(count * wide, x), LINE // out.itemsize
    aside, along = evenly(rows, 0, wide), evenly(rows, 0, width)
    for i in range(begin, end):
        out[i] = bias[i]
    for c in range(edges.size - 1):
        base = c * width
        low = edges[c] + np.searchsorted(tops[edges[c] : edges[c + 1]], begin)
        high = edges[c] + np.searchsorted(tops[edges[c] : edges[c + 1]], end)
        for g in range(low, high, count):
            own = min(count, high - g)  # a tile takes more than that, and drops it
            goals = anywhere(rows, tops, g, n)
            for s in range(strips):
                column = s * wide
                direct = own == count and column + wide <= n
                if direct:
                    tile = load_tile(vecs, flat, goals, column)
                else:
                    for i in range(count):
                        for j in range(wide):
                            inside = i < own and column + j < n
                            corner[i * wide + j] = out[tops[g + i], column + j] if inside else 0.0
                    tile = load_tile(vecs, corner, aside, 0)
                for i in range(g + count, min(g + 2 * count, high)):  # for the next: a tenth faster
                    place = tops[i] * n + column
                    for j in range(place, place + wide, line):
                        simd.fetch(flat, j)
                start, entry = s * strip + base * wide, g * width
                for k in range(min(width, length - base)):
                    tile = add_outer(tile, vecs, values, along, entry + k, room, start)
                    start += wide
                if direct:
                    store_tile(tile, vecs, flat, goals, column)
                else:
                    store_tile(tile, vecs, corner, aside, 0)
                    for i in range(own):
                        for j in range(min(wide, n - column)):
                            out[tops[g + i], column + j] = corner[i * wide + j]


# --- dense on the right, column by column ---------------------------------------------------


@helper
def _pack_columns(count, square, x, column, room, place):
    """Copy so many rows of x, one column behind the other, zeros for rows that there are not.

    They are turned in registers, as many at once as `square` has entries.
    """
    flat, (n, length), width = x.reshape(x.size), x.shape, lanes(x)
    along, beside = evenly(square, 0, length), evenly(square, 0, max(count, width))
    whole = length // width * width if column + count <= n else 0
    for k in range(0, whole, width):
        for i in range(0, count, len(square)):
            tile = load_tile((0,), flat, along, (column + i) * length + k)
            store_tile(turn_tile(tile), (0,), room, beside, place + k * count + i)
    for k in range(whole, length):
        for i in range(count):
            room[place + k * count + i] = x[column + i, k] if column + i < n else 0.0


@kernel
def multiply_columns(
    rows, vecs, square, packed, turned, values, layout, bias, x, out, begin, end, low, high
):
    """The same for xᵀ and outᵀ with contiguous rows: the registers lie along the blocks' columns.

    x is (columns of the dense matrix, length), out (columns, rows of the result); `square` has
    as many entries as `rows`, a power of two.  Where `packed` is empty, x is read where it lies:
    it may come transposed then, where `turned`.
    """
    height, width, tall = layout.height, layout.width, layout.tall
    indices, first = layout.indices, layout.first
    count, deep = len(rows), len(vecs) * lanes(x)
    n = out.shape[0]
    length = x.size // n
    limit = out.shape[1]
    flat = out.reshape(out.size)
    corner = _aligned(count * deep, x)
    in_place = len(packed) == 0
    as_is = in_place | (count == 1)
    apart = (1 if turned else length) if as_is else 1  # from a column of x to the next
    step = (n if turned else 1) if in_place else count  # and from a row to the next
    down, across = evenly(rows, 0, apart), evenly(rows, 0, limit)
    aside, same = evenly(rows, 0, deep), evenly(rows, 0, 0)
    # As many columns of the dense matrix, and then rows of blocks, as the second-level cache holds.
    strip = 0 if in_place else length * count
    most = max(_NEAR // max(strip * x.itemsize, 1), 1) * count
    room = _aligned(0 if as_is else strip * (min(most, high - low + count - 1) // count), x)
    source = x.reshape(x.size) if as_is else room
    blocks = max(_NEAR // (width * tall * x.itemsize), 1)
    for left in range(low, high, most):
        right = min(left + most, high)
        if not as_is:
            for group in range(left, right, count):
                column = min(group, n - count)  # the last tile takes some columns once more
                place = (group - left) // count * strip
                _pack_columns(count, square, x, column, room, place)
        upper = begin
        while upper < end:
            lower = np.searchsorted(first[: end + 1], first[upper] + blocks)
            lower = min(max(lower, upper + 1), end)
            for group in range(left, right, count):
                column = min(group, n - count)
                offset = column * apart if as_is else (group - left) // count * strip
                for q in range(upper, lower):
                    for t in range(0, height, deep):
                        row = q * height + t
                        tile = load_tile(vecs, bias, same, row)
                        b, stop = first[q], first[q + 1]
                        entry = b * width * tall + t
                        if width == 1:
                            while b + 1 < stop:
                                start = offset + indices[np.uintp(b)] * step
                                tile = add_outer(tile, vecs, source, down, start, values, entry)
                                entry += tall
                                start = offset + indices[np.uintp(b + 1)] * step
                                tile = add_outer(tile, vecs, source, down, start, values, entry)
                                entry += tall
                                b += 2
                        while b < stop:
                            base = indices[b] * width
                            entry = b * width * tall + t
                            start = offset + base * step
                            for _ in range(min(width, length - base)):
                                tile = add_outer(tile, vecs, source, down, start, values, entry)
                                entry += tall
                                start += step
                            b += 1
                        last = min(q * height + height, limit)
                        if row + deep <= last:
                            store_tile(tile, vecs, flat, across, column * limit + row)
                        elif row < last:
                            store_tile(tile, vecs, corner, aside, 0)
                            for i in range(count):
                                for j in range(last - row):
                                    out[column + i, row + j] = corner[i * deep + j]
            upper = lower


# --- dense times dense, at the blocks of a pattern ------------------------------------------


def sampling(low, long, lanes) -> tuple[int, int]:
    """Rows of a tile, and registers in each, for blocks of so many rows and so long ones."""
    deep = _power(min(-(-long // lanes), 2 if low > 3 else 4))
    return _power(min(low, 8, ACCUMULATORS // deep)), deep


def _power(most) -> int:
    """The largest power of two up to `most`."""
    return 1 << (most.bit_length() - 1)


@kernel
def sample(rows, vecs, turned, left, right, layout, values, begin, end):
    """Blocks begin..end−1 of Q·Kᵀ.

    Registers lie along the queries, and `left` is K, `right` is Qᵀ; or, if it is turned, along the
    keys, for blocks lower than a register, and then they are Q and Kᵀ.  Both have zeros beyond
    their edges.
    """
    height, width, tall = layout.height, layout.width, layout.tall
    count, deep = len(rows), len(vecs) * lanes(left)
    depth, step = left.shape[1], right.shape[1]
    one, other = left.reshape(left.size), right.reshape(right.size)
    corner = np.empty(count * deep, left.dtype)
    down, along = (height, width) if turned else (width, height)
    room = width if turned else tall
    by, apart = (1, tall) if turned else (tall, 1)  # from row to row, and from lane to lane
    here, beside, aside = evenly(rows, 0, depth), evenly(rows, 0, by), evenly(rows, 0, deep)
    q = 0
    for b in range(begin, end):
        while layout.first[q + 1] <= b:
            q += 1
        query, key = q * height, layout.indices[b] * width
        first, second = (query, key) if turned else (key, query)
        for i in range(0, down, count):
            for j in range(0, along, deep):
                tile = zero_tile(left, rows, vecs)
                entry, start = (first + i) * depth, second + j
                for _ in range(depth):
                    tile = add_outer(tile, vecs, one, here, entry, other, start)
                    entry += 1
                    start += step
                place = b * width * tall + i * by + j * apart
                if apart == 1 and i + count <= down and j + deep <= room:
                    store_tile(tile, vecs, values, beside, place)
                else:
                    store_tile(tile, vecs, corner, aside, 0)
                    for row in range(min(count, down - i)):
                        for lane in range(min(deep, room - j)):
                            values[place + row * by + lane * apart] = corner[row * deep + lane]


@helper
def _exponentials(values, begin, end):
    """e^x of those of the values in place; none exceeds 0."""
    width = simd.lanes(values)
    for i in range(begin, end - width + 1, width):
        simd.store(simd.exponential(simd.load(values, i)), values, i)
    last = begin + (end - begin) // width * width
    if last < end:
        inside = simd.first_lanes(simd.splat(values.dtype.type(0.0)), end - last)
        found = simd.exponential(simd.load_part(values, last, inside))
        simd.store_part(found, inside, values, last)


@helper
def _softmax_side_by_side(values, layout, columns, result, q):
    """Softmax of a row of blocks that are whole registers high, a register of rows at a time."""
    width, tall, lanes = layout.width, layout.tall, simd.lanes(values)
    for t in range(0, tall, lanes):
        top = simd.splat(values.dtype.type(-np.inf))
        zero = simd.nothing(top)
        total = simd.widen(zero)
        for b in range(layout.first[q], layout.first[q + 1]):
            for k in range(min(width, columns - layout.indices[b] * width)):
                v = simd.load(values, (b * width + k) * tall + t)
                top = simd.where(simd.above(v, top), v, top)
        for b in range(layout.first[q], layout.first[q + 1]):
            valid = min(width, columns - layout.indices[b] * width)
            for k in range(width):
                place, e = (b * width + k) * tall + t, zero
                if k < valid:
                    e = simd.exponential(simd.sub(simd.load(values, place), top))
                total = simd.add(total, simd.widen(e))
                simd.store(e, result, place)
        factor = simd.narrow(simd.widen(simd.splat(values.dtype.type(1.0))) / total, zero)
        for b in range(layout.first[q], layout.first[q + 1]):
            for k in range(width):
                place = (b * width + k) * tall + t
                simd.store(simd.load(result, place) * factor, result, place)


@helper
def _over_columns(a, room, tall, largest):
    """The lanes of a, each the largest or the sum of those of the same row; a column is `tall`."""
    simd.store(a, room, 0)
    for lane in range(tall, room.size):
        row = lane % tall
        if largest:
            room[row] = room[lane] if room[lane] > room[row] else room[row]
        else:
            room[row] += room[lane]
    for lane in range(tall, room.size):
        room[lane] = room[lane % tall]
    return simd.load_like(a, room, 0)


@helper
def _softmax_of_low_blocks(values, layout, columns, result, q):
    """The same of low blocks, of which some columns fill a register."""
    width, tall, lanes = layout.width, layout.tall, simd.lanes(values)
    size = width * tall
    room, wide = np.empty(lanes, values.dtype), np.empty(lanes, np.float64)
    least = simd.splat(values.dtype.type(-np.inf))
    top, zero = least, simd.nothing(least)
    total = simd.widen(zero)
    for b in range(layout.first[q], layout.first[q + 1]):
        valid = min(width, columns - layout.indices[b] * width) * tall
        for i in range(0, valid, lanes):
            inside = simd.first_lanes(zero, valid - i)
            v = simd.where(inside, simd.load_part(values, b * size + i, inside), least)
            top = simd.where(simd.above(v, top), v, top)
    top = _over_columns(top, room, tall, YES)
    for b in range(layout.first[q], layout.first[q + 1]):
        valid = min(width, columns - layout.indices[b] * width) * tall
        for i in range(0, size, lanes):
            inside = simd.first_lanes(zero, valid - i)
            v = simd.sub(simd.load_part(values, b * size + i, inside), top)
            e = simd.where(inside, simd.exponential(v), zero)
            total = simd.add(total, simd.widen(e))
            simd.store_part(e, simd.first_lanes(zero, size - i), result, b * size + i)
    total = _over_columns(total, wide, tall, NO)
    factor = simd.narrow(simd.widen(simd.splat(values.dtype.type(1.0))) / total, zero)
    for b in range(layout.first[q], layout.first[q + 1]):
        for i in range(0, size, lanes):
            inside = simd.first_lanes(zero, size - i)
            e = simd.load_part(result, b * size + i, inside)
            simd.store_part(e * factor, inside, result, b * size + i)


@helper
def _softmax(values, layout, columns, result, q, top, total):
    """The same of any blocks; for `top` and `total` of each row there is room."""
    width, tall, first = layout.width, layout.tall, layout.first
    top[:] = -np.inf
    total[:] = 0.0
    for b in range(first[q], first[q + 1]):
        for k in range(min(width, columns - layout.indices[b] * width)):
            place = (b * width + k) * tall
            for i in range(tall):
                top[i] = max(top[i], values[place + i])
    for b in range(first[q], first[q + 1]):
        valid = min(width, columns - layout.indices[b] * width)
        for k in range(width):
            place = (b * width + k) * tall
            for i in range(tall):
                result[place + i] = values[place + i] - top[i] if k < valid else -np.inf
        _exponentials(result, b * width * tall, (b + 1) * width * tall)
        for k in range(width):
            place = (b * width + k) * tall
            for i in range(tall):
                total[i] += result[place + i]
    for i in range(tall):  # a float64 division for each entry would take a fifth more time
        total[i] = 1.0 / total[i]
    for b in range(first[q], first[q + 1]):
        for k in range(width):
            place = (b * width + k) * tall
            for i in range(tall):
                result[place + i] *= total[i]


@helper
def _hide_later(values, layout, filler, q):
    """Put `filler` in place of what lies right of the matrix's diagonal, in row q of blocks."""
    height, width, tall = layout.height, layout.width, layout.tall
    for b in range(layout.first[q], layout.first[q + 1]):
        ahead = layout.indices[b] * width - q * height
        for k in range(max(1 - ahead, 0), width):
            place = (b * width + k) * tall
            values[place : place + min(ahead + k, height)] = filler


@kernel
def softmax(values, layout, columns, causal, result, begin, end):
    """Softmax over the kept entries of each row, for rows begin..end−1 of blocks.

    If it is causal, each row over those up to the diagonal of the matrix.
    """
    tall = layout.tall
    if causal:
        blocks = layout.first[begin], layout.first[end]
        for i in range(blocks[0] * layout.width * tall, blocks[1] * layout.width * tall):
            result[i] = values[i]
        values = result
    # In float64: a float32 sum of a long row loses digits, and stops growing at 2²⁴.
    top, total = np.empty(tall, values.dtype), np.empty(tall, np.float64)
    for q in range(begin, end):
        if causal:
            _hide_later(values, layout, values.dtype.type(-np.inf), q)
        if tall % simd.lanes(values) == 0:
            _softmax_side_by_side(values, layout, columns, result, q)
        elif simd.lanes(values) % tall == 0:
            _softmax_of_low_blocks(values, layout, columns, result, q)
        else:
            _softmax(values, layout, columns, result, q, top, total)
        if causal:  # also where a row keeps nothing else, and is NaN
            _hide_later(result, layout, values.dtype.type(0.0), q)


# --- plain loops ----------------------------------------------------------------------------


@kernel
def multiply_plainly(values, layout, bias, x, out, begin, end):
    """What `multiply` does, as one would write it down; for machines without registers to spare."""
    height, width, tall = layout.height, layout.width, layout.tall
    for q in range(begin, end):
        top = q * height
        for i in range(min(height, out.shape[0] - top)):
            out[top + i] = bias[top + i]
            for b in range(layout.first[q], layout.first[q + 1]):
                base = layout.indices[b] * width
                for k in range(min(width, x.shape[0] - base)):
                    w = values[(b * width + k) * tall + i]
                    for j in range(x.shape[1]):
                        out[top + i, j] += w * x[base + k, j]
