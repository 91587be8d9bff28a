"""Costs of private and masked fits: every exchange is counted, and the bytes around the sums."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from private_clients import where
from site_tables import Given, Wire

from skcfl import FedAvgRegressor, IFCARegressor, PartialPoolingRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import PrivacyWarning
from skcfl.federation import (
    ClientPrivacy,
    InProcessFederation,
    Ledger,
    SitePolicy,
    estimate_cost,
)
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import dumps, size_of

DATA = make_clustered_regression(30, 3, 8, n_samples=20, random_state=0)
IDS = np.unique(DATA.groups)
BOUNDS = {"features": (-4.0, 4.0), "target": (-20.0, 20.0)}
FREE = {"latency": 0.0, "uplink": np.inf, "downlink": np.inf, "seconds_per_row": 0.0}
#: Epsilon and masks of the clients.
TERMS = {"masked": (np.inf, 3), "private": (200.0, None), "both": (200.0, 3)}
MODELS = {
    "FedAvg": lambda: FedAvgRegressor(random_state=0),
    "IFCA": lambda: IFCARegressor(n_clusters=3, random_state=0),
    "PartialPooling": lambda: PartialPoolingRegressor(basis="linear", random_state=0),
}

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def at_sites(kind, n_sites=3):
    epsilon, masked = TERMS[kind]
    policy = SitePolicy(privacy=ClientPrivacy(epsilon, 1e-2, bounds=BOUNDS, masked=masked))
    rows = DATA.X, DATA.y, DATA.groups
    parts = [where(rows, np.isin(DATA.groups, IDS[k::n_sites])) for k in range(n_sites)]
    return [Wire(Given(str(k), part, policy)) for k, part in enumerate(parts)]


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("name", MODELS)
def test_exchanges_and_bytes_of_sites(name, kind):
    """All messages of a site are exchanges of the estimate, and bytes are within a twentieth."""
    ways = at_sites(kind)
    model = MODELS[name]().fit_federation(RemoteFederation(ways))
    cost = estimate_cost(model, **FREE, n_sites=3)
    assert [len(way.sent) for way in ways] == [cost.calls] * 3
    assert_allclose((cost.bytes_up, cost.bytes_down), model.wire_bytes_, rtol=0.05)
    # Sums travel: a site with ten times as many clients sends no more after it was introduced.
    more = estimate_cost(model, **FREE, n_sites=3, n_clients=300)
    assert_allclose(more.bytes_up - cost.bytes_up, 270 * 104)
    latency = estimate_cost(model, **{**FREE, "latency": 1.0}, n_sites=3)
    assert latency.latency_time == cost.calls


@pytest.mark.parametrize(("name", "kind"), [("FedAvg", "private"), ("IFCA", "both")])
def test_a_simulation_knows_the_cost_of_sites(name, kind):
    epsilon, masked = TERMS[kind]
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups)
    federation = federation.private(epsilon, 1e-2, bounds=BOUNDS)
    simulated = MODELS[name]().fit_federation(federation.masked(3) if masked else federation)
    ways = at_sites(kind)
    taken = MODELS[name]().fit_federation(RemoteFederation(ways)).wire_bytes_
    cost = estimate_cost(simulated, **FREE, n_sites=3)
    assert cost.calls == len(ways[0].sent)
    assert_allclose((cost.bytes_up, cost.bytes_down), taken, rtol=0.05)


def test_parties_of_a_sum_are_listed_in_every_message():
    """The more sites, the longer the list; keys of all go to each."""
    model = MODELS["FedAvg"]().fit_federation(RemoteFederation(at_sites("masked", 3)))
    ways = at_sites("masked", 10)
    many = MODELS["FedAvg"]().fit_federation(RemoteFederation(ways))
    cost = estimate_cost(many, **FREE, n_sites=10)
    assert_allclose((cost.bytes_up, cost.bytes_down), many.wire_bytes_, rtol=0.05)
    few, more = (estimate_cost(model, **FREE, n_sites=s).client_bytes_down / s for s in (3, 30))
    assert_allclose(30 * (more - few), 27 * (94.5 + model.calls_) - 9 * 8)


def test_rows_of_private_clients_are_not_known():
    model = MODELS["FedAvg"]().fit_federation(RemoteFederation(at_sites("private")))
    with pytest.raises(ValueError, match="rows_per_client must be given where clients are priv"):
        estimate_cost(model, **{**FREE, "seconds_per_row": 1e-6})
    slow = {**FREE, "seconds_per_row": 1e-3, "rows_per_client": 20}
    cost = estimate_cost(model, **slow, n_sites=3)
    assert_allclose(cost.client_time, model.calls_ * 10 * 20 * 1e-3)  # introductions are free


def test_a_fit_that_noise_would_drown_costs_its_introduction():
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups)
    with pytest.warns(PrivacyWarning, match="nothing was released"):
        model = FedAvgRegressor().fit_federation(federation.private(0.1, 1e-2, bounds=BOUNDS))
    cost = estimate_cost(model, **FREE, n_sites=3)
    assert cost.calls == 1 and cost.clients_per_call == 30
    # The next fit, of clients that are not private, has costs of its own.
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert estimate_cost(model, **FREE).calls == model.calls_


def test_ledgers_in_series_add_up():
    """Masked sums of tasks that do not wait for each other travel one after the other."""
    for in_series, calls in ((True, 5), (False, 3)):
        ledger, lanes = Ledger(), [Ledger(in_series) for _ in range(2)]
        for lane, count in zip(lanes, (2, 3), strict=True):
            for _ in range(count):
                lane.book(up=1, clients=4)
        ledger.take_over(lanes)
        assert (ledger.calls, ledger.client_calls, ledger.up) == (calls, 4 * calls, 5)
        assert [lane.in_series for lane in lanes] == [in_series] * 2


@pytest.mark.parametrize(
    "value", [None, [1.5, "a"], {"a": np.arange(3.0), "b": np.zeros(2, bool)}]
)
def test_sizes_of_messages(value):
    assert size_of(value) == len(dumps(value))
