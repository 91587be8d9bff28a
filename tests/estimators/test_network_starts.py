"""Networks find shifts of many kinds from their default starts, on scikit-learn's digits."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import CLoVEClassifier, IFCAClassifier
from skcfl.datasets import (
    partition_dominant_class,
    partition_label_skew,
    partition_label_swaps,
    partition_missing_class,
    partition_rotations,
)
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP, LinearModel
from skcfl.rounds import starts as _starts
from skcfl.rounds.model_kinds import kind_of

SHIFTS = {
    "two classes": partition_label_skew,
    "four classes": partition_label_skew,
    "missing class": partition_missing_class,
    "dominant class": partition_dominant_class,
    "swapped labels": partition_label_swaps,
    "rotations": partition_rotations,
}
MORE = {"four classes": {"n_unique": 2, "n_shared": 2, "sharing": "pairwise"}}
# Either method by turns, or both.
METHODS = [CLoVEClassifier, IFCAClassifier]
TRIED = [(s, cls) for k, s in enumerate(SHIFTS) for cls in some(METHODS[:: (-1) ** k], 1)]


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return X / 16, y


@pytest.mark.parametrize("seed", some([100, 101], 1))
@pytest.mark.parametrize(("shift", "cls"), TRIED)
def test_shifts_are_found(shift, cls, seed, digits):
    data = SHIFTS[shift](*digits, random_state=seed, **MORE.get(shift, {}))
    n_clusters = len(np.unique(data.labels))
    options = {"max_iter": 8, "tol": 0, "standardize": False, "random_state": seed}
    net = cls(n_clusters, hidden_layer_sizes=(64,), **options)
    net.fit(data.X, data.y, groups=data.groups)
    assert adjusted_rand_score(data.labels, net.labels_) == 1.0


@pytest.mark.parametrize(
    "model, steps", [(MLP((4,)), (5, 30, 100, 5)), (LinearModel(), (30, 5, 100, 30))]
)
def test_restarts_differ_in_the_training_before(model, steps, digits, monkeypatch):
    X, y = digits
    model = model.bind(64, n_classes=10)
    pool = open_rows(model, X, y, np.arange(len(y)) % 4, 4)
    kind, seen = kind_of(pool), []
    train = kind.first_steps

    def counted(pool, start, steps):
        seen.append(steps)
        return train(pool, start, 1)

    monkeypatch.setattr(kind, "first_steps", counted)
    for restart in range(4):
        theta = _starts.loss_plus_plus(pool, 2, np.random.RandomState(0), restart=restart)
        assert theta.shape == (2, model.n_params)
    assert tuple(seen) == steps
