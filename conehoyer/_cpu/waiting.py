"""Waiting for other threads: awake for a moment, and without the interpreter's lock.

A thread that sleeps takes a while to wake up, on a virtual machine some 40 µs and at times on the
processor that the other thread has, and a call of several passes would wait that long for each.
Who waits awake yields the processor to other threads, and goes to sleep if they keep it for long.
"""

import platform
import time
from functools import partial
from timeit import repeat

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .._jit import helper, kernel

# x86 has an instruction for such loops, which leaves the core to its other thread for a while.
PAUSE = "llvm.x86.sse2.pause" if platform.machine().lower() in ("x86_64", "amd64") else ""
CLOCK = getattr(time, "CLOCK_MONOTONIC", None)  # without it, as on Windows, threads sleep at once
AWAKE = 0 if CLOCK is None else 1_000_000  # ns that a thread waits before it goes to sleep
LEAD = 18  # short calls of a kernel, after which who hands out parts is in one: the lock is free
LONG = AWAKE // 2  # ns after which it is better to sleep, if another thread had the processor
LOOKS = 32  # between two looks at the clock


def _call(builder, name, result, *args):
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


@intrinsic
def _now(typingctx, array, index):
    """``array[index]``, read from memory each time."""

    def codegen(context, builder, signature, args):
        if PAUSE:
            _call(builder, PAUSE, ir.VoidType())
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "monotonic", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def _mark(typingctx, array, index):
    """``array[index] = 1``, for other threads to see."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        one = context.get_constant(types.int64, 1)
        builder.store_atomic(one, builder.gep(data, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def _clock(typingctx):
    """The time in ns, after another thread had the processor if one waited for it."""

    def codegen(context, builder, signature, args):
        i32, i64 = ir.IntType(32), ir.IntType(64)
        if CLOCK is None:
            return i64(0)
        _call(builder, "sched_yield", i32)
        parts = cgutils.alloca_once(builder, ir.ArrayType(i64, 2))
        _call(builder, "clock_gettime", i32, i32(CLOCK), parts)
        seconds, rest = (builder.extract_value(builder.load(parts), i) for i in range(2))
        return builder.add(builder.mul(seconds, i64(1_000_000_000)), rest)

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


@kernel
def rest(marks, place, posted, seen, lead):
    """Set a mark, and wait until another number than `seen` is posted, or for a moment.

    The mark is set here, without the interpreter's lock, so that who waits for it has the lock at
    once; and who has posted is left `lead` ns to be in a kernel, where it needs the lock no more.
    """
    _mark(marks, place)
    if seen >= 0 and _other(posted, 0, seen, AWAKE):
        _other(posted, 0, _now(posted, 0), min(lead, AWAKE))


def find_lead(posted):
    """How many ns who hands out parts takes to be in a kernel, by how long a short call takes.

    Too many are waited for nothing; with too few both want the lock, and one goes to sleep.
    """
    call = partial(rest, np.zeros(1, np.int64), 0, posted, -1, 0)
    call()  # compiles
    return int(min(1e9 * LEAD * min(repeat(call, number=5, repeat=9)) / 5, 12_000))
