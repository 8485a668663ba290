"""
Which columns stay
==================

:func:`~conehoyer.project_bilevel` sets whole columns of a matrix to zero. It takes the norm of
each column, projects the vector of these norms as :func:`~conehoyer.project_cai` does, and then
projects each column onto the ball of its new norm. So, ties for the largest norm aside, a column
stays if and only if its norm is above a threshold. This page shows

- which columns of a matrix of heartbeats stay at which level,
- the same for diagonals and blocks of a square matrix,
- by how much the result exceeds its level, and what ``feasible=True`` does about it.

The beats come from the MIT-BIH Arrhythmia Database; ``data/README.md`` says which beats and whom
to cite.
"""

# %%
# Columns
# -------
# The matrix holds 400 beats with a ventricular ectopic origin, one a row. Its columns are instants
# of time, 8 ms apart, from the R peak on. The median of each beat is subtracted, so that zero is
# the resting line.

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
data = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent / "data"
SAMPLE_MS = 1000 / 125
VENTRICULAR = 2

tables = [
    np.loadtxt(data / f"ecg_mitbih_DS{k}_sample.csv.gz", delimiter=",", dtype=int) for k in (1, 2)
]
table = np.concatenate(tables)
raw = table[table[:, 187] == VENTRICULAR, :187] / 1000
is_padding = np.cumsum(raw[:, ::-1], axis=1)[:, ::-1] == 0  # zeros up to the end of the row
resting = np.nanmedian(np.where(is_padding, np.nan, raw), axis=1, keepdims=True)
beats = np.where(is_padding, 0, raw - resting)
time = np.arange(187) * SAMPLE_MS

# %%
# ``inner="l2"`` takes the Euclidean norm of a column; the default, its largest magnitude, would
# look at a single beat only. At every level the columns above the threshold τ stay. As the level
# falls the threshold rises, so that no column comes back.

norms = np.linalg.norm(beats, axis=0)
levels = np.geomspace(1, conehoyer.hoyer_score(norms), 300)
kept, thresholds = [], []
for level in levels:
    _, info = conehoyer.project_bilevel(beats, level, inner="l2", full_output=True)
    kept.append(info.kept)
    thresholds.append(info.threshold)
kept = np.array(kept)

print(f"{len(beats)} beats, score of the column norms {conehoyer.hoyer_score(norms):.1f} of 187")
print("columns    level   threshold   instants (ms)")
for k in (5, 20, 60):
    level = conehoyer.level_for_groups(beats, k, inner="l2")
    _, info = conehoyer.project_bilevel(beats, level, inner="l2", full_output=True)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], info.kept, [False]]).astype(int)))
    runs = [f"{time[a]:.0f} to {time[b - 1]:.0f}" for a, b in edges.reshape(-1, 2)]
    print(f"{info.kept.sum():7d}{level:9.2f}{info.threshold:12.2f}   {', '.join(runs)}")

# %%
# Above, the beats. In the middle, the norms of the columns with the thresholds of the table.
# Below, for every level, the columns that stay (blue), with the levels of the table. As the level
# rises, the peak at the start comes first, then the slow wave from 100 to 400 ms, last the tail of
# the beat.

shown = [5, 20, 60]
COLORS = ["#C44E00", "#00795A", "#8E3B8A"]
STYLES = ["-", "--", "-."]

fig, (top, middle, bottom) = plt.subplots(
    3, 1, figsize=(7.2, 8), sharex=True, layout="constrained", height_ratios=[1.2, 1, 1]
)
edges = np.arange(188) * SAMPLE_MS - SAMPLE_MS / 2
rows = np.arange(len(beats) + 1)
image = top.pcolormesh(edges, rows, beats, cmap="PuOr_r", vmin=-1, vmax=1, rasterized=True)
top.invert_yaxis()
top.set_ylabel("beat")
fig.colorbar(image, ax=top, label="amplitude\n(range of the beat = 1)")
middle.plot(time, norms, color="black", lw=1.3)
middle.set(ylabel="norm of the column", ylim=0)
bottom.pcolormesh(edges, levels, kept[:-1], cmap="Blues", vmin=0, vmax=1.3)
bottom.set(yscale="log", ylabel="level", xlabel="time after the R peak (ms)", yticks=[1, 10, 100])
bottom.set_yticklabels(["1", "10", "100"])
for k, color, style in zip(shown, COLORS, STYLES, strict=True):
    level = conehoyer.level_for_groups(beats, k, inner="l2")
    _, info = conehoyer.project_bilevel(beats, level, inner="l2", full_output=True)
    line = {"color": color, "ls": style, "lw": 1.5}
    middle.axhline(info.threshold, **line, label=f"{k} columns stay")
    bottom.axhline(level, **line)
middle.legend(frameon=False)
bottom.text(750, 65, "stay", color="white", ha="center", va="center")
bottom.text(750, 1.8, "set to zero", ha="center", va="center")
plt.show()

# %%
# Diagonals and blocks
# --------------------
# ``groups`` says what goes as a whole. The square matrix holds the correlations between the first
# 150 instants, over the 400 beats. Its columns, its diagonals or its blocks of 10 × 10 entries are
# the groups, at levels that keep about a fifth of the entries. What was set to zero is grey. The
# kept groups are scaled, by one factor each.

correlation = np.corrcoef(beats[:, :150], rowvar=False)
wanted = {
    "columns": ("columns", 30),
    "diagonals": ("diagonals", 31),
    "blocks": ((10, 10), 45),
}
pictures = {"the matrix": np.ma.array(correlation)}
print("groups            kept of   entries kept   relative error")
for name, (groups, k) in wanted.items():
    kind = {"groups": groups, "inner": "l2"}
    level = conehoyer.level_for_groups(correlation, k, **kind)
    x, info = conehoyer.project_bilevel(correlation, level, **kind, full_output=True)
    mask = np.broadcast_to(info.mask, x.shape)
    error = np.linalg.norm(x - correlation) / np.linalg.norm(correlation)
    print(f"{name:16}{info.kept.sum():6d}{info.kept.size:5d}{mask.mean():13.1%}{error:17.3f}")
    pictures[f"{info.kept.sum()} of {info.kept.size} {name}"] = np.ma.array(x, mask=~mask)

fig, axes = plt.subplots(2, 2, figsize=(7.2, 6.6), sharex=True, sharey=True, layout="constrained")
colours = plt.get_cmap("PuOr_r").with_extremes(bad="0.82")
for ax, (name, picture) in zip(axes.flat, pictures.items(), strict=True):
    extent = np.array([-0.5, 149.5, 149.5, -0.5]) * SAMPLE_MS
    image = ax.imshow(picture, cmap=colours, vmin=-1, vmax=1, extent=extent, interpolation="none")
    ax.set_title(name)
for ax in axes[1]:
    ax.set_xlabel("time (ms)")
for ax in axes[:, 0]:
    ax.set_ylabel("time (ms)")
fig.colorbar(image, ax=axes, shrink=0.6, label="correlation")
plt.show()

# %%
# The level of the result
# -----------------------
# Let v be the norms of the columns and u their projection. A column is projected onto the ball of
# radius u, which makes it shorter or leaves it alone, but never longer. Where u is larger than v,
# which is the case for the largest columns, the norm stays v. So the norms of the result are min(u,
# v), and their score is above the level. With ``feasible=True`` all u are multiplied by the
# factor that makes them fit below v: the same columns stay, the level holds, and the error is
# larger.

k = 60
level = conehoyer.level_for_groups(beats, k, inner="l2")
radii, reached = {}, {}
for feasible in (False, True):
    x, info = conehoyer.project_bilevel(
        beats, level, inner="l2", feasible=feasible, full_output=True
    )
    radii[feasible] = info.radii
    reached[feasible] = np.linalg.norm(x, axis=0)
print(f"{k} columns, level {level:.2f}")
print(f"score of u: {conehoyer.hoyer_score(radii[False]):.2f}", end="")
print(f", u > v in {np.count_nonzero(radii[False] > norms)} columns")

counts = [2, 3, 5, 7, 10, 14, 20, 28, 40, 60, 80, 110, 140, 170]
score, error = {}, {}
for feasible in (False, True):
    for count in counts:
        own = conehoyer.level_for_groups(beats, count, inner="l2")
        x = conehoyer.project_bilevel(beats, own, inner="l2", feasible=feasible)
        score[feasible, count] = conehoyer.hoyer_score(np.linalg.norm(x, axis=0)) / own
        error[feasible, count] = np.linalg.norm(x - beats) / np.linalg.norm(beats)
print("          score / level          relative error")
print("columns   printed   feasible     printed   feasible")
for count in (5, 20, 60, 140):
    print(f"{count:7d}{score[False, count]:10.3f}{score[True, count]:11.3f}", end="")
    print(f"{error[False, count]:12.3f}{error[True, count]:11.3f}")

# %%
# Left, the norms of the largest columns in decreasing order. Right, the score of the result for
# other numbers of columns. "As printed" is the default, Algorithm 3 of the paper [1]_, though with
# the Euclidean norm, where the paper has the largest magnitude.
#
# .. [1] Anonymous, *A fast and scalable extended Hoyer projection for structured neural network
#    sparsity*, under review.

BLUE, ORANGE = "#0072B2", "#C44E00"
order = np.argsort(-norms)[: k + 15]
rank = np.arange(1, order.size + 1)

fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.8), layout="constrained")
left.plot(rank, norms[order], color="0.6", lw=4, label="v, of the matrix")
left.plot(rank, radii[False][order], color=BLUE, lw=1.5, label="u")
left.plot(rank, radii[True][order], color=ORANGE, lw=1.5, ls="--", label="u, feasible")
left.set(xlabel="column, by size", ylabel="norm", ylim=0, xlim=(0, order.size))
for feasible, name, color, style in [
    (False, "as printed", BLUE, "-"),
    (True, "feasible", ORANGE, "--"),
]:
    values = [score[feasible, count] for count in counts]
    right.plot(counts, values, color=color, ls=style, marker=".", label=name)
right.set(xlabel="columns kept, of 187", ylabel="score of the result / level", ylim=(0.95, None))
for ax in (left, right):
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
plt.show()
