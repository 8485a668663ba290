"""
How many entries a level keeps
==============================

:func:`~conehoyer.project_cai` bounds the Hoyer score of the result x,

.. math:: H(x) = (‖x‖_1/‖x‖_2)^2 ≤ l ,

the squared ratio of the sum of the magnitudes to the Euclidean norm. It is an effective number of
nonzeros: k entries of the same magnitude score k. The number of nonzeros itself is at least as
large, and by how much depends on the data. This page shows that for random vectors and for
heartbeats, and how :func:`~conehoyer.level_for_nnz` takes the guesswork out of it.

The beats come from the MIT-BIH Arrhythmia Database and from the PTB Diagnostic ECG Database;
``data/README.md`` says which beats and whom to cite.
"""

# %%
# Random vectors
# --------------
# Five vectors with 100,000 entries each, from short tails to long ones. Each curve ends at the
# score of the vector itself; at this level and above, nothing changes.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

n = 100_000
rng = np.random.default_rng(0)
vectors = {
    "uniform, 0 to 1": rng.random(n),
    "Gaussian": rng.standard_normal(n),
    "Laplace": rng.laplace(size=n),
    "Student, 3 degrees of freedom": rng.standard_t(3, size=n),
    "1/i, i = 1, …, n": 1 / np.arange(1, n + 1),
}
counts = [100, 1000, 10_000, 50_000]
print("Nonzeros over level")
print(f"{'k nonzeros':32}" + "".join(f"{k:>8,}" for k in counts))
for name, vector in vectors.items():
    ratios = [k / conehoyer.level_for_nnz(vector, k) for k in counts]
    print(f"{name:32}" + "".join(f"{ratio:8.2f}" for ratio in ratios))

# %%
# For the first three a rule of thumb would do, since the ratio changes little with k. It can
# be computed. The entries above a threshold exceed it by amounts between 0 and some number, all
# equally likely, if they are uniform, and by amounts with an exponential distribution, if they
# are Laplace. The ratio is the mean square of the excess over its squared mean: 4/3 and 2. For
# long tails there is no rule: a few large entries make up most of the sum of squares, and many
# small ones stay beside them.

COLORS = ["#0072B2", "#C44E00", "#00795A", "#8E3B8A", "#7A5C00"]
STYLES = ["-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1))]

fig, ax = plt.subplots(figsize=(7.2, 4.8), layout="constrained")
for (name, vector), color, style in zip(vectors.items(), COLORS, STYLES, strict=True):
    levels = np.geomspace(1, conehoyer.hoyer_score(vector), 40)
    left = [np.count_nonzero(conehoyer.project_cai(vector, level)) for level in levels]
    ax.plot(levels, left, color=color, ls=style, lw=1.8, label=name)
ax.plot([1, n], [1, n], color="0.45", lw=1, label="equal magnitudes: nonzeros = level")
ax.set(xscale="log", yscale="log", xlabel="level", ylabel=f"nonzeros, of {n:,}")
ax.grid(alpha=0.3)
ax.legend(frameon=False, loc="lower right")
plt.show()

# %%
# Heartbeats
# ----------
# 1,800 beats of 187 samples, with the resting line (the median of the beat) subtracted. One
# level for all leaves some beats with few samples and others with many, because their scores
# differ to begin with.

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
data = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent / "data"
FILES = {
    "ecg_mitbih_DS1_sample.csv.gz": 1000,  # stored in thousandths
    "ecg_mitbih_DS2_sample.csv.gz": 1000,
    "ecg_ptbdb_normal_sample.csv.gz": 1,
    "ecg_ptbdb_abnormal_sample.csv.gz": 1,
}
raw = np.concatenate(
    [np.loadtxt(data / name, delimiter=",")[:, :187] / scale for name, scale in FILES.items()]
)
is_padding = np.cumsum(raw[:, ::-1], axis=1)[:, ::-1] == 0  # zeros up to the end of the row
resting = np.nanmedian(np.where(is_padding, np.nan, raw), axis=1, keepdims=True)
beats = np.where(is_padding, 0, raw - resting)

levels = np.geomspace(1, 60, 40)
left = np.array([np.count_nonzero(conehoyer.project_cai(beats, level), axis=1) for level in levels])
low, median, high = np.percentile(left, [5, 50, 95], axis=1)
print("One level for all beats: nonzero samples")
print("level   median   5 % of the beats have at most   5 % have at least")
for level in (5, 10, 20, 40):
    kept = np.count_nonzero(conehoyer.project_cai(beats, level), axis=1)
    some = np.percentile(kept, [50, 5, 95])
    print(f"{level:5d}{some[0]:9.0f}{some[1]:32.0f}{some[2]:20.0f}")

# %%
# The other way round, ``level_for_nnz(beats, k)`` gives each beat the level that leaves k samples.

print("A level for each beat: level")
print("k     median   5 %    95 %    most nonzeros of any beat")
for k in (5, 10, 20, 40):
    own = conehoyer.level_for_nnz(beats, k)
    most = np.count_nonzero(conehoyer.project_cai(beats, own), axis=1).max()
    some = np.percentile(own, [50, 5, 95])
    print(f"{k:2d}{some[0]:10.1f}{some[1]:8.1f}{some[2]:8.1f}{most:12d}")

# %%
# Left: the nonzeros at one level for all beats, the median and the range of nine beats in ten. The
# curves flatten because beats that score less than the level are left alone. Right: the share of
# the beats that have at most so many nonzeros, at one level for all and at a level for each. A
# beat has fewer than k where samples of the same magnitude would make it more than k.

common = 10
kept = np.sort(np.count_nonzero(conehoyer.project_cai(beats, common), axis=1))
k = int(np.median(kept))
own = conehoyer.project_cai(beats, conehoyer.level_for_nnz(beats, k))
own = np.sort(np.count_nonzero(own, axis=1))
share = np.arange(1, len(beats) + 1) / len(beats)

fig, (left_ax, right_ax) = plt.subplots(1, 2, figsize=(7.2, 3.8), layout="constrained")
left_ax.fill_between(levels, low, high, color="#B5D6EC", lw=0, label="5 to 95 % of the beats")
left_ax.plot(levels, median, color=COLORS[0], label="median")
left_ax.plot(levels, levels, color="0.45", lw=1, label="nonzeros = level")
left_ax.set(xlabel="level", ylabel="nonzero samples, of 187", xlim=(0, 60), ylim=(0, 215))
left_ax.legend(frameon=False, loc="upper left")
right_ax.step(kept, share, where="post", color=COLORS[0], label=f"level {common} for all")
right_ax.step(own, share, where="post", color=COLORS[1], ls="--", label=f"own level, k = {k}")
right_ax.set(xlabel="nonzero samples", ylabel="share of the beats", xlim=(0, 80), ylim=(0, 1.02))
right_ax.legend(frameon=False, loc="lower right")
for ax in (left_ax, right_ax):
    ax.grid(alpha=0.3)
plt.show()
