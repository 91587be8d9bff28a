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
``rho``    rho                 penalty of the split z = D v
``r``      r                   that of x = v over rho, the mean degree at first
=========  ==================  =====================================================

Both penalties are adapted.  The scale of the duals over the way that the models went from the
clients' own shows early where they are too large by orders of magnitude, as where a client's
classes can be separated and its curvature at the minimum is far below its bound; then they
are balanced, so that the primal and the dual residual of each split are of one size.
"""

from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np

from .._checks import Interval
from ..calls.curvatures import Prox
from ..graphs.edges import require_edges
from ..numerics.conjugate_gradients import conjugate_gradients
from .certified import CHECK_EVERY, FIRST_CHECK, SETTLED, CertifiedLoop, EdgeSums
from .expansions import can_expand, questions
from .solvers import ADMM, solver

__all__ = ["admm"]

RELAXATION = 1.7
# Newton steps a prox: the next one goes on from there.
PROX_STEPS = 1
# Nodes up to which the v-step is a product with an inverse; beyond, conjugate gradients: the part
# of their residual that they leave, and most of their iterations.
MAX_INVERSE, INNER_TOL, MAX_INNER = 400, 1e-2, 50
# Iterations in which the scale of the duals says where penalties are too large, and by how much
# a penalty may change at once.
EARLY, MOST_CHANGE = 60, 10.0


@dataclass
class FusionState:
    """State of a solver: enough to go on, at this lam or another."""

    W: np.ndarray
    V: np.ndarray
    A: np.ndarray
    T: list | None
    rho: float
    r: float
    lam: float
    labels: np.ndarray | None = None  # the partition, where it was exact

    def without_edges(self):
        """The same for another graph."""
        return replace(self, T=None)


@solver(
    ADMM,
    extra={
        "certify": ["boolean"],
        "contract_from": [Interval(Integral, 0, None, closed="left")],
        "expand": ["boolean"],
    },
)
def admm(
    problem,
    lam,
    *,
    tol=1e-6,
    max_iter=2000,
    state=None,
    contraction=True,
    certify=False,
    contract_from=0,
    expand=False,
):
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
        State to start from; at another ``lam`` its duals are rescaled, and its partition, or one
        that follows from it, is tried before the first iteration.
    contraction : bool
        See :class:`~skcfl.fusion.solvers.ADMM`.
    certify : bool
        If True, look for a proof of the partition at more expense even if the gap is small enough
        without: near a lam at which many models meet at once that can take longer than the
        solution, and zeros only show some of the clusters.
    contract_from : int
        Iteration from which on the exact partition is tried: if that takes more exchanges than
        iterations do, as long as these are few. If it is not 0, then only while the gap is far
        above its limit.
    expand : bool
        If True, proximal points are those of expansions of the objectives, which checks renew, if
        these may be asked for (``skcfl.fusion.expansions``).

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the sums ``(D'u)_i``) and
        ``partition_optimal``.
    state : FusionState
        The last iterate.
    """
    loop = _ADMM(problem, lam, tol, max_iter, state, contraction)
    loop.certify, loop.thrifty, loop.contract_from = certify, not certify, contract_from
    loop.expands = expand and can_expand(problem.pool)
    result = loop.run()
    return result, loop.state


class _ADMM(CertifiedLoop):
    # True if proximal points are those of expansions.
    expands = False

    def __init__(self, problem, lam, tol, max_iter, state, contraction):
        super().__init__(problem, lam, tol, max_iter, contraction)
        self.state = self._start(state)
        self.average = _Averaging(problem.graph, self.state.r)
        self.raised = np.zeros(2, dtype=bool)
        self.expansions = None

    def _start(self, old):
        problem, lam = self.problem, self.lam
        # Flows of the state, of an old one, and those that clients without rows pass on.
        n_arrays = 1 + (old is not None) + 2 * problem.passive
        require_edges(problem.graph, problem.d, n_arrays)
        r = max(float(problem.graph.degrees(weighted=False).mean()), 1e-12)
        rho = problem.curvature() / r
        if old is None:
            W = problem.local_models()
            WT = np.ascontiguousarray(W.T)
            T = [block.difference(WT) for block in problem.blocks]
            V = W.copy()
            return FusionState(W.copy(), V, np.zeros_like(W), T, rho, r, lam)
        # Duals grow with lam; in units of rho they also change with rho.
        factor = (lam / old.lam) * (old.rho / rho)
        VT = np.ascontiguousarray(old.V.T)
        T = []
        if old.T is None:
            T = [block.difference(VT) for block in problem.blocks]
        for block, t in zip(problem.blocks if old.T else (), old.T or (), strict=True):
            DV = block.difference(VT)
            T.append(DV + factor * (t - DV))
        A = factor * (old.r / r) * old.A
        return FusionState(old.W.copy(), old.V.copy(), A, T, rho, r, lam, old.labels)

    # ----------------------------------------------------------------------- iteration

    def _iterate(self):
        state = self.state
        if self._try_last_partition():
            return self._result(0)
        check_at = FIRST_CHECK
        for k in self.progress:
            check = k >= check_at or k == self.max_iter
            V_old = state.V
            centre, rho = V_old - state.A, state.rho * state.r
            W = self._prox(centre, rho)
            edges = self._edge_pass(check)
            W_hat = RELAXATION * W + (1.0 - RELAXATION) * V_old
            V = self.average(state.r * (W_hat + state.A) + edges.outflow, V_old)
            state.A = state.A + W_hat - V
            state.W, state.V = W, V
            if check:
                if self._check(k, [V, W], edges, len(W)):
                    break
                # The second check comes early for runs that are nearly there; balances have to
                # settle.
                if k != 2 * FIRST_CHECK:
                    self._balance(k, V_old, edges)
                check_at = k + self._spacing(k)
        self.state.labels = self.best["labels"]
        return self._result(k)

    def _prox(self, centre, rho):
        """Proximal points of the clients, or of expansions about their last models."""
        problem, W = self.problem, self.state.W
        if self.expands and self.expansions is None:
            self.expansions = problem.expansions(W)
            self.expands = self.expansions is not None
        if self.expands:
            return self.expansions.prox(centre, rho)
        return problem.pool.ask(Prox, centre, rho, x0=W, max_iter=PROX_STEPS)

    def _also(self):
        """What expansions about the present models need."""
        return questions(self.state.W) if self.expands else ()

    def _learn(self, answers):
        """Renew the expansions; leave them where they do not foresee the gradients."""
        if not self.expands:
            return
        before, W = self.expansions, self.state.W
        self.expansions = self.problem.expand(W, answers)
        self.expands = self.expansions is not None and before.foresees(
            W, self.expansions.gradients
        )

    @staticmethod
    def _spacing(k):
        """Iterations from a check to the next."""
        if k < 3 * FIRST_CHECK:
            return FIRST_CHECK
        return CHECK_EVERY if k < SETTLED else 5 * CHECK_EVERY

    def _try_last_partition(self):
        """True if the partition of the solution started from leads to this one."""
        state, problem = self.state, self.problem
        if not self._is_solved_by(state.labels, state.W):
            return False
        best = self.best
        # The state goes on from the solution; edges keep their duals.
        move = np.ascontiguousarray((best["W"] - state.V).T)
        for block, t in zip(problem.blocks, state.T, strict=True):
            t += block.difference(move)
        state.W, state.V = best["W"].copy(), best["W"].copy()
        state.A = best["divergence"] / (state.rho * state.r)
        state.labels = best["labels"]
        return True

    def _edge_pass(self, check):
        """z, the dual and t of every edge; what the nodes need of them."""
        state, problem, penalty = self.state, self.problem, self.problem.penalty
        VT = np.ascontiguousarray(state.V.T)
        outflow, divergence = np.zeros((2, *VT.shape))
        edges, scale = EdgeSums(outflow.T), self.lam / state.rho
        for block, t in zip(problem.blocks, state.T, strict=True):
            DV = block.difference(VT)
            q = 2.0 * DV
            q -= t
            p = penalty.project(q, scale * block.weights)
            if check:
                block.add_divergence(p, divergence)
                if self.watches:
                    block.mark(~(q - p).any(axis=0), edges.zeros)
                if not penalty.norm:
                    conjugate = penalty.conjugate(state.rho * p, self.lam * block.weights)
                    edges.conjugate += block.total(conjugate)
                gap = DV - t - p
                edges.primal2 += block.total(np.einsum("d...,d...->...", gap, gap))
                edges.dual2 += block.total(np.einsum("d...,d...->...", p, p))
            # t <- t + relaxation (z - D v),  z - D v = D v - t - p
            p += t
            np.subtract(DV, p, out=p)
            p *= RELAXATION
            t += p
            block.add_divergence(t, outflow)
        if check:
            edges.divergence = state.rho * divergence.T
        return edges

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

    def _balance(self, k, V_old, edges):
        """Adapt the penalties of the two splits, x = v and z = D v."""
        if k > SETTLED // 2 and (k // CHECK_EVERY) % 5:
            return
        state, energy = self.state, self.average.energy
        move, way = state.V - V_old, state.V - self.problem.local_models()
        gap2 = np.array([((state.W - state.V) ** 2).sum(), edges.primal2])
        move2 = np.array([(move**2).sum(), energy(move)])
        dual2 = np.array([(state.A**2).sum(), edges.dual2])
        way2 = np.array([(way**2).sum(), energy(way)])
        tiny = 1e-300
        residuals = np.sqrt((gap2 + tiny) / (move2 + tiny))
        scales = np.sqrt((dual2 + tiny) / (way2 + tiny))
        # Changes shrink in the end, so that the iteration converges.
        most = 1.0 + (MOST_CHANGE - 1.0) * min(1.0, SETTLED / k) ** 2
        lower = (k <= EARLY) & ~self.raised & (scales < 0.5) & (residuals < 1.5)
        balance = ~lower & ((residuals < 0.5) | (residuals > 2.0))
        factors = np.where(lower, scales, np.where(balance, residuals, 1.0))
        factors = np.clip(factors, 1.0 / most, most)
        self.raised |= factors > 1.0
        if (factors == 1.0).all():
            return
        nodes, pairs = factors
        state.A /= nodes
        state.rho *= pairs
        state.r *= nodes / pairs
        self.average = self.average.at(state.r)
        if pairs == 1.0:
            return
        VT = np.ascontiguousarray(state.V.T)
        for block, t in zip(self.problem.blocks, state.T, strict=True):
            DV = block.difference(VT)
            t -= DV
            t /= pairs
            t += DV


class _Averaging:
    """``(r I + D'D)^-1`` on (n, d) arrays.

    On sparse graphs of many nodes it is inexact: conjugate gradients from the last answer, to a
    fraction of their first residual.  Duals are feasible and gaps true whatever the answer.
    """

    def __init__(self, graph, r, laplacian=None):
        self.graph, self.r, self.laplacian = graph, r, laplacian
        if graph.is_complete:
            return
        n = graph.n_nodes
        self.laplacian = graph.laplacian(weighted=False) if laplacian is None else laplacian
        self.inverse = self.diagonal = None
        if n <= MAX_INVERSE:
            self.inverse = np.linalg.inv(self.laplacian.toarray() + r * np.eye(n))
        else:
            self.diagonal = (self.laplacian.diagonal() + r)[None, :]

    def at(self, r):
        """The same for another r."""
        return self if r == self.r else _Averaging(self.graph, r, self.laplacian)

    def energy(self, M):
        """``|D M|^2``, the squared differences along the edges summed."""
        if self.graph.is_complete:
            total = M.sum(axis=0)
            return max(float(self.graph.n_nodes * (M**2).sum() - total @ total), 0.0)
        return max(float((M * (self.laplacian @ M)).sum()), 0.0)

    def __call__(self, R, last):
        if self.graph.is_complete:
            return (R + R.sum(axis=0) / self.r) / (self.r + self.graph.n_nodes)
        if self.inverse is not None:
            return self.inverse @ R
        missing = R - self.r * last - self.laplacian @ last
        step = conjugate_gradients(
            lambda u: self.r * u + (self.laplacian @ np.ascontiguousarray(u.T)).T,
            self.diagonal,
            np.ascontiguousarray(missing.T),
            MAX_INNER,
            INNER_TOL,
        )
        return last + step.T
