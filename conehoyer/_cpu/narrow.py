"""Narrow rows: the thresholds of several side by side, each in one lane of the registers.

On a row of few entries a search takes no longer than the way in and out, and most of its registers
is empty.  So some rows become columns, in float64, and are searched in step: by Newton's steps from
the left, until the support is the same twice, or a step leads nowhere.  Of few entries that takes
few passes, and no branch depends on a single row.  Those where rounding might matter are left to
`short`.
"""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, inlined
from . import engine, passes, simd
from .arrays import LOG, NORM, REST, WANTED, uncounted

MOST = 32  # entries of a row; of more, `short` takes less time where registers are short
WIDTH = simd.REGISTER_BITS // 64  # rows side by side
STEPS = 12  # at most
TERMS = 8  # of a running sum, see `passes.RUN`
AMPLE = 1.1  # from so many entries for each of l on, rounding is not blown up
SLACK = 32.0  # times the rounding of τ: entries so near to it may have come in by rounding

# What is known of a row: one of `_math`'s verdicts (GO: none yet; CAPPED: none by this search),
# the last τ, the sums there (after the verdict: at τ + step), the step from it, sums taken, ν at
# the τ before; and of its copy, how many places are taken, and above what it has all entries (+inf:
# there is none).
VERDICT, TAU, STEP, NU, S, Q, TAKEN, BEFORE, KEPT, LEAST = range(10)
FIELDS = LEAST + 1

# What lies behind the columns, a register of each: the levels or radii; the verdict, τ, the step
# from it and the sums there; the passes; how many entries are near τ, and how far from it; what d
# has to exceed, and the factor of the results.
WISH, KIND, AT, BY, COUNT, FIRST, SECOND, LOOKS, PASSED, WRONG, DUST, FACTOR = range(12)
BEHIND = FACTOR + 1


@helper
def columns_for(n):
    """Scratch for `search` and `write`; none for rows that are too long."""
    size = (n + BEHIND) * WIDTH if n <= MOST else 0
    room = np.empty(size + WIDTH, np.float64)
    start = -room.ctypes.data % simd.LINE // 8
    return room[start : start + size]


@helper
def sharp(kind, p, nu, tau):
    """Whether a Newton step from ν entries, none of them near τ, keeps its digits."""
    inlined()
    if kind >= m.CAI:
        return nu > AMPLE * p
    return nu > 0.0 and p > passes.TINY * abs(tau)


@helper
def _is_free(kind):
    """Whether τ may have any sign."""
    inlined()
    return kind == m.SIMPLEX or kind == m.HOYER


@helper
def _to_columns(x, columns):
    """Copy the rows; where there are fewer, the last one again."""
    inlined()
    count, n = x.shape
    if count == WIDTH:
        flat = x.reshape(x.size)
        for i in range(n):
            simd.store(simd.gathered(flat, i, n), columns, i * WIDTH)
    else:
        for i in range(n):
            for j in range(WIDTH):
                columns[i * WIDTH + j] = x[min(j, count - 1), i]


@helper
def _first_sums(kind, columns, n, signs):
    """ν, S and Q over a > 0, or all entries if τ is free; Q is NaN beside what is not finite."""
    inlined()
    zero, one = simd.splat(0.0), simd.splat(1.0)
    nu, s, q, lost = zero, zero, zero, zero
    for begin in range(0, n, TERMS):
        firsts, seconds = zero, zero
        for i in range(begin, min(begin + TERMS, n)):
            a = simd.without(simd.load(columns, i * WIDTH), signs)
            lost = simd.multiply_add(a, zero, lost)
            if _is_free(kind):
                nu, firsts = simd.add(nu, one), simd.add(firsts, a)
                seconds = simd.multiply_add(a, a, seconds)
            else:
                inside = simd.above(a, zero)
                nu = simd.add(nu, simd.where(inside, one, zero))
                firsts, seconds = passes.add_inside(inside, a, firsts, seconds)
        s, q = simd.add(s, firsts), simd.add(q, seconds)
    return nu, s, simd.add(q, lost)


@helper
def _sums(columns, n, signs, tau):
    """ν, S and Q relative to τ."""
    inlined()
    zero, one = simd.splat(0.0), simd.splat(1.0)
    nu, s, q = zero, zero, zero
    for begin in range(0, n, TERMS):
        firsts, seconds = zero, zero
        for i in range(begin, min(begin + TERMS, n)):
            gap = simd.sub(simd.without(simd.load(columns, i * WIDTH), signs), tau)
            inside = simd.above(gap, zero)
            nu = simd.add(nu, simd.where(inside, one, zero))
            firsts, seconds = passes.add_inside(inside, gap, firsts, seconds)
        s, q = simd.add(s, firsts), simd.add(q, seconds)
    return nu, s, q


@helper
def _passed(columns, n, signs, tau, step, slack):
    """Σ|(a − τ) − step| of the entries from τ to τ + step, or `slack` further; how many are > τ."""
    inlined()
    zero, one = simd.splat(0.0), simd.splat(1.0)
    low, high = simd.sub(simd.smaller(step, zero), slack), simd.add(max(step, zero), slack)
    count, sums = zero, zero
    for i in range(n):
        gap = simd.sub(simd.without(simd.load(columns, i * WIDTH), signs), tau)
        inside = simd.both(simd.not_less(gap, low), simd.not_less(high, gap))
        count = simd.add(count, simd.where(simd.both(inside, simd.above(gap, zero)), one, zero))
        sums = simd.add(sums, simd.where(inside, simd.magnitude(simd.sub(gap, step)), zero))
    return count, sums


@helper
def _keep(value, behind, what):
    inlined()
    simd.store(value, behind, what * WIDTH)


@helper
def _kept(behind, what):
    inlined()
    return simd.load(behind, what * WIDTH)


@helper
def _search(kind, tol, least, columns, n, signs, behind, log):
    """Find out about the columns what lies behind them; a single row may have a log.

    Where the sum of the squares is not above `least`, another unit is needed.
    """
    inlined()
    zero, one, far = simd.splat(0.0), simd.splat(1.0), simd.splat(math.inf)
    p = _kept(behind, WISH)
    nu0, s0, q0 = _first_sums(kind, columns, n, signs)
    if kind >= m.CAI:
        excess, unit, limit = m.level_excess(p, s0, q0), p * q0, p
        usual = simd.both(simd.above(p, one), simd.above(simd.splat(np.float64(n)), p))
    else:
        excess, unit, limit = s0 - p, p, zero
        usual = simd.above(far, p)
    if _is_free(kind):
        excess = simd.magnitude(excess)
    holds = simd.both(simd.above(q0, simd.splat(least)), simd.above(simd.splat(1e200), q0))
    going = simd.both(simd.both(usual, holds), simd.above(excess, simd.splat(tol) * unit))
    soft, capped = simd.splat(np.float64(m.SOFT)), simd.splat(np.float64(m.CAPPED))
    met = simd.splat(np.float64(m.FEASIBLE))
    if _is_free(kind):  # an equality, for which more has to be asked
        met = capped
    empty = simd.both(simd.above(one, q0), simd.not_less(zero, simd.magnitude(s0)))
    other = simd.where(simd.either(holds, empty), met, simd.splat(np.float64(m.RESCALE)))
    other = simd.where(usual, other, capped)
    # Where nothing is sought, τ = inf leaves nothing to move for.
    tau = simd.where(going, m.newton_offset(kind, p, nu0, s0, q0), far)
    taken = simd.where(usual, one, zero)
    if log.size:
        _keep(nu0, behind, COUNT)
        log[:] = -1.0
        log[0] = behind[COUNT * WIDTH]
    before, moves, looks, near = nu0, going, 1, simd.splat(SLACK * 2.0**-52)
    nu, s, q, step = nu0, s0, q0, zero
    while simd.any_lane(moves) and looks < STEPS:
        if looks > 1:
            tau = simd.where(moves, tau + step, tau)
        taken = simd.where(moves, taken + one, taken)
        nu, s, q = _sums(columns, n, signs, tau)
        step = m.newton_offset(kind, p, nu, s, q)
        moves = simd.both(simd.unequal(nu, before), simd.above(nu, limit))
        # An entry at τ* itself may be in and out by turns.
        far_enough = simd.above(simd.magnitude(step), simd.magnitude(tau) * near)
        moves = simd.both(moves, far_enough)
        before = nu
        if looks < log.size:
            _keep(nu, behind, COUNT)
            log[looks] = behind[COUNT * WIDTH]
        looks += 1
    found = simd.where(going, simd.where(moves, capped, soft), other)
    tau, step = simd.where(going, tau, zero), simd.where(going, step, zero)
    slack = near * (simd.magnitude(tau) + s / nu)
    passed, wrong = _passed(columns, n, signs, tau, step, slack)
    _keep(found, behind, KIND)
    _keep(tau, behind, AT)
    _keep(step, behind, BY)
    _keep(simd.where(going, nu, nu0), behind, COUNT)
    _keep(simd.where(going, s, s0), behind, FIRST)
    _keep(simd.where(going, q, q0), behind, SECOND)
    _keep(taken, behind, LOOKS)
    _keep(passed, behind, PASSED)
    _keep(wrong, behind, WRONG)


@helper
def _judge(kind, p, behind, j, row):
    """Tell `row` what is known of it, and whether it may count."""
    inlined()
    verdict, tau, step = behind[KIND * WIDTH + j], behind[AT * WIDTH + j], behind[BY * WIDTH + j]
    nu, s, q = behind[COUNT * WIDTH + j], behind[FIRST * WIDTH + j], behind[SECOND * WIDTH + j]
    if verdict == m.SOFT:
        # Without entries so near to τ that rounding lets them in, it must still be a sharp step.
        fine = sharp(kind, p, nu - behind[PASSED * WIDTH + j], tau)
        fine = fine and behind[WRONG * WIDTH + j] <= 2.0**-52 * s and abs(step) <= s / nu - step
        if fine:
            s, q = m.sums_at(nu, s, q, step)
        else:
            verdict = m.CAPPED
    row[VERDICT], row[TAU], row[STEP], row[LEAST] = verdict, tau, step, math.inf
    row[NU], row[S], row[Q], row[TAKEN] = nu, s, q, behind[LOOKS * WIDTH + j]


@helper
def search(kind, absolute, tol, x, columns, rows, table):
    """Find out about up to `WIDTH` rows of x what `rows` holds.

    `columns` is scratch, which `write` needs as well.
    """
    x, columns = uncounted(x), uncounted(columns)
    rows, table = uncounted(rows), uncounted(table)
    count, n = x.shape
    behind = columns[n * WIDTH :]
    for j in range(WIDTH):
        behind[WISH * WIDTH + j] = table[min(j, count - 1), WANTED]
    signs = simd.signs(simd.splat(0.0), absolute)
    _to_columns(x, columns)
    least = 1e-50 if x.itemsize == 4 else 1e-200  # results of float32 might be subnormal
    _search(kind, tol, least, columns, n, signs, behind, table[0, LOG:])
    for j in range(count):
        _judge(kind, table[j, WANTED], behind, j, rows[j])


@helper
def _refined(absolute, z, about, row, scaled):
    """Take Hoyer's whole level, and return the norm wanted; RESCALE if another unit is needed."""
    l2 = about[NORM]
    if l2 < 0.0:
        l2 = math.sqrt(passes.squares(z))  # as for rows that have no verdict yet
    st = engine.refine(state(row), absolute, about[WANTED], about[REST], z)
    if not scaled and not m.fits_unit(l2, st, z.itemsize):
        row[VERDICT] = m.RESCALE
    row[TAU], row[STEP], row[NU], row[S], row[Q] = st.anchor, st.offset, st.nu, st.s, st.q
    return l2


@helper
def write(kind, absolute, x, columns, rows, table, out, scaled):
    """Write the results of the rows of x that have a soft threshold or are feasible.

    `scaled`: no other unit will do better.
    """
    x, columns, rows = uncounted(x), uncounted(columns), uncounted(rows)
    table, out = uncounted(table), uncounted(out)
    count, n = out.shape
    behind = columns[n * WIDTH :]
    all_written = count == WIDTH
    for j in range(count):
        row, l2 = rows[j], 0.0
        if kind == m.HOYER and row[VERDICT] == m.SOFT:
            l2 = _refined(absolute, x[j], table[j], row, scaled)
        if row[VERDICT] == m.SOFT:
            anchor, offset, dust, factor = engine.soft(kind, state(row), l2, np.float64)
            behind[AT * WIDTH + j], behind[BY * WIDTH + j] = anchor, offset
        else:  # as it is, or without what is negative
            dust, factor = -1.0 if absolute else 0.0, 1.0
            all_written &= row[VERDICT] == m.FEASIBLE
        behind[DUST * WIDTH + j], behind[FACTOR * WIDTH + j] = dust, factor
    anchor, offset = _kept(behind, AT), _kept(behind, BY)
    dust, factor = _kept(behind, DUST), _kept(behind, FACTOR)
    signs = simd.signs(dust, absolute)
    for i in range(n):
        v = simd.load(columns, i * WIDTH)
        simd.store(passes.soft(v, signs, anchor, offset, dust, factor), columns, i * WIDTH)
    if all_written:
        goal = out.reshape(out.size)
        for i in range(n):
            simd.scatter(simd.load(columns, i * WIDTH), goal, i, n)
        return
    for j in range(count):
        if rows[j, VERDICT] == m.SOFT or rows[j, VERDICT] == m.FEASIBLE:
            for i in range(n):
                out[j, i] = columns[i * WIDTH + j]


@helper
def state(row):
    """The engine's state at a verdict."""
    inlined()
    return m.State(
        int(row[VERDICT]), row[TAU], row[STEP], 0.0, 0.0, row[NU], 0, False, True,
        int(row[TAKEN]), row[S], row[Q],
    )  # fmt: skip
