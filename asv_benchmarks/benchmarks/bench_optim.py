"""A step of SparseAdamW, relative to a pass that reads and writes the same arrays, and to torch.

A step is done when no gradient holds NaN or inf, moments and weights are new, and the blocks are
shrunk. `pip install torch` for the comparison with it.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numba
import numpy as np

from conehoyer.optim import SparseAdamW

from .common import DTYPES, compare, copies, data, require, require_processors, sampled

SHAPES = ((1000, 1000), (2500, 4000), (1000, 10_000))
BLOCKS = ((1, 1), (32, 1), (1, 32), (16, 16))
OPTIONS = {"lr": 1e-3, "l1": 0.1}


@numba.njit(nogil=True, cache=True, error_model="numpy")
def memory_pass(p, g, m, v):
    """Read four arrays once and write three: no step of AdamW can do with less."""
    half = p.dtype.type(0.5)
    for i in range(p.size):
        p[i], m[i], v[i] = (
            half * (p[i] + g[i]), half * (m[i] + g[i]), half * (v[i] + abs(g[i])),
        )  # fmt: skip


def memory_call(arrays, threads):
    """The pass as a call without arguments; each thread gets a contiguous part."""
    flat = [a.reshape(-1) for a in arrays]
    if threads == 1:
        return partial(memory_pass, *flat)
    mine, *others = zip(*(np.array_split(a, threads) for a in flat), strict=True)
    pool = ThreadPoolExecutor(threads - 1)

    def call():
        running = [pool.submit(memory_pass, *other) for other in others]
        memory_pass(*mine)
        for future in running:
            future.result()

    return call


def problem(shape, dtype):
    """Weights and a gradient; the same at every call."""
    p, g = data("gaussian", (2, *shape), dtype)
    return p.copy(), g.copy()


def step_call(p, g, **options):
    """A step as a call without arguments, and the arrays that it reads and writes."""
    optimizer = SparseAdamW([p], **(OPTIONS | options))
    optimizer.step([g])
    state = optimizer._state[0]
    return partial(optimizer.step, [g]), (p, g, state.first, state.second)


class OverMemory:
    """Blocks of one entry, 1e7 of them, one worker: at most 1.5."""

    params = (DTYPES, SHAPES, BLOCKS, (1, 2))
    param_names = ("dtype", "shape", "groups", "workers")
    options: dict = {}

    def setup(self, dtype, shape, groups, workers):
        require_processors(workers)
        self.pairs = []
        for p, g in copies(*problem(shape, dtype)):
            call, arrays = step_call(p, g, groups=groups, workers=workers, **self.options)
            self.pairs.append((call, memory_call(arrays, workers)))

    @sampled("ratio")
    def track_over_memory(self, *params):
        return compare(*self.pairs).samples


class FewColumns(OverMemory):
    """Tall blocks of matrices with fewer columns than a register has entries."""

    params = (DTYPES, ((5_000_000, 2), (1_000_000, 10)), ((10, 1), (1000, 2)), (1,))


class Reweighted(OverMemory):
    """The weights of the blocks renewed in every step, which is the most that they can cost."""

    params = (DTYPES, SHAPES[1:2], BLOCKS, (1,))
    options = {"reweight_every": 1}


class OverTorch:
    """AdamW(fused=True) and a soft threshold, on one thread: at most 0.5."""

    params = (DTYPES, SHAPES[:2])
    param_names = ("dtype", "shape")

    def setup(self, dtype, shape):
        torch = require("torch")
        torch.set_num_threads(1)
        p, g = problem(shape, dtype)
        weight = torch.nn.Parameter(torch.from_numpy(p.copy()))
        weight.grad = torch.from_numpy(g.copy())
        peer = torch.optim.AdamW([weight], lr=OPTIONS["lr"], fused=True)
        threshold = OPTIONS["lr"] * OPTIONS["l1"]

        def step():
            peer.step()
            with torch.no_grad():
                weight.copy_(torch.nn.functional.softshrink(weight, threshold))

        self.pair = step_call(p, g)[0], step

    @sampled("ratio")
    def track_over_torch(self, *params):
        return compare(self.pair).samples
