"""Rows held in shared memory: a few threads of a warp for a short row, a block for a longer one.

Each row is read once and written once.  The threads of a team share its words, and all of them
take the same steps from the same sums; so no number but the sums moves between threads.  What is
out of the ordinary (NaN, ties, numbers near the ends of the range, parameters that leave one
entry or none) is put on a list for the engine's other kernel.

In registers fewer rows would find room at once, and their loops would have to be written out: so
much code that threads wait for their instructions.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import float32, float64, int32
from numba.extending import register_jitable

from .. import _math as m
from . import block, engine, wide
from .arrays import pick
from .block import WARP
from .device import SIMULATED, cuda, function, kernel, overload, shared_memory_of_block

WORDS = 5 if SIMULATED else 16  # wide words of a row that a thread looks after, at most
THREADS = 16 if SIMULATED else 128  # of a block whose teams lie within warps
MOST_WARPS = 4 if SIMULATED else 16  # of a team
_REGISTERS = 80  # of a thread: 24 warps at once on each multiprocessor, whose rows find room
_ROOM = 6 * MOST_WARPS  # numbers in shared memory
_OWN_BYTES = 2048  # of shared memory, no less than the kernels have beside the rows
_BATCH = 4  # words that a thread reads before it uses the first
_BANKS = 8  # neighbouring words that shared memory delivers at once
_BYTES = wide.BYTES  # here, since Numba wants an alignment to be a global of the module

# Unsigned, as all indices here: none counts from the end.
_WARP_BITS, _LAST_LANE = np.uint32(WARP.bit_length() - 1), np.uint32(WARP - 1)
_NEXT, _LAST = np.uint32(MOST_WARPS), np.uint32(2 * MOST_WARPS)


# --- arithmetic of the search in float32 -------------------------------------------------------

# Division and root to the last bit take 15 to 20 instructions each, and there are three or four at
# each step: half as many as the sums over the entries take.


@overload(m.quotient)
def _quotient(a, b):
    if a == b == float32:
        return lambda a, b: cuda.libdevice.fast_fdividef(a, b)
    return lambda a, b: a / b


@overload(m.root)
def _root(a):
    if a == float32:
        return lambda a: a * cuda.libdevice.rsqrtf(max(a, float32(1e-37)))
    return lambda a: math.sqrt(a)


# --- sums ------------------------------------------------------------------------------------


@function
def _sign_bit(a):
    """−1 if a float32 is negative, else 0: quicker than a comparison."""
    if SIMULATED:
        return -1 if a < 0 else 0
    return int32(cuda.libdevice.float_as_int(a) >> int32(31))


@function
def _sum_team(room, lanes, turn, nu, s, q):
    """Sums over a team, in the same order in all its threads; `turn` alternates."""
    nu, s, q = block.sum_lanes(min(lanes, WARP), nu, s, q)
    if lanes > WARP:
        t, spot = np.uint32(cuda.threadIdx.x), np.uint32(turn * 3 * MOST_WARPS)
        if t & _LAST_LANE == 0:
            at = np.uint32(spot + (t >> _WARP_BITS))
            room[at], room[np.uint32(at + _NEXT)], room[np.uint32(at + _LAST)] = nu, s, q
        cuda.syncthreads()
        warps = lanes >> _WARP_BITS
        at = np.uint32(spot + (t & np.uint32(warps - 1)))
        nu, s, q = room[at], room[np.uint32(at + _NEXT)], room[np.uint32(at + _LAST)]
        nu, s, q = block.sum_lanes(warps, nu, s, q)
    return nu, s, q


# --- the search --------------------------------------------------------------------------------

ODD = -1  # for the engine
_MOST_PASSES = 24


class Search(NamedTuple):
    """Where the search of a usual row stands: of `m.State` what it needs."""

    status: int
    anchor: float
    offset: float
    before: float  # size of the support whose Newton step led here, or -1
    spare: float  # where the first Newton step led, if the guess is no good; NaN once tried
    passes: int
    exact: bool  # sums in float64 are asked for


@register_jitable
def _begin(kind, usual, lowest):
    """Where the search begins: with all entries, or with the positive ones."""
    free = kind == m.SIMPLEX or kind == m.HOYER
    offset = 0.5 * lowest if free else 0.0
    return Search(m.GO if usual else ODD, 0.0, offset, -1.0, math.nan, 0, False)


@register_jitable
def _ended(status, f):
    return Search(status, f.anchor, f.offset, f.before, f.spare, f.passes + 1, f.exact)


@register_jitable
def _next(kind, absolute, p, l2, tol, n, narrow, f, nu, s, q):
    """From the sums to the next τ, or to the verdict SOFT or FEASIBLE; ODD where that is not plain.

    A support whose equation has its solution where the same entries lie above τ is the one.
    """
    cone = kind == m.CAI or kind == m.HOYER
    first = f.passes == 0
    if not math.isfinite(s):
        return _ended(ODD, f)
    if cone:
        least, most = (1e-18, 1e30) if narrow else (1e-200, 1e200)  # of squares
        safe = least < f.anchor * f.anchor + q < most
    else:
        safe = m.sums_are_safe(cone, p, f.anchor, s, q)
    if not safe and s != 0.0:
        return _ended(ODD, f)
    if first:
        if kind == m.CAI and m.level_excess(p, s, q) <= tol * p * q:
            return _ended(m.FEASIBLE, f)
        if kind == m.L1 and s - p <= tol * p:
            return _ended(m.FEASIBLE, f)
        if m.equality_holds(kind, p, l2, tol, s, q):  # nobody knows if some are negative
            return _ended(ODD, f)
    coarse = narrow and not f.exact and not first
    if coarse and m.dwarfed(cone, p, f.anchor + f.offset, nu, s - nu * f.offset):
        return Search(m.GO, f.anchor, f.offset, -1.0, math.nan, f.passes + 1, True)
    tau, rest, before, spare = f.spare, 0.0, -1.0, math.nan
    if nu > (p if cone else 0.0):
        mean = s / nu
        if cone and m.drowned(p, nu, mean, q / nu - mean * mean):
            return _ended(ODD, f)
        step = m.newton_offset(kind, p, nu, s, q)
        if nu == f.before and abs(step - f.offset) <= 2.0**-16 * (mean - f.offset):
            status = m.SOFT
            if cone and m.delicate(p, nu):  # every digit counts
                if nu - p <= 1e-3 * p or m.nearly_whole(p):
                    return _ended(ODD, f)
                status = m.SOFT if f.exact or not narrow else m.GO
            elif not cone and p < engine.TINY * abs(f.anchor):
                status = ODD
            if status != m.GO:
                return Search(status, f.anchor, step, nu, math.nan, f.passes + 1, f.exact)
            if f.passes < _MOST_PASSES:
                return Search(m.GO, f.anchor, f.offset, nu, math.nan, f.passes + 1, True)
        tau, rest = m.two_sum(f.anchor, step)
        before, spare = nu, f.spare
        if tau < f.spare:  # the guess was no good
            tau, rest, before = f.spare, 0.0, -1.0
        if first and n >= engine.GUESS_FROM and (kind == m.CAI or kind == m.L1):
            guess = m.tail_guess(kind, p, nu, s, q)
            if step < guess < math.inf:
                tau, rest, before, spare = guess, 0.0, -1.0, step
    free = (kind == m.SIMPLEX or kind == m.HOYER) and not absolute  # or the pads would count
    if not (free or tau > 0.0) or tau != tau or f.passes >= _MOST_PASSES:
        return _ended(ODD, f)
    anchor = float64(np.float32(tau)) if narrow else tau  # differences from it are exact
    return Search(m.GO, anchor, (tau - anchor) + rest, before, spare, f.passes + 1, f.exact)


# --- rows in shared memory ---------------------------------------------------------------------

# Of rows that consist of words, a team of two threads or more fills whole sectors, and each thread
# reads and writes its own words.  The others lie one behind the other in global memory, and all
# threads of the warp (or of a larger team) copy them together, neighbours on neighbouring words.
# In shared memory each begins `gap` words after the one before.


@function
def _later(at, k, step):
    """at + k·step without a detour through 64 bits, or through float64, as Numba would have it."""
    return np.uint32(at + np.uint32(np.uint32(k) * step))


@function
def _bring(row, origin, store, at, last, stride, read):
    """Copy this thread's words of a row to shared memory, where the row begins at `origin`."""
    each = np.uint32(wide.BYTES // read.itemsize)
    while _later(at, _BATCH - 1, stride) < last:
        for k in range(_BATCH):  # all are asked for before the first is used
            far = np.uint32(_later(at, k, stride) - origin)
            wide.fetch(row, far, read, np.uint32(k * each))
        for k in range(_BATCH):
            wide.put(store, _later(at, k, stride), read, np.uint32(k * each))
        at = _later(at, _BATCH, stride)
    while at < last:
        wide.fetch(row, np.uint32(at - origin), read, np.uint32(0))
        wide.put(store, at, read, np.uint32(0))
        at = np.uint32(at + stride)


class Walk(NamedTuple):
    """How a thread goes through rows of `size` items, `step` items at a time."""

    size: int
    step: int
    rows: int  # that a step passes over
    rest: int


@function
def _walk(size, width):
    size, width = np.uint32(size), np.uint32(width)
    rows = np.uint32(width // size)
    return Walk(size, width, rows, np.uint32(width % size))


@function
def _advance(walk, inside, place, skip):
    """The next place, and where in its row it lies; between two rows `skip` is added."""
    inside = np.uint32(inside + walk.rest)
    place = np.uint32(_later(place, walk.rows, skip) + walk.step)
    if inside >= walk.size:
        inside, place = np.uint32(inside - walk.size), np.uint32(place + skip)
    return inside, place


@function
def _copy_words(inward, flat, store, begin, rows, words, gap, t, width, read):
    """Copy rows of so many words to ``store[begin:]``, or back, as the t-th of `width` threads."""
    each, at = np.uint32(wide.BYTES // read.itemsize), np.uint32(t)
    walk, skip, end = _walk(words, width), np.uint32(gap - words), np.uint32(rows * words)
    inside, place = np.uint32(at % walk.size), _later(at, at // walk.size, skip)
    while inward and _later(at, _BATCH - 1, walk.step) < end:
        for k in range(_BATCH):  # all are asked for before the first is used
            far = np.uint32(each * _later(at, k, walk.step))
            wide.fetch(flat, far, read, np.uint32(k * each))
        for k in range(_BATCH):
            wide.put(store, _later(begin, each, place), read, np.uint32(k * each))
            inside, place = _advance(walk, inside, place, skip)
        at = _later(at, _BATCH, walk.step)
    while at < end:
        near, far = _later(begin, each, place), np.uint32(each * at)
        if inward:
            wide.fetch(flat, far, read, np.uint32(0))
            wide.put(store, near, read, np.uint32(0))
        else:
            wide.fetch(store, near, read, np.uint32(0))
            wide.put(flat, far, read, np.uint32(0))
        inside, place = _advance(walk, inside, place, skip)
        at = np.uint32(at + walk.step)


@function
def _copy_entries(inward, flat, store, begin, rows, n, words, gap, t, width, pad, read):
    """The same of rows of n entries that are no words: the last word is filled up with the pad."""
    each, at = np.uint32(wide.BYTES // read.itemsize), np.uint32(t)
    walk, n = _walk(np.uint32(words) * each, width), np.uint32(n)
    skip, lack = np.uint32(each * np.uint32(gap - words)), np.uint32(n - walk.size)  # below 0
    row, end = np.uint32(at // walk.size), np.uint32(np.uint32(rows) * walk.size)
    inside = np.uint32(at % walk.size)
    place, far = _later(np.uint32(begin + at), row, skip), _later(at, row, lack)
    there = inside
    while at < end:
        if inward:
            for k in range(read.size):
                here = _later(at, k, walk.step) < end and there < n
                read[k] = flat[far] if here else pad
                there, far = _advance(walk, there, far, lack)
        for k in range(read.size):
            if _later(at, k, walk.step) < end:
                if inward:
                    store[place] = read[k]
                elif inside < n:
                    flat[far] = store[place]
            if not inward:
                _, far = _advance(walk, inside, far, lack)
            inside, place = _advance(walk, inside, place, skip)
        at = _later(at, read.size, walk.step)


@function
def _copy(inward, by_words, flat, store, begin, rows, n, words, gap, t, width, pad, read):
    """One of the two."""
    if by_words:
        _copy_words(inward, flat, store, begin, rows, words, gap, t, width, read)
    else:
        _copy_entries(inward, flat, store, begin, rows, n, words, gap, t, width, pad, read)


# --- sums over a team's row ----------------------------------------------------------------------

# Of the words at, at + stride, .. before `last`: entries of the shared memory, all.


@function
def _add_up(read, count, absolute, anchor, offset):
    """Count, Σ(a − anchor) and Σ(a − anchor)² of the a read with a − anchor > offset, or NaN.

    They are added by pairs in the data's precision.
    """
    real = read.dtype.type
    near, edge, zero = real(anchor), real(offset), real(0)
    number, s, q = int32(0), zero, zero
    for k in range(0, count, 2):
        a = abs(read[k]) if absolute else read[k]
        b = abs(read[k + 1]) if absolute else read[k + 1]
        a, b = a - near, b - near
        over, further = not a <= edge, not b <= edge
        a, b = a if over else zero, b if further else zero
        number = int32(number + int32(over) + int32(further))
        s += a + b
        q += a * a + b * b
    return number, s, q


@function
def _sums(store, at, last, stride, absolute, anchor, offset, read):
    """Those of a row, of which eight are added in the data's precision at most."""
    each = np.uint32(wide.BYTES // read.itemsize)
    number, s, q = int32(0), 0.0, 0.0
    while np.uint32(at + stride) < last:
        wide.fetch(store, at, read, np.uint32(0))
        wide.fetch(store, np.uint32(at + stride), read, each)
        count, s8, q8 = _add_up(read, 2 * each, absolute, anchor, offset)
        number, s, q = int32(number + count), s + float64(s8), q + float64(q8)
        at = _later(at, 2, stride)
    if at < last:
        wide.fetch(store, at, read, np.uint32(0))
        count, s8, q8 = _add_up(read, each, absolute, anchor, offset)
        number, s, q = int32(number + count), s + float64(s8), q + float64(q8)
    return float64(number), s, q


@function
def _add_up_coarsely(read, count, absolute, near, below, s, q):
    """Add to the same for offset 0, quickly, all in float32; of the number, those below."""
    zero = float32(0)
    s2, q2 = zero, zero
    for k in range(0, count, 2):
        a, b = float32(read[k]), float32(read[k + 1])
        a, b = (abs(a) if absolute else a) - near, (abs(b) if absolute else b) - near
        below = int32(below + _sign_bit(a) + _sign_bit(b))
        a, b = max(a, zero), max(b, zero)
        s, s2 = s + a, s2 + b
        q, q2 = q + a * a, q2 + b * b
    return below, s + s2, q + q2


@function
def _coarse_sums(store, at, last, stride, absolute, near, read):
    """Those of a row; an entry that equals the anchor counts."""
    each = np.uint32(wide.BYTES // read.itemsize)
    number, s, q = int32(0), float32(0), float32(0)
    while _later(at, _BATCH - 1, stride) < last:
        for k in range(_BATCH):
            wide.fetch(store, _later(at, k, stride), read, np.uint32(k * each))
        number, s, q = _add_up_coarsely(
            read, _BATCH * each, absolute, near, int32(number + read.size), s, q
        )
        at = _later(at, _BATCH, stride)
    while at < last:
        wide.fetch(store, at, read, np.uint32(0))
        number, s, q = _add_up_coarsely(
            read, each, absolute, near, int32(number + int32(each)), s, q
        )
        at = np.uint32(at + stride)
    return float32(number), s, q


@function
def _exact_sums(store, at, last, stride, absolute, anchor, offset, read):
    """The sums in float64."""
    each = np.uint32(wide.BYTES // read.itemsize)
    nu, s, q = 0.0, 0.0, 0.0
    while at < last:
        wide.fetch(store, at, read, np.uint32(0))
        for k in range(each):
            a = abs(read[k]) if absolute else read[k]
            nu, s, q = engine.add_exact(a, anchor, offset, nu, s, q)
        at = np.uint32(at + stride)
    return nu, s, q


@function
def _probe(store, at, last, stride, read):
    """NaN if an entry is not finite, else 0: −∞ is in no sum."""
    each, probe = np.uint32(wide.BYTES // read.itemsize), read.dtype.type(0)
    while at < last:
        wide.fetch(store, at, read, np.uint32(0))
        for k in range(each):
            probe += read[k] * probe
        at = np.uint32(at + stride)
    return float64(probe)


# --- a team's row ------------------------------------------------------------------------------


@function
def _coarse_search(
    kind, absolute, p, tol, n, pads, narrow, f, store, at, last, stride, read, room, lanes, turn
):  # fmt: skip
    """Newton's steps in float32, until the support will hardly change.

    Takes and returns a `Search`; what it finds is where the exact one begins.  At the first pass
    it gives up where the row may be feasible.  Of float64 data it sees the float32 next to each
    entry, and changes nothing where these do not do.
    """
    cone = kind == m.CAI or kind == m.HOYER
    free = (kind == m.SIMPLEX or kind == m.HOYER) and not absolute  # or the pads would count
    bound, least = float32(p), float32(p) if cone else float32(0)
    tau, before, spare = float32(f.anchor), float32(f.before), float32(f.spare)
    passes, going = f.passes, f.status == m.GO and bound > float32(0)
    while block.anybody(going):
        if absolute:
            nu, s, q = _coarse_sums(store, at, last, stride, True, tau, read)
        else:
            nu, s, q = _coarse_sums(store, at, last, stride, False, tau, read)
        nu, s, q = _sum_team(room, lanes, turn, nu, s, q)
        turn = 1 - turn
        first = passes == 0
        if going and first:
            if absolute:
                nu -= float32(pads)
            slack = float32(max(1e-4, 2.0 * tol)) * bound  # float16 has a larger one
            if kind == m.CAI:
                going = m.level_excess(bound, s, q) > slack * q
            elif kind == m.L1:
                going = s - bound > slack
            else:
                going = abs(s - bound) > slack
        if going:
            passes += 1
            if nu == before:
                going = False
            elif nu > least:
                step = float32(m.newton_offset(kind, bound, nu, s, q))
                far, before = float32(tau + step), nu
                if first and n >= engine.GUESS_FROM and (cone or s > bound):
                    guess = m.tail_guess_in(
                        m.CAI if cone else m.L1, bound, nu, s, q, float32(1), float32(0.5),
                        float32(0.95), float32(1e-6),
                    )  # fmt: skip
                    if step < guess < math.inf:
                        far, before, spare = float32(guess), float32(-1), step
                elif far < spare:  # the guess was no good
                    far, before = spare, float32(-1)
                elif nu * nu * abs(step) < float32(0.3) * s:
                    going = False
                elif passes == 2 and (kind == m.CAI or kind == m.L1):
                    step = m.tail_step_in(
                        kind, bound, nu, s, q, float32(1), float32(0.5), float32(2 / 3)
                    )
                    far, before = float32(tau + step), float32(-1)
                tau = far
            else:
                tau, before, spare = spare, float32(-1), float32(math.nan)
            going = going and (tau > float32(0) or (free and tau == tau)) and passes < _MOST_PASSES
    if passes > f.passes:
        good = float32(0) < tau < float32(math.inf) or (free and math.isfinite(tau))
        if narrow:
            status = f.status if good else ODD
            f = Search(status, float64(tau), 0.0, float64(before), math.nan, passes, False)
        elif good:  # a count of rounded entries shows nothing
            f = Search(f.status, float64(tau), 0.0, -1.0, math.nan, passes, False)
    return f, turn


@function
def _finish(kind, absolute, st, l2, store, at, last, stride, read, own, row, origin, keep):
    """Put the result where this thread's words are: in the row if they are its own alone.

    Then into shared memory as well if they shall be kept there.
    """
    each, real = np.uint32(wide.BYTES // read.itemsize), read.dtype.type
    zero = real(0)
    tau, rest = m.two_sum(st.anchor, st.offset)
    anchor = real(tau)
    offset = real((tau - float64(anchor)) + rest)
    dust, factor = real(m.dust(st)), real(m.scale(kind, st, l2))
    if st.status == m.FEASIBLE:  # CAI, L1
        while at < last:
            wide.fetch(store, at, read, np.uint32(0))
            for k in range(each):
                read[k] = read[k] if absolute or read[k] > zero else zero
            if own:
                wide.put(row, np.uint32(at - origin), read, np.uint32(0))
            if keep or not own:
                wide.put(store, at, read, np.uint32(0))
            at = np.uint32(at + stride)
        return
    while at < last:
        wide.fetch(store, at, read, np.uint32(0))
        for k in range(each):
            d = ((abs(read[k]) if absolute else read[k]) - anchor) - offset
            x = math.copysign(d * factor, read[k]) if absolute else d * factor
            read[k] = x if d > dust else zero
        if own:
            wide.put(row, np.uint32(at - origin), read, np.uint32(0))
        if keep or not own:
            wide.put(store, at, read, np.uint32(0))
        at = np.uint32(at + stride)


@function
def _nonzeros(store, at, last, stride, read):
    """How many entries of this thread's part of the result are not zero; the pads are."""
    each, zero = np.uint32(wide.BYTES // read.itemsize), read.dtype.type(0)
    count = int32(0)
    while at < last:
        wide.fetch(store, at, read, np.uint32(0))
        for k in range(each):
            count = int32(count + int32(read[k] != zero))
        at = np.uint32(at + stride)
    return float64(count)


def _made(narrow):
    """Make the kernel of this type: narrow is float32."""
    dtype = np.dtype(np.float32 if narrow else np.float64)
    lowest, each = float(np.finfo(dtype).min), wide.BYTES // dtype.itemsize
    batch = _BATCH * each

    def project_held(
        kind, absolute, p_one, p_each, low, high, l2_one, l2_each, tol, flat, goal, info, rows, n,
        gap, bits, by_words, reported, todo,
    ):  # fmt: skip
        store = cuda.shared.array(0, flat.dtype, alignment=_BYTES)
        room = cuda.shared.array(_ROOM, float64)
        small_room = cuda.shared.array(_ROOM, float32)
        read = cuda.local.array(batch, flat.dtype)
        real = flat.dtype.type
        t, lanes = cuda.threadIdx.x, int32(int32(1) << int32(bits))  # no division, which takes long
        many, teams = lanes > WARP, cuda.blockDim.x >> bits
        pad = real(0) if absolute else real(lowest)
        words = int32((n + each - 1) // each)
        pads = words * each - n
        width = int32(lanes if many else WARP)  # threads that copy together
        here = int32(t & (width - 1))  # among them
        team, lane = int32(here >> bits), int32(here & (lanes - 1))
        together = int32(width >> bits)
        first = int32((t - here) >> bits)  # of their rows
        begin = np.uint32(first * gap * each)
        origin = np.uint32(begin + team * gap * each)
        at, last = np.uint32(origin + lane * each), np.uint32(origin + words * each)
        own = by_words and lanes > 1
        stride = np.uint32(each * lanes)
        base = cuda.blockIdx.x * teams
        while base < rows:
            lead = base + first
            mine = int32(max(min(together, rows - lead), 0))
            r = lead + team
            live = r < rows
            r = r if live else base
            if own:
                _bring(flat[r * n :], origin, store, at, last, stride, read)
            else:
                _copy(
                    True, by_words, flat[lead * n :], store, begin, mine, n, words, gap, here,
                    width, pad, read,
                )  # fmt: skip
                block.meet(many)
            bad = 0.0 if absolute else _probe(store, at, last, stride, read)
            p, l2 = pick(p_one, p_each, r), pick(l2_one, l2_each, r)
            usual = live and low <= p <= high
            if kind <= m.SIMPLEX:
                usual = usual and p > 0.0
            else:
                usual = usual and p > 1.0 and not (kind == m.HOYER and p >= n)
            f, going, turn = _begin(kind, usual, lowest), usual, 0
            nu, s, q = 0.0, 0.0, 0.0
            start, coarse = True, kind != m.HOYER  # whose norm the exact pass finds
            while block.anybody(going):
                if coarse:
                    f, turn = _coarse_search(
                        kind, absolute, p, tol, n, pads, narrow, f, store, at, last, stride, read,
                        small_room, lanes, turn,
                    )  # fmt: skip
                    going = f.status == m.GO
                if not narrow or f.exact:
                    nu, s, q = _exact_sums(
                        store, at, last, stride, absolute, f.anchor, f.offset, read
                    )
                elif absolute:
                    nu, s, q = _sums(store, at, last, stride, True, f.anchor, f.offset, read)
                else:
                    nu, s, q = _sums(store, at, last, stride, False, f.anchor, f.offset, read)
                nu, s, q = _sum_team(room, lanes, turn, nu, s + bad, q)
                turn = 1 - turn
                if going:
                    if start and absolute and kind == m.HOYER:
                        nu = float64(n)  # not the pads
                    if start and kind == m.HOYER and l2 < 0.0:
                        l2 = math.sqrt(q) if nu == n else math.nan
                    f = _next(kind, absolute, p, l2, tol, n, narrow, f, nu, s, q)
                going = f.status == m.GO
                start, coarse = False, start and kind == m.HOYER
            s, q = m.sums_at(nu, s, q, f.offset)
            st = m.State(f.status, f.anchor, f.offset, 0.0, 0.0, nu, 0, False, True, f.passes, s, q)
            done = f.status != ODD
            if kind == m.HOYER and done:  # which is SOFT
                done = m.fits_unit(l2, st, flat.itemsize)
            if live and done:
                _finish(
                    kind, absolute, st, l2, store, at, last, stride, read, own, goal[r * n :],
                    origin, reported,
                )  # fmt: skip
            elif live and lane == 0:
                todo[1 + cuda.atomic.add(todo, 0, 1)] = r
            if reported:
                count = _nonzeros(store, at, last, stride, read)
                count, _, _ = _sum_team(room, lanes, turn, count, 0.0, 0.0)
                if live and done and lane == 0:
                    engine.report_state(st, kind, p, 0, count, info[r])
            if not own:
                block.meet(many)
                _copy(  # those that are left come back as they were
                    False, by_words, goal[lead * n :], store, begin, mine, n, words, gap, here,
                    width, pad, read,
                )  # fmt: skip
            block.meet(many)  # before the next rows and sums come
            base += cuda.gridDim.x * teams

    project_held.__name__ = project_held.__qualname__ = f"project_held_{dtype.itemsize}"
    project_held.__doc__ = f"Project the rows of x, whose entries have {dtype.itemsize} bytes."
    return kernel(project_held, bounds=None, registers=_REGISTERS)


KERNELS = {4: _made(True), 8: _made(False)}
project_held_4, project_held_8 = KERNELS[4], KERNELS[8]


def words_of(n, itemsize):
    """Wide words of a row, the last of which may not be full."""
    return -(-n * itemsize // wide.BYTES)


def fits(n, itemsize):
    """Whether a team can hold a row of this length."""
    words = words_of(n, itemsize)
    room = shared_memory_of_block() - _OWN_BYTES
    return 0 < words <= min(WORDS * MOST_WARPS * WARP, room // wide.BYTES)


class Plan(NamedTuple):
    """How rows of some length are held."""

    bits: int  # a team's number of threads is two to this power
    gap: int  # words from one row to the next
    threads: int  # of a block: several teams within warps, or one of several warps
    shared: int  # bytes


def plan(n, itemsize):
    """The plan for rows that fit."""
    words = words_of(n, itemsize)
    bits = max(-(-words // WORDS) - 1, 0).bit_length()
    lanes = 1 << bits
    gap = words
    if lanes < _BANKS:  # an odd multiple: teams side by side then read from different banks
        gap = lanes * (-(-words // lanes) | 1)
    threads = THREADS if lanes <= WARP else lanes
    return Plan(bits, gap, threads, (threads >> bits) * gap * wide.BYTES)
