"""Convex clustering of clients, lam chosen by cross-validation."""

from numbers import Integral, Real

import numpy as np
from sklearn.model_selection import check_cv
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.parallel import Parallel, delayed

from .._checks import Count, about
from .._docs import document
from ..model_selection import ClientKFold
from ..model_selection._path import check_lams
from ._flavours import ClassifierMixin, RegressorMixin
from ._fusion import Fusion

__all__ = ["ConvexClusteredFLClassifierCV", "ConvexClusteredFLRegressorCV"]

# Scores this near to the best are equal, relatively: then the larger lam is taken.
TIE = 1e-9


class LamCV:
    """What methods that choose lam by cross-validation have in common.

    A subclass has ``_problem(pool, ...)``, ``_path(problem, lams)`` and ``_lam_grid``.
    """

    _parameter_constraints = {
        "n_lams": [Count(1, 10**4)],
        "lams": ["array-like", None],
        "lam_min_ratio": [Interval(Real, 0, 1, closed="neither"), None],
        "cv": [Interval(Integral, 2, None, closed="left"), HasMethods(["split"]), "array-like"],
        "scoring": [str, callable, None],
    }

    _doc_parameters = {
        "n_lams": """\
            int
            Number of values of ``lam`` to try, in equal steps of their logarithm. Not used with
            ``lams``.""",
        "lams": """\
            array-like or None
            Values of ``lam`` to try. None goes from where hardly anything fuses to where
            everything does on all rows, :func:`skcfl.model_selection.lam_max`.""",
        "lam_min_ratio": """\
            float or None
            The least value of ``lam`` over the largest. None finds where hardly anything
            fuses. Not used with ``lams``.""",
        "cv": """\
            int, cross-validation splitter or iterable
            How rows are dealt. A number of folds takes that many rows of every client out in turn
            (:class:`skcfl.model_selection.ClientKFold`, shuffled by ``random_state``). A splitter
            gets the features without ids, the targets, and the clients' positions in ``groups_``
            as groups; an iterable yields positions of training and test rows.""",
        "scoring": """\
            str, callable or None
            What is to be large on the test rows: None is minus the mean loss of the local model,
            a row's weight counted; else a name that scikit-learn knows, such as "accuracy" or
            "roc_auc", or a scorer, for which all rows of a fold count alike.""",
        "refit": """\
            bool
            Whether each cluster's model is fitted anew on the pooled rows of its clients, on
            every fold and in the end, without what the penalty does to models of different
            clusters. The penalised models are kept in ``fusion_params_``.""",
        "n_jobs": """\
            int or None
            Number of folds at a time, in threads, and in the final fit of blocks of clients; None
            is 1, -1 all processors. The result does not depend on it.""",
    }

    _doc_attributes = {
        "lam_": """\
            float
            The ``lam`` of best mean score, the largest of equal ones.""",
        "lams_": """\
            ndarray of shape (n_lams,)
            The values tried, ascending. A single 0 where no value changes anything, as with one
            client.""",
        "cv_scores_": """\
            ndarray of shape (n_folds, n_lams)
            Score of every fold at every value, the larger the better. NaN with one client,
            where nothing is chosen.""",
        "best_index_": """\
            int
            Place of ``lam_`` in ``lams_``.""",
        "lam_search_": None,
        "n_iter_": """\
            int
            Number of iterations of the final fit.""",
        "floats_up_": """\
            int
            Numbers sent by the clients to the server in the whole fit, cross-validation and
            refit included.""",
    }

    def _task_options(self, task):
        return {**task.options, "folds": task.folds}

    def _lams(self, problem):
        """The values to try, ascending."""
        if self.lams is None:
            return self._lam_grid(problem, self.n_lams, self.lam_min_ratio)
        return check_lams(self.lams)

    def _splitter(self, rng=None):
        """The splitter; it finds the clients in the groups that it is given."""
        if isinstance(self.cv, Integral):
            return ClientKFold(int(self.cv), random_state=rng)
        with about("cv"):
            return check_cv(self.cv)

    def _n_folds(self):
        return self._splitter().get_n_splits(None, None, [0])

    def _scores(self, pool, folds, lams, *ids):
        """Scores (n_folds, n_lams); what the clients send is booked."""
        rng = pool.random_state
        parts = folds.split(self._splitter(rng))
        seeds = rng.randint(np.iinfo(np.int32).max, size=len(parts))
        done = Parallel(n_jobs=self.n_jobs, prefer="threads")(
            delayed(self._score_fold)(part, lams, seed, *ids)
            for part, seed in zip(parts, seeds, strict=True)
        )
        for _, up, down in done:
            pool.ledger.book(up=up, down=down)
        return np.array([scores for scores, _, _ in done])

    def _score_fold(self, fold, lams, seed, *ids):
        pool = fold.pool(random_state=seed)
        path = self._path(self._problem(pool, *ids), lams)
        scores = fold.scores(path.params, self.scoring)
        return scores, pool.ledger.up, pool.ledger.down


class _FusionCV(LamCV, Fusion):
    """Base of the fusion methods that choose lam by cross-validation."""

    def _solve(self, pool, groups, folds):
        problem = self._problem(pool, groups)
        lams = self._lams(problem)
        if pool.n_clients == 1:
            # Any lam gives the client its own model.
            best, scores = len(lams) - 1, np.full((self._n_folds(), len(lams)), np.nan)
        else:
            scores = self._scores(pool, folds, lams, groups)
            best = best_lam(scores, self.scoring)
        result = self._solve_at(problem, float(lams[best]))
        result.extra.update(lam=float(lams[best]), lams=lams, cv_scores=scores, best_index=best)
        return self._finish(problem, result)


def best_lam(scores, scoring, last=True):
    """Place of the best mean score, the last of equal ones or the one in their middle."""
    mean = scores.mean(axis=0)
    if not np.isfinite(mean).any():
        raise ValueError(
            f"scoring={scoring!r} gave no finite score at any lam: choose another scoring, or "
            "fewer folds."
        )
    mean = np.where(np.isfinite(mean), mean, -np.inf)
    top = mean.max()
    equal = np.flatnonzero(mean >= top - TIE * abs(top))
    return int(equal[-1 if last else len(equal) // 2])


@document
class ConvexClusteredFLClassifierCV(ClassifierMixin, _FusionCV):
    """Convex clustering federated learning with linear classifiers, lam by cross-validation.

    Rows of every client are held out in turn. On the others the path over ``lam`` is solved, every
    solution from the one before; the ``lam`` whose models score best on the rows held out is
    used for all rows, as by :class:`ConvexClusteredFLClassifier`. Between models of the clients'
    own and one model for all, it need not be known which is better.

    {parameters}

    {attributes}

    See Also
    --------
    ConvexClusteredFLClassifier : One value of lam, or one chosen by its clusters.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Notes
    -----
    Shrinkage helps to predict where clients have few rows, so that the best ``lam`` for
    prediction may form fewer or more clusters than there are. To find the clusters themselves set
    ``refit=True``, which scores partitions rather than shrinkage, and ``graph="knn"``, or use
    ``lam="auto"`` of :class:`ConvexClusteredFLClassifier`.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLClassifierCV
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> fusion = ConvexClusteredFLClassifierCV(
    ...     10, graph="knn", cv=3, refit=True, random_state=0
    ... )
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    2
    >>> fusion.cv_scores_.shape
    (3, 10)
    """

    def __init__(
        self,
        n_lams=30,
        *,
        lams=None,
        lam_min_ratio=None,
        cv=5,
        scoring=None,
        loss="log_loss",
        alpha="auto",
        fit_intercept=True,
        standardize=True,
        class_weight=None,
        graph="complete",
        penalty="l2",
        refit=False,
        solver="auto",
        solver_options=None,
        max_iter=2000,
        tol=1e-6,
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.n_lams = n_lams
        self.lams = lams
        self.lam_min_ratio = lam_min_ratio
        self.cv = cv
        self.scoring = scoring
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.class_weight = class_weight
        self.graph = graph
        self.penalty = penalty
        self.refit = refit
        self.solver = solver
        self.solver_options = solver_options
        self.max_iter = max_iter
        self.tol = tol
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


@document
class ConvexClusteredFLRegressorCV(RegressorMixin, _FusionCV):
    """Convex clustering federated learning with linear regressors, lam by cross-validation.

    Rows of every client are held out in turn. On the others the path over ``lam`` is solved, every
    solution from the one before; the ``lam`` whose models score best on the rows held out is
    used for all rows, as by :class:`ConvexClusteredFLRegressor`. Between models of the clients'
    own and one model for all, it need not be known which is better.

    {parameters}

    {attributes}

    See Also
    --------
    ConvexClusteredFLRegressor : One value of lam, or one chosen by its clusters.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Notes
    -----
    Shrinkage helps to predict where clients have few rows, so that the best ``lam`` for
    prediction may form fewer or more clusters than there are. To find the clusters themselves set
    ``refit=True``, which scores partitions rather than shrinkage, and ``graph="knn"``, or use
    ``lam="auto"`` of :class:`ConvexClusteredFLRegressor`.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressorCV
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fusion = ConvexClusteredFLRegressorCV(
    ...     10, graph="knn", cv=3, refit=True, random_state=0
    ... )
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    >>> fusion.cv_scores_.shape
    (3, 10)
    """

    def __init__(
        self,
        n_lams=30,
        *,
        lams=None,
        lam_min_ratio=None,
        cv=5,
        scoring=None,
        loss="squared_error",
        alpha="auto",
        fit_intercept=True,
        standardize=True,
        graph="complete",
        penalty="l2",
        refit=False,
        solver="auto",
        solver_options=None,
        max_iter=2000,
        tol=1e-6,
        group_col=None,
        unseen="error",
        n_jobs=None,
        random_state=None,
        verbose=0,
    ):
        self.n_lams = n_lams
        self.lams = lams
        self.lam_min_ratio = lam_min_ratio
        self.cv = cv
        self.scoring = scoring
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.graph = graph
        self.penalty = penalty
        self.refit = refit
        self.solver = solver
        self.solver_options = solver_options
        self.max_iter = max_iter
        self.tol = tol
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
