"""Trees that all clients share, beside their linear models: their bins, and what they predict."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.pipeline import FeatureUnion
from sklearn.preprocessing import FunctionTransformer

from .._typing import Array
from ..federation.made_columns import Columns
from ..federation.pool import ClientPool
from ..numerics.regression_trees import dependence, forest_outputs
from ..pooling.basis_options import TreeBasis
from ..pooling.boosting import Forest
from .designs import Design, Draft, Effect, behind, grouped


def tree_columns(X: Any, trees: Array, n_outputs: int) -> Array:
    """Values of trees at rows, a column for each output, for plain scikit-learn."""
    return forest_outputs(np.asarray(X, dtype=float), trees, n_outputs)


def shares_of(n_bins: int) -> Array:
    """Shares of the rows below the ends of bins with equally many."""
    return np.arange(1, n_bins) / n_bins


def in_units_of(pool: ClientPool, cuts: Array) -> Array:
    """Values of features (n_features, m) in the units of a pool."""
    scaling = pool.scaling
    return cuts if scaling is None else (cuts - scaling.mean[:, None]) / scaling.scale[:, None]


def check_trees(estimator: Any) -> None:
    """Raise a ValueError if the fit cannot have trees."""
    if grouped(estimator):
        raise ValueError(
            "basis='trees' cannot be beside crossed or nested groupings: leave one of them "
            "out, or take basis='linear' or 'splines'."
        )


def cuts_of(estimator: Any, draft: Draft, basis: TreeBasis) -> Array:
    """Ends of the bins of the features, (n_features, n_bins - 1)."""
    return draft.quantiles_at(estimator, shares_of(basis.max_bins))[0]


class TreeEffects(Effect):
    """Trees of the user's features.

    Parameters
    ----------
    forest : Forest
        The trees, in the units of the fit.
    scaling : Scaling or None
        These units.
    """

    def __init__(self, forest: Forest, scaling: Any) -> None:
        self.forest, self.scaling = forest, scaling
        if scaling is not None:
            self.forest = forest.in_units(scaling.mean, scaling.scale)

    def attributes(self, estimator: Any, header: Any) -> dict[str, Any]:
        """Attributes that a fit publishes; clients elsewhere add the trees with the columns."""
        forest, gains = self.forest, self.forest.gains.sum(axis=0)
        n = len(forest.cuts)
        recipe = [("same", j, np.zeros(0)) for j in range(n)]
        names = [str(name) for name in estimator._feature_names(header, n)]
        columns = Columns(n, recipe, names, 0, forest.trees, forest.n_outputs)
        return {
            "feature_importances_": gains / max(float(gains.sum()), 1e-300),
            "_design": Design(columns),
        }

    def added(self, estimator: Any, raw: Array, X: Any, ids: Any) -> Array:
        """Raw predictions of rows with the user's columns, and with the effect."""
        return raw + estimator._design.columns.offset(X)

    def variances(self, estimator: Any, X: Any, ids: Any) -> float:
        """Variance of the trees' own error."""
        return self.forest.variance

    def added_to_clusters(self, estimator: Any, raw: Array, X: Any) -> Array:
        """The same of predictions by the models of clusters."""
        return self.added(estimator, raw, X, None)

    def beside(self, estimator: Any, pool: Any) -> Any:
        """A pool in the units of the fit, with the trees beside the predictions of its models."""
        forest = self.forest
        if self.scaling is not None:
            mean, scale = self.scaling.mean, self.scaling.scale
            forest = forest.in_units(-mean / scale, 1.0 / scale)
        return pool.without_effects("without_trees", forest.trees, forest.cuts)

    def along(self, j: int, x: Array) -> Array | float:
        """The effect along a feature, zero on average over the rows of the fit."""
        forest = self.forest
        ends = np.append(forest.cuts[j], np.inf)
        mean = np.average(dependence(forest.trees, j, ends), weights=forest.counts[j])
        return dependence(forest.trees, j, x) - mean

    def plain(self, plain: Any) -> Any:
        """A client's plain model with the trees before it, in a pipeline."""
        known = {"trees": self.forest.trees, "n_outputs": self.forest.n_outputs}
        trees = FunctionTransformer(tree_columns, kw_args=known)
        features = FeatureUnion([("same", "passthrough"), ("trees", trees)])
        coef = np.atleast_2d(plain.coef_)
        coef = np.hstack([coef, np.eye(len(coef))])
        return behind(features.fit(np.zeros((2, self.forest.cuts.shape[0]))), plain, coef)

    def lines(self, fit: Any) -> list[str]:
        """Number of the trees, and the features that they use most."""
        n, parts = self.forest.n_rounds, fit.feature_importances_
        most = [j for j in np.argsort(-parts, kind="stable")[:3] if parts[j] > 0]
        used = ", ".join(f"{fit.coef_names_[j]} {parts[j]:.2f}" for j in most)
        of = " of each class" * (self.forest.n_outputs > 1)
        return [f"and {n} tree{'s' * (n != 1)}{of} that clients share{': ' * bool(used)}{used}"]
