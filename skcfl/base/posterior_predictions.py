"""Prediction of the methods that give each client a posterior of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
from scipy import sparse

from .._typing import Array, ArrayLike, ClientIds, IntArray, MatrixLike
from ..clients.ids import check_ids, locate
from ..pooling.updates import KnownPosteriors, narrowed_covariances
from .federated import BaseFederated

if TYPE_CHECKING:
    from ..federation.pool import ClientPool

# Bytes of the clients' covariances up to which they are kept for standard deviations.
MAX_COVARIANCES = 2**28
# Bytes of covariances that a prediction with standard deviations gathers at once.
CHUNK_BYTES = 2**23


def posterior_std(spread: Array, user_map: Any) -> Array:
    """Standard deviations (n, p) in the user's units of covariances (n, p, p) or variances.

    Variances are NaN if they depend on more parameters than one.
    """
    if spread.ndim == 2:
        out = np.sqrt(np.maximum(spread, 0.0)) * np.abs(user_map.diagonal())
        out[:, np.diff(user_map.indptr) > 1] = np.nan
        return out
    back = user_map.toarray()
    out = np.empty(spread.shape[:2])
    step = max(CHUNK_BYTES // (8 * back.size), 1)
    for start in range(0, len(out), step):
        some = slice(start, start + step)
        out[some] = np.einsum("cpq,pq->cp", np.matmul(back, spread[some]), back)
    return np.sqrt(np.maximum(out, 0.0))


class PosteriorPredictions(BaseFederated):
    """Base of the estimators with a posterior for each client.

    A fit sets, in the units of the pool, ``_stack``, what clients are like, and ``_covariances``,
    those of the clients' parameters, or None.
    """

    def _gather(self, pool: ClientPool, n_clients: int) -> None:
        super()._gather(pool, n_clients)
        self._known = None
        if self._covariances is not None and not pool.travels:
            self._known = KnownPosteriors.of(pool.lane(), self._stack)

    # ----------------------------------------------------------------------------- new clients

    def _for_clients(self) -> Self:
        made = super()._for_clients()
        K, p = self.cluster_params_.shape
        made.responsibilities_, made.client_dispersion_ = np.zeros((0, K)), np.zeros(0)
        made._covariances, made.params_std_ = np.zeros((0, p, p)), np.zeros((0, p))
        return made

    def _models_of(self, pool: ClientPool) -> tuple[Array, Array]:
        r, means, *_ = self._stack.posteriors(pool)
        return r.argmax(axis=1), pool.model.centre(means)

    def adapt(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> Self:
        """Copy of this estimator that also knows some new clients.

        Each new client gets its posterior: the mean of the population, as far as its labelled
        rows do not say otherwise. Nothing else changes, and this estimator stays as it is.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the new clients, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client; not with ``group_col``.

        Returns
        -------
        adapted : estimator
            With the new clients in ``groups_``, ``labels_``, ``responsibilities_``, ``params_``,
            ``coef_``, ``client_dispersion_`` and ``cluster_sizes_``.

        Raises
        ------
        ValueError
            If there are no ids, an id was seen in fit, or y is missing or holds a class not seen
            in fit.
        """
        if self._is_private:
            return self._for_clients().adapt(X, y, groups=groups)
        adapted = super().adapt(X, y, groups=groups)
        pool, clients = self._new_clients(X, y, groups)
        dense = self._covariances is not None
        r, _, covariances, noise = self._stack.posteriors(pool, dense)
        known = self.groups_ if len(self.groups_) else adapted.groups_[:0]
        old, _ = locate(adapted.groups_, known)
        new, _ = locate(adapted.groups_, clients)
        order = np.argsort(np.concatenate([old, new]))
        adapted.responsibilities_ = np.vstack([self.responsibilities_, r])[order]
        adapted.client_dispersion_ = np.concatenate([self.client_dispersion_, noise])[order]
        if dense:
            adapted._covariances = np.concatenate([self._covariances, covariances])[order]
        if self._known is not None:
            adapted._known = self._known.joined(KnownPosteriors.of(pool, self._stack), order)
        fresh = posterior_std(covariances, pool.units.user_map())
        fresh[:, np.isnan(self.params_std_).any(axis=0)] = np.nan
        adapted.params_std_ = np.vstack([self.params_std_, fresh])[order]
        return adapted

    def update(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> Self:
        """Copy of this estimator that also knows new rows of known clients.

        The population stays as it was fitted. Each client gets its posterior given its old and
        its new rows: of squared error exactly that which :meth:`adapt` finds for a new client
        with all of these rows, of other losses with a normal distribution in the place of the old
        rows. This estimator stays as it is. Fit again once many clients have many new rows.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            New rows, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, all of them known; not with ``group_col``.

        Returns
        -------
        updated : estimator
            With the clients' new ``labels_``, ``responsibilities_``, ``params_``, ``coef_``,
            ``params_std_``, ``client_dispersion_`` and ``cluster_sizes_``.

        Raises
        ------
        ValueError
            If there are no ids, an id is not known, y is missing or holds a class not seen in fit,
            or the posteriors would take more than 64 MB, or the rows of the fit were elsewhere.
        """
        return super().update(X, y, groups=groups)

    def _updated(self, pool: ClientPool, places: Array) -> tuple[Array, Array]:
        if self._known is None:
            raise ValueError(
                f"{type(self).__name__}.update needs the clients' posteriors, which are kept of "
                "rows in this process, up to 64 MB of them: not of these "
                f"{len(self.groups_)} clients of {self.model_.n_params} parameters. Fit again "
                "with all rows."
            )
        self._known, r, means, noise = self._known.updated(
            pool, places, self._stack, self.responsibilities_[places]
        )
        covariances = narrowed_covariances(pool, means, self._covariances[places], noise)
        for name, new in (
            ("responsibilities_", r),
            ("client_dispersion_", noise),
            ("_covariances", covariances),
            ("params_std_", posterior_std(covariances, pool.units.user_map())),
        ):
            setattr(self, name, getattr(self, name).copy())
            getattr(self, name)[places] = new
        return r.argmax(axis=1), pool.model.centre(means)

    def assign(
        self, X: MatrixLike, y: ArrayLike | None = None, groups: ClientIds | None = None
    ) -> IntArray:
        """Find the most probable cluster of each of some new clients.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the new clients, with the columns of fit.
        y : array-like of shape (n_samples,), default=None
            Their targets.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, seen in fit or not. None without ``group_col``: all rows
            belong to one client.

        Returns
        -------
        labels : ndarray of shape (n_new_clients,)
            In the order of ``np.unique(groups)``.

        Raises
        ------
        ValueError
            If y is missing, or holds a class not seen in fit.
        """
        return super().assign(X, y, groups=groups)

    def _clusters_of(self, pool: ClientPool) -> Array:
        return self._models_of(pool)[0]

    # -------------------------------------------------------------------------------- predict

    @overload
    def predict(
        self, X: MatrixLike, groups: ClientIds | None = None, return_std: Literal[False] = False
    ) -> Array: ...

    @overload
    def predict(
        self, X: MatrixLike, groups: ClientIds | None = None, *, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: MatrixLike, groups: ClientIds | None = None, return_std: bool = False
    ) -> Array | tuple[Array, Array]:
        """Predict with each row's client's posterior mean.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. Needed after a fit with ``groups``.
        return_std : bool, default=False
            If True, return standard deviations too, of squared error.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,)
            Targets or class labels.
        y_std : ndarray of shape (n_samples,)
            Standard deviations of the targets: of the client's parameters given its rows, and of
            the noise. Only with ``return_std=True``.

        Raises
        ------
        ValueError
            If ids are needed and missing, or not seen in fit under ``unseen="error"``, if
            ``return_std`` is no bool, or if there are no standard deviations: for other losses
            than squared error, and where the clients' covariances would take more than 256 MB.
        """
        if not isinstance(return_std, (bool, np.bool_)):
            raise ValueError(f"return_std must be True or False, got {return_std!r}.")
        predicted = super().predict(X, groups=groups)
        if not return_std:
            return predicted
        if self._covariances is None or not self.model_.quadratic:
            raise ValueError(
                "return_std=True needs loss='squared_error', and clients whose covariances take "
                f"no more than {MAX_COVARIANCES / 2**20:.0f} MB; got loss={self.model_.loss!r} "
                f"with {len(self.groups_)} clients of {self.model_.n_params} parameters."
            )
        return predicted, np.sqrt(self._variances(X, groups))

    def _variances(self, X: Any, groups: ClientIds | None) -> Array:
        """Variances of the targets of rows."""
        X, ids = self._take_ids(X, groups)
        X = self._check_features(X, dtype=float)
        positions = np.zeros(X.shape[0], dtype=np.intp)
        if ids is not None:
            positions = self._locate(check_ids(ids, X.shape[0], self._ids_name()))
        X = X if self._scaling is None else self._scaling.transform(X)
        # The first cluster is the largest, and a new client is taken for one of it.
        other = self._stack.prior_covariance(largest=self.unseen == "largest")
        table = np.concatenate([self._covariances, other[None]])
        out = np.empty(X.shape[0])
        step = max(CHUNK_BYTES // (8 * table[0].size), 1)
        for start in range(0, len(out), step):
            rows = slice(start, start + step)
            D = self.model_.design(X[rows])
            D = D.toarray() if sparse.issparse(D) else D
            V = table[positions[rows]]
            out[rows] = np.einsum("rp,rp->r", np.matmul(V, D[:, :, None])[:, :, 0], D)
        noise = np.append(self.client_dispersion_, self._stack.new_noise)
        return np.maximum(out, 0.0) + noise[positions]
