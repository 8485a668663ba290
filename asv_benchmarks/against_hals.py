"""The CAI paper's comparison with HALS, counted and timed; prints a table.

OPENBLAS_NUM_THREADS=1 python asv_benchmarks/against_hals.py
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("conehoyer") is None:  # not installed: take this checkout
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_bilevel import AgainstHals


def main():
    print("One HALS sweep over one bilevel projection of the same m × m float64 matrix")
    print(f"{'m':>6}{'r':>4}{'operations':>13}{'time':>9}")
    for m in (256, 512, 1024, 2048, 4096):
        for r in (1, 2, 4, 8, 16):
            case = AgainstHals()
            case.setup(m, r)
            print(f"{m:6}{r:4}{case.operations():13.2f}{case.time(0.2):9.2f}", flush=True)


if __name__ == "__main__":
    main()
