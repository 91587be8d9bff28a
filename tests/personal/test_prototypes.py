"""FedProto and FedPAC: prototypes, the pull to them, the programme of the heads."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize

from skcfl import FedPACClassifier, FedProtoClassifier, LocalModelsClassifier, Training
from skcfl.calls.descriptions import ClassStatistics
from skcfl.calls.first_order import Objectives
from skcfl.calls.kept_models import PartialUpdate
from skcfl.datasets import corrupt, make_clustered_classification
from skcfl.exceptions import UnitsWarning
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP
from skcfl.personal.prototypes import (
    mean_prototypes,
    mixing_weights,
    nearest_prototype_heads,
    prototype_suspicions,
)

CLASSES = make_clustered_classification(6, 2, 3, n_classes=3, n_samples=24, random_state=0)
IDS, CODES = np.unique(CLASSES.groups, return_inverse=True)
NETWORK = {"hidden_layer_sizes": (5, 4), "random_state": 0, "max_iter": 3, "tol": 0}


def fit(model, X=CLASSES.X, y=CLASSES.y, groups=CLASSES.groups):
    return model.fit(X, y, groups=groups)


def bound():
    return MLP((5, 4), precision="double", alpha=0.01).bind(3, 3)


def hidden(w, X, model=None):
    """Last hidden states of rows under one model."""
    parts = list((model or bound()).weights(w).values())
    for W, b in parts[:-1]:
        X = np.maximum(X @ W + b, 0.0)
    return X


def test_statistics_are_weighted_means():
    model, rng = bound(), np.random.RandomState(0)
    weight = rng.uniform(0.5, 2.0, len(CODES))
    pool = open_rows(model, CLASSES.X, CLASSES.y, CODES, 6, weight)
    w = rng.normal(size=(6, model.n_params))
    means, counts, squares = pool.ask(ClassStatistics, w)
    for i in range(6):
        A, mine = hidden(w[i], CLASSES.X[i == CODES]), i == CODES
        for c in range(3):
            own = weight[mine] * (CLASSES.y[mine] == c)
            assert_allclose(counts[i, c], own.sum(), rtol=1e-12)
            assert_allclose(means[i, c], own @ A / own.sum(), rtol=1e-9)
        assert_allclose(squares[i], np.average((A**2).sum(axis=1), weights=weight[mine]))
    together = mean_prototypes(means, counts)
    for c in range(3):
        wanted = np.average(means[:, c], axis=0, weights=counts[:, c])
        assert_allclose(together[c], wanted, rtol=1e-12)
    absent = mean_prototypes(means, counts * [1, 0, 1])
    assert np.isnan(absent[1]).all() and not np.isnan(absent[[0, 2]]).any()
    assert_array_equal(mean_prototypes(means, counts * [1, 0, 1], together)[1], together[1])


def test_pull_to_prototypes_is_a_gradient():
    """Of ``lam`` times the mean squared distance over rows and units, by differences."""
    model, rng = bound(), np.random.RandomState(1)
    pool = open_rows(model, CLASSES.X, CLASSES.y, CODES, 6)
    w = 0.5 * rng.normal(size=(6, model.n_params))
    points = rng.normal(size=(3, 4))
    points[1] = np.nan  # a class that has none pulls nobody

    def value(w):
        pulls = []
        for i in range(6):
            mine = i == CODES
            away = hidden(w[i], CLASSES.X[mine]) - points[CLASSES.y[mine]]
            pulls.append(np.nan_to_num(away**2).mean())
        return pool.ask(Objectives, w) + 0.7 * np.array(pulls)

    everything = np.ones(model.n_params, dtype=bool)
    stage = [(1, everything)]
    step = pool.ask(PartialUpdate, w, everything, stage, 1.0, prototypes=points, strength=0.7)[0]
    e = 1e-6 * np.eye(model.n_params)
    wanted = np.column_stack([(value(w + d) - value(w - d)) / 2e-6 for d in e])
    assert_allclose(w - step, wanted, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_heads_say_which_prototype_is_nearest(n_classes):
    rng = np.random.RandomState(0)
    points, rows = rng.normal(size=(n_classes, 4)), rng.normal(size=(50, 4))
    weights, biases = nearest_prototype_heads(points, 1 if n_classes == 2 else n_classes)
    scores = rows @ weights + biases
    found = (scores[:, 0] > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
    distances = ((rows[:, None] - points) ** 2).sum(axis=2)
    assert_array_equal(found, distances.argmin(axis=1))
    if n_classes == 3:
        points[2] = np.nan
        weights, biases = nearest_prototype_heads(points, 3)
        assert_array_equal((rows @ weights + biases).argmax(axis=1), distances[:, :2].argmin(1))


def test_fedproto_predicts_the_nearest_prototype():
    model = fit(FedProtoClassifier(**NETWORK))
    found = model.predict(CLASSES.X, groups=CLASSES.groups)
    for i in range(6):
        mine = i == CODES
        A = hidden(model.params_[i], CLASSES.X[mine], model.model_)
        away = ((A[:, None] - model.prototypes_) ** 2).sum(axis=2)
        assert_array_equal(found[mine], away.argmin(axis=1))
    assert model.labels_.tolist() == list(range(6))
    # Only means and their weights come up, and an objective.
    C, q = model.prototypes_.shape
    assert model.history_["floats_up"][1] == 6 * (C * q + C + 1)
    assert model.history_["floats_down"].tolist() == [0, 6 * C * q, 6 * C * q]


def test_without_a_pull_clients_train_alone():
    model = fit(FedProtoClassifier(lam=0.0, **NETWORK))
    local = fit(LocalModelsClassifier(**NETWORK))
    body = slice(0, model.model_.layer_slices()["output"].start)
    assert_array_equal(model.params_[:, body], local.params_[:, body])
    pulled = fit(FedProtoClassifier(lam=1.0, **NETWORK))
    assert np.abs(pulled.params_ - model.params_)[:, body].max() > 1e-3


def test_classes_that_a_client_lacks_have_prototypes_of_the_others():
    keep = (CODES > 0) | (CLASSES.y != 2)
    rows = CLASSES.X[keep], CLASSES.y[keep], CLASSES.groups[keep]
    model = fit(FedProtoClassifier(**NETWORK), *rows)
    assert not np.isnan(model.prototypes_).any()
    some = CODES == 0
    assert model.predict_proba(CLASSES.X[some], groups=CLASSES.groups[some]).shape[1] == 3


def programme(h, v, i):
    """The quadratic programme of client i by a general solver."""
    away = h[i] - h
    P = np.diag(v) + away @ away.T
    n = len(v)
    found = minimize(
        lambda a: a @ P @ a,
        np.full(n, 1 / n),
        jac=lambda a: 2 * P @ a,
        bounds=[(0, 1)] * n,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return found.x, P


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_mixing_weights_solve_their_programmes(spread):
    rng = np.random.RandomState(0)
    h = spread * rng.normal(size=(7, 5)) + (np.arange(7) % 2)[:, None]
    v = rng.uniform(0.05, 0.5, 7)
    # Of two kinds far from each other clients share with their own kind only.
    kinds = mixing_weights(np.repeat([[0.0, 1.0], [50.0, -50.0]], 3, axis=0), np.full(6, 0.1))
    assert_allclose(kinds, np.kron(np.eye(2), np.full((3, 3), 1 / 3)), atol=1e-6)
    weights = mixing_weights(h, v)
    assert (weights >= 0).all()
    assert_allclose(weights.sum(axis=1), 1.0)
    for i in range(7):
        wanted, P = programme(h, v, i)
        assert weights[i] @ P @ weights[i] <= wanted @ P @ wanted * (1 + 1e-4)
        assert_allclose(weights[i], wanted, atol=3e-3)


@pytest.mark.parametrize("seed", [0, 7])
def test_mixing_weights_of_many_clients(seed):
    """Of lengths that differ by decades: nnls takes many steps, whose rounding is not seen."""
    rng = np.random.default_rng(seed)
    h = rng.normal(size=(71, 17)) * np.exp(2 * rng.normal(size=(71, 1)))
    v = 1e-3 * np.exp(3 * rng.normal(size=71))
    weights = mixing_weights(h, v)
    assert_allclose(weights.sum(axis=1), 1.0)
    order = rng.permutation(71)
    assert_allclose(mixing_weights(h[order], v[order]), weights[np.ix_(order, order)], atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-100, 1.0, 1e100])
def test_mixing_weights_of_equal_clients(scale):
    """Without variances, too: nnls gave each client its head, or another's."""
    h = scale * np.repeat([[1.0, 2.0, 3.0], [-5.0, 0.0, 1.0]], 4, axis=0)
    equal = np.kron(np.eye(2), np.ones((4, 4))) / 4 if scale else np.full((8, 8), 1 / 8)
    assert_allclose(mixing_weights(h, np.zeros(8)), equal, atol=1e-12)


@pytest.mark.parametrize("sizes", [(), (5, 4)])
def test_fedpac_mixes_heads(sizes):
    options = {**NETWORK, "hidden_layer_sizes": sizes}
    model = fit(FedPACClassifier(**options))
    weights = model.mixing_weights_
    assert_allclose(weights.sum(axis=1), 1.0)
    body = ~model.model_.head_mask()
    assert (model.params_[:, body] == model.cluster_params_[:, body]).all()
    assert len(np.unique(model.params_, axis=0)) > 1
    # Heads in the next round begin where they were mixed.
    few = fit(FedPACClassifier(**options, training=Training(participation=0.5)))
    assert np.isfinite(few.params_).all()


def test_fedpac_of_clients_alike_is_one_model():
    """Equal rows: equal statistics, equal weights, one head."""
    X, y = np.tile(CLASSES.X[CODES == 0], (3, 1)), np.tile(CLASSES.y[CODES == 0], 3)
    groups = np.repeat(np.arange(3), (CODES == 0).sum())
    model = fit(FedPACClassifier((4,), random_state=0, max_iter=3, tol=0), X, y, groups)
    assert_allclose(model.mixing_weights_, 1 / 3, rtol=1e-6)
    assert_allclose(model.params_, model.cluster_params_.repeat(3, axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["mean", "geometric_median"])
@pytest.mark.parametrize("sizes", [(), (5,)])
def test_clients_with_one_row_are_not_certain(sizes, aggregation):
    """Around a mean of one row nothing varies, and its last layer was taken by all others."""
    data = make_clustered_classification(24, 1, 4, n_samples=30, random_state=0)
    codes = np.unique(data.groups, return_inverse=True)[1]
    first = np.unique(codes, return_index=True)[1]
    rows = np.union1d(first, np.flatnonzero(codes < 6))
    model = FedPACClassifier(sizes, lam=1.0, aggregation=aggregation, max_iter=20, tol=0)
    model.set_params(random_state=0).fit(data.X[rows], data.y[rows], groups=data.groups[rows])
    many, one = np.split(model.mixing_weights_.mean(axis=0), [6])
    assert many.mean() > 2 * one.mean()


@pytest.mark.parametrize("cls", [FedProtoClassifier, FedPACClassifier])
def test_new_clients(cls):
    some = CODES == 3
    others = CLASSES.X[~some], CLASSES.y[~some], CLASSES.groups[~some]
    model = fit(cls(**{**NETWORK, "max_iter": 15}), *others)
    rows = CLASSES.X[some], CLASSES.y[some]
    adapted = model.adapt(*rows, groups=CLASSES.groups[some])
    assert adapted.score(*rows, groups=CLASSES.groups[some]) > 0.5


def test_fedproto_needs_a_hidden_layer():
    with pytest.raises(ValueError, match="hidden_layer_sizes must name a hidden layer"):
        fit(FedProtoClassifier(()))


LIES = [(FedProtoClassifier, "label_flip", "relu"), (FedPACClassifier, "scale_X", "tanh")]
LIES += [(FedProtoClassifier, "scale_X", "tanh"), (FedPACClassifier, "label_flip", "relu")]


@pytest.mark.parametrize(("cls", "attack", "activation"), LIES)
def test_false_clients_are_suspected_first(cls, attack, activation):
    data = make_clustered_classification(16, 1, 6, n_classes=2, n_samples=40, random_state=0)
    lies = corrupt(data.X, data.y, data.groups, attack=attack, fraction=0.12, random_state=0)
    false = lies.is_false
    assert false.sum() == 2
    model = cls((8,), aggregation="geometric_median", activation=activation, random_state=0)
    model.set_params(lam=1.0, max_iter=15, tol=0, unseen="average")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnitsWarning)
        model.fit(lies.X, lies.y, groups=lies.groups)
    assert model.suspicion_[~false].max() < min(0.8, model.suspicion_[false].min())
    # As if there were no false clients, nobody else is named.
    model.fit(data.X, data.y, groups=data.groups)
    assert model.suspicion_.max() < 1.0
    model.set_params(aggregation="mean", max_iter=1).fit(data.X, data.y, data.groups)
    assert not hasattr(model, "suspicion_")


def test_suspicions_are_of_the_classes_that_a_client_has():
    rng = np.random.RandomState(0)
    points = np.array([[0.0, 5.0], [5.0, 0.0], [np.nan, np.nan]])
    means = points + 0.1 * rng.normal(size=(12, 3, 2))
    counts = np.tile([10.0, 10.0, 0.0], (12, 1))
    counts[0] = [20.0, 0.0, 0.0]
    means[0, 1] = 1e6  # of no row
    means[1, [0, 1]] = means[1, [1, 0]]
    means[2] *= 1e200
    found = prototype_suspicions(
        np.nan_to_num(means), counts, points, np.ones(12), np.full(12, 20)
    )
    assert np.isfinite(found).all()
    assert found[2] > found[1] > 1.0 > np.delete(found, [1, 2]).max()


def test_suspicions_of_prototypes_last():
    """Networks learn to send rows to the prototypes of whatever classes they are said to have."""
    lies = corrupt(CLASSES.X, CLASSES.y, CLASSES.groups, fraction=0.17, random_state=0)
    model = FedProtoClassifier((5,), aggregation="median", random_state=0, tol=0)
    seen = []
    for n in (1, 10, 40):
        model.set_params(max_iter=n).fit(lies.X, lies.y, groups=lies.groups)
        seen.append(model.suspicion_)
    assert (np.diff(seen, axis=0) >= 0).all() and (seen[0] < seen[2]).any()
