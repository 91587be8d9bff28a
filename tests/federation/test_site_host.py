"""Sites that load their own rows, behind a wire of bytes: what they answer, and what not."""

import os
import pickle
import threading
import time
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy import sparse
from site_tables import CLASSES, IDS, REGRESSION, SITES, Table, Wire, named, wires
from trials import some

import skcfl
from skcfl import FedAvgRegressor, IFCARegressor, LocalModels, LocalModelsRegressor, Training
from skcfl.calls import CALLS
from skcfl.calls.first_order import LocalUpdate, Losses
from skcfl.exceptions import FederationError, MessageError
from skcfl.federation import InProcessFederation, SitePolicy, SiteRows
from skcfl.federation.bounds import Limits
from skcfl.federation.host import SiteHost
from skcfl.federation.pool import ClientPool
from skcfl.federation.remote import RemoteFederation, RemoteRows
from skcfl.federation.row_calls import ROW_CALLS
from skcfl.federation.rows import Rows
from skcfl.federation.serialization import dumps, loads
from skcfl.federation.sites import PlaceLost
from skcfl.federation.transport import SEVERAL
from skcfl.federation.wire import WireTransport
from skcfl.models import Autoencoder, LinearModel, Location
from skcfl.models.losses import make_loss
from skcfl.testing import check_pool


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "name, parameters",
    [
        ("IFCARegressor", {"n_clusters": 2}),
        ("CLoVEClassifier", {"n_clusters": 2}),
        ("FedAvgClassifier", {"class_weight": "balanced"}),
        ("LocalModelsRegressor", {"loss": "huber"}),
        ("GTVRegressor", {"lam": 0.1}),
        ("FPFCRegressor", {"lam": 0.5}),
        ("ConvexClusteredFLClassifier", {"lam": 0.05, "graph": "complete"}),
        (
            "GTVRegressor",
            {"search": skcfl.LamSearch(cv=2, lams=[0.1]), "graph": "complete", "alpha": 0.01},
        ),
        ("PartialPoolingRegressor", {"n_clusters": 1}),
        ("FedAvgRegressor", {"loss": "quantile"}),
        (
            "IFCAClassifier",
            {"n_clusters": 2, "hidden_layer_sizes": (3,), "training": Training(batch_size=5)},
        ),
    ],
)
def test_fits_over_a_wire_are_those_of_one_process(name, parameters):
    data = CLASSES if "Classifier" in name else REGRESSION
    known = getattr(skcfl, name)().get_params()
    given = {key: v for key, v in {"random_state": 0, "max_iter": 15}.items() if key in known}
    model = getattr(skcfl, name)(**given, **parameters)
    wanted = model.fit(data.X, data.y, groups=named(data))
    params, objective, booked = wanted.params_, wanted.objective_, wanted.calls_
    labels, ids = wanted.labels_, wanted.groups_
    found = model.fit_federation(RemoteFederation(wires(data)))
    assert_array_equal(found.groups_, ids)
    assert_array_equal(found.labels_, labels)
    tolerance = 2e-3 if params.dtype == np.float32 else 1e-10
    scale = np.abs(params).max()
    np.testing.assert_allclose(found.params_, params, rtol=tolerance, atol=tolerance * scale)
    np.testing.assert_allclose(found.objective_, objective, rtol=tolerance)
    assert found.calls_ == booked
    # Whatever is left of the fit has nothing of the federation in it.
    pickled = pickle.dumps(found)
    assert b"federation.remote" not in pickled and b"federation.wire" not in pickled


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("PartialPoolingRegressor", {"basis": "splines"}),
        ("PartialPoolingClassifier", {"basis": skcfl.TreeBasis(5, max_bins=16)}),
        ("PartialPoolingRegressor", {"crossed": [2]}),
    ],
    ids=["curves", "trees", "levels"],
)
def test_curves_trees_and_levels_go_over_a_wire(name, parameters):
    """They ask for quantiles, histograms and sums by level."""
    rng = np.random.default_rng(0)
    groups = np.repeat([f"{k:02d}" for k in range(8)], 30)
    level = rng.integers(6, size=240)
    X = np.column_stack([rng.standard_normal((240, 2)), level])
    y = np.sin(2 * X[:, 0]) + X[:, 1] * (X[:, 0] > 0) + np.linspace(-1, 1, 6)[level]
    y = y + 0.3 * rng.standard_normal(240)
    y = y > 0 if "Classifier" in name else y

    class Half(SiteRows):
        def load(self):
            here = (groups < "03") == (self.name == "a")
            return X[here], y[here], groups[here]

    ids = np.char.add(np.where(groups < "03", "a/", "b/"), groups)
    model = getattr(skcfl, name)(n_clusters=1, **parameters).fit(X, y, groups=ids)
    output = "predict_proba" if "Classifier" in name else "predict"
    wanted, calls = getattr(model, output)(X, groups=ids), model.calls_
    model.fit_federation(RemoteFederation([Wire(Half("a")), Wire(Half("b"))]))
    np.testing.assert_allclose(getattr(model, output)(X, groups=ids), wanted, atol=1e-8)
    assert model.calls_ == calls


def test_every_call_goes_over_a_wire():
    class Given(SiteRows):
        def __init__(self, rows):
            super().__init__("site")
            self.given = rows

        def load(self):
            return self.given

    def make_pool(model, X, y, codes, n_clients, sample_weight):
        ids = np.array([f"{k:02d}" for k in range(n_clients)])
        host = SiteHost(Given((X, y, ids[codes], sample_weight)))
        wire = Wire.__new__(Wire)
        WireTransport.__init__(wire, "site")
        wire.host, wire.fails = host, lambda number: None
        wire.sent, wire.waiting, wire.replies = [], [], []
        root = RemoteFederation([wire])._roots[0]
        # What an honest site answers is within its bounds.
        sizes, totals = np.bincount(codes, minlength=n_clients), np.bincount(codes, sample_weight)
        limits = Limits(sizes, totals, X.shape[1])
        rows = RemoteRows(np.arange(n_clients), limits, root.line, root, "rows")
        # A site that owns clients without rows is made by hand.
        host._host._kept[rows.key] = Rows(X, y, codes, sample_weight, rows.places)
        return ClientPool(rows.site(model), model)

    check_pool(make_pool)


def test_clients_have_the_name_of_their_site():
    class Alone(Table):
        def load(self):
            return *self.rows[:2], None, np.ones(len(self.rows[1]))

    model = LocalModelsRegressor().fit_federation(
        RemoteFederation([Wire(Alone("north")), Wire(Table("south"))])
    )
    assert model.groups_.tolist() == ["north", *(f"south/{name}" for name in IDS[2:])]
    # The same name at two sites is two clients.
    double = [Wire(Table(name, change=lambda X, y, g: (X, y, ["a"] * len(y)))) for name in SITES]
    model = LocalModelsRegressor().fit_federation(RemoteFederation(double))
    assert model.groups_.tolist() == ["north/a", "south/a"]


def test_tables_of_any_kind():
    """Names of columns come by hello; ids are numbers here, features sparse, targets none."""
    pd = pytest.importorskip("pandas")

    def frame(X, y, g):
        return pd.DataFrame(X, columns=["age", "dose", "stage"]), y, g

    both = [Wire(Table(name, change=frame)) for name in SITES]
    model = FedAvgRegressor().fit_federation(RemoteFederation(both))
    assert model.feature_names_in_.tolist() == ["age", "dose", "stage"]

    def sparse_rows(X, y, g):
        return sparse.csr_array(X), None, np.unique(g, return_inverse=True)[1]

    both = [Wire(Table(name, change=sparse_rows)) for name in SITES]
    model = LocalModels(Location()).fit_federation(RemoteFederation(both))
    wanted = LocalModels(Location()).fit(REGRESSION.X, groups=named())
    np.testing.assert_allclose(model.params_, wanted.params_, rtol=1e-10)
    assert model.groups_[[0, 5]].tolist() == ["north/0", "south/3"]


def test_a_site_is_sent_its_own_clients_only():
    """Of what has an entry per client a site gets its clients' entries, and no other's id."""
    seen = {}

    class Spy(Wire):
        def send(self, message):
            request = loads(message)
            for one in request[4][0] if request[3] == SEVERAL else [request]:
                self.look(*one)
            return super().send(message)

        def look(self, key, recipe, dropped, name, arguments):
            for step in recipe:
                if step[2] == "rows":
                    seen.setdefault("places", {})[self.name] = len(step[3][0])
            if name == "answer":
                call, sent = arguments
                for argument, shape in CALLS[call].down.items():
                    if shape.startswith("n") and sent[argument] is not None:
                        seen.setdefault(self.name, set()).add(len(sent[argument]))

    spies = [Spy(Table(name)) for name in SITES]
    LocalModelsRegressor().fit_federation(RemoteFederation(spies))
    # What is the same for all of them is there once.
    assert seen == {"places": {"north": 2, "south": 4}, "north": {1, 2}, "south": {1, 4}}
    assert not any(b"south" in message for message in spies[0].sent)
    assert not any(b"north" in message for message in spies[1].sent)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "model",
    [
        skcfl.IFCARegressor(max_iter=5, random_state=0),
        skcfl.CLoVEClassifier(max_iter=5, random_state=0),
        skcfl.GTVRegressor(search=skcfl.LamSearch(lams=[0.1, 0.3]), random_state=0),
    ],
    ids=str,
)
def test_messages_are_as_many_as_exchanges(model):
    """But for the facts of the folds, all in one message."""
    sites = wires(CLASSES if "Classifier" in str(model) else REGRESSION)
    model.fit_federation(RemoteFederation(sites))
    assert [site.messages for site in sites] == [model.calls_ + 1] * 2


# --------------------------------------------------------------------------- failures


def test_a_site_that_fails_is_missing():
    """South goes away in the middle: rounds go on, and its clients are named."""
    fails = {"fails": lambda number: TimeoutError("no answer in 60 s") if number > 12 else None}
    both = [Wire(Table("north")), Wire(Table("south"), **fails)]
    model = IFCARegressor(n_clusters=2, random_state=0)
    with pytest.warns(UserWarning, match="No answer of site 'south': (Timeout|not waited)"):
        model.fit_federation(RemoteFederation(both))
    assert model.missing_clients_.tolist() == [f"south/{name}" for name in IDS[2:]]
    # To wait for it in every call would take for ever.
    assert both[1].failures == [
        "site 'south': TimeoutError: no answer in 60 s",
        "site 'south': not waited for until it answers again",
    ]
    # One timeout, which several messages that are on the way may share.
    assert 12 + 1 <= both[1].n_waited <= 12 + 3
    assert np.isfinite(model.params_).all()


@pytest.mark.parametrize("failing", range(2, 14))
def test_a_site_that_fails_once_is_asked_again(failing):
    """Whatever it is asked: scales, facts, or a call."""
    wanted = FedAvgRegressor().fit(REGRESSION.X, REGRESSION.y, groups=named()).params_
    fails = {"fails": lambda number: OSError("line is down") if number == failing else None}
    both = [Wire(Table("north")), Wire(Table("south"), **fails)]
    model = FedAvgRegressor()
    with pytest.warns(UserWarning, match="line is down"):
        model.fit_federation(RemoteFederation(both, retries=1))
    assert both[1].failures == ["site 'south': OSError: line is down"]
    assert model.missing_clients_.size == 0
    np.testing.assert_allclose(model.params_, wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "first", "last"), [("FedAvgRegressor", 7, 11), ("GTVRegressor", 9, 17)]
)
def test_a_site_that_is_started_again_is_asked_again(name, first, last):
    """Away in its rounds: the fit waits for three messages, and goes on with the site later."""
    known = getattr(skcfl, name)().get_params()
    given = {"lam": 0.1, "graph": "complete", "tol": 1e-10, "max_iter": 400, "alpha": 0.1}
    model = getattr(skcfl, name)(**{key: v for key, v in given.items() if key in known})
    wanted = model.fit(REGRESSION.X, REGRESSION.y, groups=named()).params_

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
    np.testing.assert_allclose(model.params_, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("started_again", [True, False])
@pytest.mark.parametrize("name", ["DittoRegressor", "FedALARegressor", "FedProtoClassifier"])
def test_a_site_that_lost_what_its_clients_remember_is_lost(name, started_again):
    """Their own models are nowhere else: the result is that of the fit without them."""
    data = CLASSES if "Classifier" in name else REGRESSION
    options = {"random_state": 0, "max_iter": 6, "hidden_layer_sizes": (3,)}
    known = getattr(skcfl, name)().get_params()
    options = {key: value for key, value in options.items() if key in known}

    def fails(number):
        if number == 8 and started_again:
            south.host = SiteHost(Table("south", data))
        return OSError("no line") if number == 8 and not started_again else None

    south = Wire(Table("south", data), fails)
    model = getattr(skcfl, name)(**options)
    model.fit_federation(RemoteFederation([Wire(Table("north", data)), south]))
    assert any("clients remember are lost" in reason for reason in south.failures)
    assert_array_equal(model.missing_clients_, [f"south/{client}" for client in IDS[2:]])


def test_a_site_that_was_lost_takes_part_in_the_next_fit():
    both = wires()
    both[1].fails = lambda number: OSError("no line") if 9 < number else None
    federation = RemoteFederation(both)
    with pytest.warns(UserWarning, match="no line|not waited for"):
        model = FedAvgRegressor(alpha=0.1).fit_federation(federation)
    assert len(model.missing_clients_) == 4 and not both[1].reachable
    both[1].fails = lambda number: None
    model.fit_federation(federation)
    wanted = FedAvgRegressor(alpha=0.1).fit(REGRESSION.X, REGRESSION.y, groups=named())
    assert model.missing_clients_.size == 0 and both[1].reachable
    np.testing.assert_allclose(model.params_, wanted.params_, rtol=1e-10)


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

    options = {"lam": 0.1, "graph": "complete", "alpha": 0.1, "tol": 1e-10, "max_iter": 400}
    south = Wire(Table("south"), late)
    federation = RemoteFederation([Wire(Table("north"), north_waits), south])
    with pytest.warns(UserWarning, match="no answer in 60 s|not waited for"):
        model = skcfl.GTVRegressor(**options).fit_federation(federation)
    assert south.waiting[:24].count("skcfl call back") == 4
    wanted = skcfl.GTVRegressor(**options)
    wanted.fit(REGRESSION.X, REGRESSION.y, groups=named())
    np.testing.assert_allclose(model.params_, wanted.params_, rtol=1e-6, atol=1e-7)
    assert model.missing_clients_.size == 0
    away = {one["client"] for one in model.absences_}
    assert away == {f"south/{name}" for name in IDS[2:]}
    assert all(one["to_call"] > one["from_call"] for one in model.absences_)


def test_a_site_that_is_away_is_asked_once_a_call():
    """However often clients are asked again where all are needed."""
    calls = []
    for retries in (0, 10):
        south = Wire(Table("south"), lambda n: OSError("no line") if n > 9 else None)
        federation = RemoteFederation([Wire(Table("north")), south], retries=retries)
        with pytest.warns(UserWarning, match="no line|not waited for"):
            calls.append(skcfl.GTVRegressor(lam=0.1).fit_federation(federation).calls_)
    assert calls[1] <= calls[0] + 3 * 10, calls


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
    np.testing.assert_allclose(pool.ask(LocalUpdate, first, 2, 0.05), wanted)


def test_what_is_dropped_in_a_lost_message_is_dropped_later():
    wire = Wire(Table("south"))
    pool = RemoteFederation([wire]).open(LinearModel(alpha=0.1).bind(3), 0)
    pool.ask(Losses, np.zeros((1, 4)))
    kept = len(wire.host._host._kept)
    pool.subset([0]).ask(Losses, np.zeros((1, 4)))  # dropped with the next message
    wire.fails = lambda number: OSError("no line")
    with pytest.warns(UserWarning, match="no line"):
        pool.ask(Losses, np.zeros((1, 4)))
    wire.fails = lambda number: None
    pool.ask(Losses, np.zeros((1, 4)))
    assert len(wire.host._host._kept) == kept


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
    here = IFCARegressor(n_clusters=2, random_state=0).fit(
        REGRESSION.X, REGRESSION.y, groups=named()
    )
    assert here.wire_bytes_ == (0, 0) and not here.history_["bytes_up"].any()
    assert_array_equal(here.history_["calls"], history["calls"])


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


def test_below_min_clients_the_fit_ends():
    fails = {"fails": lambda number: ConnectionError("gone") if number > 4 else None}
    both = [Wire(Table("north")), Wire(Table("south"), **fails)]
    model = FedAvgRegressor()
    with (
        pytest.warns(UserWarning, match="gone|not waited for"),
        pytest.raises(FederationError, match="2 of 6 clients answer, and min_clients=3: 'south/"),
    ):
        model.fit_federation(RemoteFederation(both, min_clients=3))
    assert not hasattr(model, "params_")


def test_a_site_that_does_not_say_hello_ends_the_fit():
    both = [Wire(Table("north")), Wire(Table("south"), lambda number: TimeoutError("60 s"))]
    with (
        pytest.warns(UserWarning, match="60 s"),
        pytest.raises(FederationError, match="site 'south': TimeoutError: 60 s"),
    ):
        FedAvgRegressor().fit_federation(RemoteFederation(both))


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


def other_columns(X, y, g):
    return X[:, :2], y, g


def other_dtype(X, y, g):
    return X.astype(np.float32), y, g


def no_rows(X, y, g):
    return X[:0], y[:0], g[:0]


def text(X, y, g):
    return X, np.repeat("high", len(y)), g


def short(X, y, g):
    return X, y[1:], g


def with_names(X, y, g):
    return pytest.importorskip("pandas").DataFrame(X, columns=["a", "b", "c"]), y, g


def nameless(X, y, g):
    return X, y, np.where(np.arange(len(y)) == 3, None, g)


def holes(X, y, g):
    return np.where(X > 1, np.nan, X), y, g


def pair(X, y, g):
    return X, y


def alike(X, y, g):
    ids = np.empty(len(y), dtype=object)
    ids[:] = [(Same(k % 2),) for k in range(len(y))]
    return X, y, ids


class Same:
    """Two ids that read alike."""

    def __init__(self, k):
        self.k = k

    def __eq__(self, other):
        return self.k == other.k

    def __hash__(self):
        return hash(self.k)

    def __repr__(self):
        return "same"


@pytest.mark.parametrize(
    "change, message",
    [
        (other_columns, "site 'north' have 3, those of site 'south' 2|'South'.*2"),
        (other_dtype, "float64.*'south' float32"),
        (no_rows, "Site 'south': load.* returned no row"),
        (text, "Site 'south': y must hold numbers, got text"),
        (short, "Site 'south': y must have one entry per row, 48, got 47"),
        (nameless, "Site 'south': groups must name a client in every row"),
        (with_names, "Site 'north' has no names of the features, and Site 'south' has some"),
        (holes, "Site 'south': X is not valid: Input X contains NaN. Columns 0, 1, 2 of X"),
        (pair, "Site 'south': load.* must return X, y, groups"),
        (alike, "Site 'south': groups must hold ids that differ as text"),
    ],
)
def test_bad_rows_name_their_site_before_anything_is_fitted(change, message):
    both = wires(change=change)
    model = FedAvgRegressor()
    with pytest.raises(ValueError, match=f"(?is){message}"):
        model.fit_federation(RemoteFederation(both))
    assert not hasattr(model, "params_")
    calls = [loads(sent)[3] for wire in both for sent in wire.sent]
    assert "answer" not in calls


def test_targets_that_do_not_suit_the_loss():
    with pytest.raises(ValueError, match="Site 'north': y must be non-negative"):
        FedAvgRegressor(loss="poisson").fit_federation(RemoteFederation(wires()))


def test_load_that_raises():
    def broken(*rows):
        raise KeyError("/data/patients of ward 7")

    with pytest.raises(ValueError, match=r"Site 'south': load\(\) raised KeyError, see") as error:
        FedAvgRegressor().fit_federation(RemoteFederation(wires(change=broken)))
    assert "ward 7" not in str(error.value)


def test_what_a_site_is():
    with pytest.raises(NotImplementedError, match="SiteRows must have a method load"):
        SiteRows("a").load()
    with pytest.raises(TypeError, match="rows must be SiteRows, got int"):
        SiteHost(3)
    rows = Table("north")
    rows.policy = {"min_rows": 3}
    with pytest.raises(TypeError, match="policy must be a SitePolicy or None, got dict"):
        SiteHost(rows)


# ------------------------------------------------------------------- what is not answered


def asked(host, *request):
    return loads(host.handle(dumps(request)))[:2]


def test_a_host_answers_nothing_else():
    host = SiteHost(Table("north"))
    ask = (0, [], [], "hello", ("regressor",))
    status, [(_, name, hello)] = asked(host, *ask)
    assert (status, name, len(hello.ids)) == ("done", "Site 'north'", 2)
    model = LinearModel().bind(3)
    rows = (1, 0, "rows", (np.arange(2), model, np.dtype(float), None))
    assert asked(host, 1, [rows], [], "class_totals", (2,))[0] == "lost"  # targets are no classes
    for request in (
        (0, [], [], "rows", rows[3]),
        (1, [rows], [], "take", (np.arange(2),)),
        (1, [rows], [], "outputs", ("predict",)),
        (1, [rows], [], "deal", (2, 0, False)),
        (1, [rows], [], "__getattribute__", ("X",)),
        (2, [rows, (2, 1, "take", (np.arange(2),))], [], "facts", ()),
        (2, [rows, (2, 1, "__reduce__", ())], [], "facts", ()),
        (2, [rows, (2, 1, "site", (model,))], [], "answer", ("rows", {})),
        (2, [rows, (2, 1, "site", (model,))], [], "answer", ("subset", {"clients": [0]})),
    ):
        status, value = asked(host, *request)
        assert status == "refused", request
        assert "it knows no message" in value
    assert asked(host, 2, [rows, (2, 1, "site", (model,))], [], "facts", ())[0] == "done"


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def test_messages_make_nothing_but_local_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    host = SiteHost(Table("north"))
    reply = loads(host.handle(pickle.dumps(Harm())))
    assert reply == ("lost", "these bytes are no message of this version of skcfl.", None)
    assert not (tmp_path / "harm").exists()
    for thing in (Harm(), np.random.RandomState(0), Rows):
        with pytest.raises(MessageError, match="which is not trusted here|cannot be sent"):
            loads(dumps({"a": thing}))
    for thing in (np.load, make_loss, lambda: 0):
        with pytest.raises(MessageError):
            loads(dumps(thing))


@pytest.mark.parametrize("model", [LinearModel("huber"), Autoencoder(hidden_layer_sizes=(2,))])
def test_local_models_travel(model):
    bound = model.bind(4)
    found = loads(dumps(bound))
    assert type(found) is type(bound) and found.n_params == bound.n_params
    values = np.arange(6.0).reshape(2, 3), np.float32(2), np.array(["a", "bc"]), np.dtype("f4")
    for value, wanted in zip(loads(dumps(values)), values, strict=True):
        assert_array_equal(value, wanted)
    ids = np.array(["a", 3], dtype=object)
    assert loads(dumps(ids)).tolist() == ["a", 3]


def test_a_loss_of_ones_own_needs_trust():
    class Own(Table):
        trusted = ("test_loss_of_a_site",)

    import sys
    import types

    base = type(make_loss("squared_error"))
    module = types.ModuleType("test_loss_of_a_site")
    module.Double = type("Double", (base,), {"__module__": module.__name__})
    sys.modules[module.__name__] = module
    try:
        model = LocalModels(LinearModel(module.Double()))
        found = model.fit_federation(RemoteFederation([Wire(Own("north")), Wire(Own("south"))]))
        assert found.params_.shape == (6, 4)
        with (
            pytest.warns(UserWarning, match="test_loss_of_a_site.Double, which is not trusted"),
            pytest.raises(FederationError, match="places do not answer"),
        ):
            model.fit_federation(RemoteFederation(wires()))
    finally:
        del sys.modules[module.__name__]


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


def test_a_refusal_ends_a_sites_part():
    both = wires(policy=SitePolicy(calls={*CALLS, *ROW_CALLS} - {"hessians"}))
    with pytest.warns(UserWarning, match="site 'south': it does not answer hessians"):
        model = FedAvgRegressor(alpha=0.01).fit_federation(RemoteFederation(both))
    assert model.missing_clients_.tolist() == [f"south/{name}" for name in IDS[2:]]
    # A method that needs none gets its answers, from the same site.
    model = LocalModelsRegressor(alpha=0.01).fit_federation(RemoteFederation(both))
    assert model.missing_clients_.size == 0


def test_a_refusal_is_quoted_where_too_few_are_left():
    both = wires(policy=SitePolicy(max_calls=2))
    with (
        pytest.warns(UserWarning, match="it has answered max_calls=2 calls"),
        pytest.raises(FederationError, match="2 of 6 clients answer, and min_clients=6"),
    ):
        FedAvgRegressor().fit_federation(RemoteFederation(both, min_clients=6))


def test_a_site_without_enough_rows_has_no_part():
    both = wires(policy=SitePolicy(min_rows=13))
    with pytest.warns(UserWarning, match="site 'south': no client has min_rows=13 rows"):
        model = FedAvgRegressor().fit_federation(RemoteFederation(both))
    here = np.isin(REGRESSION.groups, SITES["north"])
    rows = REGRESSION.X[here], REGRESSION.y[here]
    wanted = FedAvgRegressor().fit(*rows, groups=named()[here])
    assert_array_equal(model.groups_, wanted.groups_)
    np.testing.assert_allclose(model.params_, wanted.params_, rtol=1e-10)
    reason = "site 'south': no client has min_rows=13 rows"
    with pytest.raises(FederationError, match=f"2 clients take part, and min_clients=3: {reason}"):
        FedAvgRegressor().fit_federation(RemoteFederation(both, min_clients=3))
    with (
        pytest.warns(UserWarning, match="site '.*': no client has min_rows=13 rows"),
        pytest.raises(FederationError, match="2 of 2 places do not take part: site 'north'"),
    ):
        few = SitePolicy(min_rows=13)
        sites = [Wire(Table(name, policy=few)) for name in SITES]
        FedAvgRegressor().fit_federation(RemoteFederation(sites))


def test_scores_of_few_rows_stay():
    """Of 40 rows ten are held out, which are too few: so the 30 others would tell of them."""
    X = np.random.RandomState(0).normal(size=(40, 3))
    model = skcfl.GTVRegressor(
        search=skcfl.LamSearch(cv=4, lams=[0.1]), graph="complete", alpha=0.01
    )
    both = [
        Wire(Table(name, change=lambda *rows: (X, X[:, 0], None), policy=policy))
        for name, policy in (("north", SitePolicy(min_rows=20)), ("south", None))
    ]
    with pytest.warns(UserWarning) as told:
        model.fit_federation(RemoteFederation(both))
    assert {str(one.message) for one in told} == {
        "No answer of site 'north': no client has min_rows=20 rows for scores",
        "No answer of site 'north': clients, or parts of their rows, have fewer than min_rows=20 "
        "rows",
    }
    assert model.missing_clients_.size == 0


def test_clients_of_few_rows_are_told_of():
    """Rows that are held out to choose the number of clusters are too few of every client."""
    both = [Wire(Table(name, policy=SitePolicy(min_rows=7))) for name in SITES]
    reason = "clients, or parts of their rows, have fewer than min_rows=7 rows"
    with (
        pytest.warns(UserWarning, match=f"No answer of site '.*': {reason}"),
        pytest.raises(FederationError, match="0 of 6 clients answer"),
    ):
        IFCARegressor(random_state=0).fit_federation(RemoteFederation(both))
    assert both[0].failures == [f"site 'north': {reason}"]
    model = IFCARegressor(n_clusters=2, random_state=0).fit_federation(RemoteFederation(both))
    assert model.missing_clients_.size == 0


def test_in_process_policy_must_be_one():
    with pytest.raises(TypeError, match="policy must be a SitePolicy or None, got int"):
        InProcessFederation(REGRESSION.X, REGRESSION.y, REGRESSION.groups, policy=3)


def test_a_server_gets_no_row_of_its_choice():
    """Not by rows of its choice, nor repeated, nor by weights, nor by folds of single rows."""
    host = SiteHost(Table("north", policy=SitePolicy(min_rows=12)))
    model = LinearModel(standardize=False).bind(3)
    rows = (1, 0, "rows", (np.arange(2), model, np.dtype(float), None))
    theta = {"theta": np.ones((1, 4))}
    site = (2, 1, "site", (model, np.full(25, 3)))
    assert asked(host, 2, [rows, site], [], "answer", ("losses", theta))[0] == "lost"
    fold = (3, 1, "folds", (12, 0, False)), (4, 3, "__getitem__", (0,))
    train = (5, 4, "site", (model,))
    status, value = asked(host, 5, [rows, *fold, train], [], "answer", ("losses", theta))
    assert status == "done" and not value["answered"].any() and not value["losses"].any()
    status, reason = asked(host, 4, [rows, *fold], [], "scores", (model, None, theta, None))
    assert status == "refused" and "no client has min_rows=12 rows for scores" in reason
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
        rows = (1, 0, "rows", (np.arange(2), model, np.dtype(float), None))
        site = (2, 1, "site", (model,))
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
            skcfl.ConvexClusteredFLRegressor(lam=0.1, client_loss="huber", max_iter=20),
            skcfl.PartialPoolingRegressor(n_clusters=1, basis="linear"),
            skcfl.IFCARegressor(n_clusters=2, aggregation="geometric_median", random_state=0),
            skcfl.RobustClusteredFLRegressor(n_clusters=2, random_state=0),
            skcfl.CLoVERegressor(n_clusters=2, aggregation="median", random_state=0),
        ],
        2,
    ),
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_row_of_a_small_client_is_in_no_message(model):
    """A fit over a wire sends the same bytes whatever the row of a client of one row is."""

    def change(shift):
        def one_row(X, y, g):
            first = np.flatnonzero(g == g[0])
            X, y = X.copy(), y.copy()
            X[first[0]] += shift
            y[first[0]] -= shift
            keep = np.setdiff1d(np.arange(len(y)), first[1:])
            return X[keep], y[keep], g[keep]

        return one_row

    replies = []
    for shift in (0.0, 1e3):
        policy = SitePolicy(min_rows=5)
        both = [Wire(Table("north")), Wire(Table("south", change=change(shift), policy=policy))]
        seen, handle = [], both[1].host.handle
        both[1].host.handle = lambda message, h=handle, s=seen: s.append(h(message)) or s[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit_federation(RemoteFederation(both))
        replies.append(seen)
    assert replies[0] == replies[1]


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
def test_false_replies_to_several_requests_are_none(reply):
    """The site is asked again by single messages, or its clients are missing."""
    wanted = IFCARegressor(n_clusters=2, random_state=0).fit_federation(RemoteFederation(wires()))
    both = wires()
    handle = both[1].host.handle

    def false(message):
        several = loads(message)[3] == SEVERAL and len(both[1].sent) > 4
        return dumps(reply) if several else handle(message)

    both[1].host.handle = false
    model = IFCARegressor(n_clusters=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit_federation(RemoteFederation(both, retries=1))
    assert both[1].failures and not both[0].failures
    if model.missing_clients_.size:
        assert model.missing_clients_.tolist() == [f"south/{name}" for name in IDS[2:]]
        assert np.isfinite(model.params_).all()
    else:
        np.testing.assert_allclose(model.params_, wanted.params_, rtol=1e-8)
