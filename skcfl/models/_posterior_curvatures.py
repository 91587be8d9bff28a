"""Curvatures of the rows' minus log-densities about posterior modes, and what follows from them.

The rows tell ``P = H - H L A^-1 L' H`` of the prior's mean.  Of few rows, with ``H = X' R R' X``,

    A^-1 = I - L' P L,   P = X' R M R' X,   M = (I + R' X L L' X' R)^-1,

and M is of the rows' size.
"""

from functools import partial

import numpy as np

from ..numerics.matrices import product, sandwich
from ..numerics.once import once

# Order of an einsum of three arrays, which takes long to find for small ones.
IN_TURN = ["einsum_path", (0, 1), (0, 1)]


def transposed(root):
    """``L'``."""
    return root if root.ndim == 1 else root.T


def spread(root, u):
    """``L u``: (..., p) -> (..., p)."""
    return u * root if root.ndim == 1 else u @ root.T


def gather(root, g):
    """``L' g``: (..., p) -> (..., p)."""
    return g * root if root.ndim == 1 else g @ root


class DenseCurvature:
    """Curvatures of a block's clients as matrices of the parameters.

    Attributes
    ----------
    hessian : ndarray of shape (c, p, p)
        H.
    bent : ndarray of shape (c, p, p)
        ``L' H L``, the same in the coordinates of the prior.
    inner : ndarray of shape (c, p, p)
        ``A^-1``, covariances there.
    information : ndarray of shape (c, p, p)
        P.
    log_det : ndarray of shape (c,)
        ``log det(A)``.
    """

    def __init__(self, root, H):
        self.root, self.hessian, self.bent = root, H, sandwich(root, H)
        bent, at = of_varying(root, self.bent)
        inner, self.log_det = inverted(plus_one(bent.copy()))
        self.inner = inner
        if bent is not self.bent:
            self.inner = plus_one(np.zeros(H.shape))
            self.inner[at] = inner

    def covariance_times(self, g):
        """``A^-1 g``: (c, p) -> (c, p)."""
        return product(self.inner, g)

    def hessian_times(self, v):
        """``H v``: (c, p) -> (c, p)."""
        return product(self.hessian, v)

    def covariances(self, errors=None, scale=1.0):
        """Posterior covariances of the parameters, (c, p, p).

        With the covariance (p, p) of the errors of the prior's mean it is integrated out: modes
        move with the mean by ``I - V H``.  Of clients that have scales (c, 1, 1) of their own V
        has it.
        """
        V = sandwich(transposed(self.root), self.inner)
        if errors is None:
            return scale * V
        moves = -np.matmul(V, self.hessian)
        np.einsum("cii->ci", moves)[:] += 1.0
        return scale * V + np.matmul(moves, np.matmul(errors, moves.transpose(0, 2, 1)))

    def variances(self, errors=None, scale=1.0):
        """Their diagonals, (c, p)."""
        if self.root.ndim == 1 and errors is None:
            inner = np.einsum("cii->ci", self.inner)
            return np.reshape(scale, (-1, 1)) * self.root**2 * inner
        return np.einsum("cii->ci", self.covariances(errors, scale))

    def row_covariances(self, model, block, errors=None, scale=1.0):
        """Posterior covariances of each row's predictions, (c, n, C, C)."""
        X, C = block.dense(), model.n_outputs
        c, n, D = X.shape
        V = self.covariances(errors, scale).reshape(c, C, D, C, D)
        out = np.empty((c, n, C, C))
        for a in range(C):
            for b in range(a + 1):
                forms = np.einsum("cnd,cnd->cn", np.matmul(X, V[:, a, :, b]), X)
                out[:, :, a, b] = out[:, :, b, a] = forms
        return out

    @once
    def information(self):
        half = self.hessian * self.root if self.root.ndim == 1 else self.hessian @ self.root
        inner, (*_, at) = of_varying(self.root, self.inner)
        half = half[:, :, at]
        return self.hessian - np.matmul(half, np.matmul(inner, half.transpose(0, 2, 1)))

    def information_sums(self, r):
        """Sums of P over the clients, with weights: (K, c) -> (K, p, p)."""
        return np.tensordot(r, self.information, 1)

    def hessian_sums(self, r):
        """The same of H."""
        return np.tensordot(r, self.hessian, 1)

    def information_diagonal(self):
        """Diagonal of P, (c, p)."""
        return np.einsum("cii->ci", self.information)

    def information_products(self, r):
        """The function ``sum_i r_i P_i v`` of vectors (m, p), with r (c,) the clients' weights."""
        total = np.tensordot(r, self.information, 1)
        return lambda v: v @ total


class RowCurvature:
    """The same as matrices of the rows; with a root that is no diagonal for modes only.

    Attributes
    ----------
    factors : ndarray of shape (c, n, C, S)
        R of each row.
    inner : ndarray of shape (c, n S, n S)
        M.
    log_det : ndarray of shape (c,)
        ``log det(A)``.
    largest : float
        Largest element of ``R' X L L' X' R``: as many units of rounding of ``A^-1 g`` are lost.
    """

    def __init__(self, block, root, factors, gram):
        self.block, self.root, self.factors = block, root, factors
        c, n, _, S = factors.shape
        of_rows = "calm,cmat" if root.ndim == 1 else "clamb,cmbt"
        G = np.einsum(f"clas,{of_rows}->clsmt", factors, gram, factors, optimize=IN_TURN)
        G = G.reshape(c, n * S, n * S)
        self.largest = np.einsum("cii->ci", G).max(initial=0.0)
        self._inverse_of_inner = plus_one(G)

    @once
    def _inverse(self):
        A = self._inverse_of_inner
        if self.root.any():
            return inverted(A)
        return np.broadcast_to(np.eye(A.shape[-1]), A.shape), np.zeros(len(A))

    @property
    def inner(self):
        return self._inverse[0]

    @property
    def log_det(self):
        return self._inverse[1]

    def _to_rows(self, z):
        """``R'`` times predictions (c, ..., C, n): (c, n S, ...)."""
        c, n, C, S = self.factors.shape
        t = np.einsum("clas,cmal->clsm", self.factors, z.reshape(c, -1, C, n))
        return t.reshape(c, n * S, -1)

    def _from_rows(self, t):
        """R times values (c, n S, m): (c, m, C, n)."""
        c, n, _, S = self.factors.shape
        return np.einsum("clas,clsm->cmal", self.factors, t.reshape(c, n, S, -1))

    def _predictions(self, v):
        c, _, C, _ = self.factors.shape
        return self.block.forward(v.reshape(c, C, -1))

    def _back(self, t):
        """``X' R t``: (c, n S, 1) -> (c, p)."""
        return self.block.backward(self._from_rows(t)[:, 0]).reshape(len(t), -1)

    def covariance_times(self, g):
        """``A^-1 g``: (c, p) -> (c, p)."""
        return g - self._taken(g, lambda t: product(self.inner, t))

    def direction(self, g):
        """``-A^-1 g``, for which M is not made."""
        return self._taken(g, lambda t: solved(self._inverse_of_inner, t)) - g

    def _taken(self, g, product_with_inner):
        t = self._to_rows(self._predictions(spread(self.root, g)))[:, :, 0]
        return gather(self.root, self._back(product_with_inner(t)[:, :, None]))

    def hessian_times(self, v):
        """``H v``: (c, p) -> (c, p)."""
        return self._back(self._to_rows(self._predictions(v)))

    def covariances(self, errors=None, scale=1.0):
        """Posterior covariances of the parameters, (c, p, p), given the mean."""
        half = gather(self.root, self.half()) * self.root
        out = -np.matmul(half.transpose(0, 2, 1), np.matmul(self.inner, half))
        np.einsum("cii->ci", out)[:] += self.root**2
        return scale * out

    def half(self):
        """``R' X``, (c, n S, p)."""
        c, n, _, S = self.factors.shape
        half = np.einsum("clas,cld->clsad", self.factors, self.block.dense())
        return half.reshape(c, n * S, -1)

    def variances(self, errors=None, scale=1.0):
        """Their diagonals, (c, p)."""
        known = self.root**2 * self.information_diagonal()
        return np.reshape(scale, (-1, 1)) * self.root**2 * (1.0 - known)

    def row_covariances(self, model, block, errors=None, scale=1.0):
        """Posterior covariances of each row's predictions, (c, n, C, C), given the mean."""
        c, n, C, S = self.factors.shape
        gram = model.row_grams(block, self.root)
        half = np.einsum("carl,clas->crals", gram, self.factors).reshape(c, n, C, n * S)
        inner = self.inner[:, None]
        out = -np.matmul(np.matmul(half, inner), half.transpose(0, 1, 3, 2))
        np.einsum("cnaa->cna", out)[:] += np.einsum("cann->cna", gram)
        return np.reshape(scale, (-1, 1, 1, 1)) * out

    def information_diagonal(self):
        """Diagonal of P, (c, p)."""
        c, n, C, S = self.factors.shape
        inner = self.inner.reshape(c, n, S, n, S)
        Q = np.einsum("clas,clsmt,cmat->calm", self.factors, inner, self.factors, optimize=IN_TURN)
        return np.stack([self.block.column_forms(Q[:, a]) for a in range(C)], axis=1).reshape(
            c, -1
        )

    def information_products(self, r):
        """The function ``sum_i r_i P_i v`` of vectors (m, p), with r (c,) the clients' weights."""
        return partial(self._products, r)

    def _products(self, r, v):
        c, n, C, _ = self.factors.shape
        m = len(v)
        z = self.block.forward_all(v.reshape(m * C, -1)).reshape(c, m, C, n)
        t = r[:, None, None] * np.matmul(self.inner, self._to_rows(z))
        out = self.block.backward_all(self._from_rows(t).reshape(c, m * C, n))
        return out.reshape(m, -1)


class FewRowsCurvature(DenseCurvature):
    """The same from matrices of the rows, which are few."""

    def __init__(self, rows):
        self.root, self.log_det, self._by_rows = rows.root, rows.log_det, rows

    @once
    def _half(self):
        return self._by_rows.half()

    @once
    def _bent_half(self):
        return gather(self.root, self._half)

    @once
    def hessian(self):
        return _squares(self._half)

    @once
    def bent(self):
        return _squares(self._bent_half)

    @once
    def inner(self):
        return plus_one(-_squares(self._bent_half, self._by_rows.inner))

    @once
    def information(self):
        return _squares(self._half, self._by_rows.inner)

    def information_sums(self, r):
        return self._sums(r, np.matmul(self._by_rows.inner, self._half))

    def hessian_sums(self, r):
        return self._sums(r, self._half)

    def _sums(self, r, other):
        p = other.shape[2]
        weighted = (own[:, None, None] * self._half for own in r)
        return np.array([w.reshape(-1, p).T @ other.reshape(-1, p) for w in weighted])


def of_varying(root, matrices):
    """Blocks of matrices (c, p, p) of parameters that differ between clients, and their place.

    The matrices themselves unless the root is a diagonal that has zeros.
    """
    if root.ndim > 1 or root.all():
        return matrices, (slice(None),) * 3
    varying = np.flatnonzero(root)
    at = slice(None), varying[:, None], varying
    return matrices[at], at


def plus_one(matrices):
    """Matrices (c, p, p), in place, with 1 added to their diagonals."""
    np.einsum("cii->ci", matrices)[:] += 1.0
    return matrices


def _squares(half, inner=None):
    """``T' M T`` of matrices T (c, m, p), M (c, m, m) the identity if it is not given."""
    other = half if inner is None else np.matmul(inner, half)
    return np.matmul(half.transpose(0, 2, 1), other)


def inverted(A):
    """Inverses of matrices whose eigenvalues are 1 or more, and logarithms of determinants."""
    try:
        diagonal = np.einsum("cii->ci", np.linalg.cholesky(A))
        return np.linalg.inv(A), 2.0 * np.log(diagonal).sum(axis=1)
    except np.linalg.LinAlgError:
        # Where the largest is 1e16 or more rounding may have made others zero or negative.
        values, vectors = np.linalg.eigh(A)
        values = np.maximum(values, 1.0)
        inverses = np.matmul(vectors / values[:, None, :], vectors.transpose(0, 2, 1))
        return inverses, np.log(values).sum(axis=1)


def solved(A, g):
    """``A^-1 g`` of such matrices and vectors (c, m)."""
    try:
        return np.linalg.solve(A, g[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:
        # The identity is lost in the rounding of what some rows weigh.
        return product(inverted(A)[0], g)
