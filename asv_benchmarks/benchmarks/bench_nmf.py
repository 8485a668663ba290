"""Nonnegative factorisation relative to scikit-learn's coordinate descent.

The ECG problems take the 1,800 beats that ship with the examples.  The environment variable
CONEHOYER_ECG may name the csv file of the 8,146 beats of MIT-BIH DS1 instead: 187 samples in
thousandths a row, and then the label.
"""

import contextlib
import os
import warnings
from functools import cache, partial
from pathlib import Path
from time import perf_counter

import numpy as np

from conehoyer import nmf_hals

from .common import require

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
SHIPPED = (
    ("ecg_mitbih_DS1_sample.csv.gz", 1000.0),
    ("ecg_mitbih_DS2_sample.csv.gz", 1000.0),
    ("ecg_ptbdb_normal_sample.csv.gz", 1.0),
    ("ecg_ptbdb_abnormal_sample.csv.gz", 1.0),
)
STARTS = 5
ITERATIONS = 50
REACHED = 1.0 + 1e-9  # on the sparse problem both end at the same error


@cache
def _ecg():
    path = os.environ.get("CONEHOYER_ECG")
    if path:
        return np.loadtxt(path, delimiter=",")[:, :187] / 1000.0
    parts = [np.loadtxt(DATA / name, delimiter=",")[:, :187] / scale for name, scale in SHIPPED]
    return np.concatenate(parts)


def _dense():
    rng = np.random.default_rng(0)
    w, h = (rng.random(s) * (rng.random(s) < 0.3) for s in ((4000, 50), (50, 500)))
    return w @ h


def _sparse():
    """Planted rank 20 with 1 % nonzeros, each with noise of 10 %."""
    import scipy.sparse

    rng = np.random.default_rng(0)
    m, n, rank = 10_000, 5_000, 20
    density = np.sqrt(0.01 / rank)
    w, h = (
        scipy.sparse.csr_array(rng.random(s) * (rng.random(s) < density))
        for s in ((m, rank), (rank, n))
    )
    x = scipy.sparse.csr_array(w @ h)
    x.data *= 1.0 + 0.1 * rng.standard_normal(x.nnz).clip(-3.0, 3.0)
    return x


PROBLEMS = {
    "ecg-10": (_ecg, 10),
    "ecg-20": (_ecg, 20),
    "ecg-40": (_ecg, 40),
    "dense-50": (_dense, 50),
    "sparse-20": (_sparse, 20),
}


VARIANTS = {
    "accelerated": {},
    "plain": {"accelerated": False},
    "sparse rows": {"level_h": 30.0},
}


def start(x, rank, seed):
    """Half-normal factors at the scale of the data."""
    rng = np.random.default_rng(seed)
    scale = np.sqrt(x.mean() / rank)
    return tuple(
        scale * np.abs(rng.standard_normal(s)) for s in ((x.shape[0], rank), (rank, x.shape[1]))
    )


def error_of(x, w, h):
    return np.linalg.norm((x if isinstance(x, np.ndarray) else x.toarray()) - w @ h)


def _one_blas_thread():
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:
        return contextlib.nullcontext()  # the environment sets OMP_NUM_THREADS
    return threadpool_limits(1)


def reference(x, w0, h0):
    """scikit-learn's factors after ITERATIONS iterations, and the seconds they took."""
    from sklearn.decomposition import non_negative_factorization

    w, h = w0.copy(), h0.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it did not converge
        begin = perf_counter()
        w, h, _ = non_negative_factorization(
            x, w, h, n_components=len(h), init="custom", solver="cd", tol=0, max_iter=ITERATIONS
        )
        return w, h, perf_counter() - begin


def ours(x, w0, h0, target, **options):
    """The result once the error is at most `target`, and the seconds to it.

    Infinite where it never is: from the same start, both end in different local minima.
    """
    begin = perf_counter()
    target *= REACHED
    result = nmf_hals(
        x, len(h0), init=(w0, h0), tol=0, max_iter=10 * ITERATIONS,
        callback=lambda _, state: state.error <= target, **options,
    )  # fmt: skip
    seconds = perf_counter() - begin
    return result, seconds if result.error <= target else np.inf


def measure(problem, starts=STARTS, **options):
    """For each start: ratio of the times, seconds of both, our iterations."""
    make, rank = PROBLEMS[problem]
    x = make()
    rows = []
    with _one_blas_thread():
        w0, h0 = start(x, rank, starts)
        nmf_hals(x, rank, init=(w0, h0), tol=0, max_iter=1, **options)  # compiles
        for seed in range(starts):
            w0, h0 = start(x, rank, seed)
            w, h, theirs = reference(x, w0, h0)
            result, seconds = ours(x, w0, h0, error_of(x, w, h), **options)
            rows.append((seconds / theirs, seconds, theirs, result.n_iter))
    return np.array(rows)


@cache
def _problem(name):
    make, rank = PROBLEMS[name]
    x = make()
    return x, start(x, rank, 0)


class OverScikitLearn:
    """Time to the error that it has after 50 iterations, over its time: at most 0.5."""

    params = (tuple(PROBLEMS),)
    param_names = ("problem",)
    unit = "ratio"

    def setup(self, problem):
        require("sklearn")

    def track_over_coordinate_descent(self, problem):
        return round(float(np.median(measure(problem, starts=3)[:, 0])), 4)


class Iterations:
    """Ten iterations, with and without extra sweeps, and with sparse rows of H."""

    params = (("ecg-20", "dense-50", "sparse-20"), tuple(VARIANTS))
    param_names = ("problem", "variant")
    repeat = (2, 10, 2.0)

    def setup_cache(self):
        for problem in self.params[0]:  # compile, which takes memory, elsewhere
            self.setup(problem, "sparse rows")
            self.call()

    def setup(self, problem, variant):
        x, init = _problem(problem)
        self.call = partial(
            nmf_hals, x, len(init[1]), init=init, tol=0, max_iter=10, **VARIANTS[variant]
        )

    def time_iterations(self, problem, variant):
        self.call()

    def peakmem_iterations(self, problem, variant):
        self.call()


class Error:
    """Error after so many iterations, relative to the one at the start."""

    params = (tuple(PROBLEMS), (10, ITERATIONS))
    param_names = ("problem", "iterations")
    unit = "ratio"

    def setup(self, problem, iterations):
        self.x, self.init = _problem(problem)

    def track_error(self, problem, iterations):
        rank = len(self.init[1])
        result = nmf_hals(self.x, rank, init=self.init, tol=0, max_iter=iterations)
        return float(result.error / result.error_history[0])


if __name__ == "__main__":
    print(f"ECG: {len(_ecg()):,} beats")
    for name in PROBLEMS:
        rows = measure(name)
        ratio, seconds, theirs, iterations = np.median(rows, axis=0)
        print(
            f"{name}: ratio {ratio:.3f} ({rows[:, 0].min():.3f} to {rows[:, 0].max():.3f}), "
            f"{seconds:.3f} s against {theirs:.3f} s, {iterations:g} iterations",
            flush=True,
        )
