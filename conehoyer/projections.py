"""Projections of vectors: the CAI cone, Hoyer's sparseness, the l1 ball, the simplex."""

import math
import warnings

import numpy as np

from . import _checks
from . import _math as m
from ._cpu import classic, engine, passes
from ._results import ConvergenceWarning, ProjectionInfo
from ._threads import resolve_workers, run_split

_PARALLEL_FROM = 1 << 16  # entries; below, a second thread costs more than it gives
_NO_LOG = np.empty(0)


def project_cai(
    x,
    level,
    *,
    axis=-1,
    method="cfp",
    nonneg=False,
    out=None,
    overwrite_x=False,
    workers=None,
    check_finite=True,
    full_output=False,
):
    s = _checks.slices(x, axis)
    _checks.choose(method, "method", ("cfp", "iterative"))
    levels = _checks.per_slice(level, "level", s, 1.0, what=">= 1")
    run = None
    if method == "iterative":

        def run(z, target, info, first, last):
            classic.iterative_rows(not nonneg, levels, s.slack, z, target, info, first, last)

    return _project(
        s, x, m.CAI, not nonneg, levels, None, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


def project_hoyer(
    x,
    sparseness=None,
    *,
    l1=None,
    l2=None,
    axis=-1,
    method="cfp",
    nonneg=False,
    out=None,
    overwrite_x=False,
    workers=None,
    check_finite=True,
    full_output=False,
):
    s = _checks.slices(x, axis)
    _checks.choose(method, "method", ("cfp", "alternating"))
    levels, norms = _hoyer_parameters(s, sparseness, l1, l2)
    run = None
    if method == "alternating":

        def run(z, target, info, first, last):
            classic.alternating_rows(
                not nonneg, levels, norms, s.slack, z, target, info, first, last
            )

    return _project(
        s, x, m.HOYER, not nonneg, levels, norms, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


def _hoyer_parameters(s, sparseness, l1, l2):
    """Level (L1/L2)² and norm L2 of each slice; a negative L2 stands for the input's norm."""
    norms = None
    if l2 is not None:
        norms = _checks.per_slice(l2, "l2", s, 0.0, np.finfo(float).max, "finite and >= 0")
    if (sparseness is None) == (l1 is None):
        raise ValueError(
            "give either sparseness (with or without l2) or both l1 and l2, got "
            f"sparseness={sparseness!r}, l1={l1!r}, l2={l2!r}"
        )
    if l1 is None:
        values = _checks.per_slice(sparseness, "sparseness", s, 0.0, 1.0, "in [0, 1]")
        root = math.sqrt(max(s.length, 1))
        ratios = root - values * (root - 1.0)
        levels = np.clip(ratios * ratios, 1.0, max(s.length, 1))
        return levels, np.full(levels.size, -1.0) if norms is None else norms
    if norms is None:
        raise ValueError(f"l1 needs l2 as well, got l1={l1!r}, l2=None")
    sums = _checks.per_slice(l1, "l1", s, 0.0, np.finfo(float).max, "finite and >= 0")
    with np.errstate(divide="ignore", invalid="ignore"):
        levels = np.where(norms > 0.0, (sums / norms) ** 2, np.where(sums > 0.0, np.inf, 1.0))
    bad = (levels < 1.0 - 1e-12) | (levels > max(s.length, 1) * (1.0 + 1e-12))
    if bad.any() and s.length:
        i = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"no vector of length {s.length} has these norms: l2 <= l1 <= sqrt(n)*l2 is needed, "
            f"got l1={sums[i]}, l2={norms[i]}"
        )
    return np.clip(levels, 1.0, max(s.length, 1)), norms


def project_l1_ball(
    x,
    radius=1.0,
    *,
    axis=-1,
    method="newton",
    nonneg=False,
    out=None,
    overwrite_x=False,
    workers=None,
    check_finite=True,
    full_output=False,
):
    s = _checks.slices(x, axis)
    radii = _checks.per_slice(radius, "radius", s, 0.0, what=">= 0")
    run = _ball_method(s, m.L1, not nonneg, radii, method)
    return _project(
        s, x, m.L1, not nonneg, radii, None, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


def project_simplex(
    x,
    total=1.0,
    *,
    axis=-1,
    method="newton",
    out=None,
    overwrite_x=False,
    workers=None,
    check_finite=True,
    full_output=False,
):
    s = _checks.slices(x, axis)
    totals = _checks.per_slice(total, "total", s, 0.0, np.finfo(float).max, "finite and >= 0")
    run = _ball_method(s, m.SIMPLEX, False, totals, method)
    return _project(
        s, x, m.SIMPLEX, False, totals, None, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


def _ball_method(s, kind, absolute, radii, method):
    """The rows function of Condat's algorithm or of sorting; None for the engine."""
    _checks.choose(method, "method", ("newton", "condat", "sort"))
    if method == "newton":
        return None
    by_sorting = method == "sort"

    def run(z, target, info, first, last):
        part = z[first:last]
        if by_sorting:
            values = np.sort(np.abs(part) if absolute else part, axis=-1)
        else:
            values = np.empty_like(part)
        classic.ball_rows(
            kind, absolute, radii[first:last], s.slack, by_sorting, part, values,
            target[first:last], info[first:last], 0, last - first,
        )  # fmt: skip

    return run


def _project(
    s, x, kind, absolute, levels, norms, run, out, overwrite_x, workers, check_finite, full_output
):
    """Project all slices by the engine, or by the rows function `run`."""
    workers = resolve_workers(workers)
    z = _checks.rows(s)
    z, goal = _checks.target(s, x, z, out, overwrite_x)
    if z.size == 0:
        return (goal.array, _empty_info(s)) if full_output else goal.array
    if norms is None:
        norms = levels
    in_place = goal.rows is z or np.may_share_memory(goal.rows, z)
    batch = len(z) > 1 or run is not None
    if in_place and check_finite and batch and not passes.all_finite(z.reshape(-1)):
        raise _not_finite()  # before any row is overwritten
    info = np.zeros((len(z), 4))
    log = np.full(m.MAX_PASSES, -1.0) if full_output and len(z) == 1 else _NO_LOG
    if run is not None:
        run_split(lambda i, j: run(z, goal.rows, info, i, j), len(z), workers)
    elif workers == 1 or z.size < _PARALLEL_FROM:
        engine.project_rows(
            kind, absolute, levels, norms, s.slack, check_finite, z, goal.rows,
            not in_place, info, log, 0, len(z),
        )  # fmt: skip
    elif len(z) >= workers:
        run_split(
            lambda i, j: engine.project_rows(
                kind, absolute, levels, norms, s.slack, check_finite, z, goal.rows,
                not in_place, info, log, i, j,
            ),  # fmt: skip
            len(z),
            workers,
        )
    else:
        for r in range(len(z)):
            _project_long(
                kind, absolute, levels[r], norms[r], s.slack, check_finite, z, goal.rows,
                not in_place, info, log, r, workers,
            )  # fmt: skip
    if info[0, 0] >= m.NONFINITE or (len(z) > 1 and info[:, 0].max() >= m.NONFINITE):
        _complain(info[:, 0], check_finite)
    result = _checks.deliver(s, goal)
    return (result, _info(s, result, info, log)) if full_output else result


def _project_long(
    kind, absolute, level, norm, tol, strict, x, out, whole, info, log, r, workers
):
    """One long slice by several threads: the steps of `engine.project_rows`, split."""
    z, target = x[r], out[r]
    buffer = target if whole else np.empty_like(z)
    part = np.empty((engine.chunks_of(z.size), 5))
    held = np.empty(engine.room_for_heads(z.size), z.dtype)
    chunks = len(part)
    job = engine.prepare(kind, absolute, level, norm, strict, z, buffer)
    while job.action != engine.WRITE:
        run_split(
            lambda i, j, job=job: engine.run_pass(job, absolute, z, buffer, part, i, j),
            chunks,
            workers,
        )
        job = engine.proceed(job, kind, absolute, level, tol, z, buffer, held, part, log)
    if job.state.status in (m.NONFINITE, m.RESCALE):
        levels, norms = np.full(len(x), level), np.full(len(x), norm)
        engine.project_rows(
            kind, absolute, levels, norms, tol, strict, x, out, whole, info, log, r, r + 1
        )
        return
    run_split(
        lambda i, j: engine.write(job, kind, absolute, level, z, target, i, j), chunks, workers
    )
    engine.report(job, kind, absolute, level, info[r])


def _complain(status, check_finite):
    if check_finite and (status == m.NONFINITE).any():
        raise _not_finite()
    capped = np.count_nonzero(status == m.CAPPED)
    if capped:
        warnings.warn(
            f"{capped} of {len(status)} projections stopped at the cap on their iterations; "
            "the results are the best known",
            ConvergenceWarning,
            stacklevel=4,
        )


def _not_finite():
    return ValueError("x must be finite, got NaN or inf; check_finite=False lets them through")


def _info(s, result, info, log):
    """The report of the kernels, in the slices' shape."""
    nnz = np.count_nonzero(result, axis=s.axis)
    if s.batch == ():
        support = log[log >= 0.0].astype(np.int64) if log.size else None
        status, threshold, level, count = info[0]
        return ProjectionInfo(
            float(threshold), float(level), int(nnz), int(count), bool(status != m.CAPPED), support
        )
    status, threshold, level, count = (info[:, i].reshape(s.batch) for i in range(4))
    return ProjectionInfo(
        threshold.copy(), level.copy(), nnz, count.astype(np.int64), status != m.CAPPED
    )


def _empty_info(s):
    if s.batch == ():
        return ProjectionInfo(0.0, 0.0, 0, 0, True, np.empty(0, np.int64))
    zeros, counts = np.zeros(s.batch), np.zeros(s.batch, np.int64)
    return ProjectionInfo(zeros, zeros.copy(), counts, counts.copy(), np.ones(s.batch, bool))
