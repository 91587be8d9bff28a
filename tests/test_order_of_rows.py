"""The order of rows and of clients, and rows that are given twice, change no fit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array

from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import LocalUpdate
from skcfl.clients.draws import SORTED, order_of_rows
from skcfl.datasets import make_clustered_classification
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel

CLASSES = make_clustered_classification(4, 2, n_samples=30, n_features=3, random_state=0)


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
    assert_allclose(w[0], w[1], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sparse", [False, True])
def test_order_depends_on_what_rows_hold(sparse):
    """By client, equal rows side by side, and the same order from any other."""
    rng = np.random.RandomState(0)
    X = rng.randint(0, 2, (200, 7)).astype(float)
    y, codes, w = rng.randint(0, 2, 200), rng.randint(0, 3, 200), rng.randint(1, 3, 200) * 1.0
    stored = csr_array(X) if sparse else X
    order = order_of_rows(codes, stored, y[:, None], w)
    table = np.column_stack([codes, X, y, w])
    assert (np.diff(codes[order]) >= 0).all()
    _, number = np.unique(table, axis=0, return_inverse=True)
    number = number.ravel()[order]
    assert np.count_nonzero(np.diff(number)) + 1 == len(np.unique(number))
    other = rng.permutation(200)
    again = order_of_rows(codes[other], stored[other], y[other, None], w[other])
    assert_array_equal(table[other][again], table[order])


def test_units_of_features_and_targets_keep_the_order():
    rng = np.random.RandomState(0)
    X, codes, y = rng.normal(size=(50, 3)), rng.randint(0, 3, 50), rng.normal(size=50)
    X[:, 0] = np.round(X[:, 0])
    order = order_of_rows(codes, X, y)
    assert_array_equal(order_of_rows(codes, X * [1e3, 0.1, 7.0] - 5.0, 9.0 * y), order)


@pytest.mark.parametrize("n_clients", [1, 3, 2 * SORTED])
def test_parts_that_are_sorted_at_once_have_no_seam(n_clients):
    rng = np.random.default_rng(n_clients)
    codes, X = rng.integers(n_clients, size=3 * SORTED + 1), rng.normal(size=(3 * SORTED + 1, 2))
    assert_array_equal(order_of_rows(codes, X), np.lexsort((X[:, 0], codes)))
