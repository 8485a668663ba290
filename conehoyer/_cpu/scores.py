"""Scores of the rows of a matrix."""

from .. import _math as m
from .._jit import kernel
from . import passes
from .arrays import uncounted


@kernel
def score_rows(x, kind, out, first, last):
    """The scores of rows first..last−1."""
    x, out = uncounted(x), uncounted(out)
    for r in range(first, last):
        s, q, _ = passes.moments(x[r], kind != m.SIGNED)
        out[r] = m.score(kind, x.shape[1], s, q)
