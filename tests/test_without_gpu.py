"""What happens to an array on a GPU where numba-cuda is missing, or the GPU is."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

DEVICE_ARRAY = """
    import numpy as np

    class DeviceArray:
        shape, dtype = (2, 3), np.dtype(np.float64)
        __cuda_array_interface__ = {
            "shape": shape, "typestr": "<f8", "data": (1 << 20, False), "version": 3,
            "strides": None, "stream": 1,
        }
"""


def run(code, hide=False):
    """The output of a script in a process of its own, perhaps one that has no numba-cuda."""
    start = "import sys\nsys.modules['numba_cuda'] = None\n" if hide else "import sys\n"
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_ENABLE_CUDASIM"}
    done = subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(DEVICE_ARRAY) + textwrap.dedent(code)],
        capture_output=True, text=True, env=environment, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arrays_of_the_host_need_no_cuda():
    said = run(
        """
        import conehoyer
        print(conehoyer.hoyer_score(np.ones(4)))
        print([name for name in sys.modules if "conehoyer._cuda" in name])
        """,
        hide=True,
    )
    assert said == "4.0\n[]\n"


@pytest.mark.parametrize(
    "call",
    [
        "project_cai(x, 2.0)",
        "project_bilevel(x, 2.0)",
        "project_l1inf_ball(x, 2.0)",
        "project_gsp(x, 0.5)",
        "hoyer_score(x)",
        "level_for_nnz(x, 2)",
        "level_for_groups(x, 2)",
        "nmf_hals(x, 2)",
    ],
)
def test_without_numba_cuda_the_extra_is_named(call):
    said = run(
        f"""
        import conehoyer
        x = DeviceArray()
        try:
            conehoyer.{call}
        except ImportError as error:
            print(error)
        """,
        hide=True,
    )
    assert "numba-cuda" in said
    assert "conehoyer[cu12]" in said


def no_gpu():
    if importlib.util.find_spec("numba_cuda") is None:
        return False
    code = "from numba import cuda; print(cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.strip() == "False"


@pytest.mark.skipif("not no_gpu()", reason="needs numba-cuda and no GPU")
def test_without_a_gpu_the_driver_is_named():
    said = run(
        """
        import conehoyer
        try:
            conehoyer.project_cai(DeviceArray(), 2.0)
        except RuntimeError as error:
            print(error)
        """
    )
    assert "no GPU can be used" in said
    assert "driver" in said
