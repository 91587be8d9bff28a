"""Log loss of two classes and of several."""

import numpy as np
from scipy.special import expit, xlogy
from sklearn.linear_model import LogisticRegression

from .loss import ClassLoss, as_fitted


class LogLoss(ClassLoss):
    """Minus the logarithm of the probability of the class."""

    name = "log_loss"
    has_proba = True
    is_likelihood = True

    def log_constant(self, y, dispersion):
        return np.zeros(y[..., 0, :].shape)

    def plain_linear(self, fit_intercept):
        plain = LogisticRegression(fit_intercept=fit_intercept)
        return as_fitted(plain, n_iter_=np.zeros(1, dtype=np.int32))


class Logistic(LogLoss):
    """``log(1 + exp(-s z))`` with the sign ``s`` of the class: log loss of two classes.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import Logistic
    >>> Logistic().value(np.array([[0.0, 2.0]]), np.array([[1.0, 1.0]]))
    array([0.69314718, 0.12692801])
    """

    max_curvature = 0.25

    def for_classes(self, n_classes):
        return self if n_classes is None or n_classes <= 2 else Multinomial()

    def encode(self, y, n_classes, dtype):
        return np.where(np.asarray(y) > 0, 1.0, -1.0).astype(dtype)[:, None]

    def value(self, z, y):
        m = z * y
        tail = np.abs(m)
        np.negative(tail, out=tail)
        np.exp(tail, out=tail)
        np.log1p(tail, out=tail)
        np.minimum(m, 0.0, out=m)
        tail -= m
        return tail[..., 0, :]

    def gradient(self, z, y):
        m = z * y
        np.negative(m, out=m)
        expit(m, out=m)
        m *= y
        return np.negative(m, out=m)

    def curvature(self, z, y):
        p = expit(z)
        return p * expit(-z)

    def curvature_slope(self, z, y):
        p = expit(z)
        return p * expit(-z) * (1.0 - 2.0 * p)

    def slope_terms(self, z, y):
        # Rounding of z * y grows with it, the slope falls no faster than by as much.
        return (1.0 + np.abs(z)) * np.abs(self.gradient(z, y))

    def steadiness(self, z, y, r):
        return np.exp(-r)

    def ceiling(self, z, y, r):
        return np.minimum(self.curvature(z, y)[..., 0, :] * np.exp(r), self.max_curvature)

    def conjugate_terms(self, a, y):
        return np.ones_like(a)[..., 0, :]

    def conjugate(self, a, y):
        # The derivative in the margin m = s z is -p with p in [0, 1].
        p = -a * y
        inside = (p >= 0) & (p <= 1)
        p = np.where(inside, p, 0.5)
        return np.where(inside, xlogy(p, p) + xlogy(1 - p, 1 - p), np.inf)[..., 0, :]

    def project(self, a, y):
        return -np.clip(-a * y, 0.0, 1.0) * y

    def proba(self, z):
        """Class probabilities of raw predictions ``(n_rows, 1)``."""
        return np.column_stack([expit(-z[:, 0]), expit(z[:, 0])])

    def plain_activation(self, n_outputs):
        return "logistic"


class Multinomial(LogLoss):
    """``logsumexp(z) - z_y``: log loss of three classes or more."""

    coupled = True
    max_curvature = 0.5

    def encode(self, y, n_classes, dtype):
        return np.asarray(y, dtype=np.intp)[:, None]

    @staticmethod
    def _codes(z, y):
        return np.broadcast_to(y, z.shape[:-2] + (1, z.shape[-1]))

    def value(self, z, y):
        chosen = np.take_along_axis(z, self._codes(z, y), axis=-2)[..., 0, :]
        top = z.max(axis=-2, keepdims=True)
        return np.log(np.exp(z - top).sum(axis=-2)) + top[..., 0, :] - chosen

    def gradient(self, z, y):
        p = self.probabilities(z)
        p -= y == np.arange(z.shape[-2])[:, None]
        return p

    @staticmethod
    def probabilities(z):
        """Softmax over the outputs, of the shape of `z`."""
        p = np.exp(z - z.max(axis=-2, keepdims=True))
        p /= p.sum(axis=-2, keepdims=True)
        return p

    def curvature(self, z, y):
        raise NotImplementedError("The outputs are coupled: see curvature_blocks.")

    def own_curvature(self, z, y, damping=0.0):
        p = self.probabilities(z)
        return p * (1.0 - p)

    def curvature_blocks(self, z, y, damping=0.0):
        p = self.probabilities(z)
        for a in range(z.shape[-2]):
            outputs = slice(a + 1)
            h = -p[..., a : a + 1, :] * p[..., outputs, :]
            h[..., a, :] = p[..., a, :] * (1.0 - p[..., a, :])
            yield a, outputs, h

    def curvature_factors(self, z, y, damping=0.0):
        # Cholesky factors of diag(p) - p p' (Tanabe and Sagae, 1992); the last column is zero.
        p = np.moveaxis(self.probabilities(z), -2, -1)
        left = np.cumsum(p[..., ::-1], axis=-1)[..., ::-1]
        after = np.maximum(left[..., 1:], np.finfo(p.dtype).tiny)
        p, own = p[..., None], p[..., :-1]
        pivots = np.sqrt(own * after / (own + after))
        R = np.tril(-p / after[..., None, :] * pivots[..., None, :], -1)
        np.einsum("...aa->...a", R[..., :-1, :])[:] = pivots
        return R

    def curvature_product(self, z, y, u, damping=0.0):
        p = self.probabilities(z)
        return p * (u - (p * u).sum(axis=-2, keepdims=True))

    def terms(self, z, y):
        return 3.0 * np.abs(z).max(axis=-2) + np.log(z.shape[-2])

    def slope_terms(self, z, y):
        p = self.probabilities(z)
        is_class = y == np.arange(z.shape[-2])[:, None]
        return (z.shape[-2] + np.abs(z).max(axis=-2, keepdims=True)) * p + is_class

    def steadiness(self, z, y, r):
        # Third derivatives are at most the spread of the move, sqrt(2) |r|, times the second.
        return np.exp(-np.sqrt(2.0) * r)

    def floor(self, z, y):
        return self.probabilities(z).min(axis=-2)

    def conjugate_terms(self, a, y):
        return np.full(a.shape[:-2] + a.shape[-1:], 1.0 + np.log(a.shape[-2]))

    def conjugate(self, a, y):
        p = a.copy()
        codes = self._codes(a, y)
        np.put_along_axis(p, codes, np.take_along_axis(p, codes, axis=-2) + 1.0, axis=-2)
        inside = (p >= -1e-12).all(axis=-2) & (np.abs(p.sum(axis=-2) - 1) <= 1e-10)
        p = np.where(inside[..., None, :], np.maximum(p, 0.0), 1.0)
        return np.where(inside, xlogy(p, p).sum(axis=-2), np.inf)

    def project(self, a, y):
        is_class = self._codes(a, y) == np.arange(a.shape[-2])[:, None]
        p = np.maximum(a + is_class, 0.0)
        total = p.sum(axis=-2, keepdims=True)
        return np.where(total > 0, p / np.maximum(total, 1e-300), is_class) - is_class

    def proba(self, z):
        """Class probabilities of raw predictions ``(n_rows, C)``."""
        return self.probabilities(z.T).T

    def plain_activation(self, n_outputs):
        return "softmax"
