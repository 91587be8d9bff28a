"""Personal methods under a robust aggregation: as if the false clients were not there."""

import numpy as np
import pytest
from trials import some

import skcfl
from skcfl import (
    FedAvgRegressor,
    FedProtoClassifier,
    FedRepRegressor,
    PerFedAvgClassifier,
    PerFedAvgRegressor,
    PFedMeRegressor,
)
from skcfl.datasets import corrupt, make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.personal.shared_rounds import TrustedAverage
from skcfl.rounds.aggregation import GeometricMedian
from skcfl.rounds.state import Participants
from skcfl.rounds.update import Average, Step

SIZES = {"n_features": 4, "n_samples": 25, "random_state": 0}
DATA = make_clustered_regression(20, 2, **SIZES)
LABELLED = make_clustered_classification(20, 2, **SIZES)
METHODS = [
    FedRepRegressor(tol=1e-6, max_iter=5000),
    PFedMeRegressor(0.5, tol=1e-8),
    PerFedAvgRegressor(personal_steps=3),
    PerFedAvgClassifier(personal_steps=3),
]


@pytest.mark.parametrize("aggregation", some(["geometric_median", "median"], 1))
@pytest.mark.parametrize("model", METHODS, ids=lambda model: type(model).__name__)
def test_as_if_the_false_were_not_there(model, aggregation):
    regression = not hasattr(model, "predict_proba")
    data = DATA if regression else LABELLED
    model.set_params(standardize=False, alpha=0.1)
    # Large features make own models of nothing, which pull like others' in pFedMe.
    attacks = ["scale_X"] * (not isinstance(model, PFedMeRegressor)) + ["scale_y"] * regression
    for attack in some(attacks, 1):
        lies = corrupt(data.X, data.y, data.groups, attack=attack, fraction=0.05, random_state=0)
        model.set_params(aggregation=aggregation, unseen="average")
        model.fit(lies.X, lies.y, groups=lies.groups)
        aside, mine = model.suspicion_ > 1, model.coef_
        assert aside[lies.is_false].all() and aside.sum() <= 2
        there = ~np.isin(data.groups, model.groups_[aside])
        # Nor have they a part in what unseen clients are predicted by.
        if regression:
            assert np.abs(model.predict(data.X, np.full(len(data.X), "nobody"))).max() < 100
        model.set_params(aggregation="mean", unseen="error")
        model.fit(data.X[there], data.y[there], groups=data.groups[there])
        np.testing.assert_allclose(mine[~aside], model.coef_, atol=1e-4)


@pytest.mark.parametrize(
    ("model", "more"),
    [(skcfl.IFCARegressor(2), "suspicion_"), (skcfl.CFLRegressor(eps2=0.27), "tree_")],
    ids=["suspected", "split"],
)
def test_newcomers_have_no_part_in_what_was_suspected_or_split(model, more):
    """Positions in it would be those of other clients."""
    model.set_params(aggregation="geometric_median", random_state=0)
    some = DATA.groups != DATA.groups[0]
    model.fit(DATA.X[some], DATA.y[some], groups=DATA.groups[some])
    assert hasattr(model, more)
    adapted = model.adapt(DATA.X[~some], DATA.y[~some], groups=DATA.groups[~some])
    assert not hasattr(adapted, more) and "suspicious" not in str(adapted.report())


def test_rows_of_weight_four_are_four_rows():
    """Of distances, too, that shrink with the number of rows."""
    data = make_clustered_regression(
        9, 3, 3, n_samples=(15, 30), noise=1.0, bias=2.0, random_state=2
    )
    weights = np.where(np.isin(data.groups, np.unique(data.groups)[::2]), 4, 1)
    each = np.repeat(np.arange(len(data.y)), weights)
    options = {"alpha": 0.01, "random_state": 0, "aggregation": "geometric_median"}
    model = skcfl.RobustClusteredFLRegressor(3, **options)
    found = model.fit(data.X, data.y, data.groups, sample_weight=weights).suspicion_
    wanted = model.fit(data.X[each], data.y[each], data.groups[each]).suspicion_
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def step(moves, members):
    n = len(moves)
    pool = type("Pool", (), {"client_weights": np.full(n, 10.0)})()
    who = Participants(members, pool, np.ones(n))
    zeros = np.zeros(n, dtype=np.intp)
    return Step(who, zeros, np.ones(n), moves, np.zeros((1, 2)), np.ones(1))


@pytest.mark.parametrize("n_clients", [10, 12])
def test_who_lies_late_is_set_aside(n_clients):
    """The mean of those trusted is looked at anew in every round; for good where all take part."""
    rng = np.random.RandomState(0)
    moves, members = rng.standard_normal((10, 2)), np.arange(10)
    average = TrustedAverage(GeometricMedian(), n_clients)
    robust = Average(aggregator=GeometricMedian())
    np.testing.assert_array_equal(average(step(moves, members)), robust(step(moves, members)))
    average.trusts = True
    np.testing.assert_allclose(average(step(moves, members))[0], -moves.mean(axis=0))
    lies = moves.copy()
    lies[3] *= 1e6
    others = np.delete(moves, 3, axis=0).mean(axis=0)
    np.testing.assert_allclose(average(step(lies, members))[0], -others)
    assert average.suspicion[3] > 1 and (average.suspicion[10:] == 0).all()
    after = others if n_clients == 10 else moves.mean(axis=0)
    np.testing.assert_allclose(average(step(moves, members))[0], -after)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (PerFedAvgRegressor(personal_steps=3, tol=1e-3), DATA),
        (FedProtoClassifier((4,), max_iter=3, tol=0, random_state=0), LABELLED),
    ],
    ids=["steps", "prototypes"],
)
def test_who_does_not_answer(model, data):
    faults = Faults(dead=np.unique(data.groups)[[4]])
    federation = InProcessFederation(data.X, data.y, data.groups, faults=faults)
    model.set_params(aggregation="geometric_median", unseen="average").fit_federation(federation)
    np.testing.assert_array_equal(np.isinf(model.suspicion_), np.arange(20) == 4)
    assert np.isfinite(model.predict(data.X[:3], np.full(3, "unseen"))).all()


def test_attacks_on_messages():
    faults = Faults(attack="scale", false=np.unique(DATA.groups)[:2])
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults)
    how = {"alpha": 0.1, "personal_steps": 3}
    model = PerFedAvgRegressor(aggregation="geometric_median", **how).fit_federation(federation)
    true = ~np.isin(DATA.groups, faults.false)
    alone = PerFedAvgRegressor(**how).fit(DATA.X, DATA.y, groups=DATA.groups)
    rows, groups = (DATA.X[true], DATA.y[true]), DATA.groups[true]
    assert abs(model.score(*rows, groups=groups) - alone.score(*rows, groups=groups)) < 0.01
    assert (model.suspicion_[:2] > 1).all()


@pytest.mark.parametrize("cls", [FedAvgRegressor, PerFedAvgRegressor])
def test_one_model_for_clients_of_several_kinds(cls):
    """A quarter of the clients unlike the others is not false, beside one that is."""
    data = make_clustered_regression(24, 4, n_samples=40, random_state=0)
    honest = data.groups != data.groups[0]
    y = np.where(honest, data.y, 1e6 * data.y)
    model = cls(aggregation="geometric_median").fit(data.X, y, groups=data.groups)
    others = model.groups_ != data.groups[0]
    assert model.suspicion_[others].max() < 1 < model.suspicion_[~others].min()
    plain = cls().fit(data.X[honest], data.y[honest], groups=data.groups[honest])
    rows = data.X[honest], data.y[honest]
    scores = [one.score(*rows, groups=data.groups[honest]) for one in (model, plain)]
    assert abs(scores[0] - scores[1]) < 0.005
