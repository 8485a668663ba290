"""Which kind of array came in: one in the host's memory, one on a GPU, or a torch tensor."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

_F = TypeVar("_F", bound=Callable[..., Any])
_INTERFACE = "__cuda_array_interface__"


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor of torch; imports nothing."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(x, torch.Tensor)


def on_device(x: Any) -> bool:
    """Whether x lies in the memory of a GPU; imports nothing."""
    if isinstance(x, np.ndarray):
        return False
    if is_tensor(x):
        return bool(x.is_cuda)  # its interface raises where a gradient is wanted
    if type(x).__module__.startswith("numba.cuda.simulator."):
        return True
    # A tracer's proxy has any attribute; an array of the host may have a property that raises.
    return hasattr(type(x), _INTERFACE) and hasattr(x, _INTERFACE)


def takes_tensors(function: _F) -> _F:
    """Let a public function, whose data is its parameter x, take torch tensors as well.

    Neither torch nor what serves it is imported before a tensor comes in.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        # Every call passes here: two branches without keywords, and no tuple built anew.
        if args and type(args[0]) is np.ndarray:
            return function(*args, **options) if options else function(*args)
        if not _of_torch(args[0] if args else options.get("x")):
            return function(*args, **options)
        from . import torch as tensors

        if not args:
            args = (options.pop("x"),)
        return tensors.call(function, *args, options=options)

    return call  # type: ignore[return-value]


def _of_torch(x: Any) -> bool:
    """Whether x is a tensor, what stands for one in torch.fx, or a list with one in it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "Tensor"):  # the latter while it is being imported
        return False
    fx: Any = sys.modules.get("torch.fx")
    kinds = (torch.Tensor, fx.Proxy) if hasattr(fx, "Proxy") else torch.Tensor
    if isinstance(x, list | tuple):
        return any(isinstance(part, kinds) for part in x)
    if isinstance(x, kinds):
        return True
    nn: Any = sys.modules.get("torch.nn")
    return hasattr(nn, "ParameterList") and isinstance(x, nn.ParameterList) and len(x) > 0
