"""Choosing a level: from a number of nonzeros, or from Hoyer's sparseness."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _checks, projections
from . import _math as m
from ._cpu import levels as kernels
from ._cpu import passes
from ._cpu.arrays import LOG
from ._dispatch import takes_tensors

_BYTES = 1 << 20  # of the rows whose projections are kept at a time


@takes_tensors
def level_for_nnz(
    x: ArrayLike, nnz: ArrayLike, *, axis: int | None = -1, nonneg: bool = False
) -> Any:
    """The largest level at which `project_cai` leaves at most `nnz` nonzeros, to rounding.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    nnz : int or array_like of int
        Number of nonzeros wanted, at least 1; broadcasts against the slices' shape.
    axis : int or None, default -1
        The axis along which the slices lie; None takes the whole array as one vector.
    nonneg : bool, default False
        For ``project_cai(..., nonneg=True)``: only positive entries count.

    Returns
    -------
    ndarray of float64, or float64
        One level a slice, in [1, n].  For an array on a GPU, an array there; the call waits
        for the GPU.

    Raises
    ------
    ValueError
        If `nnz` is below 1 or does not broadcast, or `x` holds NaN or inf.
    TypeError
        If `nnz` is no integer or lies on a GPU, or `x` is complex, masked, or a sparse container.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Notes
    -----
    The edge is the Hoyer score of ``max(|x| − a, 0)``, where a is the magnitude after the
    `nnz` largest (with `nonneg` of ``max(x − a, 0)``, and a the entry); where rounding would
    let that entry in, the level is lowered by its last bit (2⁻²⁴ of it for float32 on the
    CPU), or eight times as much, and so on, with a stop just past the slack of "already
    feasible", until the projection itself keeps it out.  Slightly higher levels may
    leave no more either: entries within the rounding error of the threshold become zero.
    O(n) a slice.  If at least `nnz` entries tie at the top the level starts at `nnz`
    (`project_cai` then keeps the first of them).  If the slice has no more nonzeros than
    wanted the level is n.  Where the largest entry dwarfs the others, some numbers cannot be
    had: levels within the slack of "already feasible" keep all (1e-6 of the level in
    float32, 1e-14 in float64), and the next ones may keep far fewer.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import level_for_nnz, project_cai
    >>> y = np.array([3.0, -2.0, 1.0, 0.5])
    >>> level = level_for_nnz(y, 2)
    >>> level.round(3), np.count_nonzero(project_cai(y, level))
    (np.float64(1.8), np.int64(2))
    """
    s = _checks.slices(x, axis)
    wanted = _checks.counts(nnz, "nnz")
    if s.home is not None:
        from ._cuda import levels as on_gpu

        counts = _checks.parameter(wanted, "nnz", s, 1, what=">= 1")
        return on_gpu.level_for_nnz(s, counts, bool(nonneg))
    counts = _checks.per_slice(wanted, "nnz", s, 1, what=">= 1")
    if (turn := _checks.in_memory_order(s)) is not None:
        turned, order = turn
        counts = _checks.as_they_lie(counts, s, order)
        return _checks.as_given(_levels(turned, counts, nonneg), s, order)
    return _levels(s, counts, nonneg).reshape(s.batch)[()]


def _levels(s, counts, nonneg):
    """One a slice."""
    z = _checks.rows(s)
    if not passes.all_finite(z.reshape(-1)):
        raise ValueError("x must be finite, got NaN or inf")
    return levels_of_rows(z, counts, s.slack, bool(nonneg))


def levels_of_rows(z, counts, tol, nonneg=False):
    """The largest levels, to rounding, that leave the rows at most so many nonzeros."""
    some = max(_BYTES // max(z.shape[1] * z.itemsize, 1), 1)  # at a time: they are projected
    room, result = np.empty_like(z[:some]), np.empty(len(z))
    for i in range(0, len(z), some):
        part = slice(i, i + some)
        _levels_of_some(z[part], counts[part], tol, nonneg, room, result[part])
    return result


def _levels_of_some(z, counts, tol, nonneg, room, result):
    """Fill in the levels of rows; `room` for as many is scratch."""
    levels, margin = np.empty(len(z)), 0.0
    kernels.edge_levels(np.maximum(z, 0) if nonneg else z, counts, room[0], levels)
    # Rounding, or the slack of "already feasible", may let the entry at the edge in: ask the
    # projection itself.
    rows, numbers = z, np.arange(len(z))
    while len(numbers):
        table, out = np.zeros((len(rows), LOG)), room[: len(rows)]
        kernels.lower(levels, margin, numbers, result, table)
        projections.project_rows(m.CAI, not nonneg, tol, True, True, rows, out, table, 1)
        numbers = numbers[: kernels.find_dense(out, counts, result, numbers)]
        if len(numbers) < len(rows):
            rows = z[numbers]
        margin = m.wider(margin, z.itemsize)


def level_for_sparseness(sparseness: ArrayLike, n: ArrayLike) -> Any:
    """The level, ``(‖x‖₁/‖x‖₂)²``, of vectors with a given Hoyer sparseness.

    Parameters
    ----------
    sparseness : float or array_like of float64
        Hoyer's sparseness, in [0, 1].
    n : int or array_like of int
        Length of the vectors, at least 1; broadcasts against `sparseness`.

    Returns
    -------
    ndarray of float64, or float64
        ``(√n − sparseness·(√n − 1))²``, in [1, n].

    Raises
    ------
    ValueError
        If `sparseness` is outside [0, 1], `n` is below 1, or they do not broadcast.
    TypeError
        If they are not real numbers and integers.

    References
    ----------
    .. [1] P. O. Hoyer, "Non-negative matrix factorization with sparseness constraints",
       J. Mach. Learn. Res. 5, 1457-1469 (2004).

    Examples
    --------
    >>> from conehoyer import level_for_sparseness
    >>> level_for_sparseness(0.5, 16), level_for_sparseness(1.0, 16)
    (np.float64(6.25), np.float64(1.0))
    """
    values, sizes = _checks.as_array(sparseness, "sparseness"), _checks.integers(n, "n")
    if values.dtype.kind not in "fiu":
        raise TypeError(f"sparseness must be real numbers, got {_checks.told(sparseness, values)}")
    bad = ~((values >= 0.0) & (values <= 1.0))
    if bad.any():
        raise ValueError(f"sparseness must be in [0, 1], got {values[bad].flat[0]}")
    if (sizes < 1).any():
        raise ValueError(f"n must be >= 1, got {sizes[sizes < 1].flat[0]}")
    try:
        values, sizes = np.broadcast_arrays(values.astype(float), sizes.astype(float))
    except ValueError:
        raise ValueError(
            f"sparseness and n must broadcast, got shapes {values.shape} and {sizes.shape}"
        ) from None
    levels, rests = np.empty(values.size), np.empty(values.size)
    kernels.levels_of_sparseness(values.ravel(), sizes.ravel(), levels, rests)
    return (levels + rests).reshape(values.shape)[()]
