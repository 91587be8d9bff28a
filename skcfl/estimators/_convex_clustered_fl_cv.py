"""Convex clustering of clients, lam chosen by cross-validation."""

from __future__ import annotations

from ..base.docs import document
from ._constructors import cv_constructor
from ._convex_clustered_fl import ConvexClusteredFLClassifier, ConvexClusteredFLRegressor
from ._flavours import ClassifierMixin, RegressorMixin
from ._lam_cv import FusionCV

__all__ = ["ConvexClusteredFLClassifierCV", "ConvexClusteredFLRegressorCV"]


@document
class ConvexClusteredFLClassifierCV(ClassifierMixin, FusionCV):
    """Convex clustering federated learning with linear classifiers, lam by cross-validation.

    {use}

    Rows of every client are held out in turn. On the others the path over ``lam`` is solved, every
    solution from the one before; the ``lam`` whose models score best on the rows held out is
    used for all rows, as by :class:`ConvexClusteredFLClassifier`. Between models of the clients'
    own and one model for all, it need not be known which is better.

    {parameters}

    {attributes}

    See Also
    --------
    ConvexClusteredFLClassifier : One value of lam, or one chosen by its clusters.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Notes
    -----
    What competes is what ``lam="auto"`` of :class:`ConvexClusteredFLClassifier` compares, on
    folds and with a score of the user's choice, and the best mean score wins. Models are fitted to
    a thousandth while they are compared, and to ``tol`` in the end. Shrinkage helps to predict
    where clients have few rows, so that the best ``lam`` may form fewer or more clusters than
    there are.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLClassifierCV
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> fusion = ConvexClusteredFLClassifierCV(10, cv=3, random_state=0)
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    2
    >>> fusion.cv_scores_.shape == (3, len(fusion.lams_))
    True
    """

    __init__ = cv_constructor(ConvexClusteredFLClassifier)


@document
class ConvexClusteredFLRegressorCV(RegressorMixin, FusionCV):
    """Convex clustering federated learning with linear regressors, lam by cross-validation.

    {use}

    Rows of every client are held out in turn. On the others the path over ``lam`` is solved, every
    solution from the one before; the ``lam`` whose models score best on the rows held out is
    used for all rows, as by :class:`ConvexClusteredFLRegressor`. Between models of the clients'
    own and one model for all, it need not be known which is better.

    {parameters}

    {attributes}

    See Also
    --------
    ConvexClusteredFLRegressor : One value of lam, or one chosen by its clusters.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Notes
    -----
    What competes is what ``lam="auto"`` of :class:`ConvexClusteredFLRegressor` compares, on
    folds and with a score of the user's choice, and the best mean score wins. Models are fitted to
    a thousandth while they are compared, and to ``tol`` in the end. Shrinkage helps to predict
    where clients have few rows, so that the best ``lam`` may form fewer or more clusters than
    there are.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressorCV
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fusion = ConvexClusteredFLRegressorCV(10, cv=3, random_state=0)
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    >>> fusion.cv_scores_.shape == (3, len(fusion.lams_))
    True
    """

    __init__ = cv_constructor(ConvexClusteredFLRegressor)
