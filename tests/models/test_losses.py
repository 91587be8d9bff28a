"""Losses: every test runs over the LOSSES table, so that a new loss is tested as it is added."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax

from skcfl.models.losses import CLASSIFICATION_LOSSES, LOSSES, REGRESSION_LOSSES, make_loss

CASES = [(name, None) for name in LOSSES if name in REGRESSION_LOSSES]
CASES += [(name, k) for name in LOSSES if name in CLASSIFICATION_LOSSES for k in (2, 4)]
DELTA = 1.35

every_loss = pytest.mark.parametrize(
    ("name", "n_classes"), CASES, ids=[f"{name}-{k}" if k else name for name, k in CASES]
)
seeds = st.integers(0, 2**32 - 1)


def rows(name, n_classes, seed, n=40, size=4.0, dtype=float):
    """A loss, predictions (C, n) around the targets, and encoded targets (q, n)."""
    rng = np.random.default_rng(seed)
    loss = make_loss(name, n_classes=n_classes, delta=DELTA)
    if name in CLASSIFICATION_LOSSES:
        target = rng.integers(n_classes, size=n)
    else:
        target = np.round(rng.exponential(3.0, size=n), 1)
    loss.check_target(target)
    z = rng.normal(scale=size, size=(loss.n_outputs(n_classes), n)).astype(dtype)
    return loss, z, loss.encode(target, n_classes, dtype).T


def unit(z, a):
    e = np.zeros_like(z)
    e[a] = 1.0
    return e


def test_table_and_kinds_agree():
    assert set(LOSSES) == set(REGRESSION_LOSSES) | set(CLASSIFICATION_LOSSES)
    for name in LOSSES:
        assert make_loss(name, n_classes=2).classifier == (name in CLASSIFICATION_LOSSES)


@every_loss
@settings(max_examples=15)
@given(seed=seeds)
def test_gradient_is_the_derivative(name, n_classes, seed):
    loss, z, y = rows(name, n_classes, seed)
    h = 1e-5
    for a in range(len(z)):
        e = h * unit(z, a)
        slope = (loss.value(z + e, y) - loss.value(z - e, y)) / (2 * h)
        exact = loss.gradient(z, y)[a]
        assert_allclose(slope, exact, rtol=1e-6, atol=1e-6 * (1 + np.abs(exact).max()))


@every_loss
@settings(max_examples=15)
@given(seed=seeds)
def test_curvature_product_is_the_second_derivative(name, n_classes, seed):
    loss, z, y = rows(name, n_classes, seed)
    u = np.random.default_rng(seed).normal(size=z.shape)
    h = 1e-5
    ahead = (loss.gradient(z + h * u, y) - loss.gradient(z, y)) / h
    behind = (loss.gradient(z, y) - loss.gradient(z - h * u, y)) / h
    # At a kink of the derivative the sides differ: nothing to compare with there.
    smooth = np.isclose(ahead, behind, rtol=1e-2, atol=1e-3)
    assert smooth.mean() > 0.9
    exact = loss.curvature_product(z, y, u)
    assert_allclose(
        (0.5 * (ahead + behind))[smooth],
        exact[smooth],
        rtol=1e-5,
        atol=1e-5 * (1 + np.abs(exact).max()),
    )


@every_loss
@settings(max_examples=15)
@given(seed=seeds, damping=st.floats(0, 1))
def test_curvature_blocks_are_the_matrix_of_the_product(name, n_classes, seed, damping):
    loss, z, y = rows(name, n_classes, seed)
    C, n = z.shape
    H = np.zeros((C, C, n))
    for a, b, h in loss.curvature_blocks(z, y, damping):
        assert b <= a
        H[a, b] = H[b, a] = h
    for b in range(C):
        assert_allclose(H[:, b], loss.curvature_product(z, y, unit(z, b), damping), atol=1e-13)
    if not loss.coupled:
        assert_allclose(
            loss.curvature_product(z, y, np.ones_like(z)), loss.curvature(z, y), rtol=1e-14
        )


@every_loss
@settings(max_examples=15)
@given(seed=seeds)
def test_max_curvature_bounds_and_is_reached(name, n_classes, seed):
    loss, z, y = rows(name, n_classes, seed, n=400)
    bound = loss.max_curvature
    if not np.isfinite(bound):
        assert loss.curvature(z + 20.0, y).max() > 1e6
        return
    C, n = z.shape
    z[:, : n // 2] *= 1e-3
    # Two outputs far above the others: the largest curvature of softmax.
    z[: max(C // 2, 1), : n // 2] += 20.0 if loss.coupled else 0.0
    H = np.zeros((n, C, C))
    for a, b, h in loss.curvature_blocks(z, y):
        H[:, a, b] = H[:, b, a] = h
    top = np.linalg.eigvalsh(H)
    assert top.max() <= bound * (1 + 1e-12)
    assert top.max() >= 0.99 * bound
    assert top.min() >= -1e-12


@every_loss
def test_quadratic_says_whether_the_curvature_is_constant(name, n_classes):
    loss, z, y = rows(name, n_classes, 0)
    H = [h for *_, h in loss.curvature_blocks(z, y)]
    assert loss.quadratic == all(np.ptp(h) == 0 for h in H)


@every_loss
def test_coupled_says_whether_a_common_shift_is_free(name, n_classes):
    loss, z, y = rows(name, n_classes, 0)
    free = np.allclose(loss.value(z + 1.7, y), loss.value(z, y), atol=1e-12)
    assert loss.coupled == free


@every_loss
@settings(max_examples=15)
@given(seed=seeds, damping=st.floats(0, 1))
def test_damped_curvature(name, n_classes, seed, damping):
    """No damping is the second derivative; full damping, where it differs, majorises."""
    loss, z, y = rows(name, n_classes, seed)
    if loss.coupled:
        return
    h, none, full = (loss.newton_curvature(z, y, d) for d in (damping, 0.0, 1.0))
    assert_array_equal(none, loss.curvature(z, y))
    assert_allclose(h, none + damping * (full - none), rtol=1e-12, atol=1e-15)
    differs = full > none
    step = np.random.default_rng(seed).normal(scale=5.0, size=z.shape)
    rise = loss.value(z + step, y) - loss.value(z, y)
    parabola = (loss.gradient(z, y) * step + 0.5 * full * step**2).sum(axis=0)
    assert (rise <= parabola + 1e-10)[differs.all(axis=0)].all()


def test_huber_has_a_majorant_where_its_curvature_vanishes():
    loss = make_loss("huber", delta=DELTA)
    z, y = np.array([[-100.0, 0.0, 100.0]]), np.zeros((1, 3))
    assert_array_equal(loss.curvature(z, y), [[0, 1, 0]])
    assert_allclose(loss.newton_curvature(z, y, 1.0), [[DELTA / 100, 1, DELTA / 100]])


# ------------------------------------------------------------------------------ conjugates


@every_loss
@settings(max_examples=25)
@given(seed=seeds, size=st.sampled_from([0.1, 1.0, 10.0]))
def test_fenchel_young(name, n_classes, seed, size):
    """``l(z) + l*(a) >= <a, z>``, with equality where `a` is the derivative at z."""
    loss, z, y = rows(name, n_classes, seed, size=size)
    value = loss.value(z, y)
    a = loss.gradient(z, y)
    tight = loss.conjugate(a, y)
    assert np.isfinite(tight).all()
    unit_size = 1.0 + np.abs(value) + np.abs(a * z).sum(axis=0)
    assert_allclose((value + tight - (a * z).sum(axis=0)) / unit_size, 0.0, atol=1e-13)
    other = np.roll(z, 1, axis=1) + 0.3
    gap = loss.value(other, y) + tight - (a * other).sum(axis=0)
    assert (gap >= -1e-12 * (unit_size + np.abs(loss.value(other, y)))).all()


@every_loss
@settings(max_examples=15)
@given(seed=seeds)
def test_projection_leads_into_the_domain_and_stays_there(name, n_classes, seed):
    loss, z, y = rows(name, n_classes, seed)
    inside = loss.gradient(z, y)
    assert_allclose(loss.project(inside, y), inside, rtol=1e-13, atol=1e-15)
    a = inside + np.random.default_rng(seed).normal(size=z.shape)
    projected = loss.project(a, y)
    assert np.isfinite(loss.conjugate(projected, y)).all()
    assert_allclose(loss.project(projected, y), projected, rtol=1e-13, atol=1e-15)
    was_inside = np.isfinite(loss.conjugate(a, y))
    assert_allclose(projected[:, was_inside], a[:, was_inside], rtol=1e-11)


@every_loss
@settings(max_examples=8)
@given(seed=seeds)
def test_conjugate_is_the_largest_difference(name, n_classes, seed):
    """Against the definition, ``sup_z <a, z> - l(z)``, also outside of the domain."""
    loss, _, y = rows(name, n_classes, seed, n=6)
    rng = np.random.default_rng(seed)
    C = loss.n_outputs(n_classes)
    a = rng.normal(scale=1.5, size=(C, 6))
    if loss.coupled:
        # Inside: a = p - e_y with p in the simplex. Every other row is pushed out.
        p = rng.dirichlet(np.ones(C), size=6).T
        a = p - np.eye(C)[y[0]].T
        a[:, ::2] += rng.normal(size=(C, 3))
    found = loss.conjugate(a, y)

    def best(radius):
        """Largest value over a box; outputs are climbed in turn (concave and smooth)."""
        z = np.zeros((C, 6))
        for _ in range(25 if C > 1 else 1):
            for k in range(C):
                low, high = np.full(6, -radius), np.full(6, radius)
                for _ in range(45):
                    z[k] = 0.5 * (low + high)
                    with np.errstate(over="ignore"):
                        up = a[k] > loss.gradient(z, y)[k]
                    low, high = np.where(up, z[k], low), np.where(up, high, z[k])
        return difference(z)

    def difference(z):
        with np.errstate(over="ignore"):
            return (a * z).sum(axis=0) - loss.value(z, y)

    finite = np.isfinite(found)
    inside = best(60.0)
    assert_allclose(found[finite], inside[finite], rtol=1e-6, atol=1e-6)
    # Where the conjugate is infinite, some direction leads out of every bound.
    ways = [*np.eye(C), *-np.eye(C), np.ones(C), -np.ones(C)]
    far = np.max([difference(t * np.tile(way[:, None], 6)) for way in ways for t in (600, 1e6)], 0)
    assert (far[~finite] > inside[~finite] + 1e-3).all()
    if C == 1 and name != "squared_error":
        outside = np.full((1, 6), 50.0)
        assert not np.isfinite(loss.conjugate(outside, y) + loss.conjugate(-outside, y)).any()


# ------------------------------------------------------------------------------- numerics


@every_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extreme_predictions_warn_of_nothing(name, n_classes, dtype):
    loss, z, y = rows(name, n_classes, 0, dtype=dtype)
    signs = np.sign(z) * np.where(np.arange(z.shape[1]) % 2, 1.0, -1.0)
    for size in (1e2, 1e3):
        far = (size * signs).astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            value, gradient = loss.value(far, y), loss.gradient(far, y)
            product = loss.curvature_product(far, y, np.ones_like(far))
        for result in (value, gradient, product):
            assert not np.isnan(result).any()
            assert result.dtype == dtype
        if np.isfinite(loss.max_curvature):
            assert np.isfinite(value).all()
            assert np.isfinite(gradient).all()


@every_loss
def test_inputs_are_left_alone(name, n_classes):
    loss, z, y = rows(name, n_classes, 0)
    kept = z.copy(), y.copy()
    a = loss.gradient(z, y)
    slopes = a.copy()
    loss.value(z, y), loss.curvature_product(z, y, z), loss.conjugate(a, y)
    assert_array_equal(z, kept[0])
    assert_array_equal(y, kept[1])
    assert_array_equal(a, slopes)


@every_loss
def test_targets_broadcast_over_models(name, n_classes):
    """Predictions (c, K, C, n) against targets (c, 1, q, n), as the pool asks for them."""
    parts = [rows(name, n_classes, seed, n=7) for seed in range(3)]
    loss = parts[0][0]
    y = np.stack([y for *_, y in parts])[:, None]
    z = np.stack([[z, z + 1.0, -z] for _, z, _ in parts])
    value, gradient = loss.value(z, y), loss.gradient(z, y)
    assert value.shape == (3, 3, 7)
    for i in range(3):
        for k in range(3):
            assert_allclose(value[i, k], loss.value(z[i, k], y[i, 0]), rtol=1e-14)
            assert_allclose(gradient[i, k], loss.gradient(z[i, k], y[i, 0]), rtol=1e-14)


# ----------------------------------------------------------------------------- predictions


def test_probabilities():
    z = np.random.default_rng(0).normal(scale=5, size=(30, 4))
    z[0] = [1e3, -1e3, 0, 999]
    several = make_loss("log_loss", n_classes=4)
    assert_allclose(several.proba(z), softmax(z, axis=1), rtol=1e-12)
    assert_array_equal(several.output(z), z.argmax(axis=1))
    two = make_loss("log_loss", n_classes=2)
    assert_allclose(two.proba(z[:, :1])[:, 1], expit(z[:, 0]), rtol=1e-12)
    assert_array_equal(two.output(z[:, :1]), z[:, 0] > 0)


def test_two_classes_are_the_softmax_of_a_difference():
    """log_loss with two outputs would be the same function: sanity of the signs."""
    rng = np.random.default_rng(1)
    z, code = rng.normal(size=(1, 20)), rng.integers(2, size=20)
    two = make_loss("log_loss", n_classes=2)
    several = make_loss("log_loss", n_classes=3)
    far = np.full((1, 20), -1e3)
    three = np.vstack([np.zeros((1, 20)), z, far])
    assert_allclose(
        two.value(z, two.encode(code, 2, float).T),
        several.value(three, several.encode(code, 3, float).T),
        rtol=1e-12,
    )


@pytest.mark.parametrize("y", [[-1.0, 2.0], [0.0, -1e-9]])
def test_poisson_refuses_negative_targets(y):
    with pytest.raises(ValueError, match="non-negative.*got a smallest value of -"):
        make_loss("poisson").check_target(np.array(y))


def test_outputs_by_number_of_classes():
    for name in CLASSIFICATION_LOSSES:
        shapes = [make_loss(name, n_classes=k).n_outputs(k) for k in (2, 3, 5)]
        assert shapes == [1, 3, 5]
    for name in REGRESSION_LOSSES:
        assert make_loss(name).n_outputs(None) == 1
