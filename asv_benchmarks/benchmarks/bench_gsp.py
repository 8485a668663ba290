"""Group sparse projection of vectors of mixed lengths, relative to the floor."""

from functools import partial

import numpy as np

from conehoyer import project_gsp

from .common import DTYPES, compare, data, floor_call, require_processors

SIZES = (100_000, 1_000_000)  # of all vectors together
SPARSENESS = (0.5, 0.9, 0.99)
SHARES = (0.5, 0.25, 0.125, 0.0625, 0.0625)
ROWS = (10_000, 100)


def vectors_of(size, dtype):
    """A few large vectors, and small ones that make up the rest: layers of a network."""
    whole = data("gaussian", size, dtype)
    ends = np.cumsum([int(size * share) for share in SHARES])[:-1]
    return whole, np.split(whole, ends)


class Layers:
    params = (DTYPES, SIZES, SPARSENESS)
    param_names = ("dtype", "n", "sparseness")

    def setup(self, dtype, n, sparseness):
        self.whole, self.vectors = vectors_of(n, dtype)
        self.out = [np.zeros_like(vector) for vector in self.vectors]
        self.call = partial(project_gsp, self.vectors, sparseness, out=self.out, workers=1)

    def track_over_floor(self, dtype, n, sparseness):
        return compare(self.call, floor_call(self.whole, np.zeros_like(self.whole))).ratio

    def track_two_workers_over_floor(self, dtype, n, sparseness):
        require_processors(2)
        call = partial(self.call, workers=2)
        return compare(call, floor_call(self.whole, np.zeros_like(self.whole), threads=2)).ratio

    def track_passes(self, dtype, n, sparseness):
        return self.call(full_output=True)[1].passes

    track_over_floor.unit = track_two_workers_over_floor.unit = "ratio"
    track_passes.unit = "passes"


class Rows:
    """Many short vectors, the rows of a matrix."""

    params = (DTYPES, SPARSENESS)
    param_names = ("dtype", "sparseness")
    unit = "ratio"

    def setup(self, dtype, sparseness):
        self.y = data("gaussian", ROWS, dtype)
        self.out = np.zeros_like(self.y)
        self.call = partial(project_gsp, self.y, sparseness, out=self.out, workers=1)

    def track_over_floor(self, dtype, sparseness):
        return compare(self.call, floor_call(self.y, self.out)).ratio
