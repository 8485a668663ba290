"""The data the projections are tested on: ``DISTRIBUTIONS[name](n, rng)``."""

import numpy as np


def _two_valued(n, rng):
    return np.where(rng.random(n) < 0.3, 2.0, 0.5) * rng.choice([-1.0, 1.0], n)


def _one_hot_ish(n, rng):
    y = 1e-3 * rng.standard_normal(n)
    y[rng.integers(n)] = 5.0
    return y


def _blocks_of_ties(n, rng):
    """Few distinct magnitudes, many entries at the top, some zeros."""
    y = rng.choice([-3.0, -2.0, 0.0, 1.0, 2.0, 3.0], n)
    y[n // 2] = 3.0
    return y


def _sparse(n, rng):
    y = rng.standard_normal(n) * (rng.random(n) < 0.2)
    y[n // 2] = 1.5  # never all zeros
    return y


def _clusters(n, rng):
    """Two tight clusters: a step below sqrt(eps) is no sign of convergence here."""
    return np.where(rng.random(n) < 0.5, 1.0, 1.0 - 1e-6) + 1e-9 * rng.standard_normal(n)


DISTRIBUTIONS = {
    "gaussian": lambda n, rng: rng.standard_normal(n),
    "laplace": lambda n, rng: rng.laplace(size=n),
    "uniform": lambda n, rng: rng.uniform(-1, 1, n),
    "positive": lambda n, rng: rng.random(n),
    "cauchy": lambda n, rng: rng.standard_cauchy(n),
    "zipf": lambda n, rng: 1.0 / np.arange(1, n + 1),
    "geometric_slow": lambda n, rng: 0.999 ** np.arange(n),
    "geometric_fast": lambda n, rng: 0.5 ** np.arange(n),
    "two_valued": _two_valued,
    "ascending": lambda n, rng: np.sort(rng.standard_normal(n)),
    "descending_magnitude": lambda n, rng: -np.sort(-np.abs(rng.standard_normal(n))),
    "integers": lambda n, rng: rng.permutation(np.arange(n) % 11 - 5.0),
    "blocks_of_ties": _blocks_of_ties,
    "near_constant": lambda n, rng: 1 + 1e-9 * rng.standard_normal(n),
    "near_constant_last_bits": lambda n, rng: 1 + np.finfo(float).eps * rng.integers(0, 50, n),
    "clusters": _clusters,
    "one_hot_ish": _one_hot_ish,
    "sparse": _sparse,
    "tiny_1e-300": lambda n, rng: 1e-300 * rng.standard_normal(n),
    "tiny_1e-160": lambda n, rng: 1e-160 * rng.standard_normal(n),
    "huge_1e160": lambda n, rng: 1e160 * rng.standard_normal(n),
    "huge_1e300": lambda n, rng: 1e300 * rng.standard_normal(n),
    "wide": lambda n, rng: 10.0 ** rng.uniform(-30, 30, n) * rng.choice([-1.0, 1.0], n),
}

# Too few bits for a relative error: tested against one subnormal an entry.
SUBNORMAL = {
    "subnormal": lambda n, rng: 5e-324 * rng.integers(-(2**20), 2**20, n),
    "subnormal_few_bits": lambda n, rng: 5e-324 * rng.integers(-7, 8, n),
}

# Those whose values, sums and ties survive the rounding to float32.
FLOAT32 = [
    name
    for name in DISTRIBUTIONS
    if not name.startswith(("tiny", "huge", "near_constant", "clusters"))
]


def make(name, n, seed=0):
    rng = np.random.default_rng([seed, n])
    return {**DISTRIBUTIONS, **SUBNORMAL}[name](n, rng)


def float32(name, n, seed=0):
    """The same data in float32; near-constant data gets its own last bits."""
    if name == "near_constant":
        rng = np.random.default_rng([seed, n])
        return (1 + 1e-5 * rng.standard_normal(n)).astype(np.float32)
    return make(name, n, seed).astype(np.float32)
