"""The exact projection onto the l1,inf ball on the device: optimality, and the CPU."""

import numpy as np
import pytest

import conehoyer as ch
from conehoyer import bilevel

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")

KINDS = ["columns", "rows", "diagonals", (1, 1), (2, 3), (3, 100), (100, 1), (100, 100)]
TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 4e-6}


def labels_of(groups, rows, columns):
    """The group of each entry."""
    i, j = np.indices((rows, columns))
    if groups == "columns":
        return j
    if groups == "rows":
        return i
    if groups == "diagonals":
        return j - i + rows - 1
    height, width = groups
    return i // height * -(-columns // width) + j // width


def tops_of(y, labels):
    """The largest magnitude of each group."""
    tops = np.zeros(int(labels.max()) + 1, np.longdouble)
    np.maximum.at(tops, labels, np.abs(y))
    return tops


def violation(y, x, labels, radius):
    """Largest violation of the optimality conditions of one matrix."""
    a, b = np.abs(y).astype(np.longdouble), np.abs(x).astype(np.longdouble)
    u = tops_of(b, labels)
    lost, total = np.zeros_like(u), np.zeros_like(u)
    np.add.at(lost, labels, a - b)
    np.add.at(total, labels, a)
    theta = lost[u > 0].max(initial=0)
    signs = np.any((x != 0) & (np.sign(x) != np.sign(y)))
    clipped = np.abs(b - np.minimum(a, u[labels])).max()
    kept = np.abs(lost[u > 0] - theta).max(initial=0)
    dropped = (total[u == 0] - theta).max(initial=0) if np.any(u > 0) else 0
    excess = abs(u.sum() - radius) / max(radius, 1e-300) * a.max()
    return float(max(clipped, kept, dropped, excess, signs))


def data(shape):
    rng = np.random.default_rng(shape[1])
    yield rng.standard_normal(shape)
    yield rng.integers(-3, 4, shape).astype(float)
    yield rng.standard_cauchy(shape).astype(np.float32)


@pytest.mark.parametrize("groups", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (5, 4), (14, 11)])
def test_optimality_conditions(groups, shape, to_gpu, to_host):
    labels = labels_of(groups, *shape)
    for y in data(shape):
        radius = 0.3 * float(tops_of(y, labels).sum())
        device = to_gpu(y)
        x, info = ch.project_l1inf_ball(device, radius, groups=groups, full_output=True)
        host = to_host(x)
        exact = y.dtype == np.float64
        assert host.dtype == y.dtype
        assert violation(y, host, labels, radius) <= (1e-11 if exact else 1e-5) * np.abs(y).max()
        np.testing.assert_array_equal(to_host(device), y)
        ref, expected = ch.project_l1inf_ball(y, radius, groups=groups, full_output=True)
        size = np.abs(ref).max()
        np.testing.assert_allclose(host, ref, rtol=0, atol=TOLERANCE[y.dtype] * size)
        assert to_host(info.level) == pytest.approx(radius, rel=1e-12 if exact else 1e-6)
        assert to_host(info.threshold) == pytest.approx(expected.threshold, rel=1e-5, abs=1e-12)
        np.testing.assert_allclose(
            to_host(info.radii), expected.radii, rtol=0, atol=TOLERANCE[y.dtype] * size
        )
        np.testing.assert_array_equal(to_host(info.kept), to_host(info.radii) > 0)
        mask = to_host(info.mask)
        assert mask.shape == expected.mask.shape
        np.testing.assert_array_equal(
            np.broadcast_to(mask, shape), to_host(info.kept).ravel()[labels]
        )
        assert to_host(info.nnz) == np.count_nonzero(host)
        assert to_host(info.nnz).dtype == to_host(info.passes).dtype == np.int64
        assert to_host(info.converged)


@pytest.mark.parametrize(("number", "dtype"), [(1, np.int64), (7, np.uint8), (40, np.int32)])
def test_labels(number, dtype, to_gpu, to_host):
    rng = np.random.default_rng(number)
    y = rng.standard_normal((9, 11))
    labels = rng.integers(0, number, y.shape).astype(dtype)
    labels[0, 0] = number - 1  # some labels may be missing between
    x, info = ch.project_l1inf_ball(to_gpu(y), 2.0, groups=to_gpu(labels), full_output=True)
    ref, expected = ch.project_l1inf_ball(y, 2.0, groups=labels, full_output=True)
    np.testing.assert_allclose(to_host(x), ref, rtol=0, atol=1e-12)
    assert violation(y, to_host(x), labels, 2.0) <= 1e-11
    np.testing.assert_allclose(to_host(info.radii), expected.radii, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(to_host(info.mask), expected.mask)


def test_labels_of_a_batch(to_gpu, to_host):
    rng = np.random.default_rng(1)
    y = rng.standard_normal((2, 4, 5))
    each, whole = rng.integers(0, 6, (4, 5)), rng.integers(0, 6, (2, 4, 5))
    for labels in (each, whole, whole.astype(np.uint64)):
        x, info = ch.project_l1inf_ball(to_gpu(y), 2.0, groups=to_gpu(labels), full_output=True)
        ref, expected = ch.project_l1inf_ball(y, 2.0, groups=labels, full_output=True)
        np.testing.assert_allclose(to_host(x), ref, rtol=0, atol=1e-12)
        for name in ("radii", "mask", "nnz", "threshold", "level", "kept", "converged"):
            got, wanted = to_host(getattr(info, name)), getattr(expected, name)
            assert got.shape == np.shape(wanted), name
            np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_sorting_keeps_the_order(to_gpu):
    from conehoyer._cuda import partition
    from conehoyer._cuda.device import home_of

    for size, number in ((1, 1), (3, 2), (70, 300), (100, 5)):
        labels = np.random.default_rng(size).integers(0, number, size)
        labels[-1] = number - 1
        device = to_gpu(labels)
        order, starts = partition.sort_labels(home_of(device), device, number)
        np.testing.assert_array_equal(order.copy_to_host(), np.argsort(labels, kind="stable"))
        np.testing.assert_array_equal(
            starts.copy_to_host(), np.searchsorted(np.sort(labels), np.arange(number + 1))
        )


@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (2, 3)], ids=str)
def test_batches(groups, to_gpu, to_host):
    y = np.random.default_rng(2).standard_normal((2, 3, 6, 5))
    radii = np.array([[5.0, 0.0, 1e6], [1.0, 2.0, 3.0]])
    ref, expected = ch.project_l1inf_ball(y, radii, groups=groups, full_output=True)
    for given in (radii, to_gpu(radii)):
        x, info = ch.project_l1inf_ball(to_gpu(y), given, groups=groups, full_output=True)
        np.testing.assert_allclose(to_host(x), ref, rtol=0, atol=1e-12)
        for name in ("radii", "mask", "nnz", "threshold", "level", "kept", "converged"):
            got, wanted = to_host(getattr(info, name)), getattr(expected, name)
            assert got.shape == wanted.shape, name
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)


def test_a_radius_on_the_device_is_checked(to_gpu, to_host):
    y = np.random.default_rng(2).standard_normal((3, 6, 5))
    for bad in (-1.0, np.nan):
        radii = to_gpu(np.array([1.0, bad, 2.0]))
        with pytest.raises(ValueError, match="radius"):
            ch.project_l1inf_ball(to_gpu(y), radii)
        x = to_host(ch.project_l1inf_ball(to_gpu(y), radii, check_finite=False))
        assert np.isnan(x[1]).all()
        np.testing.assert_allclose(x[2], ch.project_l1inf_ball(y[2], 2.0), rtol=1e-12)
    with pytest.raises(ValueError, match=r"radius must be >= 0, got -2\.0"):
        ch.project_l1inf_ball(to_gpu(y), -2.0)


def test_identities(to_gpu, to_host, transposed):
    y = np.random.default_rng(3).standard_normal((14, 15))
    device = to_gpu(y)
    rows = to_host(ch.project_l1inf_ball(device, 5.0, groups="rows"))
    columns = to_host(ch.project_l1inf_ball(transposed(device), 5.0))
    np.testing.assert_allclose(columns.T, rows, atol=1e-13)
    entries = to_host(ch.project_l1inf_ball(device, 5.0, groups=(1, 1)))
    ball = to_host(ch.project_l1_ball(device, 5.0, axis=None))
    np.testing.assert_allclose(entries, ball, atol=1e-13)
    one = to_host(ch.project_l1inf_ball(device, 0.5, groups=(14, 15)))
    np.testing.assert_allclose(one, np.clip(y, -0.5, 0.5), atol=1e-14)
    again = to_host(ch.project_l1inf_ball(device, 5.0, groups="rows"))
    np.testing.assert_array_equal(again, rows)


def test_feasible_and_zero(to_gpu, to_host):
    y = np.random.default_rng(4).standard_normal((6, 5))
    y[0, 0] = -0.0
    for kind in (y, y.astype(np.float32), y.astype(np.float16)):
        x, info = ch.project_l1inf_ball(to_gpu(kind), 1e6, full_output=True)
        assert to_host(x).tobytes() == kind.tobytes()
        np.testing.assert_array_equal(to_host(info.radii), np.abs(kind).max(axis=0))
        assert to_host(info.threshold) == 0.0
    assert not to_host(ch.project_l1inf_ball(to_gpu(y), 0.0)).any()
    assert not to_host(ch.project_l1inf_ball(to_gpu(np.zeros((3, 3))), 1.0)).any()
    assert not to_host(ch.project_l1inf_ball(to_gpu(np.zeros((3, 3))), 0.0)).any()
    once = ch.project_l1inf_ball(to_gpu(y), 2.0)
    np.testing.assert_allclose(to_host(ch.project_l1inf_ball(once, 2.0)), to_host(once), rtol=1e-13)


def test_ties_within_a_float32(to_gpu, to_host):
    step = np.spacing(np.float32(1.0))
    y = np.ones((100, 2), np.float32)
    y[::2] += step
    y[0] = 3.0
    radius = 2.0 + 0.7 * float(step)
    x = to_host(ch.project_l1inf_ball(to_gpu(y), radius))
    wide = to_host(ch.project_l1inf_ball(to_gpu(y.astype(float)), radius))
    np.testing.assert_allclose(x, wide, rtol=2e-7)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_scales(dtype, to_gpu, to_host):
    y = np.random.default_rng(5).standard_normal((3, 40)).astype(dtype)
    x = to_host(ch.project_l1inf_ball(to_gpu(y), 2.0, groups="rows"))
    exponents = (-1000, -1060, 1020) if dtype == np.float64 else (-120, 124)
    for exponent in exponents:  # the sum of a row overflows, or entries are subnormal
        small = np.ldexp(y, exponent)
        z = to_host(ch.project_l1inf_ball(to_gpu(small), np.ldexp(2.0, exponent), groups="rows"))
        bits = 52 if dtype == np.float64 else 23
        least = -1074 if dtype == np.float64 else -149
        tolerance = 2.0 ** max(8 - bits, least - exponent + 1)
        back = np.ldexp(z.astype(np.longdouble), -exponent)
        np.testing.assert_allclose(back, x, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float16", "int32", "bool"])
def test_other_dtypes(dtype, to_gpu, to_host):
    y = (np.random.default_rng(6).standard_normal((5, 6)) * 5).astype(dtype)
    x = to_host(ch.project_l1inf_ball(to_gpu(y), 3.0))
    ref = ch.project_l1inf_ball(y, 3.0)
    assert x.dtype == ref.dtype
    np.testing.assert_allclose(x, ref, rtol=1e-3 if dtype == "float16" else 1e-12)


def test_strides_and_out(to_gpu, to_host, transposed):
    y = np.random.default_rng(7).standard_normal((6, 8))
    ref = ch.project_l1inf_ball(y[:, ::2], 2.0)
    np.testing.assert_allclose(
        to_host(ch.project_l1inf_ball(to_gpu(y)[:, ::2], 2.0)), ref, rtol=1e-12
    )
    ref = ch.project_l1inf_ball(y, 2.0)
    out = to_gpu(np.zeros((6, 8)))
    assert ch.project_l1inf_ball(to_gpu(y), 2.0, out=out) is out
    np.testing.assert_allclose(to_host(out), ref, rtol=1e-12)
    for options in ({"overwrite_x": True}, {"out": None}):
        device = to_gpu(y)
        if "out" in options:
            options["out"] = device
        assert ch.project_l1inf_ball(device, 2.0, **options) is device
        np.testing.assert_allclose(to_host(device), ref, rtol=1e-12)
    out = to_gpu(np.zeros((8, 6)))
    ch.project_l1inf_ball(to_gpu(y), 2.0, out=transposed(out))
    np.testing.assert_allclose(to_host(out).T, ref, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad, to_gpu, to_host):
    y = np.random.default_rng(8).standard_normal((3, 4, 5))
    y[1, 2, 3] = bad
    device = to_gpu(y)
    with pytest.raises(ValueError, match="x must be finite"):
        ch.project_l1inf_ball(device, 2.0, out=device)
    np.testing.assert_array_equal(to_host(device), y)
    x, info = ch.project_l1inf_ball(device, 2.0, check_finite=False, full_output=True)
    x = to_host(x)
    assert np.isnan(x[1]).all()
    assert np.isnan(to_host(info.radii)[1]).all()
    np.testing.assert_allclose(x[[0, 2]], ch.project_l1inf_ball(y[[0, 2]], 2.0), rtol=1e-12)


def test_empty(to_gpu, to_host):
    for shape in ((0, 3), (3, 0), (0, 3, 4), (2, 0, 3)):
        y = np.zeros(shape)
        x, info = ch.project_l1inf_ball(to_gpu(y), 1.0, full_output=True)
        _, expected = ch.project_l1inf_ball(y, 1.0, full_output=True)
        assert x.shape == shape
        for name in ("radii", "kept", "mask", "threshold", "nnz", "converged"):
            wanted = np.asarray(getattr(expected, name))
            assert getattr(info, name).shape == wanted.shape, (shape, name)
            if wanted.size:
                np.testing.assert_array_equal(to_host(getattr(info, name)), wanted)


def test_the_cap_is_reported(monkeypatch, to_gpu, to_host):
    y = np.random.default_rng(9).standard_normal((12, 8))
    monkeypatch.setattr(bilevel, "_MOST_ROUNDS", 1)
    with pytest.warns(ch.ConvergenceWarning, match="1 of 1 projections stopped at the cap"):
        x, info = ch.project_l1inf_ball(to_gpu(y), 3.0, full_output=True)
    assert not to_host(info.converged)
    assert np.abs(to_host(x)).max(axis=0).sum() <= np.abs(y).max(axis=0).sum()


def test_errors(to_gpu):
    y = to_gpu(np.ones((3, 4)))
    with pytest.raises(ValueError, match="groups must be"):
        ch.project_l1inf_ball(y, 1.0, groups="cells")
    with pytest.raises(ValueError, match="two dimensions"):
        ch.project_l1inf_ball(to_gpu(np.ones(3)), 1.0)
    with pytest.raises(TypeError, match="labels for an x on a GPU"):
        ch.project_l1inf_ball(y, 1.0, groups=np.zeros((3, 4), int))
    with pytest.raises(TypeError, match="integer labels"):
        ch.project_l1inf_ball(y, 1.0, groups=to_gpu(np.zeros((3, 4))))
    with pytest.raises(ValueError, match="labels must have shape"):
        ch.project_l1inf_ball(y, 1.0, groups=to_gpu(np.zeros((4, 3), int)))
    with pytest.raises(ValueError, match="labels must be >= 0, got -1"):
        ch.project_l1inf_ball(y, 1.0, groups=to_gpu(np.full((3, 4), -1)))
    with pytest.raises(ValueError, match="numbered from 0"):
        ch.project_l1inf_ball(y, 1.0, groups=to_gpu(np.full((3, 4), 1 << 17)))
    with pytest.raises(TypeError, match="out must lie on the GPU"):
        ch.project_l1inf_ball(y, 1.0, out=np.ones((3, 4)))


@pytest.mark.parametrize("share", [1e-4, 1e-7, 1e-12, 1e-17, 1e-30])
def test_a_small_radius_is_met(share, to_gpu, to_host):
    for seed, groups in enumerate(KINDS):
        y = np.random.default_rng(seed).standard_normal((12, 9))
        labels = labels_of(groups, *y.shape)
        radius = share * float(tops_of(y, labels).sum())
        x = to_host(ch.project_l1inf_ball(to_gpu(y), radius, groups=groups))
        assert float(tops_of(x, labels).sum()) == pytest.approx(radius, rel=1e-14, abs=0)
        again = to_host(ch.project_l1inf_ball(to_gpu(x), radius, groups=groups))
        np.testing.assert_array_equal(again, x)


def test_a_bound_that_lands_on_an_entry(to_gpu, to_host):
    one = [[0.7, 0.7], [0.9, 0.9]], 1.4
    other = [[4.0], [4.0], [3.0], [5.0], [1.0], [1.0], [0.0], [1.0]], 3.0
    for y, radius in (one, other):
        x, info = ch.project_l1inf_ball(to_gpu(np.array(y)), radius, full_output=True)
        assert to_host(info.converged)
        assert to_host(info.passes) <= 4
        np.testing.assert_allclose(to_host(x), ch.project_l1inf_ball(y, radius), rtol=1e-13)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e280])
def test_a_radius_far_below_the_data(scale, to_gpu, to_host):
    for y in ([[0.1, 0.2, 0.3]], [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.1, 0.0, 0.0]]):
        for radius in (1e-32, 1e-37):
            x = ch.project_l1inf_ball(to_gpu(scale * np.array(y)), radius, groups="rows")
            assert np.abs(to_host(x)).max(axis=1).sum() == pytest.approx(radius, rel=1e-13, abs=0)


@pytest.mark.parametrize("scale", [1.0, 1e-320, 1e307])
def test_an_infinite_radius_bounds_nothing(scale, to_gpu, to_host):
    y = np.random.default_rng(22).standard_normal((3, 5, 7)) * scale
    radii = np.array([2.0 * scale, np.inf, np.inf])
    for given in (radii, to_gpu(radii)):
        x, info = ch.project_l1inf_ball(to_gpu(y), given, full_output=True)
        np.testing.assert_array_equal(to_host(x)[1:], y[1:])
        assert not to_host(info.kept)[0].all()
        assert to_host(info.kept)[1:].all()
    x = to_host(ch.project_l1inf_ball(to_gpu(y), np.inf))
    np.testing.assert_array_equal(x, y)
