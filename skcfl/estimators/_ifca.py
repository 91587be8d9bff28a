"""IFCA: clients choose the model of least loss, models are updated by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from ..base.everyday import everyday
from ..base.private_plans import refuse_privately, rounds_plan
from ..exceptions import PrivacyError
from ..rounds.choice import LeastLoss
from ._base_rounds import AlternatingClustering


@everyday
class IFCA(AlternatingClustering):
    """Iterative federated clustering (IFCA) with any local model.

    For crisp clusters of clients, with linear models or networks; clients choose their cluster
    by their own loss. Not for clients that differ by degrees, which :class:`PartialPooling`
    predicts better, and not for a proof of the clusters (:class:`ConvexClusteredFL`).

    Each client takes, in every round, the cluster model of least loss on its rows, and sends back
    its choice and a gradient there (or a model trained from there); the server updates each
    cluster's model by those that chose it.  This is Algorithm 1 of [1]_ with both options; by
    default it starts from models drawn by loss among the local models, so that one start nearly
    always finds clusters that are there.

    {parameters}

    {attributes}

    See Also
    --------
    IFCAClassifier : The same with a linear classifier or a network.
    IFCARegressor : The same with a linear regressor or a network.
    FedAvg : One cluster.
    OracleClusters : Clusters known beforehand.

    Notes
    -----
    A client chooses by its mean loss *without* the local penalty, which would draw it to
    short parameter vectors.  A cluster's model minimises the mean of its clients' objectives
    weighted by their rows, the pooled fit.

    With automatic steps a cluster with a rising objective takes its last step again, half as long.

    References
    ----------
    .. [1] A. Ghosh, J. Chung, D. Yin, K. Ramchandran. "An Efficient Framework for Clustered
       Federated Learning". NeurIPS 2020.

    Examples
    --------
    >>> from skcfl import IFCA
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.models import LinearModel
    >>> data = make_clustered_regression(n_clients=12, n_clusters=2, random_state=0)
    >>> ifca = IFCA(LinearModel(loss="huber"), n_clusters=2, random_state=0)
    >>> ifca.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([6, 6])
    """

    _fits_estimators = True
    _parameter_constraints = {"empty_cluster": [StrOptions({"reseed", "keep"})]}

    _: KW_ONLY
    empty_cluster: Literal["reseed", "keep"] = "reseed"
    shared_layers: int | str | Sequence[str] | None = None

    def _private_plan(self, model):
        refuse_privately(self, "shared_layers", None)
        refuse_privately(self, "init", "loss++", "random")
        if isinstance(self.n_clusters, str):
            raise PrivacyError(
                "n_clusters must be a number where clients are private: to search for it would "
                f"release more, got {self.n_clusters!r}."
            )
        return rounds_plan(self, model, self.n_clusters)

    def _rule(self, n_clients, n_clusters, rng):
        return LeastLoss()
