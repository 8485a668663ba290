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
from functools import cache

import numba
import numpy as np
from numba.core import types

from .. import _math as m
from .._jit import helper, inlined, kernel
from . import groups, lists, passes, simd
from .apart import address_of, taker
from .arrays import NO, PASSES, REACHED, STATUS, THRESHOLD, WANTED, YES
from .waiting import split_at

TOTALS, COUNTS, EXCESS, TOPS, UNDER, OVER, BOUNDS, FIELDS = range(8)  # what is known of each group
UNIT_OF_SUMS = 2.0**m.SUMS_EXPONENT


@helper
def _rest(z, place, end):
    """|z| from `place` on, zeros from `end` on: what is left of a block, if anything."""
    inlined()
    there = simd.first_lanes(simd.splat_wide(0.0), end - place)
    return simd.magnitude(simd.widen(simd.load_part(z, place, there)))


@helper
def _join(a, counts, sums, tops):
    inlined()
    zero, one = simd.splat_wide(0.0), simd.splat_wide(1.0)
    counts = simd.where(simd.above(a, zero), simd.add(counts, one), counts)
    return counts, simd.add(sums, a), simd.where(simd.above(a, tops), a, tops)


@helper
def _whole(z):
    """Count and sum of the a = |z| > 0, and the largest; the sum of NaN is NaN."""
    zero = simd.splat_wide(0.0)
    tops, nu, s, lost = zero, 0.0, 0.0, 0.0
    for begin in range(0, z.size, passes.BLOCK):
        end = min(begin + passes.BLOCK, z.size)
        whole = end // simd.WIDE * simd.WIDE
        counts, sums = zero, zero
        for i in range(begin, whole, simd.WIDE):
            a = simd.magnitude(simd.load_wide(z, i))
            counts, sums, tops = _join(a, counts, sums, tops)
        if whole < end:
            counts, sums, tops = _join(_rest(z, whole, end), counts, sums, tops)
        nu += simd.total(counts)
        s, lost = passes.add_exactly(s, lost, simd.total(sums))
    return nu, s + lost, simd.peak(tops)


@helper
def _join_above(a, far, counts, sums, under, over):
    inlined()
    zero, one, nothing = simd.splat_wide(0.0), simd.splat_wide(1.0), simd.splat_wide(math.inf)
    inside = simd.above(a, far)
    counts = simd.where(inside, simd.add(counts, one), counts)
    sums = simd.where(inside, simd.add(sums, simd.sub(a, far)), sums)
    low, high = simd.where(inside, zero, a), simd.where(inside, a, nothing)
    return counts, sums, simd.where(simd.above(low, under), low, under), simd.smaller(high, over)


@helper
def _above(z, anchor):
    """Count and Σ(a − anchor) over the a = |z| > anchor; the entries next to it on both sides."""
    far, zero = simd.splat_wide(anchor), simd.splat_wide(0.0)
    under, over, nu, s, lost = zero, simd.splat_wide(math.inf), 0.0, 0.0, 0.0
    for begin in range(0, z.size, passes.BLOCK):
        end = min(begin + passes.BLOCK, z.size)
        whole = end // simd.WIDE * simd.WIDE
        counts, sums = zero, zero
        for i in range(begin, whole, simd.WIDE):
            a = simd.magnitude(simd.load_wide(z, i))
            counts, sums, under, over = _join_above(a, far, counts, sums, under, over)
        if whole < end:
            a = _rest(z, whole, end)
            counts, sums, under, over = _join_above(a, far, counts, sums, under, over)
        nu += simd.total(counts)
        s, lost = passes.add_exactly(s, lost, simd.total(sums))
    return nu, s + lost, simd.peak(under), -simd.peak(simd.sub(zero, over))


@kernel
def start(values, starts, state, first, last):
    """State of the groups first..last−1 at u = 0, and their largest entries."""
    for j in range(first, last):
        nu, s, top = _whole(values[starts[j] : starts[j + 1]])
        state[TOTALS, j], state[COUNTS, j], state[EXCESS, j], state[TOPS, j] = s, nu, s, top
        state[BOUNDS, j] = state[UNDER, j] = state[OVER, j] = 0.0  # the first step reads the group


@kernel
def advance_bounds(values, starts, theta, state, moved, first, last):
    """Up to two Newton steps on the bound of each of the groups first..last−1."""
    totals, bounds, counts, excess = state[TOTALS], state[BOUNDS], state[COUNTS], state[EXCESS]
    unders, overs = state[UNDER], state[OVER]
    for j in range(first, last):
        moved[j] = False
        if totals[j] <= theta:
            continue
        u, nu, s, under, over = bounds[j], counts[j], excess[j], unders[j], overs[j]
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
        bounds[j], counts[j], excess[j], unders[j], overs[j] = u, nu, s, under, over


@helper
def _sum_tangents(u, nu, s, theta, total, slope):
    """How many bounds are above 0 at θ, and what they add to Σu and Σ1/ν; lanes with ν = 0 none."""
    inlined()
    zero, one = simd.splat_wide(0.0), simd.splat_wide(1.0)
    u = m.l1inf_tangent(u, nu, s, theta)
    inside = simd.both(simd.above(nu, zero), simd.above(u, zero))
    total = simd.where(inside, simd.add(total, u), total)
    return simd.count(inside), total, simd.where(inside, simd.add(slope, one / nu), slope)


@helper
def _tangents(theta, bounds, counts, excess):
    """Σu and Σ1/ν over the groups whose bound is above 0 at θ, and their number."""
    far, zero = simd.splat_wide(theta), simd.splat_wide(0.0)
    total, slope, count = zero, zero, 0
    whole = bounds.size // simd.WIDE * simd.WIDE
    for j in range(0, whole, simd.WIDE):
        u, nu = simd.load_wide(bounds, j), simd.load_wide(counts, j)
        more, total, slope = _sum_tangents(u, nu, simd.load_wide(excess, j), far, total, slope)
        count += more
    if whole < bounds.size:
        there = simd.first_lanes(zero, bounds.size - whole)
        u, nu = simd.load_part(bounds, whole, there), simd.load_part(counts, whole, there)
        s = simd.load_part(excess, whole, there)
        more, total, slope = _sum_tangents(u, nu, s, far, total, slope)
        count += more
    return simd.total(total), simd.total(slope), count


@helper
def solve(radius, theta, bounds, counts, excess):
    """The θ with Σ_j max(u_j + (S_j − θ)/ν_j, 0) = radius, from the left."""
    active, repeated = -1, 0
    for _ in range(bounds.size + 4):
        total, slope, count = _tangents(theta, bounds, counts, excess)
        # On the same groups the step is exact but for rounding: once more from close by.
        repeated = repeated + 1 if count == active else 0
        if slope == 0.0 or repeated == 2:
            break
        active = count
        theta = m.l1inf_next(theta, total, slope, radius, repeated > 0)
    return theta


@helper
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


# --- one matrix --------------------------------------------------------------------------------


def _kinds(dtype):
    """The types of the arguments of `lists.gather`, `start` and `advance_bounds`."""
    x, flat, number = types.Array(dtype, 2, "C"), types.Array(dtype, 1, "C"), types.int64
    lie, flags = types.Array(types.intp, 1, "C"), types.Array(types.boolean, 1, "C")
    state, real = types.Array(types.float64, 2, "C"), types.float64
    return (
        (x, number, number, number, lie, lie, flat, number, number),
        (flat, lie, state, number, number),
        (flat, lie, real, state, flags, number, number),
    )


_to_gather = taker(lambda given: _kinds(given[0].dtype)[0])
_to_start = taker(lambda given: _kinds(given[0].dtype)[1])
_to_advance = taker(lambda given: _kinds(given[0].dtype)[2])


@cache
def addresses(dtype):
    """For `project`: where `lists.gather`, `start`, `advance_bounds` and `groups.apply` lie."""
    kinds = _kinds(numba.from_dtype(dtype))
    called = zip((lists.gather, start, advance_bounds), kinds, strict=True)
    apply = groups.address_of_apply(dtype, np.dtype(np.float64))
    return *(address_of(*each) for each in called), apply


@helper
def _unit(z, state):
    """Of sums that overflow or have lost bits; else 1."""
    if not math.isfinite(passes.largest(state[TOTALS], YES) * state.shape[1]):
        return UNIT_OF_SUMS
    exponent = math.frexp(passes.largest(state[TOPS], YES))[1]
    if z.itemsize == 8 and exponent < -900:
        return math.ldexp(1.0, min(-exponent, 1000))
    return 1.0


@helper
def _search(places, values, starts, radius, most, state, workers, desks):
    """The bounds of the groups, in `most` rounds; the multiplier, the rounds, and the status."""
    bounds, counts, excess = state[BOUNDS], state[COUNTS], state[EXCESS]
    theta = solve(radius, 0.0, bounds, counts, excess)
    if radius == 0.0:
        bounds[:] = 0.0
        return theta, 0, m.SOFT
    moved, rounds, status = np.empty(bounds.size, np.bool_), 0, m.CAPPED
    while rounds < most:
        taken = _to_advance((values, starts, theta, state, moved))
        split_at(places[2], taken, bounds.size, workers, desks)
        rounds += 1
        if not moved.any():  # the tangents are the functions themselves
            status = m.SOFT
            break
        theta = solve(radius, theta, bounds, counts, excess)
    finish(radius, theta, bounds, counts, excess)
    return theta, rounds, status


@kernel
def project(
    places, matrices, kind, height, width, labels, starts, listed, room, state, tol, most, out,
    radii, info, workers, desks,
):  # fmt: skip
    """Project matrices onto the ball; of those that are not finite, only the status is told.

    For the `places` see `addresses`, for `starts` and the places `listed` `lists`; `room` is for a
    matrix's entries, group by group, where they do not lie so; `state` has `FIELDS` rows, and
    ``info[:, WANTED]`` brings in the radii.  The rows of `radii` take the bounds
    if they have room.  `most`: rounds, at most.  For the workers and their desks see
    `waiting.split_at`.
    """
    number, bounds = state.shape[1], state[BOUNDS]
    for b in range(len(matrices)):
        x, about = matrices[b], info[b]
        radius, unit, values = about[WANTED], 1.0, x.reshape(-1)
        if not lists.lie_in_order(kind, height, width, x.shape[1]):
            values = room
            taken = _to_gather((x, kind, height, width, starts, listed, values))
            split_at(places[0], taken, number, workers, desks)
        split_at(places[1], _to_start((values, starts, state)), number, workers, desks)
        if not math.isfinite(passes.sums(state[TOTALS], NO, 0.0, -math.inf)[1]):
            if not passes.all_finite(values):
                about[STATUS] = m.NONFINITE
                continue
        unit = _unit(x, state)
        own = state[TOPS]
        if unit != 1.0:
            own = own.copy()  # small ones may vanish in the unit
            values, radius = values * x.dtype.type(unit), radius * unit
            split_at(places[1], _to_start((values, starts, state)), number, workers, desks)
        total = passes.sums(state[TOPS], NO, 0.0, -math.inf)[1]
        if total <= radius * (1.0 + tol):
            about[STATUS], about[THRESHOLD] = m.FEASIBLE, 0.0
            about[REACHED], about[PASSES] = total / unit, 1.0
            groups.copy(x.reshape(-1), out[b].reshape(-1))
            bounds[:] = own
        else:
            theta, rounds, status = _search(
                places, values, starts, radius, most, state, workers, desks
            )
            bounds /= unit
            about[STATUS], about[THRESHOLD], about[PASSES] = status, theta / unit, rounds
            about[REACHED] = passes.sums(bounds, NO, 0.0, -math.inf)[1]
            taken = groups.to_apply((x, kind, height, width, labels, bounds, bounds[:0], out[b]))
            split_at(places[3], taken, len(x), workers, desks)
        if radii.size:
            radii[b] = bounds
