"""float16, which Numba has no arrays of on the CPU, to float32 and back.

NumPy's conversion takes longer than this and a projection (``bench_projections.Converted``).
"""

import platform

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .._jit import helper, kernel
from . import simd

# Whether the machine converts registers; elsewhere LLVM would call a library that may not be there.
NATIVE = not simd.PLAIN and (
    bool({"f16c", "avx512f"} & simd.features())
    or platform.machine().lower() in ("arm64", "aarch64")
)
_LANES = 16


def _halves(builder, context, array, value, index):
    """Address of a register of halves."""
    data = context.make_array(array)(context, builder, value).data
    kind = ir.VectorType(ir.HalfType(), _LANES).as_pointer()
    return builder.bitcast(builder.gep(data, [index]), kind)


@intrinsic
def _load(typingctx, bits, index):
    """A register of float32 from the halves ``bits[index:]``."""
    vec = simd.Vec(types.float32, _LANES)

    def codegen(context, builder, signature, args):
        loaded = builder.load(_halves(builder, context, bits, args[0], args[1]))
        loaded.align = 2
        return builder.fpext(loaded, ir.VectorType(ir.FloatType(), _LANES))

    return vec(bits, index), codegen


@intrinsic
def _store(typingctx, a, bits, index):
    """Round a register of float32 to halves, to the nearest, ties to even."""

    def codegen(context, builder, signature, args):
        rounded = builder.fptrunc(args[0], ir.VectorType(ir.HalfType(), _LANES))
        done = builder.store(rounded, _halves(builder, context, bits, args[1], args[2]))
        done.align = 2
        return context.get_dummy_value()

    return types.void(a, bits, index), codegen


@helper
def _widen(bits, out):
    for i in range(0, bits.size, _LANES):
        simd.store(_load(bits, i), out, i)


@helper
def _narrow(values, bits):
    for i in range(0, bits.size, _LANES):
        _store(simd.load(values, i), bits, i)


@kernel
def widen(bits, out):
    """Convert halves to float32; `bits` are theirs."""
    whole = bits.size // _LANES * _LANES
    _widen(bits[:whole], out)
    rest, wide = np.zeros(_LANES, np.uint16), np.empty(_LANES, np.float32)
    rest[: bits.size - whole] = bits[whole:]
    _widen(rest, wide)
    out[whole:] = wide[: bits.size - whole]


@kernel
def narrow(values, bits):
    """Round float32 to halves; `bits` take theirs."""
    whole = bits.size // _LANES * _LANES
    _narrow(values, bits[:whole])
    rest, wide = np.empty(_LANES, np.uint16), np.zeros(_LANES, np.float32)
    wide[: bits.size - whole] = values[whole:]
    _narrow(wide, rest)
    bits[whole:] = rest[: bits.size - whole]
