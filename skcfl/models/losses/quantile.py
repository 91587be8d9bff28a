"""Quantiles: the pinball loss, smoothed."""

from __future__ import annotations

import copy
from numbers import Real

import numpy as np
from scipy.special import ndtri
from sklearn.linear_model import QuantileRegressor

from ..._checks import POSITIVE, Interval
from ..._option_objects import parameters
from .loss import Loss, as_fitted


@parameters
class Quantile(Loss):
    """Pinball loss of a quantile, its kink replaced by a parabola of some width.

    With ``r = z - y``, c = 1/2 - quantile and h the width, which is `smoothing` times the scale of
    the targets, the derivative is ``r / h + c``, clipped to ``[-quantile, 1 - quantile]``: the
    mean of the pinball loss's over a window of width h.  Beyond ``h / 2`` the loss is the pinball
    loss minus the constant ``h quantile (1 - quantile) / 2``, which makes 0 the least value.  The
    window is centred, so that the error of the quantile is of order h squared.  (Convolution
    smoothing: Fernandes, Guerre and Horta, 2021; He, Pan, Tan and Zhou, 2023.)

    Parameters
    ----------
    quantile : float, default=0.5
        Which quantile is predicted, in (0, 1).
    smoothing : float, default=0.1
        Width of the window, in standard deviations of the target, which estimators find as they
        do those of features (outside of an estimator in units of the target).  The error of the
        quantile is of the order of its square, and fits take longer the narrower it is.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import Quantile
    >>> Quantile(0.9).gradient(np.array([[-5.0, 5.0]]), np.zeros((1, 2)))
    array([[-0.9,  0.1]])
    """

    name = "quantile"
    _parameter_constraints = {
        "quantile": [Interval(Real, 0, 1, closed="neither")],
        "smoothing": [POSITIVE],
    }
    unknown_scale = True
    degree = 1
    has_units = True
    #: Standard deviation of the targets.
    scale = 1.0

    quantile: float = 0.5
    smoothing: float = 0.1

    @property
    def width(self):
        """Width of the window, in units of the target."""
        return self.smoothing * self.scale

    @property
    def max_curvature(self):
        """One over the width of the window."""
        return 1.0 / self.width

    @property
    def _tilt(self):
        return 0.5 - self.quantile

    def _pieces(self, z, y):
        """Huber's function over h, the tilted line, and the constant."""
        h, c = self.width, self._tilt
        r = z - y
        inner = np.minimum(np.abs(r), 0.5 * h)
        return inner / h * (np.abs(r) - 0.5 * inner), c * r, 0.5 * c * c * h

    def in_units(self, scale):
        """The same loss with a window that is `smoothing` times the scale of the targets."""
        loss = copy.copy(self)
        loss.scale = scale
        return loss

    def value(self, z, y):
        bent, line, constant = self._pieces(z, y)
        return (bent + line + constant)[..., 0, :]

    def gradient(self, z, y):
        slope = (z - y) / self.width + self._tilt
        return np.clip(slope, -self.quantile, 1.0 - self.quantile)

    def curvature(self, z, y):
        return np.where(np.abs(z - y) <= 0.5 * self.width, self.max_curvature, 0.0).astype(z.dtype)

    def newton_curvature(self, z, y, damping):
        r, h = np.abs(z - y), self.width
        return np.where(r <= 0.5 * h, 1.0 / h, damping * 0.5 / np.maximum(r, 0.5 * h))

    def terms(self, z, y):
        bent, line, constant = self._pieces(z, y)
        return (bent + np.abs(line) + constant)[..., 0, :]

    def slope_terms(self, z, y):
        return np.minimum(np.abs(z - y) / self.width, 0.5) + abs(self._tilt)

    def steadiness(self, z, y, r):
        return (np.abs(z - y)[..., 0, :] + r <= 0.5 * self.width).astype(float)

    def conjugate(self, a, y):
        h, c = self.width, self._tilt
        inside = np.abs(a - c) <= 0.5 * (1 + 1e-12)
        return np.where(inside, a * (y + h * (0.5 * a - c)), np.inf)[..., 0, :]

    def conjugate_terms(self, a, y):
        size = np.abs(y) + self.width * (0.5 * np.abs(a) + abs(self._tilt))
        return (np.abs(a) * size)[..., 0, :]

    def project(self, a, y):
        return np.clip(a, -self.quantile, 1.0 - self.quantile)

    def prior_unit(self, share, around):
        # The mean loss is the scale of Laplace's asymmetric distribution; that of a constant is
        # the standard deviation of normal targets times the density at the quantile.
        density = np.exp(-0.5 * ndtri(self.quantile) ** 2) / np.sqrt(2.0 * np.pi)
        return share * density**2 / around

    def plain_linear(self, fit_intercept):
        plain = QuantileRegressor(quantile=self.quantile, fit_intercept=fit_intercept)
        return as_fitted(plain, n_iter_=0)
