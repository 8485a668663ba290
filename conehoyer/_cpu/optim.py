"""The kernels of the sparse optimizer: AdamW and the shrinkage of blocks, in one pass over memory.

All arrays are flat.  Weights, gradients and moments are read and written in runs; what
follows on a run or on a tile, the strip of blocks that a run belongs to, finds it in the cache.
Which thread takes a chunk or a tile changes no bit of it.
"""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import groups, simd

RUN = 2048  # entries taken at a time where nothing else tells: they stay in the cache
LONG = 16 * RUN  # so many of a row of larger blocks: what lies behind a gap is not fetched ahead
CHUNK = 8 * RUN  # entries of a unit of work where no blocks are
STREAM = 2048  # entries checked beside three others: without `simd.STREAMS` one reads 0.7 as fast
WHOLE = simd.REGISTER_BITS // 32  # entries: of so many no register of float32 is in part empty
TOGETHER = 4  # rows whose squares are added at once
TINY, HUGE = 1e-280, 1e300  # sums of squares between these are right
FAR = 1e-120  # a limit from here on is out of reach of a norm below √TINY


# --- gradients ---------------------------------------------------------------------------


@kernel
def find_unbounded(z, bound, found, first, last):
    """Set found[0] if an entry of chunks first..last−1 of z is NaN or at least `bound` in size."""
    limit = z.dtype.type(bound)
    for chunk in range(first, last):
        begin = chunk * CHUNK
        end = min(begin + CHUNK, z.size)
        whole = begin if simd.STREAMS else begin + (end - begin) // (4 * STREAM) * (4 * STREAM)
        bad = False
        for at in range(begin, whole, 4 * STREAM):
            a, b = z[at : at + STREAM], z[at + STREAM : at + 2 * STREAM]
            c, d = z[at + 2 * STREAM : at + 3 * STREAM], z[at + 3 * STREAM : at + 4 * STREAM]
            for i in range(STREAM):
                bad |= not abs(a[i]) < limit
                bad |= not abs(b[i]) < limit
                bad |= not abs(c[i]) < limit
                bad |= not abs(d[i]) < limit
        rest = z[whole:end]
        for i in range(rest.size):
            bad |= not abs(rest[i]) < limit
        if bad:
            found[0] = True
            return


# --- runs ----------------------------------------------------------------------------------


@helper
def _scalars(like, scalars):
    """The numbers that `adamw` takes, in the dtype of the array."""
    real = like.dtype.type
    b1, r1, b2, r2, decay, length, root, eps = scalars
    return real(b1), real(r1), real(b2), real(r2), real(decay), real(length), real(root), real(eps)


@helper
def _step_and_shrink(p, g, first, second, scalars, t, weight):
    """AdamW and the soft threshold on a run: t, or t times the weights if there are any.

    One loop, which can be long.  Two loops need short runs, for the cache, and took 0.15 of a
    pass more.
    """
    zero = p.dtype.type(0)
    b1, r1, b2, r2, decay, length, root, eps = _scalars(p, scalars)
    if weight.size:
        for i in range(p.size):
            a, first[i], second[i] = m.adamw(
                p[i], g[i], first[i], second[i], b1, r1, b2, r2, decay, length, root, eps
            )
            p[i] = m.soft_threshold(a, t * weight[i], zero)
    else:
        for i in range(p.size):
            a, first[i], second[i] = m.adamw(
                p[i], g[i], first[i], second[i], b1, r1, b2, r2, decay, length, root, eps
            )
            p[i] = m.soft_threshold(a, t, zero)


@helper
def _step(p, g, first, second, scalars):
    """AdamW on a run."""
    b1, r1, b2, r2, decay, length, root, eps = _scalars(p, scalars)
    for i in range(p.size):
        p[i], first[i], second[i] = m.adamw(
            p[i], g[i], first[i], second[i], b1, r1, b2, r2, decay, length, root, eps
        )


@helper
def _erase(p, first, second, mask):
    """Set a run to zero where its mask is False, with the moments."""
    zero = p.dtype.type(0)
    for i in range(p.size):
        keep = mask[i]
        p[i] = p[i] if keep else zero
        first[i] = first[i] if keep else zero
        second[i] = second[i] if keep else zero


@helper
def _add_squares(p, at, columns, rows, length, sums, fresh):
    """Add the squares of runs one above the other to the sums of their columns.

    Several at a time: the sums take more of the cache than a run.  If `fresh` they begin here.
    """
    done = rows // TOGETHER * TOGETHER
    for i in range(0, done, TOGETHER):
        start = at + i * columns
        one, two = p[start : start + length], p[start + columns : start + columns + length]
        start += 2 * columns
        three, four = p[start : start + length], p[start + columns : start + columns + length]
        for j in range(length):
            a, b = np.float64(one[j]), np.float64(two[j])
            c, d = np.float64(three[j]), np.float64(four[j])
            before = 0.0 if fresh else sums[j]
            sums[j] = before + a * a + b * b + c * c + d * d
        fresh = False
    for i in range(done, rows):
        start = at + i * columns
        run = p[start : start + length]
        for j in range(length):
            a = np.float64(run[j])
            sums[j] = (0.0 if fresh else sums[j]) + a * a
        fresh = False


@helper
def _sum_blocks(p, at, wide, width, sums):
    """The sums of squares of a row's blocks, `width` entries each, the last perhaps fewer."""
    zero = simd.splat_wide(0.0)
    for b in range((wide + width - 1) // width):
        begin, end = at + b * width, at + min(b * width + width, wide)
        whole, squares = begin + (end - begin) // simd.WIDE * simd.WIDE, zero
        for i in range(begin, whole, simd.WIDE):
            a = simd.load_wide(p, i)
            squares = simd.multiply_add(a, a, squares)
        if whole < end:
            a = simd.widen(simd.load_part(p, whole, simd.first_lanes(zero, end - whole)))
            squares = simd.multiply_add(a, a, squares)
        sums[b] = simd.total(squares)


@helper
def _multiply_blocks(p, at, wide, width, factors):
    """Multiply a row's blocks by their factors; a zero gives +0, and NaN stays."""
    lanes = simd.lanes(p)
    for b in range(factors.size):
        begin, end = at + b * width, at + min(b * width + width, wide)
        factor = simd.splat(p.dtype.type(factors[b]))
        zero = simd.sub(factor, factor)  # or NaN, as the factor is
        kept = simd.above(factor, zero)
        whole = begin + (end - begin) // lanes * lanes
        for i in range(begin, whole, lanes):
            product = simd.multiply(simd.load(p, i), factor)
            simd.store(simd.where(kept, product, zero), p, i)
        if whole < end:
            valid = simd.first_lanes(zero, end - whole)
            product = simd.multiply(simd.load_part(p, whole, valid), factor)
            simd.store_part(simd.where(kept, product, zero), valid, p, whole)


@helper
def _multiply(p, factors):
    """Multiply a run by its columns' factors; a zero gives +0."""
    zero = p.dtype.type(0)
    for i in range(p.size):
        p[i] = p[i] * factors[i] if factors[i] != zero else zero


# --- single entries ----------------------------------------------------------------------


@kernel
def step_entries(p, g, first, second, scalars, threshold, gamma, mask, begin, end):
    """AdamW, soft threshold and mask on chunks begin..end−1; `gamma` and `mask` may be empty."""
    t = p.dtype.type(threshold)
    length = RUN if mask.size else CHUNK
    for at in range(begin * CHUNK, min(end * CHUNK, p.size), length):
        stop = min(at + length, p.size)
        run, moment, square = p[at:stop], first[at:stop], second[at:stop]
        _step_and_shrink(run, g[at:stop], moment, square, scalars, t, gamma[at:stop])
        if mask.size:
            _erase(run, moment, square, mask[at:stop])


@kernel
def weigh_entries(p, eps, gamma, begin, end):
    """The weights γ of single entries, chunks begin..end−1."""
    run = p[begin * CHUNK : min(end * CHUNK, p.size)]
    weight = gamma[begin * CHUNK : min(end * CHUNK, p.size)]
    for i in range(run.size):
        weight[i] = m.block_weight(np.float64(abs(run[i])), eps)


# --- blocks --------------------------------------------------------------------------------


@helper
def _run(columns, height, width):
    """Entries of a row that are taken at a time."""
    return min(columns, LONG) if height > 1 or width % WHOLE == 0 else RUN


@helper
def _tile_width(columns, height, width):
    """Columns of a tile: as many blocks as fit into a run, or one; all where they are few."""
    if columns < WHOLE:
        return columns
    run = _run(columns, height, width)
    return min(width if width > run else run // width * width, columns)


@kernel
def tiles_of(rows, columns, height, width):
    """Number of tiles of a matrix."""
    wide = _tile_width(columns, height, width)
    return (rows + height - 1) // height * ((columns + wide - 1) // wide)


@helper
def _place(tile, shape):
    """A tile's first entry, its rows and columns, its first block and number of blocks."""
    rows, columns, height, width = shape
    wide = _tile_width(columns, height, width)
    strips, across = (columns + wide - 1) // wide, (columns + width - 1) // width
    down = (rows + height - 1) // height
    line, j = tile // strips, tile % strips * wide  # the row of blocks, and the column
    matrix, i = line // down, line % down * height
    wide = min(wide, columns - j)
    at = (matrix * rows + i) * columns + j
    block = line * across + j // width
    return at, min(height, rows - i), wide, block, (wide + width - 1) // width


@helper
def _by_block(columns, height, width):
    """Whether the squares of each block are added at once: it is a row of whole registers."""
    return height == 1 and width % WHOLE == 0 and width <= _run(columns, height, width)


@helper
def _limits(limits, threshold, gamma, block):
    """The thresholds of the norms of a tile's blocks."""
    if gamma.size:
        weight = gamma[block : block + limits.size]
        for b in range(limits.size):
            limits[b] = threshold * np.float64(weight[b])
    else:
        limits[:] = threshold


@helper
def _to_norms(norms, sums, across, limits, p, at, tall, wide, shape):
    """The norms of a tile's blocks, from `across` sums of squares each, which are spent.

    Where squares over- or underflow, the block is read again; not if its norm is so far below
    its limit that zero will do.
    """
    _, columns, _, width = shape
    groups.sum_neighbours(sums, across, norms)
    lost = False
    for b in range(norms.size):
        s = norms[b]
        lost |= (s > HUGE) | ((s < TINY) & (limits[b] < FAR))
        norms[b] = math.sqrt(s)
    if lost:
        for b in range(norms.size):
            if norms[b] > math.sqrt(HUGE) or (norms[b] < math.sqrt(TINY) and limits[b] < FAR):
                first = b * width
                norms[b] = _norm(p, at + first, tall, columns, min(width, wide - first))


@helper
def _norm(p, at, rows, columns, width):
    """The norm of a block in the unit of its largest entry."""
    top = 0.0
    for i in range(rows):
        for j in range(width):
            a = np.float64(abs(p[at + i * columns + j]))
            top = a if a > top else top
    if top == 0.0 or top == math.inf:
        return top
    total = 0.0
    for i in range(rows):
        for j in range(width):
            a = np.float64(p[at + i * columns + j]) / top
            total += a * a
    return top * math.sqrt(total)


@kernel
def step_blocks(p, g, first, second, scalars, threshold, gamma, mask, shape, begin, end):
    """AdamW, mask and shrinkage of the blocks of tiles begin..end−1.

    `shape` has the rows and columns of the matrices that p holds one behind the other, and the
    height and width of a block.  `gamma` and `mask` may be empty.
    """
    columns, width = shape[1], shape[3]
    length, by_block = _run(columns, shape[2], width), _by_block(columns, shape[2], width)
    across = 1 if by_block else min(width, length)
    norms, limits = np.empty(length), np.empty(length)
    sums = np.empty(length + 2 * simd.lanes(norms))
    line = np.empty(length + simd.lanes(p), p.dtype)
    for tile in range(begin, end):
        at, tall, wide, block, count = _place(tile, shape)
        sums[min(wide, length) : count * across] = 0.0  # beyond the edge of the matrix
        for top in range(0, tall, TOGETHER):
            some = min(TOGETHER, tall - top)
            for j in range(0, wide, length):
                corner, part = at + top * columns + j, min(length, wide - j)
                for start in range(corner, corner + some * columns, columns):
                    stop = start + part
                    run, moment, square = p[start:stop], first[start:stop], second[start:stop]
                    _step(run, g[start:stop], moment, square, scalars)
                    if mask.size:
                        _erase(run, moment, square, mask[start:stop])
                if by_block:
                    _sum_blocks(p, corner, part, width, sums)
                else:
                    _add_squares(p, corner, columns, some, part, sums, top == 0 and j == 0)
        norm, limit = norms[:count], limits[:count]
        _limits(limit, threshold, gamma, block)
        _to_norms(norm, sums, across, limit, p, at, tall, wide, shape)
        for b in range(count):
            norm[b] = m.shrinkage(norm[b], limit[b])
        if by_block:
            _multiply_blocks(p, at, wide, width, norm)
            continue
        used = min(wide, length)
        groups.spread(norm, 0, min(width, used), used, line)
        for i in range(tall):
            for j in range(0, wide, length):
                start = at + i * columns + j
                _multiply(p[start : start + min(length, wide - j)], line)


@kernel
def weigh_blocks(p, eps, gamma, shape, begin, end):
    """The weights γ of the blocks of tiles begin..end−1."""
    columns, width = shape[1], shape[3]
    length, by_block = _run(columns, shape[2], width), _by_block(columns, shape[2], width)
    across = 1 if by_block else min(width, length)
    norms, limits = np.empty(length), np.empty(length)
    sums = np.empty(length + 2 * simd.lanes(norms))
    for tile in range(begin, end):
        at, tall, wide, block, count = _place(tile, shape)
        sums[min(wide, length) : count * across] = 0.0
        for top in range(0, tall, TOGETHER):
            some = min(TOGETHER, tall - top)
            for j in range(0, wide, length):
                corner = at + top * columns + j
                part = min(length, wide - j)
                if by_block:
                    _sum_blocks(p, corner, part, width, sums)
                else:
                    _add_squares(p, corner, columns, some, part, sums, top == 0 and j == 0)
        norm, limit = norms[:count], limits[:count]
        limit[:] = eps
        _to_norms(norm, sums, across, limit, p, at, tall, wide, shape)
        weight = gamma[block : block + count]
        for b in range(count):
            weight[b] = m.block_weight(norm[b], eps)


# --- blocks of matrices with few columns ---------------------------------------------------


@helper
def _narrow_norm(p, at, rows, columns, width, limit):
    """The norm of a block of few columns."""
    s = 0.0
    for j in range(width):
        for i in range(rows):
            a = np.float64(p[at + i * columns + j])
            s += a * a
    if s > HUGE or (s < TINY and limit < FAR):
        return _norm(p, at, rows, columns, width)
    return math.sqrt(s)


@kernel
def step_narrow(p, g, first, second, scalars, threshold, gamma, mask, shape, begin, end):
    """What `step_blocks` does, for rows too short for loops of their own: a tile has whole ones."""
    zero = p.dtype.type(0)
    columns, height, width = shape[1:]
    several = max(RUN // (height * columns), 1)
    for some in range(begin, end, several):
        beyond = min(some + several, end)
        at, tall, _, _, _ = _place(beyond - 1, shape)
        last = at + tall * columns
        for start in range(_place(some, shape)[0], last, RUN):
            stop = min(start + RUN, last)
            run, moment, square = p[start:stop], first[start:stop], second[start:stop]
            _step(run, g[start:stop], moment, square, scalars)
            if mask.size:
                _erase(run, moment, square, mask[start:stop])
        for tile in range(some, beyond):
            at, tall, wide, block, count = _place(tile, shape)
            for b in range(count):
                limit = threshold * np.float64(gamma[block + b]) if gamma.size else threshold
                corner, part = at + b * width, min(width, wide - b * width)
                norm = _narrow_norm(p, corner, tall, columns, part, limit)
                factor = p.dtype.type(m.shrinkage(norm, limit))
                for j in range(part):
                    for i in range(tall):
                        k = corner + i * columns + j
                        p[k] = p[k] * factor if factor != zero else zero


@kernel
def weigh_narrow(p, eps, gamma, shape, begin, end):
    """What `weigh_blocks` does, for such rows."""
    columns, width = shape[1], shape[3]
    for tile in range(begin, end):
        at, tall, wide, block, count = _place(tile, shape)
        for b in range(count):
            part = min(width, wide - b * width)
            norm = _narrow_norm(p, at + b * width, tall, columns, part, eps)
            gamma[block + b] = m.block_weight(norm, eps)
