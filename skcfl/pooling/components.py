"""How many clusters, by ICL, and which fits of one cluster count beside."""

from dataclasses import replace
from functools import partial

import numpy as np

from .._progress import series
from ..numerics.newton import MAX_DENSE
from .cluster_starts import Starts, at_once, pruned
from .criteria import STRONG, bic, icl, n_free
from .em import evaluate, maximise, pooled
from .scaled import heavy_tailed, with_scales

# Numbers of clusters in a row that do not lower the criterion before the search ends.
RISES = 2
# The search goes on where so many falls like the last one, with variance or without, would lower
# it: of many clusters without variance the first numbers are worse than one population.
# Benchmark: benchmarks/generated.py --kinds "12 clu" --first 400 --draws 6: the mean score is .003
# short of the oracle's (.010 with 4, .012 if only the better of the two counts).
FALLS = 6.0
# Least number of numbers of clusters that are tried for few clients: outliers can hide clusters
# from the first ones.
LEAST_TRIED = 5
# Clients up to which there are few.
FEW_CLIENTS = 100
# Dropped clusters leave the criterion as it was but for its last digits.
LEAST_FALL = 1e-2
# Clients without correlations that the prior of a full covariance is worth, a free parameter.
# Benchmark: twelve tables of benchmarks/real.py, four splits, all rows and 3, 5 and 10 a client.
SHRINKAGE = 2.0


def fit_population(pool, kind, n_clusters, n_init, options, beside=None):
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
        Number of clusters.  Several compete with one whose covariance is diagonal or full, too;
        where there is very strong evidence for that it is one, of the kind asked for.
    n_init : int
        Starts by k-means++ of each number of clusters.
    options : Options
        How to fit.
    beside : object, default=None
        Other work with the same clients.  Its exchanges go together with those of the fit:
        ``beside.prepare(pool)`` from the beginning, ``beside.choose(pool, population)`` when one
        cluster is fitted.

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
    first = "diag" if kind == "stacked" else kind
    common = pooled(pool, options)
    start = common.population
    options = replace(options, varying=start.varying)
    options = replace(options, correlated=_may_correlate(pool, common, options))
    # Starts of fits of one cluster, by name.
    origins = {}
    if is_stacked and n_clusters in (1, "auto"):
        origins = _parts(pool, start, options)

    def searched(pool):
        tasks = [partial(_one_cluster, common=common, kind=first, options=options)]
        singles, *_ = at_once(pool, tasks + ([] if beside is None else [beside.prepare]))
        simple = next(iter(singles.values()))
        tasks = [partial(_searched, singles=singles, about=(n_clusters, n_init, options))]
        if beside is not None:
            tasks.append(partial(beside.choose, population=simple.population))
        best, path, *_ = at_once(pool, tasks)[0]
        return singles, best, path

    # The parts of a stack do not wait for the number of clusters, which may make them needless.
    tasks = [partial(_from_origin, origin=each, options=options) for each in origins.values()]
    (singles, best, path), *others = at_once(pool, [searched, *tasks])
    parts = dict(zip(origins, others, strict=True))
    simple = next(iter(singles.values()))
    several = n_clusters == "auto" and best.population.n_clusters > 1
    if several:
        fewer = {name: parts[name] for name in ("intercept", "none") if name in parts}
        tried = [
            _entry(fit, 1, icl(fit, pool, options), pool, options) | {"covariance_type": name}
            for name, fit in fewer.items()
        ]
        path[1:1] = tried
        if any(icl(best, pool, options) >= entry["icl"] - STRONG for entry in tried):
            # Differences in few coefficients, among variances of many, look like clusters.
            best, several = simple, False
    # Correlations, or variances, that the covariance asked for does not have look like clusters.
    rivals = ["diag", *(["full"] if options.correlated else [])]
    for name in rivals if several or is_stacked and best.population.n_clusters == 1 else []:
        if name in singles:
            continue
        origin = _origin(pool, start, name, options)
        singles[name] = rival = parts.pop(name, None) or maximise(pool, origin, options)
        criterion = icl(rival, pool, options)
        path.insert(1, _entry(rival, 1, criterion, pool, options))
        margin = STRONG if name == "full" else -STRONG
        if several and icl(best, pool, options) >= criterion + margin:
            best = simple
            break
    origins = {**{name: _origin(pool, start, name, options) for name in singles}, **origins}
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
    singles.update(parts)
    first = min(names, key=lambda name: bic(singles[name], pool, options))
    heavy, tried = heavy_tailed(pool, singles[first], options, origins[first])
    if heavy is not singles[first]:
        # What is there in one is there in all.
        df = heavy.population.df
        others = [name for name in origins if name not in (first, "none")]
        tasks = [
            partial(with_scales, fit=singles[o], df=df, options=options, origin=origins[o])
            for o in others
        ]
        singles.update(zip(others, at_once(pool, tasks), strict=True))
        singles[first] = heavy
        tried = [singles[name] for name in names]
        first = min(names, key=lambda name: bic(singles[name], pool, options))
    path += [_entry(fit, 1, icl(fit, pool, options), pool, options) for fit in tried]
    n_iter = sum(fit.n_iter for fit in singles.values())
    return replace(singles[first], n_iter=n_iter), _columns(path), singles


def _parts(pool, start, options):
    """Starts of the parts of a stack beside the first one, by name."""
    origins = {}
    if options.correlated:
        origins["full"] = _origin(pool, start, "full", options)
    intercepts = options.free & options.varying
    if (options.varying & ~intercepts).any():
        if intercepts.any():
            part = replace(start, varying=intercepts)
            origins["intercept"] = _origin(pool, part, "diag", options)
        origins["none"] = start
    return origins


def _from_origin(pool, origin, options):
    """A fit of one cluster; of no variance there is nothing to fit."""
    if origin.kind == "none":
        return replace(evaluate(pool, origin), n_iter=1, converged=True)
    return maximise(pool, origin, options)


def _searched(pool, singles, about):
    """The fit with the best number of clusters, and the candidates of the path."""
    n_clusters, n_init, options = about
    n = int((~pool.without_rows).sum())
    fit = min(singles.values(), key=lambda fit: bic(fit, pool, options))
    most = 1 if n < 2 else (n if n_clusters == "auto" else min(n_clusters, n))
    path, best, least, last, rises = [], None, np.inf, {}, 0
    starts = None
    with series("n_clusters", "candidate", most, sure=n_clusters != "auto") as progress:
        for K in range(1, most + 1):
            with progress.item(f"{K} cluster{'s' if K > 1 else ''}", leaf=True) as tell:
                tried = [fit]
                if K > 1:
                    if starts is None:
                        fit = next(iter(singles.values()))
                        starts = Starts(pool, fit, n_init, options, n_clusters == "auto")
                    sure = K + max(RISES - 1 - rises, 0)
                    if n <= FEW_CLIENTS or n_clusters != "auto":
                        sure = max(sure, min(LEAST_TRIED, most))
                    target = least if n_clusters == "auto" else np.inf
                    tried = starts.fitted(pool, fit, K, min(sure, most), target)
                if n_clusters != "auto" and most == K:
                    tried = [pruned(pool, each, options) for each in tried]
                criteria = at_once(pool, [partial(icl, each, options=options) for each in tried])
                # A number that was asked for needs no valid clusters.
                compared = criteria
                if n_clusters != "auto":
                    compared = [bic(each, pool, options) for each in tried]
                chosen = int(np.argmin(compared))
                fit, criterion = tried[chosen], criteria[chosen]
                now = {each.population.kind: c for each, c in zip(tried, criteria, strict=True)}
                falls = {kind: last[kind] - c for kind, c in now.items() if kind in last}
                ahead = [now[kind] - FALLS * fall for kind, fall in falls.items()]
                last = {kind: c for kind, c in now.items() if np.isfinite(c)}
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
                enough = K >= LEAST_TRIED or n > FEW_CLIENTS
                if rises >= RISES and enough and min(ahead, default=np.inf) > least:
                    break
            if n_clusters == "auto" and progress.stopped:
                break
    return best, path


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


def _may_correlate(pool, common, options):
    """Whether a full covariance says more than a diagonal one, and has no more pairs than rows.

    With more it changes no score that was measured, and takes half the time of wide fits
    (benchmarks/real.py, "ames wide", "loans wide"); of classes it is worse by BIC and ICL, too.
    """
    n_varying = n_free(pool, options.varying)
    pairs = n_varying * (n_varying - 1) / 2
    small = pool.n_params <= MAX_DENSE and pairs <= common.sums["weight"]
    return options.correlated and small and n_varying > 1


def _one_cluster(pool, common, kind, options):
    """Fits of one cluster, by kind; the first kind is where several clusters begin."""
    start, n_iter, kinds = common.population, common.n_iter, [kind]
    if kind == "auto":
        kinds = ["diag", "full"] if options.correlated else ["diag"]
    if (~pool.without_rows).sum() < 2:
        # One client's differences from others are not known.
        own = start.of_kind(kinds[0], np.zeros_like(start.unit))
        fit = maximise(pool, own, options, max_iter=1)
        return {kinds[0]: replace(fit, n_iter=n_iter + 1, converged=True)}
    origins = [_origin(pool, start, each, options) for each in kinds]
    tasks = [partial(maximise, population=each, options=options) for each in origins]
    fits = dict(zip(kinds, at_once(pool, tasks), strict=True))
    n_iter += sum(fit.n_iter for fit in fits.values())
    best = min(fits, key=lambda each: bic(fits[each], pool, options))
    return {**fits, best: replace(fits[best], n_iter=n_iter)}


def _origin(pool, start, kind, options):
    """Where fits of one cluster begin: the variances of one row's worth."""
    # Of wide models so many rows' worth together.
    variances = start.unit * min(1.0, MAX_DENSE / len(start.unit))
    population = start.of_kind(kind, variances)
    if kind == "full" and options.prior == "auto":
        population.shrinkage = SHRINKAGE * n_free(pool, options.varying)
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
    single = _one_cluster(part, pooled(part, options), "diag", options)
    rest = maximise(part, fit.population.ordered(np.flatnonzero(~alone)), options)
    return icl(rest, part, options) >= icl(single["diag"], part, options) - STRONG
