"""How many clusters, by BIC, and where each number of them starts."""

import warnings
from dataclasses import replace

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from .em import maximise, pooled

# Exchanges of a start before it is compared with others.
TRIAL = 8
# Clusters of the fit before that are tried to be split, those that scatter most.
MOST_SPLITS = 2
# Variance about new cluster means, at least, as a part of that of all.
LEAST_SHARE = 1e-2
# Numbers of clusters in a row that do not lower BIC before the search ends.
RISES = 2
# A fit whose further clusters were dropped again has the same BIC but for its last digits.
LEAST_FALL = 1e-2


def fit_population(pool, kind, n_clusters, n_init, options):
    """Population of greatest likelihood, with the best number of clusters.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    kind : {"diag", "full", "spherical"}
        What the covariance may be.
    n_clusters : int or "auto"
        Number of clusters.
    n_init : int
        Starts by k-means++ of each number of clusters.
    options : Options
        How to fit.

    Returns
    -------
    fit : Fit
        The chosen one, clusters without a client left out.
    path : dict of str to ndarray
        "n_clusters", "loglik", "bic" and "n_iter" of each number that was tried.
    """
    start, n_iter = pooled(pool, options, kind)
    n = int((~pool.without_rows).sum())
    if n < 2:
        # One client's differences from others are not known.
        fit = maximise(pool, start, options, max_iter=1)
        fit = replace(fit, n_iter=n_iter + 1, converged=True)
    else:
        squares = np.diag(start.unit) if kind == "full" else start.unit.copy()
        start = replace(start, covariance=start.shaped(squares, 1))
        fit = maximise(pool, start, options)
        fit = replace(fit, n_iter=n_iter + fit.n_iter)
    most = 1 if n < 2 else (n if n_clusters == "auto" else min(n_clusters, n))
    path, best, rises = [], None, 0
    first = coordinates = None
    for K in range(1, most + 1):
        if K > 1:
            if first is None:
                first, coordinates = fit, _coordinates(pool, fit)
            fit = _grown(pool, fit, first, coordinates, K, n_init, options)
        if n_clusters == "auto" or most == K:
            fit = _pruned(pool, fit, options)
        criterion = bic(fit, pool, options)
        path.append((K, fit.loglik, criterion, fit.n_iter))
        if options.verbose:
            print(f"{K} clusters: log-likelihood {fit.loglik:.3f}, BIC {criterion:.3f}")
        if n_clusters != "auto":
            best = fit
        elif best is None or criterion < bic(best, pool, options) - LEAST_FALL:
            best, rises = fit, 0
        else:
            rises += 1
            if rises == RISES:
                break
    names = "n_clusters", "loglik", "bic", "n_iter"
    path = dict(zip(names, np.array(path).T, strict=True))
    for name in ("n_clusters", "n_iter"):
        path[name] = path[name].astype(int)
    return best, path


def bic(fit, pool, options):
    """Bayesian information criterion, the clients being the sample."""
    population, K = fit.population, fit.population.n_clusters
    n = max(float(fit.sums["counts"].sum()), 1.0)
    varying = np.count_nonzero(population.varying)
    variances = {"diag": varying, "full": varying * (varying + 1) // 2, "spherical": 1}
    # Of softmax one class is determined.
    outputs = pool.model.n_free / pool.n_params
    means = round(outputs * (len(population.varying) + (K - 1) * varying))
    count = means + variances[population.kind] + K - 1 + (options.dispersion_of is not None)
    return -2.0 * fit.loglik + count * np.log(n)


def _coordinates(pool, fit):
    """Posterior means of the clients with rows, in units of the prior: (n, p), and as they are."""
    population = fit.population
    _, means, _ = pool.posteriors(*population.arguments)
    means = means[~pool.without_rows]
    away = (means - population.weights @ population.means)[:, population.varying]
    if population.kind != "full":
        return away / np.sqrt(population.covariance[population.varying]), means
    root = population.root[np.ix_(population.varying, population.varying)]
    return np.linalg.lstsq(root, away.T)[0].T, means


def _grown(pool, fit, first, coordinates, K, n_init, options):
    """Fit with K clusters: from clusters of the posterior means, or by splitting one of `fit`."""
    u, means = coordinates
    starts, seen = [], set()
    if len(np.unique(u, axis=0)) >= K:
        for _ in range(n_init):
            labels = _k_means(u, K, pool.random_state)
            starts.append((_of_partition(first.population, means, labels, K), labels))
    if 1 < K and fit.population.n_clusters == K - 1:
        responsibilities = pool.posteriors(*fit.population.arguments)[0][~pool.without_rows]
        labels = responsibilities.argmax(axis=1)
        scatter = [
            ((u[labels == k] - u[labels == k].mean(axis=0)) ** 2).sum()
            if (labels == k).sum() > 1
            else -1.0
            for k in range(K - 1)
        ]
        for k in np.argsort(scatter)[::-1][:MOST_SPLITS]:
            mine = np.flatnonzero(labels == k)
            if len(np.unique(u[mine], axis=0)) >= 2:
                split = labels.copy()
                split[mine[_k_means(u[mine], 2, pool.random_state) == 1]] = K - 1
                starts.append((_of_partition(first.population, means, split, K), split))
    trials = []
    for start, labels in starts:
        code = _canonical(labels)
        if code not in seen:
            seen.add(code)
            trials.append(maximise(pool, start, options, max_iter=TRIAL))
    if not trials:
        return fit
    best = max(trials, key=lambda trial: trial.value)
    done = maximise(pool, best.population, options)
    spent = sum(trial.n_iter for trial in trials)
    return replace(done, n_iter=spent + done.n_iter, trail=best.trail + done.trail[1:])


def _canonical(labels):
    """Partition as a key, whatever its numbers."""
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return tuple(np.argsort(np.argsort(first))[codes].tolist())


def _k_means(points, K, random_state):
    seed = int(random_state.randint(np.iinfo(np.int32).max))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # points that coincide
        return KMeans(K, n_init=1, random_state=seed).fit_predict(points)


def _of_partition(population, means, labels, K):
    """Population with the means and the scatter of a partition of the clients' models."""
    centres = np.array([means[labels == k].mean(axis=0) for k in range(K)])
    away = means - centres[labels]
    if population.kind == "full":
        squares = away.T @ away
    else:
        squares = (away**2).sum(axis=0)
    # Posterior means scatter less than the clients' models do.
    least = LEAST_SHARE * population.covariance * len(means)
    squares = squares + least
    return replace(
        population,
        means=centres,
        covariance=population.shaped(squares, len(means)),
        weights=np.bincount(labels, minlength=K) / len(means),
        prior=np.full(K, population.prior.max()),
    )


def _pruned(pool, fit, options):
    """The fit without clusters that are no client's most probable one."""
    while fit.population.n_clusters > 1:
        labels = pool.posteriors(*fit.population.arguments)[0].argmax(axis=1)
        kept = np.unique(labels)
        if len(kept) == fit.population.n_clusters:
            break
        again = maximise(pool, fit.population.ordered(kept), options)
        fit = replace(again, n_iter=fit.n_iter + again.n_iter, trail=fit.trail + again.trail)
    return fit
