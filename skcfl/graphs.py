"""Graphs of clients: whose models are compared with whose.

A :class:`Graph` lists every edge once, ``heads < tails``, with positive weights.  The complete
graph on equal weights is never written out: solvers walk it in square tiles.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.neighbors import kneighbors_graph

__all__ = ["Graph", "complete_graph", "from_adjacency", "knn_graph"]


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
        Whether every pair is an edge, all of the same weight.

    Examples
    --------
    >>> from skcfl.graphs import Graph
    >>> chain = Graph(3, [0, 1], [1, 2])
    >>> chain.difference([[1.0], [3.0], [6.0]]).ravel()
    array([-2., -3.])
    >>> chain.divergence([[1.0], [1.0]]).ravel()
    array([ 1.,  0., -1.])
    """

    def __init__(self, n_nodes, heads=None, tails=None, weights=1.0):
        self.n_nodes = int(n_nodes)
        self.is_complete = heads is None
        if self.is_complete:
            if np.ndim(weights):
                raise ValueError(
                    "weights must be one number for the complete graph; use from_adjacency for "
                    "a dense graph with weights that differ."
                )
            self.weight = float(weights)
            self.n_edges = self.n_nodes * (self.n_nodes - 1) // 2
            self._ends = None
        else:
            heads, tails = np.asarray(heads, dtype=np.intp), np.asarray(tails, dtype=np.intp)
            if heads.shape != tails.shape or heads.ndim != 1:
                raise ValueError(
                    f"heads and tails must be arrays of one length, got {heads.shape} and "
                    f"{tails.shape}."
                )
            if len(heads) and (heads.min() < 0 or tails.max() >= self.n_nodes):
                raise ValueError(f"Edges must join nodes 0 to {self.n_nodes - 1}.")
            if (heads >= tails).any():
                raise ValueError("Every edge must be given once, with heads < tails.")
            self._ends = heads, tails
            self.n_edges = len(heads)
            self._weights = np.broadcast_to(np.asarray(weights, dtype=float), heads.shape)
        if (np.asarray(weights) <= 0).any() or not np.isfinite(weights).all():
            raise ValueError("weights must be positive and finite.")

    @property
    def heads(self):
        """First ends of the edges."""
        return self._pairs()[0]

    @property
    def tails(self):
        """Second ends of the edges."""
        return self._pairs()[1]

    @property
    def weights(self):
        """Weights of the edges, (n_edges,)."""
        return np.full(self.n_edges, self.weight) if self.is_complete else self._weights

    def _pairs(self):
        if self._ends is None:
            self._ends = np.triu_indices(self.n_nodes, 1)
        return self._ends

    def incidence(self):
        """Sparse matrix D of shape (n_edges, n_nodes): ``(D x)_e = x_head - x_tail``."""
        E = self.n_edges
        ones = np.ones(E)
        rows = np.arange(E)
        return sparse.csr_array(
            (
                np.concatenate([ones, -ones]),
                (np.concatenate([rows, rows]), np.concatenate([self.heads, self.tails])),
            ),
            shape=(E, self.n_nodes),
        )

    def difference(self, x):
        """Differences along the edges: (n_nodes, d) -> (n_edges, d)."""
        x = np.asarray(x)
        return x[self.heads] - x[self.tails]

    def divergence(self, u):
        """Net outflow of the nodes, transpose of `difference`: (n_edges, d) -> (n_nodes, d)."""
        return self.incidence().T @ np.asarray(u)

    def adjacency(self):
        """Symmetric sparse matrix of the weights."""
        A = sparse.coo_array(
            (self.weights, (self.heads, self.tails)), shape=(self.n_nodes, self.n_nodes)
        )
        return sparse.csr_array(A + A.T)

    def degrees(self, weighted=True):
        """Sums of the weights at the nodes, or numbers of neighbours."""
        if self.is_complete:
            each = (self.n_nodes - 1) * (self.weight if weighted else 1.0)
            return np.full(self.n_nodes, each)
        w = self.weights if weighted else np.ones(self.n_edges)
        return np.bincount(self.heads, w, self.n_nodes) + np.bincount(self.tails, w, self.n_nodes)

    def laplacian(self, weighted=True):
        """Sparse Laplacian ``D' diag(w) D``, or ``D' D``."""
        w = self.weights if weighted else np.ones(self.n_edges)
        A = sparse.coo_array((w, (self.heads, self.tails)), shape=(self.n_nodes,) * 2)
        A = A + A.T
        return sparse.csr_array(sparse.diags_array(self.degrees(weighted)) - A)

    def components(self):
        """Connected component of every node, numbered from 0."""
        if self.is_complete:
            return np.zeros(self.n_nodes, dtype=np.intp)
        return connected_components(self.adjacency(), directed=False)[1]

    def inside(self, labels):
        """Graph of the edges within clusters."""
        heads, tails = self.heads, self.tails
        keep = labels[heads] == labels[tails]
        return Graph(self.n_nodes, heads[keep], tails[keep], self.weights[keep])

    def between(self, labels, n_clusters):
        """Weights between clusters, summed: (n_clusters, n_clusters), zero diagonal."""
        if self.is_complete:
            sizes = np.bincount(labels, minlength=n_clusters).astype(float)
            W = self.weight * np.outer(sizes, sizes)
        else:
            ends = labels[self.heads], labels[self.tails]
            W = sparse.coo_array((self.weights, ends), shape=(n_clusters,) * 2).toarray()
            W = W + W.T
        np.fill_diagonal(W, 0.0)
        return W

    def __repr__(self):
        kind = "complete, " if self.is_complete else ""
        return f"Graph({kind}{self.n_nodes} nodes, {self.n_edges} edges)"


def complete_graph(n_nodes, weight=1.0):
    """Complete graph, all pairs of the same weight.

    Parameters
    ----------
    n_nodes : int
        Number of nodes.
    weight : float, default=1.0
        Weight of every edge.

    Returns
    -------
    graph : Graph

    Examples
    --------
    >>> from skcfl.graphs import complete_graph
    >>> complete_graph(4)
    Graph(complete, 4 nodes, 6 edges)
    """
    return Graph(n_nodes, weights=weight)


def from_adjacency(A):
    """Graph of a symmetric matrix of weights.

    Parameters
    ----------
    A : array-like, sparse matrix or networkx graph
        Symmetric matrix of non-negative weights, (n_nodes, n_nodes); zeros are no edges, the
        diagonal (self-loops) is not looked at, as a node does not differ from itself.  Of a
        networkx graph the attribute ``weight``, 1 where there is none.

    Returns
    -------
    graph : Graph

    Raises
    ------
    ValueError
        If the matrix is not square, not symmetric, or has negative or non-finite weights.

    Examples
    --------
    >>> from skcfl.graphs import from_adjacency
    >>> from_adjacency([[0, 2.0, 0], [2.0, 0, 1.0], [0, 1.0, 0]]).weights
    array([2., 1.])
    """
    if hasattr(A, "nodes") and hasattr(A, "edges"):
        import networkx

        A = networkx.to_scipy_sparse_array(A, dtype=float)
    A = sparse.coo_array(A if sparse.issparse(A) else np.asarray(A, dtype=float))
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise ValueError(f"The adjacency matrix must be square, got shape {A.shape}.")
    if not np.isfinite(A.data).all() or (A.data < 0).any():
        raise ValueError("The adjacency matrix must hold finite non-negative weights.")
    A = sparse.csr_array(A)
    if abs(A - A.T).max() > 1e-12 * max(abs(A).max(), 1e-300):
        raise ValueError(
            "The adjacency matrix must be symmetric: the models of an edge's ends are compared "
            "with each other. Use (A + A.T) / 2 if that is what is meant."
        )
    upper = sparse.coo_array(sparse.triu(A, k=1))
    keep = upper.data > 0
    heads, tails = upper.coords
    order = np.lexsort((tails[keep], heads[keep]))
    return Graph(A.shape[0], heads[keep][order], tails[keep][order], upper.data[keep][order])


def knn_graph(points, n_neighbors=5, *, scale=None):
    """Graph of nearest neighbours, weights ``exp(-distance^2)``.

    Two nodes are joined where either is among the nearest neighbours of the other.

    Parameters
    ----------
    points : array-like of shape (n_nodes, n_coordinates)
        Where the nodes lie: coordinates, or local models.
    n_neighbors : int, default=5
        Neighbours of each node; all other nodes where there are fewer.
    scale : float or None, default=None
        Distances are divided by it.  None takes the median distance of the edges, so that
        weights are of order one whatever the units.

    Returns
    -------
    graph : Graph

    Examples
    --------
    >>> from skcfl.graphs import knn_graph
    >>> knn_graph([[0.0], [1.0], [5.0], [6.0]], n_neighbors=1, scale=1.0).weights.round(3)
    array([0.368, 0.368])
    """
    points = np.asarray(points, dtype=float)
    n = len(points)
    k = min(n_neighbors, n - 1)
    if k < 1:
        return Graph(n, [], [])
    D = kneighbors_graph(points, k, mode="distance")
    pattern = D.copy()
    pattern.data[:] = 1.0
    either = sparse.coo_array(sparse.triu(pattern + pattern.T, k=1))
    heads, tails = either.coords
    order = np.lexsort((tails, heads))
    heads, tails = heads[order], tails[order]
    distance = np.linalg.norm(points[heads] - points[tails], axis=1)
    if scale is None:
        scale = np.median(distance) if len(distance) else 1.0
    ratio = distance / scale if scale > 0 else np.zeros_like(distance)
    # A weight must not vanish, or the edge would be no edge.
    return Graph(n, heads, tails, np.maximum(np.exp(-(ratio**2)), 1e-12))
