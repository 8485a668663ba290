"""Scores of the rows of a matrix."""

from .._jit import kernel
from . import passes


@kernel
def score_rows(x, absolute, out, first, last):
    """out[r] = (Σa)²/Σa² for rows first..last−1; 0 for zero and empty rows."""
    for r in range(first, last):
        s, q, _ = passes.moments(x[r], absolute)
        out[r] = s / q * s if q != 0.0 else 0.0
