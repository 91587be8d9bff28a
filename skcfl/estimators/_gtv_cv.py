"""GTV minimisation, lam chosen by cross-validation."""

from __future__ import annotations

from ..base.docs import document
from ._constructors import cv_constructor
from ._flavours import ClassifierMixin, NeuralMixin, RegressorMixin
from ._gtv import GTVClassifier, GTVRegressor, NodesMixin
from ._lam_cv import FusionCV, LamCV
from ._network_fusion import NetworkFusionMixin

__all__ = ["GTVClassifierCV", "GTVRegressorCV"]


class _GTVCV(NodesMixin, NetworkFusionMixin, FusionCV):
    """What both flavours share."""

    _doc_parameters = {
        "n_lams": f"""\
{LamCV._doc_parameters["n_lams"]}
            Of networks, which are trained anew for each, 8 at most.""",
    }


@document
class GTVClassifierCV(NeuralMixin, ClassifierMixin, _GTVCV):
    """GTV minimisation with linear classifiers or networks, lam by cross-validation.

    {use}

    Rows of every client are held out in turn. On the others models are fitted on the graph over
    ``lam``; the ``lam`` whose models score best on the rows held out is used for all rows, as by
    :class:`GTVClassifier`. That says how far the graph is to be trusted, from models of the
    clients' own, which do not use it, to one model for all that it joins.

    {parameters}

    {attributes}

    See Also
    --------
    GTVClassifier : One value of lam, or one chosen by its clusters.
    ConvexClusteredFLClassifierCV : All pairs of clients compared.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Notes
    -----
    What competes is what ``lam="auto"`` of :class:`GTVClassifier` compares, on folds and with a
    score of the user's choice, and the best mean score wins. Linear models are fitted to a
    thousandth while they are compared, and to ``tol`` in the end. Nodes without rows take part in
    every fold, and are not scored.

    Examples
    --------
    >>> from skcfl import GTVClassifierCV
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> gtv = GTVClassifierCV(5, cv=2, refit=True, random_state=0)
    >>> gtv.fit(data.X, data.y, groups=data.groups).n_clusters_
    2
    >>> gtv.cv_scores_.shape == (2, len(gtv.lams_))
    True
    """

    __init__ = cv_constructor(GTVClassifier)


@document
class GTVRegressorCV(NeuralMixin, RegressorMixin, _GTVCV):
    """GTV minimisation with linear regressions or networks, lam by cross-validation.

    {use}

    Rows of every client are held out in turn. On the others models are fitted on the graph over
    ``lam``; the ``lam`` whose models score best on the rows held out is used for all rows, as by
    :class:`GTVRegressor`. That says how far the graph is to be trusted, from models of the
    clients' own, which do not use it, to one model for all that it joins.

    {parameters}

    {attributes}

    See Also
    --------
    GTVRegressor : One value of lam, or one chosen by its clusters.
    ConvexClusteredFLRegressorCV : All pairs of clients compared.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Notes
    -----
    What competes is what ``lam="auto"`` of :class:`GTVRegressor` compares, on folds and with a
    score of the user's choice, and the best mean score wins. Linear models are fitted to a
    thousandth while they are compared, and to ``tol`` in the end. Nodes without rows take part in
    every fold, and are not scored.

    Examples
    --------
    Two groups of sensors, a weak link between them; nobody has read sensor 3 yet:

    >>> import numpy as np
    >>> from skcfl import GTVRegressorCV
    >>> from skcfl.graphs import chain_graph
    >>> rng = np.random.RandomState(0)
    >>> sensor = np.repeat([0, 1, 2, 4, 5], 20)
    >>> x = rng.normal(size=(100, 1))
    >>> y = np.where(sensor < 3, 2.0, -1.0) * x[:, 0] + 0.5 * rng.normal(size=100)
    >>> graph = chain_graph(6, [1, 1, 0.1, 1, 1])
    >>> gtv = GTVRegressorCV(10, graph=graph, nodes=range(6), refit=True, random_state=0)
    >>> gtv = gtv.fit(x, y, groups=sensor)
    >>> gtv.labels_
    array([0, 0, 0, 1, 1, 1])
    >>> bool(gtv.lam_ == gtv.lams_[gtv.best_index_])
    True
    """

    __init__ = cv_constructor(GTVRegressor)
