"""SIMD vectors for kernels: a few LLVM vector operations as Numba intrinsics.

``Vec`` is one 512-bit register of float64 or float32, ``Mask`` one bit a lane.  They
exist for what the loop vectoriser does not do: sums whose order of additions is fixed,
whatever is inlined where, and compressing the selected lanes of a register into memory.
LLVM splits the registers where the machine's are shorter.  ``COMPRESS`` says whether this machine
can compress, by an instruction of AVX-512 (``NATIVE``) or with AVX2 by a ``TABLE`` of permutations;
where it is False, callers mark the lanes and pick them one by one.  The environment can ask for
plain loops (``CONEHOYER_SIMD=0``: ``PLAIN``).
"""

import functools
import math
import operator
import os
import sys
from decimal import Context, Decimal

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.extending import intrinsic, models, overload, register_model

REGISTER_BITS = 512
LINE = 64  # bytes of a cache line


PLAIN = os.environ.get("CONEHOYER_SIMD", "") == "0"


def features() -> set[str]:
    """What the processor can do, or what Numba has been told that it can."""
    told = getattr(config, "CPU_FEATURES", None)
    if told is not None:
        return {feature[1:] for feature in told.split(",") if feature.startswith("+")}
    found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    return found if getattr(config, "ENABLE_AVX", True) else set()


def _compresses_by() -> str:
    """What selects the lanes of a register: an instruction, a table of permutations, nothing."""
    if PLAIN:
        return ""
    known = features()
    if "avx512f" in known and llvm.llvm_version_info >= (20,):
        return "instruction"
    return "table" if "avx2" in known else ""


_BY = _compresses_by()
COMPRESS = _BY != ""
NATIVE = _BY == "instruction"  # whole registers and masks are the machine's own
TABLE = _BY == "table"  # its registers are half as long, and a mask is a register of them
_HALF = 256  # bits of one of them
WIDE = 8 if TABLE else 16  # lanes of float64; for the sums of more it has not enough registers
# Whether what is read in order comes sooner without `fetch`.  Measured on Zen 4, a million entries
# of which 0.1 % stay (`OneWorker`): float64 takes a quarter less, float32 a tenth.
STREAMS = llvm.get_host_cpu_name().startswith("znver")
# But Zen 5 loses its lead at a mispredicted branch, which counts where data come from memory: from
# so many bytes on.  There (the same) 10 million float32 take 0.6 of the time with `fetch`, and 1
# million float64 would take 1.3.
FETCH_FROM = 0
if STREAMS:
    FETCH_FROM = 12 << 20 if llvm.get_host_cpu_name() == "znver5" else sys.maxsize


class Vec(types.Type):
    """A SIMD register of ``lanes`` floating-point numbers."""

    def __init__(self, element, lanes):
        self.element, self.lanes = element, lanes
        super().__init__(name=f"Vec({element}, {lanes})")


class Mask(types.Type):
    """One bit for each lane of a :class:`Vec`."""

    def __init__(self, lanes):
        self.lanes = lanes
        super().__init__(name=f"Mask({lanes})")


class Places(types.Type):
    """For each lane of a :class:`Vec` a place in two of them."""

    def __init__(self, lanes):
        self.lanes = lanes
        super().__init__(name=f"Places({lanes})")


def _element(element):
    return ir.DoubleType() if element == types.float64 else ir.FloatType()


def _llvm(vec):
    return ir.VectorType(_element(vec.element), vec.lanes)


def _register(element):
    return Vec(element, REGISTER_BITS // element.bitwidth)


@register_model(Vec)
class _VecModel(models.PrimitiveModel):
    def __init__(self, manager, vec):
        super().__init__(manager, vec, _llvm(vec))


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager, mask):
        super().__init__(manager, mask, ir.VectorType(ir.IntType(1), mask.lanes))


@register_model(Places)
class _PlacesModel(models.PrimitiveModel):
    def __init__(self, manager, places):
        kind = ir.VectorType(ir.IntType(REGISTER_BITS // places.lanes), places.lanes)
        super().__init__(manager, places, kind)


def _call(builder, name, result, args, **flags):
    signature = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, signature, name)
    return builder.call(function, args, **flags)


def _intrinsic_name(name, vec):
    return f"llvm.{name}.v{vec.lanes}f{vec.element.bitwidth}"


def _pointer(context, builder, array, value, index, vec):
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [index]), _llvm(vec).as_pointer())


@intrinsic
def lanes(typingctx, array):
    """Entries of `array` in one register."""
    count = REGISTER_BITS // array.dtype.bitwidth

    def codegen(context, builder, signature, args):
        return context.get_constant(types.int64, count)

    return types.int64(array), codegen


@intrinsic
def load(typingctx, array, index):
    """A register from ``array[index:index + lanes]`` (contiguous, unaligned)."""
    vec = _register(array.dtype)

    def codegen(context, builder, signature, args):
        value = builder.load(_pointer(context, builder, array, args[0], args[1], vec))
        value.align = array.dtype.bitwidth // 8
        return value

    return vec(array, index), codegen


def _fetching(level, doc, to_write=0):
    def operation(typingctx, array, index):
        def codegen(context, builder, signature, args):
            data = context.make_array(array)(context, builder, args[0]).data
            pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
            i32 = ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            builder.call(function, [pointer, i32(to_write), i32(level), i32(1)])
            return context.get_dummy_value()

        return types.void(array, index), codegen

    operation.__doc__ = doc
    return intrinsic(operation)


fetch = _fetching(3, "Ask for the cache line of ``array[index]``, without waiting for it.")
fetch_early = _fetching(2, "`fetch` into the second cache, which waits for more lines at once.")
fetch_to_write = _fetching(3, "`fetch` for a store.", 1)


@intrinsic
def load_like(typingctx, a, array, index):
    """As many entries of `array` as `a` has lanes."""
    vec = Vec(array.dtype, a.lanes)

    def codegen(context, builder, signature, args):
        value = builder.load(_pointer(context, builder, array, args[1], args[2], vec))
        value.align = array.dtype.bitwidth // 8
        return value

    return vec(a, array, index), codegen


@intrinsic
def store(typingctx, a, array, index):
    """``array[index:index + lanes] = a`` (contiguous, unaligned)."""

    def codegen(context, builder, signature, args):
        done = builder.store(args[0], _pointer(context, builder, array, args[1], args[2], a))
        done.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(a, array, index), codegen


@intrinsic
def load_wide(typingctx, array, index):
    """``array[index:index + WIDE]`` as float64."""
    narrow, wide = Vec(array.dtype, WIDE), Vec(types.float64, WIDE)

    def codegen(context, builder, signature, args):
        value = builder.load(_pointer(context, builder, array, args[0], args[1], narrow))
        value.align = array.dtype.bitwidth // 8
        return value if narrow == wide else builder.fpext(value, _llvm(wide))

    return wide(array, index), codegen


@intrinsic
def load_part(typingctx, array, index, mask):
    """As many entries as `mask` has lanes; only those set are read, the others are 0."""
    vec = Vec(array.dtype, mask.lanes)

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, array, args[0], args[1], vec)
        name = f"llvm.masked.load.v{vec.lanes}f{array.dtype.bitwidth}.p0"
        align = ir.Constant(ir.IntType(32), array.dtype.bitwidth // 8)
        return _call(
            builder, name, _llvm(vec), [pointer, align, args[2], ir.Constant(_llvm(vec), None)]
        )

    return vec(array, index, mask), codegen


@intrinsic
def store_part(typingctx, a, mask, array, index):
    """Store the lanes in `mask`; nothing else is written."""

    def codegen(context, builder, signature, args):
        pointer = _pointer(context, builder, array, args[2], args[3], a)
        name = f"llvm.masked.store.v{a.lanes}f{a.element.bitwidth}.p0"
        align = ir.Constant(ir.IntType(32), array.dtype.bitwidth // 8)
        _call(builder, name, ir.VoidType(), [args[0], pointer, align, args[1]])
        return context.get_dummy_value()

    return types.void(a, mask, array, index), codegen


@intrinsic
def stream(typingctx, a, array, index):
    """Store the lanes past the caches, where a cache line begins; `drain` comes after the last."""

    def codegen(context, builder, signature, args):
        store = builder.store(args[0], _pointer(context, builder, array, args[1], args[2], a))
        store.align = LINE
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return types.void(a, array, index), codegen


@intrinsic
def drain(typingctx):
    """Whoever sees what is written from here on sees what `stream` has written, too."""

    def codegen(context, builder, signature, args):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def address(typingctx, array):
    """Where the first entry lies."""

    def codegen(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


def _spread(builder, scalar, count):
    """So many lanes, each the scalar."""
    undefined = ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, zeros)


def _numbers(kind):
    """0, 1, 2, … as lanes."""
    return ir.Constant(kind, list(range(kind.count)))


def _first_lanes(builder, found, count):
    kind = ir.VectorType(ir.IntType(64), count)
    return builder.icmp_signed("<", _numbers(kind), _spread(builder, found, count))


@intrinsic
def first_lanes(typingctx, a, count):
    """The mask of the first `count` lanes of a."""

    def codegen(context, builder, signature, args):
        return _first_lanes(builder, args[1], a.lanes)

    return Mask(a.lanes)(a, types.int64), codegen


@intrinsic
def splat_wide(typingctx, x):
    """`WIDE` lanes of the float64 `x`."""
    return _splat(x, Vec(x, WIDE))


@intrinsic
def splat(typingctx, x):
    """A register with `x` in every lane."""
    return _splat(x, _register(x))


def _splat(x, vec):
    def codegen(context, builder, signature, args):
        return _spread(builder, args[0], vec.lanes)

    return vec(x), codegen


@intrinsic
def nothing(typingctx, a):
    """A register of zeros like a."""

    def codegen(context, builder, signature, args):
        return ir.Constant(_llvm(a), [0.0] * a.lanes)

    return a(a), codegen


@intrinsic
def magnitude(typingctx, a):
    """|a|, lane by lane."""

    def codegen(context, builder, signature, args):
        return _call(builder, _intrinsic_name("fabs", a), _llvm(a), args)

    return a(a), codegen


def _bits(builder, value):
    """A register's lanes as integers."""
    lane = ir.IntType(64 if isinstance(value.type.element, ir.DoubleType) else 32)
    return builder.bitcast(value, ir.VectorType(lane, value.type.count))


@intrinsic
def signs(typingctx, a, wanted):
    """The sign bit in every lane of a register like a, if wanted; else nothing.

    For loops over registers: a branch in them is no longer one where registers are short.
    """

    def codegen(context, builder, signature, args):
        lanes = [ir.Constant(_llvm(a), [x] * a.lanes) for x in (-0.0, 0.0)]
        return builder.select(args[1], *lanes)

    return a(a, types.boolean), codegen


@intrinsic
def without(typingctx, a, signs):
    """The lanes without their signs, where `signs` has them."""

    def codegen(context, builder, signature, args):
        value, bits = (_bits(builder, x) for x in args)
        return builder.bitcast(builder.and_(value, builder.not_(bits)), args[0].type)

    return a(a, a), codegen


@intrinsic
def signed_like(typingctx, a, b, signs):
    """Lanes that have no sign, with that of b, where `signs` has it."""

    def codegen(context, builder, signature, args):
        value, like, bits = (_bits(builder, x) for x in args)
        return builder.bitcast(builder.or_(value, builder.and_(like, bits)), args[0].type)

    return a(a, a, a), codegen


def _binary(name, doc):
    def operation(typingctx, a, b):
        def codegen(context, builder, signature, args):
            return getattr(builder, name)(*args)

        return a(a, a), codegen

    operation.__doc__ = doc
    return intrinsic(operation)


def _larger(builder, a, b):
    """The larger of two registers of magnitudes, lane by lane; NaN wins.

    Numbers without a sign are ordered like their bits, and NaN comes last.
    """
    return builder.select(builder.icmp_signed(">", _bits(builder, a), _bits(builder, b)), a, b)


@intrinsic
def larger(typingctx, a, b):
    """The larger of two magnitudes, lane by lane; NaN wins."""

    def codegen(context, builder, signature, args):
        return _larger(builder, *args)

    return a(a, a), codegen


@intrinsic
def smaller(typingctx, a, b):
    """The smaller of a and b, lane by lane; b where there is a NaN."""

    def codegen(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", *args), *args)

    return a(a, a), codegen


@intrinsic
def copy_sign(typingctx, a, b):
    """|a| with the sign of b, lane by lane."""

    def codegen(context, builder, signature, args):
        return _call(builder, _intrinsic_name("copysign", a), _llvm(a), args)

    return a(a, a), codegen


add = _binary("fadd", "a + b, lane by lane.")
sub = _binary("fsub", "a − b, lane by lane.")
multiply = _binary("fmul", "a · b, lane by lane.")
divide = _binary("fdiv", "a / b, lane by lane.")
differ = _binary("xor", "The lanes in which two masks differ.")
either = _binary("or_", "The lanes set in either mask.")
both = _binary("and_", "The lanes set in both masks.")


@intrinsic
def square_root(typingctx, a):
    """√a, lane by lane."""

    def codegen(context, builder, signature, args):
        return _call(builder, _intrinsic_name("sqrt", a), _llvm(a), args)

    return a(a), codegen


# What `_math` says of numbers, said of registers.


def _lend(function, operation):
    """Let a function of two numbers stand for an operation on registers."""

    @overload(function)
    def lent(a, b):
        if isinstance(a, Vec) and isinstance(b, Vec):
            return lambda a, b: operation(a, b)
        return None


_lend(operator.add, add)
_lend(operator.sub, sub)
_lend(operator.mul, multiply)
_lend(operator.truediv, divide)


@overload(math.sqrt)
def _sqrt(a):
    if isinstance(a, Vec):
        return lambda a: square_root(a)
    return None


@overload(max)
def _max(a, b):
    if isinstance(a, Vec) and isinstance(b, Vec):
        return lambda a, b: where(above(b, a), b, a)
    return None


@intrinsic
def gathered(typingctx, array, index, step):
    """Every `step`-th entry from ``array[index]`` on, as a register of float64."""
    wide = _register(types.float64)

    def codegen(context, builder, signature, args):
        value, place, step = args
        data = context.make_array(array)(context, builder, value).data
        pointer = builder.gep(data, [place])
        kind = ir.VectorType(_element(array.dtype), wide.lanes)
        result = ir.Constant(kind, ir.Undefined)
        for lane in range(wide.lanes):
            entry = builder.load(pointer)
            result = builder.insert_element(result, entry, ir.Constant(ir.IntType(32), lane))
            pointer = builder.gep(pointer, [step])
        return result if array.dtype == types.float64 else builder.fpext(result, _llvm(wide))

    return wide(array, types.int64, types.int64), codegen


@intrinsic
def scatter(typingctx, a, array, index, step):
    """Write a register of float64 to every `step`-th entry from ``array[index]`` on."""

    def codegen(context, builder, signature, args):
        lanes, value, place, step = args
        data = context.make_array(array)(context, builder, value).data
        pointer = builder.gep(data, [place])
        if array.dtype != types.float64:
            lanes = builder.fptrunc(lanes, ir.VectorType(_element(array.dtype), a.lanes))
        for lane in range(a.lanes):
            builder.store(
                builder.extract_element(lanes, ir.Constant(ir.IntType(32), lane)), pointer
            )
            pointer = builder.gep(pointer, [step])
        return context.get_dummy_value()

    return types.void(a, array, types.int64, types.int64), codegen


@intrinsic
def widen(typingctx, a):
    """The lanes as float64."""
    wide = Vec(types.float64, a.lanes)

    def codegen(context, builder, signature, args):
        return args[0] if a == wide else builder.fpext(args[0], _llvm(wide))

    return wide(a), codegen


@intrinsic
def narrow(typingctx, a, b):
    """The lanes as numbers of b's kind."""

    def codegen(context, builder, signature, args):
        return args[0] if a == b else builder.fptrunc(args[0], _llvm(b))

    return b(a, b), codegen


@intrinsic
def multiply_add(typingctx, a, b, c):
    """a·b + c, rounded once where the machine can."""

    def codegen(context, builder, signature, args):
        return _call(builder, _intrinsic_name("fmuladd", a), _llvm(a), args)

    return a(a, a, a), codegen


_TERMS = {types.float32: 8, types.float64: 14}  # of the series of e^r, |r| <= ln2/2: below rounding
_LEAST = {types.float32: -110.0, types.float64: -760.0}  # e^x is 0 there


@intrinsic
def exponential(typingctx, a):
    """``e**a`` for a <= 0, to about one unit in the last place; of NaN NaN.

    a = k·ln2 + r, in two parts of ln2, the first so short that k times it is exact; then the series
    of e^r, by Horner's rule, and 2^k in two factors, as it may be subnormal.
    """
    double = a.element == types.float64
    bits, mantissa, bias = (64, 52, 1023) if double else (32, 23, 127)
    ln2 = Decimal(2).ln(Context(prec=40))
    first = math.floor(math.ldexp(math.log(2), 32 if double else 9))
    first = math.ldexp(first, -32 if double else -9)
    magic = math.ldexp(1.5, mantissa)  # beside it a number is rounded to an integer

    def codegen(context, builder, signature, args):
        kind, whole = _llvm(a), ir.VectorType(ir.IntType(bits), a.lanes)

        def number(x):
            return ir.Constant(kind, [x] * a.lanes)

        def integer(n):
            return ir.Constant(whole, [n] * a.lanes)

        def fused(x, y, z):
            return _call(builder, _intrinsic_name("fmuladd", a), kind, [x, y, z])

        def power(k):
            moved = builder.shl(builder.add(k, integer(bias)), integer(mantissa))
            return builder.bitcast(moved, kind)

        least = number(_LEAST[a.element])
        x = builder.select(builder.fcmp_ordered("<", args[0], least), least, args[0])
        near = builder.fadd(builder.fmul(x, number(1.0 / math.log(2.0))), number(magic))
        count = builder.fsub(near, number(magic))
        r = fused(count, number(-first), x)
        r = fused(count, number(-float(ln2 - Decimal(first))), r)
        terms = _TERMS[a.element]
        series = number(1.0 / math.factorial(terms - 1))
        for n in range(terms - 2, 1, -1):
            series = fused(series, r, number(1.0 / math.factorial(n)))
        series = fused(builder.fmul(r, r), series, r)  # what is small is rounded by less
        series = builder.fadd(series, number(1.0))
        k = builder.sub(builder.bitcast(near, whole), builder.bitcast(number(magic), whole))
        half = builder.ashr(k, integer(1))
        result = builder.fmul(series, power(half))
        return builder.fmul(result, power(builder.sub(k, half)))

    return a(a), codegen


@intrinsic
def above(typingctx, a, b):
    """The lanes with a > b; NaN is never above."""

    def codegen(context, builder, signature, args):
        return builder.fcmp_ordered(">", *args)

    return Mask(a.lanes)(a, a), codegen


@intrinsic
def not_below(typingctx, a, b):
    """The lanes with not (a ≤ b): NaN counts."""

    def codegen(context, builder, signature, args):
        return builder.fcmp_unordered(">", *args)

    return Mask(a.lanes)(a, a), codegen


@intrinsic
def not_less(typingctx, a, b):
    """The lanes with not (a < b): NaN counts."""

    def codegen(context, builder, signature, args):
        return builder.fcmp_unordered(">=", *args)

    return Mask(a.lanes)(a, a), codegen


@intrinsic
def unequal(typingctx, a, b):
    """The lanes with a != b; NaN does not count."""

    def codegen(context, builder, signature, args):
        return builder.fcmp_ordered("!=", *args)

    return Mask(a.lanes)(a, a), codegen


@intrinsic
def where(typingctx, mask, a, b):
    """Lanes of a where the mask is set, of b elsewhere."""

    def codegen(context, builder, signature, args):
        return builder.select(*args)

    return a(mask, a, a), codegen


def _split(builder, value):
    """A register's two halves."""
    half = value.type.count // 2
    kind = ir.VectorType(ir.IntType(32), half)
    lanes = (ir.Constant(kind, list(range(first, first + half))) for first in (0, half))
    return [builder.shuffle_vector(value, value, places) for places in lanes]


def _mask_halves(builder, mask):
    """A mask where registers are short: two of them, every bit of a lane set that is selected.

    LLVM would pack both into bytes before it looks at their bits, which takes longer, if it were
    not for the fence, which hides the mask from it.
    """
    half = mask.type.count // 2
    lane = ir.IntType(_HALF // half)
    floats = ir.VectorType(ir.FloatType() if half == 8 else ir.DoubleType(), half)
    name = f"llvm.arithmetic.fence.v{half}f{lane.width}"
    for part in _split(builder, builder.sext(mask, ir.VectorType(lane, mask.type.count))):
        part = _call(builder, name, floats, [builder.bitcast(part, floats)])
        yield builder.bitcast(part, ir.VectorType(lane, half))


def _sign_bits(builder, lanes):
    """The signs of integers, as bits of one number, lowest first."""
    below = builder.icmp_signed("<", lanes, ir.Constant(lanes.type, [0] * lanes.type.count))
    return builder.zext(builder.bitcast(below, ir.IntType(lanes.type.count)), ir.IntType(64))


def _halves(builder, mask):
    """The bits of a mask, in one number or, where registers are short, two: lowest first."""
    if not TABLE:
        bits = builder.bitcast(mask, ir.IntType(mask.type.count))
        return [builder.zext(bits, ir.IntType(64))]
    return [_sign_bits(builder, half) for half in _mask_halves(builder, mask)]


@intrinsic
def count(typingctx, mask):
    """Number of lanes set."""

    def codegen(context, builder, signature, args):
        counts = [builder.ctpop(bits) for bits in _halves(builder, args[0])]
        return functools.reduce(builder.add, counts)

    return types.int64(mask), codegen


@intrinsic
def any_lane(typingctx, mask):
    """Whether some lane is set."""

    def codegen(context, builder, signature, args):
        if TABLE:
            bits = _sign_bits(builder, builder.or_(*_mask_halves(builder, args[0])))
        else:
            (bits,) = _halves(builder, args[0])
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(mask), codegen


def _sign_words(builder, vec, value):
    """The halves of lanes that have their signs, in two registers of float32 or one of float64."""
    kind = ir.VectorType(ir.IntType(32), 8)
    low, high = (builder.bitcast(half, kind) for half in _split(builder, value))
    if vec.element == types.float32:
        return [low, high]
    # In the order in which one instruction takes them.
    return [builder.shuffle_vector(low, high, ir.Constant(kind, [1, 3, 9, 11, 5, 7, 13, 15]))]


@intrinsic
def negatives(typingctx, a, b):
    """Number of lanes of a and b with a sign, where masks are registers (`TABLE`).

    Asking a register for its bits takes long there: once, not for each half.
    """

    def codegen(context, builder, signature, args):
        words = [word for value in args for word in _sign_words(builder, a, value)]
        i32, half, byte = (ir.IntType(bits) for bits in (32, 16, 8))
        kind = ir.VectorType(half, 16)
        parts = [
            _call(builder, "llvm.x86.avx2.packssdw", kind, words[k : k + 2])
            for k in range(0, len(words), 2)
        ]
        kind = ir.VectorType(byte, 32)
        packed = _call(builder, "llvm.x86.avx2.packsswb", kind, [parts[0], parts[-1]])
        bits = _call(builder, "llvm.x86.avx2.pmovmskb", i32, [packed])
        if len(parts) == 1:  # each half twice
            bits = builder.and_(bits, ir.Constant(i32, 0x00FF00FF))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(a, a), codegen


def _one_if_any(builder, lanes):
    """1 if one of the lanes has a sign, else 0; to compare and set takes longer."""
    floats = ir.VectorType(ir.FloatType(), 8)
    i32, i64 = ir.IntType(32), ir.IntType(64)
    bits = _call(builder, "llvm.x86.avx.movmsk.ps.256", i32, [builder.bitcast(lanes, floats)])
    bits = builder.add(builder.zext(bits, i64), ir.Constant(i64, 255))
    return builder.lshr(bits, ir.Constant(i64, 8))


@intrinsic
def one_if_any(typingctx, mask):
    """1 if some lane is set, else 0, where masks are registers (`TABLE`)."""

    def codegen(context, builder, signature, args):
        return _one_if_any(builder, builder.or_(*_mask_halves(builder, args[0])))

    return types.uint64(mask), codegen


@intrinsic
def one_if_within(typingctx, a, b, width):
    """1 if a lane of a or b lies in [0, width], else 0, where masks are registers (`TABLE`).

    NaN does not.  Of float64 only the upper half of the bits is compared.
    """

    def codegen(context, builder, signature, args):
        # As integers without a sign, negative numbers are the largest.
        def least(a, b):
            return _call(builder, "llvm.umin.v8i32", a.type, [a, b])

        first, second, (width, *_) = (_sign_words(builder, a, value) for value in args)
        lowest = functools.reduce(least, first + second)
        inside = builder.icmp_unsigned("==", least(lowest, width), lowest)
        return _one_if_any(builder, builder.sext(inside, lowest.type))

    return types.uint64(a, a, a), codegen


@intrinsic
def word(typingctx, m0, m1, m2, m3):
    """The bits of four masks, lowest first."""

    def codegen(context, builder, signature, args):
        def joined(a, b):
            count = 2 * a.type.count
            places = ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(count)))
            return builder.shuffle_vector(a, b, places)

        whole = joined(joined(*args[:2]), joined(*args[2:]))
        bits = builder.bitcast(whole, ir.IntType(whole.type.count))
        return bits if bits.type.width == 64 else builder.zext(bits, ir.IntType(64))

    return types.uint64(m0, m1, m2, m3), codegen


@intrinsic
def store_mask(typingctx, mask, words, index):
    """Store the bits of the `index`-th mask in an array of uint64, lowest bits first."""

    def codegen(context, builder, signature, args):
        bits = ir.IntType(mask.lanes)
        data = builder.bitcast(
            context.make_array(words)(context, builder, args[1]).data, bits.as_pointer()
        )
        store = builder.store(builder.bitcast(args[0], bits), builder.gep(data, [args[2]]))
        store.align = mask.lanes // 8
        return context.get_dummy_value()

    return types.void(mask, words, index), codegen


@intrinsic
def ones(typingctx, word):
    """Number of bits set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


def _eight_words(context, builder, array, value, index):
    """Pointer to eight entries of an array of uint64."""
    data = context.make_array(array)(context, builder, value).data
    kind = ir.VectorType(ir.IntType(64), 8)
    return builder.bitcast(builder.gep(data, [index]), kind.as_pointer())


def _load_eight(context, builder, array, value, index):
    value = builder.load(_eight_words(context, builder, array, value, index))
    value.align = 8
    return value


@intrinsic
def ones_of_eight(typingctx, words, index):
    """Number of bits set in ``words[index:index + 8]``."""

    def codegen(context, builder, signature, args):
        value = _load_eight(context, builder, words, args[0], args[1])
        counts = _call(builder, "llvm.ctpop.v8i64", value.type, [value])
        return _call(builder, "llvm.vector.reduce.add.v8i64", ir.IntType(64), [counts])

    return types.int64(words, index), codegen


@intrinsic
def compress_differing(typingctx, first, second, index, places, found):
    """Which of the words ``index:index + 8`` differ: their bits, and which they are.

    The bits go to ``second[found:]``, the numbers of the words to ``places[found:]``; eight
    entries of each are written.  Returns how many differ.
    """

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(64), 8)
        undefined = ir.Constant(kind, ir.Undefined)
        a = _load_eight(context, builder, first, args[0], args[2])
        b = _load_eight(context, builder, second, args[1], args[2])
        bits = builder.xor(a, b)
        mask = builder.icmp_unsigned("!=", bits, ir.Constant(kind, [0] * 8))
        numbers = builder.add(_spread(builder, args[2], 8), _numbers(kind))
        for array, value, content in ((second, args[1], bits), (places, args[3], numbers)):
            name = "llvm.experimental.vector.compress.v8i64"
            packed = _call(builder, name, kind, [content, mask, undefined])
            place = _eight_words(context, builder, array, value, args[4])
            builder.store(packed, place).align = 8
        return builder.ctpop(builder.zext(builder.bitcast(mask, ir.IntType(8)), ir.IntType(64)))

    return types.int64(first, second, index, places, found), codegen


@intrinsic
def lowest(typingctx, word):
    """Place of the lowest bit set; 64 where there is none."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


def _permutation(selected, count):
    """The lanes that `selected` has bits for, and then any, as places of float32 in a register."""
    chosen = [lane for lane in range(count) if selected >> lane & 1]
    chosen += [0] * (count - len(chosen))
    each = 8 // count
    return [each * lane + k for lane in chosen for k in range(each)]


def _permutations(builder, count):
    """A table of them for all selections from `count` lanes."""
    name, i8 = f"permutations_of_{count}", ir.IntType(8)
    if name in builder.module.globals:
        return builder.module.globals[name]
    rows = [ir.Constant(ir.VectorType(i8, 8), _permutation(k, count)) for k in range(1 << count)]
    kind = ir.ArrayType(rows[0].type, len(rows))
    table = cgutils.global_constant(builder, name, ir.Constant(kind, rows))
    table.align = LINE
    return table


def _compressed(builder, a, value, mask):
    """The selected lanes side by side, and how many: of the register, or of each half of it."""
    halves = _halves(builder, mask)
    if TABLE:
        return _packed(builder, a, value, halves)
    undefined = ir.Constant(_llvm(a), ir.Undefined)
    name = _intrinsic_name("experimental.vector.compress", a)
    packed = _call(builder, name, _llvm(a), [value, mask, undefined])
    return [(packed, builder.ctpop(halves[0]))]


def _packed(builder, a, value, halves):
    """`_compressed` by table; `halves` are the bits of the lanes."""
    i32, count = ir.IntType(32), _HALF // a.element.bitwidth
    floats, table, parts = ir.VectorType(ir.FloatType(), 8), _permutations(builder, count), []
    for half, selected in zip(_split(builder, value), halves, strict=True):
        order = builder.load(builder.gep(table, [ir.Constant(i32, 0), selected]))
        order = builder.zext(order, ir.VectorType(i32, 8))
        packed = _call(
            builder, "llvm.x86.avx2.permps", floats, [builder.bitcast(half, floats), order]
        )
        parts.append((builder.bitcast(packed, half.type), builder.ctpop(selected)))
    return parts


def _pieces(context, builder, a, args):
    """What `compress` stores, how many of these lanes are selected, and where it goes."""
    value, selected, array, index = args
    for packed, found in _compressed(builder, a, value, selected):
        vec = Vec(a.element, packed.type.count)
        yield packed, found, _pointer(context, builder, array[0], array[1], index, vec)
        index = builder.add(index, found)


@intrinsic
def compress(typingctx, a, mask, array, index):
    """Store the selected lanes at ``array[index:]``; no more than a full register is written."""

    def codegen(context, builder, signature, args):
        args = args[0], args[1], (array, args[2]), args[3]
        for packed, _, pointer in _pieces(context, builder, a, args):
            builder.store(packed, pointer).align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(a, mask, array, index), codegen


@intrinsic
def compress_unequal(typingctx, a, first, second, array, index):
    """`compress`, by table, of the lanes in which two masks differ; returns how many.

    They are joined when they are bits: LLVM takes a roundabout way to join masks of two registers.
    """

    def codegen(context, builder, signature, args):
        first, second = (_halves(builder, mask) for mask in args[1:3])
        halves = [builder.xor(*pair) for pair in zip(first, second, strict=True)]
        stored = args[4]
        for packed, found in _packed(builder, a, args[0], halves):
            vec = Vec(a.element, packed.type.count)
            pointer = _pointer(context, builder, array, args[3], stored, vec)
            builder.store(packed, pointer).align = array.dtype.bitwidth // 8
            stored = builder.add(stored, found)
        return builder.sub(stored, args[4])

    return types.int64(a, first, first, array, index), codegen


@intrinsic
def compress_part(typingctx, a, mask, array, index):
    """`compress` that writes nothing but the selected lanes.

    Not by LLVM's compressing store, which is microcode on Zen 4, and very slow.
    """

    def codegen(context, builder, signature, args):
        args = args[0], args[1], (array, args[2]), args[3]
        for packed, found, pointer in _pieces(context, builder, a, args):
            count = packed.type.count
            first = _first_lanes(builder, found, count)
            align = ir.Constant(ir.IntType(32), array.dtype.bitwidth // 8)
            name = f"llvm.masked.store.v{count}f{a.element.bitwidth}.p0"
            _call(builder, name, ir.VoidType(), [packed, pointer, align, first])
        return context.get_dummy_value()

    return types.void(a, mask, array, index), codegen


def _lanes_of(first, doc):
    def operation(typingctx, a, b):
        def codegen(context, builder, signature, args):
            places = list(range(first, 2 * a.lanes, 2))
            kind = ir.VectorType(ir.IntType(32), a.lanes)
            return builder.shuffle_vector(*args, ir.Constant(kind, places))

        return a(a, a), codegen

    operation.__doc__ = doc
    return intrinsic(operation)


even = _lanes_of(0, "Every second lane of a, then of b, from the first on.")
odd = _lanes_of(1, "Every second lane of a, then of b, from the second on.")


@intrinsic
def store_four_times(typingctx, a, array, index):
    """Store each lane four times in a row, at ``array[index:index + 4 * lanes]``."""

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(32), a.lanes)
        pointer = _pointer(context, builder, array, args[1], args[2], a)
        for k in range(4):
            places = [k * a.lanes // 4 + j // 4 for j in range(a.lanes)]
            part = builder.shuffle_vector(args[0], args[0], ir.Constant(kind, places))
            done = builder.store(part, builder.gep(pointer, [ir.Constant(ir.IntType(64), k)]))
            done.align = array.dtype.bitwidth // 8
        return context.get_dummy_value()

    return types.void(a, array, index), codegen


@intrinsic
def places_from(typingctx, array, count):
    """For `joined`: the lanes from the `count`-th on."""
    lanes = REGISTER_BITS // array.dtype.bitwidth

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(array.dtype.bitwidth), lanes)
        first = builder.trunc(args[1], kind.element) if lanes > 8 else args[1]
        return builder.add(_spread(builder, first, lanes), _numbers(kind))

    return Places(lanes)(array, count), codegen


@intrinsic
def joined(typingctx, a, b, places):
    """A register of the lanes of a and then b, from that on which `places` is for."""

    def codegen(context, builder, signature, args):
        kind = _llvm(a)
        name = f"llvm.x86.avx512.vpermi2var.{'ps' if a.lanes == 16 else 'pd'}.512"
        return _call(builder, name, kind, [args[0], args[2], args[1]])

    return a(a, b, places), codegen


def _shuffled(builder, vec, picks, registers):
    """A register whose lane p is the lane ``picks[p][1]`` of the register ``picks[p][0]``."""
    mask = ir.VectorType(ir.IntType(32), vec.lanes)
    found = registers[0]
    for number, register in enumerate(registers):
        lanes = [lane + vec.lanes if k == number else p for p, (k, lane) in enumerate(picks)]
        if number == 0:  # those of the others are anything yet
            lanes = [lane if k == 0 else 0 for k, lane in picks]
            register = found
        found = builder.shuffle_vector(found, register, ir.Constant(mask, lanes))
    return found


def _next_to(context, builder, array, args, count, step, vec):
    """Addresses of so many registers, each `step` entries behind the one before."""
    scalar = builder.gep(context.make_array(array)(context, builder, args[0]).data, [args[1]])
    kind = _llvm(vec).as_pointer()
    for k in range(count):
        far = builder.mul(step, ir.Constant(ir.IntType(64), k))
        yield builder.bitcast(builder.gep(scalar, [far]), kind)


@intrinsic
def take_apart(typingctx, source, i, target, j, stride, some):
    """From rows as short as `some`, without gaps, as many columns, a register of each.

    The rows begin at ``source[i]``, and column k comes to lie at ``target[j + k*stride:]``.
    """
    vec, count = _register(source.dtype), some.count

    def codegen(context, builder, signature, args):
        width = ir.Constant(ir.IntType(64), vec.lanes)
        align, loaded = vec.element.bitwidth // 8, []
        for pointer in _next_to(context, builder, source, args[:2], count, width, vec):
            loaded.append(builder.load(pointer))
            loaded[-1].align = align
        goals = _next_to(context, builder, target, args[2:4], count, args[4], vec)
        for k, pointer in enumerate(goals):
            picks = [divmod(p * count + k, vec.lanes) for p in range(vec.lanes)]
            builder.store(_shuffled(builder, vec, picks, loaded), pointer).align = align
        return context.get_dummy_value()

    return types.void(source, i, target, j, stride, some), codegen


@intrinsic
def put_together(typingctx, source, i, stride, target, j, some):
    """The reverse of `take_apart`."""
    vec, count = _register(source.dtype), some.count

    def codegen(context, builder, signature, args):
        width = ir.Constant(ir.IntType(64), vec.lanes)
        align, loaded = vec.element.bitwidth // 8, []
        for pointer in _next_to(context, builder, source, args[:2], count, args[2], vec):
            loaded.append(builder.load(pointer))
            loaded[-1].align = align
        goals = _next_to(context, builder, target, args[3:5], count, width, vec)
        for q, pointer in enumerate(goals):
            picks = [divmod(q * vec.lanes + p, count)[::-1] for p in range(vec.lanes)]
            builder.store(_shuffled(builder, vec, picks, loaded), pointer).align = align
        return context.get_dummy_value()

    return types.void(source, i, stride, target, j, some), codegen


@intrinsic
def transpose(typingctx, source, i, source_stride, target, j, target_stride):
    """A square of as many entries as a register has lanes, one register a row.

    Row r of the square lies at ``source[i + r*source_stride:]``, and its column r comes to lie
    at ``target[j + r*target_stride:]``.
    """
    vec = _register(source.dtype)

    def places(builder, array, value, first, stride, context):
        start = _pointer(context, builder, array, value, first, vec)
        element = _element(vec.element)
        scalar = builder.bitcast(start, element.as_pointer())
        for r in range(vec.lanes):
            far = builder.mul(stride, ir.Constant(ir.IntType(64), r))
            yield builder.bitcast(builder.gep(scalar, [far]), _llvm(vec).as_pointer())

    def codegen(context, builder, signature, args):
        kind = ir.VectorType(ir.IntType(32), vec.lanes)
        align = vec.element.bitwidth // 8
        rows = []
        for pointer in places(builder, source, args[0], args[1], args[2], context):
            row = builder.load(pointer)
            row.align = align
            rows.append(row)
        step = 1
        while step < vec.lanes:  # exchange the off-diagonal blocks of this size
            even = [k if not k & step else vec.lanes + k - step for k in range(vec.lanes)]
            odd = [k + step if not k & step else vec.lanes + k for k in range(vec.lanes)]
            for r in range(vec.lanes):
                if not r & step:
                    a, b = rows[r], rows[r + step]
                    rows[r] = builder.shuffle_vector(a, b, ir.Constant(kind, even))
                    rows[r + step] = builder.shuffle_vector(a, b, ir.Constant(kind, odd))
            step *= 2
        targets = places(builder, target, args[3], args[4], args[5], context)
        for row, pointer in zip(rows, targets, strict=True):
            builder.store(row, pointer).align = align
        return context.get_dummy_value()

    return types.void(source, i, source_stride, target, j, target_stride), codegen


def _tree(builder, value, count, join):
    """Join the lanes' two halves until one lane is left."""
    while count > 1:
        count //= 2
        value = join(*_split(builder, value))
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


@intrinsic
def widen_sum(typingctx, a):
    """A register of float64 whose lanes have the same sum: of float32, the two halves are added."""
    wide = _register(types.float64)

    def codegen(context, builder, signature, args):
        if a.element == types.float64:
            return args[0]
        return builder.fpext(builder.fadd(*_split(builder, args[0])), _llvm(wide))

    return wide(a), codegen


@intrinsic
def total(typingctx, a):
    """Sum of the lanes in float64, as a tree: the order of the additions is fixed."""

    def codegen(context, builder, signature, args):
        value = args[0]
        if a.element != types.float64:
            value = builder.fpext(value, _llvm(Vec(types.float64, a.lanes)))
        return _tree(builder, value, a.lanes, builder.fadd)

    return types.float64(a), codegen


@intrinsic
def largest(typingctx, a):
    """The largest lane; NaN wins."""

    def codegen(context, builder, signature, args):
        return _tree(builder, args[0], a.lanes, lambda *halves: _larger(builder, *halves))

    return a.element(a), codegen


def _outermost(comparison, doc):
    def operation(typingctx, a):
        def codegen(context, builder, signature, args):
            def outer(low, high):
                return builder.select(builder.fcmp_ordered(comparison, low, high), low, high)

            return _tree(builder, args[0], a.lanes, outer)

        return a.element(a), codegen

    operation.__doc__ = doc
    return intrinsic(operation)


least = _outermost("<", "The smallest lane; no lane may be NaN.")
peak = _outermost(">", "The largest lane; no lane may be NaN.")
