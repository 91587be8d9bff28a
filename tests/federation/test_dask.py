"""Clients on the workers of a dask cluster: two processes of this machine."""

import functools
import gc
import importlib.util
import os
import signal
import sys
import time
import tracemalloc
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cases import CLASSES, DATA, compare, make
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import parts_of
from trials import some

from skcfl import FedAvgRegressor, GTVRegressor
from skcfl.calls.first_order import Losses, ObjectivesGradients
from skcfl.exceptions import FederationError, PrivacyError
from skcfl.federation import ClientPrivacy, DaskFederation, InProcessFederation, SitePolicy
from skcfl.federation.dask import LOOK
from skcfl.federation.serialization import versions
from skcfl.models import LinearModel
from skcfl.testing import StrictFederation

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def client():
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def whole(client):
    """The cluster with both workers, whatever was done to one of them before."""
    client.wait_for_workers(2, timeout=240)
    return client


def test_kinds_of_parts(whole):
    dask = pytest.importorskip("dask")
    wanted = make("FedAvgClassifier").fit(CLASSES.X, CLASSES.y, groups=CLASSES.groups)
    first, second, third, fourth = parts_of(CLASSES, 4)
    later, there = dask.delayed(lambda: third)(), whole.scatter([fourth], hash=False)[0]
    parts = [first, lambda: second, later, there]
    federation = DaskFederation(whole, parts)
    compare(make("FedAvgClassifier").fit_federation(StrictFederation(federation)), wanted)
    one = DaskFederation(whole, parts[:1], workers=sorted(whole.nthreads())[1:])
    assert one.hello().ids.tolist() == np.unique(first[2]).tolist()


def test_parts_of_a_frame(whole):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame(DATA.X, columns=list("abcd"))
    frame["y"], frame["who"], frame["weight"] = DATA.y, DATA.groups, 1.0 + (DATA.y > 0)
    wanted = make("FedAvgRegressor")
    wanted.fit(frame[list("abcd")], DATA.y, groups=DATA.groups, sample_weight=frame["weight"])
    table = dd.from_pandas(frame.sample(frac=1.0, random_state=0), npartitions=3)
    federation = DaskFederation.from_dataframe(
        whole, table, "y", "who", weight="weight", npartitions=12
    )
    found = make("FedAvgRegressor").fit_federation(federation)
    compare(found, wanted)
    assert found.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match=r"target must be a column .*, got 'z'"):
        DaskFederation.from_dataframe(whole, table, "z", "who")


def test_large_messages(whole):
    """Which dask sends as they are; small ones go as bytes."""
    n = 12_000
    X = np.random.RandomState(0).normal(size=(n, 2))
    ids = np.arange(n)
    half = ids < n // 2
    parts = [(X[some], X[some, 0], ids[some]) for some in (half, ~half)]
    pool = DaskFederation(whole, parts).open(LinearModel(alpha=0.1).bind(2), 0)
    theta = np.random.RandomState(1).normal(size=(8, 3))
    rows = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(n)])
    assert_allclose(pool.ask(Losses, theta), 0.5 * (rows @ theta.T - X[:, :1]) ** 2)
    # They do not wait for the collector of garbage: it would not come for a few arrays.
    w, held = np.zeros((n, 3)), []
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(20):
            pool.ask(ObjectivesGradients, w)
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held[-1] < held[0] + 10 * w.nbytes


def test_workers_that_the_client_does_not_reach(whole, monkeypatch):
    """They are called through the scheduler; others are not."""
    called = []
    proxy = importlib.import_module("distributed.actor").ProxyRPC.__getattr__

    def seen(self, key):
        called.append(key)
        return proxy(self, key)

    monkeypatch.setattr("distributed.actor.ProxyRPC.__getattr__", seen)
    losses = []
    monkeypatch.setattr("skcfl.federation.dask.DISTANT", set())
    for reach in (60.0, 0.0):
        monkeypatch.setattr("skcfl.federation.dask.REACH", reach)
        federation = DaskFederation(whole, parts_of(DATA, 2))
        pool = federation.open(LinearModel(alpha=0.1).bind(4), 0)
        losses.append(pool.ask(Losses, np.ones((2, 5))))
        assert bool(called) == (reach == 0.0)
    assert_allclose(losses[1], losses[0])


def test_workers_keep_the_account_of_private_clients(whole):
    bounds = {"features": (-2, 2), "target": (-4, 4)}
    exact = InProcessFederation(DATA.X, DATA.y, DATA.groups).masked(2, bounds=bounds)
    wanted = FedAvgRegressor(max_iter=3).fit_federation(exact).cluster_params_
    for epsilon, masked in ((np.inf, 2), (100.0, None)):
        policy = SitePolicy(privacy=ClientPrivacy(epsilon, bounds=bounds, masked=masked))
        federation = DaskFederation(whole, parts_of(DATA, 2), policy=policy)
        model = FedAvgRegressor(max_iter=3).fit_federation(federation)
        assert_allclose(model.epsilon_, epsilon)
        if masked:
            assert_allclose(model.cluster_params_, wanted, atol=1e-5)
            continue
        with pytest.raises(PrivacyError, match="spent"):
            FedAvgRegressor(max_iter=3).fit_federation(federation)


def test_a_slow_worker_is_not_lost(whole, monkeypatch):
    """Though what dask has read of its workers may be emptied before we see it."""
    monkeypatch.setattr(whole, "scheduler_info", lambda **_: {"workers": {}})

    def slow(part):
        time.sleep(4 * LOOK)
        return part

    federation = DaskFederation(whole, [partial(slow, part) for part in parts_of(DATA, 2)])
    assert len(federation.hello().ids) == len(np.unique(DATA.groups))


@functools.cache
def fit_here():
    """The fit to all rows, which no test changes."""
    return GTVRegressor(lam=0.1).fit(DATA.X, DATA.y, groups=DATA.groups)


def the_pid(client, address):
    return client.run(os.getpid, workers=[address])[address]


def do_at_call(federation, number, action):
    """Do something before a message of the fit; which transport it is done to."""
    transport = federation._roots[1].line.transport
    start, count = transport.start_several, [0]

    def counted(requests):
        count[0] += 1
        if count[0] == number:
            action(transport)
        return start(requests)

    transport.start_several = counted
    return transport


@pytest.mark.parametrize("name", some(["GTVRegressor", "IFCARegressor"], 1))
def test_a_killed_worker(whole, name):
    """Its clients are lost in the middle of a fit; parts that are loaded again go on elsewhere."""
    federation = DaskFederation(whole, parts_of(DATA, 2))
    plain = make(name).fit_federation(federation)
    again = DaskFederation(whole, parts_of(DATA, 3, loaded=True), rebuild=True)

    def kill(transport):
        os.kill(the_pid(whole, transport.address), signal.SIGKILL)

    before = do_at_call(federation, 9, kill).address
    lines = [root.line.transport for root in again._roots]
    transport = next(line for line in lines if line.address == before)
    model = make(name).fit_federation(federation)
    # A worker that is known to be gone is not asked again: ten times, where all are needed.
    assert model.calls_ < 3 * plain.calls_
    assert min(federation.wire_bytes) > 0
    gone = np.unique(parts_of(DATA, 2)[1][2])
    assert_array_equal(model.missing_clients_, gone)
    alive = ~np.isin(DATA.groups, gone)
    assert model.score(DATA.X[alive], DATA.y[alive], groups=DATA.groups[alive]) > 0.9
    with pytest.raises(FederationError, match="1 of 2 places do not answer: worker tcp"):
        model.fit_federation(federation)
    found = GTVRegressor(lam=0.1).fit_federation(again)
    assert transport.address != before
    assert found.missing_clients_.size == 0
    compare(found, fit_here(), rtol=1e-9)


def test_a_worker_that_hangs(whole):
    federation = DaskFederation(whole, parts_of(DATA, 2), timeout=1.0, retries=2)
    stopped = []

    def stop(transport):
        stopped.append(the_pid(whole, transport.address))
        os.kill(stopped[0], signal.SIGSTOP)

    transport = do_at_call(federation, 9, stop)
    try:
        model = GTVRegressor(lam=0.1).fit_federation(federation)
        assert_array_equal(model.missing_clients_, np.unique(parts_of(DATA, 2)[1][2]))
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    for _ in range(300):
        if all(answer.done() for answer in transport._late):
            break
        time.sleep(0.1)
    # What it has answered meanwhile, nobody has heard.
    found = GTVRegressor(lam=0.1).fit_federation(federation)
    assert found.missing_clients_.size == 0
    compare(found, fit_here())


def test_errors_of_a_worker_are_raised_here(whole):
    def load():
        raise KeyError("no such table")

    with pytest.raises(KeyError, match="no such table") as raised:
        DaskFederation(whole, [parts_of(DATA, 2)[0], load])
    assert "This is part 1" in raised.value.__notes__[0]


def test_refusals_of_workers_are_told_once_each(whole):
    federation = DaskFederation(whole, parts_of(DATA, 2), policy=SitePolicy(max_calls=6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(FederationError, match="0 of .* clients answer"):
            make("FedAvgRegressor").fit_federation(federation)
    told = [str(one.message) for one in caught if "No answer of worker" in str(one.message)]
    assert len(told) == len(set(told)) == 2 and all("max_calls=6" in text for text in told)


def test_bad_arguments(whole):
    parts, loaded = parts_of(DATA, 2), parts_of(DATA, 2, loaded=True)
    private = SitePolicy(privacy=ClientPrivacy(1.0, bounds={"features": (0, 1)}))
    for error, message, client, given, options in (
        (TypeError, "client must be a synchronous distributed.Client", "localhost", parts, {}),
        (ValueError, "at least one part", whole, [], {}),
        (TypeError, "part 1 must be .* got int", whole, [parts[0], 3], {}),
        (ValueError, "timeout must be a positive number", whole, parts, {"timeout": 0}),
        (ValueError, "rebuild=True needs parts .* part 0", whole, parts, {"rebuild": True}),
        (
            ValueError,
            "rebuild must be False under privacy",
            whole,
            loaded,
            {"rebuild": True, "policy": private},
        ),
        (TypeError, "policy must be a SitePolicy or None, got int", whole, parts, {"policy": 20}),
        (ValueError, "workers must be among", whole, parts, {"workers": ["tcp://nowhere"]}),
    ):
        with pytest.raises(error, match=message):
            DaskFederation(client, given, **options)


def test_a_worker_with_another_version_is_refused(whole):
    """Before the fit, by its address and both versions; once it is updated it takes part."""

    def become(theirs):  # nested: workers do not find the modules of tests
        from skcfl.federation import dask

        dask.versions = lambda: theirs

    address = sorted(whole.nthreads())[0]
    whole.run(become, ["0.0.9", "0" * 16], workers=[address])
    try:
        with pytest.raises(FederationError) as caught:
            DaskFederation(whole, parts_of(DATA, 2), workers=[address])
    finally:
        whole.run(become, versions(), workers=[address])
    text = str(caught.value)
    assert f"{address} has ['0.0.9', '0000000000000000'], the server {versions()}" in text
    federation = DaskFederation(whole, parts_of(DATA, 2), workers=[address])
    found = FedAvgRegressor(max_iter=3).fit_federation(federation)
    assert np.isfinite(found.params_).all() and found.missing_clients_.size == 0


def test_without_dask(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'skcfl\[dask\]'"):
        DaskFederation(None, [])


def test_the_example(monkeypatch, capsys):
    """With workers that are threads, which start at once."""
    path = Path(__file__).resolve().parents[2] / "examples" / "federation_dask.py"
    spec = importlib.util.spec_from_file_location("federation_dask", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LocalCluster", partial(module.LocalCluster, processes=False))
    monkeypatch.setattr(sys, "argv", ["federation_dask", "--clients", "24"])
    module.main()
    printed = capsys.readouterr().out
    assert "24 clients on 2 workers" in printed
    assert "recovery of the clusters 1.00" in printed
