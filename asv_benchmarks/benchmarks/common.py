"""What the benchmarks share: the floor, the data, the parameters and the timing."""

import gc
import importlib
import os
from functools import cache, partial, wraps
from itertools import cycle
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

    A projection can do with less only where it knows, when it first reads an entry, what becomes
    of it. Constants and sums have the data's dtype, but for the sums over blocks; loops go over
    slices: both so that they vectorise.
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

    Each thread gets a contiguous part. They are the library's own, which stay awake for a
    moment: those of another pool would have to be woken, and would find them in their way.
    Several rows count as one long vector unless `by_row` is set: then a row is still in the
    cache when it is read again, and the floor is lower.
    """
    rows = y.shape if by_row else (1, y.size)
    y, out = y.reshape(rows), out.reshape(rows)
    if threads == 1:
        return partial(floor, y, out)
    cut = 0 if by_row else 1
    parts = list(zip(*(np.array_split(a, threads, axis=cut) for a in (y, out)), strict=True))

    def task(first, last):
        for part in parts[first:last]:
            floor(*part)

    return partial(private("_threads").run_split, task, threads, threads)


def require_processors(count):
    """Skip the benchmark where several threads cannot run at once."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    if available < count:
        raise NotImplementedError(f"needs {count} processors, there are {available}")


def require(package):
    """Import a package, or skip the benchmark where it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise NotImplementedError(f"needs {package}") from None


def private(name):
    """A module of the library that versions need not have, imported where it is used."""
    return require(f"conehoyer.{name}")


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
DEMANDING = {
    # with an edge that samples do not find where half of the entries stay
    "clusters": lambda rng, n: 1.0 + 9.0 * (np.arange(n) % 2) + 0.01 * rng.standard_normal(n),
    "ninth powers": lambda rng, n: rng.standard_normal(n) ** 9,
    # with many entries at the threshold, which float32 sums cannot tell from those below
    "rounded": lambda rng, n: np.round(40.0 * rng.standard_normal(n)),
}


def data(distribution, shape, dtype="float64"):
    """The same data at every call; `shape` is a length or a tuple."""
    rng = np.random.default_rng(0)
    y = (DISTRIBUTIONS | DEMANDING)[distribution](rng, int(np.prod(shape)))
    return y.reshape(shape).astype(dtype, copy=False)


# --- levels and radii ----------------------------------------------------------------


def _count(y, kept):
    return max(round(kept * y.shape[-1]), 1)


def _sum_above(values, kept):
    """Σ max(values − τ, 0) along the last axis, τ the first entry that is not to be kept."""
    edge = values.shape[-1] - _count(values, kept) - 1
    tau = np.partition(values, edge, axis=-1)[..., edge, None]
    if values.ndim == 1 and tau == values.max():  # ties at the top: down to the next value
        if tau == values.min():
            raise NotImplementedError("all entries are the same")
        tau = values[values < tau].max()
    return np.maximum(values - tau, 0).sum(axis=-1, dtype=np.float64)


def _level(y, kept):
    return conehoyer.level_for_nnz(y, _count(y, kept))


def _sparseness(y, kept):
    root = np.sqrt(y.shape[-1])
    return (root - np.sqrt(_level(y, kept))) / (root - 1.0)


def groups_in(groups, rows, columns):
    """How many groups a matrix has."""
    if isinstance(groups, str):
        return {"columns": columns, "rows": rows, "diagonals": rows + columns - 1}[groups]
    return -(-rows // groups[0]) * -(-columns // groups[1])


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

    def call(self, *arrays, **options):
        """The projection as a call without arguments, compiled and warm."""
        y, out = arrays or (self.y, self.out)
        options = {"out": out, "workers": 1} | options
        call = partial(self.project, y, self.parameter, **options)
        call()
        return call

    def over(self, reference, seconds=0.5, **options):
        """Time of the projection relative to the call that ``reference(y, out)`` makes."""
        pairs = [
            (self.call(*arrays, **options), reference(*arrays))
            for arrays in copies(self.y, self.out)
        ]
        return compare(*pairs, seconds=seconds)

    def over_floor(self, seconds=0.5, threads=1, by_row=False):
        """Time of the projection relative to the floor with as many threads."""
        reference = partial(floor_call, threads=threads, by_row=by_row)
        return self.over(reference, seconds, workers=threads)

    def over_floor_on_new_data(self, seconds=0.5):
        """`over_floor` of one row with the entries in another order at each call.

        Called on the same data again and again, a processor learns which branches they take.
        """
        calls = self._on_new_data(1, lambda y: self.call(y, self.out))
        references = self._on_new_data(2, lambda y: floor_call(y, self.out))
        return compare((calls, references), seconds=seconds)

    def _on_new_data(self, seed, call):
        """A call that goes through orders of the entries which nothing else touches."""
        rng = np.random.default_rng(seed)
        orders = [rng.permutation(self.y) for _ in range(max((1 << 22) // self.y.nbytes, 3))]
        turns = cycle([call(y) for y in orders])
        return lambda: next(turns)()

    def floor_over_itself_on_new_data(self, seconds=0.5):
        """1 where `over_floor_on_new_data` treats both sides alike."""
        sides = [self._on_new_data(seed, lambda y: floor_call(y, self.out)) for seed in (1, 2)]
        return compare(sides, seconds=seconds)

    def over_sort(self, seconds=0.5, **options):
        """Time of the projection relative to sorting the input."""
        return self.over(lambda y, out: partial(np.sort, y), seconds, **options)

    def over_sort_of_magnitudes(self, seconds=0.5, **options):
        """The same with ``np.sort(np.abs(y))``, which projecting by sorting starts with."""
        return self.over(lambda y, out: lambda: np.sort(np.abs(y)), seconds, **options)

    def method_over(self, method, other=None, seconds=0.5):
        """Time of a method relative to the default of this problem, or of another one."""
        return compare((self.call(method=method), (other or self).call()), seconds=seconds)


@cache
def problem(function, distribution, shape, dtype, kept):
    """A `Problem`, made once: asv calls ``setup`` before every sample of a ``time_``."""
    return Problem(function, data(distribution, shape, dtype), kept)


# --- timing --------------------------------------------------------------------------

BLOCKS = 5


class Comparison(NamedTuple):
    """How long a call takes relative to another, both times in seconds, and all ratios."""

    ratio: float
    call: float
    reference: float
    samples: tuple = ()


def compare(*pairs, seconds=0.5, apart=False):
    """Time two calls in turn, in five blocks; each block has a pair of its own, or the one.

    Neighbours in time see the same clock rate and the same other load. A block counts with
    the lower decile of each call, which is its time without interruptions; the block with the
    median ratio is the answer.

    `apart`: each call is repeated for some milliseconds before the other has its turn, and its
    first time does not count. Where only one of them is by the library's threads: one of these
    stays awake for a millisecond after a call, and would take the processor from the other's.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        blocks = [
            (_apart if apart else _block)(*pairs[i % len(pairs)], seconds=seconds / BLOCKS)
            for i in range(max(BLOCKS, len(pairs)))
        ]
    finally:
        if collecting:
            gc.enable()
    ratios = tuple(float(f"{call / reference:.4g}") for call, reference in blocks)
    middle = sorted(range(len(blocks)), key=ratios.__getitem__)[len(blocks) // 2]
    return Comparison(ratios[middle], *blocks[middle], ratios)


def _block(call, reference, seconds):
    call()
    reference()
    times = []
    end = perf_counter() + seconds
    while len(times) < 2 or (perf_counter() < end and len(times) < 1000):
        t0 = perf_counter()
        call()
        t1 = perf_counter()
        reference()
        t2 = perf_counter()
        times.append((t1 - t0, t2 - t1))
    return [float(t) for t in np.quantile(times, 0.1, axis=0)]


def _apart(*calls, seconds, turn=0.005):
    times = [], []
    end = perf_counter() + seconds
    while len(times[1]) < 4 or perf_counter() < end:
        for call, own in zip(calls, times, strict=True):
            call()
            t0 = start = perf_counter()
            while t0 < start + turn or len(own) < 2:
                call()
                t1 = perf_counter()
                own.append(t1 - t0)
                t0 = t1
    return [float(np.quantile(own, 0.1)) for own in times]


def copies(*arrays):
    """The arrays, and copies elsewhere in memory where they are small.

    The time of a pass over a cached array depends on where its pages lie, by a tenth or more.
    """
    if arrays[0].nbytes > 1 << 23:
        return [arrays]
    others = range(BLOCKS - 1)
    return [arrays] + [tuple(a.copy(order="K") for a in arrays) for _ in others]


def sampled(unit, rounds=2):
    """Make a ``track_`` benchmark of a method that returns a list of samples.

    They come from `rounds` processes: from one to the next memory lies elsewhere. asv shows
    their median, and tells a change from noise as it does for ``time_``.
    """

    def decorate(track):
        @wraps(track)
        def samples(*args):
            return {"samples": list(track(*args)), "number": 1}

        samples.unit, samples.rounds = unit, rounds
        return samples

    return decorate


def floor_over_copyto(n, dtype, seconds=0.5):
    """Bytes per second of the floor over those of ``np.copyto``, on the same warm arrays."""
    y = data("gaussian", n, dtype)
    out = np.zeros_like(y)
    copy = partial(np.copyto, out, y)
    # The floor reads 2n and writes n entries, the copy reads and writes n.
    return 1.5 * compare((copy, floor_call(y, out)), seconds=seconds).ratio
