"""Kernels that other kernels call by their addresses.

Numba puts whatever a kernel calls into it, and compiles it once more.  For a large one that takes
seconds (``bench_calls.SecondCall``), and so does what a call of the kernel may not need.
"""

from numba.core import cgutils, types
from numba.extending import intrinsic


def address_of(called, kinds):
    """Where a kernel lies that takes arguments of these types and returns nothing; compiles it."""
    called.compile(kinds)
    compiled = called.overloads[kinds]
    if compiled.signature.return_type != types.none:
        raise TypeError(f"{called} returns something")
    return compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)


def taker(kinds_of):
    """`take` for kernels: the arguments of another kernel, of the types that it is compiled for.

    ``kinds_of(given)`` has these types, from those of what it is to be given; the last arguments
    may be left out, for `waiting.split_at`.
    """

    @intrinsic
    def take(typingctx, args):
        kinds = kinds_of(args.types)[: len(args)]
        if tuple(map(types.unliteral, args.types)) != kinds:
            return None  # Numba says so

        def codegen(context, builder, signature, values):
            context.nrt.incref(builder, signature.return_type, values[0])
            return values[0]

        return types.Tuple(kinds)(types.Tuple(kinds)), codegen

    return take


def call(context, builder, address, kinds, values):
    """Call the kernel at an address; whether it has failed."""
    convention = context.call_conv
    kind = convention.get_function_type(types.none, kinds)
    function = builder.inttoptr(address, kind.as_pointer())
    status, _ = convention.call_function(builder, function, types.none, kinds, values)
    return status


@intrinsic
def call_at(typingctx, address, taken):
    """Call the kernel at an address with what its `take` has returned."""

    def codegen(context, builder, signature, args):
        values = cgutils.unpack_tuple(builder, args[1], len(taken))
        status = call(context, builder, args[0], taken.types, values)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return context.get_dummy_value()

    return types.none(types.int64, taken), codegen
