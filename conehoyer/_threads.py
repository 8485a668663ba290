"""How many threads, and where they come from.

A ``concurrent.futures`` pool would do the same, but takes longer to hand out the parts of a call
(``bench_calls.Parts``), and a call of a few hundred µs has not much more than that to gain.
"""

import contextlib
import contextvars
import operator
import os
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import numpy as np

_workers = contextvars.ContextVar("conehoyer_workers", default=1)
DEALT_FROM = 1 << 20  # bytes of data below which dealing out a loop takes longer than one thread
_lock = threading.Lock()
_jobs: SimpleQueue | None = None
_posted = np.zeros(1, np.int64)  # how many times parts were handed out


def _available() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def resolve_workers(workers: int | None) -> int:
    """The number of threads meant by a `workers` argument."""
    if workers is None:
        return _workers.get()
    try:
        count = operator.index(workers)
    except TypeError:
        raise TypeError(f"workers must be an integer or None, got {workers!r}") from None
    if count < 0:
        count += _available() + 1
    if count < 1:
        raise ValueError(
            f"workers must be a positive integer, or negative down to -{_available()} to "
            f"count from all of the machine's processors, got {workers!r}"
        )
    return count


@contextlib.contextmanager
def set_workers(workers: int) -> Iterator[None]:
    """Set the default number of threads within a ``with`` block.

    Parameters
    ----------
    workers : int
        The value that ``workers=None`` stands for inside the block.  Negative numbers
        count from the machine's processors: -1 means all of them.

    Yields
    ------
    None
        Nothing: ``with set_workers(2):`` has no ``as``.

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


def _get_jobs() -> SimpleQueue:
    """The queue of jobs; the first call starts the threads that wait at it."""
    from ._cpu import waiting  # imports Numba, which those who only ask for the number don't need

    global _jobs
    with _lock:
        if _jobs is None:
            lead = waiting.find_lead(_posted)  # compiles, not in a thread of ours
            jobs: SimpleQueue = SimpleQueue()
            for number in range(max(_available() - 1, 1)):
                name = f"conehoyer_{number}"
                threading.Thread(target=_serve, args=(jobs, lead), name=name, daemon=True).start()
            _jobs = jobs
        return _jobs


def _serve(jobs: SimpleQueue, lead: int) -> None:
    """Take parts for ever, and stay awake for a moment after each: a call may hand out several."""
    from ._cpu import waiting

    while True:
        task, edges, part, done, ended = jobs.get()
        error = None
        try:
            task(edges[part], edges[part + 1])
        except BaseException as caught:
            error = caught
        done.put(error)
        del task, done, error  # nothing is kept alive while the thread waits
        seen = _posted[0]
        waiting.rest(ended, part - 1, _posted, seen if jobs.empty() else -1, lead)


def _forget_threads() -> None:
    """A forked child has none of its parent's threads: it starts its own."""
    global _jobs, _lock
    _jobs, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def run_split(task: Callable[[int, int], object], count: int, workers: int) -> None:
    """Call ``task(first, last)`` on contiguous parts of range(count), one a worker."""
    workers = min(workers, count)
    if workers <= 1:
        task(0, count)
        return
    from ._cpu import waiting

    edges = [count * w // workers for w in range(workers + 1)]
    jobs = _get_jobs()
    done: SimpleQueue = SimpleQueue()
    ended = np.zeros(workers - 1, np.int64)
    for part in range(1, workers):
        jobs.put((task, edges, part, done, ended))
    _posted[0] += 1
    try:
        task(edges[0], edges[1])
    finally:
        waiting.for_all(ended)
        errors = [done.get() for _ in range(workers - 1)]
    for error in errors:
        if error is not None:
            raise error
