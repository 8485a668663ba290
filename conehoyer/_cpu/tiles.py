"""Tiles of a matrix product in vector registers, as Numba intrinsics.

A tile is a tuple of ``rows`` times ``vecs`` registers.  The two numbers are told by the lengths
of tuples: so they are part of the kernels' signatures, each shape is compiled by itself, and
Numba's disk cache knows them apart.  LLVM splits registers that the machine does not have.
"""

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from . import simd

_INDEX = ir.IntType(64)
_PLACE = ir.IntType(32)


def _machine():
    """Bits of a vector register, and how many of them a tile may take."""
    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 512, 16
    if features.get("avx"):
        return 256, 12
    return 128, 16


BITS, ACCUMULATORS = _machine()


def lanes_of(dtype) -> int:
    """Entries of a register."""
    return BITS // (8 * dtype.itemsize)


def _register(dtype):
    return simd.Vec(dtype, BITS // dtype.bitwidth)


def _tile(dtype, rows, vecs):
    return types.UniTuple(_register(dtype), rows.count * vecs.count)


def _start(context, builder, array, value, index):
    """Address of an entry."""
    return builder.gep(context.make_array(array)(context, builder, value).data, [index])


def _registers(builder, pointer, vec, count):
    """Addresses of so many registers, one behind the other."""
    first = builder.bitcast(pointer, simd._llvm(vec).as_pointer())
    return [builder.gep(first, [ir.Constant(_INDEX, v)]) for v in range(count)]


@intrinsic
def lanes(typingctx, array):
    """Entries of `array` in one register."""

    def codegen(context, builder, signature, args):
        return context.get_constant(types.intp, BITS // array.dtype.bitwidth)

    return types.intp(array), codegen


@intrinsic
def zero_tile(typingctx, like, rows, vecs):
    """A tile of zeros of the array's kind."""
    tile = _tile(like.dtype, rows, vecs)

    def codegen(context, builder, signature, args):
        zero = ir.Constant(simd._llvm(tile.dtype), None)
        return cgutils.pack_array(builder, [zero] * len(tile))

    return tile(like, rows, vecs), codegen


@intrinsic
def add_outer(typingctx, tile, rows, vecs, scalars, place, step, vectors, start):
    """``tile[i, v] += scalars[place + i * step] * vectors[start + v * lanes:]``, fused."""
    vec = tile.dtype

    def codegen(context, builder, signature, args):
        given, _, _, held, where, stride, others, begin = args
        entries = cgutils.unpack_tuple(builder, given)
        pointer = _start(context, builder, vectors, others, begin)
        loaded = []
        for address in _registers(builder, pointer, vec, vecs.count):
            loaded.append(builder.load(address))
            loaded[-1].align = vec.element.bitwidth // 8
        scalar = _start(context, builder, scalars, held, where)
        undefined = ir.Constant(simd._llvm(vec), ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(_PLACE, vec.lanes), [0] * vec.lanes)
        for i in range(rows.count):
            first = builder.insert_element(undefined, builder.load(scalar), ir.Constant(_PLACE, 0))
            spread = builder.shuffle_vector(first, undefined, everywhere)
            for v in range(vecs.count):
                k = i * vecs.count + v
                name = simd._intrinsic_name("fma", vec)
                terms = [spread, loaded[v], entries[k]]
                entries[k] = simd._call(builder, name, simd._llvm(vec), terms)
            scalar = builder.gep(scalar, [stride])
        return cgutils.pack_array(builder, entries)

    number = types.intp
    return tile(tile, rows, vecs, scalars, number, number, vectors, number), codegen


@intrinsic
def load_tile(typingctx, rows, vecs, array, start, step):
    """The tile whose row i begins at ``array[start + i * step]``."""
    tile = _tile(array.dtype, rows, vecs)
    vec = tile.dtype

    def codegen(context, builder, signature, args):
        _, _, values, begin, stride = args
        row = _start(context, builder, array, values, begin)
        entries = []
        for _ in range(rows.count):
            for address in _registers(builder, row, vec, vecs.count):
                entries.append(builder.load(address))
                entries[-1].align = vec.element.bitwidth // 8
            row = builder.gep(row, [stride])
        return cgutils.pack_array(builder, entries)

    return tile(rows, vecs, array, types.intp, types.intp), codegen


@intrinsic
def store_tile(typingctx, tile, rows, vecs, array, start, step):
    """Store row i of the tile at ``array[start + i * step:]``."""
    vec = tile.dtype

    def codegen(context, builder, signature, args):
        given, _, _, values, begin, stride = args
        entries = iter(cgutils.unpack_tuple(builder, given))
        row = _start(context, builder, array, values, begin)
        for _ in range(rows.count):
            for address in _registers(builder, row, vec, vecs.count):
                builder.store(next(entries), address).align = vec.element.bitwidth // 8
            row = builder.gep(row, [stride])
        return context.get_dummy_value()

    return types.void(tile, rows, vecs, array, types.intp, types.intp), codegen
