"""Rows of a few entries, searched side by side: verdicts against sorting, and who is left out."""

import math

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS
from numba import njit

from conehoyer import _math as m
from conehoyer import (
    level_for_nnz,
    project_cai,
    project_hoyer,
    project_l1_ball,
    project_simplex,
)
from conehoyer._cpu import narrow
from conehoyer._cpu.arrays import LOG, WANTED

DTYPES = [np.float32, np.float64]
KINDS = {"l1": m.L1, "simplex": m.SIMPLEX, "cai": m.CAI}
PROJECTIONS = [project_cai, project_l1_ball, project_hoyer, project_simplex]
THRESHOLDS = {m.L1: oracle.threshold_for_sum, m.CAI: oracle.threshold_for_level}


@njit
def search_rows(kind, absolute, tol, x, table, result, out):
    """What `narrow.search` knows of each row goes into `result`, what `narrow.write` writes too."""
    columns = narrow.columns_for(x.shape[1])
    for begin in range(0, len(x), narrow.WIDTH):
        end = min(begin + narrow.WIDTH, len(x))
        rows = result[begin:end]
        narrow.search(kind, absolute, tol, x[begin:end], columns, rows, table[begin:end])
        to, about = out[begin:end], table[begin:end]
        narrow.write(kind, absolute, x[begin:end], columns, rows, about, to, False)


def search(kind, absolute, tol, x, wanted):
    result, table = np.full((len(x), narrow.FIELDS), math.nan), np.zeros((len(x), LOG))
    table[:, WANTED] = wanted
    out = np.full_like(x, math.nan)
    search_rows(kind, absolute, tol, x, table, result, out)
    return result, out


def make(name, n, dtype, count=11):
    """Rows of the test data; 11 are a whole group and part of one."""
    rng = np.random.default_rng(n)
    with np.errstate(over="ignore"):
        x = np.array([DISTRIBUTIONS[name](n, rng) for _ in range(count)]).astype(dtype)
    x[~np.isfinite(x)] = 0.0
    return x


def wanted_of(kind, a):
    share = np.linspace(0.05, 0.95, len(a))
    if kind == m.CAI:
        return 1.0 + (a.shape[1] - 1) * share
    return (share * (np.abs(a).sum(axis=1) + 1e-300)).astype(float)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_verdicts_are_right(dtype, kind, name):
    kind, absolute = KINDS[kind], kind != "simplex"
    rtol = 1e-12 if dtype == np.float64 else 1e-6
    for n in (2, 3, 8, 9, 17, 32):
        x = make(name, n, dtype)
        a = np.abs(x).astype(oracle.LD) if absolute else x.astype(oracle.LD)
        wanted = wanted_of(kind, a)
        known, out = search(kind, absolute, 0.0, x, wanted)
        for row, values, y, p in zip(known, a, out, wanted, strict=True):
            if row[narrow.VERDICT] == m.FEASIBLE:
                score = oracle.cai_score(values) if kind == m.CAI else values.sum()
                assert score <= p * (1.0 + 1e-15 * n)
                np.testing.assert_array_equal(np.abs(y), values)
            elif row[narrow.VERDICT] == m.SOFT:
                tau = oracle.LD(row[narrow.TAU]) + oracle.LD(row[narrow.STEP])
                if kind == m.SIMPLEX:
                    ref = oracle.project_simplex(values, oracle.LD(p))
                    np.testing.assert_allclose(float(np.maximum(values - tau, 0).sum()), p, 1e-12)
                else:
                    soft = THRESHOLDS[kind](values, oracle.LD(p))
                    assert abs(tau - soft.tau) <= 1e-13 * soft.p.max()
                    np.testing.assert_allclose(row[narrow.S], float(soft.p.sum()), rtol=1e-12)
                    np.testing.assert_allclose(row[narrow.Q], float((soft.p**2).sum()), rtol=1e-12)
                    project = oracle.project_cai if kind == m.CAI else oracle.project_l1_ball
                    ref = project(values, oracle.LD(p))
                top = np.abs(ref).max()
                np.testing.assert_allclose(
                    np.abs(y).astype(float), ref.astype(float), rtol=0, atol=float(rtol * top)
                )
            else:
                assert np.isnan(y).all()  # left to others


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gaussian", "uniform", "cauchy", "zipf"])
def test_hardly_a_row_is_left(dtype, kind, name):
    """Of ordinary data; few passes end it."""
    kind, absolute = KINDS[kind], kind != "simplex"
    for n, least in ((3, 0.7), (10, 0.75), (32, 0.9)):
        x = make(name, n, dtype, 400)
        known, _ = search(kind, absolute, 1e-14, x, wanted_of(kind, x))
        found = (known[:, narrow.VERDICT] == m.SOFT) | (known[:, narrow.VERDICT] == m.FEASIBLE)
        assert np.mean(found) > (least if kind == m.CAI else 0.99)
        assert known[:, narrow.TAKEN].mean() < 6.0


def test_who_is_left():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((10, 20))
    x[0], x[1], x[2, 5], x[3, 7] = 1.0, 0.0, math.nan, -math.inf
    x[4] *= 1e-150
    wanted = np.full(10, 10.5)
    wanted[6], wanted[7], wanted[8] = 1.0, 20.0, 1.5
    x[5, :11], x[5, 11:] = 2.0, 1.0
    # One value only; zeros; NaN; inf; too small to square; 11 at the top; levels 1 and n, and two
    # ordinary rows.
    expected = [m.CAPPED, m.FEASIBLE, m.RESCALE, m.RESCALE, m.RESCALE, m.CAPPED]
    expected += [m.CAPPED, m.CAPPED, m.SOFT, m.SOFT]
    assert search(m.CAI, True, 0.0, x, wanted)[0][:, narrow.VERDICT].tolist() == expected
    expected[0], expected[1], expected[5:8] = m.SOFT, m.CAPPED, [m.SOFT] * 3
    known, out = search(m.SIMPLEX, False, 0.0, x, np.full(10, 3.0))
    assert known[:, narrow.VERDICT].tolist() == expected
    np.testing.assert_allclose(out[[0, 5, 6, 7, 8, 9]].sum(axis=1), 3.0, rtol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_has_no_verdict(kind):
    """Wherever it lies, beside rows that get theirs."""
    kind, absolute = KINDS[kind], kind != "simplex"
    for bad in (math.nan, math.inf, -math.inf, -math.nan):
        for positive in (False, True):
            x = np.random.default_rng(2).standard_normal((8, 8))
            np.fill_diagonal(x, bad)
            x[7, 7] = 0.5
            known, _ = search(kind, absolute and positive, 1e-14, x, 1.7)
            left = known[:, narrow.VERDICT]
            assert not np.isin(left[:7], [m.SOFT, m.FEASIBLE]).any()
            assert left[7] != m.RESCALE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 31, 32, 33])
@pytest.mark.parametrize("project", PROJECTIONS)
def test_a_row_does_not_see_its_neighbours(dtype, n, project):
    """The same bits and the same report alone and in any company."""
    rng = np.random.default_rng(n)
    x = np.concatenate([make(name, n, dtype, 3) for name in DISTRIBUTIONS])
    x[5], x[6] = 0.0, 1.0
    count = len(x)
    p = rng.uniform(0.3, 0.9, count) if project is project_hoyer else rng.uniform(1.0, 3.0, count)
    if project is project_cai:
        p = np.minimum(p, n)
    together, info = project(x, p, full_output=True)
    np.testing.assert_array_equal(together, project(x, p, workers=2))
    np.testing.assert_array_equal(together, project(x.copy(), p, overwrite_x=True))
    for some in (1, 3, 8):
        for begin in range(0, count, some):
            part = slice(begin, begin + some)
            alone, own = project(x[part], p[part], full_output=True)
            np.testing.assert_array_equal(alone, together[part])
            np.testing.assert_array_equal(own.passes, info.passes[part])
            np.testing.assert_array_equal(own.threshold, info.threshold[part])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("project", PROJECTIONS)
@pytest.mark.parametrize("name", ["gaussian", "integers", "near_constant", "cauchy"])
def test_powers_of_two_scale_bit_for_bit(dtype, project, name):
    exponents = (-100, -60, 60, 90) if dtype == np.float32 else (-900, -400, -150, 150, 400, 900)
    for n in (3, 10, 32):
        y = make(name, n, dtype)
        p = {project_cai: 2.5, project_hoyer: 0.3}.get(project, 1.25)
        x = project(y, p)
        for exponent in exponents:
            unit = exponent if project in (project_l1_ball, project_simplex) else 0
            scaled = project(np.ldexp(y, exponent), math.ldexp(p, unit))
            np.testing.assert_array_equal(scaled, np.ldexp(x, exponent), err_msg=str(exponent))


def test_a_single_row_tells_of_its_passes():
    x = np.random.default_rng(5).standard_normal(20)
    for project, p in ((project_cai, 3.0), (project_l1_ball, 2.0), (project_simplex, 2.0)):
        y, info = project(x, p, full_output=True)
        assert info.passes == len(info.support) > 1
        assert info.support[-1] == info.nnz == np.count_nonzero(y)
        assert (np.diff(info.support) <= 0).all()


@pytest.mark.parametrize("n", [2, 20, 32, 33, 300])
def test_radius_0_has_no_more_supports_than_passes(n):
    x = np.random.default_rng(5).standard_normal(n)
    for project in (project_l1_ball, project_simplex):
        y, info = project(x, 0.0, full_output=True)
        assert len(info.support) <= info.passes
        assert not y.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_signed_zeros_of_feasible_rows(dtype):
    x = np.array([[0.5, -0.0, 0.0, -0.25]] * 9, dtype)
    for project, p in ((project_cai, 3.0), (project_l1_ball, 2.0)):
        found = project(x, p)
        np.testing.assert_array_equal(found, x)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(x))
        found = project(x, p, nonneg=True)
        np.testing.assert_array_equal(found, np.maximum(x, 0.0))


@pytest.mark.parametrize("total", [1e-9, 1.0, 1e9])
def test_thresholds_of_any_sign(total):
    """Of the simplex all get a verdict here, but for those that meet it already."""
    x = np.random.default_rng(6).standard_normal((300, 7))
    known, out = search(m.SIMPLEX, False, 1e-14, x, total)
    assert (known[:, narrow.VERDICT] == m.SOFT).all()
    for row, y in zip(out, x, strict=True):
        ref = oracle.project_simplex(y, total)
        np.testing.assert_allclose(row, ref.astype(float), rtol=0, atol=1e-14 * total)
    met = np.abs(x) / np.abs(x).sum(axis=1, keepdims=True)
    known, _ = search(m.SIMPLEX, False, 1e-14, met, 1.0)
    assert (known[:, narrow.VERDICT] == m.CAPPED).all()
    np.testing.assert_array_equal(project_simplex(met, 1.0), met)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nonneg", [False, True])
def test_hoyer_of_any_sign(dtype, nonneg):
    """Sparser and denser than the input, with its norm and with a norm of their own."""
    rtol = 1e-12 if dtype == np.float64 else 1e-5
    for name in ("gaussian", "sparse", "uniform", "zipf", "cauchy"):
        for n in (3, 10, 32):
            x = make(name, n, dtype)
            for sparseness in (0.05, 0.4, 0.8):
                for l2 in (None, 2.5):
                    found = project_hoyer(x, sparseness, l2=l2, nonneg=nonneg)
                    for row, y in zip(found, x, strict=True):
                        options = {"l2": l2, "nonneg": nonneg}
                        ref = oracle.project_hoyer(y, sparseness, **options).astype(float)
                        atol = rtol * np.abs(ref).max()
                        np.testing.assert_allclose(row, ref, rtol=0, atol=atol)


def test_hardly_a_row_of_hoyer_is_left():
    x = make("gaussian", 10, np.float64, 400)
    known, _ = search(m.HOYER, True, 1e-14, x, np.linspace(1.5, 9.5, 400))
    assert np.mean(known[:, narrow.VERDICT] == m.SOFT) > 0.8


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_just_above_the_level(dtype):
    """A step may pass the next lower ties by a hair: with them τ is sharp, without them not."""
    rng = np.random.default_rng(5)
    for _ in range(600):
        tops, others = rng.integers(2, 14, 2)
        unit = rng.uniform(0.5, 2.0)
        values = unit * np.repeat([3.0, 2.0, 1.0, 0.0], [tops, others, 3, 3])
        x = (rng.permutation(values) * rng.choice([-1.0, 1.0], values.size)).astype(dtype)
        level = tops * (1.0 - 2.0 ** rng.integers(-50, -20))
        ref = oracle.project_cai(x, level).astype(float)
        atol = 3e-5 if dtype == np.float32 else 3e-12
        np.testing.assert_allclose(project_cai(x, level), ref, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_at_the_threshold(dtype):
    """Values one last bit apart, many of each: τ + step is none of the data's numbers."""
    rng = np.random.default_rng(4)
    x = (1.0 + np.finfo(dtype).eps * rng.integers(0, 6, (300, 30))).astype(dtype)
    level = rng.uniform(2.0, 29.0, 300)
    for row, p, y in zip(project_cai(x, level), level, x, strict=True):
        ref = oracle.project_cai(y, p).astype(float)
        np.testing.assert_allclose(row, ref, rtol=0, atol=1e-12 if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize(("size", "l2"), [(1e-95, 1e250), (1e95, 1e-250)])
def test_hoyer_far_from_the_norm_of_the_input(size, l2):
    """The factor is no float, or has lost its digits."""
    x = size * make("gaussian", 10, np.float64)
    for row, y in zip(project_hoyer(x, 0.5, l2=l2), x, strict=True):
        ref = oracle.project_hoyer(y, 0.5, l2=l2)
        np.testing.assert_allclose(row / l2, (ref / oracle.LD(l2)).astype(float), atol=1e-13)


def test_subnormal_float32():
    """As exact as their digits allow, also where a row is left to others."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        n = rng.integers(8, 30)
        x = (10.0 ** rng.integers(-43, -40) * rng.standard_normal((5, n))).astype(np.float32)
        level = float(rng.integers(2, n))
        for row, y in zip(project_cai(x, level), x, strict=True):
            ref = oracle.project_cai(y, level)
            assert np.abs(row - ref).max() <= 1e-5 * np.abs(ref).max() + 1.5e-45


@pytest.mark.parametrize("n", [20, 30])
def test_an_entry_at_the_threshold_does_not_lengthen_the_search(n):
    """As one is at the levels of level_for_nnz: it is in and out by turns."""
    x = np.random.default_rng(n).standard_normal((2000, n))
    levels = level_for_nnz(x, n // 4)
    passes = project_cai(x, levels, full_output=True)[1].passes
    elsewhere = project_cai(x, 0.98 * levels, full_output=True)[1].passes
    assert passes.mean() < elsewhere.mean() + 0.5
    assert (passes > 10).mean() < 0.01
