"""Norms of groups of the entries of matrices on the GPU.

Each kernel folds parts of the groups, by a sum or a maximum: narrow blocks and diagonals with
neighbouring threads on neighbouring columns, wide blocks by teams of threads that go along the
rows, labelled groups through a list of their entries.  Where a group has several parts, the
parts are a matrix again, whose columns or rows are folded in the same way.  How the groups are
cut depends on their shape only, so the norms have the same bits in each run.
"""

import math
from functools import partial

import numpy as np
from numba import float64
from numba.extending import register_jitable

from .._cpu.arrays import BLOCKS, DIAGONALS
from .._cpu.groups import L1, L2, LINF
from .device import SIMULATED, cuda, function, kernel, launch, launch_each

THREADS = 8 if SIMULATED else 256
ROWS = 2 if SIMULATED else 8  # of blocks, that narrow ones are folded together
_TOGETHER = 2 if SIMULATED else 4  # of them, where they are lower still
_READ = 4 * _TOGETHER
MOST_BLOCKS = 2 if SIMULATED else 1 << 16
_NARROW = 4 if SIMULATED else 16  # columns of a block up to which a thread takes one
_CELL = 64 if SIMULATED else 1 << 13  # entries of a part of a wide block or a label
_LEAST_ROWS, _MOST_ROWS = (4, 8) if SIMULATED else (8, 512)  # of a part, for each thread
_WORK = 1 << 17  # threads that keep a GPU busy


# --- entries ---------------------------------------------------------------------------------


@register_jitable
def larger(a, b):
    """The larger of two numbers; NaN wins."""
    return a if a >= b or a != a else b


@register_jitable
def merge(a, b, largest):
    """The maximum or the sum of two parts."""
    return larger(a, b) if largest else a + b


@register_jitable
def term(a, squares):
    """|a| or a², in float64."""
    wide = float64(a)
    return wide * wide if squares else abs(wide)


@register_jitable
def four_terms(a, b, c, d, squares, narrow):
    """The sum of four terms, in the data's precision but where float32 over- or underflows."""
    if squares:
        s = float64((a * a + b * b) + (c * c + d * d))
    else:
        s = float64((abs(a) + abs(b)) + (abs(c) + abs(d)))
    if narrow and not 1e-20 < s < 1e37:
        s = (term(a, squares) + term(b, squares)) + (term(c, squares) + term(d, squares))
    return s


@register_jitable
def fold(flat, first, step, count, inner, unit):
    """Σ|a|, Σa² or max|a| over so many entries, `step` apart, times the unit; 0 for none."""
    real = flat.dtype.type
    i, step = np.uint64(first), np.uint64(step)  # unsigned: no index counts from the end
    if inner == LINF:
        top = real(0)
        while count >= 4:
            j = np.uint64(i + step)
            k = np.uint64(j + step)
            a, b, c, d = abs(flat[i]), abs(flat[j]), abs(flat[k]), abs(flat[np.uint64(k + step)])
            top = larger(top, larger(larger(a, b), larger(c, d)))
            i = np.uint64(k + step + step)
            count -= 4
        while count > 0:
            top = larger(top, abs(flat[i]))
            i = np.uint64(i + step)
            count -= 1
        return float64(top)
    total, f, squares, narrow = 0.0, real(unit), inner == L2, flat.itemsize == 4
    while count >= 4:
        j = np.uint64(i + step)
        k = np.uint64(j + step)
        a, b, c, d = flat[i] * f, flat[j] * f, flat[k] * f, flat[np.uint64(k + step)] * f
        total += four_terms(a, b, c, d, squares, narrow)
        i = np.uint64(k + step + step)
        count -= 4
    while count > 0:
        total += term(flat[i] * f, squares)
        i = np.uint64(i + step)
        count -= 1
    return total


@register_jitable
def fold_four(a, b, c, d, inner, unit, narrow):
    """The same of four entries, of which some may be zeros that stand for none."""
    if inner == LINF:
        return float64(larger(larger(abs(a), abs(b)), larger(abs(c), abs(d))))
    return four_terms(a * unit, b * unit, c * unit, d * unit, inner == L2, narrow)


@register_jitable
def unit_of(top, squares):
    """The power of two by which data are multiplied that gave this largest sum.

    It brings the sums of float64 data into range, and leaves room for what norms are projected to,
    which may exceed them; 1 where they are.
    """
    if squares:
        return 2.0**-600 if top == math.inf else 2.0**600 if top < 1e-200 else 1.0
    return 2.0**-64 if top > 2.0**960 else 1.0


@function
def fold_team(room, a, step, count, largest):
    """Fold over `count` threads, a power of two, `step` apart; the first of them has the result."""
    t = cuda.threadIdx.x
    own = t // step % count
    cuda.syncthreads()  # somebody may still read
    room[t] = a
    cuda.syncthreads()
    half = count >> 1
    while half > 0:
        if own < half:
            room[t] = merge(room[t], room[t + half * step], largest)
        cuda.syncthreads()
        half >>= 1
    return room[t]


# --- kernels ---------------------------------------------------------------------------------

# In a first run all matrices are done. A second one (`again`) does those whose largest sum in the
# first, in `tops`, was out of range, in another unit.


@partial(kernel, bounds=(THREADS, 2))
def fold_columns(inner, again, tops, flat, rows, columns, height, width, piece, many, lanes, parts):
    """Fold narrow blocks: a thread a column of `many` rows of blocks, or of `piece` rows of one.

    `lanes` threads lie side by side, and the others below them.
    """
    room = cuda.shared.array(0, float64)
    read = cuda.local.array(_READ, flat.dtype)
    real = flat.dtype.type
    t = cuda.threadIdx.x
    lane, below, deep = t % lanes, t // lanes, cuda.blockDim.x // lanes
    down, across = (rows + height - 1) // height, (columns + width - 1) // width
    groups = lanes // width  # side by side
    tiles = (across + groups - 1) // groups
    each = (height + piece - 1) // piece
    chunks = (down * each + many - 1) // many
    for item in range(
        cuda.blockIdx.x, flat.size // (rows * columns) * chunks * tiles, cuda.gridDim.x
    ):
        tile, c = item % tiles, item // tiles
        matrix, begin = c // chunks, c % chunks * many
        unit = 1.0
        if again:
            unit = unit_of(tops[matrix], inner == L2)
            if unit == 1.0:
                continue
        j, g = tile * groups * width + lane, tile * groups + t
        end = min(begin + many, down * each)
        if deep == 1 and each == 1:  # several rows of blocks between two barriers
            at, step = (matrix * rows + begin * height) * columns + j, height * columns
            mine = lane < groups * width and j < columns
            for p in range(begin, end, ROWS):
                cuda.syncthreads()  # somebody may still read
                for k in range(0, ROWS if height <= 4 else 0, _TOGETHER):
                    for i in range(_READ):  # all are asked for before the first is used
                        block, h = p + k + i // 4, i % 4
                        inside = mine and block < end and h < height and block * height + h < rows
                        place = np.uint64(at + i // 4 * step + h * columns)
                        read[i] = flat[place] if inside else real(0)
                    for i in range(_TOGETHER):
                        room[(k + i) * cuda.blockDim.x + t] = fold_four(
                            read[4 * i], read[4 * i + 1], read[4 * i + 2], read[4 * i + 3], inner,
                            real(unit), read.itemsize == 4,
                        )  # fmt: skip
                    at += _TOGETHER * step
                for k in range(ROWS if height > 4 else 0):
                    a = 0.0
                    if mine and p + k < end:
                        count = min(height, rows - (p + k) * height)
                        a = fold(flat, at, columns, count, inner, unit)
                    room[k * cuda.blockDim.x + t] = a
                    at += step
                cuda.syncthreads()
                for k in range(min(ROWS, end - p)):
                    if t < groups and g < across:
                        first = k * cuda.blockDim.x + t * width
                        a = room[first]
                        for w in range(1, width):
                            a = merge(a, room[first + w], inner == LINF)
                        parts[(matrix * down + p + k) * across + g] = a
            continue
        for p in range(begin, end):
            top, first = p * height, p * height
            if each > 1:
                top = p // each * height
                first = top + p % each * piece
            last = min(min(first + piece, top + height), rows)
            a = 0.0
            if lane < groups * width and j < columns:
                place = (matrix * rows + first + below) * columns + j
                count = last - first - below
                if deep > 1:
                    count = (count + deep - 1) // deep
                a = fold(flat, place, deep * columns, count, inner, unit)
            fold_team(room, a, lanes, deep, inner == LINF)
            if t < groups and g < across:
                a = room[t * width]
                for k in range(1, width):
                    a = merge(a, room[t * width + k], inner == LINF)
                parts[(matrix * down * each + p) * across + g] = a


@kernel
def fold_blocks(inner, again, tops, flat, rows, columns, height, width, piece, span, lanes, parts):
    """Fold wide blocks: `lanes` threads a part of `piece` rows and `span` columns at most."""
    room = cuda.shared.array(0, float64)
    lane, team, teams = (
        cuda.threadIdx.x % lanes,
        cuda.threadIdx.x // lanes,
        cuda.blockDim.x // lanes,
    )
    down, across = (rows + height - 1) // height, (columns + width - 1) // width
    wide = (width + span - 1) // span
    each = (height + piece - 1) // piece * wide
    for start in range(cuda.blockIdx.x * teams, parts.size, cuda.gridDim.x * teams):
        cell = start + team
        g, p = cell // each, cell % each
        live, unit, a = cell < parts.size, 1.0, 0.0
        if live and again:
            unit = unit_of(tops[g // (down * across)], inner == L2)
            live = unit != 1.0
        if live:
            matrix, top, left = (
                g // (down * across),
                g // across % down * height,
                g % across * width,
            )
            first, begin = top + p // wide * piece, left + p % wide * span
            last = min(min(first + piece, top + height), rows)
            end = min(min(begin + span, left + width), columns)
            count = (end - begin - lane + lanes - 1) // lanes
            for i in range(first, last):
                place = (matrix * rows + i) * columns + begin + lane
                part = fold(flat, place, lanes, count, inner, unit)
                a = merge(a, part, inner == LINF)
        a = fold_team(room, a, 1, lanes, inner == LINF)
        if live and lane == 0:
            parts[cell] = a


@kernel
def fold_diagonals(inner, again, tops, flat, rows, columns, piece, parts):
    """Fold diagonals within `piece` rows: a thread for each diagonal that meets them."""
    wide = columns + piece - 1
    pieces = (rows + piece - 1) // piece
    e = cuda.grid(1)
    while e < parts.size:
        p, d = e // wide, e % wide
        matrix = p // pieces
        unit = unit_of(tops[matrix], inner == L2) if again else 1.0
        if unit != 1.0 or not again:
            first = p % pieces * piece
            last = min(first + piece, rows)
            ahead = d + 1 - last  # column minus row
            top, end = max(first, -ahead), min(last, columns - ahead)
            place = (matrix * rows + top) * columns + top + ahead
            parts[e] = fold(flat, place, columns + 1, end - top, inner, unit)
        e += cuda.gridsize(1)


@kernel
def join_diagonals(largest, parts, rows, columns, piece, norms):
    """Fold the parts of each diagonal."""
    number, wide = rows + columns - 1, columns + piece - 1
    pieces = (rows + piece - 1) // piece
    e = cuda.grid(1)
    while e < norms.size:
        matrix, ahead = e // number, e % number - (rows - 1)
        top, end = max(0, -ahead), min(rows, columns - ahead)
        a = 0.0
        for p in range(top // piece, (end - 1) // piece + 1):
            d = ahead - 1 + min((p + 1) * piece, rows)
            a = merge(a, parts[(matrix * pieces + p) * wide + d], largest)
        norms[e] = a
        e += cuda.gridsize(1)


@kernel
def fold_listed(inner, again, tops, flat, order, starts, each, lanes, parts):
    """Fold labelled groups, each in so many parts of equal size: `lanes` threads a part."""
    room = cuda.shared.array(0, float64)
    lane, team, teams = (
        cuda.threadIdx.x % lanes,
        cuda.threadIdx.x // lanes,
        cuda.blockDim.x // lanes,
    )
    number, size = starts.size - 1, order.size
    for start in range(cuda.blockIdx.x * teams, parts.size, cuda.gridDim.x * teams):
        cell = start + team
        g, p = cell // each, cell % each
        live, unit, a = cell < parts.size, 1.0, 0.0
        if live and again:
            unit = unit_of(tops[g // number], inner == L2)
            live = unit != 1.0
        if live:
            matrix, begin = g // number, starts[g % number]
            length = starts[g % number + 1] - begin
            for k in range(
                begin + length * p // each + lane, begin + length * (p + 1) // each, lanes
            ):
                value = abs(float64(flat[matrix * size + order[k]])) * unit
                a = merge(a, term(value, inner == L2), inner == LINF)
        a = fold_team(room, a, 1, lanes, inner == LINF)
        if live and lane == 0:
            parts[cell] = a


@kernel
def take_roots(norms):
    """From Σa² to the norms."""
    e = cuda.grid(1)
    while e < norms.size:
        norms[e] = math.sqrt(norms[e])
        e += cuda.gridsize(1)


# --- launches --------------------------------------------------------------------------------


def power(count):
    """The least power of two that is not below the count."""
    return 1 << max(math.ceil(count) - 1, 0).bit_length()


def rows_each(rows, columns, most=_MOST_ROWS):
    """How many rows of a matrix a thread takes in a column."""
    return min(max(rows * columns // _WORK, _LEAST_ROWS), most)


def _teams(cells, lanes):
    return min(-(-cells * lanes // THREADS), MOST_BLOCKS)


class Folds:
    """A sequence of launches that ends with a number for each group."""

    def __init__(self, home, inner):
        self.home, self.inner, self.steps = home, inner, []
        self.none = vector(home, 1)

    def blocks(self, flat, batch, rows, columns, height, width, result):
        """Append the launches for the blocks of matrices that lie in a flat array."""
        height, width = min(height, rows), min(width, columns)
        lanes = min(power(columns), THREADS)
        deep = THREADS // lanes
        if width <= _NARROW and (deep == 1 or deep <= height):
            piece = rows_each(rows, columns) * deep
            each, across, down = -(-height // piece), -(-columns // width), -(-rows // height)
            many = max(piece // height, 1)
            tiles, chunks = -(-across // (lanes // width)), -(-down * each // many)
            parts = self._parts(batch * down * each * across, each, result)
            given = flat, rows, columns, height, width, piece, many, lanes, parts
            self._add(fold_columns, min(batch * chunks * tiles, MOST_BLOCKS), given)
            if each > 1:  # of each row of blocks, a matrix
                self._then().blocks(parts, batch * down, each, across, each, 1, result)
            return
        lanes = min(max(power(width / 4), min(_NARROW, power(width) // 2), 1), THREADS)
        span = min(width, _CELL)
        piece = min(max(_CELL // span, 1), height)
        each = -(-height // piece) * -(-width // span)
        number = batch * -(-rows // height) * -(-columns // width)
        parts = self._parts(number * each, each, result)
        given = flat, rows, columns, height, width, piece, span, lanes, parts
        self._add(fold_blocks, _teams(number * each, lanes), given)
        if each > 1:  # of each group, a row
            self._then().blocks(parts, 1, number, each, 1, each, result)

    def diagonals(self, flat, batch, rows, columns, result):
        """Append the launches for the diagonals."""
        piece = rows_each(rows, columns)
        count = batch * -(-rows // piece) * (columns + piece - 1)
        parts = vector(self.home, count)
        self._add(fold_diagonals, _teams(count, 1), (flat, rows, columns, piece, parts))
        given = self.inner == LINF, parts, rows, columns, piece, result
        self.steps.append((join_diagonals, _teams(result.size, 1), given))

    def listed(self, flat, batch, order, starts, result):
        """Append the launches for groups that a list of their entries gives."""
        number = starts.size - 1
        mean = order.size / number
        each = min(max(int(mean / _CELL), 1), 64)
        lanes = min(power(mean / each / 4), THREADS)
        parts = self._parts(batch * number * each, each, result)
        self._add(fold_listed, _teams(parts.size, lanes), (flat, order, starts, each, lanes, parts))
        if each > 1:
            self._then().blocks(parts, 1, batch * number, each, 1, each, result)

    def run(self, tops=None):
        """Launch; with the largest sums of a first run, for what was out of range."""
        for k, (step, blocks, given) in enumerate(self.steps):
            if step is not join_diagonals:
                inner, *rest = given
                again = tops is not None and k == 0
                given = inner, again, tops if again else self.none, *rest
            room = ROWS if step is fold_columns else 1
            launch(step, self.home, blocks, THREADS, *given, shared=8 * THREADS * room)

    def _parts(self, count, each, result):
        return result if each == 1 else vector(self.home, count)

    def _add(self, step, blocks, given):
        self.steps.append((step, blocks, (self.inner, *given)))

    def _then(self):
        """The same sequence, now for numbers that are to be added up or compared."""
        other = Folds.__new__(Folds)
        other.home, other.steps, other.none = self.home, self.steps, self.none
        other.inner = LINF if self.inner == LINF else L1
        return other


def vector(home, count):
    """Room for so many float64 numbers."""
    return home.scratch((max(count, 1),), "float64")


def fold_rows(home, values, batch, inner):
    """Σ, Σ² or the maximum of each row of a float64 matrix, which is flat and nonnegative."""
    result = vector(home, batch)
    folds = Folds(home, inner)
    number = values.size // batch
    folds.blocks(values, 1, batch, number, 1, number, result)
    folds.run()
    return result


def norms(home, z, parts, inner, lists=None):
    """Norms of the groups of each matrix, flat, and the largest sum of each matrix or None.

    With the largest sums, the norms are those of the matrix times `unit_of` that sum.  `lists`
    are the entries in the groups' order and where each group starts, for labels.
    """
    batch, rows, columns = z.shape
    flat = z.reshape(z.size)
    result = vector(home, batch * parts.number)
    folds = Folds(home, inner)
    if parts.kind == BLOCKS:
        folds.blocks(flat, batch, rows, columns, parts.height, parts.width, result)
    elif parts.kind == DIAGONALS:
        folds.diagonals(flat, batch, rows, columns, result)
    else:
        folds.listed(flat, batch, *lists, result)
    folds.run()
    tops = None
    if inner != LINF and z.dtype.itemsize == 8:
        tops = fold_rows(home, result, batch, LINF)
        folds.run(tops)
    if inner == L2:
        launch_each(take_roots, home, result.size, result)
    return result, tops
