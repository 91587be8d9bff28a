"""The base of clusterers of rows that belong to clients.

Fits see the rows that they check, and make a federation of them: the clients find centres, and
each row has the cluster of its client's nearest centre.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._typing import Array, Groups, IntArray, MatrixLike, Weights, fit_context
from ..clients.ids import check_ids, describe_unseen, encode, family, joined_ids, locate
from ..federation.checking import FLOATS, check_weights
from ..federation.federation import Federation, InProcessFederation
from ..federation.handshake import Handshake
from ..federation.pool import ClientPool
from ..federation.result import Result
from ..federation.sites import ask_each
from ..models import Location
from ..models._nearest_centre import NearestCentre
from ..reports.report import Report
from ..reports.separation import Separation, report_of_points
from .checkpointing import checkpointed
from .fitting import Task, given_to_fit
from .of_clients import OfClients, check_new_ids
from .predicting import scored


class ClusteredRows(ClusterMixin, OfClients):
    """Base of the clusterers of clients' rows; a subclass has ``_centres`` and ``_merge``."""

    n_clusters: int
    labels_: IntArray
    n_clusters_: int
    cluster_sizes_: Array
    cluster_centers_: Array
    client_labels_: IntArray
    local_centers_: Array
    local_labels_: IntArray

    __metadata_request__fit = {"groups": True}
    __metadata_request__predict = {"groups": True}

    @abstractmethod
    def _centres(self, pool: ClientPool) -> tuple[Array, Array]:
        """Local clusters of the clients' rows: centres (n_clients, h, d), rows of each (n, h)."""

    @abstractmethod
    def _merge(self, centres: Array, counts: Array) -> tuple[Array, Array]:
        """Clusters of all centres (n_clients, h), -1 where there is none; their means (k, d)."""

    # ------------------------------------------------------------------------------------ fit

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: MatrixLike, y: Any = None, groups: Groups = None, sample_weight: Weights = None
    ) -> Self:
        """Cluster rows.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of all clients, in any order; with ``group_col`` one of the columns holds the
            client ids.
        y : object
            Not used.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. None without ``group_col`` makes all rows one client.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row; a weight of 2 counts as the row twice. None is 1 for all.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If X, the ids or the weights are not valid, or there are fewer rows than clusters.

        Warns
        -----
        SingleClientWarning
            If nothing names the clients.
        """
        task = self._task(X, None, groups, sample_weight)
        task.options["rows"] = task.federation
        return self._run(task, given_to_fit(X, y, groups, sample_weight))

    @fit_context(prefer_skip_nested_validation=True)
    def fit_federation(
        self,
        federation: Federation,
        checkpoint: str | PathLike[str] | None = None,
        *,
        every: float = 10.0,
        resume: bool = False,
    ) -> Self:
        """Cluster the rows of the clients of a federation, where they are.

        Nothing but local centres leaves the clients. There is no ``labels_``:
        ``predict_federation`` lets each client label its rows, and fetches the labels.

        Parameters
        ----------
        federation : Federation
            The clients, see :mod:`skcfl.federation`.
        checkpoint : path-like, default=None
            File from which a fit that was cut off can go on, see :ref:`checkpoints`. It is deleted
            when the fit has ended.
        every : float, default=10.0
            Seconds between two writes of the checkpoint.
        resume : bool, default=False
            If True, the fit goes on from the checkpoint, if it is there.

        Returns
        -------
        self : object
            The fitted estimator.

        Raises
        ------
        ValueError
            If ``group_col`` is set, since the federation knows its clients, or there are fewer
            rows than clusters.
        CheckpointError
            If the checkpoint is damaged, of another fit, written by a fit that is running, or
            there while ``resume`` is False.
        FederationError
            If too few clients answer.

        Warns
        -----
        RejectedClientWarning
            If a client sent numbers that are not finite: it took no part.
        """
        with checkpointed(self, federation, checkpoint, every, resume) as clients:
            return self._run(self._federation_task(clients))

    def _local_model(self) -> Location:
        return Location()

    @property
    def _n_model_features(self) -> int:
        return self.cluster_centers_.shape[1]

    def _open(
        self,
        federation: Federation,
        hello: Handshake,
        header: Any,
        groups: Array | None,
        before: Any = None,
    ) -> Task:
        if hello.n_rows < self.n_clusters:
            raise ValueError(
                f"n_samples={hello.n_rows} should be >= n_clusters={self.n_clusters}."
            )
        pool = self._pool_of(federation, hello)
        return Task(header, pool, groups, None, {}, federation=federation, hello=hello)

    def _pool_of(self, federation: Federation, hello: Handshake) -> ClientPool:
        model = hello.bound(self._local_model())
        return federation.open(model, check_random_state(self.random_state), hello)

    def _solve(self, pool: ClientPool, **options: Any) -> Result:
        centres, counts = self._centres(pool)
        which, merged = self._merge(centres, counts)
        found = {"centres": centres, "counts": counts}
        return Result(cluster_params=merged, labels=which, extra=found)

    def _publish(self, task: Task, result: Result) -> None:
        which, merged, dtype = result.labels, result.cluster_params, task.hello.dtype
        centres, counts = result.extra["centres"], result.extra["counts"]
        # Clusters by decreasing weight of their rows, equal ones by their first client.
        sizes = np.bincount(which[which >= 0], counts[which >= 0], len(merged))
        order = np.argsort(-sizes, kind="stable")
        which = np.where(which < 0, -1, np.argsort(order)[which])
        fitted, _, _ = self._of_the_pool(task)
        fitted |= {
            "n_clusters_": len(order),
            "cluster_sizes_": sizes[order],
            "cluster_centers_": merged[order].astype(dtype),
            "client_labels_": _largest(which, counts, len(order)),
            "local_centers_": centres.astype(dtype),
            "local_labels_": which,
        }
        there = which >= 0
        fitted["_separation"] = Separation.of(
            *(centres[there], which[there], counts[there].astype(float), len(order)), single=False
        )
        self._replace_attributes(task.header, fitted)
        rows = task.options.get("rows")
        if rows is not None:
            model, table = self._nearest()
            self.labels_ = model.decision(rows.X, table, rows.codes)

    def report(self) -> Report:
        """Say in plain words what the fit found, and how separate the clusters are.

        All is said of the centres that clients have sent: rows are not needed.

        Returns
        -------
        report : Report
            ``print(report)`` shows it as text, a notebook as HTML. ``report.findings`` has
            "n_clusters", "explained", "silhouette" (of local centres, to means of clusters),
            "optimal" (None), "unsure" (clients with a centre between two clusters) and
            "not_settled".
        """
        check_is_fitted(self)
        clients, _ = np.nonzero(self.local_labels_ >= 0)
        ids = [str(self.groups_[i]) for i in clients]
        lost = [*self.missing_clients_, *self.rejected_clients_]
        settled = [f"what the rows of client {str(id)!r} say, which took no part" for id in lost]
        return report_of_points(self, "rows", ids, settled)

    # -------------------------------------------------------------------------------- predict

    def predict(self, X: MatrixLike, groups: Groups = None) -> IntArray:
        """Cluster of the nearest centre.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of any clients, with the columns of fit.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client. A row of a client of fit has the cluster of that client's
            nearest centre, as in ``labels_``; without ids, and for other clients, it is the
            nearest of ``cluster_centers_``.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Number of the cluster of each row.
        """
        check_is_fitted(self)
        X, ids = self._take_rows(X, groups)
        model, table = self._nearest()
        index = np.full(X.shape[0], len(table) - 1)
        if ids is not None:
            index = self._positions(check_ids(ids, X.shape[0], self._ids_name()))
        return model.decision(X, table, index)

    def predict_federation(self, federation: Federation) -> IntArray:
        """Let the clients of a federation label their rows, and fetch the labels.

        Parameters
        ----------
        federation : Federation
            The clients: those of fit, or others.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            As of ``predict`` with ids, for all rows: part by part, those of a part as they were
            given.

        Raises
        ------
        ValueError
            If the features are not those of fit.
        FederationError
            If some rows do not answer.
        """
        hello = self._hello_of(federation, None)
        model, table = self._nearest()
        rows = federation.rows(hello.bound(Location()), hello)
        parts = scored(rows, model, table, self._positions(hello.ids))
        own = [("predict",)] * len(parts)
        return federation.collected(iter(ask_each(parts, "outputs", own, whole=True)))

    def assign(
        self, X: MatrixLike, y: Any = None, groups: Groups = None, sample_weight: Weights = None
    ) -> IntArray:
        """Find the cluster of most rows of each of some clients.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the clients, with the columns of fit.
        y : object
            Not used.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client, seen in fit or not. None without ``group_col``: all rows
            belong to one client.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        labels : ndarray of shape (n_some_clients,)
            In the order of ``np.unique(groups)``.
        """
        check_is_fitted(self)
        rows, ids = self._take_rows(X, groups)
        federation = self._federation(rows, *self._clients(rows, ids), sample_weight)
        return self._met(federation, federation.hello())[-1]

    def assign_federation(self, federation: Federation) -> IntArray:
        """Find the cluster of most rows of each client of a federation.

        Parameters
        ----------
        federation : Federation
            The clients, seen in fit or not.

        Returns
        -------
        labels : ndarray of shape (n_clients,)
            As from ``assign``, in the order of the sorted ids; -1 for clients that do not answer.

        Raises
        ------
        ValueError
            If the features are not those of fit.
        """
        return self._met(federation, self._hello_of(federation, None))[-1]

    @fit_context(prefer_skip_nested_validation=True)
    def adapt(
        self, X: MatrixLike, y: Any = None, groups: Groups = None, sample_weight: Weights = None
    ) -> Self:
        """Copy of this estimator that also knows some new clients.

        New clients find centres in their rows, and each belongs to the cluster with the centre
        nearest to it. Nothing else changes, and this estimator stays as it is.

        Parameters
        ----------
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            Rows of the new clients, with the columns of fit.
        y : object
            Not used.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client; not with ``group_col``.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        adapted : estimator
            With the new clients in ``groups_``, ``client_labels_``, ``local_centers_`` and
            ``local_labels_``.

        Raises
        ------
        ValueError
            If there are no ids, they are of another type than those of fit, or an id was seen
            in fit.
        """
        check_is_fitted(self)
        rows, ids = self._take_rows(X, groups)
        clients, codes = self._clients(rows, ids)
        check_new_ids(self.groups_, clients if self._has_groups and ids is not None else None)
        federation = self._federation(rows, clients, codes, sample_weight)
        centres, which, labels = self._met(federation, federation.hello())
        adapted = copy.copy(self)
        ids, codes = encode(joined_ids(self.groups_, clients))
        order = np.argsort(codes)  # every id is there once
        adapted.groups_ = ids
        adapted.client_labels_ = np.append(self.client_labels_, labels)[order]
        centres = centres.astype(self.local_centers_.dtype)
        adapted.local_centers_ = np.concatenate([self.local_centers_, centres])[order]
        adapted.local_labels_ = np.concatenate([self.local_labels_, which])[order]
        return adapted

    def _met(self, federation: Federation, hello: Handshake) -> tuple[Array, Array, Array]:
        """Centres that clients find, their clusters among those of fit, and the clients'."""
        centres, counts = self._centres(self._pool_of(federation, hello))
        n, h, d = centres.shape
        model = NearestCentre(self.n_clusters_, d, np.dtype(float))
        table = model.pack(self.cluster_centers_[None], np.arange(self.n_clusters_)[None])
        which = model.decision(centres.reshape(-1, d), table, np.zeros(n * h, dtype=np.intp))
        which = np.where(counts > 0, which.reshape(n, h), -1)
        return centres, which, _largest(which, counts, self.n_clusters_)

    def _nearest(self) -> tuple[NearestCentre, Array]:
        """Clusters, and a row of parameters for each client and one for others."""
        K, d = self.cluster_centers_.shape
        model = NearestCentre(max(K, self.local_labels_.shape[1]), d, self.cluster_centers_.dtype)
        table = model.pack(self.local_centers_, self.local_labels_)
        shared = model.pack(self.cluster_centers_[None], np.arange(K)[None])
        table[(self.local_labels_ < 0).all(axis=1)] = shared
        return model, np.vstack([table, shared])

    def _positions(self, ids: Array) -> Array:
        """Place of each id's parameters in the table."""
        if not self._has_groups:
            return np.full(len(ids), len(self.groups_))
        positions, unseen = locate(self.groups_, ids)
        if len(unseen) and family(self.groups_) != family(unseen):
            raise ValueError(f"{describe_unseen(self.groups_, unseen)}.")
        return np.where(positions < 0, len(self.groups_), positions)

    # ----------------------------------------------------------------------------- validation

    def _take_rows(self, X: Any, groups: Groups) -> tuple[Any, Any]:
        """Checked features, and ids as they are, None if there are none."""
        X, ids = self._take_ids(X, groups)
        return self._check_features(X, FLOATS), ids

    def _clients(self, X: Any, ids: Any) -> tuple[Array, Array]:
        """Sorted ids and each row's client; one client where there are no ids."""
        if ids is None:
            return np.zeros(1, dtype=int), np.zeros(X.shape[0], dtype=np.intp)
        return encode(check_ids(ids, X.shape[0], self._ids_name()))

    def _federation(
        self, X: Any, clients: Array, codes: Array, sample_weight: Weights
    ) -> InProcessFederation:
        about = {"sample_weight": check_weights(sample_weight, X), "n_jobs": self.n_jobs}
        return InProcessFederation.of_checked(None, X=X, y=None, codes=codes, ids=clients, **about)

    def __sklearn_tags__(self) -> Any:
        """Tags: sparse rows are made dense client by client."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _largest(which: Array, counts: Array, n_clusters: int) -> Array:
    """Cluster of most rows of each client, -1 where nothing is known."""
    rows = np.zeros((len(which), n_clusters))
    client, place = np.nonzero(which >= 0)
    np.add.at(rows, (client, which[client, place]), counts[client, place])
    return np.where((which < 0).all(axis=1), -1, rows.argmax(axis=1))
