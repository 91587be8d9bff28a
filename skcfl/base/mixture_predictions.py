"""Prediction of the methods with mixtures of shared models."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self

import numpy as np

from .._typing import Array, FloatArray, Groups
from ..federation.pool import ClientPool
from ..models import LocalModel
from ..models._mixed_outputs import mixed_decision
from ..reports.evidence import if_answered
from ..rounds.mixture import fit_shares, share_weights, update_shares
from .federated import BaseFederated


class MixturePredictions(BaseFederated):
    """Base of the estimators whose clients have shares of several models.

    A fit publishes ``mixture_params_`` (K, n_params), all models, and ``mixture_weights_``
    (n_clients, K), and sets ``_dispersion`` and ``_mean_shares`` (K,), the mean over its clients.
    """

    _keeps_curvatures = False
    mixture_weights_: FloatArray
    _mean_shares: FloatArray
    # Rows that say as much of each client's shares as its rows so far, see `share_weights`.
    _share_weights: FloatArray | None

    def _gather(
        self, pool: ClientPool, n_clients: int, elsewhere: bool, rows: ClientPool | None = None
    ) -> None:
        self._share_weights = None
        if not pool.travels:
            theta = pool.units.from_user(self.mixture_params_)
            about = pool.lane(), theta, self._dispersion, self.mixture_weights_
            self._share_weights = if_answered(share_weights, *about)
        super()._gather(pool, n_clients, elsewhere, rows)

    # ----------------------------------------------------------------------------- new clients

    def _shares_of(self, pool: ClientPool) -> Array:
        """Shares of new clients in the models of the fit."""
        theta = pool.units.from_user(self.mixture_params_)
        return fit_shares(pool, theta, self._dispersion, self._mean_shares)

    def _clusters_of(self, pool: ClientPool) -> Array:
        return self._largest(self._shares_of(pool))

    def _models_of(self, pool: ClientPool) -> tuple[Array, Array]:
        return self._mixed(pool, self._shares_of(pool))

    def _mixed(self, pool: ClientPool, shares: Array) -> tuple[Array, Array]:
        """Likeliest clusters and models of clients with such shares."""
        theta = pool.units.from_user(self.mixture_params_)
        return self._largest(shares), own_models(self.model_, theta, shares)

    def _largest(self, shares: Array) -> Array:
        """Clusters of the largest shares; models behind the first ``n_clusters_`` are none."""
        return shares[:, : self.n_clusters_].argmax(axis=1)

    def _take_in(self, adapted: Self, pool: ClientPool, order: Array) -> None:
        shares = np.vstack([self.mixture_weights_, self._shares_of(pool)])
        adapted.mixture_weights_ = shares[order]
        if self._share_weights is not None:
            theta = pool.units.from_user(self.mixture_params_)
            fresh = share_weights(pool, theta, self._dispersion, shares[len(self.groups_) :])
            adapted._share_weights = np.append(self._share_weights, fresh)[order]

    def _updated(self, pool: ClientPool, places: Array) -> tuple[Array, Array]:
        what = "what the clients' old rows say of their shares"
        known = self._of_old_rows(self._share_weights, places, what)
        theta = pool.units.from_user(self.mixture_params_)
        about = self.mixture_weights_[places], known[places]
        shares = update_shares(pool, theta, self._dispersion, *about)
        self._share_weights = known.copy()
        self._share_weights[places] += share_weights(pool, theta, self._dispersion, shares)
        self.mixture_weights_ = self.mixture_weights_.copy()
        self.mixture_weights_[places] = shares
        if self._seen_losses is not None:
            self._losses_so_far(pool, places, self._seen_losses)
        return self._mixed(pool, shares)

    # -------------------------------------------------------------------------------- predict

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
            A mixture of linear regressions has the mean of their coefficients.

        Raises
        ------
        ValueError
            If the client's mixture is no such estimator: of classifiers, losses with a log link
            and networks, unless there is one model.
        """
        if len(self.mixture_params_) > 1 and not _is_linear(self.model_):
            raise ValueError(
                f"A mixture of {len(self.mixture_params_)} models is no estimator of scikit-learn "
                "unless they are linear regressions without a link. Predict with this estimator."
            )
        return super().client_model(group)

    def _decide(self, X: Any, groups: Groups) -> Array:
        """Raw predictions with the outputs of the mixture."""
        X, table, index = self._rows_and_models(X, groups)
        shares = self.mixture_weights_
        other = self._mean_shares if self.unseen == "average" else np.eye(shares.shape[1])[0]
        shares, index = np.vstack([shares, other]), np.minimum(index, len(shares))
        return mixed_decision(self.model_, X, self.mixture_params_, shares[index])


def _is_linear(model: LocalModel) -> bool:
    """True if a mixture of such models is one of them."""
    return bool(model.coefficients(np.zeros((1, model.n_params)))) and (
        model.estimator_type == "regressor" and model.kernel.link == "identity"
    )


def own_models(model: LocalModel, theta: Array, shares: Array) -> Array:
    """A model for each client: the mean of linear ones, the network of the largest share."""
    if model.coefficients(np.zeros((1, model.n_params))):
        return shares @ theta
    return theta[shares.argmax(axis=1)]
