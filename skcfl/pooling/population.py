"""What clients' models are like: normal clusters that share a covariance."""

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.special import softmax

from ..numerics.newton import MAX_DENSE

# Least variance, or eigenvalue of a covariance, as a part of a parameter's unit: maximum
# likelihood often ends at no variance at all, where steps in logarithms have no end.
FLOOR = 1e-8
# Least eigenvalue of a covariance that has an inverse, as a part of the largest.
LEAST_RATIO = 1e-14
# Least share of a cluster.
LEAST_WEIGHT = 1e-12
# Least dispersion, as a part of the dispersion about a constant.
LEAST_DISPERSION = 1e-12
# Least degrees of freedom of the clients' scales; variances exist above 2. Benchmark:
# benchmarks/real.py. Its tables with the heaviest tails, whose likelihood is greatest between .5
# and 1, are predicted as well.
LEAST_DF = 2.5
# Most degrees of freedom of the clients' scales: the t distribution is then a normal one.
MOST_DF = 1e3

COVARIANCES = ("diag", "full", "spherical")
# Rounds between a full covariance and the diagonal that its prior is about.
SHRINKS = 10


@dataclass
class Population:
    """Normal clusters of parameters, ``x ~ sum_k pi_k N(theta_k, Sigma)``.

    Attributes
    ----------
    kind : {"diag", "full", "spherical", "none"}
        What Sigma may be; "none" is zero.
    means : ndarray of shape (K, p)
        theta_k.
    covariance : ndarray of shape (p,) or (p, p)
        Sigma, its diagonal unless `kind` is "full".
    weights : ndarray of shape (K,)
        pi_k.
    dispersion : float
        phi.
    prior : ndarray of shape (K,)
        Variance of the normal prior of the slopes of theta_k; infinite without one.
    unit : ndarray of shape (p,)
        Variance of a parameter at which a row tells as much of it as the prior.
    free : ndarray of shape (p,) of bool
        Parameters that have no prior: the intercepts.
    varying : ndarray of shape (p,) of bool
        Parameters that differ between clients.  The others have no variance, and are the same
        in all clusters.
    shrinkage : float, default=0.0
        Clients without correlations that the prior of a full covariance is worth: it is inverse
        Wishart with that many degrees of freedom, about the diagonal matrix of greatest density.
    spent : float, default=0.0
        Degrees of freedom of the means, which are taken from those that the dispersion has.
    df : float, default=numpy.inf
        Those of the clients' scales, which phi and Sigma are multiplied by; infinite: all are 1.
    blocks : ndarray of shape (p,) of int, default=None
        Numbers of the blocks of parameters that share a variance, in their units, where the
        covariance is diagonal; None is one variance for each parameter.
    off_zero : bool, default=False
        Whether the standard deviations of intercepts have a prior, with a density proportional to
        them, that keeps them off zero (Chung et al. 2013; of several outputs the root of the
        determinant of their covariance, Chung et al. 2015).
    least : float, default=1e-300
        Least dispersion.
    """

    kind: str
    means: np.ndarray
    covariance: np.ndarray
    weights: np.ndarray
    dispersion: float
    prior: np.ndarray
    unit: np.ndarray
    free: np.ndarray
    varying: np.ndarray
    shrinkage: float = 0.0
    spent: float = 0.0
    df: float = np.inf
    blocks: np.ndarray | None = None
    off_zero: bool = False
    least: float = 1e-300

    @property
    def n_variances(self):
        """Number of variances of a diagonal covariance."""
        return int(self.owner.max(initial=-1)) + 1

    @property
    def owner(self):
        """Block of each parameter that varies, from 0."""
        if self.kind == "spherical":
            return np.zeros(np.count_nonzero(self.varying), dtype=np.intp)
        if self.blocks is None:
            return np.arange(np.count_nonzero(self.varying))
        return np.unique(self.blocks[self.varying], return_inverse=True)[1]

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
            prior=self.prior[order],
        )

    @property
    def precision(self):
        """Of the priors of the means, (K, p); that of a shared parameter counts once in all."""
        precision = np.where(self.free, 0.0, 1.0 / self.prior[:, None])
        return np.where(self.varying, precision, precision / self.n_clusters)

    @property
    def root(self):
        """L with ``Sigma = L L'``: its diagonal, or principal axes in the parameters' units."""
        if self.kind != "full":
            return np.sqrt(self.covariance)
        size = np.sqrt(self.unit[self.varying])
        values, vectors = np.linalg.eigh(self.scaled)
        return self._whole(size[:, None] * vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def scaled(self):
        """A full covariance of the parameters that vary, in their units."""
        size = np.sqrt(self.unit[self.varying])
        return self.covariance[np.ix_(self.varying, self.varying)] / (size[:, None] * size)

    def of_scaled(self, scaled):
        """The full covariance of :attr:`scaled`."""
        size = np.sqrt(self.unit[self.varying])
        return self._whole(scaled * (size[:, None] * size))

    def _whole(self, block):
        """Matrix of all parameters of that of those that vary."""
        if self.varying.all():
            return block
        whole = np.zeros((len(self.unit), len(self.unit)))
        whole[np.ix_(self.varying, self.varying)] = block
        return whole

    @property
    def arguments(self):
        """Arguments of the calls about posteriors."""
        return self.means, self.root, self.weights, self.dispersion, self.df

    def of_kind(self, kind, variances):
        """The same with a covariance of another kind, which is diagonal yet."""
        square = np.diag(variances) if kind == "full" else variances
        population = replace(self, kind=kind)
        return replace(population, covariance=population.shaped(square, 1))

    def crisp(self, estimated):
        """The same clusters without variance, where a fit of them begins.

        What is estimated on the way begins at round numbers: how a fit with variances rounds, and
        where the clients are, is not seen in one without.
        """
        return replace(
            self,
            kind="none",
            covariance=np.zeros_like(self.unit),
            weights=np.full_like(self.weights, 1.0 / len(self.weights)),
            prior=_round(self.prior) if estimated else self.prior,
            dispersion=float(_round(self.dispersion)),
            spent=float(np.round(self.spent)),
        )

    def covariance_matrix(self):
        """Sigma as a matrix, a sparse one where it is diagonal and large."""
        if self.kind == "full":
            return self.covariance
        if len(self.unit) > MAX_DENSE:
            return sparse.diags_array(self.covariance)
        return np.diag(self.covariance)

    @property
    def penalty(self):
        """Minus the logarithm of the prior densities, but for their constants, in any unit."""
        penalty = 0.5 * float((self.precision * self.means**2).sum())
        penalty -= 0.5 * self.spent * np.log(self.dispersion / self.unit.max())
        if self.kind == "diag":
            ratios = (self.covariance / self.unit)[self.kept]
            return penalty - 0.5 * float(np.log(np.maximum(ratios, FLOOR)).sum())
        if self.kind != "full" or not self.shrinkage:
            return penalty
        scaled = _floored(self.scaled)
        own = np.log(np.diag(np.linalg.inv(scaled))).sum()
        penalty += 0.5 * self.shrinkage * float(own + np.linalg.slogdet(scaled)[1])
        return penalty - 0.5 * float(np.linalg.slogdet(scaled[self._at_kept])[1])

    @property
    def kept(self):
        """Parameters with standard deviations that are kept off zero, (p,) of bool."""
        of_kind = self.kind == "diag" or (self.kind == "full" and self.shrinkage > 0.0)
        return self.free & self.varying & (self.off_zero and of_kind)

    @property
    def _at_kept(self):
        return np.ix_(self.kept[self.varying], self.kept[self.varying])

    def penalty_slope(self, scaled):
        """Twice the gradient of the penalty in a full covariance, in the parameters' units."""
        scaled, kept = _floored(scaled), self._at_kept
        inverse = np.linalg.inv(scaled)
        slope = self.shrinkage * (inverse - inverse / np.diag(inverse) @ inverse)
        slope[kept] -= np.linalg.inv(scaled[kept])
        return slope

    def shaped(self, squares, n):
        """Covariance of the kind, of sums of squares over `n` clients, no less than the floor."""
        if self.kind == "none":
            return self.covariance
        covariance = squares / max(n, 1e-300)
        floor = FLOOR * self.unit
        if self.kind == "diag":
            if self.blocks is not None:
                covariance = self._by_block(covariance)
            covariance = np.where(self.kept, _wider(n), 1.0) * covariance
            return np.where(self.varying, np.maximum(covariance, floor), 0.0)
        if self.kind == "spherical":
            common = max(covariance[self.varying].mean(), floor[self.varying].mean())
            return np.where(self.varying, common, 0.0)
        scaled = replace(self, covariance=covariance).scaled
        return self.of_scaled(_floored(self._widened(_floored(self._shrunk(scaled, n)), n)))

    def _widened(self, scaled, n):
        """The same about what the intercepts explain, which are wider by their prior."""
        kept = self.kept[self.varying]
        slopes = np.linalg.solve(scaled[self._at_kept], scaled[kept])
        return scaled + (_wider(n) - 1.0) * slopes.T @ scaled[kept]

    def _by_block(self, covariance):
        """Variances that are the same in a block, in units of their parameters."""
        ratios, owner = covariance[self.varying] / self.unit[self.varying], self.owner
        means = np.bincount(owner, ratios) / np.bincount(owner)
        covariance = covariance.copy()
        covariance[self.varying] = means[owner] * self.unit[self.varying]
        return covariance

    def _shrunk(self, scaled, n):
        """Covariance of greatest posterior density, where `scaled` has the greatest likelihood."""
        if not self.shrinkage:
            return scaled
        best, share = _floored(self.scaled), n / (n + self.shrinkage)
        for _ in range(SHRINKS):
            best = share * scaled + (1.0 - share) * np.diag(1.0 / np.diag(np.linalg.inv(best)))
        return best

    # ------------------------------------------------------------------ coordinates

    def coordinates(self):
        """Logarithms of variances, shares, dispersion and df, which may be extrapolated."""
        if self.kind == "full":
            values, vectors = np.linalg.eigh(self.scaled)
            log = vectors * np.log(np.maximum(values, FLOOR)) @ vectors.T
            own = log[np.tril_indices(len(log))]
        elif self.kind == "none":
            own = np.zeros(0)
        else:
            variances = self.covariance[self.varying] / self.unit[self.varying]
            own = np.log(np.maximum(variances, FLOOR))
        weights = np.log(np.maximum(self.weights, LEAST_WEIGHT))
        scales = [np.log(self.df)] if np.isfinite(self.df) else []
        return np.concatenate([own, weights, [np.log(self.dispersion)], scales])

    def at(self, coordinates):
        """The same population with its variances, shares and dispersion at coordinates."""
        K, df = self.n_clusters, self.df
        if np.isfinite(df):
            df = float(np.exp(np.clip(coordinates[-1], *np.log([LEAST_DF, MOST_DF]))))
            coordinates = coordinates[:-1]
        own, weights = coordinates[: -K - 1], coordinates[-K - 1 : -1]
        least = np.log(FLOOR)
        if self.kind == "full":
            p = np.count_nonzero(self.varying)
            log = np.zeros((p, p))
            log[np.tril_indices(p)] = own
            values, vectors = np.linalg.eigh(log + np.tril(log, -1).T)
            scaled = vectors * np.exp(np.clip(values, least, -2 * least)) @ vectors.T
            covariance = self.of_scaled(scaled)
        elif self.kind == "none":
            covariance = self.covariance
        else:
            covariance = np.zeros_like(self.unit)
            variances = np.exp(np.clip(own, least, -2 * least))
            covariance[self.varying] = self.unit[self.varying] * variances
        return replace(
            self,
            covariance=covariance,
            weights=softmax(weights),
            dispersion=float(np.exp(coordinates[-1])),
            df=df,
        )


def _wider(n):
    """How many times larger the prior of a deviation makes a variance of `n` clients."""
    return max(n, 1.0) / max(n - 1.0, 1.0)


def _floored(scaled):
    """A covariance in the parameters' units with no eigenvalue below the floor, and an inverse."""
    values, vectors = np.linalg.eigh(scaled)
    floor = max(FLOOR, LEAST_RATIO * values.max(initial=0.0))
    return vectors * np.maximum(values, floor) @ vectors.T


def _round(x):
    """Positive numbers to the nearest of twenty between powers of ten."""
    with np.errstate(divide="ignore"):
        return 10.0 ** (np.round(20.0 * np.log10(x)) / 20.0)
