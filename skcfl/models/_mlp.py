"""Multi-layer perceptron as a local model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .._option_objects import parameters
from .._typing import Activation, ClassWeight, LayerSizes
from ._network import NETWORK_CONSTRAINTS, Network
from ._supervised import LOSS_CONSTRAINTS, SupervisedMixin

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
    alpha : float, default=1e-4
        L2 penalty of the weights, relative to a client's mean loss; scikit-learn's
        networks divide theirs by the number of rows.
    precision : {"single", "double"}, default="single"
        Floating type of parameters and computations, whatever the type of the rows.  Single
        precision is twice as fast, and training is not exact anyway.
    class_weight : {"balanced"}, dict or None, default=None
        Factor of the weights of each class's rows, for classifiers, as of
        :class:`~skcfl.models.LinearModel`.

    Notes
    -----
    Parameters of a model are one vector; ``layer_slices()`` of a bound model names its layers
    ``"hidden1"``, ``"hidden2"``, ..., ``"output"``, each with its weights and biases, which
    ``weights(params)`` returns as scikit-learn shapes them.  Random starts are those of
    scikit-learn (Glorot and Bengio, 2010).

    Gradient steps need targets of about unit size: scale the target of a regression.

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

    hidden_layer_sizes: LayerSizes = (100,)
    activation: Activation = "relu"
    loss: str | Loss = "log_loss"
    alpha: float = 1e-4
    precision: Literal["single", "double"] = "single"
    class_weight: ClassWeight = None

    def _plain_output(self):
        return self.kernel.plain_activation(self.n_outputs)

    def _target(self, block):
        return block.y

    def encode(self, y, n_rows):
        """Targets as an array (n_rows, q) that the blocks store."""
        return self.kernel.encode(y, self.n_classes, self.dtype)
