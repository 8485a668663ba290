"""
The interpolation
=================

The projection onto the CAI cone takes place in a plane: the one that holds the point and the
diagonal of the entries that stay. This page draws that plane from real projections and computes its
numbers. It is the subject of Figure 1 of the paper, "2D illustration of the interpolation" [1]_.
The same point and cone in space are in :ref:`sphx_glr_auto_examples_plot_cone_3d.py`.

The Hoyer score of x is :math:`H(x) = (‖x‖_1/‖x‖_2)^2`, with the sum of the magnitudes above and
the Euclidean norm below, and the level l is the bound on it.

.. [1] Anonymous, *A fast and scalable extended Hoyer projection for structured neural network
   sparsity*, under review.
"""

# %%
# Why a plane
# -----------
# Take y ≥ 0 with H(y) > l, and let ν be the number of entries that the projection keeps. Among
# these entries let m be the mean of y, and d = (m, …, m) the point of the diagonal with the
# same sum. On the line through d and y,
#
# .. math:: z = λ\,y + (1 − λ)\,d ,
#
# all points have the same sum, and z has the score l for
#
# .. math:: λ = \sqrt{\frac{H(y)\,(ν − l)}{l\,(ν − H(y))}}
#
# (equation 11 of the paper), where H(y) is taken over the ν entries. As H(y) > l, this λ is
# larger than 1: z lies beyond y, away from the diagonal, so that strictly speaking this is an
# extrapolation. The entries of z are λ (y − τ) with τ = (1 − 1/λ) m. That is the soft threshold.
#
# What is left is the length. The projection x is the point nearest to y on the ray through z, so
# ‖x‖₂² = ⟨x, y⟩ (equation 5).

import matplotlib.pyplot as plt
import numpy as np

import conehoyer


def interpolation(y, level):
    """The points of the construction, λ and τ, from the threshold of a real projection."""
    x, info = conehoyer.project_cai(y, level, full_output=True)
    kept = x > 0
    mean = y[kept].mean()
    factor = 1 / (1 - info.threshold / mean)  # λ
    inside, d = np.where(kept, y, 0), np.where(kept, mean, 0)
    points = {"d": d, "y": inside, "z": factor * inside + (1 - factor) * d, "x": x}
    return points, factor, info.threshold


def formula(y, level):
    """The interpolation coefficient λ by equation 11, for a y with positive entries only."""
    score = conehoyer.hoyer_score(y)
    return np.sqrt(score * (y.size - level) / (level * (y.size - score)))


y = np.array([3.0, 2.2, 1.4])  # the point of that page
levels = [2.0, 1.5]
print(f"y = {y}, H(y) = {conehoyer.hoyer_score(y):.3f}")
for level in levels:
    points, factor, threshold = interpolation(y, level)
    kept = points["x"] > 0
    print(f"\nLevel {level}: {kept.sum()} entries stay")
    for name, point in points.items():
        print(f"    {name} = [{point[0]:.4f}, {point[1]:.4f}, {point[2]:.4f}]", end="")
        print(f"   H = {conehoyer.hoyer_score(point):.4f}   sum = {point.sum():.4f}")
    print(f"    τ = {threshold:.6f}, so λ = {factor:.6f}", end="")
    print(f"; by equation 11 λ = {formula(y[kept], level):.6f}")
    x = points["x"]
    print(f"    ⟨x, y⟩ = {x @ y:.6f}, ‖x‖₂² = {x @ x:.6f}")

# %%
# Which entries stay
# ------------------
# At the lower level the third entry is missing. With all three entries the formula gives a
# threshold above y₃, and z has a negative entry: the ray leaves the octant before it reaches the
# level. So the entry is dropped and λ taken anew over the others. Dropping what is below the
# threshold until nothing more falls is Algorithm 2 of the paper. The interpolation has to be
# done only once, at the end.

level, kept = levels[-1], np.full(y.size, True)
while True:
    factor = formula(y[kept], level)
    z = factor * y[kept] + (1 - factor) * y[kept].mean()
    threshold = (1 - 1 / factor) * y[kept].mean()
    print(f"ν = {kept.sum()}: λ = {factor:.4f}, τ = {threshold:.4f}, z = {z.round(4)}")
    if (y[kept] > threshold).all():
        break
    kept &= y > threshold

# %%
# The figure
# ----------
# Both planes are drawn to scale, for the same y. Upwards is the diagonal of the ν entries, to the
# right the direction from d to y. In the blue wedge the score is at most l and no entry is
# negative; the cone's surface has the angle δ with the diagonal, cos² δ = l/ν. At the lower level
# y stands for the point without its third entry, in whose plane the ray lies.

BLUE, ORANGE, GREEN, PURPLE = "#B5D6EC", "#C44E00", "#00795A", "#8E3B8A"
LOOK = {  # marker, colour, place of the label in points
    "d": ("P", "0.25", (-14, -4)),
    "y": ("o", "black", (-3, 8)),
    "z": ("D", PURPLE, (-11, 8)),
    "x": ("s", GREEN, (9, -8)),
}


def drawn_plane(ax, level):
    """Draw the construction for one level."""
    points, factor, _ = interpolation(y, level)
    kept = points["x"] > 0
    nu = kept.sum()
    diagonal = kept / np.sqrt(nu)
    across = points["y"] - points["d"]
    across /= np.linalg.norm(across)
    at = {name: np.array([point @ across, point @ diagonal]) for name, point in points.items()}

    top = 4.6
    slope = np.sqrt(nu / level - 1)  # tan δ
    limit = 1 / (np.sqrt(nu) * -across[kept].min())  # beyond, an entry is negative
    ax.fill([0, slope * top, limit * top], [0, top, top], color=BLUE, lw=0)
    ax.plot([0, limit * top], [0, top], color="0.6", lw=0.8)
    ax.plot([0, slope * top], [0, top], color=ORANGE, lw=1.8)
    ax.plot([0, -slope * top], [0, top], color=ORANGE, lw=1.8)
    ax.plot([0, 0], [0, top], color="0.2", ls=(0, (4, 3)), lw=1)
    ax.plot(*np.transpose([at["d"], at["z"]]), color="0.2", lw=1)
    ax.plot(*np.transpose([at["y"], at["x"]]), color="black", lw=1.3)

    toward, back = -at["x"] / np.linalg.norm(at["x"]), at["y"] - at["x"]
    back /= np.linalg.norm(back)
    corner = [at["x"] + 0.16 * v for v in (toward, toward + back, back)]
    ax.plot(*np.transpose(corner), color="black", lw=0.9)  # the right angle at x
    turn = np.linspace(0, np.arctan(slope))
    ax.plot(1.1 * np.sin(turn), 1.1 * np.cos(turn), color=ORANGE, lw=1)
    ax.text(1.28 * np.sin(turn[25]), 1.28 * np.cos(turn[25]), "δ", color=ORANGE, ha="center")
    ax.text(-0.85, 0.3, "H = l", color=ORANGE)
    for name, (marker, color, offset) in LOOK.items():
        ax.plot(*at[name], marker, color=color, ms=6)
        ax.annotate(name, at[name], offset, textcoords="offset points", color=color, fontsize=12)
    ax.set(xlim=(-0.9, 3.4), ylim=(0, top), aspect="equal")
    ax.set_title(f"level {level}, ν = {nu}: λ = {factor:.2f}")
    ax.set_xlabel("away from the diagonal")


fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.6), sharey=True, layout="constrained")
for ax, level in zip(axes, levels, strict=True):
    drawn_plane(ax, level)
axes[0].set_ylabel("along the diagonal, Σx / √ν")
plt.show()
