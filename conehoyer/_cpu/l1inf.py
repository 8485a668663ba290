"""The exact projection onto the ℓ1,∞ ball: one bound u_j a group, one multiplier θ.

At the solution Σ_i max(a_ij − u_j, 0) = θ in each group that is kept, Σ_i a_ij ≤ θ in
each that is not, and Σ_j u_j = radius.  As functions of θ the u_j are convex and
piecewise linear, so that tangents lie below them: with the count ν_j and the excess S_j
above the current u_j, the θ that solves Σ_j max(u_j + (S_j − θ)/ν_j, 0) = radius never
passes the solution, nor does a Newton step on u_j.  Each round sets these tangents anew;
a tangent is the function itself up to the entries next to u_j, so a group is read again
only when its bound leaves the gap between them.
"""

import math

from .. import _math as m
from .._jit import helper, kernel
from . import passes, simd


@helper
def _above(z, anchor):
    """Count and Σ(a − anchor) over the a = |z| > anchor; the entries next to it on both sides."""
    far, zero, one = simd.splat_wide(anchor), simd.splat_wide(0.0), simd.splat_wide(1.0)
    nothing = simd.splat_wide(math.inf)
    under, over = zero, nothing
    nu, s = 0.0, 0.0
    whole = z.size // simd.WIDE * simd.WIDE
    for begin in range(0, whole, passes.BLOCK):
        counts, sums = zero, zero
        for i in range(begin, min(begin + passes.BLOCK, whole), simd.WIDE):
            a = simd.magnitude(simd.load_wide(z, i))
            inside = simd.above(a, far)
            counts = simd.where(inside, simd.add(counts, one), counts)
            sums = simd.where(inside, simd.add(sums, simd.sub(a, far)), sums)
            under = simd.larger(under, simd.where(inside, zero, a))
            over = simd.smaller(over, simd.where(inside, a, nothing))
        nu += simd.total(counts)
        s += simd.total(sums)
    low, high = simd.peak(under), -simd.peak(simd.sub(zero, over))
    for i in range(whole, z.size):
        a = abs(float(z[i]))
        if a > anchor:
            nu += 1.0
            s += a - anchor
            high = min(high, a)
        else:
            low = max(low, a)
    return nu, s, low, high


@kernel
def start(values, starts, totals, bounds, counts, excess, gaps, tops, first, last):
    """State of the groups first..last−1 at u = 0, and their largest entries."""
    for j in range(first, last):
        own = values[starts[j] : starts[j + 1]]
        nu, s, _ = passes.sums(own, True, 0.0, 0.0)
        totals[j], counts[j], excess[j], bounds[j] = s, nu, s, 0.0
        gaps[j] = 0.0  # unknown: the first step reads the group
        tops[j] = max(passes.largest(own, True), 0.0)


@kernel
def advance_bounds(values, starts, theta, totals, bounds, counts, excess, gaps, moved, first, last):
    """Up to two Newton steps on the bound of each of the groups first..last−1."""
    for j in range(first, last):
        moved[j] = False
        if totals[j] <= theta:
            continue
        u, nu, s, under, over = bounds[j], counts[j], excess[j], gaps[j, 0], gaps[j, 1]
        for _ in range(2):
            step = max(m.l1inf_tangent(u, nu, s, theta), 0.0)
            near = m.l1inf_rounding(u, nu, s)  # lest steps go back and forth past an entry
            if under - near <= step < over + near:
                break
            before = nu
            nu, s, under, over = _above(values[starts[j] : starts[j + 1]], step)
            u = step
            if nu == 0.0:  # rounding: beyond the largest entry
                nu, s = before, theta
                break
            moved[j] = True
        bounds[j], counts[j], excess[j], gaps[j, 0], gaps[j, 1] = u, nu, s, under, over


@kernel
def solve(radius, theta, bounds, counts, excess):
    """The θ with Σ_j max(u_j + (S_j − θ)/ν_j, 0) = radius, from the left."""
    active, repeated = -1, 0
    for _ in range(bounds.size + 4):
        total, slope, count = 0.0, 0.0, 0
        for j in range(bounds.size):
            if counts[j] > 0.0:
                u = m.l1inf_tangent(bounds[j], counts[j], excess[j], theta)
                if u > 0.0:
                    total += u
                    slope += 1.0 / counts[j]
                    count += 1
        # On the same groups the step is exact but for rounding: once more from close by.
        repeated = repeated + 1 if count == active else 0
        if slope == 0.0 or repeated == 2:
            break
        active = count
        theta = m.l1inf_next(theta, total, slope, radius, repeated > 0)
    return theta


@kernel
def finish(radius, theta, bounds, counts, excess):
    """The bounds at θ, which add up to the radius.

    θ has the digits of the sums, too few for a small radius: the rest of it is found from the
    bounds there, whose tangents remain; from where the last of them vanishes, if need be.
    """
    total, last = 0.0, -math.inf
    for j in range(bounds.size):
        if counts[j] > 0.0:
            bounds[j] = m.l1inf_tangent(bounds[j], counts[j], excess[j], theta)
            excess[j] = 0.0
            total += max(bounds[j], 0.0)
            last = max(last, counts[j] * bounds[j])
    rest = 0.0
    if abs(total - radius) > m.NEAR_RADIUS * radius:
        rest = -math.inf
        for j in range(bounds.size):
            if counts[j] > 0.0:
                bounds[j] = m.l1inf_before(bounds[j], counts[j], last)
                rest = max(rest, counts[j] * (bounds[j] - radius))  # where one is the radius
    rest = solve(radius, rest, bounds, counts, excess)
    for j in range(bounds.size):
        u = m.l1inf_tangent(bounds[j], counts[j], 0.0, rest) if counts[j] > 0.0 else 0.0
        bounds[j] = max(u, 0.0)
