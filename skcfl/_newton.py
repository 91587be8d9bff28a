"""Damped Newton for many small convex problems at once.

Client side (each client's minimiser, prox, conjugate) and server side (each cluster's
pooled problem, from summed messages) minimise batches of ``m`` smooth convex functions;
they share the iteration and differ in the oracle.
"""

import numpy as np

ARMIJO = 1e-4
MAX_HALVINGS = 40


def newton(oracle, x, scale, *, max_iter=100, tol=1e-16):
    """Minimise ``m`` convex functions by Newton's method with backtracking.

    Parameters
    ----------
    oracle : object
        ``oracle.at(x)`` returns values (m,) and gradients (m, p) and keeps the point;
        ``oracle.direction(g)`` returns Newton directions (m, p) there;
        ``oracle.along(step, t)`` returns the values (m,) at ``x + t * step`` (t is (m,)).
    x : ndarray of shape (m, p)
        Start.
    scale : ndarray of shape (m,)
        Size of each function, in units of its values.
    max_iter : int
        Most Newton steps.
    tol : float
        Stop after the step whose squared Newton decrement falls below ``tol * scale``.
        Steps converge quadratically, so the square root of machine precision before
        the last step gives machine precision after it.

    Returns
    -------
    x : ndarray of shape (m, p)
        Minimisers.
    decrement : ndarray of shape (m,)
        Last squared Newton decrements, about twice the excess before the last step.
    converged : ndarray of shape (m,) of bool
        Where `tol` was met, or values could not fall any further in floating point.
    """
    x = np.array(x, dtype=float)
    eps = np.finfo(float).eps
    last = np.full(len(x), np.inf)
    done = np.zeros(len(x), dtype=bool)
    stuck = np.zeros(len(x), dtype=bool)
    for _ in range(max_iter):
        value, gradient = oracle.at(x)
        step = oracle.direction(gradient)
        decrement = np.einsum("ij,ij->i", gradient, step)
        np.negative(decrement, out=decrement)
        # A direction that does not descend comes from rounding at the minimiser.
        decrement = np.maximum(decrement, 0.0)
        last = np.where(done | stuck, last, decrement)
        finishing = ~(done | stuck) & (decrement <= tol * scale)
        t = np.where(done | stuck, 0.0, 1.0)
        searching = ~(done | stuck | finishing)
        slack = 8 * eps * (np.abs(value) + scale)
        for _ in range(MAX_HALVINGS):
            trial = oracle.along(step, t)
            with np.errstate(invalid="ignore"):
                good = trial <= value - ARMIJO * t * decrement + slack
            searching &= ~good
            if not searching.any():
                break
            t[searching] *= 0.5
        # No step however small lowers the value: rounding decides, whatever tol asks.
        t[searching] = 0.0
        stuck |= searching
        moving = t > 0
        x[moving] += t[moving, None] * step[moving]
        done |= finishing
        if (done | stuck).all():
            break
    converged = done | (stuck & (last <= 1e-8 * scale))
    return x, last, converged


def solve_scaled(H, g, shift=1e-12):
    """Solve ``H x = g`` for a batch of symmetric positive semi-definite matrices.

    Rows and columns are scaled to a unit diagonal first, so that columns in different
    units do no harm, and `shift` is added to it, so that a singular system with a
    right-hand side in its range has a finite solution.
    """
    diagonal = np.einsum("ijj->ij", H)
    root = np.sqrt(np.maximum(diagonal, 0.0))
    inverse = np.divide(1.0, root, out=np.ones_like(root), where=root > 0)
    S = H * inverse[:, :, None]
    S *= inverse[:, None, :]
    np.einsum("ijj->ij", S)[:] = np.where(root > 0, 1.0 + shift, 1.0)
    return np.linalg.solve(S, (g * inverse)[:, :, None])[:, :, 0] * inverse


def conjugate_gradients(product, diagonal, g, tol, max_iter):
    """Solve ``H x = g`` for a batch of systems known by their products.

    Parameters
    ----------
    product : callable
        Maps (m, p) to the products with the m matrices.
    diagonal : ndarray of shape (m, p)
        Positive preconditioner.
    g : ndarray of shape (m, p)
        Right-hand sides.
    tol : ndarray of shape (m,)
        Relative residuals to reach.
    max_iter : int
        Most iterations.

    Returns
    -------
    x : ndarray of shape (m, p)
        Solutions; every iterate is a descent direction of the quadratic.
    """
    x = np.zeros_like(g)
    r = g.copy()
    z = r / diagonal
    q = z.copy()
    rz = np.einsum("ij,ij->i", r, z)
    stop = (tol * np.linalg.norm(g, axis=1)) ** 2
    for _ in range(max_iter):
        active = np.einsum("ij,ij->i", r, r) > stop
        if not active.any():
            break
        Hq = product(q)
        qHq = np.einsum("ij,ij->i", q, Hq)
        active &= qHq > 0
        a = np.divide(rz, qHq, out=np.zeros_like(rz), where=active)
        x += a[:, None] * q
        r -= a[:, None] * Hq
        z = r / diagonal
        new = np.einsum("ij,ij->i", r, z)
        b = np.divide(new, rz, out=np.zeros_like(rz), where=active & (rz > 0))
        q = np.where(active[:, None], z + b[:, None] * q, 0.0)
        rz = new
    return x
