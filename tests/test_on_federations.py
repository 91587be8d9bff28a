"""Predictions, scores, clusters and certificates of clients whose rows are elsewhere."""

import numpy as np
import pandas as pd
import pytest
from cases import CLASSES, DATA, make
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of

from skcfl import ConvexClusteredFLRegressor, FedAvgRegressor, GTVRegressor, LocalModels
from skcfl.certificates import certify_partition, duality_gap
from skcfl.exceptions import FederationError
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.federation.remote import RemoteFederation
from skcfl.models import Location
from skcfl.testing import StrictFederation


def places_of(data):
    """The same clients here and on two hosts, and the order of the rows."""
    parts = named(parts_of(data, 3))
    hosts = [PickledHost(parts[k::2]) for k in (0, 1)]
    order = np.concatenate([np.flatnonzero(np.isin(data.groups, p[2][2])) for p in parts])
    here = InProcessFederation(data.X, data.y, data.groups)
    return (here, slice(None)), (RemoteFederation(hosts), order)


def test_places_get_the_models_of_their_clients_only():
    _, (federation, _) = places_of(DATA)
    model = make("LocalModelsRegressor").fit(DATA.X, DATA.y, groups=DATA.groups)
    model.predict_federation(federation)
    for root in federation._roots:
        kept = root.line.transport.host._kept.values()
        (scored,) = (each for each in kept if hasattr(each, "table"))
        assert len(scored.table) == len(scored.places) < 9


def test_weights_unseen_clients_and_new_classes():
    weight = np.random.RandomState(0).uniform(0.5, 2.0, len(DATA.y))
    model = make("IFCARegressor").fit(DATA.X, DATA.y, groups=DATA.groups, sample_weight=weight)
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, weight)
    wanted = model.score(DATA.X, DATA.y, groups=DATA.groups, sample_weight=weight)
    assert_allclose(model.score_federation(StrictFederation(federation)), wanted, rtol=1e-12)
    new = InProcessFederation(DATA.X, DATA.y, np.char.add("new ", DATA.groups))
    with pytest.raises(ValueError, match="not seen in fit"):
        model.predict_federation(new)
    assert_array_equal(model.assign_federation(new), model.labels_)
    model.set_params(unseen="average")
    wanted = model.predict(DATA.X, groups=np.char.add("new ", DATA.groups))
    assert_allclose(model.predict_federation(FanOutFederation([new])), wanted, rtol=1e-12)
    classifier = make("FedAvgClassifier").fit(CLASSES.X, CLASSES.y, groups=CLASSES.groups)
    other = np.where(np.arange(len(CLASSES.y)) % 5 == 0, 7, CLASSES.y)
    federation = InProcessFederation(CLASSES.X, other, CLASSES.groups)
    wanted = classifier.score(CLASSES.X, other, groups=CLASSES.groups)
    assert_allclose(classifier.score_federation(federation), wanted, rtol=1e-12)
    with pytest.raises(ValueError, match="classes not seen in fit"):
        classifier.assign_federation(federation)


def test_targets_are_needed_for_scores_only():
    model = make("FedAvgRegressor").fit(DATA.X, DATA.y, groups=DATA.groups)
    federation = InProcessFederation(DATA.X, None, DATA.groups)
    wanted = model.predict(DATA.X, groups=DATA.groups)
    assert_allclose(model.predict_federation(federation), wanted)
    with pytest.raises(ValueError, match="requires y"):
        model.score_federation(federation)
    constant = InProcessFederation(DATA.X, np.ones(len(DATA.y)), DATA.groups)
    assert model.score_federation(constant) == 0.0
    points = LocalModels(Location()).fit(DATA.X, groups=DATA.groups)
    wanted = points.score(DATA.X, groups=DATA.groups)
    assert_allclose(points.score_federation(federation), wanted, rtol=1e-12)


def test_proofs_of_clients_elsewhere():
    model = ConvexClusteredFLRegressor(lam=0.05, graph="complete", refit=False, tol=1e-8)
    for federation, _ in places_of(DATA):
        model.fit_federation(federation)
        here = certify_partition(model, DATA.X, DATA.y, DATA.groups)
        there = certify_partition(model, federation)
        assert there.optimal == here.optimal
        assert_allclose(there.models, here.models, rtol=1e-8)
        gap = duality_gap(model, DATA.X, DATA.y, DATA.groups)
        assert_allclose(duality_gap(model, federation), gap, rtol=1e-6, atol=1e-12)
    with pytest.raises(ValueError, match="must be None where X is a federation"):
        certify_partition(model, federation, DATA.y)


def test_lost_places():
    _, (federation, _) = places_of(DATA)
    model = GTVRegressor(lam=0.1).fit(DATA.X, DATA.y, groups=DATA.groups)
    host = federation._roots[1].line.transport
    host.lost_after = 1  # it says who its clients are
    labels = model.assign_federation(federation)
    gone = np.isin(np.unique(DATA.groups), parts_of(DATA, 3)[1][2])
    assert (labels[gone] == -1).all()
    wanted = model.assign(DATA.X, DATA.y, groups=DATA.groups)
    assert_array_equal(labels[~gone], wanted[~gone])
    for call in (model.score_federation, model.predict_federation):
        _, (federation, _) = places_of(DATA)
        federation._roots[1].line.transport.lost_after = 1
        with pytest.raises(FederationError, match="1 of 2 places do not answer"):
            call(federation)


FRAME = pd.DataFrame(DATA.X, columns=list("abcd"))


@pytest.mark.parametrize(
    ("X", "rows", "method", "message"),
    [
        (DATA.X, DATA.X, "predict_proba", r"one of \['predict'\], got 'predict_pr"),
        (DATA.X, DATA.X[:, :3], "predict", "fitted on 4 features, the clients .* have 3"),
        (FRAME, FRAME.rename(columns={"d": "e"}), "predict", "fitted on the features .*'d'"),
    ],
)
def test_bad_arguments(X, rows, method, message):
    model = FedAvgRegressor().fit(X, DATA.y, groups=DATA.groups)
    with pytest.raises(ValueError, match=message):
        model.predict_federation(InProcessFederation(rows, DATA.y, DATA.groups), method)
    with pytest.raises(TypeError, match="federation must be one of"):
        model.score_federation(rows)
