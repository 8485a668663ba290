"""Block-sparse matrices against dense ones in 80-bit floating point."""

import copy
import functools
import io
import pickle
import re
import subprocess
import sys
import warnings
import zipfile
from fractions import Fraction
from itertools import pairwise

import numba
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from conehoyer import blocksparse, level_for_groups, project_bilevel
from conehoyer._cpu import blocksparse as kernels
from conehoyer.blocksparse import BlockPattern, compress, from_scipy, load, prune

# Each shape is compiled, for each dtype: other tests take theirs from here.
SHAPES = [(1, 1), (1, 32), (2, 3), (8, 1), (16, 16), (20, 5), (32, 1), (64, 64)]
DTYPES = [np.float32, np.float64]
KERNELS = kernels.multiply, kernels.multiply_gathered, kernels.multiply_columns


def sparse(rng, shape, block, keep, dtype=np.float64):
    """A matrix of which some blocks are not zero, by another way than the library's."""
    grid = [-(-side // part) for side, part in zip(shape, block, strict=True)]
    kept = np.kron(rng.random(grid) < keep, np.ones(block, bool))[: shape[0], : shape[1]]
    return np.where(kept, rng.standard_normal(shape), 0).astype(dtype)


def check_product(result, w, x):
    """The error of each entry is at most what that many roundings can give."""
    exact = w.astype(np.longdouble) @ x.astype(np.longdouble)
    bound = np.abs(w).astype(np.longdouble) @ np.abs(x).astype(np.longdouble)
    eps = (w.shape[1] + 1) * np.finfo(result.dtype).eps
    assert result.shape == exact.shape
    assert (np.abs(result - exact) <= eps * bound).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", SHAPES, ids=str)
def test_products(block, dtype):
    rng = np.random.default_rng(sum(block))
    for m, k in ((37, 70), (64, 64), (5, 3)):
        for keep in (0.0, 0.4, 1.0):
            w = sparse(rng, (m, k), block, keep, dtype)
            bs = compress(w, block)
            for n in (1, 3, 16, 31, 33, 130):
                x = rng.standard_normal((k, n)).astype(dtype)
                result = bs @ x
                assert result.dtype == dtype
                check_product(result, w, x)
                turned = bs @ np.asfortranarray(x)
                np.testing.assert_array_equal(turned, result)  # bit for bit
                wide = np.zeros((k, 3 * n), dtype)
                wide[:, ::3] = x
                np.testing.assert_array_equal(bs @ wide[:, ::3], result)
                np.testing.assert_array_equal(bs @ wide[::-1, ::3][::-1], result)
                y = rng.standard_normal((n, m)).astype(dtype)
                check_product((y @ bs).T, w.T, y.T)


@pytest.mark.parametrize("block", [(1, 32), (8, 1), (16, 16)], ids=str)
def test_products_in_several_parts(block):
    """More than half a megabyte of both operands, at which the kernels cut them."""
    rng = np.random.default_rng(4)
    w = sparse(rng, (400, 500), block, 0.8)
    bs, x = compress(w, block), rng.standard_normal((500, 333))
    result = bs @ x
    check_product(result, w, x)
    for workers in (1, 3):
        turned = bs.matmul(np.asfortranarray(x), workers=workers)
        np.testing.assert_array_equal(turned, result)


@pytest.fixture(params=[True, False], ids=["packed", "in place"])
def packed(request, monkeypatch):
    """Whether the kernels copy the dense operand into strips first."""
    monkeypatch.setattr(blocksparse.kernels, "pays", lambda *args: request.param)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [(1, 32), (2, 3), (16, 16)], ids=str)
def test_reading_in_place_changes_no_bit(block, dtype, monkeypatch):
    rng = np.random.default_rng(sum(block))
    for m, k in ((37, 70), (64, 64), (5, 3)):
        w = sparse(rng, (m, k), block, 0.4, dtype)
        bs, bias = compress(w, block), rng.standard_normal(m).astype(dtype)
        for n in (1, 3, 17, 130):
            x = rng.standard_normal((k, n)).astype(dtype)
            wide = np.zeros((k, 3 * n), dtype)
            wide[:, ::3] = x
            monkeypatch.setattr(blocksparse.kernels, "pays", lambda *args: True)
            expected = bs.matmul(x, bias=bias)
            monkeypatch.setattr(blocksparse.kernels, "pays", lambda *args: False)
            check_product(bs @ x, w, x)
            for operand in (x, np.asfortranarray(x), wide[:, ::3], wide[::-1, ::3][::-1]):
                np.testing.assert_array_equal(bs.matmul(operand, bias=bias), expected)
            for order in "CF":
                out = np.full((m, n), np.nan, dtype, order=order)
                np.testing.assert_array_equal(bs.matmul(x, bias=bias, out=out), expected)


def paths(bs, x, monkeypatch):
    """The kernel of a product, and whether it packs x."""
    called = []
    monkeypatch.setattr(blocksparse, "run_parts", lambda task, parts: called.append(task))
    bs.matmul(x)
    task = called[0]
    return task.func.py_func.__name__, task.args[3] == (0,)


@pytest.mark.skipif(blocksparse._PLAIN, reason="plain loops pack nothing")
def test_wide_matrices_do_not_pack_what_they_hardly_read(monkeypatch):
    """Packing all rows of x would take most of the time."""
    k = 40000  # a strip of one register goes beyond the second-level cache
    for block, keep in (((16, 16), 0.1), ((2, 2), 0.1), ((1, 1), 0.05), ((1, 16), 0.1)):
        for n, order in ((1, "C"), (3, "C"), (3, "F"), (100, "C"), (100, "F")):
            kept = np.random.default_rng(0).random((16 // block[0], k // block[1])) < keep
            bs = compress(np.kron(kept, np.ones(block, np.float32)), block)
            x = np.ones((k, n), np.float32, order=order)
            by_columns = n == 3 or n == 1 or order == "F"
            name = "multiply_columns" if by_columns else "multiply"
            assert paths(bs, x, monkeypatch) == (name, False)


@pytest.mark.skipif(blocksparse._PLAIN, reason="plain loops pack nothing")
def test_what_is_read_often_is_packed(monkeypatch):
    half = kernels.BITS // 64  # lanes of half a register
    for block, m, k, order in (
        ((32, 1), 768, 4000, "C"),  # each row read for many rows of blocks
        ((32, 1), 768, 4000, "F"),
        ((64, 1), 64, 4000, "C"),  # for many tiles of a block
        ((half, 1), half, 4000, "F"),  # strips that stay near, and idle lanes
        ((16, 16), 16, 32, "C"),
    ):
        bs = compress(np.ones((m, k), np.float32), block)
        name = "multiply_columns" if order == "F" and block[0] > 8 else "multiply"
        x = np.ones((k, 128), np.float32, order=order)
        assert paths(bs, x, monkeypatch) == (name, True)


@pytest.mark.parametrize("block", [(1, 1), (1, 32), (8, 1), (16, 16)], ids=str)
def test_bias(block):
    rng = np.random.default_rng(3)
    w = sparse(rng, (37, 70), block, 0.4)
    w[:16] = 0.0  # rows without a block get it too
    bs, bias = compress(w, block), rng.standard_normal(37)
    for n in (1, 5, 33):
        x = rng.standard_normal((70, n))
        result = bs.matmul(x, bias=bias)
        check_product(result, np.hstack([w, bias[:, None]]), np.vstack([x, np.ones(n)]))
        np.testing.assert_array_equal(result[:16], np.repeat(bias[:16, None], n, axis=1))
        np.testing.assert_array_equal(bs.matmul(np.asfortranarray(x), bias=bias), result)
        np.testing.assert_array_equal(bs.matmul(x[:, 0], bias=bias), result[:, 0])
        np.testing.assert_array_equal(bs.matmul(np.stack([x]), bias=list(bias))[0], result)
    assert compress(w.astype(np.float32), block).matmul(
        x.astype(np.float32), bias=bias
    ).dtype == np.float32  # fmt: skip
    with pytest.raises(ValueError, match=r"bias must have shape \(37,\), got \(70,\)"):
        bs.matmul(x, bias=np.ones(70))
    with pytest.raises(TypeError, match="bias must have a real floating"):
        bs.matmul(x, bias=np.ones(37, complex))


def test_columns_of_the_operand_stay_columns():
    bs = compress(np.eye(48), (8, 1))
    x = np.ones((48, 20))
    assert (bs @ x).flags.c_contiguous
    assert (bs @ np.asfortranarray(x)).flags.f_contiguous
    assert (np.ones((20, 48)) @ bs).flags.c_contiguous


@pytest.mark.parametrize("block", [(2, 3), (16, 16)], ids=str)
def test_vectors_and_stacks(block):
    rng = np.random.default_rng(0)
    w = sparse(rng, (32, 12), block, 0.5)
    bs = compress(w, block)
    x = rng.standard_normal((2, 3, 12, 5))
    check_product((bs @ x[0, 0, :, 0])[:, None], w, x[0, 0, :, :1])
    np.testing.assert_array_equal((bs @ x)[1, 2], bs @ x[1, 2])
    y = rng.standard_normal((2, 3, 7, 32))
    np.testing.assert_allclose(y @ bs, y @ w, rtol=0, atol=1e-13)
    np.testing.assert_allclose(y[0, 0, 0] @ bs, y[0, 0, 0] @ w, rtol=0, atol=1e-13)
    assert (bs @ np.ones((12, 0))).shape == (32, 0)
    assert (bs @ np.ones((0, 12, 4))).shape == (0, 32, 4)


def test_empty_matrices():
    assert (compress(np.zeros((0, 4)), (2, 2)) @ np.ones((4, 3))).shape == (0, 3)
    np.testing.assert_array_equal(compress(np.zeros((4, 0)), (2, 2)) @ np.ones((0, 3)), 0)
    for order in "CF":  # more columns than a register has entries
        assert (compress(np.zeros((0, 4)), (2, 2)) @ np.ones((4, 40), order=order)).shape == (0, 40)
    bs = compress(np.zeros((5, 7)), (3, 2))
    assert (bs.n_blocks, bs.density) == (0, 0.0)
    np.testing.assert_array_equal(bs @ np.ones((7, 2)), 0)
    np.testing.assert_array_equal(bs.to_dense(), np.zeros((5, 7)))
    np.testing.assert_array_equal(bs.T @ np.ones(5), np.zeros(7))
    for shape in ((0, 4), (4, 0)):
        bs = compress(np.zeros(shape), (2, 2))
        for x in (np.ones((3, shape[0])), np.ones((2, 0, shape[0])), np.ones(shape[0])):
            np.testing.assert_array_equal(x @ bs, np.zeros((*x.shape[:-1], shape[1])))


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("block", [(1, 1), (1, 32), (16, 16)], ids=str)
def test_read_only_operands_need_no_compilation_of_their_own(block, n, packed):
    rng = np.random.default_rng(12)
    bs = compress(sparse(rng, (64, 64), block, 0.5), block)
    x = rng.standard_normal((64, n))
    for order in "CF":
        operand = x.copy(order)
        expected = bs @ operand
        known = [len(kernel.signatures) for kernel in KERNELS]
        operand.flags.writeable = False
        np.testing.assert_array_equal(bs @ operand, expected)
        assert [len(kernel.signatures) for kernel in KERNELS] == known
        assert not operand.flags.writeable


def test_floating_point_errors_that_raise_do_not_tell_of_the_inside():
    """What over- or underflows becomes inf or 0, as in the products."""
    ones = np.ones((2, 2), np.float32)
    bs, pattern = compress(ones, (1, 2)), BlockPattern(ones, (1, 1))
    tiny, huge = np.finfo(np.longdouble).tiny, np.finfo(np.longdouble).max
    with np.errstate(all="raise"):
        for value, result in ((tiny, 0.0), (huge, np.inf)):
            value = np.full((2, 2), value)
            if value.dtype != np.float64:
                np.testing.assert_array_equal(bs @ value, result)
                np.testing.assert_array_equal(compress(value, (2, 2)).to_dense(), result)
                rows = scipy.sparse.bsr_array((value[None], [0], [0, 1]), shape=(2, 2))
                np.testing.assert_array_equal(from_scipy(rows).to_dense(), result)
        for value, result in ((1e-300, 0.0), (1e300, np.inf)):
            product = bs.matmul(np.zeros(2, np.float32), bias=[value] * 2)
            np.testing.assert_array_equal(product, result)
        for value, result in ((1e-30, 0.0), (1e30, np.inf)):
            products = pattern.sample(np.float32(value) * ones, ones, scale=value)
            np.testing.assert_array_equal(products.to_dense(), result)


def test_precisions():
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((2, 16, 16))
    single = compress(w.astype(np.float32), (4, 4))
    assert single.dtype == np.float32
    assert (single @ x).dtype == np.float64  # the wider of the two
    check_product(single @ x, w.astype(np.float32).astype(float), x)
    assert (compress(w, (4, 4)) @ x.astype(np.float32)).dtype == np.float64
    assert compress(np.eye(3, dtype=int), (1, 1)).dtype == np.float64
    assert compress(np.eye(3, dtype=np.float16), (1, 1)).dtype == np.float32
    assert (single @ np.ones((16, 2), np.float16)).dtype == np.float32
    assert single.astype(np.float64).dtype == np.float64
    with pytest.raises(TypeError, match="dtype must be float32 or float64, got int64"):
        single.astype(int)


def test_what_is_not_finite_stays_where_it_belongs():
    w = np.zeros((4, 4))
    w[1, 2] = np.nan
    bs = compress(w, (1, 1))
    assert bs.n_blocks == 1
    result = bs @ np.ones((4, 2))
    assert np.isnan(result[1]).all()
    np.testing.assert_array_equal(np.delete(result, 1, axis=0), 0)


@pytest.mark.parametrize("block", [(1, 1), (8, 1), (16, 16)], ids=str)
def test_out(block, packed):
    rng = np.random.default_rng(2)
    w = sparse(rng, (32, 32), block, 0.5)
    bs = compress(w, block)
    x = rng.standard_normal((32, 40))
    expected = bs @ x
    for order in "CF":
        out = np.empty((32, 40), order=order)
        assert bs.matmul(x, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert bs.matmul(np.asfortranarray(x), out=out) is out
        np.testing.assert_array_equal(out, expected)
    shared = np.lib.stride_tricks.as_strided(np.empty(40), (32, 40), (0, 8))
    with pytest.raises(ValueError, match="out must have memory for each entry"):
        bs.matmul(x, out=shared)
    wide = np.full((32, 80), 7.0)
    bs.matmul(x, out=wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], expected)
    np.testing.assert_array_equal(wide[:, 1::2], 7.0)
    own = x.copy()
    assert bs.matmul(own, out=own) is own
    np.testing.assert_array_equal(own, expected)
    vector = x[:, 0].copy()
    bs.matmul(vector, out=vector)
    np.testing.assert_array_equal(vector, bs @ x[:, 0])
    stack = np.stack([x, 2 * x])
    np.testing.assert_array_equal(bs.matmul(stack, out=stack)[0], expected)
    stack = np.stack([x, 2 * x])
    out = np.ones((2, 32, 40))
    bs.matmul(stack, bias=out[0, :, 0], out=out)
    np.testing.assert_allclose(out, bs.matmul(stack) + 1, atol=1e-12)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("order", "CF")
def test_a_matrix_or_a_masked_array_as_out(order):
    bs = compress(np.diag([1.0, 2.0, 3.0, 4.0]), (2, 2))
    x = np.random.default_rng(0).standard_normal((4, 3)).copy(order)
    for make_out in (functools.partial(np.ma.array, mask=np.eye(4, 3)), np.asmatrix):
        out = make_out(np.zeros((4, 3), order="C"))
        mask = np.ma.getmaskarray(out).copy()
        assert bs.matmul(x, out=out) is out
        np.testing.assert_array_equal(np.ma.getmaskarray(out), mask)
        np.testing.assert_array_equal(np.asarray(out), bs @ x)


def test_out_must_fit():
    bs = compress(np.eye(4), (2, 2))
    with pytest.raises(ValueError, match=r"out must have the result's shape \(4, 3\)"):
        bs.matmul(np.ones((4, 3)), out=np.ones((4, 2)))
    with pytest.raises(ValueError, match="dtype float64, got"):
        bs.matmul(np.ones((4, 3)), out=np.ones((4, 3), np.float32))
    with pytest.raises(TypeError, match="out must be a NumPy array, got list"):
        bs.matmul(np.ones((4, 3)), out=[])
    locked = np.ones((4, 3))
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        bs.matmul(np.ones((4, 3)), out=locked)
    with pytest.raises(ValueError, match=r"x must have shape \(4,\)"):
        bs @ np.ones((3, 2))
    with pytest.raises(TypeError, match="real"):
        bs @ np.ones((4, 2), complex)
    for shape in ((4, 3), (2, 3), (3,), ()):
        with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 4\), got"):
            np.ones(shape) @ bs


@pytest.mark.parametrize("block", [(1, 1), (20, 5), (32, 1)], ids=str)
def test_workers_and_plain_loops(block, monkeypatch):
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    rng = np.random.default_rng(3)
    w = sparse(rng, (200, 300), block, 0.2)
    w[:64] = 0  # uneven rows
    bs = compress(w, block)
    for x in (rng.standard_normal((300, 40)), rng.standard_normal((40, 300)).T):
        one = bs.matmul(x, workers=1)
        for workers in (2, 3, 7):
            np.testing.assert_array_equal(bs.matmul(x, workers=workers), one)
        monkeypatch.setattr(blocksparse, "_PLAIN", True)
        plain = bs.matmul(x, workers=2)
        monkeypatch.setattr(blocksparse, "_PLAIN", False)
        check_product(plain, w, x)
    with pytest.raises(ValueError, match="workers must be"):
        bs.matmul(x, workers=0)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    block=st.sampled_from([(1, 1), (2, 3), (8, 1), (16, 16)]),
    n=st.integers(1, 40),
    keep=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    scale=st.sampled_from([1e-300, 1.0, 1e150]),
    seed=st.integers(0, 1000),
)
def test_any_matrix(shape, block, n, keep, scale, seed):
    rng = np.random.default_rng(seed)
    w = sparse(rng, shape, block, keep) * scale
    bs = compress(w, block)
    np.testing.assert_array_equal(bs.to_dense(), w)
    np.testing.assert_array_equal(bs.T.to_dense(), w.T)
    x = rng.standard_normal((shape[1], n))
    with np.errstate(all="ignore"):
        if scale >= 1.0:
            check_product(bs @ x, w, x)
        else:
            np.testing.assert_allclose(bs @ x, w @ x, rtol=1e-9, atol=1e-310)


def test_compress():
    w = np.zeros((5, 7))
    w[4, 6] = 1.0
    w[0, 1] = -2.0
    bs = compress(w, (2, 3))
    assert (bs.shape, bs.block_shape, bs.n_blocks) == ((5, 7), (2, 3), 2)
    assert bs.density == 2 / 9
    np.testing.assert_array_equal(bs.pattern.kept, [[1, 0, 0], [0, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(bs.blocks()[1], [[1, 0, 0], [0, 0, 0]])  # zeros beyond the edge
    assert repr(bs) == "<BlockSparse: 5 x 7, float64, 2 of 9 blocks of (2, 3)>"
    assert bs.nbytes > bs.blocks().nbytes
    w[0, 1] = 5.0
    assert bs.to_dense()[0, 1] == -2.0  # a copy
    for bad, error, text in (
        (np.zeros(3), ValueError, "w must be a matrix"),
        (np.zeros((2, 2), complex), TypeError, "real"),
        (np.ma.zeros((2, 2)), TypeError, "masked"),
    ):
        with pytest.raises(error, match=text):
            compress(bad, (1, 1))
    for bad, error in (
        ((0, 1), ValueError),
        (3, TypeError),
        ((1, 2, 3), TypeError),
        ("ab", TypeError),
    ):
        with pytest.raises(error, match="block_shape"):
            compress(w, bad)


def test_scipy():
    from scipy import sparse as sp

    rng = np.random.default_rng(4)
    w = sparse(rng, (12, 18), (4, 3), 0.4)
    bs = compress(w, (4, 3))
    there = bs.to_scipy()
    assert there.blocksize == (4, 3)
    assert there.has_sorted_indices
    np.testing.assert_array_equal(there.toarray(), w)
    for given_as in (there, sp.bsr_array(w, blocksize=(4, 3))):
        back = from_scipy(given_as)
        np.testing.assert_array_equal(back.to_dense(), w)
        assert back.block_shape == given_as.blocksize
    np.testing.assert_array_equal(from_scipy(sp.csr_array(w), (2, 3)).to_dense(), w)
    twice = sp.bsr_array(
        (np.ones((3, 1, 2)), np.array([1, 0, 1]), np.array([0, 3])), shape=(1, 4)
    )  # out of order, one block given twice
    np.testing.assert_array_equal(from_scipy(twice).to_dense(), [[1, 1, 2, 2]])
    assert twice.data.shape == (3, 1, 2)  # left as it was
    with pytest.raises(TypeError, match="w must be dense: from_scipy takes"):
        compress(sp.csr_array(np.eye(4)), (2, 2))
    bs = compress(np.eye(4), (2, 2))
    with pytest.raises(TypeError, match="x must be dense, got a BlockSparse"):
        bs @ bs
    with pytest.raises(TypeError, match="block_shape is needed, since a is csr"):
        from_scipy(sp.csr_array(w))
    with pytest.raises(TypeError, match="container, got ndarray"):
        from_scipy(w)
    with pytest.raises(ValueError, match="must divide"):
        from_scipy(sp.csr_array(w), (5, 3))
    with pytest.raises(ValueError, match="divide the shape"):
        compress(w, (5, 3)).to_scipy()
    vector = sp.coo_array(np.ones(4))
    if len(vector.shape) == 1:  # a matrix before SciPy 1.13
        with pytest.raises(ValueError, match=r"a must be a matrix, got shape \(4,\)"):
            from_scipy(vector, (1, 1))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr"])
def test_explicit_zeros_of_scipy_stay(kind):
    from scipy import sparse as sp

    entries = np.array([0.0, 3.0]), (np.array([0, 2]), np.array([0, 2]))
    a = sp.coo_array(entries, shape=(4, 4)).asformat(kind)
    assert from_scipy(a, (2, 2)).n_blocks == 2


def test_save_and_load(tmp_path):
    rng = np.random.default_rng(5)
    w = sparse(rng, (13, 18), (4, 5), 0.4, np.float32)
    compress(w, (4, 5)).save(tmp_path / "w.npz")
    back = load(tmp_path / "w.npz")
    np.testing.assert_array_equal(back.to_dense(), w)
    assert back.dtype == np.float32
    compress(w, (4, 5)).save(str(tmp_path / "plain"))  # NumPy adds a suffix
    np.testing.assert_array_equal(load(str(tmp_path / "plain")).to_dense(), w)
    with np.load(tmp_path / "w.npz") as held:
        right = dict(held)
    for name, value in (
        ("indices", right["indices"] + 100),
        ("indices", right["indices"][:-1]),
        ("indices", right["indices"][::-1]),  # not sorted within the rows
        ("indptr", right["indptr"][::-1]),
        ("blocks", right["blocks"][:, :2]),
        ("blocks", right["blocks"].astype(complex)),
        ("blocks", np.float32(1.0)),
        ("shape", np.array([130, 18])),
        ("shape", np.array([[13, 18]])),
        ("shape", np.array([-13, 18])),
        ("shape", np.array([13.0, 18.0])),
        ("block_shape", np.array([4, 0])),
        ("block_shape", np.array(4)),
        ("indices", right["indices"] + 0.5),
        ("indices", right["indices"][None]),
        ("indptr", np.array("x")),
        ("indptr", right["indptr"].astype(object)),
    ):
        np.savez(tmp_path / "bad.npz", **{**right, name: value})
        with pytest.raises(ValueError, match="file"):
            load(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", w=w)
    with pytest.raises(ValueError, match="file must hold blocks"):
        load(tmp_path / "other.npz")
    np.savez(tmp_path / "more.npz", **right, note=np.array([None]))
    np.testing.assert_array_equal(load(tmp_path / "more.npz").to_dense(), w)
    whole = (tmp_path / "w.npz").read_bytes()
    np.save(tmp_path / "one.npy", w)
    one = (tmp_path / "one.npy").read_bytes()
    middle = len(whole) // 2
    turned = whole[:300] + bytes(255 - b for b in whole[300:400]) + whole[400:]
    for broken in (b"", b"text", whole[:middle], whole[middle:], turned, one, one[:middle]):
        with pytest.raises(ValueError, match="file cannot be read as"):
            load(io.BytesIO(broken))
    for other in (b"text", pickle.dumps(w)):
        with pytest.raises(ValueError, match=r"file cannot be read as \.npz: it is none"):
            load(io.BytesIO(other))
    np.savez(tmp_path / "bad.npz", **{**right, "indptr": np.array([None])})
    with pytest.raises(ValueError, match=r"file cannot be read as \.npz: Object arrays"):
        load(tmp_path / "bad.npz")
    for name in right:
        with (
            zipfile.ZipFile(tmp_path / "w.npz") as old,
            zipfile.ZipFile(tmp_path / "bad.npz", "w") as new,
        ):
            for member in old.namelist():
                new.writestr(member, b"text" if member == f"{name}.npy" else old.read(member))
        with pytest.raises(ValueError, match="file: its arrays describe no"):
            load(tmp_path / "bad.npz")
    for text in ("", "abc"):
        with pytest.raises(TypeError, match="file must be in binary mode, got"):
            load(io.StringIO(text))
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.npz")
    room = io.BytesIO()
    compress(np.zeros((3, 3)), (2, 2)).save(room)
    room.seek(0)
    assert load(room).n_blocks == 0


@pytest.mark.parametrize("inner", ["l2", "linf", "l1"])
def test_prune(inner):
    rng = np.random.default_rng(6)
    w = rng.standard_normal((2, 12, 20))
    order = {"l2": 2, "linf": np.inf, "l1": 1}[inner]
    pruned = prune(w, (4, 2), 7, inner=inner)
    for matrix, result in zip(w, pruned, strict=True):
        blocks = matrix.reshape(3, 4, 10, 2).transpose(0, 2, 1, 3).reshape(30, 8)
        norms = np.linalg.norm(blocks, order, axis=1)
        edge = np.sort(norms)[-7]
        kept = np.kron((norms >= edge).reshape(3, 10), np.ones((4, 2)))
        np.testing.assert_array_equal(result, np.where(kept, matrix, 0))
    assert compress(prune(w[0], (4, 2), 0.5), (4, 2)).n_blocks == 15
    assert compress(prune(w[0], (5, 3), 0.25), (5, 3)).n_blocks == round(0.25 * 3 * 7)
    np.testing.assert_array_equal(prune(w, (4, 2), 1.0), w)
    shrunk = prune(w, (4, 2), 7, inner=inner, shrink=True)
    level = level_for_groups(w, 7, groups=(4, 2), inner=inner)
    np.testing.assert_array_equal(shrunk, project_bilevel(w, level, groups=(4, 2), inner=inner))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_prune_keeps_as_many_as_asked_for(dtype):
    w = np.array([[1e7, 3, 2, 1, 0.5, 0.25, 1e-3, 5e-4]], dtype)
    for count in range(1, 9):
        np.testing.assert_array_equal(prune(w, (1, 1), count)[0, :count], w[0, :count])
        assert np.count_nonzero(prune(w, (1, 1), count)) == count
    heavy = np.random.default_rng(0).standard_cauchy((100, 300)).astype(dtype) ** 3
    assert np.count_nonzero(prune(heavy, (1, 1), 0.5)) == 15_000
    far = np.random.default_rng(1).standard_normal((64, 32)).astype(dtype)
    far[0, 0] = 1e12
    assert compress(prune(far, (8, 1), 0.25), (8, 1)).n_blocks == 64
    # Of blocks that tie the first stay, in whatever order the matrix lies.
    for order in "CF":
        tied = prune(np.ones((4, 6), dtype, order=order), (2, 2), 4)
        np.testing.assert_array_equal(tied[:2], 1)
        np.testing.assert_array_equal(tied[2:], [[1, 1, 0, 0, 0, 0]] * 2)


def test_prune_says_what_is_wrong():
    w = np.ones((4, 4))
    for bad in (0, 17, -1, 0.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="keep must be"):
            prune(w, (1, 1), bad)
    for bad in (True, "half", [1, 2]):
        with pytest.raises(TypeError, match="keep must be a number"):
            prune(w, (1, 1), bad)
    with pytest.raises(ValueError, match="two dimensions"):
        prune(np.ones(3), (1, 1), 1)
    for shrink in (False, True):
        with pytest.raises(ValueError, match=r"^w must be finite, got NaN or inf$"):
            prune([[1.0, np.nan]], (1, 1), 1, shrink=shrink)
        with pytest.raises(TypeError, match=r"^w must have a real .* complex128"):
            prune([[1.0, 1j]], (1, 1), 1, shrink=shrink)
    with pytest.raises(ValueError, match=r"^the sides of block_shape must be <= "):
        compress(w, (10**30, 1))
    with pytest.raises(TypeError, match=r"^shapes\[1\] must be two integers, got 3"):
        blocksparse.best_block_shape(w, [(1, 1), 3], 4)


def test_best_block_shape():
    rng = np.random.default_rng(7)
    w = sparse(rng, (256, 256), (16, 16), 0.1)
    shapes = [(1, 1), (16, 16), (256, 256)]
    best, costs = blocksparse.best_block_shape(w, shapes, 64, full_output=True)
    assert best == min(costs, key=lambda cost: cost.seconds).block_shape
    assert [cost.block_shape for cost in costs] == shapes
    for cost in costs:
        assert cost.n_blocks == compress(w, cost.block_shape).n_blocks
        assert cost.density == compress(w, cost.block_shape).density
        assert cost.seconds > 0
    assert blocksparse.best_block_shape(w, iter(shapes), 64) == best
    with pytest.raises(ValueError, match="shapes"):
        blocksparse.best_block_shape(w, [], 64)
    with pytest.raises(TypeError, match="shapes must be several block shapes, got None"):
        blocksparse.best_block_shape(w, None, 64)
    with pytest.raises(ValueError, match="n_cols"):
        blocksparse.best_block_shape(w, shapes, 0)
    with pytest.raises(TypeError, match=r"n_cols must be an integer, got 1\.5"):
        blocksparse.best_block_shape(w, shapes, 1.5)


@pytest.mark.parametrize("shape", [(1, 1), (32, 32), (512, 256), (1024, 1024), (5000, 3)], ids=str)
def test_the_costs_of_a_shape_come_from_two_products(shape, monkeypatch):
    """Also where the matrix is one block."""
    monkeypatch.setattr(
        blocksparse, "_quickest", lambda product: 2.0 + 3.0 * product.func.__self__.n_blocks
    )
    per_row, per_block = blocksparse._cost.__wrapped__(shape, (1024, 600), "float32", 3)
    assert per_block == pytest.approx(3.0)
    assert per_row == pytest.approx(2.0 / -(-1024 // shape[0]))


def test_best_block_shape_adds_up_what_is_measured(monkeypatch):
    """Rows of blocks and blocks cost what they are said to; the least sum wins."""
    seconds = {(1, 1): (1.0, 0.5), (2, 4): (2.0, 3.0), (4, 2): (2.0, 3.0), (8, 8): (9.0, 20.0)}
    monkeypatch.setattr(blocksparse, "_cost", lambda shape, size, dtype, n_cols: seconds[shape])
    w = np.zeros((8, 12))
    w[:2, :4] = w[6, 11] = 1.0
    best, costs = blocksparse.best_block_shape(w, seconds, 64, full_output=True)
    assert [cost.seconds for cost in costs] == [8 + 4.5, 4 * 2 + 2 * 3, 2 * 2 + 3 * 3, 9 + 2 * 20]
    assert [cost.n_blocks for cost in costs] == [9, 2, 3, 2]
    assert best == (1, 1)
    seconds[1, 1] = 1.0, 1.0
    assert blocksparse.best_block_shape(w, seconds, 64) == (4, 2)


def dense_attention(q, k, v, kept, scale):
    q, k, v = (each.astype(np.longdouble) for each in (q, k, v))
    scores = np.where(kept, scale * (q @ k.T), -np.inf)
    top = scores.max(axis=1, initial=-1e300, keepdims=True)
    weights = np.exp(scores - top)
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300) @ v, weights


@pytest.mark.parametrize("block", [(1, 32), (2, 3), (16, 16), (20, 5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention(block, dtype):
    rng = np.random.default_rng(8)
    m, n, d, e = 64, 50, 7, 5
    grid = -(-m // block[0]), -(-n // block[1])
    blocks = rng.random(grid) < 0.5
    blocks[0] = False  # rows that attend to nothing
    kept = np.kron(blocks, np.ones(block, bool))[:m, :n]
    pattern = BlockPattern(blocks, block, (m, n))
    np.testing.assert_array_equal(pattern.kept, blocks)
    q, k, v = (rng.standard_normal(s).astype(dtype) for s in ((m, d), (n, d), (n, e)))
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    sampled = pattern.sample(q, k, scale=0.3)
    assert sampled.dtype == dtype
    np.testing.assert_allclose(
        sampled.to_dense(), np.where(kept, 0.3 * (q @ k.T), 0), rtol=0, atol=tolerance
    )
    expected, weights = dense_attention(q, k, v, kept, 0.3)
    soft = sampled.softmax().to_dense()
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    np.testing.assert_allclose(soft, weights, rtol=0, atol=tolerance)
    result = pattern.attention(q, k, v, scale=0.3)
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)
    assert result.dtype == dtype
    stack = pattern.attention(np.stack([q, 2 * q]), k, v)
    np.testing.assert_array_equal(stack[1], pattern.attention(2 * q, k, v))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("grid", [(5, 6), (2, 9), (7, 2)], ids=str)
@pytest.mark.parametrize("block", [(1, 32), (2, 3), (16, 16), (20, 5), (1, 1)], ids=str)
def test_causal_attention(block, grid, workers, monkeypatch):
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    rng = np.random.default_rng(grid)
    m, n = (count * side - (side > 1) for count, side in zip(grid, block, strict=True))
    blocks = rng.random(grid) < 0.6
    pattern = BlockPattern(blocks, block, (m, n))
    q, k, v = (rng.standard_normal(s) for s in ((m, 7), (n, 7), (n, 5)))
    kept = np.kron(blocks, np.ones(block, bool))[:m, :n] & np.tri(m, n, dtype=bool)
    expected, weights = dense_attention(q, k, v, kept, 0.3)
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    scores = pattern.sample(q, k, scale=0.3)
    before = scores.to_dense()
    soft = scores.softmax(causal=True, workers=workers).to_dense()
    np.testing.assert_allclose(soft, weights, rtol=0, atol=1e-13)
    assert (soft[~kept] == 0).all()
    np.testing.assert_array_equal(scores.to_dense(), before)
    result = pattern.attention(q, k, v, scale=0.3, causal=True, workers=workers)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-13)
    stack = pattern.attention(np.stack([q, 2 * q]), k, v, scale=0.3, causal=True)
    np.testing.assert_array_equal(stack[0], result)


@pytest.mark.parametrize("later", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("block", [(1, 6), (2, 2), (3, 6), (6, 3)], ids=str)
def test_what_comes_later_changes_nothing(block, later):
    pattern = BlockPattern(np.ones((6 // block[0], 6 // block[1])), block)
    q, k, v = np.random.default_rng(1).standard_normal((3, 6, 4))
    expected = pattern.attention(q, k, v, causal=True)
    k[4:] = later
    np.testing.assert_array_equal(pattern.attention(q, k, v, causal=True)[:4], expected[:4])


def test_rows_that_keep_only_what_comes_later_are_zero():
    """A row of −∞ is NaN, as ever."""
    pattern = BlockPattern([[False, True], [True, False]], (2, 2))
    q, k = np.array([[1.0], [1.0], [-np.inf], [1.0]]), np.ones((4, 1))
    weights = pattern.sample(q, k).softmax(causal=True).to_dense()
    expected = [[0, 0, 0, 0], [0, 0, 0, 0], [np.nan, np.nan, 0, 0], [0.5, 0.5, 0, 0]]
    np.testing.assert_array_equal(weights, expected)
    result = pattern.attention(q, k, np.ones((4, 1)), causal=True)
    np.testing.assert_array_equal(result, [[0.0], [0.0], [np.nan], [1.0]])


def test_large_scores_do_not_overflow():
    pattern = BlockPattern([[True, False]], (2, 2))
    weights = pattern.sample([[1e4], [-1e4]], np.ones((4, 1))).softmax().to_dense()
    np.testing.assert_array_equal(weights, [[0.5, 0.5, 0, 0]] * 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_long_rows(dtype):
    """Each small weight is less than the rounding of a float32 sum that is 1 already."""
    scores = np.full((1, 1 << 18), -17.5, dtype)
    scores[0, 0] = 0.0
    small = np.exp(-17.5)
    largest = 1.0 / (1.0 + (scores.size - 1) * small)  # 0.993
    weights = compress(scores, (1, 32)).softmax().to_dense()
    tolerance = 1e-6 if dtype == np.float32 else 1e-10
    assert weights[0, 0] == pytest.approx(largest, rel=tolerance)
    np.testing.assert_allclose(weights[0, 1:], small * largest, rtol=tolerance)
    assert weights.sum(dtype=float) == pytest.approx(1.0, abs=tolerance)
    pattern = BlockPattern(np.ones((1, scores.size // 32)), (1, 32))
    v = np.zeros((scores.size, 1), dtype)
    v[0] = 1.0
    result = pattern.attention(np.ones((1, 1), dtype), scores.T, v)
    np.testing.assert_allclose(result, [[largest]], rtol=tolerance)


def test_rows_of_minus_infinity_are_nan():
    pattern = BlockPattern(np.eye(2), (1, 2))
    q, k = np.array([[-np.inf], [1.0]]), np.ones((4, 1))
    weights = pattern.sample(q, k).softmax().to_dense()
    np.testing.assert_array_equal(weights, [[np.nan, np.nan, 0, 0], [0, 0, 0.5, 0.5]])
    result = pattern.attention(q, k, np.ones((4, 1)))
    np.testing.assert_array_equal(result, [[np.nan], [1.0]])


def test_blocks_are_zero_beyond_the_edges():
    pattern = BlockPattern(np.ones((2, 2)), (4, 3), (5, 5))
    scores = pattern.sample(np.full((5, 1), np.inf), np.ones((5, 1)))
    for bs in (scores, pattern.sample(np.ones((5, 1)), np.ones((5, 1))).softmax()):
        blocks = bs.blocks()
        assert (blocks[0] != 0).all()
        assert (blocks[1][:, 2:] == 0).all()
        assert (blocks[2:, 1:] == 0).all()
        np.testing.assert_array_equal(compress(bs.to_dense(), (4, 3)).blocks(), blocks)


@pytest.mark.parametrize(
    ("scale", "error"),
    [(scale, TypeError) for scale in (None, "1", np.ones(4), 1j)]
    + [(scale, ValueError) for scale in (np.nan, np.inf, 1e60, 10**400)],
    ids=lambda value: str(value)[:12],
)
def test_scales_must_be_numbers(scale, error):
    pattern, q = BlockPattern(np.eye(2), (2, 2)), np.ones((4, 3), np.float32)
    with pytest.raises(error, match="scale must be"):
        pattern.sample(q, q, scale=scale)
    assert pattern.sample(q.astype(float), q, scale=1e60).blocks().max() == 3e60
    assert pattern.sample(q, q, scale=np.array(0.5)).blocks().max() == 1.5


def test_patterns_say_what_is_wrong():
    for wrong in ([["True", "False"]], [[None]], [[1j]]):
        with pytest.raises(TypeError, match="kept must be booleans, got dtype"):
            BlockPattern(np.array(wrong), (1, 1))
    with pytest.raises(ValueError, match="kept must be a matrix"):
        BlockPattern([True], (1, 1))
    with pytest.raises(ValueError, match="kept is no array"):
        BlockPattern([[True], [True, False]], (1, 1))
    with pytest.raises(ValueError, match=r"kept must have shape \(2, 1\)"):
        BlockPattern([[True]], (2, 2), (3, 2))
    for bad in (4, (4,), (4, 4, 1), (4, 4.0), "44"):
        with pytest.raises(TypeError, match="shape must be two integers, got"):
            BlockPattern(np.eye(2), (2, 2), bad)
    with pytest.raises(ValueError, match="the sides of shape must be >= 0"):
        BlockPattern(np.eye(2), (2, 2), (4, -4))
    pattern = BlockPattern(np.eye(2), (2, 2))
    assert repr(pattern) == "<BlockPattern: 4 x 4, 2 of 4 blocks of (2, 2)>"
    with pytest.raises(ValueError, match=r"\(4, D\)"):
        pattern.sample(np.ones((3, 2)), np.ones((4, 2)))
    with pytest.raises(ValueError, match="matrices"):
        pattern.attention(np.ones(3), np.ones((4, 2)), np.ones((4, 2)))


@pytest.mark.parametrize("batch", [(), (3,), (0,), (2, 0)], ids=str)
def test_attention_checks_also_where_the_batch_is_empty(batch):
    pattern = BlockPattern(np.eye(2), (2, 2))
    right = (4, 3), (4, 3), (4, 5)
    q, k, v = (np.ones(batch + shape) for shape in right)
    assert pattern.attention(q, k, v).shape == (*batch, 4, 5)
    for place, wrong in ((0, (5, 3)), (0, (4, 2)), (1, (7, 3)), (1, (4, 2)), (2, (9, 5))):
        given = [q, k, v]
        given[place] = np.ones(batch + wrong)
        text = rf"q, k and v must have shapes \(\.\.\., 4, D\), .*{re.escape(str(batch + wrong))}"
        with pytest.raises(ValueError, match=text):
            pattern.attention(*given)
    with pytest.raises(ValueError, match="scale must be finite in float64, got nan"):
        pattern.attention(q, k, v, scale=np.nan)
    with pytest.raises(ValueError, match=r"leading axes of q, k and v must broadcast, got \(5, 4"):
        pattern.attention(np.ones((5, 4, 3)), np.ones((2, 4, 3)), v)


def test_pattern_of_a_projection():
    w = np.random.default_rng(9).standard_normal((10, 9))
    x, info = project_bilevel(w, 3.0, groups=(4, 2), full_output=True)
    pattern = BlockPattern(info.kept, (4, 2), w.shape)
    np.testing.assert_array_equal(pattern.kept, compress(x, (4, 2)).pattern.kept)


def test_indices_of_scipy_that_are_out_of_range():
    """SciPy's constructor takes them."""
    from scipy import sparse

    good = sparse.bsr_array((np.ones((2, 2, 2)), [0, 1], [0, 2]), shape=(2, 4))
    assert from_scipy(good).n_blocks == 2
    for wrong in 10**9, -1:
        good.indices[1] = wrong
        with pytest.raises(ValueError, match="a: its arrays describe no block-sparse matrix"):
            from_scipy(good)


def test_load_beside_a_folder_of_that_name(tmp_path):
    (tmp_path / "weights").mkdir()
    matrix = compress(np.eye(4), (2, 2))
    matrix.save(tmp_path / "weights")
    np.testing.assert_array_equal(load(tmp_path / "weights").to_dense(), np.eye(4))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("block", [(8, 1), (32, 1)], ids=str)
def test_workers_share_the_columns(block, turned, packed, monkeypatch):
    """Tiles of columns are dealt out; the last one is not whole."""
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    rng = np.random.default_rng(6)
    w, x = sparse(rng, (64, 30), block, 0.5), rng.standard_normal((30, 3 * 4 * 128 + 5))
    bs, x = compress(w, block), np.asfortranarray(x) if turned else x
    shared, own = [], BlockPattern._shares
    monkeypatch.setattr(
        BlockPattern, "_shares", lambda *args: shared.append(own(*args)) or shared[-1]
    )
    one = bs.matmul(x, workers=1)
    for workers in (2, 3):
        np.testing.assert_array_equal(bs.matmul(x, workers=workers), one)
        parts = [part[2:] for part in shared.pop()]
        assert parts[0][0] == 0
        assert parts[-1][1] == x.shape[1]
        assert all(a[1] == b[0] for a, b in pairwise(parts))
        assert len(set(parts)) == workers


def test_plain_loops_need_no_registers(monkeypatch):
    """Where there are none, no kernel for registers is called."""
    monkeypatch.setattr(blocksparse, "_PLAIN", True)
    for name in ("multiply", "multiply_columns", "multiply_gathered"):
        monkeypatch.setattr(blocksparse.kernels, name, None)
    for block in ((1, 32), (8, 1), (32, 1)):
        w = sparse(np.random.default_rng(3), (64, 32), block, 0.5)
        for n in (1, 40):
            x = np.random.default_rng(4).standard_normal((32, n))
            check_product(compress(w, block) @ x, w, x)
            check_product(compress(w, block) @ np.asfortranarray(x), w, x)


def test_the_wider_precision_with_bias_and_out():
    """What is computed in the precision of x gets the bias, and goes where it is to."""
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((16, 12)).astype(np.float32), rng.standard_normal((12, 5))
    bs, bias, out = compress(w, (4, 4)), rng.standard_normal(16), np.empty((16, 5))
    assert bs.matmul(x, bias=bias, out=out) is out
    np.testing.assert_allclose(out, w @ x + bias[:, None], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(bs.matmul(x, bias=bias), out)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_precision_of_stacks_and_dense_matrices(dtype):
    bs = compress(np.eye(4, dtype=dtype), (2, 2))
    assert (bs @ np.ones((2, 4, 3), dtype)).dtype == dtype
    assert (np.ones((2, 3, 4), dtype) @ bs).dtype == dtype
    assert bs.to_dense().dtype == dtype
    assert bs.T.dtype == dtype


def test_shapes_that_do_not_fit_a_product():
    bs = compress(np.eye(4), (2, 2))
    with pytest.raises(ValueError, match=r"x must have shape \(4,\) or \(\.\.\., 4, K\), got \(\)"):
        bs.matmul(3.0)
    for shape in ((4, 1), (1, 4), ()):
        with pytest.raises(ValueError, match=r"bias must have shape \(4,\), got"):
            bs.matmul(np.ones((4, 3)), bias=np.ones(shape))


def test_copies_are_copies():
    """What is done to blocks, places or weights that were asked for changes no matrix."""
    pattern = BlockPattern(np.eye(2), (2, 2))
    scores = pattern.sample(np.ones((4, 1)), np.arange(4.0)[:, None])
    before = scores.to_dense()
    scores.softmax()
    scores.blocks()[:] = 7.0
    there = scores.to_scipy()
    there.data[:] = 7.0
    there.indices[:] = there.indptr[:] = 0
    np.testing.assert_array_equal(scores.to_dense(), before)
    np.testing.assert_array_equal(pattern.kept, np.eye(2))


def test_a_block_sparse_matrix_is_no_array():
    """Of pandas, say, which asks for one, NumPy would give it an array of one object."""
    bs = compress(np.eye(4), (2, 2))
    with pytest.raises(TypeError, match=r"<BlockSparse: 4 x 4.*pass its to_dense\(\)"):
        np.asarray(bs)
    with pytest.raises(TypeError, match=r"pass its to_dense\(\)"):
        compress(bs, (2, 2))
    np.testing.assert_array_equal(np.ones((3, 4)) @ bs, np.ones((3, 4)))


def test_pickled_matrices(monkeypatch):
    """They hold no more than the blocks, and fit the machine that they are loaded on."""
    w = sparse(np.random.default_rng(0), (37, 70), (1, 10), 0.4, np.float32)
    x = np.random.default_rng(1).standard_normal((70, 20)).astype(np.float32)
    bs = compress(w, (1, 10))
    size, expected = len(pickle.dumps(bs)), bs @ x
    assert bs.T.shape == (70, 37)
    assert len(pickle.dumps(bs)) == size
    for again in (pickle.loads(pickle.dumps(bs)), copy.deepcopy(bs)):
        assert repr(again) == repr(bs)
        np.testing.assert_array_equal(again @ x, expected)
    monkeypatch.setattr(blocksparse.kernels, "rounded", lambda height: height + 3)
    elsewhere = pickle.dumps(compress(w, (5, 2)))
    monkeypatch.undo()
    here = pickle.loads(elsewhere)
    assert here._layout.tall == compress(w, (5, 2))._layout.tall
    np.testing.assert_array_equal(here.to_dense(), w)


def test_scipy_gets_empty_columns():
    """The last rows and columns of blocks hold nothing."""
    w = np.zeros((4, 6))
    w[0, 0] = 1.0
    there = compress(w, (2, 3)).to_scipy()
    assert there.shape == (4, 6)
    for block in ((3, 2), (2, 4)):
        with pytest.raises(ValueError, match="scipy's BSR needs blocks that divide the shape"):
            compress(w, block).to_scipy()


def test_float16_is_no_precision_of_a_matrix():
    for dtype in (np.float16, np.longdouble, complex):
        with pytest.raises(TypeError, match="dtype must be float32 or float64, got"):
            compress(np.eye(4), (2, 2)).astype(dtype)


def test_attention_divides_by_the_root_of_the_length():
    """By default, where it differs from the number of results."""
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((4, 7)), rng.standard_normal((6, 7)), rng.standard_normal((6, 3))
    pattern = BlockPattern(np.ones((2, 2)), (2, 3))
    expected, _ = dense_attention(q, k, v, np.ones((4, 6), bool), 1 / np.sqrt(7))
    np.testing.assert_allclose(pattern.attention(q, k, v), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(
        pattern.attention(q[:, :0], k[:, :0], v), np.tile(v.mean(0), (4, 1)), rtol=0, atol=1e-13
    )


def test_attention_with_a_scale_of_zero():
    """All that is kept counts alike: zero is not the default."""
    v = np.arange(8.0).reshape(4, 2)
    q = np.arange(12.0).reshape(4, 3)
    found = BlockPattern(np.eye(2), (2, 2)).attention(q, q, v, scale=0.0)
    np.testing.assert_array_equal(found, [[1.0, 2.0], [1.0, 2.0], [5.0, 6.0], [5.0, 6.0]])


def test_attention_of_several_precisions_and_batches():
    rng = np.random.default_rng(2)
    pattern = BlockPattern(np.eye(2), (2, 2))
    q, k, v = rng.standard_normal((3, 4, 4)).astype(np.float32)
    for wide in range(3):
        mixed = [each.astype(float) if n == wide else each for n, each in enumerate((q, k, v))]
        found = pattern.attention(*mixed)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, pattern.attention(q, k, v), rtol=0, atol=1e-6)
        stack = [np.stack([each, 2 * each]) if n == wide else each for n, each in enumerate(mixed)]
        found = pattern.attention(*stack)
        assert found.shape == (2, 4, 4)
        np.testing.assert_array_equal(found[1], pattern.attention(*(s[-1] if s.ndim > 2 else s
                                                                    for s in stack)))  # fmt: skip


@pytest.mark.parametrize("wide", [0, 1])
def test_samples_have_the_wider_precision(wide):
    pattern, q = BlockPattern(np.eye(2), (2, 2)), np.full((4, 1), 0.1, np.float32)
    given = [q, q]
    given[wide] = given[wide].astype(float)
    found = pattern.sample(*given, scale=0.1)
    assert found.dtype == np.float64
    assert found.blocks().max() == pytest.approx(0.1 * float(q[0, 0]) ** 2, rel=1e-15)


def test_shapes_that_do_not_fit_a_sample():
    pattern = BlockPattern(np.eye(2), (2, 3))
    pattern.sample(np.ones((4, 2)), np.ones((6, 2)))
    for q, k in (((3, 2), (6, 2)), ((4, 2), (5, 2)), ((4, 2), (6, 3))):
        with pytest.raises(ValueError, match=r"q and k must have shapes \(4, D\) and \(6, D\)"):
            pattern.sample(np.ones(q), np.ones(k))
    for place in range(3):
        given = [np.ones((4, 2)), np.ones((6, 2)), np.ones((6, 2))]
        given[place] = np.ones(2)
        with pytest.raises(ValueError, match="q, k and v must be matrices"):
            pattern.attention(*given)


def test_kept_blocks_are_a_grid():
    """As many entries do not do; integers count as booleans."""
    with pytest.raises(ValueError, match=r"kept must have shape \(2, 3\)"):
        BlockPattern(np.ones((3, 2)), (2, 2), (4, 6))
    np.testing.assert_array_equal(BlockPattern([[0, 2], [-1, 0]], (1, 1)).kept, [[0, 1], [1, 0]])


def test_matrices_of_booleans():
    w = np.eye(4, dtype=bool)
    assert compress(w, (2, 2)).dtype == np.float64
    np.testing.assert_array_equal(compress(w, (2, 2)) @ w, np.eye(4))


def test_both_sides_of_a_block_are_bounded():
    for shape in ((1 << 41, 1), (1, 1 << 41)):
        with pytest.raises(ValueError, match="the sides of block_shape must be <="):
            BlockPattern(np.ones((1, 1)), shape)


def test_nbytes_and_density():
    """The places count, too, and an empty matrix has no blocks to divide by."""
    w = np.zeros((1000, 1))
    w[0] = 1.0
    bs = compress(w, (1, 1))
    assert bs.nbytes >= 8 + 8 + 1001 * bs.pattern.indptr.itemsize
    assert compress(np.zeros((0, 4)), (2, 2)).density == 0.0


BEYOND = [((10, 4), (64, 64)), ((10, 4), (64, 2)), ((4, 10), (1, 64)), ((3, 5), (2, 1000))]


@pytest.mark.parametrize(("shape", "block"), BEYOND, ids=str)
def test_blocks_are_no_larger_than_the_matrix(shape, block):
    """Their zeros beyond it would be stored, saved and multiplied."""
    w = sparse(np.random.default_rng(0), shape, tuple(map(min, block, shape)), 0.8)
    bs = compress(w, block)
    fitting = compress(w, tuple(map(min, block, shape)))
    for one, other in ((bs, fitting), (bs.T, fitting.T)):
        assert one.block_shape == other.block_shape
        assert one.nbytes == other.nbytes
        assert repr(one) == repr(other)
        np.testing.assert_array_equal(one.blocks(), other.blocks())
        np.testing.assert_array_equal(one.to_dense(), other.to_dense())
    file = io.BytesIO()
    bs.save(file)
    assert file.tell() < 4000
    file.seek(0)
    assert load(file).block_shape == bs.block_shape
    np.testing.assert_array_equal(load(io.BytesIO(file.getvalue())).to_dense(), w)
    x = np.random.default_rng(1).standard_normal((shape[1], 20))
    check_product(bs @ x, w, x)
    np.testing.assert_array_equal(prune(w, block, 1.0), w)
    best, costs = blocksparse.best_block_shape(w, [block], 8, full_output=True)
    assert best == costs[0].block_shape == block  # as it was asked for
    assert costs[0].n_blocks == bs.n_blocks


def test_one_block_is_a_matrix_of_scipy():
    w = np.arange(1.0, 41.0).reshape(10, 4)
    there = compress(w, (4096, 4096)).to_scipy()
    assert there.blocksize == (10, 4)
    np.testing.assert_array_equal(there.toarray(), w)
    assert from_scipy(there).block_shape == (10, 4)


def test_patterns_of_blocks_larger_than_the_matrix():
    pattern = BlockPattern([[True, False]], (64, 3), (5, 6))
    assert (pattern.block_shape, pattern.grid) == ((5, 3), (1, 2))
    q, k, v = np.random.default_rng(0).standard_normal((3, 6, 4))
    expected, _ = dense_attention(q[:5], k, v, pattern.kept.repeat(3, axis=1), 0.5)
    np.testing.assert_allclose(pattern.attention(q[:5], k, v), expected.astype(float))
    assert BlockPattern(np.ones((0, 1)), (2, 8), (0, 4)).block_shape == (2, 4)
    with pytest.raises(ValueError, match=r"in blocks of \(64, 3\), got \(2, 2\)"):
        BlockPattern(np.ones((2, 2)), (64, 3), (5, 6))


def test_files_of_blocks_larger_than_the_matrix():
    """Older versions have written them, with zeros beyond the edge."""
    blocks = np.zeros((1, 8, 8))
    blocks[0, :5, :6] = np.arange(30.0).reshape(5, 6)
    file = saved(blocks=blocks, indices=np.array([0]), indptr=np.array([0, 1]),
                 shape=np.array([5, 6]), block_shape=np.array([8, 8]))  # fmt: skip
    bs = load(file)
    assert bs.blocks().shape == (1, 5, 6)
    np.testing.assert_array_equal(bs.to_dense(), blocks[0, :5, :6])


@pytest.mark.parametrize("shape", [(16, 3000), (3000, 16)], ids=str)
def test_costs_of_blocks_larger_than_the_matrix(shape, monkeypatch):
    """What is measured is the block that is stored, whole."""
    asked = []
    monkeypatch.setattr(
        blocksparse, "_cost", lambda shape, size, *args: asked.append((shape, size)) or (1.0, 1.0)
    )
    blocksparse.best_block_shape(np.ones(shape), [(4096, 4096), (1, 1)], 4)
    assert [one for one, _ in asked] == [shape, (1, 1)]
    assert all(part <= side for part, side in zip(shape, asked[0][1], strict=True))
    assert max(asked[1][1]) == 1024


def saved(**changes):
    """A file with a right matrix, but for the changes; None leaves an array out."""
    arrays = {
        "blocks": np.ones((3, 2, 2)), "indices": np.array([0, 2, 1]),
        "indptr": np.array([0, 2, 2, 3]), "shape": np.array([6, 6]),
        "block_shape": np.array([2, 2]),
    }  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **{k: v for k, v in (arrays | changes).items() if v is not None})
    file.seek(0)
    return file


@pytest.mark.parametrize(
    "changes",
    [
        {"indptr": np.array([1, 2, 2, 3])},
        {"indptr": np.array([0, 1, 2, 2])},
        {"indptr": np.array([0, 1, 2, 4])},
        {"indptr": np.array([0, 2, 1, 3])},
        {"indptr": np.array([0, 2, 3])},
        {"indptr": np.array([0, 2, 2, 3, 3])},
        {"indices": np.array([0, 3, 1])},
        {"indices": np.array([-1, 2, 1])},
        {"indices": np.array([2, 2, 1])},
        {"indices": np.array([2, 0, 1])},
        {"shape": np.array([6])},
        {"shape": np.array([6, 6, 6])},
        {"block_shape": np.array([2])},
        {"block_shape": np.array([2, 2, 1])},
        {"block_shape": np.array([2, 1])},
        {"blocks": np.ones((3, 2, 2), np.float16)},
        {"blocks": np.ones((2, 2, 2))},
        {
            "blocks": np.ones((0, 2, 2)), "indices": np.array([], int), "indptr": np.array([0]),
            "shape": np.array([-1, 6]),
        },
    ],
    ids=str,
)  # fmt: skip
def test_files_with_one_thing_wrong(changes):
    """Each check has something that it alone finds."""
    assert load(saved()).n_blocks == 3
    with pytest.raises(ValueError, match=r"^file: its arrays describe no block-sparse matrix$"):
        load(saved(**changes))


@pytest.mark.parametrize("name", ["blocks", "indices", "indptr", "shape", "block_shape"])
def test_files_without_an_array(name):
    with pytest.raises(ValueError, match=r"^file must hold blocks, indices, indptr, shape, block_"):
        load(saved(**{name: None}))


class Trap:
    def __reduce__(self):
        return functools.partial(setattr, Trap, "went", True), ()


def test_files_of_the_other_byte_order():
    """NumPy saves arrays as they lie: so they come from another machine."""
    arrays = {"blocks": np.arange(12.0).reshape(3, 2, 2), "indices": np.array([0, 2, 1]),
              "indptr": np.array([0, 2, 2, 3])}  # fmt: skip
    expected = load(saved(**arrays))
    for order in "<>":
        turned = {name: a.astype(a.dtype.newbyteorder(order)) for name, a in arrays.items()}
        found = load(saved(**turned))
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found @ np.eye(6), expected.to_dense())


def test_nothing_is_unpickled():
    held = np.array([Trap()], object)
    with pytest.raises(ValueError, match="file cannot be read as"):
        load(saved(indptr=held))
    assert not hasattr(Trap, "went")


def test_what_is_wrong_with_a_file(monkeypatch, tmp_path):
    file = io.BytesIO()
    np.save(file, np.eye(2))
    file.seek(0)
    with pytest.raises(ValueError, match=r"file cannot be read as \.npz: it holds a single array"):
        load(file)
    with pytest.raises(FileNotFoundError) as caught:
        load(tmp_path / "none")
    assert caught.value.filename in (tmp_path / "none", str(tmp_path / "none"))

    def full(*args, **options):
        raise MemoryError

    monkeypatch.setattr(np, "load", full)
    with pytest.raises(MemoryError):
        load(saved())


def test_names_with_a_suffix_of_another_kind(tmp_path):
    compress(np.eye(4), (2, 2)).save(tmp_path / "w.v2")
    assert load(tmp_path / "w.v2").shape == (4, 4)


def test_a_file_of_the_very_name_comes_first(tmp_path):
    compress(np.eye(4), (2, 2)).save(tmp_path / "w.npz")
    compress(np.eye(6), (2, 2)).save(tmp_path / "w.npz.npz")
    assert load(tmp_path / "w.npz").shape == (4, 4)


def test_scipy_of_other_dtypes():
    from scipy import sparse as sp

    for dtype, own in ((int, np.float64), (bool, np.float64), (np.float32, np.float32)):
        assert from_scipy(sp.csr_array(np.eye(4, dtype=dtype)), (2, 2)).dtype == own
    with pytest.raises(TypeError, match="a must have a real floating"):
        from_scipy(sp.csr_array(np.eye(4, dtype=complex)), (2, 2))


def test_a_part_of_the_blocks_is_rounded():
    """To the nearest number; at least one stays."""
    w = np.arange(1.0, 13.0).reshape(2, 6)
    for keep, count in ((0.001, 1), (0.14, 2), (0.12, 1), (0.99, 12), (0.95, 11), (1.0, 12)):
        assert np.count_nonzero(prune(w, (1, 1), keep)) == count


@pytest.mark.parametrize(
    ("keep", "count"), [(np.int32(3), 3), (np.float32(0.5), 6), (Fraction(1, 4), 3)], ids=str
)
def test_a_part_of_the_blocks_is_any_number(keep, count):
    assert np.count_nonzero(prune(np.arange(1.0, 13.0).reshape(2, 6), (1, 1), keep)) == count


@pytest.mark.parametrize("shrink", [False, True])
@pytest.mark.parametrize("keep", [1, 0.5])
def test_empty_matrices_are_pruned(keep, shrink):
    for shape in ((0, 4), (4, 0), (0, 3, 3)):
        assert prune(np.zeros(shape), (2, 2), keep, shrink=shrink).shape == shape


def test_pruning_keeps_the_dtype():
    for dtype in (np.float16, np.float32, np.int32, bool):
        assert prune(np.eye(4, dtype=dtype), (2, 2), 1).dtype == dtype


def test_the_blocks_of_wide_matrices_are_counted(monkeypatch):
    monkeypatch.setattr(blocksparse, "_cost", lambda shape, size, dtype, n_cols: (0.0, 1.0))
    w = np.zeros((4, 40))
    w[0, 4] = w[1, 0] = 1.0
    _, costs = blocksparse.best_block_shape(w, [(1, 1), (1, 4)], 3, full_output=True)
    assert [cost.n_blocks for cost in costs] == [2, 2]
    for shape in ((0, 4), (4, 0)):
        _, costs = blocksparse.best_block_shape(np.zeros(shape), [(1, 1)], 3, full_output=True)
        assert costs[0][1:3] == (0, 0.0)


def test_the_quickest_of_several_calls_counts(monkeypatch):
    """Of fifteen, however long one takes."""
    now, calls = [0.0], []
    monkeypatch.setattr(blocksparse, "perf_counter", lambda: now[0])

    def call():
        calls.append(1)
        now[0] += 0.25 if len(calls) == 3 else 0.5

    assert blocksparse._quickest(call) == 0.25
    assert len(calls) == 15


def test_costs_that_noise_turned_around(monkeypatch):
    """A product of more blocks that took less time: nothing is free, nothing negative."""
    for times in ([5.0, 1.0], [0.0, 3.0], [0.0, 0.0]):
        left = iter(times)
        monkeypatch.setattr(blocksparse, "_quickest", lambda product, left=left: next(left))
        per_row, per_block = blocksparse._cost.__wrapped__((8, 8), (512, 512), "float32", 3)
        assert per_row >= 0.0
        assert per_block >= max(times[1] / (4 * 64 * 64 // 10) / 10, 1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_costs_are_those_of_the_precision_and_the_columns(dtype, monkeypatch):
    asked = []
    monkeypatch.setattr(blocksparse, "_cost", lambda *args: asked.append(args[2:]) or (1.0, 1.0))
    blocksparse.best_block_shape(np.eye(4, dtype=dtype), [(1, 1), (2, 2)], 5)
    assert asked == [(np.dtype(dtype).name, 5)] * 2


def test_costs_are_those_of_one_precision_and_thread(monkeypatch):
    products = []
    monkeypatch.setattr(blocksparse, "_quickest", lambda product: products.append(product) or 1.0)
    blocksparse._cost.__wrapped__((8, 8), (512, 512), "float32", 3)
    for product in products:
        matrix, (x,), options = product.func.__self__, product.args, product.keywords
        assert {matrix.dtype, x.dtype, options["out"].dtype} == {np.dtype(np.float32)}
        assert options["workers"] == 1
    assert len(products) == 2


@pytest.mark.parametrize("block", [(1, 1), (1, 32), (20, 5), (32, 1), (64, 64)], ids=str)
def test_workers_sample_and_weigh(block, monkeypatch):
    """Several threads give the bits of one."""
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    rng = np.random.default_rng(5)
    grid = -(-150 // block[0]), -(-130 // block[1])
    pattern = BlockPattern(rng.random(grid) < 0.4, block, (150, 130))
    q, k, v = (rng.standard_normal(s) for s in ((150, 7), (130, 7), (130, 9)))
    one = pattern.sample(q, k, workers=1)
    for workers in (2, 3, 7):
        found = pattern.sample(q, k, workers=workers)
        np.testing.assert_array_equal(found.blocks(), one.blocks())
        soft = found.softmax(workers=workers)
        np.testing.assert_array_equal(soft.blocks(), one.softmax(workers=1).blocks())
        np.testing.assert_array_equal(
            pattern.attention(q, k, v, workers=workers), pattern.attention(q, k, v, workers=1)
        )


GUARDED = '''
import ctypes, math, mmap
import numpy as np
from conehoyer import blocksparse

libc, page, held = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE, []


def guarded(shape, dtype=float):
    """Zeros right before a page that nobody may touch."""
    dtype, shape = np.dtype(dtype), shape if isinstance(shape, tuple) else (shape,)
    size = math.prod(shape) * dtype.itemsize
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    held.append(memory)
    last = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + room
    assert libc.mprotect(ctypes.c_void_p(last), page, 0) == 0
    return np.frombuffer(memory, np.uint8)[room - size : room].view(dtype).reshape(shape)


class Guarded:
    def __getattr__(self, name):
        return getattr(np, name)

    def zeros(self, shape, dtype=float):
        return guarded(shape, dtype)

    def append(self, *arrays):
        whole = np.append(*arrays)
        own = guarded(whole.shape, whole.dtype)
        own[:] = whole
        return own


rng = np.random.default_rng(0)
made = []
for block in [(1, 1), (1, 32), (2, 3), (8, 1), (16, 16), (20, 5), (32, 1), (3, 10)]:
    for m, n in ((37, 70), (64, 64), (5, 3)):
        grid = -(-m // block[0]), -(-n // block[1])
        made.append((block, (m, n), rng.random(grid) < 0.6))
blocksparse.np, blocksparse._empty = Guarded(), guarded
for block, (m, n), kept in made:
    for dtype in (np.float32, np.float64):
        pattern = blocksparse.BlockPattern(kept, block, (m, n))
        q, k = (rng.standard_normal((side, 5)).astype(dtype) for side in (m, n))
        dense = np.where(np.kron(kept, np.ones(block))[:m, :n], q @ k.T, 0)
        np.testing.assert_allclose(pattern.sample(q, k).to_dense(), dense, atol=1e-5)
        for bs in (pattern.sample(q, k), pattern.sample(q, k).softmax()):
            for columns in (1, 3, 16, 33):
                x = rng.standard_normal((n, columns)).astype(dtype)
                for operand in (x, np.asfortranarray(x)):
                    for packed in (True, False):
                        own = guarded(x.shape[::-1], dtype).T if operand is not x else None
                        own = guarded(x.shape, dtype) if own is None else own
                        own[:] = x
                        blocksparse.kernels.pays = lambda *args: packed
                        result = bs.matmul(own, bias=np.ones(m))
                        np.testing.assert_allclose(result, bs.to_dense() @ x + 1, atol=1e-3)
for block in [(31, 4), (19, 8), (2, 31), (4, 9), (1, 17)]:
    for dtype in (np.float32, np.float64):
        pattern = blocksparse.BlockPattern(np.ones((2, 2)), block)
        q, k = (rng.standard_normal((2 * side, 3)).astype(dtype) for side in block)
        np.testing.assert_allclose(pattern.sample(q, k).to_dense(), q @ k.T, atol=1e-5)
print("done")
'''


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is protected by mprotect")
def test_kernels_stay_within_their_memory():
    """Tiles reach beyond the edges, but not farther than the zeros there."""
    done = subprocess.run([sys.executable, "-c", GUARDED], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


def test_dense_matrices_are_contiguous():
    """Also where blocks reach beyond the edges."""
    assert compress(np.ones((5, 7)), (2, 3)).to_dense().flags.c_contiguous


def test_workers_are_checked_where_one_is_enough():
    """Every product passes them on, however small it is."""
    bs, x = compress(np.eye(4, dtype=np.float32), (2, 2)), np.ones((4, 3), np.float32)
    for call in (
        functools.partial(bs.matmul, x),
        functools.partial(bs.matmul, x[:, 0]),
        functools.partial(bs.matmul, x.astype(float)),  # in the wider precision
        functools.partial(bs.matmul, np.stack([x, x])),
        functools.partial(bs.pattern.sample, x, x),
        functools.partial(bs.pattern.attention, x, x, x),
        bs.softmax,
    ):
        call(workers=2)
        with pytest.raises(ValueError, match="workers must be"):
            call(workers=0)


def test_more_workers_than_rows_of_blocks(monkeypatch):
    """No share is empty: each packs what it reads."""
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    w, x = np.eye(8), np.random.default_rng(0).standard_normal((8, 3))
    bs, shares = compress(w, (4, 4)), []
    monkeypatch.setattr(
        blocksparse,
        "run_parts",
        lambda task, parts: [task(*p) for p in shares.append(parts) or parts],
    )
    np.testing.assert_array_equal(bs.matmul(x, workers=1000), x)
    assert [part[:2] for part in shares[0]] == [(0, 1), (1, 2)]


class OnGPU:
    """NumPy would take it: Numba's arrays, and JAX's, go to the host by a copy."""

    shape, dtype, ndim = (4, 4), np.dtype(np.float64), 2
    __cuda_array_interface__ = {"shape": shape, "typestr": "<f8", "data": (4096, False)}  # noqa: RUF012

    def __array__(self, dtype=None, copy=None):
        return np.eye(4)


def test_arrays_of_a_gpu_are_refused():
    x, b = OnGPU(), blocksparse.compress(np.eye(4), (2, 2))
    for name, call in {
        "w": lambda: blocksparse.compress(x, (2, 2)),
        "kept": lambda: BlockPattern(x, (1, 1)),
        "x": lambda: b @ x,
        "bias": lambda: b.matmul(np.ones(4), bias=x),
    }.items():
        with pytest.raises(TypeError, match=f"{name} lies on a GPU"):
            call()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_exponential_is_right_to_about_one_unit_in_the_last_place(dtype):
    rng = np.random.default_rng(0)
    least = -105.0 if dtype == np.float32 else -750.0  # beyond the smallest subnormal number
    x = np.concatenate([rng.uniform(least, 0, 200_000), -np.exp(rng.uniform(-40, 3, 200_000))])
    x = x.astype(dtype)
    found = x.copy()
    exponentials = numba.njit(lambda values: kernels._exponentials(values, 0, values.size))
    exponentials(found)
    exact = np.exp(x.astype(np.longdouble))
    assert (np.abs(found - exact) <= 1.25 * np.spacing(exact.astype(dtype))).all()
    special = np.array([0.0, -0.0, 9 * least, -np.inf, np.nan], dtype)
    exponentials(special)
    np.testing.assert_array_equal(special, [1, 1, 0, 0, np.nan])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [(1, 7), (3, 5), (8, 2), (16, 4), (24, 3), (32, 32), (64, 1)])
def test_softmax_of_any_blocks(block, dtype):
    rng = np.random.default_rng(block)
    m, n = (count * side - (side > 1) for count, side in zip((5, 6), block, strict=True))
    kept = rng.random((5, 6)) < 0.5
    kept[2] = False
    pattern = BlockPattern(kept, block, (m, n))
    q, k = (rng.uniform(-2, 2, (size, 4)).astype(dtype) for size in (m, n))
    scores = pattern.sample(q, k, scale=1.0)
    inside = np.kron(kept, np.ones(block, bool))[:m, :n]
    dense = np.where(inside, scores.to_dense().astype(np.longdouble), -np.inf)
    with np.errstate(invalid="ignore"):
        expected = np.exp(dense - dense.max(axis=1, keepdims=True))
        expected = np.where(inside, expected / expected.sum(axis=1, keepdims=True), 0)
    soft = scores.softmax().to_dense()
    # The differences to the largest score, up to 32, are rounded.
    np.testing.assert_allclose(soft, expected.astype(dtype), rtol=40 * np.finfo(dtype).eps)


@pytest.mark.parametrize("workers", [2, 3])
def test_heads_have_the_same_bits_for_any_number_of_workers(workers, monkeypatch):
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    rng = np.random.default_rng(workers)
    pattern = BlockPattern(rng.random((4, 4)) < 0.6, (8, 8))
    for heads in ((), (1,), (2, 3), (0,)):
        q, k, v = (rng.standard_normal((*heads, 32, 5)) for _ in range(3))
        alone = pattern.attention(q, k, v, workers=1)
        np.testing.assert_array_equal(pattern.attention(q, k, v, workers=workers), alone)
    with pytest.raises(ValueError, match="workers must be"):
        pattern.attention(q, k, v, workers=0)


def test_every_part_of_attention_takes_the_workers(monkeypatch):
    """The products, the softmax, and the product with the values."""
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    shared = []

    def run_split(task, count, workers):
        shared.append(workers)
        task(0, count)

    def run_parts(task, parts):
        shared.append(len(parts))
        for part in parts:
            task(*part)

    monkeypatch.setattr(blocksparse, "run_split", run_split)
    monkeypatch.setattr(blocksparse, "run_parts", run_parts)
    pattern = BlockPattern(np.tri(12, dtype=bool), (1, 2))
    pattern.attention(np.ones((12, 3)), np.ones((24, 3)), np.ones((24, 1)), workers=3)
    assert shared == [3, 3, 3]


def test_each_number_of_workers_has_its_own_shares(monkeypatch):
    """They are kept with the pattern, for later products by as many."""
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    bs, x, shared = compress(np.ones((12, 4)), (1, 4)), np.ones((4, 1)), []
    monkeypatch.setattr(blocksparse, "run_parts", lambda task, parts: shared.append(len(parts)))
    for workers in (2, 3, 2):
        bs.matmul(x, workers=workers)
    assert shared == [2, 3, 2]


def test_errors_tell_the_keys_of_a_sample_from_the_queries():
    pattern = BlockPattern(np.eye(2), (2, 3))
    good = np.ones((4, 2)), np.ones((6, 2))
    for place, name in enumerate("qk"):
        for bad, error in ((np.ones(2), ValueError), (good[place] * 1j, TypeError)):
            operands = list(good)
            operands[place] = bad
            with pytest.raises(error, match=f"^{name} must"):
                pattern.sample(*operands)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_kept_blocks_are_told_by_any_real_numbers(dtype):
    pattern = BlockPattern(np.eye(3, dtype=dtype), (2, 2))
    np.testing.assert_array_equal(pattern.kept, np.eye(3, dtype=bool))


@pytest.mark.parametrize("workers", [1, 2])
def test_attention_warns_of_nothing_in_any_thread(workers, monkeypatch):
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    pattern = BlockPattern(np.eye(2), (2, 2))
    q, k, v = np.ones((2, 4, 3)), np.ones((4, 3)), np.ones((4, 2))
    q[:, 0, 0] = np.inf
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # of this thread
        warnings.simplefilter("error")
        found = pattern.attention(q, k, v, scale=0.0, workers=workers)
    np.testing.assert_array_equal(np.isnan(found[:, :, 0]), [[True, False, False, False]] * 2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shrink", [False, True])
def test_what_is_not_finite_is_not_pruned(bad, shrink):
    w = np.ones((4, 4))
    w[1, 2] = bad
    with pytest.raises(ValueError, match="w must be finite"):
        blocksparse.prune(w, (2, 2), 2, shrink=shrink)


def test_what_is_pruned_has_no_sign():
    result = blocksparse.prune([[-1.0, 2.0], [-3.0, -4.0]], (1, 2), 1)
    np.testing.assert_array_equal(result, [[0.0, 0.0], [-3.0, -4.0]])
    assert not np.signbit(result[0]).any()


@pytest.mark.parametrize("shrink", [False, True])
def test_pruning_takes_workers(shrink):
    with pytest.raises(ValueError, match="workers must be"):
        blocksparse.prune(np.ones((4, 4)), (2, 2), 2, shrink=shrink, workers=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [(3, 32), (16, 32)], ids=str)
def test_softmax_of_long_rows_of_blocks(block, dtype):
    """As of single rows: the sums are in float64, whatever the height of the blocks."""
    scores = np.full((block[0], 1 << 16), -17.5, dtype)
    scores[:, 0] = 0.0
    small = np.exp(-17.5)
    largest = 1.0 / (1.0 + (scores.shape[1] - 1) * small)  # 0.998
    weights = compress(scores, block).softmax().to_dense()
    tolerance = 1e-6 if dtype == np.float32 else 1e-10
    np.testing.assert_allclose(weights[:, 0], largest, rtol=tolerance)
    np.testing.assert_allclose(weights[:, 1:], small * largest, rtol=tolerance)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("block", [(5, 4), (9, 2), (20, 5)], ids=str)
def test_tiles_beyond_a_row_of_blocks_write_nothing_there(block, turned, monkeypatch):
    """Another worker may have written these rows already."""
    monkeypatch.setattr(blocksparse, "_PARALLEL_FROM", 0)
    rng = np.random.default_rng(9)
    w, x = sparse(rng, (90, 40), block, 0.6), rng.standard_normal((40, 37))
    bs, x = compress(w, block), np.asfortranarray(x) if turned else x
    one = bs.matmul(x, workers=1)
    check_product(one, w, x)
    monkeypatch.setattr(
        blocksparse, "run_parts", lambda task, parts: [task(*part) for part in parts[::-1]]
    )
    for workers in (2, 3):
        np.testing.assert_array_equal(bs.matmul(x, workers=workers), one)


def test_bfloat16_becomes_float32():
    """As `prune` returns it: compressed, as an operand, in attention, and in a cost model."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    w = blocksparse.prune(
        np.random.default_rng(0).standard_normal((6, 8)).astype(ml_dtypes.bfloat16), (2, 2), 5
    )
    assert w.dtype == ml_dtypes.bfloat16
    wide = w.astype(np.float32)
    bs = compress(w, (2, 2))
    assert bs.dtype == np.float32
    np.testing.assert_array_equal(bs.to_dense(), wide)
    for product, expected in (
        (bs @ w.T, bs @ wide.T),
        (w.T @ bs, wide.T @ bs),
        (bs.matmul(w.T, bias=w[:, 0]), bs.matmul(wide.T, bias=wide[:, 0])),
        (bs.astype(np.float64) @ w.T, bs.astype(np.float64) @ wide.T.astype(np.float64)),
    ):
        np.testing.assert_array_equal(product, expected, strict=True)
    pattern = BlockPattern(np.eye(3), (2, 2))
    np.testing.assert_array_equal(
        pattern.attention(w, w, w), pattern.attention(wide, wide, wide), strict=True
    )
    assert blocksparse.best_block_shape(w, [(2, 2)], 4) == (2, 2)
