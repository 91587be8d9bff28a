"""Fusion methods over lam: bounds, paths, and lam by cross-validation."""

import numpy as np
import pandas as pd
import pytest
from fusion_problems import make_points
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, log_loss
from sklearn.pipeline import make_pipeline
from trials import some

from skcfl import (
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
    FPFCRegressor,
    GTVClassifier,
    GTVRegressor,
    IFCARegressor,
    LamSearch,
    LocalModelsRegressor,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.model_selection import ClientKFold, lam_max, lam_path
from skcfl.models import Location
from skcfl.search.by_partitions import PartitionCriterion, log_partitions

REGRESSION = make_clustered_regression(12, 3, 4, n_samples=(15, 40), random_state=0)
CLASSIFICATION = make_clustered_classification(6, 2, 3, random_state=0)


ROWS = REGRESSION.X, REGRESSION.y, REGRESSION.groups
CLASSES = CLASSIFICATION.X, CLASSIFICATION.y, CLASSIFICATION.groups


def splitting(seed=20, n_clients=5):
    """Five least-squares clients of unlike curvatures."""
    rng = np.random.RandomState(seed)
    groups = np.repeat(np.arange(n_clients), 4)
    X = rng.standard_normal((4 * n_clients, 2))
    X *= np.exp(rng.standard_normal((n_clients, 2)))[groups]
    y = (X * rng.standard_normal((n_clients, 2))[groups]).sum(axis=1)
    return X, y, groups


# ------------------------------------------------------------------------ where all fuses


@pytest.mark.parametrize("graph", ["complete", "chain"])
def test_lam_max_is_exact(graph):
    """Prefix sums over m (N - m) on a line, over the weights of the edges on a chain."""
    rng = np.random.RandomState(0)
    points = np.sort(rng.standard_normal((9, 1)), axis=0)
    weights = m = np.arange(1.0, 9)
    if graph == "chain":
        points = rng.standard_normal((9, 3))
        graph = np.diag(m, 1) + np.diag(m, -1)
    else:
        weights = m * (9 - m)
    bounds = lam_max(ConvexClusteredFL(Location(), graph=graph), points, groups=np.arange(9))
    sums = np.linalg.norm(np.cumsum(points - points.mean(axis=0), axis=0)[:-1], axis=1)
    assert_allclose(bounds, np.max(sums / weights), rtol=1e-6)


def test_lam_max_where_nothing_fuses_or_nothing_is_apart():
    X, y, _ = ROWS
    squared = ConvexClusteredFLRegressor(penalty="squared_l2")
    assert lam_max(squared, *ROWS) == (np.inf, np.inf)
    path = lam_path(squared, *ROWS, n_lams=6)
    spread = np.ptp(path.params, axis=1).max(axis=1)
    assert (path.n_clusters == 12).all()
    assert (np.diff(spread) < 0).all() and spread[-1] < 0.1 * spread[0]
    # On a disconnected graph one model a component is the end.
    half = np.kron(np.eye(2), np.ones((6, 6))) - np.eye(12)
    path = lam_path(ConvexClusteredFLRegressor(graph=half), *ROWS, n_lams=4)
    assert_array_equal(path.labels[-1], np.repeat([0, 1], 6))
    one = np.zeros(len(y), dtype=int)
    assert lam_max(ConvexClusteredFLRegressor(), X, y, one) == (0.0, 0.0)
    path = lam_path(ConvexClusteredFLRegressor(), X, y, one)
    assert_array_equal(path.lams, [0.0])
    assert path.params.shape == (1, 1, X.shape[1] + 1)


# ---------------------------------------------------------------------------- the path


WAYS = [("complete", False), ("knn", True), ("complete", True), ("knn", False)]


@pytest.mark.parametrize(("graph", "refit"), some(WAYS, 2))
def test_path_equals_fits(graph, refit):
    options = {"graph": graph, "refit": refit, "tol": 1e-10}
    path = lam_path(ConvexClusteredFLRegressor(**options), *ROWS, n_lams=4)
    assert path.converged.all()
    assert_array_equal(path.groups, np.unique(ROWS[2]))
    for k, lam in enumerate(path.lams):
        fit = ConvexClusteredFLRegressor(lam, **options).fit(*ROWS)
        if path.optimal[k] and fit.partition_optimal_:
            assert_array_equal(path.labels[k], fit.labels_)
            assert_allclose(path.params[k], fit.params_, atol=1e-6)
        assert_allclose(path.fusion_params[k], fit.fusion_params_, atol=1e-3)
        assert_allclose(path.objectives[k], fit.objective_, rtol=1e-8)
        assert path.n_clusters[k] == path.labels[k].max() + 1
    assert path.optimal.sum() >= len(path.lams) - 2
    # by another solver
    pdmm = ConvexClusteredFLRegressor(graph=graph, refit=refit, solver="pdmm")
    found = lam_path(pdmm, *ROWS, lams=path.lams[2:0:-1])
    assert_array_equal(found.lams, path.lams[1:3])
    assert_allclose(found.objectives, path.objectives[1:3], rtol=1e-5)


@pytest.mark.parametrize(
    ("cls", "search", "seed"),
    [
        (ConvexClusteredFLRegressor, None, 2),
        (ConvexClusteredFLRegressor, LamSearch("bic"), 0),
        (ConvexClusteredFLRegressor, LamSearch(alphas=[0.5, 3.0]), 0),
        (GTVRegressor, None, 2),
        (FPFCRegressor, None, 1),
    ],
)
def test_path_of_a_fit_has_its_options(cls, search, seed):
    """Graph, penalty, alpha and refit that a search chose: at its lam the path is the fit."""
    data = make_clustered_regression(
        9, 3, 3, n_samples=(6, 14), noise=seed + 0.1, random_state=seed
    )
    rows = data.X, data.y, data.groups
    fit = cls(search=search).fit(*rows)
    path = lam_path(fit, *rows, lams=[fit.lam_])
    assert_array_equal(path.labels[0], fit.labels_)
    assert_allclose(path.fusion_params[0], fit.fusion_params_, atol=1e-9)
    assert_allclose(path.params[0], fit.params_, atol=1e-9)
    # Of other clients it is the path of an unfitted estimator.
    others = data.X, data.y, np.array([f"new {g}" for g in data.groups])
    expected = lam_path(clone(fit), *others, lams=[fit.lam_])
    assert_array_equal(lam_path(fit, *others, lams=[fit.lam_]).params, expected.params)


def test_ends_of_the_path():
    """At 0 the clients' own models, at the end one model, which counts every client once."""
    X, y, groups = ROWS
    est = ConvexClusteredFLRegressor(alpha=1e-2)
    path = lam_path(est, *ROWS, lams=[0.0, 1e-9, 1.01 * lam_max(est, *ROWS)[1]])
    local = LocalModelsRegressor(alpha=1e-2).fit(*ROWS)
    assert_allclose(path.params[0], local.params_, atol=1e-8)
    assert_allclose(path.params[1], local.params_, atol=1e-4)
    assert path.n_clusters[-1] == 1
    est.set_params(standardize=False)  # a client's weight in the sums is that of its rows
    path = lam_path(est, *ROWS, lams=[0.0, 1.01 * lam_max(est, *ROWS)[1]])
    # each client's rows weigh one in all: the pooled objective
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    one = ConvexClusteredFLRegressor(0.0, alpha=1e-2, standardize=False)
    one.fit(X, y, groups=np.zeros(len(y), dtype=int), sample_weight=1.0 / sizes[codes])
    assert_allclose(path.params[-1], np.repeat(one.params_, len(sizes), axis=0), atol=1e-6)


def test_merged_clients_split_again():
    """The paper's claim that the number of models never rises with lam is false."""
    rows = splitting()
    est = ConvexClusteredFLRegressor(fit_intercept=False, alpha=0.0, standardize=False, tol=1e-9)
    path = lam_path(est, *rows, n_lams=40)
    assert path.optimal.all()
    k = np.flatnonzero(np.diff(path.n_clusters) > 0)[0] + 1
    cold = clone(est).set_params(lam=path.lams[k]).fit(*rows)
    assert cold.n_clusters_ == path.n_clusters[k] > path.n_clusters[k - 1]
    assert cold.partition_optimal_
    assert_allclose(path.params[k], cold.params_, atol=1e-6)


@pytest.mark.parametrize("seed", some(range(5), 2))
def test_what_is_monotone(seed):
    """Over lam the minimum rises and is concave, the penalty falls, the loss rises."""
    est = ConvexClusteredFLRegressor(fit_intercept=False, alpha=1e-3, tol=1e-10)
    path = lam_path(est, *splitting(seed), n_lams=12)
    difference = path.params[:, :, None] - path.params[:, None]
    fusion = 0.5 * np.linalg.norm(difference, axis=3).sum(axis=(1, 2))
    loss = path.objectives - path.lams * fusion
    slack = 1e-8 * path.objectives.max()
    assert (np.diff(path.objectives) >= -slack).all()
    assert (np.diff(loss) >= -slack).all()
    assert (np.diff(fusion) <= 1e-6 * fusion.max()).all()
    slopes = np.diff(path.objectives) / np.diff(path.lams)
    assert (np.diff(slopes) <= 1e-6 * np.abs(slopes).max()).all()
    assert (path.gaps >= 0).all()


def test_path_with_group_col_and_named_groups():
    X, y, groups = ROWS
    names = np.array([f"shop {g}" for g in groups])
    frame = pd.DataFrame(X).add_prefix("x").assign(shop=names)
    est = ConvexClusteredFLRegressor(lam=0.1).fit(X, y, groups)
    before = dict(vars(est))
    a = lam_path(est, X, y, names, n_lams=3)
    lam_max(est, X, y, names)
    assert vars(est) == before
    b = lam_path(est.set_params(group_col="shop"), frame, y, n_lams=3)
    assert_array_equal(a.groups, b.groups)
    assert_array_equal(a.params, b.params)


def test_path_warns_once_when_it_falls_short():
    est = ConvexClusteredFLClassifier(max_iter=2)
    with pytest.warns(ConvergenceWarning, match="solutions on the path") as caught:
        path = lam_path(est, *CLASSES, lams=[0.01, 0.02])
    assert len(caught) == 1 and not path.converged.all()
    assert caught[0].filename == __file__


def test_grid():
    est = ConvexClusteredFLRegressor(graph="knn")
    _, upper = lam_max(est, *ROWS)
    path = lam_path(est, *ROWS, n_lams=5, lam_min_ratio=0.01)
    assert_allclose(np.diff(np.log(path.lams)), np.log(100) / 4)
    assert upper <= path.lams[-1] <= 1.02 * upper
    assert path.n_clusters[-1] == 1
    assert len(lam_path(est, *ROWS, n_lams=1).lams) == 1


CONVEX = ConvexClusteredFLRegressor()


@pytest.mark.parametrize(
    ("function", "est", "options", "error", "match"),
    [
        (lam_path, CONVEX, {"lams": [-1.0, 2.0]}, ValueError, "not negative"),
        (lam_path, CONVEX, {"lams": []}, ValueError, "lams must be"),
        (lam_path, CONVEX, {"lams": [1.0, np.nan]}, ValueError, "finite"),
        (lam_path, CONVEX, {"n_lams": 0}, ValueError, "n_lams"),
        (lam_path, CONVEX, {"lam_min_ratio": 1.0}, ValueError, "lam_min_ratio"),
        (lam_path, IFCARegressor(2), {}, TypeError, "fusion penalty"),
        (lam_max, make_pipeline(CONVEX), {}, TypeError, "last step"),
        (lam_max, ConvexClusteredFLRegressor(graph="star"), {}, ValueError, "'graph' parameter"),
    ],
)
def test_refusals(function, est, options, error, match):
    with pytest.raises(error, match=match):
        function(est, *ROWS, **options)


# --------------------------------------------------------------------- cross-validation


def test_cross_validation_finds_the_clusters():
    one = {"graph": "knn", "refit": True, "alpha": 0.001}  # only lam is to be chosen
    search = LamSearch(cv=3, n_lams=5)
    cv = ConvexClusteredFLRegressor(search=search, random_state=0, **one).fit(*ROWS)
    assert adjusted_rand_score(cv.labels_, REGRESSION.labels) == 1.0
    assert cv.cv_scores_.shape == (3, len(cv.lams_)) and len(cv.lams_) >= 5
    assert cv.lams_[0] == 0.0 and (np.diff(cv.lams_) > 0).all()
    assert cv.lam_ == cv.lams_[cv.best_index_]
    mean = cv.cv_scores_.mean(axis=0)
    assert mean[cv.best_index_] >= mean.max() - 1e-8 * abs(mean.max())
    assert mean[cv.best_index_] > mean[0] and mean[cv.best_index_] > mean[-1]
    same = ConvexClusteredFLRegressor(cv.lam_, **one).fit(*ROWS)
    assert_array_equal(cv.params_, same.params_)
    assert cv.floats_up_ > same.floats_up_


@pytest.mark.parametrize(
    ("method", "graph"), [(ConvexClusteredFLClassifier, "complete"), (GTVClassifier, "knn")]
)
def test_scores_are_those_of_fits_on_the_folds(method, graph, monkeypatch):
    # The models of a search, to the accuracy of a fit.
    monkeypatch.setattr("skcfl.fusion.convex_fits.SEARCH_TOL", 1e-9)
    monkeypatch.setattr("skcfl.fusion.convex_fits.SEARCH_ITERATIONS", 2000)
    X, y, groups = CLASSES
    weight = np.random.RandomState(0).uniform(0.5, 1.5, len(y))
    folds = list(ClientKFold(2, random_state=3).split(X, y, groups))
    lams = [0.003, 0.1]
    model = {"alpha": 0.01, "standardize": False, "tol": 1e-9}
    model |= {"graph": graph, "penalty": "l2", "refit": False}
    cv = method(search=LamSearch(cv=folds, lams=lams), **model).fit(X, y, groups, weight)
    for f, (train, test) in enumerate(folds):
        for k, lam in enumerate(lams):
            fit = method(lam, **model).fit(X[train], y[train], groups[train], weight[train])
            proba = fit.predict_proba(X[test], groups=groups[test])
            loss = log_loss(y[test], proba, sample_weight=weight[test])
            assert_allclose(cv.cv_scores_[f, k], -loss, rtol=1e-5)


# One graph, penalty and local penalty, where what competes is not what is tested.
ONE_FAMILY = {"graph": "complete", "penalty": "l2", "alpha": 0.01, "random_state": 0}


def searched(cls, rows, n_lams=2, cv=2, scoring=None, **options):
    search = LamSearch(cv=cv, scoring=scoring, n_lams=n_lams)
    return cls(search=search, **{**ONE_FAMILY, **options}).fit(*rows)


@pytest.mark.parametrize("scoring", some(["neg_log_loss", "accuracy", "roc_auc"], 2))
def test_scoring_by_name(scoring):
    X, y, groups = CLASSES
    rows = X, np.array(["no", "yes"])[y], groups
    cv = searched(ConvexClusteredFLClassifier, rows, scoring=scoring)
    assert np.isfinite(cv.cv_scores_).all()
    assert set(cv.classes_) == {"no", "yes"}
    if scoring == "neg_log_loss":
        plain = searched(ConvexClusteredFLClassifier, rows)
        assert_allclose(plain.cv_scores_, cv.cv_scores_, rtol=1e-6)


def test_scoring_of_other_losses():
    squares = searched(ConvexClusteredFLRegressor, ROWS, scoring="neg_mean_squared_error")
    plain = searched(ConvexClusteredFLRegressor, ROWS)
    assert_allclose(2 * plain.cv_scores_, squares.cv_scores_, rtol=1e-6)
    hinge = {"loss": "squared_hinge", "scoring": "roc_auc"}
    cv = searched(ConvexClusteredFLClassifier, CLASSES, **hinge)
    assert (cv.cv_scores_ > 0.5).all()
    with pytest.raises(AttributeError, match="predict_proba"):
        cv.set_params(search__scoring="neg_log_loss").fit(*CLASSES)


def test_unseen_classes_in_a_fold():
    """A class of one row is missing from a training fold; probabilities keep their columns."""
    X = np.random.RandomState(0).standard_normal((80, 3))
    y = (X[:, 0] > 0).astype(int)
    y[0] = 2
    rows = X, y, np.repeat(np.arange(4), 20)
    options = {"scoring": "neg_log_loss", "cv": 3, "n_lams": 1, "alpha": 0.1}
    cv = searched(ConvexClusteredFLClassifier, rows, **options)
    assert np.isfinite(cv.cv_scores_).all()


# ------------------------------------------------------------------ the criterion of a partition


def test_criterion_of_a_partition_is_the_formula():
    """Every term, that of the number of clusters included, by hand on points."""
    X = np.random.RandomState(0).standard_normal((5, 2))
    labels = np.array([0, 0, 1, 1, 2])
    n_k, K, p = np.array([2.0, 2.0, 1.0]), 3, 2
    means = np.array([X[labels == k].mean(axis=0) for k in range(K)])
    loss = np.bincount(labels, 0.5 * ((X - means[labels]) ** 2).sum(axis=1))
    common = np.bincount(labels, 0.5 * ((X - X.mean(axis=0)) ** 2).sum(axis=1))
    total = ((n_k * loss + common) / (n_k + 1)).sum()
    expected = (
        (X.size - p) * np.log(total)
        + (np.minimum(p, n_k * 2) * np.log1p(n_k)).sum()
        + p * np.log((n_k / (1 + n_k)).sum())
        + 2 * log_partitions(5, 3)
        + 2 * np.log(K)
    )
    assert PartitionCriterion(make_points(X))(labels) == pytest.approx(expected, rel=1e-9)
