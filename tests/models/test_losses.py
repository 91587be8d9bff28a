"""Losses: every test runs over the LOSSES table, so that a new loss is tested as it is added."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loss_objects import loss_of
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, psi, softmax
from trials import examples

from skcfl.models.losses import (
    CLASSIFICATION_LOSSES,
    LOSSES,
    REGRESSION_LOSSES,
    Gamma,
    Huber,
    Quantile,
    SquaredError,
    Tweedie,
    make_loss,
)
from skcfl.testing import check_loss

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
    loss = make_loss(name, n_classes)
    if name in CLASSIFICATION_LOSSES:
        target = rng.integers(n_classes, size=n)
    else:
        target = np.round(rng.exponential(3.0, size=n), 1)
        target += 0.1 * (loss.target_range == "positive")
    loss.check_target(target)
    z = rng.normal(scale=size, size=(loss.n_outputs(n_classes), n)).astype(dtype)
    return loss, z, loss.encode(target, n_classes, dtype).T


def test_table_and_kinds_agree():
    assert set(LOSSES) == set(REGRESSION_LOSSES) | set(CLASSIFICATION_LOSSES)
    for name in LOSSES:
        assert make_loss(name, n_classes=2).classifier == (name in CLASSIFICATION_LOSSES)


@every_loss
@examples(3)
@given(
    seed=seeds,
    delta=st.floats(0.01, 10.0),
    power=st.floats(1.0, 2.0),
    quantile=st.floats(0.01, 0.99),
    smoothing=st.floats(0.01, 1.0),
)
def test_every_loss_passes_the_check(name, n_classes, seed, **parameters):
    check_loss(loss_of(name, **parameters), n_classes=n_classes, random_state=seed)


@every_loss
@examples(5)
@given(seed=seeds)
def test_max_curvature_bounds_and_is_reached(name, n_classes, seed):
    loss, z, y = rows(name, n_classes, seed, n=400)
    bound = loss.max_curvature
    if not np.isfinite(bound):
        assert max(loss.curvature(z + move, y).max() for move in (-40.0, 40.0)) > 1e6
        return
    C, n = z.shape
    z[:, : n // 2] *= 1e-3
    # Two outputs far above the others: the largest curvature of softmax.
    z[: max(C // 2, 1), : n // 2] += 20.0 if loss.coupled else 0.0
    if name == "quantile":
        z[:, 0] = y[:, 0]  # curved where residuals are smaller than its smoothing
    H = np.zeros((n, C, C))
    for a, outputs, h in loss.curvature_blocks(z, y):
        H[:, a, outputs] = H[:, outputs, a] = h.T
    top = np.linalg.eigvalsh(H)
    assert top.max() <= bound * (1 + 1e-12)
    assert top.max() >= 0.99 * bound
    assert top.min() >= -1e-12


@examples(10)
@given(seed=seeds, n_classes=st.integers(3, 8), spread=st.sampled_from([1.0, 40.0, 2000.0]))
def test_factors_of_classes_have_their_rank(seed, n_classes, spread):
    loss, z, y = rows("log_loss", n_classes, seed)
    p = loss.probabilities(z * spread).T
    R = loss.curvature_factors(z * spread, y)
    assert R.shape == (len(p), n_classes, n_classes - 1)
    W = np.einsum("na,ab->nab", p, np.eye(n_classes)) - p[:, :, None] * p[:, None]
    assert_allclose(R @ R.transpose(0, 2, 1), W, atol=1e-15)


def test_huber_has_a_majorant_where_its_curvature_vanishes():
    loss = Huber()
    z, y = np.array([[-100.0, 0.0, 100.0]]), np.zeros((1, 3))
    assert_array_equal(loss.curvature(z, y), [[0, 1, 0]])
    assert_allclose(loss.newton_curvature(z, y, 1.0), [[DELTA / 100, 1, DELTA / 100]])


class Wrong:
    """A loss of the package with one thing changed."""

    def __init__(self, name, method, change):
        self.name, self.method, self.change = name, method, change

    def made(self):
        base = type(make_loss(self.name))
        change, method = self.change, getattr(base, self.method)
        changed = property(change) if not callable(method) else None

        def instead(self, *args):
            return change(method(self, *args))

        return type("Wrong", (base,), {self.method: changed or instead})()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Wrong("log_loss", "gradient", lambda a: 1.001 * a), "gradient is not the derivative"),
        (Wrong("poisson", "curvature", lambda h: 0.99 * h), "not the derivative of gradient"),
        (Wrong("huber", "max_curvature", lambda self: 0.9), "max_curvature must bound"),
        (Wrong("gamma", "conjugate", lambda c: c - 1e-6), "equality at gradients"),
        (Wrong("squared_error", "conjugate", lambda c: c + 1e-6), "equality at gradients"),
        (Wrong("tweedie", "steadiness", np.sqrt), "what is left of the curvature"),
        (Wrong("log_loss", "steadiness", np.sqrt), "what is left of the curvature"),
        (Wrong("gamma", "ceiling", np.sqrt), "ceiling must bound"),
        (Wrong("quantile", "steadiness", np.ones_like), "what is left of the curvature"),
        (Wrong("quantile", "newton_curvature", lambda h: 0.5 * h), "curvature"),
        (Wrong("huber", "project", lambda a: 1.5 * a), "project must not change slopes"),
        (Wrong("poisson", "grounded", lambda self: True), "grounded loss must"),
        (Wrong("squared_error", "quadratic", lambda self: False), "quadratic must say"),
        (Wrong("poisson", "output", lambda p: 2.0 * p), "output must invert the log link"),
        (Wrong("squared_error", "value", lambda v: v.astype(float)), "must have the type of z"),
        (Wrong("huber", "conjugate_terms", lambda v: 0.1 * v), "conjugate_terms must be sizes"),
        (Wrong("huber", "equivariant", lambda self: True), "of standardised targets, times unit"),
        (Wrong("tweedie", "unit", lambda u: 1.0), "of standardised targets, times unit"),
    ],
    ids=lambda value: f"{value.name}-{value.method}" if isinstance(value, Wrong) else "",
)
def test_the_check_says_what_is_wrong(wrong, message):
    with pytest.raises((AssertionError, RuntimeWarning), match=message):
        check_loss(wrong.made())


class Twice(SquaredError):
    """The squared error without its half: solvers would take its curvature for 1."""

    max_curvature = 2.0

    def value(self, z, y):
        return 2 * super().value(z, y)

    def gradient(self, z, y):
        return 2 * super().gradient(z, y)

    def curvature(self, z, y):
        return 2 * super().curvature(z, y)


def test_only_half_the_squared_error_is_quadratic():
    with pytest.raises(AssertionError, match="quadratic must say whether the curvature is 1"):
        check_loss(Twice())


# ------------------------------------------------------------------------------ conjugates


@every_loss
@examples(3)
@given(seed=seeds)
def test_conjugate_is_infinite_where_differences_have_no_end(name, n_classes, seed):
    """Inside of its domain ``check_loss`` compares it with ``sup_z <a, z> - l(z)``."""
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

    def difference(z):
        with np.errstate(over="ignore"):
            return (a * z).sum(axis=0) - loss.value(z, y)

    ways = [*np.eye(C), *-np.eye(C), np.ones(C), -np.ones(C)]
    far = np.max([difference(t * np.tile(way[:, None], 6)) for way in ways for t in (600, 1e6)], 0)
    finite = np.isfinite(found)
    assert (far[finite] <= found[finite] + 1e-6).all() and (far[~finite] > 10.0).all()
    if C == 1 and name not in ("squared_error", "tweedie"):
        outside = np.full((1, 6), 50.0)
        assert not np.isfinite(loss.conjugate(outside, y) + loss.conjugate(-outside, y)).any()


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


@pytest.mark.parametrize("y", [[-1.0, 2.0], [0.0, -1e-9]])
def test_counts_and_amounts_are_not_negative(y):
    with pytest.raises(ValueError, match="y must be positive for loss='gamma', got a smallest"):
        make_loss("gamma").check_target(np.abs(y) * [0.0, 1.0])
    for name in ("poisson", "tweedie"):
        with pytest.raises(
            ValueError, match=f"non-negative for loss='{name}', got a smallest.* -"
        ):
            make_loss(name).check_target(np.array(y))


def test_quantiles_are_means_of_the_pinball_loss_over_a_window():
    """But for a constant."""
    z, window = np.linspace(-1.0, 1.0, 21)[None], 0.7 * ((np.arange(4000) + 0.5) / 4000 - 0.5)
    moved = z.T + window
    wanted = np.maximum(0.7 * moved, -0.3 * moved).mean(axis=1)
    found = Quantile(0.3, smoothing=0.7).value(z, np.zeros((1, 21)))
    assert_allclose(np.diff(found), np.diff(wanted), atol=1e-6)


def test_windows_of_quantiles_are_in_units_of_the_targets():
    loss = Quantile(0.3)
    small = loss.in_units(1e-3)
    assert small.max_curvature == pytest.approx(1e3 * loss.max_curvature)
    z, y = np.array([[0.02, -0.3, 0.4]]), np.zeros((1, 3))
    assert_allclose(small.value(1e-3 * z, y), 1e-3 * loss.value(z, y))
    assert_allclose(small.gradient(1e-3 * z, y), loss.gradient(z, y))


@given(
    power=st.floats(1.0, 2.0, exclude_min=True, exclude_max=True),
    a=st.floats(-1e6, 1e6),
    y=st.one_of(st.just(0.0), st.floats(1e-6, 1e6)),
)
def test_conjugate_of_tweedie_is_a_bound_that_is_met(power, a, y):
    """Whatever the power, the slope and the target: at the prediction of this slope."""
    loss = Tweedie(power)
    a, y = np.array([[a]]), np.array([[y]])
    a = loss.project(a, y)
    bound, terms = loss.conjugate(a, y), loss.conjugate_terms(a, y)
    low, high = np.full((1, 1), -700.0), np.full((1, 1), 700.0)
    for _ in range(80):
        z = 0.5 * (low + high)
        with np.errstate(over="ignore"):
            up = loss.gradient(z, y) < a
        low, high = np.where(up, z, low), np.where(up, high, z)
    if abs(z) < 600:
        difference = (a * z)[0] - loss.value(z, y)
        size = np.abs(a * z)[0] + terms + loss.terms(z, y)
        assert (bound >= difference - 1e-14 * size).all()
        assert (bound <= difference + 1e-11 * size).all()


@pytest.mark.parametrize("deviance", [0.0, 1e-6, 1e-3, 0.1, 2.0, 30.0])
def test_the_dispersion_of_a_gamma_loss_is_that_of_greatest_likelihood(deviance):
    """But for rows that are interpolated, whose likelihood has no end."""
    dispersion = Gamma().dispersion_of(deviance)
    slope = np.log(1.0 / dispersion) - psi(1.0 / dispersion)
    assert_allclose(slope, 0.5 * max(deviance, 1e-8), rtol=1e-6, atol=1e-13)
