"""Group sparse projection of vectors of mixed lengths, relative to the floor."""

from functools import partial

import numpy as np

from conehoyer import project_gsp

from .common import DTYPES, compare, copies, data, floor_call, require_processors, sampled

SIZES = (100_000, 1_000_000)  # of all vectors together
SPARSENESS = (0.5, 0.9, 0.99)
SHARES = (0.5, 0.25, 0.125, 0.0625, 0.0625)
ROWS = (10_000, 100)


def layers(whole):
    """A few large vectors, and small ones that make up the rest: layers of a network."""
    ends = np.cumsum([int(whole.size * share) for share in SHARES])[:-1]
    return np.split(whole, ends)


class Layers:
    params = (DTYPES, SIZES, SPARSENESS, (1, 2))
    param_names = ("dtype", "n", "sparseness", "workers")

    def setup(self, dtype, n, sparseness, workers):
        require_processors(workers)
        y = data("gaussian", n, dtype)
        project = partial(project_gsp, sparseness=sparseness, workers=workers)
        self.pairs = [
            (partial(project, layers(y), out=layers(out)), floor_call(y, out, workers))
            for y, out in copies(y, np.zeros_like(y))
        ]

    @sampled("ratio")
    def track_over_floor(self, *params):
        return compare(*self.pairs).samples


class Rows:
    """Many short vectors, the rows of a matrix."""

    params = (DTYPES, SPARSENESS)
    param_names = ("dtype", "sparseness")

    def setup(self, dtype, sparseness):
        y = data("gaussian", ROWS, dtype)
        project = partial(project_gsp, sparseness=sparseness, workers=1)
        self.pairs = [
            (partial(project, y, out=out), floor_call(y, out))
            for y, out in copies(y, np.zeros_like(y))
        ]

    @sampled("ratio")
    def track_over_floor(self, *params):
        return compare(*self.pairs).samples


class Passes:
    params = (DTYPES, SIZES, SPARSENESS)
    param_names = ("dtype", "n", "sparseness")
    unit = "passes"

    def setup(self, dtype, n, sparseness):
        self.call = partial(project_gsp, layers(data("gaussian", n, dtype)), sparseness)

    def track_passes(self, *params):
        return self.call(full_output=True)[1].passes
