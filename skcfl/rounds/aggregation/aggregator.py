"""Common parts of the operators, and their application to all clusters at once."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from ..._option_objects import Options
from ...numerics.quantiles import between

__all__ = ["Aggregator", "aggregate_by_cluster", "median_by_cluster"]

# Squares between which neither they nor those of vectors many orders shorter leave the range.
SAFE = 1e-100, 1e200
# Clusters of all sizes are taken together up to so many times the number of clients.
MOST_PADDING = 2.0


class Aggregator(Options, ABC):
    """Base of the operators, which take many clusters at once; their parameters are options.

    An object of a user needs the method ``aggregate`` for one cluster only, and no base.
    """

    #: Name of the operator in the parameter ``aggregation``.
    name: str
    #: True if ``aggregate`` takes leading axes; clusters are else handed over one by one.
    batched = True

    @abstractmethod
    def aggregate(self, messages, weights):
        """One vector of the messages of each cluster.

        Parameters
        ----------
        messages : ndarray of shape (..., m, p)
            Finite vectors, one per client.
        weights : ndarray of shape (..., m)
            Weights of the clients, not negative, at least one per cluster positive; a client of
            weight 0 is absent.

        Returns
        -------
        vectors : ndarray of shape (..., p)
        """


def batches_of(labels, n_clusters):
    """Clusters of several clients in batches of about the same size, to be computed together.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Cluster of each client.
    n_clusters : int
        Number of clusters, K.

    Yields
    ------
    clusters : ndarray of shape (k,)
        The clusters of a batch.
    members : ndarray of shape (k, m)
        Their clients; the first client of a cluster pads those of fewer clients.
    there : ndarray of shape (k, m) of bool
        False for padding.
    """
    order = np.argsort(labels, kind="stable")
    size = np.bincount(labels, minlength=n_clusters)
    first, several = np.cumsum(size) - size, np.flatnonzero(size > 1)
    level = np.zeros(len(several))
    if len(several) * size.max(initial=0) > MOST_PADDING * len(labels):
        level = np.ceil(np.log2(size[several]))
    for one in sorted(set(level.tolist())):
        some = several[level == one]
        places = np.arange(size[some].max())
        there = places < size[some, None]
        yield some, order[first[some, None] + np.where(there, places, 0)], there


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
    single = np.flatnonzero(np.bincount(labels, minlength=n_clusters)[labels] == 1)
    out[labels[single]] = messages[single]
    batched = isinstance(aggregator, Aggregator) and aggregator.batched
    weights, _ = _alike_without(weights, labels, n_clusters)
    for some, members, there in batches_of(labels, n_clusters):
        theirs = np.where(there, weights[members], 0.0)
        if batched:
            out[some] = aggregator.aggregate(messages[members].astype(float, copy=False), theirs)
            continue
        for k, who, weight in zip(some, members, theirs, strict=True):
            who, weight = who[weight > 0], weight[weight > 0]
            out[k] = aggregator.aggregate(messages[who].astype(float), weight)
    return out


def median_by_cluster(values, labels, n_clusters, weights):
    """Weighted medians of numbers by cluster, (n,) -> (K,), zero for clusters without clients.

    The same as :func:`aggregate_by_cluster` with one number from each client, sorted once.
    """
    weights, total = _alike_without(weights, labels, n_clusters)
    order = np.lexsort((values, labels))
    values, labels = values[order], labels[order]
    reach = np.cumsum(weights[order] / total[labels])
    used = np.flatnonzero(total > 0)
    goal, slack = np.arange(len(used)) + 0.5, 1e-12 * len(used)
    low, high = values[reach.searchsorted(goal - slack)], values[reach.searchsorted(goal + slack)]
    out = np.zeros(n_clusters)
    out[used] = between(low, high)
    return out


def _alike_without(weights, labels, n_clusters):
    """Weights, 1 in clusters where all are zero, and their sums by cluster."""
    total = np.bincount(labels, weights, minlength=n_clusters)
    if (total > 0).all():
        return weights, total
    weights = np.where(total[labels] > 0, weights, 1.0)
    return weights, np.bincount(labels, weights, minlength=n_clusters)


def weigh_alike(weights):
    """True if all clients (..., m) that weigh anything weigh the same in their cluster."""
    heaviest = weights.max(axis=-1, keepdims=True)
    return bool(((weights == heaviest) | (weights <= 0)).all())


def total_weight(weights):
    """Sums of the weights of each cluster, (..., 1)."""
    return weights.sum(axis=-1, keepdims=True)


def lengths(vectors):
    """Euclidean norms, (..., p) -> (...,), without overflow of the squares."""
    with np.errstate(over="ignore"):
        squares = np.einsum("...p,...p->...", vectors, vectors)
    if SAFE[0] < squares.max(initial=0.0) < SAFE[1]:
        return np.sqrt(squares)
    size = np.abs(vectors).max(axis=-1, initial=0.0)
    unit = np.where(size > 0, size, 1.0)
    scaled = vectors / unit[..., None]
    return unit * np.sqrt(np.einsum("...p,...p->...", scaled, scaled)) * (size > 0)
