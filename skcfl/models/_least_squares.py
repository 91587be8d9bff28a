"""Least squares of all clients of a block: factored once, solved for many right-hand sides.

Both classes solve ``(U_i' U_i + diag(decay) + rho_i I) x_i = b_i`` for clients i of a block,
``rho_i >= 0``, by the solution of least norm where the matrix is singular.  They work with
singular values of the rows, because the Gram matrix ``U' U`` has lost half of the digits:
columns in unlike units would look like columns of zeros.
"""

import numpy as np

# Ratio of eigenvalues below which solutions are refined.
UNEVEN = 1e-6


class Narrow:
    """Systems of few parameters, from eigenvalues of the whole matrix.

    Parameters
    ----------
    U : ndarray of shape (c, n, p)
        Rows times the square roots of their weights.
    decay : ndarray of shape (p,)
        L2 penalty of each parameter.
    lengths : ndarray of shape (c,)
        Number of true rows of each client.
    """

    def __init__(self, U, decay, lengths):
        c, _, p = U.shape
        penalty = np.broadcast_to(np.diag(np.sqrt(decay)), (c, p, p))
        R = np.linalg.qr(np.concatenate([U, penalty], axis=1), mode="r")
        _, sigma, self.vectors = np.linalg.svd(R)
        self.values = _squares(sigma, np.maximum(lengths, p))
        least = np.where(self.values > 0, self.values, np.inf).min(axis=1)
        uneven = (least < UNEVEN * self.values[:, 0]).any()
        self.R = R if uneven else None

    def solve(self, b, rho):
        """Solutions (c, p) for right-hand sides (c, p) and pulls (c,)."""
        x = self._inverse(b, rho)
        if self.R is not None:
            # Eigenvectors mix parameters of very unlike size, the triangle R does not.
            Rx = np.matmul(self.R, x[:, :, None])[:, :, 0]
            rest = b - np.matmul(Rx[:, None, :], self.R)[:, 0] - rho[:, None] * x
            x += self._inverse(rest, rho)
        return x

    def _inverse(self, b, rho):
        coordinates = np.matmul(self.vectors, b[:, :, None])[:, :, 0]
        coordinates = _divide(coordinates, self.values + rho[:, None])
        return np.matmul(coordinates[:, None, :], self.vectors)[:, 0]


class Wide:
    """Systems of more parameters than rows; all but the last share one penalty.

    ``A = U' U + (alpha + rho) I`` costs products with `U` only.  A last parameter that is free
    takes `alpha` away again, an update of rank one (Sherman and Morrison); what it loses to
    cancellation comes back by iterative refinement.
    """

    REFINEMENTS = 2

    def __init__(self, U, decay, lengths):
        self.alpha, self.free = decay[0], decay[-1] == 0.0 < decay[0]
        _, sigma, self.vectors = np.linalg.svd(U, full_matrices=False)
        self.values = _squares(sigma, np.maximum(lengths, U.shape[2]))

    def solve(self, b, rho):
        """Solutions (c, p) for right-hand sides (c, p) and pulls (c,)."""
        shift = (self.alpha + rho)[:, None]
        if not self.free:
            return self._inverse(b, shift)
        last = np.zeros_like(b)
        last[:, -1] = 1.0
        column = self._inverse(last, shift)
        factor = self.alpha * column / (1.0 - self.alpha * column[:, -1:])

        def inverse(b):
            x = self._inverse(b, shift)
            return x + factor * x[:, -1:]

        x = inverse(b)
        for _ in range(self.REFINEMENTS):
            rest = b - self._product(x) - shift * x
            rest[:, -1] += self.alpha * x[:, -1]
            x += inverse(rest)
        return x

    def _product(self, x):
        coordinates = np.matmul(self.vectors, x[:, :, None])[:, :, 0] * self.values
        return np.matmul(coordinates[:, None, :], self.vectors)[:, 0]

    def _inverse(self, b, shift):
        inside = np.matmul(self.vectors, b[:, :, None])[:, :, 0]
        outside = b - np.matmul(inside[:, None, :], self.vectors)[:, 0]
        inside = _divide(inside, self.values + shift)
        return np.matmul(inside[:, None, :], self.vectors)[:, 0] + _divide(outside, shift)


def _squares(sigma, size):
    """Squares of singular values (c, k), zero where they are nothing but rounding."""
    rounding = np.finfo(float).eps * size * sigma[:, 0]
    return np.where(sigma > rounding[:, None], sigma, 0.0) ** 2


def _divide(a, b):
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
