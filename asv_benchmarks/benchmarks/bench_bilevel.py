"""Projections of whole groups of a matrix, relative to the floor, a sort, and HALS."""

from functools import partial

import numpy as np

import conehoyer

from . import counting
from .common import DTYPES, compare, floor_call, require_processors

GROUPS = {
    "columns": "columns",
    "rows": "rows",
    "diagonals": "diagonals",
    "blocks of 4": (4, 4),
    "blocks of 16": (16, 16),
    "blocks of 64": (64, 64),
}
SIDES = (256, 1024, 2048, 4096)


class Problem:
    """A tenth of the groups of a Gaussian matrix is kept."""

    def __init__(self, groups, side, dtype="float64", inner="linf", order="C"):
        rng = np.random.default_rng(0)
        self.x = np.asarray(rng.standard_normal((side, side)), dtype=dtype, order=order)
        self.out = np.zeros_like(self.x)
        options = {"groups": GROUPS[groups], "inner": inner}
        count = side if isinstance(GROUPS[groups], str) else (side // GROUPS[groups][0]) ** 2
        level = conehoyer.level_for_groups(self.x, max(count // 10, 1), **options)
        self.project = partial(conehoyer.project_bilevel, self.x, level, out=self.out, **options)

    def over_floor(self, seconds=0.5, threads=1):
        floor = floor_call(self.x.ravel("K"), self.out.ravel("K"), threads)
        return compare(partial(self.project, workers=threads), floor, seconds)


class OverFloor:
    params = (tuple(GROUPS), SIDES, DTYPES, ("linf", "l2"), ("C", "F"))
    param_names = ("groups", "side", "dtype", "inner", "order")
    unit = "ratio"

    def setup(self, *params):
        self.problem = Problem(*params)

    def track_over_floor(self, *params):
        return self.problem.over_floor().ratio


class TwoWorkers:
    params = (tuple(GROUPS), (1024, 4096), DTYPES)
    param_names = ("groups", "side", "dtype")
    unit = "ratio"

    def setup(self, *params):
        require_processors(2)
        self.problem = Problem(*params)

    def track_over_floor(self, *params):
        return self.problem.over_floor(threads=2).ratio


class Memory:
    """Beyond the result: of the order of the number of groups."""

    params = (tuple(GROUPS),)
    param_names = ("groups",)

    def setup(self, groups):
        self.problem = Problem(groups, 2048)

    def peakmem_project(self, groups):
        self.problem.project()


class ExactL1Inf:
    """The exact ℓ1,∞ projection of 1000 × 1000, groups="rows", over sorting the rows."""

    params = ((1.0, 30.0, 300.0),)
    param_names = ("radius",)
    unit = "ratio"

    def setup(self, radius):
        self.x = np.random.default_rng(0).standard_normal((1000, 1000))
        self.out = np.zeros_like(self.x)

    def track_over_sort(self, radius):
        return compare(
            partial(conehoyer.project_l1inf_ball, self.x, radius, groups="rows", out=self.out),
            lambda: np.sort(np.abs(self.x), axis=-1),
        ).ratio


class AgainstHals:
    """One HALS sweep over one bilevel projection of the same m × m matrix."""

    params = ((256, 1024, 4096), (1, 2, 4, 8, 16))
    param_names = ("m", "r")
    unit = "ratio"

    def setup(self, m, r):
        rng = np.random.default_rng(0)
        self.x = rng.random((m, m))
        self.w, self.h = rng.random((m, r)), rng.random((r, m))
        self.level = conehoyer.level_for_groups(self.x, m // 10)

    def track_operations(self, m, r):
        _, _, sweep = counting.hals_sweep(self.x, self.w, self.h)
        _, projection = counting.bilevel_columns(self.x, self.level)
        return sweep / projection

    def track_time(self, m, r, seconds=0.5):
        out = np.zeros_like(self.x)
        return compare(
            partial(_sweep, self.x, self.w, self.h),
            partial(conehoyer.project_bilevel, self.x, self.level, out=out),
            seconds,
        ).ratio


def _sweep(x, w, h):
    """One plain HALS sweep at the speed of NumPy: the products by BLAS."""
    w, h = w.copy(), h.copy()
    for left, right, data in ((w, h, x), (h.T, w.T, x.T)):
        cross, gram = data @ right.T, right @ right.T
        for k in range(left.shape[1]):
            step = (cross[:, k] - left @ gram[:, k]) / max(gram[k, k], 1e-300)
            left[:, k] = np.maximum(left[:, k] + step, 0.0)
    return w, h
