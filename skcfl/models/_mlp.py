"""Multi-layer perceptron as a local model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from .._option_objects import parameters
from .._typing import Activation, ClassWeight, LayerSizes
from ._network import NETWORK_CONSTRAINTS, Network
from ._supervised import LOSS_CONSTRAINTS, SupervisedMixin
from .losses.standardised import Standardised

if TYPE_CHECKING:
    from .losses import Loss


@parameters
class MLP(SupervisedMixin, Network):  # type: ignore[override]
    r"""Multi-layer perceptron: regression or classification by a feed-forward network.

    Client i's objective is the mean loss of its rows plus the penalty
    :math:`\frac{\alpha}{2} \sum_l \|W_l\|^2` of the weights of all layers; biases are free.  The
    loss sees the last layer's units without an activation, so that every loss of
    :class:`LinearModel` serves.  Without hidden layers it is that model.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(100,)
        Units of each hidden layer.
    activation : {"relu", "tanh", "logistic", "identity"}, default="relu"
        Activation of the hidden layers.
    loss : str or Loss, default="log_loss"
        The loss, as of :class:`~skcfl.models.LinearModel`: "log_loss" and "squared_hinge" make a
        classifier, the first with probabilities; "squared_error", "huber", "quantile",
        "poisson", "gamma" and "tweedie" a regressor, the last three of the exponential of the
        network.
    alpha : "auto" or float, default="auto"
        L2 penalty of the weights, relative to a client's mean loss; scikit-learn's
        networks divide theirs by the number of rows.  "auto" leaves it to the estimator, as of
        :class:`~skcfl.models.LinearModel`, with a noise of three tenths of the targets' variance.
    precision : {"single", "double"}, default="single"
        Floating type of parameters and computations, whatever the type of the rows.  Single
        precision is twice as fast, and training is not exact anyway.
    standardize : bool, default=True
        Whether an estimator trains the network on features, and targets of a regression, of
        mean 0 and variance 1 over the rows of all clients: the first steps of a network are lost
        on others.  Positive targets (of a log link) are divided by their mean.  Penalty and
        parameters are those of the standardised rows; predictions, losses of rows and
        ``weights`` are in the user's units.  False suits features that have one unit, such as
        pixels.
    class_weight : {"balanced"}, dict or None, default=None
        Factor of the weights of each class's rows, for classifiers, as of
        :class:`~skcfl.models.LinearModel`.

    Notes
    -----
    Parameters of a model are one vector; ``layer_slices()`` of a bound model names its layers
    ``"hidden1"``, ``"hidden2"``, ..., ``"output"``, each with its weights and biases, which
    ``weights(params)`` returns as scikit-learn shapes them.  Random starts are those of
    scikit-learn (Glorot and Bengio, 2010).

    Examples
    --------
    >>> from skcfl.models import MLP
    >>> model = MLP((16, 8)).bind(n_features=4, n_classes=3)
    >>> model.estimator_type, model.n_outputs, model.n_params
    ('classifier', 3, 243)
    >>> model.layer_slices()["hidden2"]
    slice(80, 216, None)
    """

    _parameter_constraints = {
        **NETWORK_CONSTRAINTS,
        **LOSS_CONSTRAINTS,
    }
    # Of .03 to 3, the best on 56 tables (doc/benchmarks/real_data.rst).
    usual_noise = 0.3

    hidden_layer_sizes: LayerSizes = (100,)
    activation: Activation = "relu"
    loss: str | Loss = "log_loss"
    alpha: Literal["auto"] | float = "auto"
    precision: Literal["single", "double"] = "single"
    standardize: bool = True
    class_weight: ClassWeight = None

    # What is taken from targets, and what they are divided by; the loss that compares models.
    _of_targets, _judged = (0.0, 1.0), None

    @property
    def has_units(self):
        """True if training needs the mean and the standard deviation of the targets."""
        scaled = self.standardize and self.estimator_type == "regressor"
        return scaled or super().has_units

    def in_units(self, mean, scale):
        """Copy of a bound model that reads and predicts targets of a mean and a scale."""
        model = super().in_units(mean, scale)
        loss = model.kernel
        if self.standardize and loss.link == "identity":
            model._of_targets = model._of_predictions = mean, scale
            model.standardised = loss.standardised(mean, scale)
        elif self.standardize and mean > 0:
            model._of_targets, model._of_predictions = (0.0, mean), (loss.raw(mean), 1.0)
            model.standardised = loss.standardised(mean, scale)
            if not loss.unknown_scale:
                # Evidence for clusters is in units of the noise.
                model._judged = Standardised(loss, mean, scale, size=1.0)
        if model.standardised is not None and model._judged is None:
            model.loss_unit = loss.unit(mean, scale)
        return model

    @property
    def trained_loss(self):
        """The loss that training sees, of targets as :meth:`encode` makes them."""
        return self.standardised or self.kernel

    @property
    def judged_loss(self):
        """The loss by which models are compared, of such targets; counts' is in their units."""
        return self._judged or self.trained_loss

    def _plain_output(self):
        return self.kernel.plain_activation(self.n_outputs)

    def _target(self, block):
        return block.y

    def encode(self, y, n_rows):
        """Targets as an array (n_rows, q) that the blocks store."""
        centre, unit = self._of_targets
        if self.standardised is not None:
            y = (np.asarray(y, dtype=float) - centre) / unit
        return self.kernel.encode(y, self.n_classes, self.dtype)

    def row_losses(self, X, y, params, index):
        """Loss of every row, no penalty."""
        z = self.decision(X, params, index).T
        return self.kernel.value(z, self.kernel.encode(y, self.n_classes, z.dtype).T)
