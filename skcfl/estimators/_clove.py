"""CLoVE: clients with alike vectors of losses share a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Literal

from sklearn.utils._param_validation import HasMethods, StrOptions

from .._typing import Clusterer
from ..base.everyday import everyday
from ..rounds.loss_clusters import EMBEDDINGS, LossClusters
from ..rounds.model_kinds import kind_of
from ..rounds.round_options import ROUNDS
from ._base_rounds import AlternatingClustering


@everyday
class CLoVE(AlternatingClustering):
    """Clustering of loss vector embeddings (CLoVE) with any local model.

    For crisp clusters of clients, with linear models or networks, where good starts for the
    cluster models are hard to find. Not for clients that differ by degrees, which
    :class:`PartialPooling` predicts better, and not for a proof of the clusters
    (:class:`ConvexClusteredFL`).

    Each client sends, in every round, its vector of losses under all cluster models; the server
    clusters these vectors, matches the clusters with the models at the least total loss, and
    updates each model by the clients of its cluster.  This is Algorithm 1 of [1]_ with both
    options of averaging.  Unlike IFCA, it needs no start near the clusters' models: clients that
    are alike have alike losses under *any* models.

    Parameters
    ----------
    n_init : "auto" or int
        Number of starts; the one with the least total loss of its final models is kept. "auto"
        is 3 for linear models with ``init="loss++"``, else 1, as in the paper.

    {attributes}

    See Also
    --------
    CLoVEClassifier : The same with a linear classifier or a network.
    CLoVERegressor : The same with a linear regressor or a network.
    IFCA : Every client takes the model of least loss.
    FedAvg : One cluster, which is CLoVE with ``n_clusters=1``.

    Notes
    -----
    Losses are the mean losses of the clients' rows without the local penalty.  Losses that are no
    numbers, of a model that diverged, count as ten times the largest of that model.  K-means
    starts from the partition before and, until that has held for three rounds, ten times anew;
    the best is taken.  Under partial participation it clusters the last known vectors of
    all clients, and the fit ends with a round in which all clients answer.

    Vectors that are all the same (equal starts, centred) say nothing: the clients are then dealt
    to the models by chance.

    References
    ----------
    .. [1] R. Bhatia, N. Papadis, M. Kodialam, T. V. Lakshman, S. Chakrabarty. "CLoVE: Personalized
       Federated Learning through Clustering of Loss Vector Embeddings". arXiv:2506.22427, 2025.

    Examples
    --------
    >>> from skcfl import CLoVE
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> clove = CLoVE(LinearModel(loss="huber"), n_clusters=3, random_state=0)
    >>> clove.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([4, 4, 4])
    """

    _fits_estimators = True
    _parameter_constraints = {
        "embedding": [StrOptions(set(EMBEDDINGS))],
        "clusterer": [HasMethods(["fit_predict", "get_params", "set_params"]), None],
    }
    _option_names = {"training": (*ROUNDS, "hold_out")}

    _: KW_ONLY
    embedding: Literal["log", "sqrt", "raw", "centered"] = "log"
    clusterer: Clusterer | None = None
    shared_layers: int | str | Sequence[str] | None = None

    def _automatic_n_init(self, pool):
        return kind_of(pool).n_init if self.init == "loss++" else 1

    def _rule(self, n_clients, n_clusters, rng):
        return LossClusters(
            n_clients,
            n_clusters,
            rng,
            embedding=self.embedding,
            clusterer=self.clusterer,
            robust=not (isinstance(self.aggregation, str) and self.aggregation == "mean"),
        )
