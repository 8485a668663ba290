"""The corners: ties, zero vectors, feasible input, the ends of every range."""

import math

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, SUBNORMAL, make

import conehoyer as ch
from conehoyer import _math as m
from conehoyer._cpu import engine
from conehoyer._jit import entry

LD = np.longdouble
BOTH = [np.float32, np.float64]
CAI_METHODS = ["cfp", "iterative"]
BALL_METHODS = ["newton", "condat", "sort"]


def close(x, ref, rtol=1e-12):
    ref = np.asarray(ref, dtype=LD)
    scale = np.max(np.abs(ref), initial=LD(0))
    return np.max(np.abs(np.asarray(x, dtype=LD) - ref), initial=LD(0)) <= rtol * scale


# ---------------------------------------------------------------------------
# ties at the top: more entries share the maximum than the level allows


@pytest.mark.parametrize("method", CAI_METHODS)
@pytest.mark.parametrize("level", [1.0, 1.25, 2.0, 2.5, 3.0, 3.75, 4.0])
def test_tied_maxima_keep_the_first_of_them(level, method):
    y = np.array([1.0, -3.0, 0.5, 3.0, 3.0, 0.0, -3.0, 2.0])
    x = ch.project_cai(y, level, method=method)
    assert close(x, oracle.project_cai(y, level))
    assert list(np.flatnonzero(x)) == [1, 3, 4, 6][: int(np.ceil(level))]
    assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12
    # the bound max(a) * sqrt(level) on <x, a>/||x|| is attained
    assert np.abs(x) @ np.abs(y) / np.linalg.norm(x) == pytest.approx(3 * np.sqrt(level), rel=1e-14)
    np.testing.assert_array_equal(ch.project_cai(x, level, method=method), x)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000, 70_000, 300_000])
def test_constant_vectors(n, dtype):
    y = np.full(n, -0.7, dtype)
    for level in sorted({1.0, 1 + 0.3 * (n - 1), 1 + 0.999 * (n - 1), float(n)}):
        x = ch.project_cai(y, level)
        assert close(x, oracle.project_cai(y, level), 1e-12 if dtype == np.float64 else 1e-6)
        assert np.count_nonzero(x) <= np.ceil(level)


@pytest.mark.parametrize("level", [1.0, 1.5, 2.0, 2.9])
def test_tied_maxima_in_hoyer(level):
    y = np.array([0.0, 2.0, 2.0, -2.0, 1.0])
    norm = np.linalg.norm(y)
    x = ch.project_hoyer(y, l1=norm * np.sqrt(level), l2=norm)
    ref = oracle.project_hoyer(y, l1=norm * np.sqrt(level), l2=norm)
    # here l1 was rounded, and b feels the square root of the distance to an integer level
    assert close(x, ref, 1e-12 if level % 1 else 1e-7)
    nonneg = ch.project_hoyer(np.abs(y), l1=norm * np.sqrt(level), l2=norm, nonneg=True)
    np.testing.assert_array_equal(nonneg, np.abs(x))


def test_ties_below_the_top_need_no_rule():
    y = np.array([5.0, 2.0, 2.0, 2.0, 2.0, 1.0])
    x = ch.project_cai(y, 1.5)
    assert len(set(x[1:5].tolist())) == 1
    assert close(x, oracle.project_cai(y, 1.5))


@pytest.mark.parametrize("method", CAI_METHODS)
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("ties", [1, 2, 7, 100, 9000])
def test_level_equal_to_the_number_of_ties(ties, dtype, method):
    """A support of exactly l equal entries is the answer."""
    rng = np.random.default_rng(ties)
    for rest in (0, 1, 50, 9000):
        y = np.concatenate([np.full(ties, 2.5), rng.uniform(-2, 2, rest)]).astype(dtype)
        y = rng.permutation(y)
        x = ch.project_cai(y, float(ties), method=method)
        # the threshold may lie anywhere between the ties and the next entry, so rounding
        # can leave a trace of that entry
        assert close(x, np.where(y == 2.5, y, 0), 1e-12 if dtype == np.float64 else 1e-5)
        np.testing.assert_array_equal(ch.project_cai(x, float(ties), method=method), x)


@pytest.mark.parametrize("offset", [-1e-3, -1e-9, -1e-13, 1e-13, 1e-9, 1e-3])
def test_levels_beside_the_number_of_ties(offset):
    y = np.concatenate([np.full(6, 3.0), make("uniform", 40)])
    level = 6 + offset
    x = ch.project_cai(y, level)
    assert close(x, oracle.project_cai(y, level))
    assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12


@pytest.mark.parametrize("n", [3, 40, 9000, 70_000])
def test_maxima_that_differ_in_the_last_bit(n):
    """Not ties, but no float lies between them: tau alone could not separate them."""
    rng = np.random.default_rng(n)
    y = 1 + np.finfo(float).eps * rng.integers(0, 2, n)
    y[0] = 1 + 3 * np.finfo(float).eps
    for level in (1.0, 1.5, 1 + 0.5 * (n - 1), 1 + 0.99 * (n - 1)):
        x = ch.project_cai(y, level)
        assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12, level
        assert close(x, oracle.project_cai(y, level)), level


# ---------------------------------------------------------------------------
# zero vectors, single entries, empty ranges


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("n", [1, 2, 100, 70_000])
def test_zero_vectors(n, dtype):
    zeros = np.zeros(n, dtype)
    for x in (
        ch.project_cai(zeros, 1.0),
        ch.project_cai(zeros, 1.0, method="iterative"),
        ch.project_cai(zeros, 1.0, nonneg=True),
        ch.project_hoyer(zeros, 0.5),
        ch.project_hoyer(zeros, 0.5, method="alternating"),
        ch.project_hoyer(zeros, 0.5, nonneg=True),
        ch.project_l1_ball(zeros, 1.0),
        ch.project_l1_ball(zeros, 0.0),
    ):
        assert x.dtype == dtype
        assert x.tobytes() == zeros.tobytes()
    for method in BALL_METHODS:
        x = ch.project_simplex(zeros, 2.0, method=method)
        np.testing.assert_allclose(
            x, np.full(n, 2.0 / n), rtol=1e-6 if dtype == np.float32 else 1e-12
        )
    assert ch.project_cai(np.full(n, -0.0), 1.0).tobytes() == np.full(n, -0.0).tobytes()


@pytest.mark.parametrize("n", [1, 3, 9000, 70_000])
def test_zero_vectors_reach_every_level(n):
    for level in (1.0, 1e308, np.inf):
        _, info = ch.project_cai(np.zeros(n), level, full_output=True)  # and no warning
        assert info.converged
        assert info.passes <= 1


@pytest.mark.parametrize("n", [200, 3000])
def test_data_of_few_values(n):
    """Equal terms of float32 sums are rounded to the same side."""
    rng = np.random.default_rng(n)
    for share in (0.005, 0.02, 0.1, 0.5) * 8:
        values = np.float32([1.0, rng.random(), rng.random()])
        x = values[rng.choice(3, n, p=[share, 1.0 - 1.1 * share, 0.1 * share])]
        x *= np.float32(rng.uniform(0.1, 3.0))
        wide = x.astype(np.longdouble)
        most = float(wide.sum() ** 2 / (wide @ wide))
        least = np.count_nonzero(x == x.max())
        for part in (0.02, 0.3, 0.7, 0.95):
            level = least + part * (most - least)
            y = ch.project_cai(x, level)
            wide = y.astype(np.longdouble)
            assert float(wide.sum() ** 2 / (wide @ wide)) <= level * (1.0 + 1e-6), (share, part)
            np.testing.assert_array_equal(ch.project_cai(y, level), y)


@pytest.mark.parametrize("seed", range(60))
def test_long_data_of_two_values(seed):
    """The same of the band's sums."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(16_448) < 0.02, 1, rng.uniform(0.4, 0.8)).astype(np.float32)
    wide = x.astype(np.longdouble)
    level = 0.7 * float(wide.sum() ** 2 / (wide @ wide))
    y = ch.project_cai(x, level)
    wide = y.astype(np.longdouble)
    assert float(wide.sum() ** 2 / (wide @ wide)) <= level * (1.0 + 1e-6)
    np.testing.assert_array_equal(ch.project_cai(y, level), y)


def test_zero_vector_with_a_given_norm():
    """Every direction is as good: all entries tie at zero, and the tie rule decides."""
    x = ch.project_hoyer(np.zeros(6), l1=3.0, l2=2.0)
    assert abs(oracle.norms(x)[0] / 3 - 1) <= 1e-14
    assert abs(oracle.norms(x)[1] / 2 - 1) <= 1e-14
    assert list(np.flatnonzero(x)) == [0, 1, 2]  # ceil(9 / 4)


@pytest.mark.parametrize("method", ["cfp", "alternating"])
@pytest.mark.parametrize("sparseness", [0.0, 0.5])
def test_a_zero_result_has_the_score_of_zeros(method, sparseness):
    """Not the one that was asked for."""
    y = np.array([[0.0, 0.0, 0.0], [3.0, 2.0, 1.0]])
    for k, l2 in ((0, None), (1, 0.0)):
        x, info = ch.project_hoyer(y[k], sparseness, l2=l2, method=method, full_output=True)
        assert not x.any()
        assert info.level == 0.0
    x, info = ch.project_hoyer(y, sparseness, method=method, full_output=True)
    np.testing.assert_allclose(info.level, ch.hoyer_score(x, axis=-1), rtol=1e-12)


@pytest.mark.parametrize("method", ["cfp", "alternating"])
@pytest.mark.parametrize("repeats", [1, 50, 5000])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_zeros_that_become_nonzero_keep_their_sign(dtype, repeats, method):
    y = np.tile(np.array([3, 2, -0.0, 0, 1, -2], dtype), repeats)
    x = ch.project_hoyer(y, sparseness=0.05, method=method)
    assert np.all(x != 0)
    np.testing.assert_array_equal(np.signbit(x), np.signbit(y))


@pytest.mark.parametrize("value", [3.0, -3.0, 0.0])
def test_length_one(value):
    y = np.array([value])
    assert ch.project_cai(y, 1.0).tobytes() == y.tobytes()
    assert ch.project_hoyer(y, 0.5)[0] == value
    assert ch.project_hoyer(y, 1.0)[0] == value
    for method in BALL_METHODS:
        assert ch.project_l1_ball(y, 2.0, method=method)[0] == max(min(value, 2.0), -2.0)
        assert ch.project_simplex(y, 2.0, method=method)[0] == 2.0
    assert ch.level_for_nnz(y, 1) == 1


def test_all_entries_negative():
    y = -np.arange(1.0, 6.0)
    np.testing.assert_array_equal(ch.project_cai(y, 1.5, nonneg=True), np.zeros(5))
    np.testing.assert_array_equal(ch.project_l1_ball(y, 1.5, nonneg=True), np.zeros(5))
    x = ch.project_hoyer(y, 0.5, nonneg=True)
    assert close(x, oracle.project_hoyer(y, 0.5, nonneg=True))
    assert close(ch.project_simplex(y, 1.5), oracle.project_simplex(y, 1.5))


@pytest.mark.parametrize("method", BALL_METHODS)
def test_radius_zero(method):
    y = make("gaussian", 50)
    assert not ch.project_l1_ball(y, 0.0, method=method).any()
    assert not ch.project_simplex(y, 0.0, method=method).any()
    batch = make("gaussian", 60).reshape(3, 20)
    x = ch.project_l1_ball(batch, np.array([0.0, 1.0, 1e9]), method=method)
    assert not x[0].any()
    assert np.abs(x[1]).sum() == pytest.approx(1, rel=1e-14)
    np.testing.assert_array_equal(x[2], batch[2])


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("radius", [1e-17, 1e-30, 1e-240])
def test_radius_far_below_the_last_bit(radius, method):
    """max(a) - radius rounds to max(a): only the gaps to the maximum still tell."""
    y = np.array([1.0, 1 - 2.0**-53, -1.0, 0.5, 1.0])
    x = ch.project_l1_ball(y, radius, method=method)
    np.testing.assert_allclose(x, radius / 3 * np.array([1, 0, -1, 0, 1]), rtol=1e-14)
    x = ch.project_simplex(y, radius, method=method)
    np.testing.assert_allclose(x, radius / 2 * np.array([1, 0, 0, 0, 1]), rtol=1e-14)


# ---------------------------------------------------------------------------
# level 1 and level n


@pytest.mark.parametrize("method", CAI_METHODS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_level_one_keeps_the_first_largest_entry(name, method):
    for n in (1, 2, 100, 9000):
        y = make(name, n)
        x = ch.project_cai(y, 1.0, method=method)
        i = int(np.argmax(np.abs(y)))
        if method == "cfp":
            assert list(np.flatnonzero(x)) == [i], n
            assert abs(x[i] / y[i] - 1) <= 1e-15
        else:  # stops at a tolerance: traces of the others may be left
            assert close(x, np.where(np.arange(n) == i, y, 0)), n
        full = ch.project_hoyer(y, 1.0)
        assert list(np.flatnonzero(full)) == [i], n
        assert abs(abs(full[i]) / oracle.norms(y)[1] - 1) <= 1e-14


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_level_n_and_above_is_the_identity(name):
    y = make(name, 500)
    for level in (500.0, 500.5, 1e300):
        assert ch.project_cai(y, level).tobytes() == y.tobytes()


def test_level_just_above_one():
    y = make("gaussian", 1000)
    for excess in (1e-15, 1e-12, 1e-8, 1e-3):
        x = ch.project_cai(y, 1 + excess)
        assert close(x, oracle.project_cai(y, 1 + excess))
        assert abs(oracle.hoyer_score(x) / (1 + excess) - 1) <= 1e-12


# ---------------------------------------------------------------------------
# feasible input comes back bit for bit, as a copy


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_feasible_input(name, dtype):
    for n in (2, 100, 70_000):
        with np.errstate(all="ignore"):
            y = make(name, n).astype(dtype)
        if not np.all(np.isfinite(y)):
            continue
        y[:: max(1, n // 3)] *= -1  # signs are kept
        y[-1] = -0.0  # and so is a negative zero
        level = min(float(oracle.hoyer_score(y)) * (1 + 1e-9), float(n)) if y.any() else 1.0
        radius = float(oracle.norms(y)[0])
        if not np.isfinite(radius):
            continue
        for x in (
            ch.project_cai(y, level),
            ch.project_cai(y, level, method="iterative"),
            ch.project_l1_ball(y, radius * (1 + 1e-9)),
            ch.project_l1_ball(y, radius * (1 + 1e-9), method="condat"),
            ch.project_l1_ball(y, radius * (1 + 1e-9), method="sort"),
        ):
            assert x.tobytes() == y.tobytes(), n
            assert not np.shares_memory(x, y)


def test_exactly_feasible_levels():
    """H known without rounding: k equal entries have H = k."""
    for k in (1, 2, 7, 64):
        y = np.zeros(100)
        y[:k] = -0.1
        assert ch.project_cai(y, float(k)).tobytes() == y.tobytes()
        _, info = ch.project_cai(y, float(k), full_output=True)
        assert info.nnz == k
        assert info.level == pytest.approx(k, rel=1e-14)
        if k > 1:  # at level 1, any threshold below the only entry is right
            assert info.threshold == 0


@pytest.mark.parametrize("excess", [1e-15, 1e-13, 1e-10])
@pytest.mark.parametrize("n", [10, 1000, 100_000])
def test_barely_infeasible_input_hardly_moves(n, excess):
    y = make("gaussian", n)
    level = float(oracle.hoyer_score(y)) / (1 + excess)
    x = ch.project_cai(y, level)
    assert close(x, y.astype(LD), 10 * np.sqrt(n) * excess + 1e-14)
    assert oracle.hoyer_score(x) <= level * (1 + 1e-12)
    radius = float(oracle.norms(y)[0]) / (1 + excess)
    x = ch.project_l1_ball(y, radius)
    assert close(x, y.astype(LD), 10 * excess + 1e-14)


# ---------------------------------------------------------------------------
# near-constant data: one float tau cannot meet the level


@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15])
@pytest.mark.parametrize("n", [10, 1000, 70_000])
def test_near_constant(n, noise):
    y = 1 + noise * np.random.default_rng(n).standard_normal(n)
    for level in (1.5, 1 + 0.05 * (n - 1), 1 + 0.5 * (n - 1), 1 + 0.95 * (n - 1)):
        x = ch.project_cai(y, level)
        assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12, level
        assert close(x, oracle.project_cai(y, level)), level
    for sparseness in (0.01, 0.5, 0.99):
        x = ch.project_hoyer(y, sparseness)
        assert close(x, oracle.project_hoyer(y, sparseness)), sparseness
    for radius in (noise, 0.1 * n, n * (1 - 0.1 * noise)):
        x = ch.project_l1_ball(y, radius)
        assert close(x, oracle.project_l1_ball(y, radius)), radius


# ---------------------------------------------------------------------------
# the ends of the float range


@pytest.mark.parametrize("name", SUBNORMAL)
def test_subnormal(name):
    """Each entry is right to one subnormal."""
    for n in (2, 10, 300, 70_000):
        y = make(name, n)
        if not y.any():
            continue
        for level in (1.0, 1.5, 0.6 * float(oracle.hoyer_score(y)) + 0.4):
            x = ch.project_cai(y, level)
            assert np.max(np.abs(x - oracle.project_cai(y, level))) <= 5e-324, (n, level)
        for fraction in (0.01, 0.5):
            radius = float(oracle.norms(y)[0]) * fraction
            x = ch.project_l1_ball(y, radius)
            assert np.max(np.abs(x - oracle.project_l1_ball(y, radius))) <= 5e-324, (n, fraction)
        x = ch.project_hoyer(y, 0.6)
        assert np.max(np.abs(np.abs(x) - np.abs(oracle.project_hoyer(y, 0.6)))) <= 5e-324, n


def test_subnormal_float32():
    """Subnormal in float32, but not in the float64 of the sums.

    The result is written in float32: a - tau is rounded to a subnormal, then scaled.
    """
    tiny = np.float32(1e-45)
    y = (tiny * np.random.default_rng(0).integers(-(2**20), 2**20, 300)).astype(np.float32)
    x = ch.project_cai(y, 50.0)
    ref = oracle.project_cai(y, 50.0)
    assert np.max(np.abs(x - ref)) <= 1e-5 * np.max(np.abs(ref)) + 4 * tiny


@pytest.mark.parametrize("exponent", [1023, 1020, 700, 512, -512, -700, -1000])
def test_sums_that_overflow_a_float(exponent):
    """At the top of the range even the sum of two entries is infinite."""
    y = np.ldexp(make("uniform", 1000), exponent)  # below 2**1023
    big = np.ldexp(LD(1), exponent)
    x = ch.project_cai(y, 80.0)
    assert np.all(np.isfinite(x))
    assert close(x, oracle.project_cai(y, 80.0))
    radius = float(0.9 * big)
    assert close(ch.project_l1_ball(y, radius), oracle.project_l1_ball(y, radius))
    assert close(ch.project_simplex(y, radius), oracle.project_simplex(y, radius))
    assert ch.hoyer_score(y) == pytest.approx(float(oracle.hoyer_score(y)), rel=1e-12)
    assert ch.hoyer_sparseness(y) == pytest.approx(float(oracle.hoyer_sparseness(y)), rel=1e-12)


@pytest.mark.parametrize("project", [ch.project_cai, ch.project_l1_ball])
@pytest.mark.parametrize("exponent", [1020, -1000, -1050])
@pytest.mark.parametrize("n", [5, 100, 9000])
def test_scaled_in_place(n, exponent, project):
    """Then both the scaled copy and the scratch are arrays of the kernel's own."""
    y = np.ldexp(np.random.default_rng(n).standard_normal((3, n)), exponent)
    p = n / 5 if project is ch.project_cai else 0.2 * np.abs(y).max()
    expected = project(y, p)
    np.testing.assert_array_equal(project(y, p, overwrite_x=True), expected)


@pytest.mark.parametrize("n", [9000, 20_000])
def test_hoyer_of_negative_entries_whose_squares_overflow(n):
    """The search for a threshold above 0 does not see them; the norm does."""
    y = np.random.default_rng(n).standard_normal(n)
    y[7], y[n // 2] = -1e200, -3e190
    for kept in ({}, {"l2": 2.0}):
        x = ch.project_hoyer(y, 0.8, nonneg=True, **kept)
        assert close(x, oracle.project_hoyer(y, 0.8, nonneg=True, **kept))


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("n", [20, 500, 9000, 70_000])
def test_masked_entries(n, dtype):
    """Large negative numbers stand for entries that are to become zero, few or all of them."""
    bound = 1e-12 if dtype == np.float64 else 1e-5
    rng = np.random.default_rng(n)
    for mask in (-1e4, -1e9, -1e20, -1e30, np.finfo(dtype).min):
        for share in (0.02, 0.5, 0.9, 1.0):
            y = rng.standard_normal(n).astype(dtype)
            y[rng.random(n) < share] = mask
            y[n // 3] = mask
            for total in (1e-3, 1.0, 1e3, 1e20, 1e70 if dtype == np.float64 else 1e30):
                assert close(ch.project_simplex(y, total), oracle.project_simplex(y, total), bound)
                x = ch.project_hoyer(y, 0.8, l2=total, nonneg=True)
                ref = oracle.project_hoyer(y, 0.8, l2=total, nonneg=True)
                assert close(x, ref, bound), (mask, share, total)
            if share < 1.0:
                x = ch.project_cai(y, n / 10, nonneg=True)
                assert close(x, oracle.project_cai(y, n / 10, True), bound)


@pytest.mark.parametrize("dtype", BOTH)
def test_few_entries_beside_masks(dtype):
    """The step from the masks is rounded at their scale, and may land anywhere among the rest."""
    bound = 1e-12 if dtype == np.float64 else 1e-5
    for seed in range(150):
        rng = np.random.default_rng(seed)
        y = rng.standard_normal(rng.integers(3, 100)).astype(dtype)
        y[: rng.integers(1, 3)] = -(10.0 ** rng.uniform(7, 25))
        x = ch.project_simplex(y, 1.0)
        assert close(x, oracle.project_simplex(y, 1.0), bound), seed
        assert abs(x.sum(dtype=np.float64) - 1.0) <= 10 * bound
    # Where that step happens to pass entries that belong to the support:
    for seed in (62, 254):
        rng = np.random.default_rng(seed)
        y = rng.standard_normal(10).astype(dtype)
        y[0] = -(10.0 ** rng.uniform(16, 25))
        assert close(ch.project_simplex(y, 1.0), oracle.project_simplex(y, 1.0), bound), seed
    y = np.array([-1e20, -1.4, -1.8, -0.3, -0.6], dtype)
    assert close(ch.project_simplex(y, 1.0), oracle.project_simplex(y, 1.0), bound)


@pytest.mark.parametrize("seed", range(20))
def test_masks_of_two_sizes(seed):
    """A step from the larger ones, which no sample sees, is rounded far beyond the smaller ones."""
    rng = np.random.default_rng(seed)
    y = np.full(20_000, -(10.0 ** rng.uniform(20, 90)))
    y[rng.random(y.size) < 1e-3] = -(10.0 ** rng.uniform(90, 250))
    total = 10.0 ** rng.uniform(-4, 20)
    assert close(ch.project_simplex(y, total), oracle.project_simplex(y, total))


@pytest.mark.parametrize("seed", [*range(30), 470, 559])
def test_masks_that_a_sample_has_not_seen(seed):
    """The passes that follow a sample which misleads find the threshold without one as well."""
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(17_000) * 10.0 ** rng.uniform(-3, 3)
    y[rng.random(y.size) < rng.choice([1e-4, 0.02, 0.5, 0.9])] = -(10.0 ** rng.uniform(3, 90))
    total = 10.0 ** rng.uniform(-4, 40)
    out, part, few = np.empty_like(y), engine.room_for_chunks(y.size), engine.room_for_few(0, True)
    held = np.empty(0)
    proceed = entry(engine._proceed)
    job = entry(engine._sums_job)(m.start(m.SIMPLEX), 0.0, engine.MOST_SAMPLES)
    while job.action != engine.WRITE:
        engine.run_pass(job, False, y, out, held, part, few, 0, len(part))
        job = proceed(job, m.SIMPLEX, False, total, 1e-14, y, out, held, part, few, np.empty(0))
    assert job.state.status == m.SOFT
    engine.write(job, m.SIMPLEX, False, total, 0.0, y, out, part, few, 0, len(part))
    assert close(out, oracle.project_simplex(y, total))


@pytest.mark.parametrize("seed", range(30, 45))
def test_no_number_between_the_bounds(seed):
    """More entries tie than the level allows, and the next value is the next float."""
    rng = np.random.default_rng(seed)
    y = 1.0 + np.finfo(float).eps * rng.integers(0, 3, 17_000)
    level = float(rng.uniform(1.0, 2.0))
    assert close(ch.project_cai(y, level), oracle.project_cai(y, level))


@pytest.mark.parametrize("count", [1, 2, 5, 37])
@pytest.mark.parametrize("top", [1e18, 1e24, 1e32])
def test_ties_far_above_the_rest(top, count):
    """Only what lies within the radius of the top matters, and that is less than its last bit."""
    for seed in range(20):
        y = np.append(np.full(count, top), np.random.default_rng(seed).standard_normal(90))
        x = ch.project_l1_ball(y, 1.0)
        assert close(x, oracle.project_l1_ball(y, 1.0)), seed


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("n", [4, 50, 20_000])
def test_a_tiny_positive_entry_beside_negative_ones(n, dtype):
    """Hoyer's threshold is negative then: the positive entry must not set the unit."""
    bound = 1e-12 if dtype == np.float64 else 1e-5
    for top in (1e-10, 1e-30) if dtype == np.float32 else (1e-60, 1e-250):
        y = -(1 + np.random.default_rng(n).random(n)).astype(dtype)
        y[n // 2] = top
        for sparseness in (0.01, 0.3, 0.9):
            for given in ({}, {"l2": 1.0}):
                x = ch.project_hoyer(y, sparseness, nonneg=True, **given)
                ref = oracle.project_hoyer(y, sparseness, nonneg=True, **given)
                assert close(x, ref, bound), (top, sparseness)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_totals_far_below_and_above_the_data(sign, dtype):
    """From the last bits of the largest entry to the entries' sum and beyond."""
    bound = 1e-12 if dtype == np.float64 else 1e-5
    for name in ("positive", "gaussian", "geometric_fast", "one_hot_ish", "two_valued"):
        for n in (300, 16_384, 70_000):
            y = sign * make(name, n).astype(dtype)
            for total in np.geomspace(1e-13, 1e12, 11):
                x = ch.project_simplex(y, total)
                assert close(x, oracle.project_simplex(y, total), bound), (name, n, total)
                x = ch.project_l1_ball(y, total, nonneg=True)
                assert close(x, oracle.project_l1_ball(y, total, True), bound), (name, n, total)


@pytest.mark.parametrize("dtype", BOTH)
def test_projecting_long_vectors_twice(dtype):
    for name in ("gaussian", "integers", "geometric_slow", "near_constant", "sparse"):
        for n in (16_384, 400_000):
            y = make(name, n).astype(dtype)
            for total in (0.5, 20.0, 0.3 * n):
                x = ch.project_simplex(y, total)
                np.testing.assert_array_equal(ch.project_simplex(x, total), x)
                x = ch.project_l1_ball(y, total)
                np.testing.assert_array_equal(ch.project_l1_ball(x, total), x)


@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("n", [100, 9000, 20_000])
def test_tiny_entries_beside_a_large_negative_one(n, dtype):
    """What is negative must not set the unit in which the others underflow."""
    y = (1e-130 if dtype == np.float64 else 1e-30) * make("gaussian", n).astype(dtype)
    y[n // 3] = -1.0 if dtype == np.float64 else -1e8
    level = 0.3 * float(oracle.hoyer_score(np.maximum(y, 0)))
    bound = 1e-12 if dtype == np.float64 else 1e-5
    assert close(ch.project_cai(y, level, nonneg=True), oracle.project_cai(y, level, True), bound)
    for given in ({}, {"l2": 3.0}):
        x = ch.project_hoyer(y, 0.8, nonneg=True, **given)
        assert close(x, oracle.project_hoyer(y, 0.8, nonneg=True, **given), bound)


@pytest.mark.parametrize("n", [6, 300, 40_000])
@pytest.mark.parametrize("scale", [1e-120, 1e-200, 1e-300])
def test_the_norm_of_tiny_entries_in_a_huge_ball(scale, n):
    y = scale * make("gaussian", n)
    for nonneg, expected in ((False, y), (True, np.maximum(y, 0))):
        x, info = ch.project_l1_ball(y, 1e300, nonneg=nonneg, full_output=True)
        np.testing.assert_array_equal(x, expected)
        assert abs(info.level / math.fsum(np.abs(expected)) - 1) <= 1e-13


def test_what_no_scale_can_hold_is_reported():
    """The threshold lies among entries whose squares underflow beside the smallest entry's."""
    y = -(0.5 ** np.arange(9000))
    with pytest.warns(ch.ConvergenceWarning) as caught:
        ch.project_hoyer(y, 0.5, nonneg=True)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("seed", [569, 1182, 1696, 1729, 2063])
def test_float32_ties_whose_sums_round_alike(seed):
    """Sums of many equal entries, all rounded the same way, once moved H by more than its slack."""
    rng = np.random.default_rng(seed)
    y = rng.choice(rng.random(6), 9000).astype(np.float32)
    level = 0.5 * ch.hoyer_score(y)
    x = ch.project_cai(y, level)
    assert abs(float(oracle.hoyer_score(x)) / level - 1) <= 1e-6
    np.testing.assert_array_equal(ch.project_cai(x, level), x)


def test_hoyer_whose_result_overflows_is_not_silently_wrong():
    """||y||_2 exceeds the largest float: the largest entry of the answer is infinite."""
    y = np.full(4, 1.5e308)
    y[0] = 1.6e308
    with np.errstate(all="ignore"):
        x = ch.project_hoyer(y, 1.0)
    assert np.isinf(x[0])
    assert not x[1:].any()


def test_float32_whose_squares_overflow_float32():
    y = (1e30 * make("gaussian", 300)).astype(np.float32)
    assert close(ch.project_cai(y, 30.0), oracle.project_cai(y, 30.0), 1e-6)
    radius = float(np.abs(y).sum(dtype=float)) / 7
    assert close(ch.project_l1_ball(y, radius), oracle.project_l1_ball(y, radius), 1e-6)


def test_a_wide_range_in_one_vector():
    y = np.array([1e308, 1.0, 1e-308, 5e-324, -1e308, 0.9e308])
    for level in (1.0, 1.7, 2.5):
        x = ch.project_cai(y, level)
        assert close(x, oracle.project_cai(y, level))


# ---------------------------------------------------------------------------
# inputs made to need many passes


@pytest.mark.parametrize("ratio", [0.5, 0.9, 2.0**-20, 0.999])
def test_every_step_drops_one_entry(ratio):
    """Geometric data is the worst case of the fixed-point step on the support."""
    y = ratio ** np.arange(1000.0)
    for level in (1.0, 1.01, 1.5, 2.0, 3.0):
        x, info = ch.project_cai(y, level, full_output=True)
        assert info.converged
        assert info.passes <= 400
        assert close(x, oracle.project_cai(y, level)), level
    for radius in (1e-12, 1e-3, 0.9):
        x = ch.project_l1_ball(y, radius)
        assert close(x, oracle.project_l1_ball(y, radius)), radius


def test_outliers_over_a_plateau():
    """A sample of the data may see none of the few entries that decide."""
    for n in (1000, 100_000, 400_000):
        y = np.full(n, 0.5)
        y[[3, n // 2, n - 5]] = [100.0, -90.0, 80.0]
        for level in (1.0, 2.0, 2.9, 3.5, 50.0):
            x = ch.project_cai(y, level)
            assert close(x, oracle.project_cai(y, level)), (n, level)
        for radius in (1.0, 100.0, 269.0, 0.3 * n):
            x = ch.project_l1_ball(y, radius)
            assert close(x, oracle.project_l1_ball(y, radius)), (n, radius)


@pytest.mark.parametrize("period", [64, 1000, 4096])
def test_periodic_data_does_not_fool_the_sample(period):
    n = 300_000
    rng = np.random.default_rng(period)
    y = rng.standard_normal(n) * 1e-3
    y[::period] += 3 + rng.standard_normal(y[::period].size)
    level = float(oracle.hoyer_score(y)) * 0.3
    for v in (y, y[::-1], np.sort(y)):
        assert close(ch.project_cai(v, level), oracle.project_cai(v, level))


@pytest.mark.parametrize("n", [300, 20_000])
def test_level_within_rounding_of_the_top_cluster(n):
    """From nearly equal top entries, the score stays at their number over a wide gap."""
    rng = np.random.default_rng(7)
    many = n // 10
    for trial in range(60):
        gap, noise = 10.0 ** rng.uniform(-6, 0), 10.0 ** rng.uniform(-10, -6)
        low = 1.0 + noise * rng.standard_normal(n - many)
        y = np.concatenate([low, 1.0 + gap * (1.0 + noise * rng.standard_normal(many))])
        if trial % 2:
            rng.shuffle(y)
        level = many * (1.0 - 10.0 ** rng.uniform(-16, -8)) if trial % 3 else float(many)
        x, info = ch.project_cai(y, level, full_output=True)
        assert info.converged
        assert abs(float(oracle.hoyer_score(x)) / level - 1.0) <= 1e-12
        reference = oracle.project_cai(y, level)
        assert np.abs(x - reference).max() <= 1e-12 * np.abs(reference).max()


@pytest.mark.parametrize("kind", ["cluster", "ties"])
def test_entries_on_the_threshold_but_for_rounding(kind):
    """Without them the score stays at its level over the whole gap above them."""
    rng = np.random.default_rng(99)
    for trial in range(300):
        many = int(rng.choice([2, 3, 10, 30, 300]))
        rest = many * int(rng.choice([2, 9]))
        if kind == "cluster":
            gap, noise = 10.0 ** rng.uniform(-6, 0), 10.0 ** rng.uniform(-10, -6)
            low = 1.0 + noise * rng.standard_normal(rest)
            top = 1.0 + gap * (1.0 + noise * rng.standard_normal(many))
        else:
            low, top = rng.uniform(-2, 2, rest), np.full(many, 2.5)
        y = rng.permutation(np.concatenate([low, top]))
        level = many * (1.0 - 10.0 ** rng.uniform(-16, -8)) if trial % 2 else float(many)
        x = ch.project_cai(y, level)
        assert abs(float(oracle.hoyer_score(x)) / level - 1.0) <= 1e-12
        assert close(x, oracle.project_cai(y, level))


@pytest.mark.parametrize("kind", ["near constant", "few outliers"])
def test_levels_a_little_below_the_score(kind):
    """Where the entries are nearly alike, H hardly depends on τ: a right score is not enough."""
    rng = np.random.default_rng(7)
    for _ in range(400):
        n = int(rng.choice([3, 7, 33, 130, 3000, 40_000]))
        if kind == "near constant":
            y = 1.0 + 10.0 ** rng.uniform(-9, -1) * rng.standard_normal(n)
        else:
            y = np.where(rng.random(n) < rng.random() ** 3, 1.0, rng.choice([0.1, 0.5, 0.9]))
        score = ch.hoyer_score(y)
        for level in score * (1.0 - 10.0 ** rng.uniform(-9, -2, 2)):
            assert close(ch.project_cai(y, max(level, 1.0)), oracle.project_cai(y, max(level, 1.0)))


@pytest.mark.parametrize("tail", ["normal", "exponential"])
def test_all_entries_stay_of_long_nearly_constant_data(tail):
    """τ lies far below all of them: halving the gap there took up to 19 passes, and digits."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        n = int(rng.choice([17_000, 40_000]))
        y = 1.0 + 10.0 ** rng.uniform(-6, -4) * getattr(rng, f"standard_{tail}")(n)
        level = ch.hoyer_score(y) * (1.0 - 10.0 ** rng.uniform(-8, -6))
        x, info = ch.project_cai(y, level, full_output=True)
        assert info.passes <= 13
        assert close(x, oracle.project_cai(y, level))


@pytest.mark.parametrize("dtype", BOTH)
def test_many_small_entries_beside_few_large_ones(dtype):
    """τ among the small ones: its rounding comes from the large ones, and spans several entries."""
    rng = np.random.default_rng(5)
    for _ in range(250):
        n, scale = int(rng.choice([300, 1000, 4000, 20_000])), 10.0 ** rng.uniform(-6, -1)
        small = int(n * rng.uniform(0.5, 0.98))
        low = rng.uniform(0, 1, small) if rng.random() < 0.5 else rng.exponential(size=small)
        high = 1 + 0.1 * rng.standard_normal(n - small)
        y = rng.permutation(np.concatenate([scale * low, high])).astype(dtype)
        d = np.sort(y.astype(np.float64))[::-1]
        d = np.maximum(d - d[n - small + int(rng.uniform(0, 1) * (small - 1))], 0.0)
        tolerance = 1e-12 if dtype == np.float64 else 1e-5
        x, info = ch.project_l1_ball(y, d.sum(), full_output=True)
        assert info.converged
        assert info.passes < 40
        assert close(x, oracle.project_l1_ball(y, d.sum()), tolerance)
        level = d.sum() ** 2 / (d @ d)
        x, info = ch.project_cai(y, level, full_output=True)
        assert info.converged
        assert info.passes < 40
        assert close(x, oracle.project_cai(y, level), tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [32, 50, 300, 1000, 4096, 9000, 16384, 100_000])
def test_many_that_hardly_exceed_the_threshold(n, dtype):
    """One large entry, and equal ones above τ by less than a unit in their last place, or more."""
    rng = np.random.default_rng(n)
    for q in (1 / 2, 1 / 3, 0.7, 0.9):
        y = np.full(n, q, dtype)
        y[0] = 1.0
        least = -8 if dtype == np.float64 else -5.5
        for level in 1.0 + np.r_[3e-6, 7e-6, 1e-5, 10.0 ** rng.uniform(least, -1, 8)]:
            x = ch.project_cai(y, level)
            slack = 1e-14 if dtype == np.float64 else 1e-6
            assert abs(oracle.hoyer_score(x) / LD(level) - 1) <= slack
            assert (x[1:] == x[1]).all()
            np.testing.assert_array_equal(ch.project_cai(x, level), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_few_that_dwarf_the_rest(dtype):
    """τ is so small against them that it is looked at 0 whether the input is feasible."""
    y = np.random.default_rng(0).standard_normal(16385).astype(dtype)
    large = 8e7 if dtype == np.float32 else 4.5e16
    for count in (1, 25):
        z = y.copy()
        z[8192 : 8192 + count] = large
        for excess in (1e-9, 1e-8, 1e-7) if dtype == np.float32 else (1e-17, 1e-16, 1e-15):
            level, radius = max(count * (1 + excess), 1.0), count * large * (1 - excess)
            calls = [(ch.project_cai, oracle.project_cai, level)]
            calls += [(ch.project_l1_ball, oracle.project_l1_ball, radius)]
            if count == 1:
                calls += [(ch.project_hoyer, oracle.project_hoyer, 1.0 - excess)]
            for project, reference, p in calls:
                x, info = project(z, p, full_output=True)
                assert info.converged
                assert info.passes < 100  # not 400, where it would give up
                assert close(x, reference(z, p), 1e-14 if dtype == np.float64 else 1e-6)


@pytest.mark.parametrize("seed", [4, 13, 15, 55, 138, 354, 360])
def test_float32_sums_in_which_a_few_entries_drown_the_rest(seed):
    """They can't tell on which side of τ they were taken, and τ is small against their rounding."""
    rng = np.random.default_rng(seed)
    n, count = int(rng.choice([16384, 20000, 40000, 100_000])), int(rng.integers(10, 80))
    large, level = 10.0 ** rng.uniform(7, 9), count * (1 + rng.choice([1e-9, 3e-9, 1e-8]))
    y = rng.standard_normal(n).astype(np.float32)
    y[:count] = large
    x, info = ch.project_cai(y, level, full_output=True)
    exact = oracle.threshold_for_level(abs(y).astype(LD), level)
    assert info.converged
    assert info.passes < 100
    assert abs(info.threshold - exact.tau) <= 1e-6 * exact.tau
    assert np.count_nonzero(x) == exact.support


@pytest.mark.parametrize("seed", [7, 13, 15, 21, 33])
@pytest.mark.parametrize("project", [ch.project_l1_ball, ch.project_simplex])
def test_float32_sums_in_which_the_radius_of_the_rest_drowns(project, seed):
    rng = np.random.default_rng(seed)
    n, count = int(rng.choice([9000, 16384, 40000, 100_000])), int(rng.integers(2, 80))
    y = abs(rng.standard_normal(n)).astype(np.float32)
    y[:count] = 10.0 ** rng.uniform(7, 8.5)
    tau = rng.uniform(2.0, 3.5)
    radius = np.maximum(y.astype(LD) - tau, 0).sum()
    assert radius < (1 - 2e-6) * y.sum(dtype=LD)  # else the input would count as feasible
    _, info = project(y, float(radius), full_output=True)
    assert info.converged
    assert abs(info.threshold - tau) <= 1e-2 * tau


@pytest.mark.parametrize("n", [5000, 9000])
def test_a_threshold_far_from_where_nearly_constant_data_pinned_the_search(n):
    """A few large entries, many equal ones just above τ, and as many well below it."""
    rng = np.random.default_rng(n)
    for _ in range(60):
        top, middle, low = np.sort(rng.uniform(0.1, 0.9, 3))[::-1]
        y = np.full(n, middle)
        y[: rng.integers(2, 20)], y[-n // 3 :] = top, low
        level = 1 + (float(oracle.hoyer_score(y)) - 1) * 10.0 ** rng.uniform(-4, -1)
        x = ch.project_cai(y, level)
        assert abs(oracle.hoyer_score(x) / LD(level) - 1) <= 1e-14
        np.testing.assert_array_equal(ch.project_cai(x, level), x)


@pytest.mark.parametrize("n", [1, 3, 10, 1000, 20_000])
def test_the_flat_vector_of_its_norm_is_unchanged_by_hoyer(n):
    rng = np.random.default_rng(n)
    for y in rng.uniform(0.5, 2.0, (40, 1)) * np.ones(n):
        x, info = ch.project_hoyer(y, 0.0, full_output=True)
        np.testing.assert_array_equal(x, y)
        assert info.level == pytest.approx(n, rel=1e-14)
        np.testing.assert_array_equal(ch.project_hoyer(-y, 0.0), -y)
        np.testing.assert_allclose(ch.project_hoyer(-y, 0.0, nonneg=True), y, 1e-12)
        np.testing.assert_allclose(ch.project_hoyer(y, 0.0, l2=2.0**50), 2.0**50 / n**0.5, 1e-12)


@pytest.mark.parametrize(
    ("project", "y", "radius", "expected"),
    [
        (ch.project_simplex, [1e101, 1e89], 1e-300, [1e-300, 0]),
        (ch.project_simplex, [1e160, 1.0], 1e-200, [1e-200, 0]),
        (ch.project_l1_ball, [3e100, -3e100, 1e100], 1e-224, [5e-225, -5e-225, 0]),
        (ch.project_simplex, [1e307, -1e308], 1.7e308, [1.4e308, 3e307]),
        (ch.project_simplex, [-1e308, -5e307, 1e308], 1.79e308, [0, 1.45e307, 1.645e308]),
        (ch.project_simplex, [-1e307], 1e308, [1e308]),
        (ch.project_l1_ball, [1e308, -1e308, 1e308], np.inf, [1e308, -1e308, 1e308]),
        (ch.project_l1_ball, [3.0, -1.0], np.inf, [3.0, -1.0]),
    ],
)
def test_radii_and_data_far_from_each_other(project, y, radius, expected):
    """Neither a radius nor a difference gets lost in the unit that large entries ask for."""
    for more in (0, 20_000):  # long rows are searched elsewhere
        below = -1.7e308 if project is ch.project_simplex else 0.0
        x = project(np.append(y, np.full(more, below)), radius)
        np.testing.assert_allclose(x[: len(y)], expected, 1e-12)
        assert not x[len(y) :].any()


def test_float32_far_left_of_zero():
    project = ch.project_simplex
    np.testing.assert_allclose(project(np.float32([-1e38]), 3e38), np.float32([3e38]), 1e-6)
    x = project(np.full(20_000, -1e38, np.float32), 3e38)
    np.testing.assert_allclose(x, 3e38 / 20_000, 1e-5)


@pytest.mark.parametrize("n", [3, 200])
def test_finite_entries_whose_sum_overflows_are_feasible(n):
    y = np.full(n, 1e308)
    np.testing.assert_array_equal(ch.project_cai(y, float(n)), y)
    np.testing.assert_array_equal(ch.project_cai(y, np.inf, check_finite=False), y)
    y[1] = np.nan
    assert np.isnan(ch.project_cai(y, float(n), check_finite=False)).all()
    with pytest.raises(ValueError, match="finite"):
        ch.project_cai(y, float(n))


@pytest.mark.parametrize("n", [5, 20_000])
def test_subnormal_float32_whose_norm_is_to_grow(n):
    unit = np.float32(1.4e-45)
    y = unit * np.resize(np.float32([-6, -3, -1, -4, -3]), n)
    x = ch.project_hoyer(y, 0.3, l2=1e-20, nonneg=True)
    assert close(x, oracle.project_hoyer(y, 0.3, l2=1e-20, nonneg=True), 1e-5)


def test_threshold_of_what_has_no_positive_entry():
    y = np.array([-1.0, -2.0])
    for project, p in (ch.project_l1_ball, 0.0), (ch.project_cai, 1.0):
        x, info = project(y, p, nonneg=True, full_output=True)
        assert not x.any()
        assert info.threshold == 0.0


def test_iterative_beside_a_negative_giant():
    rng = np.random.default_rng(3)
    y = np.append(-1e200, np.abs(rng.standard_normal(40)))
    x = ch.project_cai(y, 5.0, nonneg=True, method="iterative")
    assert close(x, oracle.project_cai(y, 5.0, nonneg=True))


@pytest.mark.parametrize("method", ["sort", "condat"])
@pytest.mark.parametrize("project", [ch.project_l1_ball, ch.project_simplex])
def test_reference_methods_say_where_sums_overflow(project, method):
    y = np.linspace(-1.0, 1.0, 50) * 1.7e308
    with pytest.warns(ch.ConvergenceWarning):
        _, info = project(y, 1e308, method=method, full_output=True)
    assert not info.converged


@pytest.mark.parametrize("axis", [1, 0])
def test_one_of_several_slices_that_hits_the_cap_is_reported(axis):
    """Where the call was made, whichever way the slices lie."""
    y = -(0.5 ** np.arange(9000))
    x = np.array([np.ones(9000), y]) if axis else np.array([np.ones(9000), y]).T.copy()
    with pytest.warns(ch.ConvergenceWarning, match="1 of 2 projections") as caught:
        _, info = ch.project_hoyer(x, 0.5, nonneg=True, axis=axis, full_output=True)
    np.testing.assert_array_equal(info.converged, [True, False])
    assert caught[0].filename == __file__


@pytest.mark.parametrize("project", [ch.project_l1_ball, ch.project_simplex])
def test_sorting_beside_a_giant(project):
    """It dwarfs the others' distances from it, and with them the choice of the support."""
    for seed in range(30):
        x = np.r_[1e10, 1e-8 * np.random.default_rng(seed).standard_normal(599)]
        for radius in (1e10 + 5e-6, 1e10 - 3e-6, np.abs(x).sum()):
            y = project(x, radius, method="sort")
            np.testing.assert_array_equal(project(y, radius, method="sort"), y)


def test_iterative_returns_what_is_feasible():
    """Many small terms do not add up to a score above the level."""
    for n in (600, 1025, 3000):
        for seed in range(10):
            y = np.r_[1e10, 1e-8 * np.random.default_rng(seed).standard_normal(n - 1)]
            assert oracle.hoyer_score(y) <= (1.0 + 1e-15) * (1.0 + oracle.LD(1e-14))
            np.testing.assert_array_equal(ch.project_cai(y, 1.0 + 1e-15, method="iterative"), y)
    x = np.full(257, 1.3)
    x[0] = np.nextafter(1.3, 2)
    y = ch.project_cai(x, 3.5, method="iterative")
    np.testing.assert_array_equal(ch.project_cai(y, 3.5, method="iterative"), y)


@pytest.mark.parametrize("value", [0.1, 0.7, 3.3])
@pytest.mark.parametrize(("n", "k"), [(16384, 16383), (20000, 12345), (65535, 32767)])
def test_long_vectors_of_one_magnitude_are_feasible(n, k, value):
    """All of the support is on one float, where rounding hides that the score is k below it too."""
    rng = np.random.default_rng(k)
    for first in (True, False):
        y = np.where(np.arange(n) < k, value, 0.0) * rng.choice([-1.0, 1.0], n)
        y = y if first else rng.permutation(y)
        for level in (k, k * (1 - 4e-15), k * (1 + 4e-15), ch.hoyer_score(y)):
            np.testing.assert_array_equal(ch.project_cai(y, level), y)
        np.testing.assert_array_equal(ch.project_hoyer(y, ch.hoyer_sparseness(y)), y)
        fewer = ch.project_cai(y, k - 1)
        np.testing.assert_array_equal(ch.project_cai(fewer, k - 1), fewer)
        assert np.count_nonzero(ch.project_cai(y, k - 0.5)) == k
