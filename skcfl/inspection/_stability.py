"""True if clusters are found again in rows that are drawn again."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from .._checks import whole_number
from .._typing import (
    Array,
    ArrayLike,
    FloatArray,
    Groups,
    IntArray,
    MatrixLike,
    RandomState,
    Targets,
)
from ..clients.ids import check_ids, encode, locate
from ..model_selection._columns import ids_in_column
from ..numerics.memory import require
from ._axes import Axes, Display, name_clients

# Shares of the fits in which a pair is together, between which it is unsure.
LEAST, MOST = 0.1, 0.9
# Mean adjusted Rand index from which clusters are stable: on three tables of crisp
# ones it was .90 to .96, on three of one population .28 to .33 (benchmarks/how_sure.py).
STABLE = 0.8
# Clients up to which each has its name beside it.
NAMED = 40
# Bytes of a pair of clients: its share of the fits, and copies of it.
PAIR = 32


@dataclass
class ClusterStability:
    """How often clients are in one cluster in fits to rows drawn again.

    Made by :func:`cluster_stability`.

    Parameters
    ----------
    groups : ndarray of shape (n_clients,)
        Sorted ids of the clients.
    labels : ndarray of shape (n_clients,)
        Their clusters in the fit to all rows.
    aris : ndarray of shape (n_resamples,)
        Adjusted Rand index of the clusters of each fit to rows drawn again with these.
    n_clusters : ndarray of shape (n_resamples,)
        Number of clusters of each fit.
    co_membership : ndarray of shape (n_clients, n_clients)
        Share of the fits in which two clients are in one cluster.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.inspection import ClusterStability
    >>> together = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> found = ClusterStability(np.arange(2), np.arange(2), np.ones(2), np.full(2, 2), together)
    >>> found.unsure
    1.0
    """

    groups: Array
    labels: IntArray
    aris: FloatArray
    n_clusters: IntArray
    co_membership: FloatArray

    @property
    def ari(self) -> float:
        """Mean of ``aris``: 1 if the clusters are always the same, 0 if they are by chance."""
        return float(np.mean(self.aris))

    @property
    def unsure(self) -> float:
        """Share of the pairs of clients that are together in more than 10 % and less than 90 %."""
        pairs = self.co_membership[np.triu_indices(len(self.groups), 1)]
        return float(((pairs > LEAST) & (pairs < MOST)).mean()) if len(pairs) else 0.0

    @property
    def client_certainty(self) -> FloatArray:
        """Mean share of the fits in which a client is with its cluster, (n_clients,).

        1 minus that share for clients of other clusters, and the share itself for clients of the
        same one, both counting alike.
        """
        same = self.labels[:, None] == self.labels
        other, same_cluster = ~same, same & ~np.eye(len(same), dtype=bool)
        parts = [
            np.divide(
                (where * value).sum(axis=1),
                where.sum(axis=1),
                out=np.ones(len(same)),
                where=where.any(axis=1),
            )
            for where, value in (
                (same_cluster, self.co_membership),
                (other, 1.0 - self.co_membership),
            )
        ]
        return 0.5 * (parts[0] + parts[1])

    @property
    def is_stable(self) -> bool:
        """True if several clusters, not one for each client, have an ``ari`` of at least 0.8."""
        several = 1 < len(np.unique(self.labels)) < len(self.labels)
        return several and self.ari >= STABLE


def cluster_stability(
    estimator: Any,
    X: MatrixLike,
    y: Targets = None,
    groups: Groups = None,
    *,
    n_resamples: int = 20,
    random_state: RandomState = 0,
) -> ClusterStability:
    """Fit to rows drawn again inside the clients, and compare the clusters.

    Each client draws as many of its rows as it has, with replacement, and the estimator is fitted
    anew, with all its choices, to the rows that are drawn, about 63 % of them: a row that is drawn
    twice counts once, as copies have no noise of their own. Clusters that are there are found
    again, and parts of a continuum are cut elsewhere each time.

    Parameters
    ----------
    estimator : estimator
        A clusterer of clients. If it is fitted to these clients, its clusters are compared with;
        else it is fitted to the rows as they are first. It stays as it is.
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        The rows of all clients; with ``group_col`` one of the columns holds the client ids.
    y : array-like of shape (n_samples,), default=None
        Targets. Not used with an unsupervised local model.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client.
    n_resamples : int, default=20
        Number of fits.
    random_state : int, RandomState instance or None, default=0
        Source of the draws of rows.

    Returns
    -------
    stability : ClusterStability
        With the mean adjusted Rand index ``ari``, the matrix ``co_membership`` and the share of
        ``unsure`` pairs. Pass it to ``estimator.report(stability=...)``, or draw it by
        :class:`ClusterStabilityDisplay`.

    Raises
    ------
    ValueError
        If nothing names the clients, or the number of fits is not a positive integer.
    NotEnoughMemoryError
        If a matrix of all pairs of clients does not fit in memory.

    Examples
    --------
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import cluster_stability
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> ifca = IFCARegressor(n_clusters=3, random_state=0)
    >>> found = cluster_stability(ifca, data.X, data.y, data.groups, n_resamples=3)
    >>> found.is_stable
    True
    """
    n_resamples = whole_number(n_resamples, "n_resamples")
    ids = groups
    if groups is None:
        if getattr(estimator, "group_col", None) is None:
            raise ValueError(
                "cluster_stability needs to know the client of each row: pass groups= with one "
                "id per row, or set group_col of the estimator."
            )
        ids = ids_in_column(X, estimator.group_col)
    clients, codes = encode(check_ids(ids))
    what = f"The pairs of {len(clients)} clients, and how often they are together,"
    require(PAIR * len(clients) ** 2, what, "Take some of the clients, drawn at random.")
    base = _fitted_to(estimator, clients, X, y, groups)
    # Nodes of a graph may have no rows.
    labels, rng = _labels(base)[locate(base.groups_, clients)[0]], check_random_state(random_state)
    order = np.argsort(codes, kind="stable")
    starts = np.r_[0, np.cumsum(np.bincount(codes))]
    together, aris, numbers = np.zeros((len(clients), len(clients))), [], []
    for _ in range(n_resamples):
        drawn = [order[rng.randint(a, b, b - a)] for a, b in zip(starts, starts[1:], strict=False)]
        weights = np.zeros(len(codes))
        weights[np.concatenate(drawn)] = 1.0
        again = clone(estimator).fit(X, y, groups=groups, sample_weight=weights)
        found = _labels(again)[locate(again.groups_, clients)[0]]
        together += found[:, None] == found
        aris.append(adjusted_rand_score(labels, found))
        numbers.append(int(found.max()) + 1)
    return ClusterStability(
        clients, labels, np.array(aris), np.array(numbers), together / n_resamples
    )


def _fitted_to(estimator: Any, clients: Array, X: Any, y: Any, groups: Any) -> Any:
    """The estimator where it knows these clients, or a fit of it."""
    try:
        check_is_fitted(estimator)
        weights = getattr(estimator, "_seen_weights", np.ones(len(estimator.groups_)))
        if np.array_equal(estimator.groups_[weights > 0], clients):
            return estimator
    except NotFittedError:
        pass
    return clone(estimator).fit(X, y, groups=groups)


def _labels(estimator: Any) -> Array:
    """Clusters of the clients: of clusterers of rows those of their names."""
    return np.asarray(getattr(estimator, "client_labels_", estimator.labels_))


@dataclass(eq=False, repr=False)
class ClusterStabilityDisplay(Display):
    """How often two clients are together in fits to rows drawn again: a heat map.

    Clients are ordered by their clusters, which lines divide. Create it with
    :meth:`from_estimator`, or from what :func:`cluster_stability` returns.

    Parameters
    ----------
    stability : ClusterStability
        Result of ``cluster_stability`` to draw.

    Attributes
    ----------
    order_ : ndarray of shape (n_clients,)
        Clients from left to right, and from the top to the bottom.
    image_ : matplotlib AxesImage
        The heat map.
    ax_ : matplotlib Axes
        Axes with the heat map.
    figure_ : matplotlib Figure
        Figure with the axes.

    See Also
    --------
    cluster_stability : The fits.

    Examples
    --------
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.inspection import ClusterStabilityDisplay
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> ifca = IFCARegressor(n_clusters=3, random_state=0)
    >>> display = ClusterStabilityDisplay.from_estimator(
    ...     ifca, data.X, data.y, data.groups, n_resamples=2
    ... )
    >>> display.image_.get_array().shape
    (12, 12)
    """

    _: KW_ONLY
    stability: ClusterStability

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: MatrixLike,
        y: Targets = None,
        groups: Groups = None,
        *,
        n_resamples: int = 20,
        random_state: RandomState = 0,
        ax: Axes | None = None,
    ) -> ClusterStabilityDisplay:
        """Fit to rows drawn again, and draw how often clients are together.

        Parameters
        ----------
        estimator : estimator
            A clusterer of clients.
        X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
            The rows of all clients.
        y : array-like of shape (n_samples,), default=None
            Targets.
        groups : array-like of shape (n_samples,), default=None
            Id of each row's client.
        n_resamples : int, default=20
            Number of fits.
        random_state : int, RandomState instance or None, default=0
            Source of the draws of rows.
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.

        Returns
        -------
        display : ClusterStabilityDisplay
            With the heat map drawn.
        """
        found = cluster_stability(
            estimator, X, y, groups, n_resamples=n_resamples, random_state=random_state
        )
        return cls(stability=found).plot(ax)

    def plot(self, ax: Axes | None = None) -> ClusterStabilityDisplay:
        """Draw the heat map.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to draw on; None makes a figure.

        Returns
        -------
        display : ClusterStabilityDisplay
            This display.
        """
        found = self.stability
        ax = self._take_axes(ax)
        self.order_ = order = np.lexsort((-found.client_certainty, found.labels))
        self.image_ = heat_map(ax, found.co_membership, order, found.groups, vmin=0, vmax=1)
        for edge in np.cumsum(np.bincount(found.labels))[:-1] - 0.5:
            ax.axhline(edge, color="w", linewidth=1)
            ax.axvline(edge, color="w", linewidth=1)
        self.figure_.colorbar(self.image_, ax=ax, label="share of fits in one cluster")
        ax.set_title(
            f"mean ARI {found.ari:.2f}, {100 * found.unsure:.0f} % of the pairs unsure", fontsize=9
        )
        return self


def heat_map(ax: Axes, matrix: ArrayLike, order: Array, groups: Array, **kwargs: Any) -> Any:
    """Draw a matrix between clients in an order, with their names where they are few."""
    image = ax.imshow(np.asarray(matrix)[np.ix_(order, order)], **kwargs)
    name_clients(ax.xaxis, order, groups, NAMED, rotation=90, fontsize=6)
    name_clients(ax.yaxis, order, groups, NAMED, fontsize=6)
    return image
