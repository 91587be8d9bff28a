"""The three flavours of every method: any local model, or an everyday classifier or regressor.

A method is one class with ``_solve`` and three classes that mix a flavour in, on the left; where
the everyday classes may train networks too, with one more mixin::

    class _FedAvg(BaseFederated): ...
    class FedAvg(GenericMixin, _FedAvg): ...
    class FedAvgClassifier(NeuralMixin, ClassifierMixin, _FedAvg): ...
    class FedAvgRegressor(NeuralMixin, RegressorMixin, _FedAvg): ...

The everyday classes take the ``_model_parameters`` of their mixins in place of ``model``
(``everyday_constructor``).
"""

import numpy as np
from sklearn.utils._param_validation import StrOptions

from ..models import MLP, LinearModel, LocalModel

# What alpha="auto" is of networks, as of scikit-learn's.
NETWORK_ALPHA = 1e-4

__all__ = ["ClassifierMixin", "GenericMixin", "NeuralMixin", "RegressorMixin"]


class GenericMixin:
    """The local model is the parameter ``model``, which fixes the estimator type too."""

    _parameter_constraints = {"model": [LocalModel, None]}

    _doc_attributes = {
        "classes_": """\
            ndarray of shape (n_classes,)
            Class labels, sorted (classifiers only). The columns of ``predict_proba`` are in this
            order for every client, whatever classes it has.""",
    }

    def _local_model(self):
        return LinearModel() if self.model is None else self.model


# Everyday parameters of a linear model, with their defaults.
_LINEAR = {"alpha": "auto", "fit_intercept": True, "standardize": True}


class _LinearMixin:
    """The local model is linear, its everyday parameters are the estimator's."""

    _parameter_constraints = {name: LinearModel._parameter_constraints[name] for name in _LINEAR}

    def _local_model(self):
        return LinearModel(
            loss=self.loss,
            alpha=self.alpha,
            fit_intercept=self.fit_intercept,
            standardize=self.standardize,
            class_weight=getattr(self, "class_weight", None),
        )


class ClassifierMixin(_LinearMixin):
    """Classifier, linear unless a mixin to the left makes it a network."""

    _model_parameters = {"loss": "log_loss", **_LINEAR, "class_weight": None}

    _parameter_constraints = {
        "loss": [StrOptions({"log_loss", "squared_hinge"})],
        "class_weight": LinearModel._parameter_constraints["class_weight"],
    }

    _doc_parameters = {
        "loss": """\
            {"log_loss", "squared_hinge"}
            Loss of the model. "log_loss" makes a linear model logistic regression, multinomial
            with more than two classes, and predicts probabilities; "squared_hinge" makes it a
            linear support vector machine, one class against the rest.""",
    }


class RegressorMixin(_LinearMixin):
    """Regressor, linear unless a mixin to the left makes it a network."""

    _model_parameters = {"loss": "squared_error", **_LINEAR}

    _parameter_constraints = {"loss": [StrOptions({"squared_error", "huber", "poisson"})]}

    _doc_parameters = {
        "loss": """\
            {"squared_error", "huber", "poisson"}
            Loss of the model. "squared_error" is least squares (half the squared error);
            "huber" is linear in residuals larger than 1.35, so that outliers count less; scale
            the target to the noise, or set another threshold with the generic class and
            ``LinearModel(loss="huber", delta=...)``. "poisson" suits counts and rates: the
            prediction is the exponential of the model's, and y must not be negative.""",
    }

    _doc_attributes = {"classes_": None}

    def __sklearn_tags__(self):
        """Tags; a Poisson target must not be negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags


class NeuralMixin:
    """The local model is a network where ``hidden_layer_sizes`` names hidden layers.

    For the everyday classes, left of their flavour.
    """

    _model_parameters = {"hidden_layer_sizes": (), "activation": "relu"}

    _parameter_constraints = {
        name: MLP._parameter_constraints[name] for name in ("hidden_layer_sizes", "activation")
    }

    def _local_model(self):
        if _is_linear(self.hidden_layer_sizes):
            return super()._local_model()
        return MLP(
            self.hidden_layer_sizes,
            self.activation,
            self.loss,
            NETWORK_ALPHA if self.alpha == "auto" else self.alpha,
            class_weight=getattr(self, "class_weight", None),
        )

    def _solve_options(self, groups):
        if not self.fit_intercept and not _is_linear(self.hidden_layer_sizes):
            raise ValueError(
                "fit_intercept=False is for linear models; the layers of a network have biases. "
                f"Got hidden_layer_sizes={self.hidden_layer_sizes!r}."
            )
        return super()._solve_options(groups)


def _is_linear(hidden_layer_sizes):
    """Whether there is no hidden layer."""
    return np.asarray(hidden_layer_sizes, dtype=object).size == 0
