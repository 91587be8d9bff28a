"""The mean of each coordinate without its ends."""

from functools import lru_cache

import numpy as np

from .aggregator import Aggregator, total_weight, weigh_alike

__all__ = ["TrimmedMean"]

# In the place of those who are not there; zero times it is zero.
FARTHEST = np.finfo(float).max


class TrimmedMean(Aggregator):
    """The mean of each coordinate without the largest and the smallest share of the weight.

    As long as false clients have at most the share `trim` of the weight, each coordinate lies
    between those of honest ones [1]_.

    Parameters
    ----------
    trim : float, default=0.2
        Share that is left out at each end, less than 1/2.

    References
    ----------
    .. [1] D. Yin, Y. Chen, K. Ramchandran, P. Bartlett. "Byzantine-Robust Distributed Learning:
       Towards Optimal Statistical Rates". ICML 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation.trimmed_mean import TrimmedMean
    >>> TrimmedMean(0.25).aggregate(np.array([[0.0], [1.0], [2.0], [1e9]]), np.ones(4))
    array([1.5])
    """

    name = "trimmed_mean"
    trims = True

    def __init__(self, trim=0.2):
        self.trim = trim

    def aggregate(self, messages, weights):
        """Weighted trimmed means."""
        if weigh_alike(weights):
            # Who is not there is at the end.
            there = weights > 0
            if not there.all():
                messages = np.where(there[..., None], messages, FARTHEST)
            sizes = there.sum(axis=-1)
            kept = _kept_of(self.trim, tuple(sizes.ravel()), there.shape[-1])
            kept = kept.reshape(there.shape)
            return np.einsum("...m,...mp->...p", kept, np.sort(messages, axis=-2))
        share = weights / total_weight(weights)
        order = np.argsort(messages, axis=-2)
        share = np.take_along_axis(
            np.broadcast_to(share[..., None], messages.shape), order, axis=-2
        )
        kept = _kept(self.trim, share, axis=-2)
        return np.einsum("...mp,...mp->...p", kept, np.take_along_axis(messages, order, axis=-2))


def _kept(trim, share, axis):
    """What is left of shares of the weight, in the order of the values."""
    reach = np.cumsum(share, axis=axis)
    low, high = np.clip(reach - share, trim, None), np.clip(reach, None, 1 - trim)
    kept = np.maximum(high - low, 0.0)
    # Rounding of the sums of the weights keeps nobody.
    kept[kept < 1e-12] = 0.0
    return kept / kept.sum(axis=axis, keepdims=True)


@lru_cache(64)
def _kept_of(trim, sizes, m):
    """The same of clients that weigh alike, in clusters of some sizes, padded to m."""
    sizes = np.array(sizes)[:, None]
    return _kept(trim, np.where(np.arange(m) < sizes, 1.0 / sizes, 0.0), axis=-1)
