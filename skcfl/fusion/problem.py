"""The problem of fusion: clients, a graph, a penalty, and constants computed once.

    minimise  sum_i f_i(x_i) + lam sum_{i<j} w_ij phi(x_i - x_j)

A kind of problem knows its local models, the values of lam that matter, how clusters are refitted
and which solvers suit: :class:`FusionProblem` is the convex one,
:class:`~skcfl.fusion.primal_dual_inexact.NetworkProblem` that of models that are trained,
:class:`~skcfl.fusion.fpfc_problem.FPFCProblem` that with a concave penalty.
"""

from functools import partial

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from ..calls.curvatures import Hessians, Prox, Solve, shows_rows
from ..calls.first_order import ObjectivesGradients
from ..calls.proofs_asked import Rounding
from ..federation.lanes import asked_at_once
from ..federation.result import Result
from ..graphs.edges import edge_blocks
from ..numerics.by_cluster import mean_by_cluster
from ..numerics.newton import MAX_DENSE
from ..rounds.local_training import solve_local
from ..rounds.polish import EXACT, ROUGH, solve_pooled
from .admm import admm
from .enclosures import compare_own_models
from .expansions import Expansions, questions
from .inner_edges import EPS
from .mean_regularised import is_mean_regularised, mean_regularised
from .path import lam_grid, path_ends
from .pdmm import pdmm
from .primal_dual import is_large, primal_dual
from .reduced import lam_max_bounds
from .solvers import InexactPrimalDual
from .theorems import gap_of, proved_apart

SOLVERS = {"admm": admm, "primal_dual": primal_dual, "pdmm": pdmm}
# Rows that the common model is worth to a local one that is drawn to it, a parameter.
SHRINKAGE = 0.3


def pulls(pool, curvature):
    """Strengths of pulls to the common model that are worth some rows of this curvature."""
    return SHRINKAGE * curvature * pool.n_params / np.maximum(pool.client_weights, 1e-12)


def in_metric(W, H):
    """Coordinates of models, with the distances that ``H``, positive semi-definite, gives them."""
    values, vectors = np.linalg.eigh(H)
    return W @ (vectors * np.sqrt(np.maximum(values, 0.0)))


class FusionProblem:
    """A pool, a graph and a penalty: what all solvers of fusion problems share.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    graph : Graph
        Graph of the clients with compared models.
    penalty : Penalty
        Penalty of their differences.
    at_start : float, default=None
        The clients' objectives at the common start; None asks them.

    Attributes
    ----------
    clients : ClientPool
        All clients, where `pool` has some of them only.
    trusted : ndarray of shape (n_clients,) of bool or None
        Who judges lam and has a part in refits; None is everybody.
    """

    #: True if clients solve their problems to the end: what has gaps, exact clusters and paths.
    exact = True
    trusted = None
    #: True if the clients' own minimisers, where nearly every solver begins, are asked for with
    #: the first objectives.
    asks_for_minimisers = True
    #: How near pooled models are to minimisers, see :func:`~skcfl.rounds.polish.solve_pooled`.
    pooled_tol = EXACT

    def __init__(self, pool, graph, penalty, at_start=None):
        self.clients = pool
        self.pool, self.graph, self.penalty = pool, graph, penalty
        self.n, self.d = pool.n_clients, pool.n_params
        self.blocks = edge_blocks(graph, self.d)
        self._local, self._laplacians, self._solved = None, {}, None
        if at_start is None:
            at_start = self._size()
        self.at_start = at_start
        self._expansions = None
        self._curvatures = self._mean_curvature = None

    def _size(self):
        """Sum of the objectives at the common start: the unit of the tolerance of solutions.

        If the start explains all targets, as constant ones, it is their rounding.
        """
        zero, origin = np.zeros((self.n, self.d)), self.pool.model.origin
        starts = [zero, zero + origin] if np.any(origin) else [zero]
        questions = [partial(self.objectives, start) for start in starts]
        if self.asks_for_minimisers:
            *at, (self._solved, _) = self.asked_at_once(*questions, lambda pool: pool.ask(Solve))
        else:
            at = self.asked_at_once(*questions)
        at_zero, at_start = float(at[0].sum()), float(at[-1].sum())
        return max(at_start, np.finfo(float).eps * at_zero)

    def objectives(self, X, pool=None):
        """Clients' objectives at their models, in double precision; `pool` may be a lane."""
        pool = self.pool if pool is None else pool
        return pool.ask(ObjectivesGradients, X, dtype=np.float64)[0]

    def asked_at_once(self, *questions):
        """Answers of the clients to ``question(pool)``, in one exchange."""
        return asked_at_once(*((self.pool, question) for question in questions))

    def expansions(self, W):
        """Expansions of the clients' objectives about models, None if not all clients answer."""
        known = self._expansions
        if known is not None and np.array_equal(known.W, W):
            return known
        return self.expand(W, self.asked_at_once(*questions(W)))

    def expand(self, W, answers):
        """Expansions by the answers to their questions, None if not all clients answered."""
        if self.pool.presence.faulty:
            return None
        self._expansions = Expansions(W, *answers)
        return self._expansions

    def local_models(self):
        """Each client's own minimiser, computed once."""
        if self._local is None:
            solved = self.pool.ask(Solve)[0] if self._solved is None else self._solved
            self._local, self._solved = self.extend(solved), None
        return self._local

    def start_from(self, models):
        """Let solvers begin elsewhere than at the clients' own minimisers."""
        self._local = models

    def extend(self, W):
        """Models of clients without rows: the weighted means of their neighbours' models."""
        if self.pool.without_rows.any():
            W[self.pool.without_rows] = 0.0
            idle, solve = self._idle_laplacian()
            if self.graph.is_complete:
                W[idle] = solve(np.tile(self.graph.weight * W.sum(axis=0), (len(idle), 1)))
            else:
                W[idle] = solve(self.graph.adjacency()[idle] @ W)
        return W

    @property
    def passive(self):
        """Whether some clients have no objective, or one that some parameters are not in."""
        pool = self.pool
        unweighted = pool.client_weights <= 0.0
        return bool((pool.without_rows | (unweighted & ~pool.model.decay.all())).any())

    def _idle_laplacian(self, unweighted=False):
        """Clients without rows that paths join to others, inverse of their Laplacian block.

        With `unweighted` also those without weight: only the penalty is left of their objective.
        """
        if unweighted not in self._laplacians:
            graph, without = self.graph, self.pool.without_rows
            if unweighted:
                without = without | (self.pool.client_weights <= 0.0)
            parts = graph.components()
            anchored = np.bincount(parts, ~without)[parts] > 0
            idle = np.flatnonzero(without & anchored)
            n, m = self.n, len(idle)
            if not m:
                out = idle, np.copy
            elif graph.is_complete:
                out = idle, lambda b: (b + b.sum(axis=0) / (n - m)) / (graph.weight * n)
            else:
                L = sparse.csc_array(graph.laplacian()[idle][:, idle])
                factor = splu(L)

                def solve(b):
                    x = factor.solve(b)
                    return x + factor.solve(b - L @ x)

                out = idle, solve
            self._laplacians[unweighted] = out
        return self._laplacians[unweighted]

    def divergence(self, U):
        """Net outflows (d, n) of the nodes, of flows block by block."""
        outflow = np.zeros((self.d, self.n))
        for block, u in zip(self.blocks, U, strict=True):
            block.add_divergence(u, outflow)
        return outflow

    def conserved(self, U, lam):
        """Feasible flows near `U` that clients without an objective only pass on.

        The conjugate of a client without rows is finite only at zero: its inflow equals its
        outflow. The same holds in parameters without a penalty, for a client with rows of no
        weight.  A potential on these clients removes the excess, along the edges in proportion to
        their weights; then all flows are scaled back to the capacities of the edges.

        Parameters
        ----------
        U : list of ndarray
            Flows, block by block.
        lam : float
            Weight of the penalty.

        Returns
        -------
        divergence : ndarray of shape (n, d)
            Net outflows of the nodes.
        conjugate : float
            Conjugate of the penalty, zero for norms.
        left : ndarray of shape (n,)
            Rounding of the outflows that are given as zero.
        """
        penalty = self.penalty
        outflow, potential = self.divergence(U), np.zeros((self.d, self.n))
        held = self.pool.model.decay > 0.0
        emptied = np.zeros((self.d, self.n), dtype=bool)
        for some, unweighted in ((held, False), (~held, True)):
            idle, solve = self._idle_laplacian(unweighted)
            here = np.ix_(some, idle)
            potential[here] = solve(outflow[here].T).T
            emptied[here] = True
        flows, load = [], 1.0
        for block, u in zip(self.blocks, U, strict=True):
            u = u - block.weights * block.difference(potential)
            flows.append(u)
            if penalty.norm and u.size:
                load = max(load, float((penalty.dual_norm(u) / (lam * block.weights)).max()))
        outflow, conjugate = self.divergence(u / load for u in flows), 0.0
        for block, u in zip(() if penalty.norm else self.blocks, flows, strict=False):
            conjugate += block.total(penalty.conjugate(u, lam * block.weights))
        left = np.linalg.norm(np.where(emptied, outflow, 0.0), axis=0)
        outflow[emptied] = 0.0
        return outflow.T, conjugate, left

    def curvatures(self):
        """Curvature of the clients' objectives, as the pool's, asked for once."""
        if self._curvatures is None:
            self._curvatures = self.pool.spectrum()
        return self._curvatures

    def ceilings(self):
        """Upper bounds of the clients' curvatures that hold in exact arithmetic, (n,).

        Largest eigenvalues have rounding, and of clients with many rows and many features they are
        estimates: no eigenvalue exceeds the sum of all.
        """
        pool = self.pool
        largest, _, mean = self.curvatures()
        many = np.minimum(pool.client_sizes, self.d) > pool.model.exact_side
        largest = np.where(many, np.maximum(largest, self.d * mean), largest)
        return largest * (1.0 + EPS * self.d * (pool.client_sizes + 8.0 * self.d))

    def curvature(self):
        """Geometric mean over clients of their mean curvatures: the scale of rho.

        Clients without any, as those without rows, follow the others and have no say.
        """
        if self._mean_curvature is None:
            mean = self.curvatures()[2]
            largest = mean.max(initial=0.0)
            mean = mean[mean > 1e-12 * largest] if largest > 0.0 else np.ones(1)
            self._mean_curvature = float(np.exp(np.log(mean).mean()))
        return self._mean_curvature

    def fusion(self, X):
        """``sum_e w_e phi(x_i - x_j)``, block by block."""
        XT = np.ascontiguousarray(np.asarray(X, dtype=float).T)
        return sum(
            block.total(block.weights * self.penalty.value(block.difference(XT)))
            for block in self.blocks
        )

    def primal(self, X, lam, objectives=None):
        """The objective.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Models of the clients.
        lam : float
            Weight of the penalty.
        objectives : ndarray of shape (n,), default=None
            The clients' objectives, if they are known.

        Returns
        -------
        value : float
        """
        value = float((self.objectives(X) if objectives is None else objectives).sum())
        return value + (lam * self.fusion(X) if lam else 0.0)

    def rounding(self, X, lam, crossing=None, *, origin=0.0, enough=0.0, of_clients=None):
        """Bound of the rounding of a gap at models `X`, but for that of the conjugates.

        Parameters
        ----------
        X : ndarray of shape (n, d)
            Models of the clients.
        lam : float
            Weight of the penalty.
        crossing : ndarray of shape (n,) or callable, default=None
            Sums of the lengths of the flows at every node; the outflows are sums of these flows,
            up to rounding.  By default the capacities of the edges.
        origin : ndarray of shape (d,), default=0
            From where the dual objective measures the models.
        enough : float
            Below this a bound by what the edges can carry will do.
        of_clients : ndarray of shape (n,), default=None
            The rounding of the clients' objectives, if it is known.

        Returns
        -------
        rounding : float
        """
        graph = self.graph
        total = float((self.pool.ask(Rounding, X) if of_clients is None else of_clients).sum())
        if not lam or not graph.n_edges:
            return total
        # Rounding of the sum, and of flows that are too large by as much.
        total += EPS * (2.0 * self.d + 80.0 + np.log2(graph.n_edges)) * lam * self.fusion(X)
        away = np.linalg.norm(X - origin, axis=1)
        away *= EPS * (graph.degrees(weighted=False) + 8.0)
        most = total + float(away @ (lam * graph.degrees()))
        if crossing is None or most <= enough:
            return most
        return min(most, total + float(away @ (crossing() if callable(crossing) else crossing)))

    def crossing(self, U):
        """Sums of the lengths of flows at every node, block by block, (n,)."""
        total = np.zeros(self.n)
        for block, u in zip(self.blocks, U, strict=True):
            block.add_to_ends(np.linalg.norm(u, axis=0), total)
        return total

    def tolerance(self, value, tol):
        """Largest duality gap that a relative tolerance allows.

        Parameters
        ----------
        value : float
            The objective.
        tol : float
            The tolerance, relative to it.

        Returns
        -------
        gap : float
        """
        return tol * max(abs(value), 1e-6 * self.at_start)

    # ------------------------------------------------------------------------------ over lam

    # Values of lam for a path, its least and largest lam, and bounds of the lam where all fuses.
    grid, path_ends, bounds = lam_grid, path_ends, lam_max_bounds

    def own_models(self, solve):
        """Each client's own model, the solution at lam = 0, as a Result.

        Parameters
        ----------
        solve : callable
            A solver with its options, for those that have no exact solution.
        """
        result = solve_local(self.clients)
        W = self.extend(result.cluster_params)
        own = compare_own_models(self, W)
        labels, certified = own.labels, bool(own.decided and proved_apart(self, own.labels))
        theta = W[np.unique(labels, return_index=True)[1]]
        W = theta[labels]
        result.cluster_params, result.labels, result.params = theta, labels, W
        result.objective = self.primal(W, 0.0)
        outflow = np.zeros_like(W)
        gap = gap_of(self, 0.0, W, outflow)
        result.history = {"objective": np.array([result.objective]), "gap": np.array([gap])}
        result.extra = {"dual_gap": gap, "dual_coef": outflow, "partition_optimal": certified}
        return result

    def fused(self):
        """One model for all that paths of edges join, every client counting once, as a Result."""
        labels, ones = self.graph.components(), np.ones(self.n)
        theta = mean_by_cluster(self.local_models(), labels)
        theta = solve_pooled(self.pool, labels, theta, ones, tol=self.pooled_tol)[0]
        return Result(cluster_params=theta, labels=labels, params=theta[labels])

    def refit(self, labels, theta, rng=None):
        """Each cluster's model on the pooled rows of its clients."""
        return solve_pooled(self.pool, labels, theta, tol=self.pooled_tol)[0]

    # ------------------------------------------------------------------------------ solvers

    def solver(self, given="auto"):
        """The solver of a name or an object; the fastest for such a problem, by measurements."""
        if isinstance(given, InexactPrimalDual):
            raise ValueError(
                f"solver={given!r} is for networks, got {type(self.pool.model).__name__}. Use one "
                f"of {sorted(SOLVERS)} or an object of ADMM, PrimalDual or PDMM."
            )
        if given != "auto":
            return SOLVERS[given] if isinstance(given, str) else given.solve
        if is_mean_regularised(self):
            return mean_regularised
        return primal_dual if is_large(self.graph) else admm

    @staticmethod
    def neighbourhood(pool):
        """Positions of the clients in the graph of nearest neighbours: (n_clients, n_params).

        Their local models, drawn to the common one as if by some rows more, because with few rows
        they are mostly noise; in coordinates in which the length of a difference is its effect on
        the predictions, so that the units of the features do not matter.
        """
        n, p = pool.n_clients, pool.n_params
        together = np.zeros(n, dtype=np.intp)
        common, *_ = solve_pooled(pool, together, np.zeros((1, p)), tol=ROUGH)
        curvature = np.maximum(pool.spectrum()[2], 1e-12)
        pull = pulls(pool, np.exp(np.log(curvature).mean()))
        asked = [(pool, lambda pool: pool.ask(Prox, np.repeat(common, n, axis=0), pull))]
        if p <= MAX_DENSE and not shows_rows(pool, together, 1)[0]:
            asked.append((pool, lambda pool: pool.ask(Hessians, common, together)[0]))
        W, *H = asked_at_once(*asked)
        W = pool.model.centre(W)
        if not H:
            return W
        return in_metric(W, H[0])
