"""Ditto: closed forms, both ends of lam, clusters, networks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from personal_tables import CLASSES, DATA, IDS, fit

from skcfl import (
    FPFC,
    IFCA,
    Ditto,
    DittoClassifier,
    DittoRegressor,
    FedAvgClassifier,
    FedAvgRegressor,
    LocalModels,
    LocalModelsRegressor,
    OracleClusters,
    OracleClustersRegressor,
)
from skcfl.federation import Faults, InProcessFederation

NETWORK = {"hidden_layer_sizes": 4, "random_state": 0, "max_iter": 4, "tol": 0}


def ridge_with_pull(X, y, alpha, lam, center):
    """``argmin |y - Z v|^2 / 2n + alpha / 2 |slopes|^2 + lam / 2 |v - center|^2``."""
    Z = np.column_stack([X, np.ones(len(X))])
    decay = alpha * np.append(np.ones(X.shape[1]), 0.0)
    H = Z.T @ Z / len(X) + np.diag(decay) + lam * np.eye(len(decay))
    return np.linalg.solve(H, Z.T @ y / len(X) + lam * center)


@pytest.mark.parametrize("lam", [0.03, 2.0])
def test_closed_form(lam):
    model = fit(DittoRegressor(lam, alpha=0.1, standardize=False))
    shared = fit(FedAvgRegressor(alpha=0.1, standardize=False))
    assert_allclose(model.cluster_params_, shared.cluster_params_, rtol=1e-12)
    for i, group in enumerate(IDS):
        mine = DATA.groups == group
        wanted = ridge_with_pull(DATA.X[mine], DATA.y[mine], 0.1, lam, shared.cluster_params_[0])
        assert_allclose(model.params_[i], wanted, rtol=1e-9)


def test_both_ends():
    weak, strong = fit(DittoRegressor(1e-10, alpha=0.1)), fit(DittoRegressor(1e10, alpha=0.1))
    none, infinite = fit(DittoRegressor(0.0, alpha=0.1)), fit(DittoRegressor(np.inf, alpha=0.1))
    local = fit(LocalModelsRegressor(alpha=0.1))
    shared = fit(FedAvgRegressor(alpha=0.1))
    assert_allclose(none.params_, local.params_, rtol=1e-12)
    assert_allclose(infinite.params_, shared.params_, rtol=1e-12)
    assert_allclose(weak.params_, local.params_, rtol=1e-6)
    assert_allclose(strong.params_, shared.params_, rtol=1e-6)


def test_networks_train_towards_the_shared_one():
    model = fit(DittoClassifier(0.3, **NETWORK))
    shared = fit(FedAvgClassifier(**NETWORK))
    assert_array_equal(model.cluster_params_, shared.cluster_params_)
    weak = fit(DittoClassifier(0.0, **NETWORK))
    far = [np.linalg.norm(m.params_ - shared.params_, axis=1) for m in (weak, model)]
    assert (0 < far[1]).all() and far[1].sum() < far[0].sum()
    infinite = fit(DittoClassifier(np.inf, **NETWORK))
    assert_array_equal(infinite.params_, shared.params_)
    # Sent more are the last shared model, and to publish models and their objectives.
    n, p = model.params_.shape
    assert model.floats_down_ - shared.floats_down_ == n * p
    assert model.floats_up_ - shared.floats_up_ == n * (p + 1)


def test_within_clusters():
    known = dict(zip(IDS, DATA.labels, strict=True))
    found = fit(Ditto(lam=0.1, within=IFCA(n_clusters=2), random_state=0))
    told = fit(DittoRegressor(0.1, within=OracleClusters(labels=known)))
    assert_array_equal(found.labels_, told.labels_)
    oracle = fit(OracleClustersRegressor(known))
    assert_allclose(told.cluster_params_, oracle.cluster_params_, rtol=1e-9)
    far = fit(DittoRegressor(1e9, within=OracleClusters(labels=known)))
    assert_allclose(far.params_, oracle.params_, rtol=1e-6)
    new = DATA.groups == IDS[0]
    rest = DittoRegressor(0.1, within=IFCA(n_clusters=2), random_state=0)
    rest.fit(DATA.X[~new], DATA.y[~new], groups=DATA.groups[~new])
    adapted = rest.adapt(DATA.X[new], DATA.y[new], groups=DATA.groups[new])
    assert adapted.score(DATA.X[new], DATA.y[new], groups=DATA.groups[new]) > 0.9
    assert adapted.labels_[0] == rest.assign(DATA.X[new], DATA.y[new])[0]
    network = NETWORK | {"max_iter": 20}
    model = fit(DittoClassifier(0.1, within=IFCA(n_clusters=2, max_iter=20, tol=0), **network))
    assert model.n_clusters_ == 2
    assert model.score(CLASSES.X, CLASSES.y, groups=CLASSES.groups) > 0.9


@pytest.mark.parametrize("within", [LocalModels(), FPFC(), Ditto()])
def test_within_must_find_clusters_by_rounds(within):
    with pytest.raises(ValueError, match="within must be a method"):
        fit(DittoRegressor(0.1, within=within))


def test_a_lost_client_has_the_shared_model():
    faults = Faults(dead=[IDS[2]], random_state=0)
    model = DittoRegressor(0.1, alpha=0.01)
    model.fit_federation(InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults))
    assert_allclose(model.params_[2], model.cluster_params_[0], rtol=1e-12)
