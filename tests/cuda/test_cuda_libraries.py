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


def numba_array(a):
    """The same memory as a device array of Numba."""
    from numba import cuda

    return cuda.as_cuda_array(a)


@pytest.mark.parametrize("name", CALLS)
def test_the_result_is_of_the_same_kind(name, library):
    for y in (Y, Y.astype(np.float64), Y.astype(np.float16)):
        a = library.put(y)
        host = library.get(CALLS[name](a))
        np.testing.assert_array_equal(host, CALLS[name](numba_array(a)).copy_to_host())
        out = library.empty_like(a)
        assert CALLS[name](a, out=out) is out
        np.testing.assert_array_equal(library.get(out), host)
        np.testing.assert_array_equal(library.get(a), y)


@pytest.mark.parametrize("name", ["cai", "bilevel"])
def test_views_and_reports(name, library):
    a = library.put(np.ascontiguousarray(Y.T)).T[::2]
    x, info = CALLS[name](a, full_output=True)
    want, expected = CALLS[name](library.put(Y[::2].copy()), full_output=True)
    np.testing.assert_array_equal(library.get(x), library.get(want))
    np.testing.assert_array_equal(library.get(info.nnz), library.get(expected.nnz))


def test_scores_and_levels(library):
    a = library.put(Y)
    for score in (ch.cai_score, ch.hoyer_score, ch.hoyer_sparseness, ch.gsp_score):
        want = score(numba_array(a)).copy_to_host()
        np.testing.assert_array_equal(library.get(score(a)), want)
    want = ch.level_for_nnz(numba_array(a), 7).copy_to_host()
    np.testing.assert_array_equal(library.get(ch.level_for_nnz(a, 7)), want)
    level = ch.level_for_groups(a, 9)
    assert library.get(level).shape == ()
    x = library.get(ch.project_bilevel(a, level))
    assert np.count_nonzero(x.any(axis=0)) == 9


def test_the_current_stream(library):
    """What was put on it before is waited for, and what follows waits."""
    big = np.random.default_rng(1).standard_normal((512, 4096)).astype(np.float32)
    want = library.get(ch.project_cai(library.put(2.0 * big), 300.0))
    a = library.put(big)
    library.get(a)
    with library.stream():
        for _ in range(50):
            a = a * 1.0
        x = ch.project_cai(a * 2.0, 300.0, check_finite=False)
        y = x * 1.0
        host = library.get(y)
    np.testing.assert_array_equal(host, want)


def test_factorisation(library):
    rng = np.random.default_rng(2)
    x = rng.random((30, 4)) @ rng.random((4, 50))
    got = ch.nmf_hals(library.put(x), 4, rng=0, max_iter=500, tol=0.01)
    product = library.get(got.W) @ library.get(got.H)
    assert np.linalg.norm(product - x) <= 0.05 * np.linalg.norm(x)


def test_bfloat16():
    torch = Torch().torch
    a = torch.as_tensor(Y, device="cuda").bfloat16()
    x = ch.project_cai(a, 5.0)
    assert x.dtype == torch.bfloat16
    want = ch.project_cai(a.float(), 5.0).bfloat16()  # rounded once
    np.testing.assert_array_equal(x.float().cpu().numpy(), want.float().cpu().numpy())


def test_another_library_is_refused(library):
    other = CuPy if isinstance(library, Torch) else Torch
    try:
        other = other()
    except pytest.skip.Exception:
        pytest.skip("needs both")
    with pytest.raises(TypeError, match="out must be"):
        ch.project_cai(library.put(Y), 5.0, out=other.empty_like(other.put(Y)))
