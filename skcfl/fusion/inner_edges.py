"""Edges within the clusters of a partition, flows on them and the bounds of their loads."""

from functools import partial

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

from ..graphs.edges import EdgeList, square_tiles
from ..numerics.by_cluster import components_of, membership
from ..numerics.conjugate_gradients import solve_columns
from ..numerics.matrices import factor
from ..numerics.once import once

# Nodes up to which Laplacian systems are factorised.
MAX_FACTOR = 3000
EPS = np.finfo(float).eps


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

    @once
    def tree(self):
        """Spanning trees of the clusters, of the heaviest edges."""
        (block,) = self.blocks
        return _Forest(block.heads, block.tails, block.weights, self.held, self.n)

    @once
    def _solve(self):
        """Maps outflows of the free nodes to their potentials, the others held at 0."""
        # Beside heavy edges light ones are lost, and it may be singular as stored: flows are
        # mended and bounds verified, so that rough potentials cost tightness only.
        diagonal = sparse.diags_array(self.inner * (1.0 + 4.0 * EPS))
        L = sparse.csr_array(diagonal - self._adjacency)
        system = sparse.csc_array(L[self.free][:, self.free])
        small = len(self.free) <= MAX_FACTOR
        return factor(system).solve if small else partial(solve_columns, system)

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
        part = components_of(self.heads[keep], self.tails[keep], self.n)
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
