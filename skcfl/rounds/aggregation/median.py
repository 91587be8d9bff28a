"""The median of each coordinate."""

import numpy as np

from .aggregator import Aggregator, between, weigh_alike

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
    *leading, m, p = messages.shape
    x, weights = messages.reshape(-1, m, p), weights.reshape(-1, m)
    each = np.arange(len(x))[:, None]
    if weigh_alike(weights):
        there = weights > 0
        n = there.sum(axis=1)
        # Who is not there is at the end.
        x = np.sort(x if (n == m).all() else np.where(there[:, :, None], x, np.inf), axis=1)
        low, high = x[each[:, 0], (n - 1) // 2], x[each[:, 0], n // 2]
    else:
        order = np.argsort(x, axis=1)
        reach = np.cumsum(weights[each[:, :, None], order], axis=1)
        goal, slack = 0.5 * reach[:, -1:], 1e-12 * reach[:, -1:]
        ends = (reach >= goal - slack).argmax(axis=1), (reach > goal + slack).argmax(axis=1)
        of = np.arange(p)
        low, high = (x[each, order[each, end, of], of] for end in ends)
    return between(low, high).reshape(*leading, p)
