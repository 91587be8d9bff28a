"""Well-connected clusters, Definition 1 of the GTV paper: what a graph can bring every client.

A cluster C is well-connected if a node i_0 of it can supply the others: if for every non-empty
set S of them ``sum_{i in S} c_i < w(S, C - S)``, with ``c_i`` the demand of a node.  A flow from
i_0 that brings every node more than its demand proves it; a set that asks for as much as its edges
carry rules out every i_0 that is not in it.
"""

from fractions import Fraction

import numpy as np
from scipy.sparse.csgraph import breadth_first_order

from ..graphs import Graph
from ..numerics.maxflow import carry
from .enclosures import outer_degrees
from .inner_edges import EPS

# Part of the mean demand that a flow is asked to bring every node on top: more than its rounding.
SLACK = 1e-9


def boundaries(graph, labels):
    """Sums of the weights from every node, and from every cluster, to other clusters.

    Returns
    -------
    outer : ndarray of shape (n,)
    boundary : ndarray of shape (K,)
    rounding : float
        Bound of the relative error of both, with a few more operations on them.
    """
    outer = outer_degrees(graph, labels)
    steps = graph.degrees(weighted=False).max(initial=0.0) + graph.n_nodes + 16.0
    return outer, np.bincount(labels, outer), EPS * float(steps)


class Demands:
    """Demands ``c_i`` of the nodes, (35), rounded and exact.

    Parameters
    ----------
    graph : Graph
        The graph.
    labels : ndarray of shape (n,)
        Cluster of each node, in 0..K-1.
    lam : float
        Weight of the penalty.
    delta, beta : ndarray of shape (n,)
        Clustering errors and smoothness; may be infinite.
    alpha : ndarray of shape (K,)
        Strong convexity.

    Attributes
    ----------
    values : ndarray of shape (n,)
        The demands.
    rounding : float
        Bound of their relative error.
    """

    def __init__(self, graph, labels, lam, delta, alpha, beta):
        self.graph, self.labels, self.lam = graph, labels, lam
        self.delta, self.alpha, self.beta = delta, alpha, beta
        outer, self.boundary, self.rounding = boundaries(graph, labels)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A cluster without a boundary has its own minimiser, however flat or curved it is.
            pull = beta * (self.boundary / alpha)[labels]
        pull = np.where((self.boundary == 0)[labels] | (beta == 0), 0.0, pull)
        self.values = outer + pull + delta / lam

    def total(self, nodes):
        """Sum of the demands of some nodes of one cluster, an exact number; all are finite."""
        graph, labels = self.graph, self.labels
        k = labels[nodes[0]]

        def outer(some):
            if graph.is_complete:
                away = len(some) * int((labels != k).sum())
                return away * Fraction(float(graph.weight))
            mine = np.zeros(graph.n_nodes, dtype=bool)
            mine[some] = True
            cut = labels[graph.heads] != labels[graph.tails]
            cut &= mine[graph.heads] | mine[graph.tails]
            return exact_sum(graph.weights[cut])

        total = outer(nodes) + exact_sum(self.delta[nodes]) / Fraction(float(self.lam))
        if self.boundary[k] > 0 and self.beta[nodes].any():
            boundary = outer(np.flatnonzero(labels == k))
            total += exact_sum(self.beta[nodes]) * boundary / Fraction(float(self.alpha[k]))
        return total


def exact_sum(values):
    """Sum of floats as a rational number."""
    return sum(map(Fraction, values.tolist()), Fraction(0))


def has_source(demands, nodes):
    """True if some node of a cluster can supply all others within its edges.

    Parameters
    ----------
    demands : Demands
        Demands of all nodes.
    nodes : ndarray
        The nodes of the cluster.

    Returns
    -------
    answer : bool or None
        True and False are proved in exact arithmetic; None where no flow has more than a
        `SLACK` to spare, and no set of nodes asks for as much as its edges carry.
    """
    graph, n = demands.graph, len(nodes)
    place = np.full(graph.n_nodes, -1)
    place[nodes] = np.arange(n)
    heads, tails = place[graph.heads], place[graph.tails]
    within = (heads >= 0) & (tails >= 0)
    part = Graph(n, heads[within], tails[within], graph.weights[within])
    need = demands.values[nodes]
    if part.components().max() > 0:
        return False
    if n == 1:
        return True
    # Nodes that no set rules out, and those of them that have not been tried.
    possible = np.ones(n, dtype=bool)
    # Inflow of a node passes its edges: only a source may ask for more, or for all.
    greedy = need >= part.degrees()
    for i in np.flatnonzero(greedy):
        if not possible.any():
            break
        only = np.arange(n) == i
        if _asks_too_much(part, only, demands, nodes):
            possible &= only
    candidates = possible & greedy if greedy.any() else possible.copy()
    if greedy.sum() > 1:
        candidates[:] = False
    links = part.adjacency()
    while candidates.any():
        first = np.flatnonzero(candidates)[np.argmax(need[candidates])]
        order = breadth_first_order(links, first, return_predecessors=False)
        order, m = order[candidates[order]], 1
        # A demand that several sources together cannot supply rules out all of them at once.
        while True:
            supplied, blocked = _supply(part, order[:m], need, demands.rounding)
            if supplied and m == 1:
                return True
            if supplied:
                break
            if blocked.any() and _asks_too_much(part, blocked, demands, nodes):
                possible &= blocked
            candidates[order[:m]] = False
            candidates &= blocked
            if m >= len(order):
                break
            m *= 2
    return None if possible.any() else False


def _asks_too_much(part, side, demands, nodes):
    """Whether a set of nodes asks for all that its edges to the rest carry, or for more."""
    across = part.weights[side[part.heads] != side[part.tails]]
    most, need = across.sum(), demands.values[nodes[side]].sum()
    count = float(len(across) + side.sum())
    rounding = (demands.rounding + EPS * count) * (most + need)
    if np.isinf(need) or abs(need - most) > rounding:
        return bool(need > most)
    return demands.total(nodes[side]) >= exact_sum(across)


def _supply(part, sources, need, rounding):
    """True if a flow from `sources` meets all needs; if not, the nodes that cannot be supplied."""
    n, total = part.n_nodes, need.sum()
    need = need.copy()
    need[sources] = 0.0
    others = np.ones(n, dtype=bool)
    others[sources] = False
    if not need.any():
        # Every set has edges to the rest, and asks for nothing.
        return True, ~others
    # A node that feeds the sources keeps their number out of the graph.
    heads = np.append(part.heads, np.full(len(sources), n))
    tails = np.append(part.tails, sources)
    capacities = np.append(part.weights, np.full(len(sources), 2.0 * total))
    outflow = np.append(np.where(others, -need - SLACK * need.mean(), 0.0), 0.0)
    outflow[n] = -outflow.sum()
    flow, _, blocked = carry(heads, tails, capacities, outflow)
    flow = flow[: part.n_edges]
    inflow = np.bincount(part.tails, flow, n) - np.bincount(part.heads, flow, n)
    size = np.abs(flow)
    size = np.bincount(part.tails, size, n) + np.bincount(part.heads, size, n)
    inflow -= EPS * (part.degrees(weighted=False) + 4.0) * size
    enough = inflow > need * (1.0 + rounding)
    return not blocked.any() and bool(enough[others].all()), blocked[:n]
