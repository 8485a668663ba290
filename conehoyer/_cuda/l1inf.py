"""The exact projection onto the ℓ1,∞ ball on the GPU: see `_cpu.l1inf` for the method.

The entries are brought into the order of their groups once.  Then a block for each matrix,
or all blocks for one large matrix, go through the rounds without the host: runs of threads
take the Newton steps on the groups' bounds, and all of them add up the tangents for θ.
"""

import math

import numpy as np
from numba import float64, int64
from numba.extending import register_jitable

from .. import _math as m
from . import arrays, block, engine, groups, partition
from .arrays import pick
from .device import (
    SIMULATED,
    blocks_at_once,
    cuda,
    function,
    kernel,
    launch,
    threads_for,
)
from .partition import group_of
from .projections import complain, count_delivered

_LARGE_FROM = 128 if SIMULATED else 1 << 17  # entries of a matrix that all blocks share
_EACH = 32 if SIMULATED else 8  # entries of a thread
TOTALS, COUNTS, EXCESS, BOUNDS, TOPS = 0, 1, 2, 3, 4  # of the state of the groups


# --- one matrix, by a team of threads: a block, or the grid --------------------------------


@function
def sums_above(values, first, last, lanes, f, g, bound):
    """Count and Σ(a − bound) of this thread's a > bound; four terms in the data's precision.

    The entries are values[first:last], every lanes-th for a thread, times f·g.
    """
    real = values.dtype.type
    near, zero = real(bound), real(0)
    nu, s = 0, 0.0
    i = first + cuda.threadIdx.x % lanes
    while i < last:
        s4 = zero
        for _ in range(4):
            if i < last:
                d = abs(values[i] * f * g) - near
                if d > zero:
                    nu += 1
                    s4 += d
            i += lanes
        s += float64(s4)
    return float64(nu), s


@function
def look(values, first, last, lanes):
    """How many of this thread's entries are not finite, max a, and #{a > 0}, Σa of the others."""
    real = values.dtype.type
    zero = real(0)
    bad, nu, s, top = 0, 0, 0.0, zero
    i = first + cuda.threadIdx.x % lanes
    while i < last:
        s4 = zero
        for _ in range(4):
            if i < last:
                a = abs(values[i])
                if not math.isfinite(a):
                    bad += 1
                elif a > zero:
                    nu += 1
                    top = max(top, a)
                    s4 += a
            i += lanes
        s += float64(s4)
    return float64(bad), float64(top), float64(nu), s


@register_jitable
def below(bound, narrow):
    """A float32 just below the bound where the data are float32: then the gaps are exact."""
    return float64(np.float32(bound * (1.0 - 2.0**-23))) if narrow else bound


@register_jitable
def begin_bound(state, j, total_count, total):
    """State of group j at u = 0."""
    state[TOTALS, j], state[COUNTS, j], state[EXCESS, j] = total, total_count, total
    state[BOUNDS, j] = 0.0


@function
def settle(values, starts, radius, slack, most, lanes, state, radii, row, room, grid, parts):
    """Find θ and the groups' bounds; `row` is the matrix's part of the report."""
    t = cuda.threadIdx.x
    real = values.dtype.type
    narrow = values.itemsize == 4
    count = starts.size - 1
    runs = cuda.blockDim.x // lanes
    begin, step, thread, threads, turn = 0, runs, t, cuda.blockDim.x, 0
    if grid is not None:
        begin, step = cuda.blockIdx.x * runs, cuda.gridDim.x * runs
        thread, threads = cuda.grid(1), cuda.gridsize(1)
    leader = t % lanes == 0

    bad, top, width = 0.0, 0.0, 0.0  # width: the sum of the groups' largest magnitudes
    for base in range(begin, count, step):
        j = base + t // lanes
        more, own, nu, s = 0.0, 0.0, 0.0, 0.0
        if j < count:
            more, own, nu, s = look(values, starts[j], starts[j + 1], lanes)
        nu, s, _ = block.sum_runs(room, lanes, nu, s, 0.0)
        own = block.largest_of_runs(room, lanes, own)
        bad, top = bad + more, max(top, own)
        if leader and j < count:
            begin_bound(state, j, nu, s)
            state[TOPS, j] = own
            width += own
    bad, width, _ = engine.add_up(room, grid, parts, turn, bad, width, 0.0)
    top = engine.largest_of(room, grid, parts, 1 - turn, top)
    shift = -int(math.frexp(top)[1])
    if bad > 0.0 or abs(shift) <= (100 if narrow else 900):
        shift = 0
    elif shift < 0 and not narrow:
        shift = m.SUMS_EXPONENT  # no more than sums ask for: the radius keeps its digits
    f, g = engine.factors(real, shift)
    if shift != 0:  # sums may have overflowed, or have lost bits
        radius, width = math.ldexp(radius, shift), 0.0
        for base in range(begin, count, step):
            j = base + t // lanes
            nu, s = 0.0, 0.0
            if j < count:
                nu, s = sums_above(values, starts[j], starts[j + 1], lanes, f, g, 0.0)
            nu, s, _ = block.sum_runs(room, lanes, nu, s, 0.0)
            if leader and j < count:
                begin_bound(state, j, nu, s)
                width += math.ldexp(state[TOPS, j], shift)
        width, _, _ = engine.add_up(room, grid, parts, turn, width, 0.0, 0.0)
        turn = 1 - turn

    theta, level, rounds = 0.0, width, 1
    status = m.FEASIBLE
    if bad > 0.0:
        status, theta, level = m.NONFINITE, math.nan, math.nan
    elif not width <= radius * (1.0 + slack):
        status = m.CAPPED
    if status != m.CAPPED:
        for j in range(thread, count, threads):
            radii[j] = math.nan if status == m.NONFINITE else state[TOPS, j]
    else:
        rounds = 0
        while status == m.CAPPED and rounds < most:
            theta, turn = solve(
                radius, theta, state, count, thread, threads, room, grid, parts, turn
            )
            if radius == 0.0:
                status = m.SOFT
                break
            moved = 0.0
            for base in range(begin, count, step):
                j = base + t // lanes
                if advance_bound(values, starts, j, count, lanes, f, g, theta, state, room, narrow):
                    moved += 1.0 if leader else 0.0
            moved, _, _ = engine.add_up(room, grid, parts, turn, moved, 0.0, 0.0)
            turn = 1 - turn
            rounds += 1
            if moved == 0.0:  # the tangents are the functions themselves
                status = m.SOFT
        if narrow and radius > 0.0:  # the last tangents differ from those of θ by rounding
            theta, turn = solve(
                radius, theta, state, count, thread, threads, room, grid, parts, turn
            )
        rest = 0.0
        if radius > 0.0:
            rest, turn = rest_of(
                radius, theta, state, count, thread, threads, room, grid, parts, turn
            )
        level = 0.0
        for j in range(thread, count, threads):
            u, nu = 0.0, state[COUNTS, j]
            if radius > 0.0 and nu > 0.0:
                u = max(m.l1inf_tangent(state[BOUNDS, j], nu, 0.0, rest), 0.0)
            radii[j] = math.ldexp(u, -shift)
            level += u
        level, _, _ = engine.add_up(room, grid, parts, turn, level, 0.0, 0.0)
    if thread == 0:
        row[engine.STATUS], row[engine.PASSES] = status, rounds
        row[engine.THRESHOLD] = math.ldexp(theta, -shift)
        row[engine.LEVEL] = math.ldexp(level, -shift)
    return status


@function
def rest_of(radius, theta, state, count, thread, threads, room, grid, parts, turn):
    """The bounds at θ, and the rest of θ that they ask for, as on the CPU; and the next `turn`."""
    total, last = 0.0, -math.inf
    for j in range(thread, count, threads):
        nu = state[COUNTS, j]
        if nu > 0.0:
            u = m.l1inf_tangent(state[BOUNDS, j], nu, state[EXCESS, j], theta)
            state[BOUNDS, j], state[EXCESS, j] = u, 0.0
            total += max(u, 0.0)
            last = max(last, nu * u)
    total, _, _ = engine.add_up(room, grid, parts, turn, total, 0.0, 0.0)
    last = engine.largest_of(room, grid, parts, 1 - turn, last)
    rest = 0.0
    if abs(total - radius) > m.NEAR_RADIUS * radius:
        rest = -math.inf
        for j in range(thread, count, threads):
            nu = state[COUNTS, j]
            if nu > 0.0:
                u = m.l1inf_before(state[BOUNDS, j], nu, last)
                state[BOUNDS, j] = u
                rest = max(rest, nu * (u - radius))
        rest = engine.largest_of(room, grid, parts, turn, rest)
        turn = 1 - turn
    return solve(radius, rest, state, count, thread, threads, room, grid, parts, turn)


@function
def solve(radius, theta, state, count, thread, threads, room, grid, parts, turn):
    """The θ at which the tangents' sum is the radius, from the left; and the next `turn`."""
    active, repeated = -1.0, 0
    for _ in range(count + 4):
        total, slope, number = 0.0, 0.0, 0.0
        for j in range(thread, count, threads):
            nu = state[COUNTS, j]
            if nu > 0.0:
                u = m.l1inf_tangent(state[BOUNDS, j], nu, state[EXCESS, j], theta)
                if u > 0.0:
                    total += u
                    slope += 1.0 / nu
                    number += 1.0
        total, slope, number = engine.add_up(room, grid, parts, turn, total, slope, number)
        turn = 1 - turn
        # On the same groups the step is exact but for rounding: once more from close by.
        repeated = repeated + 1 if number == active else 0
        if slope == 0.0 or repeated == 2:
            break
        active = number
        theta = m.l1inf_next(theta, total, slope, radius, repeated > 0)
    return theta, turn


@function
def advance_bound(values, starts, j, count, lanes, f, g, theta, state, room, narrow):
    """Up to two Newton steps on the bound of group j; whether its count has changed.

    All threads of the block come here, those of the last runs perhaps without a group.
    """
    live = j < count and state[TOTALS, j] > theta
    first, last, u, nu, s = 0, 0, 0.0, 0.0, 0.0
    if live:
        first, last = starts[j], starts[j + 1]
        u, nu, s = state[BOUNDS, j], state[COUNTS, j], state[EXCESS, j]
    owner, moved = live, False
    for _ in range(2):
        target = u
        if live:
            target = below(max(m.l1inf_tangent(u, nu, s, theta), 0.0), narrow)
            live = abs(target - u) > m.l1inf_rounding(u, nu, s)
        above, excess = 0.0, 0.0
        if live:
            above, excess = sums_above(values, first, last, lanes, f, g, target)
        above, excess, _ = block.sum_runs(room, lanes, above, excess, 0.0)
        if live:
            u = target
            if above == 0.0:  # rounding: beyond the largest entry
                s, live = theta, False
            else:
                live = above != nu
                moved = moved or live
                nu, s = above, excess
    if owner and cuda.threadIdx.x % lanes == 0:
        state[BOUNDS, j], state[COUNTS, j], state[EXCESS, j] = u, nu, s
    return moved


@function
def project_one(
    radius, low, high, slack, most, lanes, values, starts, state, radii, row, flags, room, grid,
    parts,
):  # fmt: skip
    """Find the bounds of one matrix, by a block or the grid, and report."""
    first = cuda.threadIdx.x if grid is None else cuda.grid(1)
    width = cuda.blockDim.x if grid is None else cuda.gridsize(1)
    good = low <= radius <= high  # a radius on the GPU is first seen here
    status = m.NONFINITE
    if good:
        status = settle(
            values, starts, radius, slack, most, lanes, state, radii, row, room, grid, parts
        )
    else:
        for j in range(first, radii.size, width):
            radii[j] = math.nan
    if first == 0:
        if not good:
            row[engine.STATUS], row[engine.PASSES] = m.NONFINITE, 0
            row[engine.THRESHOLD] = row[engine.LEVEL] = math.nan
            cuda.atomic.add(flags, engine.BAD_PARAMETER, 1)
        elif status == m.NONFINITE:
            cuda.atomic.add(flags, engine.NONFINITE, 1)
        elif status == m.CAPPED:
            cuda.atomic.add(flags, engine.CAPPED, 1)


@kernel
def project_each(
    radius_one, radius_each, low, high, slack, most, lanes, values, starts, state, radii, info,
    flags,
):  # fmt: skip
    """Find the bounds of all matrices, a block for each."""
    room = cuda.shared.array(0, float64)
    for r in range(cuda.blockIdx.x, values.shape[0], cuda.gridDim.x):
        radius = pick(radius_one, radius_each, r)
        project_one(
            radius, low, high, slack, most, lanes, values[r], starts, state[r], radii[r], info[r],
            flags, room, None, None,
        )  # fmt: skip


@kernel
def project_large(
    radius_one, radius_each, low, high, slack, most, lanes, values, starts, state, radii, info,
    flags, r, parts,
):  # fmt: skip
    """Find the bounds of matrix r, by all blocks of a grid that runs at once."""
    grid = cuda.cg.this_grid()
    room = cuda.shared.array(0, float64)
    radius = pick(radius_one, radius_each, r)
    project_one(
        radius, low, high, slack, most, lanes, values[r], starts, state[0], radii[r], info[r],
        flags, room, grid, parts,
    )  # fmt: skip


# --- the result ----------------------------------------------------------------------------


@kernel
def clip(kind, height, width, labels, z, radii, info, out, nonzeros):
    """Clip all entries at their groups' bounds, and count what is left of each matrix."""
    room = cuda.shared.array(0, float64)
    batch, rows, columns = z.shape
    size = rows * columns
    real = z.dtype.type
    zero = real(0)
    each = cuda.gridDim.x // batch  # blocks of a matrix
    r, first = cuda.blockIdx.x // each, cuda.blockIdx.x % each * cuda.blockDim.x
    status = info[r, engine.STATUS]
    count = 0.0
    for e in range(first + cuda.threadIdx.x, size, each * cuda.blockDim.x):
        i, j = e // columns, e % columns
        value = z[r, i, j]
        if status == m.NONFINITE:
            value = real(math.nan)
        elif status != m.FEASIBLE:
            bound = real(radii[r, group_of(kind, height, width, rows, columns, labels, i, j)])
            if not bound > zero:
                value = zero
            elif abs(value) > bound:
                value = math.copysign(bound, value)
        out[r, i, j] = value
        count += 1.0 if value != zero else 0.0
    count, _, _ = block.sum_three(room, count, 0.0, 0.0)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(nonzeros, r, int64(count))


# --- launches ------------------------------------------------------------------------------


def project(x, radius, given, most, out, overwrite_x, check_finite, full_output):
    """Project all matrices; `most` rounds at most."""
    s = arrays.slices(x, None)
    if len(s.shape) < 2:
        raise ValueError(f"x must have at least two dimensions, got shape {s.shape}")
    home, columns = s.home, s.shape[-1]
    with home.active():
        parts = partition.parse(given, s, home)
        s = s._replace(batch=() if parts.whole else s.shape[:-2])
        radii = arrays.per_slice(radius, "radius", s, 0.0, math.inf, ">= 0")
        shape = (s.number, math.prod(s.shape[:-1]) // max(s.number, 1), columns)
        z = arrays.read(home, x, None, s.work, shape)
        z, goal = arrays.target(home, x, None, s.dtype, s.work, z, out, overwrite_x)
        new = home.empty if full_output else home.scratch
        report = new((max(s.number, 1), engine.COLUMNS), "float64")
        info = home.view(report)
        bounds = new((*s.batch, *parts.shape), "float64")
        flat_bounds = None
        nonzeros = new(s.batch, "int64")
        flags = home.zeros(engine.FLAGS, "int32")
        if z.size:
            flat_bounds = home.view(bounds, (s.number, parts.number), _rows_of(parts.number))
            counts = home.view(nonzeros, (s.number,), (8,))
            arrays.fill(home, nonzeros, 0)
            labels = counts if parts.labels is None else parts.labels
            _find_bounds(home, parts, z, radii, s.slack, most, flat_bounds, info, flags)
            if check_finite:  # before anything is overwritten
                complain(home, flags, s.number, radii, "radius")
            size = shape[1] * columns
            threads = threads_for(size, _EACH)
            each = min(-(-size // (_EACH * threads)), max((1 << 16) // s.number, 1))
            launch(
                clip, home, s.number * each, threads, *parts.regular, labels, z, flat_bounds, info,
                goal.rows, counts, shared=8 * engine.ROOM * threads,
            )  # fmt: skip
        elif full_output:
            for array in (report, bounds, nonzeros):
                arrays.fill(home, array, 0)
        result = arrays.deliver(home, goal, None, s.dtype)
        if not full_output:
            return result
        if z.size and s.dtype in arrays.NARROW:
            count_delivered(home, result, None, s, counts)
        return result, partition.info_of(s, parts, report, bounds, flat_bounds, nonzeros)


def _rows_of(number):
    return (8 * number, 8)


def _find_bounds(home, parts, z, radii, slack, most, bounds, info, flags):
    """Bring the entries into the groups' order, and launch the search for the bounds."""
    batch, rows, columns = z.shape
    size, number = rows * columns, parts.number
    lists = partition.lists_of(home, parts, rows, columns)
    values, starts = partition.in_order(home, parts, z, lists), lists[1]
    mean = -(-size // number)  # entries of a group
    threads = threads_for(size, _EACH)
    lanes = max(min(groups.power(mean / 2), 32), groups.power(mean / 8))
    lanes = min(lanes, threads)
    shared = 8 * engine.ROOM * threads
    together = size >= _LARGE_FROM and batch < 64
    state = home.scratch((1 if together else batch, 5, number), "float64")
    given = (
        *radii.arguments(bounds.reshape(bounds.size)), radii.low, radii.high, slack, most, lanes,
        values, starts, state, bounds, info, flags,
    )  # fmt: skip
    if not together:
        launch(project_each, home, min(batch, 1 << 20), threads, *given, shared=shared)
        return
    room = home.scratch((2, 2048, 3), "float64")
    at_once = blocks_at_once(project_large, home, threads, shared, *given, 0, room)
    wanted = -(-number * lanes // threads)
    blocks = max(min(at_once, 2048, wanted), 1)
    for r in range(batch):
        launch(project_large, home, blocks, threads, *given, r, room, shared=shared)
