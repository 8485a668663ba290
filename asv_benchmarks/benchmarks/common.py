"""What the benchmarks share: the floor, the data, the parameters and the timing."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple

import numba
import numpy as np

import conehoyer

DTYPES = ("float32", "float64")
SIZES = (100_000, 1_000_000, 10_000_000)
ROWS = (10_000, 1_000)
KEPT = (0.5, 0.1, 0.01, 0.001)
BLOCK = 4096


# --- the floor -----------------------------------------------------------------------


@numba.njit(
    nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract", "arcp", "nsz"}
)
def floor(y, out):
    """Read each row once, for its sum and sum of squares, then read it again and write `out`.

    No projection can do with less. Constants and sums have the data's dtype, but for the
    sums over blocks; loops go over slices: both so that they vectorise.
    """
    zero = y.dtype.type(0)
    half = y.dtype.type(0.5)
    total = 0.0
    squares = 0.0
    for r in range(y.shape[0]):
        row = y[r]
        target = out[r]
        for first in range(0, row.size, BLOCK):
            z = row[first : first + BLOCK]
            s = zero
            q = zero
            for i in range(z.size):
                s += abs(z[i])
                q += z[i] * z[i]
            total += s
            squares += q
        for first in range(0, row.size, BLOCK):
            z = row[first : first + BLOCK]
            w = target[first : first + BLOCK]
            for i in range(z.size):
                w[i] = z[i] * half
    return total, squares


def floor_call(y, out, threads=1, by_row=False):
    """A call without arguments of the floor on these arrays.

    Each thread gets a contiguous part. Several rows count as one long vector unless `by_row`
    is set: then a row is still in the cache when it is read again, and the floor is lower.
    """
    rows = y.shape if by_row else (1, y.size)
    y, out = y.reshape(rows), out.reshape(rows)
    if threads == 1:
        return partial(floor, y, out)
    cut = 0 if by_row else 1
    parts = [np.array_split(a, threads, axis=cut) for a in (y, out)]
    (z, w), *others = zip(*parts, strict=True)
    pool = ThreadPoolExecutor(threads - 1)

    def call():
        running = [pool.submit(floor, *other) for other in others]
        floor(z, w)
        for future in running:
            future.result()

    return call


def require_processors(count):
    """Skip the benchmark where several threads cannot run at once."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    if available < count:
        raise NotImplementedError(f"needs {count} processors, there are {available}")


# --- the data ------------------------------------------------------------------------

EASY = {
    "gaussian": lambda rng, n: rng.standard_normal(n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "uniform": lambda rng, n: rng.uniform(-1.0, 1.0, n),
}
HARD = {
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "zipf": lambda rng, n: 1.0 / np.arange(1, n + 1),
    "geometric": lambda rng, n: 0.999 ** np.arange(n),
    "two-valued": lambda rng, n: rng.choice([1.0, 2.0], n),
    "sorted": lambda rng, n: np.sort(rng.standard_normal(n)),
}
DISTRIBUTIONS = EASY | HARD


def data(distribution, shape, dtype="float64"):
    """The same data at every call; `shape` is a length or a tuple."""
    rng = np.random.default_rng(0)
    y = DISTRIBUTIONS[distribution](rng, int(np.prod(shape)))
    return y.reshape(shape).astype(dtype, copy=False)


# --- levels and radii ----------------------------------------------------------------


def _count(y, kept):
    return max(round(kept * y.shape[-1]), 1)


def _sum_above(values, kept):
    """Σ max(values − τ, 0) along the last axis, τ the first entry that is not to be kept."""
    edge = values.shape[-1] - _count(values, kept) - 1
    tau = np.partition(values, edge, axis=-1)[..., edge, None]
    if values.ndim == 1 and tau == values.max():  # ties at the top: down to the next value
        tau = values[values < tau].max()
    return np.maximum(values - tau, 0).sum(axis=-1, dtype=np.float64)


def _level(y, kept):
    return conehoyer.level_for_nnz(y, _count(y, kept))


def _sparseness(y, kept):
    root = np.sqrt(y.shape[-1])
    return (root - np.sqrt(_level(y, kept))) / (root - 1.0)


PARAMETERS = {
    "project_cai": _level,
    "project_hoyer": _sparseness,
    "project_l1_ball": lambda y, kept: _sum_above(np.abs(y), kept),
    "project_simplex": _sum_above,
}


class Problem:
    """A projection that leaves a share `kept` of nonzeros, on warm arrays."""

    def __init__(self, function, y, kept):
        self.y = y
        self.out = np.zeros_like(y)
        self.project = getattr(conehoyer, function)
        self.parameter = PARAMETERS[function](y, kept)
        if not np.isfinite(self.parameter).all():
            raise NotImplementedError(f"no parameter of {function} keeps {kept:%}")
        self.call()()
        nonzeros = np.count_nonzero(self.out) * y.shape[-1] / y.size
        wanted = _count(y, kept)
        if abs(nonzeros - wanted) > 0.1 * wanted + 1.0 or np.array_equal(self.out, y):
            raise NotImplementedError(f"{function} keeps {nonzeros:g}, not {wanted} entries")

    def call(self, **options):
        """The projection as a call without arguments, compiled and warm."""
        options = {"out": self.out, "workers": 1} | options
        call = partial(self.project, self.y, self.parameter, **options)
        call()
        return call

    def over(self, reference, seconds=0.5, **options):
        """Time of the projection relative to the call `reference`."""
        return compare(self.call(**options), reference, seconds)

    def over_floor(self, seconds=0.5, threads=1, by_row=False):
        """Time of the projection relative to the floor with as many threads."""
        reference = floor_call(self.y, self.out, threads, by_row)
        return self.over(reference, seconds, workers=threads)

    def over_sort(self, seconds=0.5, **options):
        """Time of the projection relative to sorting the input."""
        return self.over(partial(np.sort, self.y), seconds, **options)

    def over_sort_of_magnitudes(self, seconds=0.5, **options):
        """The same with ``np.sort(np.abs(y))``, which projecting by sorting starts with."""
        return self.over(lambda: np.sort(np.abs(self.y)), seconds, **options)

    def method_over(self, method, other=None, seconds=0.5):
        """Time of a method relative to the default of this problem, or of another one."""
        return self.over((other or self).call(), seconds, method=method)


# --- timing --------------------------------------------------------------------------


class Comparison(NamedTuple):
    """How long a call takes relative to another, and both times in seconds."""

    ratio: float
    call: float
    reference: float


def compare(call, reference, seconds=0.5, rounds=(5, 2000)):
    """Time two calls in turn; the median over the rounds of the ratio within a round.

    Neighbours in time see the same clock rate and the same other load.
    """
    call()
    reference()
    times = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        end = perf_counter() + seconds
        while len(times) < rounds[0] or (perf_counter() < end and len(times) < rounds[1]):
            t0 = perf_counter()
            call()
            t1 = perf_counter()
            reference()
            t2 = perf_counter()
            times.append((t1 - t0, t2 - t1))
    finally:
        if collecting:
            gc.enable()
    first, second = np.array(times).T
    return Comparison(
        float(np.median(first / second)), float(np.median(first)), float(np.median(second))
    )


def floor_over_copyto(n, dtype, seconds=0.5):
    """Bytes per second of the floor over those of ``np.copyto``, on the same warm arrays."""
    y = data("gaussian", n, dtype)
    out = np.zeros_like(y)
    copy = partial(np.copyto, out, y)
    # The floor reads 2n and writes n entries, the copy reads and writes n.
    return 1.5 * compare(copy, floor_call(y, out), seconds).ratio
