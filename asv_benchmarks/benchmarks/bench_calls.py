"""What a call costs whatever the data: small inputs, imports, the first call."""

import os
import subprocess
import sys
import tempfile
import timeit
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import ClassVar

import numpy as np

import conehoyer

from .common import (
    BLOCKS,
    DTYPES,
    PARAMETERS,
    compare,
    data,
    private,
    problem,
    require_processors,
    sampled,
)

SMALL = (10, 100, 1000)

IMPORT = """
import numpy, time
start = time.perf_counter()
import conehoyer
print(time.perf_counter() - start)
"""
FIRST_CALL = """
import conehoyer, numpy, time
y = numpy.random.default_rng(0).standard_normal({})
start = time.perf_counter()
conehoyer.project_cai(y, 50.0)
print(time.perf_counter() - start)
"""

SECOND_CALL = """
import conehoyer, numpy, time
y = numpy.random.default_rng(0).standard_normal((20, 50))
start = time.perf_counter()
conehoyer.project_cai(y, 5.0)
middle = time.perf_counter()
{}
print((time.perf_counter() - middle) / (middle - start))
"""
SECOND_CALLS = {
    "long": "conehoyer.project_cai(numpy.tile(y, 100), 5.0, axis=None)",
    "axis=0": "conehoyer.project_cai(y, 5.0, axis=0)",
    "project_bilevel": "conehoyer.project_bilevel(y, 5.0)",
    "two threads": "conehoyer.project_cai(numpy.tile(y, 2000), 5.0, axis=None, workers=2)",
}


def in_new_process(code, **environment):
    """Run the code in a new interpreter with this one's path; the number that it prints."""
    code = f"import sys; sys.path[:] = {sys.path!r}\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def import_over_numpy(repeats=9):
    """Seconds that ``import conehoyer`` takes once NumPy is imported."""
    return min(in_new_process(IMPORT) for _ in range(repeats))


def first_call(n, warm, repeats=5):
    """Seconds of the first call in a new process; the import of Numba is part of it."""
    code = FIRST_CALL.format(n)
    with tempfile.TemporaryDirectory() as cache:
        cold = in_new_process(code, NUMBA_CACHE_DIR=cache)
        if not warm:
            return cold
        return min(in_new_process(code, NUMBA_CACHE_DIR=cache) for _ in range(repeats))


def seconds(call):
    """What a call of some µs takes when nothing interrupts it, a few times over."""
    return [min(timeit.repeat(call, number=100, repeat=30)) / 100 for _ in range(BLOCKS)]


def small_problem(function, n):
    return problem(function, "gaussian", n, "float64", 0.5)


class Calls:
    params = (tuple(PARAMETERS), SMALL)
    param_names = ("function", "n")

    def setup(self, function, n):
        case = small_problem(function, n)
        self.project, self.y, self.parameter = case.project, case.y, case.parameter
        self.out = case.out

    @sampled("seconds")
    def track_call(self, function, n):
        return seconds(partial(self.project, self.y, self.parameter))

    @sampled("seconds")
    def track_call_with_out(self, function, n):
        return seconds(partial(self.project, self.y, self.parameter, out=self.out))


class SmallMatrices:
    """Calls that allocate their result, on small matrices, or on their rows or columns."""

    calls: ClassVar = {
        "project_bilevel": lambda y: conehoyer.project_bilevel(y, 2.0),
        "project_bilevel, blocks": lambda y: conehoyer.project_bilevel(y, 2.0, groups=(4, 4)),
        "project_l1inf_ball": lambda y: conehoyer.project_l1inf_ball(y, 2.0),
        "level_for_groups": lambda y: conehoyer.level_for_groups(y, 3),
        "project_cai": lambda y: conehoyer.project_cai(y, 2.0),
        "project_cai, axis=0": lambda y: conehoyer.project_cai(y, 2.0, axis=0),
        "project_cai, full_output": lambda y: conehoyer.project_cai(y, 2.0, full_output=True),
        "level_for_nnz": lambda y: conehoyer.level_for_nnz(y, 3),
    }
    params = (tuple(calls), (8, 32))
    param_names = ("call", "side")

    def setup(self, call, side):
        self.call = partial(self.calls[call], data("gaussian", (side, side), "float64"))
        self.call()

    @sampled("seconds")
    def track_call(self, call, side):
        return seconds(self.call)


class Scores:
    params = (("cai_score", "hoyer_score", "hoyer_sparseness", "gsp_score"), (100, 1_000_000))
    param_names = ("function", "n")
    repeat = (10, 100, 0.5)

    def setup(self, function, n):
        self.score = partial(getattr(conehoyer, function), _gaussian(n))
        self.score()

    def time_score(self, function, n):
        self.score()


class ScoresOfColumns:
    """Scores along the last axis but one, over NumPy's formula for them."""

    params = (DTYPES, ((10, 100_000), (1000, 1000), (100_000, 10), (100, 100, 100)))
    param_names = ("dtype", "shape")

    def setup(self, dtype, shape):
        y, axis = data("gaussian", shape, dtype), len(shape) - 2
        score = partial(conehoyer.hoyer_score, y, axis=axis, workers=1)
        self.calls = score, lambda: np.abs(y).sum(axis) ** 2 / (y * y).sum(axis)
        score()

    @sampled("ratio")
    def track_over_numpy(self, *params):
        return compare(self.calls).samples


class Levels:
    params = ((100, 100_000),)
    param_names = ("n",)
    repeat = (10, 100, 0.5)

    def setup(self, n):
        self.y, self.count = _gaussian(n), n // 10
        self.time_level_for_nnz(n)

    def time_level_for_nnz(self, n):
        conehoyer.level_for_nnz(self.y, self.count)


@cache
def _gaussian(n):
    return data("gaussian", n)


class Import:
    unit = "seconds"

    def track_import_over_numpy(self):
        return import_over_numpy()


class FirstCall:
    """Of a short vector, and of one that takes all of the engine."""

    params = ((1_000, 100_000),)
    param_names = ("n",)
    unit = "seconds"

    def track_cold_cache(self, n):
        return first_call(n, warm=False)

    def track_warm_cache(self, n):
        return first_call(n, warm=True)


class SecondCall:
    """Another kind of call after the first one, over that, where neither is compiled."""

    params = (tuple(SECOND_CALLS),)
    param_names = ("call",)
    unit = "ratio"

    def track_cold_cache(self, call):
        with tempfile.TemporaryDirectory() as cache:
            code = SECOND_CALL.format(SECOND_CALLS[call])
            return in_new_process(code, NUMBA_CACHE_DIR=cache)


class Desks:
    """Time of a kernel's two short parts, one by a thread that is awake, over that of one call."""

    def setup(self):
        require_processors(2)

    @sampled("ratio")
    def track_over_one_part(self):
        scores, threads = private("_cpu.scores"), private("_threads")
        x, result = data("gaussian", (2, 100), "float64"), np.zeros(2)
        task = partial(scores.score_rows, x, private("_math").MAGNITUDES, result)
        return compare((partial(threads.run_split, task, 2, 2), partial(task, 0, 2))).samples


class Waiting:
    """How long a call stays awake for a thread that does not come."""

    def setup(self):
        self.wait = partial(private("_cpu.waiting").for_all, np.zeros(1, np.int64))
        self.wait()  # compiles

    def time_for_all(self):
        self.wait()


class Parts:
    """Time of two parts that two threads share over that with a pool of the standard library."""

    def setup(self):
        require_processors(2)

    @sampled("ratio")
    def track_over_a_pool(self):
        x = data("gaussian", (2, 20_000), "float64")
        out = x.copy()

        def task(first, last):
            np.exp(x[first], out=out[first])  # without the interpreter's lock

        def by_pool():
            other = pool.submit(task, 1, 2)
            task(0, 1)
            other.result()

        run_split = private("_threads").run_split
        with ThreadPoolExecutor(1) as pool:
            return compare((partial(run_split, task, 2, 2), by_pool), apart=True).samples
