"""Predictions with the model of each row's client, here and where a federation's rows are."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from .._checks import about, check_size
from .._typing import (
    Array,
    ArrayLike,
    ClientIds,
    FloatArray,
    Groups,
    IntArray,
    MatrixLike,
    Targets,
    Weights,
    available_if,
)
from ..clients.ids import check_ids, describe_unseen, locate
from ..federation.checking import check_target, check_weights
from ..federation.sites import ask_each
from ..models._mixed_outputs import mixed_decision

if TYPE_CHECKING:
    from ..federation.federation import Federation
    from ..federation.handshake import Handshake
    from ..federation.result import Result
    from ..models import LocalModel
    from .of_clients import OfClients as Host
else:  # a mixin
    Host = object

METHODS = ("predict", "predict_proba", "decision_function")
# Attributes of clients that may be those of their clusters.
OF_CLUSTERS = ("params_", "coef_", "intercept_")


def _has_proba(estimator: Any) -> bool:
    return bool(getattr(estimator._local_model(), "has_proba", False))


def _is_classifier(estimator: Any) -> bool:
    return estimator._kind() == "classifier"


class NotReleased:
    """Attribute that a private fit leaves with the clients; other fits set it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, estimator: Any, owner: type | None = None) -> Any:
        if estimator is None:
            return self
        raise AttributeError(not_there(estimator, self.name))


class OfCluster(NotReleased):
    """Attribute of each client that is its cluster's: computed when it is first asked for.

    A fit with a model for each client sets the attribute, which is found before this.
    """

    def __get__(self, estimator: Any, owner: type | None = None) -> Any:
        values, source = getattr(estimator, "__dict__", {}), f"cluster_{self.name}"
        if source not in values or values.get("_is_private"):
            return super().__get__(estimator, owner)
        values[self.name] = values[source][values["labels_"]]
        return values[self.name]


def not_there(estimator: Any, name: str) -> str:
    """What to say of an attribute that an estimator lacks."""
    if not vars(estimator).get("_is_private"):
        return f"{type(estimator).__name__!r} object has no attribute {name!r}"
    return (
        f"{name} is no part of a private fit: what belongs to single clients stays "
        "with them. A client finds its model from its rows, at the client, by adapt(X, y, "
        "groups), assign or predict_federation."
    )


def needs_all_clients(estimator: Any, method: str) -> None:
    """Raise an AttributeError if a fit was private or masked, or knows clients by adapt only."""
    fitted = vars(estimator)
    if fitted.get("_is_private") or "_how_sure" not in fitted:
        raise AttributeError(
            f"{method}() is no part of a private or masked fit: what belongs to single clients "
            "stays with them, before and after adapt. What the fit has is in cluster_coef_, "
            "releases_ and epsilon_."
        )


def attributes_of(
    estimator: Any,
    header: Any,
    model: LocalModel,
    cluster_params: Array,
    classes: Array | None,
    result: Result,
) -> dict[str, Any]:
    """Attributes of every fit, private ones included, with models in the user's units."""
    coefficients = model.coefficients(cluster_params).items()
    fitted = {
        "model_": model,
        "n_clusters_": len(cluster_params),
        "cluster_params_": cluster_params,
        "n_iter_": int(result.n_iter),
        "history_": dict(result.history),
        "coef_names_": estimator._feature_names(header, model.n_features),
        **{f"cluster_{name}_": value for name, value in coefficients},
    }
    if hasattr(model, "alpha_"):
        fitted["alpha_"] = model.alpha_
    if classes is not None:
        fitted["classes_"] = classes
    return fitted


def scored(parts: list[Any], model: Any, table: Array, index: Array, codes: Any = None) -> Any:
    """Rows of places beside predictions, of each client by one model of a table."""
    out = []
    for part in parts:
        # A place is sent the models of its clients only.
        some, places = np.unique(index[part.places], return_inverse=True)
        out.append(part.scored(model, table[some], places, codes))
    return out


class Predictions(Host):
    """Mixin of estimators of rows that belong to clients, with a model for each client."""

    # Attributes of every fit; methods add to it.
    labels_: IntArray
    n_clusters_: int
    cluster_sizes_: IntArray
    params_: FloatArray = OfCluster()  # type: ignore[assignment]
    coef_: FloatArray = OfCluster()  # type: ignore[assignment]
    intercept_: FloatArray = OfCluster()  # type: ignore[assignment]
    cluster_params_: FloatArray
    cluster_coef_: FloatArray
    cluster_intercept_: FloatArray
    coef_names_: Array
    classes_: Array
    model_: LocalModel
    alpha_: float
    objective_: float
    n_iter_: int
    history_: dict[str, Array]
    unseen: str
    _average_params: Array
    _cluster_shares: Array
    _scaling: Any
    #: If True, the clients' models are those of their clusters.
    _shared_params: bool
    #: If True, the fit was private: it knows no client.
    _is_private = False
    #: If True, noise would have drowned a private fit: clients have models of their rows.
    _is_local = False

    @property
    def _n_model_features(self) -> int:
        return self.model_.n_features

    def __getstate__(self) -> dict[str, Any]:
        """State without attributes that are computed from the clusters' models on request."""
        state = dict(super().__getstate__())
        if state.get("_shared_params"):
            for name in OF_CLUSTERS:
                state.pop(name, None)
        return state

    def predict(self, X: MatrixLike, groups: Groups = None) -> Array:
        """Predict with the model of each row's client.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed after a fit with ``groups``.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,) or (n_samples, n_features)
            Targets or class labels; with an unsupervised local model the reconstructed rows.

        Raises
        ------
        ValueError
            If ids are needed and missing, or not seen in fit under ``unseen="error"``.
        """
        return self._output(self._decide(X, groups))

    @available_if(_is_classifier)
    def decision_function(self, X: MatrixLike, groups: Groups = None) -> Array:
        """Confidence scores of the classes under each row's client's model.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed after a fit with ``groups``.

        Returns
        -------
        scores : ndarray of shape (n_samples,) or (n_samples, n_classes)
            Scores in the order of ``classes_``; of ``classes_[1]`` if there are two classes.
        """
        raw = self._decide(X, groups)  # an unfitted estimator ends here, by a NotFittedError
        return self.model_.scores(raw)

    @available_if(_has_proba)
    def predict_proba(self, X: MatrixLike, groups: Groups = None) -> Array:
        """Class probabilities under each row's client's model.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed after a fit with ``groups``.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``, whatever classes a client has seen.
        """
        raw = self._decide(X, groups)  # an unfitted estimator ends here, by a NotFittedError
        return self.model_.proba(raw)

    @available_if(_has_proba)
    def predict_log_proba(self, X: MatrixLike, groups: Groups = None) -> Array:
        """Logarithms of the class probabilities.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed after a fit with ``groups``.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            Columns in the order of ``classes_``.
        """
        with np.errstate(divide="ignore"):  # a probability may be zero to the last digit
            return np.log(self.predict_proba(X, groups))

    def score(
        self,
        X: MatrixLike,
        y: Targets = None,
        sample_weight: Weights = None,
        groups: Groups = None,
    ) -> float:
        """Accuracy of a classifier, R^2 of a regressor, else minus the mean loss.

        All rows count alike, whichever client they belong to.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            True targets. Not used with an unsupervised local model.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed after a fit with ``groups``.

        Returns
        -------
        score : float
            The larger the better.
        """
        kind = self._kind()
        if kind is None:
            X, params, index = self._rows_and_models(X, groups)
            losses = self.model_.row_losses(X, None, params, index)
            return -float(np.average(losses, weights=check_weights(sample_weight, X)))
        predicted = self.predict(X, groups)
        y = check_target(y, len(predicted), kind == "regressor", self)
        if kind == "regressor":
            check_size(y.astype(float, copy=False), "y")
        weights = check_weights(sample_weight, np.zeros((len(predicted), 1)))
        metric = accuracy_score if kind == "classifier" else r2_score
        with about("y"), np.errstate(over="ignore", invalid="ignore"):
            return float(metric(y, predicted, sample_weight=weights))

    def predict_cluster(self, X: MatrixLike, label: ArrayLike) -> Array:
        """Predict with the model of a cluster, whatever client the rows belong to.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit; the ids in the group column are not looked at.
        label : int or array-like of shape (n_samples,)
            Cluster to use for all rows, or one for each row; in ``0, ..., n_clusters_ - 1``.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,) or (n_samples, n_features)
            As from ``predict``.

        Raises
        ------
        ValueError
            If a label is not that of a cluster.
        """
        check_is_fitted(self)
        return self._output(self._decide_by_clusters(X, label))

    def client_model(self, group: Hashable | None = None) -> Any:
        """Model of one client as a fitted estimator of plain scikit-learn.

        Parameters
        ----------
        group : object, default=None
            Id of the client; one not seen in fit is treated as ``unseen`` says. None only after a
            fit without ids.

        Returns
        -------
        estimator : estimator
            ``LinearRegression``, ``HuberRegressor``, ``QuantileRegressor``, ``PoissonRegressor``,
            ``GammaRegressor``, ``TweedieRegressor``,
            ``LogisticRegression``, ``LinearSVC``, ``MLPClassifier`` or ``MLPRegressor``, with
            the names of the features if fit had some. Curves are behind a ``ColumnTransformer``
            with ``SplineTransformer`` in a pipeline, and trees behind a ``FunctionTransformer``.
            It needs no groups, knows nothing of other
            clients, and predicts as this estimator does for the client. Of a module of PyTorch the
            module with the client's weights, in ``eval`` mode.

        Raises
        ------
        ValueError
            If the id is needed or not seen in fit, if scikit-learn has no such estimator, or if
            predictions depend on the levels of other groupings.
        """
        return self._behind_table(self._plain_model(group))

    def _plain_model(self, group: Hashable | None) -> Any:
        """Model of one client of features that are numbers."""
        check_is_fitted(self)
        if group is None:
            self._refuse_anonymous_rows()
            position = np.zeros(1, dtype=np.intp)
        else:
            ids = np.empty(1, dtype=object)
            ids[0] = group
            position = self._locate(check_ids(ids.tolist(), 1, "group"))
        if position[0] < 0 and self._mixes_unseen:
            raise ValueError(
                f"{self.n_clusters_} networks predict for clients not seen in fit, under "
                "unseen='average', and are no estimator of scikit-learn. Name a client of the "
                "fit, or set unseen='largest'."
            )
        table, index = self._models_at(position)
        plain = self.model_.plain(table[index[0]], getattr(self, "classes_", None))
        if self.model_.fits_whole or not isinstance(plain, BaseEstimator):
            return plain
        plain.n_features_in_ = self.model_.n_features
        if hasattr(self, "feature_names_in_"):
            plain.feature_names_in_ = self.coef_names_.copy()
        return plain

    def sample_labels(self, groups: ClientIds) -> IntArray:
        """Cluster of each row's client.

        Parameters
        ----------
        groups : array-like of shape (n_samples,)
            Client ids.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            ``labels_`` of the clients; for ids not seen in fit 0, the largest cluster, under
            ``unseen="largest"``, and -1, no cluster, under "average".

        Raises
        ------
        ValueError
            If an id was not seen in fit, under ``unseen="error"``.
        """
        check_is_fitted(self)
        positions = self._locate(check_ids(groups))
        unseen = -1 if self.unseen == "average" else 0
        labels = positions if self._is_private else self.labels_[positions]
        return np.where(positions < 0, unseen, labels)

    # ----------------------------------------------------------------------------- federations

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
        requests = [(method,)] * len(parts)
        output = federation.collected(iter(ask_each(parts, "outputs", requests, whole=True)))
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
            requests = [arguments] * len(parts)
            return np.sum(ask_each(parts, name, requests, whole=True), axis=0)

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

    def _personal_models(self, federation: Federation) -> Array:
        """Models of clients after a private fit."""
        raise NotImplementedError

    def _scored_parts(
        self, federation: Federation, hello: Handshake, codes: Array | None
    ) -> list[Any]:
        """The federation's rows beside the predictions of their clients' models."""
        if not self._predicts_by_client:
            raise NotImplementedError(
                f"{type(self).__name__} predicts by more than a client's parameters, and not yet "
                "where the rows of a federation are: use predict and score on rows at hand."
            )
        positions = np.zeros(0) if self._is_private else self._locate(hello.ids)
        if self._mixes_unseen and (positions < 0).any():
            raise NotImplementedError(
                f"{type(self).__name__} predicts for clients not seen in fit by the networks of "
                "several clusters, and not yet where the rows of a federation are: use predict "
                "and score on rows at hand."
            )
        if self._is_private:
            table, index = self._personal_models(federation), np.arange(len(hello.ids))
        else:
            table, index = self._models_at(positions)
        return scored(federation.rows(self.model_, hello), self.model_, table, index, codes)

    # ------------------------------------------------------------------------ models of rows

    def _decide(self, X: MatrixLike, groups: Groups) -> Array:
        X, positions = self._rows_and_positions(X, groups)
        raw = self.model_.decision(X, *self._models_at(positions))
        unseen = positions < 0
        if self._mixes_unseen and unseen.any():
            shares = np.tile(self._cluster_shares, (int(unseen.sum()), 1))
            models = self.cluster_params_[: shares.shape[1]]
            raw[unseen] = mixed_decision(self.model_, X[unseen], models, shares)
        return raw

    @property
    def _mixes_unseen(self) -> bool:
        """Whether unseen clients have the mean output of the clusters' networks.

        Their mean parameters are those of no network that has learned anything.
        """
        model = self.model_
        several = self.unseen == "average" and self.n_clusters_ > 1
        linear = model.coefficients(np.zeros((1, model.n_params)))
        return several and not linear and not model.fits_whole

    def _decide_by_clusters(self, X: Any, label: ArrayLike) -> Array:
        """Raw predictions of rows by the models of clusters."""
        X, _ = self._take_ids(X, None)
        X = self._check_features(X, dtype=self.model_.rows_dtype)
        index = self._check_labels(label, X.shape[0])
        return self.model_.decision(X, self.cluster_params_, index)

    @property
    def _predicts_by_client(self) -> bool:
        """True if predictions are those of the local model with the client's parameters."""
        return type(self)._decide is Predictions._decide

    def _rows_and_models(self, X: Any, groups: Groups) -> tuple[Any, Array, Array]:
        """Checked rows, a table of models (m, n_params), and which of them each row uses."""
        X, positions = self._rows_and_positions(X, groups)
        return X, *self._models_at(positions)

    def _rows_and_positions(self, X: Any, groups: Groups, dtype: Any = None) -> tuple[Any, Array]:
        """Checked rows, and the position of each row's client among those of the fit."""
        check_is_fitted(self)
        X, ids = self._take_ids(X, groups)
        X = self._check_features(X, dtype=self.model_.rows_dtype if dtype is None else dtype)
        if ids is None:
            self._refuse_anonymous_rows()
            positions = np.zeros(X.shape[0], dtype=np.intp)
        else:
            positions = self._locate(check_ids(ids, X.shape[0], self._ids_name()))
        return X, positions

    def _models_at(self, positions: Array) -> tuple[Array, Array]:
        """A table of models, and which of them clients at these positions have."""
        if self._shared_params:
            labels = positions if self._is_private else self.labels_[positions]
            table, index = self.cluster_params_, labels
        else:
            table, index = self.params_, positions
        unseen = positions < 0
        if not unseen.any():
            return table, index
        # Their model is put behind the others.
        average = self.unseen == "average"
        other = self._average_params if average else self.cluster_params_[0]
        return np.vstack([table, other[None]]), np.where(unseen, len(table), index)

    def _locate(self, ids: Array) -> Array:
        """Position of each row's client, -1 for unseen ones if these are allowed."""
        if self._has_groups:
            positions, unseen = locate(self.groups_, ids)
            text = describe_unseen(self.groups_, unseen) if len(unseen) else ""
        else:
            positions, unseen = np.full(len(ids), -1), ids
            text = f"{type(self).__name__} was fitted without groups and knows no client id"
        if len(unseen) and self.unseen == "error":
            if self._is_private:
                raise ValueError(
                    "groups: a private fit knows no client. A client gets its model from its "
                    "rows, at the client, by adapt(X, y, groups); unseen='average' predicts with "
                    "the model that clients have in common."
                )
            raise ValueError(
                f"{text}. Set unseen='average' to use the mean of the clients' models or "
                "'largest' to use the largest cluster's model, or let adapt() find the cluster of "
                "a new client from a few of its labelled rows. If clients were left out by a "
                "cross-validation, split the rows inside each of them: cv=ClientKFold()."
            )
        if (
            len(unseen)
            and self.unseen == "largest"
            and len(self.groups_) > 1
            and self.cluster_sizes_.max() == 1
        ):
            raise ValueError(
                f"{text}, and unseen='largest' has no meaning here, since each of the "
                f"{self.n_clusters_} clusters has one client. Set unseen='average' to use the "
                "mean of the clients' models."
            )
        return positions

    def _refuse_anonymous_rows(self) -> None:
        if self._has_groups:
            raise ValueError(
                f"{type(self).__name__} was fitted with the rows of {len(self.groups_)} client(s) "
                "and needs to know the client of each row: pass groups= with one id per row. "
                "If a tool that cannot pass groups made this call (a scorer's name in "
                "GridSearchCV, cross_val_predict), put the ids in a column of X and set group_col "
                "before fit. predict_cluster(X, label) predicts with a cluster's model."
            )

    def _output(self, raw: Array) -> Array:
        output = self.model_.output(raw)
        return self.classes_[output] if self._kind() == "classifier" else output

    def _known_classes(self, y: Any) -> Array:
        """Codes of classes that were seen in fit."""
        with about("y"):
            values, codes = np.unique(y, return_inverse=True)
        known = np.isin(values, self.classes_)
        if not known.all():
            raise ValueError(
                f"y contains classes not seen in fit: {values[~known].tolist()}; the classes are "
                f"{self.classes_.tolist()}."
            )
        return np.searchsorted(self.classes_, values)[codes]

    def _check_labels(self, label: ArrayLike, n_rows: int) -> Array:
        """One cluster label per row."""
        with about("label"):
            labels = np.asarray(label)
        if labels.dtype.kind not in "iu" or labels.shape not in ((), (n_rows,)):
            raise ValueError(
                f"label must be an integer or {n_rows} integers, one for each row, got "
                f"{labels.dtype} of shape {labels.shape}."
            )
        wrong = np.setdiff1d(labels, np.arange(self.n_clusters_))
        if len(wrong):
            raise ValueError(
                f"label must be in 0, ..., {self.n_clusters_ - 1}, as there are "
                f"{self.n_clusters_} clusters; got {wrong[:5].tolist()}."
            )
        return np.broadcast_to(labels.astype(np.intp), (n_rows,))
