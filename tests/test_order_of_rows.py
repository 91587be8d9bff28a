"""The order of rows and of clients, and rows that are given twice, change no fit."""

import numpy as np
import pytest

import skcfl
from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import LocalUpdate
from skcfl.clients.draws import order_of_rows
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import InProcessFederation
from skcfl.models import MLP, LinearModel

EVERYDAY = sorted(name for name in skcfl.__all__ if name.endswith(("Classifier", "Regressor")))
REGRESSION = make_clustered_regression(4, 2, n_samples=30, n_features=3, random_state=0)
CLASSES = make_clustered_classification(4, 2, n_samples=30, n_features=3, random_state=0)
# Networks of few units, trained for short.
NETWORKS = {"FedProtoClassifier": {"hidden_layer_sizes": (4,), "max_iter": 5, "tol": 0}}
# Methods with a model for each client, and what leaves nothing to draws and to single precision.
DOUBLE = MLP((4,), precision="double")
PERSONAL = {
    "DittoRegressor": {"lam": 0.1},
    "DittoClassifier": {"lam": 0.1},
    "PFedMeRegressor": {"lam": 0.1},
    "FedALARegressor": {},
    "FedALAClassifier": {},
    "FedProtoClassifier": {"model": DOUBLE, "max_iter": 5, "tol": 0},
}


def predicted(name, data, rows, seen=None, **parameters):
    """Predictions for all rows after a fit to some, in some order, with ids that `seen` maps."""
    cls = getattr(skcfl, name)
    seen = {group: group for group in np.unique(data.groups)} if seen is None else seen
    if "random_state" in cls().get_params():
        parameters["random_state"] = 0
    if name.startswith("OracleClusters"):
        labels = zip(np.unique(data.groups), data.labels, strict=True)
        parameters["labels"] = {seen[group]: label for group, label in labels}
    weights = parameters.pop("sample_weight", None)
    groups = np.array([seen[group] for group in data.groups])
    model = cls(**parameters)
    model.fit(data.X[rows], data.y[rows], groups=groups[rows], sample_weight=weights)
    method = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    return getattr(model, method)(data.X, groups=groups)


def data_of(name):
    return CLASSES if name.endswith("Classifier") else REGRESSION


@pytest.mark.parametrize("name", EVERYDAY)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_order_of_rows(name):
    """Searches and draws included: what is drawn about a row depends on what it holds."""
    data, parameters = data_of(name), NETWORKS.get(name, {})
    rows = np.arange(len(data.y))
    mixed = np.random.RandomState(0).permutation(rows)
    one, other = (predicted(name, data, order, **parameters) for order in (rows, mixed))
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-7 * max(np.abs(one).max(), 1.0))


@pytest.mark.parametrize("name", PERSONAL)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_order_of_clients_and_rows_given_twice(name):
    """Where no rows are dealt to folds or batches, and precision is double."""
    data, parameters = data_of(name), PERSONAL[name]
    rows = np.arange(len(data.y))
    one = predicted(name, data, rows, **parameters)
    ids = np.unique(data.groups)
    seen = dict(zip(ids, ids[::-1], strict=True))
    other = predicted(name, data, rows, seen, **parameters)
    np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)
    counts = np.random.RandomState(0).randint(1, 4, len(rows))
    twice = predicted(name, data, np.repeat(rows, counts), **parameters)
    weighed = predicted(name, data, rows, sample_weight=counts.astype(float), **parameters)
    np.testing.assert_allclose(weighed, twice, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_batches_and_folds_are_the_same_in_any_order(batch_size):
    data = CLASSES
    rows = np.random.RandomState(1).permutation(len(data.y))
    w = []
    for order in (slice(None), rows):
        federation = InProcessFederation(data.X[order], data.y[order], data.groups[order])
        hello = federation.hello("classifier")
        pool, folds = federation.open_with_folds(LinearModel("log_loss").bind(3, 2), 0, hello)
        w.append(pool.ask(LocalUpdate, pool.start(), 3, 0.1, "sgd", batch_size))
        for train, _ in pool.deal_folds(3, 0):
            w[-1] = np.hstack([w[-1], train.ask(Solve)[0], train.client_weights[:, None]])
        for fold in folds.deal(3, 0):
            w[-1] = np.hstack([w[-1], fold.pool().ask(Solve)[0]])
    np.testing.assert_allclose(w[0], w[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_order_depends_on_what_rows_hold(sparse):
    """By client, equal rows side by side, and the same order from any other."""
    rng = np.random.RandomState(0)
    X = rng.randint(0, 2, (200, 7)).astype(float)
    y, w, codes = (
        rng.randint(0, 2, 200),
        rng.randint(1, 3, 200).astype(float),
        rng.randint(0, 3, 200),
    )
    stored = pytest.importorskip("scipy.sparse").csr_array(X) if sparse else X
    order = order_of_rows(codes, stored, y[:, None], w)
    table = np.column_stack([codes, X, y, w])
    assert (np.diff(codes[order]) >= 0).all()
    _, number = np.unique(table, axis=0, return_inverse=True)
    number = number.ravel()[order]
    assert np.count_nonzero(np.diff(number)) + 1 == len(np.unique(number))
    other = rng.permutation(200)
    again = order_of_rows(codes[other], stored[other], y[other, None], w[other])
    np.testing.assert_array_equal(table[other][again], table[order])


def test_units_of_features_and_targets_keep_the_order():
    rng = np.random.RandomState(0)
    X, codes, y = rng.normal(size=(50, 3)), rng.randint(0, 3, 50), rng.normal(size=50)
    X[:, 0] = np.round(X[:, 0])
    order = order_of_rows(codes, X, y)
    np.testing.assert_array_equal(order_of_rows(codes, X * [1e3, 0.1, 7.0] - 5.0, 9.0 * y), order)
