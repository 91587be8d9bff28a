"""A fit that loses or rejects clients is the fit to the other ones, whatever they had sent."""

import warnings

import numpy as np
import pytest
from cases import predicted
from fits_alone import without_reports
from lost_client import GONE, IDS, KEPT, OTHERS, REGRESSION, federation, fit_without, make, rows_of
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from private_clients import where
from sklearn.base import clone
from spied import spied
from trials import some, spread

import skcfl
from skcfl import (
    CFLRegressor,
    ConvexClusteredFLRegressor,
    FedAvgRegressor,
    GTVRegressor,
    IFCARegressor,
    LocalModelsRegressor,
    PartialPoolingRegressor,
)
from skcfl.calls import CALLS
from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Losses, Objectives
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import FederationError, MissingClientWarning, RejectedClientWarning
from skcfl.federation import Faults, InProcessFederation, SitePolicy
from skcfl.federation.faults import FaultySite
from skcfl.federation.one_exchange import REFUSALS
from skcfl.federation.presence import LOST, Presence
from skcfl.federation.remote import RemoteFederation
from skcfl.graphs import chain_graph
from skcfl.models import LinearModel

FAR = rows_of("Regressor", 1e6)

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::skcfl.exceptions.RejectedClientWarning"),
]


def check_same(found, wanted, name):
    """What is published of the clients that took part, and what is predicted for them."""
    X, _, groups = where(rows_of(name), OTHERS)
    expected = predicted(wanted, X, groups)
    assert_allclose(predicted(found, X, groups), expected, rtol=1e-10, atol=1e-10)
    assert_allclose(found.params_[KEPT], wanted.params_, rtol=1e-10, atol=1e-10)
    for name in ("alpha_", "lam_", "objective_", "n_clusters_"):
        if hasattr(wanted, name) and len(wanted.cluster_params_) < len(wanted.params_):
            assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-10, err_msg=name)


OPTIONS = {
    "uniform": make("FedAvgRegressor", weights="uniform"),
    "some": make("IFCARegressor", n_clusters=2, participation=0.5, max_iter=6),
    "robust": make("IFCARegressor", n_clusters=2, aggregation="geometric_median"),
    "bounded": make("ConvexClusteredFLRegressor", lam=0.1, client_loss="huber"),
    "network": make("FedRepRegressor", hidden_layer_sizes=(3,), batch_size=4, max_iter=4),
    "within": make("DittoRegressor", within=skcfl.IFCA(n_clusters=2, random_state=0)),
    "cv": make("ConvexClusteredFLRegressor", alpha=0.01, search=skcfl.LamSearch(cv=2, n_lams=2)),
    "fpfc": make("FPFCRegressor", alpha=0.01, search=skcfl.LamSearch(cv=2, n_lams=2)),
    "truth": make("IFCARegressor", n_clusters=2, true_labels=REGRESSION.labels, models=True),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_see_the_others_only(option):
    """And what the first attempt has cost is counted."""
    found = clone(OPTIONS[option]).fit_federation(federation(FAR, options={"retries": 1}))
    wanted = clone(OPTIONS[option])
    if getattr(wanted, "record", None) is not None:
        wanted.set_params(record__true_labels=wanted.record.true_labels[KEPT])
    check_same(found, fit_without(wanted), "Regressor")
    assert found.calls_ > wanted.calls_ and found.floats_up_ > wanted.floats_up_


def test_trees_and_graphs_name_clients_by_their_places():
    """In a graph that is given it is a node without rows, and follows its neighbours."""
    cfl = CFLRegressor(eps2=0.3, max_iter=20).fit_federation(federation(FAR))
    members = np.sort(np.concatenate([n["clients"] for n in cfl.tree_ if not n["children"]]))
    assert_array_equal(members, np.flatnonzero(KEPT))
    X, y, groups = where(FAR, OTHERS)
    model = GTVRegressor(lam=0.1, graph=chain_graph(8), random_state=0)
    params = model.fit_federation(federation(FAR)).params_
    wanted = model.set_params(nodes=IDS).fit(X, y, groups=groups)
    assert_allclose(params, wanted.params_, rtol=1e-10)
    assert wanted.without_rows_.nonzero()[0].tolist() == [3]


def dying(X, y, groups, after, forever=True, missed=1, **options):
    """A federation one client of which stops answering after some calls, or misses some."""
    federation = InProcessFederation(X, y, groups, **options)
    count, rows_at = [0], federation.rows_at

    def rows(*args):
        rows = rows_at(*args)

        def wrap(site):
            class Draws:
                def lost(self, call, dead, places):
                    count[0] += 1
                    gone = count[0] > after if forever else 0 <= count[0] - after < missed
                    return (np.asarray(places) == 3) & gone

            return FaultySite(site, np.zeros(len(IDS), dtype=bool), rows.places, Draws())

        rows.wraps = [*rows.wraps, wrap]
        return rows

    federation.rows_at = rows
    return federation, count


LOST_AT = [("IFCARegressor", 1), ("PartialPoolingRegressor", 8), ("CLoVERegressor", 40)]
LOST_AT += [("IFCARegressor", 40), ("PartialPoolingRegressor", 1), ("CLoVERegressor", 8)]


@pytest.mark.parametrize(("name", "after"), some(LOST_AT, 2))
def test_it_does_not_matter_when_it_is_lost(name, after):
    federation, count = dying(*rows_of(name, 1e6), after)
    found = make(name).fit_federation(federation)
    assert count[0] > after and found.missing_clients_.tolist() == [GONE]
    check_same(found, fit_without(make(name), name), name)


def test_stragglers_are_not_lost():
    """A client that misses a call and comes back is in the fit, with all of its rows."""
    X, y, groups = rows_of()
    federation, _ = dying(X, y, groups, 3, forever=False)
    found = LocalModelsRegressor().fit_federation(federation)
    assert found.missing_clients_.size == 0
    wanted = LocalModelsRegressor().fit(X, y, groups=groups)
    assert_allclose(found.params_, wanted.params_, rtol=1e-10)
    presence = Presence(IDS)
    everyone, one = np.arange(8), np.arange(8) == 3
    for silent in (3, 1, 3 * LOST):
        for _ in range(silent):
            presence.note(everyone, ~one, False)
        assert not presence.lost.any()  # ten times as long as its longest silence
        if silent < 3 * LOST:
            presence.note(everyone, None, False)
    presence.note(everyone, ~one, False)
    assert_array_equal(presence.lost, one)


@pytest.mark.parametrize("after", [6, 7])
@pytest.mark.parametrize("loss", ["log_loss", "poisson"])
def test_stragglers_hide_no_class_that_their_cluster_lacks(loss, after):
    """It has half a row, whoever missed the call that shows it."""
    rng, groups = np.random.default_rng(0), np.repeat(IDS, 20)
    X, y = rng.normal(size=(160, 3)), rng.integers(3, size=160)
    y[:80] = 0 if loss == "poisson" else np.minimum(y[:80], 1)
    kind = "Regressor" if loss == "poisson" else "Classifier"
    labels = dict(zip(IDS, np.repeat([0, 1], 4), strict=True))
    model = getattr(skcfl, f"OracleClusters{kind}")(labels=labels, loss=loss)
    wanted = clone(model).fit(X, y, groups=groups)
    late, _ = dying(X, y, groups, after, forever=False, missed=2, retries=0)
    assert_allclose(model.fit_federation(late).params_, wanted.params_, rtol=1e-8, atol=1e-8)


def test_many_are_lost_one_after_the_other(caplog):
    """Each attempt is without one more, down to min_clients; the log names them."""
    X, y, groups = rows = rows_of()
    gone = IDS[[1, 3, 6]]
    faults = {"dead": gone[:2], "attack": "nan", "false": gone[2:]}
    model = FedAvgRegressor(alpha="auto")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit_federation(federation(rows, options={"min_clients": 5}, **faults))
    assert [one.category for one in caught].count(RejectedClientWarning) == 1
    assert model.missing_clients_.tolist() == gone[:2].tolist()
    assert model.rejected_clients_.tolist() == gone[2:].tolist()
    lines = [line for line in caplog.messages if line.endswith("starts again without them.")]
    assert all(line.startswith(f"{line.count(chr(39)) // 2} of 8 clients") for line in lines)
    assert [name for name in IDS if repr(str(name)) in "".join(lines)] == gone.tolist()
    others, params = ~np.isin(groups, gone), model.params_[~np.isin(IDS, gone)]
    model.fit(X[others], y[others], groups=groups[others])
    assert_allclose(params, model.params_, rtol=1e-12)
    with pytest.raises(FederationError, match="5 of 8 clients answer, and min_clients=6"):
        FedAvgRegressor().fit_federation(federation(rows, options={"min_clients": 6}, **faults))


def two_hosts():
    """The others at a host, and the client that is lost at another one."""
    hosts = [PickledHost([part]) for part in named([where(FAR, m) for m in (OTHERS, ~OTHERS)])]
    return hosts, RemoteFederation(hosts, retries=0)


def test_a_lost_place_is_not_asked_again():
    """It may come back until the end of an attempt, and is not asked in the next one."""
    hosts, federation = two_hosts()
    hosts[1].lost_after = 4
    linear = PartialPoolingRegressor(basis="linear", n_clusters=1)
    found = clone(linear).fit_federation(federation)
    assert found.missing_clients_.tolist() == [GONE]
    check_same(found, fit_without(linear), "Regressor")
    assert hosts[1].n_asked < 0.8 * hosts[0].n_asked


@pytest.mark.parametrize(
    ("basis", "step"),
    [(skcfl.SplineBasis(n_knots=3), "moments"), (skcfl.TreeBasis(n_trees=2), "below")],
)
def test_a_place_is_lost_while_quantiles_are_found(basis, step, monkeypatch):
    """They are found anew from the others; where a fit chooses its basis it goes on, too."""
    hosts, federation = two_hosts()
    start = hosts[1].start

    def stops(request):
        hosts[1].host = None if request[3] == step else hosts[1].host
        return start(request)

    monkeypatch.setattr(hosts[1], "start", stops)
    model = PartialPoolingRegressor(basis=basis, n_clusters=1)
    found = clone(model).fit_federation(federation)
    assert found.missing_clients_.tolist() == [GONE]
    check_same(found, fit_without(model), "Regressor")


@pytest.mark.parametrize("model", [skcfl.PerFedAvgRegressor()])
def test_no_search_in_folds_goes_on_without_a_client(model):
    """It is asked for once its silence has lasted, and the fit starts again at once."""
    found, wanted = clone(model).fit_federation(federation()), fit_without(clone(model))
    # Each call is asked again ten times.
    assert found.calls_ - wanted.calls_ < 11 * (LOST + 5)


def test_a_fusion_of_all_others():
    """The graph has the client apart, or complete; nothing is proved."""
    model = ConvexClusteredFLRegressor(lam=0.1, graph="knn")
    found = model.fit_federation(federation(FAR))
    assert found.graph_.n_nodes == 8 and found.graph_.degrees()[3] == 0
    assert found.dual_gap_ == np.inf and found.partition_optimal_ is None
    assert_array_equal(found.params_[3], found.cluster_params_[0])
    assert model.set_params(graph="complete").fit_federation(federation(FAR)).graph_.is_complete


# --------------------------------------------------------- clients that answer some kinds of calls


# One everyday class of each method: regressors, where a method has one.
METHODS = [name for name in skcfl.__all__ if name.endswith("Regressor")]
METHODS += [f"{name}Classifier" for name in ("FedPAC", "FedProto", "CLoVE", "PartialPooling")]
HOW = {"lam": 0.1, "max_iter": 10, "eps2": 0.3}
HOW["labels"] = dict(zip(IDS, REGRESSION.labels, strict=True))


def method_of(name):
    return make(name, n_clusters=1 if "PartialPooling" in name else 2, **HOW)


def calls_of(name, monkeypatch):
    """A fit with all clients, and the kinds of calls that it uses."""
    X, y, groups = rows_of(name)
    with monkeypatch.context() as patched:
        seen = spied(patched)
        without_reports(patched)
        model = method_of(name).fit(X, y, groups=groups)
    return model, sorted({call for call, *_ in seen})


def opened(**faults):
    """A pool of all clients, and models that they are asked about."""
    pool = federation(**faults).open(LinearModel(alpha=0.1).bind(3), 0)
    return pool, np.zeros((8, pool.n_params))


def missing(pool):
    return pool.roll_call()[0].nonzero()[0].tolist()


@pytest.mark.parametrize("name", spread(METHODS, 5))
def test_a_client_that_fails_one_kind_of_call(name, monkeypatch):
    """It is named and the others are as without it; answers that are proofs change no model."""
    whole, calls = calls_of(name, monkeypatch)
    without = method_of(name)
    if "labels" in without.get_params():
        without.set_params(labels={id: k for id, k in without.labels.items() if id != GONE})
    fit_without(without, name)
    scale = np.abs(without.params_).max()
    assert calls
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", MissingClientWarning)
            found = method_of(name).fit_federation(federation(rows_of(name), calls=[call]))
        told = [str(one.message) for one in caught if one.category is MissingClientWarning]
        if CALLS[call].proof:
            assert found.missing_clients_.size == 0 and not told, call
            assert_allclose(found.params_, whole.params_, rtol=1e-6, err_msg=call)
            assert found.dual_gap_ == np.inf and found.partition_optimal_ is None
            continue
        assert found.missing_clients_.tolist() == [GONE], call
        assert found.rejected_clients_.size == 0, call
        (text,) = told
        assert "1 of 8 clients left all of 1" in text and f"'{call}'" in text
        assert repr(str(GONE)) in text
        assert np.isfinite(found.params_).all(), call
        others = found.params_[KEPT]
        assert_allclose(others, without.params_, rtol=1e-6, atol=1e-6 * scale, err_msg=call)


def test_a_client_is_left_out_once_it_has_failed_often_enough():
    pool, w = opened(calls=["losses"])
    with pytest.warns(MissingClientWarning, match=f"all of {REFUSALS} calls of 'losses'"):
        losses = pool.ask(Losses, w[:2])
    assert np.isnan(losses[3]).all() and np.isfinite(np.delete(losses, 3, 0)).all()
    # From then on it is in no sum, although it would answer, and nobody asks it.
    calls = pool.ledger.calls
    values = pool.ask(Objectives, w)
    assert values[3] == 0.0 and pool.ledger.calls == calls + 1
    assert missing(pool) == [3] and not pool.roll_call()[1]


def test_a_refusal_is_found_whoever_else_comes_and_goes():
    pool, w = opened(dropout=0.2, calls=["losses"], random_state=0)
    with pytest.warns(MissingClientWarning, match="1 of 8 clients"):
        for _ in range(5):
            pool.ask(Losses, w[:1])
    assert missing(pool) == [3]


@pytest.mark.parametrize("call", ["best_response_sums", "hessians"])
def test_stragglers_have_their_part(call):
    model = IFCARegressor(n_clusters=2, random_state=0)
    model.fit_federation(federation(dead=(), dropout=0.5, calls=[call], random_state=0))
    assert model.missing_clients_.size == 0


def test_too_few_clients_answer_a_kind_of_call():
    few = federation(dead=IDS[:4], calls=["hessians"], options={"min_clients": 5})
    with (
        pytest.warns(MissingClientWarning, match="4 of 8 clients"),
        pytest.raises(FederationError, match="4 of 8 clients answer, and min_clients=5"),
    ):
        FedAvgRegressor().fit_federation(few)


def test_one_that_was_away_when_it_was_asked_is_missing():
    """It comes back and answers everything else: what it never answered was without it."""
    pool, w = opened(dead=())
    site, away = pool._site, [True]
    answer, subset = site.answer, site.subset

    def sometimes(call, arguments):
        lost = {"answered": np.arange(site.n_clients) != 3} if away[0] else {}
        return answer(call, arguments) | lost

    site.answer = sometimes
    site.subset = lambda clients: Silent(len(clients)) if away[0] else subset(clients)
    pool.ask(Solve)
    away[0] = False
    assert pool.ask(Objectives, w)[3] > 0.0
    assert missing(pool) == [3]
    pool.ask(Solve)
    assert missing(pool) == []


class Silent:
    """Clients none of which is there."""

    def __init__(self, n_clients):
        self.n_clients = n_clients

    def answer(self, call, arguments):
        there = np.zeros(self.n_clients, bool)
        answers = {"w": np.zeros((self.n_clients, 4)), "converged": ~there}
        return {**(answers if call == "solve" else {}), "answered": there}


@pytest.mark.filterwarnings("ignore:.*others choose by rows to train on")
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("min_rows", [5, 20])
@pytest.mark.parametrize(
    "model",
    [
        skcfl.CFLRegressor(),
        skcfl.FedEMRegressor(random_state=0),
        skcfl.ConvexClusteredFLRegressor(),
        skcfl.GTVRegressor(search=skcfl.LamSearch(cv=5, lams=[0.01, 0.1]), random_state=0),
        skcfl.IFCARegressor(training=skcfl.Training(hold_out=0.1), n_clusters=2, random_state=0),
    ],
    ids=str,
)
def test_searches_go_on_with_clients_of_few_rows(model, min_rows, elsewhere):
    """Clients hold out, and keep, min_rows rows, or none: all of them have their part."""
    data = make_clustered_regression(8, 2, random_state=0)  # of 21 to 56 rows
    rows, policy = (data.X, data.y, data.groups), SitePolicy(min_rows=min_rows)
    if elsewhere:
        places = RemoteFederation(
            [PickledHost([p], policy=policy) for p in named(parts_of(data, 2))]
        )
    else:
        places = InProcessFederation(*rows, policy=policy)
    model = clone(model).fit_federation(places)
    assert model.missing_clients_.size == 0
    assert model.score(data.X, data.y, groups=data.groups) > 0.9


def pool_of(data, min_rows):
    rows = data.X, data.y, data.groups
    federation = InProcessFederation(*rows, policy=SitePolicy(min_rows=min_rows))
    return federation.open(LinearModel(alpha=0.1).bind(data.X.shape[1]), 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_folds_that_judge_are_those_in_which_rows_are_held_out(seed):
    """Each client has rows in two of five folds, and a single one judges."""
    data = make_clustered_regression(3, 2, 4, n_samples=45, random_state=seed)
    [(train, held)] = pool_of(data, 20).deal_folds(5, seed, 1)
    assert (held.client_sizes > 0).any() and (train.client_sizes > 0).all()


def test_clients_that_held_out_other_rows_are_trained_on_all():
    data = make_clustered_regression(8, 2, random_state=0)
    pool = pool_of(data, 5)
    pool.deal_folds(3, 0)
    for train in pool._site.folds(3, 1)[0]:
        assert train.client_sizes.tolist() in (pool.client_sizes.tolist(), [0] * 8)


def test_a_part_to_judge_by_is_not_that_of_training():
    data = make_clustered_regression(8, 2, random_state=0)
    with pytest.warns(UserWarning, match="0 of 8 .* others choose by rows to train on"):
        pool_of(data, 30).hold_out(0.3, 0)


def test_few_clients_that_judge_are_told_of():
    data = make_clustered_regression(8, 2, random_state=0)
    assert len(pool_of(data, 21).deal_folds(3, 0)) == 3
    with pytest.warns(UserWarning, match="1 of 8 clients hold rows out, and judge for all"):
        pool_of(data, 25).deal_folds(3, 0)


@pytest.mark.parametrize("calls", [["rows"], "losse", [3]])
def test_faults_of_no_call(calls):
    with pytest.raises(ValueError, match="calls must be names of calls"):
        Faults(dead=[GONE], calls=calls)
