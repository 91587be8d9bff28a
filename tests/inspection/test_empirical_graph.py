"""The graph of a fit: loads of edges are those of the dual, drawn where they belong."""

import sys

import numpy as np
import pytest
from fusion_problems import make_graph, make_rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from trials import examples

from skcfl import ConvexClusteredFLRegressor, ConvexClustering, GTVRegressor, LocalModelsRegressor
from skcfl.graphs import Graph, chain_graph, complete_graph, from_adjacency
from skcfl.inspection import EmpiricalGraphDisplay
from skcfl.inspection._empirical_graph import _layout, _spectral, edge_loads
from skcfl.penalties import L1, L2, SquaredL2

plt = pytest.importorskip("matplotlib.pyplot")


def rows(n, **options):
    return make_rows("squared_error", n, **options)


def fit(graph, lam=0.1, penalty="l2", seed=0):
    """Of the features as they are: flows are compared in their units."""
    X, y, groups = rows(graph.n_nodes, seed=seed)
    given = {"graph": graph, "nodes": range(graph.n_nodes), "penalty": penalty}
    gtv = GTVRegressor(lam, standardize=False, tol=1e-10, max_iter=20_000, **given)
    return gtv.fit(X, y, groups=groups)


@pytest.mark.parametrize("penalty", ["l2", "l1"])
@examples(2)
@given(seed=st.integers(0, 1000))
def test_on_a_tree_the_flow_is_what_leaves_one_side(penalty, seed):
    graph = make_graph(np.random.RandomState(seed), 7, "tree")
    gtv = fit(graph, penalty=penalty, seed=seed)
    loads = EmpiricalGraphDisplay.from_estimator(gtv).loads
    plt.close("all")
    order = 2 if penalty == "l2" else np.inf
    for e, (load, weight) in enumerate(zip(loads, graph.weights, strict=True)):
        others = np.delete(np.arange(graph.n_edges), e)
        cut = Graph(7, graph.heads[others], graph.tails[others], graph.weights[others])
        side = cut.components() == cut.components()[graph.heads[e]]
        flow = gtv.dual_coef_[side].sum(axis=0)
        assert load == pytest.approx(np.linalg.norm(flow, order) / (0.1 * weight), abs=2e-3)


@examples(5)
@given(seed=st.integers(0, 1000), share=st.floats(0.05, 1.0))
def test_edges_between_clusters_are_saturated(seed, share):
    graph = make_graph(np.random.RandomState(seed), 8, "weighted")
    gtv = fit(graph, 0.15 * share, seed=seed)
    display = EmpiricalGraphDisplay.from_estimator(gtv)
    plt.close("all")
    assert ((display.loads >= 0) & (display.loads <= 1)).all()
    between = gtv.labels_[graph.heads] != gtv.labels_[graph.tails]
    if gtv.partition_optimal_:
        assert display.saturated_[between].all()
    if gtv.n_clusters_ == 1 and share > 0.5:
        assert not display.saturated_.all()


def test_loads_of_the_squared_penalty_are_relative():
    graph = make_graph(np.random.RandomState(1), 6, "weighted")
    gtv = fit(graph, penalty="squared_l2")
    display = EmpiricalGraphDisplay.from_estimator(gtv)
    flow = graph.weights * np.linalg.norm(graph.difference(gtv.params_), axis=1)
    assert_allclose(display.loads, flow / flow.max())
    assert not display.saturated_.any()
    colours = display.nodes_[0].get_facecolors()
    assert (colours == colours[0]).all()  # no clusters, no colours


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2()], ids=str)
def test_nothing_flows_where_nothing_is_compared(penalty):
    graph = chain_graph(3)
    zero = np.zeros((3, 2))
    assert not edge_loads(graph, penalty, 0.0, zero, zero, np.arange(3)).any()
    assert edge_loads(Graph(3, [], []), penalty, 1.0, zero, zero, np.arange(3)).shape == (0,)
    assert not edge_loads(graph, penalty, 1.0, zero, zero, np.zeros(3, dtype=int)).any()


def test_nodes_and_edges_are_drawn():
    graph = chain_graph(6, [1.0, 1.0, 0.05, 1.0, 1.0])
    X, y, groups = rows(6, empty=(2,))
    y = np.where(groups < 3, 3.0, -3.0) * X[:, 0]
    gtv = GTVRegressor(0.5, graph=graph, nodes=range(6)).fit(X, y, groups=groups)
    places = np.column_stack([np.arange(6.0), np.zeros(6)])
    display = EmpiricalGraphDisplay.from_estimator(gtv, positions=places, names=True, s=90)
    assert display.saturated_.tolist() == [False, False, True, False, False]
    full, hollow = display.nodes_
    assert_array_equal(full.get_offsets(), places[[0, 1, 3, 4, 5]])
    assert_array_equal(hollow.get_offsets(), places[[2]])
    assert_allclose(hollow.get_facecolors(), 1.0)  # white
    assert_array_equal(full.get_sizes(), 90)
    colours = full.get_facecolors()
    assert len(np.unique(colours, axis=0)) == 2
    assert_array_equal(colours[0], hollow.get_edgecolors()[0])
    assert len(display.edges_.get_segments()) == 5
    assert_array_equal(display.edges_.get_segments()[-1], places[[2, 3]])  # on top
    assert [text.get_text() for text in display.ax_.texts] == [str(k) for k in range(6)]
    again = display.plot()
    assert again is display and not display.ax_.texts


def test_positions_by_id_and_wrong_ones():
    graph = chain_graph(3)
    gtv = fit(graph)
    by_id = {2: (2.0, 1.0), 0: (0.0, 0.0), 1: (1.0, 0.0)}
    display = EmpiricalGraphDisplay.from_estimator(gtv, positions=by_id)
    assert_array_equal(display.positions, [[0, 0], [1, 0], [2, 1]])
    wrong = {
        "has none for 1": {0: (0, 0), 2: (1, 1)},
        r"shape \(3, 2\).*got \(2, 2\)": np.zeros((2, 2)),
    }
    for message, positions in wrong.items():
        with pytest.raises(ValueError, match=message):
            EmpiricalGraphDisplay.from_estimator(gtv, positions=positions)
    X, y, groups = rows(3)
    with pytest.raises(ValueError, match="LocalModelsRegressor, has no graph_"):
        EmpiricalGraphDisplay.from_estimator(LocalModelsRegressor().fit(X, y, groups=groups))
    adapted = GTVRegressor().fit(X, y, groups=groups).adapt(X, y, groups=groups + 3)
    with pytest.raises(ValueError, match="GTVRegressor, has no graph_: .*; adapt and update drop"):
        EmpiricalGraphDisplay.from_estimator(adapted)


def test_other_fusion_methods():
    X, y, groups = rows(5)
    convex = ConvexClusteredFLRegressor(0.02, graph="complete", refit=True)
    display = EmpiricalGraphDisplay.from_estimator(convex.fit(X, y, groups=groups))
    assert len(display.loads) == 10
    points = np.random.RandomState(0).normal(size=(12, 2))
    clustering = ConvexClustering(0.5).fit(points)
    display = EmpiricalGraphDisplay.from_estimator(clustering, positions=points)
    assert len(display.nodes_) == 1


def test_layouts(monkeypatch):
    """Two cliques lie apart, with networkx and without."""
    A = np.kron(np.eye(2), np.ones((5, 5)))
    A[0, 5] = A[5, 0] = 0.1
    graph = from_adjacency(A)
    side = np.arange(10) < 5
    for forget in (False, True):
        if forget:
            monkeypatch.setitem(sys.modules, "networkx", None)
        places = _layout(graph)
        assert places.shape == (10, 2) and np.isfinite(places).all()
        assert_array_equal(places, _layout(graph))
        middle = np.array([places[side].mean(axis=0), places[~side].mean(axis=0)])
        spread = max(places[side].std(), places[~side].std())
        assert np.linalg.norm(middle[0] - middle[1]) > spread


def test_layouts_of_all_sizes(monkeypatch):
    for n in (1, 2, 3, 4, 30):
        for graph in (chain_graph(n), complete_graph(n), Graph(n, [], [])):
            assert np.isfinite(_spectral(graph)).all()
            assert _layout(graph).shape == (n, 2)
    dense = _spectral(chain_graph(40))  # and those of large graphs by sparse matrices
    monkeypatch.setattr("skcfl.inspection._empirical_graph.MAX_DENSE_NODES", 10)
    assert_allclose(np.abs(_spectral(chain_graph(40))), np.abs(dense), rtol=0, atol=0.05)
