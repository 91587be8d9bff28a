"""Weighted medians."""

import numpy as np


def between(low, high):
    """Mean of the two numbers in the middle; of one and itself that number, whatever its size."""
    return np.where(low == high, low, 0.5 * low + 0.5 * high)


def weighted_median(values, weights):
    """Medians of numbers, (..., m) and (..., m) -> (...,); infinite numbers are the largest.

    If the weights up to a number are exactly half, it is the mean of it and the next.
    """
    order = np.argsort(values, axis=-1)
    values = np.take_along_axis(values, order, axis=-1)
    reach = np.cumsum(np.take_along_axis(weights, order, axis=-1), axis=-1)
    goal = 0.5 * reach[..., -1:]
    slack = 1e-12 * reach[..., -1:]
    low = (reach < goal - slack).sum(axis=-1, keepdims=True)
    high = np.minimum((reach <= goal + slack).sum(axis=-1, keepdims=True), values.shape[-1] - 1)
    low, high = (np.take_along_axis(values, place, axis=-1)[..., 0] for place in (low, high))
    return between(low, high)
