"""FPFC's estimators: clusters without tuning, invariances, path, choice of lam, refusals."""

import numpy as np
import pytest
from clustered import fit
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from trials import some

import skcfl
from skcfl import (
    FPFC,
    ConvexClusteredFLRegressor,
    FPFCClassifier,
    FPFCRegressor,
    LamSearch,
    LocalModelsRegressor,
    Training,
)
from skcfl.datasets import (
    make_clustered_classification,
    make_clustered_regression,
    partition_label_swaps,
)
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.fpfc_problem import FPFCProblem
from skcfl.fusion.solvers import FPFCRounds
from skcfl.model_selection import lam_max, lam_path
from skcfl.models import MLP, LinearModel, Location
from skcfl.penalties import MCP, SCAD
from skcfl.search.by_partitions import PartitionCriterion


def regression(seed=0, **options):
    options = {"n_clients": 9, "n_features": 4} | options
    return make_clustered_regression(random_state=seed, **options)


NUMBERS = [({"noise": 1.5}, 0), ({"n_clients": 20, "n_clusters": 5}, 0), ({}, 0), ({}, 1)]


@pytest.mark.parametrize(
    ("kind", "data", "atol"),
    [
        *(("Regressor", regression(seed, **options), 1e-8) for options, seed in some(NUMBERS, 1)),
        # 20 to 60 rows per client for 11 parameters: many local models separate their classes.
        ("Classifier", make_clustered_classification(6, 2, random_state=3), 1e-6),
    ],
)
def test_clusters_need_no_tuning(kind, data, atol):
    model = fit(getattr(skcfl, f"FPFC{kind}")(refit=True), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    oracle = getattr(skcfl, f"OracleClusters{kind}")(data.labels, alpha=model.alpha_)
    assert_allclose(model.params_, fit(oracle, data).params_, atol=atol)


def test_units_of_the_features_do_not_matter():
    data = regression(n_clients=6)
    options = {"alpha": 0.0, "fit_intercept": False, "standardize": False, "refit": False}
    model = FPFCRegressor(penalty="mcp", search=LamSearch(n_lams=2), **options)
    one, other = fit(clone(model), data), model.fit(1000.0 * data.X, data.y, groups=data.groups)
    assert_array_equal(one.labels_, other.labels_)
    assert_allclose(one.params_, 1000.0 * other.params_, rtol=1e-6)
    assert one.lam_ == pytest.approx(1000.0 * other.lam_)
    assert one.penalty_scale_ == pytest.approx(1e-6 * other.penalty_scale_)


@pytest.mark.parametrize("refit", [False, True])
def test_networks_need_no_second_derivatives(refit):
    data = regression(n_clients=6, n_clusters=2, n_features=3, n_samples=30)
    network = MLP((8,), loss="squared_error")
    # With so few rows lam="auto" finds the clusters for some seeds of the folds only.
    # A refit needs the partition on the way only, which it has for more values of lam.
    lam = "auto" if refit else 1.0
    model = fit(FPFC(network, lam=lam, refit=refit, max_iter=150, random_state=1), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    # one network for all reaches .67; without refit the rounds ended when the clusters settled,
    # not when the networks were trained
    assert model.score(data.X, data.y, groups=data.groups) > (0.95 if refit else 0.8)
    with pytest.raises(ValueError, match="training: local_steps='exact' needs a local model"):
        fit(FPFC(network, 0.5, training=EXACT), data)


def waves(seed=0):
    """Two waves of opposite sign, 3 clients each, which no line can tell."""
    rng = np.random.default_rng(seed)
    groups, labels = np.repeat(np.arange(6), 40), np.array([1, 0] * 3)
    X = rng.uniform(-2, 2, size=(240, 1))
    y = (2 * labels[groups] - 1) * np.cos(2 * X[:, 0]) + 0.05 * rng.normal(size=240)
    return X, y, groups, labels


# Clients that solve their problems to the end.
EXACT = Training(local_steps="exact")
NETWORK = {"hidden_layer_sizes": (16,), "activation": "tanh", "refit": True, "max_iter": 100}


def test_networks_in_the_everyday_classes():
    X, y, groups, labels = waves()
    model = FPFCRegressor(0.65, **NETWORK, random_state=0).fit(X, y, groups=groups)
    assert adjusted_rand_score(labels, model.labels_) == 1.0
    assert model.score(X, y, groups=groups) > 0.95
    short = {"lam": 0.5, "refit": False, "max_iter": 10, "tol": 0, "random_state": 0}
    one = FPFCRegressor(**NETWORK | short).fit(X, y, groups=groups)
    same = FPFC(MLP((16,), "tanh", "squared_error"), **short).fit(X, y, groups=groups)
    assert_array_equal(same.params_, one.params_)
    classes = FPFCClassifier(1.5, **NETWORK, random_state=0).fit(X, y > 0, groups=groups)
    assert adjusted_rand_score(labels, classes.labels_) == 1.0
    assert classes.score(X, y > 0, groups=groups) > 0.95
    line = FPFCRegressor(0.5, activation="tanh").fit(X, y, groups=groups)
    assert line.params_.shape == (6, 2)
    with pytest.raises(ValueError, match="fit_intercept=False is for linear models"):
        FPFCRegressor(**NETWORK, fit_intercept=False).fit(X, y, groups=groups)


def test_means_of_the_clients_models_weigh_rows():
    data = regression(n_samples=(10, 60))
    model = fit(FPFCRegressor(0.5, refit=False, standardize=False), data)
    sizes = np.unique(data.groups, return_counts=True)[1]
    for k in range(model.n_clusters_):
        mine = model.labels_ == k
        mean = np.average(model.fusion_params_[mine], axis=0, weights=sizes[mine])
        assert_allclose(model.cluster_params_[k], mean)
    assert_array_equal(model.params_, model.cluster_params_[model.labels_])


def test_steps_of_clients_may_differ():
    data = regression()
    steps = np.arange(1, 10)
    model = fit(FPFCRegressor(0.5, training=Training(local_steps=steps)), data)
    same = fit(FPFCRegressor(0.5), data)
    assert_array_equal(model.labels_, same.labels_)
    assert np.abs(model.fusion_params_ - same.fusion_params_).max() > 0


def test_warm_start_goes_on():
    data = regression()
    whole = fit(FPFCRegressor(0.4, max_iter=20, tol=0), data)
    model = FPFCRegressor(0.4, max_iter=10, tol=0, warm_start=True)
    fit(fit(model, data), data)
    assert_allclose(model.fusion_params_, whole.fusion_params_, atol=1e-12)
    other = regression(n_clients=8)  # not as many clients: from its own models
    fresh = fit(FPFCRegressor(0.4, max_iter=10, tol=0), other)
    assert_array_equal(fit(model, other).fusion_params_, fresh.fusion_params_)


def test_starts():
    data = regression(n_clusters=2)
    lam = 0.5
    local = fit(FPFCRegressor(lam, init="local"), data)
    given = fit(FPFCRegressor(lam, init=local.fusion_params_, max_iter=20, tol=0), data)
    assert_array_equal(given.labels_, local.labels_)
    # From equal models the clients part only where the penalty is weaker than their gradients.
    upper = lam_max(FPFCRegressor(), data.X, data.y, groups=data.groups)[1]
    together = fit(FPFCRegressor(1.2 * upper, init="common", max_iter=100, tol=0), data)
    assert together.n_clusters_ == 1


def test_too_few_rounds_warn():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=3 rounds the stationarity"):
        fit(FPFCRegressor(0.5, max_iter=3), regression())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": SCAD(xi=2.0), "lam": 1.0}, r"xi of SCAD must be in \(0, lam\) = \(0, 1\)"),
        ({"penalty": SCAD(a=1.5), "lam": 1.0}, "a of SCAD must be larger than 2"),
        ({"penalty": MCP(scale=0.0), "lam": 1.0}, "scale of MCP must be a number between"),
        ({"solver": FPFCRounds(rho=1e-3), "lam": 1.0}, "rho must be larger than"),
        ({"solver": FPFCRounds(nu=-1.0)}, "'nu' parameter of FPFCRounds"),
        ({"training": Training(local_steps=[1, 2])}, "for each of the 9 clients"),
        (
            {"training": Training(local_steps=[0.5] * 9)},
            "training: local_steps must be a number of steps",
        ),
        ({"init": np.zeros((3, 5))}, r"init must have shape \(9, 5\)"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        fit(FPFCRegressor(**options), regression())


def test_convex_methods_refuse_concave_penalties():
    with pytest.raises(ValueError, match=r"SCAD.* is not convex.*FPFC"):
        fit(ConvexClusteredFLRegressor(0.1, penalty=SCAD()), regression())


def test_path_is_fits():
    data = regression()
    rounds = FPFCRounds(n_iter_no_change=5)
    some = Training(participation=0.5)
    model = FPFCRegressor(training=some, random_state=5, max_iter=60, solver=rounds)
    path = lam_path(model, data.X, data.y, groups=data.groups, n_lams=5)
    assert (np.diff(path.lams) > 0).all() and np.isnan(path.gaps).all()
    for k in (2, 4):
        model.set_params(lam=path.lams[k])
        if not path.converged[k]:
            with pytest.warns(ConvergenceWarning):
                fit(model, data)
        else:
            fit(model, data)
        assert_array_equal(model.labels_, path.labels[k])
        assert_array_equal(model.fusion_params_, path.fusion_params[k])
        assert_array_equal(model.params_, path.params[k])


def test_path_warns_without_a_gap():
    data = regression()
    with pytest.warns(ConvergenceWarning, match=r"in max_iter=2 iterations\. Increase"):
        lam_path(FPFCRegressor(max_iter=2), data.X, data.y, groups=data.groups, lams=[0.3, 0.6])


CHOICES = [("cv", True), ("bic", False), ("cv", False), ("bic", True)]


@pytest.mark.parametrize(("criterion", "regressor"), some(CHOICES, 2))
def test_chosen_lam_finds_the_clusters(criterion, regressor):
    classes = make_clustered_classification(6, 2, 3, n_samples=60, random_state=1)
    data, cls = (regression(1), FPFCRegressor) if regressor else (classes, FPFCClassifier)
    search = LamSearch(cv=2, n_lams=6) if criterion == "cv" else LamSearch("bic", n_lams=6)
    model = fit(cls(search=search, random_state=0), data)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    if criterion == "cv":
        assert model.lam_ == model.lams_[model.best_index_]
        assert model.cv_scores_.shape == (2, len(model.lams_))
        values = -model.cv_scores_.mean(axis=0)
    else:
        assert not hasattr(model, "cv_scores_")
        values = model.lam_search_["criterion"]
    lams = model.lams_ if criterion == "cv" else model.lam_search_["lam"]
    assert values[lams == model.lam_] <= values.min() + 1e-9 * abs(values.min())
    # the fit is the one at this lam
    single = fit(cls(model.lam_, alpha=model.alpha_), data)
    assert_allclose(single.params_, model.params_, atol=1e-10)


@pytest.mark.slow
def test_more_parameters_than_rows_need_no_tuning():
    """Digits with swapped labels: 195 parameters, 44 rows of each client."""
    X, y = load_digits(return_X_y=True)
    few = y < 3
    data = partition_label_swaps(X[few] / 16, y[few], 3, 4, n_swaps=1, random_state=0)
    model = FPFCClassifier(alpha=2e-3).fit(data.X, data.y, groups=data.groups)
    assert model.params_.shape[1] > 2 * len(data.y) / 12
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    # An information criterion asks for one cluster where a model costs more than rows can say.
    codes = np.unique(data.groups, return_inverse=True)[1]
    pool = open_rows(LinearModel("log_loss", 1e-4).bind(64, 3), data.X, data.y, codes, 12)
    criterion = PartitionCriterion(FPFCProblem(pool, SCAD()))
    partitions = [np.zeros(12, dtype=int), data.labels, np.arange(12)]
    assert np.argmin([criterion(labels) for labels in partitions]) == 0


@pytest.mark.parametrize(
    "model", some([LinearModel(loss="poisson"), LinearModel(loss="huber")], 1)
)
def test_other_losses(model):
    few = {"n_clients": 6, "n_clusters": 2, "n_features": 2}
    data = regression(coef="sphere", separation=1.2, n_samples=100, noise=0.1, **few)
    y = data.y
    if model.loss == "poisson":
        y = np.random.RandomState(0).poisson(np.exp(y))
    fitted = FPFC(model, search=LamSearch(n_lams=3)).fit(data.X, y, groups=data.groups)
    assert adjusted_rand_score(data.labels, fitted.labels_) == 1.0


def test_without_targets():
    rng = np.random.RandomState(0)
    centres = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    labels = np.arange(9) % 3
    groups = np.repeat(np.arange(9), 10)
    X = centres[labels[groups]] + rng.standard_normal((90, 2))
    model = FPFC(Location(), refit=True, search=LamSearch(n_lams=2)).fit(X, groups=groups)
    assert adjusted_rand_score(labels, model.labels_) == 1.0
    assert_allclose(model.cluster_params_[0], X[labels[groups] == 0].mean(axis=0))


def test_lam_zero_is_a_model_a_client():
    data = regression()
    model = fit(FPFCRegressor(lam=0.0, alpha=0.01, refit=False), data)
    local = fit(LocalModelsRegressor(alpha=0.01), data)
    assert_array_equal(model.params_, local.params_)
    assert model.residual_ <= 1e-8 and np.isnan(model.rho_)
