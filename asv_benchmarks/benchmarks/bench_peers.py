"""The l1 ball and the simplex against other libraries; each is skipped where it is missing.

`pip install POT pyproximal optax torch`; scikit-learn's factorisation is in `bench_nmf`.
"""

from functools import partial

import numpy as np

from .common import DTYPES, Problem, compare, data, require, sampled


def _on_magnitudes(simplex, y, radius):
    """The projection onto the l1 ball by one onto the simplex, for y outside of it."""
    return np.sign(y) * simplex(np.abs(y), radius)


def pot(function, y, radius):
    simplex = require("ot").utils.proj_simplex
    if function == "project_l1_ball":
        simplex = partial(_on_magnitudes, simplex)
    return partial(simplex, y, radius)


def pyproximal(function, y, radius):
    """Bisection, to 1e-5 at the most, which is its default."""
    projection = require("pyproximal").projection
    kind = projection.SimplexProj if function == "project_simplex" else projection.L1BallProj
    return partial(kind(y.size, radius), y)


def optax(function, y, radius):
    jax, projections = require("jax"), require("optax").projections
    if y.dtype == np.float64:
        jax.config.update("jax_enable_x64", True)
    kind = "projection_simplex" if function == "project_simplex" else "projection_l1_ball"
    project, y = jax.jit(getattr(projections, kind)), jax.numpy.asarray(y)
    return lambda: project(y, radius).block_until_ready()


def torch(function, y, radius):
    """Sort, add up, look for the last entry above its threshold: the usual few lines."""
    t = require("torch")
    y = t.from_numpy(y)

    def simplex(values):
        ordered = t.sort(values, descending=True).values
        thresholds = (t.cumsum(ordered, 0) - radius) / t.arange(1, len(values) + 1)
        last = t.count_nonzero(ordered > thresholds) - 1
        return t.clamp(values - thresholds[last], min=0)

    if function == "project_simplex":
        return lambda: simplex(y)
    return lambda: t.sign(y) * simplex(t.abs(y))


PEERS = {"POT": pot, "pyproximal": pyproximal, "optax": optax, "torch": torch}


class Peers:
    """Our time over theirs, both with a new result; a tenth of the entries is kept."""

    params = (
        tuple(PEERS),
        ("project_l1_ball", "project_simplex"),
        DTYPES,
        (1_000, 100_000, 1_000_000),
    )
    param_names = ("peer", "function", "dtype", "n")

    def setup(self, peer, function, dtype, n):
        problem = Problem(function, data("gaussian", n, dtype), 0.1)
        self.theirs = PEERS[peer](function, problem.y, float(problem.parameter))
        self.ours = problem.call(out=None)
        x, expected = np.asarray(self.theirs()), self.ours()
        assert np.abs(x - expected).max() < 1e-3 * np.abs(expected).max(), "another projection"

    @sampled("ratio")
    def track_over_peer(self, *params):
        return compare((self.ours, self.theirs)).samples
