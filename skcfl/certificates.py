r"""Proofs about fitted fusion methods: partitions, recovery, duality gaps.

For the problem ``sum_i f_i(x_i) + lam sum_{i<j} w_ij |x_i - x_j|`` a partition is that of a
solution iff flows inside its clusters can carry the clients' gradients away without
exceeding ``lam`` times the weight of an edge; see :mod:`skcfl.fusion.reduced` for the
mathematics.  The functions here take a fitted estimator and the rows of its fit, solve the
reduced problem of the fitted clusters anew, and say what can be proved.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import breadth_first_order
from sklearn.utils.validation import check_is_fitted

from ._checks import LEAST, MOST, about, real_array
from ._groups import check_ids, encode
from .exceptions import SingleClientWarning
from .federation.inprocess import open_rows
from .fusion.flows import Inside
from .fusion.reduced import (
    FusionProblem,
    compare_own_models,
    examine,
    solve_apart,
    solve_reduced,
    split_torn,
)
from .graphs import Graph, from_adjacency
from .numerics.by_cluster import mean_by_cluster
from .numerics.maxflow import carry
from .penalties import make_penalty

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

# Unknowns of the reduced problem up to which it is solved here, where there is time.
MAX_UNKNOWNS = 4000
# Iterations of the search for flows.
MAX_ITER = 500
# What clusters must have to spare to count as well-connected, relatively: beyond rounding.
SLACK = 1e-9


@dataclass
class PartitionCertificate:
    """What is proved of a partition, from :func:`certify_partition`.

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
        cluster whose clients no path of edges within it joins.
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
    one particular flow.

    The clusters of a solution are connected: labels of a cluster that is *torn*, whose clients no
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
    certificate.models = problem.pool.to_user(certificate.models)
    return certificate


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
    return gap_of(problem, est.lam_, models, est._solution[1])


def clustering_constants(est, X, y=None, groups=None, *, labels=None, sample_weight=None):
    r"""Constants that the GTV paper's Theorem 2 needs, computed from the rows of a fit.

    Parameters
    ----------
    est : estimator
        A fitted fusion method such as :class:`skcfl.ConvexClusteredFLRegressor`, with the
        penalty "l2" or "l1".
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        The rows of its fit.
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
        entry a client.
    RuntimeError
        If a cluster has no minimiser that Newton's method finds.

    Notes
    -----
    With :math:`\bar w_c` the minimiser of :math:`f_c = \sum_{i \in C_c} f_i`, and norms of
    gradients dual to the penalty's:

    - :math:`\delta_i = \|\nabla f_i(\bar w_c)\|_*` is as small as (11) of [1]_ allows;
    - :math:`\beta_i` of (12) is the curvature bound of :math:`f_i`; there is none for Poisson
      losses;
    - :math:`\alpha_c` of (13) is the least eigenvalue of the Hessian of :math:`f_c` for squared
      errors. Other losses may be flat: theirs is that of the local penalties, which is 0
      with a free intercept. In the norm "l1" a model has n_params times less.

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
    array([ True,  True,  True])
    """
    problem, _ = _fitted_problem(est, X, y, groups, sample_weight)
    labels = check_ids(est.labels_ if labels is None else labels, name="labels")
    if labels.shape != (problem.n,):
        raise ValueError(
            f"labels must have one entry for each of the {problem.n} clients, got shape "
            f"{labels.shape}."
        )
    constants = constants_of(problem, encode(labels)[1])
    constants.models = problem.pool.to_user(constants.models)
    return constants


# -------------------------------------------------------------------- graphs and constants


def well_connected(A, labels, lam, delta, alpha, beta):
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
        cluster's own minimiser.
    alpha : float or array-like of shape (n_clusters,)
        Strong convexity (13) of the clusters' summed objectives, in the order of
        ``np.unique(labels)``; 0 where none is known.
    beta : float or array-like of shape (n,)
        Smoothness (12) of the clients' objectives; may be infinite.

    Returns
    -------
    connected : ndarray of shape (n_clusters,) of bool
        For each cluster, in the order of ``np.unique(labels)``, whether it is well-connected.

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

    ``True`` is a proof, in double precision: it rests on a flow that was found, inside C, which
    brings every node more than :math:`c_i`. ``False`` says that for every :math:`i_0` some set
    violates (35), or comes as near to it as :math:`10^{-9}` of the sum of all :math:`c_i`. A
    cluster of one node is well-connected; one in several pieces is not.

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
    array([ True,  True])
    >>> well_connected(A, labels, lam=1.0, delta=[0.5] * 3 + [2.5] * 3, alpha=3.0, beta=1.0)
    array([ True, False])
    """
    graph, labels, K, alpha = _clusters_of_graph(A, labels, lam, alpha)
    delta = _each(delta, graph.n_nodes, "delta", "node")
    beta = _each(beta, graph.n_nodes, "beta", "node", finite=False)
    outer, boundary = _boundaries(graph, labels, K)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Without a boundary the cluster's model is its minimiser, however flat or curved it is.
        pull = beta * (boundary / alpha)[labels]
        pull = np.where((boundary == 0)[labels] | (beta == 0), 0.0, pull)
    demand = outer + pull + delta / lam
    return np.array([_has_source(graph, np.flatnonzero(labels == k), demand) for k in range(K)])


def clustering_error_bound(A, labels, lam, alpha):
    r"""Bound (37) of the distance between a cluster's model and the cluster's own minimiser.

    Parameters
    ----------
    A : array-like, sparse matrix, networkx graph or Graph
        Symmetric weights :math:`A_{ij} \ge 0` between n clients.
    labels : array-like of shape (n,)
        The partition, every cluster of which has one model: because it is that of a fit, or
        because all clusters are well-connected, see :func:`well_connected`.
    lam : float
        Positive weight of the penalty.
    alpha : float or array-like of shape (n_clusters,)
        Strong convexity (13) of the clusters' summed objectives, in the order of
        ``np.unique(labels)``; 0 where none is known.

    Returns
    -------
    bound : ndarray of shape (n_clusters,)
        In the norm of the penalty; infinite where a cluster with neighbours has `alpha` 0.

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
    _, boundary = _boundaries(graph, labels, K)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(boundary > 0, lam * boundary / alpha, 0.0)


def _clusters_of_graph(A, labels, lam, alpha):
    """Checked graph, labels 0..K-1, K, and the strong convexity of each cluster."""
    graph = A if isinstance(A, Graph) else from_adjacency(A)
    labels = check_ids(labels, name="labels")
    if labels.shape != (graph.n_nodes,):
        raise ValueError(
            f"labels must have one entry for each of the {graph.n_nodes} nodes of A, got shape "
            f"{labels.shape}."
        )
    number = real_array(lam, "lam", finite=False)
    if number.ndim or not LEAST <= number <= MOST:
        raise ValueError(
            f"lam must be a positive number, between {LEAST:g} and {MOST:g}, got {lam!r}."
        )
    values, labels = encode(labels)
    return graph, labels, len(values), _each(alpha, len(values), "alpha", "cluster")


def _each(values, n, name, thing, finite=True):
    """Non-negative numbers, one for each of n things, of which one may stand for all."""
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


def _boundaries(graph, labels, K):
    """Weights to other clusters: of every node, and their sums over the clusters."""
    if graph.is_complete:
        outer = graph.weight * (graph.n_nodes - np.bincount(labels, minlength=K)[labels])
    else:
        across = labels[graph.heads] != labels[graph.tails]
        ends = np.concatenate([graph.heads[across], graph.tails[across]])
        outer = np.bincount(ends, np.tile(graph.weights[across], 2), graph.n_nodes)
    return outer, np.bincount(labels, outer, K)


def _has_source(graph, nodes, demand):
    """Whether some node of a cluster can supply all others within its edges, with slack."""
    n = len(nodes)
    place = np.full(graph.n_nodes, -1)
    place[nodes] = np.arange(n)
    heads, tails = place[graph.heads], place[graph.tails]
    within = (heads >= 0) & (tails >= 0)
    part = Graph(n, heads[within], tails[within], graph.weights[within])
    need = demand[nodes]
    if part.components().max() > 0:
        return False
    # What a node takes in passes its edges: only a source may ask for more, or for all.
    greedy = need >= part.degrees()
    if n == 1 or greedy.sum() > 1:
        return n == 1
    candidates = greedy if greedy.any() else np.ones(n, dtype=bool)
    links = part.adjacency()
    while candidates.any():
        first = np.flatnonzero(candidates)[np.argmax(need[candidates])]
        order = breadth_first_order(links, first, return_predecessors=False)
        order, m = order[candidates[order]], 1
        # What several sources together cannot supply rules out all of them at once.
        while True:
            supplied, blocked = _supply(part, order[:m], need)
            if supplied and m == 1:
                return True
            if supplied:
                break
            candidates[order[:m]] = False
            candidates &= blocked
            if m >= len(order):
                break
            m *= 2
    return False


def _supply(graph, sources, need):
    """Whether a flow from some nodes brings all others their needs; if not, a set of nodes that
    cannot be supplied from outside.
    """  # noqa: D205
    n, total = graph.n_nodes, need.sum()
    need = need.copy()
    need[sources] = 0.0
    # A node that feeds the sources keeps their number out of the graph.
    heads = np.append(graph.heads, np.full(len(sources), n))
    tails = np.append(graph.tails, sources)
    capacities = np.append(graph.weights, np.full(len(sources), 2.0 * total))
    others = np.ones(n, dtype=bool)
    others[sources] = False
    outflow = np.append(np.where(others, -need - SLACK * need.mean(), 0.0), 0.0)
    outflow[n] = -outflow.sum()
    flow, _, blocked = carry(heads, tails, capacities, outflow)
    flow = flow[: graph.n_edges]
    inflow = np.bincount(graph.tails, flow, n) - np.bincount(graph.heads, flow, n)
    return not blocked.any() and bool((inflow >= need)[others].all()), blocked[:n]


def _fitted_problem(est, X, y, groups, sample_weight):
    """The fusion problem of a fit, and the penalised models of its clients."""
    with about("est"):
        check_is_fitted(est)
    if not (hasattr(est, "graph_") and hasattr(est, "lam_")):
        raise TypeError(
            "est must be a fitted estimator with a fusion penalty, such as "
            f"ConvexClusteredFLRegressor, got {est!r}. Of a Pipeline, pass the last step and "
            "transformed rows."
        )
    if hasattr(est, "groups_"):
        pool = _clients_of(est, X, y, groups, sample_weight)
    else:
        pool = _points_of(est, X)
    models, _ = est._solution
    if not pool.second_order:
        raise ValueError(
            f"Nothing can be proved of fits of {pool.model_name}: the problem is not convex, its "
            "models are trained inexactly."
        )
    # A search may have chosen the penalty.
    penalty = getattr(est, "penalty", "l2")
    penalty = make_penalty(
        est.penalty_ if isinstance(penalty, str) and penalty == "auto" else penalty
    )
    return FusionProblem(pool, est.graph_, penalty), np.asarray(models, dtype=float)


def _clients_of(est, X, y, groups, sample_weight):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SingleClientWarning)
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


def _points_of(est, X):
    X = est._check_points(X, reset=False)
    n, d = X.shape
    if n != len(est.labels_):
        raise ValueError(
            f"The points X must be those of fit: est was fitted on {len(est.labels_)}, got {n}."
        )
    return open_rows(est._local_model().bind(d, dtype=X.dtype), X, None, np.arange(n), n)


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
    """Whether a partition is a solution's, and what that rests on."""
    if torn:
        return False, "A cluster is torn: no path of edges within it joins its clients."
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
        return False, "In some cluster no flow can: moving its clients apart lowers the objective."
    if not np.isfinite(outcome.enclosure.spread).all():
        return None, "The curvature of the reduced problem is not bounded: nor are its solutions."
    if outcome.ratio <= 1.0:
        return None, "Rounding decides whether the models of all clusters differ."
    return None, "The bounds of the flow value lie on both sides of lam."


def proved_apart(problem, labels):
    """Whether clusters of own minimisers that are proved to be equal, and no others, hold.

    That is so unless clients without rows, of which every model is one, are in company, or some
    are equal that no path of edges among them joins.
    """
    lonely = np.bincount(labels)[labels] == 1
    if not lonely[problem.pool.without_rows].all():
        return False
    return int(split_torn(problem.graph, labels).max()) == int(labels.max())


def _certify_apart(problem, labels, X):
    """At ``lam = 0`` clients share a model iff it is the minimiser of all of them."""
    own = compare_own_models(problem, problem.local_models())
    models = mean_by_cluster(X, labels)[labels]
    gap = gap_of(problem, 0.0, models, np.zeros_like(models))
    sizes, K = np.bincount(labels), int(labels.max()) + 1
    # Two clients of a cluster differ where it has more pairs of kinds than may be equal.
    kinds = _pieces(labels, own.labels)
    pairs = kinds * (kinds - 1) // 2
    if own.near is None:
        wrong = np.zeros(K, dtype=bool)
    else:
        both = labels[own.near]
        within = own.near[both[:, 0] == both[:, 1]]
        unlike = within[own.labels[within[:, 0]] != own.labels[within[:, 1]]]
        idle = np.bincount(labels, problem.pool.without_rows, K) > 0
        wrong = (pairs > np.bincount(labels[unlike[:, 0]], minlength=K)) & ~idle
    optimal, reason = _verdict_apart(problem, labels, own, wrong.any())
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


def _verdict_apart(problem, labels, own, wrong):
    """Whether a partition is that of the clients' own minimisers, and what that rests on."""
    if wrong:
        return False, "At lam = 0 clients share a model only if all have the same minimiser."
    if not own.decided:
        return None, "Rounding decides whether the minimisers of some clients are equal."
    if not proved_apart(problem, labels):
        return None, (
            "At lam = 0 no edge joins clients: equal ones without a path of edges among them, and "
            "clients without rows, may be together or not."
        )
    if _pieces(own.labels, labels).max() == 1:
        return True, "Nothing is compared at lam = 0: every model is its clients' own minimiser."
    if (_pieces(split_torn(problem.graph, own.labels), labels) == 1).all():
        return None, "Clients that no path of equal ones joins have the same minimiser."
    return False, "Clients with the same minimiser are in different clusters."


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
    theta = mean_by_cluster(X, labels) if theta is None else theta
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
    models = solve_apart(problem, labels, np.zeros((K, problem.d)))
    if models is None:
        raise RuntimeError(
            "Newton's method did not find the minimisers of the clusters; scale the features or "
            "raise the local penalty alpha."
        )
    _, gradients = pool.objectives_gradients(models[labels], dtype=np.float64)
    beta, strong, _ = pool.spectrum()
    if not pool.model.bounded_curvature:
        # The pool's is one for automatic steps.
        beta = np.full(problem.n, np.inf)
    if pool.quadratic:
        H = pool.hessians(models, labels, np.ones(problem.n))
        alpha = np.maximum(np.linalg.eigvalsh(H)[:, 0], 0.0)
    else:
        alpha = np.bincount(labels, strong, K)
    if not penalty.fuses:
        # |x|_2^2 >= |x|_1^2 / d, and the largest entry is at most the Euclidean norm.
        alpha = alpha / problem.d
    return ClusteringConstants(penalty.dual_norm(gradients.T), alpha, beta, labels, models)


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
        ``(D'u)_i``, with ``|u_e| <= lam w_e`` for a norm.  Of another penalty u itself would
        be needed; then the edge duals are taken from the models,
        ``u_e = lam w_e phi'(x_i - x_j)``, and `divergence` is not looked at.
    crossing : ndarray of shape (n_clients,), default=None
        Sums of the lengths of the edge duals at every client, of which `divergence` has the
        rounding; by default what it takes to carry it.

    Returns
    -------
    gap : float
        With the rounding of its own arithmetic: never too small.
    """
    conjugate = 0.0
    if not problem.penalty.norm:
        divergence, conjugate = _smooth_dual(problem, lam, X)
    divergence = np.asarray(divergence, dtype=float)
    bounds = problem.pool.conjugate(-divergence, x0=X)[0]
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
