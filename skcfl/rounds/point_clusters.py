"""Clusters of vectors that clients have sent once: k-means and what bears false clients.

============  =====================================================  ==========================
name          least                                                  centre
============  =====================================================  ==========================
``kmeans``    sum of squared distances                               mean
``trimmed``   the same, without the farthest share of the clients    mean of those who are left
``median``    sum of distances                                       geometric median
============  =====================================================  ==========================
"""

import warnings

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning

from .aggregation import GeometricMedian

__all__ = ["cluster_points"]

CLUSTERINGS = ("kmeans", "trimmed", "median")
# Starts by k-means++, and most iterations of each.
N_INIT, MAX_ITER = 10, 100


def cluster_points(points, n_clusters, clusterer="kmeans", rng=None, trim=0.1):
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
        Share of the vectors that "trimmed" leaves out of the means.

    Returns
    -------
    labels : ndarray of shape (n,)
        Clusters 0..K-1.
    kept : ndarray of shape (n,) of bool
        Which vectors count in the centre of their cluster.
    """
    points = np.nan_to_num(np.asarray(points, dtype=float), posinf=0.0, neginf=0.0)
    kept = np.ones(len(points), dtype=bool)
    if not isinstance(clusterer, str):
        return _of_clusterer(points, n_clusters, clusterer, rng), kept
    n_clusters = min(n_clusters, len(np.unique(points, axis=0)))
    if n_clusters == 1 and clusterer != "trimmed":
        return np.zeros(len(points), dtype=np.intp), kept
    if clusterer == "kmeans":
        return KMeans(n_clusters, n_init=N_INIT, random_state=rng).fit_predict(points), kept
    n_kept = len(points)
    if clusterer == "trimmed":
        # Every cluster keeps a point.
        n_kept = max(len(points) - int(trim * len(points)), n_clusters)
    runs = []
    for _ in range(N_INIT):
        # k-means++ spreads the centres over the clusters, but also over what is far from all.
        spread, _ = kmeans_plusplus(points, n_clusters, random_state=rng)
        drawn = points[rng.choice(len(points), n_clusters, replace=False)]
        runs += [_robust_lloyd(points, start, clusterer, n_kept) for start in (spread, drawn)]
    return min(runs, key=lambda run: run[0])[1:]


def _robust_lloyd(points, centres, kind, n_kept):
    """One run from some centres: its cost, labels, and which points count."""
    n_clusters = len(centres)
    power, median = (1, GeometricMedian()) if kind == "median" else (2, None)
    old = None
    for _ in range(MAX_ITER):
        away = cdist(points, centres)
        labels, reach = away.argmin(axis=1), away.min(axis=1)
        kept = np.zeros(len(points), dtype=bool)
        kept[np.argsort(reach, kind="stable")[:n_kept]] = True
        code = np.where(kept, labels, -1)
        if old is not None and np.array_equal(code, old):
            break
        old = code
        for k in range(n_clusters):
            mine = points[code == k]
            if len(mine):
                equal = np.ones(len(mine))
                centres[k] = median.aggregate(mine, equal) if median else mine.mean(axis=0)
    return (reach[kept] ** power).sum(), labels, kept


def _of_clusterer(points, n_clusters, clusterer, rng):
    """Labels of a clusterer of the user's; noise goes to the cluster of the nearest mean."""
    clusterer = clone(clusterer)
    known = clusterer.get_params(deep=False)
    for name in ("n_clusters", "n_components"):
        if name in known and n_clusters is not None:
            clusterer.set_params(**{name: min(n_clusters, len(points))})
    if known.get("random_state", 0) is None:
        clusterer.set_params(random_state=rng.randint(np.iinfo(np.int32).max))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = np.asarray(clusterer.fit_predict(points))
    if labels.shape != (len(points),):
        raise ValueError(
            f"clusterer must label each of the {len(points)} clients, got labels of shape "
            f"{labels.shape} from {type(clusterer).__name__}."
        )
    known = labels >= 0
    if not known.any():
        return np.zeros(len(points), dtype=np.intp)
    labels[known] = np.unique(labels[known], return_inverse=True)[1]
    means = np.array([points[labels == k].mean(axis=0) for k in range(labels.max() + 1)])
    return np.where(known, labels, cdist(points, means).argmin(axis=1))


def finds_number(clusterer):
    """Whether a clusterer finds the number of clusters by itself."""
    if isinstance(clusterer, str):
        return False
    return not {"n_clusters", "n_components"} & clusterer.get_params(deep=False).keys()
