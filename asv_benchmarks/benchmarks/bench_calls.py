"""What a call costs whatever the data: small inputs, imports, the first call."""

import os
import statistics
import subprocess
import sys
import tempfile

import conehoyer

from .common import PARAMETERS, Problem, data

SMALL = (10, 100, 1000)

IMPORT = """
import numpy, time
start = time.perf_counter()
import conehoyer
print(time.perf_counter() - start)
"""
FIRST_CALL = """
import conehoyer, numpy, time
y = numpy.random.default_rng(0).standard_normal(1000)
start = time.perf_counter()
conehoyer.project_cai(y, 50.0)
print(time.perf_counter() - start)
"""


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
    return statistics.median(in_new_process(IMPORT) for _ in range(repeats))


def first_call(warm, repeats=5):
    """Seconds of the first call in a new process; the import of Numba is part of it."""
    with tempfile.TemporaryDirectory() as cache:
        cold = in_new_process(FIRST_CALL, NUMBA_CACHE_DIR=cache)
        if not warm:
            return cold
        return statistics.median(
            in_new_process(FIRST_CALL, NUMBA_CACHE_DIR=cache) for _ in range(repeats)
        )


def small_problem(function, n):
    return Problem(function, data("gaussian", n), 0.5)


class Calls:
    params = (tuple(PARAMETERS), SMALL)
    param_names = ("function", "n")

    def setup(self, function, n):
        problem = small_problem(function, n)
        self.project, self.y, self.parameter = problem.project, problem.y, problem.parameter
        self.out = problem.out

    def time_call(self, function, n):
        self.project(self.y, self.parameter)

    def time_call_with_out(self, function, n):
        self.project(self.y, self.parameter, out=self.out)


class Scores:
    params = (("cai_score", "hoyer_score", "hoyer_sparseness", "gsp_score"), SMALL)
    param_names = ("function", "n")

    def setup(self, function, n):
        self.score = getattr(conehoyer, function)
        self.y = data("gaussian", n)
        self.score(self.y)

    def time_call(self, function, n):
        self.score(self.y)


class Import:
    unit = "seconds"

    def track_import_over_numpy(self):
        return import_over_numpy()


class FirstCall:
    unit = "seconds"
    timeout = 600

    def track_cold_cache(self):
        return first_call(warm=False)

    def track_warm_cache(self):
        return first_call(warm=True)
