r"""Proofs about fitted fusion methods: partitions, recovery, duality gaps.

For the problem ``sum_i f_i(x_i) + lam sum_{i<j} w_ij |x_i - x_j|`` a partition is that of a
solution iff flows inside its clusters can carry the clients' gradients away without
exceeding ``lam`` times the weight of an edge; see :mod:`skcfl._contraction` for the
mathematics.  The functions here take a fitted estimator and the rows of its fit, solve the
reduced problem of the fitted clusters anew, and say what can be proved.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.utils.validation import check_is_fitted, validate_data

from ._contraction import FusionProblem, examine, solve_reduced, split_torn
from ._flows import Inside
from .clients import ClientPool
from .exceptions import SingleClientWarning
from .penalties import make_penalty

__all__ = [
    "PartitionCertificate",
    "RecoveryInterval",
    "certify_partition",
    "duality_gap",
    "recovery_interval",
]

# Unknowns of the reduced problem up to which it is solved here, where there is time.
MAX_UNKNOWNS = 4000
# Iterations of the search for flows.
MAX_ITER = 500


@dataclass
class PartitionCertificate:
    """What is proved of a partition, from :func:`certify_partition`.

    Parameters
    ----------
    optimal : bool or None
        True: the partition is proved to be that of an exact solution; False: proved not to be;
        None: undecided, see `reason`.
    ratio : float
        Upper bound of the flow value over lam, over all clusters; at most 1 proves the partition,
        less than 1 also that every solution has it.
    lower : float
        Lower bound of the same; more than 1 refutes the partition.
    ratios, lowers : ndarray of shape (n_clusters,)
        The bounds for each cluster, in the numbers of ``labels_``.
    lam : float
        Where.
    labels : ndarray of shape (n_clients,)
        The partition.
    models : ndarray of shape (n_clients, n_params)
        Solution of the reduced problem, a model a client, equal within clusters.
    dual_gap : float
        Bound of how much the objective at `models` exceeds the minimum; infinite if the
        partition is not proved.
    reason : str
        What the answer rests on, in words.

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
        """Whether the partition is proved."""
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
        Where the bounds were evaluated; they hold there and move with lam.
    uniform : tuple of 2 floats or None
        Theorem 3: bounds that hold for every lam between them.  None where its assumption
        does not hold.

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

    def __iter__(self):
        """Lower and upper bound."""
        return iter((self.lower, self.upper))

    @property
    def holds(self):
        """Whether lam is in the interval: then the partition is a solution's, exactly."""
        return self.lower <= self.lam < self.upper


# ------------------------------------------------------------------------ fitted estimators


def certify_partition(est, X, y=None, groups=None, *, sample_weight=None):
    r"""Prove or refute that the clusters of a fit are those of an exact solution.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, with the
        penalty "l2".
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        The rows of its fit.
    y : array-like of shape (n_samples,), default=None
        Their targets, where the local model needs them.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client, as in fit.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, as in fit.

    Returns
    -------
    certificate : PartitionCertificate
        With ``optimal`` (True, False or None), the bounds ``ratio`` and ``lower`` of the flow
        value over lam, and the same for each cluster.

    Raises
    ------
    TypeError
        If `est` is no fusion method.
    ValueError
        If the penalty is not "l2", or the clients are not those of the fit.

    See Also
    --------
    recovery_interval : Bounds of the lam for which the partition is recovered.

    Notes
    -----
    The models w_k of the clusters are the solution of the reduced problem (Armacki et al. [1]_,
    (5)), by Newton's method.  Every client of cluster k has to pass on

    .. math:: q_i = \nabla f_i(w_k)
              + \lambda \sum_{j \notin C_k} w_{ij} \frac{w_k - w_{l(j)}}{\|w_k - w_{l(j)}\|}

    to the others of its cluster; with :math:`t_k` the least t such that flows :math:`u_e` inside
    the cluster do so with :math:`\|u_e\| \le t w_e`, the partition is a solution's if and only
    if :math:`\max_k t_k \le \lambda`.  Theorem 1 of [1]_ is the bound of :math:`t_k` from
    one particular flow.  All of it is exact but for rounding and Newton's last digits.

    The refit of an estimator with ``refit=True`` plays no part: the partition is that of the
    penalised problem.

    References
    ----------
    .. [1] A. Armacki, D. Bajovic, D. Jakovetic, S. Kar. "Personalized Federated Learning via
       Convex Clustering". IEEE International Smart Cities Conference, 2022.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.certificates import certify_partition
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> est = ConvexClusteredFLRegressor(0.3, graph="knn")
    >>> est = est.fit(data.X, data.y, groups=data.groups)
    >>> certificate = certify_partition(est, data.X, data.y, groups=data.groups)
    >>> certificate.optimal
    True
    >>> certificate.ratio <= 1
    True
    """
    problem, models = _fitted_problem(est, X, y, groups, sample_weight)
    _require_clusters(problem)
    return certify(problem, est.lam_, est.labels_, models)


def recovery_interval(est, X, y=None, groups=None, *, sample_weight=None):
    """Bounds of lam between which the clusters of a fit are recovered, by theorems.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, with the
        penalty "l2".
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        The rows of its fit.
    y : array-like of shape (n_samples,), default=None
        Their targets, where the local model needs them.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client, as in fit.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, as in fit.

    Returns
    -------
    interval : RecoveryInterval
        Unpacks to ``lower, upper``.

    Raises
    ------
    TypeError
        If `est` is no fusion method.
    ValueError
        If the penalty is not "l2", or the clients are not those of the fit.

    See Also
    --------
    certify_partition : The exact test, which these theorems bound.

    Notes
    -----
    Both bounds are evaluated at the models w_k of the reduced problem at the fitted lam, and
    hold there (Armacki et al. [1]_, with lam in our convention, and g_k the mean objective of the
    n_k clients of cluster k):

    - Theorem 1: ``lower = max_k max_{i,j in C_k} |grad f_i(w_k) - grad f_j(w_k)| / n_k``;
    - Theorem 2: ``upper = min_{k,l} |grad g_k(w_k) - grad g_l(w_k)| / (2 N - n_k - n_l)``, which
      is sharper than the printed denominator ``2 max_k (N - n_k)``.

    On other graphs than the complete one, the first is the largest ``|u_e| / w_e`` of the flow of
    least energy inside the clusters, which is the same number on the complete graph; in the
    second the sums of weights from the clusters to others take the place of clients.

    Theorem 3 has bounds that do not depend on lam.  It assumes that gradients differ
    within clusters by no more, and between clusters by no less, than some numbers in *all* of
    the parameter space, which only objectives that differ by a linear function satisfy:
    squared errors with equal second moments of the features, or points.

    References
    ----------
    .. [1] A. Armacki, D. Bajovic, D. Jakovetic, S. Kar. "Personalized Federated Learning via
       Convex Clustering". IEEE International Smart Cities Conference, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import ConvexClusteredFL
    >>> from skcfl.certificates import recovery_interval
    >>> from skcfl.models import Location
    >>> points = np.array([[0.0], [0.2], [4.0], [4.2]])
    >>> est = ConvexClusteredFL(Location(), lam=0.5).fit(points, groups=np.arange(4))
    >>> est.labels_
    array([0, 0, 1, 1])
    >>> interval = recovery_interval(est, points, groups=np.arange(4))
    >>> lower, upper = interval
    >>> print(f"{lower:.3g} {upper:.3g}")
    0.1 1
    >>> interval.holds
    True
    """
    problem, models = _fitted_problem(est, X, y, groups, sample_weight)
    _require_clusters(problem)
    return theorem_bounds(problem, est.lam_, est.labels_, models)


def duality_gap(est, X, y=None, groups=None, *, sample_weight=None):
    """Duality gap of a fit, computed anew from its rows.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, with any
        convex penalty.
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        The rows of its fit.
    y : array-like of shape (n_samples,), default=None
        Their targets, where the local model needs them.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client, as in fit.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, as in fit.

    Returns
    -------
    gap : float
        The penalised objective at ``fusion_params_`` less the dual objective at
        ``dual_coef_``: a bound of how much the former exceeds the minimum.

    Raises
    ------
    TypeError
        If `est` is no fusion method.
    ValueError
        If the penalty has no convex conjugate that the dual needs, or the clients are not those
        of the fit.

    Notes
    -----
    With ``s = dual_coef_``, the net outflow ``D'u`` of edge duals ``|u_e| <= lam w_e``, the
    dual objective of a norm is ``-sum_i f_i^*(-s_i)``; the conjugates are bounded from above, so
    that the gap is never too small.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.certificates import duality_gap
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> est = ConvexClusteredFLRegressor(0.3, graph="knn")
    >>> est = est.fit(data.X, data.y, groups=data.groups)
    >>> gap = duality_gap(est, data.X, data.y, groups=data.groups)
    >>> gap <= 1e-6 * est.objective_
    True
    """
    problem, models = _fitted_problem(est, X, y, groups, sample_weight)
    return gap_of(problem, est.lam_, models, est.dual_coef_)


def _fitted_problem(est, X, y, groups, sample_weight):
    """The fusion problem of a fit, and the penalised models of its clients."""
    check_is_fitted(est)
    if not (hasattr(est, "graph_") and hasattr(est, "lam_")):
        raise TypeError(
            "est must be a fitted estimator with a fusion penalty, such as "
            f"ConvexClusteredFLRegressor, got {est!r}. Of a Pipeline, pass the last step and "
            "transformed rows."
        )
    if hasattr(est, "groups_"):
        pool = _clients_of(est, X, y, groups, sample_weight)
        models = est.fusion_params_
    else:
        pool = _points_of(est, X)
        models = est.cluster_centers_[est.labels_]
    penalty = make_penalty(getattr(est, "penalty", "l2"))
    return FusionProblem(pool, est.graph_, penalty), np.asarray(models, dtype=float)


def _clients_of(est, X, y, groups, sample_weight):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SingleClientWarning)
        task = est._task(X, y, groups, sample_weight)
    ids = np.zeros(1, dtype=int) if task.groups is None else task.groups
    if not np.array_equal(ids, est.groups_):
        raise ValueError(
            f"The rows must be those of fit: est was fitted on {len(est.groups_)} client(s), "
            f"these rows belong to {len(ids)}, with ids that are not the same."
        )
    return task.pool


def _points_of(est, X):
    X = validate_data(est, X, reset=False, dtype=[np.float64, np.float32])
    n, d = X.shape
    if n != len(est.labels_):
        raise ValueError(
            f"The points must be those of fit: est was fitted on {len(est.labels_)}, got {n}."
        )
    return ClientPool(est._local_model().bind(d, dtype=X.dtype), X, None, np.arange(n), n)


def _require_clusters(problem):
    if not problem.penalty.fuses:
        raise ValueError(
            "Partitions are proved for penalty='l2', which makes whole models equal; got "
            f"{problem.penalty!r}."
        )


# ------------------------------------------------------------------------------ mathematics


def certify(problem, lam, labels, X):
    """What can be proved of a partition at `lam`.

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
        new, theta = parts, _means(X, parts)
    outcome = examine(problem, lam, new, theta, thorough=True, max_iter=MAX_ITER)
    models = outcome.theta[outcome.labels]
    ratios, lowers = np.zeros((2, labels.max() + 1))
    np.maximum.at(ratios, labels, outcome.ratios[outcome.labels])
    np.maximum.at(lowers, labels, outcome.lowers[outcome.labels])
    gap = np.inf
    if outcome.certified:
        gap = gap_of(problem, lam, models, outcome.divergence)
    merged = new.max() < parts.max()
    optimal = True if outcome.certified else False if outcome.refuted else None
    if not solved:
        optimal = None
        reason = (
            f"The reduced problem of {parts.max() + 1} models of {problem.d} parameters was not "
            "solved: the bounds are those of the fitted models."
        )
    elif merged:
        unique = bool((problem.pool.spectrum()[1] > 0).all())
        optimal = False if unique else None
        reason = "The reduced problem has equal models for clusters that are joined: " + (
            "the solution, which is unique, is coarser." if unique else "a solution is coarser."
        )
    elif optimal is None:
        reason = "The bounds of the flow value lie on both sides of lam."
    elif optimal:
        reason = "Flows inside the clusters carry the gradients away."
    else:
        reason = "In some cluster no flow can: moving its clients apart lowers the objective."
    return PartitionCertificate(
        optimal,
        outcome.ratio,
        outcome.lower,
        ratios,
        lowers,
        float(lam),
        labels,
        models,
        gap,
        reason,
    )


def _certify_apart(problem, labels, X):
    """At ``lam = 0`` clients share a model iff it is the minimiser of all of them."""
    theta = _means(X, labels)
    models = theta[labels]
    gap = gap_of(problem, 0.0, models, np.zeros_like(models))
    sizes = np.bincount(labels)
    limit = problem.tolerance(problem.primal(models, 0.0), 1e-9)
    optimal = bool(gap <= limit) or (True if (sizes == 1).all() else None)
    bounds = np.zeros((2, len(sizes))) if optimal else np.where(sizes > 1, [[np.inf], [0.0]], 0.0)
    reason = "Nothing is compared at lam = 0: every model is its clients' own minimiser."
    if not optimal:
        reason = "At lam = 0 clients share a model only if all of them have the same minimiser."
    return PartitionCertificate(
        optimal,
        float(bounds[0].max()),
        float(bounds[1].max()),
        *bounds,
        0.0,
        labels,
        models,
        gap,
        reason,
    )


def theorem_bounds(problem, lam, labels, X):
    """Theorems 1, 2 and 3 for a partition, evaluated at `lam`.

    Parameters
    ----------
    problem, lam, labels, X
        As for :func:`certify`; the bounds are evaluated at the means of X where the reduced
        problem is too large to be solved.

    Returns
    -------
    interval : RecoveryInterval
    """
    labels = np.asarray(labels)
    K, n = int(labels.max()) + 1, problem.n
    theta = None
    if lam > 0:
        new, theta = solve_reduced(problem, lam, labels, X, max_unknowns=MAX_UNKNOWNS)
        theta = theta[_first(labels, new)] if theta is not None else None
    theta = _means(X, labels) if theta is None else theta
    gradients = _gradients_at(problem, labels, theta)
    sizes = np.bincount(labels, minlength=K)
    lower = _theorem_1(problem, lam, labels, theta, gradients)
    if problem.graph.is_complete:
        pull = problem.graph.weight * (n - sizes).astype(float)
    else:
        pull = problem.graph.between(labels, K).sum(axis=1) / sizes
    upper = printed = np.inf
    for k in range(K):
        # Mean gradients of all clusters at the model of cluster k.
        at_k = np.array([g.mean(axis=0) for g in gradients[k]])
        distance = np.linalg.norm(at_k - at_k[k], axis=1)
        others = np.arange(K) != k
        with np.errstate(divide="ignore", invalid="ignore"):
            both = np.where(others, distance / (pull + pull[k]), np.inf)
            worst = np.where(others, distance / (2 * pull.max()), np.inf)
        # Clusters that nothing draws are apart at any lam if their gradients say so at all.
        upper = min(upper, np.nan_to_num(both, nan=np.inf, posinf=np.inf).min())
        printed = min(printed, np.nan_to_num(worst, nan=np.inf, posinf=np.inf).min())
    return RecoveryInterval(
        float(lower), float(upper), float(printed), float(lam), _theorem_3(problem, labels)
    )


def _first(labels, new):
    """Cluster in `new` of the first client of each cluster."""
    return new[np.unique(labels, return_index=True)[1]]


def _gradients_at(problem, labels, theta):
    """``[k][l]``: gradients of the clients of cluster l at the model of cluster k."""
    K = len(theta)
    members = [np.flatnonzero(labels == k) for k in range(K)]
    out = []
    for k in range(K):
        models = np.broadcast_to(theta[k], (problem.n, problem.d))
        gradients = problem.pool.objectives_gradients(models, dtype=np.float64)[1]
        out.append([gradients[mine] for mine in members])
    return out


def _theorem_1(problem, lam, labels, theta, gradients):
    """Largest ``|u_e| / w_e`` of the flow of least energy that carries the gradients away."""
    q = np.empty((problem.n, problem.d))
    for k in range(len(theta)):
        q[labels == k] = gradients[k][k]
    if not problem.graph.is_complete:
        # Neighbours outside the cluster pull its clients unequally.
        heads, tails = problem.graph.heads, problem.graph.tails
        delta = theta[labels[heads]] - theta[labels[tails]]
        size = np.linalg.norm(delta, axis=1)
        share = np.divide(problem.graph.weights, size, out=np.zeros_like(size), where=size > 0)
        q += lam * problem.graph.divergence(share[:, None] * delta)
    inside = Inside(problem.graph, problem.penalty, labels, problem.d)
    largest = inside.largest(inside.potentials(-q[inside.nodes])).max(initial=0.0)
    return largest if inside.connected.all() else np.inf


def _theorem_3(problem, labels):
    """Bounds that hold for all lam, where gradients differ by constants; else None."""
    pool, n = problem.pool, problem.n
    if not (pool.quadratic and problem.graph.is_complete):
        return None
    zero = np.zeros((n, problem.d))
    H = pool.hessians(zero, np.arange(n), np.ones(n))
    if np.abs(H - H[0]).max() > 1e-9 * np.abs(H).max():
        return None
    gradients = pool.objectives_gradients(zero, dtype=np.float64)[1]
    distance = np.linalg.norm(gradients[:, None] - gradients[None], axis=2)
    K, sizes = int(labels.max()) + 1, np.bincount(labels)
    within = np.array([distance[np.ix_(labels == k, labels == k)].max() for k in range(K)])
    lower = (within / sizes).max()
    upper = np.inf
    for k in range(K):
        for m in range(k):
            least = distance[np.ix_(labels == k, labels == m)].min() - within[k] - within[m]
            upper = min(upper, least / (2 * (n - sizes).max()))
    return float(lower / problem.graph.weight), float(upper / problem.graph.weight)


def gap_of(problem, lam, X, divergence):
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
        ``(D'u)_i``, with ``|u_e| <= lam w_e`` for a norm.  Of another penalty u itself would
        be needed; then the edge duals are taken from the models,
        ``u_e = lam w_e phi'(x_i - x_j)``, and `divergence` is not looked at.

    Returns
    -------
    gap : float
    """
    conjugate = 0.0
    if not problem.penalty.norm:
        divergence, conjugate = _smooth_dual(problem, lam, X)
    bounds = problem.pool.conjugate(-np.asarray(divergence, dtype=float), x0=X)[0]
    return max(problem.primal(X, lam) + float(bounds.sum()) + conjugate, 0.0)


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


def _means(X, labels):
    sums = np.zeros((labels.max() + 1, X.shape[1]))
    np.add.at(sums, labels, X)
    return sums / np.bincount(labels)[:, None]
