r"""Principal angles between the subspaces of clients' rows: PACFL.

``U_i`` are the first left singular vectors of client i's (features x rows), of each of its
classes, side by side.  With orthonormal bases ``Q_i`` of their spans, the cosines of the principal
angles of two clients are the singular values of ``Q_i' Q_j`` (Vahidian et al., 2023). All pairs
are compared.
"""

import numpy as np

from .update_groups import cut

__all__ = ["angle_clusters", "joint_dimension", "orthonormal", "principal_angles"]

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


def joint_dimension(Q, most):
    """Dimension of the space of all bases (n, f, q), at most one more than `most`."""
    left = Q.swapaxes(1, 2).reshape(-1, Q.shape[1])
    for k in range(most + 1):
        squares = np.einsum("nf,nf->n", left, left)
        farthest = left[squares.argmax()]
        if squares.max() <= RANK**2:
            return k
        left = left - np.outer(left @ farthest, farthest / squares.max())
    return most + 1


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
    symmetric = others is None
    others, other_dims = (Q, dims) if symmetric else (others, other_dims)
    n_others, n_features, q = others.shape
    side_by_side = others.transpose(1, 0, 2).reshape(n_features, n_others * q)
    out = np.full((len(Q), n_others), 90.0)
    for i, basis in enumerate(Q):
        first = i if symmetric else 0
        M = (basis.T @ side_by_side[:, first * q :]).reshape(basis.shape[1], -1, q).swapaxes(0, 1)
        # Faster than singular values, and as exact: a cosine near 1 hides SAME either way.
        squares = np.linalg.eigvalsh(np.matmul(M, M.swapaxes(1, 2)))[:, ::-1]
        degrees = np.degrees(np.arccos(np.sqrt(np.clip(squares, 0.0, 1.0))))
        degrees[degrees < SAME] = 0.0
        count = np.minimum(dims[i], other_dims[first:])
        there = np.arange(degrees.shape[1]) < count[:, None]
        some = count > 0
        if angle == "smallest":
            away = degrees[:, 0]
        elif angle == "largest":
            away = np.where(there, degrees, 0.0).max(axis=1)
        else:
            away = np.where(there, degrees, 0.0).sum(axis=1) / np.maximum(count, 1)
        out[i, first:][some] = away[some]
        if symmetric:
            out[first:, i] = out[i, first:]
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
