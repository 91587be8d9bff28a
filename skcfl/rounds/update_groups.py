r"""Clusters of clients by the updates they send once, from one common start.

``dW_i`` is what client i has moved from the start ``w0`` after some local steps.

EDC (Euclidean distance of decomposed cosine similarity; Duan et al., 2022):

    V = the first K singular directions of (dW_1, ..., dW_n)
    k-means of (cos(dW_i, V_1), ..., cos(dW_i, V_K))

MADC (mean of absolute differences of pairwise cosine similarity; the same paper):

    M_ij = mean over z not in {i, j} of |cos(dW_i, dW_z) - cos(dW_j, dW_z)|
    complete linkage of M

FL+HC (Briggs et al., 2020): hierarchical clustering of the ``dW_i``, after some rounds of FedAvg.
A group's direction is, in all three, the mean of its members' updates; a new client goes to the
group of least ``(1 - cos(dW, direction)) / 2``.
"""

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import pairwise_distances

from ..numerics.by_cluster import mean_by_cluster
from ..numerics.kmeans import long_kmeans

__all__ = ["cosines", "group_updates", "nearest_direction"]


def group_updates(updates, n_clusters, embedding, rng, linkage, metric, threshold):
    """Clusters of clients by their updates.

    Parameters
    ----------
    updates : ndarray of shape (n, p)
        Updates of the clients.
    n_clusters : int or None
        Number of clusters; None with a threshold.
    embedding : {"edc", "madc", "flhc"}
        See above.
    rng : RandomState
        Source of k-means' starts.
    linkage, metric : str
        Of "flhc".
    threshold : float or None
        Of "flhc": where the tree is cut, in medians of the distances of pairs.

    Returns
    -------
    labels : ndarray of shape (n,)
    """
    n = len(updates)
    if n == 1 or (n_clusters == 1 and threshold is None):
        return np.zeros(n, dtype=np.intp)
    if embedding == "edc":
        features = decomposed_cosines(updates, n_clusters)
        return long_kmeans(features, n_clusters, rng).labels_
    if embedding == "madc":
        return cut(absolute_differences(cosines(updates, updates)), n_clusters, "complete")
    if threshold is None and linkage == "ward":
        return AgglomerativeClustering(n_clusters, linkage="ward").fit_predict(updates)
    away = pairwise_distances(updates, metric=metric)
    if threshold is not None:
        threshold *= np.median(away[np.triu_indices(n, 1)])
        if linkage == "ward":
            tree = AgglomerativeClustering(None, linkage="ward", distance_threshold=threshold)
            return tree.fit_predict(updates)
    return cut(away, n_clusters, linkage, threshold)


def cut(away, n_clusters, linkage, threshold=None):
    """Hierarchical clusters of a matrix of distances."""
    tree = AgglomerativeClustering(
        n_clusters if threshold is None else None,
        metric="precomputed",
        linkage=linkage,
        distance_threshold=threshold,
    )
    return tree.fit_predict(away)


def cosines(a, b):
    """Cosines of the angles of the rows of two matrices; zero vectors are at right angles."""
    return _unit(a) @ _unit(b).T


def _unit(vectors):
    vectors = np.asarray(vectors, dtype=float)
    size = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, size, out=np.zeros_like(vectors), where=size > 0)


def decomposed_cosines(updates, n_directions):
    """Cosines of each update with the first singular directions of all, (n, n_directions)."""
    updates = np.asarray(updates, dtype=float)
    # Few clients with many parameters: U s are the coordinates along the directions.
    values, U = np.linalg.eigh(updates @ updates.T)
    first = np.argsort(-values)[:n_directions]
    rounding = len(values) * np.finfo(float).eps * values.max()
    along = U[:, first] * np.sqrt(np.where(values > rounding, values, 0.0)[first])
    size = np.linalg.norm(updates, axis=1, keepdims=True)
    return np.divide(along, size, out=np.zeros_like(along), where=size > 0)


def absolute_differences(C):
    """MADC of clients with these pairwise cosines, (n, n)."""
    n = len(C)
    # Over all z, without the two terms z = i and z = j, with a cosine of 1.
    total = cdist(C, C, "cityblock")
    own = np.abs(np.diag(C)[:, None] - C) + np.abs(C - np.diag(C))
    M = np.maximum(total - own, 0.0) / max(n - 2, 1)
    np.fill_diagonal(M, 0.0)
    return M


def directions_of(updates, labels):
    """Direction of each group: the mean of its members' updates."""
    return mean_by_cluster(np.asarray(updates, dtype=float), labels)


def nearest_direction(updates, directions):
    """Group of the least ``(1 - cos) / 2`` for each update."""
    return cosines(updates, directions).argmax(axis=1)
