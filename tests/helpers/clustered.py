"""Clients of three separated clusters, and fits to them."""

from skcfl.datasets import make_clustered_classification, make_clustered_regression

SIZES = {"n_clients": 24, "n_clusters": 3, "n_features": 6}


def regression(seed=0, **options):
    return make_clustered_regression(random_state=seed, **SIZES | options)


def classification(seed=0, **options):
    return make_clustered_classification(random_state=seed, **SIZES | options)


def fit(estimator, data, **options):
    return estimator.fit(data.X, data.y, groups=data.groups, **options)
