"""
CAI paper, Table 1: three scores compared
=========================================

Table 1 of the CAI paper (Anonymous, *A fast and scalable extended Hoyer projection for
structured neural network sparsity*, under review) says how its projection differs from
Hoyer's and from the group sparse projection (GSP):

==============================  ======================  =======  =======
property                        CAI                     Hoyer    GSP
==============================  ======================  =======  =======
convex Lorentz cone geometry    yes                     no       no
ratio norm constraint           no                      yes      yes
iterative algorithm             no (closed form)        yes      yes
==============================  ======================  =======  =======

This example checks each of the nine entries by code. Run as a script, it prints three
tables and the verdict and writes a figure: ``plot_paper_scores.py --output scores.png``.
"""

# %%
# Row 1: convex?
# --------------
# Every score divides the vectors at a level: the *dense* side, near the diagonal,
# and the *sparse* side, where a projection has to go. A set is not convex if it
# holds two points but not the point midway. The code draws pairs at random and looks for
# such a case. One is a proof; none in many thousand pairs is only a hint, and the proof
# is on :ref:`theory-cai-paper`.

import argparse
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="Three scores compared.")
parser.add_argument("-o", "--output", default="paper_scores.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])
here = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent
sys.path.insert(0, str(here.parent / "asv_benchmarks"))

from benchmarks import counting  # noqa: E402

PAPER = {
    "convex": {"CAI": "yes", "Hoyer": "no", "GSP": "no"},
    "ratio of norms": {"CAI": "no", "Hoyer": "yes", "GSP": "yes"},
    "iterative": {"CAI": "no", "Hoyer": "yes", "GSP": "yes"},
}
LEVEL = 2.0  # of vectors of three entries, for the CAI and Hoyer's score
SPARSENESS = 0.6  # the mean of two vectors of three entries, for GSP


def gsp(x):
    """GSP score of many pairs of vectors, one pair in the last two axes."""
    return conehoyer.hoyer_sparseness(x, axis=-1).mean(axis=-1)


def signed(shape, rng):
    """Random vectors with signs: sparse ones, and others closer to the diagonal."""
    return rng.standard_normal(shape) ** 3 + 2.0 * rng.standard_normal((*shape[:-1], 1))


def half(shape, rng):
    """The same on the side of the diagonal where the sum is positive."""
    x = signed(shape, rng)
    return x * np.sign(x.sum(axis=-1, keepdims=True))


def orthant(shape, rng):
    """The same without signs."""
    return np.abs(signed(shape, rng))


VECTOR, PAIR = (3,), (2, 3)
SETS = {  # a function that is not negative in the set, the shape of a point, how to draw it
    ("CAI", "dense", "positive sum"): (lambda x: conehoyer.cai_score(x) - LEVEL, VECTOR, half),
    ("CAI", "dense", "nonnegative"): (lambda x: conehoyer.cai_score(x) - LEVEL, VECTOR, orthant),
    ("CAI", "sparse", "nonnegative"): (lambda x: LEVEL - conehoyer.cai_score(x), VECTOR, orthant),
    ("Hoyer", "dense", "any signs"): (lambda x: conehoyer.hoyer_score(x) - LEVEL, VECTOR, signed),
    ("Hoyer", "dense", "nonnegative"): (
        lambda x: conehoyer.hoyer_score(x) - LEVEL, VECTOR, orthant,
    ),
    ("Hoyer", "sparse", "nonnegative"): (
        lambda x: LEVEL - conehoyer.hoyer_score(x), VECTOR, orthant,
    ),
    ("GSP", "dense", "nonnegative"): (lambda x: SPARSENESS - gsp(x), PAIR, orthant),
    ("GSP", "sparse", "nonnegative"): (lambda x: gsp(x) - SPARSENESS, PAIR, orthant),
}  # fmt: skip
DRAWN = 200_000

convex = {}
print(f"Of {DRAWN:,} pairs of vectors: pairs in the set, and those with their middle outside")
print(f"{'score':8}{'side':9}{'vectors':15}{'pairs':>9}{'middle outside':>16}")
for (score, side, region), (margin, shape, draw) in SETS.items():
    rng = np.random.default_rng(0)
    first, second = (draw((DRAWN, *shape), rng) for _ in range(2))
    inside = (margin(first) >= 0.0) & (margin(second) >= 0.0)
    outside = margin(0.5 * (first[inside] + second[inside])) < -1e-9
    convex[score, side, region] = not outside.any()
    print(f"{score:8}{side:9}{region:15}{inside.sum():9,}{outside.sum():16,}")

# %%
# The dense side of the CAI is convex, as the paper says: one half of a circular cone, whose
# angle to the diagonal is at most arccos √(level/n). But the projection goes to the sparse
# side, which is not convex: (1, 0, 0), (0, 1, 0) and (0, 0, 1) are in it, and their mean, of
# score 3, is not. Also, the algorithm takes absolute values first, and among nonnegative vectors
# the CAI and Hoyer's score are the same function; what holds for one holds for the other.
# With signs, Hoyer's dense side is not convex. For GSP, the score of several vectors at
# once, neither side is convex, with signs or without.

rng = np.random.default_rng(0)
x = orthant((1000, 5), rng)
same = np.abs(conehoyer.cai_score(x) - conehoyer.hoyer_score(x)).max()
angle = np.arccos(x.sum(axis=-1) / (np.linalg.norm(x, axis=-1) * np.sqrt(5)))
cone = np.abs(angle - np.arccos(np.sqrt(conehoyer.cai_score(x) / 5))).max()
print()
print(f"CAI less Hoyer score of 1,000 nonnegative vectors: at most {same:.0e}")
print(f"Angle to the diagonal less arccos √(CAI/n): at most {cone:.0e}")

# %%
# Row 2: a ratio of norms?
# ------------------------
# With signs, the CAI is none: a sum is not a norm, it is zero for (1, −1). On the absolute
# values, where the algorithm works, the CAI is (‖x‖₁/‖x‖₂)², and ``project_cai`` bounds
# that.
#
# GSP is a mean of such ratios. But the paper's equation (4), Σ (√n_i − ‖x_i‖₁)/(√n_i − 1),
# lacks the division by ‖x_i‖₂ and by the number of vectors: it changes with the scale of
# the data, which no ratio of norms does.

x = rng.standard_normal((4, 6))
n = x.shape[-1]
ones, twos = np.abs(x).sum(axis=-1), np.linalg.norm(x, axis=-1)


def printed(x):
    """Equation (4) of the paper."""
    return np.sum((np.sqrt(n) - np.abs(x).sum(axis=-1)) / (np.sqrt(n) - 1.0))


is_ratio = {
    "CAI": np.allclose(conehoyer.cai_score(np.abs(x)), (ones / twos) ** 2),
    "Hoyer": np.allclose(conehoyer.hoyer_score(x), (ones / twos) ** 2),
    "GSP": np.isclose(
        conehoyer.gsp_score(x), np.mean((np.sqrt(n) - ones / twos) / (np.sqrt(n) - 1.0))
    ),
}
print()
print(f"CAI of (1, -1), with signs: {conehoyer.cai_score(np.array([1.0, -1.0])):.1f}")
print(f"{'':22}{'x':>9}{'10 x':>9}")
print(f"{'GSP':22}{conehoyer.gsp_score(x):9.3f}{conehoyer.gsp_score(10 * x):9.3f}")
print(f"{'equation (4)':22}{printed(x):9.3f}{printed(10 * x):9.3f}")

# %%
# Row 3: iterative?
# -----------------
# "Closed form" is the formula for the threshold once the nonzeros are known. To find them,
# Algorithm 2 has a loop, and so has every fast method here. On the other hand, neither the
# CAI nor Hoyer's projection needs one: sort the magnitudes, and running sums give the
# threshold for each number of nonzeros, one of which fits. So to be iterative is a
# property of an algorithm, not of a score, and the two projections have the same
# threshold. In GSP several vectors share one multiplier, which the library finds by
# Newton's method.


def sorted_threshold(a, level):
    """The threshold τ at which max(a − τ, 0) has the score `level`, without a loop."""
    b = np.sort(a)[::-1]
    nu = np.arange(1, b.size + 1)
    mean = np.cumsum(b) / nu
    variance = np.cumsum(b * b) / nu - mean**2
    few = nu <= level  # too few nonzeros for this level
    tau = np.where(few, np.inf, mean - np.sqrt(level * variance / np.where(few, 1.0, nu - level)))
    fits = (b > tau) & (tau >= np.append(b[1:], -np.inf))
    return tau[fits][0]


n = 1000
y = rng.standard_normal(n)
level = 100.0
sparseness = float((np.sqrt(n) - np.sqrt(level)) / (np.sqrt(n) - 1.0))
_, literal = counting.cfp(y, level)
_, cai = conehoyer.project_cai(y, level, full_output=True)
_, hoyer = conehoyer.project_hoyer(y, sparseness, full_output=True)
_, classic = conehoyer.project_hoyer(y, sparseness, method="alternating", full_output=True)
_, group = conehoyer.project_gsp(y.reshape(10, -1), 0.7, full_output=True)
tau = sorted_threshold(np.abs(y), level)
print()
print(f"One vector of {n:,} entries, level {level:g}; for GSP 10 of {n // 10}")
print(f"{'projection':14}{'algorithm':34}{'loops':>6}{'threshold':>11}")
for projection, algorithm, loops, threshold in (
    ("CAI", "Algorithm 2 of the paper", literal.rounds, ""),
    ("CAI", "the library's default", cai.passes, f"{cai.threshold:.6f}"),
    ("Hoyer", "the library's default", hoyer.passes, f"{hoyer.threshold:.6f}"),
    ("Hoyer", "alternating", classic.passes, f"{classic.threshold:.6f}"),
    ("CAI, Hoyer", "sorting and running sums", 0, f"{tau:.6f}"),
    ("GSP", "the library's: Newton's method", group.passes, ""),
):
    print(f"{projection:14}{algorithm:34}{loops:6}{threshold:>11}")
needs_loop = {
    "CAI": not np.isclose(tau, cai.threshold),
    "Hoyer": not np.isclose(tau, hoyer.threshold),
    "GSP": group.passes > 1,  # as it is implemented here
}

# %%
# The verdict
# -----------
# On the vectors that the algorithms see, those without signs, the CAI and Hoyer's score
# are one and the same in all three rows, so the rows do not tell them apart. The column
# for GSP stands.

found = {
    "convex": {name: convex[name, "dense", "nonnegative"] for name in PAPER["convex"]},
    "ratio of norms": is_ratio,
    "iterative": needs_loop,
}
print()
print("Nonnegative vectors: the paper -> here (convex: the dense side)")
print(f"{'':16}" + "".join(f"{name:>14}" for name in PAPER["convex"]))
for row, entries in PAPER.items():
    print(f"{row:16}", end="")
    for name, said in entries.items():
        verdict = f"{said} -> {'yes' if found[row][name] else 'no'}"
        print(f"{verdict:>14}", end="")
    print()

# %%
# Figure
# ------
# The dense side of each score is shaded. Left and middle, the plane of two entries. Right, a
# plane among the pairs of vectors with 25 entries: along each axis one of the two goes
# from a constant vector (0) to a single nonzero entry (1). Two dots are points of the set,
# the mark between them is their middle: a cross where it is outside.


def pair(s, t, n=25):
    """Two vectors, each between the constant one (0) and one nonzero entry (1)."""
    one, constant = np.eye(n)[0], np.full(n, 1.0 / n)
    vectors = [np.multiply.outer(u, one) + np.multiply.outer(1.0 - u, constant) for u in (s, t)]
    return np.stack(vectors, axis=-2)


grid = np.linspace(-1.0, 1.0, 400)
u, v = np.meshgrid(grid, grid)
plane = np.stack([u, v], axis=-1)
s, t = np.meshgrid(np.linspace(0.0, 1.0, 400), np.linspace(0.0, 1.0, 400))
PLANE_LEVEL = 1.5
panels = {
    "CAI: either half is convex": (
        u, v, conehoyer.cai_score(plane) - PLANE_LEVEL, (0.9, 0.3), (0.3, 0.9),
    ),
    "Hoyer: not convex with signs": (
        u, v, conehoyer.hoyer_score(plane) - PLANE_LEVEL, (0.9, 0.4), (0.9, -0.4),
    ),
    "GSP: not convex, signs or not": (
        s, t, SPARSENESS - gsp(pair(s, t)), (0.95, 0.04), (0.04, 0.95),
    ),
}  # fmt: skip
fig, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained")
for ax, (title, (horizontal, vertical, margin, first, second)) in zip(
    axes, panels.items(), strict=True
):
    ax.contourf(horizontal, vertical, margin, [0.0, np.inf], colors=["#56B4E9"], alpha=0.5)
    ax.contour(horizontal, vertical, margin, [0.0], colors=["#0072B2"])
    middle = 0.5 * np.add(first, second)
    i = np.argmin(np.abs(horizontal[0] - middle[0]))
    j = np.argmin(np.abs(vertical[:, 0] - middle[1]))
    ax.plot(*zip(first, second, strict=True), "o-", color="black")
    ax.plot(*middle, "o" if margin[j, i] >= 0.0 else "X", color="#D55E00", ms=9)
    ax.set(title=title, aspect="equal")
for ax in axes[:2]:
    ax.set(xlabel="first entry", ylabel="second entry")
axes[2].set(xlabel="sparser first vector →", ylabel="sparser second vector →")

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
