"""One of three sites answers what no honest site could: it is lost, and the others go on."""

import functools
import warnings
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from site_tables import Given, Wire
from sklearn.base import clone
from trials import THOROUGH, some, spread

from skcfl import (
    CLoVEClassifier,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
    FedAvgClassifier,
    FedEMClassifier,
    FedRepClassifier,
    GTVClassifier,
    IFCAClassifier,
    LamSearch,
    PartialPoolingClassifier,
)
from skcfl.calls import CALLS
from skcfl.calls import answer_bounds as bounds
from skcfl.calls.answer_bounds import OutOfBounds
from skcfl.datasets import make_clustered_classification
from skcfl.exceptions import FederationError
from skcfl.federation import Faults, InProcessFederation
from skcfl.federation.bounds import EXITS, Limits
from skcfl.federation.pool import ClientPool
from skcfl.federation.presence import Presence
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.scaling import Moments
from skcfl.federation.serialization import dumps, loads, number_of
from skcfl.federation.sites import PlaceLost
from skcfl.federation.transport import SEVERAL
from skcfl.federation.wire import LONGEST_REASON, MOST_REASONS
from skcfl.models import MLP, LinearModel
from skcfl.testing._pool_checks import _arrays, _calls

DATA = make_clustered_classification(9, 3, 3, n_samples=12, random_state=0)
SITES = np.repeat(["mid", "north", "south"], 3)  # sorted, as the clients are
NAMES = np.array([f"{site}/{id}" for site, id in zip(SITES, np.unique(DATA.groups), strict=True)])
GROUPS = NAMES[np.unique(DATA.groups, return_inverse=True)[1]]
SOUTH = np.char.startswith(NAMES, "south/")


class Liar(Wire):
    """A site one of whose answers is changed on its way: `lie(value)` of what `at` selects."""

    at, lie, seen = None, None, None

    def send(self, message):
        request, number, wait = loads(message), number_of(message), super().send(message)

        def changed():
            reply = loads(wait())
            if reply[0] != SEVERAL:
                return dumps(self._changed(request, reply), number=number)
            parts = zip(request[4][0], reply[1], strict=True)
            return dumps((SEVERAL, [self._changed(*part) for part in parts], None), number=number)

        return changed

    def _changed(self, request, reply):
        """A reply, with the lie if the request is the one."""
        _, _, _, name, arguments = request
        status, value, note = reply
        asked = {"answer": (name, *arguments[:1]), "moments": (name, *arguments[:2])}
        if asked.get(name, name) == self.at and status == "done":
            self.seen = value
            value = value if self.lie is None else self.lie(value)
        return status, value, note


def rows_at(name):
    here = np.char.startswith(GROUPS, f"{name}/")
    return Given(name, (DATA.X[here], DATA.y[here], np.char.partition(GROUPS[here], "/")[:, 2]))


def sites(at=None, lie=None):
    """Three sites, the last of which lies."""
    liar = Liar(rows_at("south"))
    liar.at, liar.lie = at, lie
    return RemoteFederation([*map(Wire, map(rows_at, ("mid", "north"))), liar], retries=1), liar


MODELS = [LinearModel("log_loss", alpha=0.1, standardize=False), MLP((2,), alpha=0.1)]


class Case:
    """A call over a wire, and what it gives where the clients of one site are silent."""

    def __init__(self, model):
        federation, self.liar = sites()
        self.site = federation.open(model, 0)._site
        self.line = federation._roots[2].line
        dead = Faults(dead=NAMES[SOUTH])
        silent = InProcessFederation(DATA.X, DATA.y, GROUPS, faults=dead, retries=1)
        self.silent = silent.open(model, 0)._site
        self.model = model

    def pool(self, site):
        self.line.lost, self.liar.failures = None, []
        pool = ClientPool(site, self.model, 7, presence=Presence(NAMES, retries=1))
        pool.reseed(7)
        return pool


def changed(name, new):
    return lambda answers: {**answers, name: new}


def with_entry(value, entry):
    out = np.array(value, dtype=np.result_type(value, type(entry)))
    out[(0,) * out.ndim] = entry
    return out


def structural(value):
    """Answers that have another form than they must have, by name."""
    yield "None", lambda answers: None
    yield "text", lambda answers: "no"
    yield "number", lambda answers: 1.0
    yield "list", lambda answers: [answers]
    yield "extra", changed("rows", np.ones((2, 2)))
    for flags in (np.ones(2, dtype=bool), np.ones((3, 1), dtype=bool), np.ones(3), True):
        yield f"answered {flags}", changed("answered", flags)
    if value:
        yield "empty", lambda answers: {}
    for name, array in value.items():
        array = np.asarray(array)
        yield f"no {name}", lambda a, name=name: {k: v for k, v in a.items() if k != name}
        other = float if array.dtype.kind in "ib" else np.int64
        wrong = {
            "None": None,
            "text": np.full(array.shape, "1.0"),
            "list": array.tolist() if array.ndim else [1.0],
            "type": np.ones(array.shape, dtype=other),
            "half": np.ones(array.shape, dtype=np.float16),
            "axis": array[..., None],
            "number": np.zeros(()) if array.ndim else np.zeros(2),
            "empty": array[:0] if array.ndim else np.zeros(0),
        }
        if array.ndim:
            wrong |= {"short": array[:-1], "long": np.concatenate([array, array[:1]])}
        for label, new in wrong.items():
            yield f"{name} {label}", changed(name, new)


def out_of_bounds(call, value):
    """Answers of the right form with numbers that no honest client could send."""
    special = {"UNIT": [5.0, -1e300], "DIGESTS": [0.5, -1.0, 2.0**60]}
    for name, bound in CALLS[call].bounds.items():
        array, text = np.asarray(value[name]), text_of(bound)
        if bound.kind == "b":
            continue
        numbers = [99, -1, 10**15] if bound.kind == "i" else special.get(text, [-1.0, -1e300])
        if bound.kind != "i" and text not in {*special, "NOT_NEGATIVE"}:
            yield f"{name} x 1e12", changed(name, array * 1e12 + 1e12)
            numbers = [*numbers, 1e300, np.inf]
        for number in numbers:
            yield f"{name} {number}", changed(name, with_entry(array, number))


def text_of(bound):
    """The name of a bound."""
    return next(name for name in dir(bounds) if getattr(bounds, name) is bound)


def not_finite(call, value):
    for name in CALLS[call].up:
        array = np.asarray(value[name])
        if array.dtype.kind == "f" and name not in CALLS[call].unbounded:
            for number in (np.nan, np.inf):
                yield f"{name} {number}", changed(name, np.full(array.shape, number))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_every_call_of_the_table(model, monkeypatch):
    case = Case(model.bind(3, 2))
    rng, done, count = np.random.RandomState(0), set(), 0
    # Blocks are of other clients than in one process: networks round in single precision.
    exact = case.model.dtype == float
    rtol = 1e-9 if exact else 8 * np.finfo(case.model.dtype).eps
    used, answer = set(), case.site.answer

    def spy(call, sent):
        used.add(call)
        return answer(call, sent)

    monkeypatch.setattr(case.site, "answer", spy)
    for _, ask in _calls(case.pool(case.site), rng):
        used.clear()
        ask(case.pool(case.site))
        asked = set(used)
        for call in sorted(asked - done):
            done.add(call)
            if call.startswith("score_"):  # of reports, which clients elsewhere are not asked for
                continue
            case.liar.at, case.liar.lie = ("answer", call), None
            ask(case.pool(case.site))
            honest = case.liar.seen
            wanted = _arrays(ask(case.pool(case.silent)))
            lies = [*structural(honest), *out_of_bounds(call, honest)]
            all_lies = [*lies, *not_finite(call, honest)]
            # Other lies of each call in a run: all of them are told somewhere.
            for label, lie in all_lies if THOROUGH else all_lies[len(done) % 11 :: 11]:
                case.liar.lie = lie
                about = f"{call}: {label}"
                pool = case.pool(case.site)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    found = _arrays(ask(pool))
                case.liar.lie = None
                missing = pool.roll_call()[0]
                if (label, lie) in lies:
                    (text,) = [str(one.message) for one in caught]
                    assert "No answer of site 'south': " in text, about
                    assert (missing == SOUTH).all(), about
                else:
                    assert ((missing | pool.rejected) == SOUTH).all(), about
                if asked == {call} and not (CALLS[call].remembers or call == "recall"):
                    for got, expected in zip(found, wanted, strict=True):
                        size = np.abs(expected).max(initial=0.0) if CALLS[call].adds else 0.0
                        atol = max(1e-12, size * (1e-12 if exact else rtol))
                        assert_allclose(got, expected, rtol=rtol, atol=atol, err_msg=about)
                count += 1
    assert done == set(CALLS) or not case.model.second_order
    assert count > (1000 if case.model.second_order else 50) / (1 if THOROUGH else 11)


@pytest.mark.parametrize("call, name", [("posterior_sums", "slopes"), ("hessians", "H")])
def test_a_site_whose_sums_are_not_finite(call, name):
    """It leaves out such clients itself, and says so: one that does not is lost, by its name."""
    case = Case(MODELS[0].bind(3, 2))
    asks = _calls(case.pool(case.site), np.random.RandomState(0))
    ask = next(ask for asked, ask in asks if asked == call)
    case.liar.at = "answer", call
    case.liar.lie = lambda answers: {**answers, name: np.asarray(answers[name]) * np.nan}
    pool = case.pool(case.site)
    with pytest.warns(UserWarning, match="No answer of site 'south': .* finite sums"):
        found = _arrays(ask(pool))
    assert (pool.roll_call()[0] == SOUTH).all() and not pool.rejected.any()
    for got, expected in zip(found, _arrays(ask(case.pool(case.silent))), strict=True):
        assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("status", "after"),
    spread(product(["forgotten", "invalid", "unknown", "refused", "lost"], [0, 3, 4, 9]), 7),
)
@pytest.mark.filterwarnings("ignore:No answer of site 'south'")
def test_replies_that_are_no_answers(status, after):
    """Whatever a site says in place of an answer, and whenever, it ends its own part only."""
    federation, liar = sites()
    asked, send = [], liar.send

    def sometimes(message):
        asked.append(message)
        wait = send(message)
        value = None if status == "unknown" else "no"
        reply = dumps((status, value, None), number=number_of(message))
        return wait if len(asked) <= after else lambda: (wait(), reply)[1]

    liar.send = sometimes
    model = clone(FEDAVG)
    if after == 0 and status != "refused":
        # Nothing is known of its clients: the job does not begin.
        with pytest.raises((ValueError, FederationError), match="(?i)site 'south'"):
            model.fit_federation(federation)
        return
    with pytest.warns(UserWarning, match="No answer of site 'south': "):
        model.fit_federation(federation)
    assert model.missing_clients_.tolist() == (NAMES[SOUTH].tolist() if after else [])
    assert_allclose(model.params_[0], without_south(FEDAVG).params_[0], rtol=1e-9, atol=1e-9)


def test_a_site_cannot_fill_a_log():
    """Each reply has another long reason; what is told of it is bounded."""
    wire = sites()[1]
    count = iter(range(1000))

    def send(message):
        reason = f"{next(count)} " + "x" * 10**4
        return lambda: dumps(("lost", reason, None), number=number_of(message))

    wire.send = send
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(300):
            with pytest.raises(PlaceLost):
                wire.start((0, [], [], "hello", (None,)))()
    assert len(caught) == len(wire.failures) == MOST_REASONS
    assert max(map(len, wire.failures)) < 2 * LONGEST_REASON


# ----------------------------------------------------------------- beside the table


def hello_with(**changes):
    """A hello some of whose fields are functions of what they were, or other values."""

    def lie(said):
        ((number, name, hello),) = said
        for field, new in changes.items():
            setattr(hello, field, new(getattr(hello, field)) if callable(new) else new)
        return [(number, name, hello)]

    return lie


PRIVACY = dict(epsilon=4.0, delta=1e-5, n_fits=1, left=1.0, masked=0, participation=1.0)
HELLOS = {
    "None": lambda said: None,
    "empty": lambda said: [],
    "dict": lambda said: {},
    "no hello": lambda said: [(0, "South", {})],
    "twice": lambda said: [*said, *said],
    "no number": lambda said: [("0", *said[0][1:])],
    "n_rows -5": hello_with(n_rows=-5),
    "n_rows true": hello_with(n_rows=True),
    "n_rows another": hello_with(n_rows=35),
    "sizes zero": hello_with(sizes=lambda s: s * np.array([0, 1, 2])),
    "sizes short": hello_with(sizes=lambda s: s[:2]),
    "sizes floats": hello_with(sizes=lambda s: s.astype(float)),
    "sizes huge": hello_with(sizes=lambda s: s * 2**58),
    "no sizes": hello_with(sizes=None),
    "weights nan": hello_with(weights=lambda w: w * np.nan),
    "weights negative": hello_with(weights=lambda w: -w),
    "weights huge": hello_with(weights=lambda w: w * 1e300),
    "weights text": hello_with(weights=lambda w: w.astype(str)),
    "ids turned round": hello_with(ids=lambda ids: ids[::-1]),
    "ids twice": hello_with(ids=lambda ids: ids[[0, 0, 1]]),
    "ids of another site": hello_with(ids=NAMES[3:6]),
    "ids without site": hello_with(ids=np.array(["a", "b", "c"])),
    "ids numbers": hello_with(ids=np.arange(3)),
    "ids of two axes": hello_with(ids=lambda ids: ids[:, None]),
    "no ids": hello_with(ids=lambda ids: ids[:0]),
    "n_features 0": hello_with(n_features=0),
    "n_features float": hello_with(n_features=3.0),
    "names short": hello_with(feature_names=np.array(["a"])),
    "names numbers": hello_with(feature_names=np.arange(3)),
    "dtype integer": hello_with(dtype=np.dtype(np.int64)),
    "dtype text": hello_with(dtype="float64"),
    "no classes": hello_with(classes=None),
    "classes turned round": hello_with(classes=lambda classes: classes[::-1]),
    "classes many": hello_with(classes=np.arange(10**6)),
    "classes nan": hello_with(classes=np.array([0.0, np.nan])),
    "row_shape": hello_with(row_shape=(2, 2)),
    "row_shape negative": hello_with(row_shape=(-1, -3)),
    "row_shape text": hello_with(row_shape="3"),
    "bounds": hello_with(privacy=PRIVACY | {"features": np.array(1.0)}),
}


def lied(model, at, lie):
    """The fit with a lie, which the others do not notice but for one warning."""
    federation, liar = sites(at, lie)
    with pytest.warns(UserWarning, match="No answer of site 'south': ") as caught:
        found = clone(model).fit_federation(federation)
    texts = {str(one.message) for one in caught if one.category is UserWarning}
    assert len(texts) == 1 and liar.seen is not None, texts
    return found


@functools.cache
def without_south(model):
    """The fit to the others' rows, which no test changes."""
    here = ~np.char.startswith(GROUPS, "south/")
    return clone(model).fit(DATA.X[here], DATA.y[here], groups=GROUPS[here])


FEDAVG = FedAvgClassifier(random_state=0)
BALANCED = FedAvgClassifier(class_weight="balanced", random_state=0)
ROBUST = FedAvgClassifier(aggregation="median", random_state=0)


@pytest.mark.parametrize(
    "lie",
    [hello_with(n_features=10**9), hello_with(dtype=np.dtype("f4")), hello_with(row_shape=(3, 1))],
)
def test_hellos_that_do_not_agree(lie):
    """Which site is right nobody can tell: both are named, and nothing is fitted."""
    with pytest.raises(ValueError, match="(?i)site 'mid'.*site 'south'"):
        FEDAVG.fit_federation(sites("hello", lie)[0])


def scaled(*factors):
    return lambda value: tuple(
        part if factor is None or part is None else part * factor
        for part, factor in zip(value, factors, strict=True)
    )


FACTS = {
    "weights x 1e12": scaled(None, 1e12, None),
    "weights negative": scaled(None, -1.0, None),
    "weights nan": scaled(None, np.nan, None),
    "sizes x 2": scaled(2, None, None),
    "weight of no rows": scaled(0, None, None),
    "without rows": lambda value: (*value[:2], ~value[2]),
    "short": lambda value: tuple(part[:2] for part in value),
    "two": lambda value: value[:2],
    "list": list,
    "None": lambda value: None,
    "floats": lambda value: tuple(part.astype(float) for part in value),
}
TOTALS = {
    "x 1e12": lambda value: value * 10**12,
    "negative": lambda value: -value,
    "nan": lambda value: value * np.nan,
    "short": lambda value: value[:1],
    "None": lambda value: None,
    "text": lambda value: value.astype(str),
}
SUMS = {
    "x 1e20": scaled(None, None, None, 1e20, 1e20),
    "rows": scaled(10**6, None, None, None, None),
    "total huge": lambda value: (*value[:3], 10**400, value[4]),
    "precision huge": lambda value: (value[0], 10**400, *value[2:]),
    "total nan": scaled(None, None, None, np.nan, None),
    "total negative": scaled(None, None, None, -1.0, None),
    "sums nan": scaled(None, None, None, None, np.nan),
    "sums 1e300": scaled(None, None, None, None, 1e300),
    "precision": scaled(None, 1e20, None, None, None),
    "stored": lambda value: (*value[:2], -np.ones(3), *value[3:]),
    "short": lambda value: (*value[:4], value[4][:1]),
    "four": lambda value: value[:4],
    "None": lambda value: None,
    "{}": lambda value: {},
}
SQUARES = {
    **{name: TOTALS[name] for name in ("negative", "nan", "short", "None", "text")},
    "infinite": lambda value: value * np.inf,
    "too small": lambda value: value * 0.0,
}
MEANS = {
    "weights": scaled(None, 1e12, None),
    "nan": scaled(None, None, np.nan),
    "1e300": scaled(None, None, 1e300),
    "short": lambda value: (*value[:2], value[2][:1]),
    "None": lambda value: None,
}
PLACES = {
    "hello": (FEDAVG, HELLOS),
    "facts": (FEDAVG, FACTS),
    "class_totals": (BALANCED, TOTALS),
    ("moments", "features", "sums"): (FEDAVG, SUMS),
    ("moments", "features", "squares"): (FEDAVG, SQUARES),
    ("moments", "features", "means"): (ROBUST, MEANS),
    ("moments", "features", "spreads"): (ROBUST, SQUARES),
}


@pytest.mark.parametrize("at", [at for at in PLACES if at != "class_totals"], ids=str)
def test_every_lie_before_a_model_is_found(at):
    """All of them in each run, without a fit; classes are counted in the fits below."""
    model, lies = PLACES[at]
    bound, robust = LinearModel("log_loss", alpha=0.1).bind(3, 2), model is ROBUST
    for label, lie in lies.items():
        federation, liar = sites(at, lie)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if at == "hello":
                assert not np.char.startswith(federation.hello("classifier").ids, "south/").any()
            else:
                federation.open_with_folds(bound, 0, robust=robust)
        (text,) = [str(one.message) for one in caught]
        assert "No answer of site 'south': " in text and liar.seen is not None, label


@pytest.mark.parametrize(
    ("at", "label"),
    spread([(at, label) for at, (_, lies) in PLACES.items() for label in lies], 9),
    ids=str,
)
def test_what_places_say_before_a_model(at, label):
    """The others' fit is as without the place."""
    model, lies = PLACES[at]
    found, wanted = lied(model, at, lies[label]), without_south(model)
    here = np.isin(found.groups_, NAMES[~SOUTH])
    gone = NAMES[SOUTH].tolist() if at != "hello" else []  # nothing is known of its clients
    assert found.missing_clients_.tolist() == found.groups_[~here].tolist() == gone
    assert_allclose(found.params_[here], wanted.params_, rtol=1e-9, atol=1e-9)
    rows = ~np.char.startswith(GROUPS, "south/")
    X, y, groups = DATA.X[rows], DATA.y[rows], GROUPS[rows]
    assert found.score(X, y, groups=groups) >= wanted.score(X, y, groups=groups) - 0.02


IN_FITS = {
    "best_response_sums": IFCAClassifier(n_clusters=2, random_state=0),
    "losses": CLoVEClassifier(n_clusters=2, random_state=0),
    "hessians": FEDAVG,
    "partial_moves": FedRepClassifier(random_state=0, max_iter=10),
    "posterior_sums": PartialPoolingClassifier(n_clusters=1, basis="linear"),
    "prox": ConvexClusteredFLClassifier(lam=0.05, graph="complete"),
    "mixture_sums": FedEMClassifier(n_clusters=2, random_state=0),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_honest", some([2, 0], 1))
@pytest.mark.parametrize("call", spread(IN_FITS, 4))
def test_a_lie_in_the_middle_of_a_fit(call, n_honest):
    """The fit begins again without the site."""
    answers = []

    def lie(value):
        answers.append(value)
        return value if len(answers) <= n_honest else {}

    found = lied(IN_FITS[call], ("answer", call), lie)
    assert found.missing_clients_.tolist() == NAMES[SOUTH].tolist()
    wanted = without_south(IN_FITS[call])
    assert_allclose(found.params_[~SOUTH], wanted.params_, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.RejectedClientWarning")
@pytest.mark.parametrize(
    ("call", "name", "rejected"),
    [("objectives_gradients", "values", NAMES[SOUTH].tolist()), ("enclosures", "floor", [])],
)
def test_a_site_without_a_finite_number_ends_no_certified_fit(call, name, rejected):
    """Its clients are rejected; where only a proof lacks it, nothing is proved."""
    federation, liar = sites(("answer", call), lambda value: {**value, name: value[name] * np.nan})
    model = ConvexClusteredFLRegressor(lam=0.05, graph="complete", max_iter=200)
    model.fit_federation(federation)
    assert liar.seen is not None and model.rejected_clients_.tolist() == rejected
    assert np.isfinite(model.cluster_params_).all()
    assert not (model.partition_optimal_ and call == "enclosures")


LIES_ABOUT_SCORES = [
    lambda value: None,
    lambda value: {},
    lambda value: "0.9",
    lambda value: value[:1],
    lambda value: (value[0], 1e12),
    lambda value: (-1, value[1]),
    lambda value: (value[0] * np.nan, value[1]),
    lambda value: (np.ones(77), value[1]),
    lambda value: (value[0], -1.0),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("at", some(["scores", "testable"], 1))
@pytest.mark.parametrize("lie", spread(LIES_ABOUT_SCORES, 3))
def test_scores(at, lie):
    search = LamSearch(cv=2, lams=[0.05, 0.2])
    model = GTVClassifier(search=search, graph="complete", alpha=0.01, max_iter=5, refit=False)
    found = lied(model, at, lie)
    assert found.missing_clients_.tolist() == NAMES[SOUTH].tolist()


def test_honest_moments_agree_however_far_the_rows_are():
    """Squares are at least those of the mean's distance, but for their rounding."""
    rng = np.random.RandomState(0)
    for offset in (0.0, 1.0, 1e4, 1e8, 1e12):
        for scale in (0.0, 1e-9, 1.0, 1e9):
            X = offset + scale * rng.standard_normal((50, 2))
            weights = rng.exponential(size=50)
            moments, limits = Moments(X, weights), Limits(np.array([50]), weights.sum()[None], 2)
            told = {}
            EXITS["moments"](moments.sums(), ("features", "sums"), limits, told)
            for mean in (X.mean(axis=0), X[0], X[0] + 1e3, np.zeros(2)):
                squares = moments.squares(mean)
                EXITS["moments"](squares, ("features", "squares", mean), limits, told)
                with pytest.raises(OutOfBounds):
                    EXITS["moments"](-1.0 - squares, ("features", "squares", mean), limits, told)
