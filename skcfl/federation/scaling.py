"""Units of the features: means and scales that all clients have in common.

A server cannot run a scaler on rows it does not have.  Every client sends the number and the sums
of its rows, receives the means, sends the sums of squared differences from them, and receives the
scales: two exchanges of sums, whose accuracy does not depend on where the features lie.

Where clients may be false, or in other units, medians over the clients take the place of sums: of
their own means, and of the spreads of their rows about these medians.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from sklearn.utils.sparsefuncs import mean_variance_axis

from .._checks import LEAST
from .._typing import Array
from ..numerics.by_cluster import order_by_label, sum_by_cluster, weight_by_cluster
from ..numerics.matrices import quotient, slices
from ..numerics.memory import require
from ..numerics.threads import over_parts
from .checking import check_numbers

if TYPE_CHECKING:
    from ..models import LocalModel

# Part of a variance that is no rounding, however many rows are summed up.
LEAST_SHARE = 1e-3
# Spread, relative to the mean, that is rounding.
CONSTANT = 1e-13
# Values of features that are as large as their mean, once scaled, that are rounding of this mean.
ROUNDING = 1e-9
# Rows are scaled in chunks of about so many bytes.
CHUNK_BYTES = 2**23
# Root mean square of a feature over all rows, relative to the geometric mean over the clients,
# beyond which each client is asked for its own.
SUSPECT = 8.0
# The same at one client, relative to the median over the clients, that is another unit: a thousand
# times, such as millimetres for metres, with room for clients that differ.
ANOTHER_UNIT = 500.0
# Largest mean and scale under `min_rows`, relative to the largest value of a feature: larger means
# leave a feature few values by rounding, and larger scales make single precision zero.
MOST_MEAN = {np.dtype(np.float64): 1e6, np.dtype(np.float32): 1e4}
MOST_SCALE = 1e20


@dataclass
class Scaling:
    """Means and scales of the features over the rows of all clients.

    Attributes
    ----------
    mean : ndarray of shape (n_features,)
        What is taken away; zeros where features are not centred.
    scale : ndarray of shape (n_features,)
        What the difference is divided by; of constant features their size, or 1 for 0.
    squared_norm : float or None
        Mean squared norm of a scaled row; None is the number of features.
    """

    mean: np.ndarray
    scale: np.ndarray
    squared_norm: float | None = None

    @classmethod
    def of_parts(cls, ask, centred=True, of="features"):
        """Scaling under which the features of all parts together have mean 0 and variance 1.

        Where sparse features outnumber the rows, each counted by its weight, it is one of their
        units only: the values that are not zero have a mean square of 1.  Most of such features
        are rare, and variance 1 would make the few rows that have one larger than all others.

        Parameters
        ----------
        ask : callable
            ``ask("sums")`` and then ``ask("squares", mean)`` give lists of what the
            :class:`Moments` of the rows in each place answer.
        centred : bool, default=True
            Whether to take the means away; sparse features never are.
        of : {"features", "target"}, default="features"
            What is scaled, for messages.

        Returns
        -------
        scaling : Scaling

        Raises
        ------
        ValueError
            If the variance of a feature, or of the target, is beyond the range of floats.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            sizes, precisions, stored, totals, sums = zip(*ask("sums"), strict=True)
            n, eps = sum(sizes), max(precisions)
            are_sparse = [some is not None for some in stored]
            total = sum(totals)
            mean = sum(sums) / total
            variance = sum(ask("squares", mean)) / total
            # Variances that are rounding errors of the sums are those of constant features.
            rounding = min(n * eps, LEAST_SHARE) * variance + (n * mean * eps) ** 2
        centred = centred and not any(are_sparse)
        bad = ~(np.isfinite(mean) & np.isfinite(variance))
        if bad.any():
            name, which = "y", "the target"
            if of == "features":
                name, which = "X", f"feature {int(bad.argmax())}"
            raise ValueError(
                f"{name} has values too large to be standardised: the variance of {which} is "
                f"beyond the range of floats. Scale {which}, or set standardize=False."
            )
        constant = variance <= rounding
        if all(are_sparse) and total < len(mean):
            size = np.sqrt((variance + mean**2) * quotient(total, sum(stored)))
            norm = float(sum(stored).sum() / total)
            return cls(np.zeros_like(mean), np.where(size > 0.0, size, 1.0), norm)
        # What a constant feature, however large, differs from its mean by is rounding.
        size = np.where(np.abs(mean) > LEAST, np.abs(mean), 1.0)
        scale = np.where(constant, size, np.sqrt(variance))
        norm = float(np.count_nonzero(~constant))
        return cls(mean if centred else np.zeros_like(mean), scale, norm)

    @classmethod
    def of_clients(cls, ask, centred=True, of="features"):
        """Scaling by medians over the clients, which no minority of them can move far.

        Parameters
        ----------
        ask : callable
            ``ask("means")`` and then ``ask("spreads", means)`` give lists of what the rows in each
            place answer, see :func:`own_means` and :func:`own_spreads`.
        centred : bool, default=True
            Whether to take the medians of the means away; sparse features never are.
        of : {"features", "target"}, default="features"
            What is scaled.

        Returns
        -------
        scaling : Scaling
            The scale is the median of the spreads, of those that are not zero if it is.
        """
        are_sparse, weights, means = zip(*ask("means"), strict=True)
        here = np.concatenate(weights) > 0
        mean = np.median(np.concatenate(means)[here], axis=0)
        spreads = np.concatenate(ask("spreads", mean))[here]
        rounding = CONSTANT * np.abs(mean)
        spreads = np.where(spreads > rounding, spreads, 0.0)
        scale = np.median(spreads, axis=0)
        size = np.where(np.abs(mean) > LEAST, np.abs(mean), 1.0)
        for k in np.flatnonzero(scale == 0.0):
            some = spreads[:, k][spreads[:, k] > 0]
            scale[k] = np.median(some) if len(some) else size[k]
        centred = centred and not any(are_sparse)
        return cls(mean if centred else np.zeros_like(mean), scale)

    def checked(self, n_features):
        """The scaling of finite numbers; a ValueError names what a message has in their place."""
        mean = check_numbers("mean", self.mean, (n_features,))
        return Scaling(
            mean, check_numbers("scale", self.scale, (n_features,), least=np.finfo(float).tiny)
        )

    def rounded_away(self, X, dtype):
        """First feature that rounding would leave few different values, None if there is none.

        Parameters
        ----------
        X : {ndarray, CSR matrix} of shape (n_rows, n_features)
            Features, not scaled.
        dtype : dtype
            Type of the scaled features.

        Returns
        -------
        feature : int or None
            Features that are zero in all rows are none: they have nothing to round.
        """
        if X.shape[0] == 0:
            return None
        high, low = X.max(axis=0), X.min(axis=0)
        if sparse.issparse(X):
            high, low = high.toarray().ravel(), low.toarray().ravel()
        largest = np.maximum(high, -low).astype(float)
        beyond = np.abs(self.mean) > MOST_MEAN[np.dtype(dtype)] * largest
        beyond = (largest > 0) & (beyond | (self.scale > MOST_SCALE * largest))
        return int(beyond.argmax()) if beyond.any() else None

    @property
    def may_be_level(self):
        """Which features may be the same number, not zero, in all rows, (n_features,) of bool."""
        return (self.mean != 0.0) & (self.scale == np.abs(self.mean))

    def transform(self, X):
        """Scaled features, in the type of `X`; dense if there is a mean, which leaves no zeros."""
        if sparse.issparse(X) and self.mean.any():
            X = dense_copy(X)
        if sparse.issparse(X):
            return sparse.csr_array(X @ sparse.diags_array((1.0 / self.scale).astype(X.dtype)))
        out = np.empty(X.shape, dtype=X.dtype)
        level = np.flatnonzero(self.may_be_level)
        for rows in _chunks(X):
            part = X[rows] - self.mean
            part /= self.scale
            # Rounding beside an intercept would be one more, in units of its own.
            part[:, level] *= np.abs(part[:, level]) > ROUNDING
            out[rows] = part
        return out


def dense_copy(X):
    """A sparse matrix as an array, if there is memory for it."""
    require(
        float(X.shape[0]) * X.shape[1] * X.dtype.itemsize,
        "Sparse rows in the units of a fit to dense ones, which leave no zeros,",
        "Fit to sparse rows, or give fewer of them at a time.",
    )
    return X.toarray()


def own_means(X, weights, codes, n_clients, n_jobs=None):
    """Each client's mean of the features.

    Parameters
    ----------
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features of some clients.
    weights : ndarray of shape (n_rows,) or None
        Weights of the rows.
    codes : ndarray of shape (n_rows,)
        Each row's client.
    n_clients : int
        Number of clients.
    n_jobs : int or None, default=None
        Threads.

    Returns
    -------
    is_sparse : bool
        Whether the rows are sparse.
    totals : ndarray of shape (n_clients,)
        Total weight of each client.
    means : ndarray of shape (n_clients, n_features)
    """
    totals = weight_by_cluster(codes, weights, n_clients)
    sums = _own_sums(X, weights, codes, n_clients, n_jobs)
    return sparse.issparse(X), totals, sums / np.where(totals > 0, totals, 1.0)[:, None]


def own_spreads(X, weights, codes, n_clients, mean, n_jobs=None):
    """Root mean squares of each client's differences from a point, (n_clients, n_features).

    Parameters
    ----------
    X, weights, codes, n_clients, n_jobs : object
        As of :func:`own_means`.
    mean : ndarray of shape (n_features,)
        The point.
    """
    totals = weight_by_cluster(codes, weights, n_clients)
    totals = np.where(totals > 0, totals, 1.0)[:, None]
    if sparse.issparse(X):
        means = own_means(X, weights, codes, n_clients)[2]
        squares = _own_sums(X.multiply(X).tocsr(), weights, codes, n_clients, n_jobs)
        return np.sqrt(np.maximum(squares / totals - 2 * means * mean + mean**2, 0.0))
    squares = _own_sums(X, weights, codes, n_clients, n_jobs, lambda rows: (rows - mean) ** 2)
    return np.sqrt(squares / totals)


def levels(X, weights, codes, n_clients, n_jobs=None):
    """Sums over the clients by which one in other units shows.

    Parameters
    ----------
    X, weights, codes, n_clients, n_jobs : object
        As of :func:`own_means`.

    Returns
    -------
    counts, logs, squares : ndarray of shape (n_features,)
        Of clients that have values other than zero: the total weight, the sum of the logarithms of
        their root mean squares, weighted, and the weighted sum of the squares.
    """
    if sparse.issparse(X):
        # The few values of a rare feature differ too much to tell anything of its units.
        return (np.zeros(X.shape[1]),) * 3
    totals = weight_by_cluster(codes, weights, n_clients)
    with np.errstate(over="ignore"):
        squares = _own_sums(X, weights, codes, n_clients, n_jobs, np.square)
    clients, features = squares.nonzero()
    squares = squares[clients, features]
    keep = squares > 0
    clients, features = clients[keep], features[keep]
    squares = np.minimum(squares[keep], np.finfo(float).max / n_clients)
    weights = totals[clients]
    logs = 0.5 * weights * np.log(squares / weights)
    return tuple(
        weight_by_cluster(features, part, X.shape[1]) for part in (weights, logs, squares)
    )


def outlying(ask):
    """Clients in which a feature has other units than in most.

    Parameters
    ----------
    ask : callable
        As of :meth:`Scaling.of_clients`; also ``ask("levels")``, see :func:`levels`.

    Returns
    -------
    clients, features : ndarray of shape (m,)
        Clients in the order of the places' answers, and their features.
    ratios : ndarray of shape (m,)
        Root mean square of the feature at the client, relative to the median over the clients.
    """
    counts, logs, squares = np.sum(ask("levels"), axis=0)
    typical, whole = np.exp(quotient(logs, counts)), np.sqrt(quotient(squares, counts))
    suspects = np.flatnonzero(whole > SUSPECT * typical)
    none = np.zeros(0, dtype=np.intp)
    if len(suspects) == 0:
        return none, none, np.zeros(0)
    weights = np.concatenate([weights for _, weights, _ in ask("means")])
    sizes = np.concatenate(ask("spreads", np.zeros(len(counts))))[:, suspects]
    ratios = np.zeros(sizes.shape)
    for k, own in enumerate(sizes.T):
        order = np.argsort(own, kind="stable")
        reach = np.cumsum(np.where(own > 0, weights, 0.0)[order])
        median = own[order[np.searchsorted(reach, 0.5 * reach[-1])]]
        ratios[:, k] = own / median
    clients, columns = np.nonzero(ratios >= ANOTHER_UNIT)
    return clients, suspects[columns], ratios[clients, columns]


def _own_sums(X, weights, codes, n_clients, n_jobs, function=np.asarray):
    """Sums over each client's rows, of dense ones after a function, (n_clients, n_features)."""
    weights = np.ones(X.shape[0]) if weights is None else np.asarray(weights, dtype=float)
    if sparse.issparse(X):
        n = len(codes)
        to_client = sparse.csr_array((weights, (codes, np.arange(n))), shape=(n_clients, n))
        return (to_client @ X).toarray().astype(float, copy=False)
    out = np.zeros((n_clients, X.shape[1]))
    order = order_by_label(codes, n_clients)

    def sums(some):
        rows = order[some]
        first, last = codes[rows[0]], codes[rows[-1]] + 1
        values = function(np.asarray(X[rows], dtype=float))
        return slice(first, last), sum_by_cluster(
            values, codes[rows] - first, last - first, weights[rows]
        )

    # A client's rows may lie in two chunks.
    for clients, values in over_parts(X.size, n_jobs)(sums, _chunks(X)):
        out[clients] += values
    return out


def _chunks(X):
    step = max(CHUNK_BYTES // (8 * max(X.shape[1], 1)), 1)
    return slices(len(X), step)


class Moments:
    """Sums of the rows of one place, which it sends in two exchanges.

    Parameters
    ----------
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features.
    weights : ndarray of shape (n_rows,) or None
        Weights of the rows.
    n_jobs : int or None, default=None
        Threads.
    """

    def __init__(self, X, weights, n_jobs=None):
        self.X, self._n_jobs = X, n_jobs
        if sparse.issparse(X):
            self.weights = None if weights is None else np.asarray(weights, dtype=X.dtype)
            self.total = float(X.shape[0] if weights is None else np.sum(weights))
            mean, variance = mean_variance_axis(X, axis=0, weights=self.weights)
            self.mean, self.variance = mean.astype(float), variance.astype(float)
        else:
            ones = np.ones(len(X)) if weights is None else weights
            self.weights = np.asarray(ones, dtype=float)
            self.total = float(self.weights.sum())

    def sums(self):
        """Sums over the rows that the server receives.

        Number of rows, rounding of the sums, weights of the values of sparse features that are not
        zero (None of other rows), total weight, weighted sums of the features.
        """
        n = self.X.shape[0]
        if sparse.issparse(self.X):
            ones = np.ones(n) if self.weights is None else self.weights.astype(float)
            stored = ones @ sparse.csr_array(self.X != 0)
            return n, np.finfo(self.X.dtype).eps, stored, self.total, self.total * self.mean
        out = self._sum(lambda rows: np.ascontiguousarray(rows, dtype=float))
        return n, np.finfo(float).eps, None, self.total, out

    def squares(self, mean):
        """Weighted sums of squared differences from the means."""
        if sparse.issparse(self.X):
            return self.total * (self.variance + (self.mean - mean) ** 2)
        return self._sum(lambda rows: np.ascontiguousarray(rows - mean) ** 2)

    def _sum(self, function):
        each = over_parts(self.X.size, self._n_jobs)
        sums = each(lambda rows: self.weights[rows] @ function(self.X[rows]), _chunks(self.X))
        return sum(sums, np.zeros(self.X.shape[1]))


@dataclass(frozen=True)
class UserUnits:
    """Parameters in the user's units: those of the rows before they were scaled.

    Parameters
    ----------
    model : LocalModel
        What the parameters are of.
    scaling : Scaling or None
        How the rows are scaled; None is not at all.
    """

    model: LocalModel
    scaling: Scaling | None

    def to_user(self, params: Array) -> Array:
        """Parameters (..., n_params) in the user's units."""
        return params if self.scaling is None else self.model.to_user(params, self.scaling)

    def from_user(self, params: Array) -> Array:
        """Parameters (..., n_params) in the units of the scaled rows, of those in the user's."""
        return params if self.scaling is None else self.model.from_user(params, self.scaling)

    def user_map(self) -> Any:
        """The sparse matrix M (n_params, n_params) of :meth:`to_user`, ``M x``."""
        if self.scaling is None:
            return sparse.eye_array(self.model.n_params, format="csr")
        return self.model.user_map(self.scaling)

    def slopes_to_user(self, slopes: Array) -> Array:
        """Gradients (..., n_params) in the user's units."""
        if self.scaling is None:
            return slopes
        return self.model.slopes_to_user(slopes, self.scaling)
