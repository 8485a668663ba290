"""Levels for a number of nonzeros: selecting the entry at the edge, and the score above it."""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import engine, passes, simd
from .arrays import WANTED, YES, uncounted

SAMPLE_FROM = 1 << 14  # entries from which on a sample of runs brackets the edge
RUNS = 128  # of that sample
FEW = 32  # so many are compared with each other
PART = 8  # bounds that leave this part of more are near enough for what lies between to be copied
COUNTS = 12  # at most, for that
TAIL = 3  # times as many above one bound as above the other: they fall off like one
BEYOND = 0.3  # of what is near enough: how far beyond the rank the other bound is sought


@helper
def _count_above(z, theta):
    """How many magnitudes exceed theta >= 0; NaN does."""
    edge, width, count = simd.splat(theta), simd.lanes(z), 0
    whole = z.size // width * width
    for i in range(0, whole, width):
        count += simd.count(simd.not_below(simd.magnitude(simd.load(z, i)), edge))
    if whole < z.size:
        rest = simd.first_lanes(edge, z.size - whole)
        a = simd.magnitude(simd.load_part(z, whole, rest))  # the other lanes are 0
        count += simd.count(simd.not_below(a, edge))
    return count


@helper
def _ranked(seen, rank):
    """The smallest magnitude that at most `rank` others exceed; 0 where there are not so many.

    Each is compared with all: no branch depends on the data.
    """
    if rank >= seen.size:
        return seen.dtype.type(0.0)
    found = seen.dtype.type(math.inf)
    for i in range(seen.size):
        value = abs(seen[i])
        found = min(found, value) if _count_above(seen, value) <= rank else found
    return found


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
def _extent(seen):
    """The smallest and the largest magnitude, and the sum."""
    width, real = simd.lanes(seen), seen.dtype.type
    least, most, total = math.inf, 0.0, 0.0
    whole = seen.size // width * width
    if whole > 0:
        lows = highs = sums = simd.magnitude(simd.load(seen, 0))
        for i in range(width, whole, width):
            a = simd.magnitude(simd.load(seen, i))
            lows, highs, sums = simd.smaller(lows, a), simd.larger(highs, a), simd.add(sums, a)
        least, most = np.float64(simd.least(lows)), np.float64(simd.peak(highs))
        total = simd.total(sums)
    for i in range(whole, seen.size):
        value = np.float64(abs(seen[i]))
        least, most, total = min(least, value), max(most, value), total + value
    return real(least), real(most), total


@helper
def _bounds(seen, rank):
    """Values between which `_ranked` lies, the second may be it, and how many exceed each.

    The next is sought as if their number fell off exponentially, or evenly where it differs by
    little; beyond the rank on the side where the bound is farther, so that both come near it.
    They stay apart where many tie, and are the same, exceeded by too few, where there are not so
    many.
    """
    real = seen.dtype.type
    least, hi, total = _extent(seen)
    lo, above_lo, above_hi = np.nextafter(least, real(-1.0)), seen.size, 0
    if least == 0.0:
        lo, above_lo = least, _count_above(seen, least)
    if above_lo <= rank:
        return lo, lo, above_lo, above_lo
    wanted = rank + 0.5
    guess = lo + (total / above_lo - lo) * math.log(above_lo / wanted)
    enough, slow = max(FEW, seen.size // PART), 0
    for _ in range(COUNTS):
        between = above_lo - above_hi
        if between <= enough:
            break
        value = real(guess)
        if not lo < value < hi:
            value = real(m.midpoint(np.float64(lo), np.float64(hi)))
            if not lo < value < hi:
                break
        above = _count_above(seen, value)
        if above > rank:
            lo, above_lo = value, above
        else:
            hi, above_hi = value, above
        slow = slow + 1 if 2 * (above_lo - above_hi) > between else 0
        if slow == 2:
            slow, guess = 0, m.midpoint(np.float64(lo), np.float64(hi))
            continue
        more, fewer = above_lo - wanted, wanted - above_hi
        if more < fewer:
            goal = wanted - min(BEYOND * enough, 0.5 * fewer)
        else:
            goal = wanted + min(BEYOND * enough, 0.5 * more)
        if above_lo > TAIL * above_hi > 0:
            share = math.log(above_lo / goal) / math.log(above_lo / above_hi)
        else:
            share = (above_lo - goal) / (above_lo - above_hi)
        guess = lo + share * (np.float64(hi) - lo)
    return lo, hi, above_lo, above_hi


@helper
def _around(rank, n, size):
    """Ranks in a sample of this size between which one among n lies, most likely; −1: above all."""
    place = rank / n * size
    width = 4.0 * math.sqrt(place * (1.0 - rank / n)) + 4.0
    return int(place - width) if place > width else -1, int(place + width)


@helper
def _select(seen, rank, room):
    """`_ranked` of any number: what lies between two bounds is seen next.

    `room` is as long as `seen`, and may be the same.
    """
    zero = seen.dtype.type(0.0)
    while seen.size > FEW:
        lo, hi, above_lo, above = _bounds(seen, rank)
        if above_lo <= rank:
            return zero
        between = above_lo - above
        if between > FEW and 4 * between > 3 * seen.size:
            return _bisected(seen, rank, room)
        stored = passes.band(seen, YES, zero, lo, hi, room)[3]
        seen, rank = room[:stored], rank - above
    return _ranked(seen, rank)


@helper
def _edge(z, rank, room):
    """`_select` on a row: a long one is read once, by a sample of runs."""
    real, n = z.dtype.type, z.size
    zero = real(0.0)
    if n >= SAMPLE_FROM:
        size = RUNS * engine.RUN
        runs, spare = room[:size], room[size : 2 * size]
        engine.take_sample(z, YES, runs)
        first, last = _around(rank, n, size)
        hi = _select(runs, first, spare) if first >= 0 else real(math.inf)
        lo = _select(runs, last, spare)
        above, _, _, stored = passes.band(z, YES, zero, lo, hi, room)
        if lo == zero and above + stored <= rank:
            return zero
        if above <= rank < above + stored:
            return _select(room[:stored], rank - int(above), room)
    return _select(z, rank, room)


@helper
def _level(z, k, room):
    """The score of max(|z| − a, 0), where a is the entry after the k largest."""
    zero = z.dtype.type(0.0)
    edge = _edge(z, k, room)
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
def edge_levels(x, counts, room, levels):
    """Fill in the levels of the rows for so many nonzeros, but for rounding.

    `room`, as long as a row, is scratch.
    """
    x, room = uncounted(x), uncounted(room)
    for r in range(x.shape[0]):
        levels[r] = _level(x[r], int(min(counts[r], x.shape[1])), room)


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
