"""Projections of vectors on the device, against the oracle and the CPU."""

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, FLOAT32, float32, make
from numpy.exceptions import AxisError

import conehoyer as ch
from conehoyer._cuda.device import SIMULATED, home_of
from conehoyer._cuda.projections import _LONG_FROM

LONG = _LONG_FROM + 44  # entries of a vector that all blocks of a grid work on
LD = np.longdouble
TOLERANCE = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}


def error(x, ref):
    """max|x - ref| relative to max|ref|, one subnormal an entry forgiven."""
    tiny = np.finfo(x.dtype).smallest_subnormal.astype(LD)
    difference = np.maximum(np.abs(x.astype(LD) - ref) - tiny, 0)
    size = np.max(np.abs(ref), initial=LD(0))
    worst = np.max(difference, initial=LD(0))
    return float(worst / size) if size > 0 else float(worst)


def vectors(n):
    yield from ((name, make(name, n)) for name in DISTRIBUTIONS)
    yield from ((name, float32(name, n)) for name in [*FLOAT32, "near_constant"])


def check(project, reference, y, to_gpu, to_host, again=True, slack=1.0):
    device = to_gpu(y)
    x, info = project(device, full_output=True)
    host = to_host(x)
    assert host.dtype == y.dtype
    assert error(host, reference) <= slack * TOLERANCE[y.dtype]
    assert to_host(info.nnz) == np.count_nonzero(host)
    assert to_host(info.converged)
    np.testing.assert_array_equal(to_host(device), y)
    if again:
        np.testing.assert_array_equal(to_host(project(x)), host)
    return host, info


@pytest.mark.parametrize("n", [3, 100, LONG])
def test_cai(n, to_gpu, to_host):
    for name, y in vectors(n):
        score = float(oracle.hoyer_score(y))
        for level in (1.0, max(0.3 * score, 1.0)):
            x, info = check(
                lambda d, level=level, **kw: ch.project_cai(d, level, **kw),
                oracle.project_cai(y, level), y, to_gpu, to_host,
            )  # fmt: skip
            if y.dtype == np.float64 and oracle.hoyer_score(y) > level * (1 + 1e-14):
                assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12, (name, level)
                b, a = x.astype(LD), y.astype(LD)
                assert abs(b @ b / (b @ a) - 1) <= 1e-12
                assert to_host(info.level) == pytest.approx(level, rel=1e-12)


@pytest.mark.parametrize("n", [100, LONG])
def test_cai_nonneg(n, to_gpu, to_host):
    for _, y in vectors(n):
        level = max(0.4 * float(oracle.hoyer_score(np.maximum(y, 0))), 1.0)
        check(
            lambda d, level=level, **kw: ch.project_cai(d, level, nonneg=True, **kw),
            oracle.project_cai(y, level, nonneg=True), y, to_gpu, to_host,
        )  # fmt: skip


@pytest.mark.parametrize("n", [2, 100, LONG])
def test_l1_ball(n, to_gpu, to_host):
    for _, y in vectors(n):
        total = float(np.abs(y.astype(LD)).sum())
        for radius in (0.0, 0.1 * total, 1e-14 * total):
            if y.dtype == np.float32 and 0.0 < radius < 1e-37:
                continue
            check(
                lambda d, radius=radius, **kw: ch.project_l1_ball(d, radius, **kw),
                oracle.project_l1_ball(y, radius), y, to_gpu, to_host, again=radius > 0.0,
            )  # fmt: skip


@pytest.mark.parametrize("n", [100, LONG])
def test_simplex(n, to_gpu, to_host):
    for _, y in vectors(n):
        total = float(np.abs(y.astype(LD)).sum()) * 0.3
        check(
            lambda d, total=total, **kw: ch.project_simplex(d, total, **kw),
            oracle.project_simplex(y, total), y, to_gpu, to_host,
        )  # fmt: skip


@pytest.mark.parametrize("n", [100, LONG])
def test_hoyer(n, to_gpu, to_host):
    for _, y in vectors(n):
        check(
            lambda d, **kw: ch.project_hoyer(d, 0.6, **kw),
            # Where many entries tie, the rounding of the level itself makes 1.9e-12 of 262,188.
            oracle.project_hoyer(y, 0.6), y, to_gpu, to_host, slack=2.0 if n > 1000 else 1.0,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [20, LONG])
def test_hoyer_takes_over_the_norm(n, dtype, to_gpu, to_host):
    """Also where no pass of the search sees it: at the ends, and in the unit of the top."""
    wide = dtype == np.float64
    for scale in (1e-300, 1e-30, 1.0, 1e300) if wide else (1e-30, 1.0, 1e30):
        y = (make("gaussian", n) * scale).astype(dtype)
        for depth in (None, 0.0, 1e9, 1e65, 1e250) if wide else (None, 0.0, 1e9, 1e35):
            nonneg = depth is not None
            if nonneg:
                y[n // 3] = max(-depth * scale, float(np.finfo(dtype).min) / 8)
            norm = np.sqrt(np.sum(y.astype(LD) ** 2))
            a = y if nonneg else np.abs(y)
            signs = 1 if nonneg else np.sign(y)
            for sparseness, expected in (
                (0.0, signs * np.full(n, norm / np.sqrt(LD(n)))),
                (0.5, oracle.project_hoyer(y, 0.5, nonneg=nonneg)),
                (1.0, signs * np.where(np.arange(n) == a.argmax(), norm, 0)),
            ):
                x = to_host(ch.project_hoyer(to_gpu(y), sparseness, nonneg=nonneg))
                assert error(x, expected) <= TOLERANCE[y.dtype], (scale, sparseness, depth)


@pytest.mark.parametrize("n", [100, LONG])
def test_what_a_float_of_the_level_lacks(n, to_gpu, to_host):
    """The deviations show it next to sparseness 0, and the last of ties next to a whole level."""
    y = make("gaussian", 2 * n).reshape(2, n)
    for s in (1e-20, 1e-14, 1e-8):
        for data in (y[0], y):
            x = np.abs(to_host(ch.project_hoyer(to_gpu(data), np.full(data.shape[:-1], s))))
            expected = oracle.project_hoyer(y[0], s)
            assert error(np.atleast_2d(x)[0], np.abs(expected)) <= 1e-12
    for whole in (2, 30, 77):
        s = (np.sqrt(n) - np.sqrt(whole)) / (np.sqrt(n) - 1)
        x = to_host(ch.project_hoyer(to_gpu(np.ones(n)), s))
        assert error(x, oracle.project_hoyer(np.ones(n), s)) <= 1e-12


@pytest.mark.parametrize("n", [12, LONG])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norms_far_from_the_data(n, dtype, to_gpu, to_host):
    most = 30 if dtype is np.float32 else 290
    data = make("gaussian", n).astype(dtype)
    # At 0.25 and 0.46 float32 sums are in range, but the factor is subnormal.
    for power, norm in (
        (0, -1),
        (0.25, -1),
        (0.46, -1),
        (0.9, -1),
        (-0.9, 1),
        (-0.9, -0.9),
        (1, 1),
    ):
        y = data * dtype(10.0 ** (power * (most - 2)))
        for s in (1e-12, 0.3, 0.8):
            x = to_host(ch.project_hoyer(to_gpu(y), s, l2=10.0 ** (norm * most)))
            expected = oracle.project_hoyer(y, s, l2=10.0 ** (norm * most))
            assert error(np.abs(x), np.abs(expected)) <= TOLERANCE[y.dtype]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_level_a_few_bits_below_a_count_of_ties(dtype, to_gpu, to_host):
    for n, k in ((4, 3), (8, 4), (50, 14), (LONG, 70)):
        for seed in range(8):
            rng = np.random.default_rng(seed)
            low, high = np.sort(rng.uniform(0.1, 3.0, 2))
            y = rng.permutation(np.where(np.arange(n) < k, high, low)).astype(dtype)
            level = k * (1.0 - (1 + seed % 4) * 2.0**-53)
            x = to_host(ch.project_cai(to_gpu(y), level))
            assert error(x, oracle.project_cai(y, level)) <= TOLERANCE[y.dtype]


@pytest.mark.parametrize("n", [50, 300, LONG])
def test_many_that_hardly_exceed_the_threshold(n, to_gpu, to_host):
    y = np.full(n, 1 / 3, np.float32)
    y[0] = 1.0
    for level in 1.0 + np.array([3e-6, 7e-6, 1e-5]):
        x = to_host(ch.project_cai(to_gpu(y), level))
        assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-6
        np.testing.assert_array_equal(to_host(ch.project_cai(to_gpu(x), level)), x)


@pytest.mark.parametrize("kind", ["cai", "ball", "simplex", "hoyer"])
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150, 1e300])
@pytest.mark.parametrize("n", [50, LONG])
def test_scales(kind, scale, n, to_gpu, to_host):
    y = make("gaussian", n) * scale
    total = 0.2 * float(np.abs(y).sum())
    project, reference = {
        "cai": (lambda d: ch.project_cai(d, 5.0), oracle.project_cai(y, 5.0)),
        "ball": (lambda d: ch.project_l1_ball(d, total), oracle.project_l1_ball(y, total)),
        "simplex": (lambda d: ch.project_simplex(d, total), oracle.project_simplex(y, total)),
        "hoyer": (lambda d: ch.project_hoyer(d, 0.5), oracle.project_hoyer(y, 0.5)),
    }[kind]
    assert error(to_host(project(to_gpu(y))), reference) <= 1e-12


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [20, LONG])
def test_masked_entries(n, dtype, to_gpu, to_host):
    """Large negative numbers stand for entries that are to become zero, few or all of them."""
    rng = np.random.default_rng(n)
    for mask in (-1e4, -1e9, -1e30, np.finfo(dtype).min):
        for share in (0.02, 0.5, 1.0):
            y = rng.standard_normal(n).astype(dtype)
            y[rng.random(n) < share] = mask
            y[n // 3] = mask
            device = to_gpu(y)
            for total in (1e-3, 1.0):
                x = to_host(ch.project_simplex(device, total))
                assert error(x, oracle.project_simplex(y, total)) <= TOLERANCE[y.dtype]
            if share < 1.0:
                x = to_host(ch.project_cai(device, n / 10, nonneg=True))
                assert error(x, oracle.project_cai(y, n / 10, nonneg=True)) <= TOLERANCE[y.dtype]
                x = to_host(ch.project_hoyer(device, 0.8, l2=2.0, nonneg=True))
                ref = oracle.project_hoyer(y, 0.8, l2=2.0, nonneg=True)
                assert error(x, ref) <= TOLERANCE[y.dtype], (mask, share)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tiny_positive_entry_beside_negative_ones(dtype, to_gpu, to_host):
    """Hoyer's threshold is negative then: the positive entry must not set the unit."""
    for top in (1e-10, 1e-30) if dtype == np.float32 else (1e-60, 1e-250):
        y = np.array([top, -1.0, -2.0, -3.0], dtype)
        for sparseness in (0.01, 0.3, 0.9):
            x = to_host(ch.project_hoyer(to_gpu(y), sparseness, l2=1.0, nonneg=True))
            ref = oracle.project_hoyer(y, sparseness, l2=1.0, nonneg=True)
            assert error(x, ref) <= TOLERANCE[y.dtype]


def test_scales_of_float32(to_gpu, to_host):
    for scale in (1e-30, 1e-12, 1e12, 1e30):
        y = (make("gaussian", 50) * scale).astype(np.float32)
        x = to_host(ch.project_cai(to_gpu(y), 5.0))
        assert error(x, oracle.project_cai(y, 5.0)) <= 1e-5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_cpu_agrees(dtype, to_gpu, to_host):
    y = np.random.default_rng(1).standard_normal((4, 70)).astype(dtype)
    levels = np.array([3.0, 9.0, 20.0, 70.0])
    x, info = ch.project_cai(to_gpu(y), levels, full_output=True)
    ref, expected = ch.project_cai(y, levels, full_output=True)
    np.testing.assert_allclose(to_host(x), ref, atol=TOLERANCE[y.dtype] * abs(y).max())
    np.testing.assert_allclose(to_host(info.threshold), expected.threshold, rtol=1e-5, atol=1e-12)
    np.testing.assert_array_equal(to_host(info.nnz), expected.nnz)
    assert to_host(info.passes).dtype == np.int64
    assert to_host(info.converged).all()
    assert info.support is None


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_axes_and_strides(axis, to_gpu, to_host, transposed):
    y = np.random.default_rng(2).standard_normal((3, 2, 8))
    for part in (y, y.swapaxes(0, 2), y[:, :, ::2], y[::-1]):
        device = to_gpu(y)
        view = {
            id(y): device,
        }.get(id(part))
        if view is None and part.shape == (8, 2, 3):
            view = transposed(device)
        elif view is None and part.shape == (3, 2, 4):
            view = device[:, :, ::2]
        elif view is None:
            view = device[::-1]
        x = ch.project_l1_ball(view, 1.0, axis=axis)
        np.testing.assert_allclose(
            to_host(x), ch.project_l1_ball(part, 1.0, axis=axis), rtol=1e-13, atol=1e-15
        )


def test_out_and_in_place(to_gpu, to_host):
    y = np.random.default_rng(3).standard_normal((2, 20))
    ref = ch.project_cai(y, 4.0)
    device, out = to_gpu(y), to_gpu(np.zeros((2, 20)))
    assert ch.project_cai(device, 4.0, out=out) is out
    np.testing.assert_allclose(to_host(out), ref, rtol=1e-13)
    assert ch.project_cai(device, 4.0, out=device) is device
    np.testing.assert_allclose(to_host(device), ref, rtol=1e-13)
    device = to_gpu(y)
    assert ch.project_cai(device, 4.0, axis=0, overwrite_x=True) is device
    np.testing.assert_allclose(to_host(device), ch.project_cai(y, 4.0, axis=0), rtol=1e-13)


def test_entries_that_share_memory(to_gpu, to_host):
    from conehoyer._cuda.device import home_of

    y = np.random.default_rng(4).standard_normal(20)
    device = to_gpu(y)
    home = home_of(device)
    expanded = home.adopt(home.view(device, [3, 20], [0, 8]))
    with pytest.raises(ValueError, match=r"memory for each entry, got strides \(0, 8\)"):
        ch.project_cai(to_gpu(np.ones((3, 20))), 4.0, out=expanded)
    x = ch.project_cai(expanded, 4.0, overwrite_x=True)  # there is no place to overwrite
    np.testing.assert_allclose(to_host(x), [ch.project_cai(y, 4.0)] * 3, rtol=1e-13)
    np.testing.assert_array_equal(to_host(device), y)
    windows = home.adopt(home.view(device, [3, 18], [8, 8]))
    with pytest.raises(ValueError, match=r"memory for each entry, got strides \(8, 8\)"):
        ch.project_cai(to_gpu(np.ones((3, 18))), 4.0, out=windows)
    x = ch.project_cai(windows, 4.0, overwrite_x=True)
    expected = ch.project_cai(np.lib.stride_tricks.sliding_window_view(y, 18), 4.0)
    np.testing.assert_allclose(to_host(x), expected, rtol=1e-13)
    np.testing.assert_array_equal(to_host(device), y)


@pytest.mark.parametrize("n", [3, 700])
def test_a_zero_result_has_the_score_of_zeros(to_gpu, to_host, n):
    y = np.array([np.zeros(n), np.arange(n)])
    x, info = ch.project_hoyer(to_gpu(y), 0.5, full_output=True)
    np.testing.assert_allclose(to_host(info.level), ch.hoyer_score(to_host(x), axis=-1), rtol=1e-12)
    x, info = ch.project_hoyer(to_gpu(y), 0.5, l2=0.0, full_output=True)
    assert not to_host(x).any()
    assert not to_host(info.level).any()


def test_out_that_overlaps(to_gpu, to_host):
    y = np.random.default_rng(4).standard_normal((3, 20))
    device = to_gpu(y)
    ch.project_cai(device[:2], 4.0, out=device[1:])
    np.testing.assert_allclose(to_host(device[1:]), ch.project_cai(y[:2], 4.0), rtol=1e-13)
    np.testing.assert_array_equal(to_host(device)[0], y[0])


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8", "bool"])
def test_other_dtypes(dtype, to_gpu, to_host):
    y = (np.random.default_rng(5).standard_normal((2, 30)) * 5).astype(dtype)
    x = to_host(ch.project_l1_ball(to_gpu(y), 3.0))
    ref = ch.project_l1_ball(y, 3.0)
    assert x.dtype == ref.dtype
    np.testing.assert_allclose(x, ref, rtol=1e-3 if dtype == "float16" else 1e-13)


def test_levels_on_the_device(to_gpu, to_host):
    y = np.random.default_rng(6).standard_normal((3, 20))
    levels = np.array([2.0, 4.0, 8.0])
    for shape in ((3,), (3, 1)):
        x = ch.project_cai(to_gpu(y), to_gpu(levels.reshape(shape)))
        np.testing.assert_allclose(to_host(x), ch.project_cai(y, levels), rtol=1e-12)
    with pytest.raises(ValueError, match="level"):
        ch.project_cai(to_gpu(y), to_gpu(np.array([2.0, 0.5, np.nan])))
    with pytest.raises(ValueError, match="level"):
        ch.project_cai(to_gpu(y), to_gpu(np.ones(2)))
    with pytest.raises(TypeError, match="level"):
        ch.project_cai(y, to_gpu(levels))
    with pytest.raises(TypeError, match="level"):
        ch.project_cai(to_gpu(y), to_gpu(np.array([2, 4, 8])))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad, to_gpu, to_host):
    y = np.random.default_rng(7).standard_normal((3, 20))
    y[1, 5] = bad
    for project in (ch.project_cai, ch.project_l1_ball, ch.project_simplex):
        with pytest.raises(ValueError, match="finite"):
            project(to_gpu(y), 2.0)
        x, info = project(to_gpu(y), 2.0, check_finite=False, full_output=True)
        x, threshold, level = map(to_host, (x, info.threshold, info.level))
        assert np.isnan(x[1]).all()
        assert np.isnan([threshold[1], level[1]]).all()
        assert np.isfinite([threshold[::2], level[::2]]).all()
        np.testing.assert_allclose(x[[0, 2]], project(y[[0, 2]], 2.0), rtol=1e-12)
    device = to_gpu(y)
    with pytest.raises(ValueError, match="finite"):
        ch.project_cai(device, 2.0, out=device)
    np.testing.assert_array_equal(to_host(device), y)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_not_finite_in_a_long_vector(bad, dtype, to_gpu):
    """Where the sample does not see it, but what keeps the band does."""
    n = 30_000 if SIMULATED else 1 << 23
    y = np.random.default_rng(8).standard_normal(n).astype(dtype)
    y[-1] = bad
    device = to_gpu(y)
    for project, parameter in ((ch.project_cai, 0.3 * n), (ch.project_l1_ball, 0.1 * n)):
        with pytest.raises(ValueError, match="finite"):
            project(device, parameter)


def test_errors(to_gpu):
    y = to_gpu(np.ones((2, 5)))
    with pytest.raises(AxisError):
        ch.project_cai(y, 2.0, axis=2)
    with pytest.raises(ValueError, match="level"):
        ch.project_cai(y, 0.5)
    with pytest.raises(TypeError, match="out must lie on the GPU"):
        ch.project_cai(y, 2.0, out=np.zeros((2, 5)))
    with pytest.raises(ValueError, match="shape"):
        ch.project_cai(y, 2.0, out=to_gpu(np.zeros((5, 2))))
    with pytest.raises(ValueError, match="dtype"):
        ch.project_cai(y, 2.0, out=to_gpu(np.zeros((2, 5), np.float32)))
    with pytest.raises(ValueError, match="'newton'"):
        ch.project_l1_ball(y, 2.0, method="condat")
    with pytest.raises(ValueError, match="'cfp'"):
        ch.project_hoyer(y, 0.5, method="alternating")
    with pytest.raises(TypeError, match="complex"):
        ch.project_cai(to_gpu(np.ones(3, complex)), 2.0)
    with pytest.raises(TypeError, match="out must be a NumPy array"):
        ch.project_cai(np.ones((2, 5)), 2.0, out=y)


def test_empty(to_gpu, to_host):
    for shape in ((0,), (0, 3), (3, 0)):
        x, info = ch.project_l1_ball(to_gpu(np.zeros(shape)), full_output=True)
        assert x.shape == shape
        assert info.threshold.shape == shape[:-1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(9, 40), (3, 60 if SIMULATED else 3000), (1, 2 * LONG)])
def test_the_same_bits(shape, dtype, to_gpu, to_host):
    """At every call; on a GPU a hundred times."""
    y = to_gpu(make("laplace", shape[0] * shape[1]).reshape(shape).astype(dtype))
    first = to_host(ch.project_cai(y, shape[1] / 9))
    for _ in range(3 if SIMULATED else 100):
        np.testing.assert_array_equal(to_host(ch.project_cai(y, shape[1] / 9)), first)


def rows_of_all_kinds(n, dtype):
    """Plain rows, and some that are not: ties, zeros, a mask, a constant, large and tiny ones."""
    rng = np.random.default_rng(n)
    y = rng.standard_normal((23, n))
    y[1] = np.round(3.0 * y[1])
    y[3] = 0.0
    y[4, ::2] = -1e30
    y[6] = 2.0
    y[7] = -1.0
    y[9] *= 1e30
    y[10] *= 1e-30
    y[12] = 1.0 + 1e-6 * y[12]
    y[13, : n // 2] = 0.0
    y[15] = np.sort(y[15])
    y[17] *= np.where(rng.random(n) < 0.5, 1e-4, 1e3)
    return y.astype(dtype)


HELD = [1, 2, 5, 8, 9, 16, 31, 33, 64, 100, 128]
HELD += [161] if SIMULATED else [1000, 1025, 5000, 8192, 16384, 32768, 32769]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", HELD)
def test_rows_held_in_shared_memory(n, dtype, to_gpu, to_host):
    """Those that a team of threads takes, and those that it leaves to others."""
    y = rows_of_all_kinds(n, dtype)
    device = to_gpu(y)
    if n < 1000:
        levels = (1.0, 1.0 + 0.1 * n, 0.5 * n)
    else:
        levels = (0.1 * n,)
    for level in levels:
        level = max(level, 1.0)
        for project, name, options in (
            (ch.project_cai, "project_cai", {}),
            (ch.project_cai, "project_cai", {"nonneg": True}),
            (ch.project_l1_ball, "project_l1_ball", {}),
            (ch.project_simplex, "project_simplex", {}),
        ):
            x = to_host(project(device, level, **options))
            for row, got in zip(y, x, strict=True):
                expected = getattr(oracle, name)(row, level, **options)
                assert error(got, expected) <= TOLERANCE[y.dtype], (name, options, level)
        x, info = ch.project_cai(device, level, full_output=True)
        np.testing.assert_array_equal(to_host(info.nnz), np.count_nonzero(to_host(x), axis=1))


@pytest.fixture
def listed(to_gpu, to_host, monkeypatch):
    """Project rows; returns how many were left to the other kernel, which is slower."""
    lists = []
    home = type(home_of(to_gpu(np.zeros(1))))
    zeros = home.zeros

    def watched(self, count, dtype):
        lists.append(zeros(self, count, dtype))
        return lists[-1]

    monkeypatch.setattr(home, "zeros", watched)

    def count(project, y):
        lists.clear()
        project(to_gpu(y))
        assert lists[-1].size == len(y) + 1
        return int(to_host(lists[-1])[0])

    return count


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_rows_are_not_left_over(dtype, listed):
    y = np.random.default_rng(0).standard_normal((200, 50)).astype(dtype)
    for project in (
        lambda d: ch.project_cai(d, 9.0), lambda d: ch.project_l1_ball(d, 5.0),
        lambda d: ch.project_simplex(d, 5.0), lambda d: ch.project_hoyer(d, 0.6),
    ):  # fmt: skip
        assert listed(project, y) <= 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_guess_too_far_right_is_taken_back(dtype, listed):
    """Such rows are not left over either: Newton's first step is a bound from the left."""
    rows = [47, 79, 92, 104, 126, 133, 167, 174, 211, 244, 279, 319]
    y = np.random.default_rng(0).standard_normal((1200, 100))[rows].astype(dtype)
    assert listed(lambda d: ch.project_cai(d, 5.85), y) == 0


def test_float16_twice_changes_nothing(to_gpu, to_host):
    """Rounding leaves a row's level by more than the search in float32 would look at again."""
    y = np.random.default_rng(0).standard_normal((300, 40)).astype(np.float16)
    for project in (lambda d: ch.project_cai(d, 9.0), lambda d: ch.project_l1_ball(d, 5.0)):
        once = project(to_gpu(y))
        np.testing.assert_array_equal(to_host(project(once)), to_host(once))


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1e-12), ("f4", 1e-30), ("f8", 1e-110)])
def test_small_rows_in_a_large_ball(dtype, scale, to_gpu, to_host):
    """Their squares are of no use, and need not be; the rows are too long to be held."""
    y = (
        np.random.default_rng(0).standard_normal((2, 400 if SIMULATED else 40_000)) * scale
    ).astype(dtype)
    np.testing.assert_array_equal(to_host(ch.project_l1_ball(to_gpu(y), 1.0)), y)
    got, expected = (ch.project_l1_ball(z, 5 * scale) for z in (to_gpu(y), y))
    assert error(to_host(got), expected) <= TOLERANCE[y.dtype]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("negative", [1, 40])
def test_hoyer_of_zeros_and_what_is_negative(negative, dtype, to_gpu, to_host):
    y = np.zeros(104, dtype)
    y[5 : 5 + negative] = -3
    for sparseness in (0.2, 0.5, 0.9, 0.99):
        expected = ch.project_hoyer(y, sparseness, nonneg=True)
        got = to_host(ch.project_hoyer(to_gpu(y), sparseness, nonneg=True))
        assert error(got, expected) <= TOLERANCE[y.dtype]


@pytest.mark.parametrize("n", [3, 128, 300])
@pytest.mark.parametrize("radius", [1e-30, 1e-40, 1e-200, 1e-306])
def test_radii_far_below_the_entries(n, radius, to_gpu, to_host):
    y = np.random.default_rng(3).standard_cauchy(n)
    for project in (ch.project_l1_ball, ch.project_simplex):
        x, info = project(to_gpu(y), radius, full_output=True)
        assert to_host(info.converged)
        np.testing.assert_allclose(to_host(x), project(y, radius), rtol=1e-12)
        narrow, info = project(to_gpu(y.astype(np.float32)), radius, full_output=True)
        assert to_host(info.converged)
        assert np.isfinite(to_host(narrow)).all()


def test_what_fills_the_registers_up_is_no_data(to_gpu, to_host):
    """A row of 66 has room for 128: the zeros beyond its end do not count for the guess."""
    y = to_gpu(np.random.default_rng(0).standard_normal((100, 66)).astype(np.float32))
    for project, parameter, passes in ((ch.project_cai, 7.0, 6.0), (ch.project_l1_ball, 3.0, 5.0)):
        _, info = project(y, parameter, full_output=True)
        assert to_host(info.passes).mean() < passes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("data", ["gaussian", "two", "late"])
def test_the_band_around_the_threshold(data, dtype, to_gpu, to_host):
    """A vector long enough for it: where it serves, where it is too full, where τ is outside."""
    n = 30_000 if SIMULATED else 1 << 23
    y = np.random.default_rng(5).standard_normal(n)
    if data == "two":  # nearly everything lies at the threshold
        y = np.where(np.arange(n) % 50 == 0, 2.0, 1.0) + 1e-3 * y
    elif data == "late":
        y[-(n // 10) :] *= 30.0
    y = y.astype(dtype)
    total = float(np.abs(y.astype(LD)).sum())
    for project, name, parameter in (
        (ch.project_l1_ball, "project_l1_ball", 0.1 * total),
        (ch.project_cai, "project_cai", 0.3 * float(oracle.hoyer_score(y))),
    ):
        x, info = project(to_gpu(y), parameter, full_output=True)
        assert error(to_host(x), getattr(oracle, name)(y, parameter)) <= TOLERANCE[y.dtype]
        assert to_host(info.nnz) == np.count_nonzero(to_host(x))


@pytest.mark.parametrize("project", [ch.project_cai, ch.project_l1_ball])
def test_a_sample_that_misleads(project, to_gpu, to_host):
    """One vector is long enough to begin with a sample, of entries that tell nothing of it."""
    n = LONG if SIMULATED else 1 << 25
    for outside in (0.0, 1e-3, 1e3):
        y = np.full(n, outside)
        y[: n // 3] = make("gaussian", n // 3)
        y[-5:] = 7.0
        parameter = 0.3 * float(oracle.hoyer_score(y)) if project is ch.project_cai else 4.0
        x, info = project(to_gpu(y), parameter, full_output=True)
        expected = getattr(oracle, project.__name__)(y, parameter)
        assert error(to_host(x), expected) <= 1e-12
        assert to_host(info.converged)


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_zeros_that_become_nonzero_keep_their_sign(dtype, n, to_gpu, to_host):
    y = np.tile(np.array([3, 2, -0.0, 0, 1, -2], dtype), n // 6)
    x = to_host(ch.project_hoyer(to_gpu(y), sparseness=0.05))
    assert np.all(x != 0)
    np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


@pytest.mark.parametrize("n", [6, 300])
@pytest.mark.parametrize("scale", [1e-120, 1e-200, 1e-300])
def test_the_norm_of_tiny_entries_in_a_huge_ball(scale, n, to_gpu, to_host):
    y = scale * np.random.default_rng(0).standard_normal(n)
    for nonneg, expected in ((False, y), (True, np.maximum(y, 0))):
        x, info = ch.project_l1_ball(to_gpu(y), 1e300, nonneg=nonneg, full_output=True)
        np.testing.assert_array_equal(to_host(x), expected)
        assert abs(to_host(info.level) / np.abs(expected).sum() - 1) <= 1e-13


@pytest.mark.parametrize("n", [3, 300])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_flat_vector_of_its_norm_is_unchanged_by_hoyer(dtype, n, to_gpu, to_host):
    y = np.random.default_rng(n).uniform(0.5, 2.0, (40, 1)).astype(dtype) * np.ones(n, dtype)
    x, info = ch.project_hoyer(to_gpu(y), 0.0, full_output=True)
    np.testing.assert_array_equal(to_host(x), y)
    np.testing.assert_allclose(to_host(info.level), n, 1e-6)
    x = to_host(ch.project_hoyer(to_gpu(-y), 0.0, nonneg=True))
    np.testing.assert_allclose(x, y, 1e-6)
    x = to_host(ch.project_hoyer(to_gpu(y), 0.0, l2=2.0**50))
    np.testing.assert_allclose(x, 2.0**50 / n**0.5, 1e-6)


@pytest.mark.parametrize("more", [0, 300])
def test_totals_near_the_largest_float(more, to_gpu, to_host):
    for y, total in ([1e307, -1e308], 1.7e308), ([-1e308, -5e307, 1e308, 0.0], 1.79e308):
        y = np.append(y, np.full(more, -1.7e308))
        x = to_host(ch.project_simplex(to_gpu(y), total))
        np.testing.assert_allclose(x, ch.project_simplex(y, total), 1e-12)
        assert abs((x / total).sum() - 1) <= 1e-12
    if not SIMULATED:  # whose ldexp raises where the level, 4e308, overflows
        y = np.full(4, 1e308)
        np.testing.assert_array_equal(to_host(ch.project_l1_ball(to_gpu(y), np.inf)), y)


def test_threshold_of_what_has_no_positive_entry(to_gpu, to_host):
    y = np.array([-1.0, -2.0])
    for project, p in (ch.project_l1_ball, 0.0), (ch.project_cai, 1.0):
        x, info = project(to_gpu(y), p, nonneg=True, full_output=True)
        assert not to_host(x).any()
        assert to_host(info.threshold) == 0.0


@pytest.mark.parametrize("n", [600, LONG])
def test_float32_sums_in_which_a_few_entries_drown_the_rest(n, to_gpu, to_host):
    """Squares of float32 cannot tell on which side of τ they were taken."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        count, excess = int(rng.integers(2, 40)), 10.0 ** rng.uniform(-8.5, -7)
        y = rng.standard_normal(n).astype(np.float32)
        y[:count] = 10.0 ** rng.uniform(6, 8)
        level = count * (1 + excess)
        if oracle.hoyer_score(y) <= level * (1 + 2e-6):
            continue  # it counts as feasible
        exact = oracle.threshold_for_level(abs(y).astype(LD), level)
        _, info = ch.project_cai(to_gpu(y), level, full_output=True)
        assert to_host(info.converged)
        assert abs(to_host(info.threshold) - exact.tau) <= 1e-4 * exact.tau


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_error_leaves_x_as_it_is(overwrite, to_gpu, to_host):
    calls = [
        (ch.project_cai, 2.0, {}),
        (ch.project_cai, 2.0, {"method": "iterative"}),
        (ch.project_hoyer, 0.5, {}),
        (ch.project_l1_ball, 1.0, {}),
        (ch.project_simplex, 1.0, {}),
    ]
    for project, parameter, options in calls:
        y = np.array([1.0, 2.0, np.nan])
        x = to_gpu(y)
        given = {"overwrite_x": True} if overwrite else {"out": x}
        with pytest.raises(ValueError, match="x must be finite"):
            project(x, parameter, **given, **options)
        np.testing.assert_array_equal(to_host(x), y)
    for levels in ([2.0, 0.5], [0.5]):
        y = np.tile([1.0, 2.0, 3.0], (len(levels), 1))
        x = to_gpu(y)
        given = {"overwrite_x": True} if overwrite else {"out": x}
        with pytest.raises(ValueError, match="level must lie in"):
            ch.project_cai(x, to_gpu(np.array(levels)), **given)
        np.testing.assert_array_equal(to_host(x), y)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_the_report_on_nothing(axis, to_gpu, to_host):
    x = np.empty((2, 0))
    for project, parameter in ((ch.project_cai, 2.0), (ch.project_simplex, 1.0)):
        _, info = project(to_gpu(x), parameter, axis=axis, full_output=True)
        _, expected = project(x, parameter, axis=axis, full_output=True)
        for name in ("threshold", "level", "nnz", "passes", "converged"):
            np.testing.assert_array_equal(to_host(getattr(info, name)), getattr(expected, name))
