"""Posterior modes of rows of levels, for losses that are no parabolas.

As in ``skcfl.models._level_grams``, with effects in units of their own standard deviations: the
predictions of client i are ``eta = U e + Z a`` with the columns ``U = (D, E)`` of coefficients and
crossed levels, ``Z = (D R, N diag(s))`` of the client's effects a, a priori standard normal.  With
the losses l of rows that weigh w, and ``W = diag(w l'')``, the client finds the mode of a where
``P = sum(w l) + |a|^2 / 2`` is least, and Laplace's approximation follows from ``A = I + Z'WZ``:

    log det(A),   U'WU - U'WZ A^-1 Z'WU = U'W V,   V = U - Z A^-1 Z'WU.

Covariances of the predictions, given the covariance C of e, are ``Z A^-1 Z' + V C V'``.  The
determinant changes with the mode, by the third derivatives of the loss: ``g = w l''' h`` with the
variances h of the predictions.  Its chain rule needs the solution q of ``H q = (U, Z)'g``, H the
Hessian of P; the server finds the part of q in e from the sum of ``V'g``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..clients.blocks import Block
from ._level_grams import columns_of

# Newton steps to a client's mode, and halvings of one.
MOST_STEPS, MOST_HALVINGS = 100, 60
# Squared Newton decrement, as a part of the value, of the last step: its error is squared.
LAST_STEP = 1e-12
# Least second derivative of the loss of a row in rows of squared errors, as a part of the largest.
LEAST_CURVATURE = 1e-12
# Logarithm of a mean above that of a client's largest count, beyond which the loss is a straight
# line: a trial is too far there, and its own loss would overflow.
MOST_ABOVE = 10.0


class LevelModesMixin:
    """Linear models of rows that may belong to levels, with Laplace's approximation."""

    def level_rows(self, block, weights):
        """Rows of each client of a block, kept for later calls with their last modes."""
        if "level rows" not in block.cache:
            d, X = self.n_columns, block.dense()
            block.cache["level rows"] = [
                LevelRows(
                    self.kernel,
                    *columns_of(self, X[i, :n, :d], X[i, :n, d:]),
                    d,
                    block.y[i, :, :n],
                    block.weights[i, :n] * weights[i],
                )
                for i, n in enumerate(block.lengths)
            ]
        return block.cache["level rows"]

    def linearised(self, block, weights, root, spreads, effects):
        """Block of rows of squared errors with the clients' posteriors, and their total weights.

        The effects of the levels are taken from the targets.

        Parameters
        ----------
        block : Block
            Clients.
        weights : ndarray of shape (c,)
            Total weights of their rows.
        root, spreads, effects : ndarray
            See ``skcfl.calls.level_modes_asked.LevelModes``.
        """
        d = self.n_columns
        y, w = np.zeros((len(weights), 1, block.shape[1])), np.zeros(block.weights.shape)
        for i, rows in enumerate(self.level_rows(block, weights)):
            mode, n = rows.mode(root, spreads, effects), block.lengths[i]
            D = rows.U[:, :d]
            flat = np.maximum(mode.W, LEAST_CURVATURE * mode.W.max(initial=0.0))
            y[i, 0, :n] = D @ (effects[:d] + root @ mode.a[:d]) - mode.slopes / flat
            w[i, :n] = flat
        total = w.sum(axis=1)
        w /= np.maximum(total, 1e-300)[:, None]
        X = np.ascontiguousarray(block.dense()[:, :, :d])
        return Block(X, y, w, block.clients, block.lengths), total


@dataclass
class Mode:
    """A client's mode.

    Attributes
    ----------
    a : ndarray of shape (q + m,)
        Effects of the client in units of their standard deviations.
    value : float
        P, with the constants of the log-density.
    slopes, W, third : ndarray of shape (n,)
        First, second and third derivatives of the rows' losses, times their weights.
    Z : ndarray of shape (n, q + m)
        Columns of the effects.
    inner : ndarray of shape (q + m, q + m)
        ``A^-1``.
    log_det : float
        Of A.
    V : ndarray of shape (n, a)
        ``U - Z A^-1 Z'WU``.
    """

    a: np.ndarray
    value: float
    slopes: np.ndarray
    W: np.ndarray
    third: np.ndarray
    Z: np.ndarray
    inner: np.ndarray
    log_det: float
    V: np.ndarray


@dataclass
class LevelRows:
    """Rows of one client.

    Attributes
    ----------
    kernel : Loss
        The loss.
    U, places, N, owners, levels
        See :func:`~skcfl.models._level_grams.columns_of`.
    d : int
        Number of coefficients.
    y : ndarray of shape (1, n)
        Targets.
    w : ndarray of shape (n,)
        Weights.
    """

    kernel: object
    U: np.ndarray
    places: np.ndarray
    N: np.ndarray
    owners: np.ndarray
    levels: np.ndarray
    d: int
    y: np.ndarray
    w: np.ndarray
    last: tuple = field(default=((), None), repr=False)

    def _near(self, eta):
        """Raw predictions, those that are too far replaced by the farthest."""
        if np.isfinite(self.kernel.max_curvature):
            return eta
        return np.minimum(eta, MOST_ABOVE + np.log1p(self.y.max(initial=0.0)))

    def _loss(self, eta):
        near = self._near(eta)[None]
        beyond = self.kernel.gradient(near, self.y)[0] * (eta - near[0])
        return float(self.w @ (self.kernel.value(near, self.y) + beyond))

    def mode(self, root, spreads, effects):
        """The mode, given the coefficients and the effects of the crossed levels."""
        asked, mode = self.last
        about = root, spreads, effects
        if len(asked) == len(about) and all(map(np.array_equal, asked, about)):
            return mode
        start = np.zeros(len(root) + len(self.owners)) if mode is None else mode.a
        mode = self._found(*about, start)
        self.last = tuple(np.array(value) for value in about), mode
        return mode

    def _found(self, root, spreads, effects, a):
        fixed = self.U @ effects[self.places]
        Z = np.hstack([self.U[:, : self.d] @ root, self.N * spreads[self.owners]])

        def at(a):
            return self._loss(fixed + Z @ a) + 0.5 * float(a @ a)

        value = at(a)
        for _ in range(MOST_STEPS):
            eta = self._near(fixed + Z @ a)[None]
            slopes = self.w * self.kernel.gradient(eta, self.y)[0]
            W = self.w * self.kernel.curvature(eta, self.y)[0]
            g = slopes @ Z + a
            step = -np.linalg.solve(_with_identity((Z.T * W) @ Z), g)
            size, length = -float(g @ step), 1.0
            for _ in range(MOST_HALVINGS):
                new = at(a + length * step)
                if new <= value - 1e-4 * length * size + 1e-13 * abs(value):
                    break
                length *= 0.5
            else:
                break
            a, value = a + length * step, new
            if size <= LAST_STEP * (1.0 + abs(value)):
                break
        return self._mode_at(a, self._near(fixed + Z @ a), Z, value)

    def _mode_at(self, a, eta, Z, value):
        kernel, y = self.kernel, self.y
        W = self.w * kernel.curvature(eta[None], y)[0]
        factor = np.linalg.cholesky(_with_identity((Z.T * W) @ Z))
        back = np.linalg.inv(factor)
        inner = back.T @ back
        return Mode(
            a,
            value - float(self.w @ kernel.log_constant(y, 1.0)),
            self.w * kernel.gradient(eta[None], y)[0],
            W,
            self.w * kernel.curvature_slope(eta[None], y)[0],
            Z,
            inner,
            2.0 * float(np.log(np.diag(factor)).sum()),
            self.U - Z @ (inner @ ((Z.T * W) @ self.U)),
        )

    def leverages(self, mode, errors):
        """``g``: third derivatives times the variances of the predictions, (n,)."""
        C = errors[np.ix_(self.places, self.places)]
        h = ((mode.Z @ mode.inner) * mode.Z).sum(axis=1)
        h += ((mode.V @ C) * mode.V).sum(axis=1)
        return mode.third * h

    def derivatives(self, mode, errors, moved):
        """Derivatives of twice Laplace's minus log-likelihood.

        Parameters
        ----------
        mode : Mode
            The mode.
        errors : ndarray of shape (e, e)
            Covariance of what is integrated out among coefficients and levels.
        moved : ndarray of shape (e,)
            q of coefficients and levels.

        Returns
        -------
        slopes : ndarray of shape (a,)
            ``U' rho``, at the places of the client.
        covariance : ndarray of shape (d, d)
            Derivatives in the root.
        inside : ndarray of shape (m,)
            Derivatives in the spread of each nested level.
        """
        d, W, g = self.d, mode.W, self.leverages(mode, errors)
        C, e = errors[np.ix_(self.places, self.places)], moved[self.places]
        q = mode.inner @ (mode.Z.T @ (g - W * (self.U @ e)))
        rho = 2.0 * mode.slopes + g - W * (self.U @ e + mode.Z @ q)
        # Covariances of the predictions with the client's effects.
        K = mode.Z @ mode.inner - mode.V @ (C @ ((self.U.T * W) @ mode.Z)) @ mode.inner
        D, k = self.U[:, :d], mode.Z.shape[1] - len(self.owners)
        covariance = np.outer(D.T @ rho, mode.a[:k]) + 2.0 * (D.T * W) @ K[:, :k]
        covariance -= np.outer(D.T @ mode.slopes, q[:k])
        inside = (self.N.T @ rho) * mode.a[k:] - (self.N.T @ mode.slopes) * q[k:]
        inside += 2.0 * W @ (self.N * K[:, k:])
        return self.U.T @ rho, covariance, inside


def _with_identity(A):
    """``I + A`` of a square matrix, in its place."""
    A.ravel()[:: len(A) + 1] += 1.0
    return A
