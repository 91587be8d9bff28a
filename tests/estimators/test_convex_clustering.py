"""Convex clustering of points: recovery, limits, invariances, options, refusals."""

import functools
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs, make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import ConvexClusteredFL, ConvexClustering
from skcfl.graphs import complete_graph, knn_graph
from skcfl.model_selection import lam_max, lam_path
from skcfl.models import Location

LOSSES = ["squared_error", "huber"]
#: Each loss and each graph once, and the other two.
KINDS = [("squared_error", "knn"), ("huber", "complete")]
KINDS += [("squared_error", "complete"), ("huber", "knn")]


def blobs(seed=0, n=60, **options):
    options = {"centers": [[0, 0], [6, 0], [0, 6]], "cluster_std": 0.8} | options
    return make_blobs(n, random_state=seed, **options)


BLOBS = [({"loss": loss}, blobs(seed)) for seed in some(range(10), 1) for loss in LOSSES]
FAR = blobs(n=30, cluster_std=0.3)
BLOBS += [({"loss": "huber", "graph": "complete"}, FAR)]
BLOBS += [({}, make_blobs(120, n_features=10, centers=12, random_state=0))]


@pytest.mark.parametrize(("options", "data"), BLOBS)
def test_auto_finds_separated_blobs(options, data):
    model = ConvexClustering(**options).fit(data[0])
    assert adjusted_rand_score(data[1], model.labels_) == 1.0
    assert model.partition_optimal_
    assert model.dual_gap_ <= 1e-6 * model.objective_


@pytest.mark.parametrize("d", [1, 10])
def test_auto_says_one_cluster_where_there_is_one(d):
    for seed in some(range(3), 1):
        X = np.random.RandomState(seed).standard_normal((80, d))
        assert ConvexClustering().fit(X).n_clusters_ == 1


def test_neighbours_find_moons():
    X, y = make_moons(200, noise=0.05, random_state=0)
    model = ConvexClustering(lam=300.0).fit(X)
    assert adjusted_rand_score(y, model.labels_) == 1.0


def test_duplicates_are_one_cluster_at_lam_zero():
    X = np.array([[0.0], [1.0], [0.0], [2.0], [1.0]])
    assert_array_equal(ConvexClustering(0.0).fit(X).labels_, [0, 1, 0, 2, 1])


@pytest.mark.parametrize(("loss", "graph"), some(KINDS, 2))
def test_same_as_clients_with_one_row(loss, graph):
    X, _ = blobs(n=40)
    graph = knn_graph(X, 4) if graph == "knn" else complete_graph(40)
    model = ConvexClustering(0.05, loss=loss, graph=graph, tol=1e-10).fit(X)
    clients = ConvexClusteredFL(Location(loss=loss), lam=0.05, graph=graph, tol=1e-10)
    clients.fit(X, groups=np.arange(40))
    assert model.objective_ == pytest.approx(clients.objective_, rel=1e-9)
    assert_array_equal(model.labels_, clients.labels_)
    assert_allclose(model.cluster_centers_, clients.cluster_params_, atol=1e-5)


@functools.cache
def fit_of_blobs(loss, graph):
    X, _ = blobs(1, n=18)
    return X, ConvexClustering(loss=loss, graph=graph, delta=1.0).fit(X)


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1e6), (1e-6, 0.0)])
@pytest.mark.parametrize(("loss", "graph"), some(KINDS, 2))
def test_order_place_and_units_do_not_matter(loss, graph, scale, shift):
    X, model = fit_of_blobs(loss, graph)
    rng = np.random.RandomState(0)
    order, (Q, _) = rng.permutation(18), np.linalg.qr(rng.standard_normal((2, 2)))
    moved = ConvexClustering(loss=loss, graph=graph, delta=scale)
    moved.fit(scale * (X @ Q)[order] + shift)
    assert adjusted_rand_score(model.labels_[order], moved.labels_) == 1.0
    assert moved.partition_optimal_
    assert moved.dual_gap_ <= 1e-6 * moved.objective_
    assert moved.lam_ == pytest.approx(scale * model.lam_, rel=1e-6)
    centres = model.cluster_centers_[model.labels_][order] @ Q
    found = (moved.cluster_centers_[moved.labels_] - shift) / scale
    assert_allclose(found, centres, atol=1e-5)


def test_float32_is_kept_far_from_the_origin_too(shift=1e3):
    X, y = blobs()
    model = ConvexClustering().fit((X + shift).astype(np.float32))
    assert model.cluster_centers_.dtype == np.float32
    assert adjusted_rand_score(y, model.labels_) == 1.0
    means = np.array([X[y == k].mean(axis=0) for k in np.unique(y)]) + shift
    distance = np.linalg.norm(model.cluster_centers_[:, None] - means, axis=2).min(axis=1)
    assert (distance < 1.5).all()


def test_points_that_stand_several_times():
    X, y = blobs(n=15)
    copies = np.repeat(np.arange(15), 4)
    for options in ({"graph": "complete"}, {"loss": "huber"}, {}):
        model = ConvexClustering(**options).fit(X[copies])
        # Copies are never apart.
        assert len(np.unique(np.stack([copies, model.labels_]), axis=1)[0]) == 15
    assert adjusted_rand_score(y[copies], model.labels_) == 1.0


def test_fit_predict_and_predict():
    X, y = blobs()
    model = ConvexClustering()
    labels = model.fit_predict(X)
    assert_array_equal(labels, model.labels_)
    assert model.cluster_centers_.shape == (3, 2)
    assert_array_equal(model.predict(model.cluster_centers_), [0, 1, 2])
    assert_array_equal(model.cluster_sizes_, np.bincount(labels))
    assert (np.diff(model.cluster_sizes_) <= 0).all()
    assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    with pytest.raises(NotFittedError):
        ConvexClustering().predict(X)


def test_warm_start_changes_the_work_only():
    X, _ = make_moons(80, noise=0.06, random_state=0)
    for lam, options in ((1.0, {}), (1.0, {"loss": "huber"}), (0.01, {"graph": "complete"})):
        cold = ConvexClustering(lam, **options).fit(X)
        warm = ConvexClustering(0.9 * lam, **options, warm_start=True).fit(X)
        warm.set_params(lam=lam).fit(X)
        assert warm.objective_ == pytest.approx(cold.objective_, rel=2e-6)
        assert warm.n_iter_ <= cold.n_iter_
        # Other points are another graph: the last solution is not used.
        other = X[:60] + 1.0
        assert warm.fit(other).objective_ == cold.fit(other).objective_


@pytest.mark.parametrize(("loss", "graph"), some(KINDS, 2))
def test_path(loss, graph):
    X, _ = blobs(n=24)
    model = ConvexClustering(loss=loss, graph=graph, tol=1e-8)
    path = lam_path(model, X + 100.0, n_lams=4)
    assert not hasattr(model, "labels_")
    assert path.params.shape == (4, 24, 2)
    assert path.n_clusters[-1] == 1 and (np.diff(path.n_clusters) <= 0).all()
    for k, lam in enumerate(path.lams):
        fit = model.set_params(lam=lam).fit(X + 100.0)
        assert fit.objective_ == pytest.approx(path.objectives[k], rel=1e-7)
        if path.optimal[k] and fit.partition_optimal_:
            assert_array_equal(fit.labels_, path.labels[k])
        centres = fit.cluster_centers_[fit.labels_]
        assert_allclose(centres, path.fusion_params[k], atol=1e-2)
    lower, upper = lam_max(model, X)
    assert lower <= upper <= 1.1 * lower
    assert model.set_params(lam=1.001 * upper).fit(X).n_clusters_ == 1
    assert model.set_params(lam=0.99 * lower).fit(X).n_clusters_ > 1


def test_paths_know_no_groups_and_weights():
    X, _ = blobs(n=30)
    for name in ("groups", "sample_weight"):
        with pytest.raises(ValueError, match=f"ConvexClustering takes no {name}"):
            lam_path(ConvexClustering(), X, **{name: np.ones(30)})


def test_number_of_neighbours():
    X, _ = blobs(n=30)
    model = ConvexClustering(1.0, n_neighbors=3).fit(X)
    assert model.graph_.n_edges < ConvexClustering(1.0, n_neighbors=8).fit(X).graph_.n_edges
    assert model.graph_.components().max() == 0
    assert ConvexClustering(1.0, n_neighbors=100).fit(X).graph_.n_edges == 30 * 29 // 2


def test_a_matrix_of_weights():
    X, _ = blobs(n=30)
    with pytest.raises(ValueError, match="graph has 3 nodes, but there are 30 points"):
        ConvexClustering(graph=np.ones((3, 3))).fit(X)
    graph = knn_graph(X, 4)
    expected = ConvexClustering(0.5, graph=graph).fit(X).labels_
    for weights in (graph.adjacency(), graph.adjacency().toarray()):
        assert_array_equal(ConvexClustering(0.5, graph=weights).fit(X).labels_, expected)


def test_few_points():
    assert ConvexClustering().fit([[1.0, 2.0]]).n_clusters_ == 1
    model = ConvexClustering(lam=10.0).fit([[1.0], [2.0]])
    assert model.n_clusters_ == 1
    assert_allclose(model.cluster_centers_, [[1.5]])
    assert ConvexClustering().fit(np.ones((5, 2))).n_clusters_ == 1


def test_a_short_fit_warns_with_the_number():
    # So many that no proof is tried, which would make the solution exact.
    X = np.random.RandomState(0).standard_normal((800, 2))
    for loss in ("squared_error", "huber"):
        model = ConvexClustering(0.01, loss=loss, max_iter=1, tol=1e-14)
        with pytest.warns(ConvergenceWarning, match=r"duality gap is .* after max_iter=1"):
            model.fit(X)


def test_partitions_of_many_points_are_proved():
    points = np.random.default_rng(0).normal(size=(100, 2))
    for lam in (1e-4, 1e-3):
        model = ConvexClustering(lam, graph="complete").fit(points)
        assert model.n_clusters_ == 100 and model.partition_optimal_
