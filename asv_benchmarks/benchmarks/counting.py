"""Arithmetic operations, counted: plain NumPy versions that add up what they do.

An addition, subtraction, multiplication, comparison, division or square root of two numbers
counts 1, and so do an absolute value and a sign, which are comparisons.  Copying, indexing
and counting entries count nothing.

The CAI paper is: Anonymous, *A fast and scalable extended Hoyer projection for structured
neural network sparsity*, under review.
"""

from time import thread_time

import numba
import numpy as np


class Counter:
    """NumPy operations that count themselves.

    `operations` follows the rule above.  `profiled` follows the one of ``torch.profiler``:
    an addition or multiplication counts the size of its first operand, a product of
    matrices two operations for each multiplication, and everything else nothing (sums,
    subtractions, comparisons, divisions, roots, and inner products by ``torch.dot``).  With
    `products` inner products are written ``sum(a * b)``, whose ``*`` does count there.
    `rounds` is how often an algorithm went through its outer loop.
    """

    def __init__(self, products=False):
        self.products = products
        self.rounds = 0
        self.operations = 0
        self.profiled = 0

    def _each(self, result):
        self.operations += np.size(result)
        return result

    def add(self, a, b):
        self.profiled += np.size(a)
        return self._each(np.add(a, b))

    def subtract(self, a, b):
        return self._each(np.subtract(a, b))

    def multiply(self, a, b):
        self.profiled += np.size(a)
        return self._each(np.multiply(a, b))

    def divide(self, a, b):
        return self._each(np.divide(a, b))

    def sqrt(self, a):
        return self._each(np.sqrt(a))

    def absolute(self, a):
        return self._each(np.abs(a))

    def sign(self, a):
        return self._each(np.sign(a))

    def larger(self, a, b):
        return self._each(np.maximum(a, b))

    def smaller(self, a, b):
        return self._each(np.minimum(a, b))

    def compare(self, a, b):
        return self._each(a > b)

    def at_least(self, a, b):
        return self._each(a >= b)

    def sum(self, a):
        self.operations += max(np.size(a) - 1, 0)
        return np.sum(a)

    def dot(self, a, b):
        if self.products:
            return self.sum(self.multiply(a, b))
        self.operations += max(2 * np.size(a) - 1, 0)
        return np.dot(a, b)

    def largest(self, a, axis):
        self.operations += np.size(a) - np.size(a) // a.shape[axis]
        return np.max(a, axis=axis)

    def product(self, a, b):
        result = a @ b
        self.operations += np.size(result) * (2 * a.shape[-1] - 1)
        self.profiled += np.size(result) * 2 * a.shape[-1]
        return result

    # What follows counts nothing.

    def number(self, mask):
        return int(np.count_nonzero(mask))

    def choose(self, mask, a):
        """`a` where the mask is true, else 0."""
        return np.where(mask, a, 0.0)

    def zeros(self, like):
        return np.zeros(like.shape)

    def everything(self, like):
        return np.ones(like.shape, dtype=bool)


class TorchOperations:
    """The same operations by torch, for ``torch.profiler`` to count."""

    def __init__(self, torch, products=False):
        self.torch = torch
        self.products = products
        self.rounds = 0

    def _tensor(self, a):
        return self.torch.as_tensor(a, dtype=self.torch.float64)

    def add(self, a, b):
        return self.torch.add(self._tensor(a), self._tensor(b))

    def subtract(self, a, b):
        return self.torch.sub(self._tensor(a), self._tensor(b))

    def multiply(self, a, b):
        return self.torch.mul(self._tensor(a), self._tensor(b))

    def divide(self, a, b):
        return self.torch.div(self._tensor(a), self._tensor(b))

    def sqrt(self, a):
        return self.torch.sqrt(self._tensor(a))

    def absolute(self, a):
        return self.torch.abs(a)

    def sign(self, a):
        return self.torch.sign(a)

    def compare(self, a, b):
        return a > b

    def at_least(self, a, b):
        return a >= b

    def sum(self, a):
        return self.torch.sum(a)

    def dot(self, a, b):
        return self.sum(self.multiply(a, b)) if self.products else self.torch.dot(a, b)

    def number(self, mask):
        return int(self.torch.count_nonzero(mask))

    def choose(self, mask, a):
        return self.torch.where(mask, self._tensor(a), self._tensor(0.0))

    def zeros(self, like):
        return self.torch.zeros(like.shape, dtype=self.torch.float64)

    def everything(self, like):
        return self.torch.ones(like.shape, dtype=self.torch.bool)


def profile(algorithm, y, *args, products=False, **options):
    """What ``torch.profiler`` counts while `algorithm` runs; needs torch."""
    import torch

    count = TorchOperations(torch, products)
    tensor = torch.as_tensor(y)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, with_flops=True) as record:
        algorithm(tensor, *args, count=count, **options)
    return sum(event.flops for event in record.key_averages())


# --- vectors -------------------------------------------------------------------------


def _keep(count, kept, alive, arrays, packed):
    """The arrays without what is not `kept`; `alive`, all that is left, changes in place."""
    if packed:
        alive[alive == True] = kept  # noqa: E712 - torch wants a mask that is another array
        return [a[kept] for a in arrays]
    alive &= kept
    return [count.choose(kept, a) for a in arrays]


def _shrink(count, z, y, tau, alive, packed):
    """max(z − τ, 0), after a search that has compared the entries with τ already."""
    z, y = _keep(count, z > tau, alive, (z, y), packed)
    z = count.subtract(z, tau)
    return (z if packed else count.choose(alive, z)), y


def _unpack(count, values, alive, packed):
    """The entries that are left, back in their places among zeros."""
    if not packed:
        return values
    result = count.zeros(alive)
    result[alive] = values
    return result


def cfp(y, level, packed=True, count=None):
    """Algorithm 2 of the CAI paper, line by line; returns the projection and the counter.

    As printed, every line goes over all entries; with `packed` it leaves out those that
    are zero by then.  The Hoyer score of y must be above `level`: the test that the paper
    lacks is not added.
    """
    count = Counter() if count is None else count
    x = count.absolute(y)
    alive = count.compare(x, 0.0)
    nu = count.number(alive)
    if packed:
        x, y = x[alive], y[alive]
    before = None
    while nu != before:
        before = nu
        count.rounds += 1
        l1 = count.sum(x)
        score = count.divide(count.multiply(l1, l1), count.dot(x, x))
        above = count.multiply(level, count.subtract(nu, score))
        below = count.multiply(score, count.subtract(nu, level))
        root = count.sqrt(count.divide(above, below))
        alpha = count.multiply(count.divide(l1, nu), count.subtract(1.0, root))
        kept = count.at_least(x, alpha)
        x, y = _keep(count, kept, alive, (x, y), packed)
        nu = count.number(alive)
    slope = count.divide(1.0, count.subtract(1.0, count.divide(count.multiply(alpha, nu), l1)))
    d = count.choose(kept, count.divide(l1, nu))
    x = count.add(count.multiply(x, slope), count.multiply(d, count.subtract(1.0, slope)))
    x = count.multiply(x, count.sign(y))
    x = count.multiply(x, count.divide(count.dot(x, y), count.dot(x, x)))
    return _unpack(count, x, alive, packed), count


def alternating(y, level, inner="michelot", packed=True, count=None):
    """Hoyer's alternating projection, at the norm of y; returns it and the counter.

    Onto the hyperplane of the wanted sum, then in turn onto the sphere within that
    hyperplane and, where entries are negative, onto the simplex, exactly, by `inner`:
    "michelot" or "condat".  What becomes zero stays out.
    """
    count = Counter() if count is None else count
    z = count.absolute(y)
    nu = z.shape[0]
    norm2 = count.dot(z, z)
    total2 = count.multiply(level, norm2)
    total = count.sqrt(total2)
    z = count.add(z, count.divide(count.subtract(total, count.sum(z)), nu))
    alive = count.everything(z)
    while True:
        count.rounds += 1
        # z sums to `total`, so the squares about its mean are Σz² − total²/ν.
        flat = count.divide(total2, nu)
        wanted = count.subtract(norm2, flat)
        slope = count.sqrt(count.divide(wanted, count.subtract(count.dot(z, z), flat)))
        mean = count.divide(total, nu)
        move = count.multiply(count.subtract(1.0, slope), mean)
        z = count.add(count.multiply(z, slope), move)
        if not packed:
            z = count.choose(alive, z)
        tau = _simplex(z, 0.0, total, nu, inner, packed, count)
        if tau == 0.0:
            break
        z, y = _shrink(count, z, y, tau, alive, packed)
        nu = count.number(alive)
    return _unpack(count, count.multiply(z, count.sign(y)), alive, packed), count


def ball_and_sphere(y, level, tolerance, inner="michelot", packed=True, count=None):
    """In turn onto the ℓ1 ball and, by scaling, onto the sphere of y's norm.

    This has the limit that :func:`alternating` reaches, and stops where ‖x‖₁ exceeds the
    wanted sum by at most the relative `tolerance`.  Returns the point and the counter.
    """
    count = Counter() if count is None else count
    z = count.absolute(y)
    norm = count.sqrt(count.dot(z, z))
    total = count.multiply(norm, count.sqrt(level))
    bound = count.multiply(total, count.add(tolerance, 1.0))
    alive = count.everything(z)
    while True:
        length = count.sum(z)
        if not count.compare(length, bound):
            break
        count.rounds += 1
        nu = count.number(alive)
        first = count.divide(count.subtract(length, total), nu)
        tau = _simplex(z, first, total, nu, inner, packed, count)
        z, y = _shrink(count, z, y, tau, alive, packed)
        z = count.multiply(z, count.divide(norm, count.sqrt(count.dot(z, z))))
    return _unpack(count, count.multiply(z, count.sign(y)), alive, packed), count


def _simplex(z, first, total, nu, inner, packed, count):
    """τ with Σ max(z − τ, 0) = total.

    `first` is what τ would be if none of the `nu` entries left fell below it: 0 for z that
    sums to `total`, and then the answer if no entry is negative.
    """
    if inner == "michelot":
        return _michelot(z, first, total, nu, packed, count)
    if first == 0.0 and count.number(count.at_least(z, 0.0)) == z.shape[0]:
        return first
    tau, operations = condat_threshold(z, float(total))
    count.operations += operations
    return tau


def _michelot(z, tau, total, nu, packed, count):
    """Michelot's algorithm: τ of all entries, of those above that τ, and so on."""
    while True:
        kept = count.compare(z, tau)
        left = count.number(kept)
        if left == nu:
            return tau
        nu = left
        z = z[kept] if packed else count.choose(kept, z)
        tau = count.divide(count.subtract(count.sum(z), total), nu)


@numba.njit
def condat_threshold(a, radius):
    """Condat's algorithm; τ with Σ max(a − τ, 0) = radius, and the operations.

    It takes one entry after the other, so it is compiled, and its counts stand beside the
    lines that they belong to.  (Not cached on disk: the cache would remember by which name
    this module was imported.)
    """
    heap = np.empty_like(a)
    heap[0] = a[0]
    rho = a[0] - radius
    operations = 1
    first, end = 0, 1
    for i in range(1, a.size):
        value = a[i]
        operations += 1  # value > rho
        if value > rho:
            rho += (value - rho) / (end - first + 1)
            low = value - radius
            operations += 5  # three in the step, one for low, low >= rho
            if low >= rho:
                first = end
                rho = low
            heap[end] = value
            end += 1
    aside = first
    size = end - first
    for i in range(aside - 1, -1, -1):
        value = heap[i]
        operations += 1
        if value > rho:
            first -= 1
            heap[i], heap[first] = heap[first], heap[i]
            size += 1
            rho += (value - rho) / size
            operations += 3
    live = heap[first:end]
    changed = True
    while changed:
        kept = 0
        size = live.size
        for i in range(live.size):
            value = live[i]
            operations += 1
            if value <= rho and size > 1:
                size -= 1
                rho += (rho - value) / size
                operations += 3
            else:
                live[kept] = value
                kept += 1
        changed = kept < live.size
        live = live[:kept]
    return rho, operations


# --- matrices ------------------------------------------------------------------------


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


def bilevel_by_part(x, level):
    """Algorithm 3 of the CAI paper on the columns; returns it and a counter for each part.

    The largest magnitude of each column, Algorithm 2 on these, the clamp of every entry.
    """
    parts = {name: Counter() for name in ("magnitudes", "largest", "projection", "clamp")}
    magnitudes, largest, _, clamp = parts.values()
    v = largest.largest(magnitudes.absolute(x), 0)
    u, _ = cfp(v, level, count=parts["projection"])
    clamped = clamp.larger(clamp.smaller(x, u), clamp.multiply(u, -1.0))
    return clamped, parts


def bilevel_columns(x, level):
    """The same; returns it and the count."""
    clamped, parts = bilevel_by_part(x, level)
    return clamped, sum(part.operations for part in parts.values())


# --- times beside counts -------------------------------------------------------------


def least_times(call, reference, seconds=0.1):
    """The least processor time of two calls, in turn: once the first, five times the second.

    Of the calling thread: other programs hardly matter, other threads are not seen.  The clock
    may stand still over a microsecond, so calls are timed by the tenth of a millisecond.
    """

    def spend(repeated, count):
        start = thread_time()
        for _ in range(count):
            repeated()
        return thread_time() - start

    calls, counts, times = (call, reference), [1, 1], ([], [])
    for k in range(2):
        while spend(calls[k], counts[k]) < 1e-4:
            counts[k] *= 2
    while sum(times[0]) < seconds:
        for k, turns in enumerate((1, 5)):
            times[k].extend(spend(calls[k], counts[k]) for _ in range(turns))
    least = (min(time for time in some if time > 0.0) for some in times)
    return tuple(time / count for time, count in zip(least, counts, strict=True))
