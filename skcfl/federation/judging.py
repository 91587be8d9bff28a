"""Rows that judge models, where they are: a server receives scores and sums."""

import copy
from contextlib import nullcontext
from inspect import signature

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if

from .checking import check_numbers
from .sites import Endpoint, Refused

#: Scores that are one row's error, and no mean over rows.
SCORES_OF_ONE_ROW = {"max_error", "neg_max_error", "neg_median_absolute_error"}
#: Scores that are made of means over all rows; others may be about the rows of a single class.
SCORES_OF_MEANS = {"accuracy", "top_k_accuracy", "r2", "explained_variance"}
SCORES_OF_MEANS |= {"neg_log_loss", "neg_brier_score", "d2_log_loss_score", "d2_brier_score"}
SCORES_OF_MEANS |= {
    f"neg_{kind}"
    for kind in (
        "mean_absolute_error",
        "mean_gamma_deviance",
        "mean_poisson_deviance",
        "mean_squared_error",
        "mean_squared_log_error",
        "root_mean_squared_error",
        "root_mean_squared_log_error",
    )
}


class FoldRows(Endpoint):
    """Training and test rows of one place.

    Parameters
    ----------
    rows : Rows
        All rows of the place.
    train, test : ndarray
        Positions of the training and of the test rows.
    """

    def __init__(self, rows, train, test):
        self.rows, self.train, self.test = rows, train, test
        self.places = rows.places

    def site(self, model):
        """Site of the training rows, of all clients."""
        return self.rows.site_of(model, self.train)

    @property
    def n_rows(self):
        """Number of test rows."""
        return len(self.test)

    def judged_by(self, judges):
        """The same, with the test rows of some clients only, a mask (n_clients,) of them."""
        judges = np.asarray(judges, dtype=bool)
        return FoldRows(self.rows, self.train, self.test[judges[self.rows.codes[self.test]]])

    def scores(self, model, classes, params, scoring):
        """Scores of the test rows under several sets of models, (m,), and their weight.

        `params` (m, n_clients, n_params) are the models; scores are means over the rows.
        """
        self.rows.check_model(model)
        if len(self.test) == 0:
            return np.zeros(len(params)), 0.0
        guard = self.rows.guard
        if guard is not None and guard.policy.min_rows > 1 and scoring in SCORES_OF_ONE_ROW:
            raise Refused(f"scoring={scoring!r} is about single rows")
        # Scorers that are functions do not come from elsewhere.
        by_class = isinstance(scoring, str) and scoring not in SCORES_OF_MEANS
        index = self.rows.answerable("scores", self.test, by_class)
        X, y, codes, weight = self.rows.take(index)
        share = len(codes) if weight is None or scoring is not None else weight.sum()
        if scoring is None:
            losses = [model.row_losses(X, y, some, codes) for some in params]
            return np.array([-np.average(loss, weights=weight) for loss in losses]), share
        scorer = _make_scorer(scoring, classes)
        if classes is not None:
            y = classes[y]
        # As in scikit-learn's searches without metadata routing, scorers count rows alike.
        models = (_Models(model, classes, some, codes) for some in params)
        reason = f"its rows and the models do not suit scoring={scoring!r}"
        with nullcontext() if guard is None else guard.counting(reason):
            return np.array([scorer(one, X, y) for one in models]), share


class ScoredRows(Endpoint):
    """Rows of one place beside the predictions of their clients' models.

    Parameters
    ----------
    rows : Rows
        In the user's units.
    model : LocalModel
        Bound local model.
    table : ndarray of shape (m, n_params)
        Models.
    index : ndarray of shape (n_clients,)
        Which of them each client of the place has.
    classes : ndarray or None
        Code of each of the models' classes among those of the rows.
    """

    def __init__(self, rows, model, table, index, classes):
        self.rows, self.model, self.table, self.classes = rows, model, table, classes
        index = np.asarray(index)
        if index.shape != rows.places.shape or index.min(initial=0) < 0:
            raise ValueError("index must have the place of a model for each client.")
        self.index = index[rows.codes]
        self.places, self.n_rows = rows.places, rows.n_rows

    def _X(self, index):
        return self.rows.take(index)[0].astype(self.model.rows_dtype, copy=False)

    def _predicted(self, index):
        output = self.model.output(self._raw(index))
        return output if self.classes is None else self.classes[output]

    def _raw(self, index):
        raw = self.model.decision(self._X(index), self.table, self.index[index])
        return raw if self.rows.offset is None else raw + self.rows.offset[index]

    def _answering(self, call):
        """Rows that the policy lets out, their targets and weights.

        Nothing is computed of others: infinity times a weight of zero is NaN, and would tell.
        """
        index, y = self.rows.answerable(call), self.rows.y
        return index, None if y is None else y[index], self.rows.weights[index]

    def outputs(self, method):
        """What the models say of every row: for the owner of the rows.

        "predict" gives targets, or numbers of the models' classes.
        """
        raw = self._raw(slice(None))
        if method == "predict":
            return self.model.output(raw)
        return self.model.proba(raw) if method == "predict_proba" else self.model.scores(raw)

    def correct(self):
        """Weight of the rows whose class is predicted, and of all."""
        index, y, weights = self._answering("correct")
        return float(weights @ (self._predicted(index) == y)), float(weights.sum())

    def target_sums(self):
        """Weighted sum of the targets, and the weight of the rows."""
        _, y, weights = self._answering("target_sums")
        return float(weights @ y), float(weights.sum())

    def squares(self, mean):
        """Weighted sums of squared errors of the predictions, and of `mean`."""
        mean = float(check_numbers("mean", mean, ()))
        index, y, weights = self._answering("squares")
        errors = y - self._predicted(index)
        return float(weights @ errors**2), float(weights @ (y - mean) ** 2)

    def total_loss(self):
        """Weighted sum of the rows' losses, and their weight."""
        index, y, weights = self._answering("total_loss")
        losses = self.model.row_losses(self._X(index), y, self.table, self.index[index])
        return float(weights @ losses), float(weights.sum())


def _make_scorer(scoring, classes):
    """A scorer to which all classes are known, whatever a fold has."""
    scorer = copy.deepcopy(get_scorer(scoring))
    function = getattr(scorer, "_score_func", None)
    if classes is not None and function is not None:
        takes_labels = "labels" in signature(function).parameters
        if scorer._response_method != "predict" and takes_labels:
            scorer._kwargs = {"labels": classes, **scorer._kwargs}
    return scorer


class _Models(BaseEstimator):
    """Fitted models as scorers want them, for rows whose clients are known."""

    def __init__(self, model, classes, params, codes):
        self.model, self.classes, self.params, self.codes = model, classes, params, codes
        if classes is not None:
            self.classes_ = classes

    def _raw(self, X):
        return self.model.decision(X, self.params, self.codes)

    def predict(self, X):
        output = self.model.output(self._raw(X))
        return output if self.classes is None else self.classes[output]

    @available_if(lambda self: self.model.has_proba)
    def predict_proba(self, X):
        return self.model.proba(self._raw(X))

    def decision_function(self, X):
        return self.model.scores(self._raw(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.estimator_type = self.model.estimator_type
        classifier = self.classes is not None
        tags.classifier_tags = ClassifierTags() if classifier else None
        tags.regressor_tags = None if classifier else RegressorTags()
        return tags
