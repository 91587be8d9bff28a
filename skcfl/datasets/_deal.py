"""Deal rows to clients: draw their numbers of rows of each class, and the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import (
    Bunch,
    _safe_indexing,
    check_consistent_length,
    check_random_state,
    column_or_1d,
)
from sklearn.utils.multiclass import check_classification_targets

from skcfl._checks import about, refuse_masked, refuse_missing
from skcfl._typing import Array, ArrayLike, RandomState, Sizes
from skcfl.datasets._layout import (
    COUNT,
    ROWS,
    client_sizes,
    clients_of_clusters,
    even_split,
    make_layout,
)

if TYPE_CHECKING:
    from skcfl.datasets._layout import Layout

CLIENT_ID = "client{client:0{width}d}"

# Constraints of the parameters that every partition takes.
PARTITION = {
    "X": "no_validation",
    "y": "no_validation",
    "samples_per_client": [*ROWS, "array-like", None],
    "replace": ["boolean"],
    "id_format": [str, None],
    "shuffle": ["boolean"],
    "random_state": ["random_state"],
}
# ... and those with several clusters.
CLUSTERS = {"n_clusters": COUNT, "clients_per_cluster": [*COUNT, "array-like"]}


def check_rows(X: Any, y: Any, classes: bool = True) -> tuple[Any, Array, Any, Any]:
    """Return X that can be indexed by row, y as an array, and the classes with the codes of y."""
    refuse_masked(X, "X")
    refuse_masked(y, "y")
    with about("X"):
        if not hasattr(X, "shape"):
            X = np.asarray(X)
        if not X.shape:
            raise ValueError("X must have rows, got a scalar.")
        if hasattr(X, "tocsr"):
            X = X.tocsr()
    with about("y"), np.errstate(invalid="ignore"):
        y = column_or_1d(y)
        check_consistent_length(X, y)
        if not classes:
            return X, y, None, None
        refuse_missing(y)
        check_classification_targets(y)
        values, codes = np.unique(y, return_inverse=True)
    return X, y, values, codes


def deal_strata(
    strata: list[Array], counts: Array, replace: bool, rng: np.random.RandomState
) -> tuple[Array, Array]:
    """Give client i ``counts[i, s]`` rows of stratum s; return the rows and the client of each.

    Without ``replace`` no row is used twice; with it a row may go to several clients, but never
    twice to the same. The caller has checked that there are enough rows.
    """
    rows, owners = [], []
    for stratum, count in zip(strata, counts.T, strict=True):
        if replace:
            rows += [rng.permutation(stratum)[:size] for size in count]
        else:
            rows.append(rng.permutation(stratum)[: count.sum()])
        owners.append(np.repeat(np.arange(len(count)), count))
    return np.concatenate(rows), np.concatenate(owners)


class Deal:
    """Rows to deal to clients, with what every partition is given.

    Parameters
    ----------
    X, y, samples_per_client, replace, shuffle, random_state
        Parameters of :func:`~skcfl.datasets.partition_iid`.
    of_classes : bool, default=True
        True if the targets have to be classes.
    """

    layout: Layout

    def __init__(
        self,
        X: Any,
        y: Any,
        samples_per_client: Sizes | None,
        replace: bool,
        shuffle: bool,
        random_state: RandomState,
        of_classes: bool = True,
    ) -> None:
        self.rng = check_random_state(random_state)
        self.X, self.y, self.classes, self.codes = check_rows(X, y, of_classes)
        self.samples_per_client, self.replace = samples_per_client, replace
        self.shuffle = shuffle

    def among(self, clients: Any, n_clusters: int, id_format: str | None, **fields: Any) -> None:
        """Lay out the clients of the clusters."""
        sizes = clients_of_clusters(clients, n_clusters)
        self.layout = make_layout(sizes, id_format, self.shuffle, self.rng, **fields)

    def bunch(self, dealt: tuple[Array, Array], **reference: Any) -> Bunch:
        """The federation of the rows and their clients."""
        rows, owner = dealt
        order = self.rng.permutation(len(rows)) if self.shuffle else np.lexsort((rows, owner))
        rows, owner = rows[order], owner[order]
        return Bunch(
            X=_safe_indexing(self.X, rows),
            y=self.y[rows],
            groups=self.layout.ids[owner],
            labels=self.layout.clusters,
            index=rows,
            **reference,
        )

    def clusters_of(self, data: Bunch) -> Array:
        """Cluster of each row of the federation."""
        return self.layout.clusters[np.searchsorted(self.layout.ids, data.groups)]

    def _sizes(self) -> Array | None:
        """Rows of each client, None where as many as there are."""
        if self.samples_per_client is None:
            if self.replace:
                raise ValueError("samples_per_client must be given when replace=True, got None.")
            return None
        given = self.samples_per_client, self.layout.n_clients
        return client_sizes(*given, "samples_per_client", self.rng)

    def any_rows(self, copies: str = "one") -> tuple[Array, Array]:
        """Rows of any class and their clients: all or, with copies="all", all in each cluster."""
        n_rows, layout, sizes = len(self.y), self.layout, self._sizes()
        if copies == "one":
            pools = [np.arange(layout.n_clients)]
        else:
            pools = [np.flatnonzero(layout.clusters == k) for k in range(layout.n_clusters)]
        if sizes is None:
            if n_rows < max(map(len, pools)):
                raise ValueError(
                    f"X has {n_rows} rows for {max(map(len, pools))} clients: too few."
                )
            sizes = np.empty(layout.n_clients, dtype=int)
            for clients in pools:
                sizes[clients] = even_split(n_rows, len(clients))
        for clients in pools:
            needed = sizes[clients].max() if self.replace else sizes[clients].sum()
            if needed > n_rows:
                who = "one client" if self.replace else f"{len(clients)} clients"
                raise ValueError(
                    f"samples_per_client={self.samples_per_client!r} asks for {needed} rows for "
                    f"{who}, but X has {n_rows}: lower it"
                    f"{'' if self.replace else ', or have fewer clients'}."
                )
        dealt = []
        for clients in pools:
            counts = np.zeros((layout.n_clients, 1), dtype=int)
            counts[clients, 0] = sizes[clients]
            dealt.append(deal_strata([np.arange(n_rows)], counts, self.replace, self.rng))
        rows, owner = zip(*dealt, strict=True)
        return np.concatenate(rows), np.concatenate(owner)

    def by_class(
        self, weights: Array, alpha: float | None = None, at_least: int = 1
    ) -> tuple[Array, Array]:
        """Rows and their clients: one of cluster k has the classes in proportions ``weights[k]``.

        ``alpha`` then spreads the rows of each class and cluster unevenly over the cluster's
        clients, and ``at_least`` is the least size of a client.
        """
        available = np.bincount(self.codes, minlength=len(self.classes))
        wanted, sizes = weights[self.layout.clusters], self._sizes()
        n_clients = self.layout.n_clients
        if sizes is None:
            ties = self.rng.uniform(size=wanted.shape)
            demand = wanted.sum(axis=0)
            asked = demand > 0
            size = int(np.floor((available[asked] / demand[asked]).min() + 1e-9))
            while size >= at_least:  # rounding may ask for a few rows more than there are
                counts = round_counts(wanted, np.full(n_clients, size), ties)
                if np.all(counts.sum(axis=0) <= available):
                    break
                size -= 1
            else:
                raise ValueError(
                    f"y has too few rows of a class for {n_clients} clients with at least "
                    f"{at_least} rows each: {self._describe(available)}. Have fewer clients, or "
                    "set samples_per_client and replace=True."
                )
        else:
            if sizes.min() < at_least:
                raise ValueError(
                    f"samples_per_client={self.samples_per_client!r} is too small: a client owns "
                    f"{at_least} classes and needs a row of each."
                )
            counts = round_counts(wanted, sizes, self.rng.uniform(size=wanted.shape))
        if alpha is not None:
            counts = _spread(counts, self.layout, alpha, self.rng)
        self._check_enough(counts.max(axis=0) if self.replace else counts.sum(axis=0), available)
        return deal_strata(self.strata, counts, self.replace, self.rng)

    @property
    def strata(self) -> list[Array]:
        """Rows of each class."""
        return [np.flatnonzero(self.codes == code) for code in range(len(self.classes))]

    def _describe(self, counts: Array) -> str:
        """Rows of each class, the first few."""
        text = ", ".join(
            f"{count} of class {label!r}"
            for label, count in zip(self.classes[:5].tolist(), counts.tolist(), strict=False)
        )
        return text + (", ..." if len(self.classes) > 5 else "")

    def _check_enough(self, needed: Array, available: Array) -> None:
        missing = np.flatnonzero(needed > available)
        if len(missing):
            worst = missing[np.argmax((needed - available)[missing])]
            whom = "one client" if self.replace else "all clients"
            raise ValueError(
                f"samples_per_client={self.samples_per_client!r} asks for {needed[worst]} rows of "
                f"class {self.classes.tolist()[worst]!r} for {whom}, but y has "
                f"{available[worst]} (too few rows in {len(missing)} of {len(self.classes)} "
                "classes): lower it"
                + ("." if self.replace else ", have fewer clients, or set replace=True.")
            )


def round_counts(weights: Array, totals: ArrayLike, ties: Array) -> Array:
    """Round ``weights * totals[:, None]`` to integers with rows that sum to ``totals``.

    Rows of ``weights`` sum to 1. Largest remainders are rounded up; ``ties`` (random, of the same
    shape) breaks ties.
    """
    exact = weights * np.asarray(totals)[:, None]
    counts = np.floor(exact + 1e-9).astype(np.intp)
    remainder = np.round(exact - counts, 9)
    order = np.lexsort((ties, -remainder), axis=-1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(weights.shape[1])[None, :], axis=1)
    short = np.asarray(totals) - counts.sum(axis=1)
    return counts + (rank < short[:, None])


def dirichlet(alpha: float, length: int, size: Any, rng: np.random.RandomState) -> Array:
    """Dirichlet draws; one that underflows (tiny alpha) becomes a random corner, its limit."""
    with np.errstate(divide="ignore", invalid="ignore"):
        draws = rng.dirichlet(np.full(length, float(alpha)), size=size)
    corners = np.eye(length)[rng.randint(length, size=size)]
    return np.where(np.isfinite(draws).all(axis=1, keepdims=True), draws, corners)


def _spread(counts: Array, layout: Layout, alpha: float, rng: np.random.RandomState) -> Array:
    """Share the rows of each class and cluster by Dirichlet(alpha) among the cluster's clients.

    The totals of each cluster stay. A client left without rows gets one from the largest client
    of its cluster, of that one's largest class.
    """
    counts = counts.copy()
    for k in range(layout.n_clusters):
        clients = np.flatnonzero(layout.clusters == k)
        totals = counts[clients].sum(axis=0)
        shares = dirichlet(alpha, len(clients), len(totals), rng)
        counts[clients] = round_counts(shares, totals, rng.uniform(size=shares.shape)).T
    top_up(counts, layout, at_least=1)
    return counts


def top_up(counts: Array, layout: Layout, at_least: int, same_cluster: bool = True) -> None:
    """Move rows from the largest clients to those with less than ``at_least``, in place.

    The caller has checked that the donors have enough rows for all.
    """
    sizes = counts.sum(axis=1)
    for poor in np.flatnonzero(sizes < at_least):
        donors = layout.clusters == layout.clusters[poor] if same_cluster else sizes >= 0
        while sizes[poor] < at_least:
            rich = np.argmax(np.where(donors, sizes, -1))
            code = np.argmax(counts[rich])
            counts[rich, code] -= 1
            counts[poor, code] += 1
            sizes[rich] -= 1
            sizes[poor] += 1
