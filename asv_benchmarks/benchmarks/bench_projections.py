"""Projections relative to the floor, to sorting and to the classical algorithms."""

from contextlib import suppress
from functools import partial
from itertools import product

import numpy as np

import conehoyer

from . import counting
from .common import (
    BLOCKS,
    DEMANDING,
    DISTRIBUTIONS,
    DTYPES,
    KEPT,
    PARAMETERS,
    ROWS,
    SIZES,
    Problem,
    compare,
    copies,
    data,
    floor_call,
    problem,
    require_processors,
    sampled,
)

FUNCTIONS = ("project_cai", "project_l1_ball")
METHODS = {
    "iterative": "project_cai",
    "alternating": "project_hoyer",
    "condat": "project_l1_ball",
    "sort": "project_l1_ball",
}
TYPICAL = {
    "project_cai": 100.0,
    "project_hoyer": 0.5,
    "project_l1_ball": 100.0,
    "project_simplex": 100.0,
}
TWO = (0.5, 0.01)  # nonzeros, where two shares must do
FEW = {  # for rows of a few entries
    "project_cai": 1.5,
    "project_hoyer": 0.5,
    "project_l1_ball": 1.0,
    "project_simplex": 1.0,
}


class Floor:
    """The yardstick over ``np.copyto``, which moves two thirds as much: at most 1.9."""

    params = (DTYPES, SIZES)
    param_names = ("dtype", "n")

    def setup(self, dtype, n):
        y = data("gaussian", n, dtype)
        self.pairs = [
            (floor_call(y, out), partial(np.copyto, out, y))
            for y, out in copies(y, np.zeros_like(y))
        ]

    @sampled("ratio")
    def track_floor_over_copyto(self, dtype, n):
        return compare(*self.pairs).samples


class Times:
    """Wall time, for once; a new result at each call, or into `out`."""

    params = (tuple(PARAMETERS), DTYPES, (1_000, *SIZES))
    param_names = ("function", "dtype", "n")
    repeat = (3, 20, 0.5)

    def setup(self, function, dtype, n):
        case = problem(function, "gaussian", n, dtype, 0.1)
        self.new = partial(case.project, case.y, case.parameter)
        self.warm = partial(self.new, out=case.out)

    def time_new(self, *params):
        self.new()

    def time_out(self, *params):
        self.warm()


class OneWorker:
    params = (FUNCTIONS, DTYPES, SIZES, KEPT)
    param_names = ("function", "dtype", "n", "kept")

    def setup(self, function, dtype, n, kept):
        self.problem = Problem(function, data("gaussian", n, dtype), kept)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class NewData:
    params = (FUNCTIONS, DTYPES, SIZES[:2], KEPT)
    param_names = ("function", "dtype", "n", "kept")

    def setup(self, function, dtype, n, kept):
        self.problem = Problem(function, data("gaussian", n, dtype), kept)

    @sampled("ratio")
    def track_over_floor(self, *params):
        """Entries in another order at each call: no branch is known beforehand."""
        return self.problem.over_floor_on_new_data().samples


class Distributions:
    params = (tuple(PARAMETERS), tuple(DISTRIBUTIONS), TWO)
    param_names = ("function", "distribution", "kept")

    def setup(self, function, distribution, kept):
        self.problem = Problem(function, data(distribution, 1_000_000), kept)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples

    def track_passes(self, *params):
        """Evaluations of the sums, some of them on few entries."""
        return int(self.problem.call(full_output=True)()[1].passes)

    track_passes.unit = "passes"


class Demanding:
    params = (tuple(PARAMETERS), DTYPES, tuple(DEMANDING), TWO)
    param_names = ("function", "dtype", "distribution", "kept")

    def setup(self, function, dtype, distribution, kept):
        self.problem = Problem(function, data(distribution, 1_000_000, dtype), kept)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class Again:
    """A result of which a tenth is not zero, projected once more: as it is, or after a small step.

    As it is, nothing is left to do but to find that out.
    """

    params = (tuple(PARAMETERS), DTYPES, SIZES[:2], ("as it is", "after a step"))
    param_names = ("function", "dtype", "n", "result")

    def setup(self, function, dtype, n, result):
        first = Problem(function, data("gaussian", n, dtype), 0.1)
        self.project = partial(first.project, workers=1)
        self.x, self.parameter = first.out, first.parameter
        if result != "as it is":
            step = 1e-3 * np.random.default_rng(1).standard_normal(n)
            self.x = (self.x + step).astype(dtype)

    @sampled("ratio")
    def track_over_floor(self, *params):
        pairs = [
            (partial(self.project, x, self.parameter, out=out), floor_call(x, out))
            for x, out in copies(self.x, np.zeros_like(self.x))
        ]
        return compare(*pairs).samples


class OtherUnits:
    """1,000,000 entries times a power of two, so that squares leave the range of numbers."""

    params = (FUNCTIONS, DTYPES, ("small", "large"))
    param_names = ("function", "dtype", "entries")

    def setup(self, function, dtype, entries):
        exponent = (50 if dtype == "float32" else 600) * (1 if entries == "large" else -1)
        y = np.ldexp(data("gaussian", 1_000_000, dtype), exponent)
        self.problem = Problem(function, y, 0.01)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class Layouts:
    """Slices of 1000 × 1000 entries, and the floor on as many side by side."""

    params = (DTYPES, ("C", "F", "every other column"), (0, 1, None))
    param_names = ("dtype", "order", "axis")

    def setup(self, dtype, order, axis):
        y = data("gaussian", (1000, 1000), dtype)
        if order == "F":
            y = np.asfortranarray(y)
        elif order != "C":
            y = np.repeat(y, 2, axis=1)[:, ::2]
        length = y.size if axis is None else y.shape[axis]
        level = conehoyer.level_for_nnz(y, length // 10, axis=axis)
        self.project = partial(conehoyer.project_cai, y, level, axis=axis, workers=1)
        self.flat = np.ravel(y, "K")

    @sampled("ratio")
    def track_over_floor(self, *params):
        outs = [np.zeros((1000, 1000), self.flat.dtype) for _ in range(BLOCKS)]
        return compare(
            *[(partial(self.project, out=out), floor_call(self.flat, out)) for out in outs]
        ).samples


class OtherOrder:
    """2,000 × 2,000 entries across their order in memory, over the same along it.

    And the slices of a Fortran-ordered array of 150 × 160 × 170, over the same as rows.
    """

    AXES = ("first of three axes", "second of three axes", "last of three axes")
    params = (DTYPES, ("columns", "one vector", "matrix", "exact matrix", *AXES))
    param_names = ("dtype", "call")

    def setup(self, dtype, call):
        if call in self.AXES:
            axis = self.AXES.index(call)
            y = np.asfortranarray(data("gaussian", (150, 160, 170), dtype))
            rows = np.ascontiguousarray(np.moveaxis(y, axis, -1))
            project = partial(conehoyer.project_cai, level=0.1 * y.shape[axis], workers=1)
            self.calls = [
                partial(project, slices, axis=along, out=np.zeros_like(slices))
                for slices, along in ((y, axis), (rows, -1))
            ]
            return
        y = data("gaussian", (2000, 2000), dtype)
        turned, out, level = np.asfortranarray(y), np.zeros_like(y), 0.1 * len(y)
        if call == "columns":
            project = partial(conehoyer.project_cai, level=level, workers=1)
            self.calls = partial(project, y, axis=0, out=out), partial(project, y, axis=1, out=out)
        elif call == "one vector":
            project = partial(conehoyer.project_cai, level=0.1 * y.size, axis=None, workers=1)
            goal = np.zeros_like(turned)
            self.calls = partial(project, turned, out=goal), partial(project, y, out=out)
        elif call == "matrix":
            project = partial(conehoyer.project_bilevel, level=level, workers=1)
            self.calls = partial(project, turned, out=out), partial(project, y, out=out)
        else:
            project = partial(conehoyer.project_l1inf_ball, y, radius=level, out=out, workers=1)
            self.calls = partial(project, groups="columns"), partial(project, groups="rows")

    @sampled("ratio")
    def track_over_in_order(self, *params):
        return compare(self.calls).samples


class Channels:
    """Slices across the memory, a few side by side as channels are, over the same as rows."""

    params = (DTYPES, (1000, 10_000, 1_000_000), (2, 3, 4, 8, 16))
    param_names = ("dtype", "n", "channels")

    def setup(self, dtype, n, channels):
        rows = data("gaussian", (channels, n), dtype)
        level = conehoyer.level_for_nnz(rows, n // 10)
        self.calls = []
        for y, axis in (np.ascontiguousarray(rows.T), 0), (rows, 1):
            project = partial(conehoyer.project_cai, y, level, axis=axis, workers=1)
            self.calls.append(partial(project, out=np.zeros_like(y)))

    @sampled("ratio")
    def track_over_rows(self, *params):
        return compare(self.calls).samples


class Converted:
    """1,000,000 entries that have to be copied as they are read, over NumPy's copy of them."""

    params = (("int64", ">f8", "float16", "every other", "reversed"),)
    param_names = ("kind",)

    def setup(self, kind):
        y = data("gaussian", 1_000_000)
        if kind == "every other":
            y = np.repeat(y, 2)[::2]
        elif kind == "reversed":
            y = y[::-1]
        else:
            y = (1000 * y).astype(kind)
        level = conehoyer.level_for_nnz(y, 10_000)
        project = partial(conehoyer.project_cai, y, level, workers=1)
        self.calls = project, lambda: y.astype(np.float64)

    @sampled("ratio")
    def track_over_copy(self, kind):
        return compare(self.calls).samples


class CacheLines:
    """Data and results that begin so many bytes after a cache line, over those that begin there."""

    params = (DTYPES, SIZES[:2], (0, 16), (0, 16))
    param_names = ("dtype", "n", "data", "result")

    def setup(self, dtype, n, *places):
        y = data("gaussian", n, dtype)
        level = conehoyer.level_for_nnz(y, n // 2)

        def call(*places):
            x, out = (self.array(n, y.dtype, place) for place in places)
            x[:] = y
            return partial(conehoyer.project_cai, x, level, out=out, workers=1)

        self.calls = call(*places), call(0, 0)

    @staticmethod
    def array(n, dtype, place):
        room = np.zeros(n * dtype.itemsize + 128, np.uint8)
        begin = -room.ctypes.data % 64 + place
        return room[begin : begin + n * dtype.itemsize].view(dtype)

    @sampled("ratio")
    def track_over_aligned(self, *params):
        return compare(self.calls).samples


class Beside:
    """What goes with a projection, over the projection itself: its level, and its report."""

    params = (DTYPES, SIZES, TWO)
    param_names = ("dtype", "n", "kept")

    def setup(self, dtype, n, kept):
        self.problem = Problem("project_cai", data("gaussian", n, dtype), kept)

    @sampled("ratio")
    def track_level_for_nnz(self, dtype, n, kept):
        find = partial(conehoyer.level_for_nnz, self.problem.y, round(kept * n))
        return compare((find, self.problem.call())).samples

    @sampled("ratio")
    def track_level_for_nnz_nonneg(self, dtype, n, kept):
        y, count = self.problem.y, round(kept * n / 2)  # as many as the other, of the positive half
        find = partial(conehoyer.level_for_nnz, y, count, nonneg=True)
        return compare((find, partial(conehoyer.project_cai, y, find(), nonneg=True))).samples

    @sampled("ratio")
    def track_full_output(self, *params):
        return compare((self.problem.call(full_output=True), self.problem.call())).samples


class TwoWorkers:
    """Against the floor with two threads, one on each half."""

    params = (FUNCTIONS, DTYPES, ("gaussian", "cauchy"), TWO)
    param_names = ("function", "dtype", "distribution", "kept")

    def setup(self, function, dtype, distribution, kept):
        require_processors(2)
        self.problem = Problem(function, data(distribution, max(SIZES), dtype), kept)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor(threads=2).samples


class SharedVector:
    """Five calls in a row on one vector, by two workers over those by one.

    Shorter vectors than 8 MB are shared by threads that are awake alone.
    """

    params = (FUNCTIONS, DTYPES, (600_000, 1_000_000, 2_000_000))
    param_names = ("function", "dtype", "n")

    def setup(self, function, dtype, n):
        require_processors(2)
        self.problem = Problem(function, data("gaussian", n, dtype), 0.01)

    def calls(self, arrays, workers):
        call = self.problem.call(*arrays, workers=workers)
        return lambda: [call() for _ in range(5)]

    @sampled("ratio")
    def track_over_one_worker(self, *params):
        given = copies(self.problem.y, self.problem.out)
        pairs = [(self.calls(arrays, 2), self.calls(arrays, 1)) for arrays in given]
        return compare(*pairs, seconds=1.0).samples


class TwoWorkersOnRows:
    """10,000 rows of 1,000, each projected by itself."""

    params = (FUNCTIONS, DTYPES, TWO)
    param_names = ("function", "dtype", "kept")

    def setup(self, function, dtype, kept):
        require_processors(2)
        self.problem = Problem(function, data("gaussian", ROWS, dtype), kept)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor(threads=2).samples

    @sampled("ratio")
    def track_over_floor_by_row(self, *params):
        """The stricter floor: each row is in the cache when it is read again."""
        return self.problem.over_floor(threads=2, by_row=True).samples


class ShortRows:
    """200,000 entries as rows, by one worker, over the floor that goes row by row."""

    params = (FUNCTIONS, DTYPES, (40, 100, 300, 1000))
    param_names = ("function", "dtype", "n")

    def setup(self, function, dtype, n):
        self.problem = problem(function, "gaussian", (200_000 // n, n), dtype, 0.1)

    @sampled("ratio")
    def track_over_floor_by_row(self, *params):
        return self.problem.over_floor(by_row=True).samples


class NarrowRows:
    """200,000 entries as rows of a few, by one worker, over sorting these with NumPy."""

    params = (tuple(FEW), DTYPES, (3, 10, 30))
    param_names = ("function", "dtype", "n")

    def setup(self, function, dtype, n):
        y = data("gaussian", (200_000 // n, n), dtype)
        project = partial(getattr(conehoyer, function), y, FEW[function])
        self.calls = partial(project, out=np.empty_like(y), workers=1), partial(np.sort, y)
        self.calls[0]()

    @sampled("ratio")
    def track_over_sort(self, *params):
        return compare(self.calls).samples


class LevelForNnz:
    """Levels that keep a tenth, over the projections to them: 400,000 entries as rows, or one."""

    params = (DTYPES, (20, 200, 1000, 4000, 400_000))
    param_names = ("dtype", "n")

    def setup(self, dtype, n):
        y = data("gaussian", (400_000 // n, n), dtype)
        choose = partial(conehoyer.level_for_nnz, y, n // 10)
        project = partial(conehoyer.project_cai, y, choose(), out=np.empty_like(y), workers=1)
        self.calls = choose, project
        project()

    @sampled("ratio")
    def track_over_projection(self, *params):
        return compare(self.calls).samples


class RowsInMemory:
    """10,000,000 entries as rows, by one worker, over the floor that goes row by row."""

    params = (FUNCTIONS, DTYPES, (300, 1000, 5000, 16000))
    param_names = ("function", "dtype", "n")

    def setup(self, function, dtype, n):
        self.problem = problem(function, "gaussian", (10_000_000 // n, n), dtype, 0.1)

    @sampled("ratio")
    def track_over_floor_by_row(self, *params):
        return self.problem.over_floor(by_row=True).samples


class Memory:
    """Peak memory of the process; data and result take 64 MB each."""

    params = (tuple(TYPICAL), (-1, 0, None), (1, 2))
    param_names = ("function", "axis", "workers")

    def setup_cache(self):
        for params in product(*self.params):  # all that compiles, which takes memory, elsewhere
            with suppress(NotImplementedError):
                self.setup(*params)
                self.project()

    def setup(self, function, axis, workers):
        require_processors(workers)
        y = data("gaussian", (8000, 1000))
        project = getattr(conehoyer, function)
        self.project = partial(project, y, TYPICAL[function], axis=axis, workers=workers)

    def peakmem_project(self, *params):
        self.project()


class OverSort:
    params = (tuple(PARAMETERS), DTYPES, SIZES[:2], TWO)
    param_names = ("function", "dtype", "n", "kept")

    def setup(self, function, dtype, n, kept):
        self.problem = Problem(function, data("gaussian", n, dtype), kept)

    @sampled("ratio")
    def track_over_sort(self, *params):
        return self.problem.over_sort().samples


class Methods:
    """The default over a classical algorithm for the same projection."""

    params = (tuple(METHODS), DTYPES, SIZES[:2], KEPT)
    param_names = ("method", "dtype", "n", "kept")

    def setup(self, method, dtype, n, kept):
        self.problem = Problem(METHODS[method], data("gaussian", n, dtype), kept)

    @sampled("ratio")
    def track_default_over_method(self, method, *params):
        return compare((self.problem.call(), self.problem.call(method=method))).samples


class Condat:
    """Whether our version of Condat's algorithm is a fair one."""

    params = (DTYPES, SIZES, TWO)
    param_names = ("dtype", "n", "kept")

    def setup(self, dtype, n, kept):
        self.problem = Problem("project_l1_ball", data("gaussian", n, dtype), kept)

    @sampled("ratio")
    def track_over_sort(self, *params):
        return self.problem.over_sort_of_magnitudes(method="condat").samples


class Alternating:
    """The projection onto the cone over Hoyer's algorithm, which finds the same direction."""

    params = (DTYPES, SIZES[:2], KEPT)
    param_names = ("dtype", "n", "kept")

    def setup(self, dtype, n, kept):
        y = data("gaussian", n, dtype)
        self.problem = Problem("project_hoyer", y, kept)
        self.cai = Problem("project_cai", y, kept)

    @sampled("ratio")
    def track_cai_over_alternating(self, *params):
        return compare((self.cai.call(), self.problem.call(method="alternating"))).samples


class Operations:
    """Arithmetic operations an entry of the published algorithms, see `counting`."""

    params = (("cfp", "alternating"), ("gaussian", "uniform"), (1_000, *SIZES[:2]), KEPT[:3])
    param_names = ("algorithm", "distribution", "n", "kept")
    unit = "operations"

    def setup(self, algorithm, distribution, n, kept):
        self.y = data(distribution, n)
        self.level = PARAMETERS["project_cai"](self.y, kept)

    def track_operations(self, algorithm, *params):
        return getattr(counting, algorithm)(self.y, self.level)[1].operations / self.y.size
