"""Waiting for other threads: awake for a moment, and without the interpreter's lock.

A thread that sleeps takes a while to wake up, on a virtual machine more, and a call of several
passes would wait that long for each of them.
"""

import platform

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from .._jit import kernel

# x86 has an instruction for such loops, which leaves the core to its other thread for a while.
PAUSE = "llvm.x86.sse2.pause" if platform.machine().lower() in ("x86_64", "amd64") else ""
LOOKS = 4000 if PAUSE else 100_000  # some 0.1 ms: `bench_calls.Waiting`


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


@kernel
def for_all(marks):
    """Wait until no mark is 0, or for a moment."""
    j = 0
    for _ in range(LOOKS):
        if _now(marks, j) != 0:
            j += 1
            if j == marks.size:
                break
