"""Huber's loss."""

import numpy as np
from sklearn.linear_model import HuberRegressor

from ..._checks import POSITIVE
from .loss import Loss, as_fitted


class Huber(Loss):
    """Squares of small residuals, absolute values of large ones, so that outliers count less.

    ``r^2 / 2`` for ``|r| <= delta``, else ``delta (|r| - delta / 2)``, ``r = z - y``.

    Parameters
    ----------
    delta : float, default=1.35
        Residual at which the loss becomes linear, in units of the target.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import Huber
    >>> Huber(delta=2.0).value(np.array([[1.0, 10.0]]), np.zeros((1, 2)))
    array([ 0.5, 18. ])
    """

    name = "huber"
    _parameter_constraints = {"delta": [POSITIVE]}
    unknown_scale = True
    max_curvature = 1.0

    def __init__(self, delta=1.35):
        self.delta = delta

    def unit(self, mean, scale):
        return scale * min(scale, self.delta)

    def value(self, z, y):
        r = np.abs(z - y)
        inner = np.minimum(r, self.delta)
        return (inner * (r - 0.5 * inner))[..., 0, :]

    def gradient(self, z, y):
        return np.clip(z - y, -self.delta, self.delta)

    def curvature(self, z, y):
        return (np.abs(z - y) <= self.delta).astype(z.dtype)

    def newton_curvature(self, z, y, damping):
        r = np.abs(z - y)
        return np.where(r <= self.delta, 1.0, damping * self.delta / np.maximum(r, self.delta))

    def steadiness(self, z, y, r):
        return (np.abs(z - y)[..., 0, :] + r <= self.delta).astype(float)

    def conjugate_terms(self, a, y):
        return (np.abs(a) * (0.5 * np.abs(a) + np.abs(y)))[..., 0, :]

    def conjugate(self, a, y):
        inside = np.abs(a) <= self.delta * (1 + 1e-12)
        return np.where(inside, a * (0.5 * a + y), np.inf)[..., 0, :]

    def project(self, a, y):
        return np.clip(a, -self.delta, self.delta)

    def plain_linear(self, fit_intercept):
        epsilon = max(self.delta, 1.0)
        return as_fitted(HuberRegressor(epsilon=epsilon, fit_intercept=fit_intercept), scale_=1.0)
