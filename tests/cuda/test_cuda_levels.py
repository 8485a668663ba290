"""level_for_nnz on the device: at the edge, and the projection there agrees."""

import numpy as np
import oracle
import pytest
from distributions import SUBNORMAL, float32, make

import conehoyer as ch


def kept(device, nnz, axis, to_host, **options):
    """The level, and how many nonzeros the projection leaves there."""
    level = ch.level_for_nnz(device, nnz, axis=axis, **options)
    x = to_host(ch.project_cai(device, level, axis=axis, **options))
    return to_host(level), np.count_nonzero(x, axis=axis)


def check(x, k, to_gpu, to_host):
    level, count = kept(to_gpu(x), k, -1, to_host)
    edge = float(oracle.edge_for_nnz(x, k))
    assert 1 <= level <= x.size
    rounding = 1e-9 if x.dtype == np.float64 else 1e-6
    assert edge * (1 - rounding) <= level <= edge * (1 + 1e-12)
    assert count <= k
    return count


MOST = [
    "laplace", "zipf", "two_valued", "integers", "near_constant", "near_constant_last_bits",
    "clusters", "sparse", "tiny_1e-160", "huge_1e300", "wide", "subnormal_few_bits",
]  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 15, 70])
def test_at_the_edge(n, to_gpu, to_host):
    """The last: several blocks for the row."""
    for name in MOST if n == 15 else ["gaussian", "blocks_of_ties"]:
        x = make(name, n)
        k = max(n // 5, 1)
        count = check(x, k, to_gpu, to_host)
        a = np.sort(np.abs(x))[::-1]
        if name in SUBNORMAL or k >= n or a[k] == 0.0:
            continue
        if a[0] == a[k]:
            assert count == k
        else:
            clear = a[k] + 1e-10 * float(np.mean((a - a[k])[a > a[k]]))
            assert count >= np.count_nonzero(a > clear)


def test_float32(to_gpu, to_host):
    for name in ("zipf", "blocks_of_ties"):
        check(float32(name, 20), 3, to_gpu, to_host)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nonneg(dtype, to_gpu, to_host):
    x = np.random.default_rng(2).standard_normal((3, 40)).astype(dtype)
    x[:, :20] *= -3.0  # sorted by magnitude, most of the first are no candidates
    level, count = kept(to_gpu(x), 4, -1, to_host, nonneg=True)
    assert np.array_equal(count, [4, 4, 4])
    np.testing.assert_allclose(level, ch.level_for_nnz(x, 4, nonneg=True), rtol=1e-6)


def test_by_the_grid(to_gpu, to_host):
    check(make("gaussian", 260), 25, to_gpu, to_host)


def test_every_size(to_gpu, to_host):
    x = np.random.default_rng(0).standard_normal((2, 9))
    for k in (1, 5, 8, 9):
        level, count = kept(to_gpu(x), k, -1, to_host)
        np.testing.assert_array_equal(count, min(k, 9))
        edges = [float(oracle.edge_for_nnz(row, k)) for row in x]
        np.testing.assert_allclose(level, edges, rtol=1e-12)


def test_random_rows_never_keep_too_many(to_gpu, to_host):
    rng = np.random.default_rng(1)
    for dtype, rows in ((np.float32, 3), (np.float64, 8)):
        x = rng.standard_normal((rows, 12)).astype(dtype)
        x[::5] = np.round(x[::5])
        k = rng.integers(1, 13, rows)
        _, count = kept(to_gpu(x), k, -1, to_host)
        assert np.all(count <= k)


def test_enough_room_gives_n(to_gpu, to_host):
    x = np.array([[0.0, 2.0, 0.0, 1.0], [1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(to_host(ch.level_for_nnz(to_gpu(x), 2)) == 4, [True, False, True])
    np.testing.assert_array_equal(to_host(ch.level_for_nnz(to_gpu(x), 4)), 4)
    np.testing.assert_array_equal(to_host(ch.level_for_nnz(to_gpu(x), 2**62)), 4)


def test_ties_at_the_top_give_k(to_gpu, to_host):
    x = np.array([2.0, -2.0, 2.0, 2.0, 1.0])
    for k in (1, 2, 3, 4):
        level, count = kept(to_gpu(x), k, -1, to_host)
        assert level == pytest.approx(k, rel=1e-9)
        assert count == k


def test_ties_at_the_top_and_a_grain_of_dust(to_gpu, to_host):
    # Within the slack of float32 the vector has score 2 already, with three nonzeros.
    x = np.array([0.0, 1.0, 1.0, 1e-8], np.float32)
    assert kept(to_gpu(x), 2, -1, to_host)[1] == 2


@pytest.mark.parametrize("dtype", ["float16", "int32", "bool"])
def test_other_dtypes(dtype, to_gpu, to_host):
    x = (make("gaussian", 20) * 5).astype(dtype)
    level, count = kept(to_gpu(x), 3, -1, to_host)
    assert level.dtype == np.float64
    assert count <= 3


def test_scales(to_gpu, to_host):
    x = make("gaussian", 20)
    want = float(oracle.edge_for_nnz(x, 4))
    for scale in (1e-300, 1e160):
        level, count = kept(to_gpu(x * scale), 4, -1, to_host)
        assert level == pytest.approx(want, rel=1e-9)
        assert count <= 4


def test_nnz_broadcasts_and_the_shape_is_the_slices(to_gpu, to_host):
    x = make("gaussian", 24).reshape(2, 3, 4)
    k = np.array([1, 2, 3])
    level, count = kept(to_gpu(x), k, 2, to_host)
    assert level.shape == (2, 3)
    np.testing.assert_array_equal(count, np.broadcast_to(k, (2, 3)))
    level, count = kept(to_gpu(x), 3, 0, to_host)
    assert level.shape == (3, 4)
    assert np.all(count <= 3)
    level, count = kept(to_gpu(x), 7, None, to_host)
    assert level.shape == ()
    assert count == 7


def test_empty(to_gpu, to_host):
    for shape in ((0,), (0, 3), (3, 0)):
        x = np.zeros(shape)
        level = to_host(ch.level_for_nnz(to_gpu(x), 1))
        np.testing.assert_array_equal(level, np.ones(shape[:-1]))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_not_finite(bad, to_gpu):
    for n in (4, 100):
        x = np.ones((2, n))
        x[1, 3] = bad
        with pytest.raises(ValueError, match="finite"):
            ch.level_for_nnz(to_gpu(x), 2)


def test_errors(to_gpu):
    x = to_gpu(np.ones(4))
    with pytest.raises(ValueError, match=r"nnz.*0"):
        ch.level_for_nnz(x, 0)
    with pytest.raises(TypeError, match="nnz must be integers"):
        ch.level_for_nnz(x, 1.5)
    for y in (x, np.ones(4)):
        with pytest.raises(TypeError, match="nnz lies on a GPU"):
            ch.level_for_nnz(y, to_gpu(np.array([2])))
    with pytest.raises(ValueError, match="broadcast"):
        ch.level_for_nnz(x, [1, 2])
