"""The GPU: time of each function over that of a copy of as much on the same device.

A projection has to read the data and to write the result, once each, as a copy does.
Skipped where there is no GPU, or no numba-cuda.
"""

import importlib.util
from functools import partial
from time import perf_counter

import numpy as np

import conehoyer

from . import common

DTYPES = common.DTYPES
LENGTHS = (10_000, 1_000_000, 100_000_000)
COLUMNS = (128, 512, 2048, 8192)
BATCH = 1 << 26  # entries of a batch of rows
SIDES = (1024, 8192)


def device():
    """numba.cuda, or skip."""
    if importlib.util.find_spec("numba_cuda") is None:
        raise NotImplementedError("needs numba-cuda")
    from numba import cuda

    if not cuda.is_available():
        raise NotImplementedError("needs a GPU")
    return cuda


def seconds(cuda, call, repeats=10, together=8):
    """Median time of a call in seconds, of several at once: the device does not wait for Python."""
    call()
    cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = cuda.event(), cuda.event()
        begin.record()
        for _ in range(together):
            call()
        end.record()
        end.synchronize()
        times.append(cuda.event_elapsed_time(begin, end) * 1e-3 / together)
    return float(np.median(times))


def host_seconds(cuda, call, together=20):
    """Time until a call comes back, which then goes on on the GPU: the least that calls take."""
    call()
    cuda.synchronize()
    begin = perf_counter()
    for _ in range(together):
        call()
    taken = perf_counter() - begin
    cuda.synchronize()
    return taken / together


def random(cuda, shape, dtype):
    """Gaussian data on the device; a part of it repeated where there is much."""
    count = int(np.prod(shape))
    part = np.random.default_rng(0).standard_normal(min(count, 1 << 24)).astype(dtype)
    return cuda.to_device(np.resize(part, count).reshape(shape))


def copy_seconds(cuda, x):
    """Time of a copy of x on the device.

    By the driver's own function: Numba's has more of the host's time in it.
    """
    from cuda.bindings import driver

    out = cuda.device_array_like(x)
    there, here = (a.__cuda_array_interface__["data"][0] for a in (out, x))
    copy = partial(driver.cuMemcpyDtoDAsync, there, here, x.nbytes, 0)
    assert copy() == (driver.CUresult.CUDA_SUCCESS,)
    return seconds(cuda, copy)


def copy_bandwidth(cuda, x):
    """Bytes that a copy of x reads and writes per second."""
    return 2 * x.nbytes / copy_seconds(cuda, x)


def over_copy(cuda, call, x):
    """Time of the call over that of a copy of x."""
    return seconds(cuda, call) / copy_seconds(cuda, x)


def kept_part(n, kept):
    """What is left of Gaussian data when a share of it is kept: a part of the entries, and n's."""
    y = np.abs(np.random.default_rng(1).standard_normal(min(n, 100_000)))
    return np.maximum(y - np.quantile(y, 1.0 - kept), 0.0), n / y.size


def level(n, kept, dtype):
    """A level that leaves about this share."""
    y, times = kept_part(n, kept)
    return max(float(y.sum() ** 2 / (y @ y)) * times, 1.0)


def radius(n, kept, dtype):
    """A radius that does."""
    y, times = kept_part(n, kept)
    return float(y.sum()) * times


FUNCTIONS = {
    "project_cai": (conehoyer.project_cai, level),
    "project_l1_ball": (conehoyer.project_l1_ball, radius),
    "project_simplex": (conehoyer.project_simplex, radius),
}


class LongVector:
    """One vector."""

    params = (tuple(FUNCTIONS), DTYPES, LENGTHS, (0.1, 0.01))
    param_names = ("function", "dtype", "n", "kept")

    def setup(self, function, dtype, n, kept):
        self.cuda = device()
        project, parameter = FUNCTIONS[function]
        self.x = random(self.cuda, n, dtype)
        out = self.cuda.device_array_like(self.x)
        bound = parameter(n, kept, dtype)
        self.call = partial(project, self.x, bound, out=out, check_finite=False)

    def track_over_copy(self, *params):
        return over_copy(self.cuda, self.call, self.x)

    track_over_copy.unit = "ratio"


class Batch:
    """Rows, each projected by itself."""

    params = (tuple(FUNCTIONS), DTYPES, COLUMNS)
    param_names = ("function", "dtype", "columns")

    def setup(self, function, dtype, columns):
        self.cuda = device()
        project, parameter = FUNCTIONS[function]
        self.x = random(self.cuda, (BATCH // columns, columns), dtype)
        out = self.cuda.device_array_like(self.x)
        bound = parameter(columns, 0.1, dtype)
        self.call = partial(project, self.x, bound, out=out, check_finite=False)

    def track_over_copy(self, *params):
        return over_copy(self.cuda, self.call, self.x)

    track_over_copy.unit = "ratio"


class Host:
    """What a call takes on the host, where the GPU has little to do."""

    params = ((*FUNCTIONS, "project_bilevel"),)
    param_names = ("function",)

    def setup(self, function):
        self.cuda = device()
        x = random(self.cuda, (128, 128), "float32")
        out = self.cuda.device_array_like(x)
        project = getattr(conehoyer, function)
        self.call = partial(project, x, 20.0, out=out, check_finite=False)

    def track_host_us(self, *params):
        return 1e6 * host_seconds(self.cuda, self.call, together=200)

    track_host_us.unit = "µs"


class Bilevel:
    """Groups of a square matrix."""

    params = (("columns", "rows", "diagonals", (4, 4), (32, 32)), DTYPES, SIDES)
    param_names = ("groups", "dtype", "side")

    def setup(self, groups, dtype, side):
        self.cuda = device()
        self.x = random(self.cuda, (side, side), dtype)
        out = self.cuda.device_array_like(self.x)
        bound = level(common.groups_in(groups, side, side), 0.1, dtype)
        self.call = partial(
            conehoyer.project_bilevel, self.x, bound, groups=groups, out=out, check_finite=False
        )

    def track_over_copy(self, *params):
        return over_copy(self.cuda, self.call, self.x)

    track_over_copy.unit = "ratio"


def sorted_projection(torch, x, bound):
    """Projection onto the ℓ1 ball by sorting, in torch: rows of x."""
    a = x.abs()
    ordered = a.sort(dim=-1, descending=True).values
    sums = ordered.cumsum(dim=-1) - bound
    count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    support = (ordered * count > sums).sum(dim=-1, keepdim=True)
    tau = sums.gather(-1, support - 1) / support
    return x.sign() * (a - tau).clamp_min(0)


class OverTorchSort:
    """Our ℓ1 ball over that by sorting in torch: one vector, or rows."""

    params = (DTYPES, ((1, 1_000_000), (1, 100_000_000), (8192, 8192)))
    param_names = ("dtype", "shape")

    def setup(self, dtype, shape):
        self.cuda = device()
        self.torch = common.require("torch")
        if not self.torch.cuda.is_available():
            raise NotImplementedError("torch sees no GPU")
        self.x = self.torch.as_tensor(random(self.cuda, shape, dtype), device="cuda")
        self.bound = radius(shape[1], 0.1, dtype)

    def track_ours_over_sort(self, *params):
        out = self.torch.empty_like(self.x)
        ours = partial(conehoyer.project_l1_ball, self.x, self.bound, out=out, check_finite=False)
        theirs = partial(sorted_projection, self.torch, self.x, self.bound)
        return seconds(self.cuda, ours) / seconds(self.cuda, theirs, repeats=5)

    track_ours_over_sort.unit = "ratio"
