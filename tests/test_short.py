"""Short rows, searched together: their passes against NumPy, the verdicts, and who is left out."""

import itertools
import math

import numpy as np
import oracle
import pytest
from distributions import DISTRIBUTIONS
from numba import njit

from conehoyer import _math as m
from conehoyer import (
    level_for_nnz,
    project_bilevel,
    project_cai,
    project_hoyer,
    project_l1_ball,
    project_simplex,
)
from conehoyer._cpu import engine, short, simd
from conehoyer._cpu.arrays import LOG, STATUS, WANTED

DTYPES = [np.float32, np.float64]
PLAIN = ["gaussian", "cauchy", "zipf", "integers", "near_constant"]


@njit
def look(z, absolute, tau):
    """The sums at 0, τ and τ/2, the copies then, and what lies on the way right and left of τ."""
    known, copies = short.scratch(z.reshape((1, z.size)), 1)
    known[:] = 0.0
    known[0, short.LEAST] = math.inf
    log = np.zeros(3)
    looks, kept = np.empty((3, short.FIELDS)), np.empty((3, copies.shape[1]), z.dtype)
    real, passed = z.dtype.type, ((0.0, 0.0), (0.0, 0.0))
    for k in range(3):
        known[0, short.TAU] = (0.0, tau, 0.5 * tau)[k]
        short._look(z, absolute, copies[0], known[0], log)
        looks[k], kept[k] = known[0], copies[0]
        if k == 1:
            copy = copies[0, : int(known[0, short.KEPT])]
            right = short._passed(copy, real(tau), real(0.1 * tau), real(0.05 * tau))
            left = short._passed(copy, real(tau), real(-0.1 * tau), real(0.05 * tau))
            passed = right, left
    return looks, kept, passed, log


def search(kind, absolute, tol, x, wanted):
    """What `short.search` knows of each row of x."""
    result, table = np.empty((len(x), short.FIELDS)), np.zeros((len(x), LOG))
    table[:, WANTED] = wanted
    search_rows(kind, absolute, tol, x, table, result)
    return result


@njit
def search_rows(kind, absolute, tol, x, table, result):
    """The same, `together` rows at a time; it goes into `result`."""
    count = short.together(x)
    known, copies = short.scratch(x, count)
    for r in range(0, len(x), count):
        end = min(r + count, len(x))
        short.search(kind, absolute, tol, x[r:end], x[end:], x[end:], copies, known, table[r:end])
        for i in range(end - r):
            for field in range(short.FIELDS):
                result[r + i, field] = known[i, field]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("n", [8, 15, 16, 17, 31, 32, 33, 63, 64, 100, 1000, 1024, 1025, 2048])
def test_passes(dtype, absolute, n):
    rng = np.random.default_rng(n)
    z = rng.standard_normal(n).astype(dtype)
    z[rng.integers(0, n, 3)] = 0.0
    tau = dtype(0.5)
    z[rng.integers(0, n)] = tau  # does not lie above τ
    looks, copies, passed, log = look(z, absolute, float(tau))
    a = (np.abs(z) if absolute else np.maximum(z, 0)).astype(float)
    rtol = 1e-6 if dtype == np.float32 else 1e-14
    least = 0.0
    if simd.COMPRESS and copies[0].nbytes >= short.KEEP_FROM:  # some entries are left out
        least = float(dtype(short.KEEP_ABOVE * tau))
    for known, copy, theta, above in zip(
        looks, copies, (0.0, tau, 0.5 * tau), (0.0, least, 0.0), strict=True
    ):
        d = a[a > theta] - float(theta)
        assert known[short.NU] == d.size
        np.testing.assert_allclose(known[short.S], d.sum(), rtol=rtol)
        np.testing.assert_allclose(known[short.Q], (d * d).sum(), rtol=rtol)
        kept, takes = a[a > above] if above > 0.0 else a, int(known[short.KEPT])
        assert known[short.LEAST] == above
        assert 0 <= takes - kept.size < 2 * 64 // z.itemsize
        np.testing.assert_array_equal(copy[:takes], np.append(kept, np.zeros(takes - kept.size)))
    np.testing.assert_array_equal(log, looks[:, short.NU])
    step = 0.1 * float(tau)
    gap = a - tau
    slack = 0.5 * step
    right = np.abs(gap[(gap > 0) & (gap <= step + slack)] - step)
    left = np.abs(gap[(gap > -step) & (gap <= slack)] + step)
    counted = (gap > 0) & (gap <= slack)  # the sums at τ do not hold the others
    expected = (right.size, right.sum()), (counted.sum(), left.sum())
    np.testing.assert_allclose(passed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [m.CAI, m.L1])
@pytest.mark.parametrize("h", [-0.1, -0.03, 0.03, 0.1])
def test_the_step_is_of_third_order(kind, h):
    """On an exponential and on a uniform tail, whose sums are known."""
    tails = {
        "exponential": lambda t: (math.exp(-t), math.exp(-t), 2.0 * math.exp(-t)),
        "uniform": lambda t: ((1.0 - t), (1.0 - t) ** 2 / 2.0, (1.0 - t) ** 3 / 3.0),
    }
    for tail in tails.values():
        _, s, q = tail(h)
        p = s * s / q if kind == m.CAI else s
        nu, s, q = tail(0.0)
        assert abs(m.tail_step(kind, p, nu, s, q) - h) < 3.0 * abs(h) ** 3
        assert abs(m.newton_offset(kind, p, nu, s, q) - h) > 0.2 * h * h


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [m.CAI, m.L1])
def test_usual_rows_are_searched_together(dtype, kind):
    x = np.random.default_rng(0).standard_normal((200, 500)).astype(dtype)
    a = np.sort(np.abs(x).astype(float))
    for kept in (250, 50, 5):
        if kind == m.CAI:
            wanted = level_for_nnz(x, kept)
        else:
            wanted = np.maximum(a - a[:, -kept - 1, None], 0).sum(axis=1)
        known = search(kind, True, 0.0, x, wanted)
        assert np.mean(known[:, short.VERDICT] == m.SOFT) > 0.8
        assert np.mean(known[:, short.TAKEN]) < 5.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [m.CAI, m.L1])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_verdicts_are_right(dtype, kind, name):
    """τ, the support and the sums of whatever gets a verdict, against sorting."""
    rng = np.random.default_rng(3)
    rtol = 2e-6 if dtype == np.float32 else 1e-13
    for n in (8, 33, 64, 300, 1000):
        with np.errstate(over="ignore"):
            x = np.array([DISTRIBUTIONS[name](n, rng) for _ in range(6)]).astype(dtype)
        a = np.abs(x).astype(oracle.LD)
        if not np.isfinite(a).all():
            continue
        share = np.array([0.9, 0.5, 0.3, 0.1, 0.03, 0.01])
        wanted = (1.0 + (n - 1) * share) if kind == m.CAI else (share * a.sum(axis=1)).astype(float)
        for row, values, p in zip(search(kind, True, 0.0, x, wanted), a, wanted, strict=True):
            if row[short.VERDICT] == m.FEASIBLE:
                score = oracle.cai_score(values) if kind == m.CAI else values.sum()
                assert score <= p * (1.0 + rtol)
            elif row[short.VERDICT] == m.SOFT:
                threshold = (
                    oracle.threshold_for_level if kind == m.CAI else oracle.threshold_for_sum
                )
                soft = threshold(values, oracle.LD(p))
                tau = oracle.LD(row[short.TAU]) + oracle.LD(row[short.STEP])
                scale = soft.p.max()
                assert abs(tau - soft.tau) <= rtol * scale
                np.testing.assert_allclose(row[short.S], float(soft.p.sum()), rtol=50 * rtol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [m.CAI, m.L1])
@pytest.mark.parametrize(("most", "apart"), [(0.01, 5.0), (0.5, 3.0)])
def test_what_a_copy_does_not_keep_is_fetched_again(dtype, kind, most, apart):
    """Two clusters of values mislead the guess, and τ* lies left of what is kept."""
    rng = np.random.default_rng(7)
    shape, shares = (100, 1000), (0.3, 0.1, 0.03, 0.01)
    x = rng.uniform(0.0, 1.0, shape) + apart * (rng.random(shape) < most)
    x = x.astype(dtype)
    again, rtol = 0.0, 2e-6 if dtype == np.float32 else 1e-13
    oracles = {m.CAI: oracle.threshold_for_level, m.L1: oracle.threshold_for_sum}
    for share in shares:
        wanted = np.full(100, 1.0 + 999.0 * share)
        if kind == m.L1:
            wanted = share * x.sum(axis=1, dtype=float)
        known = search(kind, True, 0.0, x, wanted)
        found = known[:, short.VERDICT] == m.SOFT
        fetched = (known[:, short.LEAST] == 0.0) & (known[:, short.TAKEN] > 2.0)
        again += np.mean(found & fetched)
        for row, values, p in zip(known[found], x[found], wanted[found], strict=True):
            soft = oracles[kind](values.astype(oracle.LD), oracle.LD(p))
            tau = oracle.LD(row[short.TAU]) + oracle.LD(row[short.STEP])
            assert abs(tau - soft.tau) <= rtol * soft.p.max()
    assert again > 0.05 or not simd.COMPRESS


@njit
def end(kind, p, z, tau, step):
    """What is known of a row after looks at 0 and τ, and a last step from there."""
    known, copies = short.scratch(z.reshape((1, z.size)), 1)
    known[:] = 0.0
    known[0, short.LEAST] = math.inf
    log = np.zeros(2)
    for theta in (0.0, tau):
        known[0, short.TAU] = theta
        short._look(z, True, copies[0], known[0], log)
    known[0, short.STEP] = step
    short._end(kind, p, copies[0], known[0])
    return known[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("step", "verdict"), [(-0.375, m.GO), (-0.125, m.SOFT), (0.125, m.SOFT)])
def test_a_last_step_does_not_pass_what_is_not_kept(dtype, step, verdict):
    """No entry lies between τ and what is kept, but some are passed further left."""
    z = np.append(np.linspace(1.1, 1.2, 100), np.linspace(0.55, 0.65, 900)).astype(dtype)
    known = end(m.L1, 1.0, z, 0.875, step)
    assert known[short.VERDICT] == verdict
    assert known[short.TAU] == (0.5 if verdict == m.GO else 0.875)


@pytest.mark.parametrize("dtype", DTYPES)
def test_entries_at_the_threshold(dtype):
    """Values one last bit apart, many of each: τ + step is none of the data's numbers."""
    rng = np.random.default_rng(4)
    eps = np.finfo(dtype).eps
    x = (1.0 + eps * rng.integers(0, 50, (300, 333))).astype(dtype)
    level = rng.uniform(100.0, 330.0, 300)
    found = project_cai(x, level)
    for row, p, y in zip(found, level, x, strict=True):
        ref = oracle.project_cai(y, p).astype(float)
        np.testing.assert_allclose(row, ref, rtol=0, atol=1e-12 if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_just_above_the_level(dtype):
    """A step may pass the next lower ties by a hair: with them τ is sharp, without them not."""
    rng = np.random.default_rng(5)
    for _ in range(300):
        tops, others = rng.integers(5, 60, 2)
        values = np.repeat([3.0, 2.0, 1.0, 0.0], [tops, others, 12, 12])
        x = (rng.permutation(values) * rng.choice([-1.0, 1.0], values.size)).astype(dtype)
        level = tops * (1.0 - 2.0 ** rng.integers(-40, -20))
        ref = oracle.project_cai(x, level).astype(float)
        found = project_cai(x, level)
        np.testing.assert_allclose(found, ref, rtol=0, atol=3e-5 if dtype == np.float32 else 1e-12)


def test_who_is_left_by_the_search():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((8, 100))
    x[0], x[1], x[2, 5], x[3, 7] = 1.0, 0.0, math.nan, -math.inf
    x[4] *= 1e-150
    x[5] = np.where(rng.random(100) < 0.5, 2.0, 1.0)
    wanted = np.full(8, 30.0)
    wanted[6] = 1.0
    statuses = search(m.CAI, True, 0.0, x, wanted)[:, short.VERDICT]
    left = m.CAPPED
    # One value only; zeros; NaN; inf; too small to square; ties; level 1; an ordinary row.
    assert statuses[0] == left
    assert statuses[1] == m.FEASIBLE
    assert statuses[2] == statuses[3] == statuses[4] == m.RESCALE
    assert statuses[5] == left
    assert statuses[6] == left
    assert statuses[7] == m.SOFT
    assert search(m.CAI, False, 0.0, x, wanted)[3, short.VERDICT] == left


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("level", "status"), [(20.0, m.SOFT), (29.0, m.CAPPED), (29.5, m.CAPPED)])
def test_hardly_more_entries_than_the_level(dtype, level, status):
    """There the Newton step magnifies rounding."""
    rng = np.random.default_rng(2)
    x = np.append(1.0 + 0.3 * rng.random(30), 0.1 * rng.random(70)).astype(dtype)
    x = rng.permutation(x)[None]
    assert search(m.CAI, True, 0.0, x, level)[0, short.VERDICT] == status
    ref = oracle.project_cai(x[0], level)
    atol = 1e-12 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(project_cai(x[0], level), ref.astype(float), atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [7, 8, 20, 128, 1000, 2048, 2049, 4096, 4097, 8192, 8193])
@pytest.mark.parametrize("project", [project_cai, project_l1_ball, project_hoyer, project_simplex])
def test_a_row_does_not_see_its_neighbours(dtype, n, project):
    """The same bits alone, in company, in place and by two threads."""
    rng = np.random.default_rng(n)
    makers = list(DISTRIBUTIONS.values())
    with np.errstate(over="ignore"):
        x = np.array([makers[r % len(makers)](n, rng) for r in range(40)]).astype(dtype)
    x[~np.isfinite(x)] = 0.0
    x[5], x[6] = 0.0, 1.0
    p = rng.uniform(0.3, 0.9, 40) if project is project_hoyer else rng.uniform(1.0, 0.6 * n, 40)
    together = project(x, p)
    np.testing.assert_array_equal(together, project(x, p, workers=2))
    alone = np.array([project(row, level) for row, level in zip(x, p, strict=True)])
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together, project(x.copy(), p, overwrite_x=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_thresholds_of_any_sign(dtype):
    """Where τ is not positive the search has no verdict, and the engine takes the row."""
    rng = np.random.default_rng(6)
    x = rng.standard_normal((60, 100)).astype(dtype)
    tolerance = {"rtol": 0, "atol": 1e-12 if dtype == np.float64 else 1e-5}
    for total in np.geomspace(0.1, 500.0, 12):
        found = project_simplex(x, total)
        for row, y in zip(found, x, strict=True):
            ref = oracle.project_simplex(y, total).astype(float)
            np.testing.assert_allclose(row / total, ref / total, **tolerance)
    for sparseness in np.linspace(0.05, 0.95, 12):
        found = project_hoyer(x, sparseness)
        for row, y in zip(found, x, strict=True):
            ref = oracle.project_hoyer(y, sparseness).astype(float)
            scale = np.abs(ref).max()
            np.testing.assert_allclose(row / scale, ref / scale, **tolerance)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_supports_of_the_passes(name):
    """As many as there were passes, also where the search was given up."""
    rng = np.random.default_rng(8)
    for n in (8, 64, 333, 1000):
        y = DISTRIBUTIONS[name](n, rng)
        for share in (0.05, 0.3, 0.7):
            for project, p in ((project_cai, 1.0 + share * n), (project_l1_ball, share)):
                x, info = project(y, p * (np.abs(y).max() if p == share else 1.0), full_output=True)
                assert len(info.support) == info.passes
                assert (info.support >= 0).all()
                assert info.nnz == np.count_nonzero(x)


def test_the_engine_agrees():
    """Rows a little too long for the search, with zeros in them that change nothing."""
    rng = np.random.default_rng(9)
    limit = short.LONGEST // 8
    x = rng.standard_normal((20, limit))
    longer = np.hstack([x, np.zeros((20, 8))])
    assert search(m.CAI, True, 0.0, x, 300.0)[0, short.VERDICT] == m.SOFT
    for project, p in ((project_cai, 300.0), (project_l1_ball, 100.0)):
        np.testing.assert_allclose(
            project(x, p), project(longer, p)[:, :limit], rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("project", [project_l1_ball, project_cai])
def test_most_rows_end_early(dtype, project):
    """The sums at 0, at a guess and after one more step: then a Newton step is enough."""
    x = np.random.default_rng(0).standard_normal((200, 1000)).astype(dtype)
    a = np.sort(np.abs(x), axis=1)
    over = np.maximum(a - a[:, 499:500], 0.0, dtype=float)
    p = over.sum(1) if project is project_l1_ball else level_for_nnz(x, 500)
    passes = project(x, p, full_output=True)[1].passes
    assert np.mean(passes == 3) > 0.4
    assert passes.max() <= 6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2000, 4000, 9000])
def test_a_tie_below_a_level(dtype, n):
    """Below the count of the largest no threshold exists, though rounding makes one appear."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.uniform(0.1, 3.0, 4)).astype(dtype)
        x = rng.choice(values, n)
        top = np.count_nonzero(x == values[3])
        y = project_cai(x, top * (1 - 1e-9))
        assert np.count_nonzero(y) == top, seed
        kept = np.sort(y[x == values[3]])
        assert kept[0] < kept[1] == kept[-1]  # all the same but one


@pytest.fixture
def new_process(monkeypatch):
    """As in one where the engine has not been needed yet."""
    monkeypatch.setattr(short, "_engine", {})
    return short._engine


@pytest.fixture
def without_engine(new_process, monkeypatch):
    """Whoever wants the engine fails."""

    def compile_it(*_):
        pytest.fail("the engine would have been compiled")

    monkeypatch.setattr(short, "address_of_engine", compile_it)
    monkeypatch.setattr(engine, "project_rows", compile_it)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 20, 300, 2000])
@pytest.mark.parametrize("name", [*PLAIN, "zeros", "tiny", "huge"])
def test_short_rows_need_no_engine(name, n, dtype, without_engine):
    """It takes several times as long to compile."""
    rng = np.random.default_rng(11)
    scale = {"tiny": 1e-30, "huge": 1e30, "zeros": 0.0}.get(name)
    if dtype == np.float64 and name != "zeros":
        scale = scale and scale**9
    make = DISTRIBUTIONS.get(name, DISTRIBUTIONS["gaussian"])
    with np.errstate(over="ignore", under="ignore"):
        x = np.array([make(n, rng) for _ in range(40)])
        x = (x if scale is None else x * scale).astype(dtype)
    sums, squares = np.abs(x.astype(oracle.LD)).sum(1), (x.astype(oracle.LD) ** 2).sum(1)
    scores = (sums**2 / np.where(squares > 0, squares, 1)).astype(float)
    for share in (1e-3, 0.2, 0.7, 0.999, 1.5):
        level = np.maximum(share * scores, 1.0)
        project_cai(x, level)
        project_cai(x[:20], level[:20], nonneg=True)
        project_l1_ball(x, (share * sums).astype(float))
    project_cai(x.T.copy(), 1.0, axis=0)
    project_l1_ball(x, 0.0)
    level_for_nnz(x, max(n // 3, 1))
    if sums.all():
        project_hoyer(x, 1.0)
        if n >= 20 and name != "cauchy":  # elsewhere some rows are sparser
            project_hoyer(x, 0.9)
        project_simplex(np.abs(x), (0.3 * sums).astype(float))
    project_bilevel(x, level=2.0, groups="rows")
    project_bilevel(x, radius=float(sums[0]), inner="l2")
    x[3, 0] = np.nan
    for call in (
        lambda: project_cai(x, 2.0),
        lambda: project_cai(x, 2.0, axis=0),
        lambda: project_bilevel(x, 2.0),
    ):
        with pytest.raises(ValueError, match="x must be finite"):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_left_to_the_engine(dtype, workers, new_process, every_array_is_large):
    """The others are not touched by it, whether it was there before or not."""
    x = np.abs(np.random.default_rng(12).standard_normal((30, 50))).astype(dtype)
    x[::3] -= 10.0  # τ < 0
    x[1] *= 1e-5
    alone = np.array([project_simplex(row, 2.0) for row in x])
    new_process.clear()
    found = project_simplex(x, 2.0, workers=workers)
    np.testing.assert_array_equal(found, alone)
    for known in ({}, {x.dtype: short.address_of_engine(x.dtype)}):
        new_process.clear()
        new_process.update(known)
        columns = np.ascontiguousarray(x.T)
        result = project_simplex(columns, 2.0, axis=0, workers=workers)
        np.testing.assert_array_equal(result, alone.T)
        new_process.clear()
        new_process.update(known)
        project_simplex(columns, 2.0, axis=0, out=columns, workers=workers)
        np.testing.assert_array_equal(columns, alone.T)
    for row, y in zip(found, x, strict=True):
        ref = oracle.project_simplex(y, 2.0).astype(float)
        np.testing.assert_allclose(row, ref, atol=1e-12 if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
def test_norms_left_to_the_engine(dtype, inner, new_process):
    """A radius so small against the norms that only their differences matter."""
    x = np.random.default_rng(13).standard_normal((3, 40, 30)).astype(dtype)
    x[1] *= 1e5
    first = project_bilevel(x, radius=1e-9, inner=inner)
    assert new_process
    np.testing.assert_array_equal(project_bilevel(x, radius=1e-9, inner=inner), first)
    norms = {"linf": np.inf, "l2": 2, "l1": 1}[inner]
    sums = np.linalg.norm(first.astype(float), ord=norms, axis=1).sum(-1)
    np.testing.assert_allclose(sums, 1e-9, rtol=1e-5)


@pytest.mark.parametrize("check_finite", [True, False])
def test_other_rows_than_the_first_are_left_to_the_engine(check_finite, monkeypatch):
    monkeypatch.setattr(short, "_engine", {})
    x = np.abs(np.random.default_rng(12).standard_normal((30, 50)))
    x[1::3] -= 10.0  # τ < 0
    alone = np.array([project_simplex(row, 2.0) for row in x])
    if not check_finite:
        alone[4] = x[4, 7] = np.nan
    short._engine.clear()
    found = project_simplex(x, 2.0, check_finite=check_finite)
    np.testing.assert_array_equal(found, alone)


@pytest.mark.parametrize("row", [0, 1, -1])
def test_a_single_row_is_left_to_the_engine(row, monkeypatch):
    monkeypatch.setattr(short, "_engine", {})
    x = np.abs(np.random.default_rng(14).standard_normal((5, 50)))
    x[row] -= 10.0  # τ < 0
    alone = np.array([project_simplex(part, 2.0) for part in x])
    short._engine.clear()
    np.testing.assert_array_equal(project_simplex(x, 2.0), alone)
    short._engine.clear()
    np.testing.assert_array_equal(project_simplex(x.T.copy(), 2.0, axis=0), alone.T)


@pytest.mark.parametrize("strict", [True, False])
def test_the_outcome_of_all_rows(strict):
    statuses = m.GO, m.FEASIBLE, m.NONFINITE, m.CAPPED
    for status in itertools.product(statuses, repeat=3):
        if strict and m.NONFINITE in status:
            expected = m.NONFINITE
        else:
            expected = m.GO if m.GO in status else max(status)
        table = np.zeros((3, LOG))
        table[:, STATUS] = status
        assert engine.outcome(table, strict) == expected
