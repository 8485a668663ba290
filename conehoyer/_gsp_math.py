"""Group sparse projection: the search for the multiplier μ that all vectors share.

Vector i has the threshold τ_i = μ·β_i.  A pass takes the sums over the supports {a > τ_i};
`advance` adds up over the vectors and chooses the next μ.  With z_i along (a_i − τ_i)₊, the
equation is Σβ_i(‖z_i‖₁ − 1) = r(1 − s).

The step is Newton's on the supports, not on the tangent: `excess_at` predicts the left side
for every μ with the supports kept as they are, and `step` solves that scalar equation.
The prediction is never above the truth.  (To the right, the entries that leave the support
would count with d < 0: less in the numerator, more in the denominator.  To the left, the
entries that are missing are smaller than Q/S, and each such entry raises S/√Q.)  So every
step lands left of μ* or on it, the supports only shrink, and once they stay the same the
step is exact.

μ and τ are sums of two floats: among nearly equal entries one float cannot hit the sparseness.

One thread does all this on the CPU, a block of threads on a GPU: each has its share of the
vectors, all know the sums, and all go the same way.
"""

import math
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from . import _math as m

LARGE = 300  # squares of 2^LARGE are harmless
SMALL = 64  # below 2^−SMALL is room for the lower part of a threshold, even in float32
FAR = 500  # μ beyond 2^±FAR of its unit: take another unit
HUGE = 2.0**1000
MARGIN = 1.0 - 1e-6  # what exceeds this part of τ may be collected
PATIENCE = 12  # passes, after which the goal need not be met to the last bits
SHORT = 64  # terms that are added before the exact sum, which takes eight times as long
NONE = -(1 << 20)  # the unit of nothing but zeros


class Vectors(NamedTuple):
    """What is known of each vector, in a unit of 2^exponent; the sums are those at τ."""

    size: np.ndarray
    beta: np.ndarray  # 0 for vectors that are no part of the group
    beta_low: np.ndarray
    slack: np.ndarray
    exponent: np.ndarray
    first: np.ndarray  # of its pieces; one entry more than there are vectors
    top: np.ndarray
    ties: np.ndarray  # entries that equal the top; 0 where not counted yet
    ask: np.ndarray  # whether they are to be counted now
    tau: np.ndarray
    tau_low: np.ndarray
    nu: np.ndarray
    gap: np.ndarray  # mean of a − τ over the support
    var: np.ndarray  # and its variance
    rate: np.ndarray  # change of τ with μ
    jump: np.ndarray  # distance of μ to where only one of the tied entries stays; inf if none
    filled: np.ndarray  # whether μ sits on that jump


class Search(NamedTuple):
    """Where the search for μ stands; μ and its bounds are sums of two floats."""

    status: int
    mu: float
    mu_low: float
    lo: float
    lo_low: float
    hi: float
    hi_low: float
    unit: int  # μ counts in 2^unit
    on_jump: bool
    share: float  # of the jump, that is used
    mean: float  # of 1 − sparseness, reached
    passes: int
    certain: bool  # μ is not right of the solution: entries below τ may be forgotten


@register_jitable
def out_of_range(top):
    """Whether squares of entries up to this size may overflow, or what τ is made of underflow."""
    return top != 0.0 and not math.ldexp(1.0, -SMALL) < top < math.ldexp(1.0, LARGE)


@register_jitable
def set_sums(v, i, nu, s, q):
    """Enter the sums of a − τ, without the lower part of τ, over the support of vector i."""
    gap, var = 0.0, 0.0
    if nu > 0.0:
        mean = s / nu
        gap, var = mean - v.tau_low[i], max(q / nu - mean * mean, 0.0)
    v.nu[i], v.gap[i], v.var[i] = nu, gap, var


@register_jitable
def write_factor(tau, gap, var):
    """What the gaps to τ are multiplied by: 1 + τ·S/Q."""
    return 1.0 + tau * (gap / (var + gap * gap))


@register_jitable
def write_dust(gap):
    """Gaps to τ up to this size are rounding."""
    return 2.0**-48 * gap


@register_jitable
def level_of_ties(st, v, i):
    """The CAI level of a vector of which at most the tied entries stay."""
    if not v.filled[i]:
        return 1.0
    if st.share == 1.0:
        return v.ties[i]
    ratio = 1.0 + st.share * (math.sqrt(v.ties[i]) - 1.0)
    return min(ratio * ratio, v.ties[i])


@register_jitable
def place_jump(v, i):
    """Find out whether the support of vector i is the tied entries; bound the rounding if not.

    A variance that drowns in rounding is taken too large by that: then the prediction is too
    low and the step too short, but never too long.
    """
    v.jump[i] = math.inf
    if v.nu[i] > 1.0:
        if v.nu[i] == v.ties[i]:
            v.var[i] = 0.0
            v.gap[i] = (v.top[i] - v.tau[i]) - v.tau_low[i]
            v.jump[i] = v.gap[i] / v.rate[i]
        elif v.var[i] < 2.0**-20 * v.gap[i] * v.gap[i]:
            v.var[i] += 2.0**-49 * v.gap[i] * v.gap[i]


@register_jitable
def set_rate(v, i, unit):
    """What a step of μ means for τ_i.

    Vectors so small that all of them ends at μ < 2^−FAR count as a little larger, but still
    as that small.
    """
    v.rate[i] = min(math.ldexp(v.beta[i], unit - int(v.exponent[i])), 2.0**600 * v.top[i])


@register_jitable
def set_threshold(v, i, mu, mu_low, unit):
    """τ_i = μ·β_i; beyond everything where μ sits on the vector's jump."""
    tau, low = m.gsp_threshold(mu, mu_low, v.beta[i], v.beta_low[i])
    shift = unit - int(v.exponent[i])
    v.tau[i], v.tau_low[i] = math.ldexp(tau, shift), math.ldexp(low, shift)
    if v.filled[i]:
        v.tau[i], v.tau_low[i] = math.inf, 0.0


@register_jitable
def finish(st, status, share, mean):
    """The verdict at the state's μ."""
    return Search(
        status, st.mu, st.mu_low, st.lo, st.lo_low, st.hi, st.hi_low, st.unit, st.on_jump,
        share, mean, st.passes + 1, st.certain,
    )  # fmt: skip


@register_jitable
def with_bound(st, left):
    """The state with μ as a bound: from below if it is left of the solution."""
    lo, lo_low, hi, hi_low = st.lo, st.lo_low, st.hi, st.hi_low
    if left:
        lo, lo_low = st.mu, st.mu_low
    else:
        hi, hi_low = st.mu, st.mu_low
    return Search(
        st.status, st.mu, st.mu_low, lo, lo_low, hi, hi_low, st.unit, st.on_jump, st.share,
        st.mean, st.passes, st.certain,
    )  # fmt: skip


@register_jitable
def in_unit(st, shift):
    """The state with μ counted in another unit: smaller by 2^shift."""
    return Search(
        st.status, math.ldexp(st.mu, shift), math.ldexp(st.mu_low, shift),
        math.ldexp(st.lo, shift), math.ldexp(st.lo_low, shift),
        math.ldexp(st.hi, shift), math.ldexp(st.hi_low, shift),
        st.unit - shift, st.on_jump, st.share, st.mean, st.passes, st.certain,
    )  # fmt: skip


def steps(own, add, add_exactly, largest, some_jump):
    """Return `start`, `one_each` and `advance` for a team of threads.

    The functions say what the team is: which vectors are this thread's, and the sums and
    the maximum over the threads.  The first argument of all is the memory they share.
    """

    @register_jitable
    def deficits(room, v):
        """Σβ(‖z‖₁ − 1), Σβ‖z‖₁, what the jump at μ would add to both, and Σ slack·β‖z‖₁."""
        total, low, size, jump, slack = 0.0, 0.0, 0.0, 0.0, 0.0
        first, stride = own(room)
        for i in range(first, v.size.size, stride):
            beta = v.beta[i]
            ratio, _ = m.gsp_ratio(v.nu[i], v.gap[i], v.var[i])
            total, rest = m.two_sum(total, beta * (ratio - 1.0))
            low += rest
            size += beta * ratio
            slack += v.slack[i] * beta * ratio
            if v.filled[i]:
                jump += beta * (math.sqrt(v.ties[i]) - 1.0)
        total, low = add_exactly(room, total, low)
        size, jump, slack = add(room, size, jump, slack)
        return total + low, size, jump, slack

    @register_jitable
    def excess_at(room, v, goal, delta, before):
        """Predicted Σβ(‖z‖₁ − 1) − goal at μ + delta, and its derivative.

        A jump at that very place counts as done unless `before`.
        """
        first, stride = own(room)
        total, low, slope = -goal if first == 0 else 0.0, 0.0, 0.0
        span = SHORT * stride
        for begin in range(first, v.size.size, span):
            block = 0.0
            for i in range(begin, min(begin + span, v.size.size), stride):
                ratio, change = m.gsp_ratio(v.nu[i], v.gap[i] - delta * v.rate[i], v.var[i])
                if v.jump[i] < math.inf:
                    ahead = delta < v.jump[i] or (before and delta == v.jump[i])
                    ratio = math.sqrt(v.nu[i]) if ahead else 1.0
                block += v.beta[i] * (ratio - 1.0)
                slope += v.beta[i] * v.rate[i] * change
            total, rest = m.two_sum(total, block)
            low += rest
        total, low = add_exactly(room, total, low)
        slope, _, _ = add(room, slope, 0.0, 0.0)
        return total + low, slope

    @register_jitable
    def step(room, v, goal, a, b):
        """The delta in [a, b] where the prediction meets the goal, and whether it jumps there.

        NaN where it does not, because it lies below the goal already at a.
        """
        low, high, found = a, m.next_above(b), False
        while True:
            jump = some_jump(room, v.jump, low, high)
            if jump != jump:
                break
            if excess_at(room, v, goal, jump, False)[0] >= 0.0:
                low = jump
            else:
                high, found = jump, True
        if found:
            if excess_at(room, v, goal, high, True)[0] >= 0.0:
                return high, True
            b = high
        a = low
        x = a
        for turn in range(100):
            excess, slope = excess_at(room, v, goal, x, False)
            if excess >= 0.0:
                a = x
            elif x == a:
                return math.nan, False
            else:
                b = x
            if excess == 0.0:
                break
            trial = x - excess / slope if slope < 0.0 else math.nan
            if abs(trial - x) <= 2.0**-53 * abs(x):
                break
            if not a < trial < b:
                end = min(b, HUGE)
                trial = m.midpoint(a, end) if turn % 2 else 0.5 * (a + end)
                if not a < trial < b:
                    break
            x = trial
        return x, False

    @register_jitable
    def start(room, v):
        """The state before the first pass, at μ = 0."""
        first, stride = own(room)
        exponent = float(NONE)
        for i in range(first, v.size.size, stride):
            if v.top[i] > 0.0 and v.beta[i] > 0.0:
                exponent = max(exponent, float(int(math.frexp(v.top[i])[1]) + v.exponent[i]))
        unit = int(largest(room, exponent))
        if unit == NONE:
            unit = 0
        hi = 0.0
        for i in range(first, v.size.size, stride):
            if v.beta[i] > 0.0:
                hi = max(hi, math.ldexp(v.top[i], int(v.exponent[i]) - unit) / v.beta[i])
        hi = largest(room, hi) * (1.0 + 2.0**-50)
        return Search(m.GO, 0.0, 0.0, 0.0, 0.0, hi, 0.0, unit, False, 0.0, 0.0, 0, False)

    @register_jitable
    def one_each(room, v, st):
        """The verdict for sparseness 1: past every jump, unless each vector has one entry."""
        first, stride = own(room)
        most = 0.0
        for i in range(first, v.size.size, stride):
            most = max(most, v.nu[i])
        if largest(room, most) <= 1.0:
            return finish(st, m.FEASIBLE, 0.0, 0.0)
        for i in range(first, v.size.size, stride):
            set_threshold(v, i, st.hi, 0.0, st.unit)
            v.nu[i] = 0.0
        return Search(
            m.SOFT, st.hi, 0.0, st.lo, 0.0, st.hi, 0.0, st.unit, False, 0.0, 0.0, 1, st.certain
        )

    @register_jitable
    def judged(room, v, st, sparseness, goal, members):
        """The state with the verdict that the sums at μ allow, GO if none.

        And by how much they exceed the goal, and whether that much may be put up with.
        """
        deficit, size, jumps, slack = deficits(room, v)
        excess = deficit - goal
        # The sums are rounded, those of float32 data more: lest μ goes back and forth.
        tol = 2.0**-50 * (size + jumps) + 2.0**-26 * slack
        if st.passes >= PATIENCE:
            tol = max(tol, 1e-13 * size)
        status, share = m.GO, 0.0
        if st.passes == 0 and (excess <= slack or sparseness == 0.0):
            status = m.FEASIBLE
        elif st.on_jump and excess <= tol and excess + jumps >= -tol:
            # Rounding would tell the last of the tied entries from the others.
            share = 1.0 if excess + jumps <= tol else max(-excess / jumps, 0.0)
            status = m.SOFT
        elif not st.on_jump and abs(excess) <= tol:
            status = m.SOFT
        elif st.passes + 1 >= m.MAX_PASSES:
            status = m.CAPPED
        mean = (deficit + share * jumps) / members
        return finish(st, status, share, mean), excess, abs(excess) <= 1e-12 * size

    @register_jitable
    def leave_jumps(room, v, left):
        """Take μ off the vectors' jumps: to their left where μ is right of the solution."""
        first, stride = own(room)
        for i in range(first, v.size.size, stride):
            if v.filled[i] and not left:  # by rounding
                v.nu[i], v.gap[i] = v.ties[i], 0.0
                v.tau[i], v.tau_low[i] = v.top[i], 0.0
            v.filled[i] = False

    @register_jitable
    def moved(room, v, st, goal, left):
        """The state at the next μ, and the step that was found."""
        first, stride = own(room)
        a = 0.0 if left else (st.lo - st.mu) + (st.lo_low - st.mu_low)
        b = (st.hi - st.mu) + (st.hi_low - st.mu_low) if left else 0.0
        while True:
            for i in range(first, v.size.size, stride):
                set_rate(v, i, st.unit)
                place_jump(v, i)
            delta, on_jump = step(room, v, goal, a, b)
            if st.mu > 0.0 or not delta < math.ldexp(1.0, -FAR) or st.unit < -2 * FAR:
                break
            st = in_unit(st, FAR)  # the large vectors do not matter yet
            b = st.hi
        if left and math.isnan(delta):
            delta = 0.0  # the goal was met but for rounding
        bisect = st.passes >= m.NEWTON_PASSES and st.passes % 2 == 0
        certain = not bisect and a <= delta <= b
        lo, lo_low = st.lo, st.lo_low
        if certain:
            mu, rest = m.two_sum(st.mu, delta)
            mu, mu_low = m.two_sum(mu, rest + st.mu_low)
            if mu * (0.5 + 0.5 * MARGIN) > lo:  # what is forgotten now is never needed again
                lo, lo_low = mu * (0.5 + 0.5 * MARGIN), 0.0
        else:
            mu, mu_low, on_jump = m.midpoint(lo, min(st.hi, HUGE)), 0.0, False
        return Search(
            m.GO, mu, mu_low, lo, lo_low, st.hi, st.hi_low, st.unit, on_jump, 0.0, 0.0,
            st.passes + 1, certain,
        ), delta  # fmt: skip

    @register_jitable
    def advance(room, v, st, sparseness):
        """From the sums at μ, the next μ or the verdict; sets the thresholds of the next pass."""
        first, stride = own(room)
        members = 0.0
        for i in range(first, v.size.size, stride):
            members += 1.0 if v.beta[i] > 0.0 else 0.0
        members, _, _ = add(room, members, 0.0, 0.0)
        goal = members * (1.0 - sparseness)
        verdict, excess, good = judged(room, v, st, sparseness, goal, members)
        if verdict.status != m.GO:
            return verdict
        left = excess > 0.0
        leave_jumps(room, v, left)
        to, delta = moved(room, v, with_bound(st, left), goal, left)
        if to.mu == st.mu and to.mu_low == st.mu_low and not (to.on_jump and not st.on_jump):
            # μ cannot be had any finer.
            return finish(st, m.SOFT if good else m.CAPPED, 0.0, verdict.mean)
        if not math.ldexp(1.0, -FAR) < to.mu < math.ldexp(1.0, FAR):
            to = in_unit(to, FAR if to.mu < 1.0 else -FAR)
        for i in range(first, v.size.size, stride):
            v.filled[i] = to.on_jump and v.jump[i] == delta
            set_threshold(v, i, to.mu, to.mu_low, to.unit)
        return to

    return start, one_each, advance
