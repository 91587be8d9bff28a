"""Attacks of a server that keeps what it gets, with and without privacy."""

import numpy as np
import pytest

import skcfl
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.testing import reconstruct

BOUNDS = {"features": (-2, 2), "target": (-8, 8)}


def few_rows(seed=0):
    rng = np.random.default_rng(seed)
    sizes = np.r_[1, 1, 3, rng.integers(8, 20, 9)]
    ids = np.repeat(np.arange(12), sizes)
    X = rng.standard_normal((len(ids), 3))
    theta = 2 * rng.standard_normal((3, 3))
    return X, (X * theta[ids % 3]).sum(axis=1) + 0.3 * rng.standard_normal(len(ids)), ids


FEDERATION = InProcessFederation(*few_rows())


def model_of(name, **how):
    return getattr(skcfl, f"{name}Regressor")(**how)


def test_losses_and_gradients_give_second_moments():
    model = model_of("IFCA", n_clusters=3, random_state=0)
    found = reconstruct(model, FEDERATION)
    assert not hasattr(model, "labels_")  # nor is the federation changed
    assert type(FEDERATION) is InProcessFederation and not hasattr(FEDERATION, "log")
    assert len(found.grams) == 12
    assert max(found.grams.values()) < 1e-9
    assert list(found.rows) == [0, 1]
    assert max(found.rows.values()) < 0.1
    assert found.floats_single > 0
    assert "12 of 12 found" in str(found)


def test_posteriors_and_gradients_at_single_models_give_rows():
    model = model_of("PartialPooling", n_clusters=1, covariance="diag", random_state=0)
    pooled = reconstruct(model, FEDERATION)
    fused = reconstruct(model_of("ConvexClusteredFL", lam=0.1), FEDERATION)
    assert max([*pooled.rows.values(), *fused.rows.values()]) < 1e-6
    assert max(fused.grams.values()) < 1e-9
    assert "posteriors" in pooled.calls


def test_sums_over_all_give_nothing_to_these_attacks():
    found = reconstruct(model_of("FedAvg"), FEDERATION)
    assert min([*found.rows.values(), *found.grams.values()]) == np.inf
    assert found.floats_summed > found.floats_single


@pytest.mark.parametrize("name", ["PartialPooling", "IFCA", "Ditto"])
@pytest.mark.parametrize("how", ["private", "masked"])
@pytest.mark.filterwarnings("ignore:.* fewer clients than least_clients")
def test_private_and_masked_clients_send_nothing_single(name, how):
    model = model_of(name, random_state=0) if name != "IFCA" else model_of(name, n_clusters=2)
    guarded = (
        FEDERATION.private(100.0, bounds=BOUNDS, random_state=0)
        if how == "private"
        else FEDERATION.masked(3, bounds=BOUNDS)
    )
    found = reconstruct(model, guarded)
    assert found.floats_single == 0
    assert found.calls == {}
    assert min([*found.rows.values(), *found.grams.values()]) == np.inf


def test_other_federations_are_refused():
    with pytest.raises(TypeError, match="must be an InProcessFederation"):
        reconstruct(model_of("FedAvg"), FanOutFederation([FEDERATION]))
