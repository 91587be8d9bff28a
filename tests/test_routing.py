"""Groups on their way through scikit-learn's tools: what works, what is refused, never silence."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingRegressor, StackingRegressor
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.inspection import permutation_importance
from sklearn.linear_model import Ridge
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.fixes import parse_version

from skcfl import LocalModels, LocalModelsClassifier, LocalModelsRegressor
from skcfl.exceptions import SingleClientWarning
from skcfl.models import LinearModel

SLOPES = {"a": 1.0, "b": -1.0, "c": 3.0}
CV = KFold(4, shuffle=True, random_state=0)  # every client is in every part
GRID = {"alpha": [1e-3, 10.0]}


@pytest.fixture
def data():
    """Three clients with slopes 1, -1 and 3: one model for all scores at most .4."""
    rng = np.random.default_rng(0)
    groups = np.array(list("abc"))[np.arange(120) % 3]
    x = rng.normal(size=(120, 1))
    X = np.hstack([x, rng.normal(size=(120, 1))])
    y = np.array([SLOPES[g] for g in groups]) * x[:, 0] + 0.1 * rng.normal(size=120)
    return X, y, groups


@pytest.fixture
def frame(data):
    X, y, groups = data
    return pd.DataFrame({"x": X[:, 0], "site": groups, "z": X[:, 1]}), y


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# ------------------------------------------------------------------ requests


METHODS = [
    "fit",
    "predict",
    "predict_proba",
    "predict_log_proba",
    "decision_function",
    "score",
]


def requested(estimator, method):
    return getattr(estimator.get_metadata_routing(), method).requests.get("groups")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_asks_for_groups(method):
    assert requested(LocalModelsClassifier(), method) is True
    assert not requested(LocalModelsClassifier(group_col=0), method)


def test_requests_can_be_changed(routing):
    estimator = LocalModelsRegressor().set_predict_request(groups=False)
    assert requested(estimator, "predict") is False
    assert requested(estimator, "fit") is True
    estimator.set_fit_request(sample_weight=True).set_params(group_col="site")
    routing = estimator.get_metadata_routing()
    assert routing.fit.requests == {"groups": False, "sample_weight": True}
    assert requested(estimator.set_params(group_col=None), "fit") is True  # nothing is lost


# ------------------------------------------------------------------ groups=, routing on


def test_pipeline_with_routing(data, routing):
    X, y, groups = data
    pipe = make_pipeline(StandardScaler(), LocalModelsRegressor()).fit(X, y, groups=groups)
    assert pipe[-1].groups_.tolist() == ["a", "b", "c"]
    assert pipe.score(X, y, groups=groups) > 0.95
    assert pipe.predict(X, groups=groups).shape == y.shape


@pytest.mark.parametrize("search", [GridSearchCV, RandomizedSearchCV])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_search_with_routing(data, routing, search, n_jobs):
    X, y, groups = data
    options = {"n_iter": 2} if search is RandomizedSearchCV else {}
    found = search(LocalModelsRegressor(), GRID, cv=CV, n_jobs=n_jobs, **options)
    found.fit(X, y, groups=groups)
    assert found.best_params_ == {"alpha": 1e-3}
    assert found.best_score_ > 0.95
    assert found.best_estimator_.predict(X, groups=groups).shape == y.shape


def test_nested_parameters_are_searched(data, routing):
    X, y, groups = data
    search = GridSearchCV(LocalModels(LinearModel()), {"model__alpha": [1e-3, 10.0]}, cv=CV)
    assert search.fit(X, y, groups=groups).best_params_ == {"model__alpha": 1e-3}


def test_cross_validate_with_routing(data, routing):
    X, y, groups = data
    scores = cross_validate(LocalModelsRegressor(), X, y, cv=CV, params={"groups": groups})
    assert scores["test_score"].min() > 0.9


@pytest.mark.parametrize("curve", [learning_curve, validation_curve])
def test_curves_with_routing(data, routing, curve):
    X, y, groups = data
    options = (
        {"train_sizes": [0.5, 1.0], "shuffle": True, "random_state": 0}
        if curve is learning_curve
        else {"param_name": "alpha", "param_range": [1e-3, 1e-2]}
    )
    scores = curve(LocalModelsRegressor(), X, y, cv=CV, params={"groups": groups}, **options)[-1]
    assert scores.min() > 0.9


def test_named_scorers_lose_groups_and_say_so(data, routing):
    X, y, groups = data
    search = GridSearchCV(LocalModelsRegressor(), GRID, cv=CV, scoring="r2", error_score="raise")
    with pytest.raises((ValueError, TypeError, UnsetMetadataPassedError), match="groups"):
        search.fit(X, y, groups=groups)


# ------------------------------------------------------------------ groups=, routing off


def test_pipeline_without_routing(data):
    X, y, groups = data
    pipe = make_pipeline(StandardScaler(), LocalModelsRegressor())
    with pytest.raises(ValueError, match="does not accept the groups parameter"):
        pipe.fit(X, y, groups=groups)
    pipe.fit(X, y, localmodelsregressor__groups=groups)
    assert pipe.predict(X, groups=groups).shape == y.shape
    with pytest.raises((ValueError, TypeError), match="groups"):
        pipe.score(X, y)


@pytest.mark.filterwarnings("ignore:The groups parameter is ignored by KFold")
def test_search_without_routing_warns(data):
    """Groups reach the splitter only: every fit is of one client, and says so."""
    X, y, groups = data
    search = GridSearchCV(LocalModelsRegressor(), GRID, cv=CV)
    with pytest.warns(SingleClientWarning, match="GridSearchCV.*splitter only"):
        search.fit(X, y, groups=groups)
    assert search.best_score_ < 0.5


# ------------------------------------------------------------------ group_col, either way


@pytest.fixture(params=[False, True], ids=["routing off", "routing on"])
def either(request):
    with sklearn.config_context(enable_metadata_routing=request.param):
        yield


def test_search_with_group_col(frame, either):
    X, y = frame
    for scoring in (None, "neg_mean_squared_error"):
        search = GridSearchCV(LocalModelsRegressor(group_col="site"), GRID, cv=CV, scoring=scoring)
        search.fit(X, y)
        assert search.best_params_ == {"alpha": 1e-3}
        assert search.predict(X).shape == y.shape


def test_splitter_gets_groups_beside_group_col(frame, either):
    X, y = frame
    days = np.arange(len(y)) // 12  # what the splitter keeps together, not the clients
    estimator = LocalModelsRegressor(group_col="site")
    if sklearn.get_config()["enable_metadata_routing"] and parse_version(
        sklearn.__version__
    ) < parse_version("1.8"):
        # there scoring=None asks the class what score wants, which cannot know of group_col
        estimator.set_score_request(groups=False)
    search = GridSearchCV(estimator, GRID, cv=GroupKFold(5))
    assert search.fit(X, y, groups=days).best_score_ > 0.9


def test_cross_validation_with_group_col(frame, either):
    X, y = frame
    estimator = LocalModelsRegressor(group_col="site")
    prediction = cross_val_predict(estimator, X, y, cv=CV)
    assert np.corrcoef(prediction, y)[0, 1] > 0.97
    assert cross_val_score(estimator, X, y, cv=CV, scoring="r2").min() > 0.9
    assert cross_validate(estimator, X, y, cv=CV)["test_score"].min() > 0.9


def test_pipeline_with_group_col(frame, either):
    X, y = frame
    scale = ColumnTransformer(
        [("scale", StandardScaler(), ["x", "z"])],
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    last = make_pipeline(scale, LocalModelsRegressor(group_col=-1)).fit(X, y)
    named = make_pipeline(
        clone(scale).set_output(transform="pandas"), LocalModelsRegressor(group_col="site")
    ).fit(X, y)
    np.testing.assert_allclose(last.predict(X), named.predict(X))
    assert named.score(X, y) > 0.95
    assert cross_val_score(named, X, y, cv=CV).min() > 0.9


def test_tools_that_predict_by_themselves(frame):
    X, y = frame
    estimator = LocalModelsRegressor(group_col="site").fit(X, y)
    importance = permutation_importance(estimator, X, y, random_state=0).importances_mean
    assert importance[0] > 0.5 and importance[1] > 0.5  # x, and whose row it is
    assert abs(importance[2]) < 0.1
    stack = StackingRegressor([("local", estimator)], Ridge(), cv=CV).fit(X, y)
    assert stack.score(X, y) > 0.9
    labelled = LocalModelsClassifier(group_col="site")
    calibrated = CalibratedClassifierCV(labelled, cv=5).fit(X, y > 0)
    assert calibrated.score(X, y > 0) > 0.9


def test_bagging_needs_a_position(frame):
    """BaggingRegressor hands arrays to its estimators: a name cannot be found there."""
    X, y = frame
    codes = X.assign(site=X["site"].map({"a": 0.0, "b": 1.0, "c": 2.0}))
    bag = BaggingRegressor(LocalModelsRegressor(group_col=1), n_estimators=3, random_state=0)
    assert bag.fit(codes, y).score(codes, y) > 0.9
    with pytest.raises(ValueError, match="group_col='site' is a name, but X has no column names"):
        bag.set_params(estimator__group_col="site").fit(codes, y)
