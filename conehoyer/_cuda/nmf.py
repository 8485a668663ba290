"""Nonnegative matrix factorisation on the GPU: the data, the factors and the run.

The iterations are those of `conehoyer.nmf`; here are their sums and products.
"""

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .. import _dispatch
from .. import _math as m
from ..nmf import _FAR, _LARGE, _check_range, _factor, _Run, _Side
from . import arrays, engine, hals
from .device import SIMULATED, home_of, launch, launch_each
from .projections import OWN_NORM, run_rows

_MOST_BLOCKS = 2 if SIMULATED else 1024  # of a sum: so many parts come to the host
_ROW_BLOCKS = 2 if SIMULATED else 64  # of the sum over a row
_SHARED_GRAM = 1 << 14  # bytes up to which the Gram matrix goes into shared memory
_ENOUGH_BLOCKS = 4 if SIMULATED else 512  # below: the inner index of a product is split
_SEGMENT = 8 if SIMULATED else 512  # least length of a part of it
_ONE, _ROOM = hals.ADDERS, 24 * hals.ADDERS  # threads of one block, bytes for its sums


def fetch(x, name):
    """The values of a small device array, on the host in float64: waits for the device."""
    home, shape = home_of(x), tuple(x.shape)
    arrays.result_dtype(home, x, name)  # real, or TypeError
    with home.active():
        flat = arrays.read(home, x, None, "float64", (math.prod(shape),))
        return home.fetch(flat).reshape(shape)


class Matrix(NamedTuple):
    """A C-contiguous matrix as its library knows it, and as the kernels do."""

    array: Any
    view: Any

    @property
    def shape(self):
        return self.view.shape

    @property
    def size(self):
        return self.view.size

    @property
    def flat(self):
        """All entries in a row."""
        return self.view.reshape(self.view.size)


def _blocks_for(count):
    return max(min(-(-count // (8 * hals.ADDERS)), _MOST_BLOCKS), 1)


def _two_powers(exponent):
    """Two factors that are in range where their product is not."""
    return math.ldexp(1.0, exponent // 2), math.ldexp(1.0, exponent - exponent // 2)


class Data:
    """X times 2^−exponent on the GPU: its products and its residual."""

    def __init__(self, x, check_finite):
        s = arrays.slices(x, None)
        if len(s.shape) != 2:
            raise ValueError(f"x must be a matrix, got {len(s.shape)} dimensions")
        self.home, self.shape, self.dtype = s.home, s.shape, s.dtype
        self.work = np.dtype(s.work)
        self.by_gram = self.work == np.float64
        self.entries = math.prod(s.shape)
        with self.active():
            strides = self.home.interface(x)["strides"]
            # In Fortran order it is read as it lies.
            self.flipped = bool(strides) and abs(strides[0]) < abs(strides[1])
            rows = s.shape[::-1] if self.flipped else s.shape
            view = arrays.read(self.home, x, 0 if self.flipped else 1, s.work, rows)
            self.exponent = 0
            self.matrix = Matrix(x, view)
            top, self._sum = self._describe(view.reshape(view.size), "x", check_finite)
            if top > 0.0 and math.isfinite(top) and abs(math.frexp(top)[1]) > _LARGE:
                self.exponent = math.frexp(top)[1]  # else squares over- or underflow
                self._sum = math.ldexp(self._sum, -self.exponent)
                self.matrix = self._scaled(view, -self.exponent)
            elif self.entries:
                self.matrix = Matrix(self.home.adopt(view), view)
            self.norm = math.sqrt(self.inner_product(self.matrix, self.matrix))

    def active(self):
        """Make the data's device the current one."""
        return self.home.active()

    # Small things.

    def new(self, *shape):
        """A matrix of unknown content."""
        array = self.home.empty(shape, self.work.name)
        return Matrix(array, self.home.view(array))

    def zeros(self, shape):
        """A factor to begin with."""
        result = self.new(*shape)
        marks = self.home.zeros(shape[0], "float64")
        launch_each(hals.clear_rows, self.home, result.size, result.view, marks)
        return result

    def vector(self, *shape):
        """A buffer of float64 numbers, for the kernels only."""
        return self.home.scratch(shape, "float64")

    def flags(self, count):
        """A zero for each component."""
        return self.home.zeros(count, "int32")

    def host(self, view):
        """The values of a small array; waits for the device."""
        return self.home.fetch(view)

    def _scaled(self, view, exponent):
        """A copy times a power of two."""
        result = self.new(*view.shape)
        launch_each(
            hals.scaled, self.home, view.size, view.reshape(view.size), *_two_powers(exponent),
            result.flat,
        )  # fmt: skip
        return result

    def _describe(self, flat, name, check_finite):
        """Raise on NaN, inf and negative entries; returns the largest entry and the sum."""
        if flat.size == 0:
            return 0.0, 0.0
        blocks = _blocks_for(flat.size)
        parts = self.vector(blocks, 4)
        launch(hals.describe, self.home, blocks, _ONE, flat, parts, shared=_ROOM)
        bad, low, high, total = self.host(parts).T
        _check_range(float(low.min()), not bad.any(), name, check_finite)
        return float(high.max()), float(total.sum())

    def total(self):
        """The sum of the entries."""
        return self._sum

    def inner_product(self, a, b):
        """⟨A, B⟩, in float64."""
        if a.size == 0:
            return 0.0
        blocks = _blocks_for(a.size)
        parts = self.vector(blocks)
        launch(hals.inner_product, self.home, blocks, _ONE, a.flat, b.flat, parts, shared=_ROOM)
        return float(self.host(parts).sum())

    # Products.

    def product(self, a, a_flipped, b, b_flipped, out):
        """A·B, where a flipped matrix stands for its transpose, by the library or by us."""
        if out.size == 0:
            return
        first = self.home.transposed(a.array) if a_flipped else a.array
        second = self.home.transposed(b.array) if b_flipped else b.array
        if self.home.matmul(first, second, out.array) is not None:
            return
        length = a.shape[0] if a_flipped else a.shape[1]
        rows, columns = out.shape
        tiles = -(-rows // hals.HEIGHT) * -(-columns // hals.WIDTH)
        segments = max(min(_ENOUGH_BLOCKS // tiles, length // _SEGMENT), 1)
        segment = -(-length // segments)
        if segments == 1:
            parts = out.view.reshape(1, rows, columns)
        else:
            parts = self.vector(segments, rows, columns)
        launch(
            hals.multiply, self.home, min(segments * tiles, 1 << 20), hals.SIDE**2,
            a.view, a_flipped, b.view, b_flipped, length, segment, parts,
        )  # fmt: skip
        if segments > 1:
            launch_each(hals.add_segments, self.home, out.size, parts, out.view)

    def times(self, h, out):
        """(X·hᵀ)ᵀ for h (r, n)."""
        self.product(h, False, self.matrix, not self.flipped, out)

    def transposed_times(self, wt, out):
        """wt·X for wt (r, m)."""
        self.product(wt, False, self.matrix, self.flipped, out)

    def residual_squares(self, w, h):
        """‖X − WH‖² from the residual, in float64."""
        if self.entries == 0:
            return 0.0
        tiles = -(-self.shape[0] // hals.HEIGHT) * -(-self.shape[1] // hals.WIDTH)
        blocks = min(tiles, _MOST_BLOCKS)
        parts = self.vector(blocks)
        launch(
            hals.residual, self.home, blocks, hals.SIDE**2,
            self.matrix.view, self.flipped, w.view, h.view, parts,
        )  # fmt: skip
        return float(self.host(parts).sum())

    def gaps(self, rows, w, h):
        """Positive part of some rows of X − WH, which stay here, and their lengths."""
        which = self.home.view(self.home.upload(rows))
        seeds = self.vector(len(rows), self.shape[1])
        squares = self.vector(len(rows))
        launch_each(
            hals.gaps, self.home, seeds.size, self.matrix.view, self.flipped, which,
            w.factor.view, h.factor.view, seeds,
        )  # fmt: skip
        launch(hals.row_squares, self.home, len(rows), _ONE, seeds, squares, shared=_ROOM)
        return seeds, np.sqrt(self.host(squares))

    # Starts.

    def start(self, method, rank, rng):
        """Transposed W0 and H0: the products here, the small decompositions on the host."""

        def times(h):
            return self._host_product(h, self.shape[0], self.times)

        def transposed_times(wt):
            return self._host_product(wt, self.shape[1], self.transposed_times)

        seen = SimpleNamespace(
            shape=self.shape, work=self.work, norm=self.norm, total=self.total, times=times,
            transposed_times=transposed_times,
        )  # fmt: skip
        return tuple(map(self._uploaded, method(seen, rank, rng)))

    def _host_product(self, factor, count, multiply):
        result = self.new(len(factor), count)
        multiply(self._uploaded(factor), result)
        return self.host(result.view)

    def _uploaded(self, values):
        array = self.home.upload(np.ascontiguousarray(values))
        return Matrix(array, self.home.view(array))

    def factor(self, value, name, shape, stays=False):
        """A copy of a given factor; one that `stays` may lose digits when it is delivered."""
        if not _dispatch.on_device(value):
            return self._uploaded(_factor(value, name, shape, self.work))
        return self._scaled(self._given(value, name, shape), 0)

    def tops_of(self, factor):
        """The largest entry of each row, on the device."""
        tops = self.vector(factor.shape[0])
        blocks = min(tops.size, 1 << 16)
        launch(hals.row_tops, self.home, blocks, _ONE, factor.view, tops, shared=_ROOM)
        return tops

    def tops(self, factor):
        """The largest entry of each row; waits for the device."""
        return self.host(self.tops_of(factor))

    def in_units(self, factor, exponents):
        """A copy, each row times its power of two."""
        return self.scale_rows(factor, False, exponents, self.new(*factor.shape))

    def transposed(self, factor, exponents):
        """The transpose, each row times its power of two."""
        return self.scale_rows(factor, True, exponents, self.new(*factor.shape[::-1]))

    def scale_rows(self, factor, flipped, exponents, result):
        """Write the rows of a factor or of its transpose, each times its power of two."""
        powers = self.home.view(self.home.upload(exponents.astype(np.int32)))
        launch_each(
            hals.scaled_rows, self.home, result.size, factor.view, flipped, powers, result.view
        )
        return result

    def _given(self, value, name, shape):
        """A factor on this device in the work's dtype, checked."""
        other = home_of(value)
        if type(other) is not type(self.home) or other.device != self.home.device:
            raise TypeError(
                f"{name} must lie on the host, or be of x's library and on its device, got "
                f"{type(value).__module__}.{type(value).__name__}"
            )
        arrays.result_dtype(other, value, name)
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
        view = arrays.read(self.home, value, 1, self.work.name, shape)
        self._describe(view.reshape(view.size), name, None)
        return view

    def deliver(self, w, h, live):
        """W, which is given transposed, and H; unless they live on, in the data's dtype."""
        if live:
            return self.home.transposed(w.array), h.array
        direct = self.dtype == self.work.name
        return (
            self._delivered(w.view, (self.shape[0], w.shape[0]), 0),
            h.array if direct else self._delivered(h.view, h.shape, 1),
        )

    def _delivered(self, rows, shape, axis):
        """A new array in the data's dtype, whose slices along the axis are these rows."""
        array = self.home.empty(shape, self.dtype)
        goal = arrays.DeviceTarget(rows, array, False, False)
        return arrays.deliver(self.home, goal, axis, self.dtype)


class Side(_Side):
    """One factor, a component a row, and how it is updated."""

    def __init__(self, data, factor, levels, most, epsilon):
        self.data, self.home = data, data.home
        self.factor, self.levels, self.most, self.epsilon = factor, levels, most, epsilon
        rank, count = factor.shape
        blocks = -(-count // hals.BLOCK)
        if levels is None:
            self.gains, self.steps = data.vector(max(blocks, 1)), data.vector(max(blocks, 1))
        else:
            self.state = data.vector(3)
            self.gains, self.steps = self.state[0:1], self.state[1:2]
            self.parts = data.vector(rank, _ROW_BLOCKS, 2)
            self.slope, self.goal = data.new(1, count), data.new(1, count)
        self.blocks = blocks
        self.project()

    def project(self):
        """Bring the rows under their levels."""
        if self.levels is not None and self.factor.size:
            self._nearest(self.factor.view, self.levels)

    def _nearest(self, rows, levels):
        """Project rows, in place."""
        if not hasattr(self, "report"):
            self.report = self.data.vector(len(self.levels), engine.COLUMNS)
            self.flags = self.data.flags(3)
        parameter = arrays.parameter(self.home, levels, 1.0)
        run_rows(
            self.home, m.CAI, False, parameter, OWN_NORM, arrays.slack_of(self.data.work.name),
            rows, rows, self.report, self.flags,
        )  # fmt: skip

    def clear(self):
        """Set the factor to zero."""
        self._keep(self.home.zeros(self.factor.shape[0], "float64"))

    def clear_without(self, other):
        """Set to zero the components whose partner is zero."""
        self._keep(self.data.tops_of(other.factor))

    def _keep(self, marks):
        launch_each(hals.clear_rows, self.home, self.factor.size, self.factor.view, marks)

    def scale(self, exponents):
        """Multiply each component by its power of two."""
        self.data.scale_rows(self.factor, False, exponents, self.factor)

    def set_row(self, k, row=None, divisor=1.0):
        """Start component k anew, from zero or from a row."""
        count = self.factor.shape[1]
        if row is None:
            row = self.home.view(self.home.upload(np.zeros(count)))
        launch_each(hals.set_row, self.home, count, self.factor.view, k, row, divisor)

    def update(self, gram, product):
        """Sweep; `gains` and `steps` take what it brought."""
        if self.levels is not None:
            self._update_by_rows(gram, product)
            return
        size = gram.size * self.data.work.itemsize
        shared = size <= _SHARED_GRAM
        launch(
            hals.sweep_blocks, self.home, min(self.blocks, 1 << 20), hals.SWEEPERS,
            gram.flat, shared, product.view, self.factor.view, self.most, self.epsilon,
            self.gains, self.steps, shared=size if shared else 0,
        )  # fmt: skip

    def _update_by_rows(self, gram, product):
        """The same with levels, which need whole rows; waits once a sweep."""
        count = self.factor.shape[1]
        slope, goal = self.slope.flat, self.goal.flat
        for sweep in range(self.most):
            for k in range(self.factor.shape[0]):
                launch_each(
                    hals.row_goal, self.home, count, k, gram.view, product.view,
                    self.factor.view, slope, goal,
                )  # fmt: skip
                self._nearest(self.goal.view, self.levels[k : k + 1])
                launch(
                    hals.row_move, self.home, _ROW_BLOCKS, _ONE, k, gram.view, slope, goal,
                    self.factor.view, self.parts, shared=_ROOM,
                )  # fmt: skip
            launch(
                hals.end_sweep, self.home, 1, _ONE, gram.view, self.parts, sweep == 0, self.state,
                shared=_ROOM,
            )  # fmt: skip
            if sweep + 1 < self.most:
                _, longest, length = self.data.host(self.state)
                if not length > self.epsilon**2 * longest:
                    break

    def stationarity(self, gram, product):
        """Squared length of the projected gradient steps, each row by itself."""
        goal = self.data.new(*self.factor.shape)
        launch_each(
            hals.goals, self.home, goal.size, gram.view, product.view, self.factor.view,
            self.levels is None, goal.view,
        )  # fmt: skip
        if self.levels is not None:
            self._nearest(goal.view, self.levels)
        blocks = _blocks_for(goal.size)
        parts = self.data.vector(blocks)
        launch(
            hals.goal_distance, self.home, blocks, _ONE, gram.view, self.factor.view, goal.view,
            parts, shared=_ROOM,
        )  # fmt: skip
        return float(self.data.host(parts).sum())


class Run(_Run):
    """The state of a factorisation on the GPU."""

    def __init__(self, data, wt, h, *arguments):
        rank = h.shape[0]
        rows, columns = data.shape
        self._products = data.new(rank, rows), data.new(rank, columns)
        self._grams = data.new(rank, rank), data.new(rank, rank)
        self._totals = data.vector(3)
        super().__init__(data, wt, h, *arguments)

    def _side(self, factor, levels, most, epsilon, workers):
        return Side(self.data, factor, levels, most, epsilon)

    def _multiply(self):
        self.product_w, self.gram_h = self._products[0], self._grams[1]
        if self.data.entries:
            self.data.times(self.h.factor, self.product_w)
            self._gram_into(self.h, self.gram_h)

    def _multiply_back(self):
        self.product_h, self.gram_w = self._products[1], self._grams[0]
        self.data.transposed_times(self.w.factor, self.product_h)
        self._gram_into(self.w, self.gram_w)

    def _gram_into(self, side, gram):
        """Inner products of the components, zero for those too short to divide by."""
        self.data.product(side.factor, False, side.factor, True, gram)
        launch_each(hals.drop_short, self.data.home, gram.shape[0], gram.view, self.least)

    def _inner_products(self):
        if not self.data.entries:
            return 0.0, 0.0
        gram = self.data.new(*self.gram_h.shape)
        self.data.product(self.w.factor, False, self.w.factor, True, gram)
        return (
            self.data.inner_product(self.product_w, self.w.factor),
            self.data.inner_product(gram, self.gram_h),
        )

    def _update(self):
        """As on the CPU, but one wait for all numbers: the products go ahead of them."""
        self.w.update(self.gram_h, self.product_w)
        if self.update_h:
            self._multiply_back()
            self.h.update(self.gram_w, self.product_h)
            self._multiply()
        gram_w = self.gram_w if self.update_h else self.gram_h
        launch(
            hals.summary, self.data.home, 1, _ONE, self.w.gains, self.w.steps, self.update_h,
            self.h.gains, self.h.steps, gram_w.view, self.gram_h.view, 2.0**_FAR, self._totals,
            shared=_ROOM,
        )  # fmt: skip
        gain, step, suspects = map(float, self.data.host(self._totals))
        if self.update_h and suspects:
            grams = self.data.host(self.gram_w.view), self.data.host(self.gram_h.view)
            if self._mend(*(gram.diagonal() for gram in grams)):
                step = math.inf
            if self.gram_w is None:
                self._multiply()
        return gain, step
