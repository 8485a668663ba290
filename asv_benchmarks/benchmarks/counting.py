"""Arithmetic operations, counted: plain NumPy versions that add up what they do.

An addition, multiplication, comparison, division or square root of two numbers counts 1,
and so does an absolute value; copying and indexing count nothing.
"""

import numpy as np


class Counter:
    """NumPy operations that count themselves."""

    def __init__(self):
        self.operations = 0

    def _each(self, result):
        self.operations += np.size(result)
        return result

    def add(self, a, b):
        return self._each(np.add(a, b))

    def subtract(self, a, b):
        return self._each(np.subtract(a, b))

    def multiply(self, a, b):
        return self._each(np.multiply(a, b))

    def divide(self, a, b):
        return self._each(np.divide(a, b))

    def sqrt(self, a):
        return self._each(np.sqrt(a))

    def absolute(self, a):
        return self._each(np.abs(a))

    def larger(self, a, b):
        return self._each(np.maximum(a, b))

    def smaller(self, a, b):
        return self._each(np.minimum(a, b))

    def compare(self, a, b):
        return self._each(a > b)

    def sum(self, a):
        self.operations += max(np.size(a) - 1, 0)
        return np.sum(a)

    def largest(self, a, axis):
        self.operations += np.size(a) - np.size(a) // a.shape[axis]
        return np.max(a, axis=axis)

    def product(self, a, b):
        result = a @ b
        self.operations += np.size(result) * (2 * a.shape[-1] - 1)
        return result


def hals_sweep(x, w, h):
    """One sweep of HALS: all columns of W, then all rows of H; returns them and the count."""
    count = Counter()
    w, h = w.copy(), h.copy()
    for left, right, data in ((w, h, x), (h.T, w.T, x.T)):
        cross = count.product(data, right.T)
        gram = count.product(right, right.T)
        for k in range(left.shape[1]):
            gap = count.subtract(cross[:, k], count.product(left, gram[:, k]))
            step = count.divide(gap, max(gram[k, k], 1e-300))  # a dead component
            left[:, k] = count.larger(count.add(left[:, k], step), 0.0)
    return w, h, count.operations


def bilevel_columns(x, level):
    """The CAI bilevel projection of the columns, clipped; returns it and the count.

    The literal Algorithm 2 on the columns' maxima, then the clamp of every entry.
    """
    count = Counter()
    v = count.largest(count.absolute(x), 0)
    support = v
    tau = 0.0
    while True:
        n = support.size
        total = count.sum(support)
        squares = count.sum(count.multiply(support, support))
        mean = count.divide(total, n)
        spread = count.subtract(count.divide(squares, n), count.multiply(mean, mean))
        root = count.sqrt(count.divide(count.multiply(level, spread), count.subtract(n, level)))
        tau = count.subtract(mean, root)
        kept = support[count.compare(support, tau)]
        if kept.size == n:
            break
        support = kept
    p = count.larger(count.subtract(v, tau), 0.0)
    scale = count.divide(count.sum(count.multiply(p, v)), count.sum(count.multiply(p, p)))
    u = count.multiply(scale, p)
    clamped = count.larger(count.smaller(x, u), -u)
    return clamped, count.operations
