"""Partitions that deal rows whatever their class, and then change features or labels by cluster.

Every partition, here and in _label_skew.py, draws in this order: which client is in which cluster;
the design (the swaps, classes or proportions of each cluster); the sizes; the rows. So one
``random_state`` gives training and test rows the same federation.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.utils import Bunch, check_array
from sklearn.utils._param_validation import StrOptions

from skcfl._checks import about
from skcfl._typing import Array, ArrayLike, MatrixLike, RandomState, Sizes, validate_params
from skcfl.datasets._deal import CLIENT_ID, CLUSTERS, PARTITION, Deal
from skcfl.datasets._layout import COUNT

ROTATION_ID = "rot{angle:03d}-client{member:0{width}d}"

COPIES = {"copies": [StrOptions({"one", "all"})]}


@validate_params(PARTITION | {"n_clients": COUNT})
def partition_iid(
    X: MatrixLike,
    y: ArrayLike,
    n_clients: int = 10,
    *,
    samples_per_client: Sizes | None = None,
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Split rows among clients at random: one cluster, the setting of FedAvg.

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (n_rows, ...)
        Rows to split.
    y : array-like of shape (n_rows,)
        Target, of any kind.
    n_clients : int, default=10
        Number of clients.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client: the same for all, drawn for each from the range (both ends included), or
        given in the order of ``np.unique(groups)``. None splits all rows as evenly as possible.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids. Fields: ``client`` (number), ``cluster``, ``member`` (number
        inside the cluster) and ``width`` (digits of the largest client number, at least 2). None
        gives the integers 0, 1, ...
    shuffle : bool, default=True
        True if rows are returned in random order; otherwise sorted by client. Which rows a client
        gets is random in any case.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        - X : the rows, of the type of `X` (sparse: CSR)
        - y : ndarray of shape (n_out,)
        - groups : ndarray of shape (n_out,), the client of each row
        - labels : ndarray of shape (n_clients,), the true cluster of each client, in the order of
          ``np.unique(groups)``; all 0 here
        - index : ndarray of shape (n_out,), the row of `X` that each row was

    Raises
    ------
    ValueError
        If there are too few rows or a parameter is out of its range.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skcfl.datasets import partition_iid
    >>> X, y = load_iris(return_X_y=True)
    >>> data = partition_iid(X, y, n_clients=4, random_state=0)
    >>> data.X.shape, sorted(set(data.groups.tolist()))
    ((150, 4), ['client00', 'client01', 'client02', 'client03'])
    """
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state, of_classes=False)
    deal.among(n_clients, 1, id_format)
    return deal.bunch(deal.any_rows())


@validate_params(
    {"X": "no_validation", "angle": [Integral, "array-like"], "image_shape": [tuple, list, None]}
)
def rotate_images(
    X: ArrayLike, angle: int | ArrayLike, *, image_shape: tuple[int, ...] | None = None
) -> Array:
    """Rotate images counter-clockwise by multiples of 90 degrees.

    Parameters
    ----------
    X : array-like of shape (n_images, n_pixels), (n_images, height, width) or \
(n_images, height, width, n_channels)
        Images; flat ones are in row-major order.
    angle : int or array-like of shape (n_images,)
        Angle in degrees, a multiple of 90 of either sign, for all images or for each.
    image_shape : tuple (height, width) or (height, width, n_channels), default=None
        Shape of flat images; None means square with one channel.

    Returns
    -------
    rotated : ndarray
        New array of the dtype of `X` and, for square images, its shape. Images that are not square
        turn from height x width to width x height at odd multiples, so all have to turn alike.

    Raises
    ------
    ValueError
        If an angle is no multiple of 90, or the shape of the images is not known or does not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.datasets import rotate_images
    >>> rotate_images(np.array([[1, 2, 3, 4]]), 90)
    array([[2, 4, 1, 3]])
    """
    with about("X"):
        X = check_array(X, allow_nd=True, dtype=None, ensure_all_finite=False)
    with about("angle"):
        angles = np.asarray(angle)
    if angles.dtype.kind not in "iu" or np.any(angles % 90):
        raise ValueError(f"angle must be a multiple of 90 degrees (int), got {angle!r}.")
    if angles.ndim and angles.shape != (len(X),):
        raise ValueError(
            f"angle must be an int or have one entry an image ({len(X)}), got shape "
            f"{angles.shape}."
        )
    images = X.reshape(len(X), *_image_shape(X, image_shape))
    turns = np.broadcast_to((angles // 90) % 4, len(X))
    if images.shape[1] != images.shape[2] and len(np.unique(turns % 2)) > 1:
        raise ValueError(
            f"images of shape {images.shape[1:3]} that are not square can be turned by odd and "
            "even multiples of 90 degrees only separately."
        )
    shape = np.rot90(images[:1], int(turns[0]), axes=(1, 2)).shape[1:]
    rotated = np.empty((len(X), *shape), dtype=X.dtype)
    for turn in np.unique(turns):
        mine = turns == turn
        rotated[mine] = np.rot90(images[mine], int(turn), axes=(1, 2))
    return rotated.reshape(X.shape) if X.ndim == 2 else rotated


def _image_shape(X: Any, image_shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Shape of one image."""
    if X.ndim > 4:
        raise ValueError(f"X must be images in 2, 3 or 4 dimensions, got {X.ndim}.")
    if X.ndim > 2:
        if image_shape is not None and tuple(image_shape) != X.shape[1:]:
            raise ValueError(f"image_shape={image_shape!r} does not fit X of shape {X.shape}.")
        return X.shape[1:]
    n_pixels = X.shape[1]
    if image_shape is None:
        side = round(n_pixels**0.5)
        if side * side != n_pixels:
            raise ValueError(
                f"image_shape must be given: {n_pixels} columns are not the pixels of a square "
                "image."
            )
        return side, side
    if (
        len(image_shape) not in (2, 3)
        or not all(isinstance(size, Integral) and size > 0 for size in image_shape)
        or np.prod(image_shape) != n_pixels
    ):
        raise ValueError(
            f"image_shape must be (height, width) or (height, width, n_channels) with {n_pixels} "
            f"entries in all, as X has columns; got {image_shape!r}."
        )
    return tuple(image_shape)


def check_angles(angles: ArrayLike, name: str) -> Array:
    """Different multiples of 90 degrees, in 0..359."""
    with about(name):
        array = np.asarray(angles)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "iu" or np.any(array % 90):
        raise ValueError(f"{name} must be multiples of 90 degrees (int), got {angles!r}.")
    array = array % 360
    if len(np.unique(array)) < len(array):
        raise ValueError(f"{name} must be different modulo 360 degrees, got {angles!r}.")
    return array


@validate_params(
    PARTITION
    | COPIES
    | {
        "clients_per_cluster": CLUSTERS["clients_per_cluster"],
        "angles": ["array-like"],
        "image_shape": [tuple, list, None],
    }
)
def partition_rotations(
    X: ArrayLike,
    y: ArrayLike,
    angles: ArrayLike = (0, 90, 180, 270),
    clients_per_cluster: int | ArrayLike = 5,
    *,
    samples_per_client: Sizes | None = None,
    copies: Literal["one", "all"] = "one",
    replace: bool = False,
    image_shape: tuple[int, ...] | None = None,
    id_format: str | None = ROTATION_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Feature skew by rotation: all images of a cluster's clients are turned by one angle.

    Rotated MNIST and CIFAR of IFCA [1]_, Section 6.2, and the feature skew of CLoVE [2]_.

    Parameters
    ----------
    X : array-like of shape (n_rows, n_pixels), (n_rows, height, width) or \
(n_rows, height, width, n_channels)
        Images, square unless all angles are multiples of 180.
    y : array-like of shape (n_rows,)
        Target, of any kind.
    angles : array-like of shape (n_clusters,), default=(0, 90, 180, 270)
        Angle of each cluster in degrees, counter-clockwise: different multiples of 90.
    clients_per_cluster : int or array-like of shape (n_clusters,), default=5
        Number of clients in each cluster.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_iid`. None uses all rows.
    copies : {"one", "all"}, default="one"
        "one": an image is in one rotation only. "all": in all of them, once each, as IFCA does.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    image_shape : tuple (height, width) or (height, width, n_channels), default=None
        Shape of flat images; None means square with one channel.
    id_format : str or None, default="rot{angle:03d}-client{member:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`, with the field ``angle``.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to client numbers at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same clients, of
        the same clusters.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_iid` (X rotated, an ndarray), and

        - angles : ndarray of shape (n_clusters,), the angle of each cluster, in 0..359

    Raises
    ------
    ValueError
        If there are too few rows, the images' shape is not known, or a parameter is out of its
        range.

    Notes
    -----
    IFCA's Table 1: ``copies="all"`` on MNIST with ``clients_per_cluster=1200,
    samples_per_client=50`` (600 and 100, 300 and 200), and ``angles=(0, 180)`` on CIFAR.
    CLoVE's *feature skew* (Tables 1, 2 and 4): the defaults with ``samples_per_client=500`` on
    MNIST.

    References
    ----------
    .. [1] Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated
       learning", NeurIPS 2020.
    .. [2] Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated
       learning through clustering of loss vector embeddings", 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skcfl.datasets import partition_rotations
    >>> X, y = load_digits(return_X_y=True)
    >>> data = partition_rotations(X, y, (0, 180), clients_per_cluster=2, random_state=0)
    >>> sorted(set(data.groups.tolist()))
    ['rot000-client00', 'rot000-client01', 'rot180-client00', 'rot180-client01']
    >>> data.labels.tolist(), len(data.y)
    ([0, 0, 1, 1], 1797)
    """
    with about("X"):
        X = check_array(X, allow_nd=True, dtype=None, ensure_all_finite=False)
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state, of_classes=False)
    angles = check_angles(angles, "angles")
    height, width = _image_shape(X, image_shape)[:2]
    if height != width and np.any(angles % 180):
        raise ValueError(
            "angles must be multiples of 180 degrees for images that are not square "
            f"({height} x {width}), got {angles.tolist()}."
        )
    deal.among(clients_per_cluster, len(angles), id_format, angle=angles.tolist())
    data = deal.bunch(deal.any_rows(copies), angles=angles)
    data.X = rotate_images(data.X, angles[deal.clusters_of(data)], image_shape=image_shape)
    return data


@validate_params(
    PARTITION
    | CLUSTERS
    | COPIES
    | {"permutations": ["array-like", None], "keep_first": ["boolean"]}
)
def partition_feature_permutations(
    X: MatrixLike,
    y: ArrayLike,
    n_clusters: int = 5,
    clients_per_cluster: int | ArrayLike = 5,
    *,
    permutations: ArrayLike | None = None,
    keep_first: bool = False,
    samples_per_client: Sizes | None = None,
    copies: Literal["one", "all"] = "one",
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Feature skew for any table: each cluster has its own order of the columns.

    For images this is "permuted MNIST"; for tables it stands for clients with columns of unlike
    meaning. Unlike rotations it needs no images, and no angle limits the number of clusters.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (n_rows, n_features)
        Rows to split.
    y : array-like of shape (n_rows,)
        Target, of any kind.
    n_clusters : int, default=5
        Number of clusters.
    clients_per_cluster : int or array-like of shape (n_clusters,), default=5
        Number of clients in each cluster.
    permutations : array-like of shape (n_clusters, n_features) or None, default=None
        Column ``j`` of cluster ``k`` is column ``permutations[k, j]`` of `X`. None draws different
        random ones.
    keep_first : bool, default=False
        True if the first cluster keeps the order of `X`, if the permutations are drawn.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_iid`. None uses all rows.
    copies : {"one", "all"}, default="one"
        "one": a row is in one cluster only. "all": in all of them, once each.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same federation.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_iid` (X permuted; an ndarray or CSR matrix), and

        - permutations : ndarray of shape (n_clusters, n_features)

    Raises
    ------
    ValueError
        If there are too few rows or columns, or a parameter is out of its range.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skcfl.datasets import partition_feature_permutations
    >>> X, y = load_iris(return_X_y=True)
    >>> data = partition_feature_permutations(X, y, 2, 3, keep_first=True, random_state=0)
    >>> data.permutations[0].tolist()
    [0, 1, 2, 3]
    """
    with about("X"):
        X = check_array(X, accept_sparse="csr", dtype=None, ensure_all_finite=False)
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state, of_classes=False)
    deal.among(clients_per_cluster, n_clusters, id_format)
    n_features = X.shape[1]
    if permutations is None:
        permutations = _different_permutations(n_clusters, n_features, keep_first, deal.rng)
    else:
        permutations = _check_permutations(permutations, np.arange(n_features), n_clusters)
    data = deal.bunch(deal.any_rows(copies), permutations=permutations)
    clusters = deal.clusters_of(data)
    if hasattr(X, "tocsr"):
        data.X = _permute_csr(data.X, permutations, clusters)
    else:
        data.X = np.take_along_axis(data.X, permutations[clusters], axis=1)
    return data


def _permute_csr(X: Any, permutations: Any, clusters: Array) -> sparse.csr_array:
    """Permute columns row by row: in CSR that only renames the column of each stored entry."""
    X = X.copy()
    target = np.argsort(permutations, axis=1)  # where each column goes
    entry_cluster = np.repeat(clusters, np.diff(X.indptr))
    X.indices = target[entry_cluster, X.indices].astype(X.indices.dtype)
    X.has_sorted_indices = False
    X.sort_indices()
    return X


def _different_permutations(
    n_clusters: int, size: Any, keep_first: bool, rng: np.random.RandomState
) -> Array:
    """Random permutations of range(size), all different."""
    for _ in range(1000):
        permutations = np.argsort(rng.uniform(size=(n_clusters, size)), axis=1)
        if keep_first:
            permutations[0] = np.arange(size)
        if len(np.unique(permutations, axis=0)) == n_clusters:
            return permutations
    raise ValueError(
        f"n_clusters={n_clusters} different random permutations of {size} items were not found: "
        "have fewer clusters, or pass permutations."
    )


def _check_permutations(permutations: Any, values: Any, n_clusters: int) -> Array:
    """Each row holds each of the sorted ``values`` once."""
    with about("permutations"):
        array = np.asarray(permutations)
    if array.shape != (n_clusters, len(values)) or np.any(np.sort(array, axis=1) != values):
        raise ValueError(
            f"permutations must have the shape (n_clusters, {len(values)}) = "
            f"({n_clusters}, {len(values)}) and hold in each row each of {values.tolist()[:10]}"
            f"{' ...' if len(values) > 10 else ''} once, got {permutations!r}."
        )
    return array


@validate_params(
    PARTITION
    | CLUSTERS
    | COPIES
    | {
        "n_swaps": [*COUNT, StrOptions({"random"})],
        "permutations": ["array-like", None],
        "keep_first": ["boolean"],
    }
)
def partition_label_swaps(
    X: MatrixLike,
    y: ArrayLike,
    n_clusters: int = 5,
    clients_per_cluster: int | ArrayLike = 5,
    *,
    n_swaps: int | Literal["random"] = 2,
    permutations: ArrayLike | None = None,
    keep_first: bool = False,
    samples_per_client: Sizes | None = None,
    copies: Literal["one", "all"] = "one",
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Concept shift: each cluster has its own permutation of the labels.

    In CFL [1]_ two labels are swapped in each cluster (say 1 and 7 in one, 3 and 5 in another), in
    CLoVE [2]_ two pairs; no pair is swapped in two clusters. Rows are dealt at random, so that
    clients differ in the meaning of the labels only.

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (n_rows, ...)
        Rows to split.
    y : array-like of shape (n_rows,)
        Classes, of any kind.
    n_clusters : int, default=5
        Number of clusters.
    clients_per_cluster : int or array-like of shape (n_clusters,), default=5
        Number of clients in each cluster.
    n_swaps : int or "random", default=2
        Number of disjoint pairs of labels that are swapped in each cluster (CLoVE's 2 by default),
        or a different random permutation of all labels in each.
    permutations : array-like of shape (n_clusters, n_classes) or None, default=None
        The permutations themselves: class ``classes[c]`` is called ``permutations[k, c]`` in
        cluster ``k``, where ``classes = np.unique(y)``. None draws them.
    keep_first : bool, default=False
        True if the first cluster keeps the labels as they are, if the permutations are drawn.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_iid`. None uses all rows.
    copies : {"one", "all"}, default="one"
        "one": a row is in one cluster only. "all": in all of them, once each.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same federation.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_iid` (y permuted), and

        - classes : ndarray of shape (n_classes,), the sorted classes of `y`
        - permutations : ndarray of shape (n_clusters, n_classes), as in the parameter

        The labels before the swaps are ``y[data.index]``.

    Raises
    ------
    ValueError
        If there are too few rows, too few classes for the swaps, or a parameter is out of its
        range.

    Notes
    -----
    CLoVE's *concept shift* (Tables 1, 2 and 4): the defaults with ``samples_per_client=500``.
    CFL's label swaps, used by FPFC on MNIST and FMNIST: ``n_clusters=4, n_swaps=1``.

    References
    ----------
    .. [1] Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed
       multitask optimization under privacy constraints", IEEE TNNLS, 2021.
    .. [2] Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated
       learning through clustering of loss vector embeddings", 2025.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skcfl.datasets import partition_label_swaps
    >>> X, y = load_digits(return_X_y=True)
    >>> data = partition_label_swaps(X, y, n_clusters=4, n_swaps=1, random_state=0)
    >>> (data.permutations != data.classes).sum(axis=1).tolist()
    [2, 2, 2, 2]
    """
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state)
    deal.among(clients_per_cluster, n_clusters, id_format)
    classes, rng = deal.classes, deal.rng
    if permutations is not None:
        permutations = _check_permutations(permutations, classes, n_clusters)
        permutations = classes[np.searchsorted(classes, permutations)]
    elif n_swaps == "random":
        permutations = classes[_different_permutations(n_clusters, len(classes), keep_first, rng)]
    else:
        permutations = classes[_swaps(n_clusters, n_swaps, len(classes), keep_first, rng)]
    data = deal.bunch(deal.any_rows(copies), classes=classes, permutations=permutations)
    data.y = permutations[deal.clusters_of(data), deal.codes[data.index]]
    return data


def _swaps(
    n_clusters: int, n_swaps: Any, n_classes: int, keep_first: bool, rng: np.random.RandomState
) -> Array:
    """Permutations of range(n_classes) that swap n_swaps pairs each, no pair twice."""
    if 2 * n_swaps > n_classes:
        raise ValueError(
            f"n_swaps={n_swaps} disjoint pairs need {2 * n_swaps} classes, y has {n_classes}."
        )
    n_swapped = n_clusters - keep_first
    for _ in range(100):
        permutations = np.tile(np.arange(n_classes), (n_clusters, 1))
        k = int(keep_first)
        used: set[Any] = set()
        for _ in range(100 * n_swapped):
            if k == n_clusters:
                return permutations
            pairs = np.sort(rng.permutation(n_classes)[: 2 * n_swaps].reshape(-1, 2), axis=1)
            pairs = set(map(tuple, pairs.tolist()))
            if used & pairs:
                continue
            used |= pairs
            for a, b in pairs:
                permutations[k, [a, b]] = b, a
            k += 1
        if k == n_clusters:
            return permutations
    raise ValueError(
        f"n_clusters={n_clusters} with n_swaps={n_swaps} different pairs each were not found "
        f"among {n_classes} classes: have fewer clusters or swaps, set keep_first=True, or pass "
        "permutations."
    )
