"""The local models of the everyday classes: linear ones and networks, with their parameters."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import HasMethods, StrOptions

from .._typing import Activation, ClassWeight, LayerSizes
from ..models import MLP, LinearModel, LocalModel
from ..models.losses import CLASSIFICATION_LOSSES, REGRESSION_LOSSES, Loss


class LossOf(HasMethods):
    """Constraint: a loss object of classifiers, or one of regressors."""

    def __init__(self, kind: str) -> None:
        super().__init__(["value", "gradient"])
        self.kind = kind

    def is_satisfied_by(self, val: Any) -> bool:
        """True if the value is such a loss."""
        return isinstance(val, Loss) and val.classifier == (self.kind == "classifier")

    def __str__(self) -> str:
        return f"a Loss of a {self.kind}"


class _LinearMixin:
    """The local model is linear, with the estimator's parameters."""

    _parameter_constraints: dict[str, Any] = {
        name: LinearModel._parameter_constraints[name]
        for name in ("alpha", "fit_intercept", "standardize")
    }

    #: Parameters that networks have, too.
    _passed_on: tuple[str, ...] = ("loss",)

    def _passed(self):
        return {name: getattr(self, name) for name in self._passed_on}

    def _local_model(self):
        return LinearModel(
            # A population takes the place of the penalty.
            alpha=getattr(self, "alpha", 0.0),
            fit_intercept=self.fit_intercept,
            standardize=self.standardize,
            **self._passed(),
        )


def _of_classifier(
    *,
    loss: Literal["log_loss", "squared_hinge"] | Loss = "log_loss",
    alpha: float | Literal["auto"] = "auto",
    fit_intercept: bool = True,
    standardize: bool = True,
    class_weight: ClassWeight = None,
) -> None:
    """Parameters in place of the local model."""


class ClassifierMixin(_LinearMixin):
    """Classifier, linear unless a mixin to the left makes it a network.

    Parameters
    ----------
    loss : {"log_loss", "squared_hinge"} or Loss
        Loss of the model, or an object of :mod:`skcfl.models.losses`. "log_loss" makes a
        linear model logistic regression, multinomial with more than two classes, and predicts
        probabilities; "squared_hinge" makes it a linear support vector machine, one class
        against the rest.
    """

    _parameters: Any = _of_classifier

    _passed_on = ("loss", "class_weight")

    _parameter_constraints: dict[str, Any] = {
        "loss": [StrOptions(set(CLASSIFICATION_LOSSES)), LossOf("classifier")],
        "class_weight": LinearModel._parameter_constraints["class_weight"],
    }


def _of_regressor(
    *,
    loss: Literal["squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"]
    | Loss = "squared_error",
    alpha: float | Literal["auto"] = "auto",
    fit_intercept: bool = True,
    standardize: bool = True,
) -> None:
    """Parameters in place of the local model."""


class RegressorMixin(_LinearMixin):
    """Regressor, linear unless a mixin to the left makes it a network.

    Parameters
    ----------
    loss : {"squared_error", "huber", "quantile", "poisson", "gamma", "tweedie"} or Loss
        Loss of the model, or an object with other parameters, such as
        ``Quantile(quantile=0.9)`` of :mod:`skcfl.models.losses`. "squared_error" is least
        squares (half the squared error); "huber" is linear in large residuals, so that
        outliers count less; "quantile" predicts the median. The others have a log link: the
        prediction is the exponential of the model's. "poisson" suits counts and rates, y >=
        0; "gamma" amounts whose spread grows with them, y > 0; "tweedie" amounts that may be
        0, such as claims.

    Attributes
    ----------
    classes_ : None
    """

    _parameters: Any = _of_regressor

    _parameter_constraints: dict[str, Any] = {
        "loss": [StrOptions(set(REGRESSION_LOSSES)), LossOf("regressor")],
    }

    def __sklearn_tags__(self):
        """Tags; some losses take no negative targets."""
        tags = super().__sklearn_tags__()
        loss = self._local_model().describe_loss()
        tags.target_tags.positive_only = loss.target_range != "real"
        return tags


def _of_network(*, hidden_layer_sizes: LayerSizes = (), activation: Activation = "relu") -> None:
    """Parameters in place of the local model."""


class NeuralMixin:
    """The local model is a network where ``hidden_layer_sizes`` names hidden layers.

    For the everyday classes, left of their flavour.
    """

    _parameters: Any = _of_network

    _parameter_constraints: dict[str, Any] = {
        name: MLP._parameter_constraints[name] for name in ("hidden_layer_sizes", "activation")
    }

    def _local_model(self):
        if _is_linear(self.hidden_layer_sizes):
            return super()._local_model()
        return MLP(
            self.hidden_layer_sizes,
            self.activation,
            alpha=self.alpha,
            standardize=self.standardize,
            **self._passed(),
        )

    def _solve_options(self, groups):
        if not self.fit_intercept and not _is_linear(self.hidden_layer_sizes):
            raise ValueError(
                "fit_intercept=False is for linear models; the layers of a network have biases. "
                f"Got hidden_layer_sizes={self.hidden_layer_sizes!r}."
            )
        return super()._solve_options(groups)


class GivenNetworkMixin(NeuralMixin):
    """The local model is the parameter ``model`` if one is given, else as in NeuralMixin.

    Parameters
    ----------
    model : LocalModel or None
        What every client trains, an object of :mod:`skcfl.models` that is a classifier, in
        place of the network that ``hidden_layer_sizes``, ``activation``, ``loss`` and
        ``alpha`` describe. Of a :class:`~skcfl.models.TorchModel` the representation is what
        its ``head`` takes.
    """

    _parameter_constraints = {"model": [LocalModel, None]}

    def _local_model(self):
        return super()._local_model() if self.model is None else self.model

    def _solve_options(self, groups):
        if self.model is not None and self.model.estimator_type != "classifier":
            raise ValueError(
                f"model must be a classifier for {type(self).__name__}, got {self.model!r}, a "
                f"{self.model.estimator_type}."
            )
        return super()._solve_options(groups)


def _is_linear(hidden_layer_sizes):
    """True if there is no hidden layer."""
    return np.asarray(hidden_layer_sizes, dtype=object).size == 0


def _of_population_classifier(
    *,
    loss: Literal["log_loss"] = "log_loss",
    fit_intercept: bool = True,
    standardize: bool = True,
    class_weight: ClassWeight = None,
) -> None:
    """Parameters in place of the local model, which has no penalty."""


class PopulationClassifier(ClassifierMixin):
    """Parameters of the classifier in place of the local model.

    Parameters
    ----------
    loss : {"log_loss"}
        Loss of the model: logistic regression, multinomial with more than two classes.
    """

    _parameters: Any = _of_population_classifier

    _parameter_constraints = {"loss": [StrOptions({"log_loss"})]}


def _of_population_regressor(
    *,
    loss: Literal["squared_error", "poisson", "gamma"] = "squared_error",
    fit_intercept: bool = True,
    standardize: bool = True,
) -> None:
    """Parameters in place of the local model, which has no penalty."""


class PopulationRegressor(RegressorMixin):
    """Parameters of the regressor in place of the local model.

    Parameters
    ----------
    loss : {"squared_error", "poisson", "gamma"}
        Distribution of the target. "squared_error" is normal with a variance that is
        estimated. The others have a log link, the prediction is the exponential of the
        model's: "poisson" suits counts, y >= 0, and "gamma" amounts whose spread grows with
        them, y > 0, with a shape that is estimated by maximum likelihood.
    """

    _parameters: Any = _of_population_regressor

    _parameter_constraints = {"loss": [StrOptions({"squared_error", "poisson", "gamma"})]}
