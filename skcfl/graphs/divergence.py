"""Distances between clients' rows, for graphs that are built before any fit."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from .._checks import real_array
from .._typing import Array, ArrayLike, ClientIds
from ..clients.ids import check_ids, encode

# Distances below this fraction of the rows' spread count as equal: rows that coincide.
COINCIDE = 1e-12


def kl_divergences(X: ArrayLike, groups: ClientIds, k: int = 1) -> tuple[Array, Array]:
    """Estimates of the Kullback-Leibler divergences between the distributions of clients' rows.

    With ``rho_i`` the distance of a client's row to its k-th nearest other row and ``nu_i``
    that to the k-th nearest row of the other client (Perez-Cruz 2008, (14)),

        D(P | Q) ~ d / n sum_i log(nu_i / rho_i) + log(m / (n - 1)).

    Parameters
    ----------
    X : array-like of shape (n_rows, d)
        Rows.
    groups : array-like of shape (n_rows,)
        The client of each row.
    k : int, default=1
        Which neighbour.

    Returns
    -------
    ids : ndarray of shape (n_clients,)
        Clients, sorted.
    divergences : ndarray of shape (n_clients, n_clients)
        Divergence of the client of the row from the client of the column; noisy, and negative if
        they are the same within the noise.
    """
    X = real_array(X, "X", ndim=2)
    if not X.size:
        raise ValueError(f"X must have a row and a column, got shape {X.shape}.")
    # Only ratios of distances count: in units of a power of two their squares do not overflow.
    X = np.ldexp(X, -int(np.frexp(np.abs(X).max())[1]))
    ids, codes = encode(check_ids(groups, len(X)))
    sizes = np.bincount(codes, minlength=len(ids))
    if sizes.min() <= k:
        few = int(sizes.argmin())
        raise ValueError(
            f"Every client in groups needs more than k={k} rows, got {sizes[few]} of "
            f"{ids.tolist()[few]!r}. Lower k, or leave out the client."
        )
    tiny = COINCIDE * max(float(X.std(axis=0).max()), 1e-300)
    logs = np.empty((len(X), len(ids)))
    for j in range(len(ids)):
        # The nearest row of a row of the client itself is that row.
        distance = cKDTree(X[codes == j]).query(X, k=[k, k + 1])[0]
        nearest = np.where(codes == j, distance[:, 1], distance[:, 0])
        logs[:, j] = np.log(np.maximum(nearest, tiny))
    logs -= logs[np.arange(len(X)), codes][:, None]
    mean = np.stack([logs[codes == i].mean(axis=0) for i in range(len(ids))])
    divergences = X.shape[1] * mean + np.log(sizes[None, :] / (sizes[:, None] - 1.0))
    np.fill_diagonal(divergences, 0.0)
    return ids, divergences
