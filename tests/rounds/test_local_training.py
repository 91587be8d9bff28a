"""Local models: every client's own minimiser, nothing sent."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import skcfl.models._convex
from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Objectives
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel, Location
from skcfl.rounds.local_training import solve_local


def make_pool(loss, sizes=(12, 5, 0, 30, 1), weight_of_last=1.0):
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.normal(size=(len(codes), 3))
    y = rng.integers(2, size=len(codes)).astype(float)
    weights = np.where(codes == len(sizes) - 1, weight_of_last, 1.0)
    if loss == "location":
        return open_rows(Location(loss="huber").bind(3), X, None, codes, len(sizes), weights)
    model = LinearModel(loss=loss, alpha=0.1).bind(3, 2)
    return open_rows(model, X, y, codes, len(sizes), weights)


@pytest.mark.parametrize("loss", ["huber", "poisson", "log_loss", "location"])
def test_every_client_is_a_cluster_of_its_own(loss):
    pool = make_pool(loss)
    result = solve_local(pool)
    assert_array_equal(result.labels, np.arange(5))
    assert_array_equal(result.params, result.cluster_params)
    assert result.converged
    assert result.shortfall == ""
    assert result.n_iter == 1
    for i in range(5):
        alone = pool.subset([i])
        best, _ = alone.ask(Solve)
        values = [alone.ask(Objectives, models) for models in (result.params[i], best)]
        assert_allclose(*values, rtol=1e-9, atol=1e-12)
    values = pool.ask(Objectives, result.params)
    assert_allclose(result.objective, pool.client_weights @ values / pool.client_weights.sum())
    # One round without messages but for the models and their objectives.
    history = result.history
    assert {len(column) for column in history.values()} == {1}
    assert history["objective"] == result.objective
    assert history["n_clusters"] == history["participants"] == 5
    assert history["floats_up"] == result.params.size + len(result.params)
    assert history["floats_down"] == 0  # clients have their own models
    if loss == "log_loss":  # a client of weight zero has its penalty only
        result = solve_local(make_pool(loss, weight_of_last=0.0))
        assert result.converged
        assert_allclose(result.params[-1], 0.0, atol=1e-12)


def test_clients_short_of_their_minimiser_are_counted(monkeypatch):
    converged = skcfl.models._convex.newton
    monkeypatch.setattr(
        skcfl.models._convex, "newton", lambda *a, **k: converged(*a, **{**k, "max_iter": 1})
    )
    result = solve_local(make_pool("log_loss"))
    assert not result.converged
    # All but the client without rows.
    assert "4 of 5 clients" in result.shortfall
    assert "raise alpha" in result.shortfall
