"""Exact products on a GPU: neither the product nor its rest may be merged with other operations."""

import re
from types import SimpleNamespace

import numba
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda")
if numba.config.ENABLE_CUDASIM:
    pytest.skip("the simulator compiles nothing", allow_module_level=True)

SPLIT = "0d41A0000002000000"  # 2^27 + 1, by which the CPU splits the factors


@pytest.mark.parametrize("name", ["enter", "proceed"])  # β, and τ = μ·β
def test_products_are_rounded_once(name, monkeypatch):
    from numba import cuda
    from numba.cuda import dispatcher
    from ptx_signatures import gsp

    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    (kernel, types), *_ = (
        pair for pair in gsp.signatures(numba.float64) if pair[0].py_func.__name__ == name
    )
    ptx, _ = cuda.compile_ptx(kernel.py_func, types, cc=(9, 0))
    assert SPLIT not in ptx
    exact = re.findall(r"mul\.rn\.f64\s+(%fd\d+), (%fd\d+), (%fd\d+);", ptx)
    assert exact
    for product, a, b in exact:
        negative = re.findall(rf"neg\.f64\s+(%fd\d+), {product};", ptx)
        rests = re.findall(r"fma\.rn\.f64\s+%fd\d+, (%fd\d+), (%fd\d+), (%fd\d+);", ptx)
        assert any({a, b} == {x, y} and z in negative for x, y, z in rests), product
