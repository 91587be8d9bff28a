"""Solutions of a fusion problem over lam, each from the one before."""

from dataclasses import dataclass

import numpy as np

__all__ = ["FusionPath", "fusion_path", "lam_grid"]

# A path ends a little beyond the bound where everything fuses: there it is easily proved.
BEYOND = 1.01
# A path begins where about this share of the neighbours could fuse, and not below this fraction of
# its upper end.
NEAREST, LEAST_START = 0.05, 1e-9
# A penalty that fuses nothing is tried from where it is this much weaker than the clients' own
# objectives to where it is this much stronger.
WEAKER, STRONGER = 1e-4, 1e2


def path_start(problem, upper):
    """A lam at which little fuses: about what pulls the nearest neighbours together."""
    WT = np.ascontiguousarray(problem.local_models().T)
    least = np.inf
    for block in problem.blocks:
        distance = problem.penalty.value(block.difference(WT))
        reach = (distance / block.weights)[distance > 0]
        if reach.size:
            least = min(least, np.quantile(reach, NEAREST))
    degree = max(float(problem.graph.degrees(weighted=False).mean()), 1.0)
    start = 0.25 * problem.curvature() * least / degree
    return float(np.clip(start, LEAST_START * upper, upper))


def path_ends(problem):
    """Values of lam between which clients fuse; (0, 0) where no lam changes anything."""
    upper = _rough_end(problem)
    return path_start(problem, upper), upper


def _rough_end(problem):
    """A lam at which everything fuses, not the least; zero if no lam changes anything."""
    upper = BEYOND * problem.bounds(tol=1e9, max_iter=1)[1]
    # If the local models agree, any lam fuses them.
    return 1.0 if upper == 0.0 and problem.graph.n_edges else upper


def lam_grid(problem, n_lams, ratio=None, rough=False):
    """Values of lam from where hardly anything fuses to where everything does.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    n_lams : int
        How many, in equal steps of their logarithm.
    ratio : float, default=None
        The first over the last; None begins where the nearest neighbours hardly fuse.
    rough : bool, default=False
        True if the first bound of where everything fuses will do.

    Returns
    -------
    lams : ndarray
        Ascending; a single 0 where no lam changes anything. A penalty that fuses nothing has
        no last value: the grid then begins where it is far weaker than the clients' own
        objectives, by the largest curvature of each, and ends where it is far stronger.
    """
    if not problem.penalty.norm:
        degree = float(problem.graph.degrees().mean())
        curvature = problem.pool.spectrum()[0][~problem.pool.without_rows].mean()
        upper = STRONGER * float(curvature) / degree if degree > 0.0 else 0.0
        lower = WEAKER / STRONGER * upper
    else:
        upper = _rough_end(problem) if rough else BEYOND * problem.bounds()[1]
        lower = path_start(problem, upper) if ratio is None and upper > 0.0 else 0.0
    if not upper > 0.0 or problem.n == 1:
        return np.zeros(1)
    if ratio is not None:
        lower = ratio * upper
    if n_lams == 1 or lower >= upper:
        return np.array([upper])
    return np.geomspace(lower, upper, n_lams)


@dataclass
class FusionPath:
    """Solutions over lam.

    Attributes
    ----------
    lams : ndarray of shape (n_lams,)
        Ascending.
    params : ndarray of shape (n_lams, n_clients, n_params)
        The clients' models, refitted if that was asked for.
    fusion_params : ndarray of shape (n_lams, n_clients, n_params)
        Solutions of the penalised problems.
    labels : ndarray of shape (n_lams, n_clients)
        Clusters, not canonical.
    objectives, gaps : ndarray of shape (n_lams,)
        Objectives and bounds of their excess.
    optimal, converged : ndarray of shape (n_lams,) of bool
        True if the partition is proved, the gap small enough.
    n_iter : ndarray of shape (n_lams,)
        Iterations.
    """

    lams: np.ndarray
    params: np.ndarray
    fusion_params: np.ndarray
    labels: np.ndarray
    objectives: np.ndarray
    gaps: np.ndarray
    optimal: np.ndarray
    converged: np.ndarray
    n_iter: np.ndarray

    @classmethod
    def of(cls, lams, results, models):
        """Path of some results and the models that are published of each."""
        return cls(
            lams=np.asarray(lams, dtype=float),
            params=np.array(models),
            fusion_params=np.array([r.params for r in results]),
            labels=np.array([r.labels for r in results]),
            objectives=np.array([r.objective for r in results]),
            gaps=np.array([r.extra.get("dual_gap", np.nan) for r in results]),
            optimal=np.array([r.extra.get("partition_optimal", False) for r in results]),
            converged=np.array([r.converged for r in results]),
            n_iter=np.array([r.n_iter for r in results]),
        )


def fusion_path(lams, solve, refit=None):
    """Solve at ascending lams, each from the solution before.

    No cluster is frozen: at every lam the solver starts from all clients' models, finds the
    partition anew and proves it, so that fused clients can part again.

    Parameters
    ----------
    lams : ndarray of shape (n_lams,)
        Ascending.
    solve : callable
        ``solve(lam, state)`` returns a Result and a state to go on from.
    refit : callable, default=None
        ``refit(labels, cluster_params)`` returns each cluster's model fitted anew on its pooled
        rows.

    Returns
    -------
    path : FusionPath
    """
    state, results, models = None, [], []
    for lam in lams:
        result, state = solve(float(lam), state)
        if refit is None:
            models.append(result.params)
        elif results and np.array_equal(result.labels, results[-1].labels):
            models.append(models[-1])
        else:
            models.append(refit(result.labels, result.cluster_params)[result.labels])
        results.append(result)
    return FusionPath.of(lams, results, models)
