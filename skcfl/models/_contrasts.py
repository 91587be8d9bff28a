"""The contrasts of classes: adding a vector to the parameters of all classes changes no loss."""

import functools

import numpy as np

# Part of a loss that is no loss.
SLACK = 1e-9


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


def with_absent_classes(model, block, x):
    """Minimisers of clients (c, p), those of classes without rows at a client defined.

    Their intercepts have no minimum, and rounding would decide where a search for one ends: such a
    class has the probability of rounding at the row where it is largest, and no other coefficient.
    """
    C, D, decay = model.n_outputs, model.n_columns, model.decay[: model.n_columns]
    if not model.fit_intercept or decay[-1] > 0.0 or not (decay[:-1] > 0.0).all():
        return x
    codes, there = model.classes_of(block)[:, None], (block.weights > 0)[:, None]
    absent = ~((codes == np.arange(C)[:, None]) & there).any(axis=2)
    absent &= there.any(axis=2)
    some = absent.any(axis=1)
    if not some.any():
        return x
    z = model.state(block, x)
    z = np.where(absent[:, :, None], -np.inf, z)
    size = np.where(there[:, 0], np.logaddexp.reduce(z, axis=1), np.inf).min(axis=1)
    made = x.reshape(len(x), C, D).copy()
    made[absent] = 0.0
    made[:, :, -1][absent] = np.repeat(size + np.log(np.finfo(float).eps), absent.sum(axis=1))
    made[some, :, -1] -= made[some, :, -1].mean(axis=1, keepdims=True)
    made, value = made.reshape(x.shape), model.value(block, x)
    # Other coupled losses may have a minimum there.
    as_good = model.value(block, made) <= value + SLACK * (1.0 + np.abs(value))
    return np.where((some & as_good)[:, None], made, x)
