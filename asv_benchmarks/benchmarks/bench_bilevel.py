"""Projections of whole groups of a matrix, relative to the floor, a sort, and HALS."""

from functools import cache, partial

import numpy as np

import conehoyer

from . import counting
from .common import DTYPES, compare, copies, floor_call, groups_in, require_processors, sampled

GROUPS = {
    "columns": "columns",
    "rows": "rows",
    "diagonals": "diagonals",
    "blocks of 4": (4, 4),
    "blocks of 16": (16, 16),
    "blocks of 64": (64, 64),
}
SIDES = (256, 1024, 4096)


class Problem:
    """A tenth of the groups of a Gaussian matrix is kept."""

    def __init__(self, groups, side, dtype="float64", inner="linf", order="C"):
        rng = np.random.default_rng(0)
        shape = side if isinstance(side, tuple) else (side, side)
        self.x = np.asarray(rng.standard_normal(shape), dtype=dtype, order=order)
        self.out = np.zeros_like(self.x)
        groups = GROUPS.get(groups, groups)
        options = {"groups": groups, "inner": inner}
        count = max(groups_in(groups, *shape) // 10, 1)
        level = conehoyer.level_for_groups(self.x, count, **options)
        self.project = partial(conehoyer.project_bilevel, level=level, **options)

    def over_floor(self, seconds=0.5, threads=1):
        pairs = [
            (
                partial(self.project, x, out=out, workers=threads),
                floor_call(x.ravel("K"), out.ravel("K"), threads),
            )
            for x, out in copies(self.x, self.out)
        ]
        return compare(*pairs, seconds=seconds)


class OverFloor:
    params = (tuple(GROUPS), SIDES, DTYPES)
    param_names = ("groups", "side", "dtype")

    def setup(self, *params):
        self.problem = Problem(*params)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class Variants:
    """The other norms, and columns that lie side by side."""

    params = (tuple(GROUPS), ("linf", "l2", "l1"), ("C", "F"))
    param_names = ("groups", "inner", "order")

    def setup(self, groups, inner, order):
        self.problem = Problem(groups, 1024, "float64", inner, order)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class TwoWorkers:
    params = (tuple(GROUPS), SIDES[1:], DTYPES)
    param_names = ("groups", "side", "dtype")

    def setup(self, *params):
        require_processors(2)
        self.problem = Problem(*params)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor(threads=2).samples


class Batches:
    """A quarter of a million entries in many matrices, relative to one matrix of as many.

    Of each a tenth of the columns is kept, or the radius is a tenth of the sum of their norms.
    """

    params = ((16, 32, 64, 128), DTYPES, ("linf", "l1", "exact"))
    param_names = ("side", "dtype", "projection")

    def setup(self, side, dtype, projection):
        rng = np.random.default_rng(0)
        x = rng.standard_normal((512, 512)).astype(dtype)
        self.calls = []
        for z in x.reshape(-1, side, side), x:
            if projection == "exact":
                radius = abs(z).max(axis=-2).sum(axis=-1) / 10
                project = partial(conehoyer.project_l1inf_ball, z, radius)
            else:
                level = conehoyer.level_for_groups(z, z.shape[-1] // 10, inner=projection)
                project = partial(conehoyer.project_bilevel, z, level, inner=projection)
            self.calls.append(partial(project, out=np.zeros_like(z)))

    @sampled("ratio")
    def track_over_one(self, *params):
        return compare(self.calls).samples


class Shapes:
    """Blocks of few rows or odd widths, and short rows, of a million entries."""

    params = (
        ((1, 4), (1, 32), (32, 1), (2, 2), (2, 8), (4, 64), (5, 5), (7, 7), (8, 8), (1, 49)),
        DTYPES,
        ("linf", "l2"),
    )
    param_names = ("groups", "dtype", "inner")

    def setup(self, groups, dtype, inner):
        self.problem = Problem(groups, 1024, dtype, inner)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class ShortRows:
    """Rows as groups, a million entries."""

    groups = "rows"
    params = ((4, 7, 16, 32, 49, 64, 200), DTYPES, ("linf", "l2"))
    param_names = ("columns", "dtype", "inner")

    def setup(self, columns, dtype, inner):
        self.problem = Problem(self.groups, ((1 << 20) // columns, columns), dtype, inner)

    @sampled("ratio")
    def track_over_floor(self, *params):
        return self.problem.over_floor().samples


class TallDiagonals(ShortRows):
    """Diagonals of a few columns, a million entries: the height may count but once."""

    groups = "diagonals"
    params = ((2, 10, 100), DTYPES, ("linf", "l2"))


class Times:
    params = (("project_bilevel", "project_l1inf_ball", "level_for_groups"), tuple(GROUPS))
    param_names = ("function", "groups")
    repeat = (3, 20, 0.5)

    def setup(self, function, groups):
        parameter = 100.0 if function.startswith("project") else 100
        x = _gaussian(1024)
        self.call = partial(getattr(conehoyer, function), x, parameter, groups=GROUPS[groups])

    def time_1024(self, function, groups):
        self.call()


class Memory:
    """Peak memory of the process; data and result take 128 MB each.

    Beyond these, the bilevel projection takes of the order of the number of groups.
    """

    params = (("project_bilevel", "project_l1inf_ball"), tuple(GROUPS))
    param_names = ("function", "groups")

    def setup_cache(self):
        for function in self.params[0]:  # all that compiles, which takes memory, elsewhere
            for groups in self.params[1]:
                self.setup(function, groups)
                self.project()

    def setup(self, function, groups):
        project = getattr(conehoyer, function)
        self.project = partial(project, _gaussian(4096), 400.0, groups=GROUPS[groups])

    def peakmem_project(self, function, groups):
        self.project()


class ExactL1Inf:
    """The exact ℓ1,∞ projection of 1000 × 1000, groups="rows", over sorting the rows."""

    params = ((1.0, 30.0, 300.0),)
    param_names = ("radius",)

    def setup(self, radius):
        self.project = partial(conehoyer.project_l1inf_ball, radius=radius, groups="rows")

    def over_sort(self, seconds=0.5):
        x = _gaussian(1000)
        pairs = [
            (partial(self.project, x, out=out), lambda x=x: np.sort(np.abs(x), axis=-1))
            for x, out in copies(x, np.zeros_like(x))
        ]
        return compare(*pairs, seconds=seconds)

    @sampled("ratio")
    def track_over_sort(self, radius):
        return self.over_sort().samples

    def track_rounds(self, radius):
        return int(self.project(_gaussian(1000), full_output=True)[1].passes)

    track_rounds.unit = "rounds"


@cache
def _gaussian(side):
    return np.random.default_rng(0).standard_normal((side, side))


class AgainstHals:
    """One bilevel projection over one HALS sweep of the same m × m matrix."""

    params = (SIDES, (1, 4, 16))
    param_names = ("m", "r")

    def setup(self, m, r):
        rng = np.random.default_rng(0)
        self.x = rng.random((m, m))
        self.w, self.h = rng.random((m, r)), rng.random((r, m))
        level = conehoyer.level_for_groups(self.x, m // 10)
        self.project = partial(conehoyer.project_bilevel, self.x, level, out=np.zeros_like(self.x))
        self.sweep = partial(_sweep, self.x, self.w, self.h)
        self.level = level

    def operations(self):
        """Of the sweep, over those of the projection: the paper's ratio."""
        _, _, sweep = counting.hals_sweep(self.x, self.w, self.h)
        _, projection = counting.bilevel_columns(self.x, self.level)
        return sweep / projection

    def time(self, seconds=0.5):
        """Of the sweep, over that of the projection."""
        return compare((self.sweep, self.project), seconds=seconds).ratio

    def track_operations(self, m, r):
        return round(1.0 / self.operations(), 4)

    @sampled("ratio")
    def track_time(self, m, r):
        return compare((self.project, self.sweep)).samples

    track_operations.unit = "ratio"


def _sweep(x, w, h):
    """One plain HALS sweep at the speed of NumPy: the products by BLAS."""
    w, h = w.copy(), h.copy()
    for left, right, data in ((w, h, x), (h.T, w.T, x.T)):
        cross, gram = data @ right.T, right @ right.T
        for k in range(left.shape[1]):
            step = (cross[:, k] - left @ gram[:, k]) / max(gram[k, k], 1e-300)
            left[:, k] = np.maximum(left[:, k] + step, 0.0)
    return w, h
