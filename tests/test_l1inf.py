"""The exact projection onto the l1,inf ball: certificates, SLSQP, and identities."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from test_bilevel import KINDS, labels_of

import conehoyer as ch
from conehoyer import bilevel


def violation(y, x, labels, radius):
    """Largest violation of the optimality conditions of one matrix."""
    a = np.abs(y).astype(np.longdouble)
    b = np.abs(x).astype(np.longdouble)
    count = labels.max() + 1
    u = np.zeros(count, np.longdouble)
    lost = np.zeros(count, np.longdouble)
    total = np.zeros(count, np.longdouble)
    np.maximum.at(u, labels, b)
    np.add.at(lost, labels, a - b)
    np.add.at(total, labels, a)
    theta = lost[u > 0].max(initial=0)
    signs = np.any((x != 0) & (np.sign(x) != np.sign(y)))
    clipped = np.abs(b - np.minimum(a, u[labels])).max()
    kept = np.abs(lost[u > 0] - theta).max(initial=0)
    dropped = (total[u == 0] - theta).max(initial=0) if np.any(u > 0) else 0
    # the sum of many equal bounds keeps the rounding of one of them many times over
    excess = abs(u.sum() - radius) / max(radius, 1e-300) * a.max()
    return float(max(clipped, kept, dropped, excess, signs))


@pytest.mark.parametrize("groups", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (12, 1), (30, 20), (200, 90)])
def test_optimality_conditions(groups, shape):
    rng = np.random.default_rng(shape[1])
    labels = labels_of(groups, *shape)
    for y in (
        rng.standard_normal(shape),
        rng.standard_cauchy(shape),
        rng.integers(-3, 4, shape).astype(float),
        np.asarray(rng.laplace(size=shape), order="F"),
    ):
        tops = np.zeros(labels.max() + 1)
        np.maximum.at(tops, labels, np.abs(y))
        for share in (0.001, 0.1, 0.5, 0.95):
            radius = share * tops.sum()
            x, info = ch.project_l1inf_ball(y, radius, groups=groups, full_output=True)
            assert violation(y, x, labels, radius) <= 1e-10 * max(np.abs(y).max(), 1e-300)
            assert info.level == pytest.approx(radius, rel=1e-12)
            np.testing.assert_array_equal(
                np.broadcast_to(info.mask, shape), info.kept.ravel()[labels]
            )


def test_nearest_point_by_slsqp():
    rng = np.random.default_rng(1)
    for _ in range(3):
        y = rng.standard_normal((3, 2))
        x = ch.project_l1inf_ball(y, 1.5)
        a = np.abs(y)

        def distance(v, a=a):
            return np.sum((v[:6].reshape(3, 2) - a) ** 2)

        bounds = [(0, None)] * 8
        found = minimize(
            distance,
            np.zeros(8),
            bounds=bounds,
            method="SLSQP",
            constraints=[
                {"type": "ineq", "fun": lambda v: (v[6:] - v[:6].reshape(3, 2)).ravel()},
                {"type": "ineq", "fun": lambda v: 1.5 - v[6:].sum()},
            ],
            options={"maxiter": 500, "ftol": 1e-14},
        )
        np.testing.assert_allclose(np.abs(x).ravel(), found.x[:6], atol=1e-5)
        assert np.sum((x - y) ** 2) <= found.fun + 1e-10
        near = ch.project_bilevel(y, radius=1.5)
        assert np.sum((x - y) ** 2) <= np.sum((near - y) ** 2) + 1e-12


def test_identities():
    y = np.random.default_rng(2).standard_normal((40, 30))
    rows = ch.project_l1inf_ball(y, 5.0, groups="rows")
    np.testing.assert_allclose(ch.project_l1inf_ball(y.T.copy(), 5.0).T, rows, atol=1e-13)
    np.testing.assert_allclose(
        ch.project_l1inf_ball(y, 5.0, groups=(1, 1)),
        ch.project_l1_ball(y, 5.0, axis=None),
        atol=1e-13,
    )
    one = ch.project_l1inf_ball(y, 0.5, groups=(40, 30))  # one group: a clip
    np.testing.assert_allclose(one, np.clip(y, -0.5, 0.5), atol=1e-14)
    batch = np.stack([y, 2 * y, -y])
    np.testing.assert_array_equal(
        ch.project_l1inf_ball(batch, [5.0, 1.0, 3.0]),
        [ch.project_l1inf_ball(m, r) for m, r in zip(batch, [5.0, 1.0, 3.0], strict=True)],
    )


def test_feasible_zero_and_special():
    y = np.random.default_rng(3).standard_normal((6, 5))
    x, info = ch.project_l1inf_ball(y, 1e6, full_output=True)
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(info.radii, np.abs(y).max(axis=0))
    assert not ch.project_l1inf_ball(y, 0.0).any()
    assert not ch.project_l1inf_ball(np.zeros((3, 3)), 1.0).any()
    assert ch.project_l1inf_ball(np.empty((0, 3)), 1.0).shape == (0, 3)
    again = ch.project_l1inf_ball(ch.project_l1inf_ball(y, 2.0), 2.0)
    np.testing.assert_allclose(again, ch.project_l1inf_ball(y, 2.0), rtol=1e-13)


@pytest.mark.parametrize("exponent", [-1000, -300, 300, 1020])  # 2^1020: a row's sum overflows
def test_scales(exponent):
    y = np.random.default_rng(4).standard_normal((10, 400))
    scale = 2.0**exponent
    x = ch.project_l1inf_ball(y, 5.0, groups="rows")
    z = ch.project_l1inf_ball(y * scale, 5.0 * scale, groups="rows")
    np.testing.assert_allclose(z / scale, x, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("every_array_is_large")
@pytest.mark.parametrize("groups", ["columns", "rows", "diagonals", (7, 9)], ids=str)
def test_workers_and_float32(groups):
    y = np.random.default_rng(5).standard_normal((400, 500)).astype(np.float32)
    one = ch.project_l1inf_ball(y, 20.0, groups=groups)
    np.testing.assert_array_equal(one, ch.project_l1inf_ball(y, 20.0, groups=groups, workers=2))
    assert one.dtype == np.float32
    wide = ch.project_l1inf_ball(y.astype(float), 20.0, groups=groups)
    np.testing.assert_allclose(one, wide, atol=2e-6)


def test_the_cap_is_reported(monkeypatch):
    y = np.random.default_rng(6).standard_normal((30, 20))
    _, info = ch.project_l1inf_ball(y, 5.0, full_output=True)
    assert info.converged
    assert 1 < info.passes < 30
    monkeypatch.setattr(bilevel, "_MOST_ROUNDS", 1)
    message = "1 of 1 projections stopped at the cap"
    with pytest.warns(ch.ConvergenceWarning, match=message) as caught:
        x, info = ch.project_l1inf_ball(y, 5.0, full_output=True)
    assert caught[0].filename == __file__
    assert not info.converged
    assert np.abs(x).max(axis=0).sum() <= np.abs(y).max(axis=0).sum()


def test_errors():
    y = np.ones((3, 4))
    for bad in (np.nan, np.inf):
        z = y.copy()
        z[1, 1] = bad
        with pytest.raises(ValueError, match="x must be finite"):
            ch.project_l1inf_ball(z, 1.0)
        assert np.isnan(ch.project_l1inf_ball(z, 1.0, check_finite=False)).all()
    for bad in (-2.0, np.nan, -np.inf):
        with pytest.raises(ValueError, match=f"^radius must be >= 0, got {bad}$"):
            ch.project_l1inf_ball(y, bad)
    with pytest.raises(ValueError, match="groups must be"):
        ch.project_l1inf_ball(y, 1.0, groups="cells")


@given(
    hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=8),
        elements=st.one_of(st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, width=16)),
    ),
    st.sampled_from(KINDS),
    st.floats(0.01, 0.99),
)
def test_optimality_on_anything_hypothesis_finds(y, groups, share):
    labels = labels_of(groups, *y.shape)
    tops = np.zeros(labels.max() + 1)
    np.maximum.at(tops, labels, np.abs(y))
    radius = share * tops.sum()
    x = ch.project_l1inf_ball(y, radius, groups=groups)
    if radius > 0:
        assert violation(y, x, labels, radius) <= 1e-10 * np.abs(y).max()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("share", [1e-4, 1e-7, 1e-10, 1e-13, 1e-16, 1e-30])
def test_a_small_radius_is_met(share, dtype):
    for seed, groups in enumerate(KINDS):
        y = np.random.default_rng(seed).standard_normal((30, 20)).astype(dtype)
        labels = labels_of(groups, 30, 20)
        tops = np.zeros(labels.max() + 1)
        np.maximum.at(tops, labels, np.abs(y))
        radius = share * tops.sum()
        x, info = ch.project_l1inf_ball(y, radius, groups=groups, full_output=True)
        assert info.level == pytest.approx(radius, rel=1e-14, abs=0)
        norms = np.zeros(labels.max() + 1)
        np.maximum.at(norms, labels, np.abs(x))
        assert norms.sum() == pytest.approx(
            radius, rel=1e-14 if dtype == "float64" else 2e-7, abs=0
        )
        assert violation(y, x, labels, radius) <= (1e-10 if dtype == "float64" else 1e-5)
        again = ch.project_l1inf_ball(x, radius, groups=groups)
        np.testing.assert_array_equal(again, x)


def test_a_radius_below_the_rounding_of_theta():
    x = ch.project_l1inf_ball([[3.0, 1.0], [2.0, 0.5]], 1e-12)
    np.testing.assert_array_equal(x, [[1e-12, 0.0], [1e-12, 0.0]])


@pytest.mark.parametrize("radius", [1e-32, 1e-37, 1e-300])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e280, 1e300])
def test_a_radius_far_below_the_data(radius, scale):
    """Of one group, and of several: the bounds add up to it, whatever digits θ has."""
    for y in ([[0.1, 0.2, 0.3]], [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [0.1, 0.0, 0.0]]):
        y = scale * np.array(y)
        x, info = ch.project_l1inf_ball(y, radius, groups="rows", full_output=True)
        assert info.converged
        assert np.abs(x).max(axis=1).sum() == pytest.approx(radius, rel=1e-13, abs=0)
        assert info.radii.sum() == pytest.approx(radius, rel=1e-13, abs=0)
        assert info.level == pytest.approx(radius, rel=1e-13, abs=0)


def test_a_bound_that_lands_on_an_entry():
    """Rounding once took it back and forth past the entry, until the cap."""
    one = [[0.7, 0.7], [0.9, 0.9]], 1.4
    other = [[4], [4], [3], [5], [1], [1], [0], [1]], 3.0
    for y, radius in (one, other):
        _, info = ch.project_l1inf_ball(y, radius, full_output=True)
        assert info.converged
        assert info.passes <= 4
    rng = np.random.default_rng(0)
    for _ in range(1000):
        column = rng.standard_normal(rng.integers(2, 9)).round(rng.integers(0, 3))
        y = np.tile(column[:, None], (1, rng.integers(1, 5)))
        radius = abs(rng.choice(column)) * y.shape[1]
        x, info = ch.project_l1inf_ball(y, radius, full_output=True)
        assert info.converged
        assert info.passes <= 12
        if radius > 0:
            assert violation(y, x, labels_of("columns", *y.shape), radius) <= 1e-12


def test_labels_without_columns():
    labels = np.zeros((3, 0), int)
    assert ch.project_l1inf_ball(np.zeros((3, 0)), 2.0, groups=labels).shape == (3, 0)
    assert ch.project_bilevel(np.zeros((3, 0)), 2.0, groups=labels).shape == (3, 0)
    assert ch.level_for_groups(np.zeros((3, 0)), 2, groups=labels) == 1.0
    batch = np.zeros((2, 3, 0))
    assert ch.project_bilevel(batch, 2.0, groups=batch.astype(int)).shape == (2, 3, 0)


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [("float64", -1060), ("float64", 1000), ("float32", -140), ("float32", 110)],
)
@pytest.mark.parametrize("radius", [5.0, 99.0, 0.0])
def test_the_report_has_the_unit_of_the_data(dtype, exponent, radius):
    y = np.random.default_rng(4).integers(-8, 9, (10, 40)) / 8.0
    expected, report = ch.project_l1inf_ball(y, radius, groups="rows", full_output=True)
    z = np.ldexp(y, exponent).astype(dtype)
    scaled = np.ldexp(radius, exponent)
    x, info = ch.project_l1inf_ball(z, scaled, groups="rows", full_output=True)
    few = 2.0 ** max(-20, (-149 if dtype == "float32" else -1074) - exponent)  # subnormals
    np.testing.assert_allclose(np.ldexp(x.astype(float), -exponent), expected, rtol=0, atol=few)
    np.testing.assert_array_equal(info.kept, report.kept)
    for name in ("radii", "threshold", "level"):
        got = np.ldexp(getattr(info, name), -exponent)
        np.testing.assert_allclose(got, getattr(report, name), rtol=1e-6, atol=few)


def test_sums_that_overflow():
    y = np.full((6, 40), 1.5e308)
    y[0] = 0.0
    y[1, 1:] = 0.0  # a sum that does not overflow by itself
    x, info = ch.project_l1inf_ball(y, 1e308, groups="rows", full_output=True)
    expected = ch.project_l1inf_ball(np.ldexp(y, -100), np.ldexp(1e308, -100), groups="rows")
    assert info.converged
    np.testing.assert_allclose(np.ldexp(x, -100), expected, rtol=1e-13)


def test_bounds_that_add_up_beyond_the_largest_float():
    y = np.full((1000, 1), 1e306)
    x, info = ch.project_l1inf_ball(y, 1e308, groups="rows", full_output=True)
    assert info.converged
    np.testing.assert_allclose(x, 1e305, rtol=1e-12)


def test_small_groups_of_what_fits_are_reported():
    y = np.full((2, 40), 1.7e308)
    y[1] = 1.23e-300
    x, info = ch.project_l1inf_ball(y, 1.75e308, groups="rows", full_output=True)
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(info.radii, [1.7e308, 1.23e-300])


@pytest.mark.parametrize("width", [2, 7, 42])
def test_blocks_of_one_row_of_which_the_last_is_narrower(width):
    y = np.random.default_rng(0).standard_normal((60, 43))
    labels = np.arange(60)[:, None] * 22 + np.arange(43) // width
    labels = np.unique(labels, return_inverse=True)[1].reshape(y.shape)
    x = ch.project_l1inf_ball(y, 30.0, groups=(1, width))
    np.testing.assert_allclose(x, ch.project_l1inf_ball(y, 30.0, groups=labels), atol=1e-14)
    assert 0 < np.count_nonzero(x) < x.size
