"""Graphs from weights, points, distances and rows, and graphs of a kind."""

from __future__ import annotations

from collections import Counter
from numbers import Real
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy import sparse
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils.random import sample_without_replacement

from .._checks import LEAST, MOST, Count, Interval, about, real_array
from .._typing import Array, ArrayLike, ClientIds, MatrixLike, RandomState, validate_params
from ..numerics.by_cluster import components_of
from ..numerics.matrices import slices
from ..numerics.memory import require
from .divergence import kl_divergences
from .graph import MAX_NODES, NODES, Graph, whole_numbers
from .links import shortest_links

__all__ = [
    "chain_graph",
    "complete_graph",
    "distance_graph",
    "from_adjacency",
    "kl_graph",
    "knn_graph",
    "star_graph",
    "stochastic_block_model",
]

# Edges that are drawn at most: beyond, arrays of indices take gigabytes.
MAX_EDGES = MAX_NODES
# Bytes that the conversion of an entry of a matrix takes up, copies for its checks included.
ENTRY = 64
# Coordinates up to which neighbours are looked up in a tree.
MAX_TREE = 15
# Points with distances computed before scikit-learn's threads start: on a busy machine these wait
# for each other a hundred times as long as they work.
FEW_POINTS = 200

_COUNT = [Count()]
_SCALE = [Interval(Real, 0, None, closed="neither"), None]
_WEIGHT = Interval(Real, LEAST, MOST, closed="both")


class HasNeighbors(Protocol):
    """A graph of networkx."""

    def neighbors(self, n: Any, /) -> Any:
        """Nodes that a node is joined to."""


#: Kinds of graphs that an estimator takes: a matrix of weights, a graph, or one of networkx.
GraphLike: TypeAlias = MatrixLike | Graph | HasNeighbors


@validate_params({"n_nodes": NODES, "weight": [_WEIGHT]})
def complete_graph(n_nodes: int, weight: float = 1.0) -> Graph:
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


def from_adjacency(A: GraphLike) -> Graph:
    """Graph of a symmetric matrix of weights.

    Parameters
    ----------
    A : array-like, sparse matrix or networkx graph
        Symmetric matrix of non-negative weights, (n_nodes, n_nodes); zeros are no edges, the
        diagonal (self-loops) is ignored, as a node does not differ from itself.  A networkx graph
        has the attribute ``weight``, 1 if it is missing.

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
    return graph_of_matrix(A, "A")


def is_network(graph: Any) -> bool:
    """Whether this is a networkx graph."""
    return hasattr(graph, "nodes") and hasattr(graph, "edges")


def in_order(graph: Any, ids: Any) -> Any:
    """Weights of a frame of pandas in the order of the ids, its labels; else what was given.

    Labels that pandas makes, 0 to n - 1, name no client.
    """
    if not hasattr(graph, "loc"):
        return graph
    index, columns, names = graph.index.tolist(), graph.columns.tolist(), ids.tolist()
    if index == columns == list(range(len(graph))):
        return graph.to_numpy()
    counts = [Counter(labels) for labels in (index, columns, names)]
    odd = [label for label in sum(counts, Counter()) if any(each[label] != 1 for each in counts)]
    if odd:
        raise ValueError(
            "graph must be a frame with the ids as labels of both axes, once each, or without "
            f"labels; it is not so for {odd[:3]}. GTV takes clients without rows by nodes=."
        )
    return graph.loc[names, names].to_numpy()


def graph_of_clients(graph: Any, n_clients: int, ids: Any = None) -> Graph:
    """Graph that a user gives, its nodes in the order of the sorted ids.

    Parameters
    ----------
    graph : matrix, Graph or networkx graph
        Parameter ``graph`` of an estimator.
    n_clients : int
        Number of clients.
    ids : ndarray, default=None
        Sorted ids, for the nodes of networkx graphs and the labels of frames.

    Returns
    -------
    graph : Graph
    """
    graph = graph if ids is None else in_order(graph, ids)
    if is_network(graph):
        graph = _aligned(graph, [0] if ids is None else ids.tolist())
    graph = graph if isinstance(graph, Graph) else graph_of_matrix(graph, "graph")
    if graph.n_nodes != n_clients:
        raise ValueError(
            f"graph has {graph.n_nodes} nodes, but there {_clients(n_clients)}. It must have one "
            "node a client, in the order of the sorted ids, np.unique(groups)."
        )
    return graph


def _clients(n: int) -> str:
    return f"are {n} clients" if n > 1 else "is 1 client"


def _aligned(network: Any, ids: list[Any]) -> Any:
    """Matrix of weights of a networkx graph, its nodes in the order of the clients."""
    import networkx

    nodes, order = set(network.nodes), ids
    if nodes != set(ids):
        order = list(range(len(ids)))
    if nodes != set(order):
        odd = sorted(map(repr, nodes.difference(ids)))
        raise ValueError(
            f"The nodes of graph must be the ids of the clients (or 0 to {len(ids) - 1}, in the "
            f"order of the sorted ids). It has {len(nodes)} nodes, there {_clients(len(ids))}"
            f"{f', and {odd[0]} is none of them' if odd else ''}."
        )
    return networkx.to_scipy_sparse_array(network, nodelist=order, dtype=float)


def graph_of_matrix(A: Any, name: str) -> Graph:
    """Graph of a matrix of weights or a networkx graph, `name` in messages: see from_adjacency."""
    if is_network(A):
        import networkx

        with about(name):
            A = networkx.to_scipy_sparse_array(A)
    if sparse.issparse(A):
        if A.ndim != 2 or A.dtype.kind not in "biuf":
            raise ValueError(
                f"{name} must be a matrix of real weights, got dtype {A.dtype} and shape "
                f"{A.shape}."
            )
        A = A.astype(float)
    else:
        A = real_array(A, name, finite=False)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or not A.shape[0]:
        raise ValueError(
            f"{name} must be a square matrix of weights, one row and column per node, got shape "
            f"{A.shape}."
        )
    number = A.nnz if sparse.issparse(A) else np.count_nonzero(A)
    instead = "Use complete_graph where all pairs weigh the same, or knn_graph for neighbours."
    require(ENTRY * number, f"The {number} weights of {name} as a list of edges", instead)
    A = sparse.coo_array(A)
    if not np.isfinite(A.data).all() or (A.data < 0).any():
        raise ValueError(f"{name} must hold finite non-negative weights.")
    A = sparse.csr_array(A)
    if abs(A - A.T).max() > 1e-12 * max(abs(A).max(), 1e-300):
        raise ValueError(
            f"{name} must be symmetric: the models of an edge's ends are compared with each "
            "other. Use (A + A.T) / 2 if that is what is meant."
        )
    upper = sparse.coo_array(sparse.triu(A, k=1))
    keep = upper.data > 0
    heads, tails = upper.coords
    order = np.lexsort((tails[keep], heads[keep]))
    with about(name):
        return Graph(A.shape[0], heads[keep][order], tails[keep][order], upper.data[keep][order])


@validate_params(
    {"points": ["array-like"], "n_neighbors": _COUNT, "scale": _SCALE, "connected": ["boolean"]}
)
def knn_graph(
    points: ArrayLike, n_neighbors: int = 5, *, scale: float | None = None, connected: bool = False
) -> Graph:
    """Graph of nearest neighbours, weights ``exp(-distance^2)``.

    Two nodes are joined where either is among the nearest neighbours of the other.

    Parameters
    ----------
    points : array-like of shape (n_nodes, n_coordinates)
        Positions of the nodes: coordinates, or local models.
    n_neighbors : int, default=5
        Neighbours of each node; all other nodes where there are fewer.
    scale : float or None, default=None
        Distances are divided by it.  None takes the median distance of the edges, so that
        weights are of order one whatever the units.
    connected : bool, default=False
        If True, join the components of the graph by their shortest links, so that a large penalty
        can fuse all nodes, and to keep all weights at .001 at least, so that it need not be huge.

    Returns
    -------
    graph : Graph

    Examples
    --------
    >>> from skcfl.graphs import knn_graph
    >>> points = [[0.0], [1.0], [5.0], [6.0]]
    >>> knn_graph(points, n_neighbors=1, scale=1.0).weights.round(3)
    array([0.368, 0.368])
    >>> knn_graph(points, n_neighbors=1, scale=1.0, connected=True).weights.round(3)
    array([0.368, 0.001, 0.368])
    """
    points = real_array(points, "points", ndim=2)
    n = len(points)
    if not points.size:
        raise ValueError(f"points must have a row and a column, got shape {points.shape}.")
    k = min(n_neighbors, n - 1)
    if k < 1:
        return Graph(n, [], [])
    # Squares of distances neither overflow nor vanish in units of a power of two, which is exact.
    exponent = int(np.frexp(np.abs(points).max())[1])
    points = np.ldexp(points, -exponent)
    scale = None if scale is None else np.ldexp(float(scale), -exponent)
    heads, tails = _neighbours(points, k)
    if scale is None:
        distance = _lengths(points, heads, tails)
        # Nodes that coincide say nothing of the scale where most of them do.
        positive = distance[distance > 0]
        scale = np.median(distance) or (np.median(positive) if len(positive) else 1.0)
    if connected:
        links = shortest_links(points, components_of(heads, tails, n))
        if links.size:
            heads, tails = np.append(heads, links[0]), np.append(tails, links[1])
            order = np.argsort(heads * n + tails)
            heads, tails = heads[order], tails[order]
    distance = _lengths(points, heads, tails)
    # A weight must not vanish, or the edge would be no edge.
    return Graph(n, heads, tails, _fall(distance, scale, 2, 1e-3 if connected else 1e-12))


def _fall(distance: Array, scale: float | None, power: int, least: float) -> Array:
    """Weights ``exp(-(distance / scale)^power)``, not below `least`."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        weights = np.exp(-((distance / scale) ** power))
    return np.fmax(weights, least)


def _neighbours(points: Array, k: int) -> tuple[Array, Array]:
    """Pairs with one node among the k nearest of the other, in the usual order of edges."""
    n, d = points.shape
    if d <= MAX_TREE:
        tree = cKDTree(points)
        # Queries in the order of the tree's leaves find their neighbours in cache.
        order = tree.indices
        near = tree.query(points[order], k + 1)[1]
        own = near == order[:, None]
        # If many points coincide a point may not be among its neighbours.
        own[~own.any(axis=1), k] = True
        heads, tails = np.repeat(order, k), near[~own]
    elif n <= FEW_POINTS:
        squares = cdist(points, points, "sqeuclidean")
        np.fill_diagonal(squares, np.inf)
        near = np.argpartition(squares, k - 1, axis=1)[:, :k]
        heads, tails = np.repeat(np.arange(n), k), near.ravel()
    else:
        # Far from the origin squares would cost digits. An outlier would move the mean there.
        points = points - np.median(points, axis=0)
        near = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False)
        heads, tails = np.repeat(np.arange(n), k), near.ravel()
    keys = np.sort(np.minimum(heads, tails) * n + np.maximum(heads, tails))
    return np.divmod(keys[np.diff(keys, prepend=-1) > 0], n)


def _lengths(points: Array, heads: Array, tails: Array) -> Array:
    """Distances of pairs, in blocks that stay in cache."""
    out, side = np.empty(len(heads)), max(2**16 // points.shape[1], 1)
    for some in slices(len(heads), side):
        delta = points[heads[some]] - points[tails[some]]
        out[some] = np.sqrt(np.einsum("ed,ed->e", delta, delta))
    return out


@validate_params({"distances": ["array-like"], "n_neighbors": _COUNT, "scale": _SCALE})
def distance_graph(
    distances: ArrayLike, n_neighbors: int = 5, *, scale: float | None = None
) -> Graph:
    """Graph of nearest neighbours by given distances, weights ``exp(-distance)``.

    Two nodes are joined where either is among the nearest neighbours of the other
    (SarcheshmehPour et al. 2023, section VI-C).

    Parameters
    ----------
    distances : array-like of shape (n_nodes, n_nodes)
        Symmetric non-negative distances; infinity where two nodes may not be joined.  The
        diagonal is not looked at.
    n_neighbors : int, default=5
        Neighbours of each node; all other nodes where there are fewer.
    scale : float or None, default=None
        Distances are divided by it.  None takes the median distance of the edges, so that
        weights are of order one whatever the units; the paper's is 1.

    Returns
    -------
    graph : Graph

    Raises
    ------
    ValueError
        If the distances are not square, not symmetric, negative or NaN, or a parameter is not
        positive.

    See Also
    --------
    knn_graph : By coordinates, or by local models: pass ``LocalModels().fit(...).params_``.

    Examples
    --------
    >>> from skcfl.graphs import distance_graph
    >>> D = [[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]]
    >>> distance_graph(D, n_neighbors=1, scale=1.0).weights.round(3)
    array([0.368, 0.135])
    """
    D = real_array(distances, "distances", finite=False)
    instead = "If nodes have coordinates, use knn_graph(points), which needs no distances."
    require(32 * D.size, f"Copies of the distances of {len(D)} nodes and their order", instead)
    D = np.array(D)
    if D.ndim != 2 or D.shape[0] != D.shape[1] or not D.size:
        raise ValueError(f"distances must be a square matrix, got shape {D.shape}.")
    n = len(D)
    np.fill_diagonal(D, np.inf)
    if not (D >= 0).all():
        raise ValueError("distances must be non-negative, got a negative number or NaN.")
    if not np.allclose(D, D.T, rtol=1e-9, atol=0.0):
        raise ValueError(
            "distances must be symmetric. Use (D + D.T) / 2 if that is what is meant."
        )
    k = min(int(n_neighbors), n - 1)
    near = np.argsort(D, axis=1, kind="stable")[:, : max(k, 0)]
    i, j = np.repeat(np.arange(n), near.shape[1]), near.ravel()
    pairs = np.unique(np.column_stack([np.minimum(i, j), np.maximum(i, j)]), axis=0)
    heads, tails = pairs[np.isfinite(D[pairs[:, 0], pairs[:, 1]])].T
    distance = D[heads, tails]
    if scale is None:
        # Nodes that coincide say nothing of the scale.
        positive = distance[distance > 0]
        scale = np.median(positive) if len(positive) else 1.0
    # A weight must not vanish, or the edge would be no edge.
    return Graph(n, heads, tails, _fall(distance, scale, 1, 1e-12))


@validate_params({"n_neighbors": _COUNT, "k": _COUNT, "scale": _SCALE})
def kl_graph(
    X: ArrayLike, groups: ClientIds, n_neighbors: int = 5, *, k: int = 1, scale: float | None = 1.0
) -> Graph:
    """Graph of the clients with the most similar distributions of rows.

    The distance of two clients is the Kullback-Leibler divergence between their rows, the mean
    of both directions, estimated from nearest neighbours (Perez-Cruz 2008 [1]_).

    This is for graphs that are built *before* a fit, where the rows of all clients lie in one
    place: an estimate takes the rows of both.  Methods of this package do not call it; where
    rows may not leave the clients, use distances between local models (:func:`knn_graph`).

    Parameters
    ----------
    X : array-like of shape (n_rows, n_features)
        Rows, with the features in comparable units.  Estimates need few dimensions: of images,
        pass a projection (PCA; the paper [2]_ takes t-SNE to the plane).
    groups : array-like of shape (n_rows,)
        The client of each row.  Nodes are numbered as ``np.unique(groups)``.
    n_neighbors : int, default=5
        Neighbours of each client.
    k : int, default=1
        Which nearest row the estimate takes: more is less noise and more bias.
    scale : float or None, default=1.0
        Divergences are divided by it before ``exp(-distance)``; None takes their median.

    Returns
    -------
    graph : Graph

    Raises
    ------
    ValueError
        If a client has no more than `k` rows, or the ids or a parameter are not valid.

    References
    ----------
    .. [1] Perez-Cruz, "Kullback-Leibler divergence estimation of continuous distributions",
       ISIT 2008.
    .. [2] SarcheshmehPour, Tian, Zhang, Jung, "Clustered federated learning via generalized total
       variation minimization", IEEE Transactions on Signal Processing, 2023, section VI-C.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.graphs import kl_graph
    >>> rng = np.random.RandomState(0)
    >>> groups = np.repeat(["a", "b", "c", "d"], 50)
    >>> X = rng.normal(size=(200, 2)) + 5 * np.isin(groups, ["b", "d"])[:, None]
    >>> graph = kl_graph(X, groups, n_neighbors=1)
    >>> graph.heads, graph.tails
    (array([0, 1]), array([2, 3]))
    """
    _, divergences = kl_divergences(X, groups, k)
    distance = np.maximum(0.5 * (divergences + divergences.T), 0.0)
    return distance_graph(distance, n_neighbors, scale=scale)


@validate_params({"n_nodes": NODES})
def chain_graph(n_nodes: int, weight: float | ArrayLike = 1.0) -> Graph:
    """Chain: every node is joined to the next.

    Parameters
    ----------
    n_nodes : int
        Number of nodes.
    weight : float or array-like of shape (n_nodes - 1,), default=1.0
        Weight of every edge; 0 cuts the chain.

    Returns
    -------
    graph : Graph

    Examples
    --------
    Two clusters with a weak link (SarcheshmehPour et al. 2023, section VI-B):

    >>> from skcfl.graphs import chain_graph
    >>> chain_graph(4, [1.0, 0.1, 1.0]).weights
    array([1. , 0.1, 1. ])
    """
    start = np.arange(n_nodes - 1)
    return _weighted(n_nodes, start, start + 1, weight)


@validate_params({"n_nodes": NODES})
def star_graph(n_nodes: int, weight: float | ArrayLike = 1.0) -> Graph:
    """Star: node 0 is joined to all others.

    Parameters
    ----------
    n_nodes : int
        Number of nodes, the centre included.
    weight : float or array-like of shape (n_nodes - 1,), default=1.0
        Weight of every edge, in the order of the other nodes; 0 is no edge.

    Returns
    -------
    graph : Graph

    Examples
    --------
    >>> from skcfl.graphs import star_graph
    >>> star_graph(4).degrees()
    array([3., 1., 1., 1.])
    """
    others = np.arange(1, n_nodes)
    return _weighted(n_nodes, np.zeros_like(others), others, weight)


@validate_params(
    {
        "sizes": [*NODES, "array-like"],
        "p_in": [Interval(Real, 0, 1, closed="both"), "array-like"],
        "p_out": [Interval(Real, 0, 1, closed="both")],
        "weight": [_WEIGHT],
        "random_state": ["random_state"],
    }
)
def stochastic_block_model(
    sizes: ArrayLike,
    p_in: float | ArrayLike = 0.5,
    p_out: float = 0.01,
    *,
    weight: float = 1.0,
    random_state: RandomState = None,
) -> tuple[Graph, Array]:
    """Draw a graph with known clusters: pairs are joined at random, likelier within clusters.

    Parameters
    ----------
    sizes : array-like of shape (n_clusters,)
        Nodes of each cluster; nodes are numbered cluster by cluster.
    p_in : float or array-like of shape (n_clusters,), default=0.5
        Probability of an edge within a cluster, or within each.
    p_out : float, default=0.01
        Probability of an edge between clusters.
    weight : float, default=1.0
        Weight of every edge.
    random_state : int, RandomState instance or None, default=None
        Source of the draws.

    Returns
    -------
    graph : Graph
        Not connected by nature; see :meth:`Graph.components`.
    labels : ndarray of shape (n_nodes,)
        Cluster of each node.

    Raises
    ------
    ValueError
        If a size is not a positive integer or a probability not in [0, 1].

    Examples
    --------
    The graph of SarcheshmehPour et al. (2023), Table I:

    >>> from skcfl.graphs import stochastic_block_model
    >>> graph, labels = stochastic_block_model([100, 100], 0.5, 0.01, random_state=0)
    >>> graph
    Graph(200 nodes, 5059 edges)
    """
    sizes = np.atleast_1d(whole_numbers(sizes, "sizes", scalar=True))
    K = len(sizes)
    if not K or sizes.min() < 1 or sizes.astype(float).sum() > MAX_NODES:
        raise ValueError(
            f"sizes must be positive integers, one per cluster, at most {MAX_NODES} in all, got "
            f"{sizes.tolist()}."
        )
    inner = real_array(p_in, "p_in")
    if inner.shape not in {(), (K,)}:
        raise ValueError(
            f"p_in must be one number or one for each of the {K} clusters, got shape "
            f"{inner.shape}."
        )
    if not ((inner >= 0) & (inner <= 1)).all():
        raise ValueError(f"p_in must lie in [0, 1], got {p_in!r}.")
    inner, size = np.broadcast_to(inner, (K,)), sizes.astype(float)
    expected = 0.5 * ((inner - p_out) @ size**2 + p_out * size.sum() ** 2)
    if expected > MAX_EDGES:
        raise ValueError(
            f"sizes, p_in and p_out ask for some {expected:.2g} edges, more than {MAX_EDGES}: "
            "lower them."
        )
    rng = check_random_state(random_state)
    first = np.concatenate([[0], np.cumsum(sizes)])
    heads, tails = [], []
    for k in range(K):
        for m in range(k, K):
            if k == m:
                i, j = _triangle(_draw_pairs(sizes[k] * (sizes[k] - 1) // 2, inner[k], rng))
            else:
                j, i = np.divmod(_draw_pairs(sizes[k] * sizes[m], p_out, rng), sizes[k])
            heads.append(first[k] + i)
            tails.append(first[m] + j)
    heads, tails = np.concatenate(heads), np.concatenate(tails)
    order = np.lexsort((tails, heads))
    graph = Graph(int(sizes.sum()), heads[order], tails[order], weight)
    return graph, np.repeat(np.arange(K), sizes)


def _draw_pairs(n_pairs: int, p: float, rng: np.random.RandomState) -> Array:
    """Numbers of the pairs that are joined, each with probability `p`."""
    return sample_without_replacement(n_pairs, rng.binomial(n_pairs, p), random_state=rng)


def _triangle(number: Array) -> tuple[Array, Array]:
    """Pairs ``i < j`` of their numbers ``j (j - 1) / 2 + i``."""
    j = np.floor((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0).astype(np.intp)
    # Roots of large numbers may round across an integer.
    j -= j * (j - 1) // 2 > number
    j += j * (j + 1) // 2 <= number
    return number - j * (j - 1) // 2, j


def _weighted(n_nodes: int, heads: Array, tails: Array, weight: ArrayLike) -> Graph:
    """Graph with weights that may be 0: no edge there."""
    weights = real_array(weight, "weight")
    if weights.shape not in {(), heads.shape}:
        raise ValueError(
            f"weight must be one number or one for each of the {len(heads)} edges, got shape "
            f"{weights.shape}."
        )
    weights = np.broadcast_to(weights, heads.shape)
    keep = weights != 0
    with about("weight"):
        return Graph(n_nodes, heads[keep], tails[keep], weights[keep])
