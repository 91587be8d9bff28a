"""Graphs of clients: the pairs whose models are compared.

A :class:`Graph` lists every edge once, ``heads < tails``, with positive weights.  The complete
graph on equal weights is never written out: solvers walk it in square tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from .._checks import LEAST, MOST, Count, real_array, whole_number
from .._typing import Array, ArrayLike, FloatArray, IntArray, validate_params
from ..numerics.by_cluster import components_of, weight_by_cluster
from ..numerics.memory import require

__all__ = ["Graph"]

# Nodes of a graph: beyond, its arrays of indices take gigabytes.
MAX_NODES = 10**8

NODES = [Count(1, MAX_NODES)]


class Graph:
    """Undirected weighted graph.

    Parameters
    ----------
    n_nodes : int
        Number of nodes.
    heads, tails : array-like of shape (n_edges,) or None, default=None
        Ends of the edges, each edge once, ``heads < tails``; None for the complete graph.
    weights : float or array-like of shape (n_edges,), default=1.0
        Positive weights; one number gives all edges the same.

    Attributes
    ----------
    n_nodes, n_edges : int
        Numbers of nodes and edges.
    is_complete : bool
        True if every pair is an edge, all of the same weight.

    Examples
    --------
    >>> from skcfl.graphs import Graph
    >>> chain = Graph(3, [0, 1], [1, 2])
    >>> chain.difference([[1.0], [3.0], [6.0]]).ravel()
    array([-2., -3.])
    >>> chain.divergence([[1.0], [1.0]]).ravel()
    array([ 1.,  0., -1.])
    """

    @validate_params({"n_nodes": NODES})
    def __init__(
        self,
        n_nodes: int,
        heads: ArrayLike | None = None,
        tails: ArrayLike | None = None,
        weights: ArrayLike = 1.0,
    ) -> None:
        self.n_nodes = int(n_nodes)
        self.is_complete = heads is None and tails is None
        if self.is_complete:
            if np.ndim(weights):
                raise ValueError(
                    "weights must be one number for the complete graph; use from_adjacency for "
                    "a dense graph with weights that differ."
                )
            self.weight = float(_check_weights(weights))
            self.n_edges = self.n_nodes * (self.n_nodes - 1) // 2
            self._ends = None
        else:
            heads, tails = whole_numbers(heads, "heads"), whole_numbers(tails, "tails")
            if heads.shape != tails.shape:
                raise ValueError(
                    f"heads and tails must be arrays of one length, got {heads.shape} and "
                    f"{tails.shape}."
                )
            if len(heads) and (heads.min() < 0 or tails.max() >= self.n_nodes):
                raise ValueError(
                    f"heads and tails must be nodes, 0 to {self.n_nodes - 1} with n_nodes="
                    f"{self.n_nodes}, got edges between {heads.min()} and {tails.max()}."
                )
            # Repeated edges are neighbours in the usual order.
            keys = heads * self.n_nodes + tails
            keys = keys if (np.diff(keys) > 0).all() else np.sort(keys)
            if (heads >= tails).any() or (np.diff(keys) == 0).any():
                raise ValueError("Every edge must be given once, with heads < tails.")
            self._ends = heads, tails
            self.n_edges = len(heads)
            weights = _check_weights(weights)
            if weights.shape not in {(), heads.shape}:
                raise ValueError(
                    f"weights must be one number or one for each of the {len(heads)} edges, got "
                    f"shape {weights.shape}."
                )
            self._weights = np.broadcast_to(weights, heads.shape)

    @property
    def heads(self) -> IntArray:
        """First ends of the edges."""
        return self._pairs()[0]

    @property
    def tails(self) -> IntArray:
        """Second ends of the edges."""
        return self._pairs()[1]

    @property
    def weights(self) -> FloatArray:
        """Weights of the edges, (n_edges,)."""
        return np.full(self.n_edges, self.weight) if self.is_complete else self._weights

    def _pairs(self) -> tuple[IntArray, IntArray]:
        if self._ends is None:
            # A mask of all pairs, and two numbers per edge.
            what = f"The ends of the edges of a complete graph of {self.n_nodes} nodes"
            instead = "knn_graph compares neighbours only."
            require(self.n_nodes**2 + 16 * self.n_edges, what, instead)
            self._ends = np.triu_indices(self.n_nodes, 1)
        return self._ends

    def incidence(self) -> sparse.csr_array:
        """Sparse matrix D of shape (n_edges, n_nodes): ``(D x)_e = x_head - x_tail``."""
        return sparse.csr_array(outflows(self.heads, self.tails, self.n_nodes).T)

    def difference(self, x: ArrayLike) -> FloatArray:
        """Differences along the edges: (n_nodes, d) -> (n_edges, d)."""
        x = _values(x, self.n_nodes, "x", "node")
        return x[self.heads] - x[self.tails]

    def divergence(self, u: ArrayLike) -> FloatArray:
        """Net outflow of the nodes, transpose of `difference`: (n_edges, d) -> (n_nodes, d)."""
        return self.incidence().T @ _values(u, self.n_edges, "u", "edge")

    def adjacency(self) -> sparse.csr_array:
        """Symmetric sparse matrix of the weights."""
        return self._adjacency(self.weights)

    def _adjacency(self, weights: Array) -> sparse.csr_array:
        A = sparse.coo_array((weights, (self.heads, self.tails)), shape=(self.n_nodes,) * 2)
        return sparse.csr_array(A + A.T)

    def degrees(self, weighted: bool = True) -> FloatArray:
        """Sums of the weights at the nodes, or numbers of neighbours."""
        if self.is_complete:
            each = (self.n_nodes - 1) * (self.weight if weighted else 1.0)
            return np.full(self.n_nodes, each)
        w = self.weights if weighted else np.ones(self.n_edges)
        return sum(weight_by_cluster(ends, w, self.n_nodes) for ends in (self.heads, self.tails))

    def laplacian(self, weighted: bool = True) -> sparse.csr_array:
        """Sparse Laplacian ``D' diag(w) D``, or ``D' D``."""
        A = self._adjacency(self.weights if weighted else np.ones(self.n_edges))
        return sparse.csr_array(sparse.diags_array(self.degrees(weighted)) - A)

    def components(self) -> IntArray:
        """Connected component of every node, numbered from 0."""
        if self.is_complete:
            return np.zeros(self.n_nodes, dtype=np.intp)
        return components_of(self.heads, self.tails, self.n_nodes)

    def inside(self, labels: ArrayLike) -> Graph:
        """Graph of the edges within clusters."""
        labels = _numbers(labels, self.n_nodes, "labels")
        heads, tails = self.heads, self.tails
        keep = labels[heads] == labels[tails]
        return Graph(self.n_nodes, heads[keep], tails[keep], self.weights[keep])

    def renumbered(self, numbers: ArrayLike) -> Graph:
        """The same graph with new numbers of the nodes, (n_nodes,), a permutation."""
        numbers = _numbers(numbers, self.n_nodes, "numbers", self.n_nodes)
        if (np.bincount(numbers, minlength=self.n_nodes) != 1).any():
            raise ValueError(f"numbers must be a permutation of 0 to {self.n_nodes - 1}.")
        if self.is_complete or np.array_equal(numbers, np.arange(self.n_nodes)):
            return self
        heads, tails = np.sort([numbers[self.heads], numbers[self.tails]], axis=0)
        order = np.lexsort((tails, heads))
        return Graph(self.n_nodes, heads[order], tails[order], self.weights[order])

    def between(self, labels: ArrayLike, n_clusters: int) -> FloatArray:
        """Weights between clusters, summed: (n_clusters, n_clusters), zero diagonal."""
        n_clusters = whole_number(n_clusters, "n_clusters", 1, MAX_NODES)
        labels = _numbers(labels, self.n_nodes, "labels", n_clusters)
        what = f"Weights between all pairs of {n_clusters} clusters"
        require(24 * n_clusters**2, what, "Merge clusters, or take those that are of interest.")
        if self.is_complete:
            sizes = np.bincount(labels, minlength=n_clusters).astype(float)
            W = self.weight * np.outer(sizes, sizes)
        else:
            ends = labels[self.heads], labels[self.tails]
            W = sparse.coo_array((self.weights, ends), shape=(n_clusters,) * 2).toarray()
            W = W + W.T
        np.fill_diagonal(W, 0.0)
        return W

    def __repr__(self) -> str:
        kind = "complete, " if self.is_complete else ""
        return f"Graph({kind}{self.n_nodes} nodes, {self.n_edges} edges)"


def outflows(heads: Array, tails: Array, n_nodes: int) -> sparse.csr_array:
    """Operator of the net outflows of the nodes, (n_nodes, n_edges)."""
    edges = np.arange(len(heads))
    ends = np.concatenate([heads, tails]), np.concatenate([edges, edges])
    signs = np.repeat([1.0, -1.0], len(heads))
    return sparse.csr_array((signs, ends), shape=(n_nodes, len(heads)))


def _check_weights(weights: ArrayLike) -> Array:
    """Weights of edges as an array of floats of a size that arithmetic can bear."""
    weights = real_array(weights, "weights", finite=False)
    if not ((weights >= LEAST) & (weights <= MOST)).all():
        low, high = weights.min(), weights.max()
        raise ValueError(
            f"weights must be positive and finite, between {LEAST:g} and {MOST:g}, got "
            f"values from {low:g} to {high:g}. An edge that does not count is left out."
        )
    return weights


def whole_numbers(values: Any, name: str, scalar: bool = False) -> IntArray:
    """Integers of an argument, a one-dimensional array (or a number)."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype == np.intp:
        return values
    array = real_array(values, name)
    if not (array.ndim == 1 or (scalar and array.ndim == 0)):
        raise ValueError(f"{name} must be one-dimensional, got shape {array.shape}.")
    odd = (np.abs(array) > 2.0**53) | (array != np.floor(array))
    if odd.any():
        raise ValueError(f"{name} must hold integers, got {array[odd][0]}.")
    return np.asarray(values, dtype=np.intp)


def _values(values: Any, n: int, name: str, what: str) -> Array:
    """Numbers with one row for each of `n` nodes or edges."""
    values = real_array(values, name, finite=False)
    if values.ndim not in (1, 2) or len(values) != n:
        raise ValueError(
            f"{name} must have one row a {what}, {n} of them, got an array of shape "
            f"{values.shape}."
        )
    return values


def _numbers(values: Any, n: int, name: str, stop: int | None = None) -> IntArray:
    """Integers, one for each of `n` nodes, from 0 to less than `stop` where that is given."""
    values = whole_numbers(values, name)
    if len(values) != n:
        raise ValueError(f"{name} must have one entry per node, {n} of them, got {len(values)}.")
    if stop is not None and (values.min() < 0 or values.max() >= stop):
        raise ValueError(
            f"{name} must lie in 0, ..., {stop - 1}, got {values.min()} to {values.max()}."
        )
    return values
