"""Edge arrays of a solver, in blocks.

Edge variables have shape ``(d, ...)``, coordinates first.  A sparse graph is one list of
edges; the complete graph (or a dense one) is walked in square tiles of pairs, in which
differences are broadcasts and divergences are sums along an axis, so that no index is
stored and a block stays in cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array
from ..numerics.memory import require
from .graph import outflows

if TYPE_CHECKING:
    from . import Graph

TILE_BYTES = 2**20


class EdgeList:
    """Some edges of a sparse graph."""

    diagonal = False

    def __init__(self, heads: Array, tails: Array, weights: Array, n_nodes: int) -> None:
        self.heads, self.tails, self.weights = heads, tails, weights
        self.shape = heads.shape
        self._transpose = outflows(heads, tails, n_nodes)

    def difference(self, VT: Array) -> Array:
        """Differences along the edges: (d, n_nodes) -> (d, E)."""
        return VT[:, self.heads] - VT[:, self.tails]

    def add_divergence(self, T: Array, out: Array) -> None:
        """Add the net outflows of (d, E) to (d, n_nodes)."""
        out += (self._transpose @ T.T).T

    def ends(self, values: Array) -> tuple[Array, Array]:
        """Node values (n_nodes,) at both ends of the edges, each (E,)."""
        return values[self.heads], values[self.tails]

    def add_to_ends(self, values: Array, out: Array) -> None:
        """Add edge values (E,) to those of the nodes at their ends, (n_nodes,)."""
        out += np.bincount(self.heads, values, len(out))
        out += np.bincount(self.tails, values, len(out))

    def total(self, values: Any) -> float:
        """Sum of edge values (E,)."""
        return float(values.sum())

    def mark(self, mask: Array, M: list[tuple[Array, Array]]) -> None:
        """Pairs of the edges in `mask`, appended to the list `M`."""
        M.append((self.heads[mask], self.tails[mask]))


class Tile:
    """All pairs of two ranges of nodes; on the diagonal every pair stands twice."""

    def __init__(self, rows: slice, columns: slice, weights: float) -> None:
        self.rows, self.columns, self.weights = rows, columns, weights
        self.diagonal = rows == columns
        self.shape = (rows.stop - rows.start, columns.stop - columns.start)

    def difference(self, VT: Array) -> Array:
        """Differences of the pairs: (d, n_nodes) -> (d, rows, columns)."""
        return VT[:, self.rows, None] - VT[:, None, self.columns]

    def add_divergence(self, T: Array, out: Array) -> None:
        """Add the net outflows of (d, rows, columns) to (d, n_nodes)."""
        # Products with ones: sums along short axes are slow.
        out[:, self.rows] += T @ np.ones(self.shape[1])
        if not self.diagonal:
            out[:, self.columns] -= np.ones(self.shape[0]) @ T

    def ends(self, values: Array) -> tuple[Array, Array]:
        """Node values (n_nodes,) at both ends of the pairs, to be broadcast."""
        return values[self.rows, None], values[None, self.columns]

    def add_to_ends(self, values: Array, out: Array) -> None:
        """Add edge values (rows, columns) to those of the nodes at their ends, (n_nodes,)."""
        out[self.rows] += values.sum(axis=1)
        if not self.diagonal:
            out[self.columns] += values.sum(axis=0)

    def total(self, values: Any) -> float:
        """Sum over the pairs of edge values (rows, columns), each once."""
        return float(values.sum()) * (0.5 if self.diagonal else 1.0)

    def mark(self, mask: Array, M: list[tuple[Array, Array]]) -> None:
        """Pairs of the tile in `mask`, appended to the list `M`."""
        i, j = np.nonzero(mask)
        M.append((i + self.rows.start, j + self.columns.start))


def edge_blocks(graph: Graph, d: int) -> list[EdgeList] | list[Tile]:
    """Blocks of a graph's edges for variables of `d` coordinates."""
    if not graph.is_complete:
        return [EdgeList(graph.heads, graph.tails, graph.weights, graph.n_nodes)]
    return square_tiles(0, graph.n_nodes, d, graph.weight)


def require_edges(graph: Graph, d: int, n_arrays: int) -> None:
    """Raise an error if so many arrays of edge variables of `d` numbers do not fit in memory."""
    each = 8 * d * n_arrays

    def instead(there: float) -> str:
        if not graph.is_complete:
            return "Take a graph with fewer edges, or models with fewer parameters."
        fit = int(np.sqrt(2.0 * there / each))
        return (
            f"About {fit} nodes would fit with all pairs; graph='knn' "
            "compares neighbours only, and its memory grows with the number of nodes."
        )

    what = (
        f"The {graph.n_edges} edges of {graph.n_nodes} nodes, with {n_arrays} times {d} numbers,"
    )
    require(each * graph.n_edges, what, instead)


def square_tiles(start: int, stop: int, d: int, weight: float) -> list[Tile]:
    """Tiles of all pairs of a range of nodes for variables of `d` coordinates."""
    side = max(int(np.sqrt(TILE_BYTES / (8 * d))), 8)
    cuts = np.linspace(start, stop, -(-(stop - start) // side) + 1).astype(int)
    ranges = [slice(int(a), int(b)) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    return [Tile(rows, columns, weight) for k, rows in enumerate(ranges) for columns in ranges[k:]]
