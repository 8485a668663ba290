"""The bilevel projection of matrices on the GPU: launches, and what is done to the groups."""

import math

import numpy as np
from numba import float64, int32
from numba.extending import register_jitable

from .. import _math as m
from .._checks import choose
from .._cpu.arrays import BLOCKS, LABELS
from .._cpu.groups import L1, L2, LINF
from .._groups import INNER
from . import arrays, engine, groups, levels, partition, wide
from .arrays import Parameter, pick
from .device import SIMULATED, cuda, kernel, launch, launch_each, threads_for
from .engine import TOLD
from .groups import unit_of
from .partition import group_of, place_in, where
from .projections import OWN_NORM, complain, count_delivered, run_rows

_HELD = 8  # entries of a thread, in registers
# Wide words of a thread, in registers, and the entries in them.
_WORDS, _ENTRIES = (2, 8) if SIMULATED else (4, 16)
_FAR = 1 << 30  # more rows than a thread has, and more columns than `treat_words` takes


# --- what is done to the groups --------------------------------------------------------------


@kernel
def scale_bounds(p_one, p_each, low, high, inner, tops, scaled):
    """The radii in the unit of the norms; those out of range stay so."""
    r = cuda.grid(1)
    while r < scaled.size:
        p = pick(p_one, p_each, r)
        if low <= p <= high:
            p *= unit_of(tops[r], inner == L2)  # infinity bounds nothing
        scaled[r] = p
        r += cuda.gridsize(1)


@kernel
def make_room(tops, norms):
    """The norms in a unit in which what they are projected to does not overflow."""
    number = norms.size // tops.size
    e = cuda.grid(1)
    while e < norms.size:
        norms[e] *= unit_of(tops[e // number], False)
        e += cuda.gridsize(1)


@kernel
def settle(
    outer, inner, feasible, scaled, reported, tops, v_max, u_max, norms, u, info, radii, reached
):
    """Turn the projected norms u into what the groups are treated with.

    That is a bound, infinite where the group stays, a factor for l2, or NaN.  The radii and
    the norms that are reached are stored if a report is wanted; for a score in a unit whose
    squares neither over- nor underflow.
    """
    number = u.size // info.shape[0]
    e = cuda.grid(1)
    while e < u.size:
        r = e // number
        status = info[r, engine.STATUS]
        value, norm = u[e], norms[e]
        if feasible and status != m.FEASIBLE:
            value = min(value * m.feasible_factor(v_max[r], u_max[r]), norm)
        unit = unit_of(tops[r], inner == L2) if scaled else 1.0
        if reported:
            radii[e] = value / unit
            shift = -int(math.frexp(v_max[r])[1]) if outer == m.CAI else 0
            reached[e] = math.ldexp(min(value, norm), shift)
        if status == m.NONFINITE:
            u[e] = math.nan
        elif inner == L2:
            u[e] = m.group_factor(norm, value)
        elif (value > 0.0 and not value < norm) or status == m.FEASIBLE:
            u[e] = math.inf
        else:
            u[e] = value / unit
        e += cuda.gridsize(1)


@kernel
def report_levels(outer, inner, number, scaled, tops, sums, squares, info):
    """What the result's norms reach, and the threshold, in the data's unit."""
    r = cuda.grid(1)
    while r < info.shape[0]:
        if info[r, engine.STATUS] != m.NONFINITE:
            unit = unit_of(tops[r], inner == L2) if scaled else 1.0
            info[r, engine.THRESHOLD] /= unit
            if outer == m.CAI:
                info[r, engine.LEVEL] = m.score(m.MAGNITUDES, number, sums[r], squares[r])
            else:
                info[r, engine.LEVEL] = sums[r] / unit
        r += cuda.gridsize(1)


@register_jitable
def keep_out(strict, flags):
    """Whether the result is not to be written, as an error will be raised."""
    return strict and flags[engine.NONFINITE] + flags[engine.BAD_PARAMETER] > 0


@register_jitable
def treated(a, clip, value):
    """The entry clipped, or multiplied; `value` is the group's bound or factor, or NaN."""
    result = math.copysign(min(abs(a), value), a) if clip else a * value
    result = a - a if value <= 0.0 else result
    return result if value == value else value


@kernel
def treat(
    clip, strict, kind, height, width, labels, flat, rows, columns, number, values, flags, piece,
    lanes, out,
):  # fmt: skip
    """Clip or multiply all entries: a thread a column, of `piece` rows."""
    if keep_out(strict, flags):
        return
    batch = values.size // number
    held = cuda.local.array(_HELD, flat.dtype)
    real = flat.dtype.type
    t = cuda.threadIdx.x
    lane, below, deep = t % lanes, t // lanes, cuda.blockDim.x // lanes
    across = (columns + width - 1) // width
    tiles, pieces = (columns + lanes - 1) // lanes, (rows + piece - 1) // piece
    step = np.uint64(deep * columns)
    for item in range(cuda.blockIdx.x, batch * pieces * tiles, cuda.gridDim.x):
        j, p = item % tiles * lanes + lane, item // tiles
        r, i = p // pieces, p % pieces * piece + below
        last = min(p % pieces * piece + piece, rows)
        if j >= columns or i >= last:
            continue
        g = r * number + i // height * across + j // width  # of blocks
        edge = (i // height + 1) * height  # where its value ends
        value = real(values[g]) if kind == BLOCKS else real(0)
        at = np.uint64((r * rows + i) * columns + j)  # unsigned: no index counts from the end
        while i < last:
            place = at
            if i + (_HELD - 1) * deep < last:
                for k in range(_HELD):
                    held[k] = flat[place]
                    place = np.uint64(place + step)
            else:
                for k in range(_HELD):
                    held[k] = flat[place] if i + k * deep < last else real(0)
                    place = np.uint64(place + step)
            for k in range(_HELD):
                if i < last:
                    if kind != BLOCKS:
                        g = r * number + group_of(kind, height, width, rows, columns, labels, i, j)
                        value = real(values[g])
                    elif i >= edge:
                        while i >= edge:
                            edge += height
                            g += across
                        value = real(values[g])
                    out[at] = treated(held[k], clip, value)
                i += deep
                at = np.uint64(at + step)


@kernel
def treat_words(
    clip, strict, height, width, flat, rows, columns, number, values, flags, piece, lanes, out
):
    """`treat` for blocks, where rows consist of wide words: a thread a column of these."""
    if keep_out(strict, flags):
        return
    held = cuda.local.array(_ENTRIES, flat.dtype)
    batch, each = values.size // number, wide.BYTES // held.itemsize  # a constant, unlike flat's
    bounds, along = cuda.local.array(4, flat.dtype), cuda.local.array(4, int32)
    real = flat.dtype.type
    t = cuda.threadIdx.x
    lane, below, deep = t % lanes, t // lanes, int32(cuda.blockDim.x // lanes)
    words, across = columns // each, (columns + width - 1) // width
    tiles, pieces = (words + lanes - 1) // lanes, (rows + piece - 1) // piece
    step, tall = np.uint64(deep * columns), int32(min(height, _FAR))
    for item in range(cuda.blockIdx.x, batch * pieces * tiles, cuda.gridDim.x):
        j, p = (item % tiles * lanes + lane) * each, item // tiles
        r, i = p // pieces, p % pieces * piece + below
        last = min(p % pieces * piece + piece, rows)
        if j >= columns or i >= last:
            continue
        g = r * number + i // height * across
        for e in range(each):
            along[e] = int32(j + e) // int32(width)
            bounds[e] = real(values[np.uint64(g + along[e])])
        edge = int32(min((i // height + 1) * height - i, _FAR))  # rows that the bounds are for
        left = int32((last - i + deep - 1) // deep)
        at = np.uint64((r * rows + i) * columns + j)
        while left > 0:
            place = at
            for k in range(_WORDS):
                if k < left:
                    wide.fetch(flat, place, held, np.uint32(k * each))
                place = np.uint64(place + step)
            for k in range(_WORDS):
                if k < left:
                    if edge <= 0:
                        while edge <= 0:
                            edge = int32(edge + tall)
                            g += across
                        for e in range(each):
                            bounds[e] = real(values[np.uint64(g + along[e])])
                    for e in range(each):
                        held[k * each + e] = treated(held[k * each + e], clip, bounds[e])
                    wide.put(out, at, held, np.uint32(k * each))
                edge = int32(edge - deep)
                at = np.uint64(at + step)
            left = int32(left - _WORDS)


@kernel
def shrink(strict, tol, starts, radii, flags, values, out):
    """Project the groups, which lie one after the other, onto l1 balls: a block for each."""
    room = cuda.shared.array(0, float64)
    told = cuda.shared.array(TOLD, float64)
    if keep_out(strict, flags):
        return
    number = starts.size - 1
    for item in range(cuda.blockIdx.x, len(values) * number, cuda.gridDim.x):
        r, g = item // number, item % number
        z, goal = values[r, starts[g] : starts[g + 1]], out[r, starts[g] : starts[g + 1]]
        radius = radii[item]
        cuda.syncthreads()
        shift, back, turn = 0, 0, 0
        if 0.0 < radius < math.inf:
            radius, shift, back, turn = engine.solve(
                m.L1, True, radius, -1.0, tol, z, room, told, None, None, None
            )
        elif cuda.threadIdx.x == 0:
            engine.conclude(told, m.FEASIBLE if radius > 0.0 else m.NONFINITE, 0.0, 0.0, 0.0)
        cuda.syncthreads()
        if radius == 0.0:
            for k in range(cuda.threadIdx.x, z.size, cuda.blockDim.x):
                goal[k] = 0
        else:
            engine.write(m.L1, True, radius, shift, back, z, goal, room, told, None, None, turn)


@kernel
def put_back(strict, kind, height, width, starts, values, flags, out):
    """From the order of the groups to the matrices: the reverse of `partition.arrange`."""
    _, rows, columns = out.shape
    e = cuda.grid(1)
    if keep_out(strict, flags):
        e = out.size
    while e < out.size:
        r, i, j = where(e, rows, columns)
        g = group_of(kind, height, width, rows, columns, starts, i, j)
        out[r, i, j] = values[r, starts[g] + place_in(kind, height, width, columns, i, j)]
        e += cuda.gridsize(1)


@kernel
def put_back_by(strict, order, values, flags, out):
    """The reverse of `partition.arrange_by`."""
    batch, size = out.shape
    e = cuda.grid(1)
    if keep_out(strict, flags):
        e = batch * size
    while e < batch * size:
        r, k = e // size, e % size
        out[r, order[k]] = values[r, k]
        e += cuda.gridsize(1)


# --- launches --------------------------------------------------------------------------------


class _Job:
    """Matrices on a GPU, their groups, and the launches."""

    def __init__(self, x, given, inner):
        self.s = arrays.slices(x, None)
        if len(self.s.shape) < 2:
            raise ValueError(f"x must have at least two dimensions, got shape {self.s.shape}")
        self.inner = INNER[choose(inner, "inner", tuple(INNER))]
        self.home, self.given = self.s.home, given

    def begin(self):
        """Look at the groups, on the device; find the matrices."""
        s = self.s
        self.parts = partition.parse(self.given, s, self.home)
        self.s = s = s._replace(batch=() if self.parts.whole else s.shape[:-2])
        columns = s.shape[-1]
        self.shape = (s.number, math.prod(s.shape[:-1]) // max(s.number, 1), columns)
        self.flags = self.home.zeros(engine.FLAGS, "int32")
        return arrays.read(self.home, s.array, None, s.work, self.shape)

    def find_norms(self, z):
        """Launch what finds the norms, and where labelled entries lie in order."""
        self.lists = None
        if self.parts.kind == LABELS:
            self.lists = partition.lists_of(self.home, self.parts, *z.shape[1:])
        self.norms, self.tops = groups.norms(self.home, z, self.parts, self.inner, self.lists)
        self.scaled = self.tops is not None

    def project_norms(self, outer, bound, feasible, info, radii):
        """Launch the projection of the norms; returns what the groups are treated with."""
        home, (batch, _, _), number = self.home, self.shape, self.parts.number
        dummy = self.norms
        if feasible and self.inner == LINF and self.s.work == "float64":
            self.tops, self.scaled = groups.fold_rows(home, self.norms, batch, LINF), True
            launch_each(make_room, home, self.norms.size, self.tops, self.norms)
        tops = self.tops if self.scaled else dummy
        if self.scaled and outer == m.L1:
            scaled = groups.vector(home, batch)
            launch_each(
                scale_bounds, home, batch, *bound.arguments(dummy), bound.low, bound.high,
                self.inner, tops, scaled,
            )  # fmt: skip
            bound = Parameter(math.nan, scaled, bound.low, bound.high)
        u = groups.vector(home, batch * number)
        run_rows(
            home, outer, True, bound, OWN_NORM, self.s.slack, self.norms.reshape(batch, number),
            u.reshape(batch, number), info, self.flags,
        )  # fmt: skip
        v_max = u_max = dummy
        reported = radii is not dummy
        if feasible or (reported and outer == m.CAI):
            v_max = groups.fold_rows(home, self.norms, batch, LINF)
        if feasible:
            u_max = groups.fold_rows(home, u, batch, LINF)
        reached = groups.vector(home, u.size) if reported else dummy
        launch_each(
            settle, home, u.size, outer, self.inner, feasible, self.scaled, reported, tops,
            v_max, u_max, self.norms, u, info, radii, reached,
        )  # fmt: skip
        if reported:
            sums = groups.fold_rows(home, reached, batch, L1)
            squares = groups.fold_rows(home, reached, batch, L2)
            launch_each(
                report_levels, home, batch, outer, self.inner, number, self.scaled, tops, sums,
                squares, info,
            )  # fmt: skip
        return u

    def treat_groups(self, z, u, strict, out):
        """Launch what clips or multiplies the entries."""
        batch, rows, columns = self.shape
        parts, clip = self.parts, self.inner == LINF
        table = batch * rows, columns
        aligned = wide.are_aligned(z.reshape(table), out.reshape(table))
        if parts.kind == BLOCKS and aligned and columns < _FAR:
            words = columns * z.dtype.itemsize // wide.BYTES
            lanes = min(groups.power(words), groups.THREADS)
            piece = groups.rows_each(rows, words, 32) * (groups.THREADS // lanes)
            blocks = batch * -(-rows // piece) * -(-words // lanes)
            launch(
                treat_words, self.home, min(blocks, groups.MOST_BLOCKS), groups.THREADS, clip,
                strict, parts.height, parts.width, z.reshape(z.size), rows, columns, parts.number,
                u, self.flags, piece, lanes, out.reshape(z.size),
            )  # fmt: skip
            return
        labels = self.flags if parts.labels is None else parts.labels
        lanes = min(groups.power(columns), groups.THREADS)
        piece = groups.rows_each(rows, columns, 32) * (groups.THREADS // lanes)
        blocks = batch * -(-rows // piece) * -(-columns // lanes)
        launch(
            treat, self.home, min(blocks, groups.MOST_BLOCKS), groups.THREADS, clip,
            strict, *parts.regular, labels, z.reshape(z.size), rows, columns, parts.number, u,
            self.flags, piece, lanes, out.reshape(z.size),
        )  # fmt: skip

    def shrink_groups(self, z, u, strict, out):
        """Launch the projections of the groups onto l1 balls."""
        home, parts, (batch, rows, columns) = self.home, self.parts, self.shape
        size, number = rows * columns, parts.number
        lists = self.lists or partition.lists_of(home, parts, rows, columns)
        order, starts = lists
        goal = out.reshape(batch, size)
        values = shrunk = partition.in_order(home, parts, z, lists)
        own = parts.kind == BLOCKS and parts.width == columns  # they lie so
        if own:
            shrunk = goal
        threads = threads_for(-(-size // number), 8)
        launch(
            shrink, home, min(batch * number, groups.MOST_BLOCKS), threads, strict, self.s.slack,
            starts, u, self.flags, values, shrunk, shared=8 * engine.ROOM * threads,
        )  # fmt: skip
        if order is not None:
            launch_each(put_back_by, home, z.size, strict, order, values, self.flags, goal)
        elif not own:
            regular = parts.regular
            launch_each(put_back, home, z.size, strict, *regular, starts, values, self.flags, out)


def project(x, level, radius, given, inner, feasible, out, overwrite_x, check_finite, full_output):
    """Project all matrices."""
    job = _Job(x, given, inner)
    home = job.home
    with home.active():
        z = job.begin()
        s, parts = job.s, job.parts
        outer, bound = _outer(level, radius, s)
        z, goal = arrays.target(home, x, None, s.dtype, s.work, z, out, overwrite_x)
        new = home.empty if full_output else home.scratch
        report = new((max(s.number, 1), engine.COLUMNS), "float64")
        bounds = new((*s.batch, *parts.shape), "float64")
        nonzeros = new(s.batch, "int64")
        if z.size:
            job.find_norms(z)
            info = home.view(report)
            radii = job.norms
            if full_output:
                radii = home.view(bounds, (s.number * parts.number,), (8,))
            u = job.project_norms(outer, bound, feasible and outer == m.CAI, info, radii)
            strict = bool(check_finite and goal.in_place)
            run = job.shrink_groups if job.inner == L1 else job.treat_groups
            run(z, u, strict, goal.rows)
            if check_finite:
                name = "level" if outer == m.CAI else "radius"
                complain(home, job.flags, s.number, bound, name)
        elif full_output:
            for array in (report, bounds, nonzeros):
                arrays.fill(home, array, 0)
        result = arrays.deliver(home, goal, None, s.dtype)
        if not full_output:
            return result
        if z.size:
            counts = home.view(nonzeros, (s.number,), (8,))
            count_delivered(home, result, None, s, counts)
            radii = radii.reshape(s.number, parts.number)
        return result, partition.info_of(
            s, parts, report, bounds, radii if z.size else None, nonzeros
        )


def _outer(level, radius, s):
    """The outer constraint: its kind, and its parameter for each matrix."""
    if radius is None:
        return m.CAI, arrays.per_slice(level, "level", s, 1.0, math.inf, ">= 1")
    return m.L1, arrays.per_slice(radius, "radius", s, 0.0, math.inf, ">= 0")


def level_for_groups(x, n_groups, given, inner):
    """The levels of all matrices, on the device."""
    job = _Job(x, given, inner)
    home = job.home
    with home.active():
        z = job.begin()
        s, number = job.s, job.parts.number
        counts = arrays.per_slice(n_groups, "n_groups", s, 1, math.inf, ">= 1")
        result = home.empty(s.batch, "float64")
        if z.size:
            job.find_norms(z)
            levels.run_rows(
                home, job.norms.reshape(s.number, number), counts, s.slack,
                home.view(result, (s.number,), (8,)),
            )  # fmt: skip
        else:
            arrays.fill(home, result, float(max(number, 1)))
        return result
