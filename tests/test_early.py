"""Results that are written before the threshold is known: zeros first, the few others last."""

import math

import numpy as np
import oracle
import pytest

import conehoyer as ch
from conehoyer import _math as m
from conehoyer._cpu import engine, passes, simd
from conehoyer._jit import entry

estimate, take_sample = entry(engine._estimate), entry(engine.take_sample)
search_band = entry(engine._search_band)
collect_few, write_few = entry(passes.collect_few), entry(passes.write_few)
prepare, proceed = entry(engine._prepare), entry(engine._proceed)
write_soft, head = entry(passes.write_soft), entry(engine.head)
DTYPES = [np.float32, np.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("n", [1, 63, 64, 200, 4096, 5000, 16384])
def test_collect_and_write(dtype, absolute, n):
    z = np.random.default_rng(n).standard_normal(n).astype(dtype)
    group = 256 // dtype().nbytes
    whole = n // group * group
    for lo in dtype([9.0, 3.0, 2.0, 1.0, 0.0, -9.0]):
        room, out = np.full(n + 64, 7, dtype), np.full(n + 2, 7, dtype)
        few = np.empty((2, n // passes.LEAST), np.uint64)
        ahead = bool(lo > 0.0)
        found, stored = collect_few(z, absolute, ahead, lo, room, few, out[1:-1])
        a = np.abs(z) if absolute else z
        np.testing.assert_array_equal(room[:stored], a[a > lo])
        np.testing.assert_array_equal(out[1 : whole + 1], np.where(a > lo, z, 0)[:whole])
        np.testing.assert_array_equal(out[whole + 1 :], 7)
        words = (a > lo)[:whole].reshape(-1, group).any(axis=1)
        np.testing.assert_array_equal(few[1, :found], group * np.flatnonzero(words))

        offset, dust, factor = dtype(1e-3), dtype(0.01), dtype(1.7)
        expected = np.empty_like(z)
        write_few(z, absolute, lo, offset, dust, factor, few, found, out[1:-1])
        write_soft(z, absolute, lo, offset, dust, factor, expected)
        np.testing.assert_array_equal(out[1:-1], expected)
        assert out[0] == out[-1] == 7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4096, 4100])
def test_no_room(dtype, n):
    z = np.random.default_rng(0).standard_normal(n).astype(dtype)
    few, out = np.empty((2, n // passes.LEAST), np.uint64), np.empty_like(z)
    above = np.count_nonzero(np.abs(z) > 1.0)
    for size in range(0, above + 200, 50):
        room = np.full(above + 300, 7, dtype)
        _, stored = collect_few(z, True, True, dtype(1.0), room[:size], few, out)
        assert stored == (above if stored >= 0 else -1)
        assert stored >= 0 or size < above + 64
        np.testing.assert_array_equal(room[size:], 7)  # nothing beyond
    assert stored == above


def jobs(kind, absolute, p, z, out):
    """The jobs that one slice takes."""
    part, few = engine.room_for_chunks(z.size), engine.room_for_few(z.size, True)
    held = np.empty(engine.room_to_hold(z.size), z.dtype)
    told = [prepare(kind, absolute, p, 1e-14, -1.0, z, out, part)]
    while told[-1].action != engine.WRITE:
        job = told[-1]
        engine.run_pass(job, absolute, z, out, held, part, few, 0, len(part))
        told.append(proceed(job, kind, absolute, p, 1e-12, z, out, held, part, few, np.empty(0)))
    return told


def crowd(n, dtype):
    """Most of the large entries side by side, where no sample sees how many."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal(n)
    x[n // 2 : n // 2 + 3000] *= 8.0
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_which_way(dtype):
    """A few in a thousand are written early; where a chunk has too many, it begins anew without."""
    for n in (500_000, 1_000_003):
        x, out = np.random.default_rng(n).standard_normal(n).astype(dtype), np.empty(n, dtype)
        for k, early in ((n // 1000, not simd.PLAIN), (n // 100, False)):
            for kind in (m.CAI, m.HOYER):
                told = jobs(kind, True, ch.level_for_nnz(x, k), x, out)
                assert told[-1].early == early  # plain loops write nothing early
        actions = [job.action for job in told]
        assert engine.SQUARES not in actions  # ‖y‖ has come with the other sums

    x = crowd(n, dtype)
    told = jobs(m.CAI, True, ch.level_for_nnz(x, 1600), x, out)
    tries = [job.early for job in told if job.action == engine.BAND and not job.heads]
    assert tries == ([True] if simd.PLAIN else [True, False])
    assert not told[-1].early


@pytest.mark.parametrize("dtype", DTYPES)
def test_beyond_the_caches(dtype):
    """There, too; and with the results of what is projected in place."""
    n = passes.FAR // dtype().nbytes + 1000
    x, out = np.random.default_rng(n).standard_normal(n).astype(dtype), np.empty(n, dtype)
    for k, early in ((n // 2000, not simd.PLAIN), (n // 100, False)):
        level = ch.level_for_nnz(x, k)
        told = jobs(m.CAI, True, level, x, out)
        assert told[0].heads
        assert told[-1].early == early
        got = ch.project_cai(x, level)
        assert 0.999 * k <= np.count_nonzero(got) <= k
        same = x.copy()
        np.testing.assert_array_equal(ch.project_cai(same, level, out=same), got)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [100_000, 1_000_000])
def test_samples_that_mislead(dtype, n):
    """Heavy tails, and large entries side by side: the first pass would write in vain."""
    for x in (np.random.default_rng(3).standard_cauchy(n), 1.0 / np.arange(1, n + 1)):
        x = x.astype(dtype)
        told = jobs(m.CAI, True, ch.level_for_nnz(x, n // 2), x, np.empty(n, dtype))
        assert told[0].hi == math.inf
        assert told[0].rare
        assert not any(job.early for job in told)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_above_a_newton_step_are_kept(dtype):
    """Where no sample gives a band, but tells that few entries lie above: the second pass ends."""
    n = 1_000_000
    x = np.random.default_rng(3).standard_cauchy(n).astype(dtype)
    a = np.sort(np.abs(x))[::-1].astype(np.float64)
    radius = a[:1000].sum() - 1000 * a[1000]
    first, second, *others = jobs(m.L1, True, radius, x, np.empty(n, dtype))[:-1]
    assert first.action != engine.BAND or first.lo == first.hi  # the sums alone
    assert (second.action, second.hi) == (engine.BAND, math.inf)
    assert not others

    sample = np.empty(16 * (n // 1024), dtype)
    take_sample(x, True, sample)
    theta = 1.25
    above = a[a > theta] - theta
    known = engine.Known(theta, theta, float(above.size), above.sum(), np.square(above).sum())
    state = estimate(m.L1, radius, sample, n / sample.size, known, np.empty_like(sample))
    assert state.status == m.GO  # the sample contradicts that: there is nothing to find
    assert state.passes < 10


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_read_once(dtype, every_array_is_large):
    """The heads of the chunks are left out of the pass that follows; whatever they are like."""
    n = engine.HEADS_FROM + 5
    size = head(n)
    assert size >= engine.ONCE
    y, out = np.random.default_rng(n).standard_normal(n).astype(dtype), np.empty(n, dtype)
    for k in (n // 2, n // 10, n // 100):
        told = jobs(m.CAI, True, ch.level_for_nnz(y, k), y, out)
        assert [job.heads for job in told] == [True, False, False]
        assert told[1].kept > 0
    # Other entries, none at all, entries near τ (for which there is no room), larger ones.
    for factor, offset in ((-1.0, 0.0), (0.0, 0.0), (1e-3, 0.8), (1e-9, 0.7), (4.0, 0.0)):
        x = y.copy()
        for begin in range(0, n, engine.CHUNK):
            x[begin : begin + size] = factor * x[begin : begin + size] + offset
        for k in (n // 2, n // 10, n // 100):
            level, radius = ch.level_for_nnz(y, k), 0.2 * k
            for project, parameter in (("project_cai", level), ("project_simplex", radius)):
                got = getattr(ch, project)(x, parameter, workers=1)
                ref = getattr(oracle, project)(x, parameter)
                limit = (1e-12 if dtype == np.float64 else 1e-5) * float(np.abs(ref).max())
                assert float(np.abs(got - ref).max()) <= limit, (project, factor, k)
                more = getattr(ch, project)(x, parameter, workers=3)
                np.testing.assert_array_equal(more, got)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [20_000, 100_003, 500_000])
def test_out_is_what_happens_in_place(dtype, n, every_array_is_large):
    """In place nothing can be written early: the same bits, and those of the oracle nearly."""
    for x in (np.random.default_rng(n).standard_normal(n).astype(dtype), crowd(n, dtype)):
        for k in (n // 3000, n // 310, n // 30):
            tau = np.partition(np.abs(x), n - k - 1)[n - k - 1].astype(np.float64)
            radius = np.maximum(np.abs(x) - tau, 0.0).sum(dtype=np.float64)
            level = ch.level_for_nnz(x, k)
            sparseness = (math.sqrt(n) - math.sqrt(level)) / (math.sqrt(n) - 1.0)
            for name, parameter in (
                ("project_cai", level),
                ("project_hoyer", sparseness),
                ("project_l1_ball", radius),
                ("project_simplex", 0.5 * radius),
            ):
                project = getattr(ch, name)
                same = x.copy()
                project(same, parameter, out=same)
                for workers in (1, 3):
                    room = np.full(n + 2, np.nan, dtype)  # not on a cache line, and with traces
                    got = project(x, parameter, out=room[1:-1], workers=workers)
                    np.testing.assert_array_equal(got, same, err_msg=name)
                ref = getattr(oracle, name)(x, parameter)
                limit = (1e-12 if dtype == np.float64 else 1e-5) * float(np.abs(ref).max())
                assert float(np.abs(got - ref).max()) <= limit, (name, k)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_no_sum_sees(dtype, bad, workers, every_array_is_large):
    """−inf lies below every threshold of signed entries: it is found wherever it is."""
    n = 400_001
    for place in (0, 1500, 5 * 16384 - 1, n - 1):
        x = np.random.default_rng(0).standard_normal(n).astype(dtype)
        x[place] = bad
        for project, parameter in (
            (ch.project_simplex, 100.0),
            (ch.project_simplex, 1e6),
            (ch.project_cai, 400.0),
            (ch.project_hoyer, 0.9),
        ):
            options = {} if project is ch.project_simplex else {"nonneg": True}
            with pytest.raises(ValueError, match=r"(?i)\bx\b.*(nan|inf)"):
                project(x, parameter, workers=workers, **options)
            y = project(x, parameter, workers=workers, check_finite=False, **options)
            assert np.isnan(y).all(), (place, project)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2048, 16384, 1_000_003])
def test_a_run_from_each_part(dtype, n):
    x = -np.arange(1, n + 1).astype(dtype)  # all of them float32 numbers
    for count in (1, 7, 128):
        sample = np.empty(16 * count, dtype)
        take_sample(x, True, sample)
        first, *others = sample.reshape(count, 16).T
        for i, other in enumerate(others, 1):
            np.testing.assert_array_equal(other, first + i)
        parts = np.floor((first - 1) / (n / count))
        np.testing.assert_array_equal(parts, np.arange(count))
        signed = np.empty_like(sample)
        take_sample(x, False, signed)
        np.testing.assert_array_equal(signed, -sample)


@pytest.mark.parametrize("dtype", DTYPES)
def test_between_a_newton_step_and_a_bound(dtype):
    """Entries that fall steadily, whose sum the first ones make: no sample sees enough."""
    n = 100_000
    x = (0.999 ** np.arange(n)).astype(dtype)
    radius = np.sum(x[:10_000] - x[10_000], dtype=float)
    told = jobs(m.L1, True, radius, x, np.empty(n, dtype))
    assert len(told) <= 5
    last = told[-2]
    assert 0.5 * last.hi < last.lo < x[10_000] < last.hi < math.inf
    assert ch.project_l1_ball(x, radius, full_output=True)[1].threshold == pytest.approx(
        x[10_000], rel=1e-3 if dtype == np.float32 else 1e-12
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [100_000, 1_000_000, 10_000_000])
def test_ties_at_the_threshold(dtype, n):
    """Rounding decides which side many entries fall on; they become zero."""
    for seed in range(6 if n < 10_000_000 else 1):
        rng = np.random.default_rng(seed)
        for shares in ((0.0, 0.5, 0.5), (0.3, 0.4, 0.3), (0.7, 0.2, 0.1)):
            for values in ((0.1, 1.0, 2.0), (0.05, 0.3, 0.7), (0.01, 1.0, 1.1)):
                values = np.array(values, dtype)
                tenths = np.repeat(values, np.round(10 * np.array(shares)).astype(int))
                x = tenths[rng.integers(0, 10, n, np.uint8)]
                top = np.count_nonzero(x == values[2])
                radius = top * (float(values[2]) - float(values[1]))
                nnz = np.count_nonzero(ch.project_l1_ball(x, radius))
                assert nnz == top, (seed, shares, values)


@pytest.mark.parametrize("n", [50_000, 400_003])
@pytest.mark.parametrize("function", ["project_l1_ball", "project_simplex", "project_cai"])
def test_a_threshold_just_below_many_ties_in_float32(function, n):
    """Whether they stay hangs on 26 bits, which sums of float32 numbers do not have."""
    for seed in range(3):
        y = (np.round(3.0 * np.random.default_rng(seed).standard_normal(n)) / 7.0).astype("f4")
        a = (y if function == "project_simplex" else abs(y)).astype(np.longdouble)
        for steps in (1, 2, 4):
            tau = np.longdouble(np.float32(steps / 7)) * (1 - np.longdouble(2.0**-26))
            d = np.maximum(a - tau, 0)
            s, nu = d.sum(), np.count_nonzero(d)
            parameter = float(s * s / (d * d).sum() if function == "project_cai" else s)
            if function != "project_cai":
                tau += (s - np.longdouble(parameter)) / nu
            x, info = getattr(ch, function)(y, parameter, full_output=True)
            assert abs(info.threshold / tau - 1) < 1e-13, (seed, steps)
            assert np.count_nonzero(x) == nu


def test_a_band_as_wide_as_float32_sums_are_wrong():
    """A few entries dwarf the threshold, and the sums that are known are off by more than it is."""
    for seed in range(8):
        y = (np.random.default_rng(seed).standard_normal(300_000) ** 9).astype(np.float32)
        a = abs(y.astype(float))
        tau = np.median(a)
        told = jobs(m.L1, True, np.maximum(a - tau, 0.0).sum(), y, np.empty_like(y))
        (band,) = [j for j in told if j.action == engine.BAND and j.lo < j.hi < math.inf]
        assert band.lo < tau < band.hi


def search(candidates, tau, radius, inside=-1):
    """τ as `search_band` finds it for the l1 ball among entries around the guess `tau`."""
    lo, hi = float(candidates.min()) - 1e-3, float(candidates.max())
    st = m.start(m.L1)._replace(anchor=float(tau), pinned=True)
    job = engine.Job(
        engine.BAND, st, lo, hi, False, False, 0.0, 1, False, engine.NOTHING, -1, inside
    )  # fmt: skip
    buffer = np.zeros(2 * candidates.size + 200, candidates.dtype)
    buffer[: candidates.size] = candidates
    above = engine.Known(hi, st.anchor, 0.0, 0.0, 0.0)
    st, _ = search_band(job, m.L1, radius, 0.0, buffer, candidates.size, above, np.empty(0))
    return st


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_narrower_band_and_back(dtype):
    """After a step only what is near τ is kept; τ may be elsewhere all the same."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0.5, 1.5, 5000)
    crowd = np.concatenate([a, rng.uniform(1.0, 1.0005, 20_000)])
    for entries, far in ((a, False), (crowd, True)):
        z = entries.astype(dtype)
        guess = dtype(1.0)
        exact = 1.05 if not far else 1.02
        gaps = np.maximum(z.astype(float) - exact, 0.0)
        radius = gaps.sum()
        over = np.maximum(z - guess, 0.0, dtype=float)
        step = (over.sum() - radius) / np.count_nonzero(over)
        assert far == (exact > guess + 1.125 * step)
        for inside in (-1, z.size):  # the second time in float64
            st = search(z, guess, radius, inside)
            assert st.status == m.SOFT
            assert st.anchor + st.offset == pytest.approx(
                exact, rel=1e-13 if dtype == np.float64 or inside >= 0 else 1e-6
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_as_many_ties_as_the_level(dtype):
    """The largest stay as they are, and nothing else."""
    for n in (20_000, 70_001, 400_000):
        for seed in range(20):
            rng = np.random.default_rng(seed)
            values = (rng.uniform(0.1, 3.0, 2) * 10.0 ** rng.integers(-3, 4)).astype(dtype)
            x = rng.choice(values, n)
            top = x == values.max()
            got = ch.project_cai(x, np.count_nonzero(top))
            np.testing.assert_allclose(got[top], x[top], rtol=1e-5)
            assert not got[~top].any()


@pytest.mark.parametrize("n", [20_001, 400_000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_takes_one_pass(dtype, n):
    """Where a sample says that the input may be feasible, it is asked first."""
    y = np.random.default_rng(n).standard_normal(n).astype(dtype)
    for kept in (0.5, 0.1, 0.01):
        level = ch.level_for_nnz(y, int(kept * n))
        for project, bound in ((ch.project_cai, level), (ch.project_l1_ball, 0.2 * kept * n)):
            x = project(y, bound)
            again, info = project(x, bound, full_output=True)
            np.testing.assert_array_equal(again, x)
            assert info.passes == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_feasible_is_not_asked_again(dtype):
    """A τ near 0 would have the search begin anew, from the sums of all entries."""
    for n in (12_000, 20_001, 400_000):
        y = np.random.default_rng(n).standard_normal(n).astype(dtype)
        total = np.maximum(y, 0).sum(dtype=np.float64)
        for radius in (total, total * (1 + 1e-9)):
            x, info = ch.project_simplex(y, radius, full_output=True)
            assert abs(x.sum(dtype=np.float64) / radius - 1) <= 8 * np.finfo(dtype).eps
            assert info.passes <= (6 if n < engine.SAMPLE_FROM else 3)  # else 4 and 6
    y = 1 + 9 * (np.arange(1000) % 2) + 0.01 * np.random.default_rng(0).standard_normal(1000)
    y = y.astype(dtype)
    info = ch.project_cai(y, ch.level_for_nnz(y, 500), full_output=True)[1]
    assert info.nnz == 500
    assert np.count_nonzero(info.support[1:] > 510) <= 1  # the look; then not 742, 612, 549, ...


@pytest.mark.parametrize("dtype", DTYPES)
def test_around_what_is_barely_feasible(dtype):
    """Results with a negative entry, and a little larger: τ is a rounding error away from 0."""
    eps = np.finfo(dtype).eps
    for n in (16_384, 40_000, 81_642):
        for seed in range(6):
            g = np.abs(np.random.default_rng(seed).standard_normal(n))
            for y in (g**9, g**3):
                y = y.astype(dtype)
                total = 0.3 * float(y.sum(dtype=np.float64))
                x = ch.project_simplex(y, total)
                less, more = x.copy(), x * dtype(1 + 100 * eps)
                less[3] = -1e-12 * x.max()
                for z, project in (
                    (x, ch.project_simplex),
                    (less, ch.project_simplex),
                    (more, ch.project_simplex),
                    (more, ch.project_l1_ball),
                ):
                    result, info = project(z, total, full_output=True)
                    assert info.converged
                    assert info.passes <= 20  # usually two to four
                    np.testing.assert_array_equal(project(result, total), result)
