r"""Choice of lam by the partitions that it gives: a Bayesian information criterion.

Fusion shrinks the models of different clusters towards each other, so that the loss of the
penalised models always asks for a smaller lam.  So every *partition* met is judged by its refitted
models, each cluster's own minimiser on the pooled rows of its clients.  The criterion is minus
twice the logarithm of the partition's posterior probability, approximated as in the Bayesian
information criterion:

    deviance(sum_k (n_k L_k + L_k^0) / (n_k + 1))
        + sum_k p_k log(1 + n_k) + p log(sum_k n_k / (1 + n_k)) + 2 log S(N, K) + 2 log K

The prior of a cluster's model has the information of one row about a common model (Kass and
Wasserman, 1995), whose prior is flat.  With n_k the weight of the cluster's rows, L_k their total
loss under its model and L_k^0 under that of all, the first three terms follow (exactly in least
squares, but for where the common model lies).  p_k is the number p of parameters, or of the
cluster's rows where that is less: a cluster that interpolates its few rows gains nothing by it,
which BIC as it stands gets wrong.  The others say that all S(N, K) partitions of N clients into K
clusters have the same prior probability, and K itself one that falls like 1 / K: a correction for
multiple partitions.  The deviance is twice the loss where that is minus
a log-likelihood, and ``(n - p) log(loss)`` where the size of the noise is unknown (squared error,
Huber).  Clients send their losses only.
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln

from .._progress import series
from ..numerics.by_cluster import mean_by_cluster, numbered

__all__ = ["GridSearch", "PartitionCriterion", "PathSearch"]

# Steps of a path, of a factor between these two, longer while the partition does not change.
N_STEPS, LEAST_STEP, STEP = 10, 1.15, 1.5
ACCELERATION, MAX_STEP = 1.3, 4.0
# Values tried where the number of clusters falls by more than this factor from one to the next,
# unless they are as near as this.
MAX_FILLS, LARGE_DROP, NARROW = 6, 2.5, 1.02
# Values tried between two neighbours of the best one whose partitions are unlike.
MAX_REFINEMENTS = 8
# Factor by which a grid goes on where clients are still separate at its end, and how often; times
# that the values halfway to the neighbours of the best are tried.
BEYOND, MAX_BEYOND, REFINEMENTS = 1.5, 12, 2
# Losses below this fraction of that of one model for all are no better than others, and below this
# fraction of that of zero models they are rounding, whatever the targets' distance from zero.
LEAST_LOSS, ROUNDING = 1e-10, 1e-29


class PartitionCriterion:
    """Refitted models of partitions and their criterion, each computed once.

    Parameters
    ----------
    problem : FusionProblem
        With ``local_models()``, ``objectives(W)`` and ``refit(labels, theta)``.
    """

    def __init__(self, problem):
        self.problem, self.pool = problem, problem.pool
        self.known = {}
        self.share = self.pool.client_weights
        # What clients lose at their own models; all there is to know where they are isotropic.
        self.least = None
        if self.pool.model.isotropic:
            self.least = problem.objectives(problem.local_models())
        self.zero = float(self.share @ self.losses(np.zeros((problem.n, problem.d))))
        together = np.zeros(problem.n, dtype=np.intp)
        self.common = self.share * self.losses(self.models(together)[together])

    def losses(self, W):
        """Losses of the clients at their models, without the local penalty."""
        if self.least is not None:
            away = W - self.problem.local_models()
            return self.least + 0.5 * np.einsum("nd,nd->n", away, away)
        return self.problem.objectives(W) - self.pool.model.penalties(W)

    def models(self, labels):
        """Each cluster's model on its clients' pooled rows, (K, d)."""
        theta = mean_by_cluster(self.problem.local_models(), labels, self.share)
        if len(theta) == self.problem.n or self.least is not None:
            return theta
        return self.problem.refit(labels, theta)

    def __call__(self, labels):
        """The criterion of a partition, least where it is best."""
        labels = numbered(labels)
        key = labels.tobytes()
        if key not in self.known:
            self.known[key] = self._evaluate(labels)
        return self.known[key]

    def _evaluate(self, labels):
        model = self.pool.model
        # Rows say nothing about where clients without rows belong.
        with_rows = labels[~self.pool.without_rows]
        N, K = len(with_rows), len(np.unique(with_rows))
        loss = np.bincount(labels, self.share * self.losses(self.models(labels)[labels]))
        loss0 = np.bincount(labels, self.common)
        rows = np.bincount(labels, self.share)
        total = float(((rows * loss + loss0) / (rows + 1.0)).sum())
        p = model.n_free
        if model.unknown_scale:
            size = max(rows.sum() * model.n_outputs - p, 0.0)
            least = max(LEAST_LOSS * float(self.common.sum()), ROUNDING * self.zero, 1e-300)
            deviance = 2.0 / model.loss_degree * size * np.log(max(total, least))
        else:
            deviance = 2.0 * total
        models = float(np.minimum(p, rows * model.n_outputs) @ np.log1p(rows))
        common = p * np.log(max((rows / (1.0 + rows)).sum(), 1e-300))
        return deviance + models + common + 2.0 * (log_partitions(N, K) + np.log(K))


def log_partitions(N, K):
    """Logarithm of the number of partitions of N things into K parts.

    Stirling numbers of the second kind by Temme's approximation (1993), right to some per cent.
    """
    if K in (1, N):
        return 0.0
    ratio = N / K
    # x = ratio (1 - exp(-x)), a contraction on the right of its fixed point.
    x = brentq(lambda x: x + ratio * np.expm1(-x), 1e-12 + 0.5 * (ratio - 1.0) / ratio, ratio)
    t = ratio - 1.0
    log_binomial = gammaln(N + 1) - gammaln(K + 1) - gammaln(N - K + 1)
    exponent = -N * np.log(x) + K * (x + np.log1p(-np.exp(-x))) - K * t + (N - K) * np.log(t)
    return 0.5 * np.log(t / ((1.0 + t) * (x - t))) + exponent + (N - K) * np.log(K) + log_binomial


class _PartitionSearch:
    """What has been tried: values of lam, their partitions and criteria, and the best."""

    def __init__(self, problem, solve):
        self.problem, self.solve = problem, solve
        self.criterion = PartitionCriterion(problem)
        self.lams, self.labels = [0.0], [np.arange(problem.n)]
        self.criteria = [self.criterion(self.labels[0])]
        #: Results and states by place in these lists, as long as they may be taken.
        self.kept = {0: (None, None)}

    def _try(self, lam, labels=None, **how):
        """Solve at a lam and judge its partition; `labels` are given where they are known."""
        with self.progress.item(f"lam {lam:.4g}", leaf=True) as tell:
            result, state = self.solve(lam, **how)
            labels = numbered(result.labels) if labels is None else labels
            value = self.criterion(labels)
            tell(n_clusters=int(labels.max()) + 1, criterion=value)
        self.lams.append(lam)
        self.labels.append(labels)
        self.criteria.append(value)
        self._keep(len(self.lams) - 1, value, (result, state))
        return state

    def n_clusters(self, place):
        """Number of clusters of a partition that was tried."""
        return int(self.labels[place].max()) + 1

    def record(self):
        """What was tried, by ascending lam: arrays ``lam``, ``n_clusters``, ``criterion``."""
        order = [i for i in np.argsort(self.lams, kind="stable") if self.criteria[i] < np.inf]
        return {
            "lam": np.array(self.lams)[order],
            "n_clusters": np.array([self.n_clusters(i) for i in order]),
            "criterion": np.array(self.criteria)[order],
        }


class PathSearch(_PartitionSearch):
    """Choice of lam along a path, every solution from the one before.

    Parameters
    ----------
    problem : FusionProblem
        With a penalty that fuses, and ``path_ends()``.
    solve : callable
        ``solve(lam, state=state, max_iter=max_iter)`` returns a Result and a state to go on from.
    max_iter : int
        Iterations for a lam.
    """

    def __init__(self, problem, solve, max_iter=300):
        super().__init__(problem, solve)
        self.max_iter = max_iter
        self.fused = numbered(problem.graph.components())

    def run(self, lams=None):
        """Walk up the path, then look closer around the best; or try the values given.

        Parameters
        ----------
        lams : ndarray, default=None
            The values to try, ascending.

        Returns
        -------
        lam : float
            The least lam met whose partition has the least criterion; 0 where the clients'
            own models are best.
        result, state
            Of the solver there; None at 0.
        """
        with series("lam", "candidate", None) as self.progress:
            if lams is None:
                self._walk()
                self._look_closer()
            else:
                state = None
                if lams[0] > 0.0:  # zero is none of them
                    self.criteria[0] = np.inf
                for lam in lams[lams > 0.0]:
                    if not self.progress.stopped:
                        state = self._go(float(lam), state)
        return self.lams[self.best], *self.kept[self.best]

    @property
    def best(self):
        """Place of the best value: of the least criterion, of equal ones the least lam."""
        return next(iter(self.kept))

    def _keep(self, place, value, found):
        before = self.criteria[self.best], self.lams[self.best]
        if (value, self.lams[place]) < before:
            self.kept = {place: found}

    def _go(self, lam, state, labels=None):
        return self._try(lam, labels, state=state, max_iter=self.max_iter)

    def _walk(self):
        """Try values from where little fuses to where everything does."""
        (lam, upper), state = self.problem.path_ends(), None
        usual = step = np.clip((upper / max(lam, 1e-300)) ** (1.0 / N_STEPS), LEAST_STEP, STEP)
        while upper > 0.0 and not self.progress.stopped:
            # At the upper end the partition is known, however far the solver came.
            state = self._go(lam, state, self.fused if lam >= upper else None)
            labels = self.labels[-1]
            if lam >= upper or np.array_equal(labels, self.fused):
                break
            # Nothing is skipped before the first models meet.
            same = np.array_equal(labels, self.labels[-2]) and labels.max() + 1 < self.problem.n
            step = min(step * ACCELERATION, MAX_STEP) if same else usual
            lam = min(lam * step, upper)

    def _look_closer(self):
        """Try values where many models fused in one step, and around the best."""
        for _ in range(MAX_FILLS):
            lam = self._largest_drop()
            if lam is None or self.progress.stopped:
                break
            self._go(lam, self.kept[self.best][1])
        for _ in range(MAX_REFINEMENTS // 2):
            between = self._gaps()
            if not between or self.progress.stopped:
                break
            for lam in between:
                self._go(lam, self.kept[self.best][1])

    def _largest_drop(self):
        """A lam where many models fused in one step, by the ratio of their numbers."""
        order = np.argsort(self.lams)[1:]  # no lam above zero is the first
        if len(order) < 2:
            return None
        lams = np.array(self.lams)[order]
        numbers = np.array([float(self.n_clusters(i)) for i in order])
        drop = numbers[:-1] / numbers[1:]
        # Nothing lies between lams that are nearly equal, and partitions much finer than the
        # best are not better.
        drop[(lams[1:] < NARROW * lams[:-1]) | (np.diff(numbers) >= -1)] = 0.0
        drop[numbers[1:] > self.n_clusters(self.best)] = 0.0
        k = int(drop.argmax())
        return float(np.sqrt(lams[k] * lams[k + 1])) if drop[k] > LARGE_DROP else None

    def _gaps(self):
        """Lams halfway to the neighbours of the best whose partitions are more than a step off."""
        order = np.argsort(self.lams)
        place = int(np.flatnonzero(order == self.best)[0])
        between = []
        for a, b in ((place - 1, place), (place, place + 1)):
            if a < 0 or b >= len(order) or self.lams[order[a]] == 0.0:
                continue
            i, j = order[a], order[b]
            if abs(self.n_clusters(i) - self.n_clusters(j)) > 1:
                between.append(float(np.sqrt(self.lams[i] * self.lams[j])))
        return between


class GridSearch(_PartitionSearch):
    """Choice of lam on a grid, every solution from the same start.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    solve : callable
        ``solve(lam)`` returns a Result and a state.
    """

    def run(self, lams, grows=True):
        """The lam of least criterion, and the result there.

        Parameters
        ----------
        lams : ndarray
            Values to begin with, ascending.
        grows : bool, default=True
            If True, values beyond and between them are tried too.

        Returns
        -------
        lam : float
            In the middle of those with the best partition, as far as can be from where clusters
            fall apart or fuse; 0 where the clients' own models are best.
        result : Result
        """
        beyond, refinements = (MAX_BEYOND, REFINEMENTS) if grows else (0, 0)
        lams = [*lams, *lams[-1] * BEYOND ** np.arange(1, beyond + 1)]
        if not grows and lams[0] > 0.0:  # zero is none of them
            self.criteria[0] = np.inf
        most = len(lams) + 2 * refinements
        with series("lam", "candidate", most, sure=False) as self.progress:
            for lam in lams:
                if lam > 0.0:
                    self._try(float(lam))
                fused = lam > 0.0 and self.n_clusters(-1) == 1
                if (fused and grows) or self.progress.stopped:
                    break
            for _ in range(refinements):
                for lam in [] if self.progress.stopped else self._beside_best():
                    self._try(lam)
        best = self._middle()
        lam = self.lams[best]
        return lam, self.kept[best][0] if lam > 0.0 else self.solve(0.0)[0]

    def _keep(self, place, value, found):
        least = min(self.criteria[:-1])
        if value < least:
            self.kept = {}
        if value <= least:
            self.kept[place] = found

    def _middle(self):
        """Place of the middle of the values with the best partition, or of 0 if it is one."""
        best = sorted(self.kept, key=self.lams.__getitem__)
        return best[0] if self.lams[best[0]] == 0.0 else best[len(best) // 2]

    def _beside_best(self):
        """Halfway from the best lam to its neighbours, where these have another clustering."""
        order = [int(i) for i in np.argsort(self.lams, kind="stable") if self.lams[i] > 0.0]
        best = self._middle()
        if self.lams[best] == 0.0:
            return
        k = order.index(best)
        for other in order[max(k - 1, 0) : k] + order[k + 1 : k + 2]:
            if (self.n_clusters(other), self.criteria[other]) != (
                self.n_clusters(best),
                self.criteria[best],
            ):
                yield float(np.sqrt(self.lams[best] * self.lams[other]))
