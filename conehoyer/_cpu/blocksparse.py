"""Products of a block-sparse matrix and a dense one, tile by tile in vector registers.

The blocks lie one behind the other, each column by column: entry i of column k of block b is
``values[(b * width + k) * tall + i]``, where ``tall`` is the height of a block rounded up to
whole tiles.  A run is the blocks of one row of blocks within a panel of columns; the runs of a
panel lie together, so that what they read of the dense matrix stays in the first-level cache.

Each entry of a result is added up in the order of the columns, one fused operation a term, so
that neither the shape of a tile, nor the panels, nor the number of workers change a bit.
"""

from typing import NamedTuple

import numpy as np

from .._jit import kernel
from .tiles import ACCUMULATORS, BITS, add_outer, lanes, load_tile, store_tile, zero_tile

_CACHE = 32 << 10  # bytes of the dense matrix that a panel reads, from the first-level cache
_NEAR = 512 << 10  # bytes of it that are read again and again, from the second-level cache


class Tiling(NamedTuple):
    """How a product with blocks of some shape is cut into tiles."""

    rows: tuple[int, ...]  # of a tile: the length counts
    vecs: tuple[int, ...]  # registers side by side
    tall: int  # height of a block, rounded up to whole tiles
    panel: int  # columns of blocks in a panel


class Layout(NamedTuple):
    """Where the blocks are."""

    height: int
    width: int
    tall: int
    indices: np.ndarray  # column of blocks, for each block
    runs: np.ndarray  # row of blocks, for each run
    first: np.ndarray  # block that each run begins with; one entry more
    panels: np.ndarray  # run that each panel begins with; one entry more


def tiling(height, width, columns) -> Tiling:
    """The tiles for blocks of this shape.

    A tile of few rows reads much of the dense matrix for each operation, so it gets panels.
    """
    most = ACCUMULATORS // 2
    count = -(-height // most)
    rows = -(-height // count)
    vecs = min(ACCUMULATORS // rows, most)
    vecs = 1 << (vecs.bit_length() - 1)
    blocks = max(-(-columns // width), 1)
    if vecs > 2:
        blocks = min(max(_CACHE // (vecs * BITS // 8) // width, 1), blocks)
    return Tiling((0,) * rows, (0,) * vecs, rows * count, blocks)


# --- dense on the right, row by row ---------------------------------------------------------


@kernel
def _pack(vecs, x, column, wide, room, place):
    """Copy so many columns of x, zeros where it has no more, one row behind the other."""
    flat, n = x.reshape(x.size), x.shape[1]
    if column + wide <= n:
        for k in range(x.shape[0]):
            row = load_tile((0,), vecs, flat, k * n + column, 0)
            store_tile(row, (0,), vecs, room, place + k * wide, 0)
    else:
        for k in range(x.shape[0]):
            for j in range(wide):
                room[place + k * wide + j] = x[k, column + j] if column + j < n else 0.0


@kernel
def _read_rows(out, row, column, rows, wide, corner):
    """Copy a tile out of a matrix, zeros beyond its edges."""
    for i in range(rows):
        for j in range(wide):
            inside = row + i < out.shape[0] and column + j < out.shape[1]
            corner[i * wide + j] = out[row + i, column + j] if inside else 0.0


@kernel
def _write_rows(corner, wide, row, last, column, out):
    """Copy rows row..last−1 of a tile into a matrix, as far as its columns go."""
    for i in range(last - row):
        for j in range(min(wide, out.shape[1] - column)):
            out[row + i, column + j] = corner[i * wide + j]


@kernel
def multiply(rows, vecs, values, layout, x, out, begin, end):
    """Rows begin..end−1 of blocks of ``out = W @ x``; x and out have contiguous rows."""
    height, width, tall = layout.height, layout.width, layout.tall
    indices, runs, first, panels = layout.indices, layout.runs, layout.first, layout.panels
    count, wide = len(rows), len(vecs) * lanes(x)
    length, n = x.shape
    # As many strips of x as the second-level cache holds, each one row behind the other.
    strip = length * wide
    most = max(_NEAR // max(strip * x.itemsize, 1), 1) * wide
    room = np.empty(0 if n == wide else strip * (min(most, n + wide - 1) // wide), x.dtype)
    source = x.reshape(x.size) if n == wide else room
    flat = out.reshape(out.size)
    corner = np.empty(count * wide, x.dtype)
    for left in range(0, n, most):
        right = min(left + most, n)
        if n != wide:
            for column in range(left, right, wide):
                _pack(vecs, x, column, wide, room, (column - left) // wide * strip)
        for panel in range(panels.size - 1):
            low, high = panels[panel], panels[panel + 1]
            low += np.searchsorted(runs[low:high], begin)
            for q in range(low, high):
                if runs[q] >= end:
                    break
                for column in range(left, right, wide):
                    offset = (column - left) // wide * strip
                    for t in range(0, tall, count):
                        row = runs[q] * height + t
                        last = min(row + count, runs[q] * height + height, out.shape[0])
                        direct = column + wide <= n and row + count == last
                        place = row * n + column
                        tile = zero_tile(values, rows, vecs)
                        if panel > 0 and row < last:
                            if direct:
                                tile = load_tile(rows, vecs, flat, place, n)
                            else:
                                _read_rows(out, row, column, count, wide, corner)
                                tile = load_tile(rows, vecs, corner, 0, wide)
                        for b in range(first[q], first[q + 1]):
                            base = indices[b] * width
                            entry = b * width * tall + t
                            start = offset + base * wide
                            for _ in range(min(width, length - base)):
                                tile = add_outer(tile, rows, vecs, values, entry, 1, source, start)
                                entry += tall
                                start += wide
                        if direct:
                            store_tile(tile, rows, vecs, flat, place, n)
                        elif row < last:
                            store_tile(tile, rows, vecs, corner, 0, wide)
                            _write_rows(corner, wide, row, last, column, out)


# --- dense on the right, column by column ---------------------------------------------------


@kernel
def multiply_columns(rows, vecs, values, layout, x, out, begin, end):
    """The same for xᵀ and outᵀ with contiguous rows: the registers lie along the blocks' columns.

    x is (columns of the dense matrix, length), out (columns, rows of the result).
    """
    height, width, tall = layout.height, layout.width, layout.tall
    indices, runs, first = layout.indices, layout.runs, layout.first
    count, deep = len(rows), len(vecs) * lanes(x)
    n, length = x.shape
    limit = out.shape[1]
    source, flat = x.reshape(x.size), out.reshape(out.size)
    corner = np.empty(count * deep, x.dtype)
    low = np.searchsorted(runs, begin)
    for group in range(0, n, count):
        column = min(group, n - count)  # the last tile takes some columns once more
        for q in range(low, runs.size):
            if runs[q] >= end:
                break
            top = runs[q] * height
            last = min(top + height, limit)
            for t in range(0, height, deep):
                tile = zero_tile(values, rows, vecs)
                for b in range(first[q], first[q + 1]):
                    base = indices[b] * width
                    entry = b * width * tall + t
                    start = column * length + base
                    for _ in range(min(width, length - base)):
                        tile = add_outer(tile, rows, vecs, source, start, length, values, entry)
                        entry += tall
                        start += 1
                row = top + t
                if row + deep <= last:
                    store_tile(tile, rows, vecs, flat, column * limit + row, limit)
                elif row < last:
                    store_tile(tile, rows, vecs, corner, 0, deep)
                    for i in range(count):
                        for j in range(last - row):
                            out[column + i, row + j] = corner[i * deep + j]


# --- dense times dense, at the blocks of a pattern ------------------------------------------


@kernel
def sample(rows, vecs, queries, keys, layout, of_row, values, begin, end):
    """Blocks begin..end−1 of Q·Kᵀ; `queries` is Qᵀ, and both have zeros beyond their edges."""
    height, width, tall = layout.height, layout.width, layout.tall
    count, deep = len(rows), len(vecs) * lanes(keys)
    depth, step = keys.shape[1], queries.shape[1]
    left, right = keys.reshape(keys.size), queries.reshape(queries.size)
    corner = np.empty(count * deep, keys.dtype)
    for b in range(begin, end):
        for k in range(0, width, count):
            for t in range(0, height, deep):
                tile = zero_tile(keys, rows, vecs)
                entry = (layout.indices[b] * width + k) * depth
                start = of_row[b] * height + t
                for _ in range(depth):
                    tile = add_outer(tile, rows, vecs, left, entry, depth, right, start)
                    entry += 1
                    start += step
                place = (b * width + k) * tall + t
                if k + count <= width and t + deep <= tall:
                    store_tile(tile, rows, vecs, values, place, tall)
                else:
                    store_tile(tile, rows, vecs, corner, 0, deep)
                    for i in range(min(count, width - k)):
                        for j in range(min(deep, tall - t)):
                            values[place + i * tall + j] = corner[i * deep + j]


@kernel
def softmax(values, layout, columns, result, begin, end):
    """Softmax over the kept entries of each row, for rows begin..end−1 of blocks."""
    width, tall, first = layout.width, layout.tall, layout.first
    top, total = np.empty(tall, values.dtype), np.empty(tall, values.dtype)
    for q in range(begin, end):
        top[:] = -np.inf
        total[:] = 0.0
        for b in range(first[q], first[q + 1]):
            for k in range(min(width, columns - layout.indices[b] * width)):
                place = (b * width + k) * tall
                for i in range(tall):
                    top[i] = max(top[i], values[place + i])
        for b in range(first[q], first[q + 1]):
            valid = min(width, columns - layout.indices[b] * width)
            for k in range(width):
                place = (b * width + k) * tall
                for i in range(tall):
                    e = np.exp(values[place + i] - top[i]) if k < valid else 0.0
                    result[place + i] = e
                    total[i] += e
        for b in range(first[q], first[q + 1]):
            for k in range(width):
                place = (b * width + k) * tall
                for i in range(tall):
                    result[place + i] /= total[i]


# --- plain loops ----------------------------------------------------------------------------


@kernel
def multiply_plainly(values, layout, x, out, begin, end):
    """What `multiply` does, as one would write it down; for machines without registers to spare."""
    height, width, tall = layout.height, layout.width, layout.tall
    for panel in range(layout.panels.size - 1):
        for q in range(layout.panels[panel], layout.panels[panel + 1]):
            if not begin <= layout.runs[q] < end:
                continue
            top = layout.runs[q] * height
            for i in range(min(height, out.shape[0] - top)):
                if panel == 0:
                    out[top + i] = 0.0
                for b in range(layout.first[q], layout.first[q + 1]):
                    base = layout.indices[b] * width
                    for k in range(min(width, x.shape[0] - base)):
                        w = values[(b * width + k) * tall + i]
                        for j in range(x.shape[1]):
                            out[top + i, j] += w * x[base + k, j]
