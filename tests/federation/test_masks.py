"""Masked sums: exact sums of which the server sees nothing else, lost parties, hostile servers."""

import sys
from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from private_clients import BOUNDS, grouped, moves, places_of, where
from scipy.sparse.csgraph import connected_components
from site_tables import Given, Wire
from sklearn.base import clone, is_classifier
from trials import examples, spread

from skcfl import (
    FedAvgClassifier,
    FedAvgRegressor,
    IFCARegressor,
    LocalModelsRegressor,
    OracleClustersRegressor,
    PartialPoolingClassifier,
    PartialPoolingRegressor,
)
from skcfl.calls.posteriors_asked import Posteriors, PosteriorSums
from skcfl.calls.releases import Moves, PosteriorMoments
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.host import SiteHost
from skcfl.federation.masked_sums import MaskedPlaces
from skcfl.federation.masks import (
    MOST_LARGE,
    NO_KEYS,
    Graph,
    MaskParty,
    decoded,
    encoded,
    graph_of,
    rooms_of,
    scale_of,
)
from skcfl.federation.private_sums import Releases
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import dumps, loads, number_of
from skcfl.federation.sites import Endpoint, PlaceLost, Refused
from skcfl.models import LinearModel

SCALE = scale_of(2.0**30)


class Party(Endpoint):
    """A place with a vector for each sum, which can be lost at a step."""

    def __init__(self, vectors, least=2):
        self.vectors, self.party = vectors, MaskParty(least)
        self.lost_at, self.sent = None, []

    def _step(self, name):
        if name == self.lost_at:
            raise PlaceLost(f"lost at {name}")

    def mask_key(self):
        self._step("mask_key")
        return self.party.introduction()

    def mask_agree(self, *arguments):
        self._step("mask_agree")
        self.party.agree(*arguments)

    def release(self, which, number, here, rooms):
        self._step("release")
        vector = self.party.masked(number, here, encoded(self.vectors[which], scale_of(*rooms)))
        self.sent.append(vector)
        return {"masked": vector}


def parties(n, length=20, n_sums=3, least=2, seed=0):
    values = np.random.default_rng(seed).standard_normal((n, n_sums, length)) * 100
    return values, [Party(own, least) for own in values]


def add_up(places, which, length=20):
    (total,), count, *_ = places.sum("release", (which,), [length])
    return total, count


# ------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("n, lost", [(2, 0), (3, 1), (40, 12)])
def test_sums_are_exact_without_parties_that_are_lost(n, lost):
    """They take one exchange, and one more after a loss."""
    values, some = parties(n, n_sums=4)
    places, there = MaskedPlaces(some, 2), np.ones(n, dtype=bool)
    assert_allclose(add_up(places, 0)[0], values[:, 0].sum(axis=0), atol=1e-5)
    away = np.random.default_rng(1).permutation(n)[:lost]
    for k in away:
        some[k].lost_at, there[k] = "release", False
    for number, most in ((0, 1 + (lost > 0)), (0, 1), (2, 2)):  # it is lost in the first of them
        (total,), count, n_asked, _ = places.sum("release", (number,), [20])
        assert count == n - lost and n_asked <= most
        assert_allclose(total, values[there, number].sum(axis=0), atol=1e-5)
    # A party that comes back has no more part: what masks it would use is known.
    for k in away:
        some[k].lost_at = None
    assert add_up(places, 3)[1] == n - lost


def test_masks_that_do_not_cancel_are_an_error():
    """A site that is replayed, or another one than the one that agreed on the keys."""
    _, some = parties(3)
    places = MaskedPlaces(some, 2)
    add_up(places, 0)
    masked = some[1].party.masked
    some[1].party.masked = lambda *about: (masked(*about), some[1].sent[0])[1]
    with pytest.raises(FederationError, match="masks of the places do not cancel"):
        add_up(places, 1)


@pytest.mark.parametrize("step", ["mask_key", "mask_agree"])
def test_parties_without_a_key_have_no_part(step):
    values, some = parties(5)
    some[2].lost_at = step
    total, count = add_up(MaskedPlaces(some, 2), 0)
    assert count == 4
    assert_allclose(total, values[[0, 1, 3, 4], 0].sum(axis=0), atol=1e-5)


def test_a_message_is_independent_of_its_vector():
    """The same messages are as likely with other vectors: uniform bits, no correlation."""
    values, some = parties(5, length=2000, n_sums=2)
    places = MaskedPlaces(some, 2)
    add_up(places, 0, 2000)
    message = some[1].sent[0]
    bits = np.unpackbits(message.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(bits.size)
    correlation = np.corrcoef(message.astype(float), values[1, 0])[0, 1]
    assert abs(correlation) < 6 / np.sqrt(2000)
    # No two messages share a mask, and the sum of some parties tells nothing: what it is off by is
    # uniform between -2^31 and 2^31.
    partial = sum(party.sent[0] for party in some[:4])
    off = decoded(partial, SCALE) - values[:4, 0].sum(axis=0)
    assert abs(np.median(np.abs(off)) - 2.0**30) < 6 * 2.0**30 / np.sqrt(2000)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
@examples(18)
def test_fixed_point_is_exact_to_its_grid(values):
    values = np.array(values)
    assert_allclose(decoded(encoded(values, SCALE), SCALE), values, atol=0.5 / SCALE)


@pytest.mark.parametrize("n", [2, 3, 24, 25, 26, 27, 60, 200])
def test_graphs(n):
    neighbours = Graph(n, 5).neighbours
    assert neighbours.shape == (n, min(n - 1, 24))
    for k, others in enumerate(neighbours):
        assert len(np.unique(others)) == len(others)
        assert k not in others
        assert all(k in neighbours[other] for other in others)


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 0.15))
@examples(14)
def test_components_are_those_of_the_graph(seed, share):
    """Of parties that are left some may be cut off: each knows how many it is summed with."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 80))
    graph, here = Graph(n, seed), rng.uniform(size=n) < share
    here[rng.integers(n)] = True
    edges = np.zeros((n, n), dtype=bool)
    edges[np.arange(n)[:, None], graph.neighbours] = True
    edges &= here[:, None] & here
    _, labels = connected_components(edges)
    for place in np.flatnonzero(here):
        wanted = np.count_nonzero((labels == labels[place]) & here)
        assert graph.component(place, here) == wanted


# --------------------------------------------------------------------------- hostile servers


NOTHING = np.zeros(3, np.uint64)


def ready(n=4, least=3):
    some = [MaskParty(least) for _ in range(n)]
    keys = np.array([party.public_key() for party in some])
    for k, party in enumerate(some):
        party.agree(k, keys)
    return some, keys


def listed(n, *here):
    return np.isin(np.arange(n), here)


def test_a_sum_over_two_is_refused():
    some, _ = ready()

    def refused(party, number, here, message):
        with pytest.raises(Refused, match=message):
            party.masked(number, here, NOTHING)

    for here in ((0, 1), (0,)):
        refused(some[0], 0, listed(4, *here), "3 is the least")
    refused(some[0], 0, listed(4, 1, 2, 3), "its own part")
    some[0].masked(0, listed(4, 0, 1, 2), NOTHING)
    for number in (0, -1, 1.5, True, "1"):
        refused(some[0], number, listed(4, 0, 1, 2), r"before|is none")
    # Sums with and without a party differ by it: it never comes back.
    refused(some[0], 1, np.ones(4, bool), "left out of one before")
    for here in (None, np.ones(3, bool), np.ones(4)):
        refused(some[1], 2, here, "not listed")
    with pytest.raises(PlaceLost, match="no keys"):  # it was started again meanwhile
        MaskParty(2).masked(0, np.ones(2, bool), NOTHING)


def test_a_party_that_is_cut_off_refuses():
    """All of its neighbours are said to be lost: its masks would be none."""
    some, keys = ready(80)
    here = np.ones(80, dtype=bool)
    here[graph_of(keys.tobytes()).neighbours[7]] = False
    assert np.count_nonzero(here) > 50
    with pytest.raises(Refused, match="over 1 places"):
        some[7].masked(0, here, NOTHING)
    other = int(np.flatnonzero(here & (np.arange(80) != 7))[0])
    some[other].masked(0, here, NOTHING)


def test_keys_that_are_false_are_refused():
    some, keys = ready()
    fresh = MaskParty(3)
    own = fresh.public_key()
    for party, wrong, message in (
        (fresh, keys, "different places"),  # not its key
        (fresh, np.array([own] * 3), "different places"),
        (fresh, np.array([own, keys[0]]), "2 places take part"),
        (some[0], keys, "agreed .* before"),
        (fresh, keys[:, :5], "32 bytes"),
        (fresh, keys.astype(int), "32 bytes"),
        (fresh, "keys", "32 bytes"),
    ):
        with pytest.raises(Refused, match=message):
            party.agree(0, wrong)


def test_parties_that_were_told_different_lists_share_no_mask():
    """A server that lists a party to some, and not to the others, gets random numbers."""
    values = np.arange(3, dtype=np.uint64)
    for lists, numbers in (
        ([range(6)] * 3 + [range(1, 6)] * 3, [0] * 6),
        # In a ring: each pair of neighbours lists each other, and each party lists three.
        ([(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)], [0] * 4),
        # The same list, and another number of the sum.
        ([range(3)] * 3, [0, 0, 1]),
    ):
        n = len(lists)
        asked = zip(ready(n)[0], numbers, lists, strict=True)
        sent = [party.masked(number, listed(n, *here), values) for party, number, here in asked]
        for some in (sent, sent[1:], sent[:3], sent[3:])[: None if n == 6 else 1]:
            off = sum(some) - len(some) * values
            assert np.abs(off.astype(np.int64)).min() > 2**40


@pytest.mark.parametrize("changed", [{"multiplier": 18.0}, {"rho": 0.4}, {}])
def test_parties_that_were_asked_different_things_share_no_mask(changed):
    """A server that asks the others for less noise would have a sum with less."""
    places = [InProcessFederation(*part, policy=masked_policy(50.0)) for part in thirds()]
    rows = [places_of(place)[0] for place in places]
    keys = np.array([row.mask_key()["key"] for row in rows])
    total = 0
    for k, row in enumerate(rows):
        row.mask_agree(k, keys)
        about = {"multiplier": 9.0, **moves(), **(changed if k == 2 else {})}
        asked = "moves", about, about.pop("multiplier"), 0, np.ones(3, bool)
        total = total + row.release(*asked)["masked"]
    room = Moves.room(Moves.blocks(rows[0]._model, moves()))[0]
    size = np.abs(decoded(total[:3], scale_of(room))).max()
    assert size < 1e3 if not changed else size > 1e6


class Numbers(Party):
    """A place that says where its numbers are too large."""

    def release(self, which, number, here, rooms):
        large = rooms_of([self.vectors[which]], rooms, self.party.n_parties)
        return {"large": large} if large.any() else super().release(which, number, here, rooms)


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1.0, 1e50])
def test_fixed_point_has_the_units_of_the_numbers(size):
    values = np.array([[31.0], [-3.0], [38.0]]) * size
    places = MaskedPlaces([Numbers(each[None]) for each in values], 2)
    total = places.sum("release", (0,), [1])
    if size > 1e-50:
        assert_allclose(total.values[0], values.sum(), rtol=1e-12)
    assert total.n_asked <= 3
    assert places.sum("release", (0,), [1]).n_asked == 1
    # Sums of the same that cancel are as exact as their terms.
    places.places[0].vectors = np.array([[-35.0 * size]])
    for _ in range(2):
        (found,), _, asked, _ = places.sum("release", (0,), [1])
    assert abs(found) < 1e-9 * size
    # Nothing is left: the parties say anew how large theirs are.
    assert asked == (3 if size > 1e-50 else 1)
    # What they needed once rounds no smaller sums.
    for place, value in zip(places.places, values, strict=True):
        place.vectors = value[None] * 1e-20
    total = places.sum("release", (0,), [1])
    assert_allclose(total.values[0], 1e-20 * values.sum(), rtol=1e-12, atol=1e-60)
    places.places[2].vectors = np.array([[np.inf]])
    with pytest.raises(FederationError, match="rescale X or y"):
        places.sum("release", (0,), [1])


# ------------------------------------------------------------------------------ federations


DATA = grouped()
NAMES = ["east", "north", "south"]


def thirds(data=DATA):
    return [where(data, data[2] % 3 == k) for k in range(3)]


def masked_policy(epsilon=np.inf, masked=3):
    """Clients with masks, and with noise where epsilon is finite."""
    return SitePolicy(privacy=ClientPrivacy(epsilon, bounds=BOUNDS, masked=masked, random_state=0))


def sites(cls=Wire, masked=3, epsilon=np.inf, data=None):
    """Four clients at each of three sites; the wire of the second one may be another."""
    policy, parts = masked_policy(epsilon, masked), thirds(DATA if data is None else data)
    rows = [Given(name, part, policy) for name, part in zip(NAMES, parts, strict=True)]
    return [cls(row) if row.name == "north" else Wire(row) for row in rows]


EXACTLY = [
    PartialPoolingRegressor(basis="linear", n_clusters=1, loss="gamma"),
    PartialPoolingRegressor(basis="linear", n_clusters=1),
    PartialPoolingRegressor(basis="linear", n_clusters=1, covariance="diag", prior=np.inf),
    PartialPoolingClassifier(basis="linear", n_clusters=1, covariance="diag"),
    FedAvgRegressor(alpha=0.02),
    FedAvgRegressor(loss="poisson", alpha=0.02),
    FedAvgClassifier(alpha=0.02),
]


@pytest.mark.parametrize(
    ("model", "sizes"),
    spread(product(EXACTLY, [(1.0, 0.0), (1e-6, 3e-6), (1e5, 1e7)]), 4),
    ids=lambda value: repr(value)[:60],
)
def test_masked_fits_are_plain_fits(model, sizes):
    """Whatever bounds are declared, or none: units are those of the rows."""
    X, y, ids = grouped(40)
    bounds = {"features": (-9, 4), "target": (-30, 20), "classes": [0, 1]}
    if is_classifier(model):
        y = (y > 0).astype(int)
    elif model.loss in ("poisson", "gamma"):
        y = np.floor(np.exp(y)) + (model.loss == "gamma")
    else:
        y = sizes[0] * y + sizes[1]
    X = X * [1e3, 1.0] + [0.0, 5.0]
    bounds = bounds if is_classifier(model) or sizes[1] == 0.0 else None
    masked = InProcessFederation(X, y, ids).masked(3, bounds=bounds)
    found = clone(model).set_params(random_state=0).fit_federation(masked)
    plain = clone(model).set_params(random_state=0).fit(X, y, groups=ids)
    compared = [(found.cluster_params_, plain.cluster_params_)]
    if hasattr(plain, "covariance_"):
        compared += [
            (found.covariance_, plain.covariance_),
            (found.adapt(X, y, groups=ids).coef_, plain.coef_),
        ]
        assert_allclose(found.dispersion_, plain.dispersion_, rtol=1e-5)
    for got, wanted in compared:
        assert_allclose(got, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    assert (found.epsilon_, found.delta_) == (np.inf, 0.0)


@pytest.mark.filterwarnings("ignore:No answer of site", "ignore:.* fewer clients than least")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_exact_sums_of_clusters_are_of_enough_clients(elsewhere):
    """The cluster of one client would be its model, whoever says who is in it."""
    X, y, ids = DATA
    y = np.where(ids == 4, X @ [-9.0, 9.0] + 20.0, y)
    data, names, absent = (X, y, ids), list(range(12)), [100, 101]
    if elsewhere:
        names = [f"{NAMES[i % 3]}/{i}" for i in names]
        federation, absent = RemoteFederation(sites(data=data)), ["east/100", "east/101"]
    else:
        federation = InProcessFederation(*data).masked(3, bounds=BOUNDS)
    odd = names[4]
    alone = LocalModelsRegressor(alpha=0.0).fit(X[ids == 4], y[ids == 4], groups=ids[ids == 4])
    few, of_one = "over 1 clients, 3 is the least", "a cluster has 1 clients .* at least 3"
    alike = {name: name == odd for name in names}
    for labels, message in (
        (alike, few),
        ({odd: 1}, few),
        ({name: int(k) for name, k in alike.items()} | dict.fromkeys(absent, 1), of_one),
    ):
        with pytest.raises(PrivacyError, match=message):
            OracleClustersRegressor(labels=labels).fit_federation(federation)
    several = OracleClustersRegressor(labels={name: k % 2 for k, name in enumerate(names)})
    for model in (several, *(IFCARegressor(2, random_state=seed) for seed in range(2))):
        model.fit_federation(federation)
        assert np.abs(model.cluster_coef_ - alone.coef_[0]).max(axis=1).min() > 0.5
    assert several.n_clusters_ == 2


def test_exact_posteriors_of_small_clusters_are_withheld():
    """They would have the matrix of second moments of the only client of a cluster."""
    X, y, ids = DATA
    odd = InProcessFederation(X, np.where(ids == 4, X @ [-9.0, 9.0] + 20.0, y), ids)
    releases = releases_of(odd.masked(3, bounds={**BOUNDS, "target": (-9, 40)}), 2)
    about = dict(theta=np.array([[0.3, 0.1, -2.0], [-3.0, 3.0, -0.5]]), root=np.full(3, 0.3))
    about |= dict(weights=np.full(2, 0.5), dispersion=0.01, scatters=True, sizes=None)
    for sizes in (None, np.zeros(2)):
        sums, _ = releases.ask(PosteriorMoments, False, **about | {"sizes": sizes})
        assert not sums["shifts"].any() and not sums["information"].any()
        assert_allclose(sums["counts"], [11.0, 1.0], atol=1e-6)
    releases.ask(PosteriorMoments, False, **about)
    sums, _ = releases.ask(PosteriorMoments, **about | {"sizes": sums["counts"]})
    for name in ("shifts", "information"):
        assert sums[name].any(axis=1).tolist() == [True, False]


def test_numbers_of_clients_are_believed_of_the_same_places_only():
    """A place that is lost after the clients were counted takes some of them with it."""
    (place,) = places_of(InProcessFederation(*DATA).masked(3, bounds=BOUNDS))
    every, fewer = np.ones(3, bool), np.array([True, False, True])
    about = {**moves(), "theta": np.zeros((2, 3))}
    counted = {**about, "sizes": np.array([9.0, 3.0])}
    for asked, here, moving in (
        (counted, every, [False, False]),  # nobody was counted
        (about, every, [False, False]),
        (counted, every, [True, True]),
        (counted, fewer, [False, False]),
        ({**about, "sizes": np.array([9.0, 2.0])}, every, [True, False]),
    ):
        assert place._of_enough(Moves, asked, here)["sizes"].tolist() == moving


def test_exact_sums_are_of_sums_only():
    masked = InProcessFederation(*DATA).masked(3, bounds=BOUNDS)
    (place,) = places_of(masked)
    calls = "objectives_gradients", "posteriors", "cluster_values", "hessians", "site"
    for call in (*calls, "split_sums", "leaf_sums", "level_modes"):  # sums of single rows
        with pytest.raises(Refused, match="sums over clients only"):
            place.exact(call, {}, (None,) * 4, 0, None, None)
    releases = releases_of(masked, 1)
    pool, prior = releases.pool(), (np.zeros((2, 3)), np.zeros(3), np.ones(2) / 2, 1.0)
    with pytest.raises(PrivacyError, match="asks for single answers"):
        pool.ask(Posteriors, *prior)
    with pytest.raises(PrivacyError, match="at most 1 models, got 2"):
        pool.ask(PosteriorSums, *prior)


def test_bounds_are_no_way_to_the_sum_of_one_place():
    """A server that bisects them is refused, and a sum beyond its bound takes a number."""
    (place,) = places_of(InProcessFederation(*DATA).masked(3, bounds=BOUNDS))
    numbers, low, high = iter(range(100)), 2.0**-200, 2.0**100

    def is_large(room):
        return "large" in place.exact_moments("target", None, next(numbers), None, [2.0**90, room])

    with pytest.raises(Refused, match="no powers of two"):
        is_large(3.0)
    with pytest.raises(Refused, match="in a row"):
        for _ in range(MOST_LARGE + 1):
            assert is_large(low)
    assert not is_large(high) and is_large(low)
    with pytest.raises(Refused, match="has answered the masked sum"):
        place.exact_moments("target", None, next(numbers) - 1, None, [high, high])


def test_steps_too_long_are_no_search_for_a_sum():
    """A line search of counts tries models whose sums are beyond any bound, and shorter ones."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(6), 40), rng.normal(size=(240, 3))
    data = X, rng.poisson(1000 * np.exp(np.clip(X.sum(axis=1), -4, 4))), groups
    masked = SitePolicy(privacy=ClientPrivacy(np.inf, bounds={}, masked=3))
    parts = [where(data, groups == k) for k in range(6)]
    places = FanOutFederation([InProcessFederation(*rows, policy=masked) for rows in parts])
    model = FedAvgRegressor(loss="poisson", standardize=False, alpha=1e-3)
    wanted = clone(model).fit(*data[:2], groups=groups).cluster_params_
    # Sums after those of a model too far away are not rounded by what these needed.
    assert_allclose(model.fit_federation(places).cluster_params_, wanted, rtol=1e-6)


def test_exact_sums_are_refused_where_noise_was_promised():
    unmasked = InProcessFederation(*DATA).private(4.0, bounds=BOUNDS)
    (place,) = places_of(unmasked.masked(3))
    for ask in (partial(place.exact_moments, "features"), partial(place.exact, "any", {})):
        with pytest.raises(Refused, match="have noise"):
            ask(None, 0, None, None)
    with pytest.raises(Refused, match="positive multiplier"):
        place.release("moves", moves(), 0.0, 0)
    (place,) = places_of(unmasked)
    with pytest.raises(Refused, match="not masked"):
        place.mask_key()


def releases_of(federation, n_releases):
    model, hello = LinearModel(alpha=0.0).bind(2), federation.hello("regressor")
    return Releases(federation, hello, model, n_releases, np.random.RandomState(0))


def in_two_parts(data=DATA, at=2):
    """The first clients in one place and the others in another one."""
    parts = where(data, data[2] < at), where(data, data[2] >= at)
    return FanOutFederation([InProcessFederation(*part) for part in parts])


def test_clients_of_a_process_count_as_parties():
    """One of two places of this process has too few clients by itself."""
    few, many = places_of(in_two_parts().masked(3, bounds=BOUNDS))
    with pytest.raises(PlaceLost, match="no keys"):
        few.release("moves", moves(), 0.0, 0)
    assert "masked" in many.release("moves", moves(), 0.0, 0, None, np.array([2.0**30] * 3))


def test_masks_leave_the_account_as_it_is():
    unmasked = InProcessFederation(*DATA).private(50.0, bounds=BOUNDS, random_state=0)
    both = FanOutFederation([InProcessFederation(*DATA)]).private(50.0, bounds=BOUNDS)
    model = FedAvgRegressor(random_state=0)
    for guarded in (unmasked, both):
        model.fit_federation(guarded.masked(8))
        for other in (guarded, guarded.masked(6)):
            with pytest.raises(PrivacyError, match="spent"):
                model.fit_federation(other)


def test_parties_add_their_share_of_the_noise():
    """The same release many times: its noise is what is published, and no less than promised."""
    n_releases, least = 160, 8
    guarded = InProcessFederation(*DATA).private(50.0, bounds=BOUNDS, random_state=0)
    releases = releases_of(guarded.masked(least), n_releases)
    found = [releases.ask(Moves, **moves()) for _ in range(n_releases)]
    noise = found[0][1]
    values = np.array(
        [np.concatenate([(sums[key] / noise[key]).ravel() for key in noise]) for sums, _ in found]
    )
    spread = np.sqrt(values.var(axis=0, ddof=1).mean())
    assert abs(spread - 1.0) < 6 / np.sqrt(2 * values.size)
    block = Moves.blocks(LinearModel(alpha=0.0).bind(2), moves())["moves"]
    promised = releases.multiplier * block.clip / np.sqrt(block.share)
    assert_allclose(noise["moves"], promised * np.sqrt(12 / least))


class LostWire(Wire):
    """A site that is lost after hello, rows, two of keys, and two releases."""

    def send(self, message):
        if len(self.sent) >= 6:
            raise OSError("it is gone")
        return super().send(message)


@pytest.mark.filterwarnings("ignore:No answer of site")
@pytest.mark.parametrize("epsilon", [np.inf, 1000.0])
def test_a_site_that_is_lost_costs_one_more_exchange(epsilon):
    """With noise also a release: the others have spent what they answered."""
    model = PartialPoolingRegressor(random_state=0)
    found = clone(model).fit_federation(RemoteFederation(sites(LostWire, 2, epsilon)))
    others = InProcessFederation(*where(DATA, DATA[2] % 3 != 1)).masked(2, bounds=BOUNDS)
    wanted, exact = model.fit_federation(others), epsilon == np.inf
    assert_allclose(found.cluster_params_, wanted.cluster_params_, atol=1e-5 if exact else 0.3)
    if not exact:
        assert found.n_iter_ == 4
        assert_allclose(found.epsilon_, epsilon, rtol=1e-6)


class RestartedWire(Wire):
    """A site that is started again after some messages: hello, rows, two of keys, and sums."""

    after = 6

    def send(self, message):
        if len(self.sent) == self.after:
            self.host = SiteHost(self.host.rows)
        return super().send(message)


@pytest.mark.filterwarnings("ignore:No answer of site")
@pytest.mark.parametrize(("after", "epsilon"), [(2, np.inf), (6, 1000.0)])
def test_a_site_that_is_started_again_is_lost(epsilon, after):
    """It has no keys any more; the others end the fit."""
    places = sites(RestartedWire, 2, epsilon)
    places[1].after = after
    model = FedAvgRegressor(random_state=0).fit_federation(RemoteFederation(places))
    names = [str(name) for name in model.missing_clients_]
    assert len(names) == 4 and all(name.startswith("north/") for name in names)
    assert places[1].failures == [f"site 'north': {NO_KEYS}"]


class LyingWire(Wire):
    """A site that answers sums by something else, from the second one on."""

    lie, n_sums = None, 0

    def send(self, message):
        reply = self.host.handle(message)
        status, value, note = loads(reply)
        if isinstance(value, dict) and "key" not in value:
            self.n_sums += 1
            value = self.lie if self.n_sums > 1 else value
        return lambda: dumps((status, value, note), number=number_of(reply))


def of(*names, **values):
    return {name: np.full(1, np.nan) for name in names} | values


LIES = {
    **{"number": 7, "None": None, "empty": {}, "floats": of("masked")},
    **{"sums": of("moves", "counts", "clipped"), "both": of("masked", "large")},
    # Bounds that are no larger would be asked for again and again.
    **{"small": of(large=np.full(2, 1)), "none": of(large=np.zeros(2, dtype=int))},
    "text": of(large="all"),
}


@pytest.mark.parametrize(
    ("lie", "privacy"),
    spread(product(LIES, [(2, np.inf), (2, 1000.0), (None, 1000.0)]), 5),
    ids=str,
)
def test_a_site_that_answers_something_else_is_lost(lie, privacy):
    wires, model = sites(LyingWire, *privacy), FedAvgRegressor(random_state=0)
    wires[1].lie = LIES[lie]
    with pytest.warns(UserWarning, match="'north': .* it has no more part in the fit"):
        model.fit_federation(RemoteFederation(wires))
    X, y, groups = where(DATA, DATA[2] % 3 != 1)
    wanted = FedAvgRegressor().fit(X, y, groups=groups)
    assert_allclose(model.cluster_coef_, wanted.cluster_coef_, atol=0.3)


def test_too_few_parties_are_an_error():
    few = InProcessFederation(*DATA).masked(20, bounds=BOUNDS)
    with pytest.raises(
        FederationError, match="12 parties .* answer a masked sum, and at least 20"
    ):
        PartialPoolingRegressor().fit_federation(few)
    _, some = parties(4, least=4)
    some[0].lost_at = "release"
    with pytest.raises(FederationError, match="3 parties .* answer .* at least 4"):
        add_up(MaskedPlaces(some, 4), 0)
    with pytest.raises(FederationError, match="2 parties .* answer .* at least 3"):
        MaskedPlaces(parties(2)[1], 3)


def test_bad_declarations():
    federation = InProcessFederation(*DATA)
    for least in (0, 1, 2.5, True, "all"):
        with pytest.raises(ValueError, match="masked must be an integer of at least 2"):
            federation.masked(least, bounds=BOUNDS)
    with pytest.raises(ValueError, match="bounds must be declared"):
        federation.masked(3, bounds="wide")
    with pytest.raises(ValueError, match=r"those of private\(\)"):
        federation.private(1.0, bounds=BOUNDS).masked(3, bounds=BOUNDS)
    # It would be without the masks, or have a budget of its own.
    for declared in (federation.masked(3), federation.private(1.0, bounds=BOUNDS)):
        for more in (declared, FanOutFederation([declared])):
            with pytest.raises(PrivacyError, match=r"order private\(\.\.\.\)\.masked\("):
                more.private(50.0, bounds=BOUNDS)
            with pytest.raises(PrivacyError, match=r"^released\(\) is refused: the clients"):
                more.released(50.0, bounds=BOUNDS)
    with pytest.raises(PrivacyError, match="their owners keep the account"):
        RemoteFederation(sites()).masked(3, bounds=BOUNDS)


def test_rounds_and_classes_need_bounds():
    """The error names what is missing, before anything is sent."""
    X, y, groups = DATA
    masked = InProcessFederation(X, y, groups).masked(3)
    with pytest.raises(PrivacyError, match="IFCARegressor.*bounds of features and target are mis"):
        IFCARegressor(2).fit_federation(masked)
    classes = InProcessFederation(X, y > 0, groups)
    model = PartialPoolingClassifier(1, basis="linear")
    with pytest.raises(ValueError, match="bounds must declare 'classes' for a classifier"):
        model.fit_federation(classes.masked(3))
    wanted = clone(model).fit_federation(classes)
    found = model.fit_federation(classes.masked(3, bounds={"classes": [False, True]}))
    assert_allclose(found.cluster_coef_, wanted.cluster_coef_, rtol=1e-5)


def test_masks_without_cryptography(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    # The clients of one process are added up where they are.
    FedAvgRegressor().fit_federation(InProcessFederation(*DATA).masked(3, bounds=BOUNDS))
    with pytest.raises(ImportError, match=r"skcfl\[privacy\]"):
        FedAvgRegressor().fit_federation(in_two_parts().masked(3, bounds=BOUNDS))
