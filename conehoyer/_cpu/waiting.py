"""Waiting for other threads: awake for a moment, and without the interpreter's lock.

A thread that sleeps takes a while to wake up, on a virtual machine some 40 µs and at times on the
processor that the other thread has, and a call of several passes would wait that long for each.
"""

import os
import platform
from functools import cache
from time import perf_counter

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .._jit import helper, kernel

# x86 has an instruction for such loops, which leaves the core to its other thread for a while.
PAUSE = "llvm.x86.sse2.pause" if platform.machine().lower() in ("x86_64", "amd64") else ""
YIELD = "sched_yield" if os.name == "posix" else ""
OFTEN = 128  # looks after each of which the processor goes to another thread that wants it
AWAKE = 2e-4  # seconds that a thread waits before it goes to sleep
LEAD = 1.2e-5  # seconds after which who hands out parts is in a kernel, and the lock is free


@intrinsic
def _now(typingctx, array, index):
    """``array[index]``, read from memory each time."""

    def codegen(context, builder, signature, args):
        if PAUSE:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, PAUSE), [])
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.load_atomic(builder.gep(data, [args[1]]), "monotonic", 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def _yield(typingctx):
    """Let another thread have the processor, if one waits for it."""

    def codegen(context, builder, signature, args):
        if YIELD:
            kind = ir.FunctionType(ir.IntType(32), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, YIELD), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _mark(typingctx, array, index):
    """``array[index] = 1``, for other threads to see."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        one = context.get_constant(types.int64, 1)
        builder.store_atomic(one, builder.gep(data, [args[1]]), "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@helper
def _look(array, place, i):
    """``array[place]``, for the i-th time."""
    if i % OFTEN == OFTEN - 1:
        _yield()
    return _now(array, place)


@kernel
def for_all(marks, looks):
    """Wait until no mark is 0, but for so many looks at most."""
    j = 0
    for i in range(looks):
        if _look(marks, j, i) != 0:
            j += 1
            if j == marks.size:
                break


@kernel
def rest(marks, place, posted, seen, looks, more):
    """Set a mark, and wait for another number than `seen` to be posted, but for so many looks.

    Then look so many times more.  The mark is set here, without the interpreter's lock, so that
    who waits for it has the lock at once.
    """
    _mark(marks, place)
    for i in range(looks):
        if _look(posted, 0, i) != seen:
            for k in range(more):
                _look(posted, 0, k)
            break


@cache
def looks(seconds) -> int:
    """How many looks take so long here."""
    never, most, count = np.zeros(1, np.int64), 0.0, 2000
    for_all(never, 1)  # compiles
    rest(never.copy(), 0, never, 0, 1, 0)
    for _ in range(5):  # the fastest: a thread may lose its processor in between
        start = perf_counter()
        for_all(never, count)
        most = max(most, count / (perf_counter() - start))
    return round(most * seconds)
