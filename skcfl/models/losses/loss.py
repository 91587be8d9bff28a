"""The base of all losses."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LinearRegression

from ..._option_objects import Options
from .standardised import Standardised


class Loss(Options):
    """A convex, differentiable loss of a linear prediction, with a description of its properties.

    Predictions ``z`` have shape ``(..., C, n)``, ``C`` outputs (1 unless there are several
    classes) by ``n`` rows; targets ``y`` are what :meth:`encode` made of the user's, of shape
    ``(..., q, n)``, and broadcast.  Values have shape ``(..., n)``.

    A subclass gives :meth:`value`, :meth:`gradient`, :meth:`curvature`, :meth:`conjugate`,
    :meth:`conjugate_terms` and :meth:`project`, the attributes that differ, and :meth:`steadiness`
    and :meth:`ceiling` if its curvature is not constant.  Parameters of the loss are those of its
    constructor, which only assigns them; a grid search reaches them as ``loss__<name>``, and
    their constraints are in ``_parameter_constraints``.  :func:`skcfl.testing.check_loss` checks
    it, and the local models and estimators take it: ``LinearModel(loss=MyLoss())``.

    Attributes
    ----------
    name : str or None
        Name under which users choose the loss.
    classifier : bool
        True if targets are class codes.
    has_proba : bool
        True if there are class probabilities, from a method ``proba``.
    link : {"identity", "log"} or None
        Link of the prediction, which :meth:`output` inverts; None of classes.
    target_range : {"real", "non-negative", "positive"}
        Targets that are allowed.
    unknown_scale : bool
        True if the loss is minus a log-likelihood up to the unknown size of the noise only.
    degree : int
        Power of the size of the noise that the loss grows with: 2 of squares, 1 of absolute
        values.
    max_curvature : float
        Bound of the second derivative (of the largest eigenvalue with several outputs);
        infinite where there is none.
    quadratic : bool
        True if the second derivative is 1 everywhere, as half the squared error's.
    coupled : bool
        True if the outputs of a row depend on each other; then a vector added to all of them
        changes nothing.
    grounded : bool
        True if 0 is the least value, whatever the target.
    equivariant : bool
        True if the loss of standardised targets is the loss itself over their :meth:`unit`, up
        to terms without `z`.
    has_units : bool
        True if a parameter is in units of the standard deviation of the targets, which
        ``in_units(scale)`` fixes.
    is_likelihood : bool
        True if the loss over the dispersion is minus a log-density, up to :meth:`log_constant`.
    overdispersed : bool
        True if the dispersion may be more than the 1 that the distribution has, as of counts.

    Examples
    --------
    >>> from skcfl.models.losses import make_loss
    >>> loss = make_loss("poisson")
    >>> loss.link, loss.target_range, loss.unknown_scale, loss.max_curvature
    ('log', 'non-negative', False, inf)
    """

    name: str | None = None
    classifier = False
    has_proba = False
    link: str | None = "identity"
    target_range = "real"
    unknown_scale = False
    degree = 2
    quadratic = False
    coupled = False
    grounded = True
    equivariant = False
    has_units = False
    is_likelihood = False
    overdispersed = False
    max_curvature = np.inf

    def to_message(self):
        """Parameters that :meth:`from_message` makes the loss from, at a site."""
        return self.get_params(deep=False)

    @classmethod
    def from_message(cls, parts):
        """Loss of what :meth:`to_message` returned."""
        return cls(**parts)

    def for_classes(self, n_classes):
        """The loss for a number of classes, None where there are none: itself, or another."""
        return self

    def n_outputs(self, n_classes):
        """Outputs of a model: one, or one per class where there are more than two."""
        if not self.classifier or n_classes is None or n_classes <= 2:
            return 1
        return n_classes

    def check_target(self, y):
        """Raise a ValueError if the targets do not suit the loss."""
        least = np.inf if self.target_range == "real" or not np.size(y) else np.min(y)
        if least < 0 or (least == 0 and self.target_range == "positive"):
            loss = repr(self.name) if self.name else repr(self)
            raise ValueError(
                f"y must be {self.target_range} for loss={loss}, got a smallest value of "
                f"{least:g}."
            )

    def encode(self, y, n_classes, dtype):
        """Targets (n_rows,) as an array (n_rows, q) that the other methods read."""
        return np.asarray(y, dtype=dtype)[:, None]

    def _lacks(self, method):
        """The error of a method that the loss needs and does not have."""
        return NotImplementedError(f"loss={self!r} has no method {method}, which the fit needs.")

    def value(self, z, y):
        """Loss of every row."""
        raise self._lacks("value")

    def gradient(self, z, y):
        """Derivative in `z`, an array of the shape of `z`."""
        raise self._lacks("gradient")

    def curvature(self, z, y):
        """Second derivative in `z`, of the shape of `z`; diagonal in the outputs."""
        raise self._lacks("curvature")

    def curvature_slope(self, z, y):
        """Third derivative in `z`, of the shape of `z`; None if it is not known."""
        return None

    def newton_curvature(self, z, y, damping):
        """Second derivative, moved by `damping` of the way to the curvature of a parabola.

        The parabola touches the loss at `z` and lies above it: a step with all of its curvature
        never overshoots.  Losses with a vanishing second derivative need it; the others return the
        second derivative.
        """
        return self.curvature(z, y)

    def own_curvature(self, z, y, damping=0.0):
        """Second derivative (damped as above) of each output separately, of the shape of `z`."""
        return self.newton_curvature(z, y, damping)

    def curvature_product(self, z, y, u, damping=0.0):
        """Second derivative in `z` (damped as above) times `u`, arrays of the shape of `z`."""
        return self.newton_curvature(z, y, damping) * u

    def curvature_blocks(self, z, y, damping=0.0):
        """Second derivatives (damped as above) of each output with those up to itself.

        Yields ``a, outputs, h``: `outputs` is a slice that ends with output `a`, and `h` of shape
        (..., n_outputs_of_the_slice, n_samples) holds the derivatives by `a` and by each of these.
        Those of outputs before the slice are zero.
        """
        h = self.newton_curvature(z, y, damping)
        for a in range(z.shape[-2]):
            outputs = slice(a, a + 1)
            yield a, outputs, h[..., outputs, :]

    def curvature_factors(self, z, y, damping=0.0):
        """Factors R of each row's second derivatives ``R R'``, damped as above.

        They have shape (..., n, C, S), with S the largest rank of a second derivative or more.
        """
        W = np.zeros((*z.shape[:-2], z.shape[-1], z.shape[-2], z.shape[-2]))
        for a, outputs, h in self.curvature_blocks(z, y, damping):
            W[..., a, outputs] = W[..., outputs, a] = np.moveaxis(h, -2, -1)
        if z.shape[-2] == 1:
            return np.sqrt(np.maximum(W, 0.0))
        values, vectors = np.linalg.eigh(W)
        return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]

    def terms(self, z, y):
        """Size of the terms of the sum `value`, which is rounded to a few units of it."""
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
        raise self._lacks("conjugate")

    def conjugate_terms(self, a, y):
        """Size of the terms of the sum `conjugate`."""
        raise self._lacks("conjugate_terms")

    def project(self, a, y):
        """Slopes in the domain of the conjugate, `a` itself where it is inside."""
        raise self._lacks("project")

    def typical_curvature(self, mean):
        """Second derivative that automatic steps count with: the bound where there is one.

        Else that of targets of a mean (c,) where this is the prediction.
        """
        return self.max_curvature

    def unit(self, mean, scale):
        """Size of the loss of targets, relative to that of standardised ones."""
        if self.link == "identity":
            return scale**self.degree
        at = np.full((1, 1), self.raw(mean))
        return float(self.curvature(at, np.full((1, 1), mean)).item())

    def standardised(self, mean, scale):
        """The loss of standardised targets, relative to their unit.

        Targets are ``(y - mean) / scale`` under the identity link, ``y / mean`` under a log link.

        Parameters
        ----------
        mean, scale : float
            Mean and standard deviation of the targets; the first is positive under a log link.

        Returns
        -------
        loss : Loss
            Its slopes are this loss's over :meth:`unit`, up to the units of the predictions.
        """
        if self.equivariant:
            return self
        return Standardised(self, mean, scale, self.unit(mean, scale))

    def prior_unit(self, share, around):
        """Penalty that is a standard normal prior of a model's coefficients, times the rows.

        For losses with ``unknown_scale``, of features of variance 1.  Coefficients have the units
        of the target under the identity link, so that its variance is the prior's.

        Parameters
        ----------
        share : float
            Ratio of the mean loss of the model of all rows to that of a constant, in (0, 1].
        around : float
            Mean loss of the constant.
        """
        return share if self.link == "identity" else 2.0 * share * around

    def log_constant(self, y, dispersion):
        """Term added to ``-value / dispersion`` for the log-density of a target: (..., n).

        Only losses with ``is_likelihood`` have it.
        """
        raise self._lacks("log_constant")

    def dispersion_of(self, mean):
        """Dispersion of greatest likelihood where the deviance of a row is `mean` on average.

        Only losses with ``is_likelihood`` that have ``unknown_scale`` or are ``overdispersed``
        have it. The deviance is twice the loss above the least value that it can have.
        """
        return mean

    def output(self, z):
        """Predicted targets of raw predictions ``(n_rows, C)``."""
        if self.link == "identity":
            return z[:, 0]
        with np.errstate(over="ignore"):
            return np.exp(z[:, 0])

    def raw(self, mean):
        """Raw prediction of a constant target; 0 where no prediction is that target."""
        if self.link == "identity":
            return mean
        return float(np.log(mean)) if mean > 0 else 0.0

    def targets_raw(self, y):
        """Raw predictions near encoded targets, of losses with a log link; 0 of a target of 0."""
        return np.log(np.where(y > 0, y, 1.0))

    def plain_linear(self, fit_intercept):
        """Linear estimator of scikit-learn with this loss's predictions, not fitted.

        None if there is no such estimator.
        """
        return LinearRegression(fit_intercept=fit_intercept) if self.link == "identity" else None

    def plain_activation(self, n_outputs):
        """Activation of the last layer of scikit-learn's network with this loss, or None."""
        return {"identity": "identity", "log": "exp"}.get(self.link)


def as_fitted(estimator, **state):
    """Linear estimator of scikit-learn with what fitting leaves besides coefficients."""
    vars(estimator).update(state)
    if hasattr(estimator, "_get_loss"):
        estimator._base_loss = estimator._get_loss()
    return estimator


class ClassLoss(Loss):
    """Base of the losses with class codes as targets."""

    classifier = True
    link = None

    def codes(self, y):
        """Class codes (..., n) of encoded targets (..., q, n)."""
        if y.dtype.kind in "iu":
            return y[..., 0, :]
        if y.shape[-2] == 1:
            return (y[..., 0, :] > 0).astype(np.intp)
        return y.argmax(axis=-2)

    def output(self, z):
        """Class codes of raw predictions ``(n_rows, C)``."""
        if z.shape[1] == 1:
            return (z[:, 0] > 0).astype(np.intp)
        return z.argmax(axis=1)
