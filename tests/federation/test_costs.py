"""Costs of fits on other networks: sums of what a call takes."""

import numpy as np
import pytest
from cases import DATA, make
from fits_alone import without_reports
from numpy.testing import assert_allclose
from pickled_hosts import PickledHost, named, parts_of
from site_tables import Given, Wire
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.tree import DecisionTreeRegressor
from spied import spied

from skcfl import (
    KFED,
    ConvexClusteredFLRegressor,
    FedAvg,
    FedAvgRegressor,
    GTVRegressor,
    IFCARegressor,
    LocalModelsRegressor,
    Training,
)
from skcfl.calls import CALLS
from skcfl.datasets import make_clustered_regression
from skcfl.federation import costs, estimate_cost
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import loads
from skcfl.federation.transport import SEVERAL
from skcfl.models import LinearModel, SklearnModel

FREE = {"latency": 0.0, "uplink": np.inf, "downlink": np.inf, "seconds_per_row": 0.0}


@pytest.fixture(scope="module")
def model():
    return make("IFCARegressor").fit(DATA.X, DATA.y, groups=DATA.groups)


def around(model):
    """Bytes (up, down) of a site's messages that are no values: names, shapes, headers."""
    return np.array(model._envelopes) + model.calls_ * costs.MESSAGE


def test_each_part_alone(model):
    up, down = 8 * np.array([model.floats_up_, model.floats_down_]) + 9 * around(model)
    assert model.client_calls_ == 9 * model.calls_  # everybody is asked
    for change, name, wanted in (
        ({}, "wall_time", 0.0),
        ({"latency": 0.1}, "wall_time", 0.1 * model.calls_),
        ({"uplink": 1e6}, "wall_time", 8 * up / 9 / 1e6),
        ({"downlink": 1e6}, "transfer_time", 8 * down / 9 / 1e6),
        ({"seconds_per_row": 1e-3}, "client_time", 1e-3 * model.calls_ * len(DATA.y) / 9),
        ({"server_seconds": 2.0}, "wall_time", 2.0),
        ({"seconds_per_request": 2e-3, "n_sites": 3}, "packing_time", 4e-3 * model._requests),
        ({"seconds_per_request": 2e-3, "n_sites": 3}, "wall_time", 4e-3 * model._requests),
        ({"server_link": 1e6}, "wall_time", 8 * (up + down) / 1e6),
    ):
        assert_allclose(getattr(estimate_cost(model, **FREE | change), name), wanted)
    cost = estimate_cost(model, **FREE)
    assert_allclose((cost.bytes_up, cost.bytes_down), (up, down))
    assert_allclose(9 * cost.client_bytes_up, cost.bytes_up)


def test_sites_share_a_link_and_a_processor(model):
    slow = {"latency": 0.1, "uplink": 1e6, "downlink": 1e6, "seconds_per_row": 1e-3}
    alone, three = estimate_cost(model, **slow), estimate_cost(model, **slow, n_sites=3)
    assert three.latency_time == alone.latency_time
    for cost in (alone, three):
        assert {type(value) for value in vars(cost).values()} == {float, int}
    assert alone.transfer_time < three.transfer_time < 3 * alone.transfer_time
    assert_allclose(three.client_time, 3 * alone.client_time)
    assert_allclose(
        64 * (three.client_bytes_up + three.client_bytes_down) * 3e-6, 8 * three.transfer_time
    )


@pytest.mark.parametrize("name", ["IFCARegressor", "GTVRegressor", "PartialPoolingRegressor"])
def test_what_is_for_all_clients_of_a_site_travels_once(name):
    """With one client a site nothing is shared; with one site it is what the site has seen."""
    slow = {"latency": 0.1, "uplink": 1e6, "downlink": 2e6, "seconds_per_row": 1e-3}
    site_bytes = np.zeros(2)
    with pytest.MonkeyPatch.context() as patch:
        seen = spied(patch)
        without_reports(patch)
        model = make(name).fit(DATA.X, DATA.y, groups=DATA.groups)
    for call, arguments, answers in seen:
        for way, values in enumerate((answers, CALLS[call].packed(arguments))):
            site_bytes[way] += sum(getattr(value, "nbytes", 0) for value in values.values())
    n, d = 9, DATA.X.shape[1]
    assert estimate_cost(model, **slow, n_sites=n) == estimate_cost(model, **slow)
    one = estimate_cost(model, **slow, n_sites=1)
    # Two exchanges of sums about the features, and two about the target.
    opening = [8 * (5 * d + 1 + 6), 8 * (2 * d + 2)]
    # Never more than what the clients would be sent one by one.
    most = 8.0 * np.array([model.floats_up_, model.floats_down_])
    seen_bytes = np.minimum(site_bytes + opening, most)
    hello = np.array([n * (model.groups_.itemsize + 16), 0])
    hello = hello + around(model) + n * np.array([costs.FACTS, costs.PLACES]) + costs.OPENING
    more = np.array([one.bytes_up, one.bytes_down]) - seen_bytes - hello
    assert_allclose(more[0], 0.0, atol=1e-6)
    assert -1e-6 < more[1] < 17  # penalties that were told
    by_sites = [estimate_cost(model, **slow, n_sites=s) for s in (1, 2, 4, 9)]
    assert (np.diff([cost.bytes_down for cost in by_sites]) >= -1e-6).all()
    assert (np.diff([cost.wall_time for cost in by_sites]) < 0).all()


@pytest.mark.parametrize(
    "model",
    [
        FedAvgRegressor(),
        IFCARegressor(n_clusters=3, max_iter=30, random_state=0),
        LocalModelsRegressor(),
        GTVRegressor(lam=0.1, max_iter=30),
        ConvexClusteredFLRegressor(lam=0.05, graph="knn", refit=False),
    ],
    ids=lambda model: type(model).__name__,
)
def test_messages_of_a_wire(model):
    """A simulation knows within a twentieth what two sites of ten clients send and are sent."""
    data = make_clustered_regression(20, 3, 8, n_samples=20, random_state=0)
    first = np.isin(data.groups, np.unique(data.groups)[:10])
    groups = np.char.add(np.where(first, "a/", "b/"), data.groups)
    cost = estimate_cost(clone(model).fit(data.X, data.y, groups=groups), **FREE, n_sites=2)
    halves = ("a", first), ("b", ~first)
    rows = [Given(name, (data.X[m], data.y[m], data.groups[m])) for name, m in halves]
    sites = [*map(Wire, rows)]
    found = model.fit_federation(RemoteFederation(sites))
    assert_allclose((cost.bytes_up, cost.bytes_down), found.wire_bytes_, rtol=0.05)
    for site in sites:
        assert cost.calls <= site.messages <= cost.calls + 1
    requests = [loads(message) for message in sites[0].sent]
    n_requests = sum(len(r[4][0]) if r[3] == SEVERAL else 1 for r in requests)
    assert_allclose(found._requests, n_requests, rtol=0.2)


def test_sums_that_are_relayed_travel_once():
    pool = RemoteFederation([PickledHost(named(parts_of(DATA, 2)))]).open(LinearModel().bind(4), 0)
    before = np.array([pool.ledger.shared_bytes, pool.ledger.own_bytes])
    pool.relay(up=18, down=9, sums=True)
    pool.relay(up=5)
    pool.penalised(0.25)
    after = np.array([pool.ledger.shared_bytes, pool.ledger.own_bytes])
    assert (after - before).tolist() == [[16, 8 + 8], [40, 0]]


def test_estimators_without_models_have_costs():
    model = KFED(3, random_state=0).fit(DATA.X, groups=DATA.groups)
    cost = estimate_cost(model, **{**FREE, "uplink": 1e6})
    assert_allclose(cost.wall_time, 8 * (8 * model.floats_up_ / 9 + around(model)[0]) / 1e6)


def test_other_numbers_of_clients(model):
    slow = {"latency": 0.1, "uplink": 1e6, "downlink": 1e6, "seconds_per_row": 1e-3}
    small = estimate_cost(model, **slow)
    large = estimate_cost(model, **slow, n_clients=900)
    assert_allclose(large.wall_time, small.wall_time)
    assert_allclose(large.bytes_up, 100 * small.bytes_up)
    some = estimate_cost(model, **slow, n_clients=900, participants=90)
    assert_allclose(some.wall_time, small.wall_time)
    assert_allclose(some.bytes_up, 0.1 * large.bytes_up)
    assert_allclose(some.client_bytes_up, 0.1 * large.client_bytes_up)
    rows = estimate_cost(model, **slow, rows_per_client=24)
    assert_allclose(rows.client_time, 2 * small.client_time)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_participation_is_that_of_fit():
    model = make("IFCARegressor").set_params(
        training=Training(participation=0.3, polish=False), n_init=1
    )
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    cost = estimate_cost(model, **FREE)
    assert 3 <= cost.clients_per_call < 9
    assert_allclose(cost.clients_per_call, model.client_calls_ / model.calls_)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("latency", -1.0, "latency must be a 0 or positive number, got -1.0"),
        ("uplink", 0.0, "uplink must be a positive number, got 0.0"),
        ("downlink", "fast", "downlink must be a positive number, got 'fast'"),
        ("seconds_per_row", np.nan, "seconds_per_row must be"),
        ("seconds_per_request", -1, "seconds_per_request must be a 0 or positive number, got -1"),
        ("n_clients", 1.5, "n_clients must be an integer of at least 1 or None, got 1.5"),
        ("participants", 10, "participants=10 is more than the 9 clients"),
        ("n_sites", 10, "n_sites=10 is more than the 9 clients"),
    ],
)
def test_bad_arguments(model, name, value, message):
    with pytest.raises(ValueError, match=message):
        estimate_cost(model, **{**FREE, name: value})


def test_fitted_estimators_that_are_sent_are_not_counted():
    model = FedAvg(SklearnModel(DecisionTreeRegressor(max_depth=2)))
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    with pytest.raises(ValueError, match="what a SklearnModel sends, .* is not counted"):
        estimate_cost(model, **FREE)


def test_an_estimator_that_is_not_fitted():
    with pytest.raises(NotFittedError):
        estimate_cost(FedAvgRegressor(), **FREE)
