"""Tasks that do not wait for each other: in lockstep, with a result that is theirs alone."""

import copy
import signal
import threading
import time
from functools import partial

import numpy as np
import pytest
from cases import DATA
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from trials import some

import skcfl
from skcfl.calls.first_order import LocalUpdate, Losses, Objectives
from skcfl.exceptions import FederationError
from skcfl.federation import InProcessFederation
from skcfl.federation.lanes import asked_at_once, lanes_of, together
from skcfl.federation.ledger import Ledger
from skcfl.federation.pool import ClientPool
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.transport import Transport
from skcfl.federation.turns import Meter, check_turn, in_turns, pass_turn, post
from skcfl.models import LinearModel


def remote(n=2):
    hosts = [PickledHost([part]) for part in named(parts_of(DATA, n))]
    return RemoteFederation(hosts), hosts


def pools():
    """Pools of the same clients: here, and elsewhere."""
    model = LinearModel(alpha=0.1, standardize=False).bind(DATA.X.shape[1])
    here = InProcessFederation(DATA.X, DATA.y, DATA.groups).open(model, 0)
    return here, remote()[0].open(model, 0)


def test_turns_go_round_in_order():
    """Tasks inside of a task take the place of theirs."""
    seen = []

    def task(name, steps):
        for k in range(steps):
            seen.append(f"{name}{k}")
            pass_turn()
        return name

    def outer():
        return [*in_turns([partial(task, "b", 1), partial(task, "c", 2)]), task("d", 1)]

    assert in_turns([partial(task, "a", 2), outer, partial(task, "e", 3)]) == [
        "a",
        ["b", "c", "d"],
        "e",
    ]
    assert seen == ["a0", "b0", "c0", "e0", "a1", "c1", "e1", "d0", "e2"]


def test_a_message_that_is_not_sent_is_an_error_of_each_of_its_tasks():
    class Aborted(Transport):
        def start(self, request):
            raise FederationError("the job was aborted")

    transports, seen = [Aborted(), Aborted()], []

    def task():
        waiting = [post(transport, ()) for transport in transports]
        pass_turn()
        for wait in waiting:
            with pytest.raises(FederationError, match="the job was aborted"):
                wait()
            seen.append(wait)

    in_turns([task, task])
    assert len(seen) == 4


def test_the_first_error_ends_all_before_their_next_message():
    seen = []

    def fails():
        pass_turn()
        raise ValueError("no rows")

    def goes_on():
        for k in range(5):
            check_turn()
            seen.append(k)
            pass_turn()

    with pytest.raises(ValueError, match="no rows"):
        in_turns([fails, goes_on, lambda: in_turns([goes_on])])
    assert seen == [0, 0]
    assert not [t for t in threading.enumerate() if t.name == "skcfl lane"]


class Counted(Transport):
    """Doubles numbers, and counts messages."""

    def __init__(self):
        self.messages = []

    def start(self, request):
        return self.start_several([request])

    def start_several(self, requests):
        self.messages.append(requests)
        self._count(down=12 * len(requests))

        def wait():
            self._count(up=24 * len(requests))
            wrong = ValueError("not a number")
            return [wrong if request is None else 2 * request for request in requests]

        return wait


def test_requests_of_all_tasks_go_in_one_message():
    """In each exchange: a task that is ahead waits for the others' requests."""
    here, there = Counted(), Counted()

    def task(number, times):
        for _ in range(times):
            waiting = [post(here, number), post(there, number)]
            pass_turn()
            assert [wait() for wait in waiting] == [2 * number] * 2
        return number

    meters = [Meter() for _ in range(3)]
    tasks = [partial(task, number, times) for number, times in ((1, 4), (10, 2), (100, 4))]
    assert in_turns(tasks, meters) == [1, 10, 100]
    assert here.messages == there.messages == [[1, 10, 100]] * 2 + [[1, 100]] * 2
    assert [meter() for meter in meters] == [(n * 48, n * 24) for n in (4, 2, 4)]


def test_an_answer_that_there_is_not_is_raised_where_it_was_asked_for():
    host = Counted()

    def task(number):
        wait = post(host, number)
        pass_turn()
        try:
            return wait()
        except ValueError as error:
            return str(error)

    assert in_turns([partial(task, 1), partial(task, None)]) == [2, "not a number"]


def test_a_lane_has_draws_and_answers_of_its_own():
    for pool in pools():
        one, two = lanes_of(pool, 2)

        def train(lane, shape=(pool.n_clients, pool.n_params)):
            w = np.zeros(shape)
            for _ in range(3):
                w = lane.ask(LocalUpdate, w, 2, 0.05, "sgd", 4, last=True)
            return w

        alone = train(pool.lane(7))
        one.reseed(7)
        tasks = [partial(train, one), partial(train, two)]
        found, other = together(tasks, [one, two], pool.ledger)
        assert_allclose(found, alone, rtol=1e-12)
        assert np.abs(found - other).max() > 1e-3
        assert (one.ledger.calls, one.ledger.up) == (0, 0)


def test_exchanges_are_those_of_the_longest_task():
    for pool in pools():
        n, p = pool.n_clients, pool.n_params
        before = pool.ledger.calls, pool.ledger.up

        def ask(lane, times=1, w=np.zeros((n, p))):  # noqa: B008
            return [lane.ask(Objectives, w) for _ in range(times)]

        def booked(pool=pool, before=before):
            return pool.ledger.calls - before[0], pool.ledger.up - before[1]

        lanes = lanes_of(pool, 2)
        tasks = [partial(ask, lanes[0], 1), partial(ask, lanes[1], 3)]
        one, three = together(tasks, lanes, pool.ledger)
        assert_array_equal(one[0], three[2])
        assert booked() == (3, 4 * n)
        losses_of = partial(ClientPool.ask, call=Losses, theta=np.ones((2, p)))
        (values,), losses = asked_at_once((pool, ask), (pool, losses_of))
        assert (values.shape, losses.shape) == ((n,), (n, 2)) and pool.answered is None
        assert booked() == (4, 7 * n)


LANES = {"IFCARegressor": {"n_clusters": 2, "n_init": 2}}
SEARCH = skcfl.LamSearch(cv=2, lams=[0.05, 0.2])
LANES["GTVRegressor"] = {"graph": "complete", "alpha": 0.01, "search": SEARCH, "max_iter": 20}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", LANES)
def test_messages_are_sent_in_one_order(name):
    """What is on the way at the same time does not depend on which thread is the faster."""
    orders = [], []
    for seen in orders:
        federation, hosts = remote()
        for host in hosts:

            def start(request, given=host.start, seen=seen):
                seen.append((request[3], str(request[4][:1])))
                return given(request)

            host.start = start
        getattr(skcfl, name)(random_state=0, **LANES[name]).fit_federation(federation)
    assert orders[0] == orders[1] and len(orders[0]) > 20


def test_default_fits_take_few_exchanges():
    """Folds, starts, parts and values of lam wait for nothing but what they depend on."""
    rng = np.random.RandomState(0)
    X, g = rng.randn(240, 4), np.repeat(np.arange(8), 30)
    y = (X * rng.randn(2, 4)[g % 2]).sum(axis=1) + 0.5 * rng.randn(240)
    most = {"IFCA": 100, "ConvexClusteredFL": 80, "CLoVE": 110, "FPFC": 80, "GTV": 80}
    # CLoVE searches as IFCA does and GTV's fit is that of ConvexClusteredFL; FPFC's is in
    # tests/fusion/test_expansions.py, too.
    for name, limit in some(most.items(), 2):
        model = getattr(skcfl, name + "Regressor")(random_state=0).fit(X, y, groups=g)
        assert model.n_clusters_ == 2 and model.calls_ < limit


@pytest.fixture
def interrupts():
    """SIGINT raises KeyboardInterrupt; processes in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_all_tasks(interrupts):
    """Ctrl-C comes to the main thread, which waits for the tasks."""
    steps = []

    def task():
        while True:
            check_turn()
            steps.append(1)
            if len(steps) == 5:
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(1e-3)
            pass_turn()

    with pytest.raises(KeyboardInterrupt):
        in_turns([task, task])
    assert not [t for t in threading.enumerate() if t.name == "skcfl lane"]


def test_who_has_answered_has_answered_all_questions():
    class Pool:
        """Clients of which some do not answer."""

        travels, model, answered, ledger = False, LinearModel(), None, Ledger()

        def lane(self, remembers):
            lane = copy.copy(self)
            lane.ledger = Ledger()
            return lane

    def ask(lane, answered):
        lane.answered = None if answered is None else np.array(answered)

    pool, other = Pool(), Pool()
    some, few = [True, False, True], [True, True, False]
    questions = [(pool, some), (other, None), (pool, None), (pool, few)]
    asked_at_once(*((one, partial(ask, answered=who)) for one, who in questions))
    assert pool.answered.tolist() == [True, False, False] and other.answered is None
