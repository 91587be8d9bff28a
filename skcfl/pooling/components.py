"""How many clusters, by ICL, and where each number of them starts."""

from dataclasses import replace

import numpy as np

from .._progress import series
from ..numerics.kmeans import kmeans
from ..numerics.matrices import count_different
from ..numerics.newton import MAX_DENSE
from .criteria import MOST_MEANS, STRONG, bic, icl
from .em import evaluate, maximise, pooled
from .population import LEAST_DISPERSION
from .scaled import heavy_tailed, with_scales

# Exchanges of a start before it is compared with others.
TRIAL = 8
# Clusters of the fit before that are tried to be split, those that scatter most.
MOST_SPLITS = 2
# Variance about new cluster means, at least, as a part of that of all.
LEAST_SHARE = 1e-2
# Numbers of clusters in a row that do not lower the criterion before the search ends.
RISES = 2
# A fit whose further clusters were dropped again has the same criterion but for its last digits.
LEAST_FALL = 1e-2
# Clients without correlations, for each parameter, that the prior of a full covariance is worth.
# Benchmark: twelve tables of benchmarks/real.py, four splits, all rows and 3, 5 and 10 a client.
SHRINKAGE = 2.0


def fit_population(pool, kind, n_clusters, n_init, options):
    """Population of greatest likelihood, with the best number of clusters.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    kind : {"auto", "stacked", "diag", "full", "spherical"}
        What the covariance may be; "auto" is diagonal or full, as BIC prefers, for one cluster,
        and diagonal inside several, whose means hold what correlates.  "stacked" is diagonal, but
        several fits count where one cluster is chosen.
    n_clusters : int or "auto"
        Number of clusters.  Several compete with one whose covariance is full, too; where there
        is very strong evidence for that it is one, of the kind asked for.
    n_init : int
        Starts by k-means++ of each number of clusters.
    options : Options
        How to fit.

    Returns
    -------
    fit : Fit
        The chosen one, clusters without a client left out.
    path : dict of str to ndarray
        "n_clusters", "covariance_type", "df", "loglik", "bic", "icl" and "n_iter" of each fit that
        was a candidate.
    stack : dict of str to Fit
        What counts: the chosen fit by the kind of its covariance; where that is one cluster and
        `kind` is "stacked", the fits with a diagonal and a full covariance, that of which only
        the intercepts vary, and that of one model for all.
    """
    start, singles = _one_cluster(pool, "diag" if kind == "stacked" else kind, options)
    fit = min(singles.values(), key=lambda fit: bic(fit, pool, options))
    simple = next(iter(singles.values()))
    n = int((~pool.without_rows).sum())
    most = 1 if n < 2 else (n if n_clusters == "auto" else min(n_clusters, n))
    path, best, least, rises = [], None, np.inf, 0
    first = coordinates = None
    with series("n_clusters", "candidate", most, sure=n_clusters != "auto") as told:
        for K in range(1, most + 1):
            with told.item(f"{K} cluster{'s' if K > 1 else ''}", leaf=True) as tell:
                if K > 1:
                    if first is None:
                        first, coordinates = simple, _coordinates(pool, simple)
                        fit = simple
                    fit = _grown(pool, fit, first, coordinates, K, n_init, options)
                if n_clusters == "auto" or most == K:
                    fit = _pruned(pool, fit, options)
                criterion = icl(fit, pool, options)
                if K > 1 and criterion < least and not _are_clusters(pool, fit, options):
                    criterion = np.inf
                tell(log_likelihood=fit.loglik, ICL=criterion)
            path.append(_entry(fit, K, criterion, pool, options))
            if n_clusters != "auto":
                best = fit
            elif criterion < least:
                best, rises = fit, 0
                least = criterion - (STRONG if K == 1 else LEAST_FALL)
            else:
                rises += 1
                if rises == RISES:
                    break
            if n_clusters == "auto" and (told.stopped or not _may_pay(fit, pool, options)):
                break
    if best.population.n_clusters > 1:
        best = _crisp_if_better(pool, best, options)
    several = n_clusters == "auto" and best.population.n_clusters > 1
    is_stacked = kind == "stacked" and n > 1
    rival = several and kind not in ("auto", "full")
    part = is_stacked and best.population.n_clusters == 1
    if (rival or part) and _may_correlate(start, options):
        singles["full"] = correlated = _maximised(pool, start, "full", options)
        criterion = icl(correlated, pool, options)
        path.insert(1, _entry(correlated, 1, criterion, pool, options))
        if rival and icl(best, pool, options) >= criterion + STRONG:
            # Correlations that a narrower covariance does not have look like clusters.
            best = simple
    # Where fits of one cluster begin, by name.
    origins = {name: _origin(start, name, options) for name in singles}
    if several and best.population.n_clusters > 1:
        heavy, tried = heavy_tailed(pool, simple, options, origins[next(iter(singles))])
        path += [_entry(fit, 1, icl(fit, pool, options), pool, options) for fit in tried]
        if heavy is not simple and icl(best, pool, options) >= path[-1]["icl"] + STRONG:
            # So do clients far from the others, which a normal population does not have.
            best = simple
    if not is_stacked or best.population.n_clusters > 1:
        K, kind = best.population.n_clusters, best.population.kind
        best, tried = heavy_tailed(pool, best, options, origins.get(kind) if K == 1 else None)
        path += [_entry(fit, K, icl(fit, pool, options), pool, options) for fit in tried]
        return best, _columns(path), {kind: best}
    told = list(singles)
    intercepts = options.free & options.varying
    if (options.varying & ~intercepts).any():
        if intercepts.any():
            origins["intercept"] = _origin(replace(start, varying=intercepts), "diag", options)
            singles["intercept"] = maximise(pool, origins["intercept"], options)
        singles["none"] = replace(evaluate(pool, start), n_iter=1, converged=True)
    first = min(told, key=lambda name: bic(singles[name], pool, options))
    heavy, tried = heavy_tailed(pool, singles[first], options, origins[first])
    if heavy is not singles[first]:
        # What is there in one is there in all.
        df = heavy.population.df
        for name, origin in origins.items():
            if name != first:
                singles[name] = with_scales(pool, singles[name], df, options, origin)
        singles[first] = heavy
        tried = [singles[name] for name in told]
        first = min(told, key=lambda name: bic(singles[name], pool, options))
    path += [_entry(fit, 1, icl(fit, pool, options), pool, options) for fit in tried]
    n_iter = sum(fit.n_iter for fit in singles.values())
    return replace(singles[first], n_iter=n_iter), _columns(path), singles


def _columns(path):
    """Entries of a path as arrays by name, each fit once."""
    unlike = {(e["n_clusters"], e["covariance_type"], e["loglik"], e["n_iter"]): e for e in path}
    path = unlike.values()
    return {name: np.array([entry[name] for entry in path]) for name in next(iter(path))}


def _entry(fit, n_clusters, criterion, pool, options):
    """What is told of a candidate."""
    return {
        "n_clusters": n_clusters,
        "covariance_type": fit.population.kind,
        "df": fit.population.df,
        "loglik": fit.loglik,
        "bic": bic(fit, pool, options),
        "icl": criterion,
        "n_iter": fit.n_iter,
    }


def _may_correlate(population, options):
    """Whether a full covariance says more than a diagonal one, and is not too large."""
    return len(population.unit) <= MAX_DENSE and options.varying.sum() > 1


def _one_cluster(pool, kind, options):
    """One model for all, where fits begin, and fits of one cluster by kind.

    The first one is where several clusters begin.
    """
    start, n_iter = pooled(pool, options)
    kinds = [kind]
    if kind == "auto":
        kinds = ["diag", "full"] if _may_correlate(start, options) else ["diag"]
    if (~pool.without_rows).sum() < 2:
        # One client's differences from others are not known.
        own = start.of_kind(kinds[0], np.zeros_like(start.unit))
        fit = maximise(pool, own, options, max_iter=1)
        return start, {kinds[0]: replace(fit, n_iter=n_iter + 1, converged=True)}
    fits = {each: _maximised(pool, start, each, options) for each in kinds}
    n_iter += sum(fit.n_iter for fit in fits.values())
    best = min(fits, key=lambda each: bic(fits[each], pool, options))
    return start, {**fits, best: replace(fits[best], n_iter=n_iter)}


def _maximised(pool, start, kind, options):
    """Fit of one cluster with a covariance of a kind."""
    return maximise(pool, _origin(start, kind, options), options)


def _origin(start, kind, options):
    """Where fits of one cluster begin: the variances of one row's worth."""
    # Of wide models so many rows' worth together.
    variances = start.unit * min(1.0, MAX_DENSE / len(start.unit))
    population = start.of_kind(kind, variances)
    if kind == "full" and options.prior == "auto":
        population.shrinkage = SHRINKAGE * np.count_nonzero(options.varying)
    return population


def _are_clusters(pool, fit, options):
    """Whether clusters are more than the tail of a population that is not normal.

    Where clients differ inside clusters, as many of them as have coefficients that vary can be
    anywhere, and their mean is no cluster's.  Where they do not, a mean takes no more than a part
    of its rows: what so few rows leave unexplained is little of any cluster.
    """
    has_rows, n_varying = ~pool.without_rows, np.count_nonzero(fit.population.varying)
    labels = pool.posteriors(*fit.population.arguments)[0][has_rows].argmax(axis=1)
    if np.bincount(labels).min() > n_varying:
        return True
    if MOST_MEANS * np.bincount(labels, pool.client_weights[has_rows]).min() < n_varying:
        return False
    crisp = maximise(pool, fit.population.crisp(options.prior == "auto"), options)
    return bic(crisp, pool, options) < bic(fit, pool, options)


def _crisp_if_better(pool, fit, options):
    """The clusters without variance, where BIC prefers them: noise looks like some."""
    crisp = maximise(pool, fit.population.crisp(options.prior == "auto"), options)
    if bic(crisp, pool, options) >= bic(fit, pool, options):
        return fit
    kept = crisp.n_iter + fit.n_iter
    return _pruned(pool, replace(crisp, n_iter=kept), options)


def _may_pay(fit, pool, options):
    """Whether another cluster could lower the criterion, however likely it made the rows."""
    rows = float(fit.sums["weight"])
    n_varying = np.count_nonzero(fit.population.varying)
    cost = pool.model.n_free / pool.n_params * n_varying * np.log(max(rows, 1.0))
    if pool.model.unknown_scale:
        estimated = options.dispersion_of is not None
        least = LEAST_DISPERSION * fit.population.unit.max() if estimated else options.dispersion
        most = -0.5 * rows * np.log(2 * np.pi * least)
    else:  # of classes and counts, whose dispersion is at least 1 where it is estimated
        most = -0.5 * rows * np.log(min(options.dispersion, 1.0))
    return cost < 2.0 * (most - fit.loglik)


def _coordinates(pool, fit):
    """Posterior means of the clients with rows, in units of the prior: (n, p), and as they are."""
    population = fit.population
    means = pool.posteriors(*population.arguments)[1]
    means = means[~pool.without_rows]
    away = (means - population.weights @ population.means)[:, population.varying]
    if population.kind != "full":
        return away / np.sqrt(population.covariance[population.varying]), means
    root = population.root[np.ix_(population.varying, population.varying)]
    return np.linalg.lstsq(root, away.T, rcond=None)[0].T, means


def _grown(pool, fit, first, coordinates, K, n_init, options):
    """Fit with K clusters: from clusters of the posterior means, or by splitting one of `fit`."""
    u, means = coordinates
    starts, seen = [], set()
    if count_different(u) >= K:
        for _ in range(n_init):
            labels = _k_means(u, K, pool.random_state)
            if len(np.unique(labels)) == K:
                begun = _of_partition(first.population, means, labels, K, options)
                starts.append((begun, labels))
    responsibilities = pool.posteriors(*fit.population.arguments)[0][~pool.without_rows]
    labels = responsibilities.argmax(axis=1)
    if len(np.unique(labels)) == K - 1:
        scatter = [
            ((u[labels == k] - u[labels == k].mean(axis=0)) ** 2).sum() for k in range(K - 1)
        ]
        for k in np.argsort(scatter)[::-1][:MOST_SPLITS]:
            mine = np.flatnonzero(labels == k)
            if count_different(u[mine]) >= 2:
                split = labels.copy()
                split[mine[_k_means(u[mine], 2, pool.random_state) == 1]] = K - 1
                if len(np.unique(split)) == K:
                    begun = _of_partition(first.population, means, split, K, options)
                    starts.append((begun, split))
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
    """Labels of one start; fewer than K of points that coincide."""
    seed = int(random_state.randint(np.iinfo(np.int32).max))
    return kmeans(points, K, np.random.RandomState(seed), n_init=1)[0]


def _of_partition(population, means, labels, K, options):
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
    prior = np.full(K, population.prior.max())
    slopes = ~population.free
    if options.prior == "auto" and slopes.any():
        # The mean of all clusters may be near zero: its prior would draw theirs together.
        prior = prior + (centres[:, slopes] ** 2).mean(axis=1)
    return replace(
        population,
        means=centres,
        covariance=population.shaped(squares, len(means)),
        weights=np.bincount(labels, minlength=K) / len(means),
        prior=prior,
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
