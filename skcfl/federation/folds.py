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
from .inprocess import open_rows


class Folds:
    """The rows of a fit, to be dealt out to folds.

    Parameters
    ----------
    model : LocalModel
        Bound to the shape of the data.
    X, y, codes, sample_weight : ndarray
        Rows, targets (codes of classes), clients and weights, as for ClientPool; `y` and
        `sample_weight` may be None.
    n_clients : int
        Number of clients.
    classes : ndarray or None
        The classes of a classifier.
    """

    def __init__(self, model, X, y, codes, sample_weight, n_clients, classes):
        self.model, self.codes, self.n_clients = model, codes, n_clients
        self.rows = X, y, sample_weight
        self.classes = classes

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
        X, y, _ = self.rows
        target = y if self.classes is None else self.classes[y]
        with about("cv"):
            parts = list(cv.split(X, target, self.codes))
            if not parts:
                raise ValueError("it makes no folds.")
            for rows in (np.asarray(rows) for part in parts for rows in part):
                if rows.ndim != 1 or rows.dtype.kind not in "biu":
                    raise ValueError("its folds must be pairs of arrays of row numbers.")
            return [Fold(self, *part) for part in parts]

    def take(self, index):
        """X, y, codes and weights of some rows."""
        X, y, weight = (None if part is None else part[index] for part in self.rows)
        return X, y, self.codes[index], weight


class Fold:
    """Training and test rows."""

    def __init__(self, folds, train, test):
        self.folds = folds
        self.train, self.test = train, test

    def pool(self, random_state=None):
        """ClientPool of the training rows, of all clients."""
        X, y, codes, weight = self.folds.take(self.train)
        return open_rows(
            self.folds.model,
            X,
            y,
            codes,
            self.folds.n_clients,
            sample_weight=weight,
            random_state=random_state,
        )

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
            The larger the better.
        """
        folds = self.folds
        X, y, codes, weight = folds.take(self.test)
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
