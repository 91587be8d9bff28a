"""Calls whose answers are added up where clients are: what single answers add up to."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist
from spied import spied

import skcfl
from skcfl import FedAvgRegressor, IFCARegressor, OracleClustersRegressor, Training
from skcfl.calls import CALLS, kept_models, summed
from skcfl.calls.curvatures import Prox
from skcfl.calls.first_order import (
    BestResponse,
    LocalUpdate,
    MetaUpdate,
    MoreauUpdate,
    Objectives,
    ObjectivesGradients,
)
from skcfl.federation import FanOutFederation, Faults, InProcessFederation, SitePolicy
from skcfl.models import MLP, LinearModel
from skcfl.numerics.by_cluster import sum_by_cluster

N, K = 30, 4
RNG = np.random.RandomState(0)
GROUPS = np.repeat(np.arange(N), RNG.randint(2, 12, N))
X = RNG.standard_normal((len(GROUPS), 3))
Y = X[:, 0] + 0.1 * GROUPS
LABELS = RNG.randint(K, size=N)
WEIGHTS = RNG.uniform(size=N)
#: Places of the clients, and their weights, of rows or given.
PLACES = [(1, None), (3, WEIGHTS)]
HOW = {"steps": 3, "step_size": 0.05}
AVERAGED = Training(averaging="model")
MODELS = {
    "linear": LinearModel(alpha=0.1, standardize=False),
    "network": MLP((3,), loss="squared_error", alpha=0.1),
}


def open_pool(model="linear", places=1, **options):
    where = np.arange(N) * places // N
    rows = [np.isin(GROUPS, np.flatnonzero(where == k)) for k in range(places)]
    parts = [InProcessFederation(X[at], Y[at], GROUPS[at], **options) for at in rows]
    federation = parts[0] if places == 1 else FanOutFederation(parts)
    pool = federation.open(MODELS[model].bind(3), random_state=0)
    theta = 0.3 * np.random.RandomState(1).standard_normal((K, pool.n_params))
    return pool, theta.astype(pool.dtype)


def added(parts, labels, weights):
    return sum_by_cluster(np.asarray(parts, float), labels, K, weights)


@pytest.mark.parametrize(("places", "weights"), PLACES, ids=["rows", "given"])
@pytest.mark.parametrize("model", MODELS)
def test_they_are_sums_of_single_answers(model, places, weights):
    """Also those of stochastic steps: clients draw as they do for single answers."""
    pool, theta = open_pool(model, places)
    u, w = pool.client_weights if weights is None else weights, theta[LABELS]
    rtol = 1e-10 if pool.dtype == float else 1e-5
    close = {"rtol": rtol, "atol": rtol}
    assert_allclose(
        pool.ask(summed.ClusterValues, theta, LABELS), pool.ask(Objectives, w), **close
    )
    values, gradients = pool.ask(ObjectivesGradients, w)
    found = pool.ask(summed.GradientSums, theta, LABELS, weights)
    assert_allclose(found[0], values, **close)
    assert_allclose(found[1], added(gradients, LABELS, u), **close)
    held = np.where(np.arange(N) % 2, LABELS, -1)
    losses, choice, gradients = pool.ask(BestResponse, theta, held)
    found = pool.ask(summed.BestResponseSums, theta, held, weights)
    assert_allclose(found[0], losses, **close)
    assert_array_equal(found[1], choice)
    assert_allclose(found[2], added(gradients, choice, u), **close)
    pairs = {
        summed.TrainedMoves: (LocalUpdate, HOW | {"optimizer": "adam", "batch_size": 4}),
        summed.MetaMoves: (MetaUpdate, HOW | {"inner": 0.1, "batch_size": 4}),
        summed.MoreauMoves: (MoreauUpdate, HOW | {"rho": 0.5, "move": 0.7, "n_moves": 2}),
    }
    for moves, (single, how) in pairs.items():
        pool.reseed(5)
        trained = pool.ask(single, w, **how)
        pool.reseed(5)
        found = pool.ask(moves, theta, LABELS, weights=weights, **how)
        assert_allclose(found, added(w - trained, LABELS, u), err_msg=moves.name, **close)
    begun = np.where(np.arange(N) % 3, LABELS, -1)
    trained = pool.ask(LocalUpdate, np.vstack([theta, theta.mean(axis=0)])[begun], **HOW)
    choice = cdist(trained, theta).argmin(axis=1)
    found = pool.ask(summed.NearestMoves, theta, begun, weights=weights, **HOW)
    assert_array_equal(found[0], choice)
    assert_allclose(found[1], added(theta[choice] - trained, choice, u), **close)


@pytest.mark.parametrize(("places", "weights"), PLACES, ids=["rows", "given"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["partial", "blended"])
def test_sums_of_models_that_clients_keep(kind, model, places, weights):
    """Rounds by single answers and by sums are the same, and clients keep the same models."""
    (one, theta), (other, _) = open_pool(model, places), open_pool(model, places)
    u = one.client_weights if weights is None else weights
    rtol = 1e-10 if one.dtype == float else 1e-4
    close = {"rtol": rtol, "atol": rtol}
    some = np.arange(one.n_params) % 2 == 0
    if kind == "partial":
        single, moves, columns = kept_models.PartialUpdate, kept_models.PartialMoves, some
        how = some, [(2, ~some), (3, some)], 0.05, "sgd", 4
    else:
        single, moves, columns = (
            kept_models.BlendedUpdate,
            kept_models.BlendedMoves,
            np.ones_like(some),
        )
        how = some, 3, 0.05
    for start in (theta[:, columns], theta[::-1][:, columns], theta[:, columns]):
        for pool in (one, other):
            pool.reseed(5)
        trained, values = one.ask(single, start[LABELS], *how)
        found = other.ask(moves, start, LABELS, *how, weights=weights)
        assert_allclose(found[0], added(start[LABELS] - trained, LABELS, u), **close)
        assert_allclose(found[1], values, **close)
        kept = [
            pool.ask(kept_models.Recall, np.zeros_like(theta[LABELS])) for pool in (one, other)
        ]
        assert_allclose(*kept, **close)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", [FedAvgRegressor, skcfl.DittoRegressor, skcfl.FedALARegressor])
def test_networks_do_not_depend_on_where_their_clients_are(method):
    """Single precision is rounded after the sums of all places, not before."""
    model = method(hidden_layer_sizes=(8,), max_iter=12, tol=0, random_state=0)
    where = [np.isin(GROUPS, some) for some in np.array_split(np.arange(N), 3)]
    parts = [InProcessFederation(X[at], Y[at], GROUPS[at]) for at in where]
    here = model.fit(X, Y, groups=GROUPS).params_
    assert_array_equal(model.fit_federation(FanOutFederation(parts)).params_, here)


@pytest.mark.parametrize("places", [1, 3])
def test_proximal_points_stay_at_the_clients(places):
    pool, theta = open_pool(places=places)
    centre = theta[LABELS].copy()
    for _ in range(2):
        near = pool.ask(Prox, centre, 0.5)
        centre -= 0.4 * (centre - near)
    for _ in range(2):  # from the points before it ends at the same ones
        moves, values, away = pool.ask(summed.ProximalMoves, theta, LABELS, 0.5, 0.8, 2)
        parts = added(theta[LABELS] - centre, LABELS, pool.client_weights)
        assert_allclose(moves, parts, rtol=1e-8, atol=1e-10)
        assert_allclose(values, pool.ask(Objectives, near), rtol=1e-8)
        assert_allclose(away, ((theta[LABELS] - near) ** 2).sum(axis=1), rtol=1e-7)


@pytest.mark.parametrize("attack", ["sign_flip", "scale", "alie", "inner_product"])
def test_false_clients_lie_in_sums_as_in_single_answers(attack):
    faults = Faults(attack=attack, false=[2, 7, 11], strength=3.0)
    pool, theta = open_pool(faults=faults)
    w, u = theta[LABELS], pool.client_weights
    best, trained = pool.ask(BestResponse, theta), pool.ask(LocalUpdate, w, **HOW)
    for found, lies, labels in (
        (
            pool.ask(summed.GradientSums, theta, LABELS)[1],
            pool.ask(ObjectivesGradients, w)[1],
            LABELS,
        ),
        (pool.ask(summed.BestResponseSums, theta)[2], best[2], best[1]),
        (pool.ask(summed.TrainedMoves, theta, LABELS, **HOW), w - trained, LABELS),
    ):
        assert_allclose(found, added(lies, labels, u), rtol=1e-10, atol=1e-12)
    honest = open_pool()[0].ask(summed.NearestMoves, theta, LABELS, **HOW)
    found = pool.ask(summed.NearestMoves, theta, LABELS, **HOW)
    assert_array_equal(found[0], honest[0])
    assert (np.abs(found[1] - honest[1]).max(axis=1) > 1e-6).any()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        FedAvgRegressor(hidden_layer_sizes=(40,)),
        OracleClustersRegressor(labels=LABELS, hidden_layer_sizes=(40,)),
        IFCARegressor(3, init="random", empty_cluster="keep", hidden_layer_sizes=(40,)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_servers_of_networks_hold_no_array_of_clients_and_parameters(model, monkeypatch):
    """Neither an answer nor what a fit publishes grows by a model with each client."""
    assert BestResponse.is_single() and Prox.is_single() and not Objectives.is_single()
    seen = spied(monkeypatch)
    model.set_params(random_state=0, max_iter=3).fit(X, Y, groups=GROUPS)
    sizes = [np.size(value) for *_, answers in seen for value in answers.values()]
    p = model.cluster_params_.shape[1]
    assert p > 10 * K
    held = [np.size(value) for value in vars(model).values() if isinstance(value, np.ndarray)]
    assert max(sizes + held) <= max(N, p) * K
    pool, theta = open_pool()
    seen.clear()
    pool.ask(summed.ProximalMoves, theta, LABELS, 0.5, 0.8, 2)
    assert max(map(np.size, seen[0][2].values())) <= N * K


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        FedAvgRegressor(),
        FedAvgRegressor(alpha="auto", training=AVERAGED),
        FedAvgRegressor(hidden_layer_sizes=(3,), max_iter=3),
        FedAvgRegressor(aggregation="median"),
        OracleClustersRegressor(labels=LABELS),
        IFCARegressor(n_clusters=3, init="random", empty_cluster="keep"),
        IFCARegressor(3, init=np.eye(3, 4), empty_cluster="keep", training=AVERAGED),
        IFCARegressor(n_clusters=3),
        IFCARegressor(n_clusters="auto"),
        IFCARegressor(n_clusters=1),
        IFCARegressor(n_clusters=3, init="random", empty_cluster="keep", aggregation="krum"),
        skcfl.CLoVERegressor(n_clusters=3),
        skcfl.FeSEMRegressor(n_clusters=3),
        skcfl.CFLRegressor(),
        skcfl.LocalModelsRegressor(),
        skcfl.GTVRegressor(lam=0.1),
        skcfl.PFedMeRegressor(lam=1.0),
        skcfl.DittoRegressor(),
        skcfl.FedRepRegressor(),
        skcfl.FedALARegressor(),
    ],
    ids=str,
)
def test_estimators_tell_whether_they_need_single_answers(model, monkeypatch):
    seen = spied(monkeypatch)
    if "random_state" in model.get_params():
        model.set_params(random_state=0)
    # Rows enough that clusters of one client show none.
    rows = np.random.RandomState(3).standard_normal((20 * N, 3))
    groups = np.repeat(np.arange(N), 20)
    y = np.einsum("nd,nd->n", rows, np.eye(3)[groups % 3])
    model.fit(rows, y + 0.1 * rows[::-1, 0], groups=groups)
    assert any(CALLS[call].is_single() for call, *_ in seen) is model.needs_single_answers


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("layers", [(), (3,)])
@pytest.mark.parametrize("method", [skcfl.FedRepRegressor, skcfl.FedALARegressor])
def test_clients_train_the_models_that_they_keep_once_a_round(method, layers):
    """Also where a policy checks how many clients have moved."""
    model = method(hidden_layer_sizes=layers, max_iter=3, random_state=0)
    plain, checked = (
        model.fit_federation(InProcessFederation(X, Y, GROUPS, policy=policy)).predict(X, GROUPS)
        for policy in (None, SitePolicy(min_clients=2))
    )
    assert_array_equal(plain, checked)
