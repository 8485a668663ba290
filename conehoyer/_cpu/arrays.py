"""Arrays and constants inside kernels."""

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic

# A table has a row for each slice, which brings the l2 norm and the level or radius wanted into a
# kernel, and takes out what came of it; where it has room, how large the support was at each pass.
STATUS, THRESHOLD, REACHED, PASSES, LOG = range(5)
NORM, WANTED, REST = THRESHOLD, REACHED, PASSES  # on the way in; the rest of Hoyer's level

BLOCKS, DIAGONALS, LABELS = 0, 1, 2  # kinds of groups of a matrix's entries

# For calls of large functions: to Numba, True and 0 are types, for which it compiles once more.
YES, NO, NONE, ONE = np.bool_(True), np.bool_(False), np.int64(0), np.int64(1)


@intrinsic
def uncounted(typingctx, array):
    """The same array, but references to it are not counted: somebody else keeps it alive.

    A slice is a reference, and on short rows counting them takes as long as the arithmetic.
    Only for what somebody holds on to: the arguments of a kernel, or an array of its own that
    it passes to `keep` at the end.
    """

    def codegen(context, builder, signature, args):
        view = context.make_array(array)(context, builder, args[0])
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        view.parent = cgutils.get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), codegen


@intrinsic
def keep(typingctx, arrays):
    """Does nothing: an array, or each of a tuple, lives until it is used last, and that is here."""

    def codegen(context, builder, signature, args):
        return context.get_dummy_value()

    return types.void(arrays), codegen
