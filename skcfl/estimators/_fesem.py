"""FeSEM: clients go to the nearest model in parameter space."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from .._typing import ArrayLike
from ..base.everyday import everyday
from ..rounds.by_updates import NearestModel, nearest_to_start, trained_means
from ..rounds.round_options import SHARED_ROUNDS, make_options
from ._base_rounds import AlternatingClustering


@everyday
class FeSEM(AlternatingClustering):
    """Federated stochastic expectation maximisation (FeSEM) with any local model.

    For comparison with clusters by loss (:class:`IFCA`): here clients are clustered by the
    distance of their parameters. Not for networks without a common start: their parameters
    cannot be compared.

    Each round has three steps: clients train from the model of their cluster, go to the cluster
    model that is nearest to theirs in parameter space, and the server makes each cluster's model
    the mean of those of its clients [1]_.

    Parameters
    ----------
    init : {"kmeans", "random"} or array of shape (n_clusters, n_params)
        Start of the cluster models. With "kmeans" every client trains some steps from one
        common start, and k-means (k-means++, ten starts) clusters the models: 30 steps of
        linear models, 50 of networks. "random" draws the models, and gives all clients the one
        that is nearest to their common start, which they seldom leave: the published code. An
        array gives the models; clients then train first from their mean.
    n_init : "auto" or int
        Number of starts; the one with the least total loss of its final models is kept. "auto"
        is 1, as k-means has tried ten.

    {attributes}

    See Also
    --------
    FeSEMClassifier : The same with a linear classifier or a network.
    FeSEMRegressor : The same with a linear regressor or a network.
    IFCA : Every client takes the model of least loss.
    OneShot : Clusters of models that clients have trained to the end, once.

    Notes
    -----
    In the published code clients are clustered before they have trained for the first time, when
    all are at their common start and nearest to one and the same model, which they seldom leave:
    an adjusted Rand index of 0 in the tables of those who compare. Here they train first
    (``init="kmeans"``); ``init="random"`` does what the code does.

    Distances of networks mean something only near a common start: two networks with permuted units
    compute the same. A new client (``assign``, ``adapt``) goes by loss.

    References
    ----------
    .. [1] G. Long, M. Xie, T. Shen, T. Zhou, X. Wang, J. Jiang. "Multi-center federated learning:
       clients clustering for better personalization". World Wide Web 26, 2023. arXiv:2108.08647.

    Examples
    --------
    >>> from skcfl import FeSEM
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fesem = FeSEM(LinearModel(loss="huber"), n_clusters=3, random_state=0)
    >>> fesem.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([4, 4, 4])
    """

    _starts = {"kmeans": trained_means, "random": nearest_to_start}

    _parameter_constraints = {
        "init": [StrOptions(set(_starts)), "array-like"],
        "empty_cluster": [StrOptions({"reseed", "keep"})],
    }

    _option_names = {"training": (*SHARED_ROUNDS, "polish")}

    _: KW_ONLY
    init: Literal["kmeans", "random"] | ArrayLike = "kmeans"
    empty_cluster: Literal["reseed", "keep"] = "reseed"

    def _automatic_n_init(self, pool):
        return 1

    def _options_of_rounds(self, pool):
        # Clients always train, and no layer can be left out of a distance.
        return make_options(self, pool, averaging="model")

    def _rule(self, n_clients, n_clusters, rng):
        return NearestModel()
