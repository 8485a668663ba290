"""Every projection against the oracle, and against what makes it optimal."""

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, FLOAT32, float32, make
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import conehoyer as ch

LD = np.longdouble
SIZES = [2, 3, 10, 257, 9000]  # the last is too long for the search of short rows
FRACTIONS = [0.001, 0.01, 0.1, 0.5]  # of the entries that survive, roughly

BALL_METHODS = ["newton", "condat", "sort"]
CAI_METHODS = ["cfp", "iterative"]
HOYER_METHODS = ["cfp", "alternating"]


def levels_for(y):
    """Levels between 1 and H(y), at edges, between them, and at integers (ties)."""
    h = float(oracle.hoyer_score(y))
    found = {1.0, 1.5, 2.0, 0.5 * h, 0.9 * h, h * (1 - 1e-6)}
    found |= {float(oracle.edge_for_nnz(y, int(np.ceil(f * y.size)))) for f in FRACTIONS}
    return sorted(v for v in found if 1 <= v <= y.size)


def radii_for(y):
    total = float(np.sum(np.abs(y), dtype=LD))
    top = float(np.abs(y).max())
    return [
        v for v in {1e-6 * top, 0.3 * top, top, 0.1 * total, 0.5 * total, 0.999 * total} if v > 0
    ]


def error(x, ref):
    """max|x - ref| relative to max|ref|, one subnormal an entry forgiven."""
    tiny = np.finfo(np.asarray(x).dtype).smallest_subnormal.astype(LD)
    difference = np.abs(np.asarray(x, dtype=LD) - ref)
    worst = np.max(np.maximum(difference - tiny, 0), initial=LD(0))
    size = np.max(np.abs(ref), initial=LD(0))
    return float(worst / size) if size > 0 else float(worst)


def check_signs(x, y):
    assert np.all((x == 0) | (y == 0) | (np.sign(x) == np.sign(y)))


def check_shift(x, y, scale_free):
    """|y| - |x|/c is one number tau on the support, and |y| <= tau off it."""
    a, b = np.abs(y.astype(LD)), np.abs(x.astype(LD))
    on = b > 0
    top = a.max()
    slack = top * LD(1e-12)
    if not scale_free:
        tau = a[on] - b[on]
    else:
        i, j = np.argmax(b), np.flatnonzero(on)[np.argmin(b[on])]
        if b[i] - b[j] <= LD(1e-9) * b[i] or a[i] == a[j]:
            return  # a constant support (ties) says nothing about c
        inverse_c = (a[i] - a[j]) / (b[i] - b[j])
        tau = a[on] - inverse_c * b[on]
    assert np.ptp(tau) <= slack
    assert np.max(a[~on], initial=LD(0)) <= tau.min() + slack


def check_cai(x, y, level, nonneg=False):
    a = np.maximum(y, 0) if nonneg else y
    assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12
    b = x.astype(LD)
    assert abs(b @ b / (b @ a.astype(LD)) - 1) <= 1e-12  # <x, x> = <x, y>
    check_signs(x, y)


# ---------------------------------------------------------------------------
# the CAI cone


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_cai_float64(name):
    for n in SIZES:
        y = make(name, n)
        for level in levels_for(y):
            x, info = ch.project_cai(y, level, full_output=True)
            ref = oracle.project_cai(y, level)
            assert x.dtype == np.float64
            assert error(x, ref) <= 1e-12, (n, level)
            assert info.converged
            assert info.nnz == np.count_nonzero(x)
            assert info.level == pytest.approx(float(oracle.hoyer_score(x)), rel=1e-12)
            if oracle.hoyer_score(y) > level * (1 + 1e-14):
                check_cai(x, y, level)
                if np.count_nonzero(np.abs(y) == np.abs(y).max()) <= level:
                    check_shift(x, y, scale_free=True)
            elif level > 1:  # at level 1 exactly one entry stays, down to the last bit
                np.testing.assert_array_equal(x, y)
            np.testing.assert_array_equal(ch.project_cai(x, level), x)


@pytest.mark.parametrize("name", [*FLOAT32, "near_constant"])
def test_cai_float32(name):
    for n in SIZES:
        y = float32(name, n)
        for level in levels_for(y):
            x = ch.project_cai(y, level)
            assert x.dtype == np.float32
            assert error(x, oracle.project_cai(y, level)) <= 1e-5, (n, level)
            np.testing.assert_array_equal(ch.project_cai(x, level), x)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_cai_nonneg(name):
    for n in SIZES:
        y = make(name, n) - (make("positive", n, seed=8) if name == "near_constant" else 0)
        positive = np.maximum(y, 0)
        for level in levels_for(positive) if positive.any() else [1.5]:
            x = ch.project_cai(y, level, nonneg=True)
            assert np.all(x >= 0)
            assert error(x, oracle.project_cai(y, level, nonneg=True)) <= 1e-12, (n, level)
            np.testing.assert_array_equal(ch.project_cai(x, level, nonneg=True), x)


# The iterative methods move the entries themselves, not a threshold, and lose the digits
# that near-constant entries share: of 16, the first 9 in these, 15 in the last bits.
SHARED_DIGITS = {"near_constant": 1e-5, "clusters": 1e-5, "near_constant_last_bits": 1.0}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_cai_methods_agree(name):
    """Algorithm 1 of the paper iterates to a tolerance; Algorithm 2 is exact."""
    for n in (2, 3, 10, 257):
        y = make(name, n)
        for level in levels_for(y):
            exact = ch.project_cai(y, level)
            x, info = ch.project_cai(y, level, method="iterative", full_output=True)
            assert info.converged
            assert error(x, exact.astype(LD)) <= SHARED_DIGITS.get(name, 1e-9), (n, level)


# ---------------------------------------------------------------------------
# Hoyer


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_hoyer_float64(name, nonneg):
    for n in SIZES:
        y = make(name, n)
        for sparseness in (0.05, 0.3, 0.7, 0.95, 1.0):
            x, info = ch.project_hoyer(y, sparseness, nonneg=nonneg, full_output=True)
            ref = oracle.project_hoyer(y, sparseness, nonneg=nonneg)
            assert info.converged
            if nonneg:
                assert np.all(x >= 0)
                assert error(x, ref) <= 1e-12, (n, sparseness)
            else:
                # a zero that has to be filled may take either sign
                assert error(np.abs(x), np.abs(ref)) <= 1e-12, (n, sparseness)
                check_signs(x, y)
            level = oracle.level_for_sparseness(sparseness, n)
            assert abs(oracle.hoyer_score(x) / level - 1) <= 1e-12
            assert abs(oracle.norms(x)[1] / oracle.norms(y)[1] - 1) <= 1e-12
            again = ch.project_hoyer(x, sparseness, nonneg=nonneg)
            np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_hoyer_of_a_constant_vector_is_reached(name):
    """sparseness 0 asks for equal magnitudes, zeros included."""
    for n in SIZES:
        y = make(name, n)
        x = ch.project_hoyer(y, 0.0)
        size = oracle.norms(y)[1] / np.sqrt(LD(n))
        assert np.max(np.abs(np.abs(x) - size)) <= 1e-12 * size
        check_signs(x, y)


@pytest.mark.parametrize("name", [*FLOAT32, "near_constant"])
def test_hoyer_float32(name):
    for n in SIZES:
        y = float32(name, n)
        for sparseness in (0.05, 0.3, 0.7, 0.95, 1.0):
            x = ch.project_hoyer(y, sparseness)
            assert x.dtype == np.float32
            ref = oracle.project_hoyer(y, sparseness)
            assert error(np.abs(x), np.abs(ref)) <= 1e-5, (n, sparseness)
            np.testing.assert_array_equal(ch.project_hoyer(x, sparseness), x)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_hoyer_methods_agree(name):
    for n in (2, 3, 10, 257):
        y = make(name, n)
        for sparseness in (0.05, 0.3, 0.7, 0.95):
            exact = ch.project_hoyer(y, sparseness)
            x, info = ch.project_hoyer(y, sparseness, method="alternating", full_output=True)
            assert info.converged
            difference = error(np.abs(x), np.abs(exact.astype(LD)))
            assert difference <= SHARED_DIGITS.get(name, 1e-9), (n, sparseness)


@pytest.mark.parametrize("nonneg", [False, True])
def test_hoyer_norms_can_be_given(nonneg):
    y = make("gaussian", 100)
    for l1, l2 in [(3.0, 1.0), (10.0, 1.0), (50.0, 8.0), (2.0, 2.0)]:
        x = ch.project_hoyer(y, l1=l1, l2=l2, nonneg=nonneg)
        assert error(x, oracle.project_hoyer(y, l1=l1, l2=l2, nonneg=nonneg)) <= 1e-12
        assert abs(oracle.norms(x)[0] / l1 - 1) <= 1e-13
        assert abs(oracle.norms(x)[1] / l2 - 1) <= 1e-13
    x = ch.project_hoyer(y, 0.6, l2=3.0, nonneg=nonneg)
    assert error(x, oracle.project_hoyer(y, 0.6, l2=3.0, nonneg=nonneg)) <= 1e-12
    assert abs(oracle.norms(x)[1] / 3 - 1) <= 1e-13
    assert oracle.hoyer_sparseness(x) == pytest.approx(0.6, rel=1e-12)


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("name", ["gaussian", "cauchy", "integers", "huge_1e160", "tiny_1e-300"])
def test_hoyer_of_long_vectors(name, nonneg):
    """Sparser, denser and barely either; the norm kept or given; from a sample and without."""
    for n in (9_000, 20_001, 400_000 if name in ("gaussian", "integers") else 70_001):
        y = make(name, n)
        norm = float(oracle.norms(y / 2.0**9)[1]) * 2.0**9  # its square overflows a float
        own = float(oracle.hoyer_sparseness(np.maximum(y, 0) if nonneg else y))
        for sparseness in (0.5 * own, own * (1 - 1e-7), own * (1 + 1e-7), 0.5 + 0.5 * own, 0.97):
            for l2 in (None, 0.25 * norm):
                given = {"nonneg": nonneg, "l2": l2}
                ref = oracle.project_hoyer(y, sparseness, **given)
                for workers in (1, 2):
                    x = ch.project_hoyer(y, sparseness, workers=workers, **given)
                    assert error(np.abs(x), np.abs(ref)) <= 1e-12, (n, sparseness, l2)
                    again = ch.project_hoyer(x, sparseness, workers=workers, **given)
                    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_hoyer_has_the_direction_of_cai(name):
    """Where the level is to be lowered, the two differ in the scale alone."""
    y = make(name, 257)
    sparseness = 0.5 * float(oracle.hoyer_sparseness(y)) + 0.5
    level = ch.level_for_sparseness(sparseness, y.size)
    cai, hoyer = ch.project_cai(y, level).astype(LD), ch.project_hoyer(y, sparseness).astype(LD)
    ratio = np.max(np.abs(hoyer)) / np.max(np.abs(cai))
    assert error(ratio * cai, hoyer) <= 1e-12


# ---------------------------------------------------------------------------
# the l1 ball and the simplex


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_ball_float64(name, method):
    for n in SIZES:
        y = make(name, n)
        for radius in radii_for(y):
            x, info = ch.project_l1_ball(y, radius, method=method, full_output=True)
            ref = oracle.project_l1_ball(y, radius)
            assert error(x, ref) <= 1e-12, (n, radius)
            assert abs(oracle.norms(x)[0] / LD(radius) - 1) <= 1e-12
            assert info.converged
            assert info.nnz == np.count_nonzero(x)
            assert info.level == pytest.approx(radius, rel=1e-12)
            check_signs(x, y)
            check_shift(x, y, scale_free=False)
            again = ch.project_l1_ball(x, radius, method=method)
            np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("name", [*FLOAT32, "near_constant"])
def test_ball_float32(name, method):
    for n in SIZES:
        y = float32(name, n)
        for radius in radii_for(y):
            x = ch.project_l1_ball(y, radius, method=method)
            assert x.dtype == np.float32
            assert error(x, oracle.project_l1_ball(y, radius)) <= 1e-5, (n, radius)
            np.testing.assert_array_equal(ch.project_l1_ball(x, radius, method=method), x)


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_ball_nonneg(name, method):
    y = make(name, 257)
    for radius in radii_for(y):
        x = ch.project_l1_ball(y, radius, method=method, nonneg=True)
        assert np.all(x >= 0)
        assert error(x, oracle.project_l1_ball(y, radius, nonneg=True)) <= 1e-12, radius


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_simplex_float64(name, method):
    for n in SIZES:
        y = make(name, n)
        for total in [*radii_for(y), 3 * float(np.abs(y).max())]:
            x, info = ch.project_simplex(y, total, method=method, full_output=True)
            ref = oracle.project_simplex(y, total)
            assert error(x, ref) <= 1e-12, (n, total)
            assert np.all(x >= 0)
            assert abs(oracle.norms(x)[0] / LD(total) - 1) <= 1e-12
            assert info.converged
            again = ch.project_simplex(x, total, method=method)
            np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("name", [*FLOAT32, "near_constant"])
def test_simplex_float32(name, method):
    for n in SIZES:
        y = float32(name, n)
        for total in [*radii_for(y), 3 * float(np.abs(y).max())]:
            x = ch.project_simplex(y, total, method=method)
            assert x.dtype == np.float32
            assert error(x, oracle.project_simplex(y, total)) <= 1e-5, (n, total)
            np.testing.assert_array_equal(ch.project_simplex(x, total, method=method), x)


# ---------------------------------------------------------------------------
# sizes at which the sampled start and the band pass take over


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "name",
    ["gaussian", "laplace", "cauchy", "zipf", "geometric_slow", "two_valued", "ascending",
     "descending_magnitude", "integers", "near_constant", "clusters", "one_hot_ish", "sparse",
     "wide", "huge_1e300"],
)  # fmt: skip
def test_long_vectors(name, dtype):
    if dtype == np.float32 and name in ("clusters", "huge_1e300", "wide"):
        pytest.skip("not a float32 distribution")
    bound = 1e-12 if dtype == np.float64 else 1e-5
    for n in (70_001, 400_000):
        y = float32(name, n) if dtype == np.float32 else make(name, n)
        a = np.sort(np.abs(y).astype(LD))[::-1]
        for fraction in (0.001, 0.1, 0.5):
            k = int(fraction * n)
            tau = a[k]
            p = np.maximum(a - tau, 0)
            if not p.any():
                continue  # ties at the top: test_degenerate has them
            level = float(oracle.hoyer_score(p)) * (1 - 1e-9)
            x = ch.project_cai(y, level)
            assert error(x, oracle.project_cai(y, level)) <= bound, (n, fraction)
            np.testing.assert_array_equal(ch.project_cai(x, level), x)
            if dtype == np.float64:
                check_cai(x, y, level)
            radius = float(np.sum(p))
            x = ch.project_l1_ball(y, radius)
            assert error(x, oracle.project_l1_ball(y, radius)) <= bound, (n, fraction)
        total = float(a[0]) * 5
        assert error(ch.project_simplex(y, total), oracle.project_simplex(y, total)) <= bound
        x, ref = ch.project_hoyer(y, 0.8), oracle.project_hoyer(y, 0.8)
        assert error(np.abs(x), np.abs(ref)) <= bound


@pytest.mark.thorough
def test_float32_at_1e8():
    rng = np.random.default_rng(0)
    y = rng.standard_normal(10**8, dtype=np.float32)
    level = ch.level_for_nnz(y, 10**6)
    x = ch.project_cai(y, level)
    assert np.count_nonzero(x) <= 10**6
    # sums in float64 by numpy: the blocks must not have been added up in float32
    b = np.abs(x[x != 0].astype(np.float64))
    assert b.sum() ** 2 / (b @ b) == pytest.approx(level, rel=1e-6)
    radius = float(b.sum())
    assert np.abs(ch.project_l1_ball(y, radius)).sum(dtype=np.float64) == pytest.approx(
        radius, rel=1e-6
    )


# ---------------------------------------------------------------------------
# scaling


PROJECTIONS = {
    "cai": lambda y, s: ch.project_cai(y, 3.5),
    "cai_nonneg": lambda y, s: ch.project_cai(y, 3.5, nonneg=True),
    "hoyer": lambda y, s: ch.project_hoyer(y, 0.7),
    "hoyer_denser": lambda y, s: ch.project_hoyer(y, 0.02),
    "hoyer_nonneg": lambda y, s: ch.project_hoyer(y, 0.7, nonneg=True),
    "hoyer_nonneg_denser": lambda y, s: ch.project_hoyer(y, 0.02, nonneg=True),
    "ball": lambda y, s: ch.project_l1_ball(y, 2.5 * s),
    "simplex": lambda y, s: ch.project_simplex(y, 2.5 * s),
}


@pytest.mark.parametrize("project", PROJECTIONS.values(), ids=PROJECTIONS)
@pytest.mark.parametrize("name", ["gaussian", "integers", "near_constant", "zipf", "cauchy"])
def test_powers_of_two_scale_bit_for_bit(name, project):
    for n in (10, 20, 300, 70_000):
        y = make(name, n)
        x = project(y, 1.0)
        # down to where the smallest entries stay normal, up to where the sums overflow
        for exponent in (-700, -511, -300, -1, 1, 64, 300, 325, 511, 900):
            scaled = project(np.ldexp(y, exponent), 2.0**exponent)
            np.testing.assert_array_equal(scaled, np.ldexp(x, exponent), err_msg=str((n, exponent)))


@pytest.mark.parametrize("project", PROJECTIONS.values(), ids=PROJECTIONS)
def test_powers_of_two_scale_bit_for_bit_in_float32(project):
    y = float32("gaussian", 300)
    x = project(y, 1.0)
    for exponent in (-90, -64, -1, 1, 64, 110):
        scaled = project(np.ldexp(y, exponent), 2.0**exponent)
        np.testing.assert_array_equal(scaled, np.ldexp(x, exponent), err_msg=str(exponent))


@pytest.mark.parametrize("project", PROJECTIONS.values(), ids=PROJECTIONS)
def test_other_scales(project):
    y = make("gaussian", 200)
    x = project(y, 1.0)
    for scale in (1e-305, 1e-200, 1e-30, 0.1, 3.0, 1e30, 1e200, 1e305):
        assert error(project(scale * y, scale), x.astype(LD) * LD(scale)) <= 1e-12, scale


# ---------------------------------------------------------------------------
# anything hypothesis finds

elements = st.one_of(
    st.integers(-4, 4).map(float),
    st.floats(-1e3, 1e3, width=32),
    st.floats(-1, 1, width=32).map(lambda v: float(np.float32(1 + 1e-6 * v))),
)
vectors = hnp.arrays(
    st.sampled_from([np.float32, np.float64]), st.integers(1, 60), elements=elements
)
fractions = st.floats(0, 1, exclude_min=True)


def tolerance(y):
    return 1e-12 if y.dtype == np.float64 else 1e-5


@given(vectors, fractions, st.booleans())
def test_cai_on_anything(y, fraction, nonneg):
    level = 1 + fraction * (y.size - 1)
    a = np.maximum(y, 0) if nonneg else y
    # within rounding of feasible, the answer may be y itself or its projection
    assume(not a.any() or abs(float(oracle.hoyer_score(a)) / level - 1) > 1e-6)
    x = ch.project_cai(y, level, nonneg=nonneg)
    assert error(x, oracle.project_cai(y, level, nonneg=nonneg)) <= tolerance(y)
    assert ch.project_cai(x, level, nonneg=nonneg).tobytes() == x.tobytes()


@given(vectors, st.floats(0.001, 1), st.booleans())
def test_hoyer_on_anything(y, sparseness, nonneg):
    assume(y.any())
    x = ch.project_hoyer(y, sparseness, nonneg=nonneg)
    ref = oracle.project_hoyer(y, sparseness, nonneg=nonneg)
    if y.size == 1 and not nonneg:
        np.testing.assert_array_equal(x, y)
    assert error(np.abs(x), np.abs(ref)) <= tolerance(y)


@given(vectors, fractions, st.sampled_from(BALL_METHODS), st.booleans())
def test_ball_on_anything(y, fraction, method, nonneg):
    radius = fraction * float(np.sum(np.abs(y), dtype=LD))
    x = ch.project_l1_ball(y, radius, method=method, nonneg=nonneg)
    assert error(x, oracle.project_l1_ball(y, radius, nonneg=nonneg)) <= tolerance(y)
    again = ch.project_l1_ball(x, radius, method=method, nonneg=nonneg)
    assert again.tobytes() == x.tobytes()


@given(vectors, st.floats(1e-3, 1e3), st.sampled_from(BALL_METHODS))
def test_simplex_on_anything(y, total, method):
    x = ch.project_simplex(y, total, method=method)
    assert error(x, oracle.project_simplex(y, total)) <= tolerance(y)
    assert ch.project_simplex(x, total, method=method).tobytes() == x.tobytes()


@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=4, max_side=7), elements=elements),
    st.data(),
)
def test_batches_are_their_slices(y, data):
    """Any shape, axis and memory order: the bits of one vector at a time."""
    axis = data.draw(st.integers(-y.ndim, y.ndim - 1))
    order = data.draw(st.permutations(range(y.ndim)))
    view = np.transpose(np.ascontiguousarray(np.transpose(y, order)), np.argsort(order))
    np.testing.assert_array_equal(view, y)
    n = y.shape[axis]
    calls = [
        lambda v, axis=-1: ch.project_cai(v, 1 + 0.4 * (n - 1), axis=axis),
        lambda v, axis=-1: ch.project_hoyer(v, 0.6, axis=axis),
        lambda v, axis=-1: ch.project_l1_ball(v, 2.0, axis=axis),
        lambda v, axis=-1: ch.project_simplex(v, 2.0, axis=axis),
    ]
    for call in calls:
        got = call(view, axis=axis)
        assert got.shape == y.shape
        one_by_one = np.moveaxis(np.empty_like(y), axis, -1)
        source = np.moveaxis(y, axis, -1)
        for index in np.ndindex(source.shape[:-1]):
            one_by_one[index] = call(np.ascontiguousarray(source[index]))
        np.testing.assert_array_equal(got, np.moveaxis(one_by_one, -1, axis))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("nonneg", [False, True])
def test_radius_of_a_few_of_the_smallest_numbers(method, dtype, nonneg):
    """The entries are rounded to whole units; a share of less than half of one is nothing."""
    unit, rng = float(np.nextafter(dtype(0), dtype(1))), np.random.default_rng(23)
    for scale in (1.0, 10 * unit):
        for _ in range(150):
            y = (rng.integers(-5, 6, rng.integers(1, 20)) * scale).astype(dtype)
            radius = int(rng.integers(1, 30)) * unit
            x = ch.project_l1_ball(y, radius, method=method, nonneg=nonneg)
            exact = oracle.project_l1_ball(y, radius, nonneg=nonneg)
            assert np.abs(x - exact).max() <= 1.5 * LD(unit)
            again = ch.project_l1_ball(x, radius, method=method, nonneg=nonneg)
            assert again.tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearly_tied_entries_with_the_next_at_the_threshold(dtype):
    """The level is close to their number, and rounding must not let the next entry in."""
    bound = 1e-5 if dtype is np.float32 else 1e-12
    for seed in range(1500):
        rng = np.random.default_rng(seed)
        k, n = rng.integers(2, 7), rng.integers(7, 14)
        spread = 10.0 ** rng.uniform(-7.0, -3.0)
        y = rng.choice([-1, 1], n) * rng.uniform(0.1, 0.9, n)
        y[:k] = 1.0 + spread * rng.random(k)
        y[k] = 1.0 - 10.0 ** rng.uniform(-4.0, 0.0)
        y = y.astype(dtype)
        a = np.sort(np.abs(y.astype(LD)))[::-1]
        gaps = np.maximum(a - a[k], 0)
        if not gaps[0] > gaps[k - 1] > 0.0:
            continue
        level = float(oracle.hoyer_score(gaps))
        assert error(ch.project_cai(y, level), oracle.project_cai(y, level)) <= bound, seed


def test_a_score_right_to_the_last_bit_is_not_the_end():
    """Of three entries nearly alike, at a level just below their score, H tells little of τ."""
    for seed in range(2000):
        rng = np.random.default_rng(seed)
        y = 1.0 + 10.0 ** rng.uniform(-5.0, -3.0) * rng.standard_normal(3)
        level = float(oracle.hoyer_score(y)) * (1.0 - 1e-9)
        assert error(ch.project_cai(y, level), oracle.project_cai(y, level)) <= 1e-12, seed


@pytest.mark.parametrize("n", [3, 5, 8, 13, 50, 300])
def test_a_level_just_below_a_count_of_ties(n):
    """No threshold exists then, but the sums of float32 numbers have one just below the others."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        low, high = np.sort(rng.uniform(0.1, 3.0, 2)).astype(np.float32)
        k = rng.integers(2, n, endpoint=True)
        y = rng.permutation(np.where(np.arange(n) < k, high, low)) * rng.choice([-1, 1], n)
        y = y.astype(np.float32)
        for below in (1e-9, 1e-8, 1e-7):
            level = k * (1.0 - below)
            if float(oracle.hoyer_score(y)) > level * (1.0 + 2e-6):
                x = ch.project_cai(y, level)
                assert error(x, oracle.project_cai(y, level)) <= 1e-5, (seed, below)


@pytest.mark.parametrize("method", CAI_METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_level_a_few_bits_below_a_count_of_ties(method, dtype):
    """H is one bit more all over the gap below the ties, and the last of them not as large."""
    for seed in range(600):
        rng = np.random.default_rng(seed)
        n = int(rng.choice([3, 4, 5, 8, 13, 50]))
        k = int(rng.integers(2, n))
        low, high = np.sort(rng.uniform(0.1, 3.0, 2)) * 10.0 ** rng.integers(-5, 5)
        y = rng.permutation(np.where(np.arange(n) < k, high, low)) * rng.choice([-1, 1], n)
        y = y.astype(dtype)
        level = k * (1.0 - rng.integers(1, 5) * 2.0**-53)
        bound = 1e-5 if dtype is np.float32 else 1e-12
        if float(oracle.hoyer_score(y)) > level * (1.0 + 0.11 * bound):
            x = ch.project_cai(y, level, method=method)
            assert error(x, oracle.project_cai(y, level)) <= bound, seed


@pytest.mark.parametrize("method", BALL_METHODS)
@pytest.mark.parametrize("project", ["l1", "simplex"])
def test_radii_at_an_entry_of_nearly_constant_data(project, method):
    """Rounding brings the first step to one side of the entry, the next to the other."""
    projections = {
        "l1": (ch.project_l1_ball, oracle.project_l1_ball),
        "simplex": (ch.project_simplex, oracle.project_simplex),
    }
    call, exact = projections[project]
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        n = rng.integers(2, 9) if seed > 2 else 20_000
        y = 1.0 + 10.0 ** rng.uniform(-12.0, -6.0) * rng.standard_normal(n)
        a = np.sort(y.astype(LD))[::-1]
        gaps = np.maximum(a - a[rng.integers(1, n)], 0)
        radius = float(np.sum(gaps)) * (1.0 - 1e-9)
        if radius > 0.0:
            assert error(call(y, radius, method=method), exact(y, radius)) <= 1e-12, seed


@pytest.mark.parametrize("method", HOYER_METHODS)
def test_what_a_float_of_the_level_lacks(method):
    """Of 300,000 ties the last one shows it, and of a sparseness near 0 the deviations do."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n = int(rng.choice([2, 5, 100, 3000]))
        y, s = rng.standard_normal(n), 10.0 ** rng.uniform(-20.0, -4.0)
        x = ch.project_hoyer(y, s, method=method)
        assert error(np.abs(x), np.abs(oracle.project_hoyer(y, s))) <= 1e-12, seed
        norm = float(rng.choice([1e-300, 1.0, 1e300]))
        s = max(s, 1e-12)  # norms that differ less from √n are taken for that
        l1 = norm * (1.0 + (1.0 - s) * (np.sqrt(n) - 1.0))
        x = ch.project_hoyer(y, l1=l1, l2=norm, method=method)
        expected = oracle.project_hoyer(y, l1=l1, l2=norm)
        assert error(np.abs(x), np.abs(expected)) <= 1e-12, seed
    y = np.where(np.random.default_rng(0).random(300_000) < 0.7, 1.0, 0.3)
    for s in (0.2, 0.5):
        expected = oracle.project_hoyer(y, s)
        assert error(ch.project_hoyer(y, s, method=method), expected) <= 1e-12
        rows = ch.project_hoyer(np.stack([y, y]), np.array([s, s]), method=method)
        assert error(rows[1], expected) <= 1e-12
    y = np.tile(y, 4)  # long enough for two threads
    x = ch.project_hoyer(y, 0.2, method=method, workers=2)
    assert error(x, oracle.project_hoyer(y, 0.2)) <= 1e-12


@pytest.mark.parametrize("method", HOYER_METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_norms_far_from_the_data(dtype, method):
    """The factor is no number of the dtype, or a subnormal one."""
    bound, most = (1e-5, 30) if dtype is np.float32 else (1e-12, 290)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        y = rng.standard_normal(12).astype(dtype) * dtype(10.0 ** rng.integers(-most, most))
        norm = 10.0 ** rng.integers(-most, most)
        for s in (1e-12, 0.3, 0.8):
            x = ch.project_hoyer(y, s, l2=norm, method=method)
            expected = oracle.project_hoyer(y, s, l2=norm)
            assert error(np.abs(x), np.abs(expected)) <= bound, (seed, s)
    flat = np.full(4, 10.0**-most, dtype)  # of the score wanted, but not of the norm
    x = ch.project_hoyer(flat, 0.0, l2=10.0**most, method=method)
    assert error(x, np.full(4, 0.5 * LD(10.0**most))) <= bound


@pytest.mark.parametrize("method", HOYER_METHODS)
def test_nearly_tied_entries_at_a_level_next_to_a_whole_number(method):
    """The rest moves τ across the next entry: 3e-17 of the level brought in one of 0.01."""
    y = np.array([0.5, -3.6e-8, -1.5e-8, -2.32581574e11, 5518.0])
    for s in (0.19098300562505266, 0.1909830056250526, 0.19098300562505272):
        x = ch.project_hoyer(y, s, nonneg=True, method=method)
        assert error(x, oracle.project_hoyer(y, s, nonneg=True)) <= 1e-12


@pytest.mark.parametrize("method", HOYER_METHODS)
def test_ties_at_a_level_next_to_a_whole_number(method):
    """A part of 1e-13 of the level moves the last entry by its root."""
    for whole in range(2, 500, 7):
        s = (np.sqrt(500) - np.sqrt(whole)) / (np.sqrt(500) - 1)
        x = ch.project_hoyer(np.ones(500), s, method=method)
        assert error(x, oracle.project_hoyer(np.ones(500), s)) <= 1e-12, whole


def test_no_sparseness_but_zero_is_flat():
    """The deviations from the mean fade as the root of the sparseness does."""
    y = np.random.default_rng(0).standard_normal(50)
    for s in (1e-13, 1e-17, 1e-22, 1e-29):
        x = np.abs(ch.project_hoyer(y, s))
        assert np.std(x) / np.mean(x) == pytest.approx(
            np.sqrt(2 * s * (1 - 1 / np.sqrt(50))), rel=1e-3, abs=1e-15
        )
    assert np.ptp(np.abs(ch.project_hoyer(y, 0.0))) == 0.0
