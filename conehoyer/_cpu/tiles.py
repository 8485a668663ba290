"""Tiles of a matrix product in vector registers, as Numba intrinsics.

A tile is a tuple of ``rows`` times ``vecs`` registers.  The two numbers are told by the lengths
of tuples: so they are part of the kernels' signatures, each shape is compiled by itself, and
Numba's disk cache knows them apart.  LLVM splits registers that the machine does not have.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from . import simd

_INDEX = ir.IntType(64)
_PLACE = ir.IntType(32)


def _machine():
    """Bits of a vector register, how many of them a tile may take, and in how many rows."""
    features = simd.features()
    if "avx512f" in features:
        return 512, 16, 4
    if "avx" in features:
        return 256, 12, 6
    return 128, 16, 8


BITS, ACCUMULATORS, ROWS = _machine()


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
def evenly(typingctx, rows, start, step):
    """``(start, start + step, …)``, one for each row."""

    def codegen(context, builder, signature, args):
        places = [args[1]]
        for _ in range(rows.count - 1):
            places.append(builder.add(places[-1], args[2]))
        return cgutils.pack_array(builder, places)

    return types.UniTuple(types.intp, rows.count)(rows, types.intp, types.intp), codegen


@intrinsic
def anywhere(typingctx, rows, array, place, factor):
    """``(array[place] * factor, array[place + 1] * factor, …)``, one for each row."""

    def codegen(context, builder, signature, args):
        _, values, where, scale = args
        first = _start(context, builder, array, values, where)
        places = []
        for i in range(rows.count):
            found = builder.load(builder.gep(first, [ir.Constant(_INDEX, i)]))
            places.append(builder.mul(found, scale))
        return cgutils.pack_array(builder, places)

    return types.UniTuple(types.intp, rows.count)(rows, array, types.intp, types.intp), codegen


@intrinsic
def spread_tile(typingctx, vecs, array, places, place):
    """The tile whose row i is ``array[places[i] + place]`` everywhere."""
    tile = _tile(array.dtype, places, vecs)

    def codegen(context, builder, signature, args):
        _, values, where, shift = args
        first, entries = _start(context, builder, array, values, shift), []
        for offset in cgutils.unpack_tuple(builder, where):
            scalar = builder.load(builder.gep(first, [offset]))
            entries += [simd._spread(builder, scalar, tile.dtype.lanes)] * vecs.count
        return cgutils.pack_array(builder, entries)

    return tile(vecs, array, places, types.intp), codegen


@intrinsic
def add_outer(typingctx, tile, vecs, scalars, places, place, vectors, start):
    """``tile[i, v] += scalars[places[i] + place] * vectors[start + v * lanes:]``, fused."""
    vec = tile.dtype

    def codegen(context, builder, signature, args):
        given, _, held, where, shift, others, begin = args
        entries = cgutils.unpack_tuple(builder, given)
        pointer = _start(context, builder, vectors, others, begin)
        loaded = []
        for address in _registers(builder, pointer, vec, vecs.count):
            loaded.append(builder.load(address))
            loaded[-1].align = vec.element.bitwidth // 8
        first = _start(context, builder, scalars, held, shift)
        for i, offset in enumerate(cgutils.unpack_tuple(builder, where)):
            spread = builder.load(builder.gep(first, [offset]))
            spread = simd._spread(builder, spread, vec.lanes)
            for v in range(vecs.count):
                k = i * vecs.count + v
                name = simd._intrinsic_name("fma", vec)
                terms = [spread, loaded[v], entries[k]]
                entries[k] = simd._call(builder, name, simd._llvm(vec), terms)
        return cgutils.pack_array(builder, entries)

    return tile(tile, vecs, scalars, places, types.intp, vectors, types.intp), codegen


@intrinsic
def load_tile(typingctx, vecs, array, places, place):
    """The tile whose row i begins at ``array[places[i] + place]``."""
    tile = _tile(array.dtype, places, vecs)
    vec = tile.dtype

    def codegen(context, builder, signature, args):
        _, values, where, shift = args
        first, entries = _start(context, builder, array, values, shift), []
        for offset in cgutils.unpack_tuple(builder, where):
            row = builder.gep(first, [offset])
            for address in _registers(builder, row, vec, vecs.count):
                entries.append(builder.load(address))
                entries[-1].align = vec.element.bitwidth // 8
        return cgutils.pack_array(builder, entries)

    return tile(vecs, array, places, types.intp), codegen


@intrinsic
def store_tile(typingctx, tile, vecs, array, places, place):
    """Store row i of the tile at ``array[places[i] + place:]``."""
    vec = tile.dtype

    def codegen(context, builder, signature, args):
        given, _, values, where, shift = args
        entries = iter(cgutils.unpack_tuple(builder, given))
        first = _start(context, builder, array, values, shift)
        for offset in cgutils.unpack_tuple(builder, where):
            row = builder.gep(first, [offset])
            for address in _registers(builder, row, vec, vecs.count):
                builder.store(next(entries), address).align = vec.element.bitwidth // 8
        return context.get_dummy_value()

    return types.void(tile, vecs, array, places, types.intp), codegen


@intrinsic
def turn_tile(typingctx, tile):
    """Transpose a tile of rows of one register: its entries column by column, in as many registers.

    The number of rows is a power of two, at most the entries of a register.
    """
    rows, size = len(tile), tile.dtype.lanes
    rest = size // rows

    def codegen(context, builder, signature, args):
        entries, step = cgutils.unpack_tuple(builder, args[0]), 1
        while step < rows:  # swap bits of row and column, from the lowest of those that change
            far = step * rest
            upper = [j if not j & far else size + j - far for j in range(size)]
            lower = [j + far if not j & far else size + j for j in range(size)]
            if 2 * step == rows:  # all are swapped: the row comes first
                upper, lower = (
                    [mask[j % rows * rest + j // rows] for j in range(size)]
                    for mask in (upper, lower)
                )
            masks = [ir.Constant(ir.VectorType(_PLACE, size), mask) for mask in (upper, lower)]
            for i in range(rows):
                if not i & step:
                    pair = entries[i], entries[i + step]
                    entries[i], entries[i + step] = (
                        builder.shuffle_vector(*pair, mask) for mask in masks
                    )
            step *= 2
        return cgutils.pack_array(builder, entries)

    return tile(tile), codegen
