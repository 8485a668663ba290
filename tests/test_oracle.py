"""The reference itself against brute force: it has to be right before it judges."""

from fractions import Fraction
from math import isqrt

import numpy as np
import oracle
import pytest
from distributions import make
from scipy.optimize import minimize

LD = np.longdouble
SMALL = ["gaussian", "integers", "blocks_of_ties", "zipf", "two_valued", "near_constant", "sparse"]


def test_long_double_is_wide_enough():
    assert oracle.HAS_EXTENDED


def random_directions(n, level, rng, count=4000):
    """Nonnegative unit vectors with H <= level: random points pulled to the axes."""
    p = rng.random((count, n)) ** rng.uniform(0.2, 20, (count, 1))
    p *= rng.random((count, n)) < rng.uniform(0.2, 1, (count, 1))
    p = p[p.any(axis=1)]
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    return p[p.sum(axis=1) ** 2 <= level]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_no_feasible_point_is_closer_than_the_cai_projection(name, n):
    rng = np.random.default_rng(n)
    y = make(name, n, seed=3)
    for level in [1.0, 1.3, 2.0, 2.5, 0.7 * n + 0.3, n - 1e-3]:
        x = oracle.project_cai(y, level)
        assert oracle.hoyer_score(x) <= level * (1 + 1e-15)
        best = np.sum((x - y) ** 2)
        p = random_directions(n, level, rng)
        alignment = (p @ np.abs(y)).max(initial=0.0)
        assert best <= np.sum(y**2) - alignment**2 + 1e-12


@pytest.mark.parametrize("name", SMALL)
def test_a_local_optimiser_does_not_improve_on_it(name):
    rng = np.random.default_rng(1)
    n, level = 5, 2.4
    y = make(name, n, seed=5)
    a = np.abs(y)
    best = float(np.sum((oracle.project_cai(y, level) - y) ** 2))
    constraint = {"type": "ineq", "fun": lambda z: level * (z @ z) - z.sum() ** 2}
    for _ in range(10):
        start = a * rng.random(n) ** 3
        found = minimize(
            lambda z: np.sum((z - a) ** 2), start, bounds=[(0, None)] * n, constraints=constraint
        )
        if found.success and constraint["fun"](found.x) >= -1e-12:
            assert best <= found.fun + 1e-7


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("sparseness", [0.02, 0.3, 0.6, 0.9])
def test_a_local_optimiser_does_not_improve_on_hoyer(nonneg, sparseness):
    n = 5
    rng = np.random.default_rng(2)
    y = rng.standard_normal(n)
    x = oracle.project_hoyer(y, sparseness, nonneg=nonneg).astype(float)
    a = y if nonneg else np.abs(y)
    l2 = np.linalg.norm(y)
    l1 = l2 * (np.sqrt(n) - sparseness * (np.sqrt(n) - 1))
    assert abs(np.abs(x).sum() - l1) < 1e-14
    assert abs(np.linalg.norm(x) - l2) < 1e-14
    constraints = [
        {"type": "eq", "fun": lambda z: z.sum() - l1},
        {"type": "eq", "fun": lambda z: z @ z - l2**2},
    ]
    best = np.sum((x - y) ** 2)
    reached = np.inf
    for _ in range(30):
        start = rng.random(n) * l2
        found = minimize(
            lambda z: np.sum((z - a) ** 2),
            start,
            bounds=[(0, None)] * n,
            constraints=constraints,
            options={"ftol": 1e-14},
        )
        if found.success:
            reached = min(reached, found.fun)
    assert best <= reached + 1e-6  # nothing better
    assert reached <= best + 1e-6  # and the optimiser does get there


@pytest.mark.parametrize("seed", range(5))
def test_simplex_and_ball_against_a_local_optimiser(seed):
    rng = np.random.default_rng(seed)
    n = 5
    y = rng.standard_normal(n)
    x = oracle.project_simplex(y, 1.5).astype(float)
    found = minimize(
        lambda z: np.sum((z - y) ** 2),
        np.full(n, 0.3),
        bounds=[(0, None)] * n,
        constraints={"type": "eq", "fun": lambda z: z.sum() - 1.5},
        options={"ftol": 1e-15},
    )
    assert abs(x.sum() - 1.5) < 1e-15
    np.testing.assert_allclose(x, found.x, atol=1e-5)
    ball = oracle.project_l1_ball(y, 0.4 * np.abs(y).sum())
    simplex = oracle.project_simplex(np.abs(y), 0.4 * np.abs(y).sum())
    np.testing.assert_array_equal(np.abs(ball), simplex)
    assert np.all(ball * y >= 0)


def _fraction_level(p):
    s, q = sum(p), sum(v * v for v in p)
    return s * s / q


@pytest.mark.parametrize("name", ["near_constant", "gaussian", "clusters", "cauchy", "huge_1e160"])
def test_the_level_holds_in_exact_arithmetic(name):
    y = make(name, 60, seed=1)
    for level in [1.5, 7.25, 20.0]:
        if oracle.hoyer_score(y) <= level:
            continue
        x = oracle.project_cai(y, level)
        # a long double is two doubles, so a fraction holds it exactly
        high = x.astype(float)
        low = (x - high).astype(float)
        p = [
            abs(Fraction(h) + Fraction(v)) for h, v in zip(high.tolist(), low.tolist(), strict=True)
        ]
        assert abs(_fraction_level(p) / Fraction(level) - 1) < 1e-17


def test_threshold_in_exact_arithmetic():
    """A support found over the rationals, for one near-constant vector."""
    y = make("near_constant", 40, seed=2)
    level = 12.5
    a = sorted((Fraction(v) for v in y.tolist()), reverse=True)
    for nu in range(13, 41):
        m = sum(a[:nu]) / nu
        v = sum((x - m) ** 2 for x in a[:nu]) / nu
        square = Fraction(level) * v / (nu - Fraction(level))
        # m - sqrt(square), with the root to 60 digits
        root = Fraction(isqrt(int(square * 10**120)), 10**60)
        tau = m - root
        if tau < a[nu - 1] and (nu == 40 or tau >= a[nu]):
            break
    soft = oracle.threshold_for_level(y, level)
    assert soft.support == nu
    expected = np.array([float(max(Fraction(v) - tau, 0)) for v in y.tolist()])
    np.testing.assert_allclose(soft.p.astype(float), expected, rtol=1e-12, atol=1e-24)


def test_tie_rule():
    y = np.array([0.0, 2.0, -2.0, 1.0, 2.0, 2.0])
    for level in [1.0, 1.5, 2.0, 2.75, 3.0, 3.999]:
        x = oracle.project_cai(y, level)
        assert abs(oracle.hoyer_score(x) / level - 1) < 1e-18
        k = int(np.ceil(level))
        assert list(np.flatnonzero(x)) == [1, 2, 4, 5][:k]
        # the bound max(a) * sqrt(level) on <p, a> / ||p|| is attained
        assert abs(np.sum(x * y) / np.sqrt(np.sum(x * x)) - 2 * np.sqrt(LD(level))) < 1e-17


@pytest.mark.parametrize("name", ["gaussian", "integers", "blocks_of_ties", "zipf"])
def test_edge_for_nnz(name):
    y = make(name, 30, seed=1)
    a = np.abs(y)
    for k in [1, 2, 5, 11, 29, 30]:
        edge = oracle.edge_for_nnz(y, k)
        below = oracle.project_cai(y, float(edge) * (1 - 1e-9) if edge > 1 else 1.0)
        assert np.count_nonzero(below) <= k
        if np.count_nonzero(a) > k:
            above = oracle.project_cai(y, float(edge) * (1 + 1e-9))
            assert np.count_nonzero(above) > k


def test_scores():
    x = np.array([3.0, -4.0])
    assert oracle.cai_score(x) == LD(1) / 25
    assert oracle.hoyer_score(x) == LD(49) / 25
    assert (
        abs(oracle.hoyer_sparseness(x) - (np.sqrt(LD(2)) - LD(7) / 5) / (np.sqrt(LD(2)) - 1))
        < 1e-18
    )
    assert oracle.hoyer_sparseness([0.0, 5.0, 0.0]) == pytest.approx(1)
    assert oracle.hoyer_sparseness([0.0, 0.0]) == 1
    assert oracle.hoyer_sparseness([7.0]) == 1
    assert oracle.hoyer_sparseness([2.0, 2.0, 2.0]) == 0
