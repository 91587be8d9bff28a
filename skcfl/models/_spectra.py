"""Eigenvalues of the Gram matrices of clients' rows."""

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

# Relative accuracy of an estimated largest eigenvalue.
LANCZOS_TOL = 1e-3


def exact_spectrum(block):
    """Largest and least eigenvalue of ``X' diag(w) X`` and their geometric mean, (3, c)."""
    c, n, D = block.shape
    if D <= n:
        values = np.linalg.eigvalsh(block.weighted_gram())
    else:
        root = np.sqrt(block.weights)
        rows = block.row_gram(np.ones((c, D))) * root[:, :, None] * root[:, None, :]
        values = np.linalg.eigvalsh(rows)
    largest = np.maximum(values[:, -1], 0.0)
    rounding = 8 * D * np.finfo(float).eps * largest
    lowest = np.where(block.lengths >= D, np.maximum(values[:, 0] - rounding, 0.0), 0.0)
    # Not the zeros that rows of padding add.
    count = np.clip(np.minimum(block.lengths, D), 1, None)[:, None]
    logs = np.log(np.maximum(values, 1e-6 * largest[:, None] + 1e-300))
    own = np.arange(values.shape[1]) >= values.shape[1] - count
    mean = np.exp(np.where(own, logs / count, 0.0).sum(axis=1))
    return largest, lowest, mean


def estimated_spectrum(block):
    """The same for many rows and columns: Lanczos, no lower bound, arithmetic mean."""
    c, _, D = block.shape
    trace = block.squares().sum(axis=1)
    start = np.random.RandomState(0).standard_normal(D)
    largest = np.zeros(c)
    for i in np.flatnonzero(trace > 0):
        one = block.take([i])

        def product(u, one=one):
            z = one.forward(u.reshape(1, 1, D))
            return one.backward(z * one.weights[:, None, :]).ravel()

        operator = LinearOperator((D, D), matvec=product, dtype=float)
        value = eigsh(operator, k=1, v0=start, tol=LANCZOS_TOL, return_eigenvectors=False)
        largest[i] = (1.0 + LANCZOS_TOL) * value[0]
    return largest, np.zeros(c), trace / D
