"""The mean of each coordinate without its ends."""

import numpy as np

from .aggregator import Aggregator, total_weight

__all__ = ["TrimmedMean"]


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
        across = np.moveaxis(messages, -2, -1)
        share = weights / total_weight(weights)
        there = weights > 0
        heaviest = weights.max(axis=-1, keepdims=True)
        if np.where(there, weights == heaviest, True).all():
            # Equal weights: who is not there is at the end.
            across = np.sort(np.where(there[..., None, :], across, np.inf), axis=-1)
            share = np.sort(share, axis=-1)[..., None, ::-1]
        else:
            order = np.argsort(across, axis=-1)
            across = np.take_along_axis(across, order, axis=-1)
            share = np.take_along_axis(
                np.broadcast_to(share[..., None, :], across.shape), order, axis=-1
            )
        reach = np.cumsum(share, axis=-1)
        low, high = np.clip(reach - share, self.trim, None), np.clip(reach, None, 1 - self.trim)
        kept = np.maximum(high - low, 0.0)
        # Rounding of the sums of the weights keeps nobody.
        kept[kept < 1e-12] = 0.0
        kept /= kept.sum(axis=-1, keepdims=True)
        return np.einsum(
            "...m,...m->...", np.broadcast_to(kept, across.shape), np.where(kept > 0, across, 0.0)
        )
