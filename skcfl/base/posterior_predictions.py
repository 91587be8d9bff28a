"""Prediction of the methods that give each client a posterior of its parameters."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Literal, Self, overload

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from .._checks import whole_number
from .._typing import Array, ArrayLike, Groups, MatrixLike, Weights
from ..clients.ids import check_ids
from ..federation.federation import Federation
from ..federation.made import MadeFederation, MadeHello
from ..federation.pool import ClientPool
from ..numerics.matrices import product, slices
from ..pooling.updates import KnownPosteriors
from ..reports.evidence import if_answered
from .curve_effects import mean_row, rows_along, spread_along
from .designs import Design, Draft, Effect, groupings
from .federated import BaseFederated

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
    for some in slices(len(out), step):
        out[some] = np.einsum("cpq,pq->cp", np.matmul(back, spread[some]), back)
    return np.sqrt(np.maximum(out, 0.0))


class PosteriorPredictions(BaseFederated):
    """Base of the estimators with a posterior for each client.

    A fit sets, in the units of the pool, ``_stack``, what clients are like, and ``_covariances``,
    those of the clients' parameters, or None; ``_design``, the columns of the fit, and
    ``_effects``, what predictions have beside the linear models.
    """

    crossed: Any
    nested: Any
    _stack: Any
    _covariances: Any
    _design = Design()
    _effects: Sequence[Effect] = ()
    _keeps_curvatures = False

    def _gather(
        self, pool: ClientPool, n_clients: int, elsewhere: bool, rows: ClientPool | None = None
    ) -> None:
        # Beside levels, the weights of rows may be their curvatures.
        pool, rows = self._beside(pool), pool
        super()._gather(pool, n_clients, elsewhere, rows)
        self._known = None
        if self._covariances is not None and not pool.travels:
            self._known = if_answered(KnownPosteriors.of, pool.lane(), self._stack)

    def _cluster_posterior(self) -> Any:
        (population, *_), (errors, *_) = self._stack.populations, self._stack.errors
        if errors is None:
            return None, self.responsibilities_
        size = np.sqrt(population.dispersion)
        values, vectors = np.linalg.eigh(errors)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None] / size
        models = population.means, roots, population.root / size
        return models, self.responsibilities_

    # ------------------------------------------------------------------------------- columns

    def _introduced(self, federation: Federation) -> Any:
        hello, header = super()._introduced(federation)
        header._design, header._draft = Design(), Draft()
        return hello, header

    def _take_ids(self, X: Any, groups: Groups, header: Any = None) -> tuple[Any, Any]:
        if header is None and self._design.columns is not None:
            X, ids = self._user_rows(X, groups)
            return self._design.made(X), ids
        return super()._take_ids(X, groups, header)

    def _numbers(self, X: Any, header: Any, kept: Collection[int] = ()) -> Any:
        if header is None:
            return super()._numbers(self._design.encoded(X), None)
        header._design, header._draft, header._table = Design(), Draft(), None
        kept = sum(groupings(self, header, X.shape[1]), [])
        return super()._numbers(header._design.encoded(X, kept), header, kept)

    def _user_rows(self, X: Any, groups: Groups) -> tuple[Any, Any]:
        """Rows with the user's columns, numbers in the place of levels, and their ids."""
        X, ids = super()._take_ids(X, groups)
        return self._check_features(X, dtype=float), ids

    def _check_features(self, X: Any, dtype: Any) -> Any:
        # There may be groupings and no features.
        columns = self._design.columns
        none = X.shape[1] == 0 and columns is not None and len(columns.names) == 0
        return X if none else super()._check_features(X, dtype)

    @property
    def _n_model_features(self) -> int:
        columns = self._design.columns
        return super()._n_model_features if columns is None else columns.n_features

    def _feature_names(self, header: Any, n_features: int) -> Array:
        columns = header._design.columns
        if columns is not None and n_features == len(columns.names):
            return np.array(columns.names, dtype=object)
        return super()._feature_names(header, n_features)

    def _with_columns(self, federation: Federation, hello: Any) -> tuple[Federation, Any]:
        """A federation with the columns of the fit, and its hello."""
        columns = self._design.columns
        if columns is None:
            return federation, hello
        return MadeFederation(federation, columns), MadeHello.of(hello, columns)

    def _pool_of(self, federation: Federation, hello: Any) -> ClientPool:
        return super()._pool_of(*self._with_columns(federation, hello))

    def _scored_parts(self, federation: Federation, hello: Any, codes: Array | None) -> list[Any]:
        return super()._scored_parts(*self._with_columns(federation, hello), codes)

    # ------------------------------------------------------------------------------- effects

    @property
    def _predicts_by_client(self) -> bool:
        return all(effect.of_features for effect in self._effects)

    def _decide(self, X: Any, groups: Groups) -> Array:
        raw = super()._decide(X, groups)
        for effect in self._effects:
            raw = effect.added(self, raw, *self._user_rows(X, groups))
        return raw

    def _decide_by_clusters(self, X: Any, label: Any) -> Array:
        raw = super()._decide_by_clusters(X, label)
        for effect in self._effects:
            raw = effect.added_to_clusters(self, raw, self._user_rows(X, None)[0])
        return raw

    def _beside(self, pool: ClientPool) -> ClientPool:
        """A pool in the units of the fit, with the effects beside its models."""
        for effect in self._effects:
            pool = effect.beside(self, pool)
        return pool

    # ----------------------------------------------------------------------------- new clients

    def _new_clients(
        self,
        X: Any,
        y: Any,
        groups: Groups,
        sample_weight: Weights = None,
        with_targets: bool = True,
    ) -> tuple[ClientPool, Array | None]:
        if with_targets and y is not None:
            for effect in self._effects:
                y = effect.targets(self, X, y, groups)
                sample_weight = effect.weights(self, X, groups, sample_weight)
        pool, clients = super()._new_clients(X, y, groups, sample_weight, with_targets)
        return self._beside(pool), clients

    def _for_clients(self) -> Self:
        made = super()._for_clients()
        K, p = self.cluster_params_.shape
        made.responsibilities_, made.client_dispersion_ = np.zeros((0, K)), np.zeros(0)
        made._covariances, made.params_std_ = np.zeros((0, p, p)), np.zeros((0, p))
        return made

    def _models_of(self, pool: ClientPool) -> tuple[Array, Array]:
        r, means, *_ = self._stack.posteriors(pool)
        return r.argmax(axis=1), pool.model.centre(means)

    def _take_in(self, adapted: Self, pool: ClientPool, order: Array) -> None:
        dense = self._covariances is not None
        r, _, covariances, noise = self._stack.posteriors(pool, dense)
        adapted.responsibilities_ = np.vstack([self.responsibilities_, r])[order]
        adapted.client_dispersion_ = np.concatenate([self.client_dispersion_, noise])[order]
        if dense:
            adapted._covariances = np.concatenate([self._covariances, covariances])[order]
        if not len(self.groups_):  # of a private fit
            adapted._known = KnownPosteriors.of(pool, self._stack)
        elif self._known is not None:
            known = KnownPosteriors.of(pool, self._stack)
            adapted._known = known and self._known.joined(known, order)
        fresh = posterior_std(covariances, pool.units.user_map())
        fresh[:, np.isnan(self.params_std_).any(axis=0)] = np.nan
        adapted.params_std_ = np.vstack([self.params_std_, fresh])[order]

    def _updated(self, pool: ClientPool, places: Array) -> tuple[Array, Array]:
        if self._known is None:
            raise ValueError(
                f"{type(self).__name__}.update needs the clients' posteriors, which are kept of "
                "rows in this process, up to 64 MB of them: not of these "
                f"{len(self.groups_)} clients of {self.model_.n_params} parameters. Fit again "
                "with all rows."
            )
        self._known, r, means, covariances, noise = self._known.updated(
            pool, places, self._stack, self.responsibilities_[places]
        )
        self._marginals_so_far(pool, places)
        covariances = pool.model.centre_covariances(covariances)
        for name, new in (
            ("responsibilities_", r),
            ("client_dispersion_", noise),
            ("_covariances", covariances),
            ("params_std_", posterior_std(covariances, pool.units.user_map())),
        ):
            setattr(self, name, getattr(self, name).copy())
            getattr(self, name)[places] = new
        return r.argmax(axis=1), pool.model.centre(means)

    def _clusters_of(self, pool: ClientPool) -> Array:
        return self._models_of(pool)[0]

    # -------------------------------------------------------------------------------- predict

    @overload
    def predict(
        self, X: MatrixLike, groups: Groups = None, return_std: Literal[False] = False
    ) -> Array: ...

    @overload
    def predict(
        self, X: MatrixLike, groups: Groups = None, *, return_std: Literal[True]
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: MatrixLike, groups: Groups = None, return_std: bool = False
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
            Standard deviations of the targets: of the client's parameters given its rows, of the
            noise, of trees, and of levels not seen in fit. Only with ``return_std=True``.

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

    def _variances(self, X: Any, groups: Groups) -> Array:
        """Variances of the targets of rows."""
        beside = [effect.variances(self, *self._user_rows(X, groups)) for effect in self._effects]
        X, positions = self._rows_and_positions(X, groups, float)
        X = X if self._scaling is None else self._scaling.transform(X)
        # The first cluster is the largest, and a new client is taken for one of it.
        other = self._stack.prior_covariance(largest=self.unseen == "largest")
        table = np.concatenate([self._covariances, other[None]])
        out = np.empty(X.shape[0])
        step = max(CHUNK_BYTES // (8 * table[0].size), 1)
        for rows in slices(len(out), step):
            D = self.model_.design(X[rows])
            D = D.toarray() if sparse.issparse(D) else D
            V = table[positions[rows]]
            out[rows] = np.einsum("rp,rp->r", product(V, D), D)
        noise = np.append(self.client_dispersion_, self._stack.new_noise)
        return np.maximum(out, 0.0) + noise[positions] + sum(beside)

    def _plain_model(self, group: Hashable | None) -> Any:
        plain = super()._plain_model(group)
        for effect in self._effects:
            plain = effect.plain(plain)
        return self._design.plain(plain)

    def partial_effect(
        self,
        feature: str | int,
        groups: Groups = None,
        *,
        values: ArrayLike | None = None,
        n_values: int = 50,
    ) -> tuple[Array, Array, Array]:
        """What a feature adds to the prediction, as a curve.

        Parameters
        ----------
        feature : str or int
            Name of a feature of X, or its position among the features.
        groups : array-like of shape (n_groups,), default=None
            Clients of the curves; None is the curve of the population, the mean of its clusters.
        values : array-like of shape (n_values,), default=None
            Values of the feature; None is a grid between the outer knots of the curve, or about
            the mean of a straight line.
        n_values : int, default=50
            Number of values of the grid.

        Returns
        -------
        values : ndarray of shape (n_values,)
            Values of the feature.
        effect : ndarray of shape (n_values,) or (n_groups, n_values)
            Parts of the predictions, before a link, that depend on the feature; zero on average
            over the rows of the fit, see Notes.
        std : ndarray of shape (n_values,) or (n_groups, n_values)
            Standard deviations of their errors, NaN where these are not known; of the straight
            lines only where there are trees.

        Raises
        ------
        ValueError
            If there is no such feature or client, if there are more than two classes, or if the
            model was fitted without an intercept or to features that are not standardised.

        Notes
        -----
        The mean of sparse rows is that of the clients that :meth:`report` asks. Effects are zero
        at the value 0 if these send none: models of more than 256 parameters, a single client, or
        sites without ``evidence=True``. After a private fit they are zero in the middle of the
        bounds.
        """
        check_is_fitted(self)
        model = self.model_
        if model.n_outputs > 1 or self._scaling is None or not model.fit_intercept:
            raise ValueError(
                "partial_effect needs a model with standardize=True and fit_intercept=True, of "
                f"regression or two classes; got {model.n_outputs} outputs, "
                f"standardize={self._scaling is not None}, fit_intercept={model.fit_intercept}."
            )
        n_values = whole_number(n_values, "n_values", 2, 10**6)
        row = mean_row(self)
        mean = self._scaling.mean if row is None else row[:-1]
        rows, places, x = rows_along(self, feature, values, n_values, mean)
        beside = sum(effect.along(int(places[0]), x) for effect in self._effects)
        centred = np.zeros((len(rows), model.n_params))
        scaled = (rows - mean) / self._scaling.scale
        centred[:, places] = scaled[:, places]
        if groups is None:
            theta = self.mixture_weights_ @ self.cluster_params_
            errors = self._stack.mean_errors
            spread = None if errors is None else np.tensordot(self.mixture_weights_**2, errors, 1)
            effect = centred[:, :-1] @ (theta[:-1] * self._scaling.scale)
            return x, effect + beside, spread_along(centred, spread)
        at = self._locate(check_ids(groups))
        table, index = self._models_at(at)
        effects = (table[index][:, :-1] * self._scaling.scale) @ centred[:, :-1].T
        prior = self._stack.prior_covariance(largest=self.unseen == "largest")
        known = self._covariances
        spreads = [
            spread_along(centred, None if known is None else known[i] if i >= 0 else prior)
            for i in at
        ]
        return x, effects + beside, np.array(spreads)
