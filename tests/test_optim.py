"""SparseAdamW against plain NumPy in long double, against torch's AdamW, and its identities."""

import copy
import pickle
import warnings

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conehoyer as ch
from conehoyer import optim
from conehoyer.optim import SparseAdamW

DTYPES = [np.float32, np.float64]
# Shapes and blocks that divide them and do not; runs and tiles of the kernels are 2,048 wide.
CASES = [
    ((6, 8), (1, 1)),
    ((6, 8), (2, 4)),
    ((6, 8), (4, 3)),
    ((7, 11), (7, 1)),
    ((7, 11), (1, 11)),
    ((7, 11), (3, 100)),
    ((7, 12), (1, 4)),
    ((7, 11), (100, 100)),
    ((40, 70), (32, 1)),
    ((33, 50), (16, 16)),
    ((4, 6, 3, 3), (3, 3)),
    ((4, 6, 3, 3), (1, 3)),
    ((3, 5, 4), (2, 3)),
    ((3, 5, 4), (2, 4)),
    ((3, 4, 4), (2, 1)),
    ((5, 4500), (2, 2100)),
    ((5, 4500), (2, 7)),
    ((3, 5000), (3, 2500)),
    ((2, 5000), (1, 5000)),
    ((3, 50), (1, 48)),
    ((3, 70), (1, 16)),
    ((5, 4500), (1, 32)),
    ((2, 4500), (1, 2048)),
    ((4, 2049), (2, 3)),
    ((5, 9000), (2, 2100)),
    ((5, 9000), (2, 7)),
    ((3, 9000), (3, 4500)),
    ((5, 33_000), (5, 550)),
    ((3, 33_000), (2, 33_000)),
    ((2, 33_000), (1, 32_800)),
    ((3, 450, 5), (7, 2)),
    ((2100, 3), (1050, 1)),
    ((1, 1), (3, 3)),
]


def blocks_of(shape, groups):
    """Slices of the blocks, in the last two axes or in none."""
    if len(shape) < 2:
        for index in np.ndindex(*shape):
            yield index, index
        return
    (r, c), (rows, columns) = groups, shape[-2:]
    for lead in np.ndindex(*shape[:-2]):
        for i in range(0, rows, r):
            for j in range(0, columns, c):
                yield (*lead, i // r, j // c), (*lead, slice(i, i + r), slice(j, j + c))


def norms(w, groups):
    """At each entry the norm of its block."""
    if w.ndim < 2 or w.size == 0:
        return np.abs(w)
    total = w * w
    for axis, side in zip((-2, -1), groups, strict=True):
        total = np.add.reduceat(total, np.arange(0, w.shape[axis], side), axis)
        total = np.repeat(total, side, axis).take(range(w.shape[axis]), axis)
    return np.sqrt(total)


class Reference:
    """One parameter, in long double, as the formulas stand on paper."""

    def __init__(self, w, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, l1=0.0,
                 groups=(1, 1), reweight_every=None, reweight_eps=1e-3, mask=None):  # fmt: skip
        self.w = np.array(w, np.longdouble)
        self.m, self.v = np.zeros_like(self.w), np.zeros_like(self.w)
        self.t = 0
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, weight_decay
        self.l1, self.groups = l1, groups
        self.every, self.small, self.mask = reweight_every, reweight_eps, mask
        self.gamma = np.ones_like(self.w)

    def step(self, g):
        g = np.asarray(g, np.longdouble)
        self.t += 1
        b1, b2 = map(np.longdouble, self.betas)
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g * g
        mean, square = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        self.w = self.w * (1 - np.longdouble(self.lr) * self.decay)
        self.w = np.asarray(self.w - self.lr * mean / (np.sqrt(square) + self.eps))
        if self.mask is not None:
            for array in (self.w, self.m, self.v):
                array[~self.mask] = 0
        size = norms(self.w, self.groups)
        shrunk = np.maximum(1 - self.lr * self.l1 * self.gamma / np.where(size > 0, size, 1), 0)
        self.w = np.asarray(self.w * np.where(size > 0, shrunk, 0))
        if self.every and self.t % self.every == 0:
            self.gamma = 1 / (norms(self.w, self.groups) + self.small)


def close(dtype, scale=1.0):
    return {"rtol": 0, "atol": scale * (1e-13 if dtype == np.float64 else 2e-5)}


def everything(optimizer):
    """All that a step may change, as bytes."""
    params = [p.tobytes() for group in optimizer.param_groups for p in group["params"]]
    return params, pickle.dumps(optimizer.state_dict())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_against_plain_numpy(shape, groups, dtype):
    rng = np.random.default_rng(0)
    w = rng.standard_normal(shape).astype(dtype)
    mask = rng.random(shape) < 0.8
    size = np.sqrt(np.prod(groups, dtype=float))
    for options in (
        {"lr": 0.05, "l1": 4.0 * size},
        {"lr": 0.05, "l1": 0.3 * size, "reweight_every": 3, "reweight_eps": 0.2},
        {"lr": 0.05, "l1": 2.0 * size, "mask": mask, "weight_decay": 0.3, "betas": (0.5, 0.9)},
        {"lr": 0.05, "mask": mask, "eps": 0.1, "reweight_every": 1},
        {"lr": 0.05, "betas": (0.0, 0.0)},
    ):
        p = w * (mask if "mask" in options else 1)
        expected = Reference(p, **options, groups=groups)
        given_mask = {"mask": [mask]} if "mask" in options else {}
        o = SparseAdamW([p], **(options | given_mask), groups=groups)
        for _ in range(8):
            g = rng.standard_normal(shape).astype(dtype)
            o.step([g])
            expected.step(g)
        np.testing.assert_allclose(p, expected.w.astype(float), **close(dtype))
        zero = o.zero_blocks()[0]
        for name, block in blocks_of(shape, groups):
            assert zero[name] == (not p[block].any())
        assert p.dtype == dtype
        assert not np.any(np.signbit(p[p == 0])) or not options.get("l1")


@pytest.mark.parametrize("shape", [(), (5,), (0,), (0, 3), (2, 0), (20_000,)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_few_dimensions_and_no_entries(shape, dtype):
    rng = np.random.default_rng(1)
    p = rng.standard_normal(shape).astype(dtype) if shape else np.array(0.7, dtype)
    expected = Reference(p, lr=0.1, l1=0.5, reweight_every=2)
    o = SparseAdamW([p], lr=0.1, l1=0.5, reweight_every=2)
    for _ in range(4):
        g = np.asarray(rng.standard_normal(shape), dtype)
        o.step([g])
        expected.step(g)
    np.testing.assert_allclose(p, expected.w.astype(float), **close(dtype))
    assert o.zero_blocks()[0].shape == shape
    if p.ndim > 1:
        o = SparseAdamW([p], l1=1.0, groups=(2, 2), reweight_every=1)
        o.step([p])
        assert o.zero_blocks()[0].shape == tuple(-(-n // 2) for n in shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_single_entries_are_plain_numpy_bit_for_bit(dtype):
    # The same operations in the same dtype: nothing is promoted, nothing reordered.
    rng = np.random.default_rng(2)
    p = rng.standard_normal(40_000).astype(dtype)
    w, m, v = p.copy(), np.zeros_like(p), np.zeros_like(p)
    o = SparseAdamW([p], lr=0.01, l1=3.0)
    real = dtype
    for t in range(1, 6):
        g = rng.standard_normal(p.size).astype(dtype)
        o.step([g])
        m = real(0.9) * m + real(1 - 0.9) * g
        v = real(0.999) * v + real(1 - 0.999) * g * g
        length, root = real(0.01 / (1 - 0.9**t)), real(1 / np.sqrt(1 - 0.999**t))
        w = real(1 - 0.01 * 1e-2) * w - length * (m / (np.sqrt(v) * root + real(1e-8)))
        w = np.sign(w) * np.maximum(np.abs(w) - real(0.01 * 3.0), 0)
        np.testing.assert_array_equal(p, w)
    assert 0 < np.count_nonzero(p) < p.size


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 0.1, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.2}, {"weight_decay": 0.0}],
    ids=str,
)
def test_equals_torch_where_l1_is_zero(dtype, options):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    w, b = rng.standard_normal((50, 70)).astype(dtype), rng.standard_normal(70).astype(dtype)
    tensors = [torch.nn.Parameter(torch.tensor(a)) for a in (w, b)]
    o, peer = SparseAdamW([w, b], **options), torch.optim.AdamW(tensors, **options)
    for step in range(100):
        grads = [rng.standard_normal(a.shape).astype(dtype) for a in (w, b)]
        grads = [grads[0], None if step % 5 == 4 else grads[1]]
        o.step(grads)
        for tensor, g in zip(tensors, grads, strict=True):
            tensor.grad = None if g is None else torch.tensor(g)
        peer.step()
    for mine, tensor in zip((w, b), tensors, strict=True):
        top = np.abs(mine).max()
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(mine, tensor.detach().numpy(), rtol=0, atol=16 * eps * top)


# --- the proximal step ---------------------------------------------------------------


@pytest.mark.parametrize("groups", [(1, 1), (3, 2), (6, 1), (1, 8), (4, 3)], ids=str)
def test_the_block_step_is_the_minimiser(groups):
    # a − w ∈ lr·l1·γ·∂‖w‖: parallel to w and of the threshold's length, or w = 0 and within it.
    rng = np.random.default_rng(4)
    shape, lr, l1 = (6, 8), 0.5, 1.5 * np.sqrt(np.prod(groups))
    p, q = (rng.standard_normal(shape) for _ in range(2))
    q[:] = p
    sparse = SparseAdamW([p], lr=lr, l1=l1, groups=groups, reweight_every=1, reweight_eps=0.5)
    plain = SparseAdamW([q], lr=lr)
    kept = total = 0
    for _ in range(6):
        q[:] = p
        state = sparse.state_dict()["state"]
        gamma = state[0]["gamma"] if state else np.ones(sparse.zero_blocks()[0].shape)
        g = rng.standard_normal(shape)
        sparse.step([g])
        plain.step([g])
        for name, block in blocks_of(shape, groups):
            a, w, t = q[block], p[block], lr * l1 * gamma[name]
            norm = np.linalg.norm(w)
            if norm > 0:
                np.testing.assert_allclose(a - w, t * w / norm, rtol=0, atol=1e-13)
            else:
                assert np.linalg.norm(a) <= t * (1 + 1e-14)
            kept, total = kept + (norm > 0), total + 1
            for _ in range(3):
                z = w + 0.01 * rng.standard_normal(w.shape)
                objective = t * norm + 0.5 * np.sum((w - a) ** 2)
                assert t * np.linalg.norm(z) + 0.5 * np.sum((z - a) ** 2) > objective
    assert 0.1 * total < kept < 0.9 * total  # both cases were seen


@pytest.mark.parametrize("groups", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_zero_block_stays_and_returns(groups, dtype):
    w = np.ones((4, 6), dtype)
    w[:2, :2] = 0
    o = SparseAdamW([w], lr=0.1, l1=0.5, groups=groups, weight_decay=0.0)
    for _ in range(5):
        g = np.zeros_like(w)
        g[0, 4] = 1.0
        o.step([g])
        assert not w[:2, :2].any()
        assert np.all(w[:, 2:] > 0)
    g = np.zeros_like(w)
    g[:2, :2] = 100.0
    o.step([g])
    assert np.all(w[:2, :2] < 0)  # a step of about lr·√… beats the threshold of lr·l1
    small = np.zeros((4, 6), dtype)
    o = SparseAdamW([small], lr=0.1, l1=2.5, groups=groups)
    o.step([np.ones_like(small)])  # AdamW moves a block of four by 0.2, the threshold is 0.25
    assert not small.any()


def test_the_gradient_never_sees_the_penalty():
    rng = np.random.default_rng(5)
    w = rng.standard_normal((4, 4))
    first, second = SparseAdamW([w.copy()]), SparseAdamW([w], l1=5.0, groups=(2, 2))
    for _ in range(5):
        g = rng.standard_normal(w.shape)
        first.step([g])
        second.step([g])
    a, b = (o.state_dict()["state"][0] for o in (first, second))
    np.testing.assert_array_equal(a["exp_avg"], b["exp_avg"])
    np.testing.assert_array_equal(a["exp_avg_sq"], b["exp_avg_sq"])


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-160, 1.0, 1e160, 1e200, 1e300])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((4, 6), (2, 3)),
        ((4, 6), (4, 1)),
        ((4, 75), (1, 32)),
        ((3, 5000), (2, 2100)),
        ((3, 9000), (2, 2100)),
        ((3, 33_000), (2, 33_000)),
    ],
    ids=str,
)
def test_squares_that_over_or_underflow(scale, shape, groups):
    rng = np.random.default_rng(6)
    w = rng.standard_normal(shape)
    w[:2, :3] = 0
    p = w * scale
    lr = scale
    o = SparseAdamW([p], lr=lr, l1=1.0, weight_decay=0.0, groups=groups)
    o.step([np.zeros(shape)])
    expected = np.zeros(shape)
    for _, block in blocks_of(shape, groups):
        norm = np.linalg.norm(w[block])
        expected[block] = w[block] * max(1 - 1 / norm, 0) if norm else 0
    np.testing.assert_allclose(p / scale, expected, rtol=0, atol=1e-13)
    o = SparseAdamW([w * scale], l1=1.0, groups=groups, reweight_every=1, reweight_eps=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        o.step([np.zeros(shape)])
    gamma = o.state_dict()["state"][0]["gamma"]
    after = o.param_groups[0]["params"][0]
    for name, block in blocks_of(shape, groups):
        top = np.abs(after[block]).max()
        norm = top * np.linalg.norm(after[block] / top) if top else 0.0
        np.testing.assert_allclose(gamma[name], 1 / (norm + 1e-3), rtol=1e-12)


def test_float32_blocks_at_the_limits():
    for scale in (1e-36, 1e36):
        p = np.full((8, 8), scale, np.float32)
        o = SparseAdamW([p], lr=scale, l1=2.0, groups=(4, 4), weight_decay=0.0)
        o.step([np.zeros((8, 8))])  # norm 4·scale, threshold 2·scale
        np.testing.assert_allclose(p, 0.5 * scale, rtol=1e-6)


def test_weights_that_are_not_a_number_are_not_hidden():
    for groups in ((1, 1), (2, 2)):
        w = np.ones((4, 4))
        o = SparseAdamW([w], l1=1.0, groups=groups, reweight_every=1)
        w[0, 0] = np.nan
        o.step([np.zeros((4, 4))])
        assert np.isnan(w[0, 0])
        assert np.isfinite(w[2:]).all()


# --- the weights of the blocks --------------------------------------------------------


@pytest.mark.parametrize("groups", [(1, 1), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_schedule_of_the_weights(groups, dtype):
    rng = np.random.default_rng(7)
    w = rng.standard_normal((5, 7)).astype(dtype)
    o = SparseAdamW([w], l1=1.0, groups=groups, reweight_every=3, reweight_eps=0.01)
    held = None
    for step in range(1, 9):
        o.step([rng.standard_normal(w.shape).astype(dtype)])
        gamma = o.state_dict()["state"][0]["gamma"]
        if step < 3:
            assert gamma is None
        elif step % 3 == 0:
            assert gamma.dtype == dtype
            for name, block in blocks_of(w.shape, groups):
                norm = np.sqrt(np.sum(w[block].astype(float) ** 2))
                np.testing.assert_allclose(gamma[name], 1 / (norm + 0.01), rtol=1e-6)
            held = gamma
        else:
            np.testing.assert_array_equal(gamma, held)


def test_new_blocks_begin_with_the_weight_one():
    w = np.ones((4, 4))
    o = SparseAdamW([w], lr=0.1, l1=0.1, groups=(2, 2), reweight_every=1, weight_decay=0.0)
    o.step([np.zeros((4, 4))])
    o.param_groups[0] |= {"groups": (1, 4), "reweight_every": None}
    before = w.copy()
    o.step([np.zeros((4, 4))])
    norm = np.linalg.norm(before[0])
    np.testing.assert_allclose(w, before * (1 - 0.01 / norm), rtol=1e-14)
    assert o.state_dict()["state"][0]["gamma"] is None


def test_as_many_new_blocks_begin_with_the_weight_one():
    """Blocks of 2 × 2 and of 3 × 3 are four each; larger ones than the array are the array."""
    w, v = np.arange(16.0).reshape(4, 4), np.zeros((4, 4))
    options = {"l1": 0.1, "reweight_every": 2, "weight_decay": 0.0}
    o = SparseAdamW([w], groups=(2, 2), **options)
    for _ in range(2):
        o.step([np.zeros((4, 4))])
    o.param_groups[0]["groups"] = (3, 3)
    assert o.state_dict()["state"][0]["gamma"] is None
    v[:] = w
    o.step([np.zeros((4, 4))])
    SparseAdamW([v], groups=(3, 3), **options).step([np.zeros((4, 4))])
    np.testing.assert_array_equal(w, v)
    o.step([np.zeros((4, 4))])
    held = o.state_dict()["state"][0]["gamma"]
    loaded = SparseAdamW([w.copy()])
    loaded.load_state_dict(o.state_dict())
    for one in (o, loaded):
        assert held.shape == (2, 2)
        np.testing.assert_array_equal(one.state_dict()["state"][0]["gamma"], held)
        one.param_groups[0]["groups"] = (2, 2)
        assert one.state_dict()["state"][0]["gamma"] is None
    o.param_groups[0]["groups"] = [4, 9]
    for _ in range(2):
        o.step([np.zeros((4, 4))])
    o.param_groups[0]["groups"] = (4, 4)
    assert o.state_dict()["state"][0]["gamma"] is not None


def test_without_renewal_the_weights_are_one():
    w, v = np.full((2, 2), 3.0), np.full((2, 2), 3.0)
    options = {"lr": 0.1, "l1": 0.5, "weight_decay": 0.0}
    o, plain = SparseAdamW([w], reweight_every=1, **options), SparseAdamW([v], **options)
    o.step([np.zeros((2, 2))])
    plain.step([np.zeros((2, 2))])
    o.param_groups[0]["reweight_every"] = None
    o.step([np.zeros((2, 2))])
    plain.step([np.zeros((2, 2))])
    np.testing.assert_array_equal(w, v)


def test_a_state_of_other_blocks_can_be_loaded():
    w = np.ones((4, 4))
    o = SparseAdamW([w], l1=0.1, groups=(2, 2), reweight_every=1)
    o.step([w])
    assert o.state_dict()["state"][0]["gamma"].shape == (2, 2)
    o.param_groups[0]["groups"] = (1, 4)
    saved = o.state_dict()
    assert saved["state"][0]["gamma"] is None
    SparseAdamW([w]).load_state_dict(saved)


# --- masks and constraints -------------------------------------------------------------


@pytest.mark.parametrize("groups", [(1, 1), (2, 2), (8, 1)], ids=str)
@pytest.mark.parametrize("l1", [0.0, 0.5])
def test_masked_entries_never_leave_zero(groups, l1):
    rng = np.random.default_rng(8)
    w, b = rng.standard_normal((8, 2100)), rng.standard_normal(6)
    mask = rng.random(w.shape) < 0.5
    o = SparseAdamW([{"params": [w]}, {"params": [b], "l1": 0.0}], lr=0.1, l1=l1, groups=groups,
                    mask=[mask, None], reweight_every=2)  # fmt: skip
    assert not w[~mask].any()
    assert w[mask].all()
    mask[:] = True  # a copy was taken
    kept = o.param_groups[0]["mask"][0]
    for step in range(4):
        if step == 2:
            w[~kept] = 7.0  # as if other weights had been loaded
        o.step([np.full(w.shape, 10.0), np.ones(6)])
        state = o.state_dict()["state"][0]
        for array in (w, state["exp_avg"], state["exp_avg_sq"]):
            assert not array[~kept].any()
    assert np.count_nonzero(w) > 0
    if l1 == 0.0:
        assert w[kept].all()


def test_masks_by_name_and_in_groups():
    w, b = np.ones((2, 2)), np.ones(2)
    mask = np.array([[True, False], [True, True]])
    SparseAdamW({"w": w, "b": b}, mask={"w": mask})
    np.testing.assert_array_equal(w, mask)
    np.testing.assert_array_equal(b, 1)
    w[:] = 1
    SparseAdamW([{"params": {"w": w}, "mask": {"w": mask}}, {"params": {"b": b}}])
    np.testing.assert_array_equal(w, mask)


def test_a_constraint_replaces_the_penalty():
    rng = np.random.default_rng(9)
    w, plain = (rng.standard_normal((20, 30)) for _ in range(2))
    plain[:] = w
    calls = []

    def constraint(weights):
        calls.append(weights is w)
        return ch.project_bilevel(weights, 5.0, groups="columns", feasible=True)

    o = SparseAdamW([w], lr=0.1, constraint=constraint, constraint_every=3)
    peer = SparseAdamW([plain], lr=0.1)
    for step in range(1, 8):
        g = rng.standard_normal(w.shape)
        o.step([g])
        peer.step([g])
        if step % 3 == 0:
            plain[:] = ch.project_bilevel(plain, 5.0, feasible=True)
            assert np.count_nonzero(w.any(axis=0)) < 30
        np.testing.assert_array_equal(w, plain)
    assert calls == [True, True]


def test_a_constraint_may_write_in_place_and_obeys_the_mask():
    w = np.full((3, 4), 2.0)
    o = SparseAdamW([w], constraint=lambda z: np.clip(z, -0.5, 0.5, out=z))
    o.step([np.zeros((3, 4))])
    np.testing.assert_array_equal(w, 0.5)
    mask = np.eye(3, 4, dtype=bool)
    o = SparseAdamW([w], constraint=ch.project_simplex, mask=[mask])
    o.step([np.zeros((3, 4))])
    assert not w[~mask].any()
    for wrong, error in ((lambda z: None, TypeError), (lambda z: z[0], ValueError)):
        with pytest.raises(error, match="constraint must return"):
            SparseAdamW([w], constraint=wrong).step([w])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [(1, 1), (1, 5), (1, 32), (3, 1), (2, 16)], ids=str)
def test_nan_among_the_weights_stays(groups, dtype):
    """Nothing is lost: a block that holds NaN becomes NaN, not zero."""
    w = np.ones((4, 70), dtype)
    o = SparseAdamW([w], lr=0.1, l1=0.1, groups=groups)
    bad = np.zeros(w.shape, bool)
    for place in ((1, 7), (2, 69)):
        w[place] = np.nan
        block = tuple(slice(i // g * g, i // g * g + g) for i, g in zip(place, groups, strict=True))
        bad[block] = True
    o.step([np.zeros_like(w)])
    np.testing.assert_array_equal(np.isnan(w), bad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 6), (4, 70)], ids=str)
@pytest.mark.parametrize("groups", [(1, 32), (3, 1), (2, 16)], ids=str)
def test_blocks_with_an_infinite_weight_stay(shape, groups, dtype):
    """They shrink by nothing, and their weight is zero."""
    w = np.ones(shape, dtype)
    o = SparseAdamW([w], lr=0.1, l1=0.1, weight_decay=0.0, groups=groups, reweight_every=1)
    w[1, 5] = np.inf
    before = w.copy()
    o.step([np.zeros_like(w)])
    gamma = o.state_dict()["state"][0]["gamma"]
    for name, block in blocks_of(shape, groups):
        infinite = np.isinf(before[block]).any()
        assert np.array_equal(w[block], before[block]) == infinite
        assert (gamma[name] == 0.0) == infinite


# --- parameter groups and gradients ----------------------------------------------------


def test_parameter_groups_override_every_option():
    rng = np.random.default_rng(10)
    arrays = [rng.standard_normal((6, 4)) for _ in range(3)]
    other = {"lr": 0.2, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.3, "l1": 2.0,
             "groups": (2, 2), "reweight_every": 2, "reweight_eps": 0.3}  # fmt: skip
    expected = [Reference(arrays[0], 0.1), Reference(arrays[1], 0.1), Reference(arrays[2], **other)]
    o = SparseAdamW([{"params": arrays[:2]}, {"params": [arrays[2]], **other}], lr=0.1)
    for _ in range(5):
        grads = [rng.standard_normal((6, 4)) for _ in range(3)]
        o.step(grads)
        for reference, g in zip(expected, grads, strict=True):
            reference.step(g)
    for p, reference in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(p, reference.w.astype(float), rtol=0, atol=1e-13)


def test_options_may_change_between_steps():
    rng = np.random.default_rng(11)
    p = rng.standard_normal((4, 4))
    reference = Reference(p, 0.1, l1=0.1)
    o = SparseAdamW([p], 0.1, l1=0.1)
    for lr, l1 in ((0.1, 0.1), (0.01, 0.5), (0.0, 1.0), (0.3, 0.0)):
        o.param_groups[0] |= {"lr": lr, "l1": l1}
        reference.lr, reference.l1 = lr, l1
        g = rng.standard_normal((4, 4))
        o.step([g])
        reference.step(g)
    np.testing.assert_allclose(p, reference.w.astype(float), rtol=0, atol=1e-14)
    o.param_groups[0]["lr"] = -1.0
    before = everything(o)[0]
    with pytest.raises(ValueError, match="lr must be finite and >= 0, got -1"):
        o.step([p])
    assert everything(o)[0] == before


def test_names_and_skipped_parameters():
    rng = np.random.default_rng(12)
    w, b = rng.standard_normal((3, 4)), rng.standard_normal(4)
    copies = w.copy(), b.copy()
    named, plain = SparseAdamW({"w": w, "b": b}), SparseAdamW(copies)
    for grads in ({"b": b + 1.0, "w": w + 1.0}, {"w": w * 2.0}, {"w": None, "b": b - 1}):
        plain.step([grads.get("w"), grads.get("b")])
        named.step(grads)
    np.testing.assert_array_equal(w, copies[0])
    np.testing.assert_array_equal(b, copies[1])
    assert [named.state_dict()["state"][k]["step"] for k in (0, 1)] == [2, 2]
    named.step([w, b])  # in order works too
    assert list(named.zero_blocks()) == ["w", "b"]
    untouched = SparseAdamW([w, b])
    untouched.step([None, None])
    assert untouched.state_dict()["state"] == {}


def test_gradients_that_are_parameters():
    # min over x, max over y of x·y: each gradient is the other parameter.
    rng = np.random.default_rng(13)
    x, y = rng.standard_normal(4), rng.standard_normal(4)
    a, b = x.copy(), y.copy()
    first, second = SparseAdamW([x, y], 0.1), SparseAdamW([a, b], 0.1)
    for _ in range(3):
        first.step([y, x])
        second.step([b.copy(), a.copy()])
    np.testing.assert_array_equal(x, a)
    np.testing.assert_array_equal(y, b)
    z = x[::-1]
    first.step([z, y[:]])
    second.step([a[::-1].copy(), b.copy()])
    np.testing.assert_array_equal(x, a)
    # The same memory through another object.
    first.step([y, np.frombuffer(memoryview(x))])
    second.step([b.copy(), a.copy()])
    np.testing.assert_array_equal(y, b)


def test_gradients_that_overlap_one_of_parameters_woven_into_one_another():
    """The first reaches farther than the second, which begins within it."""
    memory = np.arange(20.0)
    o = SparseAdamW([memory[::2], memory[1:2]], lr=0.1)
    o.step([np.ones(10), memory[18:19]])
    np.testing.assert_allclose(o.state_dict()["state"][1]["exp_avg"], 0.1 * 18.0)
    assert memory[18] < 18.0


def test_gradients_that_are_one_of_parameters_in_any_order():
    memory, last = np.arange(8.0), np.zeros(4)
    o = SparseAdamW([memory[4:], memory[:4], last], lr=0.1)
    before = memory[:4].copy()
    o.step([np.ones(4), np.ones(4), memory[:4]])
    np.testing.assert_allclose(o.state_dict()["state"][2]["exp_avg"], 0.1 * before)


def test_parameters_may_be_woven_into_one_another():
    w, expected = np.ones((5, 8)), np.ones((5, 8))
    g = np.arange(40.0).reshape(5, 8)
    parts = lambda a: [a[:, k] for k in range(8)]  # noqa: E731
    SparseAdamW(parts(w), lr=0.1).step(parts(g))
    SparseAdamW([expected], lr=0.1).step([g])
    np.testing.assert_array_equal(w, expected)


@pytest.mark.parametrize("kind", ["F", "f2", ">f8", "int", "read-only", "list", "strided"])
def test_gradients_of_any_kind(kind):
    g = np.arange(12.0).reshape(3, 4) - 5.0
    w, expected = np.ones((3, 4)), np.ones((3, 4))
    SparseAdamW([expected]).step([g])
    given = {
        "F": lambda: np.asfortranarray(g),
        "f2": lambda: g.astype(np.float16),
        ">f8": lambda: g.astype(">f8"),
        "int": lambda: g.astype(int),
        "read-only": lambda: np.broadcast_to(g, (3, 4)),
        "list": g.tolist,
        "strided": lambda: np.repeat(g, 2, axis=1)[:, ::2],
    }[kind]()
    SparseAdamW([w]).step([given])
    np.testing.assert_array_equal(w, expected)


def test_what_underflows_in_float32_is_zero():
    w = np.ones(3, np.float32)
    o = SparseAdamW([w], weight_decay=0.0)
    with np.errstate(all="raise"):
        o.step([np.full(3, 1e-300)])
        np.testing.assert_array_equal(w, 1.0)
        o.param_groups[0]["constraint"] = lambda p: np.full(3, 1e-300)
        o.step([np.zeros(3)])
        np.testing.assert_array_equal(w, 0.0)


def test_zero_blocks_larger_than_any_index():
    o = SparseAdamW([np.eye(3), np.zeros((0, 3))], l1=1.0, groups=(2**70, 1))
    np.testing.assert_array_equal(o.zero_blocks()[0], [[False] * 3])
    assert o.zero_blocks()[1].shape == (0, 3)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("shape", [(20, 33), (80, 93)], ids=str)  # large ones are turned
@pytest.mark.parametrize("groups", [(1, 1), (2, 3)], ids=str)
def test_parameters_of_any_strides(groups, shape):
    rng = np.random.default_rng(14)
    big = rng.standard_normal(shape)

    def unaligned(x):
        return np.frombuffer(bytearray(b"x" + x.tobytes()), np.float64, offset=1).reshape(x.shape)

    views = {
        "F": np.asfortranarray(big),
        "transposed": big.copy().T,
        "strided": big.copy()[::2, ::3],
        "reversed": big.copy()[::-1, ::-1],
        "slice": big.copy()[3:9, 4:20],
        "unaligned": unaligned(big),
        "F matrix": np.asmatrix(np.asfortranarray(big)),
        "unaligned matrix": np.asmatrix(unaligned(big)),
    }
    for view in views.values():
        owner = view.base if isinstance(view.base, np.ndarray) else view
        total, part = owner.sum(), view.sum()
        expected = view.copy()
        first = SparseAdamW([view], 0.1, l1=1.0, groups=groups, reweight_every=2)
        second = SparseAdamW([expected], 0.1, l1=1.0, groups=groups, reweight_every=2)
        for _ in range(4):
            g = rng.standard_normal(view.shape)
            first.step([np.asmatrix(np.asfortranarray(g))])
            second.step([g])
        np.testing.assert_array_equal(view, expected)
        np.testing.assert_allclose(owner.sum() - view.sum(), total - part, atol=1e-10)


# --- what is not finite ----------------------------------------------------------------


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, "square"])
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_changes_where_a_gradient_is_not_finite(dtype, bad, workers):
    rng = np.random.default_rng(15)
    w = rng.standard_normal((400, 500)).astype(dtype)
    b = rng.standard_normal(3).astype(dtype)
    o = SparseAdamW({"w": w, "b": b}, reweight_every=1, workers=workers)
    o.step([rng.standard_normal(w.shape), b])
    before = everything(o)
    if bad == "square":
        bad = np.sqrt(np.finfo(dtype).max) * 1.01
    for place in (0, 2047, 2048, 5000, 7000, 8191, 8192, 16_383, 16_384, 100_001, w.size - 1):
        g = rng.standard_normal(w.shape).astype(dtype)
        g.flat[place] = bad
        with pytest.raises(ValueError, match=r"gradient of parameter 'w' must be finite"):
            o.step([g, b])
        assert everything(o) == before
    g = np.array([0.0, 0.0, bad], dtype)
    with pytest.raises(ValueError, match=r"gradient of parameter 'b' must be finite"):
        o.step([w, g])  # the first parameter isn't updated either
    assert everything(o) == before
    if dtype == np.float32:
        with pytest.raises(ValueError, match="must be finite"):
            o.step([w, np.full(3, 1e300)])  # finite, but not in float32
        assert everything(o) == before
    SparseAdamW([w, b], check_finite=False).step([w, g])
    assert np.isfinite(b[:2]).all()
    assert np.isfinite(b[2]) == np.isfinite(bad)
    o = SparseAdamW([np.ones(2, dtype)])
    g = np.sqrt(np.finfo(dtype).max) * np.array([0.99, -0.99], dtype)
    o.step([g])
    assert np.isfinite(o.state_dict()["state"][0]["exp_avg_sq"]).all()


# --- state -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_state_goes_on_bit_for_bit(dtype):
    rng = np.random.default_rng(16)
    w, b = rng.standard_normal((10, 12)).astype(dtype), rng.standard_normal(12).astype(dtype)
    grads = [[rng.standard_normal(a.shape).astype(dtype) for a in (w, b)] for _ in range(9)]

    def build(w, b):
        return SparseAdamW(
            [{"params": {"w": w}, "groups": (5, 2)}, {"params": {"b": b}, "l1": 0.0}],
            l1=3.0, reweight_every=4, lr=0.05,
        )  # fmt: skip

    o = build(w, b)
    for g in grads[:5]:
        o.step(g)
    o.param_groups[1]["lr"] = 0.2
    saved = o.state_dict()
    for other in (saved, pickle.loads(pickle.dumps(saved)), copy.deepcopy(saved)):
        w2, b2 = w.copy(), b.copy()
        new = build(w2, b2)
        new.load_state_dict(other)
        assert everything(new) == everything(o)
        third = build(w.copy(), b.copy())
        third.load_state_dict(other)
        for g in grads[5:]:
            new.step(g)
        assert pickle.dumps(third.state_dict()) == pickle.dumps(saved)  # nothing is shared
    for g in grads[5:]:
        o.step(g)
    assert everything(new) == everything(o)


def test_the_state_is_a_copy():
    w = np.ones((2, 2))
    o = SparseAdamW([w], l1=0.1, reweight_every=1)
    o.step([w])
    before = everything(o)
    state = o.state_dict()["state"][0]
    for array in (state["exp_avg"], state["exp_avg_sq"], state["gamma"]):
        array[:] = 9.0
    assert everything(o) == before


def test_the_options_of_a_state_are_copies():
    """Pairs may be lists."""
    first, second = (SparseAdamW([np.ones((2, 2))], betas=[0.9, 0.99]) for _ in range(2))
    saved = first.state_dict()
    second.load_state_dict(saved)
    saved["param_groups"][0]["betas"][0] = 0.0
    for o in (first, second):
        assert o.param_groups[0]["betas"] == [0.9, 0.99]


def test_a_wrong_state_changes_nothing():
    o = SparseAdamW({"w": np.ones((2, 2)), "b": np.ones(3)}, reweight_every=1, l1=0.1)
    o.step([np.ones((2, 2)), np.ones(3)])
    good = o.state_dict()
    o.step([np.ones((2, 2)), np.ones(3)])
    before = everything(o)

    def changed(*path, value):
        state = copy.deepcopy(good)
        inner = state
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return state

    group = good["param_groups"][0]
    for state, error, match in (
        (None, TypeError, "state_dict must be a dictionary"),
        (np.array(1.5), TypeError, "state_dict must be a dictionary"),
        ({}, TypeError, "state_dict must be a dictionary"),
        (good | {"state": "abc"}, TypeError, "state_dict must be a dictionary"),
        (changed("param_groups", value=[]), ValueError, "0 parameter groups, this optimizer has 1"),
        (changed("param_groups", 0, "params", value=[0]), ValueError, "1 parameters, .* has 2"),
        (changed("param_groups", 0, "params", value=3), TypeError, '"params" .* a list, got 3'),
        (changed("param_groups", 0, "lr", value=-1), ValueError, "lr must be"),
        (changed("param_groups", 0, "lr", value=10**400), ValueError, "lr must be"),
        (changed("param_groups", 0, value=group | {"x": 1}), ValueError, "unknown option 'x'"),
        (changed("param_groups", 0, value=3), TypeError, "parameter group 0 must be a dictionary"),
        (changed("param_groups", 0, "param_names", value=["b", "w"]), ValueError, "parameters"),
        (changed("state", 1, "exp_avg", value=np.ones(4)), ValueError, r"exp_avg of parameter 1"),
        (changed("state", 1, "exp_avg_sq", value=np.ones(3, "f4")), ValueError, "dtype float64"),
        (changed("state", 0, "gamma", value=np.ones(4)), ValueError, r"gamma of parameter 0"),
        (changed("state", 1, "step", value=0), ValueError, "step of parameter 1"),
        (changed("state", 1, "step", value="x"), TypeError, "step of parameter 1"),
        (changed("state", 1, value={}), TypeError, "state of parameter 1 must have"),
        (changed("state", 5, value={}), ValueError, "state of parameter 5"),
    ):
        with pytest.raises(error, match=match):
            o.load_state_dict(state)
        assert everything(o) == before
    o.load_state_dict(good)
    assert everything(o) != before


# --- workers -------------------------------------------------------------------------------


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((450, 401), (1, 1)),
        ((450, 401), (32, 1)),
        ((450, 401), (16, 16)),
        ((450, 401), (1, 401)),
        ((450, 401), (450, 1)),
        ((40, 5000), (7, 2500)),
        ((40, 9000), (7, 2500)),
        ((5, 200, 200), (3, 8)),
        ((300_001, 2), (10, 1)),
    ],
    ids=str,
)
def test_workers_do_not_change_a_bit(dtype, shape, groups):
    results = []
    for workers in (1, 2, 3):
        rng = np.random.default_rng(17)
        w = rng.standard_normal(shape).astype(dtype)
        o = SparseAdamW([w], 0.1, l1=2.0, groups=groups, reweight_every=2, workers=workers)
        for _ in range(3):
            o.step([rng.standard_normal(shape).astype(dtype)])
        results.append(everything(o))
    assert results[0] == results[1] == results[2]


def test_workers_come_from_the_context():
    w = np.ones((2, 2))
    o = SparseAdamW([w])
    with ch.set_workers(2):
        o.step([w])
    with pytest.raises(ValueError, match="workers must be"):
        SparseAdamW([w], workers=0)


# --- any shape, block, scale ---------------------------------------------------------------


@given(
    shape=hnp.array_shapes(min_dims=2, max_dims=3, max_side=12),
    groups=st.tuples(st.integers(1, 9), st.integers(1, 14)),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-8, 8),
    l1=st.floats(0.0, 8.0),
    every=st.sampled_from([None, 1, 2, 3]),
    masked=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_problem(shape, groups, dtype, exponent, l1, every, masked, seed):
    rng = np.random.default_rng(seed)
    scale = 2.0**exponent
    w = (scale * rng.standard_normal(shape)).astype(dtype)
    mask = rng.random(shape) < 0.7 if masked else None
    if masked:
        w[~mask] = 0
    options = {"lr": 0.1 * scale, "l1": l1, "weight_decay": 0.1 / scale, "groups": groups,
               "reweight_every": every, "reweight_eps": 0.5}  # fmt: skip
    expected = Reference(w, **options, mask=mask)
    o = SparseAdamW([w], **options, mask=[mask])
    for _ in range(4):
        g = rng.standard_normal(shape).astype(dtype)
        o.step([g])
        expected.step(g)
    np.testing.assert_allclose(w, expected.w.astype(float), **close(dtype, scale + 1.0))


# --- what conehoyer.torch calls ------------------------------------------------------------


@pytest.mark.parametrize("groups", [(1, 1), (3, 2)], ids=str)
def test_the_kernels_by_themselves(groups):
    rng = np.random.default_rng(18)
    p, q = (rng.standard_normal((7, 9)) for _ in range(2))
    q[:] = p
    o = SparseAdamW([q], 0.1, l1=1.0, groups=groups, reweight_every=2)
    m1, m2, gamma = np.zeros_like(p), np.zeros_like(p), None
    for step in range(1, 6):
        g = rng.standard_normal(p.shape)
        o.step([g])
        assert optim._gradient_is_bounded(g, 1)
        optim._step_in_place(
            p, g, m1, m2, step, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2,
            l1=1.0, groups=groups, gamma=gamma, mask=None, workers=1,
        )  # fmt: skip
        if step % 2 == 0:
            gamma = optim._renewed_weights(p, groups, 1e-3, gamma, 1)
            assert gamma.shape == optim._blocks_shape(p.shape, groups)
    np.testing.assert_array_equal(p, q)


# --- errors ----------------------------------------------------------------------------------

W, B = np.ones((2, 3)), np.ones(3)
WOVEN = np.lib.stride_tricks.as_strided(np.ones(4), (3, 2), (8, 8))


@pytest.mark.parametrize(
    ("params", "options", "error", "match"),
    [
        (W, {}, TypeError, "params must be a list .* got ndarray"),
        (3, {}, TypeError, "params must be a list .* got int"),
        ([], {}, ValueError, "params must not be empty"),
        ([W, {"params": [B]}], {}, TypeError, "a parameter group must be .* got ndarray at 0"),
        ([{"lr": 1}], {}, TypeError, "a parameter group must be a dictionary with"),
        ([{"params": B}], {}, TypeError, "of parameter group 0 must be a list .* got ndarray"),
        ([{"params": [B], "beta": 1}], {}, ValueError, "group 0 has the unknown option 'beta'"),
        ([[1.0]], {}, TypeError, "parameter 0 must be an ndarray, got list"),
        ([np.ma.array(B)], {}, TypeError, "must be an ndarray, got MaskedArray"),
        ({"w": np.ones(2, int)}, {}, TypeError, "'w' must have dtype float32 or float64, got int"),
        ([np.ones(2, ">f4")], {}, TypeError, "must have dtype float32 or float64, got >f4"),
        ([np.ones(2, np.float16)], {}, TypeError, "must have dtype float32 or float64"),
        ([np.broadcast_to(B, (2, 3))], {}, ValueError, "parameter 0 is read-only"),
        ([np.array([1.0, np.nan])], {}, ValueError, "parameter 0 must be finite"),
        ([B, B[:]], {}, ValueError, "parameter 1 shares memory with parameter 0"),
        ([W, WOVEN], {}, ValueError, "parameter 1 must have memory for each entry, got"),
        ([W, B, W.reshape(-1)], {}, ValueError, "parameter 2 shares memory with parameter 0"),
        ({"w": W[:, ::-1], "b": W[1]}, {}, ValueError, "parameter 'b' shares memory .* 'w'"),
        ([{"params": {"b": B}}, {"params": [W]}], {}, ValueError, "either all parameters have"),
        ([{"params": {"b": B}}, {"params": {"b": W}}], {}, ValueError, "a name appears twice"),
        ([B], {"lr": -1}, ValueError, "lr must be finite and >= 0, got -1"),
        ([B], {"lr": "x"}, TypeError, "lr must be a real number, got 'x'"),
        ([B], {"lr": "2"}, TypeError, "lr must be a real number, got '2'"),
        ([B], {"betas": (0.9, b"1")}, TypeError, "betas must be a real number"),
        ([B], {"l1": np.ma.masked}, TypeError, "l1 must be a real number"),
        ([B], {"lr": np.nan}, ValueError, "lr must be finite"),
        ([B], {"lr": 10**400}, ValueError, "lr must be finite and >= 0, got 1000"),
        ([B], {"l1": -(10**400)}, ValueError, "l1 must be finite and >= 0, got -1000"),
        ([B], {"betas": (10**400, 0.9)}, ValueError, r"betas must be in \[0, 1\), got 1000"),
        ([B], {"betas": 0.9}, TypeError, "betas must be a pair, got 0.9"),
        ([B], {"betas": (0.9, 1.0)}, ValueError, r"betas must be in \[0, 1\), got 1.0"),
        ([B], {"eps": 0}, ValueError, "eps must be finite and >="),
        ([B], {"weight_decay": -0.1}, ValueError, "weight_decay must be finite and >= 0"),
        ([B], {"l1": np.inf}, ValueError, "l1 must be finite and >= 0, got inf"),
        ([W], {"groups": 3}, TypeError, "groups must be a pair, got 3"),
        ([W], {"groups": (2, 0)}, ValueError, "groups must be at least 1, got 0"),
        ([W], {"groups": (2, 1.5)}, TypeError, "groups must be an integer, got 1.5"),
        ([W, B], {"groups": (2, 1), "l1": 1}, ValueError, r"shape \(3,\): put biases into .* l1=0"),
        ([W], {"reweight_every": 0}, ValueError, "reweight_every must be at least 1, got 0"),
        ([W], {"reweight_eps": 0.0}, ValueError, "reweight_eps must be finite and >="),
        ([W], {"mask": W > 0}, TypeError, "mask must be a list .* got ndarray"),
        ([W], {"mask": []}, ValueError, "mask must have one entry for each of the 1 parameters"),
        ([W], {"mask": [W]}, TypeError, "mask of parameter 0 must be boolean, got dtype float64"),
        ([W], {"mask": [B > 0]}, ValueError, r"mask of parameter 0 must have its shape \(2, 3\)"),
        ({"w": W}, {"mask": {"v": None}}, ValueError, "mask has the unknown name 'v'"),
        ([W], {"constraint": 3}, TypeError, "constraint must be callable or None, got 3"),
        ([W], {"constraint": abs, "l1": 0.1}, ValueError, "l1 must be 0, got 0.1"),
        ([W], {"constraint_every": 0}, ValueError, "constraint_every must be at least 1"),
        ([W], {"workers": 1.5}, TypeError, "workers must be an integer"),
    ],
)  # fmt: skip
def test_wrong_arguments(params, options, error, match):
    with pytest.raises(error, match=match):
        SparseAdamW(params, **options)
    np.testing.assert_array_equal(W, 1)
    np.testing.assert_array_equal(B, 1)


@pytest.mark.parametrize(
    ("grads", "error", "match"),
    [
        (W, TypeError, "grads must be a list .* got ndarray"),
        ([W], ValueError, "grads must have one entry for each of the 2 parameters, got 1"),
        ([W, W], ValueError, r"gradient of parameter 1 must have its shape \(3,\), got \(2, 3\)"),
        ([W, B * 1j], TypeError, "gradient of parameter 1 must be real, got dtype complex"),
        ([W, ["a"] * 3], TypeError, "gradient of parameter 1 must be real"),
        ([W, np.ma.array(B)], TypeError, "gradient of parameter 1 must not be a masked array"),
        ({"w": W}, TypeError, "grads must be a list: the parameters have no names"),
    ],
)
def test_wrong_gradients(grads, error, match):
    o = SparseAdamW([np.ones((2, 3)), np.ones(3)])
    before = everything(o)
    with pytest.raises(error, match=match):
        o.step(grads)
    assert everything(o) == before


class OnGPU:
    """NumPy would take it, by a copy to the host."""

    __cuda_array_interface__ = {"shape": (2,), "typestr": "<f8", "data": (4096, False)}  # noqa: RUF012

    def __array__(self, dtype=None, copy=None):
        return np.ones(2)


def test_gradients_on_a_gpu_are_refused():
    with pytest.raises(TypeError, match="the gradient of parameter 0 lies on a GPU"):
        SparseAdamW([np.ones(2)]).step([OnGPU()])


def test_wrong_names_and_changed_parameters():
    w = np.ones((2, 3))
    o = SparseAdamW({"w": w})
    with pytest.raises(ValueError, match="unknown name 'v'"):
        o.step({"v": w})
    o.step({"w": w})
    w.flags.writeable = False
    with pytest.raises(ValueError, match="parameter 'w' has become read-only"):
        o.step({"w": np.ones((2, 3))})
    w.flags.writeable = True
    w.resize((3, 2), refcheck=False)
    with pytest.raises(ValueError, match=r"parameter 'w' has become .* or changed its shape"):
        o.step({"w": np.ones((3, 2))})


def test_masks_clear_nothing_where_a_later_group_is_wrong():
    w, b = np.ones(3), np.ones(3)
    with pytest.raises(ValueError, match="lr must be"):
        SparseAdamW([{"params": [w], "mask": [w < 1]}, {"params": [b], "lr": -1.0}])
    np.testing.assert_array_equal(w, 1.0)


def test_biases_beside_blocks():
    w, b = np.ones((4, 3)), np.ones(3)
    o = SparseAdamW([{"params": [w]}, {"params": [b], "l1": 0.0}], l1=1.0, groups=(4, 1))
    o.step([np.ones((4, 3)), np.ones(3)])
    assert [z.shape for z in o.zero_blocks()] == [(1, 3), (3,)]
    o.param_groups[1]["l1"] = 1.0
    with pytest.raises(ValueError, match="put biases into a parameter group with l1=0"):
        o.step([None, None])


def test_a_mask_that_is_given_later_is_checked():
    p = np.ones(50)
    optimizer = SparseAdamW([p], lr=0.1)
    group = optimizer.param_groups[0]
    group["mask"] = [np.ones(3, bool)]
    with pytest.raises(ValueError, match="mask of parameter 0 must have its shape"):
        optimizer.step([np.ones(50)])
    np.testing.assert_array_equal(p, 1.0)
    group["mask"] = [[k > 0 for k in range(50)]]
    optimizer.step([np.ones(50)])
    assert p[0] == 0.0
    assert np.all(p[1:] > 0.0)
    group["mask"] = None
    optimizer.step([np.ones(50)])
    assert p[0] < 0.0


def test_parameters_that_are_too_hard_to_tell_apart(monkeypatch):
    """They are taken: to find out for views woven into one another may take for ever."""

    def shares_memory(*args, max_work):
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", shares_memory)
    memory = np.ones(8)
    SparseAdamW([memory[::2], memory[1::2]])


def test_parameters_that_share_one_entry():
    memory = np.ones(9)
    with pytest.raises(ValueError, match="parameter 1 shares memory with parameter 0"):
        SparseAdamW([memory[:5], memory[4:]])
    SparseAdamW([memory[:5], memory[5:]])


def test_a_mask_is_copied():
    w, mask = np.ones((2, 3)), np.eye(2, 3, dtype=bool)
    o = SparseAdamW([w], mask=[mask])
    mask[:] = True
    o.step([np.ones((2, 3))])
    np.testing.assert_array_equal(w != 0, np.eye(2, 3))


def test_a_loaded_state_in_fortran_order():
    w, v = (np.arange(12.0).reshape(3, 4) for _ in range(2))
    g = np.arange(12.0)[::-1].reshape(3, 4)
    o, peer = (SparseAdamW([p], lr=0.1, l1=0.5, groups=(1, 2), reweight_every=2) for p in (w, v))
    for _ in range(2):
        o.step([g])
        peer.step([g])
    saved = peer.state_dict()
    state = saved["state"][0]
    for name in ("exp_avg", "exp_avg_sq", "gamma"):
        state[name] = np.asfortranarray(state[name])
    peer.load_state_dict(saved)
    for _ in range(3):
        o.step([g])
        peer.step([g])
    np.testing.assert_array_equal(v, w)
    for name in ("exp_avg", "exp_avg_sq", "gamma"):
        np.testing.assert_array_equal(*(e.state_dict()["state"][0][name] for e in (o, peer)))


def test_a_saved_state_numbers_the_parameters_and_is_copied_by_load():
    o = SparseAdamW([{"params": [np.ones(2)]}, {"params": [np.ones(3), np.ones(4)]}])
    grads = [np.ones(2), np.ones(3), np.ones(4)]
    o.step(grads)
    saved = o.state_dict()
    assert [group["params"] for group in saved["param_groups"]] == [[0], [1, 2]]
    before = saved["state"][0]["exp_avg"].copy()
    o.load_state_dict(saved)
    o.step(grads)
    np.testing.assert_array_equal(saved["state"][0]["exp_avg"], before)


def test_a_constraint_returns_real_numbers():
    w = np.ones((2, 2))
    with pytest.raises(ValueError, match="constraint must return a real array"):
        SparseAdamW([w], constraint=lambda z: z + 1j).step([w.copy()])


def test_what_a_constraint_returns_beyond_the_mask_does_not_count():
    w, mask = np.ones(3), np.array([True, False, True])
    SparseAdamW([w], mask=[mask], constraint=lambda z: np.where(mask, 2.0, np.nan)).step([w])
    np.testing.assert_array_equal(w, [2.0, 0.0, 2.0])


def test_a_constraint_returns_no_masked_array():
    """What it masks would count."""
    w = np.ones(3)
    optimizer = SparseAdamW([w], constraint=lambda z: np.ma.masked_less(z, 2.0))
    with pytest.raises(TypeError, match="what the constraint returns must not be a masked array"):
        optimizer.step([np.zeros(3)])


def test_loading_keeps_the_groups():
    """A schedule may hold on to them; masks and constraints stay as well."""
    w, mask = np.ones(3), np.array([True, False, True])
    o = SparseAdamW([w], mask=[mask], constraint=np.abs)
    groups, group = o.param_groups, o.param_groups[0]
    o.load_state_dict(SparseAdamW([np.ones(3)], lr=0.5).state_dict())
    assert o.param_groups is groups
    assert groups[0] is group
    assert group["lr"] == 0.5
    assert group["constraint"] is np.abs
    np.testing.assert_array_equal(group["mask"][0], mask)


@pytest.mark.parametrize(
    "params", [{"w": np.ones(2)}, [np.ones(2)]], ids=["to names", "from names"]
)
def test_a_state_goes_between_names_and_none(params):
    w = np.ones(2)
    o, other = (
        SparseAdamW(params, lr=0.5),
        SparseAdamW([w] if isinstance(params, dict) else {"w": w}),
    )
    other.step([w])
    o.load_state_dict(other.state_dict())
    assert o.state_dict()["state"][0]["step"] == 1


def test_weights_of_blocks_do_not_count_where_nothing_is_shrunk():
    """There are fewer of them than entries, which are taken one by one then."""
    results = []
    for gamma in (None, np.full((2, 2), np.nan)):
        p = np.arange(1.0, 17.0).reshape(4, 4)
        moments = np.zeros((2, 4, 4))
        optim._step_in_place(
            p, p.copy(), *moments, 1, lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2,
            l1=0.0, groups=(2, 2), gamma=gamma, mask=None, workers=1,
        )  # fmt: skip
        results.append(p)
    np.testing.assert_array_equal(*results)


def test_names_are_saved():
    saved = SparseAdamW({"w": np.ones(2), "b": np.ones(1)}).state_dict()
    assert saved["param_groups"][0]["param_names"] == ["w", "b"]
    with pytest.raises(ValueError, match=r"parameters \['w', 'b'\]"):
        SparseAdamW({"b": np.ones(2), "w": np.ones(1)}).load_state_dict(saved)


@pytest.mark.parametrize("groups", [(1, 1), (2, 2)])
def test_workers_are_those_of_the_optimizer(groups, record_workers):
    """In the look for NaN, the step and the renewal of the weights."""
    asked = record_workers(optim)
    w = np.ones((4, 4))
    SparseAdamW([w], l1=0.1, groups=groups, reweight_every=1, workers=3).step([w.copy()])
    assert asked == [3, 3, 3]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_whose_squares_just_overflow(dtype):
    root = np.sqrt(np.finfo(dtype).max)
    o = SparseAdamW([np.ones(3, dtype)])
    o.step([np.full(3, root * dtype(1 - 4e-6))])
    first = np.full(3, root * dtype(1 + 2.0**-22))
    with np.errstate(over="ignore"):
        assert np.isinf(first * first).all()
    with pytest.raises(ValueError, match="its squares too"):
        o.step([first])


def test_parameters_that_run_backwards_share_memory():
    memory = np.arange(8.0)
    with pytest.raises(ValueError, match="parameter 1 shares memory with parameter 0"):
        SparseAdamW([memory[5::-1], memory[:2]])
    SparseAdamW([memory[5:1:-1], memory[:2]])


def test_gradients_that_overlap_a_parameter_that_runs_backwards():
    """Whose address is that of its last entry in memory."""
    memory, last = np.arange(8.0), np.zeros(2)
    o = SparseAdamW([memory[5::-1], last], lr=0.1)
    before = memory[:2].copy()
    o.step([np.ones(6), memory[:2]])
    np.testing.assert_allclose(o.state_dict()["state"][1]["exp_avg"], 0.1 * before)


@pytest.mark.parametrize("groups", [(4, 1), (5, 1), (1, 16), (5, 16), (7, 3)], ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_beyond_float32(scale, groups):
    """They are added in float64, in whichever row of a block they stand."""
    rng = np.random.default_rng(20)
    w = rng.uniform(1.0, 2.0, (35, 48)).astype(np.float32)
    p = (w * np.float32(scale)).astype(np.float32)
    o = SparseAdamW([p], lr=scale, l1=1.0, weight_decay=0.0, groups=groups)
    o.step([np.zeros(w.shape, np.float32)])
    size = norms(w.astype(float), groups)
    np.testing.assert_allclose(p / scale, w * np.maximum(1 - 1 / size, 0), rtol=0, atol=2e-6)


def test_gradients_of_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    results = []
    for dtype in (ml_dtypes.bfloat16, np.float32):
        w = np.ones(3)
        optim.SparseAdamW([w]).step([np.array([1.0, -2.0, 0.5], dtype)])
        results.append(w)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("shape", "groups"), [((4, 3), (100, 1)), ((4, 3), (1, 100)), ((5,), (1, 1))]
)
def test_the_weights_of_blocks_larger_than_the_parameter_are_loaded(shape, groups):
    rng = np.random.default_rng(0)
    w, grads = rng.standard_normal(shape), rng.standard_normal((3, *shape))
    other = w.copy()
    options = {"lr": 0.01, "l1": 0.5, "groups": groups, "reweight_every": 1}
    first, second = SparseAdamW([w], **options), SparseAdamW([other], **options)
    first.step([grads[0]])
    other[...] = w
    second.load_state_dict(first.state_dict())
    saved = second.state_dict()["state"][0]["gamma"]
    np.testing.assert_array_equal(saved, first.state_dict()["state"][0]["gamma"])
    for g in grads[1:]:
        first.step([g])
        second.step([g])
        np.testing.assert_array_equal(other, w)


def test_weights_are_renewed_only_while_there_is_a_penalty():
    """They are one when it begins, however many steps were taken before."""
    w = np.array([[3.0, 4.0], [0.5, 0.25]])
    optimizer = SparseAdamW([w], lr=0.01, weight_decay=0.0, groups=(1, 2), reweight_every=1)
    optimizer.step([np.zeros((2, 2))])
    assert optimizer.state_dict()["state"][0]["gamma"] is None
    optimizer.param_groups[0]["l1"] = 10.0
    optimizer.step([np.zeros((2, 2))])
    np.testing.assert_allclose(w[0], np.array([3.0, 4.0]) * (1 - 0.1 / 5), rtol=1e-14)
    gamma = optimizer.state_dict()["state"][0]["gamma"]
    np.testing.assert_allclose(gamma, 1 / (np.linalg.norm(w, axis=1, keepdims=True) + 1e-3))
