"""Passes over one contiguous slice: sums, band, write.  No decisions are made here.

``a`` stands for ``|z|`` where `absolute`, for ``z`` itself otherwise.  Sums are float64,
taken in blocks so that each running sum stays short.
"""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, inlined, kernel
from . import simd
from .arrays import NO, YES

BLOCK = 64 * simd.WIDE  # entries that vector loops take between two looks at what they have found
FAR = 1 << 25  # bytes; caches rarely hold more
BACK = 1 << 18  # entries written in one go, the last first: they have been read last
NEAR = 1024  # entries written ahead of those that are read
LEAST = 32  # entries that share a word in `collect_few`, at least
ALIGNED_FROM = 1 << 17  # bytes of a slice that is read and written by whole cache lines
RUN = 16  # terms of a running sum: n equal ones may be rounded to one side, n/2 units in all
SHORT = 64  # the same for loops that add one entry at a time
LISTED = 128  # registers between two looks into those that have an entry inside a band
TINY = 2.0**-40  # a radius below this fraction of τ: see near_top


@kernel
def all_finite(z):
    """Whether no entry is NaN or infinite."""
    width = simd.lanes(z)
    whole = z.size // width * width
    for begin in range(0, whole, BLOCK):
        end = min(begin + BLOCK, whole)
        infinite = simd.splat(z.dtype.type(math.inf))
        bad = simd.above(infinite, infinite)
        for i in range(begin, end, width):
            # "not less than infinity" holds for NaN as well
            bad = simd.either(bad, simd.not_less(simd.magnitude(simd.load(z, i)), infinite))
        if simd.any_lane(bad):
            return False
    for i in range(whole, z.size):
        if not abs(z[i]) < math.inf:
            return False
    return True


@helper
def nonnegative(z):
    """Whether no entry is negative."""
    zero, width = simd.splat(z.dtype.type(0.0)), simd.lanes(z)
    whole = z.size // width * width
    for begin in range(0, whole, BLOCK):
        negative = simd.above(zero, zero)
        for i in range(begin, min(begin + BLOCK, whole), width):
            negative = simd.either(negative, simd.above(zero, simd.load(z, i)))
        if simd.any_lane(negative):
            return False
    for i in range(whole, z.size):
        if z[i] < 0.0:
            return False
    return True


@kernel
def largest(z, absolute):
    """The largest a; NaN is passed over."""
    tops = simd.splat_wide(-math.inf)
    whole = z.size // simd.WIDE * simd.WIDE
    for i in range(0, whole, simd.WIDE):
        a = simd.load_wide(z, i)
        if absolute:
            a = simd.magnitude(a)
        tops = simd.where(simd.above(a, tops), a, tops)
    top = simd.peak(tops)
    for i in range(whole, z.size):
        a = np.float64(abs(z[i]) if absolute else z[i])
        top = a if a > top else top
    return top


@helper
def add_inside(inside, gap, firsts, seconds):
    """One register's share of Σgap and Σgap², over the lanes inside."""
    inlined()
    if not simd.NATIVE:  # there, lanes outside stay as they are at no cost
        gap = simd.where(inside, gap, simd.nothing(gap))
        return simd.add(firsts, gap), simd.multiply_add(gap, gap, seconds)
    firsts = simd.where(inside, simd.add(firsts, gap), firsts)
    return firsts, simd.where(inside, simd.multiply_add(gap, gap, seconds), seconds)


@helper
def add_exactly(total, lost, part):
    """The sum of two numbers, and of what rounding has lost so far; nothing where it overflows."""
    inlined()
    total, rest = m.two_sum(total, part)
    return total, lost + rest if math.isfinite(total) else 0.0


@helper
def own_sums(z, absolute, anchor, offset):
    """`sums`, with a − anchor and its running sums in the data's own precision."""
    inlined()
    far, edge = simd.splat(z.dtype.type(anchor)), simd.splat(z.dtype.type(offset))
    zero = simd.sub(far, far)  # with a constant, LLVM makes slower loops of these
    signs, width = simd.signs(zero, absolute), simd.lanes(z)
    pairs = z.size // (2 * width) * (2 * width)
    nu, s, q, lost_s, lost_q = 0, 0.0, 0.0, 0.0, 0.0
    for part in range(0, pairs, 2 * RUN * RUN * width):
        end = min(part + 2 * RUN * RUN * width, pairs)
        part_s, part_q = simd.widen_sum(zero), simd.widen_sum(zero)
        for begin in range(part, end, 2 * RUN * width):
            firsts0, firsts1, seconds0, seconds1 = zero, zero, zero, zero
            for i in range(begin, min(begin + 2 * RUN * width, end), 2 * width):
                a0 = simd.without(simd.load(z, i), signs)
                a1 = simd.without(simd.load(z, i + width), signs)
                gap0, gap1 = simd.sub(a0, far), simd.sub(a1, far)
                in0, in1 = simd.not_below(gap0, edge), simd.not_below(gap1, edge)
                nu += simd.count(in0)
                nu += simd.count(in1)
                firsts0, seconds0 = add_inside(in0, gap0, firsts0, seconds0)
                firsts1, seconds1 = add_inside(in1, gap1, firsts1, seconds1)
            part_s = simd.add(part_s, simd.widen_sum(simd.add(firsts0, firsts1)))
            part_q = simd.add(part_q, simd.widen_sum(simd.add(seconds0, seconds1)))
        s, lost_s = add_exactly(s, lost_s, simd.total(part_s))
        q, lost_q = add_exactly(q, lost_q, simd.total(part_q))
    firsts, seconds = zero, zero
    for i in range(pairs, z.size, width):
        valid = simd.first_lanes(zero, z.size - i)
        a = simd.without(simd.load_part(z, i, valid), signs)
        gap = simd.sub(a, far)
        inside = simd.both(simd.not_below(gap, edge), valid)
        nu += simd.count(inside)
        firsts, seconds = add_inside(inside, gap, firsts, seconds)
    s, lost_s = add_exactly(s, lost_s, simd.total(firsts))
    q, lost_q = add_exactly(q, lost_q, simd.total(seconds))
    return float(nu), s + lost_s, q + lost_q


@helper
def _wide_sums(z, absolute, anchor, offset):
    """`sums` of float32 data, which need fewer digits: the running sums may be longer."""
    far, edge, zero = simd.splat_wide(anchor), simd.splat_wide(offset), simd.splat_wide(0.0)
    signs = simd.signs(zero, absolute)
    nu, s, q = 0, 0.0, 0.0
    for begin in range(0, z.size, BLOCK):
        end = min(begin + BLOCK, z.size)
        whole = end // simd.WIDE * simd.WIDE
        firsts, seconds = zero, zero
        for i in range(begin, whole, simd.WIDE):
            a = simd.without(simd.load_wide(z, i), signs)
            gap = simd.sub(a, far)
            inside = simd.not_below(gap, edge)
            nu += simd.count(inside)
            firsts, seconds = add_inside(inside, gap, firsts, seconds)
        if whole < end:
            valid = simd.first_lanes(zero, end - whole)
            a = simd.without(simd.widen(simd.load_part(z, whole, valid)), signs)
            gap = simd.sub(a, far)
            inside = simd.both(simd.not_below(gap, edge), valid)
            nu += simd.count(inside)
            firsts, seconds = add_inside(inside, gap, firsts, seconds)
        s += simd.total(firsts)
        q += simd.total(seconds)
    return float(nu), s, q


@kernel
def sums(z, absolute, anchor, offset):
    """Count, Σ(a − anchor) and Σ(a − anchor)² over the entries with a − anchor > offset.

    NaN counts as inside, so that it reaches the sums.
    """
    if z.itemsize == 8:
        return own_sums(z, absolute, anchor, offset)
    return _wide_sums(z, absolute, anchor, offset)


@kernel
def squares(z):
    """Σz²."""
    zero = simd.splat_wide(0.0)
    pairs = z.size // (2 * simd.WIDE) * (2 * simd.WIDE)
    q = zero
    for begin in range(0, pairs, 2 * RUN * simd.WIDE):
        seconds0, seconds1 = zero, zero
        for i in range(begin, min(begin + 2 * RUN * simd.WIDE, pairs), 2 * simd.WIDE):
            a0, a1 = simd.load_wide(z, i), simd.load_wide(z, i + simd.WIDE)
            seconds0 = simd.multiply_add(a0, a0, seconds0)
            seconds1 = simd.multiply_add(a1, a1, seconds1)
        q = simd.add(q, simd.add(seconds0, seconds1))
    for i in range(pairs, z.size, simd.WIDE):
        a = simd.widen(simd.load_part(z, i, simd.first_lanes(zero, z.size - i)))
        q = simd.multiply_add(a, a, q)
    return simd.total(q)


@helper
def any_between(z, lo, hi):
    """Whether an entry lies in [lo, hi], or is NaN."""
    low, high = simd.splat(lo), simd.splat(hi)
    width = simd.lanes(z)
    whole = z.size // width * width
    for begin in range(0, whole, 8 * width):
        found = simd.above(low, low)
        for i in range(begin, min(begin + 8 * width, whole), width):
            a = simd.load(z, i)
            inside = simd.differ(simd.not_less(a, low), simd.above(a, high))
            found = simd.either(found, inside)
        if simd.any_lane(found):
            return True
    for i in range(whole, z.size):
        if not z[i] < lo and not z[i] > hi:
            return True
    return False


@helper
def count_between(z, lo, hi):
    """How many entries lie in [lo, hi], or are NaN."""
    low, high = simd.splat(lo), simd.splat(hi)
    width, count = simd.lanes(z), 0
    whole = z.size // width * width
    for i in range(0, whole, width):
        a = simd.load(z, i)
        count += simd.count(simd.differ(simd.not_less(a, low), simd.above(a, high)))
    for i in range(whole, z.size):
        count += not z[i] < lo and not z[i] > hi
    return count


@helper
def influences(sample, run, anchor, offset, limit, linear, square, unit):
    """Σg and Σg² over runs of the sample, g = Σ(linear·d − square·d²)/unit over a run.

    Here d = (a − anchor) − offset, over the entries with offset < a − anchor <= limit.
    `run` is a power of two, at least the width of a register.
    """
    far, edge, most = simd.splat_wide(anchor), simd.splat_wide(offset), simd.splat_wide(limit)
    zero, first, second = simd.splat_wide(0.0), simd.splat_wide(linear), simd.splat_wide(-square)
    total, squares = 0.0, 0.0
    for begin in range(0, sample.size, run):
        sums = zero
        for i in range(begin, begin + run, simd.WIDE):
            gap = simd.sub(simd.load_wide(sample, i), far)
            inside = simd.differ(simd.not_below(gap, edge), simd.not_below(gap, most))
            d = simd.sub(gap, edge)
            sums = simd.where(
                inside, simd.multiply_add(d, simd.multiply_add(d, second, first), sums), sums
            )
        g = simd.total(sums) / unit
        total += g
        squares += g * g
    return total, squares


@helper
def write_in_unit(z, exponent, out):
    """Write z·2^exponent, rounded once: `math.ldexp` of each entry, but by registers."""
    # As far as one factor reaches; of two, the one that may round comes last.
    most = max(min(exponent, 1023), -1022)
    first, second = math.ldexp(1.0, exponent - most), math.ldexp(1.0, most)
    for i in range(z.size):
        out[i] = np.float64(z[i]) * first * second


@helper
def in_range(s, q):
    """Whether sums of entries and of squares have neither overflowed nor lost small squares."""
    inlined()
    return 1e-200 < q < 1e200 or s == q == 0.0


@helper
def moments(z, absolute):
    """Σa, Σa² and the exponent e of the unit 2^e in which they are given.

    The unit is 1 unless squares over- or underflow.
    """
    nu, s, q = sums(z, absolute, 0.0, -math.inf)
    if nu < z.size:  # −inf, which is not above it
        return math.nan, math.nan, 0
    if in_range(s, q) or not all_finite(z):
        return s, q, 0
    exponent = int(math.frexp(largest(z, YES))[1])
    scaled = np.empty(z.size)
    write_in_unit(z, -exponent, scaled)
    _, s, q = sums(scaled, absolute, 0.0, -math.inf)
    return s, q, exponent


@helper
def norm(z):
    """‖z‖₂, safe at any scale."""
    _, q, exponent = moments(z, YES)
    return math.ldexp(math.sqrt(q), exponent)


@helper
def near_top(z, absolute, radius):
    """τ with Σ max(a − τ, 0) = radius, where the radius is tiny against the largest a.

    Returns the largest a, τ relative to it, and count and Σ max(a − τ, 0).  Only entries
    within `radius` of the largest matter, and their gaps to it are exact.
    """
    top = largest(z, absolute)
    offset = -radius
    nu, s, _ = sums(z, absolute, top, offset)
    for _ in range(100):
        offset, before, total = m.newton_offset(m.L1, radius, nu, s, 0.0), nu, s
        nu, s, _ = sums(z, absolute, top, offset)
        if nu == 0.0:  # each one's share of the radius is rounded to nothing
            nu, s = before, total
        if nu == before:
            break
    return top, offset, nu, s - nu * offset


@kernel
def band_plain(z, absolute, anchor, lo, hi, buffer):
    """Sums over the entries above `hi`; those in (lo, hi] go to `buffer`.

    Returns count, Σ(a − anchor), Σ(a − anchor)² over a > hi, and how many were stored.
    `buffer` may be `z` itself.  NaN is stored.
    """
    nu, s, q, stored = 0.0, 0.0, 0.0, 0
    for begin in range(0, z.size, SHORT):
        block_s, block_q = 0.0, 0.0
        for i in range(begin, min(begin + SHORT, z.size)):
            value = abs(z[i]) if absolute else z[i]
            high = value > hi
            buffer[stored] = value
            stored += (not value <= lo) and not high
            gap = np.float64(value) - anchor if high else 0.0
            nu += 1.0 if high else 0.0
            block_s += gap
            block_q += gap * gap
        s += block_s
        q += block_q
    return nu, s, q, stored


@helper
def _four(z, i, signs):
    """Four registers of z, without signs."""
    inlined()
    width = simd.lanes(z)
    a0 = simd.without(simd.load(z, i), signs)
    a1 = simd.without(simd.load(z, i + width), signs)
    a2 = simd.without(simd.load(z, i + 2 * width), signs)
    a3 = simd.without(simd.load(z, i + 3 * width), signs)
    return a0, a1, a2, a3


@helper
def _store(a, inside, buffer, stored):
    """Store the lanes inside; where the next go."""
    inlined()
    simd.compress(a, inside, buffer, stored)
    return stored + simd.count(inside)


@helper
def _store_two(a0, a1, in0, in1, buffer, stored):
    """`_store` of two registers, of which usually no lane is taken twice: both at once then."""
    inlined()
    if simd.any_lane(simd.both(in0, in1)):
        return _store(a1, in1, buffer, _store(a0, in0, buffer, stored))
    return _store(simd.where(in0, a0, a1), simd.either(in0, in1), buffer, stored)


@helper
def _band_blocks(z, absolute, anchor, lo, hi, buffer):
    """`band_plain` on fours of registers, all of z; they are loaded early, see `collect_blocks`."""
    vlo, vhi, vanchor = simd.splat(lo), simd.splat(hi), simd.splat(anchor)
    zero = simd.splat(lo - lo)
    signs, width = simd.signs(zero, absolute), simd.lanes(z)
    length, last = 2 * RUN * width, z.size - 4 * width
    nu, s, q, stored = 0, simd.widen_sum(zero), simd.widen_sum(zero), 0
    following = _four(z, 0, signs)
    for begin in range(0, z.size, length):
        s0, s1, q0, q1 = zero, zero, zero, zero
        for i in range(begin, min(begin + length, z.size), 4 * width):
            a0, a1, a2, a3 = following
            following = _four(z, min(i + 4 * width, last), signs)
            high0, high1 = simd.above(a0, vhi), simd.above(a1, vhi)
            high2, high3 = simd.above(a2, vhi), simd.above(a3, vhi)
            s0, q0 = add_inside(high0, simd.sub(a0, vanchor), s0, q0)
            s1, q1 = add_inside(high1, simd.sub(a1, vanchor), s1, q1)
            s0, q0 = add_inside(high2, simd.sub(a2, vanchor), s0, q0)
            s1, q1 = add_inside(high3, simd.sub(a3, vanchor), s1, q1)
            nu += simd.count(high0)
            nu += simd.count(high1)
            nu += simd.count(high2)
            nu += simd.count(high3)
            in0 = simd.differ(simd.not_below(a0, vlo), high0)
            in1 = simd.differ(simd.not_below(a1, vlo), high1)
            in2 = simd.differ(simd.not_below(a2, vlo), high2)
            in3 = simd.differ(simd.not_below(a3, vlo), high3)
            stored = _store_two(a0, a1, in0, in1, buffer, stored)
            stored = _store_two(a2, a3, in2, in3, buffer, stored)
        s = simd.add(s, simd.widen_sum(simd.add(s0, s1)))
        q = simd.add(q, simd.widen_sum(simd.add(q0, q1)))
    return float(nu), simd.total(s), simd.total(q), stored


@helper
def _table_blocks(z, absolute, anchor, lo, hi, buffer):
    """`_band_blocks` by table: half as many running sums, for which there are registers."""
    vlo, vhi, vanchor = simd.splat(lo), simd.splat(hi), simd.splat(anchor)
    zero = simd.splat(lo - lo)
    signs, width = simd.signs(zero, absolute), simd.lanes(z)
    length = RUN * width
    nu, s, q, stored = 0, simd.widen_sum(zero), simd.widen_sum(zero), 0
    for begin in range(0, z.size, length):
        part = z[begin : min(begin + length, z.size)]
        firsts, seconds = zero, zero
        for i in range(0, part.size, width):
            a = simd.without(simd.load(part, i), signs)
            high = simd.above(a, vhi)
            firsts, seconds = add_inside(high, simd.sub(a, vanchor), firsts, seconds)
            nu += simd.count(high)
            stored += simd.compress_unequal(a, high, simd.not_below(a, vlo), buffer, stored)
        s, q = simd.add(s, simd.widen_sum(firsts)), simd.add(q, simd.widen_sum(seconds))
    return float(nu), simd.total(s), simd.total(q), stored


@helper
def _rare_blocks(z, absolute, anchor, lo, hi, buffer, marks):
    """`_band_blocks` where few entries lie inside: first marked, then picked one by one.

    No branch depends on single registers, which cost a misprediction for each entry.
    """
    vlo, vhi, vanchor = simd.splat(lo), simd.splat(hi), simd.splat(anchor)
    zero = simd.splat(lo - lo)
    signs, width = simd.signs(zero, absolute), simd.lanes(z)
    length = 2 * RUN * width
    s, q = simd.widen_sum(zero), simd.widen_sum(zero)
    high, inside, place = marks[0], marks[1], 0
    for begin in range(0, z.size, length):
        part = z[begin : min(begin + length, z.size)]
        s0, s1, q0, q1 = zero, zero, zero, zero
        for i in range(0, part.size, 4 * width):
            a0, a1, a2, a3 = _four(part, i, signs)
            high0, high1 = simd.above(a0, vhi), simd.above(a1, vhi)
            high2, high3 = simd.above(a2, vhi), simd.above(a3, vhi)
            s0, q0 = add_inside(high0, simd.sub(a0, vanchor), s0, q0)
            s1, q1 = add_inside(high1, simd.sub(a1, vanchor), s1, q1)
            s0, q0 = add_inside(high2, simd.sub(a2, vanchor), s0, q0)
            s1, q1 = add_inside(high3, simd.sub(a3, vanchor), s1, q1)
            simd.store_mask(high0, high, place)
            simd.store_mask(high1, high, place + 1)
            simd.store_mask(high2, high, place + 2)
            simd.store_mask(high3, high, place + 3)
            simd.store_mask(simd.not_below(a0, vlo), inside, place)
            simd.store_mask(simd.not_below(a1, vlo), inside, place + 1)
            simd.store_mask(simd.not_below(a2, vlo), inside, place + 2)
            simd.store_mask(simd.not_below(a3, vlo), inside, place + 3)
            place += 4
        s = simd.add(s, simd.widen_sum(simd.add(s0, s1)))
        q = simd.add(q, simd.widen_sum(simd.add(q0, q1)))
    nu, stored = _pick(z, high, inside, marks[2], buffer)
    if absolute:
        for i in range(stored):
            buffer[i] = abs(buffer[i])
    return nu, simd.total(s), simd.total(q), stored


@helper
def _listed_blocks(z, absolute, anchor, lo, hi, buffer, marks):
    """`_rare_blocks` where masks are registers: what lies inside is sought where some does.

    The first loop asks no mask for its bits, which takes as long as several operations on
    registers: the sums are those above `lo`, the number of entries below comes from the signs of
    their distances, and a list takes the pairs of registers that have an entry inside.  What has
    been found there is taken from the sums.
    """
    places = marks[0]
    first = np.nextafter(lo, z.dtype.type(math.inf))  # a > lo where a − first has no sign
    vfirst, reach = simd.splat(first), simd.splat(hi - first)
    vlo, vhi = simd.splat(lo), simd.splat(hi)
    zero = simd.sub(vlo, vlo)
    signs, width = simd.signs(zero, absolute), simd.lanes(z)
    below, stored, all_firsts, all_seconds = 0, 0, simd.widen_sum(zero), simd.widen_sum(zero)
    for begin in range(0, z.size, LISTED * width):
        part, found = z[begin : min(begin + LISTED * width, z.size)], np.uint64(0)
        for run in range(0, part.size, 2 * RUN * width):
            firsts0, firsts1, seconds0, seconds1 = zero, zero, zero, zero
            for i in range(run, min(run + 2 * RUN * width, part.size), 2 * width):
                d0 = simd.sub(simd.without(simd.load(part, i), signs), vfirst)
                d1 = simd.sub(simd.without(simd.load(part, i + width), signs), vfirst)
                above0 = simd.where(simd.above(zero, d0), zero, d0)  # NaN as well
                above1 = simd.where(simd.above(zero, d1), zero, d1)
                firsts0, firsts1 = simd.add(firsts0, above0), simd.add(firsts1, above1)
                seconds0 = simd.multiply_add(above0, above0, seconds0)
                seconds1 = simd.multiply_add(above1, above1, seconds1)
                below += simd.negatives(d0, d1)
                places[found] = np.uint64(i)
                found += simd.one_if_within(d0, d1, reach)
            all_firsts = simd.add(all_firsts, simd.widen_sum(simd.add(firsts0, firsts1)))
            all_seconds = simd.add(all_seconds, simd.widen_sum(simd.add(seconds0, seconds1)))
        for k in range(found):
            for i in (np.int64(places[k]), np.int64(places[k]) + width):
                a = simd.without(simd.load(part, i), signs)
                high, low = simd.above(a, vhi), simd.not_below(a, vlo)
                stored += simd.compress_unequal(a, high, low, buffer, stored)
    s, q = simd.total(all_firsts), simd.total(all_seconds)
    if not math.isfinite(q):  # NaN has not been stored
        return _table_blocks(z, absolute, anchor, lo, hi, buffer)
    _, s1, q1 = own_sums(buffer[:stored], NO, first, 0.0)
    nu = float(z.size - below - stored)
    s, q = m.sums_at(nu, s - s1, q - q1, np.float64(anchor) - np.float64(first))
    return nu, s, q, stored


@helper
def _differing(high, inside, places):
    """Leave in `inside` the words that differ from those of `high`, xor-ed, side by side.

    `places` says which they are.  Returns how many bits `high` has, and how many words differ.
    """
    nu, found, whole = 0, 0, 0
    if simd.NATIVE:
        whole = high.size // 8 * 8
        for b in range(0, whole, 8):
            nu += simd.ones_of_eight(high, b)
            found += simd.compress_differing(high, inside, b, places, found)
    for b in range(whole, high.size):
        word = high[b] ^ inside[b]
        nu += simd.ones(high[b])
        inside[found], places[found] = word, np.uint64(b)
        found += word != np.uint64(0)
    return nu, found


@helper
def _pick(z, high, inside, places, buffer):
    """Store the entries whose bits differ between `high` and `inside`.

    Returns how many bits `high` has, and how many entries were stored.
    """
    none, one, last = np.uint64(0), np.uint64(1), np.uint64(1 << 63)
    words = z.size // 64
    nu, found = _differing(high[:words], inside[:words], places)
    stored = 0
    for j in range(found):
        word = inside[j]
        begin = 64 * np.int64(places[j])
        part = z[begin : begin + 64]
        place, stored = stored, stored + simd.ones(word)
        # Two without asking; what is not there will be overwritten by the next word.
        for k in range(2):
            buffer[place + k] = part[simd.lowest(word | last)]
            word &= word - one
        place += 2
        while word != none:
            buffer[place] = part[simd.lowest(word)]
            place += 1
            word &= word - one
    return float(nu), stored


@helper
def collect_blocks(z, absolute, lo, buffer):
    """The stored part of `band_plain` for hi = inf, on pairs of registers; all of z is those.

    Where an entry is stored depends on what was read before.  At times a processor (Zen 5) lets no
    load pass a store whose place it does not know yet, and stays like that for thousands of calls:
    so what is loaded here is stored eight registers later.
    """
    vlo = simd.splat(lo)
    signs, width = simd.signs(vlo, absolute), simd.lanes(z)
    whole, stored = 0, 0
    if simd.NATIVE and z.size >= 4 * width:  # others have too few registers
        whole = z.size // (4 * width) * (4 * width)
        last = whole - 4 * width
        second, third = _four(z, 0, signs), _four(z, min(4 * width, last), signs)
        for i in range(0, whole, 4 * width):
            a0, a1, a2, a3 = second
            second, third = third, _four(z, min(i + 8 * width, last), signs)
            in0, in1 = simd.not_below(a0, vlo), simd.not_below(a1, vlo)
            in2, in3 = simd.not_below(a2, vlo), simd.not_below(a3, vlo)
            stored = _store(a1, in1, buffer, _store(a0, in0, buffer, stored))
            stored = _store(a3, in3, buffer, _store(a2, in2, buffer, stored))
    for i in range(whole, z.size, 2 * width):
        a0 = simd.without(simd.load(z, i), signs)
        a1 = simd.without(simd.load(z, i + width), signs)
        in0, in1 = simd.not_below(a0, vlo), simd.not_below(a1, vlo)
        stored = _store(a1, in1, buffer, _store(a0, in0, buffer, stored))
    return stored


@helper
def _collect_rare_blocks(z, absolute, lo, buffer, marks):
    """`collect_blocks` where few entries lie above lo."""
    high, inside = marks[0], marks[1]
    vlo, width = simd.splat(lo), simd.lanes(z)
    signs = simd.signs(vlo, absolute)
    for i in range(0, z.size, width):
        a = simd.without(simd.load(z, i), signs)
        simd.store_mask(simd.not_below(a, vlo), inside, i // width)
    high[: z.size // 64] = 0
    _, stored = _pick(z, high, inside, marks[2], buffer)
    if absolute:
        for i in range(stored):
            buffer[i] = abs(buffer[i])
    return stored


@helper
def _collect_listed_blocks(z, absolute, lo, buffer, marks):
    """`_collect_rare_blocks` where masks are registers."""
    places = marks[0]
    vlo, width, stored = simd.splat(lo), simd.lanes(z), 0
    signs = simd.signs(vlo, absolute)
    for begin in range(0, z.size, LISTED * width):
        part, found = z[begin : min(begin + LISTED * width, z.size)], np.uint64(0)
        for i in range(0, part.size, width):
            places[found] = np.uint64(i)
            a = simd.without(simd.load(part, i), signs)
            found += simd.one_if_any(simd.not_below(a, vlo))
        for k in range(found):
            a = simd.without(simd.load(part, np.int64(places[k])), signs)
            inside = simd.not_below(a, vlo)
            simd.compress(a, inside, buffer, stored)
            stored += simd.count(inside)
    return stored


if simd.COMPRESS:
    _blocks = _table_blocks if simd.TABLE else _band_blocks

    @helper
    def _rest(z, absolute, anchor, lo, hi, buffer, nu, s, q, stored):
        """Add what is left of the slice, less than 64 entries, register by register."""
        vlo, vhi, vanchor = simd.splat(lo), simd.splat(hi), simd.splat(anchor)
        firsts = seconds = simd.splat(lo - lo)
        for i in range(0, z.size, simd.lanes(z)):
            valid = simd.first_lanes(vlo, z.size - i)
            a = simd.load_part(z, i, valid)
            if absolute:
                a = simd.magnitude(a)
            high = simd.both(simd.above(a, vhi), valid)
            inside = simd.differ(simd.both(simd.not_below(a, vlo), valid), high)
            firsts, seconds = add_inside(high, simd.sub(a, vanchor), firsts, seconds)
            nu += simd.count(high)
            simd.compress_part(a, inside, buffer, stored)
            stored += simd.count(inside)
        return nu, s + simd.total(firsts), q + simd.total(seconds), stored

    @kernel
    def band(z, absolute, anchor, lo, hi, buffer):
        """`band_plain`, in registers where the machine can compress them."""
        inlined()
        whole = z.size // group(z) * group(z)
        nu, s, q, stored = 0.0, 0.0, 0.0, 0
        if hi == math.inf:
            stored = collect_blocks(z[:whole], absolute, lo, buffer)
        elif whole > 0:
            nu, s, q, stored = _blocks(z[:whole], absolute, anchor, lo, hi, buffer)
        return _rest(z[whole:], absolute, anchor, lo, hi, buffer, nu, s, q, stored)

else:

    @helper
    def _rest(z, absolute, anchor, lo, hi, buffer, nu, s, q, stored):
        """Add what is left of the slice."""
        nu1, s1, q1, more = band_plain(z, absolute, np.float64(anchor), lo, hi, buffer[stored:])
        return nu + nu1, s + s1, q + q1, stored + more

    @kernel
    def band(z, absolute, anchor, lo, hi, buffer):
        """`band_plain`: this machine has no vector compression."""
        inlined()
        return band_plain(z, absolute, np.float64(anchor), lo, hi, buffer)


if simd.PLAIN:

    @kernel
    def band_rare(z, absolute, anchor, lo, hi, buffer, marks):
        """`band_plain`, as the environment wants it."""
        inlined()
        return band_plain(z, absolute, np.float64(anchor), lo, hi, buffer)

else:
    _few_blocks = _listed_blocks if simd.TABLE else _rare_blocks
    _collect_few_blocks = _collect_listed_blocks if simd.TABLE else _collect_rare_blocks

    @kernel
    def band_rare(z, absolute, anchor, lo, hi, buffer, marks):
        """`band` where few entries lie inside; `marks` is scratch, see `marks_for`.

        `buffer` must not be `z`.
        """
        inlined()
        whole = z.size // 64 * 64  # a word of marks is 64 entries
        nu, s, q, stored = 0.0, 0.0, 0.0, 0
        if hi == math.inf:
            stored = _collect_few_blocks(z[:whole], absolute, lo, buffer, marks)
        else:
            nu, s, q, stored = _few_blocks(z[:whole], absolute, anchor, lo, hi, buffer, marks)
        return _rest(z[whole:], absolute, anchor, lo, hi, buffer, nu, s, q, stored)


@kernel
def marks_for(n):
    """Scratch for `band_rare` on at most n entries."""
    return np.empty((3, max(n // 64, LISTED // 2)), np.uint64)


@helper
def group(z):
    """How many entries of z share a word in `collect_few`: those of four registers."""
    inlined()
    return 4 * simd.lanes(z)


@helper
def _word_above(z, i, signs, lo):
    """A bit for each entry of a group, set where it lies above lo."""
    inlined()
    a0, a1, a2, a3 = _four(z, i, signs)
    return simd.word(
        simd.not_below(a0, lo), simd.not_below(a1, lo),
        simd.not_below(a2, lo), simd.not_below(a3, lo),
    )  # fmt: skip


@helper
def collect_few(z, absolute, ahead, lo, buffer, few, out):
    """Entries above lo go to `buffer`, and with their signs to `out`, which is zero elsewhere.

    Of the last entries, less than a `group`, `out` is left alone.  `few` takes the words that have
    a bit set, and where their entries begin.  With `ahead` the data are fetched before they
    are read.  Returns how many words these are, and how many entries were stored, or −1 where the
    buffer is too short.
    """
    inlined()
    none, one = np.uint64(0), np.uint64(1)
    vlo, found, stored = simd.splat(lo), 0, 0
    signs = simd.signs(vlo, absolute)
    whole = z.size // group(z) * group(z)
    for begin in range(0, whole, NEAR):
        end = min(begin + NEAR, whole)
        out[begin:end] = 0.0
        for i in range(begin, end, group(z)):
            if ahead:  # a mispredicted branch stops what fetches by itself
                for k in range(0, group(z), simd.LINE // z.itemsize):
                    simd.fetch(z, i + NEAR + k)
            word = _word_above(z, i, signs, vlo)
            if word == none:
                continue
            if stored + group(z) > buffer.size:
                return found, -1
            few[0, found], few[1, found] = word, np.uint64(i)
            found += 1
            first, place, stored = word, stored, stored + simd.ones(word)
            for k in range(2):  # two without asking: where there is one, the same again
                j = i + simd.lowest(word)
                buffer[place + k], out[j] = z[j], z[j]
                word &= word - one
                word = word if word != none else first
            place += 2
            while place < stored:
                j = i + simd.lowest(word)
                buffer[place], out[j] = z[j], z[j]
                place += 1
                word &= word - one
    if stored + group(z) > buffer.size:
        return found, -1
    for i in range(whole, z.size):
        buffer[stored] = z[i]
        stored += not (abs(z[i]) if absolute else z[i]) <= lo
    if absolute:
        for i in range(stored):
            buffer[i] = abs(buffer[i])
    return found, stored


@helper
def soft(v, signs, anchor, offset, dust, factor):
    """One register of `write_soft`."""
    inlined()
    d = simd.sub(simd.sub(simd.without(v, signs), anchor), offset)
    scaled = simd.multiply(d, factor)  # where it is kept, it has no sign
    return simd.where(simd.above(d, dust), simd.signed_like(scaled, v, signs), simd.nothing(dust))


@kernel
def beyond_caches(x, out):
    """Whether to write a result of x past the caches: what is overwritten is not read first.

    Not in place, where it has been read; and only where entries do not straddle cache lines.
    """
    place = simd.address(out)
    return 2 * x.size * x.itemsize >= FAR and place != simd.address(x) and place % x.itemsize == 0


@helper
def to_line(out, at):
    """Number of entries from ``out[at]`` on before the next cache line begins."""
    return -(simd.address(out) + at * out.itemsize) % simd.LINE // out.itemsize


@helper
def write_soft(z, absolute, anchor, offset, dust, factor, out):
    """out = sign(z)·factor·d where d = (a − anchor) − offset exceeds dust, else 0.

    `out` may be `z`.
    """
    width = simd.lanes(z)
    anchor, offset = simd.splat(anchor), simd.splat(offset)
    dust, factor = simd.splat(dust), simd.splat(factor)
    signs = simd.signs(dust, absolute)
    aligned = z.size * z.itemsize >= ALIGNED_FROM
    begin = min(to_line(out, 0), z.size) if aligned else 0
    if begin > 0:
        valid = simd.first_lanes(anchor, begin)
        v = simd.load_part(z, 0, valid)
        simd.store_part(soft(v, signs, anchor, offset, dust, factor), valid, out, 0)
    whole = begin + (z.size - begin) // width * width
    if simd.NATIVE and aligned and to_line(z, begin) > 0:
        # Now out begins at a cache line, and z does not: it is read by lines all the same.
        ahead = to_line(z, begin)
        places = simd.places_from(z, width - ahead)
        simd.store(soft(simd.load(z, begin), signs, anchor, offset, dust, factor), out, begin)
        line = simd.load(z, begin + ahead)
        begin += width
        while begin < whole - width:
            following = simd.load(z, begin + ahead)
            v = simd.joined(line, following, places)
            simd.store(soft(v, signs, anchor, offset, dust, factor), out, begin)
            line = following
            begin += width
    for i in range(begin, whole, width):
        simd.store(soft(simd.load(z, i), signs, anchor, offset, dust, factor), out, i)
    if whole < z.size:
        valid = simd.first_lanes(anchor, z.size - whole)
        v = simd.load_part(z, whole, valid)
        simd.store_part(soft(v, signs, anchor, offset, dust, factor), valid, out, whole)


@helper
def write_soft_past(z, absolute, anchor, offset, dust, factor, out):
    """`write_soft`, past the caches; `out` is not `z`."""
    width = simd.lanes(z)
    begin = min(to_line(out, 0), z.size)
    whole = begin + (z.size - begin) // width * width
    write_soft(z[:begin], absolute, anchor, offset, dust, factor, out[:begin])
    write_soft(z[whole:], absolute, anchor, offset, dust, factor, out[whole:])
    anchor, offset = simd.splat(anchor), simd.splat(offset)
    dust, factor = simd.splat(dust), simd.splat(factor)
    signs = simd.signs(dust, absolute)
    for end in range(whole, begin, -BACK):
        for i in range(max(end - BACK, begin), end, width):
            simd.stream(soft(simd.load(z, i), signs, anchor, offset, dust, factor), out, i)


@helper
def _shrink(value, absolute, anchor, offset, dust, factor):
    """One entry of `write_soft`."""
    inlined()
    d = ((abs(value) if absolute else value) - anchor) - offset
    scaled = d * factor
    if absolute:
        scaled = math.copysign(scaled, value)
    return scaled if d > dust else dust - dust


@helper
def write_few(z, absolute, anchor, offset, dust, factor, few, found, out):
    """`write_soft` after `collect_few`: only what that found in z and put into out."""
    none, one = np.uint64(0), np.uint64(1)
    for j in range(found):
        first, begin = few[0, j], np.int64(few[1, j])
        i0 = begin + simd.lowest(first)
        word = first & (first - one)
        i1 = begin + simd.lowest(word) if word != none else i0
        v0, v1 = out[i0], out[i1]
        out[i0] = _shrink(v0, absolute, anchor, offset, dust, factor)
        out[i1] = _shrink(v1, absolute, anchor, offset, dust, factor)
        word &= word - one
        while word != none:
            i = begin + simd.lowest(word)
            out[i] = _shrink(out[i], absolute, anchor, offset, dust, factor)
            word &= word - one
    whole = z.size // group(z) * group(z)
    write_soft(z[whole:], absolute, anchor, offset, dust, factor, out[whole:])


@helper
def write_tied(z, absolute, top, k, b, factor, out):
    """The first k entries that equal `top`, the largest, become factor·(1, …, 1, b), others zero.

    With the signs of z where `absolute`.  `out` may be `z`.
    """
    real = z.dtype.type
    last, seen = real(factor * b), 0
    factor, top = real(factor), real(top)
    ones, tops, zero = simd.splat(factor), simd.splat(top), simd.splat(real(0.0))
    signs, width = simd.signs(zero, absolute), simd.lanes(z)
    whole = z.size // width * width
    for i in range(0, z.size, width):
        one_by_one = i == whole
        if not one_by_one:
            v = simd.load(z, i)
            hit = simd.not_less(simd.without(v, signs), tops)
            found = simd.count(hit)
            one_by_one = seen < k <= seen + found  # the k-th is one of these
            if not one_by_one:
                value = simd.signed_like(ones, v, signs)
                simd.store(simd.where(hit, value, zero) if seen < k else zero, out, i)
                seen += found
        if one_by_one:
            for j in range(i, min(i + width, z.size)):
                value, result = z[j], real(0.0)
                if (abs(value) if absolute else value) == top:
                    seen += 1
                    if seen <= k:
                        result = last if seen == k else factor
                        result = math.copysign(result, value) if absolute else result
                out[j] = result


@helper
def write_flat(z, absolute, value, out):
    """Every entry `value`, with the signs of z where `absolute`."""
    for i in range(z.size):
        out[i] = math.copysign(value, z[i]) if absolute else value


@helper
def write_copy(z, absolute, out):
    """Out = z, or max(z, 0) where the result is nonnegative."""
    zero = z.dtype.type(0)
    for i in range(z.size):
        value = z[i]
        out[i] = value if absolute or value > zero else zero
