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
spanning tree of heavy edges, and the remainder is bounded by the tree (:class:`Inside`).  Rounding
weighs most on light edges, and there the bounds differ.  The work of a potential is a sum of known
length, the terms of its variation are positive.

With one coordinate, and for each coordinate of the penalty "l1", the best potential is a cut, and
maximum flows find it (:mod:`skcfl.numerics.maxflow`).  Otherwise:

If an edge array fits in memory both sides come from a Douglas-Rachford iteration between the flows
of the given outflow and the balls ``|u_e| <= radius * w_e``: if they meet it finds a flow, if not,
its displacement tends to a potential that separates them. If it does not fit, accelerated gradient
ascent looks for potentials with a flow, clipped to the balls, of the given outflow, and stores no
edge.
"""

from functools import partial

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import (
    breadth_first_order,
    connected_components,
    minimum_spanning_tree,
)

from ..graphs.edges import EdgeList, square_tiles
from ..numerics.by_cluster import membership
from ..numerics.conjugate_gradients import solve_columns
from ..numerics.matrices import factor
from ..numerics.maxflow import largest_cut

# Nodes up to which Laplacian systems are factorised.
MAX_FACTOR = 3000
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
EPS = np.finfo(float).eps


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
    kind = _Cuts if separable else _Alternating if stored else _Ascent
    if not np.array_equal(todo, inside.clusters):
        inside = Inside(graph, penalty, labels, d, todo)
    search = search.part(kind, inside)
    if separable:
        search.run()
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
        self._factor = self._tree = None
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
        self.neighbours = self.sizes[self.owner] - 1.0
        self.inner = weight * self.neighbours
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
        self.neighbours = np.diff(A.indptr).astype(float)
        component = connected_components(A, directed=False)[1]
        held = np.unique(component, return_index=True)[1]
        self.connected = np.bincount(self.owner[held], minlength=self.n_clusters) == 1
        self.held = held
        free = np.ones(self.n, dtype=bool)
        free[held] = False
        self.free = np.flatnonzero(free)
        self._adjacency = A

    @property
    def tree(self):
        """Spanning trees of the clusters, of the heaviest edges."""
        if self._tree is None:
            (block,) = self.blocks
            self._tree = _Forest(block.heads, block.tails, block.weights, self.held, self.n)
        return self._tree

    def _solve(self, b):
        """Potentials of the free nodes, the others held at 0."""
        if self._factor is None:
            # Beside heavy edges light ones are lost, and it may be singular as stored: flows are
            # mended and bounds verified, so that rough potentials cost tightness only.
            diagonal = sparse.diags_array(self.inner * (1.0 + 4.0 * EPS))
            L = sparse.csr_array(diagonal - self._adjacency)
            system = sparse.csc_array(L[self.free][:, self.free])
            small = len(self.free) <= MAX_FACTOR
            self._factor = factor(system).solve if small else partial(solve_columns, system)
        return self._factor(b)

    def potentials(self, b):
        """Potentials p with ``D' w D p = b`` within clusters, (n, d).

        ``w D p`` is then the flow of outflow `b` of least energy ``sum_e |u_e|^2 / w_e``.
        """
        b = self.balance(b)
        if self.complete:
            return b / (self.weight * self.sizes[self.owner])[:, None]
        p = np.zeros_like(b)
        if len(self.free):
            p[self.free] = self._solve(np.ascontiguousarray(b[self.free]))
        return p

    def balance(self, b):
        """Outflows that sum to zero over every cluster: the remainder is shared."""
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

    def spread(self, size, b=None):
        """Bounds of the flow values of outflows of at most a `size`, (n,) -> (n_clusters,).

        They sum to zero, or, of outflows that differ from `b` (n, d) by them, to what `b` lacks.
        """
        if not self.complete:
            if b is not None:
                size = size.copy()
                total = np.bincount(self.owner, np.linalg.norm(b, axis=1))[self.owner[self.held]]
                rest = np.linalg.norm(self.tree.sums(b)[self.held], axis=1)
                size[self.held] += rest + EPS * self.n * total
            largest = np.zeros(self.n_clusters)
            loads = self.tree.loads(size, self.owner, self.n_clusters)
            np.maximum.at(largest, self.owner[self.tree.child], loads)
            return largest
        # The flow of least energy of an outflow e is (e_i - e_j) / n.
        largest = np.zeros(self.n_clusters)
        np.maximum.at(largest, self.owner, size)
        if b is not None:
            largest += np.linalg.norm(self.member @ b, axis=1)
        return np.where(self.sizes > 1, 2.01 * largest / (self.weight * self.sizes), 0.0)

    def bound(self, flow, b):
        """Upper bounds of the flow values of `b` from flows that have that outflow nearly.

        Parameters
        ----------
        flow : iterable of ndarray
            Flows, block by block.
        b : ndarray of shape (n, d)
            Outflows; the nodes share the amount by which they do not sum to zero.

        Returns
        -------
        upper : ndarray of shape (n_clusters,)
        """
        outflow = np.zeros((self.d, self.n))
        upper = np.zeros(self.n_clusters)
        for block, owner, u in self.each(flow):
            block.add_divergence(u, outflow)
            if self.complete:
                self.raise_to(upper, block, owner, u)
        missing = b - outflow.T
        if self.complete:
            left = np.linalg.norm(missing, axis=1)
            left += self._rounding(upper[self.owner] * self.inner, b)
        else:
            # Along the tree, with more flow on its edges; the remainder is rounding.
            more, left = self._mend(u, missing, b)
            u = u.copy()
            u[:, self.tree.edges] += more
            self.raise_to(upper, block, owner, u)
        return (upper + self.spread(left)) * (1.0 + (self.d + 8.0) * EPS)

    def _mend(self, u, missing, b):
        """Flow on the trees' edges of what a flow lacks, and bounds of what both still lack."""
        (block,) = self.blocks
        more = self.tree.route(missing)
        size = np.linalg.norm(u, axis=0)
        size[self.tree.edges] += 2.0 * np.linalg.norm(more, axis=0)
        at = np.bincount(block.heads, size, self.n) + np.bincount(block.tails, size, self.n)
        left = self._rounding(at, b)
        left[self.held] += np.linalg.norm(self.tree.sums(missing)[self.held], axis=1)
        return more, left

    def least_energy(self, b, wide):
        """Bounds of the largest ``|u_e| / w_e`` of the flow of least energy.

        Parameters
        ----------
        b : ndarray of shape (n, d)
            Outflows.
        wide : ndarray of shape (n,)
            How far the outflows meant may be from these.

        Returns
        -------
        lower, upper : ndarray of shape (n_clusters,)
            For all outflows in question; a computed flow is judged by its outflow.
        """
        if self.complete:
            size = np.linalg.norm(b, axis=1)
            mean = (self.member @ size) / self.sizes
            largest = self.largest(self.potentials(b))
            off = self.spread(EPS * (self.neighbours + 9.0) * (size + mean[self.owner]) + wide)
        else:
            largest, off = self._least_energy(b, wide)
        off = 1.01 * off + (self.d + 10.0) * EPS * largest
        return np.maximum(largest - off, 0.0), largest + off

    def _least_energy(self, b, wide):
        """The largest value of a flow near that of least energy, and how far it may be off.

        Potentials p have a flow of least energy, of outflow ``b - r``: that of `b` differs by
        that of r.  A unit from one end of an edge of weight w to the other needs a difference of
        potentials of ``1 / w`` at most, and none is larger anywhere: with r sent along the tree
        the potentials are off by the sum of its ``|u_e| / w_e``.  On a tree the flow itself is
        known.
        """
        (block,), tree, K = self.blocks, self.tree, self.n_clusters
        owner = self.owner[tree.child]
        loops = self.edge_counts > self.sizes - 1
        p = self.potentials(b) if loops.any() else np.zeros_like(b)
        (u,) = self.flow(np.where(loops[self.owner][:, None], p, 0.0))
        outflow = np.zeros((self.d, self.n))
        block.add_divergence(u, outflow)
        more, left = self._mend(u, b - outflow.T, b)
        size = self.penalty.dual_norm(more) / tree.weights
        loads = tree.loads(left + wide, self.owner, K)
        largest, off, known = np.zeros((3, K))
        self.raise_to(largest, block, self.owner[block.heads], u)
        np.maximum.at(known, owner, size)
        np.maximum.at(off, owner, loads)
        total = np.bincount(owner, size + loads, K)
        return np.where(loops, largest, known), np.where(loops, total, off)

    def _rounding(self, passing, b):
        """Bounds of the rounding of sums of flows at nodes, (n,), of the size of their terms."""
        # Rounding of two such sums: of flows, and of the correction along the tree.
        steps = 2.0 * self.neighbours + 8.0
        return np.sqrt(self.d) * EPS * steps * (passing + np.linalg.norm(b, axis=1))

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


class _Forest:
    """Spanning trees of the components of a graph, of the greatest total weight.

    Parameters
    ----------
    heads, tails, weights : ndarray of shape (n_edges,)
        The edges.
    roots : ndarray
        One node of each component.
    n : int
        Number of nodes.

    Attributes
    ----------
    edges : ndarray
        The edges of the trees.
    """

    def __init__(self, heads, tails, weights, roots, n):
        # Computed by rank: sums of weights of unlike size would be rounded.
        order = np.argsort(-weights, kind="stable")
        rank = np.empty(len(heads))
        rank[order] = np.arange(1.0, len(heads) + 1.0)
        # Older versions of scipy take no trees of 64-bit indices.
        ends = heads.astype(np.int32), tails.astype(np.int32)
        links = sparse.csr_array(sparse.coo_array((rank, ends), shape=(n, n)))
        tree = sparse.coo_array(minimum_spanning_tree(links))
        self.edges = np.sort(order[tree.data.astype(np.intp) - 1])
        heads, tails = heads[self.edges], tails[self.edges]
        # One more node above all roots.
        ends = np.concatenate([heads, np.full(len(roots), n)]), np.concatenate([tails, roots])
        links = sparse.csr_array(
            sparse.coo_array((np.ones(len(ends[0])), ends), shape=(n + 1, n + 1))
        )
        order, parent = breadth_first_order(links, n, directed=False)
        self.order = order[:0:-1]  # children before their parents
        place = np.empty(n + 1, dtype=np.intp)
        place[self.order] = np.arange(n)
        place[n] = n
        up = place[parent[self.order]]
        lower = np.flatnonzero(up < n)
        entries = np.concatenate([np.ones(n), -np.ones(len(lower))])
        every = np.arange(n)
        ends = np.concatenate([every, up[lower]]), np.concatenate([every, lower])
        M = sparse.csc_array((entries, ends), shape=(n, n))
        self._system = factor(M, "NATURAL")
        self.down = parent[heads] == tails
        self.child = np.where(self.down, heads, tails)
        self.heads, self.tails, self.weights = heads, tails, weights[self.edges]
        self.roots, self.n = roots, n

    def sums(self, r):
        """Sums over the nodes beyond every node, itself included: (n, d) -> (n, d)."""
        out = np.empty_like(r)
        out[self.order] = self._system.solve(np.ascontiguousarray(r[self.order]))
        return out

    def route(self, r):
        """Flows on the trees' edges of outflow `r`, and the remainder at the roots: (d, edges)."""
        beyond = self.sums(r)[self.child].T
        return np.where(self.down, beyond, -beyond)

    def loads(self, size, owner, n_clusters):
        """Bounds of ``|u_e| / w_e`` on the trees of outflows of a size, (n,) -> (edges,)."""
        beyond = self.sums(size[:, None])[:, 0]
        total = np.zeros(n_clusters)
        total[owner[self.roots]] = beyond[self.roots]
        beyond, owner = beyond[self.child], owner[self.child]
        rounding = self.n * EPS
        # The outflow on one side of an edge passes to the other.
        less = np.minimum(beyond, total[owner] * (1.0 + rounding) - beyond) * (1.0 + rounding)
        return less / self.weights

    def side(self, cut, owner, n_clusters):
        """One of the two parts into which a cut edge takes each tree, and its sign.

        Parameters
        ----------
        cut : ndarray
            Places in `edges`, at most one a tree.
        owner : ndarray of shape (n,)
            Tree of each node.
        n_clusters : int
            Number of trees.

        Returns
        -------
        which : ndarray of shape (n,)
            Place in `cut` of the edge that cuts a node off, -1 for all others.
        sign : ndarray of shape (len(cut),)
            1 where the nodes beyond the edge are cut off, -1 where, because they are fewer, the
            others are.
        """
        keep = np.ones(len(self.edges), dtype=bool)
        keep[cut] = False
        ends = self.heads[keep], self.tails[keep]
        links = sparse.coo_array((np.ones(len(ends[0])), ends), shape=(self.n, self.n))
        part = connected_components(sparse.csr_array(links), directed=False)[1]
        of_part = np.full(int(part.max()) + 1, -1)
        of_part[part[self.child[cut]]] = np.arange(len(cut))
        beyond = of_part[part]
        of_cluster = np.full(n_clusters, -1)
        of_cluster[owner[self.child[cut]]] = np.arange(len(cut))
        here = of_cluster[owner]
        count = np.bincount(beyond[beyond >= 0], minlength=len(cut))
        whole = np.bincount(here[here >= 0], minlength=len(cut))
        sign = np.where(2 * count <= whole, 1, -1)
        mine = (here >= 0) & ((beyond >= 0) == (sign[here] > 0))
        return np.where(mine, here, -1), sign


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

    def begin(self, flow):
        """Start at a flow, that of least energy by default; `radius` is set."""
        raise NotImplementedError

    def step(self):
        """One iteration; `radius` (n_clusters,) may have changed."""
        raise NotImplementedError

    def look(self):
        """Look for bounds from below."""
        raise NotImplementedError


class _Cuts(_Search):
    """Values where coordinates do not see each other: the largest of their best cuts.

    The same holds with one coordinate, and with the penalty "l1": its dual norm is the largest
    entry.
    """

    def run(self):
        """Find the cuts, and the flows that show that they are the best, by maximum flows."""
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
