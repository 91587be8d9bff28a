"""The base of all estimators: the client of each row, and what scikit-learn asks of an estimator.

``fit`` is validate -> build the pool of clients -> solve -> publish. A method implements
:meth:`BaseFederated._solve`, which sees the pool and never a row; a flavour (generic, classifier,
regressor) implements :meth:`BaseFederated._local_model`.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import ClassifierTags, RegressorTags, check_random_state
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import (
    check_is_fitted,
    validate_data,
)

from .._checks import about, check_size
from .._option_objects import DocLinkMixin, TakesOptions
from .._progress import CallbackSupportMixin, follow, remark
from .._typing import (
    Array,
    ArrayLike,
    ClientIds,
    DTypeLike,
    FloatArray,
    IntArray,
    Kind,
    MatrixLike,
    available_if,
    fit_context,
)
from ..calls.first_order import Losses
from ..calls.kept_models import Recall
from ..clients.ids import check_ids, column_position, describe_unseen, encode, joined_ids, locate
from ..exceptions import SingleClientWarning
from ..federation.checking import (
    FLOATS,
    as_rows,
    check_features,
    check_target,
    check_targets,
    check_weights,
)
from ..federation.federation import InProcessFederation
from ..federation.inprocess import open_rows
from ..federation.presence import ClientsLost
from ..numerics.by_cluster import numbered_by_size
from ..reports.evidence import memberships
from ..rounds.alpha import alpha_unit, is_automatic
from .absent import options_of, with_absent
from .group_column import TakesIds, check_new_ids
from .on_federations import OnFederations, asked, tell_rejected, tell_units
from .reporting import Reports
from .updating import Updates

if TYPE_CHECKING:
    from ..federation.federation import Federation, Hello
    from ..federation.pool import ClientPool
    from ..federation.presence import Presence
    from ..federation.result import Result
    from ..models import LocalModel

_REQUEST_GROUPS = {"groups": True}

# Largest share of parameters in rows that the noise of new clients is corrected for.
MOST_FITTED = 0.9
# Stands for losses that overflow.
TOO_LARGE = 1e200


def _has_proba(estimator: Any) -> bool:
    return bool(getattr(estimator._local_model(), "has_proba", False))


def _is_classifier(estimator: Any) -> bool:
    return estimator._kind() == "classifier"


# Attributes of a fit about the problem that was solved, of which a new client is no part.
_OF_THE_PROBLEM = {
    "_solution",
    "dual_coef_",
    "fusion_params_",
    "graph_",
    "mixing_weights_",
    "partition_optimal_",
    "round_labels_",
    "round_params_",
    "without_rows_",
}


@dataclass
class Task:
    """What a fit is about."""

    header: Any  # carries n_features_in_ and feature_names_in_
    pool: ClientPool
    groups: np.ndarray | None
    classes: np.ndarray | None
    options: dict[str, Any]
    folds: Any
    # Whom to open again, where clients of a federation are lost.
    federation: Any = None
    hello: Any = None


class BaseFederated(
    CallbackSupportMixin,
    DocLinkMixin,
    OnFederations,
    Reports,
    TakesIds,
    TakesOptions,
    Updates,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base of the federated estimators.

    A subclass has the parameters ``group_col``, ``unseen``, ``n_jobs``, ``random_state`` and
    ``verbose`` besides its own, and implements ``_solve`` and ``_local_model``. Its
    ``_parameter_constraints`` need to list only what its bases do not have.
    """

    _parameter_constraints = {
        "group_col": [str, Integral, None],
        "unseen": [StrOptions({"error", "average", "largest"})],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    _of_the_problem = _OF_THE_PROBLEM

    #: Whether models on the way, between rounds, can be published as if the fit ended there.
    _publishes_rounds = True
    #: Whether a new client's linear model is a mean of the clusters' by its rows' likelihood.
    _mixes_newcomers = True

    # What every fit publishes; methods add to it.
    groups_: Array
    labels_: IntArray
    n_clusters_: int
    cluster_sizes_: IntArray
    params_: FloatArray
    cluster_params_: FloatArray
    coef_: FloatArray
    intercept_: FloatArray
    cluster_coef_: FloatArray
    cluster_intercept_: FloatArray
    coef_names_: Array
    classes_: Array
    n_features_in_: int
    feature_names_in_: Array
    model_: LocalModel
    alpha_: float
    objective_: float
    n_iter_: int
    history_: dict[str, Array]
    floats_up_: int
    floats_down_: int
    calls_: int
    client_calls_: int
    wire_bytes_: tuple[int, int]
    missing_clients_: Array
    rejected_clients_: Array

    # With metadata routing every method asks for groups, no set_*_request call is needed.
    __metadata_request__fit = _REQUEST_GROUPS
    __metadata_request__predict = _REQUEST_GROUPS
    __metadata_request__predict_proba = _REQUEST_GROUPS
    __metadata_request__predict_log_proba = _REQUEST_GROUPS
    __metadata_request__decision_function = _REQUEST_GROUPS
    __metadata_request__score = _REQUEST_GROUPS

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        constraints = {}
        for base in reversed(cls.__mro__):
            constraints.update(vars(base).get("_parameter_constraints", {}))
        cls._parameter_constraints = constraints

    # ------------------------------------------------------------ what a subclass implements

    @abstractmethod
    def _local_model(self) -> LocalModel:
        """The local model, not bound."""

    @abstractmethod
    def _solve(self, pool: ClientPool, **options: Any) -> Result:
        """Fit the federation `pool`; return a Result. Options are those of `_solve_options`."""

    def _solve_options(self, groups: Array | None) -> dict[str, Any]:
        """Turn parameters that speak of client ids into what the solver understands.

        Parameters
        ----------
        groups : ndarray of shape (n_clients,) or None
            The sorted ids, None if the fit has none.

        Returns
        -------
        options : dict
            Keyword arguments of ``_solve``.

        Raises
        ------
        ValueError
            If the parameters do not suit these clients.
        """
        return {}

    # ------------------------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: MatrixLike,
        y: ArrayLike | None = None,
        groups: ClientIds | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Find the clusters of clients and fit a model for each.

        If the fit fails, the estimator stays as it was.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            The rows of all clients, in any order; with ``group_col`` one of the columns holds
            the client ids.
        y : array-like of shape (n_samples,), default=None
            Targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client: str, int, datetime or any other type that can be hashed, the
            same for all rows. None without ``group_col`` makes all rows one client.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; a weight of 2 counts as the row twice, but where rows are dealt to
            folds ("auto") or to batches, each of which has a row once. None is 1 for all.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If ids are missing, of mixed types or of the wrong length, if both ``groups`` and
            ``group_col`` are given, if there are fewer clients than clusters to find, or if X, y
            or the weights are not valid.

        Warns
        -----
        SingleClientWarning
            If nothing names the clients.
        ConvergenceWarning
            If the solver stopped before it reached its tolerance.
        RejectedClientWarning
            If a client sent numbers that are not finite: it takes no part.
        """
        metadata = {"groups": groups, "sample_weight": sample_weight}
        metadata = {name: value for name, value in metadata.items() if value is not None}
        given = {"X": X, "y": y, "metadata": metadata or None}
        return self._run(self._task(X, y, groups, sample_weight), given)

    @fit_context(prefer_skip_nested_validation=False)
    def fit_federation(self, federation: Federation) -> Self:
        """Find the clusters of the clients of a federation and fit a model for each.

        ``fit(X, y, groups=groups)`` is this on an
        :class:`~skcfl.federation.InProcessFederation` of its rows.

        Parameters
        ----------
        federation : Federation
            The clients, see :mod:`skcfl.federation`.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If ``group_col`` is set, since the federation knows its clients, or for the reasons of
            ``fit``.

        Warns
        -----
        ConvergenceWarning
            If the solver stopped before it reached its tolerance.
        MissingClientWarning
            If a client never answered one kind of call: it takes no part.
        RejectedClientWarning
            If a client sent numbers that are not finite: it takes no part.
        """
        return self._run(self._federation_task(federation))

    def _federation_task(self, federation: Federation) -> Task:
        """Ask the clients who they are: what a fit is about, the estimator unchanged."""
        hello = asked(federation, self._kind(), self.group_col)
        header = copy.copy(self)
        header._row_shape = hello.row_shape
        header.n_features_in_ = hello.n_features
        header.__dict__.pop("feature_names_in_", None)
        if hello.feature_names is not None:
            header.feature_names_in_ = hello.feature_names
        self._check_number(len(hello.ids))
        return self._open(federation, hello, header, hello.ids)

    def _run(self, task: Task, given: dict[str, Any] | None = None) -> Self:
        """Solve and publish; `given` is what scikit-learn's callbacks are handed."""
        # Models that diverge are told of once, where they would be published.
        with np.errstate(over="ignore", invalid="ignore"):
            result, stopped = follow(
                self,
                partial(self._solve_present, task),
                lambda result: self._publish(
                    task.header, task.pool, task.groups, task.classes, result
                ),
                given,
                partial(self._as_if_ended, task) if self._publishes_rounds else None,
            )
        if not (result.converged or stopped):
            # four frames up: scikit-learn's context around fit is between
            warnings.warn(result.shortfall, ConvergenceWarning, stacklevel=4)
        tell_rejected(self.rejected_clients_, len(self.groups_), stacklevel=5)
        names = self.coef_names_ if hasattr(self, "feature_names_in_") else None
        tell_units(task.pool.other_units, self.groups_, names, stacklevel=5)
        self._converged = bool(result.converged)
        with np.errstate(over="ignore", invalid="ignore"):
            self._gather(task.pool, len(self.groups_))
        return self

    def _solve_present(self, task: Task) -> Result:
        """Solve, anew without the clients that were lost or rejected on the way.

        What was derived from them, such as scales, penalties and starts, is derived again. Every
        attempt is without one more client at least, so that there is a last one.
        """
        while True:
            presence = task.pool.presence
            presence.starts_again = True
            try:
                pool, options, kept = task.pool, self._task_options(task), self._kept(task)
                if kept is not None:
                    pool, options = pool.subset(kept), options_of(options, kept)
                result = self._solve(pool, **options)
                task.pool.roll_call()
                while presence.undecided.any():
                    task.pool.roll_call()
                return self._of_all(task, result)
            except ClientsLost:
                ledger = task.pool.ledger
                again = (task.federation, task.hello, task.header, task.groups, presence)
                vars(task).update(vars(self._open(*again)))
                task.pool.ledger.take_over([ledger])
                remark("clients were lost or rejected: the fit starts again without them")
            finally:
                presence.starts_again = False

    def _kept(self, task: Task) -> Array | None:
        """Clients that a fit is of, (n_clients,) of bool; None if it is of all.

        Clients that are left out are no clients of the fit, but where a method has a place for
        clients without rows.
        """
        left_out = task.pool.presence.left_out
        return ~left_out if left_out.any() and not self._places_absent() else None

    def _places_absent(self) -> bool:
        """Whether clients without rows have a place in the problem that is solved."""
        return False

    def _of_all(self, task: Task, result: Result) -> Result:
        """Result of all clients, those that are left out included."""
        kept = self._kept(task)
        return result if kept is None else with_absent(result, kept, task.pool.client_weights)

    def _as_if_ended(self, task: Task, result: Result) -> dict[str, Any] | None:
        """Attributes as if the fit had ended at a result on the way, None of diverging models."""
        models = [result.cluster_params, *([] if result.params is None else [result.params])]
        dtype = task.pool.model.dtype
        finite = all(np.isfinite(_in_user_units(task.pool, w, dtype)).all() for w in models)
        if not (finite and np.isfinite(result.objective)):
            return None
        copied, result = copy.copy(self), self._of_all(task, result)
        copied._publish(task.header, task.pool, task.groups, task.classes, result)
        return copied.__dict__

    def _task(
        self,
        X: MatrixLike,
        y: ArrayLike | None,
        groups: ClientIds | None,
        sample_weight: ArrayLike | None,
    ) -> Task:
        """Check the rows and find their clients: what a fit is about, the estimator unchanged."""
        header = copy.copy(self)  # takes n_features_in_ and feature_names_in_
        X, ids = self._take_ids(X, groups, header=header, reset=True)
        X, y = self._check_rows(X, y, dtype=FLOATS)
        sample_weight = check_weights(sample_weight, X)
        groups, codes = self._check_clients(ids, X.shape[0])
        federation = InProcessFederation.of_checked(
            X,
            y,
            codes,
            np.zeros(1, dtype=int) if groups is None else groups,
            sample_weight,
            self.n_jobs,
            self._kind(),
            header._row_shape,
        )
        return self._open(federation, federation.hello(self._kind()), header, groups)

    def _open(
        self,
        federation: Federation,
        hello: Hello,
        header: Any,
        groups: Array | None,
        before: Presence | None = None,
    ) -> Task:
        """What a fit to the clients of a federation is about.

        Those that an attempt `before` lost or rejected are left out.
        """
        classes = hello.classes
        if classes is not None and len(classes) < 2:
            raise ValueError(
                "y: The number of classes has to be greater than one; got 1 class, "
                f"{classes.tolist()[0]!r}."
            )
        n_classes = None if classes is None else len(classes)
        model = self._local_model()
        if hello.row_shape is not None:
            model = model.for_rows(hello.row_shape)
        model = model.bind(hello.n_features, n_classes=n_classes, dtype=hello.dtype)
        options = self._solve_options(groups)
        random_state = check_random_state(self.random_state)
        aggregation = getattr(self, "aggregation", "mean")
        robust = not (isinstance(aggregation, str) and aggregation == "mean")
        robust |= getattr(self, "client_loss", None) is not None
        pool, folds = federation.open_with_folds(model, random_state, hello, robust, before)
        if is_automatic(pool):
            pool = pool.penalised(self._n_priors(pool, options) * alpha_unit(pool))
            folds = folds.penalised(pool.model)
        return Task(header, pool, groups, classes, options, folds, federation, hello)

    def _n_priors(self, pool: ClientPool, options: dict[str, Any]) -> float:
        """How many models have a standard normal prior each under ``alpha="auto"``."""
        return 1

    def _task_options(self, task: Task) -> dict[str, Any]:
        """Keyword arguments of ``_solve``."""
        return task.options

    def _check_clients(self, ids: Any, n_samples: int) -> tuple[Array | None, Array]:
        """Sorted ids of the clients, None if there are none, and each row's client."""
        if ids is None:
            warnings.warn(
                f"{type(self).__name__}.fit got no groups, so all rows are one client and one "
                "model is fitted. If a tool such as cross_val_score or GridSearchCV called fit, "
                "it passed groups to the splitter only: put the ids in a column of X, set "
                "group_col to its name, and pass cv=ClientKFold(group_col=...) of "
                "skcfl.model_selection, which splits the rows inside each client; or enable "
                "metadata routing. Else pass groups= with one client id per row.",
                SingleClientWarning,
                stacklevel=5,
            )
            return None, np.zeros(n_samples, dtype=np.intp)
        groups, codes = self._encode_ids(check_ids(ids, n_samples, self._ids_name()))
        self._check_number(len(groups))
        return groups, codes

    def _check_number(self, n_clients: int) -> None:
        n_clusters = getattr(self, "n_clusters", 1)
        if n_clusters != "auto" and n_clusters > n_clients:
            raise ValueError(
                f"n_clusters={n_clusters} is more than the number of clients, {n_clients}. "
                "Every cluster needs a client."
            )

    def _encode_ids(self, ids: Array) -> tuple[Array, Array]:
        """Sorted ids of the clients and each row's client; a method may know of more clients."""
        return encode(ids)

    def _publish(
        self,
        header: Any,
        pool: ClientPool,
        groups: Array | None,
        classes: Array | None,
        result: Result,
    ) -> None:
        """Replace all fitted attributes at once."""
        model = pool.model if result.model is None else result.model
        order, labels = numbered_by_size(np.asarray(result.labels))

        cluster_params = _in_user_units(pool, result.cluster_params, model.dtype)[order]
        shared = result.params is None
        if result.params is None:
            params = cluster_params[labels]
        else:
            params = _in_user_units(pool, result.params, model.dtype)
        if model.own is not None:
            params, cluster_params = _with_own(pool, labels, params, cluster_params)
            shared = False
        if not (
            (shared or np.isfinite(params).all())
            and np.isfinite(cluster_params).all()
            and np.isfinite(result.objective)
        ):
            raise ValueError(self._divergence(result.n_iter))
        extra = dict(result.extra)
        ids = np.zeros(1, dtype=int) if groups is None else groups
        counted, models = _counted(pool, extra), params
        if shared:  # models that are equal count together
            counted, models = np.bincount(labels, counted, len(order)), cluster_params
        missing, complete = pool.roll_call()
        if missing.any() or not complete:
            # Both need every client.
            unproved = {"dual_gap": np.inf, "partition_optimal": None}
            extra.update({name: unproved[name] for name in unproved.keys() & extra.keys()})
        for name in ("fusion_params", "round_params"):
            if name in extra:
                extra[name] = pool.units.to_user(extra[name])
        fitted = {
            "n_features_in_": header.n_features_in_,
            "model_": model,
            "groups_": ids,
            "labels_": labels,
            "n_clusters_": len(order),
            "cluster_sizes_": np.bincount(labels, minlength=len(order)),
            "params_": params,
            "cluster_params_": cluster_params,
            "objective_": float(result.objective),
            "n_iter_": int(result.n_iter),
            "history_": dict(result.history),
            "floats_up_": pool.ledger.up,
            "floats_down_": pool.ledger.down,
            "calls_": pool.ledger.calls,
            "client_calls_": pool.ledger.client_calls,
            "wire_bytes_": pool.ledger.wire_bytes,
            "missing_clients_": ids[missing],
            "rejected_clients_": ids[pool.rejected],
            "coef_names_": self._feature_names(header, model.n_features),
            "_n_rows": pool.n_samples,
            "_site_bytes": (pool.ledger.shared_bytes, pool.ledger.own_bytes),
            "_scaling": pool.scaling,
            "_average_params": _average(counted, models),
            "_has_groups": groups is not None,
            "_shared_params": shared,
            "_has_clusters": shared,
            "_row_shape": header._row_shape,
        }
        if hasattr(model, "alpha_"):
            fitted["alpha_"] = model.alpha_
        if "fusion_params" in extra:
            # Proofs need models and forces as they were found, to the last digit.
            fitted["_solution"] = result.extra["fusion_params"], extra.get("dual_coef")
        if "dual_coef" in extra:
            extra["dual_coef"] = pool.units.slopes_to_user(extra["dual_coef"])
        if hasattr(header, "feature_names_in_"):
            fitted["feature_names_in_"] = header.feature_names_in_
        if classes is not None:
            fitted["classes_"] = classes
        fitted.update({f"{k}_": v for k, v in model.coefficients(params).items()})
        fitted.update({f"cluster_{k}_": v for k, v in model.coefficients(cluster_params).items()})
        extra = {f"{k}_": v for k, v in extra.items()}
        if fitted.keys() & extra.keys():
            raise RuntimeError(
                f"A solver's Result.extra has {sorted(fitted.keys() & extra.keys())}, which every "
                "fit publishes: give them other names."
            )
        fitted.update(extra)

        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # what an earlier fit of another kind may have left
        self.__dict__.update(fitted)

    def _feature_names(self, header: Any, n_features: int) -> Array:
        """Names of the features, without the group column."""
        names = getattr(header, "feature_names_in_", None)
        if names is None:
            return np.array([f"x{k}" for k in range(n_features)], dtype=object)
        if self.group_col is None:
            return np.array(names)
        return np.delete(names, column_position(self.group_col, names, len(names)))

    def _divergence(self, n_iter: int) -> str:
        """What to say of models that are not finite."""
        step = getattr(self, "step_size", "auto")
        cause = (
            "X, y or a parameter (alpha, lam, step_size) is too large for the arithmetic"
            if isinstance(step, str)
            else f"step_size={step!r} is too long for these X and y: lower it, or set it to 'auto'"
        )
        name = type(self).__name__
        return f"{name} diverged: models are not finite after n_iter={n_iter}. {cause}."

    # -------------------------------------------------------------------------------- predict

    def predict(self, X: MatrixLike, groups: ClientIds | None = None) -> Array:
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
    def decision_function(self, X: MatrixLike, groups: ClientIds | None = None) -> Array:
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
        raw = self._decide(X, groups)
        return self.model_.scores(raw)

    @available_if(_has_proba)
    def predict_proba(self, X: MatrixLike, groups: ClientIds | None = None) -> Array:
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
        raw = self._decide(X, groups)
        return self.model_.proba(raw)

    @available_if(_has_proba)
    def predict_log_proba(self, X: MatrixLike, groups: ClientIds | None = None) -> Array:
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
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ClientIds | None = None,
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
        X, _ = self._take_ids(X, None)
        X = self._check_features(X, dtype=self.model_.dtype)
        index = self._check_labels(label, X.shape[0])
        return self._output(self.model_.decision(X, self.cluster_params_, index))

    def assign(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> IntArray:
        """Find the cluster that fits each of some new clients best.

        A few labelled rows per client are enough. The estimator does not change: predict for the
        new clients with ``predict_cluster``.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the new clients, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, seen in fit or not. None without ``group_col``: all rows
            belong to one client.

        Returns
        -------
        labels : ndarray of shape (n_new_clients,)
            The cluster of least mean loss for each client, in the order of
            ``np.unique(groups)``.

        Raises
        ------
        ValueError
            If y is needed and missing, or holds a class not seen in fit.
        """
        check_is_fitted(self)
        if y is None and self._assigns_by_features:
            return self._clusters_by_features(self._new_clients(X, y, groups, False)[0])
        pool, _ = self._new_clients(X, y, groups)
        return self._clusters_of(pool)

    #: Whether new clients can be assigned without targets, by `_clusters_by_features`.
    _assigns_by_features = False

    def _clusters_of(self, pool: ClientPool) -> Array:
        """Clusters of new clients, whose pool has the units of fit: those of least loss."""
        return pool.ask(Losses, pool.units.from_user(self.cluster_params_)).argmin(axis=1)

    def cluster_losses(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> Array:
        """Mean loss of each client's rows under each cluster's model.

        The matrix that IFCA takes the least of, by rows, and whose rows CLoVE clusters.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, seen in fit or not. None without ``group_col``: all rows
            belong to one client.

        Returns
        -------
        losses : ndarray of shape (n_some_clients, n_clusters_)
            Losses without the local penalty, clients in the order of ``np.unique(groups)``.

        Raises
        ------
        ValueError
            If y is needed and missing, or holds a class not seen in fit.
        """
        check_is_fitted(self)
        pool, _ = self._new_clients(X, y, groups)
        return pool.ask(Losses, pool.units.from_user(self.cluster_params_))

    def _new_clients(
        self, X: Any, y: Any, groups: ClientIds | None, with_targets: bool = True
    ) -> tuple[ClientPool, Array | None]:
        """Pool of clients that need not be those of fit, in the units of fit, and their ids.

        Without targets nothing but the features may be asked of it.
        """
        X, ids = self._take_ids(X, groups)
        if with_targets:
            X, y = self._check_rows(X, y, dtype=self.model_.dtype)
            if _is_classifier(self):
                y = self._known_classes(y)
            if y is not None:
                self.model_.check_target(y)
        else:
            X = self._check_features(X, dtype=self.model_.dtype)
            y = np.zeros(X.shape[0], dtype=int if _is_classifier(self) else float)
        clients, codes, n_clients = None, np.zeros(X.shape[0], dtype=np.intp), 1
        if ids is not None:
            clients, codes = encode(check_ids(ids, X.shape[0], self._ids_name()))
            n_clients = len(clients)
        if self._scaling is not None:
            X = self._scaling.transform(X)
        pool = open_rows(
            self.model_,
            X,
            y,
            codes,
            n_clients,
            n_jobs=self.n_jobs,
            random_state=check_random_state(self.random_state),
            scaling=self._scaling,
        )
        return pool, clients

    @fit_context(prefer_skip_nested_validation=False)
    def adapt(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> Self:
        """Copy of this estimator that also knows some new clients.

        A few labelled rows per client are enough. Each new client belongs to the cluster of least
        mean loss. Its linear model is the mean of the clusters' models by the probabilities that
        its rows give them: the mean of all if they say little, its cluster's if they say enough.
        Fused methods and networks give it the model of its cluster, and
        :class:`~skcfl.LocalModels` fits one to its rows. Nothing else changes, and this estimator
        stays as it is.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the new clients, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client; not with ``group_col``.

        Returns
        -------
        adapted : estimator
            With the new clients in ``groups_``, ``labels_``, ``params_``, ``coef_`` and
            ``cluster_sizes_``. What belongs to the problem that was solved, such as a graph or
            a proof, is not copied: a new client has no part in it.

        Raises
        ------
        ValueError
            If there are no ids, an id was seen in fit, or y is needed and missing or holds a
            class not seen in fit.
        """
        check_is_fitted(self)
        pool, clients = self._new_clients(X, y, groups)
        clients = check_new_ids(self.groups_, clients if self._has_groups else None)
        labels, params = self._models_of(pool)
        if labels is None:  # every client is a cluster
            labels = self.n_clusters_ + np.arange(len(clients))
        dtype = self.params_.dtype
        params = np.asarray(pool.units.to_user(params), dtype=dtype)
        adapted = copy.copy(self)
        adapted._shared_params = False  # newcomers' models may be mixtures
        for name in self._of_the_problem & vars(adapted).keys():
            delattr(adapted, name)
        ids, codes = encode(joined_ids(self.groups_, clients))
        order = np.argsort(codes)  # every id is there once
        adapted.groups_ = ids
        adapted.labels_ = np.append(self.labels_, labels)[order]
        adapted.params_ = np.vstack([self.params_, params])[order]
        extra = int(adapted.labels_.max()) + 1 - self.n_clusters_
        adapted.cluster_params_ = np.vstack([self.cluster_params_, params[:extra]])
        adapted.n_clusters_ = self.n_clusters_ + extra
        adapted.cluster_sizes_ = np.bincount(adapted.labels_)
        adapted._seen_weights = np.append(self._seen_weights, pool.client_weights)[order]
        adapted._seen_losses = None  # of which newcomers' are not known
        for prefix, models in (("", adapted.params_), ("cluster_", adapted.cluster_params_)):
            for name, value in self.model_.coefficients(models).items():
                setattr(adapted, f"{prefix}{name}_", value)
        return adapted

    def _models_of(self, pool: ClientPool) -> tuple[Array | None, Array]:
        """Clusters and models of new clients, in the units of their pool.

        The clusters are None where every client is one.  Few rows cannot say which cluster is a
        client's: its linear model is the mean of the clusters' by their probabilities.
        """
        labels, theta = self._clusters_of(pool), pool.units.from_user(self.cluster_params_)
        linear = self.model_.coefficients(np.zeros((1, self.model_.n_params)))
        if not (self._mixes_newcomers and linear):
            return labels, theta[labels]
        losses = np.nan_to_num(pool.ask(Losses, theta), nan=TOO_LARGE, posinf=TOO_LARGE)
        noise = self._noise(pool)
        return labels, memberships(losses, pool.client_sizes, self.cluster_sizes_, noise) @ theta

    def _noise(self, pool: ClientPool) -> float:
        """Dispersion of a new client's rows about its cluster's model, 1 where it is known."""
        model = pool.model
        if not model.unknown_scale:
            return 1.0
        penalties = pool.model.penalties(pool.units.from_user(self.cluster_params_))[self.labels_]
        loss = max(self.objective_ - np.average(penalties, weights=self._seen_weights), 1e-300)
        # Akaike's final prediction error: the models fit the rows of fit too well.
        share = min(self.n_clusters_ * model.n_params / self._n_rows, MOST_FITTED)
        return model.loss_degree * loss * (1 + share) / (1 - share)

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
            the names of the features if fit had some. It needs no groups, knows nothing of other
            clients, and predicts as this estimator does for the client. Of a module of PyTorch the
            module with the client's weights, in ``eval`` mode.

        Raises
        ------
        ValueError
            If the id is needed or not seen in fit, or if scikit-learn has no such estimator.
        """
        check_is_fitted(self)
        if group is None:
            self._refuse_anonymous_rows()
            params = self.params_[0]
        else:
            ids = np.empty(1, dtype=object)
            ids[0] = group
            table, index = self._models_at(self._locate(check_ids(ids.tolist(), 1, "group")))
            params = table[index[0]]
        plain = self.model_.plain(params, getattr(self, "classes_", None))
        if not isinstance(plain, BaseEstimator):
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
        return self._labels_at(self._locate(check_ids(groups)))

    def _decide(self, X: MatrixLike, groups: ClientIds | None) -> Array:
        X, params, index = self._rows_and_models(X, groups)
        return self.model_.decision(X, params, index)

    @property
    def _predicts_by_client(self) -> bool:
        """Whether predictions are those of the local model with the client's parameters."""
        return type(self)._decide is BaseFederated._decide

    def _rows_and_models(self, X: Any, groups: ClientIds | None) -> tuple[Any, Array, Array]:
        """Checked rows, a table of models (m, n_params), and which of them each row uses."""
        check_is_fitted(self)
        X, ids = self._take_ids(X, groups)
        X = self._check_features(X, dtype=self.model_.dtype)
        if ids is None:
            self._refuse_anonymous_rows()
            positions = np.zeros(X.shape[0], dtype=np.intp)
        else:
            positions = self._locate(check_ids(ids, X.shape[0], self._ids_name()))
        return X, *self._models_at(positions)

    def _models_at(self, positions: Array) -> tuple[Array, Array]:
        """A table of models, and which of them clients at these positions have."""
        if self._shared_params:
            table, index = self.cluster_params_, self.labels_[positions]
        else:
            table, index = self.params_, positions
        unseen = positions < 0
        if not unseen.any():
            return table, index
        # Their model is put behind the others.
        average = self.unseen == "average"
        other = self._average_params if average else self.cluster_params_[0]
        return np.vstack([table, other[None]]), np.where(unseen, len(table), index)

    def _labels_at(self, positions: Array) -> Array:
        unseen = -1 if self.unseen == "average" else 0
        return np.where(positions < 0, unseen, self.labels_[positions])

    def _locate(self, ids: Array) -> Array:
        """Position of each row's client, -1 for unseen ones if these are allowed."""
        if self._has_groups:
            positions, unseen = locate(self.groups_, ids)
            text = describe_unseen(self.groups_, unseen) if len(unseen) else ""
        else:
            positions, unseen = np.full(len(ids), -1), ids
            text = f"{type(self).__name__} was fitted without groups and knows no client id"
        if len(unseen) and self.unseen == "error":
            raise ValueError(
                f"{text}. Set unseen='average' to use the mean of the clients' models or "
                "'largest' to use the largest cluster's model, or let adapt() find the cluster of "
                "a new client from a few of its labelled rows. If clients were left out by a "
                "cross-validation, split the rows inside each of them: cv=ClientKFold()."
            )
        if (
            len(unseen)
            and self.unseen == "largest"
            and self.cluster_sizes_[0] == 1 < len(self.groups_)
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
        return self.classes_[output] if _is_classifier(self) else output

    # ----------------------------------------------------------------------------- validation

    def _take_ids(
        self, X: Any, groups: ClientIds | None, header: Any = None, reset: bool = False
    ) -> tuple[Any, Any]:
        """Check the columns of X and take the ids out of them: features, ids (None if none)."""
        header = self if header is None else header
        X, shape = as_rows(X)
        if shape is not None:
            self._check_row_shape(shape, reset)
        if reset:
            header._row_shape = shape
        with about("X"):
            validate_data(header, X, reset=reset, skip_check_array=True)
        if self.group_col is None:
            ids = groups
        else:
            X, ids = self._take_column(X, groups, header)
        if not reset and X.shape[1] != self.model_.n_features:
            raise ValueError(
                f"The models have {self.model_.n_features} features, X has {X.shape[1]} besides "
                f"the ids: group_col, now {self.group_col!r}, was changed after fit. Fit again."
            )
        return X, ids

    def _check_row_shape(self, shape: tuple[int, ...], reset: bool) -> None:
        """Raise a ValueError if rows of several axes are not those of fit, or hold the ids."""
        if reset:
            self._local_model().for_rows(shape)
        elif shape != self._row_shape:
            raise ValueError(
                f"X has rows of shape {shape}; fit had rows of shape "
                f"{self._row_shape or (self.n_features_in_,)}."
            )
        if self.group_col is not None:
            raise ValueError(
                f"group_col must be None where X has rows of shape {shape}, which have no columns "
                f"to take ids from, got {self.group_col!r}. Pass groups=."
            )

    def _check_features(self, X: Any, dtype: Any) -> Any:
        return check_features(X, dtype, self)

    def _check_rows(self, X: Any, y: Any, dtype: Any) -> tuple[Any, Any]:
        """Features and targets, y None if the local model is unsupervised."""
        X = self._check_features(X, dtype)
        kind = self._kind()
        return X, None if kind is None else check_targets(y, X, kind, self)

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

    # ---------------------------------------------------------------------------- scikit-learn

    def _kind(self) -> Kind:
        """Estimator type: "classifier", "regressor" or None (unsupervised)."""
        return getattr(self._local_model(), "estimator_type", None)

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one.

        False: clients send such numbers in sums over clusters only. A cluster of one client is its
        own sum.
        """
        return True

    def __sklearn_tags__(self) -> Any:
        """Tags; what kind of estimator this is comes from the local model."""
        tags = super().__sklearn_tags__()
        kind = self._kind()
        tags.estimator_type = kind
        tags.target_tags.required = kind is not None
        tags.classifier_tags = ClassifierTags() if kind == "classifier" else None
        tags.regressor_tags = RegressorTags() if kind == "regressor" else None
        tags.input_tags.sparse = True
        tags.input_tags.three_d_array = getattr(self._local_model(), "any_rank", False)
        return tags


def _in_user_units(pool: ClientPool, params: Array, dtype: DTypeLike) -> Array:
    """Models as they are published; where numbers overflow they are infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(pool.units.to_user(params), dtype=dtype)


def _counted(pool: ClientPool, extra: dict[str, Any]) -> Array:
    """Weights of the clients in the model of unseen ones: none of those who are set aside."""
    aside = np.asarray(extra.get("suspicion", np.zeros(pool.n_clients))) > 1.0
    kept = np.where(pool.rejected | aside, 0.0, pool.client_weights)
    return kept if kept.any() else np.where(pool.rejected, 0.0, pool.client_weights)


def _average(weights: Array, params: Array) -> Array:
    """Mean of models by the rows that they are of."""
    return (weights / weights.sum()) @ params


def _with_own(
    pool: ClientPool, labels: Array, params: Array, cluster_params: Array
) -> tuple[Array, Array]:
    """Models with what the clients have kept for themselves, and clusters' with its means."""
    own: Any = pool.model.own
    params, cluster_params = np.array(params), np.array(cluster_params)
    params[:, own] = pool.ask(Recall, params)[:, own]
    weights = pool.client_weights
    for k in range(len(cluster_params)):
        mine = (labels == k) & (weights > 0)
        if mine.any():
            cluster_params[k, own] = _average(weights[mine], params[np.ix_(mine, own)])
    return params, cluster_params
