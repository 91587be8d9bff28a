"""A fit that loses or rejects clients is the fit to the other ones, whatever they had sent."""

import warnings

import numpy as np
import pytest
from cases import predicted
from lost_client import GONE, IDS, KEPT, OTHERS, REGRESSION, federation, fit_without, make, rows_of
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named
from private_clients import where
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from trials import some

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
from skcfl.exceptions import FederationError, RejectedClientWarning
from skcfl.federation import InProcessFederation
from skcfl.federation.faults import FaultySite
from skcfl.federation.presence import LOST, Presence
from skcfl.federation.remote import RemoteFederation
from skcfl.graphs import chain_graph

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
    found = clone(OPTIONS[option]).fit_federation(federation(FAR, options={"retries": 1}))
    wanted = clone(OPTIONS[option])
    if getattr(wanted, "record", None) is not None:
        wanted.set_params(record__true_labels=wanted.record.true_labels[KEPT])
    check_same(found, fit_without(wanted), "Regressor")


def test_trees_name_clients_by_their_places():
    cfl = CFLRegressor(eps2=0.3, max_iter=20).fit_federation(federation(FAR))
    members = np.sort(np.concatenate([n["clients"] for n in cfl.tree_ if not n["children"]]))
    assert_array_equal(members, np.flatnonzero(KEPT))


def test_in_a_graph_that_is_given_it_is_a_node_without_rows():
    """The others are as in a fit in which it has no rows, and it follows its neighbours."""
    X, y, groups = FAR
    graph = chain_graph(8)
    model = GTVRegressor(lam=0.1, graph=graph, random_state=0)
    params = model.fit_federation(federation(FAR)).params_
    wanted = model.set_params(nodes=IDS).fit(X[OTHERS], y[OTHERS], groups=groups[OTHERS])
    assert_allclose(params, wanted.params_, rtol=1e-10)
    assert wanted.without_rows_.nonzero()[0].tolist() == [3]


def dying(X, y, groups, after, forever=True, **options):
    """A federation one client of which stops answering after some calls, or misses one."""
    federation = InProcessFederation(X, y, groups, **options)
    count, rows_at = [0], federation.rows_at

    def rows(*args):
        rows = rows_at(*args)

        def wrap(site):
            class Draws:
                def lost(self, call, dead, places):
                    count[0] += 1
                    gone = count[0] > after if forever else count[0] == after
                    return (np.asarray(places) == 3) & gone

            return FaultySite(site, np.zeros(len(IDS), dtype=bool), rows.places, Draws())

        rows.wraps = [*rows.wraps, wrap]
        return rows

    federation.rows_at = rows
    return federation, count


LOST_AT = [("IFCARegressor", 1), ("PartialPoolingRegressor", 8), ("CLoVERegressor", 40)]
LOST_AT += [("IFCARegressor", 40), ("PartialPoolingRegressor", 1), ("CLoVERegressor", 8)]


@pytest.mark.parametrize(("name", "after"), some(LOST_AT, 2))
def test_it_does_not_matter_when_it_is_lost(name, after, monkeypatch):
    monkeypatch.setattr("skcfl.search.n_clusters.FEW_FOLDS", 3)
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


def test_many_are_lost_one_after_the_other(caplog):
    """Each attempt is without one more, down to min_clients; the log names them."""
    X, y, groups = rows = rows_of()
    gone = IDS[[1, 3, 6]]
    faults = {"dead": gone[:2], "attack": "nan", "false": gone[2:]}
    model = FedAvgRegressor(alpha="auto")
    model.fit_federation(federation(rows, options={"min_clients": 5}, **faults))
    assert model.missing_clients_.tolist() == gone[:2].tolist()
    assert model.rejected_clients_.tolist() == gone[2:].tolist()
    lines = [line for line in caplog.messages if line.endswith("starts again without them.")]
    assert all(line.startswith(f"{line.count(chr(39)) // 2} of 8 clients") for line in lines)
    assert [name for name in IDS if repr(str(name)) in "".join(lines)] == gone.tolist()
    others = ~np.isin(groups, gone)
    params = model.params_[~np.isin(IDS, gone)]
    model.fit(X[others], y[others], groups=groups[others])
    assert_allclose(params, model.params_, rtol=1e-12)
    with pytest.raises(FederationError, match="5 of 8 clients answer, and min_clients=6"):
        FedAvgRegressor().fit_federation(federation(rows, options={"min_clients": 6}, **faults))


def test_a_lost_place_is_not_asked_again():
    """It may come back until the end of an attempt, and is not asked in the next one."""
    hosts = [PickledHost([part]) for part in named([where(FAR, m) for m in (OTHERS, ~OTHERS)])]
    hosts[1].lost_after = 4
    linear = PartialPoolingRegressor(basis="linear")
    found = clone(linear).fit_federation(RemoteFederation(hosts, retries=0))
    assert found.missing_clients_.tolist() == [GONE]
    check_same(found, fit_without(linear), "Regressor")
    assert hosts[1].n_asked < 0.8 * hosts[0].n_asked


@pytest.mark.parametrize("basis", [skcfl.SplineBasis(n_knots=3), skcfl.TreeBasis(n_trees=2)])
@pytest.mark.parametrize("step", ["moments", "below"])
def test_a_place_is_lost_while_quantiles_are_found(basis, step, monkeypatch):
    """They are found anew from the others; where a fit chooses its basis it goes on, too."""
    hosts = [PickledHost([part]) for part in named([where(FAR, m) for m in (OTHERS, ~OTHERS)])]
    start = hosts[1].start

    def stops(request):
        hosts[1].host = None if request[3] == step else hosts[1].host
        return start(request)

    monkeypatch.setattr(hosts[1], "start", stops)
    model = PartialPoolingRegressor(basis=basis, n_clusters=1)
    found = clone(model).fit_federation(RemoteFederation(hosts, retries=0))
    assert found.missing_clients_.tolist() == [GONE]
    check_same(found, fit_without(model), "Regressor")


def test_what_the_first_attempt_has_cost_is_counted():
    found = FedAvgRegressor().fit_federation(federation())
    wanted = fit_without(FedAvgRegressor())
    assert found.calls_ > wanted.calls_ and found.floats_up_ > wanted.floats_up_


@pytest.mark.parametrize("model", [skcfl.PerFedAvgRegressor(), skcfl.PFedMeRegressor()])
def test_no_search_in_folds_goes_on_without_a_client(model):
    """It is asked for once its silence has lasted, and the fit starts again at once."""
    found, wanted = clone(model).fit_federation(federation()), fit_without(clone(model))
    # Each call is asked again ten times.
    assert found.calls_ - wanted.calls_ < 11 * (LOST + 5)


@pytest.mark.parametrize("name", ["LocalModelsRegressor", "IFCARegressor"])
def test_clients_that_weigh_nothing_do_not_count_in_alpha(name):
    rng = np.random.RandomState(0)
    X, y, groups = rows_of(name)
    ids = np.repeat([f"z{k}" for k in range(20)], 5)
    more = rng.normal(size=(100, 3)), rng.normal(size=100), ids
    both = [np.concatenate(pair) for pair in zip((X, y, groups), more, strict=True)]
    weights = np.repeat([1.0, 0.0], [len(y), 100])
    model = make(name, alpha="auto", n_clusters=8)
    wanted = model.fit(X, y, groups=groups).alpha_
    if name != "LocalModelsRegressor":
        model.set_params(n_clusters=12)
    found = model.fit(both[0], both[1], groups=both[2], sample_weight=weights)
    assert_allclose(found.alpha_, wanted, rtol=1e-12)


def test_the_warning_is_given_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        liar = federation(FAR, dead=(), attack="nan", false=[GONE])
        IFCARegressor(n_clusters=2).fit_federation(liar)
    kinds = [one.category for one in caught if one.category is not ConvergenceWarning]
    assert kinds == [RejectedClientWarning]


def test_a_fusion_of_all_others():
    """The graph has the client apart, or complete; nothing is proved."""
    model = ConvexClusteredFLRegressor(lam=0.1, graph="knn")
    found = model.fit_federation(federation(FAR))
    assert found.graph_.n_nodes == 8 and found.graph_.degrees()[3] == 0
    assert found.dual_gap_ == np.inf and found.partition_optimal_ is None
    assert_array_equal(found.params_[3], found.cluster_params_[0])
    assert model.set_params(graph="complete").fit_federation(federation(FAR)).graph_.is_complete
