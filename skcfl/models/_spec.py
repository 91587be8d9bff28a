"""The part of a local model that a server knows: shapes, penalty, starts and units, and no row."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, clone

from .._checks import Count, check_float
from .._option_objects import DocLinkMixin, TakesOptions
from .._typing import Array, DTypeLike, RandomState


class ModelSpec(DocLinkMixin, TakesOptions, BaseEstimator, metaclass=ABCMeta):
    """The part of a local model that server code may use.

    A local model is a scikit-learn object of parameters.  :meth:`bind` returns a copy that knows
    the shape of the data; only bound models compute.  Parameters of a model are one vector of
    ``n_params`` numbers, those of ``m`` models an ``(m, n_params)`` array.  All that takes rows or
    blocks of them is in :class:`LocalModel`, and only clients and predictions call it:
    :class:`~skcfl.testing.StrictFederation` refuses it to servers.
    """

    #: "regressor", "classifier" or None (unsupervised).
    estimator_type = None
    #: True if the model can predict probabilities.
    has_proba = False
    #: True if second-order methods (exact prox, Newton) are available.
    second_order = False
    #: True if clients' objectives are quadratic functions.
    quadratic = False
    #: True if the loss is minus a log-likelihood up to the unknown size of the noise only.
    unknown_scale = False
    #: Power of the size of the noise that the loss grows with.
    loss_degree = 2
    #: True if training needs the mean and the standard deviation of the targets (``in_units``).
    has_units = False
    #: Parameters of the model that predicts the mean of the targets, where that is known, else 0.
    origin: Any = 0.0
    #: True if 0 is the least loss of any row.
    grounded = True
    #: True if the curvature of the loss is bounded.
    bounded_curvature = True
    #: True if local steps that raise the loss are undone and halved.
    halves_steps = False
    #: True if losses of single rows are known, so that rows can be mixtures of models.
    mixes = False
    #: True if an estimator standardises the features that it trains on.
    standardize = False
    #: The loss of standardised targets, of models that train on such.
    standardised: Any = None
    #: Scaling of the features that a bound model reads in the user's units; None if of none.
    scaling_: Any = None
    #: Unit of the losses of clients' rows that a bound model answers, in the user's units.
    loss_unit = 1.0
    #: Factors of the weights of each class's rows: "balanced", a dict or None.
    class_weight: Any = None
    #: The factors (n_classes,) of a bound model, which new rows have too; None are ones.
    class_factors: Any = None
    #: Numbers of a row's representation, which the last layer sees, of bound models that have one.
    n_representation = 0
    #: True if the Hessian of a client with fewer rows than parameters tells what they are.
    hessian_shows_rows = True
    #: True if rows may have several axes.
    any_rank = False
    #: True if training draws, besides batches: dropout.
    stochastic = False
    #: True if training changes what gradients at one point do not say, such as running statistics.
    local_steps_only = False
    #: Parameters that local steps move, (n_params,) of bool of a bound model; None are all.
    moved = None
    #: Entries that are running statistics, which no step moves, likewise; None are none.
    statistics = None
    #: Parameters that each client keeps for itself and publishes at the end, likewise; None: none.
    own = None
    #: True if clients fit estimators as a whole: for methods that need fits and losses only.
    fits_whole = False
    #: True if ``f_i`` is half the squared distance to the client's own minimiser plus a constant.
    isotropic = False

    @property
    def rows_dtype(self) -> DTypeLike:
        """Floating type of the rows that a bound model reads."""
        return self.dtype

    @property
    def n_free(self) -> int:
        """Parameters that predictions depend on, of a bound model: what a criterion counts."""
        return self.n_params

    def coefficients(self, params: Array) -> dict[str, Array]:
        """Coefficients of models (m, n_params) by name; of models without any, none."""
        return {}

    def plain(self, params: Array, classes: Array | None) -> Any:
        """Fitted estimator of scikit-learn with the parameters (n_params,) of one model.

        Parameters
        ----------
        params : ndarray of shape (n_params,)
            The model.
        classes : ndarray or None
            The classes of a classifier.

        Returns
        -------
        estimator : estimator
        """
        raise ValueError(f"scikit-learn has no estimator that is a {type(self).__name__}.")

    def prior_unit(self, share: float, around: float) -> float:
        """Penalty that is a standard normal prior of the parameters, times the rows.

        Asked of models with ``unknown_scale``: `share` is the ratio of the mean loss of the model
        of all rows to that of a constant, `around`.
        """
        return share

    def least_prior_variance(self, squared_norm: float) -> float:
        """Least variance of the parameters under the prior of ``alpha="auto"``.

        Parameters
        ----------
        squared_norm : float
            Mean squared norm of a row's features.
        """
        return 1.0

    def spared(self, scaling: Any) -> Any:
        """Scaling of all columns of the rows that leaves those that are no features unchanged."""
        return scaling

    def of_features(self, scaling: Any) -> Any:
        """The part of a scaling of all columns that is of features."""
        return scaling

    def with_scaling(self, scaling: Any) -> tuple[Self, Any]:
        """Bound model of features in a scaling, and what is left to scale before it.

        Parameters
        ----------
        scaling : Scaling or None
            Units of the features.

        Returns
        -------
        model : LocalModel
            Itself where its parameters can be in the units of any features.
        scaling : Scaling or None
            None for models that read features in the user's units and scale them.
        """
        return self, scaling

    def for_rows(self, shape: tuple[int, ...]) -> ModelSpec:
        """Model, not bound, of rows that have several axes and are stored flat.

        Parameters
        ----------
        shape : tuple of int
            Shape of a row.

        Returns
        -------
        model : LocalModel
        """
        raise ValueError(
            f"X must have two axes, (n_samples, n_features), for {type(self).__name__}, got rows "
            f"of shape {tuple(shape)}. Reshape it to (len(X), -1), or train a module that takes "
            "such rows (TorchModel)."
        )

    def bind(
        self, n_features: int, n_classes: int | None = None, dtype: DTypeLike = float
    ) -> Self:
        """Copy of the model that knows the shape of the data.

        Parameters
        ----------
        n_features : int
            Number of features.
        n_classes : int or None
            Number of classes, for classifiers.
        dtype : dtype
            Floating type of parameters and computations.

        Returns
        -------
        bound : LocalModel
            With attributes ``n_features``, ``n_outputs``, ``n_params`` and ``dtype``.
        """
        _check_count(n_features, "n_features", 10**8)
        if n_classes is not None:
            _check_count(n_classes, "n_classes", 10**6)
        check_float(dtype)
        if hasattr(self, "_parameter_constraints"):
            self._validate_params()
        bound = clone(self)
        bound.n_features = n_features
        bound.n_classes = n_classes
        bound.dtype = dtype
        bound._bind()
        return bound

    def to_message(self) -> dict[str, Any]:
        """Class that :meth:`from_message` returns an instance of, at a site.

        Returns
        -------
        parts : dict
            Parameters, and what a bound model knows besides.
        """
        parts = {"params": self.get_params(deep=False)}
        if "n_params" in vars(self):
            parts["bound"] = self.n_features, self.n_classes, np.dtype(self.dtype)
            parts["alpha"] = getattr(self, "alpha_", None)
            parts["units"] = vars(self).get("units_")
        return parts

    @classmethod
    def from_message(cls, parts: dict[str, Any]) -> Self:
        """Model of what :meth:`to_message` returned, its parameters checked if it was bound."""
        model = cls(**parts["params"])
        if "bound" in parts:
            model = model.bind(*parts["bound"])
            if parts["alpha"] not in (None, getattr(model, "alpha_", None)):
                model = model.penalised(parts["alpha"])
            if parts["units"] is not None:
                model = model.in_units(*parts["units"])
        return model

    @abstractmethod
    def _bind(self) -> None:
        """Set ``n_outputs``, ``n_params`` and the other attributes that depend on the shapes."""

    @abstractmethod
    def init_params(self, n_models: int, random_state: RandomState) -> Array:
        """Random starts, an array (n_models, n_params)."""

    def start(self, random_state: RandomState = None) -> Array:
        """Start of local training, an array (n_params,), the same for all clients."""
        return self.init_params(1, random_state)[0]

    def penalties(self, w: Array) -> Array:
        """Local penalty of models (m, n_params) of a bound model, (m,)."""
        w = np.asarray(w)
        return 0.5 * (w * w) @ self.decay

    def head_mask(self) -> Array:
        """Parameters of the last layer of a bound model, (n_params,) of bool."""
        names = list(self.layer_slices())
        mask = np.zeros(self.n_params, dtype=bool)
        mask[self.layer_slices()[names[-1]]] = True
        return mask

    def head_params(self, weights: Array, biases: Array) -> Array:
        """Parameters of the last layer, of weights (n_inputs, n_outputs) and biases."""
        return np.concatenate([weights.ravel(), biases])

    def body_mask(self) -> Array:
        """Parameters that clients with a last layer of their own have in common, of bool."""
        return ~self.head_mask()


def _check_count(value: Any, name: str, most: int) -> None:
    """Raise a ValueError if a number is no integer from 1 to `most`."""
    if not Count(1, most).is_satisfied_by(value):
        raise ValueError(
            f"{name} must be an integer from 1 to {most}, got {type(value).__name__} {value!r}."
        )
