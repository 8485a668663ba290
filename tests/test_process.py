"""What only a fresh process can show: imports, forks, threads and the kernel cache.

Where the cache is not the point the processes share that of the other tests, because a projection
takes long to compile. Where it is the point they compute a score, which does not.
"""

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

import conehoyer
from conehoyer import _threads, projections
from conehoyer._cpu import engine, short, waiting
from conehoyer._jit import entry
from conehoyer._threads import run_split

PACKAGE = Path(conehoyer.__file__).parent


def run(code, *, root=PACKAGE.parent, **env):
    """Run code in a new interpreter that finds the package under root."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "COVERAGE"))}
    clean |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"} | env
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=clean,
        cwd=root if Path(root).is_dir() else Path(root).parent,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()


def copy_package(target):
    """A copy without compiled files, whose time stamps are those of the original."""
    shutil.copytree(PACKAGE, target / "conehoyer", ignore=shutil.ignore_patterns("__pycache__"))
    return target


BY_AVX512 = "instruction" if llvm.llvm_version_info >= (20,) else "table"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NUMBA_CPU_FEATURES": "+avx,+avx2,-avx512f"}, "table 256"),
        ({"NUMBA_CPU_FEATURES": "+avx,+avx2,+avx512f"}, f"{BY_AVX512} 512"),
        ({"NUMBA_CPU_FEATURES": "+sse4.2"}, " 128"),
        ({"NUMBA_CPU_NAME": "generic"}, " 128"),
        ({"NUMBA_ENABLE_AVX": "0"}, " 128"),
        ({"CONEHOYER_SIMD": "0", "NUMBA_CPU_FEATURES": "+avx,+avx2"}, " 256"),
    ],
)
def test_numba_is_told_what_the_processor_can_do(env, expected):
    code = "from conehoyer._cpu import simd, tiles; print(simd._BY, tiles.BITS)"
    assert run(code, **({"CONEHOYER_SIMD": ""} | env)) == expected.strip()


SHARED = {k: v for k, v in os.environ.items() if k == "NUMBA_CACHE_DIR"}

SCORE = """
import numpy as np, conehoyer
assert conehoyer.__file__.startswith({root!r}), conehoyer.__file__
print(repr(float(conehoyer.hoyer_score(np.repeat([1.0, 0.0], 40)))))
"""


def score(root, **env):
    return float(run(SCORE.format(root=str(root)), root=root, **env))


# ---------------------------------------------------------------------------
# import


def test_import_loads_neither_numba_nor_scipy():
    loaded = run(
        "import sys, conehoyer\n"
        "heavy = {'numba', 'llvmlite', 'scipy', 'torch', 'cupy', 'matplotlib'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    assert loaded == "[]"


def test_scipy_is_not_needed_for_a_projection():
    """Numba itself imports scipy.linalg; the rest, half a second, must stay out."""
    loaded = run(
        "import sys, numpy as np, conehoyer, scipy.linalg\n"
        "given = set(sys.modules)\n"
        "conehoyer.project_cai(np.arange(9.0), 2.0)\n"
        "slow = {'scipy.optimize', 'scipy.special', 'scipy.sparse', 'scipy.stats'}\n"
        "print(sorted(slow & set(sys.modules) - given))",
        **SHARED,
    )
    assert loaded == "[]"


def test_without_pytorch_its_module_names_the_extra():
    said = run(
        "import sys\n"
        "sys.modules['torch'] = None\n"  # as if there were none
        "import conehoyer\n"
        "try:\n"
        "    conehoyer.torch\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, error, type(error.__cause__).__name__)"
    )
    assert said == (
        "ImportError conehoyer.torch needs PyTorch: pip install 'conehoyer[torch]' "
        "ModuleNotFoundError"
    )


def test_without_pytorch_every_name_listed_is_there():
    """For ``help(conehoyer)`` and completion, which get them all."""
    said = run(
        "import inspect, sys\n"
        "sys.modules['torch'] = None\n"
        "import conehoyer\n"
        "names = dict(inspect.getmembers(conehoyer))\n"
        "print('torch' in names, 'optim' in names, 'project_cai' in names)"
    )
    assert said == "False True True"


def test_the_module_for_pytorch_is_listed_where_that_can_be_loaded(tmp_path):
    (tmp_path / "torch.py").write_text("raise AssertionError('loaded')")
    said = run(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import conehoyer\n"
        "print('torch' in dir(conehoyer))"
    )
    assert said == "True"


def test_a_pytorch_that_fails_to_load_is_not_called_missing(tmp_path):
    (tmp_path / "torch.py").write_text("import there_is_no_such_module")
    said = run(
        "import sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "try:\n"
        "    import conehoyer.torch\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error.name)"
    )
    assert said == "there_is_no_such_module"


def test_names_are_listed_without_being_loaded():
    assert run("import sys, conehoyer; dir(conehoyer); print('numba' in sys.modules)") == "False"


# ---------------------------------------------------------------------------
# fork and threads

FORK = """
import os, threading, numpy as np, conehoyer, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of fork with threads
y = np.random.default_rng(0).standard_normal(1_500_000)
expected = conehoyer.project_cai(y, 1e5, workers=2)
before = expected.tobytes()

def child():
    import faulthandler
    faulthandler.dump_traceback_later(60, exit=True)  # a dead pool would wait for ever
    try:
        got = conehoyer.project_cai(y, 1e5, workers=2)
        rows = conehoyer.project_l1_ball(y.reshape(1500, 1000), 3.0, workers=3)
        good = got.tobytes() == before and abs(np.abs(rows).sum(axis=1) - 3).max() < 1e-12
    except BaseException:
        import traceback
        traceback.print_exc()
        good = False
    os._exit(0 if good else 1)

for generation in range(2):
    pid = os.fork()
    if pid == 0:
        child()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    # and the parent still works, with its own pool
    assert conehoyer.project_cai(y, 1e5, workers=2).tobytes() == before
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_after_a_call_with_several_workers():
    assert run(FORK, **SHARED) == "ok"


FORK_WHILE_STARTING = """
import faulthandler, os, warnings
from conehoyer import _threads
warnings.simplefilter("ignore", DeprecationWarning)
_threads._lock.acquire()  # another thread is about to start them
pid = os.fork()
if pid == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    _threads.run_split(lambda first, last: None, 2, 2)
    os._exit(0)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_fork_while_another_thread_starts_the_threads():
    """Nobody in the child would ever let go of the lock."""
    assert run(FORK_WHILE_STARTING, **SHARED) == "0"


THREADS = """
import faulthandler, threading, numpy as np, conehoyer
faulthandler.dump_traceback_later(120, exit=True)
rng = np.random.default_rng(0)
long = [rng.standard_normal(1_100_000) for _ in range(4)]
rows = [rng.standard_normal((700, 1000)) for _ in range(4)]
serial = {}
answers = [{} for _ in range(4)]
failed = []
start = threading.Barrier(4)

def work(i):
    try:
        start.wait()  # the very first call too: four threads meet the compiler at once
        for again in range(3):
            with conehoyer.set_workers(2):
                answers[i]["cai"] = conehoyer.project_cai(long[i], 5e4)
                assert conehoyer.get_workers() == 2
            answers[i]["ball"] = conehoyer.project_l1_ball(rows[i], 4.0, workers=2)
            answers[i]["score"] = conehoyer.hoyer_score(rows[i], workers=2)
    except BaseException as error:
        failed.append(error)
        raise

threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert not failed, failed
for i in range(4):
    for key, value in {
        "cai": conehoyer.project_cai(long[i], 5e4),
        "ball": conehoyer.project_l1_ball(rows[i], 4.0),
        "score": conehoyer.hoyer_score(rows[i]),
    }.items():
        assert answers[i][key].tobytes() == value.tobytes(), (i, key)
print("ok")
"""


def test_four_threads_at_once():
    assert run(THREADS, **SHARED) == "ok"


def test_parts_of_a_call():
    """More parts than threads; an error in a thread arrives, and the threads live on."""

    def fail(first, last):
        if first > 0:
            raise ValueError(f"part {first}")

    for _ in range(3):
        with pytest.raises(ValueError, match="part 3"):
            run_split(fail, 9, 3)
        for workers in (1, 2, 7, 20):
            seen = []
            run_split(lambda first, last, seen=seen: seen.extend(range(first, last)), 9, workers)
            assert sorted(seen) == list(range(9))


def test_parts_handed_out_to_threads_awake_or_asleep():
    """Some calls come while the threads wait awake, some as they fall asleep, some after that."""
    rng, total = np.random.default_rng(0), []
    for _ in range(600):
        run_split(lambda first, last: total.extend(range(first, last)), 3, 3)
        time.sleep(rng.uniform(0.0, 2e-9 * waiting.AWAKE))
    assert sorted(total) == sorted(600 * [0, 1, 2])


def test_threads_are_not_woken_up_for_a_single_call(monkeypatch):
    """For what takes some hundred µs: of calls that follow one another all but the first."""
    now, shared = [10**12], []
    project = projections.project_long
    monkeypatch.setattr(_threads, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(_threads, "_ended", 0)
    monkeypatch.setattr(projections, "project_long", lambda *a: shared.append(0) or project(*a))

    def count(x, wait, workers=2):
        now[0] += wait
        shared.clear()
        result = conehoyer.project_cai(x, 900.0, workers=workers)
        np.testing.assert_array_equal(result, conehoyer.project_cai(x, 900.0))
        return len(shared)

    rng = np.random.default_rng(0)
    least, most = projections.SHARED_FROM // 8, projections.WOKEN_FROM // 8
    x = rng.standard_normal(least)
    waits = (10**9, 9 * 10**5, 10**5, 2 * 10**6, 0)
    assert [count(x, wait) for wait in waits] == [0, 1, 1, 0, 1]
    assert count(x, 0, workers=1) == count(x[:-1], 0) == 0
    x = rng.standard_normal(most)
    assert count(x, 10**9) == 1
    assert count(x[:-1], 10**9) == 0


def test_threads_without_work_sleep():
    run_split(lambda first, last: None, 2, 2)
    time.sleep(0.1)
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.1


WAITING = """
import numpy as np
from conehoyer._cpu import waiting

waiting.for_all(np.array([1, 0, 1]))  # the second thread does not come
marks, posted, desk = np.zeros(2, np.int64), np.array([7]), np.zeros(waiting.DESK, np.int64)
waiting.rest(marks, 1, posted, 7, 1000, desk)  # nothing is posted
assert marks.tolist() == [0, 1]
waiting.rest(marks, 0, posted, 6, 1000, desk)  # something was
assert marks.tolist() == [1, 1]
assert desk[waiting.STATE] == waiting.AWAY
assert 0 < waiting.find_lead(posted) <= 12_000
print("ok")
"""


def test_waiting_ends(tmp_path):
    assert run(WAITING) == "ok"
    no_clock = "import time; del time.CLOCK_MONOTONIC\n"  # as on Windows
    assert run(no_clock + WAITING, NUMBA_CACHE_DIR=str(tmp_path)) == "ok"


DESKS = """
import threading
import time
from functools import partial
from queue import SimpleQueue

import numba
import numpy as np

from conehoyer import _threads
from conehoyer._cpu import waiting
from conehoyer._cpu.apart import address_of, taker
from conehoyer._jit import kernel

@kernel
def fill(names, values, first, last):
    for i in range(first, last):
        names[i], values[i] = first, 2.0 * i

@kernel
def fail(names, first, last):
    if first >= names[0]:
        raise ValueError("a kernel of the library raises nothing but MemoryError")

@kernel
def fail_before(names, first, last):
    if first < names[0]:
        raise ValueError("as above")

COUNT = 3
desks, posted = np.zeros((COUNT, waiting.DESK), np.int64), np.zeros(1, np.int64)
parts = (0, 5), (5, 8), (8, 12), (12, 20)
given = np.zeros(20, np.int64), np.zeros(20)

def serve(desk):
    while posted[0] == 0:
        waiting.rest(np.zeros(1, np.int64), 0, posted, 0, 0, desk)

assert not waiting.hand_out(fill, given, parts, desks)  # nobody is there
assert not waiting.hand_out(fill.py_func, given, parts, desks)  # no kernel
assert not given[1].any()
desks[0, waiting.STATE] = waiting.READY  # one is not enough, and is left as it was
assert not waiting.hand_out(fill, given, parts, desks)
assert desks[:, waiting.STATE].tolist() == [waiting.READY, 0, 0]
desks[0] = 0
desks[2, waiting.STATE] = waiting.READY  # nor does anybody seem to be there who is not
assert not waiting.hand_out(fill, given, parts, desks)
assert desks[:, waiting.STATE].tolist() == [0, 0, waiting.READY]
desks[2] = 0

threads = [threading.Thread(target=serve, args=(desk,), daemon=True) for desk in desks]
for thread in threads:
    thread.start()

def until_all_came(call):
    end = time.monotonic() + 60.0
    while not call():
        assert time.monotonic() < end, "the threads never were awake together"
        time.sleep(1e-4)  # they want the interpreter's lock to come back

for width in (3, 4, 2):
    edges = np.linspace(0, 20, width + 1).astype(int).tolist()
    parts = tuple(zip(edges, edges[1:]))
    for dtype in (np.float64, np.float32):  # the second has a place of its own
        names, values = np.full(20, -1), np.zeros(20, dtype)
        until_all_came(lambda: waiting.hand_out(fill, (names, values), parts, desks))
        assert values.tolist() == [2.0 * i for i in range(20)]
        assert names.tolist() == [first for first, last in parts for i in range(first, last)]

INTS, FLOATS = numba.int64[::1], numba.float64[::1]
KINDS = INTS, FLOATS, numba.int64, numba.int64
to_fill, to_fail = taker(lambda given: KINDS), taker(lambda given: (INTS, *KINDS[2:]))

@kernel
def fill_all(place, names, values, count, workers, desks):
    waiting.split_at(place, to_fill((names, values)), count, workers, desks)

def parts_of(count, workers, desks):
    names, values = np.full(20, -1), np.zeros(20)
    fill_all(address_of(fill, KINDS), names, values, count, workers, desks)
    assert values.tolist() == [2.0 * i for i in range(count)] + (20 - count) * [0.0]
    return sorted(set(names[:count].tolist()))

assert parts_of(20, 1, desks) == parts_of(20, 4, _threads.NOBODY) == [0]
assert parts_of(0, 4, desks) == []
until_all_came(lambda: parts_of(20, 4, desks) == [0, 5, 10, 15])
until_all_came(lambda: parts_of(20, 3, desks) == [0, 6, 13])
until_all_came(lambda: parts_of(2, 4, desks) == [0, 1])

@kernel
def fail_all(place, names, workers, desks):
    waiting.split_at(place, to_fail((names,)), 2, workers, desks)

def fail_at(least):
    try:
        fail_all(address_of(fail, (INTS, *KINDS[2:])), np.array([least]), 2, desks)
        return False
    except MemoryError:
        return True

assert fail_at(0)
assert not fail_at(2)
until_all_came(lambda: fail_at(1))

def fails(called, edge, parts=((0, 1), (1, 2))):
    try:
        assert not waiting.hand_out(called, (np.array([edge]),), parts, desks)
        return False
    except MemoryError:
        return True

until_all_came(lambda: fails(fail, 1))  # at the desk
until_all_came(lambda: fails(fail, 0))  # here as well
until_all_came(lambda: fails(fail_before, 1))  # here alone
until_all_came(lambda: fails(fail_before, 2, ((2, 3), (1, 2), (4, 5))))  # at the first desk alone
posted[0] = 1
for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
assert not desks[:, waiting.STATE].any()
assert not waiting.hand_out(fill, (names, values), parts, desks)

assert _threads.team(1) is _threads.NOBODY
until_all_came(lambda: parts_of(20, 2, _threads.team(2)) == [0, 10])  # asleep or awake

def stays():  # held, many times as long as a thread stays awake
    own = _threads.team(2)
    calls = own[:, waiting.HELD]
    calls += 1
    try:
        if own[0, waiting.STATE] != waiting.READY:
            return False
        time.sleep(40e-9 * waiting.AWAKE)
        assert own[0, waiting.STATE] == waiting.READY
        assert parts_of(20, 2, own) == [0, 10]
        calls += 1  # by two calls
        calls -= 1
        time.sleep(5e-9 * waiting.AWAKE)
        assert own[0, waiting.STATE] == waiting.READY
    finally:
        calls -= 1
    return True

until_all_came(stays)
until_all_came(lambda: not _threads._team[1][:, waiting.STATE].any())  # and goes

# Who is at work for another call is not called, who is away is called once.
team = _threads._team
own, calls = np.zeros((2, waiting.DESK), np.int64), SimpleQueue()
_threads._team = calls, own, waiting
own[0, waiting.STATE] = waiting.TAKEN
for _ in range(3):
    assert _threads.team(3) is own
    assert calls.qsize() == 1
_threads._team = team

# The library's own threads, from four threads of the caller at once.
met = []
hand_out = waiting.hand_out
waiting.hand_out = lambda *given: met.append(hand_out(*given)) or met[-1]

def work(number):
    names, values = np.zeros(1000, np.int64), np.zeros(1000)
    for again in range(300):
        values[:] = 0.0
        _threads.run_split(partial(fill, names, values), 1000, 2)
        if not np.array_equal(values, 2.0 * np.arange(1000)):
            wrong.append(number)

wrong = []
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong
work(5)
assert not wrong and True in met, met.count(True)
print("ok")
"""


def test_desks_of_threads_that_are_awake(tmp_path):
    code = tmp_path / "desks.py"  # the cache wants a file
    code.write_text(DESKS)
    assert run(f"import runpy; runpy.run_path({str(code)!r})", **SHARED) == "ok"


def test_no_option_reaches_what_a_kernel_calls():
    """Numba compiles what is called with the options of who calls it first."""
    seen = 0
    for path in sorted((PACKAGE / "_cpu").glob("*.py")):
        names = vars(importlib.import_module(f"conehoyer._cpu.{path.stem}"))
        for used in names.values():
            options = getattr(used, "targetoptions", {})
            assert "forceinline" not in options, used
            if "fastmath" in options:
                called = [names.get(name) for name in used.py_func.__code__.co_names]
                for one in called:
                    assert not hasattr(one, "targetoptions"), used
                    assert not getattr(one, "__name__", "").startswith("conehoyer._cpu"), used
            seen += bool(options)
    assert seen > 100


def test_only_kernels_call_helpers():
    """They have no way in from Python: a call from there ends the process."""
    seen = 0
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text())
        modules = {
            name.asname or name.name: importlib.import_module(f"conehoyer._cpu.{name.name}")
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "_cpu"
            for name in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used = getattr(modules.get(node.value.id), node.attr, None)
                options = getattr(used, "targetoptions", {})
                assert "no_cpython_wrapper" not in options, f"{path.name}: {ast.unparse(node)}"
                seen += bool(options)
    assert seen > 40


# ---------------------------------------------------------------------------
# the kernel cache


def cache_files(folder, ending):
    return sorted(Path(folder).rglob(f"*.{ending}"))


def test_a_fresh_cache_is_filled_and_then_used(tmp_path):
    """Kernels compiled by one process are found by the next, which adds none."""
    first = score(PACKAGE.parent, NUMBA_CACHE_DIR=str(tmp_path))
    files = {f: f.stat().st_mtime_ns for f in cache_files(tmp_path, "nbc")}
    assert files
    assert score(PACKAGE.parent, NUMBA_CACHE_DIR=str(tmp_path)) == first == 40.0
    assert {f: f.stat().st_mtime_ns for f in cache_files(tmp_path, "nbc")} == files


def test_installations_of_the_same_sources_share_a_given_cache(tmp_path):
    """Wherever and whenever they were made: as on a server that checks a project out anew."""
    cache, roots = tmp_path / "cache", [copy_package(tmp_path / name) for name in "ab"]
    for path in roots[1].rglob("*.py"):
        os.utime(path, ns=(0, 0))
    assert score(roots[0], NUMBA_CACHE_DIR=str(cache)) == 40.0
    files = {f: f.stat().st_mtime_ns for f in cache_files(cache, "nbc")}
    assert files
    assert score(roots[1], NUMBA_CACHE_DIR=str(cache)) == 40.0
    assert {f: f.stat().st_mtime_ns for f in cache_files(cache, "nbc")} == files


def test_processes_that_compile_at_once_take_different_files(tmp_path):
    """Each writes as if it were alone: what one has compiled must not get the other's name."""
    names = []
    for kind in ("float32", "float64"):
        cache = tmp_path / kind
        code = f"import numpy as np, conehoyer; conehoyer.hoyer_score(np.ones(9, np.{kind}))"
        run(code, NUMBA_CACHE_DIR=str(cache))
        names.append({file.name for file in cache_files(cache, "nbc") if "score_rows" in file.name})
        assert names[-1]
    assert not names[0] & names[1]


def test_helpers_of_one_name_are_told_apart_by_the_cache():
    """What calls them has the same code: without the module's name they would be one to it."""
    one, other = entry(engine._guess), entry(short._guess)
    assert one._cache._impl.filename_base != other._cache._impl.filename_base


def test_a_helper_edited_after_caching_is_noticed(tmp_path):
    """Numba's key does not see helpers in other files: the old answer would come back."""
    root = copy_package(tmp_path)
    math = root / "conehoyer" / "_math.py"
    before = math.stat()
    assert score(root) == 40.0
    assert cache_files(root, "nbc")

    # twice the score: nothing else in the package changes
    source = math.read_text()
    edited, found = re.subn(r"(def score\(kind, n, s, q\):\n)", r"\1    q = 0.5 * q\n", source)
    assert found == 1, "_math.score has another signature: edit something else here"
    math.write_text(edited)
    os.utime(math, ns=(before.st_atime_ns, before.st_mtime_ns))  # the time stamp alone says nothing
    assert score(root) == 80.0

    # and back again
    math.write_text(source)
    assert score(root) == 40.0


def test_a_package_in_an_archive(tmp_path):
    """There are no files then to tell old kernels from new ones, as in a frozen program."""
    cache, copy = tmp_path / "cache", tmp_path / "copy"
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", copy_package(copy))
    shutil.rmtree(copy)
    home = {"HOME": str(cache), "XDG_CACHE_HOME": str(cache), "USERPROFILE": str(cache)}
    assert score(archive, **home) == 40.0
    files = cache_files(cache, "nbc")
    assert files
    assert score(archive, **home) == 40.0
    assert cache_files(cache, "nbc") == files


READ_ONLY = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numpy as np, conehoyer
    y = np.repeat([1.0, 0.0], 40)
    x = conehoyer.project_l1_ball(y, 10.0, method="condat")
    level = conehoyer.hoyer_score(x.astype(np.float32))
assert abs(level - 40) < 1e-10 and abs(x.sum() - 10) < 1e-12
told = [str(w.message) for w in caught if "NUMBA_CACHE_DIR" in str(w.message)]
print(len(told), len(caught))
"""


def test_a_read_only_install_works_and_says_so_once(tmp_path):
    """No place for a cache. Files where folders are wanted stop root as well."""
    root = copy_package(tmp_path)
    for folder in [root / "conehoyer", *(root / "conehoyer").rglob("*/")]:
        if folder.is_dir():
            (folder / "__pycache__").write_text("a file, not a folder")
    nowhere = root / "home"
    nowhere.write_text("a file, not a folder")
    for path in sorted(root.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root.chmod(0o555)
    try:
        told = run(
            READ_ONLY,
            root=root,
            HOME=str(nowhere),
            XDG_CACHE_HOME=str(nowhere),
            USERPROFILE=str(nowhere),
        )
    finally:
        root.chmod(0o755)  # so that pytest can remove it
        for path in root.rglob("*"):
            path.chmod(0o755)
    assert told == "1 1"


def test_nobody_is_held_awake_after_a_call(every_array_is_large):
    conehoyer.project_cai(np.random.default_rng(0).standard_normal(100_000), 500.0, workers=2)
    _, desks, _ = _threads._start()
    assert not desks[:, waiting.HELD].any()
