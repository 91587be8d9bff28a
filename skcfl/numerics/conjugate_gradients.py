"""Conjugate gradients for many systems at once, known by their products."""

import numpy as np

from .matrices import quotient

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
        If True, `product` is with a part of the matrices only: `precondition` also returns the
        products of its results with the rest.
    memory : bool, default=False
        If True, keep all directions and make each new one conjugate to all of them.  Rounding
        undoes conjugacy with ill-conditioned matrices otherwise, and iterations that cost an
        exchange each become many times as many as there are unknowns.  The approximate inverses
        need not be symmetric then.

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
    x, r = np.zeros_like(g), g.copy()
    q, rest = np.zeros_like(g), np.zeros_like(g)  # rest: its product with q
    active, rz = np.ones(len(g), dtype=bool), np.zeros(len(g))
    stop = (tol * size) ** 2
    kept = _Directions(max_iter, *g.shape) if memory else None
    for _ in range(max_iter):
        more = np.einsum("ij,ij->i", r, r) > stop
        if not more.any():
            break
        z = precondition(r)
        if split:
            z, rest_z = z
        if memory:
            q = np.where(active[:, None], z, 0.0)
            q, rest = kept.conjugate(q, np.where(active[:, None], rest_z, 0.0) if split else rest)
            rz = np.einsum("ij,ij->i", r, q)
        else:
            new = np.einsum("ij,ij->i", r, z)
            b = np.divide(new, rz, out=np.zeros_like(rz), where=active & (rz > 0))
            q = np.where(active[:, None], z + b[:, None] * q, 0.0)
            if split:
                rest = np.where(active[:, None], rest_z + b[:, None] * rest, 0.0)
            rz = new
        Hq = product(q) + rest if split else product(q)
        qHq = np.einsum("ij,ij->i", q, Hq)
        # A direction with nothing but rounding for curvature: rounding of g leads there.
        active = more & (qHq > FLAT * np.einsum("ij,ij->i", q * q, diagonal))
        a = np.divide(rz, qHq, out=np.zeros_like(rz), where=active)
        x += a[:, None] * q
        r -= a[:, None] * Hq
        if memory:
            kept.add(q, Hq, rest, qHq)
    return x


class _Directions:
    """Directions (m, p) of all iterations, and their products."""

    def __init__(self, most, m, p):
        self.directions, self.products, self.rests = np.empty((3, m, most, p))
        self.curvatures, self.number = np.empty((m, most)), 0

    def add(self, q, product, rest, curvature):
        """Keep a direction, its products with the matrices and with the rest, its curvature."""
        k, self.number = self.number, self.number + 1
        self.directions[:, k], self.products[:, k], self.rests[:, k] = q, product, rest
        self.curvatures[:, k] = curvature

    def conjugate(self, q, rest):
        """Make `q` conjugate to all directions; `rest` stays its product with the rest."""
        k = self.number
        for _ in range(2):  # once leaves the rounding error of large numbers
            along = np.matmul(self.products[:, :k], q[:, :, None])[:, :, 0]
            share = quotient(along, self.curvatures[:, :k])[:, None, :]
            q = q - np.matmul(share, self.directions[:, :k])[:, 0]
            rest = rest - np.matmul(share, self.rests[:, :k])[:, 0]
        return q, rest


def solve_columns(M, B, tol=1e-12, max_iter=2000):
    """Solve ``M X = B`` by conjugate gradients, M sparse, symmetric, positive definite."""
    return conjugate_gradients(
        lambda u: (M @ np.ascontiguousarray(u.T)).T,
        M.diagonal()[None, :],
        np.ascontiguousarray(B.T),
        max_iter,
        tol,
    ).T
