"""Scores of sparsity."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _checks
from . import _math as m
from ._cpu import scores as kernels
from ._dispatch import on_device, takes_tensors
from ._threads import resolve_workers, run_split

_PARALLEL_FROM = 1 << 22  # bytes below which one thread is faster


def _score(x, axis, keepdims, workers, kind):
    """The score of each slice."""
    s = _checks.slices(x, axis)
    workers = resolve_workers(workers)
    if s.home is not None:
        from ._cuda import scores as on_gpu

        return on_gpu.score(s, kind, keepdims)
    if (turn := _checks.in_memory_order(s)) is not None:
        turned, order = turn
        return _shaped(s, _checks.as_given(_scores(turned, kind, workers), s, order), keepdims)
    return _shaped(s, _scores(s, kind, workers), keepdims)


def _scores(s, kind, workers):
    """One a slice."""
    if s.array.nbytes < _PARALLEL_FROM:
        workers = 1
    cube = _checks.columns(s, kernels.LEAST)
    if cube is not None:
        count, _, width = cube.shape
        result, panels = np.empty(count * width), kernels.panels_of(width)
        task = partial(kernels.score_columns, cube, kind, panels, result)
        run_split(task, count * panels, workers)
        return result
    if s.axis is None and s.array.flags.f_contiguous:
        s = replace(s, array=s.array.T)  # their order does not matter
    z = _checks.rows(s)
    result = np.zeros(len(z))
    if z.size:
        run_split(partial(kernels.score_rows, z, kind, result), len(z), workers)
    elif kind == m.SPARSENESS:
        result[:] = 1.0
    return result


def _shaped(s, values, keepdims):
    values = values.reshape(s.batch)
    if keepdims:
        if s.axis is None:
            return values.reshape((1,) * s.array.ndim)
        return np.expand_dims(values, s.axis)
    return values[()]


@takes_tensors
def cai_score(
    x: ArrayLike, *, axis: int | None = -1, keepdims: bool = False, workers: int | None = None
) -> Any:
    """Cone alignment index: the squared sum over the sum of squares.

    ``(Σx)²/Σx²`` of each slice: n cos² of the angle to the diagonal, n for a constant
    vector, 0 for one orthogonal to it.  The sum is signed: entries of opposite sign
    cancel.  For the score that `project_cai` bounds, see `hoyer_score`.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    axis : int or None, default -1
        The axis along which the slices lie; None takes the whole array as one vector.
    keepdims : bool, default False
        Keep the axis, with length one.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.

    Returns
    -------
    ndarray of float64, or float64
        One number a slice; float64 for every input dtype, since a score of float16 data
        may exceed what float16 holds.  For an array on a GPU, an array there.

    Raises
    ------
    ValueError
        If `x` is no array: lists of different lengths; or `workers` is out of range.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or
        `workers` is no integer.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Notes
    -----
    The zero vector and an empty one have score 0.
    NaN and inf propagate as NaN.  Linear in n, and safe against overflow at any scale.

    References
    ----------
    .. [1] "A fast and scalable extended Hoyer projection for structured neural network
       sparsity", anonymous manuscript under review, eq. (1).

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import cai_score
    >>> cai_score(np.array([1.0, 1.0, 1.0, -1.0])), cai_score([[3.0, 0.0], [2.0, 2.0]])
    (np.float64(1.0), array([1., 2.]))
    """
    return _score(x, axis, keepdims, workers, m.SIGNED)


@takes_tensors
def hoyer_score(
    x: ArrayLike, *, axis: int | None = -1, keepdims: bool = False, workers: int | None = None
) -> Any:
    """Hoyer score: the squared ratio of the l1 norm to the l2 norm.

    ``(‖x‖₁/‖x‖₂)²`` of each slice, the `cai_score` of ``|x|``: 1 for one nonzero entry,
    n if all have the same magnitude.  It is the score that `project_cai` bounds.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    axis : int or None, default -1
        The axis along which the slices lie; None takes the whole array as one vector.
    keepdims : bool, default False
        Keep the axis, with length one.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.

    Returns
    -------
    ndarray of float64, or float64
        One number a slice; float64 for every input dtype, since a score of float16 data
        may exceed what float16 holds.  For an array on a GPU, an array there.

    Raises
    ------
    ValueError
        If `x` is no array: lists of different lengths; or `workers` is out of range.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or
        `workers` is no integer.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Notes
    -----
    The zero vector and an empty one have score 0.
    NaN and inf propagate as NaN.  Linear in n, and safe against overflow at any scale.

    References
    ----------
    .. [1] H. Yang, W. Wen and H. Li, "DeepHoyer: learning sparser neural network with
       differentiable scale-invariant sparsity measures", ICLR (2020).

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import hoyer_score
    >>> hoyer_score(np.array([1.0, 1.0, 1.0, -1.0])), hoyer_score(np.array([0.0, -2.0]))
    (np.float64(4.0), np.float64(1.0))
    """
    return _score(x, axis, keepdims, workers, m.MAGNITUDES)


@takes_tensors
def hoyer_sparseness(
    x: ArrayLike, *, axis: int | None = -1, keepdims: bool = False, workers: int | None = None
) -> Any:
    """The sparseness that Hoyer defined, between 0 and 1.

    ``(√n − ‖x‖₁/‖x‖₂)/(√n − 1)`` of each slice: 0 if all entries have the same magnitude,
    1 for one nonzero entry.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...)
        The data.
    axis : int or None, default -1
        The axis along which the slices lie; None takes the whole array as one vector.
    keepdims : bool, default False
        Keep the axis, with length one.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.

    Returns
    -------
    ndarray of float64, or float64
        One number a slice; float64 for every input dtype, since a score of float16 data
        may exceed what float16 holds.  For an array on a GPU, an array there.

    Raises
    ------
    ValueError
        If `x` is no array: lists of different lengths; or `workers` is out of range.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container, or
        `workers` is no integer.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Notes
    -----
    A zero vector, an empty one and a single entry have sparseness 1, by convention.
    NaN and inf propagate as NaN.  Linear in n, and safe against overflow at any scale.

    References
    ----------
    .. [1] P. O. Hoyer, "Non-negative matrix factorization with sparseness constraints",
       J. Mach. Learn. Res. 5, 1457-1469 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import hoyer_sparseness
    >>> hoyer_sparseness(np.array([[1.0, 1.0, 1.0, 1.0], [0.0, 5.0, 0.0, 0.0]]))
    array([0., 1.])
    """
    return _score(x, axis, keepdims, workers, m.SPARSENESS)


@takes_tensors
def gsp_score(
    x: Any,
    *,
    axis: int | None = -1,
    keepdims: bool = False,
    workers: int | None = None,
) -> Any:
    """Mean Hoyer sparseness of a group of vectors.

    Parameters
    ----------
    x : array_like of real numbers, or list of arrays
        An array, whose slices along `axis` are the vectors; or a list or tuple of arrays
        of any shapes, each of which counts as one vector (layers of a network).
    axis : int or None, default -1
        The axis along which the vectors lie; not used for a list of arrays.
    keepdims : bool, default False
        Return an array with as many dimensions as `x`, all of length one; not used for a list
        of arrays.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.

    Returns
    -------
    float64
        The mean of `hoyer_sparseness` over the vectors; 1 if there are none.  For arrays
        on a GPU, an array there, of shape () or with `keepdims` as above.

    Raises
    ------
    ValueError
        If `workers` is out of range.
    TypeError
        If `x` is complex, of another non-real dtype, masked, a sparse container, or a list
        with some arrays on a GPU and some not, or `workers` is no integer.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Notes
    -----
    This is eq. (4) of the CAI manuscript with the ‖x_i‖₂ and the 1/r that are missing
    there.  Vectors of zeros or of length one count with sparseness 1.

    References
    ----------
    .. [1] R. Ohib et al., "Explicit group sparse projection with applications to deep
       learning and NMF", Trans. Mach. Learn. Res. (2022).

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import gsp_score
    >>> gsp_score([np.ones(4), np.array([0.0, 5.0, 0.0])])
    np.float64(0.5)
    """
    if isinstance(x, (list, tuple)) and any(map(on_device, x)):
        from ._cuda import scores as on_gpu

        resolve_workers(workers)
        return on_gpu.gsp_score_of_list(x)
    if _checks.is_list_of_arrays(x):
        arrays = [_checks.slices(part, None, f"x[{i}]").array for i, part in enumerate(x)]
        parts = [hoyer_sparseness(part, axis=None, workers=workers) for part in arrays]
        return np.float64(np.mean(parts))
    refuse_objects(x)
    values = hoyer_sparseness(x, axis=axis, workers=workers)
    if on_device(values):
        from ._cuda import scores as on_gpu

        return on_gpu.mean(values, (1,) * np.ndim(x) if keepdims else ())
    mean = np.mean(values) if np.size(values) else np.float64(1.0)
    return np.full((1,) * np.ndim(x), mean) if keepdims else mean


def refuse_objects(x: Any) -> None:
    """Raise for what is neither array nor list, as a generator or the values of a dictionary."""
    if isinstance(x, list | tuple) or on_device(x):
        return
    if _checks.as_array(x).dtype.kind == "O":
        got = "one of dtype object" if isinstance(x, np.ndarray) else type(x).__name__
        raise TypeError(f"x must be an array, or a list or tuple of arrays, got {got}")
