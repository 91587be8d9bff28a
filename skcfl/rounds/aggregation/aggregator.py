"""What operators have in common, and how they are applied to all clusters at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

__all__ = ["Aggregator", "aggregate_by_cluster"]

# Squares between which neither they nor those of vectors many orders shorter leave the range.
SAFE = 1e-100, 1e200


class Aggregator(ABC):
    """Base of the operators, which take many clusters at once.

    An object of a user needs the method ``aggregate`` for one cluster only, and no base.
    """

    #: What users call it.
    name: str
    #: Whether it takes a share of false clients.
    trims = False
    #: Whether ``aggregate`` takes leading axes; clusters are else handed over one by one.
    batched = True

    @abstractmethod
    def aggregate(self, messages, weights):
        """One vector of the messages of each cluster.

        Parameters
        ----------
        messages : ndarray of shape (..., m, p)
            Finite vectors, one per client.
        weights : ndarray of shape (..., m)
            Their weights, not negative, of which one per cluster is positive; a client of no
            weight is not there.

        Returns
        -------
        vectors : ndarray of shape (..., p)
        """


def aggregate_by_cluster(aggregator, messages, labels, n_clusters, weights):
    """Aggregate messages by cluster.

    Parameters
    ----------
    aggregator : object
        The operator.
    messages : ndarray of shape (n, p)
        Vectors, one per client.
    labels : ndarray of shape (n,)
        Cluster of each client.
    n_clusters : int
        Number of clusters, K.
    weights : ndarray of shape (n,)
        Weights of the clients; where those of a cluster are all zero they count alike.

    Returns
    -------
    vectors : ndarray of shape (K, p), float64
        Zero for clusters without clients.

    Notes
    -----
    Clusters of about the same size are taken together, padded with clients of no weight.
    """
    out = np.zeros((n_clusters, messages.shape[1]))
    total = np.bincount(labels, weights, minlength=n_clusters)
    weights = np.where(total[labels] > 0, weights, 1.0)
    order = np.argsort(labels, kind="stable")
    size = np.bincount(labels, minlength=n_clusters)
    first = np.cumsum(size) - size
    for k in np.flatnonzero(size == 1):
        out[k] = messages[order[first[k]]]
    if not getattr(aggregator, "batched", False):
        for k in np.flatnonzero(size > 1):
            mine = order[first[k] : first[k] + size[k]]
            mine = mine[weights[mine] > 0]
            out[k] = aggregator.aggregate(messages[mine].astype(float), weights[mine])
        return out
    level = np.ceil(np.log2(np.maximum(size, 1))).astype(int)
    for one in np.unique(level[size > 1]):
        some = np.flatnonzero((level == one) & (size > 1))
        places = np.arange(size[some].max())
        there = places < size[some, None]
        members = order[np.where(there, first[some, None] + places, first[some, None])]
        out[some] = aggregator.aggregate(
            messages[members].astype(float, copy=False), np.where(there, weights[members], 0.0)
        )
    return out


def total_weight(weights):
    """Sums of the weights of each cluster, (..., 1)."""
    return weights.sum(axis=-1, keepdims=True)


def weighted_quantile(values, weights, level=0.5):
    """Quantiles of numbers, (..., m) and (..., m) -> (...,); infinite numbers are the largest.

    Where the weights up to a number are exactly the level it is the mean of it and the next.
    """
    order = np.argsort(values, axis=-1)
    values = np.take_along_axis(values, order, axis=-1)
    reach = np.cumsum(np.take_along_axis(weights, order, axis=-1), axis=-1)
    goal = level * reach[..., -1:]
    slack = 1e-12 * reach[..., -1:]
    low = (reach < goal - slack).sum(axis=-1, keepdims=True)
    high = np.minimum((reach <= goal + slack).sum(axis=-1, keepdims=True), values.shape[-1] - 1)
    low, high = (np.take_along_axis(values, place, axis=-1)[..., 0] for place in (low, high))
    # The mean of a number and itself is that number, even where their sum overflows.
    return np.where(low == high, low, 0.5 * low + 0.5 * high)


def lengths(vectors):
    """Euclidean norms, (..., p) -> (...,), of numbers whose squares overflow, too."""
    with np.errstate(over="ignore"):
        squares = np.einsum("...p,...p->...", vectors, vectors)
    if SAFE[0] < squares.max(initial=0.0) < SAFE[1]:
        return np.sqrt(squares)
    size = np.abs(vectors).max(axis=-1, initial=0.0)
    unit = np.where(size > 0, size, 1.0)
    scaled = vectors / unit[..., None]
    return unit * np.sqrt(np.einsum("...p,...p->...", scaled, scaled)) * (size > 0)
