"""Trained layers of PyTorch whose weights are block-sparse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.fx import Proxy
from torch.fx import _symbolic_trace as tracing

from . import blocksparse
from ._torch_compile import uncompiled

_KINDS = {4: torch.float32, 8: torch.float64}  # of a matrix, by the bytes of an entry


class BlockSparseLinear(torch.nn.Module):
    """A linear layer that multiplies with the nonzero blocks of its weights alone.

    Made by `from_linear`.  It runs on the CPU, in float32 or float64; its weights are fixed, but
    gradients pass through it to its input and its bias.  An input of another precision is
    computed in the wider of the two, and the result has the input's.

    Parameters
    ----------
    weight : BlockSparse
        The weights, outputs × inputs.
    bias : Tensor, optional
        The bias.

    See Also
    --------
    sparsify : Replace the layers of a model.

    Examples
    --------
    >>> import torch
    >>> from conehoyer.torch import BlockSparseLinear
    >>> dense = torch.nn.Linear(64, 32)
    >>> with torch.no_grad():
    ...     _ = dense.weight[:, 16:].zero_()
    >>> layer = BlockSparseLinear.from_linear(dense, (32, 1))
    >>> layer
    BlockSparseLinear(in_features=64, out_features=32, bias=True, block_shape=(32, 1), density=0.25)
    >>> x = torch.randn(10, 64)
    >>> torch.allclose(layer(x), dense(x), atol=1e-5)
    True
    """

    def __init__(self, weight: blocksparse.BlockSparse, bias: torch.Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(weight, blocksparse.BlockSparse):
            raise TypeError(f"weight must be a BlockSparse, got {type(weight).__name__}")
        if bias is not None and not isinstance(bias, torch.Tensor):
            raise TypeError(f"bias must be a tensor, got {type(bias).__name__}")
        if bias is not None and not bias.is_floating_point():
            raise TypeError(f"bias must be a real floating tensor, got {bias.dtype}")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias must have shape {weight.shape[:1]}, got {tuple(bias.shape)}")
        self.out_features, self.in_features = weight.shape
        self.matrix = weight
        self._dense: torch.Tensor | None = None
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone())

    @classmethod
    def from_linear(cls, module: torch.nn.Linear, block_shape: tuple[int, int]):
        """Make one from a trained layer.

        Parameters
        ----------
        module : torch.nn.Linear
            The layer; its weights are copied, those of 16 bits to float32.
        block_shape : tuple of int
            Rows (outputs) and columns (inputs) of a block; none is stored larger than the weights.

        Returns
        -------
        BlockSparseLinear
            A layer with the same weights.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import BlockSparseLinear
        >>> BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2)).matrix.n_blocks
        8
        """
        if not isinstance(module, torch.nn.Linear):
            raise TypeError(f"module must be a torch.nn.Linear, got {type(module).__name__}")
        return cls._like(module, blocksparse.compress(_weights(module), block_shape))

    @classmethod
    def _like(cls, module, matrix):
        """One with these weights, and the rest from a trained layer."""
        layer = cls(matrix)
        if module.bias is not None:
            bias = module.bias.detach().to("cpu", _KINDS[matrix.dtype.itemsize], copy=True)
            layer.bias = torch.nn.Parameter(bias, requires_grad=module.bias.requires_grad)
        return layer.train(module.training)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply.

        Parameters
        ----------
        x : Tensor, shape (..., in_features)
            The input, real and floating, on the CPU.

        Returns
        -------
        Tensor, shape (..., out_features)
            ``x @ weight.T + bias``.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import BlockSparseLinear
        >>> layer = BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
        >>> layer(torch.ones(3, 8)).shape
        torch.Size([3, 4])
        """
        if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
            refuse_proxy(x)
            got = x.layout if isinstance(x, torch.Tensor) else type(x).__name__
            raise TypeError(f"x must be a dense tensor, got {got}")
        if x.device.type != "cpu":
            raise RuntimeError(f"BlockSparseLinear runs on the CPU, got a tensor on {x.device}")
        require_plain(x, "x")
        if x.is_nested:  # as a TransformerEncoder passes sequences with padding
            return torch.nested.as_nested_tensor([self(part) for part in x.unbind()])
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x must have shape (..., {self.in_features}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must be a real floating tensor, got {x.dtype}")
        bias = self.bias
        if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
            if bias is not None:
                require_plain(bias, "bias")
            return _product(x, bias, self.matrix)  # the other way costs some µs
        return _Product.apply(x, bias, self.matrix)  # which raises by itself for such a bias

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_dense": None}  # made again when asked for

    @property
    def block_shape(self) -> tuple[int, int]:
        """Height and width of a block, at most those of the weights."""
        return self.matrix.block_shape

    @property
    def weight(self) -> torch.Tensor:
        """The dense weights, made when somebody asks.

        ``torch.nn.TransformerEncoderLayer`` asks for them to decide whether it may pass its
        layers by; a tensor of another class says that it may not.  They are a copy: writing into
        them does not change the layer.
        """
        if self._dense is None:
            with torch.inference_mode(False):  # it is kept, and may be part of a graph later
                self._dense = torch.from_numpy(self.matrix.to_dense()).as_subclass(_Dense)
        return self._dense

    def extra_repr(self) -> str:
        """What `repr` shows.

        Returns
        -------
        str
            Sizes, shape of the blocks, and the part of them that is kept.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import BlockSparseLinear
        >>> BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2)).extra_repr()
        'in_features=8, out_features=4, bias=True, block_shape=(2, 2), density=1'
        """
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, block_shape={self.block_shape}, "
            f"density={self.matrix.density:.3g}"
        )

    def get_extra_state(self) -> dict[str, torch.Tensor]:
        """The blocks and their places, for ``state_dict``.

        Returns
        -------
        dict of str to Tensor
            What `set_extra_state` takes.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import BlockSparseLinear
        >>> layer = BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
        >>> layer.get_extra_state()["blocks"].shape
        torch.Size([8, 2, 2])
        """
        pattern = self.matrix.pattern
        arrays = {
            "blocks": self.matrix.blocks(), "indices": pattern.indices, "indptr": pattern.indptr
        }  # fmt: skip
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def set_extra_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take the blocks and their places, for ``load_state_dict``.

        Parameters
        ----------
        state : dict of str to Tensor
            From `get_extra_state` of a layer of the same size; its pattern may be another.

        Raises
        ------
        ValueError
            If they describe no matrix of this size.

        Examples
        --------
        >>> import torch
        >>> from conehoyer.torch import BlockSparseLinear
        >>> layer = BlockSparseLinear.from_linear(torch.nn.Linear(8, 4), (2, 2))
        >>> layer.set_extra_state(layer.get_extra_state())
        """
        names = "blocks", "indices", "indptr"
        held = dict(state) if isinstance(state, Mapping) else {}
        if not all(_is_dense(held.get(name)) for name in names):
            raise ValueError(f"state must hold the tensors {', '.join(names)}, got {list(held)}")
        blocks, indices, indptr = (_array(held[name]) for name in names)
        shape = self.out_features, self.in_features
        matrix = blocksparse._from_arrays("state", blocks, indices, indptr, shape, blocks.shape[1:])
        self.matrix, self._dense = matrix.astype(self.matrix.dtype), None

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        kind = fn(torch.empty(0, dtype=_KINDS[self.matrix.dtype.itemsize])).dtype
        if kind in (torch.float32, torch.float64):
            self.matrix, self._dense = self.matrix.astype(str(kind).removeprefix("torch.")), None
        return self


class _Dense(torch.Tensor):
    """A tensor that is no plain one; copies of it and what is computed with it are."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo):
        return self.detach().clone()

    def __reduce_ex__(self, protocol):
        return self.detach().__reduce_ex__(protocol)


class _Product(torch.autograd.Function):
    """x·Wᵀ + bias, and its gradients g·W and Σg, which are differentiable in g."""

    @staticmethod
    def forward(ctx, x, bias, weight):
        ctx.weight = weight
        return _product(x, bias, weight)

    @staticmethod
    def backward(ctx, g):
        to_x, to_bias, _ = ctx.needs_input_grad
        require_plain(g, "the gradient of the result")
        multiply = _Product.apply if torch.is_grad_enabled() else _product  # create_graph=True
        of_x = multiply(g, None, ctx.weight.T) if to_x else None
        of_bias = _rows(g).sum(0, dtype=_wider(g, ctx.weight)) if to_bias else None
        return of_x, of_bias, None


def _product(x, bias, weight):
    """x·Wᵀ + bias, of which nothing is copied where x is contiguous."""
    kind = _wider(x, weight)
    rows = _in(kind, _rows(x.detach())).contiguous().resolve_neg()
    result = torch.empty((*x.shape[:-1], weight.shape[0]), dtype=kind, device="cpu")
    if bias is not None:
        bias = _in(kind, bias.detach()).resolve_neg().numpy()
    weight.matmul(rows.numpy().T, bias=bias, out=_rows(result).numpy().T)
    return _in(x.dtype, result)


def require_plain(t, name, tangents=False):
    """Raise for a tensor of torch.func, and for one with a tangent unless `tangents`.

    And for what records calls, which would take the result for a constant.
    """
    if torch.jit.is_tracing():
        raise NotImplementedError("torch.jit.trace cannot record this call: use torch.compile")
    if _is_recorded(t):
        raise NotImplementedError(_UNRECORDED)
    if is_functorch_wrapped_tensor(t):  # it has no memory to lend
        raise NotImplementedError(
            f"{name} must be a plain tensor, got one of a transform of torch.func (vmap, grad, "
            "jvp, ...), which cannot pass through here"
        )
    # Outside of a dual level, where nearly every call is, asking the tensor would cost too much.
    if tangents or getattr(forward_ad, "_current_level", 0) < 0:
        return
    # In inference mode PyTorch itself ignores tangents.
    if not torch.is_inference_mode_enabled() and forward_ad.unpack_dual(t).tangent is not None:
        raise NotImplementedError(
            f"{name} has a tangent, but there is no forward-mode derivative (jvp): use "
            "backward(), or pass the primal alone"
        )


_UNRECORDED = (
    "torch.fx cannot record this call (symbolic_trace, make_fx, torch.export): use torch.compile"
)


def _is_recorded(t):
    """Whether make_fx records, which torch.export uses as well, or the tensor has no values.

    The flag stands for all threads, and is cheap to read; the mode is that of this thread.
    """
    if getattr(tracing, "_is_fx_tracing_flag", True):
        proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
        if proxies is not None and proxies.get_innermost_proxy_mode() is not None:
            return True
    if type(t) is torch.Tensor:
        return False
    fakes = sys.modules.get("torch._subclasses.fake_tensor")
    return fakes is not None and isinstance(t, fakes.FakeTensor)


def refuse_proxy(x):
    """Raise for what ``torch.fx.symbolic_trace`` calls functions with."""
    if isinstance(x, Proxy):
        raise NotImplementedError(_UNRECORDED)


def _rows(x):
    """As a matrix; its sides may be 0."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _in(kind, t):
    return t if t.dtype is kind else t.to(kind)


def _wider(x, weight):
    kind = _KINDS[weight.dtype.itemsize]
    return kind if x.dtype is kind else torch.promote_types(x.dtype, kind)


def _is_dense(t):
    return isinstance(t, torch.Tensor) and t.layout is torch.strided


def _array(t):
    """A tensor as an array, floating formats of 16 bits as float32."""
    wide = torch.promote_types(t.dtype, torch.float32) if t.is_floating_point() else t.dtype
    return t.detach().cpu().to(wide).resolve_neg().numpy()


def sparsify(
    model: torch.nn.Module,
    layers: Iterable[str] | Callable[[str, torch.nn.Linear], bool] | None = None,
    *,
    block_shape: tuple[int, int] = (32, 1),
    keep: float | None = None,
) -> torch.nn.Module:
    """Replace linear layers of a trained model by block-sparse ones, in place.

    A layer that the model uses in several places is replaced in all of those that are chosen, by
    one layer.  The old layers are left as they are, and with them a weight that a layer shares
    with another module, such as an embedding.  Classes that are derived from ``torch.nn.Linear``
    and have a ``forward`` of their own do not count as linear layers.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    layers : iterable of str or callable, optional
        Names of layers, as ``named_modules`` gives them, or a function of name and layer that
        says whether to replace it; by default all linear layers.  Those that
        ``torch.nn.MultiheadAttention`` reads itself (``out_proj``) do not count.
    block_shape : tuple of int, default (32, 1)
        Rows (outputs) and columns (inputs) of a block.
    keep : float or int, optional
        Prune the weights first, see `conehoyer.blocksparse.prune`; by default the zeros are
        those that the weights have.

    Returns
    -------
    torch.nn.Module
        The model; the new layer if it is a linear layer itself.

    Raises
    ------
    ValueError
        If a name is not that of a linear layer, keep is out of range for one, or a hook makes its
        weights (``torch.nn.utils.prune``, ``torch.nn.utils.weight_norm``); the model has not been
        changed then.
    TypeError
        If an argument has the wrong type.

    See Also
    --------
    BlockSparseLinear : What takes their place.

    Notes
    -----
    A new layer takes over the weights, the bias and the mode (training or not) alone.  Hooks of
    the old one (``register_forward_hook`` and its kind) are not taken over: register them again.
    Weights that come from ``torch.nn.utils.parametrize``, as those of
    ``torch.nn.utils.parametrizations.weight_norm``, are taken at the values that they have.

    Examples
    --------
    >>> import torch
    >>> from conehoyer.torch import sparsify
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 2))
    >>> sparsify(model, ["0"], block_shape=(16, 1), keep=0.1)[0].matrix.density
    0.1015625
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if not (layers is None or callable(layers) or isinstance(layers, Iterable)):
        raise TypeError(f"layers must be names of layers or a function, got {layers!r}")
    linear = {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, torch.nn.Linear)
        and type(module).forward is torch.nn.Linear.forward  # it does nothing else
        and "forward" not in vars(module)
        and not isinstance(module, torch.nn.modules.linear.NonDynamicallyQuantizableLinear)
    }
    if layers is None:
        chosen = list(linear)
    elif callable(layers):
        chosen = [name for name, module in linear.items() if layers(name, module)]
    else:
        chosen = [layers] if isinstance(layers, str) else list(layers)
        unknown = [name for name in chosen if name not in linear]
        if unknown:
            raise ValueError(f"layers: {unknown[0]!r} is no linear layer of the model")
    new: dict[torch.nn.Module, BlockSparseLinear] = {}
    for name in chosen:
        if linear[name] not in new:
            try:
                new[linear[name]] = _replacement(linear[name], block_shape, keep)
            except ValueError as error:
                error.add_note(f"in layer {name!r}")
                raise
    if "" in chosen:
        return new[linear[""]]
    places = [name.rpartition(".") for name in chosen]
    parents = [model.get_submodule(parent) for parent, _, _ in places]  # some may be replaced, too
    for name, parent, (_, _, last) in zip(chosen, parents, places, strict=True):
        setattr(parent, last, new[linear[name]])
    return model


def _weights(module):
    """The weights of a linear layer as an array."""
    if "weight" in vars(module) and module._forward_pre_hooks:  # a copy, maybe an old one
        raise ValueError(
            "the layer's weight is made by a hook, as torch.nn.utils.prune and "
            "torch.nn.utils.weight_norm do: make it a parameter first, by prune.remove or "
            "remove_weight_norm"
        )
    return _array(module.weight)


def _replacement(module, block_shape, keep):
    weights = _weights(module)
    if keep is not None:
        weights = blocksparse.prune(weights, block_shape, keep)
    return BlockSparseLinear._like(module, blocksparse.compress(weights, block_shape))
