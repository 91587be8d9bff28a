"""k-FED's server: clusters of the centres that clients have found in their own rows.

Dennis, Li and Smith (2021), Algorithm 2: begin with the centres of one client, add the centre that
is farthest from all until there are k, and assign every client's centres to the nearest, once.
"""

import numpy as np
from scipy.spatial.distance import cdist

from ..numerics.by_cluster import mean_by_cluster

__all__ = ["merge_centres"]


def merge_centres(centres, counts, n_clusters, whole_client):
    """Clusters of all clients' centres.

    Parameters
    ----------
    centres : ndarray of shape (n, h, d)
        The clients' centres.
    counts : ndarray of shape (n, h)
        Rows of each; zero where there is none.
    n_clusters : int
        Number of clusters, k.
    whole_client : bool
        If True, begin with all centres of the client with most rows, as the paper does; else with
        the one centre of most rows, which does no harm where clients have found more centres than
        they have clusters.

    Returns
    -------
    labels : ndarray of shape (n, h)
        Cluster of each centre; -1 where there is none.
    merged : ndarray of shape (k, d)
        Mean of each cluster's rows.
    """
    real = counts > 0
    points, sizes = centres[real], counts[real]
    if whole_client:
        one = int(counts.sum(axis=1).argmax())
        chosen = np.flatnonzero(np.nonzero(real)[0] == one)[:n_clusters]
    else:
        chosen = np.array([sizes.argmax()])
    away = cdist(points, points[chosen]).min(axis=1)
    while len(chosen) < n_clusters and away.max() > 0:
        chosen = np.append(chosen, away.argmax())
        away = np.minimum(away, cdist(points, points[chosen[-1:]])[:, 0])
    nearest = cdist(points, points[chosen]).argmin(axis=1)
    nearest = np.unique(nearest, return_inverse=True)[1]
    labels = np.full(counts.shape, -1)
    labels[real] = nearest
    return labels, mean_by_cluster(points, nearest, sizes)
