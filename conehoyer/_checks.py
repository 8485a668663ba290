"""What every public function checks, and how arrays become rows and come back.

The kernels see C-contiguous float32 or float64 matrices, one slice a row.
"""

import math
import operator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.exceptions import AxisError

from ._dispatch import is_tensor, on_device

try:
    from numpy.lib.array_utils import normalize_axis_index
except ImportError:  # NumPy < 2
    from numpy.core.multiarray import normalize_axis_index  # type: ignore[no-redef]

FLOAT64 = np.dtype(np.float64)
FLOAT32 = np.dtype(np.float32)
_LARGE = 1 << 15  # bytes of matrices that are turned rather than copied
_TURNED_FROM = 1 << 18  # of arrays of more axes, for which that takes some 20 µs
MOST = 1 << 40  # more entries side by side than there is memory for
#: Slack under which a constraint counts as met: projecting twice changes nothing.
SLACK = {"float64": 1e-14, "float32": 1e-6}
MACHINE_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
_SLACK = {FLOAT64: SLACK["float64"], FLOAT32: SLACK["float32"]}


@dataclass(slots=True)  # made in half the time of a NamedTuple: every call makes both classes
class Slices:
    """An input array, seen as slices along an axis."""

    array: np.ndarray
    axis: int | None
    dtype: np.dtype  # of the result
    work: np.dtype  # of the computation
    batch: tuple[int, ...]  # shape without the axis
    length: int  # of one slice
    plain: bool = False  # the kernels can read and write its memory as it is

    home: ClassVar[None] = None  # arrays on a GPU have one

    @property
    def slack(self) -> float:
        """Relative slack of the feasibility test."""
        return SLACK["float64"] if self.dtype is FLOAT64 else slack(self.dtype, self.work)


def slack(dtype, work) -> float:
    """Relative slack of the feasibility test."""
    if dtype.itemsize < 4:  # float16 and bfloat16: twice the machine epsilon
        return 2.0 * MACHINE_EPSILON[dtype.name]
    return _SLACK[work]


def result_dtype(dtype, name):
    """Floating dtypes are kept, integers and booleans become float64."""
    if dtype.kind == "f":
        return dtype.newbyteorder("=")
    if dtype.kind in "iub":
        return FLOAT64
    if dtype.name == "bfloat16":
        return dtype
    raise TypeError(f"{name} must have a real floating, integer or boolean dtype, got {dtype}")


def is_real(dtype) -> bool:
    """Whether numbers of this dtype are real ones, and no truth values."""
    return dtype.kind in "fiu" or dtype.name == "bfloat16"


def dtypes(array, name):
    """Those of the result and of the computation."""
    dtype = array.dtype
    if dtype is FLOAT64 or dtype is FLOAT32:
        return dtype, dtype
    dtype = result_dtype(dtype, name)
    return dtype, FLOAT32 if dtype.itemsize <= 4 else FLOAT64


def as_array(x, name="x"):
    """Convert an array-like of real numbers to an ndarray, or raise TypeError."""
    if type(x) is not np.ndarray:
        if isinstance(x, np.ma.MaskedArray):
            raise TypeError(f"{name} must not be a masked array: fill or compress it first")
        if type(x).__module__.startswith("scipy.sparse"):
            raise TypeError(f"{name} must not be a scipy.sparse container: pass {name}.toarray()")
        if on_device(x):  # NumPy would take Numba's arrays, by a copy that nobody asked for
            raise TypeError(f"{name} lies on a GPU, where no array can be taken here")
        try:
            x = np.asarray(x)
        except ValueError as error:  # lists of different lengths
            raise ValueError(f"{name} is no array: {error}") from None
        except (TypeError, RuntimeError) as error:
            if not is_tensor(x):  # what the data itself raises is its own
                raise
            if x.requires_grad:
                raise RuntimeError(
                    f"{name} requires a gradient, and gets none here: pass {name}.detach()"
                ) from None
            raise TypeError(f"{name} is nothing that NumPy takes for an array: {error}") from None
    return x


def told(value, array) -> str:
    """What an error tells of a wrong parameter: the value itself if it is one."""
    return repr(value) if array.ndim == 0 else f"dtype {array.dtype}"


def slices(x, axis, name="x"):
    """Check the data argument and its axis: `Slices`, or `DeviceSlices` of an array on a GPU."""
    if type(x) is np.ndarray:
        array = x
    elif on_device(x):
        from ._cuda import arrays

        return arrays.slices(x, axis, name)
    else:
        array = as_array(x, name)
    dtype, work = dtypes(array, name)
    plain = array.dtype is work and array.flags.carray
    if axis is None:
        return Slices(array, None, dtype, work, (), array.size, plain)
    shape = array.shape
    if not shape:
        raise AxisError(f"{name} must have at least one dimension, got {x!r}")
    axis = axis_of(axis, len(shape))
    batch = shape[:axis] + shape[axis + 1 :] if len(shape) > 1 else ()
    plain = plain and axis == len(shape) - 1
    return Slices(array, axis, dtype, work, batch, shape[axis], plain)


def in_memory_order(s: Slices) -> tuple[Slices, tuple[int, ...]] | None:
    """The same slices of the array with its axes as they lie in memory, and which axes these are.

    None where they lie so already, are few, or are to be converted, by a copy.  Matrices need no
    such care: see `_cube`.
    """
    array = s.array
    if s.plain or array.ndim < 3 or s.axis is None or array.nbytes < _TURNED_FROM:
        return None
    if array.dtype is not s.work or array.flags.c_contiguous:
        return None
    order = tuple(sorted(range(array.ndim), key=lambda k: -array.strides[k]))
    turned = array.transpose(order)
    if not turned.flags.c_contiguous:
        return None  # there are gaps
    axis = order.index(s.axis)
    batch = turned.shape[:axis] + turned.shape[axis + 1 :]
    return replace(s, array=turned, axis=axis, batch=batch), order


def _batch_order(order, axis):
    """What an order of an array's axes is for those of its batch."""
    return [k - (k > axis) for k in order if k != axis]


def as_they_lie(values, s, order) -> np.ndarray:
    """A vector of the caller's slices s, in their order after `in_memory_order`."""
    return values.reshape(s.batch).transpose(_batch_order(order, s.axis)).reshape(-1)


def as_given(values, s, order) -> np.ndarray:
    """What belongs to slices in that order, in the shape of the caller's."""
    batch = _batch_order(order, s.axis)
    turned = values.reshape([s.batch[k] for k in batch])
    return np.ascontiguousarray(turned.transpose(np.argsort(batch)))


def is_list_of_arrays(x) -> bool:
    """Whether x is a list or tuple of arrays, not of numbers."""
    return isinstance(x, list | tuple) and any(
        isinstance(part, list | tuple) or np.ndim(part) > 0 for part in x
    )


def axis_of(axis, ndim) -> int:
    """An axis of so many, counted from 0."""
    if type(axis) is int and -ndim <= axis < ndim:  # the usual case, told quickly
        return axis % ndim
    try:
        axis = operator.index(axis)
    except TypeError:
        raise TypeError(f"axis must be an integer or None, got {axis!r}") from None
    try:
        return normalize_axis_index(axis, ndim)
    except OverflowError:  # NumPy's message names nothing
        raise AxisError(f"axis {axis} is out of bounds for array of dimension {ndim}") from None


def rows(s: Slices) -> np.ndarray:
    """The slices as a C-contiguous (batch, length) matrix; the input's memory if it can."""
    array = s.array
    if array.ndim == 1:
        array = array[None]
    elif s.plain:
        return array.reshape(math.prod(s.batch), s.length)
    elif (cube := _read(s)) is not None:
        from ._cpu.across import transpose_each

        count, length, width = cube.shape
        array = np.empty((count, width, length), s.work)
        transpose_each(borrowed(cube), array)
        return array.reshape(count * width, length)
    elif s.axis is None:
        return borrowed(in_order(array, s.work)).reshape(1, -1)
    else:
        array = _last(array, s.axis).reshape(math.prod(s.batch), s.length)
    return array if s.plain else borrowed(in_order(array, s.work))


def in_order(array, work) -> np.ndarray:
    """The array in C order and the dtype of the computation."""
    if array.dtype == np.float16 and array.flags.aligned:
        from ._cpu import halves

        if halves.NATIVE:
            result, bits = np.empty(array.shape, work), np.ascontiguousarray(array).view(np.uint16)
            halves.widen(borrowed(bits).reshape(-1), result.reshape(-1))
            return result
    if array.dtype == work and (turned := _turned_stack(array)) is not None:
        from ._cpu.across import transpose_each

        result = np.empty(array.shape, work)
        transpose_each(borrowed(turned), result.reshape(-1, *array.shape[-2:]))
        return result
    with np.errstate(over="ignore", under="ignore"):  # of long double; they become inf, or 0
        return np.ascontiguousarray(array, dtype=work)


def _turned_stack(array) -> np.ndarray | None:
    """Large matrices whose columns lie one behind the other, as a C-ordered stack of rows.

    NumPy's copy into the other order takes longer than a projection (`OtherOrder`).
    """
    if array.ndim < 2 or array.nbytes < _LARGE or array.flags.c_contiguous:
        return None
    turned = np.asarray(array).swapaxes(-1, -2)  # a matrix would stay one
    if not (turned.flags.c_contiguous and turned.flags.aligned):
        return None
    return turned.reshape(-1, *turned.shape[-2:])


def _last(array, axis):
    """The array with this axis last; where it is that, NumPy takes some µs to find out."""
    return array if axis == array.ndim - 1 else np.moveaxis(array, axis, -1)


def borrowed(array) -> np.ndarray:
    """The array, or a writable view of read-only memory, for kernels that only read it."""
    return array if array.flags.writeable else _Borrowed.view(array)


class _Borrowed:
    """Read-only memory under a writable view: Numba compiles read-only arrays anew.

    The kernels write the rows they read only where they are the output as well.
    """

    def __init__(self, owner):
        address, _ = owner.__array_interface__["data"]
        self.__array_interface__ = owner.__array_interface__ | {"data": (address, False)}
        self.owner = owner

    @classmethod
    def view(cls, owner):
        return np.asarray(cls(owner))


@dataclass(slots=True)
class Target:
    """Where a result goes: the rows that the kernels write, and the array returned."""

    rows: np.ndarray
    array: np.ndarray
    direct: bool  # the rows are the array's own memory
    in_place: bool  # the rows are those that are read
    over_x: bool = False  # the rows lie over the caller's input, which no error may spoil


def target(s: Slices, x, x_rows, out, overwrite_x) -> tuple[np.ndarray, Target]:
    """Choose where the result goes; returns the rows to read as well.

    Reads and writes either coincide or do not overlap.
    """
    shape, array = s.array.shape, s.array
    copied = not s.plain and not np.may_share_memory(x_rows, array)
    if out is None and overwrite_x and x is array and writable_as(x, s.dtype):
        if s.plain or np.shares_memory(x_rows, x):
            out = x
    if out is not None:
        check_out(out, shape, s.dtype)
    elif s.axis is None or s.axis == len(shape) - 1:
        if copied and s.dtype is s.work:  # then the copy becomes the result
            return x_rows, Target(x_rows, x_rows.reshape(shape), True, True)
        out = np.empty(shape, s.dtype)
        if s.dtype is s.work:  # the usual case, told quickly
            rows = out[None] if len(shape) == 1 else out.reshape(x_rows.shape)
            return x_rows, Target(rows, out, True, False)
    else:  # the slices may lie side by side in it as they do in the input
        out = np.empty_like(array, dtype=s.dtype, subok=False)
    view = None
    if out.dtype == s.work:
        plain = np.asarray(out)  # Numba takes no masked array
        moved = plain if s.axis is None else _last(plain, s.axis)
        if moved.flags.c_contiguous:
            view = moved[None] if moved.ndim == 1 else moved.reshape(x_rows.shape)
    if view is None and copied:
        return x_rows, Target(x_rows, out, False, True)
    if view is None:
        return x_rows, Target(np.empty(x_rows.shape, s.work), out, False, False)
    over_x = np.may_share_memory(array, view)
    in_place = over_x and np.may_share_memory(x_rows, view)
    if in_place and not same_memory(x_rows, view):
        x_rows, in_place = x_rows.copy(), False
    return x_rows, Target(view, out, True, in_place, over_x)


def check_out(out, shape, dtype):
    """Raise unless `out` can take a result of this shape and dtype."""
    if type(out) is np.ndarray and out.shape == shape and out.dtype is dtype and out.flags.carray:
        return  # the usual case, told quickly
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.shape != shape:
        raise ValueError(f"out must have the result's shape {shape}, got {out.shape}")
    if out.dtype != dtype:
        raise ValueError(f"out must have the result's dtype {dtype}, got {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out must be writable, got a read-only array")
    check_apart(shape, out.strides, out.itemsize)


def check_apart(shape, strides, itemsize):
    """Raise for an `out` whose entries share memory."""
    if shares_memory(shape, strides, itemsize):
        raise ValueError(f"out must have memory for each entry, got strides {strides}")


def shares_memory(shape, strides, itemsize):
    """Whether entries share memory, as those of an expanded array or of moving windows do."""
    if 0 in shape or not strides:
        return False
    axes = sorted((abs(step), n) for step, n in zip(strides, shape, strict=True) if n > 1)
    reach = itemsize  # of what lies along the axes so far
    for step, n in axes:
        if step < reach:
            break
        reach += step * (n - 1)
    else:
        return False  # each axis steps over all that lies along the shorter ones
    span = itemsize + sum(step * (n - 1) for step, n in axes)
    if any(step < itemsize for step, _ in axes) or math.prod(shape) * itemsize > span:
        return True
    places = np.zeros(1, np.int64)
    for step, n in axes:
        places = np.add.outer(places, np.arange(n) * step).reshape(-1)
    return bool((np.diff(np.sort(places)) < itemsize).any())


def writable_as(x, dtype):
    """Whether a result of this dtype may be written over x."""
    return x.flags.writeable and x.dtype == dtype


def same_memory(a, b):
    """Whether two arrays start at the same place."""
    return a.__array_interface__["data"][0] == b.__array_interface__["data"][0]


def deliver(s: Slices, goal: Target) -> np.ndarray:
    """Copy the rows into the result where they are not its own memory."""
    if not goal.direct:
        array = goal.array
        cube = _cube(s, array)
        if cube is None and _lie_across(s, array):
            array = np.empty_like(array, dtype=s.work, subok=False)  # it has no gaps
            cube = _cube(s, array)
        if cube is not None:
            from ._cpu.across import transpose_each

            count, length, width = cube.shape
            transpose_each(goal.rows.reshape(count, width, length), cube)
            if array is not goal.array:
                fill(goal.array, array)
        else:
            moved = goal.array if s.axis is None else _last(goal.array, s.axis)
            fill(moved, goal.rows)
    return goal.array


def fill(result, values):
    """Copy values into a result, whose dtype may be narrower."""
    result = np.asarray(result)  # a row of a matrix is a matrix, of two axes
    if result.dtype == np.float16 and values.flags.c_contiguous:
        from ._cpu import halves

        if halves.NATIVE:
            bits = np.empty(values.shape, np.uint16)
            if result.flags.carray:
                bits = result.view(np.uint16)
            halves.narrow(values.reshape(-1), bits.reshape(-1))
            if not result.flags.carray:
                result[...] = bits.view(np.float16).reshape(result.shape)
            return
    values = values.reshape(result.shape)
    if result.dtype == values.dtype and values.flags.carray:
        if (turned := _turned_stack(result)) is not None:
            from ._cpu.across import transpose_each

            transpose_each(values.reshape(-1, *values.shape[-2:]), turned)
            return
    with np.errstate(over="ignore", under="ignore"):  # of float16; they become inf, or 0
        result[...] = values


def columns(s: Slices, least: int) -> np.ndarray | None:
    """The slices as (count, length, width), if at least so many lie side by side."""
    cube = _cube(s, s.array)
    return None if cube is None or cube.shape[2] < least else borrowed(cube)


def _read(s):
    """`_cube` of the input, or of a copy if that is worth it."""
    cube, array = _cube(s, s.array), s.array
    return _cube(s, in_order(array, s.work)) if cube is None and _lie_across(s, array) else cube


def _lie_across(s, array):
    """Whether large slices lie across the memory, where NumPy's copy of them would take long."""
    if s.axis is None or array.nbytes < _LARGE or math.prod(array.shape[s.axis + 1 :]) == 1:
        return False
    return abs(array.strides[s.axis]) > abs(array.strides[-1])


def _cube(s, array):
    """An array of the slices' shape as (count, length, width), if it can be seen so.

    The slices lie along the second axis, and are in order.
    """
    axis = s.axis
    if axis is None or array.ndim < 2:
        return None
    if axis == array.ndim - 1 and array.flags.c_contiguous:  # the usual case, told quickly
        return None
    if array.dtype is not s.work or array.size == 0:
        return None
    array = np.asarray(array)  # a matrix would stay one
    if array.ndim == 2 and array.flags.f_contiguous:
        array, axis = array.T, 1 - axis
    shape = array.shape
    width = math.prod(shape[axis + 1 :])
    if width == 1 or not array.flags.c_contiguous or not array.flags.aligned:
        return None
    return array.reshape(math.prod(shape[:axis]), shape[axis], width)


def across(s: Slices, x, out, overwrite_x):
    """Slices that lie across the memory, and where they go, as two (count, length, width) arrays.

    None unless the result has the same order in memory and is apart from x, or is x.
    """
    array = s.array
    source = _cube(s, array)
    direct = source is not None
    if not direct and not _lie_across(s, array):
        return None
    if out is None:
        out = x if overwrite_x and x is array and writable_as(x, s.dtype) else None
    else:
        check_out(out, array.shape, s.dtype)
    result = np.empty_like(array, dtype=s.dtype, subok=False) if out is None else out
    target = _cube(s, result)
    if target is None:
        return None
    if np.may_share_memory(array, result) and not (direct and same_memory(array, result)):
        return None
    source = source if direct else _read(s)
    return None if source is None else (borrowed(source), target, result)


def parameter(value, name, s, low, high=math.inf, what=""):
    """A parameter broadcast over the slices, checked for its range.

    A float if one serves them all, else a float64 vector; for slices on a GPU what their
    kernels take.
    """
    if s.home is not None:
        from ._cuda import arrays

        return arrays.per_slice(value, name, s, low, high, what)
    return host_parameter(value, name, s, low, high, what)


def host_parameter(value, name, s, low, high=math.inf, what=""):
    """The same of values on the host: a float, or a float64 vector."""
    if isinstance(value, float) or type(value) is int:  # np.float64 is a float as well
        return _number(value, name, low, high, what)
    return number_if_one(per_slice(value, name, s, low, high, what))


def number_if_one(values):
    """A float if the vector has one entry."""
    return float(values[0]) if values.size == 1 else values


def per_slice(value, name, s, low, high=math.inf, what="") -> np.ndarray:
    """A parameter broadcast over the slices, as a float64 vector, checked for its range."""
    if not isinstance(value, (float, int)) and not on_device(value):  # the usual case, quickly
        array = as_array(value, name)  # it may have the shape of a score with keepdims=True
        if s.axis is None and array.size == 1:
            value = array.reshape(())
        elif s.axis is not None and array.ndim == len(s.batch) + 1 and array.shape[s.axis] == 1:
            value = np.squeeze(array, s.axis)
    return per_batch(value, name, s.batch, low, high, what)


def of_batch(value, name, batch, low, high=math.inf, what="") -> float | np.ndarray:
    """`per_batch`, or a float if one was given."""
    if isinstance(value, float) or type(value) is int:
        return _number(value, name, low, high, what)
    return number_if_one(per_batch(value, name, batch, low, high, what))


def per_batch(value, name, batch, low, high=math.inf, what="") -> np.ndarray:
    """A parameter broadcast over the batch's shape, as a float64 vector, checked for its range."""
    count = math.prod(batch)
    if isinstance(value, float) or type(value) is int:
        array = np.empty((count,))  # np.full takes longer
        array.fill(_number(value, name, low, high, what))
        return array
    given = as_array(value, name)
    if not is_real(given.dtype):
        raise TypeError(f"{name} must be real numbers, got {told(value, given)}")
    if given.dtype.itemsize > 8:
        with np.errstate(over="ignore", under="ignore"):  # they become inf, or 0
            given = given.astype(FLOAT64)
    array = given.astype(FLOAT64)
    good = (array >= low) & (array <= high)
    if not good.all():
        raise ValueError(f"{name} must be {what}, got {given[~good].flat[0]}")
    if array.shape != batch:  # it takes a while
        try:
            array = np.broadcast_to(array, batch).copy()  # PyTorch warns of what is read-only
        except ValueError:
            raise ValueError(
                f"{name} must broadcast to shape {batch}, got shape {np.shape(value)}"
            ) from None
    return np.ascontiguousarray(array).reshape(count)


def _number(value, name, low, high, what):
    try:
        number = float(value)
    except OverflowError:  # an integer
        number = math.inf if value > 0 else -math.inf
    if not low <= number <= high:
        raise ValueError(f"{name} must be {what}, got {value!r}")
    return number


def real(value, name) -> float:
    """A real number; an integer beyond all floats becomes infinite."""
    try:
        if isinstance(value, str | bytes | bytearray | np.ma.MaskedArray):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a real number, got {value!r}") from None
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def real_in(value, name, low=0.0, high=math.inf, what="finite and >= 0") -> float:
    """A real number in [low, high)."""
    number = real(value, name)
    if not low <= number < high:
        raise ValueError(f"{name} must be {what}, got {value!r}")
    return number


def counts(value, name) -> int | np.ndarray:
    """Integers of the host: how many are wanted, so that all large ones are alike."""
    if type(value) is int:
        if value < 1:
            raise ValueError(f"{name} must be >= 1, got {value}")
        return min(value, MOST)
    if on_device(value):
        raise TypeError(f"{name} lies on a GPU: it must be integers of the host")
    return integers(value, name)


def integers(value, name) -> np.ndarray:
    """Integers, as an array."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{name} must lie between -2**63 and 2**63, got {value}")
    array = as_array(value, name)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {told(value, array)}")
    return array


def integer(value, name, least, most=math.inf) -> int:
    """An integer, checked for its range."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        shape = getattr(value, "shape", ())
        got = f"an array of shape {shape}" if shape else repr(value)
        raise TypeError(f"{name} must be an integer, got {got}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def choose(value, name, options):
    """Check that a keyword names one of the options."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def not_finite(name="x") -> ValueError:
    """The error for NaN or inf in the data."""
    return ValueError(
        f"{name} must be finite, got NaN or inf; check_finite=False lets them through"
    )
