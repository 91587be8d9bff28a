"""K-means on the rows of one client: the method of Awasthi and Sheffet (2012)."""

import numpy as np
from sklearn.cluster import KMeans

# Starts of k-means in the subspace.
N_INIT = 10
# Ratio of the distances to the second nearest and to the nearest centre, at least.
NEARER = 3.0


def local_kmeans(X, n_clusters, seed, weights=None):
    """Centres of well-separated clusters of rows.

    Rows are projected on their first singular directions and clustered there; rows that are three
    times nearer to their centre than to the second nearest make new centres, from which Lloyd's
    iteration starts on the rows themselves.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    n_clusters : int
        Number of centres, at most the number of different rows.
    seed : int
        Seed of the starts.
    weights : ndarray of shape (n,), default=None
        Positive weights of the rows, 1 by default.

    Returns
    -------
    centres : ndarray of shape (k, d)
    counts : ndarray of shape (k,)
        Total weight of the rows of each centre.
    """
    # A row of weight two is the row twice, in whatever order: different rows, each once.
    X, which = np.unique(X, axis=0, return_inverse=True)
    weights = np.bincount(which.ravel(), weights)
    n_clusters = min(n_clusters, len(X))
    shift = np.average(X, axis=0, weights=weights)
    if n_clusters == 1:
        return shift[None], np.array([weights.sum()])
    X = X - shift
    directions = np.linalg.svd(np.sqrt(weights)[:, None] * X, full_matrices=False)[2][:n_clusters]
    projected = X @ directions.T
    first = KMeans(n_clusters, n_init=N_INIT, random_state=seed)
    first.fit(projected, sample_weight=weights)
    away = np.sort(first.transform(projected), axis=1)
    sure = NEARER * away[:, 0] <= away[:, 1]
    starts = np.empty((n_clusters, X.shape[1]))
    for k in range(n_clusters):
        mine = first.labels_ == k
        mine = mine & sure if (mine & sure).any() else mine
        starts[k] = np.average(X[mine], axis=0, weights=weights[mine])
    last = KMeans(n_clusters, init=starts, n_init=1).fit(X, sample_weight=weights)
    counts = np.bincount(last.labels_, weights, n_clusters)
    return last.cluster_centers_[counts > 0] + shift, counts[counts > 0]
