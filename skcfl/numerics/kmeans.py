"""K-means of few short vectors, without scikit-learn's overhead and warnings."""

import numpy as np
from sklearn.cluster import KMeans

from .threads import one_thread

# Starts, and vectors that look for the centres, where there are more.
N_INIT, MAX_VECTORS = 10, 2000
# Distance of two vectors that k-means cannot see, whose squared distances are differences of
# squares: over the larger one's from the mean, and over the longest of all.
SAME, ROUNDING = 1e-7, 16.0 * np.finfo(float).eps


def kmeans(vectors, n_clusters, rng, n_init=N_INIT):
    """K-means of few short vectors: all starts at the same time.

    For some tens of loss vectors nearly all of the time of scikit-learn's ``KMeans`` is spent
    around its loops, hundreds of times a fit.

    Parameters
    ----------
    vectors : ndarray of shape (n, q)
        Vectors to cluster; a sample of at most `MAX_VECTORS` looks for the centres.
    n_clusters : int
        Number of clusters, at most that of different vectors.
    rng : RandomState
        Source of the starts, which k-means++ draws.
    n_init : int
        Starts.

    Returns
    -------
    labels : ndarray of shape (n,)
        Labels of the start with the least inertia.
    inertia : float
        Sum of squared distances to the centres.
    """
    vectors = vectors - vectors.mean(axis=0)
    some = vectors
    if len(vectors) > MAX_VECTORS:
        some = vectors[rng.choice(len(vectors), MAX_VECTORS, replace=False)]
    centres = spread_centres(some, n_clusters, rng, n_init)
    if some is vectors:
        return lloyd(vectors, centres)
    labels, _ = lloyd(some, centres)
    means = [some[labels == k].mean(axis=0) for k in np.unique(labels)]
    return lloyd(vectors, np.array(means)[None])


def long_kmeans(vectors, n_clusters, rng, weights=None):
    """scikit-learn's ``KMeans``, fitted to vectors of any length.

    Finds no more clusters than there are vectors that differ by more than rounding.

    Runs without threads: where vectors are few, they wait for each other ten times as long as they
    work, once a core is taken by somebody else.
    """
    n_clusters = min(n_clusters, count_distinct(vectors))
    with one_thread():
        means = KMeans(n_clusters, n_init=N_INIT, random_state=rng)
        return means.fit(vectors, sample_weight=weights)


def count_distinct(vectors):
    """Number of vectors that differ by more than rounding.

    Vectors are compared along one random direction, which is fast for long ones, with those next
    to them: one that is far from the others does not make these equal.
    """
    vectors = vectors / (np.abs(vectors).max() or 1.0)
    rounding = ROUNDING * np.linalg.norm(vectors, axis=1).max()
    vectors = vectors - vectors.mean(axis=0)
    along = vectors @ np.random.RandomState(0).standard_normal(vectors.shape[1])
    order, sizes = np.argsort(along), np.linalg.norm(vectors, axis=1)
    largest = np.maximum(sizes[order[1:]], sizes[order[:-1]])
    steps = np.diff(along[order]) > np.maximum(SAME * largest, rounding)
    return 1 + int(np.count_nonzero(steps))


def spread_centres(vectors, n_clusters, rng, n_init):
    """Centres of several starts by k-means++, (n_init, n_clusters, q), at the same time."""
    each = np.arange(n_init)
    centres = vectors[rng.randint(len(vectors), size=n_init)][:, None]
    distances = _squares(vectors, centres)[:, 0]
    for _ in range(1, n_clusters):
        reach = np.cumsum(np.maximum(distances, 0.0), axis=1)
        # Some draws in proportion to the squared distances; the best is taken.
        level = rng.uniform(size=(n_init, 2 + int(np.log(n_clusters)))) * reach[:, -1:]
        drawn = np.minimum((reach[:, None] <= level[:, :, None]).sum(axis=2), len(vectors) - 1)
        closer = np.minimum(distances[:, None], _squares(vectors, vectors[drawn]))
        winner = closer.sum(axis=2).argmin(axis=1)
        distances = closer[each, winner]
        centres = np.concatenate([centres, vectors[drawn[each, winner]][:, None]], axis=1)
    return centres


def lloyd(vectors, centres, max_iter=300):
    """Lloyd's iteration from several starts at once.

    Parameters
    ----------
    vectors : ndarray of shape (n, q)
        Vectors to cluster.
    centres : ndarray of shape (n_init, n_clusters, q)
        Starts.
    max_iter : int
        Most iterations.

    Returns
    -------
    labels : ndarray of shape (n,)
        Labels of the start with the least inertia.
    inertia : float
        Sum of squared distances to the centres.
    """
    n_init, n_clusters, _ = centres.shape
    labels, inertia = np.full((n_init, len(vectors)), -1), np.empty(n_init)
    moving = np.arange(n_init)
    for _ in range(max_iter):
        distances = _squares(vectors, centres)
        new, least = distances.argmin(axis=1), distances.min(axis=1)
        changed = (new != labels[moving]).any(axis=1)
        labels[moving], inertia[moving] = new, least.sum(axis=1)
        if not changed.any():
            break
        moving, new, least = moving[changed], new[changed], least[changed]
        member = (new[:, None] == np.arange(n_clusters)[:, None]).astype(float)
        count = member.sum(axis=2, keepdims=True)
        # An empty cluster begins anew at the vector that is served worst.
        worst = vectors[least.argmax(axis=1)][:, None]
        centres = np.where(count > 0, (member @ vectors) / np.maximum(count, 1.0), worst)
    best = int(inertia.argmin())
    return labels[best], max(float(inertia[best]), 0.0)


def _squares(vectors, centres):
    """Squared distances, (n_init, n_clusters, n)."""
    squares = (centres**2).sum(axis=2)[:, :, None] + (vectors**2).sum(axis=1)
    squares -= 2.0 * (centres @ vectors.T)
    return squares
