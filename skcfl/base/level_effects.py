"""Effects of the levels of crossed and nested groupings of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._typing import Array
from ..clients.ids import check_ids, encode, locate
from ..federation.checking import check_weights
from .designs import Effect


class LevelEffects(Effect):
    """Random intercepts of levels, those of a level not seen are 0.

    Parameters
    ----------
    model : LevelledModel
        The local model, which knows the numbers of levels.
    fit : Fit
        The fit of one cluster with the levels.
    arguments : tuple of ndarray
        What clients need to take the effects from their targets.
    inside : ndarray of shape (n_clients, n_nested_levels)
        Effects of the levels inside the clients.
    """

    of_features = False

    def __init__(self, model: Any, fit: Any, arguments: Any, inside: Array) -> None:
        self.step = "without_levels" if model.quadratic else "linearised"
        self.arguments = arguments
        starts = len(fit.root) + np.cumsum([0, *model.crossed])
        errors = np.sqrt(np.maximum(fit.dispersion * fit.errors.diagonal(), 0.0))
        places = [slice(*pair) for pair in zip(starts, starts[1:], strict=False)]
        self.crossed = [fit.effects[place] for place in places]
        self.crossed_std = [errors[place] for place in places]
        nested = np.split(inside, np.cumsum(model.nested)[:-1], axis=1)
        self.nested = nested if model.nested else []
        spreads = *fit.sizes, *fit.spreads
        self.level_variances = [float(fit.dispersion * size**2) for size in spreads]

    def attributes(self, estimator: Any, header: Any) -> dict[str, Any]:
        """Attributes that a fit publishes, by the names of the groupings."""
        crossed, nested, groupings = {}, {}, header._draft.groupings
        errors = {}
        for (name, levels), effects, std in zip(
            groupings, self.crossed, self.crossed_std, strict=False
        ):
            crossed[name] = dict(zip(levels.tolist(), effects.tolist(), strict=True))
            errors[name] = dict(zip(levels.tolist(), std.tolist(), strict=True))
        inside = groupings[len(self.crossed) :]
        for (name, levels), effects in zip(inside, self.nested, strict=True):
            nested[name] = {
                (group, level): float(effects[i, j])
                for i, group in enumerate(estimator.groups_.tolist())
                for j, level in enumerate(levels.tolist())
                if not np.isnan(effects[i, j])
            }
        names = [name for name, _ in groupings]
        return {
            "crossed_effects_": crossed,
            "crossed_effects_std_": errors,
            "nested_effects_": nested,
            "level_variances_": dict(zip(names, self.level_variances, strict=True)),
        }

    def added(self, estimator: Any, raw: Array, X: Any, ids: Any) -> Array:
        """Raw predictions of rows with the user's columns, and with the effect."""
        return raw + self._sums(estimator, X, ids)[:, None]

    def added_to_clusters(self, estimator: Any, raw: Array, X: Any) -> Array:
        """The same of predictions by the models of clusters; nested levels are of clients."""
        return raw + self._crossed_sums(estimator._design.columns.codes(X))[:, None]

    def variances(self, estimator: Any, X: Any, ids: Any) -> Array:
        """Variances of rows of levels not seen in fit, the errors of other levels left out."""
        codes, total = estimator._design.columns.codes(X), np.zeros(X.shape[0])
        n_crossed = len(self.crossed)
        for column, variance in zip(codes.T, self.level_variances[:n_crossed], strict=False):
            total += np.where(column >= 0, 0.0, variance)
        effects = zip(
            codes.T[n_crossed:], self.nested, self.level_variances[n_crossed:], strict=True
        )
        for column, inside, variance in effects:
            total += np.where(
                np.isnan(self._inside(estimator, column, inside, ids)), variance, 0.0
            )
        return total

    def _inside(self, estimator: Any, column: Array, effects: Array, ids: Any) -> Array:
        """Effects of the nested levels of rows, NaN for a level not seen in fit."""
        at = np.zeros(len(column), dtype=np.intp)
        if ids is not None:
            at, _ = locate(estimator.groups_, check_ids(ids))
        known = (column >= 0) & (at >= 0) & (at < len(effects))
        return np.where(known, effects[np.where(known, at, 0), np.where(known, column, 0)], np.nan)

    def _sums(self, estimator: Any, X: Any, ids: Any) -> Array:
        """Sums of the effects of the levels of rows."""
        codes = estimator._design.columns.codes(X)
        total = self._crossed_sums(codes)
        for column, effects in zip(codes.T[len(self.crossed) :], self.nested, strict=True):
            total += np.nan_to_num(self._inside(estimator, column, effects, ids))
        return total

    def _crossed_sums(self, codes: Array) -> Array:
        """Sums of the effects of the crossed levels of rows."""
        total = np.zeros(len(codes))
        for column, effects in zip(codes.T, self.crossed, strict=False):
            total += np.where(column >= 0, effects[np.maximum(column, 0)], 0.0)
        return total

    def targets(self, estimator: Any, X: Any, y: Any, groups: Any) -> Any:
        """Targets of new rows without the effect; only of squared error and crossed levels.

        New rows change the effects of the levels inside their client.
        """
        if not estimator.model_.quadratic or self.nested:
            raise ValueError(
                "new clients and new rows need loss='squared_error' and no nested groupings where "
                f"rows have levels, got loss={estimator.model_.loss!r} and "
                f"nested={estimator.nested!r}: fit again with all rows."
            )
        rows = estimator._user_rows(X, groups)
        return np.asarray(y, dtype=float) - self._sums(estimator, *rows)

    def weights(self, estimator: Any, X: Any, groups: Any, weights: Any) -> Any:
        """Weights of new rows: the effect of a level not seen in fit is noise that they share."""
        rows, ids = estimator._user_rows(X, groups)
        columns = estimator._design.columns
        unseen = columns.codes(rows) < 0
        if not unseen.any():
            return weights
        weights = check_weights(weights, rows)
        weights = np.ones(len(rows)) if weights is None else weights
        clients = np.zeros(len(rows)) if ids is None else encode(check_ids(ids))[1]
        variances = np.zeros(len(rows))
        steps = columns.recipe[-columns.n_codes :]
        for k, (_, column, _) in enumerate(steps):
            # Exact for a level of one row, and for the intercept; else rows have less weight than
            # they could have, as the rows of one level share one effect.
            level = np.unique(np.c_[clients, rows[:, column]], axis=0, return_inverse=True)[1]
            together = np.bincount(level, weights)[level]
            variances += unseen[:, k] * together * self.level_variances[k]
        phi = estimator._stack.dispersion
        return weights * np.where(variances > 0, phi / np.maximum(phi + variances, 1e-300), 1.0)

    def beside(self, estimator: Any, pool: Any) -> Any:
        """A pool without the levels; new clients' targets are without their effects already."""
        if not getattr(pool.model, "n_groupings", 0):
            return pool
        return pool.without_effects(self.step, *self.arguments)

    def plain(self, plain: Any) -> Any:
        """No plain model has the effect."""
        raise ValueError(
            "client_model needs a fit without crossed and nested groupings: predictions "
            "depend on the levels of a row, which are no features."
        )
