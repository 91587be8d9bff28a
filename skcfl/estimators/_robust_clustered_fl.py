"""Robust clustered federated learning in three stages."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Literal

from .._typing import Aggregation, Clusterer
from ..base.everyday import everyday
from ._base_once import ClustersOnce
from ._one_shot import ClustersOfModels


@everyday
class RobustClusteredFL(ClustersOfModels, ClustersOnce):
    """Clustered federated learning robust to false clients, in three stages, any local model.

    For crisp clusters where some clients may send false (Byzantine) models. Not where all
    clients are honest: :class:`OneShot` is the same without what honest clients do not
    need.

    #. Every client sends the minimiser of its own objective (networks: a model trained from a
       common start).
    #. The server clusters these by trimmed k-means, or by K-geomedians.
    #. The models of the clusters are trained in rounds, each by robust descent: a robust operator
       takes the place of the mean of a cluster's clients.

    This is the algorithm of [1]_; each stage can be chosen separately.

    {parameters}

    {attributes}

    See Also
    --------
    RobustClusteredFLClassifier : The same with a linear classifier or a network.
    RobustClusteredFLRegressor : The same with a linear regressor or a network.
    OneShot : The same stages, trusting all clients.
    IFCA : Clusters by loss, chosen anew in every round; with ``aggregation=`` robust, too.

    Notes
    -----
    With ``aggregation="trimmed_mean"`` and without polishing the error of a cluster's model is of
    the order ``trim / sqrt(n) + 1 / sqrt(n m)`` of n rows per client and m clients per cluster, as
    long as the share of false clients in it is at most `trim` [1]_ [2]_.  Polishing
    (``Training(polish="auto")``) fits linear models to the rows of all who are not set aside by
    ``suspicion_``: nothing is lost where no client is false.

    K-geomedians (``clusterer="median"``) tolerate false models among the others, but a model that
    is very far away takes a centre for itself; trimming leaves it out.  No method of this kind can
    see a cluster with a majority of false clients, such as a cluster of one false client, or false
    clients that agree and are as many as a cluster.

    References
    ----------
    .. [1] A. Ghosh, J. Hong, D. Yin, K. Ramchandran. "Robust Federated Learning in a Heterogeneous
       Environment". arXiv:1906.06629, 2019.
    .. [2] D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. "Byzantine-Robust Distributed Learning:
       Towards Optimal Statistical Rates". ICML 2018.

    Examples
    --------
    >>> from sklearn.metrics import adjusted_rand_score
    >>> from skcfl import RobustClusteredFL
    >>> from skcfl.datasets import corrupt, make_clustered_regression
    >>> data = make_clustered_regression(n_clients=15, n_clusters=3, random_state=0)
    >>> lies = corrupt(data.X, data.y, data.groups, attack="scale_y", random_state=0)
    >>> robust = RobustClusteredFL(n_clusters=3, random_state=0)
    >>> robust = robust.fit(lies.X, lies.y, groups=lies.groups)
    >>> honest = ~lies.is_false
    >>> adjusted_rand_score(data.labels[honest], robust.labels_[honest])
    1.0
    >>> bool((robust.suspicion_[lies.is_false] > 1).all())
    True
    """

    _: KW_ONLY
    clusterer: Literal["auto", "kmeans", "trimmed", "median"] | Clusterer = "trimmed"
    trim: float = 0.25
    aggregation: Aggregation = "geometric_median"
    combine: Literal["mean", "precision"] = "mean"
    rounds: int | Literal["auto"] = "auto"
    pretrain_steps: int | Literal["auto"] = "auto"
