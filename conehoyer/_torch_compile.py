"""What ``torch.compile`` is to leave alone."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])


def uncompiled(function: _F) -> _F:
    """Let ``torch.compile`` call a function as it is: it does not get through Numba's dispatcher.

    ``torch.compiler.disable`` does that, but imports the compiler, which takes seconds.  So that
    waits until somebody else has imported it.
    """
    hidden: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal hidden
        if hidden is None and "torch._dynamo" in sys.modules:
            hidden = torch.compiler.disable(function)
        return (hidden or function)(*args, **options)

    return call  # type: ignore[return-value]
