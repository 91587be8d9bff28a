"""The median of each coordinate."""

import numpy as np

from ...numerics.quantiles import between
from .aggregator import Aggregator, Weights

__all__ = ["Median", "coordinate_median"]


class Median(Aggregator):
    """The weighted median of each coordinate.

    As long as false clients have less than half of the weight, each coordinate lies between the
    honest clients' [1]_.  Honest messages that are spread unevenly have a median other than their
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

    def of_batch(self, messages, known):
        """Medians (k, p)."""
        return _medians(messages, known)


def coordinate_median(messages, weights):
    """Weighted median of each coordinate, (..., m, p) and (..., m) -> (..., p)."""
    *leading, m, p = messages.shape
    found = _medians(messages.reshape(-1, m, p), Weights.of(weights.reshape(-1, m)))
    return found.reshape(*leading, p)


def _medians(x, known):
    """Weighted medians of clusters, (k, m, p) -> (k, p)."""
    weights, there, sizes = known
    m, p = x.shape[1:]
    if sizes is not None and there is None:
        x = np.sort(x, axis=1)
        return x[:, m // 2] if m % 2 else between(x[:, m // 2 - 1], x[:, m // 2])
    each = np.arange(len(x))
    if sizes is not None:
        # Who is not there is at the end.
        x = np.sort(np.where(there[:, :, None], x, np.inf), axis=1)
        return between(x[each, (sizes - 1) // 2], x[each, sizes // 2])
    order, each, of = x.argsort(axis=1), each[:, None], np.arange(p)
    reach = weights.take(order + m * each[:, :, None]).cumsum(axis=1)
    goal, slack = 0.5 * reach[:, -1:], 1e-12 * reach[:, -1:]
    low, high = (reach >= goal - slack).argmax(axis=1), (reach > goal + slack).argmax(axis=1)
    found = x[each, order[each, low, of], of]
    return found if (low == high).all() else between(found, x[each, order[each, high, of], of])
