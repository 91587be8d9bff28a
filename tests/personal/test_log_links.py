"""Losses whose curvature has no bound: local steps raise nothing, and nobody is rejected."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from trials import some

from skcfl import FedALARegressor, FedAvgRegressor, FedRepRegressor, PerFedAvgRegressor
from skcfl.calls.first_order import LocalUpdate, MetaUpdate, MoreauUpdate, Objectives
from skcfl.federation import InProcessFederation
from skcfl.models import MLP, LinearModel


def table(loss, seed):
    """Counts or amounts of 20 clients with two to nineteen rows."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(20), rng.integers(2, 20, 20))
    X = rng.normal(size=(len(groups), 4))
    mean = np.exp(np.clip(X @ rng.normal(size=4), -4, 4))
    y = rng.poisson(mean) if loss == "poisson" else mean * rng.gamma(2.0, 0.5, len(mean)) + 1e-9
    if loss == "tweedie":
        y = y * (rng.random(len(y)) < 0.6)
    return X, y, groups


LOSSES = ["tweedie", "poisson", "gamma"]
CLASSES = [FedALARegressor, FedRepRegressor, PerFedAvgRegressor]
PAIRS = [(cls, LOSSES[(k + j) % 3]) for j in range(3) for k, cls in enumerate(CLASSES)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("cls", "loss"), some(PAIRS, 3))
def test_sound_clients_are_not_rejected(cls, loss):
    for seed in some((1, 0, 2, 3, 4, 5), 1):
        X, y, groups = table(loss, seed)
        model = cls(loss=loss, max_iter=60, random_state=0).fit(X, y, groups=groups)
        assert not model.rejected_clients_.size
        error = np.abs(model.predict(X, groups=groups) - y).mean()
        assert error < 0.75 * np.abs(y - y.mean()).mean()


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_long_steps_raise_no_objective(loss):
    X, y, groups = table(loss, 0)
    pool = InProcessFederation(X, y, groups).open(LinearModel(loss, alpha=0.1).bind(4), 0)
    w = np.tile(pool.start(), (20, 1))
    before = pool.ask(Objectives, w)
    for step in (1e-3, 1.0, 1e3):
        assert (pool.ask(Objectives, pool.ask(LocalUpdate, w, 5, step)) <= before).all()
        inner = np.full(20, 1e-3)
        ahead = [
            pool.ask(Objectives, pool.ask(LocalUpdate, start, 1, inner))
            for start in (pool.ask(MetaUpdate, w, 5, step, inner, exact=True), w)
        ]
        assert (ahead[0] <= ahead[1] + 1e-12).all()
    # Short steps are those of gradient descent.
    one = pool.ask(LocalUpdate, w, 1, 1e-6)
    twice = pool.ask(LocalUpdate, one, 1, 1e-6)
    assert_allclose(pool.ask(LocalUpdate, w, 2, 1e-6), twice, rtol=1e-12)
    assert (one != w).any()
    meta = w - pool.ask(MetaUpdate, w, 1, 1e-6, inner, exact=True)
    for k, direction in enumerate(np.eye(w.shape[1]) * 1e-5):
        after, ago = (
            pool.ask(Objectives, pool.ask(LocalUpdate, w + there, 1, inner))
            for there in (direction, -direction)
        )
        assert_allclose(meta[:, k] / 1e-6, (after - ago) / 2e-5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", some(range(5), 1))
def test_rounds_of_one_step_end_at_the_minimum(seed):
    """A client that takes its step back, as it raises its loss, would be in no mean."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(6), 20)
    X = rng.normal(size=(120, 3))
    y = rng.poisson(np.exp(X @ [0.5, -0.3, 0.2] + rng.normal(size=6)[groups]))
    how = {"loss": "poisson", "alpha": 1e-3}
    wanted = FedAvgRegressor(**how).fit(X, y, groups=groups).cluster_params_
    shared = FedRepRegressor("linear", **how, tol=1e-9, max_iter=2000).fit(X, y, groups=groups)
    assert_allclose(shared.cluster_params_, wanted, atol=1e-5)
    near = PerFedAvgRegressor(**how, inner_step=1e-9, max_iter=2000).fit(X, y, groups=groups)
    assert_allclose(near.cluster_params_, wanted, atol=1e-5)


def test_networks_train_as_they_are_told():
    """Their steps are not undone where they raise the loss."""
    network = MLP((3,), loss="poisson", standardize=False)
    pool = InProcessFederation(*table("poisson", 0)).open(network.bind(4), 0)
    w = np.tile(pool.start(), (20, 1))
    w[:, -1] = 3.0
    moved = pool.ask(LocalUpdate, w, 1, 0.1, "sgd")
    assert (pool.ask(Objectives, moved) > pool.ask(Objectives, w)).any()


@pytest.mark.parametrize("model", [LinearModel("poisson", alpha=0.1), MLP((3,), loss="poisson")])
def test_pulled_models_move(model):
    """By the steps of each envelope, which train towards one centre after the other."""
    pool = InProcessFederation(*table("poisson", 0)).open(model.bind(4), 0)
    w = np.tile(pool.start(), (20, 1))
    last = pool.ask(MoreauUpdate, w, 5, 1e-3, 1.0, 0.5)
    assert (pool.ask(Objectives, last) < pool.ask(Objectives, w)).all()
