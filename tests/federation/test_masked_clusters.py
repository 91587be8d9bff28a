"""Clusters under masks without noise: models of enough clients, and a warning about others."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from private_clients import BOUNDS

from skcfl import IFCARegressor, PartialPoolingRegressor
from skcfl.exceptions import PrivacyWarning
from skcfl.federation import InProcessFederation

CENTRES = np.array([[1.5, -0.6], [0.1, 0.6]])


def two_clusters(n_others, n_clients=16):
    """Clients of two crisp clusters, the second one of `n_others`, under masks."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(n_clients), 10)
    X = rng.standard_normal((len(ids), 2))
    y = (X * CENTRES[(ids < n_others).astype(int)]).sum(axis=1)
    y += 0.3 * rng.standard_normal(len(ids))
    return InProcessFederation(X, y, ids).masked(3, bounds=BOUNDS)


@pytest.mark.parametrize("cls", [PartialPoolingRegressor, IFCARegressor])
@pytest.mark.parametrize("seed", range(4))
def test_clusters_of_enough_clients_are_found(cls, seed):
    found = cls(2, random_state=seed).fit_federation(two_clusters(6)).cluster_coef_
    assert_allclose(found[np.argsort(-found[:, 0])], CENTRES, atol=0.15)


@pytest.mark.parametrize("seed", [0, 5, 7])
def test_ifca_begins_near_the_model_of_all(seed):
    """Models drawn far from it leave nearly all clients in one of the three clusters."""
    rng = np.random.default_rng(seed)
    slopes, intercepts = rng.standard_normal((3, 5)), rng.standard_normal(3)
    ids = np.repeat(np.arange(60), 30)
    X = rng.standard_normal((len(ids), 5))
    y = (X * slopes[ids % 3]).sum(axis=1) + intercepts[ids % 3]
    bounds = {"features": (-2, 2), "target": (-5, 5)}
    masked = InProcessFederation(X, y, ids).masked(3, bounds=bounds)
    model = IFCARegressor(3, random_state=seed).fit_federation(masked)
    found = np.column_stack([model.cluster_coef_, model.cluster_intercept_])
    errors = np.square(found[:, None] - np.column_stack([slopes, intercepts])).sum(axis=2)
    assert errors.min(axis=0).max() < 0.05


@pytest.mark.parametrize("cls", [PartialPoolingRegressor, IFCARegressor])
@pytest.mark.parametrize("n_others", [1, 2])
def test_models_of_too_few_clients_are_withheld_with_a_warning(cls, n_others):
    with pytest.warns(PrivacyWarning, match="1 of 2 clusters .* than least_clients=3"):
        model = cls(2, random_state=0).fit_federation(two_clusters(n_others))
    assert np.abs(model.cluster_coef_ - CENTRES[1]).max(axis=1).min() > 0.5
