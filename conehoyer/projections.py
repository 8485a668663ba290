"""Projections of vectors: the CAI cone, Hoyer's sparseness, the l1 ball, the simplex."""

import math
from functools import lru_cache, partial

import numpy as np

from . import _checks, _threads
from . import _math as m
from ._cpu import across, classic, engine, passes, short
from ._cpu.arrays import LOG, NORM, REACHED, REST, STATUS, THRESHOLD, WANTED
from ._cpu.levels import count_nonzeros, levels_of_norms, levels_of_sparseness
from ._cpu.waiting import HELD
from ._dispatch import takes_tensors
from ._results import ProjectionInfo, warn_capped
from ._threads import (
    end_now,
    just_ended,
    numbered_parts,
    resolve_workers,
    run_parts,
    run_split,
    team,
)

SHARED_FROM = 1 << 21  # bytes of a slice below which one thread is faster than several
WOKEN_FROM = 1 << 23  # the same where the others have to be woken up first
_MOST = np.finfo(float).max
_level_of_sparseness = lru_cache(m.level_of_sparseness)  # in Python it takes half of a short call


@takes_tensors
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
    """Project onto the cone of vectors with a bounded Hoyer score.

    Each slice y becomes the solution x of ::

        minimise  ‖x − y‖₂   subject to   (‖x‖₁ / ‖x‖₂)² <= level

    The set is a cone but not convex; the projection is exact all the same, and unique
    unless more than `level` entries tie at the top.  It is a soft threshold, rescaled: the
    support keeps its signs, and the smaller the level, the fewer nonzeros remain.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    level : float or array_like of float64
        Bound on `hoyer_score` of the result, at least 1; it broadcasts against the
        slices' shape.  At 1 only the largest entry stays; from n on nothing changes.
        Note that the bound is on the score of ``|x|``, not on the signed `cai_score`.
    axis : int or None, default -1
        The slices along this axis are projected one by one; None takes the whole array
        as one vector.
    method : {"cfp", "iterative"}, default "cfp"
        "cfp" finds the threshold first and projects once (Algorithm 2 of [1]_).
        "iterative" interpolates and clips until the score is reached (Algorithm 1
        of [1]_), to a relative tolerance of 1e-13 and in at most 1000 iterations.
    nonneg : bool, default False
        Project onto the nonnegative vectors with that score: negative entries become
        zero, no signs are given back.
    out : ndarray, optional
        Where the result goes: the shape of `x` and the dtype of the result.  May be `x`
        itself.  Its content is undefined if an error is raised, unless it is `x`.
    overwrite_x : bool, default False
        Permission to write the result over `x`.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.  The result is
        the same bits for every number.
    check_finite : bool, default True
        Raise on NaN and inf.  Otherwise a slice that holds any comes back as NaN.
    full_output : bool, default False
        Return a `ProjectionInfo` as well.

    Returns
    -------
    x : ndarray, shape and floating dtype of the input
        The projection; integers and booleans give float64.
    info : ProjectionInfo
        Only with ``full_output=True``: threshold, level reached, number of nonzeros,
        passes, whether it converged, in the slices' shape.

    Raises
    ------
    ValueError
        If `level` is below 1 or does not broadcast, `workers` is out of range, `method` is
        unknown, `out` has the wrong shape or dtype or is read-only, or `x` holds NaN or inf
        and `check_finite` is true.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or an
        argument has the wrong type.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Warns
    -----
    ConvergenceWarning
        If a cap on the passes was hit.

    See Also
    --------
    level_for_nnz : The level that leaves a wanted number of nonzeros.
    level_for_sparseness : The level of a Hoyer sparseness.
    project_hoyer : The same direction, with prescribed norms.

    Notes
    -----
    With ``a = |y|`` and ``p = max(a − τ, 0)``, where τ >= 0 solves ``‖p‖₁² = level·‖p‖₂²``,
    the projection is ``x = sign(y)·p·⟨p, a⟩/⟨p, p⟩``.  The time is linear in n: usually one pass
    that reads and one that writes; at most about 400 passes on any input.  The result may have
    larger entries than the input: what exceeds the largest float is inf.

    A slice that satisfies the constraint (to 1e-14 relative in float64, 1e-6 in float32,
    twice the machine epsilon in 16-bit formats) is returned bit for bit, except by "cfp" at
    level 1, which has no such slack: there even entries too small to count in the score go.
    Projecting twice changes nothing, and the zero vector stays.  If more than `level`
    entries tie at the top, no threshold exists; among the closest points the one is returned
    that keeps the first ``ceil(level)`` of them, all equal but the last.  Entries within the
    rounding error of the threshold become zero.

    References
    ----------
    .. [1] "A fast and scalable extended Hoyer projection for structured neural network
       sparsity", anonymous manuscript under review.  Its Algorithm 2 lacks the test for
       a feasible input.
    .. [2] P. O. Hoyer, "Non-negative matrix factorization with sparseness constraints",
       J. Mach. Learn. Res. 5, 1457-1469 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import cai_score, hoyer_score, project_cai
    >>> y = np.array([3.0, -2.0, 1.0, 0.5])
    >>> hoyer_score(y).round(3)
    np.float64(2.965)
    >>> x = project_cai(y, 2.0)
    >>> x.round(3)
    array([ 3.206, -1.718,  0.23 ,  0.   ])
    >>> hoyer_score(x).round(12), cai_score(x).round(3)
    (np.float64(2.0), np.float64(0.222))
    """
    s = _checks.slices(x, axis)
    _checks.choose(method, "method", ("cfp", "iterative"))
    levels = _checks.parameter(level, "level", s, 1.0, what=">= 1")
    run = None
    if method == "iterative" and s.home is not None:
        from ._cuda import iterative

        run = iterative.KERNELS
    elif method == "iterative":
        run = partial(classic.iterative_rows, not nonneg, s.slack)
    return _project(
        s, x, m.CAI, not nonneg, levels, None, None, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


@takes_tensors
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
    """Project onto the vectors with prescribed l1 and l2 norms.

    Each slice y becomes the solution x of ::

        minimise  ‖x − y‖₂   subject to   ‖x‖₁ = l1,  ‖x‖₂ = l2

    Both are equalities: where the constraint asks for more than the input has, the result
    is denser than the input.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    sparseness : float or array_like of float64, optional
        Hoyer's sparseness of the result, in [0, 1]; it stands for
        ``l1 = l2*(sqrt(n) - sparseness*(sqrt(n) - 1))``.  Without `l2` the norm of each
        slice is kept.  Broadcasts against the slices' shape, as `l1` and `l2` do.
    l1, l2 : float or array_like of float64, optional
        The norms wanted, in the data's unit.  `l1` needs `l2`, and
        ``l2 <= l1 <= sqrt(n)*l2``.
    axis : int or None, default -1
        The slices along this axis are projected one by one; None takes the whole array
        as one vector.
    method : {"cfp", "alternating"}, default "cfp"
        "cfp" is exact and fast.  "alternating" is Hoyer's algorithm [1]_: it projects in
        turn onto the sphere and, exactly, onto the simplex [3]_, in at most 1000 rounds;
        it reaches the same point [2]_.
    nonneg : bool, default False
        Look for x among the nonnegative vectors, closest to the signed y.
    out : ndarray, optional
        Where the result goes: the shape of `x` and the dtype of the result.  May be `x`
        itself.  Its content is undefined if an error is raised, unless it is `x`.
    overwrite_x : bool, default False
        Permission to write the result over `x`.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.  The result is
        the same bits for every number.
    check_finite : bool, default True
        Raise on NaN and inf.  Otherwise a slice that holds any comes back as NaN.
    full_output : bool, default False
        Return a `ProjectionInfo` as well.

    Returns
    -------
    x : ndarray, shape and floating dtype of the input
        The projection; integers and booleans give float64.
    info : ProjectionInfo
        Only with ``full_output=True``: threshold, level reached, number of nonzeros,
        passes, whether it converged, in the slices' shape.

    Raises
    ------
    ValueError
        If the norms are negative, infinite, missing or impossible, `sparseness` is outside
        [0, 1], one of them does not broadcast, `workers` is out of range, `method` is
        unknown, `out` has the wrong shape or dtype or is read-only, or `x` holds NaN or inf
        and `check_finite` is true.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or an
        argument has the wrong type.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Warns
    -----
    ConvergenceWarning
        If a cap on the passes was hit.

    See Also
    --------
    project_cai : Bound the score, at the closest norm.

    Notes
    -----
    ``x = sign(y)·p·l2/‖p‖₂`` with ``p = max(|y| − τ, 0)`` and ``‖p‖₁/‖p‖₂ = l1/l2``, where
    τ may be negative.  Zero entries that become nonzero get the sign of the zero: + for
    0.0, − for −0.0.  Linear in n.  Ties at the top are broken as in `project_cai`; for
    sparseness 0 every entry gets the same size, and a zero vector with `l2` > 0 counts as n
    ties.

    A slice that has the score and the norm (to 1e-14 relative in float64, 1e-6 in float32,
    twice the machine epsilon in 16-bit formats) is returned bit for bit.  Near sparseness 0
    the scores of vectors hardly differ: so ``np.ones(8000, np.float32)`` stays at
    ``sparseness=4e-7``, although the last entry of the exact result is 8 % smaller.

    References
    ----------
    .. [1] P. O. Hoyer, "Non-negative matrix factorization with sparseness constraints",
       J. Mach. Learn. Res. 5, 1457-1469 (2004).
    .. [2] M. Thom and G. Palm, "Sparse activity and sparse connectivity in supervised
       learning", J. Mach. Learn. Res. 14, 1091-1143 (2013).
    .. [3] L. Condat, "Fast projection onto the simplex and the l1 ball", Math. Program.
       158, 575-585 (2016), :doi:`10.1007/s10107-015-0946-6`.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import hoyer_sparseness, project_hoyer
    >>> y = np.array([3.0, -2.0, 1.0, 0.5])
    >>> x = project_hoyer(y, 0.6)
    >>> x.round(3)
    array([ 3.333, -1.762,  0.19 ,  0.   ])
    >>> hoyer_sparseness(x).round(12), (np.linalg.norm(x) / np.linalg.norm(y)).round(12)
    (np.float64(0.6), np.float64(1.0))
    """
    s = _checks.slices(x, axis)
    _checks.choose(method, "method", ("cfp", "alternating"))
    levels, rests, norms = _hoyer_parameters(s, sparseness, l1, l2)
    run = None
    if method == "alternating":
        if s.home is not None:
            raise ValueError(f"on the GPU method must be 'cfp', got {method!r}")
        run = partial(classic.alternating_rows, not nonneg, s.slack)
    return _project(
        s, x, m.HOYER, not nonneg, levels, rests, norms, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


def _hoyer_parameters(s, sparseness, l1, l2):
    """Level (L1/L2)², its rest and norm L2 of the slices; a negative L2 stands for the input's.

    For the rest of a level see `_math`.
    """
    n = float(max(s.length, 1))
    if l1 is None and isinstance(sparseness, float) and 0.0 <= sparseness <= 1.0:
        # The usual calls, without the array arithmetic that costs more than the kernel.
        if l2 is None or (isinstance(l2, float) and 0.0 <= l2 <= _MOST):
            level, rest = _level_of_sparseness(sparseness, n)
            return level, rest, -1.0 if l2 is None else float(l2)
    norms = None
    if l2 is not None:
        norms = _checks.per_slice(l2, "l2", s, 0.0, _MOST, "finite and >= 0")
    if (sparseness is None) == (l1 is None):
        raise ValueError(
            "give either sparseness (with or without l2) or both l1 and l2, got "
            f"sparseness={sparseness!r}, l1={l1!r}, l2={l2!r}"
        )
    count = math.prod(s.batch)
    levels, rests = np.empty(count), np.empty(count)
    if l1 is None:
        values = _checks.per_slice(sparseness, "sparseness", s, 0.0, 1.0, "in [0, 1]")
        levels_of_sparseness(values, np.full(count, n), levels, rests)
    else:
        if norms is None:
            raise ValueError(f"l1 needs l2 as well, got l1={l1!r}, l2=None")
        sums = _checks.per_slice(l1, "l1", s, 0.0, _MOST, "finite and >= 0")
        zero = (sums == 0.0) & (norms == 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = np.where(zero, 1.0, sums / norms)
        bad = (ratios < 1.0 - 1e-12) | (ratios > math.sqrt(n) * (1.0 + 1e-12))
        if bad.any() and s.length:
            i = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"no vector of length {s.length} has these norms: "
                f"l2 <= l1 <= sqrt({s.length})*l2 is needed, got l1={sums[i]}, l2={norms[i]}"
            )
        levels_of_norms(sums, norms, n, levels, rests)
    if norms is None:
        norms = np.full(1, -1.0)
    return tuple(map(_checks.number_if_one, (levels, rests, norms)))


@takes_tensors
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
    """Project onto the l1 ball.

    Each slice y becomes the solution x of ::

        minimise  ‖x − y‖₂   subject to   ‖x‖₁ <= radius

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    radius : float or array_like of float64, default 1.0
        Radius of the ball, in the data's unit, at least 0; broadcasts against the slices'
        shape.
    axis : int or None, default -1
        The slices along this axis are projected one by one; None takes the whole array
        as one vector.
    method : {"newton", "condat", "sort"}, default "newton"
        "newton" is this library's own; "condat" is Condat's algorithm [1]_ and "sort" the
        classical one, for comparison.  All are exact; those two as long as no sum overflows.
    nonneg : bool, default False
        Project onto the nonnegative part of the ball: negative entries become zero.
    out : ndarray, optional
        Where the result goes: the shape of `x` and the dtype of the result.  May be `x`
        itself.  Its content is undefined if an error is raised, unless it is `x`.
    overwrite_x : bool, default False
        Permission to write the result over `x`.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.  The result is
        the same bits for every number.
    check_finite : bool, default True
        Raise on NaN and inf.  Otherwise a slice that holds any comes back as NaN.
    full_output : bool, default False
        Return a `ProjectionInfo` as well.

    Returns
    -------
    x : ndarray, shape and floating dtype of the input
        The projection; integers and booleans give float64.
    info : ProjectionInfo
        Only with ``full_output=True``: threshold, the l1 norm reached, number of nonzeros,
        passes, whether it converged, in the slices' shape.

    Raises
    ------
    ValueError
        If `radius` is negative or does not broadcast, `workers` is out of range, `method` is
        unknown, `out` has the wrong shape or dtype or is read-only, or `x` holds NaN or inf
        and `check_finite` is true.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or an
        argument has the wrong type.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Warns
    -----
    ConvergenceWarning
        If a cap on the passes was hit.

    See Also
    --------
    project_simplex : The sum is given, the entries are nonnegative.

    Notes
    -----
    ``x = sign(y)·max(|y| − τ, 0)`` with τ >= 0 such that ``‖x‖₁ = radius``.  "newton" is
    linear in n: usually one pass that reads and one that writes.  "condat" is linear in practice,
    "sort" takes O(n log n).  A slice inside the ball (to 1e-14 relative in float64, 1e-6
    in float32) is returned bit for bit; radius 0 gives zeros.  Ties need no rule.

    References
    ----------
    .. [1] L. Condat, "Fast projection onto the simplex and the l1 ball", Math. Program.
       158, 575-585 (2016), :doi:`10.1007/s10107-015-0946-6`.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import project_l1_ball
    >>> project_l1_ball(np.array([3.0, -2.0, 1.0, 0.5]), 3.0)
    array([ 2., -1.,  0.,  0.])
    >>> project_l1_ball([[3.0, 1.0], [0.5, 0.25]], radius=[1.0, 2.0])
    array([[1.  , 0.  ],
           [0.5 , 0.25]])
    """
    s = _checks.slices(x, axis)
    radii = _checks.parameter(radius, "radius", s, 0.0, what=">= 0")
    run = _ball_method(s, m.L1, not nonneg, method)
    return _project(
        s, x, m.L1, not nonneg, radii, None, None, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


@takes_tensors
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
    """Project onto the simplex.

    Each slice y becomes the solution x of ::

        minimise  ‖x − y‖₂   subject to   x >= 0,  Σx = total

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    total : float or array_like of float64, default 1.0
        Sum of the result, in the data's unit, at least 0; broadcasts against the slices'
        shape.
    axis : int or None, default -1
        The slices along this axis are projected one by one; None takes the whole array
        as one vector.
    method : {"newton", "condat", "sort"}, default "newton"
        "newton" is this library's own; "condat" is Condat's algorithm [1]_ and "sort" the
        classical one, for comparison.  All are exact; those two as long as no sum overflows.
    out : ndarray, optional
        Where the result goes: the shape of `x` and the dtype of the result.  May be `x`
        itself.  Its content is undefined if an error is raised, unless it is `x`.
    overwrite_x : bool, default False
        Permission to write the result over `x`.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.  The result is
        the same bits for every number.
    check_finite : bool, default True
        Raise on NaN and inf.  Otherwise a slice that holds any comes back as NaN.
    full_output : bool, default False
        Return a `ProjectionInfo` as well.

    Returns
    -------
    x : ndarray, shape and floating dtype of the input
        The projection; integers and booleans give float64.
    info : ProjectionInfo
        Only with ``full_output=True``: threshold, the sum reached, number of nonzeros,
        passes, whether it converged, in the slices' shape.

    Raises
    ------
    ValueError
        If `total` is negative, infinite or does not broadcast, `workers` is out of range,
        `method` is unknown, `out` has the wrong shape or dtype or is read-only, or `x` holds
        NaN or inf and `check_finite` is true.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or an
        argument has the wrong type.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Warns
    -----
    ConvergenceWarning
        If a cap on the passes was hit.

    See Also
    --------
    project_l1_ball : The signs are free, the sum is a bound.

    Notes
    -----
    ``x = max(y − τ, 0)`` with τ, of any sign, such that ``Σx = total``.  Costs as for
    `project_l1_ball`.  A slice in the simplex (to 1e-14 relative in float64, 1e-6 in
    float32) is returned bit for bit; total 0 gives zeros.  Ties need no rule.  An empty
    slice stays empty, whatever the total.  Entries that are to become zero may be large
    negative numbers, down to the smallest float; not −inf.

    References
    ----------
    .. [1] L. Condat, "Fast projection onto the simplex and the l1 ball", Math. Program.
       158, 575-585 (2016), :doi:`10.1007/s10107-015-0946-6`.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import project_simplex
    >>> project_simplex(np.array([0.5, 0.25, -1.0]))
    array([0.625, 0.375, 0.   ])
    """
    s = _checks.slices(x, axis)
    totals = _checks.parameter(total, "total", s, 0.0, _MOST, "finite and >= 0")
    run = _ball_method(s, m.SIMPLEX, False, method)
    return _project(
        s, x, m.SIMPLEX, False, totals, None, None, run,
        out, overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip


def _ball_method(s, kind, absolute, method):
    """The rows function of Condat's algorithm or of sorting; None for the engine."""
    _checks.choose(method, "method", ("newton", "condat", "sort"))
    if method == "newton":
        return None
    if s.home is not None:
        raise ValueError(f"on the GPU method must be 'newton', got {method!r}")
    return partial(_ball_rows, kind, absolute, s.slack, method == "sort")


def _ball_rows(kind, absolute, tol, by_sorting, z, target, table, first, last):
    """Rows first..last−1 by sorting or by Condat's algorithm."""
    part = z[first:last]
    if by_sorting:
        values = np.sort(np.abs(part) if absolute else part, axis=-1)
    else:
        values = np.empty_like(part)
    classic.ball_rows(
        kind, absolute, tol, by_sorting, part, values, target[first:last],
        table[first:last], 0, last - first,
    )  # fmt: skip


def _project(
    s, x, kind, absolute, levels, rests, norms, run,
    out, overwrite_x, workers, check_finite, full_output,
):  # fmt: skip
    """Project all slices by the engine, or by `run`: a rows function, on the GPU kernels."""
    workers, check_finite = resolve_workers(workers), bool(check_finite)
    if s.home is not None:
        from ._cuda import projections as on_gpu

        return on_gpu.project(
            s, x, kind, absolute, levels, rests, norms, run,
            out, overwrite_x, check_finite, full_output,
        )  # fmt: skip
    if (turn := _checks.in_memory_order(s)) is not None:
        return _project_turned(
            s, *turn, x, kind, absolute, levels, rests, norms, run,
            out, overwrite_x, workers, check_finite, full_output,
        )  # fmt: skip
    cubes = None if s.plain or run is not None else _checks.across(s, x, out, overwrite_x)
    long = run is None and workers > 1 and _are_long(s, workers)
    shared = long and (s.length * s.work.itemsize >= WOKEN_FROM or just_ended())
    if cubes is not None and not shared:
        return _project_across(
            s, cubes, kind, absolute, levels, rests, norms, workers, check_finite, full_output
        )
    z = _checks.rows(s)
    z, goal = _checks.target(s, x, z, out, overwrite_x)
    if z.size == 0:
        return (goal.array, _empty_info(s)) if full_output else goal.array
    count = len(z)
    if goal.over_x and check_finite and (count > 1 or run is not None or not goal.in_place):
        if not passes.all_finite(z.reshape(-1)):
            raise _checks.not_finite()  # before any row is overwritten
    table = _table(count, levels, rests, norms, full_output)
    if not shared:
        more = 0 if run is None else 3  # the other methods are much more work
        workers = min(workers, count) if z.nbytes >= _threads.DEALT_FROM >> more else 1
    tol, whole = s.slack, not goal.in_place
    if shared:
        project_long(kind, absolute, tol, check_finite, whole, z, goal.rows, table, workers)
    elif run is None:
        project_rows(kind, absolute, tol, check_finite, whole, z, goal.rows, table, workers)
    else:
        run_split(partial(run, z, goal.rows, table), count, workers)
    if long:
        end_now()
    worst = _outcome(table, check_finite)
    if worst >= m.NONFINITE:
        _complain(table[:, STATUS], check_finite)
    result = _checks.deliver(s, goal)
    return (result, _info(s, goal.rows, result, table, worst)) if full_output else result


def _project_turned(
    s, turned, order, x, kind, absolute, levels, rests, norms, run,
    out, overwrite_x, workers, check_finite, full_output,
):  # fmt: skip
    """`_project`, with the axes as they lie in memory: there slices are read without a copy."""
    levels, rests, norms = (
        _checks.as_they_lie(values, s, order) if np.ndim(values) else values
        for values in (levels, rests, norms)
    )
    if out is not None:
        _checks.check_out(out, s.array.shape, s.dtype)
    given = turned.array if x is s.array else x
    done = _project(
        turned, given, kind, absolute, levels, rests, norms, run,
        None if out is None else np.asarray(out).transpose(order),
        overwrite_x, workers, check_finite, full_output,
    )  # fmt: skip
    result, info = done if full_output else (done, None)
    if out is not None:
        result = out
    elif overwrite_x and result is given:
        result = x
    else:
        result = result.transpose(np.argsort(order))
    if not full_output:
        return result
    fields = info.threshold, info.level, info.nnz, info.passes, info.converged
    return result, ProjectionInfo(*(_checks.as_given(values, s, order) for values in fields))


def _are_long(s, workers):
    """Whether threads may share each slice: fewer slices than workers, and long ones."""
    return s.length * s.work.itemsize >= SHARED_FROM and workers > math.prod(s.batch)


def _table(count, levels, rests, norms, full_output):
    """What the kernels are to do with each slice; a single one has room to tell of its passes."""
    logged = m.MAX_PASSES if full_output and count == 1 else 0
    table = np.zeros((count, LOG + logged))
    if logged:
        table[0, LOG:] = -1.0
    rows = slice(None) if count > 1 else 0  # one entry is filled in less time
    table[rows, WANTED] = levels
    if norms is not None:
        table[rows, NORM], table[rows, REST] = norms, rests
    return table


def project_rows(kind, absolute, tol, strict, whole, x, out, table, workers):
    """The rows of x, see `engine.project_rows`: short ones at first by `short`."""
    count, is_short = len(x), short.suits(x.shape[1], x.itemsize)
    rows = short.project_rows if is_short else engine.project_rows
    if workers == 1:
        rows(kind, absolute, tol, strict, whole, x, out, table, 0, count)
    else:
        task = partial(rows, kind, absolute, tol, strict, whole, x, out, table)
        run_split(task, count, workers)
    if is_short and _outcome(table, strict) == m.GO:
        short.address_of_engine(x.dtype)  # other kernels may use it as well from now on
        task = partial(engine.project_rows, kind, absolute, tol, strict, whole, x, out, table)
        run_split(task, count, workers)


def _outcome(table, strict):
    """See `engine.outcome`."""
    return table[0, STATUS] if len(table) == 1 else engine.outcome(table, strict)


def _project_across(
    s, cubes, kind, absolute, levels, rests, norms, workers, check_finite, full_output
):
    """Slices whose entries are not side by side: some at a time become rows."""
    z, target, result = cubes
    count, _, columns = z.shape
    in_place = np.may_share_memory(z, target)  # else they are apart
    if in_place and check_finite and not passes.all_finite(z.reshape(-1)):
        raise _checks.not_finite()
    table = _table(count * columns, levels, rests, norms, full_output)
    workers = workers if z.nbytes >= _threads.DEALT_FROM else 1
    width = across.columns_at_once(z, workers)
    parts = numbered_parts(count * -(-columns // width), workers)
    room = np.empty((len(parts), width, s.length), z.dtype)
    given = kind, absolute, s.slack, check_finite, z, target, table, room
    places = short.addresses(s.length, z.dtype)
    run_parts(partial(across.project_columns, places, *given), parts)
    if 0 in places and _outcome(table, check_finite) == m.GO:
        places = places[0], short.address_of_engine(z.dtype)
        run_parts(partial(across.project_columns, places, *given), parts)
    worst = _outcome(table, check_finite)
    if worst >= m.NONFINITE:
        _complain(table[:, STATUS], check_finite)
    return (result, _info(s, None, result, table, worst)) if full_output else result


def project_long(kind, absolute, tol, strict, whole, x, out, table, workers):
    """A few long slices, each by several threads."""
    places, desks = engine.places(x.dtype), team(workers)
    held = desks[:, HELD]  # for each thread, how many calls keep it awake between their parts
    held += 1
    try:
        engine.project_shared(places, kind, absolute, tol, whole, x, out, table, workers, desks)
    finally:
        held -= 1
    if _outcome(table, False) == m.GO:
        engine.project_rows(kind, absolute, tol, strict, whole, x, out, table, 0, len(x))


def _complain(status, check_finite):
    """Raise or warn if a slice is not finite or has not converged."""
    if check_finite and (status == m.NONFINITE).any():
        raise _checks.not_finite()
    warn_capped(np.count_nonzero(status == m.CAPPED), len(status))


def _info(s, rows, result, table, worst):
    """The report of the kernels, in the slices' shape; `worst` is the largest status."""
    if worst >= m.NONFINITE:
        table[table[:, STATUS] == m.NONFINITE, THRESHOLD : REACHED + 1] = math.nan
    if rows is not None and rows.dtype == result.dtype:
        counts = np.empty(len(rows), np.int64)
        count_nonzeros(rows, counts)
        nnz = counts.reshape(s.batch)[()]
    else:  # small entries may have become zero
        nnz = np.count_nonzero(np.asarray(result), axis=s.axis)  # also what a mask hides
    if s.batch == ():
        status, threshold, level, count = table[0, :LOG].tolist()
        if nnz == 0:
            level = 0.0  # that of zeros, whatever was wanted
        log = table[0, LOG : LOG + int(count)]  # a row of radius 0 was searched in vain
        support = log[log >= 0.0].astype(np.int64)
        return ProjectionInfo(threshold, level, int(nnz), int(count), status != m.CAPPED, support)
    status, threshold, level, count = (table[:, i].reshape(s.batch) for i in range(LOG))
    level[nnz == 0] = 0.0
    return ProjectionInfo(
        threshold.copy(), level.copy(), nnz, count.astype(np.int64), status != m.CAPPED
    )


def _empty_info(s):
    if s.batch == ():
        return ProjectionInfo(0.0, 0.0, 0, 0, True, np.empty(0, np.int64))
    zeros, counts = np.zeros(s.batch), np.zeros(s.batch, np.int64)
    return ProjectionInfo(zeros, zeros.copy(), counts, counts.copy(), np.ones(s.batch, bool))
