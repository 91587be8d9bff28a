"""What methods that choose lam by cross-validation have in common."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.model_selection import check_cv
from sklearn.utils._param_validation import HasMethods, Interval

from .._checks import Count, about
from ..fusion.judges import FoldsJudge
from ..fusion.search import ModelSearch
from ..model_selection import ClientKFold
from ..model_selection._lam_path import check_lams
from ._base_fusion import Fusion

__all__ = ["FusionCV", "LamCV"]


class LamCV:
    """What methods that choose lam by cross-validation have in common.

    A subclass has ``_problem(pool, ...)`` and ``_path(problem, lams)``.
    """

    _parameter_constraints: dict[str, Any] = {
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
            as groups; an iterable yields positions of training and test rows. The same rows in
            another order are dealt to other folds, and may give another ``lam``.""",
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

    _doc_attributes: dict[str, Any] = {
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

    def _splitter(self):
        """The splitter; it finds the clients in the groups that it is given."""
        if isinstance(self.cv, Integral):
            return ClientKFold(int(self.cv))
        with about("cv"):
            return check_cv(self.cv)

    def _n_folds(self):
        return self._splitter().get_n_splits(None, None, [0])

    def _judge(self, pool, folds):
        """The folds, their training rows in pools of their own."""
        rng = pool.random_state
        if isinstance(self.cv, Integral):
            dealt = folds.deal(int(self.cv), int(rng.randint(np.iinfo(np.int32).max)))
        else:
            dealt = folds.split(self._splitter())
        return FoldsJudge(dealt, self.scoring, rng)

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


class FusionCV(LamCV, Fusion):
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
        alphas, pool = self._alphas(pool)
        families, problems = self._families(pool, groups, self.n_lams, self.lam_min_ratio, values)
        if problems[0].trusted is not None:
            folds = folds.judged_by(problems[0].trusted)
        judge = self._judge(pool, folds)
        search = ModelSearch(families, judge, alphas, False, self.n_jobs)
        search.run(pool.ledger)
        result = self._fit_best(pool, groups, problems, search)
        result.extra.update(self._record(search))
        return result
