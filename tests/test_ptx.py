"""Every CUDA kernel compiles, for float32 and float64, on a machine without a driver.

The simulator runs kernels as Python: it sees no types. Here they are compiled to PTX, and where
the toolkit brings its assembler, to machine code.
"""

import contextlib
import importlib
import pkgutil
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import ptx_signatures
import pytest

import conehoyer

pytest.importorskip("numba_cuda", reason="needs numba-cuda")
if numba.config.ENABLE_CUDASIM:
    pytest.skip("the simulator compiles nothing", allow_module_level=True)

FAMILIES = [module.name for module in pkgutil.iter_modules(ptx_signatures.__path__)]
CAPABILITIES = [(8, 0), (9, 0)]
REGISTERS = 80  # the fewest that any kernel is compiled with


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
        for wanted in getattr(module, "WANTED", {}).get(name, ()):
            assert wanted in ptx, f"{name} has no {wanted}"
        for unwanted in getattr(module, "UNWANTED", {}).get(name, ()):
            assert unwanted not in ptx, f"{name} has {unwanted}"
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


# --- what is launched ------------------------------------------------------------------------


def view(shape, dtype, strides=None, pointer=4096):
    from conehoyer._cuda.device import View

    return View(pointer, shape, strides, np.dtype(dtype), None)


def type_of(view):
    kind, _ = view.as_argument()
    return kind.type


def test_views():
    a = view((4, 6), "f4")
    assert (a.size, a.ndim, a.nbytes, a.strides) == (24, 2, 96, (24, 4))
    assert a.as_argument()[1] == (0, 0, 24, 4, 4096, 4, 6, 24, 4)
    assert type_of(a) == numba.types.Array(numba.float32, 2, "C")
    assert (a[1:3].pointer, a[1:3].shape, type_of(a[1:3])) == (4120, (2, 6), type_of(a))
    assert (a[2].pointer, a[2].shape, a[2].strides) == (4144, (6,), (4,))
    assert a.reshape(3, 8).strides == (32, 4)
    assert type_of(a.view("i4")) == numba.types.Array(numba.int32, 2, "C")
    turned = view((6, 4), "f4", (4, 24))
    assert type_of(turned) == numba.types.Array(numba.float32, 2, "A")
    assert turned.__cuda_array_interface__["strides"] == (4, 24)


def test_numba_is_asked_for_a_device_once_a_context(monkeypatch):
    from conehoyer._cuda import device

    asked, context = [], [0]  # 0: none yet

    def get_current_device():
        asked.append(context[0])
        context[0] = context[0] or 7
        return SimpleNamespace(id=context[0] % 5)

    monkeypatch.setattr(device, "_numbers", {})
    monkeypatch.setattr(device, "cuda", SimpleNamespace(get_current_device=get_current_device))
    driver = SimpleNamespace(cuCtxGetCurrent=lambda: (0, context[0]))
    monkeypatch.setattr(device, "_driver", lambda: driver)
    assert [device.current_device() for _ in range(3)] == [2, 2, 2]
    context[0] = 9  # another device's
    assert [device.current_device() for _ in range(3)] == [4, 4, 4]
    context[0] = 7
    assert device.current_device() == 2
    assert asked == [0, 9]
    driver.cuCtxGetCurrent = lambda: (3, None) if context[0] == 0 else (0, context[0])
    context[0] = 0  # the driver has not been initialised
    assert device.current_device() == 2


@pytest.mark.parametrize("itemsize", [4, 8])
def test_plans_of_rows(itemsize, monkeypatch):
    """Each row finds room, and threads side by side read from different banks."""
    from conehoyer._cuda import held

    monkeypatch.setattr(held, "shared_memory_of_block", lambda: 227 * 1024)
    longest = 131072 // itemsize
    assert held.fits(longest, itemsize)
    assert not held.fits(longest + 1, itemsize)
    assert not held.fits(0, itemsize)
    for n in [*range(1, 1200), 5000, 8191, 8193, longest - 1, longest]:
        plan = held.plan(n, itemsize)
        words, lanes = held.words_of(n, itemsize), 1 << plan.bits
        assert words * 16 >= n * itemsize > (words - 1) * 16
        assert words <= lanes * held.WORDS
        assert plan.gap >= words
        assert plan.threads % max(lanes, 32) == 0
        assert plan.threads * held._REGISTERS <= 65536
        assert plan.shared == plan.threads // lanes * plan.gap * 16 <= 131072
        for step in range(0, lanes * held.WORDS, lanes):
            places = [(t >> plan.bits) * plan.gap + t % lanes + step for t in range(8)]
            assert len({place % 8 for place in places}) == 8, n
    monkeypatch.setattr(held, "shared_memory_of_block", lambda: 48 * 1024)
    assert held.fits((46 << 10) // itemsize, itemsize)
    assert not held.fits((46 << 10) // itemsize + 1, itemsize)


def test_wide_words():
    """Sixteen bytes are moved at once where all rows begin and end with them."""
    from conehoyer._cuda import wide

    assert wide.are_aligned(view((3, 8), "f4"), view((5, 2), "f8"))
    assert not wide.are_aligned(view((3, 8), "f4"), view((3, 6), "f4"))
    assert not wide.are_aligned(view((3, 3), "f8"))
    assert not wide.are_aligned(view((3, 8), "f4"), view((3, 8), "f4", pointer=4104))


class Memory:
    """An array of the host that passes for one of a GPU."""

    def __init__(self, array):
        self.array, self.shape, self.strides = array, array.shape, array.strides
        self.dtype, self.size, self.ndim = array.dtype, array.size, array.ndim

    @property
    def __cuda_array_interface__(self):
        given = self.array.__array_interface__
        return {**given, "strides": self.strides, "version": 3, "stream": None}

    @property
    def T(self):  # noqa: N802
        return Memory(self.array.T)


@pytest.fixture
def launched(monkeypatch):
    """The kernels that are launched, with the types of their arguments: they do nothing."""
    import cuda.core

    from conehoyer import _math as m
    from conehoyer._cuda import device

    kernels, entered = [], []

    @contextlib.contextmanager
    def active(home):
        entered.append(home)
        yield
        entered.pop()

    def there(call):
        """What works on an array's device only."""

        def made(*arguments):
            assert entered, "this happens on the thread's device, not on the array's"
            return call(*arguments)

        return made

    class Library:
        def get_cufunc(self):
            return SimpleNamespace(kernel=self)

    def compiled(kernel, kinds):
        kernels.append((kernel, tuple(kind.type for kind in kinds)))
        return SimpleNamespace(
            cooperative=False, _codelibrary=Library(),
            max_cooperative_grid_blocks=lambda threads, shared: 264,
        )  # fmt: skip

    def scratch(home, shape, dtype):
        return home.view(home.empty(shape, dtype))

    def fetch(home, view):
        values = np.zeros(view.shape, view.dtype)
        if view.shape == (13,) and view.dtype == float:  # the state of a group sparse projection
            values[0] = m.SOFT
        return values

    monkeypatch.setattr(device, "_compiled", compiled)
    monkeypatch.setattr(cuda.core, "launch", there(lambda *arguments: None))
    monkeypatch.setattr(device, "require_driver", lambda: None)
    monkeypatch.setattr(device, "current_device", lambda: 0)
    monkeypatch.setattr(device, "_most_shared", lambda device: 1 << 17)
    monkeypatch.setattr(device, "_allow_shared", lambda kernel, device: None)
    monkeypatch.setattr(device, "_core_stream", lambda pointer: None)
    monkeypatch.setattr(device.Home, "active", active)
    for name, stub in {
        "empty": lambda home, shape, dtype: Memory(np.zeros(shape, dtype)),
        "zeros": lambda home, count, dtype: home.scratch((count,), dtype),
        "upload": lambda home, values: Memory(np.array(values)),
        "adopt": lambda home, view: view,
        "scratch": scratch,
        "fetch": fetch,
    }.items():
        monkeypatch.setattr(device._Foreign, name, there(stub))
    device._blocks_at_once.cache_clear()
    device._loaded.cache_clear()
    yield kernels
    device._blocks_at_once.cache_clear()
    device._loaded.cache_clear()


def known(family, t):
    """The kernels of a family, and the types that the tests above compile them with."""
    module = importlib.import_module(f"ptx_signatures.{family}")
    return {(kernel, tuple(types)) for kernel, types in module.signatures(numba.from_dtype(t))}


def test_the_cache_knows_all_sources():
    """Kernels that have constants of another module are compiled anew where these change."""
    from conehoyer._cuda import device

    for path in device._SOURCES:
        for name in re.findall(r"^from \.\._cpu\.(\w+) import", path.read_text(), re.M):
            assert path.parents[1] / "_cpu" / f"{name}.py" in device._SOURCES


@pytest.mark.parametrize("t", ["f4", "f8"])
@pytest.mark.parametrize("shape", [(5, 3), (7, 3000), (3, 50_000), (1, 1 << 20)])
def test_what_is_launched_has_been_compiled(shape, t, launched):
    """The types of a launch's arguments are among those that the tests above compile."""
    from conehoyer import _math as m
    from conehoyer._cuda import arrays, device, projections

    bound = arrays.Parameter(3.0, None, 0.0, 9.0)
    home = device.home_of(Memory(np.zeros(1)))
    with home.active():
        projections.run_rows(
            home, m.L1, True, bound, projections.OWN_NORM, 1e-9, view(shape, t), view(shape, t),
            view((1, 5), "f8"), view((3,), "i4"), reported=False,
        )  # fmt: skip
    assert launched
    assert known("engine", np.dtype(t)).issuperset(launched)


CALLS = {
    "cai": lambda x, **kw: conehoyer.project_cai(x, 2.0, **kw),
    "cai, a level each": lambda x, **kw: conehoyer.project_cai(
        x, Memory(np.full(x.shape[:1], 2.0, np.float32)), **kw
    ),
    "iterative": lambda x, **kw: conehoyer.project_cai(
        x, np.arange(2.0, 2.0 + x.shape[0]), method="iterative", **kw
    ),
    "hoyer": lambda x, **kw: conehoyer.project_hoyer(x, [0.5] * (x.shape[0] - 1) + [0.6], **kw),
    "ball": lambda x, **kw: conehoyer.project_l1_ball(x, 2.0, axis=0, **kw),
    "simplex": lambda x, **kw: conehoyer.project_simplex(x, 2.0, axis=None, **kw),
    "gsp": lambda x, **kw: conehoyer.project_gsp(x, 0.5, **kw),
    "blocks": lambda x, **kw: conehoyer.project_bilevel(x, 2.0, groups=(2, 3), **kw),
    "diagonals": lambda x, **kw: conehoyer.project_bilevel(
        x, 2.0, groups="diagonals", feasible=True, **kw
    ),
    "labels": lambda x, **kw: conehoyer.project_bilevel(
        x, radius=2.0, groups=Memory(np.zeros(x.shape, np.int32)), inner="l1", **kw
    ),
    "rows": lambda x, **kw: conehoyer.project_bilevel(x, 2.0, groups="rows", inner="l2", **kw),
    "l1inf": lambda x, **kw: conehoyer.project_l1inf_ball(x, 2.0, **kw),
}


@pytest.mark.parametrize("shape", [(4, 6), (3, 50_000), (1, 1 << 20), (0, 4)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_calls_reach_their_end(name, shape, launched):
    """The host's part of a call, which meets other objects in the simulator, does not fail."""
    for dtype in (np.float32, np.float64, np.float16, np.int32):
        result = np.float64 if dtype is np.int32 else dtype
        for options in ({}, {"overwrite_x": True}, {"check_finite": False}, {"out": None}):
            x = Memory(np.ones(shape, dtype))
            if "out" in options:
                options["out"] = Memory(np.ones(shape[::-1], result).T)
            x, info = CALLS[name](x, full_output=True, **options)
            assert (x.shape, x.dtype) == (shape, result)
            assert info.converged.shape == np.shape(info.passes.array)
            CALLS[name](Memory(np.ones(shape, dtype)), **options)
    assert launched


def test_other_calls_reach_their_end(launched):
    for x in (Memory(np.ones((4, 6))), Memory(np.ones((3, 50_000), np.float32).T)):
        conehoyer.hoyer_score(x, axis=0, keepdims=True)
        conehoyer.gsp_score([x, x])
        conehoyer.project_gsp([x, x], 0.5, overwrite_x=True)
        conehoyer.level_for_nnz(x, 2, nonneg=True)
        conehoyer.level_for_groups(x, 2, groups=(2, 2))
        conehoyer.nmf_hals(x, 2, level_w=1.5, max_iter=2, rng=0)
        conehoyer.nmf_hals(x, 2, init=(None, x.array[:2]), update_h=False, max_iter=2)


class Immutable(Memory):
    """As JAX has them."""

    @property
    def __cuda_array_interface__(self):
        given = self.array.__array_interface__
        names = "shape", "typestr", "version"
        return {**{name: given[name] for name in names}, "data": (given["data"][0], True)}


@pytest.mark.parametrize("several", [False, True])
def test_what_is_read_only_is_not_written(several, launched):
    project = conehoyer.project_gsp if several else conehoyer.project_l1_ball
    x, out = Immutable(np.ones((4, 6))), Immutable(np.ones((4, 6)))
    x, out = ([x], [out]) if several else (x, out)
    given = x[0] if several else x
    result = project(x, 0.5, overwrite_x=True)
    assert (result[0] if several else result) is not given
    with pytest.raises(ValueError, match="out must be writable"):
        project(x, 0.5, out=out)
