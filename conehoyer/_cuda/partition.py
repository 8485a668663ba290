"""Which entries of a matrix form a group: regular groups by arithmetic, labels by a sort.

An order of the groups is one in which the entries of each lie side by side.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numba import float64, int64
from numba.extending import register_jitable

from .. import _dispatch, _groups
from .. import _math as m
from .._cpu.arrays import BLOCKS, DIAGONALS, LABELS
from . import arrays, engine
from .device import SIMULATED, cuda, home_of, kernel, launch, launch_each, threads_for

_LEAST_CHUNK = 4 if SIMULATED else 64  # labels that a thread sorts by itself
_MOST_CHUNKS = 16 if SIMULATED else 1 << 15
_EACH = 32 if SIMULATED else 8  # entries of a thread
_DIGIT = 4  # bits of a label sorted at once


# --- which entries form a group ------------------------------------------------------------


@register_jitable
def where(e, rows, columns):
    """Matrix, row and column of entry e of a batch of matrices."""
    size = rows * columns
    inside = e % size
    return e // size, inside // columns, inside % columns


@register_jitable
def group_of(kind, height, width, rows, columns, labels, i, j):
    """The group of the entry in row i and column j."""
    if kind == BLOCKS:
        return i // height * ((columns + width - 1) // width) + j // width
    if kind == DIAGONALS:
        return j - i + rows - 1
    return labels[i * columns + j]


@register_jitable
def start_of(kind, height, width, rows, columns, g):
    """How many entries lie in the groups before group g, which is no label."""
    if kind == BLOCKS:
        across = (columns + width - 1) // width
        above = min(g // across * height, rows)
        return above * columns + min(height, rows - above) * (g % across * width)
    small, large = min(rows, columns), max(rows, columns)
    if g <= small:
        return g * (g + 1) // 2
    if g <= large:
        return small * (small + 1) // 2 + (g - small) * small
    rest = rows + columns - 1 - g
    return rows * columns - rest * (rest + 1) // 2


@register_jitable
def place_in(kind, height, width, columns, i, j):
    """The place of an entry within its group, which is no label."""
    if kind == DIAGONALS:
        return min(i, j)
    left = j // width * width
    return i % height * min(width, columns - left) + (j - left)


@kernel
def find_starts(kind, height, width, rows, columns, starts):
    """Where each group starts, and where the last one ends."""
    g = cuda.grid(1)
    while g < starts.size:
        starts[g] = start_of(kind, height, width, rows, columns, g)
        g += cuda.gridsize(1)


@kernel
def arrange(kind, height, width, z, starts, values):
    """Bring the entries of each matrix into the order of their groups."""
    _, rows, columns = z.shape
    e = cuda.grid(1)
    while e < z.size:
        r, i, j = where(e, rows, columns)
        g = group_of(kind, height, width, rows, columns, starts, i, j)
        values[r, starts[g] + place_in(kind, height, width, columns, i, j)] = z[r, i, j]
        e += cuda.gridsize(1)


@kernel
def arrange_by(order, z, values):
    """Bring the entries of each matrix into this order."""
    batch, size = z.shape
    e = cuda.grid(1)
    while e < batch * size:
        r, k = e // size, e % size
        values[r, k] = z[r, order[k]]
        e += cuda.gridsize(1)


# --- labels --------------------------------------------------------------------------------


@kernel
def label_range(labels, found):
    """The largest label, and the least or 0."""
    most, least = int64(-1), int64(0)
    e = cuda.grid(1)
    while e < labels.size:
        most, least = max(most, labels[e]), min(least, labels[e])
        e += cuda.gridsize(1)
    cuda.atomic.max(found, 0, most)
    cuda.atomic.min(found, 1, least)


@kernel
def begin_order(order):
    """The entries as they lie."""
    k = cuda.grid(1)
    while k < order.size:
        order[k] = k
        k += cuda.gridsize(1)


@kernel
def count_digits(labels, order, shift, table):
    """How often each digit occurs in each chunk; a thread for a chunk."""
    chunks = table.shape[1]
    chunk = (order.size + chunks - 1) // chunks
    c = cuda.grid(1)
    if c < chunks:
        for d in range(table.shape[0]):
            table[d, c] = 0
        for k in range(c * chunk, min((c + 1) * chunk, order.size)):
            table[(labels[order[k]] >> shift) % table.shape[0], c] += 1


@kernel
def count_before(flat):
    """Replace each count by the sum of those before it; one block."""
    room = cuda.shared.array(0, float64)
    t, threads = cuda.threadIdx.x, cuda.blockDim.x
    chunk = (flat.size + threads - 1) // threads
    first, last = t * chunk, min((t + 1) * chunk, flat.size)
    total = 0
    for k in range(first, last):
        total += flat[k]
    room[t] = float64(total)
    cuda.syncthreads()
    before = 0
    for u in range(t):
        before += int64(room[u])
    for k in range(first, last):
        own = flat[k]
        flat[k] = before
        before += own


@kernel
def move_digits(labels, order, shift, table, moved):
    """Sort by one digit, equal ones in the order that they had."""
    chunks = table.shape[1]
    chunk = (order.size + chunks - 1) // chunks
    c = cuda.grid(1)
    if c < chunks:
        for k in range(c * chunk, min((c + 1) * chunk, order.size)):
            d = (labels[order[k]] >> shift) % table.shape[0]
            moved[table[d, c]] = order[k]
            table[d, c] += 1


@kernel
def find_label_starts(labels, order, starts):
    """The first place with label g or more, for each g."""
    g = cuda.grid(1)
    while g < starts.size:
        low, high = 0, order.size
        while low < high:
            middle = (low + high) // 2
            if labels[order[middle]] < g:
                low = middle + 1
            else:
                high = middle
        starts[g] = low
        g += cuda.gridsize(1)


def sort_labels(home, labels, number):
    """The entries in the order of their labels, a stable sort, and where each label starts."""
    size = labels.size
    chunks = max(min(-(-size // _LEAST_CHUNK), _MOST_CHUNKS), 1)
    table = home.scratch((1 << _DIGIT, chunks), "int64")
    order, moved = (home.scratch((size,), "int64") for _ in range(2))
    launch_each(begin_order, home, size, order)
    threads = threads_for(chunks)
    threads = min(threads, 64)
    for shift in range(0, max(number - 1, 0).bit_length(), _DIGIT):
        given = labels, order, shift, table
        launch(count_digits, home, -(-chunks // threads), threads, *given)
        wide = threads_for(table.size, _EACH)
        launch(count_before, home, 1, wide, table.reshape(table.size), shared=8 * wide)
        launch(move_digits, home, -(-chunks // threads), threads, *given, moved)
        order, moved = moved, order
    starts = home.scratch((number + 1,), "int64")
    launch_each(find_label_starts, home, number + 1, labels, order, starts)
    return order, starts


# --- in the order of the groups ------------------------------------------------------------


def lists_of(home, parts, rows, columns):
    """The order of the groups, None where arithmetic gives it, and where each group starts."""
    if parts.kind == LABELS:
        return sort_labels(home, parts.labels, parts.number)
    starts = home.scratch((parts.number + 1,), "int64")
    launch_each(find_starts, home, starts.size, *parts.regular, rows, columns, starts)
    return None, starts


def in_order(home, parts, z, lists):
    """The matrices' entries in the order of the groups; z itself where they lie so."""
    batch, rows, columns = z.shape
    order, starts = lists
    flat = z.reshape(batch, rows * columns)
    if parts.kind == BLOCKS and parts.width == columns:
        return flat
    values = home.scratch(flat.shape, z.dtype.name)
    if order is None:
        launch_each(arrange, home, z.size, *parts.regular, z, starts, values)
    else:
        launch_each(arrange_by, home, z.size, order, flat, values)
    return values


# --- the caller's groups, and the report ----------------------------------------------------


class Partition(NamedTuple):
    """A partition of the entries of matrices on the device."""

    kind: int
    height: int
    width: int
    labels: Any  # of each entry, where groups have labels
    shape: tuple[int, ...]  # of the groups, as the caller sees them
    whole: bool  # labels of x's full shape: one projection of everything
    lines: str  # "columns" or "rows" where the groups are these

    @property
    def number(self):
        """How many groups there are."""
        return math.prod(self.shape)

    @property
    def regular(self):
        """What the arithmetic of the groups takes."""
        return self.kind, self.height, self.width


def parse(groups, s, home) -> Partition:
    """Check the argument `groups`; labels are looked at, which waits for the device."""
    if not _dispatch.on_device(groups):
        block_shape = isinstance(groups, tuple) and len(groups) == 2 and not np.iterable(groups[0])
        if not isinstance(groups, str) and not block_shape:
            raise TypeError(
                "groups: labels for an x on a GPU must be an array on that GPU, "
                f"got {type(groups).__name__}"
            )
        matrices = _groups.Matrices(s.array, s.dtype, s.work, s.shape[:-2], False)
        g = _groups.parse(groups, matrices)
        return Partition(g.kind, g.height, g.width, None, g.shape, False, g.lines)
    other = home_of(groups)
    if type(other) is not type(home) or other.device != home.device:
        raise TypeError(
            "groups: labels must be of x's library and on its device, got "
            f"{type(groups).__module__}.{type(groups).__name__}"
        )
    dtype, shape = other.dtype(groups), tuple(groups.shape)
    if not dtype.startswith(("int", "uint")):
        raise TypeError(
            "groups must be 'columns', 'rows', 'diagonals', a block shape or integer labels, "
            f"got {type(groups).__name__} of dtype {dtype}"
        )
    if shape not in (s.shape[-2:], s.shape):
        raise ValueError(f"groups: labels must have shape {s.shape[-2:]} or {s.shape}, got {shape}")
    size = math.prod(shape)
    labels, count = None, 0
    if size:
        labels = arrays.read(home, groups, None, "int64", (size,))
        found = home.view(home.upload(np.array([-1, 0])))
        launch_each(label_range, home, size, labels, found)
        largest, least = (int(value) for value in home.fetch(found))
        if least < 0:
            raise ValueError(f"groups: labels must be >= 0, got {least}")
        count = largest + 1
    if count > max(8 * size, 1 << 16):
        raise ValueError(f"groups: labels must be numbered from 0 on, got {count - 1}")
    return Partition(LABELS, 1, 1, labels, (count,), len(shape) > 2, "")


@kernel
def find_kept(radii, kept):
    """Which groups were kept."""
    i = cuda.grid(1)
    while i < kept.size:
        kept[i] = radii[i] > 0.0
        i += cuda.gridsize(1)


@kernel
def find_mask(kind, height, width, labels, radii, mask):
    """For each entry whether its group was kept."""
    _, rows, columns = mask.shape
    e = cuda.grid(1)
    while e < mask.size:
        r, i, j = where(e, rows, columns)
        mask[r, i, j] = radii[r, group_of(kind, height, width, rows, columns, labels, i, j)] > 0.0
        e += cuda.gridsize(1)


def info_of(s, parts, report, bounds, flat_bounds, nonzeros):
    """The report, on the device."""
    from ..bilevel import BilevelInfo

    home = s.home
    kept = home.empty(tuple(bounds.shape), "bool")
    shape = s.shape
    if parts.lines:
        shape = (*s.batch, 1, s.shape[-1]) if parts.lines == "columns" else (*s.shape[:-1], 1)
    mask = home.empty(shape, "bool")

    def column(k, dtype="float64"):
        return arrays.column(home, report, k, s.batch, dtype)

    if flat_bounds is None:
        arrays.fill(home, kept, False)
        arrays.fill(home, mask, False)
    else:
        size = flat_bounds.size
        each = flat_bounds.reshape(size)
        launch_each(find_kept, home, size, each, home.view(kept, (size,), (1,)))
        if parts.lines:
            launch_each(find_kept, home, size, each, home.view(mask, (size,), (1,)))
        else:
            wide = (s.number, math.prod(shape) // s.shape[-1] // s.number, s.shape[-1])
            labels = parts.labels
            if labels is None:
                labels = home.view(nonzeros, (s.number,), (8,))
            launch_each(
                find_mask, home, math.prod(shape), parts.kind, parts.height, parts.width, labels,
                flat_bounds, home.view(mask, wide, (wide[1] * wide[2], wide[2], 1)),
            )  # fmt: skip
    return BilevelInfo(
        bounds, kept, mask, column(engine.THRESHOLD), column(engine.LEVEL), nonzeros,
        column(engine.PASSES, "int64"),
        arrays.column(home, report, engine.STATUS, s.batch, "bool", m.CAPPED),
    )  # fmt: skip
