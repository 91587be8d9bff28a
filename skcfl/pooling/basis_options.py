"""Curves and trees: what a fit of partial pooling may be a sum of besides straight lines."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Literal

from sklearn.utils._param_validation import StrOptions

from .._checks import Interval
from .._option_objects import Options, parameters

__all__ = ["SplineBasis", "TreeBasis"]


@parameters
class SplineBasis(Options):
    """A smooth curve of each numeric feature.

    A value of ``basis`` of :class:`~skcfl.PartialPooling`; "splines" stands for
    ``SplineBasis()``. Features with few different values keep their straight line.

    Parameters
    ----------
    n_knots : int, default=5
        Knots of each curve, at quantiles of the feature over the rows of all clients.
    degree : int, default=3
        Degree of the polynomials between the knots; beyond the outer knots curves are straight.
    random : {"all", "none"}, default="all"
        Whether each client has a curve of its own, shrunken to that of the population, or all
        have the same one.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPoolingRegressor, SplineBasis
    >>> rng = np.random.default_rng(0)
    >>> x, pig = rng.uniform(-3, 3, size=300), np.repeat(np.arange(15), 20)
    >>> y = np.sin(x) + 0.1 * rng.normal(size=300) + 0.1 * pig
    >>> model = PartialPoolingRegressor(basis=SplineBasis(n_knots=7))
    >>> bool(model.fit(x[:, None], y, groups=pig).score(x[:, None], y, groups=pig) > 0.95)
    True
    """

    _parameter_constraints = {
        "n_knots": [Interval(Integral, 3, 50, closed="both")],
        "degree": [Interval(Integral, 1, 5, closed="both")],
        "random": [StrOptions({"all", "none"})],
    }

    n_knots: int = 5
    degree: int = 3
    random: Literal["all", "none"] = "all"


@parameters
class TreeBasis(Options):
    """Trees that all clients share, beside the straight lines of each.

    A value of ``basis`` of :class:`~skcfl.PartialPooling`; "trees" stands for ``TreeBasis()``.
    Trees find steps, and features that act together. They are grown from histograms that are
    summed over the clients, on what the clients' own coefficients do not explain, by Newton's
    method where the loss is not squared error. Names of parameters are those of scikit-learn's
    ``HistGradientBoostingRegressor`` and ``HistGradientBoostingClassifier``.

    Parameters
    ----------
    n_trees : "auto" or int, default="auto"
        Number of trees, with more than two classes of each class. "auto" grows five at a time, up
        to 200, and takes the number with which rows held out inside the clients are predicted
        best. It ends after the first five if they gain nothing, later after twenty without a gain.
    max_leaf_nodes : "auto" or int, default="auto"
        Leaves of a tree at most. "auto" is 8, and after 50 rounds a sixtieth of the rows, from 8
        to 31.
    learning_rate : float, default=0.2
        Part of its least-squares values that each tree adds; of a Newton step with other losses.
    max_bins : int, default=64
        Bins of a feature at most, of about equally many rows; trees split between bins.
    min_samples_leaf : "auto" or int, default="auto"
        Rows of a leaf at least, by their weights. "auto" is a sixtieth of all, from 3 to 20.
    l2_regularization : float, default=1.0
        Rows of residual 0 that each leaf is shrunken by; with other losses a second derivative
        that is added to that of its rows.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl import PartialPoolingRegressor, TreeBasis
    >>> rng = np.random.default_rng(0)
    >>> X, shop = rng.normal(size=(300, 2)), np.repeat(np.arange(10), 30)
    >>> y = np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0) + 0.5 * rng.normal(size=10)[shop]
    >>> model = PartialPoolingRegressor(basis=TreeBasis(n_trees=40, learning_rate=0.3))
    >>> bool(model.fit(X, y, groups=shop).score(X, y, groups=shop) > 0.9)
    True

    Classes:

    >>> from skcfl import PartialPoolingClassifier
    >>> model = PartialPoolingClassifier(basis=model.basis).fit(X, y > 0, groups=shop)
    >>> bool(model.score(X, y > 0, groups=shop) > 0.9)
    True
    """

    _parameter_constraints = {
        "n_trees": [StrOptions({"auto"}), Interval(Integral, 1, 10_000, closed="both")],
        "max_leaf_nodes": [StrOptions({"auto"}), Interval(Integral, 2, 1_000, closed="both")],
        "learning_rate": [Interval(Real, 0, 1, closed="right")],
        "max_bins": [Interval(Integral, 2, 255, closed="both")],
        "min_samples_leaf": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "l2_regularization": [Interval(Real, 0, None, closed="left")],
    }

    n_trees: int | Literal["auto"] = "auto"
    max_leaf_nodes: int | Literal["auto"] = "auto"
    learning_rate: float = 0.2
    max_bins: int = 64
    min_samples_leaf: int | Literal["auto"] = "auto"
    l2_regularization: float = 1.0
