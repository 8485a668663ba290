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
from .._jit import helper, kernel
from . import groups, lists, passes, simd
from .apart import address_of, taker
from .arrays import NO, PASSES, REACHED, STATUS, THRESHOLD, WANTED, YES
from .waiting import split_at

TOTALS, COUNTS, EXCESS, TOPS, UNDER, OVER, BOUNDS, FIELDS = range(8)  # what is known of each group
UNIT_OF_SUMS = 2.0**m.SUMS_EXPONENT


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
def start(values, starts, state, first, last):
    """State of the groups first..last−1 at u = 0, and their largest entries."""
    for j in range(first, last):
        own = values[starts[j] : starts[j + 1]]
        nu, s, _ = passes.sums(own, YES, 0.0, 0.0)
        state[TOTALS, j], state[COUNTS, j], state[EXCESS, j], state[BOUNDS, j] = s, nu, s, 0.0
        state[UNDER, j] = state[OVER, j] = 0.0  # unknown: the first step reads the group
        state[TOPS, j] = max(passes.largest(own, YES), 0.0)


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
    places, matrices, kind, height, width, labels, starts, listed, state, tol, most, out, radii,
    info, workers, desks,
):  # fmt: skip
    """Project matrices onto the ball; of those that are not finite, only the status is told.

    For the `places` see `addresses`, for `starts` and the places `listed` `lists`; `state` has
    `FIELDS` rows, and ``info[:, WANTED]`` brings in the radii.  The rows of `radii` take the bounds
    if they have room.  `most`: rounds, at most.  For the workers and their desks see
    `waiting.split_at`.
    """
    number, bounds = state.shape[1], state[BOUNDS]
    for b in range(len(matrices)):
        x, about = matrices[b], info[b]
        radius, unit, values = about[WANTED], 1.0, x.reshape(-1)
        if not lists.lie_in_order(kind, height, width, x.shape[1]):
            values = np.empty(x.size, x.dtype)
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
