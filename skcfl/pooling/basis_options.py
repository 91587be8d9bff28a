"""Curves in the place of straight lines: what a fit of partial pooling may be a sum of."""

from __future__ import annotations

from numbers import Integral
from typing import Literal

from sklearn.utils._param_validation import Interval, StrOptions

from .._option_objects import Options

__all__ = ["SplineBasis"]


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

    def __init__(
        self, n_knots: int = 5, degree: int = 3, random: Literal["all", "none"] = "all"
    ) -> None:
        self.n_knots = n_knots
        self.degree = degree
        self.random = random
