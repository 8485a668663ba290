"""Waiting for other threads, and for work: awake for a moment, without the interpreter's lock.

A thread that sleeps takes a while to wake up, on a virtual machine some 40 µs and at times on the
processor that the other thread has, and a call of several passes would wait that long for each.
Who waits awake yields the processor to other threads, and goes to sleep if they keep it for long.

A thread that is awake takes a part of a kernel's work from its desk, and nothing of Python runs
between that and the part (``bench_calls.Desks``).
"""

import platform
import time
from functools import cache, lru_cache, partial
from timeit import repeat
from types import FunctionType

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

from .._jit import helper, kernel
from .apart import address_of, call

# x86 has an instruction for such loops, which leaves the core to its other thread for a while.
PAUSE = "llvm.x86.sse2.pause" if platform.machine().lower() in ("x86_64", "amd64") else ""
CLOCK = getattr(time, "CLOCK_MONOTONIC", None)  # without it, as on Windows, threads sleep at once
AWAKE = 0 if CLOCK is None else 1_000_000  # ns that a thread waits before it goes to sleep
LEAD = 18  # short calls of a kernel, after which who hands out parts is in one: the lock is free
LONG = AWAKE // 2  # ns after which it is better to sleep, if another thread had the processor
LOOKS = 32  # between two looks at the clock
NAP = 50  # µs between two looks, where a part takes long

# The desk of a thread has its state, and where to find what to do: the function that does it, what
# that is given, and the row of the part.  And how many calls hold the thread.
STATE, CALL, GIVEN, ROW, HELD, DESK = 0, 1, 2, 3, 4, 16  # no line of the cache with another's
AWAY, READY, TAKEN, POSTED = range(4)
# The row of a part: whether it is done, at which desk, and the part.
DONE, PLACE, PART = range(3)
ALL_DONE, FAILED, NOBODY, UNKNOWN = range(4)  # what comes of handing out


I32, I64 = ir.IntType(32), ir.IntType(64)


def _extern(builder, name, result, *args):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _entry(context, builder, array, value, index):
    """Where ``array[index]`` of an array of int64 lies."""
    return builder.gep(context.make_array(array)(context, builder, value).data, [index])


@intrinsic
def _now(typingctx, array, index):
    """``array[index]``, read from memory each time, and before what is read after it."""

    def codegen(context, builder, signature, args):
        if PAUSE:
            _extern(builder, PAUSE, ir.VoidType())
        return builder.load_atomic(_entry(context, builder, array, *args), "acquire", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def _put(typingctx, array, index, value):
    """``array[index] = value``, for other threads to see, and what was written before."""

    def codegen(context, builder, signature, args):
        place = _entry(context, builder, array, *args[:2])
        builder.store_atomic(args[2], place, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), codegen


@intrinsic
def _exchange(typingctx, array, index, old, new):
    """``array[index] = new`` if it is `old`, and no other thread comes between; whether it was."""

    def codegen(context, builder, signature, args):
        place = _entry(context, builder, array, *args[:2])
        return builder.extract_value(builder.cmpxchg(place, *args[2:], "acq_rel", "monotonic"), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), codegen


@intrinsic
def _nap(typingctx):
    def codegen(context, builder, signature, args):
        if CLOCK is not None:
            _extern(builder, "usleep", I32, I32(NAP))
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _clock(typingctx):
    """The time in ns, after another thread had the processor if one waited for it."""

    def codegen(context, builder, signature, args):
        if CLOCK is None:
            return I64(0)
        _extern(builder, "sched_yield", I32)
        parts = cgutils.alloca_once(builder, ir.ArrayType(I64, 2))
        _extern(builder, "clock_gettime", I32, I32(CLOCK), parts)
        seconds, rest = (builder.extract_value(builder.load(parts), i) for i in range(2))
        return builder.add(builder.mul(seconds, I64(1_000_000_000)), rest)

    return types.int64(), codegen


@helper
def _other(array, place, value, wait):
    """Wait until ``array[place]`` is not `value`, for so many ns at most; returns whether it is.

    It gives up where another thread has kept the processor for long.
    """
    start = last = _clock()
    while _now(array, place) == value:
        for _ in range(LOOKS):
            if _now(array, place) != value:
                return True
        now = _clock()
        if now - start >= wait or now - last > LONG:
            return False
        last = now
    return True


@kernel
def for_all(marks):
    """Wait until no mark is 0, or for a moment."""
    for place in range(marks.size):
        if not _other(marks, place, 0, AWAKE):
            break


@intrinsic
def _serve(typingctx, desk):
    """Do what was posted at a desk; returns what becomes of ``row[DONE]``."""

    def codegen(context, builder, signature, args):
        call, given, row = (
            builder.load(_entry(context, builder, desk, args[0], I64(place)))
            for place in (CALL, GIVEN, ROW)
        )
        return builder.call(builder.inttoptr(call, _KIND_OF_PART.as_pointer()), (given, row))

    return types.int64(desk), codegen


@intrinsic
def _tell(typingctx, row, value):
    """``row[DONE] = value``, for other threads to see; `row` is an address."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _word(builder, args[0], DONE), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@kernel
def rest(marks, place, posted, seen, lead, desk):
    """Set a mark, and wait for a moment: do what is posted at the desk, until anything else is.

    That is where ``posted[0]`` is another number than `seen`.  The mark is set here, without the
    interpreter's lock, so that who waits for it has the lock at once; and who has posted is left
    `lead` ns to be in a kernel, where it needs the lock no more.
    """
    _put(marks, place, 1)
    if seen < 0 or AWAKE == 0:
        return
    _put(desk, STATE, READY)
    start = last = _clock()
    while True:
        called, looks = False, 0
        while looks < LOOKS and not called:
            called = _now(posted, 0) != seen
            if _now(desk, STATE) == POSTED:
                row, result = desk[ROW], _serve(desk)
                called = _now(posted, 0) != seen
                _put(desk, STATE, AWAY if called else READY)
                _tell(row, result)  # now who waits may go on, and post again
                start = last = _clock()
                looks = 0
            looks += 1
        now = _clock()
        tired = (now - start >= AWAKE or now - last > LONG) and _now(desk, HELD) <= 0
        if called or tired:
            if _now(desk, STATE) == AWAY or _exchange(desk, STATE, READY, AWAY):
                break
        last = now
    if called:
        _other(posted, 0, _now(posted, 0), min(lead, AWAKE))


@kernel
def until_ready(desks, count):
    """Wait until so many threads are at their desks, or for a moment."""
    start = _clock()
    while _clock() - start < AWAKE:
        ready = 0
        for place in range(len(desks)):
            ready += _now(desks[place], STATE) == READY
        if ready >= count:
            break


def find_lead(posted):
    """How many ns who hands out parts takes to be in a kernel, by how long a short call takes.

    Too many are waited for nothing; with too few both want the lock, and one goes to sleep.
    """
    call = partial(rest, np.zeros(1, np.int64), 0, posted, -1, 0, np.zeros(DESK, np.int64))
    call()  # compiles
    return int(min(1e9 * LEAD * min(repeat(call, number=5, repeat=9)) / 5, 12_000))


# --- handing out -------------------------------------------------------------------------------

_KIND_OF_PART = ir.FunctionType(I64, (I64, I64))  # of what is given, and of a row


def _word(builder, address, place):
    return builder.gep(builder.inttoptr(address, I64.as_pointer()), [I64(place)])


@cache
def _part_at(more):
    """For kernels that take so many integers, the part, behind what they are given."""

    @intrinsic
    def part_at(typingctx, given):
        """The address of a function that does a part; ``given[0]`` is the kernel's address.

        It returns 1, or 2 for an error: in a kernel there is none but for memory that cannot be
        had.
        """
        kinds = (*given.types[1:], *(types.int64,) * more)

        def codegen(context, builder, signature, args):
            name = builder.module.get_unique_name(f"{builder.function.name}.part")
            function = ir.Function(builder.module, _KIND_OF_PART, name)
            function.linkage = "internal"
            inner = ir.IRBuilder(function.append_basic_block())
            place = inner.inttoptr(function.args[0], context.get_value_type(given).as_pointer())
            address, *values = cgutils.unpack_tuple(inner, inner.load(place), len(given))
            values += [inner.load(_word(inner, function.args[1], PART + k)) for k in range(more)]
            status = call(context, inner, address, kinds, values)
            inner.ret(inner.select(status.is_error, I64(2), I64(1)))
            return builder.ptrtoint(function, I64)

        return types.int64(given), codegen

    return part_at


@intrinsic
def _address_of(typingctx, args):
    """Where `args` lie, until the function that calls this returns."""

    def codegen(context, builder, signature, values):
        place = cgutils.alloca_once(builder, values[0].type)
        builder.store(values[0], place)
        return builder.ptrtoint(place, I64)

    return types.int64(args), codegen


@intrinsic
def _remembered(typingctx, address):
    """The last `address` but 0 that the compiled function was given in this process, or 0."""

    def codegen(context, builder, signature, args):
        cell = ir.GlobalVariable(builder.module, I64, f"{builder.function.name}.address")
        cell.linkage, cell.initializer = "internal", I64(0)
        with builder.if_then(builder.icmp_unsigned("!=", args[0], I64(0))):
            builder.store_atomic(args[0], cell, "monotonic", 8)
        return builder.load_atomic(cell, "monotonic", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _do(typingctx, call, given, row):
    """The part in a row, here."""

    def codegen(context, builder, signature, args):
        function = builder.inttoptr(args[0], _KIND_OF_PART.as_pointer())
        return builder.call(function, args[1:])

    return types.int64(types.int64, types.int64, types.int64), codegen


@helper
def _take(desks, rows):
    """Take the desks of threads awake, for all rows but the first; returns the number of rows."""
    taken = 1
    for place in range(len(desks)):
        if taken < len(rows) and _exchange(desks[place], STATE, READY, TAKEN):
            rows[taken, PLACE] = place
            taken += 1
    return taken


@helper
def _do_all(call, given, desks, rows):
    """Do the parts in the rows, but for the first at the desks taken; returns the worst result."""
    for r in range(1, len(rows)):
        desk = desks[rows[r, PLACE]]
        desk[CALL], desk[GIVEN], desk[ROW] = call, given, rows[r].ctypes.data
        _put(desk, STATE, POSTED)
    worst = _do(call, given, rows[0].ctypes.data)
    for r in range(1, len(rows)):
        while not _other(rows[r], DONE, 0, AWAKE):  # as long as the thread is at it, it must wait
            _nap()
        worst = max(worst, rows[r, DONE])
    return worst


@helper
def _do_split(call, given, count, workers, desks):
    """Do parts of range(count), here and at the desks of threads awake."""
    rows = np.zeros((max(min(workers, count), 1), PART + 2), np.int64)
    rows = rows[: _take(desks, rows)]
    for r in range(len(rows)):
        rows[r, PART] = count * r // len(rows)
        rows[r, PART + 1] = count * (r + 1) // len(rows)
    if _do_all(call, given, desks, rows) > 1:
        raise MemoryError("no memory for what a kernel needs")


_part_of_range = _part_at(2)


@helper
def split_at(address, taken, count, workers, desks):
    """Have the kernel at an address do range(count) in parts, as many as there are workers.

    It is given what an `apart.taker` has taken, and the first and last of the part.  The threads at
    the desks that are awake do some parts, and the rest is done here.
    """
    given = (address, *taken)
    _do_split(_part_of_range(given), _address_of(given), count, workers, desks)


def _share(address, desks, rows, *args):
    """Call a kernel for each of the rows: the first here, the others at desks of threads awake.

    Either all parts are done or none is begun.
    """
    address = _remembered(address)
    if address == 0:
        return UNKNOWN
    taken = _take(desks, rows)
    if taken < len(rows):
        for r in range(1, taken):
            _put(desks[rows[r, PLACE]], STATE, READY)
        return NOBODY
    given = (address, *args)
    call = _part_at(given)
    return FAILED if _do_all(call, _address_of(given), desks, rows) > 1 else ALL_DONE


@cache
def _sharing(called, count):
    """`_share` for a kernel that is given so many arguments, and how many more it takes."""
    function = called.py_func
    more = function.__code__.co_argcount - count
    given = globals() | {"_part_at": _part_at(more), "__name__": function.__module__}
    twin = FunctionType(_share.__code__, given, f"share_{function.__name__}")
    twin.__qualname__ = f"{function.__module__}.{twin.__name__}"  # the cache knows it by that
    return kernel(twin), more


@lru_cache(maxsize=256)
def _rows_of(parts):
    return np.array([(0, 0, *part) for part in parts], np.int64)


def hand_out(called, args, parts, desks) -> bool:
    """Call ``called(*args, *part)`` for all parts, the first here; False if nobody is there for it.

    The threads of the desks run them if they are awake, and `called` is a kernel.
    """
    if not isinstance(called, Dispatcher):
        return False
    share, more = _sharing(called, len(args))
    rows = _rows_of(parts).copy()
    result = share(0, desks, rows, *args)
    if result == UNKNOWN:
        kinds = (*map(numba.typeof, args), *(types.int64,) * more)
        result = share(address_of(called, kinds), desks, rows, *args)
    if result == FAILED:
        raise MemoryError("no memory for what a kernel needs")
    return result == ALL_DONE
