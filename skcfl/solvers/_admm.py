r"""Two-block ADMM for fusion problems, with a certified duality gap.

    P:  minimise  sum_i f_i(x_i) + lam sum_e w_e phi(x_i - x_j),   e = (i, j) edges, each once
    D:  maximise  -sum_i f_i^*(-(D'u)_i) - sum_e (lam w_e phi)^*(u_e)

(Armacki et al. (2022), problem (3) with lam scaled as the user guide says; SarcheshmehPour et
al. (2023), problem (16)).  Splitting x = v, z = D v, one iteration is

    x_i   <- argmin f_i(x) + rho r / 2 |x - (v_i - a_i)|^2          clients (prox)
    z_e   <- prox of (lam w_e / rho) phi at q_e = (D v)_e - b_e      server, edge by edge
    v     <- (r I + D'D)^-1 (r (x + a) + D'(z + b))                  server
    a, b  <- a + x - v,  b + z - D v

with x and z over-relaxed.  One array ``t = b + z`` an edge is stored: then ``q = 2 D v - t``.
The edge dual ``u = rho (q - z)`` is feasible in every iteration, so a duality gap needs the
conjugates of the clients only.

=========  ==================  =====================================================
here       symbol              what it is
=========  ==================  =====================================================
``W``      x_i                 clients' models
``V``      v_i                 the server's copy, which the penalty sees
``A``      a_i                 scaled dual of x = v
``T``      t_e                 scaled dual of z = D v, plus z
``rho``    rho                 penalty of the split, adapted by residual balancing
``r``      r                   weight of x = v, the mean degree
=========  ==================  =====================================================
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import splu

from .._contraction import contract, solve_columns
from ._result import Result

RELAXATION = 1.7
# Nodes up to which the v-step is one factorisation; beyond, conjugate gradients.
MAX_FACTOR = 1500
FIRST_CHECK, CHECK_EVERY = 5, 10


@dataclass
class FusionState:
    """Where a solver stands: enough to go on, at this lam or another."""

    W: np.ndarray
    V: np.ndarray
    A: np.ndarray
    T: list
    rho: float
    lam: float


def admm(problem, lam, *, tol=1e-6, max_iter=2000, state=None, contraction=True, verbose=0):
    """Solve a fusion problem.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    lam : float
        Positive weight of the penalty.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most iterations.
    state : FusionState, default=None
        Where to start; at another ``lam`` its duals are rescaled.
    contraction : bool
        Whether to try the exact partition: solve the reduced problem of the clusters seen,
        and prove it by a flow.
    verbose : int
        Whether to print the gap at every check.

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the sums ``(D'u)_i``) and
        ``partition_certified``.
    state : FusionState
        The last iterate.
    """
    loop = _ADMM(problem, lam, tol, max_iter, state, contraction, verbose)
    result = loop.run()
    return result, loop.state


@dataclass
class _Pass:
    """What one pass over the edges gives: node sums, and at a check what the check needs."""

    outflow: np.ndarray
    divergence: np.ndarray | None = None
    zeros: list = field(default_factory=list)
    primal2: float = 0.0
    conjugate: float = 0.0


class _ADMM:
    def __init__(self, problem, lam, tol, max_iter, state, contraction, verbose):
        self.problem, self.lam, self.tol, self.max_iter = problem, lam, tol, max_iter
        self.verbose = verbose
        graph, penalty = problem.graph, problem.penalty
        self.r = max(float(graph.degrees(weighted=False).mean()), 1e-12)
        self.average = _Averaging(graph, self.r)
        self.contraction = contraction and penalty.fuses
        self.state = self._start(state)
        self.history = {
            name: []
            for name in ("objective", "gap", "n_clusters", "participants", "floats_up", "floats_down")
        }
        self.best = None
        self.labels = None
        self.wait, self.spacing = 0, 1
        self.failed = set()

    def _start(self, old):
        problem, lam = self.problem, self.lam
        rho = problem.curvature() / self.r
        if old is None:
            W = problem.local_models()
            T = [block.difference(W.T) for block in problem.blocks]
            V = W.copy()
            return FusionState(W.copy(), V, np.zeros_like(W), T, rho, lam)
        # Duals grow with lam; in units of rho they also change with rho.
        factor = (lam / old.lam) * (old.rho / rho)
        VT = np.ascontiguousarray(old.V.T)
        T = []
        for block, t in zip(problem.blocks, old.T, strict=True):
            DV = block.difference(VT)
            T.append(DV + factor * (t - DV))
        return FusionState(old.W.copy(), old.V.copy(), factor * old.A, T, rho, lam)

    # ----------------------------------------------------------------------- iteration

    def run(self):
        state = self.state
        check_at = FIRST_CHECK
        for k in range(1, self.max_iter + 1):
            check = k >= check_at or k == self.max_iter
            V_old = state.V
            W = self.problem.pool.prox(V_old - state.A, state.rho * self.r, x0=state.W)
            edges = self._edge_pass(check)
            W_hat = RELAXATION * W + (1.0 - RELAXATION) * V_old
            V = self.average(self.r * (W_hat + state.A) + edges.outflow)
            state.A = state.A + W_hat - V
            state.W, state.V = W, V
            if check:
                if self._check(k, edges):
                    break
                self._balance(k, W, V_old, V, edges.primal2)
                check_at = k + (CHECK_EVERY if k < 200 else 5 * CHECK_EVERY)
        return self._result(k)

    def _edge_pass(self, check):
        """z, the dual and t of every edge; what the nodes need of them."""
        state, problem, penalty = self.state, self.problem, self.problem.penalty
        VT = np.ascontiguousarray(state.V.T)
        edges = _Pass(outflow=np.zeros_like(VT))
        if check:
            edges.divergence = np.zeros_like(VT)
        scale = self.lam / state.rho
        for block, t in zip(problem.blocks, state.T, strict=True):
            DV = block.difference(VT)
            q = 2.0 * DV
            q -= t
            p = penalty.project(q, scale * block.weights)
            if check:
                block.add_divergence(p, edges.divergence)
                if self.contraction:
                    block.mark(~(q - p).any(axis=0), edges.zeros)
                if not penalty.norm:
                    conjugate = penalty.conjugate(state.rho * p, self.lam * block.weights)
                    edges.conjugate += block.total(conjugate)
                gap = DV - t - p
                edges.primal2 += block.total(np.einsum("d...,d...->...", gap, gap))
            # t <- t + relaxation (z - D v),  z - D v = D v - t - p
            p += t
            np.subtract(DV, p, out=p)
            p *= RELAXATION
            t += p
            block.add_divergence(t, edges.outflow)
        edges.outflow = edges.outflow.T
        if check:
            edges.divergence = state.rho * edges.divergence.T
        return edges

    # -------------------------------------------------------------------------- checks

    def _check(self, k, edges):
        """Gap of the present iterate, exact partition if it can be had; whether to stop."""
        problem, lam = self.problem, self.lam
        state = self.state
        candidates = [state.V, state.W]
        values = [problem.primal(c, lam) for c in candidates]
        which = int(np.argmin(values))
        primal = values[which]
        bounds, _ = problem.pool.conjugate(-edges.divergence, x0=state.W)
        dual = -float(bounds.sum()) - edges.conjugate
        self._keep(primal, dual, candidates[which], edges.divergence, None, False)
        n_clusters = problem.n
        if self.contraction:
            labels = _components(edges.zeros, problem.n)
            n_clusters = int(labels.max()) + 1
            self._contract(labels)
        best = self.best
        self._record(best["primal"], best["gap"], n_clusters)
        if self.verbose:
            print(
                f"iteration {k}: objective {best['primal']:.9g}, gap {best['gap']:.3g}, "
                f"{n_clusters} clusters"
            )
        return best["gap"] <= problem.tolerance(best["primal"], self.tol)

    def _keep(self, primal, dual, W, divergence, labels, certified):
        """Remember the best primal point and the best dual bound."""
        best = self.best
        if best is None:
            best = self.best = {"primal": np.inf, "dual": -np.inf, "labels": None, "certified": False}
        if primal < best["primal"] or certified:
            best.update(primal=primal, W=np.array(W), labels=labels, certified=certified)
        if dual > best["dual"] or "divergence" not in best:
            best.update(dual=dual, divergence=divergence)
        best["gap"] = max(best["primal"] - best["dual"], 0.0)

    def _contract(self, labels):
        """Try the partition seen, at growing intervals while it fails."""
        problem = self.problem
        K = int(labels.max()) + 1
        key = labels.tobytes()
        seen_before = self.labels is not None and np.array_equal(labels, self.labels)
        self.labels = labels
        self.wait -= 1
        if K == problem.n or not seen_before or self.wait > 0:
            return
        outcome = contract(problem, self.lam, labels, self.state.V, self._edge_duals)
        if outcome is None or not outcome.certified:
            self.wait = self.spacing = min(2 * self.spacing, 16)
            return
        W = outcome.theta[outcome.labels]
        primal = problem.primal(W, self.lam)
        bounds, _ = problem.pool.conjugate(-outcome.divergence, x0=W)
        self._keep(primal, -float(bounds.sum()), W, outcome.divergence, outcome.labels, True)

    def _edge_duals(self):
        """Feasible edge duals of the present iterate, block by block."""
        state, problem = self.state, self.problem
        VT = np.ascontiguousarray(state.V.T)
        scale = self.lam / state.rho
        return [
            state.rho
            * problem.penalty.project(2.0 * block.difference(VT) - t, scale * block.weights)
            for block, t in zip(problem.blocks, state.T, strict=True)
        ]

    def _balance(self, k, W, V_old, V, primal2):
        """Residual balancing: rho keeps the primal and dual residuals of one size."""
        state, r = self.state, self.r
        primal2 = primal2 + r * float(((W - V) ** 2).sum())
        move = V - V_old
        MT = np.ascontiguousarray(move.T)
        dual2 = r * float((move**2).sum())
        for block in self.problem.blocks:
            DM = block.difference(MT)
            dual2 += block.total(np.einsum("d...,d...->...", DM, DM))
        if k > 100 and (k // CHECK_EVERY) % 5:
            return
        ratio = np.sqrt(max(primal2, 1e-300) / max(dual2, 1e-300))
        if 0.2 < ratio < 5:
            return
        factor = 2.0 if ratio > 1 else 0.5
        state.rho *= factor
        state.A /= factor
        VT = np.ascontiguousarray(state.V.T)
        for block, t in zip(self.problem.blocks, state.T, strict=True):
            DV = block.difference(VT)
            t -= DV
            t /= factor
            t += DV

    def _record(self, objective, gap, n_clusters):
        up, down = self.problem.pool.ledger.since_mark()
        row = (objective, gap, n_clusters, self.problem.n, up, down)
        for column, value in zip(self.history.values(), row, strict=True):
            column.append(value)

    def _result(self, n_iter):
        best, problem = self.best, self.problem
        limit = problem.tolerance(best["primal"], self.tol)
        labels = best["labels"]
        certified = best["certified"]
        W = best["W"]
        if labels is None:
            labels = self.labels if self.contraction else np.arange(problem.n)
        K = int(labels.max()) + 1
        theta = np.zeros((K, problem.d))
        np.add.at(theta, labels, W)
        theta /= np.bincount(labels, minlength=K)[:, None]
        converged = best["gap"] <= limit
        return Result(
            cluster_params=theta,
            labels=labels,
            params=W,
            objective=best["primal"],
            n_iter=n_iter,
            history={name: np.array(column) for name, column in self.history.items()},
            converged=converged,
            shortfall=""
            if converged
            else f"The duality gap is {best['gap']:.2g} after max_iter={self.max_iter} iterations, "
            f"more than tol={self.tol:g} allows ({limit:.2g}). Increase max_iter or tol.",
            extra={
                "dual_gap": best["gap"],
                "dual_coef": best["divergence"],
                "partition_certified": certified,
            },
        )


class _Averaging:
    """``(r I + D'D)^-1`` on (n, d) arrays."""

    def __init__(self, graph, r):
        self.r, self.complete, self.n = r, graph.is_complete, graph.n_nodes
        if self.complete:
            return
        M = graph.laplacian(weighted=False) + r * sparse.eye_array(self.n)
        self.matrix = sparse.csr_array(M)
        self.factor = splu(sparse.csc_array(M)) if self.n <= MAX_FACTOR else None
        self.last = None

    def __call__(self, R):
        if self.complete:
            return (R + R.sum(axis=0) / self.r) / (self.r + self.n)
        if self.factor is not None:
            return self.factor.solve(np.ascontiguousarray(R))
        self.last = solve_columns(self.matrix, R, self.last, tol=1e-10, max_iter=200)
        return self.last


def _components(zeros, n):
    """Components of the pairs whose difference is exactly zero, numbered from 0."""
    heads = np.concatenate([pair[0] for pair in zeros])
    tails = np.concatenate([pair[1] for pair in zeros])
    A = sparse.coo_array((np.ones(len(heads), dtype=bool), (heads, tails)), shape=(n, n))
    return connected_components(sparse.csr_array(A), directed=False)[1]
