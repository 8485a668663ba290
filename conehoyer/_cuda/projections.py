"""Projections of vectors on the GPU: launches, and what comes back."""

import math

from numba import float64, int64

from .. import _math as m
from .._checks import not_finite
from .._results import ProjectionInfo, warn_capped
from . import arrays, block, engine, held, wide
from .arrays import Parameter
from .device import (
    SHARED_MEMORY,
    SIMULATED,
    blocks_at_once,
    cuda,
    kernel,
    launch,
    launch_each,
    threads_for,
)

_MOST_BLOCKS = 2048
_MOST_ROWS = 1 << 20  # blocks that do a row each
_LEFT_BLOCKS = 4 if SIMULATED else 264  # that do the rows that others have left
_MANY = 64  # rows: as many blocks keep the GPU busy
_LONG_FROM = 256 if SIMULATED else 1 << 18  # entries: one block would be too slow
_PARAMETER = {m.CAI: "level", m.HOYER: "sparseness", m.L1: "radius", m.SIMPLEX: "total"}
_ENGINE = engine.project_rows, engine.project_long
OWN_NORM = Parameter(-1.0, None, -math.inf, math.inf)
_NO_REST = Parameter(0.0, None, -math.inf, math.inf)


@kernel
def count_nonzeros(x, counts):
    """Add up the nonzeros of each row, by several blocks a row."""
    room = cuda.shared.array(0, float64)
    rows, n = x.shape
    each = cuda.gridDim.x // rows
    r, first = cuda.blockIdx.x // each, cuda.blockIdx.x % each * cuda.blockDim.x
    count = 0
    for i in range(first + cuda.threadIdx.x, n, each * cuda.blockDim.x):
        count += 1 if x[r, i] != 0 else 0
    total, _, _ = block.sum_three(room, float64(count), 0.0, 0.0)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(counts, r, int64(total))


def count_delivered(home, result, axis, s, counts):
    """Set `counts` to the nonzeros of each slice of a result, of which 16 bits may lose some."""
    rows = arrays.read(home, result, axis, s.work, (s.number, s.size // s.number))
    threads = threads_for(rows.shape[1], 8)
    each = min(-(-rows.size // (8 * threads * s.number)), max((1 << 12) // s.number, 1))
    arrays.fill(home, counts, 0)
    launch(
        count_nonzeros, home, s.number * each, threads, rows, counts,
        shared=8 * engine.ROOM * threads,
    )  # fmt: skip


def project(
    s, x, kind, absolute, levels, rests, norms, kernels,
    out, overwrite_x, check_finite, full_output,
):  # fmt: skip
    """Project all slices, by the engine or by other kernels that take the same."""
    home = s.home
    with home.active():
        if norms is None:
            rests, norms = _NO_REST, OWN_NORM
        else:  # Hoyer: they come from the host
            levels, rests, norms = (arrays.parameter(home, v) for v in (levels, rests, norms))
        shape = (s.number, s.length)
        z = arrays.read(home, x, s.axis, s.work, shape)
        z, goal = arrays.target(home, x, s.axis, s.dtype, s.work, z, out, overwrite_x)
        flags = home.zeros(engine.FLAGS + 2 * engine.COLUMNS, "int32")
        if full_output:
            report = home.empty((max(s.number, 1), engine.COLUMNS), "float64")
            info = home.view(report)
        else:  # one that nobody reads
            own = flags[: 2 * engine.COLUMNS]
            info = home.view(own, (1, engine.COLUMNS), (8 * engine.COLUMNS, 8), "<f8")
            flags = flags[2 * engine.COLUMNS :]
        if z.size:
            if goal.in_place and check_finite:  # before x is overwritten
                check(home, z, levels, _PARAMETER[kind], flags)
            run_rows(
                home, kind, absolute, levels, norms, s.slack, z, goal.rows, info, flags,
                kernels or _ENGINE, reported=full_output, rests=rests,
            )  # fmt: skip
        elif full_output:
            arrays.fill(home, report, 0.0)
        result = arrays.deliver(home, goal, s.axis, s.dtype)
        if check_finite:
            complain(home, flags, s.number, levels, _PARAMETER[kind])
        if not full_output:
            return result
        info = _info(s, report)
        if z.size and s.dtype in arrays.NARROW:
            count_delivered(home, result, s.axis, s, home.view(info.nnz, (s.number,), (8,)))
        return result, info


def run_rows(
    home, kind, absolute, levels, norms, tol, z, out, info, flags, kernels=_ENGINE, reported=True,
    rests=_NO_REST,
):  # fmt: skip
    """Launch the engine on rows: a team of threads for each, or all blocks for one by one.

    Without `reported`, `info` has one row, and nothing of use comes there.
    """
    by_rows, by_grid = kernels
    count, n = z.shape
    dummy = info.reshape(info.size)
    threads = threads_for(n, 8)
    asked = (
        kind, absolute, *levels.arguments(dummy), levels.low, levels.high,
        *norms.arguments(dummy), tol,
    )  # fmt: skip
    given = *asked, *rests.arguments(dummy), z, out, info, flags
    shared = 8 * engine.ROOM * threads
    itemsize = z.dtype.itemsize
    by_teams = kernels is _ENGINE and held.fits(n, itemsize)
    if n < _LONG_FROM or count >= _MANY or by_teams:
        room = n * itemsize
        cached = shared + room <= SHARED_MEMORY
        blocks, todo = min(count, _MOST_ROWS), flags[:0]
        if by_teams:
            plan = held.plan(n, itemsize)
            todo = home.zeros(1 + count, "int32")
            launch(
                held.KERNELS[itemsize], home,
                min(-(-(count << plan.bits) // plan.threads), _MOST_ROWS), plan.threads,
                *asked, z.reshape(z.size), out.reshape(z.size), info, count, n, plan.gap, plan.bits,
                wide.are_aligned(z, out), reported, todo, shared=plan.shared, much=True,
            )  # fmt: skip
            blocks = min(count, _LEFT_BLOCKS)
        launch(
            by_rows, home, blocks, threads, *given, cached, todo,
            shared=shared + room if cached else shared,
        )  # fmt: skip
        return
    parts = home.scratch((2, _MOST_BLOCKS, 3), "float64")
    none = z[:0]
    most = blocks_at_once(by_grid, home, threads, shared, *given, 0, parts, none)
    blocks = max(min(most, _MOST_BLOCKS, -(-n // (16 * threads))), 1)
    warps = blocks * threads // block.WARP
    each = n // (engine.BAND_SHARE * warps) + 8
    kept = home.scratch((warps, each), z.dtype.name)
    for r in range(count):
        launch(by_grid, home, blocks, threads, *given, r, parts, kept, shared=shared)


@kernel
def count_outside(low, high, values, flags):
    """Count the parameters that are out of range."""
    r = cuda.grid(1)
    while r < values.size:
        if not low <= values[r] <= high:
            cuda.atomic.add(flags, engine.BAD_PARAMETER, 1)
        r += cuda.gridsize(1)


def check(home, z, levels, name, flags):
    """Raise where an entry is not finite, or a parameter on the GPU out of range."""
    threads = threads_for(z.size, 8)
    launch(engine.count_bad, home, min(-(-z.size // threads), 1024), threads, z, flags)
    if levels.values is not None and math.isfinite(levels.low):
        values = levels.values
        launch_each(count_outside, home, values.size, levels.low, levels.high, values, flags)
    complain(home, flags, z.shape[0], levels, name)


def complain(home, flags, count, parameter, name):
    """Look at what the kernels flagged: this waits for them."""
    seen = home.fetch(flags)
    if seen[engine.BAD_PARAMETER]:
        raise ValueError(
            f"{name} must lie in [{parameter.low}, {parameter.high}], "
            f"but {seen[engine.BAD_PARAMETER]} of the values on the GPU don't"
        )
    if seen[engine.NONFINITE]:
        raise not_finite()
    warn_capped(int(seen[engine.CAPPED]), count)


def _info(s, report):
    """The report, in the slices' shape, on the device."""

    def column(k, dtype="float64"):
        return arrays.column(s.home, report, k, s.batch, dtype)

    return ProjectionInfo(
        column(engine.THRESHOLD), column(engine.LEVEL), column(engine.NONZEROS, "int64"),
        column(engine.PASSES, "int64"),
        arrays.column(s.home, report, engine.STATUS, s.batch, "bool", m.CAPPED),
    )  # fmt: skip
