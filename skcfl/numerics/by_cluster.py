"""Sums and means of messages by cluster, and the numbers of clusters."""

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from .matrices import quotient, slices

# Clusters up to which weighted sums are products of dense matrices, which is faster.
FEW = 32
# Factors of parts, relative to the largest in their cluster, that count as zero: step sizes of
# clients with features in thousands of the unit of others are larger.
ALMOST_NOTHING = 1e-7


def numbered(labels):
    """Labels 0..K-1 in the order of first appearance: equal partitions have equal labels."""
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]


def numbered_by_size(labels):
    """Labels 0..K-1 by decreasing size, then by first member; empty clusters have no number.

    Returns
    -------
    order : ndarray of shape (K,)
        Old number of each new cluster.
    labels : ndarray of shape (n_clients,)
        New numbers.
    """
    present, first, codes, sizes = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.lexsort((first, -sizes))
    return present[order], np.argsort(order)[codes]


def components_of(heads, tails, n):
    """Component of each of n nodes that pairs join, numbered from 0."""
    links = sparse.coo_array((np.ones(len(heads)), (heads, tails)), shape=(n, n))
    return connected_components(links, directed=False)[1]


def membership(labels, n_clusters, weights=None, dtype=float):
    """Sparse matrix (n_clusters, n) that sums by cluster, stored by members."""
    n = len(labels)
    weights = np.ones(n, dtype) if weights is None else np.asarray(weights, dtype)
    return sparse.csc_array((weights, labels, np.arange(n + 1)), shape=(n_clusters, n))


def rows_by_label(labels, at_once=None):
    """Each label that occurs and the positions that have it, at most `at_once` a time."""
    order = np.argsort(labels, kind="stable")
    used, first = np.unique(np.take(labels, order), return_index=True)
    for label, rows in zip(used, np.split(order, first[1:]), strict=False):  # none of no labels
        for some in slices(len(rows), at_once or len(rows)):
            yield label, rows[some]


def order_by_label(labels, n_labels):
    """Positions sorted by label, those of a label in order, in time linear in their number."""
    return membership(labels, n_labels, dtype=np.int8).tocsr().indices


def weight_by_cluster(labels, weights, n_clusters):
    """Total weight of each cluster, as floats: ``np.bincount`` of no labels returns integers."""
    return np.bincount(labels, weights, n_clusters).astype(float)


def sum_by_cluster(messages, labels, n_clusters, weights=None):
    """Sums of clients' messages by cluster, (n, p) -> (n_clusters, p), weighted or not."""
    if weights is None or n_clusters > FEW:
        # Zero times infinity: a client of no weight has no say, and one that diverged is the
        # matter of its cluster only.
        if weights is not None and not np.all(weights):
            some = np.flatnonzero(weights)
            messages, labels, weights = messages[some], labels[some], weights[some]
        return membership(labels, n_clusters, weights, messages.dtype) @ messages
    share = np.zeros((n_clusters, len(labels)), dtype=messages.dtype)
    share[labels, np.arange(len(labels))] = weights
    with np.errstate(over="ignore", invalid="ignore"):
        total = share @ messages
        if not np.isfinite(total).all():
            for k in range(n_clusters):
                mine = np.flatnonzero(share[k])
                total[k] = share[k, mine] @ messages[mine]
    return total


def effective_number(weights):
    """How many equal weights are as even: ``(sum of weights)^2 / sum of squared weights``."""
    weights = weights / np.abs(weights).max()  # squares neither overflow nor vanish
    return np.round(weights.sum() ** 2 / np.square(weights).sum(), 9)


def effective_numbers(weights, labels, n_clusters=0):
    """The same of each cluster, 0 of one without weight."""
    total, squares = (
        weight_by_cluster(labels, some, n_clusters) for some in (weights, np.square(weights))
    )
    # Equal weights are not to fall short by their rounding.
    return np.round(quotient(total**2, squares), 9)


def least_number(parts, units, labels):
    """Least effective number of parts that a cluster is the sum of, infinite if all are empty.

    That of the parts or of the parts in their units, whichever is larger.
    """
    least = np.inf
    for label in np.unique(labels[parts != 0]):
        some = (labels == label) & (parts != 0)
        numbers = effective_number(parts[some]), effective_number(parts[some] / units[some])
        least = min(least, np.nan_to_num(max(numbers)))
    return least


def without_small(parts, sizes, labels):
    """Parts, zero where what they are multiplied by is almost nothing beside others in a cluster.

    Parameters
    ----------
    parts, sizes : ndarray of shape (n,)
        Parts, and what each is multiplied by; NaN is nothing.
    labels : ndarray of shape (n,)
        Cluster of each.

    Returns
    -------
    parts : ndarray of shape (n,)
    """
    sizes = np.where(parts != 0, np.nan_to_num(np.abs(sizes)), 0.0)
    most = np.zeros(int(labels.max(initial=0)) + 1)
    np.maximum.at(most, labels, sizes)
    return np.where(sizes < ALMOST_NOTHING * most[labels], 0.0, parts)


def share_in_cluster(weights, labels, n_clusters=None):
    """Weights over the sum of their cluster, alike in clusters of clients that weigh nothing."""
    n_clusters = int(labels.max()) + 1 if n_clusters is None else n_clusters
    weightless = np.bincount(labels, weights, n_clusters) == 0.0
    weights = np.where(weightless[labels], 1.0, weights)
    return weights / np.bincount(labels, weights, n_clusters)[labels]


def mean_by_cluster(values, labels, weights=None):
    """Means of each cluster, (n, p) -> (K, p), alike in clusters that weigh nothing."""
    if weights is None:
        sizes = np.bincount(labels)
        return sum_by_cluster(values, labels, len(sizes)) / sizes[:, None]
    share = share_in_cluster(weights, labels)
    return sum_by_cluster(values, labels, int(labels.max()) + 1, share)
