"""Trees that all clients share, beside their linear models: their bins, and what they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from .._typing import Array, ClientIds
from ..federation.made_columns import Columns
from ..numerics.regression_trees import dependence, forest_outputs
from ..pooling.basis_options import TreeBasis
from ..pooling.boosting import Forest
from .level_effects import LevelEffects

if TYPE_CHECKING:
    from ..federation.pool import ClientPool


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


class TreeEffects(LevelEffects):
    """Base of the estimator of predictions that trees may be a part of."""

    #: Trees of the user's features; None if they are no part of the fit.
    _forest: Forest | None = None

    # ----------------------------------------------------------------------------- fit

    def _check_trees(self, hello: Any, header: Any) -> None:
        """Raise a ValueError if the fit cannot have trees."""
        crossed, nested = self._groupings(self._feature_names(header, hello.n_features))
        if crossed or nested:
            raise ValueError(
                "basis='trees' cannot be beside crossed or nested groupings: leave one of them "
                "out, or take basis='linear' or 'splines'."
            )

    def _cuts(
        self, federation: Any, hello: Any, header: Any, basis: TreeBasis, before: Any = None
    ) -> Array:
        """Ends of the bins of the features, (n_features, n_bins - 1)."""
        n_classes = None if hello.classes is None else len(hello.classes)
        model = self._local_model().bind(hello.n_features, n_classes, float)
        shares = shares_of(basis.max_bins)
        return self._quantiles_at(federation, model, hello, header, shares, before)[0]

    def _publish_trees(self, header: Any, forest: Forest | None) -> None:
        """Publish the trees in the user's units."""
        self._forest = None
        if forest is None:
            return
        if self._scaling is not None:
            forest = forest.in_units(self._scaling.mean, self._scaling.scale)
        self._forest = forest
        gains = forest.gains.sum(axis=0)
        self.feature_importances_ = gains / max(float(gains.sum()), 1e-300)
        n = len(forest.cuts)
        recipe = [("same", j, np.zeros(0)) for j in range(n)]
        names = [str(name) for name in self._feature_names(header, n)]
        self._columns = Columns(n, recipe, names, 0, forest.trees, forest.n_outputs)

    def _beside(self, pool: ClientPool) -> ClientPool:
        """A pool in the units of the fit, with the trees beside the predictions of its models."""
        forest = self._forest
        if forest is None:
            return pool
        if self._scaling is not None:
            mean, scale = self._scaling.mean, self._scaling.scale
            forest = forest.in_units(-mean / scale, 1.0 / scale)
        return pool.without_effects("without_trees", forest.trees, forest.cuts)

    def _end(self, task: Any) -> None:
        if self._forest is None:
            return super()._end(task)
        self._gather(self._beside(task.pool), len(self.groups_))

    # ------------------------------------------------------------------------- predict

    def _decide(self, X: Any, groups: ClientIds | None) -> Array:
        raw = super()._decide(X, groups)
        if self._forest is None:
            return raw
        X, _ = self._take_ids(X, groups)
        return self._with_trees_at(self._check_features(X, dtype=float), raw)

    def _decide_by_clusters(self, X: Any, index: Array) -> Array:
        return self._with_trees_at(X, super()._decide_by_clusters(X, index))

    def _with_trees_at(self, X: Any, raw: Array) -> Array:
        """Raw predictions of checked rows with what the trees add."""
        columns = self._columns
        return raw if self._forest is None or columns is None else raw + columns.offset(X)

    def _new_clients(
        self, X: Any, y: Any, groups: ClientIds | None, with_targets: bool = True
    ) -> tuple[ClientPool, Array | None]:
        pool, clients = super()._new_clients(X, y, groups, with_targets)
        return self._beside(pool), clients

    def _tree_effect(self, j: int, x: Array) -> Array | float:
        """What the trees add along a feature, zero on average over the rows of the fit."""
        forest = self._forest
        if forest is None:
            return 0.0
        ends = np.append(forest.cuts[j], np.inf)
        mean = np.average(dependence(forest.trees, j, ends), weights=forest.counts[j])
        return dependence(forest.trees, j, x) - mean

    def _plain_trees(self, plain: Any) -> Any:
        """A client's plain model with the trees before it, in a pipeline."""
        assert self._forest is not None
        known = {"trees": self._forest.trees, "n_outputs": self._forest.n_outputs}
        trees = FunctionTransformer(tree_columns, kw_args=known)
        features = FeatureUnion([("same", "passthrough"), ("trees", trees)])
        coef = np.atleast_2d(plain.coef_)
        coef = np.hstack([coef, np.eye(len(coef))])
        plain.coef_ = coef.reshape(*plain.coef_.shape[:-1], coef.shape[1])
        plain.n_features_in_ = coef.shape[1]
        if hasattr(plain, "feature_names_in_"):
            del plain.feature_names_in_
        return make_pipeline(features.fit(np.zeros((2, self._forest.cuts.shape[0]))), plain)
