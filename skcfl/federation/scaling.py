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
        """Scaling under which features have mean 0 and variance 1.

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

        Raises
        ------
        ValueError
            If the variance of a feature is beyond the range of floats.
        """
        if sparse.issparse(X):
            w = None if weights is None else np.asarray(weights, dtype=X.dtype)
            mean, variance = mean_variance_axis(X, axis=0, weights=w)
            mean, variance = mean.astype(float), variance.astype(float)
            eps, centred = np.finfo(X.dtype).eps, False
        else:
            mean, variance = _moments(X, weights)
            eps = np.finfo(float).eps
        with np.errstate(over="ignore", invalid="ignore"):
            # Variances that are rounding errors of the sums are those of constant features.
            n = X.shape[0]
            rounding = min(n * eps, LEAST_SHARE) * variance + (n * mean * eps) ** 2
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


def _moments(X, weights):
    """Weighted means and variances, in double precision."""
    n, d = X.shape
    w = np.ones(n) if weights is None else np.asarray(weights, dtype=float)
    total = float(w.sum())
    with np.errstate(over="ignore", invalid="ignore"):
        mean, square = np.zeros(d), np.zeros(d)
        for rows in _chunks(X):
            mean += w[rows] @ np.ascontiguousarray(X[rows], dtype=float)
        mean /= total
        for rows in _chunks(X):
            square += w[rows] @ np.ascontiguousarray(X[rows] - mean) ** 2
    return mean, square / total
