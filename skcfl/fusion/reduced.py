r"""Exact partitions of fusion problems: the reduced problem, and the flow that proves it.

For a partition C_1..C_K the reduced problem (Armacki et al., (5), under our convention) is

    minimise  sum_k sum_{i in C_k} f_i(w_k) + lam sum_{k<l} W_kl |w_k - w_l|,

smooth where the w_k are distinct.  Its solution, repeated within clusters, solves the fusion
problem iff, with ``q_i = grad f_i(w_k) + lam sum_{j not in C_k} w_ij (w_k - w_l) / |w_k - w_l|``,
there are flows u_e on the edges within clusters of net outflow ``-q_i`` at every node and
``|u_e| <= lam w_e``: iff the flow value of every cluster (:mod:`skcfl.fusion.flows`) is at most
lam.
A flow that shows it proves the partition, a potential that shows the contrary refutes it.

Models and ``q_i`` are computed with rounding, the models as solutions of the reduced problem.  The
distance of both from the exact ones is bounded (:func:`skcfl.fusion.enclosures.enclose`), and a
proof holds for all values within it: flows within capacities with a margin, and models of
different clusters at a distance.
"""

from dataclasses import dataclass

import numpy as np

from ..graphs import Graph
from ..numerics.by_cluster import mean_by_cluster, sum_by_cluster
from ..numerics.newton import newton
from ..rounds.polish import EXACT, ROUGH
from .enclosures import Enclosure, enclose, forces_at
from .flows import flow_values
from .reduced_newton import (
    FAST,
    MAX_UNKNOWNS,
    ReducedOracle,
    descend,
    meeting,
    pairs_between,
    solve_separately,
)

# Looks in vain before giving up where a reduced problem has to be solved, and how often joined
# clusters are then split again.
PERSISTENCE, MAX_SPLITS = 30, 30
# Iterations of a search for flows beside a solver, on small and on large edge arrays: a solver
# that goes on is then the better use of the time.
FLOW_STEPS, LARGE = (60, 30), 1_000_000


@dataclass
class Contraction:
    """A partition, its reduced solution, and the known bounds of its flow.

    Attributes
    ----------
    labels : ndarray of shape (n_nodes,)
        Cluster of each node; coarser than the partition asked for where models met.
    theta : ndarray of shape (K, d)
        Models of the clusters.
    ratios : ndarray of shape (K,)
        Upper bounds of the clusters' flow values over lam.
    lowers : ndarray of shape (K,)
        Lower bounds of the same.
    divergence : ndarray of shape (n_nodes, d)
        ``(D'u)_i`` of the whole edge dual, between and within clusters.
    residual : ndarray of shape (n_nodes, d)
        ``q_i``, the outflow that the edges within clusters have to take away.
    potential : ndarray of shape (n_nodes, d)
        Potentials that give the lower bounds: if one exceeds 1, moving the nodes of its cluster
        along it lowers the objective.
    carried : bool
        True if flows were found: models and duals are a solution's but for rounding, and close the
        gap.
    crossing : ndarray of shape (n_nodes,)
        Size of the terms of `divergence`.
    enclosure : Enclosure or None
        How far models and forces may be from exact; the bounds hold for all that they may be.
        None where there was nothing to prove: the bounds are then those of the models as they are.
    """

    labels: np.ndarray
    theta: np.ndarray
    ratios: np.ndarray
    lowers: np.ndarray
    divergence: np.ndarray
    residual: np.ndarray
    potential: np.ndarray
    carried: bool
    crossing: np.ndarray
    enclosure: "Enclosure | None" = None

    @property
    def ratio(self):
        """Upper bound of the flow value over lam: the partition is proved where it is <= 1."""
        return float(self.ratios.max(initial=0.0))

    @property
    def lower(self):
        """Lower bound of the same: the partition is refuted where it is > 1."""
        return float(self.lowers.max(initial=0.0))

    @property
    def certified(self):
        """True if the partition is proved to be a solution's."""
        return self.enclosure is not None and self.ratio <= 1.0 and self.enclosure.distinct

    @property
    def refuted(self):
        """True if the partition is no solution's."""
        return self.lower > 1.0


def contract(problem, lam, labels, X, duals=None, max_splits=0, effort=np.inf, max_iter=None):
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
    max_splits : int
        How often clusters that are refuted may be split, after which the new partition is
        tried: each time the objective falls.
    effort : float
        Budget for reduced problems.  A few Newton steps on a small one cost 1, on larger ones
        more.
    max_iter : int, default=None
        Most iterations of a search for flows; None takes fewer for many edges.

    Returns
    -------
    outcome : Contraction or None
        None if a reduced problem is too large or was not solved.  Its partition is coarser
        than `labels` where models met, and finer where a cluster was not connected by its own
        edges, which nothing holds together.
    """
    labels = split_torn(problem.graph, labels)
    if max_iter is None:
        max_iter = FLOW_STEPS[problem.graph.n_edges * problem.d > LARGE]
    for k in range(max_splits + 1):
        labels, theta, spent = descend(problem, lam, labels, X, effort)
        effort -= spent
        if theta is None:
            return None
        outcome = examine(problem, lam, labels, theta, duals, max_iter=max_iter)
        if k == max_splits or not outcome.refuted:
            return outcome
        new = _split(problem, lam, labels, theta, outcome.lowers, outcome.potential)
        if new is None:
            return outcome
        labels, X = new


def contract_apart(problem, lam, X):
    """The contraction where no two models are equal, if Newton's method converges there fast.

    Parameters
    ----------
    problem, lam, X
        As for :func:`contract`.

    Returns
    -------
    outcome : Contraction or None
        None where models have yet to meet: that shows after two steps.
    """
    labels, theta = np.arange(problem.n), np.asarray(X, dtype=float)
    pairs = pairs_between(problem.graph, labels, problem.n, problem.n)
    scale = np.array([max(problem.at_start, 1e-30)])
    oracle = ReducedOracle(problem, lam, labels, problem.n, pairs, theta.size)
    x, _, converged = newton(oracle, theta.reshape(1, -1), scale, stall=FAST)
    theta = x.reshape(theta.shape)
    if not converged.all() or meeting(oracle, theta, None, True) is not None:
        return None
    return examine(problem, lam, labels, theta)


def _split(problem, lam, labels, theta, lowers, potential, whole=None):
    """Split refuted clusters along their potential: labels and models of less objective.

    A potential that refutes is a direction in which the objective falls.  Parts without edges
    between them are separate clusters, unless they belong to one of `whole`.
    """
    X = theta[labels]
    p = np.where((lowers > 1.0)[labels, None], potential, 0.0)
    length = np.linalg.norm(_centred(p, labels), axis=1)
    # Potentials of different clusters have no common scale.
    largest = np.zeros(len(theta))
    np.maximum.at(largest, labels, length)
    p = np.divide(p, largest[labels, None], out=np.zeros_like(p), where=length[:, None] > 0)
    value = problem.primal(X, lam)
    fall = float(np.maximum(lowers - 1.0, 0.0).max())
    for coarse in (0.1, 0.01):
        cells = np.column_stack([labels, np.round(p / coarse)])
        new = np.unique(cells, axis=0, return_inverse=True)[1].ravel()
        new = split_torn(problem.graph, new) if whole is None else new
        move = mean_by_cluster(p, new)[new]
        step = fall * float(np.linalg.norm(X - X.mean(axis=0), axis=1).max() + 1e-3)
        best = None
        for _ in range(40):
            trial = problem.primal(X + step * move, lam)
            if trial < value and (best is None or trial < best[0]):
                best = trial, step
            elif best is not None:
                break
            step *= 0.5 if np.isfinite(trial) else 0.01  # clients are patient, but not for long
        if best is not None:
            return new, X + best[1] * move
    return None


def split_torn(graph, labels):
    """Partition into the parts of each cluster that its own edges connect."""
    return labels if graph.is_complete else graph.inside(labels).components()


def examine(problem, lam, labels, theta, duals=None, *, thorough=False, max_iter=60):
    """Look for the flow that proves a partition with models `theta` (K, d).

    Parameters
    ----------
    problem, lam, labels, duals
        As for :func:`contract`.
    theta : ndarray of shape (K, d)
        Solution of the reduced problem.
    thorough : bool
        If True, decide every cluster, not only until one refutes the partition, and for all that
        the models may be, not only if the partition is found to be a solution's.
    max_iter : int
        Most iterations of the search for flows.

    Returns
    -------
    outcome : Contraction
    """
    forces = forces_at(problem, lam, labels, theta)
    q, start, enclosure = forces.q, None, None

    def spread():
        nonlocal enclosure
        enclosure = enclose(problem, lam, labels, theta, forces)
        # Unbounded entries: flows and cuts use the computed models.
        return np.nan_to_num(enclosure.spread, posinf=0.0)

    if duals is not None:
        start = lambda inside: inside.restrict(duals(), problem.blocks)  # noqa: E731
    upper, lower, potential = flow_values(
        problem.graph,
        problem.penalty,
        labels,
        -q,
        spread=spread() if thorough else spread,
        level=lam,
        start=start,
        first_refusal=not thorough,
        max_iter=max_iter,
    )
    # Unless thoroughness asks for it, flows have to meet the certain demands only.
    carried = bool((upper <= lam).all()) if thorough else enclosure is not None
    if enclosure is not None and not np.isfinite(enclosure.spread).all():
        unknown = np.zeros(len(theta), dtype=bool)
        unknown[labels[~np.isfinite(enclosure.spread)]] = True
        single = np.bincount(labels) == 1
        upper = np.where(unknown & ~single, np.inf, upper)
        lower = np.where(unknown & ~single, 0.0, lower)
    return Contraction(
        labels,
        theta,
        upper / lam,
        lower / lam,
        forces.between - q,
        q,
        potential,
        carried,
        forces.strength + np.linalg.norm(q, axis=1),
        enclosure,
    )


# -------------------------------------------------------------------- the reduced problem


def solve_reduced(problem, lam, labels, X, max_unknowns=MAX_UNKNOWNS):
    """Solve the reduced problem of a partition.

    It is a fusion problem itself, of the clusters on the graph of their total weights: where
    models meet, flows between the clusters prove that they do at the solution.

    Parameters
    ----------
    problem, lam, labels, X
        As for :func:`contract`.
    max_unknowns : int
        Unknowns up to which Newton's directions are exact; on the complete graph, up to which
        the problem is solved at all.

    Returns
    -------
    labels : ndarray of shape (n_nodes,)
        The partition, coarser where models of neighbouring clusters met.
    theta : ndarray of shape (K, d) or None
        Models of the clusters; None if the problem is too large or was not solved.
    """
    whole, K = labels, int(labels.max()) + 1
    start, seen = labels, set()
    for _ in range(MAX_SPLITS):
        labels, theta, _ = descend(problem, lam, start, X, np.inf, max_unknowns, PERSISTENCE)
        # If rounding decides, models that are split meet again.
        if theta is None or len(theta) == K or labels.tobytes() in seen:
            break
        seen.add(labels.tobytes())
        lowers, potential = _examine_meetings(problem, lam, whole, labels, theta, max_unknowns)
        if not lowers.max() > 1.0:
            break
        new = _split(problem, lam, labels, theta, lowers, potential, whole)
        if new is None:
            break
        start, X = new
    return labels, theta


def _examine_meetings(problem, lam, whole, labels, theta, max_unknowns):
    """Lower bounds of the flow values, over lam, and potentials of the coarser `labels`.

    The nodes are the clusters `whole`; potentials are those of the clients.
    """
    K = int(whole.max()) + 1
    pairs = pairs_between(problem.graph, whole, K, max_unknowns)
    q = forces_at(problem, lam, labels, theta).q
    _, lower, potential = flow_values(
        Graph(K, pairs.heads, pairs.tails, pairs.weights),
        problem.penalty,
        labels[np.unique(whole, return_index=True)[1]],
        -sum_by_cluster(q, whole, K),
        level=lam,
        first_refusal=True,
        max_iter=500,
    )
    return lower / lam, potential[whole]


# ------------------------------------------------------------------------ where all fuses


def lam_max_bounds(problem, tol=1e-3, max_iter=200):
    """Bounds of the least lam at and beyond which every component of the graph is fused.

    At the pooled optimum of each component the clients' gradients have to be carried away along
    its edges: lam_max is the largest of the components' flow values.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    tol : float, default=1e-3
        Relative distance of the bounds to reach.
    max_iter : int, default=200
        Most iterations to that end.

    Returns
    -------
    lower, upper : float
        Bounds: below `lower` some component is not fused, from `upper` on all are.  They are
        equal but for rounding on trees, for models of one parameter and for the penalty "l1"; both
        0 where there are no edges, both infinite where the penalty fuses nothing.

    Raises
    ------
    RuntimeError
        If the pooled problem of a component was not solved.
    """
    if not problem.penalty.norm:
        return np.inf, np.inf
    graph = problem.graph
    labels = graph.components()
    zero = np.zeros((labels.max() + 1, problem.d))
    theta = solve_separately(problem, labels, zero, EXACT if tol < 1.0 else ROUGH)
    if theta is None:
        raise RuntimeError(
            "Newton's method did not find the pooled optimum, which lam_max needs. Scale the "
            "features or raise the local penalty alpha; where clients may answer falsely, look "
            "for those whose answers no convex loss has."
        )
    forces = forces_at(problem, 0.0, labels, theta)
    enclosure = enclose(problem, 0.0, labels, theta, forces)
    # If the pooled model is not unique the bounds are those of the one found.
    spread = np.where(np.isfinite(enclosure.spread), enclosure.spread, enclosure.rounding)
    upper, lower, _ = flow_values(
        graph, problem.penalty, labels, -forces.q, spread=spread, tol=tol, max_iter=max_iter
    )
    return float(lower.max()), float(upper.max())


def _centred(values, labels):
    """Node values less their mean over the cluster."""
    return values - mean_by_cluster(values, labels)[labels]
