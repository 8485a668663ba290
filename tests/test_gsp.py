"""Group sparse projection, against a bisection on μ in long double and its own definition."""

import decimal
import math

import numba
import numpy as np
import oracle
import pytest
from distributions import make
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import conehoyer as ch
from conehoyer import GSPInfo, _checks, gsp, project_gsp

LD = np.longdouble
TARGETS = [0.1, 0.3, 0.5, 0.75, 0.9, 0.99]
SPARSENESS = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.25, 0.5, 1.0]))


# ---------------------------------------------------------------------------
# the reference


def unit(a, tau):
    """z along (a − τ)₊, or the first of the largest entries; zeros for zeros."""
    d = np.maximum(a - tau, 0)
    if not d.any():
        d[np.argmax(a)] = a.max()
    if not d.any():
        return d
    d = d / d.max()
    return d / np.sqrt(np.sum(d * d))


def share_of_ones(size):
    """1 − sparseness of z is share·(‖z‖₁ − 1)."""
    return 1 / (np.sqrt(LD(size)) - 1)


def deficit(vectors, mu):
    """Σ(1 − sparseness) at the multiplier μ."""
    total = LD(0)
    for a in vectors:
        if a.any():
            beta = share_of_ones(a.size)
            total += beta * (np.sum(unit(a, mu * beta)) - 1)
    return total


def reference(vectors, sparseness):
    """The group sparse projection by bisection; vectors of length one are left alone."""
    flat = [np.asarray(v).ravel().astype(LD) for v in vectors]
    members = [np.abs(v) for v in flat if v.size > 1]
    goal = len(members) * (1 - LD(sparseness))
    if not members or deficit(members, LD(0)) <= goal * (1 + LD(1e-14)):
        return flat
    lo, hi = LD(0), max(a.max() / share_of_ones(a.size) for a in members)
    for _ in range(20000):
        middle = (lo + hi) / 2 if lo > hi / 4 else max(np.sqrt(lo * hi), hi * LD(2.0**-30))
        if not lo < middle < hi:
            break
        if deficit(members, middle) > goal:
            lo = middle
        else:
            hi = middle
    # Vectors that jump between lo and hi share what is left of the deficit.
    below, above = [], []
    for a in members:
        beta = share_of_ones(a.size)
        ties = np.count_nonzero(a == a.max())
        place, slack = a.max() / beta, 1 + LD(1e-18)
        jumps = a.any() and ties > 1 and lo <= place * slack and place <= hi * slack
        smooth = np.sum(unit(a, hi * beta)) if a.any() else LD(1)
        above.append(np.sqrt(LD(ties)) if jumps else smooth)
        below.append(LD(1) if jumps else above[-1])
    betas = [share_of_ones(a.size) for a in members]
    low = sum(b * (c - 1) for b, c in zip(betas, below, strict=True))
    room = sum(b * (c - d) for b, c, d in zip(betas, above, below, strict=True))
    part = min(max((goal - low) / room, LD(0)), LD(1)) if room > 0 else LD(0)
    result, k = [], 0
    for v in flat:
        if v.size < 2:
            result.append(v)
            continue
        a = members[k]
        if above[k] > below[k]:
            ties = np.count_nonzero(a == a.max())
            level = min((1 + part * (np.sqrt(LD(ties)) - 1)) ** 2, LD(ties))
            z = oracle.tie_vector(a, level)
            z = z / np.sqrt(np.sum(z * z))
        else:
            z = unit(a, (lo + hi) / 2 * betas[k])  # zeros for zeros
        result.append(np.where(np.signbit(v), -1, 1) * np.sum(z * a) * z)
        k += 1
    return result


def sparseness_of(vectors):
    """The mean over vectors of more than one entry."""
    members = [v for v in vectors if np.size(v) > 1]
    return float(oracle.gsp_score(members)) if members else 1.0


def check(vectors, sparseness, tol=1e-10, level_tol=1e-12):
    got, info = project_gsp(vectors, sparseness, full_output=True)
    expected = reference(vectors, sparseness)
    scale = max((np.abs(v).max(initial=0) for v in expected), default=0)
    for x, ref, v in zip(got, expected, vectors, strict=True):
        assert x.shape == np.shape(v)
        own = max(np.abs(ref).max(initial=0), LD(1e-300) * scale)
        assert np.abs(x.ravel() - ref).max(initial=0) <= tol * own
        assert np.all((x == 0) | (np.sign(x) == np.sign(v)))
    assert info.converged
    before, after = sparseness_of(vectors), sparseness_of(got)
    if before < sparseness - 1e-13:
        assert abs(after - sparseness) <= level_tol
        assert info.sparseness == pytest.approx(after, abs=level_tol)
    again = project_gsp(got, sparseness)
    for x, y in zip(got, again, strict=True):
        assert x.tobytes() == y.tobytes()
    return got, info


# ---------------------------------------------------------------------------
# the solution


LENGTHS = (2, 3, 10, 57, 300, 1000)


@pytest.mark.parametrize(
    "name",
    ["gaussian", "uniform", "cauchy", "geometric_fast", "two_valued", "integers", "blocks_of_ties",
     "one_hot_ish", "sparse", "wide", "tiny_1e-300", "huge_1e300", "clusters"],
)  # fmt: skip
def test_against_the_reference(name):
    vectors = [make(name, n) for n in LENGTHS]
    for sparseness in TARGETS:
        # long double holds the gaps of 1e-9 in the clusters to ten digits only
        check(vectors, sparseness, tol=1e-8 if name == "clusters" else 1e-10)


def exact(vectors, sparseness):
    """The projection of positive vectors without ties, with sixty digits."""
    with decimal.localcontext(prec=60):
        number = decimal.Decimal
        columns = [[number(float(value)) for value in v] for v in vectors]
        betas = [1 / (number(v.size).sqrt() - 1) for v in vectors]
        goal = len(columns) * (1 - number(sparseness))

        def units(mu):
            for a, beta in zip(columns, betas, strict=True):
                top = max(a)
                d = [max(value - mu * beta, 0) for value in a]
                if not any(d):
                    d = [number(int(value == top)) for value in a]
                norm = sum(value * value for value in d).sqrt()
                yield a, beta, [value / norm for value in d]

        lo, hi = number(0), max(max(a) / beta for a, beta in zip(columns, betas, strict=True))
        for _ in range(150):
            middle = (lo + hi) / 2
            if sum(beta * (sum(z) - 1) for _, beta, z in units(middle)) > goal:
                lo = middle
            else:
                hi = middle
        scaled = []
        for a, _, z in units(lo):
            product = sum(p * q for p, q in zip(a, z, strict=True))
            scaled.append([float(product * value) for value in z])
        return scaled


@pytest.mark.parametrize("name", ["near_constant", "near_constant_last_bits", "clusters"])
def test_nearly_equal_entries_against_sixty_digits(name):
    vectors = [make(name, n) for n in (2, 3, 10, 20)]
    if name == "near_constant_last_bits":
        vectors = [1 + np.finfo(float).eps * np.arange(n) for n in (2, 3, 10, 20)]
    for sparseness in (0.3, 0.6, 0.9):
        got, info = project_gsp(vectors, sparseness, full_output=True)
        for x, ref in zip(got, exact(vectors, sparseness), strict=True):
            assert np.abs(x - ref).max() <= 1e-10
        assert info.converged
        assert ch.gsp_score(got) == pytest.approx(sparseness, abs=1e-12)
    vectors = [make(name, n) for n in LENGTHS]
    for sparseness in TARGETS:
        got = project_gsp(vectors, sparseness)
        assert sparseness_of(got) == pytest.approx(sparseness, abs=1e-12)


@pytest.mark.parametrize("sparseness", TARGETS)
def test_mixed_data(sparseness):
    names = ["gaussian", "near_constant", "integers", "cauchy", "sparse", "two_valued"]
    check([make(name, n) for name, n in zip(names, LENGTHS, strict=True)], sparseness)


@pytest.mark.parametrize("sparseness", [0.5, 0.95])
def test_several_pieces(sparseness):
    vectors = [make("gaussian", n) for n in (40_000, 1500, 16_384, 7)]
    _, info = check(vectors, sparseness)
    assert info.passes <= 13


@pytest.mark.parametrize(
    "scales",
    [
        (1, 1e-200, 1e200),
        (1e-300, 1, 1e300),
        (1e300, 1e-8, 1),
        (1e-9, 1, 1e5),
        (1e40, 1e-30, 1e240),
    ],
)
def test_vectors_of_very_different_size(scales):
    vectors = [c * make("gaussian", n) for c, n in zip(scales, (20, 30, 400), strict=True)]
    for sparseness in (0.3, 0.5, 0.7, 0.9):
        check(vectors, sparseness)


@pytest.mark.parametrize("n", [2, 10, 1000])
def test_one_vector_is_the_cone_projection(n):
    y = make("laplace", n)
    for sparseness in (0.4, 0.6, 0.9, 1.0):
        if ch.hoyer_sparseness(y) >= sparseness:
            continue
        x = project_gsp(y, sparseness)
        cone = ch.project_cai(y, ch.level_for_sparseness(sparseness, n))
        hoyer = ch.project_hoyer(y, sparseness)
        size = np.abs(y).max()
        np.testing.assert_allclose(x, cone, rtol=0, atol=1e-12 * size)
        hoyer *= np.linalg.norm(x) / np.linalg.norm(hoyer)
        np.testing.assert_allclose(x, hoyer, rtol=0, atol=1e-12 * size)


def test_no_feasible_point_has_a_larger_objective():
    rng = np.random.default_rng(3)
    vectors = [rng.standard_normal(n) * c for n, c in [(4, 1.0), (9, 3.0), (25, 0.5)]]
    target = 0.6
    best = sum(np.linalg.norm(x) for x in project_gsp(vectors, target))  # ⟨z, a⟩ = ‖x‖
    tried = 0
    for _ in range(2000):
        trial = [
            np.maximum(np.abs(v) + c * rng.standard_normal(v.size) - t, 0)
            for v, c, t in zip(
                vectors, 10.0 ** rng.uniform(-3, 0, 3), 3 * rng.random(3), strict=True
            )
        ]
        if any(not z.any() for z in trial) or ch.gsp_score(trial) < target:
            continue
        tried += 1
        value = sum(z @ np.abs(v) / np.linalg.norm(z) for z, v in zip(trial, vectors, strict=True))
        assert value <= best * (1 + 1e-14)
    assert tried > 100


def test_it_is_not_the_euclidean_projection():
    """The example of the docstring."""
    vectors = [np.array([8.0, 3.0, 2.0]), np.array([1.0, 1.0, 0.0])]

    def squared_distance(result):
        return sum(((x - v) ** 2).sum() for x, v in zip(result, vectors, strict=True))

    levels = ch.level_for_sparseness([0.35, 0.65], 3)
    closer = [ch.project_cai(v, level) for v, level in zip(vectors, levels, strict=True)]
    assert ch.gsp_score(closer) == pytest.approx(0.5, abs=1e-14)
    assert squared_distance(closer) == pytest.approx(0.425, abs=1e-3)
    assert squared_distance(project_gsp(vectors, 0.5)) == pytest.approx(1.268, abs=1e-3)


# ---------------------------------------------------------------------------
# ties, zeros, and the ends of the range


def test_ties_fill_the_jump():
    y = np.array([1.0, -2.0, 2.0, 2.0, -2.0, 0.5])
    other = make("gaussian", 20)
    seen = set()
    for sparseness in np.linspace(0.3, 0.95, 27):
        (x, _), info = check([y, other], float(sparseness))
        seen.add(np.count_nonzero(x))
        assert info.nnz[0] == np.count_nonzero(x)
        if np.count_nonzero(x) < 4:  # the first of the ties, all equal but the last
            kept = np.flatnonzero(x)
            np.testing.assert_array_equal(kept, [1, 2, 3, 4][: kept.size])
            assert np.unique(np.abs(x[kept[:-1]])).size <= 1
    assert {1, 2, 3, 4} <= seen


def test_the_goal_is_met_between_two_jumps():
    # From μ = 1e-30/β to 1/β all agree: the large vectors stay, one entry is left of each other.
    for lengths in ((100, 3000), (3000, 100), (7, 2), (400, 57)):
        vectors = [np.ones(n) for n in lengths] + [np.full(n, 1e-30) for n in (100, 400)]
        results, info = project_gsp(vectors, 0.5, full_output=True)
        assert info.converged
        assert abs(info.sparseness - 0.5) < 1e-14
        for x, y in zip(results[:2], vectors[:2], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-14)
        for x, y in zip(results[2:], vectors[2:], strict=True):
            assert x[0] == y[0]
            assert not x[1:].any()


def test_equal_vectors_get_equal_results():
    x = project_gsp(np.ones((5, 9)), 0.6)
    assert ch.gsp_score(x) == pytest.approx(0.6, abs=1e-14)
    for row in x[1:]:
        np.testing.assert_array_equal(row, x[0])


def test_constant_vectors_of_different_lengths():
    for sparseness in TARGETS:
        check([np.ones(4), np.full(9, -1.0), np.full(50, 2.0), np.full(9, 1.0)], sparseness)


def test_zero_vectors_stay_and_count_as_sparse():
    vectors = [make("gaussian", 30), np.zeros(8), make("uniform", 100), np.zeros(3)]
    before = ch.gsp_score(vectors)
    assert before > 0.5
    for sparseness in (0.7, 0.8, 0.95, 1.0):
        got, info = check(vectors, sparseness)
        assert ch.gsp_score(got) == pytest.approx(sparseness, abs=1e-12)
        assert not got[1].any()
        assert info.nnz[1] == info.threshold[1] == 0


def test_vectors_of_length_one_are_no_part_of_the_group():
    vectors = [np.array([-5.0]), make("gaussian", 30), np.array(2.0), np.zeros(0)]
    got = project_gsp(vectors, 0.7)
    assert [x.shape for x in got] == [(1,), (30,), (), (0,)]
    assert got[0][0] == -5
    assert got[2] == 2
    np.testing.assert_array_equal(got[1], project_gsp(vectors[1], 0.7))
    assert ch.gsp_score(got) >= 0.7
    for x in ([[3.0], [4.0]], np.ones((4, 1)), np.float64(3.0)):
        axis = None if np.ndim(x) == 0 else -1
        got, info = project_gsp(x, 1.0, axis=axis, full_output=True)
        np.testing.assert_array_equal(got, x)
        assert info.converged
        assert info.sparseness == 1


def test_sparse_enough_input_comes_back_bit_for_bit():
    for x in (
        make("gaussian", 60).reshape(6, 10),
        np.zeros((3, 4)),
        np.float32([[1, -0.0, 1e-40]]),
    ):
        score = ch.gsp_score(x)
        for sparseness in (0.0, 0.5 * score, min(float(score), 1 - 1e-6)):
            got, info = project_gsp(x, sparseness, full_output=True)
            assert got.tobytes() == x.tobytes()
            assert got is not x
            assert info.multiplier == 0
            assert not info.threshold.any()
            assert info.sparseness == pytest.approx(score, abs=1e-7)


@pytest.mark.parametrize("name", ["gaussian", "integers", "near_constant", "tiny_1e-300"])
def test_sparseness_one_keeps_the_largest_entry_of_each(name):
    x = make(name, 60).reshape(5, 12)
    got, info = project_gsp(x, 1.0, full_output=True)
    expected = np.zeros_like(x)
    top = np.abs(x).argmax(axis=1)
    expected[np.arange(5), top] = x[np.arange(5), top]
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(info.nnz, 1)
    assert info.sparseness == 1
    assert project_gsp(got, 1.0).tobytes() == got.tobytes()
    one_each = np.array([[0.0, -3.0, -0.0], [0.0, 0.0, 0.0]])
    assert project_gsp(one_each, 1.0).tobytes() == one_each.tobytes()


def test_empty_input():
    for shape in [(0,), (0, 5), (3, 0)]:
        got, info = project_gsp(np.zeros(shape), 0.5, full_output=True)
        assert got.shape == shape
        assert info.nnz.shape == shape[:-1]
        assert info.sparseness == 1


# ---------------------------------------------------------------------------
# arrays and lists


def test_a_list_is_the_rows_of_an_array():
    x = make("gaussian", 600).reshape(6, 100)
    rows, info = project_gsp(list(x), 0.7, full_output=True)
    whole, info2 = project_gsp(x, 0.7, full_output=True)
    assert isinstance(rows, list)
    np.testing.assert_array_equal(whole, rows)
    assert info.multiplier == info2.multiplier
    assert project_gsp([x[0]], 0.7, full_output=True)[1].nnz.shape == (1,)
    np.testing.assert_array_equal(info.threshold, info2.threshold)
    np.testing.assert_array_equal(project_gsp(tuple(x), 0.7), rows)
    np.testing.assert_array_equal(project_gsp(x.tolist(), 0.7), rows)


def test_axis():
    x = make("laplace", 120).reshape(4, 5, 6)
    for axis in (0, 1, 2, -1, -3):
        moved = np.moveaxis(x, axis, -1)
        got, info = project_gsp(x, 0.6, axis=axis, full_output=True)
        expected = project_gsp(np.ascontiguousarray(moved), 0.6)
        np.testing.assert_array_equal(np.moveaxis(got, axis, -1), expected)
        assert info.threshold.shape == info.nnz.shape == moved.shape[:-1]
    got, info = project_gsp(x, 0.6, axis=None, full_output=True)
    np.testing.assert_array_equal(got, project_gsp(x.ravel(), 0.6).reshape(x.shape))
    assert info.threshold.shape == ()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble, np.int16, bool, ">f8"])
def test_dtypes(dtype):
    x = (4 * make("gaussian", 600)).reshape(6, 100).astype(dtype)
    kept = x.dtype.kind == "f"
    got, info = project_gsp(x, 0.8, full_output=True)
    assert got.dtype == (x.dtype.newbyteorder("=") if kept else np.float64)
    eps = max(float(np.finfo(got.dtype).eps), 1e-15)
    assert ch.gsp_score(got) == pytest.approx(0.8, abs=10 * eps)
    assert info.sparseness == pytest.approx(0.8, abs=1e-12)  # summed in float64
    np.testing.assert_array_equal(project_gsp(got, 0.8), got)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_does_not_take_it_back_and_forth(dtype):
    """Sums of float32 data once did, and sometimes until the cap."""
    for seed in range(150):
        x = np.random.default_rng(seed).standard_normal(5000).astype(dtype)
        _, info = project_gsp(x, 0.6, full_output=True)
        assert info.converged
        assert info.passes <= 10
        assert abs(info.sparseness - 0.6) <= 1e-13


def test_a_last_bit_of_the_goal_is_given_up():
    rng = np.random.default_rng(480844134)
    share, sparseness = rng.choice([0.01, 0.02, 0.005]), rng.uniform(0.9, 0.99)
    giants = rng.random(512) < share
    x = np.where(giants, 100 * rng.standard_normal(512), np.sign(rng.standard_normal(512)))
    _, info = project_gsp([x], sparseness, full_output=True)
    assert info.converged
    assert info.passes <= 14
    assert abs(info.sparseness - sparseness) <= 1e-13


@pytest.mark.parametrize("exponent", [-149, -135, -120, -110, -70])
def test_small_float32_data(exponent):
    """The lower part of a threshold underflowed where the data had few bits below them."""
    rng = np.random.default_rng(2)
    for vectors in ([np.array([1000, 1001, 1002, 1003])], [rng.integers(256, 2000, 50)] * 2):
        x = [np.ldexp(v.astype(float), exponent).astype(np.float32) for v in vectors]
        got, info = project_gsp(x, 0.5, full_output=True)
        assert info.converged
        for one, ref in zip(got, project_gsp([v.astype(float) for v in vectors], 0.5), strict=True):
            bits = np.ldexp(one.astype(float), -exponent)
            np.testing.assert_allclose(bits, ref, rtol=1e-6, atol=1.0 if exponent == -149 else 0.51)


@pytest.mark.parametrize("exponent", [-1000, -600, 600, 1000])
def test_the_report_has_the_unit_of_the_data(exponent):
    vectors = [make("gaussian", n) for n in (5, 40, 700)]
    _, expected = project_gsp(vectors, 0.75, full_output=True)
    _, info = project_gsp([np.ldexp(v, exponent) for v in vectors], 0.75, full_output=True)
    np.testing.assert_array_equal(np.ldexp(info.threshold, -exponent), expected.threshold)
    assert np.ldexp(info.multiplier, -exponent) == expected.multiplier


def test_each_result_goes_where_another_vector_was():
    a, b = np.random.default_rng(0).standard_normal((2, 700))
    first, second = project_gsp([a, b], 0.7)
    c, d = a.copy(), b.copy()
    project_gsp([c, d], 0.7, out=[d, c])
    np.testing.assert_array_equal(d, first)
    np.testing.assert_array_equal(c, second)


def test_float32_against_the_reference():
    vectors = [make("gaussian", n).astype(np.float32) for n in (5, 300, 20_000)]
    for sparseness in (0.5, 0.9):
        check(vectors, sparseness, tol=1e-6, level_tol=1e-7)


def test_bfloat16_and_a_list_of_several_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = make("gaussian", 200)
    got = project_gsp([x.astype(ml_dtypes.bfloat16), x, x.astype(np.float32), np.arange(9)], 0.7)
    assert [str(part.dtype) for part in got] == ["bfloat16", "float64", "float32", "float64"]
    assert ch.gsp_score(got[1:]) == pytest.approx(0.7, abs=0.1)


def test_memory_order_and_read_only_input():
    x = make("gaussian", 600).reshape(20, 30)
    expected = project_gsp(x, 0.7)
    frozen = x.copy()
    frozen.flags.writeable = False
    for same in (np.asfortranarray(x), frozen, np.repeat(x, 2, axis=1)[:, ::2]):
        np.testing.assert_array_equal(project_gsp(same, 0.7), expected)
        np.testing.assert_array_equal(project_gsp([same, x], 0.7)[1].shape, x.shape)
    np.testing.assert_array_equal(frozen, x)


def test_out_and_overwrite():
    for shape in ((30, 40), (3, 2000)):
        x = make("gaussian", math.prod(shape)).reshape(shape)
        expected = project_gsp(x, 0.7)
        out = np.empty_like(x)
        assert project_gsp(x, 0.7, out=out) is out
        np.testing.assert_array_equal(out, expected)
        turned = np.empty_like(x, order="F")
        np.testing.assert_array_equal(project_gsp(x, 0.7, out=turned), expected)
        for options in ({"out": None, "overwrite_x": True}, {"out": "x"}):
            y = x.copy()
            if options["out"] == "x":
                options["out"] = y
            assert project_gsp(y, 0.7, **options) is y
            np.testing.assert_array_equal(y, expected)


def test_out_and_overwrite_of_lists():
    x = [make("gaussian", n) for n in (5, 2000, 300)]
    expected = project_gsp(x, 0.7)

    def same(got):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)

    out = [np.empty_like(v) for v in x]
    got = project_gsp(x, 0.7, out=out)
    assert all(a is b for a, b in zip(got, out, strict=True))
    same(got)
    y = [v.copy() for v in x]
    got = project_gsp(y, 0.7, overwrite_x=True)
    assert all(a is b for a, b in zip(got, y, strict=True))
    same(y)
    y = [v.copy() for v in x]
    same(project_gsp(y, 0.7, out=y))

    # the result of one vector goes where another one lies
    pool = np.concatenate([x[1], x[2], x[0]])
    y = [pool[2300:], pool[:2000], pool[2000:2300]]
    out = [pool[:5], pool[5:2005], pool[2005:]]
    same(project_gsp(y, 0.7, out=out))

    # for some of the results only
    got = project_gsp(x, 0.7, out=[None, out[1], None])
    assert got[1] is out[1]
    same(got)

    # one array twice: there is no place to overwrite
    y = x[1].copy()
    got = project_gsp([y, y], 0.7, overwrite_x=True)
    np.testing.assert_array_equal(y, x[1])
    np.testing.assert_array_equal(got[0], got[1])


@pytest.mark.usefixtures("every_array_is_large")
def test_workers_do_not_change_a_bit():
    rng = np.random.default_rng(0)
    vectors = [rng.standard_normal(n) for n in (5, 70_000, 300, 16_385, 1)]
    matrix = rng.standard_normal((900, 100))
    for sparseness in (0.5, 0.95):
        one = project_gsp(vectors, sparseness, workers=1)
        rows = project_gsp(matrix, sparseness, workers=1)
        for workers in (2, 3, -1):
            for a, b in zip(one, project_gsp(vectors, sparseness, workers=workers), strict=True):
                assert a.tobytes() == b.tobytes()
            assert rows.tobytes() == project_gsp(matrix, sparseness, workers=workers).tobytes()


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_each_piece_is_one_workers(workers):
    """Two that go over the same entries could be at them at once."""
    x = [np.ones(n) for n in (5, 70_000, 1, 50_000)]
    slices, seen = [_checks.slices(v, None) for v in x], []
    group = gsp._Group.of(slices, gsp._targets(slices, x, None, False), workers)
    group.each(lambda b, i, j: seen.extend((b.place, k) for k in range(i, j)), lambda b: (b,))
    assert sorted(seen) == [(b.place, k) for b in group.blocks for k in range(b.pieces)]
    assert max(k for _, k in seen) > 2


@pytest.mark.parametrize("exponent", [-900, -400, -1, 3, 500, 1000])
def test_powers_of_two_scale_bit_for_bit(exponent):
    for vectors in (
        [make("gaussian", n) for n in (5, 40, 700)],
        [make("integers", n) for n in (5, 40, 700)],
    ):
        expected = project_gsp(vectors, 0.75)
        scaled = project_gsp([np.ldexp(v, exponent) for v in vectors], 0.75)
        for a, b in zip(expected, scaled, strict=True):
            np.testing.assert_array_equal(np.ldexp(a, exponent), b)


@settings(max_examples=40)
@given(
    st.lists(
        hnp.arrays(
            np.float64,
            st.integers(1, 6),
            elements=st.one_of(
                st.integers(-3, 3).map(float), st.floats(-10, 10, allow_subnormal=False)
            ),
        ),
        min_size=1,
        max_size=4,
    ),
    SPARSENESS,
)
@example([np.full(2, 2.365234375)], 0.5)  # jumps where the reference's bisection ends
def test_small_groups(vectors, sparseness):
    got, info = project_gsp(vectors, sparseness, full_output=True)
    assert info.converged
    assert sparseness_of(got) >= sparseness - 1e-12
    if sparseness_of(vectors) < sparseness - 1e-12:
        assert sparseness_of(got) == pytest.approx(sparseness, abs=1e-12)
    # as large an objective as the reference has
    best = sum(float(np.sqrt(np.sum(r * r))) for r in reference(vectors, sparseness))
    assert sum(np.linalg.norm(x) for x in got) == pytest.approx(best, rel=1e-10)
    for x, again in zip(got, project_gsp(got, sparseness), strict=True):
        assert x.tobytes() == again.tobytes()


# ---------------------------------------------------------------------------
# the report and the errors


def test_info():
    vectors = [make("gaussian", n) for n in (20, 5000)]
    got, info = project_gsp(vectors, 0.8, full_output=True)
    assert isinstance(info, GSPInfo)
    beta = [1 / (math.sqrt(v.size) - 1) for v in vectors]
    tops = [np.abs(v).max() for v in vectors]
    expected = np.minimum(info.multiplier * np.array(beta), tops)
    np.testing.assert_allclose(info.threshold, expected, rtol=1e-14)
    for x, v, tau, nnz in zip(got, vectors, info.threshold, info.nnz, strict=True):
        assert nnz == np.count_nonzero(x)
        assert np.all((x == 0) == (np.abs(v) <= tau)) or nnz == 1
    assert 2 <= info.passes <= 12
    with pytest.raises(AttributeError):
        info.passes = 3


def test_nonfinite_data():
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones((3, 4))
        x[1, 2] = bad
        y = x.copy()
        with pytest.raises(ValueError, match="finite"):
            project_gsp(y, 0.5, overwrite_x=True)
        np.testing.assert_array_equal(x, y)
        with pytest.raises(ValueError, match="finite"):
            project_gsp(list(x), 1.0)
        y, info = project_gsp(x, 0.5, check_finite=False, full_output=True)
        assert np.isnan(y).all()
        assert np.isnan([info.multiplier, info.sparseness]).all()
        assert np.isnan(info.threshold).all()
    # A vector of one entry is no part of the group, but data.
    for vectors in ([[np.nan], [1.0]], [[np.inf], [2.0, 1.0]]):
        with pytest.raises(ValueError, match=r"x.* must be finite"):
            project_gsp(vectors, 0.5)
        for x in project_gsp([np.array(v) for v in vectors], 0.5, check_finite=False):
            assert np.isnan(x).all()
    huge = np.full((2, 5), 1e308)  # the sum is infinite, the data is not
    huge[:, 0] = 1.5e308
    assert ch.gsp_score(project_gsp(huge, 0.99)) == pytest.approx(0.99, abs=1e-12)


def test_errors():
    for function in (lambda x: project_gsp(x, 0.5), ch.gsp_score):
        with pytest.raises(ValueError, match=r"x\[0\] is no array"):
            function([[1, [2]], [3, 4]])
        with pytest.raises(TypeError, match=r"x\[1\] must"):
            function([[1.0, 2.0], [1j, 2.0]])
    x = np.ones((2, 3))
    for bad in (-0.1, 1.1, np.nan, np.inf):
        with pytest.raises(ValueError, match=r"sparseness.*got"):
            project_gsp(x, bad)
    with pytest.raises(ValueError, match=r"one number.*\(2,\)"):
        project_gsp(x, [0.5, 0.6])
    for bad in (1j, "0.5", None, True):
        with pytest.raises(TypeError, match="sparseness"):
            project_gsp(x, bad)
    with pytest.raises(TypeError, match=r"x must have.*complex"):
        project_gsp(x.astype(complex), 0.5)
    with pytest.raises(TypeError, match=r"x\[1\] must have.*complex"):
        project_gsp([np.ones(3), np.ones(3, complex)], 0.5)
    with pytest.raises(TypeError, match="masked"):
        project_gsp(np.ma.masked_array(x), 0.5)
    with pytest.raises(np.exceptions.AxisError):
        project_gsp(x, 0.5, axis=2)
    with pytest.raises(TypeError, match="axis"):
        project_gsp(x, 0.5, axis=1.0)
    with pytest.raises(TypeError, match="workers"):
        project_gsp(x, 0.5, workers=1.5)
    with pytest.raises(ValueError, match="shape"):
        project_gsp(x, 0.5, out=np.ones(6))
    with pytest.raises(TypeError, match="out must be a list"):
        project_gsp(list(x), 0.5, out=np.ones((2, 3)))
    with pytest.raises(ValueError, match="as many arrays as x, 2, got 1"):
        project_gsp(list(x), 0.5, out=[np.ones(3)])
    with pytest.raises(ValueError, match=r"out\[1\].*dtype"):
        project_gsp(list(x), 0.5, out=[np.ones(3), np.ones(3, np.float32)])
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=r"^x\[1\] must be finite"):
            project_gsp([np.ones(3), np.array([1.0, bad, 2.0, 3.0]), np.full(3, bad)], 0.5)
        with pytest.raises(ValueError, match=r"^x must be finite"):
            project_gsp(x * bad, 0.5)
    out = np.ones(4)
    with pytest.raises(ValueError, match=r"out\[0\] and out\[1\] must not overlap"):
        project_gsp(list(x), 0.5, out=[out[:3], out[1:]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_results_that_would_lie_over_each_other(dtype, step):
    """Also where they are computed elsewhere, and copied: the last would be all that is left."""
    x = [make("gaussian", 6, seed).astype(dtype) for seed in range(4)]
    memory = np.full(99, 7.0, dtype)

    def out(*places):
        return [memory[40 + k :][: 6 * step : step] if step > 0 else memory[k : 40 + k][::step][:6]
                for k in places]  # fmt: skip

    with pytest.raises(ValueError, match=r"out\[1\] and out\[3\] must not overlap"):
        project_gsp(x, 0.5, out=out(0, 14, 28, 14 + 5 * abs(step)))
    with pytest.raises(ValueError, match=r"out\[0\] and out\[2\] must not overlap"):
        project_gsp(x, 0.5, out=out(28, 0, 28, 14))
    np.testing.assert_array_equal(memory, 7.0)
    goals = out(0, 14, 28, 14 + (1 if abs(step) == 2 else 6))  # one between another's entries
    for got, expected in zip(project_gsp(x, 0.5, out=goals), project_gsp(x, 0.5), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("sparseness", [1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("n", [2, 3, 10, 100])
def test_nearly_constant_vectors(n, sparseness):
    for seed in range(50):
        y = 1.0 + 1e-6 * np.random.default_rng(seed).standard_normal(n)
        _, info = project_gsp(y, sparseness, full_output=True)  # a warning would be an error
        assert info.sparseness == pytest.approx(sparseness, abs=1e-14)


@pytest.mark.parametrize(
    ("x", "got"),
    [
        ((np.ones(k) for k in (2, 3)), "generator"),
        ({"a": np.ones(3)}.values(), "dict_values"),
        ({"a": np.ones(3)}, "dict"),
        (None, "NoneType"),
        (np.array([np.ones(2), np.ones(3)], dtype=object), "one of dtype object"),
    ],
)
def test_what_is_neither_array_nor_list(x, got):
    for function in (lambda x: project_gsp(x, 0.5), ch.gsp_score):
        with pytest.raises(TypeError, match=f"x must be an array, or a list .*, got {got}$"):
            function(x)


def test_a_result_that_lies_among_those_of_a_strided_one():
    """Another one that is woven into it lies between."""
    memory = np.zeros(100)
    x = [np.arange(50.0), np.arange(2.0), np.arange(2.0)]
    out = [memory[::2], memory[11:15:2], memory[20:22]]
    with pytest.raises(ValueError, match=r"out\[0\] and out\[2\] must not overlap"):
        project_gsp(x, 0.5, out=out)
    out[2] = memory[21:25:2]
    expected = project_gsp(x, 0.5)
    for got, wanted in zip(project_gsp(x, 0.5, out=out), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e307, 1e-307])
def test_a_large_vector_that_is_not_the_first(scale):
    x = np.array([[4.0, -2.0, 1.0, 1.0], [3.0, 2.0, -1.0, 0.5]])
    x[1] *= scale
    first, one = project_gsp(x, 0.5, full_output=True)
    second, other = project_gsp(x[::-1], 0.5, full_output=True)
    np.testing.assert_array_equal(first, second[::-1])
    np.testing.assert_array_equal(one.threshold, other.threshold[::-1])
    assert abs(one.sparseness - 0.5) < 1e-12


def test_what_is_not_finite_takes_one_pass():
    _, info = project_gsp([[1.0, np.nan]], 0.5, check_finite=False, full_output=True)
    assert info.passes == 1


def test_workers_reach_every_pass(record_workers):
    asked = record_workers(gsp)
    for x in (np.arange(12.0).reshape(3, 4), [np.arange(4.0), np.arange(5.0)]):
        project_gsp(x, 0.5, workers=3)
    assert set(asked) == {3}


def test_floating_point_errors_that_raise_do_not_tell_of_the_report():
    x = np.array([[4.0, -2.0, 1.0, 1.0], [3.0, 2.0, -1.0, 0.5]]) * 1e-308
    _, wanted = project_gsp(x, 0.7, full_output=True)
    with np.errstate(all="raise"):
        _, info = project_gsp(x, 0.7, full_output=True)
    np.testing.assert_array_equal(info.threshold, wanted.threshold)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_ties_in_several_pieces(share):
    """The largest entries are counted over all pieces: the goal lies on their jump."""
    n, places, excess = 50_000, [3, 20_000, 40_000], share * (math.sqrt(3.0) - 1.0)
    x = np.random.default_rng(3).uniform(-1.0, 1.0, n)
    x[places] = 2.0
    sparseness = 1.0 - excess / (math.sqrt(n) - 1.0)
    (z,), info = project_gsp([x], sparseness, full_output=True)
    assert info.converged
    assert info.sparseness == pytest.approx(sparseness, abs=1e-13)
    assert set(np.flatnonzero(z)) <= set(places)
    assert np.abs(z).sum() / np.linalg.norm(z) == pytest.approx(1.0 + excess, rel=1e-9)


def test_ties_in_several_pieces_in_place():
    """A vector of ties is written once, however many pieces it has."""
    n, places = 50_000, [3, 20_000, 40_000]
    x = np.random.default_rng(3).uniform(-1.0, 1.0, n)
    x[places] = 2.0
    sparseness = 1.0 - 0.5 * (math.sqrt(3.0) - 1.0) / (math.sqrt(n) - 1.0)
    (expected,) = project_gsp([x], sparseness)
    own = x.copy()
    project_gsp([own], sparseness, out=[own])
    np.testing.assert_array_equal(own, expected)


def test_a_tuple_of_vectors_is_a_list_of_them():
    parts = np.array([3.0, 1.0, 0.5]), np.array([[2.0, -1.0]])
    assert ch.gsp_score(parts) == ch.gsp_score(list(parts))
    results = ch.project_gsp(parts, 0.6)
    assert type(results) is list
    for result, expected in zip(results, ch.project_gsp(list(parts), 0.6), strict=True):
        np.testing.assert_array_equal(result, expected, strict=True)


def test_all_vectors_of_a_list_count_for_the_workers(monkeypatch):
    """However small the last one is."""
    monkeypatch.setattr(gsp, "_PARALLEL_FROM", 8000)
    rng, asked = np.random.default_rng(0), []

    def run_split(task, count, workers):
        asked.append(workers)
        task(0, count)

    monkeypatch.setattr(gsp, "run_split", run_split)
    for sizes, expected in (((1000, 5), 3), ((5, 1000), 3), ((500, 495), 1)):
        asked.clear()
        gsp.project_gsp([rng.standard_normal(n) for n in sizes], 0.5, workers=3)
        assert set(asked) == {expected}


def test_kernels_give_python_no_named_tuples():
    """To make one Numba runs Python code, and an interrupt there ends the process."""
    project_gsp(np.arange(12.0).reshape(3, 4), 0.7)
    project_gsp(np.arange(12.0).reshape(3, 4), 1.0)
    for kernel in (gsp.kernels.start, gsp.kernels.advance, gsp.kernels.one_each):
        assert kernel.nopython_signatures
        for signature in kernel.nopython_signatures:
            assert not isinstance(signature.return_type, numba.types.BaseNamedTuple)
