"""Products of a block-sparse matrix and a dense one, relative to the dense product.

The shape is that of a layer of BERT-base: 3072 × 768, times 128 columns, in float32. Run as a
module, ``OPENBLAS_NUM_THREADS=1 python -m benchmarks.bench_blocksparse`` prints the goals and
what is reached.
"""

from functools import cache, partial

import numba
import numpy as np

from conehoyer import blocksparse, set_workers
from conehoyer._cpu import blocksparse as kernels
from conehoyer._cpu import simd

from .common import DTYPES, compare, require, require_processors, sampled

ROWS, LENGTH, COLUMNS = 3072, 768, 128
BLOCKS = ("32x1", "16x1", "1x32", "16x16", "1x1")
SPARSITY = (0.0, 0.5, 0.9, 0.95)
ORDERS = ("rows", "columns")  # which of the dense operand are contiguous


@cache
def _weights(block, sparsity):
    w = np.random.default_rng(0).standard_normal((ROWS, LENGTH)).astype(np.float32)
    if sparsity > 0.0:
        w = blocksparse.prune(w, block, 1.0 - sparsity)
    return w


class Product:
    """A product, and what it is compared with."""

    def __init__(self, block, sparsity, order="rows"):
        self.block = tuple(int(side) for side in block.split("x"))
        self.w = _weights(self.block, sparsity)
        self.bs = blocksparse.compress(self.w, self.block)
        x = np.random.default_rng(1).standard_normal((LENGTH, COLUMNS)).astype(np.float32)
        self.x = x if order == "rows" else np.asfortranarray(x)
        self.out = np.zeros((ROWS, COLUMNS), np.float32, order="C" if order == "rows" else "F")
        np.testing.assert_allclose(self.bs @ self.x, self.w @ self.x, rtol=0, atol=1e-3)

    def call(self, workers=1):
        return partial(self.bs.matmul, self.x, out=self.out, workers=workers)

    def dense(self):
        """NumPy's product, with threads as the environment says."""
        return partial(np.matmul, self.w, self.x, out=np.zeros_like(self.out))

    def torch(self):
        """That of torch, on one thread."""
        torch = require("torch")
        torch.set_num_threads(1)
        w, x = torch.from_numpy(self.w), torch.from_numpy(self.x)
        out = torch.from_numpy(np.zeros_like(self.out))
        return partial(torch.matmul, w, x, out=out)

    def scipy(self):
        from scipy import sparse

        other = sparse.csr_array(self.w) if self.block == (1, 1) else self.bs.to_scipy()
        return partial(other.__matmul__, self.x)

    def plain(self):
        """Nested loops, as one would write them down."""
        x, out = np.ascontiguousarray(self.x), np.zeros((ROWS, COLUMNS), np.float32)
        given = self.bs._values, self.bs._layout, self.bs._start(None), x, out
        return partial(kernels.multiply_plainly, *given, 0, self.bs.pattern.grid[0])


@numba.njit
def _multiply_add(start, factor, count):
    """`count` rounds of ten multiply-adds in registers, each with a sum of its own."""
    width = simd.lanes(start)
    f = simd.load(factor, 0)
    s0, s1 = simd.load(start, 0), simd.load(start, width)
    s2, s3 = simd.load(start, 2 * width), simd.load(start, 3 * width)
    s4, s5 = simd.load(start, 4 * width), simd.load(start, 5 * width)
    s6, s7 = simd.load(start, 6 * width), simd.load(start, 7 * width)
    s8, s9 = simd.load(start, 8 * width), simd.load(start, 9 * width)
    for _ in range(count):
        s0, s1 = simd.multiply_add(s0, f, f), simd.multiply_add(s1, f, f)
        s2, s3 = simd.multiply_add(s2, f, f), simd.multiply_add(s3, f, f)
        s4, s5 = simd.multiply_add(s4, f, f), simd.multiply_add(s5, f, f)
        s6, s7 = simd.multiply_add(s6, f, f), simd.multiply_add(s7, f, f)
        s8, s9 = simd.multiply_add(s8, f, f), simd.multiply_add(s9, f, f)
    s0 = simd.add(simd.add(simd.add(s0, s1), simd.add(s2, s3)), simd.add(s4, s5))
    return simd.total(simd.add(s0, simd.add(simd.add(s6, s7), simd.add(s8, s9))))


def over_peak(call, operations, seconds=0.5):
    """Operations a second, over those of multiply-adds that never wait for memory."""
    width = simd.REGISTER_BITS // 32
    rng = np.random.default_rng(0)
    start, factor = rng.random(10 * width, np.float32), rng.random(width, np.float32)
    rounds = round(operations / (2.0 * start.size))
    return compare((partial(_multiply_add, start, factor, rounds), call), seconds=seconds)


class OverPeak:
    """Time over that of as many multiply-adds that never wait for memory."""

    params = (("dense", "32x1", "1x32", "16x16"),)
    param_names = ("product",)

    def setup(self, name):
        self.product = Product("32x1" if name == "dense" else name, 0.9)

    @sampled("ratio")
    def track_over_peak(self, name):
        product = self.product
        if name == "dense":
            shares = over_peak(product.dense(), 2.0 * COLUMNS * product.w.size).samples
        else:
            operations = 2.0 * COLUMNS * np.count_nonzero(product.w)
            shares = over_peak(product.call(), operations).samples
        return [1.0 / share for share in shares]  # asv takes less for better


class OverDense:
    params = (BLOCKS, SPARSITY, ORDERS)
    param_names = ("block", "sparsity", "contiguous")

    def setup(self, *params):
        self.product = Product(*params)

    @sampled("ratio")
    def track_over_numpy(self, *params):
        return compare((self.product.call(), self.product.dense())).samples


class OverOthers:
    params = (BLOCKS, (0.9, 0.95))
    param_names = ("block", "sparsity")

    def setup(self, *params):
        self.product = Product(*params)

    @sampled("ratio")
    def track_over_scipy(self, *params):
        return compare((self.product.call(), self.product.scipy())).samples

    @sampled("ratio")
    def track_over_plain_loops(self, *params):
        return compare((self.product.call(), self.product.plain())).samples


class OverTorch:
    params = (("32x1", "16x16"), SPARSITY)
    param_names = ("block", "sparsity")

    def setup(self, *params):
        require("torch")
        self.product = Product(*params)

    @sampled("ratio")
    def track_over_torch(self, *params):
        return compare((self.product.call(), self.product.torch())).samples


class WideAndShort:
    """16 × 100,000, of which a tenth of the blocks is kept, over SciPy's CSR product.

    Hardly a row of the dense operand is read twice.
    """

    params = (("16x16", "1x16", "1x1"), (1, 100), ORDERS)
    param_names = ("block", "columns", "contiguous")

    def setup(self, block, columns, order):
        sparse = require("scipy.sparse")
        rng = np.random.default_rng(0)
        height, width = map(int, block.split("x"))
        w = rng.standard_normal((16, 100_000)).astype(np.float32)
        w = blocksparse.prune(w, (height, width), 0.1)
        x = rng.standard_normal((100_000, columns)).astype(np.float32)
        x = np.asarray(x, order="F" if order == "columns" else "C")
        product = partial(blocksparse.compress(w, (height, width)).matmul, x, workers=1)
        self.calls = product, partial(sparse.csr_array(w).__matmul__, x)
        product()

    @sampled("ratio")
    def track_over_scipy(self, *params):
        return compare(self.calls).samples


class Layer:
    """`BlockSparseLinear` with nine tenths of zeros over the linear layer, without gradients."""

    params = ((32, 768, 3072),)
    param_names = ("outputs",)

    def setup(self, outputs):
        torch = require("torch")
        torch.set_num_threads(1)
        self.torch, self.x = torch, torch.ones(8 if outputs == 32 else COLUMNS, LENGTH)
        self.dense = torch.nn.Linear(LENGTH, outputs)
        w = blocksparse.prune(self.dense.weight.detach().numpy(), (32, 1), 0.1)
        matrix = blocksparse.compress(w, (32, 1))
        self.sparse = require("conehoyer.torch").BlockSparseLinear(matrix, self.dense.bias)

    @sampled("ratio")
    def track_over_linear(self, outputs):
        with self.torch.inference_mode(), set_workers(1):
            pair = partial(self.sparse, self.x), partial(self.dense, self.x)
            return compare(pair).samples


class TwoWorkers:
    """Time with two workers over that with one."""

    params = (("32x1", "1x32", "16x16"), (0.5, 0.9))
    param_names = ("block", "sparsity")

    def setup(self, *params):
        require_processors(2)
        self.product = Product(*params)

    @sampled("ratio")
    def track_over_one(self, *params):
        return compare((self.product.call(2), self.product.call())).samples


class Attention:
    """Attention in a band of five blocks over the dense one, one head."""

    params = ((512, 2048), (False, True))
    param_names = ("length", "causal")

    def setup(self, length, causal):
        rng = np.random.default_rng(0)
        self.heads = rng.standard_normal((3, length, 64)).astype(np.float32)
        side = length // 32
        before = np.subtract.outer(np.arange(side), np.arange(side))
        band = np.isin(before, range(5) if causal else range(-2, 3))
        self.pattern = blocksparse.BlockPattern(band, (32, 32))

    @sampled("ratio")
    def track_over_dense(self, length, causal):
        q, k, v = self.heads
        later = np.where(np.tri(length, dtype=bool), np.float32(0.0), np.float32(-np.inf))

        def dense():
            scores = q @ k.T / 8.0
            if causal:
                scores += later
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
            return scores @ v

        ours = partial(self.pattern.attention, q, k, v, causal=causal)
        return compare((ours, dense)).samples


class Sampled:
    """Products of queries and keys at a tenth of the blocks over all of them."""

    params = (("1x8", "8x1", "4x4", "8x8", "32x32"), DTYPES)
    param_names = ("block", "dtype")

    def setup(self, block, dtype):
        height, width = map(int, block.split("x"))
        rng = np.random.default_rng(0)
        self.q, self.k = rng.standard_normal((2, 2048, 64)).astype(dtype)
        kept = rng.random((2048 // height, 2048 // width)) < 0.1
        self.pattern = blocksparse.BlockPattern(kept, (height, width))

    @sampled("ratio")
    def track_over_dense(self, block, dtype):
        out = np.zeros((2048, 2048), dtype)
        dense = partial(np.matmul, self.q, self.k.T, out=out)
        return compare((partial(self.pattern.sample, self.q, self.k), dense)).samples


class Softmax:
    """Softmax of 100 blocks over NumPy's exponential of as many numbers."""

    params = (("1x32", "8x8", "16x16", "32x32"), DTYPES)
    param_names = ("block", "dtype")

    def setup(self, block, dtype):
        pattern = blocksparse.BlockPattern(np.ones((10, 10)), tuple(map(int, block.split("x"))))
        q = np.random.default_rng(0).standard_normal((pattern.shape[0], 8)).astype(dtype)
        k = np.random.default_rng(1).standard_normal((pattern.shape[1], 8)).astype(dtype)
        scores = pattern.sample(q, k)
        values = -np.abs(scores.to_dense())
        self.calls = scores.softmax, partial(np.exp, values, out=np.empty_like(values))

    @sampled("ratio")
    def track_over_exp(self, block, dtype):
        return compare(self.calls).samples


GOALS = [  # how many times faster, than what
    ("32x1", 0.9, "dense", 15.0),
    ("32x1", 0.9, "torch", 15.0),
    ("32x1", 0.9, "scipy", 30.0),
    ("32x1", 0.9, "plain", 7.15),
    ("32x1", 0.5, "dense", 3.0),
    ("32x1", 0.0, "dense", 1.0),
    ("1x32", 0.9, "dense", 8.0),
    ("16x16", 0.9, "dense", 8.0),
    ("1x1", 0.95, "scipy", 2.0),
]

if __name__ == "__main__":
    share = over_peak(Product("32x1", 0.9).dense(), 2.0 * ROWS * LENGTH * COLUMNS, 2.0).ratio
    print(f"NumPy's dense product does {share:.2f} of the multiply-adds the processor can do: with")
    print(f"a tenth of the entries none is more than {10.0 / share:.1f} times as fast,", end=" ")
    print(f"with half of them {2.0 / share:.1f} times.")
    print(f"{ROWS} x {LENGTH} times {COLUMNS} columns, float32, one worker")
    print(f"{'block':>6}{'sparsity':>9}{'than':>7}{'goal':>6}{'times faster, rows, columns':>30}")
    for block, sparsity, peer, goal in GOALS:
        line, flops = "", 0.0
        for order in ORDERS:
            product = Product(block, sparsity, order)
            try:
                found = compare((product.call(), getattr(product, peer)()), seconds=2.0)
            except NotImplementedError as missing:
                line = f"{missing}"
                break
            line += f"{1.0 / found.ratio:8.1f}"
            work = 2.0 * COLUMNS * np.count_nonzero(product.w)
            flops = max(flops, work / found.call * 1e-9)
        print(f"{block:>6}{sparsity:9}{peer:>7}{goal:6}{line:>20}   {flops:.0f} GFLOP/s")
    for block in ("32x1", "16x16"):
        product = Product(block, 0.9)
        found = compare((product.call(2), product.call()), seconds=2.0)
        print(f"{block}: two workers {1.0 / found.ratio:.2f} times as fast as one (goal 1.6)")
