"""ODCL: after one exchange the error is of the order of the fit that knows the clusters.

A. Armacki et al., "One-Shot Federated Learning for Clustered Heterogeneous Models", 2022: if
clusters are separated, the squared error of a cluster's model is O(1 / (m n)), m clients of n
rows, as if their rows were pooled. For least squares with Gaussian features the constants are
known: a mean of m local fits has sigma^2 d / (m (n - d - 1)), the pooled fit
sigma^2 d / (m n - d - 1).
"""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from skcfl import OneShotRegressor

D, ROWS, NOISE, SEEDS = 4, 30, 0.5, 25
MODELS = np.array([[3.0, 0, 0, 0], [0, 3.0, 0, 0], [0, 0, -3.0, 0]])


def squared_error(m, seed):
    """Mean over the clusters of the squared error of the models after one exchange."""
    rng = np.random.RandomState(seed)
    labels = np.repeat(np.arange(3), m)
    groups = np.repeat(np.arange(3 * m), ROWS)
    X = rng.standard_normal((len(groups), D))
    y = np.einsum("rd,rd->r", X, MODELS[labels[groups]]) + NOISE * rng.standard_normal(len(X))
    once = OneShotRegressor(
        3, rounds=0, alpha=0.0, standardize=False, fit_intercept=False, random_state=0
    ).fit(X, y, groups=groups)
    assert adjusted_rand_score(labels, once.labels_) == 1.0
    return ((once.coef_[::m] - MODELS) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("m", [4, 16])
def test_error_is_of_the_oracles_order(m):
    errors = [squared_error(m, seed) for seed in range(SEEDS)]
    theory = NOISE**2 * D / (m * (ROWS - D - 1))
    oracle = NOISE**2 * D / (m * ROWS - D - 1)
    # The mean of 3 SEEDS chi-squares with D degrees of freedom, within four standard errors.
    slack = 4 * np.sqrt(2 / (3 * SEEDS * D))
    assert abs(np.mean(errors) / theory - 1) < slack
    assert np.mean(errors) < (1 + slack) * ROWS / (ROWS - D - 1) * oracle
