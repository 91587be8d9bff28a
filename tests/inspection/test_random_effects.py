"""Caterpillar plots: what is drawn are the numbers of the fit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.exceptions import NotFittedError

from skcfl import FedAvgRegressor, PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.inspection import RandomEffectsDisplay

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def fitted():
    rng = np.random.default_rng(0)
    groups, own = np.repeat(np.arange(9), 20), rng.normal(size=(9, 2))
    own[:, 0] += np.repeat([0.0, 20.0, 40.0], 3)
    X = rng.normal(size=(180, 2)) * [1, 5] + 2
    y = (X * own[groups]).sum(axis=1) + 5 * own[groups, 0] + 0.1 * rng.normal(size=180)
    model = PartialPoolingRegressor(3, basis="linear", covariance="diag", random_state=0)
    model.fit(X, y, groups=groups)
    assert model.params_std_.min() > 0
    return model


def test_values_are_sorted_with_their_intervals(fitted):
    display = RandomEffectsDisplay.from_estimator(fitted, "x1")
    values, std = fitted.coef_[:, 1], fitted.params_std_[:, 1]
    order = np.argsort(values, kind="stable")
    assert_array_equal(display.order_, order)
    points = np.column_stack([values[order], np.arange(9)])
    assert_array_equal(display.points_.get_offsets(), points)
    ends = np.array(display.intervals_.get_segments())[:, :, 0]
    half = norm.ppf(0.975) * std[order]
    assert_allclose(ends.T, [values[order] - half, values[order] + half])
    narrow = display.plot(level=0.5)
    assert_allclose(narrow.upper_ - values, norm.ppf(0.75) * std)
    assert display.ax_.get_xlabel() == "x1"
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names == [str(group) for group in fitted.groups_[order]]


def test_levels_of_a_crossed_grouping():
    rng = np.random.default_rng(0)
    rater, item = np.repeat(np.arange(20), 6), np.tile(np.arange(6), 20)
    y = rng.normal(size=20)[rater] + np.linspace(-2, 2, 6)[item] + rng.normal(size=120)
    model = PartialPoolingRegressor(crossed=[0], basis="linear").fit(
        item[:, None], y, groups=rater
    )
    display = RandomEffectsDisplay.from_estimator(model, "x0")
    effects, std = (
        np.array(list(each["x0"].values()))
        for each in (model.crossed_effects_, model.crossed_effects_std_)
    )
    assert_array_equal(display.values, effects)
    assert_allclose(display.upper_, effects + norm.ppf(0.975) * std)
    names = [label.get_text() for label in display.ax_.get_yticklabels()]
    assert names == [str(float(item)) for item in np.argsort(effects)]
    assert display.ax_.get_xlabel() == "effect of x0"
    model.crossed_effects_["x0"] = model.crossed_effects_std_["x0"] = dict.fromkeys(range(61), 1.0)
    assert RandomEffectsDisplay.from_estimator(model, "x0").ax_.get_ylabel() == "levels"
    with pytest.raises(ValueError, match="output must be None for levels of a grouping"):
        RandomEffectsDisplay.from_estimator(model, "x0", output=1)
    with pytest.raises(ValueError, match=r"feature must be one of \['intercept', 'x0'\]"):
        RandomEffectsDisplay.from_estimator(model, "x9")


def test_clusters_have_colours_and_means(fitted):
    _, ax = plt.subplots()
    display = RandomEffectsDisplay.from_estimator(fitted, "intercept", ax=ax)
    assert display.ax_ is ax and display.figure_ is ax.figure
    assert_array_equal(display.values, fitted.intercept_)
    display = RandomEffectsDisplay.from_estimator(fitted, 0)
    colours = display.points_.get_facecolors()
    for k in range(3):
        mine = colours[fitted.labels_[display.order_] == k]
        assert (mine == plt.matplotlib.colors.to_rgba(f"C{k}")).all()
        assert_array_equal(display.lines_[k].get_xdata(), [fitted.cluster_coef_[k, 0]] * 2)
    many = RandomEffectsDisplay(values=np.arange(12.0), std=np.ones(12), labels=np.arange(12))
    last = many.plot().points_.get_facecolors()[10:]
    assert (last == plt.matplotlib.colors.to_rgba("0.65")).all()
    big = RandomEffectsDisplay(values=np.zeros(100), std=np.ones(100), groups=np.arange(100))
    assert len(big.plot().ax_.get_yticks()) == 0


def test_what_differs_most_is_shown_at_the_mean_row(fitted):
    """Not the intercept at zero, which is far from all rows."""
    display = RandomEffectsDisplay.from_estimator(fitted)
    X = np.array([[2.0, 2.0]])
    at_mean = [fitted.predict(X, groups=[g])[0] for g in fitted.groups_]
    assert display.name == "value at the mean row"
    assert_allclose(display.values, at_mean, atol=6)  # the mean row is near (2, 2)
    assert (display.std < fitted.params_std_[:, -1]).all()
    assert_allclose(
        display.means, fitted.cluster_coef_ @ [2, 2] + fitted.cluster_intercept_, atol=6
    )
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(9), 20), rng.normal(size=(180, 2)) * [1, 50] + [0, 500]
    y = (X[:, 1] - 500) / 50 * (1 + rng.normal(size=9))[groups] + 0.1 * rng.normal(size=180)
    model = PartialPoolingRegressor(1, basis="linear", covariance="diag").fit(X, y, groups=groups)
    display = RandomEffectsDisplay.from_estimator(model)
    assert display.name == "effect of a standard deviation of x1"
    assert_allclose(display.values, model.coef_[:, 1] * X[:, 1].std(), rtol=1e-6)


def test_bad_arguments(fitted):
    wrong = [({"feature": feature}, "feature must be one of") for feature in ("x2", 2, True, 0.5)]
    for given, message in [*wrong, ({"output": 1}, "output must be None")]:
        with pytest.raises(ValueError, match=message):
            RandomEffectsDisplay.from_estimator(fitted, **{"feature": "x0", **given})
    with pytest.raises(ValueError, match="shapes"):
        RandomEffectsDisplay(values=[1, 2], std=[1]).plot()
    with pytest.raises(ValueError, match="groups must have one id .* 2 clients, got 1"):
        RandomEffectsDisplay(values=[1, 2], std=[1, 1], groups=["a"]).plot()
    other = FedAvgRegressor()
    with pytest.raises(NotFittedError):
        RandomEffectsDisplay.from_estimator(other)
    other.fit(np.eye(4), np.arange(4.0), groups=np.repeat([0, 1], 2))
    with pytest.raises(ValueError, match=r"FedAvgRegressor, has no params_std_: fit Partial"):
        RandomEffectsDisplay.from_estimator(other)


def test_the_class_that_is_asked_for_is_found_by_its_place():
    """Names of classes may hold the separator of the names of effects, or spell a number."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(6), 20), rng.normal(size=(120, 2))
    raw = rng.normal(size=(120, 3)) + X[:, :1] * [1.0, 0.0, -1.0] + rng.normal(size=(6, 3))[groups]
    for labels, output in ((["a", "b", "c | a"], "a"), ([0.0, 1.0, 2.0], 1)):
        y = np.array(labels)[raw.argmax(axis=1)]
        model = PartialPoolingClassifier(1, basis="linear").fit(X, y, groups=groups)
        display = RandomEffectsDisplay.from_estimator(model, "x0", output=output)
        place = model.classes_.tolist().index(output)
        assert_array_equal(display.values, model.coef_[:, place, 0])
        assert display.ax_.get_xlabel() == f"x0 | {output}"
        with pytest.raises(ValueError, match="output must be one of.*got None"):
            RandomEffectsDisplay.from_estimator(model, "x0")
        for feature in ("auto", "at the mean row"):
            display = RandomEffectsDisplay.from_estimator(model, feature, output=output)
            name = str(model.classes_[model.classes_ == output].item())
            assert display.name.split(" | ", 1)[1] == name
