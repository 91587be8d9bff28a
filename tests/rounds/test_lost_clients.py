"""Clients that do not answer take no part in the round, and keep the clusters that they had."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    CFLRegressor,
    CLoVERegressor,
    FedEMRegressor,
    FeSEMRegressor,
    IFCARegressor,
    Training,
)
from skcfl.calls.first_order import LocalUpdate, Losses, OwnLosses
from skcfl.datasets import make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.models import LinearModel
from skcfl.rounds.alternate import Options, alternate
from skcfl.rounds.choice import LeastLoss
from skcfl.rounds.loop import choose_all, run_rounds
from skcfl.rounds.loss_clusters import LossClusters
from skcfl.rounds.record import RoundRecord
from skcfl.rounds.state import Draw, State
from skcfl.rounds.stop import StopRule
from skcfl.rounds.update import ModelAverage, StepSizes

DATA = make_clustered_regression(12, 3, 4, n_samples=30, random_state=0)
IDS = np.unique(DATA.groups)
DEAD = 4
OTHERS = np.arange(12) != DEAD


def lossy(min_clients=1, **faults):
    faults = Faults(**faults, random_state=0)
    return InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults, min_clients=min_clients)


def pool_of(**faults):
    return lossy(**faults).open(LinearModel(alpha=0.01).bind(4), 0)


WAYS = [{}, {"averaging": "model", "polish": False}, {"polish": False, "hold_out": 0.2}]
LOST = [{"dropout": 0.3}, {"dead": IDS[[DEAD]]}]
# Each way of training with a loss of clients by a method in turn; or with all.
TRIED = [
    (cls, way, LOST[(k + j) % 2])
    for j in some(range(2), 1)
    for k, way in enumerate(WAYS)
    for cls in some([IFCARegressor, CLoVERegressor][:: (-1) ** (k + j)], 1)
]


@pytest.mark.parametrize(("cls", "options", "faults"), TRIED)
def test_clusters_are_found_without_the_silent(cls, options, faults):
    model = cls(3, max_iter=30, tol=0, training=Training(**options), random_state=0)
    whole = model.fit(DATA.X, DATA.y, groups=DATA.groups)
    wanted = whole.score(DATA.X, DATA.y, groups=DATA.groups)
    model.fit_federation(lossy(min_clients=11, **faults))
    here = OTHERS if "dead" in faults else slice(None)
    assert adjusted_rand_score(DATA.labels[here], model.labels_[here]) == 1.0
    rows = np.isin(DATA.groups, IDS[here])
    score = model.score(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    assert score > wanted - 0.01
    assert np.isfinite(model.history_["objective"]).all()
    assert model.history_["participants"][:30].min() < 12


OTHER_METHODS = [FeSEMRegressor(3), CFLRegressor(eps2=0.27), FedEMRegressor(3, n_init=1)]
PAIRS = [(model, LOST[(k + j) % 2]) for j in range(2) for k, model in enumerate(OTHER_METHODS)]


# Who takes part changes from round to round: the models keep moving a little.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("model", "faults"), some(PAIRS, 3))
def test_other_methods_find_clusters_without_the_silent(model, faults):
    model = clone(model).set_params(random_state=0).fit_federation(lossy(**faults))
    here = OTHERS if "dead" in faults else slice(None)
    assert adjusted_rand_score(DATA.labels[here], model.labels_[here]) == 1.0


@pytest.mark.parametrize("rule", [LeastLoss(), None])
@pytest.mark.parametrize("averaging", ["gradient", "model"])
def test_a_silent_client_keeps_its_label(rule, averaging):
    """With half of the answers lost labels change at participants only."""
    pool = pool_of(dropout=0.5)
    rule = LossClusters(12, 3, np.random.RandomState(0)) if rule is None else rule
    options = Options(
        max_iter=8, averaging=averaging, step_size=0.1, tol=0, polish=False, keep_rounds=True
    )
    theta = pool.model.init_params(3, 1)
    result = alternate(pool, theta, options, np.random.RandomState(0), rule=rule)
    labels = result.extra["round_labels"]
    known = (labels >= 0).sum(axis=1)
    assert 0 < known[0] == result.history["participants"][0] < 12
    assert (np.diff(known) >= 0).all()
    changed = (np.diff(labels, axis=0) != 0).sum(axis=1)
    assert (changed <= result.history["participants"][1:]).all()


def test_a_client_that_never_answered_is_counted_to_the_largest_cluster():
    pool = pool_of(dead=IDS[[DEAD]])
    draw, theta = Draw(pool), np.zeros((3, pool.n_params))
    theta[1, 0], theta[2] = 0.1, 1e6
    state = State(theta, np.full(12, -1))
    labels = choose_all(LeastLoss(), draw.everyone, state)
    assert labels[DEAD] == np.bincount(labels[OTHERS]).argmax()
    # Of those that are known nothing is guessed.
    labels = choose_all(LeastLoss(), draw.everyone, State(theta, np.full(12, 2)))
    assert labels[DEAD] == 2


def test_a_round_in_which_nobody_answers_is_skipped():
    pool = pool_of(dropout=0.5)
    draw, record = Draw(pool, 0.1, np.random.RandomState(0)), RoundRecord(pool.ledger)
    state = State(pool.model.init_params(3, 1), np.full(12, -1))
    update = ModelAverage(2, StepSizes(3, 0.1).of_members)
    state = run_rounds(state, draw, LeastLoss(), update, record, StopRule(0), 60)
    assert 0 < state.round == len(record.history["objective"]) < 60
    assert np.isfinite(state.theta).all()


@pytest.mark.parametrize("faults", some([{"dropout": 0.1, "dead": IDS[[DEAD]]}, *LOST], 1))
def test_the_number_of_clusters_is_judged_by_all(faults, monkeypatch):
    """Starts and held-out losses need everybody, who is asked again."""
    monkeypatch.setattr("skcfl.search.n_clusters.FEW_FOLDS", 3)
    model = IFCARegressor(random_state=0).fit_federation(lossy(**faults))
    assert model.n_clusters_ == 3
    assert adjusted_rand_score(DATA.labels[OTHERS], model.labels_[OTHERS]) == 1.0


def test_losses_of_the_silent_count_nothing_where_all_are_needed():
    pool = pool_of(dead=IDS[[DEAD]])
    theta = np.ones((2, pool.n_params))
    assert np.isnan(pool.ask(Losses, theta)[DEAD]).all()
    assert not pool.ask(Losses, theta, whole=True)[DEAD].any()
    own = pool.ask(OwnLosses, np.ones((12, pool.n_params)))
    assert np.isnan(own[DEAD]) and (own[OTHERS] > 0.0).all()
    trained = pool_of(dropout=0.5).ask(LocalUpdate, np.zeros((12, 5)), 1, 0.1, whole=True)
    assert (trained != 0.0).any(axis=1).all()
