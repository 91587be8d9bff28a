"""Synthetic federations with known clusters and true parameters."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.utils import Bunch, check_random_state
from sklearn.utils._param_validation import StrOptions

from skcfl._checks import Count, Interval, real_array
from skcfl._typing import Array, ArrayLike, Data, RandomState, Sizes, validate_params
from skcfl.datasets._layout import (
    COUNT,
    MOST,
    ROWS,
    check_numbers,
    client_sizes,
    make_layout,
    split_clients,
)

if TYPE_CHECKING:
    from skcfl.datasets._layout import Layout

# Products of larger numbers overflow.
NON_NEGATIVE = [Interval(Real, 0, 1e100, closed="both")]
_POSITIVE = [Interval(Real, 1e-100, 1e100, closed="both")]

# Parameters of every generator of this file.
FEDERATION = {
    "n_clients": COUNT,
    "n_clusters": COUNT,
    "n_samples": [*ROWS, "array-like"],
    "cluster_sizes": [StrOptions({"random"}), "array-like", None],
    "id_format": [str, None],
    "shuffle": ["boolean"],
    "random_state": ["random_state"],
    "return_X_y_groups": ["boolean"],
}


def _separated(vectors: Array, separation: float) -> Array:
    """Scale vectors: the nearest two are ``separation`` from each other (one has that norm).

    The distance of vectors of classes (n_clusters, n_classes, size) is the root mean square over
    the classes.
    """
    n_classes = vectors.shape[1] if vectors.ndim == 3 else 1
    flat = vectors.reshape(len(vectors), -1) / np.sqrt(n_classes)
    nearest = pdist(flat).min() if len(flat) > 1 else np.linalg.norm(flat)
    return vectors * (separation / nearest)


def _bernoulli(n_clusters: int, size: Any, rng: np.random.RandomState) -> Array:
    """Different, non-zero vectors of fair 0/1 coordinates."""
    if n_clusters > 2.0**size - 1:
        raise ValueError(
            f"n_clusters={n_clusters} different non-zero vectors of 0 and 1 need more than {size} "
            "informative features."
        )
    vectors: dict[bytes, Array] = {}
    while len(vectors) < n_clusters:
        vector = rng.binomial(1, 0.5, size=size)
        if vector.any():
            vectors.setdefault(vector.tobytes(), vector)
    return np.array(list(vectors.values()), dtype=float)


def _sphere(n_clusters: int, size: Any, separation: float, rng: np.random.RandomState) -> Array:
    """Unit vectors with pairwise distances in [separation, 5 separation], the lower end attained.

    ``cos(phi) u + sin(phi) v_k`` with unit ``v_k`` orthogonal to ``u``: distances are ``sin(phi)
    ||v_k - v_l||``, so phi follows from the nearest pair, and since distances of two ``v`` are at
    most 2 the range holds as soon as the nearest are at .4.
    """
    if size < 2:
        raise ValueError("coef='sphere' needs at least 2 informative features, got 1.")
    if n_clusters == 1:
        vector = rng.standard_normal((1, size))
        return vector / np.linalg.norm(vector)
    for _ in range(1000):
        u = rng.standard_normal(size)
        u /= np.linalg.norm(u)
        v = rng.standard_normal((n_clusters, size))
        v -= np.outer(v @ u, u)
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        nearest = pdist(v).min()
        if nearest >= max(0.4, separation):
            sin = separation / nearest
            return np.sqrt(1 - sin**2) * u + sin * v
    raise ValueError(
        f"no {n_clusters} points on a sphere in {size} dimensions were found whose distances lie "
        f"between separation / radius = {separation:g} and 5 times that: lower separation (it "
        "must stay below about 1.4 radius), use more features or fewer clusters."
    )


def _client_rows(
    n_clients: int,
    n_clusters: int,
    n_samples: Sizes,
    cluster_sizes: Any,
    id_format: str | None,
    shuffle: bool,
    random_state: RandomState,
) -> Any:
    """Return the generator, the layout and the client of each row: the draws before any data."""
    rng = check_random_state(random_state)
    layout = make_layout(
        split_clients(cluster_sizes, n_clients, n_clusters, rng), id_format, shuffle, rng
    )
    sizes = client_sizes(n_samples, n_clients, "n_samples", rng)
    owner = np.repeat(np.arange(n_clients), sizes)
    # A client's rows are independent and alike, so shuffling rows is shuffling their owners.
    return rng, layout, rng.permutation(owner) if shuffle else owner


def _decision(X: Array, coef: Array, intercept: Array, clusters: Array) -> Array:
    """``coef x + intercept`` of each row's cluster: (n_rows,), or (n_rows, n_classes)."""
    decision = np.empty((len(X), *intercept.shape[1:]))
    for k in range(len(coef)):
        mine = clusters == k
        decision[mine] = X[mine] @ coef[k].T + intercept[k]
    return decision


def bunch(
    X: Array, y: Array, layout: Layout, owner: Array, return_X_y_groups: bool, **reference: Any
) -> Any:
    groups = layout.ids[owner]
    if return_X_y_groups:
        return X, y, groups
    return Bunch(X=X, y=y, groups=groups, labels=layout.clusters, **reference)


@validate_params(
    FEDERATION
    | {
        "n_features": COUNT,
        "coef": [StrOptions({"gaussian", "bernoulli", "binary", "sphere"}), "array-like"],
        "separation": _POSITIVE,
        "radius": _POSITIVE,
        "n_informative": [*COUNT, None],
        "bias": [*NON_NEGATIVE, "array-like"],
        "noise": NON_NEGATIVE,
    }
)
def make_clustered_regression(
    n_clients: int = 24,
    n_clusters: int = 3,
    n_features: int = 10,
    *,
    n_samples: Sizes = (20, 60),
    coef: Literal["gaussian", "bernoulli", "binary", "sphere"] | ArrayLike = "gaussian",
    separation: float = 3.0,
    radius: float = 1.0,
    n_informative: int | None = None,
    bias: float | ArrayLike = 0.0,
    noise: float = 0.5,
    cluster_sizes: None | Literal["random"] | ArrayLike = None,
    id_format: str | None = "client{client:0{width}d}",
    shuffle: bool = True,
    random_state: RandomState = None,
    return_X_y_groups: bool = False,
) -> Data:
    """Generate mixed linear regression: clients of a cluster share their linear model.

    Rows are ``x ~ N(0, I)``, ``y = x' coef_k + intercept_k + noise * N(0, 1)`` with ``k`` the
    cluster of the row's client. With the defaults the clusters are well separated: three clusters
    of eight clients with 20 to 60 rows each.

    Parameters
    ----------
    n_clients : int, default=24
        Number of clients.
    n_clusters : int, default=3
        Number of clusters, at most ``n_clients``.
    n_features : int, default=10
        Number of features.
    n_samples : int, tuple (low, high) or array-like of shape (n_clients,), default=(20, 60)
        Rows of a client: the same for all, drawn for each from the range (both ends included; the
        default is ragged because real clients are), or given in the order of
        ``np.unique(groups)``.
    coef : {"gaussian", "bernoulli", "binary", "sphere"} or array-like of shape \
(n_clusters, n_features), default="gaussian"
        The clusters' true coefficients:

        - "gaussian": Gaussian vectors, scaled so that the nearest two are `separation` apart (a
          single one has that norm);
        - "bernoulli": fair 0/1 coordinates, rescaled to the norm `radius`: IFCA [1]_, Section 6.1,
          where `radius` is R;
        - "binary": fair coordinates in {0, `radius`}, not rescaled: GTV [2]_, Section VI-A
          (``radius=.5``), and the scale of the public IFCA code;
        - "sphere": points on the sphere of norm `radius` with pairwise distances between
          `separation` and 5 times that: CLoVE [3]_, Appendix C.1.1, where `separation` is Delta;
        - an array: these coefficients.
    separation : float, default=3.0
        Least distance between two clusters' coefficients, for "gaussian" and "sphere".
    radius : float, default=1.0
        Scale of the coefficients for "bernoulli", "binary" and "sphere".
    n_informative : int, default=None
        Number of features with non-zero coefficients, the same random ones for all clusters; None
        means all.
    bias : float or array-like of shape (n_clusters,), default=0.0
        Standard deviation of the clusters' Gaussian intercepts, or the intercepts themselves.
    noise : float, default=0.5
        Standard deviation of the noise in `y`.
    cluster_sizes : None, "random" or array-like of shape (n_clusters,), default=None
        Clients in each cluster: equal up to one, at random (at least one each), or as given.
    id_format : str or None, default="client{client:0{width}d}"
        Format of the clients' ids. Fields: ``client`` (number), ``cluster``, ``member`` (number
        inside the cluster) and ``width`` (digits of the largest client number, at least 2). None
        gives the integers 0, 1, ...
    shuffle : bool, default=True
        True if rows are in random order and clusters are dealt to clients at random. Otherwise
        rows are sorted by client, clients by cluster.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws.
    return_X_y_groups : bool, default=False
        If True, return ``(X, y, groups)`` instead of the Bunch.

    Returns
    -------
    data : :class:`~sklearn.utils.Bunch`
        With the attributes

        - X : ndarray of shape (n_rows, n_features)
        - y : ndarray of shape (n_rows,)
        - groups : ndarray of shape (n_rows,), the client of each row
        - labels : ndarray of shape (n_clients,), the cluster of each client, in the order of
          ``np.unique(groups)``
        - coef : ndarray of shape (n_clusters, n_features), the true coefficients
        - intercept : ndarray of shape (n_clusters,), the true intercepts

    (X, y, groups) : tuple
        If `return_X_y_groups`.

    Raises
    ------
    ValueError
        If a parameter is out of its range, sizes do not add up, or the coefficients asked for do
        not exist (too many clusters for the features).

    References
    ----------
    .. [1] Ghosh, Chung, Yin, Ramchandran, "An efficient framework for clustered federated
       learning", NeurIPS 2020.
    .. [2] SarcheshmehPour, Tian, Zhang, Jung, "Clustered federated learning via generalized total
       variation minimization", IEEE Transactions on Signal Processing, 2023.
    .. [3] Bhatia, Papadis, Kodialam, Lakshman, Chakrabarty, "CLoVE: personalized federated
       learning through clustering of loss vector embeddings", 2025.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=6, n_clusters=2, random_state=0)
    >>> data.X.shape[1], data.coef.shape
    (10, (2, 10))
    >>> np.unique(data.groups).tolist()
    ['client00', 'client01', 'client02', 'client03', 'client04', 'client05']
    >>> np.bincount(data.labels).tolist()
    [3, 3]
    """
    check_numbers(n_clusters=n_clusters, n_features=n_features)
    rng, layout, owner = _client_rows(
        n_clients, n_clusters, n_samples, cluster_sizes, id_format, shuffle, random_state
    )
    if isinstance(coef, str):
        informative = _informative(n_informative, n_features, rng)
        size = len(informative)
        if coef == "gaussian":
            values = _separated(rng.standard_normal((n_clusters, size)), separation)
        elif coef == "sphere":
            values = radius * _sphere(n_clusters, size, separation / radius, rng)
        else:
            values = _bernoulli(n_clusters, size, rng)
            if coef == "bernoulli":
                values /= np.linalg.norm(values, axis=1, keepdims=True)
            values *= radius
        coef = np.zeros((n_clusters, n_features))
        coef[:, informative] = values
    else:
        _refuse_informative(n_informative)
        coef = real_array(coef, "coef", shape=(n_clusters, n_features))
    intercept = _intercepts(bias, (n_clusters,), rng)

    check_numbers(n_samples=len(owner), n_features=n_features)
    X = rng.standard_normal((len(owner), n_features))
    y = _decision(X, coef, intercept, layout.clusters[owner])
    y += noise * rng.standard_normal(len(owner))
    return bunch(X, y, layout, owner, return_X_y_groups, coef=coef, intercept=intercept)


def _informative(n_informative: int | None, n_features: int, rng: np.random.RandomState) -> Any:
    """Positions of the features that matter."""
    if n_informative is None:
        return np.arange(n_features)
    if n_informative > n_features:
        raise ValueError(
            f"n_informative={n_informative} is more than n_features={n_features}; it must not be."
        )
    return np.sort(rng.permutation(n_features)[:n_informative])


def _refuse_informative(n_informative: int | None) -> None:
    if n_informative is not None:
        raise ValueError("n_informative must be None when coef is an array: set zeros in coef.")


def _intercepts(bias: Any, shape: tuple[int, ...], rng: np.random.RandomState) -> Array:
    if isinstance(bias, Real):
        return float(bias) * rng.standard_normal(shape)
    return real_array(bias, "bias", shape=shape)


@validate_params(
    FEDERATION
    | {
        "n_features": COUNT,
        "n_classes": [Count(2, MOST)],
        "coef": [StrOptions({"gaussian"}), "array-like"],
        "separation": _POSITIVE,
        "n_informative": [*COUNT, None],
        "bias": [*NON_NEGATIVE, "array-like"],
        "temperature": NON_NEGATIVE,
        "flip_y": [Interval(Real, 0, 1, closed="both")],
    }
)
def make_clustered_classification(
    n_clients: int = 24,
    n_clusters: int = 3,
    n_features: int = 10,
    *,
    n_classes: int = 2,
    n_samples: Sizes = (20, 60),
    coef: Literal["gaussian"] | ArrayLike = "gaussian",
    separation: float = 6.0,
    n_informative: int | None = None,
    bias: float | ArrayLike = 0.0,
    temperature: float = 1.0,
    flip_y: float = 0.0,
    cluster_sizes: None | Literal["random"] | ArrayLike = None,
    id_format: str | None = "client{client:0{width}d}",
    shuffle: bool = True,
    random_state: RandomState = None,
    return_X_y_groups: bool = False,
) -> Data:
    """Generate clustered classification: clients of a cluster share a logistic or softmax model.

    Rows are ``x ~ N(0, I)``; labels are drawn from the logistic (two classes) or softmax model of
    the row's cluster, so that the returned parameters are the minimisers of the expected log loss
    (at the default temperature and without flips).

    Parameters
    ----------
    n_clients : int, default=24
        Number of clients.
    n_clusters : int, default=3
        Number of clusters, at most ``n_clients``.
    n_features : int, default=10
        Number of features.
    n_classes : int, default=2
        Number of classes; labels are 0, 1, ...
    n_samples : int, tuple (low, high) or array-like of shape (n_clients,), default=(20, 60)
        Rows of a client, as in :func:`make_clustered_regression`.
    coef : "gaussian" or array-like, default="gaussian"
        The clusters' true coefficients, of the shapes given under Returns: Gaussian and scaled to
        `separation`, or an array.
    separation : float, default=6.0
        Least distance between two clusters' coefficients, for more than two classes the root of
        the mean over classes of the squared distances. The default separates the clusters well at
        temperature 1.
    n_informative : int, default=None
        Number of features with non-zero coefficients, the same random ones for all clusters; None
        means all.
    bias : float or array-like, default=0.0
        Standard deviation of the clusters' Gaussian intercepts, or the intercepts themselves, of
        the shape given under Returns.
    temperature : float, default=1.0
        Labels are drawn with probabilities sigmoid or softmax of the decision values over this. 0
        gives the most likely class, so that the classes of a cluster are linearly separable.
    flip_y : float, default=0.0
        Probability that a label is replaced by another class, uniformly.
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
        With the attributes X, y, groups and labels as in :func:`make_clustered_regression`, and

        - coef : ndarray of shape (n_clusters, n_features) for two classes (the log-odds of class
          1), else (n_clusters, n_classes, n_features), centred over the classes, since softmax
          does not see a vector added to all classes
        - intercept : ndarray of shape (n_clusters,) or (n_clusters, n_classes), likewise

    (X, y, groups) : tuple
        If `return_X_y_groups`.

    Raises
    ------
    ValueError
        If a parameter is out of its range, or sizes do not add up.

    Examples
    --------
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_classes=4, n_samples=30, random_state=0)
    >>> data.X.shape, data.coef.shape
    ((720, 10), (3, 4, 10))
    >>> X, y, groups = make_clustered_classification(random_state=0, return_X_y_groups=True)
    >>> sorted(set(y.tolist()))
    [0, 1]
    """
    check_numbers(n_clusters=n_clusters, n_classes=n_classes, n_features=n_features)
    rng, layout, owner = _client_rows(
        n_clients, n_clusters, n_samples, cluster_sizes, id_format, shuffle, random_state
    )
    heads = () if n_classes == 2 else (n_classes,)
    if isinstance(coef, str):
        informative = _informative(n_informative, n_features, rng)
        values = rng.standard_normal((n_clusters, *heads, len(informative)))
        if heads:
            values = _centred(values)
        coef = np.zeros((n_clusters, *heads, n_features))
        coef[..., informative] = _separated(values, separation)
    else:
        _refuse_informative(n_informative)
        coef = real_array(coef, "coef", shape=(n_clusters, *heads, n_features))
    intercept = _intercepts(bias, (n_clusters, *heads), rng)
    if heads:
        coef, intercept = _centred(coef), _centred(intercept)

    check_numbers(n_samples=len(owner), n_features=n_features)
    X = rng.standard_normal((len(owner), n_features))
    y = _draw_labels(X, coef, intercept, layout.clusters[owner], temperature, rng)
    other = (y + rng.randint(1, n_classes, size=len(y))) % n_classes
    y = np.where(rng.uniform(size=len(y)) < flip_y, other, y)
    return bunch(X, y, layout, owner, return_X_y_groups, coef=coef, intercept=intercept)


def _centred(params: Array) -> Array:
    """Pin the gauge of softmax parameters (n_clusters, n_classes, ...): classes sum to 0."""
    return params - params.mean(axis=1, keepdims=True)


def _draw_labels(
    X: Array,
    coef: Array,
    intercept: Array,
    clusters: Array,
    temperature: float,
    rng: np.random.RandomState,
) -> Array:
    """Labels from sigmoid or softmax of the decision values over the temperature."""
    decision = _decision(X, coef, intercept, clusters)
    if decision.ndim == 1:
        noise = rng.logistic(size=len(X))  # P(z + T noise > 0) = sigmoid(z / T)
        return (decision + temperature * noise > 0).astype(int)
    # Gumbel's trick: the argmax of z + T noise is a draw from softmax(z / T), for T = 0 as well.
    return np.argmax(decision + temperature * rng.gumbel(size=decision.shape), axis=1)


@validate_params(
    FEDERATION
    | {"n_features": COUNT, "n_classes": [Count(2, MOST)], "beta": [*NON_NEGATIVE, None]}
)
def make_fedprox_classification(
    n_clients: int = 100,
    n_clusters: int = 4,
    n_features: int = 20,
    *,
    n_classes: int = 10,
    n_samples: Sizes = (300, 400),
    beta: float | None = None,
    cluster_sizes: None | Literal["random"] | ArrayLike = None,
    id_format: str | None = "client{client:0{width}d}",
    shuffle: bool = True,
    random_state: RandomState = None,
    return_X_y_groups: bool = False,
) -> Data:
    """Generate the synthetic classification of FedProx, with one model per cluster.

    Each cluster draws ``u ~ N(0, 1)`` and the entries of its ``W`` and ``b`` from ``N(u, 1)``;
    rows are ``x ~ N(v, diag(j^-1.2))`` and ``y = argmax(W x + b)``, without noise (Li et al. [1]_,
    Section 5.1, with a model for each cluster instead of each device). This is the study of FPFC's
    Table 1 [2]_: 100 clients in 4 clusters. FPFC gives no sizes; its figures are met at these (80
    % of the rows training).

    The number ``u`` shifts all classes' decision values alike and cancels in the argmax; so
    clusters differ by the centred ``W`` and ``b`` only, which are returned.

    Parameters
    ----------
    n_clients : int, default=100
        Number of clients.
    n_clusters : int, default=4
        Number of clusters, at most ``n_clients``. ``n_clusters=n_clients`` is FedProx's own data.
    n_features : int, default=20
        Number of features (FedProx: 60).
    n_classes : int, default=10
        Number of classes; labels are 0, 1, ... Classes are far from balanced by nature of this
        model.
    n_samples : int, tuple (low, high) or array-like of shape (n_clients,), default=(300, 400)
        Rows of a client, as in :func:`make_clustered_regression`.
    beta : float or None, default=None
        None: all clients share ``v = 0``, so that only models differ. A number: each client has
        its own feature means, ``v_j ~ N(B, 1)`` with ``B ~ N(0, beta)``, beta a standard
        deviation.
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
        With the attributes X, y, groups and labels as in :func:`make_clustered_regression`, and

        - coef : ndarray of shape (n_clusters, n_classes, n_features), centred over the classes
        - intercept : ndarray of shape (n_clusters, n_classes), likewise

        for two classes too.
    (X, y, groups) : tuple
        If `return_X_y_groups`.

    References
    ----------
    .. [1] Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in heterogeneous
       networks", MLSys 2020.
    .. [2] Yu, Liu, Sun, Wang, "Clustered federated learning for heterogeneous data", AAAI 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.datasets import make_fedprox_classification
    >>> data = make_fedprox_classification(n_clients=8, n_samples=50, random_state=0)
    >>> data.X.shape, data.coef.shape
    ((400, 20), (4, 10, 20))
    >>> np.bincount(data.labels).tolist()
    [2, 2, 2, 2]
    """
    check_numbers(n_clusters=n_clusters, n_classes=n_classes, n_features=n_features)
    rng, layout, owner = _client_rows(
        n_clients, n_clusters, n_samples, cluster_sizes, id_format, shuffle, random_state
    )
    u = rng.standard_normal((n_clusters, 1))
    coef = _centred(u[:, :, None] + rng.standard_normal((n_clusters, n_classes, n_features)))
    intercept = _centred(u + rng.standard_normal((n_clusters, n_classes)))
    scale = np.arange(1, n_features + 1) ** -0.6  # square root of the variances j^-1.2
    check_numbers(n_samples=len(owner), n_features=n_features)
    X = scale * rng.standard_normal((len(owner), n_features))
    if beta is not None:
        means = beta * rng.standard_normal((n_clients, 1))
        X += (means + rng.standard_normal((n_clients, n_features)))[owner]
    y = _draw_labels(X, coef, intercept, layout.clusters[owner], 0.0, rng)
    return bunch(X, y, layout, owner, return_X_y_groups, coef=coef, intercept=intercept)
