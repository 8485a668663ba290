"""The threshold engine on the CPU: which pass comes next, and the drivers.

One slice is projected in three kinds of steps.  `begin` and `proceed` decide (scalars
and a few thousand entries), `run_pass` and `write` do the work on chunks of the slice,
by one thread or by several.  Chunks and the order in which their sums are added do not
depend on the number of threads, so the result has the same bits for any number.

The usual course on a long slice: a sample gives τ and its standard error; one pass sums
what lies above the band τ ± 3.5 errors and stores what lies inside it; the few stored
entries then give τ exactly; one pass writes.  Where the sample misleads, the band's sums
are still exact at its edges, and the search goes on from there with plain passes.
"""

import math
from typing import NamedTuple

import numpy as np

from .. import _math as m
from .._jit import kernel
from . import passes

CHUNK = 65536
SAMPLE_FROM = 16384  # shorter slices start at τ = 0
RUN = 16  # the sample consists of short runs: each costs a cache miss
WIDTH = 3.5  # half width of the band, in standard errors
FEW = 64.0  # fewer sample entries than this above τ give no useful upper edge

SUMS, BAND, WRITE = 0, 1, 2


class Job(NamedTuple):
    """What to do next with a slice."""

    action: int
    state: m.State
    lo: float  # BAND: the edges
    hi: float
    rare: bool  # BAND: few entries lie inside
    l2: float  # HOYER: the norm wanted; negative: that of the input
    sampled: bool


@kernel
def chunks_of(n):
    """Number of chunks of a slice of length n."""
    return max((n + CHUNK - 1) // CHUNK, 1)


@kernel
def _move(st, anchor, offset, pinned):
    """The state `st`, to be evaluated next at a τ that is no Newton step."""
    return m.State(
        m.GO, anchor, offset, st.lo, st.hi, -1.0, st.overshoots, pinned, st.at_zero,
        st.passes, 0.0, 0.0,
    )  # fmt: skip


@kernel
def _solve_short(kind, p, z, st):
    """Solve on a short slice by plain passes; used on the sample."""
    while st.status == m.GO:
        nu, s, q = passes.sums(z, False, st.anchor, st.offset)
        st = m.advance(kind, p, 0.0, st, nu, s, q)
    return st


@kernel
def _take_sample(z, absolute, count, buffer):
    """Copy `count` short runs, one from each stratum of the slice."""
    stratum = z.size / count
    free = max(int(stratum) - RUN, 1)
    seed = np.uint64(0x9E3779B97F4A7C15)
    for j in range(count):
        seed = seed * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        first = int(j * stratum) + int((seed >> np.uint64(33)) % np.uint64(free))
        first = min(first, z.size - RUN)
        for i in range(RUN):
            value = z[first + i]
            buffer[j * RUN + i] = abs(value) if absolute else value


@kernel
def _standard_error(kind, p, z, st):
    """Standard error of the sample's τ, from the spread between runs."""
    count = z.size // RUN
    total, squares = 0.0, 0.0
    for j in range(count):
        influence = 0.0
        for i in range(j * RUN, (j + 1) * RUN):
            d = max((np.float64(z[i]) - st.anchor) - st.offset, 0.0)
            influence += d if kind <= m.SIMPLEX else (2.0 * st.s - p * d) * d
        total += influence
        squares += influence * influence
    spread = math.sqrt(max(squares - total * total / count, 0.0))
    slope = st.nu if kind <= m.SIMPLEX else 2.0 * st.s * (st.nu - p)
    return spread / slope if slope > 0.0 else math.inf


@kernel
def _sampled(job, kind, absolute, p, z, buffer):
    """Choose the band, or a plain start, from a sample."""
    st = job.state
    plain = Job(SUMS, st, 0.0, 0.0, False, job.l2, True)
    count = min(max(z.size // 1024, 128), 4096)
    length = count * RUN
    sample = buffer[:length]
    _take_sample(z, absolute, count, sample)
    ps = p * (length / z.size)
    cone = kind == m.CAI or kind == m.HOYER
    few = cone and ps < FEW
    if not few:
        guess = _solve_short(kind, ps, sample, m.start(kind))
        if guess.status == m.TIED:
            back = abs(guess.anchor) * 2.0**-50
            return Job(SUMS, _move(st, guess.anchor, -back, True), 0.0, 0.0, False, job.l2, True)
        if guess.status != m.SOFT:
            return plain
        few = guess.nu < FEW
    if few:
        guess = _solve_short(m.CAI, FEW, sample, m.start(m.CAI))
        if guess.status != m.SOFT:
            return plain
    tau = guess.anchor + guess.offset
    error = WIDTH * _standard_error(m.CAI if few else kind, FEW if few else ps, sample, guess)
    lo = np.float64(z.dtype.type(tau - error))
    hi = math.inf if few else np.float64(z.dtype.type(tau + error))
    if not (math.isfinite(error) and lo > st.lo):
        return plain
    inside = 0
    for i in range(sample.size):
        inside += (sample[i] > lo) and not (sample[i] > hi)
    if inside > 0.4 * length or not lo < hi:
        return plain
    anchor = lo if few else np.float64(z.dtype.type(tau))
    return Job(
        BAND, _move(st, anchor, 0.0, not few), lo, hi, inside < 0.01 * length, job.l2, True
    )


@kernel
def begin(kind, absolute, p, l2, z, buffer):
    """The first job of a slice."""
    st = m.start(kind)
    job = Job(SUMS, st, 0.0, 0.0, False, l2, False)
    if z.size >= SAMPLE_FROM and kind != m.HOYER:
        return _sampled(job, kind, absolute, p, z, buffer)
    return job


@kernel
def run_pass(job, absolute, z, buffer, part, first, last):
    """Do the job's pass on chunks first..last−1; their results go to the rows of `part`."""
    st = job.state
    for c in range(first, last):
        chunk = z[c * CHUNK : min((c + 1) * CHUNK, z.size)]
        if job.action == SUMS:
            nu, s, q = passes.sums(chunk, absolute, st.anchor, st.offset)
            stored = 0
        else:
            nu, s, q, stored = passes.band(
                chunk,
                absolute,
                z.dtype.type(st.anchor),
                z.dtype.type(job.lo),
                z.dtype.type(job.hi),
                buffer[c * CHUNK : min((c + 1) * CHUNK, z.size)],
                job.rare,
            )
        part[c, 0], part[c, 1], part[c, 2], part[c, 3] = nu, s, q, stored


@kernel
def _search_band(job, kind, p, tol, buffer, stored, nu0, s0, q0, log):
    """Find τ among the stored entries; `nu0, s0, q0` are the sums above the band."""
    st = job.state
    two_sided = job.hi < math.inf
    candidates = buffer[:stored]
    edge = False
    while True:
        nu, s, q = passes.sums(candidates, False, st.anchor, st.offset)
        st = m.advance(kind, p, tol, st, nu0 + nu, s0 + s, q0 + q)
        if st.passes <= log.size:
            log[st.passes - 1] = nu0 + nu
        if st.status != m.GO:
            return st
        tau = st.anchor + st.offset
        outside = not (job.lo <= tau <= job.hi)
        if two_sided and (edge or not outside) and st.anchor != job.state.anchor:
            return st
        if outside:
            if edge or not two_sided:
                return st
            edge = True
            bound = job.lo if tau < job.lo else job.hi
            st = _move(st, job.state.anchor, bound - job.state.anchor, True)
        elif not two_sided and nu < 0.6 * candidates.size:
            keep = buffer.dtype.type(tau - abs(tau) * 1e-6)
            _, _, _, stored = passes.band(
                candidates,
                False,
                buffer.dtype.type(0.0),
                keep,
                buffer.dtype.type(math.inf),
                candidates,
                False,
            )
            candidates = buffer[:stored]


@kernel
def proceed(job, kind, absolute, p, tol, z, buffer, part, log):
    """Add up the pass's results and choose the next job.

    `log` takes the support size of each pass, as far as it has room.
    """
    nu, s, q, stored = 0.0, 0.0, 0.0, 0
    for c in range(part.shape[0]):
        nu += part[c, 0]
        s += part[c, 1]
        q += part[c, 2]
        if job.action == BAND:
            count = int(part[c, 3])
            if c > 0:
                buffer[stored : stored + count] = buffer[c * CHUNK : c * CHUNK + count]
            stored += count
    l2 = job.l2
    if job.action == BAND:
        st = _search_band(job, kind, p, tol, buffer, stored, nu, s, q, log)
        nu = z.size if st.status == m.GO and st.anchor + st.offset < job.lo else nu + stored
    else:
        st = job.state
        if st.offset == -math.inf and st.anchor == 0.0:
            if l2 < 0.0:
                l2 = math.sqrt(q)
            if m.equality_holds(kind, p, l2, tol, s, q) and (absolute or passes.nonnegative(z)):
                zero = m.State(
                    m.FEASIBLE, 0.0, 0.0, 0.0, 0.0, nu, 0, False, True, st.passes + 1, s, q
                )
                return Job(WRITE, zero, 0.0, 0.0, False, l2, True)
        st = m.advance(kind, p, tol, st, nu, s, q)
        if st.passes <= log.size:
            log[st.passes - 1] = nu
    if st.status != m.GO:
        return Job(WRITE, st, 0.0, 0.0, False, l2, True)
    if job.action == BAND and st.pinned and st.nu >= 0.0:  # back to plain passes
        anchor, offset = m.two_sum(st.anchor, st.offset)
        st = m.State(
            m.GO, anchor, offset, st.lo, st.hi, st.nu, st.overshoots, False, st.at_zero,
            st.passes, 0.0, 0.0,
        )  # fmt: skip
    if not job.sampled and z.size >= SAMPLE_FROM:
        return _sampled(
            Job(SUMS, st, 0.0, 0.0, False, l2, True), kind, absolute, p, z, buffer
        )
    # A Newton step lies left of τ*: what is below it may be dropped.
    tau = st.anchor + st.offset
    lo = np.float64(z.dtype.type(tau - abs(tau) * 1e-6))
    if st.nu > 0.0 and not st.pinned and (nu <= 0.5 * z.size or z.size < SAMPLE_FROM):
        return Job(BAND, st, lo, math.inf, nu < 0.01 * z.size, l2, True)
    return Job(SUMS, st, 0.0, 0.0, False, l2, True)


@kernel
def write(job, kind, absolute, p, z, out, first, last):
    """Write chunks first..last−1 of the result."""
    st = job.state
    real = z.dtype.type
    begin, end = first * CHUNK, min(last * CHUNK, z.size)
    part, target = z[begin:end], out[begin:end]
    if st.status == m.FEASIBLE:
        passes.write_copy(part, absolute, target)
    elif st.status == m.TIED:
        if first == 0:  # the first k of the whole slice: one thread's work
            k, b = m.tied_profile(p)
            factor = m.tied_scale(kind, k, b, st.anchor, job.l2)
            passes.write_tied(z, absolute, st.anchor, k, b, factor, out)
    elif st.status == m.FLAT:
        passes.write_flat(part, absolute, job.l2 / math.sqrt(z.size), target)
    elif st.status == m.NONFINITE:
        target[:] = math.nan
    else:
        # τ as a pair in the data's precision.
        anchor = real(st.anchor + st.offset) if not st.pinned else real(st.anchor)
        offset = (st.anchor - np.float64(anchor)) + st.offset
        passes.write_soft(
            part, absolute, anchor, real(offset), real(m.scale(kind, st, job.l2)), target
        )


@kernel
def _verdict(status, anchor, l2):
    """A job that only writes."""
    st = m.State(status, anchor, 0.0, 0.0, 0.0, 0.0, 0, True, False, 1, 0.0, 0.0)
    return Job(WRITE, st, 0.0, 0.0, False, l2, True)


@kernel
def _extreme(kind, absolute, p, l2, z):
    """The verdict for radius 0, level 1 and (Hoyer) level n."""
    if kind <= m.SIMPLEX:
        return _verdict(m.SOFT, passes.largest(z, absolute), l2)
    if l2 < 0.0:
        l2 = math.sqrt(passes.sums(z, absolute, 0.0, -math.inf)[2])
    if p > 1.0:
        return _verdict(m.FLAT, -math.inf, l2)
    top = passes.largest(z, absolute)
    return _verdict(m.TIED if kind == m.HOYER or top > 0.0 else m.FEASIBLE, top, l2)


@kernel
def prepare(kind, absolute, p, l2, strict, z, buffer):
    """The first job of a slice, or its verdict where no search is needed."""
    if strict and not absolute and not passes.all_finite(z):
        # With |z|, NaN and inf reach the sums of the first pass; with z, -inf would not.
        return _verdict(m.NONFINITE, math.nan, l2)
    if kind <= m.SIMPLEX:
        extreme = p == 0.0
    else:
        extreme = p == 1.0 or (kind == m.HOYER and p >= z.size)
    if extreme:
        if not passes.all_finite(z):
            return _verdict(m.NONFINITE, math.nan, l2)
        return _extreme(kind, absolute, p, l2, z)
    return begin(kind, absolute, p, l2, z, buffer)


@kernel
def _solve(kind, absolute, p, l2, tol, strict, z, buffer, part, log):
    """Run the passes of one slice on one thread; returns the job that writes it."""
    job = prepare(kind, absolute, p, l2, strict, z, buffer)
    while job.action != WRITE:
        run_pass(job, absolute, z, buffer, part, 0, part.shape[0])
        job = proceed(job, kind, absolute, p, tol, z, buffer, part, log)
    return job


@kernel
def _project_scaled(kind, absolute, p, l2, tol, z, out, buffer, part, log):
    """Project data whose squares over- or underflow, after scaling by a power of two."""
    largest = max(passes.largest(z, True), 0.0)
    shift = -int(math.frexp(largest)[1])
    scaled = np.empty_like(z)
    for i in range(z.size):
        scaled[i] = math.ldexp(np.float64(z[i]), shift)
    back = -shift
    if kind <= m.SIMPLEX:
        p = math.ldexp(p, shift)
    elif kind == m.HOYER and l2 >= 0.0:
        back = int(math.frexp(l2)[1])
        l2 = math.ldexp(l2, -back)
    job = _solve(kind, absolute, p, l2, tol, False, scaled, buffer, part, log)
    write(job, kind, absolute, p, scaled, scaled, 0, part.shape[0])
    for i in range(z.size):
        out[i] = math.ldexp(np.float64(scaled[i]), back)
    return job


@kernel
def report(job, kind, absolute, p, row):
    """Status, threshold, value of the constraint reached, passes."""
    st = job.state
    row[0] = st.status
    row[1] = st.anchor + st.offset
    if st.status == m.TIED or st.status == m.FLAT:
        row[2] = p
    elif kind <= m.SIMPLEX:
        row[2] = st.s
    else:
        row[2] = st.s * st.s / st.q if st.q > 0.0 else 0.0
    row[3] = st.passes


@kernel
def project_rows(
    kind, absolute, levels, norms, tol, strict, x, out, whole, info, log, first, last
):
    """Project rows first..last−1 of x into out; NaN or inf ends it where `strict`.

    `whole`: rows of `out` may serve as scratch, because `out` is not `x`.
    """
    n = x.shape[1]
    part = np.empty((chunks_of(n), 4))
    spare = np.empty(0 if whole else n, x.dtype)
    for r in range(first, last):
        z, target = x[r], out[r]
        buffer = target if whole else spare
        job = _solve(
            kind, absolute, levels[r], norms[r], tol, strict, z, buffer, part, log
        )
        status = job.state.status
        if status == m.NONFINITE and passes.all_finite(z):
            status = m.RESCALE
        if status == m.RESCALE:
            spare2 = np.empty(n, x.dtype)
            job = _project_scaled(
                kind, absolute, levels[r], norms[r], tol, z, target, spare2, part, log
            )
        elif status == m.NONFINITE and strict:
            info[r, 0] = m.NONFINITE
            return
        else:
            write(job, kind, absolute, levels[r], z, target, 0, part.shape[0])
        report(job, kind, absolute, levels[r], info[r])
