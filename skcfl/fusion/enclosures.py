"""How far computed models and their pulls may be from the exact ones of a fusion problem."""

import secrets
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from ..calls.descriptions import Fingerprints
from ..calls.first_order import ObjectivesGradients
from ..calls.proofs_asked import Enclosures
from ..numerics.by_cluster import components_of, share_in_cluster, sum_by_cluster
from ..numerics.matrices import slices
from ..numerics.newton import MAX_DENSE
from .inner_edges import EPS

# Multiplications that may go into the eigenvalues of clusters' Hessians, and numbers of those of
# single clients at once; with more, bounds of least curvatures are numbers from the start.
MAX_EIGEN, MAX_AT_ONCE = 2e10, 5_000_000
# Numbers of the differences between models that are made at once.
MAX_DIFFERENCES = 100_000
# Pairs of clients at lam = 0 that are looked at one by one.
MAX_NEAR = 3000


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
        parts = components_of(labels[graph.heads], labels[graph.tails], K)
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
        for here in slices(K, size):
            some = np.flatnonzero((self.labels >= here.start) & (self.labels < here.stop))
            answers = pool.subset(some).ask(
                Enclosures, theta[here], self.labels[some] - here.start, box[here], dense
            )
            self.rounding[some], self.drift[some] = answers[:2]
            self.least[here], self.diagonal[here] = self._curvatures(answers[2])

    def _curvatures(self, floor):
        """Diagonals D of matrices below the Hessians, and c with ``H >= c D``, of each."""
        K, d = len(floor), self.theta.shape[1]
        if not self.dense:
            return np.ones(K), np.tile(floor[:, None], d)
        # Nothing is known of a cluster with a false client.
        finite = np.isfinite(floor).all(axis=(1, 2), keepdims=True)
        floor = self.pool.model.pin(np.where(finite, floor, 0.0))
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


def _row_blocks(K, d):
    """Slices of K models; their differences from all K, of d numbers, stay in cache."""
    size = max(int(MAX_DIFFERENCES // max(K * d, 1)), 1)
    return slices(K, size)


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
    labels = components_of(*ends, 3 * n)[:n]
    labels = np.unique(labels, return_inverse=True)[1]
    if len(first) > MAX_NEAR:
        return OwnModels(labels, None)
    heads, tails = np.triu_indices(len(first), 1)
    heads, tails = first[heads], first[tails]
    distance = np.linalg.norm(W[some[heads]] - W[some[tails]], axis=1) * (1.0 - 1e-12)
    near = distance <= radius[heads] + radius[tails]
    near &= (distance > 0) | (radius[heads] + radius[tails] > 0)
    return OwnModels(labels, np.column_stack([some[heads[near]], some[tails[near]]]))
