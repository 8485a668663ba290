"""The GPU at a glance: a table of bytes per second over the device's own copy bandwidth.

``python asv_benchmarks/cuda_table.py`` wants a GPU, numba-cuda, and for the last column torch.
It prints what the documentation shows: date, device, and for each function, shape and dtype the
share of the copy's bandwidth (one read and one write), the time, how much of it the host is busy
with the call, and how many times as long the CPU (one thread) and a torch projection by sorting
take.  With ``--quick``, fewer shapes and no CPU, whose kernels take half a minute to compile.
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
QUICK_LENGTHS, QUICK_COLUMNS = (10_000, 1_000_000, 100_000_000), (128, 1024, 8192)
GROUPS = ("columns", "rows", "diagonals", (4, 4), (32, 32))


def cpu_time(project, x, bound):
    """Seconds on the CPU, warm, the best of three."""
    out = np.zeros_like(x)
    times = []
    for _ in range(4):
        begin = perf_counter()
        project(x, bound, out=out)
        times.append(perf_counter() - begin)
    return min(times[1:])


def line(cuda, name, shape, dtype, torch, quick):
    """Measure one function on one shape, and print it."""
    project, parameter = b.FUNCTIONS[name]
    bound = parameter(shape[-1], 0.1, dtype)
    x = b.random(cuda, shape, dtype)
    out = cuda.device_array_like(x)
    call = partial(project, x, bound, out=out, check_finite=False)
    taken, host = b.seconds(cuda, call), b.host_seconds(cuda, call)
    on_cpu = by_sorting = float("nan")
    if x.size <= 100_000_000:
        if not quick:
            on_cpu = cpu_time(project, x.copy_to_host(), bound) / taken
        if torch is not None and name == "project_l1_ball":
            tensor = torch.as_tensor(x, device="cuda")
            sort = partial(b.sorted_projection, torch, tensor, bound)
            by_sorting = b.seconds(cuda, sort, repeats=3, together=1) / taken
    show(cuda, name, x, taken, host, on_cpu, by_sorting)


def groups_line(cuda, groups, inner, side, dtype):
    """The same of a square matrix and its groups."""
    x = b.random(cuda, (side, side), dtype)
    out = cuda.device_array_like(x)
    level = b.level(b.common.groups_in(groups, side, side), 0.1, dtype)
    call = partial(
        conehoyer.project_bilevel, x, level, groups=groups, inner=inner, out=out,
        check_finite=False,
    )  # fmt: skip
    name = groups if isinstance(groups, str) else "×".join(map(str, groups))
    taken, host = b.seconds(cuda, call), b.host_seconds(cuda, call)
    show(cuda, f"bilevel {name} {inner}", x, taken, host, float("nan"), float("nan"))


def show(cuda, name, x, taken, host, on_cpu, by_sorting):
    """Print a line."""
    share = 2 * x.nbytes / taken / b.copy_bandwidth(cuda, x)
    size = " × ".join(f"{n:,}" for n in x.shape)
    print(
        f"{name:24}{size:>18}{x.dtype.name:>9}{share:9.2f}{taken * 1e6:12.1f}{host * 1e6:9.1f}"
        f"{on_cpu:9.1f}{by_sorting:9.1f}",
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
        f"{'function':24}{'shape':>18}{'dtype':>9}{'of copy':>9}{'µs':>12}{'host µs':>9}"
        f"{'CPU ×':>9}{'sort ×':>9}"
    )
    quick = "--quick" in sys.argv[1:]
    lengths, columns = (QUICK_LENGTHS, QUICK_COLUMNS) if quick else (LENGTHS, b.COLUMNS)
    for dtype in b.DTYPES:
        for function in ("project_cai", "project_l1_ball") if quick else b.FUNCTIONS:
            if quick and (function, dtype) == ("project_l1_ball", "float64"):
                continue
            for shape in [(n,) for n in lengths] + [(b.BATCH // n, n) for n in columns]:
                room = cuda.current_context().get_memory_info().free
                if 4 * int(np.prod(shape)) * np.dtype(dtype).itemsize < room:
                    line(cuda, function, shape, dtype, torch, quick)
        for inner in ("linf",) if quick else ("linf", "l2", "l1"):
            for groups in GROUPS:
                groups_line(cuda, groups, inner, 8192, dtype)


if __name__ == "__main__":
    main()
