"""Ids in a column of X."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from .._checks import about
from .._typing import Array, ArrayLike, MatrixLike
from ..clients.ids import check_ids, column_position


def ids_in_column(X: MatrixLike, group_col: str | int, names: ArrayLike | None = None) -> Array:
    """Client ids in a column of X.

    Parameters
    ----------
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        Rows.
    group_col : str or int
        Name or position of the column.
    names : array-like of shape (n_features,), default=None
        Names of the columns, if X has none.

    Returns
    -------
    ids : ndarray of shape (n_samples,)
        Validated by ``check_ids``.

    Raises
    ------
    ValueError
        If X has no such column, or it holds something else than ids.
    """
    if not hasattr(X, "shape"):
        with about("X"):
            X = np.asarray(X, dtype=object)  # a list of rows keeps the types of its columns
    if len(X.shape) != 2:
        raise ValueError(
            f"group_col={group_col!r} needs an X of two dimensions, got shape {X.shape}."
        )
    position = column_position(group_col, getattr(X, "columns", names), X.shape[1])
    if sparse.issparse(X):
        ids = sparse.csr_array(X)[:, [position]].toarray().ravel()
    else:
        ids = _safe_indexing(X, position, axis=1)
    return check_ids(ids, name=f"Column group_col={group_col!r} of X")
