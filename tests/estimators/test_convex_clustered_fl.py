"""Convex clustering of clients: limits, choice of lam, invariances, options, refusals."""

import pickle
from functools import partial

import clustered
import networkx as nx
import numpy as np
import pytest
from clustered import fit
from fusion_problems import make_problem
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from trials import examples, some

from skcfl import (
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
    LamSearch,
    LocalModelsClassifier,
    LocalModelsRegressor,
    OracleClustersRegressor,
    SingleClientWarning,
)
from skcfl.datasets import make_clustered_regression
from skcfl.fusion.solvers import PDMM
from skcfl.graphs import chain_graph, complete_graph
from skcfl.penalties import SquaredL2
from skcfl.search.by_partitions import PartitionCriterion, log_partitions

SIZES = {"n_clients": 12, "n_features": 4, "n_samples": (10, 30)}
regression = partial(clustered.regression, **SIZES)
classification = partial(clustered.classification, **SIZES)


@pytest.mark.parametrize(
    ("fused", "local", "data"),
    [
        (ConvexClusteredFLRegressor, LocalModelsRegressor, regression()),
        (ConvexClusteredFLClassifier, LocalModelsClassifier, classification()),
    ],
)
def test_lam_zero_is_a_model_a_client(fused, local, data):
    model, alone = fit(fused(lam=0.0, alpha=0.01), data), fit(local(alpha=0.01), data)
    assert_array_equal(model.params_, alone.params_)
    assert (model.n_clusters_, model.lam_) == (12, 0.0)
    assert 0.0 <= model.dual_gap_ <= 1e-10
    assert_array_equal(model.dual_coef_, 0.0)


@pytest.mark.parametrize(
    ("criterion", "seed"), some([*(("bic", s) for s in range(20)), ("held_out", 1)], 1)
)
def test_auto_finds_separated_clusters_of_ragged_clients(criterion, seed):
    data = make_clustered_regression(12, 3, 5, random_state=seed)  # of 20 to 60 rows
    options = {"graph": "knn", "penalty": "l2", "refit": True, "alpha": 1e-4}
    options["search"] = LamSearch(criterion)
    model = fit(ConvexClusteredFLRegressor(**options), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    assert model.partition_optimal_
    oracle = fit(OracleClustersRegressor(data.labels, alpha=1e-4), data)
    assert_allclose(model.coef_, oracle.coef_, atol=1e-8)


CLASSES = {"n_clients": 9, "n_features": 4, "n_samples": 60}
FEW = {"n_clients": 6, "n_clusters": 2, "n_features": 2, "n_samples": 40}
SLOW = [
    pytest.param("log_loss", classification(seed, **CLASSES), marks=pytest.mark.slow)
    for seed in (0, 3)
]
NUMBERS = regression(separation=2.0, noise=0.3, **FEW)
OTHERS = [("poisson", NUMBERS), ("huber", NUMBERS)]


@pytest.mark.parametrize(
    ("loss", "data"), [("log_loss", classification(n_classes=3, **FEW)), *SLOW, *some(OTHERS, 1)]
)
def test_auto_finds_clusters_under_other_losses(loss, data):
    y, options = data.y, {"graph": "knn", "penalty": "l2", "refit": True, "alpha": 0.01}
    if loss == "poisson":
        y = np.random.RandomState(0).poisson(np.exp(np.clip(0.5 * y, -3, 3)))
    cls = ConvexClusteredFLClassifier if loss == "log_loss" else ConvexClusteredFLRegressor
    model = cls(loss=loss, search=LamSearch(n_lams=3), **options).fit(data.X, y, data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0


@pytest.mark.parametrize("graph", ["knn", "complete", np.zeros((6, 6))])
def test_auto_where_all_clients_agree(graph):
    data = regression(n_clients=6, n_clusters=2, n_features=2)
    model = ConvexClusteredFLRegressor(graph=graph, alpha=0.01, search=LamSearch(n_lams=1))
    for y in (np.ones(len(data.y)), np.zeros(len(data.y))):
        model.fit(data.X, y, groups=data.groups)
        assert_allclose(model.predict(data.X, groups=data.groups), y, atol=1e-12)
        if isinstance(graph, str):
            assert model.n_clusters_ == 1


def test_partitions_of_the_complete_graph():
    """With many rows the clusters, with few what the data can tell: here local models."""
    options = {"n_clients": 24, "n_features": 5, "noise": 1.0}
    data = regression(n_samples=100, **options)
    model = fit(ConvexClusteredFLRegressor(graph="complete", search=LamSearch("bic")), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    assert model.partition_optimal_ and model.refit_
    data = regression(n_samples=12, **options)
    model = fit(model, data)
    assert model.lam_ == 0.0
    local = fit(LocalModelsRegressor(alpha=model.alpha_), data)
    assert_allclose(model.params_, local.params_, atol=1e-8)
    # The record of what was tried.
    search = model.lam_search_
    assert (np.diff(search["lam"]) > 0).all()
    assert search["lam"][0] == 0.0 and search["n_clusters"][[0, -1]].tolist() == [24, 1]
    best = search["criterion"].argmin()
    assert search["lam"][best] == model.lam_
    assert search["n_clusters"][best] == model.n_clusters_
    assert not hasattr(fit(model.set_params(lam=0.1), data), "lam_search_")


def test_partitions_need_a_penalty_that_fuses_and_are_refitted():
    model = ConvexClusteredFLRegressor(penalty="squared_l2", search=LamSearch("bic"))
    with pytest.raises(ValueError, match="compares the clusters"):
        fit(model, regression())
    with pytest.raises(ValueError, match="refit must be 'auto' or True, got False"):
        fit(ConvexClusteredFLRegressor(search=LamSearch("bic"), refit=False), regression())


def test_criterion_is_sent_as_losses(monkeypatch):
    """Judging a partition takes one model down and one loss up, and Newton steps for refits."""
    problem = make_problem("squared_error", 12)
    criterion, labels = PartitionCriterion(problem), np.arange(12) % 2
    theta, before = criterion.models(labels), problem.pool.ledger.up
    monkeypatch.setattr(PartitionCriterion, "models", lambda self, labels: theta)
    assert np.isfinite(criterion(labels))
    sent = problem.pool.ledger.up - before
    assert 0 < sent <= 12 * (problem.d + 1)  # a value and a gradient per client


def test_number_of_partitions():
    exact = {(4, 2): 7, (5, 3): 25, (10, 4): 34105, (24, 3): 47063200806, (6, 6): 1, (6, 1): 1}
    for (n, k), number in exact.items():
        assert log_partitions(n, k) == pytest.approx(np.log(number), abs=0.02)


def test_refit_is_the_pooled_fit_of_each_cluster(graph="complete"):
    data = regression(n_samples=(40, 80))
    model = fit(ConvexClusteredFLRegressor(lam=0.1, graph=graph, refit=True), data)
    plain = fit(ConvexClusteredFLRegressor(lam=0.1, graph=graph), data)
    oracle = fit(OracleClustersRegressor(model.labels_, alpha=model.alpha_), data)
    assert 1 < model.n_clusters_ < 12
    assert_allclose(model.params_, oracle.params_, atol=1e-9)
    assert_array_equal(model.fusion_params_, plain.params_)
    assert_array_equal(plain.fusion_params_, plain.params_)
    assert model.objective_ == plain.objective_


def test_warm_start_changes_the_work_only():
    data = regression()
    cold = fit(ConvexClusteredFLRegressor(lam=0.03, tol=1e-8), data)
    warm = ConvexClusteredFLRegressor(lam=0.02, tol=1e-8, warm_start=True)
    fit(warm, data)
    fit(warm.set_params(lam=0.03), data)
    assert warm.n_iter_ <= cold.n_iter_
    assert abs(warm.objective_ - cold.objective_) <= 2e-8 * cold.objective_
    assert_allclose(warm.params_, cold.params_, atol=1e-3)
    assert_array_equal(warm.labels_, cold.labels_)
    again = fit(pickle.loads(pickle.dumps(warm)), data)
    assert_allclose(again.params_, warm.params_, atol=1e-3)


def test_warm_start_from_other_clients_is_cold():
    warm = ConvexClusteredFLRegressor(lam=0.03, warm_start=True)
    fit(warm, regression())
    for data in (regression(1, n_clients=9), regression(2, n_features=3)):
        cold = fit(ConvexClusteredFLRegressor(lam=0.03), data)
        assert_array_equal(fit(warm, data).params_, cold.params_)


def test_a_short_fit_warns_with_the_number():
    model = ConvexClusteredFLRegressor(lam=0.02, tol=1e-12, max_iter=3)
    with pytest.warns(ConvergenceWarning, match=r"duality gap is .* after max_iter=3"):
        fit(model, regression(n_clients=40, n_samples=(5, 12), noise=2.0))
    assert model.dual_gap_ > 0


@examples(1)
@given(seed=st.integers(0, 10**6))
def test_weights_are_repetitions(seed):
    """Where BIC counts them; of one lam in tests/test_axes.py."""
    estimator = ConvexClusteredFLRegressor(graph="knn", search=LamSearch("bic"))
    data = regression(seed, n_clients=6, n_clusters=2, n_features=2, n_samples=(20, 40))
    weights = np.random.RandomState(seed).randint(0, 4, len(data.y))
    fit(estimator, data, sample_weight=weights)
    labels, params = estimator.labels_, estimator.params_
    estimator.fit(*(np.repeat(rows, weights, axis=0) for rows in (data.X, data.y, data.groups)))
    assert_array_equal(labels, estimator.labels_)
    assert_allclose(params, estimator.params_, atol=1e-8)


def test_weights_of_edges_are_factors_of_lam():
    data = regression()
    model = fit(ConvexClusteredFLRegressor(lam=0.01, graph=complete_graph(12, weight=2.0)), data)
    twice = fit(ConvexClusteredFLRegressor(lam=0.02), data)
    assert model.objective_ == pytest.approx(twice.objective_, rel=2e-6)


WRONG = nx.relabel_nodes(nx.path_graph(12), {0: "?"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": np.ones((3, 3))}, r"graph has 3 nodes, but there are 12 clients"),
        ({"graph": complete_graph(11)}, r"graph has 11 nodes, but there are 12 clients"),
        ({"graph": WRONG}, r"nodes of graph must be the ids .* '\?' is none"),
        ({"lam": np.inf}, "The 'lam' parameter"),
        ({"penalty": SquaredL2(np.eye(3)), "lam": 0.1}, r"Q must be .* of shape \(5, 5\)"),
        ({"solver": PDMM(nu=7.0), "lam": 0.1}, "'nu' parameter of PDMM"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        fit(ConvexClusteredFLRegressor(**options), regression())


def test_a_graph_without_groups_is_refused():
    data = regression()
    with (
        pytest.warns(SingleClientWarning),
        pytest.raises(ValueError, match="12 nodes, but there is 1 client"),
    ):
        ConvexClusteredFLRegressor(graph=chain_graph(12)).fit(data.X, data.y)
