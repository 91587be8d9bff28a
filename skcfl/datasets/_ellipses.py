"""Two classes of points on pairs of ellipses, turned by cluster."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from skcfl._checks import Count, real_array
from skcfl._typing import Array, ArrayLike, Data, RandomState, Sizes, validate_params
from skcfl.datasets._layout import (
    MOST_ROWS,
    ROWS,
    check_numbers,
    client_sizes,
    make_layout,
    split_clients,
)
from skcfl.datasets._synthetic import FEDERATION, NON_NEGATIVE, bunch


@validate_params(
    FEDERATION
    | {
        "n_pool": ROWS,
        "n_test": [Count(0, MOST_ROWS)],
        "semi_axes": ["array-like"],
        "offset": NON_NEGATIVE,
        "angles": ["array-like", None],
        "balanced": ["boolean"],
    }
)
def make_ellipses(
    n_clients: int = 60,
    n_samples: Sizes = 10,
    *,
    n_clusters: int = 3,
    n_pool: int = 200,
    n_test: int = 200,
    semi_axes: tuple[float, float] = (2.6, 0.8),
    offset: float = 1.6,
    angles: ArrayLike | None = None,
    balanced: bool = True,
    cluster_sizes: None | Literal["random"] | ArrayLike = None,
    id_format: str | None = "client{client:0{width}d}",
    shuffle: bool = True,
    random_state: RandomState = None,
    return_X_y_groups: bool = False,
) -> Data:
    """Generate overlapping ellipses in the plane, two classes and a direction for each cluster.

    The data of the convex clustering paper [1]_, Section V. The classes +1 and -1 of cluster ``k``
    are uniform on two ellipses with centres ``+-offset`` on an axis through the origin, turned by
    ``angles[k]``; the ellipses overlap, so that the classes are not separable. Each cluster has a
    pool of `n_pool` rows, half of each class, and each client draws its rows from its cluster's
    pool without replacement: **clients of a cluster may share rows**.

    The paper gives no coordinates; with these defaults its figures are matched: the best linear
    separator is right in 86.5 % of the rows of its cluster, while one model for all is near
    chance.

    Parameters
    ----------
    n_clients : int, default=60
        Number of clients.
    n_samples : int, tuple (low, high) or array-like of shape (n_clients,), default=10
        Rows of a client, at most `n_pool`. The paper's Appendix C has 30 clients with 170 of 200.
    n_clusters : int, default=3
        Number of clusters.
    n_pool : int, default=200
        Rows in each cluster's pool.
    n_test : int, default=200
        Fresh rows for each cluster from the same ellipses, for testing; 0 for none.
    semi_axes : tuple of 2 floats, default=(2.6, 0.8)
        Semi-axes of each ellipse, the first along the line through the two centres.
    offset : float, default=1.6
        Distance of the ellipses' centres from the origin.
    angles : array-like of shape (n_clusters,) or None, default=None
        Angle of each cluster's axis in degrees, pointing to class +1; None spreads them evenly
        over the circle.
    balanced : bool, default=True
        True if half of a client's rows (up to one) is of each class. With False, as the paper has
        it literally, clients of 10 rows can be lopsided, down to one class, and recovery becomes
        fragile.
    cluster_sizes : None, "random" or array-like of shape (n_clusters,), default=None
        Clients in each cluster: equal up to one, at random (at least one each), or as given.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`make_clustered_regression`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.
    return_X_y_groups : bool, default=False
        If True, return ``(X, y, groups)`` instead of the Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes X, y (-1 or 1), groups and labels as in
        :func:`make_clustered_regression`, and

        - coef : ndarray of shape (n_clusters, 2), intercept : ndarray of shape (n_clusters,), the
          unit normals of the best separators, all through the origin
        - X_test : ndarray of shape (n_clusters * n_test, 2), y_test, labels_test : ndarrays of
          shape (n_clusters * n_test,), the test rows, their classes and their clusters
        - index : ndarray of shape (n_rows,), the row's number in its cluster's pool

    (X, y, groups) : tuple
        If `return_X_y_groups`.

    References
    ----------
    .. [1] Armacki, Bajovic, Jakovetic, Kar, "Personalized federated learning via convex
       clustering", 2022, Section V and Appendix C.

    Examples
    --------
    >>> from skcfl.datasets import make_ellipses
    >>> data = make_ellipses(random_state=0)
    >>> data.X.shape, data.X_test.shape
    ((600, 2), (600, 2))
    >>> sorted(set(data.y.tolist()))
    [-1, 1]
    """
    rng = check_random_state(random_state)
    check_numbers(n_clusters=n_clusters, n_pool=n_pool)
    check_numbers(n_clusters=n_clusters, n_test=n_test)
    semi_axes = real_array(semi_axes, "semi_axes", shape=(2,))
    if np.any(semi_axes <= 0):
        raise ValueError(f"semi_axes must be positive, got {semi_axes.tolist()}.")
    if angles is None:
        angles = 360.0 * np.arange(n_clusters) / n_clusters
    angles = np.deg2rad(real_array(angles, "angles", shape=(n_clusters,)))
    axes = np.column_stack([np.cos(angles), np.sin(angles)])
    layout = make_layout(
        split_clients(cluster_sizes, n_clients, n_clusters, rng), id_format, shuffle, rng
    )
    sizes = client_sizes(n_samples, n_clients, "n_samples", rng)
    # How many rows of each class: an odd row too many goes to a random class.
    extra = rng.randint(0, 2, size=n_clients)
    share = np.column_stack([(sizes + extra) // 2, (sizes + 1 - extra) // 2])
    y_pool = np.where(np.arange(n_pool) % 2 == 0, 1, -1)
    strata = [np.flatnonzero(y_pool == label) for label in (1, -1)]
    limit = 2 * min(map(len, strata)) if balanced else n_pool
    if sizes.max() > limit:
        raise ValueError(
            f"n_samples must be at most {limit}, the rows of a pool (n_pool={n_pool}) that one "
            f"client can draw, got {sizes.max()}."
        )

    def draw(y: Any) -> Array:
        return _ellipse_rows(np.tile(y, (n_clusters, 1)), axes, semi_axes, offset, rng)

    pools = draw(y_pool)
    if balanced:
        index = [
            rng.choice(stratum, size=count, replace=False)
            for counts in share
            for stratum, count in zip(strata, counts, strict=True)
        ]
    else:
        index = [rng.choice(n_pool, size=size, replace=False) for size in sizes]
    index = np.concatenate(index)
    owner = np.repeat(np.arange(n_clients), sizes)
    order = rng.permutation(len(owner)) if shuffle else np.lexsort((index, owner))
    index, owner = index[order], owner[order]
    y_test = np.where(np.arange(n_test) % 2 == 0, 1, -1)
    X_test = draw(y_test).reshape(-1, 2)  # last, so that n_test changes nothing else
    return bunch(
        pools[layout.clusters[owner], index],
        y_pool[index],
        layout,
        owner,
        return_X_y_groups,
        coef=axes,
        intercept=np.zeros(n_clusters),
        X_test=X_test,
        y_test=np.tile(y_test, n_clusters),
        labels_test=np.repeat(np.arange(n_clusters), n_test),
        index=index,
    )


def _ellipse_rows(
    y: Any, axes: Array, semi_axes: Any, offset: Any, rng: np.random.RandomState
) -> Array:
    """Points (n_clusters, n, 2), uniform on the ellipse of their class ``y`` (n_clusters, n)."""
    radius = np.sqrt(rng.uniform(size=y.shape))  # uniform by area
    angle = 2 * np.pi * rng.uniform(size=y.shape)
    along = semi_axes[0] * radius * np.cos(angle) + float(offset) * y
    across = semi_axes[1] * radius * np.sin(angle)
    normal = np.column_stack([-axes[:, 1], axes[:, 0]])
    return along[..., None] * axes[:, None] + across[..., None] * normal[:, None]
