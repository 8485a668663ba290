"""Nonnegative matrix factorisation on the device, against the CPU and plain NumPy."""

import numpy as np
import pytest
import scipy.sparse

import conehoyer as ch
from conehoyer import nmf_hals
from conehoyer._cuda import device, hals, nmf

M, N, RANK = 20, 15, 3


@pytest.fixture(autouse=True)
def library(monkeypatch):
    """In the simulator a library multiplies, as CuPy and torch do: ours takes its time."""
    if device.SIMULATED:

        def matmul(self, a, b, out):
            return np.matmul(a.copy_to_host(), b.copy_to_host(), out=out._ary)

        monkeypatch.setattr(device._Simulator, "matmul", matmul)


@pytest.fixture
def no_library(library, monkeypatch):
    """Products by our own kernel."""
    if device.SIMULATED:
        monkeypatch.setattr(device._Simulator, "matmul", device.Home.matmul)


def noisy(m=M, n=N, rank=RANK, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((m, rank)) @ rng.random((rank, n)) + 0.1 * rng.random((m, n))


def factors(m=M, n=N, rank=RANK, seed=1):
    rng = np.random.default_rng(seed)
    return rng.random((m, rank)), rng.random((rank, n))


def run(x, rank=RANK, **options):
    """Iterations alone, without a test of convergence."""
    return nmf_hals(x, rank, **({"tol": 0, "max_iter": 3, "rng": 0} | options))


def assert_agrees(got, expected, to_host, rtol=1e-8):
    """The same run as on the CPU, with a result on the device."""
    np.testing.assert_allclose(got.error_history, expected.error_history, rtol=rtol)
    for a, b in ((got.W, expected.W), (got.H, expected.H)):
        a = to_host(a)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * abs(b).max(initial=1e-300))
    assert got.kkt_residual == pytest.approx(expected.kkt_residual, rel=1e-6, abs=rtol)
    assert type(got.error) is float
    assert type(got.kkt_residual) is float
    assert got.error == got.error_history[-1]
    assert isinstance(got.error_history, np.ndarray)
    assert (got.n_iter, got.reseeded) == (expected.n_iter, expected.reseeded)
    assert (got.converged, got.message) == (expected.converged, expected.message)


@pytest.mark.parametrize(
    ("m", "n", "rank", "options"),
    [
        (M, N, RANK, {"max_iter": 5}),
        (M, N, RANK, {"accelerated": False}),
        (130, 3, 2, {"max_iter": 1}),  # several blocks of columns
        (4, 65, 1, {"max_iter": 1}),
        (4, 3, 9, {"max_iter": 1, "accelerated": False}),  # more components than at a time
        (3, 2, 17, {"max_iter": 1, "accelerated": False}),
        (1, 1, 1, {}),
    ],
)
def test_the_cpu_agrees(m, n, rank, options, to_gpu, to_host):
    x, start = noisy(m, n), factors(m, n, rank)
    got = run(to_gpu(x), rank, init=start, **options)
    assert_agrees(got, run(x, rank, init=start, **options), to_host)
    w, h = to_host(got.W), to_host(got.H)
    assert min(w.min(), h.min()) >= 0
    norm = np.linalg.norm(x)
    assert got.error == pytest.approx(np.linalg.norm(x - w @ h), rel=1e-9, abs=1e-14 * norm)
    assert np.all(np.diff(got.error_history) <= 1e-12 * norm)


def test_a_large_gram_matrix_stays_where_it_is(monkeypatch, to_gpu, to_host):
    monkeypatch.setattr(nmf, "_SHARED_GRAM", 8)
    x, start = noisy(), factors()
    got = run(to_gpu(x), init=start, max_iter=1)
    assert_agrees(got, run(x, init=start, max_iter=1), to_host)


def test_without_a_library(no_library, to_gpu, to_host):
    x, start = noisy(9, 7, 2), factors(9, 7, 2)
    got = run(to_gpu(x), 2, init=start, max_iter=2, accelerated=False)
    assert_agrees(got, run(x, 2, init=start, max_iter=2, accelerated=False), to_host)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("rows", "length", "columns"),
    [(1, 1, 1), (3, 40, 3), (hals.HEIGHT + 1, hals.DEPTH + 1, hals.WIDTH + 1)],
)
def test_products(no_library, dtype, rows, length, columns, to_gpu, to_host):
    rng = np.random.default_rng(2)
    a, b = rng.random((rows, length)).astype(dtype), rng.random((length, columns)).astype(dtype)
    data = nmf.Data(to_gpu(np.ones((1, 1), dtype)), True)
    results = []
    for p, q in ((False, False), (True, True), (False, False)):
        left, right = (data._uploaded(z.T if f else z) for z, f in ((a, p), (b, q)))
        out = data.new(rows, columns)
        data.product(left, p, right, q, out)
        results.append(to_host(out.view))
        exact = a.astype(float) @ b.astype(float)
        np.testing.assert_allclose(results[-1], exact, rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(results[0], results[2])


def test_the_same_bits(to_gpu, to_host):
    x, start = to_gpu(noisy()), factors()
    one, other = (run(x, init=start, max_iter=2) for _ in range(2))
    np.testing.assert_array_equal(to_host(one.W), to_host(other.W))
    np.testing.assert_array_equal(one.error_history, other.error_history)


def test_convergence_is_seen(to_gpu, to_host):
    x = np.outer([1.0, 2.0, 3.0], [1.0, 0.5])
    got = nmf_hals(to_gpu(x), 1, init=(np.ones((3, 1)), np.ones((1, 2))), tol=1e-12)
    assert got.converged
    assert got.kkt_residual <= 1e-12
    assert "tol" in got.message
    assert got.error <= 1e-13
    np.testing.assert_allclose(to_host(got.W) @ to_host(got.H), x, rtol=1e-12)


def test_the_kkt_residual_is_what_the_docstring_says(to_gpu, to_host):
    x = noisy()
    got = run(to_gpu(x), max_iter=1)
    w, h = to_host(got.W), to_host(got.H)
    gap, total = x - w @ h, 0.0
    for a, b in zip(w.T, h, strict=True):
        step = np.maximum(a + gap @ b / (b @ b), 0) - a
        total += step @ step * (b @ b)
        step = np.maximum(b + a @ gap / (a @ a), 0) - b
        total += step @ step * (a @ a)
    assert got.kkt_residual == pytest.approx(np.sqrt(total) / np.linalg.norm(x), rel=1e-9)


@pytest.mark.parametrize("distance", [1e-4, 1e-8])
def test_small_errors_are_right(distance, to_gpu, to_host):
    w, h = factors()
    x = w @ h
    w *= 1 + distance * np.random.default_rng(2).random(w.shape)
    got = run(to_gpu(x), init=(w, h), max_iter=1)
    wide = np.longdouble
    product = to_host(got.W).astype(wide) @ to_host(got.H).astype(wide)
    expected = np.linalg.norm((x.astype(wide) - product).astype(float))
    assert got.error == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("init", ["nndsvd", "random"])
def test_starts(init, to_gpu, to_host):
    x = noisy()
    got, expected = run(to_gpu(x), init=init, max_iter=0), run(x, init=init, max_iter=0)
    assert_agrees(got, expected, to_host)
    # More components than either side has entries.
    x = noisy(5, 4)
    got, expected = (run(z, 7, init=init, max_iter=0) for z in (to_gpu(x), x))
    assert_agrees(got, expected, to_host)


def test_starts_on_the_device(to_gpu, to_host):
    x, (w, h) = noisy(), factors()
    wide = np.zeros((M, 2 * RANK))
    wide[:, ::2] = w
    expected = run(x, init=(w, h), max_iter=1)
    for start in ((to_gpu(w), h), (to_gpu(wide)[:, ::2], to_gpu(np.asfortranarray(h)))):
        got = run(to_gpu(x), init=start, max_iter=1)
        assert_agrees(got, expected, to_host)
        for given, before in zip(start, (w, h), strict=True):
            if hasattr(given, "copy_to_host") and given.shape == h.shape:
                np.testing.assert_array_equal(to_host(given), before)
    got = run(to_gpu(x), init=(None, to_gpu(h)), max_iter=1)
    assert_agrees(got, run(x, init=(None, h), max_iter=1), to_host)


def test_a_dead_component_is_reseeded(to_gpu, to_host):
    x = noisy()
    w, h = factors()
    w[:, 1] = 0
    h[1] = 0
    got, expected = (run(z, init=(w, h), max_iter=3) for z in (to_gpu(x), x))
    assert got.reseeded == 1
    assert_agrees(got, expected, to_host)
    assert to_host(got.W)[:, 1].any()
    flat = np.asfortranarray(x)
    got = run(to_gpu(flat), init=(w, h), max_iter=1)
    assert_agrees(got, run(x, init=(w, h), max_iter=1), to_host)
    # Nothing is left to start from.
    start = np.eye(6, 2) + 1, np.array([[1.0] * 5, [0.0] * 5])
    exact = run(to_gpu(np.ones((6, 5))), 2, init=start, max_iter=2)
    assert exact.reseeded == 0
    assert exact.error <= 1e-14


@pytest.mark.parametrize(
    "levels", [{"level_w": 5.0}, {"level_h": np.array([4.0, 6.0, 2.0]), "accelerated": False}]
)
def test_levels(levels, to_gpu, to_host):
    x, start = noisy(), factors()
    options = {"init": start, "max_iter": 1, "alpha": 0.1, **levels}
    got = run(to_gpu(x), **options)
    assert_agrees(got, run(x, **options), to_host)
    if "level_w" in levels:
        assert np.all(ch.hoyer_score(to_host(got.W), axis=0) <= 5.0 * (1 + 1e-12))
    else:
        assert np.all(ch.hoyer_score(to_host(got.H)) <= levels["level_h"] * (1 + 1e-12))
        on_device = options | {"level_h": to_gpu(levels["level_h"])}
        again = run(to_gpu(x), **on_device)
        np.testing.assert_array_equal(to_host(again.H), to_host(got.H))


def test_a_dead_component_under_levels(to_gpu, to_host):
    x = noisy(8, 6)
    w, h = factors(8, 6)
    w[:, 1] = 0
    h[1] = 0
    options = {"init": (w, h), "max_iter": 1, "accelerated": False, "level_w": 5.0, "level_h": 3.0}
    assert_agrees(run(to_gpu(x), **options), run(x, **options), to_host)


def test_encoding(to_gpu, to_host):
    x, (w, h) = noisy(), factors()
    empty = h.copy()
    empty[2] = 0
    for dictionary in (h, empty):
        for start in ((None, dictionary), (w, dictionary)):
            got = run(to_gpu(x), init=start, update_h=False, max_iter=2)
            assert_agrees(got, run(x, init=start, update_h=False, max_iter=2), to_host)
            np.testing.assert_array_equal(to_host(got.H), dictionary)
    assert not to_host(got.W)[:, 2].any()


def test_dtypes(to_gpu, to_host):
    x, start = noisy(), factors()
    x32 = x.astype(np.float32)
    got = run(to_gpu(x32), init=start)
    assert_agrees(got, run(x32, init=start), to_host, rtol=1e-5)
    gap = x32.astype(float) - to_host(got.W).astype(float) @ to_host(got.H)
    assert got.error == pytest.approx(np.linalg.norm(gap), rel=1e-9)
    for dtype in (np.float16, np.int32, bool):
        small = np.arange(12).reshape(4, 3).astype(dtype)
        got = run(to_gpu(small), 2, init=factors(4, 3, 2), max_iter=1)
        expected = run(small, 2, init=factors(4, 3, 2), max_iter=1)
        assert to_host(got.W).dtype == expected.W.dtype
        np.testing.assert_allclose(to_host(got.W), expected.W, rtol=2e-3, atol=1e-6)


def test_layouts_and_inputs_are_left_alone(to_gpu, to_host, transposed):
    x, start = noisy(), factors()
    wide = np.zeros((2 * M, 2 * N))
    wide[::2, ::2] = x
    expected = run(x, init=start, max_iter=1)
    for view in (
        transposed(to_gpu(np.ascontiguousarray(x.T))),
        to_gpu(np.asfortranarray(x)),
        to_gpu(wide)[::2, ::2],
        transposed(to_gpu(np.ascontiguousarray(wide.T)))[::2, ::2],
    ):
        got = run(view, init=start, max_iter=1)
        assert_agrees(got, expected, to_host)
        assert got.W.shape == (M, RANK)
        assert got.W.is_c_contiguous()
        assert got.H.is_c_contiguous()
    device_x = to_gpu(x)
    run(device_x, init=start, max_iter=1)
    np.testing.assert_array_equal(to_host(device_x), x)


def test_sparse_data_stay_on_the_cpu(to_gpu):
    x = scipy.sparse.csr_array(noisy())
    assert isinstance(run(x, max_iter=1).W, np.ndarray)
    with pytest.raises(TypeError, match="W0 of init lies on a GPU"):
        run(x, init=(to_gpu(factors()[0]), factors()[1]))


def test_the_callback_sees_the_state_and_stops(to_gpu, to_host):
    x = noisy()
    seen = []

    def callback(iteration, state):
        product = np.ascontiguousarray(to_host(state.W)) @ to_host(state.H)
        assert state.error == pytest.approx(np.linalg.norm(x - product), rel=1e-8)
        seen.append(iteration)
        return iteration == 2

    got = nmf_hals(to_gpu(x), RANK, init=factors(), tol=1e-12, callback=callback)
    assert seen == [1, 2]
    assert got.n_iter == 2
    assert "callback" in got.message


def test_the_cap_warns(to_gpu, capsys):
    with pytest.warns(ch.ConvergenceWarning, match="max_iter=1") as caught:
        got = nmf_hals(to_gpu(noisy()), RANK, max_iter=1, tol=1e-10, verbose=True)
    assert not got.converged
    assert caught[0].filename == __file__
    assert "1 iterations" in capsys.readouterr().out


@pytest.mark.parametrize("factor", [2.0**-600, 2.0**600])
def test_units(factor, to_gpu, to_host):
    x, start = noisy(), factors()
    seen = []
    one = run(x, init=start, max_iter=1)
    other = run(
        to_gpu(x * factor), init=(start[0] * factor, to_gpu(start[1])), max_iter=1,
        callback=lambda _, state: seen.append(to_host(state.W)),
    )  # fmt: skip
    np.testing.assert_allclose(to_host(other.W) / factor, one.W, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(seen[0], to_host(other.W))
    np.testing.assert_allclose(to_host(other.H), one.H, rtol=1e-8, atol=1e-10)
    assert other.error / factor == pytest.approx(one.error)
    assert other.kkt_residual == pytest.approx(one.kkt_residual, rel=1e-6)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty(shape, to_gpu, to_host):
    for init in ("nndsvd", "random", factors(*shape, 2)):
        got = nmf_hals(to_gpu(np.empty(shape)), 2, init=init)
        assert to_host(got.W).shape == (shape[0], 2)
        assert to_host(got.H).shape == (2, shape[1])
        assert got.error == 0
        assert got.converged


def test_zero_matrix(to_gpu, to_host):
    for init in ("nndsvd", factors(4, 3, 2)):
        got = nmf_hals(to_gpu(np.zeros((4, 3))), 2, init=init)
        assert got.error == 0
        assert not to_host(got.W).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad, to_gpu):
    x = noisy(5, 4, 2)
    x[2, 1] = bad
    with pytest.raises(ValueError, match="x must not contain NaN or inf"):
        run(to_gpu(x), 2)
    if bad != -np.inf:  # the result is undefined, but there is one
        assert run(to_gpu(x), 2, init="random", max_iter=1, check_finite=False).n_iter == 1


W0, H0 = np.ones((4, 2)), np.ones((2, 3))


def test_wrong_arguments(to_gpu):
    x = np.ones((4, 3))
    for data, error, match in (
        (-x, ValueError, "x must be nonnegative, got an entry -1"),
        (x[0], ValueError, "x must be a matrix, got 1"),
        (x * 1j, TypeError, "x must have a real"),
    ):
        with pytest.raises(error, match=match):
            nmf_hals(to_gpu(data), 2)
    for init, error, match in (
        ((to_gpu(W0.T.copy()), H0), ValueError, r"W0 of init must have shape \(4, 2\)"),
        ((to_gpu(-W0), H0), ValueError, "W0 of init must be nonnegative"),
        ((-W0, to_gpu(H0)), ValueError, "W0 of init must be nonnegative"),
        ((W0, to_gpu(H0 * np.nan)), ValueError, "H0 of init must not contain NaN"),
        ((to_gpu(W0 * 1j), H0), TypeError, "W0 of init must have a real"),
    ):
        with pytest.raises(error, match=match):
            nmf_hals(to_gpu(x), 2, init=init)
    with pytest.raises(TypeError, match="H0 of init lies on a GPU"):
        nmf_hals(x, 2, init=(W0, to_gpu(H0)))
    with pytest.raises(ValueError, match="level_w must be >= 1"):
        nmf_hals(to_gpu(x), 2, level_w=to_gpu(np.array([0.5, 2.0])))
    with pytest.raises(TypeError, match="level_w must have a real"):
        nmf_hals(to_gpu(x), 2, level_w=to_gpu(np.array([2j, 2.0])))
    container = type("csr_matrix", (), {"__module__": "cupyx.scipy.sparse"})()
    with pytest.raises(TypeError, match="sparse container on a GPU"):
        nmf_hals(container, 2)
    with pytest.raises(ValueError, match="update_h=False needs"):
        nmf_hals(to_gpu(x), 2, update_h=False)


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2.0**-80), ("float64", 2.0**600)])
def test_units_of_a_dictionary(dtype, unit, to_gpu, to_host):
    x, (w, h) = noisy().astype(dtype), factors()
    h = (h * unit).astype(dtype)
    for start in ((None, h), ((w / unit).astype(dtype), h)):
        got = run(to_gpu(x), init=start, update_h=False)
        expected = run(x, init=start, update_h=False)
        assert_agrees(got, expected, to_host, rtol=1e-5 if dtype == "float32" else 1e-8)
        assert got.error < 0.5 * np.linalg.norm(x)
        np.testing.assert_array_equal(to_host(got.H), h)


@pytest.mark.parametrize(
    ("dtype", "slight"), [("float32", -46), ("float32", -66), ("float64", -500), ("float64", -530)]
)
def test_components_become_balanced(dtype, slight, to_gpu, to_host):
    rng = np.random.default_rng(0)
    h0 = np.zeros((2, 9))
    h0[0, :4], h0[1, 4:8] = rng.random(4) + 0.1, rng.random(4) + 0.1
    x = (rng.random((20, 2)) @ h0).astype(dtype)
    h0[1, 4:8] *= 2.0**slight
    h0[1, 8] = 1.0
    start = rng.random((20, 2)), h0.astype(dtype)
    got, expected = run(to_gpu(x), 2, init=start), run(x, 2, init=start)
    assert_agrees(got, expected, to_host, rtol=1e-5 if dtype == "float32" else 1e-8)
    assert to_host(got.H).max() < 100


@pytest.mark.parametrize(("dtype", "far"), [("float16", 36), ("float32", 130), ("float64", 1030)])
def test_factors_fit_their_dtype(dtype, far, to_gpu, to_host):
    rng = np.random.default_rng(0)
    w, h = (rng.integers(1, 8, shape) / 8 for shape in ((6, 2), (2, 5)))
    edge = np.ldexp(1.0, far // 2)
    for start in ((w / edge, h * edge), (w * edge, h / edge)):
        got = run(to_gpu((4 * w @ h).astype(dtype)), 2, init=start, max_iter=0)
        product = to_host(got.W).astype(float) @ to_host(got.H).astype(float)
        np.testing.assert_array_equal(product, w @ h)
