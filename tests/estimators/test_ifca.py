"""IFCA: what it recovers, its limits, its options."""

import numpy as np
import pytest
from clustered import classification, fit, regression
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    CLoVEClassifier,
    CLoVERegressor,
    FedAvgRegressor,
    IFCAClassifier,
    IFCARegressor,
    LocalModelsRegressor,
    OracleClustersRegressor,
    Training,
)
from skcfl.datasets import make_clustered_regression
from skcfl.rounds.alternate import Rounds

SEEDS = some(range(20), 2)


def counts(data):
    rate = np.exp(np.clip(data.y, -3, 3))
    data.y = np.random.RandomState(0).poisson(rate).astype(float)
    return data


WIDE = {"n_features": 30, "n_samples": (15, 25), "separation": 4.0, "noise": 0.1}
COUNTS = {"n_samples": (60, 90), "separation": 1.0, "noise": 0.0}
UPDATES = [
    Training(averaging=averaging, division=division)
    for averaging in ("gradient", "model")
    for division in ("cluster", "all")
]
FOUND = [(IFCARegressor(random_state=seed), regression(seed)) for seed in SEEDS]
FOUND += [(CLoVERegressor(random_state=seed), regression(seed)) for seed in SEEDS[:1]]
FOUND += [(CLoVEClassifier(random_state=seed), classification(seed)) for seed in SEEDS]
FOUND += [(IFCARegressor(training=update, random_state=0), regression(11)) for update in UPDATES]
FOUND += [
    (IFCARegressor(random_state=0), regression(0, **WIDE)),
    (IFCARegressor(loss="poisson", random_state=0), counts(regression(1, **COUNTS))),
]
for _seed in some(range(5), 1):
    FOUND += [
        (IFCAClassifier(random_state=_seed), classification(_seed)),
        (IFCAClassifier(random_state=_seed), classification(_seed, n_classes=3)),
        (IFCAClassifier(loss="squared_hinge", random_state=_seed), classification(_seed)),
        (IFCARegressor(loss="huber", random_state=_seed), regression(_seed)),
    ]


@pytest.mark.parametrize(("model", "data"), FOUND)
def test_separated_clusters_are_found(model, data):
    fit(model.set_params(n_clusters=3), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    assert model.n_clusters_ == 3


@pytest.mark.parametrize(("averaging", "polish"), [("gradient", True), ("model", False)])
def test_one_cluster_is_fedavg(averaging, polish):
    data = regression(4, n_clusters=1)
    training = Training(averaging=averaging, polish=polish)
    options = {"training": training, "max_iter": 20, "tol": 0}
    start = np.zeros((1, data.X.shape[1] + 1))
    start[:, -1] = data.y.mean()
    ifca = fit(IFCARegressor(n_clusters=1, init=start, **options), data)
    fed = fit(FedAvgRegressor(**options), data)
    assert_allclose(ifca.params_, fed.params_, rtol=1e-10, atol=1e-12)
    assert_allclose(ifca.history_["objective"], fed.history_["objective"])


def test_as_many_clusters_as_clients_is_local_models():
    data = regression(7, n_clients=8)
    local = fit(LocalModelsRegressor(), data)
    model = fit(IFCARegressor(n_clusters=8, init=local.params_, random_state=0), data)
    assert_allclose(model.params_, local.params_, atol=1e-9)
    assert model.n_clusters_ == 8


def test_known_clusters_are_each_clusters_pooled_fit():
    data = regression(8)
    ids = np.unique(data.groups)
    by_name = dict(zip(ids.tolist(), data.labels.tolist(), strict=True))
    oracle = fit(OracleClustersRegressor(labels=by_name), data)
    aligned = fit(OracleClustersRegressor(labels=data.labels), data)
    assert_array_equal(oracle.params_, aligned.params_)
    assert adjusted_rand_score(oracle.labels_, data.labels) == 1.0
    pooled = fit(OracleClustersRegressor(), data)
    assert_allclose(pooled.params_, fit(FedAvgRegressor(), data).params_, atol=1e-9)


def test_uniform_weights_count_every_client_once():
    data = regression(9, n_samples=(5, 100))
    model = fit(FedAvgRegressor(training=Training(weights="uniform"), alpha=0.0), data)
    _, codes, counts = np.unique(data.groups, return_inverse=True, return_counts=True)
    ridge = Ridge(alpha=0.0, tol=1e-12).fit(data.X, data.y, sample_weight=1.0 / counts[codes])
    assert_allclose(model.cluster_coef_[0], ridge.coef_, atol=1e-8)


def test_objective_falls_every_round():
    data = regression(10)
    options = {"init": "random", "n_init": 1, "training": Training(polish=False)}
    model = IFCARegressor(n_clusters=3, tol=0, max_iter=60, random_state=0, **options)
    history = fit(model, data).history_["objective"]
    # The choice leaves out the penalty of 1e-4, which may rise where clients move.
    assert (np.diff(history) <= 1e-3 * history[:-1]).all()


def test_division_by_all_steps_by_the_share_of_the_cluster():
    """Line 14 of the algorithm: the step on a model is gamma |S_j| / m."""
    data = regression(12)
    oracle = fit(OracleClustersRegressor(labels=data.labels), data)
    start = oracle.cluster_params_ + 0.1
    training = Training(step_size=0.01, polish=False, weights="uniform")
    model = IFCARegressor(3, init=start, max_iter=1, tol=0, training=training)
    by_cluster = fit(clone(model), data)
    by_all = fit(model.set_params(training__division="all"), data)
    share = by_cluster.cluster_sizes_[:, None] / 24
    first = start[np.argsort(-np.bincount(oracle.labels_), kind="stable")]
    assert_allclose(
        by_all.cluster_params_ - first, share * (by_cluster.cluster_params_ - first), rtol=1e-8
    )


def test_hold_out_breaks_the_lock_of_a_random_partition():
    """With rows not many more than features, clients recognise any model they trained."""
    locked, held = [], []
    for seed in (4, 5):  # starts that the clients lock
        data = regression(seed, n_features=12, n_samples=(13, 14), separation=3.0)
        wrong = np.random.RandomState(seed).randint(0, 3, 24)
        init = fit(OracleClustersRegressor(labels=wrong), data).cluster_params_
        for scores, share in ((locked, 0.0), (held, 0.3)):
            model = IFCARegressor(
                n_clusters=3, init=init, training=Training(hold_out=share), random_state=0
            )
            scores.append(adjusted_rand_score(data.labels, fit(model, data).labels_))
    assert np.mean(held) > np.mean(locked)


def test_stable_clients_are_sent_one_model():
    data = regression(15)
    options = {"n_clusters": 3, "n_init": 1, "random_state": 0, "tol": 0, "max_iter": 30}
    plain, saving = (
        fit(IFCARegressor(training=Training(stable_rounds=n, polish=False), **options), data)
        for n in (None, 3)
    )
    assert_array_equal(plain.labels_, saving.labels_)
    assert_allclose(plain.params_, saving.params_, rtol=1e-12)
    p = data.X.shape[1] + 1
    assert plain.history_["floats_down"][-1] == 24 * 3 * p
    assert saving.history_["floats_down"][-1] == 24 * p


def test_empty_clusters():
    """A start that is far from all clients is never chosen: it is filled, or dropped."""
    data = regression(17, n_clusters=2)
    start = np.zeros((2, data.X.shape[1] + 1))
    start[1] = 1e3
    kept = fit(IFCARegressor(n_clusters=2, init=start, empty_cluster="keep"), data)
    assert kept.n_clusters_ == kept.cluster_params_.shape[0] == 1
    filled = fit(IFCARegressor(n_clusters=2, init=start, empty_cluster="reseed"), data)
    assert adjusted_rand_score(data.labels, filled.labels_) == 1.0
    model = fit(IFCARegressor(n_clusters=5, random_state=0), data)
    assert (model.cluster_sizes_ > 0).all()
    assert model.n_clusters_ == len(model.cluster_sizes_) == len(model.cluster_params_)
    assert model.cluster_sizes_.sum() == 24


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 25}, "n_clusters=25 is more than the number of clients, 24"),
        ({"init": np.zeros((2, 3))}, r"shape \(n_clusters, n_params\) = \(3, 7\)"),
        ({"init": np.full((3, 7), np.nan)}, "not finite"),
        ({"training": Training(optimizer="adam")}, "training: .* averaging='model'"),
        ({"loss": "log_loss"}, "loss"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    data = regression(24)
    model = IFCARegressor(**({"n_clusters": 3} | options))
    with pytest.raises(ValueError, match=message):
        fit(model, data)
    assert not hasattr(model, "labels_")


def test_oracle_refuses_labels_that_do_not_fit():
    data = regression(25)
    with pytest.raises(ValueError, match="labels has no entry for 24 of 24 clients"):
        fit(OracleClustersRegressor(labels={"nobody": 0}), data)
    with pytest.raises(ValueError, match="one entry per client, 24"):
        fit(OracleClustersRegressor(labels=[0, 1]), data)


def test_starts_that_end_in_the_same_clusters_are_polished_once(monkeypatch):
    data = make_clustered_regression(12, 3, 4, n_samples=30, random_state=0)
    polished, finish = [], Rounds.finish
    monkeypatch.setattr(Rounds, "finish", lambda one: polished.append(one.key) or finish(one))
    many = IFCARegressor(n_clusters=3, n_init=5, random_state=0).fit(data.X, data.y, data.groups)
    assert len(polished) == len(set(polished)) < 5
    # What is not polished ends in models of its own.
    polished.clear()
    with pytest.warns(ConvergenceWarning):
        many.set_params(training__polish=False, max_iter=3).fit(data.X, data.y, groups=data.groups)
    assert polished == [None] * 5


def test_a_start_has_draws_of_its_own():
    """Its result does not depend on the others: more starts are never worse."""
    data = make_clustered_regression(12, 3, 4, n_samples=30, random_state=0)
    how = {"n_clusters": 3, "init": "random", "random_state": 3, "max_iter": 2}
    how |= {"alpha": 0.0, "training": Training(polish=False)}
    fits = [IFCARegressor(n_init=n, **how) for n in (2, 3, 4, 5)]
    with pytest.warns(ConvergenceWarning):
        values = [fit.fit(data.X, data.y, groups=data.groups).objective_ for fit in fits]
    assert (np.diff(values) <= 1e-12).all()
