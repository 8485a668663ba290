"""Scores on the GPU: a block for a row, or several for a long one.

Sums are float64 and added in an order that depends on the shape alone.
"""

import math

from numba import float64
from numba.extending import register_jitable

from .. import _math as m
from .._dispatch import on_device
from . import arrays, block
from .device import SIMULATED, cuda, function, home_of, kernel, launch, threads_for

_SHARE = 32 if SIMULATED else 1 << 14  # entries of a block, where a row has several
_MOST_BLOCKS = 4 if SIMULATED else 2048
EXCESS = 3  # beside the kinds of m.score: the score of max(|x| - edge, 0)


@register_jitable
def _moment(value, kind, edge):
    """The number whose sums are wanted; NaN stays NaN."""
    a = float64(value)
    if kind != m.SIGNED:
        a = abs(a) - edge
        if kind == EXCESS and a < 0.0:
            a = 0.0
    return a


@function
def _sums(z, kind, edge, shift, part, split):
    """Σa and Σa² of this thread's entries, a in units of 2^-shift."""
    i, step = part * cuda.blockDim.x + cuda.threadIdx.x, split * cuda.blockDim.x
    f, g = math.ldexp(1.0, shift // 2), math.ldexp(1.0, shift - shift // 2)
    s, q = 0.0, 0.0
    while i < z.size:
        a = _moment(z[i], kind, edge)
        if shift != 0:
            a = a * f * g
        s += a
        q += a * a
        i += step
    return s, q


@function
def _size(z, kind, edge):
    """Max |a| of this thread's entries; NaN is passed over."""
    size = 0.0
    for i in range(cuda.threadIdx.x, z.size, cuda.blockDim.x):
        a = abs(_moment(z[i], kind, edge))
        if a > size:
            size = a
    return size


@function
def _score(z, kind, edge, parts, room):
    """The score of a row, by one block; `parts` has the sums of its parts, if there are several."""
    s, q = 0.0, 0.0
    if parts.shape[0] > 1:
        for j in range(cuda.threadIdx.x, parts.shape[0], cuda.blockDim.x):
            s += parts[j, 0]
            q += parts[j, 1]
    else:
        s, q = _sums(z, kind, edge, 0, 0, 1)
    s, q, _ = block.sum_three(room, s, q, 0.0)
    if q <= 1e-200 or q >= 1e200:
        size = block.largest(room, _size(z, kind, edge))
        if 0.0 < size < math.inf:  # squares over- or underflow
            s, q = _sums(z, kind, edge, -int(math.frexp(size)[1]), 0, 1)
            s, q, _ = block.sum_three(room, s, q, 0.0)
    return m.score(m.MAGNITUDES if kind == EXCESS else kind, z.size, s, q)


@kernel
def sum_parts(kind, x, edges, parts):
    """The sums of each part of each row, a block for a part."""
    room = cuda.shared.array(0, float64)
    split = parts.shape[1]
    for j in range(cuda.blockIdx.x, x.shape[0] * split, cuda.gridDim.x):
        r, part = j // split, j % split
        edge = float64(edges[r]) if kind == EXCESS else 0.0
        s, q = _sums(x[r], kind, edge, 0, part, split)
        s, q, _ = block.sum_three(room, s, q, 0.0)
        if cuda.threadIdx.x == 0:
            parts[r, part, 0], parts[r, part, 1] = s, q


@kernel
def score_rows(kind, x, edges, parts, out):
    """The score of each row, a block for each."""
    room = cuda.shared.array(0, float64)
    for r in range(cuda.blockIdx.x, x.shape[0], cuda.gridDim.x):
        edge = float64(edges[r]) if kind == EXCESS else 0.0
        value = _score(x[r], kind, edge, parts[r], room)
        if cuda.threadIdx.x == 0:
            out[r] = value


@kernel
def mean_of(values, out):
    """The mean of the values, by one block; 1 if there are none."""
    room = cuda.shared.array(0, float64)
    total = 0.0
    for i in range(cuda.threadIdx.x, values.size, cuda.blockDim.x):
        total += values[i]
    total, _, _ = block.sum_three(room, total, 0.0, 0.0)
    if cuda.threadIdx.x == 0:
        out[0] = total / values.size if values.size > 0 else 1.0


def parts_of(count, n):
    """In how many parts the blocks take each of `count` rows of length n."""
    return max(min(-(-n // _SHARE), _MOST_BLOCKS // max(count, 1)), 1)


def run_rows(home, kind, x, edges, out):
    """Launch the kernels on rows; `edges` (EXCESS) holds a number a row."""
    count, n = x.shape
    threads = threads_for(n, 8)
    split = parts_of(count, n)
    parts = home.scratch((max(count, 1), split, 2), "float64")
    if split > 1:
        launch(sum_parts, home, count * split, threads, kind, x, edges, parts, shared=24 * threads)
    launch(
        score_rows, home, min(count, 1 << 20), threads, kind, x, edges, parts, out,
        shared=24 * threads,
    )  # fmt: skip


def _rows(home, x, axis, work, shape, kind, out):
    z = arrays.read(home, x, axis, work, shape)
    run_rows(home, kind, z, z.reshape(z.size), out)


def _flat(home, x):
    """The array as a vector; of an empty one, nothing may be read or written."""
    count = math.prod(tuple(x.shape))
    return home.view(x, (count,), (8,))


def score(s, kind, keepdims):
    """The scores of all slices, on the device."""
    home = s.home
    shape = s.batch
    if keepdims and s.axis is None:
        shape = (1,) * len(s.shape)
    elif keepdims:
        shape = (*s.shape[: s.axis], 1, *s.shape[s.axis + 1 :])
    with home.active():
        result = home.empty(shape, "float64")
        _rows(home, s.array, s.axis, s.work, (s.number, s.length), kind, _flat(home, result))
        return result


def gsp_score_of_list(parts):
    """The mean sparseness of several arrays, each of which counts as one vector."""
    if not all(map(on_device, parts)):
        raise TypeError("x holds arrays on a GPU and arrays of the host")
    given = [arrays.slices(part, None, f"x[{i}]") for i, part in enumerate(parts)]
    home = given[0].home
    with home.active():
        values = _flat(home, home.empty((len(given),), "float64"))
        for i, s in enumerate(given):
            if type(s.home) is not type(home) or s.home.device != home.device:
                raise TypeError("the arrays of x must be of one library and on one device")
            _rows(home, s.array, None, s.work, (1, s.length), m.SPARSENESS, values[i : i + 1])
        return _mean(home, values, ())


def mean(values, shape):
    """The mean of an array of float64, on the device."""
    home = home_of(values)
    with home.active():
        return _mean(home, _flat(home, values), shape)


def _mean(home, values, shape):
    result = home.empty(shape, "float64")
    threads = threads_for(values.size, 8)
    launch(mean_of, home, 1, threads, values, _flat(home, result), shared=24 * threads)
    return result
