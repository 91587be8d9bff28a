"""Errors about arguments: each names the argument, what it got and what is allowed."""

import datetime

import numpy as np
import pytest

from skcfl import (
    CLoVERegressor,
    FedAvgRegressor,
    FedEMRegressor,
    IFCARegressor,
    PartialPoolingRegressor,
    Training,
    TreeBasis,
)
from skcfl.datasets import make_clustered_regression
from skcfl.inspection import RandomEffectsDisplay
from skcfl.model_selection import per_client_scores
from skcfl.models.losses import Huber
from skcfl.penalties import L2
from skcfl.testing import check_loss, check_penalty

DATA = make_clustered_regression(4, 2, n_samples=20, n_features=2, random_state=0)
N = len(DATA.y)
DAY = datetime.date(2020, 1, 1)
TEXT = [np.full(N, "a"), np.full(N, "1.5"), np.full(N, b"1.5"), np.full(N, "1.5", dtype=object)]
DATES = [
    np.full(N, np.datetime64("2020-01-01")),
    np.full(N, np.timedelta64(3, "D")),
    np.full(N, DAY, dtype=object),
    np.full(N, np.datetime64("2020-01-01"), dtype=object),
]


def fit(y=None, sample_weight=None):
    FedAvgRegressor().fit(DATA.X, DATA.y if y is None else y, DATA.groups, sample_weight)


@pytest.mark.parametrize("values", [*TEXT, *DATES])
@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_text_and_dates_are_no_numbers(name, values):
    with pytest.raises(ValueError, match=rf"^{name} must hold numbers, got (text|dates|spans)"):
        fit(**{name: values})


@pytest.mark.parametrize("values", [TEXT[1], DATES[0], DATES[2]])
def test_nor_where_rows_are_scored(values):
    model = FedAvgRegressor().fit(DATA.X, DATA.y, DATA.groups)
    for score in (model.score, lambda *args, **kw: per_client_scores(model, *args, **kw)):
        with pytest.raises(ValueError, match="sample_weight must hold numbers, got"):
            score(DATA.X, DATA.y, groups=DATA.groups, sample_weight=values)
        with pytest.raises(ValueError, match="y must .*numbers, got"):
            score(DATA.X, values, groups=DATA.groups)


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (check_penalty, {"penalty": None}, "penalty.*Penalty.*None"),
        (check_penalty, {"penalty": "l2"}, "penalty.*Penalty.*'l2'"),
        (check_penalty, {"penalty": L2}, "penalty.*Penalty.*L2"),
        (check_penalty, {"penalty": L2(), "n_params": 0}, r"n_params.*\[1.*0"),
        (check_penalty, {"penalty": L2(), "n_edges": "a"}, "n_edges.*int.*'a'"),
        (check_penalty, {"penalty": L2(), "random_state": "a"}, "random_state.*int.*'a'"),
        (check_loss, {"loss": 3}, "loss.*Loss.*huber.*3"),
        (check_loss, {"loss": "huber", "n_rows": 2.5}, "n_rows.*int.*2.5"),
        (check_loss, {"loss": "log_loss", "n_classes": 1}, r"n_classes.*\[2.*1"),
        (check_loss, {"loss": "huber", "random_state": 2.5}, "random_state.*int.*2.5"),
        (check_loss, {"loss": Huber("a")}, "delta.*float.*'a'"),
        (check_loss, {"loss": Huber(-1.0)}, "delta.*float.*-1.0"),
        (check_loss, {"loss": "huber", "y": ["a", "b"]}, "y must be .*numbers, got"),
        (check_loss, {"loss": "huber", "y": 3.0}, r"y must be a one-dim.*shape \(\)"),
        (check_loss, {"loss": "huber", "y": [1.0]}, "y must have at least two entries, got 1"),
        (check_loss, {"loss": "log_loss", "y": [1, 2]}, "y must hold class codes from 0 to 1.*2"),
    ],
)
def test_checks_of_losses_and_penalties(check, arguments, message):
    with pytest.raises(ValueError, match=message):
        check(**arguments)


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (IFCARegressor(True), "n_clusters"),
        (CLoVERegressor(True), "n_clusters"),
        (FedEMRegressor(True), "n_clusters"),
        (PartialPoolingRegressor(True), "n_clusters"),
        (PartialPoolingRegressor(basis=TreeBasis(n_trees=True)), "n_trees"),
        (FedAvgRegressor(training=Training(participation=True)), "training: .*participation"),
        (FedAvgRegressor(training=Training(stable_rounds=True)), "training: .*stable_rounds"),
    ],
)
def test_true_is_no_number(estimator, name):
    with pytest.raises(ValueError, match=f"{name}.* must be .*Got True"):
        estimator.fit(DATA.X, DATA.y, DATA.groups)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feature": "zz"}, r"feature must be one of \['x0', 'x1'\] or a position, got 'zz'"),
        ({"feature": 2}, r"feature must be one of \['x0', 'x1'\] or a position, got 2"),
        ({"values": ["a"]}, "values must .*numbers, got"),
        ({"values": [0.0, np.nan]}, "values must .*finite"),
        ({"values": [np.inf]}, "values must .*finite"),
    ],
)
def test_partial_effect(arguments, message):
    model = PartialPoolingRegressor(1, basis="linear").fit(DATA.X, DATA.y, DATA.groups)
    with pytest.raises(ValueError, match=message):
        model.partial_effect(**{"feature": "x0", **arguments})


def test_return_std():
    model = PartialPoolingRegressor(1, basis="linear").fit(DATA.X, DATA.y, DATA.groups)
    for value in (np.array([True, False]), "yes", None, 1, [True]):
        with pytest.raises(ValueError, match="return_std must be True or False, got"):
            model.predict(DATA.X, DATA.groups, return_std=value)


@pytest.mark.parametrize("level", [0, 95, -0.1, np.nan, "a", None, True, [0.9], np.array(0.9)])
def test_levels_of_displays(level):
    with pytest.raises(ValueError, match=r"level must be a probability in \(0, 1\), got"):
        RandomEffectsDisplay(values=[0.0, 1.0], std=[1.0, 1.0]).plot(level=level)
