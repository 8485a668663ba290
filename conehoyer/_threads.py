"""How many threads, and where they come from.

A ``concurrent.futures`` pool would do the same, but takes longer to hand out the parts of a call
(``bench_calls.Parts``), and a call of a few hundred µs has not much more than that to gain.
"""

import contextlib
import contextvars
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import pairwise
from operator import length_hint
from queue import SimpleQueue
from time import perf_counter_ns, sleep
from typing import Any

import numpy as np

_workers = contextvars.ContextVar("conehoyer_workers", default=1)
MOST = 1 << 40  # more threads than parts; a kernel takes no integer beyond 64 bits
DEALT_FROM = 1 << 20  # bytes of data below which dealing out a loop takes longer than one thread
NOBODY = np.zeros((0, 16), np.int64)  # desks of no threads
_lock = threading.Lock()
_team: tuple[SimpleQueue, np.ndarray, Any] | None = None  # see `_start`
_posted = np.zeros(1, np.int64)  # how many times parts were handed out
RECENT = 1_000_000  # ns, about as long as threads stay awake
_ended = -RECENT  # see `end_now`


def _available() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_workers(workers: int | None) -> int:
    """The number of threads meant by a `workers` argument."""
    if workers is None:
        return _workers.get()
    if type(workers) is int and 0 < workers <= MOST:  # the usual case, told quickly
        return workers
    try:
        if isinstance(workers, bool):
            raise TypeError
        count = operator.index(workers)
    except TypeError:
        raise TypeError(f"workers must be an integer or None, got {workers!r}") from None
    if count < 0:
        count += _available() + 1
    if count < 1:
        raise ValueError(
            f"workers must be a positive integer, or negative down to -{_available()} to "
            f"count from all processors that the process may use, got {workers!r}"
        )
    return min(count, MOST)


@contextlib.contextmanager
def set_workers(workers: int | None) -> Iterator[None]:
    """Set the default number of threads within a ``with`` block.

    A call without ``with`` sets nothing.

    Parameters
    ----------
    workers : int or None
        The value that ``workers=None`` stands for inside the block.  Negative numbers
        count from the processors that the process may use: -1 means all of them.  None
        leaves the value in force.

    Yields
    ------
    None
        Nothing: ``with set_workers(2):`` has no ``as``.

    Raises
    ------
    ValueError
        If `workers` is 0 or below minus the number of processors.
    TypeError
        If `workers` is neither an integer nor None; booleans are none.

    See Also
    --------
    get_workers : The value in force.

    Examples
    --------
    >>> import conehoyer
    >>> with conehoyer.set_workers(2):
    ...     conehoyer.get_workers()
    2
    """
    token = _workers.set(resolve_workers(workers))
    try:
        yield
    finally:
        _workers.reset(token)


def get_workers() -> int:
    """Return the default number of threads in the current context, 1 unless set.

    Returns
    -------
    int
        What ``workers=None`` stands for.

    See Also
    --------
    set_workers : Set it within a ``with`` block.

    Examples
    --------
    >>> import conehoyer
    >>> conehoyer.get_workers()
    1
    """
    return _workers.get()


def _start() -> tuple[SimpleQueue, np.ndarray, Any]:
    """The queue of jobs, the threads' desks, and what they wait by; starts the threads once."""
    from ._cpu import waiting  # imports Numba, which those who only ask for the number don't need

    global _team
    with _lock:
        if _team is None:
            lead = waiting.find_lead(_posted)  # compiles, not in a thread of ours
            jobs: SimpleQueue = SimpleQueue()
            desks = np.zeros((max(_available() - 1, 1), waiting.DESK), np.int64)
            for number, desk in enumerate(desks):
                name = f"conehoyer_{number}"
                given = jobs, lead, desk
                threading.Thread(target=_serve, args=given, name=name, daemon=True).start()
            _team = jobs, desks, waiting
        return _team


def _serve(jobs: SimpleQueue, lead: int, desk: np.ndarray) -> None:
    """Take parts for ever, and stay awake for a moment after each: a call may hand out several."""
    from ._cpu import waiting

    while True:
        task, part, done, ended, place = jobs.get()
        error = None
        try:
            task(*part)
        except BaseException as caught:
            error = caught
        done.put(error)
        del task, done, error  # nothing is kept alive while the thread waits
        seen = _posted[0]
        waiting.rest(ended, place, _posted, seen if jobs.empty() else -1, lead, desk)


def team(workers: int) -> np.ndarray:
    """The desks of the threads for so many workers, who are awake or about to be."""
    if workers == 1:
        return NOBODY
    jobs, desks, waiting = _team or _start()
    if not waiting.AWAKE:
        return NOBODY
    states = desks[:, waiting.STATE].tolist()
    ready = states.count(waiting.READY)
    # Those that are at work for another call are not waited for.
    asleep = min(workers - 1 - ready, states.count(waiting.AWAY))
    if asleep > 0:
        for _ in range(asleep - jobs.qsize()):
            jobs.put((_come, (), SimpleQueue(), np.zeros(1, np.int64), 0))
        waiting.until_ready(desks, ready + asleep)
    return desks


def just_ended() -> bool:
    """Whether a call that threads may share has ended a moment ago: there may be many in a row.

    To wake threads up takes as long as they would save a single call of a few hundred µs.
    """
    return perf_counter_ns() - _ended < RECENT


def end_now() -> None:
    """Say that such a call ends."""
    global _ended
    _ended = perf_counter_ns()


def _come() -> None:
    pass


def _forget_threads() -> None:
    """A forked child has none of its parent's threads: it starts its own."""
    global _team, _lock
    _team, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def run_split(task: Callable[[int, int], object], count: int, workers: int) -> None:
    """Call ``task(first, last)`` on contiguous parts of range(count), one a worker."""
    workers = min(workers, count)
    if workers <= 1:
        task(0, count)
        return
    run_parts(task, _even_parts(count, workers))


@lru_cache(maxsize=256)
def _even_parts(count: int, workers: int) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(count * w // workers for w in range(workers + 1)))


@lru_cache(maxsize=256)
def numbered_parts(count: int, workers: int) -> tuple[tuple[int, int, int], ...]:
    """Contiguous parts of range(count) for `run_parts`, one a worker: first, last, and number."""
    parts = _even_parts(count, min(workers, count))
    return tuple((*part, number) for number, part in enumerate(parts))


def run_parts(task: Callable[..., object], parts: tuple[tuple[int, ...], ...]) -> None:
    """Call ``task(*part)`` for each of the parts, each in a thread, the first in this one.

    Threads that are awake need no Python if the task is a `partial` of a kernel.
    """
    if len(parts) == 1:
        task(*parts[0])
        return
    jobs, desks, waiting = _team or _start()
    if type(task) is partial and not task.keywords:
        if waiting.hand_out(task.func, task.args, parts, desks):
            return
    done: SimpleQueue = SimpleQueue()
    ended = np.zeros(len(parts) - 1, np.int64)
    rest = iter([(task, part, done, ended, place) for place, part in enumerate(parts[1:])])
    posting = map(jobs.put, rest)
    try:
        deque(posting, maxlen=0)  # an interrupt, as of Ctrl-C, comes before or after all of it
        _posted[0] += 1
        task(*parts[0])
        waiting.for_all(ended)
        errors = [done.get() for _ in ended]
    except BaseException:
        _until_ended(ended[: len(ended) - length_hint(rest)])
        raise
    for error in errors:
        if error is not None:
            raise error


def _until_ended(marks: np.ndarray) -> None:
    """Wait until no mark is 0, whatever interrupts: the parts write to arrays of the caller."""
    while True:
        try:
            while not marks.all():
                sleep(0.001)
            return
        except BaseException:  # the first one is raised in the end
            continue
