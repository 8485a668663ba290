"""Scores of the rows of a matrix."""

import math

import numpy as np

from .._jit import kernel
from . import passes


@kernel
def score_rows(x, absolute, out, first, last):
    """out[r] = (Σa)²/Σa² for rows first..last−1; 0 for zero and empty rows."""
    for r in range(first, last):
        z = x[r]
        _, s, q = passes.sums(z, absolute, 0.0, -math.inf)
        safe = 1e-200 < q < 1e200 or q == s == 0.0
        if not safe and passes.all_finite(z):  # squares may over- or underflow
            exponent = int(math.frexp(passes.largest(z, True))[1])
            scaled = np.empty(z.size)
            for i in range(z.size):
                scaled[i] = math.ldexp(np.float64(z[i]), -exponent)
            _, s, q = passes.sums(scaled, absolute, 0.0, -math.inf)
        out[r] = s / q * s if q != 0.0 else 0.0
