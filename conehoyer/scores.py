"""Scores of sparsity."""

import numpy as np

from . import _checks
from ._cpu import scores as kernels
from ._threads import resolve_workers, run_split

_PARALLEL_FROM = 1 << 16


def _score(x, axis, keepdims, workers, absolute):
    """(Σa)²/Σa² of each slice, and the slices."""
    s = _checks.slices(x, axis)
    workers = resolve_workers(workers)
    z = _checks.rows(s)
    result = np.zeros(len(z))
    if z.size:
        workers = workers if z.size >= _PARALLEL_FROM else 1
        run_split(lambda i, j: kernels.score_rows(z, absolute, result, i, j), len(z), workers)
    return s, _shaped(s, result, keepdims)


def _shaped(s, values, keepdims):
    values = values.reshape(s.batch)
    if keepdims:
        if s.axis is None:
            return values.reshape((1,) * s.array.ndim)
        return np.expand_dims(values, s.axis)
    return values[()]


def cai_score(x, *, axis=-1, keepdims=False, workers=None):
    return _score(x, axis, keepdims, workers, False)[1]


def hoyer_score(x, *, axis=-1, keepdims=False, workers=None):
    return _score(x, axis, keepdims, workers, True)[1]


def hoyer_sparseness(x, *, axis=-1, keepdims=False, workers=None):
    s, score = _score(x, axis, keepdims, workers, True)
    root = np.sqrt(s.length)
    if s.length <= 1:
        return np.ones_like(score)[()]
    sparseness = np.clip((root - np.sqrt(score)) / (root - 1.0), 0.0, 1.0)
    return np.where(score == 0.0, 1.0, sparseness)[()]


def gsp_score(x, *, axis=-1, keepdims=False, workers=None):
    if isinstance(x, (list, tuple)) and any(np.ndim(part) > 0 for part in x):
        parts = [hoyer_sparseness(part, axis=None, workers=workers) for part in x]
        return np.float64(np.mean(parts))
    values = hoyer_sparseness(x, axis=axis, workers=workers)
    mean = np.mean(values) if np.size(values) else np.float64(1.0)
    return np.full((1,) * np.ndim(x), mean) if keepdims else mean
