"""What a site agrees to, wherever it is."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from sklearn.base import clone, is_regressor
from sklearn.metrics import get_scorer_names
from sklearn.utils import Bunch

from skcfl import (
    DittoRegressor,
    FedALARegressor,
    FedAvgRegressor,
    IFCAClassifier,
    IFCARegressor,
    LocalModels,
    LocalModelsRegressor,
    PartialPoolingRegressor,
)
from skcfl.calls import CALLS
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import FederationError, MissingClientWarning
from skcfl.federation import FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.inprocess import STEPS
from skcfl.federation.made_columns import MAKERS
from skcfl.federation.policy import FitGuard, Guard
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.row_calls import ROW_CALLS, TOLD_BY
from skcfl.federation.rows import Rows, merged
from skcfl.federation.scaling import Scaling
from skcfl.federation.sites import Refused
from skcfl.models import LinearModel

DATA = make_clustered_regression(4, 2, 3, n_samples=10, random_state=0)
SIZES = np.array([2, 5, 0, 9])


def site_of(policy=None):
    return rows_of(SIZES, policy)[policy is None].site(MODEL)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({"min_rows": 0}, ValueError, "min_rows must be an integer of at least 1, got 0"),
        ({"min_rows": None}, ValueError, "min_rows"),
        ({"min_rows": 2.5}, ValueError, "min_rows"),
        (
            {"max_calls": True},
            ValueError,
            "max_calls must be an integer of at least 1 or None, got True",
        ),
        ({"calls": ["losses", "rows"]}, ValueError, "calls must be names of calls, .*got rows"),
        ({"calls": "everything"}, ValueError, "got everything"),
        ({"min_clients": 0}, ValueError, "min_clients must be an integer of at least 1, got 0"),
        ({"privacy": 4.0}, TypeError, "privacy must be ClientPrivacy"),
    ],
)
def test_bad_policies(arguments, error, message):
    with pytest.raises(error, match=message):
        SitePolicy(**arguments)


def test_policies_are_read():
    policy = SitePolicy(min_rows=3, calls=["losses", "solve"], max_calls=9)
    shown = "min_rows=3, min_clients=1, calls=['losses', 'solve'], max_calls=9, "
    shown += "privacy=None, query_log=None"
    assert repr(policy) == f"SitePolicy({shown})"
    assert SitePolicy(calls="losses").calls == {"losses"}


def test_clients_of_few_rows_are_silent():
    theta = {"theta": np.ones((2, 3))}
    answers = site_of(SitePolicy(min_rows=5)).answer("losses", theta)
    # One without rows says so: there is nothing to know.
    assert answers["answered"].tolist() == [False, True, True, True]
    assert_allclose(answers["losses"][1:], site_of().answer("losses", theta)["losses"][1:])
    assert not answers["losses"][0].any()
    known = {"theta": np.ones((1, 3)), "damping": np.zeros(1), "members": np.array([4])}

    def hessians(site, n):
        each = {"labels": np.zeros(n, dtype=int), "weights": np.ones(n)}
        return site.answer("hessians", known | each)

    found = hessians(site_of(SitePolicy(min_rows=5)), 4)
    assert_allclose(found["H"], hessians(site_of().subset(np.array([1, 2, 3])), 3)["H"])
    assert found["answered"].tolist() == [False, True, True, True]
    # A policy stays where parts are merged.
    both = merged([rows_of(n, SitePolicy(min_rows=5), seed=n[0])[0] for n in ([3, 12], [14, 2])])
    assert answered(both.site(MODEL)) == [False, True, True, False]


@pytest.mark.filterwarnings("ignore:No answer of", "ignore::skcfl.exceptions.MissingClientWarning")
@pytest.mark.parametrize(
    ("model", "elsewhere"), [(DittoRegressor, False), (PartialPoolingRegressor, True)]
)
def test_a_client_of_few_rows_silences_no_other(model, elsewhere):
    """A fit that starts again without it deals the rows of the others to the same folds."""
    data = make_clustered_regression(8, 2, 3, n_samples=40, random_state=0)
    ids, codes = np.unique(data.groups, return_inverse=True)
    kept = (codes > 0) | np.isin(np.arange(len(codes)), np.flatnonzero(codes == 0)[:4])
    rows, policy = (data.X[kept], data.y[kept], data.groups[kept]), SitePolicy(min_rows=8)
    if elsewhere:
        federation = RemoteFederation([PickledHost(named([rows]), policy=policy)])
    else:
        federation = InProcessFederation(*rows, policy=policy)
    fitted = model(random_state=0).fit_federation(federation)
    assert fitted.missing_clients_.tolist() == [ids[0]]


def test_parts_of_rows_are_few_too():
    """Five of nine rows would leave four, which tell of single rows: they stay together."""
    site = site_of(SitePolicy(min_rows=5))
    for train, held in site.folds(3, 0):
        assert answered(train) == [False, True, True, True]
        assert train.client_sizes.tolist() == [2, 5, 0, 9] and not held.client_sizes.any()
    for part in site.held_out(0.3, 0):
        assert part.client_sizes.tolist() == [2, 5, 0, 9]
    found = [held.client_sizes[3] for _, held in site_of(SitePolicy(min_rows=4)).folds(3, 0)]
    assert sorted(found) == [0, 4, 5]
    some = site.subset(np.array([3, 0])).penalised(0.5)
    assert some.answer("present", {})["answered"].tolist() == [True, False]
    assert (some.n_clients, some.client_sizes.tolist()) == (2, [9, 2])


def test_a_call_that_is_not_agreed_to_ends_the_part_of_a_site():
    """In one process the fit ends; another method gets its answers."""
    policy = SitePolicy(calls={*CALLS, *ROW_CALLS} - {"hessians"})
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, policy=policy)
    model = FedAvgRegressor(alpha=0.1)
    with pytest.raises(Refused, match="it does not answer hessians"):
        model.fit_federation(federation)
    assert not hasattr(model, "params_")
    wanted = LocalModelsRegressor(alpha=0.1).fit(DATA.X, DATA.y, groups=DATA.groups)
    found = LocalModelsRegressor(alpha=0.1).fit_federation(federation)
    assert_array_equal(found.params_, wanted.params_)
    site, theta = site_of(SitePolicy(calls={"losses"})), np.ones((1, 3))
    site.answer("losses", {"theta": theta})
    site.answer("present", {})  # nothing comes up
    with pytest.raises(Refused, match="it does not answer spectrum"):
        site.answer("spectrum", {})
    # From then on the site takes no part, nor do sites made of it.
    for other in (site, site.subset(np.arange(2)), site.penalised(1.0)):
        with pytest.raises(Refused, match="spectrum"):
            other.answer("losses", {"theta": theta})


def test_calls_are_counted_in_all_fits():
    rows, _ = rows_of(SIZES, SitePolicy(max_calls=3))
    first = rows.site(MODEL)
    second = rows._with(guard=FitGuard(rows.guard.guard)).site(MODEL)
    first.answer("present", {})
    first.subset(np.array([1])).answer("present", {})
    second.answer("present", {})
    for site in (first, second):
        with pytest.raises(Refused, match="it has answered max_calls=3 calls"):
            site.answer("present", {})


@pytest.mark.filterwarnings("ignore:No answer of")
@pytest.mark.parametrize("model", [IFCARegressor(), IFCAClassifier()])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_error_says_that_no_client_can_hold_rows_out(elsewhere, model):
    """Halves of ten rows are too few for the policy, all of them are not."""
    policy = SitePolicy(min_rows=8)
    data = DATA if is_regressor(model) else Bunch(**{**DATA, "y": DATA.y > 0.0})
    if elsewhere:
        places = RemoteFederation([PickledHost(named(parts_of(data, 2)), policy=policy)])
    else:
        places = InProcessFederation(data.X, data.y, data.groups, policy=policy)
    never = "no client holds rows out: .* min_rows of its rows .*The largest client has 10"
    with pytest.raises(FederationError, match=never):
        model.fit_federation(places)
    LocalModels(LinearModel(model.loss)).fit_federation(places)


def test_a_policy_in_one_of_two_places():
    ids = np.unique(DATA.groups)
    few = np.flatnonzero(DATA.groups == ids[0])[3:]
    here = np.setdiff1d(np.flatnonzero(DATA.groups < ids[2]), few)
    rows = [(DATA.X[m], DATA.y[m], DATA.groups[m]) for m in (here, DATA.groups >= ids[2])]
    policed = InProcessFederation(*rows[0], policy=SitePolicy(min_rows=5))
    both = FanOutFederation([policed, InProcessFederation(*rows[1])])
    with pytest.warns(MissingClientWarning, match="1 of 4 clients .* fewer than min_rows rows"):
        model = LocalModelsRegressor().fit_federation(both)
    assert model.missing_clients_.tolist() == [ids[0]]
    with pytest.raises(Refused, match="no client has min_rows=50 rows"):
        model.fit_federation(InProcessFederation(*rows[0], policy=SitePolicy(min_rows=50)))


# ------------------------------------------------------------------------- every exit


def rows_of(sizes, policy, y=None, weights=None, seed=0):
    """Rows of clients of some sizes under a policy, and the same without."""
    codes = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.RandomState(seed)
    X = rng.normal(size=(len(codes), 2))
    y = rng.normal(size=len(codes)) if y is None else np.asarray(y)
    own = X, y, codes, weights, np.arange(len(sizes))
    guard = None if policy is None else FitGuard(Guard(policy))
    return Rows(*own, guard=guard), Rows(*own)


MODEL = LinearModel(alpha=0.1, standardize=False).bind(2)
EXITS = {
    "moments": lambda rows: rows.moments("features", "sums")[4],
    "squares of features": lambda rows: rows.moments("features", "squares", np.ones(2)),
    "means": lambda rows: rows.moments("target", "means")[2],
    "spreads": lambda rows: rows.moments("features", "spreads", np.zeros(2)),
    "testable": lambda rows: rows.testable()[0],
    "target_sums": lambda rows: scored(rows).target_sums(),
    "squares": lambda rows: scored(rows).squares(0.5),
    "total_loss": lambda rows: scored(rows).total_loss(),
    "scores": lambda rows: rows.folds(2, 0, False)[0].scores(
        MODEL, None, np.zeros((1, len(rows.places), 3)), None
    ),
}


def scored(rows):
    table = np.ones((len(rows.places), 3))
    return rows.scored(MODEL, table, np.arange(len(rows.places)), None)


@pytest.mark.parametrize("name", EXITS)
def test_no_exit_tells_of_a_client_of_few_rows(name):
    """Whatever its row is, the answers are those without it."""
    answers = []
    for shift in (0.0, 1e3, None):
        rows, _ = rows_of([12, 1, 14], SitePolicy(min_rows=5))
        X, y = rows._X, rows.y
        if shift is None:
            rows, _ = rows_of([12, 0, 14], SitePolicy(min_rows=5))
            rows._X, rows.y = np.delete(X, 12, axis=0), np.delete(y, 12)
        else:
            X[12] += shift
            y[12] -= shift
        answer = EXITS[name](rows)
        parts = answer if isinstance(answer, tuple) else (answer,)
        answers.append(np.hstack([np.ravel(part) for part in parts]))
    assert_array_equal(answers[0], answers[1])
    assert_allclose(answers[0], answers[2], rtol=1e-12)


def test_rows_of_weight_zero_are_no_rows():
    """A policy does not count them, so that no exit tells of one."""
    weights, scores = np.arange(21) != 3, []
    for shift in (0.0, 1e3):
        rows, _ = rows_of([12, 9], SitePolicy(min_rows=3, calls=ROW_CALLS), weights=weights * 1.0)
        rows.y[3] += shift
        scores += [
            fold.scores(MODEL, None, np.zeros((1, 2, 3)), "neg_mean_squared_error")
            for fold in rows.folds(2, 0, False)
        ]
    assert scores[:2] == scores[2:]
    assert scores[0][1] + scores[1][1] == rows.distinct([0])[1] == 20
    assert rows.testable()[0] == 11 // 3 + 9 // 3  # parts of min_rows rows


@pytest.mark.parametrize("name", EXITS)
def test_exits_are_calls(name):
    """They are refused, and counted, as any other call."""
    call = {"squares of features": "moments", "means": "moments", "spreads": "moments"}
    call = call.get(name, name)
    rows, _ = rows_of([12, 9], SitePolicy(calls={*CALLS, *ROW_CALLS} - {call}))
    with pytest.raises(Refused, match=f"it does not answer {call}"):
        EXITS[name](rows)
    rows, _ = rows_of([12, 9], SitePolicy(max_calls=1))
    EXITS[name](rows)
    with pytest.raises(Refused, match="max_calls=1"):
        EXITS[name](rows)


@pytest.mark.parametrize("name", [n for n in EXITS if n not in ("means", "spreads")])
def test_sums_are_over_enough_clients(name):
    rows, _ = rows_of([12, 2, 9], SitePolicy(min_rows=4, min_clients=3))
    with pytest.raises(Refused, match="a sum would be over 2 of its clients.*min_clients=3"):
        EXITS[name](rows)
    rows, _ = rows_of([12, 8, 9], SitePolicy(min_rows=4, min_clients=3))
    EXITS[name](rows)


def test_summed_calls_are_over_enough_clients():
    rows, _ = rows_of([12, 8, 9], SitePolicy(min_clients=2))
    known = {"theta": np.ones((2, 3)), "damping": np.zeros(2), "members": np.array([2, 1])}

    def hessians(site, labels, weights):
        given = {"labels": np.array(labels), "weights": np.array(weights)}
        return site.answer("hessians", {**known, **given})

    site = rows.site(MODEL)
    for asked in (
        (site, [0, 0, 1], np.ones(3)),
        (site, [0, 0, 0], [1.0, 0.0, 0.0]),
        (site.subset(np.array([1])), [0], np.ones(1)),
    ):
        with pytest.raises(Refused, match="over 1 of its clients"):
            hessians(*asked)
    # By their rows or alike three clients are three, however unequal these are.
    for weights in (None, np.ones(3)):
        rows, plain = rows_of([2, 100, 1000], SitePolicy(min_clients=3))
        found, wanted = (
            one.site(MODEL).answer("gradient_sums", {**SUMMED, **FAR, "weights": weights})
            for one in (rows, plain)
        )
        assert_array_equal(found["gradients"], wanted["gradients"])


# Answers of one of three clients, if a site may be asked for them.
ALL, NONE = np.ones(3), np.zeros(3, dtype=int)
TRAINED = {
    **{"begun": NONE, "steps": NONE + 2, "step_size": np.full(3, 0.1), "optimizer": "sgd"},
    **{"batch_size": None, "monotone": False, "draw": None},
}
APART = np.array([[0.0, 0, 0], [9, 9, 9]])
ALIKE = [1.0, 1.0, 1.0]
ONE_OF_THEM = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
MIXED = {"theta": APART, "dispersion": 1e6, "share_steps": 1}
PRIORS = {"root": np.full(3, 1e-3), "weights": np.full(2, 0.5), "dispersion": 1.0, "df": np.inf}
SUMMED = {"labels": NONE, "dtype": np.dtype(float)}
FAR = {"theta": np.ones((1, 3))}
ASKED = {
    "a choice that is given": ("best_response_sums", {"fixed": np.array([0, 1, 1])}, ALL),
    "a choice": ("best_response_sums", {"fixed": None}, ALL),
    "the nearest model": ("nearest_moves", TRAINED, ALL),
    "a tiny weight": ("gradient_sums", SUMMED, [1.0, 1e-13, 1e-200]),
    "members elsewhere": ("hessians", {"labels": np.array([0, 1, 1])}, ALIKE),
    "a floor": ("enclosures", {"labels": np.array([0, 1, 1]), "box": APART, "dense": True}, None),
    "a large weight": ("hessians", {"labels": NONE}, [1e200, 1.0, 1.0]),
    "shares": ("mixture_sums", {**MIXED, "shares": ONE_OF_THEM}, None),
    "tiny shares": ("mixture_sums", {**MIXED, "shares": ONE_OF_THEM + 1e-13}, None),
    "responsibilities": ("posterior_sums", {**PRIORS, "dense": True}, None),
    "products": ("posterior_products", {**PRIORS, "vectors": np.ones((2, 1, 3))}, None),
}


@pytest.mark.parametrize("name", ASKED)
def test_no_sum_is_in_truth_over_one_client(name):
    """Whatever the server sends: the clients' own choices and shares, and weights, count."""
    call, given, weights = ASKED[name]
    sizes = np.array([12, 13, 14])
    y = np.where(np.repeat(np.arange(3), sizes) == 0, 90.0, np.random.RandomState(0).rand(39))
    arguments = {"theta": APART, "damping": np.zeros(2), "members": np.full(2, 3), **given}
    arguments = {k: v for k, v in arguments.items() if k in CALLS[call].down}
    arguments |= {} if weights is None else {"weights": np.array(weights)}
    two, three = (rows_of(sizes, SitePolicy(min_clients=n), y)[0].site(MODEL) for n in (2, 3))
    with pytest.raises(Refused, match="over [0-9.]+ of its clients, fewer than min_clients=2: f"):
        two.answer(call, dict(arguments))
    with pytest.raises(Refused, match="min_clients=3: fewer clusters have more each"):
        three.answer(call, dict(arguments))
    rows_of(sizes, SitePolicy(), y)[0].site(MODEL).answer(call, dict(arguments))


@pytest.mark.filterwarnings("ignore:No answer of host")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_numbers_of_clusters_that_are_refused_do_not_compete(elsewhere):
    """Sums that no site answers are no sums of zero, which would be the likeliest fit."""
    data = make_clustered_regression(15, 3, 3, n_samples=20, random_state=0)
    rows, policy = (data.X, data.y, data.groups), SitePolicy(min_clients=3)
    wanted = PartialPoolingRegressor(random_state=0, basis="linear").fit(*rows)
    if elsewhere:
        places = RemoteFederation([PickledHost(named(parts_of(data, 2)), policy=policy)])
    else:
        places = InProcessFederation(*rows, policy=policy)
    found = clone(wanted).fit_federation(places)
    assert found.n_clusters_ == wanted.n_clusters_ == 3
    assert_allclose(found.params_, wanted.params_, rtol=1e-6)
    tried = [set(model.bic_path_["n_clusters"]) for model in (found, wanted)]
    assert tried[0] <= tried[1] and found.bic_path_["loglik"].max() < 0
    with pytest.raises((Refused, FederationError), match="fewer than min_clients"):
        clone(wanted).set_params(n_clusters=8).fit_federation(places)


def answered(site):
    return site.answer("present", {}).get("answered", np.ones(site.n_clients, bool)).tolist()


def test_parts_that_differ_by_few_rows():
    """Two sums whose difference is the sum over a few rows are not both told."""
    rows, _ = rows_of([40], SitePolicy(min_rows=5))
    site = rows.site(MODEL)
    train, held = site.held_out(0.3, 0)
    assert answered(train) == answered(held) == [True]
    nested = site.held_out(0.325, 0)  # one row less
    assert [part.client_sizes.tolist() for part in nested] == [[40], [40]]
    again = [part.client_sizes.tolist() for part in site.held_out(0.3, 0)]
    assert again == [[28], [12]]
    assert not any(held.client_sizes.any() for _, held in site.folds(4, 0))
    # So for another fit, and for the folds that are dealt before there is a model.
    fit = rows._with(guard=FitGuard(rows.guard.guard))
    assert [fold.n_rows for fold in fit.folds(4, 0, False)] == [0] * 4
    again = [part.client_sizes.tolist() for part in fit.site(MODEL).held_out(0.3, 0)]
    assert again == [[28], [12]]


def test_no_sums_over_parts_together_tell_of_few_rows():
    """Forty halves of thirty rows gave every row by linear equations."""
    rows, _ = rows_of([30, 300], SitePolicy(min_rows=10))
    site = rows.site(MODEL)
    halves = [half for seed in range(60) for half in site.held_out(0.5, seed)]
    masks = [np.isin(np.arange(330), half.site.row_ids) for half in halves]
    told = np.array([answered(half) for half in halves])
    assert told[:2].all() and told[:, 1].sum() > 4
    for k, owned in enumerate((slice(0, 30), slice(30, 330))):
        parts = np.array(masks)[told[:, k], owned]
        assert np.unique(parts, axis=1, return_counts=True)[1].min() >= 10


def test_classes_of_parts_are_no_smaller_than_parts():
    """Sums over a class of all rows and of a part, or under other factors, differ by few rows."""
    y = np.r_[np.repeat([0, 1], [28, 12]), np.repeat([0, 1], 200)]
    model = LinearModel("log_loss", standardize=False).bind(2, 2)
    asked = "class_statistics", {"w": np.ones((2, 3))}

    def parts_of(rows):
        return rows.site(model).held_out(0.25, 0)

    rows, _ = rows_of([40, 400], SitePolicy(min_rows=5), y)
    assert [answered(part) for part in parts_of(rows)] == [[True, True]] * 2
    assert rows.site(model).answer(*asked)["answered"].tolist() == [False, True]
    rows, _ = rows_of([40, 400], SitePolicy(min_rows=5), y)
    assert "answered" not in rows.site(model).answer(*asked)  # twelve of the class, three held out
    assert [part.client_sizes.tolist() for part in parts_of(rows)] == [[40, 300], [40, 100]]
    rows, _ = rows_of([40, 400], SitePolicy(min_rows=5), y)
    weighed = rows.weighed(np.array([1.0, 2.0]))
    assert [part.client_sizes.tolist() for part in parts_of(weighed)] == [[40, 300], [40, 100]]
    assert answered(weighed.site(model)) == [True, True]


def test_rows_of_unequal_weights_count_as_fewer():
    weights = np.r_[np.full(19, 1e-9), 1.0, np.ones(20)]
    rows, _ = rows_of([20, 20], SitePolicy(min_rows=20), weights=weights)
    assert answered(rows.site(MODEL)) == [False, True]
    means = rows.moments("features", "means")[2]
    assert not means[0].any() and means[1].any()
    # Neither does one row of a large weight, whatever the sum of the weights is.
    weights = np.r_[np.ones(19), 1e3, np.full(20, 1e-3)]
    rows, _ = rows_of([20, 20], SitePolicy(min_rows=20), weights=weights)
    assert answered(rows.site(MODEL)) == [False, True]
    # A row that outweighs the others of a part is what a difference is about.
    weights = np.r_[1.0, np.full(19, 1e-9), np.ones(20)]
    rows, _ = rows_of([40], SitePolicy(min_rows=5), weights=weights)
    assert answered(rows.site(MODEL)) == [True]
    assert answered(rows.site_of(MODEL, np.arange(20, 40))) == [False]


def test_weights_of_classes_do_not_show_rows():
    y = np.r_[np.zeros(19, int), 1, np.repeat([0, 1], 10)]
    rows, _ = rows_of([20, 20], SitePolicy(min_rows=5), y)
    model = LinearModel("log_loss", standardize=False).bind(2, 2)
    assert answered(rows.site(model)) == [True, True]
    for factors in ([1.0, 1.0], [1e-9, 1.0], [1.0, 1e-9], [0.0, 1.0]):
        assert answered(rows.weighed(np.array(factors)).site(model)) == [False, True]
    for factors in ([1.0], [[1.0, 1.0]], [1.0, np.nan], [-1.0, 1.0], ["a", "b"]):
        with pytest.raises(ValueError, match="factors must be"):
            rows.weighed(np.array(factors))


def test_weights_of_classes_do_not_show_clients():
    """One that has the only rows of a class would make the sums by itself."""
    y = np.r_[np.zeros(20, int), np.ones(40, int)]
    rows, _ = rows_of([20, 20, 20], SitePolicy(min_clients=2), y)
    rows.weighed(np.array([1.5, 0.75]))
    for factors in ([1.0, 1e-13], [1.0, 0.0], [1e200, 1e-200]):
        with pytest.raises(Refused, match="over 1 of its clients, fewer than min_clients=2"):
            rows.weighed(np.array(factors))
    with pytest.raises(Refused, match="over 1[.0-9]* of its clients, fewer than min_clients=2"):
        for _ in range(9):  # little by little
            rows = rows.weighed(np.array([1.0, 0.4]))
    # Two clients are left by weights of classes, others by weights of clients: one is by both.
    y = np.r_[np.zeros(40, int), np.ones(40, int)]
    rows, _ = rows_of([20, 20, 20, 20], SitePolicy(min_clients=2), y)
    site = rows.weighed(np.array([1.0, 1e-9])).site(LinearModel("log_loss").bind(2, 2))
    arguments = {**FAR, "labels": np.zeros(4, int), "dtype": np.dtype(float)}
    with pytest.raises(Refused, match="over 1 of its clients, fewer than min_clients=2"):
        site.answer("gradient_sums", {**arguments, "weights": site.client_weights * [1, 0, 1, 0]})
    site.answer("gradient_sums", {**arguments, "weights": None})


def test_answers_about_classes_and_centres_of_few_rows():
    y = np.r_[np.zeros(19, int), 1, np.repeat([0, 1], 10)]
    rows, plain = rows_of([20, 20], SitePolicy(min_rows=5), y)
    model = LinearModel("log_loss", standardize=False).bind(2, 2)
    site = rows.site(model)
    spanned = {"n_vectors": 1, "n_columns": 2, "by_class": True}
    answers = site.answer("subspaces", spanned)
    assert answers["answered"].tolist() == [False, True] and not answers["bases"][0].any()
    assert "answered" not in site.answer("subspaces", {**spanned, "by_class": False})
    means = site.answer("class_statistics", {"w": np.ones((2, 3))})
    assert means["answered"].tolist() == [False, True]
    many, one = ({"n_centres": n, "draw": (0, 0)} for n in (20, 1))
    with pytest.raises(Refused, match="local_centres.*do not name it"):  # differences of centres
        site.answer("local_centres", one)
    named = SitePolicy(min_rows=5, calls={"local_centres"})
    site = rows_of([20, 20], named, y)[0].site(model)
    centres = site.answer("local_centres", many)
    assert centres["answered"].tolist() == [False, False] and not centres["centres"].any()
    assert plain.site(model).answer("local_centres", many)["counts"].any()
    assert site.answer("local_centres", one)["answered"].tolist() == [True, True]


def test_single_rows_make_no_entry_of_a_sum_by_bins():
    """Counts between edges, levels and sums by leaf would tell the values of rows."""
    edges, columns = np.linspace(-2, 2, 9)[None].repeat(2, axis=0), np.arange(2)
    _, plain = rows_of([20, 20], SitePolicy())
    for name, setting in (("below", edges), ("distinct", columns)):
        with pytest.raises(Refused, match=f"not answer {name}, as its calls do not name it"):
            getattr(rows_of([20, 20], SitePolicy(min_rows=5))[0], name)(setting)
    for name in ("split_sums", "leaf_sums", "level_sums", "nested_effects"):
        with pytest.raises(Refused, match=f"not answer {name}, .* min_rows is 5"):
            rows_of([20, 20], SitePolicy(min_rows=5))[0].site(MODEL).answer(name, {})
    named, _ = rows_of([20, 20], SitePolicy(min_rows=5, calls={"below"}))
    assert_array_equal(named.below(edges), plain.below(edges))


LONE = np.array([[[-1, 0, 0, 0, 0], [0, 0, 1.5, 1e6, 1]]])  # a value beyond a split
KNOTS = np.r_[1.0, np.linspace(-2, 2, 6)]
PRIOR = np.eye(3), np.zeros(0), np.zeros(3)
MADE_OF_PARTS = {
    "trees": ("below", lambda rows: rows.made([("same", 0, None), ("same", 1, None)], LONE)),
    "curve": ("below", lambda rows: rows.made([("same", 0, None), ("curve", 0, KNOTS)])),
    "codes": ("distinct", lambda rows: rows.made([("codes", 0, np.array([0.5]))])),
    "without_trees": (
        "below",
        lambda rows: rows.site(MODEL).derive("without_trees", LONE, np.zeros((2, 1))),
    ),
    "without_levels": ("distinct", lambda rows: rows.site(MODEL).derive("without_levels", *PRIOR)),
    "linearised": ("distinct", lambda rows: rows.site(MODEL).derive("linearised", *PRIOR)),
}


@pytest.mark.parametrize("limit", ["min_rows", "min_clients"])
@pytest.mark.parametrize("name", MADE_OF_PARTS)
def test_nothing_is_made_of_rows_in_which_single_ones_are_alone(name, limit):
    """The difference of sums with and without a tree is about the rows of a leaf."""
    assert {*TOLD_BY} == {*STEPS, *MAKERS, "trees"}  # of every step it is said
    call, make = MADE_OF_PARTS[name]
    refusal = f"not make '{name}' of its rows, .*'{call}' and {limit} is 2"
    with pytest.raises(Refused, match=refusal):
        make(rows_of([20, 20], SitePolicy(**{limit: 2}))[0])
    for policy in (SitePolicy(**{limit: 2}, calls={call}), SitePolicy(calls={"losses"})):
        rows, _ = rows_of([20, 20], policy)
        rows.guard.check_made(name)
        if call == "below":
            make(rows)
    rows, _ = rows_of([20, 20], SitePolicy(**{limit: 2}))
    assert answered(rows.made([("same", 1, None)]).site(LinearModel().bind(1))) == [True, True]


def test_batches_of_few_rows():
    """Whoever knows the draws has single rows from several of them."""
    arguments = {
        **{"w": np.ones((2, 3)), "own": None, "center": None, "rho": np.zeros(2), "keep": False},
        **{"steps": np.ones(2, int), "step_size": np.full(2, 0.1), "optimizer": "sgd"},
        **{"draw": (0, 0), "monotone": False},
    }
    named = SitePolicy(min_rows=5, calls={"local_update"})
    site, strict = (rows_of([20, 20], p)[0].site(MODEL) for p in (named, SitePolicy(min_rows=5)))
    few = site.answer("local_update", {**arguments, "batch_size": 1})
    assert few["answered"].tolist() == [False, False] and not few["w"].any()
    assert "answered" not in site.answer("local_update", {**arguments, "batch_size": 5})
    for size in (5, 19):
        with pytest.raises(Refused, match="rows that are drawn.*batch_size=None"):
            strict.answer("local_update", {**arguments, "batch_size": size})
    assert "answered" not in strict.answer("local_update", {**arguments, "batch_size": 20})


def test_facts_of_parts_are_answers():
    """Weights of classes would tell the classes of a few rows, and sizes how many these are."""
    y = np.r_[np.zeros(19, int), 1, np.repeat([0, 1], 20)]
    rows, _ = rows_of([20, 40], SitePolicy(min_rows=5, max_calls=2), y)
    model = LinearModel("log_loss", standardize=False).bind(2, 2)
    weighed = rows.weighed(np.array([1.0, 2.0]))
    sizes, weights, _ = weighed.site(model).facts()
    assert (sizes.tolist(), weights.tolist()) == ([20, 40], [20.0, 60.0])
    sizes, weights, _ = weighed.folds(4, 0, True)[0].site(model).facts()
    assert (sizes.tolist(), weights.tolist()) == ([20, 30], [20.0, 45.0])
    rows.site(model).facts()  # as a hello
    with pytest.raises(Refused, match="max_calls=2"):
        weighed.site(model).facts()


def test_shares_of_rows_that_the_server_draws():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(60, 2)), np.repeat(np.arange(3), 20)
    there = InProcessFederation(X, X.sum(axis=1), groups, policy=SitePolicy(min_rows=5))
    FedALARegressor(max_iter=3, tol=0.0).fit_federation(there)
    there = InProcessFederation(X, X.sum(axis=1), groups, policy=SitePolicy(min_rows=5))
    with pytest.raises(Refused, match="blended_.* about rows that are drawn"):
        FedALARegressor(max_iter=3, tol=0.0, blend_share=0.5).fit_federation(there)


def test_scores_of_one_row():
    rows, plain = rows_of([20, 20], SitePolicy(min_rows=5))
    few, all_rows = (one.folds(2, 0, False)[0] for one in (rows, plain))
    arguments = MODEL, None, np.zeros((1, 2, 3))
    single = {"max_error", "neg_max_error", "neg_median_absolute_error"}
    for scoring in single & {*get_scorer_names()}:
        with pytest.raises(Refused, match="about single rows"):
            few.scores(*arguments, scoring)
        assert all_rows.scores(*arguments, scoring)[1] > 0
    assert few.scores(*arguments, "r2")[1] == 20


def test_scores_of_few_rows_of_a_class():
    """The recall of a class with one row says which side of a model the row is on."""
    y, theta = np.r_[np.zeros(39, int), 1], np.zeros((1, 2, 3))
    classifier = LinearModel("log_loss").bind(2, 2)
    for targets, model, classes, mean in (
        (y, classifier, np.arange(2), "accuracy"),
        (y.astype(float), MODEL, None, "r2"),
    ):
        rows, _ = rows_of([20, 20], SitePolicy(min_rows=5), targets)
        folds = rows.folds(2, 0, False)
        single = next(fold for fold in folds if targets[fold.test].any())
        # The other client has one class only.
        assert single.scores(model, classes, theta, "rand_score")[1] == 10
        assert single.scores(model, classes, theta, mean)[1] == 20
        rows, _ = rows_of([40], SitePolicy(min_rows=5), targets)
        folds = rows.folds(2, 0, False)
        single = next(fold for fold in folds if targets[fold.test].any())
        for scoring in ("recall", "balanced_accuracy", "roc_auc", "f1", "rand_score"):
            with pytest.raises(Refused, match="no client has min_rows=5 rows of each class"):
                single.scores(model, classes, theta, scoring)
    rows, _ = rows_of([40], SitePolicy(min_rows=5), np.arange(40) % 2)
    for fold in rows.folds(2, 0, True):
        assert fold.scores(classifier, np.arange(2), theta, "f1")[1] == 20


def test_targets_are_no_classes():
    """A server that asks for classes would be told every target."""
    income = np.arange(28) // 2
    policy = SitePolicy(min_rows=5)
    federation = InProcessFederation(DATA.X[:28], income, DATA.groups[:28], policy=policy)
    with pytest.raises(Refused, match="28 rows have 14 different targets"):
        federation.hello("classifier")
    hello = federation.hello("regressor")
    assert len(hello.ids) == len(np.unique(DATA.groups[:28]))
    model = LinearModel("log_loss").bind(DATA.X.shape[1], 14)
    # Neither does an error say whether all targets are among classes that the server chooses.
    for classes in (np.arange(14), np.arange(13)):
        with pytest.raises(Refused, match="28 rows have 14 different targets"):
            federation.rows(model, replace(hello, classes=classes))


def test_models_of_another_kind_than_the_targets():
    """A classifier would take numbers for classes that nobody has counted."""
    y, policy = np.r_[np.zeros(39), 1.0], SitePolicy(min_rows=5)
    classifier = LinearModel("log_loss").bind(2, 2)
    for targets, model in ((y, classifier), (y.astype(int), MODEL)):
        rows, plain = rows_of([20, 20], policy, targets)
        fold, theta = rows.folds(2, 0, False)[0], np.zeros((1, 2, 3))
        for ask, *more in (
            (rows.site,),
            (fold.site,),
            (fold.scores, None, theta, None),
            (rows.scored, theta[0], np.zeros(2, int), None),
        ):
            with pytest.raises(Refused, match="its rows are for a [a-z]+, the model is a"):
                ask(model, *more)
        plain.site(model)
    for targets in (y, y.astype(bool), y.astype(int)):
        federation = InProcessFederation(DATA.X[:40, :2], targets, np.zeros(40), policy=policy)
        hello = federation.hello("classifier")
        with pytest.raises(Refused, match="classes are those of classifiers"):
            federation.rows(MODEL, hello)
        hello = replace(hello, classes=None)
        (rows,) = federation.rows(classifier, hello)
        with pytest.raises(Refused, match="its rows are for a None, the model is a classifier"):
            rows.site(classifier)
        assert len(rows.scored(classifier, np.zeros((1, 3)), [0], None).outputs("predict")) == 40
        (rows,) = federation.rows(MODEL, hello)
        assert rows.y.dtype == float


POSITIONS = np.zeros(25, int), [0, -2], [2], [0.0], [[0]], [True, False]


def test_settings_of_other_shapes_are_refused():
    """An array with an entry a row, where there is one for all, would tell rows apart."""
    rows, plain = rows_of([20, 20], SitePolicy(min_rows=5))
    site, each = rows.site(MODEL), np.zeros((40, 2))
    places = np.ones((1, 3)), np.zeros(40, int), None
    for message, call, *arguments in (
        (r"means must be numbers of shape \(2,\)", rows.moments, "features", "squares", each),
        ("(mean|scale) must be", rows.scaled, Scaling(each, np.ones(2))),
        ("(mean|scale) must be", rows.scaled, Scaling(np.zeros(2), each + 1)),
        ("(mean|scale) must be", rows.scaled, Scaling(np.zeros(2), np.zeros(2))),
        ("mean must be numbers of shape", scored(rows).squares, np.zeros(40)),
        ("index must have the place of a model for each client", rows.scored, MODEL, *places),
        *(("n_folds must be an integer from 2", rows.folds, n, 0, False) for n in (1, 10**6, 2.5)),
        *(("clients must be positions, each once", site.subset, some) for some in POSITIONS),
        ("degree from 1 to 5", plain.made, [("curve", 0, np.r_[2e4, KNOTS])]),
        ("at most 100 knots", plain.made, [("curve", 0, np.arange(1.0, 103))]),
        ("got 0 trees of 1000000 outputs", plain.made, [], np.zeros((0, 1, 5)), 10**6),
        ("losses takes", site.answer, "losses", {"theta": np.ones((2, 40, 3))}),
        ("losses takes", site.answer, "losses", {"theta": np.ones((1, 3)), "X": 1}),
        (
            "local_update takes batch_size of shape",
            site.answer,
            "local_update",
            {"batch_size": np.ones(2)},
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments)
