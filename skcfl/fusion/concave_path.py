"""FPFC over lam: the value whose clusters, refitted, are best."""

import numpy as np

from .._progress import series
from ..numerics.by_cluster import mean_by_cluster
from .bic_search import Refits

__all__ = ["FPFCRefits", "FPFCSearch"]

# The factor by which lam goes on where clients are still apart at the end of the grid, and how
# often; times that the values halfway to the neighbours of the best are tried.
BEYOND, MAX_BEYOND = 1.5, 12
REFINEMENTS = 2


class FPFCRefits(Refits):
    """Refits that can also be trained; their criterion."""

    def __init__(self, problem, rng):
        self.rng = rng
        super().__init__(problem)

    def models(self, labels):
        """Each cluster's model on its clients' pooled rows, (K, d)."""
        if self.problem.exact:
            return super().models(labels)
        local = self.problem.local_models()
        theta = mean_by_cluster(local, labels, self.share)
        if len(theta) == self.problem.n:
            return theta
        return self.problem.refit(labels, theta, self.rng)


class FPFCSearch:
    """Search of lam by the criterion of the refitted partitions.

    Parameters
    ----------
    problem : FPFCProblem
        The problem.
    solve : callable
        ``solve(lam)`` returns a Result, always from the same start.
    rng : RandomState
        For refits by training.
    """

    def __init__(self, problem, solve, rng):
        self.problem, self.solve = problem, solve
        self.refits = FPFCRefits(problem, rng)
        apart = np.arange(problem.n)
        self.tried = {0.0: (problem.n, self.refits.criterion(apart))}
        self.best = self.tried[0.0][1]
        self.results = {0.0: None}  # at the values of the best partition

    def run(self, lams, grows=True):
        """The lam of least criterion among `lams`, and the result there.

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
        most = len(lams) + 2 * refinements
        with series("lam", "candidate", most, sure=False) as self.progress:
            for lam in lams:
                fused = lam > 0.0 and self._try(lam) == 1
                if (fused and grows) or self.progress.stopped:
                    break
            for _ in range(refinements):
                for lam in [] if self.progress.stopped else self._beside_best():
                    self._try(lam)
        lam = self._middle()
        return lam, self.results[lam] if lam > 0.0 else self.solve(0.0)

    def _middle(self):
        """The middle of the values with the best partition, 0 if it is one of them."""
        lams = sorted(self.results)
        return 0.0 if lams[0] == 0.0 else lams[len(lams) // 2]

    def _beside_best(self):
        """Halfway from the best lam to its neighbours, where these have another clustering."""
        lams = [lam for lam in sorted(self.tried) if lam > 0.0]
        best = self._middle()
        if best == 0.0:
            return
        k = lams.index(best)
        for other in lams[max(k - 1, 0) : k] + lams[k + 1 : k + 2]:
            if self.tried[other] != self.tried[lams[k]]:
                yield float(np.sqrt(lams[k] * other))

    def _try(self, lam):
        with self.progress.item(f"lam {lam:.4g}", leaf=True) as tell:
            result = self.solve(float(lam))
            n_clusters = int(result.labels.max()) + 1
            value = self.refits.criterion(result.labels)
            tell(n_clusters=n_clusters, criterion=value)
        self.tried[float(lam)] = n_clusters, value
        if value < self.best:
            self.best, self.results = value, {}
        if value == self.best:
            self.results[float(lam)] = result
        return n_clusters

    def record(self):
        """What was tried: arrays ``lam``, ``n_clusters``, ``criterion``."""
        lams = sorted(self.tried)
        numbers, values = zip(*(self.tried[lam] for lam in lams), strict=True)
        return {
            "lam": np.array(lams),
            "n_clusters": np.array(numbers),
            "criterion": np.array(values),
        }
