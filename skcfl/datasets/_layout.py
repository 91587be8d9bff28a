"""Who the clients are: their ids, clusters and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from skcfl._checks import Count, about
from skcfl._typing import Array

# Clients, clusters, features and classes; rows; numbers of an array: beyond these federations do
# not fit into memory.
MOST, MOST_ROWS, MOST_NUMBERS = 10**7, 10**8, 10**9

COUNT = [Count(1, MOST)]
ROWS = [Count(1, MOST_ROWS)]


@dataclass(frozen=True)
class Layout:
    """The clients of a federation, in the order of their sorted ids.

    So a client's position here is its position in ``np.unique(groups)``, and ``clusters`` is what
    the public functions return as ``labels``.
    """

    ids: np.ndarray  # (n_clients,), sorted and unique
    clusters: np.ndarray  # (n_clients,), in 0..n_clusters-1
    n_clusters: int

    @property
    def n_clients(self) -> int:
        return len(self.ids)


def make_layout(
    cluster_sizes: Any,
    id_format: str | None,
    shuffle: bool,
    rng: np.random.RandomState,
    **cluster_fields: Any,
) -> Layout:
    """Number the clients, give each its cluster (at random if ``shuffle``) and its id.

    ``cluster_fields`` are further fields for ``id_format``, one entry per cluster (e.g. the
    angle).
    """
    cluster_sizes = np.asarray(cluster_sizes)
    n_clusters, n_clients = len(cluster_sizes), int(cluster_sizes.sum())
    clusters = np.repeat(np.arange(n_clusters), cluster_sizes)
    if shuffle:
        clusters = rng.permutation(clusters)
    if id_format is None:
        return Layout(np.arange(n_clients), clusters, n_clusters)

    order = np.argsort(clusters, kind="stable")
    member = np.empty(n_clients, dtype=int)  # number of the client inside its cluster
    member[order] = np.concatenate([np.arange(size) for size in cluster_sizes])
    width = max(2, len(str(n_clients - 1)))
    try:
        ids = [
            id_format.format(
                client=client,
                member=int(member[client]),
                cluster=int(k),
                width=width,
                **{name: values[k] for name, values in cluster_fields.items()},
            )
            for client, k in enumerate(clusters)
        ]
    except (KeyError, IndexError, ValueError) as error:
        fields = ["client", "member", "cluster", "width", *cluster_fields]
        raise ValueError(
            f"id_format={id_format!r} cannot be filled ({error!r}): its fields are "
            f"{', '.join('{' + field + '}' for field in fields)}."
        ) from error
    ids = np.asarray(ids)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    if np.any(ids[1:] == ids[:-1]):
        raise ValueError(
            f"id_format={id_format!r} gives two clients the same id: use the field {{client}}, or "
            "{cluster} and {member} together."
        )
    return Layout(ids, clusters[order], n_clusters)


def positive_ints(values: Any, length: int, name: str, what: str) -> Array:
    """Check an array of ``length`` positive integers."""
    with about(name):
        array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) != length or array.min() < 1:
        raise ValueError(f"{name} must be {what} ({length} positive integers), got {values!r}.")
    if array.astype(float).sum() > MOST_ROWS:
        raise ValueError(f"{name} asks for {array.astype(float).sum():.3g} in all, too many.")
    return array.astype(np.intp)


def check_numbers(**sizes: Any) -> None:
    """Raise a ValueError if an array of these sizes, by the names of parameters, is too large."""
    count = np.prod([float(size) for size in sizes.values()])
    if count > MOST_NUMBERS:
        asked = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise ValueError(f"{asked} are {count:.3g} numbers, which do not fit into memory.")


def split_clients(
    cluster_sizes: Any, n_clients: int, n_clusters: int, rng: np.random.RandomState
) -> Array:
    """Return the number of clients of each cluster, for the generators."""
    if n_clusters > n_clients:
        raise ValueError(
            f"n_clusters={n_clusters} is more than n_clients={n_clients}: a cluster needs a "
            "client."
        )
    if cluster_sizes is None:
        return even_split(n_clients, n_clusters)
    if isinstance(cluster_sizes, str):  # "random"
        return 1 + rng.multinomial(n_clients - n_clusters, np.full(n_clusters, 1 / n_clusters))
    sizes = positive_ints(cluster_sizes, n_clusters, "cluster_sizes", "one size per cluster")
    if sizes.sum() != n_clients:
        raise ValueError(
            f"cluster_sizes must sum to n_clients={n_clients}, got {cluster_sizes!r} with the sum "
            f"{sizes.sum()}."
        )
    return sizes


def clients_of_clusters(clients: Any, n_clusters: int, name: str = "clients_per_cluster") -> Array:
    """Return the number of clients of each cluster, for the partitions."""
    if isinstance(clients, Integral):
        check_numbers(**{name: clients, "n_clusters": n_clusters})
        return np.full(n_clusters, clients)
    return positive_ints(clients, n_clusters, name, "an int or one entry per cluster")


def client_sizes(sizes: Any, n_clients: int, name: str, rng: np.random.RandomState) -> Array:
    """Return the number of rows of each client.

    An int is everybody's size; a *tuple* ``(low, high)`` is a range to draw from, both ends
    included; any other array-like has one entry per client.
    """
    if isinstance(sizes, Integral):
        check_numbers(**{name: sizes, "n_clients": n_clients})
        return np.full(n_clients, sizes)
    if isinstance(sizes, tuple):
        if (
            len(sizes) != 2
            or not all(isinstance(size, Integral) for size in sizes)
            or not 1 <= sizes[0] <= sizes[1] <= MOST_ROWS
        ):
            raise ValueError(
                f"{name} as a tuple must be a range (low, high) of integers with 1 <= low <= "
                f"high, got {sizes!r}."
            )
        check_numbers(**{name: sizes[1], "n_clients": n_clients})
        return rng.randint(sizes[0], sizes[1] + 1, size=n_clients)
    return positive_ints(
        sizes,
        n_clients,
        name,
        "an int, a tuple (low, high), or an array with one entry per client",
    )


def even_split(total: int, parts: int) -> Array:
    """Integers that sum to ``total`` and differ by at most one."""
    return total // parts + (np.arange(parts) < total % parts)
