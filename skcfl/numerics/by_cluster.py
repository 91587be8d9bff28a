"""Sums and means of messages by cluster, and the numbers of clusters."""

import numpy as np


def numbered(labels):
    """Labels 0..K-1 in the order of first appearance: equal partitions have equal labels."""
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]


def sum_by_cluster(messages, labels, n_clusters, weights=None):
    """Weighted sums of clients' messages by cluster: (n, p) -> (n_clusters, p)."""
    share = np.zeros((n_clusters, len(labels)), dtype=messages.dtype)
    share[labels, np.arange(len(labels))] = 1.0 if weights is None else weights
    with np.errstate(over="ignore", invalid="ignore"):
        total = share @ messages
        if not np.isfinite(total).all():
            # Zero times infinity: a client that diverged is the matter of its cluster only.
            for k in range(n_clusters):
                mine = np.flatnonzero(share[k])
                total[k] = share[k, mine] @ messages[mine]
    return total
