"""Slow, obvious reference answers, in 80-bit long double, by sorting.

Nothing here is shared with the library. Every function takes one vector and
gives its answer in ``np.longdouble``.

All of them work on the gaps to the largest entry, ``g = max(a) - a``, which are
exact in long double for float64 data of similar size. With ``theta = max(a) - tau``
the soft threshold is ``p = max(theta - g, 0)``: near-constant data such as
``1 + 1e-9 * noise`` loses nothing, because neither ``tau`` nor ``a - tau`` is
ever formed. The support is found by bisection over the sorted distinct gaps,
where each trial is a sum of positive terms (no cancellation, pairwise summation).
"""

import decimal
from typing import NamedTuple

import numpy as np

LD = np.longdouble

# A platform whose long double is a double could not serve as a reference.
HAS_EXTENDED = np.finfo(LD).nmant >= 63


class Soft(NamedTuple):
    """A soft threshold: ``p`` in the order of the data, and where it was cut."""

    p: np.ndarray
    tau: np.longdouble
    support: int


# ---------------------------------------------------------------------------
# scores


def norms(x):
    x = np.asarray(x).ravel().astype(LD)
    return np.sum(np.abs(x)), np.sqrt(np.sum(x * x))


def cai_score(x):
    x = np.asarray(x).ravel().astype(LD, copy=False)
    q = np.sum(x * x)
    return np.sum(x) ** 2 / q if q > 0 else LD(0)


def hoyer_score(x):
    return cai_score(np.abs(np.asarray(x).ravel().astype(LD, copy=False)))


def hoyer_sparseness(x):
    n = np.asarray(x).size
    if n < 2 or not np.any(x):
        return LD(1)
    root = np.sqrt(LD(n))
    # sqrt(n) - L1/L2 = (n - H) / (sqrt(n) + L1/L2), and n - H = n * (relative
    # variance) / (1 + relative variance): exact also for near-constant data.
    a = np.abs(np.asarray(x).ravel().astype(LD))
    mean = np.sum(a) / n
    rel = np.sum((a - mean) ** 2) / n / mean**2
    l1, l2 = norms(a)
    return n * rel / (1 + rel) / (root + l1 / l2) / (root - 1)


def gsp_score(vectors):
    return sum((hoyer_sparseness(v) for v in vectors), LD(0)) / len(vectors)


def level_for_sparseness(s, n):
    root = np.sqrt(LD(n))
    return (root - LD(s) * (root - 1)) ** 2


def level_and_low(s, n):
    """That level as a float and what it lacks: ties next to a whole level show 117 bits."""
    with decimal.localcontext(prec=60):
        root = decimal.Decimal(n).sqrt()
        part = decimal.Decimal(s) * (root - 1)
        level = n - part * (2 * root - part)
        return LD(float(level)), LD(str(level - decimal.Decimal(float(level))))


# ---------------------------------------------------------------------------
# soft thresholds


_sorted = []  # the last two


def _in_order(gaps):
    """The gaps sorted, and the distinct ones; kept: tests ask more than once about an array."""
    for known, *answer in _sorted:
        if np.array_equal(known, gaps):
            return answer
    ordered = np.sort(gaps)
    _sorted.append((gaps, ordered, ordered[np.append(True, np.diff(ordered) > 0)]))
    del _sorted[:-2]
    return _sorted[-1][1:]


def _soft(values, enough, theta_on):
    """Cut ``values`` where a growing constraint is met.

    ``enough(p)`` says whether the positive entries ``p`` of a trial are already past
    the constraint (it stays true as tau falls), ``theta_on(g)`` solves the
    constraint for theta when the support has the gaps ``g``.
    """
    values = np.asarray(values).ravel().astype(LD)
    top = values.max()
    gaps = top - values
    ordered, levels = _in_order(gaps)  # levels[0] == 0
    lo, hi = 0, levels.size  # levels[lo] belongs to the support, levels[hi] does not
    while hi - lo > 1:
        mid = (lo + hi) // 2
        p = levels[mid] - ordered[: np.searchsorted(ordered, levels[mid])]
        if enough(p):
            hi = mid
        else:
            lo = mid
    inside = gaps <= levels[lo]
    theta = theta_on(gaps[inside])
    p = np.where(inside, np.maximum(theta - gaps, 0), LD(0))
    return Soft(p, top - theta, int(np.count_nonzero(p)))


def threshold_for_level(values, level, low=0):
    """p = max(values - tau, 0) with H(p) = level + low; tau of either sign.

    The caller has excluded more ties at the top than that.
    """
    level = LD(level)

    def enough(p):
        if p.size - level - low <= 0:  # H(p) ≤ p.size, but for rounding
            return False
        return hoyer_score(p) > level + low

    def theta_on(g):
        nu = g.size
        mean = np.sum(g) / nu
        var = np.sum((g - mean) ** 2) / nu
        # mean(p)^2 * (nu - l) = l * var(p), and p = theta - g
        return mean + np.sqrt((level + low) * var / (nu - level - low))

    return _soft(values, enough, theta_on)


def threshold_for_sum(values, total):
    """p = max(values - tau, 0) with sum(p) = total; tau of either sign."""
    total = LD(total)

    def enough(p):
        return np.sum(p) >= total

    return _soft(values, enough, lambda g: (np.sum(g) + total) / g.size)


# ---------------------------------------------------------------------------
# the direction p >= 0 with H(p) = level that makes <p, values> / ||p|| largest


def tie_vector(values, level, low=0):
    """The answer where more than ``level + low`` entries share the maximum."""
    values = np.asarray(values).ravel()
    at_top = np.flatnonzero(values == values.max())
    level = LD(level)
    k = int(np.ceil(level))  # math.ceil would round to a float first
    k += level == k and low > 0
    # the larger-index entry b in [0, 1] solves (k - 1 + b)^2 = l (k - 1 + b^2)
    cut = np.sqrt((k - 1) * (level + low) * (k - level - low))
    b = (k - 1) * (level - k + 1 + low) / (k - 1 + cut) if k > 1 else LD(1)
    p = np.zeros(values.size, LD)
    p[at_top[: k - 1]] = 1
    p[at_top[k - 1]] = b
    return p


def direction(values, level, low=0):
    """(p, tau): the best direction at ``level + low``, and its threshold."""
    values = np.asarray(values).ravel()
    level = LD(level)
    ties = np.count_nonzero(values == values.max())
    if ties - level - low > 0:
        return tie_vector(values, level, low), LD(values.max())
    if values.size - level - low <= 0:
        return np.ones(values.size, LD), LD(-np.inf)
    if ties - level - low == 0:
        return (values == values.max()).astype(LD), LD(values.max())
    soft = threshold_for_level(values, level, low)
    return soft.p, soft.tau


# ---------------------------------------------------------------------------
# projections


def _signs(y):
    return np.where(np.signbit(np.asarray(y, dtype=LD)), LD(-1), LD(1))


def project_cai(y, level, nonneg=False):
    y = np.asarray(y).ravel().astype(LD)
    a = np.maximum(y, 0) if nonneg else np.abs(y)
    if a.size == 0 or not a.any() or hoyer_score(a) <= LD(level) * (1 + LD(1e-14)):
        return a if nonneg else y
    p, _ = direction(a, level)
    x = np.sum(p * a) / np.sum(p * p) * p
    return x if nonneg else _signs(y) * x


def project_hoyer(y, sparseness=None, *, l1=None, l2=None, nonneg=False):
    y = np.asarray(y).ravel().astype(LD)
    norm = norms(y)[1] if l2 is None else LD(l2)
    if l1 is None:
        level, low = level_and_low(sparseness, y.size)
    else:
        level, low = (LD(l1) / norm) ** 2, 0
    if norm == 0:
        return np.zeros_like(y)
    values = y if nonneg else np.abs(y)
    p, _ = direction(values, level, low)
    x = p * (norm / np.sqrt(np.sum(p * p)))
    return x if nonneg else _signs(y) * x


def project_simplex(y, total=1.0):
    y = np.asarray(y).ravel().astype(LD)
    if total == 0:
        return np.zeros_like(y)
    return threshold_for_sum(y, total).p


def project_l1_ball(y, radius=1.0, nonneg=False):
    y = np.asarray(y).ravel().astype(LD)
    a = np.maximum(y, 0) if nonneg else np.abs(y)
    if np.sum(a) <= radius:
        return a if nonneg else y
    x = project_simplex(a, radius)
    return x if nonneg else _signs(y) * x


def edge_for_nnz(y, nnz):
    """The level at which entry nnz + 1 would enter; the size where none is left."""
    a = np.sort(np.abs(np.asarray(y).ravel().astype(LD)))[::-1]
    if np.count_nonzero(a) <= nnz:
        return LD(a.size)
    if a[nnz] == a[0]:
        return LD(nnz)  # ties at the top: the tie rule gives exactly nnz entries
    return hoyer_score(np.maximum(a - a[nnz], 0))
