"""The only place that calls ``numba.njit``: options, cache key, fallback.

Numba keys its disk cache by a function's own file, signature and CPU, but neither by
the options nor by the helpers in other files: an edited helper would give the old
answer.  Therefore the qualified name of every kernel carries a digest of the kernel
sources and of the options.  Where and when these were installed is then of no matter: in a
folder named by NUMBA_CACHE_DIR, installations of the same sources share what is compiled.
Nor does Numba expect several processes that compile at once.
"""

import hashlib
import os
import types
import warnings
from functools import cache, partial
from pathlib import Path

import numba
from llvmlite import binding, ir
from numba.core import cgutils
from numba.core import types as numba_types
from numba.core.caching import IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic

_OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}


_ROOT = Path(__file__).parent
# There are none in an archive, where nobody edits them.
_SOURCES = sorted((*_ROOT.glob("_jit.py"), *_ROOT.glob("*_math.py"), *_ROOT.glob("_cpu/*.py")))


@cache
def _sources_digest() -> str:
    digest = hashlib.sha256(os.environ.get("CONEHOYER_SIMD", "").encode())
    for path in _SOURCES:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def warn_no_cache() -> None:
    """Say once that nothing is cached."""
    warnings.warn(
        "conehoyer cannot write its compiled kernels to a cache, so each process compiles "
        "them anew; set NUMBA_CACHE_DIR to a writable folder to avoid this",
        RuntimeWarning,
        stacklevel=4,
    )


class _CacheFile(IndexDataCacheFile):
    """Names the file of a compiled signature after the signature.

    Numba numbers them.  Two processes that compile a kernel at once, for float32 and float64, take
    the same number; then one of the files lies under the other's signature, for ever.
    """

    def save(self, key, data):
        name = f"{self._index_name}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        self._save_data(name, data)
        overloads = self._load_index()
        overloads[key] = name
        self._save_index(overloads)  # of two at once the last wins: the other compiles again


def _share(store, function):
    """Let the store of a kernel serve other processes and other installations as well."""
    locator = store._impl.locator
    stamp = locator.get_source_stamp()
    if Path(function.__code__.co_filename) in _SOURCES:
        stamp = _sources_digest()
        if type(locator).__name__.endswith("UserProvidedCacheLocator"):  # in Numba 0.61 with _
            # Of two versions of Numba, each forgets what the other has written.
            name = f"conehoyer_{stamp[:12]}_numba_{numba.__version__}"
            locator._cache_path = os.path.join(numba.config.CACHE_DIR, name)
    store._cache_path = locator.get_cache_path()
    store._cache_file = _CacheFile(store._cache_path, store._impl.filename_base, stamp)


def kernel(function=None, **options):
    """Compile on first call, release the GIL, cache on disk where that is possible."""
    if function is None:
        return lambda f: kernel(f, **options)
    options = _OPTIONS | options
    key = hashlib.sha256(f"{_sources_digest()}{sorted(options.items())}".encode()).hexdigest()
    function.__qualname__ = f"{function.__qualname__}_{key[:12]}"
    dispatcher = numba.njit(**options)(function)
    try:
        dispatcher.enable_caching()
        _share(dispatcher._cache, function)
    except RuntimeError:  # no locator: a read-only install
        warn_no_cache()
    return dispatcher


class _Parts(JITCodeLibrary):
    """What a helper is to its callers, which link it in: no machine code is made of it alone.

    Of a first call that saved 11 % of the instructions and 6 % of the cycles, by
    ``perf stat -e instructions:u,cycles:u`` in an empty cache.
    """

    def _finalize_final_module(self):
        parts = self._final_module
        for function in parts.functions:
            if not function.is_declaration and function.linkage == binding.Linkage.external:
                function.linkage = "linkonce_odr"
        self._shared_module = parts
        rest = self._codegen._create_empty_module(self.name)
        for name in [variable.name for variable in parts.global_variables]:
            if name.startswith("_ZN08NumbaEnv"):  # Numba writes there, whether it is read or not
                place = ir.GlobalVariable(rest, cgutils.voidptr_t, name)
                place.linkage, place.initializer = "common", place.value_type(None)
        self._final_module = binding.parse_assembly(cgutils.normalize_ir_text(str(rest)))
        super()._finalize_final_module()


class _ForCallers(Compiler):
    def define_pipelines(self):
        state = self.state
        state.library = _Parts(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().define_pipelines()


# What only kernels call needs no way in from Python, which would have to be compiled as well.  To
# call one from there all the same ends the process: a test looks through the modules.
helper = partial(kernel, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=_ForCallers)


@intrinsic
def inlined(typingctx):
    """Have LLVM put the function that calls this into all of its callers.

    Numba's option `forceinline` passes on to what the helper calls, if that is compiled for the
    first time then; and of functions in `_math` it makes Numba compile another version.
    """

    def codegen(context, builder, signature, args):
        attributes = builder.function.attributes
        if "noinline" not in attributes:  # Numba's, when debugging
            attributes.add("alwaysinline")
        return context.get_dummy_value()

    return numba_types.void(), codegen


def _call(*args):
    return _called(*args)  # noqa: F821 (a global of each copy)


def entry(called):
    """A kernel that calls the helper, which takes less time to compile than a copy of it."""
    function = called.py_func
    given = {"_called": called, "__name__": function.__module__}
    twin = types.FunctionType(_call.__code__, given, function.__name__)
    twin.__qualname__ = f"{function.__module__}.{function.__name__}"  # the cache knows it by that
    return kernel(twin)
