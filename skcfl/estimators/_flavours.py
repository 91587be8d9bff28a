"""The three flavours of every method: any local model, or a linear classifier or regressor.

A method is one class with ``_solve`` and three classes that mix a flavour in, on the left::

    class _LocalModels(BaseFederated): ...
    class LocalModels(GenericMixin, _LocalModels): ...
    class LocalModelsClassifier(ClassifierMixin, _LocalModels): ...
    class LocalModelsRegressor(RegressorMixin, _LocalModels): ...
"""

from numbers import Real

from sklearn.utils._param_validation import Interval, StrOptions

from ..models import LinearModel, LocalModel

__all__ = ["ClassifierMixin", "GenericMixin", "RegressorMixin"]


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


class _LinearMixin:
    """The local model is linear, its everyday parameters are the estimator's."""

    _parameter_constraints = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
    }

    def _local_model(self):
        return LinearModel(loss=self.loss, alpha=self.alpha, fit_intercept=self.fit_intercept)


class ClassifierMixin(_LinearMixin):
    """Linear classifier."""

    _parameter_constraints = {"loss": [StrOptions({"log_loss", "squared_hinge"})]}

    _doc_parameters = {
        "loss": """\
            {"log_loss", "squared_hinge"}
            Loss of the linear model. "log_loss" is logistic regression, multinomial with more
            than two classes, and predicts probabilities; "squared_hinge" is a linear support
            vector machine, one class against the rest.""",
    }


class RegressorMixin(_LinearMixin):
    """Linear regressor."""

    _parameter_constraints = {"loss": [StrOptions({"squared_error", "huber", "poisson"})]}

    _doc_parameters = {
        "loss": """\
            {"squared_error", "huber", "poisson"}
            Loss of the linear model. "squared_error" is least squares (half the squared error);
            "huber" is linear in residuals larger than 1.35, so that outliers count less; scale
            the target to the noise, or set another threshold with the generic class and
            ``LinearModel(loss="huber", delta=...)``. "poisson" suits counts and rates: the
            prediction is the exponential of the linear model, and y must not be negative.""",
    }

    _doc_attributes = {"classes_": None}

    def __sklearn_tags__(self):
        """Tags; a Poisson target must not be negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags
