r"""Principal angles between the subspaces of clients' rows: PACFL.

``U_i`` are the first left singular vectors of client i's (features x rows), of each of its
classes, side by side.  With orthonormal bases ``Q_i`` of their spans, the cosines of the principal
angles of two clients are the singular values of ``Q_i' Q_j`` (Vahidian et al., 2023).
"""

import numpy as np

from .update_groups import cut

__all__ = ["angle_clusters", "orthonormal", "principal_angles"]

#: Distance of two clients as a function of their principal angles.
ANGLES = ("smallest", "mean", "largest")
# Singular values of unit vectors that are rounding.
RANK = 1e-6
# Degrees below which an angle is the rounding of its cosine.
SAME = 1e-5


def orthonormal(bases):
    """Orthonormal bases of the spans of vectors (n, f, q), and their dimensions (n,)."""
    U, size, _ = np.linalg.svd(bases, full_matrices=False)
    real = size > RANK
    return U * real[:, None, :], real.sum(axis=1)


def principal_angles(Q, dims, others=None, other_dims=None, angle="smallest"):
    """Distances in degrees between subspaces.

    Parameters
    ----------
    Q : ndarray of shape (n, f, q)
        Orthonormal bases, zero beyond their dimension.
    dims : ndarray of shape (n,)
        Dimensions.
    others, other_dims : ndarray, default=None
        Bases to compare with; the same by default.
    angle : {"smallest", "mean", "largest"}
        Which of the principal angles, as many as the smaller dimension.

    Returns
    -------
    degrees : ndarray of shape (n, m)
        90 where a client has no row.
    """
    others, other_dims = (Q, dims) if others is None else (others, other_dims)
    out = np.full((len(Q), len(others)), 90.0)
    for i, own in enumerate(Q):
        cosines = np.linalg.svd(np.matmul(own.T, others), compute_uv=False)
        degrees = np.degrees(np.arccos(np.clip(cosines, 0.0, 1.0)))
        degrees[degrees < SAME] = 0.0
        count = np.minimum(dims[i], other_dims)
        there = np.arange(degrees.shape[1]) < count[:, None]
        some = count > 0
        if angle == "smallest":
            out[i, some] = degrees[some, 0]
        elif angle == "largest":
            out[i, some] = np.where(there, degrees, 0.0).max(axis=1)[some]
        else:
            out[i, some] = np.where(there, degrees, 0.0).sum(axis=1)[some] / count[some]
    return out


def angle_clusters(degrees, n_clusters, threshold, linkage):
    """Hierarchical clusters of distances in degrees, cut at a number or at a threshold.

    A number is at most that of different subspaces: zero distances are not cut.
    """
    n = len(degrees)
    if n == 1 or (threshold is None and n_clusters == 1):
        return np.zeros(n, dtype=np.intp)
    away = 0.5 * (degrees + degrees.T)
    np.fill_diagonal(away, 0.0)
    labels = cut(away, None, linkage, SAME if threshold is None else threshold)
    if threshold is not None or labels.max() < n_clusters:
        return labels
    return cut(away, n_clusters, linkage)
