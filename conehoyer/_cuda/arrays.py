"""How arrays on a GPU become rows and come back: the device's side of `_checks`.

The kernels see C-contiguous float32 or float64 matrices, one slice a row.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.exceptions import AxisError

from .. import _checks, _dispatch
from .._checks import MACHINE_EPSILON, SLACK
from .device import contiguous_strides, extent, function, home_of, kernel, launch_each, size_of
from .device import cuda as cuda

NARROW = ("float16", "bfloat16")
_WORK = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


class DeviceSlices(NamedTuple):
    """An array on a GPU, seen as slices along an axis."""

    home: Any
    array: Any  # the array that came in
    shape: tuple[int, ...]
    axis: int | None
    dtype: str  # of the result
    work: str  # of the computation
    batch: tuple[int, ...]  # shape without the axis
    length: int  # of one slice

    @property
    def number(self) -> int:
        """Number of slices."""
        return math.prod(self.batch)

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def slack(self) -> float:
        """Relative slack of the feasibility test."""
        return slack_of(self.dtype)


def slack_of(dtype):
    """Relative slack of the feasibility test."""
    return SLACK[dtype] if dtype in SLACK else 2.0 * MACHINE_EPSILON[dtype]


def result_dtype(home, x, name):
    """Floating dtypes are kept, integers and booleans become float64."""
    dtype = home.dtype(x)
    if dtype in _WORK:
        return dtype
    if dtype == "bool" or dtype.startswith(("int", "uint")):
        return "float64"
    raise TypeError(f"{name} must have a real floating, integer or boolean dtype, got {dtype}")


def slices(x, axis, name="x") -> DeviceSlices:
    """Check the data argument and its axis."""
    home = home_of(x)
    dtype = result_dtype(home, x, name)
    shape = tuple(x.shape)
    if axis is None:
        return DeviceSlices(home, x, shape, None, dtype, _WORK[dtype], (), math.prod(shape))
    if not shape:
        raise AxisError(f"{name} must have at least one dimension, got shape ()")
    axis = _checks.axis_of(axis, len(shape))
    batch = shape[:axis] + shape[axis + 1 :]
    return DeviceSlices(home, x, shape, axis, dtype, _WORK[dtype], batch, shape[axis])


# --- rows in, rows out ---------------------------------------------------------------------


@kernel
def _gather(source, rows):
    """Copy any array, entry by entry in C order, converting its type."""
    i = cuda.grid(1)
    while i < rows.size:
        rows[i] = rows.dtype.type(source.flat[i])
        i += cuda.gridsize(1)


@kernel
def _scatter(rows, goal):
    i = cuda.grid(1)
    while i < rows.size:
        goal.flat[i] = goal.dtype.type(rows[i])
        i += cuda.gridsize(1)


@kernel
def _gather_bfloat16(source, bits):
    """The upper half of a float32 is a bfloat16."""
    i = cuda.grid(1)
    while i < bits.size:
        bits[i] = (np.int32(source.flat[i]) & np.int32(0xFFFF)) << np.int32(16)
        i += cuda.gridsize(1)


@function
def _upper_half(bits):
    """The bits of a float32 rounded to bfloat16, to nearest, ties to even; NaN stays NaN."""
    if (bits & np.int32(0x7FFFFFFF)) > np.int32(0x7F800000):
        return np.int16(0x7FC0)
    low = np.int32(bits & np.int32(0xFFFF))
    high = np.int32(bits >> np.int32(16))  # keeps the sign
    odd = high & np.int32(1)
    if low > np.int32(0x8000) or (low == np.int32(0x8000) and odd == np.int32(1)):
        high += np.int32(1)
    return np.int16(high)


@kernel
def _scatter_bfloat16(bits, goal):
    i = cuda.grid(1)
    while i < bits.size:
        goal.flat[i] = _upper_half(bits[i])
        i += cuda.gridsize(1)


def _moved(home, x, axis):
    """A view with the axis last."""
    view = home.view(x)
    if axis is None or axis == len(x.shape) - 1:
        return view
    order = [*(k for k in range(len(x.shape)) if k != axis), axis]
    own = home.interface(x)["strides"] or view.strides
    shape, strides = [x.shape[k] for k in order], [own[k] for k in order]
    return home.view(x, shape, strides)


def _contiguous(view, itemsize):
    return all(
        n == 1 or step == own
        for n, step, own in zip(
            view.shape, view.strides, contiguous_strides(view.shape, itemsize), strict=True
        )
    )


def read(home, x, axis, work, shape):
    """The array as a C-contiguous matrix of this shape; its own memory where that will do."""
    view = _moved(home, x, axis)
    if home.dtype(x) == work and _contiguous(view, np.dtype(work).itemsize):
        return home.view(view, shape, contiguous_strides(shape, np.dtype(work).itemsize))
    count = math.prod(shape)
    held = home.empty(max(count, 1), work)
    if home.dtype(x) == "bfloat16":
        launch_each(_gather_bfloat16, home, count, view, home.view(held, (count,), None, "<i4"))
    else:
        launch_each(_gather, home, count, view, home.view(held, (count,)))
    return home.view(held, shape, contiguous_strides(shape, np.dtype(work).itemsize))


class DeviceTarget(NamedTuple):
    """Where a result goes: the rows that the kernels write, and the array returned."""

    rows: Any
    array: Any
    direct: bool  # the rows are the array's own memory
    in_place: bool  # the rows are those that are read


def target(home, x, axis, dtype, work, rows, out, overwrite_x) -> tuple[Any, DeviceTarget]:
    """Choose where the result goes; returns the rows to read as well.

    Reads and writes either coincide or do not overlap.
    """
    shape, size = tuple(x.shape), np.dtype(work).itemsize
    if out is None and overwrite_x and home.dtype(x) == dtype:
        about = home.interface(x)
        strides = about["strides"] or ()
        if not (about["data"][1] or _checks.shares_memory(shape, strides, size_of(dtype))):
            out = x  # neither read-only nor expanded
    if out is None:
        out = home.empty(shape, dtype)
    else:
        check_out(home, out, shape, dtype)
    goal = _moved(home, out, axis)
    direct = dtype == work and _contiguous(goal, size)
    address = _address(rows)
    if direct:
        goal = home.view(goal, rows.shape, contiguous_strides(rows.shape, size))
        first = _address(goal)
        if address == first:
            return rows, DeviceTarget(goal, out, True, True)
        last = first + rows.size * size
    else:
        first, last = extent(home, out)
    if first < address + rows.size * size and address < last:  # x, or a part of it
        held = home.empty(max(rows.size, 1), work)
        copy = home.view(held, (rows.size,))
        flat = rows.reshape(rows.size)
        launch_each(_gather, home, rows.size, flat, copy)
        rows = home.view(held, rows.shape, contiguous_strides(rows.shape, size))
    if not direct:
        held = home.empty(max(rows.size, 1), work)
        goal = home.view(held, rows.shape, contiguous_strides(rows.shape, size))
    return rows, DeviceTarget(goal, out, direct, False)


def _address(view):
    return view._ary.__array_interface__["data"][0] if hasattr(view, "_ary") else view.pointer


def check_out(home, out, shape, dtype):
    """Raise unless `out` can take a result of this shape and dtype."""
    if not _dispatch.on_device(out):
        raise TypeError(f"out must lie on the GPU as x does, got {type(out).__name__}")
    if not home.holds(out):
        raise TypeError(
            f"out must be of x's library and on its device, got {type(out).__module__}."
            f"{type(out).__name__}"
        )
    if tuple(out.shape) != shape:
        raise ValueError(f"out must have the result's shape {shape}, got {tuple(out.shape)}")
    if home.dtype(out) != dtype:
        raise ValueError(f"out must have the result's dtype {dtype}, got {home.dtype(out)}")
    about = home.interface(out)
    if about["data"][1]:
        raise ValueError("out must be writable, got a read-only array")
    _checks.check_apart(shape, about["strides"] or (), size_of(dtype))


def deliver(home, goal: DeviceTarget, axis, dtype):
    """Copy the rows into the result where they are not its own memory."""
    if not goal.direct:
        count = goal.rows.size
        view = _moved(home, goal.array, axis)
        if dtype == "bfloat16":
            bits = goal.rows.reshape(count).view(np.int32)
            launch_each(_scatter_bfloat16, home, count, bits, view)
        else:
            launch_each(_scatter, home, count, goal.rows.reshape(count), view)
    return goal.array


# --- parameters ----------------------------------------------------------------------------


class Parameter(NamedTuple):
    """One number for all slices, or one for each."""

    value: float  # NaN: look into `values`
    values: Any  # float64 on the device, or None
    low: float
    high: float

    def arguments(self, dummy):
        """What kernels take and hand to `pick`; `dummy` is any float64 array."""
        return self.value, dummy if self.values is None else self.values


def per_slice(value, name, s: DeviceSlices, low, high=math.inf, what="") -> Parameter:
    """A parameter broadcast over the slices, checked for its range.

    What lies on the GPU is checked there, by the kernels that read it.
    """
    if _dispatch.on_device(value):
        shape = tuple(value.shape)
        allowed = [s.batch]
        if s.axis is not None:  # the shape of a score with keepdims=True
            allowed.append((*s.batch[: s.axis], 1, *s.batch[s.axis :]))
        if math.prod(shape) != 1 and shape not in allowed:
            raise ValueError(
                f"{name} on the GPU must have the slices' shape {s.batch}, got shape {shape}"
            )
        return Parameter(math.nan, on_its_device(s.home, value, name), low, high)
    return parameter(s.home, _checks.host_parameter(value, name, s, low, high, what), low, high)


def on_its_device(home, value, name):
    """A float64 vector of the values of a device array."""
    if not home.holds(value):
        raise TypeError(
            f"{name} must be of the library of x and on its device, or on the host, got "
            f"{type(value).__module__}.{type(value).__name__}"
        )
    dtype = home_of(value).dtype(value)
    if dtype not in ("float32", "float64"):
        raise TypeError(f"{name} on the GPU must be float32 or float64, got {dtype}")
    with home.active():  # a public function asks for its parameters before it goes there
        return read(home, value, None, "float64", (math.prod(tuple(value.shape)),))


def parameter(home, values, low=-math.inf, high=math.inf) -> Parameter:
    """Host values that have been checked: one for all slices, or one for each."""
    if isinstance(values, float):
        return Parameter(values, None, low, high)
    if values.size == 0 or bool((values == values[0]).all()):
        return Parameter(float(values[0]) if values.size else 0.0, None, low, high)
    with home.active():
        return Parameter(math.nan, home.view(home.upload(values)), low, high)


@function
def pick(value, values, r):
    """The parameter of slice r."""
    return value if value == value else values[r % values.size]


# --- filling -------------------------------------------------------------------------------


@kernel
def _fill(value, values):
    """Set all entries."""
    i = cuda.grid(1)
    while i < values.size:
        values[i] = values.dtype.type(value)
        i += cuda.gridsize(1)


def fill(home, array, value):
    """Set all entries of a contiguous array, of the caller's kind or a view."""
    count = math.prod(tuple(array.shape))
    if count:
        size = np.dtype(home.dtype(array)).itemsize
        launch_each(_fill, home, count, value, home.view(array, (count,), (size,)))


# --- reports -------------------------------------------------------------------------------


@kernel
def _column(table, k, result):
    i = cuda.grid(1)
    while i < result.size:
        result[i] = result.dtype.type(table[i, k])
        i += cuda.gridsize(1)


@kernel
def _column_differs(table, k, value, result):
    i = cuda.grid(1)
    while i < result.size:
        result[i] = table[i, k] != value
        i += cuda.gridsize(1)


def column(home, table, k, shape, dtype, unlike=None):
    """A column of a report as an array of this shape and dtype, or whether it is unlike a value."""
    result = home.empty(shape, dtype)
    count = math.prod(shape)
    flat = home.view(result, (max(count, 1),), (np.dtype(dtype).itemsize,)) if count else None
    if count and unlike is None:
        launch_each(_column, home, count, home.view(table), k, flat)
    elif count:
        launch_each(_column_differs, home, count, home.view(table), k, float(unlike), flat)
    return result
