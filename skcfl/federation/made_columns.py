"""Columns of other rows than a federation has: codes of levels, curves, indicators of classes.

A server says by numbers how columns are made, and each place makes them of its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import SplineTransformer

from .._typing import Array
from ..numerics.regression_trees import forest_outputs

#: A code of no level.
UNKNOWN = -1.0
#: A curve of more would occupy a site.
MOST_DEGREE, MOST_KNOTS = 5, 100


def _same(x, *_):
    return x[:, None]


def _codes(x, levels):
    """Position of each value among sorted levels."""
    at = np.searchsorted(levels, x).clip(0, max(len(levels) - 1, 0))
    known = levels[at] == x if len(levels) else np.zeros(len(x), dtype=bool)
    return np.where(known, at, UNKNOWN)[:, None]


def _curve(x, values):
    """Cubic or other B-splines without the straight lines, of a degree and knots."""
    if not 1 <= values[0] <= MOST_DEGREE or len(values) > 1 + MOST_KNOTS:
        raise ValueError(
            f"curves have a degree from 1 to {MOST_DEGREE} and at most {MOST_KNOTS} knots."
        )
    if len(x) == 0:
        return np.zeros((0, len(values) + int(values[0]) - 4))
    x = np.asarray(x, dtype=float)
    return spline_of(values).transform(x[:, None]) @ bends(values)


def spline_of(values: Array) -> SplineTransformer:
    """The fitted B-splines of a degree (the first value) and knots (the others)."""
    knots = values[1:, None]
    splines = SplineTransformer(degree=int(values[0]), knots=knots, extrapolation="linear")
    return splines.fit(knots)


def line_of(values: Array) -> Array:
    """Coefficients of B-splines that sum to the straight line of slope 1 through 0."""
    spline = spline_of(values).bsplines_[0]
    t, degree = spline.t, spline.k
    return np.array([t[i + 1 : i + degree + 1].mean() for i in range(len(t) - degree - 1)])


def bends(values: Array) -> Array:
    """Coefficients (n_splines, n_splines - 2) of curves with unit second differences.

    A sum of them with equal normal coefficients is a penalised spline (Eilers and Marx 1996).
    """
    places = line_of(values)
    D = np.zeros((len(places) - 2, len(places)))
    for i in range(len(D)):
        a, b = places[i + 1] - places[i], places[i + 2] - places[i + 1]
        D[i, i : i + 3] = 1.0 / a, -1.0 / a - 1.0 / b, 1.0 / b
    D /= np.abs(D).max()
    return D.T @ np.linalg.inv(D @ D.T)


#: How columns are made of one column: by name a function of its values and of an array.
MAKERS = {"same": _same, "codes": _codes, "curve": _curve}


@dataclass
class Columns:
    """New columns, each made of one of the old ones.

    Attributes
    ----------
    n_features : int
        Old columns.
    recipe : list of (str, int, ndarray)
        Name of a maker, the column, and what the maker takes, in the order of the new columns.
    names : list of str
        Names of the new columns that are features.
    n_codes : int
        New columns at the end that are codes and no features.
    trees : ndarray of shape (n_trees, max_leaf_nodes, 5), default=None
        Trees of the old columns, which are added to models; see
        ``skcfl.numerics.regression_trees``.
    n_outputs : int, default=1
        Outputs of the models, which the trees are of in turn.
    """

    n_features: int
    recipe: list[tuple[str, int, Array]]
    names: list[str]
    n_codes: int = 0
    trees: Array | None = None
    n_outputs: int = 1

    @property
    def sources(self) -> Array:
        """Old column that each new feature is made of."""
        return self._of_features([column for _, column, _ in self.recipe])

    @property
    def is_curve(self) -> Array:
        """Which new features are parts of a curve, and no old feature."""
        return self._of_features([name == "curve" for name, *_ in self.recipe])

    def _of_features(self, values: list[Any]) -> Array:
        """A value of each new feature, of one of each step of the recipe."""
        empty = np.zeros((0, self.n_features))
        widths = [made_columns(empty, [step]).shape[1] for step in self.recipe]
        return np.repeat(values, widths)[: len(self.names)]

    @property
    def n_columns(self) -> int:
        """New columns."""
        return len(self.names) + self.n_codes

    def made(self, X: Any) -> Array:
        """The new columns of rows."""
        return made_columns(X, self.recipe)

    def offset(self, X: Any) -> Array:
        """Values of the trees at rows, (n_rows, n_outputs)."""
        trees = np.zeros((0, 1, 5)) if self.trees is None else self.trees
        return forest_outputs(X, trees, self.n_outputs)

    def codes(self, X: Any) -> Array:
        """The codes of rows, (n_rows, n_codes) of int."""
        return self.made(X)[:, len(self.names) :].astype(np.intp)


def check_dense(X):
    """Raise a ValueError if rows that columns are made of are sparse."""
    if sparse.issparse(X):
        raise ValueError(
            "X must be dense where columns are made of it, by crossed, nested or basis; got a "
            "sparse matrix: take X.toarray()."
        )


def made_columns(X, recipe):
    """Columns that a recipe makes of dense rows.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_features)
        Rows.
    recipe : list of (str, int, ndarray)
        See :class:`Columns`.

    Returns
    -------
    X : ndarray of shape (n_rows, n_columns)
    """
    check_dense(X)
    parts = [MAKERS[name](X[:, column], values) for name, column, values in recipe]
    return np.hstack([np.zeros((X.shape[0], 0)), *parts]).astype(X.dtype, copy=False)
