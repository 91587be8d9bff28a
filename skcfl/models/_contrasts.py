"""The contrasts of classes: adding a vector to the parameters of all classes changes no loss."""

import functools

import numpy as np


@functools.cache
def contrasts(n_outputs):
    """Orthonormal combinations of outputs that sum to zero, (C, C - 1): Helmert's."""
    Q = np.triu(np.ones((n_outputs, n_outputs - 1)))
    Q[np.arange(1, n_outputs), np.arange(n_outputs - 1)] = -np.arange(1.0, n_outputs)
    return Q / np.linalg.norm(Q, axis=0)


def contrast_blocks(blocks, n_outputs):
    """A loss's second derivatives along contrasts, as its ``curvature_blocks`` along outputs."""
    S = None
    for a, outputs, h in blocks:
        if S is None:
            S = np.zeros((*h.shape[:-2], n_outputs, n_outputs, h.shape[-1]))
        S[..., a, outputs, :] = S[..., outputs, a, :] = h
    Q = contrasts(n_outputs)
    flat = S.reshape(*S.shape[:-3], n_outputs**2, S.shape[-1])
    for a in range(n_outputs - 1):
        pairs = Q[:, None, a, None] * Q[:, : a + 1]
        yield a, slice(a + 1), np.matmul(pairs.reshape(n_outputs**2, a + 1).T, flat)


def along_contrasts(solve, g, diagonal):
    """Solutions of ``(H + diagonal) x = g`` of clients, H the Hessian of a coupled loss.

    Parameters
    ----------
    solve : callable
        The same along contrasts, (c, C - 1, D) -> (c, C - 1, D).
    g : ndarray of shape (c, C, D)
        Right-hand sides.
    diagonal : ndarray of shape (c, D)
        The same for each output.

    Returns
    -------
    ndarray of shape (c, C, D)
        What outputs have in common is zero where the diagonal is.
    """
    Q = contrasts(g.shape[1])
    mean = g.mean(axis=1)
    common = np.divide(mean, diagonal, out=np.zeros_like(mean), where=diagonal > 0)
    return np.matmul(Q, solve(np.matmul(Q.T, g))) + common[:, None]
