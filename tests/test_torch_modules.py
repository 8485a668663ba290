"""The optimizer and the block-sparse layer for PyTorch."""

import collections.abc
import copy
import inspect
import io
import math
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import conehoyer.torch as chtorch  # noqa: E402
from conehoyer import blocksparse, optim, project_bilevel  # noqa: E402

SHAPES = [(7, 5), (4,), (2, 3, 6, 4), ()]


def parameters(dtype=torch.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [torch.nn.Parameter(torch.tensor(rng.standard_normal(s), dtype=dtype)) for s in SHAPES]


def give_gradients(params, seed):
    rng = np.random.default_rng(seed)
    for p in params:
        p.grad = torch.tensor(rng.standard_normal(tuple(p.shape)), dtype=p.dtype)


def close(p, q, factor=1e3):
    p, q = p.detach(), q.detach()
    size = max(float(q.abs().max()), 1.0) if q.numel() else 1.0
    atol = factor * torch.finfo(p.dtype).eps * size
    torch.testing.assert_close(p, q, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_without_a_penalty_it_is_adamw(dtype):
    ours, theirs = parameters(dtype), parameters(dtype)
    first = chtorch.SparseAdamW(ours, lr=0.03, weight_decay=0.1)
    second = torch.optim.AdamW(theirs, lr=0.03, weight_decay=0.1)
    for step in range(100):
        for params, optimizer in ((ours, first), (theirs, second)):
            give_gradients(params, step)
            optimizer.step()
    for p, q in zip(ours, theirs, strict=True):
        close(p.detach(), q.detach(), 1e2 if dtype is not torch.bfloat16 else 0)


OPTIONS = [
    {"l1": 0.3},
    {"l1": 0.8, "groups": (2, 3)},
    {"l1": 5.0, "groups": (3, 2), "reweight_every": 4, "reweight_eps": 0.1},
    {"l1": 0.05, "reweight_every": 3, "reweight_eps": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_on_arrays(options):
    """The fused kernel, PyTorch's operations, and the optimizer of arrays do the same."""
    rest = {"l1": 0.0} if options.get("groups") else {}
    ours, plain = parameters(), parameters()
    arrays = [p.detach().numpy().copy() for p in ours]
    turned = [torch.nn.Parameter(p.detach().flip(0).flip(0).mT.contiguous().mT)
              if p.dim() > 1 else p for p in plain]  # fmt: skip
    assert not turned[0].is_contiguous()

    def split(params):
        wide = [p for p in params if p.ndim > 1]
        return [{"params": wide}, {"params": [p for p in params if p.ndim < 2], **rest}]

    mask = {p: torch.arange(p.numel()).reshape(p.shape) % 3 > 0 for p in ours[:1]}
    also = {turned[0]: mask[ours[0]]}
    first = chtorch.SparseAdamW(split(ours), lr=0.05, mask=mask, **options)
    second = chtorch.SparseAdamW(split(turned), lr=0.05, mask=also, **options)
    order = [0, 2, 1, 3]
    masks = [mask[ours[0]].numpy(), None, None, None]
    third = optim.SparseAdamW(
        split([arrays[i] for i in range(4)]), lr=0.05, mask=masks, **options
    )  # fmt: skip
    for step in range(25):
        give_gradients(ours, step)
        give_gradients(turned, step)
        third.step([ours[i].grad.numpy() for i in order])
        first.step()
        second.step()
    for p, q, a in zip(ours, turned, arrays, strict=True):
        np.testing.assert_array_equal(p.detach().numpy(), a)
        close(q.detach(), p.detach())
        assert ((p == 0) == (q == 0)).all()
    assert (ours[0][~mask[ours[0]]] == 0).all()
    assert (ours[2] == 0).any()
    for found, wanted in zip(first.zero_blocks(), third.zero_blocks(), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted)


def test_a_bad_gradient_changes_nothing():
    for make in (parameters, lambda: [torch.nn.Parameter(p.detach().half()) for p in parameters()]):
        params = make()
        optimizer = chtorch.SparseAdamW(params, lr=0.1, l1=0.1)
        give_gradients(params, 0)
        optimizer.step()
        before = copy.deepcopy([p.detach() for p in params])
        state = copy.deepcopy(optimizer.state_dict())
        for bad in (np.nan, np.inf):
            give_gradients(params, 1)
            params[-1].grad.fill_(bad)
            with pytest.raises(ValueError, match="gradient of parameter 3"):
                optimizer.step()
        for p, q in zip(params, before, strict=True):
            assert torch.equal(p.detach(), q)
        for key, value in optimizer.state_dict()["state"].items():
            assert value["step"] == state["state"][key]["step"]
            assert torch.equal(value["exp_avg"], state["state"][key]["exp_avg"])


def test_a_first_step_that_fails_leaves_no_state():
    p = ones(3)
    p.grad[0] = torch.nan
    optimizer = chtorch.SparseAdamW([p])
    with pytest.raises(ValueError, match="must be finite"):
        optimizer.step()
    assert optimizer.state_dict()["state"] == {}


def test_a_gradient_of_another_precision():
    """Which a parameter keeps whose data are replaced."""
    p = ones(3, dtype=torch.bfloat16)
    p.data = p.data.float()
    assert p.grad.dtype == torch.bfloat16
    chtorch.SparseAdamW([p], lr=0.5, weight_decay=0.0).step()
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.5))


def test_states_go_round():
    params, others = parameters(), parameters()
    make = {"lr": 0.05, "l1": 0.1, "reweight_every": 2, "constraint": None}
    first = chtorch.SparseAdamW(params, **make)
    for step in range(5):
        give_gradients(params, step)
        first.step()
    with torch.no_grad():
        for p, q in zip(params, others, strict=True):
            q.copy_(p)
    second = chtorch.SparseAdamW(others, lr=9.0)
    room = io.BytesIO()
    torch.save(first.state_dict(), room)
    room.seek(0)
    second.load_state_dict(torch.load(room))
    assert second.param_groups[0]["lr"] == 0.05
    assert "mask" not in first.state_dict()["param_groups"][0]
    for step in range(5, 9):
        for ps, optimizer in ((params, first), (others, second)):
            give_gradients(ps, step)
            optimizer.step()
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
    pickle.loads(pickle.dumps(first.state_dict()))


def test_closures_schedules_and_skipped_parameters():
    p, q = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = chtorch.SparseAdamW([p, q], lr=0.1, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (p**2).sum()
        loss.backward()
        return loss

    version = p._version
    assert optimizer.step(closure).item() == 3.0
    assert p._version > version
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))
    assert torch.equal(q.detach(), torch.ones(3))
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_constraints():
    w = torch.nn.Parameter(torch.tensor(np.random.default_rng(0).standard_normal((8, 6))))
    given = {"groups": "columns"}
    optimizer = chtorch.SparseAdamW(
        [w], lr=0.1, constraint=lambda p: project_bilevel(p, 2.0, **given), constraint_every=2
    )
    for step in range(1, 5):
        give_gradients([w], step)
        optimizer.step()
        if step % 2 == 0:
            assert (w == 0).all(dim=0).any()
    masked = torch.nn.Parameter(torch.ones(4))
    kept = torch.tensor([True, False, True, True])
    masks = chtorch.SparseAdamW([masked], mask=[kept], constraint=torch.ones_like)
    give_gradients([masked], 0)
    masks.step()
    assert torch.equal(masked.detach(), kept.float())  # the constraint does not undo the mask
    give_gradients([w], 5)
    for wrong, error, says in (
        (lambda p: None, TypeError, "a tensor, got NoneType"),
        (lambda p: p.detach().numpy(), TypeError, "a tensor, got ndarray"),
        (lambda p: p[0], ValueError, r"a real tensor of shape \(8, 6\), got torch.float64 \(6,\)"),
        (lambda p: p * 1j, ValueError, r"a real tensor of shape .*, got torch\.complex"),
    ):
        optimizer.param_groups[0]["constraint"] = wrong
        optimizer.step()
        with pytest.raises(error, match=f"constraint must return {says}"):
            optimizer.step()


def test_wrong_options():
    w = torch.nn.Parameter(torch.ones(3, 3))
    for options, error, text in (
        ({"l1": -1.0}, ValueError, "l1"),
        ({"l1": 1.0, "constraint": abs}, ValueError, "l1 must be 0"),
        ({"groups": (0, 1)}, ValueError, "groups"),
        ({"mask": [torch.ones(3, 3)]}, TypeError, "mask of parameter 0 must be boolean, got torch"),
        ({"mask": [None, None]}, ValueError, "mask must have one entry"),
        ({"workers": 0}, ValueError, "workers"),
    ):
        with pytest.raises(error, match=text):
            chtorch.SparseAdamW([w], **options)
    with pytest.raises(ValueError, match="biases into a parameter group"):
        chtorch.SparseAdamW([torch.nn.Parameter(torch.ones(3))], l1=1.0, groups=(2, 2))
    with pytest.raises(TypeError, match="real floating"):
        chtorch.SparseAdamW([torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    with pytest.raises(TypeError, match="mask must be a dictionary or a list, got Tensor"):
        chtorch.SparseAdamW([w], mask=torch.ones(3, 3, dtype=torch.bool))


def test_masks_by_name_in_groups_and_as_lists():
    make = lambda: [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]  # noqa: E731
    kept = [torch.arange(3) != k for k in range(3)]
    check = lambda params: torch.testing.assert_close(  # noqa: E731
        torch.stack([p.detach() for p in params]), 1.0 - torch.eye(3)
    )
    params = make()
    chtorch.SparseAdamW([{"params": params[:1]}, {"params": params[1:]}], mask=kept)
    check(params)
    params = make()
    named = list(zip("abc", params, strict=True))
    masks = dict(zip("abc", kept, strict=True))
    chtorch.SparseAdamW([{"params": named[:2]}, {"params": named[2:]}], mask=masks)
    check(params)
    params = make()
    groups = [{"params": params[:1], "mask": kept[:1]}, {"params": params[1:]}]
    optimizer = chtorch.SparseAdamW(groups[1:], mask=kept[1:])
    optimizer.add_param_group(groups[0])
    check(params)
    params = make()
    groups = [{"params": params[:1], "mask": kept[:1]}, {"params": params[1:]}]
    chtorch.SparseAdamW(groups, mask=[None, *kept[1:]])
    check(params)
    for p in params:
        p.grad = torch.ones(3)
    optimizer = chtorch.SparseAdamW(params, mask=kept)
    kept[0][:] = False  # masks are copied
    optimizer.step()
    assert (params[0] != 0).sum() == 2
    later = torch.nn.Parameter(torch.ones(2))
    optimizer.add_param_group({"params": [later]})
    assert (later == 1.0).all()


def test_masks_of_unknown_parameters():
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    kept = torch.zeros(3, dtype=torch.bool)
    for params, mask, text in (
        ([p], {q: kept}, "mask has an entry for a Parameter"),
        ([p], {"a": kept}, "mask has an entry for 'a'"),
        ([("b", p)], {"a": kept}, "mask has an entry for 'a'"),
        ([{"params": [p], "mask": {p: kept}}], {q: kept}, "mask has an entry for"),
        ([{"params": [p], "mask": {p: kept}}, {"params": [q]}], [kept], "one entry for each"),
    ):
        with pytest.raises(ValueError, match=text):
            chtorch.SparseAdamW(params, mask=mask)
        assert (p == 1.0).all()


def test_a_state_of_adamw_is_taken_over():
    params, others = parameters(), parameters()
    plain, ours = torch.optim.AdamW(params, lr=0.05), chtorch.SparseAdamW(others, l1=0.0)
    for step in range(6):
        give_gradients(params, step)
        give_gradients(others, step)
        plain.step()
        if step == 2:
            with torch.no_grad():
                for p, q in zip(params, others, strict=True):
                    q.copy_(p)
            ours.load_state_dict(copy.deepcopy(plain.state_dict()))
        elif step > 2:
            ours.step()
    assert ours.param_groups[0]["lr"] == 0.05
    for p, q in zip(params, others, strict=True):
        close(q.detach(), p.detach())
    again = chtorch.SparseAdamW(others)
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert again.state_dict()["state"][0]["step"] == 6


def test_loading_again_and_into_copies():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer, plain = chtorch.SparseAdamW([p], lr=0.1), torch.optim.AdamW([p], lr=0.2)
    optimizer.step()
    plain.step()
    plain.step()
    for other in (
        optimizer,
        copy.deepcopy(optimizer),
        pickle.loads(pickle.dumps(optimizer)),
    ):
        for saved, lr, steps in ((optimizer.state_dict(), 0.1, 1), (plain.state_dict(), 0.2, 2)):
            other.load_state_dict(copy.deepcopy(saved))
            other.load_state_dict(copy.deepcopy(saved))
            assert other.param_groups[0]["lr"] == lr
            (state,) = other.state_dict()["state"].values()
            assert state["step"] == steps
        optimizer = chtorch.SparseAdamW([p], lr=0.1)
        optimizer.step()


def test_hooks_of_loading():
    a, b = (torch.nn.Parameter(torch.ones(2, 2).bfloat16()) for _ in range(2))
    options = {"l1": 0.1, "lr": 0.1, "reweight_every": 1}
    first, second = chtorch.SparseAdamW([a, b], **options), chtorch.SparseAdamW([b, a], **options)
    for n in range(5):
        a.grad = torch.ones(2, 2).bfloat16()
        b.grad = a.grad if n == 4 else None
        first.step()

    def turn(optimizer, saved):
        return {**saved, "state": {0: saved["state"][1], 1: saved["state"][0]}}

    second.register_load_state_dict_pre_hook(turn)
    second.load_state_dict(first.state_dict())
    for p, steps in ((a, 5), (b, 1)):
        assert second.state[p]["step"] == steps
        assert torch.equal(second.state[p]["gamma"], first.state[p]["gamma"])

    def later(optimizer):
        optimizer.state[a]["step"] = 100

    second.register_load_state_dict_post_hook(later)
    second.load_state_dict(first.state_dict())
    assert second.state[a]["step"] == 100
    assert len(second._optimizer_load_state_dict_pre_hooks) == 1  # none of our own is left


COMPILED_STEP = """
import torch
from conehoyer.torch import SparseAdamW

torch.manual_seed(0)
p = [torch.nn.Parameter(torch.randn(20, 30)) for _ in range(3)]
q = [torch.nn.Parameter(t.detach().clone()) for t in p]
plain, other = SparseAdamW(p, lr=0.1, l1=0.01), SparseAdamW(q, lr=0.1, l1=0.01)
step = torch.compile(other.step, backend="eager")
for k in range(5):
    for a, b in zip(p, q, strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    step()
    plain.step()
    assert [other.state[t]["step"] for t in q] == [k + 1] * 3
    assert all(torch.equal(a, b) for a, b in zip(p, q, strict=True))
print("done")
"""


def test_a_compiled_step():
    done = subprocess.run([sys.executable, "-c", COMPILED_STEP], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("name", ["amsgrad", "maximize"])
def test_options_that_there_are_none_of(name):
    p = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=f"has no {name}, got True"):
        chtorch.SparseAdamW([{"params": [p], name: True}])
    optimizer = chtorch.SparseAdamW([{"params": [p], name: False}])
    optimizer.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("name", ["amsgrad", "maximize", "capturable", "differentiable"])
def test_arguments_of_adamw_that_there_are_none_of(name):
    p = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=f"has no {name}, got True"):
        chtorch.SparseAdamW([p], **{name: True})
    chtorch.SparseAdamW([p], **{name: False}).step()


def test_a_call_of_adamw_needs_another_name_alone():
    """Every argument that it has by default, and those that choose how it computes."""
    default = inspect.signature(torch.optim.AdamW).parameters.items()
    given = {name: each.default for name, each in default if name != "params"}
    weights = []
    for make, more in ((torch.optim.AdamW, {}), (chtorch.SparseAdamW, {"fused": True})):
        p = torch.nn.Parameter(torch.ones(3, 2))
        p.grad = torch.arange(6.0).reshape(3, 2) - 2.0
        make([p], **(given | more)).step()
        weights.append(p.detach())
        make([p], **(given | {"foreach": True}))
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize(("dtype", "tiny"), [(torch.float32, 1e-39), (torch.float64, 1e-310)])
def test_weights_whose_reciprocals_are_infinite(dtype, tiny):
    for view in (slice(None), slice(None, None, 2)):
        w = torch.nn.Parameter(torch.full((4, 4), tiny, dtype=dtype)[:, view])
        w.grad = torch.zeros_like(w)
        chtorch.SparseAdamW([w], lr=1.0, l1=0.1 * tiny, weight_decay=0).step()
        torch.testing.assert_close(w.detach() / tiny, torch.full_like(w, 0.9), rtol=1e-4, atol=0)


def test_a_wrong_state_changes_nothing():
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = chtorch.SparseAdamW([p], lr=0.1)
    optimizer.step()
    for name, value, error in (
        ("lr", -1.0, ValueError),
        ("betas", 3, TypeError),
        ("amsgrad", True, ValueError),
        ("maximize", True, ValueError),
    ):
        bad = copy.deepcopy(optimizer.state_dict())
        bad["param_groups"][0][name] = value
        bad["state"][0]["step"] = 7
        with pytest.raises(error, match=name):
            optimizer.load_state_dict(bad)
        assert optimizer.param_groups[0]["lr"] == 0.1
        assert optimizer.state[p]["step"] == 1
    bad = copy.deepcopy(optimizer.state_dict())
    bad["state"][0]["step"] = -1
    with pytest.raises(ValueError, match="step of parameter 0 must be >= 0, got -1"):
        optimizer.load_state_dict(bad)
    bad["state"][0]["step"] = "x"
    with pytest.raises(ValueError, match="step of parameter 0 must be an integer, got 'x'"):
        optimizer.load_state_dict(bad)
    whole = optimizer.state_dict()
    for bad, error, match in (
        (3, TypeError, "state_dict must be a dictionary, got int"),
        ({}, ValueError, 'must have a list "param_groups" and a dictionary "state"'),
        (whole | {"state": [1]}, ValueError, 'a dictionary "state"'),
        (whole | {"param_groups": {}}, ValueError, 'a list "param_groups"'),
        (whole | {"param_groups": [{}]}, ValueError, 'must have a list "params"'),
        (whole | {"param_groups": [1]}, ValueError, 'must have a list "params"'),
        (whole | {"state": {0: 1}}, ValueError, "state of parameter 0 must be a dictionary, got 1"),
    ):
        with pytest.raises(error, match=match):
            optimizer.load_state_dict(bad)
    adam = torch.optim.Adam([p], weight_decay=0.5)
    with pytest.raises(ValueError, match="weight decay of SparseAdamW is decoupled"):
        optimizer.load_state_dict(adam.state_dict())
    assert optimizer.state[p]["step"] == 1
    momentum = torch.optim.SGD([p], momentum=0.9)
    momentum.step()
    optimizer.load_state_dict(momentum.state_dict())
    with pytest.raises(ValueError, match="but no step"):
        optimizer.step()


def test_the_error_names_the_parameter():
    p, q = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    q.grad = torch.full((3,), torch.nan)
    with pytest.raises(ValueError, match="the gradient of parameter 1 of shape"):
        chtorch.SparseAdamW([p, q]).step()
    for groups in ([("first", p), ("second", q)], [{"params": [("a", p)]},
                                                   {"params": [("second", q)]}]):  # fmt: skip
        with pytest.raises(ValueError, match="the gradient of parameter 'second' of shape"):
            chtorch.SparseAdamW(groups).step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_state_of_16_bits_goes_on_bit_for_bit(dtype):
    first, second = (torch.nn.Parameter(torch.linspace(0.5, 1, 12).reshape(3, 4).to(dtype))
                     for _ in range(2))  # fmt: skip
    options = {"lr": 0.01, "l1": 0.5, "groups": (3, 1), "reweight_every": 1}
    one = chtorch.SparseAdamW([first], **options)
    first.grad = torch.ones(3, 4, dtype=dtype)
    one.step()
    with torch.no_grad():
        second.copy_(first)
    two = chtorch.SparseAdamW([second], **options)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    assert torch.equal(two.state[second]["gamma"], one.state[first]["gamma"])
    second.grad = first.grad
    one.step()
    two.step()
    assert torch.equal(first, second)


@pytest.mark.parametrize("scale", [1e-38, 1e-24, 1e20, 1e36])
def test_squares_of_strided_blocks_do_not_overflow(scale):
    """The step by PyTorch's operations is that of the kernel at any scale."""
    w = torch.tensor([[3.0, 4.0], [4.0, 3.0]]) * scale
    direct, strided = torch.nn.Parameter(w.clone()), torch.nn.Parameter(w.mT.contiguous().mT)
    for p in (direct, strided):
        p.grad = torch.zeros(2, 2)
        options = {"lr": scale, "l1": 1.0, "groups": (2, 1), "reweight_every": 1}
        optimizer = chtorch.SparseAdamW([p], weight_decay=0.0, **options)
        optimizer.step()
        torch.testing.assert_close(p.detach() / scale, w / scale * 0.8, rtol=1e-5, atol=0)
    gamma = optimizer.state[strided]["gamma"]
    torch.testing.assert_close(gamma, torch.full((1, 2), 1 / (4 * scale + 1e-3)))


def test_without_renewal_the_weights_are_one():
    results = []
    for every in (1, None):
        p = torch.nn.Parameter(torch.full((2, 2), 3.0))
        q = torch.nn.Parameter(torch.full((2, 2), 3.0).mT.contiguous().mT)
        optimizer = chtorch.SparseAdamW([p, q], l1=0.5, lr=0.1, reweight_every=every)
        for _ in range(2):
            p.grad = q.grad = torch.zeros(2, 2)
            optimizer.step()
            optimizer.param_groups[0]["reweight_every"] = None
        results += [p.detach(), q.detach()]
        assert "gamma" not in optimizer.state[p]
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])


def test_gradients_that_are_parameters():
    # min over x, max over y of x·y: each gradient is the other parameter.
    x, y = torch.nn.Parameter(torch.arange(4.0)), torch.nn.Parameter(torch.ones(4))
    a, b = torch.nn.Parameter(torch.arange(4.0)), torch.nn.Parameter(torch.ones(4))
    first, second = chtorch.SparseAdamW([x, y], lr=0.1), chtorch.SparseAdamW([a, b], lr=0.1)
    for _ in range(3):
        x.grad, y.grad = y.detach(), torch.from_numpy(x.detach().numpy())
        a.grad, b.grad = b.detach().clone(), a.detach().clone()
        first.step()
        second.step()
    assert torch.equal(x, a)
    assert torch.equal(y, b)


# --- layers --------------------------------------------------------------------------------


def block_sparse(layer, block, keep, seed=0):
    with torch.no_grad():
        w = blocksparse.prune(layer.weight.double().numpy(), block, keep)
        layer.weight.copy_(torch.from_numpy(w))
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("block", [(1, 4), (16, 1), (5, 3)], ids=str)
def test_linear(block, dtype):
    torch.manual_seed(0)
    dense = block_sparse(torch.nn.Linear(24, 32, dtype=dtype), block, 0.3)
    layer = chtorch.BlockSparseLinear.from_linear(dense, block)
    assert f"density={layer.matrix.density:.3g}" in repr(layer)
    assert layer.matrix.density == pytest.approx(0.3, abs=0.02)
    assert torch.equal(layer.weight, dense.weight.detach())
    for shape in ((24,), (7, 24), (2, 3, 24), (0, 24)):
        x = torch.randn(shape, dtype=dtype)
        close(layer(x), dense(x).detach())
        close(layer(x.flip(0)), dense(x.flip(0)).detach())
        recorded = layer(x).detach()
        for context in (torch.no_grad, torch.inference_mode):
            with context():
                assert torch.equal(layer(x), recorded)
    for x in (torch.randn(3, 24).bfloat16(), torch.randn(3, 24).half()):
        assert layer(x).shape == (3, 32)
        with torch.device("meta"):  # the default of new tensors is not where the input lies
            assert layer(x).device.type == "cpu"
    with pytest.raises(ValueError, match="24"):
        layer(torch.ones(3, 23, dtype=dtype))
    with pytest.raises(TypeError, match=r"torch\.nn\.Linear"):
        chtorch.BlockSparseLinear.from_linear(torch.nn.ReLU(), block)


def test_gradients_pass_through_a_layer():
    dense = block_sparse(torch.nn.Linear(12, 16, dtype=torch.float64), (4, 2), 0.4)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (4, 2))
    x = torch.randn(5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    layer(x).square().sum().backward()
    twin = x.detach().clone().requires_grad_()
    dense(twin).square().sum().backward()
    close(x.grad, twin.grad)
    close(layer.bias.grad, dense.bias.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own
@pytest.mark.parametrize("context", [torch.enable_grad, torch.no_grad])
def test_tangents_are_not_lost(context):
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    x = torch.ones(3, 4)
    with context(), forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="jvp"):
            layer(forward_ad.make_dual(x, x))
        assert layer(x).shape == (3, 4)
        bias = forward_ad.make_dual(layer.bias.detach(), torch.ones(4))
        with pytest.raises(NotImplementedError, match="jvp"):
            torch.func.functional_call(layer, {"bias": bias}, (x,))
    with torch.enable_grad():
        z = layer(x.requires_grad_())
        with forward_ad.dual_level():
            g = forward_ad.make_dual(torch.ones(3, 4), torch.ones(3, 4))
            with pytest.raises(NotImplementedError, match="the result has a tangent"):
                torch.autograd.grad(z, x, g)


def test_second_derivatives_pass_through_a_layer():
    torch.manual_seed(0)
    dense = block_sparse(torch.nn.Linear(6, 8, dtype=torch.float64), (4, 2), 0.4)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (4, 2))
    x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)

    def product(x, bias, module):
        return torch.func.functional_call(module, {"bias": bias}, (x,))

    assert torch.autograd.gradgradcheck(lambda x, b: product(x, b, layer), (x, layer.bias))
    bias, turn = layer.bias.detach(), torch.randn_like(x)
    found, wanted = (
        torch.autograd.functional.hessian(
            lambda x, b, m=m: product(x.square(), b, m).tanh().square().sum(), (x.detach(), bias)
        )
        for m in (layer, dense)
    )
    for own, known in zip(found, wanted, strict=True):
        for block, other in zip(own, known, strict=True):
            assert other.abs().max() > 0.1
            close(block, other)
    for module in (layer, dense):  # linear: the tangent is the product without the bias
        _, tangent = torch.autograd.functional.jvp(module, x.detach(), turn)
        close(tangent, torch.nn.functional.linear(turn, dense.weight))
    third = []
    for m in (layer, dense):
        value = m(x).tanh().sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(value, x, create_graph=True)
            value = g.square().sum()
        third.append(g.detach())
    close(*third, 1e4)


def test_layers_move_and_are_saved():
    layer = chtorch.BlockSparseLinear.from_linear(
        block_sparse(torch.nn.Linear(12, 16), (4, 2), 0.4), (4, 2)
    )
    x = torch.randn(3, 12)
    expected = layer(x)
    again = copy.deepcopy(layer)
    close(again(x), expected.detach())
    other = chtorch.BlockSparseLinear.from_linear(
        block_sparse(torch.nn.Linear(12, 16), (4, 2), 0.1), (4, 2)
    )
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), expected)
    bad = layer.state_dict()
    bad["_extra_state"]["indices"] += 100
    with pytest.raises(ValueError, match="state: its arrays"):
        other.load_state_dict(bad)
    close(layer.double()(x.double()), expected.double(), 1e10)
    assert layer.matrix.dtype == np.float64


def test_sparsify(monkeypatch):
    torch.manual_seed(1)
    x = torch.randn(2, 9, 32)
    make = lambda: torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()  # noqa: E731
    model, twin = make(), make()
    twin.load_state_dict(model.state_dict())
    assert chtorch.sparsify(model, ["linear1", "linear2"], block_shape=(16, 1), keep=0.5) is model
    assert isinstance(model.linear1, chtorch.BlockSparseLinear)
    assert model.linear1.matrix.density == 0.5
    with torch.no_grad():
        for name in ("linear1", "linear2"):
            getattr(twin, name).weight.copy_(getattr(model, name).weight)
        calls = []
        forward = chtorch.BlockSparseLinear.forward
        monkeypatch.setattr(
            chtorch.BlockSparseLinear, "forward", lambda *a: calls.append(1) or forward(*a)
        )
        close(model(x), twin(x), 1e3)
        assert calls  # not the fast path, which would take the dense weights
    chosen = chtorch.sparsify(make(), lambda name, layer: layer.out_features == 64)
    assert isinstance(chosen.linear1, chtorch.BlockSparseLinear)
    assert isinstance(chosen.linear2, torch.nn.Linear)
    assert type(make().self_attn.out_proj) is type(chosen.self_attn.out_proj)
    alone = chtorch.sparsify(torch.nn.Linear(4, 4), block_shape=(2, 2))
    assert isinstance(alone, chtorch.BlockSparseLinear)
    with pytest.raises(ValueError, match="'self_attn' is no linear layer"):
        chtorch.sparsify(make(), ["self_attn"])


def test_a_state_that_does_not_fit_is_an_error():
    p, q = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4000))
    first, second = chtorch.SparseAdamW([p]), chtorch.SparseAdamW([q])
    p.grad, q.grad = torch.ones(4), torch.ones(4000)
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with pytest.raises(ValueError, match="exp_avg in the state has the shape"):
        second.step()
    assert torch.equal(q.detach(), torch.ones(4000))
    p.data, p.grad = torch.ones(6), torch.ones(6)
    with pytest.raises(ValueError, match="exp_avg in the state has the shape"):
        first.step()


def test_moments_of_another_layout():
    """A state from a parameter with other strides goes on as in torch's AdamW."""
    results = []
    for kind in (chtorch.SparseAdamW, torch.optim.AdamW):
        a = torch.nn.Parameter(torch.ones(4, 3).t())
        b = torch.nn.Parameter(torch.ones(3, 4))
        first, second = kind([a], lr=0.1), kind([b], lr=0.1)
        a.grad = torch.ones(3, 4)
        first.step()
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for _ in range(3):
            b.grad = torch.full((3, 4), -5.0)
            second.step()
        results += [b.detach(), second.state[b]["exp_avg"]]
    torch.testing.assert_close(results[0], results[2])
    torch.testing.assert_close(results[1], results[3])


def test_a_mask_that_is_given_later_is_checked():
    p = torch.nn.Parameter(torch.ones(50))
    optimizer = chtorch.SparseAdamW([p])
    p.grad = torch.ones(50)
    optimizer.param_groups[0]["mask"] = [torch.ones(3, dtype=torch.bool)]
    with pytest.raises(ValueError, match=r"mask of parameter 0 must have its shape \(50,\), got"):
        optimizer.step()
    optimizer.param_groups[0]["mask"] = [[True] * 50]
    with pytest.raises(TypeError, match="mask must hold tensors or None, got list"):
        optimizer.step()
    optimizer.param_groups[0]["mask"] = None
    optimizer.step()
    assert torch.all(p.detach() < 1.0)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_of_an_optimizer_go_on(again):
    p = torch.nn.Parameter(torch.ones(3))
    other = again(chtorch.SparseAdamW([p], lr=0.1, workers=2, check_finite=False))
    assert (other.workers, other.check_finite) == (2, False)
    (q,) = other.param_groups[0]["params"]
    q.grad = torch.ones(3)
    other.step()
    assert torch.all(q.detach() < 1.0)


def test_a_layer_whose_weight_was_read_can_be_copied():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    x = torch.ones(1, 4)
    assert layer.weight.shape == (4, 4)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
        assert np.array_equal(other.matrix.to_dense(), layer.matrix.to_dense())
        assert type(other.weight) is type(layer.weight)  # so that no encoder passes it by


def test_copies_of_the_dense_weights_are_plain_tensors():
    """Those that are saved load where nobody knows this library's classes."""
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(3, 4), (2, 1))
    w, file = layer.weight, io.BytesIO()
    torch.save({"weight": w, "copy": w.detach().clone()}, file)
    file.seek(0)
    copies = [*torch.load(file, weights_only=True).values(), copy.deepcopy(w), copy.copy(w)]
    for each in [*copies, w.T, torch.ones(2, 3) @ w.T]:
        assert type(each) is torch.Tensor
    for each in copies:
        assert torch.equal(each, w)
    assert type(layer.weight) is not torch.Tensor


def test_dense_weights_that_were_read_in_inference_mode():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(3, 4), (2, 1))
    x = torch.ones(2, 3, requires_grad=True)
    with torch.inference_mode():
        assert layer.weight.shape == (4, 3)
    (x @ layer.weight.T).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 3))


def test_a_layer_computes_in_the_wider_precision():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 3), (2, 2))
    x = torch.full((1, 4), 1e300, dtype=torch.float64, requires_grad=True)
    result = layer(x)
    dense = layer.weight.as_subclass(torch.Tensor).double()
    torch.testing.assert_close(result, x @ dense.mT + layer.bias.double())
    (g,) = torch.autograd.grad(result.sum() * 1e-300, x)
    torch.testing.assert_close(g, dense.sum(0)[None] * 1e-300)


@pytest.mark.parametrize(("into", "out"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_with_a_side_of_zero(into, out, bias):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of nothing to initialise
        dense = torch.nn.Linear(into, out, bias=bias)
    if bias:
        torch.nn.init.ones_(dense.bias)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
    for shape in ((2, into), (into,), (2, 0, into)):
        x = torch.ones(shape, requires_grad=True)
        result = layer(x)
        assert torch.equal(result, dense(x))
        result.sum().backward()
        assert torch.equal(x.grad, torch.zeros(shape))
    if bias:
        assert torch.equal(layer.bias.grad, torch.full((out,), 3.0))


def test_a_class_that_is_derived_makes_its_own():
    class Own(chtorch.BlockSparseLinear):
        pass

    assert type(Own.from_linear(torch.nn.Linear(4, 4), (2, 2))) is Own


def test_a_frozen_bias_stays_frozen():
    dense = torch.nn.Linear(4, 4)
    dense.bias.requires_grad_(False)
    assert not chtorch.BlockSparseLinear.from_linear(dense, (2, 2)).bias.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_the_bias_has_its_precision(dtype):
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
    layer(torch.zeros(70_001, 8, dtype=dtype)).sum(dtype=torch.float32).backward()
    assert torch.equal(layer.bias.grad, torch.full((4,), 70_001.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_states_of_another_precision(dtype):
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    state = layer.get_extra_state()
    wanted = state["blocks"].to(dtype).float()
    layer.set_extra_state(state | {"blocks": state["blocks"].to(dtype)})
    assert torch.equal(layer.get_extra_state()["blocks"], wanted)
    with pytest.raises(ValueError, match="state must hold the tensors"):
        layer.set_extra_state(state | {"blocks": wanted.to_sparse()})
    with pytest.raises(ValueError, match="state: its arrays"):
        layer.set_extra_state(state | {"blocks": wanted.int()})


@pytest.mark.parametrize("state", [None, {"a": 1}, {}, {"blocks": 1, "indices": 2, "indptr": 3}])
def test_a_state_without_blocks(state):
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    with pytest.raises(ValueError, match="state must hold the tensors blocks, indices, indptr"):
        layer.set_extra_state(state)


def test_a_layer_that_does_something_else_stays():
    class Twice(torch.nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x)

    model = torch.nn.Sequential(Twice(4, 4), torch.nn.Linear(4, 4))
    chtorch.sparsify(model, block_shape=(2, 1))
    assert type(model[0]) is Twice
    assert isinstance(model[1], chtorch.BlockSparseLinear)
    with pytest.raises(ValueError, match="'0' is no linear layer of the model"):
        chtorch.sparsify(model, ["0"])


def test_parametrized_layers_are_pruned():
    dense = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(8, 8))
    assert chtorch.sparsify(dense, block_shape=(4, 1), keep=0.25).matrix.density == 0.25


@pytest.mark.parametrize("scale", [1e-60, 1e60])
def test_float64_is_pruned_in_float64(scale):
    dense = torch.nn.Linear(8, 8, dtype=torch.float64)
    with torch.no_grad():
        dense.weight.mul_(scale)
    layer = chtorch.sparsify(dense, block_shape=(4, 1), keep=0.25)
    w = dense.weight.detach().numpy()
    np.testing.assert_array_equal(layer.matrix.to_dense(), blocksparse.prune(w, (4, 1), 0.25))
    assert layer.matrix.n_blocks == 4


@pytest.mark.parametrize("layers", [None, ["0", "2"], lambda name, layer: True])
def test_a_layer_that_is_used_twice(layers):
    dense = torch.nn.Linear(4, 4)
    model = chtorch.sparsify(torch.nn.Sequential(dense, torch.nn.ReLU(), dense), layers)
    assert isinstance(model[0], chtorch.BlockSparseLinear)
    assert model[0] is model[2]


def test_a_shared_weight_stays_as_it_is():
    table = torch.nn.Embedding(8, 4)
    dense = torch.nn.Linear(4, 8, bias=False)
    dense.weight = table.weight
    before = table.weight.detach().clone()
    model = chtorch.sparsify(torch.nn.Sequential(table, dense), block_shape=(2, 1), keep=0.25)
    assert model[1].matrix.density == 0.25
    assert torch.equal(table.weight.detach(), before)


def test_nothing_is_replaced_where_one_layer_is_wrong():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="keep must be between 1 and the 8 blocks") as caught:
        chtorch.sparsify(model, block_shape=(4, 1), keep=10)
    assert caught.value.__notes__ == ["in layer '1'"]
    assert all(isinstance(layer, torch.nn.Linear) for layer in model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_what_is_no_model():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int"):
        chtorch.sparsify(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8))
    with pytest.raises(TypeError, match="layers must be names of layers or a function, got 3"):
        chtorch.sparsify(model, 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # PyTorch's own
def test_what_is_no_dense_tensor():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    x = torch.ones(2, 4)
    for bad, got in ((x.to_sparse(), "torch.sparse_coo"), (x.numpy(), "ndarray")):
        with pytest.raises(TypeError, match=f"x must be a dense tensor, got {got}"):
            layer(bad)
    for bad in (x, x.to_sparse(), x.numpy()):
        got = type(bad).__name__
        with pytest.raises(TypeError, match=f"weight must be a BlockSparse, got {got}"):
            chtorch.BlockSparseLinear(bad)
    for bias, error, says in (
        (np.ones(4), TypeError, "bias must be a tensor, got ndarray"),
        (torch.arange(4), TypeError, "bias must be a real floating tensor, got torch.int64"),
        (torch.ones(3), ValueError, r"bias must have shape \(4,\), got \(3,\)"),
        (torch.ones(4, 1), ValueError, r"bias must have shape \(4,\), got \(4, 1\)"),
    ):
        with pytest.raises(error, match=says):
            chtorch.BlockSparseLinear(layer.matrix, bias)
    for transform in (torch.func.vmap, torch.func.jacrev, torch.func.jacfwd):
        with pytest.raises(NotImplementedError, match="x must be a plain tensor"):
            transform(layer)(x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_a_layer_takes_real_floating_tensors(dtype):
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    with pytest.raises(TypeError, match="x must be a real floating tensor, got torch"):
        layer(torch.ones(1, 4, dtype=dtype))


def test_weights_that_a_hook_makes_are_refused():
    """They are as old as the last call: `load_state_dict` and `step` change others."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    prune.l1_unstructured(model[1], "weight", 0.5)
    for make in (
        chtorch.sparsify,
        lambda m, block_shape: chtorch.BlockSparseLinear.from_linear(m[1], block_shape),
    ):
        with pytest.raises(ValueError, match="made by a hook"):
            make(model, block_shape=(2, 2))
        assert type(model[0]) is torch.nn.Linear  # nothing was changed
    prune.remove(model[1], "weight")
    x = torch.randn(3, 8)
    expected = model(x)
    torch.testing.assert_close(chtorch.sparsify(model, block_shape=(2, 2))(x), expected)


def test_layers_that_do_something_else_stay():
    layer = torch.nn.Linear(4, 4)
    layer.forward = lambda x, forward=layer.forward: 2 * forward(x)
    model = chtorch.sparsify(torch.nn.Sequential(layer, torch.nn.Linear(4, 4)), block_shape=(2, 2))
    assert model[0] is layer
    assert isinstance(model[1], chtorch.BlockSparseLinear)


def test_a_layer_in_the_parametrization_of_another():
    class Turned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, weight):
            return self.inner(weight)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    torch.nn.utils.parametrize.register_parametrization(model[0], "weight", Turned())
    x = torch.randn(3, 4)
    expected = model(x)
    torch.testing.assert_close(chtorch.sparsify(model, block_shape=(2, 2))(x), expected)


@pytest.mark.parametrize("names", [["layers.1.linear1"], ["layers.1.linear2"], None])
def test_sequences_with_padding(names):
    """The encoder passes nested tensors on if its first layer looks as if it took them."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        encoder = torch.nn.TransformerEncoder(layer, 2).eval()
        x, padding = torch.randn(2, 5, 16), torch.zeros(2, 5, dtype=torch.bool)
        padding[0, 4] = padding[1, 3:] = True
        with torch.no_grad():
            expected = encoder(x, src_key_padding_mask=padding)
            chtorch.sparsify(encoder, names, block_shape=(2, 2))
            found = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found[~padding], expected[~padding], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_tracing_is_refused():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    with torch.no_grad(), pytest.raises(NotImplementedError, match="trace"):
        torch.jit.trace(layer, torch.ones(2, 4))
    with pytest.raises(NotImplementedError, match=r"torch\.fx"):
        torch.fx.symbolic_trace(layer)
    with pytest.raises(NotImplementedError, match="make_fx"):
        make_fx(layer)(torch.ones(2, 4))
    with pytest.raises(NotImplementedError, match=r"torch\.export"):
        torch.export.export(layer, (torch.ones(2, 4),), strict=False)


def test_float16_gradients_whose_squares_overflow():
    p, q = (torch.nn.Parameter(torch.ones(3, dtype=torch.float16)) for _ in range(2))
    p.grad, q.grad = (torch.full((3,), 300.0, dtype=torch.float16) for _ in range(2))
    chtorch.SparseAdamW([p], eps=1e-4).step()
    torch.optim.AdamW([q], eps=1e-4, foreach=False).step()
    torch.testing.assert_close(p, q, rtol=0, atol=0)
    p.grad.fill_(20_000.0)  # of which a thousandth of the square overflows
    with pytest.raises(ValueError, match="finite"):
        chtorch.SparseAdamW([p], eps=1e-4).step()
    p.grad.fill_(300.0)
    optimizer = chtorch.SparseAdamW([p], eps=1e-4, betas=(0.9, 0.9))

    def train():
        for _ in range(50):
            optimizer.step()

    with pytest.raises(ValueError, match="finite"):  # their mean grows beyond the largest float16
        train()
    assert optimizer.state[p]["exp_avg_sq"].isfinite().all()
    assert optimizer.state[p]["step"] > 5


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 3, -1])
def test_one_bad_entry_of_a_gradient(bad, place):
    p = ones(50, dtype=torch.float16)
    p.grad[place] = bad
    q = torch.nn.Parameter(torch.ones(0, dtype=torch.float16))
    q.grad = torch.zeros_like(q)
    with pytest.raises(ValueError, match="gradient of parameter 1"):
        chtorch.SparseAdamW([q, p]).step()


def test_a_model_that_is_converted_in_between():
    model = torch.nn.Linear(4, 4)
    optimizer = chtorch.SparseAdamW(model.parameters(), eps=1e-4)
    for _ in range(2):
        give_gradients(model.parameters(), 0)
        optimizer.step()
        model.half()
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {torch.float16}
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_layer_shares_nothing_with_what_it_was_made_of():
    """Neither the old layer nor the tensor of the bias follows its training."""
    dense, bias = torch.nn.Linear(4, 4), torch.zeros(4)
    first = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
    second = chtorch.BlockSparseLinear(first.matrix, bias)
    before = copy.deepcopy(dense.state_dict())
    with torch.no_grad():
        first.bias.fill_(7.0)
        second.bias.fill_(7.0)
        dense.weight.fill_(7.0)
    assert torch.equal(dense.bias, before["bias"])
    assert torch.equal(bias, torch.zeros(4))
    assert torch.equal(first.weight, before["weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_of_16_bits_become_float32(dtype):
    """Weights and bias, and the result has the dtype of the input."""
    dense = torch.nn.Linear(8, 4, dtype=dtype)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
    assert (layer.matrix.dtype, layer.bias.dtype) == (np.float32, torch.float32)
    x = torch.randn(3, 8).to(dtype)
    wide = torch.nn.functional.linear(x.float(), dense.weight.float(), dense.bias.float())
    for context in (torch.enable_grad, torch.no_grad):
        with context():
            torch.testing.assert_close(layer(x), wide.to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_that_are_converted_to_16_bits_multiply_in_float32(dtype):
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2)).to(dtype)
    assert (layer.matrix.dtype, layer.bias.dtype) == (np.float32, dtype)
    x = torch.randn(3, 8).to(dtype)
    wide = torch.nn.functional.linear(
        x.float(), layer.weight.as_subclass(torch.Tensor), layer.bias.float()
    )
    torch.testing.assert_close(layer(x), wide.to(dtype))


def test_converting_a_layer_converts_all_of_it():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
    assert layer.weight.dtype == torch.float32  # it has been asked for before
    layer.double()
    assert layer.weight.dtype == layer.bias.dtype == torch.float64
    assert layer.matrix.dtype == np.float64
    layer.float()
    assert layer.weight.dtype == layer.bias.dtype == torch.float32
    assert layer.matrix.dtype == np.float32


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_takes_over_the_mode(training):
    dense = torch.nn.Linear(4, 4).train(training)
    assert chtorch.BlockSparseLinear.from_linear(dense, (2, 2)).training is training
    assert chtorch.sparsify(torch.nn.Sequential(dense), block_shape=(2, 2))[0].training is training


def test_a_state_replaces_the_dense_weights():
    """Those that have been asked for before; the precision stays that of the layer."""
    first, second = (
        chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2)) for _ in range(2)
    )
    assert not torch.equal(first.weight, second.weight)
    first.load_state_dict(copy.deepcopy(second.double().state_dict()))
    assert torch.equal(first.weight, second.weight.float())
    assert first.matrix.dtype == np.float32


def test_a_state_shares_no_memory():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    before = layer.matrix.to_dense()
    for t in layer.get_extra_state().values():
        t.fill_(0)
    np.testing.assert_array_equal(layer.matrix.to_dense(), before)


def test_inputs_that_no_layer_takes():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 4), (2, 2))
    with pytest.raises(RuntimeError, match="runs on the CPU, got a tensor on meta"):
        layer(torch.ones(2, 4, device="meta"))
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 4\), got \(\)"):
        layer(torch.tensor(1.0))


def test_only_what_is_wanted_gets_a_gradient():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(4, 3), (3, 2))
    x = torch.ones(2, 4)
    layer(x).sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((3,), 2.0))
    layer.bias.requires_grad_(False)
    assert not layer(x).requires_grad
    assert layer(x.requires_grad_()).requires_grad


def test_what_attention_reads_itself_stays():
    """`MultiheadAttention` takes the weights of its last layer, and never calls it."""
    model = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    chtorch.sparsify(model, block_shape=(2, 2))
    assert isinstance(model.linear2, chtorch.BlockSparseLinear)
    assert not isinstance(model.self_attn.out_proj, chtorch.BlockSparseLinear)
    with pytest.raises(ValueError, match=r"'self_attn\.out_proj' is no linear layer"):
        chtorch.sparsify(model, ["self_attn.out_proj"])


def test_one_name_of_a_layer():
    model = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    chtorch.sparsify(model, "linear1", block_shape=(2, 2))
    assert isinstance(model.linear1, chtorch.BlockSparseLinear)
    assert isinstance(model.linear2, torch.nn.Linear)


def test_layers_with_hooks_of_another_kind_are_replaced():
    """Also one whose weights are a plain tensor that no hook makes."""
    hooked, plain = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    hooked.register_forward_pre_hook(lambda module, args: None)
    weight = plain.weight.detach().clone()
    del plain.weight
    plain.weight = weight
    model = chtorch.sparsify(torch.nn.Sequential(hooked, plain), block_shape=(2, 2))
    assert torch.equal(model[0].weight, hooked.weight)
    assert torch.equal(model[1].weight, weight)


def test_no_block_is_no_part_of_the_blocks():
    with pytest.raises(ValueError, match="keep must be"):
        chtorch.sparsify(torch.nn.Linear(4, 4), block_shape=(2, 2), keep=0)


def test_the_default_shape_of_blocks():
    assert chtorch.sparsify(torch.nn.Linear(4, 64)).block_shape == (32, 1)


def test_blocks_are_no_larger_than_the_weights():
    dense = torch.nn.Linear(6, 5)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (4096, 4096))
    assert layer.block_shape == (5, 6)
    assert layer.get_extra_state()["blocks"].shape == (1, 5, 6)
    state = layer.state_dict()
    old = torch.zeros(1, 8, 8)  # as older versions have saved it
    old[0, :5, :6] = 2 * dense.weight.detach()
    state["_extra_state"]["blocks"] = old
    layer.load_state_dict(state)
    assert layer.block_shape == (5, 6)
    assert torch.equal(layer.weight, 2 * dense.weight)


def negated(x):
    """The negative of x, of which only the sign is remembered."""
    result = torch.complex(torch.zeros_like(x), x).conj().imag
    assert result.is_neg()
    return result


@pytest.mark.parametrize("shape", [(2, 4), (1, 1)])  # one entry is contiguous
def test_inputs_and_weights_that_are_negated_lazily(shape):
    x = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    dense = torch.nn.Linear(shape[1], shape[1])
    layer = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
    assert torch.equal(layer(negated(x)), layer(-x))
    w, bias = (torch.nn.Parameter(negated(p.detach())) for p in (dense.weight, dense.bias))
    dense.weight, dense.bias = w, bias
    layer = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
    torch.testing.assert_close(layer(x), dense(x))
    layer.bias.data = negated(-bias.detach().resolve_neg())
    torch.testing.assert_close(layer(x), dense(x))


def ones(*shape, dtype=torch.float32):
    """A parameter with a gradient, both of ones."""
    p = torch.nn.Parameter(torch.ones(*shape, dtype=dtype))
    p.grad = torch.ones_like(p)
    return p


def test_a_group_that_is_refused_is_not_added():
    optimizer = chtorch.SparseAdamW([ones(3)])
    for wrong in (
        {"params": [ones(2)], "lr": -1.0},
        {"params": [ones(2)], "mask": [None, None]},
        {"params": [torch.ones(2, dtype=torch.int64)]},
        {"params": [ones(2)], "maximize": True},
    ):
        with pytest.raises((TypeError, ValueError)):
            optimizer.add_param_group(wrong)
        assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_parameters_are_real_and_floating(dtype):
    with pytest.raises(TypeError, match="params must be real floating tensors, got torch"):
        chtorch.SparseAdamW([torch.ones(3, dtype=dtype)])


def test_masks_of_groups_are_copied():
    p, kept = ones(3), torch.tensor([True, False, True])
    optimizer = chtorch.SparseAdamW([{"params": [p], "mask": [kept]}])
    kept[:] = False
    optimizer.step()
    assert torch.equal(p != 0, torch.tensor([True, False, True]))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_of_an_optimizer_clear_what_is_masked(again):
    """In groups that are added to them."""
    later = ones(3)
    group = {"params": [later], "mask": [torch.tensor([True, False, True])]}
    again(chtorch.SparseAdamW([ones(3)])).add_param_group(group)
    assert torch.equal(later, torch.tensor([1.0, 0.0, 1.0]))


def test_masks_of_any_layout():
    kept = torch.arange(12).reshape(4, 3).mT % 2 == 0
    assert not kept.is_contiguous()
    p = ones(3, 4)
    optimizer = chtorch.SparseAdamW([p], lr=0.1, mask=[kept])
    optimizer.step()
    assert torch.equal(p != 0, kept)


def test_gradients_of_any_layout():
    p, q, g = ones(4, 4), ones(4, 4), torch.arange(16.0).reshape(4, 4)
    p.grad, q.grad = g.mT, g.mT.contiguous()
    for each in (p, q):
        chtorch.SparseAdamW([each], lr=0.1, eps=1.0).step()
    assert torch.equal(p, q)


def test_sparse_gradients_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    before = table.weight.detach().clone()
    with pytest.raises(TypeError, match="SparseAdamW takes dense gradients, got a sparse one"):
        chtorch.SparseAdamW(table.parameters()).step()
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_that_are_not_checked(dtype):
    p = ones(3, dtype=dtype)
    p.grad[0] = torch.nan
    chtorch.SparseAdamW([p], check_finite=False).step()
    assert torch.equal(p.isnan(), torch.tensor([True, False, False]))


def test_the_bound_of_float16_is_that_of_the_mean_square():
    p = ones(3, dtype=torch.float16)
    p.grad.fill_(300.0)  # of which the square alone overflows
    chtorch.SparseAdamW([p], betas=(0.0, 0.999)).step()
    assert p.isfinite().all()
    with pytest.raises(ValueError, match="must be finite"):
        chtorch.SparseAdamW([p], betas=(0.999, 0.0)).step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bit_blocks_are_float32(dtype):
    """Also in the steps after that in which they were made."""
    p = torch.nn.Parameter(torch.linspace(0.5, 1, 12).reshape(3, 4).to(dtype))
    p.grad = torch.zeros_like(p)
    options = {"l1": 0.01, "groups": (3, 1), "reweight_every": 2, "reweight_eps": 0.1}
    optimizer = chtorch.SparseAdamW([p], eps=1e-4, **options)
    for _ in range(2):
        optimizer.step()
    gamma = optimizer.state[p]["gamma"]
    exact = 1.0 / (p.detach().float().norm(dim=0, keepdim=True) + 0.1)
    torch.testing.assert_close(gamma, exact)
    optimizer.step()
    assert torch.equal(optimizer.state[p]["gamma"], gamma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_blocks_of_another_shape_do_not_count(dtype):
    p, q = ones(4, 4, dtype=dtype), ones(4, 4, dtype=dtype)
    for each in (p, q):
        every = 1 if each is p else None
        optimizer = chtorch.SparseAdamW([each], lr=0.1, l1=0.1, reweight_every=every)
        optimizer.step()
        optimizer.param_groups[0].update(groups=(2, 2), reweight_every=100)
        optimizer.step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_as_many_other_blocks_do_not_count(dtype):
    """Blocks of 2 × 2 and of 3 × 3 are four each; larger ones than the tensor are the tensor."""
    p, q = ones(4, 4, dtype=dtype), ones(4, 4, dtype=dtype)
    optimizers = []
    for each, every in ((p, 1), (q, None)):
        o = chtorch.SparseAdamW([each], lr=0.1, l1=0.1, groups=(2, 2), reweight_every=every)
        o.step()
        o.param_groups[0].update(groups=(3, 3), reweight_every=100)
        optimizers.append(o)
    saved = copy.deepcopy(optimizers[0].state_dict())  # with the weights of the blocks before
    for o in optimizers:
        o.step()
        assert "gamma" not in o.state[o.param_groups[0]["params"][0]]
    assert torch.equal(p, q)
    optimizers[0].load_state_dict(saved)
    optimizers[0].step()
    assert "gamma" not in optimizers[0].state[p]
    optimizers[0].param_groups[0].update(groups=[4, 9], reweight_every=1)
    optimizers[0].step()
    gamma = optimizers[0].state[p]["gamma"]
    optimizers[0].param_groups[0].update(groups=(4, 4), reweight_every=100)
    optimizers[0].step()
    assert torch.equal(optimizers[0].state[p]["gamma"], gamma)


def test_weights_of_blocks_that_an_older_state_does_not_name():
    """They are those of the saved blocks."""
    p = ones(4, 4)
    optimizer = chtorch.SparseAdamW([p], l1=0.1, groups=(2, 2), reweight_every=2)
    for _ in range(2):
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("block_height", "block_width"):
        assert saved["state"][0].pop(name) == 2
    gamma = optimizer.state[p]["gamma"].clone()
    optimizer.load_state_dict(saved)
    optimizer.step()
    assert torch.equal(optimizer.state[p]["gamma"], gamma)


def test_weights_of_blocks_follow_a_conversion():
    p = ones(4, 4)
    optimizer = chtorch.SparseAdamW([p], lr=0.1, l1=0.1, groups=(2, 2), reweight_every=2)
    for _ in range(2):
        optimizer.step()
    q = torch.nn.Parameter(p.detach().clone())
    other = chtorch.SparseAdamW([q], lr=0.1, l1=0.1, groups=(2, 2), reweight_every=2)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    p.data, p.grad = p.data.double(), torch.ones(4, 4, dtype=torch.float64)
    q.grad = torch.ones(4, 4)
    optimizer.step()
    other.step()
    torch.testing.assert_close(p.float(), q)
    assert optimizer.state[p]["gamma"].dtype == torch.float64


def test_constraints_write_into_the_parameter():
    p = ones(3)
    pointer, version = p.data_ptr(), p._version
    result = torch.full((3,), 0.5)
    optimizer = chtorch.SparseAdamW([p], constraint=lambda w: result)
    optimizer.step()
    assert torch.equal(p, result)
    assert p.data_ptr() == pointer
    assert p._version > version
    assert torch.equal(result, torch.full((3,), 0.5))
    optimizer.param_groups[0]["constraint"] = lambda w: w.clamp_(max=0.1)  # in place
    optimizer.step()
    assert torch.equal(p, torch.full((3,), 0.1))


def test_gradients_that_overlap_a_parameter_farther_on():
    """The gradient of the second parameter is what the first was, not what it becomes."""
    room = torch.arange(8.0)
    x, y = torch.nn.Parameter(room[:6]), ones(3)
    x.grad, y.grad = torch.ones(6), room[3:6]
    wanted = y.grad.clone()
    optimizer = chtorch.SparseAdamW([x, y], lr=0.1)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[y]["exp_avg"], 0.1 * wanted)


def test_gradients_that_overlap_a_strided_parameter():
    """Which reaches farther than its entries take."""
    room = torch.arange(8.0)
    x, y = torch.nn.Parameter(room[::2]), ones(1)
    x.grad, y.grad = torch.ones(4), room[6:7]
    optimizer = chtorch.SparseAdamW([x, y], lr=0.1)
    optimizer.step()
    torch.testing.assert_close(optimizer.state[y]["exp_avg"], torch.tensor([0.6]))
    assert room[6] < 6.0


def test_a_constraint_is_no_part_of_a_state():
    """It may be a function that cannot be pickled."""
    optimizer = chtorch.SparseAdamW([ones(3)], constraint=lambda w: w)
    pickle.dumps(optimizer.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["constraint"] is not None


@pytest.mark.parametrize("name", ["exp_avg", "exp_avg_sq"])
def test_moments_that_do_not_fit(name):
    p = ones(4)
    optimizer = chtorch.SparseAdamW([p])
    optimizer.step()
    optimizer.state[p][name] = torch.zeros(5)
    with pytest.raises(ValueError, match=rf"^{name} in the state has the shape \(5,\)"):
        optimizer.step()
    del optimizer.state[p][name]
    with pytest.raises(ValueError, match=f"but no {name}"):
        optimizer.step()


def test_a_state_is_taken_as_it_is():
    """Neither the given dictionary nor those in it are written to; it may be any mapping."""

    class Own(collections.abc.Mapping):
        def __init__(self, held):
            self.held = held

        def __getitem__(self, key):
            return self.held[key]

        def __iter__(self):
            return iter(self.held)

        def __len__(self):
            return len(self.held)

    p = ones(3)
    plain = torch.optim.AdamW([p], lr=0.2)
    plain.step()
    saved = plain.state_dict()
    before = copy.deepcopy(saved)
    optimizer = chtorch.SparseAdamW([p])
    optimizer.load_state_dict(Own(saved))
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert saved["param_groups"] == before["param_groups"]
    assert saved["state"][0].keys() == before["state"][0].keys()
    assert isinstance(saved["state"][0]["step"], torch.Tensor)


def test_a_state_of_adam_without_weight_decay():
    p = ones(3)
    adam = torch.optim.Adam([p])
    adam.step()
    optimizer = chtorch.SparseAdamW([p])
    optimizer.load_state_dict(adam.state_dict())
    assert optimizer.state[p]["step"] == 1


def test_a_state_of_no_step():
    p, q = ones(3), ones(3)
    optimizer = chtorch.SparseAdamW([p])
    zeros = {"step": 0, "exp_avg": torch.zeros(3), "exp_avg_sq": torch.zeros(3)}
    optimizer.load_state_dict(optimizer.state_dict() | {"state": {0: zeros}})
    optimizer.step()
    chtorch.SparseAdamW([q]).step()
    assert torch.equal(p, q)


def test_hooks_see_the_weights_that_were_loaded():
    p = ones(2, 2, dtype=torch.bfloat16)
    optimizer = chtorch.SparseAdamW([p], l1=0.1, reweight_every=1)
    optimizer.step()
    gamma, seen = optimizer.state[p]["gamma"], []
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(o.state[p]["gamma"]))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert torch.equal(seen[0], gamma)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_that_are_masked_are_zero(dtype):
    p, kept = ones(4, dtype=dtype), torch.tensor([True, False, True, False])
    optimizer = chtorch.SparseAdamW([p], mask=[kept])
    for _ in range(2):
        optimizer.step()
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(optimizer.state[p][name] != 0, kept)


def strided(t):
    """A parameter that the kernels do not take."""
    return torch.nn.Parameter(t.mT.contiguous().mT)


@pytest.mark.parametrize("make", [torch.nn.Parameter, strided])
def test_zeros_have_no_sign(make):
    p = make(torch.tensor([[-0.05, 1.0], [0.05, -1.0]]))
    p.grad = torch.zeros_like(p)
    chtorch.SparseAdamW([p], lr=0.1, l1=1.0, weight_decay=0.0).step()
    assert torch.equal(p == 0, torch.tensor([[True, False], [True, False]]))
    assert not p[p == 0].signbit().any()


@pytest.mark.parametrize("make", [torch.nn.Parameter, strided])
@pytest.mark.parametrize("groups", [(1, 1), (2, 1)])
def test_blocks_that_hold_nan_become_nan(make, groups):
    """As for NumPy arrays, nothing is hidden behind a zero."""
    p = make(torch.tensor([[torch.nan, 1.0], [3.0, 0.0]]))
    p.grad = torch.zeros_like(p)
    chtorch.SparseAdamW([p], lr=0.1, l1=0.1, groups=groups).step()
    assert torch.equal(p.isnan(), torch.tensor([[True, False], [groups[0] == 2, False]]))


@pytest.mark.parametrize("make", [torch.nn.Parameter, strided])
def test_blocks_of_zeros_get_a_weight(make):
    p = make(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    p.grad = torch.zeros_like(p)
    options = {"l1": 0.1, "groups": (2, 1), "reweight_every": 1, "reweight_eps": 0.5}
    optimizer = chtorch.SparseAdamW([p], **options)
    optimizer.step()
    assert optimizer.state[p]["gamma"][0, 0] == 2.0


@pytest.mark.parametrize("make", [torch.nn.Parameter, strided])
@pytest.mark.parametrize(("large", "same"), [((10**10, 1), (3, 1)), ((1, 10**10), (1, 4))])
def test_blocks_larger_than_memory(make, large, same):
    results = []
    for groups in (large, same):
        p = make(torch.arange(12.0).reshape(3, 4).mul(torch.tensor([0.0, 1.0, 1.0, 1.0])))
        p.grad = torch.zeros_like(p)
        optimizer = chtorch.SparseAdamW([p], l1=20.0, lr=0.1, groups=groups, reweight_every=1)
        optimizer.step()
        optimizer.step()
        results.append((p.detach(), optimizer.zero_blocks()[0]))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize("make", [torch.nn.Parameter, strided])
def test_blocks_with_an_infinite_weight_stay(make):
    """They shrink by nothing."""
    p = make(torch.tensor([[torch.inf, 1.0], [3.0, 0.0]]))
    p.grad = torch.zeros_like(p)
    options = {"l1": 1.0, "groups": (2, 1), "lr": 0.1, "weight_decay": 0.0}
    chtorch.SparseAdamW([p], **options).step()
    torch.testing.assert_close(p.detach(), torch.tensor([[torch.inf, 0.9], [3.0, 0.0]]))


def test_norms_of_large_blocks_are_exact_to_rounding():
    w = torch.tensor(np.random.default_rng(0).standard_normal((1024, 1024)), dtype=torch.float32)
    p = strided(w)
    p.grad = torch.zeros_like(p)
    lr = float(w.double().norm()) - 1.0  # what it is shortened by
    chtorch.SparseAdamW([p], lr=lr, l1=1.0, groups=(1024, 1024), weight_decay=0.0).step()
    assert abs(float(p.detach().double().norm()) - 1.0) < 1e-3


def test_norms_of_16_bits_are_float32():
    w = torch.linspace(0.5, 1, 12).reshape(3, 4).bfloat16()
    p = torch.nn.Parameter(w.clone())
    p.grad = torch.zeros_like(p)
    chtorch.SparseAdamW([p], lr=0.1, l1=0.7, groups=(3, 1), weight_decay=0.0).step()
    factors = 1.0 - 0.1 * 0.7 / w.float().norm(dim=0, keepdim=True)
    torch.testing.assert_close(p.detach(), (w * factors).bfloat16(), rtol=0, atol=0)


def test_a_step_where_new_tensors_lie_elsewhere_by_default():
    p, q = ones(3, dtype=torch.bfloat16), ones(3, dtype=torch.bfloat16)
    with torch.device("meta"):
        chtorch.SparseAdamW([p], lr=0.1).step()
    chtorch.SparseAdamW([q], lr=0.1).step()
    assert torch.equal(p, q)


@pytest.mark.parametrize("make", [torch.nn.Parameter, strided])
def test_a_step_where_new_tensors_are_bfloat16_by_default(make):
    """Which counts to 256."""
    p, q = (make(torch.zeros(2, 3)) for _ in range(2))
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    one, other = chtorch.SparseAdamW([p]), chtorch.SparseAdamW([q])
    one.step()
    one.state[p]["step"] = 600
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    with torch.no_grad():
        q.copy_(p)
    one.step()
    torch.set_default_dtype(torch.bfloat16)
    try:
        other.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(p, q)


def test_a_state_of_more_groups():
    p, q = ones(3), ones(3)
    saved = chtorch.SparseAdamW([{"params": [p]}, {"params": [q]}]).state_dict()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        chtorch.SparseAdamW([p]).load_state_dict(saved)


@pytest.mark.parametrize("n", [1, 3])
def test_gradients_and_parameters_that_are_negated_lazily(n):
    p, q, r = ones(n), ones(n), ones(n)
    g = torch.arange(1.0, n + 1)
    p.grad, q.grad, r.grad = negated(g), -g, negated(g)
    r.data = negated(-torch.ones(n))
    for each in (p, q, r):
        chtorch.SparseAdamW([each], eps=1.0, l1=0.1).step()
    assert torch.equal(p, q)
    torch.testing.assert_close(r.detach(), q.detach())


WRAPPED = """
import io
import numpy as np, torch
from conehoyer import blocksparse
from conehoyer.torch import BlockSparseLinear

file, indptr = io.BytesIO(), np.array([0, 2**63 - 1, -2, 2])  # differences wrap around
np.savez(file, blocks=np.ones((2, 2, 2)), indices=np.array([0, 1]), indptr=indptr,
         shape=np.array([6, 4]), block_shape=np.array([2, 2]))
file.seek(0)
state = {"blocks": torch.ones(2, 2, 2), "indices": torch.arange(2), "indptr": torch.tensor(indptr)}
layer = BlockSparseLinear.from_linear(torch.nn.Linear(4, 6), (2, 2))
for call in (lambda: blocksparse.load(file), lambda: layer.set_extra_state(state)):
    try:
        call()
    except ValueError as error:
        print(error)
"""


def test_places_that_wrap_around():
    done = subprocess.run([sys.executable, "-c", WRAPPED], capture_output=True, text=True)
    assert done.stdout.count("its arrays describe no block-sparse matrix") == 2, done.stderr


def stepped(**options):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    kept = torch.tensor([True, True, False])
    optimizer = chtorch.SparseAdamW([p], mask=[kept], l1=0.1, reweight_every=1, **options)
    optimizer.step()
    return p, optimizer


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", float("inf")), ("step", torch.tensor(float("inf"))), ("gamma", 3.0),
     ("gamma", [1.0, 1.0]), ("exp_avg", 3.0), ("exp_avg_sq", None)],
)  # fmt: skip
def test_states_that_hold_something_else(name, value):
    """A wrong state is a ValueError, and the optimizer goes on as before."""
    p, optimizer = stepped()
    bad = copy.deepcopy(optimizer.state_dict())
    bad["state"][0][name] = value
    with pytest.raises(ValueError, match=name):
        optimizer.load_state_dict(bad)
    assert optimizer.state[p]["step"] == 1
    optimizer.step()
    assert p[2] == 0


def test_masks_outlive_a_hook_that_fails():
    p, optimizer = stepped()

    def fail(optimizer):
        raise RuntimeError("in the hook")

    hook = optimizer.register_load_state_dict_post_hook(fail)
    with pytest.raises(RuntimeError, match="in the hook"):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    hook.remove()
    optimizer.step()
    assert p[2] == 0


def test_hooks_of_loading_may_take_a_step():
    p, optimizer = stepped()
    optimizer.register_load_state_dict_post_hook(lambda o: o.step() and None)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert optimizer.state[p]["step"] == 2


def test_a_state_without_weights_of_blocks():
    """As that for NumPy arrays says it: with None."""
    p, optimizer = stepped()
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["gamma"] = None
    optimizer.load_state_dict(state)
    optimizer.step()
    assert optimizer.state[p]["step"] == 2


def test_hooks_of_loading_may_load():
    p, optimizer = stepped()
    gamma, calls = optimizer.state[p]["gamma"].clone(), []

    def again(optimizer, *given):
        calls.append(1)
        if len(calls) == 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    optimizer.register_load_state_dict_post_hook(again)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert len(calls) == 2
    torch.testing.assert_close(optimizer.state[p]["gamma"], gamma, rtol=0, atol=0)
    optimizer.step()
    assert p[2] == 0


def test_gradients_that_are_enabled_in_inference_mode():
    layer = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
    with torch.inference_mode(), torch.enable_grad():
        y = layer(torch.ones(3, 8))
    assert y.grad_fn is None
    assert not y.requires_grad


def test_a_copy_of_the_dense_weights_has_no_graph():
    w = chtorch.BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2)).weight
    w.requires_grad_()
    assert copy.deepcopy(w).is_leaf


def test_a_layer_where_new_tensors_lie_elsewhere():
    dense = torch.nn.Linear(8, 4)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
    x = torch.randn(3, 8)
    expected = layer(x)
    with torch.device("meta"):
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=0)
        made = chtorch.BlockSparseLinear.from_linear(dense, (2, 2))
        torch.testing.assert_close(made.double()(x), expected)
        assert made.weight.device.type == "cpu"


def test_gradients_that_overlap_a_parameter_of_another_group():
    """It is what that was, not what it becomes."""
    x, y, room = ones(3), ones(3), torch.arange(3.0)
    x.data = room
    y.grad = room
    wanted = room.clone()
    optimizer = chtorch.SparseAdamW([{"params": [ones(2)]}, {"params": [x]}, {"params": [y]}])
    optimizer.step()
    torch.testing.assert_close(optimizer.state[y]["exp_avg"], 0.1 * wanted)
    assert not torch.equal(room, wanted)


def test_workers_are_those_of_the_optimizer(record_workers):
    """In the look for NaN, the step and the renewal of the weights."""
    asked = record_workers(optim)
    chtorch.SparseAdamW([ones(4)], l1=0.1, reweight_every=1, workers=3).step()
    assert asked == [3, 3, 3]


def test_nothing_is_left_of_weights_of_blocks_that_are_not_renewed():
    p = ones(2, 3)
    optimizer = chtorch.SparseAdamW([p], l1=0.1, groups=(2, 1), reweight_every=1)
    optimizer.step()
    optimizer.param_groups[0]["reweight_every"] = None
    optimizer.step()
    assert optimizer.state[p].keys() == {"step", "exp_avg", "exp_avg_sq"}


def test_weights_of_other_blocks_that_an_older_state_does_not_name():
    """Blocks of 2 × 2 and of 4 × 1 are four each: the shape of the weights tells."""
    p, q = ones(4, 4), ones(4, 4)
    for each, every in ((p, 1), (q, None)):
        options = {"lr": 0.1, "l1": 0.1, "reweight_every": every}
        optimizer = chtorch.SparseAdamW([each], groups=(2, 2), **options)
        optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
        for name in ("block_height", "block_width"):
            saved["state"][0].pop(name, None)
        saved["param_groups"][0].update(groups=(4, 1), reweight_every=100)
        optimizer.load_state_dict(saved)
        optimizer.step()
    assert torch.equal(p, q)


def test_gradients_that_overflow_in_the_precision_of_the_parameter():
    """Also where their mean squares do not."""
    p = ones(3)
    p.grad.fill_(7e4)
    p.data = p.data.half()
    optimizer = chtorch.SparseAdamW([p], betas=(0.9, 0.99999))
    with pytest.raises(ValueError, match="must be finite"):
        optimizer.step()
    assert torch.equal(p.detach(), torch.ones(3, dtype=torch.float16))


def test_a_layer_computes_in_the_wider_precision_of_data_without_a_gradient():
    dense = torch.nn.Linear(40, 7)
    layer = chtorch.BlockSparseLinear.from_linear(dense, (1, 4))
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 40)))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), dense.double()(x), rtol=1e-13, atol=1e-13)


def test_a_layer_multiplies_under_its_own_name():
    assert chtorch.BlockSparseLinear.forward.__name__ == "forward"
    assert "out_features" in chtorch.BlockSparseLinear.forward.__doc__
