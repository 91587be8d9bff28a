"""Certificates of fitted estimators."""

from itertools import permutations, product

import numpy as np
import pytest
from fusion_problems import LOSSES, make_points, make_problem, optimum
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import skcfl.fusion.enclosures
import skcfl.fusion.theorems
from skcfl import (
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
    ConvexClustering,
    GTVRegressor,
    IFCARegressor,
)
from skcfl.calls.curvatures import Hessians
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.certificates import (
    RecoveryInterval,
    certify_partition,
    clustering_constants,
    clustering_error_bound,
    duality_gap,
    recovery_interval,
    well_connected,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.fusion.admm import admm
from skcfl.fusion.reduced import lam_max_bounds
from skcfl.fusion.theorems import _theorem_3, certify, constants_of, gap_of, theorem_bounds
from skcfl.graphs import Graph, complete_graph, from_adjacency
from skcfl.models import LinearModel
from skcfl.penalties import L1, SquaredL2

REGRESSION = make_clustered_regression(n_clients=10, n_clusters=2, random_state=0)
CLASSES = make_clustered_classification(n_clients=10, n_clusters=2, random_state=0)


def fitted(kind, lam=0.05, **options):
    """A fit, and the arguments of a certificate of it."""
    data = CLASSES if kind == "classifier" else REGRESSION
    make = ConvexClusteredFLClassifier if kind == "classifier" else ConvexClusteredFLRegressor
    est = make(lam, **options).fit(data.X, data.y, groups=data.groups)
    return est, (data.X, data.y, data.groups)


# ------------------------------------------------------------------------- certify_partition


@pytest.mark.parametrize(
    ("kind", "graph", "options"),
    [
        ("regressor", "complete", {}),
        ("regressor", "knn", {"loss": "huber", "refit": True}),
        ("classifier", "knn", {}),
        ("classifier", "complete", {"loss": "squared_hinge", "alpha": 1e-2}),
    ],
)
def test_fits_are_proved(kind, options, graph):
    for lam in (1e-3, 0.05, 10.0):
        est, data = fitted(kind, lam, graph=graph, tol=1e-8, **options)
        certificate = certify_partition(est, *data)
        assert certificate.optimal is True and bool(certificate), certificate.reason
        assert certificate.lower <= certificate.ratio <= 1.0
        assert certificate.ratios.shape == certificate.lowers.shape == (est.n_clusters_,)
        assert certificate.ratios.max() == certificate.ratio
        assert_array_equal(certificate.labels, est.labels_)
        assert_allclose(certificate.models, est.fusion_params_, atol=1e-3)
        assert certificate.dual_gap <= 1e-9 * est.objective_
        assert certificate.lam == est.lam_


def test_the_ids_may_be_in_a_column_and_rows_may_have_weights():
    weights = np.random.RandomState(0).randint(1, 4, len(REGRESSION.y)).astype(float)
    X = np.column_stack([REGRESSION.groups, REGRESSION.X])
    est = ConvexClusteredFLRegressor(0.05, group_col=0)
    est.fit(X, REGRESSION.y, sample_weight=weights)
    assert certify_partition(est, X, REGRESSION.y, sample_weight=weights)
    gap = duality_gap(est, X, REGRESSION.y, sample_weight=weights)
    assert gap == pytest.approx(est.dual_gap_, abs=1e-9)
    # Other weights make it another problem, of which the models are no solution.
    assert duality_gap(est, X, REGRESSION.y) > 1e-3


def test_a_wrong_partition_is_refuted():
    est, data = fitted("regressor", 0.3, graph="knn")
    assert est.n_clusters_ == 2
    est.labels_ = np.zeros(10, dtype=int)
    certificate = certify_partition(est, *data)
    assert certificate.optimal is False and not certificate
    assert certificate.lower > 1
    assert certificate.dual_gap == np.inf
    assert "splitting" in certificate.reason


def test_too_fine_a_partition_is_no_solutions():
    """Its reduced problem has equal models: with one minimum that refutes it."""
    problem = make_points([[0.0], [0.1], [5.0]])
    certificate = certify(problem, 0.5, np.arange(3), problem.rows[0])
    assert certificate.optimal is False and "coarser" in certificate.reason
    # A flow with capacity to spare says so of every solution, unique or not.
    flat = make_points([[0.0], [0.1], [5.0]], loss="huber")
    assert certify(flat, 0.2, np.arange(3), flat.rows[0]).optimal is False


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_matrices_of_some_clusters_at_a_time_prove_the_same(kind, monkeypatch):
    fits = [fitted(kind, lam) for lam in (1e-3, 0.05)]
    expected = [certify_partition(est, *data) for est, data in fits]
    monkeypatch.setattr(skcfl.fusion.enclosures, "MAX_AT_ONCE", 200)
    for (est, data), known in zip(fits, expected, strict=True):
        found = certify_partition(est, *data)
        assert found.optimal is known.optimal is True
        assert_allclose(found.ratios, known.ratios, rtol=1e-6)
        assert_allclose(found.lowers, known.lowers, rtol=1e-6)


def test_undecided_says_why(monkeypatch):
    est, data = fitted("regressor", 0.05)
    monkeypatch.setattr(skcfl.fusion.theorems, "MAX_UNKNOWNS", 3)
    certificate = certify_partition(est, *data)
    assert certificate.optimal is None and not certificate
    assert f"{est.n_clusters_} models of 11 parameters" in certificate.reason


def test_a_client_alone_and_lam_zero():
    data = REGRESSION
    with pytest.warns(match="one client"):
        est = ConvexClusteredFLRegressor().fit(data.X, data.y)
    assert certify_partition(est, data.X, data.y)
    assert tuple(recovery_interval(est, data.X, data.y)) == (0.0, np.inf)
    est, rows = fitted("regressor", 0.0)
    assert certify_partition(est, *rows)
    assert duality_gap(est, *rows) <= 1e-9
    est.labels_ = np.zeros(10, dtype=int)
    assert certify_partition(est, *rows).optimal is False


def test_points():
    rng = np.random.RandomState(0)
    X = np.concatenate([rng.standard_normal((8, 2)), 9 + rng.standard_normal((8, 2))])
    for loss in ("squared_error", "huber"):
        est = ConvexClustering(lam=1.0, loss=loss).fit(X)
        certificate = certify_partition(est, X)
        assert certificate.optimal is True
        assert duality_gap(est, X) == pytest.approx(est.dual_gap_, abs=1e-9)
    with pytest.raises(ValueError, match="fitted on 16, got 3"):
        certify_partition(est, X[:3])


def test_several_cluster_figures_follow_the_labels():
    """A cluster that is far from its limit, a pair that is near it, a client alone."""
    a = np.array([[0.0], [0.01], [0.02], [8.0], [9.9], [30.0]])
    problem = make_points(a)
    for labels in ([0, 0, 0, 1, 1, 2], [2, 2, 2, 0, 0, 1]):
        labels = np.array(labels)
        certificate = certify(problem, 1.0, labels, a)
        assert certificate.optimal
        at = certificate.ratios
        assert at[labels[5]] == 0.0 < at[labels[0]] < at[labels[3]] < 1.0
        # A pair of points has to exchange half of their difference.
        assert at[labels[3]] == pytest.approx(0.95)


# ------------------------------------------------------------------------- recovery_interval


@pytest.mark.parametrize("loss", LOSSES)
def test_bounds_are_those_of_the_paper(loss):
    problem = make_problem(loss, 7, seed=1)
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    lam = 0.1 * lam_max_bounds(problem)[0]
    interval = theorem_bounds(problem, lam, labels, np.zeros((7, 2)))
    _, X = optimum(problem, lam, labels)
    w = X[[0, 3, 5]]
    sizes, members = np.array([3, 2, 2]), [np.flatnonzero(labels == k) for k in range(3)]
    # Of all clients, at the model of each cluster.
    gradients = [problem.pool.ask(ObjectivesGradients, np.tile(at, (7, 1)))[1] for at in w]
    first = max(pdist(gradients[k][members[k]]).max() / sizes[k] for k in range(3))
    means = [[each[mine].mean(axis=0) for mine in members] for each in gradients]
    pairs = list(permutations(range(3), 2))
    distances = [np.linalg.norm(means[k][k] - means[k][m]) for k, m in pairs]
    second = min(np.array(distances) / [14 - sizes[k] - sizes[m] for k, m in pairs])
    assert interval.lower == pytest.approx(first, rel=1e-4)
    assert interval.upper == pytest.approx(second, rel=1e-4)
    assert interval.upper_printed == pytest.approx(min(distances) / (2 * 5), rel=1e-4)
    assert interval.upper_printed <= interval.upper
    assert tuple(interval) == (interval.lower, interval.upper)
    assert interval.uniform is None


def test_interval_of_a_fit():
    est, data = fitted("regressor", 0.05, graph="knn")
    interval = recovery_interval(est, *data)
    lower, upper = interval
    assert interval.lam == 0.05
    assert interval.holds == (lower <= 0.05 < upper)
    assert not RecoveryInterval(0.1, 0.4, 0.3, lam=0.4).holds
    # The exact test never asks for more than Theorem 1.
    assert certify_partition(est, *data).lower * 0.05 <= lower * (1 + 1e-9)


def test_interval_of_a_cluster_in_two_pieces():
    problem = make_points([[0.0], [1.0], [2.0], [3.0]], Graph(4, [0, 2], [1, 3]))
    interval = theorem_bounds(problem, 0.1, np.zeros(4, dtype=int), problem.rows[0])
    assert interval.lower == np.inf


# ------------------------------------------------------------------------------- duality_gap


@pytest.mark.parametrize("penalty", ["l2", "l1", "squared_l2"])
@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_gap_is_that_of_the_fit(kind, penalty):
    est, data = fitted(kind, 0.02, penalty=penalty, tol=1e-7)
    gap = duality_gap(est, *data)
    assert 0 <= gap <= 1e-5 * est.objective_
    if penalty != "squared_l2":
        assert gap == pytest.approx(est.dual_gap_, abs=1e-9 * est.objective_)


def test_gap_bounds_the_excess_of_any_models():
    for seed, penalty in enumerate([None, L1(), SquaredL2(), SquaredL2(Q=[[2.0, 0.3], [0.3, 1]])]):
        problem = make_problem("log_loss", 6, "weighted", seed=seed, penalty=penalty)
        if penalty is None or penalty.norm:
            best, _ = optimum(problem, 0.05)
        else:
            best = admm(problem, 0.05, tol=1e-10)[0].objective
        rng = np.random.RandomState(seed)
        for _ in range(5):
            X = rng.standard_normal((6, 2))
            gap = gap_of(problem, 0.05, X, np.zeros((6, 2)))
            assert gap >= problem.primal(X, 0.05) - best - 1e-9


# ---------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("function", [certify_partition, recovery_interval, duality_gap])
def test_refusals(function):
    est, (X, y, groups) = fitted("regressor", 0.05)
    with pytest.raises(NotFittedError):
        function(clone(est), X, y, groups)
    others = groups != groups[0]
    with pytest.raises(ValueError, match="rows must be those of fit"):
        function(est, X[others], y[others], groups[others])
    ifca = IFCARegressor(2, random_state=0).fit(X, y, groups=groups)
    with pytest.raises(TypeError, match="fusion penalty"):
        function(ifca, X, y, groups)


@pytest.mark.parametrize(
    ("function", "penalty", "message"),
    [
        *((certify_partition, penalty, "penalty='l2'") for penalty in ("l1", "squared_l2")),
        *((recovery_interval, penalty, "penalty='l2'") for penalty in ("l1", "squared_l2")),
        (clustering_constants, "squared_l2", "about norms, got SquaredL2"),
    ],
)
def test_penalties_that_are_not_meant(function, penalty, message):
    est, data = fitted("regressor", 0.05, penalty=penalty)
    with pytest.raises(ValueError, match=message):
        function(est, *data)


# ----------------------------------------------------------------- the GTV paper's Theorem 2

TRIANGLES = np.kron(np.eye(2), np.ones((3, 3)) - np.eye(3))
TRIANGLES[2, 3] = TRIANGLES[3, 2] = 0.1
HALVES = np.repeat([0, 1], 3)


def test_well_connected_where_constants_are_zero_or_infinite():
    """A triangle brings two nodes 1 each along their own edges, or 2 in all to one set."""

    def of(delta, **options):
        options = {"lam": 1.0, "alpha": 3.0, "beta": 0.0} | options
        return well_connected(TRIANGLES, HALVES, delta=delta, **options).tolist()

    # Nodes 2 and 3 have .1 of the boundary on top.
    assert of([0.89, 0.89, 0.89, 9.0, 1.99, 0.89]) == [True, False]
    assert of(0.0, alpha=[3.0, 0.0]) == [True, True]
    assert of(0.0, beta=1.0, alpha=[3.0, 0.0]) == [True, False]
    assert of(0.0, beta=[np.inf, 0, 0, 0, 0, 0]) == [True, True]
    assert of(0.0, beta=np.inf) == [False, False]


def test_well_connected_takes_every_kind_of_graph_and_labels():
    networkx = pytest.importorskip("networkx")
    expected = [True, False]
    delta = [0.5, 0.5, 0.5, 2.5, 2.5, 2.5]
    names = np.array(["b", "b", "b", "c", "c", "c"])
    kinds = [TRIANGLES, TRIANGLES.tolist(), from_adjacency(TRIANGLES)]
    kinds += [sparse.csr_array(TRIANGLES), networkx.from_numpy_array(TRIANGLES)]
    for A in kinds:
        assert well_connected(A, names, 1.0, delta, 3.0, 1.0).tolist() == expected
        assert_allclose(clustering_error_bound(A, names, 2.0, 4.0), 0.05)
    short, long = complete_graph(7, 0.5), Graph(7, *np.triu_indices(7, 1), 0.5)
    labels = [0, 0, 0, 0, 1, 1, 2]
    for delta, beta in product((0.1, 0.2, 0.3), (0.0, 0.1)):
        a, b = (well_connected(g, labels, 1.0, delta, 10.0, beta) for g in (short, long))
        assert_array_equal(a, b)
    assert_allclose(clustering_error_bound(short, labels, 1.0, 2.0), [3.0, 2.5, 1.5])


def test_clusters_of_one_node_in_pieces_and_without_boundary():
    A = np.zeros((4, 4))
    A[0, 1] = A[1, 0] = 1.0
    found = well_connected(A, [0, 0, 1, 1], 1.0, 0.0, 1.0, 1.0)
    assert found.tolist() == [True, False]
    assert well_connected(A, [0, 0, 1, 2], 1.0, 5.0, 1.0, 1.0).tolist() == [False, True, True]
    assert well_connected([[0.0]], [0], 1.0, 5.0, 0.0, np.inf).tolist() == [True]
    assert clustering_error_bound(A, [0, 1, 2, 2], 1.0, 0.0).tolist() == [np.inf, np.inf, 0.0]


NO_CONSTANTS = [
    *(
        ({"lam": lam}, "lam must be a number between 1e-100")
        for lam in (0.0, -1.0, np.inf, np.nan, [1.0])
    ),
    ({"labels": [0, 1]}, "one entry for each of the 6 nodes"),
    ({"A": np.triu(TRIANGLES)}, "symmetric"),
    ({"alpha": [1.0, 1.0, 1.0]}, "alpha must be one number or one for each of the 2 cl"),
    ({"alpha": np.inf}, "alpha must be non-negative and finite"),
]
NO_BOUNDS = [
    ({"delta": -0.1}, "delta must be non-negative, got"),
    ({"delta": [0.1, 0.1]}, "each of the 6 nodes"),
    ({"beta": np.nan}, "beta must be non-negative, got"),
]


@pytest.mark.parametrize(
    ("function", "wrong", "message"),
    [(clustering_error_bound, *each) for each in NO_CONSTANTS]
    + [(well_connected, *each) for each in NO_CONSTANTS + NO_BOUNDS],
)
def test_refusals_of_graphs_and_constants(function, wrong, message):
    given = {"A": TRIANGLES, "labels": HALVES, "lam": 1.0, "alpha": 1.0}
    if function is well_connected:
        given |= {"delta": 0.1, "beta": 1.0}
    with pytest.raises(ValueError, match=message):
        function(**given | wrong)


@pytest.mark.parametrize("loss", [*LOSSES, "points"])
def test_constants_are_those_of_the_assumptions(loss):
    """(11) with equality, (12) and (13) at random pairs of models."""
    rng = np.random.RandomState(0)
    labels = np.array([0, 0, 0, 1, 1, 2])
    if loss == "points":
        problem = make_points(rng.standard_normal((6, 2)))
    else:
        problem = make_problem(loss, 6, seed=1)
    c = constants_of(problem, labels)
    values, gradients = problem.pool.ask(ObjectivesGradients, c.models[labels])
    # A bound: the models are minimisers to rounding.
    size = np.linalg.norm(gradients, axis=1)
    assert (c.delta >= size).all()
    assert_allclose(c.delta, size, rtol=1e-9, atol=1e-11)
    sums = np.stack([gradients[labels == k].sum(axis=0) for k in range(3)])
    assert_allclose(sums, 0.0, atol=1e-6)
    for _ in range(30):
        v = rng.standard_normal((2, 1, 2)) * 3 + np.zeros((2, 6, 2))
        (f, g), (f2, g2) = (problem.pool.ask(ObjectivesGradients, at) for at in v)
        step = np.linalg.norm(v[1, 0] - v[0, 0])
        assert (np.linalg.norm(g2 - g, axis=1) <= c.beta * step * (1 + 1e-9)).all()
        for k in range(3):
            mine = labels == k
            rest = f2[mine].sum() - f[mine].sum() - (v[1, 0] - v[0, 0]) @ g[mine].sum(axis=0)
            assert rest >= 0.5 * c.alpha[k] * step**2 * (1 - 1e-9) - 1e-12
    assert (c.alpha > 0).all() and (np.isinf(c.beta).all() == (loss == "poisson"))


def test_constants_of_a_fit():
    est, data = fitted("regressor", 0.05)
    c = clustering_constants(est, *data)
    assert_array_equal(c.labels, est.labels_)
    assert c.delta.shape == c.beta.shape == (10,)
    assert c.alpha.shape == (est.n_clusters_,) == (len(c.models),)
    # (37) needs equal models within clusters, however they came about.
    distance = np.linalg.norm(est.fusion_params_ - c.models[c.labels], axis=1)
    bound = clustering_error_bound(est.graph_, c.labels, est.lam_, c.alpha)
    assert (distance <= bound[c.labels]).all()
    # Another partition, with any names.
    one = clustering_constants(est, *data, labels=np.full(10, "all"))
    assert one.models.shape == (1, 11) and one.alpha[0] > c.alpha.max()
    assert one.delta.min() > c.delta.max()
    l1, data = fitted("regressor", 0.05, penalty="l1")
    other = clustering_constants(l1, *data, labels=est.labels_)
    assert_allclose(other.alpha, c.alpha / 11)
    assert (other.delta <= c.delta).all()


def test_constants_of_nodes_without_rows():
    """Their objective is zero: no gradient, no curvature, and they pass flows on."""
    rows = REGRESSION.groups != REGRESSION.groups[0]
    nodes = np.unique(REGRESSION.groups)
    A = np.where(REGRESSION.labels[:, None] == REGRESSION.labels, 1.0, 0.001)
    est = GTVRegressor(1.0, graph=A, nodes=nodes)
    data = REGRESSION.X[rows], REGRESSION.y[rows], REGRESSION.groups[rows]
    est.fit(*data[:2], groups=data[2])
    c = clustering_constants(est, *data)
    gone = np.flatnonzero(nodes == REGRESSION.groups[0])
    assert c.delta[gone] == c.beta[gone] == 0.0 < c.delta.max()
    assert well_connected(A, c.labels, 1.0, c.delta, c.alpha, c.beta).all()
    distance = np.linalg.norm(est.fusion_params_ - c.models[c.labels], axis=1)
    assert (distance <= clustering_error_bound(A, c.labels, 1.0, c.alpha)[c.labels]).all()
    assert certify_partition(est, *data)


def test_refusals_of_constants(monkeypatch):
    est, data = fitted("regressor", 0.05)
    with pytest.raises(ValueError, match="one entry for each of the 10 clients"):
        clustering_constants(est, *data, labels=[0, 1])
    monkeypatch.setattr(skcfl.fusion.theorems, "solve_separately", lambda *args: None)
    with pytest.raises(RuntimeError, match="minimisers of the clusters"):
        clustering_constants(est, *data)


def test_constants_of_a_client_with_few_rows_do_not_show_them():
    """Its Hessian has rows in it: the least curvature is its penalty, which the server knows."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(24, 4)), np.repeat(np.arange(8), 3)
    y = X @ rng.normal(size=4) + 5.0 * (groups == 7)
    model = LinearModel(alpha=0.1, fit_intercept=False, standardize=False)
    est = ConvexClusteredFL(model, lam=1e-3, graph="complete").fit(X, y, groups=groups)
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 1])
    c = clustering_constants(est, X, y, groups, labels=labels)
    first = X[groups < 7]
    expected = np.linalg.eigvalsh(first.T @ first / 3 + 0.7 * np.eye(4))[0]
    assert_allclose(c.alpha, [expected, 0.1], rtol=1e-9)


def test_theorem_3_asks_for_no_hessian(monkeypatch):
    problem = make_problem("squared_error", 7)
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    assert theorem_bounds(problem, 0.01, labels, np.zeros((7, 2))).uniform is None
    monkeypatch.setattr(Hessians, "asked", None)
    assert _theorem_3(problem, labels, np.zeros(2)) is None  # rows differ, and so do Hessians
