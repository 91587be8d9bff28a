"""Conjugate gradients for many systems at once, known by their products."""

import numpy as np

# Curvature, relative to that of the coordinates, below which a direction is flat.
FLAT = 1e-18


def conjugate_gradients(
    product, diagonal, g, max_iter, tol=None, precondition=None, split=False, memory=False
):
    """Solve ``H x = g`` for a batch of systems known by their products.

    Parameters
    ----------
    product : callable
        Maps (m, p) to the products with the m matrices.
    diagonal : ndarray of shape (m, p)
        Size of the matrices' diagonals, positive: the preconditioner where no other is given.
    g : ndarray of shape (m, p)
        Right-hand sides.
    max_iter : int
        Most iterations.
    tol : ndarray of shape (m,), default=None
        Relative residuals to reach.  None is for Newton directions: a tenth, falling with the
        gradient, so that Newton's method converges superlinearly.
    precondition : callable, default=None
        Maps (m, p) to the products with approximate inverses of the matrices.
    split : bool, default=False
        True if `precondition` is the exact inverse of a part of the matrices, and `product` is
        with the rest only.
    memory : bool, default=False
        If True, keep all directions and make each new one conjugate to all of them.  Rounding
        undoes conjugacy with ill-conditioned matrices otherwise, and iterations that cost an
        exchange each become many times as many as there are unknowns.

    Returns
    -------
    x : ndarray of shape (m, p)
        Solutions; every iterate is a descent direction of the quadratic.
    """
    size = np.linalg.norm(g, axis=1)
    if tol is None:
        tol = np.clip(size / (1.0 + size), 1e-8, 0.1)
    if precondition is None:
        precondition = lambda r: r / diagonal  # noqa: E731
    x = np.zeros_like(g)
    r = g.copy()
    z = precondition(r)
    q, part = z.copy(), r.copy()  # part: what the preconditioner inverts, times q
    rz = np.einsum("ij,ij->i", r, z)
    stop = (tol * size) ** 2
    kept = []
    for _ in range(max_iter):
        active = np.einsum("ij,ij->i", r, r) > stop
        if not active.any():
            break
        Hq = product(q) + part if split else product(q)
        qHq = np.einsum("ij,ij->i", q, Hq)
        # A direction with nothing but rounding for curvature: rounding of g leads there.
        active &= qHq > FLAT * np.einsum("ij,ij->i", q * q, diagonal)
        if memory:
            rz = np.einsum("ij,ij->i", r, q)
        a = np.divide(rz, qHq, out=np.zeros_like(rz), where=active)
        x += a[:, None] * q
        r -= a[:, None] * Hq
        z = precondition(r)
        if memory:
            kept.append((q, Hq, part, qHq))
            q, part = _conjugate_to(kept, z, r, active)
            continue
        new = np.einsum("ij,ij->i", r, z)
        b = np.divide(new, rz, out=np.zeros_like(rz), where=active & (rz > 0))
        q = np.where(active[:, None], z + b[:, None] * q, 0.0)
        part = np.where(active[:, None], r + b[:, None] * part, 0.0)
        rz = new
    return x


def _conjugate_to(kept, z, r, active):
    """Make `z`, computed from `r`, conjugate to the directions before."""
    q, part = np.where(active[:, None], z, 0.0), np.where(active[:, None], r, 0.0)
    for _ in range(2):  # once leaves the rounding error of large numbers
        for before, H_before, part_before, curvature in kept:
            along = np.einsum("ij,ij->i", q, H_before)
            share = np.divide(along, curvature, out=np.zeros_like(along), where=curvature > 0)
            q -= share[:, None] * before
            part -= share[:, None] * part_before
    return q, part


def solve_columns(M, B, tol=1e-12, max_iter=2000):
    """Solve ``M X = B`` by conjugate gradients, M sparse, symmetric, positive definite."""
    return conjugate_gradients(
        lambda u: (M @ np.ascontiguousarray(u.T)).T,
        M.diagonal()[None, :],
        np.ascontiguousarray(B.T),
        max_iter,
        tol,
    ).T
