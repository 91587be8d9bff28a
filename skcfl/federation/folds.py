"""Cross-validation on the client side: pools of training rows, scores of test rows.

A server that chooses a parameter by cross-validation is told scores only; what makes them, the
rows of a fold, stays here.
"""

import copy
from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer
from sklearn.utils import ClassifierTags, RegressorTags

from .._checks import about
from .fanout import joined
from .pool import ClientPool


class Folds:
    """The rows of a fit, to be dealt out to folds in the places where they are.

    Parameters
    ----------
    parts : list of Rows
        What each place holds, in the units of the fit.
    model : LocalModel
        Bound to the shape of the data.
    classes : ndarray or None
        The classes of a classifier.
    presence : Presence
        Who answers.
    """

    def __init__(self, parts, model, classes, presence):
        self.parts, self.model, self.classes, self.presence = parts, model, classes, presence

    def penalised(self, model):
        """The same folds under a model with another local penalty."""
        return Folds(self.parts, model, self.classes, self.presence)

    def deal(self, n_folds, seed):
        """Folds of some rows of every client each.

        Parameters
        ----------
        n_folds : int
            How many.
        seed : int
            From which every client deals its rows.

        Returns
        -------
        folds : list of Fold
        """
        n_testable = sum(part.n_testable for part in self.parts)
        if n_testable < n_folds:
            raise ValueError(
                f"cv={n_folds} is more than the number of rows that can be tested, {n_testable}: "
                "the only row of a client never is."
            )
        by_class = all(part.is_discrete for part in self.parts)
        dealt = [part.deal(n_folds, seed, by_class) for part in self.parts]
        return [
            Fold(self, [(np.flatnonzero(f != k), np.flatnonzero(f == k)) for f in dealt])
            for k in range(n_folds)
        ]

    def split(self, cv):
        """The folds of a splitter, which gets the clients' positions as groups.

        Parameters
        ----------
        cv : cross-validator
            With ``split(X, y, groups)``, as in scikit-learn.

        Returns
        -------
        folds : list of Fold
        """
        if len(self.parts) > 1:
            raise ValueError(
                f"cv must be a number of folds where the rows are in {len(self.parts)} places: a "
                f"splitter needs them in one, got {cv!r}."
            )
        (rows,) = self.parts
        target = rows.y if self.classes is None else self.classes[rows.y]
        with about("cv"):
            parts = list(cv.split(rows.X, target, rows.codes))
            if not parts:
                raise ValueError("it makes no folds.")
            for some in (np.asarray(some) for part in parts for some in part):
                if some.ndim != 1 or some.dtype.kind not in "biu":
                    raise ValueError("its folds must be pairs of arrays of row numbers.")
            return [Fold(self, [part]) for part in parts]


class Fold:
    """Training and test rows.

    Parameters
    ----------
    folds : Folds
        All rows.
    index : list of tuple of ndarray
        Positions of the training and of the test rows in each place.
    """

    def __init__(self, folds, index):
        self.folds, self.index = folds, index

    def pool(self, random_state=None):
        """ClientPool of the training rows, of all clients."""
        folds = self.folds
        sites = [
            (rows.site(folds.model, train), rows.places)
            for rows, (train, _) in zip(folds.parts, self.index, strict=True)
        ]
        return ClientPool(joined(sites), folds.model, random_state, presence=folds.presence)

    def scores(self, params, scoring=None):
        """Score the test rows under several sets of models.

        Parameters
        ----------
        params : ndarray of shape (m, n_clients, n_params)
            The clients' models in each set.
        scoring : str, scorer or None, default=None
            None is minus the mean loss of the rows.

        Returns
        -------
        scores : ndarray of shape (m,)
            The larger the better; of rows in several places the mean of the places' scores,
            weighted as their rows are.
        """
        totals, shares = np.zeros(len(params)), 0.0
        for rows, (_, test) in zip(self.folds.parts, self.index, strict=True):
            X, y, codes, weight = rows.take(test)
            if len(codes) == 0 and len(self.folds.parts) > 1:
                continue
            own = params[:, rows.places]
            share = len(codes) if weight is None or scoring is not None else weight.sum()
            totals += share * self._scores_of(X, y, codes, weight, own, scoring)
            shares += share
        return totals / shares

    def _scores_of(self, X, y, codes, weight, params, scoring):
        folds = self.folds
        if scoring is None:
            return np.array(
                [
                    -np.average(folds.model.row_losses(X, y, some, codes), weights=weight)
                    for some in params
                ]
            )
        scorer = _make_scorer(scoring, folds)
        if folds.classes is not None:
            y = folds.classes[y]
        # As in scikit-learn's searches without metadata routing, scorers count rows alike.
        return np.array([scorer(_Models(folds, some, codes), X, y) for some in params])


def _make_scorer(scoring, folds):
    """A scorer to which all classes are known, whatever a fold has."""
    scorer = copy.deepcopy(get_scorer(scoring))
    function = getattr(scorer, "_score_func", None)
    if folds.classes is not None and function is not None:
        takes_labels = "labels" in signature(function).parameters
        if scorer._response_method != "predict" and takes_labels:
            scorer._kwargs = {"labels": folds.classes, **scorer._kwargs}
    return scorer


class _Models(BaseEstimator):
    """Fitted models as scorers want them, for rows whose clients are known."""

    def __init__(self, folds, params, codes):
        self.folds, self.params, self.codes = folds, params, codes
        if folds.classes is not None:
            self.classes_ = folds.classes
        if not folds.model.has_proba:
            self.predict_proba = None

    def __getattribute__(self, name):
        # scorers ask by hasattr which answers there are
        value = super().__getattribute__(name)
        if name == "predict_proba" and value is None:
            raise AttributeError(name)
        return value

    def _raw(self, X):
        return self.folds.model.decision(X, self.params, self.codes)

    def predict(self, X):
        output = self.folds.model.output(self._raw(X))
        return output if self.folds.classes is None else self.folds.classes[output]

    def predict_proba(self, X):
        return self.folds.model.proba(self._raw(X))

    def decision_function(self, X):
        return self.folds.model.scores(self._raw(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.estimator_type = self.folds.model.estimator_type
        classifier = self.folds.classes is not None
        tags.classifier_tags = ClassifierTags() if classifier else None
        tags.regressor_tags = None if classifier else RegressorTags()
        return tags
