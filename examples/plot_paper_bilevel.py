"""
CAI paper, Figure 3: operations of the bilevel projection
=========================================================

The bilevel projection sets whole columns of a matrix to zero
(:func:`~conehoyer.project_bilevel`). The CAI paper (Anonymous, *A fast and scalable
extended Hoyer projection for structured neural network sparsity*, under review) gives its
cost for an m × m matrix as::

    m(m − 1) + K·m + m      operations, with K = 6

that is m² in round figures: the norms of the columns, the projection of these m norms,
and one operation a column to clamp it. Its Figure 3 shows a perfect match of formula and
measurement. This example counts all parts of the algorithm. Run as a script, it prints two
tables and writes a figure: ``plot_paper_bilevel.py --output bilevel.png``.
"""

# %%
# The parts
# ---------
# With ``v`` the largest magnitude of each column, the algorithm (number 3 in the paper)
#
# 1. takes the absolute value of every entry: m² operations;
# 2. finds the largest of each column, m − 1 comparisons a column: m(m − 1);
# 3. projects v onto the CAI cone, which gives u: a multiple of m;
# 4. clamps every entry of column j to the interval from −u_j to u_j: two comparisons an
#    entry, 2m².
#
# The rule is that of :ref:`sphx_glr_auto_examples_plot_paper_operations.py`: adding,
# multiplying, comparing, dividing and the square root count 1 each, and an absolute value
# is a comparison.

import argparse
import sys
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="Operations of the bilevel projection.")
parser.add_argument("-o", "--output", default="paper_bilevel.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])
here = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent
sys.path.insert(0, str(here.parent / "asv_benchmarks"))

from benchmarks import counting  # noqa: E402
from benchmarks.common import floor_call  # noqa: E402

PAPER_K = 6


def formula(m):
    """Operations of the bilevel projection according to the paper."""
    return m * (m - 1) + PAPER_K * m + m


SIDES = [64, 256, 1024, 4096]
KEPT = 0.1  # of the columns
DATA = {
    "Gaussian": lambda m: np.random.default_rng(0).standard_normal((m, m)),
    "uniform": lambda m: np.random.default_rng(0).uniform(-1.0, 1.0, (m, m)),
}
PARTS = {  # the keys of the counters, and what they are
    "magnitudes": "absolute values",
    "largest": "largest of each column",
    "projection": "projection of the norms",
    "clamp": "clamp of the entries",
}

counted = {}
seconds = {}
profiled = {}
for name, draw in DATA.items():
    for m in SIDES:
        y = draw(m)
        level = conehoyer.level_for_groups(y, round(KEPT * m))
        x, parts = counting.bilevel_by_part(y, level)
        assert np.allclose(x, conehoyer.project_bilevel(y, level), atol=1e-6)
        counted[name, m] = {part: parts[part].operations for part in PARTS}
        profiled[name, m] = sum(part.profiled for part in parts.values())
        out = np.zeros_like(y)
        project = partial(conehoyer.project_bilevel, y, level, out=out, workers=1)
        seconds[name, m] = counting.least_times(project, floor_call(y.ravel(), out.ravel()))

# %%
# Counts
# ------
# The formula has the comparisons of step 2, the projection, and m for the clamp.

print("Operations divided by m²; the formula is the paper's")
print(f"{'data':9}{'m':>6}{'formula':>9}" + "".join(f"{part:>12}" for part in PARTS), end="")
print(f"{'together':>10}{'of formula':>12}{'K':>7}")
for (name, m), parts in counted.items():
    together = sum(parts.values())
    print(f"{name:9}{m:6}{formula(m) / m**2:9.3f}", end="")
    print("".join(f"{operations / m**2:12.3f}" for operations in parts.values()), end="")
    print(f"{together / m**2:10.3f}{together / formula(m):12.2f}{parts['projection'] / m:7.1f}")

# %%
# So the formula is right about what it names, but for K, which matters little: the
# m² comparisons of step 2 outweigh the projection of m numbers. What it leaves out is as large
# three times over: the absolute values (or a second comparison with the smallest entry), and
# the clamp, which is no single operation on a column but has to look at each
# entry. The whole is 4m², not m².
#
# How can formula and measurement match perfectly, then? Not by the count of
# ``torch.profiler`` that the paper names: the profiler has no formula for maxima,
# absolute values or clamps and counts nothing for them. By its rule only additions and
# multiplications within the projection of the norms are left, a small multiple of m.
#
# Times
# -----
# Processor time of ``project_bilevel`` on one thread, beside the floor: one pass that only
# reads the matrix and one that reads and writes it. For large matrices the projection takes
# about as long as the floor, so what it waits for is memory, and counting its operations
# says little about its time.

print()
print(f"{'data':9}{'m':>6}{'by the profiler / m²':>22}{'time in ms':>12}", end="")
print(f"{'ns per entry':>14}{'time / floor':>14}")
for (name, m), (time, floor) in seconds.items():
    print(f"{name:9}{m:6}{profiled[name, m] / m**2:22.4f}{time * 1e3:12.3f}", end="")
    print(f"{time / m**2 * 1e9:14.2f}{time / floor:14.2f}")

# %%
# Figure
# ------
# What the formula has is hatched; the line is the formula.

COLORS = dict(zip(PARTS, ["#E69F00", "#0072B2", "#CC79A7", "#56B4E9"], strict=True))
fig, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
for ax, name in zip(axes, DATA, strict=True):
    bottom = np.zeros(len(SIDES))
    for part in ("largest", "projection", "magnitudes", "clamp"):
        height = np.array([counted[name, m][part] / m**2 for m in SIDES])
        in_formula = part in ("largest", "projection")
        ax.bar(
            range(len(SIDES)), height, 0.6, bottom, label=PARTS[part], color=COLORS[part],
            hatch="//" if in_formula else None, edgecolor="white", linewidth=0,
        )  # fmt: skip
        bottom += height
    ax.plot(
        range(len(SIDES)), [formula(m) / m**2 for m in SIDES], "D--", color="black",
        mec="white", label="the paper's formula",
    )  # fmt: skip
    ax.set(title=name, xlabel="side m of the matrix")
    ax.set_xticks(range(len(SIDES)), [f"{m:,}" for m in SIDES])
axes[0].set_ylabel("operations per entry")
axes[0].set_ylim(0, 6.5)
handles, labels = axes[1].get_legend_handles_labels()
axes[1].legend(handles[::-1], labels[::-1], frameon=False, loc="upper right")

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
