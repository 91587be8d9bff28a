"""Tests of many clients draw the scores of a sample; numbers of a client are its own."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytest import approx

from skcfl import FedAvgRegressor
from skcfl.calls import differences_asked
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel


def test_draws_of_a_client_depend_on_it_alone():
    def numbers(places, draw=7):
        return [one.standard_normal(50) for one in differences_asked._generators(draw, places)]

    some = numbers(np.array([3, 8, 1]))
    assert_array_equal(numbers(np.array([1]))[0], some[2])
    assert (numbers(np.array([1]), draw=8)[0] != some[2]).all()
    assert np.abs(np.corrcoef(some) - np.eye(3)).max() < 0.5 and np.std(some) == approx(1, abs=0.2)


def test_drawn_scores_tell_no_more_than_sums_of_products():
    """The server knows the numbers that are drawn: they must not be multiples of single rows."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), rng.normal(size=40)
    model = LinearModel(alpha=0.0).bind(2)
    pool = open_rows(model, X, y, np.repeat([0, 1], 20), 2)
    for normal in (False, True):
        about = {"counted": np.array([True, False]), "normal": normal, "n_draws": 30}
        asked = np.zeros((1, 3)), np.zeros(2, dtype=int), np.zeros((1, 3, 3))
        sums, _, _, rows, scatter, _ = pool.ask(differences_asked.ScoreDraws, *asked, **about)
        design = np.column_stack([X, np.ones(40)])[:20]
        products = design.T @ design if normal else rows[0]
        (generator,) = differences_asked._generators(0, np.array([0]))
        order = np.diag(products).argsort()
        root = np.linalg.cholesky(products[np.ix_(order, order)])
        wanted = root @ generator.standard_normal((3, 30))
        assert_allclose(sums[0, order, 1:], wanted, atol=1e-7 * np.abs(wanted).max())
    # Squares of twenty rows' normal noise.
    assert scatter[1:].mean() == approx(20.0, abs=4.0)


def test_only_the_draws_are_of_a_sample(monkeypatch):
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(60), 6), rng.normal(size=(360, 2))
    y = X.sum(axis=1) + rng.normal(size=60)[groups] + rng.normal(size=360)

    def evidence():
        return FedAvgRegressor().fit(X, y, groups=groups)._how_sure

    every = evidence()
    monkeypatch.setattr("skcfl.reports.differences.MOST_DRAWN", 25)
    sample = evidence()
    for name in ("theta", "curvature", "by_rows", "by_clients"):
        assert_allclose(getattr(sample.common, name), getattr(every.common, name), rtol=1e-9)
    assert_allclose(sample.losses, every.losses)
    for test in (sample.no_difference, sample.intercepts_only):
        assert test.n_clients == 25 and test.n_draws == every.no_difference.n_draws
    assert sample.no_difference.p_value < 0.01
    assert sample.intercepts_only.p_value > 0.01


@pytest.mark.parametrize("few_rows", [True, False])
def test_noise_of_a_sample_is_drawn_once_for_both_sums(monkeypatch, few_rows):
    """The clients of a sample keep their drawn scores from the first call to the second."""
    monkeypatch.setattr("skcfl.reports.differences.MOST_DRAWN", 25)
    rng, n = np.random.default_rng(0), 6 if few_rows else 30
    groups, X = np.repeat(np.arange(60), n), rng.normal(size=(60 * n, 2))
    y, drawn, generators = X.sum(axis=1), [], differences_asked._generators

    def spy(draw, places):
        drawn.extend(places)
        return generators(draw, places)

    monkeypatch.setattr(differences_asked, "_generators", spy)
    model = FedAvgRegressor().fit(X, y, groups=groups)
    # Of no difference and of intercepts only; of the models of all clients there are no draws.
    assert len(drawn) == 2 * 25 + 60 and model._how_sure.no_difference.n_draws == 511
