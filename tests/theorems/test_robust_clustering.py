r"""Ghosh et al. (2019), after Yin et al. (2018): the error of robust descent in a cluster.

With the coordinates' trimmed mean, a share alpha of false clients, m clients of n rows,

    ||theta - theta*|| = O(alpha / sqrt(n) + 1 / sqrt(n m)).
"""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from skcfl import RobustClusteredFLRegressor, Training

P, SIGMA = 3, 1.0


def error(n, m, n_false, seed=0):
    """Error of two clusters of m clients with n rows, n_false of each in false units."""
    rng = np.random.RandomState(seed)
    labels = np.repeat([0, 1], m)
    theta = np.array([np.ones(P), -np.ones(P)])
    X = rng.normal(size=(2 * m, n, P))
    y = np.einsum("inp,ip->in", X, theta[labels]) + SIGMA * rng.normal(size=(2 * m, n))
    false = np.arange(2 * m) % m < n_false
    y[false] = 0.5 * y[false]  # near enough to be hard to tell
    model = RobustClusteredFLRegressor(
        n_clusters=2,
        aggregation="trimmed_mean",
        alpha=0.0,
        standardize=False,
        training=Training(polish=False),
        tol=1e-5,
        random_state=0,
        trim=0.25,
    ).fit(X.reshape(-1, P), y.ravel(), groups=np.repeat(np.arange(2 * m), n))
    true = ~false
    assert adjusted_rand_score(labels[true], model.labels_[true]) == 1.0
    order = np.argsort(-model.cluster_coef_[:, 0])
    return np.linalg.norm(model.cluster_coef_[order] - theta, axis=1).mean()


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_rate_in_the_rows(share):
    """Sixteen times the rows: a quarter of the error, whatever false clients there are."""
    few, many = (
        np.mean([error(n, 10, int(share * 10), seed) for seed in range(4)]) for n in (25, 400)
    )
    if share == 0.0:
        assert few / many == pytest.approx(4.0, rel=0.35)
    constant = 4.0 * SIGMA * np.sqrt(P)
    for n, found in ((25, few), (400, many)):
        if share == 0.0 or n == 25:
            assert found <= constant * (share + 1 / np.sqrt(10)) / np.sqrt(n)


def test_rate_in_the_clients():
    few, many = (np.mean([error(50, m, 0, seed) for seed in range(5)]) for m in (5, 20))
    assert few / many == pytest.approx(2.0, rel=0.35)
