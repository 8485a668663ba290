"""Condat's own C code over `project_l1_ball`; prints a table.

    python asv_benchmarks/against_condat.py condat_l1ballproj.c

The file comes from its author's page (https://lcondat.github.io/software.html); its licence,
CeCILL, keeps it out of this repository. The C compiler `cc` has to be there.
"""

import argparse
import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

if importlib.util.find_spec("conehoyer") is None:  # not installed: take this checkout
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.common import DTYPES, KEPT, SIZES, Problem, compare, data

NAME = "l1ballproj_Condat"


def function_text(source):
    """The text of the function NAME, from its return type to the brace that closes it."""
    begin = source.index(f"static void {NAME}(")
    depth, end = 0, source.index("{", begin)
    while True:
        depth += {"{": 1, "}": -1}.get(source[end], 0)
        end += 1
        if depth == 0:
            return source[begin:end]


def compiled(source, dtype, folder):
    """The function for arrays of `dtype`, as ``call(y, x, n, radius)``."""
    kind = {"float32": "float", "float64": "double"}[dtype]
    text = f"""
        #include <stdlib.h>
        #include <string.h>
        typedef {kind} datatype;
        {function_text(source)}
        void project({kind}* y, {kind}* x, unsigned n, double a) {{ {NAME}(y, x, n, a); }}
        """
    path = Path(folder) / f"{dtype}.c"
    path.write_text(text)
    library = path.with_suffix(".so")
    flags = ["-O3", "-march=native", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(path), "-o", str(library)], check=True)
    project = ctypes.CDLL(str(library)).project
    project.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_double]
    project.restype = None
    return project


def ratio(project, dtype, n, kept):
    """Time of the C code over the library's, on Gaussian data; both results agree."""
    problem = Problem("project_l1_ball", data("gaussian", n, dtype), kept)
    y, x = problem.y, np.empty_like(problem.y)
    theirs = partial(project, y.ctypes.data, x.ctypes.data, n, float(problem.parameter))
    theirs()
    np.testing.assert_allclose(x, problem.out, atol=1e-4 if dtype == "float32" else 1e-10)
    return compare((theirs, problem.call())).ratio


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="condat_l1ballproj.c")
    source = parser.parse_args().source.read_text(errors="replace")
    print("Condat's C over project_l1_ball, Gaussian data, one thread; nonzeros:")
    print(" " * 24 + "".join(f"{share:>8.1%}" for share in KEPT))
    with tempfile.TemporaryDirectory() as folder:
        for dtype in DTYPES:
            project = compiled(source, dtype, folder)
            for n in SIZES:
                row = [ratio(project, dtype, n, kept) for kept in KEPT]
                print(f"{dtype:10}{n:12,}  " + "".join(f"{r:8.1f}" for r in row), flush=True)


if __name__ == "__main__":
    main()
