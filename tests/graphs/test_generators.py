"""Generators of graphs, and graphs from distances and from rows."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skcfl import GTVRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.graphs import (
    chain_graph,
    complete_graph,
    distance_graph,
    kl_graph,
    knn_graph,
    star_graph,
    stochastic_block_model,
)
from skcfl.graphs.divergence import kl_divergences
from skcfl.graphs.generators import _triangle, graph_of_clients


@pytest.mark.parametrize("n", [1, 2, 7])
def test_chain_and_star(n):
    chain, star = chain_graph(n, 0.5), star_graph(n, 2.0)
    assert chain.n_edges == star.n_edges == n - 1
    assert chain.components().max() == star.components().max() == 0
    np.testing.assert_array_equal(chain.tails - chain.heads, 1)
    assert set(star.heads) <= {0} and star.degrees()[0] == 2.0 * (n - 1)
    # Weight zero cuts.
    graph = chain_graph(4, [1.0, 0.0, 2.0])
    assert graph.components().tolist() == [0, 0, 1, 1]
    assert graph.weights.tolist() == [1.0, 2.0]
    assert star_graph(3, [0.0, 1.0]).tails.tolist() == [2]


@given(st.integers(0, 10**12))
def test_triangle_numbers_pairs(number):
    i, j = _triangle(np.array([number]))
    assert 0 <= i[0] < j[0]
    assert j[0] * (j[0] - 1) // 2 + i[0] == number


def test_block_model_extremes():
    graph, labels = stochastic_block_model([4, 3, 2], 1.0, 0.0, weight=0.3)
    assert graph.n_edges == 6 + 3 + 1 and set(graph.weights) == {0.3}
    np.testing.assert_array_equal(graph.components(), labels)
    graph, _ = stochastic_block_model([4, 3], 0.0, 1.0)
    assert graph.n_edges == 12
    graph, _ = stochastic_block_model([3, 3], [1.0, 0.0], 0.0)
    assert graph.n_edges == 3 and graph.tails.max() == 2
    graph, _ = stochastic_block_model([5, 4], 1.0, 1.0)
    assert (graph.heads == complete_graph(9).heads).all()


def test_block_model_has_its_densities():
    graph, labels = stochastic_block_model([200, 300], [0.5, 0.2], 0.02, random_state=0)
    assert np.bincount(labels).tolist() == [200, 300] and graph.n_nodes == 500
    pairs = graph.heads * graph.n_nodes + graph.tails
    assert (graph.heads < graph.tails).all() and (np.diff(pairs) > 0).all()  # each once, in order
    same = labels[graph.heads] == labels[graph.tails]
    first = same & (labels[graph.heads] == 0)
    assert first.sum() / (200 * 199 / 2) == pytest.approx(0.5, abs=0.02)
    assert (same & ~first).sum() / (300 * 299 / 2) == pytest.approx(0.2, abs=0.02)
    assert (~same).sum() / (200 * 300) == pytest.approx(0.02, abs=0.003)
    again, _ = stochastic_block_model([200, 300], [0.5, 0.2], 0.02, random_state=0)
    np.testing.assert_array_equal(again.tails, graph.tails)


@pytest.mark.parametrize(("shape", "far"), [((30, 2), 0.0), ((210, 16), 0.0), ((210, 16), 1e11)])
def test_distance_graph_joins_the_nearest(shape, far):
    """One node that is far off changes the neighbours of no other."""
    points = np.random.RandomState(0).normal(size=shape)
    points[0] += far
    n = len(points)
    D = np.linalg.norm(points[:, None] - points[None], axis=2)
    graph, by_points = distance_graph(D, 4), knn_graph(points, 4)
    np.testing.assert_array_equal(graph.heads, by_points.heads)
    np.testing.assert_array_equal(graph.tails, by_points.tails)
    np.testing.assert_allclose(
        graph.weights,
        np.exp(-D[graph.heads, graph.tails] / np.median(D[graph.heads, graph.tails])),
        atol=1e-11,
    )
    assert distance_graph(D, n).n_edges == n * (n - 1) // 2


def test_distance_graph_limits():
    D = np.array([[0.0, 1.0, np.inf], [1.0, 0.0, np.inf], [np.inf, np.inf, 0.0]])
    graph = distance_graph(D, 2, scale=1.0)
    assert graph.n_edges == 1 and graph.components().tolist() == [0, 0, 1]
    assert distance_graph(np.zeros((3, 3)), 1).weights.tolist() == [1.0, 1.0]
    assert distance_graph(np.zeros((1, 1))).n_edges == 0


def test_divergence_row_by_row():
    """Against the formula, written out."""
    rng = np.random.RandomState(1)
    P, Q = rng.normal(size=(12, 3)), rng.normal(size=(9, 3)) + 0.5
    k, total = 2, 0.0
    for i, x in enumerate(P):
        rho = np.sort(np.linalg.norm(np.delete(P, i, axis=0) - x, axis=1))[k - 1]
        nu = np.sort(np.linalg.norm(Q - x, axis=1))[k - 1]
        total += np.log(nu / rho)
    expected = 3 / 12 * total + np.log(9 / 11)
    groups = np.repeat([7, 8], [12, 9])
    order = rng.permutation(21)
    ids, D = kl_divergences(np.vstack([P, Q])[order], groups[order], k)
    assert ids.tolist() == [7, 8] and not np.diag(D).any()
    assert D[0, 1] == pytest.approx(expected)


def test_kl_graph_finds_the_clusters():
    rng = np.random.RandomState(2)
    labels = np.arange(12) % 3
    groups = np.repeat(np.arange(12), 40)
    X = rng.normal(size=(480, 2)) + 4.0 * np.eye(3)[labels[groups]][:, :2]
    graph = kl_graph(X, groups, n_neighbors=3)
    assert (labels[graph.heads] == labels[graph.tails]).all()
    assert graph.components().max() == 2
    assert (graph.weights > 0).all() and (graph.weights <= 1).all()
    # Rows that coincide, clients that are copies of each other: finite weights.
    copies = kl_graph(np.vstack([X[:80], X[:80]]), np.repeat(np.arange(4), 40), n_neighbors=2)
    assert np.isfinite(copies.weights).all()


TWO, FIVE, IDS = np.zeros((2, 2)), np.zeros((5, 2)), ["a", "a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        *(
            (make, given, message)
            for make in (chain_graph, star_graph)
            for given, message in (
                ((0,), r"'n_nodes' parameter .* int in the range \[1, .* Got 0"),
                ((3, [1.0, 2.0, 3.0]), r"weight must be one number .* got shape \(3,\)"),
                ((3, -1.0), "positive"),
            )
        ),
        (stochastic_block_model, ([0, 3], 0.5, 0.1), "sizes must be positive integers"),
        (stochastic_block_model, ([2.5], 0.5, 0.1), "sizes must hold integers, got 2.5"),
        (stochastic_block_model, ([3], 1.5, 0.1), "'p_in' parameter .* Got 1.5"),
        (stochastic_block_model, ([3, 3], [0.1], 0.1), "p_in must be one number or one for each"),
        (stochastic_block_model, ([3], 0.5, -0.1), "'p_out' parameter .* Got -0.1"),
        (distance_graph, (np.zeros((2, 3)),), "square"),
        (distance_graph, (np.zeros(3),), "square"),
        (distance_graph, ([[0.0, -1.0], [-1.0, 0.0]],), "non-negative"),
        (distance_graph, ([[0.0, np.nan], [np.nan, 0.0]],), "NaN"),
        (distance_graph, ([[0.0, 1.0], [2.0, 0.0]],), "symmetric"),
        (distance_graph, (TWO, 0), "'n_neighbors' parameter .* Got 0"),
        (partial(distance_graph, scale=0.0), (TWO,), "'scale' parameter .* Got 0.0"),
        (kl_graph, (FIVE, ["a", "a", "a", "a", "b"]), "more than k=1 rows, got 1 of 'b'"),
        (partial(kl_graph, k=0), (FIVE, IDS), "'k' parameter .* Got 0"),
        (kl_graph, (FIVE.ravel(), np.zeros(10)), "X must be a two-dimensional array"),
        (kl_graph, (FIVE * np.nan, IDS), "X must be finite"),
    ],
)
def test_refusals(make, given, message):
    with pytest.raises(ValueError, match=message):
        make(*given)


def test_frames_with_the_ids_as_labels_are_in_any_order():
    data = make_clustered_regression(8, 2, 3, random_state=0)
    ids = np.unique(data.groups)
    graph = pd.DataFrame(np.where(data.labels[:, None] == data.labels, 1, 0.01), ids, ids)
    wanted = graph_of_clients(graph.to_numpy(), 8)
    found = graph_of_clients(graph.iloc[::-1, ::-1], 8, ids)
    np.testing.assert_array_equal(found.weights, wanted.weights)
    # Labels that pandas makes say nothing of the clients.
    plain = graph_of_clients(pd.DataFrame(graph.to_numpy()), 8, ids)
    np.testing.assert_array_equal(plain.weights, wanted.weights)
    for other in (graph.rename(index={ids[0]: "?"}), graph.iloc[:7], graph.set_axis(ids + "?")):
        with pytest.raises(ValueError, match="graph must be a frame with the ids as labels"):
            graph_of_clients(other, 8, ids)


@pytest.mark.parametrize("labels", [True, False])
def test_frames_of_nodes_in_an_order_of_their_own(labels):
    """Without labels they are in the order of the nodes, as matrices are."""
    data = make_clustered_regression(8, 2, 3, random_state=0)
    ids, order = np.unique(data.groups), np.random.default_rng(0).permutation(8)
    weights = np.where(data.labels[:, None] == data.labels, 1, 0.01)
    rows = {"X": data.X, "y": data.y, "groups": data.groups}
    wanted = GTVRegressor(0.3, graph=weights).fit(**rows)
    nodes, given = ids[order], weights[np.ix_(order, order)]
    if labels:
        mixed = np.roll(np.arange(8), 3)
        graph = pd.DataFrame(given, nodes, nodes).iloc[mixed, mixed]
    else:
        graph = pd.DataFrame(given)
    found = GTVRegressor(0.3, graph=graph, nodes=nodes).fit(**rows)
    np.testing.assert_allclose(found.params_, wanted.params_, rtol=1e-6, atol=1e-8)
