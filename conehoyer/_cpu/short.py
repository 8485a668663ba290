"""Short rows: the thresholds of several at once, by a few steps on a copy of each.

On a short row the passes take no longer than the arithmetic between them, a chain of divisions
and roots that wait for each other.  So each part of a step is done for some rows before the next
part: the processor, which works ahead, computes several chains at once.  Nor is there a choice
between ways to go on, which it would have to guess.

The sums at τ = 0 give a guess, two steps of third order lead close to τ*, and a Newton step ends
the search where (nearly) no entry lies between the last two τ.  Where the machine can compress
registers, the copies of all but the shortest rows lose at the guess what lies well below it, and
only the rest is looked at from then on.  Where the end is not so soon, or where rounding might
matter, the row is searched by itself, by plain passes.  The few that need more, such as a τ <= 0,
are left to the engine, which takes long to compile.
"""

import math
from functools import cache

import numba
import numpy as np
from numba.extending import register_jitable

from .. import _math as m
from .._jit import helper, inlined, kernel
from . import engine, narrow, passes, simd
from .apart import address_of
from .arrays import LOG, NO, NORM, REST, STATUS, WANTED, YES, keep, uncounted
from .narrow import (
    BEFORE,
    FIELDS,
    KEPT,
    LEAST,
    NU,
    SLACK,
    STEP,
    TAKEN,
    TAU,
    VERDICT,
    Q,
    S,
    sharp,
    state,
)

BYTES, LONGEST = 1 << 13, 1 << 15  # of the rows that are searched together, and of one
STEPS = 9  # at most; the third may be the last
FETCHES = 4  # the next rows are fetched in parts, while the first steps are done
BACK = 0.8  # of a τ that is too far right
KEEP_ABOVE = 0.8  # of the guess: a copy loses what lies below
KEEP_FROM = 1 << 11  # bytes of a copy from which that pays
NEAR = 0.3  # of ν², so that a third step is worth its time
TERMS = 8  # of a running sum of float32, see `passes.RUN`; a short row has no later sums in float64


@register_jitable
def suits(n, itemsize):
    """Whether rows of n entries are not too long for this."""
    return n * itemsize <= LONGEST


@helper
def together(x):
    """How many rows of x, which it `suits`, are searched together."""
    size = max(x.shape[1] * x.itemsize, simd.LINE)
    return max(BYTES // size, min(LONGEST // size, 2))


@helper
def scratch(x, count):
    """Room for `count` rows of `search`: what is known of each, and a copy.

    A copy fills whole pairs of registers.
    """
    pair = 2 * simd.lanes(x)
    length = (x.shape[1] + pair - 1) // pair * pair
    line = simd.LINE // x.itemsize
    copies = np.empty(count * length + line, x.dtype)
    start = -copies.ctypes.data % simd.LINE // x.itemsize
    copies = copies[start : start + count * length].reshape((count, length))
    return np.empty((count, FIELDS)), copies


@helper
def _fold(z, absolute, to):
    """Write a to `to` and zeros behind it; the number of nonzeros, Σa and Σa².

    NaN reaches the sums, which are correct where no a is negative.
    """
    inlined()
    width, zero = simd.lanes(z), simd.splat(z.dtype.type(0.0))
    nu, s, q = 0, simd.widen_sum(zero), simd.widen_sum(zero)
    for begin in range(0, to.size, 4 * passes.RUN * width):
        end = min(begin + 4 * passes.RUN * width, to.size)
        firsts0, firsts1, seconds0, seconds1 = zero, zero, zero, zero
        for i in range(begin, min(end, z.size - 2 * width + 1), 2 * width):
            a0 = _positive(simd.load(z, i), absolute)
            a1 = _positive(simd.load(z, i + width), absolute)
            nu += simd.count(simd.not_below(a0, zero))
            nu += simd.count(simd.not_below(a1, zero))
            firsts0, seconds0 = simd.add(firsts0, a0), simd.multiply_add(a0, a0, seconds0)
            firsts1, seconds1 = simd.add(firsts1, a1), simd.multiply_add(a1, a1, seconds1)
            simd.store(a0, to, i)
            simd.store(a1, to, i + width)
        if end > z.size:
            for i in range(to.size - 2 * width, to.size, width):
                a = simd.load_part(z, i, simd.first_lanes(zero, z.size - i))
                a = _positive(a, absolute)
                nu += simd.count(simd.not_below(a, zero))
                firsts0, seconds0 = simd.add(firsts0, a), simd.multiply_add(a, a, seconds0)
                simd.store(a, to, i)
        s = simd.add(s, simd.widen_sum(simd.add(firsts0, firsts1)))
        q = simd.add(q, simd.widen_sum(simd.add(seconds0, seconds1)))
    return float(nu), simd.total(s), simd.total(q)


@helper
def _positive(v, absolute):
    """|v|, or max(v, 0) where not `absolute`: negative entries never exceed a τ >= 0."""
    inlined()
    if absolute:
        return simd.magnitude(v)
    return simd.where(simd.not_less(v, simd.nothing(v)), v, simd.nothing(v))


@helper
def _sums(a, tau):
    """Count, Σ(a − τ) and Σ(a − τ)² over a > τ >= 0, of a copy that holds all of these."""
    inlined()
    width, far = simd.lanes(a), simd.splat(tau)
    zero = simd.nothing(far)
    run = 2 * (TERMS if a.itemsize == 4 else 2 * passes.RUN) * width
    nu, s, q = 0, simd.widen_sum(zero), simd.widen_sum(zero)
    for begin in range(0, a.size, run):
        firsts0, firsts1, seconds0, seconds1 = zero, zero, zero, zero
        for i in range(begin, min(begin + run, a.size), 2 * width):
            gap0, gap1 = simd.sub(simd.load(a, i), far), simd.sub(simd.load(a, i + width), far)
            in0, in1 = simd.above(gap0, zero), simd.above(gap1, zero)
            nu += simd.count(in0)
            nu += simd.count(in1)
            firsts0, seconds0 = passes.add_inside(in0, gap0, firsts0, seconds0)
            firsts1, seconds1 = passes.add_inside(in1, gap1, firsts1, seconds1)
        s = simd.add(s, simd.widen_sum(simd.add(firsts0, firsts1)))
        q = simd.add(q, simd.widen_sum(simd.add(seconds0, seconds1)))
    return float(nu), simd.total(s), simd.total(q)


if simd.COMPRESS:

    @helper
    def _keep(a, least):
        """Move the entries above `least` to the front of a row's copy, and zeros behind them.

        Returns how many places they take, whole pairs of registers, and `least`.
        """
        inlined()
        width, zero = simd.lanes(a), simd.splat(a.dtype.type(0))
        kept = passes.collect_blocks(a, NO, least, a)
        for i in (kept, kept + width):
            simd.store_part(zero, simd.first_lanes(zero, a.size - i), a, i)
        return (kept + 2 * width - 1) // (2 * width) * (2 * width), least

else:

    @helper
    def _keep(a, least):
        """Leave all as it is: this machine cannot move them."""
        return a.size, least - least


@helper
def _passed(a, tau, step, slack):
    """Σ|(a − τ) − step| of the entries from τ to τ + step, or `slack` further right.

    And how many of them are above τ, in the sums there.  Only where one may be is looked closely,
    which takes half the instructions.
    """
    inlined()
    zero = a.dtype.type(0)
    low, high = min(step, zero), max(step, zero) + slack
    half = a.dtype.type(0.5) * (high - low)
    middle, reach = simd.splat(tau + (low + half)), simd.splat(half + slack)  # for rounding
    low, high = simd.splat(low), simd.splat(high)
    far, step = simd.splat(tau), simd.splat(step)
    nothing = simd.nothing(far)
    count, sums = 0, nothing
    width = simd.lanes(a)
    for i in range(0, a.size, 2 * width):
        off0 = simd.magnitude(simd.sub(simd.load(a, i), middle))
        off1 = simd.magnitude(simd.sub(simd.load(a, i + width), middle))
        if simd.any_lane(simd.not_less(reach, simd.smaller(off0, off1))):  # rarely
            for j in range(i, i + 2 * width, width):
                gap = simd.sub(simd.load(a, j), far)
                inside = simd.both(simd.above(gap, low), simd.not_less(high, gap))
                count += simd.count(simd.both(inside, simd.above(gap, nothing)))
                off = simd.magnitude(simd.sub(gap, step))
                sums = simd.where(inside, simd.add(sums, off), sums)
    return float(count), simd.total(sums)


@helper
def _look(z, absolute, folded, row, log):
    """Take the sums at the row's τ."""
    inlined()
    taken = int(row[TAKEN])
    if row[TAU] < row[LEAST]:
        nu, s, q = _fold(z, absolute, folded)
        row[KEPT], row[LEAST] = folded.size, 0.0
    elif taken == 1 and folded.size * folded.itemsize >= KEEP_FROM:
        row[KEPT], row[LEAST] = _keep(folded, z.dtype.type(KEEP_ABOVE * row[TAU]))
    if taken > 0:
        nu, s, q = _sums(folded[: int(row[KEPT])], z.dtype.type(row[TAU]))
    if taken < log.size:
        log[taken] = nu
    row[NU], row[S], row[Q], row[TAKEN], row[BEFORE] = nu, s, q, taken + 1.0, row[NU]


@helper
def _holds(square, itemsize):
    """Whether numbers of this square sum neither overflow nor lose digits if squared."""
    inlined()
    return 1e-18 < square < 1e30 if itemsize == 4 else 1e-200 < square < 1e200


@helper
def _go_to(tau, real, row):
    """Take the sums there next."""
    inlined()
    row[TAU] = real(tau)
    if not 0.0 < row[TAU] < math.inf:
        row[VERDICT] = m.CAPPED


@helper
def _guess(kind, p, tol, itemsize, real, row):
    """From the sums at τ = 0, whether the row is feasible, or a guess."""
    inlined()
    nu, s, q = row[NU], row[S], row[Q]
    if nu == 0.0:
        row[VERDICT] = m.FEASIBLE
    elif not _holds(q, itemsize):
        row[VERDICT] = m.RESCALE
    elif itemsize == 4 and engine.rough_start(kind, p, nu, s, q):
        row[VERDICT] = m.CAPPED
    elif m.closeness(kind, p, s, q) <= tol:
        row[VERDICT] = m.FEASIBLE
    else:
        _go_to(m.tail_guess(kind, p, nu, s, q), real, row)


@helper
def _step(kind, p, itemsize, real, row):
    """A step of third order; back where too few entries are left for one."""
    inlined()
    nu, s, q, tau = row[NU], row[S], row[Q], row[TAU]
    if not _holds(tau * tau + q, itemsize):
        row[VERDICT] = m.RESCALE
    elif not nu > (p if kind >= m.CAI else 0.0):
        _go_to(BACK * tau, real, row)
    else:
        _go_to(tau + m.tail_step(kind, p, nu, s, q), real, row)


@helper
def _is_last(kind, p, row):
    """Whether a Newton step is to end it: most likely no entry is left between τ and τ*.

    So it is after two steps of third order; or after one which has passed so few, g, that its
    smooth density, off by about √g, has misled it by less than an entry.
    """
    inlined()
    if row[TAKEN] > 3.0:
        return True
    passed, nu = abs(row[NU] - row[BEFORE]), row[NU]
    near = row[TAKEN] == 3.0 and passed * passed * passed < NEAR * nu * nu
    return near and sharp(kind, p, nu, row[TAU])


@helper
def _last_step(kind, p, itemsize, row):
    """A Newton step, where its rounding is harmless."""
    inlined()
    nu, s, q, tau = row[NU], row[S], row[Q], row[TAU]
    if not _holds(tau * tau + q, itemsize):
        row[VERDICT] = m.RESCALE
    elif not sharp(kind, p, nu, tau):
        row[VERDICT] = m.CAPPED
    else:
        row[STEP] = m.newton_offset(kind, p, nu, s, q)


@helper
def _end(kind, p, folded, row):
    """The verdict if what the last step passes would change the sums by no more than rounding."""
    inlined()
    real = folded.dtype.type
    nu, s, q, tau, step = row[NU], row[S], row[Q], row[TAU], row[STEP]
    slack = SLACK * np.finfo(real).eps * (tau + s / nu)
    if row[LEAST] > max(tau + step - slack, 0.0):  # the copy may not hold all there
        _go_to(tau + step, real, row)
        return
    passed, wrong = _passed(folded[: int(row[KEPT])], real(tau), real(step), real(slack))
    # Without entries so near to τ that rounding lets them in, it must still be a sharp step.
    fine = sharp(kind, p, nu - passed, tau) and abs(step) <= s / nu - step
    if wrong <= np.finfo(real).eps * s and fine:
        row[VERDICT] = m.SOFT
        row[S], row[Q] = m.sums_at(nu, s, q, step)
    else:
        _go_to(tau + step, real, row)


@helper
def _fetch_part(row, k):
    """Ask for the k-th of `FETCHES` parts of a row."""
    inlined()
    part = -(-row.size // FETCHES)
    for i in range(k * part, min((k + 1) * part, row.size), simd.LINE // row.itemsize):
        simd.fetch_early(row, i)


@helper
def search(kind, absolute, tol, x, ahead, targets, folded, rows, table):
    """Find out about the rows of x what `rows` holds; CAI and L1, whose τ > 0 serves all kinds.

    `folded` is scratch.  The rows `ahead`, which come next, and `targets`, where their results will
    be, are fetched meanwhile.
    """
    x, ahead, targets = uncounted(x), uncounted(ahead), uncounted(targets)
    folded, rows, table = uncounted(folded), uncounted(rows), uncounted(table)
    real, itemsize = x.dtype.type, x.itemsize
    for r in range(x.shape[0]):
        p = table[r, WANTED]
        usual = 1.0 < p < x.shape[1] if kind >= m.CAI else p > 0.0
        usual = usual and (absolute or passes.all_finite(x[r]))
        rows[r, VERDICT] = m.GO if usual else m.CAPPED
        rows[r, TAU], rows[r, STEP], rows[r, TAKEN], rows[r, LEAST] = 0.0, 0.0, 0.0, math.inf
        table[r, LOG:] = -1.0
    for k in range(STEPS):
        going = False
        for r in range(x.shape[0]):
            if r < ahead.shape[0]:
                _fetch_part(ahead[r], k)
            if r < targets.shape[0]:
                _fetch_part(targets[r], k)
            if rows[r, VERDICT] == m.GO:
                _look(x[r], absolute, folded[r], rows[r], table[r, LOG:])
                going = True
        if not going:
            break
        for r in range(x.shape[0]):
            if rows[r, VERDICT] == m.GO:
                if k == 0:
                    _guess(kind, table[r, WANTED], tol, itemsize, real, rows[r])
                elif _is_last(kind, table[r, WANTED], rows[r]):
                    _last_step(kind, table[r, WANTED], itemsize, rows[r])
                else:
                    _step(kind, table[r, WANTED], itemsize, real, rows[r])
        if k >= 2:
            for r in range(x.shape[0]):
                if rows[r, VERDICT] == m.GO and _is_last(kind, table[r, WANTED], rows[r]):
                    _end(kind, table[r, WANTED], folded[r], rows[r])


@helper
def _by_plain_steps(kind, absolute, p, tol, row, z, copy, log):
    """The verdict on a row, if there is one: from its last τ on, with the sums in float64."""
    tau, taken = row[TAU] if 0.0 < row[TAU] < math.inf else 0.0, int(row[TAKEN])
    st = m.State(m.GO, 0.0, tau, 0.0, math.inf, -1.0, 0, False, False, taken, 0.0, 0.0)
    while st.status == m.GO:
        if st.anchor + st.offset > row[LEAST]:
            nu, s, q = passes.sums(copy[: int(row[KEPT])], NO, st.anchor, st.offset)
        else:
            nu, s, q = passes.sums(z, absolute, st.anchor, st.offset)
        st = engine.advance(kind, p, tol, st, nu, s, q, log)
    if kind == m.L1 and st.status == m.SOFT and p < passes.TINY * (st.anchor + st.offset):
        return m.start(kind)  # only differences to the largest entry have digits enough
    return st


@helper
def _verdict(kind, searched, absolute, p, tol, l2, rest, row, z, copy, scaled, log):
    """The verdict on a row and the norm wanted; GO: left to the engine, RESCALE: another unit."""
    st = state(row)
    if st.status == m.SOFT or st.status == m.FEASIBLE:
        pass
    elif engine.is_extreme(kind, p, z.size):
        job = engine.extreme(kind, absolute, p, tol, l2, z)
        st, l2 = job.state, job.l2
    elif st.status != m.RESCALE:
        st = _by_plain_steps(searched, absolute, p, tol, row, z, copy, log)
    negative = st.status == m.FEASIBLE and kind != searched  # τ <= 0
    if st.status == m.CAPPED or st.status == m.NONFINITE or negative:
        return m.start(kind), l2
    if kind == m.HOYER and st.status != m.RESCALE:
        if l2 < 0.0:  # the norm wanted is that of the input
            q = passes.squares(z)
            if not q < 1e200:
                return m.start(kind), l2
            l2 = math.sqrt(q)
        st = engine.refine(st, absolute, p, rest, z)
        if st.status == m.SOFT and not (scaled or m.fits_unit(l2, st, z.itemsize)):
            row[VERDICT] = m.RESCALE
            st = state(row)
    return st, l2


@helper
def _rescaled(
    kind, searched, absolute, tol, rest, z, scaled, folded, columns, known, out, table
):  # fmt: skip
    """Project a row in the unit of its largest entry, unless it is left to the engine."""
    report = table[0, :LOG]
    wanted = report[WANTED]
    shift, back, p, l2 = engine.scale(kind, absolute, wanted, report[NORM], z, scaled, NO)
    if kind <= m.SIMPLEX and p < passes.TINY:  # the engine needs no unit then
        return
    rows = scaled.reshape((1, z.size))
    if searched == m.CAI or wanted >= np.finfo(z.dtype.type).tiny:
        report[WANTED] = p
        if columns.size:
            cut = kind == m.HOYER and not absolute and engine.is_cut(scaled)
            sought = searched if cut else kind
            narrow.search(sought, absolute, tol, rows, columns, known, table)
        else:
            search(searched, absolute, tol, rows, rows[:0], rows[:0], folded, known, table)
        report[WANTED] = wanted
    else:  # results are rounded to a few units, and half a unit of τ must be just that
        known[0, VERDICT], known[0, TAU], known[0, TAKEN] = m.GO, 0.0, 0.0
        known[0, LEAST], table[0, LOG:] = math.inf, -1.0
    st, l2 = _verdict(
        kind, searched, absolute, p, tol, l2, rest, known[0], scaled, folded[0], YES,
        table[0, LOG:],
    )  # fmt: skip
    if st.status != m.GO and st.status != m.RESCALE:
        written = columns.size > 0 and known[0, VERDICT] == m.SOFT
        if written:
            report[NORM], report[WANTED], report[REST] = l2, p, rest
            narrow.write(kind, absolute, rows, columns, known, table, rows, YES)
        engine.report_on(st, kind, p, report)
        engine.write_scaled(
            st, kind, absolute, p, l2, rest, z, scaled, written, shift, back, out, report
        )


@kernel
def project_rows(kind, absolute, tol, strict, whole, x, out, table, first, last):
    """`engine.project_rows` of rows that it `suits`; the status of those that are left stays GO."""
    n = x.shape[1]
    few = n <= narrow.MOST
    some = narrow.WIDTH if few else together(x)
    past = engine.goes_past(x, out)
    own_known, own_folded = scratch(x, some)
    own_scaled = np.empty(0, x.dtype)  # until it is needed
    own_columns = narrow.columns_for(n)
    known, folded, scaled = uncounted(own_known), uncounted(own_folded), uncounted(own_scaled)
    columns = uncounted(own_columns)
    x, out, table = uncounted(x), uncounted(out), uncounted(table)
    searched = m.CAI if kind == m.HOYER else m.L1 if kind == m.SIMPLEX else kind  # the same τ > 0
    begin = first
    while begin < last:
        end = min(begin + some, last)
        after = min(end + some, last)
        if few:
            narrow.search(kind, absolute, tol, x[begin:end], columns, known, table[begin:end])
            narrow.write(
                kind, absolute, x[begin:end], columns, known, table[begin:end], out[begin:end], NO
            )
        else:
            targets = out[end:after] if whole and not past else out[:0]
            search(
                searched, absolute, tol, x[begin:end], x[end:after], targets,
                folded, known, table[begin:end],
            )  # fmt: skip
        for r in range(begin, end):
            z, row, report, log = x[r], known[r - begin], table[r, :LOG], table[r, LOG:]
            p, l2 = report[WANTED], report[NORM]
            rest = report[REST] if kind == m.HOYER else 0.0
            # The usual cases, in few words.
            if few and (row[VERDICT] == m.SOFT or row[VERDICT] == m.FEASIBLE):
                engine.report_on(state(row), kind, p, report)
                continue
            if row[VERDICT] == m.SOFT and kind != m.HOYER:
                st = state(row)
                engine.write_soft(kind, st, l2, z, absolute, out[r], past)
                engine.report_on(st, kind, p, report)
                continue
            if row[VERDICT] != m.SOFT and row[VERDICT] != m.FEASIBLE and not passes.all_finite(z):
                if not strict:
                    continue
                report[STATUS] = m.NONFINITE
                end = last
                break
            st, l2 = _verdict(
                kind, searched, absolute, p, tol, l2, rest, row, z, folded[r - begin], NO, log
            )
            if st.status == m.RESCALE:
                if scaled.size == 0:
                    own_scaled = np.empty(n, x.dtype)
                    scaled = uncounted(own_scaled)
                _rescaled(
                    kind, searched, absolute, tol, rest, z, scaled, folded, columns,
                    known[r - begin : r - begin + 1], out[r], table[r : r + 1],
                )  # fmt: skip
            elif st.status != m.GO:
                engine.write_verdict(kind, st, l2, p, rest, n, z, absolute, out[r], past)
                engine.report_on(st, kind, p, report)
        begin = end
    if past:
        simd.drain()
    keep((own_known, own_folded, own_scaled, own_columns))


# --- from other kernels ------------------------------------------------------------------------


@cache
def address(dtype):
    """Where `project_rows` for arrays of this dtype lies."""
    return address_of(project_rows, engine.kinds_of_rows(numba.from_dtype(dtype)))


_engine: dict = {}  # dtypes, and where the engine's lies: those that have been needed


def address_of_engine(dtype):
    """Where `engine.project_rows` for arrays of this dtype lies; compiles it."""
    if dtype not in _engine:
        kinds = engine.kinds_of_rows(numba.from_dtype(dtype))
        _engine[dtype] = address_of(engine.project_rows, kinds)
    return _engine[dtype]


def addresses(n, dtype):
    """For `project_by`: of this, 0 if it won't do, and of the engine, 0 if never needed yet."""
    if suits(n, dtype.itemsize):
        return address(dtype), _engine.get(dtype, 0)
    return 0, address_of_engine(dtype)


@helper
def project_by(places, kind, absolute, tol, strict, whole, x, out, table, first, last):
    """Project rows by what lies at these `addresses`; those that need what is 0 keep status GO."""
    here, there = places
    if here != 0 and suits(x.shape[1], x.itemsize):
        engine.rows_at(here, kind, absolute, tol, strict, whole, x, out, table, first, last)
        left = False
        for r in range(first, last):
            left |= table[r, STATUS] == m.GO
        if not left:
            return
    if there != 0:
        engine.rows_at(there, kind, absolute, tol, strict, whole, x, out, table, first, last)
