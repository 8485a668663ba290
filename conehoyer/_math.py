"""The mathematics of the soft threshold: pure functions on scalars.

Every projection is ``x = sign(y)·c·max(a − τ, 0)``; what differs is the equation
for τ and the scale c.  A pass over the data supplies three sums over the support
``{a > τ}``, and :func:`advance` answers with the next τ, or with the verdict.
Nothing here knows where the sums come from: CPU passes, threads, GPU blocks or
chunks of a file.

τ is held as ``anchor + offset``, and the sums are taken relative to the anchor,
``S = Σ(a − anchor)``, ``Q = Σ(a − anchor)²``.  For near-constant data ``a − anchor``
is exact, so τ keeps its relative accuracy where one float could not.
"""

import math
from typing import NamedTuple

from numba.extending import register_jitable

# Constraints.
L1 = 0  # Σd = r, τ ≥ 0
SIMPLEX = 1  # Σd = r, τ of any sign
CAI = 2  # (Σd)² = l·Σd², τ ≥ 0
HOYER = 3  # (Σd)² = l·Σd², τ of any sign

# Verdicts.
GO = 0  # evaluate the sums at (anchor, offset) and call advance again
SOFT = 1  # the soft threshold is found
FEASIBLE = 2  # the input satisfies the constraint: nothing to do
TIED = 3  # more than l entries tie at the top, no threshold exists: design rule for ties
FLAT = 4  # level n: only the constant vector has it
RESCALE = 5  # squares over- or underflow: multiply the data by a power of two first
NONFINITE = 6  # NaN or inf in the data
CAPPED = 7  # the cap on the passes was hit; the threshold is the best known

NEWTON_PASSES = 40  # from here on every second step bisects
MAX_PASSES = 400


class State(NamedTuple):
    """Where the search for τ stands, between two passes over the data."""

    status: int
    anchor: float
    offset: float  # τ = anchor + offset; -inf counts every entry
    lo: float  # certified: τ* ≥ lo
    hi: float  # certified: τ* ≤ hi
    nu: float  # support size of the pass that proposed τ, -1 if τ was no Newton step
    overshoots: int
    pinned: bool  # the anchor was chosen for accuracy: keep it
    at_zero: bool  # whether the input is feasible is known, from the sums at τ = 0 or without
    passes: int
    s: float  # on a verdict: Σd at τ
    q: float  # on a verdict: Σd² at τ


@register_jitable
def start(kind):
    """The state before the first pass: τ = 0, or every entry where τ may be negative."""
    free = kind == SIMPLEX or kind == HOYER
    offset = -math.inf if free else 0.0
    return State(GO, 0.0, offset, offset, math.inf, -1.0, 0, False, False, 0, 0.0, 0.0)


@register_jitable
def two_sum(a, b):
    """Return fl(a + b) and the rounding error, exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@register_jitable
def two_product(a, b):
    """Return fl(a·b) and the rounding error, exactly unless it underflows (Dekker)."""
    product = a * b
    shifted = 134217729.0 * a
    a_high = shifted - (shifted - a)
    a_low = a - a_high
    shifted = 134217729.0 * b
    b_high = shifted - (shifted - b)
    b_low = b - b_high
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


@register_jitable
def level_excess(level, s, q):
    """Positive where (Σd)² exceeds level·Σd²: τ lies left of the solution."""
    return s * s - level * q


@register_jitable
def closeness(kind, p, s, q):
    """Relative distance of Σd, Σd² from meeting the equation."""
    if kind == L1 or kind == SIMPLEX:
        return s / p - 1.0
    return s / q * s / p - 1.0 if q > 0.0 else 0.0


@register_jitable
def quotient(a, b):
    """a / b; on a GPU, of two float32 only nearly."""
    return a / b


@register_jitable
def root(a):
    """√a; on a GPU, of a float32 only nearly."""
    return math.sqrt(a)


@register_jitable
def newton_offset(kind, p, nu, s, q):
    """The τ (relative to the anchor) that solves the equation on this support."""
    if kind == L1 or kind == SIMPLEX:
        return quotient(s - p, nu)
    mean = quotient(s, nu)
    var = max(quotient(q, nu) - mean * mean, p - p)  # zero, also for float32
    return mean - root(quotient(p * var, nu - p))


@register_jitable
def curved_offset(kind, p, nu, s, q, offset, newton, density):
    """`newton_offset` with a support that loses `density` entries a unit beyond `offset`.

    A step of third order where the density holds; `newton` is the plain one, and is returned
    where half of the support would come or go.
    """
    h = newton - offset
    gone, middle = density * h, offset + 0.5 * h
    left = nu - gone
    if not abs(gone) < 0.5 * nu or not left > (p if kind >= CAI else 0.0):
        return newton
    s -= gone * middle
    q -= gone * (middle * middle + h * h / 12.0)
    return newton_offset(kind, p, left, s, q)


@register_jitable
def tail_guess(kind, p, nu, s, q):
    """Where τ lies if the entries above 0 follow a generalised Pareto distribution.

    The family holds the exponential (shape 0) and the uniform distribution (shape 1), and
    what lies above a threshold stays in it; its shape and scale come from S and Q.  Only
    for CAI and L1, from the sums at τ = 0; a guess, right or left of τ*.
    """
    return tail_guess_in(kind, p, nu, s, q, 1.0, 0.5, 0.95, 1e-6)


@register_jitable
def tail_guess_in(kind, p, nu, s, q, one, half, most, least):
    """`tail_guess` in the precision of its arguments, which its constants have too."""
    ratio = min(quotient(s * s, nu * q), most)
    shape = quotient(ratio - half, one - ratio)
    if abs(shape) < least:
        shape = least
    unit = quotient(s, nu) * (one + shape)
    if kind == L1:
        power = quotient(shape, one + shape) * math.log(quotient(p, s))
    else:
        power = shape * math.log(quotient(p, nu * ratio))
    return quotient(-unit, shape) * math.expm1(power)


@register_jitable
def tail_step(kind, p, nu, s, q):
    """`newton_offset` from τ = 0, then one more step as if the tail were a Pareto distribution's.

    Of that family's density above τ, which is ρ = 2ν·var/(mean·(var + mean²)), the first term.
    For CAI and L1; what is sought may lie on either side.
    """
    return tail_step_in(kind, p, nu, s, q, 1.0, 0.5, 2.0 / 3.0)


@register_jitable
def tail_step_in(kind, p, nu, s, q, one, half, two_thirds):
    """`tail_step` in the precision of its arguments, which its constants have too."""
    zero = one - one
    share = quotient(one, nu)
    mean = s * share
    square = mean * mean
    var = max(q * share - square, zero)
    step = mean - root(p * var * quotient(one, nu - p)) if kind >= CAI else (s - p) * share
    density = quotient(nu * (var + var), mean * (var + square))
    gone = density * step
    left = nu - gone - (p if kind >= CAI else zero)
    if not abs(gone) < half * nu or not left > zero:
        return step
    more = half * gone * step  # by which Σd is larger than without the curvature
    if kind < CAI:
        return step + quotient(more, left)
    rest = s - nu * step
    excess = more * (rest + rest + more + p * step * two_thirds)
    return step + quotient(excess, (one + one) * (rest + more) * left)


@register_jitable
def equality_holds(kind, p, l2, tol, s, q):
    """Whether Σa, Σa² over all entries already meet an equality constraint."""
    if kind == SIMPLEX:
        return abs(s - p) <= tol * p
    if kind == HOYER and 1e-200 < q < 1e200 and l2 < math.inf:
        return abs(s * s - p * q) <= tol * p * q and abs(math.sqrt(q) - l2) <= tol * l2
    return False


@register_jitable
def flat_holds(n, top, l2, tol, nu):
    """Whether n entries, ν of which equal the largest, are all alike and have this norm."""
    return nu == n and top > 0.0 and abs(top * math.sqrt(n) - l2) <= tol * l2


@register_jitable
def sums_at(nu, s, q, offset):
    """Σd and Σd² for d = (a − anchor) − offset, from the sums relative to the anchor."""
    if nu == 0.0:
        return 0.0, 0.0
    mean = s / nu
    var = max(q / nu - mean * mean, 0.0)
    gap = mean - offset
    return nu * gap, nu * (var + gap * gap)


@register_jitable
def midpoint(lo, hi):
    """Bisect [lo, hi]: over the exponents first, then over the values."""
    if lo < 0.0 < hi:
        return 0.0
    if lo == 0.0:
        return hi * 2.0**-64
    if hi == 0.0:
        return lo * 2.0**-64
    if 0.0 < lo and hi > 4.0 * lo:
        return lo * math.sqrt(hi / lo) if hi / lo < math.inf else lo * 2.0**64
    if hi < 0.0 and lo < 4.0 * hi:
        return hi * math.sqrt(lo / hi) if lo / hi < math.inf else hi * 2.0**64
    return lo + 0.5 * (hi - lo)


@register_jitable
def drowned(level, nu, mean, var):
    """Whether var = Q/ν − mean² has lost too many digits for the Newton step.

    Where the anchor is about as far from the mean as τ will be, the loss is harmless: it
    only shifts d's that are all alike.
    """
    square = mean * mean
    if var <= 1e-8 * square:
        return True
    return var <= 0.05 * square and (nu <= level or 16.0 * level * var < (nu - level) * square)


@register_jitable
def dwarfed(cone, p, tau, nu, s):
    """Whether a few entries dwarf the others: then Σd in float32 is too coarse for this τ.

    An error of ε·Σd moves τ by ε·Σd/(ν − l).
    """
    room = nu - p if cone else nu
    return room > 0.0 and s > 64.0 * abs(tau) * room


@register_jitable
def from_whole(level):
    """The distance from the next whole number."""
    return abs(level - math.floor(level + 0.5))


@register_jitable
def nearly_whole(level):
    """Whether the level is not a whole number, but hardly differs from one."""
    return 0.0 < from_whole(level) <= 2.0**-40 * level


@register_jitable
def delicate(level, nu):
    """Whether rounding may put an entry on the wrong side of τ, and then τ far from its place.

    The Newton step loses digits where ν is little more than l; and where l entries are alike,
    the score is l over the whole gap below them.
    """
    room = nu - level
    if room < 1.5:
        return room > 0.0 and (room <= 0.05 * level or from_whole(level) <= 1e-7 * level)
    return room <= 0.05 * level or nearly_whole(level)


@register_jitable
def _to(st, anchor, offset, nu, overshoots, pinned):
    """The state `st`, to be evaluated next at this τ, after so many overshoots."""
    return State(
        GO, anchor, offset, st.lo, st.hi, nu, overshoots, pinned, st.at_zero, st.passes, 0.0, 0.0
    )


@register_jitable
def with_tau(st, anchor, offset, nu, pinned):
    """The state `st`, to be evaluated next at this τ, with as many overshoots as before."""
    return _to(st, anchor, offset, nu, st.overshoots, pinned)


@register_jitable
def with_verdict(st, status, offset, nu, s, q):
    """The state `st`, where the search ends with this verdict and the sums at this offset."""
    return State(
        status, st.anchor, offset, st.lo, st.hi, nu, 0, st.pinned, st.at_zero, st.passes, s, q
    )


@register_jitable
def with_bounds(st, lo, hi):
    """The state `st`, where τ* is known to lie between these."""
    return State(
        st.status, st.anchor, st.offset, lo, hi, st.nu, st.overshoots, st.pinned, st.at_zero,
        st.passes, st.s, st.q,
    )  # fmt: skip


@register_jitable
def infeasible(st):
    """The state `st`, where it is known that the input is not feasible."""
    return State(
        st.status, st.anchor, st.offset, st.lo, st.hi, st.nu, st.overshoots, st.pinned, True,
        st.passes, st.s, st.q,
    )  # fmt: skip


@register_jitable
def sums_are_safe(cone, p, anchor, s, q):
    """Whether the sums, and a step from them, neither overflow nor lose digits to underflow."""
    if cone:
        return 1e-100 < abs(anchor) + math.sqrt(q) < 1e100
    size = abs(anchor) + abs(s) + p  # no squares
    return 1e-290 < size and (size < 2.0**1020 or p == math.inf)


@register_jitable
def advance(kind, p, tol, st, nu, s, q):
    """One step of the search for τ.

    Parameters
    ----------
    kind : int
        L1, SIMPLEX, CAI or HOYER.
    p : float
        Radius r (L1, SIMPLEX) or level l (CAI, HOYER).
    tol : float
        Relative slack under which the input counts as feasible.
    st : State
        The state that asked for the sums.
    nu, s, q : float
        Number of entries with ``a − anchor > offset``, and the sums of ``a − anchor``
        and of its square over them.

    Returns
    -------
    State
        With ``status == GO`` the next point to evaluate, otherwise the verdict.
    """
    cone = kind == CAI or kind == HOYER
    signed = kind == SIMPLEX or (kind == HOYER and st.lo < 0.0)
    everything = st.offset == -math.inf
    zero = st.anchor == 0.0 and st.offset == 0.0
    first_zero = zero and not st.at_zero
    at_zero = st.at_zero or everything or (zero and kind != SIMPLEX)
    st = State(
        GO, st.anchor, st.offset, st.lo, st.hi, st.nu, st.overshoots, st.pinned, at_zero,
        st.passes + 1, 0.0, 0.0,
    )  # fmt: skip

    if not math.isfinite(s):
        return with_verdict(st, NONFINITE, st.offset, nu, s, q)
    if nu > 0.0 and s != 0.0 and not sums_are_safe(cone, p, st.anchor, s, q):
        return with_verdict(st, RESCALE, st.offset, nu, s, q)

    # Which side of τ* are we on?
    sd, qd = s, q
    left = True
    if not everything:
        sd, qd = sums_at(nu, s, q, st.offset)
        excess = level_excess(p, sd, qd) if cone else sd - p
        if zero and not signed and (nu == 0.0 or excess <= tol * (p * qd if cone else p)):
            if kind != HOYER:
                return with_verdict(st, FEASIBLE, 0.0, nu, s, q)
            if first_zero:  # an equality: τ may be negative
                st = with_bounds(st, -math.inf, st.hi)
                return _to(st, 0.0, -math.inf, -1.0, 0, False)
        left = nu > 0.0 and excess >= 0.0
        if cone and nu <= p:  # H(d) ≤ ν, with equality only where all d are equal
            left = False
        tau = st.anchor + st.offset
        lo = max(st.lo, tau) if left else st.lo
        hi = st.hi if left else min(st.hi, tau)
        st = with_bounds(st, lo, hi)
        # What is too much at a τ >= 0 is all the more at 0: no need to look there before the end.
        if tau >= 0.0 and excess > 16.0 * tol * (p * qd if cone else p):
            st = infeasible(st)

    # A Newton step never passes τ*, except by rounding.  Where that is all, it is solved: a
    # step from here, with ν near l, may be a wild one.
    distance = abs(closeness(kind, p, sd, qd))
    close = cone and st.nu >= 0.0 and nu > 0.0 and not everything and distance <= 2.0**-48

    # The support's spread against its distance from the anchor: where it drowns in
    # rounding, take the sums again relative to the support's mean.
    if cone and nu > 0.0 and st.passes < MAX_PASSES:
        mean = s / nu
        lost = drowned(p, nu, mean, q / nu - mean * mean)
        # Before it ends with the same support twice, every digit counts.
        # (An entry on τ may belong to it from one anchor and not from another: not for ever.)
        final = (nu == st.nu or close) and delicate(p, nu) and st.passes < 16
        final = final and abs(mean) > 0.25 * (mean - st.offset)
        closer = st.anchor + mean
        if (lost or final) and closer != st.anchor:
            return with_tau(st, closer, st.offset - (closer - st.anchor), st.nu, True)
        # All of the support is the one float `anchor`: H is ν at every τ, whatever rounding
        # says of the side.  If nothing lies below, the input itself may count as feasible.
        if lost and not st.at_zero and abs(nu - p) <= tol * p:
            return _to(st, 0.0, -math.inf if signed else 0.0, -1.0, 0, False)
        if lost and nu > p:
            return with_verdict(st, TIED, 0.0, nu, s, q)
        if lost and nu == p and not everything:
            return with_verdict(st, SOFT, st.offset, nu, sd, qd)

    can_step = nu > 0.0 and (nu > p or not cone)
    step, solved, far = st.offset, False, False
    if can_step or (close and not left):
        step, solved, far = _newton(kind, p, tol, st, nu, s, q, left, close, distance)
        if not signed:
            step = max(step, -st.anchor)
        if solved:
            return _solved(kind, p, tol, st, nu, s, q, signed, step)
    if st.passes >= MAX_PASSES:
        if step > -math.inf:
            sd, qd = sums_at(nu, s, q, step)
        return with_verdict(st, CAPPED, step, nu, sd, qd)
    return _next_tau(st, nu, sd, left, signed, can_step, step, far)


@register_jitable
def _newton(kind, p, tol, st, nu, s, q, left, close, distance):
    """The Newton step from these sums; whether it ends the search, or its sums are from too far.

    `left`: τ is not right of τ*.  `close`: a Newton step has led to where the equation holds, but
    for rounding.  `distance`: by how much it does not hold, relative.
    """
    cone = kind == CAI or kind == HOYER
    offset = st.offset
    arrived = close and not left
    step = newton_offset(kind, p, nu, s, q) if nu > p or not cone else offset
    # To the left of where a step from more entries has led, hardly any may come back.
    near = 2.0**-16 if nu == st.nu else 2.0**-36
    near = near if step <= offset else 2.0**-8
    gap, move = s / nu - offset, abs(step - offset)
    # Nor take a step that changes the result by rounding alone: it may let an entry in.
    idle = move * move * (nu - p) <= 2.0**-86 * (gap * gap)
    if arrived and (idle or not move <= near * gap):
        step = offset
    # The same support twice, or no progress from the left: solved.
    solved = arrived or nu == st.nu or (st.nu >= 0.0 and left and step <= offset)
    # But sums relative to an anchor far from the support, as after a step from −1e30, carry
    # its rounding, and so does a τ that has moved although the support has not: once more,
    # from where they say τ is.
    far = False
    if solved and cone and st.passes < NEWTON_PASSES:
        far = abs(step) > 4.0 * (s / nu - step)
    elif solved and st.passes < NEWTON_PASSES:
        far = abs(s / nu) > 8.0 * (p / nu + min(abs(offset), 2.0**-20 * abs(st.anchor)))
        far = far and st.anchor + step != st.anchor
        # The slack tells float64 data; sums of float32 numbers are less exact.
        exact = 2.0**-42 if 0.0 < tol < 1e-12 else 2.0**-16
        far = far or (nu == st.nu and move > exact * (p / nu))
    solved = solved and not far
    # Do not chase a step that passes τ* by a little, again and again.
    solved = solved or (st.overshoots >= 4 and not left and distance <= 2.0**-20)
    # Back only to mend rounding: where the same entries meet the constraint to the last bit.
    mends = close and nu == st.nu and not idle and move <= near * gap
    if solved and left and not mends:
        step = max(step, offset)
    return step, solved, far


@register_jitable
def _solved(kind, p, tol, st, nu, s, q, signed, step):
    """The verdict at this step, unless one more look is due."""
    cone = kind == CAI or kind == HOYER
    if cone and st.overshoots == 0 and delicate(p, nu):
        # Once more without the entries that lie on τ but for rounding.
        beyond = step + 2.0**-50 * (s / nu - step)
        return _to(st, st.anchor, beyond, st.nu, 1, True)
    sd, qd = sums_at(nu, s, q, step)
    if not st.at_zero:
        # So close to τ = 0 that the input may count as feasible: look there.
        room = nu - p if nu > p else 0.5
        slack = 4.0 * tol * (sd / (2.0 * room) if cone else p / nu)
        if abs(st.anchor + step) <= slack:
            return _to(st, 0.0, -math.inf if signed else 0.0, -1.0, 0, False)
    return with_verdict(st, SOFT, step, nu, sd, qd)


@register_jitable
def _next_tau(st, nu, sd, left, signed, can_step, step, far):
    """Where to look next: at the Newton step, or where that will not do."""
    anchor, newton, overshoots = st.anchor, nu, st.overshoots
    # Newton's steps take long, or passed τ* five times, farther than a step back could mend.
    slow = st.passes > NEWTON_PASSES and st.passes % 2 == 0
    wild = not left and st.nu >= 0.0 and not can_step and st.overshoots >= 4
    if (slow or wild) and math.isfinite(st.lo):
        # max a ≤ τ + Σd, whatever the data.
        top = min(st.hi, anchor + st.offset + sd) if nu > 0.0 else st.hi
        anchor, step, newton = midpoint(st.lo, top), 0.0, -1.0
    elif not left and st.nu >= 0.0:
        # A Newton step landed right of τ*: rounding. Back off a little, keep the anchor.
        overshoots += 1
        if not can_step:
            tau = anchor + st.offset
            back = math.ldexp(max(tau - st.lo, abs(tau) * 2.0**-52), 10 * overshoots - 50)
            step, newton = st.offset - max(back, abs(tau) * 2.0**-50), st.nu
    elif not can_step:
        # A bad start, too far right: halve towards the certified bound.
        if math.isfinite(st.lo):
            anchor, step, newton = st.lo + 0.5 * (anchor + st.offset - st.lo), 0.0, -1.0
        else:
            step, newton = -math.inf, -1.0
    if newton < 0.0 and step == 0.0 and anchor >= st.hi:  # no number lies between the bounds
        anchor = st.lo

    looked = st.offset == -math.inf or (st.anchor == 0.0 and st.offset == 0.0 < st.lo)
    if looked and anchor + step < st.lo:  # only to see whether the input is feasible: go back
        anchor, step, newton = st.lo, 0.0, -1.0
    if not signed and anchor + step <= 0.0:
        anchor, step = 0.0, 0.0
    elif (far or not st.pinned) and math.isfinite(step) and not (not can_step and overshoots):
        anchor, step = two_sum(anchor, step)
    return _to(st, anchor, step, newton, overshoots, st.pinned and not far)


@register_jitable
def unit_of_norm(l2, shift):
    """The exponent of the unit of a given norm where the data's unit is 2^−shift.

    The data's own, so that the norms can be compared, unless they are far from each other.
    """
    own = int(math.frexp(l2)[1])
    return -shift if abs(own + shift) <= 32 else own


@register_jitable
def fits_unit(l2, st, itemsize):
    """Whether Hoyer's projection, and what it multiplies, have all digits in the data's dtype."""
    least = 2.0**-118 if itemsize == 4 else 2.0**-1000
    factor = scale(HOYER, st, l2)
    digits = itemsize == 8 or st.q >= 2.0**-180  # else τ is rounded as if it were subnormal
    return l2 == 0.0 or (digits and least <= factor <= 1.0 / least)


@register_jitable
def dust(st):
    """d up to which an entry counts as sitting on the threshold: the rounding of τ."""
    return 2.0**-48 * st.s / st.nu if st.nu > 0.0 else 0.0


@register_jitable
def scale(kind, st, l2):
    """The factor c of ``x = c·max(a − τ, 0)`` for a soft threshold."""
    if kind == CAI:  # ⟨p, a⟩/⟨p, p⟩ with a = p + τ on the support
        return 1.0 + (st.anchor + st.offset) * (st.s / st.q) if st.q > 0.0 else 1.0
    if kind == HOYER:
        return l2 / math.sqrt(st.q) if st.q > 0.0 else 0.0
    return 1.0


@register_jitable
def tied_profile(level, rest):
    """Nonnegative k-vector (1, …, 1, b) with k = ⌈l⌉ and score l = level + rest: returns k, b."""
    k = math.ceil(level)
    if k <= 1.0:
        return 1.0, 1.0
    root = math.sqrt((k - 1.0) * level * max(k - level - rest, 0.0))
    return k, (k - 1.0) * (level - k + 1.0 + rest) / (k - 1.0 + root)


@register_jitable
def tied_scale(kind, k, b, top, l2):
    """The factor c for the tied profile."""
    norm2 = k - 1.0 + b * b
    if kind == CAI:
        return top * (k - 1.0 + b) / norm2
    return l2 / math.sqrt(norm2)


# The level of Hoyer's projection comes as two floats, `level` and the `rest` that the first
# lacks: where ν is little more than l, or where many entries tie, the result shows the rest.


@register_jitable
def refined(level, rest, st):
    """The soft threshold for level + rest, from that for `level` on the same support."""
    room = st.nu - level
    if st.status != SOFT or rest == 0.0 or not room > 0.0:
        return st
    part = rest / room
    root = math.sqrt(max(1.0 - part, 2.0**-106))
    more = part / (root * (1.0 + root))  # the mean of d grows by 1/root
    s = st.s + st.s * more
    return State(
        SOFT, st.anchor, st.offset - st.s / st.nu * more, st.lo, st.hi, st.nu, st.overshoots,
        st.pinned, st.at_zero, st.passes, s, s * s / level,
    )  # fmt: skip


@register_jitable
def _soft_at(st, offset, nu, s, q):
    """The verdict at this offset, from sums on another support."""
    sd, qd = sums_at(nu, s, q, offset)
    return State(
        SOFT, st.anchor, offset, st.lo, st.hi, nu, st.overshoots, st.pinned, st.at_zero,
        st.passes + 1, sd, qd,
    )  # fmt: skip


@register_jitable
def refined_step(level, rest, st, nu, s, q):
    """The same from these sums at the state's τ, of another support; never to the left of it."""
    offset = newton_offset(HOYER, level, nu, s, q) if nu > level else st.offset
    found = refined(level, rest, _soft_at(st, offset, nu, s, q))
    return found if found.offset >= st.offset else _soft_at(st, st.offset, nu, s, q)


@register_jitable
def root_less_one(n):
    """√n − 1 as the sum of two floats."""
    root = math.sqrt(n)
    square, rest = two_product(root, root)
    root_low = ((n - square) - rest) / (2.0 * root)
    return two_sum(root - 1.0, root_low)  # root − 1 is exact


@register_jitable
def level_of_ratio(ratio, low, n):
    """Level and rest of n entries whose norms have the ratio L1/L2 = ratio + low.

    What is less than a whole number has a level less than that; up to 1e-15 more than one
    counts as one.
    """
    level, rest = two_product(ratio, ratio)
    level, rest = two_sum(level, rest + 2.0 * ratio * low)
    if level < 1.0 + 1e-15:
        return 1.0, 0.0
    if level > n or (level == n and rest > -(2.0**-100) * n):
        return n, 0.0
    if rest < 0.0 and level == math.floor(level):
        below = level - level * 2.0**-53  # the float before it
        return below, (level - below) + rest
    return level, rest


@register_jitable
def level_of_sparseness(sparseness, n):
    """Level and rest of n entries with Hoyer's sparseness: of 1 + (1 − sparseness)·(√n − 1)."""
    most, most_low = root_less_one(n)
    share, share_low = two_sum(1.0, -sparseness)
    more, more_low = two_product(share, most)
    ratio, low = two_sum(1.0, more)
    return level_of_ratio(ratio, low + (more_low + (share * most_low + share_low * most)), n)


@register_jitable
def level_of_norms(l1, l2, n):
    """Level and rest of n entries with these norms; what is n but for their rounding becomes n."""
    if l2 == 0.0:
        return 1.0, 0.0
    unit = int(math.frexp(l2)[1])
    l1, l2 = math.ldexp(l1, -unit), math.ldexp(l2, -unit)
    ratio = l1 / l2
    product, rest = two_product(ratio, l2)
    level, rest = level_of_ratio(ratio, ((l1 - product) - rest) / l2, n)
    return (n, 0.0) if level > n * (1.0 - 1e-15) else (level, rest)


# Groups: the projected norms u of groups with the norms v.


@register_jitable
def feasible_factor(v_max, u_max):
    """What all u are multiplied by so that no u exceeds its v."""
    return v_max / u_max if u_max > v_max else 1.0


@register_jitable
def group_factor(v, u):
    """What the entries of a group are multiplied by; squares that underflow count as zeros."""
    if u < v:
        return u / v
    return 1.0 if v > 0.0 else 0.0


# The ℓ1,∞ ball: each group has a bound u(θ), convex and piecewise linear.


@register_jitable
def l1inf_tangent(u, nu, s, theta):
    """The bound at θ by the tangent that has ν entries above u, which exceed it by S in all."""
    return u + (s - theta) / nu


SUMS_EXPONENT = -64  # of a unit in which no sum of magnitudes overflows
NEAR_RADIUS = 2.0**-30  # of the radius: bounds that miss it by more have too few digits


@register_jitable
def l1inf_before(u, nu, last):
    """The bound after θ has moved on by `last`, the largest νu: 0 for the group that has it."""
    return 0.0 if nu * u == last else u - last / nu


@register_jitable
def l1inf_rounding(u, nu, s):
    """How far a tangent may be off by rounding: steps that differ by less are the same."""
    return 2.0**-50 * (u + s / nu)


@register_jitable
def l1inf_next(theta, total, slope, radius, both):
    """The next θ from the tangents' sum and Σ1/ν; to the right only, unless `both`."""
    step = (total - radius) / slope
    return theta + (step if both else max(step, 0.0))


# Scores, from Σa and Σa².

SIGNED = 0  # (Σa)²/Σa²
MAGNITUDES = 1  # the same of |a|
SPARSENESS = 2  # Hoyer's sparseness, of |a|


@register_jitable
def score(kind, n, s, q):
    """The score of n entries, in its range whatever the rounding; NaN propagates."""
    if kind == SPARSENESS and n <= 1:
        return 1.0 if math.isfinite(s) else math.nan
    value = s / q * s if q != 0.0 else 0.0
    if value > n:
        value = float(n)
    elif kind == MAGNITUDES and 0.0 < value < 1.0:
        value = 1.0
    return sparseness(value, n) if kind == SPARSENESS else value


@register_jitable
def sparseness(score, n):
    """Hoyer's sparseness of n >= 2 entries with this score."""
    if score == 0.0:
        return 1.0
    root = math.sqrt(float(n))
    value = (root - math.sqrt(score)) / (root - 1.0)
    if value < 0.0:
        return 0.0
    return 1.0 if value > 1.0 else value


# The level for a number of nonzeros: the edge, lowered until the projection agrees.


@register_jitable
def lowered(level, margin):
    """A level below this one by a relative margin."""
    return max(level * (1.0 - margin), 1.0)


@register_jitable
def wider(margin, itemsize):
    """The next margin to try: from the rounding of the threshold on, with a stop past the slack.

    Where the entry that is to go hardly counts, only a level for which the input is no longer
    feasible by slack keeps it out, and the next one may keep far fewer.
    """
    step = max(8.0 * margin, 2.0**-53 if itemsize == 8 else 2.0**-24)
    stop = 1.1e-14 if itemsize == 8 else 1.1e-6
    return stop if margin < stop < step else step


# The iterative projection onto the CAI cone: interpolate towards the axis, clip, repeat.

ROUNDS = 1000
ROUND_TOLERANCE = 1e-13


@register_jitable
def spread_score(nu, mean, squares):
    """(Σd)²/Σd² of ν entries with this mean and Σ(d − mean)²."""
    if nu == 0:
        return 0.0
    return nu * (mean * mean / (mean * mean + squares / nu))


@register_jitable
def interpolation(level, nu, mean, squares):
    """The factor f by which f·d + (1 − f)·mean has this score."""
    return mean * math.sqrt((nu - level) / (level * (squares / nu)))


# Group sparse projection: one multiplier μ for several vectors, τ = μ·β with β = 1/(√n − 1).


@register_jitable
def next_above(a):
    """The next float above a; one unit in the last place is between half of this step and it."""
    return a + max(abs(a) * (2.0**-53 + 2.0**-73), 5e-324)


@register_jitable
def gsp_weight(n):
    """β = 1/(√n − 1) for n ≥ 2, as the sum of two floats.

    One float would move τ by its rounding, which near-constant vectors feel.
    """
    below, below_low = root_less_one(n)
    beta = 1.0 / below
    product, rest = two_product(beta, below)
    return beta, beta * (((1.0 - product) - rest) - beta * below_low)


@register_jitable
def gsp_threshold(mu, mu_low, beta, beta_low):
    """τ = μ·β as the sum of two floats."""
    tau, rest = two_product(mu, beta)
    return two_sum(tau, rest + (mu * beta_low + mu_low * beta))


@register_jitable
def gsp_ratio(nu, gap, var):
    """S/√Q = ‖z‖₁ of ν entries d with this mean and variance, and its derivative by τ.

    The derivative, on a fixed support, is (S² − νQ)/Q^(3/2), never positive.  Past the
    largest entry only that is left: 1 and 0.
    """
    if gap <= 0.0:
        return 1.0, 0.0
    inverse = 1.0 / (var + gap * gap)  # ν/Q
    root = math.sqrt(nu * inverse)
    ratio = root * gap
    if ratio <= 1.0:
        return 1.0, 0.0
    return ratio, -root * (var * inverse)


# Coordinate descent over nonnegative numbers.


@register_jitable
def coordinate_step(old, slope, inverse, diagonal, zero, two):
    """The minimiser over [0, ∞) of a quadratic, where it was `old` with this downward slope.

    Returns it, twice the decrease, and the squared length of the step weighted by the
    second derivative `diagonal`.  All numbers are of one dtype.
    """
    new = old + slope * inverse
    new = new if new > zero else zero
    move = new - old
    return new, move * (two * slope - diagonal * move), diagonal * move * move


# AdamW, then the proximal step of the weighted sum of block norms.


@register_jitable
def bias_corrections(lr, beta1, beta2, step):
    """Step length and factor of √v that make up for moments which began at zero."""
    return lr / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step)


@register_jitable
def adamw(p, g, m, v, beta1, rest1, beta2, rest2, decay, length, root, eps):
    """The weight and its moments after a step of AdamW, with rest = 1 − beta, in torch's order.

    `length` and `root` are `bias_corrections`, `decay` is 1 − lr·weight_decay.  All numbers
    are of one dtype.
    """
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    return decay * p - length * (m / (math.sqrt(v) * root + eps)), m, v


@register_jitable
def soft_threshold(a, t, zero):
    """argmin over z of t·|z| + ½(z − a)², never −0; NaN stays."""
    d = abs(a) - t
    return zero if d <= zero else math.copysign(d, a)


@register_jitable
def shrinkage(norm, t):
    """The factor f for which f·a minimises t·‖z‖ + ½‖z − a‖² over z, from ‖a‖; NaN stays."""
    factor = 1.0 - t / norm  # outside of the condition, so that loops over blocks vectorise
    return 0.0 if norm <= t else factor


@register_jitable
def block_weight(norm, eps):
    """The weight γ that a block gets from its norm; eps > 0."""
    return 1.0 / (norm + eps)
