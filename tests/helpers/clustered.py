"""Clients of three separated clusters, and fits to them."""

import numpy as np

from skcfl.datasets import make_clustered_classification, make_clustered_regression

SIZES = {"n_clients": 24, "n_clusters": 3, "n_features": 6}


def regression(seed=0, **options):
    return make_clustered_regression(random_state=seed, **SIZES | options)


def classification(seed=0, **options):
    return make_clustered_classification(random_state=seed, **SIZES | options)


def lines(slopes, n_rows, rng, noise=1.0):
    """Rows, targets and ids of clients with these slopes."""
    groups = np.repeat(np.arange(len(slopes)), n_rows)
    X = rng.normal(size=(len(groups), slopes.shape[1]))
    return X, (X * slopes[groups]).sum(axis=1) + noise * rng.normal(size=len(groups)), groups


def fit(estimator, data, **options):
    return estimator.fit(data.X, data.y, groups=data.groups, **options)
