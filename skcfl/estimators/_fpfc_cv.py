"""FPFC, lam chosen on the path."""

from __future__ import annotations

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._progress import series
from ..base.docs import document
from ..fusion.concave_path import FPFCRefits
from ..fusion.search import ModelSearch
from ._constructors import cv_constructor
from ._flavours import ClassifierMixin, NeuralMixin, RegressorMixin
from ._fpfc import _FPFC, FPFCClassifier, FPFCRegressor
from ._lam_cv import LamCV

__all__ = ["FPFCClassifierCV", "FPFCRegressorCV"]


class _FPFCCV(LamCV, _FPFC):
    """What both flavours share."""

    _parameter_constraints = {"criterion": [StrOptions({"cv", "bic"})]}

    _doc_parameters = {
        "criterion": """\
            {"cv", "bic"}
            How values of ``lam`` are compared. "cv" scores the models on rows held out within
            each client. "bic" uses all rows and compares the partitions, refitted, by the
            Bayesian information criterion that ``lam="auto"`` of :class:`FPFC` uses: no folds, and
            a fraction of the time; prefer it where the clusters are the aim.""",
        "lams": """\
            array-like or None
            Values of ``lam`` to try. None goes from .3 times the least distance of local models
            over ``a`` to 1.05 times the largest: the useful window lies between. With
            ``criterion="cv"`` also 0, one model for all, and values around the best one.""",
        "lam_min_ratio": """\
            float or None
            The least value of ``lam`` over the largest. None begins below the least distance of
            local models. Not used with ``lams``.""",
        "cv": f"""\
{LamCV._doc_parameters["cv"]}
            Not used with ``criterion="bic"``.""",
        "scoring": f"""\
{LamCV._doc_parameters["scoring"]}
            Not used with ``criterion="bic"``.""",
        "refit": """\
            bool
            Whether each cluster's model is fitted anew on the pooled rows of its clients, on
            every fold and in the end, so that the folds judge partitions rather than how far the
            rounds came.""",
    }

    _doc_attributes = {
        "lam_": """\
            float
            The ``lam`` of best mean score, the one in the middle of equal ones.""",
        "cv_scores_": """\
            ndarray of shape (n_folds, n_tried)
            Score of every fold at every one of ``lams_``, the larger the better; with
            ``criterion="bic"`` one row, minus the criterion. NaN with one client, where nothing is
            chosen.""",
        "n_iter_": """\
            int
            Number of rounds of the final fit.""",
    }

    def _fit(self, pool, folds):
        values, judged = self._values(), self.criterion != "bic" and pool.n_clients > 1
        if judged:
            alphas, pool = self._alphas(pool)
        problem = self._problem(pool)
        lams = problem.grid(self.n_lams, self.lam_min_ratio) if values is None else values
        if pool.n_clients == 1:
            # Any lam gives the client its own model.
            scores, best = np.full((self._n_folds(), len(lams)), np.nan), len(lams) - 1
            result = self._runner(problem)(lams[-1])[0]
        elif self.criterion == "bic":
            refits, run = FPFCRefits(problem, None), self._runner(problem)
            refits.rng = problem.rng
            found, scores = [], []
            with series("lam", "candidate", len(lams)) as told:
                for lam in lams:
                    with told.item(f"lam {lam:.4g}", leaf=True) as tell:
                        found.append(run(lam)[0])
                        scores.append(-refits.criterion(found[-1].labels))
                        tell(criterion=-scores[-1])
            scores = np.array([scores])
            best = _middle_of_best(scores[0])
            result = found[best]
        else:
            family = self._family(problem, lams, grows=values is None)
            judge = self._judge(pool, folds)
            search = ModelSearch([family], judge, alphas, False, self.n_jobs)
            search.run(pool.ledger)
            result = self._fit_best(problem, search)
            result.extra.update(self._record(search))
            return result
        result.extra.update(lam=float(lams[best]), lams=lams, cv_scores=scores, best_index=best)
        return self._finish(problem, result)

    def _n_folds(self):
        return 1 if self.criterion == "bic" else super()._n_folds()


def _middle_of_best(scores):
    """Place of the best score, of equal ones that in their middle."""
    equal = np.flatnonzero(scores >= scores.max() - 1e-9 * abs(scores.max()))
    return int(equal[len(equal) // 2])


@document
class FPFCClassifierCV(NeuralMixin, ClassifierMixin, _FPFCCV):
    """FPFC with linear classifiers or networks, lam chosen on the path.

    {use}

    The rounds are run at a grid of ``lam``, always from the same local models, and the value whose
    models score best on rows held out within each client (or whose partition has the least
    Bayesian information criterion) is used for all rows, as by :class:`FPFCClassifier`. The grid
    comes from the distances of the local models: nothing has to be known about ``lam``.

    {parameters}

    {attributes}

    See Also
    --------
    FPFCClassifier : One value of lam, or one chosen by its clusters.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Examples
    --------
    >>> from skcfl import FPFCClassifierCV
    >>> from skcfl.datasets import make_clustered_classification
    >>> data = make_clustered_classification(n_clients=12, n_clusters=2, random_state=0)
    >>> fusion = FPFCClassifierCV(criterion="bic")
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    2
    >>> fusion.cv_scores_.shape
    (1, 15)
    """

    __init__ = cv_constructor(FPFCClassifier, n_lams=15, criterion="cv")


@document
class FPFCRegressorCV(NeuralMixin, RegressorMixin, _FPFCCV):
    """FPFC with linear regressors or networks, lam chosen on the path.

    {use}

    The rounds are run at a grid of ``lam``, always from the same local models, and the value whose
    models score best on rows held out within each client (or whose partition has the least
    Bayesian information criterion) is used for all rows, as by :class:`FPFCRegressor`. The grid
    comes from the distances of the local models: nothing has to be known about ``lam``.

    {parameters}

    {attributes}

    See Also
    --------
    FPFCRegressor : One value of lam, or one chosen by its clusters.
    skcfl.model_selection.lam_path : The path.
    skcfl.model_selection.ClientKFold : The folds.

    Examples
    --------
    >>> from skcfl import FPFCRegressorCV
    >>> from skcfl.datasets import make_clustered_regression
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> fusion = FPFCRegressorCV(criterion="bic")
    >>> fusion.fit(data.X, data.y, groups=data.groups).n_clusters_
    3
    >>> fusion.cv_scores_.shape
    (1, 15)
    """

    __init__ = cv_constructor(FPFCRegressor, n_lams=15, criterion="cv")
