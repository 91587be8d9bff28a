"""Data of false clients."""

from __future__ import annotations

from numbers import Real
from typing import Literal

import numpy as np
from scipy import sparse
from sklearn.utils import Bunch, check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_array

from skcfl._checks import Interval, about, real_array, refuse_missing
from skcfl._typing import Array, ArrayLike, ClientIds, MatrixLike, RandomState, validate_params
from skcfl.clients.ids import check_ids, encode

# How strong the attacks are unless said.
STRENGTH = {"noise": 3.0, "scale_y": 1e6, "scale_X": 1e6}


@validate_params(
    {
        "X": ["array-like", "sparse matrix"],
        "y": ["array-like"],
        "groups": ["array-like"],
        "attack": [StrOptions({"label_flip", "sign_flip", "noise", "scale_y", "scale_X"})],
        "fraction": [Interval(Real, 0, 1, closed="both")],
        "strength": [Interval(Real, 0, None, closed="neither"), None],
        "random_state": ["random_state"],
    }
)
def corrupt(
    X: MatrixLike,
    y: ArrayLike,
    groups: ClientIds,
    *,
    attack: Literal["label_flip", "sign_flip", "noise", "scale_y", "scale_X"] = "label_flip",
    fraction: float = 0.2,
    strength: float | None = None,
    random_state: RandomState = None,
) -> Bunch:
    """Falsify the rows of some clients.

    For attacks on messages in place of rows see :class:`skcfl.federation.Faults`.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        Rows of all clients.
    y : array-like of shape (n_samples,)
        Their targets.
    groups : array-like of shape (n_samples,)
        Id of each row's client.
    attack : {"label_flip", "sign_flip", "noise", "scale_y", "scale_X"}, default="label_flip"
        Kind of corruption of the false clients' rows:

        * "label_flip": the classes in reverse order take the places of the classes;
        * "sign_flip": targets change their sign;
        * "noise": normal noise is added to the features, `strength` times the standard deviation
          of each;
        * "scale_y", "scale_X": targets, or features, are multiplied by `strength`.
    fraction : float, default=0.2
        Share of the clients that are false, rounded.
    strength : float or None, default=None
        Factor or size of the last three; None is 3 for noise, 1e6 for factors.
    random_state : int, RandomState instance or None, default=None
        Seed of the draw of false clients, and of the noise.

    Returns
    -------
    data : Bunch
        With the falsified ``X``, ``y``, ``groups`` as they were, ``false``, the ids of the false
        clients, and ``is_false``, ndarray of shape (n_clients,) of bool aligned with
        ``np.unique(groups)``.

    Raises
    ------
    ValueError
        If lengths differ, or targets are no numbers where numbers are needed.

    Examples
    --------
    >>> from skcfl.datasets import corrupt, make_clustered_regression
    >>> data = make_clustered_regression(n_clients=10, n_clusters=2, random_state=0)
    >>> false = corrupt(data.X, data.y, data.groups, attack="sign_flip", random_state=0)
    >>> false.false
    array(['client02', 'client08'], dtype='<U8')
    """
    with about("X"):
        X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32], copy=True)
    y = np.array(_checked_target(y, X.shape[0], attack in {"sign_flip", "scale_y"}))
    ids, codes = encode(check_ids(groups, X.shape[0], "groups"))
    rng = check_random_state(random_state)
    is_false = np.zeros(len(ids), dtype=bool)
    is_false[rng.permutation(len(ids))[: int(round(fraction * len(ids)))]] = True
    rows = np.flatnonzero(is_false[codes])
    strength = STRENGTH.get(attack) if strength is None else float(strength)
    if attack == "label_flip":
        classes, number = np.unique(y, return_inverse=True)
        y[rows] = classes[::-1][number[rows]]
    elif attack == "sign_flip":
        y[rows] = -y[rows]
    elif attack == "scale_y":
        y[rows] *= strength
    elif attack == "scale_X":
        factors = np.ones((X.shape[0], 1), dtype=X.dtype)
        factors[rows] = strength
        X = sparse.csr_array(X.multiply(factors)) if sparse.issparse(X) else X * factors
    else:
        dense = X.toarray() if sparse.issparse(X) else X
        noise = strength * dense.std(axis=0) * rng.normal(size=(len(rows), X.shape[1]))
        dense[rows] += noise.astype(dense.dtype)
        X = sparse.csr_array(dense) if sparse.issparse(X) else dense
    return Bunch(X=X, y=y, groups=groups, false=ids[is_false], is_false=is_false)


def _checked_target(y: ArrayLike, n_samples: int, numeric: bool) -> Array:
    """Targets, one per row: numbers where numbers are changed, classes elsewhere."""
    if numeric:
        return real_array(y, "y", shape=(n_samples,))
    with about("y"):
        values = np.asarray(y)
        refuse_missing(values)
        check_array(values, ensure_2d=False, dtype=None)
    if values.shape != (n_samples,):
        raise ValueError(f"y must have one class per row, {n_samples}, got shape {values.shape}.")
    return values
