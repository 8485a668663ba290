"""
Block-sparse layers of a transformer
====================================

An encoder layer of BERT or ALBERT is six products with weights: queries, keys, values, the output
of attention, and two of the feed-forward part. Here their weights are random, and a part of their
blocks is set to zero, the ones with the smallest norms (:func:`conehoyer.blocksparse.prune`). How
much faster is the product that skips them (:func:`conehoyer.blocksparse.compress`) than a dense
one? With PyTorch at hand, the whole layer is timed too. Run as a script, it prints four tables and
writes a figure:
``plot_block_sparse_transformer.py --output transformer.png``.

The idea of pruning transformers in blocks, for kernels that are compiled to them, is that of
Guo and Huang (:doi:`10.48550/arXiv.2106.08846`) and of Guo (:doi:`10.48550/arXiv.2306.15656`).
"""

# %%
# The layers
# ----------
# Four configurations, by the width of the layer; ALBERT shares the weights of its layers but has
# the same shapes otherwise. A sequence has 128 tokens, one a row, and x·Wᵀ is computed as
# ``(W @ x.T).T``, in which nothing is copied.

import argparse
import copy
import sys
from functools import partial
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

from conehoyer import blocksparse

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="Block-sparse layers of a transformer.")
parser.add_argument(
    "-o", "--output", default="block_sparse_transformer.png", help="where the figure goes"
)
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])

CONFIG = {  # width of the layer
    "BERT-base": 768,
    "BERT-large": 1024,
    "ALBERT-base": 768,
    "ALBERT-large": 1024,
}
TOKENS = 128
SPARSITY = (0.5, 0.8, 0.9, 0.95)
BLOCK = (32, 1)


def weights(width, rng):
    """The six matrices of an encoder layer, outputs × inputs."""
    shapes = [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]
    return [rng.standard_normal(shape, dtype=np.float32) * shape[1] ** -0.5 for shape in shapes]


def least_times(*calls, rounds=9):
    """The least time of each call; they take turns."""
    times = np.empty((rounds, len(calls)))
    for row in times:
        for k, call in enumerate(calls):
            start = perf_counter()
            call()
            row[k] = perf_counter() - start
    return times[1:].min(axis=0)  # the first compiles


def measure(w, block, sparsity, rng):
    """Times of the dense and of the block-sparse product, and the error of the latter."""
    pruned = blocksparse.prune(w, block, 1.0 - sparsity)
    bs = blocksparse.compress(pruned, block)
    x = rng.standard_normal((TOKENS, w.shape[1]), dtype=np.float32)
    dense, sparse = (np.zeros((TOKENS, w.shape[0]), np.float32) for _ in range(2))
    times = least_times(
        partial(np.matmul, x, pruned.T, out=dense),
        partial(bs.matmul, x.T, out=sparse.T, workers=1),
    )
    exact = x.astype(float) @ pruned.T.astype(float)
    return *times, np.abs(sparse - exact).max() / np.abs(exact).max()


# %%
# Times
# -----
# One thread each, the dense product by NumPy's BLAS.

rng = np.random.default_rng(0)
speedups = {}
print(f"Six products of an encoder layer, {TOKENS} tokens, blocks of {BLOCK[0]} × {BLOCK[1]}")
print(f"{'layer':14}{'sparsity':>9}{'dense, ms':>11}{'sparse, ms':>12}{'faster':>8}{'error':>10}")
with threadpool_limits(1):
    for name, width in CONFIG.items():
        layer = weights(width, rng)
        for sparsity in SPARSITY:
            found = np.array([measure(w, BLOCK, sparsity, rng) for w in layer])
            dense, sparse = found[:, 0].sum(), found[:, 1].sum()
            speedups[name, sparsity] = dense / sparse
            print(f"{name:14}{sparsity:9.0%}{1e3 * dense:11.2f}{1e3 * sparse:12.2f}", end="")
            print(f"{dense / sparse:8.1f}{found[:, 2].max():10.1e}")

# %%
# The whole layer
# ---------------
# These are the products alone. An encoder layer also has attention proper, two normalisations and
# an activation, which no sparsity of the weights makes faster. Here it is in PyTorch, once with
# dense linear layers and once with those that :func:`conehoyer.torch.sparsify` puts in their place,
# on one thread.

try:
    import torch
except ImportError:
    torch = None
    print("\nThe whole layer is not timed: PyTorch is missing (pip install 'conehoyer[torch]')")


def encoder_layer(width):
    """A layer of BERT, with heads of 64."""
    from torch import nn
    from torch.nn import functional

    class EncoderLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (
                nn.Linear(width, width) for _ in range(4)
            )  # fmt: skip
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.between, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)

        def forward(self, x):
            heads = (
                linear(x).unflatten(-1, (-1, 64)).transpose(-3, -2)
                for linear in (self.query, self.key, self.value)
            )
            seen = functional.scaled_dot_product_attention(*heads).transpose(-3, -2).flatten(-2)
            x = self.between(x + self.out(seen))
            return self.behind(x + self.down(functional.gelu(self.up(x))))

    return EncoderLayer().eval()


whole = {}
if torch is not None:
    from conehoyer.torch import sparsify

    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"\nA whole encoder layer in PyTorch, {TOKENS} tokens, blocks of {BLOCK[0]} × {BLOCK[1]}")
    print(
        f"{'layer':14}{'sparsity':>9}{'dense, ms':>11}{'sparse, ms':>12}{'faster':>8}{'error':>10}"
    )
    with torch.inference_mode(), threadpool_limits(1):
        for name, width in CONFIG.items():
            for sparsity in SPARSITY:
                dense = encoder_layer(width)
                sparse = sparsify(copy.deepcopy(dense), block_shape=BLOCK, keep=1 - sparsity)
                for part, layer in dense.named_children():  # the same zeros in both
                    if isinstance(layer, torch.nn.Linear):
                        layer.weight.copy_(
                            torch.from_numpy(getattr(sparse, part).matrix.to_dense())
                        )
                x = torch.randn(1, TOKENS, width)
                times = least_times(partial(dense, x), partial(sparse, x), rounds=15)
                whole[name, sparsity] = times[0] / times[1]
                error = (dense(x) - sparse(x)).abs().max() / dense(x).abs().max()
                print(
                    f"{name:14}{sparsity:9.0%}{1e3 * times[0]:11.2f}{1e3 * times[1]:12.2f}", end=""
                )
                print(f"{times[0] / times[1]:8.1f}{error:10.1e}")

# %%
# Shapes of the blocks
# --------------------
# The same part of the weights is zero, nine tenths, in blocks of one column and of more and more
# rows. A tile of the result has up to eight rows: lower blocks read the tokens more often for as
# many operations.

HEIGHTS = [1, 2, 4, 8, 16, 32, 64, 128, 256]
w = weights(CONFIG["BERT-base"], rng)[4]
by_height = {}
print()
print(f"W of {w.shape[0]} × {w.shape[1]}, 90 % zeros")
print(f"{'block':>8}{'sparse, ms':>12}{'faster':>8}{'GFLOP/s':>9}")
with threadpool_limits(1):
    for height in HEIGHTS:
        dense, sparse, _ = measure(w, (height, 1), 0.9, rng)
        by_height[height] = dense / sparse
        work = 2 * 0.1 * w.size * TOKENS
        print(f"{f'{height} × 1':>8}{1e3 * sparse:12.3f}{dense / sparse:8.1f}", end="")
        print(f"{work / sparse * 1e-9:9.0f}")

# %%
# The library can tell beforehand. For a matrix with given zeros, ``best_block_shape`` counts the
# blocks of each shape that are not zero and knows what one costs on this machine:

pruned = blocksparse.prune(w, (16, 1), 0.1)
shapes = [(height, 1) for height in HEIGHTS]
best, costs = blocksparse.best_block_shape(pruned, shapes, TOKENS, full_output=True)
print()
print("Zeros in blocks of 16 × 1")
print(f"{'block':>8}{'kept':>7}{'estimate, ms':>14}")
for cost in costs:
    mark = "  <- best" if cost.block_shape == best else ""
    shape = f"{cost.block_shape[0]} × 1"
    print(f"{shape:>8}{cost.density:7.0%}{1e3 * cost.seconds:14.3f}{mark}")

# %%
# Figure
# ------
# Left: the products in full lines, the whole layer dotted. Dashed: as much faster as there are
# fewer operations.

COLORS = ["#0072B2", "#E69F00", "#56B4E9", "#CC79A7"]
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for (name, _), color in zip(CONFIG.items(), COLORS, strict=True):
    left.plot(SPARSITY, [speedups[name, s] for s in SPARSITY], "o-", color=color, label=name)
    if whole:
        left.plot(SPARSITY, [whole[name, s] for s in SPARSITY], "o:", color=color, mfc="white")
left.plot(SPARSITY, [1 / (1 - s) for s in SPARSITY], "k--", lw=1)
left.set(xlabel="part of the blocks that is zero", ylabel="times faster than dense", yscale="log")
left.set_xticks(SPARSITY, [f"{s:.0%}" for s in SPARSITY])
left.set_yticks([1, 2, 5, 10, 20], [1, 2, 5, 10, 20])
left.minorticks_off()
left.set_title("an encoder layer: six products (full), all of it (dotted)")
left.legend(frameon=False)
right.plot(HEIGHTS, [by_height[height] for height in HEIGHTS], "o-", color=COLORS[0])
right.axhline(10, color="k", ls="--", lw=1)
right.set_xscale("log", base=2)
right.set(xlabel="rows of a block", ylabel="times faster than dense", ylim=(0, None))
right.set_xticks(HEIGHTS, HEIGHTS)
right.set_title("3072 × 768, 90 % zeros")
if IS_SCRIPT:
    fig.savefig(args.output, dpi=150)
    print(f"\nFigure: {args.output}")
