import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import conehoyer as ch
from conehoyer import NMFResult, nmf, nmf_hals, projections

UNIT = np.finfo(float).eps


def planted(m=60, n=40, rank=4, seed=0, density=0.6):
    rng = np.random.default_rng(seed)
    w, h = (rng.random(s) * (rng.random(s) < density) for s in ((m, rank), (rank, n)))
    return w @ h


def noisy(m=60, n=40, rank=4, seed=0):
    return planted(m, n, rank, seed) + 0.1 * np.random.default_rng(seed).random((m, n))


def factors(m, n, rank, seed=1):
    rng = np.random.default_rng(seed)
    return rng.random((m, rank)), rng.random((rank, n))


def textbook(x, w, h, iterations, sweeps=(1, 1)):
    """HALS as in the books: each column of W, then each row of H, from the whole residual."""
    w, h = w.copy(), h.copy()
    errors = [np.linalg.norm(x - w @ h)]
    columns = list(range(w.shape[1]))
    for _ in range(iterations):
        for k in sweeps[0] * columns:
            without = x - w @ h + np.outer(w[:, k], h[k])
            w[:, k] = np.maximum(without @ h[k] / (h[k] @ h[k]), 0)
        for k in sweeps[1] * columns:
            without = x - w @ h + np.outer(w[:, k], h[k])
            h[k] = np.maximum(w[:, k] @ without / (w[:, k] @ w[:, k]), 0)
        errors.append(np.linalg.norm(x - w @ h))
    return w, h, np.array(errors)


def run(x, rank, **options):
    """Iterations alone, without a test of convergence."""
    return nmf_hals(x, rank, **({"tol": 0, "max_iter": 30, "rng": 0} | options))


def kkt_residual(x, result):
    """As the docstring says: projected gradient steps of all columns and rows."""
    gap, total = x - result.W @ result.H, 0.0
    for w, h in zip(result.W.T, result.H, strict=True):
        step = np.maximum(w + gap @ h / (h @ h), 0) - w
        total += step @ step * (h @ h)
        step = np.maximum(h + w @ gap / (w @ w), 0) - h
        total += step @ step * (w @ w)
    return np.sqrt(total) / np.linalg.norm(x)


def assert_never_rises(result, norm):
    errors = result.error_history
    assert np.all(errors[1:] <= errors[:-1] * (1 + 1e-12) + 4 * UNIT * norm)


@pytest.mark.parametrize(
    ("m", "n", "rank"), [(60, 40, 4), (5, 130, 2), (200, 7, 3), (64, 64, 1), (90, 70, 9)]
)
def test_against_the_textbook(m, n, rank):
    x = noisy(m, n)
    start = tuple(0.5 * f for f in factors(m, n, rank))
    for count in (1, 2, 10):
        w, h, errors = textbook(x, *start, count)
        got = run(x, rank, init=start, max_iter=count, accelerated=False)
        np.testing.assert_allclose(got.W, w, atol=1e-9 * w.max())
        np.testing.assert_allclose(got.H, h, atol=1e-9 * h.max())
        np.testing.assert_allclose(got.error_history, errors, rtol=1e-10)
        assert got.n_iter == count
        assert got.reseeded == 0


@pytest.mark.parametrize("accelerated", [False, True])
@pytest.mark.parametrize("init", ["nndsvd", "random"])
def test_the_error_never_rises(accelerated, init):
    for x in (noisy(), planted(), noisy(300, 200, 6)):
        got = run(x, 4, init=init, accelerated=accelerated, max_iter=200)
        assert_never_rises(got, np.linalg.norm(x))
        assert got.error == got.error_history[-1]
        assert got.error_history.shape == (201,)
        assert got.error == pytest.approx(np.linalg.norm(x - got.W @ got.H), rel=1e-10)


def test_acceleration_is_ahead_per_iteration():
    x = noisy(300, 200, 6)
    start = factors(300, 200, 6)
    slow = run(x, 6, init=start, accelerated=False)
    fast = run(x, 6, init=start)
    assert fast.error_history[5] < slow.error_history[5]


def test_an_exact_factorisation_is_found():
    x = planted(40, 30, 3)
    got = nmf_hals(x, 3, tol=1e-9, max_iter=20_000)
    assert got.converged
    assert got.kkt_residual <= 1e-9
    assert got.error <= 1e-7 * np.linalg.norm(x)
    assert "tol" in got.message


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("distance", [1e-4, 1e-8, 1e-12])
def test_small_errors_are_right(sparse, distance):
    w, h = factors(50, 40, 3)
    x = w @ h
    w *= 1 + distance * np.random.default_rng(2).random(w.shape)
    given = scipy.sparse.csr_array(x) if sparse else x
    for count in (0, 3):
        got = run(given, 3, init=(w, h), max_iter=count)
        wide = np.longdouble
        expected = np.linalg.norm((x.astype(wide) - got.W.astype(wide) @ got.H).astype(float))
        assert expected < 2 * distance * np.linalg.norm(x)
        assert got.error == pytest.approx(expected, rel=1e-6 if distance > 1e-10 else 0.5)


def test_the_kkt_residual_is_what_the_docstring_says():
    x = noisy()
    got = run(x, 4, max_iter=7)
    assert got.kkt_residual == pytest.approx(kkt_residual(x, got), rel=1e-9)
    scaled = run(x, 4, init=(4.0 * got.W, got.H / 4.0), max_iter=0)
    assert scaled.kkt_residual == pytest.approx(got.kkt_residual, rel=1e-9)


@pytest.mark.parametrize("kind", ["csr_array", "csc_array", "csr_matrix", "coo_array"])
def test_sparse_equals_dense(kind):
    x = noisy() * (np.random.default_rng(3).random((60, 40)) < 0.2)
    for init in ("nndsvd", factors(60, 40, 4)):
        dense = run(x, 4, init=init, accelerated=False, max_iter=10)
        got = run(getattr(scipy.sparse, kind)(x), 4, init=init, accelerated=False, max_iter=10)
        np.testing.assert_allclose(got.W, dense.W, atol=1e-10)
        np.testing.assert_allclose(got.H, dense.H, atol=1e-10)
        np.testing.assert_allclose(got.error_history, dense.error_history, rtol=1e-10)


def test_duplicate_entries_of_a_sparse_matrix_are_added():
    x = scipy.sparse.coo_array(([1.0, -0.5, 2.0], ([0, 0, 1], [0, 0, 1])), shape=(2, 2)).tocsr()
    assert run(x, 2).error == pytest.approx(0.0, abs=1e-12)
    raw = scipy.sparse.csr_array(([1.0, -0.5, 2.0], [0, 0, 1], [0, 2, 3]), shape=(2, 2))
    assert run(raw, 2).error == pytest.approx(0.0, abs=1e-12)
    assert raw.nnz == 3


def test_dtypes():
    x = noisy()
    got = run(x.astype(np.float32), 4, init="random")
    assert got.W.dtype == got.H.dtype == np.float32
    rises = np.diff(got.error_history) / got.error_history[:-1]
    assert rises.max() < 1e-5
    x32 = x.astype(np.float32).astype(float)
    assert got.error == pytest.approx(np.linalg.norm(x32 - got.W.astype(float) @ got.H), rel=1e-9)
    whole = np.arange(12).reshape(4, 3)
    for dtype in (np.int32, bool, np.float16, ">f8"):
        data = whole.astype(dtype)
        got = run(data, 2)
        expected = np.float16 if dtype is np.float16 else np.float64
        assert got.W.dtype == expected
        assert got.W.shape == (4, 2)
    assert run(scipy.sparse.csr_array(x.astype(np.float32)), 2).H.dtype == np.float32


def test_layouts_and_inputs_are_left_alone():
    x = noisy()
    w, h = factors(60, 40, 4)
    before = x.copy(), w.copy(), h.copy()
    expected = run(x, 4, init=(w, h), max_iter=5)
    for a, b in zip((x, w, h), before, strict=True):
        np.testing.assert_array_equal(a, b)
    wide = np.zeros((120, 80))
    wide[::2, ::2] = x
    readonly = x.copy()
    readonly.flags.writeable = False
    for other in (np.asfortranarray(x), wide[::2, ::2], readonly, x.tolist()):
        got = run(other, 4, init=(np.asfortranarray(w), h[:, ::-1][:, ::-1]), max_iter=5)
        np.testing.assert_allclose(got.W, expected.W, rtol=1e-9, atol=1e-12)
    assert got.W.flags.c_contiguous
    assert got.H.flags.c_contiguous


@pytest.mark.parametrize("levels", [{}, {"level_w": 300.0, "level_h": 20.0}])
def test_workers_give_the_same_bits(levels):
    x = noisy(5000, 40, 4)
    one = run(x, 4, max_iter=5, **levels)
    for workers in (2, 3):
        other = run(x, 4, max_iter=5, workers=workers, **levels)
        np.testing.assert_array_equal(one.W, other.W)
        np.testing.assert_array_equal(one.H, other.H)
        np.testing.assert_array_equal(one.error_history, other.error_history)


def test_a_dead_component_is_reseeded():
    x = noisy()
    w, h = factors(60, 40, 4)
    w[:, 1] = 0
    h[1] = 0
    got = run(x, 4, init=(w, h), max_iter=50)
    assert got.reseeded == 1
    assert "1 dead component(s) reseeded" in got.message
    assert got.W[:, 1].any()
    assert got.H[1].any()
    assert_never_rises(got, np.linalg.norm(x))
    assert run(x, 4, init=factors(60, 40, 4)).reseeded == 0
    # Nothing is left to start from.
    exact = run(np.ones((6, 5)), 2, init=(np.eye(6, 2) + 1, np.array([[1.0] * 5, [0.0] * 5])))
    assert exact.error <= 1e-14


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
@pytest.mark.parametrize("size", [1e-150, 1e-30, 1.0, 1e151])
def test_the_size_of_what_a_zero_row_of_h_multiplies_does_not_matter(scale, size):
    x, root = noisy(), np.sqrt(scale)
    w, h = factors(60, 40, 4)
    h[1] = 0
    for count in (0, 3):
        wanted = run(x, 4, init=(w, h), max_iter=count)
        w0 = w * root
        w0[:, 1] *= size
        got = run(x * scale, 4, init=(w0, h * root), max_iter=count)
        error = np.linalg.norm(x - got.W / root @ (got.H / root))
        np.testing.assert_allclose(got.error / scale, error, rtol=1e-12)
        np.testing.assert_allclose(got.error_history / scale, wanted.error_history, rtol=1e-9)
        np.testing.assert_allclose(got.kkt_residual, wanted.kkt_residual, rtol=1e-6)


def test_starts():
    x = noisy()
    np.testing.assert_array_equal(run(x, 3, rng=0).W, run(x, 3, rng=1).W)
    first = run(x, 3, init="random", rng=5)
    again = run(x, 3, init="random", rng=np.random.default_rng(5))
    np.testing.assert_array_equal(first.W, again.W)
    start = nmf_hals(x, 3, max_iter=0, tol=0)
    assert start.n_iter == 0
    assert start.error < np.linalg.norm(x)
    fitted = run(x, 3, init=(None, factors(60, 40, 3)[1]))
    listed = run(x, 3, init=[None, factors(60, 40, 3)[1]])
    np.testing.assert_array_equal(listed.W, fitted.W)
    assert fitted.error_history[0] == pytest.approx(np.linalg.norm(x))
    for init in ("nndsvd", "random"):  # more components than either side has entries
        got = run(x[:5, :4], 7, init=init, max_iter=300)
        assert got.W.shape == (5, 7)
        assert got.error < 1e-3


@pytest.mark.parametrize("accelerated", [False, True])
def test_encoding_is_nonnegative_least_squares(accelerated):
    x = np.random.default_rng(4).random((20, 15))
    h = np.random.default_rng(5).random((4, 15))
    for w0 in (None, np.ones((20, 4))):
        got = nmf_hals(
            x, 4, init=(w0, h), update_h=False, tol=1e-13, max_iter=5000, accelerated=accelerated
        )
        expected = [scipy.optimize.nnls(h.T, row)[0] for row in x]
        np.testing.assert_allclose(got.W, expected, atol=1e-6)
        np.testing.assert_array_equal(got.H, h)
        assert got.converged
        assert_never_rises(got, np.linalg.norm(x))
    empty = h.copy()
    empty[2] = 0
    got = run(x, 4, init=(np.ones((20, 4)), empty), update_h=False)
    assert not got.W[:, 2].any()


def test_levels_hold():
    x = noisy(80, 50, 4)
    level_h = np.array([5.0, 10.0, 20.0, 50.0])
    for options in (
        {"level_w": 20.0},
        {"level_h": level_h},
        {"level_w": 20.0, "level_h": level_h, "accelerated": False},
    ):
        got = run(x, 4, max_iter=40, **options)
        if "level_w" in options:
            assert np.all(ch.hoyer_score(got.W, axis=0) <= 20.0 * (1 + 1e-12))
        if "level_h" in options:
            assert np.all(ch.hoyer_score(got.H) <= level_h * (1 + 1e-12))
        assert got.W.min() >= 0
        assert got.H.min() >= 0
        assert_never_rises(got, np.linalg.norm(x))
        assert got.error == pytest.approx(np.linalg.norm(x - got.W @ got.H), rel=1e-10)
    free = run(x, 4, accelerated=False)
    loose = run(x, 4, accelerated=False, level_w=80.0, level_h=50.0)
    np.testing.assert_allclose(loose.W, free.W, atol=1e-9)


def test_the_callback_sees_the_state_and_stops():
    x = noisy()
    seen = []

    def callback(iteration, state):
        assert isinstance(state, NMFResult)
        assert state.error == pytest.approx(np.linalg.norm(x - state.W @ state.H), rel=1e-8)
        seen.append((iteration, state.n_iter))
        return iteration == 3

    got = nmf_hals(x, 4, tol=1e-12, callback=callback)
    assert seen == [(1, 1), (2, 2), (3, 3)]
    assert got.n_iter == 3
    assert not got.converged
    assert "callback" in got.message


def test_the_callback_is_told_of_convergence():
    told = []
    got = nmf_hals(noisy(), 2, tol=1e-3, callback=lambda k, state: told.append(state.converged))
    assert got.converged
    assert told == (got.n_iter - 1) * [False] + [True]


@pytest.mark.parametrize("option", [False, 0, None, np.False_])
def test_an_option_that_counts_as_false(option):
    got = run(np.array([[1.0, np.nan], [1.0, 1.0]]), 1, check_finite=option, max_iter=2)
    assert np.isnan(got.error)


def test_the_cap_warns():
    x = noisy()
    with pytest.warns(ch.ConvergenceWarning, match="max_iter=2"):
        got = nmf_hals(x, 4, max_iter=2, tol=1e-10)
    assert not got.converged
    assert got.n_iter == 2
    assert nmf_hals(x, 4, max_iter=2, tol=0).message.startswith("reached max_iter=2")


def test_verbose(capsys):
    run(noisy(), 2, verbose=True)
    assert "30 iterations" in capsys.readouterr().out


def test_verbose_says_something_once_a_second(capsys, monkeypatch):
    ticks = iter(np.arange(0.0, 99.0, 0.4))
    monkeypatch.setattr("conehoyer.nmf.perf_counter", lambda: next(ticks))
    run(noisy(), 2, verbose=True, max_iter=10)
    said = [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()]
    assert said == [*(f"nmf_hals: iteration {k}" for k in (3, 6, 9)), "nmf_hals: 10 iterations"]


@pytest.mark.parametrize("factor", [2.0**-600, 2.0**600])
def test_units(factor):
    x = noisy()
    start = factors(60, 40, 3)
    one = run(x, 3, init=start)
    other = run(x * factor, 3, init=(start[0] * factor, start[1]))
    np.testing.assert_allclose(other.W / factor, one.W, rtol=1e-6, atol=1e-8)
    assert other.error / factor == pytest.approx(one.error)
    assert other.kkt_residual == pytest.approx(one.kkt_residual, rel=1e-6)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("init", ["nndsvd", "random", "pair"])
def test_empty(shape, init):
    if init == "pair":
        init = factors(*shape, 2)
    for x in (np.empty(shape), scipy.sparse.csr_array(shape)):
        got = nmf_hals(x, 2, init=init)
        assert got.W.shape == (shape[0], 2)
        assert got.H.shape == (2, shape[1])
        assert got.error == 0
        assert got.converged


def test_zero_matrix():
    for init in ("nndsvd", "random", factors(4, 3, 2)):
        got = nmf_hals(np.zeros((4, 3)), 2, init=init)
        assert got.error == 0
        assert not (got.W @ got.H).any()


X = np.ones((4, 3))


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((-X, 2), ValueError, "x must be nonnegative, got an entry -1"),
        ((scipy.sparse.csr_array(-X), 2), ValueError, "x must be nonnegative"),
        ((X * np.nan, 2), ValueError, "x must not contain NaN or inf"),
        ((X * np.inf, 2), ValueError, "x must not contain NaN or inf"),
        ((X[0], 2), ValueError, "x must be a matrix, got 1"),
        ((X * 1j, 2), TypeError, "x must have a real"),
        ((X.astype(object), 2), TypeError, "x must have a real"),
        ((np.ma.array(X), 2), TypeError, "x must not be a masked"),
        ((X, 0), ValueError, "rank must be at least 1, got 0"),
        ((X, 2.5), TypeError, "rank must be an integer, got 2.5"),
        ((X, True), TypeError, "rank must be an integer, got True"),
    ],
)
def test_wrong_data(arguments, error, match):
    with pytest.raises(error, match=match):
        nmf_hals(*arguments)


W0, H0 = np.ones((4, 2)), np.ones((2, 3))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"init": "nmf"}, ValueError, "init must be one of 'nndsvd', 'random', got 'nmf'"),
        ({"init": 3}, TypeError, "init must be"),
        ({"init": (W0,)}, TypeError, "pair"),
        ({"init": (W0.T, H0)}, ValueError, r"W0 of init must have shape \(4, 2\), got \(2, 4\)"),
        ({"init": (W0, H0.T)}, ValueError, r"H0 of init must have shape \(2, 3\)"),
        ({"init": (-W0, H0)}, ValueError, "W0 of init must be nonnegative"),
        ({"init": (W0, H0 * np.nan)}, ValueError, "H0 of init must not contain NaN"),
        ({"init": (W0 * 1j, H0)}, TypeError, "W0 of init must have a real"),
        ({"init": (W0, None)}, ValueError, "needs H0"),
        ({"update_h": False}, ValueError, "update_h=False needs the dictionary"),
        ({"update_h": False, "init": (W0, H0), "level_h": 2.0}, ValueError, "level_h needs"),
        ({"level_w": 0.5}, ValueError, "level_w must be >= 1, got 0.5"),
        ({"level_h": [2.0, np.nan]}, ValueError, "level_h must be >= 1"),
        ({"level_h": [2.0, 2.0, 2.0]}, ValueError, "level_h must broadcast"),
        ({"max_iter": -1}, ValueError, "max_iter must be at least 0, got -1"),
        ({"tol": -1.0}, ValueError, "tol must be finite and >= 0, got -1.0"),
        ({"tol": "a"}, TypeError, "tol must be a real number"),
        ({"tol": "10"}, TypeError, "tol must be a real number"),
        ({"tol": 10**400}, ValueError, "tol must be finite"),
        ({"alpha": -1}, ValueError, "alpha must be"),
        ({"epsilon": np.nan}, ValueError, "epsilon must be"),
        ({"workers": 0}, ValueError, "workers must be"),
        ({"callback": 3}, TypeError, "callback must be callable or None, got 3"),
        ({"rng": "a"}, TypeError, "rng must be None, a seed or .* got 'a'"),
        ({"rng": -1}, ValueError, "rng must be None, a seed or .* got -1"),
        ({"rng": 1.5}, TypeError, "rng must be None, a seed or .* got 1.5"),
        ({"rank": 10**50}, ValueError, "rank must be at most .* got 1000"),
        ({"rank": np.ones(2)}, TypeError, r"rank must be an integer, got an array of .* \(2,\)"),
        ({"level_w": [[2.0], [2.0, 2.0]]}, ValueError, "level_w is no array"),
    ],
)
def test_wrong_options(options, error, match):
    with pytest.raises(error, match=match):
        nmf_hals(X, **{"rank": 2} | options)


@settings(max_examples=30)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**20),
    st.sampled_from(["nndsvd", "random"]), st.sampled_from([0.3, 1.0]),
)  # fmt: skip
def test_small_shapes(m, n, rank, seed, init, density):
    rng = np.random.default_rng(seed)
    x = rng.random((m, n)) * (rng.random((m, n)) < density)
    got = run(x, rank, init=init, rng=seed)
    assert got.W.shape == (m, rank)
    assert got.H.shape == (rank, n)
    assert got.W.min() >= 0
    assert got.H.min() >= 0
    assert_never_rises(got, np.linalg.norm(x))
    expected = np.linalg.norm(x - got.W @ got.H)
    assert got.error == pytest.approx(expected, rel=1e-6, abs=8 * UNIT * np.linalg.norm(x))


UNITS = {"float32": (-30, -24, -20, 20, 30), "float64": (-300, -162, -155, 155, 300)}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_units_of_a_dictionary(dtype):
    x = noisy(seed=3).astype(dtype)
    whole = nmf_hals(x, 3, max_iter=50, tol=0)
    expected = nmf_hals(x, 3, init=(None, whole.H), update_h=False, max_iter=500)
    assert expected.converged
    for exponent in UNITS[dtype]:
        h = (whole.H.astype(np.float64) * 10.0**exponent).astype(dtype)
        result = nmf_hals(x, 3, init=(None, h), update_h=False, max_iter=500)
        assert result.converged
        np.testing.assert_allclose(result.error, expected.error, rtol=1e-4)
        np.testing.assert_array_equal(result.H, h)
        product = result.W.astype(np.longdouble) @ result.H.astype(np.longdouble)
        np.testing.assert_allclose(
            np.linalg.norm(x - product.astype(float)), result.error, rtol=1e-3
        )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_factors_are_finite_beyond_the_rank(dtype):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = np.outer(rng.random(20), rng.random(11)).astype(dtype)
        result = run(x, 15, max_iter=100)
        product = result.W.astype(np.float64) @ result.H.astype(np.float64)
        np.testing.assert_allclose(product, x, atol=2e-2 if dtype == "float16" else 1e-3)


@pytest.mark.parametrize(
    ("dtype", "slight", "unit"),
    [("float32", -46, 0), ("float32", -66, 0), ("float64", -500, 0), ("float64", -530, 0),
     ("float32", -40, -32)],
)  # fmt: skip
def test_components_become_balanced(dtype, slight, unit):
    """The second component sees the data but slightly: W takes little of it, H much."""
    rng = np.random.default_rng(0)
    h0 = np.zeros((2, 9))
    h0[0, :4], h0[1, 4:8] = rng.random(4) + 0.1, rng.random(4) + 0.1
    x = np.ldexp(rng.random((20, 2)) @ h0, unit)  # too little to be scaled
    h0[1, 4:8] *= 2.0**slight
    h0[1, 8] = 1.0
    sizes = []

    def look(iteration, state):
        sizes.append((state.W.max(axis=0), state.H.max(axis=1)))

    init = rng.random((20, 2)), h0.astype(dtype)
    result = run(x.astype(dtype), 2, init=init, callback=look)
    assert result.error < 1e-3 * np.linalg.norm(x)
    assert np.isfinite(sizes).all()
    assert all(h.max() < 100 for _, h in sizes)


@pytest.mark.parametrize(("dtype", "far"), [("float16", 36), ("float32", 130), ("float64", 1030)])
def test_factors_fit_their_dtype(dtype, far):
    rng = np.random.default_rng(0)
    w, h = (rng.integers(1, 8, shape) / 8 for shape in ((6, 2), (2, 5)))
    x, edge = (w @ h).astype(dtype), np.ldexp(1.0, far // 2)
    for init in ((w / edge, h * edge), (w * edge, h / edge)):
        result = run(np.ldexp(x, 2), 2, init=init, max_iter=0)
        np.testing.assert_array_equal(result.W.astype(float) @ result.H.astype(float), w @ h)


def test_the_smallest_numbers():
    x = np.full((8, 6), 1e-45, np.float32)
    result = nmf_hals(x, 3)
    product = result.W.astype(np.float64) @ result.H.astype(np.float64)
    assert np.linalg.norm(x.astype(np.float64) - product) < 1e-2 * np.linalg.norm(
        x.astype(np.float64)
    )


def test_a_start_far_from_zero_data():
    result = nmf_hals(np.zeros((3, 4)), 2, init=(np.full((3, 2), 1e200), np.ones((2, 4))))
    assert result.error == 0.0
    assert not result.W.any()


def test_a_huge_alpha_is_no_error():
    assert nmf_hals(np.ones((3, 3)), 1, alpha=1e300).converged


def test_the_dictionary_is_always_checked():
    with pytest.raises(ValueError, match=r"H0 of init must not contain NaN or inf$"):
        nmf_hals(np.ones((2, 3)), 1, init=(None, [[np.nan] * 3]), check_finite=False)
    with pytest.raises(ValueError, match=r"H0 of init must fit in float32, got an entry 1e\+300"):
        nmf_hals(np.ones((2, 3), np.float32), 1, init=(None, [[1e300] * 3]))


# ---------------------------------------------------------------------------
# what a change could break unseen


def test_a_random_start_has_the_mean_of_the_data():
    x = 3.0 * noisy(300, 200)
    got = run(x, 6, init="random", max_iter=0)
    assert (got.W @ got.H).mean() == pytest.approx(x.mean(), rel=0.1)


def test_the_start_is_that_of_the_singular_vectors():
    x = noisy()
    got = run(x, 4, max_iter=0)
    u, s, v = np.linalg.svd(x)
    for k in range(4):
        pairs = [(np.maximum(f * u[:, k], 0), np.maximum(f * v[k], 0)) for f in (1, -1)]
        left, right = max(pairs, key=lambda p: np.linalg.norm(p[0]) * np.linalg.norm(p[1]))
        expected = s[k] * np.outer(left, right)
        np.testing.assert_allclose(np.outer(got.W[:, k], got.H[k]), expected, atol=1e-4 * s[k])
        assert np.linalg.norm(got.W[:, k]) == pytest.approx(np.linalg.norm(got.H[k]))


def test_components_beyond_the_rank_are_random():
    got = run(np.outer(np.arange(1.0, 7), np.arange(1.0, 5)), 3, max_iter=0)
    assert got.W[:, 2].any()
    assert got.H[2].any()


@pytest.mark.parametrize("levels", [{}, {"level_w": 30.0, "level_h": 20.0}])
def test_a_large_epsilon_leaves_one_sweep(levels):
    x = noisy(300, 200)
    one = run(x, 4, accelerated=False, max_iter=5, **levels)
    got = run(x, 4, epsilon=1.0, alpha=5.0, max_iter=5, **levels)
    np.testing.assert_array_equal(got.W, one.W)
    np.testing.assert_array_equal(got.H, one.H)


def test_loose_levels_change_nothing():
    free = run(noisy(), 4, alpha=3.0)
    loose = run(noisy(), 4, alpha=3.0, level_w=60.0, level_h=40.0)
    np.testing.assert_allclose(loose.W, free.W, atol=1e-9)


def test_each_component_has_its_own_level():
    level = np.array([5.0, 10.0, 20.0, 30.0])
    x = noisy(80, 50, 4)
    for name, axis in (("level_w", 0), ("level_h", 1)):
        got = run(x, 4, max_iter=40, **{name: level})
        scores = ch.hoyer_score(got.W if axis == 0 else got.H, axis=axis)
        np.testing.assert_allclose(scores, level, rtol=1e-9)


def test_convergence_with_levels():
    assert nmf_hals(noisy(), 3, level_h=8.0, tol=1e-6, max_iter=3000).converged


def test_levels_where_a_row_of_the_dictionary_is_zero():
    w, h = factors(60, 40, 4)
    h[2] = 0
    level = [5.0, 9.0, 9.0, 20.0]
    got = run(noisy(), 4, init=(w, h), update_h=False, level_w=level)
    assert not got.W[:, 2].any()
    assert np.all(ch.hoyer_score(got.W, axis=0) <= np.array(level) * (1 + 1e-12))


def test_a_reseeded_component_keeps_its_level():
    w, h = factors(60, 40, 4)
    w[:, 1] = 0
    h[1] = 0
    got = run(noisy(), 4, init=(w, h), level_h=5.0, max_iter=1)
    assert got.reseeded == 1
    assert np.all(ch.hoyer_score(got.H) <= 5.0 * (1 + 1e-12))


def test_a_dead_component_starts_from_the_longest_row_of_the_residual():
    x = noisy(20, 40)
    w, h = factors(20, 40, 4)
    w[:, 1] = 0
    h[1] = 0
    got = run(x, 4, init=(w, h), max_iter=1)
    gap = np.maximum(x - got.W @ got.H, 0)
    longest = gap[np.linalg.norm(gap, axis=1).argmax()]
    assert not got.W[:, 1].any()
    np.testing.assert_allclose(
        got.H[1] / np.linalg.norm(got.H[1]), longest / np.linalg.norm(longest), atol=1e-12
    )


def test_nothing_is_reseeded_where_no_residual_is_left():
    w, h = factors(50, 40, 3)
    start = np.c_[w, np.zeros(50)], np.r_[h, np.zeros((1, 40))]
    got = run(w @ h, 4, init=start, max_iter=3)
    assert got.reseeded == 0
    assert got.error <= 1e-13 * np.linalg.norm(w @ h)


def test_a_sparse_matrix_is_left_alone_when_it_is_scaled():
    x = scipy.sparse.csr_array(planted()) * 2.0**-600
    before = x.data.copy()
    run(x, 2, max_iter=1)
    np.testing.assert_array_equal(x.data, before)


def test_a_start_in_fortran_order():
    x = planted()
    w, h = factors(60, 40, 4)
    got = run(x, 4, init=(w, np.asfortranarray(h)))
    np.testing.assert_array_equal(got.H, run(x, 4, init=(w, h)).H)
    assert got.H.flags.c_contiguous


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_entry_that_is_not_finite(bad):
    x = noisy()
    x[3, 4] = bad
    with pytest.raises(ValueError, match="x must not contain NaN or inf"):
        nmf_hals(x, 2)


def test_it_stops_where_it_has_converged():
    got = nmf_hals(planted(40, 30, 3), 3, tol=1e-6, max_iter=5000)
    assert got.converged
    assert got.n_iter < 5000
    assert got.message.startswith("KKT residual at most tol")


def test_a_factor_too_large_for_float16():
    rng = np.random.default_rng(0)
    w, h = (rng.integers(1, 8, shape) / 8 for shape in ((6, 2), (2, 5)))
    x = np.ldexp(w @ h, 15).astype(np.float16)
    got = run(x, 2, init=(w / 4, h * 2.0**17), max_iter=0)
    np.testing.assert_array_equal(got.W.astype(float) @ got.H.astype(float), x.astype(float))


def test_a_dictionary_that_would_come_back_as_another_one():
    x, (_, h) = noisy(), factors(60, 40, 4)
    h[2] *= 1e-60
    with pytest.raises(ValueError, match="H0 of init must fit in float32, got a row 2"):
        nmf_hals(x.astype(np.float32), 4, init=(None, h), update_h=False)
    with pytest.raises(ValueError, match="H0 of init must fit in float16, got a row 0"):
        nmf_hals(x.astype(np.float16), 4, init=(None, h * 1e6), update_h=False)
    with pytest.raises(ValueError, match="H0 of init must fit in float16, got a row 0"):
        nmf_hals(x.astype(np.float16), 4, init=(None, h * 1e-7), update_h=False)
    run(x, 4, init=(None, h), update_h=False, max_iter=1)
    run(x.astype(np.float16), 4, init=(None, factors(60, 40, 4)[1]), update_h=False, max_iter=1)


def test_the_flag_agrees_with_the_residual_where_the_callback_stops():
    w, h = factors(60, 40, 1)
    got = nmf_hals(w @ h, 1, init=(None, h), update_h=False, callback=lambda i, state: True)
    assert got.kkt_residual <= 1e-4
    assert got.converged
    assert got.message == "stopped by the callback"


def test_small_integers_that_add_up():
    where = np.zeros(2, int), np.zeros(2, int)
    x = scipy.sparse.coo_array((np.array([100, 100], np.int8), where), shape=(3, 3))
    assert (nmf_hals(x, 1).W @ nmf_hals(x, 1).H)[0, 0] == pytest.approx(200.0)


def test_the_history_is_right_while_the_error_shrinks():
    x, exact, seen = planted(40, 30, 3), [], []

    def look(iteration, state):
        exact.append(np.linalg.norm(x - state.W @ state.H))
        seen.append(state.error)

    got = run(x, 3, callback=look, max_iter=60)
    assert got.error < 1e-9 * np.linalg.norm(x)
    for errors in (seen, got.error_history[1:]):
        np.testing.assert_allclose(errors, exact, rtol=1e-3, atol=1e-14 * np.linalg.norm(x))


def test_the_kkt_residual_is_right_after_balancing():
    rng = np.random.default_rng(0)
    h0 = np.zeros((2, 9))
    h0[0, :4], h0[1, 4:8] = rng.random(4) + 0.1, rng.random(4) + 0.1
    x = rng.random((20, 2)) @ h0
    h0[1, 4:8] *= 2.0**-500
    h0[1, 8] = 1.0
    got = run(x, 2, init=(rng.random((20, 2)), h0), max_iter=1)
    assert got.kkt_residual == pytest.approx(kkt_residual(x, got), rel=1e-6)


LOUD = {"f2": (-7, 4.8), "f4": (-44, 38), "f8": (-320, 308)}  # what they reach, in powers of ten


@pytest.mark.parametrize("kind", ["dense", "sparse", "levels"])
@pytest.mark.parametrize("dtype", LOUD)
def test_floating_point_errors_that_raise_do_not_tell_of_the_inside(dtype, kind):
    rng, seen = np.random.default_rng(2), []
    options = {"level_w": 3.0, "level_h": 2.0} if kind == "levels" else {}
    with np.errstate(all="ignore"):
        wide = (10.0 ** rng.uniform(*LOUD[dtype], (9, 7))).astype(dtype)
        for x in wide, (rng.random((9, 7)) * 10.0 ** LOUD[dtype][0]).astype(dtype):
            sparse = kind == "sparse" and dtype != "f2"  # which scipy does not have
            given = scipy.sparse.csr_array(x) if sparse else x
            expected = run(given, 3, **options)
            with np.errstate(all="raise"):
                got = run(given, 3, callback=lambda i, _: seen.append(np.geterr()), **options)
            np.testing.assert_array_equal(got.W, expected.W)
            np.testing.assert_array_equal(got.H, expected.H)
    assert all(set(told.values()) == {"raise"} for told in seen)  # the callback's are its caller's


def test_an_error_beyond_the_largest_float_is_infinite():
    x = np.full((3, 4), 1.7e308)
    got = nmf_hals(x, 1, init=(None, np.ones((1, 4))))
    assert got.error_history[0] == np.inf
    assert got.error == 0.0
    np.testing.assert_array_equal(got.W @ got.H, x)


def test_an_error_known_exactly_is_not_mended_by_what_follows():
    """In float32 the decreases are good to 1e-7 only, the errors they start from to 1e-15."""
    x, (w, h) = noisy().astype(np.float32), (f.astype(np.float32) for f in factors(60, 40, 4))
    start = np.linalg.norm(x.astype(float) - w.astype(float) @ h.astype(float))
    got = run(x, 4, init=(w, h))
    assert got.error_history[0] == pytest.approx(start, rel=1e-13)


def test_sparse_float32_is_made_dense_for_small_errors_only(monkeypatch):
    x = noisy(300, 200) * (np.random.default_rng(3).random((300, 200)) < 0.05)
    seen = []
    with monkeypatch.context() as patch:
        patch.setattr("conehoyer.nmf._Data.residual_squares", None)
        got = run(
            scipy.sparse.csr_array(x.astype(np.float32)), 4, init="random",
            callback=lambda i, state: seen.append((state.W.copy(), state.H.copy())),
        )  # fmt: skip
    assert got.W.dtype == np.float32
    for k in (1, 30):
        w, h = (f.astype(float) for f in seen[k - 1])
        error = np.linalg.norm(x.astype(np.float32) - w @ h)
        assert got.error_history[k] == pytest.approx(error, rel=1e-6 if k < 30 else 1e-12)
    small = run(scipy.sparse.csr_array(planted().astype(np.float32)), 4, max_iter=500)
    error = np.linalg.norm(planted().astype(np.float32) - small.W.astype(float) @ small.H)
    assert error < 1e-3 * np.linalg.norm(planted())
    assert small.error == pytest.approx(error, rel=1e-9)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("m", "n"), [(60, 12), (12, 60)])
def test_the_number_of_sweeps_is_what_the_docstring_says(m, n, kind):
    rank, alpha = 3, 0.4
    x = noisy(m, n) * (np.random.default_rng(3).random((m, n)) < 0.3)
    given = scipy.sparse.csr_array(x) if kind == "sparse" else x
    entries = given.nnz if kind == "sparse" else x.size
    rho_w = 1 + (entries + n * rank) / (m * (rank + 1))
    rho_h = 1 + (entries + m * rank) / (n * (rank + 1))
    sweeps = [1 + int(alpha * rho) for rho in (rho_w, rho_h)]
    assert sweeps[0] != sweeps[1]
    start = factors(m, n, rank)
    w, h, _ = textbook(x, *start, 2, sweeps)
    got = run(given, rank, init=start, alpha=alpha, epsilon=0.0, max_iter=2)
    np.testing.assert_allclose(got.W, w, atol=1e-9)
    np.testing.assert_allclose(got.H, h, atol=1e-9)


@pytest.mark.parametrize("entries", [1, 100, 999])
@pytest.mark.parametrize("kind", ["float32", "float64", "sparse"])
def test_errors_and_norms_of_several_blocks(kind, entries, monkeypatch):
    monkeypatch.setattr("conehoyer.nmf._BLOCK_ENTRIES", entries)
    make = scipy.sparse.csr_array if kind == "sparse" else np.asarray
    x = planted().astype("float32" if kind == "float32" else "float64")
    got = run(make(x), 3, init=factors(60, 40, 3), max_iter=5)
    error = np.linalg.norm(x - got.W.astype(float) @ got.H)
    assert got.error == pytest.approx(error, rel=1e-12)
    w, h = (f.astype(x.dtype) for f in factors(60, 40, 3))
    x = w.astype(float) @ h
    w = w * (1 + 1e-5 * np.random.default_rng(2).random(w.shape))
    got = run(make(x), 3, init=(w, h), max_iter=0)
    assert got.error == pytest.approx(np.linalg.norm(x - got.W @ got.H), rel=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_components_beyond_the_numerical_rank_are_random(dtype):
    rng = np.random.default_rng(0)
    x = np.outer(rng.random(30), rng.random(20)).astype(dtype)
    one, other = (nmf_hals(x, 3, tol=0, max_iter=0, rng=seed) for seed in (0, 1))
    np.testing.assert_array_equal(one.W[:, 0], other.W[:, 0])
    assert (one.W[:, 1:] != other.W[:, 1:]).all()


def test_a_component_that_h_has_lost_is_reseeded_without_a_rise():
    """Its column is what X has no use for: it is zero before the row becomes another."""
    x = noisy()
    x[:3] = 0
    w, h = factors(60, 40, 4)
    w[:, 1], h[1] = 0, 0
    w[:3, 1] = 1
    for count in (1, 2, 10):
        got = run(x, 4, init=(w, h), max_iter=count)
        assert got.reseeded == 1
        assert got.message == f"reached max_iter={count} iterations; 1 dead component(s) reseeded"
        assert got.error == pytest.approx(np.linalg.norm(x - got.W @ got.H), rel=1e-10)
        assert_never_rises(got, np.linalg.norm(x))


def test_every_row_of_a_small_residual_is_looked_at():
    """The new row of H is the longest of what is left of X, whatever is drawn."""
    x = noisy(4, 40)
    w, h = factors(4, 40, 4)
    w[:, 1], h[1] = 0, 0
    for seed in range(20):
        got = run(x, 4, init=(w, h), max_iter=1, rng=seed)
        gap = np.maximum(x - got.W @ got.H, 0)
        longest = gap[np.linalg.norm(gap, axis=1).argmax()]
        np.testing.assert_allclose(
            got.H[1] / np.linalg.norm(got.H[1]), longest / np.linalg.norm(longest), atol=1e-12
        )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"init": "random"},
        {"init": "random", "level_w": 2.0},
        {"init": "random", "level_h": 2.0},
    ],
)
def test_what_is_not_finite_and_not_checked(bad, options):
    x = noisy()
    x[3, 4] = bad
    with np.errstate(invalid="ignore"):
        got = run(x, 2, check_finite=False, max_iter=2, **options)
    assert not np.isfinite(got.error)


def test_long_doubles_beyond_float64():
    x = np.ones((3, 3), np.longdouble)
    with np.errstate(all="raise"):
        if np.finfo(np.longdouble).maxexp > 1024:
            x[0, 0] = np.longdouble("1e400")
            with pytest.raises(ValueError, match="x must not contain NaN or inf"):
                nmf_hals(x, 1)
        got = run(np.ones((3, 3)), 1, level_w=[np.finfo(np.longdouble).max], max_iter=2)
    assert got.error < 1e-10


def test_nothing_converges_with_tol_zero():
    start, x = (np.ones((4, 1)), np.ones((1, 4))), np.ones((4, 4))
    got = nmf_hals(x, 1, init=start, tol=0, max_iter=3)
    assert got.kkt_residual == 0.0
    assert not got.converged
    assert got.message == "reached max_iter=3 iterations"
    got = nmf_hals(x, 1, init=start, tol=0, callback=lambda iteration, state: True)
    assert not got.converged


def test_the_warning_names_the_callers_line():
    with pytest.warns(ch.ConvergenceWarning) as caught:
        nmf_hals(noisy(), 4, max_iter=2, tol=1e-10)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("name", [5, "conehoyer.own"])
def test_a_caller_of_any_name_is_warned(name):
    space = {"__name__": name, "nmf_hals": nmf_hals, "x": noisy()}
    with pytest.warns(ch.ConvergenceWarning):
        exec("nmf_hals(x, 4, max_iter=2, tol=1e-10)", space)


def test_the_callback_gets_arrays_that_live_on():
    seen = []
    run(noisy(), 2, max_iter=2, callback=lambda iteration, state: seen.append(state))
    assert np.shares_memory(seen[0].W, seen[1].W)
    assert np.shares_memory(seen[0].H, seen[1].H)


@pytest.mark.parametrize("side", ["W", "H"])
@pytest.mark.parametrize("levels", [{}, {"level_w": 3000.0, "level_h": 3000.0}])
def test_several_threads_take_a_large_factor(levels, side, monkeypatch):
    asked = []
    split, project = nmf.run_split, projections.project_cai

    def counting_split(task, count, workers):
        asked.append(workers)
        return split(task, count, workers)

    def counting_project(*args, workers, **options):
        asked.append(workers)
        return project(*args, workers=workers, **options)

    monkeypatch.setattr(nmf, "run_split", counting_split)
    monkeypatch.setattr(projections, "project_cai", counting_project)
    x = noisy(9000, 40, 2)
    run(x if side == "W" else x.T, 2, max_iter=1, workers=2, **levels)
    assert set(asked) == {1, 2}


def test_a_dead_component_takes_no_level_from_the_others():
    """A row of the dictionary that is zero, and a level of its own for each component."""
    rng = np.random.default_rng(0)
    h = rng.random((3, 8))
    h[0] = 0
    x = rng.random((20, 8))
    options = {"update_h": False, "max_iter": 2000, "tol": 1e-8}
    full = nmf_hals(x, 3, init=(None, h), level_w=[1.0, 9.0, 6.0], **options)
    rest = nmf_hals(x, 2, init=(None, h[1:]), level_w=[9.0, 6.0], **options)
    assert full.converged
    np.testing.assert_allclose(full.kkt_residual, rest.kkt_residual, rtol=1e-6, atol=1e-12)


def test_the_warning_tells_the_residual_from_its_bound():
    x = np.random.default_rng(0).random((20, 10))
    with pytest.warns(ch.ConvergenceWarning) as caught:
        result = nmf_hals(x, 4, max_iter=2, tol=1e-9)
    said = f"KKT residual {result.kkt_residual:.3g} > tol=1e-09: "
    assert said in str(caught[0].message)


@pytest.mark.parametrize("order", "CF")
def test_data_in_either_order_is_not_copied(order):
    x = np.asarray(np.random.default_rng(0).random((20, 10)), order=order)
    assert np.shares_memory(nmf._Data(x, True).matrix, x)
