"""Masked sums: exact sums of which the server sees nothing else, lost parties, hostile servers."""

import contextlib
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from skcfl import FedAvgRegressor, PartialPoolingRegressor
from skcfl.calls.releases import Moves
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, InProcessFederation, SitePolicy
from skcfl.federation.host import SiteHost, SiteRows
from skcfl.federation.masked_sums import MaskedPlaces
from skcfl.federation.masks import (
    KEY,
    MaskParty,
    decoded,
    encoded,
    joined_shares,
    neighbours_of,
    scale_of,
    split,
    stream,
    threshold_of,
    unmasked,
)
from skcfl.federation.private_sums import Releases
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.sites import Place, PlaceLost, Refused
from skcfl.federation.wire import WireTransport

SCALE = scale_of(2.0**40)
BOUNDS = {"features": (-2, 2), "target": (-2, 2)}


class Party(Place):
    """A place with a vector for each sum, which can be lost at a step."""

    def __init__(self, vectors, least=2):
        self.vectors, self.party = vectors, MaskParty(least)
        self.lost_at, self.sent = None, []

    def _step(self, name):
        if name == self.lost_at:
            raise PlaceLost(f"lost at {name}")

    def mask_key(self):
        self._step("mask_key")
        return self.party.public_key()

    def mask_agree(self, *arguments):
        self._step("mask_agree")
        return self.party.agree(*arguments)

    def mask_accept(self, shares):
        self.party.accept(shares)

    def release(self, number):
        self._step("release")
        vector, shares = self.party.masked(number, encoded(self.vectors[number], SCALE))
        self.sent.append(vector)
        return {"masked": vector, "shares": shares}

    def mask_reveal(self, *arguments):
        self._step("mask_reveal")
        return self.party.unmask(*arguments)


def parties(n, length=20, n_sums=3, least=2, seed=0):
    values = np.random.default_rng(seed).standard_normal((n, n_sums, length)) * 100
    return values, [Party(own, least) for own in values]


def add_up(places, number, length=20):
    (total,), count = places.sum((), number, [(length, 2.0**40)])
    return total, count


# ------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize("n", [2, 3, 7, 40])
def test_sums_are_exact(n):
    values, some = parties(n)
    places = MaskedPlaces(some, 2)
    for number in range(3):
        total, count = add_up(places, number)
        assert count == n
        assert_allclose(total, values[:, number].sum(axis=0), atol=1e-5)


@pytest.mark.parametrize("n, lost", [(3, 1), (10, 3), (40, 12)])
def test_sums_without_parties_that_are_lost(n, lost):
    values, some = parties(n, n_sums=4)
    places = MaskedPlaces(some, 2)
    there = np.ones(n, dtype=bool)
    add_up(places, 0)
    away = np.random.default_rng(1).permutation(n)[:lost]
    for k in away:
        some[k].lost_at, there[k] = "release", False
    for number in (1, 2):  # in the sum that they are lost in, and after it
        total, count = add_up(places, number)
        assert count == n - lost
        assert_allclose(total, values[there, number].sum(axis=0), atol=1e-5)
    # A party that comes back has no more part: what masks it would use is known.
    for k in away:
        some[k].lost_at = None
    assert add_up(places, 3)[1] == n - lost


def test_parties_that_are_lost_before_they_unmask_are_in_the_sum():
    values, some = parties(9)
    places = MaskedPlaces(some, 2)
    for k in (0, 4):
        some[k].lost_at = "mask_reveal"
    total, count = add_up(places, 0)
    assert count == 9
    assert_allclose(total, values[:, 0].sum(axis=0), atol=1e-5)
    for k in range(6):
        some[k].lost_at = "mask_reveal"
    with pytest.raises(FederationError, match="neighbours reveal their share"):
        add_up(places, 1)


def test_parties_without_a_key_have_no_part():
    values, some = parties(5)
    some[2].lost_at = "mask_key"
    total, count = add_up(MaskedPlaces(some, 2), 0)
    assert count == 4
    assert_allclose(total, np.delete(values[:, 0], 2, axis=0).sum(axis=0), atol=1e-5)
    some = parties(5)[1]
    some[2].lost_at = "mask_agree"
    with pytest.raises(FederationError, match="while keys"):
        MaskedPlaces(some, 2)


def test_fewer_than_the_least_are_an_error():
    _, some = parties(4, least=4)
    places = MaskedPlaces(some, 4)
    some[0].lost_at = "release"
    with pytest.raises(FederationError, match="3 places answer .* at least 4"):
        add_up(places, 0)
    with pytest.raises(FederationError, match="2 places answer .* at least 3"):
        MaskedPlaces(parties(2)[1], 3)


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
    # No two messages share a mask, and the sum of some parties tells nothing.
    partial = sum(party.sent[0] for party in some[:4])
    off = decoded(partial, SCALE) - values[:4, 0].sum(axis=0)
    assert np.median(np.abs(off)) > 1e9


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_fixed_point_is_exact_to_its_grid(values):
    values = np.array(values)
    assert_allclose(decoded(encoded(values, SCALE), SCALE), values, atol=0.5 / SCALE)


@given(st.binary(min_size=KEY, max_size=KEY), st.integers(1, 8), st.integers(0, 6))
@settings(max_examples=30, deadline=None)
def test_shares_reveal_a_secret_from_the_threshold_on(secret, threshold, more):
    places = np.arange(threshold + more) * 3
    shares = dict(zip(places.tolist(), split(secret, places, threshold), strict=True))
    some = dict(list(shares.items())[more:])
    assert joined_shares(some) == secret
    if threshold > 1:
        few = dict(list(shares.items())[: threshold - 1])
        with contextlib.suppress(ValueError):  # a number that is no key
            assert joined_shares(few) != secret


def test_no_party_is_unmasked_twice():
    """Two thresholds are more than all holders: not both secrets of a party can be revealed."""
    for count in range(1, 60):
        assert 2 * threshold_of(count) > count + 1


def test_streams_and_graphs():
    assert_array_equal(stream(bytes(32), 4), stream(bytes(32), 4))
    assert (stream(bytes(32), 4) != stream(bytes([1] * 32), 4)).all()
    graph = neighbours_of(200, 5)
    assert all(len(others) == 24 for others in graph)
    assert all(k in graph[other] for k, others in enumerate(graph) for other in others)
    assert all(k not in others for k, others in enumerate(graph))


# --------------------------------------------------------------------------- hostile servers


def ready(n=4, least=3):
    some = [MaskParty(least) for _ in range(n)]
    keys = np.array([party.public_key() for party in some])
    graph = neighbours_of(n, 0)
    sealed = [party.agree(k, keys, 0) for k, party in enumerate(some)]
    for k, party in enumerate(some):
        own = [sealed[o][np.searchsorted(graph[o], k)] for o in graph[k]]
        party.accept(np.array(own))
    return some, keys, graph, sealed


def routed(sealed, graph, k):
    return np.array([sealed[o][np.searchsorted(graph[o], k)] for o in graph[k]])


def test_a_sum_over_two_is_refused():
    some, _, graph, _ = ready()
    sent = [party.masked(0, np.zeros(3, np.uint64)) for party in some]
    shares = routed([own for _, own in sent], graph, 0)
    for here in ([1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]):
        with pytest.raises(Refused, match="3 is the least"):
            some[0].unmask(0, np.array(here, bool), shares)
    with pytest.raises(Refused, match="its own part"):
        some[0].unmask(0, np.array([0, 1, 1, 1], bool), shares)
    some[0].unmask(0, np.array([1, 1, 1, 0], bool), shares)
    # Once: another set of parties would give a difference of one.
    with pytest.raises(Refused, match="once"):
        some[0].unmask(0, np.ones(4, bool), shares)
    with pytest.raises(Refused, match="answered the masked sum 0 before"):
        some[0].masked(0, np.zeros(3, np.uint64))
    # A party with a key that was revealed never comes back.
    some[0].masked(1, np.zeros(3, np.uint64))
    with pytest.raises(Refused, match="lost before"):
        some[0].unmask(1, np.ones(4, bool), shares)


def test_keys_and_shares_that_are_false_are_refused():
    some, keys, graph, sealed = ready()
    fresh = MaskParty(3)
    with pytest.raises(Refused, match="different places"):
        fresh.agree(0, keys, 0)  # not its key
    twice = np.array([fresh.public_key()] * 3)
    with pytest.raises(Refused, match="different places"):
        fresh.agree(0, twice, 0)
    with pytest.raises(Refused, match="2 places take part"):
        fresh.agree(0, np.array([fresh.public_key(), keys[0]]), 0)
    with pytest.raises(Refused, match="agreed .* before"):
        some[0].agree(0, keys, 0)
    changed = routed(sealed, graph, 1).copy()
    changed[0, 0] ^= 1
    with pytest.raises(Refused, match="changed on its way"):
        some[1].accept(changed)
    with pytest.raises(Refused, match="one for each neighbour"):
        some[1].accept(changed[:1])
    with pytest.raises(Refused, match="no shares"):
        MaskParty(2).masked(0, np.zeros(2, np.uint64))


def test_a_server_that_takes_both_secrets_of_a_party_fails():
    """It says to some parties that one was lost, and to the others that it was not."""
    some, keys, graph, _ = ready(n=6, least=3)
    sent = [party.masked(0, np.arange(3, dtype=np.uint64)) for party in some]
    sealed = [own for _, own in sent]
    revealed = {}
    for k, party in enumerate(some[1:], start=1):
        here = np.ones(6, dtype=bool)
        here[0] = k > 2
        revealed[k] = party.unmask(0, here, routed(sealed, graph, k))
    with pytest.raises(ValueError, match=r"do not belong together|are needed"):
        vectors = {k: vector for k, (vector, _) in enumerate(sent)}
        unmasked(vectors, revealed, graph, keys, np.zeros(6, bool), 0)


# ------------------------------------------------------------------------------ federations


def grouped(n_clients=12, n_rows=10, seed=0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(n_clients), n_rows)
    theta = np.array([1.0, -0.5]) + 0.3 * rng.standard_normal((n_clients, 2))
    X = rng.standard_normal((len(ids), 2))
    return X, (X * theta[ids]).sum(axis=1) + 0.3 * rng.standard_normal(len(ids)), ids


DATA = grouped()


class Table(SiteRows):
    """Four clients at each of three sites, with masks and without noise."""

    policy = SitePolicy(privacy=ClientPrivacy(np.inf, bounds=BOUNDS, masked=3))

    def load(self):
        some = DATA[2] % 3 == ["east", "north", "south"].index(self.name)
        return tuple(values[some] for values in DATA)


class Wire(WireTransport):
    """Messages of this process, as bytes."""

    rows = Table

    def __init__(self, name):
        super().__init__(name)
        self.host, self.seen = SiteHost(self.rows(name)), []

    def send(self, message):
        reply = self.host.handle(message)
        self.seen.append(reply)
        return lambda: reply


@pytest.mark.parametrize("cls", [PartialPoolingRegressor, FedAvgRegressor])
def test_masked_fits_are_those_of_exact_sums(cls):
    whole = InProcessFederation(*DATA).masked(3, bounds=BOUNDS)
    model = cls(random_state=0).fit_federation(whole)
    sites = RemoteFederation([Wire(name) for name in ("east", "north", "south")])
    other = cls(random_state=0).fit_federation(sites)
    assert_allclose(other.cluster_params_, model.cluster_params_, atol=1e-5)
    assert model.epsilon_ == np.inf
    assert model.delta_ == 0.0
    plain = cls().fit(*DATA[:2], groups=DATA[2])
    # The clients count alike in rounds, and by their rows in the fit of all rows.
    atol = 0.05 if cls is PartialPoolingRegressor else 0.1
    assert_allclose(model.cluster_coef_, plain.cluster_coef_, atol=atol)
    adapted = model.adapt(*DATA[:2], groups=DATA[2])
    assert_allclose(
        adapted.predict(DATA[0], groups=DATA[2]), plain.predict(DATA[0], groups=DATA[2]), atol=0.3
    )
    # Masked fits may be repeated: no budget is spent.
    again = cls(random_state=0).fit_federation(whole)
    assert_allclose(again.cluster_params_, model.cluster_params_, atol=1e-5)


def test_noise_is_inside_the_masks():
    data = grouped(60)
    guarded = InProcessFederation(*data).private(50.0, bounds=BOUNDS, random_state=0).masked(50)
    model = PartialPoolingRegressor(random_state=0).fit_federation(guarded)
    assert_allclose(model.epsilon_, 50.0, rtol=1e-6)
    alone = InProcessFederation(*data).private(50.0, bounds=BOUNDS, random_state=0)
    other = PartialPoolingRegressor(random_state=0).fit_federation(alone)
    # Sixty parties add the noise of fifty each.
    ratio = model.releases_["noise"] / other.releases_["noise"]
    assert_allclose(ratio, np.sqrt(60 / 50))
    assert_allclose(model.cluster_coef_, other.cluster_coef_, atol=0.15)
    with pytest.raises(PrivacyError, match="spent"):
        FedAvgRegressor().fit_federation(guarded)


def test_parties_add_their_share_of_the_noise():
    """The same release many times: its noise is what is published, and no less than promised."""
    n_releases, least = 25, 8
    guarded = InProcessFederation(*DATA).private(50.0, bounds=BOUNDS, random_state=0)
    guarded = guarded.masked(least)
    model, hello = _model_and_hello(guarded)
    releases = Releases(guarded, hello, model, n_releases, np.random.RandomState(0))
    theta = np.zeros((1, 3))
    how = dict(theta=theta, unit=1.0, rho=0.3, step_size=0.1, steps=1, draw=0, known=None)
    found = [releases.ask(Moves, **how) for _ in range(n_releases)]
    noise = found[0][1]
    values = np.array(
        [np.concatenate([(sums[key] / noise[key]).ravel() for key in noise]) for sums, _ in found]
    )
    spread = np.sqrt(values.var(axis=0, ddof=1).mean())
    assert abs(spread - 1.0) < 6 / np.sqrt(2 * values.size)
    block = Moves.blocks(model, how)["moves"]
    promised = releases.multiplier * block.clip / np.sqrt(block.share)
    assert_allclose(noise["moves"], promised * np.sqrt(12 / least))


def test_too_few_parties_are_an_error():
    few = InProcessFederation(*DATA).masked(20, bounds=BOUNDS)
    with pytest.raises(FederationError, match="12 places answer a masked sum, and at least 20"):
        PartialPoolingRegressor().fit_federation(few)


def test_bad_declarations():
    federation = InProcessFederation(*DATA)
    for least in (0, 1, 2.5, True, "all"):
        with pytest.raises(ValueError, match="masked must be an integer of at least 2"):
            federation.masked(least, bounds=BOUNDS)
    with pytest.raises(ValueError, match="bounds must be declared"):
        federation.masked(3)
    with pytest.raises(ValueError, match=r"those of private\(\)"):
        federation.private(1.0, bounds=BOUNDS).masked(3, bounds=BOUNDS)
    with pytest.raises(PrivacyError, match="their owners keep the account"):
        RemoteFederation([Wire("east")]).masked(3, bounds=BOUNDS)


def test_exact_sums_are_refused_where_noise_was_promised():
    guarded = InProcessFederation(*DATA).private(4.0, bounds=BOUNDS).masked(3)
    places = guarded.rows(*_model_and_hello(guarded))
    with pytest.raises(Refused, match="positive multiplier"):
        places[0].release("moves", _arguments(places[0]), 0.0, 0)
    unmasked_place = InProcessFederation(*DATA).private(4.0, bounds=BOUNDS)
    (place,) = unmasked_place.rows(*_model_and_hello(unmasked_place))
    with pytest.raises(Refused, match="not masked"):
        place.mask_key()


def _model_and_hello(federation):
    from skcfl.models import LinearModel

    return LinearModel(alpha=0.0).bind(2), federation.hello("regressor")


def _arguments(place):
    return dict(
        theta=np.zeros((1, 3)), unit=1.0, rho=0.3, step_size=0.1, steps=1, draw=0, known=None
    )


def test_masks_without_cryptography(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    federation = InProcessFederation(*DATA).masked(3, bounds=BOUNDS)
    with pytest.raises(ImportError, match=r"skcfl\[privacy\]"):
        PartialPoolingRegressor().fit_federation(federation)
