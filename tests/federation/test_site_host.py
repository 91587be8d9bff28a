"""Sites that load their own rows, behind a wire of bytes: what they answer, and what not."""

import pickle
import sys
import threading
import time
import types
from functools import partial

import numpy as np
import pytest
from cases import compare, make
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from site_tables import CLASSES, IDS, REGRESSION, SITES, Given, Table, Wire, named, wires
from sklearn.base import clone
from trials import some

import skcfl
from skcfl import FedAvgRegressor, IFCARegressor, LocalModels, LocalModelsRegressor, Training
from skcfl.calls import CALLS
from skcfl.calls.first_order import LocalUpdate, Losses
from skcfl.exceptions import FederationError, MessageError
from skcfl.federation import InProcessFederation, SitePolicy, SiteRows, hosted_parts
from skcfl.federation import host as host_module
from skcfl.federation.host import SiteHost
from skcfl.federation.hosted_parts import KEPT_FITS, KEPT_SECONDS
from skcfl.federation.pool import ClientPool
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.rows import Rows
from skcfl.federation.serialization import dumps, loads, number_of
from skcfl.federation.sites import PlaceLost
from skcfl.federation.transport import SEVERAL
from skcfl.models import LinearModel, Location
from skcfl.models.losses import make_loss


def here(model, data=REGRESSION):
    """The fit to the rows of both sites."""
    return model.fit(data.X, data.y, groups=named(data))


def failing(fails):
    """Two sites, and what is wrong with a message to the second one by its number."""
    return [Wire(Table("north")), Wire(Table("south"), fails)]


def after(number, error):
    return lambda n: error if n > number else None


SOUTH = [f"south/{name}" for name in IDS[2:]]


NETWORKS = {"hidden_layer_sizes": (3,), "training": Training(batch_size=5), "max_iter": 15}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        skcfl.FedAvgClassifier(class_weight="balanced"),
        skcfl.FedAvgClassifier(loss="squared_hinge"),
        skcfl.IFCAClassifier(n_clusters=2, random_state=0, **NETWORKS),
    ],
    ids=str,
)
def test_fits_over_a_wire_are_those_of_one_process(model):
    wanted = here(clone(model), CLASSES)
    found = model.fit_federation(RemoteFederation(wires(CLASSES)))
    tolerance = 2e-3 if wanted.params_.dtype == np.float32 else 1e-10
    compare(found, wanted, tolerance)
    assert_allclose(found.objective_, wanted.objective_, rtol=tolerance)
    assert found.calls_ == wanted.calls_
    # Whatever is left of the fit has nothing of the federation in it.
    pickled = pickle.dumps(found)
    assert b"federation.remote" not in pickled and b"federation.wire" not in pickled


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("PartialPoolingRegressor", {"basis": "splines"}),
        ("PartialPoolingClassifier", {"basis": skcfl.TreeBasis(3, max_bins=8)}),
        ("PartialPoolingRegressor", {"crossed": [2]}),
    ],
    ids=["curves", "trees", "levels"],
)
def test_curves_trees_and_levels_go_over_a_wire(name, parameters):
    """They ask for quantiles, histograms and sums by level."""
    rng = np.random.default_rng(0)
    groups = np.repeat([f"{k:02d}" for k in range(6)], 24)
    level = rng.integers(6, size=144)
    X = np.column_stack([rng.standard_normal((144, 2)), level])
    y = np.sin(2 * X[:, 0]) + X[:, 1] * (X[:, 0] > 0) + np.linspace(-1, 1, 6)[level]
    y = y + 0.3 * rng.standard_normal(144)
    y = (y > 0).astype(int) if "Classifier" in name else y
    first = groups < "03"
    ids = np.char.add(np.where(first, "a/", "b/"), groups)
    model = getattr(skcfl, name)(n_clusters=1, **parameters).fit(X, y, groups=ids)
    output = "predict_proba" if "Classifier" in name else "predict"
    wanted, calls = getattr(model, output)(X, groups=ids), model.calls_
    halves = ("a", first), ("b", ~first)
    sites = [Wire(Given(name, (X[here], y[here], groups[here]))) for name, here in halves]
    model.fit_federation(RemoteFederation(sites))
    assert_allclose(getattr(model, output)(X, groups=ids), wanted, atol=1e-8)
    assert model.calls_ == calls


def test_clients_have_the_name_of_their_site():
    X, y, _ = Table("north").rows
    single = Wire(Given("north", (X, y, None, np.ones(len(y)))))
    model = LocalModelsRegressor().fit_federation(RemoteFederation([single, wires()[1]]))
    assert model.groups_.tolist() == ["north", *SOUTH]
    # The same name at two sites is two clients.
    double = [Wire(Table(name, change=lambda X, y, g: (X, y, ["a"] * len(y)))) for name in SITES]
    model = LocalModelsRegressor().fit_federation(RemoteFederation(double))
    assert model.groups_.tolist() == ["north/a", "south/a"]


def test_tables_of_any_kind():
    """Names of columns come by hello; ids are numbers here, features sparse, targets none."""
    pd = pytest.importorskip("pandas")
    columns = ["age", "dose", "stage"]
    framed = changed(lambda X: pd.DataFrame(X, columns=columns))
    both = [Wire(Table(name, change=framed)) for name in SITES]
    model = FedAvgRegressor().fit_federation(RemoteFederation(both))
    assert model.feature_names_in_.tolist() == columns

    def sparse_rows(X, y, g):
        return sparse.csr_array(X), None, np.unique(g, return_inverse=True)[1]

    both = [Wire(Table(name, change=sparse_rows)) for name in SITES]
    model = LocalModels(Location()).fit_federation(RemoteFederation(both))
    wanted = LocalModels(Location()).fit(REGRESSION.X, groups=named())
    assert_allclose(model.params_, wanted.params_, rtol=1e-10)
    assert model.groups_[[0, 5]].tolist() == ["north/0", "south/3"]


def test_a_site_is_sent_its_own_clients_only():
    """Of what has an entry per client a site gets its clients' entries, and no other's id."""
    sites = wires()
    LocalModelsRegressor().fit_federation(RemoteFederation(sites))
    for site, other, n in zip(sites, ("south", "north"), (2, 4), strict=True):
        assert not any(other.encode() in message for message in site.sent)
        lengths, places = set(), set()
        for request in map(loads, site.sent):
            several = request[4][0] if request[3] == SEVERAL else [request]
            for _, recipe, _, name, arguments in several:
                places |= {len(step[3][0]) for step in recipe if step[2] == "rows"}
                if name == "answer":
                    call, given = arguments
                    down = CALLS[call].down.items()
                    by_client = [given[name] for name, shape in down if shape.startswith("n")]
                    lengths |= {len(values) for values in by_client if values is not None}
        # What is the same for all of them is there once.
        assert (places, lengths) == ({n}, {1, n})


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        skcfl.IFCAClassifier(max_iter=5, random_state=0),
        skcfl.GTVRegressor(search=skcfl.LamSearch(lams=[0.1, 0.3]), alpha=0.01, random_state=0),
    ],
    ids=str,
)
def test_messages_are_as_many_as_exchanges(model, monkeypatch):
    """But for the facts of the folds, all in one message."""
    monkeypatch.setattr("skcfl.search.n_clusters.FEW_FOLDS", 3)
    sites = wires(CLASSES if "Classifier" in str(model) else REGRESSION)
    model.fit_federation(RemoteFederation(sites))
    assert [site.messages for site in sites] == [model.calls_ + 1] * 2


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize("at", [2, 3, 4, 6, 9, 13])
def test_a_site_that_fails_once_is_asked_again(at):
    """Whatever it is asked: scales, facts, or a call."""
    both = failing(lambda number: OSError("line is down") if number == at else None)
    model = FedAvgRegressor()
    with pytest.warns(UserWarning, match="line is down"):
        model.fit_federation(RemoteFederation(both, retries=1))
    assert both[1].failures == ["site 'south': OSError: line is down"]
    assert model.missing_clients_.size == 0
    assert_allclose(model.params_, here(FedAvgRegressor()).params_, rtol=1e-10)


GTV = {"lam": 0.1, "graph": "complete", "alpha": 0.1, "tol": 1e-10, "max_iter": 400}


def test_a_site_that_is_started_again_is_asked_again():
    """Away in its rounds: the fit waits for three messages, and goes on with the site later."""
    model, first, last = FedAvgRegressor(tol=1e-10, max_iter=400, alpha=0.1), 7, 11
    wanted = here(clone(model)).params_

    def south_fails(number):
        if number == last:
            south.host = SiteHost(Table("south"))
        return OSError("no line") if first <= number < last else None

    def north_waits(number):
        """Until south, once it has been started again, has replied."""
        while len(south.sent) >= last and not south.reachable:
            time.sleep(1e-3)

    south = Wire(Table("south"), south_fails)
    with pytest.warns(UserWarning, match="no line|not waited for"):
        model.fit_federation(RemoteFederation([Wire(Table("north"), north_waits), south]))
    assert south.n_waited == len(south.sent) - (last - first - 2)
    assert_allclose(model.params_, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("change", ["another", "one less", "one more row"])
def test_a_site_that_is_started_again_with_other_clients_is_lost(change):
    """Places of clients would be those of others: the result is that of the fit without them."""
    X, y, ids = Table("south").rows
    rows = {
        "another": (X, y, np.where(ids == ids[0], "another", ids)),
        "one less": tuple(part[ids != ids[0]] for part in (X, y, ids)),
        "one more row": tuple(np.concatenate([part, part[:1]]) for part in (X, y, ids)),
    }

    def south_comes_back(number):
        if number == 6:
            south.host = SiteHost(Given("south", rows[change]))

    south, model = Wire(Table("south"), south_comes_back), FedAvgRegressor(alpha=0.1)
    with pytest.warns(
        UserWarning, match="its clients are other ones than at the start of the fit"
    ):
        model.fit_federation(RemoteFederation([Wire(Table("north")), south]))
    assert_array_equal(model.missing_clients_, SOUTH)


@pytest.mark.parametrize("place", [0, 1])
def test_who_sends_rows_that_do_not_suit_is_named(place):
    """Whatever the text of a site says of another one."""

    def reply(message):
        text = "Site {!r}: y of {!r} holds NaN.".format(*(SITES if place else [*SITES][::-1]))
        return dumps(("invalid", text, None), number=number_of(message))

    both = wires()
    both[place].host.handle = reply
    with pytest.raises(ValueError, match=f"^Site {[*SITES][place]!r}: Site"):
        FedAvgRegressor().fit_federation(RemoteFederation(both))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "started_again"), [("FedALARegressor", True), ("FedProtoClassifier", False)]
)
def test_a_site_that_lost_what_its_clients_remember_is_lost(name, started_again):
    """Their own models are nowhere else: the result is that of the fit without them."""
    data = CLASSES if "Classifier" in name else REGRESSION

    def fails(number):
        if number == 8 and started_again:
            south.host = SiteHost(Table("south", data))
        return OSError("no line") if number == 8 and not started_again else None

    south = Wire(Table("south", data), fails)
    model = make(name, max_iter=6, hidden_layer_sizes=(3,))
    model.fit_federation(RemoteFederation([Wire(Table("north", data)), south]))
    assert any("clients remember are lost" in reason for reason in south.failures)
    assert_array_equal(model.missing_clients_, SOUTH)


def test_a_site_that_was_lost_takes_part_in_the_next_fit():
    """South goes away in the middle: rounds go on, and its clients are named."""
    both = failing(after(9, TimeoutError("no answer in 60 s")))
    federation, model = RemoteFederation(both), FedAvgRegressor(alpha=0.1)
    with pytest.warns(UserWarning, match="No answer of site 'south': (Timeout|not waited)"):
        model.fit_federation(federation)
    assert model.missing_clients_.tolist() == SOUTH and not both[1].reachable
    # To wait for it in every call would take for ever.
    assert both[1].failures == [
        "site 'south': TimeoutError: no answer in 60 s",
        "site 'south': not waited for until it answers again",
    ]
    # One timeout, which several messages that are on the way may share.
    assert 9 + 1 <= both[1].n_waited <= 9 + 3
    both[1].fails = lambda number: None
    model.fit_federation(federation)
    assert model.missing_clients_.size == 0 and both[1].reachable
    assert_allclose(model.params_, here(clone(model)).params_, rtol=1e-10)


def test_a_site_that_is_late_once_costs_one_timeout():
    """Then it is called in the background; once it answers, it takes part again, and says so."""
    back = threading.Event()

    def late(number):
        if number == 20:
            return TimeoutError("no answer in 60 s")
        if 20 < number < 24:
            return OSError("still busy")
        if number == 24:
            back.set()
        return None

    def north_waits(number):
        while len(south.sent) >= 24 and not (back.is_set() and south.reachable):
            time.sleep(1e-3)

    south = Wire(Table("south"), late)
    federation = RemoteFederation([Wire(Table("north"), north_waits), south])
    with pytest.warns(UserWarning, match="no answer in 60 s|not waited for"):
        model = skcfl.GTVRegressor(**GTV).fit_federation(federation)
    assert south.waiting[:24].count("skcfl call back") == 4
    wanted = here(skcfl.GTVRegressor(**GTV))
    assert_allclose(model.params_, wanted.params_, rtol=1e-6, atol=1e-7)
    assert model.missing_clients_.size == 0
    assert {one["client"] for one in model.absences_} == set(SOUTH)
    assert all(one["to_call"] > one["from_call"] for one in model.absences_)


@pytest.mark.parametrize("late_starts", [(0.0, 1.0), (1.0,)])
def test_what_a_late_site_has_made_is_made_anew(late_starts):
    """A site that did what it was asked, but too late, goes on from what the server knows."""
    both = wires()
    pool = RemoteFederation(both).open(LinearModel(alpha=0.1).bind(3), 0)
    first = pool.ask(LocalUpdate, np.zeros((6, 4)), 2, 0.05)
    wanted = pool.ask(LocalUpdate, first, 2, 0.05)
    pool.ask(LocalUpdate, first, 0, 0.05)
    if len(late_starts) == 1:  # the site has not made this before
        pool, first, wanted = pool.subset([1, 2, 3]), first[1:4], wanted[1:4]

    def late(number):
        both[1].host.handle(both[1].sent[-1])
        return OSError("60 s")

    both[1].fails = late
    with pytest.warns(UserWarning, match="60 s"):
        for more in late_starts:
            pool.ask(LocalUpdate, first + more, 2, 0.05)
    both[1].fails = lambda number: None
    assert_allclose(pool.ask(LocalUpdate, first, 2, 0.05), wanted)


def test_what_is_dropped_in_a_lost_message_is_dropped_later():
    wire = Wire(Table("south"))
    pool = RemoteFederation([wire]).open(LinearModel(alpha=0.1).bind(3), 0)
    theta = np.zeros((1, 4))
    pool.ask(Losses, theta)
    kept = len(wire.host._host._kept)
    pool.subset([0]).ask(Losses, theta)  # dropped with the next message
    wire.fails = lambda number: OSError("no line")
    with pytest.warns(UserWarning, match="no line"):
        pool.ask(Losses, theta)
    wire.fails = lambda number: None
    pool.ask(Losses, theta)
    assert len(wire.host._host._kept) == kept


def test_a_site_that_is_away_is_asked_once_a_call():
    """However often clients are asked again where all are needed."""
    calls = []
    for retries in (0, 10):
        federation = RemoteFederation(failing(after(9, OSError("no line"))), retries=retries)
        with pytest.warns(UserWarning, match="no line|not waited for"):
            calls.append(skcfl.GTVRegressor(lam=0.1).fit_federation(federation).calls_)
    assert calls[1] <= calls[0] + 3 * 10, calls


def test_calls_on_their_way_at_the_same_time_are_missed_once():
    """A short silence while all folds ask is no reason to give a site up."""
    hello = 0, [], [], "hello", ("regressor",)
    wire = Wire(Table("south"), fails=lambda number: None if number > 5 else OSError("no line"))
    waiting = [wire.start(hello) for _ in range(5)]
    with pytest.warns(UserWarning, match="no line"), pytest.raises(PlaceLost):
        waiting[0]()
    for wait in waiting[1:]:
        with pytest.raises(PlaceLost):
            wait()
    assert wire.start(hello)()[0] == "done"


def test_bytes_and_calls_of_each_round_are_counted():
    """All that travels in a fit, the hello included, and not what an earlier one has sent."""
    both = wires()
    federation = RemoteFederation(both)
    FedAvgRegressor().fit_federation(federation)
    before = [(len(wire.replies), len(wire.sent)) for wire in both]
    model = IFCARegressor(n_clusters=2, random_state=0).fit_federation(federation)
    up = sum(sum(map(len, w.replies[n:])) for w, (n, _) in zip(both, before, strict=True))
    down = sum(sum(map(len, w.sent[n:])) for w, (_, n) in zip(both, before, strict=True))
    assert model.wire_bytes_ == (up, down)
    history = model.history_
    assert 0 < history["bytes_up"].sum() < up and 0 < history["bytes_down"].sum() < down
    assert 0 < history["calls"].sum() <= model.calls_ and (history["calls"][1:] > 0).all()
    assert (history["seconds"] > 0).all()
    plain = here(IFCARegressor(n_clusters=2, random_state=0))
    assert plain.wire_bytes_ == (0, 0) and not plain.history_["bytes_up"].any()
    assert_array_equal(plain.history_["calls"], history["calls"])


def test_a_site_without_a_hello_ends_a_fit_below_min_clients():
    model, both = FedAvgRegressor(), failing(after(0, TimeoutError("60 s")))
    with (
        pytest.warns(UserWarning, match="60 s"),
        pytest.raises(FederationError, match="site 'south': TimeoutError: 60 s"),
    ):
        model.fit_federation(RemoteFederation(both, min_clients=3))
    assert not hasattr(model, "params_")


def test_what_goes_wrong_at_a_site_stays_there(caplog):
    """A server is told the type of an error, and the site's log has the rest."""
    both = wires()
    host = both[1].host._host

    def ask(key, recipe, dropped, name, arguments):
        if name == "answer":
            return "error", KeyError("secret of a patient")
        return type(host).ask(host, key, recipe, dropped, name, arguments)

    host.ask = ask
    with pytest.warns(UserWarning, match="No answer of site 'south': KeyError, see its log"):
        model = FedAvgRegressor().fit_federation(RemoteFederation(both))
    assert model.missing_clients_.size == 4
    assert "secret" not in str(both[1].failures) and "secret" in caplog.text


# --------------------------------------------------------------------- bad input


def changed(X=None, y=None, g=None):
    """Rows some of whose parts are functions of what they were."""

    def change(*rows):
        changes = zip((X, y, g), rows, strict=True)
        return tuple(part if new is None else new(part) for new, part in changes)

    return change


class Same:
    """Ids that differ, and read alike."""

    def __repr__(self):
        return "same"


def alike(groups):
    ids, both = np.empty(len(groups), dtype=object), (Same(), Same())
    ids[:] = [(both[k % 2],) for k in range(len(groups))]
    return ids


def nameless(groups):
    return np.where(np.arange(len(groups)) == 3, None, groups)


def with_names(X):
    return pytest.importorskip("pandas").DataFrame(X, columns=["a", "b", "c"])


def broken(*rows):
    raise KeyError("/data/patients of ward 7")


def first(n):
    return lambda values: values[:n]


@pytest.mark.parametrize(
    "change, message",
    [
        (changed(lambda X: X[:, :2]), "site 'north' have 3, those of site 'south' 2|'South'.*2"),
        (changed(lambda X: X.astype(np.float32)), "float64.*'south' float32"),
        (changed(*[first(0)] * 3), "Site 'south': load.* returned no row"),
        (changed(y=lambda y: y.astype(str)), "Site 'south': y must hold numbers, got text"),
        (changed(y=first(47)), "Site 'south': y must have one entry per row, 48, got 47"),
        (changed(g=nameless), "Site 'south': groups must name a client in every row"),
        (changed(with_names), "'north' has no names of the features, and Site 'south' has some"),
        (
            changed(lambda X: np.where(X > 1, np.nan, X)),
            "Site 'south': X is not valid: Input X contains NaN. Columns 0, 1, 2 of X",
        ),
        (lambda *rows: rows[:2], "Site 'south': load.* must return X, y, groups"),
        (changed(g=alike), "Site 'south': groups must hold ids that differ as text"),
        (broken, r"Site 'south': load\(\) raised KeyError, see"),
    ],
)
def test_bad_rows_name_their_site_before_anything_is_fitted(change, message):
    both = wires(change=change)
    model = FedAvgRegressor()
    with pytest.raises(ValueError, match=f"(?is){message}") as error:
        model.fit_federation(RemoteFederation(both))
    assert "ward 7" not in str(error.value)
    assert not hasattr(model, "params_")
    calls = [loads(sent)[3] for wire in both for sent in wire.sent]
    assert "answer" not in calls


def test_what_a_site_is():
    with pytest.raises(NotImplementedError, match="SiteRows must have a method load"):
        SiteRows("a").load()
    with pytest.raises(TypeError, match="rows must be SiteRows, got int"):
        SiteHost(3)
    with pytest.raises(TypeError, match="policy must be a SitePolicy or None, got dict"):
        SiteHost(Table("north", policy={"min_rows": 3}))
    with pytest.raises(TypeError, match="policy must be a SitePolicy or None, got int"):
        InProcessFederation(REGRESSION.X, REGRESSION.y, REGRESSION.groups, policy=3)
    with pytest.raises(ValueError, match="Site 'north': y must be non-negative"):
        FedAvgRegressor(loss="poisson").fit_federation(RemoteFederation(wires()))


# ------------------------------------------------------------------- what is not answered


def asked(host, *request):
    return loads(host.handle(dumps(request)))[:2]


def opened(model):
    """What makes the rows of both clients at north."""
    return 1, 0, "rows", (np.arange(2), model, np.dtype(float), None)


def test_a_host_answers_nothing_else():
    host = SiteHost(Table("north"))
    status, [(_, name, hello)] = asked(host, 0, [], [], "hello", ("regressor",))
    assert (status, name, len(hello.ids)) == ("done", "Site 'north'", 2)
    model = LinearModel().bind(3)
    rows, site = opened(model), (2, 1, "site", (model,))
    assert asked(host, 1, [rows], [], "class_totals", (2,))[0] == "lost"  # targets are no classes
    for request in (
        (0, [], [], "rows", rows[3]),
        (1, [rows], [], "take", (np.arange(2),)),
        (1, [rows], [], "outputs", ("predict",)),
        (1, [rows], [], "deal", (2, 0, False)),
        (1, [rows], [], "__getattribute__", ("X",)),
        (2, [rows, (2, 1, "take", (np.arange(2),))], [], "facts", ()),
        (2, [rows, (2, 1, "__reduce__", ())], [], "facts", ()),
        (2, [rows, site], [], "answer", ("rows", {})),
        (2, [rows, site], [], "answer", ("subset", {"clients": [0]})),
        (2, [rows, site], [], "long" * 10**5, ()),
    ):
        status, value = asked(host, *request)
        assert status == "refused", request
        assert "it knows no message" in value and len(value) < 200
    asked(host, 0, [], [0], "hello", ("regressor",))  # no message takes the rows from a site
    assert asked(host, 2, [rows, site], [], "facts", ())[0] == "done"
    for odd in (None, "text", b"", 3):
        assert loads(host.handle(odd))[0] == "lost"


def test_places_are_those_of_all_clients():
    """Fewer would be read beyond their end."""
    host, rows = SiteHost(Table("north")), opened(LinearModel().bind(3))
    for n in (1, 3):
        few = *rows[:3], (np.arange(n), *rows[3][1:])
        assert asked(host, 1, [few], [], "testable", ()) == ("lost", "ValueError, see its log")


def test_answers_that_are_no_messages_are_not_computed(monkeypatch):
    """A small message could ask for more than there is memory."""
    host, model = SiteHost(Table("north", CLASSES)), LinearModel("log_loss").bind(3, n_classes=2)
    rows = 1, 0, "rows", (np.arange(2), model, np.dtype(float), np.unique(CLASSES.y))
    steps = [rows, (2, 1, "site", (model,))]
    many = (2, steps, [], "answer", ("losses", {"theta": np.zeros((100, 4))}))
    assert asked(host, *many)[0] == "done"
    for module in (hosted_parts, host_module):
        monkeypatch.setattr(module, "MAX_BYTES", 1000)
    assert asked(host, *many) == ("lost", "the answer has 1600 bytes, more than 1000.")
    some = (2, steps, [], "answer", ("losses", {"theta": np.zeros((40, 4))}))
    assert asked(host, *some)[0] == "done"
    several = asked(host, 0, [], [], SEVERAL, ([some, some],))
    assert several == ("lost", "the replies have 1280 bytes, more than 1000.")
    assert "at most 1048576 classes" in asked(host, 1, [rows], [], "class_totals", (2**40,))[1]
    status, value = asked(host, 1, [rows], [], "distinct", (np.zeros(5, dtype=int),))
    assert status == "lost" and "ValueError" in value


def test_a_loss_of_ones_own_needs_trust(monkeypatch):
    module = types.ModuleType("test_loss_of_a_site")
    base = type(make_loss("squared_error"))
    module.Double = type("Double", (base,), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    model, trusting = LocalModels(LinearModel(module.Double())), wires()
    for wire in trusting:
        wire.host.rows.trusted = (module.__name__,)
    assert model.fit_federation(RemoteFederation(trusting)).params_.shape == (6, 4)
    with (
        pytest.warns(UserWarning, match="test_loss_of_a_site.Double, which is not trusted"),
        pytest.raises(FederationError, match="places do not answer"),
    ):
        model.fit_federation(RemoteFederation(wires()))


def test_only_numbers_leave():
    """Of what a site would send nothing but numbers, text and arrays of them passes."""
    objects = np.empty(1, dtype=object)
    objects[0] = SitePolicy()
    rows = Rows(np.ones((2, 1)), None, np.zeros(2, int), None, [0])
    for thing in (rows, [SitePolicy()], objects, LinearModel(), ClientPool):
        with pytest.raises(MessageError, match="cannot be sent|more than numbers and text"):
            dumps(thing, packages=())
    host = SiteHost(Table("north"))
    host._host.ask = lambda *request: ("done", rows)
    status, reason, _ = loads(host.handle(dumps((0, [], [], "hello", ("regressor",)))))
    assert status == "lost" and "objects of skcfl.federation.rows.Rows cannot be sent" in reason


# ----------------------------------------------------------------------------- policies


def test_a_site_without_enough_rows_has_no_part():
    both = wires(policy=SitePolicy(min_rows=13))
    with pytest.warns(UserWarning, match="site 'south': no client has min_rows=13 rows"):
        model = FedAvgRegressor().fit_federation(RemoteFederation(both))
    north = np.isin(REGRESSION.groups, SITES["north"])
    rows = REGRESSION.X[north], REGRESSION.y[north]
    wanted = FedAvgRegressor().fit(*rows, groups=named()[north])
    assert_array_equal(model.groups_, wanted.groups_)
    assert_allclose(model.params_, wanted.params_, rtol=1e-10)
    reason = "2 clients take part, and min_clients=3: site 'south': no client has min_rows=13 rows"
    with pytest.raises(FederationError, match=reason):
        FedAvgRegressor().fit_federation(RemoteFederation(both, min_clients=3))
    with (
        pytest.warns(UserWarning, match="site '.*': no client has min_rows=13 rows"),
        pytest.raises(FederationError, match="2 of 2 places do not take part: site 'north'"),
    ):
        few = SitePolicy(min_rows=13)
        sites = [Wire(Table(name, policy=few)) for name in SITES]
        FedAvgRegressor().fit_federation(RemoteFederation(sites))


def test_scores_are_of_enough_rows():
    """Of 40 rows not ten are held out in each of four folds, but twenty in each of two."""
    X = np.random.RandomState(0).normal(size=(40, 3))
    search = skcfl.LamSearch(cv=4, lams=[0.1])
    model = skcfl.GTVRegressor(search=search, graph="complete", alpha=0.01, tol=0.1)
    rows = X, X[:, 0], None
    both = [Wire(Given("north", rows, SitePolicy(min_rows=20))), Wire(Given("south", rows))]
    model.fit_federation(RemoteFederation(both))
    assert model.missing_clients_.size == 0


def test_a_server_gets_no_row_of_its_choice():
    """Not by rows of its choice, nor repeated, nor by weights, nor by folds of single rows."""
    host = SiteHost(Table("north", policy=SitePolicy(min_rows=12)))
    model = LinearModel(standardize=False).bind(3)
    rows = opened(model)
    theta = {"theta": np.ones((1, 4))}
    site = (2, 1, "site", (model, np.full(25, 3)))
    assert asked(host, 2, [rows, site], [], "answer", ("losses", theta))[0] == "lost"
    fold = (3, 1, "folds", (12, 0, False)), (4, 3, "__getitem__", (0,))
    train = (5, 4, "site", (model,))
    status, value = asked(host, 5, [rows, *fold, train], [], "answer", ("losses", theta))
    site = (2, 1, "site", (model,))  # no fold has rows: these are the answers about all
    every = asked(host, 2, [rows, site], [], "answer", ("losses", theta))[1]
    assert status == "done" and value["losses"].tolist() == every["losses"].tolist()
    scores = model, None, np.ones((1, 2, 4)), None
    status, (value, share) = asked(host, 4, [rows, *fold], [], "scores", scores)
    assert status == "done" and value.tolist() == [0.0] and share == 0.0
    each = np.zeros((24, 3))
    assert asked(host, 1, [rows], [], "moments", ("features", "squares", each))[0] == "lost"
    # What is wrong with rows would quote one.
    status, reason = asked(host, 0, [], [], "hello", ("classifier",))
    assert (status, reason) == ("invalid", "Site 'north': ValueError, see its log")


def test_answers_are_written_down(caplog):
    """Call, clients, rows and how often, with the name of the job."""
    host = SiteHost(Table("north", policy=SitePolicy(min_rows=3)), job="job-7")
    with caplog.at_level("INFO", logger="skcfl.audit"):
        asked(host, 0, [], [], "hello", ("regressor",))
        model = LinearModel().bind(3)
        rows, site = opened(model), (2, 1, "site", (model,))
        for _ in range(2):
            asked(host, 2, [rows, site], [], "answer", ("losses", {"theta": np.ones((1, 4))}))
        asked(host, 1, [rows], [], "moments", ("features", "sums"))
        asked(host, 1, [rows], [], "take", ())
    assert [record.getMessage() for record in caplog.records if record.name == "skcfl.audit"] == [
        "job=job-7 site=north call=hello clients=all rows=all times=1",
        "job=job-7 site=north call=losses clients=2 rows=24 times=1",
        "job=job-7 site=north call=losses clients=2 rows=24 times=2",
        "job=job-7 site=north call=moments clients=all rows=24 times=1",
    ]


@pytest.mark.parametrize(
    "model",
    some(
        [
            skcfl.ConvexClusteredFLRegressor(lam=0.1, client_loss="huber", max_iter=5),
            skcfl.PartialPoolingRegressor(n_clusters=1, basis="linear"),
            skcfl.IFCARegressor(n_clusters=2, aggregation="geometric_median", random_state=0),
            skcfl.RobustClusteredFLRegressor(n_clusters=2, random_state=0),
            skcfl.CLoVERegressor(n_clusters=2, aggregation="median", random_state=0),
        ],
        2,
    ),
)
@pytest.mark.filterwarnings("ignore")
def test_a_row_of_a_small_client_is_in_no_message(model):
    """A fit over a wire sends the same bytes whatever the row of a client of one row is."""
    X, y, groups = Table("south").rows
    first = np.flatnonzero(groups == groups[0])
    keep = np.setdiff1d(np.arange(len(y)), first[1:])
    replies = []
    for shift in (0.0, 1e3):
        X[first[0]] += shift
        y[first[0]] -= shift
        rows = Given("south", (X[keep], y[keep], groups[keep]), SitePolicy(min_rows=5))
        south = Wire(rows)
        model.fit_federation(RemoteFederation([Wire(Table("north")), south], retries=1))
        replies.append([reply[16:] for reply in south.replies])  # without their numbers
    assert replies[0] == replies[1]


def test_a_site_drops_what_ended_fits_have_made():
    """Their servers are gone and say nothing; one that goes on asking loses nothing."""
    host, model = SiteHost(Table("north")), LinearModel().bind(3)
    site = [opened(model), (2, 1, "site", (model,))]
    assert asked(host, 2, site, [], "facts", ())[0] == "done"
    sizes = []
    for k in range(3, 9):
        assert asked(host, 0, [], [], "hello", ("regressor",))[0] == "done"
        assert asked(host, k, [(k, 0, *opened(model)[2:])], [], "class_totals", (2,))[0] == "lost"
        assert asked(host, 2, [], [], "facts", ())[0] == "done"
        sizes.append(len(host._host._kept))
    assert sizes[-1] == sizes[-3] and all(host._host.kept(key) for key in (1, 2, 8))
    for _ in range(KEPT_FITS):
        asked(host, 0, [], [], "hello", ("regressor",))
    assert asked(host, 2, [], [], "facts", ())[0] == "unknown"
    assert asked(host, 2, site, [], "facts", ())[0] == "done"


def test_models_that_clients_remember_outlast_the_fits_of_others(monkeypatch):
    """They cannot be made anew: three short fits of another server ended a running one."""
    host, model = SiteHost(Table("north")), LinearModel().bind(3)
    site = [opened(model), (2, 1, "site", (model,))]
    asked(host, 2, site, [], "facts", ())
    n = host._host.kept(2).n_clients
    assert asked(host, 2, [], [], "answer", ("keep", {"w": np.zeros((n, 4))}))[0] == "done"
    for status in ("done", "unknown"):
        for _ in range(KEPT_FITS):
            asked(host, 0, [], [], "hello", ("regressor",))
        assert asked(host, 2, [], [], "facts", ())[0] == status
        later = partial(float, hosted_parts.time.monotonic() + 2 * KEPT_SECONDS)
        monkeypatch.setattr(hosted_parts.time, "monotonic", later)


# ------------------------------------------------------------- several requests in a message


def asked_together(host, *requests):
    return loads(host.handle(dumps((0, [], [], SEVERAL, (list(requests),)))))


def test_several_requests_are_answered_each_for_itself():
    host, hello = SiteHost(Table("north")), (0, [], [], "hello", ("regressor",))
    wrong = (0, [], [], "__reduce__", ()), (0, [], [], SEVERAL, ([hello],)), "no request"
    status, replies, note = asked_together(host, hello, *wrong, hello)
    assert (status, note) == (SEVERAL, None)
    assert [reply[0] for reply in replies] == ["done", "refused", "refused", "lost", "done"]
    assert replies[0][1][0][1] == "Site 'north'"
    for nonsense in (None, 3, "text", [hello]):
        reply = loads(host.handle(dumps((0, [], [], SEVERAL, nonsense))))
        assert reply[0] in ("lost", SEVERAL) and "done" not in str(reply)


@pytest.mark.parametrize(
    "reply",
    [
        (SEVERAL, [], None),
        (SEVERAL, [("done", 1, None)] * 3, None),
        (SEVERAL, "text", None),
        (SEVERAL, [("done", 1)], None),
        (SEVERAL, [(SEVERAL, [("done", 1, None)], None)] * 2, None),
        ("done", 1, None),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_false_replies_to_several_requests_are_none(reply):
    """The site is asked again in vain, and its clients are missing."""
    both = wires()
    handle = both[1].host.handle

    def false(message):
        several = loads(message)[3] == SEVERAL and len(both[1].sent) > 4
        number = number_of(message)
        return dumps(reply, number=number) if several else handle(message)

    both[1].host.handle = false
    model = IFCARegressor(n_clusters=2, random_state=0)
    model.fit_federation(RemoteFederation(both, retries=1))
    assert both[1].failures and not both[0].failures
    assert model.missing_clients_.tolist() == SOUTH and np.isfinite(model.params_).all()


# ------------------------------------------------------------- messages that come twice


class Twice(Wire):
    """A site that gets each message, and at the end the one before it, once more."""

    def send(self, message):
        wait, before = super().send(message), self.sent[-2:-1]

        def waits():
            reply = wait()
            assert self.host.handle(message) == reply
            for old in before:
                assert loads(self.host.handle(old))[0] == "lost"
            return self.host.handle(message)

        return waits


@pytest.mark.parametrize("name", ["FedALA", "FedRep"])
def test_copies_of_messages_are_not_answered_anew(name):
    """Clients that train models of their own would go on from what they have trained."""
    model = getattr(skcfl, f"{name}Regressor")(random_state=0, max_iter=10, tol=0)
    wanted = here(clone(model))
    found = model.fit_federation(RemoteFederation([Twice(Table("north")), Twice(Table("south"))]))
    assert_allclose(found.params_, wanted.params_, rtol=1e-8)
    assert found.missing_clients_.size == 0


@pytest.mark.filterwarnings("ignore:No answer of site")
def test_a_reply_to_another_message_is_none():
    both = wires()
    handle = both[1].host.handle

    def late(message):
        reply = handle(message)
        return both[1].replies[-1] if len(both[1].sent) == 6 else reply

    both[1].host.handle = late
    model = IFCARegressor(n_clusters=2, random_state=0)
    wanted = here(clone(model))
    model.fit_federation(RemoteFederation(both))
    assert "site 'south': MessageError: it replied to another message." in both[1].failures
    assert_allclose(model.params_, wanted.params_, rtol=1e-8)


def test_clients_of_few_rows_are_told_of():
    both = [Wire(Table(name, policy=SitePolicy(min_rows=7))) for name in SITES]
    with pytest.raises(FederationError, match="no client holds rows out: .* has 12 rows"):
        IFCARegressor(random_state=0).fit_federation(RemoteFederation(both))
    model = IFCARegressor(n_clusters=2, random_state=0).fit_federation(RemoteFederation(both))
    assert model.missing_clients_.size == 0
    X = np.random.RandomState(0).normal(size=(35, 3))
    rows = X, X[:, 0], np.repeat(["a", "b"], [30, 5])
    one = Wire(Given("north", rows, SitePolicy(min_rows=7)))
    reason = "clients, or parts of their rows, have fewer than min_rows=7 rows"
    with pytest.warns(UserWarning, match=f"No answer of site 'north': {reason}"):
        FedAvgRegressor().fit_federation(RemoteFederation([one]))
    assert one.failures == [f"site 'north': {reason}"]
