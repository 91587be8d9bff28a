"""Networks of every personal method, whoever is silent and however many threads train them."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from personal_tables import CLASSES, fit

from skcfl import (
    DittoClassifier,
    FedALAClassifier,
    FedPACClassifier,
    FedProtoClassifier,
    FedRepClassifier,
    PerFedAvgClassifier,
    PFedMeClassifier,
    Training,
)
from skcfl.federation import Faults, InProcessFederation

ROWS = CLASSES.X, CLASSES.y, CLASSES.groups
NETWORK = {"hidden_layer_sizes": (5, 4), "random_state": 0, "max_iter": 4, "tol": 0}
METHODS = [DittoClassifier, FedALAClassifier, FedPACClassifier, FedProtoClassifier]
METHODS += [FedRepClassifier, PerFedAvgClassifier, PFedMeClassifier]


@pytest.mark.parametrize("cls", METHODS)
def test_silent_clients_and_threads(cls):
    faults = Faults(dropout=0.4, random_state=0)
    models = [
        cls(**NETWORK).fit_federation(InProcessFederation(*ROWS, faults=faults)) for _ in range(2)
    ]
    assert np.isfinite(models[0].params_).all() and len(models[0].missing_clients_) < 8
    assert_array_equal(models[0].params_, models[1].params_)
    options = {**NETWORK, "training": Training(batch_size=5)}
    models = [fit(cls(**options, n_jobs=n)) for n in (1, 2)]
    assert_array_equal(models[0].params_, models[1].params_)
