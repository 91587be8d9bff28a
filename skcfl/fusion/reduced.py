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
distance of both from the exact ones is bounded (:func:`enclose`), and a proof holds for all values
within it: flows within capacities with a margin, and models of different clusters at a distance.
"""

import secrets
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dposv
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from ..calls.curvatures import Hessians, HessianSolves, shows_rows
from ..calls.descriptions import Fingerprints
from ..calls.first_order import ObjectivesGradients
from ..calls.proofs_asked import Enclosures
from ..graphs import Graph
from ..numerics.by_cluster import mean_by_cluster, share_in_cluster, sum_by_cluster
from ..numerics.conjugate_gradients import conjugate_gradients
from ..numerics.newton import MAX_DENSE, newton, solve_scaled
from ..rounds.polish import EXACT, ROUGH, solve_pooled
from .flows import EPS, flow_values

# Unknowns of the reduced problem up to which Newton's directions are exact.
MAX_UNKNOWNS = 1500
# Numbers of the blocks of its Hessian up to which it is solved at all, on sparse graphs.
MAX_BLOCKS = 10_000_000
# Newton steps between two looks for models that meet, and looks in vain before giving up.
NEWTON_STEPS, MAX_STALLS = 5, 4
# Most looks: where a fall is rounding of a huge objective, none of them is in vain.
MAX_LOOKS = 100
# Part of the decrement that a step leaves at most where Newton's method converges fast, and where
# it converges at all: else models meet.
FAST, STALL = 0.06, 0.2
# The same if a reduced problem has to be solved, and how often joined clusters are then split
# again.
PERSISTENCE, MAX_SPLITS = 30, 30
# Unknowns of a small reduced problem, with Newton steps that cost little more than its gradients.
SMALL = 300
# Iterations of a search for flows beside a solver, on small and on large edge arrays: a solver
# that goes on is then the better use of the time.
FLOW_STEPS, LARGE = (60, 30), 1_000_000
# Multiplications that may go into the eigenvalues of clusters' Hessians, and numbers of those of
# single clients at once; with more, bounds of least curvatures are numbers from the start.
MAX_EIGEN, MAX_AT_ONCE = 2e10, 5_000_000
# Residuals of Newton directions where clients solve with their Hessians: the first are coarse.
CAREFUL = 1e-3, 0.03
# Rounding of a value, relative to the sum of its terms, that lower bounds of it allow for.
BOUND_SLACK = 1e-12
# Numbers of the differences between models that are made at once.
MAX_DIFFERENCES = 100_000
# Pairs of clients at lam = 0 that are looked at one by one.
MAX_NEAR = 3000


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
        labels, theta, spent = _descend(problem, lam, labels, X, effort)
        effort -= spent
        if theta is None:
            return None
        outcome = examine(problem, lam, labels, theta, duals, max_iter=max_iter)
        if k == max_splits or not outcome.refuted:
            return outcome
        new = _split(problem, lam, outcome)
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
    pairs = _pairs(problem.graph, labels, problem.n, problem.n)
    scale = np.array([max(problem.at_start, 1e-30)])
    oracle = _ReducedOracle(problem, lam, labels, problem.n, pairs, theta.size)
    x, _, converged = newton(oracle, theta.reshape(1, -1), scale, stall=FAST)
    theta = x.reshape(theta.shape)
    if not converged.all() or _meeting(oracle, theta, None, True) is not None:
        return None
    return examine(problem, lam, labels, theta)


def _split(problem, lam, outcome, whole=None):
    """Split refuted clusters along their potential: labels and models of less objective.

    A potential that refutes is a direction in which the objective falls.  Parts without edges
    between them are separate clusters, unless they belong to one of `whole`.
    """
    labels, X = outcome.labels, outcome.theta[outcome.labels]
    p = np.where((outcome.lowers > 1.0)[labels, None], outcome.potential, 0.0)
    length = np.linalg.norm(_centred(p, labels), axis=1)
    # Potentials of different clusters have no common scale.
    largest = np.zeros(len(outcome.theta))
    np.maximum.at(largest, labels, length)
    p = np.divide(p, largest[labels, None], out=np.zeros_like(p), where=length[:, None] > 0)
    value = problem.primal(X, lam)
    fall = float(np.maximum(outcome.lowers - 1.0, 0.0).max())
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
            step *= 0.5
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


@dataclass
class _Forces:
    """Forces on the clients at the models of a partition.

    Attributes
    ----------
    between : ndarray of shape (n, d)
        Pull of the clients of other clusters.
    strength : ndarray of shape (n,)
        Sum of the lengths of its terms.
    q : ndarray of shape (n, d)
        Gradient plus pull, less what a cluster as a whole has of them.
    left : ndarray of shape (K, d)
        That: the gradient of the reduced problem.
    share : ndarray of shape (n,)
        The part of it that `q` of a client lacks.
    """

    between: np.ndarray
    strength: np.ndarray
    q: np.ndarray
    left: np.ndarray
    share: np.ndarray


def forces_at(problem, lam, labels, theta):
    """Forces on the clients at models `theta` (K, d) of a partition, as `_Forces`."""
    K, graph = len(theta), problem.graph
    _, gradient = problem.pool.ask(ObjectivesGradients, theta[labels], dtype=np.float64)
    if lam:
        between = lam * _pull_between(graph, labels, theta)
        strength = lam * outer_degrees(graph, labels)
    else:
        between, strength = np.zeros_like(gradient), np.zeros(len(gradient))
    q = gradient + between
    # Flows conserve: the residual of the reduced problem cannot be removed.  None of it belongs to
    # clients without rows: their conjugate is finite only at zero.
    share = share_in_cluster(~problem.pool.without_rows, labels, K)
    left = sum_by_cluster(q, labels, K)
    return _Forces(between, strength, q - share[:, None] * left[labels], left, share)


def outer_degrees(graph, labels):
    """Sums of the weights between every node and other clusters, (n_nodes,)."""
    if graph.is_complete:
        return graph.weight * (graph.n_nodes - np.bincount(labels)[labels])
    across = labels[graph.heads] != labels[graph.tails]
    ends = np.concatenate([graph.heads[across], graph.tails[across]])
    return np.bincount(ends, np.tile(graph.weights[across], 2), graph.n_nodes).astype(float)


# ------------------------------------------------------------------ what rounding leaves open


@dataclass
class Enclosure:
    """Enclosure of the exact models of a partition and of its forces.

    Attributes
    ----------
    radius : ndarray of shape (K,)
        Distances within which the exact models are from those computed; infinite where nothing
        is known.
    spread : ndarray of shape (n,)
        The same of the forces ``q_i``.
    rounding : ndarray of shape (n,)
        The part of `spread` that is no matter of the models: sums, and what Newton's method left.
    distinct : bool
        True if the models of different clusters are proved to differ.
    """

    radius: np.ndarray
    spread: np.ndarray
    rounding: np.ndarray
    distinct: bool


def enclose(problem, lam, labels, theta, forces=None):
    """Bound how far the solution of a reduced problem, and its forces, are from computed ones.

    With H a matrix below the Hessians of the objective in a box about the models, and g its
    gradient there, ``|x - theta|_H <= |g|_(H^-1)`` for the solution x, if that is within the box.
    Here H leaves out the penalty, so that it has a block for each cluster, and g is what Newton's
    method left plus the rounding of its sums.  Clusters that no path of edges joins have nothing
    to do with each other.

    Parameters
    ----------
    problem, lam, labels
        As for :func:`contract`; ``lam = 0`` takes all edges away.
    theta : ndarray of shape (K, d)
        Models of the clusters.
    forces : _Forces, default=None
        At these models.

    Returns
    -------
    enclosure : Enclosure
    """
    pool, graph = problem.pool, problem.graph
    K, d = theta.shape
    forces = forces_at(problem, lam, labels, theta) if forces is None else forces
    sizes = np.bincount(labels, minlength=K)
    parts = np.arange(K)
    if lam and graph.is_complete:
        parts = np.zeros(K, dtype=np.intp)
    elif lam:
        ends = labels[graph.heads], labels[graph.tails]
        links = sparse.coo_array((np.ones(graph.n_edges), ends), shape=(K, K))
        parts = connected_components(sparse.csr_array(links), directed=False)[1]
    dense = d <= MAX_DENSE and K * d**3 <= MAX_EIGEN
    around = _Surroundings(pool, labels, theta, dense)
    around.look(np.zeros_like(theta))
    steps = graph.degrees(weighted=False) if not graph.is_complete else float(K)
    pull = EPS * (steps + d + 12.0) * forces.strength
    error = sum_by_cluster(around.rounding + pull[:, None], labels, K) + np.abs(forces.left)
    error += EPS * (sizes + 4.0)[:, None] * sum_by_cluster(np.abs(forces.q), labels, K)
    box = around.reach(error, parts)
    if not pool.model.quadratic and (box[np.isfinite(box)] > 0.0).any():
        # Curvature may fall on the way: look at twice the box.
        wide = 2.0 * np.nan_to_num(box, posinf=0.0)
        around.look(wide)
        box = around.reach(error, parts)
        box[(box > wide).any(axis=1)] = np.inf
        drift = around.drift
        # A model that is not enclosed leaves all open that it draws.
        lost = np.zeros(parts.max() + 1, dtype=bool)
        lost[parts[~np.isfinite(box).all(axis=1)]] = True
        box[lost[parts]] = np.inf
        drift[lost[parts[labels]]] = np.inf
    else:
        # |H_i z| <= |H_i|^(1/2) |z|_H
        with np.errstate(invalid="ignore"):
            drift = np.sqrt(problem.ceilings()) * around.length[parts[labels]]
        drift = np.where(pool.without_rows, 0.0, np.nan_to_num(drift, nan=0.0, posinf=np.inf))
    radius = np.linalg.norm(box, axis=1)
    radius *= 1.0 + EPS * (d + 8.0)
    rounding = np.linalg.norm(around.rounding, axis=1) + pull
    rounding += forces.share * np.linalg.norm(forces.left, axis=1)[labels]
    rounding += EPS * (sizes[labels] + 4.0) * forces.share * np.linalg.norm(forces.q, axis=1)
    spread = rounding + drift
    if lam:
        spread = spread + lam * _turns(graph, labels, theta, radius)
    # Clusters that nothing determines have no place: some solution has them anywhere.
    idle = (np.bincount(labels, pool.without_rows, K) == sizes) & (
        np.bincount(labels, forces.strength, K) == 0
    )
    return Enclosure(radius, spread, rounding, _are_apart(theta[~idle], radius[~idle]))


class _Surroundings:
    """Bounds of the clients' objectives in boxes about the models of their clusters."""

    def __init__(self, pool, labels, theta, dense):
        self.pool, self.labels, self.theta, self.dense = pool, labels, theta, dense

    def look(self, box):
        """Ask for it."""
        pool, theta, dense = self.pool, self.theta, self.dense
        K, d = theta.shape
        if not dense or K * d**2 <= MAX_AT_ONCE:
            self.rounding, self.drift, floor = pool.ask(Enclosures, theta, self.labels, box, dense)
            self.least, self.diagonal = self._curvatures(floor)
            return
        # Some clusters at a time: all their matrices would take too much room.
        self.rounding, self.drift = np.zeros((pool.n_clients, d)), np.zeros(pool.n_clients)
        self.least, self.diagonal = np.zeros(K), np.zeros((K, d))
        size = max(MAX_AT_ONCE // d**2, 1)
        for first in range(0, K, size):
            here = slice(first, min(first + size, K))
            some = np.flatnonzero((self.labels >= here.start) & (self.labels < here.stop))
            answers = pool.subset(some).ask(
                Enclosure, theta[here], self.labels[some] - first, box[here], dense
            )
            self.rounding[some], self.drift[some] = answers[:2]
            self.least[here], self.diagonal[here] = self._curvatures(answers[2])

    def _curvatures(self, floor):
        """Diagonals D of matrices below the Hessians, and c with ``H >= c D``, of each."""
        K, d = len(floor), self.theta.shape[1]
        if not self.dense:
            return np.ones(K), np.tile(floor[:, None], d)
        floor = self.pool.model.pin(floor)
        diagonal = np.maximum(np.einsum("kii->ki", floor), 0.0)
        scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        values = np.linalg.eigvalsh(floor / scale[:, :, None] / scale[:, None, :])
        rows = self.pool.client_sizes.max(initial=1) + self.pool.n_clients + 8.0 * d
        return np.maximum(values[:, 0] - EPS * d * rows, 0.0), diagonal

    def reach(self, error, parts):
        """Boxes that hold the solution if their curvature is that looked at, (K, d).

        Parameters
        ----------
        error : ndarray of shape (K, d)
            Bounds of the gradient of the reduced problem at the models.
        parts : ndarray of shape (K,)
            Clusters that have to do with each other.
        """
        curvature = self.least[:, None] * self.diagonal
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # Without forces no edge has to hold.
            energy = np.where(error > 0, error**2 / curvature, 0.0).sum(axis=1)
            self.length = np.sqrt(np.bincount(parts, energy))
            box = self.length[parts][:, None] / np.sqrt(curvature)
        return np.where(self.length[parts][:, None] > 0, box, 0.0)


def _turns(graph, labels, theta, radius):
    """How far the pulls between clusters may be from those of the models, over lam, (n_nodes,)."""
    K, n = len(theta), graph.n_nodes
    if graph.is_complete:
        sizes, turn = np.bincount(labels, minlength=K).astype(float), np.empty(K)
        for some in _row_blocks(K, theta.shape[1]):
            away = np.linalg.norm(theta[some, None] - theta, axis=2)
            away[np.arange(len(away)), np.arange(K)[some]] = np.inf
            turn[some] = _turn(away, radius[some, None] + radius) @ sizes
        return graph.weight * turn[labels]
    k, l = labels[graph.heads], labels[graph.tails]  # noqa: E741
    across = k != l
    k, l = k[across], l[across]  # noqa: E741
    away = np.linalg.norm(theta[k] - theta[l], axis=1)
    turn = graph.weights[across] * _turn(away, radius[k] + radius[l])
    return np.bincount(graph.heads[across], turn, n) + np.bincount(graph.tails[across], turn, n)


def _turn(away, move):
    """How far unit vectors of differences may turn if these move."""
    with np.errstate(divide="ignore", invalid="ignore"):
        turn = np.minimum(2.0 * move / away, 2.0)
    return np.where(move > 0, np.where(away < np.inf, np.nan_to_num(turn, nan=2.0), 0.0), 0.0)


def _are_apart(theta, radius):
    """True if no two of some models can be equal."""
    if len(theta) < 2:
        return True
    if not np.isfinite(radius).all():
        return False
    away = cKDTree(theta).query(theta, k=2)[0][:, 1]
    return bool((away * (1.0 - 1e-12) > radius + radius.max()).all())


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
        labels, theta, _ = _descend(problem, lam, start, X, np.inf, max_unknowns, PERSISTENCE)
        # If rounding decides, models that are split meet again.
        if theta is None or len(theta) == K or labels.tobytes() in seen:
            break
        seen.add(labels.tobytes())
        outcome = _examine_meetings(problem, lam, whole, labels, theta, max_unknowns)
        new = _split(problem, lam, outcome, whole) if outcome.refuted else None
        if new is None:
            break
        start, X = new
    return labels, theta


def _examine_meetings(problem, lam, whole, labels, theta, max_unknowns):
    """Contraction of the clusters `whole`, taken as nodes, to the coarser `labels`."""
    K = int(whole.max()) + 1
    pairs = _pairs(problem.graph, whole, K, max_unknowns)
    q = forces_at(problem, lam, labels, theta).q
    upper, lower, potential = flow_values(
        Graph(K, pairs.heads, pairs.tails, pairs.weights),
        problem.penalty,
        labels[np.unique(whole, return_index=True)[1]],
        -sum_by_cluster(q, whole, K),
        level=lam,
        first_refusal=True,
        max_iter=500,
    )
    carried = bool((upper <= lam).all())
    return Contraction(
        labels, theta, upper / lam, lower / lam, None, q, potential[whole], carried, None
    )


def _descend(problem, lam, labels, X, effort, max_unknowns=MAX_UNKNOWNS, max_stalls=MAX_STALLS):
    """Newton's method on the reduced problem; models that run into each other are joined.

    Joined clusters stay so, even if it were better to part again.  Returns labels and models as
    `solve_reduced` does, and the effort spent.
    """
    theta = mean_by_cluster(np.asarray(X, dtype=float), labels)
    scale = np.array([max(problem.at_start, 1e-30)])
    stalled, spent, last, most = 0, 0.0, None, 0.0
    for _ in range(MAX_LOOKS + len(theta)):  # each model can join others once
        if stalled >= max_stalls or spent >= effort:
            break
        K = len(theta)
        pairs = _pairs(problem.graph, labels, K, max_unknowns)
        if pairs is None:
            break
        if not len(pairs.weights):
            return labels, solve_separately(problem, labels, theta), spent + 1.0
        if K * problem.d > max_unknowns and (
            problem.graph.is_complete or max(K, len(pairs.weights)) * problem.d**2 > MAX_BLOCKS
        ):
            break
        spent += max(1.0, (K * problem.d / SMALL) ** 2)
        oracle = _ReducedOracle(problem, lam, labels, K, pairs, max_unknowns)
        start = theta.reshape(1, -1)
        x, decrement, converged = newton(oracle, start, scale, max_iter=NEWTON_STEPS, stall=STALL)
        theta = x.reshape(K, problem.d)
        value = oracle.value(theta)
        fall = 0.0 if last is None else last - value
        last, most = value, max(most, fall)
        # The shortfall of a Newton step from its prediction is the cost of a kink.
        slack = max(float(decrement[0]), 0.0) if stalled else 0.0
        together = _meeting(oracle, theta, value + slack, converged.all())
        if together is not None:
            theta = mean_by_cluster(theta[labels], together[labels])
            labels, stalled = together[labels], 0
        elif converged.all():
            return labels, theta, spent
        elif not fall >= 0.1 * most or most == 0.0:
            # Far from the kinks progress may be steady and slow, as beyond Huber's delta.
            stalled += 1
    return labels, None, spent


def _meeting(oracle, theta, value, converged):
    """Clusters of clusters with models that run into each other, (K,); None if none do.

    The objective has a kink where models meet, at which Newton's method stalls: there models
    that are near are made equal, if the objective then is at most `value`.
    """
    distance = np.linalg.norm(theta[oracle.heads] - theta[oracle.tails], axis=1)
    if len(distance) == 0:
        return None
    size = max(float(np.linalg.norm(theta - theta.mean(axis=0), axis=1).max()), 1e-12)
    least = distance.min()
    if converged:
        return oracle.join(distance <= 1e-8 * size) if least <= 1e-8 * size else None
    best, last = None, 0
    for reach in (1.5 * least, 10.0 * least, 1e-3 * size, 1e-2 * size, 1e-1 * size):
        near = distance <= reach
        count = np.count_nonzero(near)
        if count in (0, last):
            continue
        last = count
        together = oracle.join(near)
        means = mean_by_cluster(theta[oracle.labels], together[oracle.labels])
        trial = oracle.value(means[together])
        if trial <= value:
            best, value = together, trial
    return best


def solve_separately(problem, labels, start, tol=EXACT):
    """Models of clusters that nothing draws to each other; None if Newton's method failed."""
    theta, converged, *_ = solve_pooled(problem.pool, labels, start, np.ones(problem.n), tol=tol)
    return theta if converged else None


@dataclass
class _Pairs:
    """Pairs of clusters that edges join, each once."""

    heads: np.ndarray
    tails: np.ndarray
    weights: np.ndarray


def _pairs(graph, labels, K, most):
    """Pairs of clusters with the total weights of their edges; None if there are too many."""
    if graph.is_complete:
        if K > most:
            return None
        heads, tails = np.triu_indices(K, 1)
        sizes = np.bincount(labels, minlength=K).astype(float)
        return _Pairs(heads, tails, graph.weight * sizes[heads] * sizes[tails])
    k, l = labels[graph.heads], labels[graph.tails]  # noqa: E741
    distinct = k != l
    low, high = np.minimum(k, l)[distinct], np.maximum(k, l)[distinct]
    W = sparse.coo_array((graph.weights[distinct], (low, high)), shape=(K, K))
    W.sum_duplicates()
    return _Pairs(*W.coords, W.data)


class _ReducedOracle:
    """Objective of the reduced problem as one function of (1, K * d)."""

    def __init__(self, problem, lam, labels, K, pairs, max_exact):
        self.problem, self.labels, self.K, self.max_exact = problem, labels, K, max_exact
        self.heads, self.tails, self.W = pairs.heads, pairs.tails, lam * pairs.weights
        P = np.arange(len(self.W))
        ends = np.concatenate([self.heads, self.tails]), np.concatenate([P, P])
        signs = np.repeat([1.0, -1.0], len(P))
        self.outflow = sparse.csr_array((signs, ends), shape=(K, len(P)))
        self.touch = abs(self.outflow)
        self.memory = self.first = None
        # Single-client clusters with Hessians that would show rows: the client multiplies by it.
        single = shows_rows(problem.pool, labels, K)[labels] & (problem.pool.client_sizes > 0)
        self.summed = 1.0 - single
        self.clients = np.flatnonzero(single)
        self.single = labels[self.clients]
        if len(self.single):
            self.hidden = problem.pool.subset(self.clients)

    def join(self, near):
        """Clusters of clusters that the pairs in the mask `near` join, (K,)."""
        ends = self.heads[near], self.tails[near]
        A = sparse.coo_array((np.ones(len(ends[0])), ends), shape=(self.K, self.K))
        return connected_components(A, directed=False)[1]

    def value(self, theta):
        """The objective at models (K, d)."""
        return self._value(theta)[0]

    def _value(self, theta):
        values, gradients = self.problem.pool.ask(
            ObjectivesGradients, theta[self.labels], dtype=np.float64
        )
        delta = theta[self.heads] - theta[self.tails]
        distance = np.sqrt(np.einsum("pd,pd->p", delta, delta))
        return float(values.sum()) + float(self.W @ distance), gradients, delta, distance

    def at(self, x):
        """Value and gradient."""
        self.x, self.theta = x.copy(), x.reshape(self.K, -1).copy()
        value, gradients, delta, distance = self._value(self.theta)
        distinct = distance > 0
        inverse = np.divide(1.0, distance, out=np.zeros_like(distance), where=distinct)
        self.unit, self.slope = delta * inverse[:, None], self.W * inverse
        self.gradient = sum_by_cluster(gradients, self.labels, self.K)
        self.smooth = value - float(self.W @ distance)
        g = self.gradient + self.outflow @ (self.W[:, None] * self.unit)
        return np.array([value]), g.reshape(1, -1)

    def direction(self, g, damping):
        """Newton direction."""
        K, d, pool = self.K, self.problem.d, self.problem.pool
        # The norms are flat along the differences: beside them no curvature may vanish.
        damping = np.repeat(np.maximum(damping, 1e-4), K)
        single = self.single
        if len(single) < K:
            hessians = pool.model.pin(
                pool.ask(Hessians, self.theta, self.labels, self.summed, damping)
            )
        else:
            hessians = np.zeros((K, d, d))
        if K * d <= self.max_exact and not len(single):
            return self._exact(hessians, g)
        if len(single):
            return self._by_answers(hessians, g, damping)
        # Conjugate gradients in coordinates in which every cluster's own block is the identity.
        root = np.linalg.cholesky(self._diagonal_blocks(hessians))
        inverse = np.linalg.inv(root)

        def product(u):
            u = np.matmul(u.reshape(K, 1, d), inverse)[:, 0]
            u = np.matmul(hessians, u[:, :, None])[:, :, 0] + self._pull(u)
            return np.matmul(inverse, u[:, :, None]).reshape(1, -1)

        g = np.matmul(inverse, g.reshape(K, d, 1)).reshape(1, -1)
        x = conjugate_gradients(product, np.ones_like(g), g, 200)
        return -np.matmul(x.reshape(K, 1, d), inverse).reshape(1, -1)

    def _pull(self, u):
        """Product of the Hessian of the norms with u (K, d)."""
        difference = u[self.heads] - u[self.tails]
        along = np.einsum("pd,pd->p", self.unit, difference)
        return self.outflow @ (self.slope[:, None] * (difference - along[:, None] * self.unit))

    def _by_answers(self, hessians, g, damping):
        """Direction by conjugate gradients; single-client clusters solve with their Hessians."""
        K, d = hessians.shape[:2]
        single, who = self.single, self.hidden
        blocks = self._diagonal_blocks(hessians)
        # Their pulls count as if they were the same in all directions.
        shift = np.einsum("kii->k", blocks[single]) / d
        inverse = np.linalg.inv(blocks)
        given = blocks - hessians
        # Clients without rows that share a cluster add the penalty.
        given[single] = shift[:, None, None] * np.eye(d) - hessians[single]
        order, theta, damping = np.arange(len(single)), self.theta[single], damping[single]

        def precondition(r):
            r = r.reshape(K, d)
            z = np.matmul(inverse, r[:, :, None])[:, :, 0]
            z[single] = who.ask(HessianSolves, theta, r[single], order, shift, damping)
            return z.reshape(1, -1)

        def product(u):
            u = u.reshape(K, d)
            return (self._pull(u) - np.matmul(given, u[:, :, None])[:, :, 0]).reshape(1, -1)

        scale = np.einsum("kii->ki", blocks).reshape(1, -1)
        size = float(np.linalg.norm(g))
        self.first = size if self.first is None else self.first
        tol = np.array([np.clip(size / self.first, *CAREFUL)])
        most = min(200, K * d)
        return -conjugate_gradients(
            product, scale, g, most, tol, precondition, split=True, memory=True
        )

    def _diagonal_blocks(self, hessians):
        """Blocks of the Hessian on its diagonal, (K, d, d), safely positive definite."""
        d = hessians.shape[1]
        total = self.touch @ self.slope
        across = self.touch @ np.einsum("p,pi,pj->pij", self.slope, self.unit, self.unit).reshape(
            len(self.slope), -1
        )
        blocks = hessians + total[:, None, None] * np.eye(d) - across.reshape(hessians.shape)
        diagonal = np.einsum("kii->ki", blocks)
        diagonal += 1e-10 * diagonal.max(axis=1, keepdims=True) + 1e-300
        return blocks

    def _exact(self, hessians, g):
        """Direction from one dense system."""
        # The lower half of H, row by row, is the upper half column by column, as LAPACK counts.
        _, x, info = dposv(self._hessian(hessians).T, g[0], overwrite_a=True)
        if info or not np.isfinite(x).all():
            H = np.tril(self._hessian(hessians))
            x = solve_scaled((H + np.tril(H, -1).T)[None], g)[0]
        return -x[None]

    def _hessian(self, hessians):
        """The Hessian, (K * d, K * d), in its lower half."""
        K, d = hessians.shape[:2]
        if self.memory is None:
            # New memory for every step would take longer than the step.
            self.memory = np.empty((K, d, K, d)), np.empty((len(self.W), d, d))
        H, curve = self.memory
        # Minus the Hessians of the norms.
        np.multiply(self.unit[:, :, None], self.unit[:, None, :], out=curve)
        curve *= self.slope[:, None, None]
        np.einsum("pii->pi", curve)[:] -= self.slope[:, None]
        H.fill(0.0)
        H[self.tails, :, self.heads, :] = curve
        total = (self.touch @ curve.reshape(len(curve), d * d)).reshape(hessians.shape)
        every = np.arange(K)
        H[every, :, every, :] = hessians - total
        H = H.reshape(K * d, K * d)
        np.einsum("ii->i", H)[:] *= 1.0 + 1e-15 * len(H)
        return H

    def at_least(self, step, t):
        """Lower bound of the value at ``x + t * step``: only the norms are not taken as linear.

        The clients' objective is convex, and so above its tangent.
        """
        move = (t[:, None] * step).reshape(self.K, -1)
        theta = self.theta + move
        delta = theta[self.heads] - theta[self.tails]
        tangent = self.smooth + float(np.sum(self.gradient * move))
        norms = float(self.W @ np.sqrt(np.einsum("pd,pd->p", delta, delta)))
        return np.array([tangent + norms - BOUND_SLACK * (abs(self.smooth) + norms)])

    def slopes(self, step):
        """Slope along a step at the last trial."""
        gradients, delta, distance = self.tried
        step = step.reshape(self.K, -1)
        slope = np.sum(sum_by_cluster(gradients, self.labels, self.K) * step)
        along = np.einsum("pd,pd->p", delta, step[self.heads] - step[self.tails])
        pull = np.divide(along, distance, out=np.zeros_like(along), where=distance > 0)
        return np.array([slope + self.W @ pull])

    def along(self, step, t):
        """Value at ``x + t * step``."""
        value, *self.tried = self._value((self.x + t[:, None] * step).reshape(self.K, -1))
        return np.array([value])


def _row_blocks(K, d):
    """Slices of K models; their differences from all K, of d numbers, stay in cache."""
    size = max(int(MAX_DIFFERENCES // max(K * d, 1)), 1)
    return [slice(k, min(k + size, K)) for k in range(0, K, size)]


def _pull_between(graph, labels, theta):
    """``sum_{j not in C_k} w_ij (w_k - w_l) / |w_k - w_l|`` of every node, (n_nodes, d)."""
    K, d = theta.shape
    if graph.is_complete:
        sizes = np.bincount(labels, minlength=K).astype(float)
        pull = np.empty((K, d))
        for some in _row_blocks(K, d):
            delta = theta[some, None] - theta
            distance = np.linalg.norm(delta, axis=2)
            share = np.divide(sizes, distance, out=np.zeros_like(distance), where=distance > 0)
            pull[some] = np.matmul(share[:, None, :], delta)[:, 0]
        return graph.weight * pull[labels]
    k, l = labels[graph.heads], labels[graph.tails]  # noqa: E741
    delta = theta[k] - theta[l]
    distance = np.linalg.norm(delta, axis=1)
    share = np.divide(graph.weights, distance, out=np.zeros(len(k)), where=distance > 0)
    return graph.divergence(share[:, None] * delta)


# --------------------------------------------------------------------------- at lam = 0


@dataclass
class OwnModels:
    """Which clients have the same minimiser.

    Attributes
    ----------
    labels : ndarray of shape (n,)
        Clusters of clients with the same objectives, or with equal computed models.
    near : ndarray of shape (m, 2) or None
        Pairs of clients, of different objectives, with minimisers that may be equal; None if they
        are too many to be named.
    """

    labels: np.ndarray
    near: np.ndarray | None

    @property
    def decided(self):
        """Whether every pair of clients is proved to be equal or to differ."""
        return self.near is not None and not len(self.near)


def compare_own_models(problem, W):
    """Which clients have the same minimiser, by bounds of how far the computed ones are from it.

    Clients of the same rows in any order have the same objective, and so the same minimiser.
    Others differ if their models do by more than rounding; if not, nothing is known.  Every model
    is a minimiser for clients without rows.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    W : ndarray of shape (n, d)
        Minimisers as computed.

    Returns
    -------
    own : OwnModels
    """
    n, none = problem.n, np.empty((0, 2), dtype=np.intp)
    _, same = np.unique(W, axis=0, return_inverse=True)
    same = same.ravel()
    known = np.flatnonzero(~problem.pool.without_rows)
    if len(known) < 2:
        return OwnModels(same, none)
    radius = enclose(problem, 0.0, np.arange(n), W).radius[known]
    away = cKDTree(W[known]).query(W[known], k=2)[0][:, 1] * (1.0 - 1e-12)
    some = np.flatnonzero(away <= radius + radius.max())
    if not len(some):
        return OwnModels(same, none)
    radius, some = radius[some], known[some]
    digests = problem.pool.subset(some).ask(Fingerprints, secrets.randbits(62))
    _, first, alike = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    alike = alike.ravel()
    ends = np.concatenate([np.arange(n), some]), np.concatenate([n + same, 2 * n + alike])
    links = sparse.coo_array((np.ones(len(ends[0])), ends), shape=(3 * n, 3 * n))
    labels = connected_components(links, directed=False)[1][:n]
    labels = np.unique(labels, return_inverse=True)[1]
    if len(first) > MAX_NEAR:
        return OwnModels(labels, None)
    heads, tails = np.triu_indices(len(first), 1)
    heads, tails = first[heads], first[tails]
    distance = np.linalg.norm(W[some[heads]] - W[some[tails]], axis=1) * (1.0 - 1e-12)
    near = distance <= radius[heads] + radius[tails]
    near &= (distance > 0) | (radius[heads] + radius[tails] > 0)
    return OwnModels(labels, np.column_stack([some[heads[near]], some[tails[near]]]))


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
            "Newton's method did not find the pooled optimum, which lam_max needs; scale the "
            "features or raise the local penalty alpha."
        )
    forces = forces_at(problem, 0.0, labels, theta)
    enclosure = enclose(problem, 0.0, labels, theta, forces)
    # If the pooled model is not unique the bounds are those of the one found.
    spread = np.where(np.isfinite(enclosure.spread), enclosure.spread, enclosure.rounding)
    upper, lower, _ = flow_values(
        graph,
        problem.penalty,
        labels,
        -forces.q,
        spread=spread,
        tol=tol,
        max_iter=max_iter,
    )
    return float(lower.max()), float(upper.max())


def _centred(values, labels):
    """Node values less their mean over the cluster."""
    return values - mean_by_cluster(values, labels)[labels]
