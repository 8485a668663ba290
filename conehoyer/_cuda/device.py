"""The GPU: the only module that imports numba.cuda.

Arrays of Numba, CuPy and torch come in.  Each has a home here, which knows how to look at
such an array without a copy, how to make a new one of the same kind, and on which stream
the work goes.
"""

import contextlib
import hashlib
import importlib.util
import math
import operator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from .._jit import warn_no_cache

SIMULATED = bool(numba.config.ENABLE_CUDASIM)  # type: ignore[attr-defined]
_EXTRAS = "pip install 'conehoyer[cu12]' for CUDA 12, or 'conehoyer[cu13]' for CUDA 13"


def _import():
    if not SIMULATED and importlib.util.find_spec("numba_cuda") is None:
        # Numba itself holds an old numba.cuda, which nobody maintains.
        raise ImportError(f"arrays on a GPU need the package numba-cuda: {_EXTRAS}")
    from numba import cuda

    return cuda


cuda = _import()


@cache
def require_driver():
    """Raise a RuntimeError that says what to do where kernels cannot run."""
    if SIMULATED:
        return
    if not cuda.is_available():
        reason = str(cuda.cuda_error() or "no GPU was found").strip()
        raise RuntimeError(f"no GPU can be used: {reason}; is an NVIDIA driver installed?")
    have, need = cuda.driver.get_version(), cuda.runtime.get_version()
    if have[0] < need[0]:
        raise RuntimeError(
            f"the driver supports CUDA {have[0]}.{have[1]}, the toolkit installed is CUDA "
            f"{need[0]}.{need[1]}: update the driver, or {_EXTRAS}"
        )


_numbers: dict[int, int] = {}  # of devices, by their contexts that Numba has seen


def current_device() -> int:
    """Number of the thread's device: what Numba says, which takes longer each time it is asked.

    A thread that comes for the first time is given a context.
    """
    error, context = _driver().cuCtxGetCurrent()
    number = None if error else _numbers.get(int(context))
    if number is None:
        number = cuda.get_current_device().id
        _numbers[int(_driver().cuCtxGetCurrent()[1])] = number
    return number


@cache
def _driver():
    from cuda.bindings import driver

    return driver


# --- compilation ---------------------------------------------------------------------------


_ROOT = Path(__file__).parent.parent
# Kernels have some of their constants.
_CONSTANTS = [_ROOT / "_cpu" / f"{name}.py" for name in ("arrays", "groups", "hals")]
_SOURCES = sorted([*_ROOT.glob("*_math.py"), *_ROOT.glob("_cuda/*.py"), *_CONSTANTS])


@cache
def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in _SOURCES:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


MOST_THREADS = 8 if SIMULATED else 256  # of a block; the simulator pays for each
_BOUNDS = MOST_THREADS, 3  # three blocks at once on each multiprocessor: 80 registers a thread


def kernel(function, bounds=_BOUNDS, registers=None):
    """Compile a kernel at its first launch, cached on disk where that is possible.

    `registers` counts only without bounds: where there are any, the assembler looks at those alone.
    """
    if SIMULATED:
        return cuda.jit(function)
    # As on the CPU: the cache knows nothing of helpers in other files.
    function.__qualname__ = f"{function.__qualname__}_{_sources_digest()}"
    try:
        return cuda.jit(cache=True, launch_bounds=bounds, max_registers=registers)(function)
    except RuntimeError:  # no locator: a read-only install
        warn_no_cache()
        return cuda.jit(launch_bounds=bounds, max_registers=registers)(function)


def function(function):
    """Compile a function that kernels call, one that needs the names of ``cuda``."""
    return cuda.jit(device=True)(function)


def overload(function):
    """Give a function that serves all targets another body on a GPU, but not in the simulator."""
    if SIMULATED:
        return lambda body: body
    return cuda.extending.overload(function)


# --- launching -----------------------------------------------------------------------------

SHARED_MEMORY = 47 * 1024  # bytes that any block may have; every GPU has 48 KiB
_FEW_THREADS = 4 if SIMULATED else 32


def threads_for(count, each=1):
    """Threads of a block for so many entries, of which a thread takes `each`: a power of two."""
    wanted = max(-(-count // each), 1)
    return min(max(1 << (wanted - 1).bit_length(), _FEW_THREADS), MOST_THREADS)


def shared_memory_of_block():
    """Bytes that a block of the current device may have if its kernel asks for them."""
    return SHARED_MEMORY if SIMULATED else _most_shared(current_device())


@cache
def _most_shared(device):
    return cuda.get_current_device().MAX_SHARED_MEMORY_PER_BLOCK_OPTIN


def _allow_shared(kernel, device):
    """Let a kernel ask for all that a block may have, and multiprocessors keep room for many."""
    driver = _driver()
    names = driver.CUfunction_attribute
    for name, value in (
        (
            names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            _most_shared(device) - kernel.attributes.shared_size_bytes,
        ),
        (names.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100),  # per cent
    ):
        (error,) = driver.cuKernelSetAttribute(name, value, kernel.handle, device)
        if error != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name.name} cannot be {value}: {error.name}")


class _Kind:
    """What an argument is to a kernel; quicker to look up than Numba's types, which it holds."""

    def __init__(self, kind):
        self.type = kind


@cache
def _array_kind(code, ndim, layout):
    return _Kind(types.Array(numba.from_dtype(np.dtype(code)), ndim, layout))


class View:
    """Memory of the GPU as kernels take it; slices and reshapes like an array.

    A call makes a dozen, most for their address only: the rest is found when it is asked for.
    """

    __slots__ = ("_argument", "_strides", "dtype", "owner", "pointer", "shape")

    def __init__(self, pointer, shape, strides, dtype, owner):
        self.pointer, self.shape, self.dtype, self.owner = pointer, shape, dtype, owner
        self._strides, self._argument = strides, None  # no strides: contiguous

    @property
    def strides(self):
        """Bytes from one entry to the next."""
        if self._strides is None:
            self._strides = contiguous_strides(self.shape, self.dtype.itemsize)
        return self._strides

    @property
    def ndim(self):
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self):
        """Number of entries."""
        return math.prod(self.shape)

    def as_argument(self):
        """What it is to a kernel, and the fields of Numba's arrays, as a kernel takes them."""
        if self._argument is None:
            shape, each = self.shape, self.dtype.itemsize
            own = contiguous_strides(shape, each)
            strides = own if self._strides is None else self._strides
            kind = _array_kind(self.dtype.char, len(shape), "C" if strides == own else "A")
            self._argument = kind, (0, 0, math.prod(shape), each, self.pointer, *shape, *strides)
        return self._argument

    @property
    def nbytes(self):
        """Bytes of the entries."""
        return self.size * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape, "strides": self.strides, "typestr": self.dtype.str,
            "data": (self.pointer, False), "version": 3,
        }  # fmt: skip

    def reshape(self, *shape):
        """A contiguous view in another shape."""
        shape = tuple(shape[0]) if isinstance(shape[0], tuple) else shape
        return View(self.pointer, shape, None, self.dtype, self.owner)

    def view(self, dtype):
        """A contiguous view as another type of the same size."""
        return View(self.pointer, self.shape, None, np.dtype(dtype), self.owner)

    def __getitem__(self, part):
        if not isinstance(part, slice):
            at = self.pointer + operator.index(part) * self.strides[0]
            return View(at, self.shape[1:], self.strides[1:], self.dtype, self.owner)
        first, last, _ = part.indices(self.shape[0])
        at, count = self.pointer + first * self.strides[0], max(last - first, 0)
        return View(at, (count, *self.shape[1:]), self.strides, self.dtype, self.owner)

    def array(self):
        """The same as a device array of Numba."""
        return cuda.from_cuda_array_interface(self.__cuda_array_interface__, self, sync=False)

    def copy_to_host(self, stream=0):
        """The values."""
        return self.array().copy_to_host(stream=stream)


# As they are: those of ctypes take a launch much longer.
_SCALARS = {bool: _Kind(types.boolean), int: _Kind(types.int64), float: _Kind(types.float64)}


def _typed(arguments):
    """The arguments' kinds, and the words that stand for them."""
    kinds, words = [], []
    for argument in arguments:
        kind = _SCALARS.get(type(argument))
        if kind is None and isinstance(argument, np.generic):
            argument = argument.item()
            kind = _SCALARS[type(argument)]
        if kind is not None:
            words.append(argument)
        else:
            view = argument if type(argument) is View else Home().view(argument)
            kind, fields = view.as_argument()
            words += fields
        kinds.append(kind)
    return tuple(kinds), words


@cache
def _core():
    """What launches and allocates; an import takes a microsecond each time."""
    import cuda.core

    return cuda.core


@cache
def _compiled(kernel, kinds):
    return kernel.compile(tuple(kind.type for kind in kinds))


@cache
def _loaded(kernel, kinds, device, much):
    """The kernel for such arguments on the current device, and whether its blocks run together."""
    compiled = _compiled(kernel, kinds)
    loaded = compiled._codelibrary.get_cufunc().kernel
    if much:
        _allow_shared(loaded, device)
    return loaded, compiled.cooperative


@lru_cache(maxsize=1024)  # shapes may be many
def _launch_config(blocks, threads, shared, together):
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=blocks, block=threads, shmem_size=shared, is_cooperative=together)


def launch(kernel, home, blocks, threads, *arguments, shared=0, much=False):
    """Run a kernel on the stream of the arrays; with `much` it may share more than SHARED_MEMORY.

    Numba's own launch looks at the types and fields of each argument anew at every call.
    """
    if blocks <= 0:
        return
    if SIMULATED:
        kernel[blocks, threads, home.stream, shared](*arguments)
        return
    kinds, words = _typed(arguments)
    loaded, together = _loaded(kernel, kinds, current_device(), much)
    config = _launch_config(blocks, threads, shared, together)
    _core().launch(home.core_stream, config, loaded, *words)


def launch_each(kernel, home, count, *arguments):
    """Run a kernel with a thread for each of `count` entries, or for several."""
    threads = 16 if SIMULATED else 256
    blocks = min(-(-count // threads), 2 if SIMULATED else 1 << 16)
    launch(kernel, home, blocks, threads, *arguments)


@cache
def _blocks_at_once(kernel, kinds, threads, shared, device):
    return _compiled(kernel, kinds).max_cooperative_grid_blocks(threads, shared)


def blocks_at_once(kernel, home, threads, shared, *arguments):
    """How many blocks of this kernel, called with these arguments, the GPU runs at once."""
    if SIMULATED:  # which synchronises one block, unless the tests have seen to it
        return kernel.overloads[()].max_cooperative_grid_blocks(threads)
    kinds, _ = _typed(arguments)
    device = current_device()
    return _blocks_at_once(kernel, kinds, threads, shared, device)


# --- homes of arrays -----------------------------------------------------------------------


@lru_cache(maxsize=256)
def _stream(pointer):
    """Numba's stream at this address; 0 for the default one."""
    return cuda.external_stream(pointer) if pointer else 0


@lru_cache(maxsize=256)
def _core_stream(pointer):
    """The same as launches take it."""
    from cuda.core import Stream

    return Stream.from_handle(pointer)


@lru_cache(maxsize=256)
def _name(dtype):
    return np.dtype(dtype).name


class Home:
    """Where arrays live: their library, device and stream."""

    device: int | None = None
    stream: Any = 0

    @property
    def core_stream(self):
        """The stream as launches take it."""
        return _core_stream(int(self.stream.handle or 0) if self.stream else 0)

    def holds(self, x) -> bool:
        """Whether the device array x is of this library and lies on this device."""
        other = home_of(x)
        return type(other) is type(self) and other.device == self.device

    def dtype(self, x) -> str:
        """Name of the dtype, "bfloat16" among them."""
        return _name(x.dtype)

    def interface(self, x) -> dict:
        """Address, shape, strides (in bytes) and type of the array's memory."""
        return x.__cuda_array_interface__

    def empty(self, shape, dtype):
        """Make an array of this kind: Numba's, where the library has none of its own."""
        return cuda.device_array(shape, dtype, stream=self.stream)

    def scratch(self, shape, dtype):
        """A view of memory for kernels only: it goes back to its pool in the stream's order."""
        return self.view(self.empty(shape, dtype))

    def zeros(self, count, dtype):
        """Such a view, of zeros."""
        view = self.scratch((count,), dtype)
        view.owner.fill(0, stream=self.core_stream)
        return view

    def upload(self, values):
        """Make a device array of a small host array."""
        return cuda.to_device(np.ascontiguousarray(values), stream=self.stream)

    def adopt(self, view):
        """What `view` gave, as an array of this kind, without a copy."""
        return view.array()

    def fetch(self, view):
        """The values of a small view, on the host: waits for the arrays' stream."""
        values = view.copy_to_host(stream=self.stream)
        if self.stream:
            self.stream.synchronize()
        return values

    def matmul(self, a, b, out):
        """Matrix product by the library's own routine, or None where it has none."""
        return None

    def transposed(self, x):
        """The transpose of a matrix, without a copy."""
        if hasattr(x, "copy_to_host"):  # Numba's own .T copies
            rows, columns = x.strides
            return self.adopt(self.view(x, x.shape[::-1], (columns, rows)))
        return x.T

    def view(self, x, shape=None, strides=None, typestr=None):
        """The array's memory as kernels take it, perhaps with another shape or type."""
        if type(x) is not View:
            about = self.interface(x)
            strides_of = about["strides"]
            x = View(
                about["data"][0], tuple(about["shape"]),
                None if strides_of is None else tuple(strides_of), np.dtype(about["typestr"]), x,
            )  # fmt: skip
        if shape is None and strides is None and typestr is None:
            return x
        return View(
            x.pointer, x.shape if shape is None else tuple(shape),
            x.strides if strides is None else tuple(strides),
            x.dtype if typestr is None else np.dtype(typestr), x.owner,
        )  # fmt: skip

    @contextlib.contextmanager
    def active(self):
        """Make the array's device the current one."""
        if SIMULATED or current_device() == self.device or self.device is None:
            yield
        else:
            with cuda.gpus[self.device]:
                yield


@cache
def _memory(device):
    """The pool of the current device."""
    return _core().Device().memory_resource


class _Numba(Home):
    def __init__(self, x):
        self.stream = x.stream

    def scratch(self, shape, dtype):  # device_array takes long, and waits for the GPU to free
        dtype = np.dtype(dtype)
        bytes_ = max(math.prod(shape) * dtype.itemsize, 1)
        held = _memory(current_device()).allocate(bytes_, stream=self.core_stream)
        return View(int(held.handle), tuple(shape), None, dtype, held)


class _Foreign(_Numba):
    """An object of another library that offers only its memory: Numba's arrays come back."""

    def __init__(self, x):
        pointer = x.__cuda_array_interface__.get("stream")
        self.stream = 0 if pointer is None else _stream(pointer)

    def interface(self, x):
        return {"strides": None, **x.__cuda_array_interface__}  # they may be missing

    def dtype(self, x):
        return _name(self.interface(x)["typestr"])


class _CuPy(Home):
    def __init__(self, x):
        import cupy

        self.cupy, self.device = cupy, x.device.id
        self.stream = _stream(cupy.cuda.get_current_stream(self.device).ptr)

    def empty(self, shape, dtype):
        return self.cupy.empty(shape, dtype)

    def zeros(self, count, dtype):
        return self.view(self.cupy.zeros(count, dtype))

    def upload(self, values):
        return self.cupy.asarray(values)

    def adopt(self, view):
        return self.cupy.asarray(view)

    def matmul(self, a, b, out):
        return self.cupy.matmul(a, b, out=out)


class _Torch(Home):
    def __init__(self, x):
        import torch

        self.torch, self.device = torch, x.device.index
        self.stream = _stream(torch.cuda.current_stream(x.device).cuda_stream)

    def holds(self, x):  # without a look at its stream, which takes longer
        return isinstance(x, self.torch.Tensor) and x.device.index == self.device

    def dtype(self, x):
        return str(x.dtype).removeprefix("torch.")

    def interface(self, x):
        size = x.element_size()
        name = self.dtype(x)
        typestr = "<i2" if name == "bfloat16" else np.dtype(name).str
        strides = tuple(size * step for step in x.stride())
        data = (x.data_ptr(), False)
        return {
            "shape": tuple(x.shape), "strides": strides, "typestr": typestr, "data": data,
            "version": 3,
        }  # fmt: skip

    def empty(self, shape, dtype):
        kind = getattr(self.torch, dtype)
        return self.torch.empty(shape, dtype=kind, device=f"cuda:{self.device}")

    def zeros(self, count, dtype):
        kind = getattr(self.torch, dtype)
        return self.view(self.torch.zeros(count, dtype=kind, device=f"cuda:{self.device}"))

    def upload(self, values):
        return self.torch.as_tensor(values, device=f"cuda:{self.device}")

    def adopt(self, view):
        return self.torch.as_tensor(view, device=f"cuda:{self.device}")

    def matmul(self, a, b, out):
        return self.torch.matmul(a, b, out=out)


class _Simulator(Home):
    """The arrays of Numba's simulator, which lie in the host's memory."""

    def dtype(self, x):
        return x.dtype.name

    def interface(self, x):
        return {"data": x._ary.__array_interface__["data"], "strides": x.strides}

    def empty(self, shape, dtype):
        return cuda.to_device(np.full(shape, 77, dtype))  # not zeros: nobody may rely on those

    def zeros(self, count, dtype):
        return cuda.to_device(np.zeros(count, dtype))

    def adopt(self, view):
        return view

    def view(self, x, shape=None, strides=None, typestr=None):
        array = x._ary
        if typestr is not None:
            array = array.view(typestr)
        if shape is not None:
            own = contiguous_strides(shape, array.itemsize)
            array = np.lib.stride_tricks.as_strided(array, shape, strides or own)
        return type(x)(array)


def home_of(x) -> Home:
    """The home of an array on a device."""
    require_driver()
    module = type(x).__module__
    if SIMULATED:
        return _Simulator()
    if hasattr(x, "data_ptr") and hasattr(x, "is_cuda"):
        return _Torch(x)
    if module.split(".")[0] == "cupy":
        return _CuPy(x)
    return _Numba(x) if module.startswith("numba.") else _Foreign(x)


def contiguous_strides(shape, itemsize):
    """Strides of a C-contiguous array."""
    if len(shape) == 1:  # the usual cases, quickly
        return (itemsize,)
    if len(shape) == 2:
        return itemsize * max(shape[1], 1), itemsize
    strides, step = [], itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


class Extent(NamedTuple):
    """The bytes that an array covers."""

    first: int
    last: int


def extent(home, x) -> Extent:
    """From the lowest to the highest address of an array's entries."""
    about = home.interface(x)
    shape, itemsize = tuple(x.shape), size_of(home.dtype(x))
    strides = about["strides"] or contiguous_strides(shape, itemsize)
    start = about["data"][0]
    if math.prod(shape) == 0:
        return Extent(start, start)
    reach = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    below, above = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    return Extent(start + below, start + above + itemsize)


def size_of(name):
    return 2 if name == "bfloat16" else np.dtype(name).itemsize
