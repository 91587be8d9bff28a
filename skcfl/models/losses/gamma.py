"""Positive amounts: the half deviance of the gamma distribution."""

import numpy as np
from scipy.special import gammaln, polygamma, psi, xlogy
from sklearn.linear_model import GammaRegressor

from .loss import Loss, as_fitted

# Most steps to the shape of greatest likelihood, and the mean loss below which none is needed.
NEWTON_STEPS, SERIES = 30, 1e-4
# Least mean deviance of a row, targets within a ten thousandth of their means: with less, the
# posteriors of rows that can be interpolated are beyond rounding.
LEAST = 1e-8


class Gamma(Loss):
    """``y / mu - log(y / mu) - 1`` with ``mu = exp(z)``: half deviance, log link.

    With ``u = z - log y`` it is ``exp(-u) - 1 + u``.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import Gamma
    >>> Gamma().value(np.array([[0.0, 1.0]]), np.array([[1.0, 1.0]]))
    array([0.        , 0.36787944])
    """

    name = "gamma"
    link = "log"
    equivariant = True
    target_range = "positive"
    unknown_scale = True
    is_likelihood = True

    def value(self, z, y):
        with np.errstate(over="ignore"):
            u = z - log_of(y)
            return (np.expm1(-u) + u)[..., 0, :]

    def gradient(self, z, y):
        with np.errstate(over="ignore"):
            return -np.expm1(log_of(y) - z)

    def curvature(self, z, y):
        with np.errstate(over="ignore"):
            return np.exp(log_of(y) - z)

    def terms(self, z, y):
        return self.slope_terms(z, y)[..., 0, :]

    def slope_terms(self, z, y):
        with np.errstate(over="ignore"):
            L = log_of(y)
            return (1.0 + np.abs(z) + np.abs(L)) * (1.0 + np.exp(L - z))

    def steadiness(self, z, y, r):
        return np.exp(-r)

    def ceiling(self, z, y, r):
        with np.errstate(over="ignore"):
            return np.exp((log_of(y) - z)[..., 0, :] + r)

    def conjugate(self, a, y):
        s = 1.0 - a
        inside = s >= 0
        s = np.where(inside, s, 1.0)
        return np.where(inside, a * (log_of(y) + 1.0) + xlogy(s, s), np.inf)[..., 0, :]

    def conjugate_terms(self, a, y):
        s = np.maximum(1.0 - a, 0.0)
        sizes = np.abs(a) * (np.abs(log_of(y)) + 1.0) + np.abs(xlogy(s, s))
        # Rounding of s, one at least, counts as much as the logarithm of s.
        slope = 1.0 + np.abs(np.log(np.maximum(s, 1e-300)))
        return (sizes + slope * (1.0 + np.abs(a)))[..., 0, :]

    def project(self, a, y):
        return np.minimum(a, 1.0)

    def typical_curvature(self, mean):
        return np.ones_like(mean)

    def log_constant(self, y, dispersion):
        # The dispersion is one over the shape.
        shape = 1.0 / dispersion
        return shape * (np.log(shape) - 1.0) - gammaln(shape) - log_of(y)[..., 0, :]

    def dispersion_of(self, mean):
        # The root of log(shape) - digamma(shape) = mean / 2. For large shapes that is
        # 1 / (2 shape) + 1 / (12 shape^2), else Newton's method in the logarithm finds it.
        half = 0.5 * max(mean, LEAST)
        dispersion = 4.0 * half / (1.0 + np.sqrt(1.0 + 4.0 * half / 3.0))
        if half < SERIES:
            return dispersion
        shape = max(1.0 / dispersion, 0.5 / half)
        for _ in range(NEWTON_STEPS):
            gap = np.log(shape) - psi(shape)
            ahead = gap * np.log(gap / half) / (shape * polygamma(1, shape) - 1.0)
            shape *= np.exp(ahead)
            if abs(ahead) < 1e-12:
                break
        return 1.0 / float(shape)

    def plain_linear(self, fit_intercept):
        return as_fitted(GammaRegressor(fit_intercept=fit_intercept))


def log_of(y):
    """Logarithm of targets; those that are not positive (zeros of padding) count as tiny."""
    return np.log(np.maximum(y, np.finfo(y.dtype).tiny))
