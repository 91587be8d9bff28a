"""Clients that do not answer: fits go on without them, and nothing is claimed of them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from private_clients import where
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score

import skcfl
from skcfl import (
    ConvexClusteredFLRegressor,
    FedAvgRegressor,
    FPFCRegressor,
    GTVRegressor,
    LamSearch,
)
from skcfl.calls import CALLS
from skcfl.calls.curvatures import Prox, Solve
from skcfl.calls.first_order import Losses, Objectives
from skcfl.calls.posteriors_asked import PosteriorSums
from skcfl.certificates import certify_partition
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.exceptions import FederationError
from skcfl.federation import FanOutFederation, Faults, InProcessFederation, Ledger
from skcfl.federation.inprocess import open_rows
from skcfl.federation.presence import Presence
from skcfl.models import LinearModel
from skcfl.testing._pool_checks import _arrays, _calls

DATA = make_clustered_regression(12, 3, 4, n_samples=25, random_state=0)
CLASSES = make_clustered_classification(12, 3, 4, n_samples=40, random_state=0)
IDS = np.unique(DATA.groups)
DEAD = IDS[4]


def lossy(data=DATA, **options):
    names = ("dropout", "dead", "attack", "false")
    faults = {name: options.pop(name) for name in names if name in options}
    faults = Faults(**faults, random_state=0)
    return InProcessFederation(data.X, data.y, data.groups, faults=faults, **options)


FUSION = {
    "admm": ConvexClusteredFLRegressor(lam=0.05, graph="complete", refit=False),
    "pdmm": ConvexClusteredFLRegressor(lam=0.05, graph="complete", solver="pdmm", refit=False),
    "gtv": GTVRegressor(lam=0.1, refit=False),
    "primal_dual": GTVRegressor(lam=0.1, solver="primal_dual", max_iter=2000, refit=False),
}


@pytest.mark.parametrize("name", FUSION)
def test_fusion_ends_at_the_optimum_whoever_was_silent(name):
    """The gap needs everybody, who is asked again; a round goes on without the silent."""
    whole = clone(FUSION[name]).fit(DATA.X, DATA.y, groups=DATA.groups)
    found = clone(FUSION[name]).fit_federation(lossy(dropout=0.3))
    assert found.missing_clients_.size == 0
    assert found.dual_gap_ < 1e-5
    assert_allclose(found.objective_, whole.objective_, rtol=1e-5)
    assert_array_equal(found.labels_, whole.labels_)
    if name == "gtv":  # the same clients are lost in each fit
        again = clone(FUSION[name]).fit_federation(lossy(dropout=0.3))
        assert_array_equal(again.params_, found.params_)
        assert again.floats_up_ == found.floats_up_ > 0


def test_fpfc_and_the_searches():
    search = LamSearch(cv=2, n_lams=3)
    model = FPFCRegressor("auto", search=search, alpha=0.01, random_state=0)
    model.fit_federation(lossy(dropout=0.3))
    assert adjusted_rand_score(model.labels_, DATA.labels) == 1.0


def test_too_few_answers():
    model = FedAvgRegressor()
    with pytest.raises(FederationError, match=f"11 of 12 clients.*'{DEAD}'"):
        model.fit_federation(lossy(dead=[DEAD], min_clients=12))
    assert not hasattr(model, "params_")
    model.fit_federation(lossy(dead=[DEAD], min_clients=11))
    with pytest.raises(FederationError, match="0 of 12 clients"):
        model.fit_federation(lossy(dead=IDS))


def test_lost_clients_of_one_of_two_places():
    rows, here = (DATA.X, DATA.y, DATA.groups), DATA.groups < IDS[6]
    parts = [
        InProcessFederation(*where(rows, some), faults=faults)
        for some, faults in ((here, Faults(dead=[DEAD])), (~here, None))
    ]
    model = GTVRegressor(lam=0.1).fit_federation(FanOutFederation(parts))
    assert model.missing_clients_.tolist() == [DEAD]


def pool_of(**faults):
    model = LinearModel("log_loss", alpha=0.1, standardize=False).bind(4, 2)
    return lossy(CLASSES, retries=2, **faults).open(model, 0)


#: What is lost where clients without rows have something to say, by call and number of the array.
UNLIKE = {
    **dict.fromkeys([("losses", 0), ("best_response", 0), ("fingerprints", 0)], np.nan),
    **dict.fromkeys([("best_response_sums", 0), ("own_losses", 0)], np.nan),
    **dict.fromkeys([("errors_of_models", 0), ("errors_of_models", 1)], np.nan),
    **dict.fromkeys([("best_response", 1), ("hessian_solves", 0), ("conjugate", 0)], 0.0),
    ("what", 1): 0.0,
}


#: Bounds need not be finite, and some calls send no numbers of rows.
NOT_FINITE = {"rounding", "conjugate", "present", "fingerprints", "keep"}


def test_every_call_under_loss():
    """Clients that are lost are as clients without rows; those of false answers as lost ones."""
    gone, made = np.isin(np.arange(12), [0, 7]), set()
    codes = np.unique(CLASSES.groups, return_inverse=True)[1]
    here, near = ~gone[codes], np.ones((12, 5))
    started = "prox", lambda pool: pool.ask(Prox, near, 1.0, x0=near)
    for name, ask in (*_calls(pool_of(), np.random.RandomState(0)), started):
        lost = pool_of(dead=IDS[gone])
        others = open_rows(lost.model, CLASSES.X[here], CLASSES.y[here], codes[here], 12)
        false = pool_of(attack="nan", false=IDS[gone])
        for pool in (lost, others, false):
            pool.reseed(0)
        of_lost = _arrays(ask(lost))
        if name not in NOT_FINITE:
            for found, wanted in zip(_arrays(ask(false)), of_lost, strict=True):
                assert_allclose(found, wanted, rtol=1e-9, err_msg=name)
            assert_array_equal(false.rejected, gone, err_msg=name)
        for number, (found, wanted) in enumerate(zip(of_lost, _arrays(ask(others)), strict=True)):
            if (name.split()[0], number) in UNLIKE:
                wanted[gone] = UNLIKE[name.split()[0], number]
            assert_allclose(found, wanted, rtol=1e-9, err_msg=name)
        assert_array_equal(lost.presence.missed > 0, gone)
        assert others.answered is None
        made.add(name.split()[0])
    assert made >= set(CALLS)


@pytest.mark.filterwarnings("ignore:1 of 12 clients sent")
@pytest.mark.parametrize(
    ("name", "hidden"), [("PACFL", ()), ("FlexCFL", (4,)), ("RobustClusteredFL", ())]
)
def test_a_false_client_that_is_silent_first_is_rejected(name, hidden):
    """Answers of clients that are asked again are checked as the first ones are."""
    model = getattr(skcfl, f"{name}Classifier")(3, hidden_layer_sizes=hidden, random_state=0)
    if name != "RobustClusteredFL":
        model.set_params(max_iter=10, tol=0.5)
    for seed in range(3):
        faults = Faults(attack="nan", false=[DEAD], dropout=0.3, random_state=seed)
        rows = CLASSES.X, CLASSES.y, CLASSES.groups
        model.fit_federation(InProcessFederation(*rows, faults=faults))
        assert model.rejected_clients_.tolist() == [DEAD]
        # It has answered, and is not away.
        assert DEAD not in {one["client"] for one in model.absences_}


def test_a_client_keeps_its_last_model_and_a_new_one_has_none():
    pool = pool_of(dropout=0.5)
    w = np.random.RandomState(0).normal(size=(12, pool.n_params))
    pool.ask(Objectives, w)  # asked again until all answer, as for the first prox of each
    for _ in range(2):
        x = pool.ask(Prox, w, 1.0, x0=w + 1.0)
    silent = ~pool.answered
    assert 0 < silent.sum() < 12
    assert_array_equal(x[silent], w[silent] + 1.0)
    never = pool_of(dead=[IDS[0]])
    assert_array_equal(never.ask(Prox, w, 1.0, x0=w + 1.0)[0], w[0])  # no wish, as without rows


def test_a_lost_client_goes_on_from_what_the_server_knows_it_by():
    """What it would have computed goes nowhere: not to its own memory either."""
    pool, whole = pool_of(dropout=0.5), pool_of()
    rng = np.random.RandomState(0)
    v = 10.0 * rng.normal(size=(12, pool.n_params))
    wanted = whole.ask(Solve)[0]
    x = pool.ask(Solve)[0]
    while pool.answered is not None:
        x = pool.ask(Solve)[0]
    for k in range(5):
        # One Newton step: the answer depends on the start.
        x = pool.ask(Prox, v, 0.1, x0=x, max_iter=1)
        answered = np.ones(12, dtype=bool) if pool.answered is None else pool.answered
        down = pool.ledger.down
        some = whole.subset(answered).ask(Prox, v[answered], 0.1, x0=wanted[answered], max_iter=1)
        wanted[answered] = some
        assert_allclose(x, wanted, rtol=1e-9)
        assert answered.all() == (k == 0)  # a first answer to a kind of call is waited for
    pool.ask(Prox, v, 0.1, x0=x, max_iter=1)
    assert pool.ledger.down - down == v.size


def test_retries_are_booked():
    pool = pool_of(dead=[IDS[0]])
    pool.ledger = Ledger()
    w = np.zeros((12, pool.n_params))
    pool.ask(Objectives, w)
    n = 12 + 2  # one client, asked again twice, and whether it is there
    assert (pool.ledger.down, pool.ledger.up, pool.ledger.calls) == (n * pool.n_params, n, 4)
    pool.ask(Losses, w[:1])
    assert pool.ledger.calls == 5  # it is known to be away


def test_presence():
    presence = Presence(IDS[:3], min_clients=2, retries=2)
    everyone = np.arange(3)
    presence.note(everyone, None, True)
    presence.note(everyone, np.array([True, True, False]), False)
    assert presence.heard.all() and not presence.incomplete
    presence.note(everyone, np.array([True, True, False]), True)
    assert presence.incomplete and (presence.missed > 0).tolist() == [False, False, True]
    for _ in range(2):  # rounds go on without it
        presence.note(np.array([1]), np.array([False]), False)
    with pytest.raises(FederationError, match="1 of 3 clients"):
        presence.note(np.array([1]), np.array([False]), False)


def test_no_proof_of_a_partition_that_lacks_clients():
    model = ConvexClusteredFLRegressor(lam=1e6, graph="complete")
    model.fit_federation(lossy(dead=[DEAD]))
    assert model.n_clusters_ == 1 and model.partition_optimal_ is None
    # Whoever has all rows can prove what the fit found.
    assert certify_partition(model, DATA.X, DATA.y, DATA.groups).optimal is not False


@pytest.mark.parametrize(
    "faults, text",
    [
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": "often"}, "dropout"),
        ({"dead": [None]}, "dead"),
        ({"dead": ["nobody"]}, "dead.*nobody"),
        ({"min_clients": 0}, "min_clients"),
        ({"retries": -1}, "retries"),
    ],
)
def test_bad_arguments(faults, text):
    with pytest.raises(ValueError, match=text):
        FedAvgRegressor().fit_federation(lossy(**faults))
    with pytest.raises(TypeError, match="faults must be Faults"):
        InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=0.3)


@pytest.mark.parametrize(
    "faults, steady", [({}, True), ({"dead": [1]}, True), ({"dropout": 0.4}, False)]
)
def test_who_comes_back_makes_sums_of_calls_differ(faults, steady):
    X, groups = np.random.RandomState(0).normal(size=(40, 2)), np.repeat(np.arange(8), 5)
    federation = InProcessFederation(X, X[:, 0], groups, faults=Faults(**faults, random_state=0))
    pool = federation.open(LinearModel().bind(2), random_state=0)
    prior = np.zeros((1, 3)), np.ones(3), np.ones(1), 1.0
    for _ in range(6):
        pool.ask(PosteriorSums, *prior)
    assert pool.steady is steady
