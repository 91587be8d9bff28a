"""Flows of numbers and cuts of graphs, by integer maximum flows.

A flow of given outflow within given capacities exists iff no set of nodes asks for more than the
edges around it can carry; a maximum flow finds the one or the other.  scipy's takes integers of
32 bits.  Here capacities and outflows are scaled and rounded down, and what rounding leaves over
is sent in further rounds through the capacity that is left, in ever finer units.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

# Units of the outflow of one round: two capacities of an edge and a sum of both fit 32 bits.
UNITS = 2**30 - 1
# Rounds; each has the finer units, so that the third ends below the precision of doubles.
MAX_ROUNDS = 4
# Share of the outflow that counts as delivered if it is missing.
NOTHING = 1e-14


def carry(heads, tails, capacities, outflow):
    """Flow within capacities that has a given outflow, or a set of nodes that prevents it.

    Parameters
    ----------
    heads, tails : ndarray of shape (n_edges,)
        Ends of the edges, each edge once.
    capacities : ndarray of shape (n_edges,)
        Non-negative bounds of ``|u_e|``.
    outflow : ndarray of shape (n,)
        Net outflow of every node; sums to zero.

    Returns
    -------
    flow : ndarray of shape (n_edges,)
        From heads to tails, within the capacities.
    missing : ndarray of shape (n,)
        Outflow that it does not have; rounding at most where there is a flow that has all.
    blocked : ndarray of shape (n,) of bool
        The smallest set of nodes with edges too weak for its demand; empty if only rounding is
        missing.
    """
    n, E = len(outflow), len(heads)
    flow, missing = np.zeros(E), np.array(outflow, dtype=float)
    limit = NOTHING * np.maximum(missing, 0.0).sum()
    for _ in range(MAX_ROUNDS):
        total = np.maximum(missing, 0.0).sum()
        if total <= limit:
            break
        scale = UNITS / total
        network, sent, residual = _round(heads, tails, capacities, flow, missing, scale)
        flow = np.clip(flow + sent / scale, -capacities, capacities)
        moved = np.bincount(heads, flow, n) - np.bincount(tails, flow, n)
        missing = outflow - moved
        left = UNITS - network
        # Rounding takes less than a unit from every node and from either way of every edge.
        if left > 2 * (n + E):
            return flow, missing, _upstream(residual, n)
    blocked = np.zeros(n, dtype=bool)
    if np.maximum(missing, 0.0).sum() > 1e3 * max(limit, np.finfo(float).tiny):
        blocked = _upstream(residual, n)
    return flow, missing, blocked


def _round(heads, tails, capacities, flow, missing, scale):
    """One integer maximum flow: its value, the flow of the edges, the residual network."""
    n = len(missing)

    def units(values):
        return np.floor(np.minimum(np.maximum(values, 0.0) * scale, UNITS)).astype(np.int32)

    give, take = units(missing), units(-missing)
    ends = np.concatenate([heads, tails, np.full(n, n), np.arange(n)])
    others = np.concatenate([tails, heads, np.arange(n), np.full(n, n + 1)])
    data = np.concatenate([units(capacities - flow), units(capacities + flow), give, take])
    network = sparse.csr_array(sparse.coo_array((data, (ends, others)), shape=(n + 2, n + 2)))
    result = maximum_flow(network, n, n + 1)
    residual = sparse.csr_array(network - result.flow)
    residual.eliminate_zeros()
    found = sparse.coo_array(result.flow)
    keys = heads * (n + 2) + tails
    order = np.argsort(keys)
    rows, columns = found.coords
    place = np.searchsorted(keys[order], rows.astype(np.int64) * (n + 2) + columns)
    place = order[np.minimum(place, len(keys) - 1)] if len(keys) else place
    mine = (heads[place] == rows) & (tails[place] == columns) if len(keys) else []
    sent = np.zeros(len(heads))
    sent[place[mine]] = found.data[mine]
    return int(result.flow_value), sent, residual


def _upstream(residual, n):
    """Nodes from which the sink can be reached: the smallest sink side of a minimum cut."""
    reached = breadth_first_order(
        sparse.csr_array(residual.T), n + 1, directed=True, return_predecessors=False
    )
    side = np.zeros(n + 2, dtype=bool)
    side[reached] = True
    return side[:n]


def largest_cut(heads, tails, weights, outflow):
    """Cut that has to carry most: the set A of largest ``sum_A outflow / w(A, rest)``.

    By Dinkelbach's method: at the ratio of the best cut so far a flow either exists, and the cut
    is the best of all, or its blocked set is a better one.

    Parameters
    ----------
    heads, tails, weights : ndarray of shape (n_edges,)
        A connected graph with positive weights.
    outflow : ndarray of shape (n,)
        Net outflow of every node; sums to zero.

    Returns
    -------
    ratio : float
        Value of the best cut: the least t for which flows with ``|u_e| <= t w_e`` exist.
    side : ndarray of shape (n,) of bool
        Its set A.
    flow : ndarray of shape (n_edges,)
        One with ``|u_e| <= ratio w_e`` and the outflow, but for rounding.
    """
    n = len(outflow)
    degree = np.bincount(heads, weights, n) + np.bincount(tails, weights, n)
    start = int(np.argmax(np.abs(outflow) / np.where(degree > 0, degree, np.inf)))
    side = np.zeros(n, dtype=bool)
    side[start] = True
    side = side if outflow[start] >= 0 else ~side
    ratio = _cut_ratio(heads, tails, weights, outflow, side)
    flow = np.zeros(len(heads))
    while ratio > 0:
        flow, _, blocked = carry(heads, tails, ratio * weights, outflow)
        if not blocked.any() or blocked.all():
            break
        better = _cut_ratio(heads, tails, weights, outflow, ~blocked)
        if better <= ratio * (1.0 + 1e-13):
            break
        ratio, side = better, ~blocked
    return float(ratio), side, flow


def _cut_ratio(heads, tails, weights, outflow, side):
    """``sum_A outflow / w(A, rest)``; 0 where A is all or nothing."""
    across = weights[side[heads] != side[tails]].sum()
    return outflow[side].sum() / across if across > 0 else 0.0
