"""One-shot clustering of the clients' own models."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Real
from typing import Literal

import numpy as np
from sklearn.utils._param_validation import HasMethods, StrOptions

from .._checks import Count, Interval
from .._typing import Clusterer
from ..base.everyday import everyday
from ..calls.curvatures import Hessians
from ..numerics.newton import MAX_DENSE
from ..rounds.alternate import client_weights
from ..rounds.model_kinds import NETWORK_STEP, kind_of
from ..rounds.one_shot_clusters import (
    Partition,
    combine_models,
    local_models,
    publish_once,
    spread_labels,
)
from ..rounds.point_clusters import CLUSTERINGS, cluster_points, finds_number
from ..rounds.round_options import make_options
from ._base_once import ClustersOnce

# Steps of networks before they are sent, by trial: distances blur when rows are known by heart.
NETWORK_STEPS = 50


class ClustersOfModels:
    """Mixin left of ClustersOnce: clusters of the models that clients fit by themselves.

    Parameters
    ----------
    n_clusters : int or "auto"
        Number of clusters. "auto" leaves it to a `clusterer` that has no such parameter
        (``ConvexClustering``, ``DBSCAN``); for others it tries 1, 2, ... on three quarters of
        every client's rows, four times over (linear models with fewer than 500 rows in all: nine
        tenths, ten times), for as long as the loss on the others falls by more than its standard
        error and 1 %, then a model for each client. ``search_`` has what was tried.
    clusterer : {"auto", "kmeans", "trimmed", "median"} or clusterer
        What clusters the models that the clients send, unless ``rounds=0`` in coordinates in
        which linear models are as far apart as their predictions. "kmeans" is k-means
        weighted by `weights` (ten starts of k-means++); "trimmed" leaves out of the means the
        share `trim` of the clients that are farthest from them, and finds clusters without as
        many of these as is needed; "median" has geometric medians for centres. "auto" is
        "kmeans" where the aggregation is the mean, else "trimmed", which tolerates clients
        that send anything. Or a clusterer of scikit-learn or this package, such as
        :class:`~skcfl.ConvexClustering`, cloned, its ``n_clusters`` set if it has one;
        clients that it calls noise go to the nearest
        mean.
    trim : float
        Share of the clients that the trimmed clusterer leaves out, in [0, .5).
    combine : {"mean", "precision"}
        How a cluster's model is made of its clients': their mean by rows (or what
        `aggregation` puts in its place), or the mean weighted by their Hessians, which they
        then send too; for "squared_error" that is the fit to the pooled rows. It needs linear
        models, and clients with as many rows as parameters. What further rounds start from.
    rounds : "auto" or int
        Communication rounds after the clusters are found, in which their models are trained
        and the clusters stay. 0 is one exchange of models: each cluster's model is what
        `combine` makes of its clients' (ODCL). "auto" trains to the end, at most 300 rounds
        of linear models and 50 of networks.
    pretrain_steps : "auto" or int
        Networks only: steps that every client trains from one common start before it sends
        its model; "auto" is 50. Linear models are solved exactly.
    """

    _parameter_constraints = {
        "rounds": [Count(0), StrOptions({"auto"})],
        "clusterer": [
            StrOptions({"auto", *CLUSTERINGS}),
            HasMethods(["fit_predict", "get_params"]),
        ],
        "trim": [Interval(Real, 0, 0.5, closed="left")],
        "combine": [StrOptions({"mean", "precision"})],
        "pretrain_steps": [Count(1), StrOptions({"auto"})],
    }

    def _options(self, pool):
        return make_options(self, pool, max_iter=self.rounds if self.rounds else "auto")

    def _finds_number(self):
        found = finds_number(self.clusterer)
        if found and self.n_clusters != "auto":
            raise ValueError(
                f"n_clusters must be 'auto' with a clusterer that finds the number of clusters, "
                f"{type(self.clusterer).__name__}, got {self.n_clusters!r}."
            )
        return found

    def _evidence(self, pool, options):
        steps = NETWORK_STEPS if self.pretrain_steps == "auto" else self.pretrain_steps
        step = NETWORK_STEP if options.step_size is None else options.step_size
        models, known = local_models(pool, steps, step, options.optimizer, options.batch_size)
        return models, known, self._points(pool, models[known], known, options)

    def _points(self, pool, models, known, options):
        """Models in coordinates in which their distances are those of predictions.

        If features are correlated, coefficients of few rows are noise along directions that
        predictions hardly depend on.  The correction takes an exchange, a sum of Hessians.
        """
        trusted = options.aggregator is None and self.rounds != 0
        if not (trusted and kind_of(pool).exact and models.shape[1] <= MAX_DENSE):
            return models
        if known.sum() < 2:
            return models
        together = np.zeros(pool.n_clients, dtype=np.intp)
        values, vectors = np.linalg.eigh(pool.ask(Hessians, pool.start()[None], together)[0])
        return models @ (vectors * np.sqrt(np.maximum(values, 0.0) / pool.client_weights.sum()))

    def _partition(self, pool, evidence, n_clusters, options):
        models, known, points = evidence
        rng = pool.random_state
        clusterer = self.clusterer
        if isinstance(clusterer, str) and clusterer == "auto":
            clusterer = "kmeans" if options.aggregator is None else "trimmed"
        weights = client_weights(pool, options)
        labels, kept = cluster_points(
            points, n_clusters, clusterer, rng, self.trim, weights[known]
        )
        labels = spread_labels(labels, known)
        counted = known.copy()
        counted[known] = kept
        theta = combine_models(
            pool, models, labels, self.combine, weights, counted, options.aggregator
        )
        return Partition(labels, theta.astype(pool.dtype))

    def _train(self, pool, found, options):
        if self.rounds == 0:
            return publish_once(pool, found, client_weights(pool, options))
        return super()._train(pool, found, options)


@everyday
class OneShot(ClustersOfModels, ClustersOnce):
    """One-shot clustering of the clients' local models, of any kind.

    For crisp clusters where rounds are expensive: clusters are found in one exchange. Not for
    clients with too few rows to fit a local model (:class:`IFCA`).

    Every client sends the minimiser of its objective, once; the server clusters these models [1]_.
    With ``rounds=0`` the mean of a cluster's models is its model, and models travel once (ODCL
    [2]_), beside sums for units, penalty and objective; else the models are trained on by
    federated averaging within the clusters, which stay.

    {parameters}

    {attributes}

    See Also
    --------
    OneShotClassifier : The same with a linear classifier or a network.
    OneShotRegressor : The same with a linear regressor or a network.
    ConvexClusteredFL : Models and clusters from one convex problem.
    RobustClusteredFL : The same, robust to false clients.
    IFCA : Clusters by loss, chosen anew in every round.

    Notes
    -----
    Where clients have rows enough that local models are near their cluster's, the error after
    one exchange is of the order of the fit that knows the clusters (the theorem of [2]_). Where
    rows are few, own models are noise, and methods by loss find clusters that this one misses.
    Networks are trained from one common start: two networks with permuted units compute the same
    and are at a large distance. A new client (``assign``, ``adapt``) goes by loss.

    References
    ----------
    .. [1] A. Ghosh, J. Hong, D. Yin, K. Ramchandran. "Robust Federated Learning in a Heterogeneous
       Environment". arXiv:1906.06629, 2019.
    .. [2] A. Armacki, D. Bajovic, D. Jakovetic, S. Kar. "One-Shot Federated Learning for Clustered
       Heterogeneous Models". arXiv:2209.10866, 2022.

    Examples
    --------
    >>> from skcfl import ConvexClustering, OneShot
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> model = LinearModel(alpha=0.01, standardize=False)
    >>> once = OneShot(model, n_clusters=3, rounds=0, random_state=0)
    >>> once.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([4, 4, 4])
    >>> once.calls_  # hello and sizes; the clients' models up, those of the clusters down
    4

    A clusterer that finds the number of clusters:

    >>> convex = OneShot(clusterer=ConvexClustering(), random_state=0)
    >>> convex.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    """

    _: KW_ONLY
    clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "auto"
    trim: float = 0.2
    combine: Literal["mean", "precision"] = "mean"
    rounds: int | Literal["auto"] = "auto"
    pretrain_steps: int | Literal["auto"] = "auto"
