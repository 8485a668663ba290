"""Levels for a number of nonzeros: selecting the entry at the edge, and the score above it."""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import engine, passes, simd
from .arrays import YES, keep, uncounted

SAMPLE_FROM = 1 << 14  # entries from which on a sample brackets the edge
RUNS = 128  # of the sample


@helper
def _count_above(z, theta):
    """How many magnitudes exceed theta; NaN does."""
    edge, width, count = simd.splat(theta), simd.lanes(z), 0
    whole = z.size // width * width
    for i in range(0, whole, width):
        count += simd.count(simd.not_below(simd.magnitude(simd.load(z, i)), edge))
    for i in range(whole, z.size):
        count += not abs(z[i]) <= theta
    return count


@helper
def _select(seen, rank, room):
    """The magnitude that is exceeded by at most `rank` others, and equalled or exceeded by more.

    0 where there are not so many.  `room` is as long as `seen`, and may be the same.  Bisects over
    values, and keeps what lies between the bounds.
    """
    real = seen.dtype.type
    zero, lo, absolute = real(0.0), real(0.0), True
    while True:
        hi = real(passes.largest(seen, absolute))  # the bound, or the value itself
        below = np.nextafter(hi, zero)
        ties = _count_above(seen, below)
        if ties > rank:
            return hi
        middle = real(m.midpoint(np.float64(lo), np.float64(hi)))
        if not middle > lo:  # too small for the data's type
            middle = real(np.float64(lo) + 0.5 * (np.float64(hi) - np.float64(lo)))
        middle = min(middle, below)  # lo < below, or all were ties
        above = _count_above(seen, middle)
        if above > rank:
            lo, top = middle, hi
        else:
            rank -= above
            top = middle
        stored = passes.band(seen, absolute, zero, lo, top, room)[3]
        if stored == 0:
            return zero
        seen, absolute = room[:stored], False


@helper
def _edge(z, rank, room):
    """`_select` on a long vector: from a sample, bounds that hold hardly more than the edge."""
    real, n = z.dtype.type, z.size
    zero = real(0.0)
    if n >= SAMPLE_FROM:
        size = RUNS * engine.RUN
        sample, spare = room[:size], room[size : 2 * size]
        engine.take_sample(z, YES, sample)
        place = rank / n * size
        width = 4.0 * math.sqrt(place * (1.0 - rank / n)) + 4.0
        hi = _select(sample, int(place - width), spare) if place > width else real(math.inf)
        lo = _select(sample, int(place + width), spare)
        count, _, _, stored = passes.band(z, YES, zero, lo, hi, room)
        if count <= rank < count + stored:
            return _select(room[:stored], rank - int(count), room)
    return _select(z, rank, room)


@helper
def _level(z, k, room):
    """The score of max(|z| − a, 0), where a is the entry after the k largest."""
    zero = z.dtype.type(0.0)
    if _count_above(z, zero) <= k:
        return max(float(z.size), 1.0)
    top = z.dtype.type(passes.largest(z, YES))
    if _count_above(z, np.nextafter(top, zero)) >= k:
        return float(k)
    edge = _edge(z, k, room)
    _, s, q = passes.sums(z, YES, np.float64(edge), 0.0)
    if not 1e-200 < q < 1e200:  # squares over- or underflow, which float32 data's do not
        for i in range(z.size):
            room[i] = max(abs(z[i]) - edge, zero)
        s, q, _ = passes.moments(room, YES)
    return m.score(m.MAGNITUDES, z.size, s, q)


@kernel
def edge_levels(x, counts, levels, first, last):
    """Fill in the levels of rows first..last−1, but for rounding."""
    own_room = np.empty(x.shape[1], x.dtype)
    x, room = uncounted(x), uncounted(own_room)
    for r in range(first, last):
        levels[r] = _level(x[r], counts[r], room)
    keep((own_room,))


@kernel
def lowered_levels(levels, margin, lowered):
    """`_math.lowered` of each."""
    for i in range(levels.size):
        lowered[i] = m.lowered(levels[i], margin)


@kernel
def count_nonzeros(x, counts):
    """How many entries of each row are not 0; NaN is not."""
    x = uncounted(x)
    for r in range(x.shape[0]):
        counts[r] = _count_above(x[r], x.dtype.type(0.0))


@kernel
def levels_of_sparseness(sparseness, sizes, levels, rests):
    """`_math.level_of_sparseness` of each."""
    for i in range(levels.size):
        levels[i], rests[i] = m.level_of_sparseness(sparseness[i], sizes[i])


@kernel
def levels_of_norms(l1, l2, n, levels, rests):
    """`_math.level_of_norms` of each."""
    for i in range(levels.size):
        levels[i], rests[i] = m.level_of_norms(l1[i], l2[i], n)
