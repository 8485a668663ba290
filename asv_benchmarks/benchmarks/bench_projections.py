"""Projections relative to the floor, to sorting and to the classical algorithms."""

from .common import (
    DISTRIBUTIONS,
    DTYPES,
    KEPT,
    PARAMETERS,
    ROWS,
    SIZES,
    Problem,
    data,
    floor_over_copyto,
    require_processors,
)

FUNCTIONS = ("project_cai", "project_l1_ball")


class Floor:
    """The yardstick itself: at least 0.8."""

    params = (DTYPES, SIZES)
    param_names = ("dtype", "n")
    unit = "ratio"

    def track_floor_over_copyto(self, dtype, n):
        return floor_over_copyto(n, dtype)


class OneWorker:
    params = (FUNCTIONS, DTYPES, SIZES, tuple(DISTRIBUTIONS), KEPT)
    param_names = ("function", "dtype", "n", "distribution", "kept")
    unit = "ratio"

    def setup(self, function, dtype, n, distribution, kept):
        self.problem = Problem(function, data(distribution, n, dtype), kept)

    def track_over_floor(self, *params):
        return self.problem.over_floor().ratio


class TwoWorkers:
    """Against the floor with two threads, one on each half."""

    params = (FUNCTIONS, DTYPES, ("gaussian", "cauchy"), KEPT)
    param_names = ("function", "dtype", "distribution", "kept")
    unit = "ratio"

    def setup(self, function, dtype, distribution, kept):
        require_processors(2)
        self.problem = Problem(function, data(distribution, max(SIZES), dtype), kept)

    def track_over_floor(self, *params):
        return self.problem.over_floor(threads=2).ratio


class TwoWorkersOnRows:
    """10,000 rows of 1,000, each projected by itself."""

    params = (FUNCTIONS, DTYPES, KEPT)
    param_names = ("function", "dtype", "kept")
    unit = "ratio"

    def setup(self, function, dtype, kept):
        require_processors(2)
        self.problem = Problem(function, data("gaussian", ROWS, dtype), kept)

    def track_over_floor(self, *params):
        return self.problem.over_floor(threads=2).ratio

    def track_over_floor_by_row(self, *params):
        """The stricter floor: each row is in the cache when it is read again."""
        return self.problem.over_floor(threads=2, by_row=True).ratio


class OverSort:
    params = (tuple(PARAMETERS), DTYPES, SIZES[:2], KEPT)
    param_names = ("function", "dtype", "n", "kept")
    unit = "ratio"

    def setup(self, function, dtype, n, kept):
        self.problem = Problem(function, data("gaussian", n, dtype), kept)

    def track_over_sort(self, *params):
        return self.problem.over_sort().ratio


class Condat:
    """Condat's algorithm: a fair implementation, and how far the default is ahead of it."""

    params = (DTYPES, SIZES, KEPT)
    param_names = ("dtype", "n", "kept")
    unit = "ratio"

    def setup(self, dtype, n, kept):
        self.problem = Problem("project_l1_ball", data("gaussian", n, dtype), kept)

    def track_over_sort(self, *params):
        return self.problem.over_sort_of_magnitudes(method="condat").ratio

    def track_over_newton(self, *params):
        return self.problem.method_over("condat").ratio


class Alternating:
    """Hoyer's algorithm relative to the exact projections."""

    params = (DTYPES, SIZES[:2], KEPT)
    param_names = ("dtype", "n", "kept")
    unit = "ratio"

    def setup(self, dtype, n, kept):
        y = data("gaussian", n, dtype)
        self.problem = Problem("project_hoyer", y, kept)
        self.cai = Problem("project_cai", y, kept)

    def track_over_cfp(self, *params):
        return self.problem.method_over("alternating").ratio

    def track_over_cai(self, *params):
        return self.problem.method_over("alternating", self.cai).ratio
