"""Local models with a loss of their predictions: shared parts."""

import copy
from math import isfinite

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._checks import NOT_NEGATIVE
from ..federation.checking import check_numbers
from ._local_model import check_class_weight
from .losses import LOSSES, Loss, make_loss
from .losses.shifted import Shifted

LOSS_CONSTRAINTS = {
    "alpha": [StrOptions({"auto"}), NOT_NEGATIVE],
    "loss": [StrOptions(set(LOSSES)), Loss],
    "class_weight": [StrOptions({"balanced"}), dict, None],
}
# Features up to which the automatic prior is standard normal, and least variance of predictions
# with more, relative to the targets' or in logits (doc/benchmarks/real_data.rst).
STANDARD_FEATURES, PREDICTED_VARIANCE = 10, 2.0


def of_loss(name, doc):
    """Property that is the loss's own."""
    return property(lambda self: getattr(self.describe_loss(), name), doc=doc)


class SupervisedMixin:
    """A local model with a parameter ``loss``, left of the model: it asks the loss what it is."""

    def describe_loss(self):
        """Return the loss, of models that are not bound too."""
        if "kernel" in vars(self):
            return self.kernel
        named = isinstance(self.loss, str) and self.loss in LOSSES
        if not named and not isinstance(self.loss, Loss):
            return Loss()  # not valid, which bind says
        return make_loss(self.loss)

    def _bind_loss(self):
        check_class_weight(self)
        self.kernel = make_loss(self.loss, self.n_classes)
        self.n_outputs = self.kernel.n_outputs(self.n_classes)

    @property
    def estimator_type(self):
        """Kind of estimator that the loss makes."""
        return "classifier" if self.describe_loss().classifier else "regressor"

    has_proba = of_loss("has_proba", "True if the model predicts probabilities.")
    unknown_scale = of_loss(
        "unknown_scale", "True if the size of the noise is unknown: not for counts and classes."
    )
    has_units = of_loss(
        "has_units", "True if training needs the mean and the standard deviation of the targets."
    )
    loss_degree = of_loss("degree", "Power of the size of the noise that the loss grows with.")
    grounded = of_loss("grounded", "True if 0 is the least loss of any row.")

    def in_units(self, mean, scale):
        """Copy of a bound model that knows the mean and the standard deviation of the targets.

        They may be a server's message: one number for all rows, as one for each would let it ask
        about single rows.
        """
        check_numbers("mean of the targets", mean, ())
        check_numbers("scale of the targets", scale, (), least=np.finfo(float).tiny)
        model = copy.copy(self)
        model.units_ = mean, scale
        if self.kernel.has_units:
            model.kernel = self.kernel.in_units(scale)
        return model

    @property
    def bounded_curvature(self):
        """True if the curvature of the loss is bounded."""
        return isfinite(self.describe_loss().max_curvature)

    def penalised(self, alpha):
        """Copy of a bound model with another local penalty."""
        other = copy.copy(self)
        other._penalise(alpha)
        return other

    #: Noise that ``alpha="auto"`` takes where it is not estimated, in variances of the targets.
    usual_noise = 1.0

    def prior_unit(self, share, around):
        """Penalty that is a standard normal prior of the coefficients, times the rows."""
        return self.kernel.prior_unit(share, around)

    def least_prior_variance(self, squared_norm):
        """1 with few features; with many that at which predictions vary as targets do."""
        return PREDICTED_VARIANCE / max(squared_norm - STANDARD_FEATURES, PREDICTED_VARIANCE)

    def check_target(self, y):
        """Raise a ValueError if the targets do not suit the loss."""
        self.describe_loss().check_target(y)

    def output(self, raw):
        """Predicted targets, or class codes, of raw predictions."""
        return self.kernel.output(raw)

    def proba(self, raw):
        """Class probabilities of raw predictions."""
        return self.kernel.proba(raw)

    def scores(self, raw):
        """Confidence scores of raw predictions: (n_rows,) with two classes."""
        return raw[:, 0] if self.n_outputs == 1 else raw

    def beside(self, y, offset):
        """Model and targets of rows with an offset that is added to their predictions.

        Parameters
        ----------
        y : ndarray of shape (..., q, n_rows)
            Encoded targets, of this model.
        offset : ndarray of shape (..., n_outputs, n_rows)
            What is added to the raw predictions.

        Returns
        -------
        model : LocalModel
            This one for squared error, where the offset is taken from the targets; else one with
            a loss that knows the offset.
        y : ndarray
            Its targets.
        """
        if self.kernel.quadratic:
            return self, y - offset
        if isinstance(self.kernel, Shifted):
            at = self.kernel.n_targets
            return self, np.concatenate([y[..., :at, :], y[..., at:, :] + offset], axis=-2)
        model = copy.copy(self)
        model.kernel = Shifted(self.kernel, y.shape[-2], y.dtype.kind in "iu")
        return model, np.concatenate([y, offset], axis=-2)

    def row_losses(self, X, y, params, index):
        """Loss of every row, no penalty."""
        z = self.decision(X, params, index).T
        return self.kernel.value(z, self.encode(y, X.shape[0]).T)
