"""Starts of fits of several clusters, and how the best start is found.

A partition of the clients by their posterior means is a start.  Which partitions there are is
known when one cluster is fitted, so that the first exchanges of all of them, for several numbers
of clusters, go together.  A fit that is no candidate ends after these exchanges.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from ..calls.posteriors_asked import Posteriors, SumsRefused
from ..federation.lanes import asked_at_once
from ..federation.sites import Refused
from ..numerics.by_cluster import numbered
from ..numerics.kmeans import kmeans
from ..numerics.matrices import count_different
from .criteria import icl
from .em import maximise

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


class Starts:
    """Starts of fits of several clusters; their first exchanges are made ahead.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    fit : Fit
        Of one cluster.
    n_init : int
        Starts by k-means++ of each number of clusters.
    options : Options
        How to fit.
    is_choice : bool
        If True, the number of clusters is chosen, and those too small to be clusters are not
        fitted.
    """

    def __init__(self, pool, fit, n_init, options, is_choice):
        self.first, self.n_init, self.options, self.is_choice = fit, n_init, options, is_choice
        self.u, self.means = _coordinates(pool, fit)
        self.seed = _drawn(pool.random_state)
        self.parent = np.zeros(len(self.u), dtype=int)
        #: Partitions that were tried, and the best trials, by number of clusters and kind.
        self.known, self.trials, self.ahead = {}, {}, 1

    def fitted(self, pool, fit, K, sure, target):
        """Fits with K clusters: with variance, where that can be estimated, and without.

        Parameters
        ----------
        pool : ClientPool
            The clients.
        fit : Fit
            Of fewer clusters, which are tried to be split.
        K : int
            Number of clusters.
        sure : int
            Number of clusters up to which fits will be asked for.
        target : float
            A fit whose ICL will not be below it ends after some exchanges.

        Returns
        -------
        fits : list of Fit
            Only `fit` if there is no such partition.
        """
        if self.ahead < K:
            self._try(pool, {k: self._partitions(pool, k) for k in range(K, sure + 1)})
            self.ahead = sure
        refused = any(fit is trial for trial in self.trials.get(K - 1, {}).values())
        if K > 2 and fit.population.n_clusters == K - 1 and not refused:
            labels = fit.responsibilities(pool).argmax(axis=1)
            if len(np.unique(labels)) == K - 1:
                self._try(pool, {K: self._splits(labels, K)})
        trials = list(self.trials[K].values())
        if not trials:
            return [fit]
        about = {"options": self.options, "target": target}
        tasks = [partial(_finished, trial=trial, **about) for trial in trials]
        if not self.is_choice:
            return at_once(pool, tasks)
        done = at_once(pool, [partial(_unless_refused, task=task) for task in tasks])
        return [each for each in done if each is not None] or [fit]

    def _partitions(self, pool, K):
        """Partitions into K clusters of the posterior means, by k-means and by splits."""
        found = []
        if count_different(self.u) >= K:
            seeds = [_drawn(pool.random_state) for _ in range(self.n_init)]
            found = [_k_means(self.u, K, seed) for seed in seeds]
        if len(np.unique(self.parent)) == K - 1:
            found += self._splits(self.parent, K)
        found = [labels for labels in found if len(np.unique(labels)) == K]
        self.parent = min(found, key=self._scatter, default=self.parent)
        return found

    def _scatter(self, labels):
        """Sum of squares about the means of clusters."""
        return sum(self._squares(labels == k) for k in range(labels.max() + 1))

    def _squares(self, mine):
        return ((self.u[mine] - self.u[mine].mean(axis=0)) ** 2).sum()

    def _splits(self, labels, K):
        """Partitions in which one of K - 1 clusters is two."""
        scatter, found = [self._squares(labels == k) for k in range(K - 1)], []
        for k in np.argsort(scatter)[::-1][:MOST_SPLITS]:
            mine = np.flatnonzero(labels == k)
            if count_different(self.u[mine]) >= 2:
                split = labels.copy()
                # The same split whenever the cluster is the same.
                split[mine[_k_means(self.u[mine], 2, self.seed) == 1]] = K - 1
                found.append(split)
        return found

    def _try(self, pool, partitions):
        """Make the first exchanges of the fits that start from partitions not tried yet."""
        options, asked = self.options, []
        n_varying = np.count_nonzero(options.varying)
        for K, found in partitions.items():
            self.trials.setdefault(K, {})
            new = {tuple(numbered(labels)): labels for labels in found}
            new = {key: labels for key, labels in new.items() if key not in self.known}
            self.known |= new
            about = self.first.population, self.means
            starts = [_of_partition(*about, labels, K, options) for labels in new.values()]
            if not starts:
                continue
            if not self.is_choice or K * (n_varying + 1) <= len(self.u):
                asked.append((K, "varied", starts))
            asked.append((K, "crisp", [start.crisp(options.prior == "auto") for start in starts]))
        tasks = [partial(_tried, starts=some, options=options) for *_, some in asked]
        if self.is_choice:  # numbers of clusters that sites refuse do not compete
            tasks = [partial(_unless_refused, task=task) for task in tasks]
        done = at_once(pool, tasks)
        for (K, kind, _), trial in zip(asked, done, strict=True):
            known = self.trials[K].get(kind)
            if trial is not None and (known is None or trial.loglik > known.loglik):
                self.trials[K][kind] = trial


def _tried(pool, starts, options):
    """The best fit after the first exchanges from each start, and who belongs where."""
    few = len(starts) <= MOST_TRIED
    how = {"options": options, "max_iter": TRIAL if few else GLANCE}
    tasks = [partial(maximise, population=start, **how) for start in starts]
    trials = at_once(pool, [partial(_unless_refused, task=task) for task in tasks])
    trials = [trial for trial in trials if trial is not None]
    if not trials:
        raise SumsRefused(starts[0].n_clusters)
    spent = sum(trial.n_iter for trial in trials)
    if not few:
        trials = sorted(trials, key=_likelihood)[-MOST_TRIED:]
        spent -= sum(trial.n_iter for trial in trials)
        how = {"options": options, "max_iter": TRIAL - GLANCE}
        trials = at_once(pool, [partial(continued, fit=trial, **how) for trial in trials])
        spent += sum(trial.n_iter for trial in trials)
    best = replace(max(trials, key=_likelihood), n_iter=spent)
    best.responsibilities(pool)
    return best


def _unless_refused(pool, task):
    """What a task returns; None if no site answers its sums, as those over few clients."""
    try:
        return task(pool=pool)
    except (Refused, SumsRefused):
        return None


def _likelihood(fit):
    """What fits are compared by: their priors, and what they spend of the rows, are unlike."""
    return fit.loglik


def _finished(pool, trial, options, target):
    """The whole fit of a trial; no more of it if it is hopeless."""
    if target < np.inf and not may_reach(pool, trial, options, target):
        return trial
    done = continued(pool, trial, options)
    return pruned(pool, done, options) if target < np.inf else done


def _drawn(random_state):
    return int(random_state.randint(np.iinfo(np.int32).max))


def _k_means(points, K, seed):
    """Labels of one start; fewer than K of points that coincide."""
    return kmeans(points, K, np.random.RandomState(seed), n_init=1)[0]


def at_once(pool, tasks):
    """Results of ``task(pool=...)`` that do not wait for each other."""
    return asked_at_once(*((pool, lambda lane, t=task: t(pool=lane)) for task in tasks))


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


def may_reach(pool, look, options, target):
    """Whether a fit, continued, may have a lower ICL than a target.

    Gains fall: the second half of a look gains more than all later exchanges together.  Values
    before and after a prior was fitted cannot be compared, and may fall.
    """
    gained = look.trail[-1][1] - look.trail[len(look.trail) // 2][1]
    return icl(look, pool, options) <= target + 2.0 * max(gained, 0.0)


def continued(pool, fit, options, max_iter=None):
    """A fit from where another ended; exchanges and steps of the other one are its first."""
    done = maximise(pool, fit.population, options, max_iter, fit.sums)
    n_iter = fit.n_iter + done.n_iter - 1
    return replace(done, n_iter=n_iter, trail=fit.trail + done.trail[1:])


def pruned(pool, fit, options):
    """The fit without clusters that are no client's most probable one."""
    while fit.population.n_clusters > 1:
        kept = np.unique(fit.responsibilities(pool).argmax(axis=1))
        if len(kept) == fit.population.n_clusters:
            break
        again = maximise(pool, fit.population.ordered(kept), options)
        fit = replace(again, n_iter=fit.n_iter + again.n_iter, trail=fit.trail + again.trail)
    return fit
