"""Targets in other units, or counted from elsewhere: a y + b for y in every regressor."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import adjusted_rand_score
from trials import some

import skcfl
from skcfl import Training
from skcfl.datasets import make_clustered_regression
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.models.losses import Huber

DATA = make_clustered_regression(6, 2, n_samples=40, n_features=3, random_state=0)
ACCURACY = 1e-5


def fitted(name, y, **parameters):
    cls = getattr(skcfl, name)
    if "random_state" in cls().get_params():
        parameters["random_state"] = 0
    if name == "OracleClustersRegressor":
        parameters["labels"] = DATA.labels
    return cls(**parameters).fit(DATA.X, y, groups=DATA.groups)


def check_same(one, other, slope, constant):
    """The same models and clusters, in units of the targets' standard deviation."""
    predicted = one.predict(DATA.X, groups=DATA.groups)
    moved = (other.predict(DATA.X, groups=DATA.groups) - constant) / slope
    assert_allclose(moved, predicted, rtol=0, atol=ACCURACY * DATA.y.std())
    assert adjusted_rand_score(one.labels_, other.labels_) == 1.0


@pytest.mark.parametrize("name", some(["CFLRegressor", "FedAvgRegressor"], 1))
@pytest.mark.parametrize("loss", ["huber", "quantile"])
def test_affine_changes_under_other_losses(name, loss):
    """The window of quantiles is in units of the target by itself, Huber's is given in them."""
    told = {"eps2": 0.3} if name.startswith("CFL") else {}  # its search is tried in test_axes.py
    one = fitted(name, DATA.y, loss=loss, alpha=0.01, **told)
    for slope, constant in some([(1e3, -1e6), (1.0, 1e3), (1e3, 0.0)], 1):
        other = Huber(slope * Huber().delta) if loss == "huber" else loss
        # Huber's and the pinball loss are linear in the target where the penalty is a square.
        alpha = 0.01 if loss == "huber" else 0.01 / slope
        moved = fitted(name, slope * DATA.y + constant, loss=other, alpha=alpha, **told)
        check_same(one, moved, slope, constant)


def test_random_starts_are_in_units_of_the_target():
    """Drawn models predict numbers like the targets, wherever these are."""
    model = LinearModel().bind(DATA.X.shape[1])
    assert not model.start().any()
    plain = model.init_params(5, 0)
    moved = model.in_units(mean=-7.0, scale=4.0)
    assert moved.start().tolist() == [0.0, 0.0, 0.0, -7.0]
    assert_allclose(moved.init_params(5, 0), 4.0 * plain + moved.start())
    for one in (moved, LinearModel("poisson").bind(3).in_units(mean=9.0, scale=4.0)):
        start = one.output(one.decision(DATA.X, one.start()[None], np.zeros(len(DATA.X), int)))
        assert_allclose(start, 9.0 if one is not moved else -7.0)
    one = fitted("IFCARegressor", DATA.y, n_clusters=3, init="random")
    other = fitted("IFCARegressor", 1e4 * DATA.y - 1e7, n_clusters=3, init="random")
    check_same(one, other, 1e4, -1e7)


def test_false_clients_do_not_move_the_start():
    """Under a robust aggregation it is the median of the clients' means."""
    y = np.where(DATA.groups == DATA.groups[0], 1e9, DATA.y + 100.0)
    federation = InProcessFederation(DATA.X, y, DATA.groups)
    pool, _ = federation.open_with_folds(LinearModel().bind(3), robust=True)
    means = [y[DATA.groups == group].mean() for group in np.unique(DATA.groups)]
    assert_allclose(pool.start(), [0.0, 0.0, 0.0, np.median(means)])


def test_without_standardising_training_starts_from_zero():
    """As the papers do: nothing is asked about the targets."""
    kw = {"max_iter": 1, "training": Training(polish=False), "tol": 0, "alpha": 0.0}
    model = skcfl.FedAvgRegressor(standardize=False, **kw).fit(DATA.X, DATA.y + 50.0, DATA.groups)
    assert model.calls_ < skcfl.FedAvgRegressor(**kw).fit(DATA.X, DATA.y, DATA.groups).calls_
    zero = np.average((DATA.y + 50.0) ** 2) / 2
    assert model.history_["objective"][0] == pytest.approx(zero)


def test_units_of_amounts_change_no_number_of_clusters():
    """The units are in the likelihood of amounts, and no bound of it ends the search."""
    data = make_clustered_regression(9, 3, 2, noise=0.5, random_state=0)
    numbers = []
    for unit in (1.0, 1e-9):
        model = skcfl.PartialPoolingRegressor(loss="gamma", random_state=0)
        model.fit(data.X, np.exp(data.y / 4) * unit, groups=data.groups)
        numbers.append((model.n_clusters_, len(model.bic_path_["bic"])))
    assert numbers[0] == numbers[1] and numbers[0][0] == 3
