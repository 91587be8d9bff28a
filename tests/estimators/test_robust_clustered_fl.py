"""Three stages that bear false clients."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import adjusted_rand_score

from skcfl import OneShotRegressor, RobustClusteredFLRegressor, Training
from skcfl.datasets import corrupt, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation

# Clients in other units are what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore::skcfl.exceptions.UnitsWarning")

DATA = make_clustered_regression(24, 3, 5, n_samples=40, random_state=0)


def honest(model, lies):
    rows = ~np.isin(lies.groups, lies.false)
    score = model.score(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    ari = adjusted_rand_score(DATA.labels[~lies.is_false], model.labels_[~lies.is_false])
    return score, ari


CLEAN = RobustClusteredFLRegressor(n_clusters=3, random_state=0)
CLEAN = CLEAN.fit(DATA.X, DATA.y, groups=DATA.groups).score(DATA.X, DATA.y, groups=DATA.groups)


ATTACKS = [("noise", "median"), ("sign_flip", "trimmed"), ("scale_X", "trimmed")]


@pytest.mark.parametrize("attack, clusterer", ATTACKS)
def test_false_rows(attack, clusterer):
    # Features in other units make models near zero, which agree: fewer than a cluster.
    fraction = 0.1 if attack == "scale_X" else 0.2
    options = {"attack": attack, "fraction": fraction, "random_state": 2}
    lies = corrupt(DATA.X, DATA.y, DATA.groups, **options)
    model = RobustClusteredFLRegressor(n_clusters=3, clusterer=clusterer, random_state=0)
    score, ari = honest(model.fit(lies.X, lies.y, groups=lies.groups), lies)
    assert ari == 1.0
    assert score > CLEAN - 0.01
    assert (model.suspicion_[lies.is_false] > 1).all()


@pytest.mark.parametrize("attack", ["scale", "alie"])
def test_false_messages(attack):
    """One of eight clients of each cluster."""
    ids = np.unique(DATA.groups)
    false = np.concatenate([ids[DATA.labels == k][:1] for k in range(3)])
    faults = Faults(attack=attack, false=false)
    how = {"training": Training(polish=False), "tol": 1e-3, "random_state": 0}
    model = RobustClusteredFLRegressor(n_clusters=3, **how)
    model.fit_federation(InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults))
    rows = ~np.isin(DATA.groups, false)
    true = ~np.isin(ids, false)
    assert adjusted_rand_score(DATA.labels[true], model.labels_[true]) == 1.0
    score = model.score(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    assert score > CLEAN - 0.01


def test_it_is_one_shot_clustering_with_other_defaults():
    same = {"clusterer": "trimmed", "trim": 0.25, "n_clusters": 3}
    same["aggregation"] = "geometric_median"
    one = OneShotRegressor(**same, random_state=0).fit(DATA.X, DATA.y, groups=DATA.groups)
    other = RobustClusteredFLRegressor(n_clusters=3, random_state=0)
    other.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert_array_equal(one.params_, other.params_)


def test_fits_that_are_only_judged_are_short():
    """Some rounds before polishing, not those of a fit that is published."""
    few = np.flatnonzero(np.isin(DATA.groups, np.unique(DATA.groups)[:8]))
    rows = few[np.arange(len(few)) % 4 == 0]
    model = RobustClusteredFLRegressor(random_state=0)
    model.fit(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    searched = model.history_["searched"]
    tried = np.unique(searched[(searched > 0) & (searched < 8)])
    # Ten folds of so few rows.
    assert all((searched == K).sum() <= 10 * 15 for K in tried)
