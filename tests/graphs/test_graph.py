"""Graphs: products against dense matrices, partitions, construction and refusals."""

import numpy as np
import pytest
from fusion_problems import GRAPHS, make_graph, same_partition
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from skcfl.graphs import Graph, complete_graph, from_adjacency, knn_graph

kinds, seeds = st.sampled_from(GRAPHS), st.integers(0, 2**31)


def draw(kind, seed):
    rng = np.random.RandomState(seed % 2**32)
    graph = make_graph(rng, rng.randint(2, 12), kind)
    return complete_graph(
        graph.n_nodes, rng.uniform(0.1, 5.0)
    ) if kind == "complete" else graph, rng


def dense_incidence(graph):
    D = np.zeros((graph.n_edges, graph.n_nodes))
    D[np.arange(graph.n_edges), graph.heads] = 1.0
    D[np.arange(graph.n_edges), graph.tails] = -1.0
    return D


@given(kinds, seeds)
def test_products_agree_with_dense_matrices(kind, seed):
    graph, rng = draw(kind, seed)
    D, W = dense_incidence(graph), np.diag(graph.weights)
    x = rng.standard_normal((graph.n_nodes, 3))
    u = rng.standard_normal((graph.n_edges, 3))
    np.testing.assert_array_equal(graph.incidence().toarray(), D)
    np.testing.assert_allclose(graph.difference(x), D @ x, atol=1e-12)
    np.testing.assert_allclose(graph.divergence(u), D.T @ u, atol=1e-12)
    np.testing.assert_allclose(graph.laplacian().toarray(), D.T @ W @ D, atol=1e-12)
    np.testing.assert_allclose(graph.laplacian(weighted=False).toarray(), D.T @ D, atol=1e-12)
    A = graph.adjacency().toarray()
    np.testing.assert_allclose(A, np.diag(np.diag(D.T @ W @ D)) - D.T @ W @ D, atol=1e-12)
    np.testing.assert_allclose(graph.degrees(), A.sum(axis=1), atol=1e-12)
    np.testing.assert_array_equal(graph.degrees(weighted=False), (A > 0).sum(axis=1))
    numbers = rng.permutation(graph.n_nodes)
    renumbered = graph.renumbered(numbers).adjacency().toarray()
    np.testing.assert_array_equal(renumbered[np.ix_(numbers, numbers)], A)
    assert graph.renumbered(np.arange(graph.n_nodes)) is graph
    n_parts, parts = connected_components(A, directed=False)
    assert same_partition(graph.components(), parts) and graph.components().max() == n_parts - 1


@given(kinds, seeds, st.integers(1, 4))
def test_between_and_inside_split_the_weights(kind, seed, K):
    graph, rng = draw(kind, seed)
    labels = rng.randint(K, size=graph.n_nodes)
    B, inside = graph.between(labels, K), graph.inside(labels)
    expected = np.zeros((K, K))
    for i, j, w in zip(graph.heads, graph.tails, graph.weights, strict=True):
        if labels[i] != labels[j]:
            expected[labels[i], labels[j]] += w
            expected[labels[j], labels[i]] += w
    np.testing.assert_allclose(B, expected, atol=1e-12)
    assert (labels[inside.heads] == labels[inside.tails]).all()
    total = inside.weights.sum() + 0.5 * B.sum()
    np.testing.assert_allclose(total, graph.weights.sum(), atol=1e-12)


@given(seeds)
def test_adjacency_there_and_back(seed):
    graph, _ = draw("weighted", seed)
    A = graph.adjacency()
    kinds = [A.toarray(), A.toarray().tolist(), A, sparse.csc_matrix(A), sparse.lil_array(A)]
    for given_as in kinds:
        again = from_adjacency(given_as)
        for name in ("n_nodes", "heads", "tails", "weights"):
            np.testing.assert_array_equal(getattr(again, name), getattr(graph, name))


def test_adjacency_of_a_networkx_graph():
    networkx = pytest.importorskip("networkx")
    network = networkx.path_graph(4)
    network[1][2]["weight"] = 0.5
    graph = from_adjacency(network)
    assert graph.heads.tolist() == [0, 1, 2] and graph.tails.tolist() == [1, 2, 3]
    assert graph.weights.tolist() == [1.0, 0.5, 1.0]
    with pytest.raises(ValueError, match="symmetric"):
        from_adjacency(networkx.DiGraph([(0, 1), (1, 2)]))


@pytest.mark.parametrize("n, d", [(150, 20), (250, 20), (250, 4)])
def test_neighbours_are_the_same_far_from_the_origin(n, d):
    points = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32).astype(float)
    wanted, found = knn_graph(points, 5), knn_graph(points + 2.0**27, 5)
    assert wanted.heads.tolist() == found.heads.tolist()
    assert wanted.tails.tolist() == found.tails.tolist()


def test_adjacency_ignores_zeros_and_loops():
    A = sparse.coo_array(([5.0, 0.0, 0.0, 2.0, 2.0], ([0, 0, 1, 1, 2], [0, 1, 0, 2, 1])), (3, 3))
    graph = from_adjacency(A)
    assert (graph.heads, graph.tails, graph.weights) == ([1], [2], [2.0])
    assert from_adjacency(np.zeros((3, 3))).n_edges == 0
    assert from_adjacency(np.array([[0, 1], [1, 0]])).weights.dtype == float


@pytest.mark.parametrize(
    ("A", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.ones(4), "square"),
        ([[0.0, 1.0], [2.0, 0.0]], "symmetric"),
        ([[0.0, -1.0], [-1.0, 0.0]], "non-negative"),
        ([[0.0, np.nan], [np.nan, 0.0]], "finite"),
        ([[0.0, np.inf], [np.inf, 0.0]], "finite"),
    ],
)
def test_adjacency_refusals(A, message):
    with pytest.raises(ValueError, match=message):
        from_adjacency(A)
    if np.ndim(A) == 2:
        with pytest.raises(ValueError, match=message):
            from_adjacency(sparse.csr_array(np.asarray(A)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, [0], [1, 2]), "heads and tails must be arrays of one length"),
        ((3, [[0]], [[1]]), "heads must be one-dim"),
        ((3, [1], [0]), "heads < tails"),
        ((3, [1], [1]), "heads < tails"),
        ((3, [0, 0], [1, 1]), "once"),
        ((3, [0], [3]), "must be nodes, 0 to 2"),
        ((3, [-1], [0]), "must be nodes, 0 to 2"),
        ((3, [0], [1], [0.0]), "positive"),
        ((3, [0], [1], [np.nan]), "finite"),
        ((3, None, None, [1.0, 1.0, 1.0]), "one number"),
        ((3, None, None, -1.0), "positive"),
    ],
)
def test_graph_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        Graph(*arguments)


@given(st.integers(2, 15), st.sampled_from([2, 20]), st.integers(1, 20), seeds)
def test_knn_graph(n, d, k, seed):
    """Edges are the pairs in which either is among the k nearest of the other."""
    points = np.random.RandomState(seed % 2**32).standard_normal((n, d))
    graph = knn_graph(points, k, scale=0.7)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    near = np.argsort(distance, axis=1)[:, : min(k, n - 1)]
    expected = {(min(i, j), max(i, j)) for i in range(n) for j in near[i].tolist()}
    assert set(zip(graph.heads.tolist(), graph.tails.tolist(), strict=True)) == expected
    lengths = distance[graph.heads, graph.tails]
    np.testing.assert_allclose(graph.weights, np.maximum(np.exp(-((lengths / 0.7) ** 2)), 1e-12))
    automatic = knn_graph(points, k)
    np.testing.assert_allclose(
        automatic.weights, np.maximum(np.exp(-((lengths / np.median(lengths)) ** 2)), 1e-12)
    )
    np.testing.assert_allclose(knn_graph(7 * points, k).weights, automatic.weights, rtol=1e-9)


def test_knn_graph_of_points_that_coincide():
    for d in (2, 20):
        graph = knn_graph(np.zeros((4, d)), 1)
        assert graph.n_edges and (graph.weights == 1.0).all()
    assert knn_graph([[1.0]]).n_edges == 0
