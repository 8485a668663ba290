"""The band pass in registers against the plain loop, and the sums against NumPy."""

import math
import re
import sys

import numpy as np
import pytest
from numba import TypingError, float64, int64, njit

from conehoyer import _math as m
from conehoyer import project_l1_ball
from conehoyer._cpu import across, engine, passes, simd
from conehoyer._cpu.apart import address_of, call_at, taker
from conehoyer._cpu.arrays import keep, uncounted
from conehoyer._jit import entry, inlined

write_soft, nonnegative = entry(passes.write_soft), entry(passes.nonnegative)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("rare", [True, False])
@pytest.mark.parametrize("n", [1, 31, 64, 95, 1000, 5000])
@pytest.mark.parametrize(
    ("lo", "hi"), [(0.5, 0.7), (0.5, math.inf), (0.6, 0.6), (-9.0, 9.0), (-0.7, -0.5)]
)
def test_band_is_the_plain_band(dtype, absolute, rare, n, lo, hi):
    rng = np.random.default_rng(n)
    z = rng.standard_normal(n).astype(dtype)
    z[rng.integers(0, n, 3)] = dtype(lo)  # on the edge: not inside
    anchor, lo, hi = dtype(0.6), dtype(lo), dtype(hi)
    fast, plain = np.empty_like(z), np.empty_like(z)
    if rare:
        room = np.full((4, passes.marks_for(n).shape[1]), 7, np.uint64)
        got = passes.band_rare(z, absolute, anchor, lo, hi, fast, room[:3])
        assert (room[3] == 7).all()  # nothing beyond
    else:
        got = passes.band(z, absolute, anchor, lo, hi, fast)
    expected = passes.band_plain(z, absolute, np.float64(anchor), lo, hi, plain)
    assert got[0] == expected[0]
    assert got[3] == expected[3]
    np.testing.assert_allclose(got[1:3], expected[1:3], rtol=1e-5 if dtype == np.float32 else 1e-13)
    # the order may differ, the entries may not
    np.testing.assert_array_equal(np.sort(fast[: got[3]]), np.sort(plain[: got[3]]))
    a = np.abs(z) if absolute else z
    assert got[0] == np.count_nonzero(a > hi)
    assert got[3] == np.count_nonzero((a > lo) & (a <= hi))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("absolute", [True, False])
def test_band_at_its_edges(dtype, absolute):
    """Neighbours of both edges, zeros of both signs, the smallest numbers, in any lane."""
    tiny = np.finfo(dtype).smallest_subnormal
    edges = dtype([-0.5, -tiny, -0.0, 0.0, tiny, 0.5, 0.75])
    near = np.concatenate([np.nextafter(edges, dtype(-9)), edges, np.nextafter(edges, dtype(9))])
    z = np.zeros((near.size, 4096), dtype)
    z[:, ::2] = -0.0
    z[:, ::3] = np.random.default_rng(0).standard_normal(z[:, ::3].shape)
    for row, value in zip(z, near, strict=True):
        row[5::17] = value
    z, marks = z.ravel(), passes.marks_for(z.size)
    buffer, plain = np.empty_like(z), np.empty_like(z)
    for i in range(edges.size):
        for lo, hi in [(edges[i], dtype(0.75)), (edges[0], edges[i])]:
            if not lo <= hi:
                continue
            got = passes.band_rare(z, absolute, hi, lo, hi, buffer, marks)
            expected = passes.band_plain(z, absolute, np.float64(hi), lo, hi, plain)
            assert (got[0], got[3]) == (expected[0], expected[3])
            rtol = 1e-5 if dtype == np.float32 else 1e-12
            np.testing.assert_allclose(got[1:3], expected[1:3], rtol=rtol)
            np.testing.assert_array_equal(np.sort(buffer[: got[3]]), np.sort(plain[: got[3]]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_band_stores_nan(dtype):
    z = np.zeros(4096, dtype)
    z[[7, 3000]] = np.nan
    buffer, marks = np.empty_like(z), passes.marks_for(z.size)
    one, two, most = dtype(1), dtype(2), dtype(np.inf)
    calls = (
        lambda: passes.band(z, True, one, one, two, buffer),
        lambda: passes.band(z, True, one, one, most, buffer),
        lambda: passes.band_rare(z, True, one, one, two, buffer, marks),
        lambda: passes.band_rare(z, True, one, one, most, buffer, marks),
    )
    for call in calls:
        buffer[:] = 0.0
        assert call()[3] == 2
        assert np.isnan(buffer[:2]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1023, 1025, 4096, 8192, 8193, 100_003])
def test_sums(dtype, n):
    z = np.random.default_rng(n).standard_normal(n).astype(dtype)
    for offset in (0.0, 0.3, -math.inf):
        nu, s, q = passes.sums(z, True, 0.5, offset)
        gap = np.abs(z.astype(np.longdouble)) - 0.5
        gap = gap[gap > offset]
        assert nu == gap.size
        assert s == pytest.approx(float(gap.sum()), rel=1e-13, abs=1e-12)
        assert q == pytest.approx(float((gap**2).sum()), rel=1e-13)
    square = (z.astype(np.longdouble) ** 2).sum()
    assert passes.squares(z) == pytest.approx(float(square), rel=1e-14)
    for bad in (math.nan, math.inf):
        if n:
            z[-1] = bad
            assert not passes.squares(z) < math.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("more", [0, 1, 15, 16, 37])
def test_write_soft_wherever_the_lines_of_the_cache_begin(dtype, more):
    n = passes.ALIGNED_FROM // np.dtype(dtype).itemsize + more
    line = simd.LINE // np.dtype(dtype).itemsize
    source = np.random.default_rng(more).standard_normal(n + line).astype(dtype)
    target = np.empty(n + 2 * line, dtype)
    for begin in range(line):
        z = source[begin : begin + n]
        d = (np.abs(z) - dtype(0.6)) - dtype(1e-4)
        expected = np.where(d > 0.01, np.copysign(d * dtype(1.5), z), 0)
        for at in range(1, line + 1):
            target[:] = 7
            out = target[at : at + n]
            write_soft(z, True, dtype(0.6), dtype(1e-4), dtype(0.01), dtype(1.5), out)
            np.testing.assert_array_equal(out, expected)
            assert (target[:at] == 7).all()
            assert (target[at + n :] == 7).all()


@pytest.mark.parametrize("kind", [m.L1, m.SIMPLEX, m.CAI, m.HOYER])
def test_sums_tell_that_the_input_is_not_feasible(kind):
    """Those at a τ >= 0 that are too large; no others."""

    def known(tau, p):
        st = m.with_tau(m.start(kind), tau, 0.0, -1.0, False)
        return m.advance(kind, p, 1e-14, st, 3.0, 6.0, 14.0).at_zero  # of 3, 2 and 1 above τ

    assert known(1.0, 2.0)
    assert not known(1.0, 36 / 14 * (1 - 1e-14) if kind >= m.CAI else 6.0 * (1 - 1e-14))
    assert not known(1.0, 8.0)
    assert not known(-1.0, 2.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 33, 5000])
def test_no_entry_is_negative(dtype, n):
    z = np.random.default_rng(n).random(n).astype(dtype)
    z[: n // 3] = -0.0
    assert nonnegative(z)
    for place in {0, n // 2, n - 1} if n else ():
        with_one = z.copy()
        with_one[place] = -np.finfo(dtype).smallest_subnormal
        assert not nonnegative(with_one)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 15, 16, 33, 5000])
def test_finite_and_largest(dtype, n):
    rng = np.random.default_rng(n)
    z = rng.standard_normal(n).astype(dtype)
    assert passes.all_finite(z)
    assert passes.largest(z, True) == np.abs(z).max()
    assert passes.largest(z, False) == z.max()
    for bad in (np.nan, np.inf, -np.inf):
        for place in {0, n // 2, n - 1}:
            spoiled = z.copy()
            spoiled[place] = bad
            assert not passes.all_finite(spoiled)
            if np.isnan(bad) and n > 1:  # NaN is passed over
                assert passes.largest(spoiled, False) == np.nanmax(spoiled)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 15, 33, 500, 5000])
@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize(("anchor", "offset"), [(0.0, 0.0), (0.5, 0.25), (1.0, -0.5)])
def test_own_sums(dtype, n, absolute, anchor, offset):
    own_sums = entry(passes.own_sums)
    z = np.random.default_rng(n).integers(-12, 13, n).astype(dtype) / 4  # sums are exact
    gap = (np.abs(z) if absolute else z).astype(np.float64) - anchor
    gap = gap[gap > offset]
    assert own_sums(z, absolute, anchor, offset) == (gap.size, gap.sum(), (gap**2).sum())
    for place in {0, n // 2, n - 1} if n else ():
        spoiled = z.copy()
        spoiled[place] = np.nan
        assert np.isnan(own_sums(spoiled, absolute, anchor, offset)[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 16, 100, 1037])
def test_any_between(dtype, n):
    any_between = entry(passes.any_between)
    z = np.full(n, 5.0, dtype)
    low, high = dtype(1), dtype(2)
    assert not any_between(z, low, high)
    for place in range(0, n, 3):
        for inside in (1.0, 1.5, 2.0, np.nan):
            z[:] = 5.0
            z[place] = inside
            assert any_between(z, low, high)
        z[place] = np.nextafter(low, dtype(0))
        assert not any_between(z, low, high)
        z[place] = np.nextafter(high, dtype(9))
        assert not any_between(z, low, high)


@pytest.mark.parametrize("kind", [m.L1, m.CAI])
@pytest.mark.parametrize("start", [0.55, 0.65])  # left and right of τ
def test_a_curved_step_is_of_third_order(kind, start):
    a = (np.arange(100_000) + 0.5) / 100_000  # 100,000 entries a unit
    tau = 0.6
    d = np.maximum(a - tau, 0.0)
    p = d.sum() if kind == m.L1 else d.sum() ** 2 / (d @ d)
    inside = a[a > start]
    sums = inside.size, (inside - start).sum(), ((inside - start) ** 2).sum()
    newton = m.newton_offset(kind, p, *sums)
    curved = m.curved_offset(kind, p, *sums, 0.0, newton, 1e5)
    assert abs(start + curved - tau) < 0.1 * abs(start + newton - tau)
    # so far that half of the support would leave: Newton's
    assert m.curved_offset(kind, p, *sums, 0.0, newton, 1e9) == newton


@pytest.mark.parametrize("kind", [m.L1, m.CAI])
@pytest.mark.parametrize("name", ["exponential", "uniform"])
def test_the_guess_is_right_for_its_own_family(kind, name):
    # Quantiles of the exact distribution; the threshold that keeps a tenth of them.
    u = (np.arange(100_000) + 0.5) / 100_000
    a = -np.log(u) if name == "exponential" else u
    tau = np.quantile(a, 0.9)
    d = np.maximum(a - tau, 0.0)
    p = d.sum() if kind == m.L1 else d.sum() ** 2 / (d @ d)
    assert m.tail_guess(kind, p, a.size, a.sum(), a @ a) == pytest.approx(tau, rel=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 7, 15, 17, 31, 100, 1037, 20_005])
@pytest.mark.parametrize("radius", [0.5, 0.9, 0.001])  # of the input's: from dense to sparse
def test_nothing_is_written_beside_the_result(dtype, n, radius):
    """The last register of a pass is rarely full, and the result serves as scratch as well."""
    y = np.random.default_rng(n).uniform(0.9, 1.0, n).astype(dtype)
    room = np.full(n + 128, 7.0, dtype)
    project_l1_ball(y, radius * float(y.sum()), out=room[64 : 64 + n])
    assert (room[:64] == 7.0).all()
    assert (room[64 + n :] == 7.0).all()


@njit
def _second_array(n):
    own = np.full(n, 1.0)
    view = uncounted(own)
    other = np.full(n, 2.0)  # where `own` was, unless that is kept
    total = view.sum()
    keep((own, other))
    return total


def test_an_uncounted_array_lives_until_it_is_kept():
    assert _second_array(100) == 100.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("limit", [0.4, math.inf])
def test_influences_of_runs(dtype, limit):
    """They set the width of the band: a wrong one costs time only, so no other test sees it."""
    anchor, offset, linear, square, unit = 0.5, 0.125, 2.0, 0.75, 3.0
    runs = np.random.default_rng(1).uniform(0.0, 2.0, (20, 16)).astype(dtype)
    gap = runs.astype(np.float64) - anchor
    d = np.where((gap > offset) & (gap <= limit), gap - offset, 0.0)
    g = (linear * d - square * d**2).sum(axis=1) / unit
    found = entry(passes.influences)(runs.ravel(), 16, anchor, offset, limit, linear, square, unit)
    assert found == pytest.approx((g.sum(), (g**2).sum()), rel=1e-12)


def test_inlined_concerns_who_asks_for_it_and_nobody_else():
    """Numba's option reaches what is called as well, which makes large kernels larger."""

    @njit
    def below(x):
        return math.sqrt(x) + 1.0

    @njit
    def within(x):
        inlined()
        return 2.0 * below(x)

    @njit
    def above(x):
        return within(x) + within(x + 1.0)

    assert above(4.0) == pytest.approx(2.0 * 3.0 + 2.0 * (math.sqrt(5.0) + 1.0), rel=1e-15)
    code = [f.overloads[f.signatures[0]].library.get_llvm_str() for f in (below, within, above)]
    assert ["alwaysinline" in text for text in code] == [False, True, False]
    assert not re.search(r"= call [^\n]*within", code[2])

    @njit(debug=True)
    def debugged(x):
        inlined()
        return 2.0 * x

    assert debugged(4.0) == 8.0


def test_an_error_behind_an_address():
    """What a kernel raises that is called by its address leaves the kernel that has called it."""

    @njit
    def fails(kind, absolute, tol, strict, whole, x, out, table, first, last):
        if last == 7:
            raise MemoryError("no room")
        out[last, 0] = x[first, 0] + table[0, 1] + tol

    @njit
    def calls(address, x, table, last):
        engine.rows_at(address, 0, True, 0.5, False, True, x, x, table, 0, last)

    address = address_of(fails, engine.kinds_of_rows(float64))
    x, table = np.full((2, 1), 2.0), np.full((1, 2), 3.0)
    calls(address, x, table, 1)
    np.testing.assert_array_equal(x, [[2.0], [5.5]])
    with pytest.raises(MemoryError, match="no room"):
        calls(address, x, table, 7)
    with pytest.raises(TypingError):
        calls(address, x.astype(np.float32), table.astype(np.float32), 1)
    with pytest.raises(TypeError, match="returns something"):
        address_of(njit(lambda k: k + 1), (int64,))


def test_what_is_given_behind_an_address():
    """It has the types that the kernel was compiled for, or there is no call."""
    take = taker(lambda given: (float64[::1], float64, int64))

    @njit
    def adds(x, number, place):
        x[place] += number

    @njit
    def calls(address, given):
        call_at(address, take(given))

    address = address_of(adds, (float64[::1], float64, int64))
    x = np.zeros(4)
    calls(address, (x, 1.5, 3))
    np.testing.assert_array_equal(x, [0.0, 0.0, 0.0, 1.5])
    held = sys.getrefcount(x)
    for _ in range(1000):  # no reference is lost or kept
        calls(address, (x, 0.0, 0))
    assert sys.getrefcount(x) == held
    for given in ((x[::2], 1.0, 0), (x, 1, 0), (x, 1.0, 0.5), (x, 1.0, 0, 0)):
        with pytest.raises(TypingError):
            calls(address, given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0, 1, 3, 13])
@pytest.mark.parametrize(
    "shape",
    [
        *((2, 1, 5), (3, 5, 1), (1, 300, 3), (1, 4, 70), (2, 33, 31), (3, 16, 16), (2, 64, 50)),
        *((1, 7, 64), (1, 512, 700), (1, 640, 640), (1, 700, 501)),  # the last ones are far away
    ],
)
def test_transposes(dtype, shift, shape):
    """Wherever the target begins in a cache line; nothing beside it is written."""
    count, rows, columns = shape
    x = np.random.default_rng(rows).standard_normal(shape).astype(dtype)
    frame = np.full(x.size + 64, 7.0, dtype)
    first = -frame.ctypes.data // frame.itemsize % (64 // frame.itemsize) + shift
    out = frame[first : first + x.size].reshape(count, columns, rows)
    across.transpose_each(x, out)
    np.testing.assert_array_equal(out, x.swapaxes(1, 2))
    out[...] = 7.0
    for begin, end in ((rows // 3, rows), (0, rows // 3)):
        across.transpose_rows(x[0], out[0], begin, end)
    np.testing.assert_array_equal(out[0], x[0].T)
    assert (out[1:] == 7.0).all()
    assert (frame[:first] == 7.0).all()
    assert (frame[first + x.size :] == 7.0).all()
