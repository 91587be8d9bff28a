"""How many clusters, by ICL, and where each number of them starts."""

from dataclasses import replace
from functools import partial

import numpy as np

from .._progress import series
from ..calls.posteriors_asked import Posteriors
from ..federation.lanes import asked_at_once
from ..numerics.by_cluster import numbered
from ..numerics.kmeans import kmeans
from ..numerics.matrices import count_different
from ..numerics.newton import MAX_DENSE
from .criteria import STRONG, bic, icl
from .em import evaluate, maximise, pooled
from .population import LEAST_DISPERSION
from .scaled import heavy_tailed, with_scales

# Exchanges of each start before the best ones are chosen.
GLANCE = 4
# Number of starts that continue after them.
MOST_TRIED = 2
# Exchanges after which the best start continues, or is refused if its criterion is hopeless.
TRIAL = 8
# Clusters of the fit before that are tried to be split, those that scatter most.
MOST_SPLITS = 2
# Variance about new cluster means, at least, as a part of that of all.
LEAST_SHARE = 1e-2
# Numbers of clusters in a row that do not lower the criterion before the search ends.
RISES = 2
# Least number of numbers of clusters that are tried for few clients: outliers can hide clusters
# from the first ones.
LEAST_TRIED = 5
# Clients up to which there are few.
FEW_CLIENTS = 100
# A fit whose further clusters were dropped again has the same criterion but for its last digits.
LEAST_FALL = 1e-2
# Exchanges of one cluster with correlations before it is refused likewise.
LOOK = 20
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
    n = int((~pool.without_rows).sum())
    is_stacked = kind == "stacked" and n > 1
    ahead = is_stacked and n_clusters in (1, "auto")
    start, singles, look = _one_cluster(
        pool, "diag" if kind == "stacked" else kind, options, ahead
    )
    fit = min(singles.values(), key=lambda fit: bic(fit, pool, options))
    simple = next(iter(singles.values()))
    most = 1 if n < 2 else (n if n_clusters == "auto" else min(n_clusters, n))
    path, best, least, rises = [], None, np.inf, 0
    first = coordinates = None
    with series("n_clusters", "candidate", most, sure=n_clusters != "auto") as progress:
        for K in range(1, most + 1):
            with progress.item(f"{K} cluster{'s' if K > 1 else ''}", leaf=True) as tell:
                tried = [fit]
                if K > 1:
                    if first is None:
                        first, coordinates = simple, _coordinates(pool, simple)
                        fit = simple
                    target = least if n_clusters == "auto" else np.inf
                    tried = _grown(pool, fit, first, coordinates, K, n_init, options, target)
                if n_clusters != "auto" and most == K:
                    tried = [_pruned(pool, each, options) for each in tried]
                criteria = _at_once(pool, [partial(icl, each, options=options) for each in tried])
                # A number that was asked for needs no valid clusters.
                compared = criteria
                if n_clusters != "auto":
                    compared = [bic(each, pool, options) for each in tried]
                chosen = int(np.argmin(compared))
                fit, criterion = tried[chosen], criteria[chosen]
                if n_clusters == "auto" and 1 < K and criterion < least:
                    criterion = np.inf if _seem_clusters(pool, fit, options) else criterion
                tell(log_likelihood=fit.loglik, ICL=criterion)
            path += [
                _entry(each, K, value, pool, options)
                for each, value in zip(tried, criteria, strict=True)
            ]
            if n_clusters != "auto":
                best = fit
            elif criterion < least:
                best, rises = fit, 0
                least = criterion - (STRONG if K == 1 else LEAST_FALL)
            else:
                rises += 1
                if rises >= RISES and (K >= LEAST_TRIED or n > FEW_CLIENTS):
                    break
            if n_clusters == "auto" and (progress.stopped or not _may_pay(fit, pool, options)):
                break
    several = n_clusters == "auto" and best.population.n_clusters > 1
    rival = several and kind not in ("auto", "full")
    part = is_stacked and best.population.n_clusters == 1
    if (rival or part) and _may_correlate(start, options):
        target = icl(best, pool, options) - STRONG if rival else np.inf
        singles["full"] = correlated = _maximised(pool, start, "full", options, target, look)
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
    names = list(singles)
    intercepts = options.free & options.varying
    if (options.varying & ~intercepts).any():
        if intercepts.any():
            origins["intercept"] = _origin(replace(start, varying=intercepts), "diag", options)
            singles["intercept"] = maximise(pool, origins["intercept"], options)
        singles["none"] = replace(evaluate(pool, start), n_iter=1, converged=True)
    first = min(names, key=lambda name: bic(singles[name], pool, options))
    heavy, tried = heavy_tailed(pool, singles[first], options, origins[first])
    if heavy is not singles[first]:
        # What is there in one is there in all.
        df = heavy.population.df
        for name, origin in origins.items():
            if name != first:
                singles[name] = with_scales(pool, singles[name], df, options, origin)
        singles[first] = heavy
        tried = [singles[name] for name in names]
        first = min(names, key=lambda name: bic(singles[name], pool, options))
    path += [_entry(fit, 1, icl(fit, pool, options), pool, options) for fit in tried]
    n_iter = sum(fit.n_iter for fit in singles.values())
    return replace(singles[first], n_iter=n_iter), _columns(path), singles


def _at_once(pool, tasks):
    """Results of ``task(pool=...)`` that do not wait for each other."""
    return asked_at_once(*((pool, lambda lane, t=task: t(pool=lane)) for task in tasks))


def _columns(path):
    """Entries of a path as arrays by name, each fit once."""
    unlike = {(e["n_clusters"], e["covariance_type"], e["loglik"], e["n_iter"]): e for e in path}
    path = unlike.values()
    return {name: np.array([entry[name] for entry in path]) for name in next(iter(path))}


def _entry(fit, n_clusters, criterion, pool, options):
    """Entry of a candidate in the search."""
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
    few = len(population.unit) <= MAX_DENSE
    return options.correlated and few and options.varying.sum() > 1


def _one_cluster(pool, kind, options, ahead=False):
    """One model for all, where fits begin, fits of one cluster by kind, and a look at another.

    The first kind is where several clusters begin. If `ahead` is True, the first exchanges of a
    fit with correlations, which will count or compete, go together with those of the others.
    """
    start, n_iter = pooled(pool, options)
    kinds = [kind]
    if kind == "auto":
        kinds = ["diag", "full"] if _may_correlate(start, options) else ["diag"]
    if (~pool.without_rows).sum() < 2:
        # One client's differences from others are not known.
        own = start.of_kind(kinds[0], np.zeros_like(start.unit))
        fit = maximise(pool, own, options, max_iter=1)
        return start, {kinds[0]: replace(fit, n_iter=n_iter + 1, converged=True)}, None
    tasks = [partial(_maximised, start=start, kind=each, options=options) for each in kinds]
    if ahead and _may_correlate(start, options):
        how = {"options": options, "max_iter": LOOK}
        tasks.append(partial(maximise, population=_origin(start, "full", options), **how))
    done = list(_at_once(pool, tasks))
    look = done.pop() if len(done) > len(kinds) else None
    fits = dict(zip(kinds, done, strict=True))
    n_iter += sum(fit.n_iter for fit in fits.values())
    best = min(fits, key=lambda each: bic(fits[each], pool, options))
    return start, {**fits, best: replace(fits[best], n_iter=n_iter)}, look


def _maximised(pool, start, kind, options, target=np.inf, look=None):
    """Fit of one cluster with a covariance of a kind, at most a look if it will miss a target.

    A look that was taken before is not taken again.
    """
    origin = _origin(start, kind, options)
    if look is None and target < np.inf:
        look = maximise(pool, origin, options, max_iter=LOOK)
    if look is not None:
        settled = look.converged and look.n_iter < LOOK
        if settled or (target < np.inf and not _may_reach(pool, look, options, target)):
            return look
    return maximise(pool, origin, options)


def _may_reach(pool, look, options, target):
    """Whether a fit, continued, may have a lower ICL than a target.

    Gains fall: the second half of a look gains more than all later exchanges together.
    """
    gained = look.trail[-1][1] - look.trail[len(look.trail) // 2][1]
    return icl(look, pool, options) <= target + 2.0 * gained


def _origin(start, kind, options):
    """Where fits of one cluster begin: the variances of one row's worth."""
    # Of wide models so many rows' worth together.
    variances = start.unit * min(1.0, MAX_DENSE / len(start.unit))
    population = start.of_kind(kind, variances)
    if kind == "full" and options.prior == "auto":
        population.shrinkage = SHRINKAGE * np.count_nonzero(options.varying)
    return population


def _seem_clusters(pool, fit, options):
    """Whether there are clusters only beside clients that are a cluster each.

    Outliers make one population wide, which then looks worse than several.
    """
    labels = fit.responsibilities(pool).argmax(axis=1)
    alone = np.bincount(labels) == 1
    if not alone.any():
        return False
    part = pool.subset(np.flatnonzero(~pool.without_rows)[~alone[labels]])
    _, single, _ = _one_cluster(part, "diag", options)
    rest = maximise(part, fit.population.ordered(np.flatnonzero(~alone)), options)
    return icl(rest, part, options) >= icl(single["diag"], part, options) - STRONG


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
    r, means, *_ = pool.ask(Posteriors, *population.arguments)
    here = ~pool.without_rows
    fit.known, means = (population, r[here]), means[here]
    away = (means - population.weights @ population.means)[:, population.varying]
    if population.kind != "full":
        return away / np.sqrt(population.covariance[population.varying]), means
    root = population.root[np.ix_(population.varying, population.varying)]
    return np.linalg.lstsq(root, away.T, rcond=None)[0].T, means


def _grown(pool, fit, first, coordinates, K, n_init, options, target):
    """Fits with K clusters: with variance, where K clusters may be large enough, and without.

    They start from clusters of the posterior means, and by splitting one of `fit`. A fit whose
    ICL will not be below the target ends after some exchanges.
    """
    u, means = coordinates
    partitions = {}
    if count_different(u) >= K:
        for _ in range(n_init):
            labels = _k_means(u, K, pool.random_state)
            partitions.setdefault(tuple(numbered(labels)), labels)
    labels = fit.responsibilities(pool).argmax(axis=1)
    if len(np.unique(labels)) == K - 1:
        scatter = [
            ((u[labels == k] - u[labels == k].mean(axis=0)) ** 2).sum() for k in range(K - 1)
        ]
        for k in np.argsort(scatter)[::-1][:MOST_SPLITS]:
            mine = np.flatnonzero(labels == k)
            if count_different(u[mine]) >= 2:
                split = labels.copy()
                split[mine[_k_means(u[mine], 2, pool.random_state) == 1]] = K - 1
                partitions.setdefault(tuple(numbered(split)), split)
    starts = [
        _of_partition(first.population, means, labels, K, options)
        for labels in partitions.values()
        if len(np.unique(labels)) == K
    ]
    if not starts:
        return [fit]
    crisp = [start.crisp(options.prior == "auto") for start in starts]
    n_varying = np.count_nonzero(options.varying)
    kinds = [starts, crisp] if np.isinf(target) or K * (n_varying + 1) <= len(u) else [crisp]
    tasks = [partial(_best_of, starts=some, options=options, target=target) for some in kinds]
    return _at_once(pool, tasks)


def _best_of(pool, starts, options, target):
    """Fit from the start that is best after some exchanges; no more of it if it is hopeless."""
    few = len(starts) <= MOST_TRIED
    how = {"options": options, "max_iter": TRIAL if few else GLANCE}
    tasks = [partial(maximise, population=start, **how) for start in starts]
    trials = _at_once(pool, tasks)
    spent = sum(trial.n_iter for trial in trials)
    if not few:
        trials = sorted(trials, key=lambda trial: trial.value)[-MOST_TRIED:]
        spent -= sum(trial.n_iter for trial in trials)
        how = {"options": options, "max_iter": TRIAL - GLANCE}
        trials = _at_once(pool, [partial(_continued, fit=trial, **how) for trial in trials])
        spent += sum(trial.n_iter for trial in trials)
    best = max(trials, key=lambda trial: trial.value)
    if target < np.inf and not _may_reach(pool, best, options, target):
        return replace(best, n_iter=spent)
    done = _continued(pool, best, options)
    done = replace(done, n_iter=spent + done.n_iter - best.n_iter)
    return _pruned(pool, done, options) if target < np.inf else done


def _continued(pool, fit, options, max_iter=None):
    """A fit from where another ended, whose exchanges and steps are its first."""
    done = maximise(pool, fit.population, options, max_iter, fit.sums)
    n_iter = fit.n_iter + done.n_iter - 1
    return replace(done, n_iter=n_iter, trail=fit.trail + done.trail[1:])


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
        kept = np.unique(fit.responsibilities(pool).argmax(axis=1))
        if len(kept) == fit.population.n_clusters:
            break
        again = maximise(pool, fit.population.ordered(kept), options)
        fit = replace(again, n_iter=fit.n_iter + again.n_iter, trail=fit.trail + again.trail)
    return fit
