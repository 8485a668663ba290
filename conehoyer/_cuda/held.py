"""Rows held in registers: a few threads of a warp for a short row, a block for a longer one.

Each row is read once and written once.  The threads of a team hold the entries, and all of them
take the same steps from the same sums; so no number but the sums moves between threads.  What is
out of the ordinary (NaN, ties, numbers near the ends of the range, parameters that leave one
entry or none) is put on a list for the engine's other kernel.
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
from .device import SIMULATED, cuda, function, kernel, overload

HELD = {4: 8, 8: 8} if SIMULATED else {4: 32, 8: 16}  # entries of a thread, by their size
THREADS = 16 if SIMULATED else 128  # of a block whose teams lie within warps
MOST_WARPS = 4 if SIMULATED else 16  # of a team
_BOUNDS = (MOST_WARPS * WARP, 1)
_REGISTERS = 96  # of a thread: 20 warps at once on each multiprocessor; a few words are spilled
_ROOM = 6 * MOST_WARPS  # numbers in shared memory

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
        safe = abs(f.anchor) + abs(s) + p > 1e-290
    if not safe and s != 0.0:
        return _ended(ODD, f)
    if first:
        if kind == m.CAI and m.level_excess(p, s, q) <= tol * p * q:
            return _ended(m.FEASIBLE, f)
        if kind == m.L1 and s - p <= tol * p:
            return _ended(m.FEASIBLE, f)
        if m.equality_holds(kind, p, l2, tol, s, q):  # nobody knows if some are negative
            return _ended(ODD, f)
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


# --- a team's row ------------------------------------------------------------------------------


@function
def _load(row, lane, lanes, mine, by_words, pad, held, light):
    """Read this thread's entries, `mine` in number; the others count as the pad.

    `light` takes them in float32.  Returns NaN if one of those read is not finite, else 0.
    """
    real, each = held.dtype.type, wide.BYTES // held.itemsize
    if by_words:
        at, step = np.uint32(each * lane), np.uint32(each * lanes)
        if mine == held.size:  # without the questions: less than half of the instructions
            for k in range(0, held.size, each):
                wide.fetch(row, at, held, np.uint32(k))
                at = np.uint32(at + step)
        else:
            for k in range(0, held.size, each):
                if k < mine:
                    wide.fetch(row, at, held, np.uint32(k))
                else:
                    for j in range(k, k + each):
                        held[j] = pad
                at = np.uint32(at + step)
    else:
        at, step = np.uint32(lane), np.uint32(lanes)
        for k in range(held.size):
            held[k] = row[at] if k < mine else pad
            at = np.uint32(at + step)
    probe = real(0)
    for k in range(held.size):
        probe = real(probe + held[k] * real(0))
        light[k] = float32(held[k])
    return float64(probe)


@function
def _sums(held, absolute, anchor, offset):
    """Count, Σ(a − anchor) and Σ(a − anchor)² of this thread's a with a − anchor > offset.

    Eight terms are added by pairs in the data's precision.
    """
    real = held.dtype.type
    near, edge, zero = real(anchor), real(offset), real(0)
    count, s, q = int32(0), 0.0, 0.0
    for g in range(0, held.size, 8):
        s8, q8 = zero, zero
        for k in range(g, g + 8, 2):
            a = abs(held[k]) if absolute else held[k]
            b = abs(held[k + 1]) if absolute else held[k + 1]
            a, b = a - near, b - near
            over, further = a > edge, b > edge
            a, b = a if over else zero, b if further else zero
            count = int32(count + int32(over) + int32(further))
            s8 += a + b
            q8 += a * a + b * b
        s += float64(s8)
        q += float64(q8)
    return float64(count), s, q


@function
def _coarse_sums(held, absolute, near):
    """The same for offset 0, quickly, all in float32; an entry that equals the anchor counts."""
    zero = float32(0)
    below = int32(0)
    s, q, s2, q2 = zero, zero, zero, zero
    for k in range(0, held.size, 2):
        a = (abs(held[k]) if absolute else held[k]) - near
        b = (abs(held[k + 1]) if absolute else held[k + 1]) - near
        below = int32(below + _sign_bit(a) + _sign_bit(b))
        a, b = max(a, zero), max(b, zero)
        s, s2 = s + a, s2 + b
        q, q2 = q + a * a, q2 + b * b
    return float32(int32(held.size + below)), s + s2, q + q2


@function
def _coarse_search(kind, absolute, p, tol, n, narrow, f, light, room, lanes, turn):
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
            nu, s, q = _coarse_sums(light, True, tau)
        else:
            nu, s, q = _coarse_sums(light, False, tau)
        nu, s, q = _sum_team(room, lanes, turn, nu, s, q)
        turn = 1 - turn
        first = passes == 0
        if going and first:
            if absolute:
                nu -= float32(lanes * light.size - n)  # the pads
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
def _exact_sums(held, absolute, anchor, offset):
    """The same in float64."""
    nu, s, q = 0.0, 0.0, 0.0
    for k in range(held.size):
        a = abs(held[k]) if absolute else held[k]
        far = float64(a) - anchor
        if far > offset:
            nu += 1.0
            s += far
            q += far * far
    return nu, s, q


@function
def _finish(kind, absolute, st, l2, held):
    """Put this thread's part of the result where its entries are."""
    real = held.dtype.type
    zero = real(0)
    anchor = real(st.anchor + st.offset)
    offset = real((st.anchor - float64(anchor)) + st.offset)
    dust, factor = real(m.dust(st)), real(m.scale(kind, st, l2))
    if st.status == m.FEASIBLE:  # CAI, L1
        for k in range(held.size):
            held[k] = held[k] if absolute or held[k] > zero else zero
    elif absolute:
        for k in range(held.size):
            d = (abs(held[k]) - anchor) - offset
            held[k] = math.copysign(d * factor, held[k]) if d > dust else zero
    else:
        for k in range(held.size):
            d = (held[k] - anchor) - offset
            held[k] = d * factor if d > dust else zero


@function
def _write(held, lane, lanes, mine, by_words, out):
    """Write what this thread holds."""
    each = wide.BYTES // held.itemsize
    if by_words:
        at, step = np.uint32(each * lane), np.uint32(each * lanes)
        if mine == held.size:
            for k in range(0, held.size, each):
                wide.put(out, at, held, np.uint32(k))
                at = np.uint32(at + step)
        else:
            for k in range(0, held.size, each):
                if k < mine:
                    wide.put(out, at, held, np.uint32(k))
                at = np.uint32(at + step)
    else:
        at, step = np.uint32(lane), np.uint32(lanes)
        for k in range(held.size):
            if k < mine:
                out[at] = held[k]
            at = np.uint32(at + step)


@function
def _nonzeros(held):
    """How many entries of this thread's part of the result are not zero; the pads are."""
    count, zero = int32(0), held.dtype.type(0)
    for k in range(held.size):
        count = int32(count + int32(held[k] != zero))
    return float64(count)


def _made(count, narrow):
    """Make the kernel whose threads hold so many entries; narrow ones are float32."""
    dtype = np.dtype(np.float32 if narrow else np.float64)
    lowest, each = float(np.finfo(dtype).min), wide.BYTES // dtype.itemsize

    def project_held(
        kind, absolute, p_one, p_each, low, high, l2_one, l2_each, tol, flat, goal, info, rows, n,
        goal_n, bits, by_words, reported, todo,
    ):  # fmt: skip
        room = cuda.shared.array(_ROOM, float64)
        small_room = cuda.shared.array(_ROOM, float32)
        held = cuda.local.array(count, flat.dtype)
        light = cuda.local.array(count, float32)
        real = flat.dtype.type
        t, lanes = cuda.threadIdx.x, int32(int32(1) << int32(bits))  # no division, which takes long
        lane, many, teams = int32(t & (lanes - 1)), lanes > WARP, cuda.blockDim.x >> bits
        pad = real(0) if absolute else real(lowest)
        mine = int32((n - lane + lanes - 1) >> bits)
        if by_words:
            mine = int32(((n // each - lane + lanes - 1) >> bits) * each)
        base = cuda.blockIdx.x * teams
        while base < rows:
            r = base + (t >> bits)
            live = r < rows
            r = r if live else base
            bad = _load(flat[r * n :], lane, lanes, mine, by_words, pad, held, light)
            p, l2 = pick(p_one, p_each, r), pick(l2_one, l2_each, r)
            usual = low <= p <= high
            if kind <= m.SIMPLEX:
                usual = usual and p > 0.0
            else:
                usual = usual and p > 1.0 and not (kind == m.HOYER and p >= n)
            f, going, turn = _begin(kind, usual, lowest), usual, 0
            nu, s, q = 0.0, 0.0, 0.0
            first, coarse = True, kind != m.HOYER  # whose norm the exact pass finds
            while block.anybody(going):
                if coarse:
                    f, turn = _coarse_search(
                        kind, absolute, p, tol, n, narrow, f, light, small_room, lanes, turn
                    )
                    going = f.status == m.GO
                if not narrow or f.exact:
                    nu, s, q = _exact_sums(held, absolute, f.anchor, f.offset)
                elif absolute:
                    nu, s, q = _sums(held, True, f.anchor, f.offset)
                else:
                    nu, s, q = _sums(held, False, f.anchor, f.offset)
                nu, s, q = _sum_team(room, lanes, turn, nu, s + bad, q)
                turn = 1 - turn
                if going:
                    if first and absolute and kind == m.HOYER:
                        nu = float64(n)  # not the pads
                    if first and kind == m.HOYER and l2 < 0.0:
                        l2 = math.sqrt(q) if nu == n else math.nan
                    f = _next(kind, absolute, p, l2, tol, n, narrow, f, nu, s, q)
                going = f.status == m.GO
                first, coarse = False, first and kind == m.HOYER
            s, q = m.sums_at(nu, s, q, f.offset)
            st = m.State(f.status, f.anchor, f.offset, 0.0, 0.0, nu, 0, False, True, f.passes, s, q)
            done = f.status != ODD
            if kind == m.HOYER and done:  # which is SOFT
                done = m.fits_unit(l2, st, flat.itemsize)
            if live and done:
                _finish(kind, absolute, st, l2, held)
                # goal_n is n: told so, the compiler would keep all places in registers.
                _write(held, lane, lanes, mine, by_words, goal[r * goal_n :])
            elif live and lane == 0:
                todo[1 + cuda.atomic.add(todo, 0, 1)] = r
            if reported:
                nonzeros, _, _ = _sum_team(room, lanes, turn, _nonzeros(held), 0.0, 0.0)
                if live and done and lane == 0:
                    engine.report_state(st, kind, p, 0, nonzeros, info[r])
            if many:
                cuda.syncthreads()  # before the next row's sums are stored
            base += cuda.gridDim.x * teams

    project_held.__name__ = project_held.__qualname__ = f"project_held_{count}"
    project_held.__doc__ = f"Project the rows of x; a thread holds {count} entries of one."
    return kernel(project_held, _BOUNDS, _REGISTERS)


KERNELS = {size: _made(count, size == 4) for size, count in HELD.items()}
project_held_16, project_held_32 = KERNELS[8], KERNELS[4]


def fits(n, itemsize):
    """Whether a team can hold a row of this length."""
    return 0 < n <= HELD[itemsize] * MOST_WARPS * WARP


def bits_for(n, itemsize):
    """A team's number of threads is two to this power."""
    return max(-(-n // HELD[itemsize]) - 1, 0).bit_length()


def threads_for(bits):
    """Threads of a block: several teams within warps, or one of several warps."""
    return THREADS if 1 << bits <= WARP else 1 << bits
