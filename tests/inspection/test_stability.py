"""Whether clusters are found again."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import (
    FedAvgRegressor,
    GTVRegressor,
    IFCARegressor,
    LocalModelsRegressor,
    PartialPoolingRegressor,
)
from skcfl.datasets import make_clustered_regression
from skcfl.inspection import (
    ClientSimilarityDisplay,
    ClusterStability,
    ClusterStabilityDisplay,
    cluster_stability,
)

pytest.importorskip("matplotlib.pyplot")


def draw(crisp):
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 4))
    models = centres[np.arange(24) % 3] if crisp else 0.6 * rng.standard_normal((24, 4))
    groups, X = np.repeat(np.arange(24), 12), rng.standard_normal((288, 4))
    return X, (X * models[groups]).sum(axis=1) + 0.5 * rng.standard_normal(288), groups


def test_crisp_clusters_are_stable_and_parts_of_a_population_are_not():
    ifca = IFCARegressor(3, random_state=0)
    crisp = cluster_stability(ifca, *draw(True), n_resamples=4)
    assert crisp.is_stable and crisp.ari > 0.9 and crisp.unsure < 0.1
    assert crisp.client_certainty.min() > 0.8 and not hasattr(ifca, "labels_")
    fitted = ifca.fit(*draw(False)[:2], groups=draw(False)[2])
    wild = cluster_stability(fitted, *draw(False), n_resamples=3)
    assert not wild.is_stable and wild.ari < 0.6 and wild.unsure > 0.2
    assert_array_equal(wild.labels, fitted.labels_)
    report = fitted.report(stability=wild)
    assert "Not stable" in str(report) and report.findings["stability"] == wild.ari


def test_numbers_are_those_of_the_fits():
    X, y, groups = draw(True)
    found = cluster_stability(IFCARegressor(3, random_state=0), X, y, groups, n_resamples=2)
    again = cluster_stability(IFCARegressor(3, random_state=0), X, y, groups, n_resamples=2)
    assert_array_equal(found.co_membership, again.co_membership)
    assert_array_equal(found.co_membership, found.co_membership.T)
    assert_allclose(np.diag(found.co_membership), 1)
    assert found.aris.shape == found.n_clusters.shape == (2,)
    column = np.column_stack([X, groups])
    by_column = IFCARegressor(3, random_state=0, group_col=4)
    again = cluster_stability(by_column, column, y, n_resamples=2)
    assert_array_equal(again.co_membership, found.co_membership)


def test_rows_that_are_drawn_twice_are_no_copies():
    """Explained without noise they were evidence against clusters, of few rows and of more."""
    rng = np.random.default_rng(0)
    few, X = np.repeat(np.arange(30), 3), rng.standard_normal((360, 3))
    y = X[:90].sum(axis=1) + rng.standard_normal(30)[few] + rng.standard_normal(90)
    pooling, seen = PartialPoolingRegressor(random_state=0, basis="linear"), []

    class Weighed(IFCARegressor):
        def fit(self, X, y, groups=None, sample_weight=None):
            seen.append(sample_weight)
            return super().fit(X, y, groups=groups, sample_weight=sample_weight)

    cluster_stability(Weighed(2, random_state=0), X[:90], y, few, n_resamples=1)
    assert_array_equal(np.unique(seen[1]), [0, 1])
    assert np.bincount(few, seen[1]).min() >= 1 and 50 < seen[1].sum() < 70
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # of rows that count more than once
        assert cluster_stability(pooling, X[:90], y, few, n_resamples=2).n_clusters.max() < 30
    groups = np.repeat(np.arange(30), 12)
    centres = np.array([[1.6, 0, 0], [-0.8, 1.36, 0], [-0.8, -1.36, 0]])
    y = (X * centres[groups % 3]).sum(axis=1) + rng.standard_normal(360)
    crisp = cluster_stability(pooling, X, y, groups, n_resamples=4)
    assert crisp.is_stable and crisp.ari > 0.9


def test_no_clusters_and_clients_that_are_clusters_are_not_stable():
    """Nor does a report say so."""
    for labels in (np.zeros(4, dtype=int), np.arange(4)):
        found = ClusterStability(np.arange(4), labels, np.ones(2), np.full(2, 4), np.eye(4))
        assert not found.is_stable
    X, y, groups = draw(False)
    model = LocalModelsRegressor().fit(X, y, groups=groups)
    found = cluster_stability(model, X, y, groups, n_resamples=1)
    report = model.report(stability=found)
    assert found.ari == report.findings["stability"] == 1.0
    assert not found.is_stable and "table:" not in str(report)


def test_reports_refuse_the_stability_of_other_clusters_and_clients():
    X, y, groups = draw(True)
    model = IFCARegressor(3, random_state=0).fit(X, y, groups=groups)
    found = cluster_stability(model, X, y, groups, n_resamples=1)
    # Numbers of clusters are names.
    assert "Stable" in str(model.report(stability=replace(found, labels=2 - found.labels)))
    other = cluster_stability(IFCARegressor(2, random_state=0), X, y, groups, n_resamples=1)
    fewer = cluster_stability(model, X[12:], y[12:], groups[12:], n_resamples=1)
    for wrong, of in ((other, "clusters"), (fewer, "clients")):
        with pytest.raises(ValueError, match=f"stability= is about other {of}"):
            model.report(stability=wrong)


def test_bad_arguments():
    X, y, groups = draw(True)
    with pytest.raises(ValueError, match="n_resamples must be an integer of at least 1"):
        cluster_stability(FedAvgRegressor(), X, y, groups, n_resamples=0)
    with pytest.raises(ValueError, match="pass groups="):
        cluster_stability(FedAvgRegressor(), X, y)
    with pytest.raises(ValueError, match="square"):
        ClientSimilarityDisplay(distances=np.zeros((2, 3))).plot()


def test_displays_put_clusters_together():
    together = np.kron(np.eye(2), np.ones((3, 3)))[:, [0, 3, 1, 4, 2, 5]][[0, 3, 1, 4, 2, 5]]
    labels = np.array([0, 1, 0, 1, 0, 1])
    found = ClusterStability(np.arange(6), labels, np.ones(2), np.full(2, 2), together)
    display = ClusterStabilityDisplay(stability=found).plot()
    assert_array_equal(labels[display.order_], [0, 0, 0, 1, 1, 1])
    assert_array_equal(display.image_.get_array(), np.kron(np.eye(2), np.ones((3, 3))))
    X, y, groups = draw(True)
    model = PartialPoolingRegressor(3, basis="linear", covariance="diag", random_state=0)
    model.fit(X, y, groups=groups)
    alike = ClientSimilarityDisplay.from_estimator(model)
    assert (np.diff(model.labels_[alike.order_]) != 0).sum() == 2
    spread = X.std(axis=0)
    wanted = np.linalg.norm((model.coef_[0] - model.coef_[1]) * spread)
    assert_allclose(alike.distances[0, 1], wanted, rtol=0.05)  # and the values at the mean row


def test_nodes_of_a_graph_without_rows():
    data = make_clustered_regression(10, 2, 3, noise=0.3, random_state=0)
    ids = np.unique(data.groups)
    graph = np.where(data.labels[:, None] == data.labels, 1.0, 0.01)
    here = ~np.isin(data.groups, ids[[2, 7]])
    rows = data.X[here], data.y[here], data.groups[here]
    model = GTVRegressor(0.3, graph=graph, nodes=ids)
    found = cluster_stability(model, *rows, n_resamples=2)
    assert len(found.labels) == 8 and found.ari == 1.0
    fitted = model.fit(*rows[:2], groups=rows[2])
    again = cluster_stability(fitted, *rows, n_resamples=2)
    assert_array_equal(again.labels, np.delete(fitted.labels_, [2, 7]))
    assert fitted.report(stability=again).findings["stability"] == 1.0
