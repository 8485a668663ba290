"""Arrays of PyTorch and CuPy, on a GPU only: the simulator has arrays of its own."""

import warnings

import numpy as np
import pytest

import conehoyer as ch
from conehoyer._cuda.device import SIMULATED

if SIMULATED:
    pytest.skip("the simulator has arrays of its own", allow_module_level=True)

Y = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
CALLS = {
    "cai": lambda a, **kw: ch.project_cai(a, 5.0, **kw),
    "hoyer": lambda a, **kw: ch.project_hoyer(a, 0.6, **kw),
    "ball": lambda a, **kw: ch.project_l1_ball(a, 3.0, **kw),
    "simplex": lambda a, **kw: ch.project_simplex(a, 3.0, **kw),
    "iterative": lambda a, **kw: ch.project_cai(a, 5.0, method="iterative", **kw),
    "bilevel": lambda a, **kw: ch.project_bilevel(a, 9.0, **kw),
    "l1inf": lambda a, **kw: ch.project_l1inf_ball(a, 3.0, **kw),
    "gsp": lambda a, **kw: ch.project_gsp(a, 0.5, **kw),
}


def load(name):
    """Import a library, whatever it warns of, or skip."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


class Torch:
    """PyTorch."""

    def __init__(self):
        self.torch = load("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("torch sees no GPU")

    def put(self, y):
        return self.torch.as_tensor(y, device="cuda")

    def get(self, x):
        assert isinstance(x, self.torch.Tensor)
        assert x.is_cuda
        return x.float().cpu().numpy() if x.dtype == self.torch.bfloat16 else x.cpu().numpy()

    def empty_like(self, x):
        return self.torch.full_like(x, 77)

    def stream(self):
        return self.torch.cuda.stream(self.torch.cuda.Stream())


class CuPy:
    """CuPy."""

    def __init__(self):
        self.cupy = load("cupy")

    def put(self, y):
        return self.cupy.asarray(y)

    def get(self, x):
        assert isinstance(x, self.cupy.ndarray)
        return self.cupy.asnumpy(x)

    def empty_like(self, x):
        return self.cupy.full_like(x, 77)

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)


@pytest.fixture(params=[Torch, CuPy])
def library(request):
    return request.param()


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_of_the_same_kind(name, library):
    for y in (Y, Y.astype(np.float64), Y.astype(np.float16)):
        a = library.put(y)
        x = CALLS[name](a)
        want = CALLS[name](y)
        host = library.get(x)
        assert host.dtype == want.dtype
        tolerance = {2: 2e-3, 4: 1e-5, 8: 1e-12}[y.dtype.itemsize]
        np.testing.assert_allclose(host, want, rtol=tolerance, atol=tolerance)
        out = library.empty_like(a)
        assert CALLS[name](a, out=out) is out
        np.testing.assert_array_equal(library.get(out), host)
        np.testing.assert_array_equal(library.get(a), y)


@pytest.mark.parametrize("name", ["cai", "bilevel"])
def test_views_and_reports(name, library):
    a = library.put(np.ascontiguousarray(Y.T)).T[::2]
    x, info = CALLS[name](a, full_output=True)
    want, expected = CALLS[name](np.ascontiguousarray(Y[::2]), full_output=True)
    np.testing.assert_allclose(library.get(x), want, atol=1e-5)
    np.testing.assert_array_equal(library.get(info.nnz), expected.nnz)


def test_scores_and_levels(library):
    a = library.put(Y)
    for score in (ch.cai_score, ch.hoyer_score, ch.hoyer_sparseness, ch.gsp_score):
        np.testing.assert_allclose(library.get(score(a)), score(Y), rtol=1e-6)
    np.testing.assert_allclose(
        library.get(ch.level_for_nnz(a, 7)), ch.level_for_nnz(Y, 7), rtol=1e-6
    )
    level = ch.level_for_groups(a, 9)
    np.testing.assert_allclose(library.get(level), ch.level_for_groups(Y, 9), rtol=1e-6)
    np.testing.assert_allclose(
        library.get(ch.project_bilevel(a, level)),
        ch.project_bilevel(Y, ch.level_for_groups(Y, 9)), atol=1e-5,
    )  # fmt: skip


def test_the_current_stream(library):
    """What was put on it before is waited for, and what follows waits."""
    big = np.random.default_rng(1).standard_normal((512, 4096)).astype(np.float32)
    want = ch.project_cai(2.0 * big, 300.0)
    a = library.put(big)
    library.get(a)
    with library.stream():
        for _ in range(50):
            a = a * 1.0
        x = ch.project_cai(a * 2.0, 300.0, check_finite=False)
        y = x * 1.0
        host = library.get(y)
    np.testing.assert_allclose(host, want, atol=1e-4)


def test_factorisation(library):
    rng = np.random.default_rng(2)
    x = rng.random((30, 4)) @ rng.random((4, 50))
    got = ch.nmf_hals(library.put(x), 4, rng=0, max_iter=30)
    want = ch.nmf_hals(x, 4, rng=0, max_iter=30)
    product = library.get(got.W) @ library.get(got.H)
    np.testing.assert_allclose(product, want.W @ want.H, atol=1e-6)


def test_bfloat16():
    torch = Torch().torch
    a = torch.as_tensor(Y, device="cuda").bfloat16()
    x = ch.project_cai(a, 5.0)
    assert x.dtype == torch.bfloat16
    want = ch.project_cai(a.float().cpu().numpy(), 5.0)
    np.testing.assert_allclose(x.float().cpu().numpy(), want, rtol=2.0**-7, atol=1e-3)


def test_another_library_is_refused(library):
    other = CuPy if isinstance(library, Torch) else Torch
    try:
        other = other()
    except pytest.skip.Exception:
        pytest.skip("needs both")
    with pytest.raises(TypeError, match="out must be of x's library"):
        ch.project_cai(library.put(Y), 5.0, out=other.empty_like(other.put(Y)))
