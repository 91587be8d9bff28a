"""The base of the estimators that give each client a model.

``fit`` is validate -> build the pool of clients -> solve -> publish. A method implements
:meth:`BaseFederated._solve`, which sees the pool and never a row.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import KW_ONLY, replace
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.utils import ClassifierTags, RegressorTags, check_random_state
from sklearn.utils._param_validation import StrOptions

from .._option_objects import parameters
from .._progress import announce
from .._typing import (
    Array,
    DTypeLike,
    Groups,
    MatrixLike,
    RandomState,
    Targets,
    Unseen,
    Weights,
    fit_context,
)
from ..calls.kept_models import Recall
from ..exceptions import UnitsWarning
from ..federation.federation import Federation
from ..federation.handshake import Handshake
from ..federation.pool import ClientPool
from ..federation.presence import ClientsLost, Presence
from ..federation.result import Result
from ..models import LinearModel, LocalModel, TorchModel
from ..models._network import Network
from ..numerics.by_cluster import numbered_by_size
from ..rounds.polish import solve_pooled
from ..search.alpha import alpha_unit, is_automatic
from .absent import options_of, with_absent
from .checkpointing import checkpointed
from .docs import document
from .ensembles import boosted, check_fits_whole, with_estimators
from .fitting import Task, given_to_fit
from .newcomers import NewClients
from .of_clients import OfClients, needs_single_answers
from .predicting import OF_CLUSTERS, Predictions, attributes_of
from .private_fits import PrivatePlan, fit_privately
from .reporting import Reports
from .table_columns import TakesTables

_REQUEST_GROUPS = {"groups": True}
# Mean loss of networks at the beginning beyond which units are far from one.  Benchmark: R2 of
# FedAvg's network of 8 units, .34 on targets of unit size, .23 on 100 times, -1.0 on 1e5 times.
MOST_LOSS = 1e3
# Private attributes of a fit that a fit of the other kind does not set.
OF_A_FIT = {"_how_sure", "_is_local", "_is_masked", "_is_private", "_n_asked"}
OF_A_FIT |= {"_n_fitted", "_n_rows"}
OF_A_FIT |= {"_seen_curvatures", "_seen_losses", "_seen_marginals", "_seen_weights"}


@document
@parameters
class BaseFederated(NewClients, Reports, Predictions, TakesTables, OfClients):
    """Base of the federated estimators.

    A subclass implements ``_solve``. It annotates, and has in
    ``_parameter_constraints``, only the parameters that its bases do not have.

    {parameters}
    """

    model: LocalModel | None = None
    _: KW_ONLY
    group_col: str | int | None = None
    unseen: Unseen = "error"
    n_jobs: int | None = None
    random_state: RandomState = None
    verbose: int = 0

    _parameter_constraints: dict[str, Any] = {
        "model": [LocalModel, None],
        "unseen": [StrOptions({"error", "average", "largest"})],
    }

    _publishes_rounds = True
    #: If True, the method needs fits and losses of local models only: a SklearnModel will do.
    _fits_estimators = False
    #: If True, objectives are sums over clients, else means.
    _sums_clients = False

    # With metadata routing every method asks for groups, no set_*_request call is needed.
    __metadata_request__fit = _REQUEST_GROUPS
    __metadata_request__predict = _REQUEST_GROUPS
    __metadata_request__predict_proba = _REQUEST_GROUPS
    __metadata_request__predict_log_proba = _REQUEST_GROUPS
    __metadata_request__decision_function = _REQUEST_GROUPS
    __metadata_request__score = _REQUEST_GROUPS

    # ------------------------------------------------------------ what a subclass implements

    def _local_model(self) -> LocalModel:
        """The local model, not bound: that given, or least squares."""
        return LinearModel() if self.model is None else self.model

    def _model_of(self, hello: Handshake) -> LocalModel:
        """The local model of the clients of a federation, not bound."""
        return self._local_model()

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

    def _n_priors(self, pool: ClientPool, options: dict[str, Any]) -> float:
        """How many models have a standard normal prior each under ``alpha="auto"``."""
        return 1

    def _task_options(self, task: Task) -> dict[str, Any]:
        """Keyword arguments of ``_solve``."""
        return task.options

    def _places_absent(self) -> bool:
        """True if clients without rows have a place in the problem that is solved."""
        return False

    def _private_plan(self, model: LocalModel) -> PrivatePlan:
        """How this estimator fits private clients with a bound local model.

        Raises
        ------
        PrivacyError
            If it cannot.
        """
        raise needs_single_answers(self)

    @property
    def needs_single_answers(self) -> bool:
        """Whether fits of this configuration ask clients for models or gradients one by one.

        False: clients send such numbers in sums over clusters only. A cluster of one client is its
        own sum.
        """
        return True

    # ------------------------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        sample_weight: Weights = None,
    ) -> Self:
        """Find the clusters of clients and fit a model for each.

        If the fit fails, the estimator stays as it was.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            The rows of all clients, in any order; with ``group_col`` one of the columns holds
            the client ids. A data frame may have columns of categories and missing values:
            scikit-learn's ``OneHotEncoder`` and ``SimpleImputer`` encode them.
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
            or the weights are not valid, such as a category of more than 255 levels.

        Warns
        -----
        SingleClientWarning
            If nothing names the clients.
        ConvergenceWarning
            If the solver stopped before it reached its tolerance.
        RejectedClientWarning
            If a client sent numbers that are not finite: it takes no part.
        """
        task = self._task(X, y, groups, sample_weight)
        return self._run(task, given_to_fit(X, y, groups, sample_weight))

    @fit_context(prefer_skip_nested_validation=False)
    def fit_federation(
        self,
        federation: Federation,
        checkpoint: str | PathLike[str] | None = None,
        *,
        every: float = 10.0,
        resume: bool = False,
        evidence: bool = False,
    ) -> Self:
        """Find the clusters of the clients of a federation and fit a model for each.

        ``fit(X, y, groups=groups)`` is this on an
        :class:`~skcfl.federation.InProcessFederation` of its rows.

        Parameters
        ----------
        federation : Federation
            The clients, see :mod:`skcfl.federation`.
        checkpoint : path-like, default=None
            File from which a fit that was cut off can go on, see :ref:`checkpoints`. It is deleted
            when the fit has ended.
        every : float, default=10.0
            Seconds between two writes of the checkpoint.
        resume : bool, default=False
            If True, the fit goes on from the checkpoint, if it is there.
        evidence : bool, default=False
            If True, clients in other places are asked at the end for the sums that the tests and
            intervals of ``report`` need, in ten to eighty exchanges more. Clients here always are.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If ``group_col`` is set, since the federation knows its clients, if there is a
            checkpoint or evidence of private or masked clients, or for the reasons of ``fit``.
        CheckpointError
            If the checkpoint is damaged, of another fit, written by a fit that is running, or
            there while ``resume`` is False.

        Warns
        -----
        ConvergenceWarning
            If the solver stopped before it reached its tolerance.
        MissingClientWarning
            If a client never answered one kind of call: it takes no part.
        RejectedClientWarning
            If a client sent numbers that are not finite: it takes no part.
        PrivacyWarning
            If the clients are private and noise would drown what they have in common.
        """
        with checkpointed(self, federation, checkpoint, every, resume) as clients:
            hello, header = self._introduced(clients)
            if hello.privacy is None:
                task = self._open(clients, hello, header, hello.ids)
                return self._run(replace(task, evidence=evidence))
            if evidence:
                raise ValueError(
                    "evidence must be False where clients are private or masked, got True: tests "
                    "and intervals need sums without noise. No client was asked for anything."
                )
            if checkpoint is not None:
                raise ValueError(
                    "checkpoint must be None where clients are private or masked, got "
                    f"{str(checkpoint)!r}: a fit that goes on asks for sums again, which their "
                    "account would pay twice, and masks are made for one fit only. No client was "
                    "asked for anything."
                )
            fit_privately(self, clients, hello, header)
            return self

    def _end(self, task: Task) -> None:
        self._gather(task.pool, len(self.groups_), task.evidence)

    def _solve_task(self, task: Task) -> Result:
        """Solve, anew without the clients that were lost or rejected on the way.

        What was derived from them, such as scales, penalties and starts, is derived again. Every
        attempt is without one more client at least, so that there is a last one, or with those who
        were away for a while, twice at most.
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
                if task.pool.travels:
                    presence.check_skipped(last=True)
                result = self._of_all(task, result)
                if task.pool.model.fits_whole:
                    about = task.federation, task.hello, task.pool, result
                    result = boosted(*about, task.pool.random_state)
                return result
            except ClientsLost:
                ledger = task.pool.ledger
                again = (task.federation, task.hello, task.header, task.groups, presence)
                vars(task).update(vars(replace(self._open(*again), evidence=task.evidence)))
                task.pool.ledger.take_over([ledger])
                announce(presence.why_again())
                presence.warn_of_refusals()
            finally:
                presence.starts_again = False

    def _kept(self, task: Task) -> Array | None:
        """Clients that a fit is of, (n_clients,) of bool; None if it is of all.

        Clients that are left out are no clients of the fit, but where a method has a place for
        clients without rows.
        """
        left_out = task.pool.presence.left_out
        return ~left_out if left_out.any() and not self._places_absent() else None

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
        copied._publish(task, result)
        return copied.__dict__

    def _open(
        self,
        federation: Federation,
        hello: Handshake,
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
        model = hello.bound(self._model_of(hello))
        options = self._solve_options(groups)
        random_state, clients = check_random_state(self.random_state), federation
        if model.fits_whole:
            check_fits_whole(self, federation)
            fitted = with_estimators(federation, hello, model, random_state, before)
            clients, model = fitted
        aggregation = getattr(self, "aggregation", "mean")
        robust = not (isinstance(aggregation, str) and aggregation == "mean")
        robust |= getattr(self, "client_loss", None) is not None
        pool, folds = clients.open_with_folds(model, random_state, hello, robust, before)
        if is_automatic(pool):
            pool = pool.penalised(self._n_priors(pool, options) * alpha_unit(pool, solve_pooled))
            folds = folds.penalised(pool.model)
        return Task(header, pool, groups, classes, options, folds, federation, hello)

    def _check_number(self, n_clients: int) -> None:
        n_clusters = getattr(self, "n_clusters", 1)
        if n_clusters != "auto" and n_clusters > n_clients:
            raise ValueError(
                f"n_clusters={n_clusters} is more than the number of clients, {n_clients}. "
                "Every cluster needs a client."
            )

    def _publish(self, task: Task, result: Result) -> None:
        pool = task.pool
        model = pool.model if result.model is None else result.model
        order, labels = numbered_by_size(np.asarray(result.labels))

        cluster_params = _in_user_units(pool, result.cluster_params, model.dtype)[order]
        params = None
        if result.params is not None:
            params = _in_user_units(pool, result.params, model.dtype)
        if model.own is not None:
            params = cluster_params[labels] if params is None else params
            params, cluster_params = _with_own(pool, labels, params, cluster_params)
        models = cluster_params if params is None else params
        if not (
            np.isfinite(models).all()
            and np.isfinite(cluster_params).all()
            and np.isfinite(result.objective)
        ):
            raise ValueError(self._divergence(result.n_iter))
        extra = dict(result.extra)
        counted = _counted(pool, extra)
        by_cluster = np.bincount(labels, counted, len(order))
        if params is None:  # models that are equal count together
            counted = by_cluster
        fitted, missing, complete = self._of_the_pool(task)
        if missing.any() or not complete:
            # Both need every client.
            unproved = {"dual_gap": np.inf, "partition_optimal": None}
            extra.update({name: unproved[name] for name in unproved.keys() & extra.keys()})
        for name in ("fusion_params", "round_params"):
            if name in extra:
                extra[name] = pool.units.to_user(extra[name])
        fitted |= attributes_of(self, task.header, model, cluster_params, task.classes, result)
        fitted |= {
            "labels_": labels,
            "cluster_sizes_": np.bincount(labels, minlength=len(order)),
            "objective_": float(result.objective),
            "_scaling": pool.scaling,
            "_average_params": _average(counted, models),
            "_cluster_shares": by_cluster / max(by_cluster.sum(), 1e-300),
            "_shared_params": params is None,
            "_has_clusters": params is None,
        }
        if "fusion_params" in extra:
            # Proofs need models and forces as they were found, to the last digit.
            fitted["_solution"] = result.extra["fusion_params"], extra.get("dual_coef")
        if "dual_coef" in extra:
            extra["dual_coef"] = pool.units.slopes_to_user(extra["dual_coef"])
        if params is not None:
            fitted["params_"] = params
            fitted.update({f"{k}_": v for k, v in model.coefficients(params).items()})
        extra = {f"{k}_": v for k, v in extra.items()}
        if taken := (fitted.keys() | set(OF_CLUSTERS)) & extra.keys():
            raise RuntimeError(
                f"A solver's Result.extra has {sorted(taken)}, which every fit publishes: give "
                "them other names."
            )
        self._replace_attributes(task.header, fitted | extra)

    def _replace_attributes(self, header: Any, fitted: dict[str, Any]) -> None:
        # A private fit and another one on the same estimator leave nothing to each other.
        for name in OF_A_FIT & vars(self).keys():
            delattr(self, name)
        super()._replace_attributes(header, fitted)

    def _divergence(self, n_iter: int) -> str:
        """Message about non-finite models."""
        trains = "training" in self._option_classes
        step = self._option("training").step_size if trains else "auto"
        cause = (
            "They overflow: scale X and y, or lower alpha, lam or step_size"
            if isinstance(step, str)
            else f"step_size={step!r} is too long for these X and y: lower it"
        )
        name = type(self).__name__
        return f"{name} diverged: models are not finite after n_iter={n_iter}. {cause}."

    def _found(self, task: Task) -> Iterator[tuple[str, type[Warning]]]:
        yield from super()._found(task)
        model = task.pool.model
        loss = max(self.history_.get("objective", [])[:1], default=0.0)
        loss /= task.pool.n_clients if self._sums_clients else 1
        known = isinstance(model, Network | TorchModel) and model.scaling_ is None
        if known and loss > MOST_LOSS and not callable(getattr(model, "loss", None)):
            choice = "Set standardize=True, or scale" if isinstance(model, Network) else "Scale"
            yield (
                f"The networks' mean loss was {loss:.2g} when training began: their features or "
                f"targets are far from unit size, where training gets nowhere. {choice} both, by "
                "the same means and standard deviations for all clients.",
                UnitsWarning,
            )
        other_units = task.pool.other_units
        if not other_units:
            return
        names = self.coef_names_ if hasattr(self, "feature_names_in_") else None
        some = []
        for (place, k), ratio in list(other_units.items())[:5]:
            feature = f"feature {k if names is None else names[k]!r}" if k >= 0 else "the target"
            client = self.groups_[place : place + 1].tolist()[0]
            some.append(
                f"the spread of {feature} at client {client!r} is {ratio:.1g} times the others'"
            )
        yield (
            f"{'; '.join(some)}{'; ...' if len(other_units) > 5 else ''}: it may have other "
            "units, or false values. Such clients did not count when features were scaled, but "
            "their rows are in the fit. Convert their units, or leave them out.",
            UnitsWarning,
        )

    # ---------------------------------------------------------------------------- scikit-learn

    def __sklearn_tags__(self) -> Any:
        """Tags; what kind of estimator this is comes from the local model."""
        tags = super().__sklearn_tags__()
        kind = self._kind()
        tags.estimator_type = kind
        tags.target_tags.required = kind is not None
        tags.classifier_tags = ClassifierTags() if kind == "classifier" else None
        tags.regressor_tags = RegressorTags() if kind == "regressor" else None
        model = self._local_model()
        tags.input_tags.sparse = not getattr(model, "fits_whole", False)
        tags.input_tags.three_d_array = getattr(model, "any_rank", False)
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
    params[:, own] = pool.ask(Recall, params, final=True)[:, own]
    weights = pool.client_weights
    for k in range(len(cluster_params)):
        mine = (labels == k) & (weights > 0)
        if mine.any():
            cluster_params[k, own] = _average(weights[mine], params[np.ix_(mine, own)])
    return params, cluster_params
