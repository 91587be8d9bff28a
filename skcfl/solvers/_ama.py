r"""Accelerated dual ascent for convex clustering of points, on graphs that shrink.

    P:  minimise  sum_k m_k/2 |x_k - a_k|^2 + lam sum_e w_e |x_k - x_l|,    e = (k, l) edges
    D:  maximise  sum_k m_k/2 (|a_k|^2 - |x_k(u)|^2)  over  |u_e| <= lam w_e,
        x_k(u) = a_k - (D'u)_k / m_k

The alternating minimisation algorithm (AMA) of Chi and Lange (2015) is projected gradient ascent
on D; here with Nesterov's acceleration, restarts where the momentum points downhill, and a step
for every edge, ``1 / (deg_k / m_k + deg_l / m_l)`` with the numbers of edges at its ends.  The
local models are all that the server needs: clients whose objective is half the squared distance
to their local model, up to a constant.

What makes it fast is that points which share their centre are one node of mass m_k, parallel
edges one edge (the reduced problem of the partition), so that the graph shrinks:

1. ascend on the graph of the clusters until its gap is small; where edges inside their balls make
   models equal and that lowers P, merge them and go on;
2. look for the flows within clusters that the full dual needs: a correction by potentials (one
   Laplacian system), clipped to the balls, some times over;
3. where the gap of the full problem stays too large, clusters whose flow is missing are taken
   apart again, and the next merger has to wait for a smaller gap.

The gap is always that of the full problem, so that a merger too early costs time only.

=========  ==================  =====================================================
here       symbol              what it is
=========  ==================  =====================================================
``A``      a_k                 local models, centred
``U``      u_e                 edge duals of the full graph
``V``      .                   extrapolated duals
``X``      x_k                 centres
=========  ==================  =====================================================
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from .._contraction import contract
from ._result import Result

# Gap, in units of the one to reach, below which models are merged; less after each bad merger.
MERGE_FROM, MERGE_LESS = 1000.0, 0.05
# Bad mergers after which there are no more.
MAX_FAILURES = 10
# Part of the gap that the ascent and the flows may each take up.
SHARE = 0.3
# Corrections of the flows; the least fall of the gap for which they go on.
MAX_CORRECTIONS, PROGRESS = 12, 0.8
# Coordinates up to which Laplacian systems are factorised: graphs of neighbours in more have no
# small separators, and conjugate gradients converge fast on them.
MAX_FACTOR_COORDINATES = 3
CG_STEPS, CG_TOL = 25, 1e-2
# Unknowns of the reduced problem up to which the partition is to be proved in the end, and what
# that may cost (see ``contract``).
MAX_PROOF, MAX_SPLITS, EFFORT = 1500, 10, 100.0


@dataclass
class AMAState:
    """Where the solver stands: enough to go on, at this lam or another."""

    U: np.ndarray
    labels: np.ndarray
    lam: float
    converged: bool = True


def ama(problem, lam, *, tol=1e-6, max_iter=2000, state=None, contraction=True, verbose=0):
    """Solve convex clustering of points on a sparse graph.

    Parameters
    ----------
    problem : FusionProblem
        With the Euclidean norm, clients whose objective is half the squared distance to their
        local model up to a constant, and a graph with a list of edges.
    lam : float
        Positive weight of the penalty.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most iterations, on graphs of whatever size.
    state : AMAState, default=None
        Where to start; one at another ``lam`` if it had converged.
    contraction : bool
        Whether to prove the partition at the end, which also makes the solution exact.
    verbose : int
        Whether to print the gap of the full problem whenever it is known.

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the sums ``(D'u)_i``) and
        ``partition_certified``.
    state : AMAState
        The last iterate.
    """
    loop = _AMA(problem, lam, tol, max_iter, state, verbose)
    loop.run()
    return loop.result(contraction), loop.state


class _Network:
    """Nodes with masses and edges: the problem on one partition."""

    def __init__(self, heads, tails, weights, masses, A):
        self.heads, self.tails, self.weights, self.masses, self.A = (
            heads,
            tails,
            weights,
            masses,
            A,
        )
        K, E = len(masses), len(heads)
        self.K = K
        ends = np.concatenate([heads, tails]), np.tile(np.arange(E), 2)
        self.outflow = sparse.csr_array((np.repeat([1.0, -1.0], E), ends), shape=(K, E))
        crowd = (np.bincount(heads, minlength=K) + np.bincount(tails, minlength=K)) / masses
        self.steps = (1.0 / (crowd[heads] + crowd[tails]))[:, None]

    def centres(self, U):
        """``x(u)``."""
        return self.A - (self.outflow @ U) / self.masses[:, None]

    def primal(self, X, radius):
        """Objective at centres `X`."""
        away = X - self.A
        loss = 0.5 * float(self.masses @ np.einsum("kd,kd->k", away, away))
        return loss + float(radius @ _norms(X[self.heads] - X[self.tails]))

    def dual(self, X):
        """Dual objective where the centres are ``X = x(u)``."""
        A = self.A
        gain = np.einsum("kd,kd->k", A, A) - np.einsum("kd,kd->k", X, X)
        return 0.5 * float(self.masses @ gain)

    def ascend(self, U, lam, limit, merge_limit, max_iter):
        """Accelerated ascent until the gap is at most `limit`, or models can be merged.

        Returns
        -------
        U : ndarray of shape (n_edges, d)
            Duals.
        X : ndarray of shape (K, d)
            Centres, of merged models their common one.
        together : ndarray of shape (K,) or None
            Which nodes to merge; None for none.
        n_iter : int
            Iterations.
        """
        radius = lam * self.weights
        inverse = 1.0 / self.steps
        V, momentum, check_at = U, 1.0, 2
        spare = np.empty_like(U)
        for k in range(1, max_iter + 1):
            X = self.centres(V)
            new = np.take(X, self.heads, axis=0)
            new -= np.take(X, self.tails, axis=0, out=spare)
            new *= self.steps
            new += V
            _clip(new, radius)
            move = new - U
            np.subtract(V, new, out=spare)
            spare *= inverse
            if np.vdot(spare, move) > 0.0:
                momentum = 1.0
            following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
            move *= (momentum - 1.0) / following
            move += new
            U, V, momentum = new, move, following
            if k < check_at and k < max_iter:
                continue
            check_at = k + (2 if k < 4 else 4 if k < 12 else 8)
            X = self.centres(U)
            primal = self.primal(X, radius)
            gap = primal - self.dual(X)
            if gap <= merge_limit:
                together = self._equal(U, X, radius)
                if together is not None:
                    merged = _means(X, together, self.masses)[together]
                    if self.primal(merged, radius) <= primal:
                        return U, merged, together, k
            if gap <= limit:
                break
        return U, X, None, k

    def _equal(self, U, X, radius):
        """Components of the edges whose duals stay inside their balls; None without any."""
        ahead = U + self.steps * (X[self.heads] - X[self.tails])
        inside = _norms(ahead) < radius * (1.0 - 1e-9)
        if not inside.any():
            return None
        ends = self.heads[inside], self.tails[inside]
        links = sparse.coo_array((np.ones(len(ends[0])), ends), shape=(self.K, self.K))
        return connected_components(links, directed=False)[1]


class _AMA:
    """Full problem and its partition."""

    def __init__(self, problem, lam, tol, max_iter, state, verbose):
        self.problem, self.lam, self.tol, self.max_iter = problem, lam, tol, max_iter
        self.verbose = verbose
        graph, local = problem.graph, problem.local_models()
        self.shift = local.mean(axis=0)
        # Far from the origin squares would cost digits.
        A = local - self.shift
        self.full = _Network(graph.heads, graph.tails, graph.weights, np.ones(problem.n), A)
        self.constant = float(problem.objectives(local).sum())
        self.radius = lam * graph.weights
        self.state = self._start(state)
        self.n_iter, self.laplacian = 0, None
        self.history = {
            name: [] for name in ("round", "objective", "gap", "n_clusters", "participants")
        }

    def _start(self, old):
        n, lam = self.problem.n, self.lam
        if old is None or not (old.converged or old.lam == lam):
            U = np.zeros((len(self.full.heads), self.problem.d))
            return AMAState(U, np.arange(n), lam)
        # Between clusters edges are saturated and stay so; the flows within them hardly change.
        ratio = lam / old.lam
        between = old.labels[self.full.heads] != old.labels[self.full.tails]
        return AMAState(
            old.U * np.where(between, ratio, min(ratio, 1.0))[:, None], old.labels, lam
        )

    def run(self):
        """Alternate between the graph of the clusters and the flows within them."""
        full, state = self.full, self.state
        labels, U, patience, failures = state.labels, state.U, MERGE_FROM, 0
        size = 0.5 * float(np.einsum("kd,kd->", full.A, full.A))
        while True:
            limit = SHARE * self._limit(size)
            network, expand, V = self._reduce(labels, U)
            left = max(self.max_iter - self.n_iter, 1)
            together, centres = None, network.A
            if len(network.heads):
                V, centres, together, k = network.ascend(
                    V, self.lam, limit, patience * limit, left
                )
                self.n_iter += k
            U = expand(V)
            X = centres[labels]
            size = full.primal(X, self.radius)
            if together is not None:
                labels = together[labels]
            done = self._gap(U, size) <= self._limit(size) or self.n_iter >= self.max_iter
            if together is not None and not done:
                continue
            missing = ()
            if not done:
                U, missing = self._flows(U, labels, X, size)
            gap = self._record(labels, self._gap(U, size), size)
            if done or not (len(missing) or len(network.heads)):
                break
            if len(missing):
                labels = _apart(labels, missing, state.labels)
                failures += 1
                patience = max(MERGE_LESS * patience, 1.0) if failures < MAX_FAILURES else 0.0
        state.U, state.labels, state.converged = U, labels, gap <= self._limit(size)
        self.X, self.primal, self.gap = X, size, gap

    def _limit(self, primal):
        return self.problem.tolerance(primal + self.constant, self.tol)

    def _gap(self, U, primal):
        """Gap of the full problem."""
        return max(primal - self.full.dual(self.full.centres(U)), 0.0)

    def _record(self, labels, gap, primal):
        row = (self.n_iter, primal + self.constant, gap, labels.max() + 1, self.problem.n)
        for column, value in zip(self.history.values(), row, strict=True):
            column.append(value)
        if self.verbose:
            print(
                f"iteration {self.n_iter}: objective {primal + self.constant:.9g}, gap {gap:.3g}, "
                f"{labels.max() + 1} clusters"
            )
        return gap

    def _reduce(self, labels, U):
        """Network of the clusters, its duals, and how to give them back to the full graph."""
        full, K = self.full, int(labels.max()) + 1
        if K == self.problem.n and (labels == np.arange(K)).all():
            return full, lambda V: V, U
        a, b = labels[full.heads], labels[full.tails]
        between = np.flatnonzero(a != b)
        a, b, w = a[between], b[between], full.weights[between]
        sign = np.where(a < b, 1.0, -1.0)
        key, pair = np.unique(np.minimum(a, b) * K + np.maximum(a, b), return_inverse=True)
        weights = np.bincount(pair, w, len(key))
        total = sparse.csr_array((sign, (pair, np.arange(len(pair)))), shape=(len(key), len(pair)))
        masses = np.bincount(labels).astype(float)
        network = _Network(*divmod(key, K), weights, masses, _means(full.A, labels))
        share = (sign * w / weights[pair])[:, None]

        def expand(V):
            # Parallel edges carry in proportion to their weights.
            out = U.copy()
            out[between] = share * V[pair]
            return out

        return network, expand, total @ U[between]

    def _flows(self, U, labels, X, primal):
        """Improve the duals within clusters; clusters that still lack a flow."""
        full, limit = self.full, self._limit(primal)
        none = np.empty(0, dtype=np.intp)
        missing = full.A - X - full.outflow @ U
        inside = labels[full.heads] == labels[full.tails]
        if not inside.any():
            return U, none
        heads, tails, w = full.heads[inside], full.tails[inside], full.weights[inside]
        solve = self._potentials(inside, heads, tails, w)
        radius, U = self.lam * w, U.copy()
        u, least = U[inside], np.inf
        for k in range(MAX_CORRECTIONS):
            p = solve(missing - _means(missing, labels)[labels])
            u = u + w[:, None] * (p[heads] - p[tails])
            _clip(u, radius)
            U[inside] = u
            missing = full.A - X - full.outflow @ U
            gap = primal - full.dual(X + missing)
            if gap <= limit:
                return U, none
            if k >= 3 and gap > PROGRESS * least:
                break
            least = min(least, gap)
        # The gap is half the squared flow missing: name the clusters that lack most of it.
        lack = 0.5 * np.bincount(labels, np.einsum("nd,nd->n", missing, missing))
        order = np.argsort(-lack)
        count = np.searchsorted(np.cumsum(lack[order]), lack.sum() - SHARE * limit) + 1
        worst = order[:count]
        return U, worst[np.bincount(labels)[worst] > 1]

    def _potentials(self, inside, heads, tails, w):
        """Solver of Laplacian systems within clusters; kept while the clusters are the same."""
        if self.laplacian is None or not np.array_equal(self.laplacian[0], inside):
            n = self.problem.n
            L = sparse.csr_array(
                sparse.coo_array(
                    (
                        np.concatenate([-w, -w]),
                        (np.concatenate([heads, tails]), np.concatenate([tails, heads])),
                    ),
                    shape=(n, n),
                )
            )
            # Not quite singular: every cluster's potentials are free by a constant.
            L = sparse.csr_array(
                L + sparse.diags_array(1e-9 * w.mean() - np.asarray(L.sum(axis=1)).ravel())
            )
            if self.problem.d <= MAX_FACTOR_COORDINATES:
                solve = splu(sparse.csc_array(L)).solve
            else:
                solve = _ConjugateGradients(L)
            self.laplacian = inside, solve
        return self.laplacian[1]

    def result(self, contraction):
        """The result; its partition proved where that can be had."""
        problem, labels, U = self.problem, self.state.labels, self.state.U
        K = int(labels.max()) + 1
        W = self.X + self.shift
        value, gap, certified = self.primal + self.constant, self.gap, False
        outflow = self.full.outflow @ U
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
            if outcome is not None and outcome.certified:
                certified, labels, outflow = True, outcome.labels, outcome.divergence
                W = outcome.theta[labels]
                value = problem.primal(W, self.lam)
                bounds, _ = problem.pool.conjugate(-outflow, x0=W)
                gap = max(value + float(bounds.sum()), 0.0)
        limit = problem.tolerance(value, self.tol)
        converged = gap <= limit
        return Result(
            cluster_params=_means(W, labels),
            labels=labels,
            params=W,
            objective=value,
            n_iter=self.n_iter,
            history={name: np.array(column) for name, column in self.history.items()},
            converged=converged,
            shortfall=""
            if converged
            else f"The duality gap is {gap:.2g} after max_iter={self.max_iter} iterations, more "
            f"than tol={self.tol:g} allows ({limit:.2g}). Increase max_iter or tol.",
            extra={"dual_gap": gap, "dual_coef": outflow, "partition_certified": certified},
        )


class _ConjugateGradients:
    """Rough solutions of ``L x = b``, preconditioned by the diagonal."""

    def __init__(self, L):
        self.L, self.inverse = L, 1.0 / L.diagonal()[:, None]

    def __call__(self, b):
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
    return np.sqrt(np.einsum("ed,ed->e", U, U))


def _clip(U, radius):
    """Shorten every row to its radius, in place."""
    size = _norms(U)
    np.maximum(size, radius, out=size)
    np.divide(radius, size, out=size)
    U *= size[:, None]


def _means(X, labels, masses=None):
    """Mean of every cluster, (K, d), weighted by masses."""
    masses = np.ones(len(labels)) if masses is None else masses
    K = int(labels.max()) + 1
    total = sparse.csr_array((masses, (labels, np.arange(len(labels)))), shape=(K, len(labels)))
    return (total @ X) / np.bincount(labels, masses, K)[:, None]


def _apart(labels, clusters, start):
    """Take clusters apart: into those of a partition `start`, or else into single nodes."""
    n = len(labels)
    # Of a cluster that was there from the start nothing is left.
    pieces = np.bincount(np.unique(np.stack([labels, start]), axis=1)[0])
    alone = np.isin(labels, clusters)
    whole = pieces[labels] == 1
    new = np.where(alone, np.where(whole, 2 * n + np.arange(n), n + start), labels)
    return np.unique(new, return_inverse=True)[1]
