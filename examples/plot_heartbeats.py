"""
Heartbeats with few coefficients
================================

An electrocardiogram (ECG) is flat most of the time and moves fast for a short
while. So a heartbeat is sparse, and how sparse depends on two things: where zero
is, and in which basis the beat is written. This example

- scores 1,800 real beats with :func:`~conehoyer.cai_score`,
  :func:`~conehoyer.hoyer_score` and :func:`~conehoyer.hoyer_sparseness`,
- projects every beat to at most ``k`` nonzero coefficients with
  :func:`~conehoyer.level_for_nnz` and :func:`~conehoyer.project_cai`,
- compares the reconstruction error of three projections at the same ``k``:
  the CAI cone, the l1 ball and Hoyer's constraint.

The beats come from the MIT-BIH Arrhythmia Database and from the PTB Diagnostic
ECG Database; ``data/README.md`` says which beats and whom to cite. Run as a
script, it prints three tables and writes a figure: ``plot_heartbeats.py
--output heartbeats.png``.
"""

# %%
# The beats
# ---------
# A row holds 187 samples at 125 Hz, which is 1.5 s: one beat from its R peak
# on, often with the next R peak at its end, min-max scaled to [0, 1], then zeros
# up to the length of the row. The MIT-BIH samples are stored in thousandths.

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.fft import dct, idct

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="Heartbeats with few coefficients.")
parser.add_argument("-o", "--output", default="heartbeats.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])
data = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent / "data"

SAMPLE_MS = 1000 / 125


def read(name, scale, labels):
    """Read samples in [0, 1] and the name of each beat's class."""
    table = np.loadtxt(data / name, delimiter=",")
    return table[:, :187] / scale, np.take(labels, table[:, 187].astype(int))


MITBIH = ["MIT-BIH N", "MIT-BIH S", "MIT-BIH V", "MIT-BIH F"]
PTB = ["PTB normal", "PTB abnormal"]
parts = [
    read("ecg_mitbih_DS1_sample.csv.gz", 1000, MITBIH),
    read("ecg_mitbih_DS2_sample.csv.gz", 1000, MITBIH),
    read("ecg_ptbdb_normal_sample.csv.gz", 1, PTB),
    read("ecg_ptbdb_abnormal_sample.csv.gz", 1, PTB),
]
raw = np.concatenate([x for x, _ in parts])
group = np.concatenate([g for _, g in parts])
groups = MITBIH + PTB

# %%
# Where zero is
# -------------
# Min-max scaling puts zero at the lowest sample of the beat, where it means
# nothing: setting a sample to zero would move it from the resting line of the
# heart to the bottom of the deepest wave. The median of a beat is close to its
# resting (isoelectric) line. With the median subtracted, zero means 'nothing
# happens', the samples have signs, and the padding continues the line.
#
# Five zeros more make 192 samples, 24 blocks of 8.

is_padding = np.cumsum(raw[:, ::-1], axis=1)[:, ::-1] == 0
baseline = np.nanmedian(np.where(is_padding, np.nan, raw), axis=1, keepdims=True)
beats = np.where(is_padding, 0, raw - baseline)
beats = np.pad(beats, ((0, 0), (0, 5)))

# %%
# In which basis
# --------------
# A cosine transform of the whole beat is a poor choice: the R peak is short, and
# a short peak needs all frequencies. Single samples are a poor choice for the slow
# T wave. A cosine transform of every block of 8 samples (64 ms, shorter than most
# QRS complexes) is local in time and smooth enough, as in JPEG. All three are
# orthonormal, so an error of the coefficients is the same error of the beat.


def to_blocks(x):
    """Return the cosine coefficients of the blocks of 8 samples."""
    return dct(x.reshape(len(x), -1, 8), norm="ortho").reshape(x.shape)


def from_blocks(c):
    """Return the samples of the beats with these coefficients."""
    return idct(c.reshape(len(c), -1, 8), norm="ortho").reshape(c.shape)


bases = {
    "samples": beats,
    "whole DCT": dct(beats, norm="ortho"),
    "block DCT": to_blocks(beats),
}
blocks = bases["block DCT"]

# %%
# Scores
# ------
# The Hoyer score (sum of absolute values)² / (sum of squares) is an effective
# number of nonzeros: k equal entries score k, other vectors less than their
# number of nonzeros. Times 8 ms it is the duration of a rectangular pulse with
# the same score. The CAI takes the signed sum instead: it is small where the
# deflections above and below the resting line cancel; on the raw, nonnegative
# samples the two are the same number. Hoyer's sparseness maps the score to
# [0, 1], 1 for a single nonzero. For comparison, the Hoyer score of the raw
# samples, which is high because their zero is in the wrong place, and of the
# block cosine coefficients, which is low.

scores = {
    "CAI": conehoyer.cai_score(beats),
    "Hoyer": conehoyer.hoyer_score(beats),
    "ms": conehoyer.hoyer_score(beats) * SAMPLE_MS,
    "sparseness": conehoyer.hoyer_sparseness(beats),
    "raw Hoyer": conehoyer.hoyer_score(raw),
    "block Hoyer": conehoyer.hoyer_score(blocks),
}
print("Scores of the beats, median of each class")
print(f"{'class':12}{'beats':>7}" + "".join(f"{name:>12}" for name in scores))
for name in groups:
    members = group == name
    print(f"{name:12}{members.sum():7d}", end="")
    for score, values in scores.items():
        digits = {"ms": 0, "sparseness": 3}.get(score, 1)
        print(f"{np.median(values[members]):12.{digits}f}", end="")
    print()

# %%
# Three projections to k nonzeros
# -------------------------------
# With the magnitudes a sorted, soft thresholding at the (k+1)-th largest leaves k
# nonzeros. All three projections of a beat do just that, so they agree on the
# support and on the direction of the result and differ in its length:
#
# - the l1 ball gives the thresholded values as they are, too short;
# - the CAI cone scales them to the point nearest to the beat;
# - Hoyer's constraint scales them to the norm of the beat.
#
# Keeping the k largest coefficients unchanged has the least error that any k
# coefficients can have: a bound, not a projection onto one of these sets. Every
# call below treats all beats at once, along the last axis, with one level, radius
# or sparseness for each.


def project(x, k):
    """Project the beats to at most k nonzeros, in four ways."""
    level = conehoyer.level_for_nnz(x, k)
    on_cone = conehoyer.project_cai(x, level)

    ascending = np.sort(np.abs(x), axis=-1)
    threshold = ascending[:, [-k - 1]]
    radius = np.maximum(ascending - threshold, 0).sum(axis=-1)
    return {
        "CAI": on_cone,
        "l1 ball": conehoyer.project_l1_ball(x, radius),
        "Hoyer": conehoyer.project_hoyer(x, conehoyer.hoyer_sparseness(on_cone)),
        "k largest": np.where(np.abs(x) > threshold, x, 0),
    }


def relative_error(x, y):
    """Return the norm of the error over the norm of the beat, for each beat."""
    return np.linalg.norm(x - y, axis=-1) / np.linalg.norm(y, axis=-1)


ks = [3, 5, 7, 10, 14, 20, 28, 40, 56, 80]
error = {}
for k in ks:
    for method, x in project(blocks, k).items():
        error[method, k] = relative_error(x, blocks)

methods = ["CAI", "l1 ball", "Hoyer", "k largest"]
print()
print("Relative error at k nonzeros of 192, block DCT, mean over the beats")
print(f"{'k':>4}" + "".join(f"{method:>12}" for method in methods))
for k in (5, 10, 20, 40, 80):
    print(f"{k:4d}" + "".join(f"{error[method, k].mean():12.3f}" for method in methods))

# %%
# The same projection in the three bases: the basis matters more than the
# projection.

for name, coefficients in bases.items():
    for k in ks:
        level = conehoyer.level_for_nnz(coefficients, k)
        x = conehoyer.project_cai(coefficients, level)
        assert np.count_nonzero(x, axis=-1).max() <= k
        error[name, k] = relative_error(x, coefficients)

print()
print("Relative error of the CAI projection in three bases, mean over the beats")
print(f"{'k':>4}" + "".join(f"{name:>12}" for name in bases))
for k in (5, 10, 20, 40, 80):
    print(f"{k:4d}" + "".join(f"{error[name, k].mean():12.3f}" for name in bases))

# %%
# Figure
# ------
# Above, two beats with 10 of 192 coefficients: of normal (N) and of ventricular
# (V) beats, the one whose CAI error is the median of its class. Below, the
# Hoyer score by class (box: quartiles, whiskers: 5 to 95 %), and the error
# against k.

COLOR = {"CAI": "tab:blue", "l1 ball": "tab:orange", "Hoyer": "tab:green", "k largest": "0.45"}
STYLE = {"CAI": "-", "l1 ball": "--", "Hoyer": "-.", "k largest": ":"}
k_shown = 10

fig, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
projected = {m: from_blocks(x) for m, x in project(blocks, k_shown).items()}
for ax, name in zip(axes[0], ["MIT-BIH N", "MIT-BIH V"], strict=True):
    members = np.flatnonzero(group == name)
    order = members[np.argsort(error["CAI", k_shown][members], kind="stable")]
    i = order[len(order) // 2]
    length = 187 - np.count_nonzero(is_padding[i])
    time = np.arange(length) * SAMPLE_MS
    ax.plot(time, beats[i, :length], color="0.78", lw=4, label="beat")
    for method in ["CAI", "l1 ball", "Hoyer"]:
        label = f"{method}, error {error[method, k_shown][i]:.2f}"
        ax.plot(
            time, projected[method][i, :length], color=COLOR[method], ls=STYLE[method], label=label
        )
    ax.set(title=f"{name}: {k_shown} of 192 block DCT coefficients", xlabel="time (ms)")
    ax.set_ylabel("amplitude above the resting line\n(range of the beat = 1)")
    ax.legend(frameon=False)

ax = axes[1, 0]
boxes = ax.boxplot(
    [scores["Hoyer"][group == name] for name in groups],
    whis=(5, 95),
    showfliers=False,
    patch_artist=True,
    widths=0.6,
    medianprops={"color": "black"},
)
for name, box in zip(groups, boxes["boxes"], strict=True):
    box.set_facecolor("lightsteelblue" if name in MITBIH else "wheat")
ax.set_xticks(range(1, 7), [name.replace(" ", "\n") for name in groups])
ax.set(title="Hoyer score of the samples, by class", ylabel="effective number of samples")
ax.set_ylim(bottom=0)
right = ax.secondary_yaxis("right", functions=(lambda h: h * SAMPLE_MS, lambda t: t / SAMPLE_MS))
right.set_ylabel("effective duration (ms)")

ax = axes[1, 1]
for method in methods:
    mean = [error[method, k].mean() for k in ks]
    label = method if method != "k largest" else "k largest kept (bound)"
    ax.plot(ks, mean, color=COLOR[method], ls=STYLE[method], marker=".", label=label)
for name, at in [("samples", (8.3, 0.565)), ("whole DCT", (10.8, 0.69))]:
    mean = [error[name, k].mean() for k in ks]
    ax.plot(
        ks, mean, color="tab:blue", lw=1, label="CAI in another basis" if name == "samples" else ""
    )
    ax.text(*at, name, color="tab:blue")
ax.set_xscale("log")
ax.set_xticks([3, 5, 10, 20, 40, 80], [3, 5, 10, 20, 40, 80])
ax.minorticks_off()
ax.set_ylim(0, 0.95)
ax.grid(alpha=0.3)
ax.set(title=f"Error against sparsity, block DCT, {len(beats):,} beats")
ax.set(xlabel="nonzero coefficients k, of 192", ylabel="relative error, mean over the beats")
ax.legend(frameon=False, loc="lower left")

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
