r"""Flows within the clusters of a partition: how much every edge has to carry at least.

Given an outflow ``b_i`` of every node that sums to zero over each cluster, the flow value of a
cluster is

    t  =  min  max_e |u_e| / w_e            over flows u inside it with  (D'u)_i = b_i
       =  max  <b, p> / sum_e w_e |p_i - p_j|                over potentials p of its nodes,

a second-order cone problem and its dual (``|u_e|`` is the dual norm where the penalty is not
Euclidean).  Any flow of that outflow bounds `t` from above, any potential from below; a cut is
the potential that is one vector on a set of nodes and zero elsewhere.

Both bounds hold in exact arithmetic, for the outflows as they are stored and for all others within
given distances of them.  A computed flow has its outflow up to rounding: the rest is sent along a
spanning tree of heavy edges, and the remainder is bounded by the tree
(:class:`skcfl.fusion.inner_edges.Inside`).  Rounding weighs most on light edges, and there the
bounds differ.  The work of a potential is a sum of known length, the terms of its variation are
positive.

With one coordinate, and for each coordinate of the penalty "l1", the best potential is a cut, and
maximum flows find it (:mod:`skcfl.numerics.maxflow`).  Otherwise:

If an edge array fits in memory both sides come from a Douglas-Rachford iteration between the flows
of the given outflow and the balls ``|u_e| <= radius * w_e``: if they meet it finds a flow, if not,
its displacement tends to a potential that separates them. If it does not fit, accelerated gradient
ascent looks for potentials with a flow, clipped to the balls, of the given outflow, and stores no
edge.
"""

import numpy as np

from ..numerics.maxflow import largest_cut
from .inner_edges import EPS, Inside

# Numbers of an edge array up to which one is stored.
MAX_STORED = 10_000_000
# Iterations between two looks for bounds from below.
LOOK_EVERY = 5
# Target between the bounds, on a logarithmic scale.
AIM = 0.65
# Part of the room between a bound from below and a level that is kept free, and most of it.
ROOM, MOST_ROOM = 0.1, 1e-3
# Relative distance of bounds that rest on one cut and one flow: all but rounding.
EXACT = 1e-9
# Share of the tolerance by which a flow has to be better to be checked closely.
NEWS = 0.1


def flow_values(
    graph,
    penalty,
    labels,
    outflow,
    *,
    spread=None,
    level=None,
    tol=1e-3,
    max_iter=100,
    start=None,
    first_refusal=False,
):
    """Bounds of the flow value of every cluster, which hold in exact arithmetic.

    Parameters
    ----------
    graph : Graph
        The graph.
    penalty : Penalty
        A norm; edges carry vectors measured in its dual norm.
    labels : ndarray of shape (n_nodes,)
        Cluster of each node, 0..K-1.
    outflow : ndarray of shape (n_nodes, d)
        Net outflow of every node; sums to zero over each cluster.
    spread : ndarray of shape (n_nodes,) or callable, default=None
        Distance of the true outflows from these, at most, in the Euclidean norm; 0 by default.  An
        expensive one may be a callable, which is called if all values are at most the `level`: its
        result is then added to the upper bounds.
    level : float, default=None
        Stop where a value is known to be at most, or more than, this.  None asks for the
        largest of the values itself.
    tol : float
        Relative distance of the bounds to reach where there is no `level`.
    max_iter : int
        Most iterations.
    start : callable, default=None
        Called with the `Inside` of some clusters; returns a flow near the one sought, on its
        blocks.
    first_refusal : bool
        True if one cluster above the `level` is answer enough.

    Returns
    -------
    upper, lower : ndarray of shape (K,)
        Bounds of the values; both infinite where a cluster is not connected by its own edges.
    potential : ndarray of shape (n_nodes, d)
        Potentials that give the lower bounds.
    """
    d = outflow.shape[1]
    inside = Inside(graph, penalty, labels, d)
    separable = d == 1 or not penalty.fuses
    tol = EXACT if separable else tol
    late = spread if callable(spread) else None
    spread = np.zeros(len(outflow)) if spread is None or late is not None else spread
    upper, lower = np.full((2, inside.n_clusters), np.inf)
    potential = np.zeros(outflow.shape)

    def put(search):
        some = search.inside
        upper[some.clusters] = search.upper
        lower[some.clusters] = search.lower
        potential[some.nodes] = search.potential

    def undecided():
        if level is None:
            # A value that is not the largest need not be known better.
            return (upper > (1.0 + tol) * lower) & (upper > (1.0 + tol) * lower.max(initial=0.0))
        if first_refusal and (lower > level).any():
            return np.zeros(len(upper), dtype=bool)
        return (upper > level) & (lower <= level)

    if not inside.connected.all():
        inside = Inside(graph, penalty, labels, d, np.flatnonzero(inside.connected))
    if not inside.n:
        return upper, lower, potential
    whole = inside

    def bounds():
        above = upper
        if late is not None and (upper <= level).all():
            above = upper + whole.spread(late()[whole.nodes], outflow[whole.nodes])
        return above, lower, potential

    search = _Search(inside, outflow[inside.nodes], spread[inside.nodes])
    put(search)
    todo = np.flatnonzero(undecided())
    if not len(todo):
        return bounds()
    stored = inside.n_edges * d <= MAX_STORED
    kind = _Search if separable else _Alternating if stored else _Ascent
    if not np.array_equal(todo, inside.clusters):
        inside = Inside(graph, penalty, labels, d, todo)
    search = search.part(kind, inside)
    if separable:
        search.find_best_cuts()
        put(search)
        return bounds()
    flow = start(inside) if stored and start is not None else None
    search.aim = level, tol
    for k in range(max_iter):
        if level is None:
            low = np.maximum(search.lower, 1e-6 * search.upper)
            search.radius = low ** (1.0 - AIM) * search.upper**AIM
        elif stored:
            # Short of the level, where there is room: on the very edge flows are found slowly.
            room = np.maximum(1.0 - search.lower / level, 0.0)
            search.radius = level * (1.0 - np.clip(ROOM * room, 1e-9, MOST_ROOM))
        else:
            # The flows found saturate their edges: aim below the level to end below it.
            search.radius = np.where(search.lower > 0.97 * level, 0.998, 0.98) * level
        if k == 0:
            search.begin(flow)
        search.step()
        if k % LOOK_EVERY == LOOK_EVERY - 1:
            search.look()
        elif level is None or (search.upper > level).any():
            continue
        put(search)
        if not undecided().any():
            break
    search.look()
    put(search)
    return bounds()


class _Search:
    """Bounds of the flow values at once: from the flow of least energy and from cuts.

    On the complete graph the flow of least energy is that of the convex clustering paper's
    Theorem 1.  But for rounding the bounds are exact on trees, and on the complete graph where
    coordinates do not see each other.

    Parameters
    ----------
    inside : Inside
        Some clusters.
    b : ndarray of shape (n, d)
        Outflows.
    slack : ndarray of shape (n,)
        How far the outflows meant may be from these.

    Attributes
    ----------
    upper : ndarray of shape (n_clusters,)
        Least bound from above of the flows met.
    lower : ndarray of shape (n_clusters,)
        Largest bound from below.
    potential : ndarray of shape (n, d)
        Potentials that give it, cluster by cluster.
    energy : ndarray of shape (n, d) or None
        Potentials of the flow of least energy, where it was looked at.

    Iterative searches have three more methods: ``begin(flow)`` starts at a flow, that of least
    energy by default; ``step()`` is an iteration, between which `radius` (n_clusters,) may
    change; ``look()`` looks for bounds from below.
    """

    def __init__(self, inside, b, slack):
        self.inside, self.b, self.slack = inside, b, slack
        self.wide = inside.spread(slack, b)
        self.lower = np.zeros(inside.n_clusters)
        self.upper = np.where(inside.sizes > 1, np.inf, 0.0)
        self.potential, self.energy = np.zeros_like(b), None
        self.try_potential(self._single_nodes())
        if inside.complete:
            self._spread_evenly()
            if inside.d == 1 or not inside.penalty.fuses:
                self._sorted_cuts()
            return
        (block,) = inside.blocks
        self.try_flow([np.zeros((inside.d, *block.shape))])
        self.try_potential(self._tree_cuts())
        if (inside.edge_counts > inside.sizes - 1).any():
            self.energy = inside.potentials(b)
            self.try_flow(inside.flow(self.energy))
            self.try_potential(self._centred(self.energy))

    def part(self, kind, inside):
        """Search of another kind in some of the clusters, with the bounds known so far."""
        search = object.__new__(kind)
        search.inside = inside
        search.upper, search.lower, search.wide = (
            values[np.searchsorted(self.inside.clusters, inside.clusters)]
            for values in (self.upper, self.lower, self.wide)
        )
        place = np.empty(int(self.inside.nodes.max()) + 1, dtype=np.intp)
        place[self.inside.nodes] = np.arange(self.inside.n)
        some = place[inside.nodes]
        search.b, search.slack = self.b[some], self.slack[some]
        search.potential = self.potential[some]
        search.energy = None if self.energy is None else self.energy[some]
        return search

    def _centred(self, p):
        """The same potentials about zero, so that their work has small terms."""
        inside = self.inside
        return p - ((inside.member @ p) / inside.sizes[:, None])[inside.owner]

    def _direction(self, b):
        """Vectors y of unit norm with ``<y, b_i>`` the dual norm of b_i: (n, d) -> (n, d)."""
        if self.inside.penalty.fuses:
            size = np.linalg.norm(b, axis=1, keepdims=True)
            return np.divide(b, size, out=np.zeros_like(b), where=size > 0)
        most = np.arange(len(b)), np.abs(b).argmax(axis=1)
        vertex = np.zeros_like(b)
        vertex[most] = np.sign(b[most])
        return vertex

    def _single_nodes(self):
        """Potential of the best cut of a single node in every cluster."""
        inside = self.inside
        size = inside.penalty.dual_norm(self.b.T)
        value = np.divide(size, inside.inner, out=np.zeros(inside.n), where=inside.inner > 0)
        order = np.lexsort((-value, inside.owner))
        best = order[np.searchsorted(inside.owner[order], np.arange(inside.n_clusters))]
        p = np.zeros_like(self.b)
        p[best] = self._direction(self.b[best])
        return p

    def _spread_evenly(self):
        """The flow of least energy on the complete graph, ``(b_i - b_j) / n``."""
        inside = self.inside
        self.energy = inside.potentials(self.b)
        self.upper = np.minimum(self.upper, inside.least_energy(self.b, self.slack)[1])
        self.try_potential(self._centred(self.energy))

    def _sorted_cuts(self):
        """The best cuts of the complete graph: of m nodes, those of the largest outflow."""
        inside, last = self.inside, np.cumsum(self.inside.sizes)
        p, best = np.zeros_like(self.b), np.zeros(inside.n_clusters)
        upper = np.zeros(inside.n_clusters)
        for k in np.flatnonzero(inside.sizes > 1):
            n = inside.sizes[k]
            mine, m = slice(last[k] - n, last[k]), np.arange(1, n)
            wide = np.cumsum(-np.sort(-self.slack[mine]))[:-1]
            for j in range(inside.d):
                order = np.argsort(-self.b[mine, j])
                b, price = self.b[mine, j][order], inside.weight * m * (n - m)
                work = np.cumsum(b)[:-1]
                above = work + wide + EPS * (m + 2.0) * np.cumsum(np.abs(b))[:-1]
                upper[k] = max(upper[k], (above / price).max() * (1.0 + 8.0 * EPS))
                ratios = work / price
                if ratios.max() > best[k]:
                    best[k], count = ratios.max(), int(ratios.argmax()) + 1
                    p[mine] = 0.0
                    few = 2 * count <= n
                    side = order[:count] if few else order[count:]
                    p[mine.start + side, j] = 1.0 if few else -1.0
        self.upper = np.minimum(self.upper, upper)
        self.try_potential(p)

    def _tree_cuts(self):
        """Potential of the cut that splits a spanning tree at its largest flow."""
        inside, tree, p = self.inside, self.inside.tree, np.zeros_like(self.b)
        if not len(tree.edges):
            return p
        flow = tree.route(self.b)
        load = inside.penalty.dual_norm(flow) / tree.weights
        owner = inside.owner[tree.child]
        order = np.lexsort((-load, owner))
        cut = order[np.flatnonzero(np.diff(owner[order], prepend=-1))]
        which, sign = tree.side(cut, inside.owner, inside.n_clusters)
        beyond = np.where(tree.down[cut], flow[:, cut], -flow[:, cut]).T
        mine = which >= 0
        p[mine] = (self._direction(beyond) * sign[:, None])[which[mine]]
        return p

    def try_flow(self, flow):
        """Keep the bounds of a flow, block by block, where they are better."""
        self.upper = np.minimum(self.upper, self.inside.bound(flow, self.b) + self.wide)

    def try_potential(self, p):
        """Keep a potential in the clusters where it gives a better bound from below."""
        inside, K = self.inside, self.inside.n_clusters
        terms = self.b * p
        work = np.bincount(inside.owner, terms.sum(axis=1), K)
        count = np.bincount(inside.owner, p.any(axis=1), K)
        size = np.bincount(inside.owner, np.abs(terms).sum(axis=1), K)
        size *= EPS * (count + inside.d + 4.0)
        size += np.bincount(inside.owner, self.slack * np.linalg.norm(p, axis=1), K)
        variation = inside.variation(p) * (1.0 + EPS * (inside.edge_counts + inside.d + 8.0))
        work = np.maximum(work - size, 0.0)
        bound = np.divide(work, variation, out=np.zeros_like(work), where=variation > 0)
        bound *= 1.0 - 4.0 * EPS
        better = bound > self.lower
        self.lower = np.where(better, bound, self.lower)
        self.potential = np.where(better[inside.owner][:, None], p, self.potential)

    def is_news(self, largest):
        """True if flows with these ``|u_e| / w_e`` are worth a closer look."""
        level, tol = self.aim
        if level is None:
            return (largest < (1.0 - NEWS * tol) * self.upper).any()
        return ((largest <= level) & (self.upper > level)).any()

    def find_best_cuts(self):
        """Find the best cuts, and the flows that show that they are, by maximum flows.

        For coordinates that do not see each other: a single one, or with the penalty "l1", which
        has the largest entry for its dual norm.
        """
        inside = self.inside
        if inside.complete:
            return  # the search has begun with them
        (block,) = inside.blocks
        last, owner = np.cumsum(inside.sizes), inside.owner[block.heads]
        p, flow = np.zeros_like(self.b), np.zeros((inside.d, *block.shape))
        for k in range(inside.n_clusters):
            # The nodes of a cluster follow each other.
            mine, best = slice(last[k] - inside.sizes[k], last[k]), 0.0
            edges = np.flatnonzero(owner == k)
            heads, tails = block.heads[edges] - mine.start, block.tails[edges] - mine.start
            for j in range(inside.d):
                ratio, side, flow[j, edges] = largest_cut(
                    heads, tails, block.weights[edges], self.b[mine, j]
                )
                if ratio > best:
                    best, few = ratio, 2 * side.sum() <= len(side)
                    p[mine] = 0.0
                    p[mine, j] = side if few else np.where(side, 0.0, -1.0)
        self.try_flow([flow])
        self.try_potential(p)


class _Alternating(_Search):
    """Douglas-Rachford: ``z <- P(z) + a - (2 P(z) - z)`` with P the projection into the balls
    and a the nearest flow, in energy, to ``2 P(z) - z`` that has the outflow asked for.
    """  # noqa: D205

    def begin(self, flow):
        if flow is None:
            e = self.inside.potentials(self.b) if self.energy is None else self.energy
            flow = self.inside.flow(e)
        self.flow = flow
        self.clips = [np.empty_like(z) for z in self.flow]
        self._clip()

    def step(self):
        inside = self.inside
        eT = np.ascontiguousarray(inside.potentials(self.b - self.mirrored).T)
        largest = np.zeros(inside.n_clusters)
        for (block, owner, z), P in zip(inside.each(self.flow), self.clips, strict=True):
            move = block.difference(eT)
            move *= block.weights
            np.subtract(P, z, out=z)
            z += P
            z += move
            inside.raise_to(largest, block, owner, z)
            P += move
        # The flow of the outflow asked for is where the clipped ones go, and the reverse.
        self.flow, self.clips = self.clips, self.flow
        if self.is_news(largest):
            self.try_flow(self.clips)
        self._clip()

    def look(self):
        # The outflow that the nearest flow within the balls lacks drives nodes to different sides.
        self.try_potential(self._centred(self.inside.potentials(self.b - self.clipped)))

    def _clip(self):
        """Project the flows into the balls; the net outflows of both."""
        inside, penalty = self.inside, self.inside.penalty
        mirrored, clipped = np.zeros((2, inside.d, inside.n))
        for (block, owner, z), P in zip(inside.each(self.flow), self.clips, strict=True):
            P[...] = penalty.project(z, self.radius[owner] * block.weights)
            block.add_divergence(P, clipped)
            block.add_divergence(z, mirrored)
        self.clipped = clipped.T
        self.mirrored = 2.0 * self.clipped - mirrored.T


class _Ascent(_Search):
    """Accelerated ascent of the dual of the least energy within the balls; no edge is stored.

    The flow of potentials y is ``P(w D y)``; its gradient step, in the metric of the Laplacian,
    is the potential of the outflow that is missing.
    """

    def begin(self, flow):
        self.p = self.extrapolated = (
            self.inside.potentials(self.b) if self.energy is None else self.energy
        )
        self.momentum = np.ones(self.inside.n_clusters)
        self._sweep(None, None)

    def step(self):
        inside = self.inside
        e = inside.potentials(self.missing)
        p, last = self.extrapolated + e, self.extrapolated
        # Momentum that points downhill is dropped, cluster by cluster.
        slope = np.bincount(
            inside.owner, (self.missing * (p - self.p)).sum(axis=1), inside.n_clusters
        )
        t = np.where(slope < 0, 1.0, self.momentum)
        self.momentum = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
        self.extrapolated = p + ((t - 1.0) / self.momentum)[inside.owner][:, None] * (p - self.p)
        self.p = p
        self._sweep(last, e)

    def look(self):
        self.try_potential(self._centred(self.extrapolated))
        self.try_potential(self._centred(self.inside.potentials(self.missing)))

    def _sweep(self, last, e):
        inside, penalty = self.inside, self.inside.penalty
        clipped = np.zeros((inside.d, inside.n))
        largest = np.zeros(inside.n_clusters)
        new = np.ascontiguousarray(self.extrapolated.T)
        if last is not None:
            old, more = np.ascontiguousarray(last.T), np.ascontiguousarray(e.T)
        for block, owner, _ in inside.each():
            w = block.weights
            if last is not None:
                inside.raise_to(largest, block, owner, self._moved(block, owner, old, more))
            u = penalty.project(w * block.difference(new), self.radius[owner] * w)
            block.add_divergence(u, clipped)
        if last is not None and self.is_news(largest):
            blocks = inside.each()
            self.try_flow(self._moved(block, owner, old, more) for block, owner, _ in blocks)
        self.used = self.radius.copy()
        self.missing = self.b - clipped.T

    def _moved(self, block, owner, old, more):
        """Flow of a block that has the outflow asked for."""
        w = block.weights
        u = self.inside.penalty.project(w * block.difference(old), self.used[owner] * w)
        return u + w * block.difference(more)
