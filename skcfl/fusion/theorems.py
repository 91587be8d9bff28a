"""Mathematics of the certificates: what theorems and exact solutions prove of a partition.

Functions take the fusion problem, which holds the clients' messages, and never see rows;
:mod:`skcfl.certificates` has them for fitted estimators.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from ..calls.descriptions import Fingerprints
from ..calls.first_order import ObjectivesGradients
from ..calls.proofs_asked import Conjugate, Enclosures
from ..numerics.by_cluster import mean_by_cluster
from .connections import boundaries
from .enclosures import compare_own_models, enclose, forces_at
from .inner_edges import EPS, Inside
from .reduced import examine, solve_reduced, split_torn
from .reduced_newton import solve_separately

# Unknowns of the reduced problem up to which it is solved here, where there is time.
MAX_UNKNOWNS = 4000
# Iterations of the search for flows.
MAX_ITER = 500


@dataclass
class PartitionCertificate:
    """Proofs about a partition, from :func:`certify_partition`.

    Parameters
    ----------
    optimal : bool or None
        True: the partition is proved to be that of an exact solution; False: proved not to be;
        None: undecided, see `reason`.  Rounding is bounded, not left out.
    ratio : float
        Upper bound of the flow value over lam, over all clusters; at most 1 says that the clients
        of each cluster have one model, less than 1 that they have in every solution.
    lower : float
        Lower bound of the same; more than 1 refutes the partition.  Both are infinite for a
        cluster with clients that no path of edges within it joins.
    ratios, lowers : ndarray of shape (n_clusters,)
        The bounds for each cluster, in the numbers of ``labels_``.
    lam : float
        Where.
    labels : ndarray of shape (n_clients,)
        The partition.
    models : ndarray of shape (n_clients, n_params)
        Solution of the reduced problem, a model per client, equal within clusters.
    dual_gap : float
        Bound of how much the objective at `models` exceeds the minimum; infinite if the
        partition is not proved.
    reason : str
        The reason of the answer, in words.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.certificates import certify_partition
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> est = ConvexClusteredFLRegressor(0.3, graph="knn")
    >>> est = est.fit(data.X, data.y, groups=data.groups)
    >>> certificate = certify_partition(est, data.X, data.y, groups=data.groups)
    >>> certificate.ratios.shape == (est.n_clusters_,)
    True
    """

    optimal: bool | None
    ratio: float
    lower: float
    ratios: np.ndarray
    lowers: np.ndarray
    lam: float
    labels: np.ndarray
    models: np.ndarray
    dual_gap: float
    reason: str

    def __bool__(self):
        """True if the partition is proved."""
        return self.optimal is True


@dataclass
class RecoveryInterval:
    """Bounds of lam for a partition, from :func:`recovery_interval`; unpacks to two numbers.

    Parameters
    ----------
    lower : float
        Theorem 1: from this lam on the clients of each cluster have equal models.
    upper : float
        Theorem 2, sharper: below this lam the models of different clusters differ.
    upper_printed : float
        Theorem 2 as printed, never more than `upper`.
    lam : float
        Value of lam at which the bounds were evaluated; they hold there and move with lam.
    uniform : tuple of 2 floats or None
        Theorem 3: bounds that hold for every lam between them.  None where its assumption
        is not proved to hold.
    outer : tuple of 2 floats or None
        `lower` is rounded up and `upper` down.  These bound the theorems' numbers from the other
        sides; None stands for `lower` and `upper`.

    Examples
    --------
    >>> from skcfl.certificates import RecoveryInterval
    >>> interval = RecoveryInterval(0.1, 0.4, 0.3, lam=0.2)
    >>> lower, upper = interval
    >>> interval.holds
    True
    """

    lower: float
    upper: float
    upper_printed: float
    lam: float
    uniform: tuple | None = None
    outer: tuple | None = None

    def __iter__(self):
        """Lower and upper bound."""
        return iter((self.lower, self.upper))

    @property
    def holds(self) -> bool | None:
        """True if lam is in the interval: then the partition is a solution's, exactly.

        True and False are proved, None is where rounding decides.
        """
        if self.lower <= self.lam < self.upper:
            return True
        least, most = (self.lower, self.upper) if self.outer is None else self.outer
        return None if least <= self.lam < most else False


@dataclass
class ClusteringConstants:
    """Constants of the GTV paper's assumptions, from :func:`clustering_constants`.

    Parameters
    ----------
    delta : ndarray of shape (n_clients,)
        Dual norm of each client's gradient at its cluster's own minimiser.
    alpha : ndarray of shape (n_clusters,)
        Strong convexity of the clusters' summed objectives; 0 where none is known.
    beta : ndarray of shape (n_clients,)
        Smoothness of the clients' objectives; infinite where there is no bound.
    labels : ndarray of shape (n_clients,)
        The partition, in 0..K-1.
    models : ndarray of shape (n_clusters, n_params)
        Each cluster's own minimiser, without any penalty between clients.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import ConvexClusteredFL
    >>> from skcfl.certificates import clustering_constants
    >>> from skcfl.models import Location
    >>> points = np.array([[0.0], [0.2], [4.0], [4.2]])
    >>> est = ConvexClusteredFL(Location(), lam=0.2).fit(points, groups=np.arange(4))
    >>> constants = clustering_constants(est, points, groups=np.arange(4))
    >>> constants.delta, constants.alpha, constants.beta
    (array([0.1, 0.1, 0.1, 0.1]), array([2., 2.]), array([1., 1., 1., 1.]))
    """

    delta: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray
    labels: np.ndarray
    models: np.ndarray


# ------------------------------------------------------------------------ fitted estimators


def certify(problem, lam, labels, X):
    """Proofs about a partition at `lam`.

    Parameters
    ----------
    problem : FusionProblem
        With the Euclidean norm as its penalty.
    lam : float
        Weight of the penalty.
    labels : ndarray of shape (n_clients,)
        The partition, in 0..K-1.
    X : ndarray of shape (n_clients, n_params)
        Models near the solution.

    Returns
    -------
    certificate : PartitionCertificate
    """
    labels = np.asarray(labels)
    if lam == 0:
        return _certify_apart(problem, labels, X)
    parts = split_torn(problem.graph, labels)
    new, theta = solve_reduced(problem, lam, parts, X, max_unknowns=MAX_UNKNOWNS)
    solved = theta is not None
    if not solved:
        new, theta = parts, mean_by_cluster(X, parts)
    outcome = examine(problem, lam, new, theta, thorough=True, max_iter=MAX_ITER)
    models = outcome.theta[outcome.labels]
    ratios, lowers = np.zeros((2, labels.max() + 1))
    np.maximum.at(ratios, labels, outcome.ratios[outcome.labels])
    np.maximum.at(lowers, labels, outcome.lowers[outcome.labels])
    torn = _pieces(labels, parts) > 1
    ratios[torn] = lowers[torn] = np.inf
    optimal, reason = _verdict(problem, outcome, solved, torn.any(), new.max() < parts.max())
    gap = np.inf
    if optimal:
        gap = gap_of(problem, lam, models, outcome.divergence, outcome.crossing)
    return PartitionCertificate(
        optimal,
        float(ratios.max()),
        float(lowers.max()),
        ratios,
        lowers,
        float(lam),
        labels,
        models,
        gap,
        reason,
    )


def _pieces(labels, parts):
    """How many of a finer partition's clusters every cluster consists of."""
    return np.bincount(np.unique(np.column_stack([labels, parts]), axis=0)[:, 0])


def _verdict(problem, outcome, solved, torn, merged):
    """True if a partition is a solution's, and what that rests on."""
    if torn:
        return False, "A cluster is not connected: no path of edges within it joins its clients."
    if not solved:
        K = int(outcome.labels.max()) + 1
        return None, (
            f"The reduced problem of {K} models of {problem.d} parameters was not "
            "solved: the bounds are those of the fitted models."
        )
    if merged:
        known = "The reduced problem has equal models for clusters that are joined: "
        if outcome.certified and outcome.ratio < 1.0:
            return False, known + "every solution is coarser."
        return None, known + "rounding decides whether they are."
    if outcome.certified:
        return True, "Flows inside the clusters carry the gradients away, with rounding to spare."
    if outcome.refuted:
        return False, "No flow holds some cluster together: splitting it lowers the objective."
    if not np.isfinite(outcome.enclosure.spread).all():
        return (
            None,
            "The curvature of the reduced problem is not bounded, and so its solutions are not.",
        )
    if outcome.ratio <= 1.0:
        return None, "Rounding decides whether the models of all clusters differ."
    return None, "The bounds of the flow value lie on both sides of lam."


def proved_apart(problem, labels):
    """True if clusters of own minimisers that are proved to be equal, and no others, hold.

    That is so unless clients without rows, for which every model is a minimiser, share a cluster,
    or some clients are equal that no path of edges among them joins.
    """
    lonely = np.bincount(labels)[labels] == 1
    if not lonely[problem.pool.without_rows].all():
        return False
    return int(split_torn(problem.graph, labels).max()) == int(labels.max())


def _certify_apart(problem, labels, X):
    """At ``lam = 0`` clients share a model iff it is the minimiser of all of them."""
    compared = compare_own_models(problem, problem.local_models())
    models = mean_by_cluster(X, labels)[labels]
    gap = gap_of(problem, 0.0, models, np.zeros_like(models))
    sizes, K = np.bincount(labels), int(labels.max()) + 1
    # Two clients of a cluster differ where it has more pairs of kinds than may be equal.
    kinds = _pieces(labels, compared.labels)
    pairs = kinds * (kinds - 1) // 2
    if compared.near is None:
        wrong = np.zeros(K, dtype=bool)
    else:
        both = labels[compared.near]
        within = compared.near[both[:, 0] == both[:, 1]]
        unlike = within[compared.labels[within[:, 0]] != compared.labels[within[:, 1]]]
        idle = np.bincount(labels, problem.pool.without_rows, K) > 0
        wrong = (pairs > np.bincount(labels[unlike[:, 0]], minlength=K)) & ~idle
    optimal, reason = _verdict_apart(problem, labels, compared, wrong.any())
    bounds = np.zeros((2, K))
    if not optimal:
        bounds[:, sizes > 1] = [[np.inf], [0.0]]
        bounds[1, wrong] = np.inf
    return PartitionCertificate(
        optimal,
        float(bounds[0].max()),
        float(bounds[1].max()),
        *bounds,
        0.0,
        labels,
        models,
        gap if optimal else np.inf,
        reason,
    )


def _verdict_apart(problem, labels, compared, wrong):
    """True if a partition is that of the clients' own minimisers, and what that rests on."""
    if wrong:
        return False, "At lam = 0 clients share a model only if all have the same minimiser."
    if not compared.decided:
        return None, "Rounding decides whether the minimisers of some clients are equal."
    if not proved_apart(problem, labels):
        return None, (
            "At lam = 0 no edge joins clients: equal ones without a path of edges among them, and "
            "clients without rows, may be together or not."
        )
    if _pieces(compared.labels, labels).max() == 1:
        return True, "Nothing is compared at lam = 0: every model is its clients' own minimiser."
    if (_pieces(split_torn(problem.graph, compared.labels), labels) == 1).all():
        return None, "Clients that no path of equal ones joins have the same minimiser."
    return False, "Clients with the same minimiser are in different clusters."


def theorem_bounds(problem, lam, labels, X):
    """Theorems 1, 2 and 3 for a partition, evaluated at `lam`.

    Parameters
    ----------
    problem, lam, labels, X
        As for :func:`certify`; the bounds are evaluated near the means of X if the reduced problem
        is too large to be solved.

    Returns
    -------
    interval : RecoveryInterval
    """
    labels = np.asarray(labels)
    theta = None
    if lam > 0:
        new, theta = solve_reduced(problem, lam, labels, X, max_unknowns=MAX_UNKNOWNS)
        if theta is not None:
            # The model of the first client of each cluster.
            theta = theta[new[np.unique(labels, return_index=True)[1]]]
    theta = mean_by_cluster(X, labels) if theta is None else theta
    forces = forces_at(problem, lam, labels, theta)
    enclosure = enclose(problem, lam, labels, theta, forces)
    least, lower = _theorem_1(problem, labels, forces, enclosure)
    upper, most, printed = _theorem_2(problem, labels, theta, enclosure.radius)
    uniform = _theorem_3(problem, labels, theta.mean(axis=0))
    return RecoveryInterval(lower, upper, printed, float(lam), uniform, (least, most))


def _theorem_1(problem, labels, forces, enclosure):
    """Bounds of the largest ``|u_e| / w_e`` of the flow of least energy that carries ``q_i``."""
    inside = Inside(problem.graph, problem.penalty, labels, problem.d)
    if not inside.connected.all():
        return np.inf, np.inf
    wide = enclosure.spread[inside.nodes]
    known = np.isfinite(wide)
    lower, upper = inside.least_energy(-forces.q[inside.nodes], np.where(known, wide, 0.0))
    # A single-client cluster carries nothing, whatever the forces on it.
    open_ended = np.bincount(inside.owner, ~known, inside.n_clusters) > 0
    open_ended &= inside.sizes > 1
    lower[open_ended], upper[open_ended] = 0.0, np.inf
    return float(lower.max()), float(upper.max())


def _theorem_2(problem, labels, theta, radius):
    """Lower and upper bound of Theorem 2's, sharper, and a lower bound of it as printed."""
    graph, K = problem.graph, len(theta)
    sizes = np.bincount(labels)
    pull, slack = boundaries(graph, labels)[1:]
    pull /= sizes
    upper = most = printed = np.inf
    for k in range(K):
        mean, off = _mean_gradients(problem, labels, theta[k], radius[k])
        distance = np.linalg.norm(mean - mean[k], axis=1)
        off = off + off[k] + (problem.d + 8.0) * EPS * distance
        bounds = np.stack([distance - off, distance + off, distance - off]).clip(0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            # Clusters without forces are separate at any lam if their gradients decide it at all.
            bounds /= np.stack([pull + pull[k], pull + pull[k], np.full(K, 2.0 * pull.max())])
        bounds = np.nan_to_num(bounds, nan=0.0, posinf=np.inf)
        bounds *= [[1.0 - slack], [1.0 + slack], [1.0 - slack]]
        bounds[:, k] = np.inf
        upper, most, printed = np.minimum([upper, most, printed], bounds.min(axis=1)).tolist()
    return upper, most, printed


def _mean_gradients(problem, labels, w, radius):
    """Clusters' mean gradients at a model, and how far they are off within a radius of it."""
    models = np.broadcast_to(w, (problem.n, problem.d))
    gradients = problem.pool.ask(ObjectivesGradients, models, dtype=np.float64)[1]
    off = np.full(problem.n, np.inf)
    if np.isfinite(radius):
        box, one = np.full((1, problem.d), radius), np.zeros(problem.n, dtype=np.intp)
        rounding, drift, _ = problem.pool.ask(Enclosures, w[None], one, box, dense=False)
        off = np.linalg.norm(rounding, axis=1) + drift
    steps = EPS * (problem.n + problem.d + 8.0)
    off = np.where(problem.pool.without_rows, 0.0, off * (1.0 + steps))
    off += steps * np.linalg.norm(gradients, axis=1)
    return mean_by_cluster(gradients, labels), mean_by_cluster(off[:, None], labels)[:, 0]


def _theorem_3(problem, labels, w):
    """Bounds that hold for all lam, where gradients differ by constants; else None."""
    pool, n = problem.pool, problem.n
    if not (problem.graph.is_complete and _have_equal_hessians(pool)):
        return None
    gradients, off = _mean_gradients(problem, np.arange(n), w, 0.0)
    distance = np.linalg.norm(gradients[:, None] - gradients[None], axis=2)
    slack = (problem.d + 8.0) * EPS
    off = off[:, None] + off + slack * distance
    most, least = distance + off, distance - off
    np.fill_diagonal(most, 0.0)
    K, sizes = int(labels.max()) + 1, np.bincount(labels)
    within = np.array([most[np.ix_(labels == k, labels == k)].max() for k in range(K)])
    lower = (within / sizes).max() / problem.graph.weight
    upper = np.inf
    for k in range(K):
        for m in range(k):
            room = least[np.ix_(labels == k, labels == m)].min() - within[k] - within[m]
            upper = min(upper, room / (2 * (n - sizes).max()) / problem.graph.weight)
    return float(lower * (1.0 + slack)), float(upper * (1.0 - np.sign(upper) * slack))


def _have_equal_hessians(pool):
    """True if the objectives of all clients provably differ by linear functions only."""
    if not pool.model.quadratic or (pool.client_weights <= 0).any():
        return False
    if pool.model.isotropic:
        return True
    digests = pool.ask(Fingerprints, secrets.randbits(62), targets=False)
    return bool((digests == digests[0]).all())


def constants_of(problem, labels):
    """Constants of the GTV paper's assumptions for a partition.

    Parameters
    ----------
    problem : FusionProblem
        With a norm as its penalty.
    labels : ndarray of shape (n_clients,)
        The partition, in 0..K-1.

    Returns
    -------
    constants : ClusteringConstants
    """
    pool, penalty = problem.pool, problem.penalty
    if not penalty.norm:
        raise ValueError(f"The GTV paper's Theorem 2 is about norms, got {penalty!r}.")
    K = int(labels.max()) + 1
    models = solve_separately(problem, labels, np.zeros((K, problem.d)))
    if models is None:
        raise RuntimeError(
            "Newton's method did not find the minimisers of the clusters; scale the features or "
            "raise the local penalty alpha."
        )
    _, gradients = pool.ask(ObjectivesGradients, models[labels], dtype=np.float64)
    # How far rounding and Newton's method may have left them from those at the exact minimisers.
    delta = penalty.dual_norm(gradients.T) * (1.0 + EPS * (problem.d + 8.0))
    delta += enclose(problem, 0.0, labels, models).spread
    rounding = EPS * (pool.client_sizes.max(initial=1) + problem.n + 8.0 * problem.d)
    strong = problem.curvatures()[1]
    # Beyond its bound the pool's curvature is one for automatic steps.
    beta = problem.ceilings() if pool.model.bounded_curvature else np.full(problem.n, np.inf)
    if pool.model.quadratic:
        # A computed eigenvalue; that of other losses is their local penalty.
        strong = np.maximum(strong - rounding * problem.d * beta, 0.0)
    alpha = np.bincount(labels, strong, K) * (1.0 - EPS * problem.n)
    if pool.model.quadratic:
        floor = pool.ask(Enclosures, models, labels, np.zeros_like(models), dense=True)[2]
        size = np.einsum("kii->k", floor)
        alpha = np.maximum(alpha, np.linalg.eigvalsh(floor)[:, 0] - rounding * size)
    if not penalty.fuses:
        # |x|_2^2 >= |x|_1^2 / d, and the largest entry is at most the Euclidean norm.
        alpha = alpha / problem.d * (1.0 - 2.0 * EPS)
    return ClusteringConstants(delta, alpha, beta, labels, models)


def gap_of(problem, lam, X, divergence, crossing=None):
    """Objective at models `X` less the dual objective of the outflow of feasible edge duals.

    Parameters
    ----------
    problem : FusionProblem
        With any convex penalty.
    lam : float
        Weight of the penalty.
    X : ndarray of shape (n_clients, n_params)
        Models.
    divergence : ndarray of shape (n_clients, n_params)
        ``(D'u)_i``, with ``|u_e| <= lam w_e`` for a norm.  Another penalty would need u itself;
        then the edge duals are taken from the models, ``u_e = lam w_e phi'(x_i - x_j)``, and
        `divergence` is ignored.
    crossing : ndarray of shape (n_clients,), default=None
        Sums of the lengths of the edge duals at every client, which set the rounding of
        `divergence`; by default the least that can carry it.

    Returns
    -------
    gap : float
        Including the rounding of its arithmetic: never too small.
    """
    conjugate = 0.0
    if not problem.penalty.norm:
        divergence, conjugate = _smooth_dual(problem, lam, X)
    divergence = np.asarray(divergence, dtype=float)
    bounds = problem.pool.ask(Conjugate, -divergence, x0=X)
    if crossing is None:
        total = np.linalg.norm(divergence, axis=1).sum()
        crossing = np.minimum(lam * problem.graph.degrees(), total)
    rounding = problem.rounding(X, lam, crossing)
    gap = problem.primal(X, lam) + float(bounds.sum()) + conjugate + rounding
    return max(float(gap), 0.0)


def _smooth_dual(problem, lam, X):
    """Outflow and conjugates of the edge duals ``lam w_e phi'(x_i - x_j)`` of the models."""
    XT = np.ascontiguousarray(np.asarray(X, dtype=float).T)
    outflow, total = np.zeros_like(XT), 0.0
    if not hasattr(problem.penalty, "gradient"):
        raise ValueError(f"The penalty {problem.penalty!r} is not convex: it has no duality gap.")
    if lam == 0:
        return outflow.T, total
    for block in problem.blocks:
        D = block.difference(XT)
        u = lam * block.weights * problem.penalty.gradient(D)
        block.add_divergence(u, outflow)
        total += block.total(problem.penalty.conjugate(u, lam * block.weights))
    return outflow.T, total
