"""PyTorch tensors: into the functions of this library, out of them, and gradients back.

The public functions call this module by themselves when they get a tensor.  A tensor on the
CPU lends its memory to a NumPy array; one on a GPU is taken by the kernels there.
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":  # PyTorch is there, and something that it needs is not
        raise
    raise ImportError("conehoyer.torch needs PyTorch: pip install 'conehoyer[torch]'") from error
from torch.autograd.graph import increment_version

from . import _checks, _vjp, _vjp_kernels
from ._torch_compile import uncompiled
from ._torch_layers import BlockSparseLinear, refuse_proxy, require_plain, sparsify
from ._torch_optim import SparseAdamW
from .bilevel import RADII

__all__ = ["BlockSparseLinear", "SparseAdamW", "sparsify"]

_NO_GRADIENT = {"level_for_nnz", "level_for_groups"}  # their results are parameters
_OF_LISTS = {"project_gsp", "gsp_score"}  # each array of a list is a vector
_LISTS = (list, tuple, torch.nn.ParameterList)


@uncompiled
def call(function: Callable, x: Any, *args: Any, options: dict) -> Any:
    """Call a public function with a tensor, or a list of tensors, as its data."""
    name, several = function.__name__, isinstance(x, _LISTS)
    parts = list(x) if several else [x]
    for i, part in enumerate(parts):
        own = f"x[{i}]" if several else "x"
        _check(part, own)
        require_plain(part, own, tangents=name in _NO_GRADIENT)
    if several and (name not in _OF_LISTS or not any(t.dim() for t in parts)):
        parts, several = [torch.stack(parts)], False  # one array, as NumPy would make of them
    out = options.pop("out", None)
    goals = _goals(out, several, len(parts))
    recording = torch.is_grad_enabled() and name not in _NO_GRADIENT
    wanted = recording and any(t.requires_grad for t in parts)
    if out is not None and recording and (wanted or any(t.requires_grad for t in goals)):
        raise RuntimeError(
            "out= has no gradient, but a tensor requires one: call under torch.no_grad(), or "
            "without out"
        )
    if wanted and options.get("overwrite_x"):
        if any(t.is_leaf and t.requires_grad for t in parts):
            raise RuntimeError(
                "a leaf tensor that requires a gradient cannot be overwritten: call under "
                "torch.no_grad(), or without overwrite_x"
            )
        options["overwrite_x"] = False  # y is needed for the gradient
    if wanted and name == "nmf_hals":
        raise RuntimeError("nmf_hals has no gradient, but x requires one: pass x.detach()")
    names = function.__code__.co_varnames[1:]  # of the parameters after x
    args = tuple(_parameter(value, own) for value, own in zip(args, names, strict=False))
    options = {own: _parameter(value, own) for own, value in options.items()}
    job = _Job(function, several, goals, args, options)
    if wanted:
        results = _Recorded.apply(job, *parts)
    else:
        results = job.run(parts)
    if out is not None:
        result = out
    else:
        result = list(results) if job.listed else results[0]
    return (result, job.info) if options.get("full_output") else result


# --- tensors as arrays -------------------------------------------------------------------


def _check(t, name):
    """Raise unless the data can be taken."""
    refuse_proxy(t)
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"{name} must be a tensor as the others are, got {type(t).__name__}")
    if t.is_nested:
        raise TypeError(f"{name} must not be a nested tensor: pass its tensors one by one")
    if t.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got {t.layout}: pass {name}.to_dense()")
    if t.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name} must lie on the CPU or a CUDA device, got {t.device}")
    if t.is_complex():  # lazily conjugated, NumPy would not even tell its dtype
        raise TypeError(_no_real(t, name))


def _no_real(t, name):
    return f"{name} must have a real floating, integer or boolean dtype, got {t.dtype}"


def _goals(out, several, count):
    """The tensors of `out`."""
    if out is None:
        return [None] * count
    if several and not isinstance(out, _LISTS):
        raise TypeError(f"out must be a list of tensors as x is, got {type(out).__name__}")
    goals = list(out) if several else [out]
    if len(goals) != count:
        raise ValueError(f"out must have as many tensors as x, {count}, got {len(goals)}")
    for t in goals:
        _check(t, "out")
        if _checks.shares_memory(t.shape, t.stride(), 1):
            raise ValueError(f"out must have memory for each entry, got strides {t.stride()}")
        if t.is_neg():  # NumPy would write the values with the wrong sign
            raise ValueError("out must not be a lazily negated view, as z.conj().imag is")
        require_plain(t, "out")
    return goals


_BITS = importlib.util.find_spec("ml_dtypes") is not None


def _array(t, name):
    """The memory of a tensor on the CPU as a NumPy array; a tensor on a GPU as it is."""
    t = t.detach()
    if t.is_cuda:
        return t
    if t.dtype is not torch.bfloat16:
        try:
            return t.numpy()
        except TypeError:  # NumPy has no such dtype
            raise TypeError(_no_real(t, name)) from None
    if not _BITS:
        return t.float().numpy()
    import ml_dtypes

    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _tensor(value):
    """What a function returned, as a tensor."""
    if isinstance(value, torch.Tensor) or value is None:
        return value
    array = np.asarray(value)
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # a name takes 4 µs to make
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _parameter(value, name):
    """A keyword or a parameter as the functions take it; through a tensor flows no gradient."""
    if value is None or type(value) in (float, int, bool, str):  # the usual cases, told quickly
        return value
    refuse_proxy(value)
    if isinstance(value, torch.Tensor):
        if value.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient, and only x gets one: pass {name}.detach()"
            )
        _check(value, name)
        require_plain(value, name)
        if value.is_neg():
            value = value.resolve_neg()
        return _array(value.float() if value.dtype is torch.bfloat16 else value, name)
    if name == "init" and isinstance(value, (list, tuple)):
        return tuple(_parameter(part, f"{name}[{i}]") for i, part in enumerate(value))
    if name == "callback" and callable(value):
        return lambda iteration, state: value(iteration, _report(state))
    return value


def _report(info):
    """A report whose numbers and arrays are tensors; the scalars of the host stay there."""
    changes = {
        field.name: _tensor(getattr(info, field.name))
        for field in dataclasses.fields(info)
        if isinstance(getattr(info, field.name), (np.ndarray, np.generic))
    }
    return dataclasses.replace(info, **changes)


# --- the call ----------------------------------------------------------------------------


class _Job:
    """One call: a public function, its parameters, and where the results go."""

    def __init__(self, function, several, goals, args, options):
        self.function, self.name = function, function.__name__
        self.several, self.goals, self.args, self.options = several, goals, args, options
        self.listed = several and self.name == "project_gsp"  # so is the result
        self.info = None

    def run(self, parts, report=False):
        """The results, tensors without a gradient; fills in `info`."""
        rounded = not _BITS and any(t.dtype is torch.bfloat16 and not t.is_cuda for t in parts)
        options = dict(self.options)
        written = [t for t in self.goals if t is not None]
        names = [f"x[{i}]" for i in range(len(parts))] if self.several else ["x"]
        arrays = [_array(t.resolve_neg(), own) for t, own in zip(parts, names, strict=True)]
        if written and not rounded:
            goals = [_array(t, "out") for t in self.goals]
            options["out"] = goals if self.several else goals[0]
        if report and not options.get("full_output"):
            options["full_output"] = RADII
        if options.get("overwrite_x"):
            written = [*written, *parts]
        try:
            answer = self.function(arrays if self.several else arrays[0], *self.args, **options)
        finally:
            for t in written:  # as autograd expects of whoever writes
                if not t.is_inference():
                    increment_version(t)
        if self.name == "nmf_hals":
            return [_report(answer)]
        if options.get("full_output"):
            answer, self.info = answer[0], _report(answer[1])
        results = [_tensor(value) for value in (answer if self.listed else [answer])]
        if rounded and self.name.startswith("project_"):
            results = [r.to(t.dtype) for r, t in zip(results, parts, strict=True)]
            for t, r in zip(self.goals, results, strict=True):
                if t is None:
                    continue
                if t.shape != r.shape or t.dtype != r.dtype:
                    raise ValueError(
                        f"out must have the result's shape {tuple(r.shape)} and dtype {r.dtype}, "
                        f"got {tuple(t.shape)} and {t.dtype}"
                    )
                t.copy_(r)
        if options.get("overwrite_x"):
            results = [
                t if t.data_ptr() == r.data_ptr() else r
                for t, r in zip(parts, results, strict=True)
            ]
        return results


class _Recorded(torch.autograd.Function):
    """A call that autograd knows of."""

    @staticmethod
    def forward(ctx, job, *parts):
        grouped = job.name in ("project_bilevel", "project_l1inf_ball")
        results = job.run(parts, report=grouped)
        ctx.job, ctx.count = job, len(parts)
        if grouped:  # the labels may be changed before the gradient is asked for
            job.options["groups"] = _vjp.held(job.options.get("groups", "columns"))
        radii = [_tensor(job.info.radii)] if grouped else []
        scores = job.name in _SCORES or job.name == "gsp_score"  # they may be changed in place
        ctx.save_for_backward(*parts, *([] if scores else results), *radii)
        return tuple(results)

    @staticmethod
    def backward(ctx, *gradients):
        saved = ctx.saved_tensors  # asked once: a checkpoint unpacks them no second time
        parts, results = saved[: ctx.count], saved[ctx.count :]
        if torch.is_grad_enabled():  # create_graph=True
            return None, *_Pulled.apply(ctx.job, results, ctx.count, *parts, *gradients)
        return None, *_pull(ctx.job, gradients, parts, results)


class _Pulled(torch.autograd.Function):
    """The gradients of a call, which have no gradient themselves.

    `once_differentiable` would say so only to a ``backward()`` that goes to all leaves, as its
    graph does not reach the inputs.
    """

    @staticmethod
    def forward(ctx, job, results, count, *tensors):
        ctx.name = job.name
        return tuple(_pull(job, tensors[count:], tensors[:count], results))

    @staticmethod
    def backward(ctx, *gradients):
        raise RuntimeError(
            f"{ctx.name} has no second derivative: its gradient cannot be differentiated, as "
            "hessian, hvp and jvp of torch.autograd.functional do"
        )


# --- gradients ---------------------------------------------------------------------------


def _pull(job, gs, ys, xs):
    """The gradients of the inputs ys, from those of the results xs.

    16-bit formats are computed in float32, as the projections are.
    """
    gs = [g if g.layout is torch.strided else g.to_dense() for g in gs]  # from an embedding
    lifted = [torch.promote_types(y.dtype, torch.float32) for y in ys]
    dtypes = [y.dtype for y in ys]
    ys = [y.to(d) for y, d in zip(ys, lifted, strict=True)]
    if job.name == "gsp_score":
        results = _of_gsp_score(job, gs[0], ys)
    elif job.name in _SCORES:
        results = [_of_score(job, gs[0].to(lifted[0]), ys[0])]
    else:
        gs = [g.to(d) for g, d in zip(gs, lifted, strict=True)]
        radii = xs[len(ys) :]
        xs = [x.to(d) for x, d in zip(xs, lifted, strict=False)]
        if radii:
            results = [_of_groups(job, gs[0], xs[0], ys[0], radii[0])]
        elif job.name == "project_gsp":
            results = _of_gsp(job, gs, xs, ys)
        else:
            results = [_of_vectors(job, gs[0], xs[0], ys[0])]
    return [r.to(d) for r, d in zip(results, dtypes, strict=True)]


def _last(t, axis):
    """The axis of the slices as the last one; None takes everything as one slice."""
    return t.reshape(-1) if axis is None else t.movedim(axis, -1)


def _back(t, axis, shape):
    return t.reshape(shape) if axis is None else t.movedim(-1, axis)


def _of_vectors(job, g, x, y):
    options, axis = job.options, job.options.get("axis", -1)
    nonneg = bool(options.get("nonneg", False))
    shape, keeps_norm = y.shape, options.get("l2") is None
    if _vjp_kernels.serves(g, x, y):
        return _vjp_kernels.vectors(
            job.name, g, x, y, axis, nonneg, keeps_norm, options.get("workers")
        )
    g, x, y = (_last(t, axis) for t in (g, x, y))
    if job.name == "project_simplex":
        result = _vjp.centred(g, x)
    elif job.name == "project_l1_ball":
        result = _vjp.ball(g, x, y, nonneg)
    elif job.name == "project_cai":
        result = _vjp.cone(g, x, y, nonneg)
    else:
        result = _vjp.hoyer(g, x, y, keeps_norm)
    return _back(result, axis, shape)


def _of_gsp(job, gs, xs, ys):
    axis = None if job.listed else job.options.get("axis", -1)
    shapes = [y.shape for y in ys]
    if _vjp_kernels.serves(*gs, *xs, *ys):
        return _vjp_kernels.gsp(gs, xs, ys, axis, job.options.get("workers"))
    gs, xs, ys = ([_last(t, axis) for t in part] for part in (gs, xs, ys))
    results = _vjp.gsp(gs, xs, ys)
    return [_back(r, axis, shape) for r, shape in zip(results, shapes, strict=True)]


def _of_groups(job, g, x, y, radii):
    if y.numel() == 0:
        return g
    options, shape = job.options, y.shape
    exact = job.name == "project_l1inf_ball"
    bounds_sum, feasible = options.get("radius") is not None, options.get("feasible", False)
    inner = options.get("inner", "linf")
    if _vjp_kernels.serves(g, x, y):
        inner = "exact" if exact else inner
        given = options["groups"], inner, bounds_sum, bool(feasible), options.get("workers")
        return _vjp_kernels.groups(g, x, y, radii, *given).reshape(shape)
    partition = _vjp.Partition(options["groups"], shape, y.device)
    g, x, y = (partition.matrices(t) for t in (g, x, y))
    u = partition.values(radii, len(y))
    if exact:
        return _vjp.l1inf(g, x, y, u, partition).reshape(shape)
    if bounds_sum:
        outer = _vjp.outer_ball
    else:
        outer = _vjp.outer_within if feasible else _vjp.scaled_cone
    return _vjp.bilevel(g, x, y, u, partition, inner, outer).reshape(shape)


_SCORES = {
    "cai_score": lambda g, y: _vjp.ratio(g, y, torch.ones_like(y), squared=True),
    "hoyer_score": lambda g, y: _vjp.ratio(g, y, y.sign(), squared=True),
    "hoyer_sparseness": _vjp.sparseness,
}


def _of_score(job, g, y):
    axis, shape = job.options.get("axis", -1), y.shape
    if y.numel() == 0:
        return torch.zeros_like(y)
    if _vjp_kernels.serves(g, y):
        return _vjp_kernels.score(job.name, g, y, axis, job.options.get("workers"))
    if axis is None:
        g = g.reshape(1)
    else:
        g = g.movedim(axis, -1) if job.options.get("keepdims", False) else g.unsqueeze(-1)
    return _back(_SCORES[job.name](g, _last(y, axis)), axis, shape)


def _of_gsp_score(job, g, ys):
    axis = None if job.several else job.options.get("axis", -1)
    results = []
    for y in ys:
        if y.numel() == 0:
            results.append(torch.zeros_like(y))
            continue
        z = _last(y, axis)
        count = len(ys) if job.several else z.numel() // z.shape[-1]
        share = (g.reshape(()).to(y.dtype) / count).expand(*z.shape[:-1], 1)
        if _vjp_kernels.serves(share, y):
            given = "hoyer_sparseness", share, y, axis, job.options.get("workers")
            results.append(_vjp_kernels.score(*given))
            continue
        results.append(_back(_vjp.sparseness(share, z), axis, y.shape))
    return results
