"""Sixteen bytes at a time between global memory and a thread's registers.

One instruction and one address instead of four, and a few neighbouring threads fill whole sectors
of 32 bytes.  Numba has no names for it.
"""

from llvmlite import ir

from .device import SIMULATED, cuda

BYTES = 16  # of a wide word; its address must be a multiple


def are_aligned(*views):
    """Whether the rows of these matrices consist of wide words, and begin with one."""
    if any(view.shape[1] * view.dtype.itemsize % BYTES for view in views):
        return False
    return SIMULATED or all(view.pointer % BYTES == 0 for view in views)


def _address(context, builder, kind, array, index):
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


def _move(reading):
    """Code that moves a wide word from ``memory[at:]`` to ``held[k:]``, or back."""

    def define(typingctx, memory, at, held, k):
        count = BYTES * 8 // memory.dtype.bitwidth

        def codegen(context, builder, signature, args):
            i32 = ir.IntType(32)
            word = ir.VectorType(context.get_data_type(memory.dtype), count)
            far = args[1]
            if at.bitwidth < 64:
                far = builder.zext(far, ir.IntType(64))
            there = _address(context, builder, memory, args[0], far)
            there = builder.bitcast(there, word.as_pointer())
            first = builder.zext(args[3], ir.IntType(64))
            value = builder.load(there, align=BYTES) if reading else ir.Constant(word, ir.Undefined)
            for j in range(count):
                place = builder.add(first, ir.IntType(64)(j))
                here = _address(context, builder, held, args[2], place)
                if reading:
                    builder.store(builder.extract_element(value, i32(j)), here)
                else:
                    value = builder.insert_element(value, builder.load(here), i32(j))
            if not reading:
                builder.store(value, there, align=BYTES)
            return context.get_dummy_value()

        return _types.void(memory, at, held, _types.uint32), codegen

    return define


if SIMULATED:

    def fetch(memory, at, held, k):
        """``held[k : k + count] = memory[at : at + count]``, a wide word."""
        count = BYTES // memory.dtype.itemsize
        held[k : k + count] = memory[at : at + count]

    def put(memory, at, held, k):
        """``memory[at : at + count] = held[k : k + count]``, a wide word."""
        count = BYTES // memory.dtype.itemsize
        memory[at : at + count] = held[k : k + count]

else:
    from numba import types as _types

    fetch = cuda.extending.intrinsic(_move(True))
    put = cuda.extending.intrinsic(_move(False))
