"""Networks find the clusters of the generators, 24 clients in 4 clusters, in every rival.

That linear models do is shown in tests/rounds.
"""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import skcfl
from skcfl import Training
from skcfl.datasets import make_clustered_classification, make_clustered_regression

NETWORK = {"hidden_layer_sizes": (16,), "tol": 0}
ADAM = NETWORK | {"n_clusters": 4, "max_iter": 20}
SGD = NETWORK | {"max_iter": 60, "training": Training(optimizer="sgd", step_size=0.1)}


@pytest.mark.parametrize(
    ("name", "options", "least"),
    [
        ("FeSEMRegressor", ADAM, 0.95),
        ("FlexCFLClassifier", ADAM, 0.95),
        ("OneShotRegressor", NETWORK | {"n_clusters": 4, "rounds": 0}, 0.95),
        ("FedEMClassifier", ADAM, 0.95),
        ("CFLRegressor", SGD | {"eps1": 0.2, "eps2": 0.4}, 0.95),
        ("CFLRegressor", SGD | {"eps1": 0.05, "eps2": 0.12}, 1.0),
        # Of lines: updates that are a quarter of the first ones are not long, and split nothing.
        ("CFLClassifier", {}, 1.0),
    ],
)
def test_clusters_are_recovered(name, options, least):
    classes = name.endswith("Classifier")
    make = make_clustered_classification if classes else make_clustered_regression
    data = make(24, 4, n_samples=200, random_state=int(not options))
    y = data.y if classes else data.y / np.std(data.y)
    model = getattr(skcfl, name)(random_state=0, **options).fit(data.X, y, groups=data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) >= least
