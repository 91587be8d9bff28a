"""Half the squared error."""

import numpy as np

from .loss import Loss


class SquaredError(Loss):
    """``(z - y)^2 / 2``.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.models.losses import SquaredError
    >>> SquaredError().value(np.array([[0.0, 1.0]]), np.array([[2.0, 2.0]]))
    array([2. , 0.5])
    """

    name = "squared_error"
    unknown_scale = True
    quadratic = True
    equivariant = True
    is_likelihood = True
    max_curvature = 1.0

    def value(self, z, y):
        r = z - y
        r *= r
        r *= 0.5
        return r[..., 0, :]

    def gradient(self, z, y):
        return z - y

    def curvature(self, z, y):
        return np.ones_like(z)

    def curvature_slope(self, z, y):
        return np.zeros_like(z)

    def conjugate(self, a, y):
        return (a * (0.5 * a + y))[..., 0, :]

    def conjugate_terms(self, a, y):
        return (np.abs(a) * (0.5 * np.abs(a) + np.abs(y)))[..., 0, :]

    def project(self, a, y):
        return a

    def log_constant(self, y, dispersion):
        return np.full_like(y[..., 0, :], -0.5 * np.log(2.0 * np.pi * dispersion))
