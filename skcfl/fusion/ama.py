r"""Accelerated dual ascent for convex clustering of points, on graphs that shrink.

    P:  minimise  sum_k m_k/2 |x_k - a_k|^2 + lam sum_e w_e |x_k - x_l|,    e = (k, l) edges
    D:  maximise  sum_k m_k/2 (|a_k|^2 - |x_k(u)|^2)  over  |u_e| <= lam w_e,
        x_k(u) = a_k - (D'u)_k / m_k

The alternating minimisation algorithm (AMA) of Chi and Lange (2015) is projected gradient ascent
on D; here with Nesterov's acceleration, restarts if the momentum points downhill, and a step for
every edge, ``1 / (deg_k / m_k + deg_l / m_l)`` with the numbers of edges at its ends.  The server
needs only the local models: the objective of a client is half the squared distance to its local
model, up to a constant.

It is fast because points which share their centre are one node of mass m_k, parallel edges one
edge (the reduced problem of the partition), so that the graph shrinks:

1. ascend on the graph of the clusters until its gap is small; where edges inside their balls make
   models equal and that lowers P, merge them and go on;
2. look for the flows within clusters that the full dual needs: a correction by potentials (one
   Laplacian system), clipped to the balls, some times over;
3. if the gap of the full problem stays too large, clusters with a missing flow are split
   again, and the next merger has to wait for a smaller gap.

The gap is always that of the full problem, so that a merger too early only costs time.  There are
two arrays of the size of the edge duals; other numbers are computed by blocks of edges that stay
in cache.

=========  ==================  =====================================================
here       symbol              what it is
=========  ==================  =====================================================
``A``      a_k                 local models, centred; of clusters their means
``U``      u_e                 edge duals
``R``      (D'u)_k             net outflows of the nodes
``X``      x_k                 centres
=========  ==================  =====================================================
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from .._progress import loop
from ..calls.proofs_asked import Conjugate
from ..federation.result import Result
from ..numerics.by_cluster import mean_by_cluster
from ..numerics.matrices import factor, slices
from .certified import COLUMNS, shortfall
from .path import path_start
from .reduced import contract
from .solvers import solver

__all__ = ["ama"]

# Gap, in units of the one to reach, below which models are merged; less after each bad merger,
# more after so many iterations without one, when there is less to lose.
MERGE_FROM, MERGE_LESS = 60.0, 0.1
HURRY = 30
# Part of the nodes to which a merger has to bring their number, as long as the gap is too large.
WORTH = 0.98
# Bad mergers after which there are no more, of a node and at all.
MAX_TRIES, MAX_FAILURES = 2, 10
# Part of the gap that the ascent and the flows may each take up; the ascent where there are no
# clusters, and so no flows.
SHARE, SHARE_WITHOUT_FLOWS = 0.3, 0.9
# Corrections of the flows; the least fall of the gap for which they go on; their over-relaxation,
# after the first, which is exact where nothing is clipped.
MAX_CORRECTIONS, PROGRESS, PROBATION = 100, 0.7, 5
# Part of the gap that clusters which are not corrected may take up, and the part of their nodes to
# which the others shrink before a smaller system is made of them.
LEAVE, SHRINK = 0.2, 0.5
# From a cold start lam goes up in stages by this factor, each solved to this accuracy.
STAGE, STAGE_TOL = 30.0, 1e-3
# Coordinates up to which Laplacian systems are factorised: graphs of neighbours in more have no
# small separators, and conjugate gradients converge fast on them.
MAX_FACTOR_COORDINATES = 3
CG_STEPS, CG_TOL = 25, 1e-2
# Unknowns of the reduced problem up to which the partition is to be proved in the end, and what
# that may cost (see ``contract``).
MAX_PROOF, MAX_SPLITS, EFFORT = 1500, 10, 100.0
# Rounding of the gap over the size of the numbers that it is made of.
ROUNDING = 8.0 * np.finfo(float).eps
# Numbers of an edge array that are worked on at a time, so that they stay in cache.
BLOCK = 2**15
# Coordinates up to which rows are so short that columns are faster.
SHORT = 4


@dataclass
class AMAState:
    """State of the solver: enough to go on, at this lam or another."""

    U: np.ndarray
    labels: np.ndarray
    lam: float
    frame: "_Frame"
    converged: bool = False


@solver(extra={"contraction": ["boolean"]})
def ama(problem, lam, *, tol=1e-6, max_iter=20000, state=None, contraction=True):
    """Solve convex clustering of points on a sparse graph.

    Parameters
    ----------
    problem : FusionProblem
        With the Euclidean norm, clients with an objective of half the squared distance to their
        local model up to a constant, and a graph with a list of edges.
    lam : float
        Positive weight of the penalty.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most iterations, on graphs of whatever size. They are cheap; where many points are about
        to meet all at once, thousands may be needed.
    state : AMAState, default=None
        State to start from; one at another ``lam`` if it had converged.
    contraction : bool
        If True, prove the partition at the end, which also makes the solution exact.

    Raises
    ------
    ValueError
        If ``lam`` is not positive: at 0 every model is separate.

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the sums ``(D'u)_i``) and
        ``partition_optimal``.
    state : AMAState
        The last iterate.
    """
    frame, n_iter = _Frame.of(problem, state), 0
    with loop("iteration", max_iter) as progress:
        for stage in _stages(problem, lam, state):
            if progress.stopped and stage != lam:
                continue
            reach = tol if stage == lam else max(tol, STAGE_TOL)
            solve = _AMA(problem, frame, stage, reach, max(max_iter - n_iter, 1), state)
            solve.run(progress, n_iter)
            state, n_iter = solve.state, min(n_iter + solve.n_iter, max_iter)
    return solve.result(contraction, n_iter, max_iter), state


def _stages(problem, lam, state):
    """Values of lam on the way to `lam`: mergers step by step leave small graphs only."""
    if state is not None and (state.converged or state.lam == lam):
        start = STAGE * state.lam
    else:
        start = path_start(problem, lam)
    number = int(np.ceil(np.log(max(lam / start, 1.0)) / np.log(STAGE)))
    return [*(lam * STAGE ** -np.arange(number, 0, -1.0)), lam]


@dataclass
class _Frame:
    """Arrays that do not depend on lam, kept along a path."""

    graph: object
    local: np.ndarray
    at_start: float
    shift: np.ndarray
    constant: float
    network: "_Network"

    @classmethod
    def of(cls, problem, state):
        """The frame of `state` if it is of this problem, else a new one."""
        graph, local = problem.graph, problem.local_models()
        if state is not None:
            old = state.frame
            same = old.graph is graph and old.at_start == problem.at_start
            if same and np.array_equal(old.local, local):
                return old
        # Far from the origin squares would cost digits.
        shift = local.mean(axis=0, dtype=np.float64)
        network = _Network(
            graph.heads, graph.tails, graph.weights, np.ones(problem.n), local - shift
        )
        constant = float(problem.objectives(local).sum())
        return cls(graph, local, problem.at_start, shift, constant, network)


class _Network:
    """Nodes with masses and edges: the problem on one partition."""

    def __init__(self, heads, tails, weights, masses, A, base=0.0):
        self.heads, self.tails, self.weights = heads, tails, weights
        self.masses, self.A, self.base = masses, A, base
        self.inverse = (1.0 / masses)[:, None]
        K, E = len(masses), len(heads)
        self.K = K
        self.outflow = _outflow(heads, tails, K)
        crowd = (np.bincount(heads, minlength=K) + np.bincount(tails, minlength=K)) / masses
        self.steps = 1.0 / (crowd[heads] + crowd[tails])
        side = max(BLOCK // A.shape[1], 1)
        self.blocks = slices(E, side)

    def centres(self, R):
        """``x(u)``, where the outflows are R = D'u."""
        return self.A - self.inverse * R

    def difference(self, X, block=slice(None)):
        """Differences along edges."""
        out = X.take(self.heads[block], axis=0)
        out -= X.take(self.tails[block], axis=0)
        return out

    def primal(self, X, radius):
        """Objective at centres `X`."""
        away = X - self.A
        value = self.base + 0.5 * float(np.vdot(away, self.masses[:, None] * away))
        for block in self.blocks:
            value += float(radius[block] @ _norms(self.difference(X, block)))
        return value

    def dual(self, R):
        """Dual objective where the outflows are `R`."""
        gain = float(np.vdot(R, self.A)) - 0.5 * float(np.vdot(R, self.inverse * R))
        return self.base + gain

    def merge(self, labels, U):
        """Network of clusters of the nodes, its duals, and how to give duals back to this one."""
        K = int(labels.max()) + 1
        a, b = labels[self.heads], labels[self.tails]
        between = np.flatnonzero(a != b)
        a, b = a[between], b[between]
        key = np.minimum(a, b) * K + np.maximum(a, b)
        order = np.argsort(key)
        key, between = key[order], between[order]
        sign = np.where(a < b, 1.0, -1.0)[order, None]
        first = np.flatnonzero(np.diff(key, prepend=-1))
        size = np.diff(first, append=len(key))
        w, V = self.weights[between], U[between] * sign
        weights = np.add.reduceat(w, first) if len(first) else w
        masses = np.bincount(labels, self.masses)
        A = mean_by_cluster(self.A, labels, self.masses)
        away = self.A - A[labels]
        base = self.base + 0.5 * float(np.vdot(away, self.masses[:, None] * away))
        network = _Network(*divmod(key[first], K), weights, masses, A, base)

        def expand(V):
            # Parallel edges carry in proportion to their weights.
            share = (w / np.repeat(weights, size))[:, None] * sign
            out = U.copy()
            out[between] = share * np.repeat(V, size, axis=0)
            return out

        return network, np.add.reduceat(V, first, axis=0) if len(first) else V, expand

    def ascend(self, U, lam, limit, patience, max_iter, separate):
        """Accelerated ascent until the gap is small, or models can be merged.

        Parameters
        ----------
        U : ndarray of shape (n_edges, d)
            Feasible duals.
        lam : float
            Weight of the penalty.
        limit : callable
            The gap at which to stop, of the primal value.
        patience : float
            The gap from which models are merged, in units of `limit`.
        max_iter : int
            Most iterations.
        separate : ndarray of shape (K,) of bool
            Nodes that are not merged with each other.

        Returns
        -------
        U : ndarray of shape (n_edges, d)
            Duals.
        together : ndarray of shape (K,) or None
            Which nodes to merge; None for none.
        n_iter : int
            Iterations.
        """
        radius = lam * self.weights
        U, old = U.copy(), U.copy()
        R = ahead = self.outflow @ U
        momentum, speed, check_at = 1.0, 0.0, 2
        for k in range(1, max_iter + 1):
            X = self.centres(ahead)
            for block in self.blocks:
                # The extrapolated iterate takes the place of the last one, then the next.
                u, new = U[block], old[block]
                np.subtract(u, new, out=new)
                new *= speed
                new += u
                step = self.difference(X, block)
                _scale(step, self.steps[block])
                new += step
                _clip(new, radius[block])
            U, old = old, U
            before, R = R, self.outflow @ U
            move = R - before
            if np.vdot(X, move) < 0.0:
                momentum = 1.0
            following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            speed, momentum = (momentum - 1.0) / following, following
            ahead = R + speed * move
            if k < check_at and k < max_iter:
                continue
            check_at = k + (2 if k < 4 else 4 if k < 12 else 8)
            X = self.centres(R)
            primal = self.primal(X, radius)
            gap, enough = primal - self.dual(R), limit(primal)
            if gap <= patience * enough * max(1.0, (k / HURRY) ** 2):
                together = self._equal(U, X, radius, separate)
                few = together is not None and together.max() + 1 > WORTH * self.K
                if together is not None and not (few and gap > enough):
                    merged = mean_by_cluster(X, together, self.masses)[together]
                    if self.primal(merged, radius) <= primal:
                        return U, together, k
            if gap <= enough:
                break
        return U, None, k

    def _equal(self, U, X, radius, separate):
        """Components of the edges with duals inside their balls; None without any."""
        inside = np.empty(len(U), dtype=bool)
        for block in self.blocks:
            ahead = self.difference(X, block)
            _scale(ahead, self.steps[block])
            ahead += U[block]
            inside[block] = _norms(ahead) < radius[block] * (1.0 - 1e-9)
        inside &= ~(separate[self.heads] & separate[self.tails])
        if not inside.any():
            return None
        return _components(self.heads[inside], self.tails[inside], self.K)


class _AMA:
    """Full problem and its partition."""

    def __init__(self, problem, frame, lam, tol, max_iter, state):
        self.problem, self.frame, self.full = problem, frame, frame.network
        self.lam, self.tol, self.max_iter = float(lam), tol, max_iter
        self.radius = lam * self.full.weights
        self.state = self._start(state)
        self.failed = np.zeros(problem.n, dtype=np.intp)
        self.n_iter = 0
        self.history = {name: [] for name in COLUMNS}

    def _start(self, old):
        """A state at this lam: duals of another are scaled, which keeps them feasible."""
        n, full, lam = self.problem.n, self.full, self.lam
        if old is None:
            U = np.zeros((len(full.heads), self.problem.d))
            return AMAState(U, np.arange(n), lam, self.frame)
        ratio = lam / old.lam
        if not (old.converged or ratio == 1.0):
            return AMAState(ratio * old.U, np.arange(n), lam, self.frame)
        # Between clusters edges are saturated and stay so; the flows within them hardly change.
        between = old.labels[full.heads] != old.labels[full.tails]
        factor = np.where(between, ratio, min(ratio, 1.0))
        return AMAState(old.U * factor[:, None], old.labels, lam, self.frame)

    def run(self, progress, done=0):
        """Alternate between the graph of the clusters and the flows within them."""
        full, state = self.full, self.state
        labels, U, patience, failures = state.labels, state.U, MERGE_FROM, 0
        while True:
            progress.begin()
            labels, U, X, no_edges_left = self._ascend(labels, U, patience)
            primal, parted = full.primal(X, self.radius), labels
            gap, limit = self._gap(U, primal), self._limit(primal)
            if gap > limit and self.n_iter < self.max_iter:
                U, parted = self._flows(U, labels, X, primal)
                gap = self._gap(U, primal)
            values = self._record(labels, gap, primal)
            progress.tell(k=done + self.n_iter, **values)
            settled = gap <= limit or (no_edges_left and parted is labels)
            if settled or self.n_iter >= self.max_iter or progress.stopped:
                break
            if parted is not labels:
                labels = parted
                failures += 1
                patience = max(MERGE_LESS * patience, 1.0) if failures < MAX_FAILURES else 0.0
        state.U, state.labels, state.converged = U, labels, gap <= limit
        self.X, self.primal, self.gap = X, primal, gap

    def _ascend(self, labels, U, patience):
        """Ascend on the graph of the clusters, which shrinks on the way.

        Returns labels, duals and centres of the full graph, and whether no edge is left between
        clusters.
        """
        network, back = self.full, []
        stubborn = self.failed >= MAX_TRIES
        separate = stubborn
        if labels.max() + 1 == self.problem.n:
            labels = np.arange(self.problem.n)
        else:
            network, U, expand = network.merge(labels, U)
            back.append(expand)
            separate = np.bincount(labels, stubborn) > 0
        while len(network.heads) and self.n_iter < self.max_iter:
            share, left = SHARE if back else SHARE_WITHOUT_FLOWS, self.max_iter - self.n_iter
            limit = partial(self._limit, share=share)
            U, together, k = network.ascend(U, self.lam, limit, patience, left, separate)
            self.n_iter += k
            if together is None:
                break
            labels = together[labels]
            network, U, expand = network.merge(together, U)
            back.append(expand)
            separate = np.bincount(labels, stubborn) > 0
        X = network.centres(network.outflow @ U)
        for expand in reversed(back):
            U = expand(U)
        return labels, U, X[labels], not len(network.heads)

    def _limit(self, primal, share=1.0):
        """The gap to reach at a primal value, or a share of it."""
        return share * self.problem.tolerance(primal + self.frame.constant, self.tol)

    def _gap(self, U, primal):
        """Gap of the full problem, and what its arithmetic may have rounded."""
        full = self.full
        R, size = full.outflow @ U, _norms(U)
        dual, X = full.dual(R), full.centres(R)
        # Outflows round by the flows that they are sums of, and count by the centres; flows may
        # exceed their balls by a rounding, which is of the same size.
        load = np.bincount(full.heads, size, full.K) + np.bincount(full.tails, size, full.K)
        moved = float(load @ _norms(X)) + float(np.vdot(R, R)) + abs(float(np.vdot(R, full.A)))
        return max(primal - dual, 0.0) + ROUNDING * (moved + abs(primal) + abs(dual))

    def _record(self, labels, gap, primal):
        """Note where the full problem stands."""
        value, K = primal + self.frame.constant, int(labels.max()) + 1
        row = (self.n_iter, value, gap, K, self.problem.n)
        for column, entry in zip(self.history.values(), row, strict=True):
            column.append(entry)
        return {"objective": value, "gap": gap, "n_clusters": K}

    def _flows(self, U, labels, X, primal):
        """Improve the duals within clusters; the partition, clusters that lack a flow parted."""
        full, limit = self.full, self._limit(primal)
        missing = full.A - X - full.outflow @ U
        # The dual is below its value at X by half the square of the remainder.
        lack = 0.5 * np.bincount(labels, np.einsum("nd,nd->n", missing, missing))
        rest = self._gap(U, primal) - lack.sum()
        active = _largest(lack, LEAVE * limit)
        if not active.any():
            return U, labels
        part, U, gaps = self._interior(active, labels, missing, U), U.copy(), []
        for k in range(MAX_CORRECTIONS):
            part.correct()
            lack[part.clusters] = part.lack()
            gaps.append(rest + lack.sum())
            slow = k >= PROBATION and gaps[-1] > PROGRESS * gaps[-PROBATION]
            if gaps[-1] <= limit or slow:
                break
            active = _largest(lack, LEAVE * limit)
            if np.count_nonzero(active[part.labels]) < SHRINK * len(part.nodes):
                U[part.edges] = part.u
                part = part.keep(active)
        U[part.edges] = part.u
        if gaps[-1] <= limit:
            return U, labels
        return U, self._part(part, _largest(lack, SHARE * limit), labels)

    def _interior(self, active, labels, missing, U):
        """The clusters in the mask `active` and the flows within them."""
        full = self.full
        nodes = np.flatnonzero(active[labels])
        nodes = nodes[np.argsort(labels[nodes], kind="stable")]
        cluster = labels[full.heads]
        edges = np.flatnonzero(active[cluster] & (cluster == labels[full.tails]))
        place = np.empty(full.K, dtype=np.intp)
        place[nodes] = np.arange(len(nodes))
        ends = place[full.heads[edges]], place[full.tails[edges]]
        u, w = U[edges], full.weights[edges]
        return _Interior(
            nodes, labels[nodes], edges, ends, w, self.lam, missing[nodes], u, u.copy()
        )

    def _part(self, part, lacking, labels):
        """The partition where clusters in the mask `lacking` are parted at saturated edges."""
        slack = _norms(part.u) < part.radius * (1.0 - 1e-9)
        pieces = _components(part.heads[slack], part.tails[slack], len(part.nodes))
        chosen = np.flatnonzero(lacking[part.labels])
        nodes, cluster, pieces = part.nodes[chosen], part.labels[chosen], pieces[chosen]
        # If no cut shows, the cluster is split into the parts that it started from.
        start = self.state.labels[nodes]
        n, K = len(labels), len(lacking)
        for finer in (start, np.arange(len(nodes))):
            first = np.unique(cluster * n + pieces, return_index=True)[1]
            whole = np.bincount(cluster[first], minlength=K) == 1
            pieces = np.where(whole[cluster], finer, pieces)
        self.failed[nodes] += 1
        labels = labels.copy()
        labels[nodes] = K + np.unique(cluster * n + pieces, return_inverse=True)[1]
        used = np.bincount(labels) > 0
        return (np.cumsum(used) - 1)[labels]

    def result(self, contraction, n_iter, max_iter):
        """The result; its partition proved where that can be had."""
        problem, labels, U = self.problem, self.state.labels, self.state.U
        K = int(labels.max()) + 1
        W = self.X + self.frame.shift
        value, gap, certified = self.primal + self.frame.constant, self.gap, False
        outflow = self.full.outflow @ U
        crossing = abs(self.full.outflow) @ _norms(U)
        gap += problem.rounding(W, self.lam, crossing, origin=self.frame.shift)
        if contraction and K * problem.d <= MAX_PROOF:
            outcome = contract(
                problem,
                self.lam,
                labels,
                W,
                lambda: [np.ascontiguousarray(U.T)],
                max_splits=MAX_SPLITS,
                effort=EFFORT,
            )
            if outcome is not None and outcome.carried:
                theta = outcome.theta[outcome.labels]
                exact = problem.primal(theta, self.lam)
                bounds = problem.pool.ask(Conjugate, -outcome.divergence, x0=theta)
                rest = exact + float(bounds.sum())
                rest = max(rest + problem.rounding(theta, self.lam, outcome.crossing), 0.0)
                if rest <= max(gap, problem.tolerance(exact, self.tol)):
                    certified, labels = outcome.certified, outcome.labels
                    outflow = outcome.divergence
                    W, value, gap = theta, exact, rest
        limit = problem.tolerance(value, self.tol)
        return Result(
            cluster_params=mean_by_cluster(W, labels),
            labels=labels,
            params=W,
            objective=value,
            n_iter=n_iter,
            history={name: np.array(column) for name, column in self.history.items()},
            shortfall=shortfall(gap, limit, self.tol, max_iter),
            extra={"dual_gap": gap, "dual_coef": outflow, "partition_optimal": certified},
        )


def _outflow(heads, tails, n):
    """Operator of the net outflows of nodes, (n, n_edges)."""
    E = len(heads)
    ends = np.stack([heads, tails], axis=1).ravel()
    return sparse.csr_array(
        (np.tile([1.0, -1.0], E), ends, np.arange(0, 2 * E + 1, 2)), shape=(E, n)
    ).T


def _laplacian(heads, tails, w, n):
    """Laplacian, made not quite singular: every cluster's potentials are free by a constant."""
    degree = np.bincount(heads, w, n) + np.bincount(tails, w, n) + 1e-9 * w.mean()
    every = np.arange(n)
    entries = np.concatenate([-w, -w, degree])
    ends = np.concatenate([heads, tails, every]), np.concatenate([tails, heads, every])
    return sparse.csc_array((entries, ends), shape=(n, n))


class _Interior:
    """Flows within some clusters: accelerated ascent, preconditioned by the Laplacian.

    A step moves along the potential that carries all that is missing, and is clipped to the balls:
    it is exact where nothing is clipped.
    """

    def __init__(self, nodes, labels, edges, ends, w, lam, missing, u, last, momentum=1.0):
        self.nodes, self.labels, self.edges = nodes, labels, edges
        (self.heads, self.tails), self.w, self.lam = ends, w, lam
        self.clusters, self.number = np.unique(labels, return_inverse=True)
        self.missing, self.u, self.last, self.momentum = missing, u, last, momentum
        self.radius = lam * w
        self.outflow = _outflow(*ends, len(labels))
        self.needed = missing + self.outflow @ u
        L = _laplacian(*ends, w, len(labels))
        if u.shape[1] > MAX_FACTOR_COORDINATES:
            self.solve = _ConjugateGradients(L)
        else:
            self.solve = factor(L).solve

    def correct(self):
        """One step."""
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * self.momentum**2))
        speed, self.momentum = (self.momentum - 1.0) / following, following
        ahead, u = self.last, self.u
        np.subtract(u, ahead, out=ahead)
        ahead *= speed
        ahead += u
        missing = self.needed - self.outflow @ ahead
        p = self.solve(missing)
        step = p.take(self.heads, axis=0)
        step -= p.take(self.tails, axis=0)
        _scale(step, self.w)
        ahead += step
        _clip(ahead, self.radius)
        self.u, self.last = ahead, u
        before, self.missing = self.missing, self.needed - self.outflow @ ahead
        if np.vdot(p, before - self.missing) < 0.0:
            self.momentum = 1.0

    def lack(self):
        """Decrease of the dual by each cluster."""
        return 0.5 * np.bincount(self.number, np.einsum("nd,nd->n", self.missing, self.missing))

    def keep(self, active):
        """The clusters in the mask `active` only."""
        kept = active[self.labels]
        place = np.cumsum(kept) - 1
        e = np.flatnonzero(kept[self.heads])
        ends = place[self.heads[e]], place[self.tails[e]]
        nodes, labels, edges = self.nodes[kept], self.labels[kept], self.edges[e]
        arrays = self.missing[kept], self.u[e], self.last[e], self.momentum
        return _Interior(nodes, labels, edges, ends, self.w[e], self.lam, *arrays)


class _ConjugateGradients:
    """Rough solutions of ``L x = b``, preconditioned by the diagonal."""

    def __init__(self, L):
        self.L, self.inverse = L, 1.0 / L.diagonal()[:, None]

    def __call__(self, b):
        """``x``, column by column."""
        x, r = np.zeros_like(b), b.copy()
        z = self.inverse * r
        q = z
        rz = np.einsum("nd,nd->d", r, z)
        stop = CG_TOL**2 * np.einsum("nd,nd->d", b, b)
        for _ in range(CG_STEPS):
            Lq = self.L @ q
            step = rz / np.maximum(np.einsum("nd,nd->d", q, Lq), 1e-300)
            x += step * q
            r -= step * Lq
            if (np.einsum("nd,nd->d", r, r) <= stop).all():
                break
            z = self.inverse * r
            new = np.einsum("nd,nd->d", r, z)
            q = z + (new / np.maximum(rz, 1e-300)) * q
            rz = new
        return x


def _norms(U):
    """Lengths of the rows."""
    if U.shape[1] > SHORT:
        return np.sqrt(np.einsum("ed,ed->e", U, U))
    total = U[:, 0] * U[:, 0]
    for column in U.T[1:]:
        total += column * column
    return np.sqrt(total, out=total)


def _scale(U, factor):
    """Multiply every row by its factor, in place."""
    if U.shape[1] > SHORT:
        U *= factor[:, None]
    else:
        for column in U.T:
            column *= factor


def _clip(U, radius):
    """Shorten every row to its radius, in place."""
    size = _norms(U)
    np.maximum(size, radius, out=size)
    np.maximum(size, 1e-300, out=size)  # a radius may round to zero
    np.divide(radius, size, out=size)
    _scale(U, size)


def _largest(values, leave):
    """Mask of the largest values: the others sum to `leave` at most."""
    order = np.argsort(values)
    count = np.searchsorted(np.cumsum(values[order]), leave, side="right")
    mask = np.zeros(len(values), dtype=bool)
    mask[order[count:]] = True
    return mask


def _components(heads, tails, n):
    """Component of each of n nodes, from edges."""
    if not (np.diff(heads) >= 0).all():
        order = np.argsort(heads)
        heads, tails = heads[order], tails[order]
    starts = np.searchsorted(heads, np.arange(n + 1))
    links = sparse.csr_array((np.ones(len(heads)), tails, starts), shape=(n, n))
    # Pairs of labels are numbered by products, which the int32 of scipy is too narrow for.
    return connected_components(links, directed=False)[1].astype(np.intp)
