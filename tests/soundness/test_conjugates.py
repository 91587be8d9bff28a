"""Bounds of conjugates against exact arithmetic: none is too small, by the last digit."""

from fractions import Fraction

import numpy as np
import pytest
from exact_fusion import exact, exact_solution
from numpy.testing import assert_allclose, assert_array_equal

from skcfl.calls.first_order import Objectives, ObjectivesGradients
from skcfl.calls.proofs_asked import Conjugate
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel, Location, _convex
from skcfl.models.losses import Huber


def conjugate(A, y, s, decay):
    """``f*(s)`` of least squares with rows `A` of equal weights and an L2 penalty a parameter."""
    A, y, s, weight = exact(A), exact(y), exact(s), Fraction(1, len(y))
    right = s + weight * A.T @ y
    x = exact_solution(weight * A.T @ A + np.diag(exact(decay)), right)
    return right @ x / 2 - weight * y @ y / 2


def least_squares(X, y, n_clients, alpha, fit_intercept):
    """Pool of clients with equal numbers of rows, of which a power of two has exact weights."""
    model = LinearModel(alpha=alpha, fit_intercept=fit_intercept, standardize=False)
    codes = np.repeat(np.arange(n_clients), len(y) // n_clients)
    return open_rows(model.bind(X.shape[1], dtype=float), X, y, codes, n_clients)


def short_by(pool, X, y, s, columns):
    """How much exact conjugates exceed their bounds, relatively."""
    bounds = pool.ask(Conjugate, s)
    assert np.isfinite(bounds).all()
    n, out = pool.n_clients, []
    for A, t, slopes, bound in zip(
        np.split(columns, n), np.split(y, n), s, bounds.tolist(), strict=True
    ):
        value = conjugate(A, t, slopes, pool.model.decay)
        assert bound - float(value) <= 1e-3 * (1.0 + abs(bound))
        out.append(float(value - Fraction(bound)))
    return np.array(out)


def test_free_slopes_and_sums_over_rows_are_rounded_up():
    """None of the bounds is too small."""
    rng = np.random.RandomState(0)
    # Features that hardly differ: models of 1e5, and constraints of them that rounding misses.
    X = rng.standard_normal((320, 1)) @ np.ones((1, 2))
    X[:, 1] += 1e-5 * rng.standard_normal(320)
    y = rng.standard_normal(320)
    pool = least_squares(X, y, 40, 0.0, False)
    s = pool.ask(ObjectivesGradients, 1e5 * rng.standard_normal((40, 1)) * [1.0, -1.0])[1]
    assert (short_by(pool, X, y, s, X) <= 0.0).all()
    # What cancels of large flows is no zero: an intercept of 1e8 makes much of it.
    X, y, s = np.ones((8, 1)), np.repeat([1e8, 0.0], 4), np.array([[0.0, 1e-13], [0.0, 1.0]])
    assert (short_by(least_squares(X, y, 2, 1.0, True), X, y, s, np.ones((8, 2))) <= 0.0).all()
    # At slopes where the best model is zero all of the conjugate is a sum over rows.
    X, y = rng.standard_normal((30 * 64, 1)), rng.standard_normal(30 * 64)
    pool = least_squares(X, y, 30, 1.0, False)
    s = pool.ask(ObjectivesGradients, np.zeros((30, 1)))[1]
    assert (short_by(pool, X, y, s, X) <= 0.0).all()


@pytest.mark.parametrize("beyond", [0.0, 5e-10])
@pytest.mark.parametrize(
    "model",
    [
        LinearModel(Huber(1.0), alpha=0.0, fit_intercept=False, standardize=False),
        Location("huber", delta=1.0),
    ],
    ids=["linear", "location"],
)
def test_slopes_a_little_too_large_are_paid_for_as_far_as_the_start(model, beyond, monkeypatch):
    """No row has slopes beyond delta: those that a flow has by rounding pull all the way.

    The search for the maximiser, which is nowhere, is cut short.
    """
    monkeypatch.setattr(
        _convex, "newton", lambda oracle, x, *a, **k: (x, np.zeros(len(x)), np.ones(len(x)))
    )
    pool = open_rows(model.bind(1), np.ones((5, 1)), np.zeros(5), np.zeros(5, dtype=int), 1)
    s, start = np.array([[1.0 + beyond]]), np.array([[1e6]])
    bound = pool.ask(Conjugate, s, start)
    assert np.isfinite(bound).all()
    assert bound[0] >= (s * start).sum() - pool.ask(Objectives, start)[0]


def test_bounds_that_are_good_for_nothing_are_bounds():
    """Where the maximiser is further off than is allowed the search for it is cut short."""
    rng = np.random.RandomState(0)
    X, codes = rng.standard_normal((160, 6)), np.repeat(np.arange(8), 20)
    y, weights = rng.randint(0, 2, 160), 10.0 ** rng.uniform(-12, 12, 160)
    model = LinearModel("log_loss", alpha=1e-13).bind(6, 2)
    pool = open_rows(model, X, y, codes, 8, weights)
    start = 0.1 * rng.standard_normal((8, pool.n_params))
    values, slopes = pool.ask(ObjectivesGradients, start)
    away = slopes + 1e-4 * rng.standard_normal(slopes.shape)
    away[:, -1] = slopes[:, -1]
    tight, cut = pool.ask(Conjugate, away, start), pool.ask(Conjugate, away, start, 1e-3)
    assert (cut >= tight - 1e-6 * np.abs(tight)).all() and (cut > 1.01 * tight).any()
    assert np.isfinite(cut).all()
    # What is allowed is of use only where there is a start, and what is near is found anyway.
    assert_array_equal(pool.ask(Conjugate, away, None, 1e-3), pool.ask(Conjugate, away))
    near = (slopes * start).sum(axis=1) - values
    assert_allclose(pool.ask(Conjugate, slopes, start, 1e-9), near, atol=1e-9)


def test_a_start_is_left_early_only_where_it_is_far_too_low():
    """Bounds from a start are those from none, unless less is allowed than is to be gained."""
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((60, 3)), rng.randint(0, 2, 60)
    model = LinearModel("log_loss", alpha=0.1, standardize=False).bind(3, 2, dtype=float)
    pool = open_rows(model, X, y, np.repeat(np.arange(4), 15), 4)
    x = rng.standard_normal((4, 4))
    s, far = pool.ask(ObjectivesGradients, x)[1], x + 4.0
    bounds = pool.ask(Conjugate, s)
    for options in ({}, {"allowed": 1e6}):
        assert_allclose(pool.ask(Conjugate, s, far, **options), bounds, rtol=1e-9)
    assert (pool.ask(Conjugate, s, far, allowed=1e-3) > bounds + 1e-3).all()
