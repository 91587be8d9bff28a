"""Curves of features: what they add to predictions, and the clients' models as plain pipelines."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.validation import check_is_fitted

from .._checks import Count
from .._typing import Array, ArrayLike, ClientIds
from ..clients.ids import check_ids
from ..federation.made import MadeFederation
from ..federation.made_columns import bends, spline_of
from .tree_effects import TreeEffects

if TYPE_CHECKING:
    from ..federation.federation import Federation

# Standard deviations about the mean between which a straight line is drawn.
REACH = 2.0


class CurveEffects(TreeEffects):
    """Base of the estimator of features that may have curves in the place of straight lines."""

    _stack: Any
    _covariances: Any

    def partial_effect(
        self,
        feature: str | int,
        groups: ClientIds | None = None,
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
            over the rows of the fit.
        std : ndarray of shape (n_values,) or (n_groups, n_values)
            Standard deviations of their errors, NaN where these are not known; of the straight
            lines only where there are trees.

        Raises
        ------
        ValueError
            If there is no such feature or client, if there are more than two classes, or if the
            model was fitted without an intercept or to features that are not standardised.
        """
        check_is_fitted(self)
        model = self.model_
        if model.n_outputs > 1 or self._scaling is None or not model.fit_intercept:
            raise ValueError(
                "partial_effect needs a model with standardize=True and fit_intercept=True, of "
                f"regression or two classes; got {model.n_outputs} outputs, "
                f"standardize={self._scaling is not None}, fit_intercept={model.fit_intercept}."
            )
        if not Count(2, 10**6).is_satisfied_by(n_values):
            raise ValueError(f"n_values must be an integer of at least 2, got {n_values!r}.")
        rows, places, x = self._rows_along(feature, values, n_values)
        of_trees = self._tree_effect(int(places[0]), x)
        centred = np.zeros((len(rows), model.n_params))
        scaled = (rows - self._scaling.mean) / self._scaling.scale
        centred[:, places] = scaled[:, places]
        if groups is None:
            theta = self.mixture_weights_ @ self.cluster_params_
            errors = self._stack.mean_errors
            spread = None if errors is None else np.tensordot(self.mixture_weights_, errors, 1)
            effect = centred[:, :-1] @ (theta[:-1] * self._scaling.scale)
            return x, effect + of_trees, _spread_along(centred, spread)
        at = self._locate(check_ids(groups))
        table, index = self._models_at(at)
        effects = (table[index][:, :-1] * self._scaling.scale) @ centred[:, :-1].T
        prior = self._stack.prior_covariance(largest=self.unseen == "largest")
        known = self._covariances
        spreads = [
            _spread_along(centred, None if known is None else known[i] if i >= 0 else prior)
            for i in at
        ]
        return x, effects + of_trees, np.array(spreads)

    def _rows_along(
        self, feature: str | int, values: ArrayLike | None, n_values: int
    ) -> tuple[Array, Array, Array]:
        """Rows along a feature, the columns of it, and its values."""
        columns = self._columns
        names = self._feature_names(self, self._n_model_features)
        j = self._position(feature, names, "feature")
        if columns is None:
            places = np.array([j])
        else:
            places = np.flatnonzero(columns.sources == j)
        if len(places) == 0:
            raise ValueError(f"feature={feature!r} holds ids of a grouping: no effect.")
        if values is None:
            first = places[0]
            middle, size = self._scaling.mean[first], self._scaling.scale[first]
            ends = middle - REACH * size, middle + REACH * size
            if columns is not None:
                knots = [v for name, k, v in columns.recipe if name == "curve" and k == j]
                ends = (knots[0][1], knots[0][-1]) if knots else ends
            x = np.linspace(*ends, n_values)
        else:
            x = np.asarray(values, dtype=float).ravel()
        raw = np.zeros((len(x), len(names)))
        raw[:, j] = x
        made = raw if columns is None else columns.made(raw)[:, : len(columns.names)]
        return made, places, x

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
            ``LinearRegression``, ``PoissonRegressor``, ``GammaRegressor`` or
            ``LogisticRegression``, of curves behind a ``ColumnTransformer`` with
            ``SplineTransformer`` in a pipeline, of trees behind a ``FunctionTransformer``. It
            predicts as this estimator does for the client.

        Raises
        ------
        ValueError
            If the id is needed or not seen in fit, or if predictions depend on the levels of
            other groupings.
        """
        plain = super().client_model(group)
        columns = self._columns
        if columns is None:
            return plain
        if self._has_levels:
            raise ValueError(
                "client_model needs a fit without crossed and nested groupings: predictions "
                "depend on the levels of a row, which are no features."
            )
        if self._forest is not None:
            return self._plain_trees(plain)
        curves = [(j, values) for name, j, values in columns.recipe if name == "curve"]
        kept = [j for name, j, _ in columns.recipe if name == "same"]
        steps: list[Any] = [("same", "passthrough", kept)]
        coef = np.atleast_2d(plain.coef_)
        parts, at = [coef[:, : len(kept)]], len(kept)
        rows = np.zeros((2, columns.n_features))
        for j, values in curves:
            turn = bends(values)
            parts.append(coef[:, at : at + turn.shape[1]] @ turn.T)
            at += turn.shape[1]
            steps.append((f"curve {j}", spline_of(values), [j]))
            rows[:, j] = values[[1, -1]]
        transformer = ColumnTransformer(steps).fit(rows)
        coef = np.hstack(parts)
        plain.coef_ = coef.reshape(*plain.coef_.shape[:-1], coef.shape[1])
        plain.n_features_in_ = coef.shape[1]
        if hasattr(plain, "feature_names_in_"):
            del plain.feature_names_in_
        return make_pipeline(transformer, plain)

    def assign_federation(self, federation: Federation) -> Any:
        """Find the most probable cluster of each client of a federation.

        Parameters
        ----------
        federation : Federation
            The clients, seen in fit or not.

        Returns
        -------
        labels : ndarray of shape (n_clients,)
            As from ``assign``, in the order of the sorted ids; -1 of clients that do not answer.
        """
        return super().assign_federation(self._with_columns(federation))

    def _hello_of(self, federation: Federation, kind: Any) -> Any:
        if isinstance(federation, MadeFederation):
            said = super()._hello_of(federation.federation, kind)
            return federation.hello_of(said)
        return super()._hello_of(federation, kind)

    def _scored_parts(self, federation: Federation, hello: Any, codes: Array | None) -> list[Any]:
        made = self._with_columns(federation)
        if isinstance(made, MadeFederation) and not self._has_levels:
            hello = made.hello_of(hello)
        return super()._scored_parts(made, hello, codes)

    def _with_columns(self, federation: Any) -> Any:
        """A federation with the columns of the fit."""
        check_is_fitted(self)
        if self._columns is None or isinstance(federation, MadeFederation):
            return federation
        return MadeFederation(federation, self._columns)


def _spread_along(rows: Array, covariance: Array | None) -> Array:
    """Standard deviations of the effects of rows, of the covariance of parameters."""
    if covariance is None:
        return np.full(len(rows), np.nan)
    if covariance.ndim == 1:
        return np.sqrt(np.maximum(rows**2 @ covariance, 0.0))
    return np.sqrt(np.maximum(np.einsum("rp,pq,rq->r", rows, covariance, rows), 0.0))
