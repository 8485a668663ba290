"""Group sparse projection on the device, against a bisection on μ and the CPU."""

import numpy as np
import oracle
import pytest
from distributions import make

import conehoyer as ch

LD = np.longdouble
LENGTHS = (2, 3, 10, 57, 130)  # the last one has several pieces in the simulator

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


def bisected(vectors, sparseness):
    """The projection of vectors whose largest entries do not tie."""
    flat = [np.abs(np.ravel(v)).astype(LD) for v in vectors]
    shares = [1 / (np.sqrt(LD(a.size)) - 1) for a in flat]

    def units(mu):
        for a, share in zip(flat, shares, strict=True):
            d = np.maximum(a - mu * share, 0)
            if not d.any():
                d[np.argmax(a)] = 1
            yield d / np.sqrt(np.sum(d * d))

    def missing(mu):
        sums = [s * (z.sum() - 1) for s, z in zip(shares, units(mu), strict=True)]
        return sum(sums) - len(flat) * (1 - LD(sparseness))

    low, high = LD(0), max(a.max() / s for a, s in zip(flat, shares, strict=True))
    if missing(low) <= 0:
        return [np.ravel(v) for v in vectors]
    for _ in range(200):
        middle = (low + high) / 2
        if missing(middle) > 0:
            low = middle
        else:
            high = middle
    return [
        np.sign(np.ravel(v)) * np.sum(z * a) * z
        for v, a, z in zip(vectors, flat, units(low), strict=True)
    ]


def same(got, wanted, tolerance=1e-12):
    for x, ref in zip(got, wanted, strict=True):
        size = np.abs(ref).max(initial=0)
        assert np.abs(x.ravel().astype(LD) - np.ravel(ref)).max(initial=0) <= tolerance * size


def compare(info, expected, to_host, tolerance=1e-12):
    for name in ("multiplier", "threshold", "sparseness", "nnz", "converged"):
        got, wanted = to_host(getattr(info, name)), np.asarray(getattr(expected, name))
        assert got.shape == wanted.shape, name
        assert got.dtype == wanted.dtype, name
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=1e-300, err_msg=name)
    assert to_host(info.passes).dtype == np.int64


@pytest.mark.parametrize("name", ["gaussian", "near_constant", "cauchy"])
def test_a_list_against_bisection(name, to_gpu, to_host):
    vectors = [make(name, n) for n in (LENGTHS if name != "near_constant" else (2, 10, 20))]
    devices = [to_gpu(v) for v in vectors]
    for sparseness in (0.3, 0.75) if name == "gaussian" else (0.5,):
        got, info = ch.project_gsp(devices, sparseness, full_output=True)
        got = [to_host(x) for x in got]
        same(got, bisected(vectors, sparseness), 1e-8 if name == "near_constant" else 1e-11)
        assert oracle.gsp_score(got) == pytest.approx(sparseness, abs=1e-12)
        ref, expected = ch.project_gsp(vectors, sparseness, full_output=True)
        same(got, ref)
        compare(info, expected, to_host)


@pytest.mark.parametrize("name", ["integers", "blocks_of_ties", "one_hot_ish", "huge_1e300"])
def test_ties_and_scales(name, to_gpu, to_host):
    vectors = [make(name, n) for n in (2, 10, 57)]
    devices = [to_gpu(v) for v in vectors]
    for sparseness in (0.5, 1.0):
        got, info = ch.project_gsp(devices, sparseness, full_output=True)
        ref, expected = ch.project_gsp(vectors, sparseness, full_output=True)
        same([to_host(x) for x in got], ref)
        compare(info, expected, to_host)


def test_equal_entries(to_gpu, to_host):
    vectors = [np.ones(4), -2.0 * np.ones(9), np.ones(5), np.zeros(3), np.ones(1)]
    for sparseness in (0.2, 0.6):
        got = ch.project_gsp([to_gpu(v) for v in vectors], sparseness)
        same([to_host(x) for x in got], ch.project_gsp(vectors, sparseness))


@pytest.mark.parametrize("exponents", [(0, -400, 310), (-1060, -1050, -1060), (900, 1000, 20)])
def test_mixed_scales(exponents, to_gpu, to_host):
    rng = np.random.default_rng(1)
    vectors = [np.ldexp(rng.random(20), e) for e in exponents]
    got = ch.project_gsp([to_gpu(v) for v in vectors], 0.6)
    for x, ref in zip(got, ch.project_gsp(vectors, 0.6), strict=True):
        host = to_host(x)
        np.testing.assert_allclose(host, ref, rtol=0, atol=1e-12 * abs(ref).max() + 5e-324)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_axes(axis, to_gpu, to_host):
    y = np.random.default_rng(2).standard_normal((3, 2, 6))
    x, info = ch.project_gsp(to_gpu(y), 0.6, axis=axis, full_output=True)
    ref, expected = ch.project_gsp(y, 0.6, axis=axis, full_output=True)
    np.testing.assert_allclose(to_host(x), ref, rtol=0, atol=1e-12)
    compare(info, expected, to_host)
    view = to_gpu(y)[:, ::2, ::3]
    np.testing.assert_allclose(
        to_host(ch.project_gsp(view, 0.6)), ch.project_gsp(y[:, ::2, ::3], 0.6), atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_other_dtypes(dtype, to_gpu, to_host):
    y = (np.random.default_rng(3).standard_normal((3, 20)) * 5).astype(dtype)
    x, info = ch.project_gsp(to_gpu(y), 0.6, full_output=True)
    ref = ch.project_gsp(y, 0.6)
    host = to_host(x)
    assert host.dtype == ref.dtype
    tolerance = {"float32": 1e-6, "float16": 1e-3, "int32": 1e-12}[dtype]
    np.testing.assert_allclose(host, ref, rtol=tolerance, atol=tolerance)
    assert to_host(info.sparseness) == pytest.approx(0.6, abs=1e-12)
    assert to_host(info.converged)
    again = to_host(ch.project_gsp(x, 0.6))
    if dtype == "float32":
        np.testing.assert_array_equal(again, host)
    mixed = [y[0].astype(np.float32), y[1].astype(np.float64), y[2:].astype(np.float16)]
    got = ch.project_gsp([to_gpu(v) for v in mixed], 0.5)
    for g, r in zip(got, ch.project_gsp(mixed, 0.5), strict=True):
        assert g.dtype == r.dtype
        np.testing.assert_allclose(to_host(g), r, rtol=2e-3, atol=1e-2)


def test_feasible(to_gpu, to_host):
    y = np.random.default_rng(4).standard_normal((3, 20))
    y[0, 0] = -0.0
    for sparseness in (0.0, 0.01):
        x, info = ch.project_gsp(to_gpu(y), sparseness, full_output=True)
        assert to_host(x).tobytes() == y.tobytes()
        assert to_host(info.multiplier) == 0.0
    once = ch.project_gsp(to_gpu(y), 0.7)
    np.testing.assert_array_equal(to_host(ch.project_gsp(once, 0.7)), to_host(once))


def test_many_vectors(to_gpu, to_host):
    y = np.random.default_rng(5).integers(-3, 4, (20, 3)).astype(float)
    x = to_host(ch.project_gsp(to_gpu(y), 0.7))
    np.testing.assert_allclose(x, ch.project_gsp(y, 0.7), rtol=0, atol=1e-12)


def test_out_and_in_place(to_gpu, to_host):
    y = np.random.default_rng(6).standard_normal((2, 20))
    ref = ch.project_gsp(y, 0.6)
    device, out = to_gpu(y), to_gpu(np.zeros((2, 20)))
    assert ch.project_gsp(device, 0.6, out=out) is out
    np.testing.assert_allclose(to_host(out), ref, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(to_host(device), y)
    assert ch.project_gsp(device, 0.6, out=device) is device
    np.testing.assert_allclose(to_host(device), ref, rtol=0, atol=1e-12)
    first, second = to_gpu(y[0]), to_gpu(y[1])
    got = ch.project_gsp([first, second], 0.6, overwrite_x=True)
    assert got[0] is first
    assert got[1] is second
    same([to_host(x) for x in got], ref)
    first, second = to_gpu(y[0]), to_gpu(y[1])
    got = ch.project_gsp([first, second], 0.6, out=[second, first])  # each spoils the other
    same([to_host(x) for x in got], ref)
    twice = ch.project_gsp([first, first], 0.6, overwrite_x=True)
    assert twice[0] is not first
    same([to_host(x) for x in twice], [to_host(twice[0])] * 2, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_not_finite(bad, to_gpu, to_host):
    y = np.random.default_rng(7).standard_normal((3, 20))
    y[1, 5] = bad
    device = to_gpu(y)
    with pytest.raises(ValueError, match="finite"):
        ch.project_gsp(device, 0.5, out=device)
    np.testing.assert_array_equal(to_host(device), y)
    x, info = ch.project_gsp(device, 0.5, check_finite=False, full_output=True)
    assert np.isnan(to_host(x)).all()
    for told in (info.sparseness, info.multiplier, info.threshold):
        assert np.isnan(to_host(told)).all()


def test_empty(to_gpu, to_host):
    for shape in ((0, 3), (3, 0), (3, 1)):
        y = np.zeros(shape)
        x, info = ch.project_gsp(to_gpu(y), 0.5, full_output=True)
        _, expected = ch.project_gsp(y, 0.5, full_output=True)
        assert x.shape == shape
        compare(info, expected, to_host)
    got = ch.project_gsp([to_gpu(np.zeros(0)), to_gpu(np.array([3.0, 1.0]))], 0.9)
    same([to_host(got[1])], ch.project_gsp([np.array([3.0, 1.0])], 0.9))


def test_errors(to_gpu):
    y = to_gpu(np.ones((2, 5)))
    with pytest.raises(ValueError, match="sparseness"):
        ch.project_gsp(y, 1.5)
    with pytest.raises(TypeError, match="sparseness must lie on the host"):
        ch.project_gsp(y, to_gpu(np.ones(1)))
    with pytest.raises(TypeError, match=r"x\[1\] on the host"):
        ch.project_gsp([y, np.ones(3)], 0.5)
    with pytest.raises(TypeError, match=r"x\[1\] on a GPU"):
        ch.project_gsp([np.ones(3), y], 0.5)
    with pytest.raises(TypeError, match=r"out\[1\]: out must lie on the GPU"):
        ch.project_gsp([y, y], 0.5, out=[to_gpu(np.ones((2, 5))), np.ones((2, 5))])
    out = to_gpu(np.ones((2, 5)))
    with pytest.raises(ValueError, match=r"out\[0\] and out\[1\] must not overlap"):
        ch.project_gsp([y, y], 0.5, out=[out, out])
    with pytest.raises(ValueError, match="as many arrays"):
        ch.project_gsp([y, y], 0.5, out=[out])
    with pytest.raises(TypeError, match="out must be a list"):
        ch.project_gsp([y, y], 0.5, out=out)


def test_the_cap_is_reported(monkeypatch, to_gpu, to_host):
    from conehoyer import _math
    from conehoyer._cuda.device import SIMULATED

    if not SIMULATED:
        pytest.skip("the cap is compiled in")
    y = np.random.default_rng(8).standard_normal((3, 20))
    monkeypatch.setattr(_math, "MAX_PASSES", 1)
    with pytest.warns(ch.ConvergenceWarning, match="stopped after 1 passes"):
        _, info = ch.project_gsp(to_gpu(y), 0.6, full_output=True)
    assert not to_host(info.converged)
