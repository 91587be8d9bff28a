"""Convex clustering of clients, lam chosen by cross-validation."""

from numbers import Integral, Real

import numpy as np
from sklearn.model_selection import check_cv
from sklearn.utils._param_validation import HasMethods, Interval

from .._checks import Count, about
from .._docs import document
from ..model_selection import ClientKFold
from ..model_selection._path import check_lams
from ..solvers import FoldsJudge, ModelSearch
from ._flavours import ClassifierMixin, RegressorMixin
from ._fusion import Fusion

__all__ = ["ConvexClusteredFLClassifierCV", "ConvexClusteredFLRegressorCV"]


class LamCV:
    """What methods that choose lam by cross-validation have in common.

    A subclass has ``_problem(pool, ...)``, ``_path(problem, lams)`` and ``_lam_grid``.
    """

    _parameter_constraints = {
        "n_lams": [Count(1, 10**4)],
        "lams": ["array-like", None],
        "lam_min_ratio": [Interval(Real, 1e-30, 1, closed="left"), None],
        "cv": [Interval(Integral, 2, None, closed="left"), HasMethods(["split"]), "array-like"],
        "scoring": [str, callable, None],
    }

    _doc_parameters = {
        "n_lams": """\
            int
            Number of values of ``lam`` to begin with, in equal steps of their logarithm, the last
            where everything fuses; 0, and values around the best one, are tried too. Not used
            with ``lams``.""",
        "lams": """\
            array-like or None
            Values of ``lam`` to try. None goes from where hardly anything fuses to where
            everything does on all rows, :func:`skcfl.model_selection.lam_max`. Those given are
            all that is tried; a ``UserWarning`` says where the best is the first or the last.""",
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
        "n_jobs": """\
            int or None
            Number of folds at a time, in threads, and in the final fit of blocks of clients; None
            is 1, -1 all processors. The result does not depend on it.""",
    }

    _doc_attributes = {
        "lam_": """\
            float
            The ``lam`` of best mean score, the one in the middle of equal ones.""",
        "lams_": """\
            ndarray of shape (n_tried,)
            The values tried with the ``graph``, ``penalty``, ``refit`` and ``alpha`` that were
            chosen, ascending. A single 0 with one client.""",
        "cv_scores_": """\
            ndarray of shape (n_folds, n_tried)
            Score of every fold at every one of ``lams_``, the larger the better. NaN with one
            client, where nothing is chosen.""",
        "best_index_": """\
            int
            Place of ``lam_`` in ``lams_``.""",
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

    def _splitter(self, rng=None):
        """The splitter; it finds the clients in the groups that it is given."""
        if isinstance(self.cv, Integral):
            return ClientKFold(int(self.cv), random_state=rng)
        with about("cv"):
            return check_cv(self.cv)

    def _n_folds(self):
        return self._splitter().get_n_splits(None, None, [0])

    def _judge(self, pool, folds):
        """The folds, their training rows in pools of their own."""
        rng = pool.random_state
        return FoldsJudge(folds.split(self._splitter(rng)), self.scoring, rng)

    def _values(self):
        """The values of lam that the user gives, None where they are left open."""
        return None if self.lams is None else check_lams(self.lams)

    def _record(self, search):
        """What cross-validation publishes: all values of lam of what was chosen."""
        best = search.best
        members = search.along(best)
        return {
            "lams": np.array([m.lam for m in members]),
            "cv_scores": np.array([-m.losses for m in members]).T,
            "best_index": members.index(best),
            "lam_search": search.record(),
        }


class _FusionCV(LamCV, Fusion):
    """Base of the fusion methods that choose lam by cross-validation."""

    criterion = "held_out"

    def _solve(self, pool, groups, folds):
        values = self._values()
        if pool.n_clients == 1:
            # Any lam gives the client its own model.
            lams = np.zeros(1) if values is None else values
            problem = self._problem(pool, groups)
            result = self._minimise(problem, float(lams[-1]))
            scores = np.full((self._n_folds(), len(lams)), np.nan)
            result.extra.update(lams=lams, cv_scores=scores, best_index=len(lams) - 1)
            return self._finish(problem, result, self.refit is True)
        families, problems = self._families(pool, groups, self.n_lams, self.lam_min_ratio, values)
        judge = self._judge(pool, folds)
        alphas = self._alphas(pool)
        search = ModelSearch(families, judge, alphas, False, self.n_jobs, self.verbose)
        search.run(pool.ledger)
        result = self._fit_best(pool, groups, problems, search)
        result.extra.update(self._record(search))
        return result


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
    What competes is what ``lam="auto"`` of :class:`ConvexClusteredFLClassifier` compares, on
    folds and with a score of one's choice, and the best mean score wins. Models are fitted to a
    thousandth while they are compared, and to ``tol`` in the end. Shrinkage helps to predict where
    clients have few rows, so that the best ``lam`` may form fewer or more clusters than there are.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLClassifierCV
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> fusion = ConvexClusteredFLClassifierCV(10, cv=3, random_state=0)
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    2
    >>> fusion.cv_scores_.shape == (3, len(fusion.lams_))
    True
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
        graph="auto",
        penalty="auto",
        refit="auto",
        alphas=None,
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
        self.alphas = alphas
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
    What competes is what ``lam="auto"`` of :class:`ConvexClusteredFLRegressor` compares, on
    folds and with a score of one's choice, and the best mean score wins. Models are fitted to a
    thousandth while they are compared, and to ``tol`` in the end. Shrinkage helps to predict where
    clients have few rows, so that the best ``lam`` may form fewer or more clusters than there are.

    Examples
    --------
    >>> from skcfl import ConvexClusteredFLRegressorCV
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fusion = ConvexClusteredFLRegressorCV(10, cv=3, random_state=0)
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    >>> fusion.cv_scores_.shape == (3, len(fusion.lams_))
    True
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
        graph="auto",
        penalty="auto",
        refit="auto",
        alphas=None,
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
        self.alphas = alphas
        self.solver = solver
        self.solver_options = solver_options
        self.max_iter = max_iter
        self.tol = tol
        self.group_col = group_col
        self.unseen = unseen
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
