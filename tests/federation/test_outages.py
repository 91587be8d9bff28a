"""Sites that are away for a moment: what is chosen meanwhile, and when they are asked again."""

import threading
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from site_tables import Given, Wire
from sklearn.base import clone

import skcfl
from skcfl import LamSearch
from skcfl.calls.first_order import OwnLosses
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import FederationError
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import dumps, number_of
from skcfl.federation.sites import raising
from skcfl.search.judges import comparable
from skcfl.search.pull import choose_pull

DATA = make_clustered_regression(n_clients=9, n_clusters=3, random_state=0, n_samples=20)
IDS = np.unique(DATA.groups)
SECOND = [f"s1/{name}" for name in IDS[3:6]]
PAUSES = 0.001, 0.002, 0.002, 0.002

pytestmark = pytest.mark.filterwarnings("ignore:No answer of site")


class AtOnce:
    """A thread that has ended when it is started: messages come in one order."""

    def __init__(self, target, args, **about):
        self.start = lambda: target(*args)


@pytest.fixture(autouse=True)
def _calls_back_at_once(monkeypatch):
    now = SimpleNamespace(Thread=AtOnce, Lock=threading.Lock)
    monkeypatch.setattr("skcfl.federation.wire.threading", now)


def sites(away=range(0), pauses=(), **settings):
    """Three sites of three clients, and the second one, which replies to some messages not."""
    made = []
    for k in range(3):
        here = np.isin(DATA.groups, IDS[3 * k : 3 * k + 3])
        rows = Given(f"s{k}", (DATA.X[here], DATA.y[here], DATA.groups[here]))
        made.append(Wire(rows))
    made[1].pauses = pauses
    made[1].fails = lambda number: ConnectionError("refused") if number in away else None
    return RemoteFederation(made, **settings), made[1]


HELD_OUT = skcfl.GTVRegressor(tol=0.1, search=LamSearch(cv=2, lams=[0.1, 3.0]), random_state=0)


def pooling():
    return skcfl.PartialPoolingRegressor(n_clusters=1, basis="linear")


@cache
def wanted_pooling():
    """The fit of all sites, and the second site; without a fault no pause is made."""
    federation, second = sites(pauses=PAUSES)
    with pytest.MonkeyPatch.context() as patched:
        patched.delattr("skcfl.federation.wire.time.sleep")
        return pooling().fit_federation(federation), second


@pytest.mark.parametrize(
    ("first", "n", "kept"),
    [(4, 3, False), (20, 3, False), (20, 8, False), (3, 3, True)],
)
def test_a_site_that_is_started_again_misses_nothing(first, n, kept, tmp_path):
    """Refused at once, it is tried between pauses, which a client needed for good has twice."""
    federation = sites(range(first, first + n), PAUSES, retries=0 if kept else 10)[0]
    model = pooling().fit_federation(federation, checkpoint=tmp_path / "fit" if kept else None)
    assert model.missing_clients_.size == 0 and (n > len(PAUSES) or model.absences_ == [])
    assert_array_equal(model.params_, wanted_pooling()[0].params_)


def test_a_dead_site_costs_its_pauses_twice(monkeypatch):
    waited = []
    monkeypatch.setattr("skcfl.federation.wire.time.sleep", waited.append)
    model = pooling().fit_federation(sites(range(20, 10**9), PAUSES)[0])
    assert_array_equal(model.missing_clients_, SECOND)
    assert waited == [*PAUSES, *PAUSES]


@pytest.mark.parametrize("model", [skcfl.IFCARegressor(2), HELD_OUT])
@pytest.mark.parametrize("error", [TimeoutError, ConnectionError])
@pytest.mark.parametrize("after", range(3, 15))
def test_killed_sites_are_not_taken_for_sites_that_refuse(after, error, model):
    federation = sites(retries=1)[0]
    for root in federation._roots:
        root.line.transport.fails = lambda number: error() if number > after else None
    with pytest.raises(FederationError) as raised:
        clone(model).fit_federation(federation)
    assert "policy" not in str(raised.value)


@pytest.mark.parametrize(("comes_back", "n"), [(False, 4), (True, 10**3)])
def test_a_site_is_asked_for_its_facts_for_some_time(comes_back, n):
    """Replies that are none are pauses; a site that comes and goes holds up no fit."""
    federation, second = sites(pauses=PAUSES)
    send, asked = second.send, []

    def sent(message):
        if b'"facts"' not in message or len(asked) == n:
            return send(message)
        asked.append(message)
        unknown = dumps(("unknown", None, None), number=number_of(message))
        if comes_back and len(asked) % 2 == 0:
            return raising(ConnectionError("refused"))
        return lambda: unknown if comes_back else b"rubbish"

    second.send = sent
    model = skcfl.OracleClustersRegressor(np.arange(9) % 3).fit_federation(federation)
    assert_array_equal(model.missing_clients_, SECOND if comes_back else [])
    assert len(asked) == n or len(asked) < 100


@pytest.mark.parametrize("back", [True, False])
def test_a_client_without_its_last_answer_is_asked_again_or_missing(back):
    """The prior in place of its posterior is no model of its own."""
    wanted, second = wanted_pooling()
    asked = [b'"posteriors"' in message for message in second.sent]
    last = len(asked) - asked[::-1].index(True)

    federation, second = sites(pauses=PAUSES, retries=2)

    def fails(number):
        lost = number == last if back else b'"posteriors"' in second.sent[number - 1]
        return TimeoutError() if lost and number >= last else None

    second.fails = fails
    model = pooling().fit_federation(federation)
    if back:
        assert_allclose(model.params_, wanted.params_)
        assert_array_equal(model.labels_, wanted.labels_)
    assert_array_equal(model.missing_clients_, [] if back else SECOND)
    others = np.bincount(model.labels_ if back else np.delete(model.labels_, np.s_[3:6]))
    assert (np.diff(others) <= 0).all()


@pytest.mark.parametrize("which", [1, 2])
def test_models_are_those_of_all_clients_though_a_late_sum_lacks_some(which):
    """Sums of fewer clients have another minimum, which is no longer left."""

    def fitted(fails):
        federation, second = sites(pauses=PAUSES)
        second.fails = lambda number: fails(second, number)
        model = skcfl.OracleClustersRegressor(np.arange(9) % 3)
        return model.fit_federation(federation), second

    wanted, second = fitted(lambda *about: None)
    asked = np.flatnonzero([b"gradient_sums" in message for message in second.sent])
    late = int(asked[-which]) + 1
    model, _ = fitted(lambda _, number: TimeoutError() if number == late else None)
    assert_allclose(model.cluster_params_, wanted.cluster_params_, rtol=1e-7)
    assert model.absences_ and not model.missing_clients_.size


@pytest.mark.parametrize(
    ("model", "first"),
    [
        (HELD_OUT, 16),
        (skcfl.ConvexClusteredFLRegressor(tol=0.1, search=LamSearch("bic", lams=[0.1, 1, 5])), 60),
        (pooling(), 30),
        (skcfl.IFCARegressor(n_clusters=3, random_state=0), 18),
        (skcfl.DittoRegressor(lam=0.1), 14),
    ],
    ids=["held out", "bic", "sums", "polish", "last models"],
)
def test_what_was_found_without_a_site_is_found_again(model, first, caplog):
    """Candidates that were judged while clients were away look better, or worse."""
    wanted = clone(model).fit_federation(sites()[0])
    found = clone(model).fit_federation(sites(range(first, first + 3))[0])
    assert "answer again: 's1/client03'" in caplog.text
    assert found.missing_clients_.size == 0
    assert_array_equal(found.labels_, wanted.labels_)
    assert_array_equal(found.params_, wanted.params_)


def test_a_graph_of_neighbours_is_of_the_clients_that_are_there():
    """A site that is lost before it has told of its rows is not one of clients without rows."""
    model = skcfl.GTVRegressor(lam=0.1).fit_federation(sites(range(3, 10**9))[0])
    assert_array_equal(model.missing_clients_, SECOND)
    here = ~np.isin(DATA.groups, IDS[3:6])
    wanted = clone(model).fit(DATA.X[here], DATA.y[here], groups=DATA.groups[here])
    others = np.delete(np.arange(9), np.s_[3:6])
    assert_allclose(model.params_[others], wanted.params_, rtol=1e-8)


def test_clients_that_are_away_in_every_attempt_are_missing():
    federation, second = sites()
    second.fails = lambda number: ConnectionError("refused") if number % 12 > 8 else None
    with pytest.warns(skcfl.exceptions.MissingClientWarning, match="each of 3 attempts"):
        model = skcfl.GTVRegressor(lam=0.1).fit_federation(federation)
    assert_array_equal(model.missing_clients_, SECOND)


@pytest.mark.parametrize(
    "model", [skcfl.ConvexClusteredFLRegressor(tol=0.1), skcfl.IFCARegressor(random_state=0)]
)
def test_losses_without_an_answer_do_not_choose(model, monkeypatch):
    """One client of each cluster is silent where each client has a model of its own."""
    wanted = clone(model).fit(DATA.X, DATA.y, groups=DATA.groups)
    result = OwnLosses.result

    def without_some(pool, answers, arguments, start):
        losses = result(pool, answers, arguments, start)
        if len(np.unique(arguments["w"], axis=0)) == 9:
            losses[[0, 1, 3]] = np.nan
        return losses

    monkeypatch.setattr(OwnLosses, "result", without_some)
    found = clone(model).fit(DATA.X, DATA.y, groups=DATA.groups)
    assert_array_equal(found.labels_, wanted.labels_)
    assert getattr(found, "lam_", 1.0) == getattr(wanted, "lam_", 1.0)


def test_a_pull_is_chosen_by_those_who_have_answered():
    """Half of the clients are silent for one candidate, the best of all if zeros counted."""
    losses = iter(np.tile([[1.0, 1.0], [0.6, 0.6], [1.0, np.nan]], (4, 1)))
    folds = [(None, FoldOf(losses)) for _ in range(4)]
    pool = SimpleNamespace(
        n_clients=2,
        without_rows=np.zeros(2, dtype=bool),
        random_state=None,
        can_answer=lambda call: True,
        deal_folds=lambda number, rng, judged: folds[:judged],
        presence=SimpleNamespace(needs_all=False),
        travels=False,
    )
    lam, search = choose_pull(pool, np.array([3.0, 2.0, 1.0]), lambda train, lams: lams)
    assert lam == 2.0
    assert_allclose(search["lam_search"]["held_out_loss"], [1.0, 0.6, 1.0])


class FoldOf:
    """Rows held out, whose losses are given."""

    client_weights = np.ones(2)

    def __init__(self, losses):
        self.losses = losses

    def ask(self, call, models):
        return next(self.losses)


@pytest.mark.filterwarnings("ignore:The best lam")
def test_a_place_that_is_silent_in_a_fold_is_lost_for_all_of_them():
    """Scores of the other places are not those of the same rows."""
    federation, second = sites(retries=0)
    refused = second.fails

    def fails(number):
        scores = b'"scores"' in second.sent[number - 1]
        return ConnectionError("refused") if scores and number % 2 else refused(number)

    second.fails = fails
    model = skcfl.GTVRegressor(tol=0.1, search=LamSearch(cv=2, lams=[0.1, 3.0]), random_state=0)
    model.fit_federation(federation)
    assert_array_equal(model.missing_clients_, SECOND)


def test_candidates_are_compared_by_those_who_have_answered_about_all():
    """If these are few, the others are filled in by losses of other candidates and clients."""
    losses = np.array([[1.0, 2.0, 30.0], [2.0, 3.0, np.nan]])
    found, weights = comparable(losses, np.ones(3))
    assert_array_equal(found, [[1.0, 2.0, 0.0], [2.0, 3.0, 0.0]])
    assert_array_equal(weights, [1.0, 1.0, 0.0])
    clients, candidates = np.array([1.0, 2.0, 5.0, 9.0]), np.array([[0.0], [1.0], [2.0], [40.0]])
    whole = 3.0 * (clients + candidates)
    losses = whole.copy()
    losses[[0, 1, 2], [0, 1, 2]] = np.nan
    found, weights = comparable(losses, np.full(4, 3.0))
    assert_allclose(found, whole, rtol=1e-5)
    assert_array_equal(weights, 3.0)
