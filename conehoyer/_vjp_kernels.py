"""Gradients of tensors in the host's memory, by kernels: a few passes where PyTorch takes dozens.

Tensors that lie on a GPU, or are not plain, are served by `_vjp`.
"""

import math
from functools import partial

import numpy as np
import torch

from . import _checks
from . import _math as m
from ._cpu import gradients
from ._cpu.arrays import BLOCKS, DIAGONALS, LABELS
from ._cpu.gradients import ALONG, BEND, KAPPA, L1_NORM, L2_NORM, OF_SIGNS, SCALE
from ._cpu.groups import L1, L2, LINF
from ._groups import INNER, line_of
from ._threads import DEALT_FROM, resolve_workers, run_split

_KINDS = {
    "project_l1_ball": m.L1,
    "project_simplex": m.SIMPLEX,
    "project_cai": m.CAI,
    "project_hoyer": m.HOYER,
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_LABELS = np.empty((0, 0), np.int64)
_SCORES = {"cai_score": m.SIGNED, "hoyer_score": m.MAGNITUDES, "hoyer_sparseness": m.SPARSENESS}


def serves(*tensors) -> bool:
    """Whether the kernels can take these tensors."""
    for t in tensors:
        if type(t) not in _PLAIN or t.device.type != "cpu" or t.numel() == 0:
            return False
        if t.dtype is not torch.float32 and t.dtype is not torch.float64:
            return False
        try:
            _array(t)
        except RuntimeError:  # one of a transform, such as that of a jacobian with vectorize=True
            return False
    return True


def _array(t):
    return t.detach().resolve_neg().numpy()


def _slices(t, axis):
    s = _checks.slices(_array(t), axis)
    return s, _checks.rows(s)


def _apart(y, out):
    """The rows, or a copy: loops over what they read and write do not use the registers."""
    return y.copy() if out.in_place else y


def _run(kernel, s, y, out, workers):
    """Call the kernel on all rows; the result as a tensor of the input's shape."""
    workers = resolve_workers(workers) if y.nbytes >= DEALT_FROM else 1
    run_split(kernel, len(y), workers)
    return torch.from_numpy(_checks.deliver(s, out))


def vectors(name, g, x, y, axis, nonneg, keeps_norm, workers):
    """Of a projection of vectors."""
    s, y = _slices(y, axis)
    (_, g), (_, x) = (_slices(t, axis) for t in (g, x))
    kind = _KINDS[name]
    eps = float(np.finfo(y.dtype).eps)
    _, out = _checks.target(s, None, y, None, False)
    mended, keeps_norm = kind in (m.L1, m.CAI), kind == m.HOYER and keeps_norm
    if kind == m.HOYER:  # y is read last
        y = _apart(y, out)
    given = kind, nonneg, keeps_norm, mended, eps, g, x, y, out.rows, np.empty((len(y), 0))
    task = partial(gradients.pull_rows, *given)
    return _run(task, s, y, out, workers)


def gsp(gs, xs, ys, axis, workers):
    """Of the group sparse projection: see `_vjp.gsp`.

    It is that of CAI, plus q·c with a number c for each vector that takes part.
    """
    parts, same = [], True
    for g, x, y in zip(gs, xs, ys, strict=True):
        s, rows = _slices(y, axis)
        (_, g), (_, x) = (_slices(t, axis) for t in (g, x))
        same = same and np.array_equal(x, rows)
        _, out = _checks.target(s, None, rows, None, False)
        table = np.zeros((len(rows), gradients.ABOUT))
        eps = float(np.finfo(rows.dtype).eps)
        task = partial(gradients.pull_rows, m.CAI, False, False, False, eps, g, x, rows, out.rows)
        threads = resolve_workers(workers) if rows.nbytes >= DEALT_FROM else 1
        run_split(partial(task, table), len(rows), threads)
        parts.append((s, g, x, out, table, threads))
    if same:
        return [g.clone() for g in gs]
    with np.errstate(all="ignore"):  # PyTorch says nothing of NaN or infinity either
        shared = _shared_bends([table for *_, table, _ in parts], [s.length for s, *_ in parts])
    results = []
    for (s, g, x, out, table, threads), c in zip(parts, shared, strict=True):
        if s.length < 2:  # takes no part
            out.rows[...] = g
        else:
            with np.errstate(all="ignore"):
                slopes = c * _over(table[:, L1_NORM], np.square(table[:, L2_NORM]))
            scales = np.ascontiguousarray(table[:, SCALE])
            task = partial(gradients.add_bends, x, scales, c, slopes, out.rows)
            run_split(task, len(x), threads)
        results.append(torch.from_numpy(_checks.deliver(s, out)))
    return results


def _shared_bends(tables, lengths):
    """For each vector ``m − ω·E/D``, 0 where its entries tie."""
    bends, scales = [], []
    for table, n in zip(tables, lengths, strict=True):
        bend = np.where(n > 1, table[:, BEND], 0.0)
        scales.append(table[bend > 0.0, SCALE])
        bends.append(bend)
    most = max((float(part.max()) for part in scales if part.size), default=1.0)
    above = below = 0.0
    pairs = []
    for table, n, bend in zip(tables, lengths, bends, strict=True):
        kappa, inner, norm = table[:, KAPPA], table[:, ALONG], table[:, L2_NORM]
        beta = 1.0 / (math.sqrt(n) - 1.0) if n > 1 else 0.0
        h = _over(table[:, L1_NORM], norm)
        own = kappa * _over(table[:, OF_SIGNS] - h * inner, bend) + (kappa - 1.0) * _over(inner, h)
        omega = np.where(bend > 0.0, beta * kappa * _over(table[:, SCALE] / most, norm), 0.0)
        above, below = above + (beta * bend * own).sum(), below + (beta * bend * omega).sum()
        pairs.append((np.where(bend > 0.0, own, 0.0), omega))
    share = above / below if below != 0.0 else 0.0
    return [own - omega * share for own, omega in pairs]


# --- groups of a matrix ------------------------------------------------------------------


def _layout(groups, shape):
    """What the kernels are told of groups as `_vjp.held` gives them, and whether x is one row."""
    rows, columns = shape[-2:]
    if isinstance(groups, str) and groups == "diagonals":
        return (DIAGONALS, 1, 1, _NO_LABELS), False
    if isinstance(groups, str):
        return (BLOCKS, *((rows, 1) if groups == "columns" else (1, columns)), _NO_LABELS), False
    if isinstance(groups, tuple):
        height, width = min(int(groups[0]), rows), min(int(groups[1]), columns)
        return (BLOCKS, height, width, _NO_LABELS), False
    labels, whole = groups.numpy(), groups.dim() > 2
    return (LABELS, 1, 1, labels.reshape(1, -1) if whole else np.ascontiguousarray(labels)), whole


def _over(a, b):
    """a/b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros(np.broadcast_shapes(a.shape, b.shape)), where=b != 0.0)


def _outer(kind, eps, g, u, v):
    """Back through the projection u of the norms v; a constraint that was met is not looked for."""
    out = np.empty_like(u)
    nothing = np.empty((len(u), 0))
    gradients.pull_rows(kind, False, False, False, eps, g, u, v, out, nothing, 0, len(u))
    return out


def _through(bounds_sum, feasible, eps, g, u, v):
    """The gradient of the norms v from that of their projection u."""
    if bounds_sum:
        return _outer(m.SIMPLEX, eps, g, u, v)
    if not feasible:
        return _outer(m.CAI, eps, g, u, v)
    largest = v.max(axis=1, keepdims=True)  # see `_vjp.outer_within`
    top = v == largest
    inner = (u * g).sum(axis=1, keepdims=True)
    first = _over(inner, largest) * top / np.count_nonzero(top, axis=1, keepdims=True)
    return first + _outer(m.HOYER, eps, g - first, u, v)


def groups(g, x, y, radii, layout, inner, bounds_sum, feasible, workers):
    """Of a projection of groups; the formulas are those of `_vjp.bilevel` and `_vjp.l1inf`.

    `layout` is what `_vjp.held` gives, `inner` "linf", "l2", "l1", or "exact" for ℓ1,∞.
    """
    layout, whole = _layout(layout, y.shape)
    stack = (1, 1, y.numel()) if whole else (-1, *y.shape[-2:])
    if layout[0] == BLOCKS and (line := line_of(*layout[1:3], *y.shape[-2:], y.element_size())):
        stack = (y.shape[:-2].numel(), -1, line)  # blocks of one row stay as they are
    arrays = tuple(map(_array, (g, x, y)))
    arrays = tuple(_checks.in_order(a, a.dtype).reshape(stack) for a in arrays)
    given = tuple(map(_checks.borrowed, arrays))
    y, count = given[2], len(given[2])
    u = np.array(_array(radii), dtype=np.float64).reshape(count, -1)
    workers = resolve_workers(workers) if y.nbytes >= DEALT_FROM else 1
    norm = gradients.L1INF if inner == "exact" else INNER[inner]
    if norm == L2:
        given, u = _in_unit(given, u)
    sums = np.zeros((count, 4, u.shape[1]))
    run_split(partial(gradients.sum_groups, norm, *layout, *given, sums), count, workers)
    eps = float(np.finfo(np.float64).eps if norm == LINF else 8 * np.finfo(y.dtype).eps)
    with np.errstate(all="ignore"):
        coefficients = _coefficients(norm, sums, u, partial(_through, bounds_sum, feasible, eps))
    coefficients = np.stack(coefficients, 1).astype(np.float64)
    out = np.empty_like(y)
    run_split(
        partial(gradients.pull_groups, norm, *layout, *given, coefficients, out), count, workers
    )
    return torch.from_numpy(out)


def _coefficients(norm, sums, u, through):
    """What `gradients.pull_groups` needs, from the sums and the bounds u of the groups."""
    differ, a, b, c = (np.ascontiguousarray(sums[:, k]) for k in range(4))
    kept = (u > 0.0) | (differ.max(axis=1, keepdims=True) == 0.0)  # there the constraint was met
    changed = differ > 0.0
    if norm == LINF:
        return kept, a, through(c, u, a) / np.maximum(b, 1.0)
    if norm == L2:
        v = np.sqrt(a)
        gu, ratio = np.where(changed, _over(b, v), 0.0), np.where(changed, _over(u, v), kept)
        return kept, ratio, _over(through(gu, u, v) - gu * ratio, v)
    if norm == L1:
        mean = np.where(changed, _over(c, b), 0.0)
        return np.where(changed, 1.0, 2.0 * kept), mean, through(mean, u, a)
    inverse = _over(np.ones_like(u), np.where(kept, differ, 0.0))
    common = _over((c * inverse).sum(1, keepdims=True), inverse.sum(1, keepdims=True))
    return kept, kept, (c - common) * inverse


def _in_unit(given, u):
    """Matrices and radii in units in which no square over- or underflows: gradients are the same.

    Each matrix has its own.
    """
    g, x, y = given
    if y.itemsize == 4:
        return given, u
    tops = np.empty(len(y))
    gradients.find_tops(y.reshape(len(y), -1), tops)
    far = (0.0 < tops) & (tops < math.inf) & ~((1e-100 < tops) & (tops < 1e100))
    if not far.any():
        return given, u
    exponents = np.where(far, np.maximum(np.frexp(tops)[1], -1020), 0)
    inverse = np.ldexp(1.0, -exponents)[:, None]
    return (g, x * inverse[:, None], y * inverse[:, None]), u * inverse


def score(name, g, y, axis, workers):
    """Of a score; g has one entry a slice."""
    s, y = _slices(y, axis)
    g = np.ascontiguousarray(_array(g), dtype=np.float64).reshape(len(y))
    _, out = _checks.target(s, None, y, None, False)
    given = _SCORES[name], g, _apart(y, out), out.rows
    return _run(partial(gradients.pull_scores, *given), s, y, out, workers)
