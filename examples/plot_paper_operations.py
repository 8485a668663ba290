"""
CAI paper, Figure 2: operations of a projection
===============================================

How much arithmetic does a projection take? The CAI paper (Anonymous, *A fast and
scalable extended Hoyer projection for structured neural network sparsity*, under
review) counts it in its Figure 2, for Gaussian and for uniform data. It says:

- its closed-form projection (CFP, Algorithm 2) takes ``K·n`` operations on a vector of
  ``n`` entries, with K ≈ 6;
- Hoyer's alternating projection takes about 6.5 times as many.

This example counts both algorithms, line by line, times the library's versions of them, and
asks where the paper's figures come from. The paper's figures are the two constants below;
everything else on this page is measured when the script runs: ``plot_paper_operations.py
--output operations.png``.
"""

# %%
# The rule
# --------
# Adding, subtracting, multiplying, comparing or dividing two numbers is one operation, and so
# is a square root. An absolute value and a sign are comparisons. Copying, indexing and
# counting entries are none. The algorithms are written in NumPy in
# ``asv_benchmarks/benchmarks/counting.py``; each operation goes through an object that adds
# it up, and a test compares the results with the library's.

import argparse
import importlib.util
import sys
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

import conehoyer

IS_SCRIPT = "__file__" in globals()  # a documentation gallery does not define it
parser = argparse.ArgumentParser(description="Operations of a projection.")
parser.add_argument("-o", "--output", default="paper_operations.png", help="where the figure goes")
args = parser.parse_args(sys.argv[1:] if IS_SCRIPT else [])
here = Path(__file__ if IS_SCRIPT else sys.argv[0]).resolve().parent
sys.path.insert(0, str(here.parent / "asv_benchmarks"))

from benchmarks import counting  # noqa: E402

PAPER_K = 6.0
PAPER_RATIO = 6.5

SIZES = [10**3, 10**4, 10**5, 10**6, 10**7]
SHARES = [0.5, 0.1, 0.01]
DATA = {
    "Gaussian": lambda n: np.random.default_rng(0).standard_normal(n),
    "uniform": lambda n: np.random.default_rng(0).uniform(-1.0, 1.0, n),
}


def problem(name, n, share):
    """Data, a level that keeps this share of the entries, and the sparseness it stands for.

    The threshold lies midway between two entries, so that rounding decides nothing.
    """
    y = DATA[name](n)
    a = np.abs(y)
    k = round(share * n)
    threshold = np.partition(a, (n - k - 1, n - k))[n - k - 1 : n - k + 1].mean()
    p = np.maximum(a - threshold, 0.0)
    return y, float(conehoyer.hoyer_score(p)), float(conehoyer.hoyer_sparseness(p))


# %%
# Counts and times
# ----------------
# Algorithm 2 finds the nonzeros first: from the sum of the entries and that of their
# squares follows a threshold, entries below it become zero, and so on until none does.
# Then it projects once. As printed, each line goes over all n entries, zeros included; a
# program that leaves the zeros out does the same with less. The table has both.
#
# Hoyer's alternating projection (JMLR 5:1457–1469, 2004) goes in turn onto the sphere and
# onto the simplex, the nonnegative vectors of a given sum, here to the norm of the data and
# to the same nonzeros. What projects onto the simplex decides the count. Two exact
# algorithms are tried, Michelot's (:doi:`10.1007/BF00938486`), itself a loop over
# thresholds, and Condat's (:doi:`10.1007/s10107-015-0946-6`); the table takes the one with
# fewer operations (at the largest n: the one that had fewer at the n before). Zeros are left
# out here too, so its ratio is to the second count of CFP.
#
# The times are those of the library: ``project_cai(y, level)`` and
# ``project_hoyer(y, sparseness, method="alternating")`` (which has Condat's algorithm
# inside), on one thread, the result written to an array that exists already: processor
# time, the least of several calls, for the longest of one.


def library_times(y, level, sparseness):
    """Seconds of the library's alternating projection and of its CAI projection."""
    options = {"out": np.zeros_like(y), "workers": 1}
    classic = partial(conehoyer.project_hoyer, y, sparseness, method="alternating", **options)
    return counting.least_times(classic, partial(conehoyer.project_cai, y, level, **options))


library_times(*problem("Gaussian", 100, 0.1))  # compiles

print(f"Operations per entry, and times; the paper: K = {PAPER_K:g}, ratio {PAPER_RATIO:g}")
print(f"{'':36}{'operations per entry':>46}{'time in ms':>30}")
print(
    f"{'data':9}{'n':>11}{'kept':>6}{'rounds':>8}{'K as printed':>14}{'K':>7}"
    f"{'alternating':>13}{'ratio':>7}  {'inside':8}{'CAI':>10}{'alternating':>13}{'ratio':>7}"
)
INSIDE = ("michelot", "condat")
operations = {name: {} for name in ("as printed", "CFP", "alternating")}
ratios = {name: {} for name in ("operations", "times")}
for name in DATA:
    fewest = dict.fromkeys(SHARES, INSIDE)
    for n in SIZES:
        for share in SHARES:
            y, level, sparseness = problem(name, n, share)
            _, printed = counting.cfp(y, level, packed=False)
            _, cfp = counting.cfp(y, level)
            tried = fewest[share] if n == SIZES[-1] else INSIDE
            counted = {k: counting.alternating(y, level, k)[1].operations for k in tried}
            fewest[share] = [min(counted, key=counted.get)]
            alternating = min(counted.values())
            slow, fast = library_times(y, level, sparseness)

            case = name, share, n
            operations["as printed"][case] = printed.operations / n
            operations["CFP"][case] = cfp.operations / n
            operations["alternating"][case] = alternating / n
            ratios["operations"][case] = alternating / cfp.operations
            ratios["times"][case] = slow / fast
            print(
                f"{name:9}{n:11,}{share:6.0%}{cfp.rounds:8}{printed.operations / n:14.1f}"
                f"{cfp.operations / n:7.1f}{alternating / n:13.1f}"
                f"{alternating / cfp.operations:7.2f}  {fewest[share][0]:8}"
                f"{fast * 1e3:10.3f}{slow * 1e3:13.3f}{slow / fast:7.1f}",
                flush=True,
            )


def spread(values, digits=1):
    """The smallest and the largest, for print."""
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


print()
print(f"K as printed: {spread(operations['as printed'].values())}; the paper: {PAPER_K:g}")
print(f"K without the zeros: {spread(operations['CFP'].values())}")
print(
    f"Ratio of operations: {spread(ratios['operations'].values(), 2)}; the paper: {PAPER_RATIO:g}"
)
print(
    f"Ratio of times, n > 1,000: {spread([v for c, v in ratios['times'].items() if c[2] > 1000])}"
)

# %%
# So K is no constant. It hardly depends on n, but on how many entries are kept, and it is
# larger than 6 everywhere: each round adds, multiplies and compares, four operations an
# entry, and the lines outside the loop take twelve. The alternating projection needs no
# more rounds but has more to do in each; with a fast exact projection inside it does not
# come near 6.5 times the work.
#
# The ratio of times is far larger than that of operations. Times are decided by how often
# the data go through memory and by vector instructions: the library's CAI projection reads
# long data about twice, whatever the number of rounds, while the alternating one is Hoyer's
# loop, with an algorithm inside that takes one entry after the other. At n = 1,000 the
# cost of a call hides the difference.
#
# Where the paper's figures may come from
# ---------------------------------------
# The paper counts with ``torch.profiler``, and describes its opponent as an iteration with
# a fast projection onto the *ℓ1 ball* inside. Both make a difference.
#
# The profiler has a formula for few operators (``torch/csrc/profiler/util.cpp``): products
# of matrices, convolutions, ``add`` and ``mul``. Sums, subtractions, comparisons,
# divisions, roots, norms and ``torch.dot`` count nothing. By this rule the loop of
# Algorithm 2 is free, and what is left are the lines after it, on all n entries, for every
# kind of data and every level. If the inner products are written ``(x * y).sum()``, each of
# these counts n.
#
# Projecting onto the ℓ1 ball, then scaling to the sphere, and so on, is not Hoyer's
# algorithm. It approaches the same point but does not arrive, so a tolerance ends it:
# here, when ‖x‖₁ is within 1e-6 of what it should be.
#
# The table has the three algorithms by both rules.

N, TOLERANCE = 10_000, 1e-6
RULES = {  # the counter's attribute, zeros left out, inner products written as sums of products
    "every operation, no zeros": ("operations", True, False),
    "every operation, all entries": ("operations", False, False),
    "add and mul, torch.dot": ("profiled", False, False),
    "add and mul, (x * y).sum()": ("profiled", False, True),
}


def algorithms(level, packed):
    """The three algorithms, as functions of the data and of the counter."""
    options = {"packed": packed}
    return {
        "CFP": partial(counting.cfp, level=level, **options),
        "alternating": partial(counting.alternating, level=level, **options),
        "ball, sphere": partial(
            counting.ball_and_sphere, level=level, tolerance=TOLERANCE, **options
        ),
    }


print()
print(f"Operations per entry by rule, n = {N:,}; the paper: K = {PAPER_K:g}, ratio {PAPER_RATIO:g}")
print(f"{'counted':30}{'data':9}{'kept':>6}{'CFP':>7}{'alternating':>13}{'ratio':>7}", end="")
print(f"{'ball, sphere':>14}{'ratio':>7}")


def print_line(rule, name, share, counts):
    """One line of the table."""
    k, hoyer, ball = counts
    print(f"{rule:30}{name:9}{share:6.0%}{k:7.1f}{hoyer:13.1f}{hoyer / k:7.2f}", end="")
    print(f"{ball:14.1f}{ball / k:7.2f}")


has_torch = importlib.util.find_spec("torch") is not None
for rule, (attribute, packed, products) in RULES.items():
    for name in DATA:
        for share in SHARES:
            y, level, _ = problem(name, N, share)
            counts = []
            for run in algorithms(level, packed).values():
                _, count = run(y, count=counting.Counter(products))
                counts.append(getattr(count, attribute) / N)
            print_line(rule, name, share, counts)
            if attribute == "profiled" and has_torch:
                runs = algorithms(level, packed).values()
                counts = [counting.profile(run, y, products=products) / N for run in runs]
                print_line("  torch.profiler itself", name, share, counts)
if not has_torch:
    print("torch is not installed: its profiler's own count is left out.")

# %%
# By the profiler's rule, and with ``torch.dot``, K is the same number in every line, and
# close to the paper's. The ratio to Hoyer's alternating projection stays well below the
# paper's by every rule. The ratio to ball and sphere in turn is near the paper's where all
# entries are counted: smaller for Gaussian data, mostly larger for uniform data. It grows as
# the tolerance shrinks.
#
# We don't have the paper's program, so this is a guess: K ≈ 6 is the number of vector
# additions and multiplications after the loop, and 6.5 is a comparison with an iteration
# that is stopped at some tolerance.
#
# Figure
# ------
# Above, operations per entry without the zeros; below, how many times more the alternating
# projection takes. Grey: the paper.

COLORS = dict(zip(SHARES, ["#0072B2", "#D55E00", "#009E73"], strict=True))
fig, axes = plt.subplots(2, 2, figsize=(11, 8), sharex=True, sharey="row", layout="constrained")
for (above, below), name in zip(axes.T, DATA, strict=True):
    for share, color in COLORS.items():
        for ax, values, style in (
            (above, operations["CFP"], "o-"),
            (above, operations["alternating"], "s--"),
            (below, ratios["operations"], "o-"),
            (below, ratios["times"], "s--"),
        ):
            ax.plot(SIZES, [values[name, share, n] for n in SIZES], style, color=color)
    for ax, value in ((above, PAPER_K), (above, PAPER_K * PAPER_RATIO), (below, PAPER_RATIO)):
        ax.axhline(value, color="0.75", lw=5, zorder=0)
    above.set(title=name, xscale="log")
    below.set(xlabel="entries n", yscale="log")
axes[0, 0].set(ylabel="operations per entry", ylim=(0, 60))
axes[1, 0].set(ylabel="alternating projection / CFP", ylim=(1, 300))

for ax, value, text, x, side in (
    (axes[0, 0], PAPER_K, "paper: CFP", 0, "top"),
    (axes[0, 0], PAPER_K * PAPER_RATIO, "paper: alternating", 0, "bottom"),
    (axes[1, 0], PAPER_RATIO, "paper", -1, "top"),
):
    shift = (0, 5 if side == "bottom" else -5)
    options = {"ha": "right" if x else "left", "va": side, "color": "0.4"}
    ax.annotate(text, (SIZES[x], value), shift, textcoords="offset points", **options)


def key(names):
    """Entries of a legend that explain the two styles of a line."""
    styles = zip(names, ("-", "--"), "os", strict=True)
    return [Line2D([], [], color="0.2", ls=ls, marker=m, label=name) for name, ls, m in styles]


shares = [Line2D([], [], color=c, lw=4, label=f"{share:.0%} kept") for share, c in COLORS.items()]
styles = key(("CFP", "alternating"))
axes[0, 1].legend(handles=[*shares, *styles], frameon=False, loc="upper left", ncols=2)
styles = key(("operations", "time"))
axes[1, 1].legend(
    handles=styles, frameon=False, loc="center right", ncols=2, bbox_to_anchor=(1, 0.24)
)

if IS_SCRIPT:
    fig.savefig(args.output, dpi=120)
    print(f"\nFigure: {args.output}")
