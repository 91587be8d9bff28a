"""Krum: the message with the nearest neighbours."""

from numbers import Real

import numpy as np

from ..._checks import Interval
from .aggregator import Aggregator, lengths

__all__ = ["Krum"]


class Krum(Aggregator):
    """The message of one client: that with the least sum of squared distances to its neighbours.

    Each of m clients, ``f = ceil(trim m)`` of them possibly false, is compared with its ``m - f -
    2`` nearest (at least one) [1]_.  Weights only say which clients are there.  The message of a
    single client is noisier than any mean.

    Parameters
    ----------
    trim : float, default=0.2
        Share of false clients, less than 1/2.

    References
    ----------
    .. [1] P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer. "Machine Learning with
       Adversaries: Byzantine Tolerant Gradient Descent". NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation.krum import Krum
    >>> Krum(0.2).aggregate(np.array([[0.0], [1.0], [1.2], [1.4], [1e9]]), np.ones(5))
    array([1.2])
    """

    name = "krum"
    _parameter_constraints = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim=0.2):
        self.trim = trim

    def aggregate(self, messages, weights):
        """Messages of the clients chosen."""
        out = np.empty((*messages.shape[:-2], messages.shape[-1]))
        for place in np.ndindex(messages.shape[:-2]):
            mine = messages[place][weights[place] > 0]
            out[place] = mine[self.chosen(mine)]
        return out

    def chosen(self, messages):
        """Position of the client chosen among some, (m, p) -> int."""
        m = len(messages)
        if m == 1:
            return 0
        n_neighbours = max(m - int(np.ceil(self.trim * m - 1e-9)) - 2, 1)
        # One row of pairs after the other: their differences would not fit.
        away = np.stack([lengths(messages - one) for one in messages])
        np.fill_diagonal(away, np.inf)
        near = np.sort(away, axis=1)[:, :n_neighbours]
        farthest = near[:, -1]
        unit = farthest.min()
        if unit == 0.0:
            return int(farthest.argmin())
        with np.errstate(over="ignore"):
            return int(((near / unit) ** 2).sum(axis=1).argmin())
