"""What clients' models are like: normal clusters that share a covariance."""

from dataclasses import dataclass, replace

import numpy as np

# Least variance, or eigenvalue of a covariance, as a part of a parameter's unit: maximum
# likelihood often ends at no variance at all, where steps in logarithms have no end.
FLOOR = 1e-8
# Least share of a cluster, and least dispersion as a part of that of a constant.
LEAST_WEIGHT, LEAST_DISPERSION = 1e-12, 1e-12

COVARIANCES = ("diag", "full", "spherical")


@dataclass
class Population:
    """Normal clusters of parameters, ``x ~ sum_k pi_k N(theta_k, Sigma)``.

    Attributes
    ----------
    kind : {"diag", "full", "spherical"}
        What Sigma may be.
    means : ndarray of shape (K, p)
        theta_k.
    covariance : ndarray of shape (p,) or (p, p)
        Sigma, its diagonal unless `kind` is "full".
    weights : ndarray of shape (K,)
        pi_k.
    dispersion : float
        phi.
    precision : ndarray of shape (K, p)
        Of the normal prior of theta_k, 0 where it has none.
    unit : ndarray of shape (p,)
        Variance of a parameter at which a row tells as much of it as the prior.
    """

    kind: str
    means: np.ndarray
    covariance: np.ndarray
    weights: np.ndarray
    dispersion: float
    precision: np.ndarray
    unit: np.ndarray

    @property
    def n_clusters(self):
        """Number of clusters."""
        return len(self.means)

    def ordered(self, order):
        """Some of the clusters, in this order."""
        weights = self.weights[order]
        return replace(
            self,
            means=self.means[order],
            weights=weights / weights.sum(),
            precision=self.precision[order],
        )

    @property
    def root(self):
        """L with ``Sigma = L L'``: its diagonal, or principal axes in the parameters' units."""
        if self.kind != "full":
            return np.sqrt(self.covariance)
        size = np.sqrt(self.unit)
        values, vectors = np.linalg.eigh(self.covariance / (size[:, None] * size))
        return size[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))

    @property
    def arguments(self):
        """What the clients are told."""
        return self.means, self.root, self.weights, self.dispersion

    def full_covariance(self):
        """Sigma as a matrix."""
        return self.covariance if self.kind == "full" else np.diag(self.covariance)

    @property
    def penalty(self):
        """Minus the logarithm of the prior density of the means, but for its constant."""
        return 0.5 * float((self.precision * self.means**2).sum())

    def shaped(self, squares, n):
        """Covariance of the kind, of sums of squares over `n` clients, no less than the floor."""
        covariance = squares / max(n, 1e-300)
        floor = FLOOR * self.unit
        if self.kind == "diag":
            return np.maximum(covariance, floor)
        if self.kind == "spherical":
            return np.full_like(covariance, max(covariance.mean(), floor.mean()))
        size = np.sqrt(self.unit)
        values, vectors = np.linalg.eigh(covariance / (size[:, None] * size))
        scaled = vectors * np.maximum(values, FLOOR) @ vectors.T
        return scaled * (size[:, None] * size)

    # ------------------------------------------------------------------ coordinates

    def coordinates(self):
        """Logarithms of the variances, shares and dispersion, which may be extrapolated."""
        if self.kind == "full":
            size = np.sqrt(self.unit)
            scaled = self.covariance / (size[:, None] * size)
            values, vectors = np.linalg.eigh(scaled)
            log = vectors * np.log(np.maximum(values, FLOOR)) @ vectors.T
            own = log[np.tril_indices(len(log))]
        else:
            own = np.log(np.maximum(self.covariance / self.unit, FLOOR))
        weights = np.log(np.maximum(self.weights, LEAST_WEIGHT))
        return np.concatenate([own, weights, [np.log(self.dispersion)]])

    def at(self, coordinates):
        """The same population with its variances, shares and dispersion at coordinates."""
        K, p = self.means.shape
        own, weights = coordinates[: -K - 1], coordinates[-K - 1 : -1]
        least = np.log(FLOOR)
        if self.kind == "full":
            log = np.zeros((p, p))
            log[np.tril_indices(p)] = own
            values, vectors = np.linalg.eigh(log + np.tril(log, -1).T)
            size = np.sqrt(self.unit)
            scaled = vectors * np.exp(np.clip(values, least, -2 * least)) @ vectors.T
            covariance = scaled * (size[:, None] * size)
        else:
            covariance = self.unit * np.exp(np.clip(own, least, -2 * least))
        weights = np.exp(weights - weights.max())
        return replace(
            self,
            covariance=covariance,
            weights=weights / weights.sum(),
            dispersion=float(np.exp(coordinates[-1])),
        )
