"""How arrays become rows and come back."""

import ml_dtypes
import numpy as np
import pytest

import conehoyer as ch
from conehoyer import _dispatch
from conehoyer._cuda import arrays
from conehoyer._cuda.device import extent, home_of, launch_each


def test_what_is_on_the_device(to_gpu):
    assert _dispatch.on_device(to_gpu(np.ones(3)))
    for host in (np.ones(3), 1.0, [1.0], np.float64(1.0), np.ma.ones(3)):
        assert not _dispatch.on_device(host)


def test_bfloat16_bits(to_gpu, to_host):
    """Rounded to nearest, ties to even, as ml_dtypes does; widened without loss."""
    rng = np.random.default_rng(0)
    wide = np.concatenate([
        rng.standard_normal(40), [0.0, -0.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 3.4e38, -3.4e38],
        [np.inf, -np.inf, np.nan, 1e-40, 2.0**-133],
    ]).astype(np.float32)  # fmt: skip
    with np.errstate(over="ignore"):
        narrow = wide.astype(ml_dtypes.bfloat16)
    bits = to_gpu(wide.view(np.int32))
    home = home_of(bits)
    goal = to_gpu(np.zeros(wide.size, np.int16))
    launch_each(arrays._scatter_bfloat16, home, wide.size, bits, goal)
    back = to_host(goal).view(ml_dtypes.bfloat16)
    finite = ~np.isnan(wide)
    np.testing.assert_array_equal(back[finite].view(np.int16), narrow[finite].view(np.int16))
    assert np.isnan(back[~finite].astype(np.float32)).all()
    again = to_gpu(np.zeros(wide.size, np.int32))
    launch_each(arrays._gather_bfloat16, home, wide.size, goal, again)
    widened = to_host(again).view(np.float32)
    np.testing.assert_array_equal(widened[finite], narrow[finite].astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_rows_of_any_view(axis, to_gpu, to_host, transposed):
    y = np.arange(60.0).reshape(3, 4, 5)
    device = to_gpu(y)
    for view, expected in (
        (device, y),
        (device[:, ::2], y[:, ::2]),
        (transposed(device, (2, 0, 1)), y.transpose(2, 0, 1)),
    ):
        s = arrays.slices(view, axis)
        rows = arrays.read(s.home, view, axis, s.work, (s.number, s.length))
        moved = expected.reshape(1, -1) if axis is None else np.moveaxis(expected, axis, -1)
        np.testing.assert_array_equal(to_host(rows), moved.reshape(s.number, s.length))


def test_memory_is_shared_where_it_can_be(to_gpu):
    device = to_gpu(np.ones((3, 4)))
    s = arrays.slices(device, -1)
    rows = arrays.read(s.home, device, s.axis, s.work, (3, 4))
    assert arrays._address(rows) == arrays._address(s.home.view(device))


def test_extent(to_gpu):
    device = to_gpu(np.zeros((4, 5)))
    home = home_of(device)
    first, last = extent(home, device)
    assert last - first == 160
    assert extent(home, device[1:, ::2]) == (first + 40, last)
    first_empty, last_empty = extent(home, device[:0])
    assert first_empty == last_empty


UNIT = 2.0**-24  # the least float16 above 0


@pytest.mark.parametrize(
    "project",
    [
        lambda y: ch.project_l1_ball(y, [100.0 * UNIT, 107.0 * UNIT], full_output=True),
        lambda y: ch.project_cai(y, [8.9, 12.2], full_output=True),
        lambda y: ch.project_bilevel(y, 4.7, groups=(1, 4), full_output=True),
        lambda y: ch.project_l1inf_ball(y, 40.3 * UNIT, full_output=True),
        lambda y: ch.project_gsp(y, 0.42, full_output=True),
    ],
    ids=["ball", "cai", "bilevel", "l1inf", "gsp"],
)
def test_what_16_bits_round_to_zero_is_no_nonzero(project, to_gpu, to_host):
    rng = np.random.default_rng(0)
    y = (rng.permuted(np.tile(np.arange(-11.0, 13.0), (2, 1)), axis=1) * UNIT).astype(np.float16)
    x, info = project(to_gpu(y))
    before, _ = project(y.astype(np.float32))
    axis = None if np.ndim(to_host(info.nnz)) == 0 else 1
    kept = np.count_nonzero(to_host(x), axis=axis)
    np.testing.assert_array_equal(to_host(info.nnz), kept)
    assert np.any(kept < np.count_nonzero(before, axis=axis))  # some were
