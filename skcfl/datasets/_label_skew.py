"""Partitions in which clusters differ by how many rows of each class they have."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.utils import Bunch
from sklearn.utils._param_validation import StrOptions

from skcfl._checks import Count, Interval, about, real_array
from skcfl._typing import Array, ArrayLike, MatrixLike, RandomState, Sizes, validate_params
from skcfl.datasets._deal import (
    CLIENT_ID,
    CLUSTERS,
    PARTITION,
    Deal,
    deal_strata,
    dirichlet,
    round_counts,
    top_up,
)
from skcfl.datasets._layout import COUNT, MOST

_COUNT = [Count(0, MOST)]
# Beyond, Dirichlet draws are equal shares to the last digit.
_ALPHA = [Interval(Real, 0, 1e15, closed="right")]


@validate_params(
    PARTITION
    | CLUSTERS
    | {
        "n_unique": _COUNT,
        "n_shared": _COUNT,
        "sharing": [StrOptions({"common", "pairwise"})],
        "cluster_classes": [list, tuple, np.ndarray, None],
        "alpha": [*_ALPHA, None],
    }
)
def partition_label_skew(
    X: MatrixLike,
    y: ArrayLike,
    n_clusters: int = 5,
    clients_per_cluster: int | ArrayLike = 5,
    *,
    n_unique: int = 2,
    n_shared: int = 0,
    sharing: Literal["common", "pairwise"] = "common",
    cluster_classes: Sequence[ArrayLike] | None = None,
    alpha: float | None = None,
    samples_per_client: Sizes | None = None,
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Label skew: the clients of a cluster own some of the classes only.

    Every client owns exactly ``n_unique + n_shared`` classes, those of its cluster, in equal
    numbers of rows (up to one).

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
    n_unique : int, default=2
        Number of classes that only this cluster owns (see `sharing`).
    n_shared : int, default=0
        Number of classes that are shared.
    sharing : {"common", "pairwise"}, default="common"
        How clusters share classes:

        - "common": `n_shared` classes belong to all clusters, and each cluster has `n_unique` of
          its own, so that ``n_shared + n_clusters * n_unique`` classes are needed;
        - "pairwise": the clusters own different sets of ``n_unique + n_shared`` classes, of which
          any two have at least `n_shared` in common. This is the rule of CLoVE [1]_ and needs
          fewer classes.
    cluster_classes : sequence of n_clusters sequences of classes, or None, default=None
        The classes of each cluster themselves; `n_unique`, `n_shared` and `sharing` are then not
        used.
    alpha : float or None, default=None
        If given, the rows of a class in a cluster are shared among the cluster's clients by
        Dirichlet(alpha), so that sizes are ragged with the mean `samples_per_client`, and a client
        may miss some of its cluster's classes. The cluster's totals stay, and so do the clusters.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_iid`. None takes the largest size, equal for all,
        that the classes have rows for; some rows are then left over.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same federation,
        provided that they have the same classes.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_iid`, and

        - classes : ndarray of shape (n_classes,), the sorted classes of `y`
        - cluster_classes : list of n_clusters ndarrays, the sorted classes of each cluster

    Raises
    ------
    ValueError
        If there are too few classes, or too few rows of a class, or a parameter is out of its
        range.

    Notes
    -----
    CLoVE, 10 classes, ``samples_per_client=500``:

    - *label skew 1* (Tables 1, 2 and 4): the defaults, two classes per cluster and no overlap;
    - *label skew 2* (the same tables): the paper's U = 4 classes per cluster, V = 2 of them shared
      by any two, is ``n_unique=2, n_shared=2, sharing="pairwise"`` (AG News: U = 2, V = 1 is
      ``n_unique=1, n_shared=1``);
    - unsupervised, one digit per cluster (Table 5, Figures 2, 4 and 5): ``n_clusters=10,
      n_unique=1``.

    GTV [2]_, Section VI-C: ``cluster_classes=[[0, 1], [2, 3]]``, 20 clients each of 500 rows.

    References
    ----------
    .. [1] Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated
       learning through clustering of loss vector embeddings", 2025.
    .. [2] SarcheshmehPour, Tian, Zhang, Jung, "Clustered federated learning via generalized total
       variation minimization", IEEE Transactions on Signal Processing, 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skcfl.datasets import partition_label_skew
    >>> X, y = load_digits(return_X_y=True)
    >>> data = partition_label_skew(X, y, n_clusters=5, random_state=0)
    >>> sorted(label for held in data.cluster_classes for label in held.tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> data = partition_label_skew(X, y, 2, cluster_classes=[[0, 1], [2, 3]], random_state=0)
    >>> [held.tolist() for held in data.cluster_classes]
    [[0, 1], [2, 3]]
    """
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state)
    deal.among(clients_per_cluster, n_clusters, id_format)
    classes, rng = deal.classes, deal.rng
    n_classes = len(classes)
    if cluster_classes is not None:
        owned = _check_cluster_classes(cluster_classes, classes, n_clusters)
    elif n_unique + n_shared == 0:
        raise ValueError("n_unique + n_shared must be at least 1, got 0.")
    elif sharing == "common":
        owned = _common_classes(n_clusters, n_unique, n_shared, n_classes, rng)
    else:
        owned = _pairwise_classes(n_clusters, n_unique, n_shared, n_classes, rng)
    sizes = owned.sum(axis=1, keepdims=True)
    dealt = deal.by_class(owned / sizes, alpha, at_least=int(sizes.max()))
    return deal.bunch(dealt, classes=classes, cluster_classes=[classes[mask] for mask in owned])


def _check_cluster_classes(
    cluster_classes: Sequence[ArrayLike], classes: Array, n_clusters: int
) -> Array:
    """Classes of each cluster -> bool (n_clusters, n_classes)."""
    if isinstance(cluster_classes, np.ndarray) and not cluster_classes.ndim:
        raise ValueError(
            f"cluster_classes must have one entry per cluster, got {cluster_classes}."
        )
    if len(cluster_classes) != n_clusters:
        raise ValueError(
            f"cluster_classes must have n_clusters={n_clusters} entries, got "
            f"{len(cluster_classes)}."
        )
    owned = np.zeros((n_clusters, len(classes)), dtype=bool)
    for k, held in enumerate(cluster_classes):
        with about("cluster_classes"):
            held = np.asarray(held)
            unknown = np.setdiff1d(held, classes)
        if held.ndim != 1 or not len(held) or len(unknown):
            raise ValueError(
                f"cluster_classes[{k}] must be a non-empty list of classes of y, got "
                f"{held.tolist()!r}."
            )
        owned[k, np.searchsorted(classes, held)] = True
    return owned


def _common_classes(
    n_clusters: int, n_unique: int, n_shared: int, n_classes: int, rng: np.random.RandomState
) -> Array:
    """Random class sets with n_shared classes in all of them and n_unique in one only."""
    needed = n_shared + n_clusters * n_unique
    if needed > n_classes:
        raise ValueError(
            f"n_unique={n_unique} and n_shared={n_shared} need {needed} classes for "
            f"{n_clusters} clusters, y has {n_classes}: lower them, or set sharing='pairwise'."
        )
    if n_unique == 0 and n_clusters > 1:
        raise ValueError("n_unique must be positive for clusters to differ, got 0.")
    drawn = rng.permutation(n_classes)
    owned = np.zeros((n_clusters, n_classes), dtype=bool)
    owned[:, drawn[:n_shared]] = True
    unique = drawn[n_shared:needed].reshape(n_clusters, n_unique)
    np.put_along_axis(owned, unique, True, axis=1)
    return owned


def _pairwise_classes(
    n_clusters: int, n_unique: int, n_shared: int, n_classes: int, rng: np.random.RandomState
) -> Array:
    """Random different class sets of equal size, any two with at least n_shared in common."""
    size = n_unique + n_shared
    if size > n_classes:
        raise ValueError(
            f"n_unique={n_unique} and n_shared={n_shared} are {size} classes per cluster, y has "
            f"{n_classes}."
        )
    for _ in range(100):
        owned = np.zeros((0, n_classes), dtype=bool)
        for _ in range(50 * n_clusters):
            mask = np.zeros(n_classes, dtype=bool)
            mask[rng.permutation(n_classes)[:size]] = True
            common = (owned & mask).sum(axis=1)
            if np.all((common >= n_shared) & (common < size)):
                owned = np.vstack([owned, mask])
            if len(owned) == n_clusters:
                return owned
    raise ValueError(
        f"no {n_clusters} different sets of {size} of {n_classes} classes were found of which any "
        f"two share at least {n_shared}: change n_clusters, n_unique or n_shared, or pass "
        "cluster_classes."
    )


@validate_params(
    PARTITION
    | CLUSTERS
    | {
        "last_complete": ["boolean"],
        "missing_classes": ["array-like", None],
        "alpha": [*_ALPHA, None],
    }
)
def partition_missing_class(
    X: MatrixLike,
    y: ArrayLike,
    n_clusters: int = 5,
    clients_per_cluster: int | ArrayLike = 5,
    *,
    last_complete: bool = True,
    missing_classes: ArrayLike | None = None,
    alpha: float | None = None,
    samples_per_client: Sizes | None = None,
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Label skew with large overlap: each cluster misses one class, the last one none.

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
    last_complete : bool, default=True
        True if the last cluster owns all classes.
    missing_classes : array-like of shape (n_missing,) or None, default=None
        The class that each of the other clusters misses; None draws different ones. `n_missing` is
        ``n_clusters - last_complete``.
    alpha : float or None, default=None
        If given, the rows of a class in a cluster are shared among the cluster's clients by
        Dirichlet(alpha), as in :func:`partition_label_skew`.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_label_skew`.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same federation,
        provided that they have the same classes.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_label_skew`, and

        - missing_classes : ndarray of shape (n_missing,)

    Raises
    ------
    ValueError
        If there are too few classes, or too few rows of a class, or a parameter is out of its
        range.

    Notes
    -----
    CLoVE's [1]_ *label skew 3* (Tables 7 to 9) and the data of its ablations (Table 12): the
    defaults with ``alpha=0.5``.

    References
    ----------
    .. [1] Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated
       learning through clustering of loss vector embeddings", 2025,
       Appendices C.1.2 and C.3.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skcfl.datasets import partition_missing_class
    >>> X, y = load_digits(return_X_y=True)
    >>> data = partition_missing_class(X, y, alpha=0.5, random_state=0)
    >>> [len(held) for held in data.cluster_classes]
    [9, 9, 9, 9, 10]
    """
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state)
    deal.among(clients_per_cluster, n_clusters, id_format)
    classes = deal.classes
    missing = _one_class_a_cluster(
        missing_classes, "missing_classes", n_clusters - last_complete, classes, deal.rng
    )
    owned = np.ones((n_clusters, len(classes)), dtype=bool)
    owned[np.arange(len(missing)), missing] = False
    if not owned.any(axis=1).all():
        raise ValueError("y must have at least two classes for a cluster to miss one, got 1.")
    return deal.bunch(
        deal.by_class(owned / owned.sum(axis=1, keepdims=True), alpha),
        classes=classes,
        cluster_classes=[classes[mask] for mask in owned],
        missing_classes=classes[missing],
    )


def _one_class_a_cluster(
    given: Any, name: str, n_clusters: int, classes: Array, rng: np.random.RandomState
) -> Array:
    """Codes of different classes, one per cluster, given or drawn."""
    if n_clusters > len(classes):
        raise ValueError(
            f"{name} must be different for the {n_clusters} clusters, but y has {len(classes)} "
            "classes: lower n_clusters."
        )
    if given is None:
        return rng.permutation(len(classes))[:n_clusters]
    with about(name):
        given = np.asarray(given)
        different = given.shape == (n_clusters,) and len(np.unique(given)) == n_clusters
        unknown = np.setdiff1d(given, classes)
    if not different:
        raise ValueError(f"{name} must be {n_clusters} different classes, got {given.tolist()!r}.")
    if len(unknown):
        raise ValueError(f"{name} must be classes of y, got {unknown.tolist()!r}, which are not.")
    return np.searchsorted(classes, given)


@validate_params(
    PARTITION
    | CLUSTERS
    | {
        "fraction": [Interval(Real, 0, 1, closed="both")],
        "dominant_classes": ["array-like", None],
        "alpha": [*_ALPHA, None],
    }
)
def partition_dominant_class(
    X: MatrixLike,
    y: ArrayLike,
    n_clusters: int = 5,
    clients_per_cluster: int | ArrayLike = 5,
    *,
    fraction: float = 2 / 3,
    dominant_classes: ArrayLike | None = None,
    alpha: float | None = None,
    samples_per_client: Sizes | None = None,
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Label skew with a dominant class: some of a client's rows are of one class, the rest mixed.

    A fraction of the rows of a client is of its cluster's dominant class; the rest is spread
    evenly over all classes (the dominant one included).

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (n_rows, ...)
        Rows to split.
    y : array-like of shape (n_rows,)
        Classes, of any kind.
    n_clusters : int, default=5
        Number of clusters, at most the number of classes.
    clients_per_cluster : int or array-like of shape (n_clusters,), default=5
        Number of clients in each cluster.
    fraction : float, default=2/3
        Fraction of the rows of the dominant class. The default is CLoVE's: its s = 1 - `fraction`
        is one third.
    dominant_classes : array-like of shape (n_clusters,) or None, default=None
        The dominant class of each cluster; None draws different ones.
    alpha : float or None, default=None
        If given, the rows of a class in a cluster are shared among the cluster's clients by
        Dirichlet(alpha), as in :func:`partition_label_skew`.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        Rows of a client, as in :func:`partition_label_skew`.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same federation,
        provided that they have the same classes.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_iid`, and

        - classes : ndarray of shape (n_classes,), the sorted classes of `y`
        - dominant_classes : ndarray of shape (n_clusters,)

    Raises
    ------
    ValueError
        If there are too few classes, or too few rows of a class, or a parameter is out of its
        range.

    Notes
    -----
    CLoVE's [1]_ *label skew 4* (Tables 7 to 9): the defaults with ``samples_per_client=500,
    alpha=0.5``.

    References
    ----------
    .. [1] Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated
       learning through clustering of loss vector embeddings", 2025,
       Appendix C.1.2; the idea is of Xu, Tong, Huang, "Personalized federated learning with
       feature alignment and classifier collaboration", ICLR 2023.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skcfl.datasets import partition_dominant_class
    >>> X, y = load_digits(return_X_y=True)
    >>> data = partition_dominant_class(
    ...     X, y, 3, 2, fraction=0.5, samples_per_client=40, random_state=0
    ... )
    >>> mine = data.y[data.groups == "client00"]
    >>> int((mine == data.dominant_classes[data.labels[0]]).sum())
    22
    """
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state)
    deal.among(clients_per_cluster, n_clusters, id_format)
    given, classes = (dominant_classes, "dominant_classes", n_clusters), deal.classes
    dominant = _one_class_a_cluster(*given, classes, deal.rng)
    weights = np.full((n_clusters, len(classes)), (1 - fraction) / len(classes))
    weights[np.arange(n_clusters), dominant] += fraction
    dealt = deal.by_class(weights, alpha)
    return deal.bunch(dealt, classes=classes, dominant_classes=classes[dominant])


@validate_params(
    PARTITION
    | CLUSTERS
    | {"alpha": _ALPHA, "proportions": ["array-like", None], "min_samples": COUNT}
)
def partition_dirichlet(
    X: MatrixLike,
    y: ArrayLike,
    n_clusters: int = 5,
    clients_per_cluster: int | ArrayLike = 5,
    *,
    alpha: float = 0.5,
    proportions: ArrayLike | None = None,
    min_samples: int = 1,
    samples_per_client: Sizes | None = None,
    replace: bool = False,
    id_format: str | None = CLIENT_ID,
    shuffle: bool = True,
    random_state: RandomState = None,
) -> Bunch:
    """Label skew by Dirichlet draws: clusters (or clients) differ in the shares of the classes.

    The usual benchmark of skewed labels has no clusters, every client its own proportions; that is
    ``clients_per_cluster=1`` with `n_clusters` the number of clients.

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (n_rows, ...)
        Rows to split.
    y : array-like of shape (n_rows,)
        Classes, of any kind.
    n_clusters : int, default=5
        Number of clusters.
    clients_per_cluster : int or array-like of shape (n_clusters,), default=5
        Number of clients in each cluster; 1 skews every client by itself.
    alpha : float, default=0.5
        Concentration: small is very skewed, large is even. .5 is the value most studies use.
    proportions : array-like of shape (n_clusters, n_classes) or None, default=None
        Class proportions of each cluster (rows sum to 1) instead of drawn ones; needs
        `samples_per_client`.
    min_samples : int, default=1
        Least number of rows of a client if `samples_per_client` is None. Clients with less get
        rows from the largest ones.
    samples_per_client : int, tuple (low, high) or array-like of shape (n_clients,), default=None
        None uses all rows: the rows of each class are shared among the clusters by
        Dirichlet(alpha) [1]_ and evenly among the clients of a cluster, so that sizes are ragged.
        Otherwise sizes are as in :func:`partition_iid` and each cluster draws its proportions of
        the classes from Dirichlet(alpha) [2]_; a class may then have too few rows, which is an
        error.
    replace : bool, default=False
        True if different clients may get the same row. No client ever gets a row twice.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids, as in :func:`partition_iid`.
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws. The same seed gives other rows (e.g. the test set) the same federation,
        provided that they have the same classes.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes of :func:`partition_iid`, and

        - classes : ndarray of shape (n_classes,), the sorted classes of `y`
        - proportions : ndarray of shape (n_clusters, n_classes), the drawn shares: of a class over
          the clusters (columns sum to 1) if `samples_per_client` is None, else of a cluster over
          the classes (rows sum to 1)

    Raises
    ------
    ValueError
        If there are too few rows (of a class), or a parameter is out of its range.

    References
    ----------
    .. [1] Yurochkin et al., "Bayesian nonparametric federated learning of neural networks", ICML
       2019.
    .. [2] Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated
       visual classification", 2019.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from skcfl.datasets import partition_dirichlet
    >>> X, y = load_digits(return_X_y=True)
    >>> data = partition_dirichlet(X, y, n_clusters=4, clients_per_cluster=3, random_state=0)
    >>> len(data.y), data.labels.shape, data.proportions.shape
    (1797, (12,), (4, 10))
    """
    deal = Deal(X, y, samples_per_client, replace, shuffle, random_state)
    deal.among(clients_per_cluster, n_clusters, id_format)
    classes, layout, rng = deal.classes, deal.layout, deal.rng
    if samples_per_client is not None:
        if proportions is None:
            proportions = dirichlet(alpha, len(classes), n_clusters, rng)
        else:
            proportions = _check_proportions(proportions, (n_clusters, len(classes)))
        dealt = deal.by_class(proportions)
    else:
        if replace or proportions is not None:
            raise ValueError(
                "samples_per_client must be given when proportions are given or replace=True, got "
                "None."
            )
        if len(deal.y) < min_samples * layout.n_clients:
            raise ValueError(
                f"y has {len(deal.y)} rows, too few for {layout.n_clients} clients with "
                f"min_samples={min_samples}."
            )
        proportions = dirichlet(alpha, n_clusters, len(classes), rng).T
        totals = np.bincount(deal.codes, minlength=len(classes))
        by_cluster = round_counts(proportions.T, totals, rng.uniform(size=proportions.T.shape)).T
        counts = np.zeros((layout.n_clients, len(classes)), dtype=int)
        for k in range(n_clusters):
            clients = np.flatnonzero(layout.clusters == k)
            even = np.full((len(classes), len(clients)), 1 / len(clients))
            counts[clients] = round_counts(even, by_cluster[k], rng.uniform(size=even.shape)).T
        top_up(counts, layout, min_samples, same_cluster=False)
        dealt = deal_strata(deal.strata, counts, replace, rng)
    return deal.bunch(dealt, classes=classes, proportions=proportions)


def _check_proportions(proportions: Any, shape: tuple[int, ...]) -> Array:
    array = real_array(proportions, "proportions")
    if (
        array.shape != shape
        or not np.all(array >= 0)
        or not np.allclose(array.sum(axis=1), 1, atol=1e-6)
    ):
        raise ValueError(
            f"proportions must be a non-negative array of shape {shape} whose rows sum to 1, got "
            f"{proportions!r}."
        )
    return array / array.sum(axis=1, keepdims=True)
