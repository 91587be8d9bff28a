"""Clusters of the clients' own models, found in one exchange."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from sklearn.cluster import DBSCAN, AgglomerativeClustering
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    ConvexClustering,
    FedAvgClassifier,
    FedAvgRegressor,
    FlexCFLRegressor,
    LocalModelsRegressor,
    OneShotClassifier,
    OneShotRegressor,
    Training,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.numerics.kmeans import count_distinct, long_kmeans
from skcfl.rounds import point_clusters
from skcfl.rounds.model_kinds import NETWORK_STEP
from skcfl.rounds.point_clusters import cluster_points

DATA = make_clustered_regression(12, 3, 4, n_samples=(15, 40), random_state=0)
IDS = np.unique(DATA.groups)
PLAIN = {"standardize": False, "alpha": 0.05}


def fit(model, data=DATA, rows=slice(None)):
    return model.fit(data.X[rows], data.y[rows], groups=data.groups[rows])


@pytest.mark.parametrize("weights", ["n_samples", "uniform"])
def test_one_cluster_is_the_mean_of_the_local_models(weights):
    once = fit(OneShotRegressor(1, rounds=0, training=Training(weights=weights), **PLAIN))
    local = fit(LocalModelsRegressor(**PLAIN))
    sizes = np.unique(DATA.groups, return_counts=True)[1].astype(float)
    sizes = sizes if weights == "n_samples" else np.ones(12)
    wanted = np.average(local.coef_, axis=0, weights=sizes)
    assert_allclose(once.cluster_coef_[0], wanted, rtol=1e-9)


def test_one_cluster_by_precision_is_the_pooled_fit():
    """Sums of H_i and of H_i w_i are the normal equations of all rows."""
    once = fit(OneShotRegressor(1, rounds=0, combine="precision", **PLAIN))
    pooled = fit(FedAvgRegressor(**PLAIN))
    assert_allclose(once.params_, pooled.params_, rtol=1e-8)
    # Of several classes one direction is free, and classes that a client has not seen are flat.
    data = make_clustered_classification(8, 1, 3, n_samples=40, n_classes=3, random_state=0)
    once = fit(OneShotClassifier(1, rounds=0, combine="precision", **PLAIN), data)
    pooled = fit(FedAvgClassifier(**PLAIN), data)
    wanted = pooled.predict_proba(data.X, data.groups)
    assert np.abs(once.predict_proba(data.X, data.groups) - wanted).mean() < 0.01


@pytest.mark.parametrize(
    "options, about",
    [({"n_clusters": 3}, "12 clients with fewer"), ({"hidden_layer_sizes": 3}, "MLP has not")],
)
def test_hessians_that_clients_do_not_give(options, about):
    data = make_clustered_regression(12, 3, 4, n_samples=3, random_state=0)
    with pytest.raises(ValueError, match=f"combine='precision'.*{about}.*combine='mean'"):
        fit(OneShotRegressor(combine="precision", **options), data)


def test_networks_take_the_steps_given():
    options = {"hidden_layer_sizes": (3,), "rounds": 0, "pretrain_steps": 5, "random_state": 0}
    default, same, short = (
        fit(OneShotRegressor(1, training=Training(step_size=step), **options)).params_
        for step in ("auto", NETWORK_STEP, 1e-6)
    )
    np.testing.assert_array_equal(default, same)
    assert np.abs(default - short).max() > 1e-3
    fewer = fit(OneShotRegressor(1, **options | {"pretrain_steps": 1})).params_
    assert np.abs(default - fewer).max() > 1e-3


def test_one_exchange():
    once = fit(OneShotRegressor(3, rounds=0, random_state=0, **PLAIN))
    # Hello and sizes, models, objectives.
    assert once.calls_ == 2 + 2 and once.n_iter_ == 1
    assert once.floats_up_ == 12 * 5 + 12 and once.floats_down_ == 12 * 5
    assert adjusted_rand_score(DATA.labels, once.labels_) == 1.0


def test_rounds_after_it_end_at_the_pooled_fit_of_each_cluster():
    once = fit(OneShotRegressor(3, random_state=0, **PLAIN))
    for k in range(3):
        rows = np.isin(DATA.groups, IDS[once.labels_ == k])
        pooled = fit(FedAvgRegressor(**PLAIN), rows=rows)
        assert_allclose(once.cluster_params_[k], pooled.params_[0], rtol=1e-8)


@pytest.mark.parametrize(
    "clusterer", [ConvexClustering(), DBSCAN(1.5, min_samples=2), AgglomerativeClustering()]
)
def test_clusterers(clusterer):
    n_clusters = 3 if "n_clusters" in clusterer.get_params() else "auto"
    once = fit(OneShotRegressor(n_clusters, clusterer=clusterer, rounds=0, **PLAIN))
    assert adjusted_rand_score(DATA.labels, once.labels_) == 1.0
    if n_clusters == "auto":
        with pytest.raises(ValueError, match="n_clusters must be 'auto' with a clusterer that"):
            fit(once.set_params(n_clusters=3))


@pytest.mark.parametrize(
    ("clusterer", "aggregation", "factor", "n_clusters"),
    [
        ("trimmed", "mean", -30.0, 2),
        ("median", "geometric_median", -4.0, 2),
        ("auto", "geometric_median", -1e6, 2),
        ("auto", "geometric_median", 1e6, "auto"),
        ("auto", "krum", 1e6, 2),
    ],
)
def test_false_clients(clusterer, aggregation, factor, n_clusters):
    """Two of 24 clients send models of other signs or units; k-means, asked for, bears none."""
    data = make_clustered_regression(24, 2, 4, n_samples=40, random_state=1)
    y, ids = data.y.copy(), np.unique(data.groups)
    false = np.array([0, 7])
    y[np.isin(data.groups, ids[false])] *= factor
    honest = np.setdiff1d(np.arange(24), false)
    options = {"rounds": 0, "random_state": 0, "trim": 0.1, **PLAIN}
    how = {"clusterer": clusterer, "aggregation": aggregation}
    robust = OneShotRegressor(n_clusters, **how, **options)
    robust.fit(data.X, y, groups=data.groups)
    assert adjusted_rand_score(data.labels[honest], robust.labels_[honest]) == 1.0
    wanted = fit(OneShotRegressor(2, **options), data)
    assert np.abs(robust.coef_[honest] - wanted.coef_[honest]).max() < 0.2
    plain = OneShotRegressor(2, **options).set_params(clusterer="kmeans")
    plain.fit(data.X, y, groups=data.groups)
    assert adjusted_rand_score(data.labels[honest], plain.labels_[honest]) < 0.5


@pytest.mark.parametrize(
    ("rounds", "faults"),
    [(0, {"dead": IDS[[4]]}), (0, {"dropout": 0.3}), ("auto", {"dropout": 0.3})],
)
def test_lost_clients(rounds, faults):
    """A client that never answers has no say in the clusters or their models."""
    faults = Faults(**faults, random_state=0)
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults)
    options = {"rounds": rounds, "random_state": 0, **PLAIN}
    once = OneShotRegressor(3, **options).fit_federation(federation)
    here = ~np.isin(IDS, faults.dead)
    assert adjusted_rand_score(DATA.labels[here], once.labels_[here]) == 1.0
    alone = fit(OneShotRegressor(3, **options), rows=np.isin(DATA.groups, IDS[here]))
    assert_allclose(once.params_[here], alone.params_, rtol=1e-6)


def test_trimmed_clusters():
    """Small ones are kept; a fifth of the points are far from all others and from each other."""
    rng = np.random.RandomState(0)
    labels = np.repeat([0, 1, 2, 3], [18, 13, 6, 3])
    points = 4.0 * np.eye(4, 6)[labels] + 0.3 * rng.standard_normal((40, 6))
    for n_far in (0, 1, 2):
        points[:n_far] *= 1e6
        found, kept = cluster_points(points, 4, "trimmed", rng, trim=0.2)
        assert adjusted_rand_score(labels[n_far:], found[n_far:]) == 1.0
        assert kept.sum() == 32 and not kept[:n_far].any()
    assert cluster_points(np.ones((4, 2)), 3)[0].tolist() == [0] * 4
    for seed in range(5):
        rng = np.random.RandomState(seed)
        labels = np.arange(40) % 4
        points = 3.0 * np.eye(4, 6)[labels] + 0.2 * rng.standard_normal((40, 6))
        far = rng.choice(40, 8, replace=False)
        points[far] *= 1e6
        found, kept = cluster_points(points, 4, "trimmed", rng, trim=0.25)
        true = ~np.isin(np.arange(40), far)
        assert adjusted_rand_score(labels[true], found[true]) == 1.0
        assert not kept[far].any()
    points[far] *= 1e200
    points[far[0]] = np.inf
    found, kept = cluster_points(points, 4, "trimmed", rng, trim=0.25)
    assert len(np.unique(found)) == 4 and kept.sum() == 30  # infinite ones count as zero


def test_starts_that_have_converged_do_not_wait_for_others(monkeypatch):
    """Trimmed k-means of many starts at once is the best of one after the other."""
    asked = []

    def counted(points, centres):
        asked.append(len(centres))
        return cdist(points, centres)

    monkeypatch.setattr(point_clusters, "cdist", counted)
    rng = np.random.RandomState(0)
    points = rng.standard_normal((60, 2)).round(1)  # with ties
    starts = points[[rng.choice(60, 4, replace=False) for _ in range(20)]]
    labels, reach = point_clusters._trimmed_lloyd(points, starts, 50)
    assert asked == sorted(asked, reverse=True) and asked[0] == 80 > asked[-1]
    runs = [point_clusters._trimmed_lloyd(points, start[None], 50) for start in starts]
    least = min(runs, key=lambda run: np.sum(np.sort(run[1])[:50] ** 2))
    np.testing.assert_array_equal(labels, least[0])
    np.testing.assert_array_equal(reach, least[1])


def test_models_are_compared_by_what_they_predict():
    """Coefficients of correlated features are noise where predictions are not."""
    numbers = []
    seeds = some(range(4), 1)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(15), 20)
        z = rng.normal(size=(len(groups), 6))
        X = np.sqrt(0.1) * z[:, 1:] + np.sqrt(0.9) * z[:, :1]
        slopes = 1.5 * rng.normal(size=(3, 5))
        y = (X * slopes[groups % 3]).sum(axis=1) + rng.normal(size=len(groups))
        numbers.append(OneShotRegressor(random_state=0).fit(X, y, groups=groups).n_clusters_)
    assert np.mean(np.equal(numbers, 3)) >= 0.75


def test_models_of_many_rows_weigh_more():
    """The best two clusters of four points, three of them noise, are those of the weights."""
    points = np.array([[0.0], [1.0], [3.0], [4.5]])
    for weights, wanted in (([1, 1, 1, 1], [0, 0, 1, 1]), ([9, 9, 0.1, 0.1], [0, 1, 1, 1])):
        labels, _ = cluster_points(points, 2, rng=0, weights=np.array(weights, dtype=float))
        np.testing.assert_array_equal(labels == labels[0], np.array(wanted) == 0)


def test_models_that_differ_by_rounding_are_one():
    """A target that is constant inside clients has as many models as values; no warnings."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 15)
    X, y = rng.normal(size=(300, 3)), 2.5 * (groups % 4)
    for n_clusters in (12, "auto"):
        once = OneShotRegressor(n_clusters, random_state=0).fit(X, y, groups=groups)
        assert once.n_clusters_ == 4
        FlexCFLRegressor(n_clusters, random_state=0).fit(X, y, groups=groups)


def test_vectors_that_differ_by_rounding_are_one_beside_a_far_one():
    rng = np.random.RandomState(0)
    near = np.repeat([0.0, 1.0], 30)[:, None] + 0.01 * rng.standard_normal((60, 4))
    labels = long_kmeans(np.r_[near, np.full((1, 4), 1e8)], 3, rng).labels_
    assert len(set(labels[:30])) == len(set(labels[30:60])) == 1
    assert len(set(labels)) == 3
    alike = np.full((20, 3), 1.3) * (1.0 + 1e-16 * rng.randint(-3, 3, (20, 3)))
    assert count_distinct(alike) == count_distinct(np.zeros((4, 2))) == 1
    assert count_distinct(1e200 * np.r_[alike, -alike]) == 2


def test_the_first_of_ties_are_among_the_least():
    """As a stable sort takes them, so that labels do not depend on how the least are found."""
    values = np.random.RandomState(0).randint(4, size=(30, 9)).astype(float)
    for number in (1, 4, 9):
        wanted = np.zeros(values.shape, dtype=bool)
        places = np.argsort(values, axis=1, kind="stable")[:, :number]
        np.put_along_axis(wanted, places, True, axis=1)
        np.testing.assert_array_equal(point_clusters._least(values, number), wanted)


@pytest.mark.parametrize("seed", range(6))
def test_rounding_does_not_choose_among_the_clients_left_out(seed):
    """Two clients of a cluster are equally far from their mean."""
    rng, every = np.random.default_rng(seed), set()
    points = np.repeat(5.0 * rng.normal(size=(4, 3)), 2, axis=0) + rng.normal(size=(8, 3))
    for scale in (0.0, *8 * [1e-12]):
        moved = points + scale * rng.normal(size=points.shape)
        _, kept = cluster_points(moved, 4, "trimmed", np.random.RandomState(0), trim=0.2)
        every.add(tuple(kept))
    assert len(every) == 1
