r"""Exact partitions of fusion problems: the reduced problem, and the flow that proves it.

For a partition C_1..C_K the reduced problem (Armacki et al., (5), under our convention) is

    minimise  sum_k sum_{i in C_k} f_i(w_k) + lam sum_{k<l} W_kl |w_k - w_l|,

smooth where the w_k are distinct.  Its solution, repeated within clusters, solves the fusion
problem iff, with ``q_i = grad f_i(w_k) + lam sum_{j not in C_k} w_ij (w_k - w_l) / |w_k - w_l|``,
there are flows u_e on the edges within clusters of net outflow ``-q_i`` at every node and
``|u_e| <= lam w_e``.  Any flow of that outflow gives an upper bound of the smallest possible
maximum of ``|u_e| / w_e``; cuts give lower bounds.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from ._edges import edge_blocks
from ._newton import conjugate_gradients, newton, solve_scaled
from .clients import sum_by_cluster

# Unknowns of the reduced problem up to which one dense Newton step is taken.
MAX_UNKNOWNS = 1500
# Numbers of an edge array up to which flows are improved (which needs to store one).
MAX_FLOW = 5_000_000
# Nodes up to which Laplacian systems are factorised.
MAX_FACTOR = 3000


class FusionProblem:
    """A pool, a graph and a penalty: what all solvers of fusion problems share.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    graph : Graph
        Whose models are compared.
    penalty : Penalty
        How.
    """

    def __init__(self, pool, graph, penalty):
        self.pool, self.graph, self.penalty = pool, graph, penalty
        self.n, self.d = pool.n_clients, pool.n_params
        self.blocks = edge_blocks(graph, self.d)
        self.at_zero = float(self.objectives(np.zeros((self.n, self.d))).sum())
        self._local = None
        self._mean_curvature = None

    def objectives(self, X):
        """Clients' objectives at their models, in double precision."""
        return self.pool.objectives_gradients(X, dtype=np.float64)[0]

    def local_models(self):
        """Each client's own minimiser, computed once."""
        if self._local is None:
            self._local = self.pool.solve()[0]
        return self._local

    def curvature(self):
        """Geometric mean over clients of their mean curvatures: the scale of rho."""
        if self._mean_curvature is None:
            mean = np.maximum(self.pool.spectrum()[2], 1e-12)
            self._mean_curvature = float(np.exp(np.log(mean).mean()))
        return self._mean_curvature

    def fusion(self, X):
        """``sum_e w_e phi(x_i - x_j)``, block by block."""
        XT = np.ascontiguousarray(np.asarray(X, dtype=float).T)
        return sum(
            block.total(block.weights * self.penalty.value(block.difference(XT)))
            for block in self.blocks
        )

    def primal(self, X, lam):
        """The objective."""
        value = float(self.objectives(X).sum())
        return value + (lam * self.fusion(X) if lam else 0.0)

    def tolerance(self, value, tol):
        """Largest duality gap that the relative `tol` allows at an objective of `value`."""
        return tol * max(abs(value), 1e-6 * self.at_zero)


@dataclass
class Contraction:
    """A partition, its reduced solution, and what is known of its flow.

    Attributes
    ----------
    labels : ndarray of shape (n_nodes,)
        Cluster of each node; coarser than the partition asked for where models met.
    theta : ndarray of shape (K, d)
        Models of the clusters.
    ratio : float
        Upper bound of the flow value over lam: the partition is proved where it is <= 1.
    ratios : ndarray of shape (K,)
        The same, cluster by cluster.
    divergence : ndarray of shape (n_nodes, d)
        ``(D'u)_i`` of the whole edge dual, between and within clusters.
    residual : ndarray of shape (n_nodes, d)
        ``q_i``, the outflow that the edges within clusters have to take away.
    """

    labels: np.ndarray
    theta: np.ndarray
    ratio: float
    ratios: np.ndarray
    divergence: np.ndarray
    residual: np.ndarray

    @property
    def certified(self):
        """Whether the partition is proved."""
        return self.ratio <= 1.0


def contract(problem, lam, labels, X, duals=None):
    """Solve the reduced problem of a partition and look for the flow that proves it.

    Parameters
    ----------
    problem : FusionProblem
        With the Euclidean norm as its penalty.
    lam : float
        Weight of the penalty.
    labels : ndarray of shape (n_nodes,)
        The partition, 0..K-1.
    X : ndarray of shape (n_nodes, d)
        Models near the solution; starts are their means.
    duals : callable, default=None
        Returns a solver's edge duals, block by block, from which a flow is sought.

    Returns
    -------
    outcome : Contraction or None
        None if the reduced problem is too large or was not solved.
    """
    labels, theta = _solve_reduced(problem, lam, labels, X)
    if theta is None:
        return None
    return examine(problem, lam, labels, theta, duals)


def examine(problem, lam, labels, theta, duals=None):
    """Look for the flow that proves a partition with models `theta` (K, d)."""
    pool, graph, K = problem.pool, problem.graph, len(theta)
    _, gradient = pool.objectives_gradients(theta[labels], dtype=np.float64)
    between = lam * _pull_between(graph, labels, theta)
    q = gradient + between
    sizes = np.bincount(labels, minlength=K)
    # Flows conserve: what the reduced problem left unsolved cannot be taken away.
    q -= (sum_by_cluster(q, labels, K) / sizes[:, None])[labels]
    ratios = _flow_ratios(problem, lam, labels, K, q, duals)
    return Contraction(
        labels=labels,
        theta=theta,
        ratio=float(ratios.max(initial=0.0)),
        ratios=ratios,
        divergence=between - q,
        residual=q,
    )


# -------------------------------------------------------------------- the reduced problem


def _solve_reduced(problem, lam, labels, X):
    """Labels (coarser where models met) and models; models None if it failed."""
    for _ in range(10):
        K = int(labels.max()) + 1
        if K * problem.d > MAX_UNKNOWNS:
            return labels, None
        sizes = np.bincount(labels, minlength=K)
        start = sum_by_cluster(np.asarray(X, dtype=float), labels, K) / sizes[:, None]
        oracle = _ReducedOracle(problem, lam, labels, K)
        scale = np.array([max(problem.at_zero, 1e-30)])
        x, _, converged = newton(oracle, start.reshape(1, -1), scale, max_iter=50)
        theta = x.reshape(K, problem.d)
        if K == 1:
            return labels, theta if converged.all() else None
        distance = np.linalg.norm(theta[:, None] - theta[None], axis=2)
        size = max(float(np.linalg.norm(theta - theta.mean(axis=0), axis=1).max()), 1e-12)
        # Newton stalls where two models run into each other: the objective has a kink there.
        near = distance <= (1e-8 if converged.all() else 1e-3) * size
        merged = connected_components(sparse.csr_array(near), directed=False)[1]
        if merged.max() + 1 == K:
            return labels, theta if converged.all() else None
        labels = merged[labels]
    return labels, None


class _ReducedOracle:
    """Objective of the reduced problem as one function of (1, K * d)."""

    def __init__(self, problem, lam, labels, K):
        self.problem, self.labels, self.K = problem, labels, K
        self.W = lam * problem.graph.between(labels, K)
        self.ones = np.ones(problem.n)

    def _pairs(self, theta):
        delta = theta[:, None] - theta[None]
        distance = np.sqrt(np.einsum("kld,kld->kl", delta, delta))
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.where(distance > 0, self.W / distance, 0.0)
        return delta, distance, slope

    def _value(self, theta):
        values, gradients = self.problem.pool.objectives_gradients(
            theta[self.labels], dtype=np.float64
        )
        distance = np.linalg.norm(theta[:, None] - theta[None], axis=2)
        return float(values.sum()) + 0.5 * float((self.W * distance).sum()), gradients

    def at(self, x):
        """Value and gradient."""
        self.x = x.copy()
        theta = self.theta = x.reshape(self.K, -1)
        value, gradients = self._value(theta)
        delta, _, slope = self._pairs(theta)
        g = sum_by_cluster(gradients, self.labels, self.K)
        g += np.einsum("kl,kld->kd", slope, delta)
        return np.array([value]), g.reshape(1, -1)

    def direction(self, g, damping=None):
        """Newton direction from one dense system."""
        problem, K, d = self.problem, self.K, self.problem.d
        delta, distance, slope = self._pairs(self.theta)
        H = np.zeros((K, d, K, d))
        own = problem.pool.pin(problem.pool.hessians(self.theta, self.labels, self.ones))
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(distance[..., None] > 0, delta / distance[..., None], 0.0)
        curve = slope[:, :, None, None] * (
            np.eye(d) - unit[:, :, :, None] * unit[:, :, None, :]
        )
        H -= curve.transpose(0, 2, 1, 3)
        k = np.arange(K)
        H[k, :, k, :] += own + curve.sum(axis=1)
        return -solve_scaled(H.reshape(1, K * d, K * d), g)

    def along(self, step, t):
        """Value at ``x + t * step``."""
        theta = (self.x + t[:, None] * step).reshape(self.K, -1)
        return np.array([self._value(theta)[0]])


def _pull_between(graph, labels, theta):
    """``sum_{j not in C_k} w_ij (w_k - w_l) / |w_k - w_l|`` of every node, (n_nodes, d)."""
    K = len(theta)
    delta = theta[:, None] - theta[None]
    distance = np.linalg.norm(delta, axis=2, keepdims=True)
    unit = np.divide(delta, distance, out=np.zeros_like(delta), where=distance > 0)
    if graph.is_complete:
        sizes = np.bincount(labels, minlength=K).astype(float)
        return graph.weight * np.einsum("l,kld->kd", sizes, unit)[labels]
    member = sparse.csr_array(
        (np.ones(len(labels)), (np.arange(len(labels)), labels)), shape=(len(labels), K)
    )
    towards = sparse.coo_array(graph.adjacency() @ member)
    i, other = towards.coords
    out = np.zeros((len(labels), theta.shape[1]))
    np.add.at(out, i, towards.data[:, None] * unit[labels[i], other])
    return out


# -------------------------------------------------------------------------------- flows


def _flow_ratios(problem, lam, labels, K, q, duals, n_improve=60):
    """Upper bounds of the flow value over lam, by cluster."""
    inside = _Inside(problem, labels, K)
    if not inside.solvable(q):
        return np.full(K, np.inf)
    # The flow of least energy: on the complete graph this is the paper's Theorem 1.
    potential = inside.solve(-q)
    best = inside.ratios_of_potential(potential) / lam
    if best.max(initial=0.0) <= 1.0 or not inside.n_edges:
        return best
    if inside.n_edges * problem.d > MAX_FLOW:
        return best
    flow = inside.flow(potential) if duals is None else inside.restrict(duals())
    radius = lam * (1.0 - 1e-9)
    for _ in range(n_improve):
        # Alternate: onto the outflow asked for, then into the balls.
        flow = inside.correct(flow, -q)
        ratios = inside.ratios(flow) / lam
        best = np.where(ratios < best, ratios, best)
        if best.max() <= 1.0:
            break
        # Reflect a little beyond the balls (Douglas-Rachford would keep a second array).
        clipped = inside.clip(flow, radius)
        flow = [c + 0.8 * (c - f) for c, f in zip(clipped, flow, strict=True)]
    return best


class _Inside:
    """Edges within the clusters of a partition."""

    def __init__(self, problem, labels, K):
        self.labels, self.K, self.problem = labels, K, problem
        self.graph = problem.graph
        self.sizes = np.bincount(labels, minlength=K)
        self.complete = self.graph.is_complete
        if self.complete:
            self.blocks = problem.blocks
            self.n_edges = int((self.sizes * (self.sizes - 1) // 2).sum())
        else:
            part = self.graph.inside(labels)
            keep = labels[self.graph.heads] == labels[self.graph.tails]
            self.kept = np.flatnonzero(keep)
            self.blocks = edge_blocks(part, problem.d)
            self.n_edges = part.n_edges
            self._prepare(part)

    def _prepare(self, part):
        n = part.n_nodes
        self.component = part.components()
        self.connected = self.component.max() + 1 == self.K
        L = part.laplacian()
        # One node of each component is held at 0; the others are then determined.
        free = np.ones(n, dtype=bool)
        free[np.unique(self.component, return_index=True)[1]] = False
        self.free = np.flatnonzero(free)
        self.system = sparse.csc_array(L[self.free][:, self.free])
        self.factor = None
        if 0 < len(self.free) <= MAX_FACTOR:
            self.factor = splu(self.system)

    def solvable(self, q):
        """Whether every cluster is connected within, so that some flow exists."""
        return self.complete or self.connected

    def solve(self, b):
        """Potentials e with ``D' w D e = b`` within clusters, (n_nodes, d)."""
        if self.complete:
            return b / (self.graph.weight * self.sizes[self.labels])[:, None]
        e = np.zeros_like(b)
        if len(self.free):
            if self.factor is not None:
                e[self.free] = self.factor.solve(np.ascontiguousarray(b[self.free]))
            else:
                e[self.free] = solve_columns(self.system, b[self.free])
        return e

    def _mask(self, block):
        if not self.complete:
            return None
        return self.labels[block.rows, None] == self.labels[None, block.columns]

    def _flow_of(self, block, eT):
        """Flow of potentials on one block, zero between clusters."""
        u = block.weights * block.difference(eT)
        mask = self._mask(block)
        if mask is not None:
            u *= mask
        return u

    def flow(self, potential):
        """Flow of potentials, block by block."""
        eT = np.ascontiguousarray(potential.T)
        return [self._flow_of(block, eT) for block in self.blocks]

    def restrict(self, duals):
        """A solver's edge duals on the edges within clusters."""
        if self.complete:
            return [u * self._mask(b) for u, b in zip(duals, self.blocks, strict=True)]
        (u,) = duals
        return [np.ascontiguousarray(u[:, self.kept])]

    def correct(self, flow, outflow):
        """Nearest flow (in energy) with the outflow asked for."""
        d, n = flow[0].shape[0], len(self.labels)
        have = np.zeros((d, n))
        for block, u in zip(self.blocks, flow, strict=True):
            block.add_divergence(u, have)
        missing = outflow - have.T
        missing -= (sum_by_cluster(missing, self.labels, self.K) / self.sizes[:, None])[self.labels]
        more = self.flow(self.solve(missing))
        return [u + m for u, m in zip(flow, more, strict=True)]

    def clip(self, flow, radius):
        """Flow with every edge in its ball of radius ``radius * w_e``."""
        penalty = self.problem.penalty
        return [
            penalty.project(u, radius * block.weights)
            for block, u in zip(self.blocks, flow, strict=True)
        ]

    def ratios(self, flow):
        """Largest ``|u_e| / w_e`` of every cluster."""
        out = np.zeros(self.K)
        for block, u in zip(self.blocks, flow, strict=True):
            self._raise(out, block, np.sqrt(np.einsum("d...,d...->...", u, u)) / block.weights)
        return out

    def ratios_of_potential(self, potential):
        """The same for the flow of potentials, which is not stored."""
        eT = np.ascontiguousarray(potential.T)
        out = np.zeros(self.K)
        for block in self.blocks:
            u = self._flow_of(block, eT)
            self._raise(out, block, np.sqrt(np.einsum("d...,d...->...", u, u)) / block.weights)
        return out

    def _raise(self, out, block, values):
        if self.complete:
            # Edges between clusters carry 0, so a row's largest value belongs to its cluster.
            np.maximum.at(out, self.labels[block.rows], values.max(axis=1))
        elif values.size:
            np.maximum.at(out, self.labels[block.heads], values)


def solve_columns(M, B, x0=None, tol=1e-12, max_iter=2000):
    """Solve ``M X = B`` by conjugate gradients, M sparse, symmetric, positive definite."""
    R = B if x0 is None else B - M @ x0
    # Where the right-hand side is what matters, a start must not ask for more digits.
    size = np.linalg.norm(B, axis=0) / np.maximum(np.linalg.norm(R, axis=0), 1e-300)
    X = conjugate_gradients(
        lambda u: (M @ np.ascontiguousarray(u.T)).T,
        M.diagonal()[None, :],
        np.ascontiguousarray(R.T),
        np.minimum(tol * size, 1.0),
        max_iter,
    ).T
    return X if x0 is None else x0 + X


def cut_bounds(problem, labels, K, q):
    """Lower bounds of the flow value, by cluster: from single nodes, and from sorted cuts."""
    graph = problem.graph
    if graph.is_complete:
        inner = graph.weight * (np.bincount(labels, minlength=K)[labels] - 1.0)
    else:
        inner = graph.inside(labels).degrees()
    size = np.linalg.norm(q, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        single = np.where(size > 0, size / inner, 0.0)
    out = np.zeros(K)
    np.maximum.at(out, labels, single)
    # Cut each cluster where it is stretched most: sort by the main direction of its q.
    for k in np.flatnonzero(np.bincount(labels, minlength=K) > 2):
        nodes = np.flatnonzero(labels == k)
        _, _, directions = np.linalg.svd(q[nodes], full_matrices=False)
        for v in directions[:3]:
            order = nodes[np.argsort(q[nodes] @ v)]
            out[k] = max(out[k], _sorted_cuts(graph, order, q))
    return out


def _sorted_cuts(graph, order, q):
    """Largest ``|sum_A q| / w(A, rest)`` over the prefixes A of an order of a cluster."""
    m = np.arange(1, len(order))
    sums = np.linalg.norm(np.cumsum(q[order], axis=0)[:-1], axis=1)
    if graph.is_complete:
        capacity = graph.weight * m * (len(order) - m)
    else:
        place = np.full(graph.n_nodes, -1)
        place[order] = np.arange(len(order))
        a, b = place[graph.heads], place[graph.tails]
        keep = (a >= 0) & (b >= 0)
        low, high = np.minimum(a, b)[keep], np.maximum(a, b)[keep]
        w = graph.weights[keep]
        change = np.bincount(low, w, len(order)) - np.bincount(high, w, len(order))
        capacity = np.cumsum(change)[:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(sums > 0, sums / capacity, 0.0), initial=0.0))
