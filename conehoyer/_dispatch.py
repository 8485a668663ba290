"""Which kind of array came in: one in the host's memory, or one on a GPU."""

import sys
from typing import Any

import numpy as np


def on_device(x: Any) -> bool:
    """Whether x lies in the memory of a GPU; imports nothing."""
    if isinstance(x, np.ndarray):
        return False
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor") and isinstance(x, torch.Tensor):
        return bool(x.is_cuda)  # its interface raises where a gradient is wanted
    if type(x).__module__.startswith("numba.cuda.simulator."):
        return True
    return hasattr(x, "__cuda_array_interface__")
