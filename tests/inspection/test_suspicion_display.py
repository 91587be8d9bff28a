"""The picture of suspicions shows those of the fit."""

import numpy as np
import pytest

from skcfl import FedAvgRegressor, FedProtoClassifier
from skcfl.inspection import SuspicionDisplay

pytest.importorskip("matplotlib.pyplot")


def test_points_and_limit():
    suspicion = np.array([0.5, 40.0, 0.3, np.inf, 0.0])
    labels, groups = np.array([1, 0, 0, 1, 1]), np.array(list("abcde"))
    display = SuspicionDisplay(suspicion=suspicion, labels=labels, groups=groups).plot()
    assert display.order_.tolist() == [2, 1, 4, 0, 3]
    shown = display.points_.get_offsets()[:, 1]
    np.testing.assert_allclose(shown, [0.3, 40.0, 1e-3, 0.5, 120.0])
    assert set(display.limit_.get_ydata()) == {1.0}
    assert display.ax_.get_yscale() == "log"
    assert [text.get_text() for text in display.ax_.texts] == ["b", "d"]


def test_where_every_client_is_a_cluster():
    rng = np.random.RandomState(0)
    X, groups = rng.normal(size=(60, 2)), np.arange(60) % 6
    y = (X[:, 0] > 0) ^ (groups == 3)
    model = FedProtoClassifier((4,), aggregation="median", max_iter=5, tol=0, random_state=0)
    display = SuspicionDisplay.from_estimator(model.fit(X, y, groups=groups))
    shown = display.points_.get_offsets()[:, 1]
    np.testing.assert_allclose(shown, np.maximum(model.suspicion_, 1e-3))
    assert shown.argmax() == 3
    with pytest.raises(ValueError, match="aggregation"):
        SuspicionDisplay.from_estimator(FedAvgRegressor().fit(X, X[:, 0], groups=groups))
