"""Clients of hosts in other processes, through pickle: results, losses, what is restored."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
from cases import CLASSES, DATA, compare, make
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from private_clients import where

from skcfl import FedAvgRegressor, GTVRegressor, IFCAClassifier, IFCARegressor
from skcfl.calls import CALLS
from skcfl.calls.answers import check_answers
from skcfl.calls.first_order import Losses, Objectives
from skcfl.exceptions import FederationError
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.federation.remote import RemoteFederation
from skcfl.models import LinearModel
from skcfl.testing import StrictFederation


def remote(data=DATA, n_hosts=2, n_parts=3, loaded=False, options=None, **settings):
    parts = named(parts_of(data, n_parts, loaded))
    hosts = [PickledHost(parts[k::n_hosts], **(options or {})) for k in range(n_hosts)]
    return RemoteFederation(hosts, **settings), hosts


def test_one_host_and_mixtures():
    wanted = make("IFCARegressor").fit(DATA.X, DATA.y, groups=DATA.groups)
    compare(make("IFCARegressor").fit_federation(remote(n_hosts=1)[0]), wanted)
    here, there = parts_of(DATA, 2)
    both = [InProcessFederation(*here), RemoteFederation([PickledHost(named([there]))])]
    compare(make("IFCARegressor").fit_federation(FanOutFederation(both)), wanted)
    compare(make("IFCARegressor").fit_federation(StrictFederation(remote()[0])), wanted)


def test_folds_are_dealt_by_the_hosts():
    """The rows of a fold are those of one process, and so are scores and training rows."""
    model = LinearModel("log_loss", alpha=0.1).bind(4, 2)
    places = InProcessFederation(CLASSES.X, CLASSES.y, CLASSES.groups), remote(CLASSES)[0]
    models = np.random.RandomState(0).normal(size=(2, 9, 5))
    dealt = [place.open_with_folds(model, 0)[1].deal(3, 5) for place in places]
    for here, there in zip(*dealt, strict=True):
        for scoring in (None, "accuracy"):
            wanted = here.scores(models, scoring)
            assert_allclose(there.scores(models, scoring), wanted, rtol=1e-12)
        losses = [fold.pool(0).ask(Objectives, models[0]) for fold in (here, there)]
        assert_allclose(losses[1], losses[0], rtol=1e-12)


def test_hosts_get_models_of_their_own_clusters_only():
    """Fusion asks about one model per client, of which a host is sent those of its clients."""
    federation, hosts = remote(n_hosts=3)
    model = GTVRegressor(lam=0.1).fit_federation(federation)
    compare(model, GTVRegressor(lam=0.1).fit(DATA.X, DATA.y, groups=DATA.groups))
    most = 0
    for host in hosts:
        for name, arguments in host.requests:
            if name == "answer" and "labels" in arguments[1] and "theta" in arguments[1]:
                labels, theta = arguments[1]["labels"], arguments[1]["theta"]
                assert_array_equal(np.unique(labels), np.arange(len(theta)))
                most = max(most, len(theta))
    assert 1 < most <= 3


def test_what_is_dropped_here_is_dropped_there():
    federation, (host, _) = remote()
    pool = federation.open(LinearModel(alpha=0.1).bind(4), 0)
    before = len(host.host._kept)
    parts = pool.deal_folds(3, 0)
    pool.ask(Losses, np.zeros((1, 5)))
    assert len(host.host._kept) > before
    del parts
    gc.collect()
    pool.ask(Losses, np.zeros((1, 5)))
    assert len(host.host._kept) == before


@pytest.mark.parametrize("lost_after", [1, 2, 7])
def test_hosts_may_be_lost_at_any_time(lost_after):
    """While the features' units are measured, while the clients are opened, later."""
    federation, hosts = remote(CLASSES, retries=2)
    hosts[1].lost_after = lost_after
    model = IFCAClassifier(n_clusters=2, max_iter=5, tol=1e-2, class_weight="balanced")
    model.fit_federation(federation)
    gone = np.unique(parts_of(CLASSES, 3)[1][2])
    assert_array_equal(model.missing_clients_, gone)
    rows = where((CLASSES.X, CLASSES.y, CLASSES.groups), ~np.isin(CLASSES.groups, gone))
    assert model.score(*rows[:2], groups=rows[2]) > 0.8


@pytest.mark.parametrize("lost_after", [0, 4])
def test_too_few_hosts(lost_after):
    federation, hosts = remote()
    hosts[0].lost_after = hosts[1].lost_after = lost_after
    with pytest.raises(FederationError, match="2 of 2 places do not answer: host of part 0"):
        FedAvgRegressor().fit_federation(federation)


@pytest.mark.parametrize(
    ("name", "lost_after"), [("IFCARegressor", 1), ("IFCARegressor", 20), ("GTVRegressor", 6)]
)
def test_a_restored_host_goes_on(name, lost_after):
    wanted = make(name).fit(DATA.X, DATA.y, groups=DATA.groups)
    federation, hosts = remote(loaded=True, options={"restorable": True})
    hosts[1].lost_after = lost_after
    found = make(name).fit_federation(federation)
    assert hosts[1].n_restored == 1
    assert found.missing_clients_.size == 0
    compare(found, wanted)


def test_errors_of_a_host_are_raised_here():
    federation, hosts = remote()

    def broken(call, arguments):
        raise KeyError("a bug of the worker")

    pool = federation.open(LinearModel(alpha=0.1).bind(4), 0)
    pool.ask(Losses, np.zeros((1, 5)))
    for kept in hosts[0].host._kept.values():
        if hasattr(kept, "answer"):
            kept.answer = broken
    with pytest.raises(KeyError, match="a bug of the worker") as raised:
        pool.ask(Losses, np.zeros((1, 5)))
    assert "in broken" in raised.value.__notes__[0]


def part(ids, d=4, y=None, dtype=float):
    ids = np.repeat(np.asarray(ids), 3)
    X = np.arange(len(ids) * d, dtype=dtype).reshape(len(ids), d)
    return X, np.arange(float(len(ids))) if y is None else y, ids


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (part(["b", "a"]), "those of 'a' are in part 0 and part 1"),
        (part(["b"], d=3), "part 0 have 4, those of part 1 3"),
        (part(["b"], dtype=np.float32), "part 0 are float64, those of part 1 float32"),
        (part([7]), "ids of one type: in part 0 .* 'a', in part 1 7"),
        (part(["b"], y=np.array([0.0, np.nan, 1.0])), "part 1: Input y contains NaN"),
        (part(["b"], y=np.array([0.0, 1.0])), "part 1: y must have one entry per row, 3, got 2"),
        (part([]), "part 1: X is not valid: Found array with 0 sample"),
        ((np.ones((3, 4)), np.ones(3)), r"part 1 must be \(X, y, groups\) .* tuple of 2"),
        (None, "part 1 must be .*, got NoneType"),
    ],
)
def test_errors_name_the_part(second, message):
    model = FedAvgRegressor()
    for n_hosts in (1, 2):
        parts = named([part(["a"]), second])
        hosts = [PickledHost(parts[k::n_hosts]) for k in range(n_hosts)]
        with pytest.raises((TypeError, ValueError), match=message):
            model.fit_federation(RemoteFederation(hosts))
    assert not hasattr(model, "params_")


def test_classes_of_one_type():
    numbers, words = np.array([0, 1, 0]), np.array(["p", "q", "p"])
    parts = named([part(["a"], y=numbers), part(["b"], y=words)])
    with pytest.raises(ValueError, match="y must hold classes of one type: in part 0 .* 0, in"):
        IFCAClassifier().fit_federation(RemoteFederation([PickledHost(parts)]))


def test_parts_without_rows_may_be_left_out():
    parts = named([part(["a", "b"]), part([])])
    federation = RemoteFederation([PickledHost([one], skip_empty=True) for one in parts])
    assert federation.hello("regressor").ids.tolist() == ["a", "b"]
    model = IFCARegressor(n_clusters=1).fit_federation(federation)
    assert model.groups_.tolist() == ["a", "b"]
    empty = RemoteFederation([PickledHost(parts[1:], skip_empty=True)])
    with pytest.raises(ValueError, match="parts must hold rows, got none"):
        empty.hello()


@pytest.mark.parametrize("call", CALLS)
def test_silent_answers_have_the_shapes_of_the_table(call):
    theta = np.zeros((3, 4), dtype=np.float32)
    for root, dense in ((np.ones(4), False), (np.eye(4), True)):
        arguments = {"theta": theta, "root": root, "dense": dense, "dtype": np.float32}
        arguments = {key: arguments[key] for key in CALLS[call].down if key in arguments}
        letters = {word for words in CALLS[call].words.values() for word in words} - {"H", "R"}
        sizes = {word: 2 for word in letters if isinstance(word, str)}
        sizes |= dict(n=5, K=3, p=4, s=2, C=3, q=2, f=6, v=3, h=2, m=2, u=2)
        answers = CALLS[call].silence(arguments, sizes, SimpleNamespace(dtype=np.float32))
        check_answers(call, answers, arguments, sizes)
        if call == "losses":
            assert answers["losses"].dtype == np.float32
