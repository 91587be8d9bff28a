r"""Parallel direction method of multipliers (PDMM) for fusion problems, with sampled clients.

    minimise  sum_i f_i(x_i) + lam sum_e w_e phi(z_e)   s.t.  x_i - x_j = z_e,   e = (i, j)

Algorithm 1 of Armacki et al. (2022), their problem (14) with every pair taken once.  One round:

    S1   S, the sampled clients; E_S, the pairs with an end in S               server
    S2   x_i+ = argmin f_i(x) + <x, sum_e s_ie m_e> + (rho/2) sum_j |x - x_j - z_ij|^2
                + (eta_i/2) |x - x_i|^2,  i in S                      (16)     clients in S
    S3   z_e+ = argmin lam w_e phi(z) - <m_e, z> + (rho/2) |x_i - x_j - z|^2
                + (eta_e/2) |z - z_e|^2,  e in E_S                    (17)     an end in S
    S4   the other x_i and z_e stay
    S5   x_i+ goes to the server                                               i in S
    S6   z_e+ goes to the server                                               e in E_S
    S7   x_i+, i in S, goes to all neighbours of i                             server
    S8   mu_e+ = mu_e + tau rho (x_i+ - x_j+ - z_e+),  e in E_S       (18)     server
    S9   the other mu_e stay
    S10  mu_e+ goes to both ends of e                                          server
    S11  m_e+ = mu_e+ - nu rho (x_i+ - x_j+ - z_e+)                   (19)     both ends

Corrections of the printed algorithm:

- a pair has one dual, ``mu_ji = -mu_ij`` (and one z): with a dual for each order, sampled
separately,
  mu_ij and -mu_ji diverge for good, and every point at which they are equal and opposite to the
  clients' gradients is a fixed point, the solution or not.  Each end needs ``z_e+`` for (16); it
  follows from the two last ``mu_e`` and the models, and each end has both.
- S7 reaches all clients, also the sampled ones, which need each other's models.
- z is computed from the old x (Jacobi), as (17) says, so that S2 and S3 run side by side.
- a pair's dual moves when an end of it is sampled.  ``dual_sampling="independent"`` draws
  the z and mu of the rounds separately from the clients, as printed; that needs more rounds,
  about twice as many at 40 % participation.

Defaults: tau = 4/5, nu = 1/5 and eta_e = rho are the paper's.  What matters is the scale of
rho, the clients' mean curvature over the mean degree, adapted to the ratio of the residuals: on
data like the paper's Figure 5 its fixed rho = 10 needs over thirty times the rounds.
eta_i = rho on the complete graph, and in general the least multiple of the degree for which the
simultaneous updates (16) cannot overshoot, ``rho (beta - 1) deg_i`` with beta the largest
eigenvalue of the normalised Laplacian: with eta_i = rho the method diverges on some bipartite
graphs.

=============  ==================  =============================================================
here           symbol              what it is
=============  ==================  =============================================================
``W``          x_i                 clients' models, (n, d)
``Z``          z_e                 split differences of the pairs, one array a block of edges
``M``          mu_e                duals of the pairs
``H``          m_e (hat mu)        backward duals; stored only with independent sampling,
                                   else ``M - nu rho (D W - Z)`` at any time
``idle``       .                   for how many updates a z_e has been zero (`skip_zeros`)
``flow``       .                   ``D'(H - rho Z)``: with ``rho D'D W`` the pull of (16)
``stiffness``  rho deg_i + eta_i   strength of the prox that (16) is
``back``       .                   how much of rho (D W - Z) the duals as stored lack: 1 - nu, or 1
=============  ==================  =============================================================

Memory: two edge arrays (Z, M; with independent sampling three), each pair once, so that the
complete graph on n clients takes ``n^2 d`` numbers in all (80 MB at n = 1000, d = 10), and
temporaries of one block.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh
from sklearn.utils import check_random_state

from ..calls.curvatures import Prox
from ..graphs.edges import require_edges
from .certified import CHECK_EVERY, FIRST_CHECK, SETTLED, CertifiedLoop, EdgeSums
from .solvers import PDMM, solver

__all__ = ["pdmm"]

# Updates for which a z_e has to stay zero before it is skipped (Appendix C: "consecutive").
SKIP_AFTER = 10
# rho is doubled or halved where BIAS times the ratio of residuals leaves (1/BALANCE, BALANCE).
# Found by trial, as the schedule: fewest rounds over losses, graphs and participations.
BALANCE, BIAS = 2.0, 0.6
# Factor by which rho may leave its start: residuals that are rounding say nothing.
RHO_RANGE = 1e5
# Nodes up to which the largest eigenvalue is taken from the dense matrix.
MAX_DENSE_NODES = 300
# Models this many times larger than the clients' own mean divergence.
DIVERGED = 1e3


@dataclass
class PDMMState:
    """State of the solver: enough to go on, at this lam or another."""

    W: np.ndarray
    Z: list
    M: list
    H: list | None
    idle: list | None
    rho: float
    lam: float


@solver(PDMM, extra={"rng": ["random_state"]})
def pdmm(
    problem,
    lam,
    *,
    tol=1e-6,
    max_iter=5000,
    participation=1.0,
    rho=None,
    eta=None,
    tau=0.8,
    nu=0.2,
    dual_sampling="ends",
    skip_zeros=False,
    rng=None,
    state=None,
    contraction=True,
    check_every=None,
):
    """Solve a fusion problem by the parallel direction method of multipliers.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    lam : float
        Positive weight of the penalty.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most rounds.
    participation, rho, eta, tau, nu, dual_sampling, skip_zeros, contraction, check_every
        See :class:`~skcfl.fusion.solvers.PDMM`. The server goes on with (17) to (19) for pairs
        that ``skip_zeros`` leaves out and sends a sampled client the sum of their pulls; a pair
        that has to leave zero is handed back. (The paper takes x_j for x_i in these pairs, and
        never hands back.)
    rng : int, RandomState instance or None, default=None
        Source of the samples.
    state : PDMMState, default=None
        State to start from; at another ``lam`` its duals are rescaled.

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the sums ``(D'u)_i``) and
        ``partition_optimal``.  Floats in ``history`` are those since the entry before,
        messages of the check itself (losses, conjugates) included.
    state : PDMMState
        The last iterate.

    Raises
    ------
    ValueError
        If a parameter is out of its range.
    """
    loop = _PDMM(problem, lam, tol, max_iter, contraction)
    loop.given_rho, loop.given_eta, loop.tau, loop.nu = rho, eta, tau, nu
    loop.participation, loop.independent = participation, dual_sampling == "independent"
    loop.skip_zeros, loop.check_every = skip_zeros, check_every
    loop.rng = check_random_state(rng)
    loop.start(state)
    result = loop.run()
    return result, loop.state


class _PDMM(CertifiedLoop):
    unit = "round"

    def start(self, old):
        """Set up the first iterate."""
        problem = self.problem
        graph = problem.graph
        # Differences and duals, averages where duals are not sampled, as many of an old state.
        n_arrays = (2 + (not self.independent)) * (1 + (old is not None))
        require_edges(graph, problem.d, n_arrays)
        self.deg = graph.degrees(weighted=False)
        self.damping = _damping(graph, self.deg)
        self.laplacian = None if graph.is_complete else graph.laplacian(weighted=False)
        scale = problem.curvature() / max(float(self.deg.mean()), 1e-12)
        rho = scale if self.given_rho is None else float(self.given_rho)
        self.range = rho / RHO_RANGE, rho * RHO_RANGE
        self.back = 1.0 if self.independent else 1.0 - self.nu
        if old is None:
            W = problem.local_models().copy()
            WT = np.ascontiguousarray(W.T)
            Z = [block.difference(WT) for block in problem.blocks]
            M = [np.zeros_like(z) for z in Z]
            # Neighbours exchange their starts.
            problem.pool.relay(down=2 * graph.n_edges * problem.d)
            self.state = PDMMState(W, Z, M, None, None, rho, self.lam)
        else:
            # Duals grow with lam.
            factor = self.lam / old.lam
            self.state = replace(
                old,
                W=old.W.copy(),
                Z=[z.copy() for z in old.Z],
                M=[factor * m for m in old.M],
                H=None if old.H is None else [factor * h for h in old.H],
                rho=rho if self.given_rho is not None or factor != 1.0 else old.rho,
                lam=self.lam,
            )
        state = self.state
        if not self.independent:
            state.H = None
        elif state.H is None:
            state.H = [m.copy() for m in state.M]
        if not self.skip_zeros:
            state.idle = None
        elif state.idle is None:
            state.idle = [np.zeros(block.shape, dtype=np.uint8) for block in problem.blocks]
        else:
            state.idle = [count.copy() for count in state.idle]
        self.flow = self._flow()

    # -------------------------------------------------------------------- parameters

    @property
    def eta_pairs(self):
        """``eta_e`` of (17)."""
        return self.state.rho if self.given_eta is None else self.given_eta

    def stiffness(self):
        """``rho deg_i + eta_i`` of (16), (n,)."""
        rho = self.state.rho
        eta = rho * self.damping if self.given_eta is None else self.given_eta
        # A client without neighbours stays near where it is.
        return np.where(self.deg > 0, rho * self.deg + eta, rho)

    # ---------------------------------------------------------------------- iteration

    def _iterate(self):
        n = self.problem.n
        count = max(1, int(round(self.participation * n)))
        check_at = min(FIRST_CHECK, self.check_every or FIRST_CHECK)
        balance_at = FIRST_CHECK
        for k in self.progress:
            sampled = None
            if count < n:
                sampled = np.zeros(n, dtype=bool)
                sampled[self.rng.choice(n, size=count, replace=False)] = True  # S1
            move = self._round(sampled)
            check, balance = k >= check_at or k == self.max_iter, k >= balance_at
            if not (check or balance):
                continue
            snapshot = self._snapshot(move, count / n)
            if check:
                if self._has_diverged():
                    return self._diverged(k)
                if self._check(k, [self.state.W], snapshot, count):
                    break
                usual = CHECK_EVERY if k < SETTLED else 5 * CHECK_EVERY
                check_at = k + (self.check_every or usual)
            if balance:
                # On a separate schedule: the frequency of gap checks changes nothing.
                self._balance(snapshot)
                balance_at = k + (CHECK_EVERY if k <= 100 else 5 * CHECK_EVERY)
        return self._result(k)

    def _round(self, sampled):
        """S2 to S11; the moves of the clients' models."""
        state, pool = self.state, self.problem.pool
        stiffness = self.stiffness()
        pull = self.flow + self.back * state.rho * self._apply_laplacian(state.W)
        centre = state.W - pull / stiffness[:, None]
        # (16): all but f_i is a quadratic of curvature `stiffness` about `centre`.
        if sampled is None:
            W = pool.ask(Prox, centre, stiffness, x0=state.W, known=True)
        else:
            S = np.flatnonzero(sampled)
            W = state.W.copy()
            W[S] = pool.subset(S).ask(Prox, centre[S], stiffness[S], x0=state.W[S], known=True)
        # Clients know `centre` themselves; S5 is booked by prox.
        up, down = self._edge_pass(W, sampled)
        pool.relay(up=self.problem.d * up, down=self.problem.d * down)
        move = W - state.W
        state.W = W
        return move

    def _edge_pass(self, W, sampled):
        """(17), (18), (19) of the pairs of this round; the vectors sent in S6, and in S7, S10."""
        state, penalty = self.state, self.problem.penalty
        rho, eta = state.rho, self.eta_pairs
        old, new = np.ascontiguousarray(state.W.T), np.ascontiguousarray(W.T)
        flow = np.zeros_like(old)
        up, down, helped = 0.0, 0.0, np.zeros(len(W))
        for b, block in enumerate(self.problem.blocks):
            primal, dual = self._draw(block, sampled)
            m = state.M[b]
            h = m if state.H is None else state.H[b]
            z = self._centre(block.difference(old), state.Z[b], h)
            z -= penalty.project(z, self.lam / (rho + eta) * block.weights)  # (17)
            if primal is not None:
                np.copyto(z, state.Z[b], where=~primal)  # S4
            residual = block.difference(new)
            residual -= z
            residual *= rho
            if dual is not None:
                residual *= dual  # S9
            m += self.tau * residual  # (18)
            if state.H is not None:
                back = m - self.nu * residual  # (19)
                np.copyto(h, back, where=True if dual is None else dual)
            state.Z[b] = z
            block.add_divergence(h - self.back * rho * z, flow)
            sent = self._count(b, sampled, primal, dual, helped)
            up, down = up + sent[0], down + sent[1]
        self.flow = flow.T
        # One vector for each sampled client with pairs that the server looks after.
        return up, down + np.count_nonzero(helped if sampled is None else helped[sampled])

    def _centre(self, DW, z, h):
        """Point that (17) takes the prox of; uses up `DW`."""
        rho, eta = self.state.rho, self.eta_pairs
        weight = self.back * rho
        q = DW
        q *= weight / (rho + eta)
        q += h / (rho + eta)
        q += z * ((rho + eta - weight) / (rho + eta))
        return q

    def _draw(self, block, sampled):
        """Masks of the pairs with updates of z and of the dual; None if all are."""
        if self.participation == 1.0 or (sampled is None and not self.independent):
            return None, None
        if not self.independent:
            mask = np.logical_or(*block.ends(sampled))
            return mask, mask
        masks = []
        for _ in range(2):
            mask = self.rng.uniform(size=block.shape) < self.participation
            if block.diagonal:
                mask = np.triu(mask, 1)
                mask |= mask.T
            masks.append(mask)
        return masks

    def _count(self, b, sampled, primal, dual, helped):
        """Vectors sent up and down; pairs with a z that stays zero are counted, then skipped."""
        block, state, down = self.problem.blocks[b], self.state, 0.0
        active = np.ones(block.shape, dtype=bool)
        if block.diagonal:
            np.fill_diagonal(active, False)
        if state.idle is not None:
            nonzero, idle = state.Z[b].any(axis=0), state.idle[b]
            skipped = active & (idle >= SKIP_AFTER)
            idle += 1 if primal is None else primal
            np.minimum(idle, SKIP_AFTER, out=idle)
            idle[nonzero] = 0
            active &= ~skipped
            block.add_to_ends(skipped, helped)
            # Handed back: both ends are sent x of the other, z and mu.
            down += 6 * block.total(skipped & nonzero)
        n_primal = block.total(active if primal is None else active & primal)
        n_dual = block.total(active if dual is None else active & dual)
        n_sampled = 2 if sampled is None else sum(block.ends(sampled.astype(np.int8)))
        down += block.total(active * n_sampled)  # S7
        down += 2 * n_dual  # S10
        if self.independent:
            # The other end cannot tell z from a dual that did not move.
            down += n_primal
        return n_primal, down  # S6

    # ------------------------------------------------------------------ sums over edges

    def _apply_laplacian(self, W):
        """``D'D W``."""
        if self.laplacian is None:
            return len(W) * W - W.sum(axis=0)
        return self.laplacian @ W

    def _flow(self):
        """``D'(H - rho Z)`` from scratch."""
        state = self.state
        weight = self.back * state.rho
        pairs = zip(state.Z, state.H or state.M, strict=True)
        return self.problem.divergence(h - weight * z for z, h in pairs).T

    def _edge_duals(self):
        """Feasible duals: those of (17), were it to be solved for all pairs now."""
        return [u for _, _, u, _ in self._next_pairs()]

    def _next_pairs(self):
        """Block, its index, dual and z of (17) for all pairs at the present iterate."""
        state, penalty = self.state, self.problem.penalty
        total = state.rho + self.eta_pairs
        WT = np.ascontiguousarray(state.W.T)
        duals = state.H or state.M
        for b, block in enumerate(self.problem.blocks):
            q = self._centre(block.difference(WT), state.Z[b], duals[b])
            p = penalty.project(q, self.lam / total * block.weights)
            q -= p
            p *= total
            yield b, block, p, q

    def _snapshot(self, move, share):
        """Feasible dual, zeros and residuals of the iterate."""
        state, problem = self.state, self.problem
        WT = np.ascontiguousarray(state.W.T)
        divergence = np.zeros_like(WT)
        edges = EdgeSums(divergence=divergence.T)
        for b, block, u, z in self._next_pairs():
            block.add_divergence(u, divergence)
            if self.watches:
                block.mark(~z.any(axis=0), edges.zeros)
            if not problem.penalty.norm:
                value = problem.penalty.conjugate(u, self.lam * block.weights)
                edges.conjugate += block.total(value)
            z -= state.Z[b]
            edges.dual2 += block.total(np.einsum("d...,d...->...", z, z))
            gap = block.difference(WT)
            gap -= state.Z[b]
            edges.primal2 += block.total(np.einsum("d...,d...->...", gap, gap))
        # As if all clients had moved as much as the sampled ones.
        edges.dual2 += float((move * self._apply_laplacian(move)).sum()) / share
        return edges

    def _balance(self, snapshot):
        """Residual balancing: rho keeps the primal and dual residuals of one size."""
        if self.given_rho is not None:
            return
        ratio = BIAS * np.sqrt(max(snapshot.primal2, 1e-300) / max(snapshot.dual2, 1e-300))
        if 1.0 / BALANCE < ratio < BALANCE:
            return
        rho = self.state.rho * (2.0 if ratio > 1 else 0.5)
        if self.range[0] <= rho <= self.range[1]:
            self.state.rho = rho
            self.flow = self._flow()

    # --------------------------------------------------------------------- divergence

    def _has_diverged(self):
        """True if the iterates grow without bound, which bad parameters can make them do."""
        local = np.abs(self.problem.local_models()).max()
        # Written so that NaN is divergence, too.
        return not np.abs(self.state.W).max() <= DIVERGED * max(local, 1.0)

    def _diverged(self, k):
        problem = self.problem
        if self.best is None:
            W = problem.local_models()
            self._keep(problem.primal(W, self.lam), -np.inf, W, np.zeros_like(W))
        if self.labels is None:
            self.labels = np.arange(problem.n)
        result = self._result(k)
        result.converged = False
        result.shortfall = (
            f"PDMM diverged after {k} rounds with tau={self.tau:g}, nu={self.nu:g}. Leave rho "
            "and eta to their defaults, or make eta larger or tau smaller."
        )
        return result


def _damping(graph, deg):
    """``eta_i / rho``: so much that the simultaneous updates (16) cannot overshoot.

    ``D'D <= diag(deg + damping)`` in the order of symmetric matrices.
    """
    if graph.is_complete:
        return np.ones(len(deg))
    if not graph.n_edges:
        return np.zeros(len(deg))
    scale = np.where(deg > 0, 1.0 / np.sqrt(np.maximum(deg, 1.0)), 0.0)
    S = sparse.diags_array(scale)
    L = S @ graph.laplacian(weighted=False) @ S
    if len(deg) <= MAX_DENSE_NODES:
        beta = float(np.linalg.eigvalsh(L.toarray())[-1])
    else:
        # Below by at most the tolerance; 2 is the bound of all graphs.
        start = np.cos(np.arange(len(deg)))
        beta = 1.01 * float(eigsh(L, k=1, which="LA", v0=start, tol=1e-3)[0][0])
    return (min(beta, 2.0) - 1.0) * deg
