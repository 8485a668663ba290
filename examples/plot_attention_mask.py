"""
Attention at the blocks that matter
===================================

Attention compares each position of a sequence with every other one, though most of its weights are
next to nothing. :func:`~conehoyer.project_bilevel` finds the blocks that hold what counts, and a
:class:`~conehoyer.blocksparse.BlockPattern` computes those alone. This page shows

- where the attention of heartbeat recordings lies, and which blocks the projection keeps,
- what is lost with the other blocks, and what a mask loses that was found beforehand or is a band
  around the diagonal,
- how much time a mask saves, and attention that sees the past alone.

The attention here is not learned, so that nothing has to be trained: it is the non-local mean [1]_,
which takes noise from an electrocardiogram by averaging what repeats itself [2]_.

The beats come from the MIT-BIH Arrhythmia Database; ``data/README.md`` says which beats and whom
to cite.

.. [1] A. Buades, B. Coll and J.-M. Morel, "A non-local algorithm for image denoising", *CVPR*,
   2005. :doi:`10.1109/CVPR.2005.38`.
.. [2] B. H. Tracey and E. L. Miller, "Nonlocal means denoising of ECG signals", *IEEE
   Transactions on Biomedical Engineering* 59(9):2383-2386, 2012.
"""

# %%
# A denoiser that attends
# -----------------------
# Of four records the beats are put one behind the other, 2,048 samples of each at 125 Hz, and white
# noise is added. Each sample is a token; its query is the piece of 33 samples around it, and so is
# its key; its value is the sample itself. With weights in proportion to exp(−‖a − b‖² / 2h²), where
# a and b are pieces, attention is the mean of the samples whose surroundings look alike. As a
# product: −‖a − b‖² / 2 is ⟨a, b⟩ − ‖b‖² / 2, up to a number that is the same for all b and that
# the softmax does not see. So keys get one more entry, −‖b‖² / 2, and queries a 1.

import sys
from functools import partial
from pathlib import Path
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
from threadpoolctl import threadpool_limits

import conehoyer
from conehoyer.blocksparse import BlockPattern

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
data = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent / "data"
RECORDS = 200, 208, 213, 223
LENGTH, AROUND, NOISE = 2048, 16, 0.05
H = 0.8 * NOISE * np.sqrt(2 * AROUND + 1)

table = np.concatenate(
    [np.loadtxt(data / f"ecg_mitbih_DS{k}_sample.csv.gz", delimiter=",", dtype=int) for k in (1, 2)]
)
beats = [table[table[:, 188] == record, :187] / 1000 for record in RECORDS]
clean = np.array([np.concatenate([np.trim_zeros(b, "b") for b in of])[:LENGTH] for of in beats])
rng = np.random.default_rng(0)


def with_noise():
    """Queries, keys and values of the four records, in float32."""
    signals = clean + NOISE * rng.standard_normal(clean.shape)
    padded = np.pad(signals - 0.5, ((0, 0), (AROUND, AROUND)), mode="edge")
    pieces = np.lib.stride_tricks.sliding_window_view(padded, 2 * AROUND + 1, axis=1)
    half = (pieces**2).sum(axis=2) / 2
    q = np.dstack([pieces, np.ones(half.shape)]) / H
    k = np.dstack([pieces, -half]) / H
    return [each.astype(np.float32) for each in (q, k, signals[:, :, None])]


def all_weights(q, k):
    """Softmax of all products."""
    scores = q @ k.swapaxes(1, 2)
    np.exp(scores - scores.max(axis=2, keepdims=True), out=scores)
    return scores / scores.sum(axis=2, keepdims=True)


def gain(result):
    """Decibels by which the noise is weaker."""
    return 10 * np.log10(NOISE**2 / np.mean((result[..., 0] - clean) ** 2))


q, k, v = with_noise()
weights = all_weights(q, k)
dense = weights @ v
print(f"attention to all {LENGTH} samples: {gain(dense):.2f} dB less noise")

# %%
# The blocks that count
# ---------------------
# The weights of the four records are a batch of matrices. ``level_for_groups`` finds for each one
# the level at which a tenth of its blocks of 8 × 8 stays, and the projection which they are. The
# blocks on the diagonal are added, so that each sample sees itself whatever the mask.

SIDE = 8
GRID = LENGTH // SIDE
own = np.eye(GRID, dtype=bool)


def blocks_of(weights, share):
    """A mask for each record, of that share of the blocks."""
    kind = {"groups": (SIDE, SIDE), "inner": "l2"}
    level = conehoyer.level_for_groups(weights, int(share * GRID**2), **kind)
    _, info = conehoyer.project_bilevel(weights, level, **kind, full_output=True)
    return info.kept | own


kept = blocks_of(weights, 0.1)
within = np.kron(kept, np.ones((SIDE, SIDE), bool))
print("record   blocks kept   weight inside")
for record, blocks, inside in zip(RECORDS, kept, np.where(within, weights, 0), strict=True):
    print(f"{record:6d}{blocks.mean():14.1%}{inside.sum() / LENGTH:16.1%}")

# %%
# Five seconds of two records, and the attention of these samples to each other, as far as the mask
# keeps it. A sample attends to the same instant of other beats: the stripes run in parallel to the
# diagonal, one for each pair of beats. On the left beats of several kinds follow each other, and
# attend to their own kind.

shown = slice(0, 5 * 125)
time = np.arange(LENGTH)[shown] / 125
colours = plt.get_cmap("inferno").with_extremes(bad="0.75")
fig, axes = plt.subplots(
    2, 2, figsize=(7.2, 5.2), sharex=True, height_ratios=[1, 2.6], layout="constrained"
)
for (top, bottom), head in zip(axes.T, (0, 2), strict=True):
    top.plot(time, v[head, shown, 0], color="black", lw=0.7)
    top.set(title=f"record {RECORDS[head]}", ylim=(-0.2, 1.2))
    picture = np.ma.array(weights[head], mask=~within[head])[shown, shown]
    image = bottom.imshow(
        np.log10(np.maximum(picture, 1e-9)),
        cmap=colours, vmin=-5, vmax=0, extent=(0, 5, 5, 0), aspect="auto", interpolation="none",
    )  # fmt: skip
    bottom.set(xlabel="attended to (s)")
axes[0, 0].set_ylabel("amplitude")
axes[1, 0].set_ylabel("attends (s)")
fig.colorbar(image, ax=axes[1], label="log₁₀ of the weight; grey: left out")
plt.show()

# %%
# What is lost
# ------------
# Finding a mask takes all weights, so it pays where it is used again. The second mask was therefore
# found beforehand, from the same beats under other noise. The third is a band around the diagonal,
# the local attention of many networks, with about as many blocks. The error is relative to
# attention to all, and beside it the decibels by which the noise is less.

SHARES = 0.3, 0.2, 0.1, 0.05, 0.02
away = np.abs(np.subtract.outer(np.arange(GRID), np.arange(GRID)))
before = all_weights(*with_noise()[:2])


def attend(masks, **kind):
    """Attention at the blocks of one mask for each record."""
    patterns = [BlockPattern(mask, (SIDE, SIDE)) for mask in masks]
    each = list(zip(patterns, q, k, v, strict=True))
    return np.stack([pattern.attention(*qkv, scale=1, **kind) for pattern, *qkv in each])


def band(share):
    """As many blocks, next to the diagonal."""
    width = np.flatnonzero([(away <= w).mean() >= share for w in range(GRID)])[0]
    return np.broadcast_to(away <= width, kept.shape)


MASKS = {
    "own": partial(blocks_of, weights),
    "found before": partial(blocks_of, before),
    "band": band,
}
results = {}
print("     " + "".join(f"{name:>19}" for name in MASKS))
print("kept" + 3 * "      error less dB")
for share in SHARES:
    print(f"{share:4.0%}", end="")
    for name, mask in MASKS.items():
        result = attend(mask(share))
        error = np.linalg.norm(result - dense) / np.linalg.norm(dense)
        results[name, share] = error, gain(result)
        print(f"{error:11.3f}{gain(result):8.2f}", end="")
    print()

# %%
# With a tenth of the blocks the mean is a little better than with all, and with the mask found
# before better than with the own one, which may prefer pairs whose noise happens to agree. The band
# leaves out other beats, on which this mean lives.

BLUE, ORANGE, GREEN = "#0072B2", "#C44E00", "#00795A"
noisy, clear = v[0, shown, 0], clean[0, shown]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
for name, color, marker in zip(MASKS, (BLUE, ORANGE, GREEN), "os^", strict=True):
    gains = [results[name, share][1] for share in SHARES]
    left.plot(np.array(SHARES) * 100, gains, color=color, marker=marker, label=name)
left.axhline(gain(dense), color="0.4", ls="--", lw=1, label="all blocks")
left.set(xlabel="blocks kept (%)", ylabel="less noise (dB)", ylim=0)
result = attend(blocks_of(before, 0.1))[0, shown, 0]
right.plot(time, noisy, color="0.75", lw=0.8, label="with noise")
right.plot(time, clear, color="black", lw=2.2, label="without")
right.plot(time, result, color=ORANGE, lw=1, label="10 %, found before")
right.set(xlim=(0, 1.7), ylim=(-0.6, 1.1), xlabel="time (s)", ylabel="amplitude")
right.set(xticks=[0, 0.5, 1, 1.5], title="record 200")
for ax in (left, right):
    ax.legend(frameon=False)
plt.show()

# %%
# The time it takes
# -----------------
# On one thread, against the same attention by NumPy, in float32. Each entry outside the mask saves
# two products and an exponential.


def seconds(call):
    """The shortest of five times."""
    call()
    start = [perf_counter()]
    while len(start) < 6:
        call()
        start.append(perf_counter())
    return np.diff(start).min()


with threadpool_limits(1):
    usual = seconds(lambda: all_weights(q, k) @ v)
print(f"all blocks by NumPy: {1000 * usual:.0f} ms for the four records")
print("blocks kept   ms   times faster")
for share in SHARES:
    own_time = seconds(partial(attend, blocks_of(before, share), workers=1))
    print(f"{share:11.0%}{1000 * own_time:5.0f}{usual / own_time:15.1f}")

# %%
# Only the past
# -------------
# A filter that runs along with the signal, half a piece behind, knows no later samples.
# ``causal=True`` hides these, inside the blocks too; blocks above the diagonal are left out of the
# mask.

past = blocks_of(before, 0.2) & np.tri(GRID, dtype=bool)
result = attend(past, causal=True)
seen = np.tri(LENGTH, dtype=bool)
hidden = np.where(seen, weights, 0)
expected = hidden / hidden.sum(axis=2, keepdims=True) @ v
print(f"the past alone: {gain(expected):.2f} dB less noise")
print(f"and {past.mean():.0%} of the blocks: {gain(result):.2f} dB less noise")
