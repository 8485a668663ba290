"""Slices that lie across the memory: some columns at a time become rows, and columns again.

A few neighbouring columns fit into a cache, unless they are very long, and are projected there as
rows.  So the array is read and written once, and no copy of all of it is made.
"""

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import short, simd
from .arrays import NO, NONE, STATUS

BYTES = 1 << 19  # of the columns that are rows at a time, about: they stay in a cache


def columns_at_once(x, workers):
    """How many neighbouring columns of x become rows at a time: full cache lines, if it can."""
    count, n, columns = x.shape
    line = simd.LINE // x.itemsize
    most = -(-columns * count // workers)  # something to do for every worker
    wanted = min(BYTES // (n * x.itemsize), most) // line * line
    return min(max(wanted, line), most, columns)


@helper
def transpose(source, first, stride, rows, columns, target, begin, target_stride):
    """``target[begin + c*target_stride + r] = source[first + r*stride + c]``, both flat."""
    width = simd.lanes(source)
    whole_rows, whole_columns = rows // width * width, columns // width * width
    for c in range(0, whole_columns, width):
        for r in range(0, whole_rows, width):
            simd.transpose(
                source, first + r * stride + c, stride,
                target, begin + c * target_stride + r, target_stride,
            )  # fmt: skip
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            target[begin + c * target_stride + r] = source[first + r * stride + c]


@kernel
def transpose_each(x, out):
    """Transpose each matrix of x into `out`."""
    count, rows, columns = x.shape
    source, target = x.reshape(x.size), out.reshape(out.size)
    for k in range(count):
        begin = k * rows * columns
        transpose(source, begin, columns, rows, columns, target, begin, rows)


@kernel
def project_columns(places, kind, absolute, tol, strict, x, out, table, width, first, last):
    """Project the columns of each matrix of x into out: panels first..last−1 of `width` columns.

    `out` may be `x`.  `table` has a row for each column; for the rest see `engine.project_rows`,
    and for the `places` `short.project_by`: of a panel with a column that has to wait for the other
    nothing is done, and the status of its columns stays GO.
    """
    n, columns = x.shape[1], x.shape[2]
    panels = (columns + width - 1) // width
    source, target = x.reshape(x.size), out.reshape(out.size)
    panel = np.empty((width, n), x.dtype)
    reports = np.empty((width, table.shape[1]))
    for k in range(first, last):
        column = k % panels * width
        count = min(width, columns - column)
        place = k // panels * n * columns + column
        row = k // panels * columns + column
        if table[row, STATUS] != m.GO:
            continue
        transpose(source, place, columns, n, count, panel.reshape(panel.size), 0, n)
        for c in range(count):
            for i in range(table.shape[1]):
                reports[c, i] = table[row + c, i]
        short.project_by(
            places, kind, absolute, tol, strict, NO, panel, panel, reports, NONE, count
        )
        finished = True
        for c in range(count):
            finished &= reports[c, STATUS] != m.GO
            if strict and reports[c, STATUS] == m.NONFINITE:
                table[row + c, STATUS] = m.NONFINITE
                return
        if finished:
            for c in range(count):
                for i in range(table.shape[1]):
                    table[row + c, i] = reports[c, i]
            transpose(panel.reshape(panel.size), 0, n, count, n, target, place, columns)
