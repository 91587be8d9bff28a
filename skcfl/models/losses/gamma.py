"""Positive amounts: the half deviance of the gamma distribution."""

import numpy as np
from scipy.special import xlogy
from sklearn.linear_model import GammaRegressor

from .loss import Loss


class Gamma(Loss):
    """``y / mu - log(y / mu) - 1`` with ``mu = exp(z)``: half deviance, log link.

    With ``u = z - log y`` it is ``exp(-u) - 1 + u``.
    """

    name = "gamma"
    link = "log"
    target_range = "positive"
    unknown_scale = True

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
        # At the mean 1, and at zero, where training starts, the mean.
        return np.maximum(1.0, mean)

    def plain_linear(self, fit_intercept):
        estimator = GammaRegressor(fit_intercept=fit_intercept)
        estimator._base_loss = estimator._get_loss()
        return estimator


def log_of(y):
    """Logarithm of targets; what is not positive (rows of padding are zero) counts as tiny."""
    return np.log(np.maximum(y, np.finfo(y.dtype).tiny))
