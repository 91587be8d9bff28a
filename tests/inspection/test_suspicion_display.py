"""The picture of suspicions shows those of the fit."""

import numpy as np
import pytest

from skcfl import FedAvgRegressor, FedProtoClassifier
from skcfl.inspection import SuspicionDisplay

to_rgba = pytest.importorskip("matplotlib.colors").to_rgba


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


def test_colours_and_names_of_many():
    """Few colours of the map stood far apart, and names of neighbours over each other."""
    labels, suspicion = np.repeat(np.arange(12), 10), np.full(120, 5.0)
    suspicion[[17, 18, 19]] = 6.0, 8.0, 7.0
    display = SuspicionDisplay(suspicion=suspicion, labels=labels, groups=np.arange(120)).plot()
    colours = [to_rgba(f"C{k}" if k < 10 else "0.65") for k in labels[display.order_]]
    np.testing.assert_array_equal(display.points_.get_facecolors(), colours)
    places = np.array([text.xy[0] for text in display.ax_.texts])
    assert np.diff(places).min() == 3 and np.diff(places).max() <= 5
    assert "18" in {text.get_text() for text in display.ax_.texts}
    few = SuspicionDisplay(suspicion=[0.2, 0.9], labels=[0, 1], groups=["a", "b"]).plot()
    few.figure_.canvas.draw()
    assert few.ax_.yaxis.label.get_window_extent().x0 > 0  # labels such as 6 x 10^-1 are beside it


def test_colour_maps_labels_of_no_cluster_and_clients_without_ids():
    """A map was left out, and the others were errors of matplotlib and numpy."""
    display = SuspicionDisplay(suspicion=[0.2, 5.0, 0.4], labels=[1, 0, -1]).plot()
    colours = display.points_.get_facecolors()
    np.testing.assert_array_equal(colours, [to_rgba(c) for c in ("0.65", "C0", "C1")])
    assert [text.get_text() for text in display.ax_.texts] == ["1"]
    display.plot(cmap="plasma")
    assert display.points_.get_cmap().name == "plasma"
    assert display.points_.get_array().tolist() == [-1, 0, 1]
    with pytest.raises(ValueError, match=r"one entry per client; got the shapes"):
        SuspicionDisplay(suspicion=[0.2, 5.0, 0.4], labels=[1, 0, -1], groups=["a"]).plot()


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
