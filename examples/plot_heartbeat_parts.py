"""
Parts of heartbeats
===================

A matrix of heartbeats, one a row, has structure in both directions. This example

- factorises it with :func:`~conehoyer.nmf_hals` into a few curves (parts) and how
  much of each part a beat has, with dense and with sparse parts,
- keeps whole columns of it, that is instants of time, by
  :func:`~conehoyer.project_bilevel` and :func:`~conehoyer.project_l1inf_ball`, and
  compares the errors at the same number of columns.

The beats come from the MIT-BIH Arrhythmia Database and from the PTB Diagnostic ECG
Database; ``data/README.md`` says which beats and whom to cite. Run as a script, it
prints two tables and writes a figure: ``plot_heartbeat_parts.py --output parts.png``.
"""

# %%
# The beats
# ---------
# A row holds 187 samples at 125 Hz, min-max scaled to [0, 1]: nonnegative, as the
# factorisation needs them.

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="Parts of heartbeats.")
parser.add_argument("-o", "--output", default="heartbeat_parts.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])
data = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent / "data"

SAMPLE_MS = 1000 / 125
FILES = {
    "ecg_mitbih_DS1_sample.csv.gz": 1000,  # stored in thousandths
    "ecg_mitbih_DS2_sample.csv.gz": 1000,
    "ecg_ptbdb_normal_sample.csv.gz": 1,
    "ecg_ptbdb_abnormal_sample.csv.gz": 1,
}
beats = np.concatenate(
    [np.loadtxt(data / name, delimiter=",")[:, :187] / scale for name, scale in FILES.items()]
)
norm = np.linalg.norm(beats)
print(f"{len(beats):,} beats of {beats.shape[1]} samples")

# %%
# Parts
# -----
# ``beats ≈ W @ H`` with nonnegative factors: the rows of H are the parts. A level for
# H bounds the Hoyer score of each part, its effective number of samples, so that a part
# lives in a shorter stretch of the beat. The error grows a little; in return the parts
# overlap less: the last column is the mean cosine of the angle between two of them. Too low
# a level leaves stretches of the beat to no part at all.

RANK = 6
levels = {"dense": None, "score at most 40": 40.0, "score at most 25": 25.0}
parts = {}
print()
print(f"Factorisation into {RANK} parts")
print(f"{'parts':18}{'error':>8}{'Hoyer score of a part':>24}{'iterations':>12}{'overlap':>10}")
for name, level in levels.items():
    result = conehoyer.nmf_hals(beats, RANK, level_h=level, max_iter=300, tol=0.0, rng=0)
    parts[name] = result.H
    score = conehoyer.hoyer_score(result.H).mean()
    units = result.H / np.linalg.norm(result.H, axis=1, keepdims=True)
    overlap = (units @ units.T)[np.triu_indices(RANK, 1)].mean()
    print(f"{name:18}{result.error / norm:8.3f}{score:24.1f}{result.n_iter:12d}{overlap:10.3f}")

# %%
# Columns
# -------
# Which instants matter? The columns of the matrix with the median beat subtracted are
# groups; a projection keeps k of them and clips or shrinks their entries. Four ways to
# the same k:
#
# - the CAI bilevel projection, whose printed form exceeds its level a little;
# - the same with ``feasible=True``, which holds it;
# - the bilevel projection with the l1 norm outside;
# - the nearest point of the ℓ1,∞ ball, which clips every kept column by the same sum.
#
# Keeping the k columns with the largest norms unchanged is the least error that k
# columns can have.

moves = beats - np.median(beats, axis=0)
tops = np.sort(np.abs(moves).max(axis=0))[::-1]


def exactly(k):
    """The exact ℓ1,∞ projection with k columns: its radius by bisection."""
    low, high = 0.0, tops.sum()
    for _ in range(60):
        middle = 0.5 * (low + high)
        x = conehoyer.project_l1inf_ball(moves, middle)
        kept = np.count_nonzero(x.any(axis=0))
        if kept <= k:
            low, best = middle, x
        else:
            high = middle
    return best


ways = {
    "CAI": lambda k: conehoyer.project_bilevel(moves, conehoyer.level_for_groups(moves, k)),
    "CAI, feasible": lambda k: conehoyer.project_bilevel(
        moves, conehoyer.level_for_groups(moves, k), feasible=True
    ),
    "l1 bilevel": lambda k: conehoyer.project_bilevel(
        moves, radius=np.maximum(tops - tops[k], 0).sum()
    ),
    "exact l1,inf": exactly,
    "k largest": lambda k: np.where(
        np.argsort(np.argsort(-np.linalg.norm(moves, axis=0))) < k, moves, 0
    ),
}
ks = [5, 10, 20, 40, 80, 120, 160]
error = {way: [] for way in ways}
print()
print("Relative error at k of 187 columns")
print(f"{'k':>4}" + "".join(f"{way:>15}" for way in ways))
for k in ks:
    for way, project in ways.items():
        x = project(k)
        assert np.count_nonzero(x.any(axis=0)) <= k
        error[way].append(np.linalg.norm(x - moves) / np.linalg.norm(moves))
    print(f"{k:4d}" + "".join(f"{error[way][-1]:15.3f}" for way in ways))

# %%
# Figure
# ------

fig, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
time = np.arange(beats.shape[1]) * SAMPLE_MS
for ax, (name, h) in zip(axes.flat, parts.items(), strict=False):
    scaled = h / h.max(axis=1, keepdims=True)
    for row in scaled[np.argsort(np.argmax(scaled, axis=1))]:
        ax.plot(time, row)
    ax.set(title=f"{RANK} parts, {name}", xlabel="time (ms)", ylabel="part (largest value = 1)")

ax = axes[1, 1]
styles = {"CAI": "-", "CAI, feasible": "--", "l1 bilevel": "-.", "exact l1,inf": ":"}
for way in ways:
    bound = way == "k largest"
    ax.plot(
        ks,
        error[way],
        styles.get(way, ":"),
        color="0.45" if bound else None,
        marker=".",
        label="k columns unchanged (bound)" if bound else way,
    )
ax.set(title="Whole columns kept", xlabel="columns k, of 187", ylabel="relative error")
ax.set_ylim(0, 1)
ax.grid(alpha=0.3)
ax.legend(frameon=False)

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
