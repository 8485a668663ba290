"""The GPU at a glance: a table of bytes per second over the device's own copy bandwidth.

``python asv_benchmarks/cuda_table.py`` wants a GPU, numba-cuda, and for the last column torch.
It prints what the documentation shows: date, device, and for each function, shape and dtype the
share of the copy's bandwidth (one read and one write), the time, and how many times as long
the CPU (one thread) and a torch projection by sorting take.
"""

import datetime
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from benchmarks import bench_cuda as b

import conehoyer

LENGTHS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)


def cpu_time(project, x, bound):
    """Seconds on the CPU, warm, the best of three."""
    out = np.zeros_like(x)
    times = []
    for _ in range(4):
        begin = perf_counter()
        project(x, bound, out=out)
        times.append(perf_counter() - begin)
    return min(times[1:])


def line(cuda, name, shape, dtype, torch):
    """Measure one function on one shape, and print it."""
    project, parameter = b.FUNCTIONS[name]
    bound = parameter(shape[-1], 0.1, dtype)
    x = b.random(cuda, shape, dtype)
    out = cuda.device_array_like(x)
    taken = b.seconds(cuda, partial(project, x, bound, out=out, check_finite=False))
    share = 2 * x.nbytes / taken / b.copy_bandwidth(cuda, x)
    on_cpu = by_sorting = float("nan")
    if x.size <= 100_000_000:
        on_cpu = cpu_time(project, x.copy_to_host(), bound) / taken
        if torch is not None and name == "project_l1_ball":
            tensor = torch.as_tensor(x, device="cuda")
            sort = partial(b.sorted_projection, torch, tensor, bound)
            by_sorting = b.seconds(cuda, sort, repeats=5) / taken
    size = " × ".join(f"{n:,}" for n in shape)
    print(
        f"{name:18}{size:>20}{dtype:>9}{share:9.2f}{taken * 1e6:12.1f}{on_cpu:9.1f}"
        f"{by_sorting:9.1f}",
        flush=True,
    )


def main():
    """Print the table."""
    try:
        cuda = b.device()
    except NotImplementedError as reason:
        sys.exit(f"cuda_table.py {reason}: nothing to measure")
    try:
        import torch
    except ImportError:
        torch = None
    if torch is not None and not torch.cuda.is_available():
        torch = None
    name = cuda.get_current_device().name
    name = name.decode() if isinstance(name, bytes) else name
    print(f"{datetime.date.today()}  {name}  conehoyer {conehoyer.__version__}")
    print(
        f"copy of 1e8 float32: {b.copy_bandwidth(cuda, b.random(cuda, 10**8, 'float32')):.3g} B/s"
    )
    print(
        f"{'function':18}{'shape':>20}{'dtype':>9}{'of copy':>9}{'µs':>12}{'CPU ×':>9}{'sort ×':>9}"
    )
    room = cuda.current_context().get_memory_info().free
    for function in b.FUNCTIONS:
        for dtype in b.DTYPES:
            shapes = [(n,) for n in LENGTHS] + [(b.BATCH // n, n) for n in b.COLUMNS]
            for shape in shapes:
                if 4 * int(np.prod(shape)) * np.dtype(dtype).itemsize < room:
                    line(cuda, function, shape, dtype, torch)


if __name__ == "__main__":
    main()
