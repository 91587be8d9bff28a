"""Units of the features: what the clients are told so that all of them scale alike.

A server cannot run a scaler on rows it does not have.  Every client sends the number and the sums
of its rows, is told the means, sends the sums of squared differences from them, and is told the
scales: two exchanges of sums, whose accuracy does not depend on where the features lie.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.utils.sparsefuncs import mean_variance_axis

from .._checks import LEAST

# Part of a variance that is no rounding, however many rows are summed up.
LEAST_SHARE = 1e-3
# Rows are scaled in chunks of about so many bytes.
CHUNK_BYTES = 2**23


@dataclass
class Scaling:
    """Means and scales of the features over the rows of all clients.

    Attributes
    ----------
    mean : ndarray of shape (n_features,)
        What is taken away; zeros where features are not centred.
    scale : ndarray of shape (n_features,)
        What the difference is divided by; of constant features their size, or 1 for 0.
    """

    mean: np.ndarray
    scale: np.ndarray

    @classmethod
    def measure(cls, X, weights=None, centred=True):
        """Scaling of rows in one place, see :meth:`of_parts`.

        Parameters
        ----------
        X : {ndarray, CSR matrix} of shape (n_rows, n_features)
            Features of all clients.
        weights : ndarray of shape (n_rows,), default=None
            Weights of the rows.
        centred : bool, default=True
            Whether to take the means away; sparse features never are.

        Returns
        -------
        scaling : Scaling
        """
        moments = Moments(X, weights)
        return cls.of_parts(lambda step, *means: [getattr(moments, step)(*means)], centred)

    @classmethod
    def of_parts(cls, ask, centred=True):
        """Scaling under which the features of all parts together have mean 0 and variance 1.

        Parameters
        ----------
        ask : callable
            ``ask("sums")`` and then ``ask("squares", mean)`` give lists of what the
            :class:`Moments` of the rows in each place answer.
        centred : bool, default=True
            Whether to take the means away; sparse features never are.

        Returns
        -------
        scaling : Scaling

        Raises
        ------
        ValueError
            If the variance of a feature is beyond the range of floats.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            sizes, precisions, are_sparse, totals, sums = zip(*ask("sums"), strict=True)
            n, eps, sparse_rows = sum(sizes), max(precisions), any(are_sparse)
            total = sum(totals)
            mean = sum(sums) / total
            variance = sum(ask("squares", mean)) / total
            # Variances that are rounding errors of the sums are those of constant features.
            rounding = min(n * eps, LEAST_SHARE) * variance + (n * mean * eps) ** 2
        centred = centred and not sparse_rows
        bad = ~(np.isfinite(mean) & np.isfinite(variance))
        if bad.any():
            raise ValueError(
                f"X has values too large to be standardised: the variance of feature "
                f"{int(bad.argmax())} is beyond the range of floats. Scale the feature, or set "
                "standardize=False."
            )
        constant = variance <= rounding
        # What a constant feature, however large, differs from its mean by is rounding.
        size = np.where(np.abs(mean) > LEAST, np.abs(mean), 1.0)
        scale = np.where(constant, size, np.sqrt(variance))
        return cls(mean if centred else np.zeros_like(mean), scale)

    def transform(self, X):
        """Scaled features, in the type of `X`."""
        if sparse.issparse(X):
            return sparse.csr_array(X @ sparse.diags_array((1.0 / self.scale).astype(X.dtype)))
        out = np.empty(X.shape, dtype=X.dtype)
        for rows in _chunks(X):
            out[rows] = (X[rows] - self.mean) / self.scale
        return out


def _chunks(X):
    step = max(CHUNK_BYTES // (8 * max(X.shape[1], 1)), 1)
    return [slice(start, start + step) for start in range(0, len(X), step)]


class Moments:
    """Sums of the rows of one place, which it sends in two exchanges.

    Parameters
    ----------
    X : {ndarray, CSR matrix} of shape (n_rows, n_features)
        Features.
    weights : ndarray of shape (n_rows,) or None
        Weights of the rows.
    """

    def __init__(self, X, weights):
        self.X = X
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
        """What is told of the rows, and of the features.

        Number of rows, rounding of the sums, whether the rows are sparse, total weight, weighted
        sums of the features.
        """
        n, is_sparse = self.X.shape[0], sparse.issparse(self.X)
        if is_sparse:
            eps = np.finfo(self.X.dtype).eps
            return n, eps, is_sparse, self.total, self.total * self.mean
        out = np.zeros(self.X.shape[1])
        for rows in _chunks(self.X):
            out += self.weights[rows] @ np.ascontiguousarray(self.X[rows], dtype=float)
        return n, np.finfo(float).eps, is_sparse, self.total, out

    def squares(self, mean):
        """Weighted sums of squared differences from the means."""
        if sparse.issparse(self.X):
            return self.total * (self.variance + (self.mean - mean) ** 2)
        out = np.zeros(self.X.shape[1])
        for rows in _chunks(self.X):
            out += self.weights[rows] @ np.ascontiguousarray(self.X[rows] - mean) ** 2
        return out
