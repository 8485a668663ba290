"""The threshold engine on the CPU: which pass comes next, and the drivers.

One slice is projected in three kinds of steps.  `begin` and `_proceed` decide (scalars
and a few thousand entries), `run_pass` and `write` do the work on chunks of the slice,
by one thread or by several.  Chunks and the order in which their sums are added do not
depend on the number of threads, so the result has the same bits for any number.

Rows of up to 32 kB are tried in `short` before.  On a short slice the first pass takes the sums at
τ = 0 and guesses τ from them; a second one collects what lies above a point well left of the guess;
Newton steps on those entries end it.

The usual course on a long slice: a small sample gives τ and its standard error; one pass sums
what lies above the band τ ± 2.75 errors and stores what lies inside it, where the heads of the
chunks, a larger sample, have made the band of a longer slice narrower (long heads are not read
again); the few stored entries then give τ exactly; one pass writes.  Where few entries lie above
the band it has no upper edge, and unless the result replaces the data, the pass that stores them
writes zeros elsewhere: then only they are left to write.  Where the sample misleads, the band's
sums are still exact at its edges, and the search goes on from there with another sample and plain
passes.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import from_dtype, typeof
from numba.core import types

from .. import _math as m
from .._jit import helper, inlined, kernel
from . import passes, simd
from .apart import address_of, call_at, taker
from .arrays import (
    LOG,
    NO,
    NONE,
    NORM,
    PASSES,
    REACHED,
    REST,
    STATUS,
    THRESHOLD,
    WANTED,
    YES,
    keep,
    uncounted,
)
from .waiting import split_at

CHUNK = 16384
HEADS = 1 << 16  # entries that the heads of the chunks have in all, about
HOLD = CHUNK // 16  # so many entries of a chunk there is room for where results are written early
ONCE = 512  # longer heads are read only once: to leave out shorter ones costs more than it saves
EARLIER = 2  # heads that are fetched before the one that is read
HEADS_FROM = 24 * CHUNK
SAMPLE_FROM = 16384  # shorter slices start at τ = 0
GUESS_FROM = 64  # from here on their second τ is guessed, from the sums of the first pass
RUN = 16  # the sample consists of short runs: each costs a cache miss
WIDTH = 2.75  # half width of the band, in standard errors
MOST_RUNS = 4096
MOST_SAMPLES = 3
TIES = MOST_SAMPLES + 1  # "samples" where entries tie near τ: float32 sums cannot tell their side
PATIENCE = 12  # passes after which float32 data are summed in float64
SPREAD = 1.25  # from so many entries for each of l on, rounding is not blown up
NEAR, AHEAD = 1 << 11, 1 << 16  # bytes of a row from which, and up to which, it is fetched early
# Shorter rows are not written past the caches.  They begin and end inside cache lines; and a row at
# a time is more than the processor keeps on its way to memory, so that the next search would wait.
PAST_FROM_4, PAST_FROM_8 = 4096, 512  # float32, of which more time is the search, and float64
NARROW = 1024  # of more candidates only those near τ are kept
CLEAR = -0.5  # relative distance of a sample's sums from the bound that leaves no doubt
KEPT = 0.25  # so few above a Newton step are kept, for steps on them alone
FEW = 64.0  # fewer sample entries than this above τ give no useful upper edge

# Actions; OWN: sums in the data's own precision, SQUARES: ‖y‖² where only that is missing.
SUMS, OWN, BAND, SQUARES, WRITE = 0, 1, 2, 3, 4
# What is known of each chunk: its sums; how many entries it has stored, and where; how many words
# of `few` it has, and where; Σz², where that is wanted; and whether it is finite, or has not been
# asked.
NU, S, Q, STORED, PLACE, FOUND, WORDS, SQUARE, FINITE, KNOWN = range(10)
UNSEEN = -1.0


class Known(NamedTuple):
    """Exact sums over the entries above `theta`, relative to `anchor`."""

    theta: float
    anchor: float
    nu: float
    s: float
    q: float


NOTHING = Known(math.inf, 0.0, 0.0, 0.0, 0.0)


class Job(NamedTuple):
    """What to do next with a slice."""

    action: int
    state: m.State
    lo: float  # BAND: the edges
    hi: float
    rare: bool  # BAND: few entries lie inside
    early: bool  # BAND: all others will be zero, most likely; WRITE: they are already
    l2: float  # HOYER: the norm wanted; negative: that of the input
    samples: int  # how many samples have been taken
    heads: bool  # BAND: of each chunk only the head
    known: Known  # BAND: the sums of heads that are left out; `held` has their entries inside
    kept: int  # and so many of them; negative: no head is left out
    inside: int  # BAND: negative, or so many are stored: only the sums above it, in float64


@helper
def _job(action, st, early, l2, samples):
    """A job without a band."""
    return Job(action, st, 0.0, 0.0, False, early, l2, samples, False, NOTHING, -1, -1)


@helper
def _sums_job(st, l2, samples):
    """A pass that takes the sums at the state's τ."""
    return _job(SUMS, st, False, l2, samples)


@helper
def _band_job(st, lo, hi, rare, early, l2, samples, heads):
    """A pass that sums what lies above (lo, hi] and stores what lies inside."""
    return Job(BAND, st, lo, hi, rare, early, l2, samples, heads, NOTHING, -1, -1)


@helper
def _again_job(job, st, l2, stored):
    """The band once more, around the τ of a verdict: the sums above it are to be float64's."""
    offset = st.anchor + st.offset - job.state.anchor
    st = m.with_bounds(_move(st, job.state.anchor, offset, True), job.state.lo, job.state.hi)
    return Job(BAND, st, job.lo, job.hi, False, False, l2, TIES, False, NOTHING, -1, stored)


@helper
def _own_job(st, l2, samples):
    """A pass that takes the sums at the state's τ in the data's own precision."""
    return _job(OWN, st, False, l2, samples)


@helper
def _plain_job(st, l2, samples):
    """The sums at τ; `_proceed` checks whether their precision will do."""
    if st.anchor == 0.0 and st.offset == 0.0:
        return _own_job(st, l2, samples)
    return _sums_job(st, l2, samples)


@helper
def _sums_near(st, z, l2, samples):
    """The sums near the state's τ, where the data's own precision will do: an empty band."""
    if z.itemsize == 8:
        return _sums_job(st, l2, samples)
    tau = np.float64(z.dtype.type(st.anchor + st.offset))
    return _band_job(_move(st, tau, 0.0, False), tau, tau, True, False, l2, samples, False)


@helper
def _below_step(st, z, known):
    """A number of the data's type that lies left of τ, a Newton step, even if that is rounded."""
    tau = st.anchor + st.offset
    return np.float64(z.dtype.type(tau - 1e-6 * (abs(tau) + abs(known.s / known.nu))))


@helper
def _above_job(st, z, known, share, early, l2, samples):
    """Keep what lies above τ, a Newton step from the left: about this share."""
    lo, rare = _below_step(st, z, known), early or _rare(z, share)
    return _band_job(st, lo, math.inf, rare, early, l2, samples, False)


@helper
def _write_job(st, l2):
    """The verdict is known."""
    return _job(WRITE, st, False, l2, 0)


@helper
def _last_job(kind, st, l2, early):
    """Write, or first take ‖y‖, where the result is to have that norm and no pass has seen it."""
    action = WRITE
    if kind == m.HOYER and l2 < 0.0 and st.status != m.RESCALE and st.status != m.NONFINITE:
        action = SQUARES
    return _job(action, st, early, l2, 0)


@helper
def _unsigned(kind, st):
    """The kind whose τ is sought: CAI for HOYER as long as τ >= 0, where both have the same."""
    return m.CAI if kind == m.HOYER and st.lo >= 0.0 else kind


@helper
def chunks_of(n):
    """Number of chunks of a slice of length n."""
    return max((n + CHUNK - 1) // CHUNK, 1)


@helper
def head(n):
    """How many entries of each chunk are looked at first on a slice of length n."""
    return min(max(HEADS * CHUNK // n // 64 * 64, CHUNK // 64), CHUNK // 4)


@kernel
def room_for_chunks(n):
    """What is known of each chunk of a slice of length n: nothing but that it is finite."""
    return np.ones((chunks_of(n), KNOWN))


@kernel
def room_to_hold(n):
    """Length of the array for what is stored while results are written early, or kept of heads."""
    return chunks_of(n) * HOLD + 64 if n >= SAMPLE_FROM else 0


@helper
def marks_of(n):
    """Scratch for a pass over a slice of length n, one for each thread."""
    return passes.marks_for(min(n, CHUNK))


@kernel
def room_for_few(n, whole):
    """Where to keep which entries are not zero; none if results are not to be written early."""
    room = n // passes.LEAST if whole and n >= SAMPLE_FROM and not simd.PLAIN else 0
    return np.empty((2, room), np.uint64)


@helper
def _words(few, place, count):
    """Words of `few` from `place` on; at most `count`."""
    return few[:, place : place + count]


@helper
def _move(st, anchor, offset, pinned):
    """The state `st`, to be evaluated next at a τ that is no Newton step."""
    return m.with_tau(st, anchor, offset, -1.0, pinned)


@helper
def _split(st, z):
    """Write τ as the next lower number of the data's type plus a rest: the same support."""
    tau, rest = m.two_sum(st.anchor, st.offset)
    anchor = np.float64(z.dtype.type(tau))
    if anchor > tau or (anchor == tau and rest < 0.0):
        anchor = np.float64(np.nextafter(z.dtype.type(tau), z.dtype.type(-np.inf)))
    return m.with_tau(st, anchor, (tau - anchor) + rest, st.nu, False)


@helper
def take_sample(z, absolute, sample):
    """Fill the sample with short runs, one from each stratum of the slice."""
    count = sample.size // RUN
    stratum = z.size / count
    free = np.uint64(max(int(stratum) - RUN, 1))
    seed = np.uint64(0x9E3779B97F4A7C15)
    signs, width = simd.signs(simd.splat(z.dtype.type(0.0)), absolute), simd.lanes(z)
    for j in range(count):
        seed = seed * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        shift = (seed >> np.uint64(32)) * free >> np.uint64(32)  # a division takes longer
        first = min(int(j * stratum) + int(shift), z.size - RUN)
        for i in range(0, RUN, width):
            a = simd.without(simd.load(z, first + i), signs)
            simd.store(a, sample, j * RUN + i)


@helper
def _count_above(z, edge):
    """How many entries lie above a number of the data's type."""
    return passes.own_sums(z, NO, edge, 0.0)[0]


@helper
def _estimate(kind, p, sample, weight, known, room):
    """Solve with sums estimated from a sample: `known`, and the sample up to its theta.

    `room` is as long as the sample.
    """
    st = m.start(kind)
    theta = known.theta
    seen, least = sample, -math.inf  # the entries above `least`
    nu1, s0, q0 = 0.0, 0.0, 0.0
    if theta < math.inf:
        nu1, s0, q0 = passes.sums(sample, NO, theta, 0.0)
    while st.status == m.GO and st.passes < m.NEWTON_PASSES:
        if not st.anchor + st.offset >= least:
            seen, least = sample, -math.inf
        nu, s, q = passes.own_sums(seen, NO, st.anchor, st.offset)
        nu, s, q = weight * nu, weight * s, weight * q
        if theta < math.inf:
            s1, q1 = m.sums_at(nu1, s0, q0, st.anchor - theta)
            shift = st.anchor - known.anchor
            s2 = known.s - known.nu * shift
            nu += known.nu - weight * nu1
            s += s2 - weight * s1
            q = max(q + known.q - shift * (known.s + s2) - weight * q1, 0.0)
            if not nu > 0.0:  # the sample contradicts what is known
                break
        st = m.advance(kind, p, 0.0, st, nu, s, q)
        if st.passes == 1 and st.status == m.GO and theta == math.inf and not st.pinned:
            edge = sample.dtype.type(st.anchor + st.offset)
            if edge > 0:  # a Newton step: τ* lies above it
                _, _, _, stored = passes.band(
                    sample, NO, edge, edge, sample.dtype.type(math.inf), room
                )
                seen, least = room[:stored], np.float64(edge)
            guess = _guess(kind, p, st, nu, s, q)
            if guess > -math.inf:
                st = _move(st, guess, 0.0, False)
    return st


@helper
def _guess(kind, p, st, nu, s, q):
    """From the sums at τ = 0, a τ further than Newton's, by the shape of the tail.

    −inf if there is none, NaN where the sums over- or underflow.
    """
    kind = _unsigned(kind, st)
    if not (kind == m.L1 or kind == m.CAI):
        return -math.inf
    if not 1e-200 < q < 1e200 and p > 1e-100 * s:
        return math.nan
    guess = m.tail_guess(kind, p, nu, s, q)
    return guess if st.anchor + st.offset < guess < math.inf and not st.pinned else -math.inf


@helper
def _influence(kind, p, st, weight):
    """Coefficients α, β: a sampled entry d above τ moves the estimate by α·d − β·d²."""
    if kind <= m.SIMPLEX:
        return weight / st.nu, 0.0
    slope = 2.0 * st.s * (st.nu - p)
    return weight / slope * 2.0 * st.s, weight / slope * p


@helper
def _moved(linear, square, s, q):
    """α·Σd − β·Σd²; without squares, which may overflow, where β is 0."""
    return linear * s - square * q if square > 0.0 else linear * s


@helper
def _standard_error(kind, p, sample, weight, theta, st):
    """Standard error of the estimated τ, from the spread between runs of the sample."""
    linear, square = _influence(kind, p, st, weight)
    unit = st.s / st.nu  # lest squares overflow
    total, squares = passes.influences(
        sample, RUN, st.anchor, st.offset, theta - st.anchor, linear, square, unit
    )
    return unit * math.sqrt(max(squares - total * total * RUN / sample.size, 0.0))


@helper
def _upper_edge(sample, least, most):
    """A value that at least `least` and, ties aside, at most `most` entries exceed."""
    lo, hi = 0.0, passes.largest(sample, NO)
    for _ in range(60):
        middle = np.float64(sample.dtype.type(m.midpoint(lo, hi)))
        count = _count_above(sample, middle)
        if count < least:
            hi = middle
        else:
            lo = middle
            if count <= most:
                break
    return lo


@helper
def _count_between(z, lo, hi):
    """How many entries lie in (lo, hi]."""
    return _count_above(z, lo) - _count_above(z, hi)


@helper
def _next_share(z, absolute, lo, buffer):
    """A band from `lo` on that holds about a tenth of the entries; an empty one where many tie."""
    sample = buffer[: 128 * RUN]
    take_sample(z, absolute, sample)
    count = _count_above(sample, lo)
    hi = _upper_edge(sample, count - 0.15 * sample.size, count - 0.05 * sample.size)
    inside = _count_between(sample, lo, hi) / sample.size
    return lo, hi if 0.02 < inside < KEPT else lo


@helper
def _spread(sample, lo):
    """Whether the entries above lo lie all over the sample, not most of them in a part of it."""
    part, most, total = sample.size // 8, 0.0, 0.0
    for i in range(8):
        count = _count_above(sample[i * part : (i + 1) * part], lo)
        most, total = max(most, count), total + count
    return most < 0.4 * total


@helper
def _rare(z, inside):
    """Whether a fraction `inside` in the band makes the pass for few entries the faster."""
    if simd.TABLE:  # fewer than one in a pair of registers
        return inside * 2 * simd.lanes(z) < 1.0 and z.size >= SAMPLE_FROM
    return inside < 0.03 and z.size >= SAMPLE_FROM and not (simd.COMPRESS and _far(z))


@helper
def _early(z, share):
    """Whether zeros pay that are written before it is known which share of the entries stays."""
    return share < 0.005 and z.size >= SAMPLE_FROM


@helper
def _far(z):
    """Whether z stays in no cache: then each branch that is mispredicted waits for memory."""
    return z.size * z.itemsize > passes.FAR


@helper
def _sampled(st, l2, samples, kind, absolute, p, z, buffer, known):
    """Choose the next pass from one more sample; `known` are exact sums, or NOTHING."""
    kind, samples = _unsigned(kind, st), samples + 1
    count = min(max(z.size // (RUN * 64), 128), MOST_RUNS)
    if known.theta == math.inf and z.size >= HEADS_FROM:
        count = 128  # the heads of the chunks make a larger sample, at no cost
    sample, room = buffer[: count * RUN], buffer[count * RUN : 2 * count * RUN]
    take_sample(z, absolute, sample)
    if not absolute and not passes.all_finite(sample):
        return _verdict(m.NONFINITE, math.nan, l2, 0.0, 0.0, 0.0)
    st = _unless_negative(kind, st, sample)
    plain = _plain_job(st, l2, samples)
    if st.nu > 0.0 and not st.pinned and known.theta < math.inf:  # a Newton step
        edge = np.float64(z.dtype.type(st.anchor + st.offset))
        share = _count_above(sample, edge) / sample.size
        if share < KEPT:
            early = _early(z, share) and _spread(sample, edge)
            plain = _above_job(st, z, known, share, early, l2, samples)
    weight = z.size / sample.size
    guess = _estimate(kind, p, sample, weight, known, room)
    few = guess.nu < FEW * weight  # too few above τ for an upper edge
    if guess.status == m.TIED and not few and known.theta == math.inf:
        top = np.float64(z.dtype.type(guess.anchor))  # float32 sums had it rounded
        near = _move(st, top, -abs(top) * 2.0**-50, False)
        return _own_job(near, l2, samples)  # only entries equal to the anchor lie above
    first = st.passes == 0 and not st.at_zero
    if guess.status != m.SOFT and not (guess.status == m.TIED and few):
        near = guess.status == m.FEASIBLE and m.closeness(kind, p, guess.s, guess.q) > CLEAR
        if first and near and not (simd.TABLE and z.itemsize == 4):  # there `plain` is faster
            return _sums_job(st, l2, samples)
        return plain
    real = z.dtype.type
    tau = guess.anchor + guess.offset
    if few:
        least = 1.5 * guess.nu / weight + 0.5 * FEW  # so many that τ* lies hardly ever below
        lo = np.float64(real(_upper_edge(sample, least, 2.0 * least)))
        hi = math.inf
        start = _move(st, lo, 0.0, False)
    else:
        error = WIDTH * _standard_error(kind, p, sample, weight, known.theta, guess)
        if z.itemsize == 4 and kind <= m.SIMPLEX and known.theta < math.inf:
            error += _rounding(kind, p, guess, z)  # by much, where few entries dwarf the others
        lo, hi = np.float64(real(tau - error)), np.float64(real(tau + error))
        start = _move(st, np.float64(real(tau)), 0.0, True)
    if first and lo <= 0.0 <= hi < 0.5 * (guess.s / guess.nu):
        return _sums_job(st, l2, samples)  # most likely it is feasible: a result projected again
    inside = _count_between(sample, lo, hi) / sample.size
    if not (lo > st.lo and lo < hi) or inside > 0.4:
        if hi < math.inf and st.lo < tau < st.hi:  # too wide a band, but the best τ known
            near = _move(st, tau, 0.0, False)
            if hi - lo < 0.1 * tau:  # Newton does the rest, with care where entries nearly tie
                if inside > 0.4 and kind <= m.SIMPLEX:
                    return _sums_job(near, l2, TIES)
                samples = MOST_SAMPLES
            return _sums_near(near, z, l2, samples)
        return plain
    rare, heads, early = _rare(z, inside), False, False
    if known.theta == math.inf and z.size >= HEADS_FROM:
        heads = True
    elif few and _early(z, inside):
        error = _standard_error(kind, p, sample, weight, known.theta, guess)
        early = WIDTH * error < tau - lo and _spread(sample, lo)
    return _band_job(start, lo, hi, rare, early, l2, samples, heads)


@helper
def _unless_negative(kind, st, z):
    """The state `st`, where negative entries tell that the input is not feasible."""
    return m.infeasible(st) if kind == m.SIMPLEX and not passes.nonnegative(z) else st


@helper
def begin(kind, absolute, p, l2, z, buffer):
    """The first job of a slice; HOYER looks right of 0 first."""
    inlined()
    st = m.start(m.CAI if kind == m.HOYER else kind)
    if z.size >= SAMPLE_FROM:
        return _sampled(st, l2, NONE, kind, absolute, p, z, buffer, NOTHING)
    if kind == m.HOYER and absolute and l2 < 0.0:  # these sums give the norm as well
        return _sums_job(st, l2, 0)
    return _plain_job(_unless_negative(kind, st, z), l2, 0)


@helper
def _run_pass(job, absolute, z, buffer, held, part, marks, few, first, last):
    """Do the job's pass on chunks first..last−1; their results go to the rows of `part`.

    What they store lies side by side in `buffer`, from the first chunk's place on.  `marks`
    is scratch, see `marks_of`.  Where `few` has room, `buffer` is where the result will be; what
    is stored when it is written early lies in `held`, from the first chunk's place on, too: side by
    side, because each page of memory that is touched costs time.
    """
    inlined()
    st = job.state
    real = z.dtype.type
    place = first * CHUNK
    early = job.action == BAND and job.early and few.size > 0
    ahead = z.size * z.itemsize >= simd.FETCH_FROM
    most = CHUNK // passes.LEAST  # words of a chunk
    words = first * most
    if early:
        place = first * HOLD
    for c in range(first, last):
        begin, end = c * CHUNK, min((c + 1) * CHUNK, z.size)
        if job.heads:
            end = min(begin + head(z.size), end)
            if c + EARLIER < last and _far(z):
                following = z[begin + EARLIER * CHUNK :]
                for i in range(0, min(head(z.size), following.size), simd.LINE // z.itemsize):
                    simd.fetch_early(following, i)
        if job.kept >= 0:
            begin = min(begin + head(z.size), end)
        chunk = z[begin:end]
        if job.action == SUMS or job.inside >= 0:
            offset = st.offset if job.action == SUMS else job.hi - st.anchor
            nu, s, q = passes.sums(chunk, absolute, st.anchor, offset)
            stored = 0
        elif job.action == SQUARES:
            nu, s, q = 0.0, 0.0, passes.squares(chunk)
            stored = 0
        elif job.action == OWN or job.lo == job.hi:
            offset = st.offset if job.action == OWN else 0.0  # an empty band ends at its anchor
            nu, s, q = passes.own_sums(chunk, absolute, st.anchor, offset)
            stored = 0
        elif early:
            nu, s, q = 0.0, 0.0, 0.0
            found, stored = passes.collect_few(
                chunk, absolute, ahead, real(job.lo), held[place : place + HOLD],
                _words(few, words, most), buffer[begin:end],
            )  # fmt: skip
            part[c, FOUND], part[c, WORDS] = found, words
            words += found
            if stored < 0:  # they crowd: begin anew at once
                part[c, STORED] = stored
                return
        elif job.rare or not simd.COMPRESS:
            nu, s, q, stored = passes.band_rare(
                chunk, absolute, real(st.anchor), real(job.lo), real(job.hi),
                buffer[place:], marks,
            )  # fmt: skip
        else:
            nu, s, q, stored = passes.band(
                chunk, absolute, real(st.anchor), real(job.lo), real(job.hi), buffer[place:]
            )
        part[c, NU], part[c, S], part[c, Q] = nu, s, q
        part[c, STORED], part[c, PLACE] = stored, place
        place += stored
        # What else is to be known of the chunk, while it is near.
        if not job.heads:
            chunk = z[c * CHUNK : end]
            if job.action == BAND and job.l2 < 0.0:
                part[c, SQUARE] = passes.squares(chunk)
            if part[c, FINITE] == UNSEEN:
                part[c, FINITE] = passes.all_finite(chunk)


@helper
def _collect(buffer, part):
    """Add up the chunks' sums, and move what they stored to the front of the buffer."""
    nu, s, q, stored = 0.0, 0.0, 0.0, 0
    lost = 0.0  # by rounding, where there are many chunks: entries that tie at τ are sensitive
    for c in range(part.shape[0]):
        nu += part[c, NU]
        s, rest = m.two_sum(s, part[c, S])
        lost += rest
        q += part[c, Q]
        count, place = int(part[c, STORED]), int(part[c, PLACE])
        if place != stored:
            for i in range(count):
                buffer[stored + i] = buffer[place + i]
        stored += count
    return nu, s + lost, q, stored


@helper
def _heads_error(kind, p, st, candidates, part, n, seen):
    """`_standard_error`, where each head is a run and only its band has been stored.

    Infinite where a single head makes most of it: then it is no estimate.  Also returns
    whether the support is spread over the heads.
    """
    linear, square = _influence(kind, p, st, n / seen)
    mean = _moved(linear, square, st.s, st.q) / n
    unit = st.s / st.nu  # lest squares overflow
    squares, most, crowd, begin = 0.0, 0.0, 0.0, 0
    for c in range(part.shape[0]):
        segment = candidates[begin : begin + int(part[c, STORED])]
        begin += segment.size
        nu, s, q = passes.own_sums(segment, NO, st.anchor, st.offset)
        sd, qd = m.sums_at(nu + part[c, NU], s + part[c, S], q + part[c, Q], st.offset)
        influence = (_moved(linear, square, sd, qd) - mean * min(head(n), n - c * CHUNK)) / unit
        squares += influence * influence
        most = max(most, influence * influence)
        crowd = max(crowd, nu + part[c, NU])
    error = unit * math.sqrt(squares) if most < 0.25 * squares else math.inf
    return error, crowd < 0.25 * st.nu * seen / n


@helper
def _after_heads(job, kind, p, z, buffer, held, part):
    """From the heads of the chunks, choose a narrower band."""
    st = job.state
    kind = _unsigned(kind, st)
    real = z.dtype.type
    nu, s, q, stored = _collect(buffer, part)
    candidates = buffer[:stored]
    whole = part.shape[0] - 1  # chunks whose head is complete, and the last
    seen = whole * head(z.size) + min(head(z.size), z.size - whole * CHUNK)
    weight = z.size / seen
    guess = _move(m.start(kind), st.anchor, 0.0, True)
    free = job.hi == math.inf  # nothing has been summed: the anchor may move
    while guess.status == m.GO and guess.passes < m.NEWTON_PASSES:
        if guess.anchor != st.anchor and not free:
            break
        nu1, s1, q1 = passes.own_sums(candidates, NO, guess.anchor, guess.offset)
        guess = m.advance(
            kind, p, 0.0, guess, weight * (nu + nu1), weight * (s + s1), weight * (q + q1)
        )
    error, spread = math.inf, False
    if guess.status == m.SOFT:
        error, spread = _heads_error(kind, p, guess, candidates, part, z.size, seen)
        error *= WIDTH
    lo, hi, rare, early = job.lo, job.hi, job.rare, False
    if guess.nu >= FEW * weight:
        tau = guess.anchor + guess.offset
        below, top = np.float64(real(tau - error)), np.float64(real(tau + error))
        if lo < below < top < hi:
            inside = _count_between(candidates, below, top) / seen
            early = free and _early(z, _count_between(candidates, below, hi) / seen)
            rare = early or _rare(z, inside)
            lo, hi = below, hi if early else top  # so few need no upper edge
            st = _move(st, np.float64(real(tau)), 0.0, not early)
    elif spread and free:
        edge = np.float64(real(_upper_edge(candidates, 1.5 * FEW, 3.0 * FEW)))
        if edge > lo:
            lo, rare, early = edge, True, True
            st = _move(st, edge, 0.0, False)
    if early or head(z.size) < ONCE or stored > held.size:
        return _band_job(st, lo, hi, rare, early, job.l2, job.samples, False)
    # Of the heads, which need not be read again, what is to be known for the narrower band.
    shift = st.anchor - job.state.anchor
    if shift != 0.0:
        s, q = m.sums_at(nu, s, q, shift)
    above, s1, q1, kept = passes.band(candidates, NO, real(st.anchor), real(lo), real(hi), held)
    known = Known(hi, st.anchor, nu + above, s + s1, q + q1)
    return Job(BAND, st, lo, hi, rare, False, job.l2, job.samples, False, known, kept, -1)


@helper
def _verdict(status, anchor, l2, nu, s, q):
    """A job that only writes."""
    st = m.State(status, anchor, 0.0, 0.0, 0.0, nu, 0, True, False, 1, s, q)
    return _write_job(st, l2)


@helper
def advance(kind, p, tol, st, nu, s, q, log):
    """`m.advance`, and how large the support was, as far as the log has room."""
    inlined()
    st = m.advance(kind, p, tol, st, nu, s, q)
    if st.passes <= log.size:
        log[st.passes - 1] = nu
    return st


@helper
def _search_band(job, kind, p, tol, buffer, stored, above, log):
    """Find τ among the stored entries; `above` are the sums above the band.

    Returns the verdict, or the state to go on from outside the band, and exact sums at
    the last point seen.
    """
    inlined()
    st = job.state
    two_sided = job.hi < math.inf
    lo, hi, kept = job.lo, job.hi, job.lo  # the candidates lie above `kept`
    candidates = buffer[:stored]
    outer, narrowed = above, False  # a narrower band holds what is left of the candidates
    edge, settled, curved = lo == hi, False, 0
    nu, s, q = above.nu + stored, 0.0, 0.0
    last, last_nu = lo, nu  # where the support was counted before
    quick = buffer.itemsize == 4 and stored > 128  # in its own precision, while that will do
    rounded = False  # whether the last sums were
    while True:
        if not settled:
            own = buffer.itemsize == 8 or (st.passes < PATIENCE and job.inside < 0)
            own = own and st.overshoots == 0
            quick = quick and own and (kind <= m.SIMPLEX or nu > SPREAD * p)
            own = own and (quick or two_sided)
            if rounded and not own:  # no step of these sums has led here
                st = m.with_tau(st, st.anchor, st.offset, -1.0, st.pinned)
            rounded = own and buffer.itemsize == 4
            if two_sided and own:  # small gaps; those above were summed like that
                nu, s, q = passes.own_sums(candidates, NO, st.anchor, st.offset)
            elif quick and not two_sided and not st.pinned:
                st = _split(st, buffer)
                nu, s, q = passes.own_sums(candidates, NO, st.anchor, st.offset)
                if math.isfinite(s) and not _in_range(kind, st.anchor * st.anchor + q):
                    return _verdict(m.RESCALE, st.anchor, 0.0, nu, s, q).state, NOTHING
            else:
                nu, s, q = passes.sums(candidates, NO, st.anchor, st.offset)
            nu, s, q = nu + above.nu, s + above.s, q + above.q
        seen = Known(st.anchor + st.offset, st.anchor, nu, s, q)
        before = st
        st = advance(kind, p, tol, st, nu, s, q, log)
        tau = st.anchor + st.offset
        if rounded and _side_unknown(kind, p, before, nu, s, q):
            st = m.with_bounds(st, before.lo, before.hi)
        if st.status == m.SOFT and buffer.itemsize == 4 and not two_sided:
            # The sums before were float32's; have those at the last τ led across ties?
            moved = kind >= m.CAI and _has_moved(st, seen.theta) and st.passes < PATIENCE
            slack = _rounding(kind, p, st, buffer) if quick else 0.0
            if (quick or moved) and _many_between(candidates, seen.theta, tau, slack):
                quick, settled, st = False, False, _move(st, st.anchor, st.offset, False)
                continue
        if st.status != m.GO or (two_sided and st.anchor != job.state.anchor):
            return st, seen
        newton = st.nu == nu and not settled
        newton = newton and st.pinned == before.pinned and st.overshoots == before.overshoots
        settled = False
        step = (st.anchor - before.anchor) + st.offset
        if narrowed and not (lo <= tau <= hi):
            lo, hi, above, candidates = job.lo, job.hi, outer, buffer[:stored]
        if lo < kept and tau < kept:  # a Newton step from the right: τ* is not below `kept`
            looks = st.nu < 0.0 and tau <= 0.0  # whether the input is feasible
            if looks or seen.theta <= kept:  # or it is
                return st, seen
            st = _move(st, kept, 0.0, False)
        elif not (lo <= tau <= hi):
            if edge or not two_sided:
                return st, seen
            edge = True
            bound = lo if tau < lo else hi
            st = _move(st, job.state.anchor, bound - job.state.anchor, True)
        elif (
            newton
            and candidates.size > 64  # fewer are summed again as fast
            and _keeps_digits(kind, p, nu, s, step)
            and not _any_between(candidates, seen.theta, tau)
        ):
            settled = True  # the same support: no pass needs to tell
            place = step if kind <= m.SIMPLEX else before.offset
            st = m.with_tau(before, before.anchor, place, nu, before.pinned)
        elif newton and curved < 2 and nu > 32.0 and last < seen.theta:
            curved += 1
            # Exact for an exponential tail, but for the logarithm's third order.
            density = 2.0 * nu / (nu + last_nu) * (last_nu - nu) / (seen.theta - last)
            last, last_nu = seen.theta, nu
            beyond = m.curved_offset(kind, p, nu, s, q, before.offset, step, density)
            if beyond != step and kept < before.anchor + beyond < hi:
                st = _step_from(st, before.anchor, beyond)
        large = NARROW < stored <= buffer.size // 2 - 64
        if two_sided and newton and large and not narrowed and job.inside < 0:
            tau, narrowed = st.anchor + st.offset, True
            near = 0.125 * abs(tau - seen.theta)  # the error left is of second order
            below, top = buffer.dtype.type(tau - near), buffer.dtype.type(tau + near)
            if lo < below < top < hi:
                anchor = buffer.dtype.type(st.anchor)
                nu1, s1, q1, count = passes.band(
                    candidates, NO, anchor, below, top, buffer[stored:]
                )
                above = Known(
                    np.float64(top), above.anchor, above.nu + nu1, above.s + s1, above.q + q1
                )
                candidates = buffer[stored : stored + count]
                lo, hi = np.float64(below), np.float64(top)
        if not two_sided and newton and candidates.size > 256 and nu < 0.6 * candidates.size:
            bound = buffer.dtype.type(tau - 1e-6 * (abs(tau) + abs(s / nu - step)))
            if bound > kept:
                zero, most = buffer.dtype.type(0.0), buffer.dtype.type(math.inf)
                _, _, _, stored = passes.band(candidates, NO, zero, bound, most, candidates)
                candidates = buffer[:stored]
                kept = np.float64(bound)


@helper
def _keeps_digits(kind, p, nu, s, step):
    """Whether a closer anchor would add nothing to the digits of τ, `step` from this one."""
    return abs(step) <= s / nu - step and (kind <= m.SIMPLEX or nu > SPREAD * p)


@helper
def _has_moved(st, theta):
    """Whether the τ of a verdict is not, but for rounding, where its sums were taken."""
    return abs(st.anchor + st.offset - theta) > 2.0**-40 * (st.s / st.nu)


@helper
def _step_from(st, anchor, offset):
    """The state `st`, to be evaluated next at another τ: still from the anchor if it is pinned."""
    if st.pinned:
        return _move(st, anchor, offset, True)
    return _move(st, anchor + offset, 0.0, False)


@helper
def _side_unknown(kind, p, st, nu, s, q):
    """Whether float32 sums at the state's τ cannot tell on which side of τ* it lies.

    Where a few entries dwarf the others they cannot at any τ among these others.
    """
    s, q = m.sums_at(nu, s, q, st.offset)
    return abs(m.closeness(kind, p, s, q)) <= 2.0**-20


@helper
def _rounding(kind, p, st, z):
    """By how much the τ of a verdict may be wrong if its sums are rounded as the data are."""
    room = st.nu - p if kind >= m.CAI else st.nu
    return 4.0 * np.finfo(z.dtype).eps * (abs(st.anchor + st.offset) + st.s / room)


@helper
def _many_between(candidates, theta, tau, slack):
    """Whether more than a few entries lie between two values of τ, or that near to them."""
    real = candidates.dtype.type
    low, high = real(min(theta, tau) - slack), real(max(theta, tau) + slack)
    return 32 * passes.count_between(candidates, low, high) > candidates.size


@helper
def _any_between(candidates, theta, tau):
    """Whether an entry lies between two values of τ, or is too near to one to tell."""
    real = candidates.dtype.type
    low, high = min(theta, tau), max(theta, tau)
    slack = 4.0 * np.finfo(candidates.dtype).eps
    low, high = low - slack * abs(low), high + slack * abs(high)
    return passes.any_between(candidates, real(low), real(high))


@helper
def _only_top(p, z, absolute, st):
    """Whether only entries within p of the largest matter, which has far more digits than p."""
    if st.status == m.CAPPED:
        return p < passes.TINY * abs(passes.largest(z, absolute))
    return st.status == m.SOFT and p < passes.TINY * abs(st.anchor + st.offset)


@helper
def _near_top(st, absolute, p, z):
    """The verdict where only entries within p of the largest matter."""
    anchor, offset, nu, s = passes.near_top(z, absolute, p)
    return m.State(m.SOFT, anchor, offset, 0.0, 0.0, nu, 0, True, True, st.passes + 1, s, 0.0)


@helper
def _in_range(kind, square):
    """Whether float32 numbers of this square sum neither overflow nor lose digits if squared."""
    return kind <= m.SIMPLEX or 1e-18 < square < 1e30


@helper
def rough_start(kind, p, nu, s, q):
    """Whether float32 sums at τ = 0 won't do: to tell if feasible, or for a small spread."""
    return nu == 0.0 or abs(m.closeness(kind, p, s, q)) < 1e-4 or s * s > 0.99 * nu * q


@helper
def _too_rough(kind, p, z, nu):
    """Whether the band's float32 sums, see `passes.RUN`, would spoil a small spread."""
    return z.itemsize == 4 and kind >= m.CAI and nu < SPREAD * p


@helper
def _tied(st, buffer, stored):
    """Whether τ is, but for rounding, a value that half of the stored entries have.

    Then it decides on all of them, and must be exact.
    """
    sample = buffer[stored : stored + 16 * RUN]
    if stored < 64 * RUN or sample.size < 16 * RUN:
        return False
    take_sample(buffer[:stored], NO, sample)
    tau = st.anchor + st.offset
    slack = 2.0**-20 * (abs(tau) + st.s / st.nu)
    return 2.0 * _count_between(sample, tau - slack, tau + slack) > sample.size


@helper
def _anchor_too_far(level, known):
    """Whether the spread of what was summed drowns in its distance from the anchor."""
    if known.nu == 0.0:
        return False
    mean = known.s / known.nu
    return m.drowned(level, known.nu, mean, known.q / known.nu - mean * mean)


@helper
def _ended(job, kind, absolute, p, z, buffer, stored, st, known, early, l2):
    """Write by a verdict, unless the sums that it comes from, `known`, have to be checked."""
    inlined()
    rough = job.action == OWN and job.state.anchor == 0.0 and z.itemsize == 4
    if job.action == BAND and job.hi < math.inf and z.itemsize == 4 and job.inside < 0:
        rough = job.lo == job.hi or _too_rough(kind, p, z, st.nu) or _tied(st, buffer, stored)
        if rough and st.status == m.SOFT and job.lo < job.hi:
            return _again_job(job, st, l2, stored)
    again = st.status == m.SOFT and job.action == SUMS and z.itemsize == 4 and kind >= m.CAI
    again = again and job.samples <= TIES  # once
    if again and _has_moved(st, known.theta):
        # The support before may have been that of float32 sums: is it still the same here?
        return _sums_job(m.with_tau(st, st.anchor, st.offset, st.nu, st.pinned), l2, TIES + 1)
    if st.status == m.SOFT and rough:
        return _sums_job(_move(st, st.anchor, st.offset, False), l2, TIES)
    if z.itemsize == 4 and st.anchor + st.offset < -1e30:
        return _verdict(m.RESCALE, 0.0, l2, 0.0, 0.0, 0.0)  # lest a − τ overflows
    if kind <= m.SIMPLEX and _only_top(p, z, absolute, st):
        st = _near_top(st, absolute, p, z)
    early = early and st.status == m.SOFT and st.anchor + st.offset >= job.lo
    return _last_job(kind, st, l2, early)


@helper
def _go_on(job, kind, absolute, p, z, buffer, st, known, l2):
    """The next pass, where the last one, with `known` sums, led to no verdict."""
    inlined()
    if job.action != BAND and st.passes == 1 and GUESS_FROM <= z.size < SAMPLE_FROM:
        newton, guess = st.anchor + st.offset, _guess(kind, p, st, known.nu, known.s, known.q)
        if math.isnan(guess):
            return _verdict(m.RESCALE, 0.0, l2, 0.0, 0.0, 0.0)
        if guess > -math.inf:
            # Kept: what lies above a point well left of the guess.
            lo = np.float64(z.dtype.type(guess - 0.4 * (guess - newton)))
            st = _move(st, guess, 0.0, False)
            return _band_job(st, lo, math.inf, False, False, l2, job.samples, False)
    if job.action == BAND and st.pinned and job.state.pinned:
        if st.nu >= 0.0 and st.anchor == job.state.anchor:  # leave the band's anchor
            st = _split(st, z)
        elif st.anchor != job.state.anchor or (kind >= m.CAI and _anchor_too_far(p, known)):
            return _sums_job(st, l2, job.samples)  # `advance` wants them from there, to end it
        else:  # only the band pinned it
            st = _move(st, st.anchor, st.offset, False)
    tau = st.anchor + st.offset
    if tau == -math.inf:  # every entry
        return _sums_job(st, l2, job.samples)
    if tau == 0.0 and st.nu < 0.0 and kind != m.SIMPLEX and st.lo >= 0.0:
        return _plain_job(st, l2, MOST_SAMPLES)  # to see whether the input counts as feasible
    if z.itemsize == 4 and (job.samples >= TIES or st.passes > PATIENCE):
        return _sums_job(st, l2, max(job.samples, MOST_SAMPLES))
    newton = st.nu > 0.0 and not st.pinned  # then τ lies left of τ*
    if newton and tau < 0.0 and st.nu == z.size:  # most likely the support remains: all entries
        return _plain_job(st, l2, job.samples)
    if newton and (z.size < SAMPLE_FROM or (tau >= known.theta and known.nu <= KEPT * z.size)):
        share = known.nu / z.size
        return _above_job(st, z, known, share, _early(z, share), l2, job.samples)
    sure = newton and st.anchor != 0.0 and not _too_rough(kind, p, z, known.nu)
    if sure and 1e-5 * st.hi < st.hi - tau < 0.25 * st.hi:  # no Newton step passes τ*
        lo, hi = _below_step(st, z, known), np.float64(z.dtype.type(st.hi))
        sample = buffer[: 128 * RUN]
        take_sample(z, absolute, sample)
        inside = _count_between(sample, lo, hi) / sample.size
        if inside < KEPT:
            start = _move(st, np.float64(z.dtype.type(0.5 * (lo + hi))), 0.0, True)
            return _band_job(start, lo, hi, _rare(z, inside), False, l2, job.samples, False)
        if kind <= m.SIMPLEX:
            return _sums_job(st, l2, TIES)
    if z.size >= SAMPLE_FROM and job.samples < MOST_SAMPLES:
        return _sampled(st, l2, job.samples, kind, absolute, p, z, buffer, known)
    if newton and tau > known.theta and z.size >= SAMPLE_FROM:  # too many to keep lie above τ
        lo, hi = _next_share(z, absolute, _below_step(st, z, known), buffer)
        if tau < hi:
            start = _move(st, np.float64(z.dtype.type(tau)), 0.0, True)
            return _band_job(start, lo, hi, False, False, l2, job.samples, False)
    if sure:
        st = _split(st, z)  # an empty band: only the sums, at the band's speed
        return _band_job(st, st.anchor, st.anchor, True, False, l2, job.samples, False)
    return _plain_job(st, l2, job.samples)


@helper
def _from_sums(job, kind, absolute, p, tol, z, known, l2, log):
    """The state that follows from the sums of a whole pass, and the norm, where they give it."""
    inlined()
    st, nu, s, q = job.state, known.nu, known.s, known.q
    at_zero = st.anchor == 0.0 and st.offset == 0.0
    # Sums of all entries: zeros, which τ = 0 leaves out, add nothing to them.
    complete = st.offset == -math.inf and st.anchor == 0.0
    complete = complete or (at_zero and absolute and (job.action == SUMS or z.itemsize == 8))
    if complete and l2 < 0.0:
        l2 = math.sqrt(q)
    if complete and m.equality_holds(kind, p, l2, tol, s, q):
        if absolute or passes.nonnegative(z):
            return _verdict(m.FEASIBLE, 0.0, l2, nu, s, q).state, l2
    st = advance(kind, p, tol, st, nu, s, q, log)
    if complete and st.status == m.GO and st.offset == -math.inf:
        st = advance(kind, p, tol, st, float(z.size), s, q, log)
    return st, l2


@helper
def _proceed(job, kind, absolute, p, tol, z, buffer, held, part, few, log):
    """Add up the pass's results and choose the next job.

    `log` takes the support size of each pass, as far as it has room.
    """
    inlined()
    st, l2 = job.state, job.l2
    if job.heads:
        return _after_heads(job, kind, p, z, buffer, held, part)
    early = job.action == BAND and job.early and few.size > 0
    if early and part[:, STORED].min() < 0.0:  # no room in some chunk
        return _band_job(st, job.lo, job.hi, job.rare, False, l2, job.samples, False)
    if part[:, FINITE].min() == 0.0:
        return _verdict(m.NONFINITE, math.nan, l2, 0.0, 0.0, 0.0)
    if job.action == SQUARES or (job.action == BAND and l2 < 0.0):
        column = Q if job.action == SQUARES else SQUARE
        q = 0.0
        for c in range(part.shape[0]):
            q += part[c, column]
        # Squares of negative entries, which the search has not seen, may overflow.
        l2 = math.sqrt(q) if q < math.inf else passes.norm(z)
    if job.action == SQUARES:
        return _write_job(st, l2)
    if early:
        buffer = held
    nu, s, q, stored = _collect(buffer, part)
    if job.action == BAND:
        if job.kept >= 0:
            nu, s, q = nu + job.known.nu, s + job.known.s, q + job.known.q
            for i in range(job.kept):
                buffer[stored + i] = held[i]
            stored += job.kept
        stored = max(stored, job.inside)
        if z.itemsize == 4 and job.hi < math.inf and nu > 0.0:  # sums of float32 squares
            if not _in_range(kind, st.anchor * st.anchor + q):
                return _verdict(m.RESCALE, 0.0, l2, nu, s, q)
        above = Known(job.hi, st.anchor, nu, s, q)
        st, known = _search_band(job, kind, p, tol, buffer, stored, above, log)
    else:
        if job.action == OWN and z.itemsize == 4 and st.anchor == 0.0 and st.offset == 0.0:
            if nu > 0.0 and math.isfinite(s) and not _in_range(kind, q):
                return _verdict(m.RESCALE, 0.0, l2, nu, s, q)
            if rough_start(kind, p, nu, s, q):
                return _sums_job(st, l2, job.samples)
        known = Known(st.anchor + st.offset, st.anchor, nu, s, q)
        st, l2 = _from_sums(job, kind, absolute, p, tol, z, known, l2, log)
    if st.status != m.GO:
        return _ended(job, kind, absolute, p, z, buffer, stored, st, known, early, l2)
    return _go_on(job, kind, absolute, p, z, buffer, st, known, l2)


@helper
def soft(kind, st, l2, real):
    """A soft threshold in the data's precision: τ as a pair, what counts as on it, the factor."""
    inlined()
    tau, rest = m.two_sum(st.anchor, st.offset)
    anchor = real(tau)  # near entries that hardly exceed τ, whose distance to it is exact then
    offset = (tau - np.float64(anchor)) + rest
    return anchor, real(offset), real(m.dust(st)), real(m.scale(kind, st, l2))


@helper
def write_soft(kind, st, l2, z, absolute, out, past):
    """Write the result for a soft threshold, past the caches if so wanted."""
    inlined()
    anchor, offset, dust, factor = soft(kind, st, l2, z.dtype.type)
    if past:
        passes.write_soft_past(z, absolute, anchor, offset, dust, factor, out)
    else:
        passes.write_soft(z, absolute, anchor, offset, dust, factor, out)


@helper
def write_verdict(kind, st, l2, p, rest, n, z, absolute, out, past):
    """Write the result for a verdict on n entries, z all of them or, unless it is TIED, some."""
    if st.status == m.FEASIBLE:
        passes.write_copy(z, absolute, out)
    elif st.status == m.TIED:
        k, b = m.tied_profile(p, rest)
        passes.write_tied(
            z, absolute, st.anchor, k, b, m.tied_scale(kind, k, b, st.anchor, l2), out
        )
    elif st.status == m.FLAT:
        passes.write_flat(z, absolute, l2 / math.sqrt(n), out)
    elif st.status == m.NONFINITE:
        out[:] = math.nan
    else:
        write_soft(kind, st, l2, z, absolute, out, past)


@helper
def _write(job, kind, absolute, p, rest, z, out, part, few, past, first, last):
    """Write chunks first..last−1 of the result, past the caches if so wanted."""
    z, out = uncounted(z), uncounted(out)
    st = job.state
    if job.early:
        anchor, offset, dust, factor = soft(kind, st, job.l2, z.dtype.type)
        for c in range(first, last):
            begin, end = c * CHUNK, min((c + 1) * CHUNK, z.size)
            found = int(part[c, FOUND])
            passes.write_few(
                z[begin:end], absolute, anchor, offset, dust, factor,
                _words(few, int(part[c, WORDS]), found), found, out[begin:end],
            )  # fmt: skip
        return
    begin, end = first * CHUNK, min(last * CHUNK, z.size)
    if st.status == m.TIED:  # the first k of the whole slice: one thread's work
        begin, end = 0, z.size if first == 0 else 0
    write_verdict(kind, st, job.l2, p, rest, z.size, z[begin:end], absolute, out[begin:end], past)


@helper
def is_extreme(kind, p, n):
    """Whether it is radius 0, level 1 or (Hoyer) level n, which need no search."""
    if kind <= m.SIMPLEX:
        return p == 0.0
    return p == 1.0 or (kind == m.HOYER and p >= n)


@helper
def extreme(kind, absolute, p, tol, l2, z):
    """The verdict then."""
    if l2 < 0.0:
        l2 = passes.norm(z)
    top = passes.largest(z, absolute)
    if kind == m.HOYER and p > 1.0:
        nu, _, _ = passes.sums(z, absolute, top, -(2.0**-54) * top)
        if m.flat_holds(float(z.size), top, l2, tol, nu):
            return _verdict(m.FEASIBLE, 0.0, l2, nu, nu, nu)
        return _verdict(m.FLAT, -math.inf, l2, 0.0, 0.0, 0.0)
    if (kind == m.L1 or kind == m.CAI) and not top > 0.0:
        return _verdict(m.FEASIBLE, 0.0, l2, 0.0, 0.0, 0.0)
    return _verdict(m.SOFT if kind <= m.SIMPLEX else m.TIED, top, l2, 0.0, 0.0, 0.0)


@helper
def _prepare(kind, absolute, p, tol, l2, z, buffer, part):
    """The first job of a slice, or its verdict where no search is needed."""
    inlined()
    if not absolute:  # with |z|, NaN and inf reach the sums of the first pass; now -inf would not
        if z.size >= SAMPLE_FROM:
            part[:, FINITE] = UNSEEN
        elif not passes.all_finite(z):
            return _verdict(m.NONFINITE, math.nan, l2, 0.0, 0.0, 0.0)
    if is_extreme(kind, p, z.size):
        if not passes.all_finite(z):
            return _verdict(m.NONFINITE, math.nan, l2, 0.0, 0.0, 0.0)
        return extreme(kind, absolute, p, tol, l2, z)
    return begin(kind, absolute, p, l2, z, buffer)


@helper
def report_on(st, kind, p, row):
    """Status, threshold, value of the constraint reached, passes."""
    row[STATUS] = st.status
    row[THRESHOLD] = st.anchor + st.offset
    if st.status == m.TIED or st.status == m.FLAT:
        row[REACHED] = p
    elif kind <= m.SIMPLEX:
        row[REACHED] = st.s
    else:
        row[REACHED] = st.s * st.s / st.q if st.q > 0.0 else 0.0
    row[PASSES] = st.passes


@helper
def refine(st, absolute, p, rest, z):
    """The verdict for Hoyer's level p + rest, from that for p."""
    found = m.refined(p, rest, st)
    if found.status == m.SOFT and st.nu < z.size:
        if abs(found.offset - st.offset) > 2.0**-45 * (st.s / st.nu):
            for _ in range(m.NEWTON_PASSES):  # if τ has moved across entries
                nu, s, q = passes.sums(z, absolute, found.anchor, found.offset)
                if nu == found.nu:
                    break
                found = m.refined_step(p, rest, found, nu, s, q)
    return found


@helper
def _settled(job, absolute, p, rest, z, scaled):
    """HOYER: the verdict for the level p + rest, or that another unit is needed to write it."""
    st = refine(job.state, absolute, p, rest, z)
    if st.status == m.SOFT and not scaled and not m.fits_unit(job.l2, st, z.itemsize):
        return _verdict(m.RESCALE, 0.0, job.l2, 0.0, 0.0, 0.0)
    return _job(WRITE, st, job.early, job.l2, 0)


@helper
def _no_result(job, kind, absolute, p, z, scaled):
    """The verdict where sums over- or underflow: to scale the data, unless that was done."""
    st = job.state
    status = m.NONFINITE
    if passes.all_finite(z):
        if kind <= m.SIMPLEX and p < passes.TINY * abs(passes.largest(z, absolute)):
            return _write_job(_near_top(st, absolute, p, z), job.l2)
        status = m.CAPPED if scaled else m.RESCALE  # CAPPED: more than any scale can hold
    return _write_job(
        m.State(
            status, st.anchor, st.offset, st.lo, st.hi, st.nu, 0, st.pinned, st.at_zero,
            st.passes, st.s, st.q,
        ),
        job.l2,
    )  # fmt: skip


@helper
def _least(z):
    """What smaller entries count as where the unit is that of the largest."""
    return -(2.0**30) if z.itemsize == 4 else -(2.0**200)


@helper
def is_cut(scaled):
    """Whether entries of what `scale` has written count as another, see `_least`."""
    return passes.largest(scaled, YES) >= -_least(scaled)


@helper
def scale(kind, absolute, p, l2, z, scaled, by_size):
    """Write the data times 2^shift, below 1; p, l2 in that unit; the result's unit is 2^back.

    `by_size`: the largest magnitude sets the unit, not the largest entry.
    """
    top = passes.largest(z, absolute or by_size)
    if kind <= m.SIMPLEX:
        top = abs(top)
        if p < math.inf:
            top = max(top, p)  # what lies further below than p does not count
    elif not top > 0.0:
        top = max(passes.largest(z, YES), 0.0)
    shift = -int(math.frexp(top)[1])
    passes.write_in_unit(z, shift, scaled)
    back = -shift
    if not (absolute or by_size):
        least = _least(z)
        for i in range(z.size):
            scaled[i] = max(scaled[i], least)
        if kind == m.HOYER and l2 < 0.0 and is_cut(scaled):
            l2 = passes.norm(z)
    if kind <= m.SIMPLEX:
        p = math.ldexp(p, shift)
    elif kind == m.HOYER and l2 >= 0.0:
        back = m.unit_of_norm(l2, shift)
        l2 = math.ldexp(l2, -back)
    return shift, back, p, l2


@helper
def write_scaled(st, kind, absolute, p, l2, rest, z, scaled, written, shift, back, out, row):
    """Write and report what was computed on scaled data, in the data's own unit.

    `written`: `scaled` holds the result already.
    """
    if st.status == m.FEASIBLE:  # bit for bit: scaling may have lost small entries
        passes.write_copy(z, absolute, out)
    else:
        if not written:
            write_verdict(kind, st, l2, p, rest, z.size, scaled, absolute, scaled, NO)
        passes.write_in_unit(scaled, back, out)
    row[THRESHOLD] = math.ldexp(row[THRESHOLD], -shift)
    if kind <= m.SIMPLEX:
        row[REACHED] = math.ldexp(row[REACHED], -shift)
        if st.status == m.FEASIBLE:  # beside a large radius nothing may have been left
            _, row[REACHED], _ = passes.sums(z, absolute, 0.0, 0.0)


@helper
def goes_past(x, out):
    """Whether rows are written past the caches."""
    least = PAST_FROM_4 if x.itemsize == 4 else PAST_FROM_8
    return x.shape[1] >= least and passes.beyond_caches(x, out)


@kernel
def outcome(table, strict):
    """What came of the rows: their largest status, or GO where one of them is left.

    If `strict`, the rows after one that is not finite are left, and it counts.
    """
    left, worst = False, 0.0
    for r in range(len(table)):
        left |= table[r, STATUS] == m.GO
        worst = max(worst, table[r, STATUS])
        if strict and table[r, STATUS] == m.NONFINITE:
            return table[r, STATUS]
    return np.float64(m.GO) if left else worst


@kernel
def project_rows(kind, absolute, tol, strict, whole, x, out, table, first, last):
    """Project those of the rows first..last−1 of x into out whose status is GO.

    `strict`: NaN or inf ends it.  `whole`: rows of `out` may serve as scratch, because `out` is not
    `x`.  For the columns of `table` see `arrays`.
    """
    n = x.shape[1]
    own_part = room_for_chunks(n)
    hold = room_to_hold(n)
    past = goes_past(x, out)
    # Scratch where the result will be would bring it into the caches; of long rows little is used.
    aside = not whole or (past and n < SAMPLE_FROM and last - first > 1)
    own_scratch = np.empty(hold + (n if aside else 0), x.dtype)
    own_marks, own_few = marks_of(n), room_for_few(n, whole)
    own_scaled = own_scratch  # until it is needed
    part, scratch, marks = uncounted(own_part), uncounted(own_scratch), uncounted(own_marks)
    held, spare, scaled = scratch[:hold], scratch[hold:], scratch[:0]
    x, out, table = uncounted(x), uncounted(out), uncounted(table)
    for r in range(first, last):
        z, target, report = x[r], out[r], table[r, :LOG]
        if report[STATUS] != m.GO:
            continue
        if not simd.STREAMS and r + 1 < last and n * x.itemsize >= NEAR:
            # Many do not fetch beyond a page by themselves: 1,000 floats take a tenth less.
            following = x[r + 1]
            for i in range(0, min(n, AHEAD // x.itemsize), simd.LINE // x.itemsize):
                simd.fetch(following, i)
        source, shift, back, p, l2 = z, NONE, NONE, report[WANTED], report[NORM]
        rest = report[REST] if kind == m.HOYER else 0.0
        buffer = spare if aside else target
        attempt, by_size, few = 0, False, uncounted(own_few)
        while True:
            table[r, LOG:] = -1.0  # nothing of another search
            if by_size:  # from all entries: right of 0 there may be too little to see
                job = _sums_job(m.start(kind), l2, MOST_SAMPLES)
            else:
                job = _prepare(kind, absolute, p, tol, l2, source, buffer, part)
            while job.action != WRITE:
                _run_pass(job, absolute, source, buffer, held, part, marks, few, NONE, len(part))
                job = _proceed(
                    job, kind, absolute, p, tol, source, buffer, held, part, few, table[r, LOG:]
                )
            if kind == m.HOYER:
                job = _settled(job, absolute, p, rest, source, attempt > 0)
            attempt += 1
            if job.state.status in (m.RESCALE, m.NONFINITE):
                job = _no_result(job, kind, absolute, report[WANTED], z, attempt > 1)
            # Hoyer's τ may lie among what the first unit has made equal.
            st = job.state
            by_size = attempt == 2 and kind == m.HOYER
            by_size = by_size and st.anchor + st.offset < 0.25 * _least(z)
            if st.status != m.RESCALE and not by_size:
                break
            if scaled.size == 0:
                own_scaled = np.empty(n, x.dtype)
                scaled = uncounted(own_scaled)
            p, l2 = report[WANTED], report[NORM]
            shift, back, p, l2 = scale(kind, absolute, p, l2, z, scaled, by_size)
            source, few = scaled, few[:0]
        report_on(job.state, kind, p, report)
        if attempt > 1:
            write_scaled(
                job.state, kind, absolute, p, job.l2, rest, z, source, NO, shift, back, target,
                report,
            )  # fmt: skip
        elif job.state.status == m.NONFINITE and strict:
            break
        else:
            _write(job, kind, absolute, p, rest, z, target, part, few, past, NONE, len(part))
    if past:
        simd.drain()
    keep((own_part, own_scratch, own_marks, own_few, own_scaled))


# --- the same from other kernels ---------------------------------------------------------------


def kinds_of_rows(dtype):
    """The types of the arguments of `project_rows`, for arrays of a type of Numba."""
    x, table = types.Array(dtype, 2, "C"), types.Array(types.float64, 2, "C")
    flag, number = types.boolean, types.int64
    return number, flag, types.float64, flag, flag, x, x, table, number, number


_to_rows = taker(lambda given: kinds_of_rows(given[5].dtype))


@helper
def rows_at(address, kind, absolute, tol, strict, whole, x, out, table, first, last):
    """Call what has the parameters of `project_rows`, for arrays like x, at its address."""
    inlined()
    given = kind, absolute, tol, strict, whole, x, out, table, first, last
    call_at(address, _to_rows(given))


# --- by several threads ------------------------------------------------------------------------


@kernel
def run_pass(job, absolute, z, buffer, held, part, few, first, last):
    """What a thread does of a pass."""
    marks = marks_of(z.size)
    z, buffer, held = uncounted(z), uncounted(buffer), uncounted(held)
    part, few = uncounted(part), uncounted(few)
    _run_pass(job, absolute, z, buffer, held, part, uncounted(marks), few, first, last)
    keep(marks)


@kernel
def write(job, kind, absolute, p, rest, z, out, part, few, first, last):
    """What a thread does of the writing."""
    past = passes.beyond_caches(z, out)
    _write(job, kind, absolute, p, rest, z, out, part, few, past, first, last)
    if past:
        simd.drain()


def _kinds(dtype):
    """The types of a job, of flags, numbers and integers, and of arrays as in `project_rows`."""
    job = typeof(Job(0, m.start(m.CAI), 0.0, 0.0, False, False, 0.0, 0, False, NOTHING, -1, -1))
    x, few = types.Array(dtype, 1, "C"), types.Array(types.uint64, 2, "C")
    part = types.Array(types.float64, 2, "C")
    return job, types.boolean, types.float64, types.int64, x, part, few


def _kinds_of_pass(dtype):
    job, flag, _, number, x, part, few = _kinds(dtype)
    return job, flag, x, x, x, part, few, number, number


def _kinds_of_write(dtype):
    job, flag, real, number, x, part, few = _kinds(dtype)
    return job, number, flag, real, real, x, x, part, few, number, number


_to_pass = taker(lambda given: _kinds_of_pass(given[2].dtype))
_to_write = taker(lambda given: _kinds_of_write(given[5].dtype))


@cache
def places(dtype):
    """Where `run_pass` and `write` for arrays of this dtype lie."""
    dtype = from_dtype(dtype)
    passes_, writes = _kinds_of_pass(dtype), _kinds_of_write(dtype)
    return address_of(run_pass, passes_), address_of(write, writes)


@kernel
def project_shared(places, kind, absolute, tol, whole, x, out, table, workers, desks):
    """Project long rows of x into out, each by several threads.

    As `project_rows`, but for rows that need another unit or are not finite: their status stays GO.
    For `places` see there, for the workers and their desks `waiting.split_at`.
    """
    n = x.shape[1]
    own_part, own_few = room_for_chunks(n), room_for_few(n, whole)
    own_held, own_aside = np.empty(room_to_hold(n), x.dtype), np.empty(0 if whole else n, x.dtype)
    part, few, held = uncounted(own_part), uncounted(own_few), uncounted(own_held)
    x, out, table, aside = uncounted(x), uncounted(out), uncounted(table), uncounted(own_aside)
    chunks = len(part)
    for r in range(len(x)):
        z, target, report = x[r], out[r], table[r, :LOG]
        p, l2, rest = report[WANTED], report[NORM], report[REST]
        buffer = target if whole else aside
        job = _prepare(kind, absolute, p, tol, l2, z, buffer, part)
        while job.action != WRITE:
            given = job, absolute, z, buffer, held, part, few
            split_at(places[0], _to_pass(given), chunks, workers, desks)
            job = _proceed(job, kind, absolute, p, tol, z, buffer, held, part, few, table[r, LOG:])
        if kind == m.HOYER:
            job = _settled(job, absolute, p, rest, z, NO)
        if job.state.status != m.NONFINITE and job.state.status != m.RESCALE:
            ready = job, kind, absolute, p, rest, z, target, part, few
            split_at(places[1], _to_write(ready), chunks, workers, desks)
            report_on(job.state, kind, p, report)
    keep((own_part, own_few, own_held, own_aside))
