"""Products of batches of small matrices, slices of wide and long ones, factors of sparse ones."""

from hashlib import blake2b

import numpy as np
from scipy.sparse.linalg import splu


def factor(A, order="MMD_AT_PLUS_A"):
    """Factorisation of a sparse matrix that needs no pivoting, as a positive definite one.

    A symmetric order of its unknowns leaves half the entries of the usual one and takes a
    quarter of its time on graphs of nearest neighbours.
    """
    return splu(A, permc_spec=order, diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def quotient(a, b):
    """``a / b``, and zero where `b` is not positive."""
    return np.divide(a, b, out=np.zeros_like(a if np.ndim(a) else b), where=b > 0)


def sandwich(root, H):
    """``L' H L`` of a batch (c, p, p); a root L of one axis is a diagonal."""
    if root.ndim == 1:
        return H * (root[:, None] * root)
    return np.matmul(root.T, np.matmul(H, root))


def product(matrices, v):
    """Products of a batch of matrices (c, m, p) with a vector (c, p) each: (c, m)."""
    return np.matmul(matrices, v[:, :, None])[:, :, 0]


def slices(n, size):
    """Slices of 0..n, of at most `size` each."""
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def columns_of(mask):
    """Index of the columns of a mask (p,): a slice, which copies nothing, if they are in a row.

    Parameters
    ----------
    mask : ndarray of shape (p,) of bool
        Columns.

    Returns
    -------
    columns : slice or ndarray
    """
    return in_a_row(np.flatnonzero(mask))


def in_a_row(places):
    """Index of some places (m,): a slice, which copies nothing, if they are in a row.

    Parameters
    ----------
    places : ndarray of shape (m,) of int
        At most once each.

    Returns
    -------
    index : slice or ndarray
    """
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def count_different(rows):
    """Number of different rows of a matrix; unlike ``numpy.unique`` also fast for long rows."""
    rows = np.ascontiguousarray(rows) + 0.0  # of -0.0 too
    return len({blake2b(row).digest() for row in rows})


def root_of(A):
    """Lower triangular root of a matrix that is positive definite but for rounding.

    Variances that a search tries may be so large that rounding makes eigenvalues negative: they
    are raised to the size of rounding, so that the search finds the value there and steps back.
    """
    try:
        return np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(A)
        values = np.maximum(values, np.finfo(float).eps * values[-1])
        return np.linalg.qr((vectors * np.sqrt(values)).T, mode="r").T
