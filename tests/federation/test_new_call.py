"""A call that is new is one class: all else follows from it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtri

from skcfl.calls import CALLS, Call
from skcfl.calls.answer_bounds import CLIENTS
from skcfl.calls.curvatures import Hessians, Prox, Solve
from skcfl.calls.first_order import LocalUpdate, Objectives
from skcfl.clients.draws import mixed
from skcfl.exceptions import FederationError
from skcfl.federation import FanOutFederation, Faults, InProcessFederation, SitePolicy
from skcfl.federation.faults import FaultySite
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel

N = 9
RNG = np.random.RandomState(0)
GROUPS = np.repeat(np.arange(N), 5)
X = RNG.standard_normal((len(GROUPS), 2))
Y = X[:, 0] + GROUPS
LABELS = np.arange(N) % 3
THETA = np.zeros((3, 3))


@pytest.fixture
def noisy_sums():
    class NoisySums(Call):
        """Sums by cluster of the clients' mean targets, clipped, each with its share of noise."""

        down = {"theta": "K p", "labels": "n", "most": "", "noise": "", "draw": ""}
        defaults = {"noise": 0.0}
        always_draws = True
        up = {"sums": "K", "clients": "K"}
        whole = False
        bounds = {"clients": CLIENTS}

        @staticmethod
        def kernel(clients, block, slots, theta, labels, most, noise, draw):
            own = np.clip(np.einsum("cqn,cn->c", block.y, block.weights), -most, most)
            seeds = mixed(*draw, clients.places[slots])
            own += noise * ndtri((seeds.astype(float) + 0.5) * 2.0**-64)
            K = len(theta)
            return np.bincount(labels, own, K), np.bincount(labels, minlength=K)

    yield NoisySums
    del CALLS[NoisySums.name]


def open_pool(**options):
    federation = InProcessFederation(X, Y, GROUPS, **options)
    return federation.open(LinearModel(standardize=False).bind(2), random_state=3)


def test_it_is_answered_wherever_clients_are(noisy_sums):
    means = np.clip([Y[GROUPS == i].mean() for i in range(N)], -4.0, 4.0)
    pool = open_pool()
    sums, clients = pool.ask(noisy_sums, THETA, LABELS, 4.0)
    assert_allclose(sums, np.bincount(LABELS, means), rtol=1e-12)
    assert clients.tolist() == [3, 3, 3]
    assert pool.ledger.calls == 1 + open_pool().ledger.calls
    places = [GROUPS % 2 == k for k in (0, 1)]
    parts = [InProcessFederation(X[here], Y[here], GROUPS[here]) for here in places]
    apart = FanOutFederation(parts).open(LinearModel(standardize=False).bind(2), random_state=3)
    noisy = [
        made.ask(noisy_sums, THETA, LABELS, 4.0, noise=0.5)[0] for made in (open_pool(), apart)
    ]
    assert_allclose(*noisy, rtol=1e-12)
    assert np.abs(noisy[0] - sums).min() > 1e-3
    some = np.array([7, 0, 3])
    part = pool.subset(some).ask(noisy_sums, THETA, LABELS[some], 4.0)[0]
    assert_allclose(part, np.bincount(LABELS[some], means[some], 3), rtol=1e-12)
    train, held = open_pool().hold_out(0.4, 0)
    both = [part.ask(noisy_sums, THETA, LABELS, 100.0)[0] for part in (train, held)]
    whole = np.bincount(LABELS, [Y[GROUPS == i].mean() for i in range(N)])
    assert_allclose(0.6 * both[0] + 0.4 * both[1], whole)
    # The silent are in no sum.
    pool = open_pool(faults=Faults(dead=[1, 4]))
    assert pool.ask(noisy_sums, THETA, LABELS, 4.0)[1].tolist() == [3, 1, 3]


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_no_sum_is_over_fewer_than_it_demands(noisy_sums, share, monkeypatch):
    """The silent are not asked again where they are too few, nor is a small pool."""
    noisy_sums.least_clients, noisy_sums.whole, sums, answer = 2, True, [], FaultySite.answer

    def spy(site, call, arguments):
        if call == noisy_sums.name:
            sums.extend(np.unique(arguments["labels"], return_counts=True)[1])
        return answer(site, call, arguments)

    monkeypatch.setattr(FaultySite, "answer", spy)
    pool = open_pool(faults=Faults(dead=[] if share else [4], dropout=share, random_state=0))
    labels = np.zeros(N, dtype=int)
    for _ in range(5):
        clients = pool.ask(noisy_sums, THETA, labels, 4.0)[1]
        assert clients.sum() == (N if pool.answered is None else pool.answered.sum())
    assert len(sums) >= 5 and min(sums) >= 2
    with pytest.raises(FederationError, match="at least least_clients=2"):
        pool.subset([3]).ask(noisy_sums, THETA, labels[:1], 4.0)
    with pytest.raises(FederationError, match="at least least_clients=2"):
        pool.ask(noisy_sums, THETA, np.minimum(np.arange(N), 1), 4.0)


def test_a_policy_has_its_say(noisy_sums):
    pool = open_pool(policy=SitePolicy(min_clients=3))
    assert pool.ask(noisy_sums, THETA, LABELS, 4.0)[1].tolist() == [3, 3, 3]
    with pytest.raises(Refused, match="fewer than min_clients=3"):
        pool.ask(noisy_sums, THETA, np.minimum(np.arange(N), 2), 4.0)
    pool = open_pool(policy=SitePolicy(calls=set(CALLS) - {"noisy_sums"}))
    with pytest.raises(Refused, match="does not answer noisy_sums"):
        pool.ask(noisy_sums, THETA, LABELS, 4.0)


def test_wrong_arguments_are_named(noisy_sums):
    with pytest.raises(TypeError, match="labels"):
        open_pool().ask(noisy_sums, THETA)
    with pytest.raises(TypeError, match="most_of_all"):
        open_pool().ask(noisy_sums, THETA, LABELS, 4.0, most_of_all=1.0)


def test_exact_calls_keep_the_digits_of_their_arguments():
    """Minima are in double precision, also of models that are trained in single precision."""
    federation = InProcessFederation(X.astype(np.float32), Y.astype(np.float32), GROUPS)
    pool = federation.open(LinearModel(standardize=False).bind(2, dtype=np.float32), 0)
    assert pool.dtype == np.float32
    v = RNG.standard_normal((N, 3))
    assert_allclose(pool.ask(Prox, v, 1e14), v, rtol=1e-11)
    theta, labels = pool.model.init_params(3, 0).astype(float) + 1e-9, LABELS
    sent = Hessians.asked(pool, theta, labels)
    assert sent["theta"].dtype == float and np.array_equal(sent["theta"], theta)


def test_training_that_is_not_kept_is_no_last_answer():
    """Clients go on from what the server takes for their last answers."""
    pool = open_pool()
    best, _ = pool.ask(Solve)
    values = pool.ask(Objectives, best)
    pool.ask(LocalUpdate, best + 1.0, 2, 0.1)
    pool.ledger.since_mark()
    down = pool.ledger.down
    assert_allclose(pool.ask(Objectives, best, last=True), values, rtol=1e-12)
    assert pool.ledger.down == down  # they have these models
