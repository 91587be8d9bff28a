"""Amounts that may be zero: the half deviance of Tweedie's distributions."""

from numbers import Real

import numpy as np
from scipy.special import xlogy
from sklearn.linear_model import TweedieRegressor

from ..._checks import Interval
from .gamma import Gamma, log_of
from .loss import Loss, as_fitted
from .poisson import Poisson

# Most Newton steps of the conjugate; its value is a bound after any number of them.
STEPS = 40
# Ratio of the two powers from which they are sought otherwise.
STEEP = 1e6


class Tweedie(Loss):
    """Half deviance of variance ``mu^power``, ``mu = exp(z)``, for a power between 1 and 2.

    With ``p = 2 - power`` and ``q = power - 1`` it is ``exp(p z) / p + y exp(-q z) / q`` minus
    ``y^p / (p q)``; where y is positive and ``u = z - log y``, that is ``y^p`` times
    ``expm1(p u) / p + expm1(-q u) / q``.  The ends are Poisson's and the gamma loss; beyond them
    the deviance is not convex under the log link.

    Parameters
    ----------
    power : float, default=1.5
        Power of the mean that the variance grows with, from 1, Poisson's loss, to 2, the gamma
        loss.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import Tweedie
    >>> Tweedie(power=1.2).gradient(np.zeros((1, 2)), np.array([[0.0, 1.0]]))
    array([[1., 0.]])
    """

    name = "tweedie"
    _parameter_constraints = {"power": [Interval(Real, 1, 2, closed="both")]}
    link = "log"
    equivariant = True
    target_range = "non-negative"
    unknown_scale = True

    def __init__(self, power=1.5):
        self.power = power

    def for_classes(self, n_classes):
        return {1: Poisson, 2: Gamma}.get(self.power, lambda: self)()

    @property
    def _powers(self):
        return 2.0 - self.power, self.power - 1.0

    def _parts(self, z, y):
        """Logarithms of targets, and the two terms ``exp(p z)`` and ``y exp(-q z)``."""
        p, q = self._powers
        L = log_of(y)
        return L, np.exp(p * z), np.where(y > 0, np.exp(L - q * z), 0.0).astype(z.dtype)

    def _values(self, z, y):
        p, q = self._powers
        L = log_of(y)
        u, size = z - L, np.exp(p * L)
        first = np.where(y > 0, size * np.expm1(p * u), np.exp(p * z)) / p
        return first, np.where(y > 0, size * np.expm1(-q * u), 0.0) / q

    def value(self, z, y):
        with np.errstate(over="ignore"):
            first, second = self._values(z, y)
            return (first + second).astype(z.dtype, copy=False)[..., 0, :]

    def gradient(self, z, y):
        with np.errstate(over="ignore"):
            _, up, down = self._parts(z, y)
            return up - down

    def curvature(self, z, y):
        p, q = self._powers
        with np.errstate(over="ignore"):
            _, up, down = self._parts(z, y)
            return p * up + q * down

    def terms(self, z, y):
        with np.errstate(over="ignore"):
            first, second = self._values(z, y)
            sizes = (1.0 + np.abs(log_of(y))) * (np.abs(first) + np.abs(second))
        return (sizes + self.slope_terms(z, y))[..., 0, :]

    def slope_terms(self, z, y):
        with np.errstate(over="ignore"):
            L, up, down = self._parts(z, y)
            return (1.0 + np.abs(z) + np.abs(L)) * (up + down)

    def steadiness(self, z, y, r):
        return np.exp(-max(self._powers) * r)

    def ceiling(self, z, y, r):
        with np.errstate(over="ignore"):
            return self.curvature(z, y)[..., 0, :] * np.exp(max(self._powers) * r)

    def _split(self, a, y):
        """Slopes ``b`` and ``b - a`` of the two terms, near where their prices are least.

        Solves ``w - w^-k = |t|`` in units of ``y^p`` by Newton's method from below, where it is
        concave.
        """
        p, q = self._powers
        size = np.where(y > 0, np.exp(p * log_of(y)), 1.0)
        t = a / size
        up, b = t >= 0, np.abs(t)
        k = np.where(up, q / p, p / q)
        w = np.maximum(b, 1.0)
        for _ in range(STEPS):
            power = w**-k
            step = (b + power - w) / (1.0 + k * power / w)
            w = np.maximum(w + step, 1.0)
            if not (np.abs(step) > 1e-15 * w).any():
                break
        small = w**-k
        if k.max() > STEEP:
            # Uses l = k log w: powers near 1 or 2 would leave w no digits.
            ell = k * np.log(w)
            for _ in range(STEPS):
                fall = np.exp(-ell)
                step = (b + np.expm1(-ell) - np.expm1(ell / k)) / (fall + np.exp(ell / k) / k)
                ell = np.maximum(ell + step, 0.0)
                if not (np.abs(step) > 1e-15 * (1.0 + ell)).any():
                    break
            small = np.exp(-ell)
        small = np.where(y > 0, small, 0.0)
        large = b + small
        return size, np.where(up, large, small), np.where(up, small, large)

    def conjugate(self, a, y):
        # The conjugate of a sum is the least sum of conjugates over ways to split the slope: any
        # of them is a bound.
        p, q = self._powers
        with np.errstate(over="ignore", invalid="ignore"):
            size, b, s = self._split(a, y)
            bound = a * log_of(y) + size * (_entropy(b) / p + _entropy(s) / q)
            bound = np.where(y > 0, bound, np.where(a >= 0, (xlogy(b, b) - b) / p, np.inf))
        return np.where(np.isnan(bound), np.inf, bound)[..., 0, :]

    def conjugate_terms(self, a, y):
        p, q = self._powers
        with np.errstate(over="ignore", invalid="ignore"):
            size, b, s = self._split(a, y)
            parts = (np.abs(xlogy(b, b)) + np.abs(b - 1.0)) / p
            parts += np.where(y > 0, (np.abs(xlogy(s, s)) + np.abs(s - 1.0)) / q, 0.0)
            parts += np.where(y > 0, 0.0, 1.0 / p)
            sizes = np.abs(a) * np.where(y > 0, np.abs(log_of(y)), 0.0)
            sizes = sizes + size * (1.0 + np.where(y > 0, p * np.abs(log_of(y)), 0.0)) * parts
        return np.where(np.isnan(sizes), np.inf, sizes)[..., 0, :]

    def project(self, a, y):
        return np.where(y > 0, a, np.maximum(a, 0.0))

    def typical_curvature(self, mean):
        return mean ** self._powers[0]

    def plain_linear(self, fit_intercept):
        plain = TweedieRegressor(power=self.power, link="log", fit_intercept=fit_intercept)
        return as_fitted(plain)


def _entropy(x):
    """``x log x - x + 1``, also where `x` is near 1."""
    return xlogy(x, x) - (x - 1.0)
