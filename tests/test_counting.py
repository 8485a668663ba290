"""The counted algorithms of asv_benchmarks compute what the library computes."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from distributions import DISTRIBUTIONS
from numpy.testing import assert_allclose

import conehoyer

sys.path.append(str(Path(__file__).parents[1] / "asv_benchmarks" / "benchmarks"))

import counting

NAMES = ("gaussian", "laplace", "uniform", "positive", "cauchy", "sparse")
SHARES = (0.15, 0.1, 0.01)
TOLERANCE = 1e-9


def problem(name, share, n=500):
    """Data, a level in the middle of those that keep this share, and both projections."""
    y = DISTRIBUTIONS[name](n, np.random.default_rng(5))
    k = round(share * n)
    a = np.sort(np.abs(y))
    p = np.maximum(a - 0.5 * (a[n - k] + a[n - k - 1]), 0.0)
    level, sparseness = float(conehoyer.hoyer_score(p)), float(conehoyer.hoyer_sparseness(p))
    x = conehoyer.project_cai(y, level)
    assert np.count_nonzero(x) == k
    return y, level, x, conehoyer.project_hoyer(y, sparseness)


def assert_close(x, expected, rtol=1e-9):
    assert_allclose(x, expected, rtol=0.0, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", NAMES)
def test_cfp(name, share, packed):
    y, level, expected, _ = problem(name, share)
    x, count = counting.cfp(y, level, packed)
    assert_close(x, expected)
    # 12 operations an entry outside the loop, 4 in each round, and what is no vector.
    bound = (12 + 4 * count.rounds) * y.size + 12 * count.rounds + 10
    if packed:
        assert 0 < count.operations < bound
    else:
        assert bound - 4 * count.rounds - 10 <= count.operations <= bound


@pytest.mark.parametrize("inner", ["michelot", "condat"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", NAMES)
def test_alternating(name, share, packed, inner):
    y, level, _, expected = problem(name, share)
    x, count = counting.alternating(y, level, inner, packed)
    assert_close(x, expected)
    assert count.operations >= 10 * y.size - 10  # the least: the hyperplane and one round


@pytest.mark.parametrize("inner", ["michelot", "condat"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["gaussian", "uniform"])
def test_ball_and_sphere(name, packed, inner):
    y, level, _, expected = problem(name, 0.1)
    x, loose = counting.ball_and_sphere(y, level, 1e-3, inner, packed)
    assert np.abs(x).sum() <= np.abs(expected).sum() * (1.0 + 1e-3)
    x, count = counting.ball_and_sphere(y, level, 1e-10, inner, packed)
    assert_close(x, expected, 1e-7)
    assert count.rounds > loose.rounds
    assert count.operations > loose.operations


@pytest.mark.parametrize("radius", [0.5, 5.0, 50.0])
def test_condat_threshold(radius):
    a = np.abs(DISTRIBUTIONS["gaussian"](300, np.random.default_rng(1)))
    tau, operations = counting.condat_threshold(a, radius)
    _, info = conehoyer.project_l1_ball(a, radius, full_output=True)
    assert tau == pytest.approx(info.threshold, rel=1e-12)
    assert a.size <= operations < 20 * a.size


def test_condat_counts_by_hand():
    # rho = 3 - 1; 1 and 0.5 are compared with it; then one pass over the candidate 3.
    assert counting.condat_threshold(np.array([3.0, 1.0, 0.5]), 1.0) == (2.0, 4)


@pytest.mark.parametrize("name", ["gaussian", "uniform"])
def test_bilevel(name):
    y = DISTRIBUTIONS[name](40 * 30, np.random.default_rng(2)).reshape(40, 30)
    level = 0.999 * conehoyer.level_for_groups(y, 6)
    x, parts = counting.bilevel_by_part(y, level)
    assert_close(x, conehoyer.project_bilevel(y, level), 1e-7)
    assert parts["magnitudes"].operations == y.size
    assert parts["largest"].operations == 39 * 30
    assert parts["clamp"].operations == 2 * y.size + 30
    again, operations = counting.bilevel_columns(y, level)
    assert_allclose(again, x, rtol=0.0)
    assert operations == sum(part.operations for part in parts.values())


def test_hals_sweep():
    rng = np.random.default_rng(3)
    x, w, h = rng.random((30, 20)), rng.random((30, 3)), rng.random((3, 20))
    new_w, new_h, operations = counting.hals_sweep(x, w, h)
    result = conehoyer.nmf_hals(x, 3, init=(w, h), max_iter=1, tol=0.0, accelerated=False)
    assert_close(new_w @ new_h, result.W @ result.H)
    products = 2 * 3 * 30 * 20  # multiplications, each for two factors
    assert 1.5 * products < operations < 4 * products


def test_operations_by_hand():
    count = counting.Counter()
    a = np.array([3.0, -4.0])
    assert count.sum(count.multiply(count.absolute(a), 2.0)) == 14.0  # 2 + 2 + 1
    assert count.sqrt(count.dot(a, a)) == 5.0  # 3 + 1
    assert count.number(count.compare(a, 0.0)) == 1  # 2
    assert (count.operations, count.profiled) == (11, 2)
    count = counting.Counter(products=True)
    assert count.dot(a, a) == 25.0
    assert (count.operations, count.profiled) == (3, 2)


@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("packed", [True, False])
def test_torch_profiler_agrees(packed, products):
    pytest.importorskip("torch")
    y, level, *_ = problem("gaussian", 0.1)
    for algorithm in (
        partial(counting.cfp, level=level, packed=packed),
        partial(counting.alternating, level=level, packed=packed),
        partial(counting.ball_and_sphere, level=level, tolerance=1e-3, packed=packed),
    ):
        _, count = algorithm(y, count=counting.Counter(products))
        assert counting.profile(algorithm, y, products=products) == count.profiled
