"""Networks of every personal method, whoever is silent."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from personal_tables import CLASSES
from trials import some

import skcfl
from skcfl import FedPACClassifier
from skcfl.federation import Faults, InProcessFederation

ROWS = CLASSES.X, CLASSES.y, CLASSES.groups
NETWORK = {"hidden_layer_sizes": (5, 4), "random_state": 0, "max_iter": 4, "tol": 0}
METHODS = ["Ditto", "FedALA", "FedPAC", "FedProto", "FedRep", "PerFedAvg", "PFedMe"]


@pytest.mark.parametrize("name", METHODS)
def test_silent_clients(name):
    """Twice the same: who is silent is drawn by the seed of the faults."""
    cls = getattr(skcfl, f"{name}Classifier")
    faults = Faults(dropout=0.4, random_state=0)
    models = [
        cls(**NETWORK).fit_federation(InProcessFederation(*ROWS, faults=faults)) for _ in range(2)
    ]
    assert np.isfinite(models[0].params_).all() and len(models[0].missing_clients_) < 8
    assert_array_equal(models[0].params_, models[1].params_)


def curves(n_clusters, seed, n_clients=12, n=30):
    """Training rows of clients with bent targets, and others of the same clients."""
    rng = np.random.RandomState(seed)
    inner, outer = rng.normal(size=(n_clusters, 4, 6)), rng.normal(size=(n_clusters, 6))
    groups = np.repeat(np.arange(n_clients), 130 + n)
    X, labels = rng.normal(size=(len(groups), 4)), groups % n_clusters
    bent = np.tanh(np.einsum("nd,ndk->nk", X, inner[labels]))
    y = np.einsum("nk,nk->n", bent, outer[labels]) + 0.1 * rng.normal(size=len(X))
    train = np.tile(np.arange(130 + n) < n, n_clients)
    return [(X[rows], y[rows], groups[rows]) for rows in (train, ~train)]


@pytest.mark.parametrize("n_clusters, least", [(1, -0.03), (3, -0.06)])
def test_defaults_suit_clients_that_differ_and_that_do_not(n_clusters, least):
    """By rows held out: no worse than the better of one model for all and one a client."""
    names = ["FedAvg", "LocalModels", "Ditto", "PFedMe", "PerFedAvg"]
    gains = []
    for seed in some(range(4), 1):
        (X, y, groups), (new_X, new_y, new_groups) = curves(n_clusters, seed, 9, 24)
        models = [
            getattr(skcfl, f"{name}Regressor")(hidden_layer_sizes=8, random_state=0)
            for name in names
        ]
        fits = [model.fit(X, y, groups=groups) for model in models]
        scores = [model.score(new_X, new_y, groups=new_groups) for model in fits]
        gains.append(np.subtract(scores[2:], max(scores[:2])))
    assert (np.mean(gains, axis=0) > least).all(), gains


def test_fedpac_without_a_pull_where_classes_have_nothing_in_common():
    (X, y, groups), (new_X, new_y, new_groups) = curves(3, 1)
    chosen, paper = (
        FedPACClassifier(8, lam=lam, random_state=0).fit(X, y > 0, groups=groups)
        for lam in ("auto", 1.0)
    )
    search = chosen.lam_search_
    assert chosen.lam_ == search["lam"][search["held_out_loss"].argmin()] < paper.lam_ == 1.0
    scores = [fit.score(new_X, new_y > 0, groups=new_groups) for fit in (chosen, paper)]
    assert scores[0] > scores[1] + 0.03
