r"""Proofs about fitted fusion methods: partitions, recovery, duality gaps.

For the problem ``sum_i f_i(x_i) + lam sum_{i<j} w_ij |x_i - x_j|`` a partition is that of a
solution iff flows inside its clusters can carry the clients' gradients away without
exceeding ``lam`` times the weight of an edge; see :mod:`skcfl.fusion.reduced` for the
mathematics and :mod:`skcfl.fusion.theorems` for what follows from it.  The functions here take a
fitted estimator and the rows of its fit, solve the reduced problem of the fitted clusters anew,
and say what can be proved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import _num_samples, check_is_fitted

from ._checks import LEAST, MOST, about, real_array, real_number
from ._typing import Array, ArrayLike, ClientIds, FloatArray, Groups, MatrixLike, Targets, Weights
from .clients.ids import check_ids, encode
from .federation.federation import Federation
from .federation.inprocess import open_rows
from .fusion.connections import Demands, boundaries, has_source
from .fusion.problem import FusionProblem
from .fusion.theorems import (
    ClusteringConstants,
    PartitionCertificate,
    RecoveryInterval,
    certify,
    constants_of,
    gap_of,
    theorem_bounds,
)
from .graphs import Graph, from_adjacency
from .penalties import make_penalty
from .rounds.model_kinds import need_minima

if TYPE_CHECKING:
    from .federation.pool import ClientPool
    from .graphs.generators import GraphLike

__all__ = [
    "ClusteringConstants",
    "PartitionCertificate",
    "RecoveryInterval",
    "certify_partition",
    "clustering_constants",
    "clustering_error_bound",
    "duality_gap",
    "recovery_interval",
    "well_connected",
]


def certify_partition(
    est: Any,
    X: MatrixLike | Federation,
    y: Targets = None,
    groups: Groups = None,
    *,
    sample_weight: Weights = None,
) -> PartitionCertificate:
    r"""Prove or refute that the clusters of a fit are those of the exact solution at ``lam_``.

    That is no proof that the clusters are real.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, with the
        penalty "l2".
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features), or Federation
        The rows of its fit, or the clients, who have them.
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
    one particular flow.

    The clusters of a solution are connected: labels of a cluster that is not, whose clients no
    path of edges within it joins, are refuted.  Different clusters have different models.

    ``True`` and ``False`` hold in exact arithmetic.  How far the computed :math:`w_k` and
    :math:`q_i` may be from exact is bounded by the curvature around them and the rounding of
    their sums; flows have capacity, and models distance, to spare for that.  Where rounding
    decides the answer is ``None``.

    At ``lam = 0`` clients are together only if their minimisers are provably equal, because they
    have the same rows in some order; they are apart if their models differ by more than rounding.

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
    certificate = certify(problem, est.lam_, est.labels_, models)
    certificate.models = problem.pool.units.to_user(certificate.models)
    return certificate


def recovery_interval(
    est: Any,
    X: MatrixLike | Federation,
    y: Targets = None,
    groups: Groups = None,
    *,
    sample_weight: Weights = None,
) -> RecoveryInterval:
    """Bounds of lam between which the clusters of a fit are recovered, by theorems.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, with the
        penalty "l2".
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features), or Federation
        The rows of its fit, or the clients, who have them.
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

    Rounding is bounded as by :func:`certify_partition`: that of the models w_k, of gradients, of
    the flow and of sums.  ``lower`` is rounded up and ``upper`` down, so that ``holds`` is True
    only where it is proved; it is False where lam is beyond ``outer``, and None between.  Where
    nothing bounds how far the w_k are from exact, the interval is empty and ``outer`` is endless.

    Theorem 3 has bounds that do not depend on lam.  It assumes that gradients differ
    within clusters by no more, and between clusters by no less, than some numbers in *all* of
    the parameter space, which only objectives that differ by a linear function satisfy:
    points, or squared errors of clients whose rows have the same features and weights.

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


def duality_gap(
    est: Any,
    X: MatrixLike | Federation,
    y: Targets = None,
    groups: Groups = None,
    *,
    sample_weight: Weights = None,
) -> float:
    """Duality gap of a fit, computed anew from its rows.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, with any
        convex penalty.
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features), or Federation
        The rows of its fit, or the clients, who have them.
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
    return gap_of(problem, est.lam_, models, est._solution[1])


def clustering_constants(
    est: Any,
    X: MatrixLike | Federation,
    y: Targets = None,
    groups: Groups = None,
    *,
    labels: ClientIds | None = None,
    sample_weight: Weights = None,
) -> ClusteringConstants:
    r"""Constants that the GTV paper's Theorem 2 needs, computed from the rows of a fit.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLRegressor`, with the
        penalty "l2" or "l1".
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features), or Federation
        The rows of its fit, or the clients, who have them.
    y : array-like of shape (n_samples,), default=None
        Their targets, where the local model needs them.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client, as in fit.
    labels : array-like of shape (n_clients,), default=None
        A partition of the clients, in the order of ``groups_``; None is the one found.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, as in fit.

    Returns
    -------
    constants : ClusteringConstants
        With ``delta``, ``alpha``, ``beta``, ready for :func:`well_connected` and
        :func:`clustering_error_bound`.

    Raises
    ------
    TypeError
        If `est` is no fusion method.
    ValueError
        If the penalty is no norm, the clients are not those of the fit, or `labels` has not one
        entry per client.
    RuntimeError
        If a cluster has no minimiser that Newton's method finds.

    Notes
    -----
    With :math:`\bar w_c` the minimiser of :math:`f_c = \sum_{i \in C_c} f_i`, and norms of
    gradients dual to the penalty's:

    - :math:`\delta_i = \|\nabla f_i(\bar w_c)\|_*` is as small as (11) of [1]_ allows, but for
      rounding; infinite where nothing bounds how far the computed :math:`\bar w_c` is from exact;
    - :math:`\beta_i` of (12) is the curvature bound of :math:`f_i`; there is none for Poisson
      losses. Of clients with more than 128 rows and features it is the sum of all eigenvalues;
    - :math:`\alpha_c` of (13) is the least eigenvalue of the Hessian of :math:`f_c` for squared
      errors. Other losses may be flat: theirs is that of the local penalties, which is 0
      with a free intercept. In the norm "l1" a model has n_params times less.

    Rounding of gradients and eigenvalues is bounded: in exact arithmetic :math:`\delta_i` and
    :math:`\beta_i` are never more, :math:`\alpha_c` is never less.

    The objectives are those of the fit, local penalty included, and so are the units of the
    gradients and curvatures: with ``standardize=True`` those of standardised features.

    References
    ----------
    .. [1] Y. SarcheshmehPour, Y. Tian, L. Zhang, A. Jung. "Clustered Federated Learning via
       Generalized Total Variation Minimization". IEEE Transactions on Signal Processing, 2023.

    Examples
    --------
    The clusters of a fit, by a theorem about its graph and these constants; with weaker links
    between the clusters, or a larger lam, it holds the more easily:

    >>> import numpy as np
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.certificates import clustering_constants, well_connected
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, noise=0.1, random_state=0)
    >>> A = np.where(data.labels[:, None] == data.labels, 1.0, 0.005)
    >>> est = ConvexClusteredFLRegressor(0.1, graph=A)
    >>> est = est.fit(data.X, data.y, groups=data.groups)
    >>> c = clustering_constants(est, data.X, data.y, data.groups)
    >>> well_connected(A, c.labels, est.lam_, c.delta, c.alpha, c.beta)
    array([True, True, True], dtype=object)
    """
    problem, _ = _fitted_problem(est, X, y, groups, sample_weight)
    labels = check_ids(est.labels_ if labels is None else labels, name="labels")
    if labels.shape != (problem.n,):
        raise ValueError(
            f"labels must have one entry for each of the {problem.n} clients, got shape "
            f"{labels.shape}."
        )
    constants = constants_of(problem, encode(labels)[1])
    constants.models = problem.pool.units.to_user(constants.models)
    return constants


# -------------------------------------------------------------------- graphs and constants


def well_connected(
    A: GraphLike,
    labels: ClientIds,
    lam: float,
    delta: ArrayLike,
    alpha: ArrayLike,
    beta: ArrayLike,
) -> Array:
    r"""Clusters that the GTV paper's Theorem 2 proves to be recovered, by their connections.

    If it is true of every cluster, every solution of the fusion problem at `lam` gives the clients
    of each cluster one model, (36), no farther from the cluster's own minimiser than
    :func:`clustering_error_bound`, (37).

    Parameters
    ----------
    A : array-like, sparse matrix, networkx graph or Graph
        Symmetric weights :math:`A_{ij} \ge 0` between n clients.
    labels : array-like of shape (n,)
        The partition.
    lam : float
        Positive weight of the penalty.
    delta : float or array-like of shape (n,)
        Clustering errors (11): bounds of the dual norm of every client's gradient at its
        cluster's own minimiser; may be infinite.
    alpha : float or array-like of shape (n_clusters,)
        Strong convexity (13) of the clusters' summed objectives, in the order of
        ``np.unique(labels)``; 0 where none is known.
    beta : float or array-like of shape (n,)
        Smoothness (12) of the clients' objectives; may be infinite.

    Returns
    -------
    connected : ndarray of shape (n_clusters,) of True, False or None
        For each cluster, in the order of ``np.unique(labels)``, whether it is well-connected;
        None where rounding decides.

    Raises
    ------
    ValueError
        If the weights are not those of an undirected graph, or a number is out of its range or
        an array of another length.

    See Also
    --------
    clustering_constants : The constants of a fit.
    certify_partition : The exact test at a fit, which asks for less.

    Notes
    -----
    Definition 1 of [1]_: a cluster C is well-connected if there is a node :math:`i_0` in it such
    that for every non-empty :math:`S \subseteq C \setminus \{i_0\}`

    .. math:: \sum_{i \in S} c_i < \sum_{i \in S} \sum_{j \in C \setminus S} A_{ij},
        \qquad c_i = \sum_{j \notin C} A_{ij}
        + \frac{\beta_i}{\alpha} \sum_{j \in C, k \notin C} A_{jk} + \frac{\delta_i}{\lambda},

    which is (35), the sum on its left over all three terms. There are exponentially many sets,
    but the condition says that a flow from :math:`i_0` can bring every node :math:`c_i` within the
    capacities A, with some to spare: one maximum flow for each :math:`i_0`. And not every
    :math:`i_0` has to be tried: a set that cannot be supplied rules out all nodes outside it. So
    all choices of :math:`i_0` are covered, mostly by a few flows.

    ``True`` and ``False`` are proved, for the numbers as they are given. ``True`` rests on a flow
    that was found, inside C, which brings every node more than :math:`c_i`, its rounding included;
    ``False`` on sets that violate (35), summed exactly where rounding matters, one for every
    :math:`i_0`. ``None`` is between: some :math:`i_0` comes nearer to either than
    :math:`10^{-9}` of the mean :math:`c_i`. A cluster of one node is well-connected; one in
    several pieces is not.

    The constant of :math:`\beta_i` is the one of the paper's proof, which needs (37) without its
    factor 2; see :func:`clustering_error_bound`.

    References
    ----------
    .. [1] Y. SarcheshmehPour, Y. Tian, L. Zhang, A. Jung. "Clustered Federated Learning via
       Generalized Total Variation Minimization". IEEE Transactions on Signal Processing, 2023.

    Examples
    --------
    Two triangles and a weak link between them:

    >>> import numpy as np
    >>> from skcfl.certificates import well_connected
    >>> A = np.kron(np.eye(2), np.ones((3, 3)))
    >>> A[2, 3] = A[3, 2] = 0.1
    >>> labels = [0, 0, 0, 1, 1, 1]
    >>> well_connected(A, labels, lam=1.0, delta=0.5, alpha=3.0, beta=1.0)
    array([True, True], dtype=object)
    >>> well_connected(A, labels, lam=1.0, delta=[0.5] * 3 + [2.5] * 3, alpha=3.0, beta=1.0)
    array([True, False], dtype=object)
    """
    graph, labels, K, alpha = _clusters_of_graph(A, labels, lam, alpha)
    delta = _each(delta, graph.n_nodes, "delta", "node", finite=False)
    beta = _each(beta, graph.n_nodes, "beta", "node", finite=False)
    demands = Demands(graph, labels, float(lam), delta, alpha, beta)
    answers = [has_source(demands, np.flatnonzero(labels == k)) for k in range(K)]
    return np.array(answers, dtype=object)


def clustering_error_bound(
    A: GraphLike, labels: ClientIds, lam: float, alpha: ArrayLike
) -> FloatArray:
    r"""Bound (37) of the distance between a cluster's model and the cluster's own minimiser.

    Parameters
    ----------
    A : array-like, sparse matrix, networkx graph or Graph
        Symmetric weights :math:`A_{ij} \ge 0` between n clients.
    labels : array-like of shape (n,)
        The partition, with one model for every cluster: because it is that of a fit, or
        because all clusters are well-connected, see :func:`well_connected`.
    lam : float
        Positive weight of the penalty.
    alpha : float or array-like of shape (n_clusters,)
        Strong convexity (13) of the clusters' summed objectives, in the order of
        ``np.unique(labels)``; 0 where none is known.

    Returns
    -------
    bound : ndarray of shape (n_clusters,)
        Radius in the norm of the penalty, rounded up; infinite if a cluster with neighbours has
        `alpha` 0.

    Raises
    ------
    ValueError
        If the weights are not those of an undirected graph, or a number is out of its range or
        an array of another length.

    Notes
    -----
    The bound of cluster C is :math:`\lambda |\partial C| / \alpha`, with :math:`|\partial C|`
    the sum of the weights between C and other clusters. At the solution the neighbours pull with
    :math:`\lambda |\partial C|` at most, and the gradient of the cluster's sum, which grows by
    :math:`\alpha` at least with every unit of distance, balances them. Theorem 2 of [1]_ has
    twice that; without the 2 the bound is sharp: two clients
    :math:`f_i(x) = (x - a_i)^2 / 2` that are drawn to each other, each moves by exactly
    :math:`\lambda A_{12}`.

    References
    ----------
    .. [1] Y. SarcheshmehPour, Y. Tian, L. Zhang, A. Jung. "Clustered Federated Learning via
       Generalized Total Variation Minimization". IEEE Transactions on Signal Processing, 2023.

    Examples
    --------
    >>> from skcfl.certificates import clustering_error_bound
    >>> A = [[0, 2.0, 0.1], [2.0, 0, 0], [0.1, 0, 0]]
    >>> clustering_error_bound(A, labels=[0, 0, 1], lam=0.5, alpha=[2.0, 1.0])
    array([0.025, 0.05 ])
    """
    graph, labels, K, alpha = _clusters_of_graph(A, labels, lam, alpha)
    _, boundary, rounding = boundaries(graph, labels)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(boundary > 0, lam * boundary / alpha * (1.0 + rounding), 0.0)


def _clusters_of_graph(
    A: GraphLike, labels: ClientIds, lam: float, alpha: ArrayLike
) -> tuple[Graph, Array, int, Array]:
    """Checked graph, labels 0..K-1, K, and the strong convexity of each cluster."""
    graph = A if isinstance(A, Graph) else from_adjacency(A)
    labels = check_ids(labels, name="labels")
    if labels.shape != (graph.n_nodes,):
        raise ValueError(
            f"labels must have one entry for each of the {graph.n_nodes} nodes of A, got shape "
            f"{labels.shape}."
        )
    real_number(lam, "lam", LEAST, MOST)
    values, labels = encode(labels)
    return graph, labels, len(values), _each(alpha, len(values), "alpha", "cluster")


def _each(values: ArrayLike, n: int, name: str, thing: str, finite: bool = True) -> Array:
    """Non-negative numbers, one for each of n things; a single one stands for all."""
    values = real_array(values, name, finite=False)
    if values.shape not in {(), (n,)}:
        raise ValueError(
            f"{name} must be one number or one for each of the {n} {thing}s, got shape "
            f"{values.shape}."
        )
    if not (values >= 0).all() or (finite and not np.isfinite(values).all()):
        allowed = "non-negative and finite" if finite else "non-negative"
        raise ValueError(f"{name} must be {allowed}, got {values}.")
    if (np.isfinite(values) & (values != 0) & ~((values >= LEAST) & (values <= MOST))).any():
        raise ValueError(
            f"{name} must be 0 or between {LEAST:g} and {MOST:g}, or products overflow; got "
            f"{values}."
        )
    return np.broadcast_to(values, (n,))


def _fitted_problem(
    est: Any, X: MatrixLike | Federation, y: Targets, groups: Groups, sample_weight: Weights
) -> tuple[FusionProblem, Array]:
    """The fusion problem of a fit, and the penalised models of its clients."""
    with about("est"):
        check_is_fitted(est)
    if not (hasattr(est, "graph_") and hasattr(est, "lam_")):
        raise TypeError(
            "est must be a fitted estimator with a fusion penalty, such as "
            f"ConvexClusteredFLRegressor, got {est!r}. Pass the last step of a Pipeline, and "
            "transformed rows."
        )
    if getattr(est, "client_loss", None) is not None:
        raise ValueError(
            "The theorems are about clients' objectives as they are: est must be fitted with "
            f"client_loss=None, got {est.client_loss!r}. What a bounded fit proves is in "
            "dual_gap_ and partition_optimal_."
        )
    if hasattr(est, "groups_"):
        pool = _clients_of(est, X, y, groups, sample_weight)
    else:
        pool = _points_of(est, X)
    models, _ = est._solution
    need_minima(
        pool,
        "Nothing can be proved of fits of {}: the problem is not convex, its models are trained "
        "inexactly.",
    )
    # A search may have chosen the penalty.
    penalty = getattr(est, "penalty", "l2")
    penalty = make_penalty(
        est.penalty_ if isinstance(penalty, str) and penalty == "auto" else penalty
    )
    return FusionProblem(pool, est.graph_, penalty), np.asarray(models, dtype=float)


def _clients_of(
    est: Any, X: MatrixLike | Federation, y: Targets, groups: Groups, sample_weight: Weights
) -> ClientPool:
    if isinstance(X, Federation):
        if any(rest is not None for rest in (y, groups, sample_weight)):
            raise ValueError("y, groups and sample_weight must be None where X is a federation.")
        task = est._federation_task(X)
    else:
        if groups is None and est.group_col is None:
            with about("X"):  # one client, of which fit has warned
                groups = np.zeros(_num_samples(X), dtype=int)
        task = est._task(X, y, groups, sample_weight)
    n_features = task.pool.model.n_features
    if n_features != est.model_.n_features:
        raise ValueError(
            f"The rows must be those of fit: est was fitted on {est.model_.n_features} features, "
            f"X has {n_features}."
        )
    ids = np.zeros(1, dtype=int) if task.groups is None else task.groups
    if not np.array_equal(ids, est.groups_):
        raise ValueError(
            f"The rows must be those of fit: est was fitted on {len(est.groups_)} client(s), "
            f"groups has {len(ids)}, with ids that are not the same."
        )
    # A search may have chosen another local penalty.
    return task.pool.penalised(est.alpha_) if hasattr(est, "alpha_") else task.pool


def _points_of(est: Any, X: MatrixLike) -> ClientPool:
    X = est._check_points(X, reset=False)
    n, d = X.shape
    if n != len(est.labels_):
        raise ValueError(
            f"The points X must be those of fit: est was fitted on {len(est.labels_)}, got {n}."
        )
    return open_rows(est._local_model().bind(d, dtype=X.dtype), X, None, np.arange(n), n)


def _require_clusters(problem: FusionProblem) -> None:
    if not problem.penalty.fuses:
        raise ValueError(
            "Partitions are proved for penalty='l2', which makes whole models equal; got "
            f"{problem.penalty!r}."
        )
