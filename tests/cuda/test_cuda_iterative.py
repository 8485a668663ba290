"""Algorithm 1 on the device, against the oracle and "cfp"."""

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, FLOAT32, float32, make

import conehoyer as ch

TOLERANCE = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}


def iterative(x, level, **keywords):
    return ch.project_cai(x, level, method="iterative", **keywords)


def close(x, ref, tolerance):
    size = float(np.max(np.abs(ref), initial=0))
    assert np.max(np.abs(x - ref), initial=0) <= tolerance * size


@pytest.mark.parametrize("n", [1, 2, 20])
def test_against_the_oracle(n, to_gpu, to_host):
    """Each distribution is a row of a batch."""
    for vectors in (
        np.stack([make(name, n) for name in DISTRIBUTIONS]),
        np.stack([float32(name, n) for name in [*FLOAT32, "near_constant"]]),
    ):
        levels = np.array([max(0.3 * float(oracle.hoyer_score(y)), 1.0) for y in vectors])
        x, info = iterative(to_gpu(vectors), levels, full_output=True)
        host = to_host(x)
        assert host.dtype == vectors.dtype
        for y, row, level in zip(vectors, host, levels, strict=True):
            close(row, oracle.project_cai(y, level), TOLERANCE[y.dtype])
        np.testing.assert_array_equal(to_host(info.nnz), np.count_nonzero(host, axis=1))
        assert to_host(info.converged).all()


def test_by_the_grid(to_gpu, to_host):
    for y in (make("gaussian", 260), float32("laplace", 260)):
        x = to_host(iterative(to_gpu(y), 30.0))
        close(x, oracle.project_cai(y, 30.0), TOLERANCE[y.dtype])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_cfp(dtype, to_gpu, to_host):
    y = to_gpu(np.random.default_rng(1).standard_normal((4, 30)).astype(dtype))
    levels = np.array([1.0, 3.0, 9.0, 30.0])
    for nonneg in (False, True):
        x, info = iterative(y, levels, nonneg=nonneg, full_output=True)
        ref, expected = ch.project_cai(y, levels, nonneg=nonneg, full_output=True)
        close(to_host(x), to_host(ref), TOLERANCE[np.dtype(dtype)])
        np.testing.assert_array_equal(to_host(info.nnz), to_host(expected.nnz))
        np.testing.assert_allclose(to_host(info.level), to_host(expected.level), rtol=1e-6)
        np.testing.assert_allclose(
            to_host(info.threshold)[1:], to_host(expected.threshold)[1:], rtol=1e-5, atol=1e-12
        )
        assert to_host(info.passes).dtype == np.int64


def test_nonneg(to_gpu, to_host):
    for name in ("gaussian", "two_valued", "near_constant"):
        y = make(name, 40) - (0.2 if name == "two_valued" else 0.0)
        level = max(0.4 * float(oracle.hoyer_score(np.maximum(y, 0))), 1.0)
        x = to_host(iterative(to_gpu(y), level, nonneg=True))
        close(x, oracle.project_cai(y, level, nonneg=True), 1e-10)
        assert (x >= 0).all()


def test_feasible_bit_for_bit(to_gpu, to_host):
    y = make("gaussian", 20)
    for x in (np.zeros(5), np.eye(5)[2] * -3.0, y):
        level = 20.0 if x is y else 1.0
        got, info = iterative(to_gpu(x), level, full_output=True)
        np.testing.assert_array_equal(to_host(got), x)
        assert to_host(info.threshold) == 0
    tiny = np.array([1.0, -0.0, 1e-30, -0.5])  # no tiny entry lost, no sign of a zero
    got = to_host(iterative(to_gpu(tiny), 3.0))
    assert got.tobytes() == tiny.tobytes()
    once = iterative(to_gpu(y), 4.0)
    np.testing.assert_array_equal(to_host(iterative(once, 4.0)), to_host(once))
    np.testing.assert_array_equal(to_host(iterative(to_gpu(-np.ones(3)), 2.0, nonneg=True)), 0)


def test_ties(to_gpu, to_host):
    y = np.array([1.0, -3.0, 3.0, 2.0, 3.0, 0.0])
    for level in (1.0, 1.5, 2.0, 2.9):
        x, info = iterative(to_gpu(y), level, full_output=True)
        close(to_host(x), oracle.project_cai(y, level), 1e-10)
        assert to_host(info.nnz) == np.ceil(level)
        assert to_host(info.threshold) == 3
        assert to_host(info.level) == level
    close(to_host(iterative(to_gpu(y), 3.0)), oracle.project_cai(y, 3.0), 1e-10)


@pytest.mark.parametrize("scale", [1e-310, 1e-160, 1e150, 1e300])
def test_scales(scale, to_gpu, to_host):
    y = make("gaussian", 40) * scale
    tolerance = 1e-10 if scale > 1e-300 else 1e-6
    close(to_host(iterative(to_gpu(y), 5.0)), oracle.project_cai(y, 5.0), tolerance)


def test_scales_of_float32(to_gpu, to_host):
    for scale in (1e-30, 1e30):
        y = (make("gaussian", 40) * scale).astype(np.float32)
        close(to_host(iterative(to_gpu(y), 5.0)), oracle.project_cai(y, 5.0), 1e-5)


def test_axes_dtypes_and_out(to_gpu, to_host):
    y = np.random.default_rng(2).standard_normal((4, 6))
    ref = np.stack([oracle.project_cai(row, 2.0) for row in y]).astype(float)
    x = to_host(iterative(to_gpu(y.T), 2.0, axis=0))
    np.testing.assert_allclose(x, ref.T, rtol=1e-9, atol=1e-12)
    x = to_host(iterative(to_gpu(y), 2.0, axis=None))
    close(x.ravel(), oracle.project_cai(y.ravel(), 2.0), 1e-10)
    half = y.astype(np.float16)
    x = to_host(iterative(to_gpu(half), 2.0))
    assert x.dtype == np.float16
    np.testing.assert_allclose(x, ref, rtol=0.02, atol=0.01)
    device = to_gpu(y)
    assert iterative(device, 2.0, out=device) is device
    np.testing.assert_allclose(to_host(device), ref, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad, to_gpu, to_host):
    for n in (20, 260):
        y = np.random.default_rng(3).standard_normal((2, n))
        y[1, 5] = bad
        with pytest.raises(ValueError, match="finite"):
            iterative(to_gpu(y), 2.0)
        x = to_host(iterative(to_gpu(y), 2.0, check_finite=False))
        assert np.isnan(x[1]).all()
        close(x[0], oracle.project_cai(y[0], 2.0), 1e-10)


def test_empty_and_bad_levels(to_gpu):
    for shape in ((0,), (0, 3), (3, 0)):
        assert iterative(to_gpu(np.zeros(shape)), 2.0).shape == shape
    y = to_gpu(np.ones((2, 5)))
    with pytest.raises(ValueError, match="level"):
        iterative(y, 0.5)
    with pytest.raises(ValueError, match="level"):
        iterative(y, to_gpu(np.array([2.0, np.nan])))


def test_near_constant_data(to_gpu, to_host):
    """One rounded step may go too far; the last ones are exact."""
    for seed in range(20):
        y = 1.0 + 1e-9 * np.random.default_rng(seed).standard_normal(3)
        x = to_host(ch.project_cai(to_gpu(y), 2.4, method="iterative"))
        np.testing.assert_allclose(x, ch.project_cai(y, 2.4), rtol=1e-12)
    x = ch.project_cai(to_gpu(np.array([1e19, 1e6, 1.0])), 1.0, method="iterative")
    np.testing.assert_array_equal(to_host(x), [1e19, 0.0, 0.0])


@pytest.mark.parametrize(("dtype", "giant"), [(np.float32, -3e38), (np.float64, -1e300)])
def test_a_negative_giant(dtype, giant, to_gpu, to_host):
    y = np.array([giant, 1e-8, 3e-8, 2e-8], dtype)
    x = to_host(ch.project_cai(to_gpu(y), 2.0, method="iterative", nonneg=True))
    np.testing.assert_allclose(x, ch.project_cai(y, 2.0, nonneg=True), rtol=1e-6)
