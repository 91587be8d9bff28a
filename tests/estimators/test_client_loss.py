"""Fusion under a bound of each client's pull: a client in other units costs the others nothing."""

from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    FPFC,
    ConvexClusteredFL,
    ConvexClusteredFLRegressor,
    FPFCRegressor,
    GTVClassifier,
    GTVRegressor,
    LamSearch,
)
from skcfl.certificates import certify_partition
from skcfl.datasets import make_clustered_regression
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.model_selection import lam_path
from skcfl.testing import StrictFederation

# Clients in other units are what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore::skcfl.exceptions.UnitsWarning")

DATA = make_clustered_regression(9, 2, 2, n_samples=16, random_state=0)
IDS, CODES = np.unique(DATA.groups, return_inverse=True)
LIAR = 3
HONEST = CODES != LIAR
OTHERS = np.arange(9) != LIAR
QUICK = {"alpha": 0.01, "random_state": 0}
AUTO = {**QUICK, "search": LamSearch(n_lams=2)}
# What competes, less of it.
FEWER = {ConvexClusteredFLRegressor: {"graph": "knn"}, GTVRegressor: {"penalty": "l2"}}


def score(model):
    return model.score(DATA.X[HONEST], DATA.y[HONEST], groups=DATA.groups[HONEST])


@cache
def clean(cls):
    """Score without the client."""
    model = cls(**AUTO, **FEWER.get(cls, {}))
    return score(model.fit(DATA.X[HONEST], DATA.y[HONEST], groups=DATA.groups[HONEST]))


def in_other_units(units):
    """Rows with the features or targets of one client in other units."""
    X = DATA.X * np.where(HONEST | (units == "y"), 1.0, 1e6)[:, None]
    return X, DATA.y * np.where(HONEST | (units == "X"), 1.0, 1e6)


def check_honest(model, least):
    """Honest clients keep their score and clusters; the other client is suspicious."""
    assert score(model) > least - 0.01
    assert adjusted_rand_score(DATA.labels[OTHERS], model.labels_[OTHERS]) == 1.0
    assert model.suspicion_[LIAR] > 1.0 > model.suspicion_[OTHERS].max()


@pytest.mark.parametrize(
    "cls, units",
    some([(GTVRegressor, "X"), (ConvexClusteredFLRegressor, "y"), (FPFCRegressor, "y")], 1),
)
def test_one_client_in_other_units(cls, units):
    """All that is automatic is found without it: lam, graph, penalty, units, refits."""
    model = cls(client_loss="huber", **AUTO, **FEWER.get(cls, {}))
    check_honest(model.fit(*in_other_units(units), groups=DATA.groups), clean(cls))
    if cls is not FPFCRegressor:
        assert np.isfinite(model.dual_gap_)


def test_without_false_clients_it_costs_nothing():
    bounded = GTVRegressor(client_loss=4, **AUTO, **FEWER[GTVRegressor])
    bounded.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert bounded.suspicion_.max() < 1.0
    assert score(bounded) > clean(GTVRegressor) - 0.003


def test_messages_are_those_of_a_fit_without_bound():
    """The clients are asked for their models and two gradients more; the rest is the server's."""
    options = {"graph": "complete", "penalty": "l2", "refit": False}
    sent = []
    for client_loss in (None, 100.0):
        model = ConvexClusteredFLRegressor(0.01, client_loss=client_loss, **options)
        model.set_params(standardize=False, alpha=0.1)
        sent.append(model.fit(DATA.X, DATA.y, groups=DATA.groups).floats_up_)
    n, p = 9, 3
    assert sent[1] - sent[0] == n * 2 * (p + 1)


@pytest.mark.parametrize(
    "model, words",
    [
        (GTVClassifier(hidden_layer_sizes=(4,), client_loss="huber"), "convex objective"),
        (ConvexClusteredFLRegressor(0.1, penalty="squared_l2", client_loss="huber"), "bounds"),
        (ConvexClusteredFLRegressor(search=LamSearch("bic"), client_loss="huber"), "criterion"),
        (FPFC(init=np.zeros((9, 3)), client_loss=0.1), "init"),
    ],
)
def test_what_cannot_be_bounded_is_refused(model, words):
    y = (DATA.y > 0).astype(int) if "Classifier" in type(model).__name__ else DATA.y
    with pytest.raises(ValueError, match=words):
        model.fit(DATA.X, y, groups=DATA.groups)


def test_theorems_and_paths_are_about_unbounded_objectives():
    model = ConvexClusteredFLRegressor(0.1, client_loss="huber").fit(DATA.X, DATA.y, DATA.groups)
    with pytest.raises(ValueError, match="client_loss=None"):
        certify_partition(model, DATA.X, DATA.y, groups=DATA.groups)
    with pytest.raises(ValueError, match="client_loss=None"):
        lam_path(ConvexClusteredFL(client_loss=2.0), DATA.X, DATA.y, groups=DATA.groups)


@pytest.mark.parametrize(
    "cls, units",
    some([(FPFCRegressor, "X"), (GTVRegressor, "y"), (ConvexClusteredFLRegressor, "X")], 2),
)
def test_one_client_in_other_units_by_cross_validation(cls, units):
    """It judges nothing: scores, lam and models are as if it had rows nowhere."""
    X, y = in_other_units(units)
    options = {"search": LamSearch(cv=2, n_lams=2), "refit": True, **QUICK}
    if cls is not FPFCRegressor:
        options.update(graph="knn", penalty="l2")
    model = cls(client_loss="huber", **options).fit(X, y, groups=DATA.groups)
    plain = cls(**options).fit(DATA.X[HONEST], DATA.y[HONEST], groups=DATA.groups[HONEST])
    check_honest(model, score(plain))
    assert abs(model.cv_scores_.max() - plain.cv_scores_.max()) < 0.1
    worse = cls(client_loss="huber", **options).fit(X, np.where(HONEST, y, 1e3 * y), DATA.groups)
    assert_allclose(worse.coef_[OTHERS], model.coef_[OTHERS], atol=1e-6)
    assert_allclose(worse.cv_scores_.max(), model.cv_scores_.max(), rtol=1e-6)


@pytest.mark.parametrize("cls", [GTVRegressor, FPFCRegressor])
def test_folds_of_several_places_and_splitters(cls):
    options, lams = {"client_loss": "huber", **QUICK}, [0.05, 0.3]
    if cls is GTVRegressor:
        options.update(graph="knn", penalty="l2")
    y = np.where(HONEST, DATA.y, 1e6 * DATA.y)
    search = LamSearch(cv=2, lams=lams)
    model = cls(search=search, **options).fit(DATA.X, y, groups=DATA.groups)
    halves = [CODES % 2 == k for k in (0, 1)]
    places = [InProcessFederation(DATA.X[h], y[h], DATA.groups[h]) for h in halves]
    federation = StrictFederation(FanOutFederation(places))
    other = cls(search=search, **options).fit_federation(federation)
    assert_allclose(other.cv_scores_, model.cv_scores_, rtol=1e-6)
    assert_allclose(other.coef_, model.coef_, atol=1e-7)
    assert_allclose(other.suspicion_, model.suspicion_, rtol=1e-6)
    # The fold of the client's own rows is none.
    rows = [np.flatnonzero(CODES == k)[::2] for k in range(4)]
    everything = np.arange(len(y))
    cv = [(np.setdiff1d(everything, test), test) for test in rows]
    model = cls(search=LamSearch(cv=cv, lams=lams), **options).fit(DATA.X, y, groups=DATA.groups)
    assert model.cv_scores_.shape == (3, 2) and (model.cv_scores_ > -1).all()
    with pytest.raises(ValueError, match="no fold has rows"):
        cls(search=LamSearch(cv=cv[3:]), **options).fit(DATA.X, y, groups=DATA.groups)


def test_nodes_without_rows():
    nodes = [*IDS, "nobody"]
    graph = 1.0 - np.eye(10)
    gtv = GTVRegressor(0.05, graph=graph, nodes=nodes, client_loss="huber")
    gtv.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert gtv.without_rows_.sum() == 1 and gtv.suspicion_[gtv.without_rows_] == 0.0


@pytest.mark.parametrize("client_loss", some(["huber", None], 1))
def test_few_rows_and_a_client_whose_rows_weigh_nothing(client_loss):
    """Clusters of it and one other client are fitted without showing the rows of that one."""
    data = make_clustered_regression(9, n_clusters=3, n_samples=12, random_state=1)
    weights = np.where(data.groups == data.groups[0], 0.0, 1.0)
    model = FPFCRegressor(client_loss=client_loss, search=LamSearch(n_lams=2), **QUICK)
    model.fit(data.X, data.y, groups=data.groups, sample_weight=weights)
    there = weights > 0
    assert model.score(data.X[there], data.y[there], groups=data.groups[there]) > 0.9
    if client_loss is not None:
        idle = model.groups_ == data.groups[0]
        assert model.suspicion_[idle] == 0.0 < model.suspicion_[~idle].min()


@pytest.mark.parametrize("cls", [ConvexClusteredFLRegressor, FPFCRegressor])
def test_nothing_pulls(cls):
    """Where the typical gradient is zero the bound is the least that there is."""
    y = np.zeros(len(DATA.y))
    model = cls(client_loss="huber", search=LamSearch(n_lams=3), **QUICK)
    assert model.fit(DATA.X, y, groups=DATA.groups).n_clusters_ == 1
    assert_array_equal(model.predict(DATA.X, groups=DATA.groups), y)
    assert not model.suspicion_.any()
