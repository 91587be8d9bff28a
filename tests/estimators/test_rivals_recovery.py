"""Clusters of the generators, 24 clients in 4 clusters, found by every clustered rival."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from trials import some

import skcfl
from skcfl import Training
from skcfl.datasets import make_clustered_classification, make_clustered_regression

ADAM = {"hidden_layer_sizes": (16,), "max_iter": 20, "tol": 0}
SGD = {
    "hidden_layer_sizes": (16,),
    "max_iter": 60,
    "tol": 0,
    "training": Training(optimizer="sgd", step_size=0.1),
}
# How each method is told the number of clusters, and how networks are trained.
TOLD = {
    "FeSEM": ({"n_clusters": 4}, ADAM),
    "FlexCFL": ({"n_clusters": 4}, ADAM),
    "OneShot": ({"n_clusters": 4}, ADAM),
    "FedEM": ({"n_clusters": 4}, ADAM),
    "CFL": ({}, SGD | {"eps1": 0.2, "eps2": 0.4}),
}


def recovered(name, kind, seed, options):
    make = make_clustered_regression if kind == "Regressor" else make_clustered_classification
    data = make(24, 4, n_samples=200, random_state=seed)
    y = data.y / np.std(data.y) if kind == "Regressor" else data.y
    options = {k: v for k, v in options.items() if name != "OneShot" or k != "max_iter"}
    if name == "OneShot" and "hidden_layer_sizes" in options:
        options["rounds"] = 0
    model = getattr(skcfl, name + kind)(random_state=0, **options).fit(data.X, y, data.groups)
    return adjusted_rand_score(data.labels, model.labels_)


#: One kind of each method by turns, or both.
KINDS = ["Regressor", "Classifier"]
TRIED = [(n, kind) for k, n in enumerate(TOLD) for kind in some(KINDS[:: (-1) ** k], 1)]


@pytest.mark.parametrize("seed", some([0, 2], 1))
@pytest.mark.parametrize(("name", "kind"), TRIED)
def test_linear_models(name, kind, seed):
    assert recovered(name, kind, seed, TOLD[name][0]) >= 0.95


def test_cfl_splits_no_cluster():
    """Updates of a cluster's clients that are a quarter of the first ones are not long."""
    assert recovered("CFL", "Classifier", 1, {}) == 1.0


@pytest.mark.parametrize("seed", some([0, 2, 3], 1))
def test_cfl_with_networks_of_regressions(seed):
    options = SGD | {"eps1": 0.05, "eps2": 0.12}
    assert recovered("CFL", "Regressor", seed, options) == 1.0


@pytest.mark.parametrize(("name", "kind"), TRIED)
def test_networks(name, kind):
    told, training = TOLD[name]
    assert recovered(name, kind, 0, told | training) >= 0.95
