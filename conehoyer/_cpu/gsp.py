"""Group sparse projection on the CPU: passes over pieces of the vectors, and the next μ.

All vectors share the multiplier μ, vector i has the threshold τ_i = μ·β_i.  A pass takes
the sums over the supports {a > τ_i}; `advance` adds them up and chooses the next μ.
With z_i along (a_i − τ_i)₊, the equation is Σβ_i(‖z_i‖₁ − 1) = r(1 − s).

The step is Newton's on the supports, not on the tangent: `_excess` predicts the left side
for every μ with the supports kept as they are, and `_step` solves that scalar equation.
The prediction is never above the truth.  (To the right, the entries that leave the support
would count with d < 0: less in the numerator, more in the denominator.  To the left, the
entries that are missing are smaller than Q/S, and each such entry raises S/√Q.)  So every
step lands left of μ* or on it, the supports only shrink, and once they stay the same the
step is exact.  Entries left of such a μ are never needed again: the survivors are collected.

μ and τ are sums of two floats: among nearly equal entries one float cannot hit the sparseness.
"""

import math
from typing import NamedTuple

import numpy as np

from .. import _math as m
from .._jit import kernel
from . import passes

PIECE = 16384
COLLECT_FROM = 256  # entries of a vector below which whole passes are faster
MARGIN = 1.0 - 1e-6  # collected is what exceeds this part of τ
SAFE = 300  # squares of 2^±SAFE are harmless
FAR = 500  # μ beyond 2^±FAR of its unit: take another unit
HUGE = 2.0**1000

FIRST, WHOLE, COLLECT, KEPT, SHRINK, TIES = 0, 1, 2, 3, 4, 5  # passes


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


def new_vectors(count):
    """Vectors about which nothing is known."""
    real, flags = np.zeros((12, count)), np.zeros((2, count), np.bool_)
    exponent, first = np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
    return Vectors(
        np.zeros(count), real[0], real[1], real[2], exponent, first, real[3], real[4], flags[0],
        real[5], real[6], real[7], real[8], real[9], real[10], real[11], flags[1],
    )  # fmt: skip


@kernel
def pieces_of(n):
    """Number of pieces of a vector of length n."""
    return max((n + PIECE - 1) // PIECE, 1)


@kernel
def fill_vectors(v, place, count, n, slack):
    """Enter `count` vectors of length n at `place`."""
    beta, beta_low = 0.0, 0.0
    if n >= 2:
        beta, beta_low = m.gsp_weight(float(n))
    for i in range(place, place + count):
        v.size[i], v.slack[i] = n, slack
        v.beta[i], v.beta_low[i] = beta, beta_low
        v.first[i + 1] = v.first[i] + pieces_of(n)


@kernel
def run_pass(kind, z, buffer, kept, v, place, part, first, last):
    """Do a pass on pieces first..last−1 of the block z, whose first vector is `place`.

    A piece stores what it collects at its own place in `buffer`, and the count in `kept`.
    """
    per_row = pieces_of(z.shape[1])
    base = v.first[place]
    for p in range(first, last):
        row, begin = p // per_row, p % per_row * PIECE
        i, to = place + row, part[base + p]
        chunk = z[row, begin : begin + PIECE]
        tau, tau_low = v.tau[i], v.tau_low[i]
        to[:] = 0.0
        if v.beta[i] == 0.0:
            continue
        if kind == FIRST:
            to[0], to[1], to[2] = passes.sums(chunk, True, 0.0, 0.0)
            to[3] = passes.largest(chunk, True)
            if not math.isfinite(to[1]) and not passes.all_finite(chunk):
                to[3] = math.nan
        elif kind == TIES:
            if v.ask[i]:  # the gap to the top is exact where it matters
                to[0], _, _ = passes.sums(chunk, True, v.top[i], -5e-324)
        elif tau * MARGIN > v.top[i]:
            if kind != KEPT:
                kept[base + p] = 0
        elif kind == WHOLE:
            to[0], to[1], to[2] = passes.sums(chunk, True, tau, tau_low)
        else:
            room = buffer[row, begin : begin + PIECE]
            found, absolute = room[: kept[base + p]], False
            if kind == COLLECT:
                found, absolute = chunk, True
            if kind != KEPT:
                real = z.dtype.type
                edge = real(tau * MARGIN)
                stored = passes.band(found, absolute, real(0.0), edge, real(math.inf), room)[3]
                found, kept[base + p] = room[:stored], stored
            to[0], to[1], to[2] = passes.sums(found, False, tau, tau_low)


@kernel
def take_tops(v, part):
    """The largest entry of each vector after a FIRST pass; False where one is not finite."""
    finite = True
    for i in range(v.size.size):
        top = 0.0
        for p in range(v.first[i], v.first[i + 1]):
            finite = finite and part[p, 3] == part[p, 3]
            top = max(top, part[p, 3])
        v.top[i] = top
    return finite


@kernel
def out_of_range(tops):
    """Whether squares of some vector's entries may over- or underflow."""
    for top in tops:
        if top != 0.0 and not math.ldexp(1.0, -SAFE) < top < math.ldexp(1.0, SAFE):
            return True
    return False


@kernel
def scale_rows(z, v, place, scaled):
    """Write each row times a power of two that brings its top into [1/2, 1)."""
    for row in range(z.shape[0]):
        exponent = int(math.frexp(v.top[place + row])[1])
        v.exponent[place + row] = exponent
        source, target = z[row], scaled[row]
        for i in range(source.size):
            target[i] = math.ldexp(source[i], -exponent)


@kernel
def take_sums(v, part):
    """Add up the pieces' sums; returns whether the ties of some vector should be counted."""
    wanted = False
    for i in range(v.size.size):
        nu, s, q = 0.0, 0.0, 0.0
        for p in range(v.first[i], v.first[i + 1]):
            nu, s, q = nu + part[p, 0], s + part[p, 1], q + part[p, 2]
        gap, var = 0.0, 0.0
        if nu > 0.0:
            mean = s / nu
            gap, var = mean - v.tau_low[i], max(q / nu - mean * mean, 0.0)
        v.nu[i], v.gap[i], v.var[i] = nu, gap, var
        v.ask[i] = nu > 1.0 and v.ties[i] == 0.0 and var <= 1e-13 * gap * gap
        wanted = wanted or v.ask[i]
    return wanted


@kernel
def take_ties(v, part):
    """Add up what a TIES pass has counted."""
    for i in range(v.size.size):
        if v.ask[i]:
            for p in range(v.first[i], v.first[i + 1]):
                v.ties[i] += part[p, 0]


@kernel
def _deficits(v):
    """Σβ(‖z‖₁ − 1), Σβ‖z‖₁, what the jump at μ would add to both, and Σ slack·β‖z‖₁."""
    total, low, size, room, slack = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(v.size.size):
        beta = v.beta[i]
        ratio, _ = m.gsp_ratio(v.nu[i], v.gap[i], v.var[i])
        total, rest = m.two_sum(total, beta * (ratio - 1.0))
        low += rest
        size += beta * ratio
        slack += v.slack[i] * beta * ratio
        if v.filled[i]:
            room += beta * (math.sqrt(v.ties[i]) - 1.0)
    return total + low, size, room, slack


@kernel
def _excess(v, goal, delta, before):
    """Predicted Σβ(‖z‖₁ − 1) − goal at μ + delta, and its derivative.

    A jump at that very place counts as done unless `before`.
    """
    total, low, slope = -goal, 0.0, 0.0
    for begin in range(0, v.size.size, passes.SHORT):  # the exact sum takes eight times as long
        block = 0.0
        for i in range(begin, min(begin + passes.SHORT, v.size.size)):
            ratio, change = m.gsp_ratio(v.nu[i], v.gap[i] - delta * v.rate[i], v.var[i])
            if v.jump[i] < math.inf:
                ahead = delta < v.jump[i] or (before and delta == v.jump[i])
                ratio = math.sqrt(v.nu[i]) if ahead else 1.0
            block += v.beta[i] * (ratio - 1.0)
            slope += v.beta[i] * v.rate[i] * change
        total, rest = m.two_sum(total, block)
        low += rest
    return total + low, slope


@kernel
def _some_jump(v, low, high):
    """A jump strictly between, from the middle of the vectors that have one; else NaN."""
    count = 0
    for jump in v.jump:
        count += low < jump < high
    count //= 2
    for jump in v.jump:
        if low < jump < high:
            if count == 0:
                return jump
            count -= 1
    return math.nan


@kernel
def _step(v, goal, a, b):
    """The delta in [a, b] where the prediction meets the goal, and whether it jumps there.

    NaN where it does not, because it lies below the goal already at a.
    """
    low, high, found = a, np.nextafter(b, math.inf), False
    while True:
        jump = _some_jump(v, low, high)
        if jump != jump:
            break
        if _excess(v, goal, jump, False)[0] >= 0.0:
            low = jump
        else:
            high, found = jump, True
    if found:
        if _excess(v, goal, high, True)[0] >= 0.0:
            return high, True
        b = high
    a = low
    x = a
    for turn in range(100):
        excess, slope = _excess(v, goal, x, False)
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


@kernel
def _place_jumps(v):
    """Find the vectors whose support is the tied entries; bound the others' rounding.

    A variance that drowned in rounding is taken too large: then the prediction is too low
    and the step too short, but never too long.
    """
    for i in range(v.size.size):
        v.jump[i] = math.inf
        if v.nu[i] <= 1.0:
            continue
        if v.nu[i] == v.ties[i]:
            v.var[i] = 0.0
            v.gap[i] = (v.top[i] - v.tau[i]) - v.tau_low[i]
            v.jump[i] = v.gap[i] / v.rate[i]
        else:
            v.var[i] = max(v.var[i], 2.0**-50 * v.gap[i] * v.gap[i])


@kernel
def _set_rates(v, unit):
    """What a step of μ means for each τ.

    Vectors so small that all of them ends at μ < 2^−FAR count as a little larger.
    """
    for i in range(v.size.size):
        v.rate[i] = min(math.ldexp(v.beta[i], unit - v.exponent[i]), 2.0**600)


@kernel
def _set_thresholds(v, mu, mu_low, unit):
    """τ_i = μ·β_i; beyond everything where μ sits on the vector's jump."""
    for i in range(v.size.size):
        tau, low = m.gsp_threshold(mu, mu_low, v.beta[i], v.beta_low[i])
        shift = unit - v.exponent[i]
        v.tau[i], v.tau_low[i] = math.ldexp(tau, shift), math.ldexp(low, shift)
        if v.filled[i]:
            v.tau[i], v.tau_low[i] = math.inf, 0.0


@kernel
def start(v):
    """The state before the first pass, at μ = 0."""
    unit, some = 0, False
    for i in range(v.size.size):
        if v.top[i] > 0.0 and v.beta[i] > 0.0:
            exponent = int(math.frexp(v.top[i])[1]) + v.exponent[i]
            unit = max(unit, exponent) if some else exponent
            some = True
    hi = 0.0
    for i in range(v.size.size):
        if v.beta[i] > 0.0:
            hi = max(hi, math.ldexp(v.top[i], v.exponent[i] - unit) / v.beta[i])
    hi *= 1.0 + 2.0**-50
    return Search(m.GO, 0.0, 0.0, 0.0, 0.0, hi, 0.0, unit, False, 0.0, 0.0, 0, False)


@kernel
def finish(st, status, share, mean):
    """The verdict at the state's μ."""
    return Search(
        status, st.mu, st.mu_low, st.lo, st.lo_low, st.hi, st.hi_low, st.unit, st.on_jump,
        share, mean, st.passes + 1, st.certain,
    )  # fmt: skip


def one_each(v, st):
    """The verdict for sparseness 1: past every jump, unless each vector has one entry."""
    if v.nu.max() <= 1.0:
        return finish(st, m.FEASIBLE, 0.0, 0.0)
    st = Search(m.SOFT, st.hi, 0.0, st.lo, 0.0, st.hi, 0.0, st.unit, False, 0.0, 0.0, 1, st.certain)
    _set_thresholds(v, st.mu, 0.0, st.unit)
    v.nu[:] = 0.0
    return st


@kernel
def _members(v):
    """How many vectors the group has."""
    count = 0
    for beta in v.beta:
        count += beta > 0.0
    return count


@kernel
def advance(v, st, sparseness):
    """From the sums at μ, the next μ or the verdict; sets the thresholds of the next pass."""
    members = _members(v)
    goal = members * (1.0 - sparseness)
    deficit, size, room, slack = _deficits(v)
    excess = deficit - goal
    tol = 2.0**-50 * size
    if st.passes == 0 and (excess <= slack or sparseness == 0.0):
        return finish(st, m.FEASIBLE, 0.0, deficit / members)
    if st.on_jump and excess <= tol and excess + room >= -tol:
        share = min(max(-excess / room, 0.0), 1.0)
        return finish(st, m.SOFT, share, (deficit + share * room) / members)
    if not st.on_jump and abs(excess) <= tol:
        return finish(st, m.SOFT, 0.0, deficit / members)
    left = excess > 0.0
    if st.passes + 1 >= m.MAX_PASSES:
        return finish(st, m.CAPPED, 0.0, deficit / members)

    lo, lo_low, hi, hi_low = st.lo, st.lo_low, st.hi, st.hi_low
    if left:
        lo, lo_low = st.mu, st.mu_low
    else:
        hi, hi_low = st.mu, st.mu_low
    for i in range(v.size.size):
        if v.filled[i] and not left:  # rounding put μ right of the solution
            v.nu[i], v.gap[i] = v.ties[i], 0.0
            v.tau[i], v.tau_low[i] = v.top[i], 0.0
        v.filled[i] = False
    a = 0.0 if left else (lo - st.mu) + (lo_low - st.mu_low)
    b = (hi - st.mu) + (hi_low - st.mu_low) if left else 0.0
    unit = st.unit
    while True:
        _set_rates(v, unit)
        _place_jumps(v)
        delta, on_jump = _step(v, goal, a, b)
        if st.mu > 0.0 or not delta < math.ldexp(1.0, -FAR) or unit < -2 * FAR:
            break
        unit -= FAR  # the large vectors do not matter yet
        hi = math.ldexp(hi, FAR)
        b = hi
    if left and math.isnan(delta):
        delta = 0.0  # the goal was met but for rounding
    mu, rest = m.two_sum(st.mu, delta)
    mu, mu_low = m.two_sum(mu, rest + st.mu_low)
    bisect = st.passes >= m.NEWTON_PASSES and st.passes % 2 == 0
    certain = not bisect and a <= delta <= b
    if not certain:
        mu, mu_low, on_jump = m.midpoint(lo, min(hi, HUGE)), 0.0, False
    if mu == st.mu and mu_low == st.mu_low and not (on_jump and not st.on_jump):
        # μ cannot be had any finer.
        good = abs(excess) <= 1e-12 * size
        return finish(st, m.SOFT if good else m.CAPPED, 0.0, deficit / members)
    if certain and mu * (0.5 + 0.5 * MARGIN) > lo:  # what is forgotten now is never needed again
        lo, lo_low = mu * (0.5 + 0.5 * MARGIN), 0.0
    if not math.ldexp(1.0, -FAR) < mu < math.ldexp(1.0, FAR):
        shift = FAR if mu < 1.0 else -FAR
        unit -= shift
        mu, mu_low = math.ldexp(mu, shift), math.ldexp(mu_low, shift)
        lo, lo_low = math.ldexp(lo, shift), math.ldexp(lo_low, shift)
        hi, hi_low = math.ldexp(hi, shift), math.ldexp(hi_low, shift)
    if on_jump:
        for i in range(v.size.size):
            v.filled[i] = v.jump[i] == delta
    _set_thresholds(v, mu, mu_low, unit)
    return Search(
        m.GO, mu, mu_low, lo, lo_low, hi, hi_low, unit, on_jump, 0.0, 0.0, st.passes + 1, certain
    )


@kernel
def write(verdict, x, z, out, v, place, first, last):
    """Write pieces first..last−1 of a block; z is x, or x with its rows scaled.

    `out` may be x; a scaled z is overwritten.
    """
    per_row = pieces_of(x.shape[1])
    real = x.dtype.type
    for p in range(first, last):
        row, begin = p // per_row, p % per_row * PIECE
        i = place + row
        end = min(begin + PIECE, x.shape[1])
        source, target = z[row, begin:end], out[row, begin:end]
        nu, gap, var, tau = v.nu[i], v.gap[i], v.var[i], v.tau[i]
        if verdict.status == m.NONFINITE:
            target[:] = math.nan
            continue
        if verdict.status == m.FEASIBLE or v.top[i] == 0.0 or v.beta[i] == 0.0:
            passes.write_copy(x[row, begin:end], True, target)
            continue
        scaled = v.exponent[i] != 0
        if scaled:
            target = source
        if nu <= 1.0:  # a whole vector at once: the first of its largest entries
            if begin > 0:
                continue
            k, b = 1.0, 1.0
            if v.filled[i]:
                ratio = 1.0 + verdict.share * (math.sqrt(v.ties[i]) - 1.0)
                k, b = m.tied_profile(min(ratio * ratio, v.ties[i]))
            factor = m.tied_scale(m.CAI, k, b, v.top[i], 0.0)
            target = z[row] if scaled else out[row]
            passes.write_tied(z[row], True, v.top[i], k, b, factor, target)
            end = x.shape[1]
        else:
            anchor = real(tau)
            offset = real((tau - np.float64(anchor)) + v.tau_low[i])
            scale = 1.0 + tau * (gap / (var + gap * gap))
            passes.write_soft(
                source, True, anchor, offset, real(2.0**-48 * gap), real(scale), target
            )
        if scaled:
            target = out[row, begin:end]
            for j in range(target.size):
                target[j] = math.ldexp(z[row, begin + j], v.exponent[i])
