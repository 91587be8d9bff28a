"""Squared hinge loss."""

import numpy as np
from sklearn.svm import LinearSVC

from .loss import ClassLoss, as_fitted


class SquaredHinge(ClassLoss):
    """``max(0, 1 - s z)^2`` summed over the classes, one against the rest.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import SquaredHinge
    >>> SquaredHinge().value(np.array([[0.0, 2.0]]), np.array([[1.0, 1.0]]))
    array([1., 0.])
    """

    name = "squared_hinge"
    max_curvature = 2.0

    def encode(self, y, n_classes, dtype):
        y = np.asarray(y)
        if self.n_outputs(n_classes) == 1:
            return np.where(y > 0, 1.0, -1.0).astype(dtype)[:, None]
        return np.where(y[:, None] == np.arange(n_classes), 1.0, -1.0).astype(dtype)

    def value(self, z, y):
        m = np.maximum(1.0 - z * y, 0.0)
        m *= m
        return m.sum(axis=-2)

    def gradient(self, z, y):
        return -2.0 * y * np.maximum(1.0 - z * y, 0.0)

    def curvature(self, z, y):
        return np.where(z * y < 1.0, 2.0, 0.0).astype(z.dtype)

    def newton_curvature(self, z, y, damping):
        return np.where(z * y < 1.0, 2.0, 2.0 * damping).astype(z.dtype)

    def slope_terms(self, z, y):
        return np.where(z * y < 1.0, 2.0 * (1.0 + np.abs(z)), 0.0)

    def steadiness(self, z, y, r):
        # Outputs are separate: if one is at its kink, all of the row is given up.
        m = z * y
        return (np.where(m < 1.0, m + r[..., None, :] < 1.0, True).all(axis=-2)).astype(float)

    def conjugate_terms(self, a, y):
        m = np.abs(a * y)
        return (m + 0.25 * m * m).sum(axis=-2)

    def conjugate(self, a, y):
        m = a * y
        return np.where(m <= 0, m + 0.25 * m * m, np.inf).sum(axis=-2)

    def project(self, a, y):
        return np.minimum(a * y, 0.0) * y

    def plain_linear(self, fit_intercept):
        return as_fitted(LinearSVC(fit_intercept=fit_intercept), n_iter_=0)
