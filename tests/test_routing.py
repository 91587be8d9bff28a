"""Groups on their way through scikit-learn's tools: what works, what is refused, never silence."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from sklearn.utils.fixes import parse_version

from skcfl import LocalModels, LocalModelsClassifier, LocalModelsRegressor
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


METHODS = ["fit", "predict", "predict_proba", "predict_log_proba", "decision_function", "score"]


def requested(estimator, method):
    return getattr(estimator.get_metadata_routing(), method).requests.get("groups")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_asks_for_groups(method):
    assert requested(LocalModelsClassifier(), method) is True
    assert not requested(LocalModelsClassifier(group_col=0), method)


def test_requests_can_be_changed():
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = LocalModelsRegressor().set_predict_request(groups=False)
        assert requested(estimator, "predict") is False
        assert requested(estimator, "fit") is True
        estimator.set_fit_request(sample_weight=True).set_params(group_col="site")
        routing = estimator.get_metadata_routing()
        assert routing.fit.requests == {"groups": False, "sample_weight": True}
        assert requested(estimator.set_params(group_col=None), "fit") is True  # nothing is lost


def test_searches_with_routing_and_processes(data):
    X, y, groups = data
    grid = {"model__alpha": [1e-3, 10.0]}
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(LocalModels(LinearModel()), grid, cv=CV, n_jobs=2)
        search.fit(X, y, groups=groups)
    assert search.best_params_ == {"model__alpha": 1e-3}
    assert search.best_score_ > 0.95


@pytest.mark.parametrize("enabled", [False, True])
def test_splitter_gets_groups_beside_group_col(frame, enabled):
    X, y = frame
    days = np.arange(len(y)) // 12  # what the splitter keeps together, not the clients
    estimator = LocalModelsRegressor(group_col="site")
    with sklearn.config_context(enable_metadata_routing=enabled):
        if enabled and parse_version(sklearn.__version__) < parse_version("1.8"):
            # there scoring=None asks the class what score wants, which cannot know of group_col
            estimator.set_score_request(groups=False)
        search = GridSearchCV(estimator, GRID, cv=GroupKFold(5))
        assert search.fit(X, y, groups=days).best_score_ > 0.9


def test_importance_of_the_client_is_that_of_its_column(frame):
    X, y = frame
    estimator = LocalModelsRegressor(group_col="site").fit(X, y)
    importance = permutation_importance(estimator, X, y, random_state=0).importances_mean
    assert importance[0] > 0.5 and importance[1] > 0.5  # x, and whose row it is
    assert abs(importance[2]) < 0.1
