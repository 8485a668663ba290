"""Vector-Jacobian products of the projections and scores, for tensors on a GPU.

And for those of a transform of PyTorch, which have no memory; `_vjp_kernels` serves all others.

Every function here takes the gradient g of a result and gives the gradient of its input.
The formulas, and the choice at points without a derivative, are derived in the page
``docs/theory/gradients.rst``.  They need the data y and the result x, and for the bilevel
projection the radii of the groups; the vectors lie along the last axis.
"""

from typing import NamedTuple

import numpy as np
import torch

from ._dispatch import on_device


def _dot(a, b):
    return (a * b).sum(-1, keepdim=True)


def _over(a, b):
    """a/b, and 0 where b is 0."""
    return torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))


def _unit(x):
    """The power of two below the largest magnitude of each vector, 1 for zeros.

    In this unit squares are safe, and no entry is rounded.
    """
    if x.shape[-1] == 0:
        return x.new_ones((*x.shape[:-1], 1))
    top = x.abs().amax(-1, keepdim=True)
    return torch.where(top > 0, top / (2 * torch.frexp(top).mantissa), 1)


# --- one vector --------------------------------------------------------------------------


def mended(result, g, x, y, nonneg):
    """The result, but g where the constraint was met, on the positive entries if `nonneg`.

    There the vector came back as it was, or its positive part.
    """
    met = (x == (y.clamp(min=0) if nonneg else y)).all(-1, keepdim=True)
    return torch.where(met, torch.where(x > 0, g, 0) if nonneg else g, result)


def centred(g, x):
    """``g_A − s·⟨s, g⟩/ν`` with the signs s of x, which are 0 off its support A."""
    s = x.sign()
    on = s != 0
    mean = _over(torch.where(on, s * g, 0).sum(-1, keepdim=True), on.sum(-1, keepdim=True))
    return torch.where(on, g - s * mean, 0)


def ball(g, x, y, nonneg):
    """As `centred`, outside of the ball."""
    return mended(centred(g, x), g, x, y, nonneg)


class Ray(NamedTuple):
    """What a soft threshold ``x = s·κ·max(|y| − τ, 0)`` does near y, along its last axis."""

    z: torch.Tensor  # x, scaled to length one
    unit: torch.Tensor  # a power of two, at most ‖x‖
    norm: torch.Tensor  # ‖x‖/unit
    s: torch.Tensor  # its signs, 0 off the support A
    kappa: torch.Tensor  # κ; 0 where the entries of A tie
    size: torch.Tensor  # ν, that of A
    bend: torch.Tensor  # ‖q‖² for q = s − ⟨s, z⟩z; 0 where the entries tie
    spread: torch.Tensor  # x/‖x‖ less its mean magnitude on A: orthogonal to s
    squares: torch.Tensor  # ‖spread‖²

    def along(self, g):
        """``z·⟨z, g⟩``."""
        return self.z * _dot(self.z, g)

    def across(self, g):
        """``κ·(g_A − Πg)``, where Π projects onto the span of s and x."""
        mean = _over(_dot(self.s, g), self.size)
        slope = _over(_dot(self.spread, g), self.squares)
        return self.kappa * (torch.where(self.s != 0, g, 0) - self.s * mean - self.spread * slope)


def ray(x, y, eps=None):
    """The ray of a projection x of y.

    1/κ is the slope of |y| against |x| on the support.  Magnitudes that agree to 4·eps, of
    x or of y, are a tie.  Everything is centred, since the entries of y may differ little.
    """
    s = x.sign()
    size = _dot(s, s)
    unit = _unit(x)
    z, y = x / unit, y / unit
    mean_x, mean_y = _over(_dot(s, z), size), _over(_dot(s, y), size)
    norm2 = _dot(z, z)
    u, a = z - s * mean_x, torch.where(s != 0, y - s * mean_y, 0)
    u = u - s * _over(_dot(s, u), size)  # the means are rounded
    a = a - s * _over(_dot(s, a), size)
    squares, product = _dot(u, u), _dot(u, a)
    least = 4 * (torch.finfo(x.dtype).eps if eps is None else eps) * size.sqrt()
    tied = (squares.sqrt() <= least * mean_x) | (product <= squares.sqrt() * least * mean_y.abs())
    kappa = torch.where(tied, 0, _over(squares, product))
    bend = torch.where(tied, 0, _over(size * squares, norm2))
    root = torch.where(norm2 > 0, norm2.sqrt(), 1)
    return Ray(z / root, unit, root, s, kappa, size, bend, u / root, squares / (root * root))


def scaled_cone(g, x, y, eps=None):
    """``κ·(g_A − Πg) + x⟨x, g⟩/‖x‖²``: CAI where the constraint was not met, norms included."""
    r = ray(x, y, eps)
    return r.across(g) + r.along(g)


def cone(g, x, y, nonneg):
    """CAI: `scaled_cone`, outside of the cone."""
    return mended(scaled_cone(g, x, y), g, x, y, nonneg)


def hoyer(g, x, y, keeps_norm):
    """Prescribed norms: ``κ·(g_A − Πg)``, plus ``y⟨x, g⟩/‖y‖²`` where x has the norm of y."""
    across = ray(x, y).across(g)
    if not keeps_norm:
        return across
    unit = _unit(y)
    w = y / unit
    return across + w * _over(_dot(x / unit, g), _dot(w, w))


# --- several vectors ---------------------------------------------------------------------


def gsp(gs, xs, ys):
    """The group sparse projection: arrays of vectors, each along the last axis of its array.

    ``κ(g_A − Πg) + z⟨z, g⟩ + q·(m − ω·E/D)`` with z along x, ``h = ⟨s, z⟩``, ``q = s − h·z``,
    ``m = κ⟨q, g⟩/‖q‖² + (κ − 1)⟨z, g⟩/h``, ``ω = βκ/‖x‖``, ``β = 1/(√n − 1)``, and over all
    vectors ``E = Σβ‖q‖²m``, ``D = Σβ‖q‖²ω``.
    """
    parts, units, above, same = [], [gs[0].new_full((1,), torch.inf)], 0, True
    for g, x, y in zip(gs, xs, ys, strict=True):
        same = same & (x == y).all()
        n = x.shape[-1]
        if n < 2:
            parts.append(None)
            continue
        r = ray(x, y)
        beta = 1 / (n**0.5 - 1)
        h, inner = _dot(r.s, r.z), _dot(r.z, g)
        q = torch.where(r.bend > 0, r.s - h * r.z, 0)
        m = r.kappa * _over(_dot(q, g), r.bend) + (r.kappa - 1) * _over(inner, h)
        units.append(torch.where(r.bend > 0, r.unit, torch.inf).reshape(-1))
        above = above + (beta * r.bend * m).sum().double()
        parts.append((r, r.across(g) + r.along(g), beta, q, m))
    least = torch.cat(units).amin()  # the unit of ω, in which 1/‖x‖ does not overflow
    below = 0
    for k, part in enumerate(parts):
        if part is not None:
            r, alone, beta, q, m = part
            omega = torch.where(r.bend > 0, beta * r.kappa / r.norm * (least / r.unit), 0)
            below = below + (beta * r.bend * omega).sum().double()
            parts[k] = alone, q, m, omega
    results = []
    for part, g in zip(parts, gs, strict=True):
        if part is None:  # takes no part
            results.append(g)
            continue
        alone, q, m, omega = part
        shared = _over(above, below).to(g.dtype)
        result = alone + q * (m - omega * shared)
        results.append(torch.where(same, g, result))
    return results


# --- groups of a matrix ------------------------------------------------------------------


def held(groups):
    """What `project_bilevel` takes as `groups`, labels as a tensor that nobody else changes."""
    if isinstance(groups, torch.Tensor) or on_device(groups):
        return torch.as_tensor(groups).clone()
    if isinstance(groups, str):
        return groups
    if isinstance(groups, tuple) and len(groups) == 2 and not np.iterable(groups[0]):
        return groups
    return torch.from_numpy(np.array(groups, np.int64))


class Partition:
    """The groups of matrices of shape (batch, M, N): sums over them, values given to them.

    `groups` is what `held` returns.
    """

    def __init__(self, groups, shape, device):
        self.groups, self.labels, self.whole, self.number = groups, None, False, 0
        rows, columns = shape[-2:]
        if isinstance(groups, str):
            if groups == "diagonals":
                down = torch.arange(rows, device=device)[:, None]
                self.labels = torch.arange(columns, device=device) - down + (rows - 1)
        elif isinstance(groups, tuple):
            self.groups = min(int(groups[0]), rows), min(int(groups[1]), columns)
        else:
            self.labels = groups.to(device, torch.int64)
        if self.labels is not None:
            self.whole = self.labels.dim() > 2
            self.labels = self.labels.reshape(1, -1)

    def matrices(self, t):
        """The array as (batch, M, N), or one row of everything."""
        if self.labels is not None:
            batch = 1 if self.whole else t.shape[:-2].numel()
            return t.reshape(batch, self.labels.shape[1])
        return t.reshape(-1, *t.shape[-2:])

    def values(self, radii, batch):
        """The groups' radii as (batch, number)."""
        u = radii.reshape(batch, -1)
        self.number = u.shape[1]
        return u

    def sum(self, t):
        """Sums over the groups, (batch, number)."""
        if self.labels is not None:
            # One after the other: in float64, lest the digits go where groups are large.
            sums = t.new_zeros((t.shape[0], self.number), dtype=torch.float64)
            return sums.scatter_add(1, self.labels.expand(t.shape), t.double()).to(t.dtype)
        return self._joined(t, torch.sum)

    def largest(self, t):
        """The largest entries of the groups, none of which is negative."""
        if self.labels is not None:
            tops = t.new_zeros((t.shape[0], self.number))
            return tops.scatter_reduce(1, self.labels.expand(t.shape), t, "amax")
        return self._joined(t, torch.amax)

    def _joined(self, t, reduce):
        if self.groups == "columns":
            return reduce(t, -2)
        if self.groups == "rows":
            return reduce(t, -1)
        (height, width), (batch, rows, columns) = self.groups, t.shape
        padding = (0, -columns % width, 0, -rows % height)
        if any(padding):  # else it would be an alias, here and in `spread`: vmap knows none
            t = torch.nn.functional.pad(t, padding)
        t = t.reshape(batch, t.shape[1] // height, height, t.shape[2] // width, width)
        return reduce(t, (2, 4)).reshape(batch, -1)

    def spread(self, values, t):
        """The value of each entry's group; broadcasts against the entries t."""
        if self.labels is not None:
            return values[:, self.labels[0]]
        if self.groups == "columns":
            return values[:, None, :]
        if self.groups == "rows":
            return values[:, :, None]
        (height, width), (batch, rows, columns) = self.groups, t.shape
        down, right = -(-rows // height), -(-columns // width)
        wide = values.reshape(batch, down, 1, right, 1).expand(-1, -1, height, -1, width)
        wide = wide.reshape(batch, down * height, right * width)
        return wide if wide.shape[1:] == t.shape[1:] else wide[:, :rows, :columns]


def _kept(x, y, u):
    """The groups that were kept: all where the constraint was met, and x came back as it was."""
    return (u > 0) | (x == y).reshape(len(x), -1).all(-1, keepdim=True)


def bilevel(g, x, y, u, partition, inner, outer):
    """The bilevel projection: back through the groups' balls, then the norms, then y.

    `outer` is the product of the projection of the norms: ``outer(g, u, v, eps)``.
    """
    back = {"linf": _clipped, "l2": _scaled, "l1": _shrunk}[inner]
    # The sums of l1 and l2 are not those of the projection: allow for their rounding.
    eps = torch.finfo(torch.float64).eps if inner == "linf" else 8 * torch.finfo(y.dtype).eps

    def through(gu, v):
        return outer(gu.double(), u, v.double(), eps).to(v.dtype)

    return back(g, x, y, u.to(y.dtype), _kept(x, y, u), partition, through)


def _clipped(g, x, y, u, kept, partition, through):
    """g below the bound u, into u at it; what reaches the norm goes to the largest entries."""
    a, clipped = y.abs(), x != y
    gu = partition.sum(torch.where(clipped, x.sign() * g, 0))
    v = partition.largest(a)
    gv = through(gu, v)
    top = a == partition.spread(v, y)
    share = gv / partition.sum(top.to(y.dtype)).clamp(min=1)
    own = torch.where(partition.spread(kept, y) & ~clipped, g, 0)
    return own + torch.where(top, y.sign() * partition.spread(share, y), 0)


def _scaled(g, x, y, u, kept, partition, through):
    """``x = y·u/v``: ``g·u/v + (y/v)·(gv − ⟨y, g⟩u/v²)``, where ``gu = ⟨y, g⟩/v``."""
    unit = _unit(y.reshape(len(y), -1))
    w = y / unit.reshape(-1, *[1] * (y.dim() - 1))
    v = partition.sum(w * w).sqrt()
    changed = (partition.sum((x != y).to(y.dtype)) > 0) & kept
    inner = torch.where(changed, _over(partition.sum(w * g), v), 0)
    ratio = torch.where(changed, _over(u / unit, v), kept.to(y.dtype))
    gv = through(inner, v * unit) - inner * ratio
    return g * partition.spread(ratio, y) + w * partition.spread(_over(gv, v), y)


def _shrunk(g, x, y, u, kept, partition, through):
    """``g_A − s·⟨s, g⟩/ν`` in each group, whose radius has the gradient ``⟨s, g⟩/ν``."""
    s = x.sign()
    on = s != 0
    mean = _over(partition.sum(torch.where(on, s * g, 0)), partition.sum(on.to(y.dtype)))
    changed = (partition.sum((x != y).to(y.dtype)) > 0) & kept
    mean = torch.where(changed, mean, 0)
    gv = through(mean, partition.sum(y.abs()))
    stays = torch.where(partition.spread(changed, y), on, partition.spread(kept, y))
    own = torch.where(stays, g - s * partition.spread(mean, y), 0)
    return own + y.sign() * partition.spread(gv, y)


def outer_ball(g, u, v, eps):
    """The norms' projection for a radius."""
    return centred(g, u)


def outer_within(g, u, v, eps):
    """The norms of ``feasible=True``: u = v_m·z/z_m with z along (v − τ)₊, m the largest.

    ``b·e_m + κ·((g − b·e_m)_A − Π(…))`` with ``b = ⟨u, g⟩/v_m`` and κ the slope of u against v.
    """
    r = ray(u, v, eps)
    largest = v.amax(-1, keepdim=True)
    top = (v == largest).to(v.dtype)
    first = _over(_dot(u, g), largest) * top / top.sum(-1, keepdim=True)
    return first + r.across(g - first)


def l1inf(g, x, y, u, partition):
    """The exact ℓ1,∞ projection, where ``gu = Σ s·g`` over the ν clipped entries of a group.

    These get ``s·(gu − M)/ν`` with ``M = Σ(gu/ν)/Σ(1/ν)`` over the groups that are kept.
    """
    kept = partition.spread(_kept(x, y, u), y)
    clipped = (x != y) & kept
    s = torch.where(clipped, x.sign(), 0)
    inverse = _over(1.0, partition.sum(clipped.to(y.dtype)))
    gu = partition.sum(torch.where(clipped, s * g, 0))
    common = _over((gu * inverse).sum(-1, keepdim=True), inverse.sum(-1, keepdim=True))
    own = torch.where(kept & ~clipped, g, 0)
    return own + s * partition.spread((gu - common) * inverse, y)


# --- scores ------------------------------------------------------------------------------


def ratio(g, y, signs, squared=False):
    """``r = ⟨s, y⟩/‖y‖``, or its square: ``(g/‖y‖)·(s − r·y/‖y‖)``, for the square times 2r.

    0 for a zero vector.
    """
    unit = _unit(y)
    w = y / unit
    norm2 = _dot(w, w)
    alive = norm2 != 0
    norm = torch.where(alive, norm2.sqrt(), 1)
    value = _dot(signs, w) / norm
    across = signs - w.mul_(value).div_(norm)
    if squared:
        across.mul_(2 * value)
    return torch.where(alive, g / norm / unit, 0) * across


def sparseness(g, y):
    """``(√n − r)/(√n − 1)``."""
    n = y.shape[-1]
    if n < 2:
        return torch.zeros_like(y)
    return ratio(-g / (n**0.5 - 1), y, y.sign())
