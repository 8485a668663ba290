"""The kernels of the nonnegative matrix factorisation.

A factor is stored with one component a row, as on the CPU, so that neighbouring threads
read neighbouring columns.  All sums are taken in a fixed order.
"""

import math

from numba import float64

from .. import _math as m
from .._cpu.hals import BLOCK
from . import block
from .device import SIMULATED, cuda, function, kernel

AHEAD = 8  # components whose slopes a thread keeps in registers
SIDE = 2 if SIMULATED else 16  # threads of a tile of a matrix product, down and across
DEPTH = 8 if SIMULATED else 16  # of a tile: products added in the data's precision
DOWN, ACROSS = 2, 4  # entries of a tile that a thread computes
HEIGHT, WIDTH = DOWN * SIDE, ACROSS * SIDE  # of a tile
LEFT, RIGHT = (DEPTH, HEIGHT + 1), (DEPTH, WIDTH + 1)  # of shared memory: no bank conflicts
SWEEPERS = 4 if SIMULATED else BLOCK  # threads of a block of columns
ADDERS = 4 if SIMULATED else 256  # threads of the kernels that only take sums
SWEEP_ROOM, TILE_ROOM, TILE_ENTRIES = 3 * SWEEPERS, 3 * SIDE * SIDE, DOWN * ACROSS


# --- sweeps --------------------------------------------------------------------------------


@function
def sweep_column(gram, rank, product, factor, c):
    """Take column c through one sweep; returns twice the decrease and the step's length².

    The slopes of the next `AHEAD` components are formed together: an entry of the column
    is read once for all of them.  Those behind a component that moves follow its move.
    """
    slope = cuda.local.array(AHEAD, factor.dtype)
    real = factor.dtype.type
    zero, one, two = real(0), real(1), real(2)
    gain, step = 0.0, 0.0
    last = rank - 1
    for first in range(0, rank, AHEAD):
        for i in range(AHEAD):
            slope[i] = product[min(first + i, last), c]
        for j in range(rank):
            entry = factor[j, c]
            for i in range(AHEAD):
                slope[i] -= gram[j * rank + min(first + i, last)] * entry
        for i in range(AHEAD):
            k = first + i
            if k < rank:
                diagonal = gram[k * rank + k]
                if diagonal > zero:  # else a component without a partner: nothing to gain
                    old = factor[k, c]
                    new, better, weighted = m.coordinate_step(
                        old, slope[i], one / diagonal, diagonal, zero, two
                    )
                    factor[k, c] = new
                    move = new - old
                    gain += float64(better)
                    step += float64(weighted)
                    for j in range(AHEAD):
                        if j > i:
                            slope[j] -= gram[k * rank + min(first + j, last)] * move
    return gain, step


@function
def sweep_columns(gram, rank, product, factor, most, epsilon, room, b, gains, steps):
    """Take a block of columns through up to `most` sweeps, as `_cpu.hals.sweep_blocks` does."""
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    begin = b * BLOCK
    end = min(begin + BLOCK, factor.shape[1])
    total, longest = 0.0, 0.0
    for sweep in range(most):
        gain, step = 0.0, 0.0
        for c in range(begin + t, end, width):
            more, further = sweep_column(gram, rank, product, factor, c)
            gain += more
            step += further
        gain, step, _ = block.sum_three(room, gain, step, 0.0)
        total += gain
        if sweep == 0:
            longest = step
        if not step > epsilon * epsilon * longest:
            break
    if t == 0:
        gains[b], steps[b] = total, longest


@kernel
def sweep_blocks(gram, shared, product, factor, most, epsilon, gains, steps):
    """Sweep over all columns of `factor`, a block for `BLOCK` of them.

    With `shared`, the Gram matrix is copied into shared memory first.
    """
    room = cuda.shared.array(SWEEP_ROOM, float64)
    near = cuda.shared.array(0, gram.dtype)
    rank = factor.shape[0]
    if shared:
        for i in range(cuda.threadIdx.x, rank * rank, cuda.blockDim.x):
            near[i] = gram[i]
        cuda.syncthreads()
    for b in range(cuda.blockIdx.x, gains.size, cuda.gridDim.x):
        if shared:
            sweep_columns(near, rank, product, factor, most, epsilon, room, b, gains, steps)
        else:
            sweep_columns(gram, rank, product, factor, most, epsilon, room, b, gains, steps)


@function
def slope_at(gram, product, factor, k, c):
    """P − G·F at one entry."""
    slope = product[k, c]
    for j in range(factor.shape[0]):
        slope -= gram[k, j] * factor[j, c]
    return slope


@kernel
def row_goal(k, gram, product, factor, slope, goal):
    """The slope of row k, and its minimiser without constraints."""
    diagonal = gram[k, k]
    c = cuda.grid(1)
    while c < factor.shape[1]:
        here = slope_at(gram, product, factor, k, c)
        slope[c] = here
        goal[c] = factor[k, c]
        if diagonal > factor.dtype.type(0):
            goal[c] += here / diagonal
        c += cuda.gridsize(1)


@kernel
def row_move(k, gram, slope, goal, factor, parts):
    """Move row k to its goal; parts of ⟨move, slope⟩ and of ‖move‖², one a block."""
    room = cuda.shared.array(0, float64)
    gain, step = 0.0, 0.0
    if gram[k, k] > factor.dtype.type(0):
        for c in range(cuda.grid(1), factor.shape[1], cuda.gridsize(1)):
            move = float64(goal[c] - factor[k, c])
            gain += move * float64(slope[c])
            step += move * move
            factor[k, c] = goal[c]
    gain, step, _ = block.sum_three(room, gain, step, 0.0)
    if cuda.threadIdx.x == 0:
        parts[k, cuda.blockIdx.x, 0], parts[k, cuda.blockIdx.x, 1] = gain, step


@kernel
def end_sweep(gram, parts, first, state):
    """Add up the moves of the rows: total decrease, first step's length², this one's.

    One block.
    """
    room = cuda.shared.array(0, float64)
    rank, blocks, _ = parts.shape
    gain, step = 0.0, 0.0
    for i in range(cuda.threadIdx.x, rank * blocks, cuda.blockDim.x):
        k, j = i // blocks, i % blocks
        further = float64(gram[k, k]) * parts[k, j, 1]
        gain += 2.0 * parts[k, j, 0] - further
        step += further
    gain, step, _ = block.sum_three(room, gain, step, 0.0)
    if cuda.threadIdx.x == 0:
        state[0] = gain if first else state[0] + gain
        if first:
            state[1] = step
        state[2] = step


@kernel
def goals(gram, product, factor, clip, goal):
    """Where each row alone would go: its minimiser, over [0, ∞) with `clip`."""
    rank, count = factor.shape
    zero = factor.dtype.type(0)
    i = cuda.grid(1)
    while i < rank * count:
        k, c = i // count, i % count
        value = factor[k, c]
        if gram[k, k] > zero:
            value += slope_at(gram, product, factor, k, c) / gram[k, k]
        if clip and not value > zero:
            value = zero
        goal[k, c] = value
        i += cuda.gridsize(1)


@kernel
def goal_distance(gram, factor, goal, parts):
    """Parts of Σ‖goal − row‖² weighted by the diagonal, one a block."""
    room = cuda.shared.array(0, float64)
    rank, count = factor.shape
    total = 0.0
    for i in range(cuda.grid(1), rank * count, cuda.gridsize(1)):
        k, c = i // count, i % count
        if gram[k, k] > factor.dtype.type(0):
            move = float64(goal[k, c] - factor[k, c])
            total += float64(gram[k, k]) * (move * move)
    total, _, _ = block.sum_three(room, total, 0.0, 0.0)
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = total


@kernel
def summary(gains_w, steps_w, both, gains_h, steps_h, gram_w, gram_h, far, totals):
    """Decrease, first steps' length², number of components that are lost or lopsided.

    Lopsided: the squared lengths of its sides have a ratio of `far`.  One block.  Without `both`,
    of W alone.
    """
    room = cuda.shared.array(0, float64)
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    gain, step, dead = 0.0, 0.0, 0.0
    for b in range(t, gains_w.size, width):
        gain += gains_w[b]
        step += steps_w[b]
    for b in range(t, gains_h.size if both else 0, width):
        gain += gains_h[b]
        step += steps_h[b]
    for k in range(t, gram_w.shape[0], width):
        w, h = float64(gram_w[k, k]), float64(gram_h[k, k])
        if w == 0.0 or h == 0.0 or h / w > far or w / h > far:
            dead += 1.0
    gain, step, dead = block.sum_three(room, gain, step, dead)
    if t == 0:
        totals[0], totals[1], totals[2] = gain, step, dead


# --- components ----------------------------------------------------------------------------


@kernel
def drop_short(gram, least):
    """Set squared lengths of at most `least` to zero, which says: not to be divided by."""
    k = cuda.grid(1)
    while k < gram.shape[0]:
        if not float64(gram[k, k]) > least:
            gram[k, k] = gram.dtype.type(0)
        k += cuda.gridsize(1)


@kernel
def row_tops(factor, tops):
    """The largest entry of each row, none of them negative, a block for each."""
    room = cuda.shared.array(0, float64)
    for k in range(cuda.blockIdx.x, factor.shape[0], cuda.gridDim.x):
        top = 0.0
        for c in range(cuda.threadIdx.x, factor.shape[1], cuda.blockDim.x):
            top = max(top, float64(factor[k, c]))
        top = block.largest(room, top)
        if cuda.threadIdx.x == 0:
            tops[k] = top


@kernel
def clear_rows(factor, keep):
    """Set the rows to zero that are not to be kept."""
    i = cuda.grid(1)
    count = factor.shape[1]
    while i < factor.shape[0] * count:
        if keep[i // count] == 0.0:
            factor[i // count, i % count] = factor.dtype.type(0)
        i += cuda.gridsize(1)


@kernel
def set_row(factor, k, row, divisor):
    """Row k from float64 numbers."""
    c = cuda.grid(1)
    while c < factor.shape[1]:
        factor[k, c] = factor.dtype.type(row[c] / divisor)
        c += cuda.gridsize(1)


@kernel
def gaps(x, flipped, rows, w, h, seeds):
    """The positive part of some rows of X − WH, in float64."""
    count = seeds.shape[1]
    i = cuda.grid(1)
    while i < seeds.size:
        s, c = i // count, i % count
        r = rows[s]
        gap = float64(x[c, r]) if flipped else float64(x[r, c])
        for k in range(w.shape[0]):
            gap -= float64(w[k, r]) * float64(h[k, c])
        seeds[s, c] = gap if gap > 0.0 else 0.0
        i += cuda.gridsize(1)


@kernel
def row_squares(rows, squares):
    """The squared length of each row, a block for each."""
    room = cuda.shared.array(0, float64)
    for s in range(cuda.blockIdx.x, rows.shape[0], cuda.gridDim.x):
        total = 0.0
        for c in range(cuda.threadIdx.x, rows.shape[1], cuda.blockDim.x):
            total += rows[s, c] * rows[s, c]
        total, _, _ = block.sum_three(room, total, 0.0, 0.0)
        if cuda.threadIdx.x == 0:
            squares[s] = total


# --- matrices ------------------------------------------------------------------------------


@kernel
def describe(x, parts):
    """Of each block's share of a vector: not finite, least, largest (NaN aside), and the sum."""
    room = cuda.shared.array(0, float64)
    bad, total, low, high = 0.0, 0.0, math.inf, -math.inf
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        value = float64(x[i])
        total += value
        if not math.isfinite(value):
            bad += 1.0
        if value < low:
            low = value
        if value > high:
            high = value
    bad, total, _ = block.sum_three(room, bad, total, 0.0)
    low = -block.largest(room, -low)
    high = block.largest(room, high)
    if cuda.threadIdx.x == 0:
        j = cuda.blockIdx.x
        parts[j, 0], parts[j, 1], parts[j, 2], parts[j, 3] = bad, low, high, total


@kernel
def inner_product(a, b, parts):
    """Parts of the inner product of two vectors, in float64, one a block."""
    room = cuda.shared.array(0, float64)
    total = 0.0
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        total += float64(a[i]) * float64(b[i])
    total, _, _ = block.sum_three(room, total, 0.0, 0.0)
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = total


@kernel
def scaled(x, f, g, out):
    """x·f·g, entry by entry; f·g is a power of two that may be out of range."""
    i = cuda.grid(1)
    first, second = x.dtype.type(f), x.dtype.type(g)
    while i < x.size:
        out[i] = x[i] * first * second
        i += cuda.gridsize(1)


@kernel
def scaled_rows(x, flipped, exponents, out):
    """The rows of x, or of its transpose, each times its power of two: the writes are in order."""
    i = cuda.grid(1)
    count = out.shape[1]
    while i < x.size:
        k, c = i // count, i % count
        value = float64(x[c, k] if flipped else x[k, c])
        out[k, c] = x.dtype.type(math.ldexp(value, int(exponents[k])))
        i += cuda.gridsize(1)


@function
def take(a, flipped, first, k, last, end, tall, tile):
    """Copy rows first..last−1 of a (of its transpose) into a tile, at k..end−1; else zeros."""
    t = cuda.threadIdx.x
    real = tile.dtype.type
    for e in range(t, tall * DEPTH, SIDE * SIDE):
        # Neighbouring threads read neighbouring entries.
        i, j = (e % tall, e // tall) if flipped else (e // DEPTH, e % DEPTH)
        value = real(0)
        if first + i < last and k + j < end:
            value = real(a[k + j, first + i]) if flipped else real(a[first + i, k + j])
        tile[j, i] = value


@function
def tile_product(
    a, a_flipped, b, b_flipped, row, rows, column, columns, k, end, left, right, total
):
    """The tile at (row, column) of A·B, over k..end−1 of the inner index.

    A thread finds its entries in `total`, at a distance of SIDE in both directions.  At most
    DEPTH products are added in the tiles' precision.
    """
    t = cuda.threadIdx.x
    y, x = t // SIDE, t % SIDE
    some = cuda.local.array(TILE_ENTRIES, left.dtype)
    for e in range(TILE_ENTRIES):
        total[e] = 0.0
    while k < end:
        cuda.syncthreads()
        take(a, a_flipped, row, k, rows, end, HEIGHT, left)
        take(b, not b_flipped, column, k, columns, end, WIDTH, right)
        cuda.syncthreads()
        for e in range(TILE_ENTRIES):
            some[e] = left.dtype.type(0)
        for j in range(DEPTH):
            for p in range(DOWN):
                for q in range(ACROSS):
                    some[p * ACROSS + q] += left[j, y + p * SIDE] * right[j, x + q * SIDE]
        for e in range(TILE_ENTRIES):
            total[e] += float64(some[e])
        k += DEPTH


@kernel
def multiply(a, a_flipped, b, b_flipped, length, segment, parts):
    """A·B, or the transposes', over each segment of the inner index: a block for a tile."""
    left = cuda.shared.array(LEFT, a.dtype)
    right = cuda.shared.array(RIGHT, a.dtype)
    total = cuda.local.array(TILE_ENTRIES, float64)
    t = cuda.threadIdx.x
    segments, rows, columns = parts.shape
    across = (columns + WIDTH - 1) // WIDTH
    down = (rows + HEIGHT - 1) // HEIGHT
    for tile in range(cuda.blockIdx.x, segments * down * across, cuda.gridDim.x):
        s, place = tile // (down * across), tile % (down * across)
        row, column = place // across * HEIGHT, place % across * WIDTH
        tile_product(
            a, a_flipped, b, b_flipped, row, rows, column, columns,
            s * segment, min((s + 1) * segment, length), left, right, total,
        )  # fmt: skip
        for p in range(DOWN):
            for q in range(ACROSS):
                i, j = row + t // SIDE + p * SIDE, column + t % SIDE + q * SIDE
                if i < rows and j < columns:
                    parts[s, i, j] = parts.dtype.type(total[p * ACROSS + q])


@kernel
def add_segments(parts, out):
    """The sum of the segments' products."""
    segments, rows, columns = parts.shape
    i = cuda.grid(1)
    while i < rows * columns:
        total = 0.0
        for s in range(segments):
            total += parts[s, i // columns, i % columns]
        out[i // columns, i % columns] = out.dtype.type(total)
        i += cuda.gridsize(1)


@kernel
def residual(x, flipped, w, h, parts):
    """Parts of ‖X − WᵀH‖², one a block, in float64."""
    room = cuda.shared.array(TILE_ROOM, float64)
    left = cuda.shared.array(LEFT, float64)
    right = cuda.shared.array(RIGHT, float64)
    total = cuda.local.array(TILE_ENTRIES, float64)
    t = cuda.threadIdx.x
    rank, rows = w.shape
    columns = h.shape[1]
    across = (columns + WIDTH - 1) // WIDTH
    down = (rows + HEIGHT - 1) // HEIGHT
    squares = 0.0
    for tile in range(cuda.blockIdx.x, down * across, cuda.gridDim.x):
        row, column = tile // across * HEIGHT, tile % across * WIDTH
        tile_product(
            w, True, h, False, row, rows, column, columns, 0, rank, left, right, total
        )  # fmt: skip
        for p in range(DOWN):
            for q in range(ACROSS):
                i, j = row + t // SIDE + p * SIDE, column + t % SIDE + q * SIDE
                if i < rows and j < columns:
                    value = float64(x[j, i]) if flipped else float64(x[i, j])
                    gap = value - total[p * ACROSS + q]
                    squares += gap * gap
    squares, _, _ = block.sum_three(room, squares, 0.0, 0.0)
    if t == 0:
        parts[cuda.blockIdx.x] = squares
