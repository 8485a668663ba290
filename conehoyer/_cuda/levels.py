"""The level that leaves so many nonzeros, on the GPU.

The magnitudes of floats are in the order of their bits, read as an integer.  So the k-th
largest is found digit by digit: count the digits of those that agree with what is known so
far, and see in which one the k-th lies.
"""

import math

from numba import float64, int32, int64

from .. import _math as m
from . import arrays, engine, projections, scores
from .arrays import Parameter, pick
from .device import cuda, function, kernel, launch, launch_each, threads_for

_BITS = 8  # of a digit
_DIGITS = 1 << _BITS
_ROOM = 2 * _DIGITS
_PENDING = engine.FLAGS  # after the engine's flags: how many rows need another trial
_DONE = -1.0  # a margin


@function
def _count_digits(bits, mask, known, shift, part, split, counts):
    """How often each digit occurs in this block's part of a row, behind the digits known."""
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    cuda.syncthreads()
    for d in range(t, _DIGITS, width):
        counts[d] = 0
    cuda.syncthreads()
    i = part * width + t
    while i < bits.size:
        digits = (int64(bits[i]) & mask) >> shift
        if digits >> _BITS == known:
            cuda.atomic.add(counts, digits & (_DIGITS - 1), 1)
        i += split * width
    cuda.syncthreads()


@function
def _choose_digit(room, rank, found):
    """The digit of the entry of this rank, 0 the largest, and its rank among those with it.

    The counts lie in the first half of `room`.
    """
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    begin, step = 0, 1
    while step < _DIGITS:  # into counts of this digit or a larger one
        other = _DIGITS - begin
        for d in range(t, _DIGITS, width):
            more = room[begin + d + step] if d + step < _DIGITS else 0
            room[other + d] = room[begin + d] + more
        begin = other
        step *= 2
        cuda.syncthreads()
    for d in range(t, _DIGITS, width):
        above = room[begin + d + 1] if d + 1 < _DIGITS else 0
        if above <= rank < room[begin + d]:
            found[0], found[1] = d, rank - above
    cuda.syncthreads()
    return found[0], found[1]


@kernel
def find_edges(k_one, k_each, bits, mask, highest, edges):
    """The bits of the magnitude after the k largest of each row, 0 if there is none."""
    counts = cuda.shared.array(_DIGITS, int32)
    room = cuda.shared.array(_ROOM, int64)
    found = cuda.shared.array(2, int64)
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    for r in range(cuda.blockIdx.x, bits.shape[0], cuda.gridDim.x):
        k = pick(k_one, k_each, r)
        known, rank = int64(0), int64(k) if k < bits.shape[1] else int64(-1)
        shift = highest if rank >= 0 else int64(-1)
        while shift >= 0:
            _count_digits(bits[r], mask, known, shift, 0, 1, counts)
            for d in range(t, _DIGITS, width):
                room[d] = counts[d]
            cuda.syncthreads()
            digit, rank = _choose_digit(room, rank, found)
            known = (known << _BITS) | digit
            shift -= _BITS
        if t == 0:
            edges[r] = edges.dtype.type(known)


@kernel
def count_parts(bits, mask, shift, split, edges, histogram):
    """Add up the digits of each part of each row, a block for a part."""
    counts = cuda.shared.array(_DIGITS, int32)
    for j in range(cuda.blockIdx.x, bits.shape[0] * split, cuda.gridDim.x):
        r = j // split
        _count_digits(bits[r], mask, int64(edges[r]), shift, j % split, split, counts)
        for d in range(cuda.threadIdx.x, _DIGITS, cuda.blockDim.x):
            if counts[d] > 0:
                cuda.atomic.add(histogram, (r, d), int64(counts[d]))


@kernel
def choose_digits(k_one, k_each, first, n, ranks, edges, histogram):
    """The next digit of each row's edge, a block for a row; the counts become zero."""
    room = cuda.shared.array(_ROOM, int64)
    found = cuda.shared.array(2, int64)
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    for r in range(cuda.blockIdx.x, edges.size, cuda.gridDim.x):
        k = pick(k_one, k_each, r)
        if k >= n:
            continue
        cuda.syncthreads()
        for d in range(t, _DIGITS, width):
            room[d] = histogram[r, d]
            histogram[r, d] = 0
        cuda.syncthreads()
        digit, rank = _choose_digit(room, int64(k) if first else ranks[r], found)
        if t == 0:
            ranks[r] = rank
            edges[r] = edges.dtype.type((int64(edges[r]) << _BITS) | digit)


@kernel
def keep_positive(z, out):
    """Copy the positive entries, and zeros for the others."""
    i = cuda.grid(1)
    while i < z.size:
        out[i] = max(z[i], z.dtype.type(0.0))
        i += cuda.gridsize(1)


@kernel
def first_levels(k_one, k_each, n, edges, levels, trials, margins):
    """From the scores of what exceeds the edges, in `levels`, to the levels to begin with."""
    r = cuda.grid(1)
    while r < levels.size:
        k = pick(k_one, k_each, r)
        margin = 0.0
        if not edges[r] > 0:  # no more nonzeros than wanted
            levels[r] = float64(max(n, 1))
            margin = _DONE
        elif levels[r] > 0.0:
            levels[r] = max(min(levels[r], k), 1.0)
        else:  # more than k entries tie at the top
            levels[r] = k
        trials[r] = levels[r]
        margins[r] = margin
        r += cuda.gridsize(1)


@kernel
def lower_levels(k_one, k_each, n, info, levels, trials, margins, flags):
    """Lower the levels that left too many nonzeros; those found become the levels."""
    r = cuda.grid(1)
    while r < levels.size:
        if margins[r] != _DONE:
            k = pick(k_one, k_each, r)
            if trials[r] == 1.0 or info[r, engine.NONZEROS] <= k:
                levels[r] = trials[r]
                trials[r] = float64(n)  # from now on the projection has nothing to do
                margins[r] = _DONE
            else:
                margins[r] = m.wider(margins[r], 8)
                trials[r] = m.lowered(levels[r], margins[r])
                cuda.atomic.add(flags, _PENDING, 1)
        r += cuda.gridsize(1)


def _find_edges(home, z, k, edges):
    """Launch the search for the magnitude after the k largest of each row; `edges` are bits."""
    count, n = z.shape
    mask = (1 << (8 * z.dtype.itemsize - 1)) - 1
    highest = 8 * z.dtype.itemsize - _BITS
    bits = z.view(edges.dtype)
    threads = threads_for(n, 8)
    split = scores.parts_of(count, n)
    if split == 1:
        launch(find_edges, home, min(count, 1 << 20), threads, *k, bits, mask, highest, edges)
        return
    ranks = home.scratch((count,), "int64")
    histogram = home.scratch((count, _DIGITS), "int64")
    for array in (ranks, edges, histogram):
        arrays.fill(home, array, 0)
    for shift in range(highest, -1, -_BITS):
        launch(
            count_parts, home, count * split, threads, bits, mask, shift, split, edges, histogram
        )
        launch(
            choose_digits, home, count, min(_DIGITS, threads), *k, shift == highest, n, ranks,
            edges, histogram,
        )  # fmt: skip


def run_rows(home, z, counts, tol, levels, nonneg=False):
    """Find the level at which the projection of each row keeps at most so many nonzeros.

    `counts` is a Parameter, `levels` a float64 vector of the device.  Waits for the GPU, and
    raises where an entry of z is not finite.
    """
    count, n = z.shape
    if count == 0:
        return
    k = counts.arguments(levels)
    size = z.dtype.itemsize
    held = home.empty((count,), z.dtype.name)
    edges = home.view(held)
    counted = z
    if nonneg:
        counted = home.scratch(z.shape, z.dtype.name)
        launch_each(keep_positive, home, z.size, z.reshape(z.size), counted.reshape(z.size))
    _find_edges(home, counted, k, home.view(held, None, None, "<i4" if size == 4 else "<i8"))
    scores.run_rows(home, scores.EXCESS, counted, edges, levels)
    trials = home.scratch((count,), "float64")
    margins = home.scratch((count,), "float64")
    launch_each(first_levels, home, count, *k, n, edges, levels, trials, margins)
    if n == 0:
        return
    # Rounding, or the slack of "already feasible", may let the entry at the edge in: ask
    # the projection itself.
    scratch = home.scratch(z.shape, z.dtype.name)
    info = home.scratch((count, engine.COLUMNS), "float64")
    trial = Parameter(math.nan, trials, 1.0, math.inf)
    first = True
    while True:
        flags = home.zeros(_PENDING + 1, "int32")
        if first:
            threads = threads_for(z.size, 8)
            launch(engine.count_bad, home, min(-(-z.size // threads), 1024), threads, z, flags)
        projections.run_rows(
            home, m.CAI, not nonneg, trial, projections.OWN_NORM, tol, z, scratch, info, flags
        )
        launch_each(lower_levels, home, count, *k, n, info, levels, trials, margins, flags)
        seen = home.fetch(flags)
        if seen[engine.NONFINITE]:
            raise ValueError("x must be finite, got NaN or inf")
        if not seen[_PENDING]:
            return
        first = False


def level_for_nnz(s, counts, nonneg):
    """The levels of all slices, on the device."""
    home = s.home
    with home.active():
        result = home.empty(s.batch, "float64")
        z = arrays.read(home, s.array, s.axis, s.work, (s.number, s.length))
        run_rows(home, z, counts, s.slack, home.view(result, (s.number,), (8,)), nonneg)
        return result
