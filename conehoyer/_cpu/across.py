"""Slices that lie across the memory: some columns at a time become rows, and columns again.

A few neighbouring columns fit into a cache, unless they are very long, and are projected there as
rows.  So the array is read and written once, and no copy of all of it is made.
"""

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import short, simd
from .arrays import NO, NONE, STATUS

WIDE = 4  # lines of a row that become columns together, if they can
STRIP = 8  # registers of a row that are transposed before the next rows
BYTES = 1 << 19  # of the columns that are rows at a time, about: they stay in a cache
ALIGNED = 8  # lines of a row of the target from which on its stores begin at one
FAR = 1 << 20  # bytes; more than this may be in no cache that is near


def columns_at_once(x, workers):
    """How many neighbouring columns of x become rows at a time: full cache lines, if it can."""
    count, n, columns = x.shape
    line = simd.LINE // x.itemsize
    most = -(-columns * count // workers)  # something to do for every worker
    wanted = BYTES // (n * x.itemsize)
    if WIDE * line * n * x.itemsize <= 8 * BYTES:  # a row of a large array is on a page of its own
        wanted = max(wanted, WIDE * line)
    wanted = min(wanted, most) // line * line
    return min(max(wanted, line), most, columns)


TWO, THREE, FOUR = (0, 0), (0, 0, 0), (0, 0, 0, 0)  # their lengths are part of the kernels


@helper
def _take_apart(source, first, rows, some, target, begin, stride):
    """As many columns as `some` has entries, from rows without gaps; how many rows are done."""
    width = simd.lanes(source)
    done = rows // width * width
    for r in range(0, done, width):
        simd.take_apart(source, first + r * len(some), target, begin + r, stride, some)
    return done


@helper
def _put_together(source, first, stride, columns, some, target, begin):
    """The reverse; how many columns are done."""
    width = simd.lanes(source)
    done = columns // width * width
    for c in range(0, done, width):
        simd.put_together(source, first + c, stride, target, begin + c * len(some), some)
    return done


@helper
def _few_columns(source, first, rows, columns, target, begin, stride):
    """Two to four columns of as many; how many rows are done."""
    if columns == 2:
        return _take_apart(source, first, rows, TWO, target, begin, stride)
    if columns == 3:
        return _take_apart(source, first, rows, THREE, target, begin, stride)
    return _take_apart(source, first, rows, FOUR, target, begin, stride)


@helper
def _few_rows(source, first, stride, rows, columns, target, begin):
    """Two to four rows, which become columns of as many; how many columns are done."""
    if rows == 2:
        return _put_together(source, first, stride, columns, TWO, target, begin)
    if rows == 3:
        return _put_together(source, first, stride, columns, THREE, target, begin)
    return _put_together(source, first, stride, columns, FOUR, target, begin)


@helper
def _by_entries(source, first, stride, rows, columns, target, begin, target_stride):
    for r in range(rows):
        for c in range(columns):
            target[begin + c * target_stride + r] = source[first + r * stride + c]


@helper
def _last_columns(source, first, stride, rows, columns, target, begin, target_stride):
    """Whole rows of fewer columns than a register has lanes: squares, of which a part is kept."""
    width = simd.lanes(source)
    square, done = np.empty(width * width, source.dtype), 0
    while done < rows and first + (done + width - 1) * stride + width <= source.size:
        simd.transpose(source, first + done * stride, stride, square, 0, width)
        for c in range(columns):
            simd.store(simd.load(square, c * width), target, begin + c * target_stride + done)
        done += width
    source_place, target_place = first + done * stride, begin + done
    _by_entries(
        source, source_place, stride, rows - done, columns, target, target_place, target_stride
    )


@helper
def _last_rows(source, first, stride, rows, columns, target, begin, target_stride):
    """Whole columns of fewer rows, in the same way."""
    width = simd.lanes(source)
    square = np.zeros(width * width, source.dtype)
    turned = np.empty(width * width, source.dtype)
    inside = simd.first_lanes(simd.splat(source.dtype.type(0.0)), rows)
    for c in range(0, columns, width):
        for r in range(rows):
            simd.store(simd.load(source, first + r * stride + c), square, r * width)
        simd.transpose(square, 0, width, turned, 0, width)
        for k in range(width):
            place = begin + (c + k) * target_stride
            simd.store_part(simd.load(turned, k * width), inside, target, place)


@helper
def _expect(target, begin, stride, first, last, width):
    """Ask for what a register reaches in the rows first..last−1 of the target, if there are any."""
    for c in range(first, last):
        simd.fetch_to_write(target, begin + c * stride)
        simd.fetch_to_write(target, begin + c * stride + width - 1)


@helper
def transpose(source, first, stride, rows, columns, target, begin, target_stride):
    """``target[begin + c*target_stride + r] = source[first + r*stride + c]``, both flat."""
    width = simd.lanes(source)
    if columns == stride and 1 < columns < 5:  # a few channels, say
        done = _few_columns(source, first, rows, columns, target, begin, target_stride)
        source_place, target_place, rows = first + done * stride, begin + done, rows - done
        _by_entries(
            source, source_place, stride, rows, columns, target, target_place, target_stride
        )
        return
    if rows == target_stride and 1 < rows < 5:
        done = _few_rows(source, first, stride, rows, columns, target, begin)
        source_place, target_place, columns = first + done, begin + done * rows, columns - done
        _by_entries(
            source, source_place, stride, rows, columns, target, target_place, target_stride
        )
        return
    whole_rows, whole_columns = rows // width * width, columns // width * width
    # A store across two cache lines takes long if they are in no cache yet (`OtherOrder`).
    expected = target.size * target.itemsize > FAR
    strip = STRIP * width  # each row of a large array is on a page
    if expected:
        _expect(target, begin, target_stride, 0, min(strip, whole_columns), width)
    for left in range(0, whole_columns, strip):
        right = min(left + strip, whole_columns)
        for r in range(0, whole_rows, width):
            row, to = first + r * stride, begin + r
            if expected:
                ahead = to + width if r + width < whole_rows else begin + strip * target_stride
                for c in range(left, right, width):
                    _expect(target, ahead, target_stride, c, c + width, width)
                    place = to + c * target_stride
                    simd.transpose(source, row + c, stride, target, place, target_stride)
            else:
                for c in range(left, right, width):
                    place = to + c * target_stride
                    simd.transpose(source, row + c, stride, target, place, target_stride)
    if whole_columns < columns:
        _last_columns(
            source, first + whole_columns, stride, whole_rows, columns - whole_columns,
            target, begin + whole_columns * target_stride, target_stride,
        )  # fmt: skip
    if whole_rows < rows:
        _last_rows(
            source, first + whole_rows * stride, stride, rows - whole_rows, whole_columns,
            target, begin + whole_rows, target_stride,
        )  # fmt: skip
    _by_entries(
        source, first + whole_rows * stride + whole_columns, stride,
        rows - whole_rows, columns - whole_columns,
        target, begin + whole_columns * target_stride + whole_rows, target_stride,
    )  # fmt: skip


@helper
def _transpose_by_lines(source, first, stride, rows, columns, target, begin, target_stride):
    """`transpose`, so that the stores after the first rows are whole cache lines, if they can."""
    line = simd.LINE // target.itemsize
    some = -(simd.address(target) // target.itemsize + begin) & (line - 1)
    if target_stride & (line - 1) or rows < ALIGNED * line:
        some = 0
    done, count = 0, some if some else rows
    while done < rows:
        place = first + done * stride
        transpose(source, place, stride, count, columns, target, begin + done, target_stride)
        done, count = done + count, rows - done - count


@kernel
def transpose_each(x, out):
    """Transpose each matrix of x into `out`."""
    count, rows, columns = x.shape
    source, target = x.reshape(x.size), out.reshape(out.size)
    for k in range(count):
        begin = k * rows * columns
        _transpose_by_lines(source, begin, columns, rows, columns, target, begin, rows)


@kernel
def transpose_rows(x, out, first, last):
    """Rows first..last−1 of x, as columns of `out`."""
    (rows, columns), begin = x.shape, first * x.shape[1]
    source, target = x.reshape(x.size), out.reshape(out.size)
    _transpose_by_lines(source, begin, columns, last - first, columns, target, first, rows)


@kernel
def project_columns(places, kind, absolute, tol, strict, x, out, table, room, first, last, part):
    """Project the columns of each matrix of x into out: panels first..last−1.

    The columns of a panel are rows of ``room[part]`` for a while: Numba would take room for long
    ones page by page.  `out` may be `x`.  `table` has a row for each column; for the rest see
    `engine.project_rows`, and for the `places` `short.project_by`: of a panel with a column that
    has to wait for the other nothing is done, and the status of its columns stays GO.
    """
    n, columns = x.shape[1], x.shape[2]
    panel, width = room[part], room.shape[1]
    panels = (columns + width - 1) // width
    source, target = x.reshape(x.size), out.reshape(out.size)
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
