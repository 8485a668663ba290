"""Scores of the rows of a matrix, and of the columns of several."""

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import passes, simd
from .arrays import uncounted

LEAST = simd.WIDE  # columns side by side
FEW = 16  # entries of rows that are added up side by side, a row in each lane
WIDTH = simd.REGISTER_BITS // 64  # rows side by side
PANEL = 1024  # columns, at most, whose sums are kept while the rows are read
S, LOST_S, Q, LOST_Q = range(4)


@helper
def _side_by_side(source, begin, n, absolute, sums):
    """The sums of `WIDTH` rows of a flat array."""
    firsts = seconds = simd.splat(0.0)
    for i in range(n):
        a = simd.gathered(source, begin + i, n)
        if absolute:
            a = simd.magnitude(a)
        firsts, seconds = simd.add(firsts, a), simd.multiply_add(a, a, seconds)
    simd.store(firsts, sums[0], 0)
    simd.store(seconds, sums[1], 0)


@kernel
def score_rows(x, kind, out, first, last):
    """The scores of rows first..last−1."""
    x, out = uncounted(x), uncounted(out)
    n, absolute = x.shape[1], kind != m.SIGNED
    if n > FEW:
        for r in range(first, last):
            s, q, _ = passes.moments(x[r], absolute)
            out[r] = m.score(kind, n, s, q)
        return
    flat, rest, sums = x.reshape(x.size), np.zeros(WIDTH * n, x.dtype), np.empty((2, WIDTH))
    for begin in range(first, last, WIDTH):
        count = min(WIDTH, last - begin)
        if count == WIDTH:
            _side_by_side(flat, begin * n, n, absolute, sums)
        else:  # as the others are: the bits do not depend on where a thread begins
            rest[: count * n] = flat[begin * n : (begin + count) * n]
            _side_by_side(rest, 0, n, absolute, sums)
        for j in range(count):
            s, q = sums[0, j], sums[1, j]
            if not passes.in_range(s, q):
                s, q, _ = passes.moments(x[begin + j], absolute)
            out[begin + j] = m.score(kind, n, s, q)


def panels_of(columns):
    """Into how many panels the columns of a matrix are divided."""
    return -(-columns // PANEL)


@helper
def _add_up(source, absolute, place, stride, rows, columns, sums):
    """The sums of some columns, a register of them each; the last one may overlap another.

    A few rows are read at once, side by side.
    """
    zero = simd.splat_wide(0.0)
    for top in range(0, rows, passes.RUN):
        bottom = min(top + passes.RUN, rows)
        for j in range(0, columns, simd.WIDE):
            column = place + min(j, columns - simd.WIDE)
            firsts, seconds = zero, zero
            for i in range(top, bottom):
                a = simd.load_wide(source, column + i * stride)
                if absolute:
                    a = simd.magnitude(a)
                firsts, seconds = simd.add(firsts, a), simd.multiply_add(a, a, seconds)
            s, lost_s = m.two_sum(simd.load_wide(sums[S], j), firsts)
            q, lost_q = m.two_sum(simd.load_wide(sums[Q], j), seconds)
            simd.store(s, sums[S], j)
            simd.store(q, sums[Q], j)
            simd.store(simd.add(simd.load_wide(sums[LOST_S], j), lost_s), sums[LOST_S], j)
            simd.store(simd.add(simd.load_wide(sums[LOST_Q], j), lost_q), sums[LOST_Q], j)


@kernel
def score_columns(x, kind, panels, out, first, last):
    """The scores of the columns of each matrix of x: panels first..last−1 of so many in each.

    There are at least `LEAST` columns.
    """
    x, out = uncounted(x), uncounted(out)
    n, stride = x.shape[1], x.shape[2]
    absolute, source = kind != m.SIGNED, x.reshape(x.size)
    sums = np.empty((4, PANEL + simd.WIDE))
    for k in range(first, last):
        begin = stride * (k % panels) // panels
        columns = stride * (k % panels + 1) // panels - begin
        place, row = k // panels * n * stride + begin, k // panels * stride + begin
        sums[:, : columns + simd.WIDE] = 0.0
        _add_up(source, absolute, place, stride, n, columns, sums)
        for c in range(columns):
            # The last register begins earlier.
            j = c if c < columns // simd.WIDE * simd.WIDE else c + -columns % simd.WIDE
            s, q = sums[S, j] + sums[LOST_S, j], sums[Q, j] + sums[LOST_Q, j]
            if not passes.in_range(s, q):
                s, q, _ = passes.moments(x[k // panels, :, begin + c].copy(), absolute)
            out[row + c] = m.score(kind, n, s, q)
