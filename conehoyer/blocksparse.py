"""Block-sparse matrices: kept as their nonzero blocks, multiplied by kernels for the block shape.

Examples
--------
>>> import numpy as np
>>> from conehoyer import blocksparse
>>> rng = np.random.default_rng(0)
>>> w = blocksparse.prune(rng.standard_normal((64, 48)), (16, 1), 0.25)
>>> bs = blocksparse.compress(w, (16, 1))
>>> bs
<BlockSparse: 64 x 48, float64, 48 of 192 blocks of (16, 1)>
>>> x = rng.standard_normal((48, 10))
>>> np.allclose(bs @ x, w @ x)
True
"""

import functools
import io
import math
import numbers
import operator
import os
from collections.abc import Iterable
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from ._checks import MOST, as_array, borrowed, check_out, fill, integer, real, result_dtype
from ._cpu import across, tiles
from ._cpu import blocksparse as kernels
from ._cpu.simd import PLAIN as _PLAIN
from ._threads import resolve_workers, run_parts, run_split

__all__ = [
    "BlockPattern",
    "BlockSparse",
    "ShapeCost",
    "best_block_shape",
    "compress",
    "from_scipy",
    "load",
    "prune",
]

_PARALLEL_FROM = 1 << 23  # multiplications below which one thread is faster
_KINDS = (np.dtype(np.float32), np.dtype(np.float64))


def _sides(value, name, least) -> tuple[int, int]:
    """Check for two integers that are at least `least`."""
    try:
        height, width = (operator.index(side) for side in value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be two integers, got {value!r}") from None
    if min(height, width) < least:
        raise ValueError(f"the sides of {name} must be >= {least}, got {value!r}")
    if max(height, width) > MOST:
        raise ValueError(f"the sides of {name} must be <= {MOST}, got {value!r}")
    return height, width


def _block_shape(block_shape, name="block_shape") -> tuple[int, int]:
    return _sides(block_shape, name, 1)


def _within(block_shape, shape) -> tuple[int, int]:
    """The block shape, no larger than the matrix: its zeros beyond would be stored and multiplied.

    It stays as it is along a side of 0, where there are no blocks.
    """
    height, width = (min(part, side or part) for part, side in zip(block_shape, shape, strict=True))
    return height, width


def _scale(scale, dtype):
    """A factor as the kernels take it."""
    number = real(scale, "scale")
    with np.errstate(over="ignore", under="ignore"):
        factor = dtype.type(number)
    if not np.isfinite(factor):
        raise ValueError(f"scale must be finite in {dtype}, got {scale!r}")
    return factor


def _matrix(w, name="w") -> np.ndarray:
    """Check for a matrix of real numbers; float32 and float64 are kept."""
    w = as_array(w, name)
    if w.ndim != 2:
        raise ValueError(f"{name} must be a matrix, got shape {w.shape}")
    return _cast(w, _work_dtype(w.dtype, name))


def _cast(array, dtype):
    """The array in this dtype, as it lies."""
    if array.dtype is dtype:
        return array
    with np.errstate(over="ignore", under="ignore"):  # of long double; they become inf, or 0
        return array.astype(dtype, copy=False)


def _work_dtype(dtype, name) -> np.dtype:
    if (dtype.kind == "f" and dtype.itemsize <= 4) or dtype.name == "bfloat16":
        return _KINDS[0]
    if dtype.kind in "fiub":
        return _KINDS[1]
    raise TypeError(f"{name} must have a real floating, integer or boolean dtype, got {dtype}")


class BlockPattern:
    """Which blocks of a matrix are kept.

    Parameters
    ----------
    kept : array_like of bool, shape (R, C)
        For each block whether it is kept.  `conehoyer.project_bilevel` gives it as
        ``info.kept``, for ``groups=block_shape``.
    block_shape : tuple of int
        Height and width of a block.  A side that is larger than that of the matrix counts as, and
        is reported as, that of the matrix.
    shape : tuple of int, optional
        Shape of the matrix; by default all blocks are whole.  Blocks at its right and lower
        edge may be smaller.

    Attributes
    ----------
    shape : tuple of int
        Shape of the matrix.
    block_shape : tuple of int
        Height and width of a block, at most those of the matrix.
    grid : tuple of int
        How many rows and columns of blocks there are.
    n_blocks : int
        How many blocks are kept.
    kept : ndarray of bool
        For each block whether it is kept.

    Raises
    ------
    ValueError
        If `kept` is not a matrix, or not one entry for each block of a matrix of that shape, or a
        side is out of range.
    TypeError
        If `kept` is neither boolean nor real, or `block_shape` or `shape` is not two integers.

    See Also
    --------
    compress : The nonzero blocks of a matrix, with their values; it has a pattern.

    Examples
    --------
    An attention mask that is causal by blocks of 2 × 2 (within a block all see each other, unless
    ``causal=True`` is given too):

    >>> import numpy as np
    >>> from conehoyer.blocksparse import BlockPattern
    >>> pattern = BlockPattern(np.tri(3, dtype=bool), (2, 2))
    >>> pattern
    <BlockPattern: 6 x 6, 6 of 9 blocks of (2, 2)>
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 6, 4))
    >>> weights = pattern.sample(q, k).softmax()
    >>> np.allclose(weights.to_dense().sum(axis=1), 1)
    True
    >>> np.allclose(pattern.attention(q, k, v), pattern.sample(q, k, scale=0.5).softmax() @ v)
    True
    """

    def __init__(self, kept, block_shape, shape=None) -> None:
        self.block_shape = height, width = _block_shape(block_shape)
        kept = as_array(kept, "kept")
        if kept.dtype.kind not in "biuf":
            raise TypeError(f"kept must be booleans, got dtype {kept.dtype}")
        kept = kept.astype(bool)
        if kept.ndim != 2:
            raise ValueError(f"kept must be a matrix, got shape {kept.shape}")
        if shape is None:
            shape = kept.shape[0] * height, kept.shape[1] * width
        self.shape = _sides(shape, "shape", 0)
        if kept.shape != self.grid:
            raise ValueError(
                f"kept must have shape {self.grid} for a matrix of shape {self.shape} in blocks of "
                f"{self.block_shape}, got {kept.shape}"
            )
        self.block_shape = _within(self.block_shape, self.shape)
        rows, self.indices = (place.astype(np.intp) for place in np.nonzero(kept))
        self.indptr = np.searchsorted(rows, np.arange(self.grid[0] + 1))

    @classmethod
    def _of(cls, shape, block_shape, indptr, indices):
        self = object.__new__(cls)
        self.shape, self.block_shape = shape, block_shape
        self.indptr, self.indices = indptr, indices
        return self

    def __reduce__(self):  # without what is made when asked for
        return self._of, (self.shape, self.block_shape, self.indptr, self.indices)

    def __repr__(self):
        return f"<{type(self).__name__}: {self._describe()}>"

    def _describe(self, kind=""):
        grid = math.prod(self.grid)
        return "{} x {}, {}{} of {} blocks of {}".format(
            *self.shape, kind, self.n_blocks, grid, self.block_shape
        )

    @property
    def grid(self) -> tuple[int, int]:
        """How many rows and columns of blocks there are."""
        (m, n), (height, width) = self.shape, self.block_shape
        return -(-m // height), -(-n // width)

    @property
    def n_blocks(self) -> int:
        """How many blocks are kept."""
        return self.indices.size

    @property
    def kept(self) -> np.ndarray:
        """For each block whether it is kept: a boolean matrix."""
        kept = np.zeros(self.grid, bool)
        kept[self._rows, self.indices] = True
        return kept

    @property
    def _rows(self) -> np.ndarray:
        """Row of blocks of each block."""
        return np.repeat(np.arange(self.indptr.size - 1), np.diff(self.indptr))

    @functools.cached_property
    def _by_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """The blocks column by column, and where each column begins."""
        order = np.argsort(self.indices, kind="stable")
        return order, np.searchsorted(self.indices[order], np.arange(self.grid[1] + 1))

    @functools.cached_property
    def _edges(self) -> dict[int, np.ndarray]:
        return {}

    def _shares(self, workers, n, wide) -> list:
        """Rows of blocks from and to, and columns from and to if `wide` says so, of each worker.

        Tiles of `wide` of the n columns, where they can be dealt out evenly: each worker packs its
        own.  Else rows of blocks, with about the same number of blocks.
        """
        columns = (0, n) if wide else ()
        if workers == 1:
            return [(0, self.grid[0], *columns)]
        strips = -(-n // max(wide, 1))
        if wide and (strips % workers == 0 or strips >= 4 * workers):
            edges = [min(strips * w // workers * wide, n) for w in range(workers + 1)]
            return [(0, self.grid[0], *share) for share in pairwise(edges)]
        return [(*share, *columns) for share in pairwise(self._row_edges(workers))]

    def _row_edges(self, workers) -> np.ndarray:
        if workers not in self._edges:
            work = self.indptr + np.arange(self.indptr.size)
            goals = work[-1] * np.arange(1, workers) / workers
            edges = np.searchsorted(work, goals)
            edges = np.concatenate(([0], edges, [self.indptr.size - 1]))
            self._edges[workers] = np.unique(edges)  # an empty share would pack x all the same
        return self._edges[workers]

    def sample(self, q, k, *, scale=1.0, workers=None) -> "BlockSparse":
        """Compute the kept blocks of ``scale * q @ k.T``.

        Parameters
        ----------
        q : array_like, shape (M, D)
            Queries, one a row.
        k : array_like, shape (N, D)
            Keys.
        scale : float, default: 1.0
            Factor of the products.
        workers : int, optional
            Number of threads, see `set_workers`.

        Returns
        -------
        BlockSparse of shape (M, N)
            The products; in the precision of float32 if both arrays are of that kind.

        Raises
        ------
        ValueError
            If the shapes don't fit, or scale is not finite.
        TypeError
            If an array is not real, or scale is not a real number.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import BlockPattern
        >>> pattern = BlockPattern(np.eye(2), (1, 2))
        >>> pattern.sample([[1.0], [2.0]], [[1.0], [2.0], [3.0], [4.0]]).to_dense()
        array([[1., 2., 0., 0.],
               [0., 0., 6., 8.]])
        """
        q, k = _matrix(q, "q"), _matrix(k, "k")
        (m, n), (height, width) = self.shape, self.block_shape
        if q.shape[0] != m or k.shape[0] != n or q.shape[1] != k.shape[1]:
            raise ValueError(
                f"q and k must have shapes ({m}, D) and ({n}, D), got {q.shape} and {k.shape}"
            )
        dtype = np.result_type(q, k)
        layout, lanes = _layout(self), tiles.lanes_of(dtype)
        turned = height < min(width, lanes)
        low, long = (height, width) if turned else (width, layout.tall)
        count, deep = kernels.sampling(low, long, lanes)
        with np.errstate(all="ignore"):  # as in the products, and in a thread of ours
            q = np.multiply(q, _scale(scale, dtype), dtype=dtype)
        queries, keys = (q, self.grid[0] * height), (k, self.grid[1] * width)
        one, other = (queries, keys) if turned else (keys, queries)
        # Zeros beyond the edges, as far as tiles may reach.
        left = np.zeros((one[1] + count, q.shape[1]), dtype)
        right = np.zeros((q.shape[1], other[1] + deep * lanes), dtype)
        left[: len(one[0])], right[:, : len(other[0])] = one[0], other[0].T
        values = _room(layout, dtype, self.n_blocks)
        given = (0,) * count, (0,) * deep, turned, left, right, layout, values
        task = functools.partial(kernels.sample, *given)
        work = self.n_blocks * height * width * q.shape[1]
        run_split(task, self.n_blocks, _threads(workers, work))
        return BlockSparse(self, values, layout)

    def attention(self, q, k, v, *, scale=None, causal=False, workers=None) -> np.ndarray:
        """Attention of which only the kept blocks are computed.

        Parameters
        ----------
        q : array_like, shape (..., M, D)
            Queries.
        k : array_like, shape (..., N, D)
            Keys.
        v : array_like, shape (..., N, E)
            Values.
        scale : float, optional
            Factor of the products q·kᵀ; by default 1/√D.
        causal : bool, default: False
            Whether query i attends to keys j ≤ i alone, also inside a block.
        workers : int, optional
            Number of threads, see `set_workers`.

        Returns
        -------
        ndarray of shape (..., M, E)
            ``softmax(scale * q @ k.T) @ v``, where entries outside the pattern, and later ones
            if `causal`, count as −∞.  A row that keeps none is zero.  One whose kept products
            are all −∞ is NaN.

        Raises
        ------
        ValueError
            If the shapes don't fit, or scale is not finite.
        TypeError
            If an array is not real, or scale is not a real number.

        Notes
        -----
        The product with v adds up its terms one by one, in float32 for arrays of that kind: over
        a row of a million equal weights it may lose 1 %.

        All kept blocks are computed, also those that `causal` hides: leave blocks that lie
        right of the diagonal out of the pattern.

        Examples
        --------
        Each block of two tokens attends to itself:

        >>> import numpy as np
        >>> from conehoyer.blocksparse import BlockPattern
        >>> pattern = BlockPattern(np.eye(2), (2, 2))
        >>> pattern.attention(np.ones((4, 3)), np.ones((4, 3)), np.eye(4))
        array([[0.5, 0.5, 0. , 0. ],
               [0.5, 0.5, 0. , 0. ],
               [0. , 0. , 0.5, 0.5],
               [0. , 0. , 0.5, 0.5]])
        """
        q, k, v = (as_array(each, name) for each, name in ((q, "q"), (k, "k"), (v, "v")))
        if min(q.ndim, k.ndim, v.ndim) < 2:
            raise ValueError(f"q, k and v must be matrices, got {q.ndim}, {k.ndim}, {v.ndim} axes")
        m, n = self.shape
        if (q.shape[-2], *k.shape[-2:], v.shape[-2]) != (m, n, q.shape[-1], n):
            raise ValueError(
                f"q, k and v must have shapes (..., {m}, D), (..., {n}, D) and (..., {n}, E), "
                f"got {q.shape}, {k.shape} and {v.shape}"
            )
        try:
            batch = np.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        except ValueError:
            raise ValueError(
                "the leading axes of q, k and v must broadcast, "
                f"got {q.shape}, {k.shape} and {v.shape}"
            ) from None
        q, k, v = (np.broadcast_to(each, batch + each.shape[-2:]) for each in (q, k, v))
        if scale is None:
            scale = 1.0 / math.sqrt(max(q.shape[-1], 1))
        dtype = np.result_type(*(_work_dtype(each.dtype, "q, k, v") for each in (q, k, v)))
        scale = _scale(scale, dtype)  # also where the batch is empty
        out = np.empty((*batch, m, v.shape[-1]), dtype)
        workers = resolve_workers(workers)  # also where the batch is empty
        # Threads that share the heads wait for each other's Python: of short heads it is slower.
        for place in np.ndindex(batch):
            weights = self.sample(q[place], k[place], scale=scale, workers=workers)
            weights = weights.softmax(causal=causal, workers=workers)
            weights.matmul(v[place], out=out[place], workers=workers)
        return out


class BlockSparse:
    """A matrix of which only the nonzero blocks are kept.

    Made by `compress`, `from_scipy`, `load` or `BlockPattern.sample`.  ``bs @ x`` and ``x @ bs``
    are products with dense arrays, by kernels that are compiled for the shape of the blocks.

    Attributes
    ----------
    shape : tuple of int
        Shape of the matrix.
    dtype : dtype
        The type of the values, float32 or float64.
    block_shape : tuple of int
        Height and width of a block, at most those of the matrix.
    n_blocks : int
        How many blocks are kept.
    density : float
        The part of all blocks that is kept.
    nbytes : int
        Bytes of the values and of the places of the blocks.
    pattern : BlockPattern
        Which blocks are kept.
    T : BlockSparse
        The transposed matrix, made at the first use.

    See Also
    --------
    compress : Make one from a dense matrix.
    prune : Set all but some blocks of a dense matrix to zero.
    best_block_shape : Find the fastest shape of the blocks for a matrix.

    Notes
    -----
    A tile of the result is kept in vector registers while the blocks of its rows go by; zeros
    cost nothing.  Every entry is added up in the order of the columns, with one rounding a term,
    so the result is the same for any number of workers.  Fastest are blocks whose height is a
    multiple of 8, and dense operands whose rows are contiguous; or for blocks at least as high
    as a register (16 float32 with AVX-512), operands whose columns are contiguous, as a batch of
    activations has them: ``(bs @ x.T).T`` copies nothing.  Other layouts are copied, unless the
    matrix is wide and short: a contiguous operand of which hardly a row is read twice is read
    where it lies.

    For N dense columns the work is 2·N operations an entry of the blocks kept.  A matrix of blocks
    of one row and at least eight columns makes a second copy of its values, in another order, at
    its first product.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer import blocksparse
    >>> w = np.zeros((4, 6))
    >>> w[:2, 3] = 1.0, 2.0
    >>> bs = blocksparse.compress(w, (2, 1))
    >>> bs @ np.arange(6.0)
    array([3., 6., 0., 0.])
    >>> np.ones((1, 4)) @ bs
    array([[0., 0., 0., 3., 0., 0.]])
    >>> bs.T.shape, bs.n_blocks, bs.density
    ((6, 4), 1, 0.08333333333333333)
    """

    __array_ufunc__ = None  # so that ndarray @ bs comes here

    def __array__(self, dtype=None, copy=None):  # else NumPy makes an array of one object
        raise TypeError(f"{self!r} is not made an array by itself: pass its to_dense()")

    def __init__(self, pattern, values, layout):
        self.pattern = pattern
        self._values, self._layout = values, layout

    @classmethod
    def _from_blocks(cls, pattern, blocks):
        """Take blocks in the order of the pattern."""
        layout = _layout(pattern)
        values = _room(layout, blocks.dtype, pattern.n_blocks)
        view = _view(values, layout, pattern.n_blocks)
        view[:, :, : layout.height] = blocks.transpose(0, 2, 1)
        return cls(pattern, values, layout)

    def __reduce__(self):
        # Copies in other orders are made again; and how far the values reach beyond the blocks
        # depends on the registers of this machine.
        return self._from_blocks, (self.pattern, self.blocks())

    def __repr__(self):
        return f"<BlockSparse: {self.pattern._describe(f'{self.dtype}, ')}>"

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        return self.pattern.shape

    @property
    def block_shape(self) -> tuple[int, int]:
        """Height and width of a block, at most those of the matrix."""
        return self.pattern.block_shape

    @property
    def dtype(self) -> np.dtype:
        """Type of the values, float32 or float64."""
        return self._values.dtype

    @property
    def n_blocks(self) -> int:
        """How many blocks are kept."""
        return self.pattern.n_blocks

    @property
    def density(self) -> float:
        """The part of all blocks that is kept."""
        return self.n_blocks / max(math.prod(self.pattern.grid), 1)

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of the places of the blocks."""
        return self._values.nbytes + self.pattern.indices.nbytes + self.pattern.indptr.nbytes

    def blocks(self) -> np.ndarray:
        """Copy the blocks.

        Returns
        -------
        ndarray of shape (n_blocks, height, width)
            Sorted by row and column.  Blocks at the edges are filled up with zeros.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> compress(np.diag([1.0, 2.0, 3.0]), (1, 3)).blocks()[1]
        array([[0., 2., 0.]])
        """
        (m, n), (height, width), pattern = self.shape, self.block_shape, self.pattern
        held = _view(self._values, self._layout, self.n_blocks)
        blocks = held[:, :, :height].transpose(0, 2, 1).copy()
        # `BlockPattern.sample` and `softmax` leave anything beyond the edges.
        if m % height:
            blocks[pattern._rows == m // height, m % height :] = 0
        if n % width:
            blocks[pattern.indices == n // width, :, n % width :] = 0
        return blocks

    def to_dense(self) -> np.ndarray:
        """Make the matrix with its zeros.

        Returns
        -------
        ndarray of shape (M, N)
            A new array.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> compress(np.eye(2), (1, 1)).to_dense()
        array([[1., 0.],
               [0., 1.]])
        """
        (rows, columns), (height, width) = self.pattern.grid, self.block_shape
        dense = np.zeros((rows, columns, height, width), self.dtype)
        dense[self.pattern._rows, self.pattern.indices] = self.blocks()
        dense = dense.transpose(0, 2, 1, 3).reshape(rows * height, columns * width)
        return np.ascontiguousarray(dense[: self.shape[0], : self.shape[1]])

    def to_scipy(self) -> Any:
        """Make a `scipy.sparse.bsr_array`.

        Returns
        -------
        scipy.sparse.bsr_array
            With blocks of the same shape.

        Raises
        ------
        ValueError
            If the blocks don't divide the shape.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> compress(np.eye(4), (2, 2)).to_scipy().blocksize
        (2, 2)
        """
        from scipy import sparse

        if any(side % part for side, part in zip(self.shape, self.block_shape, strict=True)):
            raise ValueError(
                f"scipy's BSR needs blocks that divide the shape, got {self.block_shape} and "
                f"{self.shape}"
            )
        places = self.pattern.indices.copy(), self.pattern.indptr.copy()
        return sparse.bsr_array((self.blocks(), *places), shape=self.shape)

    def save(self, file) -> None:
        """Write an ``.npz`` file, which `load` reads.

        Parameters
        ----------
        file : str, path or file object
            Where to.

        Examples
        --------
        >>> import io
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> file = io.BytesIO()
        >>> compress(np.eye(4), (2, 2)).save(file)
        >>> file.tell() > 0
        True
        """
        np.savez(
            file, blocks=self.blocks(), indices=self.pattern.indices, indptr=self.pattern.indptr,
            shape=self.shape, block_shape=self.block_shape,
        )  # fmt: skip

    def astype(self, dtype) -> "BlockSparse":
        """Copy with values of another precision.

        Parameters
        ----------
        dtype : dtype
            The type float32 or float64.

        Returns
        -------
        BlockSparse
            Of the same pattern.

        Raises
        ------
        TypeError
            If dtype is another one.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> compress(np.eye(4), (2, 2)).astype(np.float32).dtype
        dtype('float32')
        """
        dtype = np.dtype(dtype)
        if dtype not in _KINDS:
            raise TypeError(f"dtype must be float32 or float64, got {dtype}")
        return self._from_blocks(self.pattern, self.blocks().astype(dtype))

    @functools.cached_property
    def T(self) -> "BlockSparse":  # noqa: N802 (NumPy's name)
        """The transposed matrix, made at the first use."""
        pattern = self.pattern
        turned, indptr = pattern._by_columns
        mirror = BlockPattern._of(
            self.shape[::-1], self.block_shape[::-1], indptr, pattern._rows[turned]
        )
        return self._from_blocks(mirror, self.blocks()[turned].transpose(0, 2, 1))

    def softmax(self, *, causal=False, workers=None) -> "BlockSparse":
        """Softmax along the rows, over the kept entries alone.

        Parameters
        ----------
        causal : bool, default: False
            Whether entries right of the diagonal, (i, j) with j > i, count as −∞.
        workers : int, optional
            Number of threads, see `set_workers`.

        Returns
        -------
        BlockSparse
            Of the same pattern; each row that keeps an entry sums to 1, unless all that it
            keeps is −∞: that gives NaN.  What is right of the diagonal is 0 if `causal`.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> compress(np.array([[3.0, 3.0, 0.0, 0.0]]), (1, 2)).softmax().to_dense()
        array([[0.5, 0.5, 0. , 0. ]])
        >>> compress(np.ones((3, 3)), (1, 3)).softmax(causal=True).to_dense().round(2)
        array([[1.  , 0.  , 0.  ],
               [0.5 , 0.5 , 0.  ],
               [0.33, 0.33, 0.33]])
        """
        layout, values = self._layout, self._values
        result = _room(layout, self.dtype, self.n_blocks)
        given = values, layout, self.shape[1], bool(causal), result
        task = functools.partial(kernels.softmax, *given)
        run_split(task, self.pattern.grid[0], _threads(workers, 32 * values.size))
        return BlockSparse(self.pattern, result, layout)

    def __matmul__(self, x):
        return self.matmul(x)

    def __rmatmul__(self, x):
        x, height = as_array(x), self.shape[0]
        if x.ndim == 0 or x.shape[-1] != height:
            raise ValueError(f"x must have shape (..., {height}), got {x.shape}")
        if x.ndim == 1:
            return self.T.matmul(x)
        flat = x.reshape(math.prod(x.shape[:-1]), height)
        return self.T.matmul(flat.T).T.reshape(*x.shape[:-1], self.shape[1])

    def matmul(self, x, *, bias=None, out=None, workers=None) -> np.ndarray:
        """Multiply with a dense vector, matrix or stack of matrices.

        Parameters
        ----------
        x : array_like, shape (N,) or (..., N, K)
            The dense operand.
        bias : array_like, shape (M,), optional
            Added to each column of the product.
        out : ndarray, optional
            Array for the result; it may overlap x and bias.
        workers : int, optional
            Number of threads, see `set_workers`.

        Returns
        -------
        ndarray of shape (M,) or (..., M, K)
            The product, in the wider of the two precisions, at most float64.  Without `out` its
            rows or its columns are contiguous, whichever takes less time.

        Raises
        ------
        ValueError
            If the shapes don't fit.
        TypeError
            If x is not an array of real numbers.

        Examples
        --------
        >>> import numpy as np
        >>> from conehoyer.blocksparse import compress
        >>> bs = compress([[0.0, 2.0], [0.0, 3.0]], (2, 1))
        >>> out = np.empty((2, 1))
        >>> bs.matmul([[1.0], [10.0]], bias=[5.0, 0.0], out=out) is out
        True
        >>> out
        array([[25.],
               [30.]])
        """
        if isinstance(x, BlockSparse):
            raise TypeError("x must be dense, got a BlockSparse: pass x.to_dense()")
        x = as_array(x)
        (height, length), upright = self.shape, x.ndim > 1
        if x.ndim == 0 or x.shape[-2 if upright else 0] != length:
            raise ValueError(f"x must have shape ({length},) or (..., {length}, K), got {x.shape}")
        dtype = self.dtype
        if x.dtype is not dtype:
            dtype = np.result_type(dtype, _work_dtype(x.dtype, "x"))
        if dtype != self.dtype:
            return self.astype(dtype).matmul(x, bias=bias, out=out, workers=workers)
        shape = (*x.shape[:-2], height, x.shape[-1]) if upright else (height,)
        if out is not None:
            check_out(out, shape, dtype)
        if bias is not None:
            bias = as_array(bias, "bias")
            if bias.shape != (height,):
                raise ValueError(f"bias must have shape ({height},), got {bias.shape}")
            _work_dtype(bias.dtype, "bias")
            if out is not None and np.may_share_memory(bias, out):
                bias = bias.copy()
        x = _cast(x, dtype)
        goal = None if out is None or np.may_share_memory(x, out) else np.asarray(out)
        if x.ndim > 2:
            result = np.empty(shape, dtype) if goal is None else goal
            for place in np.ndindex(shape[:-2]):
                self.matmul(x[place], bias=bias, out=result[place], workers=workers)
        elif upright:
            result = self._multiply(x, bias, goal, workers)
        else:
            column = None if goal is None else goal[:, None]
            result = self._multiply(x[:, None], bias, column, workers)[:, 0]
        if out is None:
            return result
        if not np.may_share_memory(result, out):
            fill(out, result)  # a masked array keeps its mask, as in the other case
        return out

    def _multiply(self, x, bias, out, workers):
        """The product with a matrix, in `out` if that lies as the kernel wants it."""
        n, lanes = x.shape[1], tiles.lanes_of(self.dtype)
        shape, layout = (self.shape[0], n), self._layout
        by_columns = x.T.flags.c_contiguous and not x.flags.c_contiguous
        # Read where it lies, x may be turned for blocks of any height, and must be for few columns.
        packed = _PLAIN or self._packs(n, by_columns)
        high = layout.height >= lanes or not packed
        turned = not _PLAIN and high and (by_columns or n < lanes)
        upright = turned and not (packed or by_columns)
        by_columns = turned or by_columns
        if out is None or not (out.T if by_columns else out).flags.c_contiguous:
            out = _empty(shape[::-1], self.dtype).T if by_columns else _empty(shape, self.dtype)
        if 0 in shape:
            return out
        x = borrowed(x)
        count = _threads(workers, n * self.n_blocks * layout.height * layout.width)
        given = self._values, layout, self._start(bias)
        wide = 0  # columns of a tile, where each worker may have some of them
        packing = (0,) if packed else ()
        if turned:
            rows, vecs = kernels.turned_tiling(layout.height, layout.width, lanes, n, packed)
            wide = rows
            x = np.ascontiguousarray(x if upright else x.T)
            given = packing, upright, *given, x, out.T
            given = (0,) * rows, (0,) * vecs, (0,) * min(rows, lanes), *given
            kernel = kernels.multiply_columns
        else:
            goal = _empty(shape, self.dtype) if by_columns else out
            if _PLAIN:
                kernel, given = kernels.multiply_plainly, (*given, np.ascontiguousarray(x), goal)
            else:
                if packed and layout.height == 1 and layout.width >= kernels.GATHERED and n > 1:
                    rows, vecs = kernels.tiling(kernels.GATHERED, layout.width, lanes, n)
                    kernel, given = kernels.multiply_gathered, self._gathered + given[2:]
                    given = by_columns, *given
                else:
                    rows, vecs = kernels.tiling(layout.height, self._depth, lanes, n, packed)
                    wide = vecs * lanes
                    kernel, given = kernels.multiply, (packing, by_columns, *given)
                x = x.T if by_columns else np.ascontiguousarray(x)
                given = (0,) * rows, (0,) * vecs, (0,) * lanes, *given, x, goal
        shares = self.pattern._shares(count, n, wide)
        run_parts(functools.partial(kernel, *given), tuple(shares))
        if not turned and by_columns:
            _transpose(goal, out.T, count)
        return out

    def _packs(self, n, by_columns):
        """Whether the kernel is to pack x, or to read it where it lies."""
        layout, lanes = self._layout, tiles.lanes_of(self.dtype)
        uses = self.n_blocks * layout.width / max(self.shape[1], 1)
        gathered = layout.height == 1 and layout.width >= kernels.GATHERED
        low = by_columns and layout.height < lanes
        if not by_columns and n >= lanes:  # each tile of a block reads it anew
            uses *= layout.tall / kernels.tiling(layout.height, self._depth, lanes, n, False)[0]
        elif low and n >= lanes and not gathered:  # single entries of x for idle lanes
            uses *= 2
        return kernels.pays(uses, self.shape[1], low)

    @property
    def _depth(self):
        """Rows of x that a row of blocks reads, on average."""
        return self.n_blocks * self._layout.width / max(self.pattern.grid[0], 1)

    @functools.cached_property
    def _gathered(self):
        """A copy of the values column by column, the layout, and where the blocks are."""
        order, edges = self.pattern._by_columns
        values = _room(self._layout, self.dtype, self.n_blocks + kernels.GATHERED)
        view = _view(values, self._layout, self.n_blocks)
        np.take(_view(self._values, self._layout, self.n_blocks), order, axis=0, out=view)
        tops = np.append(self.pattern._rows[order], np.zeros(kernels.GATHERED, np.intp))
        return values, self._layout, tops, edges

    def _start(self, bias):
        """What the sums begin with: the bias, zeros behind it as far as tiles may reach."""
        size = self.pattern.grid[0] * self._layout.height + self._layout.tall
        size += 2 * tiles.lanes_of(self.dtype)
        start = np.zeros(size, self.dtype)
        if bias is not None:
            fill(start[: bias.size], bias)
        return start


def _transpose(x, result, workers):
    run_split(functools.partial(across.transpose_rows, x, result), x.shape[0], workers)


def _threads(workers, work) -> int:
    workers = resolve_workers(workers)
    return workers if work >= _PARALLEL_FROM else 1


def _layout(pattern):
    """What the kernels need to know of a pattern."""
    height, width = pattern.block_shape
    tall = kernels.rounded(height)
    return kernels.Layout(height, width, tall, pattern.indices, pattern.indptr)


def _room(layout, dtype, n_blocks):
    """Zeros for the values, from the beginning of a cache line on.

    Kernels may read, not write, two registers beyond the values.
    """
    room = _empty((n_blocks * layout.width * layout.tall + 2 * tiles.lanes_of(dtype),), dtype)
    room[:] = 0.0
    return room


def _empty(shape, dtype):
    """An array from the beginning of a cache line on."""
    size, line = math.prod(shape), kernels.LINE // dtype.itemsize
    room = np.empty(size + line, dtype)
    ahead = -(room.ctypes.data // dtype.itemsize) % line
    return room[ahead : ahead + size].reshape(shape)


def _view(values, layout, n_blocks):
    size = n_blocks * layout.width * layout.tall
    return values[:size].reshape(n_blocks, layout.width, layout.tall)


def compress(w, block_shape) -> BlockSparse:
    """Keep the blocks of a matrix that are not zero.

    Parameters
    ----------
    w : array_like, shape (M, N)
        The matrix.  float32 and float64 are kept, narrower floats become float32, integers
        float64.
    block_shape : tuple of int
        Height and width of a block.  Blocks at the right and lower edge may be smaller, and none
        is stored larger than the matrix.

    Returns
    -------
    BlockSparse
        The same matrix.  A block with a NaN is kept.

    Raises
    ------
    TypeError, ValueError
        If w is not a matrix of real numbers, or block_shape not two positive integers.

    See Also
    --------
    prune : Set blocks to zero first.
    best_block_shape : Which shape is fastest.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer.blocksparse import compress
    >>> compress(np.eye(5), (2, 2))
    <BlockSparse: 5 x 5, float64, 3 of 9 blocks of (2, 2)>
    """
    if type(w).__module__.startswith("scipy.sparse"):
        raise TypeError("w must be dense: from_scipy takes a scipy.sparse container")
    w = _matrix(w)
    height, width = _within(_block_shape(block_shape), w.shape)
    rows, columns = -(-w.shape[0] // height), -(-w.shape[1] // width)
    if w.shape != (rows * height, columns * width):
        whole = np.zeros((rows * height, columns * width), w.dtype)
        whole[: w.shape[0], : w.shape[1]] = w
    else:
        whole = w
    grid = whole.reshape(rows, height, columns, width)
    kept = (grid != 0).any(axis=(1, 3))
    pattern = BlockPattern(kept, (height, width), w.shape)
    return BlockSparse._from_blocks(pattern, grid.transpose(0, 2, 1, 3)[kept])


def from_scipy(a, block_shape=None) -> BlockSparse:
    """Make a block-sparse matrix of a sparse one.

    Parameters
    ----------
    a : scipy.sparse array or matrix
        In any format.  Explicit zeros stay in the pattern, except those of the DIA format, which
        SciPy drops; duplicates are added up.
    block_shape : tuple of int, optional
        Height and width of a block, which must divide the shape unless it is BSR with these
        blocks; by default those of a BSR array.

    Returns
    -------
    BlockSparse
        The same matrix.

    Raises
    ------
    TypeError
        If `a` is not sparse, or not BSR and block_shape is missing.
    ValueError
        If `a` is not a matrix, block_shape does not divide its shape, or an index of `a` is out of
        range.

    See Also
    --------
    BlockSparse.to_scipy : The way back.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from conehoyer.blocksparse import from_scipy
    >>> from_scipy(sparse.csr_array(np.eye(6)), (3, 2))
    <BlockSparse: 6 x 6, float64, 4 of 6 blocks of (3, 2)>
    """
    from scipy import sparse

    if not sparse.issparse(a):
        raise TypeError(f"a must be a scipy.sparse container, got {type(a).__name__}")
    if len(a.shape) != 2:
        raise ValueError(f"a must be a matrix, got shape {a.shape}")
    if block_shape is None:
        if a.format != "bsr":
            raise TypeError(f"block_shape is needed, since a is {a.format}, not BSR")
        block_shape = a.blocksize
    block_shape = _block_shape(block_shape)
    if any(side % part for side, part in zip(a.shape, block_shape, strict=True)):
        raise ValueError(f"block_shape must divide the shape {a.shape}, got {block_shape}")
    a = a.tobsr(blocksize=block_shape, copy=True)
    a.sum_duplicates()
    blocks = _cast(a.data, _work_dtype(a.dtype, "a"))
    return _from_arrays("a", blocks, a.indices, a.indptr, a.shape, block_shape)  # SciPy checks none


def load(file) -> BlockSparse:
    """Read what `BlockSparse.save` wrote.

    Parameters
    ----------
    file : str, path or file object
        Where from.

    Returns
    -------
    BlockSparse
        The matrix that was saved.

    Raises
    ------
    ValueError
        If the file holds something else, or contradicts itself.
    TypeError
        If it is a file object in text mode.

    See Also
    --------
    BlockSparse.save : Write such a file.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from conehoyer import blocksparse
    >>> file = io.BytesIO()
    >>> blocksparse.compress(np.eye(4), (2, 2)).save(file)
    >>> _ = file.seek(0)
    >>> blocksparse.load(file)
    <BlockSparse: 4 x 4, float64, 2 of 4 blocks of (2, 2)>
    """
    if isinstance(file, io.TextIOBase):
        raise TypeError(f"file must be in binary mode, got {file!r}")
    names = "blocks", "indices", "indptr", "shape", "block_shape"
    try:
        held = np.load(_as_saved(file), allow_pickle=False)
        if isinstance(held, np.ndarray):
            raise ValueError("it holds a single array")
        with held:
            files = held.files
            found = {name: held[name] for name in names if name in files}
    except (OSError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen kinds
        # NumPy's advice for what is no such file is dangerous.
        said = "it is none" if "pickled" in str(error) else error
        raise ValueError(f"file cannot be read as .npz: {said}") from error
    if len(found) < len(names):
        raise ValueError(f"file must hold {', '.join(names)}, got {', '.join(files)}")
    return _from_arrays("file", *(found[name] for name in names))


def _as_saved(file):
    """The file that `save` has written to: NumPy gives a name that has no suffix one."""
    if isinstance(file, str | os.PathLike) and not os.path.isfile(file):
        named = f"{os.fspath(file)}.npz"
        return named if os.path.exists(named) else file
    return file


def _from_arrays(name, blocks, indices, indptr, shape, block_shape) -> BlockSparse:
    """The matrix that these arrays describe, checked; errors name where they come from."""
    # np.load gives bytes for a member that is not in .npy format.
    blocks, *places = (np.asarray(a) for a in (blocks, indices, indptr, shape, block_shape))
    indices, indptr, shape, block_shape = places
    good = (
        all(a.dtype.kind in "iu" and a.ndim == 1 for a in places)
        and shape.size == block_shape.size == 2
        and shape.min() >= 0
        and block_shape.min() >= 1
    )
    if good:
        sides, parts = tuple(map(int, shape)), tuple(map(int, block_shape))
        indices, indptr = indices.astype(np.intp), indptr.astype(np.intp)
        pattern = BlockPattern._of(sides, parts, indptr, indices)
        rows, columns = pattern.grid
        kind = blocks.dtype.newbyteorder("=")
        good = (
            kind in _KINDS
            and blocks.shape == (indices.size, *parts)
            and indptr.shape == (rows + 1,)
            and indptr[0] == 0
            and indptr[-1] == indices.size
            and bool((indptr[1:] >= indptr[:-1]).all())  # differences might wrap around
            and bool(((indices >= 0) & (indices < columns)).all())
            and bool(((np.diff(indices) > 0) | (np.diff(pattern._rows) > 0)).all())
        )
    if not good:
        raise ValueError(f"{name}: its arrays describe no block-sparse matrix")
    pattern.block_shape = height, width = _within(parts, sides)
    blocks = blocks[:, :height, :width]  # older files have blocks larger than the matrix
    return BlockSparse._from_blocks(pattern, blocks.astype(kind, copy=False))


def prune(w, block_shape, keep, *, inner="l2", shrink=False, workers=None) -> np.ndarray:
    """Set all but some blocks of a matrix to zero.

    The blocks that stay are those with the largest norms, as `conehoyer.project_bilevel` keeps
    them at the level that `conehoyer.level_for_groups` finds.

    Parameters
    ----------
    w : array_like, shape (..., M, N)
        The matrix; each one of a stack by itself.
    block_shape : tuple of int
        Height and width of a block.
    keep : float or int
        A float in (0, 1] is the part of the blocks that stays, rounded to the nearest number
        of blocks, an int the number; at least one stays.  Of blocks whose norms, as they are
        computed, tie the first stay.
    inner : {"l2", "linf", "l1"}, default: "l2"
        Norm of a block.
    shrink : bool, default: False
        Whether to return the projection itself, which also shrinks what it keeps.  With ties at
        the edge, or norms that are tiny beside the largest, it may keep fewer blocks.
    workers : int, optional
        Number of threads, see `set_workers`.

    Returns
    -------
    ndarray
        The pruned matrix, dense.

    Raises
    ------
    ValueError
        If keep is out of range, w is not finite, or an argument has the wrong shape.
    TypeError
        If keep is no number, w is not real, or block_shape is not two integers.

    See Also
    --------
    conehoyer.project_bilevel : The projection.
    compress : Keep only the blocks that are not zero.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer.blocksparse import prune
    >>> prune([[1.0, 2.0, 0.1], [3.0, 4.0, 5.0]], (2, 1), 2)
    array([[0. , 2. , 0.1],
           [0. , 4. , 5. ]])
    """
    from .bilevel import largest_groups, level_for_groups, project_bilevel

    w = as_array(w, "w")
    height, width = block_shape = _block_shape(block_shape)
    if w.ndim < 2:
        raise ValueError(f"w must have at least two dimensions, got shape {w.shape}")
    result_dtype(w.dtype, "w")
    if not np.isfinite(w).all():
        raise ValueError("w must be finite, got NaN or inf")
    number = -(-w.shape[-2] // height) * -(-w.shape[-1] // width)
    if not isinstance(keep, numbers.Real) or isinstance(keep, bool):
        raise TypeError(f"keep must be a number, got {keep!r}")
    if isinstance(keep, numbers.Integral):
        count = int(keep)
    elif 0.0 < float(keep) <= 1.0:
        count = max(round(float(keep) * number), 1)
    else:
        raise ValueError(f"keep must be a part in (0, 1] or a number of blocks, got {keep!r}")
    if not 1 <= count <= max(number, 1):
        raise ValueError(f"keep must be between 1 and the {number} blocks, got {keep!r}")
    if shrink:
        level = level_for_groups(w, count, groups=block_shape, inner=inner)
        return project_bilevel(w, level, groups=block_shape, inner=inner, workers=workers)
    mask = largest_groups(w, count, block_shape, inner, workers)
    return np.where(mask, w, np.zeros((), w.dtype))


class ShapeCost(NamedTuple):
    """What a block shape costs, as `best_block_shape` estimates it.

    Attributes
    ----------
    block_shape : tuple of int
        Height and width of a block.
    n_blocks : int
        How many blocks are not zero.
    density : float
        The part of all blocks that is not zero.
    seconds : float
        Estimated time of a product on one thread.

    Examples
    --------
    >>> from conehoyer.blocksparse import best_block_shape
    >>> best, costs = best_block_shape([[1.0, 0.0]], [(1, 1)], 4, full_output=True)
    >>> costs[0].n_blocks, costs[0].density
    (1, 0.5)
    """

    block_shape: tuple[int, int]
    n_blocks: int
    density: float
    seconds: float


def best_block_shape(
    w,
    shapes: Iterable[tuple[int, int]],
    n_cols: int,
    *,
    full_output: bool = False,
) -> Any:
    """Find the block shape with which a sparse matrix multiplies fastest.

    Small blocks hold fewer zeros, large ones cost less an entry.  What a block of each shape costs
    is measured on this machine, on random patterns of two densities, once a process; the
    estimate for w is that, times the blocks that are not zero, and a cost for each row of blocks.

    Parameters
    ----------
    w : array_like, shape (M, N)
        The matrix, with its zeros.
    shapes : iterable of tuple of int
        The shapes to choose from.
    n_cols : int
        Columns of the dense operand.
    full_output : bool, default: False
        Whether to return the estimates too.

    Returns
    -------
    best : tuple of int
        The shape with the lowest estimate.
    costs : list of ShapeCost
        The estimates, in the order of `shapes`, seconds on one thread; only if full_output.

    Raises
    ------
    ValueError
        If there are no shapes, n_cols is not positive, or w is not a matrix.
    TypeError
        If shapes are not pairs of integers, n_cols is no integer, or w is not real.

    See Also
    --------
    compress : Make use of the shape.

    Examples
    --------
    >>> import numpy as np
    >>> from conehoyer.blocksparse import best_block_shape
    >>> w = np.kron(np.random.default_rng(0).random((16, 16)) < 0.1, np.ones((64, 64)))
    >>> best_block_shape(w, [(1, 1), (64, 64), (1024, 1024)], 64)
    (64, 64)
    """
    w = _matrix(w)
    if not np.iterable(shapes):
        raise TypeError(f"shapes must be several block shapes, got {shapes!r}")
    shapes = [_block_shape(shape, f"shapes[{i}]") for i, shape in enumerate(shapes)]
    if not shapes:
        raise ValueError("shapes must name at least one block shape")
    n_cols = integer(n_cols, "n_cols", 1)
    places, costs = np.argwhere(w), []
    for shape in shapes:
        height, width = shape
        stored = _within(shape, w.shape)
        size = tuple(  # small ones are all overhead; one block must be whole
            min(max(side, 512), max(part, 1024)) for side, part in zip(w.shape, stored, strict=True)
        )
        per_row, per_block = _cost(stored, size, w.dtype.name, n_cols)
        rows, columns = -(-w.shape[0] // height), -(-w.shape[1] // width)
        kept = np.unique(places[:, 0] // height * columns + places[:, 1] // width).size
        seconds = per_row * rows + per_block * kept
        costs.append(ShapeCost(shape, kept, kept / max(rows * columns, 1), seconds))
    best = min(costs, key=lambda cost: cost.seconds).block_shape
    return (best, costs) if full_output else best


def _quickest(call, seconds=0.02) -> float:
    """The least time that a call took in a while longer than another process's turn."""
    best, runs, end = math.inf, 0, perf_counter() + seconds
    while runs < 15 or perf_counter() < end:
        start = perf_counter()
        call()
        best, runs = min(best, perf_counter() - start), runs + 1
    return best


@functools.cache
def _cost(shape, size, dtype, n_cols) -> tuple[float, float]:
    """Seconds for a row of blocks, and for a block."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size[1], n_cols)).astype(dtype)
    grid = -(-size[0] // shape[0]), -(-size[1] // shape[1])
    number = grid[0] * grid[1]
    few = number // 10
    points = []
    for count in (few, max(4 * number // 10, few + 1)):  # of one block none, and one
        kept = rng.permutation(number) < count
        pattern = BlockPattern(kept.reshape(grid), shape, size)
        blocks = np.ones((pattern.n_blocks, *pattern.block_shape), dtype)
        bs = BlockSparse._from_blocks(pattern, blocks)
        out = bs @ x
        product = functools.partial(bs.matmul, x, out=out, workers=1)
        points.append((pattern.n_blocks, _quickest(product)))
    (few, quick), (many, slow) = points
    per_block = max((slow - quick) / max(many - few, 1), slow / max(many, 1) / 10, 1e-12)
    return max(quick - few * per_block, 0.0) / grid[0], per_block
