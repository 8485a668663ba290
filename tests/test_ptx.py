"""Every CUDA kernel compiles, for float32 and float64, on a machine without a driver.

The simulator runs kernels as Python: it sees no types. Here they are compiled to PTX, and where
the toolkit brings its assembler, to machine code.
"""

import importlib
import pkgutil
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numba
import ptx_signatures
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")
if numba.config.ENABLE_CUDASIM:
    pytest.skip("the simulator compiles nothing", allow_module_level=True)

FAMILIES = [module.name for module in pkgutil.iter_modules(ptx_signatures.__path__)]
CAPABILITIES = [(8, 0), (9, 0)]
REGISTERS = 80  # so that three blocks of 256 threads run at once


def compiled(monkeypatch, kernel, types, capability):
    from numba import cuda
    from numba.cuda import dispatcher

    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    ptx, _ = cuda.compile_ptx(kernel.py_func, types, cc=capability)
    assert f".target sm_{capability[0]}{capability[1]}" in ptx
    return ptx


def assembler():
    """Path of ptxas, or None."""
    inside = Path(sysconfig.get_path("purelib")) / "nvidia"
    found = sorted(inside.glob("*/bin/ptxas"))
    return str(found[0]) if found else shutil.which("ptxas")


@pytest.mark.parametrize("capability", CAPABILITIES, ids=["8.0", "9.0"])
@pytest.mark.parametrize("t", [numba.float32, numba.float64], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_compile(family, t, capability, monkeypatch, tmp_path):
    module = importlib.import_module(f"ptx_signatures.{family}")
    count = 0
    for kernel, types in module.signatures(t):
        ptx = compiled(monkeypatch, kernel, types, capability)
        name = kernel.py_func.__name__
        if t is numba.float32 and name in getattr(module, "FLOAT64_OPERATIONS", {}):
            found = len(re.findall(r"\b(?:add|sub|mul|fma|div|sqrt)[.a-z]*\.f64", ptx))
            assert found <= module.FLOAT64_OPERATIONS[name], f"{name}: {found} in float64"
        assert "__local_depot" not in ptx, f"{name} keeps an array in local memory"
        if assembler():
            source = tmp_path / f"{name}{count}.ptx"
            source.write_text(ptx)
            arch = f"-arch=sm_{capability[0]}{capability[1]}"
            limit = f"--maxrregcount={REGISTERS}"
            done = subprocess.run(
                [assembler(), arch, limit, "-c", str(source), "-o", str(source) + ".o"],
                capture_output=True, text=True,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        count += 1
    assert count


def test_every_kernel_is_listed():
    from numba import cuda

    import conehoyer._cuda

    kernels = set()
    for module in pkgutil.iter_modules(conehoyer._cuda.__path__, "conehoyer._cuda."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type(cuda.jit(lambda: None))):
                if not value.targetoptions.get("device"):
                    kernels.add(value)
    for family in FAMILIES:
        module = importlib.import_module(f"ptx_signatures.{family}")
        for t in (numba.float32, numba.float64):
            kernels.difference_update(kernel for kernel, _ in module.signatures(t))
    assert not kernels
