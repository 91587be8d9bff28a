"""One client in other units: a warning names it, and it sets nobody's scales."""

import warnings

import numpy as np
import pytest
from cases import EVERYDAY
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named
from private_clients import where
from scipy import sparse
from sklearn.metrics import accuracy_score, adjusted_rand_score, r2_score
from trials import one_a_method, spread

import skcfl
from skcfl import CLoVERegressor, LocalModelsRegressor, PartialPoolingRegressor
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.exceptions import UnitsWarning
from skcfl.federation import Faults, InProcessFederation
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.scaling import ANOTHER_UNIT, Moments, Scaling, levels, own_means, own_spreads
from skcfl.models import LinearModel

REGRESSION = make_clustered_regression(10, 2, 3, n_samples=25, random_state=0)
CLASSES = make_clustered_classification(10, 2, 3, n_samples=40, random_state=0)
IDS = np.unique(REGRESSION.groups)
ODD = IDS[3]

# Where a model is a mean over clients its rows count in it, as they should: one client matters to
# its cluster, or to all.
MEANS = ("FedAvg", "OracleClusters", "IFCA", "CLoVE", "CFL", "FeSEM", "FlexCFL", "OneShot")
MEANS += ("PACFL", "FedEM", "FedRep", "FedPAC", "PerFedAvg")
# Networks do not standardise, unless they are told to.
UNSCALED = {"FedProtoClassifier"}
# Most that the score of the others, R^2 or accuracy, may fall with the other methods.
FALL = 0.03

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def rows_of(data=REGRESSION, factor=1e6, feature=slice(None)):
    X = data.X.copy()
    X[np.ix_(data.groups == ODD, np.arange(X.shape[1])[feature])] *= factor
    return X, data.y, data.groups


def others_of(data=REGRESSION):
    """Rows of the other clients."""
    return where((data.X, data.y, data.groups), data.groups != ODD)


def make(name):
    cls = getattr(skcfl, name)
    options = {"n_clusters": 2, "lam": 0.1, "random_state": 0, "max_iter": 30}
    known = cls().get_params()
    return cls(**{key: value for key, value in options.items() if key in known})


@pytest.mark.parametrize("name", spread(sorted(set(one_a_method(EVERYDAY)) - UNSCALED), 5))
def test_it_is_named_and_the_others_are_not_ruined(name):
    data = CLASSES if name.endswith("Classifier") else REGRESSION
    X, y, groups = rows_of(data)
    with pytest.warns(UnitsWarning, match=r"spread of feature \d at client 'client03' is \de\+0"):
        found = make(name).fit(X, y, groups=groups)
    if name.startswith(MEANS):
        return
    score = r2_score if name.endswith("Regressor") else accuracy_score
    X, y, groups = others_of(data)
    wanted, found = (
        score(y, model.predict(X, groups=groups))
        for model in (make(name).fit(X, y, groups=groups), found)
    )
    assert wanted - found < FALL


def test_scales_are_those_of_the_others():
    found = InProcessFederation(*rows_of(feature=[1])).open(LinearModel().bind(3), 0)
    wanted = InProcessFederation(*others_of()).open(LinearModel().bind(3))
    assert_array_equal(found.scaling.scale, wanted.scaling.scale)
    assert_array_equal(found.scaling.mean, wanted.scaling.mean)
    assert list(found.other_units) == [(3, 1)]
    assert_allclose(list(found.other_units.values()), 1e6, rtol=0.5)


@pytest.mark.parametrize("factor", [0.3 * ANOTHER_UNIT, 1e-6])
def test_clients_that_differ_are_scaled_as_before(factor):
    """To the last digit; smaller units at one client do not harm the others."""
    X, y, groups = rows_of(factor=factor)
    pool = InProcessFederation(X, y, groups).open(LinearModel().bind(3), 0)
    wanted = Scaling.of_parts(lambda step, *means: [getattr(Moments(X, None), step)(*means)])
    assert_array_equal(pool.scaling.scale, wanted.scale)
    assert_array_equal(pool.scaling.mean, wanted.mean)
    assert not pool.other_units


def test_partial_pooling_begins_with_the_units_of_the_others():
    X, y, groups = others_of()
    with pytest.warns(UnitsWarning):
        found = PartialPoolingRegressor(covariance="diag", n_clusters=1).fit(*rows_of())
    assert found.covariance_.diagonal()[:-1].max() > 0.01
    assert r2_score(y, found.predict(X, groups=groups)) > 0.9


def test_a_single_false_cell():
    X, y, groups = rows_of(factor=1.0)
    X[np.flatnonzero(groups == ODD)[5], 2] = 1e12
    with pytest.warns(UnitsWarning, match="feature 2 at client 'client03'") as caught:
        found = LocalModelsRegressor().fit(X, y, groups=groups)
    assert len(caught) == 1 and "feature 1" not in str(caught[0].message)
    X, y, groups = others_of()
    wanted = LocalModelsRegressor().fit(X, y, groups=groups).predict(X, groups=groups)
    # The local penalty, alpha="auto", still depends on the client a little.
    assert_allclose(found.predict(X, groups=groups), wanted, atol=0.05)


def test_names_of_features_and_targets():
    pd = pytest.importorskip("pandas")
    X, y, groups = rows_of()
    X = pd.DataFrame(X, columns=["age", "height", "dose"])
    with pytest.warns(UnitsWarning, match="feature 'age' at client 'client03'"):
        LocalModelsRegressor().fit(X, y, groups=groups)
    y = np.where(groups == ODD, 1e6, 1.0) * y
    with pytest.warns(UnitsWarning, match="the target at client 'client03'"):
        LocalModelsRegressor(loss="quantile").fit(REGRESSION.X, y, groups=groups)
    with pytest.warns(UnitsWarning, match="the target at client 'client03'"):
        LocalModelsRegressor(hidden_layer_sizes=2, max_iter=1).fit(REGRESSION.X, y, groups=groups)


@pytest.mark.parametrize("aggregation", ["mean", "geometric_median"])
def test_places_elsewhere_and_medians(aggregation):
    rows, first = rows_of(), np.isin(REGRESSION.groups, IDS[:5])
    parts = named([where(rows, some) for some in (first, ~first)])
    model = CLoVERegressor(2, aggregation=aggregation, random_state=0)
    with pytest.warns(UnitsWarning, match="client03"):
        model.fit_federation(RemoteFederation([PickledHost([part]) for part in parts]))
    if aggregation != "mean":
        kept = IDS != ODD
        assert adjusted_rand_score(REGRESSION.labels[kept], model.labels_[kept]) == 1.0


def test_neither_rare_values_nor_lost_clients_tell_of_units():
    rng = np.random.RandomState(0)
    X = rng.normal(size=(30, 400)) * (rng.uniform(size=(30, 400)) < 0.1)
    federation = InProcessFederation(sparse.csr_array(X), X[:, 0], np.arange(30) % 6)
    assert not federation.open(LinearModel().bind(400), 0).other_units
    federation = InProcessFederation(*rows_of(), faults=Faults(dead=[ODD]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnitsWarning)
        LocalModelsRegressor().fit_federation(federation)


@pytest.mark.parametrize("name", ["FedAvgRegressor", "FedProtoClassifier"])
def test_networks_far_from_unit_size(name):
    """Of targets, or of features; those of unit size, or standardised, are not warned of."""
    classes = name.endswith("Classifier")
    X, y, groups = others_of()
    wide, y, far = (1e4 * X, y > 0, y > 0) if classes else (X, y / y.std(), 1e3 * y + 1e4)
    network = make(name).set_params(hidden_layer_sizes=(4,), max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UnitsWarning)
        network.fit(wide, far, groups=groups)
        network.set_params(standardize=False).fit(X, y, groups=groups)
    with pytest.warns(UnitsWarning, match="far from unit size"):
        network.fit(wide, far, groups=groups)


@pytest.mark.filterwarnings("error::skcfl.exceptions.UnitsWarning")
def test_many_clients_are_not_far_from_unit_size(monkeypatch):
    """Objectives of fusion are sums over clients."""
    monkeypatch.setattr("skcfl.base.federated.MOST_LOSS", 4.0)
    X, y, groups = others_of(make_clustered_regression(60, 2, 3, n_samples=4, random_state=0))
    network = make("GTVRegressor").set_params(hidden_layer_sizes=(4,), max_iter=3)
    network.fit(X, y / y.std(), groups=groups)
    assert network.history_["objective"][0] > 4.0


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_sums_go_over_the_rows_in_chunks(n_jobs, monkeypatch):
    """A client's rows lie in several chunks, and several clients' in one."""
    monkeypatch.setattr("skcfl.federation.scaling.CHUNK_BYTES", 8 * 2 * 7)
    monkeypatch.setattr("skcfl.numerics.threads.PARALLEL_VALUES", 0)
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.repeat(np.arange(5), [30, 1, 2, 1, 16]))
    X, weights = rng.normal(3, 1, (50, 2)), rng.uniform(1, 2, 50)
    moments = Moments(X, weights, n_jobs)
    assert_allclose(moments.sums()[-1], weights @ X, rtol=1e-13)
    assert_allclose(moments.squares([3, 2]), weights @ (X - [3, 2]) ** 2, rtol=1e-13)
    table = X, weights, codes, 5
    mean = own_means(*table, n_jobs)[2]
    spread = own_spreads(*table, np.array([3, 2]), n_jobs)
    for i in range(5):
        mine = codes == i
        shares = weights[mine] / weights[mine].sum()
        assert_allclose(mean[i], shares @ X[mine], rtol=1e-13)
        assert_allclose(spread[i] ** 2, shares @ (X[mine] - [3, 2]) ** 2, rtol=1e-13)
    order = np.argsort(codes)
    sizes = np.add.reduceat((weights[:, None] * X**2)[order], [0, 30, 31, 33, 34])
    totals = np.bincount(codes, weights)
    counts, logs, squares = levels(*table, n_jobs)
    assert_allclose(counts, totals.sum())
    assert_allclose(squares, np.sum(sizes, axis=0), rtol=1e-13)
    assert_allclose(logs, totals @ np.log(np.sqrt(sizes / totals[:, None])), rtol=1e-12)
