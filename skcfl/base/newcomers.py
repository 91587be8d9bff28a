"""New clients, and new rows of known ones."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._typing import (
    Array,
    FloatArray,
    Groups,
    IntArray,
    MatrixLike,
    Targets,
    Weights,
    fit_context,
)
from ..calls.curvatures import Prox
from ..calls.first_order import Losses
from ..clients.ids import check_ids, describe_unseen, encode, joined_ids, locate
from ..exceptions import PrivacyError
from ..federation.checking import check_weights
from ..federation.fanout import joined
from ..federation.inprocess import open_rows
from ..federation.pool import ClientPool
from ..federation.presence import Presence
from ..reports.evidence import marginals, memberships
from ..rounds.local_training import solve_local
from ..rounds.polish import solve_pooled
from ..search.alpha import alpha_unit, is_automatic, n_priors
from .of_clients import check_new_ids
from .predicting import NotReleased
from .reporting import MOST_SEEN, curvatures_of

if TYPE_CHECKING:
    from ..federation.federation import Federation
    from ..federation.handshake import Handshake
    from .predicting import Predictions as Host
else:  # a mixin
    Host = object

# Attributes of the solved problem; new clients and new rows have no part in it.
OF_THE_PROBLEM = {
    "_solution",
    "dual_coef_",
    "fusion_params_",
    "graph_",
    "mixing_weights_",
    "partition_optimal_",
    "round_labels_",
    "round_params_",
    "suspicion_",
    "tree_",
    "without_rows_",
}
# Largest share of parameters in rows that the noise of new clients is corrected for.
MOST_FITTED = 0.9
# Least curvature of old rows in a parameter, relative to a client's mean over its parameters, and
# least such mean, relative to all clients'. Errors to a fit of all rows with 0, .1, .2 and .5, row
# by row: KL of classes .27, .003, .018, .024; rmse with rare columns .148, .139, .098, .077.
CURVATURE_FLOOR = 0.1
# Stands for losses that overflow.
TOO_LARGE = 1e200


class NewClients(Host):
    """Mixin of estimators that find clusters and models of new clients, beside Predictions."""

    #: If True, a new client's linear model is a mean of the clusters' by its rows' likelihood.
    _mixes_newcomers = True
    #: If True, new clients can be assigned without targets, by `_clusters_by_features`.
    _assigns_by_features = False

    # What a private fit publishes, besides the models that clients have in common.
    epsilon_: float
    delta_: float
    releases_: dict[str, Array]

    labels_ = NotReleased()
    cluster_sizes_ = NotReleased()
    responsibilities_ = NotReleased()
    params_std_ = NotReleased()
    client_dispersion_ = NotReleased()
    objective_ = NotReleased()
    loglik_ = NotReleased()
    bic_ = NotReleased()
    _how_sure = NotReleased()

    # Total weight of the rows of each client so far, and losses of these under each cluster.
    _seen_weights: FloatArray
    _seen_losses: FloatArray | None
    _seen_marginals: FloatArray | None
    # Curvatures of the objectives of clients with own linear models, one for each parameter.
    _seen_curvatures: FloatArray | None

    def assign(
        self,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        sample_weight: Weights = None,
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
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; ``class_weight`` multiplies them as in fit.

        Returns
        -------
        labels : ndarray of shape (n_new_clients,)
            The cluster of least mean loss for each client, the most probable one where clients
            have posteriors, or the nearest one in :class:`~skcfl.FlexCFL` and
            :class:`~skcfl.PACFL`, in the order of ``np.unique(groups)``.

        Raises
        ------
        ValueError
            If y is needed and missing, or holds a class not seen in fit.
        """
        check_is_fitted(self)
        if y is None and self._assigns_by_features:
            pool, _ = self._new_clients(X, y, groups, sample_weight, with_targets=False)
            return self._clusters_by_features(pool)
        pool, _ = self._new_clients(X, y, groups, sample_weight)
        return self._clusters_of(pool)

    def assign_federation(self, federation: Federation) -> IntArray:
        """Find the cluster that fits each client of a federation best.

        Parameters
        ----------
        federation : Federation
            The clients, seen in fit or not.

        Returns
        -------
        labels : ndarray of shape (n_clients,)
            As from ``assign``, in the order of the sorted ids; -1 for clients that do not answer.

        Raises
        ------
        ValueError
            If the features are not those of fit, or y holds a class not seen in fit.
        """
        pool = self._known_pool(federation, self._hello_of(federation, self._kind()))
        labels = self._clusters_of(pool)
        return labels if pool.answered is None else np.where(pool.answered, labels, -1)

    def _known_pool(self, federation: Federation, hello: Handshake) -> ClientPool:
        """The same as `_pool_of`; their classes must have been seen in fit."""
        if hello.classes is not None:
            self._known_classes(hello.classes)
            hello = replace(hello, classes=self.classes_)
        return self._pool_of(federation, hello)

    def _pool_of(self, federation: Federation, hello: Handshake) -> ClientPool:
        """Pool of the clients of a federation, in the units of fit."""
        parts = federation.rows(self.model_, hello)
        if self.model_.class_factors is not None:
            parts = [part.weighed(self.model_.class_factors) for part in parts]
        if self._scaling is not None:
            parts = [part.scaled(self._scaling) for part in parts]
        return ClientPool(
            joined([(part.site(self.model_), part.places) for part in parts]),
            self.model_,
            check_random_state(self.random_state),
            self._scaling,
            Presence(hello.ids, federation.min_clients, federation.retries),
        )

    def cluster_losses(
        self,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        sample_weight: Weights = None,
    ) -> Array:
        """Mean loss of each client's rows under each cluster's model.

        The matrix of losses: IFCA takes the least by rows, and CLoVE clusters its rows.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, seen in fit or not. None without ``group_col``: all rows
            belong to one client.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; ``class_weight`` multiplies them as in fit.

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
        pool, _ = self._new_clients(X, y, groups, sample_weight)
        losses = pool.ask(Losses, pool.units.from_user(self.cluster_params_))
        return losses * pool.model.loss_unit

    @fit_context(prefer_skip_nested_validation=False)
    def adapt(
        self,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        sample_weight: Weights = None,
    ) -> Self:
        """Copy of this estimator that also knows some new clients.

        A few labelled rows per client are enough. Each new client belongs to the cluster of least
        mean loss; of nearest direction in :class:`~skcfl.FlexCFL`, and of nearest subspace in
        :class:`~skcfl.PACFL`. Its linear model is the mean of the clusters' models by the
        probabilities that its rows give them: the mean of all if they say little, its cluster's if
        they say enough. Fused methods, FlexCFL, PACFL and networks give it the model of its
        cluster. :class:`~skcfl.LocalModels` and personal methods fit one to its rows.
        :class:`~skcfl.PartialPooling` gives it its posterior: the mean of the population, as far
        as its rows do not say otherwise. :class:`~skcfl.FedEM` gives it shares of the models that
        are there, by maximum likelihood. Nothing else changes, and this estimator stays as it is.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the new clients, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client; not with ``group_col``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; ``class_weight`` multiplies them as in fit.

        Returns
        -------
        adapted : estimator
            With the new clients in ``groups_``, ``labels_``, ``params_``, ``coef_`` and
            ``cluster_sizes_``, and in attributes of posteriors and of shares. What belongs to the
            problem that was solved, such as a graph or a proof, is not copied: a new client has
            no part in it.

        Raises
        ------
        ValueError
            If there are no ids, they are of another type than those of fit, an id was seen in
            fit, or y is needed and missing or holds a class not seen in fit.
        """
        check_is_fitted(self)
        if self._is_private:
            return self._for_clients().adapt(X, y, groups, sample_weight)
        pool, clients = self._new_clients(X, y, groups, sample_weight)
        clients = check_new_ids(self.groups_, clients if self._has_groups else None)
        # Ids may be of any type after a private fit, which knows none.
        known = self.groups_ if len(self.groups_) else clients[:0]
        labels, params = self._models_of(pool)
        if labels is None:  # every client is a cluster
            labels = self.n_clusters_ + np.arange(len(clients))
        dtype = self.params_.dtype
        params = np.asarray(pool.units.to_user(params), dtype=dtype)
        adapted = self._without_problem()
        adapted._shared_params = False  # newcomers' models may be mixtures
        ids, codes = encode(joined_ids(known, clients))
        order = np.argsort(codes)  # every id is there once
        adapted.groups_ = ids
        adapted.labels_ = np.append(self.labels_, labels)[order]
        adapted.params_ = np.vstack([self.params_, params])[order]
        extra = max(int(adapted.labels_.max()) + 1 - self.n_clusters_, 0)
        adapted.cluster_params_ = np.vstack([self.cluster_params_, params[:extra]])
        adapted.n_clusters_ = self.n_clusters_ + extra
        adapted.cluster_sizes_ = np.bincount(adapted.labels_, minlength=adapted.n_clusters_)
        adapted._seen_weights = np.append(self._seen_weights, pool.client_weights)[order]
        adapted._seen_losses = adapted._seen_marginals = None
        if self._seen_losses is not None and not extra:
            losses = pool.ask(Losses, pool.units.from_user(self.cluster_params_))
            adapted._seen_losses = np.vstack([self._seen_losses, losses])[order]
        if self._seen_marginals is not None and not extra:
            fresh = marginals(pool, self._how_sure.models)
            adapted._seen_marginals = np.concatenate([self._seen_marginals, fresh])[order]
        if self._seen_curvatures is not None:
            fresh = curvatures_of(pool, pool.units.from_user(params))
            adapted._seen_curvatures = np.vstack([self._seen_curvatures, fresh])[order]
        adapted._set_coefficients("", adapted.params_)
        adapted._set_coefficients("cluster_", adapted.cluster_params_)
        self._take_in(adapted, pool, order)
        return adapted

    @fit_context(prefer_skip_nested_validation=False)
    def update(
        self,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        sample_weight: Weights = None,
    ) -> Self:
        """Copy of this estimator that also knows new rows of known clients.

        What the clients have in common stays as it was fitted: clusters' models, populations,
        graphs. A client with the model of its cluster moves to the cluster of least loss of its
        old and new rows together. A client with a separate linear model moves to the minimum of
        the loss of its new rows, plus a parabola about its model in place of its old rows, with
        the curvature of their loss in each parameter, which is never nearly zero; pulls and
        penalties hold as in the fit. Personal methods without a pull take the mean, by rows, of
        its model and of the one that :meth:`adapt` finds for the new rows. :class:`~skcfl.FedEM`
        gives each client shares by maximum likelihood of its new rows, with as much weight of the
        old shares as the old rows have information about them. :class:`~skcfl.PartialPooling`
        gives each client its posterior given its old and its new rows: of squared error exactly
        that which :meth:`adapt` finds for a new client with all of these rows, of other losses
        with a normal distribution in the place of the old rows. Fit again once many clients have
        many new rows. :meth:`adapt` is for new clients.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            New rows, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, all of them known; not with ``group_col``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; ``class_weight`` multiplies them as in fit.

        Returns
        -------
        updated : estimator
            With the clients' new ``labels_``, ``params_``, ``coef_`` and ``cluster_sizes_``, and
            attributes of posteriors. What belongs to the problem that was solved, such as a proof,
            is not copied.

        Raises
        ------
        ValueError
            If there are no ids, an id is not known, a client's own model is not linear, y is
            needed and missing or holds a class not seen in fit, or the rows of the fit were
            elsewhere, posteriors would take more than 64 MB, or losses under clusters 8 MB.
        """
        check_is_fitted(self)
        pool, clients = self._new_clients(X, y, groups, sample_weight)
        if clients is None or not self._has_groups:
            raise ValueError(
                f"{type(self).__name__}.update needs to know the client of each row: pass groups=."
            )
        places, unknown = locate(self.groups_, clients)
        if len(unknown):
            text = describe_unseen(self.groups_, unknown)
            raise ValueError(f"{text}. update() is for known clients, adapt() for new ones.")
        updated = self._without_problem()
        updated.labels_ = self.labels_.copy()
        if not self._shared_params:
            updated.params_ = self.params_.copy()
        updated._seen_weights = self._seen_weights.copy()
        labels, params = updated._updated(pool, places)
        updated._seen_weights[places] += pool.client_weights
        updated.labels_[places] = labels
        updated.cluster_sizes_ = np.bincount(updated.labels_, minlength=self.n_clusters_)
        if not self._shared_params:
            updated.params_[places] = pool.units.to_user(params)
            updated._set_coefficients("", updated.params_)
        return updated

    def _without_problem(self) -> Self:
        """A copy that knows nothing of the problem that was solved."""
        made = copy.copy(self)
        for name in OF_THE_PROBLEM & vars(made).keys():
            delattr(made, name)
        return made

    def _set_coefficients(self, prefix: str, models: Array) -> None:
        for name, value in self.model_.coefficients(models).items():
            setattr(self, f"{prefix}{name}_", value)

    # ------------------------------------------------------------------ what methods override

    def _take_in(self, adapted: Self, pool: ClientPool, order: Array) -> None:
        """Put more attributes of new clients behind those of known ones, and in their order."""

    def _for_clients(self) -> Self:
        """The private fit as clients use it with their rows: an estimator of no client yet."""
        made = copy.copy(self)
        K, p = self.cluster_params_.shape
        empty = {
            "labels_": np.zeros(0, dtype=np.intp),
            "params_": np.zeros((0, p), self.cluster_params_.dtype),
            "cluster_sizes_": np.zeros(K, dtype=np.intp),
            "_seen_weights": np.zeros(0),
            "_seen_losses": None,
            "_seen_marginals": None,
            "_seen_curvatures": None,
            "_shared_params": False,
            "_is_private": False,
            # A client takes the model of least loss, as it did in the fit.
            "_mixes_newcomers": False,
        }
        for name, value in empty.items():
            setattr(made, name, value)
        return made

    def _clusters_by_features(self, pool: ClientPool) -> Array:
        raise NotImplementedError

    def _clusters_of(self, pool: ClientPool) -> Array:
        """Clusters of least loss of new clients; their pool has the units of fit."""
        return pool.ask(Losses, pool.units.from_user(self.cluster_params_)).argmin(axis=1)

    def _models_of(self, pool: ClientPool) -> tuple[Array | None, Array]:
        """Clusters and models of new clients, in the units of their pool.

        The clusters are None where every client is one.  Few rows cannot say which cluster is a
        client's: its linear model is the mean of the clusters' by their probabilities.
        """
        if self._is_local:
            if is_automatic(pool):
                unit = alpha_unit(pool, solve_pooled)
                pool = pool.penalised(n_priors(pool, pool.n_clients) * unit)
            return np.zeros(pool.n_clients, dtype=np.intp), solve_local(pool).cluster_params
        labels, theta = self._clusters_of(pool), pool.units.from_user(self.cluster_params_)
        linear = self.model_.coefficients(np.zeros((1, self.model_.n_params)))
        if not (self._mixes_newcomers and linear):
            return labels, theta[labels]
        losses = np.nan_to_num(pool.ask(Losses, theta), nan=TOO_LARGE, posinf=TOO_LARGE)
        noise = self._noise(pool)
        return labels, memberships(losses, pool.client_weights, self.cluster_sizes_, noise) @ theta

    def _personal_models(self, federation: Federation) -> Array:
        """Models of the clients of a federation, (n_clients, n_params), in the user's units."""
        hello = self._hello_of(federation, self._kind())
        if hello.privacy is not None:
            raise PrivacyError(
                "a client's predictions and scores are its own: ask the federation of its rows "
                "that is not private, where they are."
            )
        pool = self._known_pool(federation, hello)
        _, params = self._for_clients()._models_of(pool)
        return np.asarray(pool.units.to_user(params), dtype=self.model_.dtype)

    def _updated(self, pool: ClientPool, places: Array) -> tuple[Array, Array]:
        """Clusters and models of the clients at some places, in the units of their pool."""
        if self._has_clusters:
            labels = self._updated_clusters(pool, places)
            return labels, pool.units.from_user(self.cluster_params_)[labels]
        labels, (pull, centres) = self.labels_[places], self._pulls(pool, places)
        if np.isinf(pull):
            return labels, centres
        models, older = self._models_before(pool, places)
        seen = self._of_old_rows(
            self._seen_curvatures, places, "the curvature of the clients' old rows"
        )
        # A pull and a given penalty are parts of the old model already: new rows add their share.
        pool = pool.penalised(0.0 if is_automatic(pool) else self.alpha_)
        kept = (_least_curvatures(seen, self._seen_weights, places) + pull) * older[:, None]
        metric = np.maximum(pull + kept, 1e-300)
        centres = (pull * centres + kept * models) / metric
        params = pool.ask(Prox, centres, 1.0, metric=metric)
        self._seen_curvatures, fresh = seen.copy(), curvatures_of(pool, params)
        self._seen_curvatures[places] += (fresh - seen[places]) / (1.0 + older)[:, None]
        return labels, params

    def _pulls(self, pool: ClientPool, places: Array) -> tuple[float, Any]:
        """Strength of the pull of the clients' own models, and what they are pulled to."""
        return 0.0, 0.0

    def _models_before(self, pool: ClientPool, places: Array) -> tuple[Array, Array]:
        """Models of the clients' own, and how many times their new rows their old ones are."""
        if not pool.can_answer("prox") or not hasattr(pool.model, "kernel"):
            raise ValueError(
                f"{type(self).__name__}.update needs a linear local model where each client has "
                f"one of its own, got {type(pool.model).__name__}. Fit again with all rows."
            )
        models = pool.units.from_user(self.params_[places]).astype(float)
        return models, self._seen_weights[places] / np.maximum(pool.client_weights, 1e-300)

    def _of_old_rows(self, values: Array | None, places: Array, what: str) -> Array:
        """What a fit keeps of its rows for updates, if it does of the clients at some places."""
        if values is None or np.isnan(values[places]).any():
            raise ValueError(
                f"{type(self).__name__}.update needs {what}, kept of rows in this process and of "
                "clients that answered. Fit again with all rows."
            )
        return values

    def _updated_clusters(self, pool: ClientPool, places: Array) -> Array:
        """Clusters of least loss of the clients' rows so far."""
        if self._seen_losses is None and self.n_clusters_ == 1:
            return self.labels_[places]
        what = f"the losses of the clients' old rows under each cluster, up to {MOST_SEEN:,}"
        seen = self._of_old_rows(self._seen_losses, places, what)
        return self._losses_so_far(pool, places, seen).argmin(axis=1)

    def _losses_so_far(self, pool: ClientPool, places: Array, seen: FloatArray) -> FloatArray:
        """Mean losses under each cluster of the clients' old and new rows, which are kept."""
        losses = pool.ask(Losses, pool.units.from_user(self.cluster_params_))
        old, new = self._seen_weights[places, None], pool.client_weights[:, None]
        total = old * seen[places] + new * losses
        self._seen_losses = seen.copy()
        self._seen_losses[places] = total / np.maximum(old + new, 1e-300)
        self._marginals_so_far(pool, places)
        return total

    def _marginals_so_far(self, pool: ClientPool, places: Array) -> None:
        """Add what the errors of the clusters, which know the old rows, change of the new ones."""
        if self._seen_marginals is not None:
            self._seen_marginals = self._seen_marginals.copy()
            self._seen_marginals[places] += marginals(pool, self._how_sure.models)

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

    def _new_clients(
        self,
        X: Any,
        y: Any,
        groups: Groups,
        sample_weight: Weights = None,
        with_targets: bool = True,
    ) -> tuple[ClientPool, Array | None]:
        """Pool of clients that need not be those of fit, in the units of fit, and their ids.

        Without targets nothing but the features may be asked of it.
        """
        X, ids = self._take_ids(X, groups)
        if with_targets:
            X, y = self._check_rows(X, y, dtype=self.model_.rows_dtype)
            if self._kind() == "classifier":
                y = self._known_classes(y)
            if y is not None:
                self.model_.check_target(y)
        else:
            X = self._check_features(X, dtype=self.model_.rows_dtype)
            y = np.zeros(X.shape[0], dtype=int if self._kind() == "classifier" else float)
        weights = check_weights(sample_weight, X)
        if with_targets and self.model_.class_factors is not None:
            weights = self.model_.class_factors[y] * (1.0 if weights is None else weights)
        clients, codes, n_clients = None, np.zeros(X.shape[0], dtype=np.intp), 1
        if ids is not None:
            clients, codes = encode(check_ids(ids, X.shape[0], self._ids_name()))
            n_clients = len(clients)
        if self._scaling is not None:
            X = self._scaling.transform(X)
        rng = check_random_state(self.random_state)
        about = {"n_jobs": self.n_jobs, "random_state": rng, "scaling": self._scaling}
        return open_rows(self.model_, X, y, codes, n_clients, weights, **about), clients


def _least_curvatures(seen: Array, weights: Array, places: Array) -> Array:
    """Curvatures of some clients' old rows, those near zero raised, see CURVATURE_FLOOR.

    At rows of one class, and along a column that is almost constant, a loss is flat only nearby.
    """
    known = ~np.isnan(seen).any(axis=1)
    mean = np.maximum(np.average(seen[known], axis=0, weights=weights[known]), 1e-300)
    relative = (seen[places] / mean).mean(axis=1, keepdims=True)
    floor = CURVATURE_FLOOR * np.maximum(relative, CURVATURE_FLOOR) * mean
    return np.maximum(seen[places], floor)
