"""The threshold engine on the GPU: a block for a row, or all blocks for one long vector.

A row that fits is copied to shared memory, and so read once.  A pass takes sums over it, adds
them up over the block (or the grid) in a fixed order, and the first thread of each block
asks `advance` for the next τ; so the threshold never leaves the GPU.  On a very long vector the
first passes see a sample only, whose τ is where the exact search begins.
"""

import math
from functools import partial

import numpy as np
from numba import float64, int32
from numba.extending import register_jitable

from .. import _math as m
from . import block
from .arrays import pick
from .block import WARP
from .device import MOST_THREADS, SIMULATED, cuda, function, kernel

ROOM = 3  # numbers that a thread needs in shared memory
# With so many entries for each thread of a grid, begin with a sample: one of SKIP.
SAMPLE_FROM, SKIP = (2, 2) if SIMULATED else (64, 64)
BAND_SHARE = 4 if SIMULATED else 16  # one of so many entries may lie in the band around τ
GUESS_FROM = 64  # from here on the second τ is guessed, from the sums of the first pass
TINY = 2.0**-40  # a radius below this fraction of τ: found by its distance from the top
# Told: a State's twelve numbers, the norm wanted (Hoyer), what smaller entries count as, between
# what τ lies if the sample does not mislead, and the rest of the level (Hoyer).
L2, LEAST, LOW, HIGH, REST, TOLD = 12, 13, 14, 15, 16, 17
WIDE = MOST_THREADS, 2  # launch bounds: what solves takes 128 registers a thread
# Entries that a thread reads at once: in each pass, and where all is read from far.
BATCH, LONG_BATCH = (4, 8) if SIMULATED else (8, 16)
NONFINITE, CAPPED, BAD_PARAMETER, FLAGS = 0, 1, 2, 3  # flags: how many slices
STATUS, THRESHOLD, LEVEL, PASSES, NONZEROS, COLUMNS = 0, 1, 2, 3, 4, 5  # of the report


# --- the first thread's part ---------------------------------------------------------------


@register_jitable
def remember(told, st):
    """Store a state where the block can see it."""
    told[0], told[1], told[2], told[3], told[4] = st.status, st.anchor, st.offset, st.lo, st.hi
    told[5], told[6], told[7], told[8] = st.nu, st.overshoots, st.pinned, st.at_zero
    told[9], told[10], told[11] = st.passes, st.s, st.q


@register_jitable
def recall(told):
    """The state that was stored."""
    return m.State(
        int(told[0]), told[1], told[2], told[3], told[4], told[5], int(told[6]), told[7] != 0.0,
        told[8] != 0.0, int(told[9]), told[10], told[11],
    )  # fmt: skip


@register_jitable
def conclude(told, status, anchor, s, q):
    """Store a verdict that needed no search."""
    remember(told, m.State(status, anchor, 0.0, 0.0, 0.0, 0.0, 0, True, False, 1, s, q))


@register_jitable
def step(told, kind, p, tol, n, narrow, nonnegative, nu, s, q):
    """From the sums that the state asked for to the next state."""
    st = recall(told)
    if st.offset == -math.inf and st.anchor == 0.0:
        if told[L2] < 0.0:
            told[L2] = math.sqrt(q)
        if nonnegative and m.equality_holds(kind, p, told[L2], tol, s, q):
            conclude(told, m.FEASIBLE, 0.0, s, q)
            return
    first = st.passes == 0 and st.anchor == 0.0  # elsewhere a sample has led to τ
    cone = kind == m.CAI or kind == m.HOYER
    guessed = first and n >= GUESS_FROM and (kind == m.L1 or kind == m.CAI)
    # Squares of float32 are float32, but for those of a pinned state.
    least, most = (1e-9, 1e15) if narrow and not st.pinned else (1e-100, 1e100)
    # Seen from another anchor (of a band), rounding may leave q below 0.
    fits = least < abs(st.anchor) + math.sqrt(max(q, 0.0)) < most
    if cone and nu > 0.0 and math.isfinite(s) and s != 0.0 and not fits:
        told[0] = m.RESCALE
        return
    guessed = guessed and (cone or fits)  # the ball needs squares for its guess only
    if narrow and not st.pinned and st.offset > -math.inf:
        coarse = cone and 0.0 < nu - p <= 1e-3 * p
        dwarfed = m.dwarfed(cone, p, st.anchor + st.offset, nu, s - nu * st.offset) and not first
        if coarse or dwarfed:  # once more, in float64
            before = -1.0 if dwarfed else st.nu
            remember(told, m.with_tau(st, st.anchor, st.offset, before, True))
            return
    st = m.advance(kind, p, tol, st, nu, s, q)
    if st.status == m.GO and guessed and not st.pinned:
        guess = m.tail_guess(kind, p, nu, s, q)
        if st.anchor + st.offset < guess < math.inf:
            st = m.with_tau(st, guess, 0.0, -1.0, False)
    if st.status == m.GO and narrow and not st.pinned and math.isfinite(st.offset):
        # Differences from a float32 are exact in float32 where it matters.
        tau, rest = m.two_sum(st.anchor, st.offset)
        anchor = float64(np.float32(tau))
        st = m.with_tau(st, anchor, (tau - anchor) + rest, st.nu, False)
    remember(told, st)


@register_jitable
def see_if_sample_suffices(told, before, weight, nu, s, q):
    """End the search in a sample where its next step is small against what τ errs by anyway."""
    step = told[1] + told[2] - before
    if told[0] == m.GO and nu > 0.0 and abs(step) <= 0.05 * math.sqrt(weight * q) / nu:
        told[0], told[5], told[10], told[11] = m.SOFT, nu, s, q


@register_jitable
def leave_sample(told, kind, narrow, weight):
    """Begin anew with all entries, at the τ of the sample if it gave one.

    Then τ lies within some standard errors of it: Σd has one of √(weight·Σd²), of which the ν-th
    part is τ's for the ball; the cone's is larger, with what its level leaves of ν.
    """
    st = recall(told)
    start = m.start(kind)
    told[LOW], told[HIGH] = math.inf, -math.inf
    if st.status == m.SOFT and st.nu > 0.0:
        tau = st.anchor + st.offset
        tau = float64(np.float32(tau)) if narrow else tau
        start = m.with_tau(start, tau, 0.0, -1.0, False)
        error = math.sqrt(weight * st.q) / st.nu * (24.0 if kind == m.CAI else 6.0)
        low, high = tau - error, tau + error
        if low > 0.0:
            told[LOW] = float64(np.float32(low)) if narrow else low
            told[HIGH] = float64(np.float32(high)) if narrow else high
    remember(told, start)


@register_jitable
def step_near_top(told, p, nu, s):
    """A Newton step on τ relative to the largest entry, unless the support is the last one's."""
    st = recall(told)
    # None at all: each one's share of the radius is rounded to nothing.
    if nu == st.nu or nu == 0.0 or st.passes >= m.MAX_PASSES:
        told[10] = s - nu * st.offset
        return
    told[2] = m.newton_offset(m.L1, p, nu, s, 0.0)
    told[5], told[9] = nu, st.passes + 1


# --- the team's part: all threads of a block, or of the grid -------------------------------


@function
def share(grid):
    """The first entry of this thread, and how far it is to its next one."""
    if grid is None:
        return cuda.threadIdx.x, cuda.blockDim.x
    return cuda.grid(1), cuda.gridsize(1)


@function
def add_up(room, grid, parts, turn, a, b, c):
    """Sums over the team, the same for all threads; `turn` alternates between 0 and 1."""
    a, b, c = block.sum_three(room, a, b, c)
    if grid is not None:
        t = cuda.threadIdx.x
        if t == 0:
            j = cuda.blockIdx.x
            parts[turn, j, 0], parts[turn, j, 1], parts[turn, j, 2] = a, b, c
        grid.sync()
        a, b, c = 0.0, 0.0, 0.0
        for j in range(t, cuda.gridDim.x, cuda.blockDim.x):
            a += parts[turn, j, 0]
            b += parts[turn, j, 1]
            c += parts[turn, j, 2]
        a, b, c = block.sum_three(room, a, b, c)
    return a, b, c


@function
def largest_of(room, grid, parts, turn, a):
    """Maximum over the team."""
    a = block.largest(room, a)
    if grid is not None:
        t = cuda.threadIdx.x
        if t == 0:
            parts[turn, cuda.blockIdx.x, 0] = a
        grid.sync()
        for j in range(t, cuda.gridDim.x, cuda.blockDim.x):
            a = max(a, parts[turn, j, 0])
        a = block.largest(room, a)
    return a


@function
def sums(z, first, stride, f, g, absolute, least, anchor, offset, exact):
    """Count, Σ(a − anchor) and Σ(a − anchor)² of this thread's a with a − anchor > offset.

    The data count times f·g, a power of two, and no less than `least`.  At most four terms are
    added in the data's precision; none where `exact`.
    """
    real = z.dtype.type
    near, edge, lowest = real(anchor), real(offset), real(least)
    nu, s, q = 0.0, 0.0, 0.0
    read = cuda.local.array(BATCH, z.dtype)  # registers, as all loops over it are unrolled
    n, i = z.size, first
    while i + (BATCH - 1) * stride < n:
        for k in range(BATCH):  # all are asked for before the first is used
            read[k] = z[np.uint64(i + k * stride)]  # unsigned: no index counts from the end
        for k in range(0, BATCH, 4):
            if exact:
                for j in range(k, k + 4):
                    a = magnitude(read[j] * f * g, absolute, lowest)
                    nu, s, q = add_exact(a, anchor, offset, nu, s, q)
            else:
                count, s4, q4 = int32(0), real(0), real(0)
                for j in range(k, k + 4):
                    d = magnitude(read[j] * f * g, absolute, lowest) - near
                    over = not d <= edge
                    d = d if over else real(0)
                    count = int32(count + int32(over))
                    s4 += d
                    q4 += d * d
                nu += float64(count)
                s += float64(s4)
                q += float64(q4)
        i += BATCH * stride
    while i < n:
        a = magnitude(z[np.uint64(i)] * f * g, absolute, lowest)
        if exact:
            nu, s, q = add_exact(a, anchor, offset, nu, s, q)
        else:
            d = a - near
            if not d <= edge:
                nu += 1.0
                s += float64(d)
                q += float64(d * d)
        i += stride
    return nu, s, q


@function
def magnitude(value, absolute, lowest):
    """What is compared with τ."""
    return abs(value) if absolute else (lowest if value < lowest else value)


@function
def add_exact(a, anchor, offset, nu, s, q):
    """Add a − anchor and its square in float64 if it exceeds the offset; NaN does, to be seen."""
    far = float64(a) - anchor
    if not far <= offset:
        nu += 1.0
        s += far
        q += far * far
    return nu, s, q


@function
def keep_band(z, first, stride, f, g, absolute, least, anchor, low, high, kept):
    """Sums of a − anchor for this thread's a > high; the warp keeps those in (low, high], low > 0.

    Returns the number of those kept as well, the same in all its threads, or more than there
    is room for.
    """
    real = z.dtype.type
    near, bottom, top, lowest = real(anchor), real(low), real(high), real(least)
    nu, s, q = 0.0, 0.0, 0.0
    read = cuda.local.array(LONG_BATCH, z.dtype)
    n = z.size
    count = int32(0)
    lead = first - first % WARP  # of the warp's first thread: all take the same turns
    while lead < n:
        i = lead + first % WARP
        if lead + WARP - 1 + (LONG_BATCH - 1) * stride < n:
            for k in range(LONG_BATCH):
                read[k] = z[np.uint64(i + k * stride)]
        else:
            for k in range(LONG_BATCH):
                read[k] = z[np.uint64(i + k * stride)] if i + k * stride < n else real(0)
        marks = np.uint32(0)
        number, s4, q4 = int32(0), real(0), real(0)
        for k in range(LONG_BATCH):
            a = magnitude(read[k] * f * g, absolute, lowest)
            read[k] = a
            d = a - near
            over = a > top
            if a > bottom and not over:
                marks = np.uint32(marks | np.uint32(1 << k))
            d = d if over else real(0)
            number = int32(number + int32(over))
            s4 += d
            q4 += d * d
            if a != a:  # to be seen
                s4 = a
            if k % 4 == 3:
                s += float64(s4)
                q += float64(q4)
                s4, q4 = real(0), real(0)
        nu += float64(number)
        if block.anybody(marks != 0):
            before, total = block.counted_before(cuda.popc(marks), LONG_BATCH)
            at = int32(count + before)
            for k in range(LONG_BATCH):
                if marks & np.uint32(1 << k):
                    if at < kept.size:
                        kept[np.uint64(at)] = read[k]
                    at = int32(at + 1)
            count = int32(count + total)
        lead += LONG_BATCH * stride
    return nu, s, q, count


@function
def add_band(kept, count, anchor, offset, exact):
    """The sums of `sums` over what this warp has kept, as one of its threads."""
    real = kept.dtype.type
    near, edge = real(anchor), real(offset)
    nu, s, q = 0.0, 0.0, 0.0
    for i in range(cuda.threadIdx.x % WARP, count, WARP):
        if exact:
            nu, s, q = add_exact(kept[np.uint64(i)], anchor, offset, nu, s, q)
        else:
            d = kept[np.uint64(i)] - near
            if d > edge:
                nu += 1.0
                s += float64(d)
                q += float64(d * d)
    return nu, s, q


@function
def factors(real, shift):
    """Two powers of two with the product 2**shift, which may be none itself."""
    half = shift // 2
    return real(math.ldexp(real(1), half)), real(math.ldexp(real(1), shift - half))


@function
def facts(z, first, stride):
    """Of this thread's entries: how many are not finite, how many negative; max |z|, max z."""
    bad, negative, size, top = 0.0, 0.0, 0.0, -math.inf
    for i in range(first, z.size, stride):
        value = float64(z[i])
        if not math.isfinite(value):
            bad += 1.0
        else:
            negative += 1.0 if value < 0.0 else 0.0
            size, top = max(size, abs(value)), max(top, value)
    return bad, negative, size, top


@function
def count_of(z, first, stride, absolute, value):
    """How many of this thread's entries, or magnitudes, are this value."""
    count = 0
    for i in range(first, z.size, stride):
        a = abs(z[i]) if absolute else z[i]
        count += 1 if a == value else 0
    return float64(count)


@function
def solve(kind, absolute, p, l2, tol, z, room, told, grid, parts, kept):
    """Find the verdict, which `told` holds afterwards, and the power of two of its unit.

    Returns p, the exponents of the unit of the data and of the result, and the next `turn`.
    """
    t, n = cuda.threadIdx.x, z.size
    real = z.dtype.type
    narrow = z.itemsize == 4
    first, stride = share(grid)
    f, g = real(1), real(1)
    shift, back, turn, bad = 0, 0, 0, 0.0
    nonnegative, masked, size, top = absolute, False, 0.0, 0.0
    least, far, whole, given = -math.inf, 2.0**30 if narrow else 2.0**200, False, l2
    extreme = p == 0.0 if kind <= m.SIMPLEX else p == 1.0 or (kind == m.HOYER and p >= n)
    attempt = 0
    status = m.RESCALE if extreme else m.GO
    while True:
        if attempt > 0 or extreme or not absolute:
            bad, negative, size, top = facts(z, first, stride)
            bad, negative, _ = add_up(room, grid, parts, turn, bad, negative, 0.0)
            size = largest_of(room, grid, parts, 1 - turn, size)
            top = size if absolute else largest_of(room, grid, parts, turn, top)
            turn = turn if absolute else 1 - turn
            nonnegative = absolute or negative == 0.0
            if bad > 0.0:
                status = m.NONFINITE
                break
        if status == m.RESCALE:
            own = -int(math.frexp(size)[1])
            if kind <= m.SIMPLEX:
                size = max(abs(top), p) if p < math.inf else abs(top)
                if not extreme and p < TINY * abs(top):  # no scale is needed: see below
                    cuda.syncthreads()
                    if t == 0:
                        conclude(told, m.SOFT, top, 0.0, 0.0)
                    cuda.syncthreads()
                    break
            elif top > 0.0 and not whole:
                masked = size > far * top
                size = top
            least = -math.inf if whole else -far  # seen from the top no less than −inf
            l2 = given
            shift = -int(math.frexp(size)[1])
            f, g = factors(real, shift)
            back = -shift
            if kind <= m.SIMPLEX:
                p = math.ldexp(p, shift)
            elif kind == m.HOYER and l2 >= 0.0:
                back = m.unit_of_norm(l2, shift)
                l2 = math.ldexp(l2, -back)
            elif kind == m.HOYER and (extreme or masked):  # no pass will see the norm
                u, v = factors(real, own)
                _, _, q = sums(z, first, stride, u, v, True, 0.0, 0.0, -math.inf, True)
                _, _, q = add_up(room, grid, parts, turn, 0.0, 0.0, q)
                turn = 1 - turn
                l2 = math.ldexp(math.sqrt(q), shift - own)
        attempt += 1
        cuda.syncthreads()
        if t == 0:
            told[L2] = l2
            told[LEAST] = least
            remember(told, m.start(kind))
        cuda.syncthreads()
        if extreme:
            break
        skip, weight = 1, 1.0
        if grid is not None and n >= SAMPLE_FROM * stride and (kind == m.L1 or kind == m.CAI):
            skip = SKIP
            lap = skip * stride  # of which the first `stride` entries are looked at
            weight = n / (n // lap * stride + min(n % lap, stride))
        banded, count, middle, over, over_s, over_q = False, int32(0), 0.0, 0.0, 0.0, 0.0
        while told[0] == m.GO:
            exact = told[7] != 0.0 or not narrow
            tau = told[1] + told[2]
            inside = banded and told[7] == 0.0 and told[LOW] <= tau < told[HIGH]
            if grid is not None and inside:
                nu, s, q = add_band(kept, count, told[1], told[2], exact)
            else:
                nu, s, q = sums(
                    z, first, skip * stride, f, g, absolute, least, told[1], told[2], exact
                )
            nu, s, q = add_up(room, grid, parts, turn, nu, s, q)
            turn = 1 - turn
            if t == 0:
                if inside:  # those above the band, seen from this anchor
                    shift_by = middle - told[1]
                    nu += over
                    s += over_s + over * shift_by
                    q += over_q + shift_by * (2.0 * over_s + over * shift_by)
                nu, s, q = weight * nu, weight * s, weight * q
                step(told, kind, p, tol, n, narrow, nonnegative, nu, s, q)
                if skip > 1:
                    see_if_sample_suffices(told, tau, weight, nu, s, q)
            cuda.syncthreads()
            if skip > 1 and told[0] != m.GO:
                skip, sampled, weight = 1, weight, 1.0
                cuda.syncthreads()
                if t == 0:
                    leave_sample(told, kind, narrow, sampled)
                cuda.syncthreads()
                if grid is not None and told[LOW] < told[HIGH]:
                    middle = told[1]
                    over, over_s, over_q, count = keep_band(
                        z,
                        first,
                        stride,
                        f,
                        g,
                        absolute,
                        least,
                        middle,
                        told[LOW],
                        told[HIGH],
                        kept,
                    )
                    # Too many for one of the warps: then it is of no use to any.
                    over += math.inf if count > kept.size else 0.0
                    over, over_s, over_q = add_up(room, grid, parts, turn, over, over_s, over_q)
                    turn = 1 - turn
                    banded = math.isfinite(over) and math.isfinite(over_s)
        status = int(told[0])
        if kind == m.HOYER and status == m.SOFT and attempt == 1:
            if not m.fits_unit(told[L2], recall(told), z.itemsize):
                status = m.RESCALE
        # Hoyer's τ may lie among what the first unit has made equal.
        whole = attempt == 2 and masked and kind == m.HOYER and told[1] + told[2] < -0.25 * far
        if not whole and (attempt > 1 or not (status == m.RESCALE or status == m.NONFINITE)):
            break
        status = m.RESCALE
    if status == m.NONFINITE:
        cuda.syncthreads()
        if t == 0:
            conclude(told, m.NONFINITE, math.nan, math.nan, math.nan)
        cuda.syncthreads()
        return p, 0, 0, turn
    if extreme and p > 1.0:
        nu = count_of(z, first, stride, absolute, real(top))
        nu, _, _ = add_up(room, grid, parts, turn, nu, 0.0, 0.0)
        turn = 1 - turn
        top = math.ldexp(top, shift)
        same = back == -shift and m.flat_holds(float(n), top, told[L2], tol, nu)
        cuda.syncthreads()
        if t == 0:
            if same:
                conclude(told, m.FEASIBLE, 0.0, nu, nu)
            else:
                conclude(told, m.FLAT, -math.inf, 0.0, 0.0)
        cuda.syncthreads()
    elif extreme:
        if t == 0:
            if (kind == m.L1 or kind == m.CAI) and top <= 0.0:
                conclude(told, m.FEASIBLE, 0.0, 0.0, 0.0)
            else:
                status = m.SOFT if kind <= m.SIMPLEX else m.TIED
                conclude(told, status, math.ldexp(top, shift), 0.0, 0.0)
        cuda.syncthreads()
    elif kind <= m.SIMPLEX and told[0] != m.FEASIBLE and p < TINY * abs(told[1]):
        # Only entries within p of the largest matter, and their gaps to it are exact.
        _, _, size, top = facts(z, first, stride)
        top = largest_of(room, grid, parts, turn, size if absolute else top)
        top = math.ldexp(top, shift)
        turn = 1 - turn
        cuda.syncthreads()
        if t == 0:
            told[1], told[2], told[5], told[7] = top, -p, -1.0, 1.0
            told[0], told[9] = m.SOFT, min(told[9], 0.5 * m.MAX_PASSES)  # it may have been capped
        cuda.syncthreads()
        before, nu = -2.0, -1.0
        while nu != before and told[9] < m.MAX_PASSES:
            before = nu
            nu, s, q = sums(z, first, stride, f, g, absolute, least, told[1], told[2], True)
            nu, s, q = add_up(room, grid, parts, turn, nu, s, q)
            turn = 1 - turn
            if t == 0:
                step_near_top(told, p, nu, s)
            cuda.syncthreads()
    return p, shift, back, turn


@function
def soft(value, absolute, least, anchor, offset, dust, factor):
    """sign(value)·factor·d where d = (a − anchor) − offset exceeds dust, else 0."""
    a = abs(value) if absolute else (least if value < least else value)
    d = (a - anchor) - offset
    if not d > dust:
        return dust - dust
    return math.copysign(d * factor, value) if absolute else d * factor


@function
def write(kind, absolute, p, shift, back, z, out, room, told, grid, parts, turn):
    """Write the result; returns the number of nonzeros."""
    n = z.size
    real = z.dtype.type
    zero = real(0)
    first, stride = share(grid)
    f, g = factors(real, shift)
    u, v = factors(real, back)
    st = recall(told)
    l2 = told[L2]
    nonzeros = 0
    if st.status == m.SOFT or st.status == m.CAPPED:
        tau, rest = m.two_sum(st.anchor, st.offset)
        anchor = real(tau)  # near entries that hardly exceed τ, whose distance to it is exact then
        offset = real((tau - float64(anchor)) + rest)
        dust, factor, least = real(m.dust(st)), real(m.scale(kind, st, l2)), real(told[LEAST])
        read = cuda.local.array(LONG_BATCH, z.dtype)
        i = first
        while i < n:
            if i + (LONG_BATCH - 1) * stride < n:
                for k in range(LONG_BATCH):
                    read[k] = z[np.uint64(i + k * stride)]
            else:
                for k in range(LONG_BATCH):
                    read[k] = z[np.uint64(i + k * stride)] if i + k * stride < n else zero
            for k in range(LONG_BATCH):
                if i < n:
                    value = read[k] * f * g
                    value = soft(value, absolute, least, anchor, offset, dust, factor) * u * v
                    out[np.uint64(i)] = value
                    nonzeros += 1 if value != zero else 0
                i += stride
    elif st.status == m.TIED:
        if grid is None or cuda.blockIdx.x == 0:
            rest = told[REST] if kind == m.HOYER else 0.0
            nonzeros = write_tied(kind, absolute, p, rest, st.anchor, l2, f, g, u, v, z, out, room)
    else:
        same = real(math.nan)
        if st.status == m.FLAT:
            same = real(l2 / math.sqrt(float64(n))) * u * v
        for i in range(first, n, stride):
            value = z[i]
            if st.status == m.FEASIBLE:
                value = value if absolute or value > zero else zero
            else:
                value = math.copysign(same, value) if absolute else same
            out[i] = value
            nonzeros += 1 if value != zero else 0
    total, _, _ = add_up(room, grid, parts, turn, float64(nonzeros), 0.0, 0.0)
    return total


@function
def write_tied(kind, absolute, p, rest, top, l2, f, g, u, v, z, out, room):
    """Write, by one block, factor·(1, …, 1, b) to the first k entries that equal `top`.

    The rest becomes zero.  Returns this thread's number of nonzeros.
    """
    t, width, n = cuda.threadIdx.x, cuda.blockDim.x, z.size
    real = z.dtype.type
    size, b = m.tied_profile(p, rest)
    factor = real(m.tied_scale(kind, size, b, top, l2))
    seen, nonzeros = 0.0, 0
    for first in range(0, n, width):
        i = first + t
        value = z[i] if i < n else real(0)
        scaled = value * f * g
        a = abs(scaled) if absolute else scaled
        hit = i < n and float64(a) == top
        before, total = block.rank(room, hit)
        result = real(0)
        if hit and seen + before < size:
            result = factor * real(b) if seen + before == size - 1.0 else factor
            result = result * u * v
            result = math.copysign(result, value) if absolute else result
        seen += total
        if i < n:
            out[i] = result
            nonzeros += 1 if result != real(0) else 0
    return nonzeros


@register_jitable
def report(told, kind, p, shift, nonzeros, row):
    """Status, threshold, value of the constraint reached, passes, number of nonzeros."""
    report_state(recall(told), kind, p, shift, nonzeros, row)


@register_jitable
def report_state(st, kind, p, shift, nonzeros, row):
    """The same of a state that is not stored."""
    row[STATUS] = st.status
    row[THRESHOLD] = math.ldexp(st.anchor + st.offset, -shift)
    if st.status == m.NONFINITE:
        row[THRESHOLD], row[LEVEL] = math.nan, math.nan
    elif nonzeros == 0:
        row[LEVEL] = 0.0
    elif st.status == m.TIED or st.status == m.FLAT:
        row[LEVEL] = p
    elif kind <= m.SIMPLEX:
        row[LEVEL] = math.ldexp(st.s, -shift)
    else:
        row[LEVEL] = st.s / st.q * st.s if st.q > 0.0 else 0.0
    row[PASSES] = st.passes
    row[NONZEROS] = nonzeros


@function
def first_of(grid):
    """Whether this is the first thread of those that work on a row."""
    return (cuda.threadIdx.x if grid is None else cuda.grid(1)) == 0


@function
def usable(p, low, high, told, flags, grid):
    """Whether the parameter is in range; a parameter on the GPU is first seen here."""
    good = low <= p <= high
    if not good and first_of(grid):
        cuda.atomic.add(flags, BAD_PARAMETER, 1)
    if not good and cuda.threadIdx.x == 0:
        conclude(told, m.NONFINITE, math.nan, math.nan, math.nan)
    return good


@function
def tell_rest(told, rest):
    """Keep the rest of Hoyer's level until the search has ended."""
    if cuda.threadIdx.x == 0:
        told[REST] = rest


@function
def raise_flags(told, flags):
    """Count what the caller may want to hear of."""
    if told[0] == m.NONFINITE:
        cuda.atomic.add(flags, NONFINITE, 1)
    elif told[0] == m.CAPPED:
        cuda.atomic.add(flags, CAPPED, 1)


@function
def finish(kind, absolute, p, shift, back, z, out, room, told, grid, parts, turn, row, flags):
    """Write the result and the report."""
    cuda.syncthreads()
    if kind == m.HOYER:
        if cuda.threadIdx.x == 0:
            remember(told, m.refined(p, told[REST], recall(told)))
        cuda.syncthreads()
    nonzeros = write(kind, absolute, p, shift, back, z, out, room, told, grid, parts, turn)
    if first_of(grid):
        raise_flags(told, flags)
        report(told, kind, p, shift, nonzeros, row)


@function
def copy_row(z, cache):
    """Copy a row into shared memory."""
    cuda.syncthreads()
    i = cuda.threadIdx.x
    read = cuda.local.array(BATCH, z.dtype)
    while i < z.size:
        for k in range(BATCH):
            at = i + k * cuda.blockDim.x
            read[k] = z[np.uint64(at)] if at < z.size else cache.dtype.type(0)
        for k in range(BATCH):
            if i < z.size:
                cache[np.uint64(i)] = read[k]
            i += cuda.blockDim.x
    cuda.syncthreads()


@partial(kernel, bounds=WIDE)
def project_rows(
    kind, absolute, p_one, p_each, low, high, l2_one, l2_each, tol, rest_one, rest_each, x, out,
    info, flags, cached, todo,
):  # fmt: skip
    """Project the rows of x, a block for each; `cached`: shared memory has room for a row.

    Or only those that `todo` lists after their number, if it has entries.
    """
    room = cuda.shared.array(0, float64)
    held = cuda.shared.array(0, x.dtype)
    held = held[ROOM * cuda.blockDim.x * 8 // x.itemsize :]
    told = cuda.shared.array(TOLD, float64)
    listed = todo.size > 0
    for item in range(cuda.blockIdx.x, todo[0] if listed else x.shape[0], cuda.gridDim.x):
        r = todo[1 + item] if listed else item
        z = x[r]
        if cached:
            copy_row(z, held)
            z = held[: x.shape[1]]
        p = pick(p_one, p_each, r)
        cuda.syncthreads()
        tell_rest(told, pick(rest_one, rest_each, r))
        shift, back, turn = 0, 0, 0
        if usable(p, low, high, told, flags, None):
            l2 = pick(l2_one, l2_each, r)
            p, shift, back, turn = solve(
                kind, absolute, p, l2, tol, z, room, told, None, None, None
            )
        finish(
            kind, absolute, p, shift, back, z, out[r], room, told, None, None, turn,
            info[r % info.shape[0]], flags,
        )  # fmt: skip


@partial(kernel, bounds=WIDE)
def project_long(
    kind, absolute, p_one, p_each, low, high, l2_one, l2_each, tol, rest_one, rest_each, x, out,
    info, flags, r, parts, kept,
):  # fmt: skip
    """Project row r of x, by all blocks of a grid that runs at once; `kept`: a row for a warp."""
    grid = cuda.cg.this_grid()
    room = cuda.shared.array(0, float64)
    told = cuda.shared.array(TOLD, float64)
    p = pick(p_one, p_each, r)
    tell_rest(told, pick(rest_one, rest_each, r))
    shift, back, turn = 0, 0, 0
    if usable(p, low, high, told, flags, grid):
        l2 = pick(l2_one, l2_each, r)
        p, shift, back, turn = solve(
            kind, absolute, p, l2, tol, x[r], room, told, grid, parts, kept[cuda.grid(1) // WARP]
        )
    finish(
        kind, absolute, p, shift, back, x[r], out[r], room, told, grid, parts, turn,
        info[r % info.shape[0]], flags,
    )  # fmt: skip


@kernel
def count_bad(x, flags):
    """Count the blocks that see an entry that is not finite."""
    rows, n = x.shape
    bad = np.int32(0)
    i = cuda.grid(1)
    while i < rows * n:
        if not math.isfinite(x[i // n, i % n]):
            bad = np.int32(1)
        i += cuda.gridsize(1)
    if cuda.syncthreads_or(bad) and cuda.threadIdx.x == 0:
        cuda.atomic.add(flags, NONFINITE, 1)
