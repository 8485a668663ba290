r"""
The soft threshold and its three sums
=====================================

Every projection of a vector y in this library takes the same step: it subtracts a threshold τ
from the magnitudes :math:`a_i = |y_i|`, sets to zero what would become negative, multiplies by a
scale c and gives the signs back:

.. math:: p_i = \max(a_i − τ,\, 0), \qquad x_i = \operatorname{sign}(y_i)\; c\, p_i .

The constraint decides about τ and c. This page shows the step on a short vector, and how τ is
found from three sums.
"""

# %%
# The step
# --------
# The vector has 16 entries. The three projections get constraints that lead to the same
# threshold:
#
# - :func:`~conehoyer.project_cai` a level l, a bound on the Hoyer score
#   (sum of magnitudes)² / (sum of squares), which is an effective number of nonzeros;
# - :func:`~conehoyer.project_l1_ball` a radius r, a bound on the sum of magnitudes;
# - :func:`~conehoyer.project_hoyer` the Hoyer sparseness of the first result.
#
# So their results are multiples of each other. The l1 ball takes p as it is, c = 1. The CAI cone
# puts x where it is nearest to y, c = ⟨p, a⟩/⟨p, p⟩, and Hoyer's constraint keeps the Euclidean
# norm of y.

import matplotlib.pyplot as plt
import numpy as np

import conehoyer

y = np.random.default_rng(3).laplace(size=16)
a = np.abs(y)
level = 4.2
x, info = conehoyer.project_cai(y, level, full_output=True)
tau = info.threshold
p = np.maximum(a - tau, 0)
results = {
    "l1 ball": conehoyer.project_l1_ball(y, p.sum()),
    "CAI cone": x,
    "Hoyer": conehoyer.project_hoyer(y, conehoyer.hoyer_sparseness(x)),
}
print(f"Hoyer score of y: {conehoyer.hoyer_score(y):.2f}, level: {level}")
print(f"threshold τ = {tau:.4f}: {info.nnz} of {y.size} entries are larger")
print("              scale c   score   sum of magnitudes   norm   distance from y")
for name, result in results.items():
    scale = np.abs(result).sum() / p.sum()
    print(f"{name:12}{scale:9.3f}{conehoyer.hoyer_score(result):8.2f}", end="")
    print(f"{np.abs(result).sum():20.3f}{np.linalg.norm(result):7.3f}", end="")
    print(f"{np.linalg.norm(result - y):18.3f}")
print(
    f"{'y itself':12}{'':9}{conehoyer.hoyer_score(y):8.2f}{a.sum():20.3f}{np.linalg.norm(y):7.3f}"
)

# %%
# Above, y with the threshold: what reaches beyond ± τ is p, with its sign. Below, the three results
# on top of y. Entries that were hardly larger than τ end near zero. With c > 1 the largest ones
# end beyond their old value.

BLUE, GREEN, PURPLE, ORANGE = "#0072B2", "#00795A", "#8E3B8A", "#C44E00"
LOOK = {"l1 ball": ("^", BLUE), "CAI cone": ("s", GREEN), "Hoyer": ("D", PURPLE)}
place = np.arange(1, y.size + 1)

fig, (top, bottom) = plt.subplots(2, 1, figsize=(7.2, 6), sharex=True, layout="constrained")
top.bar(place, np.clip(y, -tau, tau), color="0.82", label="cut off")
top.bar(place, np.sign(y) * p, bottom=np.sign(y) * tau, color=ORANGE, label="p, with its sign")
for side in (-tau, tau):
    top.axhline(side, color="black", lw=1, ls="--")
top.annotate("τ", (16.75, tau), (0, 3), textcoords="offset points")
top.annotate("−τ", (16.6, -tau), (0, -12), textcoords="offset points")
top.set_ylabel("entry of y")

bottom.bar(place, y, color="0.88", label="y")
for shift, (name, result) in zip((-0.25, 0, 0.25), results.items(), strict=True):
    marker, color = LOOK[name]
    kept = result != 0
    bottom.vlines(place[kept] + shift, 0, result[kept], color=color, lw=1.4)
    bottom.plot(place[kept] + shift, result[kept], marker, color=color, ms=5.5, label=name)
bottom.set(xlabel="number of the entry", ylabel="entry of x", xticks=place, xlim=(0.3, 17.2))
for ax in (top, bottom):
    ax.axhline(0, color="black", lw=0.8)
    ax.legend(frameon=False, loc="upper center", ncols=2)
plt.show()

# %%
# The three sums
# --------------
# For a trial τ the entries above it have three sums:
#
# - ν, their number,
# - S = Σ p, what they have in excess of τ,
# - Q = Σ p².
#
# They are all that has to be known about the vector. The l1 ball solves S = r, the CAI cone and
# Hoyer's constraint S²/Q = l. A pass over the data gives the sums at the trial τ, and
# the next τ is the solution that the equation would have if no entry crossed τ on the way: for
# the cone, with the mean m = S/ν and the variance v = Q/ν − m² of the excess,
#
# .. math:: τ \;\leftarrow\; τ + m − \sqrt{l\,v / (ν − l)} .
#
# From τ = 0 the trials go up and never beyond the solution. As soon as ν stays the same, that
# was it. The library records the sizes of the supports in ``info.support``. Its steps may be
# longer, as they reckon with entries that cross τ on the way, and skip one of these.


def sums(a, tau):
    """ν, S and Q of the entries above the threshold."""
    excess = a[a > tau] - tau
    return np.array([excess.size, excess.sum(), (excess**2).sum()])


trials = [0.0]
while True:
    nu, s, q = sums(a, trials[-1])
    print(
        f"τ = {trials[-1]:.6f}:  ν = {nu:2.0f}  S = {s:7.4f}  Q = {q:7.4f}  S²/Q = {s * s / q:.4f}"
    )
    mean = s / nu
    step = mean - np.sqrt(level * (q / nu - mean**2) / (nu - level))
    if len(trials) > 1 and nu == sums(a, trials[-2])[0]:
        break
    trials.append(trials[-1] + step)
print(f"found by project_cai: τ = {tau:.6f}, supports {info.support}")

# %%
# The curves below are the three sums and S²/Q for all τ; the numbers count the first trials. S
# falls as τ grows, and so does S²/Q until a single entry is left. So for l > 1 there is one
# solution.

curve = np.linspace(0, 0.98 * a.max(), 1000)
values = np.array([sums(a, t) for t in curve]).T
at_trials = np.array([sums(a, t) for t in trials]).T
panels = {
    "ν, entries above τ": (values[0], at_trials[0]),
    "S, sum of the excess": (values[1], at_trials[1]),
    "Q, sum of its squares": (values[2], at_trials[2]),
    "S²/Q, Hoyer score": (values[1] ** 2 / values[2], at_trials[1] ** 2 / at_trials[2]),
}
targets = {"S, sum of the excess": ("r", p.sum()), "S²/Q, Hoyer score": ("l", level)}

fig, axes = plt.subplots(2, 2, figsize=(7.2, 5.6), sharex=True, layout="constrained")
for ax, (name, (line, dots)) in zip(axes.flat, panels.items(), strict=True):
    ax.axvline(tau, color="black", lw=0.9, ls="--")
    ax.plot(curve, line, color=BLUE)
    ax.plot(trials, dots, "o", color=ORANGE, ms=5)
    for k, offset in enumerate([(6, 2), (6, 3), (-11, -13)]):
        at = trials[k], dots[k]
        ax.annotate(f"{k}", at, offset, textcoords="offset points", color=ORANGE)
    if name in targets:
        symbol, target = targets[name]
        ax.axhline(target, color="black", lw=0.9, ls=":")
        ax.annotate(symbol, (curve[-1], target), (0, 3), textcoords="offset points")
    ax.set_title(name)
    ax.set_ylim(0, 1.1 * line.max())
axes[0, 0].set_yticks(range(0, 17, 4))
for ax in axes[1]:
    ax.set_xlabel("τ, in the unit of y")
plt.show()

# %%
# Parts
# -----
# The sums of disjoint parts of the vector add up to those of the whole. That is why one search
# serves a single thread, several threads, or data that arrive in pieces.

print("            ν        S        Q")
for first in range(0, 16, 4):
    nu, s, q = sums(a[first : first + 4], tau)
    print(f"{first + 1:2d} to {first + 4:2d} {nu:5.0f}{s:9.4f}{q:9.4f}")
nu, s, q = sums(a, tau)
print(f"all      {nu:5.0f}{s:9.4f}{q:9.4f}")
