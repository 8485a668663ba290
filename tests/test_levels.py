"""level_for_nnz and level_for_sparseness: levels that keep their promise."""

import decimal
import re
import tracemalloc

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS, FLOAT32, SUBNORMAL, float32, make
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import njit

import conehoyer as ch
from conehoyer import _math as m
from conehoyer import bilevel
from conehoyer._cpu import engine, levels
from conehoyer._cpu.arrays import LOG, WANTED
from conehoyer._jit import entry


def counts(x, nnz, axis, nonneg=False):
    level = ch.level_for_nnz(x, nnz, axis=axis, nonneg=nonneg)
    return np.count_nonzero(ch.project_cai(x, level, axis=axis, nonneg=nonneg), axis=axis)


def test_ten_thousand_random_cases_never_keep_too_many():
    """Rows of random batches: every axis, both dtypes, with and without ties."""
    rng = np.random.default_rng(0)
    cases = 0
    seed = 0
    everything = list(DISTRIBUTIONS)
    while cases < 10_000:
        seed += 1
        name = everything[seed % len(everything)]
        ndim = 1 + seed % 3
        shape = tuple(rng.integers(1, 40, ndim))
        size = int(np.prod(shape))
        if seed % 2 and name in FLOAT32:
            x = float32(name, size, seed).reshape(shape)
        else:
            x = make(name, size, seed).reshape(shape)
        axis = [None, *range(-ndim, ndim)][seed % (2 * ndim + 1)]
        n = size if axis is None else shape[axis]
        k = int(rng.integers(1, n + 1))
        nonneg = seed % 5 == 0
        got = counts(x, k, axis, nonneg)
        assert np.all(got <= k), (name, shape, axis, k, x.dtype, nonneg, seed)
        cases += np.size(got)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_plain_vectors_of_each_size(dtype):
    """Single vectors: 233 of 2,000 failed at the rounded edge itself."""
    rng = np.random.default_rng(1)
    for case in range(600):
        n = int(rng.integers(2, 200))
        k = int(rng.integers(1, n + 1))
        x = rng.standard_normal(n).astype(dtype)
        assert counts(x, k, -1) <= k, (case, n, k)


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, *SUBNORMAL])
def test_the_level_is_the_largest(name):
    """It lies at the edge, not somewhere safe below it."""
    for n in (2, 7, 100, 9000):
        x = make(name, n)
        for k in sorted({1, 2, n // 10 + 1, n // 2 + 1, n}):
            edge = oracle.edge_for_nnz(x, k)
            got = ch.level_for_nnz(x, k)
            assert 1 <= got <= n
            assert float(edge) * (1 - 1e-9) <= got <= float(edge) * (1 + 1e-12), (n, k)
            kept = np.count_nonzero(ch.project_cai(x, got))
            assert kept <= k
            if name in SUBNORMAL or np.count_nonzero(x) <= k:
                continue  # small entries round to zero; or nothing has to go
            a = np.sort(np.abs(x))[::-1]
            if a[0] == a[k]:
                assert kept == k
            else:
                # all that stand clear of the edge (ties with entry k + 1 do not)
                clear = a[k] + 1e-10 * float(np.mean((a - a[k])[a > a[k]], dtype=np.longdouble))
                assert kept >= np.count_nonzero(a > clear), (n, k)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("factor", [0.0, 0.01, 100.0])
def test_a_sample_of_nothing_but_exceptions(dtype, factor):
    n = 20_000
    places = np.empty(levels.RUNS * engine.RUN)
    entry(engine.take_sample)(np.arange(n, dtype=np.float64), True, places)
    x = np.random.default_rng(4).standard_normal(n).astype(dtype)
    x[places.astype(int)] *= factor
    a = np.sort(np.abs(x).astype(np.float64))[::-1]
    for k in (1, 500, np.count_nonzero(x) * 2 // 5, np.count_nonzero(x) - 1):
        expected = oracle.hoyer_score(np.maximum(a - a[k], 0))
        assert ch.level_for_nnz(x, k) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("run", [1, 100, 3000])
def test_a_sample_that_misleads(dtype, run):
    """Zeros, or small entries, that lie side by side: a sample may see too many, or none."""
    rng = np.random.default_rng(3)
    for n in (20_000, 200_000):
        for part in (0.02, 0.5, 0.98):
            keep = np.repeat(rng.random(-(-n // run)) < part, run)[:n]
            for floor in (0.0, 0.1):
                x = (rng.standard_normal(n) * np.where(keep, 1.0, floor)).astype(dtype)
                a = np.sort(np.abs(x))[::-1]
                nonzeros = np.count_nonzero(x)
                for k in {1, max(nonzeros // 2, 1), max(nonzeros - 1000, 1), max(nonzeros - 1, 1)}:
                    kept = np.count_nonzero(ch.project_cai(x, ch.level_for_nnz(x, k)))
                    clear = a[k] * (1.0 + (1e-4 if dtype is np.float32 else 1e-9))
                    assert np.count_nonzero(a > clear) <= kept <= k, (n, part, floor, k)


@njit
def edges(x, ranks, found):
    room = np.empty(x.size, x.dtype)
    for i in range(ranks.size):
        found[i] = levels._edge(x, ranks[i], room)


@njit
def bisected(x, ranks, found):
    for i in range(ranks.size):
        found[i] = levels._bisected(x, ranks[i], np.empty(x.size, x.dtype))


def _peaks(x):
    """Large entries at a period."""
    step = max(x.size // 128, 1)
    x[::step] *= 1000.0
    return x


ORDERS = {
    "random": lambda x: x,
    "rising": np.sort,
    "falling": lambda x: -np.sort(-x),
    "ties": lambda x: np.round(x),
    "all but a few tie": lambda x: np.where(np.abs(x) < 2.0, 1.0, x),
    "mostly zeros": lambda x: np.where(np.abs(x) < 1.6, 0.0, x),
    "peaks": _peaks,
    "a tail": lambda x: np.sign(x) * x**2,
    "even": lambda x: np.arange(x.size, 0.0, -1.0),
    "far away": lambda x: 1.0 + 1e-4 * x,
    "two clusters": lambda x: np.where(x < 0.0, 1.0, 10.0) + 1e-4 * x,
    "powers": lambda x: x**9,
    "a few far out": lambda x: np.where(np.abs(x) > 2.5, 1e20 * x, x),
    "many orders": lambda x: 10.0 ** (12.0 * x),
    "subnormal": lambda x: x * 1e-43,
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ORDERS)
def test_the_entry_at_the_edge(order, dtype):
    rng = np.random.default_rng(11)
    for n in (1, 2, 15, 31, 32, 33, 34, 47, 64, 100, 256, 257, 1000, 5000, 16_383, 16_384, 50_000):
        with np.errstate(over="ignore", under="ignore"):
            x = ORDERS[order](rng.standard_normal(n)).clip(-1e30, 1e30).astype(dtype)
        ranks = np.unique(rng.integers(0, n + 2, 40))
        ranks = np.append(ranks, [0, 1, n // 20, n - 1, n])
        sizes = np.append(-np.sort(-np.abs(x)), [0.0, 0.0, 0.0]).astype(dtype)
        found = np.empty(ranks.size, dtype)
        edges(x, ranks, found)
        np.testing.assert_array_equal(found, sizes[ranks])
        bisected(x, ranks, found)
        np.testing.assert_array_equal(found, sizes[ranks])


@njit
def bounds(x, rank):
    return levels._bounds(x, rank)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("order", ORDERS)
def test_what_lies_between_the_bounds_of_the_edge(order, dtype):
    """They are bounds of all data, and near where entries differ and are not in two places."""
    rng = np.random.default_rng(12)
    for n in (33, 100, 1000, 20_000):
        with np.errstate(over="ignore", under="ignore"):
            x = ORDERS[order](rng.standard_normal(n)).clip(-1e30, 1e30).astype(dtype)
        sizes, nonzeros = np.abs(x), np.count_nonzero(x)
        for rank in (0, 1, n // 100, n // 30, n // 10, n // 3, n // 2, n - 1, n):
            lo, hi, above_lo, above_hi = bounds(x, rank)
            assert above_lo == np.count_nonzero(sizes > lo)
            assert above_hi == np.count_nonzero(sizes > hi)
            if rank >= nonzeros:
                assert above_lo <= rank
                continue
            assert above_hi <= rank < above_lo
            if order not in ("ties", "all but a few tie", "two clusters", "subnormal"):
                assert above_lo - above_hi <= max(levels.FEW, n // levels.PART)


def test_enough_room_gives_n():
    assert ch.level_for_nnz(np.array([1.0, 2.0, 3.0]), 3) == 3
    assert ch.level_for_nnz(np.array([1.0, 2.0, 3.0]), 50) == 3
    assert ch.level_for_nnz(np.array([0.0, 2.0, 0.0, 1.0]), 2) == 4
    assert ch.level_for_nnz(np.zeros(4), 1) == 4
    np.testing.assert_array_equal(
        ch.level_for_nnz(np.array([[0.0, 2.0, 0.0], [1.0, 2.0, 3.0]]), 1) == 3, [True, False]
    )


def test_ties_at_the_top_give_k():
    x = np.array([2.0, -2.0, 2.0, 2.0, 1.0])
    for k in (1, 2, 3, 4):
        assert ch.level_for_nnz(x, k) == pytest.approx(k, rel=1e-9)
        assert np.count_nonzero(ch.project_cai(x, ch.level_for_nnz(x, k))) == k


def test_ties_at_the_top_give_k_exactly():
    for value in np.random.default_rng(2).random(30):
        for k in (3, 7, 60):
            x = np.append(np.full(k, value), [value / 3, 0.1 * value])
            assert ch.level_for_nnz(x, k) == k


def test_ties_at_the_top_and_a_grain_of_dust():
    # Within the slack of float32 the vector has score 2 already, with three nonzeros.
    x = np.array([0.0, 1.0, 1.0, 1e-8], np.float32)
    assert np.count_nonzero(ch.project_cai(x, ch.level_for_nnz(x, 2))) == 2


def test_many_rows_are_taken_in_parts():
    x = np.random.default_rng(1).standard_normal((3000, 500))
    counts = np.random.default_rng(2).integers(1, 500, 3000)
    expected = [ch.level_for_nnz(row, k) for row, k in zip(x, counts, strict=True)]
    tracemalloc.start()
    found = ch.level_for_nnz(x, counts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, expected)
    assert peak < x.nbytes / 4


def test_nnz_broadcasts_and_the_shape_is_the_slices():
    x = make("gaussian", 60).reshape(3, 4, 5)
    k = np.array([1, 2, 3, 4])
    level = ch.level_for_nnz(x, k, axis=2)
    assert level.shape == (3, 4)
    assert level.dtype == np.float64
    kept = np.count_nonzero(ch.project_cai(x, level, axis=2), axis=2)
    np.testing.assert_array_equal(kept, np.broadcast_to(k, (3, 4)))
    assert np.ndim(ch.level_for_nnz(x, 7, axis=None)) == 0


@pytest.mark.parametrize("nnz", [0, -3])
def test_nnz_below_one(nnz):
    with pytest.raises(ValueError, match=rf"nnz.*{nnz}"):
        ch.level_for_nnz(np.ones(4), nnz)


@pytest.mark.parametrize("nnz", [1.5, "2", None, np.nan])
def test_nnz_must_be_an_integer(nnz):
    with pytest.raises((TypeError, ValueError), match="nnz"):
        ch.level_for_nnz(np.ones(4), nnz)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(max_dims=3, max_side=12),
        elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=32)),
    ),
    st.data(),
)
def test_never_too_many_on_anything_hypothesis_finds(x, data):
    axis = data.draw(st.sampled_from([None, *range(-x.ndim, x.ndim)]))
    n = x.size if axis is None else x.shape[axis]
    k = data.draw(st.integers(1, n + 1))
    assert np.all(counts(x, k, axis, data.draw(st.booleans())) <= k)


@pytest.mark.parametrize("name", ["gaussian", "integers", "near_constant", "wide"])
def test_nonneg_counts_positive_entries_only(name):
    for n in (5, 400, 30_000):
        x = make(name, n)
        x[: n // 3] *= -3.0  # many large ones that do not count
        for k in (1, n // 10 + 1, n // 2 + 1, n):
            level = ch.level_for_nnz(x, k, nonneg=True)
            assert level == ch.level_for_nnz(np.maximum(x, 0.0), k)
            kept = np.count_nonzero(ch.project_cai(x, level, nonneg=True))
            assert kept == np.count_nonzero(ch.project_cai(np.maximum(x, 0.0), level))
    assert ch.level_for_nnz(-np.ones(4), 1, nonneg=True) == 4


def test_level_for_sparseness():
    for n in (1, 2, 10, 10**6):
        assert ch.level_for_sparseness(0.0, n) == pytest.approx(n, rel=1e-14)
        assert ch.level_for_sparseness(1.0, n) == pytest.approx(1, rel=1e-14)
        for s in (0.1, 0.5, 0.99):
            expected = oracle.level_for_sparseness(s, n)
            assert abs(ch.level_for_sparseness(s, n) / expected - 1) <= 1e-13
    x = make("gaussian", 50)
    reached = ch.project_cai(x, ch.level_for_sparseness(0.8, 50))
    assert ch.hoyer_sparseness(reached) == pytest.approx(0.8, rel=1e-12)


def test_level_for_sparseness_broadcasts():
    got = ch.level_for_sparseness(np.array([0.0, 0.5, 1.0]), 9)
    assert got.shape == (3,)
    np.testing.assert_allclose(got, [9, 4, 1], rtol=1e-14)


def test_level_of_sparseness_in_twice_the_digits():
    """Against 60 decimal digits: the level, and how far it lies below n."""
    with decimal.localcontext(prec=60):
        for seed in range(300):
            rng = np.random.default_rng(seed)
            n = int(10.0 ** rng.uniform(0.4, 7.0))
            s = float(rng.choice([rng.random(), 10.0 ** rng.uniform(-20.0, 0.0)]))
            root = decimal.Decimal(n).sqrt()
            exact = (root - decimal.Decimal(s) * (root - 1)) ** 2
            level, rest = m.level_of_sparseness(s, float(n))
            assert level < n
            assert abs(rest) <= 2.0**-52 * level
            found = decimal.Decimal(level) + decimal.Decimal(rest)
            assert abs(found - exact) <= decimal.Decimal(2.0**-98) * n
            assert ch.level_for_sparseness(s, n) == level + rest
    assert m.level_of_sparseness(0.0, 7.0) == (7.0, 0.0)
    assert m.level_of_sparseness(1.0, 7.0) == (1.0, 0.0)
    assert m.level_of_sparseness(0.5, 1.0) == (1.0, 0.0)


@pytest.mark.parametrize("sparseness", [-0.1, 1.5, np.nan])
def test_sparseness_outside_its_range(sparseness):
    with pytest.raises(ValueError, match=rf"sparseness.*{sparseness}"):
        ch.level_for_sparseness(sparseness, 10)


def test_length_below_one():
    with pytest.raises(ValueError, match=r"\bn\b.*0"):
        ch.level_for_sparseness(0.5, 0)


@pytest.mark.parametrize("count", [2**63 - 1024, 2**63 - 1, np.uint64(2**64 - 1)])
def test_counts_beyond_the_length(count):
    assert ch.level_for_nnz([3.0, 2.0, 1.0], count) == 3.0
    assert ch.level_for_groups(np.diag([3.0, 2.0, 1.0]), count) == 3.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_beside_giants_as_many_are_kept_as_the_slack_allows(dtype, seed):
    y = np.exp(8 * np.random.default_rng(seed).standard_normal(4096)).astype(dtype)
    for k in (3500, 4095):
        edge = oracle.hoyer_score(np.maximum(y - np.sort(y)[-k - 1].astype(np.longdouble), 0))
        slack = 1.2e-6 if dtype == np.float32 else 1.2e-14
        possible = np.count_nonzero(ch.project_cai(y, float(edge) * (1 - slack)))
        kept = np.count_nonzero(ch.project_cai(y, ch.level_for_nnz(y, k)))
        assert 0.98 * possible <= kept <= k


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [3, 20_000])
@pytest.mark.parametrize("nonneg", [False, True])
def test_data_must_be_finite(bad, n, nonneg):
    x = np.arange(1.0, n + 1)
    x[n // 2] = bad
    with pytest.raises(ValueError, match=r"^x must be finite, got NaN or inf$"):
        ch.level_for_nnz(x, 2, nonneg=nonneg)


def test_a_level_of_one_vector_is_a_number():
    assert type(ch.level_for_nnz(np.arange(5.0), 2)) is np.float64
    assert type(ch.level_for_nnz(np.eye(3), 2, axis=None)) is np.float64
    assert type(ch.level_for_groups(np.eye(3), 2)) is np.float64
    assert type(ch.level_for_sparseness(0.5, 9)) is np.float64


@pytest.mark.parametrize("value", [True, [False, True]])
def test_sparseness_must_be_real_numbers(value):
    with pytest.raises(TypeError, match="sparseness must be real numbers"):
        ch.level_for_sparseness(value, 9)


@pytest.mark.parametrize(("sparseness", "n"), [([0.5, 1.75], 9), (0.5, [9, -2])])
def test_the_value_out_of_range_is_named(sparseness, n):
    with pytest.raises(ValueError, match=r"(1\.75|-2)$"):
        ch.level_for_sparseness(sparseness, n)


@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("groups", ["columns", "rows", (2, 3)])
def test_levels_of_many_matrices_are_found_together(inner, dtype, groups, monkeypatch):
    """And are those of each by itself, in whatever unit each has to be measured."""
    rng = np.random.default_rng(0)
    units = np.array([[1.0, 1e-30, 1e30], [1e-38, 3.0, 1e37]])[..., None, None]
    y = (rng.standard_normal((2, 3, 6, 8)) * units).astype(dtype)
    number = rng.integers(1, 5, (2, 3))
    expected = [
        [ch.level_for_groups(z, k, groups=groups, inner=inner) for z, k in zip(*pair, strict=True)]
        for pair in zip(y, number, strict=True)
    ]
    calls, levels_of_rows = [], bilevel.levels_of_rows
    monkeypatch.setattr(
        bilevel, "levels_of_rows", lambda *args: calls.append(1) or levels_of_rows(*args)
    )
    result = ch.level_for_groups(y, number, groups=groups, inner=inner)
    np.testing.assert_array_equal(result, expected)
    assert len(calls) == 1


def test_a_matrix_of_many_must_be_finite():
    y = np.ones((3, 4, 5))
    y[1, 2, 3] = np.inf
    for inner in ("linf", "l2", "l1"):
        with pytest.raises(ValueError, match=r"^x must be finite, got NaN or inf$"):
            ch.level_for_groups(y, 2, inner=inner)


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 4)])
def test_levels_of_nothing(shape):
    result = ch.level_for_groups(np.ones(shape), 2)
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, np.full(shape[:-2], max(shape[-1], 1)))


@pytest.mark.parametrize("margin", [0.0, 2.0**-53, 2.0**-32, 1.1e-6])
def test_levels_are_lowered_together(margin):
    given = np.array([1.0, 1.0 + 2.0**-52, 2.5, 1e5 / 3.0])
    numbers, result, table = np.array([3, 0, 2]), np.full(4, -1.0), np.zeros((3, LOG))
    levels.lower(given, margin, numbers, result, table)
    expected = np.array([m.lowered(level, margin) for level in given])
    np.testing.assert_array_equal(table[:, WANTED], expected[numbers])
    np.testing.assert_array_equal(result, np.where(np.arange(4) == 1, -1.0, expected))


def test_rows_that_keep_too_many_are_found_by_their_numbers():
    counts, result = np.array([9.0, 2.0, 9.0, 1.0, 3.0, 1.0]), np.array([1, 2.5, 1, 1.5, 4, 1])
    out = np.array([[1, -2, 3, 0], [0, 1, 0, -1], [1, 2, 3, 0], [1, 1, 0, 0]], np.float64)
    numbers = np.array([1, 3, 4, 5])  # the third keeps as many as wanted, the last is at level 1
    assert levels.find_dense(out, counts, result, numbers) == 2
    np.testing.assert_array_equal(numbers[:2], [1, 3])
    numbers = np.array([4, 3])
    assert levels.find_dense(out[[2, 1]], counts, result, numbers) == 1
    assert numbers[0] == 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [100, 3_000, 40_000])
@pytest.mark.parametrize("beyond", [1, 2**40, np.uint64(2**64 - 1)])
def test_counts_beyond_a_long_row(dtype, n, beyond):
    x = np.random.default_rng(n).standard_normal((2, n)).astype(dtype)
    count = n + beyond if isinstance(beyond, int) else beyond
    np.testing.assert_array_equal(ch.level_for_nnz(x, np.array([count, count])), [n, n])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nan_counts_as_a_nonzero_wherever_it_stands(dtype):
    for n in (1, 3, 8, 16, 19, 33):
        x = np.zeros((n, n), dtype)
        np.fill_diagonal(x, np.nan)
        found = np.zeros(n, np.int64)
        levels.count_nonzeros(x, found)
        np.testing.assert_array_equal(found, 1)
        _, info = ch.project_cai(x[0], 1.0, check_finite=False, full_output=True)
        assert info.nnz == n  # all of the result is NaN


def test_many_slices_of_which_only_positive_entries_count(monkeypatch):
    """They are looked at some at a time."""
    y = np.random.default_rng(0).standard_normal((40, 30))
    together = ch.level_for_nnz(y, 5, nonneg=True)
    monkeypatch.setattr("conehoyer.levels._BYTES", 7 * 30 * 8)
    np.testing.assert_array_equal(ch.level_for_nnz(y, 5, nonneg=True), together)
    x = ch.project_cai(y, together, nonneg=True)
    assert (np.count_nonzero(x, axis=1) == 5).all()


def test_slices_of_no_entries_have_a_level():
    for shape in (3, 0), (0, 4), (0,):
        assert ch.level_for_nnz(np.ones(shape), 2).shape == shape[:-1]


def test_lengths_that_no_array_has():
    assert ch.level_for_nnz(np.array([3.0, 1.0]), 10**30) == 2
    for n in (2**63, -(10**30)):
        with pytest.raises(
            ValueError, match=re.escape(f"n must lie between -2**63 and 2**63, got {n}")
        ):
            ch.level_for_sparseness(0.5, n)
    assert ch.level_for_sparseness(0.0, 2**63 - 1) == pytest.approx(2.0**63)


def test_the_least_sparseness_beyond_one_is_refused():
    for bad in (np.nextafter(1.0, 2.0), -5e-324):
        with pytest.raises(ValueError, match=r"sparseness must be in \[0, 1\]"):
            ch.level_for_sparseness(bad, 16)
