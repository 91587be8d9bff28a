"""Columns of other rows than a federation has: codes of levels, curves, indicators of classes.

A server says by numbers how columns are made, and each place makes them of its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from .._typing import Array

#: A code of no level.
UNKNOWN = -1.0


def _same(x, *_):
    return x[:, None]


def _codes(x, levels):
    """Position of each value among sorted levels."""
    at = np.searchsorted(levels, x).clip(0, max(len(levels) - 1, 0))
    known = levels[at] == x if len(levels) else np.zeros(len(x), dtype=bool)
    return np.where(known, at, UNKNOWN)[:, None]


#: How columns are made of one column: by name a function of its values and of an array.
MAKERS = {"same": _same, "codes": _codes}


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
    """

    n_features: int
    recipe: list[tuple[str, int, Array]]
    names: list[str]
    n_codes: int = 0

    @property
    def n_columns(self) -> int:
        """New columns."""
        return len(self.names) + self.n_codes

    def made(self, X: Any) -> Array:
        """The new columns of rows."""
        return made_columns(X, self.recipe)

    def codes(self, X: Any) -> Array:
        """The codes of rows, (n_rows, n_codes) of int."""
        return self.made(X)[:, len(self.names) :].astype(np.intp)


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
    if sparse.issparse(X):
        raise ValueError(
            "X must be dense where columns are made of it, by crossed, nested or basis; got a "
            "sparse matrix."
        )
    parts = [MAKERS[name](X[:, column], values) for name, column, values in recipe]
    return np.hstack([np.zeros((X.shape[0], 0)), *parts]).astype(X.dtype, copy=False)
