"""The threads that share a call: how many, what they are given, and what becomes of errors."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from functools import partial

import numpy as np
import pytest

import conehoyer as ch
from conehoyer import _threads, get_workers, set_workers


def processors():
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def test_negative_workers_count_from_all_processors():
    for less in range(processors()):
        with set_workers(-1 - less):
            assert get_workers() == processors() - less


def test_one_thread_for_each_other_processor():
    """Started once, however often they are needed."""
    for _ in range(3):
        _threads.run_split(lambda first, last: None, 4, 4)
    names = [t.name for t in threading.enumerate() if t.name.startswith("conehoyer_")]
    assert sorted(names) == sorted(f"conehoyer_{k}" for k in range(max(processors() - 1, 1)))


@pytest.mark.parametrize(("count", "workers"), [(1, 3), (2, 5), (7, 3), (7, 7)])
def test_no_part_is_empty(count, workers):
    parts = []
    _threads.run_split(lambda first, last: parts.append((first, last)), count, workers)
    assert len(parts) == min(count, workers)
    assert all(first < last for first, last in parts)
    assert sorted(i for part in parts for i in range(*part)) == list(range(count))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of POSIX")
@pytest.mark.parametrize("times", [1, 3])
def test_interrupts_come_after_all_parts(times):
    """Else a part would write into an array that its owner uses again, after Ctrl-C."""
    ended, left = [], [times]

    def task(first, last):
        if first > 0:
            threading.Event().wait(0.4)
            ended.append(first)

    def interrupt(*_):
        if left[0] > 0:
            left[0] -= 1
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.05)
        with pytest.raises(KeyboardInterrupt):
            _threads.run_parts(task, ((0, 1), (1, 2)))
        assert ended == [1]
        assert left == [0]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("posted", [0, 1])
def test_only_parts_that_were_posted_are_waited_for(posted, monkeypatch):
    """An interrupt may come before any is; then none will ever end."""
    waited = []

    def interrupted(posting, maxlen):
        for _ in range(posted):
            next(posting)
        raise KeyboardInterrupt

    monkeypatch.setattr(_threads, "deque", interrupted)
    monkeypatch.setattr(_threads, "_until_ended", lambda marks: waited.append(marks.size))
    with pytest.raises(KeyboardInterrupt):
        _threads.run_parts(lambda first, last: None, ((0, 1), (1, 2), (2, 3)))
    assert waited == [posted]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("bad", [0, 1, 2])
def test_errors_come_after_all_parts(kind, bad):
    """Whoever fails: the others end before, and the threads go on serving."""
    ended = []

    def task(first, last):
        if first == bad:
            raise kind(first)
        threading.Event().wait(0.05)
        ended.append(first)

    for _ in range(2):
        ended.clear()
        with pytest.raises(kind):
            _threads.run_split(task, 3, 3)
        assert sorted(ended) == [k for k in range(3) if k != bad]


def test_nothing_is_kept_alive():
    """Threads that wait hold on to no array of the call before."""
    array = np.zeros(4)
    held = weakref.ref(array)

    def task(first, last, array=array):
        array[first:last] = 1.0

    _threads.run_split(task, 4, 2)
    assert array.sum() == 4.0
    del task, array
    gc.collect()
    for _ in range(200):  # as long as it takes a thread to get there
        if held() is None:
            return
        threading.Event().wait(0.05)
    raise AssertionError("a thread holds on to the array")


def test_no_error_is_kept_alive():
    """With its traceback it has the arrays of the call."""
    kept = []

    def task(first, last):
        array = np.zeros(4)
        kept.append(weakref.ref(array))
        raise ValueError(array)

    with pytest.raises(ValueError, match="0"):
        _threads.run_split(task, 4, 2)
    for _ in range(200):
        gc.collect()
        if all(array() is None for array in kept):
            return
        threading.Event().wait(0.05)
    raise AssertionError("a thread holds on to an error")


def test_keywords_of_a_part_are_not_lost(monkeypatch):
    """A desk has no place for them."""
    _, desks, waiting = _threads._start()
    handed, seen = [], []
    monkeypatch.setattr(waiting, "hand_out", lambda *given: handed.append(given))

    def task(add, first, last, times=1):
        seen.extend(times * i + add for i in range(first, last))

    _threads.run_split(partial(task, 1), 4, 2)
    assert handed == [(task, (1,), ((0, 2), (2, 4)), desks)]
    _threads.run_split(partial(task, 5, times=10), 4, 2)
    assert len(handed) == 1
    assert sorted(seen) == [1, 2, 3, 4, 5, 15, 25, 35]


def test_more_workers_than_any_integer():
    assert _threads.resolve_workers(10**30) >= 2**31
    x = np.random.default_rng(0).standard_normal(1 << 20)  # the threads share it
    got = ch.project_cai(x, 9e4, workers=10**30)
    np.testing.assert_array_equal(got, ch.project_cai(x, 9e4))


ONE_PROCESSOR = """
import os
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])
from conehoyer import get_workers, set_workers
with set_workers(-1):
    print(get_workers())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no way to choose processors")
def test_processors_that_the_process_must_not_use_do_not_count():
    done = subprocess.run([sys.executable, "-c", ONE_PROCESSOR], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


AT_ONCE = """
import threading
from conehoyer import _threads

start, before = threading.Barrier(6), threading.active_count()

def come():
    start.wait()
    _threads.run_split(lambda first, last: None, 4, 4)

callers = [threading.Thread(target=come) for _ in range(6)]
for caller in callers:
    caller.start()
for caller in callers:
    caller.join()
print(threading.active_count() - before)
"""


def test_threads_start_once_whoever_comes_first():
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True)
    assert done.stdout == f"{max(processors() - 1, 1)}\n", done.stderr
