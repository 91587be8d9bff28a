"""The base of clusterers of rows that belong to clients.

Like ``base.py`` above the pool and in sight of rows: ``fit`` checks them, lets the clients find
centres, and gives every row the cluster of its nearest centre, which each client does for itself.
"""

from __future__ import annotations

import copy
import warnings
from abc import ABCMeta, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.metrics import pairwise_distances_argmin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ._checks import about, check_size, refuse_masked
from ._docs import DocLinkMixin
from ._groups import check_ids, encode
from ._progress import CallbackSupportMixin, follow
from ._typing import Array, ArrayLike, ClientIds, fit_context
from .exceptions import SingleClientWarning
from .federation.inprocess import open_rows
from .models import Location

if TYPE_CHECKING:
    from .federation.pool import ClientPool

__all__ = ["ClusteredRows"]


class ClusteredRows(
    CallbackSupportMixin, DocLinkMixin, ClusterMixin, BaseEstimator, metaclass=ABCMeta
):
    """Base of the clusterers of clients' rows; a subclass has ``_solve``."""

    __metadata_request__fit = {"groups": True}

    @abstractmethod
    def _solve(self, pool: ClientPool) -> Any:
        """Centres (n_clients, h, d), their counts and labels (n_clients, h), merged (k, d)."""

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: ArrayLike, y: Any = None, groups: ClientIds | None = None) -> Self:
        """Cluster rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of all clients, in any order.
        y : object
            Not used.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. None makes all rows one client.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If X or the ids are not valid, or there are fewer rows than clusters.

        Warns
        -----
        SingleClientWarning
            If nothing names the clients.
        """
        header = copy.copy(self)
        X = header._check(X, reset=True)
        if len(X) < self.n_clusters:
            raise ValueError(f"n_samples={len(X)} should be >= n_clusters={self.n_clusters}.")
        if groups is None:
            warnings.warn(
                f"{type(self).__name__}.fit got no groups, so all rows are one client. Pass "
                "groups= with one client id per row.",
                SingleClientWarning,
                stacklevel=3,
            )
            ids, codes = np.zeros(1, dtype=int), np.zeros(len(X), dtype=np.intp)
        else:
            ids, codes = encode(check_ids(groups, len(X)))
        model = Location().bind(X.shape[1], dtype=X.dtype)
        pool = open_rows(
            model,
            X,
            None,
            codes,
            len(ids),
            n_jobs=self.n_jobs,
            random_state=check_random_state(self.random_state),
        )
        given = {"X": X, "y": y, "metadata": None if groups is None else {"groups": groups}}
        publish = partial(self._publish, header, X, ids, codes, pool)
        follow(self, partial(self._solve, pool), publish, given)
        return self

    def _publish(
        self, header: Any, X: Array, ids: Array, codes: Array, pool: ClientPool, result: Any
    ) -> None:
        """Replace all fitted attributes at once."""
        centres, counts, which, merged = result
        # Clusters by decreasing number of rows, equal ones by their first row.
        labels = which[codes, self._nearest(X, centres, counts, codes)]
        present, first, sizes = np.unique(labels, return_index=True, return_counts=True)
        order = present[np.lexsort((first, -sizes))]
        number = np.full(len(merged), -1)
        number[order] = np.arange(len(order))
        labels, which = number[labels], np.where(which < 0, -1, number[which])
        rows = np.zeros((len(ids), len(order)))
        np.add.at(rows, (codes, labels), 1.0)
        fitted = {
            "n_features_in_": header.n_features_in_,
            "labels_": labels,
            "n_clusters_": len(order),
            "cluster_centers_": merged[order].astype(X.dtype),
            "groups_": ids,
            "client_labels_": rows.argmax(axis=1),
            "local_centers_": centres.astype(X.dtype),
            "local_labels_": which,
            "floats_up_": pool.ledger.up,
            "floats_down_": pool.ledger.down,
            "calls_": pool.ledger.calls,
        }
        if hasattr(header, "feature_names_in_"):
            fitted["feature_names_in_"] = header.feature_names_in_
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)  # what an earlier fit may have left
        self.__dict__.update(fitted)

    @staticmethod
    def _nearest(X: Array, centres: Array, counts: Array, codes: Array) -> Array:
        """Nearest of its own client's centres of each row."""
        best, nearest = np.full(len(X), np.inf), np.zeros(len(X), dtype=np.intp)
        for h in range(counts.shape[1]):
            away = ((X - centres[codes, h]) ** 2).sum(axis=1)
            away[counts[codes, h] == 0] = np.inf
            nearest[away < best] = h
            best = np.minimum(best, away)
        return nearest

    def _check(self, X: Any, reset: bool) -> Any:
        refuse_masked(X, "X")
        with about("X"):
            X = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        check_size(X, "X")
        return X

    def predict(self, X: ArrayLike) -> Array:
        """Cluster of the nearest centre.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows of any client.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Number of the cluster of each row.
        """
        check_is_fitted(self)
        return pairwise_distances_argmin(self._check(X, reset=False), self.cluster_centers_)
