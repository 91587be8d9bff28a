"""The weighted mean."""

import numpy as np

from .aggregator import Aggregator, total_weight

__all__ = ["Mean"]


class Mean(Aggregator):
    """The weighted mean: one false client can carry it anywhere.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.rounds.aggregation.mean import Mean
    >>> Mean().aggregate(np.array([[0.0], [1.0], [5.0]]), np.array([1.0, 1.0, 2.0]))
    array([2.75])
    """

    name = "mean"

    def aggregate(self, messages, weights):
        """Weighted means."""
        return np.einsum("...m,...mp->...p", weights / total_weight(weights), messages)
