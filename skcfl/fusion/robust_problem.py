r"""Clients with objectives that pull at others with bounded force: Huber's loss by client.

    P:  minimise  sum_i g_i(x_i) + lam sum_{i<j} w_ij ||x_i - x_j||,
        g_i(x) = min_y f_i(y) + c ||x - y||

The infimal convolution with a norm is f_i where the (dual) norm of its gradient is at most c, and
beyond goes on as a straight line: whatever its rows, client i pulls with a force of at most c.
``g_i^*`` is ``f_i^*`` on the ball of radius c, so that a dual bound is one of the clients' own
conjugates.

No new solver is needed: y_i is a node, the client, and x_i another one, which has no rows and
exists only at the server, joined to the client by an edge of weight ``c / lam``.  So the clients
answer the usual calls, and solvers, gaps, exact partitions and their proofs are those of graphs
that include nodes without rows.  If no edge can pull with more than c, ``lam sum_j w_ij <= c`` for
all i, the bound is never active, and the plain problem is solved.

The bound is ``c = factor * u``, u the median over the clients of the size of their gradients: at
the geometric median of their own models, or at a model without slopes where these are larger.
Half of the clients cannot move it.  The *suspicion* of a client is its gradient at that median
over c: beyond 1 it is bounded for sure where all are drawn together, does not judge lam and has no
part in refits.  Beyond `GROSS` it would do no more than push at the others with force c, and
objectives of that size have a rounding larger than what all others differ by: it is left out
altogether, a node without rows.
"""

from dataclasses import dataclass, replace
from functools import lru_cache, wraps

import numpy as np

from ..calls.curvatures import Hessians, Prox, Solve, shows_rows
from ..calls.first_order import ObjectivesGradients
from ..federation.result import Result
from ..graphs import Graph
from ..numerics.by_cluster import mean_by_cluster
from ..numerics.newton import MAX_DENSE
from ..penalties import L2
from ..rounds.aggregation import GeometricMedian
from ..rounds.polish import solve_pooled
from .admm import admm
from .flows import flow_values
from .inner_edges import EPS
from .node_pool import NodePool
from .problem import FusionProblem, in_metric, pulls

# Suspicion beyond which a client is left out.
GROSS = 100.0
# Least bound, where the typical gradient is zero, and least weight of an edge that ties a client.
LEAST = 1e-90
# Accuracy and iterations of the model of all clients under the bound.
FUSED_TOL, FUSED_ITERATIONS = 1e-9, 2000


class ClientLimits:
    """How hard each client pulls, and the most that it may.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    factor : float
        The bound, in typical sizes of the clients' gradients.
    penalty : Penalty, default=None
        Penalty with the dual norm that measures gradients; the Euclidean norm by default.

    Attributes
    ----------
    models : ndarray of shape (n_clients, n_params)
        Their own minimisers.
    centre : ndarray of shape (n_params,)
        The geometric median of these.
    most : float
        The bound c.
    suspicion : ndarray of shape (n_clients,)
        Gradients at the centre over the bound; zero of clients without rows.
    """

    def __init__(self, pool, factor, penalty=None):
        penalty = L2() if penalty is None else penalty
        heard = (pool.client_sizes > 0) & ~pool.rejected
        self.models = pool.ask(Solve)[0]
        some = self.models[heard].astype(float)
        self.centre = GeometricMedian().aggregate(some, np.ones(len(some)))
        self.centre = pool.model.centre(self.centre[None])[0]
        flat = np.where(_is_intercept(pool), self.centre, 0.0)
        sizes = np.zeros((2, pool.n_clients))
        for size, model in zip(sizes, (self.centre, flat), strict=True):
            w = np.tile(model, (pool.n_clients, 1))
            gradients = pool.ask(ObjectivesGradients, w, dtype=np.float64)[1]
            with np.errstate(over="ignore"):
                size[:] = np.nan_to_num(penalty.dual_norm(gradients.T), posinf=1e300)
        # Clients may have been rejected since.
        heard &= ~pool.rejected
        typical = np.median(sizes.max(axis=0)[heard]) if heard.any() else 0.0
        self.most = max(factor * float(typical), LEAST)
        self.suspicion = np.where(heard, sizes[0] / self.most, 0.0)

    @property
    def trusted(self):
        """Who is not beyond the bound, (n_clients,) of bool."""
        return self.suspicion <= 1.0

    @property
    def left_out(self):
        """Who is far beyond it, (n_clients,) of bool."""
        return self.suspicion > GROSS


def _is_intercept(pool):
    mask = np.zeros(pool.n_params, dtype=bool)
    if "intercept" in pool.model.layer_slices():
        mask[pool.model.layer_slices()["intercept"]] = True
    return mask


@dataclass
class BoundedState:
    """State of a solver, of the problem with copies of the clients' nodes or without."""

    inner: object
    with_copies: bool

    @property
    def labels(self):
        """The partition, where it was exact."""
        return self.inner.labels

    def without_edges(self):
        """The same for another graph."""
        return replace(self, inner=self.inner.without_edges())


class BoundedProblem(FusionProblem):
    """A fusion problem of clients with bounded objectives.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    graph : Graph
        Graph of the clients with compared models.
    penalty : Penalty
        A norm.
    factor : float
        The bound, in typical sizes of the clients' gradients.

    Attributes
    ----------
    clients : ClientPool
        The clients; ``pool`` is without the rows of clients that are left out.
    trusted : ndarray of shape (n_clients,) of bool
        Who is not beyond the bound.
    limits : ClientLimits
    """

    # Their limits have asked for them.
    asks_for_minimisers = False

    def __init__(self, pool, graph, penalty, factor):
        if not penalty.norm:
            raise ValueError(
                f"client_loss bounds the pull of a client by a norm, which the penalty "
                f"{penalty!r} is not. Use penalty='l2' or 'l1'."
            )
        self.limits = ClientLimits(pool, factor, penalty)
        silent = self.limits.left_out | pool.rejected
        self.heard = np.flatnonzero(~pool.without_rows & ~silent)
        nodes = pool
        if silent.any():
            nodes = NodePool(pool.subset(self.heard), self.heard, pool.n_clients)
        super().__init__(nodes, graph, penalty)
        self.clients, self.trusted = pool, self.limits.trusted
        self._pools, self._fused, self._solved = {}, None, self.limits.models.copy()

    def is_slack(self, lam):
        """True if no client can be pulled at by more than the bound at this lam."""
        return bool((lam * self.graph.degrees()[self.heard] <= self.limits.most).all())

    def solver(self, given="auto"):
        """The solver, of the problem with copies where the bound may bind."""
        return bounded(super().solver(given))

    # -------------------------------------------------------------- copies of the clients

    def copied(self, lam):
        """The same problem with more nodes: clients that count, then a copy of every node."""
        m, graph = len(self.heard), self.graph
        heads = np.concatenate([np.arange(m), graph.heads + m])
        tails = np.concatenate([m + self.heard, graph.tails + m])
        tie = np.clip(self.limits.most / lam, LEAST, 1.0 / LEAST)
        weights = np.concatenate([np.full(m, tie), graph.weights])
        start = self.local_models().copy()
        # Who is far away begins where the others are.
        start[self.limits.suspicion > 1.0] = self.limits.centre
        return self._joined(Graph(m + self.n, heads, tails, weights), start)

    def _joined(self, graph, others):
        """Problem of clients that count, and of others that begin at some models."""
        m = len(self.heard)
        if m + len(others) not in self._pools:
            clients = self.clients.subset(self.heard)
            self._pools[m + len(others)] = NodePool(clients, np.arange(m), m + len(others))
        pool = self._pools[m + len(others)]
        problem = FusionProblem(pool, graph, self.penalty, at_start=self.at_start)
        problem.start_from(np.vstack([self.limits.models[self.heard], others]))
        return problem

    def of_clients(self, result):
        """Result of the clients' copies, from one of :meth:`copied`."""
        m = len(self.heard)
        used, labels = np.unique(result.labels[m:], return_inverse=True)
        force = np.zeros((self.n, self.d))
        force[self.heard] = result.extra["dual_coef"][:m]
        result.cluster_params = result.cluster_params[used]
        result.labels, result.params = labels, result.params[m:]
        result.extra["dual_coef"] = force
        result.history["participants"] = np.minimum(result.history["participants"], self.n)
        return result

    # ------------------------------------------------------------------------- over lam

    def _all_together(self):
        """One model of each component of the graph under the bound, and the clients' forces."""
        if self._fused is None:
            parts, m = self.graph.components(), len(self.heard)
            n_parts = int(parts.max()) + 1
            ends = np.arange(m), m + parts[self.heard]
            star = Graph(m + n_parts, *ends, self.limits.most)
            star = self._joined(star, np.tile(self.limits.centre, (n_parts, 1)))
            result, _ = admm(star, 1.0, tol=FUSED_TOL, max_iter=FUSED_ITERATIONS)
            forces = np.zeros((self.n, self.d))
            forces[self.heard] = result.extra["dual_coef"][:m]
            self._fused = parts, result.params[m:], forces
        return self._fused

    def fused(self):
        """One model for all that paths of edges join, as a Result."""
        parts, theta, _ = self._all_together()
        return Result(cluster_params=theta, labels=parts, params=theta[parts])

    def bounds(self, tol=1e-3, max_iter=200):
        """Bounds of the lam where everything fuses: edges can carry the bounded forces."""
        parts, _, forces = self._all_together()
        mean = mean_by_cluster(forces, parts)[parts]
        spread = np.linalg.norm(mean, axis=1) + 64 * EPS * np.linalg.norm(forces, axis=1)
        upper, lower, _ = flow_values(
            *(self.graph, self.penalty, parts, forces - mean),
            spread=spread,
            tol=tol,
            max_iter=max_iter,
        )
        return float(lower.max()), float(upper.max())

    def refit(self, labels, theta):
        """Each cluster's model on the pooled rows of its clients, but for those not trusted."""
        weights = np.where(self.trusted, self.clients.client_weights, 0.0)
        return solve_pooled(self.pool, labels, theta, weights)[0]

    @staticmethod
    def neighbourhood(pool, factor):
        """Positions as in :class:`FusionProblem`, in coordinates of trusted clients."""
        limits = ClientLimits(pool, factor)
        n, p = pool.n_clients, pool.n_params
        pull = pulls(pool, np.median(np.maximum(pool.spectrum()[2], 1e-12)))
        W = pool.model.centre(pool.ask(Prox, np.tile(limits.centre, (n, 1)), pull))
        # They are among the others, and get the others' models.
        W[limits.left_out] = limits.centre
        some = pool.subset(limits.trusted & ~pool.without_rows)
        together = np.zeros(some.n_clients, dtype=np.intp)
        if p > MAX_DENSE or shows_rows(some, together, 1)[0]:
            return W
        return in_metric(W, some.ask(Hessians, limits.centre[None], together)[0])


@lru_cache
def bounded(solve):
    """A solver of bounded problems from one of others: through the problem with copies."""

    @wraps(solve)
    def run(problem, lam, *, state=None, **options):
        with_copies = not problem.is_slack(lam)
        inner = state.inner if state is not None and state.with_copies == with_copies else None
        what = problem.copied(lam) if with_copies else problem
        result, inner = solve(what, lam, state=inner, **options)
        if with_copies:
            result = problem.of_clients(result)
        return result, BoundedState(inner, with_copies)

    return run
