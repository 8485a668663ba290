"""Scores on the device, against the oracle."""

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, FLOAT32, float32, make
from numpy.exceptions import AxisError

import conehoyer as ch

SCORES = [ch.cai_score, ch.hoyer_score, ch.hoyer_sparseness]
ALL = [*SCORES, ch.gsp_score]


def expected(score, x):
    return getattr(oracle, score.__name__)(x)


def slack(score, x):
    """The error allowed: the sums are good to 1e-12 of what they add up."""
    if score is ch.hoyer_sparseness:
        return 1e-12
    return 1e-12 * max(float(oracle.hoyer_score(x)), 1e-300)


# One entry, two, more than the threads of a block, several blocks and their last part.
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("n", [1, 2, 30, 65])
def test_against_the_oracle(score, n, to_gpu, to_host):
    """Each distribution is a row of a batch."""
    for vectors in (
        np.stack([make(name, n) for name in DISTRIBUTIONS]),
        np.stack([float32(name, n) for name in [*FLOAT32, "near_constant"]]),
    ):
        got = to_host(score(to_gpu(vectors if n > 2 else vectors[:3])))
        assert got.dtype == np.float64
        for x, value in zip(vectors, got, strict=n > 2):
            assert abs(value - expected(score, x)) <= slack(score, x)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("n", [65, 300])
def test_one_vector_by_several_blocks(score, n, to_gpu, to_host):
    for x in (make("gaussian", n), make("near_constant", n), float32("cauchy", n)):
        got = to_host(score(to_gpu(x)))
        assert got.shape == ()
        assert abs(got - expected(score, x)) <= slack(score, x)


@pytest.mark.parametrize("score", SCORES)
def test_many_rows(score, to_gpu, to_host):
    x = make("laplace", 120).reshape(6, 20)
    x[2] = 0
    x[4, 1:] = 0
    got = to_host(score(to_gpu(x)))
    for row, value in zip(x, got, strict=True):
        assert abs(value - expected(score, row)) <= slack(score, row)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("n", [20, 100])
def test_scales(score, n, to_gpu, to_host):
    x = make("gaussian", n)
    for scale in (1e-310, 1e-200, 1e150, 1e307):
        got = to_host(score(to_gpu(x * scale)))
        assert abs(got - expected(score, x)) <= (1e-8 if scale == 1e-310 else slack(score, x))


def test_scales_of_float32(to_gpu, to_host):
    x = make("gaussian", 50)
    for scale in (1e-37, 1e37):
        y = (x * scale).astype(np.float32)
        assert to_host(ch.hoyer_score(to_gpu(y))) == pytest.approx(
            float(oracle.hoyer_score(y)), rel=1e-12
        )


def test_conventions(to_gpu, to_host):
    for value, x in [(0, np.zeros(5)), (0, np.zeros(0)), (0, [1.0, -1.0])]:
        assert to_host(ch.cai_score(to_gpu(x))) == value
    for value, x in [(0, np.zeros(5)), (0, np.zeros(0)), (2, [1.0, -1.0])]:
        assert to_host(ch.hoyer_score(to_gpu(x))) == value
    for x in (np.zeros(5), np.zeros(0), [7.0], [0.0, -3.0, 0.0]):
        assert to_host(ch.hoyer_sparseness(to_gpu(x))) == 1
    assert to_host(ch.hoyer_sparseness(to_gpu(np.full(7, 0.1)))) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("score", ALL)
def test_empty(score, to_gpu, to_host):
    for shape in ((0,), (0, 3), (3, 0)):
        x = np.zeros(shape)
        np.testing.assert_array_equal(to_host(score(to_gpu(x))), score(x))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint8", "bool"])
def test_other_dtypes(dtype, to_gpu, to_host):
    x = make("integers", 40).reshape(2, 20).astype(dtype)
    for score in SCORES:
        got = to_host(score(to_gpu(x)))
        assert got.dtype == np.float64
        for row, value in zip(x, got, strict=True):
            assert abs(value - expected(score, row)) <= 1e-12 * row.size


@pytest.mark.parametrize("score", ALL)
def test_axis_and_keepdims(score, to_gpu, to_host, transposed):
    x = make("gaussian", 24).reshape(2, 3, 4)
    device = to_gpu(x)
    views = [(x.T, transposed(device)), (x[:, :, ::2], device[:, :, ::2])]
    for (host, view), keepdims in zip(views, (False, True), strict=True):
        for axis in (0, None):
            got = to_host(score(view, axis=axis, keepdims=keepdims))
            want = score(host, axis=axis, keepdims=keepdims)
            assert got.shape == np.shape(want)
            np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_propagates(bad, to_gpu, to_host):
    for n in (4, 100):
        x = np.ones((3, n))
        x[1, 2] = bad
        for score in SCORES:
            got = to_host(score(to_gpu(x)))
            np.testing.assert_array_equal(np.isnan(got), [False, True, False])
        assert np.isnan(to_host(ch.gsp_score(to_gpu(x))))


def test_the_same_bits(to_gpu, to_host):
    x = to_gpu(make("laplace", 300).astype(np.float32))
    first = to_host(ch.hoyer_score(x))
    for _ in range(3):
        assert to_host(ch.hoyer_score(x)) == first


def test_gsp_score_of_a_list(to_gpu, to_host):
    vectors = [make("gaussian", n) for n in (1, 3, 100)]
    vectors += [make("laplace", 12).reshape(3, 4).astype(np.float32), np.zeros(5), np.zeros(0)]
    got = to_host(ch.gsp_score(list(map(to_gpu, vectors))))
    assert got.shape == ()
    assert got == pytest.approx(float(oracle.gsp_score(vectors)), rel=1e-12)


def test_errors(to_gpu):
    with pytest.raises(TypeError, match="on a GPU and arrays of the host"):
        ch.gsp_score([to_gpu(np.ones(3)), np.ones(3)])
    for score in ALL:
        with pytest.raises(TypeError, match="complex"):
            score(to_gpu(np.ones(3, complex)))
        with pytest.raises(AxisError):
            score(to_gpu(np.ones(3)), axis=1)
