"""Counts: the half deviance of Poisson's distribution."""

import numpy as np
from scipy.special import gammaln, xlogy
from sklearn.linear_model import PoissonRegressor

from .loss import Loss, as_fitted


class Poisson(Loss):
    """``exp(z) - y z``, the half deviance of counts up to a constant; log link.

    With a dispersion other than 1 the likelihood is that of the double Poisson distribution
    (Efron, 1986), without its normalising constant, which is nearly 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import Poisson
    >>> Poisson().value(np.array([[0.0, 1.0]]), np.array([[1.0, 1.0]]))
    array([1.        , 1.71828183])
    """

    name = "poisson"
    link = "log"
    equivariant = True
    target_range = "non-negative"
    grounded = False
    is_likelihood = True
    overdispersed = True

    def value(self, z, y):
        with np.errstate(over="ignore"):
            return (np.exp(z) - y * z)[..., 0, :]

    def gradient(self, z, y):
        with np.errstate(over="ignore"):
            return np.exp(z) - y

    def curvature(self, z, y):
        with np.errstate(over="ignore"):
            return np.exp(z)

    def curvature_slope(self, z, y):
        return self.curvature(z, y)

    def terms(self, z, y):
        with np.errstate(over="ignore"):
            return (np.exp(z) * (1.0 + np.abs(z)) + np.abs(y * z))[..., 0, :]

    def slope_terms(self, z, y):
        with np.errstate(over="ignore"):
            return np.exp(z) * (1.0 + np.abs(z)) + y

    def steadiness(self, z, y, r):
        return np.exp(-r)

    def ceiling(self, z, y, r):
        with np.errstate(over="ignore"):
            return np.exp(z[..., 0, :] + r)

    def conjugate_terms(self, a, y):
        s = np.maximum(a + y, 0.0)
        return (np.abs(xlogy(s, s)) + (1.0 + np.abs(np.log(np.maximum(s, 1e-300)))) * (s + y))[
            ..., 0, :
        ]

    def conjugate(self, a, y):
        s = a + y
        inside = s >= 0
        s = np.where(inside, s, 1.0)
        return np.where(inside, xlogy(s, s) - s, np.inf)[..., 0, :]

    def project(self, a, y):
        return np.maximum(a, -y)

    def typical_curvature(self, mean):
        return mean

    def log_constant(self, y, dispersion):
        y = y[..., 0, :]
        least = y - xlogy(y, y)
        return (1.0 / dispersion - 1.0) * least - gammaln(y + 1.0) - 0.5 * np.log(dispersion)

    def dispersion_of(self, mean):
        return max(mean, 1.0)

    def plain_linear(self, fit_intercept):
        return as_fitted(PoissonRegressor(fit_intercept=fit_intercept))
