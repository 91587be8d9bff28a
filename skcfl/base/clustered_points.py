"""The base of clusterers of points: every row is a client.

A fit checks the points and builds the pool, a subclass solves.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import numpy as np
from sklearn.base import ClusterMixin
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils.validation import check_is_fitted, validate_data

from .._checks import about, check_size, refuse_masked
from .._typing import Array, ArrayLike, Groups, MatrixLike, Targets, Weights, fit_context
from ..calls.curvatures import Solve
from ..federation.inprocess import open_rows
from ..federation.result import Result
from ..numerics.by_cluster import numbered_by_size
from ..reports.report import Report
from ..reports.separation import Separation, report_of_points
from .fitting import BaseFit, Task, given_to_fit


class BasePoints(ClusterMixin, BaseFit):
    """Base of the clusterers of points; a subclass has ``_local_model`` and ``_solve``.

    Points are moved so that their mean is the origin, and centres back: where the origin of the
    features lies means nothing to a method that only knows distances, but far from it squares
    cost digits.
    """

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Cluster points.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The points.
        y : object
            Not used.

        Returns
        -------
        self : object
            The fitted estimator.

        Warns
        -----
        ConvergenceWarning
            If the solver stopped before it reached its tolerance.
        """
        return self._run(self._task(X), given_to_fit(X, y))

    def _publish(self, task: Task, result: Result) -> None:
        centres = np.asarray(result.cluster_params, dtype=np.float64) + task.options["shift"]
        order, labels = numbered_by_size(np.asarray(result.labels))
        fitted = {
            "labels_": labels,
            "n_clusters_": len(order),
            "cluster_sizes_": np.bincount(labels, minlength=len(order)),
            "cluster_centers_": centres[order].astype(task.pool.dtype, copy=False),
            "objective_": float(result.objective),
            "n_iter_": int(result.n_iter),
            "history_": dict(result.history),
        }
        fitted.update({f"{k}_": v for k, v in result.extra.items()})
        fitted["_solution"] = fitted["cluster_centers_"][labels], fitted.get("dual_coef_")
        points = task.pool.ask(Solve)[0] + task.options["shift"]  # each is its own best centre
        fitted["_separation"] = Separation.of(points, labels, np.ones(len(points)), len(order))
        self._replace_attributes(task.header, fitted)

    def _task(
        self,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        sample_weight: Weights = None,
    ) -> Task:
        """Check the points and make clients of them: what a fit is about."""
        for name, value in {"groups": groups, "sample_weight": sample_weight}.items():
            if value is not None:
                raise ValueError(
                    f"{type(self).__name__} takes no {name}: every point is a client of its own, "
                    "and every client counts once."
                )
        header = copy.copy(self)  # takes n_features_in_ and feature_names_in_
        X = header._check_points(X)
        (n, d), shift = X.shape, X.mean(axis=0, dtype=np.float64)
        model = self._local_model().bind(d, dtype=X.dtype)
        centred = (X - shift).astype(X.dtype, copy=False)
        pool = open_rows(model, centred, None, np.arange(n), n)
        return Task(header, pool, np.arange(n), None, {"shift": shift})

    def report(self) -> Report:
        """Say in plain words what the fit found, and how separate the clusters are.

        Returns
        -------
        report : Report
            ``print(report)`` shows it as text, a notebook as HTML. ``report.findings`` has
            "n_clusters", "explained", "silhouette" (to means of clusters), "optimal", "unsure"
            (numbers of points between two clusters) and "not_settled".
        """
        check_is_fitted(self)
        optimal = getattr(self, "partition_optimal_", None)
        settled = [] if optimal else ["whether these are the clusters of the objective's minimum"]
        ids = [f"point {i}" for i in range(len(self.labels_))]
        return report_of_points(self, "points", ids, settled)

    def _check_points(
        self, X: Any, reset: bool = True, dtype: Any = (np.float64, np.float32)
    ) -> Any:
        """Points as an array of numbers that arithmetic can bear."""
        refuse_masked(X, "X")
        with about("X"):
            if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
                raise ValueError(f"dates (dtype {X.dtype}) are not numbers.")
            dtype = list(dtype) if isinstance(dtype, tuple) else dtype
            X = validate_data(self, X, reset=reset, dtype=dtype)
        check_size(X, "X")
        return X

    def predict(self, X: ArrayLike) -> Array:
        """Cluster of the nearest centre.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New points.  For those of fit see ``labels_``: clusters need not be the regions
            nearest to their centres.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Number of the cluster of each point.
        """
        check_is_fitted(self)
        X = self._check_points(X, reset=False, dtype=self.cluster_centers_.dtype)
        return pairwise_distances_argmin(X, self.cluster_centers_)
