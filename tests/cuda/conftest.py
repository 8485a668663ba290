"""These tests run on a GPU, or in Numba's simulator with NUMBA_ENABLE_CUDASIM=1.

They want a process of their own: ``NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/cuda``, or
``CONEHOYER_TEST_CUDA=1 python -m pytest tests/cuda`` where there is a GPU.
"""

import os
import sys
import threading

import numpy as np
import pytest

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
WANTED = SIMULATED or os.environ.get("CONEHOYER_TEST_CUDA", "0") == "1"


def mend_simulator():
    """Switch threads often, and make shared arrays without a race.

    The simulator's main thread polls the others: it is seven times as fast as with the usual
    5 ms. It also lets two threads that come at once make the same shared array twice.
    """
    from numba import types
    from numba.cuda.simulator.kernelapi import FakeCUDAShared
    from numba.np.numpy_support import as_dtype

    sys.setswitchinterval(1e-4)
    lock, dynamic = threading.Lock(), FakeCUDAShared.array

    def array(self, shape, dtype, alignment=None):
        if shape == 0:
            return dynamic(self, shape, dtype)
        frame = sys._getframe(1)
        key = frame.f_code.co_filename, frame.f_lineno
        with lock:
            if key not in self._allocations:
                kind = as_dtype(dtype) if isinstance(dtype, types.Type) else dtype
                self._allocations[key] = np.empty(shape, kind)
            return self._allocations[key]

    FakeCUDAShared.array = array


if SIMULATED:
    mend_simulator()

collect_ignore_glob = [] if WANTED else ["test_*.py"]


@pytest.hookimpl(trylast=True)  # the last filter counts
def pytest_configure(config):
    if SIMULATED:  # NumPy's scalars warn where a GPU does not
        config.addinivalue_line("filterwarnings", "ignore:.*encountered:RuntimeWarning")


@pytest.fixture
def to_gpu():
    """Put an array on the device."""
    from numba import cuda

    return lambda array: cuda.to_device(np.asarray(array))


@pytest.fixture
def to_host():
    """Fetch whatever is on the device."""

    def fetch(x):
        assert hasattr(x, "copy_to_host"), f"not on the device: {type(x)}"
        return x.copy_to_host()

    return fetch
