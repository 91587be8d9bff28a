"""Sums and means of messages by cluster, and the numbers of clusters."""

import numpy as np


def numbered(labels):
    """Labels 0..K-1 in the order of first appearance: equal partitions have equal labels."""
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[labels]
