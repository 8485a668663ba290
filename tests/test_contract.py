"""What every projection promises about arrays, axes, dtypes, outputs and errors."""

import copy
import gc
import math
import re
import sys
import tracemalloc
import warnings
import weakref
from functools import partial
from importlib.util import find_spec
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from distributions import make
from hypothesis import given
from hypothesis import strategies as st

import conehoyer as ch
from conehoyer import _checks
from conehoyer._cpu import halves

# name -> (function, its constraint as a keyword, a usual value)
FUNCTIONS = {
    "cai": (ch.project_cai, "level", 2.5),
    "hoyer": (ch.project_hoyer, "sparseness", 0.7),
    "ball": (ch.project_l1_ball, "radius", 1.5),
    "simplex": (ch.project_simplex, "total", 1.5),
}
METHODS = {
    "cai": ["cfp", "iterative"],
    "hoyer": ["cfp", "alternating"],
    "ball": ["newton", "condat", "sort"],
    "simplex": ["newton", "condat", "sort"],
}
every_function = pytest.mark.parametrize("kind", FUNCTIONS)
every_method = pytest.mark.parametrize(
    ("kind", "method"), [(k, m) for k, methods in METHODS.items() for m in methods]
)
INFO_FIELDS = ["threshold", "level", "nnz", "passes", "converged"]


def project(kind, x, value=None, **kwargs):
    function, _, usual = FUNCTIONS[kind]
    return function(x, usual if value is None else value, **kwargs)


def one_by_one(kind, x, axis, value=None, **kwargs):
    """The answer slice by slice, each as a fresh contiguous vector."""
    moved = np.moveaxis(np.asarray(x), axis, -1)
    value = FUNCTIONS[kind][2] if value is None else value
    values = np.broadcast_to(value, moved.shape[:-1])
    result = np.empty(moved.shape, np.asarray(x).dtype)
    for index in np.ndindex(moved.shape[:-1]):
        vector = np.array(moved[index], order="C")
        result[index] = project(kind, vector, float(values[index]), **kwargs)
    return np.moveaxis(result, -1, axis)


# ---------------------------------------------------------------------------
# axis and batches


@every_method
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_every_axis(kind, method, axis):
    x = make("gaussian", 120).reshape(4, 5, 6)
    got = project(kind, x, axis=axis, method=method)
    np.testing.assert_array_equal(got, one_by_one(kind, x, axis, method=method))


@every_method
def test_axis_none_is_one_vector(kind, method):
    x = make("gaussian", 60).reshape(3, 4, 5)
    got = project(kind, x, axis=None, method=method)
    np.testing.assert_array_equal(got, project(kind, x.ravel(), method=method).reshape(x.shape))
    transposed = project(kind, x.T, axis=None, method=method)
    np.testing.assert_array_equal(
        transposed, project(kind, x.T.ravel(), method=method).reshape(5, 4, 3)
    )


@every_function
@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1, 2), 0), ((7, 3), 0), ((48, 48), 0), ((64, 40), 0), ((40, 64), 1), ((1000, 33), 0),
     ((33, 999), 1), ((70_000, 3), 0), ((3, 50, 20), 1), ((3, 50, 20), 0), ((2, 3, 40, 17), 2)],
)  # fmt: skip
def test_slices_across_the_memory(kind, shape, axis, dtype, workers):
    """Bit for bit what contiguous slices give, with a parameter for each, wherever it goes."""
    function = FUNCTIONS[kind][0]
    rng = np.random.default_rng(sum(shape))
    n = shape[axis]
    for order in "CF":
        x = np.asarray(rng.standard_normal(shape), dtype, order=order)
        rows = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        values = rng.uniform(0, 1, rows.shape[:-1])
        values = np.maximum(values * n / 2, 1) if kind == "cai" else values
        expected, told = function(rows, values, full_output=True)
        expected = np.moveaxis(expected, -1, axis)
        options = {"axis": axis, "workers": workers}
        got, info = function(x, values, full_output=True, **options)
        np.testing.assert_array_equal(got, expected)
        for field in INFO_FIELDS:
            np.testing.assert_array_equal(getattr(info, field), getattr(told, field), field)
        for out in (np.empty_like(x), np.empty(shape, dtype), np.empty(shape, dtype, order="F")):
            assert function(x, values, out=out, **options) is out
            np.testing.assert_array_equal(out, expected)
        frozen = x.copy(order="K")
        frozen.flags.writeable = False
        np.testing.assert_array_equal(function(frozen, values, **options), expected)
        np.testing.assert_array_equal(function(x, values, overwrite_x=True, **options), expected)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@every_method
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_as_out_across_the_memory(kind, method, order):
    x = np.asarray(make("gaussian", 24).reshape(6, 4), order=order)
    for axis in (0, 1):
        expected = project(kind, x, axis=axis, method=method)
        for out in (np.asmatrix(np.empty((6, 4))), np.ma.array(np.empty((6, 4)))):
            assert project(kind, x, axis=axis, method=method, out=out) is out
            np.testing.assert_array_equal(np.asarray(out), expected)


@every_function
@pytest.mark.parametrize("shape", [(500, 40), (20_000, 3)])
def test_nan_in_a_slice_across_the_memory(kind, shape):
    x = make("gaussian", shape[0] * shape[1]).reshape(shape)
    x[shape[0] // 3, 1] = np.nan
    before = x.copy()
    for options in ({}, {"out": x}, {"overwrite_x": True}, {"out": np.empty_like(x)}):
        with pytest.raises(ValueError, match=r"(?i)\bx\b.*(nan|inf)"):
            project(kind, x, axis=0, **options)
        np.testing.assert_array_equal(x, before)
    got = project(kind, x, axis=0, check_finite=False)
    assert np.isnan(got[:, 1]).all()
    others = np.arange(shape[1]) != 1
    np.testing.assert_array_equal(got[:, others], project(kind, x[:, others], axis=0))


@every_function
def test_the_default_axis_is_the_last(kind):
    x = make("gaussian", 60).reshape(5, 12)
    np.testing.assert_array_equal(project(kind, x), project(kind, x, axis=-1))


@every_function
@pytest.mark.parametrize("shape", [(2000, 50), (50, 2000), (3, 90_000), (20_000, 3)])
def test_large_batches(kind, shape):
    x = make("laplace", shape[0] * shape[1]).reshape(shape)
    got = project(kind, x)
    for i in (0, 1, shape[0] // 2, shape[0] - 1):
        np.testing.assert_array_equal(got[i], project(kind, x[i]))
    columns = project(kind, x, axis=0)
    for j in (0, 1, shape[1] // 2, shape[1] - 1):
        np.testing.assert_array_equal(columns[:, j], project(kind, x[:, j].copy()))


@every_function
@pytest.mark.parametrize("axis", [2, -3, 7, 10**30])
def test_axis_out_of_range(kind, axis):
    with pytest.raises(np.exceptions.AxisError, match=rf"axis.*{axis}"):
        project(kind, np.ones((2, 3)), axis=axis)


@every_function
@pytest.mark.parametrize("axis", [0.5, "0", (0, 1)])
def test_axis_must_be_an_integer(kind, axis):
    with pytest.raises(TypeError, match="axis"):
        project(kind, np.ones((2, 3)), axis=axis)


# ---------------------------------------------------------------------------
# broadcasting of the constraint over the slices


@every_function
def test_constraints_broadcast_over_the_slices(kind):
    x = make("gaussian", 120).reshape(4, 5, 6)
    low, high = (0.2, 0.9) if kind == "hoyer" else (1.0, 5.0)
    rng = np.random.default_rng(0)
    for shape in [(), (6,), (1, 6), (4, 1), (4, 6), (4, 1, 6), (1, 1, 1)]:
        value = rng.uniform(low, high, shape)
        # with as many axes as x, the value has length 1 along the axis
        over_slices = value[:, 0, :] if value.ndim == 3 else value
        got = project(kind, x, value, axis=1)
        expected = one_by_one(kind, x, 1, over_slices)
        np.testing.assert_array_equal(got, expected, err_msg=str(shape))
    expected = project(kind, x, low, axis=None)
    for shape in [(), (1,), (1, 1, 1)]:
        got = project(kind, x, np.full(shape, low), axis=None)
        np.testing.assert_array_equal(got, expected, err_msg=str(shape))


@every_function
def test_constraints_may_be_lists_or_integers(kind):
    x = make("gaussian", 30).reshape(3, 10)
    values = [1, 1, 1]
    np.testing.assert_array_equal(project(kind, x, values), project(kind, x, np.ones(3)))
    np.testing.assert_array_equal(project(kind, x, 1), project(kind, x, 1.0))
    np.testing.assert_array_equal(project(kind, x, np.float32(1)), project(kind, x, 1.0))


def test_hoyer_norms_broadcast():
    x = make("gaussian", 40).reshape(4, 10)
    l2 = np.array([1.0, 2.0, 3.0, 4.0])
    got = ch.project_hoyer(x, l1=2 * l2, l2=l2)
    for i in range(4):
        np.testing.assert_array_equal(got[i], ch.project_hoyer(x[i], l1=2 * l2[i], l2=l2[i]))
    got = ch.project_hoyer(x, 0.5, l2=l2)
    for i in range(4):
        np.testing.assert_array_equal(got[i], ch.project_hoyer(x[i], 0.5, l2=l2[i]))


@every_function
@pytest.mark.parametrize("shape", [(3,), (2, 5), (4, 5, 6), (5,), (2, 1, 1, 1)])
def test_constraints_that_do_not_broadcast(kind, shape):
    name = FUNCTIONS[kind][1]
    with pytest.raises(ValueError, match=name) as caught:
        project(kind, np.ones((4, 5, 6)), np.full(shape, 1.0), axis=1)
    assert str(shape) in str(caught.value)


# ---------------------------------------------------------------------------
# out, overwrite_x, aliasing


@every_method
def test_x_is_never_written_unless_allowed(kind, method):
    x = make("gaussian", 60).reshape(5, 12)
    before = x.copy()
    for v in (x, x.T, x[:, ::2], x[::-1]):
        for axis in (0, 1, None):
            project(kind, v, axis=axis, method=method)
            project(kind, v, axis=axis, method=method, out=np.empty_like(v))
    np.testing.assert_array_equal(x, before)


@every_method
@pytest.mark.parametrize("axis", [0, 1, None])
def test_out_is_returned_itself(kind, method, axis):
    x = make("gaussian", 60).reshape(5, 12)
    expected = project(kind, x, axis=axis, method=method)
    for out in (
        np.full((5, 12), np.nan),
        np.full((12, 5), np.nan).T,
        np.full((10, 24), np.nan)[::2, ::2],
    ):
        assert project(kind, x, axis=axis, method=method, out=out) is out
        np.testing.assert_array_equal(out, expected)


@every_method
@pytest.mark.parametrize("axis", [0, 1, None])
def test_out_may_be_x(kind, method, axis):
    for shape in ((5, 12), (2, 70_000)):
        x = make("gaussian", shape[0] * shape[1]).reshape(shape)
        expected = project(kind, x, axis=axis, method=method)
        assert project(kind, x, axis=axis, method=method, out=x) is x
        np.testing.assert_array_equal(x, expected)


@every_method
def test_overwrite_x(kind, method):
    for shape in ((12,), (5, 12), (70_000,)):
        x = make("gaussian", int(np.prod(shape))).reshape(shape)
        expected = project(kind, x, method=method)
        np.testing.assert_array_equal(project(kind, x, method=method, overwrite_x=True), expected)
    # permission, not a promise: what cannot be written is left alone
    x = make("gaussian", 12)
    x.flags.writeable = False
    before = x.copy()
    np.testing.assert_array_equal(
        project(kind, x, method=method, overwrite_x=True), project(kind, before, method=method)
    )
    np.testing.assert_array_equal(x, before)


@every_method
def test_out_that_overlaps_x_without_being_x(kind, method):
    for n in (13, 70_001):
        buffer = make("gaussian", n)
        expected = project(kind, buffer[:-1].copy(), method=method)
        np.testing.assert_array_equal(
            project(kind, buffer[:-1], method=method, out=buffer[1:]), expected
        )
        buffer = make("gaussian", n)
        expected = project(kind, buffer.copy(), method=method)
        np.testing.assert_array_equal(
            project(kind, buffer, method=method, out=buffer[::-1]), expected
        )
    square = make("gaussian", 49).reshape(7, 7)
    expected = project(kind, square.copy(), axis=0, method=method)
    np.testing.assert_array_equal(
        project(kind, square, axis=0, method=method, out=square.T), expected
    )


@every_method
def test_an_error_spoils_no_x_that_out_lies_over(kind, method):
    for shape, axis in (((6, 7), 1), ((1, 6, 7), 0)):  # slices of one entry are read as a copy
        memory = make("gaussian", 47)
        x = memory[:42].reshape(shape)
        x.flat[-1] = np.nan
        for out in (x, memory[5:].reshape(shape)):
            before = memory.copy()
            with pytest.raises(ValueError, match="x must be finite"):
                project(kind, x, 1.0, axis=axis, method=method, out=out)
            np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
def test_an_error_spoils_no_matrix_that_out_lies_over(project):
    memory = np.random.default_rng(0).standard_normal(47)
    x, out = memory[:42].reshape(2, 3, 7), memory[5:].reshape(2, 3, 7)
    x[1, 2, 6] = np.nan
    before = memory.copy()
    with pytest.raises(ValueError, match="x must be finite"):
        project(x, 1.0, out=out)
    np.testing.assert_array_equal(memory, before)


@every_function
def test_a_result_equal_to_its_input_is_a_copy(kind):
    feasible = {"cai": 12.0, "hoyer": 0.0, "ball": 1e9, "simplex": 12.0}[kind]
    x = np.ones(12)
    result = project(kind, x, feasible)
    np.testing.assert_allclose(result, x, rtol=1e-15)
    assert not np.shares_memory(result, x)
    out = np.empty(12)
    assert project(kind, x, feasible, out=out) is out
    np.testing.assert_allclose(out, x, rtol=1e-15)


@every_function
def test_the_result_owns_writeable_memory(kind):
    x = make("gaussian", 12)
    x.flags.writeable = False
    result = project(kind, x)
    result[:] = 0  # would raise on a read-only view
    assert not np.shares_memory(project(kind, np.broadcast_to(x, (3, 12))), x)


@every_function
@pytest.mark.parametrize(
    ("out", "error", "says"),
    [
        (np.empty(11), ValueError, r"out.*\(11,\)"),
        (np.empty((1, 12)), ValueError, r"out.*\(1, 12\)"),
        (np.empty(12, np.float32), (ValueError, TypeError), "out.*float32"),
        (np.empty(12, int), (ValueError, TypeError), "out.*int"),
        ([0.0] * 12, TypeError, "out.*list"),
    ],
)
def test_bad_out(kind, out, error, says):
    with pytest.raises(error, match=says):
        project(kind, make("gaussian", 12), out=out)


@every_function
def test_out_that_cannot_be_written(kind):
    out = np.empty(12)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        project(kind, make("gaussian", 12), out=out)


@every_function
def test_out_whose_entries_share_memory(kind):
    out = np.lib.stride_tricks.as_strided(np.full(4, 7.0), (3, 4), (0, 8))
    with pytest.raises(ValueError, match=r"memory for each entry, got strides \(0, 8\)"):
        project(kind, make("gaussian", 12).reshape(3, 4), out=out)
    np.testing.assert_array_equal(out, 7.0)
    one = np.lib.stride_tricks.as_strided(np.empty(12), (1, 12), (0, 8))  # no entry beside it
    project(kind, make("gaussian", 12)[None], out=one)
    none = np.lib.stride_tricks.as_strided(np.empty(0), (3, 0), (0, 0))
    assert project(kind, np.empty((3, 0)), out=none) is none


@every_function
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 5), (0, 8)),
        ((5, 2), (8, 0)),
        ((2, 3), (8, 8)),
        ((3, 4), (-8, 16)),
        ((3, 2), (4, 64)),
        ((3, 4), (16, 32)),
        ((2, 3, 4), (32, 40, 8)),
    ],
)
def test_out_whose_entries_share_memory_by_any_strides(kind, axis, shape, strides):
    """Expanded arrays, moving windows, entries that begin within one another."""
    x = np.random.default_rng(0).random(shape)
    room = np.full(100, 7.0)
    out = np.lib.stride_tricks.as_strided(room[20:], shape, strides)
    with pytest.raises(ValueError, match="out must have memory for each entry"):
        project(kind, x, axis=axis, out=out)
    assert (room == 7.0).all()


@every_function
@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize(
    ("shape", "strides"), [((3, 2), (16, 24)), ((2, 3, 4), (8, 16, 56)), ((3, 1, 5), (40, 0, -8))]
)
def test_out_whose_entries_interleave(kind, axis, shape, strides):
    x = np.random.default_rng(0).random(shape)
    room = np.full(100, 7.0)
    out = np.lib.stride_tricks.as_strided(room[20:], shape, strides)
    assert project(kind, x, axis=axis, out=out) is out
    np.testing.assert_array_equal(out, project(kind, x, axis=axis))
    assert (room == 7.0).sum() == 100 - out.size


@pytest.mark.parametrize("bad", [0, np.int64(0), [2, 0]])
def test_an_integer_out_of_range_is_shown_as_given(bad):
    with pytest.raises(ValueError, match=r"^nnz must be >= 1, got 0$"):
        ch.level_for_nnz(np.ones((2, 5)), bad)


def test_a_failed_check_leaves_out_alone():
    out = np.full(3, 7.0)
    with pytest.raises(ValueError, match="level"):
        ch.project_cai(np.ones(3), 0.5, out=out)
    np.testing.assert_array_equal(out, 7.0)


# ---------------------------------------------------------------------------
# dtypes and memory layouts


@every_method
def test_any_memory_layout(kind, method):
    x = make("gaussian", 60).reshape(5, 12)
    expected = project(kind, x, method=method)
    wide = np.zeros((5, 24))
    wide[:, ::2] = x
    backwards = x[::-1, ::-1].copy()[::-1, ::-1]
    frozen = x.copy()
    frozen.flags.writeable = False
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(np.float64).reshape(5, 12)
    unaligned[...] = x
    for v in (np.asfortranarray(x), wide[:, ::2], backwards, frozen, unaligned, x.tolist()):
        np.testing.assert_array_equal(project(kind, v, method=method), expected)


@every_method
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_byte_swapped(kind, method, dtype):
    x = make("gaussian", 60).reshape(5, 12).astype(dtype)
    expected = project(kind, x, method=method)
    swapped = x.astype(x.dtype.newbyteorder())
    before = swapped.tobytes()
    got = project(kind, swapped, method=method)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype.newbyteorder("=") == x.dtype
    assert swapped.tobytes() == before
    out = np.empty_like(got)
    assert project(kind, swapped, method=method, out=out) is out
    np.testing.assert_array_equal(out, expected)


@every_method
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unaligned_memory(kind, method, axis, dtype):
    """Of x and of the result, across the memory as well."""

    def unaligned(like):
        memory = np.zeros(like.nbytes + 1, np.uint8)[1:].view(dtype).reshape(like.shape)
        memory[...] = like
        assert not memory.flags.aligned
        return memory

    x = make("gaussian", 60).reshape(5, 12).astype(dtype)
    expected = project(kind, x, axis=axis, method=method)
    y = unaligned(x)
    np.testing.assert_array_equal(project(kind, y, axis=axis, method=method), expected)
    np.testing.assert_array_equal(y, x)
    for source in (x, y):
        out = unaligned(np.full_like(x, 7))
        assert project(kind, source, axis=axis, method=method, out=out) is out
        np.testing.assert_array_equal(out, expected)
    project(kind, y, axis=axis, method=method, out=y)
    np.testing.assert_array_equal(y, expected)


@every_function
@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", "<f2", "<f4", "<f8"])
def test_byte_order_does_not_change_what_counts_as_feasible(kind, dtype):
    """The slack is that of the dtype: projecting twice changes nothing."""
    for seed in range(20):
        once = project(kind, make("gaussian", 300, seed).astype(dtype))
        twice = project(kind, once.astype(dtype))
        np.testing.assert_array_equal(twice, once)


@every_method
@pytest.mark.parametrize("axis", [0, 1])
def test_read_only_memory_compiles_nothing_anew(kind, method, axis):
    """Numba has a kernel for what is read-only: that would take seconds."""
    x = make("gaussian", 60).reshape(5, 12)

    def compiled():
        kernels = (vars(m) for name, m in sys.modules.items() if name.startswith("conehoyer._cpu"))
        return sum(len(getattr(k, "overloads", ())) for names in kernels for k in names.values())

    project(kind, x, axis=axis, method=method)
    before = compiled()
    x.flags.writeable = False
    project(kind, x, axis=axis, method=method)
    assert compiled() == before > 0


@every_method
@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, bool])
def test_integers_and_bool_become_float64(kind, method, dtype):
    x = np.array([0, 1, 3, 2, 0, 1, 7, 5]).astype(dtype)
    got = project(kind, x, method=method)
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, project(kind, x.astype(float), method=method))
    out = np.empty(8)
    assert project(kind, x, method=method, out=out) is out
    # an integer array cannot hold the result, even where overwriting is allowed
    before = x.copy()
    project(kind, x, method=method, overwrite_x=True)
    np.testing.assert_array_equal(x, before)


@every_method
def test_a_list_of_integers(kind, method):
    np.testing.assert_array_equal(
        project(kind, [3, -1, 2, 0], method=method),
        project(kind, np.array([3.0, -1, 2, 0]), method=method),
    )


@every_method
def test_float16_is_computed_wider_and_rounded_once(kind, method):
    x = make("gaussian", 200).astype(np.float16)
    got = project(kind, x, method=method)
    assert got.dtype == np.float16
    wide = project(kind, x.astype(np.float32), method=method)
    np.testing.assert_array_equal(got, wide.astype(np.float16))
    np.testing.assert_array_equal(project(kind, got, method=method), got)
    out = np.empty_like(x)
    assert project(kind, x, method=method, out=out) is out
    np.testing.assert_array_equal(out, got)
    # sums beyond the largest float16 are no obstacle
    large = np.full(4000, 100, np.float16)
    large[0] = 101
    assert np.all(np.isfinite(ch.project_cai(large, 100.0)))


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = make("gaussian", 200).astype(ml_dtypes.bfloat16)
    for kind in FUNCTIONS:
        got = project(kind, x)
        assert got.dtype == x.dtype
        wide = project(kind, x.astype(np.float32))
        assert got.tobytes() == wide.astype(ml_dtypes.bfloat16).tobytes()
    assert ch.hoyer_score(x).dtype == np.float64


@every_function
def test_long_double_keeps_its_dtype(kind):
    x = make("gaussian", 50)
    got = project(kind, x.astype(np.longdouble))
    assert got.dtype == np.longdouble
    np.testing.assert_array_equal(got, project(kind, x))


@every_function
def test_array_likes(kind):
    class Wrapped:
        def __array__(self, dtype=None, copy=None):
            return np.arange(1.0, 9.0)

    np.testing.assert_array_equal(project(kind, Wrapped()), project(kind, np.arange(1.0, 9.0)))
    assert type(project(kind, np.arange(1.0, 9.0))) is np.ndarray


@every_function
def test_types_that_are_refused(kind):
    from scipy import sparse

    bad = {
        "complex": np.ones(4, complex),
        "object": np.array([1.0, None], object),
        "mask": np.ma.masked_array([1.0, 2.0], mask=[False, True]),
        "sparse": sparse.csr_array(np.eye(3)),
        "U1": np.array(["1", "2"]),
    }
    for word, x in bad.items():
        with pytest.raises(TypeError, match=rf"(?i)x\b.*{word}"):
            project(kind, x)
    with pytest.raises(TypeError, match=r"(?i)mask"):
        project(kind, np.ma.masked_array([1.0, 2.0]))  # no entry is masked: still refused
    with pytest.raises(ValueError, match="x is no array"):
        project(kind, [[1.0, 2.0], [3.0]])


@every_method
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_empty_arrays(kind, method, shape):
    x = np.empty(shape, np.float32)
    value = 1.0  # valid for each of them, whatever the length
    for axis in [None, *range(len(shape))]:
        got = project(kind, x, value, axis=axis, method=method)
        assert got.shape == shape
        assert got.dtype == np.float32
        got, info = project(kind, x, value, axis=axis, method=method, full_output=True)
        slices = () if axis is None else tuple(np.delete(shape, axis))
        assert np.shape(info.nnz) == slices
        assert not np.any(info.nnz)


def test_empty_arrays_in_scores_and_levels():
    for shape in [(0,), (0, 3), (3, 0)]:
        x = np.empty(shape)
        for score, value in [(ch.cai_score, 0), (ch.hoyer_score, 0), (ch.hoyer_sparseness, 1)]:
            got = score(x)
            assert np.shape(got) == shape[:-1]
            assert np.all(got == value)
        assert np.shape(ch.level_for_nnz(x, 1)) == shape[:-1]


@every_method
def test_zero_dimensional(kind, method):
    """One number is a vector of length one under axis=None."""
    got = project(kind, np.array(-3.0), 1.0, axis=None, method=method)
    assert np.shape(got) == ()
    vector = project(kind, np.array([-3.0]), 1.0, method=method)
    assert got == vector[0]
    assert project(kind, -3.0, 1.0, axis=None, method=method) == vector[0]


# ---------------------------------------------------------------------------
# NaN and inf


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_check_finite_where_a_sample_leads(dtype, bad, workers):
    """The band's sums meet what the sample has not seen; long vectors, parameters of all sizes."""
    for n in (20_000, 400_000):
        x = make("gaussian", n).astype(dtype)
        x[n // 3] = bad
        for kept in (0.001, 0.01, 0.1, 0.3, 0.5):
            for project, parameter in (
                (ch.project_cai, kept * n),
                (ch.project_hoyer, 1.0 - kept),
                (ch.project_l1_ball, kept * n),
                (ch.project_simplex, kept * n),
            ):
                with pytest.raises(ValueError, match=r"(?i)\bx\b.*(nan|inf)"):
                    project(x, parameter, workers=workers)
                y = project(x, parameter, workers=workers, check_finite=False)
                assert np.isnan(y).all(), (n, kept, project)


@every_method
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_check_finite(kind, method, bad, dtype):
    for n in (2, 50, 9000, 70_000):
        for place in (0, n // 2, n - 1):
            x = make("gaussian", n).astype(dtype)
            x[place] = bad
            before = x.copy()
            with pytest.raises(ValueError, match=r"(?i)\bx\b.*(nan|inf)"):
                project(kind, x, method=method)
            np.testing.assert_array_equal(x, before)
        if method in ("iterative", "alternating"):
            break


@every_method
def test_check_finite_in_a_batch(kind, method):
    x = make("gaussian", 60).reshape(5, 12)
    x[3, 7] = np.nan
    for axis in (0, 1, None):
        with pytest.raises(ValueError, match=r"(?i)nan"):
            project(kind, x, axis=axis, method=method)


@every_method
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_without_the_check_the_slice_is_nan(kind, method, bad):
    """The call ends, and a wrong answer cannot be taken for a right one."""
    for shape in ((5, 12), (2, 70_000)):
        x = make("gaussian", shape[0] * shape[1]).reshape(shape)
        clean = project(kind, x, method=method)
        x[1, 7] = bad
        got = project(kind, x, method=method, check_finite=False)
        assert np.all(np.isnan(got[1]))
        others = np.arange(shape[0]) != 1
        np.testing.assert_array_equal(got[others], clean[others])


@every_method
def test_two_infinities_of_opposite_sign(kind, method):
    x = np.array([np.inf, -np.inf, 1.0])
    with pytest.raises(ValueError, match=r"(?i)inf|nan"):
        project(kind, x, 1.0, method=method)
    assert np.all(np.isnan(project(kind, x, 1.0, method=method, check_finite=False)))


@every_method
def test_without_the_check_finite_data_is_the_same(kind, method):
    x = make("gaussian", 500)
    np.testing.assert_array_equal(
        project(kind, x, method=method, check_finite=False), project(kind, x, method=method)
    )


# ---------------------------------------------------------------------------
# full_output


@every_method
def test_full_output_of_one_vector(kind, method):
    x = make("gaussian", 200)
    value = {"cai": 20.0, "hoyer": 0.8, "ball": 15.0, "simplex": 15.0}[kind]
    result, info = project(kind, x, value, method=method, full_output=True)
    np.testing.assert_array_equal(result, project(kind, x, value, method=method))
    for field in INFO_FIELDS:
        assert np.shape(getattr(info, field)) == (), field
    assert info.nnz == np.count_nonzero(result)
    assert info.converged
    assert info.passes >= 1
    a = x if kind == "simplex" else np.abs(x)
    b = np.abs(result)
    on = b > 0
    assert a[~on].max() <= info.threshold * (1 + 1e-9) <= a[on].min() * (1 + 1e-9)
    ratio = (a[on] - info.threshold) / b[on]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    reached = b.sum() if kind in ("ball", "simplex") else b.sum() ** 2 / (b @ b)
    assert info.level == pytest.approx(reached, rel=1e-12)
    assert info.support is not None
    assert np.all(info.support <= x.size)
    if method in ("cfp", "newton"):  # the engine's passes; the last one saw the answer
        assert len(info.support) == info.passes
        assert info.support[-1] == info.nnz


@every_method
def test_full_output_of_a_batch(kind, method):
    x = make("gaussian", 120).reshape(4, 5, 6)
    for axis, shape in [(0, (5, 6)), (1, (4, 6)), (2, (4, 5)), (None, ())]:
        result, info = project(kind, x, axis=axis, method=method, full_output=True)
        for field in INFO_FIELDS:
            assert np.shape(getattr(info, field)) == shape, (axis, field)
        np.testing.assert_array_equal(info.nnz, np.count_nonzero(result, axis=axis))
        assert np.all(info.converged)
        if axis is not None:
            assert info.support is None


@every_method
@pytest.mark.parametrize("n", [4, 70_000])
def test_the_report_on_a_slice_that_is_not_finite(kind, method, n):
    x = make("gaussian", 3 * n).reshape(3, n)
    x[1, n // 2] = np.nan
    for y, axis in ((x, 1), (x.T, 0)):
        _, info = project(kind, y, axis=axis, method=method, check_finite=False, full_output=True)
        assert np.isnan([info.threshold[1], info.level[1]]).all()
        assert np.isfinite([info.threshold[::2], info.level[::2]]).all()


@every_function
def test_options_that_count_as_true_or_false(kind):
    x = make("gaussian", 60).reshape(5, 12)
    for axis in (0, 1):
        for option in (0, 1, None, np.True_):
            y = project(kind, x, axis=axis, check_finite=option)
            np.testing.assert_array_equal(y, project(kind, x, axis=axis))


@every_function
def test_full_output_with_out(kind):
    x = make("gaussian", 12)
    out = np.empty(12)
    result, info = project(kind, x, out=out, full_output=True)
    assert result is out
    assert info.nnz == np.count_nonzero(out)


def test_the_threshold_of_a_feasible_vector_is_zero():
    for call in (
        lambda **k: ch.project_cai(np.ones(5), 5.0, **k),
        lambda **k: ch.project_l1_ball(np.ones(5), 9.0, **k),
    ):
        _, info = call(full_output=True)
        assert info.threshold == 0
        assert info.nnz == 5
        assert info.level == pytest.approx(5)


# ---------------------------------------------------------------------------
# workers


@pytest.mark.usefixtures("every_array_is_large")
@every_function
def test_workers_do_not_change_a_bit(kind):
    value = {"cai": 500.0, "hoyer": 0.9, "ball": 300.0, "simplex": 300.0}[kind]
    for x in (
        make("laplace", 1_500_001),
        make("laplace", 600_000).reshape(600, 1000),
        make("laplace", 600_000).reshape(3, 200_000),
        make("near_constant", 400_000),
    ):
        one = project(kind, x, value, workers=1).tobytes()
        for workers in (2, 3, -1):
            assert project(kind, x, value, workers=workers).tobytes() == one
        with ch.set_workers(2):
            assert project(kind, x, value).tobytes() == one


@every_method
@pytest.mark.usefixtures("every_array_is_large")
def test_workers_share_the_rows_by_every_method(kind, method):
    x = make("gaussian", 280).reshape(7, 40)
    values = np.linspace(0.3, 0.9, 7) if kind == "hoyer" else np.linspace(1.0, 9.0, 7)
    expected, told = project(kind, x, values, method=method, full_output=True)
    for workers in (2, 3, 7, 9):
        got, info = project(kind, x, values, method=method, workers=workers, full_output=True)
        np.testing.assert_array_equal(got, expected)
        for field in INFO_FIELDS:
            np.testing.assert_array_equal(getattr(info, field), getattr(told, field), field)


def test_set_workers_is_a_context():
    before = ch.get_workers()
    assert before == 1
    with ch.set_workers(3):
        assert ch.get_workers() == 3
        with ch.set_workers(2):
            assert ch.get_workers() == 2
        assert ch.get_workers() == 3
    assert ch.get_workers() == before
    with pytest.raises(ZeroDivisionError), ch.set_workers(2):
        raise ZeroDivisionError
    assert ch.get_workers() == before
    with ch.set_workers(-1):
        assert ch.get_workers() >= 1


@pytest.mark.parametrize("workers", [0, -10_000])
def test_bad_number_of_workers(workers):
    with pytest.raises(ValueError, match=rf"workers.*{workers}"):
        ch.project_cai(np.ones(3), 2.0, workers=workers)
    with pytest.raises(ValueError, match=rf"workers.*{workers}"), ch.set_workers(workers):
        pass
    with pytest.raises(ValueError, match=rf"workers.*{workers}"):
        ch.hoyer_score(np.ones(3), workers=workers)


@pytest.mark.parametrize("workers", [1.5, "2"])
def test_workers_must_be_an_integer(workers):
    with pytest.raises(TypeError, match="workers"):
        ch.project_cai(np.ones(3), 2.0, workers=workers)


# ---------------------------------------------------------------------------
# errors name the argument and the value


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (lambda x: ch.project_cai(x, 0.5), "level", "0.5"),
        (lambda x: ch.project_cai(x, -2.0), "level", "-2"),
        (lambda x: ch.project_cai(x, np.nan), "level", "nan"),
        (lambda x: ch.project_cai(x.reshape(2, 3), [2.0, 0.25]), "level", "0.25"),
        (lambda x: ch.project_hoyer(x, 1.5), "sparseness", "1.5"),
        (lambda x: ch.project_hoyer(x, -0.25), "sparseness", "-0.25"),
        (lambda x: ch.project_hoyer(x, np.nan), "sparseness", "nan"),
        (lambda x: ch.project_hoyer(x.reshape(2, 3), [0.5, 1.75]), "sparseness", "1.75"),
        (lambda x: ch.project_hoyer(x, 0.5, l2=-3.0), "l2", "-3"),
        (lambda x: ch.project_hoyer(x, l1=-1.0, l2=1.0), "l1", "-1"),
        (lambda x: ch.project_hoyer(x, l1=0.5, l2=1.0), "l1", "0.5"),
        (lambda x: ch.project_hoyer(x, l1=7.5, l2=1.0), "l1", "7.5"),
        (lambda x: ch.project_hoyer(x, l1=1.0, l2=np.inf), "l2", "inf"),
        (lambda x: ch.project_l1_ball(x, -1.5), "radius", "-1.5"),
        (lambda x: ch.project_l1_ball(x, np.nan), "radius", "nan"),
        (lambda x: ch.project_simplex(x, -1.5), "total", "-1.5"),
        (lambda x: ch.project_simplex(x, np.nan), "total", "nan"),
        (lambda x: ch.project_simplex(x, np.inf), "total", "inf"),
    ],
)
def test_values_out_of_range(call, name, value):
    with pytest.raises(ValueError, match=name) as caught:
        call(make("gaussian", 6))
    assert value in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ch.project_hoyer(x),
        lambda x: ch.project_hoyer(x, l1=2.0),
        lambda x: ch.project_hoyer(x, l2=2.0),
        lambda x: ch.project_hoyer(x, 0.5, l1=2.0, l2=1.0),
        lambda x: ch.project_hoyer(x, 0.5, l1=2.0),
    ],
)
def test_hoyer_wants_the_sparseness_or_both_norms(call):
    with pytest.raises((TypeError, ValueError), match=r"(l1.*l2|l2.*l1)"):
        call(make("gaussian", 6))


@every_function
def test_integers_beyond_all_floats(kind):
    """They count as infinite: a bound that is met, unless the result is to meet it."""
    x = make("gaussian", 6)
    if kind in ("cai", "ball"):
        np.testing.assert_array_equal(project(kind, x, 10**400), x)
        with pytest.raises(ValueError, match=rf"{FUNCTIONS[kind][1]}.*-1000"):
            project(kind, x, -(10**400))
    else:
        with pytest.raises(ValueError, match=rf"{FUNCTIONS[kind][1]}.*1000"):
            project(kind, x, 10**400)


RAGGED = [[1.0], [1.0, 2.0]]
MASKED = np.ma.masked_array([1, 1], [True, False])
GROUPED = np.ones((2, 3, 4))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("level", lambda v: ch.project_cai(np.ones((2, 3)), v)),
        ("sparseness", lambda v: ch.project_hoyer(np.ones((2, 3)), v)),
        ("l1", lambda v: ch.project_hoyer(np.ones((2, 3)), l1=v, l2=1.0)),
        ("l2", lambda v: ch.project_hoyer(np.ones((2, 3)), 0.5, l2=v)),
        ("radius", lambda v: ch.project_l1_ball(np.ones((2, 3)), v)),
        ("total", lambda v: ch.project_simplex(np.ones((2, 3)), v)),
        ("level", lambda v: ch.project_bilevel(GROUPED, v)),
        ("radius", lambda v: ch.project_bilevel(GROUPED, radius=v)),
        ("groups", lambda v: ch.project_bilevel(GROUPED, 2.0, groups=v)),
        ("radius", lambda v: ch.project_l1inf_ball(GROUPED, v)),
        ("sparseness", lambda v: ch.project_gsp(np.ones(3), v)),
        ("nnz", lambda v: ch.level_for_nnz(np.ones((2, 3)), v)),
        ("n_groups", lambda v: ch.level_for_groups(GROUPED, v)),
        ("sparseness", lambda v: ch.level_for_sparseness(v, 5)),
        ("n", lambda v: ch.level_for_sparseness(0.5, v)),
    ],
)
def test_parameters_are_whole_arrays_without_masks(name, call):
    with pytest.raises(ValueError, match=f"^{name} is no array: "):
        call(RAGGED)
    with pytest.raises(TypeError, match=f"^{name} must not be a masked array"):
        call(MASKED)


def test_sparseness_and_lengths_must_broadcast():
    with pytest.raises(ValueError, match=r"sparseness and n .*\(2,\) and \(3,\)"):
        ch.level_for_sparseness([0.5, 0.5], [4, 5, 6])


@every_function
@pytest.mark.parametrize("value", ["2", 1j, object()])
def test_constraints_must_be_real_numbers(kind, value):
    with pytest.raises(TypeError, match=f"{FUNCTIONS[kind][1]} .*{re.escape(repr(value))}"):
        project(kind, np.ones(4), value)
    with pytest.raises(TypeError, match=f"{FUNCTIONS[kind][1]} .*dtype"):
        project(kind, np.ones((1, 4)), np.array([value]))


@every_function
@pytest.mark.parametrize("method", ["fastest", "", None, 3, np.array(["newton", "cfp"])], ids=repr)
def test_unknown_method(kind, method):
    with pytest.raises((ValueError, TypeError), match="method") as caught:
        project(kind, np.ones(4), method=method)
    assert repr(method) in str(caught.value)
    for known in METHODS[kind]:
        assert known in str(caught.value)  # and says what there is


@every_function
def test_the_options_are_keywords(kind):
    with pytest.raises(TypeError):
        FUNCTIONS[kind][0](np.ones(4), 1.0, -1)


def test_defaults():
    x = make("gaussian", 20)
    np.testing.assert_array_equal(ch.project_l1_ball(x), ch.project_l1_ball(x, 1.0))
    np.testing.assert_array_equal(ch.project_simplex(x), ch.project_simplex(x, 1.0))


def test_convergence_warning_is_a_warning():
    assert issubclass(ch.ConvergenceWarning, Warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ch.project_cai(make("gaussian", 1000), 30.0)


def test_public_names():
    for name in ch.__all__:
        assert getattr(ch, name) is not None
        assert name in dir(ch)
    with pytest.raises(AttributeError, match="no_such_name"):
        ch.no_such_name  # noqa: B018


# ---------------------------------------------------------------------------
# any combination of shape, axis, dtype, order and option


@given(st.data())
def test_options_do_not_change_the_answer(data):
    kind = data.draw(st.sampled_from(list(FUNCTIONS)))
    method = data.draw(st.sampled_from(METHODS[kind]))
    shape = tuple(data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)))
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64, np.int32]))
    seed = data.draw(st.integers(0, 100))
    x = (10 * make("gaussian", int(np.prod(shape)), seed)).reshape(shape).astype(dtype)
    axis = data.draw(st.sampled_from([None, *range(-len(shape), len(shape))]))
    nonneg = {} if kind == "simplex" else {"nonneg": data.draw(st.booleans())}
    value = 0.6 if kind == "hoyer" else 1.5
    expected = project(kind, x, value, axis=axis, method=method, **nonneg)
    assert expected.shape == shape
    assert expected.dtype == (np.float64 if dtype == np.int32 else dtype)

    source = x
    layout = data.draw(st.sampled_from(["C", "F", "strided", "swapped", "read-only"]))
    if layout == "F":
        source = np.asfortranarray(x)
    elif layout == "strided":
        source = np.repeat(x, 2, axis=-1)[..., ::2]
    elif layout == "swapped":
        source = x.astype(x.dtype.newbyteorder())
    elif layout == "read-only":
        source = x.copy()
        source.flags.writeable = False
    options = {
        "workers": data.draw(st.sampled_from([None, 1, 2])),
        "check_finite": data.draw(st.booleans()),
        "overwrite_x": data.draw(st.booleans()) and source is not x,
    }
    if data.draw(st.booleans()):
        order = data.draw(st.sampled_from("CF"))
        options["out"] = np.full(shape, 99, expected.dtype, order=order)
    got = project(kind, source, value, axis=axis, method=method, **nonneg, **options)
    np.testing.assert_array_equal(got, expected)
    if "out" in options:
        assert got is options["out"]


def test_an_array_that_could_lie_on_a_gpu_but_does_not():
    """As JAX has them: a property of the class, which raises."""

    class Array:
        @property
        def __cuda_array_interface__(self):
            raise AttributeError("on the host")

        def __array__(self, dtype=None, copy=None):
            return np.array([3.0, 1.0], dtype)

    np.testing.assert_array_equal(ch.project_cai(Array(), 1.0), [3.0, 0.0])


@pytest.mark.parametrize("axis", [0, 1, None])
def test_overwriting_a_list_or_a_subclass(axis):
    x = [[3.0, 1.0, 0.2], [1.0, -2.0, 0.5]]
    expected = ch.project_cai(np.array(x), 1.5, axis=axis)
    np.testing.assert_array_equal(ch.project_cai(x, 1.5, axis=axis, overwrite_x=True), expected)
    given = np.array(x).view(type("Own", (np.ndarray,), {}))
    got = ch.project_cai(given, 1.5, axis=axis, overwrite_x=True)
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, expected)
    assert type(ch.project_bilevel(given, 1.5, overwrite_x=True)) is np.ndarray
    assert ch.project_bilevel(x, 1.5, overwrite_x=True).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_results_of_swapped_data_are_native(dtype, axis):
    x = np.random.default_rng(0).standard_normal((5, 12)).astype(dtype)
    swapped = x.astype(x.dtype.newbyteorder())
    got = ch.project_cai(swapped, 1.5, axis=axis)
    assert got.dtype == x.dtype
    assert got.dtype.isnative
    out = np.empty_like(x)
    assert ch.project_cai(swapped, 1.5, axis=axis, out=out) is out
    np.testing.assert_array_equal(out, got)


def test_a_number_where_x_belongs():
    y = np.arange(5.0)
    calls = [
        lambda: ch.project_cai(2.0, y),
        lambda: ch.project_hoyer(0.5, y),
        lambda: ch.project_l1_ball(2.0, y),
        lambda: ch.level_for_nnz(2, y),
        lambda: ch.hoyer_score(2.0),
    ]
    for call in calls:
        with pytest.raises(np.exceptions.AxisError, match="x must have at least one dimension"):
            call()
    assert ch.hoyer_score(2.0, axis=None) == 1.0


def test_integers_beyond_64_bits_are_large():
    assert ch.level_for_nnz(np.arange(5.0), 10**30) == 5.0
    assert ch.level_for_groups(np.eye(3), 10**30) == 3.0
    with pytest.raises(ValueError, match="nnz must be >= 1, got -1000"):
        ch.level_for_nnz(np.arange(5.0), -(10**30))
    assert ch.level_for_sparseness(0.0, 2**41) == 2.0**41


@every_function
def test_bfloat16_twice_changes_nothing(kind):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    once = project(kind, make("gaussian", 200).astype(ml_dtypes.bfloat16))
    assert project(kind, once).tobytes() == once.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("excess", "feasible"), [(1.8, True), (2.2, False)])
def test_the_slack_of_16_bits_is_twice_the_epsilon(dtype, excess, feasible):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([4.0, 3.0, 2.0, 1.0]).astype(getattr(ml_dtypes, dtype, dtype))
    epsilon = 2.0**-10 if dtype == "float16" else 2.0**-7
    _, info = ch.project_cai(x, 10.0 / 3.0 / (1.0 + excess * epsilon), full_output=True)
    assert (info.threshold == 0.0) == feasible


@every_method
@pytest.mark.parametrize("axis", [0, 1])
def test_overwrite_x_writes_over_x(kind, method, axis):
    """Permission, not a promise; but it is what saves the memory of usual arrays."""
    x = make("gaussian", 60).reshape(5, 12)
    x = x if axis else np.asfortranarray(x)
    assert project(kind, x, axis=axis, method=method, overwrite_x=True) is x


@every_function
def test_overwrite_x_across_the_memory_writes_over_x(kind):
    x = make("gaussian", 60).reshape(5, 12)
    assert project(kind, x, axis=0, overwrite_x=True) is x


@every_function
def test_x_whose_entries_share_memory_is_not_overwritten(kind):
    memory = make("gaussian", 10)
    x = np.lib.stride_tricks.sliding_window_view(memory, 3, writeable=True)
    expected = project(kind, x.copy())
    np.testing.assert_array_equal(project(kind, x, overwrite_x=True), expected)


@every_function
def test_an_out_of_a_wider_dtype_is_refused(kind):
    with pytest.raises(ValueError, match=r"out.*float32.*float64"):
        project(kind, make("gaussian", 12).astype("f4"), out=np.empty(12))


def test_a_view_of_read_only_memory_keeps_it_alive():
    owner = np.arange(3.0)
    owner.flags.writeable = False
    view, alive = _checks.borrowed(owner), weakref.ref(owner)
    del owner
    gc.collect()
    assert alive() is not None
    assert view[2] == 2.0


@every_function
def test_a_read_only_x_across_the_memory_is_left_alone(kind):
    x = make("gaussian", 60).reshape(5, 12)
    expected = project(kind, x, axis=0)
    x.flags.writeable = False
    np.testing.assert_array_equal(project(kind, x, axis=0, overwrite_x=True), expected)


@every_function
def test_nan_among_the_constraints(kind):
    with pytest.raises(ValueError, match=f"{FUNCTIONS[kind][1]} must be .*nan"):
        project(kind, np.ones((2, 4)), [1.0, np.nan])


@every_function
@pytest.mark.parametrize("out", [np.empty((12, 5)), np.empty((5, 11)), [[0.0] * 12] * 5])
def test_bad_out_across_the_memory(kind, out):
    with pytest.raises((TypeError, ValueError), match="out must"):
        project(kind, make("gaussian", 60).reshape(5, 12), axis=0, out=out)


@every_function
def test_a_read_only_out_across_the_memory(kind):
    out = np.empty((5, 12))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        project(kind, make("gaussian", 60).reshape(5, 12), axis=0, out=out)


@every_function
def test_out_that_overlaps_x_across_the_memory(kind):
    """Of several panels of columns, the first must not write what the second reads."""
    memory = make("gaussian", 200_100)
    x, out = memory[:-100].reshape(1000, 200), memory[100:].reshape(1000, 200)
    expected = project(kind, x.copy(), axis=0)
    np.testing.assert_array_equal(project(kind, x, axis=0, out=out), expected)


@every_function
@pytest.mark.parametrize("value", [True, np.True_, [True, True]])
def test_booleans_are_no_constraints(kind, value):
    with pytest.raises(TypeError, match=f"{FUNCTIONS[kind][1]} must be real numbers"):
        project(kind, np.ones((2, 4)), value)


@pytest.mark.parametrize("value", [True, np.True_, [True, True]])
def test_booleans_are_no_counts(value):
    with pytest.raises(TypeError, match="nnz must be integers"):
        ch.level_for_nnz(np.ones((2, 4)), value)


def test_more_nonzeros_than_a_million():
    assert ch.level_for_nnz(np.ones(2**20 + 9), 2**20 + 5) == 2**20 + 5


def test_an_error_of_the_data_itself_is_not_renamed():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError, match="the disk is gone"):
        ch.project_cai(Broken(), 1.5)


def test_the_error_on_nan_says_how_to_skip_the_check():
    with pytest.raises(ValueError, match="check_finite=False lets them through"):
        ch.project_cai([1.0, np.nan], 1.5)


@pytest.mark.parametrize(("l1", "l2"), [(1.0, 0.0), (1e308, 1e-10), (1.0, 5e-324)])
def test_norms_whose_ratio_is_no_number_are_refused(l1, l2):
    """With the error alone: no warning of the division."""
    with pytest.raises(ValueError, match="no vector of length 3 has these norms"):
        ch.project_hoyer([3.0, 2.0, 1.0], l1=l1, l2=l2)


@pytest.mark.parametrize("l2", [0.0, 0, [0.0]])
def test_a_norm_of_zero_is_not_the_norm_of_the_data(l2):
    np.testing.assert_array_equal(ch.project_hoyer([[3.0, 2.0, 1.0]], 0.5, l2=l2), 0.0)


def test_both_norms_zero():
    np.testing.assert_array_equal(ch.project_hoyer([3.0, 2.0, 1.0], l1=0.0, l2=0.0), 0.0)


@pytest.mark.parametrize(("l1", "l2"), [(0.3, 0.1 * 3), (np.sqrt(3.0) * (1 + 2e-16), 1.0)])
def test_norms_at_their_limits_but_for_rounding(l1, l2):
    x = ch.project_hoyer([3.0, 2.0, 1.0], l1=l1, l2=l2)
    assert np.linalg.norm(x) == pytest.approx(l2, rel=1e-14)


@pytest.mark.parametrize(("l1", "l2"), [(1 - 1e-11, 1.0), (np.sqrt(3.0) * (1 + 1e-11), 1.0)])
def test_norms_just_beyond_their_limits(l1, l2):
    with pytest.raises(ValueError, match="no vector of length 3 has these norms"):
        ch.project_hoyer([3.0, 2.0, 1.0], l1=l1, l2=l2)


def test_the_slice_whose_norms_are_impossible_is_named():
    with pytest.raises(ValueError, match=r"got l1=5\.0, l2=2\.0"):
        ch.project_hoyer(np.ones((2, 3)), l1=[1.0, 5.0], l2=[1.0, 2.0])


def test_empty_slices_have_no_impossible_norms():
    assert ch.project_hoyer(np.empty((2, 0)), l1=5.0, l2=1.0).shape == (2, 0)


@every_method
@pytest.mark.parametrize("shape", [(12,), (5, 12)])
def test_x_survives_an_error_in_place(kind, method, shape):
    x = make("gaussian", int(np.prod(shape))).reshape(shape)
    x.flat[-1] = np.nan
    before = x.copy()
    for options in ({"out": x}, {"overwrite_x": True}):
        with pytest.raises(ValueError, match="x must be finite"):
            project(kind, x, method=method, **options)
        np.testing.assert_array_equal(x, before)


@every_method
@pytest.mark.parametrize("axis", [0, 1])
def test_without_the_check_in_place(kind, method, axis):
    x = make("gaussian", 60).reshape(5, 12)
    x[3, 7] = np.nan
    expected = project(kind, x.copy(), axis=axis, method=method, check_finite=False)
    project(kind, x, axis=axis, method=method, check_finite=False, out=x)
    np.testing.assert_array_equal(x, expected)


@every_function
def test_x_survives_an_error_in_place_across_the_memory(kind):
    """Of several panels of columns, none is written."""
    x = make("gaussian", 200_000).reshape(1000, 200)
    x[3, 150] = np.nan
    before = x.copy()
    with pytest.raises(ValueError, match="x must be finite"):
        project(kind, x, axis=0, out=x)
    np.testing.assert_array_equal(x, before)


@every_function
def test_the_report_of_a_batch_has_integers(kind):
    _, info = project(kind, make("gaussian", 60).reshape(5, 12), full_output=True)
    assert [np.asarray(v).dtype.kind for v in (info.nnz, info.passes, info.converged)] == [*"iib"]


def test_nonzeros_that_float16_does_not_hold_are_not_counted():
    x = np.array([2.0**-12, 2.0**-14], np.float16)
    y, info = ch.project_l1_ball(x, 3 * 2.0**-14 + 2.0**-26, full_output=True)
    assert info.nnz == np.count_nonzero(y) == 1


@every_method
def test_the_report_on_nothing(kind, method):
    _, info = project(kind, np.empty(0), 1.0, method=method, full_output=True)
    assert info.converged is True
    assert info.support.shape == (0,)
    _, info = project(kind, np.empty((3, 0)), 1.0, method=method, full_output=True)
    np.testing.assert_array_equal(info.converged, [True] * 3)


@pytest.mark.parametrize(
    ("kind", "method"), [(k, m) for k in ("ball", "simplex") for m in METHODS[k]]
)
def test_the_report_on_what_was_not_searched(kind, method):
    for n in (3, 50, 5000):
        _, info = project(kind, make("gaussian", n), 0.0, method=method, full_output=True)
        assert np.all(info.support >= 0)


@every_function
def test_methods_of_other_functions_are_unknown(kind):
    others = {method for methods in METHODS.values() for method in methods} - {*METHODS[kind]}
    for method in others:
        with pytest.raises(ValueError, match=f"method must be one of .*'{method}'"):
            project(kind, np.ones(4), method=method)


@pytest.mark.parametrize("method", METHODS["hoyer"])
def test_hoyer_returns_what_float32_cannot_tell_from_feasible(method):
    x = np.array([4.0, 3.0, 2.0, 1.0], np.float32)
    y = ch.project_hoyer(x, ch.hoyer_sparseness(x) * (1 - 2e-6), method=method)
    np.testing.assert_array_equal(y, x)


def test_modules_are_listed():
    assert {"blocksparse", "optim"} <= {*dir(ch)}
    assert ("torch" in dir(ch)) == (find_spec("torch") is not None)


def test_the_stub_has_every_public_name():
    stub = Path(ch.__file__).with_suffix(".pyi").read_text()
    assert {*re.findall(r" as (\w+)$", stub, re.M)} == {
        *ch.__all__,
        "blocksparse",
        "optim",
        "torch",
    }


def test_reports_cannot_be_changed():
    _, info = ch.project_l1_ball(np.ones(3), full_output=True)
    with pytest.raises(AttributeError):
        info.level = 2.0


def test_float16_holds_no_more():
    """What exceeds its largest number is inf, without a warning of NumPy's."""
    x = ch.project_cai(np.array([65504, 65000, 64000], np.float16), 1.5)
    assert np.isinf(x[0])


class Raising:
    """An array of the host with a property that there is only on a GPU."""

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("not on a GPU")

    def __array__(self, dtype=None, copy=None):
        return np.array([3.0, 2.0, 1.0])


class Proxy:
    """One that has any attribute, as those of tracers do, but for its type."""

    def __getattr__(self, name):
        if name == "__cuda_array_interface__":
            return {}
        raise AttributeError(name)

    def __array__(self, dtype=None, copy=None):
        return np.array([3.0, 2.0, 1.0])


@pytest.mark.parametrize("kind", [Raising, Proxy])
def test_arrays_of_the_host_that_look_like_those_of_a_gpu(kind):
    expected = ch.project_cai([3.0, 2.0, 1.0], 1.5)
    np.testing.assert_array_equal(ch.project_cai(kind(), 1.5), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_of_fortran_order_need_no_memory_but_the_results(dtype):
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((400, 300)), dtype)
    ch.project_cai(x, 9.0, axis=0)
    tracemalloc.start()
    result = ch.project_cai(x, 9.0, axis=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.flags.f_contiguous
    assert peak < 1.5 * x.nbytes


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("axis", range(3))
def test_any_order_in_memory_gives_the_same_bits(order, axis, dtype):
    """Wherever the slices lie, and wherever the result goes; it lies as x does."""
    x = np.random.default_rng(1).standard_normal((4, 5, 6)).astype(dtype)
    expected = ch.project_l1_ball(np.moveaxis(x, axis, -1).copy(), 1.5)
    expected = np.moveaxis(expected, -1, axis)
    turned = np.transpose(np.transpose(x, order).copy(), np.argsort(order))
    before = turned.copy()
    result = ch.project_l1_ball(turned, 1.5, axis=axis)
    np.testing.assert_array_equal(result, expected)
    assert not np.shares_memory(result, turned)
    np.testing.assert_array_equal(turned, before)
    for out in (np.empty_like(result, order="C"), np.empty_like(result, order="F")):
        assert ch.project_l1_ball(turned, 1.5, axis=axis, out=out) is out
        np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(turned, before)
    spent = ch.project_l1_ball(turned, 1.5, axis=axis, overwrite_x=True)
    np.testing.assert_array_equal(spent, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 3])
def test_any_number_of_columns_gives_the_bits_of_rows(count, dtype):
    """Nothing else is written, be there fewer columns or rows than a register has lanes."""
    rng = np.random.default_rng(count)
    for rows in (2, 3, 4, 5, 8, 15, 16, 17, 33, 64):
        for columns in (*range(2, 21), 31, 32, 33, 300):
            x = rng.standard_normal((count, rows, columns)).astype(dtype)
            expected = ch.project_l1_ball(x.swapaxes(1, 2).copy(), 0.4).swapaxes(1, 2)
            room = np.full(x.size + 128, 7, dtype)
            out = room[64:-64].reshape(x.shape)
            ch.project_l1_ball(x, 0.4, axis=1, out=out, workers=2)
            np.testing.assert_array_equal(out, expected)
            assert (room[:64] == 7).all()
            assert (room[-64:] == 7).all()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 3), (3, 1)])
@pytest.mark.parametrize("axis", [0, 1])
def test_fortran_order_of_small_shapes(shape, axis):
    x = np.ones(shape, order="F")
    result = ch.project_l1_ball(x, 0.5, axis=axis)
    np.testing.assert_allclose(result, x * (0.5 / max(shape[axis], 1)), rtol=1e-15)


def test_slices_that_share_memory_get_results_that_do_not():
    x = np.broadcast_to(np.array([[3.0], [1.0]]), (2, 4))
    result = ch.project_l1_ball(x, 2.0, axis=0)
    np.testing.assert_array_equal(result, [[2.0] * 4, [0.0] * 4])
    result[0, 0] = 7.0
    assert result[0, 1] == 2.0


LOUD = {
    "cai": lambda x: ch.project_cai(x, 2.0),
    "iterative": lambda x: ch.project_cai(x, 2.0, method="iterative"),
    "hoyer": lambda x: ch.project_hoyer(x, 0.7),
    "ball": lambda x: ch.project_l1_ball(x, 1e-320),
    "sort": lambda x: ch.project_l1_ball(x, 1e-320, method="sort"),
    "simplex": lambda x: ch.project_simplex(x, 1e-320),
    "linf": lambda x: ch.project_bilevel(x, 2.0, full_output=True)[0],
    "l2": lambda x: ch.project_bilevel(x, 2.0, inner="l2", full_output=True)[0],
    "l1": lambda x: ch.project_bilevel(x, 2.0, inner="l1", full_output=True)[0],
    "radius": lambda x: ch.project_bilevel(x, radius=1e-320, inner="l2", full_output=True)[0],
    "exact": lambda x: ch.project_l1inf_ball(x, 1e-320, full_output=True)[0],
    "level": lambda x: ch.level_for_nnz(x, 2),
    "level of groups": lambda x: ch.level_for_groups(x, 2, inner="l2"),
}
SCALES = {
    "f2": [1.0, 2e4, 1e-7],
    "f4": [1e-44, 1e38],
    "f8": [1e-320, 1e307],
    "g": [1e-320, 1e307, np.finfo(np.longdouble).tiny],  # long double
}


@pytest.mark.parametrize(
    ("dtype", "scale"), [(dtype, scale) for dtype in SCALES for scale in SCALES[dtype]]
)
@pytest.mark.parametrize("kind", LOUD)
def test_floating_point_errors_that_raise_do_not_tell_of_the_inside(kind, dtype, scale):
    """Whatever NumPy is told to raise: results that over- or underflow are what they are."""
    x = np.random.default_rng(2).uniform(-1.5, 1.5, (4, 6)).astype(np.longdouble)
    x = (x * np.longdouble(scale)).astype(dtype)
    with np.errstate(all="ignore"):
        expected = LOUD[kind](x)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(LOUD[kind](x), expected)


@pytest.mark.skipif(np.finfo(np.longdouble).maxexp == 1024, reason="long double is float64")
@pytest.mark.parametrize("kind", LOUD)
def test_long_doubles_beyond_float64_are_not_finite(kind):
    x = np.ones((4, 6), np.longdouble)
    x[1, 2] = np.finfo(np.longdouble).max
    with pytest.raises(ValueError, match=r"^x must be finite"):
        LOUD[kind](x)


def test_reports_are_equal_to_themselves_alone_and_hashable():
    x = np.random.default_rng(3).uniform(0.0, 1.0, (4, 6))
    for report in (
        ch.project_cai(x, 2.0, full_output=True)[1],
        ch.project_bilevel(x, 2.0, full_output=True)[1],
        ch.project_gsp(x, 0.5, full_output=True)[1],
        ch.nmf_hals(x, 2, tol=1e-2),
    ):
        assert report == report
        assert report != copy.copy(report)
        assert len({report, report, copy.copy(report)}) == 2


@pytest.mark.parametrize("workers", [True, False, np.True_, 1.0])
def test_workers_are_no_booleans(workers):
    with pytest.raises(TypeError, match="workers must be an integer or None, got"):
        ch.project_cai([3.0, 1.0], 1.5, workers=workers)
    with pytest.raises(TypeError, match="workers must be an integer or None, got"):
        ch.set_workers(workers).__enter__()


def test_no_workers_set_are_those_in_force():
    with ch.set_workers(2), ch.set_workers(None):
        assert ch.get_workers() == 2


def test_what_is_listed_is_the_library():
    assert "importlib" not in dir(ch)


def test_at_level_one_nothing_but_the_largest_entry_stays():
    """However small the others are; above 1 what satisfies the constraint to rounding stays."""
    x = [1e10, 1e-8]
    np.testing.assert_array_equal(ch.project_cai(x, 1.0), [1e10, 0.0])
    np.testing.assert_array_equal(ch.project_cai(x, np.nextafter(1.0, 2.0)), x)


def test_parameters_of_slices_are_no_views():
    """PyTorch warns of what is read-only, where it takes them to a GPU."""
    levels = _checks.per_batch([2.0, 3.0], "level", (1, 2), 1.0)
    assert levels.flags.writeable


@pytest.mark.parametrize("project", [ch.project_cai, ch.project_bilevel, ch.project_l1inf_ball])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "kind", ["metadata", "int64", ">f8", "sliced", "reversed", "turned", "read-only", "unaligned"]
)
def test_the_copy_of_an_input_may_become_the_result_but_never_the_input(kind, order, project):
    y = np.asarray(np.arange(1.0, 13.0).reshape(3, 4) * [[1], [-1], [1]], order=order)
    expected = project(y.copy(), 2.0)
    x = y
    if kind == "metadata":  # equal to float64, but not the same object
        x = y.view(np.dtype(np.float64, metadata={"unit": "V"}))
    elif kind in ("int64", ">f8"):
        x = y.astype(kind)
    elif kind == "sliced":
        x = np.repeat(y, 2, axis=1)[:, ::2]
    elif kind == "reversed":
        x = y[::-1].copy(order)[::-1]
    elif kind == "turned":
        x = np.array([y, y]).transpose(1, 2, 0)[..., 0]
    elif kind == "unaligned":
        room = np.zeros(y.nbytes + 1, np.uint8)[1:]
        x = room.view(np.float64).reshape(y.shape, order=order)
        x[...] = y
    before = x.copy()
    x.flags.writeable = kind != "read-only"
    result = project(x, 2.0)
    np.testing.assert_allclose(result, expected, rtol=1e-15, atol=0)
    assert not np.may_share_memory(result, x)
    assert result.dtype == np.float64
    assert result.flags.writeable
    np.testing.assert_array_equal(x, before)
    out = np.full_like(result, 7.0)
    assert project(x, 2.0, out=out) is out
    np.testing.assert_array_equal(out, result)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("project", [ch.project_cai, ch.project_bilevel])
def test_an_input_that_has_to_be_converted_takes_no_more_memory_than_the_result(project):
    x = np.arange(1 << 20).reshape(1 << 10, 1 << 10)
    project(x[:3], 2.0)
    tracemalloc.start()
    result = project(x, 2.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2 * result.nbytes


@pytest.mark.skipif(not halves.NATIVE, reason="this machine leaves float16 to NumPy")
def test_halves_are_converted_as_numpy_does():
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = bits.view(np.float16).astype(np.float32)
    wide = np.empty_like(expected)
    halves.widen(bits, wide)
    np.testing.assert_array_equal(wide, expected)
    rng = np.random.default_rng(0)
    anything = rng.integers(1 << 32, size=100_003, dtype=np.uint64).astype(np.uint32)
    between = expected[np.isfinite(expected), None] * [1 - 2.0**-12, 1 + 2.0**-12, 1 + 2.0**-11]
    for values in (anything.view(np.float32), between.astype(np.float32).ravel(), expected):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            expected_bits = values.astype(np.float16).view(np.uint16)
        found = np.empty_like(expected_bits)
        halves.narrow(values, found)
        np.testing.assert_array_equal(found.view(np.float16), expected_bits.view(np.float16))
        numbers = ~np.isnan(values)  # but for the bits of NaN, also the signs of zeros
        np.testing.assert_array_equal(found[numbers], expected_bits[numbers])
    for size in range(40):
        found = np.full(size + 2, 7, np.uint16)
        halves.narrow(expected[:size], found[1:-1])
        np.testing.assert_array_equal(found, [7, *bits[:size], 7])
        back = np.full(size + 2, 7, np.float32)
        halves.widen(bits[:size], back[1:-1])
        np.testing.assert_array_equal(back, [7, *expected[:size], 7])


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("kind", ["C", "F", "sliced", "reversed", "unaligned", "read-only", ">f2"])
def test_float16_in_any_memory(kind, axis):
    y = np.random.default_rng(4).standard_normal((19, 23)).astype(np.float16)
    x = np.asarray(y, order="F" if kind == "F" else "C").copy("K")
    if kind == "sliced":
        x = np.repeat(y, 2, axis=1)[:, ::2]
    elif kind == "reversed":
        x = y[:, ::-1].copy()[:, ::-1]
    elif kind == "unaligned":
        x = np.zeros(y.nbytes + 1, np.uint8)[1:].view(np.float16).reshape(y.shape)
        x[...] = y
    elif kind == ">f2":
        x = y.astype(kind)
    x.flags.writeable = kind != "read-only"
    project = partial(ch.project_cai, level=4.0, axis=axis)
    expected = project(y.astype(np.float32)).astype(np.float16)
    result = project(x)
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(x, y)
    for out in (np.empty_like(result), np.empty_like(result, order="F"), np.empty_like(x)):
        np.testing.assert_array_equal(project(x, out=out.astype(np.float16)), expected)
    wide = np.zeros((38, 23), np.float16)
    assert project(x, out=wide[::2]).base is wide
    np.testing.assert_array_equal(wide[::2], expected)
    assert not wide[1::2].any()
    if x.flags.writeable:
        np.testing.assert_array_equal(project(x, overwrite_x=True), expected)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("make_out", [np.asmatrix, partial(np.ma.array, mask=np.eye(4, 8))])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("groups", ["rows", "columns", "diagonals", (2, 2)])
def test_a_matrix_or_a_masked_array_as_out(groups, order, dtype, make_out):
    # A row of np.matrix is a matrix again, of two axes: a kernel that is given one for a vector
    # would write beyond it.  Numba takes no masked array, unless it has seen a matrix before.
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(dtype, order=order)
    for project in (
        partial(ch.project_cai, level=1.5, axis=0),
        partial(ch.project_cai, level=1.5, axis=1),
        partial(ch.project_cai, level=1.5, axis=None),
        partial(ch.project_bilevel, level=1.5, groups=groups, inner="linf"),
    ):
        out = make_out(np.full((4, 8), 9, dtype, order))
        mask = np.ma.getmaskarray(out).copy()
        assert project(x, out=out) is out
        np.testing.assert_array_equal(np.ma.getmaskarray(out), mask)
        np.testing.assert_array_equal(np.asarray(out), project(x))


@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 3, 4)])
@pytest.mark.parametrize("axis", [-1, 0, None])
@pytest.mark.parametrize("memory", ["read-only", "read-only F", "F", "strided", "swapped", "plain"])
def test_kernels_see_rows_in_order_that_count_as_writable(shape, axis, memory):
    """Whatever ran before in the process: they are compiled for no other arrays."""
    plain = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    x = np.array(plain, order="F" if memory.endswith("F") else "C")
    if memory == "strided":
        x = np.repeat(x, 2, axis=-1)[..., ::2]
    x = x.astype(">f8") if memory == "swapped" else x
    x.flags.writeable = not memory.startswith("read-only")
    rows = _checks.rows(_checks.slices(x, axis))
    assert rows.flags.carray
    assert rows.dtype is np.dtype(np.float64)
    wanted = plain.reshape(1, -1) if axis is None else np.moveaxis(plain, axis, -1)
    np.testing.assert_array_equal(rows, wanted.reshape(rows.shape))
    if memory in ("plain", "read-only") and axis != 0:
        assert np.shares_memory(rows, x)


def _turned(x):
    """A copy of the matrices whose columns lie one behind the other."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(150, 71), (61, 137), (2, 3, 45, 38)])
@pytest.mark.parametrize(
    "project",
    [
        lambda x, **options: ch.project_simplex(x, 0.03 * x.size, axis=None, **options),
        lambda x, **options: ch.project_cai(x, 5.0, axis=-1, **options),
        lambda x, **options: ch.project_simplex(x, 2.0, axis=-2, **options),
        lambda x, **options: ch.project_l1_ball(x, 2.0, axis=0, method="sort", **options),
        lambda x, **options: ch.project_bilevel(x, radius=9.0, groups=(7, 3), **options),
        lambda x, **options: ch.project_l1inf_ball(x, 9.0, groups="rows", **options),
        lambda x, **options: ch.project_gsp(x, 0.6, axis=-1, **options),
    ],
    ids=["none", "last", "second", "first", "bilevel", "l1inf", "gsp"],
)
def test_large_matrices_in_any_order(project, shape, dtype):
    """They are turned, not copied entry by entry, on the way in and out: the same result."""
    x = np.random.default_rng(5).standard_normal(shape).astype(dtype)
    assert x.nbytes >= _checks._LARGE
    expected = project(x)
    unaligned = np.zeros(x.nbytes + 1, np.uint8)[1:].view(dtype)
    unaligned = unaligned.reshape(*shape[:-2], *shape[:-3:-1]).swapaxes(-1, -2)
    unaligned[...] = x
    close = partial(np.testing.assert_allclose, rtol=0, atol=16 * np.finfo(dtype).eps)
    frozen = _turned(x)
    frozen.flags.writeable = False
    padded = np.zeros((*shape[:-1], shape[-1] + 3), dtype)[..., 1:-2]
    spread = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    padded[...] = spread[...] = x
    reversed_ = x[::-1].copy()[::-1]
    for y in (x, _turned(x), frozen, unaligned, np.asfortranarray(x), padded, spread, reversed_):
        before = y.copy()
        close(project(y), expected)
        outs = [np.zeros_like(x), _turned(np.zeros_like(x)), np.zeros_like(x, order="F")]
        outs += [np.zeros_like(padded.base)[..., 2:-1], np.zeros_like(spread.base)[..., ::2]]
        for out in outs:
            assert project(y, out=out) is out
            close(out, expected)
        assert y.tobytes() == before.tobytes()


def _lying(x, order):
    """A copy whose axes lie in this order in memory."""
    return np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


VECTORWISE = {
    "cai": (ch.project_cai, (1.0, 3.0)),
    "iterative": (partial(ch.project_cai, method="iterative"), (1.5, 3.0)),
    "hoyer": (ch.project_hoyer, (0.1, 0.9)),
    "ball": (ch.project_l1_ball, (0.1, 5.0)),
    "sort": (partial(ch.project_l1_ball, method="sort"), (0.1, 5.0)),
    "simplex": (ch.project_simplex, (0.1, 5.0)),
}


@pytest.mark.parametrize("order", [*permutations(range(3)), (0, 2, 3, 1), (3, 1, 0, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", VECTORWISE)
def test_arrays_of_several_axes_are_taken_as_they_lie(name, dtype, order, monkeypatch):
    """Each slice has its own parameter, and tells of itself: all are the right slice's."""
    monkeypatch.setattr(_checks, "_TURNED_FROM", 0)
    project, (least, most) = VECTORWISE[name]
    rng = np.random.default_rng(len(order))
    shape = (5, 1, 6, 3) if name == "hoyer" else (5, 4, 6, 3)
    x = rng.standard_normal(shape[: len(order)]).astype(dtype)
    y = _lying(x, order)
    frozen = _lying(x, order)
    frozen.flags.writeable = False
    for axis in range(x.ndim):
        batch = x.shape[:axis] + x.shape[axis + 1 :]
        wanted = rng.uniform(least, most, batch)
        found = partial(project, axis=axis)
        expected, report = found(x, wanted, full_output=True)
        result, told = found(y, wanted, full_output=True)
        assert result.transpose(order).flags.c_contiguous
        assert not np.shares_memory(result, y)
        assert result.tobytes() == expected.tobytes()
        for field in ("threshold", "level", "nnz", "passes", "converged"):
            value = getattr(told, field)
            assert value.flags.c_contiguous
            np.testing.assert_array_equal(value, getattr(report, field))
            assert value.dtype == getattr(report, field).dtype
        assert found(frozen, wanted).tobytes() == expected.tobytes()
        assert found(y, np.expand_dims(wanted, axis)).tobytes() == expected.tobytes()
        assert found(y, wanted.flat[0]).tobytes() == found(x, wanted.flat[0]).tobytes()
        for out in (np.zeros_like(x), np.zeros_like(x, order="F"), np.zeros_like(y)):
            assert found(y, wanted, out=out) is out
            assert out.tobytes() == expected.tobytes()
        over, spent = y.copy("K"), y.copy("K")
        assert found(over, wanted, out=over) is over
        result = found(spent, wanted, overwrite_x=True)
        assert result is spent or name in ("iterative", "sort")
        assert over.tobytes() == result.tobytes() == expected.tobytes()
        with pytest.raises(ValueError, match=re.escape(f"shape {x.shape}, got {x.shape[1:]}")):
            found(y, wanted, out=np.zeros(x.shape[1:], dtype))
    assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("order", [(2, 1, 0, 3), (1, 2, 3, 0), (3, 0, 1, 2)])
@pytest.mark.parametrize("axis", range(4))
def test_scores_and_levels_of_arrays_as_they_lie(axis, order, monkeypatch):
    monkeypatch.setattr(_checks, "_TURNED_FROM", 0)
    rng = np.random.default_rng(axis)
    x = rng.standard_normal((5, 4, 6, 3))
    y = _lying(x, order)
    counts = rng.integers(1, 4, np.delete(x.shape, axis))
    expected = ch.level_for_nnz(x, counts, axis=axis)
    levels = ch.level_for_nnz(y, counts, axis=axis)
    np.testing.assert_array_equal(levels, expected)
    assert levels.flags.c_contiguous
    for score in (ch.cai_score, ch.hoyer_score, ch.hoyer_sparseness):
        for keepdims in (False, True):
            expected = score(x, axis=axis, keepdims=keepdims)
            found = score(y, axis=axis, keepdims=keepdims)
            np.testing.assert_allclose(found, expected, rtol=1e-14, strict=True)
            assert found.flags.c_contiguous


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_a_mask_of_out_hides_no_nonzeros(axis):
    x = np.random.default_rng(0).standard_normal((5, 4, 6))
    out = np.ma.array(np.zeros_like(x), mask=np.arange(x.size).reshape(x.shape) % 2 == 0)
    _, told = ch.project_l1_ball(x, 2.0, axis=axis, out=out, full_output=True)
    _, expected = ch.project_l1_ball(x, 2.0, axis=axis, full_output=True)
    assert type(told.nnz) is type(expected.nnz)
    np.testing.assert_array_equal(told.nnz, expected.nnz)


@pytest.mark.parametrize("step", [1, 2, -1])
def test_arrays_with_gaps_or_backwards_whatever_the_order_of_their_axes(step, monkeypatch):
    monkeypatch.setattr(_checks, "_TURNED_FROM", 0)
    room = np.random.default_rng(3).standard_normal((7, 8, 9)).transpose(2, 0, 1)
    x = room[1::step, :5, ::step]
    for axis in range(3):
        expected = ch.project_l1_ball(x.copy("C"), 1.0, axis=axis)
        assert ch.project_l1_ball(x, 1.0, axis=axis).tobytes() == expected.tobytes()
        out = np.zeros((8, 7, 9)).transpose(2, 1, 0)[: len(x), :5, : x.shape[2]]
        assert ch.project_l1_ball(x, 1.0, axis=axis, out=out) is out
        assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_large_arrays_are_not_copied_whatever_the_order_of_their_axes(order):
    x = _lying(np.random.default_rng(2).standard_normal((60, 40, 50)), order)
    assert x.nbytes >= _checks._TURNED_FROM
    for axis in range(3):
        out = np.empty_like(x)
        ch.project_cai(x, 3.0, axis=axis, out=out)
        tracemalloc.start()
        ch.project_cai(x, 3.0, axis=axis, out=out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 0.9 * x.nbytes


@pytest.mark.parametrize("dtype", ["i8", "f2", ">f4", "?"])
@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("order", "CF")
def test_large_arrays_of_other_numbers(dtype, axis, order):
    x = np.random.default_rng(6).standard_normal((20, 70, 30))
    x = np.asarray(x if dtype == "?" else 8.0 * x, order=order).astype(dtype)
    assert x.nbytes >= _checks._LARGE
    result = ch.project_simplex(x, 30.0, axis=axis)
    expected = ch.project_simplex(np.ascontiguousarray(x, float), 30.0, axis=axis)
    eps = np.finfo(result.dtype).eps
    np.testing.assert_allclose(result, expected, rtol=2 * eps, atol=32 * eps)
    out = np.zeros((20, 70, 33), result.dtype)
    ch.project_simplex(x, 30.0, axis=axis, out=out[..., 1:-2])
    assert out[..., 1:-2].tobytes() == result.tobytes()
    assert not out[..., 0].any()
    assert not out[..., -2:].any()


@pytest.mark.parametrize("shift", [0, 5, 5000])
def test_a_result_over_parts_of_large_columns(shift):
    """Columns are copied, so they may be overwritten, but not before it is known that all can."""
    room = np.random.default_rng(7).standard_normal(100 * 3010 + shift)
    x = room[shift:].reshape(100, 3010)[:, :3000]
    out = room[: x.size].reshape(x.shape)
    expected = ch.project_l1_ball(x.copy(), 3.0, axis=0)
    x[60, 2990] = math.nan  # in the last panel
    before = room.copy()
    with pytest.raises(ValueError, match="finite"):
        ch.project_l1_ball(x, 3.0, axis=0, out=out)
    assert room.tobytes() == before.tobytes()
    room[:] = np.random.default_rng(7).standard_normal(room.size)
    ch.project_l1_ball(x, 3.0, axis=0, out=out)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-14)


@every_function
@pytest.mark.parametrize("axis", [-1, 0, None])
def test_an_unaligned_float16_out(kind, axis):
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float16)
    out = np.zeros(2 * x.size + 1, np.uint8)[1:].view(np.float16).reshape(x.shape)
    assert not out.flags.aligned
    project(kind, x, axis=axis, out=out)
    np.testing.assert_array_equal(out, project(kind, x, axis=axis))


@pytest.mark.parametrize("make", [np.ndarray.tolist, lambda x: x.view(np.matrix)])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, **options: ch.project_bilevel(x, level=1.2, **options),
        lambda x, **options: ch.project_l1inf_ball(x, 1.0, **options),
    ],
    ids=["bilevel", "l1inf"],
)
def test_a_list_or_a_matrix_that_may_be_overwritten_by_groups(call, make):
    data = np.array([[3.0, -0.5], [2.0, 0.5]])
    given = make(data.copy())
    result = call(given, overwrite_x=True)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, call(data))
    np.testing.assert_array_equal(given, data)


@pytest.mark.parametrize("height", [True, 2])
def test_a_block_has_no_boolean_sides(height):
    with pytest.raises(TypeError, match="a block shape must be two integers, got"):
        ch.project_bilevel(np.ones((4, 4)), 1.5, groups=(height, True))


def test_long_double_parameters_beyond_float64():
    with np.errstate(all="raise"):
        most = np.finfo(np.longdouble).max
        x = ch.project_cai(np.ones((2, 3)), np.array([1.5, most]))
        assert (x[1] == 1.0).all()


def test_an_infinite_norm_is_refused():
    for l2 in (np.inf, np.float64(np.inf), [np.inf]):
        with pytest.raises(ValueError, match="l2 must be finite and >= 0"):
            ch.project_hoyer(np.ones(4), 0.5, l2=l2)


@every_function
@pytest.mark.parametrize("n", [42, 70_000])
def test_an_error_spoils_no_vector_that_out_lies_over(kind, n):
    """Long ones are written while they are read, before the last entry has been seen."""
    memory = make("gaussian", n + 5)
    x, out = memory[:n], memory[5:]
    x[-1] = np.nan
    before = memory.copy()
    with pytest.raises(ValueError, match="x must be finite"):
        project(kind, x, out=out)
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("call", "value"), [(ch.project_cai, 10 / 3), (ch.project_l1_ball, 10.0)])
def test_slices_across_the_memory_have_the_slack_of_their_dtype(call, value, order):
    x = np.array([[4.0, 3.0, 2.0, 1.0]] * 3, np.float32).T.copy(order)
    for excess, feasible in ((5e-7, True), (2e-6, False)):
        y = call(x, value / (1 + excess), axis=0)
        assert np.array_equal(x, y) == feasible


@every_function
def test_the_fields_of_a_report_share_no_memory(kind):
    """Also where there is nothing to project."""
    for shape in (3, 0), (3, 4):
        _, told = project(kind, np.ones(shape), full_output=True)
        fields = told.threshold, told.level, told.nnz, told.passes, told.converged
        for one, other in combinations(fields, 2):
            assert not np.shares_memory(one, other)
