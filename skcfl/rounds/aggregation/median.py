"""The median of each coordinate."""

import numpy as np

from .aggregator import Aggregator, weighted_quantile

__all__ = ["Median", "coordinate_median"]


class Median(Aggregator):
    """The weighted median of each coordinate.

    As long as false clients have less than half of the weight, each coordinate lies between those
    of honest ones [1]_.  Honest messages that are spread unevenly have a median other than their
    mean, which costs some accuracy.

    References
    ----------
    .. [1] D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. "Byzantine-Robust Distributed Learning:
       Towards Optimal Statistical Rates". ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation.median import Median
    >>> Median().aggregate(np.array([[0.0, 5.0], [1.0, 4.0], [1e9, -1e9]]), np.ones(3))
    array([1., 4.])
    """

    name = "median"

    def aggregate(self, messages, weights):
        """Weighted medians."""
        return coordinate_median(messages, weights)


def coordinate_median(messages, weights):
    """Weighted median of each coordinate, (..., m, p) and (..., m) -> (..., p)."""
    across = np.moveaxis(messages, -2, -1)
    there = weights > 0
    heaviest = weights.max(axis=-1, keepdims=True)
    if not np.where(there, weights == heaviest, True).all():
        return weighted_quantile(across, np.broadcast_to(weights[..., None, :], across.shape))
    # Equal weights: who is not there is at the end.
    across = np.sort(np.where(there[..., None, :], across, np.inf), axis=-1)
    n = there.sum(axis=-1)[..., None, None]
    ends = (np.broadcast_to(k, (*across.shape[:-1], 1)) for k in ((n - 1) // 2, n // 2))
    low, high = (np.take_along_axis(across, end, axis=-1)[..., 0] for end in ends)
    return np.where(low == high, low, 0.5 * low + 0.5 * high)
