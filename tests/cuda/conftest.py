"""These tests run on a GPU, or in Numba's simulator with NUMBA_ENABLE_CUDASIM=1.

They want a process of their own: ``NUMBA_ENABLE_CUDASIM=1 python -m pytest tests/cuda``, or
``CONEHOYER_TEST_CUDA=1 python -m pytest tests/cuda`` where there is a GPU.
"""

import os

import numpy as np
import pytest

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
WANTED = SIMULATED or os.environ.get("CONEHOYER_TEST_CUDA", "0") == "1"

if SIMULATED:
    import scheduler

    scheduler.install()

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
def transposed():
    """Transpose an array on the device, without a copy: Numba's own makes one, of a matrix only."""
    from conehoyer._cuda.device import home_of

    def view(x, axes=None):
        axes = range(x.ndim)[::-1] if axes is None else axes
        home = home_of(x)
        return home.adopt(home.view(x, [x.shape[k] for k in axes], [x.strides[k] for k in axes]))

    return view


@pytest.fixture
def to_host():
    """Fetch whatever is on the device."""

    def fetch(x):
        assert hasattr(x, "copy_to_host"), f"not on the device: {type(x)}"
        return x.copy_to_host()

    return fetch
