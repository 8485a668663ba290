"""The published algorithms: Condat's, sorting, and the two iterative methods.

They are what the engine is compared with; each takes one slice after the other.
"""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import engine, passes
from .arrays import NO, NORM, PASSES, REACHED, REST, STATUS, THRESHOLD, WANTED, YES


@helper
def condat_threshold(a, count, radius, heap):
    """Condat's algorithm on a[:count]: τ with Σ max(a − τ, 0) = radius > 0.

    `heap` (count entries, not `a`) holds the candidates: set aside before `first`,
    current from `first` to `end`.
    """
    first, end = 0, 1
    heap[0] = a[0]
    rho = np.float64(a[0]) - radius
    for i in range(1, count):
        value = np.float64(a[i])
        if value > rho:
            rho += (value - rho) / (end - first + 1)
            if rho <= value - radius:
                first = end
                rho = value - radius
            heap[end] = a[i]
            end += 1
    # Those set aside get a second chance, from last to first; the current ones follow.
    size = end - first
    aside = first
    for i in range(aside - 1, -1, -1):
        value = np.float64(heap[i])
        if value > rho:
            first -= 1
            heap[i], heap[first] = heap[first], heap[i]
            size += 1
            rho += (value - rho) / size
    live = heap[first:end]
    changed = True
    while changed:
        kept = 0
        size = live.size
        for i in range(live.size):
            value = np.float64(live[i])
            if value <= rho and size > 1:
                size -= 1
                rho += (rho - value) / size
            else:
                live[kept] = live[i]
                kept += 1
        changed = kept < live.size
        live = live[:kept]
    return _mended(a[:count], radius, rho)


@helper
def _mended(a, radius, rho):
    """τ near ρ: sums over many entries lose digits, and with them maybe entries next to it.

    By Newton's method from safely left of ρ, whose sums relative to that have all digits.
    """
    offset, size = -a.size * 2.0**-52 * (abs(rho) + radius), 0.0
    for _ in range(m.NEWTON_PASSES):
        before = size
        size, total, _ = passes.sums(a, NO, rho, offset)
        if size == before:
            break
        offset = m.newton_offset(m.L1, radius, size, total, 0.0)
    return rho, offset


@helper
def sorted_threshold(a, radius):
    """τ with Σ max(a − τ, 0) = radius > 0, for a in ascending order."""
    n = a.size
    total, size = 0.0, 1
    top = np.float64(a[n - 1])
    for k in range(1, n + 1):
        value = np.float64(a[n - k]) - top
        if k > 1 and (total + value - radius) / k >= value:
            break
        total += value
        size = k
    return _mended(a, radius, top + (total - radius) / size)


@helper
def _values(z, absolute, a):
    for i in range(z.size):
        a[i] = abs(z[i]) if absolute else z[i]


@helper
def _report(row, status, threshold, reached, rounds):
    """Fill in a row of the table."""
    row[STATUS], row[THRESHOLD], row[REACHED], row[PASSES] = status, threshold, reached, rounds


@kernel
def ball_rows(kind, absolute, tol, by_sorting, x, ordered, out, table, first, last):
    """Project rows onto the l1 ball or the simplex; `ordered` holds a, sorted, or scratch."""
    heap = np.empty(x.shape[1], x.dtype)
    real = x.dtype.type
    for r in range(first, last):
        z, a, radius = x[r], ordered[r], table[r, WANTED]
        if not passes.all_finite(z):
            table[r, STATUS] = m.NONFINITE
            out[r, :] = math.nan
            continue
        _, s, _ = passes.sums(z, absolute, 0.0, 0.0 if kind == m.L1 else -math.inf)
        feasible = s <= radius * (1.0 + tol)
        if kind == m.SIMPLEX:
            feasible = m.equality_holds(kind, radius, 0.0, tol, s, 0.0) and passes.nonnegative(z)
        table[r, PASSES] = 1
        if feasible:
            table[r, STATUS], table[r, THRESHOLD], table[r, REACHED] = m.FEASIBLE, 0.0, s
            passes.write_copy(z, absolute, out[r])
            continue
        table[r, STATUS], table[r, REACHED] = m.SOFT, radius
        if radius == 0.0:
            table[r, THRESHOLD] = passes.largest(z, absolute)
            out[r, :] = 0.0
            continue
        if by_sorting:
            anchor, offset = sorted_threshold(a, radius)
        else:
            _values(z, absolute, a)
            anchor, offset = condat_threshold(a, a.size, radius, heap)
        # Where results may be subnormal, they have fewer digits than the mean needs.
        if radius < max(passes.TINY * abs(anchor), 1e-290 if x.itemsize == 8 else 1e-35):
            anchor, offset, _, _ = passes.near_top(z, absolute, radius)
        table[r, THRESHOLD] = anchor + offset
        if not math.isfinite(anchor + offset):  # sums beyond the largest float
            table[r, STATUS] = m.CAPPED
        near = real(anchor)
        rest = (anchor - np.float64(near)) + offset
        passes.write_soft(z, absolute, near, real(rest), real(0.0), real(1.0), out[r])


@helper
def _spread(a):
    """Number, mean, Σ(a − mean)², smallest and largest of the positive entries."""
    nu, total, lost, low, high = 0, 0.0, 0.0, math.inf, 0.0
    for begin in range(0, a.size, passes.RUN):
        part = 0.0
        for i in range(begin, min(begin + passes.RUN, a.size)):
            if a[i] > 0.0:
                nu += 1
                part += a[i]
                low, high = min(low, a[i]), max(high, a[i])
        total, lost = passes.add_exactly(total, lost, part)
    mean = (total + lost) / max(nu, 1)
    squares, lost = 0.0, 0.0
    for begin in range(0, a.size, passes.RUN):
        part = 0.0
        for i in range(begin, min(begin + passes.RUN, a.size)):
            if a[i] > 0.0:
                part += (a[i] - mean) ** 2
        squares, lost = passes.add_exactly(squares, lost, part)
    return nu, mean, squares + lost, low, high


@helper
def _unit_values(z, absolute, top, a):
    """a divided by the power of two above its largest entry `top`; returns the exponent."""
    exponent = int(math.frexp(max(top, 0.0))[1])
    passes.write_in_unit(z, -exponent, a)
    if absolute:
        for i in range(a.size):
            a[i] = abs(a[i])
    return exponent


@helper
def _exact(kind, level, threshold, a):
    """The verdict from near the threshold: rounds lose digits, and maybe entries next to it."""
    lo = 0.0 if kind == m.CAI else -math.inf
    st = m.State(m.GO, threshold, 0.0, lo, math.inf, -1.0, 0, False, True, 0, 0.0, 0.0)
    while st.status == m.GO:
        nu, s, q = passes.sums(a, NO, st.anchor, st.offset)
        st = m.advance(kind, level, 0.0, st, nu, s, q)
    return st


@helper
def _capped(status, st):
    """The status to report: the rounds' own, or that the steps after them hit their cap."""
    return m.CAPPED if st.status == m.CAPPED else status


@helper
def _finish(z, absolute, a, st, factor, unit, exponent, out):
    """Write ``unit·2^exponent·(factor·max(a − τ, 0))`` with the signs of z."""
    dust = m.dust(st)
    for i in range(z.size):
        d = (a[i] - st.anchor) - st.offset
        value = math.ldexp(unit * (factor * d), exponent) if d > dust else 0.0
        out[i] = math.copysign(value, z[i]) if absolute and value > 0.0 else value


@helper
def _finish_tied(kind, level, rest, z, absolute, l2, out):
    """No threshold exists: the profile of the ties at the top."""
    top = passes.largest(z, absolute)
    k, b = m.tied_profile(level, rest)
    passes.write_tied(z, absolute, top, k, b, m.tied_scale(kind, k, b, top, l2), out)
    return top


@kernel
def iterative_rows(absolute, tol, x, out, table, first, last):
    """Algorithm 1 of the CAI paper: interpolate towards the axis, clip, repeat."""
    a = np.empty(x.shape[1])
    for r in range(first, last):
        z, level = x[r], table[r, WANTED]
        if not passes.all_finite(z):
            table[r, STATUS] = m.NONFINITE
            out[r, :] = math.nan
            continue
        top = passes.largest(z, absolute)
        exponent = _unit_values(z, absolute, top, a)
        slope, shift = 1.0, 0.0  # on the support the iterate is slope·a + shift
        status = m.CAPPED
        rounds = 0
        slack = tol
        score = 0.0
        while rounds < m.ROUNDS:
            rounds += 1
            nu, mean, squares, low, high = _spread(a)
            score = m.spread_score(nu, mean, squares)
            if score <= level * (1.0 + slack):
                status = m.SOFT if rounds > 1 else m.FEASIBLE
                break
            if low == high:
                status = m.TIED
                break
            slack = m.ROUND_TOLERANCE
            factor = m.interpolation(level, nu, mean, squares)
            move = (1.0 - factor) * mean
            slope, shift = factor * slope, factor * shift + move
            for i in range(a.size):
                a[i] = max(factor * a[i] + move, 0.0) if a[i] > 0.0 else 0.0
        threshold = 0.0
        if status == m.FEASIBLE:
            passes.write_copy(z, absolute, out[r])
        else:
            _unit_values(z, absolute, top, a)
            st = _exact(m.CAI, level, -shift / slope, a)
            status = _capped(status, st)
            if st.status == m.TIED:
                threshold = _finish_tied(m.CAI, level, 0.0, z, absolute, 0.0, out[r])
            else:
                threshold = math.ldexp(st.anchor + st.offset, exponent)
                _finish(z, absolute, a, st, m.scale(m.CAI, st, 0.0), 1.0, exponent, out[r])
            score = level
        _report(table[r], status, threshold, score, rounds)


@kernel
def alternating_rows(absolute, tol, x, out, table, first, last):
    """Hoyer's alternating projections, with Condat's exact simplex projection inside.

    In units where L2 = 1 and L1 = √level: project onto the hyperplane Σs = L1 and, in it,
    onto the sphere; where entries turn negative, onto the simplex, which drops some, and
    again on the rest.
    """
    n = x.shape[1]
    a, packed, heap = np.empty(n), np.empty(n), np.empty(n)
    for r in range(first, last):
        z, level, rest, l2 = x[r], table[r, WANTED], table[r, REST], table[r, NORM]
        if not passes.all_finite(z):
            table[r, STATUS] = m.NONFINITE
            out[r, :] = math.nan
            continue
        exponent = _unit_values(z, absolute, passes.largest(z, YES), a)
        _, s, q = passes.sums(a, NO, 0.0, -math.inf)
        if l2 < 0.0:
            l2 = math.ldexp(math.sqrt(q), exponent)
        total = math.sqrt(level)
        unit_l2 = math.ldexp(l2, -exponent)
        if m.equality_holds(m.HOYER, level, unit_l2, tol, s, q) and passes.nonnegative(a):
            passes.write_copy(z, absolute, out[r])
            _report(table[r], m.FEASIBLE, 0.0, level, 1)
            continue
        count = n
        for i in range(n):
            packed[i] = a[i]
        slope, shift = 1.0, 0.0
        status = m.CAPPED
        rounds = 0
        while rounds < m.ROUNDS:
            rounds += 1
            low, high, mean = math.inf, -math.inf, 0.0
            for i in range(count):
                low, high = min(low, packed[i]), max(high, packed[i])
                mean += packed[i]
            mean /= count
            if level >= count:  # only the constant vector is left
                status = m.FLAT if count == n else m.TIED
                break
            if low == high:
                status = m.TIED
                break
            squares = 0.0
            for i in range(count):
                squares += (packed[i] - mean) ** 2
            factor = math.sqrt((count - level - rest) / count / squares)
            move = total / count - factor * mean
            slope, shift = factor * slope, factor * shift + move
            negative = False
            for i in range(count):
                packed[i] = factor * packed[i] + move
                negative |= packed[i] < 0.0
            if not negative:
                status = m.SOFT
                break
            near, off = condat_threshold(packed, count, total, heap)
            shift -= near + off
            kept = 0
            for i in range(count):
                value = (packed[i] - near) - off
                if value > 0.0:
                    packed[kept] = value
                    kept += 1
            if kept == count:  # rounding: nothing left to drop
                status = m.SOFT
                break
            count = kept
        threshold = -math.inf
        if status == m.FLAT:
            passes.write_flat(z, absolute, l2 / math.sqrt(n), out[r])
        else:
            st = _exact(m.HOYER, level, -shift / slope, a)
            st = engine.refine(st, NO, level, rest, a)
            status = _capped(status, st)
            if st.status == m.TIED:
                threshold = _finish_tied(m.HOYER, level, rest, z, absolute, l2, out[r])
            else:
                threshold = math.ldexp(st.anchor + st.offset, exponent)
                _finish(z, absolute, a, st, m.scale(m.HOYER, st, 1.0), l2, 0, out[r])
        _report(table[r], status, threshold, level, rounds)
