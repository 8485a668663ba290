"""`SparseAdamW` for PyTorch, on the kernels of `conehoyer.optim` or on PyTorch's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.adamw import adamw

from . import optim
from ._torch_compile import uncompiled

_OWN = ("mask", "constraint")  # no part of a saved state
_ELSEWHERE = ("amsgrad", "maximize")  # options of AdamW that there are none of here
_BLOCK = ("block_height", "block_width")  # of the weights in a state: numbers, as all tools take


class SparseAdamW(torch.optim.Optimizer):
    """AdamW that sets weights, or whole blocks of weights, to exact zeros.

    It takes the place of ``torch.optim.AdamW``; with ``l1=0`` it is the same to rounding.  What
    the penalty does is described at `conehoyer.optim.SparseAdamW`.

    Parameters
    ----------
    params : iterable of Tensor, of (str, Tensor) pairs, or of dict
        As for every optimizer of PyTorch; a parameter group may override every option but
        `check_finite` and `workers`.
    lr : float, default 1e-3
        Length of the steps.
    betas : tuple of two floats, default (0.9, 0.999)
        Decay of the running means of the gradient and of its square.
    eps : float, default 1e-8
        Added to the root of the mean square.
    weight_decay : float, default 1e-2
        Weights are multiplied by ``1 − lr·weight_decay`` in each step.
    l1 : float, default 0.0
        Strength of the penalty.
    groups : tuple of two ints, default (1, 1)
        Rows and columns of a block, in the last two axes.
    reweight_every : int or None, default None
        After every so many steps, if l1 > 0 then, each block gets the weight
        ``1/(‖w‖ + reweight_eps)``.  With None, and until then, it is 1.
    reweight_eps : float, default 1e-3
        Positive.
    mask : dict of Tensor or str to Tensor, or list of Tensor or None, optional
        For parameters, or their names, a boolean tensor of the same shape: where it is False,
        weights and moments stay zero.  A list has one for each parameter; every key of a
        dictionary must be a parameter or a name.  A group that has masks of its own takes those.
    constraint : callable, optional
        Instead of a penalty: ``constraint(w)`` returns what replaces w after the step.
    constraint_every : int, default 1
        The constraint is applied after every so many steps.
    workers : int or None, default None
        Threads of the kernels for tensors on the CPU.
    check_finite : bool, default True
        Raise on a gradient that is not finite, before anything is changed.  On a GPU this
        waits for the device.
    amsgrad, maximize, capturable, differentiable : bool, default False
        Options of PyTorch's AdamW that there are none of here: only False is taken.
    foreach, fused : bool or None, default None
        Taken so that calls of PyTorch's AdamW need no change, and of no effect.

    Raises
    ------
    ValueError, TypeError
        As `conehoyer.optim.SparseAdamW`, but an option of a parameter group that is not known
        is kept for whoever put it there, as all optimizers of PyTorch do.

    Notes
    -----
    Contiguous float32 and float64 parameters on the CPU are updated by one fused kernel, all
    others by PyTorch's own AdamW, and then shrunk by its operations.

    Examples
    --------
    >>> import torch
    >>> from conehoyer.torch import SparseAdamW
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(4, 8)
    >>> optimizer = SparseAdamW(
    ...     [
    ...         {"params": [model.weight], "l1": 1.5, "groups": (8, 1)},
    ...         {"params": [model.bias]},
    ...     ],
    ...     lr=0.01,
    ...     weight_decay=0.0,
    ... )
    >>> for _ in range(500):
    ...     x = torch.randn(64, 4)
    ...     loss = (model(x) - x[:, :1]).square().mean()
    ...     optimizer.zero_grad()
    ...     loss.backward()
    ...     _ = optimizer.step()
    >>> optimizer.zero_blocks()[0]
    tensor([[False,  True,  True,  True]])
    """

    _built = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        l1: float = 0.0,
        groups: tuple[int, int] = (1, 1),
        reweight_every: int | None = None,
        reweight_eps: float = 1e-3,
        mask: Any = None,
        constraint: Callable[[torch.Tensor], Any] | None = None,
        constraint_every: int = 1,
        workers: int | None = None,
        check_finite: bool = True,
        amsgrad: bool = False,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        optim.resolve_workers(workers)
        none = {"amsgrad": amsgrad, "maximize": maximize, "capturable": capturable}
        for name, value in (none | {"differentiable": differentiable}).items():
            if value:
                raise ValueError(f"SparseAdamW has no {name}, got {value!r}")
        self.workers, self.check_finite = workers, check_finite
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "l1": l1,
            "groups": groups, "reweight_every": reweight_every, "reweight_eps": reweight_eps,
            "mask": None, "constraint": constraint, "constraint_every": constraint_every,
        }  # fmt: skip
        given = params if isinstance(params, torch.Tensor) else list(params)
        own = [isinstance(group, dict) and "mask" in group for group in given]
        super().__init__(given, defaults)
        if mask is not None:
            everything = [p for group in self.param_groups for p in group["params"]]
            names = [name for group in self.param_groups for name in group.get("param_names", ())]
            masks = _masks(mask, everything, names, copy=True)
            for group, has_own in zip(self.param_groups, own, strict=False):
                first, masks = masks[: len(group["params"])], masks[len(group["params"]) :]
                if not has_own:
                    group["mask"] = first
        self._built = True
        for group in self.param_groups:
            _clear(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, checked.

        Parameters
        ----------
        param_group : dict
            As for every optimizer of PyTorch.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import SparseAdamW
        >>> optimizer = SparseAdamW([torch.nn.Parameter(torch.ones(2))])
        >>> optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "l1": 0.1})
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for p in group["params"]:
                if not p.is_floating_point():
                    raise TypeError(f"params must be real floating tensors, got {p.dtype}")
            names = group.get("param_names", ())
            group["mask"] = _masks(group["mask"], group["params"], names, copy=True)
            optim._checked(group)
            for name in _ELSEWHERE:
                if group.get(name):
                    raise ValueError(f"SparseAdamW has no {name}, got {group[name]!r}")
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        if self._built:  # else a later group may be wrong
            _clear(group)

    def __getstate__(self) -> dict[str, Any]:
        own = {"workers": self.workers, "check_finite": self.check_finite, "_built": True}
        return super().__getstate__() | own

    @uncompiled
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take a step.

        Parameters
        ----------
        closure : callable, optional
            Evaluates the model once more and returns the loss.

        Returns
        -------
        loss
            What the closure returned, or None.

        Raises
        ------
        ValueError
            If a gradient is not finite, or a mask or a state does not have its parameter's
            shape; nothing has been changed then.  If a constraint returns another shape.
        TypeError
            If a gradient is sparse, or a constraint returns something else than a tensor.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import SparseAdamW
        >>> w = torch.nn.Parameter(torch.tensor([1.0, 0.05]))
        >>> w.grad = torch.tensor([1.0, 0.0])
        >>> SparseAdamW([w], lr=0.1, weight_decay=0.0, l1=1.0).step()
        >>> w.detach()
        tensor([0.8000, 0.0000])
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        workers = optim.resolve_workers(self.workers)
        jobs, place = [], -1
        taken = optim._Memory(_span(p) for group in self.param_groups for p in group["params"])
        for group in self.param_groups:
            options = optim._checked(group)
            names = group.get("param_names", ())
            masks = _masks(group["mask"], group["params"], names)  # it may have been changed
            for k, (p, kept) in enumerate(zip(group["params"], masks, strict=True)):
                place += 1
                if p.grad is None:
                    continue
                _check_state(self.state.get(p), p)
                if p.grad.is_sparse:
                    raise TypeError("SparseAdamW takes dense gradients, got a sparse one")
                grad = p.grad.detach()
                if taken.meets(*_span(grad)):  # a parameter changes before it is read
                    grad = grad.clone()
                fused = _fused(p)
                label = f"parameter {names[k]!r}" if names else f"parameter {place}"
                jobs.append((label, p, _memory(grad) if fused else grad, kept, options, fused))
        if self.check_finite:
            for label, p, grad, _, options, fused in jobs:
                if fused:
                    good = optim._gradient_is_bounded(grad, workers)
                else:
                    good = _moments_are_bounded(p, grad, self.state.get(p), options.betas[1])
                if not good:
                    raise ValueError(
                        f"the gradient of {label} of shape {tuple(p.shape)} must be finite, and "
                        "its squares too (in float16 their mean); nothing was changed; "
                        "check_finite=False lets it through"
                    )
        for _, p, grad, kept, options, fused in jobs:
            self._update(p, grad, kept, options, fused, workers)
        return loss

    def _update(self, p, grad, kept, options, fused, workers):
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        state["step"] += 1
        shape, gamma = options.groups, state.get("gamma")
        block = dict(zip(_BLOCK, optim._block_of(p.shape, shape), strict=False))
        if options.reweight_every is None or (
            gamma is not None
            and (
                tuple(gamma.shape) != optim._blocks_shape(p.shape, shape)
                or any(state.get(name, side) != side for name, side in block.items())
            )
        ):
            gamma = None
        renew = options.reweight_every is not None and options.l1 > 0.0
        renew = renew and state["step"] % options.reweight_every == 0
        for name in state.keys() & {"exp_avg", "exp_avg_sq", "gamma"}:
            held = state[name].to(_wide(p) if name == "gamma" else p.dtype)  # p may be another now
            state[name] = held.contiguous() if fused else held
        gamma = None if gamma is None else state["gamma"]
        if fused:
            w = p.detach().numpy()
            optim._step_in_place(
                w, grad, state["exp_avg"].numpy(), state["exp_avg_sq"].numpy(),
                state["step"], lr=options.lr, betas=options.betas, eps=options.eps,
                weight_decay=options.weight_decay, l1=options.l1, groups=shape,
                gamma=None if gamma is None else gamma.numpy(),
                mask=None if kept is None else kept.numpy(), workers=workers,
            )  # fmt: skip
            increment_version(p)
            if renew:
                given = w, shape, options.reweight_eps, None, workers
                gamma = torch.from_numpy(optim._renewed_weights(*given))
        else:
            _step(p, grad, state, options, gamma, kept)
            if renew:
                norms = _norms(p.to(_wide(p)), shape)
                gamma = 1.0 / (norms + options.reweight_eps)
        for name in ("gamma", *_BLOCK):
            state.pop(name, None)
        if gamma is not None:
            state.update(block, gamma=gamma)
        if options.constraint is not None and state["step"] % options.constraint_every == 0:
            result = options.constraint(p)
            if not isinstance(result, torch.Tensor):
                raise TypeError(f"constraint must return a tensor, got {type(result).__name__}")
            if result.is_complex() or result.shape != p.shape:
                raise ValueError(
                    f"constraint must return a real tensor of shape {tuple(p.shape)}, "
                    f"got {result.dtype} {tuple(result.shape)}"
                )
            if result is not p:
                p.copy_(result)
            if kept is not None:
                p.masked_fill_(~kept, 0)

    def zero_blocks(self) -> list[torch.Tensor]:
        """Say which blocks are zero.

        Returns
        -------
        list of Tensor of bool
            For each parameter, one entry a block.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import SparseAdamW
        >>> w = torch.nn.Parameter(torch.tensor([[0.0, 0.0, 1.0]]))
        >>> SparseAdamW([w], groups=(1, 2)).zero_blocks()
        [tensor([[ True, False]])]
        """
        with torch.no_grad():
            return [
                _norms(p, tuple(group["groups"]), largest=True) == 0
                for group in self.param_groups
                for p in group["params"]
            ]

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to go on later; masks and constraints are not part of it.

        Returns
        -------
        dict
            As for every optimizer of PyTorch.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import SparseAdamW
        >>> SparseAdamW([torch.nn.Parameter(torch.ones(2))]).state_dict()["state"]
        {}
        """
        saved = super().state_dict()
        for group in saved["param_groups"]:
            for name in _OWN:
                group.pop(name, None)
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Go on from a saved state; masks and constraints stay.

        Parameters
        ----------
        state_dict : dict
            From `state_dict`, or that of ``torch.optim.AdamW``: options that it does not have
            stay as they are.

        Raises
        ------
        ValueError
            If state_dict has not the form of one, the number of parameter groups or of the
            parameters in one differs, an option is out of range, or is one of Adam's or AdamW's
            that there is none of here.  Nothing has been changed then.
        TypeError
            If state_dict or an option has the wrong type.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import SparseAdamW
        >>> optimizer = SparseAdamW([torch.nn.Parameter(torch.ones(2))])
        >>> optimizer.load_state_dict(optimizer.state_dict())
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict must be a dictionary, got {type(state_dict).__name__}")
        own = [{name: group[name] for name in _OWN} for group in self.param_groups]

        def complete(optimizer):
            _take_weights(optimizer)
            for group, kept in zip(optimizer.param_groups, own, strict=True):
                group.update(kept)

        # Last of the hooks that may change the state, and first of those that see the result.
        hooks = (
            self.register_load_state_dict_pre_hook(_prepared),
            self.register_load_state_dict_post_hook(complete, prepend=True),
        )
        try:
            super().load_state_dict(dict(state_dict))
        finally:
            for hook in hooks:
                hook.remove()


class _Held:
    """Weights of blocks that PyTorch does not round to the parameter's dtype."""

    def __init__(self, gamma):
        self.gamma = gamma


def _prepared(optimizer, state_dict):
    """A state to be loaded, checked, and completed by the options that AdamW does not have."""
    groups, states = state_dict.get("param_groups"), state_dict.get("state")
    if not isinstance(groups, list | tuple) or not isinstance(states, Mapping):
        raise ValueError('state_dict must have a list "param_groups" and a dictionary "state"')
    for group in groups:
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), list | tuple):
            raise ValueError('state_dict: each of the param_groups must have a list "params"')
    groups = [dict(group) for group in groups]
    # PyTorch says what is wrong with a number of groups that differs.
    for group, now in zip(groups, optimizer.param_groups, strict=False):
        own = {name: now[name] for name in ("params", *_OWN)}
        for name in optim._SAVED:
            group.setdefault(name, now[name])
        options = optim._checked(group | own)
        for name in _ELSEWHERE:
            if group.get(name):
                raise ValueError(f"state_dict: SparseAdamW has no {name}, got {group[name]}")
        if options.weight_decay > 0.0 and group.get("decoupled_weight_decay") is False:
            raise ValueError("state_dict: the weight decay of SparseAdamW is decoupled, as AdamW's")
    state = {}
    for key, saved in states.items():
        if not isinstance(saved, Mapping):
            raise ValueError(
                f"state_dict: the state of parameter {key} must be a dictionary, got {saved!r}"
            )
        state[key] = saved = dict(saved)
        if "step" in saved:
            saved["step"] = _count(saved["step"], key)
        if saved.get("gamma") is None:
            saved.pop("gamma", None)
        for name in ("exp_avg", "exp_avg_sq", "gamma"):
            if name in saved and not isinstance(saved[name], torch.Tensor | _Held):
                raise ValueError(
                    f"state_dict: {name} of parameter {key} must be a tensor, got {saved[name]!r}"
                )
        if isinstance(saved.get("gamma"), torch.Tensor):  # not where a hook loads a state itself
            saved["gamma"] = _Held(saved["gamma"])
    return {**state_dict, "state": state, "param_groups": groups}


def _count(step, key):
    """A number of steps, which AdamW keeps as a tensor."""
    try:
        count = int(step)
        whole = bool(count == step)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        whole = False
    if not whole:
        raise ValueError(f"state_dict: step of parameter {key} must be an integer, got {step!r}")
    if count < 0:
        raise ValueError(f"state_dict: step of parameter {key} must be >= 0, got {count}")
    return count


def _take_weights(optimizer):
    for p, state in optimizer.state.items():
        if isinstance(state.get("gamma"), _Held):
            gamma = state["gamma"].gamma
            state["gamma"] = gamma.to(p.device) if isinstance(p, torch.Tensor) else gamma


def _masks(mask, params, names, copy=False):
    """One boolean tensor or None for each parameter."""
    if mask is None:
        return [None] * len(params)
    if isinstance(mask, Mapping):
        places = {id(p): k for k, p in enumerate(params)}
        places |= {name: k for k, name in enumerate(names)}
        given, mask = mask, [None] * len(params)
        for key, one in given.items():
            place = places.get(key if isinstance(key, str) else id(key))
            if place is None:
                what = repr(key) if isinstance(key, str) else f"a {type(key).__name__}"
                raise ValueError(f"mask has an entry for {what}, which is none of the parameters")
            mask[place] = one
    if not isinstance(mask, list | tuple):
        raise TypeError(f"mask must be a dictionary or a list, got {type(mask).__name__}")
    if len(mask) != len(params):
        raise ValueError(
            f"mask must have one entry for each of the {len(params)} parameters, got {len(mask)}"
        )
    for k, (one, p) in enumerate(zip(mask, params, strict=True)):
        if one is None:
            continue
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"mask must hold tensors or None, got {type(one).__name__}")
        label = optim._label(names, k)
        if one.dtype is not torch.bool:
            raise TypeError(f"mask of {label} must be boolean, got {one.dtype}")
        if one.shape != p.shape:
            raise ValueError(
                f"mask of {label} must have its shape {tuple(p.shape)}, got {tuple(one.shape)}"
            )
    return [
        None if one is None else one.to(p.device, copy=copy).contiguous()
        for one, p in zip(mask, params, strict=True)
    ]


@torch.no_grad()
def _clear(group):
    """Zeros where a mask is False."""
    for p, kept in zip(group["params"], group["mask"], strict=True):
        if kept is not None:
            p.masked_fill_(~kept, 0)


def _span(t):
    """Addresses of the first byte of a tensor and of the one behind its last."""
    first = t.data_ptr()
    if not t.numel():
        return first, first
    reach = sum((side - 1) * stride for side, stride in zip(t.shape, t.stride(), strict=True))
    return first, first + (reach + 1) * t.element_size()


def _check_state(state, p):
    """Raise if a state has been loaded, or the data replaced, so that they don't fit."""
    for name in ("step", "exp_avg", "exp_avg_sq") if state else ():
        if name not in state:
            raise ValueError(f"the state of a parameter has {list(state)}, but no {name}")
        if name != "step" and state[name].shape != p.shape:
            raise ValueError(
                f"{name} in the state has the shape {tuple(state[name].shape)}, its parameter "
                f"{tuple(p.shape)}"
            )


def _fused(p):
    """Whether the kernels can take it."""
    return (
        p.device.type == "cpu"
        and p.dtype in (torch.float32, torch.float64)
        and p.grad.dtype is p.dtype
        and p.is_contiguous()
        and not p.is_neg()
    )


def _moments_are_bounded(p, grad, state, beta2):
    """Whether the moments stay finite in the parameter's dtype: from inf none comes back."""
    if not grad.numel():
        return True
    square = grad.to(_wide(grad)).square().mul_(1.0 - beta2)
    if state:
        square += beta2 * state["exp_avg_sq"]
    # NaN is the largest of all, and to look for that takes a tenth of the time of isfinite().
    top, high = grad.to(p.dtype).abs().amax(), square.to(p.dtype).amax()
    return bool(top.isfinite() & high.isfinite())


def _memory(grad):
    return grad.contiguous().resolve_neg().numpy()  # one entry is contiguous, negated or not


def _wide(p):
    """16-bit formats are computed in float32."""
    return torch.promote_types(p.dtype, torch.float32)


def _step(p, grad, state, options, gamma, kept):
    """The same step by PyTorch's AdamW and its operations."""
    # In the default dtype, which may have 16 bits, numbers above 256 would be rounded.
    count = torch.tensor(state["step"] - 1.0, dtype=torch.float64, device="cpu")
    adamw(
        [p], [grad.to(p.dtype)], [state["exp_avg"]], [state["exp_avg_sq"]], [],
        [count], foreach=False, amsgrad=False, beta1=options.betas[0], beta2=options.betas[1],
        lr=options.lr, weight_decay=options.weight_decay, eps=options.eps, maximize=False,
    )  # fmt: skip
    if kept is not None:
        for t in (p, state["exp_avg"], state["exp_avg_sq"]):
            t.masked_fill_(~kept, 0)
    threshold = options.lr * options.l1
    if threshold > 0.0:
        norms = _norms(p.to(_wide(p)), options.groups)
        # A tensor: a number would be multiplied by reciprocals of the norms, which may be inf.
        limit = norms.new_tensor(threshold) if gamma is None else threshold * gamma
        factors = torch.where(norms <= limit, 0.0, 1.0 - limit / norms)  # NaN stays
        p.mul_(_spread(factors, options.groups, p.shape)).add_(0.0)  # no −0


def _norms(a, groups, largest=False):
    """The norm of each block in the last two axes."""
    if groups == (1, 1) or a.dim() < 2:
        return a.abs()
    rows, columns = a.shape[-2:]
    height, width = _sides(groups, a.shape)
    padded = torch.nn.functional.pad(a, (0, -columns % width, 0, -rows % height))
    shape = (*a.shape[:-2], padded.shape[-2] // height, height, padded.shape[-1] // width, width)
    blocks = padded.reshape(shape).transpose(-3, -2).flatten(-2)
    top = blocks.abs().amax(-1)
    if largest:
        return top
    unit = torch.where((top > 0) & top.isfinite(), top, 1)  # squares may over- or underflow
    # vector_norm takes up to ten times as long, and adds up without care.
    return unit * (blocks / unit[..., None]).square_().sum(-1).sqrt_()


def _sides(groups, shape):
    """Height and width of a block, at most those of the matrix: what is padded takes memory."""
    return max(1, min(groups[0], shape[-2])), max(1, min(groups[1], shape[-1]))


def _spread(values, groups, shape):
    """Each block's value at all of its entries."""
    if groups == (1, 1) or len(shape) < 2:
        return values
    height, width = _sides(groups, shape)
    wide = values.repeat_interleave(height, -2).repeat_interleave(width, -1)
    return wide[..., : shape[-2], : shape[-1]]
