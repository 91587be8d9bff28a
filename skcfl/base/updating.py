"""New rows of known clients."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._typing import Array, ArrayLike, ClientIds, FloatArray, IntArray, MatrixLike, fit_context
from ..calls.curvatures import Prox
from ..calls.first_order import Losses
from ..clients.ids import describe_unseen, locate

if TYPE_CHECKING:
    from ..federation.pool import ClientPool

# Curvature of the old rows' loss where the loss has no bound of it, as of counts.
CURVATURE = 1.0


class Updates:
    """Estimators that can be told new rows of the clients of fit."""

    # Total weight of the rows of each client so far, and losses of these under each cluster.
    _seen_weights: FloatArray
    _seen_losses: FloatArray | None
    labels_: IntArray
    params_: Array
    cluster_sizes_: IntArray

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What the estimators have that this is mixed into."""

    @fit_context(prefer_skip_nested_validation=False)
    def update(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> Self:
        """Copy of this estimator that also knows new rows of known clients.

        What the clients have in common stays as it was fitted: clusters' models, populations,
        graphs. A client that has the model of its cluster moves to the cluster of least loss of
        its old and new rows together. A client with a linear model of its own moves to where the
        loss of its new rows, plus a parabola about its model in the place of its old rows, is
        least; see :class:`~skcfl.PartialPooling` for posteriors. Fit again once many clients
        have many new rows. :meth:`adapt` is for new clients.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            New rows, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets. Not used with an unsupervised local model.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, all of them known; not with ``group_col``.

        Returns
        -------
        updated : estimator
            With the clients' new ``labels_``, ``params_``, ``coef_`` and ``cluster_sizes_``. What
            belongs to the problem that was solved, such as a proof, is not copied.

        Raises
        ------
        ValueError
            If there are no ids, an id is not known, a client's own model is not linear, or y is
            needed and missing or holds a class not seen in fit.
        """
        check_is_fitted(self)
        pool, clients = self._new_clients(X, y, groups)
        if clients is None or not self._has_groups:
            raise ValueError(
                f"{type(self).__name__}.update needs to know the client of each row: pass groups=."
            )
        places, unknown = locate(self.groups_, clients)
        if len(unknown):
            text = describe_unseen(self.groups_, unknown)
            raise ValueError(f"{text}. update() is for known clients, adapt() for new ones.")
        updated = copy.copy(self)
        for name in self._of_the_problem & vars(updated).keys():
            delattr(updated, name)
        updated.labels_, updated.params_ = self.labels_.copy(), self.params_.copy()
        updated._seen_weights = self._seen_weights.copy()
        labels, params = updated._updated(pool, places)
        updated._seen_weights[places] += pool.client_weights
        updated.labels_[places] = labels
        updated.params_[places] = pool.units.to_user(params)
        updated.cluster_sizes_ = np.bincount(updated.labels_, minlength=self.n_clusters_)
        for name, value in self.model_.coefficients(updated.params_).items():
            setattr(updated, f"{name}_", value)
        return updated

    def _updated(self, pool: ClientPool, places: Array) -> tuple[Array, Array]:
        """Clusters and models of the clients at some places, in the units of their pool."""
        if self._has_clusters:
            labels = self._updated_clusters(pool, places)
            return labels, pool.units.from_user(self.cluster_params_)[labels]
        if not pool.can_answer("prox") or not hasattr(pool.model, "kernel"):
            raise ValueError(
                f"{type(self).__name__}.update needs a linear local model where each client has "
                f"one of its own, got {type(pool.model).__name__}. Fit again with all rows."
            )
        bound = pool.model.kernel.max_curvature
        curvature = bound if np.isfinite(bound) else CURVATURE
        weights = np.maximum(pool.client_weights, 1e-300)
        rho = curvature * self._seen_weights[places] / weights
        models = pool.units.from_user(self.params_[places]).astype(float)
        # The penalty is a part of the old model already.
        return self.labels_[places], pool.penalised(0.0).ask(Prox, models, rho)

    def _updated_clusters(self, pool: ClientPool, places: Array) -> Array:
        """Clusters of least loss of the clients' rows so far."""
        losses = np.asarray(
            pool.ask(Losses, pool.units.from_user(self.cluster_params_)), dtype=float
        )
        if self._seen_losses is None:
            return self.labels_[places]
        self._seen_losses = self._seen_losses.copy()
        old, new = self._seen_weights[places, None], pool.client_weights[:, None]
        total = old * self._seen_losses[places] + new * losses
        self._seen_losses[places] = total / np.maximum(old + new, 1e-300)
        return total.argmin(axis=1)
