"""Losses of linear predictions: values, derivatives, conjugates.

A leaf module: arrays in, arrays out.  Predictions ``z`` have shape ``(..., C, n)``, ``C``
outputs (1 unless there are several classes) by ``n`` rows; targets ``y`` are what
`encode` made of the user's, of shape ``(..., q, n)``, and broadcast.  Values have shape
``(..., n)``.  To add a loss, add a class here and an entry in `LOSSES`: the tests run
over that table.
"""

import numpy as np
from scipy.special import expit, xlogy


class Loss:
    """A convex, differentiable loss of a linear prediction.

    Attributes
    ----------
    classifier : bool
        Whether targets are class codes.
    max_curvature : float
        Bound of the second derivative (of the largest eigenvalue with several outputs);
        infinite where there is none.
    quadratic : bool
        Whether the second derivative is constant.
    coupled : bool
        Whether the outputs of a row depend on each other; then a vector added to all of
        them changes nothing.
    grounded : bool
        Whether 0 is the least value, whatever the target.
    """

    classifier = False
    quadratic = False
    coupled = False
    grounded = True
    max_curvature = np.inf

    def n_outputs(self, n_classes):
        """Outputs of a model: one, or one a class where there are more than two."""
        if not self.classifier or n_classes is None or n_classes <= 2:
            return 1
        return n_classes

    def check_target(self, y):
        """Raise a ValueError if the targets do not suit the loss."""

    def encode(self, y, n_classes, dtype):
        """Targets (n_rows,) as an array (n_rows, q) that the other methods read."""
        return np.asarray(y, dtype=dtype)[:, None]

    def value(self, z, y):
        """Loss of every row."""
        raise NotImplementedError

    def gradient(self, z, y):
        """Derivative in `z`, an array of the shape of `z`."""
        raise NotImplementedError

    def curvature(self, z, y):
        """Second derivative in `z`, of the shape of `z`; diagonal in the outputs."""
        raise NotImplementedError

    def newton_curvature(self, z, y, damping):
        """Second derivative, moved by `damping` of the way to the curvature of a parabola.

        The parabola touches the loss at `z` and lies above it: a step with all of its
        curvature never overshoots.  For losses whose second derivative vanishes in places;
        the others stay at the second derivative.
        """
        return self.curvature(z, y)

    def own_curvature(self, z, y, damping=0.0):
        """Second derivative (damped as above) of each output alone, of the shape of `z`."""
        return self.newton_curvature(z, y, damping)

    def curvature_product(self, z, y, u, damping=0.0):
        """Second derivative in `z` (damped as above) times `u`, arrays of the shape of `z`."""
        return self.newton_curvature(z, y, damping) * u

    def curvature_blocks(self, z, y, damping=0.0):
        """Second derivatives (damped as above) by pairs of outputs.

        Yields ``a, b, h`` with ``b <= a`` and `h` of the shape of the values.
        """
        h = self.newton_curvature(z, y, damping)
        for a in range(z.shape[-2]):
            yield a, a, h[..., a, :]

    def terms(self, z, y):
        """Size of the terms whose sum `value` is, of which its rounding is a few units."""
        return self.value(z, y)

    def slope_terms(self, z, y):
        """The same of `gradient`."""
        return np.abs(self.gradient(z, y))

    def steadiness(self, z, y, r):
        """Share of the second derivative that is left wherever the prediction moves by `r`.

        Parameters
        ----------
        z, y
            Predictions and targets.
        r : ndarray of shape (..., n)
            Euclidean length of the move of a row's predictions.

        Returns
        -------
        share : ndarray of shape (..., n)
        """
        return np.ones_like(r)

    def ceiling(self, z, y, r):
        """Bound of the second derivative wherever the prediction moves by `r`: (..., n)."""
        return np.full_like(r, self.max_curvature)

    def floor(self, z, y):
        """Least second derivative of the outputs, (..., n); of `coupled` ones about their mean."""
        return self.newton_curvature(z, y, 0.0).min(axis=-2)

    def conjugate(self, a, y):
        """Convex conjugate in `z` of every row; infinite outside of its domain."""
        raise NotImplementedError

    def conjugate_terms(self, a, y):
        """Size of the terms whose sum `conjugate` is."""
        raise NotImplementedError

    def project(self, a, y):
        """Slopes in the domain of the conjugate, `a` itself where it is inside."""
        raise NotImplementedError

    def output(self, z):
        """Predicted targets of raw predictions ``(n_rows, C)``."""
        return z[:, 0]


class SquaredError(Loss):
    """``(z - y)^2 / 2``."""

    quadratic = True
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

    def conjugate(self, a, y):
        return (a * (0.5 * a + y))[..., 0, :]

    def conjugate_terms(self, a, y):
        return (np.abs(a) * (0.5 * np.abs(a) + np.abs(y)))[..., 0, :]

    def project(self, a, y):
        return a


class Huber(Loss):
    """``r^2 / 2`` for ``|r| <= delta``, else ``delta (|r| - delta / 2)``, ``r = z - y``."""

    max_curvature = 1.0

    def __init__(self, delta):
        self.delta = delta

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


class Poisson(Loss):
    """``exp(z) - y z``, the half deviance of counts up to a constant; log link."""

    grounded = False

    def check_target(self, y):
        if y.size and y.min() < 0:
            raise ValueError(
                f"y must be non-negative for loss='poisson', got a smallest value of {y.min():g}."
            )

    def value(self, z, y):
        with np.errstate(over="ignore"):
            return (np.exp(z) - y * z)[..., 0, :]

    def gradient(self, z, y):
        with np.errstate(over="ignore"):
            return np.exp(z) - y

    def curvature(self, z, y):
        with np.errstate(over="ignore"):
            return np.exp(z)

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

    def output(self, z):
        with np.errstate(over="ignore"):
            return np.exp(z[:, 0])


class _ClassLoss(Loss):
    classifier = True

    def output(self, z):
        if z.shape[1] == 1:
            return (z[:, 0] > 0).astype(np.intp)
        return z.argmax(axis=1)


class Logistic(_ClassLoss):
    """``log(1 + exp(-s z))`` with the sign ``s`` of the class: log loss of two classes."""

    max_curvature = 0.25

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
        # In the margin m = s z the derivative is -p with p in [0, 1].
        p = -a * y
        inside = (p >= 0) & (p <= 1)
        p = np.where(inside, p, 0.5)
        return np.where(inside, xlogy(p, p) + xlogy(1 - p, 1 - p), np.inf)[..., 0, :]

    def project(self, a, y):
        return -np.clip(-a * y, 0.0, 1.0) * y

    def proba(self, z):
        """Class probabilities of raw predictions ``(n_rows, 1)``."""
        return np.column_stack([expit(-z[:, 0]), expit(z[:, 0])])


class Multinomial(_ClassLoss):
    """``logsumexp(z) - z_y``: log loss of three classes or more."""

    coupled = True
    max_curvature = 0.5

    def encode(self, y, n_classes, dtype):
        return np.asarray(y, dtype=np.intp)[:, None]

    @staticmethod
    def _codes(z, y):
        return np.broadcast_to(y, z.shape[:-2] + (1, z.shape[-1]))

    def value(self, z, y):
        own = np.take_along_axis(z, self._codes(z, y), axis=-2)[..., 0, :]
        top = z.max(axis=-2, keepdims=True)
        return np.log(np.exp(z - top).sum(axis=-2)) + top[..., 0, :] - own

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
            for b in range(a):
                yield a, b, -p[..., a, :] * p[..., b, :]
            yield a, a, p[..., a, :] * (1.0 - p[..., a, :])

    def curvature_product(self, z, y, u, damping=0.0):
        p = self.probabilities(z)
        return p * (u - (p * u).sum(axis=-2, keepdims=True))

    def terms(self, z, y):
        return 3.0 * np.abs(z).max(axis=-2) + np.log(z.shape[-2])

    def slope_terms(self, z, y):
        p = self.probabilities(z)
        own = y == np.arange(z.shape[-2])[:, None]
        return (z.shape[-2] + np.abs(z).max(axis=-2, keepdims=True)) * p + own

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
        own = self._codes(a, y) == np.arange(a.shape[-2])[:, None]
        p = np.maximum(a + own, 0.0)
        total = p.sum(axis=-2, keepdims=True)
        return np.where(total > 0, p / np.maximum(total, 1e-300), own) - own

    def proba(self, z):
        """Class probabilities of raw predictions ``(n_rows, C)``."""
        return self.probabilities(z.T).T


class SquaredHinge(_ClassLoss):
    """``max(0, 1 - s z)^2`` summed over the classes, one against the rest."""

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
        # Outputs are alone: where one is at its kink, all of the row is given up.
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


# Losses by their public name: kinds of estimator that may use them follow from the class.
LOSSES = {
    "squared_error": SquaredError,
    "huber": Huber,
    "poisson": Poisson,
    "log_loss": (Logistic, Multinomial),
    "squared_hinge": SquaredHinge,
}
REGRESSION_LOSSES = ("squared_error", "huber", "poisson")
CLASSIFICATION_LOSSES = ("log_loss", "squared_hinge")


def make_loss(name, *, n_classes=None, delta=1.35):
    """Loss object of a public name."""
    if name == "log_loss":
        binary, several = LOSSES[name]
        return binary() if n_classes is None or n_classes <= 2 else several()
    if name == "huber":
        return Huber(delta)
    return LOSSES[name]()
