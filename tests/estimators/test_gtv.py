"""GTV minimisation: nodes, graphs, clients without rows; solutions are in tests/fusion."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_predict

import skcfl
from skcfl import GTV, GTVClassifier, GTVRegressor, LamSearch, LocalModels
from skcfl.certificates import certify_partition, duality_gap
from skcfl.fusion.solvers import InexactPrimalDual, PrimalDual
from skcfl.graphs import Graph, chain_graph, from_adjacency, star_graph
from skcfl.model_selection import ClientKFold, lam_max, lam_path
from skcfl.models import LinearModel, Location

networkx = pytest.importorskip("networkx")
pd = pytest.importorskip("pandas")

NAMES = np.array(["ash", "birch", "cedar", "elm", "fir", "oak"])


def sensors(empty=("cedar",), seed=0, n_rows=12, classes=False):
    """Two groups of three neighbours on a chain; y = 2 x or -x."""
    rng = np.random.RandomState(seed)
    groups = np.repeat(NAMES[~np.isin(NAMES, empty)], n_rows)
    x = rng.normal(size=(len(groups), 2))
    slope = np.where(np.isin(groups, NAMES[:3]), 2.0, -1.0)
    y = slope * x[:, 0] + x[:, 1] + 0.1 * rng.normal(size=len(groups))
    return x, (y > 0).astype(int) if classes else y, groups


CHAIN = chain_graph(6, [1.0, 1.0, 0.1, 1.0, 1.0])
# Values of lam in the tests are for features as they are.
PLAIN = {"alpha": 1e-4, "standardize": False}
GROUPS = [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
def test_convex_clustering_is_the_same_on_another_graph(kind):
    X, y, groups = sensors(empty=(), n_rows=6, classes=kind == "Classifier")
    for graph in ("complete", "knn", CHAIN):
        a, b = (
            getattr(skcfl, name + kind)(0.05, graph=graph).fit(X, y, groups=groups)
            for name in ("GTV", "ConvexClusteredFL")
        )
        assert_array_equal(a.params_, b.params_)
        assert_array_equal(a.labels_, b.labels_)


@pytest.mark.parametrize("solver", ["admm", "primal_dual", "pdmm"])
@pytest.mark.parametrize(
    ("penalty", "moved"),
    [("l2", [0.16, 0.12]), ("l1", [0.2, 0.2]), ("squared_l2", np.array([0.8, 0.6]) / 1.4)],
)
def test_an_edge_draws_two_models_to_each_other(penalty, moved, solver):
    """Two rows of each node say what its model is: nothing, or (4, 3)."""
    plain = dict(alpha=0.0, fit_intercept=False, standardize=False, tol=1e-10)
    gtv = GTVRegressor(0.1, penalty=penalty, solver=solver, graph=chain_graph(2), **plain)
    gtv.fit(np.tile(np.eye(2), (2, 1)), [0.0, 0.0, 4.0, 3.0], groups=[0, 0, 1, 1])
    assert_allclose(gtv.params_, [moved, np.array([4.0, 3.0]) - moved], rtol=1e-4)


@pytest.mark.parametrize("form", ["dense", "sparse", "Graph", "networkx"])
def test_every_form_of_graph_with_nodes_without_rows(form):
    X, y, groups = sensors()
    order = np.random.RandomState(0).permutation(6)
    A = CHAIN.adjacency().toarray()[np.ix_(order, order)]
    nodes = NAMES[order]
    named = networkx.from_numpy_array(A)
    graph = {
        "dense": A.tolist(),
        "sparse": sparse.csr_matrix(A),
        "Graph": from_adjacency(A),
        "networkx": networkx.relabel_nodes(named, dict(enumerate(nodes.tolist()))),
    }[form]
    nodes = None if form == "networkx" else nodes
    gtv = GTVRegressor(0.05, **PLAIN, graph=graph, nodes=nodes, refit=True).fit(X, y, groups)
    assert_array_equal(gtv.groups_, NAMES)
    assert_array_equal(gtv.labels_, GROUPS)
    assert_array_equal(gtv.without_rows_, NAMES == "cedar")
    assert_array_equal(gtv.graph_.adjacency().toarray(), CHAIN.adjacency().toarray())
    assert gtv.partition_optimal_ and np.isfinite(gtv.dual_gap_)
    assert_allclose(gtv.coef_[2], gtv.coef_[0])
    assert_allclose(gtv.predict([[1.0, 0.0]], groups=["cedar"]), 2.0, atol=0.1)
    assert gtv.fusion_params_.shape == gtv.params_.shape == (6, 3)
    assert_array_equal(gtv.sample_labels(["cedar", "oak"]), [0, 1])


def test_nodes_of_all_kinds_of_ids():
    X, y, groups = sensors()
    position = np.searchsorted(NAMES, groups)
    for nodes in (
        np.arange(6) + 10,
        [f"n{k}" for k in range(6)],
        pd.date_range("2024-01-01", periods=6),
        pd.Categorical(NAMES),
    ):
        ids = np.asarray(nodes)[position]
        gtv = GTVRegressor(0.05, **PLAIN, graph=CHAIN, nodes=nodes).fit(X, y, groups=ids)
        assert len(gtv.groups_) == 6
        assert_array_equal(gtv.labels_, GROUPS)
    # Equal numbers are equal ids.
    gtv = GTVRegressor(0.05, **PLAIN, graph=CHAIN, nodes=range(6))
    gtv.fit(X, y, groups=position.astype(float))
    assert_array_equal(gtv.labels_, GROUPS)


def test_networkx_numbers_may_stand_for_positions():
    """Without names in the graph, nodes 0..n-1 are the sorted ids, as for other methods."""
    X, y, groups = sensors(empty=())
    network = networkx.from_scipy_sparse_array(CHAIN.adjacency())
    gtv = GTVRegressor(0.1, graph=network).fit(X, y, groups=groups)
    assert_array_equal(gtv.groups_, NAMES)
    assert_array_equal(gtv.labels_, GROUPS)


ONE_WAY = networkx.relabel_nodes(networkx.path_graph(6, networkx.DiGraph), dict(enumerate(NAMES)))
PIECES = Graph(6, [0, 1, 3, 4], [1, 2, 4, 5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(nodes=NAMES[:5], graph=chain_graph(5)), r"nodes must have every client.*'oak'"),
        (dict(nodes=[*NAMES[:5], "ash"], graph=CHAIN), r"every node once, got 6 ids of which 5"),
        (dict(nodes=range(6), graph=CHAIN), r"dtype <U5.*dtype int64"),
        (dict(nodes=NAMES, graph=chain_graph(5)), r"graph has 5 nodes, but there are 6 clients"),
        (dict(nodes=NAMES, graph="knn"), r"graph='knn'.*node 'cedar' has no rows"),
        (dict(nodes=NAMES, graph=networkx.path_graph(6)), r"nodes must be None with a networkx"),
        (dict(graph=networkx.path_graph(3)), r"The nodes of graph must have every client"),
        (
            dict(nodes=NAMES, graph=Graph(6, [0, 3, 4], [1, 4, 5])),
            r"node 'cedar' has neither rows nor a path",
        ),
        (dict(nodes=[*NAMES[:5], None], graph=CHAIN), r"nodes must name a client in every row"),
        (dict(graph=CHAIN), r"graph has 6 nodes, but there are 5 clients"),
        (dict(graph=ONE_WAY), "symmetric"),
        (dict(nodes=NAMES, graph=PIECES, empty=NAMES[3:]), "nodes 'elm', 'fir', 'oak' have neit"),
    ],
)
def test_refusals(options, message):
    X, y, groups = sensors(options.pop("empty", ("cedar",)))
    with pytest.raises(ValueError, match=f"(?s){message}"):
        GTVRegressor(0.05, **options).fit(X, y, groups=groups)


def test_nodes_need_groups():
    X, y, _ = sensors()
    message = "nodes names the clients, but fit got no groups"
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=message):
        GTVRegressor(0.05, graph=CHAIN, nodes=NAMES).fit(X, y)


@pytest.mark.parametrize("solver", ["admm", "primal_dual"])
def test_isolated_nodes_and_components(solver):
    """An isolated node with rows is fitted alone; components do not know of each other."""
    X, y, groups = sensors(empty=())
    graph = Graph(6, [0, 3], [1, 4])  # cedar and oak are alone
    options = dict(tol=1e-10, solver=solver, **PLAIN)
    gtv = GTVRegressor(10.0, graph=graph, **options).fit(X, y, groups=groups)
    assert gtv.n_clusters_ == 4
    local = LocalModels(LinearModel(**PLAIN)).fit(X, y, groups=groups)
    assert_allclose(gtv.params_[[2, 5]], local.params_[[2, 5]], atol=1e-7)
    assert not gtv.dual_coef_[[2, 5]].any()
    mine = np.isin(groups, NAMES[:2])
    alone = GTVRegressor(10.0, graph=chain_graph(2), **options).fit(X[mine], y[mine], groups[mine])
    assert_allclose(gtv.params_[:2], alone.params_, atol=1e-6)


def test_weight_zero_is_not_without_rows():
    """A client whose rows weigh nothing keeps its penalty: it is drawn to zero."""
    X = np.ones((3, 1))
    y, groups = np.full(3, 2.0), np.array([0, 1, 2])
    options = dict(alpha=1.0, fit_intercept=False, graph=chain_graph(3), nodes=range(3), tol=1e-9)
    weighted = GTVRegressor(0.1, **options).fit(X, y, groups=groups, sample_weight=[1.0, 1.0, 0.0])
    empty = GTVRegressor(0.1, **options).fit(X[:2], y[:2], groups=groups[:2])
    assert not weighted.without_rows_.any()
    assert empty.without_rows_.tolist() == [False, False, True]
    assert_allclose(empty.params_.ravel(), 1.0, atol=1e-6)  # (1 + alpha) w = 2
    assert weighted.params_[2, 0] < 1.0 - 1e-3


def test_without_rows_between_two_clusters():
    """Any model between the neighbours' is best: the fit gives one, with a proof."""
    X = np.array([[0.0], [10.0]])
    for weight in (1.0, [1.0, 2.0]):
        gtv = GTV(Location(), 1.0, graph=chain_graph(3, weight), nodes=range(3))
        gtv.fit(X, groups=[0, 2])
        assert gtv.dual_gap_ <= 1e-6 * gtv.objective_
        low, middle, high = gtv.params_.ravel()
        assert_allclose([low, high], [1.0, 9.0], atol=1e-3)
        assert low - 1e-6 <= middle <= high + 1e-6
    assert_allclose(middle, high, atol=1e-3)  # the heavier edge wins


def test_without_rows_at_lam_zero():
    """Nothing determines their models: the weighted mean of the neighbours' is taken."""
    X = np.array([[0.0], [9.0], [3.0]])
    graph = star_graph(4, [1.0, 2.0, 3.0])
    gtv = GTV(Location(), 0.0, graph=graph, nodes=range(4)).fit(X, groups=[1, 2, 3])
    assert_allclose(gtv.params_.ravel(), [(0 + 18 + 9) / 6, 0.0, 9.0, 3.0])
    complete = GTV(Location(), 0.0, graph="complete", nodes=range(5)).fit(X, groups=[1, 2, 3])
    assert_allclose(complete.params_[[0, 4], 0], 4.0)


def test_everything_works_with_nodes_without_rows(cls=GTVClassifier):
    """lam="auto", refit, certificates, paths, bounds of lam, warm starts."""
    X, y, groups = sensors(empty=("cedar", "oak"), n_rows=15, classes=True)
    options = {"graph": CHAIN, "nodes": NAMES, "alpha": 1e-2}
    gtv = cls(refit=True, search=LamSearch(n_lams=2), **options).fit(X, y, groups=groups)
    assert_array_equal(gtv.labels_, GROUPS)
    assert gtv.lam_search_["lam"].size > 1
    certificate = certify_partition(gtv, X, y, groups)
    assert certificate.optimal and certificate.dual_gap <= 1e-6 * gtv.objective_
    assert duality_gap(gtv, X, y, groups) <= 1e-5 * gtv.objective_
    lower, upper = lam_max(gtv, X, y, groups)
    assert lower <= upper < np.inf
    assert cls(1.01 * upper, **options).fit(X, y, groups=groups).n_clusters_ == 1
    path = lam_path(gtv, X, y, groups, n_lams=2)
    assert path.params.shape == (2, 6, 3) and np.isfinite(path.gaps).all()
    assert path.n_clusters[-1] == 1 and path.converged.all()
    warm = cls(0.05, warm_start=True, **options).fit(X, y, groups=groups)
    cold = clone(warm).fit(X, y, groups=groups)
    assert warm.fit(X, y, groups=groups).n_iter_ <= cold.n_iter_
    assert_allclose(warm.objective_, cold.objective_, rtol=2e-6)


def test_refit_keeps_the_model_of_clusters_without_rows():
    """A cluster of nodes without rows has nothing to be refitted on."""
    X = np.array([[0.0], [10.0]])
    graph = Graph(4, [0, 1, 2], [1, 2, 3], [1.0, 5.0, 1.0])
    gtv = GTV(Location(), 0.5, graph=graph, nodes=range(4), refit=True).fit(X, groups=[0, 3])
    assert_allclose(gtv.params_[[0, 3], 0], [0.0, 10.0], atol=1e-8)
    inner = gtv.labels_[1]
    if inner not in gtv.labels_[[0, 3]]:
        assert_array_equal(gtv.params_[1], gtv.fusion_params_[1])


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge"])
def test_three_classes_with_nodes_without_rows(loss):
    rng = np.random.RandomState(0)
    groups = np.repeat([0, 1, 3, 4], 30)
    X = rng.normal(size=(120, 2))
    y = np.argmax(X @ rng.normal(size=(2, 3)), axis=1)
    gtv = GTVClassifier(0.05, loss=loss, graph=chain_graph(5), nodes=range(5)).fit(X, y, groups)
    assert gtv.coef_.shape == (5, 3, 2)
    assert np.isfinite(gtv.dual_gap_)
    assert gtv.predict(X[:2], groups=[2, 2]).shape == (2,)


def test_folds_that_lose_a_clients_rows():
    """Of clients whose rows are all in the test fold the graph still gives a model."""
    X, y, groups = sensors(empty=())
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(sensor=groups)
    options = dict(group_col="sensor", refit=True, fit_intercept=False)
    gtv = GTVRegressor(0.05, graph=CHAIN, nodes=NAMES, **options)

    class LeaveCedarOut:
        def split(self, X, y=None, groups=None):
            out = np.asarray(X["sensor"] == "cedar")
            yield np.flatnonzero(~out), np.flatnonzero(out)

        def get_n_splits(self, X=None, y=None, groups=None):
            return 1

    search = GridSearchCV(gtv, {"lam": [0.05, 100.0]}, cv=LeaveCedarOut()).fit(frame, y)
    assert search.best_params_["lam"] == 0.05
    assert search.best_score_ > 0.9
    predicted = cross_val_predict(gtv, frame, y, cv=ClientKFold(2, group_col="sensor"))
    assert np.corrcoef(predicted, y)[0, 1] > 0.95
    few = ShuffleSplit(2, train_size=6, random_state=0)  # several clients lose all rows
    found = GridSearchCV(gtv, {"lam": [0.1]}, cv=few).fit(frame, y)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()


def test_auto_passes_messages_on_large_sparse_graphs(monkeypatch):
    X, y, groups = sensors()
    gtv = GTVRegressor(0.05, **PLAIN, graph=CHAIN, nodes=NAMES)
    assert "messages" not in gtv.fit(X, y, groups=groups).history_
    monkeypatch.setattr("skcfl.fusion.primal_dual.LARGE_GRAPH", 5)
    assert gtv.fit(X, y, groups=groups).history_["messages"].sum() > 0
    assert_array_equal(gtv.labels_, GROUPS)
    assert "messages" not in clone(gtv).set_params(graph="complete").fit(X, y, groups).history_
    gtv.set_params(lam="auto", search=LamSearch(n_lams=2)).fit(X, y, groups=groups)
    assert_array_equal(gtv.labels_, GROUPS)
    with pytest.raises(ValueError, match="is for networks, got LinearModel. Use one of"):
        gtv.set_params(lam=0.05, solver=InexactPrimalDual()).fit(X, y, groups=groups)


def test_options_of_the_primal_dual_solver():
    X, y, groups = sensors()
    solver = PrimalDual(ratio=3.0, contraction=False)
    gtv = GTVRegressor(0.05, graph=CHAIN, nodes=NAMES, solver=solver).fit(X, y, groups=groups)
    assert set(gtv.history_["ratio"]) == {3.0}
