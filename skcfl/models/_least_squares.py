"""Least squares of all clients of a block: factored once, solved for many pulls.

Both classes solve ``(U_i' U_i + diag(decay) + rho_i I) x_i = U_i' t_i + c_i`` for clients i
of a block, ``rho_i >= 0``, by the solution of least norm where the matrix is singular.  They
work with singular values of the rows, because the Gram matrix ``U' U`` has lost half of the
digits: columns in unlike units would look like columns of zeros.

Parameters of both: rows times the square roots of their weights, U (c, n, p); targets times
the same, t (c, n); L2 penalty of each parameter, decay (p,); number of true rows of each
client, lengths (c,).
"""

import numpy as np

from ..numerics.matrices import product, quotient

# Ratio of eigenvalues below which solutions are refined.
UNEVEN = 1e-6
# Least penalty, in units of the largest eigenvalue, where Gram matrices of rows will do.
LOST = 1e-8


class _Factors:
    """Arrays with one entry per client."""

    def take(self, index):
        """The same of some of the clients."""
        part = object.__new__(type(self))
        for name, value in self.__dict__.items():
            part.__dict__[name] = value[index] if isinstance(value, np.ndarray) else value
        return part


class Narrow(_Factors):
    """Systems of few parameters, from eigenvalues of the whole matrix."""

    def __init__(self, U, t, decay, lengths):
        c, _, p = U.shape
        penalty = np.broadcast_to(np.diag(np.sqrt(decay)), (c, p, p))
        R = np.linalg.qr(np.concatenate([U, penalty], axis=1), mode="r")
        _, sigma, self.vectors = np.linalg.svd(R)
        self.values = _squares(sigma, np.maximum(lengths, p))
        self.moment = product(U.transpose(0, 2, 1), t)
        least = np.where(self.values > 0, self.values, np.inf).min(axis=1)
        uneven = (least < UNEVEN * self.values[:, 0]).any()
        self.R = R if uneven else None

    def solve(self, c, rho):
        """Solutions (c, p) for right-hand sides (c, p) and pulls (c,)."""
        b = self.moment + c
        x = self._inverse(b, rho)
        if self.R is not None:
            # Eigenvectors mix parameters of very unlike size, the triangle R does not.
            again = product(self.R.transpose(0, 2, 1), product(self.R, x))
            x += self._inverse(b - again - rho[:, None] * x, rho)
        return x

    def _inverse(self, b, rho):
        coordinates = quotient(product(self.vectors, b), self.values + rho[:, None])
        return product(self.vectors.transpose(0, 2, 1), coordinates)


class Wide(_Factors):
    """Systems of more parameters than rows; all but the last share one penalty, alpha.

    ``A = U' U + sigma I``, ``sigma = alpha + rho``, is inverted through ``U U' + sigma I``, the
    smaller matrix.  A last parameter that is free takes `alpha` away again, an update of
    rank one (Sherman and Morrison).
    """

    def __init__(self, U, t, decay, lengths):
        self.U, self.t = U, t
        self.alpha, self.free = decay[0], decay[-1] == 0.0 < decay[0]
        # Taken from the triangle of a QR factorisation: singular vectors of p entries are not
        # needed.
        R = np.linalg.qr(U.transpose(0, 2, 1), mode="r")
        self.vectors, sigma, _ = np.linalg.svd(R.transpose(0, 2, 1), full_matrices=False)
        self.values = _squares(sigma, np.maximum(lengths, U.shape[2]))

    def solve(self, c, rho):
        """Solutions (c, p) for right-hand sides (c, p) and pulls (c,)."""
        sigma = (self.alpha + rho)[:, None]
        x = self._inverse(self.t, c, sigma)
        if self.free:
            last = np.zeros_like(c)
            last[:, -1] = 1.0
            column = self._inverse(np.zeros_like(self.t), last, sigma)
            # 1 - alpha * column[-1], without its cancellation.
            u = self._rows_of(last)
            known = np.einsum("cn,cn->c", u, self._small(u, sigma))[:, None]
            scale = (rho[:, None] + self.alpha * known) / sigma
            x += quotient(self.alpha * column * x[:, -1:], scale)
        return x

    def _small(self, r, sigma, power=1):
        """``(U U' + sigma I)^-power r``."""
        coordinates = product(self.vectors.transpose(0, 2, 1), r)
        return product(self.vectors, quotient(coordinates, (self.values + sigma) ** power))

    def _inverse(self, t, c, sigma):
        """``A^-1 (U' t + c)``, by the pseudo-inverse where sigma is zero."""
        outside = quotient(c, sigma)
        inside = self._small(t - self._rows_of(outside), sigma)
        flat = sigma == 0.0
        if flat.any():
            inside += flat * self._small(self._rows_of(c), sigma, power=2)
        return outside + self._columns_of(inside)

    def _rows_of(self, x):
        """``U x``."""
        return product(self.U, x)

    def _columns_of(self, r):
        """``U' r``."""
        return product(self.U.transpose(0, 2, 1), r)


class Sparse(Wide):
    """The same of sparse rows, a block, through their Gram matrix: nothing dense has p columns.

    The error of the small eigenvalues of the Gram matrix is small beside `alpha`, if
    :func:`enough`.
    """

    def __init__(self, block, decay):
        root = np.sqrt(block.weights)
        self.rows, self.t = block.scaled(root), block.y[:, 0] * root
        self.alpha, self.free = decay[0], decay[-1] == 0.0 < decay[0]
        values, self.vectors = np.linalg.eigh(self.rows.row_gram(np.ones((len(root), len(decay)))))
        self.values = np.maximum(values, 0.0)

    @property
    def enough(self):
        """True if the penalty is large enough beside the largest eigenvalues."""
        return self.alpha >= LOST * self.values.max(initial=0.0) and self.alpha > 0.0

    def take(self, index):
        """The same of some of the clients."""
        part = super().take(index)
        part.rows = self.rows.take(index)
        return part

    def _rows_of(self, x):
        return self.rows.forward(x[:, None])[:, 0]

    def _columns_of(self, r):
        return self.rows.backward(r[:, None])[:, 0]


def _squares(sigma, size):
    """Squares of singular values (c, k), zero where they are nothing but rounding."""
    rounding = np.finfo(float).eps * size * sigma[:, 0]
    return np.where(sigma > rounding[:, None], sigma, 0.0) ** 2
