r"""Penalties of the differences between clients' models.

The fusion problems are ``sum_i f_i(x_i) + lam sum_e w_e phi(x_i - x_j)`` over the edges of a
graph, each edge once.  A penalty object is the function ``phi``; ``lam`` and the weights come
from the problem.

Differences are arrays ``Z`` of shape ``(d, ...)``: coordinates first, then edges in any
shape; scales ``t`` broadcast against the edges.  Methods do not change their arguments.
"""

from abc import ABCMeta, abstractmethod

import numpy as np
from sklearn.base import BaseEstimator

__all__ = ["L1", "L2", "Penalty", "SquaredL2"]


class Penalty(BaseEstimator, metaclass=ABCMeta):
    """Base of the penalties; to add one, implement these methods.

    Attributes
    ----------
    fuses : bool
        Whether the penalty makes whole differences exactly zero, so that clients with
        equal models form clusters.
    norm : bool
        Whether it is a norm: its conjugate is then 0 on the ball of the dual norm.
    """

    fuses = False
    norm = False

    @abstractmethod
    def value(self, Z):
        """``phi`` of every edge: (d, ...) -> (...)."""

    @abstractmethod
    def prox(self, Z, t):
        """``argmin_Y t phi(Y) + |Y - Z|^2 / 2`` of every edge."""

    @abstractmethod
    def conjugate(self, U, t):
        """Conjugate of ``t phi`` at `U`, of every edge; infinite outside of its domain."""

    def project(self, Z, t):
        """``Z - prox(Z, t)``: the dual part of Moreau's decomposition.

        For a norm, the projection onto the ball of radius `t` of the dual norm.
        """
        return Z - self.prox(Z, t)


class L2(Penalty):
    """Euclidean norm: sum-of-norms fusion, the network lasso.

    Fuses whole models: the prox takes a difference shorter than `t` to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import L2
    >>> L2().prox(np.array([[3.0, 0.3], [4.0, 0.4]]), 1.0)
    array([[2.4, 0. ],
           [3.2, 0. ]])
    """

    fuses = True
    norm = True

    def value(self, Z):
        """``|z|`` of every edge."""
        return np.sqrt(np.einsum("d...,d...->...", Z, Z))

    def dual_norm(self, U):
        """``|u|`` of every edge."""
        return self.value(U)

    def prox(self, Z, t):
        """Shorten every difference by `t`, down to zero."""
        return Z - self.project(Z, t)

    def project(self, Z, t):
        """Shorten every vector to length `t` at most."""
        r = self.value(Z)
        return Z * np.divide(t, r, out=np.ones_like(r), where=r > t)

    def conjugate(self, U, t):
        """0 within length `t`, else infinite."""
        return np.where(self.dual_norm(U) <= t * (1 + 1e-12), 0.0, np.inf)


class L1(Penalty):
    """Sum of absolute values: fuses single coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import L1
    >>> L1().prox(np.array([[3.0], [0.5]]), 1.0)
    array([[2.],
           [0.]])
    """

    norm = True

    def value(self, Z):
        """``|z|_1`` of every edge."""
        return np.abs(Z).sum(axis=0)

    def dual_norm(self, U):
        """Largest entry of every edge, in absolute value."""
        return np.abs(U).max(axis=0)

    def prox(self, Z, t):
        """Shrink every entry by `t`, down to zero."""
        return Z - self.project(Z, t)

    def project(self, Z, t):
        """Clip every entry to ``[-t, t]``."""
        return np.clip(Z, -np.asarray(t), t)

    def conjugate(self, U, t):
        """0 where no entry exceeds `t`, else infinite."""
        return np.where(self.dual_norm(U) <= t * (1 + 1e-12), 0.0, np.inf)


class SquaredL2(Penalty):
    r"""Half the squared norm, ``z' Q z / 2``: multi-task learning by mean regularisation, MOCHA.

    Does not fuse: differences shrink but none is zero.

    Parameters
    ----------
    Q : array-like of shape (d, d) or None, default=None
        Symmetric positive definite matrix; None is the identity.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.penalties import SquaredL2
    >>> SquaredL2().prox(np.array([[3.0], [4.0]]), 1.0)
    array([[1.5],
           [2. ]])
    """

    def __init__(self, Q=None):
        self.Q = Q

    def _spectrum(self, d):
        """Eigenvalues and eigenvectors of Q; None for the identity."""
        if self.Q is None:
            return None
        Q = np.asarray(self.Q, dtype=float)
        if Q.shape != (d, d) or not np.allclose(Q, Q.T):
            raise ValueError(
                f"Q must be a symmetric matrix of shape ({d}, {d}), one row a parameter, got "
                f"shape {Q.shape}."
            )
        values, vectors = np.linalg.eigh(Q)
        if values[0] <= 0:
            raise ValueError(
                f"Q must be positive definite, got a smallest eigenvalue of {values[0]:.3g}."
            )
        return values, vectors

    def _apply(self, Z, function):
        """``V function(q) V' z`` of every edge, Q = V diag(q) V'."""
        spectrum = self._spectrum(len(Z))
        if spectrum is None:
            return function(1.0) * Z
        q, V = spectrum
        q = q.reshape(-1, *([1] * (Z.ndim - 1)))
        return np.tensordot(V, function(q) * np.tensordot(V.T, Z, axes=1), axes=1)

    def value(self, Z):
        """``z' Q z / 2`` of every edge."""
        return 0.5 * np.einsum("d...,d...->...", Z, self.gradient(Z))

    def gradient(self, Z):
        """``Q z`` of every edge."""
        return self._apply(Z, lambda q: q)

    def prox(self, Z, t):
        """``(I + t Q)^-1 z`` of every edge."""
        return self._apply(Z, lambda q: 1.0 / (1.0 + t * q))

    def conjugate(self, U, t):
        """``u' Q^-1 u / (2 t)`` of every edge."""
        return 0.5 * np.einsum("d...,d...->...", U, self._apply(U, lambda q: 1.0 / (t * q)))


PENALTIES = {"l2": L2, "l1": L1, "squared_l2": SquaredL2}


def make_penalty(penalty):
    """Penalty object of a public name; an object is returned as it is."""
    return PENALTIES[penalty]() if isinstance(penalty, str) else penalty
