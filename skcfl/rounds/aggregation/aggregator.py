"""Common parts of the operators, and their application to all clusters at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from ..._option_objects import Options
from ...numerics.quantiles import between

__all__ = ["Aggregator", "Layout", "aggregate_by_cluster", "median_by_cluster"]

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

    def of_batch(self, messages, known):
        """Vectors (k, p) of messages (k, m, p), with precomputed properties of their weights."""
        return self.aggregate(messages, known.weights)


class Weights(NamedTuple):
    """Weights of the clients of some clusters, and properties of them.

    Attributes
    ----------
    weights : ndarray of shape (k, m)
        Not negative, zero for absent clients.
    there : ndarray of shape (k, m) of bool or None
        Who weighs anything; None if all do.
    sizes : ndarray of shape (k,) or None
        How many do; None if they do not weigh the same in their cluster.
    """

    weights: np.ndarray
    there: np.ndarray | None
    sizes: np.ndarray | None

    @classmethod
    def of(cls, weights):
        """Properties of weights (k, m)."""
        there = weights > 0
        sizes = there.sum(axis=1) if weigh_alike(weights) else None
        return cls(weights, None if there.all() else there, sizes)


class Layout:
    """Positions of the clients of each cluster, so that many clusters are computed together.

    Parameters
    ----------
    labels : ndarray of shape (n,)
        Cluster of each client.
    n_clusters : int
        Number of clusters, K.

    Attributes
    ----------
    single : tuple of ndarray
        Clusters of one client, and these clients.
    batches : list of tuple of ndarray
        ``(clusters, members, there)``: clusters of about the same size, their members (k, m), and
        which of these are no padding, None for all.
    """

    def __init__(self, labels, n_clusters):
        self.labels, self.n_clusters = labels, n_clusters
        order = np.argsort(labels, kind="stable")
        size = np.bincount(labels, minlength=n_clusters)
        first = np.cumsum(size) - size
        one, several = np.flatnonzero(size == 1), np.flatnonzero(size > 1)
        self.single = one, order[first[one]]
        level = np.ceil(np.log2(np.maximum(size, 1))).astype(int)
        if len(several) and len(several) * size.max() <= MOST_PADDING * len(labels):
            level[several] = 0
        self.batches = []
        for one in np.unique(level[several]):
            some = several[level[several] == one]
            places = np.arange(size[some].max())
            there = places < size[some, None]
            members = order[np.where(there, first[some, None] + places, first[some, None])]
            self.batches.append((some, members, None if there.all() else there))
        self.last = None, None

    def is_of(self, labels, n_clusters):
        """True if it is that of such clusters."""
        return n_clusters == self.n_clusters and same_labels(labels, self.labels)

    def weighed(self, weights):
        """Properties of the weights (n,) in each batch, cached for the same array."""
        before, found = self.last
        if weights is not before:
            counted = _alike_without(weights, self.labels, self.n_clusters)[0]
            found = [
                Weights.of(counted[who] if there is None else np.where(there, counted[who], 0.0))
                for _, who, there in self.batches
            ]
            self.last = weights, found
        return found


def same_labels(labels, others):
    """True if two arrays of clusters are the same."""
    return labels is others or labels.tobytes() == others.tobytes()


def aggregate_by_cluster(aggregator, messages, labels, n_clusters, weights, layout=None):
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
        Weights of the clients; where those of a cluster are all zero they count alike. An array
        that a layout was given before is taken to be as it was.
    layout : Layout, default=None
        The layout of these clusters, if it is known.

    Returns
    -------
    vectors : ndarray of shape (K, p), float64
        Zero for clusters without clients.

    Notes
    -----
    Clusters of about the same size are taken together, padded with clients of no weight.
    """
    layout = Layout(labels, n_clusters) if layout is None else layout
    out = np.zeros((n_clusters, messages.shape[1]))
    clusters, members = layout.single
    if len(clusters):
        out[clusters] = messages[members]
    batched = isinstance(aggregator, Aggregator) and aggregator.batched
    known = layout.weighed(weights)
    for (some, members, _), mine in zip(layout.batches, known, strict=True):
        if batched:
            theirs = messages.take(members, axis=0).astype(float, copy=False)
            out[some] = aggregator.of_batch(theirs, mine)
            continue
        for k, who, weight in zip(some, members, mine.weights, strict=True):
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
