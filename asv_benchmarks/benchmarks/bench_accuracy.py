"""How many bits the projections lose, against the tests' oracle in extended precision."""

import importlib.util
from pathlib import Path

import numpy as np

from conehoyer import level_for_sparseness

from .common import DISTRIBUTIONS, DTYPES, PARAMETERS, Problem, data

_PATH = Path(__file__).resolve().parents[2] / "tests" / "oracle.py"
_spec = importlib.util.spec_from_file_location("oracle", _PATH)
oracle = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(oracle)

NEAR_TIES = {
    "near-constant": lambda rng, n: 1.0 + 1e-9 * rng.standard_normal(n),
    "clusters": lambda rng, n: rng.choice([1.0, 1.0 - 1e-6], n) + 1e-9 * rng.standard_normal(n),
}


def bits(error, dtype):
    """Bits of the dtype's precision that are lost; 4 where it is fewer, which is rounding."""
    return max(round(float(np.log2(1.0 + error / np.finfo(dtype).eps)), 2), 4.0)


class Accuracy:
    """The largest error relative to the largest entry, and the relative error of the level.

    The goal in float64 is 1e-12 for each: 12.1 bits.
    """

    params = (
        tuple(PARAMETERS),
        DTYPES,
        ("gaussian", "cauchy", "zipf", "geometric", *NEAR_TIES),
        (100_000,),
    )
    param_names = ("function", "dtype", "distribution", "n")
    unit = "bits"

    def setup(self, function, dtype, distribution, n):
        if not oracle.HAS_EXTENDED:
            raise NotImplementedError("long double is a double here")
        if distribution in DISTRIBUTIONS:
            y = data(distribution, n, dtype)
        else:
            y = NEAR_TIES[distribution](np.random.default_rng(0), n).astype(dtype)
        self.problem = Problem(function, y, 0.1)

    def track_error(self, function, dtype, *params):
        y, x = self.problem.y, self.problem.out
        reference = getattr(oracle, function)(y, self.problem.parameter)
        return bits(np.abs(x - reference).max() / np.abs(reference).max(), dtype)

    def track_level(self, function, dtype, *params):
        x, parameter = self.problem.out, self.problem.parameter
        if function == "project_cai":
            reached = oracle.hoyer_score(x)
        elif function == "project_hoyer":
            parameter = level_for_sparseness(parameter, x.size)
            reached = oracle.hoyer_score(x)
        else:
            reached = oracle.norms(x)[0]
        return bits(abs(reached / oracle.LD(parameter) - 1), dtype)
