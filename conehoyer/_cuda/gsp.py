"""Group sparse projection on the GPU: passes over pieces of the vectors, and one block's search.

The vectors may lie in several arrays.  Each pass is a launch for each array, which stores
the sums of its pieces; then one block adds them up and goes on with `_gsp_math.advance`.
The host sends several passes off and looks then whether μ is found; passes that come after
that do nothing.
"""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64
from numba.extending import register_jitable

from .. import _gsp_math as search
from .. import _math as m
from .._checks import not_finite
from .._gsp_math import MARGIN, Search, Vectors
from .._results import warn_not_converged
from . import arrays, block, engine
from .device import (
    SIMULATED,
    contiguous_strides,
    cuda,
    extent,
    function,
    kernel,
    launch,
    launch_each,
    overload,
    threads_for,
)
from .projections import count_delivered

_PIECE = 64 if SIMULATED else 8192  # entries of a vector for one block, at least
_MOST_PIECES = 512  # of a vector
_EACH = 32 if SIMULATED else 8  # entries of a thread
_VECTORS = 8 if SIMULATED else 1  # of a thread of the search, where they are few
_ROUNDS = 4 if SIMULATED else 8  # passes between two looks of the host
_ROWS = 15  # numbers kept of each vector
EXPONENT, FIRST = 0, 1  # rows of the whole numbers kept
NU, S, Q, TOP = 0, 1, 2, 3  # what a pass stores of a piece; the ties go to TOP
MULTIPLIER, SPARSENESS, PASSES, STATUS = 0, 1, 2, 3  # of the report


@register_jitable
def vectors_of(table, whole):
    """What is known of each vector, by name."""
    return Vectors(
        table[0], table[1], table[2], table[3], whole[EXPONENT], whole[FIRST], table[4], table[5],
        table[6], table[7], table[8], table[9], table[10], table[11], table[12], table[13],
        table[14],
    )  # fmt: skip


@register_jitable
def remember(told, st):
    """Store the state of the search."""
    told[0], told[1], told[2], told[3], told[4] = st.status, st.mu, st.mu_low, st.lo, st.lo_low
    told[5], told[6], told[7], told[8] = st.hi, st.hi_low, st.unit, st.on_jump
    told[9], told[10], told[11], told[12] = st.share, st.mean, st.passes, st.certain


@register_jitable
def recall(told):
    """The state that was stored."""
    return Search(
        int(told[0]), told[1], told[2], told[3], told[4], told[5], told[6], int(told[7]),
        told[8] != 0.0, told[9], told[10], int(told[11]), told[12] != 0.0,
    )  # fmt: skip


# --- the search, by the threads of a block -------------------------------------------------


@overload(m.two_product)
def _two_product(a, b):
    """Neither product nor rest may be merged with other operations: two instructions do it."""

    def product(a, b):
        result = cuda.libdevice.dmul_rn(a, b)
        return result, cuda.libdevice.fma_rn(a, b, -result)

    return product


@function
def _own(room):
    """Which vectors are this thread's: the first, and the step to the next one."""
    return int64(cuda.threadIdx.x), int64(cuda.blockDim.x)


@function
def _add_exactly(room, total, low):
    """The sum over the threads of sums of two floats."""
    t, count = cuda.threadIdx.x, cuda.blockDim.x
    cuda.syncthreads()
    room[t] = total
    room[count + t] = low
    cuda.syncthreads()
    half = count >> 1
    while half > 0:
        if t < half:
            both, rest = m.two_sum(room[t], room[t + half])
            room[t] = both
            room[count + t] += room[count + t + half] + rest
        cuda.syncthreads()
        half >>= 1
    return room[0], room[count]


@function
def _some_jump(room, jumps, low, high):
    """A jump strictly between, from the middle of those that there are; else NaN."""
    t, width = cuda.threadIdx.x, cuda.blockDim.x
    count = 0.0
    for i in range(t, jumps.size, width):
        if low < jumps[i] < high:
            count += 1.0
    cuda.syncthreads()
    room[t] = count
    if t == 0:
        room[width] = math.nan
    cuda.syncthreads()
    before, total = 0.0, 0.0
    for u in range(width):
        if u == t:
            before = total
        total += room[u]
    left = math.floor(0.5 * total) - before
    if 0.0 <= left < count:
        for i in range(t, jumps.size, width):
            if low < jumps[i] < high:
                if left == 0.0:
                    room[width] = jumps[i]
                left -= 1.0
    cuda.syncthreads()
    return room[width]


_start, _one_each, _advance = search.steps(
    _own, block.sum_three, _add_exactly, block.largest, _some_jump
)


@kernel
def begin(table, whole, part, told):
    """The largest entry of each vector, its unit, and the state before the first pass."""
    room = cuda.shared.array(0, float64)
    v = vectors_of(table, whole)
    first, stride = _own(room)
    members, bad = 0.0, 0.0
    for i in range(first, v.size.size, stride):
        top = 0.0
        for p in range(v.first[i], v.first[i + 1]):
            if part[p, TOP] == part[p, TOP]:
                top = max(top, part[p, TOP])
            else:
                bad += 1.0
        members += 1.0 if v.beta[i] > 0.0 else 0.0
        v.exponent[i] = 0
        if search.out_of_range(top):
            top, exponent = math.frexp(top)
            v.exponent[i] = exponent
        v.top[i] = top
    members, bad, _ = block.sum_three(room, members, bad, 0.0)
    st = _start(room, v)
    if first == 0:
        remember(told, st)
        if bad > 0.0:
            told[0], told[10], told[11] = m.NONFINITE, math.nan, 1.0
        elif members == 0.0:
            told[0] = m.FEASIBLE


@kernel
def proceed(table, whole, part, sparseness, told):
    """From the pieces' sums to the thresholds of the next pass, or to the verdict."""
    room = cuda.shared.array(0, float64)
    st = recall(told)
    cuda.syncthreads()
    if st.status == m.GO:
        v = vectors_of(table, whole)
        first, stride = _own(room)
        for i in range(first, v.size.size, stride):
            nu, s, q, ties = 0.0, 0.0, 0.0, 0.0
            for p in range(v.first[i], v.first[i + 1]):
                nu, s, q = nu + part[p, NU], s + part[p, S], q + part[p, Q]
                ties += part[p, TOP]
            search.set_sums(v, i, nu, s, q)
            if st.passes == 0:
                v.ties[i] = ties
        if sparseness == 1.0:
            st = _one_each(room, v, st)
        else:
            st = _advance(room, v, st, sparseness)
        if first == 0:
            remember(told, st)


# --- passes --------------------------------------------------------------------------------


@kernel
def enter(place, count, n, slack, base, pieces, table, whole):
    """Enter `count` vectors of length n at `place`; the pieces of the first start at `base`."""
    v = vectors_of(table, whole)
    k = cuda.grid(1)
    while k < count:
        i = place + k
        for row in range(table.shape[0]):
            table[row, i] = 0.0
        v.size[i], v.slack[i] = float64(n), slack
        if n >= 2:
            v.beta[i], v.beta_low[i] = m.gsp_weight(float64(n))
        v.first[i] = base + k * pieces
        v.first[i + 1] = base + (k + 1) * pieces
        k += cuda.gridsize(1)


@kernel
def take_tops(z, place, piece, pieces, table, whole, part):
    """The largest entry of each piece, NaN where one is not finite."""
    room = cuda.shared.array(0, float64)
    v = vectors_of(table, whole)
    rows, n = z.shape
    base = v.first[place]
    for p in range(cuda.blockIdx.x, rows * pieces, cuda.gridDim.x):
        row, first = p // pieces, p % pieces * piece
        top, bad = 0.0, 0.0
        for i in range(first + cuda.threadIdx.x, min(first + piece, n), cuda.blockDim.x):
            a = abs(float64(z[row, i]))
            if math.isfinite(a):
                top = max(top, a)
            else:
                bad += 1.0
        bad, _, _ = block.sum_three(room, bad, 0.0, 0.0)
        top = block.largest(room, top)
        if cuda.threadIdx.x == 0:
            part[base + p, TOP] = math.nan if bad > 0.0 else top


@kernel
def take_sums(z, place, piece, pieces, table, whole, part, told):
    """The sums over each piece at its vector's τ; in the first pass the ties as well.

    In float64 for all data: the search ends where the sums repeat to the last bits.
    """
    room = cuda.shared.array(0, float64)
    st = recall(told)
    v = vectors_of(table, whole)
    rows, n = z.shape
    base = v.first[place]
    count = rows * pieces if st.status == m.GO else 0
    for p in range(cuda.blockIdx.x, count, cuda.gridDim.x):
        row, first = p // pieces, p % pieces * piece
        i = place + row
        tau, tau_low, top = v.tau[i], v.tau_low[i], v.top[i]
        nu, s, q, ties = 0, 0.0, 0.0, 0
        if v.beta[i] > 0.0 and not tau * MARGIN > top:
            shift = -int(v.exponent[i])
            f, g = math.ldexp(1.0, shift // 2), math.ldexp(1.0, shift - shift // 2)
            for j in range(first + cuda.threadIdx.x, min(first + piece, n), cuda.blockDim.x):
                a = abs(float64(z[row, j])) * f * g
                d = a - tau
                if d > tau_low:
                    nu += 1
                    s += d
                    q += d * d
                if a == top:
                    ties += 1
        sum_nu, s, q = block.sum_three(room, float64(nu), s, q)
        sum_ties = 0.0
        if st.passes == 0:
            sum_ties, _, _ = block.sum_three(room, float64(ties), 0.0, 0.0)
        if cuda.threadIdx.x == 0:
            part[base + p, NU], part[base + p, S], part[base + p, Q] = sum_nu, s, q
            part[base + p, TOP] = sum_ties


@kernel
def write(z, out, place, piece, pieces, table, whole, told, nonzeros):
    """Write the result, and count its nonzeros; `out` may be z."""
    room = cuda.shared.array(0, float64)
    st = recall(told)
    v = vectors_of(table, whole)
    rows, n = z.shape
    real = z.dtype.type
    zero = real(0)
    for p in range(cuda.blockIdx.x, rows * pieces, cuda.gridDim.x):
        row, first = p // pieces, p % pieces * piece
        i = place + row
        nu, gap, var, tau = v.nu[i], v.gap[i], v.var[i], v.tau[i]
        shift = -int(v.exponent[i])
        f, g = engine.factors(real, shift)
        back = -shift
        b, c = engine.factors(real, back)
        count = 0.0
        copied = st.status == m.FEASIBLE or v.top[i] == 0.0 or v.beta[i] == 0.0
        if nu <= 1.0 and not copied and st.status != m.NONFINITE:
            if first == 0:  # a whole vector at once: the first of its largest entries
                level = search.level_of_ties(st, v, i)
                count = engine.write_tied(
                    m.CAI, True, level, 0.0, v.top[i], 0.0, f, g, b, c, z[row], out[row], room
                )
        else:
            anchor = real(tau)
            offset = real((tau - float64(anchor)) + v.tau_low[i])
            dust = real(search.write_dust(gap))
            factor = real(search.write_factor(tau, gap, var)) if gap > 0.0 else zero
            for j in range(first + cuda.threadIdx.x, min(first + piece, n), cuda.blockDim.x):
                value = z[row, j]
                if st.status == m.NONFINITE:
                    value = real(math.nan)
                elif not copied:
                    value = value * f * g
                    value = engine.soft(value, True, zero, anchor, offset, dust, factor) * b * c
                out[row, j] = value
                count += 1.0 if value != zero else 0.0
        count, _, _ = block.sum_three(room, count, 0.0, 0.0)
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(nonzeros, i, int64(count))


@kernel
def report(table, whole, told, row, threshold):
    """The verdict in the data's unit."""
    st = recall(told)
    v = vectors_of(table, whole)
    i = cuda.grid(1)
    if i == 0:
        lost = st.status == m.NONFINITE
        row[0, MULTIPLIER] = math.nan if lost else math.ldexp(st.mu, st.unit)
        row[0, SPARSENESS], row[0, PASSES], row[0, STATUS] = 1.0 - st.mean, st.passes, st.status
    while i < threshold.size:
        threshold[i] = math.ldexp(min(v.tau[i], v.top[i]), int(v.exponent[i]))
        if st.status == m.NONFINITE:
            threshold[i] = math.nan
        i += cuda.gridsize(1)


# --- launches ------------------------------------------------------------------------------


class _Block(NamedTuple):
    """Vectors of one length, the rows of a matrix."""

    z: Any
    out: Any
    place: int  # of its first vector
    piece: int  # entries
    pieces: int  # of a vector


def project(slices, x, several, sparseness, out, overwrite_x, check_finite, full_output):
    """Project the vectors in all slices."""
    home = _one_home(slices)
    with home.active():
        if several:
            targets = _targets(home, slices, x, out, overwrite_x)
        else:
            s = slices[0]
            z = arrays.read(home, x, s.axis, s.work, (s.number, s.length))
            targets = [arrays.target(home, x, s.axis, s.dtype, s.work, z, out, overwrite_x)]
        total = sum(s.number for s in slices)
        table = home.scratch((_ROWS, max(total, 1)), "float64")
        whole = home.scratch((2, total + 1), "int64")
        told = home.scratch((13,), "float64")
        shape = (len(slices),) if several else slices[0].batch
        nonzeros, threshold = home.empty(shape, "int64"), home.empty(shape, "float64")
        verdict = None
        if total:
            counts = home.view(nonzeros, (total,), (8,))
            arrays.fill(home, counts, 0)
            blocks, pieces = _blocks(home, slices, targets, table, whole)
            verdict = _search(home, blocks, table, whole, pieces, total, float(sparseness), told)
            if verdict[0] == m.NONFINITE and check_finite:
                raise not_finite()
            for b in blocks:
                _launch(home, write, b, (b.z, b.out), (table, whole, told, counts))
            if verdict[0] == m.CAPPED:
                warn_not_converged(
                    f"the group sparse projection stopped after {int(verdict[11])} passes at the "
                    f"mean sparseness {1.0 - verdict[10]}; the result is the best known"
                )
        results = [
            arrays.deliver(home, goal, s.axis, s.dtype)
            for s, (_, goal) in zip(slices, targets, strict=True)
        ]
        result = results if several else results[0]
        if not full_output:
            return result
        first = 0
        for s, one in zip(slices, results, strict=True):
            if s.size and s.dtype in arrays.NARROW:
                count_delivered(home, one, s.axis, s, counts[first : first + s.number])
            first += s.number
        return result, _info(home, total, table, whole, told, threshold, nonzeros)


def _one_home(slices):
    home = slices[0].home
    for i, s in enumerate(slices):
        if (s.home is None) != (home is None):
            places = ("on a GPU", "on the host") if s.home is None else ("on the host", "on a GPU")
            raise TypeError(f"x[0] lies {places[0]}, but x[{i}] {places[1]}: move one of them")
        if home is not None and (type(s.home), s.home.device) != (type(home), home.device):
            raise TypeError(
                f"x[{i}] must be of the library of x[0] and on its device, got "
                f"{type(s.array).__module__}.{type(s.array).__name__}"
            )
    return home


def _targets(home, slices, x, out, overwrite_x):
    """What `arrays.target` gives for each array, such that no write spoils another's read."""
    goals = [None] * len(slices)
    if out is not None:
        if not isinstance(out, (list, tuple)):
            raise TypeError(f"out must be a list of arrays as x is, got {type(out).__name__}")
        if len(out) != len(slices):
            raise ValueError(f"out must have as many arrays as x, {len(slices)}, got {len(out)}")
        goals = out
    elif overwrite_x and _first_overlap([extent(home, part) for part in x]):
        overwrite_x = False  # there is no place to overwrite
    targets = []
    for i, (s, part, goal) in enumerate(zip(slices, x, goals, strict=True)):
        z = arrays.read(home, part, None, s.work, (1, s.length))
        try:
            target = arrays.target(home, part, None, s.dtype, s.work, z, goal, overwrite_x)
        except (TypeError, ValueError) as error:
            raise type(error)(f"out[{i}]: {error}") from None
        targets.append(target)
    if out is None and not overwrite_x:
        return targets
    spans = [extent(home, goal.array) for _, goal in targets]
    met = _first_overlap(spans)
    if met:
        raise ValueError(f"out[{met[0]}] and out[{met[1]}] must not overlap")
    order = sorted(range(len(spans)), key=lambda i: spans[i])
    starts, ends = np.array([spans[i] for i in order], np.int64).reshape(-1, 2).T
    for i, (s, (z, goal)) in enumerate(zip(slices, targets, strict=True)):
        size = np.dtype(s.work).itemsize
        first = arrays._address(z)
        last = first + z.size * size
        near = order[np.searchsorted(ends, first, "right") : np.searchsorted(starts, last, "left")]
        if any(j != i for j in near):
            copy = home.view(home.empty(max(z.size, 1), s.work), (z.size,))
            launch_each(arrays._gather, home, z.size, z.reshape(z.size), copy)
            targets[i] = home.view(copy, z.shape, contiguous_strides(z.shape, size)), goal
    return targets


def _first_overlap(spans):
    """Two of these ranges of addresses that overlap, or None."""
    filled = [i for i, span in enumerate(spans) if span.first < span.last]
    for i, j in pairwise(sorted(filled, key=lambda i: spans[i])):
        if spans[j].first < spans[i].last:
            return sorted((i, j))
    return None


def _blocks(home, slices, targets, table, whole):
    """Enter all vectors, and cut them into pieces; returns how many pieces there are as well."""
    blocks, place, base = [], 0, 0
    for s, (z, goal) in zip(slices, targets, strict=True):
        count, n = z.shape
        piece = max(_PIECE, -(-n // _MOST_PIECES))
        pieces = max(-(-n // piece), 1)
        if count:
            launch_each(enter, home, count, place, count, n, s.slack, base, pieces, table, whole)
            blocks.append(_Block(z, goal.rows, place, piece, pieces))
        place, base = place + count, base + count * pieces
    return blocks, base


def _launch(home, kernel, b, data, rest):
    count, n = b.z.shape
    threads = threads_for(min(n, b.piece), _EACH)
    blocks = min(count * b.pieces, 1 << 16)
    launch(
        kernel, home, blocks, threads, *data, b.place, b.piece, b.pieces, *rest,
        shared=8 * engine.ROOM * threads,
    )  # fmt: skip


def _search(home, blocks, table, whole, pieces, total, sparseness, told):
    """Find μ; the state of the search comes back to the host, which waits for it."""
    part = home.scratch((pieces, 4), "float64")
    threads = threads_for(total, _VECTORS)
    shared = 8 * engine.ROOM * threads
    for b in blocks:
        _launch(home, take_tops, b, (b.z,), (table, whole, part))
    launch(begin, home, 1, threads, table, whole, part, told, shared=shared)
    while True:
        for _ in range(_ROUNDS):
            for b in blocks:
                _launch(home, take_sums, b, (b.z,), (table, whole, part, told))
            launch(proceed, home, 1, threads, table, whole, part, sparseness, told, shared=shared)
        verdict = home.fetch(told)
        if verdict[0] != m.GO:
            return verdict


def _info(home, total, table, whole, told, threshold, nonzeros):
    """The report, on the device."""
    from ..gsp import GSPInfo

    if total:
        row = home.empty((1, 4), "float64")
        flat = home.view(threshold, (total,), (8,))
        launch_each(report, home, total, table, whole, told, home.view(row), flat)
    else:
        row = home.upload(np.array([[0.0, 1.0, 0.0, float(m.FEASIBLE)]]))

    def column(k, dtype="float64"):
        return arrays.column(home, row, k, (), dtype)

    return GSPInfo(
        column(MULTIPLIER), threshold, column(SPARSENESS), nonzeros, column(PASSES, "int64"),
        arrays.column(home, row, STATUS, (), "bool", m.CAPPED),
    )  # fmt: skip
