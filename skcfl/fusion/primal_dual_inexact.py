r"""Primal-dual message passing with inexact updates: GTV minimisation of networks.

Algorithm 1 of SarcheshmehPour et al. (2023) where clients cannot solve (32) to the end: the
iteration of ``_primal_dual.py``, with the update of a node replaced by some steps of Adam on

    f_i(w) + deg_i / (2 s) |w - (w_i - tau_i (D'u)_i)|^2                              (32)

from its present model.  The length of these steps falls like ``1 / (1 + k / DELAY)`` with the
iterations k, without which the models would go on by a step of Adam for ever.

=============  ==================  ==========================================================
here           symbol              what it is
=============  ==================  ==========================================================
``W``, ``V``   w, hat w            models, their proposals; start at one random model for all
``U``, ``P``   u, hat u            scaled flows and proposals, as in ``_primal_dual.py``
``ratio``      s                   primal over dual step
``steps``                          steps of Adam for an update (32)
=============  ==================  ==========================================================

Objectives of networks are not convex, so that there is no dual problem, no gap and no proof.
What remains are the conditions of stationary points,

    grad f_i(w_i) + (D'u)_i = 0   at nodes,     u_e in lam A_e dphi(w_i - w_j)   on edges,

the optimality conditions (26)-(28) without the claim of optimality.  The residual is the larger
of two root mean squares: of the left side over the nodes, relative to that of the gradients at the
start; and of the change ``U - P`` over the edges, which is by how much models and flow do not fit,
in units of models, relative to their norms.  Adam, which starts anew in every iteration, leaves
gradients that are noise, more so where rows are interpolated; so the iteration also ends where
clusters have settled, flows fit the models to .01, and gradients are as small or fall no more.

Clusters: models trained inexactly are never equal to the last digit, but flows are clipped
exactly.  A flow below its capacity, ``|u_e| < lam A_e``, makes models equal wherever the
conditions hold; so clusters are the components of the edges with unclipped flows, as in the exact
solver.
"""

from functools import partial
from numbers import Real

import numpy as np

from .._checks import MOST, Interval
from ..calls.first_order import LocalUpdate, ObjectivesGradients
from ..graphs import Graph
from ..penalties import L2
from ..rounds.alternate import Options, alternate
from ..rounds.model_kinds import NETWORK_STEP
from ..rounds.stop import rounds_stable
from .certified import CertifiedLoop, _components
from .primal_dual import _PrimalDual
from .problem import FusionProblem
from .solvers import SETTLED_ITERATIONS, STEPS, InexactPrimalDual, solver

__all__ = ["primal_dual_inexact"]

# Iterations after which the length of the steps of a node is halved.
DELAY = 10.0
# First strength of the pull of (32), deg_i / s, at a node of mean degree.
STRENGTH = 0.3
# Residual at which partitions that do not change are taken; by how much gradients have to fall
# meanwhile where they are larger.
RESIDUAL, FALL = 0.01, 0.95
# Training of a cluster's network on its clients' rows.
ROUNDS = {"max_iter": 50, "averaging": "model", "optimizer": "adam", "step_size": NETWORK_STEP}
# The grid of lam: decades, and values that a search begins with at most.
DECADES, N_LAMS = 3.0, 7
# Steps of Adam after which the networks of clients are compared, from one start.
TRAINING = {"steps": 100, "step_size": 0.005, "optimizer": "adam"}


class NetworkProblem(FusionProblem):
    """Fusion problem of models without second derivatives.

    Parameters
    ----------
    pool, graph, penalty
        As for the convex problem.
    start : ndarray of shape (n_params,), default=None
        The model that all clients start from, drawn if not given.  Networks have many minimisers
        of equal value; differences of two say nothing unless both come from one start.
    """

    exact = asks_for_minimisers = False

    def __init__(self, pool, graph, penalty, start=None):
        super().__init__(pool, graph, penalty)
        self.common = pool.start().astype(float) if start is None else start
        gradients = pool.ask(ObjectivesGradients, np.tile(self.common, (self.n, 1)))[1]
        #: Lengths of the clients' gradients at the start.
        self.slopes = np.linalg.norm(gradients.astype(float), axis=1)

    def start(self):
        """The common start of all clients, (n, d)."""
        return np.tile(self.common, (self.n, 1))

    def without_edges(self):
        """The problem without edges, the remainder at lam = 0."""
        return NetworkProblem(self.pool, Graph(self.n, [], []), L2(), self.common)

    def grid(self, n_lams=N_LAMS, ratio=None, rough=False):
        """Values of lam, ascending; a single 0 with one client.

        At the largest the flows along the edges of a typical node can outweigh its gradient at
        the start, so that hardly anything keeps its model from its neighbours'.
        """
        degrees = self.graph.degrees()
        if self.n == 1 or not degrees.any():
            return np.zeros(1)
        n_lams = min(n_lams, N_LAMS) if rough else n_lams
        with_rows = self.slopes[~self.pool.without_rows]
        upper = float(np.median(with_rows) / np.median(degrees[degrees > 0]))
        lower = upper * (10.0**-DECADES if ratio is None else ratio)
        return np.array([upper]) if n_lams == 1 else np.geomspace(lower, upper, n_lams)

    def bounds(self):
        """Not known."""
        raise ValueError(
            "lam_max is known for convex problems only, and the problem of "
            f"{type(self.pool.model).__name__} is not convex. Use lam_path, which has a grid."
        )

    def own_models(self, solve):
        """Each client's own model, trained."""
        return solve(self, 0.0)[0]

    def solver(self, given="auto"):
        """Networks have one solver."""
        if not (isinstance(given, InexactPrimalDual) or given in ("auto", "primal_dual")):
            raise ValueError(
                f"solver={given!r} needs exact proximal points, which "
                f"{type(self.pool.model).__name__} does not have. Use solver='primal_dual' or an "
                "InexactPrimalDual."
            )
        return primal_dual_inexact

    @staticmethod
    def neighbourhood(pool):
        """Positions of the clients, for the graph of neighbours: their trained models."""
        start = np.tile(pool.start(), (pool.n_clients, 1))
        return pool.ask(LocalUpdate, start, **TRAINING).astype(float)

    def refit(self, labels, theta):
        """Each cluster's network, trained further.

        A cluster of clients without rows keeps its model.
        """
        keep = np.flatnonzero(~self.pool.without_rows)
        used, place = np.unique(labels[keep], return_inverse=True)
        out, rng = np.array(theta, dtype=float), self.pool.random_state
        out[used] = trained_further(self.pool.subset(keep), out[used], place, rng)
        return out


def trained_further(pool, theta, labels, rng):
    """Each cluster's network, trained further on its clients' rows in rounds of averaging."""
    options = Options(**ROUNDS, polish=False)
    return alternate(pool, theta, options, rng, labels=labels).cluster_params


@solver(InexactPrimalDual, extra={"lam": [Interval(Real, 0, MOST, closed="both")]})
def primal_dual_inexact(
    problem,
    lam,
    *,
    tol=1e-6,
    max_iter=2000,
    ratio=None,
    relaxation=1.0,
    local_steps=STEPS,
    step_size=NETWORK_STEP,
    n_iter_no_change=SETTLED_ITERATIONS,
    state=None,
):
    """Solve a fusion problem of networks by primal-dual message passing.

    Parameters
    ----------
    problem : NetworkProblem
        The problem.
    lam : float
        Weight of the penalty, not negative.
    tol : float
        Residual at which the iteration ends.
    max_iter : int
        Most iterations.
    ratio, relaxation, local_steps, step_size, n_iter_no_change
        See :class:`~skcfl.fusion.solvers.InexactPrimalDual`.
    state : PrimalDualState, default=None
        State to start from; at another ``lam`` its flows are rescaled and the ratio starts anew.

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, which is infinite, ``dual_coef`` (the sums ``(D'u)_i``) and
        ``partition_optimal``, which is False; ``history`` has the residual.
    state : PrimalDualState
        The last iterate.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """
    split = problem if lam > 0.0 else problem.without_edges()
    training = local_steps, step_size, n_iter_no_change
    loop = _InexactPrimalDual(split, lam, tol, max_iter, ratio, relaxation, state, training)
    result = loop.run()
    if lam == 0.0:
        result.params = problem.extend(result.params)
        result.cluster_params = result.params[result.labels.argsort()]
    return result, loop.state


class _InexactPrimalDual(_PrimalDual):
    def __init__(self, problem, lam, tol, max_iter, ratio, relaxation, state, training):
        self.local_steps, self.step_size, self.patience = training
        super().__init__(problem, lam, tol, max_iter, ratio, relaxation, state, False)
        self.extras["residual"] = []
        self.scale = max(rms(problem.slopes), 1e-300)
        self.labels, self.stable = None, 0
        self.least, self.least_at, self.settled = np.inf, 0, False

    def _first_models(self):
        """One random model for all."""
        return self.problem.start()

    def _first_ratio(self):
        return float(self.degree.mean()) / STRENGTH

    def _node_pass(self, k, centres):
        """Inexact proposals of all models (32): steps of Adam from the present models."""
        rate = self.step_size / (1.0 + k / DELAY)
        pull = self.degree / self.state.ratio
        pull[self.isolated] = 0.0  # no neighbour, no step: they train freely
        V = self.problem.pool.ask(
            LocalUpdate,
            self.state.W,
            self.local_steps,
            rate,
            "adam",
            center=centres,
            rho=pull,
            last=True,
        )
        return V.astype(float)

    def _examine(self, k, V, edges):
        """Whether the conditions hold, or clusters have settled."""
        problem, n, divergence = self.problem, self.problem.n, edges.divergence
        values, gradients = problem.pool.ask(ObjectivesGradients, V)
        objective = float(values.sum(dtype=float)) + self.lam * problem.fusion(V)
        # The inflow of clients without rows passes through them.
        node = rms(gradients + divergence) / self.scale
        edge = np.sqrt(edges.dual2 / max(problem.graph.n_edges, 1))
        edge /= max(rms(V), 1e-300)
        self.residual = float(max(node, edge))
        labels = _components(edges.zeros, n) if self.watches else np.arange(n)
        last = self.history["round"][-1] if self.history["round"] else 0
        self.stable = rounds_stable(self.stable, self.labels, labels, k - last)
        if node < FALL * self.least:
            self.least, self.least_at = node, k
        self.labels = labels
        self.best = {"W": V, "divergence": divergence, "primal": objective, "gap": np.inf}
        self.best |= {"labels": None, "certified": False}
        self.extras["residual"].append(self.residual)
        n_clusters = int(labels.max()) + 1
        self._record(k, objective, np.inf, n_clusters, n)
        values = {"residual": self.residual, "n_clusters": n_clusters}
        stop = self.progress.tell(partial(self._result, k), k=k, objective=objective, **values)
        if self.patience is not None:
            rest = node <= RESIDUAL or k - self.least_at >= self.patience
            self.settled = self.stable >= self.patience and edge <= RESIDUAL and rest
        return self.residual <= self.tol or self.settled or stop

    def _balance(self, move, move2, outflow):
        """Bring the moves of models and flows to one size, where anything flows."""
        return super()._balance(move, move2, outflow) if move2 > 0.0 else outflow

    _result = CertifiedLoop._result

    def _shortfall(self, limit):
        if self.residual <= self.tol or self.settled:
            return ""
        wait = ", and clusters or models have not settled" if self.patience else ""
        return (
            f"The residual is {self.residual:.2g} after max_iter={self.max_iter} iterations, more "
            f"than tol={self.tol:g}{wait}. Increase max_iter or tol."
        )


def rms(M):
    """Root mean square length of the rows."""
    return float(np.sqrt((M**2).sum() / len(M)))
