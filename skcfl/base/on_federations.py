"""Predictions, scores and clusters of the clients of a federation, made where their rows are."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._typing import Array, IntArray, Kind
from ..exceptions import RejectedClientWarning, UnitsWarning
from ..federation.fanout import joined
from ..federation.federation import Federation
from ..federation.pool import ClientPool
from ..federation.presence import Presence
from ..federation.sites import ask_each

if TYPE_CHECKING:
    from ..federation.federation import Hello

METHODS = ("predict", "predict_proba", "decision_function")


class OnFederations:
    """What a fitted estimator says of the rows of a federation, which stay where they are."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the estimators have that this is mixed into."""

    def predict_federation(
        self,
        federation: Federation,
        method: Literal["predict", "predict_proba", "decision_function"] = "predict",
    ) -> Array:
        """Predict the rows of a federation, and fetch the predictions.

        Clients of this and other processes are sent their own models.

        Parameters
        ----------
        federation : Federation
            The clients: those of fit, or others under ``unseen``.
        method : {"predict", "predict_proba", "decision_function"}, default="predict"
            What to say of a row.

        Returns
        -------
        output : ndarray of shape (n_samples,) or (n_samples, n_outputs)
            As of the method, for all rows: part by part, those of a part as they were given.

        Raises
        ------
        ValueError
            If the features are not those of fit, the estimator has no such method, or clients
            were not seen in fit under ``unseen="error"``.
        FederationError
            If some rows do not answer.
        """
        if method not in METHODS or not hasattr(self, method):
            has = [name for name in METHODS if hasattr(self, name)]
            raise ValueError(f"method must be one of {has}, got {method!r}.")
        hello = self._hello_of(federation, None)
        parts = self._scored_parts(federation, hello, None)
        own = [(method,)] * len(parts)
        output = federation.collected(iter(ask_each(parts, "outputs", own, whole=True)))
        classifier = method == "predict" and self._kind() == "classifier"
        return self.classes_[output] if classifier else output

    def score_federation(self, federation: Federation) -> float:
        """Accuracy of a classifier, R^2 of a regressor, else minus the mean loss.

        Places send sums over their rows, which count as their weights say.

        Parameters
        ----------
        federation : Federation
            The clients: those of fit, or others under ``unseen``.

        Returns
        -------
        score : float
            The larger the better; that of ``score`` on the same rows.

        Raises
        ------
        ValueError
            If the features are not those of fit, or clients were not seen in fit under
            ``unseen="error"``.
        FederationError
            If some rows do not answer.
        """
        kind = self._kind()
        hello, codes = self._hello_of(federation, kind), None
        if kind == "classifier":
            classes = np.unique(np.concatenate([self.classes_, hello.classes]))
            hello, codes = replace(hello, classes=classes), np.searchsorted(classes, self.classes_)
        parts = self._scored_parts(federation, hello, codes)

        def sums(name: str, *arguments: Any) -> Any:
            own = [arguments] * len(parts)
            return np.sum(ask_each(parts, name, own, whole=True), axis=0)

        if kind is None:
            losses, weight = sums("total_loss")
            return -float(losses / weight)
        if kind == "classifier":
            correct, weight = sums("correct")
            return float(correct / weight)
        total, weight = sums("target_sums")
        errors, spread = sums("squares", float(total / weight))
        if spread == 0:  # as scikit-learn says
            return 1.0 if errors == 0 else 0.0
        return float(1.0 - errors / spread)

    def assign_federation(self, federation: Federation) -> IntArray:
        """Find the cluster that fits each client of a federation best.

        Parameters
        ----------
        federation : Federation
            The clients, seen in fit or not.

        Returns
        -------
        labels : ndarray of shape (n_clients,)
            As from ``assign``, in the order of the sorted ids; -1 of clients that do not answer.

        Raises
        ------
        ValueError
            If the features are not those of fit, or y holds a class not seen in fit.
        """
        hello = self._hello_of(federation, self._kind())
        if hello.classes is not None:
            self._known_classes(hello.classes)
            hello = replace(hello, classes=self.classes_)
        parts = federation.rows(self.model_, hello)
        if self._scaling is not None:
            parts = [part.scaled(self._scaling) for part in parts]
        pool = ClientPool(
            joined([(part.site(self.model_), part.places) for part in parts]),
            self.model_,
            check_random_state(self.random_state),
            self._scaling,
            Presence(hello.ids, federation.min_clients, federation.retries),
        )
        labels = self._clusters_of(pool)
        return labels if pool.answered is None else np.where(pool.answered, labels, -1)

    def _hello_of(self, federation: Federation, kind: Kind) -> Hello:
        """Who the clients are, if they have the features of fit."""
        check_is_fitted(self)
        _check_federation(federation)
        hello = federation.hello(kind)
        names = list(self.coef_names_) if hasattr(self, "feature_names_in_") else None
        check_same_features(hello, type(self).__name__, self.model_.n_features, names)
        return hello

    def _scored_parts(
        self, federation: Federation, hello: Hello, codes: Array | None
    ) -> list[Any]:
        """The federation's rows beside the predictions of their clients' models."""
        if not self._predicts_by_client:
            raise NotImplementedError(
                f"{type(self).__name__} predicts by more than a client's parameters, and not yet "
                "where the rows of a federation are: use predict and score on rows at hand."
            )
        table, index = self._models_at(self._locate(hello.ids))
        parts = []
        for part in federation.rows(self.model_, hello):
            # A place is sent the models of its own clients.
            some, own = np.unique(index[part.places], return_inverse=True)
            parts.append(part.scored(self.model_, table[some], own, codes))
        return parts


def asked(federation: Federation, kind: Kind, group_col: str | int | None) -> Hello:
    """Ask the clients that an estimator is fitted to who they are."""
    _check_federation(federation)
    if group_col is not None:
        raise ValueError(
            "group_col must be None where a federation is fitted, which knows the clients of "
            f"its rows, got {group_col!r}."
        )
    return federation.hello(kind)


def check_same_features(
    hello: Hello, estimator: str, n_features: int, names: list[Any] | None
) -> None:
    """Raise a ValueError if clients have other features than those of fit."""
    if hello.n_features != n_features:
        raise ValueError(
            f"{estimator} was fitted on {n_features} features, the "
            f"clients of the federation have {hello.n_features}."
        )
    theirs = names if hello.feature_names is None else list(hello.feature_names)
    if names is not None and theirs != names:
        raise ValueError(
            f"{estimator} was fitted on the features {names}, the clients of "
            f"the federation have {theirs}."
        )


def tell_rejected(rejected: Array, n_clients: int, stacklevel: int) -> None:
    """Warn of clients that were rejected, if any were."""
    if len(rejected):
        some = ", ".join(map(repr, rejected[:5].tolist()))
        warnings.warn(
            f"{len(rejected)} of {n_clients} clients sent numbers that "
            f"are not finite, and take no part: {some}"
            f"{', ...' if len(rejected) > 5 else ''} (rejected_clients_).",
            RejectedClientWarning,
            stacklevel=stacklevel,
        )


def tell_units(
    other_units: dict[tuple[int, int], float], groups: Array, names: Array | None, stacklevel: int
) -> None:
    """Warn of clients in which a feature has other units than in most, if there are any."""
    if other_units:
        some = []
        for (place, k), ratio in list(other_units.items())[:5]:
            feature = f"feature {k if names is None else names[k]!r}" if k >= 0 else "the target"
            client = groups[place : place + 1].tolist()[0]
            some.append(
                f"the spread of {feature} at client {client!r} is {ratio:.1g} times the others'"
            )
        warnings.warn(
            f"{'; '.join(some)}{'; ...' if len(other_units) > 5 else ''}: it may have other "
            "units, or false values. Such clients did not count when features were scaled, but "
            "their rows are in the fit. Convert their units, or leave them out.",
            UnitsWarning,
            stacklevel=stacklevel,
        )


def _check_federation(federation: Federation) -> None:
    if not isinstance(federation, Federation):
        raise TypeError(
            "federation must be one of skcfl.federation, such as InProcessFederation, got "
            f"{type(federation).__name__}."
        )
