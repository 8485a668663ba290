import math
import tracemalloc

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, FLOAT32, float32, make
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import conehoyer as ch

SCORES = [ch.cai_score, ch.hoyer_score, ch.hoyer_sparseness]
SIZES = [1, 2, 3, 17, 1000, 4097, 9001]  # the last two cross a block of the sums
BOTH = st.sampled_from([np.float32, np.float64])


def expected(score, x):
    return getattr(oracle, score.__name__)(x)


def slack(score, x):
    """The error allowed: the sums are good to 1e-12 of what they add up."""
    if score is ch.hoyer_sparseness:
        return 1e-12
    # the signed sum of cai_score cancels; its error is relative to the sum of |x|
    return 1e-12 * max(float(oracle.hoyer_score(x)), 1e-300)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_float64_against_the_oracle(score, name):
    for n in SIZES:
        x = make(name, n)
        got = score(x)
        assert isinstance(got, float)  # np.float64 is one
        assert abs(got - expected(score, x)) <= slack(score, x), n


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", [*FLOAT32, "near_constant"])
def test_float32_is_summed_in_float64(score, name):
    for n in SIZES:
        x = float32(name, n)
        got = score(x)
        assert isinstance(got, np.float64)
        assert abs(got - expected(score, x)) <= slack(score, x), n


@pytest.mark.parametrize("score", SCORES)
def test_ranges(score):
    for n in (1, 2, 5, 100):
        x = make("gaussian", n)
        low, high = {"cai_score": (0, n), "hoyer_score": (1, n)}.get(score.__name__, (0, 1))
        # the constant vector and the unit vector are the ends of the range
        for v in (x, np.ones(n), np.eye(n)[0], np.full(n, -0.1)):
            assert low * (1 - 1e-15) <= score(v) <= high * (1 + 1e-15)


def test_conventions():
    assert ch.cai_score(np.zeros(5)) == 0
    assert ch.hoyer_score(np.zeros(5)) == 0
    assert ch.hoyer_sparseness(np.zeros(5)) == 1
    assert ch.hoyer_sparseness([7.0]) == 1
    assert ch.cai_score(np.zeros(0)) == 0
    assert ch.hoyer_sparseness(np.zeros(0)) == 1
    assert ch.cai_score([1.0, -1.0]) == 0
    assert ch.hoyer_score([1.0, -1.0]) == 2
    assert ch.hoyer_sparseness([0.0, -3.0, 0.0]) == 1
    assert ch.hoyer_sparseness(np.full(7, 0.1)) == pytest.approx(0, abs=1e-15)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.longdouble, np.int32, bool]
)
def test_every_dtype_gives_float64(score, dtype):
    x = (make("integers", 60).reshape(3, 20)).astype(dtype)
    got = score(x)
    assert got.dtype == np.float64
    for row, value in zip(x, got, strict=True):
        assert abs(value - expected(score, row)) <= 1e-12 * row.size


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("shape", [(3, 40), (7, 16), (1, 17), (100, 33), (5, 1025), (20, 2100)])
def test_columns(score, shape, dtype):
    """Columns that lie side by side, with those among them that need another unit."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal(shape).astype(dtype)
    scales = np.ones(shape[1])
    scales[[2, 5, -1]] = (1e-200, 1e200, 1e-307) if dtype == np.float64 else (1e-30, 1e30, 1e-37)
    x *= scales.astype(dtype)
    x[:, 7] = 0.0
    x[0, 9], x[-1, -3] = math.nan, math.inf
    found = score(x, axis=0)
    for c in range(shape[1]):
        if c in (9, shape[1] - 3):
            assert math.isnan(found[c]), c
        else:
            a = x[:, c].astype(np.longdouble)
            assert abs(found[c] - float(expected(score, a))) <= slack(score, a), c
    np.testing.assert_array_equal(score(np.asfortranarray(x.T), axis=1), found)
    two = np.stack([x, x[::-1] + dtype(1.0)])
    np.testing.assert_array_equal(score(two, axis=1)[0], found)
    np.testing.assert_array_equal(score(two, axis=1)[1], score(two[1], axis=0))


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", SCORES)
def test_rows_of_a_few(score, dtype):
    rng = np.random.default_rng(6)
    for n in (1, 2, 3, 16, 17):
        x = rng.standard_normal((37, n)).astype(dtype)
        x[3:6] *= dtype(1e-30 if dtype == np.float32 else 1e-200)
        x[6] *= dtype(1e30 if dtype == np.float32 else 1e300)
        x[7], x[12, 0], x[20, -1] = 0.0, math.nan, -math.inf
        found = score(x)
        for workers in (2, 5):
            np.testing.assert_array_equal(score(x, workers=workers), found)
        for r in range(len(x)):
            np.testing.assert_array_equal(score(x[r]), found[r])  # whatever lies beside it
            if r in (12, 20):
                assert math.isnan(found[r])
            else:
                a = x[r].astype(np.longdouble)
                assert abs(found[r] - float(expected(score, a))) <= slack(score, a), (n, r)


def test_a_matrix_in_fortran_order_is_not_copied():
    x = np.asfortranarray(np.random.default_rng(0).standard_normal((1000, 500)))
    expected = ch.hoyer_score(np.ascontiguousarray(x), axis=None)
    tracemalloc.start()
    found = ch.hoyer_score(x, axis=None)
    kept = ch.hoyer_score(x, axis=None, keepdims=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 20
    assert found == pytest.approx(expected, rel=1e-14)
    assert kept.shape == (1, 1)


def test_long_columns_are_summed_with_care():
    x = np.full((300_000, 20), 0.1)
    x[0] = 1e8  # beside this the others would be rounded, always to the same side
    a = x[:, 0].astype(np.longdouble)
    for score in (ch.cai_score, ch.hoyer_score):
        np.testing.assert_allclose(score(x, axis=0), float(oracle.hoyer_score(a)), rtol=1e-14)


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("score", SCORES)
def test_columns_have_the_same_bits_by_several_threads(score):
    x = np.random.default_rng(3).standard_normal((3, 50, 2100))
    alone = score(x, axis=1, workers=1)
    for workers in (2, 5):
        np.testing.assert_array_equal(score(x, axis=1, workers=workers), alone)


def test_columns_are_not_copied():
    x = np.ones((1000, 1000))
    ch.hoyer_score(x, axis=0)
    tracemalloc.start()
    ch.hoyer_score(x, axis=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < x.nbytes / 20


@pytest.mark.parametrize("score", SCORES)
def test_axis_and_keepdims(score):
    x = make("gaussian", 60).reshape(3, 4, 5)
    for axis in (0, 1, 2, -1, -2, -3):
        got = score(x, axis=axis)
        moved = np.moveaxis(x, axis, -1)
        assert got.shape == moved.shape[:-1]
        for index in np.ndindex(got.shape):
            assert got[index] == pytest.approx(float(expected(score, moved[index])), rel=1e-12)
        kept = score(x, axis=axis, keepdims=True)
        np.testing.assert_array_equal(kept, np.expand_dims(got, axis))
    whole = score(x, axis=None)
    assert np.ndim(whole) == 0
    assert whole == pytest.approx(float(expected(score, x)), rel=1e-12)
    assert score(x, axis=None, keepdims=True).shape == (1, 1, 1)


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("score", SCORES)
def test_workers_do_not_change_a_bit(score):
    for x in (make("laplace", 600_001), make("laplace", 600_000).reshape(600, 1000)):
        one = np.asarray(score(x, workers=1))
        for workers in (2, 3, -1):
            assert np.asarray(score(x, workers=workers)).tobytes() == one.tobytes()


@pytest.mark.parametrize("score", [*SCORES, ch.gsp_score])
def test_nan_propagates(score):
    x = np.ones((3, 4))
    x[1, 2] = np.nan
    got = score(x)
    assert np.array_equal(np.isnan(got), [False, True, False]) or (
        score is ch.gsp_score and np.isnan(got)
    )


@pytest.mark.parametrize("score", [*SCORES, ch.gsp_score])
def test_bad_input(score):
    with pytest.raises(TypeError, match="complex"):
        score(np.ones(3, complex))
    with pytest.raises(TypeError, match="object"):
        score(np.ones(3, object))
    with pytest.raises(np.exceptions.AxisError, match="3"):
        score(np.ones((2, 2)), axis=3)


@given(
    hnp.arrays(
        BOTH,
        hnp.array_shapes(max_dims=3, max_side=9),
        elements=st.floats(-1e6, 1e6, width=32),
    ),
    st.integers(-300, 300),
)
def test_scores_ignore_the_scale(x, exponent):
    """H and the sparseness are functions of the direction alone."""
    limit = 60 if x.dtype == np.float32 else 300
    scaled = np.ldexp(x, max(-limit, min(limit, exponent)))
    lost = np.ldexp(scaled, -max(-limit, min(limit, exponent))) != x
    if lost.any() or np.isinf(scaled).any():
        return  # the scaling itself over- or underflowed
    for score in SCORES:
        np.testing.assert_allclose(score(scaled), score(x), rtol=1e-13, atol=1e-13)


# gsp_score: the mean sparseness of the vectors


def test_gsp_score_of_an_array():
    x = make("gaussian", 60).reshape(5, 12)
    assert ch.gsp_score(x) == pytest.approx(float(oracle.gsp_score(list(x))), rel=1e-13)
    assert ch.gsp_score(x, axis=0) == pytest.approx(float(oracle.gsp_score(list(x.T))), rel=1e-13)
    assert ch.gsp_score(x, axis=None) == pytest.approx(float(oracle.hoyer_sparseness(x)), rel=1e-13)


def test_gsp_score_of_a_list_of_different_lengths():
    vectors = [make("gaussian", n) for n in (3, 10, 500)]
    assert ch.gsp_score(vectors) == pytest.approx(float(oracle.gsp_score(vectors)), rel=1e-13)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_single_entry_that_is_not_finite(bad):
    assert np.isnan(ch.hoyer_sparseness([bad]))
    for x in ([bad], [1.0, bad, 2.0], [*range(40), bad]):
        assert np.isnan(ch.cai_score(x))
        assert np.isnan(ch.hoyer_score(x))
    assert np.isnan(ch.gsp_score([[bad], [1.0]]))
    assert ch.hoyer_sparseness([0.0]) == 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_stay_in_their_range(dtype):
    """One nonzero has the score 1 and n equal ones n, although the quotient is rounded."""
    rng = np.random.default_rng(0)
    for value in rng.uniform(0.1, 2.0, 100).astype(dtype):
        y = np.zeros(7, dtype)
        y[3] = value
        assert 1.0 <= ch.hoyer_score(y) <= 1.0 + 1e-6
        np.testing.assert_array_equal(ch.project_cai(y, ch.hoyer_score(y)), y)
        assert 1.0 - 1e-6 < ch.cai_score(y) <= 7.0
        y[:] = value
        assert 7.0 * (1 - 1e-6) < ch.hoyer_score(y) <= 7.0
        assert 7.0 * (1 - 1e-6) < ch.cai_score(-y) <= 7.0


def test_gsp_score_of_a_tuple():
    x, y = make("gaussian", 5), make("gaussian", 7)
    assert ch.gsp_score((x, y)) == ch.gsp_score([x, y])


def test_gsp_score_of_numbers_beside_arrays():
    assert ch.gsp_score([np.ones(4), 3.0]) == 0.5
    assert ch.gsp_score([3.0, np.ones(4)]) == 0.5


def test_gsp_score_names_the_array_that_is_none():
    with pytest.raises(ValueError, match=r"^x\[0\] is no array"):
        ch.gsp_score([[[1.0], [1.0, 2.0]], np.ones(3)])


def test_gsp_score_of_nothing():
    assert ch.gsp_score(np.empty((0, 3))) == 1.0
    assert ch.gsp_score([]) == 1.0


def test_gsp_score_keeps_the_dimensions():
    x = make("gaussian", 60).reshape(3, 4, 5)
    kept = ch.gsp_score(x, axis=1, keepdims=True)
    assert kept.shape == (1, 1, 1)
    assert kept[0, 0, 0] == ch.gsp_score(x, axis=1)


@pytest.mark.parametrize("x", [np.ones((2, 3)), [np.ones(2), np.ones(3)]], ids=["array", "list"])
def test_gsp_score_checks_the_number_of_workers(x):
    with pytest.raises(ValueError, match="workers"):
        ch.gsp_score(x, workers=0)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (9, 1), (1, 9)])
def test_small_matrices_in_fortran_order(shape, axis):
    y = np.random.default_rng(0).standard_normal(shape)
    expected = ch.hoyer_score(y, axis=axis)
    np.testing.assert_array_equal(ch.hoyer_score(np.asfortranarray(y), axis=axis), expected)
