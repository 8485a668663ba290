"""Torch tensors in, torch tensors out, and their gradients."""

import collections
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import conehoyer as ch

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from conehoyer import _vjp_kernels, blocksparse, optim  # noqa: E402


def normal(*shape, seed=0):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def leaf(array, dtype=None):
    return torch.tensor(array, dtype=dtype or torch.float64, requires_grad=True)


LABELS = np.array([[0, 1, 1, 2, 0], [3, 0, 1, 2, 2], [0, 3, 3, 1, 2], [1, 1, 0, 3, 2]])
EVERY = np.stack([LABELS, LABELS[::-1], (LABELS + 2) % 5])  # of shape (3, 4, 5)
GROUPS = {
    "columns": "columns", "rows": "rows", "diagonals": "diagonals", "blocks": (2, 2),
    "large block": (9, 2), "labels": LABELS, "list": LABELS.tolist(), "all": EVERY,
}  # fmt: skip
VECTORS = {
    "cai": lambda x, **k: ch.project_cai(x, 2.5, **k),
    "cai l = 1": lambda x, **k: ch.project_cai(x, 1.0, **k),
    "cai iterative": lambda x, **k: ch.project_cai(x, 2.5, method="iterative", **k),
    "cai inside": lambda x, **k: ch.project_cai(x, 6.9, **k),
    "cai nonneg": lambda x, **k: ch.project_cai(x, 2.5, nonneg=True, **k),
    "cai nonneg inside": lambda x, **k: ch.project_cai(x, 6.9, nonneg=True, **k),
    "hoyer": lambda x, **k: ch.project_hoyer(x, 0.7, **k),
    "hoyer dense": lambda x, **k: ch.project_hoyer(x, 0.1, **k),
    "hoyer s = 0": lambda x, **k: ch.project_hoyer(x, 0.0, **k),
    "hoyer s = 1": lambda x, **k: ch.project_hoyer(x, 1.0, **k),
    "hoyer l2": lambda x, **k: ch.project_hoyer(x, 0.7, l2=2.0, **k),
    "hoyer l1 l2": lambda x, **k: ch.project_hoyer(x, l1=1.7, l2=1.0, **k),
    "hoyer dense l1 l2": lambda x, **k: ch.project_hoyer(x, l1=2.4, l2=1.0, **k),
    "hoyer nonneg": lambda x, **k: ch.project_hoyer(x, 0.7, nonneg=True, **k),
    "hoyer nonneg dense": lambda x, **k: ch.project_hoyer(x, 0.05, nonneg=True, **k),
    "hoyer alternating": lambda x, **k: ch.project_hoyer(x, 0.7, method="alternating", **k),
    "ball": lambda x, **k: ch.project_l1_ball(x, 1.5, **k),
    "ball condat": lambda x, **k: ch.project_l1_ball(x, 1.5, method="condat", **k),
    "ball inside": lambda x, **k: ch.project_l1_ball(x, 50.0, **k),
    "ball r = 0": lambda x, **k: ch.project_l1_ball(x, 0.0, **k),
    "ball nonneg": lambda x, **k: ch.project_l1_ball(x, 1.5, nonneg=True, **k),
    "ball nonneg inside": lambda x, **k: ch.project_l1_ball(x, 50.0, nonneg=True, **k),
    "simplex": lambda x, **k: ch.project_simplex(x, 1.5, **k),
    "simplex sort": lambda x, **k: ch.project_simplex(x, 1.5, method="sort", **k),
    "simplex dense": lambda x, **k: ch.project_simplex(x, 90.0, **k),
    "gsp": lambda x, **k: ch.project_gsp(x, 0.5, **k),
    "gsp s = 1": lambda x, **k: ch.project_gsp(x, 1.0, **k),
    "gsp almost 1": lambda x, **k: ch.project_gsp(x, 0.97, **k),
    "gsp inside": lambda x, **k: ch.project_gsp(x, 0.01, **k),
    "cai_score": lambda x, **k: ch.cai_score(x, **k),
    "hoyer_score": lambda x, **k: ch.hoyer_score(x, **k),
    "hoyer_sparseness": lambda x, **k: ch.hoyer_sparseness(x, **k),
    "gsp_score": lambda x, **k: ch.gsp_score(x, **k),
}
MATRICES = {
    "level": lambda x, **k: ch.project_bilevel(x, 2.5, **k),
    "level l2": lambda x, **k: ch.project_bilevel(x, 2.5, inner="l2", **k),
    "level l1": lambda x, **k: ch.project_bilevel(x, 2.5, inner="l1", **k),
    "level 1": lambda x, **k: ch.project_bilevel(x, 1.0, inner="l2", **k),
    "feasible": lambda x, **k: ch.project_bilevel(x, 2.5, feasible=True, **k),
    "feasible l2": lambda x, **k: ch.project_bilevel(x, 2.5, inner="l2", feasible=True, **k),
    "feasible l1": lambda x, **k: ch.project_bilevel(x, 2.5, inner="l1", feasible=True, **k),
    "radius": lambda x, **k: ch.project_bilevel(x, radius=2.0, **k),
    "radius l2": lambda x, **k: ch.project_bilevel(x, radius=2.0, inner="l2", **k),
    "radius l1": lambda x, **k: ch.project_bilevel(x, radius=4.0, inner="l1", **k),
    "radius 0": lambda x, **k: ch.project_bilevel(x, radius=0.0, **k),
    "inside": lambda x, **k: ch.project_bilevel(x, 50.0, **k),
    "inside l2": lambda x, **k: ch.project_bilevel(x, radius=500.0, inner="l2", **k),
    "inside l1": lambda x, **k: ch.project_bilevel(x, radius=500.0, inner="l1", **k),
    "exact": lambda x, **k: ch.project_l1inf_ball(x, 2.0, **k),
    "exact, all kept": lambda x, **k: ch.project_l1inf_ball(x, 8.0, **k),
    "exact inside": lambda x, **k: ch.project_l1inf_ball(x, 500.0, **k),
    "exact 0": lambda x, **k: ch.project_l1inf_ball(x, 0.0, **k),
}
vectors = pytest.mark.parametrize("name", VECTORS)
matrices = pytest.mark.parametrize("name", MATRICES)


def check(function, *tensors):
    assert torch.autograd.gradcheck(function, tensors, eps=1e-6, atol=1e-6, rtol=1e-5)


# ---------------------------------------------------------------------------
# gradients


@vectors
@pytest.mark.parametrize("axis", [-1, 0, None])
def test_gradient_of_vectors(name, axis):
    y = normal(7, 9, seed=1)
    check(lambda x: VECTORS[name](x, axis=axis), leaf(y))


@vectors
def test_gradient_of_a_single_vector(name):
    check(VECTORS[name], leaf(normal(8, seed=3)))


@matrices
@pytest.mark.parametrize("groups", GROUPS)
def test_gradient_of_groups(name, groups):
    function = MATRICES[name]
    check(lambda x: function(x, groups=GROUPS[groups]), leaf(normal(3, 4, 5, seed=5)))


@matrices
def test_gradient_of_one_matrix(name):
    check(MATRICES[name], leaf(normal(6, 5, seed=2)))


@pytest.mark.parametrize("seed", range(6))
def test_gradient_of_a_list(seed):
    rng = np.random.default_rng(seed)
    parts = [leaf(rng.standard_normal(s)) for s in [(3, 4), (6,), (1,), (), (2, 5, 2), (0,)]]
    parts.append(leaf(np.zeros(3)).detach())  # at zero there is no derivative
    for sparseness in (0.4, 0.8, 0.99):
        check(lambda *p, s=sparseness: tuple(ch.project_gsp(list(p), s)), *parts)
    check(lambda *p: ch.gsp_score(p), *parts)


@given(st.integers(0, 10**6), st.integers(2, 30), st.floats(1.05, 6.0))
@example(seed=1056, n=29, level=1.5)  # an entry of 1e-10, whose sign tells where it is moved
def test_gradients_at_random_points(seed, n, level):
    """Products with a vector against finite differences of the NumPy function alone."""
    rng = np.random.default_rng(seed)
    y, g, step = rng.standard_normal((3, n))
    calls = {
        "cai": lambda x: ch.project_cai(x, level),
        "cai nonneg": lambda x: ch.project_cai(x, level, nonneg=True),
        "hoyer": lambda x: ch.project_hoyer(x, min(level / 7, 0.9)),
        "ball": lambda x: ch.project_l1_ball(x, level),
        "simplex": lambda x: ch.project_simplex(x, level),
    }
    for name, call in calls.items():
        x = leaf(y)
        (call(x) * torch.from_numpy(g)).sum().backward()
        h = 1e-7
        ahead, behind = (call(y + s * h * step) for s in (1, -1))
        if not np.array_equal(np.sign(ahead), np.sign(behind)):
            continue  # a kink between the two points, or a jump
        expected = g @ (ahead - behind) / (2 * h)
        size = np.abs(g).sum() * (1 + np.abs((ahead - behind) / (2 * h)).max())
        assert abs(x.grad.numpy() @ step - expected) < 1e-5 * size, name


def differences(function, y, h=1e-6):
    """The Jacobian of a NumPy function by central differences."""
    columns = []
    for i in range(y.size):
        step = np.zeros(y.size)
        step[i] = h
        step = step.reshape(y.shape)
        columns.append((function(y + step) - function(y - step)).ravel() / (2 * h))
    return np.array(columns).T


@matrices
def test_against_differences_of_numpy(name):
    y = normal(5, 4, seed=11)
    expected = differences(MATRICES[name], y)
    got = torch.autograd.functional.jacobian(MATRICES[name], torch.from_numpy(y))
    np.testing.assert_allclose(got.numpy().reshape(20, 20), expected, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e150])
@pytest.mark.parametrize("name", ["cai", "hoyer", "gsp", "hoyer l1 l2"])
def test_gradient_of_tiny_and_huge_data(name, scale):
    y, g = normal(12, seed=4), torch.from_numpy(normal(12, seed=5))
    grads = []
    for unit in (1.0, scale):
        x = leaf(y * unit)
        (VECTORS[name](x) * g).sum().backward()
        grads.append(x.grad.numpy() * (unit if name == "hoyer l1 l2" else 1.0))
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("exponent", [-1040, 1015])
def test_gradient_of_several_vectors_at_the_limits(exponent):
    """Vectors without a part in it, zero, of one entry or all alike, do not matter."""
    parts = [normal(12, seed=4), normal(9, seed=7), np.zeros(5), np.full(1, 1e-300), normal(0)]
    parts.append(np.full(3, 5e-324))  # below every threshold
    grads = []
    for unit in (1.0, 2.0**exponent):
        leaves = [leaf(np.round(part * 2**20) / 2**20 * unit) for part in parts[:2]]
        results = ch.project_gsp([*leaves, *map(torch.from_numpy, parts[2:])], 0.7)
        sum((r * torch.arange(len(r))).sum() for r in results[:2]).backward()
        grads.append(np.concatenate([x.grad.numpy() for x in leaves]))
    assert np.abs(grads[0]).max() > 1.0
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["level l2", "feasible l2", "level l1", "radius l2"])
def test_gradient_of_groups_of_tiny_data(name):
    y, g = normal(6, 5), torch.from_numpy(normal(6, 5, seed=1))
    grads = []
    for unit in (1.0, 2.0**-700, 2.0**600):
        x = leaf(y * unit)
        if name.startswith("radius"):
            call = ch.project_bilevel(x, radius=2.0 * unit, inner="l2")
        else:
            call = MATRICES[name](x)
        call.backward(g)
        grads.append(x.grad.numpy())
    np.testing.assert_allclose(grads[1], grads[0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(grads[2], grads[0], rtol=1e-9, atol=1e-12)


def test_gradient_of_nearly_constant_data():
    """The entries differ by 1e-12: only centred sums tell their slope."""
    y = 1.0 + 1e-12 * normal(40, seed=7)
    noise = y - 1.0  # exactly
    g = normal(40, seed=8)
    x = leaf(y)
    z = ch.project_cai(x, 12.0)
    (z * torch.from_numpy(g)).sum().backward()
    # The same direction from the noise alone, and the formula of the docs.
    raw = ch.project_hoyer(noise, l1=np.sqrt(12.0), l2=1.0, nonneg=True)
    on = raw > 0
    u = raw[on] - raw[on].mean()
    slope = (u @ (noise[on] - noise[on].mean())) / (u @ u)
    size = float(z.detach().norm())
    h = g[on]
    kappa = size / slope
    expected = np.zeros(40)
    expected[on] = kappa * (h - h.mean() - u * (u @ h) / (u @ u)) + raw[on] * (raw[on] @ h)
    np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-6)


def test_gradient_is_homogeneous():
    """Cones: x(t·y) = t·x(y), so the derivative along y is x."""
    y = normal(50)
    for call in (
        lambda x: ch.project_cai(x, 9.0),
        lambda x: ch.project_hoyer(x, 0.8),
        lambda x: ch.project_gsp(x.reshape(5, 10), 0.6).reshape(-1),
    ):
        x = torch.from_numpy(y)
        jacobian = torch.autograd.functional.jacobian(call, x)
        torch.testing.assert_close(jacobian @ x, call(x))


def test_gradient_in_float32_and_16_bits():
    y, g = normal(64, 100), normal(64, 100, seed=1)
    for dtype, tol in [(torch.float32, 1e-4), (torch.float16, 0.1), (torch.bfloat16, 0.5)]:
        near = torch.tensor(y).to(dtype)
        grads = []
        for d in (torch.float64, dtype):
            x = near.to(d).requires_grad_()
            ch.project_cai(x, 20.0).backward(torch.tensor(g).to(dtype).to(d))
            assert x.grad.dtype == d
            grads.append(x.grad.double().numpy())
        error = np.linalg.norm(grads[1] - grads[0], axis=1) / np.linalg.norm(grads[0], axis=1)
        assert np.median(error) < tol, dtype


@pytest.mark.parametrize("layout", ["expanded", "transposed"])
def test_incoming_gradient_of_any_layout(layout):
    y = normal(4, 4)
    g = torch.ones(()).double().expand(4, 4) if layout == "expanded" else torch.eye(4).double().T
    x, z = leaf(y), leaf(y)
    ch.project_cai(x, 2.0).backward(g)
    ch.project_cai(z, 2.0).backward(g.contiguous())
    torch.testing.assert_close(x.grad, z.grad, rtol=0, atol=0)


SERVES = _vjp_kernels.serves


def both_ways(monkeypatch, call, y, g):
    """The gradient by the kernels, and by the formulas for tensors that have none."""
    found, asked = [], []
    for allowed in (True, False):
        monkeypatch.setattr(
            _vjp_kernels,
            "serves",
            lambda *t, a=allowed: asked.append(SERVES(*t)) or (a and asked[-1]),
        )
        x = y.clone().requires_grad_()
        result = call(x)
        results = result if isinstance(result, list) else [result]
        result = torch.cat([r.reshape(-1) for r in results])
        result.backward(torch.from_numpy(g[: len(result)]).to(result.dtype))
        found.append(x.grad.double())
    assert asked == [True, True]
    return found


@vectors
@pytest.mark.parametrize("axis", [1, 0, None])
@pytest.mark.parametrize(
    ("dtype", "exponent", "tolerance"),
    [("float64", 0, 1e-12), ("float64", 900, 1e-12), ("float64", -900, 1e-12),
     ("float32", 0, 3e-5), ("float32", -100, 3e-5)],
)  # fmt: skip
def test_kernels_and_formulas_agree(name, axis, dtype, exponent, tolerance, monkeypatch):
    y = np.ldexp(normal(40, 33, seed=1) ** 3, exponent)
    y[3], y[:, 5], y[7] = 0.0, 0.0, np.abs(y[7])
    y[9, 1:] = y[9, 0]  # a tie
    y = torch.from_numpy(y).to(getattr(torch, dtype))
    found = both_ways(monkeypatch, lambda x: VECTORS[name](x, axis=axis), y, normal(y.numel()))
    scale = max(found[1].abs().max().item(), 1e-300)
    assert (found[0] - found[1]).abs().max() <= tolerance * scale


@matrices
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize(
    ("dtype", "exponent", "tolerance"),
    [("float64", 0, 1e-12), ("float64", 900, 1e-12), ("float64", -900, 1e-12),
     ("float32", 0, 3e-5)],
)  # fmt: skip
def test_kernels_and_formulas_agree_on_groups(
    name, groups, dtype, exponent, tolerance, monkeypatch
):  # fmt: skip
    y = np.ldexp(normal(3, 4, 5, seed=6), exponent)
    y[0, 1, :3] = y[0, 1, 0]  # the largest entries of a group tie, or are zero
    y[1, :, 2] = 0.0
    y = torch.from_numpy(y).to(getattr(torch, dtype))
    found = both_ways(
        monkeypatch, lambda x: MATRICES[name](x, groups=GROUPS[groups]), y, normal(60)
    )
    scale = max(found[1].abs().max().item(), 1e-300)
    assert (found[0] - found[1]).abs().max() <= tolerance * scale


@pytest.mark.parametrize("shape", [(37, 41), (8, 100), (100, 1), (1, 100), (70, 64)])
@pytest.mark.parametrize(
    "groups", ["columns", "rows", "diagonals", (3, 40), (40, 3), (1, 4), (3, 1), (2, 35)]
)
@pytest.mark.parametrize("name", ["level", "level l2", "level l1", "exact"])
def test_kernels_and_formulas_agree_on_larger_groups(name, groups, shape, monkeypatch):
    y, g = normal(*shape, seed=7), normal(shape[0] * shape[1], seed=8)
    for order in "CF":
        x = torch.from_numpy(np.asarray(y, order=order))
        found = both_ways(monkeypatch, lambda t: MATRICES[name](t, groups=groups), x, g)
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("groups", ["columns", "rows", (4, 2), (2, 40), "diagonals"])
def test_kernels_and_formulas_agree_where_the_largest_of_a_group_tie(groups, monkeypatch):
    """In one of its columns, in one of its rows, and in both; with either sign."""
    y = np.where(normal(12, 80, seed=9) > 0.0, 1.0, 1.5)
    y = torch.from_numpy(np.copysign(y, normal(12, 80, seed=10)))
    found = both_ways(
        monkeypatch, lambda t: ch.project_bilevel(t, radius=3.0, groups=groups), y, normal(960)
    )
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("inner", ["l1", "l2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_groups_whose_norms_tie_but_for_rounding(inner, dtype, monkeypatch):
    """They are sums in another order, here and in the projection."""
    values = normal(30, seed=2)
    y = np.stack([np.random.default_rng(k).permutation(values) for k in range(12)], 1)
    y[:, 6:] *= 0.1
    y = torch.from_numpy(y).to(getattr(torch, dtype))
    found = both_ways(
        monkeypatch, lambda x: ch.project_bilevel(x, 4.5, inner=inner), y, normal(360, seed=3)
    )
    assert max(g.abs().max() for g in found) < 10.0
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("exponent", [0, 1000, -1000])
def test_kernels_and_formulas_agree_on_a_list(exponent, monkeypatch):
    y = torch.from_numpy(np.ldexp(normal(60, seed=3), exponent))
    y[20:24] = y[20]

    def project(x):
        return ch.project_gsp([x[:20].reshape(4, 5), x[20:24], x[24:25], x[25:]], 0.6)

    found = both_ways(monkeypatch, project, y, normal(60, seed=4))
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["cai", "hoyer", "ball", "gsp", "hoyer_score"])
def test_workers_give_gradients_the_same_bits(name):
    y, grads = normal(600, 500, seed=1), []
    for workers in (1, 2):
        x = leaf(y)
        result = VECTORS[name](x, workers=workers)
        result.backward(torch.from_numpy(normal(*result.shape, seed=2)))
        grads.append(x.grad)
    assert torch.equal(*grads)


@vectors
def test_vectors_of_a_jacobian_of_many_gradients_at_once(name):
    jacobian = torch.autograd.functional.jacobian
    x = torch.tensor(normal(3, 6))
    project = VECTORS[name]
    torch.testing.assert_close(jacobian(project, x, vectorize=True), jacobian(project, x))


@pytest.mark.parametrize("name", ["cai", "hoyer", "ball nonneg", "gsp"])
def test_gradients_of_nan_are_nan(name):
    """And only in the slices that hold any, but for a group with one multiplier."""
    y = normal(5, 8)
    y[2, 3] = np.nan
    x = leaf(y)
    VECTORS[name](x, check_finite=False).sum().backward()
    assert x.grad[2].isnan().all()
    assert name == "gsp" or x.grad.isfinite().sum() == 32


# ---------------------------------------------------------------------------
# points without a derivative: the choice that the docs state


def gradient(call, y, g=None):
    x = leaf(np.array(y, float))
    result = call(x)
    result.backward(torch.ones_like(result) if g is None else torch.tensor(g).double())
    assert torch.isfinite(x.grad).all()
    return x.grad.numpy()


def test_ties_at_the_top_keep_the_direction():
    """Only the line of x is left: x⟨x, g⟩/‖x‖²."""
    y, g = [2.0, -2.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]
    for level in (1.0, 1.5, 2.0, 2.5, 3.0):
        x = ch.project_cai(np.array(y), level)
        np.testing.assert_allclose(
            gradient(lambda t, v=level: ch.project_cai(t, v), y, g), x * (x @ g) / (x @ x),
            atol=1e-14,
        )  # fmt: skip
    x = ch.project_hoyer(np.array(y), l1=1.2, l2=1.0)
    got = gradient(lambda t: ch.project_hoyer(t, l1=1.2, l2=1.0), y, g)
    np.testing.assert_array_equal(got, np.zeros(4))


@pytest.mark.parametrize("n", [7, 100, 3000])
def test_ties_are_ties_for_all_their_rounding(n):
    y, g = np.full(n, 0.1), normal(n)
    x = ch.project_cai(y, 3.7)
    got = gradient(lambda t: ch.project_cai(t, 3.7), y, g)
    np.testing.assert_allclose(got, x * (x @ g) / (x @ x), atol=1e-14)
    np.testing.assert_array_equal(gradient(lambda t: ch.project_hoyer(t, l1=1.7, l2=1.0), y, g), 0)
    # Columns that hold the same numbers in another order: their norms tie up to rounding.
    rng = np.random.default_rng(0)
    column = rng.standard_normal(n)
    y = np.stack([rng.permutation(column) for _ in range(6)], 1)
    for inner in ("l2", "l1"):
        for feasible in (False, True):
            got = gradient(
                lambda t, i=inner, f=feasible: ch.project_bilevel(t, 2.5, inner=i, feasible=f),
                y, normal(n, 6, seed=1),
            )  # fmt: skip
            assert np.abs(got).max() < 50.0


def test_constant_vectors():
    for n in (1, 2, 3, 1000):
        y = np.full(n, 0.1)
        got = gradient(lambda t: ch.project_cai(t, 1.0), y)
        assert got[0] == 1.0 if n == 1 else np.allclose(got, np.eye(n)[0])
        assert np.all(gradient(lambda t: ch.project_hoyer(t, l1=1.0, l2=1.0), y) == 0.0)
        got = gradient(lambda t: ch.project_hoyer(t, 0.0), y)
        np.testing.assert_allclose(got, np.ones(n))


@pytest.mark.parametrize("name", [*VECTORS, *MATRICES])
def test_zeros(name):
    function = VECTORS.get(name) or MATRICES[name]
    got = gradient(function, np.zeros((3, 7)))
    expected = np.zeros((3, 7))
    if "nonneg" not in name and name.startswith(
        ("cai", "ball", "gsp", "level", "feasible", "radius", "inside", "exact")
    ) and "score" not in name:  # fmt: skip
        expected[:] = 1.0  # the input meets the constraint: the identity
    if name.startswith("simplex"):
        expected[:] = 0.0
    np.testing.assert_allclose(got, expected, atol=1e-15)


def test_entries_at_a_kink_get_nothing():
    got = gradient(lambda t: ch.project_l1_ball(t, 2.0), [3.0, 1.0, 0.5], [1.0, 10.0, 100.0])
    np.testing.assert_array_equal(got, [0.0, 0.0, 0.0])  # 1.0 is the threshold
    got = gradient(lambda t: ch.project_cai(t, 9.0, nonneg=True), [1.0, 0.0, -1.0])
    np.testing.assert_array_equal(got, [1.0, 0.0, 0.0])


def test_tied_maxima_of_a_group_share():
    y = np.array([[2.0, 1.0], [-2.0, 0.0], [0.5, 0.0]])
    got = gradient(lambda t: ch.project_bilevel(t, radius=1.5), y, np.eye(3, 2))
    # columns' norms 2 and 1 become 1.25 and 0.25: clipped are three entries
    np.testing.assert_allclose(got, [[0.25, -0.5], [-0.25, 1.0], [0.0, 0.0]])


def test_equalities_hold_for_admissible_inputs_too():
    """Such an input comes back as it is, but it cannot move freely."""
    y = np.array([0.25, 0.5, 0.75])
    assert np.array_equal(ch.project_simplex(y, 1.5), y)
    check(lambda t: ch.project_simplex(t, 1.5), leaf(y))
    y = ch.project_hoyer(normal(9), l1=2.0, l2=1.0)
    y[y == 0] = 0.0
    got = gradient(lambda t: ch.project_hoyer(t, l1=2.0, l2=1.0), y, y)
    np.testing.assert_allclose(got, 0.0, atol=1e-14)


def test_the_boundary_of_the_ball_counts_as_inside():
    got = gradient(lambda t: ch.project_l1_ball(t, 2.0), [1.5, -0.5], [3.0, 1.0])
    np.testing.assert_array_equal(got, [3.0, 1.0])


# ---------------------------------------------------------------------------
# values


DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*VECTORS, *MATRICES])
def test_the_bits_are_those_of_numpy(name, dtype):
    function = VECTORS.get(name) or MATRICES[name]
    y = (3 * normal(6, 8)).astype(dtype)
    for array in (y, y.T, y[::2, 1:]):
        x = torch.from_numpy(y)
        x = x.T if array.shape == (8, 6) else x[::2, 1:] if array.shape == (3, 7) else x
        before = x.clone()
        got = function(x)
        expected = function(array)
        assert isinstance(got, torch.Tensor)
        assert got.numpy().dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(got.numpy(), expected)
        assert torch.equal(x, before)
        assert not got.requires_grad


@pytest.mark.parametrize("name", [*VECTORS, *MATRICES])
def test_bfloat16(name, monkeypatch):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    import conehoyer.torch as bridge

    function = VECTORS.get(name) or MATRICES[name]
    score = name in ("cai_score", "hoyer_score", "hoyer_sparseness", "gsp_score")
    x = torch.from_numpy(normal(6, 8)).to(torch.bfloat16)
    y = x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    expected = np.asarray(function(y))
    for view, own in ((x, expected), (x.T.contiguous().T, expected)):
        got = function(view)
        assert got.dtype == (torch.float64 if score else torch.bfloat16)
        np.testing.assert_array_equal(got.double().numpy(), own.astype(float))
    monkeypatch.setattr(bridge, "_BITS", False)  # without ml_dtypes: in float32, rounded once
    got = function(x)
    np.testing.assert_allclose(got.double().numpy(), expected.astype(float), rtol=1e-2)
    if not score:
        assert got.dtype == torch.bfloat16
        out = torch.empty_like(x)
        assert function(x, out=out) is out
        assert torch.equal(out, got)
        z = x.clone().requires_grad_()
        function(z).float().sum().backward()
        assert z.grad.dtype == torch.bfloat16


def test_parameters_may_be_tensors_or_arrays():
    y = normal(4, 9)
    x = torch.from_numpy(y)
    levels = np.array([2.0, 3.0, 4.0, 5.0])
    expected = ch.project_cai(y, levels)
    negated = torch.from_numpy(-1j * levels).conj().imag
    assert negated.is_neg()
    for given_ in (
        levels, torch.from_numpy(levels), torch.tensor(levels).to(torch.bfloat16), negated
    ):  # fmt: skip
        np.testing.assert_array_equal(ch.project_cai(x, given_).numpy(), expected)
        np.testing.assert_array_equal(ch.project_cai(x, level=given_).numpy(), expected)
    one = ch.level_for_nnz(x, 3)
    assert isinstance(one, torch.Tensor)
    np.testing.assert_array_equal(one.numpy(), ch.level_for_nnz(y, 3))
    assert torch.equal(torch.count_nonzero(ch.project_cai(x, one), 1), torch.tensor([3] * 4))
    level = ch.level_for_groups(x, torch.tensor(2))
    assert level.shape == ()
    assert ch.project_bilevel(x, level).any(0).sum() == 2
    labels = torch.arange(9).expand(4, 9)
    got = ch.project_bilevel(x, level, groups=labels)
    assert torch.equal(got, ch.project_bilevel(x, level))
    x.requires_grad_()
    ch.project_bilevel(x, level, groups=labels).square().sum().backward()
    first, x.grad = x.grad, None
    ch.project_bilevel(x, level).square().sum().backward()
    torch.testing.assert_close(x.grad, first)
    assert torch.equal(ch.project_gsp(x, torch.tensor(0.5)), ch.project_gsp(x, 0.5))


def test_the_data_as_a_keyword():
    x = torch.from_numpy(normal(9))
    assert torch.equal(ch.project_cai(x=x, level=2.0), ch.project_cai(x, 2.0))


def test_zero_dimensions_and_empty_tensors():
    x = leaf(2.0)
    ch.project_cai(x, 1.0, axis=None).backward()
    assert x.grad == 1.0
    with pytest.raises(np.exceptions.AxisError):
        ch.project_cai(x, 1.0)
    for function in (VECTORS | MATRICES).values():
        for shape in [(0, 4), (4, 0), (2, 0, 3)]:
            y = leaf(np.zeros(shape))
            got = function(y)
            got.sum().backward()
            assert y.grad.shape == shape


def test_reports_hold_tensors():
    y = normal(5, 8)
    for call in (
        lambda x: ch.project_cai(x, 2.0, full_output=True),
        lambda x: ch.project_bilevel(x, 2.0, full_output=True),
        lambda x: ch.project_l1inf_ball(x, 2.0, full_output=True),
        lambda x: ch.project_gsp(x, 0.7, full_output=True),
    ):
        x = leaf(y)
        got, info = call(x)
        expected, other = call(y)
        np.testing.assert_array_equal(got.detach().numpy(), expected)
        assert got.requires_grad
        for field in info.__dataclass_fields__:
            value, known = getattr(info, field), getattr(other, field)
            if isinstance(known, np.ndarray | np.generic):
                assert isinstance(value, torch.Tensor)
                assert not value.requires_grad
            np.testing.assert_array_equal(value, known)
    _, info = ch.project_cai(torch.from_numpy(y[0]), 2.0, full_output=True)
    assert isinstance(info.threshold, float)
    assert isinstance(info.support, torch.Tensor)
    (first, _), info = ch.project_gsp([x, x], 0.7, full_output=True)
    assert first.requires_grad
    assert isinstance(info.threshold, torch.Tensor)


def test_lists():
    arrays = [normal(4, 3), normal(7), normal(2, 2, 2)]
    expected = ch.project_gsp(arrays, 0.6)
    got = ch.project_gsp(tuple(map(torch.from_numpy, arrays)), 0.6)
    assert isinstance(got, list)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a.numpy(), b)
    numbers = [torch.tensor(v, requires_grad=True) for v in (3.0, 1.0, 2.0)]
    score = ch.gsp_score(numbers)  # one vector, as for arrays
    np.testing.assert_allclose(score.item(), ch.gsp_score([3.0, 1.0, 2.0]))
    score.backward()
    assert numbers[0].grad is not None
    rows = [leaf(normal(5)), leaf(normal(5, seed=1))]
    got = ch.project_cai(rows, 2.0)  # one array, for functions of arrays
    assert got.shape == (2, 5)
    got.square().sum().backward()
    both = leaf(np.stack([normal(5), normal(5, seed=1)]))
    ch.project_cai(both, 2.0).square().sum().backward()
    torch.testing.assert_close(torch.stack([r.grad for r in rows]), both.grad)
    with pytest.raises(TypeError, match=r"x\[1\] must be a tensor"):
        ch.project_gsp([torch.ones(3), np.ones(3)], 0.5)
    with pytest.raises(TypeError, match=r"x\[0\] must be a tensor"):
        ch.gsp_score([np.ones(3), torch.ones(3)])


def test_factorisation():
    y = np.abs(normal(12, 9))
    expected = ch.nmf_hals(y, 3, max_iter=500)
    states = []

    def callback(iteration, state):
        states.append(state)

    got = ch.nmf_hals(torch.from_numpy(y), 3, max_iter=500, callback=callback)
    for name in ("W", "H", "error_history"):
        value = getattr(got, name)
        assert isinstance(value, torch.Tensor)
        np.testing.assert_array_equal(value.numpy(), getattr(expected, name))
    assert got.error == expected.error
    assert isinstance(states[0].W, torch.Tensor)
    start = torch.from_numpy(expected.W.copy()), torch.from_numpy(expected.H.copy())
    again = ch.nmf_hals(
        torch.from_numpy(y), 3, init=start, level_h=torch.tensor(4.0), max_iter=500, tol=1e-2
    )
    assert (ch.hoyer_score(again.H) <= 4.0 + 1e-9).all()
    with pytest.raises(RuntimeError, match=r"detach"):
        ch.nmf_hals(leaf(y), 3)
    with torch.no_grad():
        ch.nmf_hals(leaf(y), 3, max_iter=500)


# ---------------------------------------------------------------------------
# out, Parameters, the version counter


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["cai", "ball", "simplex", "hoyer", "gsp", *MATRICES])
def test_parameters_are_projected_in_place(name, dtype):
    function = VECTORS.get(name) or MATRICES[name]
    p = torch.nn.Parameter(torch.from_numpy(normal(6, 8)).to(getattr(torch, dtype)))
    expected = function(p.detach().clone())
    version, pointer = p._version, p.data_ptr()
    with torch.no_grad():
        got = function(p, out=p)
    assert got is p
    assert p.data_ptr() == pointer
    assert p._version > version
    assert p.is_leaf
    assert p.requires_grad
    assert torch.equal(p, expected)


def test_autograd_sees_that_out_was_written():
    w = leaf(normal(5))
    y = (w * w).sum()
    with torch.no_grad():
        ch.project_cai(w, 2.0, out=w)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    w = leaf(normal(5))
    other = torch.zeros(5, dtype=torch.float64)
    y = (w * other).sum()
    ch.project_cai(w.detach(), 2.0, out=other)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    w = leaf(normal(5)).detach()
    y = (leaf(normal(5)) * w).sum()
    assert ch.project_cai(w, 2.0, overwrite_x=True) is w
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_out_of_any_strides():
    y = normal(4, 6)
    for axis in (0, 1, None):
        out = torch.full((6, 8), 7.0, dtype=torch.float64).T[::2]
        assert ch.project_cai(torch.from_numpy(y), 2.0, axis=axis, out=out) is out
        np.testing.assert_array_equal(out.numpy(), ch.project_cai(y, 2.0, axis=axis))
    outs = [torch.empty(4, 6).double(), torch.empty(3).double()]
    got = ch.project_gsp([torch.from_numpy(y), torch.ones(3).double()], 0.5, out=outs)
    assert got is outs
    np.testing.assert_array_equal(outs[0].numpy(), ch.project_gsp([y, np.ones(3)], 0.5)[0])


def test_errors_of_out():
    x, w = torch.from_numpy(normal(3, 5)), leaf(normal(3, 5))
    for given_, out in [(x, w), (w, w), (w, x)]:
        with pytest.raises(RuntimeError, match="no_grad"):
            ch.project_cai(given_, 2.0, out=out)
    with pytest.raises(RuntimeError, match="no_grad"):
        ch.project_gsp([w, x], 0.5, out=[x, x.clone()])
    with pytest.raises(TypeError, match="out must be a tensor"):
        ch.project_cai(x, 2.0, out=np.empty((3, 5)))
    with pytest.raises(TypeError, match="out must be a list"):
        ch.project_gsp([x, x], 0.5, out=x)
    with pytest.raises(ValueError, match="as many"):
        ch.project_gsp([x, x], 0.5, out=[x])
    with pytest.raises(TypeError, match="out must be a NumPy array"):
        ch.project_cai(x.numpy(), 2.0, out=x)
    with pytest.raises(ValueError, match="shape"):
        ch.project_cai(x, 2.0, out=torch.empty(5, 3).double())
    with pytest.raises(ValueError, match="dtype"):
        ch.project_cai(x, 2.0, out=torch.empty(3, 5))
    with pytest.raises(ValueError, match=r"memory for each entry, got strides \(0, 1\)"):
        ch.project_cai(x, 2.0, out=torch.zeros(1, 5).double().expand(3, 5))
    with pytest.raises(ValueError, match=r"memory for each entry, got strides \(1, 1\)"):
        ch.project_cai(x, 2.0, out=torch.zeros(7).double().unfold(0, 5, 1))
    negated = torch.zeros(3, 5, dtype=torch.complex128).conj().imag
    with pytest.raises(ValueError, match="out must not be a lazily negated view"):
        ch.project_cai(x, 2.0, out=negated)
    assert (negated == 0.0).all()
    with pytest.raises(RuntimeError, match="overwritten"):
        ch.project_cai(w, 2.0, overwrite_x=True)
    for t in (x, w):
        np.testing.assert_array_equal(t.detach().numpy(), normal(3, 5))


def test_errors_of_bfloat16_out_without_ml_dtypes(monkeypatch):
    import conehoyer.torch as bridge

    monkeypatch.setattr(bridge, "_BITS", False)
    x = torch.ones(3, 5, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="dtype"):
        ch.project_cai(x, 2.0, out=torch.empty(3, 5))
    with pytest.raises(ValueError, match="shape"):
        ch.project_cai(x, 2.0, out=torch.empty(5, dtype=torch.bfloat16))


def test_overwriting_what_is_no_leaf():
    w = leaf(normal(9))
    y = 2.0 * w
    before = y.detach().clone()
    ch.project_cai(y, 2.0, overwrite_x=True).sum().backward()
    assert torch.equal(y, before)  # the permission isn't used: the gradient needs y
    assert w.grad is not None


def test_other_errors():
    x, w = torch.ones(3, 4), leaf(normal(3, 4))
    for bad in (x.to_sparse(), torch.empty(3, 4, device="meta")):
        with pytest.raises(TypeError):
            ch.project_cai(bad, 2.0)
    with pytest.raises(TypeError, match="dense"):
        ch.project_cai(x.to_sparse(), 2.0)
    with pytest.raises(TypeError, match="complex"):
        ch.project_cai(x.to(torch.complex64), 2.0)
    with pytest.raises(ValueError, match="finite"):
        ch.project_cai(x * torch.nan, 2.0)
    with pytest.raises(ValueError, match="level"):
        ch.project_cai(w, 0.5)
    level = torch.tensor(2.0, requires_grad=True)
    for call, name in (
        (lambda: ch.project_cai(x, level), "level"),
        (lambda: ch.project_cai(w, level=level), "level"),
        (lambda: ch.project_bilevel(w, radius=level), "radius"),
        (lambda: ch.nmf_hals(x, 1, init=(leaf(normal(3, 1)), None)), r"init\[0\]"),
        (lambda: ch.project_cai(np.ones((3, 4)), level), "level"),
        (lambda: ch.blocksparse.compress(w, (1, 1)), "w"),
        (lambda: ch.blocksparse.prune(w, (1, 1), 2), "w"),
        (lambda: ch.blocksparse.compress(x, (1, 1)) @ leaf(normal(4, 1)), "x"),
    ):
        with pytest.raises(RuntimeError, match=f"^{name} requires a gradient"):
            call()
    with torch.no_grad():
        ch.project_cai(w, level)
    ch.project_cai(w, level.detach())
    with pytest.raises(TypeError, match="callback must be callable or None, got 3"):
        ch.nmf_hals(x, 1, callback=3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    for name, call in (
        ("x", lambda: ch.project_cai(nested, 2.0)),
        ("x", lambda: ch.hoyer_score(nested)),
        ("out", lambda: ch.project_cai(torch.ones(2, 3), 2.0, out=nested)),
    ):
        with pytest.raises(TypeError, match=f"^{name} must not be a nested tensor"):
            call()


def test_values_without_a_check():
    x = leaf([[1.0, torch.nan], [3.0, 1.0]])
    z = ch.project_cai(x, 1.0, check_finite=False)
    assert torch.isnan(z[0]).all()
    z[1].sum().backward()
    np.testing.assert_allclose(x.grad[1].numpy(), [1.0, 0.0])


# ---------------------------------------------------------------------------
# graphs


def test_no_graph_where_none_is_wanted():
    w = leaf(normal(3, 5))
    with torch.no_grad():
        assert ch.project_cai(w, 2.0).grad_fn is None
    with torch.inference_mode():
        got = ch.project_cai(w, 2.0)
        assert got.grad_fn is None
        own = torch.ones(4)
        assert ch.project_cai(own, 2.0, out=own) is own
    assert ch.project_cai(w.detach(), 2.0).grad_fn is None
    assert ch.project_cai(w, 2.0).grad_fn is not None
    assert ch.level_for_nnz(w, 2).grad_fn is None
    assert ch.level_for_groups(w, 2).grad_fn is None


SECOND = {
    "backward": lambda f, x: gradient_of(f, x).sum().backward(),
    "backward to x": lambda f, x: gradient_of(f, x).sum().backward(inputs=[x]),
    "grad": lambda f, x: torch.autograd.grad(gradient_of(f, x).sum(), x),
    "hessian": lambda f, x: torch.autograd.functional.hessian(f, x.detach()),
    "hvp": lambda f, x: torch.autograd.functional.hvp(f, x.detach(), torch.ones_like(x)),
    "vhp": lambda f, x: torch.autograd.functional.vhp(f, x.detach(), torch.ones_like(x)),
    "jvp": lambda f, x: torch.autograd.functional.jvp(f, x.detach(), torch.ones_like(x)),
}


def gradient_of(f, x):
    return torch.autograd.grad(f(x), x, create_graph=True)[0]


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("name", ["cai", "hoyer", "simplex", "gsp", "gsp_score", "level l2"])
def test_the_gradient_has_no_gradient(name, way):
    """Not even where the rest of the function has one, and would stand in for the whole."""
    function = VECTORS.get(name) or MATRICES[name]
    x = leaf(normal(4, 7))
    with pytest.raises(RuntimeError, match=r"(project|score)\w* has no second derivative"):
        SECOND[way](lambda t: function(t).sum() + t.square().sum(), x)


def test_the_gradient_has_no_gradient_of_what_comes_in():
    x, w = leaf(normal(7)), leaf(normal(7, seed=1))
    g = gradient_of(lambda t: (ch.project_cai(t, 2.0) * w).sum(), x)
    with pytest.raises(RuntimeError, match="project_cai has no second derivative"):
        torch.autograd.grad(g.sum() + w.square().sum(), w)


def test_a_parameter_list_is_a_list():
    def make():
        return torch.nn.ParameterList([leaf(normal(7)), leaf(normal(3, 2, seed=1))])

    layers, plain = make(), list(make())
    expected = ch.project_gsp(plain, 0.6)
    result = ch.project_gsp(layers, 0.6)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    for values in (expected, result):
        sum(v.square().sum() for v in values).backward()
    torch.testing.assert_close([p.grad for p in layers], [p.grad for p in plain], rtol=0, atol=0)
    torch.testing.assert_close(ch.gsp_score(layers), ch.gsp_score(plain), rtol=0, atol=0)
    with torch.no_grad():
        assert ch.project_gsp(layers, 0.6, out=layers) is layers
    torch.testing.assert_close([p.data for p in layers], [v.detach() for v in expected])


class Tensors(list):
    """A list of a class of its own."""


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize("make", [Tensors, Pair._make], ids=["list", "tuple"])
def test_what_is_derived_from_a_list_is_one(make):
    parts = [leaf(normal(7)), leaf(normal(5))]
    results = ch.project_gsp(make(parts), 0.6)
    for result, wanted in zip(results, ch.project_gsp(parts, 0.6), strict=True):
        assert result.requires_grad
        assert torch.equal(result, wanted)
    assert ch.gsp_score(make(parts)).requires_grad


@pytest.mark.filterwarnings("ignore:ComplexHalf", "ignore:torch.quantize_per")  # PyTorch's own
def test_dtypes_that_numpy_does_not_have():
    x = torch.ones(4)
    cases = [x.to(torch.float8_e4m3fn), x.to(torch.complex32)]
    cases.append(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8))
    for bad in cases:
        with pytest.raises(TypeError, match=rf"^x must have a real .* got {bad.dtype}$"):
            ch.project_cai(bad, 2.0)
        with pytest.raises(TypeError, match=rf"^x\[1\] must have a real .* got {bad.dtype}$"):
            ch.project_gsp([x, bad], 0.5)
        with pytest.raises(TypeError, match=rf"^out must have a real .* got {bad.dtype}$"):
            ch.project_cai(x, 2.0, out=bad)
        with pytest.raises(TypeError, match=rf"^level must have a real .* got {bad.dtype}$"):
            ch.project_cai(x, bad)


def test_the_gradient_of_a_list_has_no_gradient():
    # The vector of one entry takes no part: its gradient is the one that comes in.
    w, one, fixed = leaf(normal(7)), leaf(normal(1)), torch.from_numpy(normal(5, seed=1))
    for wanted in ([w], [one], [w, one]):
        results = ch.project_gsp([w, one, fixed], 0.6)
        total = sum(r.square().sum() for r in results)
        grads = torch.autograd.grad(total, wanted, create_graph=True)
        for g in grads:
            with pytest.raises(RuntimeError, match="project_gsp has no second derivative"):
                torch.autograd.grad(g.sum(), wanted, retain_graph=True, allow_unused=True)


@pytest.mark.parametrize("name", [*VECTORS, *MATRICES])
def test_a_recorded_gradient_has_the_same_bits(name):
    function = VECTORS.get(name) or MATRICES[name]
    x = leaf(normal(6, 8))
    result = function(x).square().sum()
    recorded, plain = (
        torch.autograd.grad(result, x, create_graph=create, retain_graph=True)[0]
        for create in (True, False)
    )
    assert recorded.requires_grad
    assert not plain.requires_grad
    assert torch.equal(recorded, plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad])
def test_tangents_are_not_lost(context):
    x, level = torch.from_numpy(normal(7)), torch.tensor(2.0)
    with context(), forward_ad.dual_level():
        dual, dual_level = (forward_ad.make_dual(t.clone(), t) for t in (x, level))
        for call, name in (
            (lambda: ch.project_cai(dual, 2.0), "x"),
            (lambda: ch.cai_score(dual), "x"),
            (lambda: ch.project_gsp([x, dual], 0.5), r"x\[1\]"),
            (lambda: ch.project_cai(x, dual_level), "level"),
            (lambda: ch.project_cai(x, level=dual_level), "level"),
            (lambda: ch.project_cai(x, 2.0, out=dual), "out"),
        ):
            with pytest.raises(NotImplementedError, match=f"^{name} has a tangent"):
                call()
        assert torch.equal(dual, x)  # and out was not written
        ch.level_for_nnz(dual, 2)  # a parameter: no derivative is expected of it
        ch.project_cai(x, 2.0)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own
def test_transforms_of_torch_func():
    x, levels = torch.from_numpy(normal(3, 7)), torch.tensor([2.0, 2.5, 3.0])
    project = lambda t: ch.project_cai(t, 2.0)  # noqa: E731
    for call, name in (
        (lambda: torch.func.vmap(project)(x), "x"),
        (lambda: torch.func.vmap(ch.cai_score)(x), "x"),
        (lambda: torch.func.jvp(project, (x,), (x,)), "x"),
        (lambda: torch.func.jacfwd(project)(x), "x"),
        (lambda: torch.func.jacrev(project)(x), "x"),
        (lambda: torch.func.vmap(lambda v: ch.project_cai(x[0], v))(levels), "level"),
        (lambda: torch.func.vmap(lambda t: ch.project_cai(x[0], 2.0, out=t))(x.clone()), "out"),
    ):
        with pytest.raises(NotImplementedError, match=f"^{name} must be a plain tensor"):
            call()


def test_only_some_of_a_list_need_a_gradient():
    w, x = leaf(normal(7)), torch.from_numpy(normal(3, 3))
    first, second = ch.project_gsp([w, x], 0.6)
    second.square().sum().backward()  # through the multiplier that they share
    assert w.grad.abs().sum() > 0
    assert x.grad is None
    assert first.requires_grad


@pytest.mark.parametrize("inside", [True, False])
def test_training(inside):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    layer = model[0]
    inputs = torch.randn(200, 20)
    targets = inputs[:, :3].sum(1, keepdim=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        if inside:  # the projection is a part of the model
            weight = ch.project_bilevel(layer.weight, 5.0, feasible=True)
            hidden = torch.tanh(torch.nn.functional.linear(inputs, weight, layer.bias))
            loss = (model[2](hidden) - targets).square().mean()
        else:
            loss = (model(inputs) - targets).square().mean()
        loss.backward()
        optimizer.step()
        if not inside:
            with torch.no_grad():
                ch.project_bilevel(layer.weight, level=5.0, feasible=True, out=layer.weight)
            weight = layer.weight
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert ch.hoyer_score(weight.detach().abs().amax(0)) < 5.001


# ---------------------------------------------------------------------------
# what torch costs those who do not use it


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_does_not_import_torch():
    assert run(
        "import sys, numpy as np, conehoyer\n"
        "conehoyer.project_cai(np.arange(9.0), 2.0)\n"
        "conehoyer.project_gsp([np.arange(9.0), [1.0, 2.0]], 0.5)\n"
        "conehoyer.project_bilevel(np.ones((3, 4)), 2.0)\n"
        "print('torch' in sys.modules, 'conehoyer.torch' in sys.modules)"
    ) == "False False"  # fmt: skip


COMPILED = """
import sys, torch, conehoyer, conehoyer.torch

layer = conehoyer.torch.BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
x = torch.randn(3, 8, requires_grad=True)

def project(t):
    return conehoyer.project_cai(2.0 * t, level=2.0, axis=1) + 1.0

def multiply(t):
    return layer(t).relu()

def results(function):
    x.grad = None
    y = function(x)
    y.square().sum().backward()
    with torch.no_grad():
        assert torch.equal(function(x), y)
    return y, x.grad

if COLD:  # the kernels are loaded while PyTorch's compiler looks on
    compiled = results(torch.compile(NAME, backend="eager"))
plain = results(NAME)
if not COLD:
    assert "torch._dynamo" not in sys.modules  # takes seconds to import
    compiled = results(torch.compile(NAME, backend="eager"))
assert all(torch.equal(a, b) for a, b in zip(compiled, plain, strict=True))
try:
    torch.compile(lambda t: NAME(t), backend="eager", fullgraph=True)(x)
except torch._dynamo.exc.Unsupported:
    print("done")
"""


@pytest.mark.parametrize("name", ["project", "multiply"])
@pytest.mark.parametrize("cold", [True, False])
def test_compiled_code_calls_what_it_does_not_compile(name, cold):
    assert run(COMPILED.replace("NAME", name).replace("COLD", str(cold))) == "done"


def test_a_module_called_torch_that_is_none():
    assert run(
        "import sys, types; sys.modules['torch'] = types.ModuleType('torch')\n"
        "import conehoyer; print(conehoyer.hoyer_score([1.0, 1.0]))"
    ) == "2.0"  # fmt: skip


def test_numpy_stays_numpy():
    y = normal(4, 5)
    for given_ in (y, y.tolist(), y.view(type("Own", (np.ndarray,), {}))):
        assert type(ch.project_cai(given_, 2.0)) is np.ndarray
    assert all(type(p) is np.ndarray for p in ch.project_gsp([y, y], 0.5))


def test_functions_look_as_before():
    import inspect

    for name in ch.__all__:
        function = getattr(ch, name)
        if not inspect.isfunction(function) or name in ("get_workers", "level_for_sparseness"):
            continue
        assert function.__module__.startswith("conehoyer.")
        assert "Parameters\n" in function.__doc__
        assert "options" not in inspect.signature(function).parameters
    with pytest.raises(TypeError, match=r"project_cai\(\) missing 2 required"):
        ch.project_cai()
    with pytest.raises(TypeError, match=r"project_cai\(\) got an unexpected keyword"):
        ch.project_cai(np.ones(3), 1.0, levle=2.0)


def test_a_warning_names_the_callers_line():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ch.nmf_hals(np.abs(normal(20, 10)), 4, max_iter=1)
        ch.nmf_hals(torch.from_numpy(np.abs(normal(20, 10))), 4, max_iter=1)
        y = torch.from_numpy(-(0.5 ** np.arange(9000))).requires_grad_()
        ch.project_hoyer(y, 0.5, nonneg=True)
    assert [each.filename for each in caught] == [__file__] * 3


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant):
    """What is saved for the gradient may be computed anew, and is handed out once."""
    from torch.utils.checkpoint import checkpoint

    def run(t):
        return ch.project_cai(t, 2.0).square() * ch.project_bilevel(t, 3.0)

    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(run(x).sum(), x)
    checkpoint(run, x, use_reentrant=reentrant).sum().backward()
    assert torch.equal(x.grad, expected)


def test_float32_gradients_of_large_groups():
    """Sums over labels are taken one entry after the other."""
    n = 1024
    y, g = normal(n, n), normal(n, n, seed=1)
    y[:, : n // 2] *= 1.5
    labels = np.repeat(np.arange(n) >= n // 2, n).reshape(n, n).T.astype(int)
    found = {}
    for dtype in torch.float32, torch.float64:
        x = leaf(y, dtype)
        result = ch.project_bilevel(x, 1.9, groups=labels, inner="l2")
        found[dtype] = torch.autograd.grad(result, x, torch.tensor(g, dtype=dtype))[0].double()
    error = (found[torch.float32] - found[torch.float64]).norm() / found[torch.float64].norm()
    assert error <= 2e-6


def test_float32_gradients_of_groups_whose_largest_entries_differ_little():
    """They are known exactly, so that they do not tie as sums do."""
    y, g = 0.1 * normal(8, 12), normal(8, 12, seed=1)
    y[3] = 1.0 + 2.0**-22 * np.arange(12)
    found = []
    for dtype in torch.float32, torch.float64:
        x = leaf(y.astype(np.float32), dtype)
        ch.project_bilevel(x, 6.0).backward(torch.tensor(g, dtype=dtype))
        found.append(x.grad.double())
    assert (found[0] - found[1]).norm() <= 1e-5 * found[1].norm()


@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
@pytest.mark.parametrize("shape", [(4, 8), (5, 8)])
def test_a_jacobian_of_many_gradients_at_once(shape, inner):
    def project(t):
        return ch.project_bilevel(t, 2.0, groups=(2, 2), inner=inner)

    jacobian = torch.autograd.functional.jacobian
    x = torch.tensor(normal(*shape))
    torch.testing.assert_close(jacobian(project, x, vectorize=True), jacobian(project, x))


def test_scores_may_be_changed_in_place():
    x = leaf(normal(7))
    plain = torch.autograd.grad(ch.hoyer_score(x) - 2.0, x)[0]
    score = ch.hoyer_score(x)
    score -= 2.0
    torch.testing.assert_close(torch.autograd.grad(score, x)[0], plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_tracing_is_refused():
    with pytest.raises(NotImplementedError, match="trace"):
        torch.jit.trace(lambda x: ch.project_cai(x, 2.0), torch.ones(5))


RECORDED = {
    "vector": lambda x: ch.project_cai(x, 2.0),
    "list": lambda x: ch.project_gsp([x, x], 0.5)[1],
    "score": lambda x: ch.hoyer_score(x),
}


@pytest.mark.parametrize("name", RECORDED)
def test_torch_fx_is_refused(name):
    x = torch.from_numpy(normal(3, 4))

    class Model(torch.nn.Module):
        def forward(self, x):
            return 2 * RECORDED[name](x)

    with pytest.raises(NotImplementedError, match=r"torch\.fx"):
        torch.fx.symbolic_trace(Model())
    with pytest.raises(NotImplementedError, match="make_fx"):
        make_fx(Model())(x)
    with pytest.raises(NotImplementedError, match="make_fx"):
        make_fx(Model(), tracing_mode="fake")(x)
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.export.export(Model(), (x,), strict=False)
    with FakeTensorMode() as mode, pytest.raises(NotImplementedError, match=r"torch\.fx"):
        RECORDED[name](mode.from_tensor(x))


def test_a_level_recorded_by_torch_fx_is_refused():
    x = torch.from_numpy(normal(4))
    with pytest.raises(NotImplementedError, match=r"torch\.fx"):
        torch.fx.symbolic_trace(lambda level: ch.project_cai(x, level))


def test_what_another_thread_records_is_of_no_matter():
    x = torch.from_numpy(normal(4))
    results = []

    def record(v):
        thread = threading.Thread(target=lambda: results.append(ch.project_cai(x, 2.0)))
        thread.start()
        thread.join()
        return 2 * v

    make_fx(record)(x)
    torch.testing.assert_close(results, [ch.project_cai(x, 2.0)])


def test_the_gradient_of_numbers_is_that_of_their_vector():
    numbers, vector = [leaf(v) for v in (3.0, 1.0, 2.0)], leaf([3.0, 1.0, 2.0])
    ch.gsp_score(numbers).backward()
    ch.gsp_score(vector).backward()
    assert vector.grad.abs().min() > 0.01
    torch.testing.assert_close(torch.stack([v.grad for v in numbers]), vector.grad)


def test_the_last_of_a_list_may_be_the_one_that_needs_a_gradient():
    w, x = leaf(normal(7)), torch.from_numpy(normal(5, seed=1))
    for function in (lambda p: ch.project_gsp(p, 0.6)[1].square().sum(), ch.gsp_score):
        w.grad = None
        function([x, w]).backward()
        assert w.grad.abs().sum() > 0


def test_overwriting_some_of_a_list():
    """Not if one of them is a leaf whose gradient is wanted; others may come along."""
    w, x = leaf(normal(7)), torch.from_numpy(normal(5, seed=1))
    for parts in ([w, x], [x, w]):
        with pytest.raises(RuntimeError, match="a leaf tensor that requires a gradient cannot"):
            ch.project_gsp(parts, 0.6, overwrite_x=True)
    before = x.clone()
    ch.project_gsp([2.0 * w, x], 0.6, overwrite_x=True)[0].square().sum().backward()
    assert w.grad.abs().sum() > 0
    assert torch.equal(x, before)


def test_tensors_that_cannot_be_taken_are_named():
    x = torch.ones(3, 4)
    for bad, says in (
        (x.to_sparse(), r"must be a dense tensor, got torch\.sparse_coo: pass \w+\.to_dense\(\)"),
        (x.to("meta"), "must lie on the CPU or a CUDA device, got meta"),
    ):
        with pytest.raises(TypeError, match=f"^x {says}$"):
            ch.project_cai(bad, 2.0)
        with pytest.raises(TypeError, match=f"^out {says}$"):
            ch.project_cai(x, 2.0, out=bad)


def test_parameters_that_cannot_be_taken_are_named():
    x, one = torch.ones(3, 4), torch.ones(3)
    for bad, says in (
        (
            one.to_sparse(),
            r"must be a dense tensor, got torch\.sparse_coo: pass level\.to_dense\(\)",
        ),
        (one.to("meta"), "must lie on the CPU or a CUDA device, got meta"),
        ((1j * one).conj(), "must have a real floating, integer or boolean dtype, got .*complex64"),
    ):
        with pytest.raises(TypeError, match=f"^level {says}$"):
            ch.project_cai(x, bad)
    with pytest.raises(TypeError, match=r"^init\[0\] must be a dense tensor"):
        ch.nmf_hals(x, 1, init=(torch.ones(3, 1).to_sparse(), torch.ones(1, 4)))


@pytest.mark.parametrize("conjugated", [False, True])
def test_complex_tensors_are_named(conjugated):
    z = torch.tensor([[1 + 2j, 3j]])
    z = z.conj() if conjugated else z
    says = "must have a real floating, integer or boolean dtype, got torch.complex64"
    for call, name in (
        (lambda: ch.project_cai(z, 1.5), "x"),
        (lambda: ch.hoyer_score(z), "x"),
        (lambda: ch.project_bilevel(z, 1.0), "x"),
        (lambda: ch.project_gsp([z.real, z], 0.5), r"x\[1\]"),
        (lambda: ch.level_for_nnz(z, 1), "x"),
        (lambda: ch.nmf_hals(z, 1), "x"),
        (lambda: ch.project_cai(z.real.clone(), 1.5, out=z), "out"),
        (lambda: ch.project_bilevel(z.real.clone(), 1.0, groups=z), "groups"),
    ):
        with pytest.raises(TypeError, match=f"^{name} {says}$"):
            call()


def test_tensors_that_numpy_cannot_take_are_named():
    """Where arrays alone are taken, and tensors as far as NumPy can."""
    bs, flat = blocksparse.compress(np.eye(3), (1, 1)), torch.ones(3)
    negated = (1j * flat).conj().imag
    for call, name in (
        (lambda: ch.project_cai(np.ones(3), torch.tensor(2.0).bfloat16()), "level"),
        (lambda: ch.level_for_sparseness(torch.tensor(0.5).bfloat16(), 4), "sparseness"),
        (lambda: blocksparse.compress(torch.eye(3).to_sparse(), (1, 1)), "w"),
        (lambda: bs @ flat.to_sparse(), "x"),
        (lambda: bs @ flat.bfloat16(), "x"),
        (lambda: bs @ negated, "x"),
        (lambda: optim.SparseAdamW([np.ones(3)]).step([flat.bfloat16()]), "the gradient of .* 0"),
    ):
        with pytest.raises(TypeError, match=f"^{name} is nothing that NumPy takes for an array: "):
            call()


def test_out_may_be_a_tuple_and_its_axes_of_one_expanded():
    x, out = torch.from_numpy(normal(1, 5)), torch.zeros(5).double().as_strided((1, 5), (0, 1))
    ch.project_cai(x, 2.0, out=out)
    assert torch.equal(out, ch.project_cai(x, 2.0))
    outs = torch.zeros_like(x), torch.zeros(3).double()
    assert ch.project_gsp([x, torch.ones(3).double()], 0.5, out=outs) is outs
    assert torch.equal(outs[0], ch.project_gsp([x, torch.ones(3).double()], 0.5)[0])


def test_data_that_is_negated_lazily():
    y = normal(3, 5)
    x = torch.from_numpy(-1j * y).conj().imag
    assert x.is_neg()
    np.testing.assert_array_equal(ch.project_cai(x, 2.0).numpy(), ch.project_cai(y, 2.0))


def test_a_list_of_one():
    x, out = torch.from_numpy(normal(5)), torch.zeros(5).double()
    (result,) = ch.project_gsp([x], 0.5, out=[out])
    assert result is out
    assert torch.equal(out, ch.project_gsp([x], 0.5)[0])


def test_bfloat16_behind_another_dtype_without_ml_dtypes(monkeypatch):
    import conehoyer.torch as bridge

    monkeypatch.setattr(bridge, "_BITS", False)
    parts = [torch.randn(5), torch.randn(7).bfloat16()]
    first, second = ch.project_gsp(parts, 0.5)
    assert (first.dtype, second.dtype) == (torch.float32, torch.bfloat16)
    assert ch.hoyer_score(parts[1]).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["cai_score", "hoyer_score", "hoyer_sparseness", "gsp_score"])
def test_gradients_of_16_bits_are_rounded_once(name, dtype):
    y = torch.from_numpy(normal(300)).to(dtype)
    x, wide = y.clone().requires_grad_(), y.float().requires_grad_()
    for each in (x, wide):
        getattr(ch, name)(each).backward()
    assert torch.equal(x.grad, wide.grad.to(dtype))


def test_gradients_of_a_list_have_their_own_precision():
    """Here the first takes no part."""
    w, alone = leaf(normal(9)), leaf(normal(9))
    ch.project_gsp([torch.ones(1), w], 0.6)[1].square().sum().backward()
    ch.project_gsp([alone], 0.6)[0].square().sum().backward()
    torch.testing.assert_close(w.grad, alone.grad, rtol=1e-12, atol=1e-12)


def test_a_score_of_several_vectors_may_be_changed_in_place():
    x = leaf(normal(3, 7))
    plain = torch.autograd.grad(ch.gsp_score(x) - 2.0, x)[0]
    score = ch.gsp_score(x)
    score -= 2.0
    torch.testing.assert_close(torch.autograd.grad(score, x)[0], plain)


@pytest.mark.parametrize(
    ("given", "short"),
    [({"radius": None}, {}), ({"feasible": False}, {}), ({"feasible": 1}, {"feasible": True})],
    ids=str,
)
def test_options_that_are_given_as_they_are_by_default(given, short):
    """They choose the same formula for the gradient."""
    grads = []
    for options in (given, short):
        x = leaf(normal(6, 5))
        ch.project_bilevel(x, 2.0, **options).backward(torch.from_numpy(normal(6, 5, seed=1)))
        grads.append(x.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("name", ["cai_score", "hoyer_score", "hoyer_sparseness"])
def test_gradients_of_scores_that_keep_their_axes(name, axis):
    grads = []
    for keep in (True, False):
        x = leaf(normal(4, 3, 5))
        score = getattr(ch, name)(x, axis=axis, keepdims=keep)
        score.backward(torch.arange(1.0, score.numel() + 1).double().reshape(score.shape))
        grads.append(x.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("inner", ["l2", "l1"])
def test_ties_of_float32_are_ties_for_all_their_rounding(inner):
    """Columns that hold the same numbers in another order."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        for n in (7, 100, 1000):
            column = rng.standard_normal(n)
            x = leaf(np.stack([rng.permutation(column) for _ in range(6)], 1), torch.float32)
            g = torch.tensor(rng.standard_normal((n, 6)), dtype=torch.float32)
            ch.project_bilevel(x, 2.5, inner=inner).backward(g)
            assert x.grad.abs().max() < 50.0


def test_an_incoming_gradient_that_is_sparse():
    y, index = normal(6, 5), torch.tensor([1, 4, 1])
    grads = []
    for sparse in (True, False):
        x = leaf(y)
        rows = torch.nn.functional.embedding(index, ch.project_cai(x, 2.0), sparse=sparse)
        rows.square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_the_gradient_of_vectors_of_one_entry():
    """None of them takes part."""
    x, y = leaf(normal(1)), leaf(normal(1, seed=1))
    first, second = ch.project_gsp([x, y], 0.5)
    (2.0 * first + 3.0 * second).sum().backward()
    assert (x.grad.item(), y.grad.item()) == (2.0, 3.0)


def test_the_gradient_of_blocks_larger_than_memory():
    x, y = leaf(normal(3, 4)), leaf(normal(3, 4))
    for t, groups in ((x, (1 << 30, 1 << 30)), (y, (3, 4))):
        ch.project_bilevel(t, radius=1.0, groups=groups).square().sum().backward()
    assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("form", [torch.tensor, np.array, list], ids=["tensor", "array", "list"])
@pytest.mark.parametrize("name", ["radius l2", "exact"])
def test_labels_that_are_changed_before_the_gradient_is_asked_for(name, form):
    x, y = leaf(normal(4, 5)), leaf(normal(4, 5))
    labels = form(LABELS.tolist())
    result = MATRICES[name](x, groups=labels)
    labels[0] = labels[1]
    result.square().sum().backward()
    MATRICES[name](y, groups=LABELS).square().sum().backward()
    assert torch.equal(x.grad, y.grad)


@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
def test_a_matrix_that_met_the_constraint_beside_one_that_did_not(inner):
    """It comes back as it was, and so does its gradient, where a column is zero, too."""
    y, g = normal(2, 3, 4), torch.from_numpy(normal(2, 3, 4, seed=1))
    y[0] *= 0.01
    y[0, :, 1] = 0.0
    for project in (
        lambda x: ch.project_bilevel(x, radius=1.0, inner=inner),
        lambda x: ch.project_l1inf_ball(x, 1.0),
    ):
        x = leaf(y)
        project(x).backward(g)
        assert torch.equal(x.grad[0], g[0])
        assert not torch.equal(x.grad[1], g[1])


def test_zeros_of_groups_that_are_dropped_get_nothing():
    """Their bound is zero: a kink."""
    y = np.array([[2.0, 0.1], [1.0, 0.0]])
    x = leaf(y)
    result = ch.project_bilevel(x, radius=1.0, groups=(2, 1))
    assert (result[:, 1] == 0).all()
    result.backward(torch.ones(2, 2).double())
    assert (x.grad[:, 1] == 0).all()


def test_groups_whose_largest_norms_tie():
    """The projection goes with its input: its derivative along the input is the result."""
    y, g = np.array([[3.0, -3.0, 1.0], [1.0, 2.0, 2.0]]), normal(2, 3)
    for level in (1.5, 2.0, 2.5):
        x = leaf(y)
        result = ch.project_bilevel(x, level, feasible=True)
        result.backward(torch.from_numpy(g))
        assert (x.grad * x).sum().item() == pytest.approx((g * result.detach().numpy()).sum())


@pytest.mark.parametrize("exponent", [-1000, -600, 600, 1000])
@pytest.mark.parametrize("name", ["cai_score", "hoyer_score", "hoyer_sparseness", "gsp_score"])
def test_gradients_of_scores_of_tiny_and_huge_data(name, exponent):
    """The score is the same, the gradient that much larger or smaller."""
    y, grads = normal(12, seed=4), []
    for unit in (1.0, 2.0**exponent):
        x = leaf(y * unit)
        getattr(ch, name)(x).backward()
        grads.append(x.grad * unit)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-12, atol=0)


CALLS = {
    "project_cai": 1.5, "project_hoyer": 0.7, "project_l1_ball": 1.0, "project_simplex": 1.0,
    "project_gsp": 0.7, "project_bilevel": 1.5, "project_l1inf_ball": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_autograd_sees_that_out_was_written_where_x_may_be(name):
    """The permission to overwrite x does not hide that `out` changes."""
    w, x, out = torch.ones(3, 4, requires_grad=True), torch.randn(3, 4), torch.randn(3, 4)
    y = (w * out).sum()
    getattr(ch, name)(x, CALLS[name], out=out, overwrite_x=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_autograd_sees_that_out_was_written_before_an_error():
    """The rows before the one that is not finite."""
    w, x, out = torch.ones(3, 4, requires_grad=True), torch.randn(3, 4), torch.randn(3, 4)
    x[2, 3] = torch.nan
    y = (w * out).sum()
    with pytest.raises(ValueError, match="finite"):
        ch.project_cai(x, 1.5, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_overwriting_what_cannot_hold_the_result():
    x = torch.arange(5)
    result = ch.project_cai(x, 2.0, overwrite_x=True)
    np.testing.assert_array_equal(result.numpy(), ch.project_cai(np.arange(5), 2.0))
    assert torch.equal(x, torch.arange(5))


@pytest.mark.parametrize("exponent", [-700, 700])
@pytest.mark.parametrize("feasible", [False, True])
def test_gradients_of_matrices_of_different_units(feasible, exponent):
    """Those of each are what they are in a batch of its own."""
    y, g, grads = normal(2, 3, 4), torch.from_numpy(normal(2, 3, 4, seed=1)), []
    for unit in (1.0, 2.0**exponent):
        x = leaf(y * np.array([1.0, unit]).reshape(2, 1, 1))
        ch.project_bilevel(x, 1.5, inner="l2", feasible=feasible).backward(g)
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_kernels_serve_parameters():
    """Most of what requires a gradient is one."""
    assert _vjp_kernels.serves(torch.nn.Parameter(torch.ones(3)))
    assert not _vjp_kernels.serves(torch.ones(3), torch.nn.Parameter(torch.ones(3).half()))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["cai_score", "hoyer_score", "hoyer_sparseness"])
def test_gradients_of_scores_of_nan_are_nan(name, bad):
    """Wherever it is, and only in its slice."""
    y = normal(3, 4)
    y[1, 2] = bad
    x = leaf(y)
    getattr(ch, name)(x).sum().backward()
    assert x.grad.isnan().any(1).tolist() == [False, True, False]
    assert x.grad[1].isnan().all()


@pytest.mark.parametrize("name", ["cai", "gsp", "level", "hoyer_score"])
def test_data_and_gradients_that_are_negated_lazily(name):
    y, grads = normal(3, 5), []
    function = VECTORS.get(name) or MATRICES[name]
    for plain in (True, False):
        x = leaf(1j * y, torch.complex128)
        result = function(-x.imag if plain else x.conj().imag)
        g = torch.complex(torch.zeros(result.shape), torch.ones(result.shape)).to(x.dtype)
        g = -g.imag if plain else g.conj().imag
        assert g.is_neg() != plain
        result.backward(g)
        grads.append(x.grad)
    assert torch.equal(*grads)
    assert grads[0].abs().max() > 0.1


def test_incoming_gradients_without_memory():
    """Those of `is_grads_batched`, and zeros that PyTorch does not store."""
    x = leaf(normal(5))
    result = ch.project_cai(x, 2.0)
    g, given = torch.eye(5).double(), {"retain_graph": True}
    (batch,) = torch.autograd.grad(result, x, g, is_grads_batched=True, **given)
    rows = [torch.autograd.grad(result, x, row, **given)[0] for row in g]
    torch.testing.assert_close(batch, torch.stack(rows))
    zeros = torch._efficientzerotensor(5, dtype=torch.float64)
    assert (torch.autograd.grad(result, x, zeros)[0] == 0).all()


def test_the_gradient_of_a_zero_of_its_own_beside_a_vector():
    """It takes no part, so that it may move."""
    w, x = leaf(normal(9)), leaf([0.0])
    first, second = ch.project_gsp([w, x], 0.6)
    assert not torch.equal(first, w)
    (first.sum() + 3.0 * second.sum()).backward()
    assert x.grad.item() == 3.0


@pytest.mark.parametrize("exponent", [-900, 900])
def test_kernels_and_formulas_agree_on_a_list_of_different_units(exponent, monkeypatch):
    y = torch.from_numpy(np.ldexp(normal(60, seed=3), np.repeat([exponent, -exponent], 30)))
    found = both_ways(
        monkeypatch, lambda x: ch.project_gsp([x[:30], x[30:]], 0.6), y, normal(60, seed=4)
    )
    assert found[0].isfinite().all()
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["cai", "hoyer", "gsp", "hoyer_score"])
def test_gradients_of_data_whose_squares_are_subnormal(name):
    y, grads = normal(12, seed=4), []
    for unit in (1.0, 2.0**-530):
        x = leaf(y * unit)
        result = VECTORS[name](x)
        result.backward(torch.from_numpy(normal(*result.shape, seed=5)))
        grads.append(x.grad * (unit if name == "hoyer_score" else 1.0))
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["cai", "hoyer l2", "ball", "simplex"])
def test_what_comes_in_off_the_support_is_of_no_matter(name):
    x = leaf(normal(9))
    result = VECTORS[name](x)
    g = torch.where(result == 0, torch.inf, 1.0)
    assert g.isinf().any()
    result.backward(g)
    assert x.grad.isfinite().all()


def test_an_empty_parameter_list_is_an_empty_list():
    none = torch.nn.ParameterList()
    assert len(ch.project_gsp(none, 0.5)) == 0
    assert ch.gsp_score(none) == ch.gsp_score([]) == 1.0


@pytest.mark.parametrize("axis", [0, 1, -1, None])
@pytest.mark.parametrize("name", ["cai_score", "hoyer_score", "hoyer_sparseness", "gsp_score"])
def test_a_jacobian_of_scores_that_keep_their_axes(name, axis):
    def score(x):
        return getattr(ch, name)(x, axis=axis, keepdims=True)

    y, jacobian = torch.from_numpy(normal(3, 4)), torch.autograd.functional.jacobian
    torch.testing.assert_close(jacobian(score, y, vectorize=True), jacobian(score, y))


@pytest.mark.parametrize("name", ["level l2", "feasible l2", "radius l2"])
def test_gradient_of_groups_of_subnormal_data(name):
    """The unit of such data has a reciprocal that is no float."""
    y, g = np.round(normal(4, 6, seed=2) * 2.0**40), torch.from_numpy(normal(4, 6, seed=3))
    grads = []
    for exponent in (0, -1074):
        x = leaf(np.ldexp(y, exponent))
        radius = {"radius": np.ldexp(2.0**41, exponent)} if name == "radius l2" else {"level": 2.5}
        found = ch.project_bilevel(x, **radius, inner="l2", feasible=name == "feasible l2")
        (found * g).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["level", "radius l2", "exact"])
def test_gradients_of_labels_as_a_tuple_of_two_rows(name):
    labels, y = ((0, 1, 0, 2), (2, 2, 1, 0)), normal(2, 4, seed=5)
    grads = []
    for groups in (labels, np.array(labels)):
        x = leaf(y)
        MATRICES[name](x, groups=groups).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=0, atol=0)


def test_float32_gradients_of_large_groups_by_the_formulas(monkeypatch):
    """As where the kernels serve: the formulas sum over labels one entry after the other."""
    monkeypatch.setattr(_vjp_kernels, "serves", lambda *tensors: False)
    test_float32_gradients_of_large_groups()


@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
def test_a_matrix_that_met_the_constraint_beside_one_that_did_not_by_the_formulas(
    inner, monkeypatch
):
    monkeypatch.setattr(_vjp_kernels, "serves", lambda *tensors: False)
    test_a_matrix_that_met_the_constraint_beside_one_that_did_not(inner)
