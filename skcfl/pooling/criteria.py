"""Criteria that compare fits: BIC, and ICL for the number of clusters."""

import numpy as np
from scipy.optimize import minimize
from scipy.special import xlogy

from .em import is_df_free
from .normal_equations import SINGULAR, is_lean, solve

# Fall of the criterion that clusters instead of one population must bring, very strong evidence in
# the words of Kass and Raftery (1995), and that one with correlations must bring against several.
# Benchmark: of 19 draws of examples/plot_partial_pooling.py, whose two kinds of clients differ
# inside, this keeps 18, and a fall of 0 would keep 11.
STRONG = 10.0
# Clients that make a cluster. Benchmark: benchmarks/real.py with five rows.
LEAST_CLIENTS = 2
# Part of the clients that may be outliers, a cluster each beside several crisp ones.
MOST_ALONE = 0.1
# Least variance of means that are drawn, in the parameters' units.
LEAST_DRAWN = 1e-6
# Largest logarithm of the ratio of that variance to the variance of the fitted means.
MOST_RISE = 10.0
# Gain of a step towards these variances at which to stop. Benchmark: default fits of 5 to 100
# features, a half to two thirds of the steps; log-likelihoods are .02 lower at most.
LEAST_GAIN = 1e-3
# Largest variance of a prior that is given at which likelihoods of classes and counts are
# parabolas about the means: those of separable classes are flat there, and drawn means seem to
# cost nothing.  Benchmark: three clusters of 20 clients with 20 rows of two classes; at 100 there
# are 6 to 9.
WIDEST_PRIOR = 10.0
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
    not normal is no clusters yet.  Clusters without variance may also have means that are drawn
    from a normal population, see :func:`_drawn_means`, whichever is more likely: then features
    in which clusters do not differ cost nothing.  Not of classes and counts under a wide prior,
    which leaves means to be as far away as they like.  Infinite where too many clients are a
    cluster each, and where most rows would go into the means of clusters of gamma losses, whose
    dispersion is estimated without regard to that: the likelihood has no bound.
    """
    n, rows = (max(float(fit.sums[name].sum()), 1.0) for name in ("counts", "weight"))
    means, others = n_parameters(fit.population, pool, options)
    criterion = -2.0 * fit.loglik + means * np.log(max(rows, n)) + others * np.log(n)
    if fit.population.n_clusters == 1:
        return criterion
    greedy = pool.model.unknown_scale and not pool.model.quadratic and means > MOST_MEANS * rows
    if greedy and options.dispersion_of is not None:
        return np.inf
    r = fit.responsibilities(pool)
    if not _are_clusters(fit, pool, r):
        return np.inf
    held = pool.model.quadratic or options.prior == "auto" or options.prior <= WIDEST_PRIOR
    if fit.population.kind == "none" and held and not is_lean(fit.sums):
        # Means and variances of the population that means are drawn from, as one cluster has.
        drawn = -2.0 * _drawn_means(fit) + pool.model.n_free * np.log(max(rows, n))
        n_varying = n_free(pool, fit.population.varying)
        criterion = min(criterion, drawn + (others + n_varying) * np.log(n))
    return criterion - 2.0 * xlogy(r, r).sum()


def _are_clusters(fit, pool, r):
    """Whether clusters are large enough to be more than outliers or the tail of a population.

    If clients differ inside clusters, a cluster's mean can be anywhere unless it has more clients
    than coefficients vary. If they do not, a mean takes at most a part of the cluster's rows, and
    of several clusters a few may have one client each, which are outliers.
    """
    labels, K = r.argmax(axis=1), r.shape[1]
    sizes, n_varying = np.bincount(labels, minlength=K), np.count_nonzero(fit.population.varying)
    if fit.population.kind != "none":
        return sizes.min() > max(n_varying, LEAST_CLIENTS - 1)
    alone = np.count_nonzero(sizes < LEAST_CLIENTS)
    rows = np.bincount(labels, pool.client_weights[~pool.without_rows], minlength=K)
    outliers = alone == 0 or K - alone > 1 and sizes.min() and alone <= MOST_ALONE * len(r)
    return bool(outliers and MOST_MEANS * rows.min() >= n_varying)


def _drawn_means(fit):
    """Log-likelihood of crisp clusters whose means are drawn from a normal population.

    The population's mean and variances are those of greatest likelihood, given the clients of
    each cluster: the model of one cluster with a diagonal covariance, with clusters in place of
    clients.  Laplace's approximation for losses other than squared error.

    The log-likelihood of a cluster's rows is a parabola in its mean x, that of one observation
    ``z = R (x - theta) + noise`` with ``H = R' R`` and noise of variance one.  Drawn means give
    z the variance ``I + R D R'``, which is positive however precise the rows are.
    """
    population, H, theta = fit.population, fit.sums["curvature"], fit.population.means
    varying, p = population.varying, theta.shape[1]
    size = np.sqrt(np.maximum(np.einsum("kii->ki", H), 0.0))
    size = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(H / (size[:, :, None] * size[:, None, :]))
    known = values > SINGULAR * values[:, -1:]
    roots, turned = np.sqrt(np.where(known, values, 1.0)), vectors.transpose(0, 2, 1)
    R = np.where(known, roots, 0.0)[:, :, None] * turned * size[:, None, :]
    z = np.matmul(turned, (fit.sums["slopes"] / size)[:, :, None]) / roots[:, :, None]
    both = np.concatenate([R, z * known[:, :, None]], axis=2)
    constant = fit.loglik + 0.5 * float((both[:, :, p] ** 2).sum())
    scale, middle = np.where(varying, population.unit, 0.0), theta.mean(axis=0)

    def at(logs):
        """Minus the log-likelihood, and its slopes in the logarithms of the variances."""
        D = scale.copy()
        D[varying] *= np.exp(logs)
        wide = [(R * np.sqrt(D)).transpose(0, 2, 1), np.broadcast_to(np.eye(p), R.shape)]
        T = np.linalg.qr(np.concatenate(wide, axis=1), mode="r")  # T' T = I + R D R'
        Y = np.linalg.solve(T.transpose(0, 2, 1), both)
        Y, w = Y[:, :, :p], Y[:, :, p]
        P, pull = np.matmul(Y.transpose(0, 2, 1), Y), np.einsum("kip,ki->kp", Y, w)
        pull += np.einsum("kpq,kq->kp", P, theta - middle)
        mean = middle + solve(P.sum(axis=0), pull.sum(axis=0))
        r = w - np.einsum("kip,kp->ki", Y, mean - theta)
        logs_of_det = np.log(np.abs(np.einsum("kii->ki", T))).sum()
        value = constant - 0.5 * float((r**2).sum()) - float(logs_of_det)
        away = np.einsum("kip,ki->kp", Y, r)
        slopes = 0.5 * D * (away**2 - np.einsum("kii->ki", P)).sum(axis=0)
        return -value, -slopes[varying]

    start = np.log(np.maximum(theta.var(axis=0)[varying] / scale[varying], LEAST_DRAWN))
    bounds = [(np.log(LEAST_DRAWN), most) for most in start + MOST_RISE]
    accuracy = {"ftol": LEAST_GAIN / max(abs(at(start)[0]), 1.0)}
    found = minimize(at, start, jac=True, method="L-BFGS-B", bounds=bounds, options=accuracy)
    return -float(found.fun)


def n_free(pool, among):
    """How many of some parameters (p,) of bool are free: of softmax one class is determined."""
    return round(np.count_nonzero(among) * pool.model.n_free / pool.n_params)


def n_parameters(population, pool, options):
    """Number of parameters: means, and variances, shares and dispersion.

    Correlations count as far as clients decide them, beside those that their prior is worth.
    """
    K, varying = population.n_clusters, n_free(pool, population.varying)
    n, diagonal = pool.n_clients - np.count_nonzero(pool.without_rows), population.n_variances
    pairs = varying * (varying - 1) / 2 * n / (n + population.shrinkage)
    variances = {"diag": diagonal, "full": varying + pairs, "spherical": 1, "none": 0}
    others = variances[population.kind] + K - 1 + (options.dispersion_of is not None)
    return pool.model.n_free + (K - 1) * varying, others + is_df_free(population, options)
