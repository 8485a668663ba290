"""Structured sparsity: whole columns, rows, diagonals or blocks of a matrix set to zero."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _checks, _dispatch, _groups, _threads, projections
from . import _math as m
from ._cpu import groups as kernels
from ._cpu import l1inf as kernels_of_l1inf
from ._cpu import lists as kernels_of_lists
from ._cpu import passes, short
from ._cpu.arrays import REACHED, STATUS, THRESHOLD, WANTED
from ._cpu.levels import count_nonzeros
from ._dispatch import takes_tensors
from ._groups import INNER
from ._results import warn_capped
from ._threads import resolve_workers, run_split, team
from .levels import levels_of_rows

_ROOM = 2.0**-32  # of all floats: what norms are projected to exceeds them by √number at most
_MOST_ROUNDS = 1000  # of ℓ1,∞; each but the last changes a group's support: fewer than 10 are usual
_NOWHERE = np.zeros(0, np.intp)


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class BilevelInfo:
    """How a bilevel projection went.

    Attributes
    ----------
    radii : ndarray of float64, one number a group
        Bound on the norm of each group, 0 for the groups that were set to zero.  The
        batch's shape, then the groups': (N,) for columns, (M,) for rows, (M + N − 1,) for
        diagonals, (⌈M/r⌉, ⌈N/c⌉) for blocks, (largest label + 1,) for labels.
    kept : ndarray of bool, one a group
        Whether the group was kept.
    mask : ndarray of bool
        The same for each entry; broadcasts against the data.
    threshold : float or ndarray of float64
        The soft threshold τ on the groups' norms.  NaN, as `level` and `radii`, for a matrix
        that holds NaN or infinity.
    level : float or ndarray of float64
        The Hoyer score of the result's norms (`level`), or their sum (`radius`).
    nnz : int or ndarray of int64
        Number of nonzeros of the result.
    passes : int or ndarray of int64
        Evaluations of the sums over the groups' norms; rounds over the data for the exact
        ℓ1,∞ projection.
    converged : bool or ndarray of bool
        False where a cap on the passes was hit.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import project_bilevel
    >>> y = np.array([[3.0, -0.5, 1.0], [2.0, 0.5, -2.0]])
    >>> x, info = project_bilevel(y, radius=3.0, full_output=True)
    >>> info.radii, info.kept
    (array([2., 0., 1.]), array([ True, False,  True]))
    >>> info.mask.shape, info.nnz
    ((1, 3), 4)
    """

    radii: NDArray[np.float64]
    kept: NDArray[np.bool_]
    mask: NDArray[np.bool_]
    threshold: float | NDArray[np.float64]
    level: float | NDArray[np.float64]
    nnz: int | NDArray[np.int64]
    passes: int | NDArray[np.int64]
    converged: bool | NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Bounds:
    """What a gradient needs of a `BilevelInfo`: the rest takes as long as the projection."""

    radii: NDArray[np.float64]


RADII = object()  # for `full_output`, in place of True: `Bounds` will do


@takes_tensors
def project_bilevel(
    x: ArrayLike,
    level: ArrayLike | None = None,
    *,
    radius: ArrayLike | None = None,
    groups: Any = "columns",
    inner: str = "linf",
    feasible: bool = False,
    out: Any = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    check_finite: bool = True,
    full_output: bool = False,
) -> Any:
    """Set whole groups of the entries of a matrix to zero: the bilevel projection.

    With v the norms of the groups, first the norms are projected,

        u = argmin ‖u − v‖₂  subject to  H(u) ≤ level  (or Σu ≤ radius),  u ≥ 0,

    then each group onto the ball whose radius is its u,

        x_g = argmin ‖x_g − y_g‖₂  subject to  ‖x_g‖ ≤ u_g,

    where H(u) = (‖u‖₁/‖u‖₂)² is the Hoyer score.  Groups with u_g = 0 vanish.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., M, N)
        The matrix, or a batch of matrices, each projected by itself.
    level : float or array_like of float64, optional
        Bound on the Hoyer score of the groups' norms, at least 1; broadcasts against the
        batch.  See `level_for_groups` for a wanted number of groups.
    radius : float or array_like of float64, optional
        Bound on the sum of the groups' norms instead, at least 0 (bilevel ℓ1,∞ for
        ``inner="linf"``); infinity bounds nothing.  Exactly one of `level` and `radius`
        must be given.
    groups : {"columns", "rows", "diagonals"}, (int, int) or array_like, default "columns"
        The groups: the columns, the rows, the diagonals (group j has the offset
        j − (M − 1)), blocks of this shape (those at the lower and right edge may be
        smaller), or a label for each entry: of shape (M, N), for each matrix by itself,
        or of x's full shape, for one projection of the whole batch.
    inner : {"linf", "l2", "l1"}, default "linf"
        The norm of a group, and the ball it is projected onto: entries are clipped,
        scaled, or soft-thresholded.
    feasible : bool, default False
        With `level`, a projected norm may exceed the group's norm, and no projection onto
        a ball reaches it; the result's norms then exceed the level.  True shrinks all u by
        the one factor that makes every u_g ≤ v_g: the same groups are kept and the
        level holds.
    out : ndarray, optional
        Where the result goes, of x's shape and the result's dtype; may be x itself.
    overwrite_x : bool, default False
        Permission to use the memory of x for the result.
    workers : int, optional
        Number of threads; None is the context's value, see `set_workers`.
    check_finite : bool, default True
        Raise ValueError where x holds NaN or inf.  Without the check such a matrix
        becomes NaN.
    full_output : bool, default False
        Return ``(result, info)``.

    Returns
    -------
    ndarray
        The projected array, of x's shape and floating dtype (float64 for integers).
    info : BilevelInfo
        Only with ``full_output=True``.

    Raises
    ------
    ValueError
        If not exactly one of `level` and `radius` is given or it is out of range or does not
        broadcast, if `groups` or `inner` is unknown, labels are negative or of the wrong
        shape, x has fewer than two dimensions or is not finite, `workers` is out of range, or
        `out` does not fit.
    TypeError
        If x is complex, masked or sparse, or an argument has the wrong type.

    Warns
    -----
    ConvergenceWarning
        If the cap on the passes over the norms was hit.

    See Also
    --------
    project_l1inf_ball : The exact projection onto the ℓ1,∞ ball.
    level_for_groups : The level that keeps a wanted number of groups.

    Notes
    -----
    Algorithm 3 of the CAI paper is ``project_bilevel(x, level)``: columns, clipped.  As
    printed it breaks its own constraint, unless the input is feasible or the norms of all
    kept groups are equal: groups with u_g > v_g keep their norm v_g, which is too small for
    H(u) = level.  For a 1000 × 1000 Gaussian matrix and a level that keeps 100 columns the
    score of the norms is larger than asked for by a factor given in the example below.
    With ``feasible=True``, u_g = (v_g − τ)₊·v_max/(v_max − τ).

    A matrix whose norms satisfy the constraint is returned bit for bit (with ``"l2"``, but for
    the signs of zeros and for groups so small that their squares underflow to zero beside the
    largest).  Ties at the top and zero matrices are treated as in `project_cai`: if more than
    `level` groups tie at the largest norm, the first ⌈level⌉ of them are kept.

    The cost is one pass that reads the matrix and one that reads and writes it; memory
    beyond the result is of the order of the number of groups (for C- or F-ordered
    float32 and float64; labels of another dtype than intp, or in another order than x, are
    copied).  ``inner="l1"`` projects copies of some groups at a time, each by itself, and labels
    are sorted for it in each call: that takes an integer for each entry.
    float16 is computed in float32.  The result has the same bits for any number of
    workers.

    For an x on a GPU, the result and the report's arrays lie there too, and labels must.  The
    call waits for the GPU if `check_finite` is true, or to learn the largest label.  Matrices
    that are not C-ordered are copied first; labels are sorted, in each call.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import level_for_groups, hoyer_score, project_bilevel
    >>> y = np.array([[3.0, -0.5, 1.0], [2.0, 0.5, -2.0]])
    >>> project_bilevel(y, radius=3.0)
    array([[ 2.,  0.,  1.],
           [ 2.,  0., -1.]])

    By how much the printed algorithm misses its level, and `feasible` does not:

    >>> y = np.random.default_rng(0).standard_normal((1000, 1000))
    >>> level = level_for_groups(y, 100)
    >>> for feasible in (False, True):
    ...     x = project_bilevel(y, level, feasible=feasible)
    ...     norms = abs(x).max(axis=0)
    ...     print(np.count_nonzero(norms), round(hoyer_score(norms) / level, 3))
    100 1.144
    100 1.0
    """
    _only_one(level, radius)
    if _dispatch.on_device(x):
        from ._cuda import bilevel as on_gpu

        resolve_workers(workers)
        return on_gpu.project(
            x, level, radius, groups, inner, feasible, out, overwrite_x, check_finite, full_output
        )
    data = _groups.matrices(x)
    parts = _groups.parse(groups, data)
    norm = INNER[_checks.choose(inner, "inner", INNER)]
    batch = () if parts.whole else data.batch
    kind, bounds = _outer(level, radius, batch)
    feasible = bool(feasible) and kind == m.CAI
    run = partial(_bilevel, kind, parts, norm, feasible, data.slack, check_finite)
    return _project(
        data, x, parts, run, bounds, out, overwrite_x, check_finite, workers, full_output
    )


def _project(data, x, parts, run, bounds, out, overwrite_x, check_finite, workers, full_output):
    """Hand the matrices to `run`, and the result back.

    `run` takes the matrices, where the results go, a row each for the radii (no entries if nobody
    asks for them) and for the rest of the report, which brings in the bound, and the workers.
    """
    workers = resolve_workers(workers)
    read, write, result, direct = _groups.target(data, x, _groups.source(data), out, overwrite_x)
    goal = write
    if parts.whole or parts.line:
        read, goal = parts.seen(read), parts.seen(write)
    count = len(read)
    info = np.zeros((count, 4))
    radii = np.zeros((count, parts.number if full_output else 0))
    if read.size:
        info[0 if count == 1 else slice(None), WANTED] = bounds  # one entry is filled in less time
        if count > 1 and check_finite and np.may_share_memory(goal, data.array):
            if not passes.all_finite(read.reshape(-1)):
                raise _checks.not_finite()  # before any matrix is overwritten
        if count >= workers > 1 and read.nbytes >= _threads.DEALT_FROM:
            run_split(
                lambda i, j: run(read[i:j], goal[i:j], radii[i:j], info[i:j], 1), count, workers
            )
        else:
            run(read, goal, radii, info, workers)
    if not direct:
        _groups.deliver(data, write, result)
    if count > 1 or (count == 1 and info[0, STATUS] == m.CAPPED):
        warn_capped(np.count_nonzero(info[:, STATUS] == m.CAPPED), count)
    if full_output is RADII:
        return result, Bounds(_of_groups(data, parts, radii))
    return (result, _info(data, parts, result, radii, info)) if full_output else result


def _of_groups(data, parts, radii):
    """The radii of the groups, in the caller's order."""
    batch = () if parts.whole else data.batch
    ordered = np.ascontiguousarray(_groups.to_caller(radii, parts, data))
    return ordered.reshape(*batch, *parts.shape)


def _bilevel(
    kind, parts, inner, feasible, slack, check_finite, matrices, out, radii, info, workers
):  # fmt: skip
    """The bilevel projection of matrices."""
    more = 3 if inner == kernels.L1 else 0  # which is much more work
    if workers > 1 and matrices[0].nbytes < _groups.PARALLEL_FROM >> more:
        workers = 1
    left = range(len(matrices))
    real = _groups.dtype_of_norms(matrices, parts, inner)
    many = workers > 1 and parts.number * real.itemsize >= projections.WOKEN_FROM
    rows_at, starts, listed = (0, 0), _NOWHERE, _NOWHERE
    if inner == kernels.L1:
        rows_at = short.address(matrices.dtype), short.address_of_engine(matrices.dtype)
        starts, listed = _groups.listed(matrices.shape[1:], parts)
    desks = _threads.NOBODY if many else team(workers)
    if not many and (workers == 1 or len(desks)):
        room = np.empty((2, parts.number), real)
        worst = kernels.project(
            short.addresses(parts.number, real), rows_at,
            kernels.addresses(inner, matrices.dtype, real), matrices, inner, *parts.layout,
            starts, listed, parts.order, room, kind, feasible, slack, out, radii, info, workers,
            desks, 0, len(matrices),
        )  # fmt: skip
        if worst < m.RESCALE:
            return
        left = np.flatnonzero(info[:, STATUS] == m.RESCALE)
    with np.errstate(over="ignore", under="ignore"):  # in another unit, and in the data's again
        for b in left:
            given = rows_at, matrices[b], *parts.layout[:3], starts, listed
            shrink, about = partial(kernels_of_lists.shrink, *given), (radii[b], info[b])
            _in_steps(
                kind, parts, inner, feasible, slack, matrices[b], out[b], *about, workers, shrink
            )
    _report_nonfinite(check_finite, out, radii, info)


def _in_steps(kind, parts, inner, feasible, slack, z, out, radii, info, workers, shrink):
    """One matrix whose norms over- or underflow or are too many for one thread.

    Also by several threads on systems where they cannot wait awake.
    """
    clip = inner == kernels.LINF
    norms, unit = _groups.norms(z, parts, inner, workers)
    if kind == m.CAI and passes.largest(norms, True) > _ROOM * np.finfo(norms.dtype).max:
        unit *= 0.5 * _ROOM
        norms *= 0.5 * _ROOM
    if unit != 1.0 and kind == m.L1:
        info[WANTED] = float(info[WANTED]) * unit  # of floats of Python none overflows loudly
    u = np.empty_like(norms)
    info[STATUS] = m.GO
    args = kind, True, slack, True, True, norms[None], u[None], info[None]
    if workers > 1 and norms.nbytes >= projections.WOKEN_FROM:
        projections.project_long(*args, workers)
    else:
        projections.project_rows(*args, 1)
    if info[STATUS] == m.NONFINITE:
        return
    kernels.settle(norms, u, kind, feasible, parts.order, radii, info)
    if info[STATUS] == m.FEASIBLE and inner != kernels.L2:
        out[...] = z
    elif inner == kernels.L1:
        scale = unit
        if z.itemsize == 4:  # only sums in float32 overflow: small entries keep their bits
            u, scale = u / unit, 1.0
        run_split(partial(shrink, u, scale, slack, out), parts.number, workers)
    else:
        if clip and unit != 1.0:
            u /= u.dtype.type(unit)  # infinite ones bound nothing
        task = partial(kernels.apply, z, *parts.layout, u, norms[:0] if clip else norms, out)
        run_split(task, len(z), workers)
    if unit != 1.0:
        radii /= unit
        info[THRESHOLD] /= unit
        if kind == m.L1:
            info[REACHED] /= unit


def _only_one(level, radius):
    if (level is None) == (radius is None):
        given = "neither" if level is None else f"both ({level!r} and {radius!r})"
        raise ValueError(f"exactly one of level and radius must be given, got {given}")


def _outer(level, radius, batch):
    """The outer constraint: its kind, and its parameter, for all matrices or for each."""
    if radius is None:
        return m.CAI, _checks.of_batch(level, "level", batch, 1.0, math.inf, ">= 1")
    return m.L1, _checks.of_batch(radius, "radius", batch, 0.0, math.inf, ">= 0")


def _count_nonzeros(result, count):
    """Those of so many matrices; NumPy takes longer for it than the projection does."""
    result = np.asarray(result)
    result = result.T if result.ndim == 2 and result.flags.f_contiguous else result
    rows = result.reshape(count, result.size // max(count, 1))
    if result.dtype not in ("float32", "float64") or not rows.flags.carray:
        return np.count_nonzero(rows, axis=1)
    counts = np.empty(count, np.int64)
    count_nonzeros(rows, counts)
    return counts


def _info(data, parts, result, radii, info):
    """The report, in the caller's order."""
    batch = () if parts.whole else data.batch
    radii = _of_groups(data, parts, radii)
    kept = radii > 0.0
    mask = _groups.mask(kept, parts, data)
    if batch == ():
        status, threshold, level, count = info[0, :4].tolist()
        nnz = int(_count_nonzeros(result, 1)[0])
        return BilevelInfo(radii, kept, mask, threshold, level, nnz, int(count), status != m.CAPPED)
    status, threshold, level, count = (info[:, k].reshape(batch) for k in range(4))
    nnz = _count_nonzeros(result, math.prod(batch)).reshape(batch)
    return BilevelInfo(
        radii, kept, mask, threshold, level, nnz, count.astype(np.int64), status != m.CAPPED
    )


@takes_tensors
def project_l1inf_ball(
    x: ArrayLike,
    radius: ArrayLike,
    *,
    groups: Any = "columns",
    out: Any = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    check_finite: bool = True,
    full_output: bool = False,
) -> Any:
    """Project matrices onto the ℓ1,∞ ball, exactly.

    Solves ``argmin ‖x − y‖_F  subject to  Σ_g max_{i ∈ g} |x_i| ≤ radius``: the nearest
    matrix for which the largest magnitudes of the groups add up to at most `radius`.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., M, N)
        The matrix, or a batch of matrices, each projected by itself.
    radius : float or array_like of float64
        Radius of the ball, at least 0; infinity bounds nothing.  Broadcasts against the batch.
    groups : {"columns", "rows", "diagonals"}, (int, int) or array_like, default "columns"
        The groups, as for `project_bilevel`.
    out : ndarray, optional
        Where the result goes, of x's shape and the result's dtype; may be x itself.
    overwrite_x : bool, default False
        Permission to use the memory of x for the result.
    workers : int, optional
        Number of threads; None is the context's value, see `set_workers`.
    check_finite : bool, default True
        Raise ValueError where x holds NaN or inf.  Without the check such a matrix
        becomes NaN.
    full_output : bool, default False
        Return ``(result, info)``.

    Returns
    -------
    ndarray
        The projected array, of x's shape and floating dtype (float64 for integers).
    info : BilevelInfo
        Only with ``full_output=True``; ``threshold`` is θ, what each kept group loses.

    Raises
    ------
    ValueError
        If `radius` is negative or does not broadcast, or x is not finite;
        `groups`, `workers` and `out` as for `project_bilevel`.
    TypeError
        If x is complex, masked or sparse, or an argument has the wrong type.

    Warns
    -----
    ConvergenceWarning
        If the cap on the rounds was hit.

    See Also
    --------
    project_bilevel : With `radius`, a point of the same ball: cheaper, not the nearest.

    Notes
    -----
    The solution clips each group at a bound u_g.  Every group that is kept loses the same
    sum, ``Σ max(|y_i| − u_g, 0) = θ``, groups with ``Σ|y_i| ≤ θ`` vanish, and ``Σ u_g = radius``.
    Newton's method on θ and the u_g together ends after finitely many rounds, mostly fewer
    than 10, of one or two passes over the groups not yet dropped.  Memory: groups other than
    rows (columns in Fortran order) are gathered once, and labels are sorted.  The bounds add up to
    the radius, however small it is; each is good to the rounding of its group's sum and of the
    radius.  A matrix in the ball is returned bit for bit.  The result has the same bits for any
    number of workers.

    For an x on a GPU, the result and the report's arrays lie there too, and labels must.  The
    call waits for the GPU if `check_finite` is true, or to learn the largest label.

    References
    ----------
    .. [1] A. Quattoni, X. Carreras, M. Collins, T. Darrell, "An efficient projection for
       l1,∞ regularization", ICML 2009, :doi:`10.1145/1553374.1553484`.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import project_l1inf_ball
    >>> project_l1inf_ball(np.array([[3.0, -0.5], [2.0, 0.5]]), 2.0)
    array([[2., 0.],
           [2., 0.]])
    """
    if _dispatch.on_device(x):
        from ._cuda import l1inf

        resolve_workers(workers)
        return l1inf.project(
            x, radius, groups, _MOST_ROUNDS, out, overwrite_x, check_finite, full_output
        )
    data = _groups.matrices(x)
    parts = _groups.parse(groups, data)
    batch = () if parts.whole else data.batch
    radii = _checks.of_batch(radius, "radius", batch, 0.0, math.inf, ">= 0")
    run = partial(_l1inf, parts, data.slack, check_finite)
    return _project(
        data, x, parts, run, radii, out, overwrite_x, check_finite, workers, full_output
    )


def _l1inf(parts, slack, check_finite, matrices, out, radii, info, workers):
    """The exact ℓ1,∞ projection of matrices."""
    if matrices[0].nbytes < _groups.PARALLEL_FROM:
        workers = 1
    state = np.empty((kernels_of_l1inf.FIELDS, parts.number))
    in_order = kernels_of_lists.lie_in_order(*parts.layout[:3], matrices.shape[2])
    room = np.empty(0 if in_order else matrices[0].size, matrices.dtype)
    kernels_of_l1inf.project(
        kernels_of_l1inf.addresses(matrices.dtype), matrices, *parts.layout,
        *_groups.listed(matrices.shape[1:], parts), room, state, slack, _MOST_ROUNDS, out, radii,
        info, workers, team(workers),
    )  # fmt: skip
    _report_nonfinite(check_finite, out, radii, info)


def _report_nonfinite(check_finite, out, radii, info):
    """Raise if a matrix is not finite, or let NaN be all that comes of it."""
    failed = info[:, STATUS] == m.NONFINITE
    if failed.any():
        if check_finite:
            raise _checks.not_finite()
        out[failed] = radii[failed] = info[failed, THRESHOLD : REACHED + 1] = math.nan


@takes_tensors
def level_for_groups(
    x: ArrayLike, n_groups: ArrayLike, *, groups: Any = "columns", inner: str = "linf"
) -> Any:
    """The largest level at which `project_bilevel` keeps at most `n_groups` groups, to rounding.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., M, N)
        The matrix, or a batch of matrices.
    n_groups : int or array_like of int
        Number of groups wanted, at least 1; broadcasts against the batch.
    groups : {"columns", "rows", "diagonals"}, (int, int) or array_like, default "columns"
        The groups, the same as for `project_bilevel`.
    inner : {"linf", "l2", "l1"}, default "linf"
        The norm of a group, the same as for `project_bilevel`: the level of other norms keeps
        another number of groups.

    Returns
    -------
    ndarray of float64, or float64
        One level a matrix (one for all with labels of x's full shape).  For an x on a GPU,
        an array there; the call waits for the GPU.

    Raises
    ------
    ValueError
        If `n_groups` is below 1 or does not broadcast, or x is not finite or has fewer than
        two dimensions; `groups` and `inner` as for `project_bilevel`.
    TypeError
        If `n_groups` is no integer or lies on a GPU, or x is complex, masked or sparse.

    See Also
    --------
    level_for_nnz : The same for the entries of a vector.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import level_for_groups, project_bilevel
    >>> y = np.random.default_rng(0).standard_normal((64, 64))
    >>> x, info = project_bilevel(y, level_for_groups(y, 5, groups=(8, 8)), groups=(8, 8),
    ...                           full_output=True)
    >>> info.kept.shape, info.kept.sum()
    ((8, 8), np.int64(5))
    """
    wanted = _checks.counts(n_groups, "n_groups")
    if _dispatch.on_device(x):
        from ._cuda import bilevel as on_gpu

        return on_gpu.level_for_groups(x, wanted, groups, inner)
    data = _groups.matrices(x)
    parts = _groups.parse(groups, data)
    norm = INNER[_checks.choose(inner, "inner", INNER)]
    batch = () if parts.whole else data.batch
    counts = _checks.per_batch(wanted, "n_groups", batch, 1, math.inf, ">= 1")
    read = parts.seen(_groups.source(data))
    if not read.size:
        return np.full(batch, max(parts.number, 1), np.float64)[()]
    norms = np.empty((len(read), parts.number), _groups.dtype_of_norms(read, parts, norm))
    for z, own in zip(read, norms, strict=True):
        own[:], _ = _groups.norms(z, parts, norm, 1)  # a level has no unit
    if not np.isfinite(norms).all():
        raise ValueError("x must be finite, got NaN or inf")
    return levels_of_rows(norms, counts, data.slack).reshape(batch)[()]


def largest_groups(x, count, groups, inner, workers):
    """Mask of the entries in the `count` groups of a finite matrix that have the largest norms."""
    data = _groups.matrices(x)
    parts = _groups.parse(groups, data)
    norm = INNER[_checks.choose(inner, "inner", INNER)]
    workers = resolve_workers(workers)
    kept = []
    for z in parts.seen(_groups.source(data)):
        norms, _ = _groups.norms(z, parts, norm, workers)
        norms = _groups.to_caller(norms, parts, data)
        largest = np.zeros(norms.size, bool)
        largest[np.argsort(-norms, axis=None, kind="stable")[:count]] = True
        kept.append(largest.reshape(norms.shape))
    kept = np.array(kept, bool).reshape(*data.batch, *parts.shape)
    return _groups.mask(kept, parts, data)
