"""What a server asks to learn single rows or clients, and sites under a policy refuse."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from site_tables import Given, Wire

from skcfl import ConvexClusteredFLRegressor
from skcfl.calls import CALLS
from skcfl.exceptions import MessageError
from skcfl.federation import InProcessFederation, SitePolicy
from skcfl.federation.host import SiteHost
from skcfl.federation.judging import FoldRows
from skcfl.federation.policy import FitGuard, Guard
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.rows import Rows
from skcfl.federation.scaling import Scaling
from skcfl.federation.serialization import _Writer, dumps, loads
from skcfl.federation.sites import Refused
from skcfl.models import MLP, LinearModel
from skcfl.models.losses import Huber, SquaredError
from skcfl.models.losses.shifted import Shifted

MODEL = LinearModel(alpha=0.1, standardize=False).bind(2)
SAME = [("same", 0, None), ("same", 1, None)]


def rows_of(sizes, policy, form=np.asarray):
    """Rows of clients of some sizes under a policy."""
    codes, rng = np.repeat(np.arange(len(sizes)), sizes), np.random.RandomState(0)
    X, y = rng.normal(size=(len(codes), 2)), rng.normal(size=len(codes))
    own = form(X), y, codes, None, np.arange(len(sizes))
    return Rows(*own, guard=FitGuard(Guard(policy)))


class Bytes:
    """A server's messages to a real host, as bytes."""

    def __init__(self, X, y, groups=None, policy=None, weights=None):
        rows = (X, y, groups) if weights is None else (X, y, groups, weights)
        self.host, self.steps = SiteHost(Given("north", rows, policy)), []

    def make(self, source, method, *arguments):
        """What a method makes of something of the site."""
        self.steps.append((len(self.steps) + 1, source, method, arguments))
        return len(self.steps)

    def rows(self, n_clients, model, classes=None):
        return self.make(0, "rows", np.arange(n_clients), model, np.dtype(float), classes)

    def site(self, n_clients):
        """What answers calls about a model."""
        return self.make(self.rows(n_clients, MODEL), "site", MODEL)

    def ask(self, thing, name, *arguments):
        """Status and value of the reply."""
        request = thing, self.steps[:thing], [], name, arguments
        return loads(self.host.handle(dumps(request)))[:2]

    def call(self, site, name, **arguments):
        return self.ask(site, "answer", name, arguments)


def table(n, seed=0):
    rng = np.random.RandomState(seed)
    return rng.normal(size=(n, 2)), rng.normal(size=n)


def units(mean=0.0, scale=1.0):
    return Scaling(np.array([mean, 0.0]), np.array([scale, 1.0]))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_rows_are_scaled_once_and_before_anything_else_is_made(form):
    """Several roundings are indicators of the rows above a value that the server chooses."""
    rows = rows_of([20], SitePolicy(min_rows=5), form)
    scaled = rows.scaled(units(scale=2.0))
    network, _ = MLP((2,), loss="squared_error").bind(2).with_scaling(units())
    assert scaled.site(MODEL).n_clients == rows.site(network).n_clients == 1
    for make, message in (
        (lambda: scaled.scaled(units()), "scaled once, and are not scaled again"),
        (lambda: scaled.made(SAME), "nothing is made of rows that have been scaled"),
        (lambda: scaled.site(network), "not scaled again"),
    ):
        with pytest.raises(Refused, match=message):
            make()


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [(float, {"mean": -(2.0**60)}), (np.float32, {"mean": 1e6}), (np.float32, {"scale": 1e30})],
)
def test_no_scaling_rounds_rows_away(dtype, numbers):
    def form(X):
        return (X * [1.0, 0.0]).astype(dtype)

    rows = rows_of([20], SitePolicy(min_rows=5), form)
    # Zeros have nothing to round, and other sites may measure in thousands of the units.
    rows.scaled(Scaling(np.array([1e3, 1e9]), np.array([1e3, 1e9])))
    with pytest.raises(Refused, match="mean or scale of feature 0 is too large for its values"):
        rows.scaled(units(**numbers))
    rows_of([20], SitePolicy()).scaled(units(**numbers))


@pytest.mark.parametrize("kind", ["int64", "float16", "bool", "U8"])
def test_rows_and_models_are_floats(kind):
    """Integers would cut the values of features off where the server chooses."""
    rows = rows_of([20], SitePolicy(min_rows=5))
    host = SiteHost(Given("north", (rows.X, rows.y, None)))
    model, dtype = LinearModel().bind(2), np.dtype(kind)
    steps = [(1, 0, "rows", (np.arange(1), model, dtype, None))]
    reply = loads(host.handle(dumps((1, steps, [], "testable", ()))))
    message = "dtype must be float32 or float64"
    assert reply[0] == "invalid" and message in reply[1]
    with pytest.raises(ValueError, match=message):
        LinearModel().bind(2, dtype=dtype)
    about = {"theta": np.zeros((1, 3)), "labels": np.zeros(1, int), "weights": None}
    with pytest.raises(ValueError, match="gradient_sums takes dtype float32 or float64"):
        rows.site(MODEL).answer("gradient_sums", {**about, "dtype": dtype})


ONE, ALL = np.eye(3)[0], np.ones(3)
TRAINED = {"theta": np.zeros((1, 3)), "labels": np.zeros(3, int), "weights": None}
BATCHES = {"optimizer": "sgd", "batch_size": None, "draw": None}
STEPS = {**TRAINED, **BATCHES, "steps": np.ones(3, int), "step_size": ALL}
PROXIMAL = {**TRAINED, "rho": ALL, "move": ALL, "n_moves": 1}
MOVED = {
    "trained_moves": {**STEPS, "monotone": False},
    "nearest_moves": {**STEPS, "monotone": False, "begun": STEPS["labels"]},
    "meta_moves": {**STEPS, "inner": 0.1 * ALL, "exact": False},
    "moreau_moves": {**STEPS, **PROXIMAL},
    "proximal_moves": PROXIMAL,
}
MOVED["nearest_moves"].pop("labels")


@pytest.mark.parametrize("call", MOVED)
def test_clients_that_do_not_move_do_not_count(call):
    """A sum of moves is over the clients that take steps of some length."""
    few = [ONE, [1.0, 1e-9, 1e-9], [np.nan, 0.0, 1.0], [np.inf, 0.0, 1.0]]

    def answer(**changed):
        site = rows_of([20, 20, 20], SitePolicy(min_clients=3)).site(MODEL)
        return site.answer(call, {**MOVED[call], **changed})["moves"]

    assert np.isfinite(answer()).all()
    for name in MOVED[call].keys() & {"steps", "step_size", "rho", "move"}:
        own = MOVED[call][name]
        for unequal in few[: 1 if name == "steps" else None]:
            with pytest.raises(Refused, match=r"over [0-2] of its clients"):
                answer(**{name: np.asarray(unequal, dtype=own.dtype)})
        assert np.isfinite(answer(**{name: own * np.array([1, 2, 3])})).all()


@pytest.mark.parametrize("call", list(MOVED)[:4])
def test_clients_count_by_what_they_moved(call):
    """A server sets sizes of steps that differ by little, and all but one client move nothing."""
    how = {**MOVED[call], "step_size": np.array([1e3, 1.0, 1.0])}

    def answer(model, **changed):
        rows = rows_of([20, 20, 20], SitePolicy(min_clients=3))
        rows.y[:] = np.abs(rows.y)
        return rows.site(model.bind(2)).answer(call, {**how, **changed})["moves"]

    undone = {"step_size": np.array([0.1, 1e5, 1e5])}
    counts = LinearModel("poisson")
    assert np.isfinite(answer(counts, step_size=np.full(3, 0.1))).all()
    with pytest.raises(Refused, match="over 1 of its clients"):
        answer(counts, **undone)
    if "monotone" in how:
        with pytest.raises(Refused, match="over 1 of its clients"):
            answer(LinearModel("squared_error"), monotone=True, **undone)
    with pytest.raises(Refused, match="over 1 of its clients"):
        answer(LinearModel("squared_error"), steps=np.full(3, 20))


SHARED = np.array([True, True, False])
KEPT = {
    "partial_moves": {"shared": SHARED, "stages": ((2, SHARED),)},
    "blended_moves": {"blended": ~SHARED, "steps": STEPS["steps"], "blend_rate": 0.1}
    | {"share": 1.0, "tol": 1e-3, "draw": (0, 1)},
}


@pytest.mark.parametrize("call", KEPT)
def test_clients_that_keep_models_count_by_what_they_moved(call):
    theta = np.zeros((1, 2 if "shared" in KEPT[call] else 3))
    how = {**TRAINED, **BATCHES, **KEPT[call], "theta": theta, "step_size": 0.1 * ALL}

    def answer(factor):
        rows = rows_of([20, 20, 20], SitePolicy(min_clients=3))
        rows.y[:20] *= factor
        return rows.site(MODEL).answer(call, how)["moves"]

    assert np.isfinite(answer(1.0)).all()
    with pytest.raises(Refused, match="over 1 of its clients"):
        answer(1e9)


#: Arguments of sums and draws of scores of one model.
SCORED = {"theta": np.zeros((1, 3)), "labels": np.zeros(1, int), "counted": np.ones(1, bool)}
SCORED |= {"within": False, "frame": None}
DRAWN = {**SCORED, "moves": None, "normal": False, "n_draws": 2, "draw": 0}


def test_leverages_of_rows_are_between_0_and_1():
    """Others would make nearly all of the sums over the rows those of one row."""
    rows = rows_of([20], SitePolicy(min_rows=5))
    site, apart = rows.site(MODEL), np.array([1.0, 0.0, -rows.X[3, 0]])
    inverse = np.linalg.inv(site.answer("score_sums", dict(SCORED))["curvature"])
    drawn = site.answer("score_draws", {**DRAWN, "inverse": inverse})
    assert np.isfinite(drawn["sums"]).all()
    for wrong in (-1e9 * np.outer(apart, apart)[None], 1e3 * inverse, np.nan * inverse):
        site = rows_of([20], SitePolicy(min_rows=5)).site(MODEL)
        with pytest.raises(Refused, match="its rows do not suit the arguments of score_draws"):
            site.answer("score_draws", {**DRAWN, "inverse": wrong})


def test_no_digest_tells_which_of_few_tables_a_client_has():
    """A server knows the key: it tries all tables of small integers that have the same sums."""

    def digests(**policy):
        site = rows_of([20, 3], SitePolicy(**policy)).site(MODEL)
        return site.answer("fingerprints", {"key": 5, "targets": True})

    silent = digests(min_rows=5)
    assert not silent["answered"].any() and not silent["digests"].any()
    assert digests(min_rows=5, calls={"fingerprints"})["answered"].tolist() == [True, False]
    assert digests()["digests"].all()


def test_fits_go_on_without_digests():
    """They do not know that models are equal, and say so."""
    rows = rows_of([20, 20, 20], SitePolicy())
    X, y = rows.X, rows.y
    X[20:40], y[20:40] = X[:20], y[:20]
    site = Given("north", (X, y, np.repeat(list("abc"), 20)))
    site.policy = SitePolicy(min_rows=5)
    model = ConvexClusteredFLRegressor(lam=0.0, alpha=0.1)
    with pytest.warns(UserWarning, match="its calls do not name fingerprints, and min_rows is 5"):
        model.fit_federation(RemoteFederation([Wire(site)]))
    assert not model.partition_optimal_ and model.missing_clients_.size == 0
    assert model.fit_federation(InProcessFederation(X, y, rows.codes)).partition_optimal_


def with_attributes(thing, **attributes):
    vars(thing).update(attributes)
    return thing


@pytest.mark.parametrize(
    "attributes",
    [{"checked": LinearModel}, {"checked": 1.0}, {"transform": np.zeros(2)}, {"other": None}],
)
def test_scalings_of_messages_have_their_fields_only(attributes):
    """A check that does nothing would let a scaling have a number for each row."""
    server = Bytes(*table(24), policy=SitePolicy(min_rows=20))
    rows = server.rows(1, MODEL)
    assert server.ask(server.make(rows, "scaled", units()), "testable")[0] == "done"
    of_rows = Scaling(np.zeros((24, 2)), np.where(np.arange(24) == 3, 1.0, 1e19)[:, None] + [0, 0])
    for scaling in (units(), of_rows):
        scaled = server.make(rows, "scaled", with_attributes(scaling, **attributes))
        assert server.ask(scaled, "moments", "features", "sums")[0] == "lost"
    with pytest.raises(MessageError, match="Scaling has other fields|no value of a message"):
        loads(dumps(with_attributes(units(), **attributes)))
    by_row = Scaling(of_rows.mean, of_rows.scale)
    assert server.ask(server.make(rows, "scaled", by_row), "testable")[0] == "lost"


def as_object(monkeypatch, cls):
    """Write objects of a class by their attributes, as a hostile server may."""
    write = _Writer._object

    def state(self, value):
        if type(value) is not cls:
            return write(self, value)
        return {"object": self._name(cls), "state": self.tree(vars(value))}

    monkeypatch.setattr(_Writer, "_object", state)


def test_losses_of_messages_are_made_of_their_parameters(monkeypatch):
    """Attributes in the place of methods would be losses that the server chooses."""
    found = loads(dumps(with_attributes(Huber(2.0), gradient=None, quadratic=True)))
    assert vars(found) == {"delta": 2.0}
    as_object(monkeypatch, SquaredError)
    with pytest.raises(MessageError, match="SquaredError is made of parameters"):
        loads(dumps(with_attributes(SquaredError(), quadratic=False)))
    # Classes are values if they are the site's own.
    with pytest.raises(MessageError, match="class Huber is no value of a message"):
        loads(dumps({"mean": Huber}))
    assert loads(dumps({"mean": Given}), [Given.__module__]) == {"mean": Given}


def test_only_local_models_are_models(monkeypatch):
    """What passes attributes on would be a regressor here and a classifier there."""
    as_object(monkeypatch, Shifted)
    server = Bytes(*table(60), policy=SitePolicy(min_rows=20))
    inner = LinearModel("log_loss", alpha=0.0).bind(2, n_classes=1000)
    model = with_attributes(Shifted(inner, 1, False), estimator_type="regressor")
    site = server.make(server.rows(1, MODEL), "site", model)
    reply = server.call(site, "class_statistics", w=np.zeros((1, inner.n_params)))
    assert reply == ("lost", "messages hold no objects of Shifted.")
    with pytest.raises(Refused, match="a Shifted is no local model"):
        rows_of([20], SitePolicy(min_rows=5)).site(model)


MIXED = {"theta": np.zeros((1, 3)), "shares": np.ones((1, 1)), "dispersion": 1.0, "share_steps": 1}
SHARED = {"w": np.zeros((1, 3)), "shared": np.ones(3, bool), "step_size": ALL[:1], **BATCHES}
SHARED["stages"] = ((1, SHARED["shared"]),)


@pytest.mark.parametrize(
    ("call", "arguments", "wrong"),
    [
        ("mixture", MIXED, {"dispersion": (1e3,) * 23 + (1e-7,)}),
        ("mixture", MIXED, {"share_steps": {"steps": 1}}),
        ("partial_update", SHARED, {"strength": (1.0,)}),
        ("partial_update", SHARED, {"draw": (1, (2, 3))}),
        ("partial_update", SHARED, {"stages": (1, SHARED["shared"])}),
        ("partial_update", SHARED, {"stages": (((1,) * 24, SHARED["shared"]),)}),
        ("partial_update", SHARED, {"stages": ((1, np.ones((24, 3), bool)),)}),
    ],
)
def test_no_tuple_is_taken_for_a_number(call, arguments, wrong):
    """A tuple has no shape that was checked: a dispersion for each row tells every loss."""
    server = Bytes(*table(24), policy=SitePolicy(min_rows=20))
    site = server.site(1)
    assert server.call(site, call, **arguments)[0] == "done"
    assert server.call(site, call, **{**arguments, **wrong})[0] == "lost"


@pytest.mark.parametrize("what", [("total_loss",), ("squares", 0.0)])
def test_scores_do_not_depend_on_rows_that_may_not_answer(what):
    """Infinity times their weight of zero would tell where the loss of a single row overflows."""
    server = Bytes(*table(41), np.repeat([0, 1], [40, 1]), SitePolicy(min_rows=20))
    rows, found = server.rows(2, MODEL), []
    for size in (0.0, 1e200, np.nan):
        models = np.array([[1.0, 0.0, 0.0], [size, size, 100 * size]])
        scored = server.make(rows, "scored", MODEL, models, np.arange(2), None)
        found.append(server.ask(scored, *what))
    assert found[0][0] == "done" and np.isfinite(found[0][1]).all()
    assert found[1] == found[0] and found[2] == found[0]


CLASSES = LinearModel("log_loss", alpha=0.0).bind(2, 2)


def classes_at(server, n_clients):
    """Rows of the classes 0 and 1 for a server."""
    assert server.ask(0, "hello", "classifier")[0] == "done"
    return server.rows(n_clients, CLASSES, np.arange(2))


def test_totals_of_classes_are_of_enough_rows_and_clients():
    X, client, weights = table(160)[0], np.repeat(np.arange(4), 40), np.ones(160)
    y = np.zeros(160, int)
    y[7], weights[7] = 1, 1.37
    server = Bytes(X, y, client, SitePolicy(min_rows=20), weights)
    assert_array_equal(server.ask(classes_at(server, 4), "class_totals", 2)[1], [120.0, 0.0])
    y = np.where(client < 2, np.arange(160) % 2, 0)  # two of the clients have both
    for least, status in ((2, "done"), (3, "refused")):
        server = Bytes(X, y, client, SitePolicy(min_rows=20, min_clients=least))
        reply = server.ask(classes_at(server, 4), "class_totals", 2)
        assert reply[0] == status
    assert "a sum would be over 2 of its clients" in reply[1]


def test_points_for_classes_need_enough_rows_of_each():
    """With a point for one class the parameters move by the slopes of its rows alone."""
    X, _ = table(80)
    server = Bytes(X, np.arange(80) == 7, np.repeat([0, 1], 40), SitePolicy(min_rows=20))
    assert server.ask(0, "hello", "classifier")[0] == "done"
    network = MLP((1,), alpha=0.0, standardize=False).bind(2, 2, np.float32)
    rows = server.rows(2, network, np.array([False, True]))
    site, w = server.make(rows, "site", network), np.zeros((2, network.n_params), np.float32)
    sent = {**SHARED, "w": w, "shared": w[0] == 0, "step_size": np.ones(2, np.float32)}
    sent["stages"] = ((1, sent["shared"]),)
    points = np.array([[np.nan], [0.0]], np.float32)
    _, answer = server.call(site, "partial_update", **sent, prototypes=points, strength=1.0)
    assert answer["answered"].tolist() == [False, True] and not answer["w"][0].any()
    assert "answered" not in server.call(site, "partial_update", **sent)[1]


def test_whether_rows_suit_a_number_is_told_once_a_fit():
    """Else a server would find the largest value of rows by halves, or of products with them."""
    X, y = table(25)
    X[24] = 100.0  # the only row of its client, which does not answer
    for means, replies in (([1.0, 2.0], ["done"] * 2), ([1e7, 1.0], ["refused"] * 2)):
        server = Bytes(X, y, np.repeat([0, 1], [24, 1]), SitePolicy(min_rows=20))
        rows = server.rows(2, MODEL)
        scaled = [server.make(rows, "scaled", units(mean)) for mean in means]
        assert [server.ask(one, "moments", "target", "sums")[0] for one in scaled] == replies
    server = Bytes(X[:24], y[:24], None, SitePolicy(min_rows=20))
    site = server.site(1)
    for size, status in ((1e-9, "done"), (1e9, "refused"), (1e-9, "refused")):
        inverse = np.eye(3)[None] * size
        assert server.call(site, "score_draws", **DRAWN, inverse=inverse)[0] == status


def test_many_fits_that_do_not_suit_the_rows_are_the_last_ones():
    """Else a server would ask in a new fit each time."""
    host = Bytes(*table(24), policy=SitePolicy(min_rows=20)).host

    def ask(number, mean):
        rows = number, 0, "rows", (np.arange(1), MODEL, np.dtype(float), None)
        steps = [rows, (number + 1, number, "scaled", (units(mean),))]
        return loads(host.handle(dumps((number + 1, steps, [], "moments", ("target", "sums")))))

    for number in range(1, 21, 2):
        assert "too large for its values" in ask(number, 1e9)[1]
    for number, mean in ((21, 0.0), (23, 1e9)):
        assert ask(number, mean)[:2] == (
            "refused",
            "it has ended 10 fits that did not suit its rows",
        )


def test_errors_of_any_kind_end_fits(tmp_path):
    """Also those of rows before there is a site, and those that are no ValueError."""
    policy = SitePolicy(min_rows=2, calls={*CALLS}, query_log=tmp_path / "log")
    one, zero = np.ones(1), np.zeros(1)
    how = {"w": np.zeros((1, 3)), "steps": one, "step_size": one, "optimizer": "sgd", "rho": zero}
    how |= {"center": None, "monotone": False, "keep": False, "own": None, "draw": (1, 1)}

    def asked(model=MODEL, **options):
        server = Bytes(*table(24), policy=policy)
        site = server.make(server.rows(1, model), "site", model)
        return server.call(site, "local_update", **{**how, "batch_size": None, **options})

    for batch_size in (np.inf, 2**70, np.inf, 2**70, np.inf):
        assert asked(batch_size=batch_size)[0] != "done"
    poisson = LinearModel("poisson", alpha=0.1, standardize=False).bind(2)
    for _ in range(5):
        assert asked()[0] == "done"
        assert "ValueError" in asked(poisson)[1]  # targets below zero
    assert asked() == ("refused", "it has ended 10 fits that did not suit its rows")


@pytest.mark.parametrize("what", ["site", "scored", "scores"])
def test_no_units_of_a_network_round_rows_or_targets_away(what):
    network = MLP((1,), loss="squared_error", alpha=0.0).bind(2)
    models, whose = np.zeros((1, network.n_params)), np.zeros(1, int)
    for changed in (network.in_units(-(2.0**44), 1.0), network.with_scaling(units(2.0**44))[0]):
        rows = rows_of([40], SitePolicy(min_rows=20))
        with pytest.raises(Refused, match="too large for its values"):
            if what == "site":
                rows.site(changed)
            elif what == "scored":
                rows.scored(changed, models, whose, None)
            else:
                FoldRows(rows, np.arange(20), np.arange(20, 40)).scores(
                    changed, None, models, None
                )


def test_errors_of_scores_are_told_once():
    """Whether all predictions are above zero tells the rows at the border, by halves."""
    rows = rows_of([40], SitePolicy(min_rows=5), lambda X: np.abs(X) + 1.0)
    fold = FoldRows(rows, np.arange(20), np.arange(20, 40))
    rows.y[:] = 1.0
    scoring = "neg_mean_poisson_deviance"
    above, below = (np.full((1, 1, 3), value) for value in (1.0, -1.0))
    assert np.isfinite(fold.scores(MODEL, None, above, scoring)[0]).all()
    for models in (below, above):
        with pytest.raises(Refused, match=f"do not suit scoring={scoring!r}"):
            fold.scores(MODEL, None, models, scoring)


def test_one_client_is_not_what_products_of_factors_leave():
    X, y = table(240)
    server = Bytes(X, y, np.repeat(np.arange(8), 30), SitePolicy(min_rows=20, min_clients=6))
    small, sent = np.where(np.arange(8) == 3, 1.0, 1e-6), MOVED["moreau_moves"]
    sent = {**sent, "labels": np.zeros(8, int), "steps": np.ones(8, int)}
    site = server.site(8)
    for rest, status in ((np.ones(8), "done"), (small, "refused")):
        factors = {"step_size": small, "rho": rest, "move": rest}
        assert server.call(site, "moreau_moves", **{**sent, **factors})[0] == status


def test_every_step_of_a_scaling_counts():
    server = Bytes(*table(24), policy=SitePolicy(max_calls=2))
    rows = server.rows(1, MODEL)
    asked = [("sums",), ("squares", np.zeros(2)), ("squares", np.ones(2))]
    replies = [server.ask(rows, "moments", "features", *step) for step in asked]
    assert [status for status, _ in replies] == ["done", "done", "refused"]
    assert "max_calls=2" in replies[2][1]


@pytest.mark.parametrize("call", ["trained_moves", "nearest_moves"])
def test_clients_at_their_minimum_count(call):
    """Where there is no noise all move by rounding, and some by nothing."""
    rows, theta = rows_of([20, 20, 20], SitePolicy(min_clients=3)), np.array([[0.7, -1.3, 0.4]])
    rows.y[:] = rows.X @ theta[0, :2] + theta[0, 2]
    rows.y[20:] += 1e-15 * np.sign(rows.y[20:])
    site = rows.site(LinearModel().bind(2))
    moves = site.answer(call, {**MOVED[call], "theta": theta, "step_size": 0.1 * ALL})["moves"]
    assert_allclose(moves, 0.0, atol=1e-12)
