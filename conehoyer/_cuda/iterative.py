"""Algorithm 1 of the CAI paper on the GPU: interpolate towards the axis, clip, repeat.

An iterate is, on its support, an affine function of the data, and its support are the
entries above a threshold.  So the iterate is the threshold: each round takes the number,
the mean and the spread of what exceeds it.  The engine writes the result.
"""

import math

from numba import float64

from .. import _math as m
from . import engine
from .arrays import pick
from .device import cuda, function, kernel
from .engine import ROOM, TOLD


@function
def _gap(value, f, g, absolute, anchor, offset):
    """What an entry exceeds the threshold by."""
    scaled = value * f * g
    a = float64(abs(scaled) if absolute else scaled)
    return (a - anchor) - offset


@function
def _excess(z, first, stride, f, g, absolute, anchor, offset):
    """Of this thread's d > 0: their number, sum, smallest and largest."""
    nu, s, low, high = 0, 0.0, math.inf, 0.0
    for i in range(first, z.size, stride):
        d = _gap(z[i], f, g, absolute, anchor, offset)
        if d > 0.0:
            nu += 1
            s += d
            low, high = min(low, d), max(high, d)
    return float64(nu), s, low, high


@function
def _squares(z, first, stride, f, g, absolute, anchor, offset, mean):
    """Σ(d − mean)² of this thread's d > 0."""
    q = 0.0
    for i in range(first, z.size, stride):
        d = _gap(z[i], f, g, absolute, anchor, offset)
        if d > 0.0:
            q += (d - mean) * (d - mean)
    return q


@function
def _search(absolute, level, tol, z, room, told, grid, parts):
    """Find the threshold, as `engine.solve` does; returns the exponent of the unit and `turn`."""
    t, real = cuda.threadIdx.x, z.dtype.type
    first, stride = engine.share(grid)
    bad, _, size, top = engine.facts(z, first, stride)
    bad, _, _ = engine.add_up(room, grid, parts, 0, bad, 0.0, 0.0)
    size = engine.largest_of(room, grid, parts, 1, size)
    top = engine.largest_of(room, grid, parts, 0, size if absolute else top)
    turn = 1
    if bad > 0.0:
        if t == 0:
            engine.conclude(told, m.NONFINITE, math.nan, math.nan, math.nan)
        cuda.syncthreads()
        return 0, turn
    # Entries that do not count may be minus infinity in this unit.
    shift = -int(math.frexp(size if absolute else max(top, 0.0))[1])
    f, g = engine.factors(real, shift)
    anchor, offset = 0.0, 0.0
    status, rounds, slack = m.CAPPED, 0, tol
    nu, mean, squares = 0.0, 0.0, 0.0
    while status == m.CAPPED and rounds < m.ROUNDS:
        rounds += 1
        nu, s, low, high = _excess(z, first, stride, f, g, absolute, anchor, offset)
        nu, s, _ = engine.add_up(room, grid, parts, turn, nu, s, 0.0)
        low = -engine.largest_of(room, grid, parts, 1 - turn, -low)
        high = engine.largest_of(room, grid, parts, turn, high)
        mean = s / nu if nu > 0.0 else 0.0
        squares = _squares(z, first, stride, f, g, absolute, anchor, offset, mean)
        squares, _, _ = engine.add_up(room, grid, parts, 1 - turn, squares, 0.0, 0.0)
        if m.spread_score(nu, mean, squares) <= level * (1.0 + slack):
            status = m.SOFT if rounds > 1 else m.FEASIBLE
        elif low == high:
            status = m.TIED
            anchor, offset = math.ldexp(top, shift), 0.0
        else:
            slack = m.ROUND_TOLERANCE
            # f·d + (1 − f)·mean is above zero where d is above this.
            factor = m.interpolation(level, nu, mean, squares)
            anchor, offset = m.two_sum(anchor, offset + mean * (factor - 1.0) / factor)
    cuda.syncthreads()
    if t == 0:
        s = nu * mean
        q = nu * (mean * mean) + squares
        st = m.State(status, anchor, offset, 0.0, 0.0, nu, 0, False, False, rounds, s, q)
        if status == m.SOFT or status == m.CAPPED:  # rounds lose digits, and entries next to τ
            st = m.State(m.GO, anchor, offset, 0.0, math.inf, -1.0, 0, False, True, 0, 0.0, 0.0)
        engine.remember(told, st)
        told[engine.LEAST] = -math.inf
    cuda.syncthreads()
    while told[0] == m.GO:
        nu, s, q = engine.sums(z, first, stride, f, g, absolute, -math.inf, told[1], told[2], True)
        nu, s, q = engine.add_up(room, grid, parts, turn, nu, s, q)
        turn = 1 - turn
        if t == 0:
            engine.remember(told, m.advance(m.CAI, level, 0.0, engine.recall(told), nu, s, q))
        cuda.syncthreads()
    cuda.syncthreads()  # all have seen that the search is over
    if t == 0:
        if told[0] == m.TIED:
            told[1], told[2] = math.ldexp(top, shift), 0.0
        elif told[0] == m.SOFT:
            told[0] = status
        told[9] = rounds
    cuda.syncthreads()
    return shift, turn


@kernel
def project_rows(
    kind, absolute, p_one, p_each, low, high, l2_one, l2_each, tol, rest_one, rest_each, x, out,
    info, flags, cached, todo,
):  # fmt: skip
    """Project the rows of x, a block for each; takes what the engine's kernel takes."""
    room = cuda.shared.array(0, float64)
    held = cuda.shared.array(0, x.dtype)
    held = held[ROOM * cuda.blockDim.x * 8 // x.itemsize :]
    told = cuda.shared.array(TOLD, float64)
    for r in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        z = x[r]
        if cached:
            engine.copy_row(z, held)
            z = held[: x.shape[1]]
        p = pick(p_one, p_each, r)
        cuda.syncthreads()
        shift, turn = 0, 0
        if engine.usable(p, low, high, told, flags, None):
            shift, turn = _search(absolute, p, tol, z, room, told, None, None)
        engine.finish(
            kind, absolute, p, shift, -shift, z, out[r], room, told, None, None, turn,
            info[r % info.shape[0]], flags,
        )  # fmt: skip


@kernel
def project_long(
    kind, absolute, p_one, p_each, low, high, l2_one, l2_each, tol, rest_one, rest_each, x, out,
    info, flags, r, parts, kept,
):  # fmt: skip
    """Project row r of x, by all blocks of a grid that runs at once."""
    grid = cuda.cg.this_grid()
    room = cuda.shared.array(0, float64)
    told = cuda.shared.array(TOLD, float64)
    p = pick(p_one, p_each, r)
    shift, turn = 0, 0
    if engine.usable(p, low, high, told, flags, grid):
        shift, turn = _search(absolute, p, tol, x[r], room, told, grid, parts)
    engine.finish(
        kind, absolute, p, shift, -shift, x[r], out[r], room, told, grid, parts, turn,
        info[r % info.shape[0]], flags,
    )  # fmt: skip


KERNELS = project_rows, project_long
