"""Groups of the entries of a matrix, and how matrices reach the kernels."""

import math
import operator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from . import _checks, _dispatch
from . import _math as m
from ._cpu import groups as kernels
from ._cpu import lists, passes
from ._threads import NOBODY, run_split

INNER = {"linf": kernels.LINF, "l2": kernels.L2, "l1": kernels.L1}
PARALLEL_FROM = 1 << 22  # bytes of a matrix below which one thread is faster
_SMALL_BLOCK = 64  # entries: the sums of float32 numbers in it have no more digits than these
_LONG = 4096  # entries of the rows that short ones are joined to, and that a single one is cut to
_SHORT = 256  # bytes of a group below which rows as groups are joined, too
_NO_LABELS = np.empty((0, 0), np.intp)


@dataclass(slots=True)
class Matrices:
    """An input array, seen as matrices in its last two axes."""

    array: np.ndarray
    dtype: np.dtype  # of the result
    work: np.dtype  # of the computation
    batch: tuple[int, ...]
    turned: bool  # the kernels see the transposed matrices
    plain: bool = False  # they can read and write its memory as it is

    @property
    def slack(self) -> float:
        """Relative slack of the feasibility test."""
        return _checks.slack(self.dtype, self.work)


class Groups(NamedTuple):
    """A partition of the entries of a matrix, as the kernels see it."""

    kind: int
    height: int
    width: int
    labels: np.ndarray  # LABELS: the group of each entry
    shape: tuple[int, ...]  # of the groups, as the caller sees them
    number: int
    whole: bool = False  # labels of x's full shape: one projection of everything
    lines: str = ""  # "columns" or "rows" where the groups are these
    line: int = 0  # entries of the rows as the kernels see them, 0: rows as they are
    small: bool = False  # blocks of so few entries that norms have no more digits than these
    order: int = 0  # of the groups, where the kernels see another: see `settle`

    @property
    def layout(self) -> tuple:
        """What the kernels are told."""
        return self[:4]

    def seen(self, stack) -> np.ndarray:
        """View (batch, M, N) matrices as the kernels take them."""
        count, rows, columns = stack.shape
        if self.whole:
            return stack.reshape(1, *self.labels.shape)
        return stack.reshape(count, rows * columns // self.line, self.line) if self.line else stack


def matrices(x) -> Matrices:
    """Check the data argument."""
    array = _checks.as_array(x)
    dtype, work = _checks.dtypes(array, "x")
    shape = array.shape
    if len(shape) < 2:
        raise ValueError(f"x must have at least two dimensions, got shape {shape}")
    plain = array.dtype is work and array.flags.carray
    if shape[-1] == 1:  # in either order; a long row takes less time than short ones
        turned = shape[-2] > 1
    else:
        turned = not (plain or array.flags.c_contiguous)
        turned = turned and array.swapaxes(-1, -2).flags.c_contiguous
    return Matrices(array, dtype, work, shape[:-2], turned, plain and not turned)


def stacked(array, x: Matrices) -> np.ndarray:
    """View an array of x's shape as C-contiguous (batch, M, N) matrices, if its memory allows."""
    if x.turned:
        array = array.swapaxes(-1, -2)
    if array.ndim == 2:
        return array[None]
    return array.reshape((math.prod(x.batch), *array.shape[-2:]))


def source(x: Matrices) -> np.ndarray:
    """The matrices that the kernels read; the input's memory if it can."""
    array = stacked(x.array, x)
    if x.plain or (array.dtype is x.work and array.flags.carray):
        return array
    if array.dtype is not x.work or not array.flags.c_contiguous:
        array = _checks.in_order(array, x.work)
    return _checks.borrowed(array)


def target(x: Matrices, given, read, out, overwrite_x):
    """Choose where the result goes.

    Returns the matrices to read and to write, the array that is returned in the end, and
    whether the matrices to write are its own memory.
    """
    if x.plain and out is None and not overwrite_x:  # the usual case, told quickly
        out = np.empty(x.array.shape, x.dtype)
        return read, out[None] if out.ndim == 2 else out.reshape(read.shape), out, True
    copied = not x.plain and not np.may_share_memory(read, x.array)
    if out is None and overwrite_x and given is x.array and _checks.writable_as(given, x.dtype):
        if np.shares_memory(read, given):
            out = given
    if out is None and copied and x.dtype == x.work and _has_order_of_copy(x):
        turned = read.reshape(_turned(x, x.array).shape)  # the copy becomes the result
        return read, read, _turned(x, turned), True
    if out is None:
        out = np.empty_like(x.array, dtype=x.dtype, subok=False)
    else:
        _checks.check_out(out, x.array.shape, x.dtype)
    if out.dtype == x.work and _turned(x, out).flags.c_contiguous:
        write = stacked(np.asarray(out), x)  # a matrix has two axes for ever
        if np.may_share_memory(read, write) and not _checks.same_memory(read, write):
            read = read.copy()
        return read, write, out, True
    return read, read if copied else np.empty_like(read), out, False


def _turned(x: Matrices, array) -> np.ndarray:
    """An array of x's shape as the kernels see it, or the reverse."""
    return array.swapaxes(-1, -2) if x.turned else array


def _has_order_of_copy(x: Matrices) -> bool:
    """Whether a result that lies in memory as x does is in the kernels' order."""
    corner = x.array[(slice(2),) * x.array.ndim]  # its strides tell, and it is small
    return _turned(x, np.empty_like(corner)).flags.c_contiguous


def deliver(x: Matrices, write, out) -> None:
    """Copy the matrices into the result that is returned."""
    _checks.fill(_turned(x, out), write)


def parse(groups, x: Matrices) -> Groups:
    """Check the argument `groups` and describe it to the kernels."""
    rows, columns = x.array.shape[-2:]
    if isinstance(groups, str):
        if groups == "columns":
            return _blocks(rows, 1, rows, columns, x.turned, x.work, groups)
        if groups == "rows":
            return _blocks(1, columns, rows, columns, x.turned, x.work, groups)
        if groups == "diagonals":
            count = max(rows + columns - 1, 0)
            return Groups(kernels.DIAGONALS, 1, 1, _NO_LABELS, (count,), count, order=-x.turned)
        raise ValueError(
            "groups must be 'columns', 'rows', 'diagonals', a block shape or labels, "
            f"got {groups!r}"
        )
    if not (isinstance(groups, tuple) and len(groups) == 2):
        return _labels(groups, x)
    height, width = groups
    if type(height) is not int or type(width) is not int:
        if np.iterable(height):
            return _labels(groups, x)
        try:
            if isinstance(height, bool) or isinstance(width, bool):
                raise TypeError
            height, width = operator.index(height), operator.index(width)
        except TypeError:
            raise TypeError(f"groups: a block shape must be two integers, got {groups!r}") from None
    if height < 1 or width < 1:
        raise ValueError(f"groups: the sides of a block must be >= 1, got {groups!r}")
    return _blocks(height, width, rows, columns, x.turned, x.work)


@lru_cache(maxsize=64)
def _blocks(height, width, rows, columns, turned, dtype, lines=""):
    shape = {"columns": (columns,), "rows": (rows,)}.get(lines)
    if shape is None:
        shape = (-(-rows // height), -(-columns // width))
    height, width = max(min(height, rows), 1), max(min(width, columns), 1)
    if turned:
        height, width = width, height
    rows, columns = (columns, rows) if turned else (rows, columns)
    line = line_of(height, width, rows, columns, np.dtype(dtype).itemsize)
    return Groups(
        kernels.BLOCKS, height, width, _NO_LABELS, shape, math.prod(shape),
        lines=lines, line=line, small=height * width <= _SMALL_BLOCK,
        order=shape[1] if turned and not lines else 0,
    )  # fmt: skip


def line_of(height, width, rows, columns, itemsize):
    """See `Groups.line`: a row costs a few calls, what is kept for a long one leaves the caches."""
    short = width < columns or width * itemsize < _SHORT
    if not short or height > 1 or not columns or columns % width:
        return 0
    least = columns
    if rows == 1 and columns > _LONG:  # cut where groups end, if in pieces that are long enough
        rows, least = columns // width, width
    line = least * max(k for k in range(1, max(_LONG // least, 1) + 1) if rows % k == 0)
    return line if line != columns and line >= min(columns, _LONG // 8) else 0


def _labels(groups, x):
    if _dispatch.on_device(groups):
        raise TypeError("groups: the labels lie on a GPU, but x does not")
    if isinstance(groups, list) and len(groups) == 2 and all(isinstance(k, int) for k in groups):
        raise ValueError(f"groups: a block shape must be a tuple, got {groups!r}")
    labels = _checks.as_array(groups, "groups")
    if labels.dtype.kind not in "iu":
        raise TypeError(
            "groups must be 'columns', 'rows', 'diagonals', a block shape or integer labels, "
            f"got {type(groups).__name__} of dtype {labels.dtype}"
        )
    matrix, full = x.array.shape[-2:], x.array.shape
    if labels.shape not in (matrix, full):
        shapes = f"{matrix} or {full}" if full != matrix else f"{matrix}"
        raise ValueError(f"groups: labels must have shape {shapes}, got {labels.shape}")
    if labels.size and labels.min() < 0:
        raise ValueError(f"groups: labels must be >= 0, got {labels.min()}")
    count = int(labels.max()) + 1 if labels.size else 0
    if count > max(8 * labels.size, 1 << 16):
        raise ValueError(f"groups: labels must be numbered from 0 on, got {count - 1}")
    whole = labels.ndim > 2
    if x.turned:
        labels = labels.swapaxes(-1, -2)
    rows = math.prod(labels.shape[:-1])
    labels = np.ascontiguousarray(labels.reshape(rows, labels.shape[-1]), dtype=np.intp)
    labels = _checks.borrowed(labels)
    return Groups(kernels.LABELS, 1, 1, labels, (count,), count, whole)


def norms(z, groups: Groups, inner, workers) -> tuple[np.ndarray, float]:
    """Norms of the groups of `z` in the kernels' order, for `unit` times z; and the unit.

    The unit is 1 unless sums over- or underflow.  NaN or infinite where z is not finite.
    """
    result, unit = np.empty(groups.number, dtype_of_norms(z, groups, inner)), 1.0
    for scaled in (False, True):
        if workers == 1 or z.nbytes < PARALLEL_FROM:
            places = kernels.norms_at(inner, z.dtype, result.dtype)
            top = kernels.all_norms(places, z, unit, *groups.layout, inner, result, 1, NOBODY)
        else:
            top = _norms(z, unit, groups, inner, workers, result)
        if scaled or kernels.are_safe(top, z, inner):
            break
        # The sums over- or underflow, or there is nothing but zeros, or NaN.
        largest = passes.largest(z.reshape(-1), True)
        if not 0.0 < largest < math.inf or not passes.all_finite(z.reshape(-1)):
            break
        most = 1000 if z.itemsize == 8 else 100
        unit = math.ldexp(1.0, min(-math.frexp(largest)[1], most))
        if inner == kernels.L1:
            unit = 2.0**m.SUMS_EXPONENT
    return result, unit


def dtype_of_norms(z, groups: Groups, inner) -> np.dtype:
    """That of `z` where norms have no more digits: those of small blocks.  Else float64."""
    return z.dtype if groups.small and inner != kernels.L1 else _checks.FLOAT64


def _norms(z, unit, groups, inner, workers, result):
    """`all_norms` by several threads."""
    args = groups.layout
    wide = kernels.width_of_piece(groups.kind, groups.width, *z.shape, groups.number)
    count = kernels.pieces_of(groups.kind, groups.height, len(z))
    if kernels.are_whole(groups.kind, groups.height):
        most, rows = np.empty(count), result.reshape(count, wide)
        maxima, sums, _ = kernels.norms_at(inner, z.dtype, result.dtype)
        task = partial(kernels.whole_norms, maxima, sums, z, unit, *args, inner, rows, most)
        run_split(task, count, workers)
        return most.max(initial=0.0)
    if inner == kernels.LINF:
        pieces = np.empty((count, wide), z.dtype)
        task = partial(kernels.max_pieces, z, *args, pieces)
    else:
        pieces = np.empty((count, wide))
        task = partial(kernels.sum_pieces, z, inner == kernels.L2, unit, *args, pieces)
    run_split(task, count, workers)
    return kernels.join_norms(pieces, groups.kind, groups.height, len(z), inner, result)


def to_caller(values, groups: Groups, x: Matrices) -> np.ndarray:
    """Values of the groups of each matrix, from the kernels' order to the caller's."""
    several = values.shape[:-1]
    if x.turned and groups.kind == kernels.DIAGONALS:
        return values[..., ::-1]
    if x.turned and groups.kind == kernels.BLOCKS and not groups.lines:
        return values.reshape(*several, *groups.shape[::-1]).swapaxes(-1, -2)
    return values.reshape(*several, *groups.shape)


def mask(kept, groups: Groups, x: Matrices) -> np.ndarray:
    """For each entry whether its group was kept; broadcasts against x."""
    rows, columns = x.array.shape[-2:]
    if groups.kind == kernels.LABELS:
        labels = groups.labels
        if groups.whole:
            labels = labels.reshape(x.array.swapaxes(-1, -2).shape if x.turned else x.array.shape)
        labels = labels.swapaxes(-1, -2) if x.turned else labels
        return kept[..., labels]
    if groups.kind == kernels.DIAGONALS:
        if rows == 0 or columns == 0:
            return np.zeros((*kept.shape[:-1], rows, columns), bool)
        return sliding_window_view(kept, columns, axis=-1)[..., ::-1, :].copy()
    if not groups.lines:
        height, width = (groups.width, groups.height) if x.turned else (groups.height, groups.width)
        *batch, down, _ = kept.shape
        wide = np.repeat(kept, width, axis=-1)[..., :, None, :columns]
        wide = np.broadcast_to(wide, (*batch, down, height, columns))
        return wide.reshape(*batch, down * height, columns)[..., :rows, :]
    return kept[..., None, :] if groups.lines == "columns" else kept[..., :, None]


def listed(shape, groups: Groups):
    """Where each group starts in a list of a matrix's entries, and their places if by labels."""
    starts = np.empty(groups.number + 1, np.intp)
    places = np.empty(groups.labels.size, np.intp)
    lists.find_groups(*groups.layout, *shape, starts, places)
    return starts, places
