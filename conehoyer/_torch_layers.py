"""Trained layers of PyTorch whose weights are block-sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from . import blocksparse


class BlockSparseLinear(torch.nn.Module):
    """A linear layer that multiplies with the nonzero blocks of its weights alone.

    Made by `from_linear`.  It runs on the CPU, in float32 or float64; its weights are fixed, but
    gradients pass through it to its input and its bias.

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
            The layer; its weights are copied.
        block_shape : tuple of int
            Rows (outputs) and columns (inputs) of a block.

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
        weight = module.weight.detach().cpu()
        if weight.dtype not in (torch.float32, torch.float64):
            weight = weight.float()
        bias = None if module.bias is None else module.bias.detach().cpu().to(weight.dtype)
        layer = cls(blocksparse.compress(weight.numpy(), block_shape), bias)
        return layer.train(module.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply.

        Parameters
        ----------
        x : Tensor, shape (..., in_features)
            The input, on the CPU.

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
        if x.device.type != "cpu":
            raise RuntimeError(f"BlockSparseLinear runs on the CPU, got a tensor on {x.device}")
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x must have shape (..., {self.in_features}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"x must be a real floating tensor, got {x.dtype}")
        return _Product.apply(x, self.bias, self.matrix)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_dense": None}  # made again when asked for

    @property
    def block_shape(self) -> tuple[int, int]:
        """Height and width of a block."""
        return self.matrix.block_shape

    @property
    def weight(self) -> torch.Tensor:
        """The dense weights, made when somebody asks.

        ``torch.nn.TransformerEncoderLayer`` asks for them to decide whether it may pass its
        layers by; a tensor of another class says that it may not.
        """
        if self._dense is None:
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
        blocks, indices, indptr = (state[name].numpy() for name in ("blocks", "indices", "indptr"))
        shape = self.out_features, self.in_features
        matrix = blocksparse._from_arrays(blocks, indices, indptr, shape, blocks.shape[1:], "state")
        self.matrix, self._dense = matrix.astype(self.matrix.dtype), None

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        kind = fn(torch.empty(0, dtype=getattr(torch, self.matrix.dtype.name))).dtype
        if kind in (torch.float32, torch.float64):
            self.matrix, self._dense = self.matrix.astype(str(kind).removeprefix("torch.")), None
        return self


class _Dense(torch.Tensor):
    """A tensor that is no plain one."""


class _Product(torch.autograd.Function):
    """x·Wᵀ + bias, of which nothing is copied where x is contiguous; its gradients g·W and Σg."""

    @staticmethod
    def forward(ctx, x, bias, weight):
        ctx.weight = weight
        if bias is not None:
            bias = bias.detach().to(getattr(torch, weight.dtype.name)).numpy()
        return _multiply(
            x, weight, weight.shape[0], lambda rows: weight.matmul(rows.T, bias=bias).T
        )

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        to_x, to_bias, _ = ctx.needs_input_grad
        weight = ctx.weight
        of_x = _multiply(g, weight, weight.shape[1], lambda rows: rows @ weight) if to_x else None
        return of_x, g.reshape(-1, g.shape[-1]).sum(0) if to_bias else None, None


def _multiply(x, weight, width, product):
    kind = getattr(torch, weight.dtype.name)
    rows = x.detach().reshape(-1, x.shape[-1]).to(kind).contiguous().numpy()
    result = torch.from_numpy(np.ascontiguousarray(product(rows)))
    return result.reshape(*x.shape[:-1], width).to(x.dtype)


def sparsify(
    model: torch.nn.Module,
    layers: Iterable[str] | Callable[[str, torch.nn.Linear], bool] | None = None,
    *,
    block_shape: tuple[int, int] = (32, 1),
    keep: float | None = None,
) -> torch.nn.Module:
    """Replace linear layers of a trained model by block-sparse ones, in place.

    Parameters
    ----------
    model : torch.nn.Module
        The model.
    layers : iterable of str or callable, optional
        Names of layers, as ``named_modules`` gives them, or a function of name and layer that
        says whether to replace it; by default all linear layers.
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
        If a name is not that of a linear layer.

    See Also
    --------
    BlockSparseLinear : What takes their place.

    Examples
    --------
    >>> import torch
    >>> from conehoyer.torch import sparsify
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 2))
    >>> sparsify(model, ["0"], block_shape=(16, 1), keep=0.1)[0].matrix.density
    0.1015625
    """
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
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
    for name in chosen:
        module = linear[name]
        if keep is not None:
            with torch.no_grad():
                w = module.weight.detach().cpu().float().numpy()
                pruned = blocksparse.prune(w, block_shape, keep)
                module.weight.masked_fill_(
                    torch.from_numpy(pruned == 0).to(module.weight.device), 0
                )
        new = BlockSparseLinear.from_linear(module, block_shape)
        if not name:
            return new
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, new)
    return model
