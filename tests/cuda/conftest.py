"""These tests run on a GPU, or in Numba's simulator with NUMBA_ENABLE_CUDASIM=1.

They want a process of their own: ``NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/cuda``, or
``CONEHOYER_TEST_CUDA=1 python -m pytest tests/cuda`` where there is a GPU.  With ``--thorough`` the
simulator takes all cases, as a GPU does.
"""

import contextlib
import os
import sys
import threading

import numpy as np
import pytest

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
WANTED = SIMULATED or os.environ.get("CONEHOYER_TEST_CUDA", "0") == "1"


def mend_simulator():
    """Switch threads often, and mend two races.

    The simulator's main thread polls the others: it is seven times as fast as with the usual
    5 ms. It also lets two threads that come at once make the same shared array twice, and it
    takes what stands for ``cuda`` away from a module whose functions some threads still run.
    """
    from numba import cuda, types
    from numba.cuda.simulator import kernel
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
    users: dict[int, int] = {}  # of the names of a module: how many calls are under way

    @contextlib.contextmanager
    def swapped(function, stand_in):
        names = function.__globals__
        with lock:
            users[id(names)] = users.get(id(names), 0) + 1
            swap(names, cuda, stand_in)
        try:
            yield
        finally:
            with lock:
                users[id(names)] -= 1
                if users[id(names)] == 0:
                    swap(names, stand_in, cuda)

    def swap(names, old, new):
        for name in [name for name, value in names.items() if value is old]:
            names[name] = new

    kernel.swapped_cuda_module = swapped


if SIMULATED:
    mend_simulator()

collect_ignore_glob = [] if WANTED else ["test_*.py"]


@pytest.hookimpl(trylast=True)  # the last filter counts
def pytest_configure(config):
    if SIMULATED:  # NumPy's scalars warn where a GPU does not
        config.addinivalue_line("filterwarnings", "ignore:.*encountered:RuntimeWarning")


def pytest_collection_modifyitems(config, items):
    """The simulator is slow: of a test's cases it runs the first and the last."""
    if not SIMULATED or config.getoption("--thorough"):
        return
    cases: dict[tuple, list] = {}
    for item in items:
        cases.setdefault((item.path, item.originalname), []).append(item)
    ends = {id(group[place]) for group in cases.values() for place in (0, -1)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in ends])
    items[:] = [item for item in items if id(item) in ends]


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
