"""KFED as an estimator: weights, ids, federations, lost clients, new clients."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from trials import some

from skcfl import KFED
from skcfl.calls import CALLS
from skcfl.exceptions import FederationError, RejectedClientWarning, SingleClientWarning
from skcfl.federation import FanOutFederation, Faults, InProcessFederation, SitePolicy
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.row_calls import ROW_CALLS
from skcfl.federation.sites import Refused
from skcfl.testing import StrictFederation


def draw(seed=0, n_clients=8, rows=30, d=3):
    """Clients with rows of two of four clusters, the rows in no order."""
    rng = np.random.RandomState(seed)
    centres = 20.0 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])[:, :d]
    groups = np.repeat(np.arange(n_clients), rows)
    truth = (groups + rng.randint(2, size=len(groups))) % 4
    X = centres[truth] + rng.standard_normal((len(truth), d))
    order = rng.permutation(len(X))
    return X[order], groups[order], truth[order]


X, GROUPS, TRUTH = draw()
NAMES = np.char.add("site ", GROUPS.astype(str))
FITTED = KFED(4, random_state=0).fit(X, groups=NAMES)


def assert_same(found, wanted, rows=True):
    """Equal clusters, but for how their number is rounded; numbered alike."""
    assert_allclose(found.cluster_centers_, wanted.cluster_centers_, atol=1e-9)
    assert_allclose(found.cluster_sizes_, wanted.cluster_sizes_, rtol=1e-9)
    assert_array_equal(found.client_labels_, wanted.client_labels_)
    assert_array_equal(found.local_labels_, wanted.local_labels_)
    if rows:
        assert_array_equal(found.labels_, wanted.labels_)


@pytest.mark.parametrize("n_local", [2, "auto"])
@pytest.mark.parametrize("seed", range(2))
def test_weights_are_repetition(n_local, seed):
    """A row of weight two is the row twice, one of weight zero no row: any data, any order."""
    rng = np.random.RandomState(seed)
    X = rng.standard_normal((60, 2)).round(1)  # no clusters, some rows twice
    groups = rng.randint(4, size=60)
    weight = rng.randint(4, size=60)
    again = np.repeat(np.arange(60), weight)
    model = KFED(5, n_local=n_local, random_state=0)
    weighted = model.fit(X, groups=groups, sample_weight=weight)
    labels, sizes = weighted.labels_, weighted.cluster_sizes_
    assert_array_equal(sizes, np.bincount(labels, weight))
    means = [np.average(X[labels == k], axis=0, weights=weight[labels == k]) for k in range(5)]
    assert_allclose(weighted.cluster_centers_, means, atol=1e-9)
    repeated = KFED(5, n_local=n_local, random_state=0).fit(X[again], groups=groups[again])
    assert_same(repeated, weighted, rows=False)
    assert_array_equal(repeated.labels_, labels[again])
    order = rng.permutation(again)
    repeated.fit(X[order], groups=groups[order])
    assert_array_equal(repeated.labels_, labels[order])


def test_units_of_weights_and_weights_of_zero():
    weight = np.where(TRUTH == 0, 3.0, 0.5)
    model = KFED(4, random_state=0).fit(X, groups=NAMES, sample_weight=weight)
    assert (model.labels_[TRUTH == 0] == 0).all()
    sizes = model.cluster_sizes_
    for unit in (1e-3, 7.0):
        other = KFED(4, random_state=0).fit(X, groups=NAMES, sample_weight=unit * weight)
        assert_array_equal(other.labels_, model.labels_)
        assert_allclose(other.cluster_sizes_, unit * sizes, rtol=1e-9)
    weight[NAMES == "site 3"] = 0.0
    model.fit(X, groups=NAMES, sample_weight=weight)
    assert model.client_labels_[3] == -1 and (model.local_labels_[3] == -1).all()
    # Its rows go to the nearest centre of all.
    mine = NAMES == "site 3"
    assert_array_equal(model.labels_[mine], model.predict(X[mine]))
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        model.fit(X, groups=NAMES, sample_weight=-weight)


def test_ids_in_a_column():
    frame = pd.DataFrame(X, columns=list("abc")).assign(site=NAMES)[["a", "site", "b", "c"]]
    for column in ("site", 1, -3):
        model = KFED(4, group_col=column, random_state=0).fit(frame)
        assert_same(model, FITTED)
        assert model.n_features_in_ == 4
        assert_array_equal(model.predict(frame), FITTED.labels_)
    coded = np.column_stack([X, GROUPS])
    model = KFED(4, group_col=-1, random_state=0)
    assert_same(model.fit(coded), FITTED)
    with pytest.raises(ValueError, match="groups and group_col=-1 are both given"):
        model.fit(coded, groups=GROUPS)
    with pytest.raises(ValueError, match="group_col, now None, was changed after fit"):
        model.set_params(group_col=None).predict(coded)
    with pytest.raises(ValueError, match="group_col='site' is a name"):
        KFED(4, group_col="site").fit(X)


@pytest.mark.parametrize("rows", [X, sparse.csc_matrix(X)])
def test_sparse_rows_and_threads(rows):
    model = KFED(4, n_jobs=2, random_state=0).fit(rows, groups=NAMES)
    assert_same(model, FITTED)
    assert_array_equal(model.local_centers_, FITTED.local_centers_)
    assert_array_equal(model.predict(rows), FITTED.predict(X))
    assert_array_equal(model.predict(rows, groups=NAMES), FITTED.labels_)


def test_prediction_with_and_without_ids():
    """With ids by the client's own centres, which may lie beyond the others' borders."""
    X = np.array([0.0, 4.0, 9.0, 9.0, 10.0, 10.0])[:, None]
    groups = np.array([0, 0, 1, 1, 1, 1])
    model = KFED(2, random_state=0).fit(X, groups=groups)
    assert_array_equal(model.predict(X, groups=groups), model.labels_)
    assert_array_equal(model.predict(X, groups=groups + 5), model.predict(X))
    row = np.array([[5.0]])
    near = [model.predict(row)[0], *model.predict(np.repeat(row, 2)[:, None], groups=[0, 1])]
    assert near[0] == near[1] == model.labels_[0]
    with pytest.raises(ValueError, match="another type than the ids seen in fit"):
        model.predict(X, groups=groups.astype(str))
    with pytest.warns(SingleClientWarning, match="group_col"):
        alone = KFED(2, random_state=0).fit(X)
    assert_array_equal(alone.predict(X), alone.labels_)


def test_routing():
    pipe = make_pipeline(StandardScaler(), KFED(4, random_state=0))
    with sklearn.config_context(enable_metadata_routing=True):
        labels = pipe.fit_predict(X, groups=NAMES)
        assert pipe[-1].groups_.tolist() == np.unique(NAMES).tolist()
        assert_array_equal(pipe.predict(X, groups=NAMES), labels)
        model = KFED(4).set_fit_request(sample_weight=True)
        requests = model.get_metadata_routing()
        assert requests.fit.requests == {"groups": True, "sample_weight": True}
        assert requests.predict.requests == {"groups": True}
        requests = model.set_params(group_col=0).get_metadata_routing()
        assert requests.fit.requests["groups"] is False
    pipe.fit(X, kfed__groups=NAMES)
    assert_array_equal(pipe[-1].labels_, labels)


def places(weights=None):
    """The clients here, behind a wall, in two parts and on two hosts, and orders of the rows."""
    first = GROUPS < 3
    order = np.concatenate([np.flatnonzero(first), np.flatnonzero(~first)])
    some = [
        (X[part], None, NAMES[part], *([] if weights is None else [weights[part]]))
        for part in (first, ~first)
    ]
    here = InProcessFederation(X, None, NAMES, weights)
    yield here, slice(None)
    yield StrictFederation(here), slice(None)
    yield FanOutFederation([InProcessFederation(*part) for part in some]), order
    hosts = [PickledHost([(k, f"part {k}", part)]) for k, part in enumerate(some)]
    yield RemoteFederation(hosts), order


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")
@pytest.mark.parametrize("weights", some([1.0 + (TRUTH == 2), None], 1))
def test_federations(weights):
    wanted = KFED(4, random_state=0).fit(X, groups=NAMES, sample_weight=weights)
    for federation, order in places(weights):
        model = KFED(4, random_state=0).fit(X[:60]).fit_federation(federation)
        assert_same(model, wanted, rows=False)
        assert not hasattr(model, "labels_")
        assert_array_equal(model.predict_federation(federation), wanted.labels_[order])
        assert_array_equal(model.assign_federation(federation), wanted.client_labels_)
        assert_array_equal(model.groups_, wanted.groups_)
        counted = "calls_", "client_calls_", "floats_up_", "floats_down_"
        assert all(getattr(model, name) == getattr(wanted, name) for name in counted)


def test_bad_federations():
    federation = InProcessFederation(X, None, NAMES)
    with pytest.raises(ValueError, match="group_col must be None where a federation is fitted"):
        KFED(4, group_col=0).fit_federation(federation)
    with pytest.raises(TypeError, match="federation must be one of"):
        KFED(4).fit_federation(X)
    with pytest.raises(ValueError, match="n_samples=240 should be >= n_clusters=300"):
        KFED(300).fit_federation(federation)
    other = InProcessFederation(X[:, :2], None, NAMES)
    with pytest.raises(ValueError, match="fitted on 3 features, .* have 2"):
        FITTED.predict_federation(other)
    frame = pd.DataFrame(X, columns=list("abc"))
    model = KFED(4, random_state=0).fit_federation(InProcessFederation(frame, None, NAMES))
    assert model.feature_names_in_.tolist() == list("abc")
    other = InProcessFederation(frame.rename(columns={"a": "z"}), None, NAMES)
    with pytest.raises(ValueError, match="fitted on the features .* have"):
        model.assign_federation(other)
    with_ids = KFED(4, group_col="site").fit(frame.assign(site=NAMES))
    known = with_ids.predict_federation(InProcessFederation(frame, None, NAMES))
    assert_array_equal(known, with_ids.labels_)


def lossy(**faults):
    return InProcessFederation(X, None, NAMES, faults=Faults(**faults))


def without(name):
    """The same fit where the client never was."""
    rest = name != NAMES
    return KFED(4, random_state=0).fit(X[rest], groups=NAMES[rest])


def test_dead_and_false_clients():
    """They take no part; the others end as without them."""
    dead = KFED(4, random_state=0).fit_federation(lossy(dead=["site 5"]))
    with pytest.warns(RejectedClientWarning, match="1 of 8 clients .*site 5"):
        false = KFED(4, random_state=0).fit_federation(lossy(attack="nan", false=["site 5"]))
    assert dead.missing_clients_.tolist() == false.rejected_clients_.tolist() == ["site 5"]
    assert len(dead.rejected_clients_) == len(false.missing_clients_) == 0
    rest = np.arange(8) != 5
    alone = without("site 5")
    for model in (dead, false):
        assert model.client_labels_[5] == -1
        assert_allclose(model.cluster_centers_, alone.cluster_centers_, atol=1e-9)
        assert_array_equal(model.client_labels_[rest], alone.client_labels_)
        # Rows of the lost client are labelled by the clusters of the others.
        found = model.predict(X, groups=NAMES)
        assert adjusted_rand_score(FITTED.labels_, found) == 1.0
    labels = FITTED.assign_federation(lossy(dead=["site 5"]))
    assert labels[5] == -1
    assert_array_equal(labels[rest], FITTED.client_labels_[rest])


def test_clients_that_answer_later():
    model = KFED(4, random_state=0).fit_federation(lossy(dropout=0.3, random_state=0))
    assert_same(model, FITTED, rows=False)
    assert model.calls_ > FITTED.calls_
    federation = InProcessFederation(X, None, NAMES, faults=Faults(dead=["site 1"]), min_clients=8)
    with pytest.raises(FederationError, match="site 1"):
        KFED(4).fit_federation(federation)


def test_policy():
    """Clients of few rows do not show them."""
    keep = (NAMES != "site 2") | (np.cumsum(NAMES == "site 2") <= 5)
    named = SitePolicy(min_rows=6, calls={*CALLS, *ROW_CALLS})
    federation = InProcessFederation(X[keep], None, NAMES[keep], policy=named)
    model = KFED(4, n_local=2, random_state=0).fit_federation(federation)
    assert model.missing_clients_.tolist() == ["site 2"] and not model.local_centers_[2].any()
    unnamed = InProcessFederation(X, None, NAMES, policy=SitePolicy(min_rows=6))
    with pytest.raises(Refused, match="does not answer local_centres"):
        KFED(4, random_state=0).fit_federation(unnamed)


def test_new_clients():
    old = GROUPS < 6
    model = KFED(4, random_state=0).fit(X[old], groups=NAMES[old])
    before = model.__getstate__()
    labels = model.assign(X[~old], groups=NAMES[~old])
    adapted = model.adapt(X[~old], groups=NAMES[~old])
    assert model.__getstate__().keys() == before.keys() and len(model.groups_) == 6
    assert_array_equal(adapted.groups_, FITTED.groups_)
    assert_array_equal(adapted.client_labels_[6:], labels)
    # Equal clusters, here also equally numbered up to their sizes.
    both = np.unique(np.column_stack([adapted.predict(X, groups=NAMES), TRUTH]), axis=0)
    assert len(both) == 4
    weights = np.random.default_rng(0).uniform(1.0, 5.0, len(X))
    one = KFED(4, n_local=1, random_state=0).fit(X[old], groups=NAMES[old])
    adapted = one.adapt(X[~old], groups=NAMES[~old], sample_weight=weights[~old])
    mine = NAMES == adapted.groups_[-1]
    mean = np.average(X[mine], axis=0, weights=weights[mine])
    assert_allclose(adapted.local_centers_[-1, 0], mean)
    with pytest.raises(ValueError, match="holds clients that were seen in fit: .*site 0"):
        model.adapt(X, groups=NAMES)
    with pytest.raises(ValueError, match="adapt needs clients with ids"):
        model.adapt(X)
    assert model.assign(X[NAMES == "site 0"]).shape == (1,)
