"""The geometric median, by Weiszfeld's iteration."""

from __future__ import annotations

import numpy as np

from ..._checks import NOT_NEGATIVE, Count
from ..._option_objects import parameters
from .aggregator import Aggregator, lengths
from .median import coordinate_median

__all__ = ["GeometricMedian"]

# Part of a weight by which pulls that balance it differ from it by rounding.
ROUNDING = 1e-12


@parameters
class GeometricMedian(Aggregator):
    r"""The point of the least weighted sum of distances, ``argmin_z sum_i u_i ||x_i - z||``.

    As long as false clients have the share ``b < 1/2`` of the weight, it is within ``2 (1 - b) /
    (1 - 2 b)`` times the honest clients' radius about any point [1]_.  It turns with the
    coordinates.  Between two messages of the same weight it is their middle.  If messages are
    spread alike in all directions, it is hardly less accurate than their mean: the operator to
    begin with.

    Parameters
    ----------
    max_iter : int, default=50
        Most iterations.
    tol : float, default=1e-4
        They end when no point moves by more than this part of the median distance at first; the
        point is at the messages that are as near, and leaves them by the step of [2]_.

    References
    ----------
    .. [1] K. Pillutla, S. M. Kakade, Z. Harchaoui. "Robust Aggregation for Federated Learning".
       IEEE Transactions on Signal Processing 70, 2022.
    .. [2] Y. Vardi, C.-H. Zhang. "The Multivariate L1-median and Associated Data Depth". PNAS
       97(4), 2000.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation.geometric_median import GeometricMedian
    >>> corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [1e9, 0.0]])
    >>> GeometricMedian().aggregate(corners, np.ones(5)).round(3)
    array([0.624, 0.   ])
    """

    name = "geometric_median"
    _parameter_constraints = {"max_iter": [Count(1)], "tol": [NOT_NEGATIVE]}

    max_iter: int = 50
    tol: float = 1e-4

    def aggregate(self, messages, weights):
        """Geometric medians."""
        weights = weights / weights.max(axis=-1, keepdims=True)
        z = coordinate_median(messages, weights)
        least = None
        for _ in range(self.max_iter):
            moves = messages - z[..., None, :]
            away = lengths(moves)
            if least is None:
                least = self.tol * coordinate_median(away[..., None], weights)
            here = away <= least
            pull = np.divide(weights, away, out=np.zeros_like(away), where=~here)
            force = np.einsum("...m,...mp->...p", pull, moves)
            held = (weights * here).sum(axis=-1) / np.maximum(lengths(force), 1e-300)
            step = np.maximum(1.0 - held, 0.0) / np.maximum(pull.sum(axis=-1), 1e-300)
            new = z + step[..., None] * force
            moved, z = lengths(new - z), new
            if (moved <= least[..., 0]).all():
                break
        return self._settled(messages, weights, z)

    @staticmethod
    def _settled(messages, weights, z):
        """A message in the place of a median that nears it, where it is the median.

        It is if the others pull with less than its weight, as they do if it has half of all,
        unless they are on one line with it; steps to it become ever shorter.  Others that are
        tried are the nearest ones.
        """
        near = lengths(messages - z[..., None, :]).argmin(axis=-1)[..., None]
        most = weights.argmax(axis=-1)[..., None]
        heavy = 2.0 * weights.max(axis=-1)[..., None] >= weights.sum(axis=-1)[..., None]
        near = np.where(heavy, most, near)
        at = np.take_along_axis(messages, near[..., None], axis=-2)
        moves = messages - at
        away = lengths(moves)
        pull = np.divide(weights, away, out=np.zeros_like(away), where=away > 0)
        force = lengths(np.einsum("...m,...mp->...p", pull, moves))
        held = (weights * (away == 0)).sum(axis=-1)
        inside = force < (1.0 - ROUNDING) * held
        return np.where(inside[..., None], at[..., 0, :], z)
