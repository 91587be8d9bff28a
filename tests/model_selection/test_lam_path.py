"""Fusion methods over lam: bounds, paths, and lam by cross-validation."""

import warnings

import numpy as np
import pytest
from fusion_problems import make_points
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.impute import SimpleImputer
from sklearn.metrics import adjusted_rand_score, log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from trials import some

from skcfl import (
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
    FedAvgClassifier,
    GTVClassifier,
    IFCARegressor,
    LamSearch,
    LocalModelsClassifier,
    LocalModelsRegressor,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.model_selection import ClientKFold, lam_max, lam_path
from skcfl.models import Location
from skcfl.search.by_partitions import PartitionCriterion, log_partitions

REGRESSION = make_clustered_regression(12, 3, 4, random_state=0)
CLASSIFICATION = make_clustered_classification(6, 2, 3, random_state=0)


def splitting(seed=20, n_clients=5):
    """Five least-squares clients of unlike curvatures."""
    rng = np.random.RandomState(seed)
    groups = np.repeat(np.arange(n_clients), 4)
    X = rng.standard_normal((4 * n_clients, 2))
    X *= np.exp(rng.standard_normal((n_clients, 2)))[groups]
    y = (X * rng.standard_normal((n_clients, 2))[groups]).sum(axis=1)
    return X, y, groups


# ------------------------------------------------------------------------ where all fuses


@pytest.mark.parametrize("graph", ["complete", "knn"])
@pytest.mark.parametrize("data", [REGRESSION, CLASSIFICATION], ids=["regression", "classes"])
def test_everything_fuses_from_lam_max_on(graph, data):
    regression = data is REGRESSION
    cls = ConvexClusteredFLRegressor if regression else ConvexClusteredFLClassifier
    est = cls(graph=graph)
    lower, upper = lam_max(est, data.X, data.y, groups=data.groups)
    assert 0 < lower <= upper <= 1.05 * lower
    beyond = est.set_params(lam=1.001 * upper).fit(data.X, data.y, groups=data.groups)
    assert beyond.n_clusters_ == 1 and beyond.partition_optimal_
    below = est.set_params(lam=0.99 * lower).fit(data.X, data.y, groups=data.groups)
    assert below.n_clusters_ > 1


def test_lam_max_is_exact_for_points_on_a_line():
    """The largest prefix sum over m (N - m): maths of one parameter, complete graph."""
    rng = np.random.RandomState(0)
    a = np.sort(rng.standard_normal(9))
    est = ConvexClusteredFL(Location())
    lower, upper = lam_max(est, a[:, None], groups=np.arange(9))
    m = np.arange(1, 9)
    exact = np.max(np.abs(np.cumsum(a - a.mean())[:-1]) / (m * (9 - m)))
    assert_allclose([lower, upper], exact, rtol=1e-6)


def test_lam_max_is_exact_on_a_tree():
    rng = np.random.RandomState(1)
    points, n = rng.standard_normal((6, 3)), 6
    chain = np.diag(np.arange(1.0, n), 1)
    est = ConvexClusteredFL(Location(), graph=chain + chain.T)
    lower, upper = lam_max(est, points, groups=np.arange(n))
    sums = np.linalg.norm(np.cumsum(points - points.mean(axis=0), axis=0)[:-1], axis=1)
    assert_allclose([lower, upper], np.max(sums / np.arange(1.0, n)), rtol=1e-6)


def test_lam_max_where_nothing_fuses_or_nothing_is_apart():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    est = ConvexClusteredFLRegressor(penalty="squared_l2")
    assert lam_max(est, X, y, groups=groups) == (np.inf, np.inf)
    one = np.zeros(len(y), dtype=int)
    assert lam_max(ConvexClusteredFLRegressor(), X, y, groups=one) == (0.0, 0.0)
    path = lam_path(ConvexClusteredFLRegressor(), X, y, groups=one)
    assert_array_equal(path.lams, [0.0])
    assert path.params.shape == (1, 1, X.shape[1] + 1)


def test_components_fuse_apart():
    """On a disconnected graph no lam makes all models equal: one a component is the end."""
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    half = np.kron(np.eye(2), np.ones((6, 6))) - np.eye(12)
    path = lam_path(ConvexClusteredFLRegressor(graph=half), X, y, groups=groups, n_lams=4)
    assert path.n_clusters[-1] == 2
    assert_array_equal(path.labels[-1], np.repeat([0, 1], 6))


# ---------------------------------------------------------------------------- the path


WAYS = [("complete", False), ("knn", True), ("complete", True), ("knn", False)]


@pytest.mark.parametrize(("graph", "refit"), some(WAYS, 2))
def test_path_equals_fits(graph, refit):
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    est = ConvexClusteredFLRegressor(graph=graph, refit=refit, tol=1e-10)
    path = lam_path(est, X, y, groups=groups, n_lams=6)
    assert path.converged.all()
    assert_array_equal(path.groups, np.unique(groups))
    for k, lam in enumerate(path.lams):
        fit = ConvexClusteredFLRegressor(lam, graph=graph, refit=refit, tol=1e-10)
        fit.fit(X, y, groups=groups)
        if path.optimal[k] and fit.partition_optimal_:
            assert_array_equal(path.labels[k], fit.labels_)
            assert_allclose(path.params[k], fit.params_, atol=1e-6)
        assert_allclose(path.fusion_params[k], fit.fusion_params_, atol=1e-3)
        assert_allclose(path.objectives[k], fit.objective_, rtol=1e-8)
        assert path.n_clusters[k] == path.labels[k].max() + 1
    assert path.optimal.sum() >= len(path.lams) - 2


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge"])
def test_path_of_classifiers_equals_fits(loss):
    X, y, groups = CLASSIFICATION.X, CLASSIFICATION.y, CLASSIFICATION.groups
    est = ConvexClusteredFLClassifier(loss=loss, alpha=0.01)
    path = lam_path(est, X, y, groups=groups, lams=[0.3, 0.02, 0.0, 0.1])
    assert_array_equal(path.lams, [0.0, 0.02, 0.1, 0.3])
    for k, lam in enumerate(path.lams):
        fit = ConvexClusteredFLClassifier(lam, loss=loss, alpha=0.01).fit(X, y, groups=groups)
        assert_allclose(path.objectives[k], fit.objective_, rtol=3e-6)
        if path.optimal[k] and fit.partition_optimal_:
            assert_array_equal(path.labels[k], fit.labels_)


def test_ends_of_the_path():
    """At 0 the clients' own models, at the end one model, which counts every client once."""
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    est = ConvexClusteredFLRegressor(alpha=1e-2)
    _, upper = lam_max(est, X, y, groups=groups)
    path = lam_path(est, X, y, groups=groups, lams=[0.0, 1e-9, 1.01 * upper])
    local = LocalModelsRegressor(alpha=1e-2).fit(X, y, groups=groups)
    assert_allclose(path.params[0], local.params_, atol=1e-8)
    assert_allclose(path.params[1], local.params_, atol=1e-4)
    assert path.n_clusters[-1] == 1
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    est.set_params(standardize=False)  # a client's weight in the sums is that of its rows
    path = lam_path(
        est, X, y, groups=groups, lams=[0.0, 1.01 * lam_max(est, X, y, groups=groups)[1]]
    )
    one = ConvexClusteredFLRegressor(0.0, alpha=1e-2, standardize=False)
    # each client's rows weigh one in all: the pooled objective
    one.fit(X, y, groups=np.zeros(len(y), dtype=int), sample_weight=1.0 / sizes[codes])
    assert_allclose(path.params[-1], np.repeat(one.params_, len(sizes), axis=0), atol=1e-6)


def test_merged_clients_split_again():
    """The paper's claim that the number of models never rises with lam is false."""
    X, y, groups = splitting()
    est = ConvexClusteredFLRegressor(fit_intercept=False, alpha=0.0, standardize=False, tol=1e-9)
    path = lam_path(est, X, y, groups=groups, n_lams=40)
    assert path.optimal.all()
    rises = np.flatnonzero(np.diff(path.n_clusters) > 0)
    assert len(rises)
    k = rises[0] + 1
    cold = ConvexClusteredFLRegressor(**{**est.get_params(), "lam": path.lams[k]})
    cold.fit(X, y, groups=groups)
    assert cold.n_clusters_ == path.n_clusters[k] > path.n_clusters[k - 1]
    assert cold.partition_optimal_
    assert_allclose(path.params[k], cold.params_, atol=1e-6)


@pytest.mark.parametrize("seed", some(range(5), 2))
def test_what_is_monotone(seed):
    """Over lam the minimum rises and is concave, the penalty falls, the loss rises."""
    X, y, groups = splitting(seed)
    est = ConvexClusteredFLRegressor(fit_intercept=False, alpha=1e-3, tol=1e-10)
    path = lam_path(est, X, y, groups=groups, n_lams=12)
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


def test_path_leaves_the_estimator_alone():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    est = ConvexClusteredFLRegressor(lam=0.1).fit(X, y, groups=groups)
    before = dict(vars(est))
    lam_path(est, X, y, groups=groups, n_lams=2)
    lam_max(est, X, y, groups=groups)
    assert vars(est) == before


def test_path_with_group_col_and_named_groups():
    pd = pytest.importorskip("pandas")
    X, y = REGRESSION.X, REGRESSION.y
    names = np.array([f"shop {g}" for g in REGRESSION.groups])
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(shop=names)
    est = ConvexClusteredFLRegressor()
    a = lam_path(est, X, y, groups=names, n_lams=3)
    b = lam_path(est.set_params(group_col="shop"), frame, y, n_lams=3)
    assert_array_equal(a.groups, b.groups)
    assert_array_equal(a.params, b.params)


def test_path_of_the_squared_penalty():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    est = ConvexClusteredFLRegressor(penalty="squared_l2")
    path = lam_path(est, X, y, groups=groups, n_lams=6)
    assert (path.n_clusters == 12).all()
    spread = np.ptp(path.params, axis=1).max(axis=1)
    assert (np.diff(spread) < 0).all() and spread[-1] < 0.1 * spread[0]


def test_path_by_pdmm():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    lams = [0.1, 1.0]
    path = lam_path(ConvexClusteredFLRegressor(solver="pdmm"), X, y, groups=groups, lams=lams)
    best = lam_path(ConvexClusteredFLRegressor(), X, y, groups=groups, lams=lams)
    assert_allclose(path.objectives, best.objectives, rtol=1e-5)


def test_path_warns_once_when_it_falls_short():
    X, y, groups = CLASSIFICATION.X, CLASSIFICATION.y, CLASSIFICATION.groups
    est = ConvexClusteredFLClassifier(max_iter=2)
    with pytest.warns(ConvergenceWarning, match="solutions on the path") as caught:
        path = lam_path(est, X, y, groups=groups, lams=[0.01, 0.02])
    assert len(caught) == 1 and not path.converged.all()
    assert caught[0].filename == __file__


def test_grid():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    est = ConvexClusteredFLRegressor(graph="knn")
    _, upper = lam_max(est, X, y, groups=groups)
    path = lam_path(est, X, y, groups=groups, n_lams=5, lam_min_ratio=0.01)
    assert_allclose(np.diff(np.log(path.lams)), np.log(100) / 4)
    assert upper <= path.lams[-1] <= 1.02 * upper
    assert path.n_clusters[-1] == 1
    assert len(lam_path(est, X, y, groups=groups, n_lams=1).lams) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lams": [-1.0, 2.0]}, "not negative"),
        ({"lams": []}, "lams must be"),
        ({"lams": [1.0, np.nan]}, "finite"),
        ({"n_lams": 0}, "n_lams"),
        ({"lam_min_ratio": 1.0}, "lam_min_ratio"),
    ],
)
def test_wrong_parameters(options, match):
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    with pytest.raises(ValueError, match=match):
        lam_path(ConvexClusteredFLRegressor(), X, y, groups=groups, **options)


def test_wrong_estimators():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    with pytest.raises(TypeError, match="fusion penalty"):
        lam_path(IFCARegressor(2), X, y, groups=groups)
    with pytest.raises(TypeError, match="last step"):
        lam_max(make_pipeline(ConvexClusteredFLRegressor()), X, y, groups=groups)
    with pytest.raises(ValueError, match="'graph' parameter"):
        lam_max(ConvexClusteredFLRegressor(graph="star"), X, y, groups=groups)


# --------------------------------------------------------------------- cross-validation


def test_cross_validation_finds_the_clusters():
    X, y, groups = REGRESSION.X, REGRESSION.y, REGRESSION.groups
    one = {"graph": "knn", "refit": True, "alpha": 0.001}  # only lam is to be chosen
    cv = ConvexClusteredFLRegressor(search=LamSearch(cv=3, n_lams=8), random_state=0, **one).fit(
        X, y, groups=groups
    )
    assert adjusted_rand_score(cv.labels_, REGRESSION.labels) == 1.0
    assert cv.cv_scores_.shape == (3, len(cv.lams_)) and len(cv.lams_) >= 8
    assert cv.lams_[0] == 0.0 and (np.diff(cv.lams_) > 0).all()
    assert cv.lam_ == cv.lams_[cv.best_index_]
    mean = cv.cv_scores_.mean(axis=0)
    assert mean[cv.best_index_] >= mean.max() - 1e-8 * abs(mean.max())
    assert mean[cv.best_index_] > mean[0] and mean[cv.best_index_] > mean[-1]
    same = ConvexClusteredFLRegressor(cv.lam_, **one).fit(X, y, groups=groups)
    assert_array_equal(cv.params_, same.params_)
    assert_array_equal(cv.predict(X, groups=groups), same.predict(X, groups=groups))
    assert cv.floats_up_ > same.floats_up_


@pytest.mark.parametrize(
    ("method", "graph"), [(ConvexClusteredFLClassifier, "complete"), (GTVClassifier, "knn")]
)
def test_scores_are_those_of_fits_on_the_folds(method, graph, monkeypatch):
    # The models of a search, to the accuracy of a fit.
    monkeypatch.setattr("skcfl.fusion.convex_fits.SEARCH_TOL", 1e-9)
    monkeypatch.setattr("skcfl.fusion.convex_fits.SEARCH_ITERATIONS", 2000)
    X, y, groups = CLASSIFICATION.X, CLASSIFICATION.y, CLASSIFICATION.groups
    weight = np.random.RandomState(0).uniform(0.5, 1.5, len(y))
    folds = list(ClientKFold(2, random_state=3).split(X, y, groups))
    lams = [0.003, 0.1]
    model = {"alpha": 0.01, "standardize": False, "tol": 1e-9}
    model |= {"graph": graph, "penalty": "l2", "refit": False}
    cv = method(search=LamSearch(cv=folds, lams=lams), **model)
    cv.fit(X, y, groups=groups, sample_weight=weight)
    for f, (train, test) in enumerate(folds):
        for k, lam in enumerate(lams):
            fit = method(lam, **model)
            fit.fit(X[train], y[train], groups=groups[train], sample_weight=weight[train])
            proba = fit.predict_proba(X[test], groups=groups[test])
            loss = log_loss(y[test], proba, sample_weight=weight[test])
            assert_allclose(cv.cv_scores_[f, k], -loss, rtol=1e-5)


# One graph, penalty and local penalty, where what competes is not what is tested.
ONE_FAMILY = {"graph": "complete", "penalty": "l2", "alpha": 0.01, "random_state": 0}


@pytest.mark.parametrize("scoring", some(["neg_log_loss", "accuracy", "roc_auc"], 2))
def test_scoring_by_name(scoring):
    data = CLASSIFICATION
    names = np.array(["no", "yes"])[data.y]
    cv = ConvexClusteredFLClassifier(
        search=LamSearch(cv=2, scoring=scoring, n_lams=3), **ONE_FAMILY
    )
    cv.fit(data.X, names, groups=data.groups)
    assert np.isfinite(cv.cv_scores_).all()
    assert set(cv.classes_) == {"no", "yes"}
    if scoring == "neg_log_loss":
        plain = ConvexClusteredFLClassifier(search=LamSearch(cv=2, n_lams=3), **ONE_FAMILY)
        plain.fit(data.X, names, groups=data.groups)
        assert_allclose(plain.cv_scores_, cv.cv_scores_, rtol=1e-6)


def test_scoring_without_probabilities():
    data = CLASSIFICATION
    cv = ConvexClusteredFLClassifier(
        loss="squared_hinge", search=LamSearch(cv=2, scoring="roc_auc", n_lams=2), **ONE_FAMILY
    ).fit(data.X, data.y, groups=data.groups)
    assert (cv.cv_scores_ > 0.5).all()
    with pytest.raises(AttributeError, match="predict_proba"):
        cv.set_params(search__scoring="neg_log_loss").fit(data.X, data.y, groups=data.groups)


def test_scoring_of_regression():
    data = REGRESSION
    scores = {}
    for scoring in (None, "neg_mean_squared_error"):
        cv = ConvexClusteredFLRegressor(
            search=LamSearch(cv=2, scoring=scoring, n_lams=3), **ONE_FAMILY
        )
        scores[scoring] = cv.fit(data.X, data.y, groups=data.groups).cv_scores_
    assert_allclose(2 * scores[None], scores["neg_mean_squared_error"], rtol=1e-6)


def test_the_number_of_jobs_changes_nothing():
    data = CLASSIFICATION
    one, more = (
        ConvexClusteredFLClassifier(search=LamSearch(cv=2, n_lams=3), n_jobs=n, **ONE_FAMILY).fit(
            data.X, data.y, groups=data.groups
        )
        for n in (None, 2)
    )
    assert_array_equal(one.cv_scores_, more.cv_scores_)
    assert_array_equal(one.params_, more.params_)
    assert one.lam_ == more.lam_ and one.floats_up_ == more.floats_up_


def test_one_client_has_nothing_to_choose():
    data = REGRESSION
    one = np.zeros(len(data.y), dtype=int)
    cv = ConvexClusteredFLRegressor(search=LamSearch(cv=4)).fit(data.X, data.y, groups=one)
    assert cv.lam_ == 0.0 and np.isnan(cv.cv_scores_).all() and cv.cv_scores_.shape == (4, 1)
    local = LocalModelsRegressor().fit(data.X, data.y, groups=one)
    assert_allclose(cv.params_, local.params_, atol=1e-8)


def test_unseen_classes_in_a_fold():
    """A class of one row is missing from a training fold; probabilities keep their columns."""
    rng = np.random.RandomState(0)
    groups = np.repeat(np.arange(4), 20)
    X = rng.standard_normal((80, 3))
    y = (X[:, 0] > 0).astype(int)
    y[0] = 2
    cv = ConvexClusteredFLClassifier(
        alpha=0.1,
        graph="complete",
        penalty="l2",
        search=LamSearch(cv=3, scoring="neg_log_loss", n_lams=2),
        random_state=0,
    )
    assert np.isfinite(cv.fit(X, y, groups=groups).cv_scores_).all()


def test_bad_cross_validation():
    data = REGRESSION
    with pytest.raises(ValueError, match="'cv' parameter"):
        ConvexClusteredFLRegressor(search=LamSearch(cv=1)).fit(data.X, data.y, groups=data.groups)
    with pytest.raises(ValueError, match="not negative"):
        ConvexClusteredFLRegressor(search=LamSearch(cv=5, lams=[-1])).fit(
            data.X, data.y, groups=data.groups
        )


def hospitals(random_state=0):
    """Four hospitals of unlike sizes, two of which are alike, with missing values."""
    rng = np.random.RandomState(random_state)
    sizes = np.array([80, 80, 40, 25])
    groups = np.repeat(np.arange(4), sizes)
    W = rng.standard_normal((4, 5))
    W[1] = W[0]
    W[2:] = 0.5 * (W[2:] + W[:2])
    X = rng.standard_normal((sizes.sum(), 5))
    z = np.einsum("ij,ij->i", X, W[groups])
    y = (rng.uniform(size=len(z)) < 1 / (1 + np.exp(-1.5 * z))).astype(int)
    X[rng.uniform(size=X.shape) < 0.1] = np.nan
    return X, y, groups


def test_in_a_pipeline_no_worse_than_pooled_or_local():
    pd = pytest.importorskip("pandas")
    X, y, groups = hospitals()
    frame = pd.DataFrame(X, columns=list("abcde")).assign(
        hospital=np.array(["north", "south", "east", "west"])[groups]
    )

    def losses(model):
        prepare = make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), list("abcde")),
            remainder="passthrough",
            verbose_feature_names_out=False,
        ).set_output(transform="pandas")
        folds = ClientKFold(3, group_col="hospital", random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            proba = cross_val_predict(
                make_pipeline(prepare, model), frame, y, cv=folds, method="predict_proba"
            )
        return -np.log(proba[np.arange(len(y)), y])

    chosen = losses(
        ConvexClusteredFLClassifier(
            group_col="hospital",
            search=LamSearch(cv=2, n_lams=4),
            random_state=0,
        )
    )
    pooled = losses(FedAvgClassifier(group_col="hospital"))
    local = losses(LocalModelsClassifier(group_col="hospital"))
    # The rule that defaults are judged by: within a standard error of the better of the two.
    excess = chosen - min(pooled, local, key=np.mean)
    assert excess.mean() < excess.std() / np.sqrt(len(y))
    assert chosen.mean() < max(pooled.mean(), local.mean()) + 0.005


# ------------------------------------------------------------------ the criterion of a partition


def test_criterion_of_a_partition_is_the_formula():
    """Every term, that of the number of clusters included, by hand on points."""
    rng = np.random.RandomState(0)
    X = rng.standard_normal((5, 2))
    criterion = PartitionCriterion(make_points(X))
    labels = np.array([0, 0, 1, 1, 2])
    n_k, K, p = np.array([2.0, 2.0, 1.0]), 3, 2
    means = np.array([X[labels == k].mean(axis=0) for k in range(K)])
    loss = np.bincount(labels, 0.5 * ((X - means[labels]) ** 2).sum(axis=1))
    common = np.bincount(labels, 0.5 * ((X - X.mean(axis=0)) ** 2).sum(axis=1))
    total = ((n_k * loss + common) / (n_k + 1)).sum()
    partitions = 25  # of five things into three parts
    expected = (
        (X.size - p) * np.log(total)
        + (np.minimum(p, n_k * 2) * np.log1p(n_k)).sum()
        + p * np.log((n_k / (1 + n_k)).sum())
        + 2 * np.log(partitions)
        + 2 * np.log(K)
    )
    assert log_partitions(5, 3) == pytest.approx(np.log(partitions), abs=0.1)
    approximate = 2 * (log_partitions(5, 3) - np.log(partitions))
    assert criterion(labels) == pytest.approx(expected + approximate, rel=1e-9)
