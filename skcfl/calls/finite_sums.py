"""Clients with a non-finite part of a sum, found at the site of their rows."""

from math import isfinite

import numpy as np

#: Clients of a block that are looked for where a sum over it is not finite.
MOST_CULPRITS = 32


def are_finite(arrays):
    """True if all numbers of some arrays are finite."""
    arrays = list(arrays)
    if isfinite(sum([float(np.vdot(array, array)) for array in arrays])):
        return True
    # The squares of finite numbers may overflow.
    return all(bool(np.isfinite(array).all()) for array in arrays)


def non_finite(is_finite, n_clients):
    """Clients with a non-finite part of a sum, found by halves at the site of their rows.

    Parameters
    ----------
    is_finite : callable
        ``is_finite(some)``: whether the sum over some clients is, by their positions.
    n_clients : int
        Number of clients.

    Returns
    -------
    bad : ndarray of shape (n_clients,) of bool
        All that were not looked at, too, once it is clear that the model diverged.
    """
    bad = np.zeros(n_clients, dtype=bool)
    looked_at, parts = 0, [np.arange(n_clients)]
    while parts:
        some = parts.pop()
        if is_finite(some):
            looked_at += len(some)
        elif len(some) > 1:
            parts += np.array_split(some, 2)
        else:
            bad[some] = True
            looked_at += 1
        if bad.sum() > max(MOST_CULPRITS, looked_at // 2):
            bad[[client for some in parts for client in some]] = True
            break
    return bad
