"""Fusion methods over lam: where everything fuses, and all solutions on the way."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._checks import MOST, Count, Interval, strengths
from .._typing import Array, ArrayLike, Groups, MatrixLike, Targets, Weights, validate_params
from ..numerics.by_cluster import numbered_by_size

# Values of lam that a path can have.
MOST_LAMS = 10**4


def lam_max(
    est: Any,
    X: MatrixLike,
    y: Targets = None,
    groups: Groups = None,
    sample_weight: Weights = None,
) -> tuple[float, float]:
    """Bounds of the value of lam at and beyond which all clients have one model.

    Parameters
    ----------
    est : estimator
        A fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, fitted or not, which
        stays as it is. Its local model, ``graph`` and ``penalty`` count, its ``lam`` does not;
        "auto" is what its fit has chosen, as in :func:`lam_path`.
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        Rows, as for ``fit``.
    y : array-like of shape (n_samples,), default=None
        Targets, where the local model needs them.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client; not with ``group_col``.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows.

    Returns
    -------
    lower, upper : float
        Below `lower` not everything is fused, from `upper` on it is (but for rounding: ask for a
        little more), and the fit is the pooled one with every client counting once. On a
        disconnected graph, the same of each component. Equal on trees, with one parameter, and
        with ``penalty="l1"``; elsewhere within a few thousandths. Both are 0 if nothing is
        compared or all clients agree, both infinite with ``penalty="squared_l2"``, which never
        makes models equal. For :class:`skcfl.FPFC` with a concave penalty they bound the value at
        which equal models become a stationary point, which a fit from local models may not end in.

    Raises
    ------
    TypeError
        If `est` is not a fusion method.
    ValueError
        If the rows, the ids or a parameter are not valid.

    See Also
    --------
    lam_path : Solutions up to there.

    Notes
    -----
    At the pooled optimum the edges have to carry the clients' gradients away. The least lam that
    lets them is the value of a flow problem, bounded from above by a flow and from below by
    potentials, cuts among them. On a tree the flow is given by the outflows, and on any graph
    maximum flows find the best cut, which is the value where every coordinate has its own.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.model_selection import lam_max
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> lower, upper = lam_max(ConvexClusteredFLRegressor(), data.X, data.y, groups=data.groups)
    >>> lam = 1.001 * upper
    >>> ConvexClusteredFLRegressor(lam=lam).fit(data.X, data.y, groups=data.groups).n_clusters_
    1
    >>> lam = 0.9 * lower
    >>> ConvexClusteredFLRegressor(lam=lam).fit(data.X, data.y, groups=data.groups).n_clusters_ > 1
    True
    """
    return _problem(est, X, y, groups, sample_weight)[2].bounds()


@dataclass
class LamPath:
    """Solutions of a fusion method over lam, from :func:`lam_path`.

    Parameters
    ----------
    lams : ndarray of shape (n_lams,)
        Values of lam, ascending.
    params : ndarray of shape (n_lams, n_clients, n_params)
        The clients' models: at each lam the ``params_`` of a fit.
    labels : ndarray of shape (n_lams, n_clients)
        The clients' clusters: the ``labels_`` of a fit.
    n_clusters : ndarray of shape (n_lams,)
        Number of clusters.
    gaps : ndarray of shape (n_lams,)
        Duality gaps, bounds of how much the objectives exceed their minima; NaN where the
        problem is not convex (:class:`skcfl.FPFC`).
    objectives : ndarray of shape (n_lams,)
        Penalised objectives at `fusion_params`.
    optimal : ndarray of shape (n_lams,) of bool
        True where the clusters are proved to be the exact solution's at that lam, which is no
        proof that they are real.
    groups : ndarray of shape (n_clients,)
        Sorted ids of the clients.
    fusion_params : ndarray of shape (n_lams, n_clients, n_params)
        Solutions of the penalised problems; unlike `params` if the estimator refits.
    n_iter : ndarray of shape (n_lams,)
        Iterations at each lam.
    converged : ndarray of shape (n_lams,) of bool
        True if the gap is as small as the estimator's ``tol`` asks.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.model_selection import lam_path
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> est = ConvexClusteredFLRegressor(graph="knn")
    >>> lam_path(est, data.X, data.y, groups=data.groups, n_lams=5).params.shape
    (5, 12, 11)
    """

    lams: np.ndarray
    params: np.ndarray
    labels: np.ndarray
    n_clusters: np.ndarray
    gaps: np.ndarray
    objectives: np.ndarray
    optimal: np.ndarray
    groups: np.ndarray
    fusion_params: np.ndarray
    n_iter: np.ndarray
    converged: np.ndarray


@validate_params(
    {
        "n_lams": [Count(1, MOST_LAMS)],
        "lams": ["array-like", None],
        "lam_min_ratio": [Interval(Real, 1e-30, 1, closed="left"), None],
    },
    prefer_skip_nested_validation=False,
)
def lam_path(
    est: Any,
    X: MatrixLike,
    y: Targets = None,
    groups: Groups = None,
    *,
    n_lams: int = 30,
    lams: ArrayLike | None = None,
    lam_min_ratio: float | None = None,
    sample_weight: Weights = None,
) -> LamPath:
    """Solve a fusion method over a range of lam.

    Every solution of a convex method starts from the one before, with its dual rescaled and the
    step of the algorithm chosen anew, so that a path costs a few fits. The result of
    :class:`skcfl.FPFC` depends on the start, so every solution starts from the same local models.
    No cluster is ever frozen: at each lam the partition is found (and proved) anew, since clients
    that are fused can part again at a larger lam.

    Parameters
    ----------
    est : estimator
        A fusion method such as :class:`skcfl.ConvexClusteredFLClassifier`, fitted or not, which
        stays as it is. All its parameters but ``lam`` and ``warm_start`` count. If it is
        fitted to these clients, "auto" is what its fit has chosen, and the path at its ``lam_`` is
        the fit; else "auto" is what a fit with a number for ``lam`` takes.
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        Rows, as for ``fit``.
    y : array-like of shape (n_samples,), default=None
        Targets, where the local model needs them.
    groups : array-like of shape (n_samples,), default=None
        Id of each row's client; not with ``group_col``.
    n_lams : int, default=30
        Number of values of lam, in equal steps of their logarithm. Not used with `lams`.
    lams : array-like of shape (n_lams,), default=None
        Values of lam, not negative, in any order. None goes up to the upper bound of
        :func:`lam_max` and a hundredth more; for FPFC from .3 times the least distance of local
        models over ``a`` to 1.05 times the largest.
    lam_min_ratio : float, default=None
        The least lam over the largest. None begins where hardly anything fuses.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows.

    Returns
    -------
    path : LamPath
        With ``lams``, ascending and each once, and at each of them the models ``params``, the
        clusters ``labels``, ``n_clusters``, ``gaps``, ``objectives`` and ``optimal``. If no lam
        changes anything, as with one client, ``lams`` is a single 0.

    Raises
    ------
    TypeError
        If `est` is not a fusion method.
    ValueError
        If the rows, the ids or a parameter are not valid.

    Warns
    -----
    ConvergenceWarning
        Once, if solutions did not reach the estimator's ``tol``.

    See Also
    --------
    lam_max : Where a path ends.
    skcfl.LamSearch : Chooses lam, by cross-validation too.

    Notes
    -----
    The largest lam where "squared_l2" is the penalty, which fuses nothing, makes it 100 times as
    strong as the clients' own objectives; the least makes it a ten-thousandth as strong.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.model_selection import lam_path
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> est = ConvexClusteredFLRegressor(graph="knn")
    >>> path = lam_path(est, data.X, data.y, groups=data.groups, n_lams=10)
    >>> int(path.n_clusters[0]), 3 in path.n_clusters, int(path.n_clusters[-1])
    (12, True, 1)
    """
    est, task, problem = _problem(est, X, y, groups, sample_weight)
    if lams is None:
        lams = problem.grid(n_lams, lam_min_ratio)
        if lams.max() > MOST:
            raise ValueError(
                f"X or y holds numbers so unlike that lam would reach {lams.max():.3g}, more than "
                f"{MOST:g}: rescale them, or give lams."
            )
    else:
        lams = strengths(lams, "lams")
    path = est._path(problem, lams)
    if not path.converged.all():
        warn_path(path, est)
    labels = np.array([numbered_by_size(row)[1] for row in path.labels])
    clients = np.zeros(1, dtype=int) if task.groups is None else task.groups
    units, dtype = task.pool.units, task.pool.dtype
    found = {
        "params": units.to_user(path.params).astype(dtype, copy=False),
        "fusion_params": units.to_user(path.fusion_params),
        "labels": labels,
    }
    return LamPath(**(vars(path) | found), n_clusters=labels.max(axis=1) + 1, groups=clients)


def warn_path(path: Any, est: Any) -> None:
    """Say once that solutions of a path fell short."""
    short = np.flatnonzero(~path.converged)
    excess = path.gaps[short] / np.maximum(np.abs(path.objectives[short]), 1e-300)
    gap = f"; the largest relative duality gap is {excess.max():.2g}"
    if np.isnan(excess).all():
        gap = ""  # without a dual problem there is none
    warnings.warn(
        f"{len(short)} of {len(path.lams)} solutions on the path did not reach tol={est.tol:g} in "
        f"max_iter={est.max_iter} iterations{gap}. Increase max_iter or tol.",
        ConvergenceWarning,
        stacklevel=4,
    )


def _problem(
    est: Any, X: MatrixLike, y: Targets, groups: Groups, sample_weight: Weights
) -> tuple[Any, Any, Any]:
    """The estimator without open options, the clients and the fusion problem of these rows."""
    if not hasattr(est, "_path"):
        raise TypeError(
            "est must be an estimator with a fusion penalty, such as ConvexClusteredFLRegressor, "
            f"got {est!r}. Pass the last step of a Pipeline, and transformed rows."
        )
    est._validate_params()
    if getattr(est, "client_loss", None) is not None:
        raise ValueError(
            "Paths need unbounded objectives: est must have client_loss=None, got "
            f"{est.client_loss!r}."
        )
    task = est._task(X, y, groups, sample_weight)
    pool = task.pool
    if is_fitted_to(est, task.groups):
        est, pool = est._as_fitted(pool)
    return est, task, est._problem(pool, **task.options)


def is_fitted_to(est: Any, clients: Array | None) -> bool:
    """If True, `est` is fitted to the clients of these sorted ids, and has its solution."""
    if not hasattr(est, "_solution"):
        return False
    known = getattr(est, "groups_", np.arange(len(est.labels_)))  # points have no ids
    return np.array_equal(known, np.zeros(1, dtype=int) if clients is None else clients)
