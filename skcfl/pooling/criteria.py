"""Criteria that compare fits: BIC, and ICL for the number of clusters."""

import numpy as np
from scipy.special import xlogy

from .em import is_df_free

# Fall of the criterion that clusters instead of one population must bring, very strong evidence in
# the words of Kass and Raftery (1995), and that one with correlations must bring against several.
# Benchmark: of 19 draws of examples/plot_partial_pooling.py, whose two kinds of clients differ
# inside, this keeps 18, and a fall of 0 would keep 11.
STRONG = 10.0
# Clients that make a cluster. Benchmark: benchmarks/real.py with five rows.
LEAST_CLIENTS = 2
# Part of the rows that as many means of clusters may take: of all of them, and of each one's.
MOST_MEANS = 0.5


def bic(fit, pool, options):
    """Bayesian information criterion, the clients being the sample."""
    n = max(float(fit.sums["counts"].sum()), 1.0)
    return -2.0 * fit.loglik + sum(n_parameters(fit.population, pool, options)) * np.log(n)


def icl(fit, pool, options):
    """Criterion of the number of clusters: integrated classification likelihood.

    BIC with the rows as the sample of the clusters' means, which crisp clusters are, plus twice
    the entropy of who belongs where (Biernacki, Celeux and Govaert 2000): a population that is
    not normal is no clusters yet.  Infinite where a cluster has one client, which is an outlier,
    and where most rows would go into the means of clusters of gamma losses, whose dispersion is
    estimated without regard to that: the likelihood has no bound.
    """
    n, rows = (max(float(fit.sums[name].sum()), 1.0) for name in ("counts", "weight"))
    means, others = n_parameters(fit.population, pool, options)
    criterion = -2.0 * fit.loglik + means * np.log(max(rows, n)) + others * np.log(n)
    if fit.population.n_clusters == 1:
        return criterion
    greedy = pool.model.unknown_scale and not pool.quadratic and means > MOST_MEANS * rows
    if greedy and options.dispersion_of is not None:
        return np.inf
    r = pool.posteriors(*fit.population.arguments)[0][~pool.without_rows]
    if np.bincount(r.argmax(axis=1), minlength=r.shape[1]).min() < LEAST_CLIENTS:
        return np.inf
    return criterion - 2.0 * xlogy(r, r).sum()


def n_parameters(population, pool, options):
    """Number of parameters: means, and variances, shares and dispersion."""
    K, p = population.means.shape
    varying = np.count_nonzero(population.varying)
    variances = {"diag": varying, "full": varying * (varying + 1) // 2, "spherical": 1, "none": 0}
    # Of softmax one class is determined.
    means = round(pool.model.n_free / p * (p + (K - 1) * varying))
    others = variances[population.kind] + K - 1 + (options.dispersion_of is not None)
    return means, others + is_df_free(population, options)
