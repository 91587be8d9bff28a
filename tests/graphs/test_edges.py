"""Blocks of edge arrays: tiles of the complete graph and lists of edges do the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skcfl.graphs import Graph, complete_graph
from skcfl.graphs import edges as _edges
from skcfl.graphs.edges import EdgeList, Tile, edge_blocks, square_tiles


@pytest.fixture(scope="module", autouse=True)
def small_tiles():
    """Tiles of a few nodes, so that small graphs have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_edges, "TILE_BYTES", 8 * 8**2)
        yield


def both(n, d, weight=1.5):
    heads, tails = np.triu_indices(n, 1)
    tiles = edge_blocks(complete_graph(n, weight), d)
    (edges,) = edge_blocks(Graph(n, heads, tails, weight), d)
    assert all(isinstance(tile, Tile) for tile in tiles) and isinstance(edges, EdgeList)
    return tiles, edges, heads, tails


def values(tile, full):
    """A tile's part of an antisymmetric array (d, n, n)."""
    return full[:, tile.rows, tile.columns]


cases = st.integers(2, 30), st.integers(1, 3), st.integers(0, 2**31)


@given(*cases)
def test_differences_totals_and_divergences_agree(n, d, seed):
    tiles, edges, heads, tails = both(n, d)
    rng = np.random.RandomState(seed % 2**32)
    VT = rng.standard_normal((d, n))
    difference = edges.difference(VT)
    full = np.zeros((d, n, n))
    full[:, heads, tails], full[:, tails, heads] = difference, -difference
    for tile in tiles:
        np.testing.assert_allclose(tile.difference(VT), values(tile, full), atol=1e-14)

    flow = rng.standard_normal((d, len(heads)))
    full[:, heads, tails], full[:, tails, heads] = flow, -flow
    by_tiles, by_list = rng.standard_normal((2, d, n))
    by_list[:] = by_tiles
    for tile in tiles:
        tile.add_divergence(values(tile, full), by_tiles)
    edges.add_divergence(flow, by_list)
    np.testing.assert_allclose(by_tiles, by_list, atol=1e-12)

    square = (full**2).sum(axis=0)
    total = sum(tile.total(square[tile.rows, tile.columns]) for tile in tiles)
    assert total == pytest.approx(edges.total((flow**2).sum(axis=0)))
    assert sum(tile.weights * tile.total(np.ones(tile.shape)) for tile in tiles) == pytest.approx(
        edges.total(edges.weights) + 0.5 * sum(t.weights * t.shape[0] for t in tiles if t.diagonal)
    ), "ones also stand on the diagonal, where differences are zero"


@given(*cases)
def test_marked_pairs_agree(n, d, seed):
    tiles, edges, heads, tails = both(n, d)
    chosen = np.random.RandomState(seed % 2**32).uniform(size=(n, n)) < 0.3
    chosen |= chosen.T
    M = []
    for tile in tiles:
        tile.mark(chosen[tile.rows, tile.columns], M)
    pairs = {
        (min(i, j), max(i, j)) for a, b in M for i, j in zip(a.tolist(), b.tolist(), strict=True)
    }
    L = []
    edges.mark(chosen[heads, tails], L)
    ((a, b),) = L
    expected = set(zip(a.tolist(), b.tolist(), strict=True))
    assert {pair for pair in pairs if pair[0] != pair[1]} == expected


@given(st.integers(0, 20), st.integers(1, 60), st.integers(1, 4))
def test_tiles_cover_every_pair_of_a_range_once(start, length, d):
    count = np.zeros((start + length, start + length), dtype=int)
    for tile in square_tiles(start, start + length, d, 1.0):
        count[tile.rows, tile.columns] += 1
    part = count[start:, start:]
    assert (np.triu(part, 1) + np.tril(part, -1).T)[np.triu_indices(length, 1)].min(initial=1) == 1
    assert (part[np.triu_indices(length, 1)] == 1).all()
    assert count.sum() == part.sum()


def test_a_graph_without_edges():
    (block,) = edge_blocks(Graph(3, [], []), 2)
    out = np.zeros((2, 3))
    block.add_divergence(block.difference(np.ones((2, 3))), out)
    assert not out.any() and block.total(np.zeros(0)) == 0.0
