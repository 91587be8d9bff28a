r"""Flows within the clusters of a partition: how much every edge has to carry at least.

Given an outflow ``b_i`` of every node that sums to zero over each cluster, the flow value of a
cluster is

    t  =  min  max_e |u_e| / w_e            over flows u inside it with  (D'u)_i = b_i
       =  max  <b, p> / sum_e w_e |p_i - p_j|                over potentials p of its nodes,

a second-order cone problem and its dual (``|u_e|`` is the dual norm where the penalty is not
Euclidean).  Any flow of that outflow bounds `t` from above, any potential from below; a cut is
the potential that is one vector on a set of nodes and zero elsewhere.

With one coordinate, and for each coordinate of the penalty "l1", the best potential is a cut, and
maximum flows find it exactly (:mod:`skcfl._cuts`).  Otherwise:

Where an edge array fits in memory both sides come from a Douglas-Rachford iteration between
the flows of the outflow asked for and the balls ``|u_e| <= radius * w_e``: where they meet it
finds a flow, where they do not, its displacement tends to a potential that separates them.
Where it does not fit, accelerated gradient ascent looks for potentials whose flow, clipped to
the balls, has the outflow asked for, and stores no edge.
"""

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from ._cuts import largest_cut
from ._edges import EdgeList, square_tiles
from ._newton import solve_columns

# Nodes up to which Laplacian systems are factorised.
MAX_FACTOR = 3000
# Numbers of an edge array up to which one is stored.
MAX_STORED = 10_000_000
# Iterations between two looks for bounds from below.
LOOK_EVERY = 5
# Where to aim between the bounds, on a logarithmic scale.
AIM = 0.65


def flow_values(
    graph,
    penalty,
    labels,
    outflow,
    *,
    level=None,
    tol=1e-3,
    max_iter=100,
    start=None,
    first_refusal=False,
):
    """Bounds of the flow value of every cluster.

    Parameters
    ----------
    graph : Graph
        The graph.
    penalty : Penalty
        A norm; edges carry vectors measured in its dual norm.
    labels : ndarray of shape (n_nodes,)
        Cluster of each node, 0..K-1.
    outflow : ndarray of shape (n_nodes, d)
        What leaves every node; sums to zero over each cluster.
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
        Whether one cluster above the `level` is answer enough.

    Returns
    -------
    upper, lower : ndarray of shape (K,)
        Bounds of the values; both infinite where a cluster is not connected by its own edges.
    potential : ndarray of shape (n_nodes, d)
        What gives the lower bounds.
    """
    d = outflow.shape[1]
    inside = Inside(graph, penalty, labels, d)
    separable = d == 1 or not penalty.fuses
    tol = 0.0 if separable else tol
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
    if inside.n:
        put(_Search(inside, outflow[inside.nodes]))
    todo = np.flatnonzero(undecided())
    if not len(todo):
        return upper, lower, potential
    inside = Inside(graph, penalty, labels, d, todo)
    if separable:
        put(_Cuts(inside, outflow[inside.nodes]))
        return upper, lower, potential
    stored = inside.n_edges * d <= MAX_STORED
    search = (_Alternating if stored else _Ascent)(inside, outflow[inside.nodes])
    flow = start(inside) if stored and start is not None else None
    for k in range(max_iter):
        if level is None:
            low = np.maximum(search.lower, 1e-6 * search.upper)
            search.radius = low ** (1.0 - AIM) * search.upper**AIM
        elif stored:
            search.radius = np.full(len(todo), level * (1.0 - 1e-9))
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
    return upper, lower, potential


def membership(labels, K):
    """Matrix (K, n_nodes) that sums nodes by cluster; stored by nodes it is made at once."""
    n = len(labels)
    return sparse.csc_array((np.ones(n), labels, np.arange(n + 1)), shape=(K, n))


class Inside:
    """Edges within some clusters of a partition, its nodes sorted by cluster.

    Parameters
    ----------
    graph : Graph
        The graph.
    penalty : Penalty
        A norm.
    labels : ndarray of shape (n_nodes,)
        Cluster of each node, 0..K-1.
    d : int
        Coordinates of a flow.
    clusters : ndarray, default=None
        The clusters to look at; all by default.

    Attributes
    ----------
    nodes : ndarray of shape (n,)
        The nodes of these clusters; node arrays of the methods follow this order.
    owner : ndarray of shape (n,)
        Place of each node's cluster in `clusters`.
    connected : ndarray of shape (n_clusters,) of bool
        Which clusters are connected by their own edges: others have no flow in general.
    """

    def __init__(self, graph, penalty, labels, d, clusters=None):
        K = int(labels.max()) + 1
        self.clusters = np.arange(K) if clusters is None else np.asarray(clusters)
        place = np.full(K, -1)
        place[self.clusters] = np.arange(len(self.clusters))
        mine = np.flatnonzero(place[labels] >= 0)
        self.nodes = mine[np.argsort(place[labels[mine]], kind="stable")]
        self.owner = place[labels[self.nodes]]
        self.penalty = penalty
        self.n_clusters, self.n, self.d = len(self.clusters), len(self.nodes), d
        self.sizes = np.bincount(self.owner, minlength=self.n_clusters)
        self.member = membership(self.owner, self.n_clusters)
        self.complete = graph.is_complete
        if self.complete:
            self._make_tiles(graph.weight)
        else:
            self._make_list(graph)

    def _make_tiles(self, weight):
        """Square tiles within each cluster."""
        self.weight = weight
        self.connected = np.ones(self.n_clusters, dtype=bool)
        self.edge_counts = self.sizes * (self.sizes - 1) // 2
        self.n_edges = int(self.edge_counts.sum())
        self.inner = weight * (self.sizes[self.owner] - 1.0)
        self.blocks, self.block_owner = [], []
        first = np.concatenate([[0], np.cumsum(self.sizes)])
        for k in np.flatnonzero(self.sizes > 1):
            tiles = square_tiles(first[k], first[k + 1], self.d, weight)
            self.blocks += tiles
            self.block_owner += [k] * len(tiles)

    def _make_list(self, graph):
        """One list of edges; Laplacian with one node of each component held at 0."""
        place = np.full(graph.n_nodes, -1)
        place[self.nodes] = np.arange(self.n)
        heads, tails = place[graph.heads], place[graph.tails]
        both = (heads >= 0) & (tails >= 0)
        both[both] = self.owner[heads[both]] == self.owner[tails[both]]
        self.kept = np.flatnonzero(both)
        heads, tails, w = heads[both], tails[both], graph.weights[both]
        self.n_edges = len(heads)
        self.edge_counts = np.bincount(self.owner[heads], minlength=self.n_clusters)
        self.blocks = [EdgeList(heads, tails, w, self.n)]
        self.block_owner = [self.owner[heads]]
        A = sparse.csr_array(sparse.coo_array((w, (heads, tails)), shape=(self.n, self.n)))
        A = A + A.T
        self.inner = A @ np.ones(self.n)
        component = connected_components(A, directed=False)[1]
        held = np.unique(component, return_index=True)[1]
        self.connected = np.bincount(self.owner[held], minlength=self.n_clusters) == 1
        free = np.ones(self.n, dtype=bool)
        free[held] = False
        self.free = np.flatnonzero(free)
        L = sparse.csr_array(sparse.diags_array(self.inner) - A)
        self.system = sparse.csc_array(L[self.free][:, self.free])
        self.factor = splu(self.system) if 0 < len(self.free) <= MAX_FACTOR else None

    def potentials(self, b):
        """Potentials p with ``D' w D p = b`` within clusters, (n, d).

        ``w D p`` is then the flow of outflow `b` of least energy ``sum_e |u_e|^2 / w_e``.
        """
        b = self.balance(b)
        if self.complete:
            return b / (self.weight * self.sizes[self.owner])[:, None]
        p = np.zeros_like(b)
        if len(self.free):
            rhs = np.ascontiguousarray(b[self.free])
            if self.factor is not None:
                p[self.free] = self.factor.solve(rhs)
            else:
                p[self.free] = solve_columns(self.system, rhs)
        return p

    def balance(self, b):
        """Outflows that sum to zero over every cluster: what is left over is shared."""
        return b - ((self.member @ b) / self.sizes[:, None])[self.owner]

    def each(self, arrays=None):
        """Blocks of edges with their clusters, and one array of each block."""
        arrays = [None] * len(self.blocks) if arrays is None else arrays
        return zip(self.blocks, self.block_owner, arrays, strict=True)

    def flow(self, p):
        """``w D p``, block by block."""
        pT = np.ascontiguousarray(p.T)
        return [block.weights * block.difference(pT) for block in self.blocks]

    def variation(self, p):
        """``sum_e w_e |p_i - p_j|`` of every cluster."""
        pT = np.ascontiguousarray(p.T)
        out = np.zeros(self.n_clusters)
        for block, owner, _ in self.each():
            size = block.weights * self.penalty.value(block.difference(pT))
            if self.complete:
                out[owner] += block.total(size)
            else:
                out += np.bincount(owner, size, self.n_clusters)
        return out

    def largest(self, p):
        """Largest ``|u_e| / w_e`` of every cluster for ``u = w D p``, which is not stored."""
        pT = np.ascontiguousarray(p.T)
        out = np.zeros(self.n_clusters)
        for block, owner, _ in self.each():
            self.raise_to(out, block, owner, block.weights * block.difference(pT))
        return out

    def raise_to(self, out, block, owner, u):
        """Raise values of clusters to the largest ``|u_e| / w_e`` of a block."""
        size = self.penalty.dual_norm(u) / block.weights
        if np.ndim(owner):
            np.maximum.at(out, owner, size)
        else:
            out[owner] = max(out[owner], float(size.max()))

    def restrict(self, flow, blocks):
        """A solver's flow, on its own blocks of the whole graph, within the clusters."""
        if not self.complete:
            (u,) = flow
            return [np.ascontiguousarray(u[:, self.kept])]
        return [self._gather(tile, flow, blocks) for tile in self.blocks]

    def _gather(self, tile, flow, blocks):
        rows, columns = self.nodes[tile.rows], self.nodes[tile.columns]
        out = np.empty((self.d, *tile.shape))
        for u, block in zip(flow, blocks, strict=True):
            for mirrored in (False, True)[: 1 if block.diagonal else 2]:
                a, b = (block.columns, block.rows) if mirrored else (block.rows, block.columns)
                # A cluster's nodes are in ascending order: ranges of nodes are ranges of them.
                i = slice(*np.searchsorted(rows, [a.start, a.stop]))
                j = slice(*np.searchsorted(columns, [b.start, b.stop]))
                if i.start == i.stop or j.start == j.stop:
                    continue
                r, c = (rows[i] - a.start)[:, None], (columns[j] - b.start)[None, :]
                out[:, i, j] = -u[:, c, r] if mirrored else u[:, r, c]
        return out


class _Search:
    """Bounds of the flow values at once: from the flow of least energy and from cuts.

    On the complete graph the flow of least energy is that of the convex clustering paper's
    Theorem 1.  The bounds are exact on trees, and in one dimension on the complete graph.

    Attributes
    ----------
    upper : ndarray of shape (n_clusters,)
        Least ``max_e |u_e| / w_e`` of the flows met.
    lower : ndarray of shape (n_clusters,)
        Largest bound from below.
    potential : ndarray of shape (n, d)
        What gives it, cluster by cluster.
    """

    def __init__(self, inside, b):
        self.inside, self.b = inside, b
        self.lower = np.zeros(inside.n_clusters)
        self.potential = np.zeros_like(b)
        self.energy = inside.potentials(b)
        self.upper = inside.largest(self.energy)
        self.try_potential(self.energy)
        self.try_potential(self._single_nodes())
        exact = inside.edge_counts == inside.sizes - 1
        if exact.any():
            self.try_potential(self._tree_cuts(exact))
        if inside.complete and inside.d == 1:
            self.try_potential(self._sorted_cuts())
            exact |= True
        self.upper[exact] = self.lower[exact]

    def _direction(self, b):
        """Vectors y of unit norm with ``<y, b_i>`` the dual norm of b_i: (n, d) -> (n, d)."""
        if self.inside.penalty.fuses:
            size = np.linalg.norm(b, axis=1, keepdims=True)
            return np.divide(b, size, out=np.zeros_like(b), where=size > 0)
        most = np.arange(len(b)), np.abs(b).argmax(axis=1)
        y = np.zeros_like(b)
        y[most] = np.sign(b[most])
        return y

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

    def _tree_cuts(self, trees):
        """Potential of the cut at the edge that carries most, of clusters that are trees."""
        inside, p = self.inside, np.zeros_like(self.b)
        trees = np.flatnonzero(trees & (inside.sizes > 1))
        if inside.complete:
            # A complete tree is a pair, whose only edge was cut at one of its nodes.
            return p
        (block,) = inside.blocks
        heads, tails, w = block.heads, block.tails, block.weights
        load = inside.penalty.dual_norm((self.energy[heads] - self.energy[tails]).T)
        owner = inside.owner[heads]
        order = np.lexsort((-load, owner))
        cut = order[np.searchsorted(owner[order], trees)]
        keep = np.ones(len(heads), dtype=bool)
        keep[cut] = False
        A = sparse.coo_array((w[keep], (heads[keep], tails[keep])), shape=(inside.n,) * 2)
        component = connected_components(sparse.csr_array(A), directed=False)[1]
        for e in cut:
            side = component == component[heads[e]]
            p[side] = self._direction(self.b[side].sum(axis=0)[None])
        return p

    def _sorted_cuts(self):
        """Potential of the best cut between larger and smaller outflows, in one dimension."""
        inside, p = self.inside, np.zeros_like(self.b)
        for k in np.flatnonzero(inside.sizes > 1):
            mine = np.flatnonzero(inside.owner == k)
            order = mine[np.argsort(-self.b[mine, 0])]
            m = np.arange(1, len(mine))
            best = np.argmax(np.cumsum(self.b[order, 0])[:-1] / (m * (len(mine) - m)))
            p[order[: best + 1]] = 1.0
        return p

    def try_potential(self, p):
        """Keep a potential in the clusters where it gives a better bound from below."""
        inside = self.inside
        work = np.bincount(inside.owner, (self.b * p).sum(axis=1), inside.n_clusters)
        variation = inside.variation(p)
        # Differences that are rounding errors of the potentials say nothing.
        size = np.bincount(inside.owner, np.abs(p).sum(axis=1), inside.n_clusters)
        bound = np.divide(work, variation, out=np.zeros_like(work), where=variation > 1e-12 * size)
        better = bound > self.lower
        self.lower = np.where(better, bound, self.lower)
        self.potential = np.where(better[inside.owner][:, None], p, self.potential)

    def begin(self, flow):
        """Start at a flow, that of least energy by default; `radius` is set."""
        raise NotImplementedError

    def step(self):
        """One iteration; `radius` (n_clusters,) may have changed."""
        raise NotImplementedError

    def look(self):
        """Look for bounds from below."""
        raise NotImplementedError


class _Cuts:
    """Exact values where coordinates do not see each other: the largest of their best cuts.

    So it is with one coordinate, and with the penalty "l1", whose dual norm is the largest entry.
    """

    def __init__(self, inside, b):
        self.inside = inside
        self.lower = np.zeros(inside.n_clusters)
        self.potential = np.zeros_like(b)
        for k in range(inside.n_clusters):
            mine = np.flatnonzero(inside.owner == k)
            for j in range(inside.d):
                ratio, side = self._best_cut(k, mine, b[mine, j])
                if ratio > self.lower[k]:
                    self.lower[k] = ratio
                    self.potential[mine] = 0.0
                    self.potential[mine[side], j] = 1.0
        self.upper = self.lower

    def _best_cut(self, k, mine, b):
        inside = self.inside
        if inside.complete:
            # Cuts of m nodes cost the same: those of largest outflow are the best.
            order, m = np.argsort(-b), np.arange(1, len(b))
            ratios = np.cumsum(b[order])[:-1] / (inside.weight * m * (len(b) - m))
            return ratios.max(), order[: ratios.argmax() + 1]
        (block,) = inside.blocks
        keep = inside.owner[block.heads] == k
        # The nodes of a cluster follow each other.
        heads, tails = block.heads[keep] - mine[0], block.tails[keep] - mine[0]
        return largest_cut(heads, tails, block.weights[keep], b)


class _Alternating(_Search):
    """Douglas-Rachford: ``z <- P(z) + a - (2 P(z) - z)`` with P the projection into the balls
    and a the nearest flow, in energy, to ``2 P(z) - z`` that has the outflow asked for.
    """  # noqa: D205

    def begin(self, flow):
        self.flow = self.inside.flow(self.energy) if flow is None else flow
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
            np.add(P, move, out=z)
        self.upper = np.minimum(self.upper, largest)
        self._clip()

    def look(self):
        # What the nearest flow within the balls leaves undelivered drives nodes apart.
        self.try_potential(self.inside.potentials(self.b - self.clipped))

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
        self.p = self.y = self.energy
        self.momentum = np.ones(self.inside.n_clusters)
        self._sweep(None, None)

    def step(self):
        inside = self.inside
        e = inside.potentials(self.missing)
        p, y = self.y + e, self.y
        # Momentum that points downhill is dropped, cluster by cluster.
        slope = np.bincount(
            inside.owner, (self.missing * (p - self.p)).sum(axis=1), inside.n_clusters
        )
        t = np.where(slope < 0, 1.0, self.momentum)
        self.momentum = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * t * t))
        self.y = p + ((t - 1.0) / self.momentum)[inside.owner][:, None] * (p - self.p)
        self.p = p
        self._sweep(y, e)

    def look(self):
        self.try_potential(self.y)
        self.try_potential(self.inside.potentials(self.missing))

    def _sweep(self, y, e):
        inside, penalty = self.inside, self.inside.penalty
        clipped = np.zeros((inside.d, inside.n))
        largest = np.zeros(inside.n_clusters)
        new = np.ascontiguousarray(self.y.T)
        if y is not None:
            old, more = np.ascontiguousarray(y.T), np.ascontiguousarray(e.T)
        for block, owner, _ in inside.each():
            w = block.weights
            if y is not None:
                u = penalty.project(w * block.difference(old), self.used[owner] * w)
                inside.raise_to(largest, block, owner, u + w * block.difference(more))
            u = penalty.project(w * block.difference(new), self.radius[owner] * w)
            block.add_divergence(u, clipped)
        self.used = self.radius.copy()
        self.missing = self.b - clipped.T
        if y is not None:
            self.upper = np.minimum(self.upper, largest)
