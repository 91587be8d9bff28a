"""Scores of estimators that need the client of each row."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import get_scorer, make_scorer
from sklearn.metrics._scorer import _BaseScorer
from sklearn.pipeline import Pipeline
from sklearn.utils import Bunch, _safe_indexing, check_consistent_length, get_tags
from sklearn.utils.metadata_routing import get_routing_for_object
from sklearn.utils.validation import _check_sample_weight, _num_samples, check_is_fitted

from .._checks import about, check_size, only_numbers, real_array, refuse_masked, refuse_missing
from .._typing import Array, Groups, MatrixLike, Targets, Weights
from ..clients.ids import check_ids, encode
from ..numerics.by_cluster import rows_by_label
from ._columns import ids_in_column

_RESPONSES = ("predict", "predict_proba", "predict_log_proba", "decision_function")


def grouped_scorer(scoring: str | Callable[..., Any], **kwargs: Any) -> _GroupedScorer:
    """Make a scorer that carries groups to the predictions it scores.

    scikit-learn's named scorers never hand groups to ``predict``, not even with metadata routing.
    This one asks for groups and passes them on to ``predict``, ``predict_proba`` or
    ``decision_function`` of an estimator that asks for them. It serves wherever scikit-learn takes
    ``scoring`` and routes metadata: searches, ``cross_validate``, curves, as one scorer or in a
    dictionary of several metrics. With ``group_col`` set on the estimator it is not needed.

    Parameters
    ----------
    scoring : str or scorer
        A name that scikit-learn knows, such as "accuracy" or "neg_log_loss", or a scorer from
        :func:`sklearn.metrics.make_scorer`.
    **kwargs : dict
        Arguments of the metric, such as ``average="macro"``.

    Returns
    -------
    scorer : callable
        To be called as ``scorer(estimator, X, y, groups=groups)``. Its ``set_score_request``
        says whether it wants ``sample_weight``.

    Raises
    ------
    ValueError
        If the name is not known, or ``scoring`` is no scorer. From a call without groups, if
        the estimator asks for them.

    See Also
    --------
    per_client_scores : A score for every client.

    Notes
    -----
    Estimators that do not ask for groups are called without, so that one scorer serves to
    compare them all. A fitted search, which cannot take groups in ``predict``, is scored by its
    ``best_estimator_``, which is what it predicts with.

    Examples
    --------
    >>> import sklearn
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skcfl import IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.model_selection import ClientKFold, grouped_scorer
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> with sklearn.config_context(enable_metadata_routing=True):
    ...     search = GridSearchCV(
    ...         IFCARegressor(random_state=0),
    ...         {"n_clusters": [1, 2, 3]},
    ...         scoring=grouped_scorer("neg_mean_absolute_error"),
    ...         cv=ClientKFold(3, random_state=0),
    ...     ).fit(data.X, data.y, groups=data.groups)
    >>> search.best_params_
    {'n_clusters': 3}
    """
    if isinstance(scoring, str):
        scorer = get_scorer(scoring)
    elif isinstance(scoring, _BaseScorer):
        scorer = copy.deepcopy(scoring)
    else:
        raise ValueError(
            "scoring must be the name of a scorer or a scorer made by "
            f"sklearn.metrics.make_scorer, got {scoring!r}."
        )
    scorer._kwargs = {**scorer._kwargs, **kwargs}
    return _GroupedScorer(scorer, scoring, kwargs)


class _GroupedScorer:
    """Returned by `grouped_scorer`."""

    def __init__(self, scorer: Any, scoring: Any, kwargs: dict[str, Any]) -> None:
        self.scorer = scorer
        self._spelling = ", ".join([repr(scoring), *(f"{k}={v!r}" for k, v in kwargs.items())])

    def __repr__(self) -> str:
        return f"grouped_scorer({self._spelling})"

    def __call__(
        self,
        estimator: Any,
        X: MatrixLike,
        y: Targets = None,
        *,
        groups: Groups = None,
        **kwargs: Any,
    ) -> float:
        while hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        takes_groups = _takes_groups(estimator)

        def respond(method: Callable[..., Any], rows: Any) -> Any:
            if not takes_groups(method.__name__):
                return method(rows)
            if groups is None:
                raise ValueError(
                    f"{self!r} got no groups, but {type(estimator).__name__} asks for them. Pass "
                    "groups to the tool with metadata routing enabled, "
                    "sklearn.set_config(enable_metadata_routing=True), or put the ids in a "
                    "column of X and set group_col on the estimator."
                )
            return method(rows, groups=groups)

        return self.scorer(_Answering(estimator, respond), X, y, **kwargs)

    def get_metadata_routing(self) -> Any:
        """Groups, and what the inner scorer asks for."""
        routing = get_routing_for_object(self.scorer)
        routing.score.add_request(param="groups", alias=True)
        return routing

    def set_score_request(self, **kwargs: Any) -> Self:
        """Ask for other metadata than groups, such as ``sample_weight=True``."""
        self.scorer.set_score_request(**kwargs)
        return self

    def _accept_sample_weight(self) -> bool:
        # what searches ask without metadata routing
        return self.scorer._accept_sample_weight()


class _Answering:
    """An estimator with prediction methods answered by ``respond(method, X)``."""

    def __init__(self, estimator: Any, respond: Callable[..., Any]) -> None:
        self._estimator = estimator
        self._respond = respond

    def __sklearn_tags__(self) -> Any:
        return get_tags(self._estimator)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._estimator, name)
        if name not in _RESPONSES:
            return attribute
        # scorers read the __name__ of the method they call
        return functools.wraps(attribute)(functools.partial(self._respond, attribute))


def per_client_scores(
    estimator: Any,
    X: MatrixLike,
    y: Targets = None,
    groups: Groups = None,
    scoring: str | Callable[..., Any] | None = None,
    sample_weight: Weights = None,
) -> Bunch:
    """Score a fitted estimator on each client's rows.

    One number for all rows hides the clients that a model serves badly. The rows are predicted
    at once and scored by client.

    Parameters
    ----------
    estimator : object
        A fitted estimator, of this package or not, a fitted Pipeline that ends in one, or a
        fitted search.
    X : {array-like, sparse matrix, DataFrame} of shape (n_samples, n_features)
        Rows of any clients, in any order.
    y : array-like of shape (n_samples,), default=None
        True targets. Not used with an unsupervised local model.
    groups : array-like of shape (n_samples,), default=None
        Ids to score by: the client of each row. They are also handed to an estimator that asks for
        groups, as those of this package do unless their ``group_col`` is set. None takes the ids
        from the ``group_col`` of the estimator.
    scoring : str, callable or None, default=None
        A name that scikit-learn knows, such as "accuracy" or "neg_log_loss"; a scorer from
        :func:`sklearn.metrics.make_scorer` or :func:`grouped_scorer`; or a metric, called as
        ``metric(y_true, y_pred)`` with the output of ``predict``. None is the accuracy of a
        classifier, the R^2 of a regressor, and the ``score`` of anything else.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of the rows, for metrics that take them.

    Returns
    -------
    result : Bunch
        A dictionary with attributes, of equal length, which ``pandas.DataFrame`` takes as it is:

        - ``groups`` : ndarray of shape (n_clients,), the sorted ids of the clients in these rows;
        - ``scores`` : ndarray of shape (n_clients,), their scores; nan where the metric is not
          defined, as R^2 is not for a single row;
        - ``n_samples`` : ndarray of shape (n_clients,), their numbers of rows.

    Raises
    ------
    ValueError
        If nothing names the clients, ids are not valid, or the estimator refuses the rows. An
        error of the metric has a note that names the client.

    Warns
    -----
    UndefinedMetricWarning
        Once, if the metric is not defined for some clients.

    See Also
    --------
    grouped_scorer : One score of all rows, for searches.

    Notes
    -----
    A metric of probabilities gets all classes of the estimator as its ``labels``, so that log
    loss is defined for clients that have some of the classes only.

    Examples
    --------
    >>> from skcfl import FedAvgRegressor, IFCARegressor
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.model_selection import per_client_scores
    >>> data = make_clustered_regression(n_clients=12, n_clusters=3, random_state=0)
    >>> X, y, groups = data.X, data.y, data.groups
    >>> one = FedAvgRegressor().fit(X, y, groups=groups)
    >>> three = IFCARegressor(n_clusters=3, random_state=0).fit(X, y, groups=groups)
    >>> by_one = per_client_scores(one, X, y, groups)
    >>> by_three = per_client_scores(three, X, y, groups)
    >>> by_three.groups.shape, int(by_three.n_samples.sum()) == len(y)
    ((12,), True)
    >>> bool((by_three.scores > by_one.scores).all())
    True
    """
    with about("estimator"):
        check_is_fitted(estimator)
    for name, values in {"X": X, "y": y, "sample_weight": sample_weight}.items():
        refuse_masked(values, name)
        with about(name):
            check_consistent_length(X, values)
    final, rows = _innermost(estimator, X)
    n_samples = _num_samples(rows)
    ids = _client_ids(final, rows, groups, n_samples)
    clients, codes = encode(ids)
    if y is not None:
        with about("y"):
            y = np.asarray(y)
            refuse_missing(y)
        if is_regressor(final):
            y = real_array(y, "y")
            check_size(y, "y")
    if sample_weight is not None:
        with about("sample_weight"):
            only_numbers(np.asarray(sample_weight), "sample_weight")
            sample_weight = _check_sample_weight(sample_weight, rows, ensure_non_negative=True)
    score = _score_of_rows(final, rows, y, groups, scoring)

    scores = np.empty(len(clients))
    undefined = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UndefinedMetricWarning)
        for i, mine in rows_by_label(codes):
            weights = {}
            if sample_weight is not None:
                weights["sample_weight"] = sample_weight[mine]
            before = len(caught)
            try:
                weightless = weights and not weights["sample_weight"].any()
                scores[i] = np.nan if weightless else score(mine, **weights)
            except Exception as error:
                name = clients[i : i + 1].tolist()[0]  # of Python's type, as the user wrote it
                error.add_note(f"This happened on the rows of client {name!r}.")
                raise
            fresh = caught[before:]
            if weightless or any(issubclass(w.category, UndefinedMetricWarning) for w in fresh):
                undefined.append(i)
    for other in caught:
        if not issubclass(other.category, UndefinedMetricWarning):
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    if undefined:
        shown = ", ".join(map(repr, clients[undefined[:5]].tolist()))
        dots = ", ..." if len(undefined) > 5 else ""
        warnings.warn(
            f"The score is not well defined for the rows of {len(undefined)} of {len(clients)} "
            f"clients: {shown}{dots}. Their score is nan, or the value that the metric returns.",
            UndefinedMetricWarning,
            stacklevel=2,
        )
    return Bunch(groups=clients, scores=scores, n_samples=np.bincount(codes))


def _innermost(estimator: Any, X: MatrixLike) -> tuple[Any, Any]:
    """The estimator at the end of pipelines and searches, and the rows as it gets them."""
    while True:
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif isinstance(estimator, Pipeline):
            if len(estimator) > 1:
                X = estimator[:-1].transform(X)
            estimator = estimator[-1]
        else:
            return estimator, X


def _client_ids(estimator: Any, X: MatrixLike, groups: Groups, n_samples: int) -> Array:
    if groups is not None:
        return check_ids(groups, n_samples)
    column = getattr(estimator, "group_col", None)
    if column is None:
        raise ValueError(
            "per_client_scores needs to know the client of each row: pass groups= with one client "
            "id per row, or set group_col on the estimator before fit."
        )
    return ids_in_column(X, column, getattr(estimator, "feature_names_in_", None))


def _takes_groups(estimator: Any) -> Callable[[str], bool]:
    """Return the function that says of a method of an estimator whether it asks for groups."""
    try:
        routing = get_routing_for_object(estimator)
    except RecursionError:  # RidgeCV asks its scorer, and that asks RidgeCV; neither takes groups
        return lambda method: False
    return lambda method: bool(routing.consumes(method, ["groups"]))


def _score_of_rows(
    estimator: Any, X: MatrixLike, y: Any, groups: Groups, scoring: Any
) -> Callable[..., Any]:
    """Return the function ``score(rows, sample_weight=)`` of positions of rows."""
    takes_groups = _takes_groups(estimator)

    def ids_for(method: str, rows: Any = slice(None)) -> dict[str, Any]:
        wanted = groups is not None and takes_groups(method)
        return {"groups": _safe_indexing(groups, rows)} if wanted else {}

    scorer = _as_scorer(estimator, scoring)
    if scorer is None:

        def own_score(rows: Any, **weights: Any) -> Any:
            target = None if y is None else y[rows]
            return estimator.score(
                _safe_indexing(X, rows), target, **weights, **ids_for("score", rows)
            )

        return own_score

    if y is None:
        raise ValueError(f"per_client_scores with scoring={scoring!r} needs y, got None.")

    @functools.cache
    def answers(name: str) -> Array:
        return np.asarray(getattr(estimator, name)(X, **ids_for(name)))

    # Scorers hand X to predict: here X is the positions of rows.
    recalling = _Answering(estimator, lambda method, rows: answers(method.__name__)[rows])

    def score(rows: Any, **weights: Any) -> Any:
        try:
            return scorer(recalling, rows, y[rows], **weights)
        except TypeError as error:
            raise TypeError(
                f"scoring={scoring!r} cannot be called as a metric: {error}"
            ) from error

    return score


def _as_scorer(estimator: Any, scoring: Any) -> Any:
    """The scikit-learn scorer that is meant, None for the estimator's own score."""
    if scoring is None:
        name = (
            "accuracy" if is_classifier(estimator) else "r2" if is_regressor(estimator) else None
        )
        return None if name is None else get_scorer(name)
    if isinstance(scoring, str):
        scorer = get_scorer(scoring)
    elif isinstance(scoring, _GroupedScorer):
        scorer = copy.deepcopy(scoring.scorer)
    elif isinstance(scoring, _BaseScorer):
        scorer = copy.deepcopy(scoring)
    elif callable(scoring):
        scorer = make_scorer(scoring)
    else:
        raise ValueError(
            "scoring must be the name of a scorer, a scorer, a metric or None, got "
            f"{scoring!r}. For several metrics call per_client_scores for each."
        )
    takes_labels = "labels" in signature(scorer._score_func).parameters
    if is_classifier(estimator) and scorer._response_method != "predict" and takes_labels:
        scorer._kwargs = {"labels": estimator.classes_, **scorer._kwargs}
    return scorer
