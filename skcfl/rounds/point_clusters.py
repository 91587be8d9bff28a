"""Clusters of vectors that clients have sent once: k-means and what bears false clients.

============  =====================================================  ==========================
name          least                                                  centre
============  =====================================================  ==========================
``kmeans``    sum of squared distances                               mean
``trimmed``   the same, without the farthest of the clients          mean of those who are left
``median``    sum of distances                                       geometric median
============  =====================================================  ==========================

Trimming by a fixed share [1]_ takes small clusters for false clients: where one has fewer clients
than the share, leaving it out and splitting another costs less.  So fewer are left out if that
does as well: the distance to its centre within which all but the share lie, as in the least
quantile of squares [2]_, is a little larger at most.

References
----------
.. [1] J. A. Cuesta-Albertos, A. Gordaliza, C. Matran. "Trimmed k-means: an attempt to robustify
   quantizers". Annals of Statistics 25, 1997.
.. [2] P. J. Rousseeuw. "Least Median of Squares Regression". Journal of the American Statistical
   Association 79, 1984.
"""

import numpy as np
from scipy.spatial.distance import cdist

from ..numerics.kmeans import N_INIT, long_kmeans, spread_centres
from ..numerics.matrices import count_different, slices
from .aggregation import GeometricMedian, aggregate_by_cluster
from .loss_clusters import labels_of_clusterer

__all__ = ["cluster_points"]

CLUSTERINGS = ("kmeans", "trimmed", "median")
# Largest number of iterations of each start.
MAX_ITER = 100
# Share of the points, those nearest to the middle, among which some of the starts are drawn.
NEAR = 0.75
# Distance, over the least that any number left out gives, at which fewer are left out.
SLACK = 1.25
# Distance from the middle, over the median and the size of the middle, of what is always left out,
# and its least part from the nearest other point: networks of a cluster are not much nearer.
FAR, BY_ITSELF = 1000.0, 0.1
# Largest coordinates with squares that can be summed.
FARTHEST = 1e70
# Relative difference of distances that are equal.
ROUNDING = 1e-9
# Distances of points from the centres of some runs that are held at once.
MAX_DISTANCES = 10_000_000


def cluster_points(points, n_clusters, clusterer="kmeans", rng=None, trim=0.1, weights=None):
    """Cluster vectors.

    Parameters
    ----------
    points : ndarray of shape (n, q)
        The vectors; those that are not finite count as zero.
    n_clusters : int or None
        Number of clusters; None leaves it to a clusterer that finds it.
    clusterer : str or clusterer, default="kmeans"
        A name of `CLUSTERINGS`, or a clusterer of scikit-learn, which is cloned.
    rng : RandomState, default=None
        Source of the starts.
    trim : float, default=0.1
        Share of the vectors that "trimmed" leaves out of the means; clusters are found without as
        many of them as is needed.
    weights : ndarray of shape (n,), default=None
        Weights of the vectors in "kmeans".

    Returns
    -------
    labels : ndarray of shape (n,)
        Clusters 0..K-1.
    kept : ndarray of shape (n,) of bool
        Which vectors count in the centre of their cluster.
    """
    points = np.nan_to_num(np.asarray(points, dtype=float), posinf=0.0, neginf=0.0)
    points = np.clip(points, -FARTHEST, FARTHEST)
    kept = np.ones(len(points), dtype=bool)
    if not isinstance(clusterer, str):
        return _of_clusterer(points, n_clusters, clusterer, rng), kept
    n_clusters = min(n_clusters, count_different(points))
    if n_clusters == 1 and clusterer != "trimmed":
        return np.zeros(len(points), dtype=np.intp), kept
    if clusterer == "kmeans":
        return long_kmeans(points, n_clusters, rng, weights).labels_, kept
    # k-means++ spreads the centres over the clusters, but also over outliers; among the points
    # nearest to the middle of all it does not.
    middle = np.median(points, axis=0)
    reach = np.linalg.norm(points - middle, axis=1)
    near = points[np.argsort(reach, kind="stable")[: max(int(NEAR * len(points)), n_clusters)]]
    starts = [
        middle + spread_centres(some - middle, n_clusters, rng, N_INIT) for some in (points, near)
    ]
    drawn = [rng.choice(len(points), n_clusters, replace=False) for _ in range(N_INIT)]
    starts = np.concatenate([*starts, points[drawn]])
    if clusterer == "trimmed":
        # Every cluster keeps a point.
        most = min(int(trim * len(points)), len(points) - n_clusters)
        return _trimmed(points, starts, most, reach, np.linalg.norm(middle))
    runs = [_geomedian_lloyd(points, start) for start in starts]
    return min(runs, key=lambda run: run[0])[1], kept


def _trimmed(points, starts, most, reach, size):
    """Labels, and which points count, of trimmed k-means that leaves out as few as it needs.

    `reach` has the distances from the middle of all points, and `size` is the length of that.
    """
    n = len(points)
    far = reach > FAR * max(np.median(reach), size)
    if far.any():  # others near one that is far are its cluster
        away = np.sort(cdist(points[far], points), axis=1)[:, 1]
        far[far] = away > BY_ITSELF * reach[far]
    least = min(int(far.sum()), most)
    numbers = [least, *(2**k for k in range(n.bit_length()) if least < 2**k < most), most]
    runs = [_trimmed_lloyd(points, starts, n - number) for number in dict.fromkeys(numbers)]
    # Distances to the nearest centre within which all but `most` are.
    goals = [np.sort(reach)[n - most - 1] for _, reach in runs]
    labels, reach = next(
        run for run, goal in zip(runs, goals, strict=True) if goal <= SLACK * min(goals)
    )
    return np.unique(labels, return_inverse=True)[1], _least(reach[None], n - most)[0]


def _trimmed_lloyd(points, starts, n_kept):
    """Labels and distances to the centres of the best run of trimmed k-means, all at once."""
    n, n_clusters = len(points), starts.shape[1]
    best = None
    size = max(MAX_DISTANCES // (n * n_clusters), 1)
    for some in slices(len(starts), size):
        centres = starts[some].copy()
        code = np.full((len(centres), n), -2)  # the cluster, -1 if it does not count
        labels, reach = np.zeros(code.shape, dtype=np.intp), np.zeros(code.shape)
        moving = np.arange(len(centres))
        for _ in range(MAX_ITER):
            away = cdist(points, centres[moving].reshape(-1, points.shape[1]))
            away = away.reshape(n, -1, n_clusters)
            labels[moving], reach[moving] = away.argmin(axis=2).T, away.min(axis=2).T
            new = np.where(_least(reach[moving], n_kept), labels[moving], -1)
            changed = (new != code[moving]).any(axis=1)
            moving, new = moving[changed], new[changed]
            if not len(moving):
                break
            code[moving] = new
            member = (new[:, None] == np.arange(n_clusters)[:, None]).astype(float)
            count = member.sum(axis=2, keepdims=True)
            means = (member @ points) / np.maximum(count, 1.0)
            centres[moving] = np.where(count > 0, means, centres[moving])
        cost = np.where(code >= 0, reach**2, 0.0).sum(axis=1)
        least = int(cost.argmin())
        if best is None or cost[least] < best[0]:
            best = cost[least], labels[least], reach[least]
    return best[1:]


def _least(values, number):
    """Mask of the least values of each row of a matrix, as many as `number`, the first of ties.

    The two points of a cluster are equally far from their mean, but for rounding.
    """
    last = np.partition(values, number - 1, axis=1)[:, number - 1 : number]
    ties = np.abs(values - last) <= ROUNDING * last
    least = (values < last) & ~ties
    return least | ties & (ties.cumsum(axis=1) <= number - least.sum(axis=1, keepdims=True))


def _geomedian_lloyd(points, centres):
    """Sum of distances and labels of one run of K-geomedians from some centres."""
    old, median = None, GeometricMedian()
    for _ in range(MAX_ITER):
        away = cdist(points, centres)
        labels = away.argmin(axis=1)
        if old is not None and np.array_equal(labels, old):
            break
        old = labels
        centres = np.where(
            (np.bincount(labels, minlength=len(centres)) > 0)[:, None],
            aggregate_by_cluster(median, points, labels, len(centres), np.ones(len(points))),
            centres,
        )
    return away.min(axis=1).sum(), labels


def _of_clusterer(points, n_clusters, clusterer, rng):
    """Labels of a clusterer of the user's; noise goes to the cluster of the nearest mean."""
    labels = labels_of_clusterer(clusterer, points, n_clusters, rng, "clients")
    known = labels >= 0
    if not known.any():
        return np.zeros(len(points), dtype=np.intp)
    means = np.array([points[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return np.where(known, labels, cdist(points, means).argmin(axis=1))


def finds_number(clusterer):
    """True if a clusterer finds the number of clusters by itself."""
    if isinstance(clusterer, str):
        return False
    return not {"n_clusters", "n_components"} & clusterer.get_params(deep=False).keys()
