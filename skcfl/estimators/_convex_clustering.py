"""Convex clustering of points, every point a client of its own."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from numbers import Integral
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from .._checks import POSITIVE, Interval
from .._option_objects import parameters
from ..base.clustered_points import BasePoints
from ..base.docs import document
from ..calls.curvatures import Solve
from ..fusion.admm import admm
from ..fusion.ama import ama
from ..fusion.convex_fits import PointFits
from ..fusion.problem import FusionProblem
from ..graphs import Graph, complete_graph, knn_graph
from ..graphs.generators import GraphLike, graph_of_matrix
from ..models import Location
from ..penalties import L2
from ._base_fusion import FusionMixin


@document
@parameters
class ConvexClustering(FusionMixin, BasePoints):
    r"""Convex clustering of points.

    For an unknown number of clusters of points, if a proof of the clusters is wanted.
    Not where the number is known: k-means is faster.

    .. math:: \min_{x_1, \dots, x_N} \; \sum_i \ell(\|x_i - a_i\|)
              + \lambda \sum_{i<j} w_{ij} \|x_i - x_j\|

    Every point :math:`a_i` has a centre :math:`x_i`; points with equal centres are a cluster,
    so that the number of clusters is found and not given.  The problem is convex: the
    result does not depend on a start, comes with a bound of its error, ``dual_gap_``, and often
    with a proof that its clusters are the exact solution's at ``lam_``, ``partition_optimal_``
    (no proof that they are real).  The loss is half the square, as
    usual, or Huber's function, for which [1]_ has recovery guarantees and which outliers move
    less.  Every row is a client: this is :class:`ConvexClusteredFL` with
    :class:`~skcfl.models.Location` and one row per client.

    Parameters
    ----------
    loss : {"squared_error", "huber"}
        What the distance of a point to its centre costs: half its square, or Huber's
        function, linear beyond ``delta``.
    delta : float
        Where the Huber loss becomes linear, in units of the features.
    graph : {"knn", "complete"}, array-like, sparse matrix or Graph
        Which points are compared, and the weights ``w_ij``:

        - "knn": every point with its nearest neighbours, the components joined by their
          shortest links, with weights between .001 and 1 that fall with the distance,
          ``exp(-(distance / median)**2)`` (:func:`skcfl.graphs.knn_graph`);
        - "complete": all pairs, with weight 1;
        - a symmetric matrix of weights, dense or sparse, one row and column per point, or a
          :class:`~skcfl.graphs.Graph`.
    n_neighbors : int
        Neighbours of a point with ``graph="knn"``.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
        Cluster of each point: points with exactly equal centres. Clusters are
        numbered from 0 by decreasing number of points, equal ones by their first point.
    cluster_centers_ : ndarray of shape (n_clusters_, n_features)
        Centres of the clusters, which the penalty draws towards each other: the means are at
        larger distances.
    n_clusters_ : int
        Number of clusters.
    cluster_sizes_ : ndarray of shape (n_clusters_,)
        Number of points of each cluster.
    graph_ : Graph
        The graph of the fit.
    dual_coef_ : ndarray of shape (n_samples, n_features)
        Force of the penalty on each point, the net outflow of the dual solution.
    objective_ : float
        Value of the objective at the end.
    groups_, params_, cluster_params_, model_, classes_, coef_, intercept_ : None
    cluster_coef_, cluster_intercept_, floats_up_, floats_down_, alpha_, coef_names_ : None
    missing_clients_, absences_, rejected_clients_, calls_, client_calls_, wire_bytes_ : None

    See Also
    --------
    ConvexClusteredFL : Convex clustering of clients by their models.

    Notes
    -----
    On the complete graph, of which the theorems speak, all pairs pull with equal force: points
    in the middle of the data are pulled together first, and clusters are found where they
    are as far apart as they are wide.  Weights that fall with the distance, between
    neighbours only, follow the shape of the data and are much faster; this is the default.

    ``lam="auto"`` judges clusters by the squared distances to their means (the notes of
    :class:`ConvexClusteredFL` have the criterion), which suits round clusters of similar width.
    Long or curved ones it cuts to pieces or does not see, and a single
    point far from all others it does not set apart: look at the path there
    (:class:`~skcfl.inspection.ClusterPathDisplay`) and give ``lam``.

    Rows have no weights, since every client counts once.  A point that stands twice is two points,
    which are in one cluster from ``lam=0`` on.

    References
    ----------
    .. [1] A. Armacki, D. Bajovic, D. Jakovetic, S. Kar. "Personalized Federated Learning via
       Convex Clustering". IEEE International Smart Cities Conference, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import ConvexClustering
    >>> points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [8.0, 8.0], [8.0, 9.0], [9.0, 8.0]])
    >>> clustering = ConvexClustering(lam=0.5).fit(points)
    >>> clustering.labels_
    array([0, 0, 0, 1, 1, 1])
    >>> clustering.predict([[2.0, 2.0]])
    array([0])
    """

    _parameter_constraints = {
        "loss": [StrOptions({"squared_error", "huber"})],
        "delta": [POSITIVE],
        "graph": [StrOptions({"knn", "complete"}), "array-like", "sparse matrix", Graph],
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
    }

    lam: float | Literal["auto"] = "auto"
    _: KW_ONLY
    loss: Literal["squared_error", "huber"] = "squared_error"
    delta: float = 1.0
    graph: Literal["knn", "complete"] | GraphLike = "knn"
    n_neighbors: int = 5
    max_iter: int = 20000
    tol: float = 1e-6
    warm_start: bool = False
    verbose: int = 0

    def _local_model(self):
        return Location(loss=self.loss, delta=self.delta)

    def _fits(self):
        return PointFits(self._algorithm(), self.tol, self.max_iter)

    def _algorithm(self):
        """Dual ascent needs strongly convex losses and stores an array a list of edges."""
        if isinstance(self.graph, str):
            complete = self.graph == "complete"
        else:
            complete = getattr(self.graph, "is_complete", False)
        return admm if complete or self.loss == "huber" else ama

    def _solve(self, pool):
        problem = self._problem(pool)
        if self.lam == "auto" and problem.n > 1:
            result = self._fits().of_least_criterion(problem)[1]
        else:
            result = self._at(problem, 0.0 if self.lam == "auto" else self.lam)
        result.extra["graph"] = problem.graph
        return result

    def _problem(self, pool, shift=0.0):
        """The fusion problem of these points, which had been moved by `shift`."""
        problem = FusionProblem(pool, self._make_graph(pool), L2())
        problem.shift = shift
        return problem

    def _path(self, problem, lams):
        """FusionPath over ascending `lams`, its models where the points were."""
        path = super()._path(problem, lams)
        back = path.params + problem.shift
        return replace(path, params=back, fusion_params=back)

    def _make_graph(self, pool):
        graph, n = self.graph, pool.n_clients
        if isinstance(graph, str):
            if graph == "complete" or n == 1:
                return complete_graph(n)
            # A point is its own location.
            return knn_graph(pool.ask(Solve)[0], self.n_neighbors, connected=True)
        graph = graph if isinstance(graph, Graph) else graph_of_matrix(graph, "graph")
        if graph.n_nodes != n:
            raise ValueError(
                f"graph has {graph.n_nodes} nodes, but there are {n} points. It must have one "
                "node per row."
            )
        return graph
