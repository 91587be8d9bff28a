"""Robust clustered federated learning in three stages."""

from __future__ import annotations

from ..base.docs import document
from ._constructors import everyday_constructor, like_constructor
from ._flavours import ClassifierMixin, GenericMixin, NeuralMixin, RegressorMixin
from ._one_shot import OneShot, _OneShot

__all__ = ["RobustClusteredFL", "RobustClusteredFLClassifier", "RobustClusteredFLRegressor"]


class _RobustClusteredFL(_OneShot):
    """The stages of OneShot under defaults that trust nobody."""


@document
class RobustClusteredFL(GenericMixin, _RobustClusteredFL):
    """Clustered federated learning robust to false clients, in three stages, any local model.

    {use}

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
    (``polish="auto"``) fits linear models to the rows of all who are not set aside by
    ``suspicion_``: nothing is lost where no client is false.

    K-geomedians (``clusterer="median"``) tolerate false models among the others, but a model that
    is very far away takes a centre for itself; trimming leaves it out.  What no method of this
    kind can see is a cluster most of whose clients are false, such as a false client alone, or
    false clients who agree and are as many as a cluster.

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
    >>> data = make_clustered_regression(n_clients=24, n_clusters=3, random_state=0)
    >>> lies = corrupt(data.X, data.y, data.groups, attack="scale_y", random_state=0)
    >>> robust = RobustClusteredFL(n_clusters=3, random_state=0)
    >>> robust = robust.fit(lies.X, lies.y, groups=lies.groups)
    >>> honest = ~lies.is_false
    >>> adjusted_rand_score(data.labels[honest], robust.labels_[honest])
    1.0
    >>> bool((robust.suspicion_[lies.is_false] > 1).all())
    True
    """

    __init__ = like_constructor(
        OneShot, clusterer="trimmed", trim=0.25, aggregation="geometric_median"
    )


@document
class RobustClusteredFLClassifier(NeuralMixin, ClassifierMixin, _RobustClusteredFL):
    """Clustered federated learning with classifiers, robust to false clients.

    {use}

    Every client sends its local classifier once, the server clusters them robustly, and fits one
    for each cluster by robust descent [1]_ (see :class:`RobustClusteredFL`).

    {parameters}

    {attributes}

    See Also
    --------
    RobustClusteredFL : The same with any local model, and notes on the method.
    IFCAClassifier : Every client takes the model of least loss; robust with ``aggregation=``.

    References
    ----------
    .. [1] A. Ghosh, J. Hong, D. Yin, K. Ramchandran. "Robust Federated Learning in a Heterogeneous
       Environment". arXiv:1906.06629, 2019.

    Examples
    --------
    >>> from skcfl import RobustClusteredFLClassifier
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> robust = RobustClusteredFLClassifier(n_clusters=2, random_state=0)
    >>> robust.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([6, 6])
    """

    __init__ = everyday_constructor(RobustClusteredFL, ClassifierMixin, NeuralMixin)


@document
class RobustClusteredFLRegressor(NeuralMixin, RegressorMixin, _RobustClusteredFL):
    """Clustered federated learning with regressors, robust to false clients.

    {use}

    Every client sends its local regressor once, the server clusters them robustly, and fits one
    for each cluster by robust descent [1]_ (see :class:`RobustClusteredFL`).

    {parameters}

    {attributes}

    See Also
    --------
    RobustClusteredFL : The same with any local model, and notes on the method.
    IFCARegressor : Every client takes the model of least loss; robust with ``aggregation=``.

    References
    ----------
    .. [1] A. Ghosh, J. Hong, D. Yin, K. Ramchandran. "Robust Federated Learning in a Heterogeneous
       Environment". arXiv:1906.06629, 2019.

    Examples
    --------
    >>> from skcfl import RobustClusteredFLRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> robust = RobustClusteredFLRegressor(n_clusters=3, random_state=0)
    >>> robust.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([4, 4, 4])
    """

    __init__ = everyday_constructor(RobustClusteredFL, RegressorMixin, NeuralMixin)
