"""Results too large for the caches, which are written past them: the bits are those in place."""

import numpy as np
import oracle
import pytest

from conehoyer import project_bilevel, project_cai, project_l1_ball, project_simplex
from conehoyer._cpu import passes

ENTRIES = (passes.FAR >> 3) + 11  # float32 numbers; with the result twice as many bytes


def framed(shape, dtype, shift):
    """An array that begins `shift` entries after a cache line does, and what surrounds it."""
    size = int(np.prod(shape))
    frame = np.full(size + 64, 7.0, dtype)
    first = -frame.ctypes.data // frame.itemsize % (64 // frame.itemsize) + shift
    return frame[first : first + size].reshape(shape), frame, first


def check(project, x, shift, workers=1):
    """The result in `out` has the bits of the one in place, and nothing else is written."""
    out, frame, first = framed(x.shape, x.dtype, shift)
    assert passes.beyond_caches(x, out)
    assert project(x, out=out, workers=workers) is out
    assert (frame[:first] == 7.0).all()
    assert (frame[first + x.size :] == 7.0).all()
    y = x.copy()
    assert not passes.beyond_caches(y, y)
    project(y, out=y)
    assert out.tobytes() == y.tobytes()
    return out


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("shift", [0, 1, 15])
@pytest.mark.parametrize("project", [project_cai, project_l1_ball, project_simplex])
def test_vectors(project, shift, workers):
    x = np.random.default_rng(shift).standard_normal(ENTRIES).astype(np.float32)
    wanted = 1.2e6 if project is project_cai else 1.3e6
    out = check(lambda x, **options: project(x, wanted, **options), x, shift, workers)
    assert 0.1 < np.count_nonzero(out) / out.size < 0.9


def test_against_the_oracle():
    x = np.random.default_rng(3).standard_normal(ENTRIES // 2 + 1)
    out = check(lambda x, **options: project_cai(x, 5e5, **options), x, 5)
    np.testing.assert_allclose(out, oracle.project_cai(x, 5e5), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("columns", [33, 1001, 4096, 5001])
@pytest.mark.parametrize("workers", [1, 2])
def test_rows(columns, workers):
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((ENTRIES // columns + 1, columns)).astype(np.float32)
    check(lambda x, **options: project_cai(x, 0.3 * columns, **options), x, 3, workers)


@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (4, 4), (16, 16), (3, 5)])
@pytest.mark.parametrize("inner", ["linf", "l2"])
@pytest.mark.parametrize("workers", [1, 2])
def test_matrices(groups, inner, workers):
    x = np.random.default_rng(7).standard_normal((ENTRIES // 2051 + 1, 2051)).astype(np.float32)
    x *= np.random.default_rng(8).random(x.shape[1])

    def project(x, **options):
        return project_bilevel(x, 300.0, groups=groups, inner=inner, **options)

    out = check(project, x, 9, workers)
    assert 0.0 < np.count_nonzero(out) / out.size < 0.9


def test_entries_across_cache_lines():
    """A result that no register can be streamed to is written as small ones are."""
    x = np.random.default_rng(1).standard_normal(ENTRIES).astype(np.float32)
    out = np.zeros(4 * ENTRIES + 1, np.uint8)[1:].view(np.float32)
    assert not passes.beyond_caches(x, out)
    expected = project_cai(x, 1e6)
    project_cai(x, 1e6, out=out)
    assert out.tobytes() == expected.tobytes()
