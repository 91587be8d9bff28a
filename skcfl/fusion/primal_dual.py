r"""Primal-dual message passing for fusion problems, on a graph of clients.

    (16)  minimise  sum_i f_i(w_i) + lam sum_e A_e phi(w_i - w_j),   e = (i, j) edges, i < j
    (19)  maximise  -sum_i f_i^*(-(D'u)_i) - sum_e (lam A_e phi)^*(u_e)

Algorithm 1 of SarcheshmehPour et al. (2023).  One iteration is

    3, 4   w_i+ = argmin f_i(w) + |w - (w_i - tau_i (D'u)_i)|^2 / (2 tau_i)    (32)   nodes
    7      v_e  = u_e + sigma_e (D (2 w+ - w))_e                                      edges
    8      u_e+ = argmin (lam A_e phi)^*(u) + |u - v_e|^2 / (2 sigma_e)        (33)   edges

with ``tau_i = s / deg_i`` and ``sigma_e = 1 / (2 s)``.  By Moreau's identity the edge update is
``sigma_e`` times ``penalty.project(v_e / sigma_e, lam A_e / sigma_e)``: the clipping (1) of
vectors (L2) or of entries (L1), a division by ``1 + sigma_e / (lam A_e)`` (SquaredL2).

=============  ==================  ==========================================================
here           symbol              what it is
=============  ==================  ==========================================================
``W``          w^(i)               models of the nodes, (n, d)
``V``          hat w^(i)_{k+1}     their proposals, from the node updates
``U``          u^(e) / sigma_e     scaled flows of the edges, one array a block of edges
``P``          hat u^(e) / sigma_e their proposals: feasible in every iteration
``outflow``    s^(i) / sigma_e     ``D'U``, net outflow of the nodes
``ratio``      s (1 as printed)    primal over dual step
``degree``     |N^(i)|             number of neighbours
=============  ==================  ==========================================================

Differences from the printed algorithm:

- the ratio of the steps.  With ``s = 1`` a flow moves by half a difference of models only, and a
  model by lam at most, however flat the losses are: ten to a hundred times the iterations.  Here
  ``s`` starts where the strength ``deg_i / s`` of (32) is of the size of the clients' curvature
  and follows the moves of models and flows.  Every change is bounded more tightly than the last
  and the bounds have a finite product, so that ``s`` settles and convergence is that of fixed
  steps, which any ``s > 0`` has: ``|sum_e sigma_e (D T^(1/2) w)_e^2| <= |w|^2``.
- over-relaxation by 1.7: proposals are overshot (any factor below 2 converges).
- models start at the clients' own instead of 0.
- nodes without neighbours have no step; they keep their own minimiser.

``ratio=1, relaxation=1`` is the printed algorithm.  Misprints: the optimality condition (25) has
a factor ``lam A_e`` too many in its second line (for norms it does not matter); ``s^(i)`` in
(34) is ``-grad L_i`` at the solution and the conjugate there is rightly taken at ``-s^(i)``.  The
paper's squared error has no 1/2: its lam is twice the lam here.

Updates (32) may be inexact: the gap is computed from their results, and it converges if errors are
summable.  The conjugate of a node without rows is finite only at zero, so flows into such nodes
are corrected first (``FusionProblem.conserved``).  It is infinite if a loss does not grow in all
directions (fewer rows than features without a local penalty), unless an exact partition gives a
dual that is feasible.  Then the residual gap decides: as the duality gap, but with the minima of
``f_i - <s_i, .>`` bounded on a ball only, by convexity,

    f_i^*(s_i) <~ <s_i, w_i> - f_i(w_i) + |grad f_i(w_i) - s_i| R,    s = -D'u,

with R the ball's radius, twice the norm of the largest model.  It bounds the excess of the
objective if the solution lies no farther away, and is zero at solutions only.

Messages: on a network of peers both ends of an edge keep its flow; a node sends its new model
to its neighbours, and nothing else: ``2 E`` messages of d floats per iteration (``history``'s
``messages`` and ``message_floats``).  A server that keeps the flows exchanges with every node one
vector each way (``floats_down``, ``floats_up``, which also have the checks' messages).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..calls.curvatures import Prox
from ..calls.first_order import ObjectivesGradients
from ..graphs.edges import require_edges
from .certified import CHECK_EVERY, SETTLED, CertifiedLoop, EdgeSums
from .solvers import RELAXATION, PrimalDual, solver

__all__ = ["primal_dual"]

# The ratio changes by at most 2 ** (MEMORY ** changes), where moves differ by more than BALANCE.
BALANCE, MEMORY = 2.0, 0.93
# Nodes of a sparse graph beyond which this is the fastest solver, by benchmarks/gtv.py.
LARGE_GRAPH = 1500
# Radius of the ball on which the residual gap holds, in norms of the largest model.
BALL = 2.0


@dataclass
class PrimalDualState:
    """State of the solver: enough to go on, at this lam or another."""

    W: np.ndarray
    U: list | None
    ratio: float
    lam: float
    labels: np.ndarray | None = None  # the partition, where it was exact

    def without_edges(self):
        """The same for another graph."""
        return replace(self, U=None)


def is_large(graph):
    """True if messages along edges are cheaper than the linear systems of the ADMM."""
    return graph.n_nodes > LARGE_GRAPH and not graph.is_complete


@solver(PrimalDual)
def primal_dual(
    problem,
    lam,
    *,
    tol=1e-6,
    max_iter=5000,
    ratio=None,
    relaxation=RELAXATION,
    state=None,
    contraction=True,
):
    """Solve a fusion problem by primal-dual message passing.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    lam : float
        Positive weight of the penalty.
    tol : float
        Relative duality gap to reach; of the residual gap where the former is infinite.
    max_iter : int
        Most iterations.
    ratio, relaxation, contraction
        See :class:`~skcfl.fusion.solvers.PrimalDual`.
    state : PrimalDualState, default=None
        State to start from; at another ``lam`` its flows are rescaled and the ratio starts anew,
        and its partition, or one that follows from it, is tried before the first iteration.

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the sums ``(D'u)_i``),
        ``partition_optimal``, ``residual_gap`` (nan where it was not needed) and ``ratio``.
    state : PrimalDualState
        The last iterate.

    Raises
    ------
    ValueError
        If `ratio` is not positive or `relaxation` not between 0 and 2.
    """
    loop = _PrimalDual(problem, lam, tol, max_iter, ratio, relaxation, state, contraction)
    result = loop.run()
    return result, loop.state


class _PrimalDual(CertifiedLoop):
    def __init__(self, problem, lam, tol, max_iter, ratio, relaxation, state, contraction):
        super().__init__(problem, lam, tol, max_iter, contraction)
        self.relaxation, self.adaptive, self.changes = relaxation, ratio is None, 0
        degree = problem.graph.degrees(weighted=False)
        self.isolated = np.flatnonzero(degree == 0)
        self.degree = np.maximum(degree, 1.0)
        self.state = self._start(ratio, state)
        # Last answers of the clients; before relaxation.
        self.answers = self.state.W
        self.residual = np.nan
        self.extras = {"ratio": [], "messages": [], "message_floats": []}
        self.sent = 0

    def _start(self, ratio, old):
        problem = self.problem
        # Flows of the state, and of an old one or of a check.
        require_edges(problem.graph, problem.d, 2)
        if ratio is None:
            ratio = old.ratio if old is not None and old.lam == self.lam else self._first_ratio()
        U = [np.zeros((problem.d, *block.shape)) for block in problem.blocks]
        if old is None:
            W = self._first_models()
        elif old.U is None:
            W = np.array(old.W, dtype=float)
        else:
            # Flows grow with lam; they are stored in units of sigma = 1 / (2 ratio).
            factor = (self.lam / old.lam) * (ratio / old.ratio)
            W, U = np.array(old.W, dtype=float), [factor * u for u in old.U]
        return PrimalDualState(W, U, ratio, self.lam, None if old is None else old.labels)

    def _first_models(self):
        """The clients' own minimisers."""
        return self.problem.local_models().copy()

    def _first_ratio(self):
        """Mean degree over mean curvature, of the clients that have any."""
        if not self.problem.curvatures()[2].any():
            return 1.0
        return float(self.degree.mean() / self.problem.curvature())

    # ----------------------------------------------------------------------- iteration

    def _iterate(self):
        problem, state = self.problem, self.state
        if self._try_last_partition():
            return self._result(0)
        outflow = problem.divergence(state.U).T
        check_at = CHECK_EVERY
        for k in self.progress:
            check = k >= check_at or k == self.max_iter
            # tau (D'u) = (s / deg) (1 / (2 s)) D'U
            pull = outflow / (2.0 * self.degree[:, None])
            V = self._node_pass(k, state.W - pull)
            edges = self._edge_pass(2.0 * V - state.W, check)
            move = V - state.W
            state.W = V if self.relaxation == 1.0 else state.W + self.relaxation * move
            outflow = outflow + self.relaxation * (edges.outflow - outflow)
            self.sent += 2 * problem.graph.n_edges
            if check:
                self._book()
                if self._examine(k, V, edges):
                    break
                outflow = self._balance(move, edges.dual2, outflow)
                check_at = k + (CHECK_EVERY if k < SETTLED else 5 * CHECK_EVERY)
        return self._result(k)

    def _try_last_partition(self):
        """True if the partition of the solution started from leads to this one."""
        state = self.state
        if not self._is_solved_by(state.labels, state.W):
            return False
        self._book()
        # The state goes on from the solution; edges keep their flows.
        state.W = self.best["W"].copy()
        return True

    def _book(self):
        """Columns of the history of a check, beside those that all solvers have."""
        self.extras["ratio"].append(self.state.ratio)
        self.extras["messages"].append(self.sent)
        self.extras["message_floats"].append(self.sent * self.problem.d)
        self.sent = 0

    def _node_pass(self, k, centres):
        """Proposals of all models (32) in iteration k."""
        W = self.state.W
        V = self.problem.pool.ask(Prox, centres, self.degree / self.state.ratio, x0=self.answers)
        self.answers = V
        if len(self.isolated):
            V = V.copy()
            V[self.isolated] = W[self.isolated]
        return V

    def _last_answers(self):
        return self.answers

    def _edge_pass(self, extrapolated, check):
        """Proposals of all flows (33), and their relaxation; what the nodes need of them."""
        problem, state, penalty = self.problem, self.state, self.problem.penalty
        XT = np.ascontiguousarray(extrapolated.T)
        out, edges, sigma = np.zeros_like(XT), EdgeSums(), 0.5 / state.ratio
        for block, u in zip(problem.blocks, state.U, strict=True):
            v = block.difference(XT)
            v += u
            p = penalty.project(v, (self.lam / sigma) * block.weights)
            block.add_divergence(p, out)
            if check:
                if self.watches:
                    block.mark(~(v - p).any(axis=0), edges.zeros)
                if not penalty.norm:
                    value = penalty.conjugate(sigma * p, self.lam * block.weights)
                    edges.conjugate += block.total(value)
            p -= u
            if check:
                edges.dual2 += block.total(np.einsum("d...,d...->...", p, p))
            p *= self.relaxation
            u += p
        edges.outflow, edges.divergence = out.T, sigma * out.T
        return edges

    def _edge_duals(self):
        """Feasible flows near the present iterate, block by block."""
        sigma, penalty = 0.5 / self.state.ratio, self.problem.penalty
        if not penalty.norm:
            return [sigma * u for u in self.state.U]
        return [
            penalty.project(sigma * u, self.lam * block.weights)
            for block, u in zip(self.problem.blocks, self.state.U, strict=True)
        ]

    def _balance(self, move, move2, outflow):
        """Bring the moves of models and flows, in their steps' metrics, to one size."""
        state = self.state
        if not self.adaptive:
            return outflow
        # |dw|^2 / tau = deg |dw|^2 / s; |du|^2 / sigma = |dU|^2 sigma = |dU|^2 / (2 s)
        nodes2 = float((self.degree[:, None] * move**2).sum())
        quotient = np.sqrt(max(nodes2, 1e-300) / max(0.5 * move2, 1e-300))
        if 1.0 / BALANCE <= quotient <= BALANCE:
            return outflow
        most = 2.0 ** (MEMORY**self.changes)
        factor = float(np.clip(quotient, 1.0 / most, most))
        self.changes += 1
        state.ratio *= factor
        for u in state.U:
            u *= factor
        return factor * outflow

    # -------------------------------------------------------------------------- checks

    def _examine(self, k, V, edges):
        """Whether the duality gap, or where it is infinite the residual gap, is small enough."""
        problem, divergence = self.problem, edges.divergence
        done = self._check(k, [V, self.state.W], edges, problem.n)
        self.residual = np.nan
        if done or np.isfinite(self.best["gap"]):
            return done
        values, gradients = problem.pool.ask(ObjectivesGradients, V, dtype=np.float64)
        primal = float(values.sum()) + self.lam * problem.fusion(V)
        radius = BALL * np.linalg.norm(V, axis=1).max(initial=0.0)
        bounds = -np.einsum("nd,nd->n", divergence, V) - values
        bounds += radius * np.linalg.norm(gradients + divergence, axis=1)
        self.residual = max(primal + float(bounds.sum()) + edges.conjugate, 0.0)
        if self.best["labels"] is None:
            self.best.update(primal=primal, W=V.copy(), divergence=divergence)
        self.progress.remark(f"residual gap {self.residual:.3g}")
        if self.residual > problem.tolerance(primal, self.tol):
            return False
        # The iterates will do; a partition that is proved would even make the gap finite.
        if self.contraction:
            self._contract(k, self.labels, V, last=True)
        if np.isfinite(self.best["gap"]):
            self.residual = np.nan
            self.history["objective"][-1] = self.best["primal"]
            self.history["gap"][-1] = self.best["gap"]
        return True

    def _result(self, n_iter):
        self.state.labels = self.best["labels"]
        result = super()._result(n_iter)
        result.extra.update(residual_gap=self.residual, ratio=self.state.ratio)
        return result

    def _shortfall(self, limit):
        if not np.isfinite(self.residual):
            return super()._shortfall(limit)
        if self.residual <= limit:
            return ""
        return (
            f"The residual gap is {self.residual:.2g} after max_iter={self.max_iter} iterations, "
            f"more than tol={self.tol:g} allows ({limit:.2g}); the duality gap is infinite "
            "(clients with fewer rows than parameters and no local penalty). "
            "Increase max_iter or tol."
        )
