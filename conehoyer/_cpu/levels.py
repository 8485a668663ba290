"""Levels for a number of nonzeros: selecting the entry at the edge, and the score above it."""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import engine, passes, simd
from .arrays import WANTED, YES, keep, uncounted

SAMPLE_FROM = 1 << 14  # entries from which on a sample of runs brackets the edge
RUNS = 128  # of that sample
SAMPLE = 128  # entries of the sample of fewer
FEW = 256  # so many are compared with each other
STRIDE = 7919  # a prime above FEW: each is met once, in no order that data have


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
def _ranked(seen, rank):
    """The magnitude that is exceeded by at most `rank` others, and equalled or exceeded by more.

    0 where there are not so many.  Each that can still be the one is compared with all: about
    2·log n of them.
    """
    real, place = seen.dtype.type, 0
    lo, hi = real(-1.0), real(math.inf)
    step = STRIDE % max(seen.size, 1)
    for _ in range(seen.size):
        place += step
        if place >= seen.size:
            place -= seen.size
        value = abs(seen[place])
        if lo < value < hi:
            if _count_above(seen, value) > rank:
                lo = value
            elif _count_above(seen, np.nextafter(value, real(-1.0))) > rank:
                return value
            else:
                hi = value
    return real(0.0)


@helper
def _bisected(seen, rank, room):
    """`_ranked`, by bisection over values: at most as many steps as these have bits."""
    real = seen.dtype.type
    zero, lo = real(0.0), real(0.0)
    while True:
        hi = real(passes.largest(seen, YES))  # the bound, or the value itself
        below = np.nextafter(hi, zero)
        if _count_above(seen, below) > rank:
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
        stored = passes.band(seen, YES, zero, lo, top, room)[3]
        if stored == 0:
            return zero
        seen = room[:stored]


@helper
def _around(rank, n, size):
    """Ranks in a sample of this size between which one among n lies, most likely; −1: above all."""
    place = rank / n * size
    width = 4.0 * math.sqrt(place * (1.0 - rank / n)) + 4.0
    return int(place - width) if place > width else -1, int(place + width)


@helper
def _select(seen, rank, room, sample):
    """`_ranked` of any number: a sample gives bounds, and what lies between them is seen next.

    `room` is as long as `seen`, and may be the same.
    """
    zero = seen.dtype.type(0.0)
    while seen.size > FEW:
        step = seen.size // SAMPLE
        for i in range(SAMPLE):
            sample[i] = seen[i * step]
        first, last = _around(rank, seen.size, SAMPLE)
        hi = _ranked(sample, first) if first >= 0 else seen.dtype.type(math.inf)
        lo = _ranked(sample, last)
        above, all_above = _count_above(seen, hi), _count_above(seen, lo)
        if lo == zero and all_above <= rank:
            return zero
        if not above <= rank < all_above or 4 * (all_above - above) > 3 * seen.size:
            return _bisected(seen, rank, room)  # the sample misleads, or does not help
        stored = passes.band(seen, YES, zero, lo, hi, room)[3]
        seen, rank = room[:stored], rank - above
    return _ranked(seen, rank)


@helper
def _edge(z, rank, room, sample):
    """`_select` on a row: a long one is read once, by a sample of runs."""
    real, n = z.dtype.type, z.size
    zero = real(0.0)
    if n >= SAMPLE_FROM:
        size = RUNS * engine.RUN
        runs, spare = room[:size], room[size : 2 * size]
        engine.take_sample(z, YES, runs)
        first, last = _around(rank, n, size)
        hi = _select(runs, first, spare, sample) if first >= 0 else real(math.inf)
        lo = _select(runs, last, spare, sample)
        above, _, _, stored = passes.band(z, YES, zero, lo, hi, room)
        if lo == zero and above + stored <= rank:
            return zero
        if above <= rank < above + stored:
            return _select(room[:stored], rank - int(above), room, sample)
    return _select(z, rank, room, sample)


@helper
def _level(z, k, room, sample):
    """The score of max(|z| − a, 0), where a is the entry after the k largest."""
    zero = z.dtype.type(0.0)
    edge = _edge(z, k, room, sample)
    if edge == zero:  # so few are not 0
        return max(float(z.size), 1.0)
    nu, s, q = passes.sums(z, YES, np.float64(edge), 0.0)
    if nu == 0.0:  # more than k tie for the largest
        return float(k)
    if not 1e-200 < q < 1e200:  # squares over- or underflow, which float32 data's do not
        for i in range(z.size):
            room[i] = max(abs(z[i]) - edge, zero)
        s, q, _ = passes.moments(room, YES)
    level = m.score(m.MAGNITUDES, z.size, s, q)
    if level > k * (1.0 - 1e-6) and nu == k:
        top = z.dtype.type(passes.largest(z, YES))
        if _count_above(z, np.nextafter(top, zero)) == k:  # no rounding where just k tie
            return float(k)
    return level


@kernel
def edge_levels(x, counts, levels, first, last):
    """Fill in the levels of rows first..last−1 for so many nonzeros, but for rounding."""
    own_room, own_sample = np.empty(x.shape[1], x.dtype), np.empty(SAMPLE, x.dtype)
    x, room, sample = uncounted(x), uncounted(own_room), uncounted(own_sample)
    for r in range(first, last):
        levels[r] = _level(x[r], int(min(counts[r], x.shape[1])), room, sample)
    keep((own_room, own_sample))


@kernel
def lower(levels, margin, numbers, result, table):
    """Have the rows of these numbers projected to `_math.lowered` levels: perhaps the result."""
    for i in range(numbers.size):
        r = numbers[i]
        result[r] = table[i, WANTED] = m.lowered(levels[r], margin)


@kernel
def find_dense(out, counts, result, numbers):
    """How many rows have more nonzeros than wanted; their numbers come first then.

    Those at level 1 do not count: there is nothing lower.
    """
    out, dense = uncounted(out), 0
    for i in range(numbers.size):
        r = numbers[i]
        if result[r] > 1.0 and _count_above(out[i], out.dtype.type(0.0)) > counts[r]:
            numbers[dense] = r
            dense += 1
    return dense


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
