"""Estimators of scikit-learn as local models: ensembles of clusters, and who may have them."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR, LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.estimator_checks import parametrize_with_checks

import skcfl
from skcfl import IFCA, CLoVE, FedAvg, LocalModels, OracleClusters, Training
from skcfl.exceptions import PrivacyError
from skcfl.federation import (
    ClientPrivacy,
    FanOutFederation,
    Faults,
    InProcessFederation,
    SitePolicy,
)
from skcfl.federation.remote import RemoteFederation
from skcfl.models import SklearnModel
from skcfl.testing import StrictFederation

CURVES = [
    lambda X: 2 * np.sin(2 * X[:, 0]) * X[:, 1],
    lambda X: 2 * np.abs(X[:, 0]) - np.abs(X[:, 1]),
    lambda X: 2 * ((X[:, 0] > 0) ^ (X[:, 2] > 0)) - 1.0,
]


def crisp(n_rows, rng, n_clients=24, curves=CURVES):
    """Rows of clients in crisp clusters, each with its own curve."""
    groups = np.repeat(np.arange(n_clients), n_rows)
    X = rng.standard_normal((len(groups), 4))
    means = np.choose(groups % len(curves), [curve(X) for curve in curves])
    return X, means + 0.4 * rng.standard_normal(len(X)), groups


X, y, groups = crisp(20, np.random.default_rng(0), 8, CURVES[:2])
Xt, _, there = crisp(5, np.random.default_rng(1), 8, CURVES[:2])
KINDS = np.array(["no", "some", "much"])
words = KINDS[np.digitize(y, [-0.5, 0.8])]
words[groups == 3] = np.where(words[groups == 3] == "much", "some", words[groups == 3])
words[groups == 5] = "no"
SMOOTH = SklearnModel(make_pipeline(StandardScaler(), SVR(C=3)))
# Unlike a support vector machine its fit does not depend on the order of rows.
EXACT = KernelRidge(alpha=0.1, kernel="rbf")
CLUSTERS = CLoVE(SMOOTH, 2)


def fresh(method):
    return clone(method).set_params(random_state=0)


def fitted(method, rows=slice(None), **data):
    return fresh(method).fit(X[rows], y[rows], groups=groups[rows], **data)


def alone(estimator, rows, target=y, **data):
    """The estimator itself, fitted to some rows."""
    return clone(estimator).fit(X[rows], target[rows], **data)


def test_crisp_clusters_of_curves_are_found():
    rng, r2 = np.random.default_rng(0), {}
    train, test, true = crisp(40, rng, 12), crisp(50, rng, 12), np.arange(12) % 3
    for name, method in {
        "clove": CLoVE(SklearnModel(SVR(C=3)), random_state=0),
        "ifca": IFCA(SklearnModel(SVR(C=3)), 3, random_state=0),
        "linear": skcfl.CLoVERegressor(3, random_state=0),
        "one": FedAvg(SklearnModel(SVR(C=3))),
        "each": LocalModels(SklearnModel(SVR(C=3))),
    }.items():
        method.fit(*train[:2], groups=train[2])
        r2[name] = method.score(*test[:2], groups=test[2])
        assert name != "clove" or adjusted_rand_score(true, method.labels_) > 0.94
    assert r2["clove"] > 0.62
    assert r2["ifca"] > 0.62
    assert r2["linear"] < 0.2
    assert r2["one"] < 0.3
    assert r2["each"] < 0.45


def test_one_truth_is_one_cluster():
    rows = crisp(20, np.random.default_rng(3), 8, CURVES[:1])
    assert CLoVE(SMOOTH, random_state=0).fit(*rows[:2], groups=rows[2]).n_clusters_ == 1


def test_local_models_are_the_estimator_fitted_to_the_rows_of_each_client():
    model = fitted(LocalModels(SklearnModel(EXACT)))
    for i in range(8):
        wanted, mine = alone(EXACT, groups == i).predict(Xt), there == i
        assert_allclose(model.client_model(i).predict(Xt), wanted)
        assert_allclose(model.predict(Xt[mine], groups=there[mine]), wanted[mine])


def test_ensembles_are_means_by_rows():
    sizes = np.array([12, 20, 20, 15, 20, 20, 20, 20])
    keep = np.arange(len(groups)) % 20 < sizes[groups]
    labels = np.arange(8) % 2
    model = OracleClusters(SklearnModel(EXACT, n_boosts=0), labels=labels)
    model.fit(X[keep], y[keep], groups=groups[keep])
    for k in (0, 1):
        members = np.flatnonzero(labels == k)
        each = [alone(EXACT, keep & (groups == i)).predict(Xt) for i in members]
        mean = np.average(each, axis=0, weights=sizes[members])
        assert_allclose(model.predict_cluster(Xt, k), mean)
        assert_allclose(model.client_model(members[0]).predict(Xt), mean)


def test_boosts_fit_what_the_ensemble_leaves():
    model = fitted(FedAvg(SklearnModel(EXACT, n_boosts=1)))
    first = [alone(EXACT, groups == i) for i in range(8)]
    left = y - np.mean([one.predict(X) for one in first], axis=0)
    second = [alone(EXACT, groups == i, left) for i in range(8)]
    wanted = sum(np.mean([one.predict(Xt) for one in each], axis=0) for each in (first, second))
    assert_allclose(model.predict(Xt, groups=there), wanted)
    # The mean of least squares fits leaves nothing that another mean of them would add.
    lines = [fitted(FedAvg(SklearnModel(LinearRegression(), n_boosts=n))) for n in (0, 3)]
    assert_allclose(*(line.predict(Xt, groups=there) for line in lines), atol=1e-12)


def test_own_rows_are_judged_out_of_folds():
    # The nearest neighbour of a row of fit is the row itself.
    model = fitted(LocalModels(SklearnModel(KNeighborsRegressor(1))))
    assert model.score(X, y, groups=groups) == 1.0
    assert model.objective_ > 0.5 * 0.4**2
    clusters = fitted(CLoVE(SklearnModel(KNeighborsRegressor(1), n_boosts=0), 2))
    assert_array_equal(clusters.labels_, np.arange(8) % 2)


def test_results_depend_on_rows_only():
    method = clone(CLUSTERS).set_params(
        model__estimator=DecisionTreeRegressor(max_features=1), model__n_boosts=1
    )
    model = fitted(method)
    wanted = model.predict(Xt, groups=there)
    assert_array_equal(fitted(method.set_params(n_jobs=2)).predict(Xt, groups=there), wanted)
    order = np.random.RandomState(0).permutation(len(X))
    assert_allclose(fitted(method, order).predict(Xt, groups=there), wanted)
    copied = pickle.loads(pickle.dumps(model))
    assert_array_equal(copied.predict(Xt, groups=there), wanted)
    method.set_params(random_state=1).fit(X, y, groups=groups)
    assert (method.predict(Xt, groups=there) != wanted).any()


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")
@parametrize_with_checks(
    [FedAvg(SklearnModel(DecisionTreeClassifier(random_state=0)))],
    # scikit-learn 1.6 tries it whatever the tags say.
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_sparse_data": "rows must be dense"
    },
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_parameters_are_nested():
    method = clone(CLoVE(SMOOTH, 2)).set_params(model__estimator__svr__C=7.0)
    assert clone(method).get_params()["model__estimator__svr__C"] == 7.0
    assert SMOOTH.estimator[-1].C == 3


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(), LinearSVC()], ids=lambda e: type(e).__name__
)
def test_classes_that_clients_do_not_have(estimator):
    method = OracleClusters(SklearnModel(estimator), labels=np.arange(8) % 2, random_state=0)
    method.fit(X, words, groups=groups)
    predicted = method.predict(X, groups=groups)
    assert method.score(X, words, groups=groups) > np.mean(words == "some")
    for i in (3, 5):
        plain = method.client_model(i)
        mine = groups == i
        assert_array_equal(plain.predict(X[mine]), predicted[mine])
        assert_array_equal(plain.classes_, method.classes_)
    assert hasattr(method, "predict_proba") == hasattr(estimator, "predict_proba")
    if hasattr(estimator, "predict_proba"):
        proba = method.predict_proba(X, groups=groups)
        assert_allclose(proba.sum(axis=1), 1.0)
        assert_allclose(plain.predict_proba(X[mine]), proba[mine])
    local = LocalModels(SklearnModel(estimator)).fit(X, words, groups=groups)
    assert set(local.predict(X[mine], groups=groups[mine])) == {"no"}


def test_new_clients_and_new_rows():
    model, new = fitted(CLUSTERS), np.full(len(Xt), 99)
    adapted = model.adapt(X[:20], y[:20], groups=new[:20])
    assert adapted.labels_[-1] == model.labels_[0]
    assert_array_equal(adapted.predict(Xt, groups=new), model.predict_cluster(Xt, 0))
    assert model.assign(X[20:40], y[20:40]) == model.labels_[1]
    moved = model.update(np.tile(X[:20], (9, 1)), np.tile(y[:20], 9), groups=np.full(180, 1))
    assert moved.labels_[1] == model.labels_[0] != model.labels_[1]
    model.unseen = "average"
    each = np.array([model.predict_cluster(Xt, k) for k in (0, 1)])
    assert_allclose(model.predict(Xt, groups=new), each.mean(axis=0))
    with pytest.raises(ValueError, match="fit LocalModels"):
        fitted(LocalModels(SMOOTH)).adapt(X[:20], y[:20], groups=new[:20])


def test_weights_of_rows_go_to_the_estimator():
    some, without = np.arange(len(X)) % 20 >= 4, SklearnModel(KNeighborsRegressor())
    equal, uneven = some * (1.0 + groups % 3), np.random.RandomState(0).uniform(1, 2, len(X))
    # Weights that are alike for all rows of a client but those of zero are none.
    mine = groups == 2
    for weights, wanted, atol in (
        (equal, alone(SVR(), mine & some), 1e-9),
        (uneven, alone(SVR(), mine, sample_weight=uneven[mine]), 1e-6),
    ):
        model = fitted(LocalModels(SklearnModel(SVR())), sample_weight=weights)
        assert_allclose(model.client_model(2).predict(Xt), wanted.predict(Xt), atol=atol)
    assert fitted(LocalModels(without), sample_weight=equal)
    with pytest.raises(ValueError, match="KNeighborsRegressor.*takes no sample_weight"):
        fitted(LocalModels(without), sample_weight=uneven)


def federations():
    """The rows in several places, behind walls, and in hosts that pickle."""
    first = groups % 3 == 1
    parts = [(X[some], y[some], groups[some]) for some in (first, ~first)]
    yield StrictFederation(FanOutFederation([InProcessFederation(*part) for part in parts]))
    hosts = RemoteFederation([PickledHost([(k, f"part {k}", p)]) for k, p in enumerate(parts)])
    hosts.carries_objects = True
    yield hosts


def test_federations_are_one_process():
    wanted = fitted(CLUSTERS)
    for federation in federations():
        model = fresh(CLUSTERS).fit_federation(federation)
        assert_array_equal(model.labels_, wanted.labels_)
        assert_array_equal(model.model_.owners, wanted.model_.owners)
        assert_allclose(
            model.predict(Xt, groups=there), wanted.predict(Xt, groups=there), rtol=1e-10
        )
        assert_allclose(model.score_federation(federation), wanted.score(X, y, groups=groups))


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.MissingClientWarning")
def test_a_lost_client_is_no_member():
    faulty = InProcessFederation(X, y, groups, faults=Faults(dead=[2]))
    model = fresh(CLUSTERS).fit_federation(faulty)
    assert model.missing_clients_.tolist() == [2]
    wanted, rows = fitted(CLUSTERS, groups != 2), (Xt[there != 2], there[there != 2])
    assert_allclose(model.predict(*rows), wanted.predict(*rows))


def test_a_lost_place_is_no_member():
    method = IFCA(SMOOTH, 2)
    here = groups % 3 != 1
    rows = [(k, f"{k}", (X[own], y[own], groups[own])) for k, own in enumerate((here, ~here))]
    hosts = [PickledHost([part]) for part in rows]
    hosts[1].lost_after = 4
    federation = RemoteFederation(hosts)
    federation.carries_objects = True
    model = fresh(method).fit_federation(federation)
    assert_array_equal(model.missing_clients_, np.unique(groups[~here]))
    wanted, new = fitted(method, here), np.isin(there, groups[here])
    found = model.predict(Xt[new], groups=there[new])
    assert_allclose(found, wanted.predict(Xt[new], groups=there[new]))


@pytest.mark.parametrize("name", ["FPFC", "ConvexClusteredFL", "FedRep", "FeSEM"])
def test_methods_with_gradients_refuse(name):
    with pytest.raises(ValueError, match=f"gradients for {name}.*CLoVE, IFCA, OracleClusters"):
        getattr(skcfl, name)(SMOOTH).fit(X, y, groups=groups)


def test_what_would_be_ignored_is_refused():
    for changed in ({"training": Training(local_steps=3)}, {"aggregation": "median"}):
        with pytest.raises(ValueError, match="at the default"):
            clone(CLUSTERS).set_params(**changed).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="shared_layers"):
        clone(CLUSTERS).set_params(shared_layers=1).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="classifier or a regressor, got KMeans"):
        SklearnModel(KMeans()).bind(2)
    with pytest.raises(ValueError, match="KNeighborsRegressor cannot be asked about 4 rows"):
        fitted(CLoVE(SklearnModel(KNeighborsRegressor(17)), 2))


def test_estimators_do_not_leave_an_organisation(tmp_path):
    def refuses(federation, match, kind=ValueError, **more):
        with pytest.raises(kind, match=match):
            FedAvg(SMOOTH).fit_federation(federation, **more)

    host = PickledHost([(0, "part", (X, y, groups))])
    refuses(RemoteFederation([host]), "objects of Python")
    assert {name for name, _ in host.requests} == {"hello"}
    federation = InProcessFederation(X, y, groups)
    refuses(federation, "checkpoint", checkpoint=tmp_path / "fit")
    bounds = {"features": (-4, 4), "target": (-4, 4)}
    privacy = ClientPrivacy(epsilon=1.0, delta=1e-5, bounds=bounds)
    for policy, *refusal in (
        (SitePolicy(min_rows=2), "objects of Python"),
        (SitePolicy(privacy=privacy), "no noise makes them private", PrivacyError),
    ):
        refuses(InProcessFederation(X, y, groups, policy=policy), *refusal)
