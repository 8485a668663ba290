"""
CAI paper, Figure 4: the norms of two solutions
===============================================

The CAI paper (Anonymous, *A fast and scalable extended Hoyer projection for structured
neural network sparsity*, under review) compares in its Figure 4 the norm of the solution
of its closed-form projection with that of Hoyer's original projection. The two are
"slightly different", it says, because "the original constraint is a ratio of norms while
it is not for the Cone Alignment Index (CAI) constraint".

They do differ, but for another reason. This example measures by how much, for Gaussian and
for uniform data. Run as a script, it prints two tables and writes a figure:
``plot_paper_norms.py --output norms.png``.
"""

# %%
# Why they differ
# ---------------
# The paper's algorithm takes the absolute values of the data first, and on nonnegative
# vectors the CAI is (‖x‖₁/‖x‖₂)², the square of Hoyer's ratio. So both constraints are on the
# same ratio, and both solutions are the same soft threshold: equal in their nonzeros
# and in their proportions (:ref:`theory-same-direction`). Only the length is another.
#
# - :func:`~conehoyer.project_cai` takes the nearest point, which is the foot of the
#   perpendicular from y on that direction: ‖x‖₂ = ‖y‖₂·cos θ, where θ is the angle
#   between y and x.
# - :func:`~conehoyer.project_hoyer` prescribes the length, by default that of y:
#   ‖x‖₂ = ‖y‖₂.
#
# The relative norm of the two solutions is therefore cos θ, exactly, and their distance
# 1 − cos θ, relative to ‖y‖₂. Neither depends on the algorithm: Hoyer's alternating
# one ends at the same point as the direct one.

import argparse
import sys

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="The norms of two solutions.")
parser.add_argument("-o", "--output", default="paper_norms.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])

DATA = {
    "Gaussian": lambda n: np.random.default_rng(0).standard_normal(n),
    "uniform": lambda n: np.random.default_rng(0).uniform(-1.0, 1.0, n),
}
norm = np.linalg.norm


def solutions(y, level, method="cfp"):
    """The CAI projection of y, and Hoyer's with the same ratio of norms."""
    l2 = norm(y)
    hoyer = conehoyer.project_hoyer(y, l1=np.sqrt(level) * l2, l2=l2, method=method)
    return conehoyer.project_cai(y, level), hoyer


def cosine(x, y):
    """The cosine of the angle between two vectors."""
    return x @ y / (norm(x) * norm(y))


# %%
# Relative norms
# --------------
# ``cai / hoyer`` is the ratio of the norms. The next three columns are differences that
# should vanish: that ratio less cos θ, the two directions, and the two algorithms for
# Hoyer's projection. The last two are the errors, ‖x − y‖₂/‖y‖₂, of either solution.

print(f"{'data':9}{'n':>10}{'kept':>7}{'cai / hoyer':>13}{'- cos θ':>10}{'directions':>12}", end="")
print(f"{'algorithms':>12}{'error cai':>11}{'error hoyer':>13}")
for name, draw in DATA.items():
    for n in (1_000, 100_000):
        for share in (0.9, 0.5, 0.1, 0.01):
            y = draw(n)
            level = conehoyer.level_for_nnz(y, round(share * n))
            cai, hoyer = solutions(y, level)
            _, alternating = solutions(y, level, method="alternating")
            ratio = norm(cai) / norm(hoyer)
            print(
                f"{name:9}{n:10,}{share:7.0%}{ratio:13.3f}{abs(ratio - cosine(cai, y)):10.0e}"
                f"{norm(cai / norm(cai) - hoyer / norm(hoyer)):12.0e}"
                f"{norm(alternating - hoyer) / norm(hoyer):12.0e}"
                f"{norm(cai - y) / norm(y):11.3f}{norm(hoyer - y) / norm(y):13.3f}"
            )

# %%
# So the norms agree well while most entries are kept, and part where few are. Of the two, the CAI
# solution is always the nearer one: it is the foot of the perpendicular.
#
# Levels that the data satisfy already
# ------------------------------------
# There is a second difference. Hoyer's constraint is an equality, the CAI level a bound.
# Data whose score is below the level are left alone by :func:`~conehoyer.project_cai`,
# while :func:`~conehoyer.project_hoyer` makes them denser. (So would the paper's Algorithm 2
# as printed, which does not ask whether the data satisfy the level:
# :ref:`theory-cai-paper`.)

n = 10_000
relative_levels = np.concatenate([np.geomspace(0.01, 1.0, 40), np.linspace(1.0, 1.3, 12)[1:]])
curves = {}
for name, draw in DATA.items():
    y = draw(n)
    score = conehoyer.hoyer_score(y)
    rows = []
    for relative in relative_levels[relative_levels * score <= n]:
        cai, hoyer = solutions(y, relative * score)
        rows.append(
            [relative, norm(cai) / norm(hoyer), *(norm(x - y) / norm(y) for x in (cai, hoyer))]
        )
    curves[name] = np.array(rows).T

print()
print(f"Errors where the level is at or above the score of the data, n = {n:,}")
print(f"{'data':9}{'level / score':>15}{'cai':>8}{'hoyer':>8}")
for name, (relative, _, error_cai, error_hoyer) in curves.items():
    for i in np.flatnonzero(relative >= 1.0)[::4]:
        print(f"{name:9}{relative[i]:15.2f}{error_cai[i]:8.3f}{error_hoyer[i]:8.3f}")

# %%
# Figure
# ------
# Left, the relative norm, the paper's Figure 4, over the level. Right, how far either solution
# is from the data.

COLORS = {"Gaussian": "#0072B2", "uniform": "#D55E00"}
fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), sharex=True, layout="constrained")
for name, (relative, ratio, error_cai, error_hoyer) in curves.items():
    left.plot(relative, ratio, color=COLORS[name], label=name)
    right.plot(relative, error_cai, color=COLORS[name], label=f"CAI, {name}")
    right.plot(relative, error_hoyer, "--", color=COLORS[name], label=f"Hoyer, {name}")
for ax in (left, right):
    ax.axvline(1.0, color="0.6", lw=1)
    ax.set(xscale="log", xlabel="level / Hoyer score of the data")
    ax.grid(alpha=0.3)
left.set_ylabel("norm of the CAI solution / norm of Hoyer's")
left.set_ylim(0, 1.05)
left.annotate("data meet the level →", (1.0, 0.06), (-5, 0), textcoords="offset points", ha="right")
right.set_ylabel("distance from the data / norm of the data")
right.set_ylim(0, 1.4)
left.legend(frameon=False)
right.legend(frameon=False)

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
