"""The bilevel projection against plain NumPy with explicit labels, and its identities."""

import tracemalloc
from functools import partial

import hypothesis.extra.numpy as hnp
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import conehoyer as ch
from conehoyer import _groups, bilevel
from conehoyer._cpu import groups as kernels

KINDS = ["columns", "rows", "diagonals"]
KINDS += [(1, 1), (1, 3), (1, 7), (2, 3), (4, 4), (3, 100), (100, 1)]
INNER = {"linf": np.max, "l2": lambda a: np.sqrt(np.sum(a * a)), "l1": np.sum}


def labels_of(groups, rows, columns):
    """The group of each entry."""
    i, j = np.indices((rows, columns))
    if groups == "columns":
        return j
    if groups == "rows":
        return i
    if groups == "diagonals":
        return j - i + rows - 1
    height, width = groups
    return i // height * -(-columns // width) + j // width


def reference(y, labels, inner, level=None, radius=None, feasible=False):
    """One matrix, group by group, in long double: result, radii and norms."""
    y = np.asarray(y, np.longdouble)
    count = labels.max() + 1
    members = [labels == g for g in range(count)]
    norms = np.array([INNER[inner](np.abs(y[own])) if own.any() else 0 for own in members])
    if radius is not None:
        u = oracle.project_l1_ball(norms, radius)
    else:
        u = oracle.project_cai(norms, level)
        if feasible and oracle.hoyer_score(norms) > level:
            u = np.minimum(u * (norms.max() / u.max()), norms)
    x = np.array(y)
    for own, v, r in zip(members, norms, u, strict=True):
        if r < v:
            if inner == "linf":
                x[own] = np.sign(y[own]) * np.minimum(np.abs(y[own]), r)
            elif inner == "l2":
                x[own] = y[own] * (r / v)
            else:
                x[own] = oracle.project_l1_ball(y[own], r)
    return x.astype(float), u.astype(float), norms.astype(float)


@pytest.mark.parametrize("groups", KINDS, ids=str)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (9, 1), (7, 11), (40, 33)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_against_plain_numpy(groups, inner, shape, order):
    rng = np.random.default_rng(len(str(groups)) + shape[1])
    y = np.asarray(rng.standard_normal(shape), order=order)
    labels = labels_of(groups, *shape)
    _, _, norms = reference(y, labels, inner, radius=1e9)
    score = float(oracle.hoyer_score(norms))
    for kwargs in (
        {"level": max(0.4 * score, 1.0)},
        {"level": max(0.4 * score, 1.0), "feasible": True},
        {"level": 1.0},
        {"radius": 0.2 * norms.sum()},
        {"radius": 0.0},
    ):
        x, info = ch.project_bilevel(y, **kwargs, groups=groups, inner=inner, full_output=True)
        expected, u, _ = reference(y, labels, inner, **kwargs)
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12 * np.abs(y).max())
        radii = np.broadcast_to(info.radii, info.kept.shape)
        np.testing.assert_allclose(radii.ravel(), u, rtol=0, atol=1e-12 * norms.max())
        np.testing.assert_array_equal(info.kept.ravel(), u > 0)
        mask = np.broadcast_to(info.mask, shape)
        np.testing.assert_array_equal(mask, (u > 0)[labels])
        assert not np.any(x[~mask])
        assert not np.any(np.signbit(x[~mask]))  # +0.0


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("groups", ["columns", "diagonals", (600, 2), (512, 3)], ids=str)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("scale", [1.0, 2.0**-525, 2.0**520])  # squares under- and overflow
def test_groups_taller_than_a_piece(groups, inner, workers, scale):
    # The rows are cut in pieces, and the largest entries lie in the first one.
    y = np.random.default_rng(15).standard_normal((1100, 130)) * np.linspace(9, 1, 1100)[:, None]
    labels = labels_of(groups, *y.shape)
    norms = np.zeros(labels.max() + 1)
    if inner == "linf":
        np.maximum.at(norms, labels, np.abs(y))
    else:
        np.add.at(norms, labels, np.abs(y) if inner == "l1" else y * y)
        norms = np.sqrt(norms) if inner == "l2" else norms
    radius = 0.3 * norms.sum()
    _, info = ch.project_bilevel(
        y * scale, radius=radius * scale, groups=groups, inner=inner, workers=workers,
        full_output=True,
    )  # fmt: skip
    expected, radii = oracle.project_l1_ball(norms, radius).astype(float), info.radii.ravel()
    np.testing.assert_allclose(radii / scale, expected, rtol=0, atol=1e-11 * norms.max())


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("shape", [(1700, 1), (1700, 2), (1025, 40), (1537, 600), (600, 1537)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_diagonals_that_cross_pieces(shape, order, inner, monkeypatch):
    monkeypatch.setattr(_groups, "PARALLEL_FROM", 0)
    rng = np.random.default_rng(shape)
    y = np.asarray(rng.standard_normal(shape), order=order)
    labels = labels_of("diagonals", *shape)
    expected, wanted = ch.project_bilevel(y, 9.0, groups=labels, inner=inner, full_output=True)
    results = [
        ch.project_bilevel(
            y, 9.0, groups="diagonals", inner=inner, workers=workers, full_output=True
        )
        for workers in (1, 2, 3)
    ]
    for x, info in results:
        np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(info.radii, wanted.radii, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(x, results[0][0])
        np.testing.assert_array_equal(info.radii, results[0][1].radii)
    counts = [ch.level_for_groups(y, 9, groups=g, inner=inner) for g in ("diagonals", labels)]
    np.testing.assert_allclose(*counts, rtol=1e-12)


def test_memory_for_the_diagonals_of_a_tall_matrix(monkeypatch):
    y = np.random.default_rng(0).standard_normal((40_000, 2))
    data = _groups.matrices(y)
    parts = _groups.parse("diagonals", data)
    pieces = kernels.pieces_of(parts.kind, parts.height, len(y))
    room = kernels.width_of_piece(parts.kind, parts.width, *y.shape, parts.number)
    assert pieces * room < 2 * parts.number
    monkeypatch.setattr(_groups, "PARALLEL_FROM", 0)
    for inner in (_groups.INNER["linf"], _groups.INNER["l2"]):
        args = y, parts, inner, 2
        wanted, _ = _groups.norms(*args)  # compiles
        tracemalloc.start()
        try:
            norms, _ = _groups.norms(*args)
            assert tracemalloc.get_traced_memory()[1] < 3 * norms.nbytes
        finally:
            tracemalloc.stop()
        np.testing.assert_array_equal(norms, wanted)


def test_diagonals_of_a_million_rows():
    # With room for all diagonals in each piece it would take 15 GB.
    y = np.random.default_rng(0).standard_normal((1_000_000, 2))
    x = ch.project_bilevel(y, radius=1e5, groups="diagonals")
    wide = ch.project_bilevel(y.T, radius=1e5, groups="diagonals")  # in Fortran order
    np.testing.assert_array_equal(x, wide.T)
    norms = np.append(0.0, np.abs(y[:, 0]))  # from the highest diagonal on
    norms[:-1] = np.maximum(norms[:-1], np.abs(y[:, 1]))
    u = ch.project_l1_ball(norms, 1e5)
    expected = np.minimum(np.abs(y), np.column_stack([u[1:], u[:-1]]))
    np.testing.assert_allclose(np.abs(x), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [7, 4096, 9000, 8209])  # the last one is prime
@pytest.mark.parametrize("inner", INNER)
def test_matrices_of_one_column_or_one_row(count, inner):
    y = np.random.default_rng(count).standard_normal((count, 1))
    kinds = [("columns", "rows"), ("rows", "columns"), ((5, 1), (1, 5)), ((100, 3), (3, 100))]
    for groups, other in kinds:
        given = {"inner": inner, "full_output": True}
        x, info = ch.project_bilevel(y, 3.0, groups=groups, **given)
        row, about = ch.project_bilevel(y.T, 3.0, groups=other, **given)
        np.testing.assert_array_equal(x, row.T)
        np.testing.assert_array_equal(info.radii, about.radii.T)
        np.testing.assert_array_equal(info.mask, about.mask.T)
        labels = labels_of(groups, *y.shape)
        expected = ch.project_bilevel(y, 3.0, groups=labels, inner=inner)
        np.testing.assert_allclose(x, expected, rtol=1e-12, atol=1e-12)
        batch = np.stack([y, -2 * y])
        results = ch.project_bilevel(batch[:, :, ::-1], 3.0, groups=groups, inner=inner)
        np.testing.assert_array_equal(results[0], x)
        np.testing.assert_array_equal(results[1], -2 * x)


def test_matrices_of_one_column_are_read_as_rows():
    def seen(shape, groups):
        data = _groups.matrices(np.ones(shape))
        return _groups.parse(groups, data).seen(_groups.source(data)).shape[1:]

    for shape, columns, rows in (
        ((9000, 1), "columns", "rows"), ((1, 9000), "rows", "columns"),
    ):  # fmt: skip
        assert seen(shape, columns) == (1, 9000)
        assert seen(shape, rows) == (3, 3000)  # else all that is kept for a row leaves the cache
        assert seen(shape, "diagonals") == (1, 9000)
    assert seen((9000, 1), (300, 1)) == (3, 3000)
    assert seen((8209, 1), "rows") == (1, 8209)
    assert seen((9000, 2), "columns") == (9000, 2)


@pytest.mark.parametrize("groups", KINDS, ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_labels_reproduce_every_kind(groups, inner):
    y = np.random.default_rng(0).standard_normal((17, 14))
    labels = labels_of(groups, *y.shape)
    plain = ch.project_bilevel(y, 2.0, groups=groups, inner=inner)
    by_label = ch.project_bilevel(y, 2.0, groups=labels, inner=inner)
    np.testing.assert_allclose(by_label, plain, rtol=0, atol=1e-14)


def test_rows_are_the_columns_of_the_transpose():
    y = np.random.default_rng(1).standard_normal((60, 50))
    for inner in INNER:
        rows = ch.project_bilevel(y, 5.0, groups="rows", inner=inner)
        columns = ch.project_bilevel(np.ascontiguousarray(y.T), 5.0, inner=inner)
        np.testing.assert_allclose(rows, columns.T, rtol=0, atol=1e-12)
        # the same matrix in Fortran order is the same problem for the kernels
        np.testing.assert_array_equal(ch.project_bilevel(y.T, 5.0, inner=inner), rows.T)


def test_single_entries_are_the_vector_projection_clipped():
    y = np.random.default_rng(2).standard_normal((30, 20))
    level = ch.level_for_nnz(y, 50, axis=None)
    x = ch.project_bilevel(y, level, groups=(1, 1))
    p = ch.project_cai(y, level, axis=None)
    np.testing.assert_allclose(x, np.clip(p, -abs(y), abs(y)), rtol=0, atol=1e-14)
    ball = ch.project_bilevel(y, radius=10.0, groups=(1, 1))
    np.testing.assert_allclose(ball, ch.project_l1_ball(y, 10.0, axis=None), rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("inner", INNER)
def test_feasible_holds_its_level(dtype, inner):
    rng = np.random.default_rng(3)
    worst = 0.0
    for _ in range(120):
        shape = rng.integers(1, 30, 2)
        y = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)).astype(dtype)
        groups = KINDS[rng.integers(len(KINDS))]
        level = rng.uniform(1.0, 8.0)
        x = ch.project_bilevel(y, level, groups=groups, inner=inner, feasible=True)
        labels = labels_of(groups, *shape)
        norms = [INNER[inner](np.abs(x[labels == g]).astype(float)) for g in np.unique(labels)]
        worst = max(worst, float(oracle.hoyer_score(norms)) / level - 1.0)
    assert worst <= (1e-12 if dtype == np.float64 else 2e-6)


def test_a_thousand_matrices_hold_their_level():
    rng = np.random.default_rng(4)
    y = rng.standard_normal((1000, 12, 15)) * rng.gamma(1.0, size=(1000, 1, 15))
    level = rng.uniform(1.0, 6.0, 1000)
    norms = np.abs(ch.project_bilevel(y, level, feasible=True)).max(axis=1)
    assert np.all(ch.hoyer_score(norms) <= np.maximum(level, 1.0) * (1 + 1e-12))
    loose = np.abs(ch.project_bilevel(y, level)).max(axis=1)
    assert np.any(ch.hoyer_score(loose) > level * 1.05)  # the printed algorithm does not


@pytest.mark.parametrize("groups", ["columns", "rows", (1, 3)], ids=str)
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("feasible", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("workers", [1, 2])
def test_norms_that_are_projected_beyond_all_floats(dtype, feasible, inner, groups, workers):
    y = np.array([[0.9, 0.9, 0.5], [-0.2, 0.8, 0.4], [0.1, -0.7, 0.0]], dtype)  # with a tie or not
    most = np.finfo(dtype).maxexp
    for z in (y, y[1:], y.T.copy()):
        kwargs = {"groups": groups, "inner": inner, "feasible": feasible, "full_output": True}
        expected, wanted = ch.project_bilevel(z, 1.5, **kwargs, workers=workers)
        x, info = ch.project_bilevel(np.ldexp(z, most), 1.5, **kwargs, workers=workers)
        np.testing.assert_allclose(np.ldexp(x, -most), expected, rtol=1e-13 if most > 999 else 1e-6)
        np.testing.assert_array_equal(info.kept, wanted.kept)
        np.testing.assert_allclose(info.level, wanted.level, rtol=1e-6)
        with np.errstate(over="ignore"):  # such radii are infinite
            radii = np.ldexp(wanted.radii, most)
        np.testing.assert_allclose(info.radii, radii, rtol=1e-6)


@pytest.mark.parametrize("groups", KINDS, ids=str)
def test_feasible_input_comes_back_bit_for_bit(groups):
    y = np.random.default_rng(5).standard_normal((9, 8))
    for kwargs in ({"level": 1e9}, {"radius": 1e9}):
        for inner in INNER:
            x, info = ch.project_bilevel(y, **kwargs, groups=groups, inner=inner, full_output=True)
            np.testing.assert_array_equal(x, y)
            assert x is not y
            assert info.kept.all()
    y = np.zeros((9, 8))
    y[::3, ::2], y[1], y[2, 2] = -0.0, -0.0, 1e-200
    y[3, 3] = 1.0
    for inner in ("linf", "l1"):
        assert ch.project_bilevel(y, 1e9, groups=groups, inner=inner).tobytes() == y.tobytes()
    x = ch.project_bilevel(y, 2.0, groups=groups, feasible=True)
    np.testing.assert_allclose(
        ch.project_bilevel(x, 2.0, groups=groups, feasible=True), x, rtol=1e-13
    )


@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (5, 3)], ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_batches_are_loops(groups, inner):
    y = np.random.default_rng(6).standard_normal((2, 3, 13, 11))
    level = np.array([[1.0, 2.0, 3.0], [4.0, 50.0, 1.5]])
    x, info = ch.project_bilevel(y, level, groups=groups, inner=inner, full_output=True)
    assert info.level.shape == info.threshold.shape == (2, 3)
    np.testing.assert_array_equal(info.nnz, np.count_nonzero(x, axis=(-2, -1)))
    assert info.converged.all()
    assert np.all(info.passes >= 1)
    for b in np.ndindex(2, 3):
        one, part = ch.project_bilevel(y[b], level[b], groups=groups, inner=inner, full_output=True)
        np.testing.assert_array_equal(x[b], one)
        np.testing.assert_array_equal(info.radii[b], part.radii)
        np.testing.assert_array_equal(
            np.broadcast_to(info.mask, y.shape)[b], np.broadcast_to(part.mask, y.shape[2:])
        )


@pytest.mark.parametrize("inner", ["linf", "l2"])
@pytest.mark.parametrize(
    "groups", ["columns", "rows", "diagonals", (1, 4), (5, 3), (40, 40)], ids=str
)
def test_workers_at_their_desks(groups, inner, monkeypatch):
    """Inside one kernel; `every_array_is_large` has the steps apart."""
    monkeypatch.setattr(_groups, "PARALLEL_FROM", 0)
    rng = np.random.default_rng(9)
    for dtype in (np.float32, np.float64):
        y = rng.standard_normal((600, 64)).astype(dtype)
        tiny = np.array([y, y * dtype(1e-30)])
        given = {"groups": groups, "inner": inner, "full_output": True}
        for x, level in ((y, 2.0), (y, 1e6), (tiny, 2.0)):
            expected, report = ch.project_bilevel(x, level, **given)
            for workers in 5 * [2] + [3]:
                result, info = ch.project_bilevel(x, level, workers=workers, **given)
                np.testing.assert_array_equal(result, expected)
                np.testing.assert_array_equal(info.radii, report.radii)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("inner", INNER)
def test_a_batch_of_which_some_are_special(inner, workers):
    rng = np.random.default_rng(8)
    y = rng.standard_normal((7, 9, 8)).astype(np.float32)
    y[1] *= np.float32(1e-30)  # squares underflow
    y[2] = 0.0
    y[3] *= np.float32(1e37)  # and overflow
    y[5, 2, 3] = np.nan
    given = {"inner": inner, "groups": "columns"}
    levels = np.linspace(1.5, 2.0, 7)
    x, info = ch.project_bilevel(
        y, levels, check_finite=False, full_output=True, workers=workers, **given
    )
    for b in range(7):
        if b == 5:
            assert np.isnan(x[b]).all()
            assert np.isnan(info.radii[b]).all()
            continue
        one, part = ch.project_bilevel(y[b], levels[b], full_output=True, **given)
        np.testing.assert_array_equal(x[b], one)
        np.testing.assert_array_equal(info.radii[b], part.radii)
        assert info.threshold[b] == part.threshold
    with pytest.raises(ValueError, match="x must be finite"):
        ch.project_bilevel(y, levels, workers=workers, **given)
    z = y.copy()
    with pytest.raises(ValueError, match="x must be finite"):
        ch.project_bilevel(z, levels, overwrite_x=True, workers=workers, **given)
    np.testing.assert_array_equal(z, y)  # nothing is lost


def test_labels_of_full_shape_are_one_projection():
    y = np.random.default_rng(7).standard_normal((4, 6, 5))
    heads = np.broadcast_to(np.arange(4)[:, None, None], y.shape)
    for inner in INNER:
        x, info = ch.project_bilevel(y, 1.5, groups=heads, inner=inner, full_output=True)
        expected = ch.project_bilevel(y.reshape(4, 30), 1.5, groups="rows", inner=inner)
        few = 4 * np.spacing(info.radii.max())  # sums in another order
        np.testing.assert_allclose(x, expected.reshape(y.shape), rtol=0, atol=few)
        assert info.radii.shape == (4,)
        assert np.shape(info.level) == ()
        np.testing.assert_array_equal(info.mask, np.broadcast_to(info.kept[:, None, None], y.shape))
    columns = np.broadcast_to(np.arange(5), y.shape)  # one mask of columns for the batch
    x, info = ch.project_bilevel(y, 1.5, groups=columns, full_output=True)
    np.testing.assert_array_equal(x.any(axis=(0, 1)), info.kept)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (4, 4), (16, 16)], ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_rows_of_several_registers(dtype, groups, inner):
    """Each entry counts, wherever it lies in a register, and NaN and inf do."""
    rng = np.random.default_rng(21)
    y = rng.standard_normal((22, 150)).astype(dtype)
    labels = labels_of(groups, *y.shape)
    expected = reference(y, labels, inner, radius=10.0)[0]
    x = ch.project_bilevel(y, radius=10.0, groups=groups, inner=inner)
    tol = 1e-5 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(x, expected, rtol=0, atol=tol * np.abs(expected).max())
    for place in rng.choice(y.size, 40, replace=False):
        z = y.copy()
        z.flat[place] = 1e6  # the largest norm is that of its group
        _, info = ch.project_bilevel(z, 1.0, groups=groups, inner=inner, full_output=True)
        kept = info.kept.ravel()
        assert kept.sum() == 1
        assert kept[labels.flat[place]]
        for bad in (np.nan, np.inf):
            z.flat[place] = bad
            with pytest.raises(ValueError, match="x must be finite"):
                ch.project_bilevel(z, 2.0, groups=groups, inner=inner)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("groups", ["columns", "rows", (4, 4), (4, 1), (5, 3), (6, 6), (16, 16)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_equal_groups_have_equal_norms(dtype, groups, order):
    """To the last bit, wherever they lie: they tie."""
    rng = np.random.default_rng(4)
    for rows, columns in ((33, 100), (100, 33), (20, 257), (7, 19)):
        height, width = {"columns": (rows, 1), "rows": (1, columns)}.get(groups, groups)
        down, across = rows // height, columns // width
        block = rng.standard_normal((height, width)).astype(dtype)
        y = np.tile(block, (down + 1, across + 1))[:rows, :columns]
        for inner in INNER:
            _, info = ch.project_bilevel(
                np.asarray(y, order=order), radius=1e9, groups=groups, inner=inner, full_output=True
            )
            norms = info.radii.reshape(-(-rows // height), -(-columns // width))[:down, :across]
            assert np.unique(norms).size == min(norms.size, 1)


@pytest.mark.parametrize("groups", [(1, 8), (4, 4), (3, 16), (5, 6)], ids=str)
def test_zeros_attached_change_no_norm(groups):
    """To the last bit: blocks at the edge are blocks with zeros."""
    height, width = groups
    y = np.random.default_rng(5).standard_normal((2 * height, 4 * width + 3))
    whole = np.zeros((2 * height, 5 * width))
    whole[:, : y.shape[1]] = y
    for inner in INNER:
        first, second = (
            ch.project_bilevel(x, radius=1e9, groups=groups, inner=inner, full_output=True)[1]
            for x in (y, whole)
        )
        np.testing.assert_array_equal(first.radii, second.radii)


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize(
    "groups", ["columns", "rows", "diagonals", (4, 4), (8, 8), (600, 1)], ids=str
)
def test_workers_do_not_change_a_bit(groups, inner):
    rng = np.random.default_rng(8)
    y = rng.standard_normal((1100, 300)).astype(np.float32)
    for order in "CF":
        y = np.asarray(y, order=order)
        level = ch.level_for_groups(y, 20, groups=groups, inner=inner)
        one, two, three = (
            ch.project_bilevel(y, level, groups=groups, inner=inner, workers=w) for w in (1, 2, 3)
        )
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
    batch = rng.standard_normal((4, 300, 300))
    np.testing.assert_array_equal(
        ch.project_bilevel(batch, 3.0, groups=groups, inner=inner, workers=2),
        ch.project_bilevel(batch, 3.0, groups=groups, inner=inner),
    )


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("exponent", [-900, -400, 400, 900])
def test_scales(inner, exponent):
    y = np.random.default_rng(9).standard_normal((20, 30))
    scale = 2.0**exponent
    for groups in ("columns", "rows", "diagonals", (3, 4)):
        for kwargs, scaled in (({"level": 4.0},) * 2, ({"radius": 5.0}, {"radius": 5.0 * scale})):
            x = ch.project_bilevel(y, **kwargs, groups=groups, inner=inner)
            z = ch.project_bilevel(y * scale, **scaled, groups=groups, inner=inner)
            np.testing.assert_allclose(z / scale, x, rtol=0, atol=1e-13)


def test_float32_at_its_limits():
    y = np.random.default_rng(10).standard_normal((20, 30)).astype(np.float32)
    x = ch.project_bilevel(y, 4.0, inner="l2")
    for scale in (2.0**-110, 2.0**100):
        z = ch.project_bilevel(y * np.float32(scale), 4.0, inner="l2")
        assert z.dtype == np.float32
        np.testing.assert_allclose(z / np.float32(scale), x, rtol=0, atol=1e-5)


def test_zeros_reach_every_level():
    _, info = ch.project_bilevel(np.zeros((2, 3)), np.inf, full_output=True)
    assert info.converged
    assert info.passes <= 1


def test_labels_that_are_read_only():
    y = np.random.default_rng(0).standard_normal((6, 8))
    labels = np.arange(48).reshape(6, 8) % 5
    fixed = labels.copy()
    fixed.flags.writeable = False
    for inner in INNER:
        x = ch.project_bilevel(y, 2.0, groups=fixed, inner=inner)
        np.testing.assert_array_equal(x, ch.project_bilevel(y, 2.0, groups=labels, inner=inner))
    assert ch.level_for_groups(y, 2, groups=fixed) == ch.level_for_groups(y, 2, groups=labels)


@pytest.mark.parametrize("inner", INNER)
def test_the_report_on_a_matrix_that_is_not_finite(inner):
    y = np.ones((3, 2, 4))
    y[1, 0, 2] = np.nan
    for project in (ch.project_bilevel, ch.project_l1inf_ball):
        given = {} if project is ch.project_l1inf_ball else {"inner": inner}
        _, info = project(y, 1.5, check_finite=False, full_output=True, **given)
        assert np.isnan([info.threshold[1], info.level[1], *info.radii[1]]).all()
        assert np.isfinite([info.threshold[::2], info.level[::2]]).all()


def test_squares_that_underflow_count_as_zeros():
    y = np.array([[1.0, 1.1754944e-38]], np.float32)
    level = ch.level_for_groups(y, 1, inner="l2")
    x, info = ch.project_bilevel(y, level, inner="l2", full_output=True)
    np.testing.assert_array_equal(x, [[1.0, 0.0]])
    np.testing.assert_array_equal(info.kept, [True, False])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32, bool, ">f8"])
def test_dtypes(dtype):
    y = (4 * np.random.default_rng(11).standard_normal((12, 10))).astype(dtype)
    x = ch.project_bilevel(y, 2.0)
    wide = ch.project_bilevel(y.astype(float), 2.0)
    expected = np.float64 if y.dtype.kind in "ib" else y.dtype.newbyteorder("=")
    assert x.dtype == expected
    np.testing.assert_allclose(x.astype(float), wide, atol=1e-12 + 8 * np.finfo(x.dtype).eps)


def test_views_out_and_overwrite():
    big = np.random.default_rng(12).standard_normal((40, 60))
    y = big[::2, 5:55:3]
    expected = ch.project_bilevel(y.copy(), 2.0)
    before = big.copy()
    np.testing.assert_array_equal(ch.project_bilevel(y, 2.0), expected)
    np.testing.assert_array_equal(big, before)
    for order in "CF":
        out = np.full(y.shape, np.nan, order=order)
        assert ch.project_bilevel(y, 2.0, out=out) is out
        np.testing.assert_array_equal(out, expected)
    strided = np.full((40, 34), np.nan)[::2, ::2]
    ch.project_bilevel(y, 2.0, out=strided)
    np.testing.assert_array_equal(strided, expected)
    for order in "CF":
        z = y.copy(order=order)
        assert ch.project_bilevel(z, 2.0, out=z) is z
        np.testing.assert_array_equal(z, expected)
        z = y.copy(order=order)
        assert ch.project_bilevel(z, 2.0, overwrite_x=True) is z
        np.testing.assert_array_equal(z, expected)
    ch.project_bilevel(y, 2.0, out=y)  # a view onto itself
    np.testing.assert_array_equal(big[::2, 5:55:3], expected)
    frozen = expected.copy()
    frozen.flags.writeable = False
    ch.project_bilevel(frozen, 1.5)


def test_out_that_overlaps():
    memory = np.random.default_rng(13).standard_normal(500)
    y, out = memory[:400].reshape(20, 20), memory[100:].reshape(20, 20)
    expected = ch.project_bilevel(y.copy(), 2.0)
    ch.project_bilevel(y, 2.0, out=out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (0, 4, 4), (2, 0, 3)])
@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (2, 2)], ids=str)
def test_empty(shape, groups):
    x, info = ch.project_bilevel(np.empty(shape), 2.0, groups=groups, full_output=True)
    assert x.shape == shape
    assert info.kept.shape == info.radii.shape
    assert info.kept.shape[: len(shape) - 2] == shape[:-2]
    for zero in (info.level, info.threshold, info.passes, info.nnz):
        np.testing.assert_array_equal(zero, np.zeros(shape[:-2]))


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("groups", KINDS, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("inner", ["linf", "l1"])  # norms of small integers: no rounding
@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_of_tied_groups_in_any_order_of_memory(groups, order, inner, workers):
    for seed in range(30):
        rng = np.random.default_rng(seed)
        y = rng.integers(-2, 3, rng.integers(2, 12, 2)).astype(float, order=order)
        labels = labels_of(groups, *y.shape)
        level = float(rng.choice([1.0, rng.uniform(1.0, 4.0)]))
        for feasible in (False, True):
            options = {"level": level, "feasible": feasible}
            x, info = ch.project_bilevel(
                y, **options, groups=groups, inner=inner, workers=workers, full_output=True
            )
            expected, u, _ = reference(y, labels, inner, **options)
            np.testing.assert_allclose(x, expected, rtol=0, atol=1e-13, err_msg=str(seed))
            np.testing.assert_allclose(info.radii.ravel(), u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("exponent", [-900, -520, 520, 900])
def test_the_level_that_is_reported_does_not_depend_on_the_unit(inner, exponent):
    """Squares of the norms over- or underflow."""
    y = np.random.default_rng(15).standard_normal((6, 8))
    for bound in ({"level": 2.5}, {"level": 99.0}, {"radius": 3.0}):
        _, expected = ch.project_bilevel(y, **bound, inner=inner, full_output=True)
        unit = 2.0**exponent
        if "radius" in bound:
            bound = {"radius": 3.0 * unit}
        _, info = ch.project_bilevel(y * unit, **bound, inner=inner, full_output=True)
        got = info.level / unit if "radius" in bound else info.level
        assert abs(got / expected.level - 1) <= 1e-12


def test_zeros_and_ties():
    x, info = ch.project_bilevel(np.zeros((5, 6)), 2.0, full_output=True)
    assert not x.any()
    assert info.level == 0.0
    x = ch.project_bilevel(np.ones((5, 6)), 2.0)  # six columns tie: the first two stay
    np.testing.assert_array_equal(x.any(axis=0), [True, True, False, False, False, False])
    assert ch.hoyer_score(x.max(axis=0)) == pytest.approx(2.0)


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (2, 2), (1, 1)], ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_not_finite(bad, groups, inner):
    y = np.random.default_rng(14).standard_normal((3, 9, 8))
    y[1, 4, 3] = bad
    for workers in (1, 2):
        for x in (y, y[1]):  # several matrices are dealt out, the rows of one as well
            with pytest.raises(ValueError, match="x must be finite"):
                ch.project_bilevel(x, 2.0, groups=groups, inner=inner, workers=workers)
    with pytest.raises(ValueError, match=r"x must be finite, got NaN or inf$"):  # nothing to skip
        ch.level_for_groups(y, 2, groups=groups, inner=inner)
    x = ch.project_bilevel(y, 2.0, groups=groups, inner=inner, check_finite=False)
    assert np.isnan(x[1]).all()
    assert np.isfinite(x[[0, 2]]).all()
    z = y.copy()
    with pytest.raises(ValueError, match="x must be finite"):
        ch.project_bilevel(z, 2.0, groups=groups, inner=inner, out=z)
    np.testing.assert_array_equal(z, y)


def test_errors():
    y = np.ones((4, 5))
    for kwargs, error, match in (
        ({}, ValueError, "exactly one of level and radius"),
        ({"level": 2.0, "radius": 1.0}, ValueError, r"both \(2.0 and 1.0\)"),
        ({"level": 0.5}, ValueError, r"level must be >= 1, got 0.5"),
        ({"level": np.nan}, ValueError, "level must be >= 1, got nan"),
        ({"radius": -1.0}, ValueError, "radius must be >= 0, got -1.0"),
        ({"radius": np.nan}, ValueError, "radius must be >= 0, got nan"),
        ({"level": [2.0, 3.0]}, ValueError, "level must broadcast"),
        ({"level": 2.0, "inner": "l3"}, ValueError, "inner must be one of .*'l3'"),
        ({"level": 2.0, "groups": "blocks"}, ValueError, "groups must be .*'blocks'"),
        ({"level": 2.0, "groups": (0, 2)}, ValueError, r"groups: .*>= 1, got \(0, 2\)"),
        ({"level": 2.0, "groups": (1.5, 2)}, TypeError, "groups: a block shape"),
        ({"level": 2.0, "groups": np.ones((4, 5))}, TypeError, "groups must be .*float64"),
        ({"level": 2.0, "groups": np.ones((5, 4), int)}, ValueError, "labels must have shape"),
        ({"level": 2.0, "groups": [2, 1]}, ValueError, r"must be a tuple, got \[2, 1\]"),
        ({"level": 2.0, "groups": -np.ones((4, 5), int)}, ValueError, "labels must be >= 0"),
        ({"level": 2.0, "groups": np.full((4, 5), 10**9)}, ValueError, "numbered from 0"),
        ({"level": 2.0, "out": [1]}, TypeError, "out must be a NumPy array"),
        ({"level": 2.0, "out": np.ones((5, 4))}, ValueError, "out must have the result's shape"),
        ({"level": 2.0, "out": np.ones((4, 5), "f4")}, ValueError, "out must have .*dtype"),
        ({"level": 2.0, "workers": 0}, ValueError, "workers"),
    ):
        with pytest.raises(error, match=match):
            ch.project_bilevel(y, **kwargs)
    for data, error in (
        (np.ones(4), ValueError),
        (np.ones((2, 2), complex), TypeError),
        (np.ma.ones((2, 2)), TypeError),
    ):
        with pytest.raises(error, match="x must"):
            ch.project_bilevel(data, 2.0)
    with pytest.raises(ValueError, match="n_groups must be >= 1, got 0"):
        ch.level_for_groups(y, 0)
    with pytest.raises(TypeError, match="n_groups must be integers"):
        ch.level_for_groups(y, 1.5)


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=9),
        elements=st.one_of(st.integers(-2, 2).map(float), st.floats(-1e3, 1e3, width=32)),
    ),
    st.sampled_from(KINDS),
    st.sampled_from(sorted(INNER)),
    st.integers(1, 12),
    st.booleans(),
    st.booleans(),
)
def test_never_more_groups_than_wanted(y, groups, inner, wanted, feasible, transposed):
    if transposed:
        y = np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2)
    level = ch.level_for_groups(y, wanted, groups=groups, inner=inner)
    x, info = ch.project_bilevel(
        y, level, groups=groups, inner=inner, feasible=feasible, full_output=True
    )
    batch = y.shape[:-2]
    kept = info.kept.reshape(*batch, -1).sum(axis=-1)
    nonzero = [
        len(set(labels_of(groups, *y.shape[-2:])[m != 0])) for m in y.reshape(-1, *y.shape[-2:])
    ]
    assert np.all((kept <= wanted) | (np.reshape(nonzero, batch) <= wanted))
    assert np.all(np.abs(x) <= np.abs(y) * (1 + 1e-6))
    assert not np.any(x[~np.broadcast_to(info.mask, y.shape)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [1, 3, 8, 21])
@pytest.mark.parametrize("columns", [6, 31, 47, 64, 131, 256, 300])
def test_norms_by_registers(rows, columns, dtype):
    """Radii of a matrix that is feasible are its groups' norms, entry by entry in long double."""
    x = np.random.default_rng(rows * columns).standard_normal((rows, columns)).astype(dtype)
    wide = np.abs(x.astype(np.longdouble))
    i, j = np.indices(x.shape)
    widths = 1, 2, 3, 4, 5, 8, 12, 17, 20, 25, 30, 32, 33, 64, 98
    shapes = [(h, w) for h in (1, 2, 3, 4, 5, 7, 8, 9) for w in widths]
    lines = {"columns": j, "rows": i, "diagonals": j - i + rows - 1}
    for groups in [*lines, *shapes]:
        if groups in lines:
            labels = lines[groups]
        else:
            labels = i // groups[0] * -(-columns // groups[1]) + j // groups[1]
        count = labels.max() + 1
        tops, sums = np.zeros(count), np.zeros((2, count), np.longdouble)
        np.maximum.at(tops, labels, wide)
        np.add.at(sums[0], labels, wide)
        np.add.at(sums[1], labels, wide * wide)
        expected = {"linf": tops, "l2": np.sqrt(sums[1]), "l1": sums[0]}
        for inner, norms in expected.items():
            _, info = ch.project_bilevel(x, 1e9, groups=groups, inner=inner, full_output=True)
            tolerance = 0.0 if inner == "linf" else 8 * np.finfo(dtype).eps
            np.testing.assert_allclose(info.radii.ravel(), norms.astype(float), rtol=tolerance)


@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
@pytest.mark.parametrize("exponent", [1000, 1023, -1000])
def test_groups_whose_norm_is_beyond_all_floats(inner, exponent):
    y = np.array([[1.0, 0.4], [0.9, 0.9], [0.8, 0.7], [0.7, 0.6]])
    expected = ch.project_bilevel(y, 1.9, inner=inner)
    assert not np.array_equal(expected, y)
    result, info = ch.project_bilevel(np.ldexp(y, exponent), 1.9, inner=inner, full_output=True)
    np.testing.assert_allclose(np.ldexp(result, -exponent), expected, rtol=1e-14)
    np.testing.assert_array_equal(info.kept, [True, True])


@pytest.mark.parametrize("inner", ["l2", "l1"])
def test_every_power_of_two(inner):
    """Each is a unit that norms may be taken in, or may not."""
    y = np.random.default_rng(0).standard_normal((6, 5))
    expected = ch.project_bilevel(y, 3.0, inner=inner)
    for exponent in range(-1010, 1010):
        x = ch.project_bilevel(np.ldexp(y, exponent), 3.0, inner=inner)
        np.testing.assert_allclose(np.ldexp(x, -exponent), expected, rtol=1e-12)


@pytest.mark.parametrize("inner", ["l2", "l1"])
def test_a_small_radius_beside_large_data(inner):
    y = np.random.default_rng(0).standard_normal((6, 5))
    x, info = ch.project_bilevel(1e200 * y, radius=1e-90, inner=inner, full_output=True)
    norms = np.linalg.norm(np.ldexp(x, 300), 2 if inner == "l2" else 1, axis=0)
    assert np.ldexp(norms.sum(), -300) == pytest.approx(1e-90, rel=1e-12)
    assert info.level == pytest.approx(1e-90, rel=1e-12)


@pytest.mark.parametrize("given", [{"level": 2.0}, {"radius": 1e308}])
def test_l1_norms_beyond_the_largest_float(given):
    y = 1.5e308 * np.random.default_rng(1).random((9, 4))
    x = ch.project_bilevel(y, inner="l1", **given)
    near = {
        name: np.ldexp(value, -100) if name == "radius" else value for name, value in given.items()
    }
    expected = ch.project_bilevel(np.ldexp(y, -100), inner="l1", **near)
    np.testing.assert_allclose(np.ldexp(x, -100), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("level", lambda y, v, g: ch.project_bilevel(y, v, groups=g)),
        ("radius", lambda y, v, g: ch.project_bilevel(y, radius=v, groups=g)),
        ("radius", lambda y, v, g: ch.project_l1inf_ball(y, v, groups=g)),
        ("n_groups", lambda y, v, g: ch.level_for_groups(y, v, groups=g)),
    ],
)
def test_labels_of_full_shape_take_one_bound(name, call):
    labels = np.arange(24).reshape(2, 3, 4) % 5
    with pytest.raises(ValueError, match=rf"{name} must broadcast to shape \(\)"):
        call(np.ones((2, 3, 4)), [1, 2], labels)


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
def test_without_the_check_in_place_of_a_batch(project):
    y = np.random.default_rng(16).standard_normal((3, 9, 8))
    y[1, 4, 3] = np.nan
    expected = project(y, 1.5, check_finite=False)
    project(y, 1.5, check_finite=False, out=y)
    np.testing.assert_array_equal(y, expected)


def test_several_capped_matrices_are_reported(monkeypatch):
    y = np.random.default_rng(6).standard_normal((3, 30, 20))
    y[1] = 0.0
    monkeypatch.setattr(bilevel, "_MOST_ROUNDS", 1)
    with pytest.warns(ch.ConvergenceWarning, match="2 of 3 projections") as caught:
        _, info = ch.project_l1inf_ball(y, 5.0, full_output=True)
    np.testing.assert_array_equal(info.converged, [False, True, False])
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "project",
    [ch.project_l1inf_ball, *(partial(ch.project_bilevel, inner=p) for p in ("linf", "l2", "l1"))],
)
def test_one_matrix_survives_an_error_in_place(project):
    y = np.random.default_rng(16).standard_normal((9, 8))
    y[8, 7] = np.nan
    z = y.copy()
    for options in ({"out": z}, {"overwrite_x": True}):
        with pytest.raises(ValueError, match="x must be finite"):
            project(z, 1.5, **options)
        np.testing.assert_array_equal(z, y)


@pytest.mark.parametrize("inner", ["l2", "l1"])
def test_a_large_radius_beside_tiny_data(inner):
    """Without a warning, although the radius overflows in the unit of the data."""
    y = 1e-250 * np.random.default_rng(16).standard_normal((9, 8))
    np.testing.assert_allclose(ch.project_bilevel(y, radius=1e300, inner=inner), y, rtol=1e-14)


@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
@pytest.mark.parametrize("exponent", [-900, -520, 520, 1019])
def test_the_threshold_has_the_unit_of_the_data(inner, exponent):
    y = np.random.default_rng(15).standard_normal((6, 8)).clip(-1.9, 1.9)
    for bound in ({"level": 2.5}, {"radius": 3.0}):
        _, expected = ch.project_bilevel(y, **bound, inner=inner, full_output=True)
        if "radius" in bound:
            bound = {"radius": np.ldexp(3.0, exponent)}
        _, info = ch.project_bilevel(np.ldexp(y, exponent), **bound, inner=inner, full_output=True)
        assert np.ldexp(info.threshold, -exponent) == pytest.approx(expected.threshold, rel=1e-12)


def test_the_report_of_a_batch_of_matrices_has_integers():
    for project in (ch.project_bilevel, ch.project_l1inf_ball):
        _, info = project(np.ones((2, 3, 4)), 1.5, full_output=True)
        assert [v.dtype.kind for v in (info.nnz, info.passes, info.converged)] == [*"iib"]


def test_each_matrix_has_its_number_of_groups():
    y = np.random.default_rng(17).standard_normal((3, 9, 8))
    level = ch.level_for_groups(y, [1, 5, 3])
    _, info = ch.project_bilevel(y, level, full_output=True)
    np.testing.assert_array_equal(info.kept.sum(axis=1), [1, 5, 3])


def test_tied_groups_and_a_grain_of_dust():
    """Within the slack of float32 the norms have score 2 already, with three groups."""
    y = np.array([[0.0, 1.0, 1.0, 1e-8]], np.float32)
    _, info = ch.project_bilevel(y, ch.level_for_groups(y, 2), full_output=True)
    assert info.kept.sum() == 2


def test_tied_groups_of_largest_groups_are_the_first():
    y = np.random.default_rng(18).integers(0, 3, (64, 64)).astype(float)
    mask = bilevel.largest_groups(y, 1000, (1, 1), "l2", 1)
    first = np.lexsort((np.arange(y.size), -y.ravel()))[:1000]
    np.testing.assert_array_equal(np.flatnonzero(mask), np.sort(first))


def test_largest_groups_in_any_order_of_memory():
    y = np.random.default_rng(18).standard_normal((12, 9))
    expected = bilevel.largest_groups(y, 5, (2, 4), "l1", 1)
    found = bilevel.largest_groups(np.asfortranarray(y), 5, (2, 4), "l1", 1)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("order", ["C", "F"])
def test_read_only_matrices_are_not_overwritten(order):
    y = np.random.default_rng(18).standard_normal((12, 9)).copy(order=order)
    expected = ch.project_bilevel(y, 2.0)
    y.flags.writeable = False
    np.testing.assert_array_equal(ch.project_bilevel(y, 2.0, overwrite_x=True), expected)


def test_a_matrix_whose_entries_share_memory_is_not_overwritten():
    memory = np.random.default_rng(18).standard_normal(10)
    y = np.lib.stride_tricks.sliding_window_view(memory, 3, writeable=True)
    expected = ch.project_bilevel(y.copy(), 1.5)
    np.testing.assert_array_equal(ch.project_bilevel(y, 1.5, overwrite_x=True), expected)


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_fortran_order_into_an_out_of_c_order(project, dtype):
    y = (4 * np.random.default_rng(18).standard_normal((2, 12, 9))).astype(dtype)
    turned = np.ascontiguousarray(y.swapaxes(1, 2)).swapaxes(1, 2)
    expected = project(y, 1.5)
    np.testing.assert_array_equal(project(turned, 1.5, out=np.empty_like(y)), expected)
    np.testing.assert_array_equal(project(turned, 1.5), expected)


def test_labels_as_a_tuple_of_two_rows():
    y = np.random.default_rng(18).standard_normal((2, 4))
    labels = [0, 1, 1, 0], [1, 0, 0, 1]
    expected = ch.project_bilevel(y, 1.0, groups=np.array(labels))
    np.testing.assert_array_equal(ch.project_bilevel(y, 1.0, groups=labels), expected)


def test_labels_may_be_unsigned_but_not_boolean():
    y = np.random.default_rng(18).standard_normal((3, 4))
    labels = np.arange(12).reshape(3, 4) % 2
    expected = ch.project_bilevel(y, 1.0, groups=labels)
    np.testing.assert_array_equal(ch.project_bilevel(y, 1.0, groups=labels.astype("u1")), expected)
    with pytest.raises(TypeError, match="integer labels, got ndarray of dtype bool"):
        ch.project_bilevel(y, 1.0, groups=labels.astype(bool))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5), (1, 2, 4, 5)])
def test_labels_of_another_batch(shape):
    with pytest.raises(ValueError, match=r"labels must have shape \(4, 5\) or \(2, 4, 5\), got"):
        ch.project_bilevel(np.ones((2, 4, 5)), 1.0, groups=np.zeros(shape, int))


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
def test_labels_of_a_matrix_in_fortran_order(project):
    y = np.random.default_rng(18).standard_normal((6, 4))
    labels = np.arange(24).reshape(6, 4) % 5
    x, info = project(y, 1.5, groups=labels, full_output=True)
    turned, report = project(np.asfortranarray(y), 1.5, groups=labels, full_output=True)
    np.testing.assert_array_equal(report.mask, info.mask)
    np.testing.assert_allclose(turned, x, rtol=1e-13)


@pytest.mark.parametrize("label", [255, 1000, 2**16 - 1])
def test_labels_far_apart(label):
    labels = np.array([[0, label], [label, 0]], np.uint8 if label == 255 else np.int64)
    _, info = ch.project_bilevel(np.ones((2, 2)), 2.0, groups=labels, full_output=True)
    np.testing.assert_array_equal(np.flatnonzero(info.kept), [0, label])


def test_very_many_labels():
    labels = np.arange(70_000).reshape(7, 10_000)
    _, info = ch.project_bilevel(np.ones(labels.shape), 3.0, groups=labels, full_output=True)
    np.testing.assert_array_equal(np.flatnonzero(info.kept), [0, 1, 2])


def test_the_mask_of_labels_of_full_shape_in_fortran_order():
    y = np.random.default_rng(18).standard_normal((2, 6, 4))
    labels = np.arange(48).reshape(2, 6, 4) % 5
    turned = np.ascontiguousarray(y.swapaxes(1, 2)).swapaxes(1, 2)
    _, info = ch.project_bilevel(turned, 1.5, groups=labels, full_output=True)
    np.testing.assert_array_equal(info.mask, info.kept[labels])


@pytest.mark.parametrize("feasible", [False, True])
@pytest.mark.parametrize("y", [[[0.9, 0.8, 0.5]], [[0.45, 0.4, 0.25], [0.45, 0.4, 0.25]]])
def test_l1_norms_that_are_finite_and_projected_beyond_all_floats(y, feasible):
    given = {"inner": "l1", "feasible": feasible, "full_output": True}
    expected, wanted = ch.project_bilevel(y, 1.5, **given)
    x, info = ch.project_bilevel(np.ldexp(y, 1024), 1.5, **given)
    np.testing.assert_allclose(np.ldexp(x, -1024), expected, rtol=1e-13)
    np.testing.assert_array_equal(info.kept, wanted.kept)
    assert info.level == pytest.approx(wanted.level, rel=1e-12)


BOUNDED = {inner: partial(ch.project_bilevel, inner=inner, full_output=True) for inner in INNER} | {
    "exact": partial(ch.project_l1inf_ball, full_output=True)
}


@pytest.mark.parametrize("scale", [1.0, 1e-320, 1e307])
@pytest.mark.parametrize("groups", [*KINDS[:3], (2, 3)], ids=str)
@pytest.mark.parametrize("kind", BOUNDED)
def test_an_infinite_radius_bounds_nothing(kind, groups, scale):
    project = BOUNDED[kind]
    y = np.random.default_rng(20).standard_normal((6, 8)) * scale
    for z in (y, np.asfortranarray(y)):
        x, info = project(z, radius=np.inf, groups=groups)
        np.testing.assert_array_equal(x, y)
        assert info.kept.all()
        assert info.mask.all()
        assert info.threshold == 0.0
        assert info.nnz == y.size
        assert info.converged


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", BOUNDED)
def test_some_radii_are_infinite(kind, dtype, workers):
    project = partial(BOUNDED[kind], workers=workers)
    y = np.random.default_rng(21).standard_normal((3, 5, 7)).astype(dtype)
    y[1] = 0.0
    radii = np.array([2.0, np.inf, np.inf])
    x, info = project(y, radius=radii)
    expected, report = project(y[0], radius=2.0)
    np.testing.assert_array_equal(x, [expected, y[1], y[2]])
    np.testing.assert_array_equal(info.threshold, [report.threshold, 0.0, 0.0])
    np.testing.assert_array_equal(info.radii[0], report.radii)
    assert info.converged.all()
    y[2, 1, 1] = np.nan
    with pytest.raises(ValueError, match="x must be finite"):
        project(y, radius=radii)
    x, _ = project(y, radius=radii, check_finite=False)
    np.testing.assert_array_equal(x, [expected, y[1], np.full((5, 7), np.nan)])


@pytest.mark.parametrize("kind", BOUNDED)
def test_the_sum_of_norms_may_be_infinite_as_well(kind):
    y = np.full((3, 4), 1e308)
    x, info = BOUNDED[kind](y, radius=np.inf)
    np.testing.assert_array_equal(x, y)
    assert info.level == np.inf


@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (3, 4), (20, 30)], ids=str)
def test_groups_that_have_the_norm_they_may_have_keep_their_bits(groups):
    project, kept = partial(ch.project_bilevel, groups=groups, inner="l1", full_output=True), 0
    for seed in range(20):
        y = np.random.default_rng(seed).standard_normal((41, 300))
        norms = project(y, radius=1e9)[1].radii
        level = 0.6 * float(ch.hoyer_score(norms.ravel()))
        x, info = project(y, level, feasible=True)
        same = (info.radii == norms).ravel()[labels_of(groups, *y.shape)]
        np.testing.assert_array_equal(x[same], y[same])
        kept += np.count_nonzero(same)
    assert kept > 0


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((60, 43), (1, 1)),
        ((60, 43), (1, 2)),  # more than are projected by one call, and narrow ones at the edge
        ((61, 43), (3, 4)),
        ((61, 43), (3, 1)),
        ((9, 900), "rows"),  # long ones that lie in order
        ((4, 5000), "rows"),  # some of which are left to the engine
        ((9, 900), (3, 300)),
        ((900, 60), "columns"),  # more than are listed at a time
        ((20_000, 11), "columns"),  # each more than are listed at a time
        ((300, 90), "diagonals"),
        ((100, 50), "diagonals"),  # of the rows a single one is copied last
        ((60, 43), "labels"),
    ],
    ids=str,
)
def test_many_groups_onto_l1_balls(shape, groups, dtype, order):
    rng = np.random.default_rng(shape)
    if groups == "labels":
        groups = labels = rng.integers(0, 40, shape) * rng.integers(1, 9, shape)  # some are empty
    else:
        labels = labels_of(groups, *shape)
    y = rng.standard_normal(shape) * np.exp(rng.standard_normal(labels.max() + 1))[labels]
    y = np.asarray(y, dtype, order)
    pair = np.array([y, y]) if order == "C" else np.array([y.T, y.T]).swapaxes(1, 2)
    norms = np.bincount(labels.ravel(), np.abs(y.ravel()).astype(float))
    project = partial(ch.project_bilevel, groups=groups, inner="l1")
    for radius in (0.5 * norms.sum(), 0.05 * norms.sum(), 0.5 * norms.max()):
        x, info = project(y, radius=radius, full_output=True)
        order_of = np.argsort(labels, axis=None, kind="stable")
        ends = np.cumsum(np.bincount(labels.ravel()))
        expected = np.zeros(y.size, np.longdouble)
        for own, r in zip(np.split(order_of, ends[:-1]), info.radii.ravel(), strict=True):
            expected[own] = oracle.project_l1_ball(y.ravel()[own], r) if r > 0 else 0
        close = 1e-12 if dtype == np.float64 else 1e-6
        expected = expected.reshape(shape).astype(float)
        np.testing.assert_allclose(x, expected, rtol=0, atol=close * np.abs(y).max())
        assert 0 < np.count_nonzero(info.kept) < norms.size
        np.testing.assert_array_equal(project(y, radius=radius, workers=2), x)
        np.testing.assert_array_equal(project(pair, radius=radius, workers=2), [x, x])
        np.testing.assert_array_equal(project(y.copy(order), radius=radius, overwrite_x=True), x)
    exponent = 1024 - np.frexp(norms.max())[1] + 1  # the largest sum overflows
    if dtype == np.float64 and np.frexp(np.abs(y).max())[1] + exponent <= 1024:
        scaled = project(np.ldexp(y, exponent), radius=np.ldexp(radius, exponent))
        scaled = np.ldexp(scaled, -exponent)
        np.testing.assert_allclose(scaled, x, rtol=0, atol=close * np.abs(y).max())


def test_small_entries_keep_their_bits_where_sums_of_float32_overflow():
    """As printed, the first group may be as large as it is, and is not touched."""
    y = np.full((8, 3), 3e38, np.float32) * np.float32([1.0, 0.5, 0.0])
    y[-1] = 1e-25
    x, info = ch.project_bilevel(y, 1.7, inner="l1", full_output=True)
    np.testing.assert_array_equal(x[:, 0], y[:, 0])
    assert info.radii[0] > y[:, 0].sum(dtype=np.float64)


@pytest.mark.parametrize("inner", ["linf", "l1"])
def test_a_report_changes_no_bits_where_projected_norms_overflow(inner):
    y = np.random.default_rng(0).uniform(-1, 1, (60, 40, 30)) * 1.7e308
    y = y if inner == "linf" else y / 40  # sums are finite, too
    x = ch.project_bilevel(y, 5.0, inner=inner)
    reported, info = ch.project_bilevel(y, 5.0, inner=inner, full_output=True)
    assert info.radii.max() == np.inf
    np.testing.assert_array_equal(reported, x)


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
def test_a_result_lies_in_memory_as_the_matrix_does(project):
    """Also where the copy that the kernels read lies in another order."""
    big = np.random.default_rng(12).standard_normal((60, 40))
    y = big[:, ::2].T  # neither order, but nearer to Fortran's
    assert not y.flags.f_contiguous
    result = project(y, 2.0)
    assert result.strides == np.empty_like(y).strides
    np.testing.assert_array_equal(result, project(y.copy("F"), 2.0))


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
def test_labels_as_a_list_of_two_rows(project):
    y, labels = np.arange(6.0).reshape(2, 3), [[0, 1, 0], [1, 0, 2]]
    np.testing.assert_array_equal(
        project(y, 2.0, groups=labels), project(y, 2.0, groups=np.array(labels))
    )


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(4, 5), (3, 4, 5), (2, 3, 4, 5)])
def test_nonzeros_are_counted_matrix_by_matrix_in_any_order_of_memory(shape, order):
    y = np.random.default_rng(0).standard_normal(shape).copy(order)
    for project in (ch.project_bilevel, ch.project_l1inf_ball):
        x, info = project(y, radius=2.0, full_output=True)
        np.testing.assert_array_equal(info.nnz, np.count_nonzero(x, axis=(-2, -1)))


@pytest.mark.parametrize("project", [ch.project_bilevel, ch.project_l1inf_ball])
def test_no_group_of_a_matrix_that_is_not_finite_is_kept(project):
    y = np.random.default_rng(0).standard_normal((2, 4, 5))
    y[1, 2, 3] = np.nan
    _, info = project(y, radius=2.0, check_finite=False, full_output=True)
    assert np.isnan(info.radii[1]).all()
    assert not info.kept[1].any()
    assert not info.mask[1].any()
    assert info.kept[0].any()


@pytest.mark.parametrize("largest", [65_536, 10**9])
def test_labels_that_are_too_large_are_named(largest):
    labels = np.zeros((4, 5), int)
    labels[1, 2] = largest
    with pytest.raises(ValueError, match=rf"numbered from 0 on, got {largest}$"):
        ch.project_bilevel(np.ones((4, 5)), 2.0, groups=labels)


@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (2, 2), "labels"])
def test_the_mask_can_be_written(groups):
    y = np.random.default_rng(0).standard_normal((4, 5))
    groups = np.arange(20).reshape(4, 5) % 3 if groups == "labels" else groups
    _, info = ch.project_bilevel(y, 2.0, groups=groups, full_output=True)
    assert info.mask.flags.writeable


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("inner", ["linf", "l2", "l1"])
def test_the_report_of_a_batch_by_several_workers(inner):
    y = np.random.default_rng(0).standard_normal((5, 4, 6))
    level = np.linspace(1.0, 4.0, 5)
    expected = ch.project_bilevel(y, level, inner=inner, full_output=True)[1]
    for workers in (2, 3, 5):
        info = ch.project_bilevel(y, level, inner=inner, workers=workers, full_output=True)[1]
        for name in ("radii", "kept", "mask", "threshold", "level", "nnz", "passes", "converged"):
            np.testing.assert_array_equal(getattr(info, name), getattr(expected, name), name)


@pytest.mark.parametrize("exponent", [-149, -130, -110])
@pytest.mark.parametrize("inner", ["l2", "linf", "l1"])
def test_small_blocks_of_the_smallest_float32(inner, exponent):
    """Their norms are float32 too: the unit must not take these beyond it."""
    x = np.ldexp(np.random.default_rng(0).standard_normal((33, 20)), exponent).astype(np.float32)
    got = ch.project_bilevel(x, 20.5, groups=(2, 2), inner=inner)
    wide = ch.project_bilevel(x.astype(float), 20.5, groups=(2, 2), inner=inner)
    np.testing.assert_allclose(got, wide, rtol=1e-5, atol=2.0**-149)
