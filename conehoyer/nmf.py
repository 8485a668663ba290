"""Nonnegative matrix factorisation by hierarchical alternating least squares."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _checks
from ._cpu import hals
from ._dispatch import on_device, takes_tensors
from ._results import warn_not_converged
from ._threads import resolve_workers, run_split

_BLOCK_ENTRIES = 1 << 18  # of the residual that are formed at a time
_GRAM_FROM = 1e-6  # smallest (error/‖X‖)² left to the Gram formula, which is good to 1e-15
_ANCHOR_LOST = 1e-4  # the squared error is computed anew when it has shrunk by this factor
_LARGE = 32  # powers of two within which squares and products are safe in float32
_FAR = 80  # powers of two between the squared lengths of a component's sides that are balanced
_MOST_SWEEPS = 1e6
_CANDIDATES = 32  # rows looked at for a new component
_PARALLEL_FROM = 1 << 14  # entries of a factor; below, threads cost more than they give


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class NMFResult:
    """A factorisation X ≈ W·H and how it went.

    For data on a GPU, the factors are arrays of the same kind; all else is on the host.

    Attributes
    ----------
    W : ndarray, shape (m, rank)
        The nonnegative left factor.
    H : ndarray, shape (rank, n)
        The nonnegative right factor.
    n_iter : int
        Outer iterations done.
    error : float
        ``‖X − WH‖_F``, absolute.
    error_history : ndarray of float64, shape (n_iter + 1,)
        The error at the start and after each iteration.
    kkt_residual : float
        Length of the projected gradient step, relative to ``‖X‖_F``; 0 at a stationary
        point (see the Notes of `nmf_hals`).  NaN in the states that a callback gets.
    converged : bool
        Whether `kkt_residual` fell to `tol`, if that is not 0.
    message : str
        Why it ended, and how many components were reseeded.
    reseeded : int
        How often a component that had become zero was started anew.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import nmf_hals
    >>> result = nmf_hals(np.outer([1.0, 2.0, 3.0], [1.0, 1.0]), 1)
    >>> result.W.shape, result.H.shape, result.converged
    ((3, 1), (1, 2), True)
    >>> bool(result.error == result.error_history[-1])
    True
    """

    W: Any
    H: Any
    n_iter: int
    error: float
    error_history: np.ndarray
    kkt_residual: float
    converged: bool
    message: str
    reseeded: int = 0


@takes_tensors
def nmf_hals(
    x: Any,
    rank: int,
    *,
    init: str | tuple[ArrayLike | None, ArrayLike] = "nndsvd",
    max_iter: int = 200,
    tol: float = 1e-4,
    accelerated: bool = True,
    alpha: float = 0.5,
    epsilon: float = 0.1,
    level_w: ArrayLike | None = None,
    level_h: ArrayLike | None = None,
    update_h: bool = True,
    rng: int | np.random.Generator | None = None,
    callback: Callable[[int, NMFResult], object] | None = None,
    verbose: bool = False,
    workers: int | None = None,
    check_finite: bool = True,
) -> NMFResult:
    """Factorise a nonnegative matrix by hierarchical alternating least squares.

    Looks for a stationary point of ::

        minimise  ‖X − W·H‖_F   subject to   W >= 0,  H >= 0

    and, where levels are given, ``hoyer_score(W[:, k]) <= level_w`` and
    ``hoyer_score(H[k]) <= level_h`` for each component k.  The problem is not convex: the
    result depends on the start.  With ``update_h=False`` and no level it is convex, and
    the result is its minimum.

    Parameters
    ----------
    x : array_like or scipy.sparse matrix or array, shape (m, n)
        The data, real and nonnegative.  A tensor of torch, or an array on a GPU, is dense.
    rank : int
        Number of components, at least 1.  It may exceed min(m, n).
    init : {"nndsvd", "random"} or pair (W0, H0), default "nndsvd"
        The start.  "nndsvd" takes the nonnegative parts of a truncated SVD [3]_, the
        same at every call up to the numerical rank; components beyond are random.  "random"
        takes uniform numbers at the scale of the data.  W0 (m, rank) may be None: then W
        starts at zero and is fitted to H0 (rank, n) first.  For x on a GPU both may lie
        there or on the host.
    max_iter : int, default 200
        Cap on the outer iterations; each updates W, then H.
    tol : float, default 1e-4
        Stop when the KKT residual is at most this.  0 runs all `max_iter` iterations,
        without a warning, unless x is zero or the callback ends it.
    accelerated : bool, default True
        Sweep several times over a factor while the matrix products hold [1]_.
    alpha, epsilon : float, default 0.5 and 0.1
        Accelerated form: at most 1 + ⌊alpha·ρ⌋ sweeps, where ρ is the cost of the first,
        with its products, over that of a further one; they end as soon as one moves the
        factor by at most epsilon times what the first did.
    level_w, level_h : float or array_like of float64, shape (rank,), optional
        Bounds on `hoyer_score` of the columns of W and of the rows of H, at least 1 [2]_.
    update_h : bool, default True
        With False, H stays as it is and X is encoded in it: ``init=(W0, H)`` or
        ``init=(None, H)`` gives the dictionary.
    rng : int, numpy.random.Generator or None, optional
        For a random start, random components and reseeding.
    callback : callable, optional
        Called as ``callback(iteration, state)`` after each iteration, where state is an
        `NMFResult` whose factors are the live arrays: copy what you keep, write nothing.
        A true return value stops the iterations.
    verbose : bool, default False
        Print a line about once a second, and one at the end.
    workers : int or None, default None
        Number of threads for the sweeps and the projections, -1 for all processors, None
        for `get_workers`.  The result is the same bits for every number.  Dense products
        use the threads of BLAS, which are set elsewhere.  No effect on a GPU.
    check_finite : bool, default True
        Raise on NaN and inf.  Otherwise the result of such data is undefined.

    Returns
    -------
    NMFResult
        W and H in the floating dtype of `x` (integers and booleans give float64) and,
        for an `x` on a GPU, there and of its kind; the error after each iteration, the
        KKT residual, and why it ended.

    Raises
    ------
    ValueError
        If `x` is not a matrix, has a negative entry, or holds NaN or inf and
        `check_finite` is true; if `rank`, `max_iter`, `tol`, `alpha`, `epsilon` or a
        level is out of range; if `init` is an unknown name, or its factors have the
        wrong shape, a negative or a non-finite entry, or do not fit in the dtype (rows of a
        dictionary that would vanish are noticed on the CPU); if ``update_h=False`` comes
        without H or with `level_h`; if `rng` or `workers` is out of range.
    TypeError
        If `x`, W0 or H0 is complex, of another non-real dtype, or masked, or `init` is
        neither a name nor a pair; if `x` is a sparse container on a GPU, or W0 or H0
        lies on another GPU than `x`, or on one while `x` does not; if another argument has
        the wrong type.

    Warns
    -----
    ConvergenceWarning
        If `max_iter` was reached and `tol` was not.

    See Also
    --------
    project_cai : The projection that keeps the levels.
    level_for_sparseness : The level of a Hoyer sparseness.

    Notes
    -----
    A sweep minimises over the components in turn.  With A = X·Hᵀ and B = H·Hᵀ, column k
    of W becomes ``max(0, w_k + (A_k − W·B_k)/B_kk)``, its minimiser; so the error never
    rises, up to rounding.  A level keeps that: the minimiser over the vectors of bounded
    score is the projection of the unconstrained one, as all have the same norm to
    minimise in, and it replaces the column within the sweep.  W0 and H0 are projected
    first.

    An iteration costs ``4·nnz·rank + 2·(m + n)·rank²`` operations for the products and
    ``2·(m + n)·rank²`` for each sweep.  The sweeps stop block by block (64 rows of W or
    columns of H); with levels, for the whole factor.  Fewer nonzeros make the products
    cheaper, so that sparse containers are swept less often than the same x as an array.

    On a GPU the matrix products are those of the array's own library, with its settings
    (for Numba's arrays, of this package).  The host waits for the GPU once an iteration,
    with levels once a sweep, to learn the decrease and the step; a few times at the start
    and at the end; and where the error is computed anew or a component is reseeded.  The
    start "nndsvd" fetches (m + n)·(rank + 10) numbers at a time and decomposes them on the
    host; random starts are drawn there, the same as for data on the host.  Levels that lie
    on the GPU are fetched.

    The KKT residual is
    ``sqrt(Σ_k ‖ΔW_k‖²·‖H_k‖² + Σ_k ‖ΔH_k‖²·‖W_k‖²) / ‖X‖_F``, where ΔW_k is the projected
    gradient step of that column alone, with step length 1/‖H_k‖²; it changes neither
    with the unit of X nor with the scales of the components.  A step in W alone with
    ``update_h=False``.

    The error follows from the decreases that the sweeps report, and is computed anew
    where it has shrunk by 100: by the Gram formula ‖X‖² − 2⟨A, W⟩ + ⟨WᵀW, B⟩ in float64 above
    ``1e-3·‖X‖``, and below, where that loses its digits, from the residual in row blocks (for
    sparse data too, a few times in a run); for dense float32 always from the residual, which
    costs no more.  So small errors are right to about ``eps·‖X‖``.  `error_history` takes this
    into account backwards; what a callback sees is good to 1e-8 relative in float64, in float32
    to about 1e-5 of ``‖X‖``.

    Components whose column and row are of very different sizes are balanced by powers of two, and
    so are those of which a side would over- or underflow in the result.  A given H that stays as
    it is may have any unit; W makes up for it, as far as its dtype reaches.

    A component whose column or row becomes zero, or so short that its square underflows, is
    reseeded: H_k takes the positive part of a row of the residual, W_k is zero until the next
    iteration, and the error stays.  Nothing is reseeded where no residual is left, nor with
    ``update_h=False``.

    References
    ----------
    .. [1] N. Gillis and F. Glineur, "Accelerated multiplicative updates and hierarchical
       ALS algorithms for nonnegative matrix factorization", Neural Comput. 24(4),
       1085-1105 (2012), :doi:`10.1162/NECO_a_00256`.
    .. [2] P. O. Hoyer, "Non-negative matrix factorization with sparseness constraints",
       J. Mach. Learn. Res. 5, 1457-1469 (2004).
    .. [3] C. Boutsidis and E. Gallopoulos, "SVD based initialization: A head start for
       nonnegative matrix factorization", Pattern Recognit. 41(4), 1350-1362 (2008),
       :doi:`10.1016/j.patcog.2007.09.010`.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import hoyer_score, nmf_hals
    >>> rng = np.random.default_rng(0)
    >>> x = rng.random((30, 3)) @ rng.random((3, 20))
    >>> result = nmf_hals(x, 3, max_iter=500)
    >>> result.converged, bool(result.error < 0.01 * np.linalg.norm(x))
    (True, True)
    >>> sparse = nmf_hals(x, 3, level_h=5.0, max_iter=500)
    >>> bool(np.all(hoyer_score(sparse.H) <= 5.0 + 1e-9))
    True

    New data in the dictionary found:

    >>> code = nmf_hals(x[:5], 3, init=(None, result.H), update_h=False, max_iter=500)
    >>> code.W.shape, code.H is result.H
    ((5, 3), False)
    """
    rank = _checks.integer(rank, "rank", 1, _checks.MOST)
    max_iter = _checks.integer(max_iter, "max_iter", 0)
    tol = _checks.real_in(tol, "tol")
    alpha = _checks.real_in(alpha, "alpha")
    epsilon = _checks.real_in(epsilon, "epsilon")
    level_w = _levels(level_w, "level_w", rank)
    level_h = _levels(level_h, "level_h", rank)
    workers = resolve_workers(workers)
    rng = _generator(rng)
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable or None, got {callback!r}")
    if callback is not None:
        callback = np.errstate(**np.geterr())(callback)  # as it is for the caller
    make_data, make_run = (_Data, _Run) if not on_device(x) else _on_gpu()
    if not accelerated:
        alpha = 0.0
    with np.errstate(under="ignore"):  # of what is nothing beside the rest
        data = make_data(x, bool(check_finite))
        with data.active():
            wt, h, units = _start(init, rank, data, update_h, rng)
            run = make_run(
                data, wt, h, units, alpha, epsilon, level_w, level_h, update_h, rng, workers
            )
            return run.until(max_iter, tol, callback, verbose)


def _on_gpu():
    """What takes the place of `_Data` and `_Run` where x lies on a GPU."""
    from ._cuda import nmf

    return nmf.Data, nmf.Run


# --- arguments -----------------------------------------------------------------------


def _generator(rng):
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"rng must be None, a seed or a numpy.random.Generator, got {rng!r}"
        ) from None


def _levels(value, name, rank):
    """One level for each component, or None."""
    if value is None:
        return None
    components = _checks.slices(np.empty((rank, 1)), -1)
    if on_device(value):
        from ._cuda import nmf

        value = nmf.fetch(value, name)
    return _checks.per_slice(value, name, components, 1.0, what=">= 1")


def _check_entries(values, name, check_finite):
    """Raise on NaN, inf and negative entries; returns the largest entry."""
    if values.size == 0:
        return 0.0
    low, high = float(values.min()), float(values.max())
    finite = math.isfinite(low) and math.isfinite(high)
    _check_range(low, finite, name, check_finite)
    return high


def _check_range(low, finite, name, check_finite):
    """`check_finite`: None if there is no way to skip the test."""
    if check_finite is not False and not finite:
        hint = "" if check_finite is None else "; check_finite=False skips this test"
        raise ValueError(f"{name} must not contain NaN or inf{hint}")
    if low < 0.0:
        raise ValueError(f"{name} must be nonnegative, got an entry {low}")


def _start(init, rank, data, update_h, rng):
    """Transposed W0 and H0 in the work's dtype and units, in memory of their own.

    With the units, the exponents of a power of two for each component: H0 = 2^units·h and, in that
    of the data, W0 = 2^−units·w.  Where a row of H0 is zero, W0 decides.
    """
    if isinstance(init, str):
        _checks.choose(init, "init", ("nndsvd", "random"))
        if not update_h:
            raise ValueError(
                "update_h=False needs the dictionary: give init=(None, H) or init=(W0, H), "
                f"got init={init!r}"
            )
        start = data.start(_nndsvd if init == "nndsvd" else _random, rank, rng)
        return *start, np.zeros(rank, np.int64)
    if not isinstance(init, tuple | list) or len(init) != 2:
        raise TypeError(
            f"init must be 'nndsvd', 'random' or a pair (W0, H0), got {type(init).__name__}"
        )
    w, h = init
    if h is None:
        raise ValueError("init=(W0, H0) needs H0; only W0 may be None")
    m, n = data.shape
    h = data.factor(h, "H0 of init", (rank, n), not update_h)
    tops = data.tops(h)
    units = _units_for(np.frexp(tops)[1])
    if units.any():
        h = data.in_units(h, -units)
    if w is None:
        return data.zeros((rank, m)), h, units
    w = data.factor(w, "W0 of init", (m, rank))
    if not tops.all():
        w = data.transposed(w, np.zeros(rank, np.int64))
        sizes = np.frexp(data.tops(w))[1] - data.exponent
        units = np.where(tops > 0, units, -_units_for(sizes))
        return data.in_units(w, units - data.exponent), h, units
    return data.transposed(w, units - data.exponent), h, units


def _units_for(exponents):
    """The exponents, 0 for those with which squares neither over- nor underflow."""
    exponents = exponents.astype(np.int64)
    exponents[abs(exponents) <= _LARGE // 4] = 0
    return exponents


def _factor(value, name, shape, dtype):
    """A copy of a given factor that lies on the host."""
    if on_device(value):
        raise TypeError(f"{name} lies on a GPU, and x does not")
    array = _checks.as_array(value, name)
    _checks.result_dtype(array.dtype, name)  # real, or TypeError
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    top = _check_entries(array, name, None)
    if top > float(np.finfo(dtype).max):
        raise ValueError(f"{name} must fit in {dtype}, got an entry {top}")
    return np.array(array, dtype, order="C")


def _check_dictionary(h, dtype):
    """Raise where a row of a dictionary comes back as another one: it does not fit in the dtype."""
    with np.errstate(over="ignore", under="ignore"):
        rounded = h.astype(dtype).astype(np.float64)
    lost = np.abs(rounded - h).max(axis=1, initial=0)
    bad = lost > _checks.MACHINE_EPSILON.get(dtype.name, 2.0**-20) * h.max(axis=1, initial=0)
    if bad.any():
        row = int(bad.argmax())
        raise ValueError(
            f"H0 of init must fit in {dtype}, got a row {row} with entries up to {h[row].max()}"
        )


# --- the data ------------------------------------------------------------------------


def _is_sparse(x):
    """Whether x is a container of scipy.sparse; does not import it for others."""
    if not type(x).__module__.startswith("scipy.sparse"):
        return False
    from scipy import sparse

    return sparse.issparse(x)


class _Data:
    """X, dense or in compressed rows, times 2^−exponent: its products and its residual."""

    def __init__(self, x, check_finite):
        if type(x).__module__.startswith("cupyx."):
            raise TypeError("x must not be a sparse container on a GPU: pass x.get()")
        self.sparse = _is_sparse(x)
        array = x if self.sparse else _checks.as_array(x)
        if array.ndim != 2:
            raise ValueError(f"x must be a matrix, got {array.ndim} dimensions")
        self.shape = array.shape
        self.dtype, self.work = _checks.dtypes(array, "x")
        if self.sparse:
            array = array.astype(self.work, copy=False).tocsr()
            if not array.has_canonical_format:
                array = array.copy()
                array.sum_duplicates()
            entries = array.data
        else:
            with np.errstate(over="ignore", under="ignore"):  # of long double; see the check below
                array = np.asarray(array, dtype=self.work)
            if not (array.flags.c_contiguous or array.flags.f_contiguous):
                array = np.ascontiguousarray(array)
            entries = array
        top = _check_entries(entries, "x", check_finite)
        self.exponent = 0
        if top > 0.0 and math.isfinite(top) and abs(math.frexp(top)[1]) > _LARGE:
            self.exponent = math.frexp(top)[1]  # else squares over- or underflow
            if self.sparse:
                array = array.copy()
                array.data = np.ldexp(array.data, -self.exponent)
            else:
                array = np.ldexp(array, -self.exponent)
        self.matrix = array
        self.entries = int(array.nnz) if self.sparse else array.size
        self.norm = math.sqrt(self._squares())
        self.by_gram = self.sparse or self.work == np.float64  # else the residual costs no more

    def _squares(self):
        """‖X‖², summed in float64."""
        flat = self.matrix.data if self.sparse else self.matrix.ravel(order="K")
        total = 0.0
        for begin in range(0, flat.size, _BLOCK_ENTRIES):
            part = flat[begin : begin + _BLOCK_ENTRIES].astype(np.float64, copy=False)
            total += float(part @ part)
        return total

    def times(self, h):
        """(X·hᵀ)ᵀ for h (r, n)."""
        if self.sparse:
            return np.ascontiguousarray((self.matrix @ np.ascontiguousarray(h.T)).T)
        return h @ self.matrix.T

    def transposed_times(self, wt):
        """wt·X for wt (r, m)."""
        if self.sparse:
            return np.ascontiguousarray((self.matrix.T @ np.ascontiguousarray(wt.T)).T)
        return wt @ self.matrix

    def rows(self, which):
        """Some rows, dense, in float64."""
        part = self.matrix[which]
        return (part.toarray() if self.sparse else part).astype(np.float64, copy=False)

    def residual_squares(self, wt, h):
        """‖X − WH‖² from the residual, in row blocks and in float64."""
        h = h.astype(np.float64, copy=False)
        m, n = self.shape
        size = max(_BLOCK_ENTRIES // max(n, 1), 1)
        total = 0.0
        for begin in range(0, m, size):
            part = slice(begin, min(begin + size, m))
            gap = wt[:, part].T.astype(np.float64, copy=False) @ h
            np.subtract(self.rows(part), gap, out=gap)
            gap = gap.reshape(-1)
            total += float(gap @ gap)
        return total

    def active(self):
        """Nothing to prepare on the host."""
        return nullcontext()

    def start(self, method, rank, rng):
        """Transposed W0 and H0 by `_random` or `_nndsvd`."""
        return method(self, rank, rng)

    def factor(self, value, name, shape, stays=False):
        """A copy of a given factor, which may be one that `stays` as it is."""
        factor = _factor(value, name, shape, self.work)
        if stays:
            _check_dictionary(_checks.as_array(value), self.dtype)
        return factor

    def tops(self, factor):
        """The largest entry of each row."""
        return factor.max(axis=1, initial=0)

    def in_units(self, factor, exponents):
        """A copy, each row times its power of two."""
        return np.ldexp(factor, np.reshape(exponents, (-1, 1)))

    def transposed(self, factor, exponents):
        """The transpose, each row times its power of two."""
        return np.ascontiguousarray(self.in_units(factor.T, exponents))

    def zeros(self, shape):
        """A factor to begin with."""
        return np.zeros(shape, self.work)

    def deliver(self, w, h, live):
        """W, which is given transposed, and H; unless they live on, in the data's dtype."""
        if live:
            return w.T, h
        w = np.ascontiguousarray(w.T)
        return w.astype(self.dtype, copy=False), h.astype(self.dtype, copy=False)

    def total(self):
        """The sum of the entries."""
        return float(self.matrix.sum(dtype=np.float64))

    def gaps(self, rows, w, h):
        """Positive part of some rows of X − WH and their lengths, in float64."""
        gap = self.rows(rows) - w.factor[:, rows].T.astype(np.float64) @ h.factor
        seeds = np.maximum(gap, 0)
        return seeds, np.linalg.norm(seeds, axis=1)


# --- starts --------------------------------------------------------------------------


def _random(data, rank, rng):
    """Uniform factors such that WH has the mean of X."""
    m, n = data.shape
    scale = 2.0 * math.sqrt(data.total() / max(m * n, 1) / rank)
    return tuple(
        (scale * rng.random((rank, count))).astype(data.work, copy=False) for count in (m, n)
    )


def _nndsvd(data, rank, rng):
    """The larger of the nonnegative parts of each singular triple, of a sketched SVD."""
    m, n = data.shape
    width = min(rank + 10, m, n)
    wt, h = np.zeros((rank, m), data.work), np.zeros((rank, n), data.work)
    found = 0
    if width and 0.0 < data.norm < math.inf:
        # A fixed sketch: the same start at every call.
        sketch = np.random.default_rng(0).standard_normal((width, n)).astype(data.work)
        for _ in range(4 if width < min(m, n) else 0):  # else it has all there is
            basis = np.linalg.qr(data.times(sketch).T)[0]
            sketch = np.linalg.qr(data.transposed_times(np.ascontiguousarray(basis.T)).T)[0].T
            sketch = np.ascontiguousarray(sketch)
        basis = np.linalg.qr(data.times(sketch).T)[0].T
        basis = np.ascontiguousarray(basis)
        u, sizes, v = np.linalg.svd(data.transposed_times(basis), full_matrices=False)
        u = u.T @ basis
        floor = sizes[0] * max(m, n) * np.finfo(data.work).eps
        for k in range(min(rank, width)):
            if not sizes[k] > floor:
                break
            parts = []
            for sign in (1.0, -1.0):
                left, right = np.maximum(sign * u[k], 0), np.maximum(sign * v[k], 0)
                lengths = float(np.linalg.norm(left)), float(np.linalg.norm(right))
                parts.append((lengths[0] * lengths[1], lengths, left, right))
            weight, lengths, left, right = max(parts, key=lambda part: part[0])
            if not weight > 0.0:
                break
            root = math.sqrt(float(sizes[k]) * weight)
            wt[k], h[k] = left * (root / lengths[0]), right * (root / lengths[1])
            found = k + 1
    if found < rank:
        other = _random(data, rank, rng)
        wt[found:], h[found:] = other[0][found:], other[1][found:]
    return wt, h


# --- the iterations ------------------------------------------------------------------


class _Side:
    """One factor, a component a row, and how it is updated."""

    def __init__(self, factor, levels, most, epsilon, workers):
        self.factor, self.levels = factor, levels
        self.most, self.epsilon = most, epsilon
        self.workers = workers if factor.size >= _PARALLEL_FROM else 1
        self.project()

    def project(self):
        """Bring the rows under their levels."""
        if self.levels is not None and self.factor.size:
            self.factor[...] = self._nearest(self.factor, self.levels)

    def _nearest(self, rows, levels):
        from .projections import project_cai

        return project_cai(rows, levels, nonneg=True, check_finite=False, workers=self.workers)

    def clear(self):
        """Set the factor to zero."""
        self.factor[...] = 0

    def scale(self, exponents):
        """Multiply each component by its power of two."""
        np.ldexp(self.factor, exponents[:, None], out=self.factor)

    def clear_without(self, other):
        """Set to zero the components whose partner is zero."""
        self.factor[~other.factor.any(axis=1)] = 0

    def set_row(self, k, row=None, divisor=1.0):
        """Start component k anew, from zero or from a row."""
        self.factor[k] = 0 if row is None else row / divisor

    def update(self, gram, product):
        """Sweep; returns the decrease of the squared error, and the first step's length²."""
        if self.levels is not None:
            return self._update_by_rows(gram, product)
        blocks = hals.blocks_of(self.factor.shape[1])
        gains, steps = np.zeros(blocks), np.zeros(blocks)
        run_split(
            partial(
                hals.sweep_blocks,
                gram, product, self.factor, self.most, self.epsilon, gains, steps,
            ),
            blocks,
            self.workers,
        )  # fmt: skip
        return float(gains.sum()), float(steps.sum())

    def _update_by_rows(self, gram, product):
        """The same with levels, which need whole rows."""
        gain = longest = 0.0
        for sweep in range(self.most):
            length = 0.0
            for k, row in enumerate(self.factor):
                diagonal = gram[k, k]
                if not diagonal > 0.0:
                    continue
                slope = product[k] - gram[k] @ self.factor
                new = self._nearest(row + slope / diagonal, self.levels[k])
                move = (new - row).astype(np.float64)
                step = float(diagonal) * float(move @ move)
                gain += 2.0 * float(move @ slope) - step
                length += step
                row[...] = new
            if sweep == 0:
                longest = length
            if not length > self.epsilon**2 * longest:
                break
        return gain, longest

    def stationarity(self, gram, product):
        """Squared length of the projected gradient steps, each row by itself."""
        diagonal = np.diag(gram)
        live = diagonal > 0.0
        if not live.any():
            return 0.0
        diagonal, rows = diagonal[live, None], self.factor[live]
        goal = rows + (product - gram @ self.factor)[live] / diagonal
        if self.levels is None:
            goal = np.maximum(goal, 0)
        else:
            goal = self._nearest(goal, self.levels[live])
        return float((diagonal * (goal - rows).astype(np.float64) ** 2).sum())


class _Run:
    """The state of a factorisation."""

    def __init__(
        self, data, wt, h, units, alpha, epsilon, level_w, level_h, update_h, rng, workers
    ):
        self.data, self.units, self.update_h, self.rng = data, units, update_h, rng
        # Where a side is shorter, the other, fitted to it, might overflow when squared, or the
        # square of its length is not known well enough to divide by.
        power = -124 if data.work.itemsize == 4 else -1000
        least = math.ldexp(data.norm, power // 2) ** 2
        self.least = max(least, float(np.finfo(data.work).tiny))
        rank = wt.shape[0]
        m, n = data.shape
        # Flops of the first sweep, with its products, over those of one more, as in Gillis and
        # Glineur.
        rho_w = 1.0 + (data.entries + n * rank) / max(m * (rank + 1), 1)
        rho_h = 1.0 + (data.entries + m * rank) / max(n * (rank + 1), 1)
        sweeps = [1 + int(min(alpha * rho, _MOST_SWEEPS)) for rho in (rho_w, rho_h)]
        self.w = self._side(wt, level_w, sweeps[0], epsilon, workers)
        if update_h:
            self.h = self._side(h, level_h, sweeps[1], epsilon, workers)
        else:
            self.h = self._side(h, None, 1, epsilon, workers)
            self._check_dictionary(level_h)
        self.reseeded = 0
        if data.norm == 0.0:
            self.w.clear()
        self.product_h = self.gram_w = None
        self.history, self.first = [0.0], 0
        self._multiply()
        self.anchor()

    def _side(self, *arguments):
        return _Side(*arguments)

    def _check_dictionary(self, level_h):
        if level_h is not None:
            raise ValueError("level_h needs update_h=True: a given dictionary stays as it is")
        self.w.clear_without(self.h)  # what multiplies nothing

    def _root(self, squares):
        """An error in the data's unit."""
        with np.errstate(over="ignore"):  # of ‖X‖ itself, say
            return np.ldexp(np.sqrt(np.maximum(squares, 0.0)), self.data.exponent)

    @property
    def error(self):
        return float(self._root(self.history[-1]))

    def _multiply(self):
        """What an update of W needs."""
        self.product_w = self.data.times(self.h.factor)
        self.gram_h = self._gram(self.h)

    def _multiply_back(self):
        """What an update of H needs."""
        self.product_h = self.data.transposed_times(self.w.factor)
        self.gram_w = self._gram(self.w)

    def _gram(self, side):
        """Inner products of the components, zero for those too short to divide by."""
        gram = side.factor @ side.factor.T
        diagonal = gram.reshape(-1)[:: len(gram) + 1]
        diagonal[~(diagonal > self.least)] = 0
        return gram

    def _inner_products(self):
        """⟨X, WH⟩ and ‖WH‖², in float64."""
        w, product, gram = self.w.factor, self.product_w, self.gram_h
        if w.dtype != np.float64:
            w, h = w.astype(np.float64), self.h.factor.astype(np.float64)
            product, gram = self.data.times(h), h @ h.T
        return float((product * w).sum()), float(((w @ w.T) * gram).sum())

    def anchor(self, exactly=False):
        """Compute the squared error anew, by the Gram formula where that is good enough.

        The decreases since the last time are known better than the error itself: what
        was wrong with it was wrong with those in between.
        """
        norm = self.data.norm
        squares = -1.0
        if self.data.by_gram and not exactly:
            mixed, square = self._inner_products()
            squares = norm**2 - 2.0 * mixed + square
        rough = squares > _GRAM_FROM * norm**2
        if not rough:
            squares = self.data.residual_squares(self.w.factor, self.h.factor)
        last = len(self.history) - 1
        shift = squares - self.history[last]
        for i in range(self.first, last):
            self.history[i] += shift
        self.history[last] = squares
        if not rough or self.data.work != np.float64:  # much better known than the decreases
            self.first = last + 1
        self.lost = _ANCHOR_LOST * squares
        if rough:
            self.lost = max(self.lost, _GRAM_FROM * norm**2)

    def iterate(self):
        """Update W, then H; returns the squared length of the first steps."""
        gain, step = self._update()
        self.history.append(self.history[-1] - gain)
        if not self.history[-1] > self.lost:
            self.anchor()
        return step

    def _update(self):
        """The sweeps of an iteration: the decrease, and the squared length of the first steps."""
        gain, step = self.w.update(self.gram_h, self.product_w)
        if self.update_h:
            self._multiply_back()
            more, further = self.h.update(self.gram_w, self.product_h)
            gain, step = gain + more, step + further
            squares_h = np.einsum("kj,kj->k", self.h.factor, self.h.factor)
            if self._mend(self.gram_w.diagonal(), squares_h):
                step = math.inf
            self._multiply()
        return gain, step

    def _mend(self, squares_w, squares_h):
        """Mend components that are lost or lopsided; returns whether there is a new one.

        From the squared lengths of their sides.
        """
        dead = np.flatnonzero(~((squares_w > self.least) & (squares_h > self.least)))
        again = bool(dead.size) and self._reseed(dead)
        apart = np.frexp(squares_h)[1] - np.frexp(squares_w)[1]
        apart[dead] = 0
        far = abs(apart) > _FAR
        if far.any():  # else squares might over- or underflow
            exponents = np.where(far, apart // 4, 0)
            self.w.scale(exponents)
            self.h.scale(-exponents)
        if dead.size or far.any():
            self.gram_w = None  # and product_h: of the factors before
        return again

    def _reseed(self, dead):
        """Give components that have become zero a row of the residual to start from."""
        m = self.data.shape[0]
        again = False
        for k in dead:
            self.w.set_row(k)  # without it h[k] is free
            rows = np.sort(self.rng.choice(m, min(_CANDIDATES, m), replace=False))
            seeds, lengths = self.data.gaps(rows, self.w, self.h)
            best = lengths.argmax()
            size = np.finfo(self.data.work).eps * self.data.norm
            self.h.set_row(k)
            if lengths[best] > 8.0 * size / math.sqrt(m):
                self.h.set_row(k, seeds[best], math.sqrt(lengths[best]))
                self.reseeded += 1
                again = True
        if again:
            self.h.project()
        return again

    def kkt_residual(self):
        """Length of the projected gradient step, relative to ‖X‖."""
        total = self.w.stationarity(self.gram_h, self.product_w)
        if self.update_h:
            if self.gram_w is None:
                self._multiply_back()
            total += self.h.stationarity(self.gram_w, self.product_h)
        return math.sqrt(total) / self.data.norm

    def _factors(self, live):
        """W and H in the data's unit, and unless they live on, in its dtype."""
        w, h, data = self.w.factor, self.h.factor, self.data
        units_w, units_h = self._units(live)
        if units_w.any():
            w = data.in_units(w, units_w)
        if units_h.any():
            h = data.in_units(h, units_h)
        return data.deliver(w, h, live)

    def _units(self, live):
        """The exponents that the components of W and H take to come into the data's unit.

        Where a side would over- or underflow there, both become about as large.
        """
        units_w, units_h = self.data.exponent - self.units, self.units
        if self.update_h and (units_w.any() or units_h.any() or not live):
            name = str(self.data.dtype)
            info = np.finfo("float32" if name == "bfloat16" else name)  # the same range
            size_w = np.frexp(self.data.tops(self.w.factor))[1] + units_w
            size_h = np.frexp(self.data.tops(self.h.factor))[1] + units_h
            fits = np.maximum(size_w, size_h) <= info.maxexp
            fits &= np.minimum(size_w, size_h) > info.minexp + info.nmant
            shift = np.where(fits, 0, (size_w - size_h) // 2)
            units_w, units_h = units_w - shift, units_h + shift
        return units_w, units_h

    def result(self, message, kkt, converged):
        """The outcome in the data's unit and dtype; without a message, the live state."""
        w, h = self._factors(live=not message)
        if message and self.reseeded:
            message += f"; {self.reseeded} dead component(s) reseeded"
        history = self._root(self.history)
        return NMFResult(
            w, h, len(history) - 1, float(history[-1]), history, kkt, converged,
            message, self.reseeded,
        )  # fmt: skip

    def until(self, max_iter, tol, callback, verbose):
        """Iterate until the KKT residual is at most tol, the callback says so, or the cap."""
        kkt, said = math.nan, perf_counter()
        message, converged, warn = "", False, False
        reached = f"KKT residual at most tol={tol}"
        if self.data.norm == 0.0:
            return self.result("x is zero or empty", 0.0, True)
        while not message:
            n_iter = len(self.history) - 1
            if n_iter >= max_iter:
                kkt = self.kkt_residual()
                converged = tol > 0.0 and kkt <= tol
                warn = tol > 0.0 and not converged
                message = reached if converged else f"reached max_iter={max_iter} iterations"
                break
            step = self.iterate()
            n_iter += 1
            kkt = math.nan
            # The step of the sweep costs nothing; the residual is only computed near its end.
            if tol > 0.0 and math.sqrt(step) <= 4.0 * tol * self.data.norm:
                kkt = self.kkt_residual()
                converged = kkt <= tol
            if callback is not None and callback(n_iter, self.result("", math.nan, converged)):
                message = "stopped by the callback"
            elif converged:
                message = reached
            if verbose and perf_counter() - said > 1.0:
                said = perf_counter()
                print(f"nmf_hals: iteration {n_iter}, error {self.error:.6g}")
        if math.isnan(kkt):
            kkt = self.kkt_residual()
            converged = tol > 0.0 and kkt <= tol
        small = self.history[-1] < _GRAM_FROM * self.data.norm**2
        if small or self.data.work != np.float64:  # float32 decreases are good to 1e-7
            self.anchor(exactly=small)
        result = self.result(message, kkt, converged)
        if verbose:
            print(
                f"nmf_hals: {result.n_iter} iterations, error {result.error:.6g}, "
                f"KKT residual {kkt:.3g}: {result.message}"
            )
        if warn:
            warn_not_converged(
                f"nmf_hals reached max_iter={max_iter} with KKT residual {kkt:.3g} > tol={tol}: "
                "raise max_iter or tol"
            )
        return result
