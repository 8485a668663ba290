"""Choosing a level: from a number of nonzeros, or from Hoyer's sparseness."""

import math

import numpy as np

from . import _checks
from . import _math as m
from ._cpu import engine, passes


def level_for_nnz(x, nnz, *, axis=-1):
    s = _checks.slices(x, axis)
    wanted = np.asarray(nnz)
    if wanted.dtype.kind not in "iu":
        raise TypeError(f"nnz must be integers, got dtype {wanted.dtype}")
    counts = _checks.per_slice(wanted, "nnz", s, 1, what=">= 1").astype(np.int64)
    z = _checks.rows(s)
    if not passes.all_finite(z.reshape(-1)):
        raise ValueError("x must be finite, got NaN or inf")
    result = np.empty(len(z))
    for r in range(len(z)):
        result[r] = _level_of_row(z[r], int(counts[r]), s.slack)
    return result.reshape(s.batch)[()]


def _level_of_row(z, k, tol):
    """The largest level whose computed projection has at most k nonzeros."""
    n = z.size
    if np.count_nonzero(z) <= k:
        return float(max(n, 1))
    a = np.abs(z)
    top = a.max()
    if np.count_nonzero(a == top) >= k:
        return float(k)
    edge = float(np.partition(a, n - k - 1)[n - k - 1])
    nu, s, q = passes.sums(z, True, edge, 0.0)
    level = s / q * s
    out, info = np.empty((1, n), z.dtype), np.zeros((1, 4))
    margin = 0.0
    while True:
        # Rounding may let the entry at the edge in: ask the projection itself.
        trial = max(level * (1.0 - margin), 1.0)
        engine.project_rows(
            m.CAI, True, np.array([trial]), np.zeros(1), tol, True, z[None], out, True,
            info, np.empty(0), 0, 1,
        )  # fmt: skip
        if trial == 1.0 or np.count_nonzero(out) <= k:
            return trial
        margin = max(2.0 * margin, 2.0**-53)


def level_for_sparseness(sparseness, n):
    values = np.asarray(sparseness)
    sizes = np.asarray(n)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"sparseness must be real numbers, got dtype {values.dtype}")
    if sizes.dtype.kind not in "iu":
        raise TypeError(f"n must be integers, got dtype {sizes.dtype}")
    bad = ~((values >= 0.0) & (values <= 1.0))
    if bad.any():
        raise ValueError(f"sparseness must be in [0, 1], got {values[bad].flat[0]}")
    if (sizes < 1).any():
        raise ValueError(f"n must be >= 1, got {sizes[sizes < 1].flat[0]}")
    root = np.sqrt(sizes.astype(np.float64))
    ratio = root - values * (root - 1.0)
    return np.clip(ratio * ratio, 1.0, sizes)[()]
