"""
The cone in three dimensions
============================

The CAI cone of level l is the set of the vectors x with Hoyer score

.. math:: H(x) = (‖x‖_1 / ‖x‖_2)^2 ≤ l ,

where :math:`‖x‖_1` is the sum of the magnitudes and :math:`‖x‖_2` the Euclidean norm. With three
entries it can be drawn. This page shows

- the cone at three levels, with the point that :func:`~conehoyer.project_cai` finds;
- the directions that a point takes while the level falls;
- where the projections onto the l1 ball and onto Hoyer's constraint end up.

The score looks at magnitudes only, so the eight octants are alike. The pictures show the one
without negative entries.
"""

# %%
# The set
# -------
# Let θ be the angle between x ≥ 0 and the diagonal (1, 1, 1). Then H(x) = 3 cos²θ: the vectors
# of one score form a circular cone around the diagonal, or the part of it that lies in the
# octant. The sparse vectors, H(x) ≤ l, are those *outside* of the circular cone, towards the
# three axes. They form a cone too, as H(2x) = H(x), but not a convex one: the three vectors with
# a single nonzero entry are in it, their mean is on the diagonal.

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

import conehoyer

corners = 3.0 * np.eye(3)
for point in (*corners, corners.mean(axis=0)):
    print(f"H({point}) = {conehoyer.hoyer_score(point):g}")

# %%
# The projection
# --------------
# The projection x of y is the point of the cone nearest to y. If H(y) ≤ l it is y. If not, it
# has the score l, and the error y − x is at right angles with x. Down to the level that leaves
# two nonzeros, x lies in the plane of y and the diagonal, below it on a face of the octant.

y = np.array([3.0, 2.2, 1.4])
levels = [2.5, 2.0, 1.5]
print(f"y = {y}, H(y) = {conehoyer.hoyer_score(y):.3f}")
print(f"level that leaves two nonzeros: {conehoyer.level_for_nnz(y, 2):.3f}")
print("level  x                      H(x)   distance   angle of x and y − x")
for level in levels:
    x = conehoyer.project_cai(y, level)
    error = np.linalg.norm(y - x)
    angle = np.degrees(np.arccos(x @ (y - x) / np.linalg.norm(x) / error))
    print(
        f"{level:5.2f}  [{x[0]:.3f}, {x[1]:.3f}, {x[2]:.3f}]  {conehoyer.hoyer_score(x):.3f}",
        end="",
    )
    print(f"{error:10.3f}{angle:12.1f}°")

# %%
# In the picture each cone ends at the triangle of the points with the same sum as y.

SPARSE, SIDE, MOUTH, EDGE = "#B5D6EC", "#EDBFA3", "#FAEADF", "#C44E00"
PURPLE, GREEN = "#8E3B8A", "#00795A"
LABEL = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
CORNERS = np.eye(3)
MIDDLE = np.ones(3) / 3
ANGLES = np.linspace(0, 2 * np.pi, 361)
# Unit vectors in the plane Σx = 0; at 0°, 120° and 240° they point to the triangle's corners.
AROUND = np.cos(ANGLES)[:, None] * np.array([2.0, -1.0, -1.0]) / np.sqrt(6)
AROUND += np.sin(ANGLES)[:, None] * np.array([0.0, 1.0, -1.0]) / np.sqrt(2)
TO_EDGE = 1 / (-3 * AROUND.min(axis=1))  # from the middle to the edge, where Σx = 1


def circle(level):
    """The points with Σx = 1 and H(x) = level; NaN where an entry would be negative."""
    radius = np.sqrt(1 / level - 1 / 3)  # H = 1/‖x‖₂² where Σx = 1
    return np.where(radius <= TO_EDGE[:, None] + 1e-12, MIDDLE + radius * AROUND, np.nan)


def sparse_part(level):
    """The points with Σx = 1, x ≥ 0 and H(x) <= level: the outline, there and back."""
    inner = np.minimum(np.sqrt(1 / level - 1 / 3), TO_EDGE)
    outline = [MIDDLE + TO_EDGE[:, None] * AROUND, (MIDDLE + inner[:, None] * AROUND)[::-1]]
    return np.concatenate(outline)


def line(ax, *points, **options):
    """Draw a line through these points."""
    ax.plot(*np.transpose(points), **options)


def fill(ax, polygons, color, zorder, alpha=1.0):
    """Fill polygons."""
    collection = Poly3DCollection(polygons, facecolor=color, alpha=alpha, lw=0.5 * (alpha == 1))
    collection.set_edgecolor(color)
    collection.set_zorder(zorder)
    ax.add_collection3d(collection)


def octant(ax, size, view):
    """Prepare three axes of this length, without a box."""
    ax.set_proj_type("ortho")
    ax.computed_zorder = False  # in the order given here
    ax.view_init(*view)
    ax.set_axis_off()
    ax.set(xlim=(0, size), ylim=(0, size), zlim=(0, size))
    ax.set_box_aspect((1, 1, 1), zoom=1.1)
    for k, corner in enumerate(CORNERS):
        line(ax, 0 * corner, 1.1 * size * corner, color="0.3", lw=0.9, zorder=3)
        ax.text(*(1.19 * size * corner), f"$x_{k + 1}$", ha="center", va="center")


def cone(ax, level, total):
    """Draw the cone of this level up to the triangle Σx = total."""
    arc = total * circle(level)
    sides = np.stack([arc[:-1], arc[1:], np.zeros_like(arc[1:])], axis=1)
    fill(ax, sides[np.isfinite(sides).all(axis=(1, 2))], SIDE, 2)
    fill(ax, [total * sparse_part(level)], SPARSE, 4, alpha=0.6)
    if np.isfinite(arc).all():
        fill(ax, [arc], MOUTH, 5)
    line(ax, *(total * CORNERS[[0, 1, 2, 0]]), color="0.45", lw=0.8, zorder=6)
    line(ax, *arc, color=EDGE, lw=1.8, zorder=6)


def projection(ax, y, x):
    """Draw a point, its projection and the diagonal."""
    line(ax, 0 * y, y.sum() * MIDDLE, color="0.2", ls=(0, (4, 3)), lw=1, zorder=7)
    line(ax, 0 * x, x, color=GREEN, lw=1.8, zorder=8)
    line(ax, x, y, color="black", lw=1.3, zorder=8)
    line(ax, y, color="black", marker="o", ls="", ms=5.5, zorder=9)
    line(ax, x, color=GREEN, marker="s", ls="", ms=6, zorder=9)


fig = plt.figure(figsize=(7.2, 7))
for place, level in enumerate(levels):
    ax = fig.add_subplot(2, 2, place + 1, projection="3d")
    octant(ax, y.sum(), (26, -20))
    cone(ax, level, y.sum())
    x = conehoyer.project_cai(y, level)
    projection(ax, y, x)
    ax.set_title(f"level {level}: x has {np.count_nonzero(x)} nonzeros", x=0.58, y=0.98)

ax = fig.add_subplot(2, 2, 4)
ax.set_axis_off()
handles = {
    "point y": Line2D([], [], color="black", marker="o", ls=""),
    "its projection x": Line2D([], [], color=GREEN, marker="s", ls=""),
    "ray through x": Line2D([], [], color=GREEN),
    "error, y − x": Line2D([], [], color="black"),
    "diagonal": Line2D([], [], color="0.2", ls=(0, (4, 3))),
    "H(x) = level": Patch(facecolor=SIDE, edgecolor=EDGE, lw=1.8),
    "H(x) < level, at the triangle": Patch(facecolor=SPARSE, alpha=0.6),
}
ax.legend(handles.values(), handles, loc="center", frameon=False, labelspacing=0.8)
fig.subplots_adjust(0, 0.02, 1, 0.94, 0, 0.08)
plt.show()

# %%
# Directions
# ----------
# The length of x follows from its direction, so a flat picture shows all that matters: the
# triangle, seen along the diagonal. Shades are bands of H. Each black line shows, for one point,
# the direction of its projection as the level falls to 1, with squares at the three levels of
# above. It goes straight away from the middle until an entry is zero, then along the edge to the
# corner of the largest entry.

points = {
    "y": y,
    "(5, 3, 5.5)": np.array([5.0, 3.0, 5.5]),
    "(1, 4, 5)": np.array([1.0, 4.0, 5.0]),
    "(2, 5, 0.6)": np.array([2.0, 5.0, 0.6]),
}
PLANE = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(3) / 2]])  # where the corners are drawn

fig, ax = plt.subplots(figsize=(7.2, 6.2), layout="constrained")
ax.fill(*PLANE.T, color="#F4F8FB")
for level, shade in zip(levels, ["#D3E6F3", "#A3CBE5", "#6BA6CF"], strict=True):
    ax.fill(*(sparse_part(level) @ PLANE).T, color=shade, lw=0)
    ax.plot(*(circle(level) @ PLANE).T, color=EDGE, lw=1.6)
    top = (MIDDLE + np.sqrt(1 / level - 1 / 3) * AROUND[240]) @ PLANE
    ax.text(*top, f"H = {level}", ha="center", va="center", color=EDGE, bbox=LABEL)
ax.plot(*PLANE[[0, 1, 2, 0]].T, color="0.45", lw=0.8)
ax.plot(*(MIDDLE @ PLANE), "+", color="0.2", ms=9)
for name, point in points.items():
    fall = np.geomspace(conehoyer.hoyer_score(point), 1, 200)
    path = conehoyer.project_cai(np.tile(point, (fall.size, 1)), fall)
    path = path / path.sum(axis=1, keepdims=True) @ PLANE
    ax.plot(*path.T, color="black", lw=2, clip_on=False)
    ax.plot(*path[0], "o", color="black", ms=6)
    left = path[0, 0] > 0.5
    ax.annotate(
        name,
        path[0],
        (-8 if left else 8, -4),
        textcoords="offset points",
        ha="right" if left else "left",
    )
    marks = conehoyer.project_cai(np.tile(point, (3, 1)), levels)
    marks = marks[conehoyer.hoyer_score(point) > levels]
    ax.plot(
        *(marks / marks.sum(axis=1, keepdims=True) @ PLANE).T,
        "s",
        color=GREEN,
        ms=6.5,
        clip_on=False,
    )
for k, (corner, side) in enumerate(zip(PLANE, ("right", "left", "center"), strict=True)):
    away = 0.035 * (corner - MIDDLE @ PLANE)
    ax.text(*(corner + away), f"only $x_{k + 1}$", ha=side, va="center" if k < 2 else "bottom")
ax.set_axis_off()
ax.set_aspect("equal")
plt.show()

# %%
# Three projections on one ray
# ----------------------------
# Hoyer's constraint fixes both norms. The points with :math:`‖x‖_2 = L_2` are a sphere, those with
# :math:`‖x‖_1 = L_1` a plane, and together they are a circle: that of level
# :math:`l = (L_1/L_2)^2`. With :math:`L_2 = ‖y‖_2`, :func:`~conehoyer.project_hoyer` and
# ``project_cai`` find the same direction, and so does :func:`~conehoyer.project_l1_ball` for the
# radius that belongs to the same threshold τ. The lengths differ: of the three, ``project_cai``
# ends nearest to y.
#
# The second point, z, is sparser than the level. ``project_cai`` leaves it where it is.
# ``project_hoyer`` moves it to the circle all the same and makes it denser.

level = 2.0
z = np.array([0.9, 0.5, 3.6])
z *= np.linalg.norm(y) / np.linalg.norm(z)
radius = np.linalg.norm(y)
total = np.sqrt(level) * radius


def projections(point):
    """The projections of a point of the sphere, from the shortest to the longest."""
    x, info = conehoyer.project_cai(point, level, full_output=True)
    found = {"CAI": x, "Hoyer": conehoyer.project_hoyer(point, l1=total, l2=radius)}
    if info.threshold > 0:
        ball = np.maximum(point - info.threshold, 0).sum()
        found = {"l1 ball": conehoyer.project_l1_ball(point, ball)} | found
    return found


print(f"level {level}, sphere of radius {radius:.3f}")
for name, point in {"y": y, "z": z}.items():
    print(f"{name} = [{point[0]:.3f}, {point[1]:.3f}, {point[2]:.3f}]", end="")
    print(f", H({name}) = {conehoyer.hoyer_score(point):.3f}")
    for method, x in projections(point).items():
        print(f"    {method:8} [{x[0]:.3f}, {x[1]:.3f}, {x[2]:.3f}]", end="")
        print(f"  H(x) = {conehoyer.hoyer_score(x):.3f}, norm {np.linalg.norm(x):.3f}", end="")
        print(f", distance {np.linalg.norm(x - point):.3f}")

fig = plt.figure(figsize=(7.2, 6))
ax = fig.add_axes([-0.05, 0, 1.05, 1], projection="3d")
octant(ax, radius, (26, -20))
ax.set_box_aspect((1, 1, 1), zoom=1.05)
s, t = np.meshgrid(np.linspace(0, np.pi / 2, 40), np.linspace(0, np.pi / 2, 40))
sphere = radius * np.stack([np.sin(s) * np.cos(t), np.sin(s) * np.sin(t), np.cos(s)])
ax.plot_surface(*sphere, color="0.85", alpha=0.35, lw=0, shade=False, zorder=4)
quarter = np.linspace(0, np.pi / 2, 50)[:, None]
for k in range(3):
    bow = np.cos(quarter) * CORNERS[k] + np.sin(quarter) * CORNERS[k - 1]
    line(ax, *(radius * bow), color="0.6", lw=0.8, zorder=4)
line(ax, *(total * circle(level)), color=EDGE, lw=2, zorder=6, label="both norms as wanted")
STYLE = {"l1 ball": ("^", "#0072B2"), "CAI": ("s", GREEN), "Hoyer": ("D", PURPLE)}
for name, point in {"y": y, "z": z}.items():
    for method, x in projections(point).items():
        marker, color = STYLE[method]
        label = f"{method} projection" if name == "y" else None
        line(ax, x, point, color=color, lw=1.1, zorder=7)
        line(ax, x, color=color, marker=marker, ls="", ms=7, zorder=9, label=label)
        if name == "y" or method == "Hoyer":
            line(ax, 0 * x, x, color="0.2", lw=1, zorder=7)
    line(ax, point, color="black", marker="o", ls="", ms=4.5, zorder=10)
    ax.text(*(1.03 * point), name, fontsize=12, zorder=11)
ax.legend(loc="upper right", frameon=False)
plt.show()
