"""Vector-Jacobian products: from the gradient g of a result x to that of its input y.

The formulas are those of ``docs/theory/gradients.rst``, and of `_vjp`, whose dozens of passes by
PyTorch are a few here.  One slice is a row.  Sums are taken in float64, by loops that the compiler
may reorder, so that it takes a register of entries at a time.  They call nothing, as that would be
reordered as well, and have no factor of their own, which would be moved.
"""

import math

import numpy as np

from .. import _math as m
from .._jit import helper, kernel
from . import passes
from .arrays import BLOCKS, DIAGONALS, LABELS, YES, keep, uncounted
from .groups import L1, L2, LINF, copy

_REORDERED = {"fastmath": {"reassoc", "contract", "nsz"}}
KAPPA, BEND, OF_SIGNS, ALONG, L1_NORM, L2_NORM, SCALE, ABOUT = range(8)  # see `pull_rows`
SAFE = 1e200  # sums of squares between this and its inverse neither over- nor underflow


@helper
def _over(a, b):
    """a/b, and 0 where b is 0."""
    return a / b if b != 0.0 else 0.0


@helper
def _sign(a):
    """1, −1, or a itself where it is 0 or NaN."""
    return 1.0 if a > 0.0 else (-1.0 if a < 0.0 else a)


@helper
def _is_safe(squares):
    return 1.0 / SAFE < squares < SAFE


@helper
def _scaled(z):
    """The row in a unit in which its largest magnitude is near 1, and the inverse of that unit.

    A power of two, so that no entry is rounded, whose inverse is finite.
    """
    top = 0.0
    for i in range(z.size):
        top = max(top, abs(np.float64(z[i])))
    exponent = 0
    if 0.0 < top < math.inf:
        exponent = max(math.frexp(top)[1], -1020)
    inverse, result = math.ldexp(1.0, -exponent), np.empty(z.size)
    for i in range(z.size):
        result[i] = z[i] * inverse
    return result, inverse


# --- given sums: the ball and the simplex ------------------------------------------------


@helper
def _was_met(x, y, nonneg):
    """Whether the constraint was: then the row came back as it was, or its positive part."""
    for i in range(x.size):
        if x[i] != (max(y[i], y.dtype.type(0)) if nonneg else y[i]):
            return False
    return True


@helper
def _pass_on(g, x, nonneg, out):
    """g, or where `nonneg` what of it belongs to positive entries."""
    zero = g.dtype.type(0)
    for i in range(x.size):
        out[i] = g[i] if not nonneg or x[i] > zero else zero


@helper(**_REORDERED)
def _sums_on(g, x):
    """Σs² and Σs·g, with the signs s of x."""
    size = inner = 0.0
    for i in range(x.size):
        z, h = np.float64(x[i]), np.float64(g[i])
        s = 1.0 if z > 0.0 else (-1.0 if z < 0.0 else z)  # NaN stays
        size += s * s
        inner += s * h if s != 0.0 else 0.0
    return size, inner


@helper
def _write_centred(g, x, mean, out):
    """g less s times the mean, on the support."""
    for i in range(x.size):
        s = _sign(np.float64(x[i]))
        out[i] = np.float64(g[i]) - s * mean if s != 0.0 else 0.0


# --- given ratios of norms: CAI and Hoyer ------------------------------------------------


@helper(**_REORDERED)
def _moments(g, x, y):
    """Σs², Σs·x, Σs·y, Σs·g, Σx·g and Σx², and Σy² of all entries."""
    size = first = second = inner = along = squares = of_all = 0.0
    for i in range(x.size):
        z, w, h = np.float64(x[i]), np.float64(y[i]), np.float64(g[i])
        s = 1.0 if z > 0.0 else (-1.0 if z < 0.0 else z)
        h = h if s != 0.0 else 0.0
        size += s * s
        first += s * z
        second += s * w
        inner += s * h
        along += z * h
        squares += z * z
        of_all += w * w
    return size, first, second, inner, along, squares, of_all


@helper(**_REORDERED)
def _central(g, x, y, x_mean, y_mean):
    """With u = s·x less its mean on the support, v = s·y less its: Σu, Σv, Σu², Σu·v, Σu·s·g."""
    first = second = squares = product = inner = 0.0
    for i in range(x.size):
        z, w, h = np.float64(x[i]), np.float64(y[i]), np.float64(g[i])
        s = 1.0 if z > 0.0 else (-1.0 if z < 0.0 else z)
        h = h if s != 0.0 else 0.0
        u, v = s * (z - s * x_mean), s * (w - s * y_mean)
        first += u
        second += v
        squares += u * u
        product += u * v
        inner += s * u * h
    return first, second, squares, product, inner


@helper
def _write_ray(g, x, kappa, mean, x_mean, slope, along, out):
    """κ·g on the support, less s times a mean and s·u times a slope, plus x times a number."""
    for i in range(x.size):
        z = np.float64(x[i])
        s = _sign(z)
        across = kappa * np.float64(g[i]) - s * mean - (z - s * x_mean) * slope
        out[i] = across + z * along if s != 0.0 else 0.0


@helper
def _add(y, factor, out):
    for i in range(y.size):
        out[i] += np.float64(y[i]) * factor


@helper
def _ray(g, x, y, units, kind, keeps_norm, eps, out, about):
    """κ·(g_A − Πg); for CAI plus x⟨x, g⟩/‖x‖², for a kept norm y⟨x, g⟩/‖y‖².

    1/κ is the slope of |y| against |x| on the support.  Magnitudes that agree to 4·eps are a tie.
    `units` is the unit of x over that of y.  What `pull_rows` tells of a row goes to `about`, if it
    has room.  Whether no sum may have over- or underflowed, or else nothing is written.
    """
    size, a, b, inner, along, squares, of_all = _moments(g, x, y)
    if not (_is_safe(squares) and _is_safe(of_all)):
        return False
    x_mean, y_mean = _over(a, size), _over(b, size)
    first, second, uu, uv, ug = _central(g, x, y, x_mean, y_mean)
    shift = _over(first, size)  # the means are rounded
    uu, uv, ug = uu - first * shift, uv - second * shift, ug - inner * shift
    least = 4.0 * eps * math.sqrt(size)
    spread = math.sqrt(max(uu, 0.0))
    tied = spread <= least * x_mean or uv <= spread * least * abs(y_mean)
    kappa = 0.0 if tied else _over(uu, uv) * units
    mean, slope = kappa * _over(inner, size), kappa * _over(ug, uu)
    radial = _over(along, squares) if kind == m.CAI else 0.0
    _write_ray(g, x, kappa, mean, x_mean + shift, slope, radial, out)
    if keeps_norm:
        _add(y, units * _over(along, of_all), out)
    if about.size:
        norm = math.sqrt(squares)
        about[KAPPA], about[BEND] = kappa, 0.0 if tied else size * uu / squares
        about[OF_SIGNS], about[ALONG], about[L1_NORM], about[L2_NORM] = inner, along / norm, a, norm
    return True


@kernel
def pull_rows(kind, nonneg, keeps_norm, mended, eps, g, x, y, out, table, first, last):
    """The gradients of rows first..last−1.

    `mended`: where the constraint was met it is g.  `keeps_norm`: Hoyer's norms are those of y.
    If `table` has columns, CAI and Hoyer tell of each row κ; ‖q‖² of q = s − ⟨s, z⟩z with z along
    x, 0 where entries tie; ⟨s, g⟩; ⟨z, g⟩; the norms of x in a unit, and the inverse of that unit.
    """
    g, x, y = uncounted(g), uncounted(x), uncounted(y)
    out, table = uncounted(out), uncounted(table)
    for r in range(first, last):
        if mended and _was_met(x[r], y[r], nonneg):
            _pass_on(g[r], x[r], nonneg, out[r])
            continue
        if kind <= m.SIMPLEX:
            size, inner = _sums_on(g[r], x[r])
            _write_centred(g[r], x[r], _over(inner, size), out[r])
            continue
        about, scale = table[r], 1.0
        if not _ray(g[r], x[r], y[r], 1.0, kind, keeps_norm, eps, out[r], about):
            (z, scale), (w, y_scale) = _scaled(x[r]), _scaled(y[r])
            if not _ray(g[r], z, w, y_scale / scale, kind, keeps_norm, eps, out[r], about):
                out[r, :] = x[r, 0] - x[r, 0]  # zeros, or NaN
        if about.size:
            about[SCALE] = scale


@kernel
def add_bends(x, scales, factors, slopes, out, first, last):
    """Add to rows first..last−1 the signs of x times a factor, less scaled x times a slope."""
    for r in range(first, last):
        for i in range(x.shape[1]):
            z = np.float64(x[r, i]) * scales[r]
            out[r, i] += factors[r] * _sign(z) - slopes[r] * z


# --- scores ------------------------------------------------------------------------------


@helper(**_REORDERED)
def _sums_of(y, signed):
    """Σy, or Σ|y|, and Σy²."""
    total = squares = 0.0
    for i in range(y.size):
        w = np.float64(y[i])
        total += w if signed else abs(w)
        squares += w * w
    return total, squares


@helper
def _write_score(y, signed, factor, slope, out):
    """The signs of y times a factor, less y times a slope."""
    for i in range(y.size):
        w = np.float64(y[i])
        out[i] = factor * (1.0 if signed else _sign(w)) - slope * w


@helper
def _score(kind, g, y, unit, out):
    """`pull_scores` of a row, whose unit has this inverse; whether no sum over- or underflowed."""
    n, signed = y.size, kind == m.SIGNED
    total, squares = _sums_of(y, signed)
    if not _is_safe(squares):
        return False
    norm = math.sqrt(squares)
    value = total / norm
    outer = -1.0 / (math.sqrt(n) - 1.0) if kind == m.SPARSENESS else 2.0 * value
    factor = g * outer / norm * unit
    _write_score(y, signed, factor, factor * value / norm, out)
    return True


@kernel
def pull_scores(kind, g, y, out, first, last):
    """The gradients of the scores of rows first..last−1; ``g[r]`` is that of a score.

    Of the ratio ρ = ⟨s, y⟩/‖y‖ it is (s − ρ·y/‖y‖)/‖y‖; of a zero row it is 0.
    """
    y, out = uncounted(y), uncounted(out)
    for r in range(first, last):
        if kind == m.SPARSENESS and y.shape[1] < 2:
            out[r, :] = 0
        elif not _score(kind, g[r], y[r], 1.0, out[r]):
            w, unit = _scaled(y[r])
            if not _score(kind, g[r], w, unit, out[r]):
                out[r, :] = _sums_of(w, True)[1] * 0.0  # zeros, or NaN


# --- groups of a matrix ------------------------------------------------------------------

# Narrow blocks are taken column by column, and joined at the end of a row of blocks.  Each loop
# stores one array: of more the compiler would not see that they lie apart.

DIFFER, A, B, C = range(4)  # rows of the sums: entries that x and y differ in, and see `_take`
KEPT, FIRST, SECOND = range(3)  # rows of the coefficients, see `_give`
L1INF = 3  # beside the inner norms
LONG = 32  # entries of a row that are added up, or compared, side by side


@helper
def _take(inner, g, x, y, sums, at):
    """Take a row into the sums of groups of which each has one entry of it, from `at` on.

    LINF: the largest magnitude of y, how many entries have it, and Σs·g where x and y differ, with
    the signs s of x; L1INF: the last alone.  L2: Σy² and Σy·g.  L1: Σ|y|, Σs² and Σs·g.
    """
    n = x.size
    differ, a = sums[DIFFER, at : at + n], sums[A, at : at + n]
    b, c = sums[B, at : at + n], sums[C, at : at + n]
    for j in range(n):
        differ[j] += 1.0 if x[j] != y[j] else 0.0
    if inner == L2:
        for j in range(n):
            a[j] += np.float64(y[j]) * np.float64(y[j])
        for j in range(n):
            b[j] += np.float64(y[j]) * np.float64(g[j])
    elif inner == L1:
        for j in range(n):
            a[j] += abs(np.float64(y[j]))
        for j in range(n):
            b[j] += 1.0 if x[j] != 0 else 0.0
        for j in range(n):
            c[j] += _sign(np.float64(x[j])) * np.float64(g[j]) if x[j] != 0 else 0.0
    else:
        for j in range(n):
            c[j] += _sign(np.float64(x[j])) * np.float64(g[j]) if x[j] != y[j] else 0.0
    if inner == LINF:
        for j in range(n):
            top, number = abs(np.float64(y[j])), b[j]
            b[j] = 1.0 if top > a[j] else (number + 1.0 if top == a[j] else number)
        for j in range(n):
            top = abs(np.float64(y[j]))
            a[j] = top if top > a[j] else a[j]


@helper(**_REORDERED)
def _squares_along(g, x, y):
    """How many entries of x and y differ, Σy² and Σy·g."""
    differ = squares = product = 0.0
    for j in range(x.size):
        w = np.float64(y[j])
        differ += 1.0 if x[j] != y[j] else 0.0
        squares += w * w
        product += w * np.float64(g[j])
    return differ, squares, product


@helper(**_REORDERED)
def _sums_along(g, x, y):
    """How many entries of x and y differ, Σ|y|, Σs² and Σs·g with the signs s of x."""
    differ = total = size = inner = 0.0
    for j in range(x.size):
        z, h = np.float64(x[j]), np.float64(g[j])
        s = 1.0 if z > 0.0 else (-1.0 if z < 0.0 else z)
        differ += 1.0 if x[j] != y[j] else 0.0
        total += abs(np.float64(y[j]))
        size += s * s
        inner += s * h if s != 0.0 else 0.0
    return differ, total, size, inner


@helper(**_REORDERED)
def _clipped_along(g, x, y, top):
    """How many entries of x and y differ, how many of y have this size, and Σs·g of the first."""
    differ = number = inner = 0.0
    for j in range(x.size):
        z, h = np.float64(x[j]), np.float64(g[j])
        s = 1.0 if z > 0.0 else (-1.0 if z < 0.0 else z)
        differ += 1.0 if x[j] != y[j] else 0.0
        number += 1.0 if abs(np.float64(y[j])) == top else 0.0
        inner += s * h if x[j] != y[j] else 0.0
    return differ, number, inner


@helper
def _join_tops(goal, g, top, number):
    """Take a magnitude that so many entries have into the largest of group g."""
    if top > goal[A, g]:
        goal[A, g], goal[B, g] = top, 0.0
    if top == goal[A, g]:
        goal[B, g] += number


@helper
def _take_labelled(inner, g, x, y, labels, goal):
    """Take entries of a row, each of the group that its label says."""
    for j in range(x.size):
        k, w, h = labels[j], np.float64(y[j]), np.float64(g[j])
        differs = x[j] != y[j]
        if differs:
            goal[DIFFER, k] += 1.0
        if inner == L2:
            goal[A, k] += w * w
            goal[B, k] += w * h
            continue
        s = _sign(np.float64(x[j]))
        if inner == L1:
            goal[A, k] += abs(w)
            goal[B, k] += 1.0 if s != 0.0 else 0.0
            goal[C, k] += s * h if s != 0.0 else 0.0
            continue
        goal[C, k] += s * h if differs else 0.0
        if inner == LINF:
            _join_tops(goal, k, abs(w), 1.0)


@helper
def _take_along(inner, g, x, y, goal, k):
    """Take entries of a row, all of one group."""
    if inner == L2:
        differ, squares, product = _squares_along(g, x, y)
        goal[A, k] += squares
        goal[B, k] += product
    elif inner == L1:
        differ, total, size, product = _sums_along(g, x, y)
        goal[A, k] += total
        goal[B, k] += size
        goal[C, k] += product
    else:
        top = passes.largest(y, YES) if inner == LINF else 0.0
        differ, number, product = _clipped_along(g, x, y, top)
        goal[C, k] += product
        if inner == LINF:
            _join_tops(goal, k, top, number)
    goal[DIFFER, k] += differ


@helper
def _join(inner, sums, first, last, goal, g):
    """Join the sums of columns first..last−1 to those of group g."""
    for k in range(4):
        if inner == LINF and (k == A or k == B):
            continue
        for j in range(first, last):
            goal[k, g] += sums[k, j]
    if inner == LINF:
        for j in range(first, last):
            _join_tops(goal, g, sums[A, j], sums[B, j])


@kernel
def find_tops(x, tops):
    """The largest magnitude of each row."""
    for r in range(len(x)):
        tops[r] = passes.largest(x[r], YES)


@kernel
def sum_groups(inner, kind, height, width, labels, g, x, y, sums, first, last):
    """Add up the groups of matrices first..last−1: see `_take`.  The sums are zero at first.

    For `kind` to `labels` see `groups`; the groups are in the caller's order.
    """
    rows, columns = x.shape[1], x.shape[2]
    own_line = np.zeros((4, columns if kind == BLOCKS else 1))
    g, x, y, line = uncounted(g), uncounted(x), uncounted(y), uncounted(own_line)
    sums, labels = uncounted(sums), uncounted(labels)
    for k in range(first, last):
        goal = sums[k]
        for i in range(rows):
            if kind == LABELS:
                _take_labelled(inner, g[k, i], x[k, i], y[k, i], labels[i], goal)
            elif kind == DIAGONALS:
                _take(inner, g[k, i], x[k, i], y[k, i], goal, rows - 1 - i)
            elif width == 1 and height >= rows:
                _take(inner, g[k, i], x[k, i], y[k, i], goal, 0)
            elif width >= LONG:
                place = i // height * ((columns + width - 1) // width)
                for j in range(0, columns, width):
                    some = slice(j, min(j + width, columns))
                    given = g[k, i, some], x[k, i, some], y[k, i, some]
                    _take_along(inner, *given, goal, place + j // width)
            else:
                _take(inner, g[k, i], x[k, i], y[k, i], line, 0)
                if i % height == height - 1 or i == rows - 1:
                    place = i // height * ((columns + width - 1) // width)
                    for j in range(0, columns, width):
                        _join(inner, line, j, min(j + width, columns), goal, place + j // width)
                    line[:] = 0.0
    keep(own_line)


@helper
def _give(inner, g, x, y, kept, a, b, out):
    """The gradients of a row, from the coefficients of the group of each entry.

    LINF: b·sign(y) where |y| is a, and g where x is y and the group is kept.  L2: a·g + b·y.
    L1: b·sign(y), and g − a·s on the support, or where `kept` is 2 on all.  L1INF: b·s where x
    and y differ, else g in kept groups.
    """
    if inner == LINF:
        for j in range(x.size):
            w, h = np.float64(y[j]), np.float64(g[j])
            own = h if kept[j] != 0.0 and x[j] == y[j] else 0.0
            out[j] = own + (_sign(w) * b[j] if abs(w) == a[j] else 0.0)
    elif inner == L2:
        for j in range(x.size):
            out[j] = np.float64(g[j]) * a[j] + np.float64(y[j]) * b[j]
    elif inner == L1:
        for j in range(x.size):
            s, h = _sign(np.float64(x[j])), np.float64(g[j])
            stays = (kept[j] == 1.0 and s != 0.0) or kept[j] == 2.0
            out[j] = (h - s * a[j] if stays else 0.0) + _sign(np.float64(y[j])) * b[j]
    else:
        for j in range(x.size):
            s, h = _sign(np.float64(x[j])), np.float64(g[j])
            out[j] = (h if kept[j] != 0.0 else 0.0) if x[j] == y[j] else s * b[j]


@helper
def _repeat(values, place, width, line):
    """Fill a line with values from ``values[place]`` on, `width` times each."""
    if width == 1:
        copy(values[place : place + line.size], line)
        return
    for begin in range(0, line.size, width):
        line[begin : begin + width] = values[place]
        place += 1


@kernel
def pull_groups(inner, kind, height, width, labels, g, x, y, coefficients, out, first, last):
    """The gradients of matrices first..last−1: see `_give`, and `sum_groups`."""
    rows, columns = x.shape[1], x.shape[2]
    own_line = np.empty((3, columns))
    g, x, y, line = uncounted(g), uncounted(x), uncounted(y), uncounted(own_line)
    coefficients, out = uncounted(coefficients), uncounted(out)
    for k in range(first, last):
        given = coefficients[k]
        for i in range(rows):
            if kind == DIAGONALS:
                for c in range(3):
                    copy(given[c, rows - 1 - i : rows - 1 - i + columns], line[c])
            elif kind == LABELS:
                for c in range(3):
                    for j in range(columns):
                        line[c, j] = given[c, labels[i, j]]
            elif i % height == 0:
                place = i // height * ((columns + width - 1) // width)
                for c in range(3):
                    _repeat(given[c], place, width, line[c])
            kept, a, b = line[KEPT], line[FIRST], line[SECOND]
            _give(inner, g[k, i], x[k, i], y[k, i], kept, a, b, out[k, i])
    keep(own_line)
