"""
CAI paper: is the bilevel projection 2r times faster than HALS?
===============================================================

HALS, hierarchical alternating least squares (N. Gillis and F. Glineur, 2012,
:doi:`10.1162/NECO_a_00256`), factorises a nonnegative matrix X ≈ W·H with r columns in W and r
rows in H (:func:`~conehoyer.nmf_hals`). The CAI paper (Anonymous, *A fast and scalable extended
Hoyer projection for structured neural network sparsity*, under review) compares one
iteration of it on an m × m matrix with one bilevel projection
(:func:`~conehoyer.project_bilevel`) of that matrix. It says:

- HALS takes r(2m² + 4mr + m) operations, about 2r·m²;
- the projection takes m(m − 1) + K·m + m with K = 6, about m²;
- so the projection is 2r times faster.

This example counts both, and times them. Run as a script, it prints a table and writes a
figure: ``plot_paper_hals.py --output hals.png``. The same table without the paper's formulas
comes from ``asv_benchmarks/against_hals.py``.
"""

# %%
# What is counted
# ---------------
# One iteration of HALS updates all columns of W and all rows of H once. For W it forms
# X·Hᵀ and H·Hᵀ, and then for each column ``w_k = max(0, w_k + (A_k − W·B_k)/B_kk)``, with
# A = X·Hᵀ and B = H·Hᵀ; for H the same with Xᵀ. The projection is counted as in
# :ref:`sphx_glr_auto_examples_plot_paper_bilevel.py`. An addition and a multiplication are
# one operation each.
#
# The times are of the same work at the speed of NumPy, with products by BLAS, and of
# ``project_bilevel``, each on one thread.

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path

import matplotlib.pyplot as plt

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="The bilevel projection and HALS.")
parser.add_argument("-o", "--output", default="paper_hals.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])
here = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent
sys.path.insert(0, str(here.parent / "asv_benchmarks"))

from benchmarks.bench_bilevel import AgainstHals  # noqa: E402

try:
    from threadpoolctl import threadpool_limits
except ImportError:
    print("threadpoolctl is not installed: BLAS may use several threads for HALS.")
    threadpool_limits = nullcontext

PAPER_K = 6


def paper_hals(m, r):
    """Operations of one iteration of HALS according to the paper."""
    return r * (2 * m**2 + 4 * m * r + m)


def paper_bilevel(m):
    """Operations of a bilevel projection according to the paper."""
    return m * (m - 1) + PAPER_K * m + m


SIDES = [256, 1024, 2048]
RANKS = [1, 2, 4, 8, 16]
operations, times = {}, {}
print("One iteration of HALS over one bilevel projection of the same m × m matrix")
print(f"{'':12}{'the paper':^24}{'here':^24}")
print(f"{'m':>6}{'r':>6}{'2r':>10}{'formulas':>14}{'operations':>14}{'time':>10}")
with threadpool_limits(1):
    for m in SIDES:
        for r in RANKS:
            case = AgainstHals()
            case.setup(m, r)
            operations[m, r] = case.operations()
            times[m, r] = case.time(0.2)
            print(
                f"{m:6}{r:6}{2 * r:10}{paper_hals(m, r) / paper_bilevel(m):14.2f}"
                f"{operations[m, r]:14.2f}{times[m, r]:10.2f}"
            )

# %%
# Why it is not 2r
# ----------------
# Both formulas leave something out, and not the same share.
#
# - The products X·Hᵀ and Xᵀ·W take m²·r multiplications each and about as many additions,
#   together 4r·m². The paper has 2r·m², which is one of the two products, or both with a
#   multiplication and an addition as one operation.
# - The projection takes 4m² operations: absolute values, the largest of each column, and
#   two comparisons for each entry to clamp it. The paper has m².
#
# So the ratio of operations is about r, half of what the paper says; at r = 1 the two take
# the same number.
#
# Time is another matter. In a product of matrices each number that is fetched serves r
# multiplications, while the projection does little with each and waits for memory, whatever
# r is. So an iteration of HALS takes less than r times as long where r is large, and
# at r = 1 it is the faster one.
#
# And neither number says that one method can replace the other. An iteration of HALS
# improves a factorisation of rank r, and many are needed; the projection sets
# columns of a matrix to zero, once. They answer different questions.
#
# Figure
# ------

COLORS = dict(zip(SIDES, ["#0072B2", "#D55E00", "#009E73"], strict=True))
fig, ax = plt.subplots(figsize=(7, 5), layout="constrained")
ax.plot(RANKS, [2 * r for r in RANKS], color="0.75", lw=5, label="the paper: 2r")
m = SIDES[-1]
ax.plot(
    RANKS, [operations[m, r] for r in RANKS], "o-", color="black", label=f"operations, m = {m:,}"
)
for m, color in COLORS.items():
    ax.plot(RANKS, [times[m, r] for r in RANKS], "s--", color=color, label=f"time, m = {m:,}")
ax.axhline(1.0, color="0.6", lw=1, zorder=0)
ax.set(xscale="log", yscale="log", xlabel="rank r", ylabel="one HALS iteration / one projection")
ax.set_xticks(RANKS, RANKS)
ax.set_yticks([0.5, 1, 2, 4, 8, 16, 32], [0.5, 1, 2, 4, 8, 16, 32])
ax.minorticks_off()
ax.legend(frameon=False)

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
