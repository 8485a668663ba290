"""Group sparse projection: one mean sparseness for several vectors."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import _checks
from . import _math as m
from ._cpu import gsp as kernels
from ._dispatch import on_device, takes_tensors
from ._gsp_math import Search
from ._results import warn_not_converged
from ._threads import resolve_workers, run_split
from .scores import refuse_objects

_PARALLEL_FROM = 1 << 22  # bytes below which one thread is faster


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class GSPInfo:
    """How a group sparse projection went.

    Attributes
    ----------
    multiplier : float
        The multiplier μ that all vectors share, in the data's unit; 0 where the input was
        sparse enough.
    threshold : ndarray of float64
        The soft threshold ``μ/(√n − 1)`` of each vector, at most its largest entry, in the
        vectors' shape; of shape (r,) for a list.  0 for vectors that take no part.  NaN, as
        `multiplier` and `sparseness`, where a vector holds NaN or infinity.
    sparseness : float
        The mean Hoyer sparseness reached, before rounding to the result's dtype.
    nnz : ndarray of int64
        Number of nonzeros of each vector of the result.
    passes : int
        Evaluations of the sums.
    converged : bool
        False where the cap on the passes was hit.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import project_gsp
    >>> vectors = np.array([[4.0, -2.0, 1.0, 1.0], [3.0, 2.0, -1.0, 0.5]])
    >>> x, info = project_gsp(vectors, 0.5, full_output=True)
    >>> info.nnz, round(info.sparseness, 12), info.converged
    (array([4, 3]), 0.5, True)
    """

    multiplier: float
    threshold: np.ndarray
    sparseness: float
    nnz: np.ndarray
    passes: int
    converged: bool


@takes_tensors
def project_gsp(
    x: Any,
    sparseness: float,
    *,
    axis: int | None = -1,
    out: Any = None,
    overwrite_x: bool = False,
    workers: int | None = None,
    check_finite: bool = True,
    full_output: bool = False,
) -> Any:
    """Group sparse projection: vectors of a prescribed mean Hoyer sparseness.

    The vectors x_1, …, x_r, of any lengths n_i, become ::

        x_i ← ⟨z_i, |x_i|⟩·z_i·sign(x_i),    where z_1, …, z_r solve

        maximise  Σ⟨z_i, |x_i|⟩   subject to   ‖z_i‖₂ = 1,  z_i >= 0,
                  (1/r)·Σ(√n_i − ‖z_i‖₁)/(√n_i − 1) >= sparseness

    The sparseness is shared: vectors with few large entries become sparser than the mean,
    flat ones stay denser.

    Parameters
    ----------
    x : array_like of real numbers, shape (..., n, ...), or list of array_likes
        An array, whose slices along `axis` are the vectors; or a list or tuple of arrays
        of any shapes and dtypes, each of which is one vector (layers of a network).
    sparseness : float
        Mean Hoyer sparseness of the result, in [0, 1].  At 0 nothing changes, at 1 each
        vector keeps its largest entry only.
    axis : int or None, default -1
        The axis along which the vectors lie; None takes the whole array as one vector.
        Not used for a list of arrays.
    out : ndarray or list of ndarrays, optional
        Where the result goes: the shape of `x` and the dtype of the result, for a list
        one array for each of its arrays.  May be `x` itself.  Its content is undefined if
        an error is raised, unless it is `x`.
    overwrite_x : bool, default False
        Permission to write the result over `x`, or over the arrays in it.
    workers : int or None, default None
        Number of threads, -1 for all processors, None for `get_workers`.  The result is
        the same bits for every number.
    check_finite : bool, default True
        Raise on NaN and inf.  Otherwise every vector comes back as NaN where one of them
        holds any, since they share the multiplier.
    full_output : bool, default False
        Return a `GSPInfo` as well.

    Returns
    -------
    x : ndarray of the input's shape, or list of ndarrays
        The projection, of the input's floating dtype; integers and booleans give float64.
        A list where `x` is a list or tuple of arrays.
    info : GSPInfo
        Only with ``full_output=True``: multiplier, thresholds, sparseness reached, numbers
        of nonzeros, passes, whether it converged.

    Raises
    ------
    ValueError
        If `sparseness` is outside [0, 1] or not a single number, `workers` is out of range,
        `out` has the wrong length, shape or dtype, is read-only or has arrays that overlap
        each other, or `x` holds NaN or inf and `check_finite` is true.
    TypeError
        If `x` is complex, of another non-real dtype, masked, or a sparse container,
        `sparseness` is no real number, `workers` is no integer, or `out` is of another kind
        than the result.
    numpy.exceptions.AxisError
        If `axis` is out of range.

    Warns
    -----
    ConvergenceWarning
        If the cap on the passes was hit.

    See Also
    --------
    gsp_score : The mean Hoyer sparseness.
    project_cai : One vector, at a level of its own; the same point if r = 1.
    project_hoyer : One vector, with prescribed norms.

    Notes
    -----
    With β_i = 1/(√n_i − 1) there is one multiplier μ >= 0 for which z_i is along
    ``max(|x_i| − μβ_i, 0)``; where that is zero, z_i keeps the largest entry alone.  μ is
    found by Newton's method on the supports, whose steps never pass it, with bisection as
    a fallback.  Usually 3 to 10 evaluations, the later ones on the entries that are left:
    linear in the number of all entries; at most 400 evaluations on any input.

    The objective is linear in z: this is *not* the Euclidean projection onto the vectors
    of that mean sparseness, which would maximise ``Σ⟨z_i, |x_i|⟩²`` and so favour the vectors
    of large norm more.  For (8, 3, 2) and (1, 1, 0) and mean sparseness 0.5 the result has the
    squared distance 1.27; the projections onto sparseness 0.35 and 0.65, one vector each,
    have 0.42.  For a single vector both agree.

    Where entries tie at the top of a vector, ‖z_i‖₁ jumps at ``μ = max|x_i|/β_i``.  If the
    mean sparseness asked for lies inside the jump, the first few tied entries stay, all
    equal but the last (as in `project_cai`); several vectors that jump at the same μ each
    use the same share of their jumps, unless rounding tells these apart.

    A vector of zeros stays and counts with sparseness 1, as in `gsp_score`: its z_i may be
    anything, and this choice leaves the others most room.  Vectors of length one, and empty
    ones, stay as they are and are not counted; where there are any, `gsp_score` of the
    result, which counts them with sparseness 1, is above `sparseness`.

    If the mean sparseness of the input suffices (to 1e-14 relative in ‖x‖₁/‖x‖₂ in float64,
    1e-6 in float32) the result is the input, bit for bit; so projecting twice changes
    nothing.  Entries within the rounding error of their threshold become zero.

    For arrays on a GPU, the results and the report's arrays lie there too.  The search is the
    same; after every eighth evaluation the call waits for the GPU to learn whether it is
    done.

    References
    ----------
    .. [1] R. Ohib, N. Gillis, N. Dalmasso, S. Shah, V. K. Potluru and S. Plis, "Explicit
       group sparse projection with applications to deep learning and NMF", Trans. Mach.
       Learn. Res. (2022), :doi:`10.48550/arXiv.1912.03896`.
    .. [2] P. O. Hoyer, "Non-negative matrix factorization with sparseness constraints",
       J. Mach. Learn. Res. 5, 1457-1469 (2004).

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import gsp_score, project_gsp
    >>> layers = [np.array([4.0, -2.0, 1.0, 1.0]), np.array([[3.0, 2.0], [-1.0, 0.5]])]
    >>> gsp_score(layers).round(3)
    np.float64(0.286)
    >>> first, second = project_gsp(layers, 0.5)
    >>> first.round(3)
    array([ 4.226, -1.739,  0.495,  0.495])
    >>> second.round(3)
    array([[ 3.168,  1.847],
           [-0.526,  0.   ]])
    >>> gsp_score([first, second]).round(12)
    np.float64(0.5)
    """
    sparseness = _one_sparseness(sparseness)
    workers = resolve_workers(workers)
    several = _checks.is_list_of_arrays(x)
    if several:
        slices = [_checks.slices(part, None, f"x[{i}]") for i, part in enumerate(x)]
    else:
        refuse_objects(x)
        slices = [_checks.slices(x, axis)]
    if any(s.home is not None for s in slices):
        from ._cuda import gsp

        return gsp.project(
            slices, x, several, sparseness, out, overwrite_x, check_finite, full_output
        )
    if several:
        targets = _targets(slices, x, out, overwrite_x)
    else:
        targets = [_checks.target(slices[0], x, _checks.rows(slices[0]), out, overwrite_x)]
    group = _Group.of(slices, targets, workers)
    verdict = _search(group, sparseness, check_finite)
    group.each(kernels.write, lambda b: (verdict, b.x, b.z, b.out, group.v, b.place))
    if verdict.status == m.CAPPED:
        warn_not_converged(
            f"the group sparse projection stopped after {verdict.passes} passes at the mean "
            f"sparseness {1.0 - verdict.mean}; the result is the best known"
        )
    results = [_checks.deliver(s, goal) for s, (_, goal) in zip(slices, targets, strict=True)]
    result = results if several else results[0]
    shape = (len(slices),) if several else slices[0].batch
    return (result, _info(slices, results, shape, group.v, verdict)) if full_output else result


def _one_sparseness(value):
    if on_device(value):
        raise TypeError("sparseness must lie on the host, got an array on a GPU")
    array = _checks.as_array(value, "sparseness")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"sparseness must be a real number, got {value!r}")
    if array.ndim:
        raise ValueError(
            f"sparseness must be one number for the whole group, got shape {array.shape}"
        )
    if not 0.0 <= array <= 1.0:
        raise ValueError(f"sparseness must be in [0, 1], got {value!r}")
    return float(array)


# --- a list of arrays ----------------------------------------------------------------


def _targets(slices, x, out, overwrite_x):
    """What `_checks.target` gives for each array, such that no write spoils another's read."""
    rows = [_checks.rows(s) for s in slices]
    if out is None and not overwrite_x:
        return [_checks.target(s, None, z, None, False) for s, z in zip(slices, rows, strict=True)]
    if out is None:
        goals = [None] * len(slices)
    elif not isinstance(out, (list, tuple)):
        raise TypeError(f"out must be a list of arrays as x is, got {type(out).__name__}")
    elif len(out) != len(slices):
        raise ValueError(f"out must have as many arrays as x, {len(slices)}, got {len(out)}")
    else:
        goals = out
    targets = []
    for i, (s, part, z, goal) in enumerate(zip(slices, x, rows, goals, strict=True)):
        try:
            targets.append(_checks.target(s, part, z, goal, overwrite_x))
        except (TypeError, ValueError) as error:
            raise type(error)(f"out[{i}]: {error}") from None
    if out is not None:
        _check_apart([goal.array for _, goal in targets])
    writes = [goal.rows for _, goal in targets]
    order = sorted(range(len(writes)), key=lambda i: _span(writes[i]))
    spans = [_span(writes[i]) for i in order]
    for k in range(1, len(spans)):
        if spans[k][0] < spans[k - 1][1]:  # arrays of x share memory: no place to overwrite
            return _targets(slices, x, None, False)
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    for i, (z, goal) in enumerate(targets):
        first, last = _span(z)
        met = order[np.searchsorted(ends, first, "right") : np.searchsorted(starts, last, "left")]
        if any(j != i for j in met):
            targets[i] = z.copy(), replace(goal, in_place=False)
    return targets


def _check_apart(out):
    """Raise where two arrays share memory, also those that the kernels don't write themselves."""
    bounds = [_bounds(array) for array in out]
    met = []  # those that reach beyond where the next one begins
    for i in sorted(range(len(out)), key=bounds.__getitem__):
        met = [j for j in met if bounds[j][1] > bounds[i][0]]
        for j in met:
            if np.shares_memory(out[i], out[j]):
                raise ValueError(f"out[{min(i, j)}] and out[{max(i, j)}] must not overlap")
        met.append(i)


def _bounds(array):
    """First address and the address after the last, of any strides; nothing if it is empty."""
    start = array.__array_interface__["data"][0]
    if array.size == 0:
        return start, start
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    low, high = (sum(f(way, 0) for way in reach) for f in (min, max))
    return start + low, start + high + array.itemsize


def _span(rows):
    """First address and the address after the last; nothing for an empty array."""
    start = rows.__array_interface__["data"][0]
    return start, start + rows.nbytes


def _first_not_finite(group):
    """Name of the first array that holds NaN or inf."""
    if len(group.blocks) == 1:
        return "x"
    bad = (f"x[{i}]" for i, b in enumerate(group.blocks) if not np.isfinite(b.x).all())
    return next(bad)


# --- the search ----------------------------------------------------------------------


class _Block(NamedTuple):
    """Vectors of one length, the rows of a matrix."""

    x: np.ndarray
    z: np.ndarray  # x, or x with its rows scaled
    out: np.ndarray
    buffer: np.ndarray  # scratch: `out`, unless that is x
    place: int  # of its first vector
    piece: int  # its first piece
    pieces: int


class _Group(NamedTuple):
    """All vectors, and what the kernels need to go over them."""

    blocks: list[_Block]
    v: Any
    part: np.ndarray
    kept: np.ndarray
    workers: int

    @classmethod
    def of(cls, slices, targets, workers):
        shapes = [z.shape for z, _ in targets]
        v = kernels.new_vectors(sum(count for count, _ in shapes))
        blocks, place, pieces, total = [], 0, 0, 0
        for s, (z, goal) in zip(slices, targets, strict=True):
            kernels.fill_vectors(v, place, *z.shape, s.slack)
            count = len(z) * kernels.pieces_of(z.shape[1])
            buffer = np.empty_like(z) if goal.in_place else goal.rows
            blocks.append(_Block(z, z, goal.rows, buffer, place, pieces, count))
            place, pieces, total = place + len(z), pieces + count, total + z.nbytes
        if total < _PARALLEL_FROM:
            workers = 1
        return cls(blocks, v, np.empty((pieces, 4)), np.zeros(pieces, np.int64), workers)

    def each(self, kernel: Callable[..., object], given: Callable[[_Block], tuple]) -> None:
        """Call ``kernel(*given(block), first, last)`` on all pieces, by all workers."""
        if len(self.blocks) == 1:
            (b,) = self.blocks
            run_split(partial(kernel, *given(b)), b.pieces, self.workers)
            return

        def run(first, last):
            for b in self.blocks:
                i, j = max(first - b.piece, 0), min(last - b.piece, b.pieces)
                if i < j:
                    kernel(*given(b), i, j)

        run_split(run, len(self.part), self.workers)

    def run_pass(self, kind):
        """The sums over all vectors; `kind` may depend on the block."""
        self.each(
            kernels.run_pass,
            lambda b: (kind(b), b.z, b.buffer, self.kept, self.v, b.place, self.part),
        )


def _search(group, sparseness, check_finite):
    """Find μ; leaves the thresholds and the sums at μ in the group's vectors."""
    v, part = group.v, group.part
    group.run_pass(lambda b: kernels.FIRST)
    if not kernels.take_tops(v, part):
        if check_finite:
            raise _checks.not_finite(_first_not_finite(group))
        return Search(*kernels.start(v))._replace(status=m.NONFINITE, mean=np.nan, passes=1)
    st = Search(*kernels.start(v))
    if not v.beta.any():  # no vector has more than one entry
        return st._replace(status=m.FEASIBLE)
    if sparseness == 1.0:
        kernels.take_sums(v, part)
        return Search(*kernels.one_each(v, st))
    if _scale(group):
        group.run_pass(lambda b: kernels.FIRST)
        kernels.take_tops(v, part)
        st = Search(*kernels.start(v))
    collected = False
    while True:
        if kernels.take_sums(v, part):
            group.run_pass(lambda b: kernels.TIES)
            kernels.take_ties(v, part)
        st = Search(*kernels.advance(v, st, sparseness))
        if st.status != m.GO:
            return st
        kind = kernels.WHOLE
        if collected:
            kind = kernels.SHRINK if st.certain else kernels.KEPT
        elif st.certain:
            kind, collected = kernels.COLLECT, True

        def kind_of(b, kind=kind):
            short = b.x.shape[1] < kernels.COLLECT_FROM
            return kernels.WHOLE if short else kind

        group.run_pass(kind_of)


def _scale(group):
    """Scale the rows of blocks whose range is too small for the search; whether there are any."""
    scaled = False
    for k, b in enumerate(group.blocks):
        tops = group.v.top[b.place : b.place + len(b.x)]
        if kernels.out_of_range(tops):
            z = np.empty_like(b.x)
            kernels.scale_rows(b.x, group.v, b.place, z)
            group.blocks[k] = b._replace(z=z)
            scaled = True
    return scaled


def _info(slices, results, shape, v, verdict):
    """The report, in the vectors' shape."""
    with np.errstate(over="ignore", under="ignore"):
        threshold = np.ldexp(np.minimum(v.tau, v.top), v.exponent)
        multiplier = float(np.ldexp(verdict.mu, verdict.unit))
    if verdict.status == m.NONFINITE:
        multiplier, threshold[:] = math.nan, math.nan
    nnz = [np.count_nonzero(r, axis=s.axis) for s, r in zip(slices, results, strict=True)]
    return GSPInfo(
        multiplier,
        threshold.reshape(shape),
        1.0 - verdict.mean,
        np.asarray(nnz, np.int64).reshape(shape),
        verdict.passes,
        verdict.status != m.CAPPED,
    )
