"""Benchmarks of conehoyer."""

import os

# asv sets these as well, but not in an existing environment; they count from NumPy's import on.
for _name in ("NUMBA", "OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_name}_NUM_THREADS", "1")
