"""Largest shares of the total weight that a client may have."""

from __future__ import annotations

from numbers import Real

import numpy as np

from .._checks import Interval
from .._typing import Array


def check_share(max_share: float | None) -> float | None:
    """The largest share of a client, if it is None or a number above 0 and up to 1."""
    if max_share is None:
        return None
    if not Interval(Real, 0, 1, closed="right").is_satisfied_by(max_share):
        raise ValueError(
            f"max_share must be a number above 0 and up to 1, or None, got {max_share!r}."
        )
    return float(max_share)


def largest_weight(weights: Array, max_share: float) -> float:
    """The weight to cap the clients' weights at so that no client has more than a share of all.

    Parameters
    ----------
    weights : ndarray of shape (n_clients,)
        Not negative.
    max_share : float
        The largest share of the sum of the capped weights.

    Returns
    -------
    most : float

    Raises
    ------
    ValueError
        If there are too few clients for such small shares.
    """
    ordered = np.sort(weights[weights > 0])[::-1]
    n = len(ordered)
    if n * max_share < 1.0:
        raise ValueError(
            f"max_share={max_share} is too small for {n} clients, one of which has a share of "
            f"at least {1.0 / max(n, 1):.3g}."
        )
    # With k clients at the cap c and the others' sum r: c = max_share (k c + r).
    heavier = np.arange(n)
    others = np.cumsum(ordered[::-1])[::-1]
    room = 1.0 - max_share * heavier
    caps = np.divide(max_share * others, room, out=np.full(n, np.inf), where=room > 0)
    # As many are at the cap as weigh more than it; equal shares put all of them there.
    enough = caps >= ordered
    return float(caps[enough.argmax()]) if enough.any() else float(ordered[-1])
