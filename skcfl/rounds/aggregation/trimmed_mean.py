"""The mean of each coordinate without its ends."""

from functools import lru_cache
from numbers import Real

import numpy as np

from ..._checks import Interval
from .aggregator import Aggregator, Weights, total_weight

__all__ = ["TrimmedMean"]

# Padding for absent clients; zero times it is zero.
FARTHEST = np.finfo(float).max


class TrimmedMean(Aggregator):
    """The mean of each coordinate without the largest and the smallest share of the weight.

    As long as false clients have at most the share `trim` of the weight, each coordinate lies
    between the honest clients' [1]_.

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
    _parameter_constraints = {"trim": [Interval(Real, 0, 0.5, closed="left")]}

    def __init__(self, trim=0.2):
        self.trim = trim

    def aggregate(self, messages, weights):
        """Weighted trimmed means."""
        *leading, m, p = messages.shape
        found = self.of_batch(messages.reshape(-1, m, p), Weights.of(weights.reshape(-1, m)))
        return found.reshape(*leading, p)

    def of_batch(self, messages, known):
        """Trimmed means (k, p)."""
        weights, there, sizes = known
        m, p = messages.shape[1:]
        if sizes is not None:
            if there is not None:
                # Who is not there is at the end.
                messages = np.where(there[:, :, None], messages, FARTHEST)
            kept = _kept_of(self.trim, sizes.tobytes(), m)
            return np.einsum("km,kmp->kp", kept, np.sort(messages, axis=1))
        share = weights / total_weight(weights)
        places = messages.argsort(axis=1) + m * np.arange(len(messages))[:, None, None]
        kept = _kept(self.trim, share.take(places), axis=1)
        return np.einsum("kmp,kmp->kp", kept, messages.take(places * p + np.arange(p)))


def _kept(trim, share, axis):
    """Shares of the weight that remain, in the order of the values."""
    reach = share.cumsum(axis=axis)
    kept = np.minimum(reach, 1 - trim) - np.maximum(reach - share, trim)
    # A kept share that is rounding of the sums of weights counts as zero.
    kept[kept < 1e-12] = 0.0
    return kept / kept.sum(axis=axis, keepdims=True)


@lru_cache(64)
def _kept_of(trim, sizes, m):
    """The same of clients that weigh alike, in clusters of some sizes, padded to m."""
    sizes = np.frombuffer(sizes, dtype=np.intp)[:, None]
    return _kept(trim, np.where(np.arange(m) < sizes, 1.0 / sizes, 0.0), axis=-1)
