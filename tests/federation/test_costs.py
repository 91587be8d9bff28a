"""Costs of fits on other networks: sums of what a call takes, and what the ledger counts."""

import numpy as np
import pytest
from cases import DATA, make
from fits_alone import without_reports
from numpy.testing import assert_allclose
from pickled_hosts import PickledHost, named, parts_of
from private_clients import where
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
    PartialPoolingRegressor,
    Training,
)
from skcfl.calls import CALLS
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import PrivacyWarning
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy, costs, estimate_cost
from skcfl.federation.ledger import Ledger
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import dumps, loads, size_of
from skcfl.federation.transport import SEVERAL
from skcfl.models import LinearModel, SklearnModel

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

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


SLOW = {"latency": 0.1, "uplink": 1e6, "downlink": 1e6, "seconds_per_row": 1e-3}


def test_sites_share_a_link_and_a_processor(model):
    single, three = estimate_cost(model, **SLOW), estimate_cost(model, **SLOW, n_sites=3)
    assert three.latency_time == single.latency_time
    for cost in (single, three):
        assert {type(value) for value in vars(cost).values()} == {float, int}
    assert single.transfer_time < three.transfer_time < 3 * single.transfer_time
    assert_allclose(three.client_time, 3 * single.client_time)
    client_bytes = three.client_bytes_up + three.client_bytes_down
    assert_allclose(24 * client_bytes * 1e-6, three.transfer_time)


@pytest.mark.parametrize("name", ["IFCARegressor", "GTVRegressor", "PartialPoolingRegressor"])
def test_what_is_for_all_clients_of_a_site_travels_once(name):
    """With one client a site nothing is shared; with one site it is what the site has seen."""
    site_bytes, slow = np.zeros(2), SLOW | {"downlink": 2e6}
    with pytest.MonkeyPatch.context() as patch:
        seen = spied(patch)
        without_reports(patch)
        model = make(name).fit(DATA.X, DATA.y, groups=DATA.groups)
    for call, arguments, answers in seen:
        for way, values in enumerate((answers, CALLS[call].packed(arguments))):
            site_bytes[way] += sum(getattr(value, "nbytes", 0) for value in values.values())
    n, d = 9, DATA.X.shape[1]
    assert estimate_cost(model, **slow, n_sites=n) == estimate_cost(model, **slow)
    one, *_, last = by_sites = [estimate_cost(model, **slow, n_sites=s) for s in (1, 2, 4, 9)]
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
    assert (np.diff([cost.bytes_down for cost in by_sites]) >= -1e-6).all()
    assert (np.diff([cost.wall_time for cost in by_sites]) < 0).all()


@pytest.mark.parametrize(
    "model",
    [
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
    rows = data.X, data.y, data.groups
    sites = [Wire(Given(name, where(rows, m))) for name, m in (("a", first), ("b", ~first))]
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
    small, large = estimate_cost(model, **SLOW), estimate_cost(model, **SLOW, n_clients=900)
    assert_allclose(large.wall_time, small.wall_time)
    assert_allclose(large.bytes_up, 100 * small.bytes_up)
    some = estimate_cost(model, **SLOW, n_clients=900, participants=90)
    assert_allclose(some.wall_time, small.wall_time)
    assert_allclose(some.bytes_up, 0.1 * large.bytes_up)
    assert_allclose(some.client_bytes_up, 0.1 * large.client_bytes_up)
    rows = estimate_cost(model, **SLOW, rows_per_client=24)
    assert_allclose(rows.client_time, 2 * small.client_time)


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


def test_fits_that_are_not_counted():
    model = FedAvg(SklearnModel(DecisionTreeRegressor(max_depth=2)))
    with pytest.raises(NotFittedError):
        estimate_cost(model, **FREE)
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    with pytest.raises(ValueError, match="what a SklearnModel sends, .* is not counted"):
        estimate_cost(model, **FREE)


# ------------------------------------------------------------------------- private and masked fits


MANY = make_clustered_regression(30, 3, 8, n_samples=20, random_state=0)
IDS = np.unique(MANY.groups)
BOUNDS = {"features": (-4.0, 4.0), "target": (-20.0, 20.0)}
#: Epsilon and masks of the clients.
TERMS = {"masked": (np.inf, 3), "private": (200.0, None), "both": (200.0, 3)}
MODELS = {
    "FedAvg": lambda: FedAvgRegressor(random_state=0),
    "IFCA": lambda: IFCARegressor(n_clusters=3, random_state=0),
    "PartialPooling": lambda: PartialPoolingRegressor(basis="linear", random_state=0),
}


def at_sites(kind, n_sites=3):
    epsilon, masked = TERMS[kind]
    policy = SitePolicy(privacy=ClientPrivacy(epsilon, 1e-2, bounds=BOUNDS, masked=masked))
    rows = MANY.X, MANY.y, MANY.groups
    parts = [where(rows, np.isin(MANY.groups, IDS[k::n_sites])) for k in range(n_sites)]
    return [Wire(Given(str(k), part, policy)) for k, part in enumerate(parts)]


@pytest.mark.filterwarnings("ignore:.* fewer clients than least")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("FedAvg", "both"),
        ("IFCA", "masked"),
        ("IFCA", "private"),
        ("PartialPooling", "masked"),
        ("PartialPooling", "both"),
    ],
)
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
    federation = InProcessFederation(MANY.X, MANY.y, MANY.groups)
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
    federation = InProcessFederation(MANY.X, MANY.y, MANY.groups)
    with pytest.warns(PrivacyWarning, match="nothing was released"):
        model = FedAvgRegressor().fit_federation(federation.private(0.1, 1e-2, bounds=BOUNDS))
    cost = estimate_cost(model, **FREE, n_sites=3)
    assert cost.calls == 1 and cost.clients_per_call == 30
    # The next fit, of clients that are not private, has costs of its own.
    model.fit(MANY.X, MANY.y, groups=MANY.groups)
    assert estimate_cost(model, **FREE).calls == model.calls_


@pytest.mark.parametrize(
    "value", [None, [1.5, "a"], {"a": np.arange(3.0), "b": np.zeros(2, bool)}]
)
def test_sizes_of_messages(value):
    assert size_of(value) == len(dumps(value))


# ----------------------------------------------------------------------------------------- ledgers


def test_counts_are_plain_integers():
    """They end up in attributes and pickles: no numpy scalars, and no overflow."""
    ledger = Ledger()
    ledger.book(up=np.int32(2**31 - 1), down=np.float64(3.0))
    ledger.book(up=np.int32(2**31 - 1))
    assert (ledger.up, ledger.down) == (2**32 - 2, 3)
    assert type(ledger.up) is type(ledger.down) is int


@pytest.mark.parametrize("in_series", [False, True])
def test_what_travels_together_counts_as_the_longest_series(in_series):
    """Masked sums of tasks that do not wait for each other travel one after the other."""
    total, others = Ledger(), [Ledger(in_series) for _ in range(3)]
    total.book(up=1, clients=4)
    for k, ledger in enumerate(others):
        for _ in range(2 * k):
            ledger.book(up=3, down=5, clients=4 - k, shared_bytes=(8, 0), own_bytes=(0, 16))
    total.take_over(others)
    assert (total.up, total.down) == (1 + 6 * 3, 6 * 5)
    assert (total.calls, total.client_calls) == ((7, 18) if in_series else (5, 12))
    assert (total.shared_bytes, total.own_bytes) == ((48, 0), (0, 96))
    for ledger in others:
        # All but the time of the last mark.
        assert {**vars(ledger), "_mark": 0} == {**vars(Ledger(in_series)), "_mark": 0}
        assert ledger.since_mark() == (0, 0)


def test_a_round_counts_what_has_travelled():
    ledger, travelled = Ledger(), [(0, 0)]
    ledger.wire = lambda: travelled[-1]
    ledger.close_round()
    ledger.book(up=3, down=4)
    ledger.book(up=1)
    travelled.append((100, 70))
    columns = ledger.close_round()
    assert columns.pop("seconds") >= 0.0
    assert tuple(columns) == ("floats_up", "floats_down", "calls", "bytes_up", "bytes_down")
    assert tuple(columns.values()) == (4, 4, 2, 100, 70)
    assert ledger.wire_bytes == (100, 70) and ledger.since_mark() == (0, 0)
    # The exchanges of others that asked at the same time travel by the same wire.
    other = Ledger()
    other.wire = ledger.wire
    ledger.take_over([other])
    assert other.wire_bytes == (100, 70) and Ledger().wire_bytes == (0, 0)
    assert other.close_round()["bytes_up"] == 0
