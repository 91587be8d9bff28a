"""FedRep of private clients: shared layers are released, and own layers stay at the clients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import places_of

from skcfl import IFCA, FedRepRegressor
from skcfl.calls.releases import SharedMoves
from skcfl.federation import InProcessFederation
from skcfl.models import MLP, LinearModel

BOUNDS = {"features": (-2, 2), "target": (-4, 4)}


def shifted(n_clients=300, seed=0):
    """Clients with the same slopes and intercepts of their own, to fit and to judge."""
    rng = np.random.default_rng(seed)
    ids, own = np.repeat(np.arange(n_clients), 10), 1.5 * rng.standard_normal(n_clients)
    parts = []
    for _ in range(2):
        X = rng.standard_normal((len(ids), 3))
        signal = X @ [1.0, -0.5, 0.2] + own[ids]
        parts.append((X, signal + 0.3 * rng.standard_normal(len(ids)), ids))
    return parts


def test_shared_coefficients_and_own_intercepts():
    train, test = shifted()
    plain = FedRepRegressor(random_state=0).fit(*train[:2], groups=train[2])
    wanted = plain.score(*test[:2], groups=test[2])
    federation = InProcessFederation(*train)
    noisy = federation.private(8.0, bounds=BOUNDS, random_state=0)
    for guarded, atol in ((noisy, 0.1), (federation.masked(3, bounds=BOUNDS), 0.01)):
        model = FedRepRegressor(random_state=0).fit_federation(guarded)
        assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=atol)
        adapted = model.adapt(*train[:2], groups=train[2])
        assert adapted.score(*test[:2], groups=test[2]) > wanted - 0.01
        assert set(model.releases_["block"]) == {"moves", "counts"}
        # Nothing of the clients' intercepts is released.
        assert_array_equal(adapted.coef_ - model.cluster_coef_, 0.0)
        assert adapted.params_[:, -1].std() > 1.0


@pytest.mark.parametrize(
    "model",
    [LinearModel(alpha=0.0, standardize=False), MLP((3,), loss="squared_error")],
    ids=["linear", "network"],
)
def test_own_parameters_go_on_from_where_they_were(model):
    model = model.bind(3)
    one, another = (places_of(InProcessFederation(*shifted(20)[0]), model) for _ in range(2))
    site, other = one[0].site(model), another[0].site(model)
    shared = model.body_mask()
    how = dict(shared=shared, unit=1.0, rho=0.3, step_size=0.01, head_steps=5, steps=5, draw=0)
    how["theta"] = np.asarray(model.start(np.random.RandomState(0)), dtype=float)[None]
    first, second = (SharedMoves.sums(site, how, clipped=False) for _ in range(2))
    assert first["moves"].shape == (np.count_nonzero(shared),)
    assert np.abs(first["moves"] - second["moves"]).max() > 1e-4
    # The server's value of the own parameters is a start only.
    how["theta"] = np.where(shared, how["theta"], 9.0)
    asked = "kept of releases", np.arange(20), np.zeros((20, model.n_params))
    kept = site.state.recall(*asked)
    SharedMoves.sums(site, how, clipped=False)
    assert np.abs(site.state.recall(*asked) - kept)[:, ~shared].max() < 2.0
    moves = SharedMoves.sums(other, {**how, "draw": 1}, clipped=False)["moves"]
    assert np.isfinite(moves).all()


def test_clusters_of_networks_begin_near_the_network_s_start():
    """A spread as of linear models would drown it."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(100), 12)
    X, slopes = rng.standard_normal((len(ids), 8)), rng.standard_normal((2, 8))
    y = ((X * slopes[ids % 2]).sum(axis=1) > 0).astype(int)
    clients = InProcessFederation(X, y, ids)
    masked = clients.masked(3, bounds={"features": (-2, 2), "classes": [0, 1]})
    model = IFCA(MLP((16,)), n_clusters=2, max_iter=10, random_state=0).fit_federation(masked)
    assert (model.predict_federation(clients) == y).mean() > 0.9
