"""Centred clipping: a mean of moves that are not longer than a radius."""

from __future__ import annotations

import numpy as np

from ..._checks import POSITIVE, Count
from ..._option_objects import parameters
from .aggregator import Aggregator, lengths
from .median import coordinate_median

__all__ = ["CenteredClipping"]


@parameters
class CenteredClipping(Aggregator):
    r"""The mean of moves from a centre, none longer than a radius, some times over.

    ``v <- v + sum_i u_i (x_i - v) min(1, radius / ||x_i - v||)`` [1]_.  The paper starts from the
    aggregate of the round before; here every round starts from the coordinates' medians, so that
    it needs no memory of rounds in which other clients took part.

    Parameters
    ----------
    radius : float, default=None
        Longest move; None is the weighted median of the distances from the centre.
    n_iter : int, default=3
        How often.

    References
    ----------
    .. [1] S. P. Karimireddy, L. He, M. Jaggi. "Learning from History for Byzantine Robust
       Optimization". ICML 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation.centered_clipping import CenteredClipping
    >>> CenteredClipping().aggregate(np.array([[0.0], [1.0], [2.0], [3.0], [1e9]]), np.ones(5))
    array([2.])
    """

    name = "centered_clipping"
    _parameter_constraints = {"radius": [POSITIVE, None], "n_iter": [Count(1)]}

    radius: float | None = None
    n_iter: int = 3

    def aggregate(self, messages, weights):
        """Clipped means."""
        share = weights / weights.sum(axis=-1, keepdims=True)
        v = coordinate_median(messages, weights)
        for _ in range(self.n_iter):
            v = self.clipped(messages, share, weights, v)
        return v

    def clipped(self, messages, share, weights, v):
        """One iteration from a centre."""
        moves = messages - v[..., None, :]
        away = lengths(moves)
        radius = self.radius
        if radius is None:
            radius = coordinate_median(away[..., None], weights)
        factor = np.minimum(1.0, np.divide(radius, away, out=np.ones_like(away), where=away > 0))
        return v + np.einsum("...m,...mp->...p", share * factor, moves)
