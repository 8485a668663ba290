"""The bilevel projection on the device, against plain NumPy and the CPU."""

import numpy as np
import oracle
import pytest

import conehoyer as ch

KINDS = ["columns", "rows", "diagonals", (1, 1), (2, 3), (4, 4), (3, 100)]
INNER = {"linf": np.max, "l2": lambda a: np.sqrt(np.sum(a * a)), "l1": np.sum}
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3}  # others 1e-12
FIELDS = ("radii", "kept", "mask", "threshold", "level", "nnz", "passes", "converged")


def labels_of(groups, rows, columns):
    """The group of each entry."""
    i, j = np.indices((rows, columns))
    if isinstance(groups, str):
        return {"columns": j, "rows": i, "diagonals": j - i + rows - 1}[groups]
    height, width = groups
    return i // height * -(-columns // width) + j // width


def reference(y, labels, inner, level=None, radius=None, feasible=False):
    """One matrix, group by group, in long double: result, radii and norms."""
    y = np.asarray(y, np.longdouble)
    members = [labels == g for g in range(labels.max() + 1)]
    norms = np.array([INNER[inner](np.abs(y[own])) if own.any() else 0 for own in members])
    if radius is not None:
        u = oracle.project_l1_ball(norms, radius)
    else:
        u = oracle.project_cai(norms, level)
        if feasible and oracle.hoyer_score(norms) > level:
            u = np.minimum(u * (norms.max() / u.max()), norms)
    x = np.array(y)
    for own, v, r in zip(members, norms, u, strict=True):
        if r < v and inner == "linf":
            x[own] = np.sign(y[own]) * np.minimum(np.abs(y[own]), r)
        elif r < v and inner == "l2":
            x[own] = y[own] * (r / v)
        elif r < v:
            x[own] = oracle.project_l1_ball(y[own], r)
    return x.astype(float), u.astype(float), norms.astype(float)


@pytest.fixture
def check(to_gpu, to_host):
    """Project on the device, and compare result and report with plain NumPy."""

    def run(y, groups="columns", inner="linf", **kwargs):
        device = to_gpu(y)
        by_label = isinstance(groups, np.ndarray)
        x, info = ch.project_bilevel(
            device, groups=to_gpu(groups) if by_label else groups, inner=inner,
            full_output=True, **kwargs,
        )  # fmt: skip
        np.testing.assert_array_equal(to_host(device), y)
        x, mask = to_host(x), np.broadcast_to(to_host(info.mask), y.shape)
        assert x.dtype == (y.dtype if y.dtype.kind == "f" else np.float64)
        tol = TOLERANCE.get(y.dtype, 1e-12)
        labels = groups if by_label else labels_of(groups, *y.shape[-2:])
        batch = () if labels.ndim > 2 else y.shape[:-2]
        shape = {"columns": y.shape[-1:], "rows": y.shape[-2:-1]}.get(str(groups))
        if isinstance(groups, tuple):
            shape = tuple(-(-n // side) for n, side in zip(y.shape[-2:], groups, strict=True))
        assert info.radii.shape == info.kept.shape == batch + (shape or (labels.max() + 1,))
        for name in ("threshold", "level", "nnz", "passes", "converged"):
            assert getattr(info, name).shape == batch
        assert to_host(info.converged).all()
        for b in np.ndindex(batch):
            own = {
                key: np.broadcast_to(v, batch)[b] if key != "feasible" else v
                for key, v in kwargs.items()
            }
            expected, u, norms = reference(y[b], labels, inner, **own)
            size = np.abs(y[b]).max(initial=0)
            np.testing.assert_allclose(x[b], expected, rtol=0, atol=tol * size)
            radii = to_host(info.radii)[b].ravel()
            np.testing.assert_allclose(radii, u, rtol=0, atol=tol * norms.max())
            np.testing.assert_array_equal(to_host(info.kept)[b].ravel(), u > 0)
            np.testing.assert_array_equal(mask[b], (u > 0)[labels])
            assert not np.any(x[b][~mask[b]])
            assert not np.any(np.signbit(x[b][~mask[b]]))  # +0.0
            assert to_host(info.nnz)[b] == np.count_nonzero(x[b])
            reached = np.minimum(u, norms)
            level = oracle.hoyer_score(reached) if "level" in kwargs else reached.sum()
            np.testing.assert_allclose(to_host(info.level)[b], float(level), rtol=10 * tol)

    return run


@pytest.mark.parametrize("groups", KINDS, ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_against_plain_numpy(groups, inner, check):
    y = np.random.default_rng(len(str(groups))).standard_normal((7, 11))
    kwargs = {"linf": {"level": 2.5, "feasible": True}, "l2": {"level": 2.0}, "l1": {"radius": 1.0}}
    check(y, groups, inner, **kwargs[inner])


def test_the_cpu_agrees(to_gpu, to_host):
    y = np.random.default_rng(20).standard_normal((2, 7, 11))
    for inner in INNER:
        kwargs = {"level": [2.0, 90.0], "groups": (2, 3), "inner": inner, "full_output": True}
        x, info = ch.project_bilevel(to_gpu(y), **kwargs)
        expected, wanted = ch.project_bilevel(y, **kwargs)
        np.testing.assert_allclose(to_host(x), expected, rtol=0, atol=1e-12)
        for name in FIELDS:
            have, want = to_host(getattr(info, name)), np.asarray(getattr(wanted, name))
            assert have.dtype == want.dtype
            assert have.shape == want.shape
            if name != "passes":
                np.testing.assert_allclose(have, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (20, 2), (9, 30)], ids=str)
@pytest.mark.parametrize("inner", ["linf", "l2"])
def test_groups_of_several_parts(groups, inner, check):
    y = np.random.default_rng(1).standard_normal((41, 70)) * np.linspace(9, 1, 41)[:, None]
    # Squares that overflow are done again, in another unit.
    y = y.astype(np.float32) if inner == "linf" else y * 2.0**600
    check(y, groups, inner, level=3.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "groups", ["columns", "rows", (1, 1), (2, 3), (1, 4), (3, 6), (7, 5)], ids=str
)
@pytest.mark.parametrize("inner", ["linf", "l2"])
def test_rows_of_wide_words(groups, inner, dtype, check):
    """Rows of whole words of 16 bytes, which are clipped or multiplied a word at a time."""
    for shape in ((30, 8), (300, 4), (2, 19, 12)):
        y = np.random.default_rng(6).standard_normal(shape).astype(dtype)
        check(y, groups, inner, level=1.5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (3, 65), (130, 2)])
def test_shapes(shape, check):
    y = np.random.default_rng(2).standard_normal(shape)
    for groups in ("columns", "rows", "diagonals", (2, 2)):
        check(y, groups, "l2", level=1.5)


@pytest.mark.parametrize("inner", INNER)
def test_labels(inner, check, to_gpu, to_host):
    rng = np.random.default_rng(3)
    y = rng.standard_normal((2, 9, 10))
    labels = rng.integers(0, 5, (9, 10)) * 5  # some groups are empty
    check(y, labels, level=[1.0, 2.0], inner=inner)
    whole = rng.integers(0, 20, y.shape).astype(np.int32)
    check(y, whole, radius=3.0, inner=inner)


def test_many_labels_one_large(check):
    rng = np.random.default_rng(4)
    labels = np.where(rng.random((20, 30)) < 0.9, 270, rng.integers(0, 270, (20, 30)))
    check(rng.standard_normal((20, 30)), labels, level=3.0, inner="l2")


@pytest.mark.parametrize("groups", ["columns", "diagonals", (5, 3)], ids=str)
@pytest.mark.parametrize("inner", INNER)
def test_batches(groups, inner, check):
    y = np.random.default_rng(5).standard_normal((2, 2, 8, 7))
    check(y, groups, level=np.array([[1.0, 2.0], [50.0, 1.5]]), inner=inner)


@pytest.mark.parametrize("groups", ["columns", (2, 2)], ids=str)
def test_feasible_input_comes_back_bit_for_bit(groups, to_gpu, to_host):
    y = np.random.default_rng(6).standard_normal((5, 6)).astype(np.float32)
    y[:, 1], y[2:4, 4] = -0.0, 0.0
    for inner in INNER:
        for kwargs in ({"level": 1e9}, {"radius": 1e9}):
            device = to_gpu(y)
            x = ch.project_bilevel(device, groups=groups, inner=inner, **kwargs)
            assert x is not device
            np.testing.assert_array_equal(to_host(x), y)
            if inner != "l2":
                np.testing.assert_array_equal(np.signbit(to_host(x)), np.signbit(y))


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("exponent", [-1000, -400, 900, 1020])
def test_scales(inner, exponent, to_gpu, to_host):
    y = np.random.default_rng(7).standard_normal((6, 5))
    y = np.clip(y, -1.9, 1.9)
    for kwargs, scaled in (
        ({"level": 2.0, "feasible": True},) * 2,
        ({"radius": 1.5}, {"radius": 1.5 * 2.0**exponent}),
    ):
        expected, _, _ = reference(y, labels_of("columns", 6, 5), inner, **kwargs)
        x, info = ch.project_bilevel(
            to_gpu(y * 2.0**exponent), **scaled, inner=inner, full_output=True
        )
        x = to_host(x) / 2.0**exponent
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-13)
        if inner == "linf":
            radii = to_host(info.radii) / 2.0**exponent
            np.testing.assert_allclose(
                radii.clip(max=np.abs(y).max(0)), np.abs(x).max(0), atol=1e-13
            )


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("feasible", [False, True])
def test_norms_that_are_projected_beyond_all_floats(inner, feasible, to_gpu, to_host):
    y = np.array([[0.9, 0.9, 0.5], [0.2, 0.1, 0.4]])
    kwargs = {"inner": inner, "feasible": feasible, "full_output": True}
    for z in (y, y[:, ::2].copy()):  # a tie, and none
        expected, wanted = ch.project_bilevel(z, 1.5, **kwargs)
        x, info = ch.project_bilevel(to_gpu(np.ldexp(z, 1024)), 1.5, **kwargs)
        np.testing.assert_allclose(np.ldexp(to_host(x), -1024), expected, rtol=1e-13)
        np.testing.assert_array_equal(to_host(info.kept), wanted.kept)


@pytest.mark.parametrize("inner", ["l2", "l1"])
def test_float32_at_its_limits(inner, to_gpu, to_host):
    y = np.random.default_rng(8).standard_normal((5, 6)).astype(np.float32)
    x, _, _ = reference(y, labels_of("columns", 5, 6), inner, level=4.0)
    for scale in (np.float32(2.0**-110), np.float32(2.0**120)):
        z = to_host(ch.project_bilevel(to_gpu(y * scale), 4.0, inner=inner))
        np.testing.assert_allclose(z / scale, x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("exponent", [-900, 900])
def test_the_level_that_is_reported_does_not_depend_on_the_unit(inner, exponent, to_gpu, to_host):
    y = np.random.default_rng(15).standard_normal((5, 6))
    for bound in ({"level": 2.5}, {"level": 99.0, "feasible": True}, {"radius": 3.0}):
        _, expected = ch.project_bilevel(y, **bound, inner=inner, full_output=True)
        unit = 2.0**exponent
        if "radius" in bound:
            bound = {"radius": 3.0 * unit}
        _, info = ch.project_bilevel(to_gpu(y * unit), **bound, inner=inner, full_output=True)
        got = to_host(info.level) / unit if "radius" in bound else to_host(info.level)
        assert abs(got / expected.level - 1) <= 1e-12


def test_zeros_and_ties(to_gpu, to_host):
    for inner in INNER:
        x, info = ch.project_bilevel(to_gpu(np.zeros((3, 4))), 2.0, inner=inner, full_output=True)
        assert not to_host(x).any()
        assert to_host(info.level) == 0.0
        assert not to_host(info.kept).any()
    x = to_host(ch.project_bilevel(to_gpu(np.ones((5, 6))), 2.0))
    np.testing.assert_array_equal(x.any(axis=0), [True, True, False, False, False, False])


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "bool"])
def test_dtypes(dtype, check):
    y = (4 * np.random.default_rng(9).standard_normal((6, 5))).astype(dtype)
    check(y, level=2.0)


def test_views_out_and_overwrite(to_gpu, to_host, transposed):
    y = np.random.default_rng(10).standard_normal((5, 6))
    expected, _, _ = reference(y, labels_of("rows", 5, 6), "linf", level=2.0)
    for view in (
        transposed(to_gpu(np.ascontiguousarray(y.T))),
        to_gpu(np.repeat(y, 2, axis=1))[:, ::2],
    ):
        x = to_host(ch.project_bilevel(view, 2.0, groups="rows"))
        np.testing.assert_allclose(x, expected, atol=1e-13)
    device, out = to_gpu(y), to_gpu(np.zeros_like(y))
    assert ch.project_bilevel(device, 2.0, groups="rows", out=out) is out
    np.testing.assert_allclose(to_host(out), expected, atol=1e-13)
    for inner in ("linf", "l1"):
        expected, _, _ = reference(y, labels_of("rows", 5, 6), inner, level=2.0)
        for out in (True, False):
            device = to_gpu(y)
            kwargs = {"out": device} if out else {"overwrite_x": True}
            x = ch.project_bilevel(device, 2.0, groups="rows", inner=inner, **kwargs)
            assert x is device
            np.testing.assert_allclose(to_host(device), expected, atol=1e-13)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 4, 4), (2, 0, 3)])
def test_empty(shape, to_gpu, to_host):
    for groups in ("columns", "diagonals", (2, 2)):
        y = np.empty(shape)
        device = to_gpu(y)
        x, info = ch.project_bilevel(device, 2.0, groups=groups, full_output=True)
        _, wanted = ch.project_bilevel(y, 2.0, groups=groups, full_output=True)
        assert to_host(x).shape == shape
        for name in FIELDS:
            np.testing.assert_array_equal(to_host(getattr(info, name)), getattr(wanted, name))
        np.testing.assert_array_equal(
            to_host(ch.level_for_groups(device, 2, groups=groups)),
            ch.level_for_groups(y, 2, groups=groups),
        )


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals"])
def test_not_finite(bad, groups, to_gpu, to_host):
    y = np.random.default_rng(11).standard_normal((3, 3, 5))
    y[1, 2, 3] = bad
    for inner in INNER:
        device = to_gpu(y)
        with pytest.raises(ValueError, match="x must be finite"):
            ch.project_bilevel(device, 2.0, groups=groups, inner=inner, out=device)
        np.testing.assert_array_equal(to_host(device), y)
        x = to_host(ch.project_bilevel(device, 2.0, groups=groups, inner=inner, check_finite=False))
        assert np.isnan(x[1]).all()
        assert np.isfinite(x[[0, 2]]).all()


def test_parameters_on_the_device(to_gpu, to_host):
    y = np.random.default_rng(12).standard_normal((3, 5, 4))
    levels = np.array([1.0, 2.0, 3.0])
    for name in ("level", "radius"):
        x = to_host(ch.project_bilevel(to_gpu(y), **{name: to_gpu(levels)}, inner="l2"))
        for one, part, value in zip(x, y, levels, strict=True):
            expected, _, _ = reference(part, labels_of("columns", 5, 4), "l2", **{name: value})
            np.testing.assert_allclose(one, expected, atol=1e-12)
    device = to_gpu(y)
    with pytest.raises(ValueError, match="level"):
        ch.project_bilevel(device, to_gpu(np.array([1.0, 0.5, 2.0])), out=device)
    np.testing.assert_array_equal(to_host(device), y)
    with pytest.raises(ValueError, match="radius"):
        ch.project_bilevel(device, radius=to_gpu(np.array([1.0, -1.0, 2.0])), inner="l2")


def test_errors(to_gpu):
    y = np.ones((4, 5))
    device = to_gpu(y)
    for kwargs, error, match in (
        ({}, ValueError, "exactly one of level and radius"),
        ({"level": 2.0, "radius": 1.0}, ValueError, r"both \(2.0 and 1.0\)"),
        ({"level": 0.5}, ValueError, r"level must be >= 1, got 0.5"),
        ({"radius": -1.0}, ValueError, "radius must be >= 0, got -1.0"),
        ({"level": 2.0, "inner": "l3"}, ValueError, "inner must be one of .*'l3'"),
        ({"level": 2.0, "groups": "blocks"}, ValueError, "groups must be .*'blocks'"),
        ({"level": 2.0, "groups": (0, 2)}, ValueError, r"groups: .*>= 1, got \(0, 2\)"),
        ({"level": 2.0, "groups": np.ones((4, 5), int)}, TypeError, "labels .* GPU"),
        ({"level": 2.0, "groups": to_gpu(np.ones((5, 4), int))}, ValueError, "labels must have"),
        ({"level": 2.0, "groups": to_gpu(-np.ones((4, 5), int))}, ValueError, "labels must be"),
        ({"level": 2.0, "groups": to_gpu(np.ones((4, 5)))}, TypeError, "groups must be .*float64"),
        ({"level": 2.0, "out": y}, TypeError, "out must lie on the GPU"),
    ):
        with pytest.raises(error, match=match):
            ch.project_bilevel(device, **kwargs)
    with pytest.raises(ValueError, match="x must"):
        ch.project_bilevel(to_gpu(np.ones(4)), 2.0)
    with pytest.raises(ValueError, match="n_groups must be >= 1, got 0"):
        ch.level_for_groups(device, 0)
    with pytest.raises(TypeError, match="n_groups must be integers"):
        ch.level_for_groups(device, 1.5)
    with pytest.raises(TypeError, match="GPU"):
        ch.level_for_groups(device, to_gpu(np.array([2])))
    with pytest.raises(TypeError, match="GPU"):
        ch.project_bilevel(y, 2.0, groups=to_gpu(np.ones((4, 5), int)))


@pytest.mark.parametrize("groups", ["columns", "diagonals", (2, 3)], ids=str)
def test_level_for_groups(groups, to_gpu, to_host):
    y = np.random.default_rng(13).standard_normal((2, 4, 7))
    for inner in ("linf", "l2"):
        level = ch.level_for_groups(to_gpu(y), [2, 3], groups=groups, inner=inner)
        expected = ch.level_for_groups(y, [2, 3], groups=groups, inner=inner)
        np.testing.assert_allclose(to_host(level), expected, rtol=1e-12)
        _, info = ch.project_bilevel(to_gpu(y), level, groups=groups, inner=inner, full_output=True)
        np.testing.assert_array_equal(to_host(info.kept).reshape(2, -1).sum(axis=1), [2, 3])


def test_level_of_what_is_not_finite(to_gpu):
    with pytest.raises(ValueError, match="x must be finite"):
        ch.level_for_groups(to_gpu(np.array([[1.0, 2.0], [np.nan, 1.0]])), 1)


def test_the_same_bits(to_gpu, to_host):
    y = to_gpu(np.random.default_rng(14).standard_normal((30, 20)).astype(np.float32))
    first = to_host(ch.project_bilevel(y, 3.0, inner="l2"))
    np.testing.assert_array_equal(to_host(ch.project_bilevel(y, 3.0, inner="l2")), first)


@pytest.mark.parametrize("scale", [1.0, 1e-320, 1e307])
@pytest.mark.parametrize("inner", INNER)
def test_an_infinite_radius_bounds_nothing(inner, scale, to_gpu, to_host):
    y = np.random.default_rng(22).standard_normal((3, 5, 7)) * scale
    radii = np.array([2.0 * scale, np.inf, np.inf])
    for given in (radii, to_gpu(radii)):
        x, info = ch.project_bilevel(to_gpu(y), radius=given, inner=inner, full_output=True)
        np.testing.assert_array_equal(to_host(x)[1:], y[1:])
        assert not to_host(info.kept)[0].all()
        assert to_host(info.kept)[1:].all()
    x = to_host(ch.project_bilevel(to_gpu(y), radius=np.inf, inner=inner))
    np.testing.assert_array_equal(x, y)
