"""Trees that all clients share, beside their linear models: their bins, and what they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from .._typing import Array, ArrayLike, ClientIds, MatrixLike
from ..federation.made_columns import Columns
from ..numerics.regression_trees import dependence, forest_values
from ..pooling.basis_options import TreeBasis
from ..pooling.boosting import Forest
from .level_effects import LevelEffects

if TYPE_CHECKING:
    from ..federation.pool import ClientPool


def tree_column(X: Any, trees: Array) -> Array:
    """Values of trees at rows as a column, for plain scikit-learn."""
    return forest_values(np.asarray(X, dtype=float), trees)[:, None]


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
        model = self._model_of(hello)
        crossed, nested = self._groupings(self._feature_names(header, hello.n_features))
        if crossed or nested:
            raise ValueError(
                "basis='trees' cannot be beside crossed or nested groupings: leave one of them "
                "out, or take basis='linear' or 'splines'."
            )
        if getattr(model, "loss", None) != "squared_error":
            raise ValueError(
                "basis='trees' needs loss='squared_error', got "
                f"loss={getattr(model, 'loss', None)!r}: take basis='linear' or 'splines'."
            )

    def _cuts(
        self, federation: Any, hello: Any, header: Any, basis: TreeBasis, before: Any = None
    ) -> Array:
        """Ends of the bins of the features, (n_features, n_bins - 1)."""
        model = self._local_model().bind(hello.n_features, None, float)
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
        self._columns = Columns(n, recipe, names, trees=forest.trees)

    def _end(self, task: Any) -> None:
        if self._forest is None:
            return super()._end(task)
        forest = self._forest
        if self._scaling is not None:
            mean, scale = self._scaling.mean, self._scaling.scale
            forest = forest.in_units(-mean / scale, 1.0 / scale)
        pool = task.pool.without_effects("without_trees", forest.trees, forest.cuts)
        self._gather(pool, len(self.groups_))

    # ------------------------------------------------------------------------- predict

    def _at_trees(self, X: Any, groups: ClientIds | None) -> Array:
        """Values of the trees at rows, (n_rows,)."""
        assert self._columns is not None
        X, _ = self._take_ids(X, groups)
        return self._columns.offset(self._check_features(X, dtype=float))

    def _decide(self, X: Any, groups: ClientIds | None) -> Array:
        raw = super()._decide(X, groups)
        return raw if self._forest is None else raw + self._at_trees(X, groups)[:, None]

    def predict_cluster(self, X: MatrixLike, label: ArrayLike) -> Array:
        """Predict with the model of a cluster, whatever client the rows belong to.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows, with the columns of fit; the ids in the group column are not looked at.
        label : int or array-like of shape (n_samples,)
            Cluster to use for all rows, or one for each row; in ``0, ..., n_clusters_ - 1``.

        Returns
        -------
        y_pred : ndarray of shape (n_samples,)
            As from ``predict``.

        Raises
        ------
        ValueError
            If a label is not that of a cluster.
        """
        predicted = super().predict_cluster(X, label)
        return predicted if self._forest is None else predicted + self._at_trees(X, None)

    def _new_clients(
        self, X: Any, y: Any, groups: ClientIds | None, with_targets: bool = True
    ) -> tuple[ClientPool, Array | None]:
        if self._forest is not None and with_targets and y is not None:
            y = np.asarray(y, dtype=float) - self._at_trees(X, groups)
        return super()._new_clients(X, y, groups, with_targets)

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
        trees = FunctionTransformer(tree_column, kw_args={"trees": self._forest.trees})
        features = FeatureUnion([("same", "passthrough"), ("trees", trees)])
        plain.coef_ = np.append(plain.coef_, 1.0)
        plain.n_features_in_ = len(plain.coef_)
        if hasattr(plain, "feature_names_in_"):
            del plain.feature_names_in_
        return make_pipeline(features.fit(np.zeros((2, self._forest.cuts.shape[0]))), plain)
