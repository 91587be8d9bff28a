"""The base estimator: every rule of fit, predict and the fitted attributes."""

import copy
import pickle
import warnings
from dataclasses import KW_ONLY

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import is_classifier, is_clusterer, is_regressor
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import get_tags

import skcfl
from skcfl import LocalModels, LocalModelsClassifier, LocalModelsRegressor, OracleClustersRegressor
from skcfl._option_objects import parameters
from skcfl.base import BaseFederated
from skcfl.calls.curvatures import Solve
from skcfl.exceptions import SingleClientWarning
from skcfl.federation import InProcessFederation
from skcfl.federation.result import Result
from skcfl.models import LinearModel, Location

# ------------------------------------------------------------------ data and a small method


def make_federation(seed=0, kind="regression", n_clients=5, n_features=3):
    """Ragged clients of two clusters, rows shuffled, ids that sort otherwise than they come."""
    rng = np.random.default_rng(seed)
    models = np.array([[1.0, -2.0, 0.5], [-1.5, 1.0, 2.0]])[:, :n_features]
    sizes = rng.integers(15, 40, n_clients)
    ids = np.array([f"client {chr(101 - i)}" for i in range(n_clients)])
    codes = rng.permutation(np.repeat(np.arange(n_clients), sizes))
    X = rng.normal(size=(len(codes), n_features))
    z = np.einsum("nd,nd->n", X, models[codes % 2]) + 0.3 * rng.normal(size=len(codes))
    if kind == "classification":
        y = np.array(["no", "yes"])[(z > 0).astype(int)]
    elif kind == "multiclass":
        y = np.digitize(z, [-1.0, 1.0])
    else:
        y = z
    return X, y, ids[codes]


@parameters
class Fixed(BaseFederated):
    """Clusters given by a label for each client; the solver's answer is under control."""

    model: object = None
    _: KW_ONLY
    labels: object = None
    n_clusters: int = 1
    converged: bool = True
    personal: bool = False
    fail: bool = False
    extra: object = None
    value: object = None

    def _solve_options(self, groups):
        if self.labels is None:
            return {}
        if groups is None:
            raise ValueError("labels need groups")
        return {"labels": np.array([self.labels[g] for g in groups.tolist()])}

    def _solve(self, pool, labels=None):
        if self.fail:
            raise RuntimeError("the solver failed")
        if labels is None:
            labels = np.zeros(pool.n_clients, dtype=int)
        n_clusters = max(self.n_clusters, labels.max() + 1)
        own, _ = pool.ask(Solve)
        cluster_params = np.full((n_clusters, pool.n_params), 99.0)
        for k in np.unique(labels):
            cluster_params[k] = own[labels == k].mean(axis=0) if self.value is None else self.value
        return Result(
            cluster_params=cluster_params,
            labels=labels,
            params=own if self.personal else None,
            objective=1.5,
            n_iter=7,
            history={"objective": np.arange(7.0)},
            converged=self.converged,
            shortfall="" if self.converged else "the gap is 3, allowed 1: raise max_iter",
            extra={"draw": pool.random_state.uniform(), **(self.extra or {})},
        )


LABELS = {"client a": 4, "client b": 1, "client c": 4, "client d": 2, "client e": 2}


def fitted_attributes(estimator):
    computed = {name for name in ("params_", "coef_", "intercept_") if hasattr(estimator, name)}
    return {name for name in vars(estimator) if name.endswith("_")} | computed


@pytest.fixture
def rows():
    return make_federation()


# ------------------------------------------------------------------ fitted attributes


@pytest.mark.parametrize("hidden", [(), (4,)])
def test_sparse_rows_of_a_fit_to_dense_ones_are_the_same_rows(hidden):
    """The units of a fit to dense rows have means, which leave no zeros."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(6), 30), rng.poisson(1.0, size=(180, 3)) * [1.0, 5.0, 100.0]
    y = (X * np.where(groups % 2, 1.0, -1.0)[:, None] / [1.0, 5.0, 100.0]).sum(axis=1)
    model = skcfl.IFCARegressor(2, hidden_layer_sizes=hidden, max_iter=50, tol=0.1, random_state=0)
    model.fit(X, y, groups=groups)
    other, new = sparse.csr_array(X), groups + 100
    assert_allclose(model.predict(other, groups=groups), model.predict(X, groups=groups))
    for method in (model.cluster_losses, model.assign):
        assert_allclose(method(other, y, groups), method(X, y, groups), rtol=1e-6)
    for method in (model.adapt, model.update):
        ids = new if method == model.adapt else groups
        found, wanted = (method(rows, y, groups=ids) for rows in (other, X))
        assert_array_equal(found.labels_, wanted.labels_)
    found, wanted = (
        model.score_federation(InProcessFederation(rows, y, groups)) for rows in (other, X)
    )
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("name", "weights"),
    [("Ditto", "uniform"), ("CFL", "uniform"), ("FlexCFL", "n_samples"), ("FedRep", "uniform")],
)
def test_a_client_without_weight_is_not_there(name, weights):
    """Nor does it hold models back that count each client once."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(6), 20), rng.normal(size=(120, 2))
    y = (X * np.where(groups % 2, 1.0, -1.0)[:, None]).sum(axis=1) + rng.normal(size=120)
    model = getattr(skcfl, f"{name}Regressor")(hidden_layer_sizes=(3,), max_iter=5, tol=0.0)
    training = skcfl.Training(weights=weights)
    model.set_params(random_state=0, training=training, alpha=0.01)
    if hasattr(model, "n_clusters"):
        model.set_params(n_clusters=2)
    if hasattr(model, "lam"):
        model.set_params(lam=0.3)
    some = groups < 5  # the last client has no weight
    wanted = model.fit(X[some], y[some], groups[some]).predict(X[some], groups=groups[some])
    found = model.fit(X, y, groups, sample_weight=some * 1.0)
    assert_allclose(found.predict(X[some], groups=groups[some]), wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "loss"),
    [("LocalModels", "huber"), ("ConvexClusteredFL", "squared_error"), ("Ditto", "quantile")],
)
def test_a_client_without_weight_is_predicted_near_the_others(name, loss):
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(6), 30), rng.normal(size=(180, 2))
    y = (X * rng.normal(size=(6, 2))[groups]).sum(axis=1) + 1000 + rng.normal(size=180)
    lam = {} if name == "LocalModels" else {"lam": 0.0}
    model = getattr(skcfl, f"{name}Regressor")(loss=loss, **lam)
    model.fit(X, y, groups=groups, sample_weight=(groups != 2) * 1.0)
    here = groups == 2
    assert abs(model.predict(X[here], groups=groups[here]).mean() - 1000) < 2


def test_fitted_attributes(rows):
    X, y, groups = rows
    estimator = Fixed(labels=LABELS, n_clusters=5, extra={"dual_gap": 0.25}).fit(X, y, groups)
    assert estimator.groups_.tolist() == [f"client {c}" for c in "abcde"]
    # sizes 2, 2 (first members a and d) and 1; the two empty clusters are gone
    assert estimator.labels_.tolist() == [0, 2, 0, 1, 1]
    assert estimator.n_clusters_ == 3
    assert estimator.cluster_sizes_.tolist() == [2, 2, 1]
    assert estimator.cluster_params_.shape == (3, 4)
    assert estimator.params_.shape == (5, 4)
    assert (estimator.cluster_params_ < 90).all()
    assert_array_equal(estimator.params_, estimator.cluster_params_[estimator.labels_])
    for of in ("", "cluster_"):
        params = getattr(estimator, f"{of}params_")
        assert_array_equal(getattr(estimator, f"{of}coef_"), params[:, :3])
        assert_array_equal(getattr(estimator, f"{of}intercept_"), params[:, 3])
    assert (estimator.n_iter_, estimator.objective_, estimator.dual_gap_) == (7, 1.5, 0.25)
    assert estimator.history_["objective"].shape == (7,)
    assert (estimator.n_features_in_, estimator.model_.n_params) == (3, 4)
    assert not {"feature_names_in_", "classes_"} & fitted_attributes(estimator)


def test_unsupervised():
    X, _, groups = make_federation()
    estimator = LocalModels(Location()).fit(X, groups=groups)
    assert not hasattr(estimator, "coef_")
    assert not hasattr(estimator, "classes_")
    means = np.array([X[groups == g].mean(axis=0) for g in estimator.groups_])
    assert_allclose(estimator.params_, means)
    assert_allclose(estimator.predict(X, groups), means[np.unique(groups, return_inverse=True)[1]])
    residual = X - estimator.predict(X, groups)
    loss = 0.5 * (residual**2).sum(axis=1)
    assert estimator.score(X, groups=groups) == pytest.approx(-loss.mean())
    weights = np.arange(1.0, len(X) + 1)
    expected = -np.average(loss, weights=weights)
    assert estimator.score(X, sample_weight=weights, groups=groups) == pytest.approx(expected)
    assert estimator.assign(means, groups=np.arange(5)).tolist() == [0, 1, 2, 3, 4]


def test_models_of_clients_that_are_their_clusters_are_computed_when_asked_for(rows):
    X, y, groups = rows
    labels = {name: k % 2 for k, name in enumerate(np.unique(groups).tolist())}
    estimator = OracleClustersRegressor(labels).fit(X, y, groups)
    size = len(pickle.dumps(estimator))
    assert not {"params_", "coef_", "intercept_"} & vars(estimator).keys()
    for name in ("params", "coef", "intercept"):
        values = getattr(estimator, f"{name}_")
        of_clusters = getattr(estimator, f"cluster_{name}_")
        assert_array_equal(values, of_clusters[estimator.labels_])
        assert getattr(estimator, f"{name}_") is values  # a loop over clients copies nothing
    # Neither pickles nor copies have them, and new rows change those of a copy only.
    assert len(pickle.dumps(estimator)) == size
    assert "coef_" not in vars(copy.copy(estimator))
    assert_array_equal(pickle.loads(pickle.dumps(estimator)).coef_, estimator.coef_)
    before, mine = estimator.coef_.copy(), np.tile(np.flatnonzero(groups == groups[0]), 50)
    place, label = list(estimator.groups_).index(groups[0]), estimator.sample_labels(groups[:1])[0]
    y_of_others = estimator.predict_cluster(X[mine], 1 - label)
    updated = estimator.update(X[mine], y_of_others, groups[mine])
    assert_array_equal(updated.coef_[place], estimator.cluster_coef_[1 - label])
    assert_array_equal(estimator.coef_, before)


# ------------------------------------------------------------------ the group column


def as_frame(X, groups, position):
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    frame.insert(position, "site", groups)
    return frame


def as_object(X, groups, position):
    return np.insert(X.astype(object), position, groups, axis=1)


def as_floats(X, groups, position):
    return np.insert(X, position, np.unique(groups, return_inverse=True)[1], axis=1)


def as_csr(X, groups, position):
    return sparse.csr_array(as_floats(X, groups, position))


def as_csc(X, groups, position):
    return sparse.csc_matrix(as_floats(X, groups, position))


def as_coo_matrix(X, groups, position):
    return sparse.coo_matrix(as_floats(X, groups, position))


@pytest.mark.parametrize(
    ("container", "position", "group_col"),
    [
        (as_frame, 1, "site"),
        (as_frame, 3, -1),
        (as_object, 2, 2),
        (as_floats, 0, np.int64(0)),
        (as_csr, 3, -1),
        (as_coo_matrix, 0, -4),
        (as_csc, 2, 2),
    ],
)
def test_group_col_is_groups(rows, container, position, group_col):
    X, y, groups = rows
    expected = LocalModelsRegressor().fit(X, y, groups=groups)
    Z = container(X, groups, position)
    estimator = LocalModelsRegressor(group_col=group_col).fit(Z, y)
    assert estimator.n_features_in_ == 4
    assert len(estimator.groups_) == 5
    assert_allclose(estimator.coef_, expected.coef_, atol=1e-10)
    assert_allclose(estimator.predict(Z), expected.predict(X, groups), atol=1e-10)
    assert estimator.score(Z, y) == pytest.approx(expected.score(X, y, groups=groups))
    assert_array_equal(estimator.assign(Z, y), expected.assign(X, y, groups))
    assert_allclose(estimator.predict_cluster(Z, 2), expected.predict_cluster(X, 2))


def test_list_keeps_the_type_of_its_ids():
    rows = [[7, 0.1], [7, 0.2], [8, 0.3], [8, 0.1]]
    estimator = LocalModelsRegressor(group_col=0).fit(rows, [1.0, 2.0, 3.0, 4.0])
    assert estimator.groups_.tolist() == [7, 8]
    assert estimator.groups_.dtype.kind == "i"
    assert estimator.sample_labels([8, 7]).tolist() == [1, 0]
    whole = LocalModelsRegressor().fit([[1], [2], [3], [5]], [1, 2, 3, 4], groups=[7, 7, 8, 8])
    assert whole.params_.dtype == np.float64


def test_feature_names_include_the_group_column(rows):
    X, y, groups = rows
    frame = as_frame(X, groups, 1)
    estimator = LocalModelsRegressor(group_col="site").fit(frame, y)
    assert estimator.feature_names_in_.tolist() == ["x0", "site", "x1", "x2"]
    with pytest.raises(ValueError, match="feature names should match"):
        estimator.predict(frame[["site", "x0", "x1", "x2"]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        prediction = estimator.predict(frame.to_numpy())
    assert_allclose(prediction, estimator.predict(frame))
    pd.testing.assert_frame_equal(frame, as_frame(X, groups, 1))  # it is not changed
    # A fit to other rows leaves nothing of the fit before.
    estimator.set_params(group_col=None, loss="huber").fit(X, y, groups)
    assert "feature_names_in_" not in fitted_attributes(estimator)


@pytest.mark.parametrize(
    ("X", "group_col", "message"),
    [
        (pd.DataFrame({"a": [1.0, 2], "b": [1.0, 2]}), "site", "found 0 such columns among"),
        (np.array([[1, np.nan], [1, 2]]), 1, r"Column group_col=1 of X must name a client"),
        (np.ones(4), 0, "Expected 2D array, got 1D array instead"),
        (np.array([["a", "x"], ["b", "y"]], dtype=object), 0, "could not convert string to float"),
    ],
)
def test_bad_group_col(X, group_col, message):
    with pytest.raises(ValueError, match=message):
        LocalModelsRegressor(group_col=group_col).fit(X, np.arange(len(X)))


def test_column_and_groups_together_are_refused():
    X, y, groups = make_federation(kind="classification")
    Z = as_object(X, groups, 0)
    estimator = LocalModelsClassifier(group_col=0).fit(Z, y)
    for call in (estimator.predict, estimator.predict_proba, estimator.decision_function):
        with pytest.raises(ValueError, match="both given.*leave groups out"):
            call(Z, groups=groups)
    for call in (estimator.score, estimator.assign, estimator.fit):
        with pytest.raises(ValueError, match="groups and group_col=0 are both given"):
            call(Z, y, groups=groups)


def test_group_column_that_is_missing_or_changed_after_fit(rows):
    X, y, groups = rows
    estimator = LocalModelsRegressor(group_col=0).fit(as_object(X, groups, 0), y)
    with pytest.raises(ValueError, match="X has 3 features.*expecting 4"):
        estimator.predict(X)
    Z = as_csr(X, groups, 0)
    estimator = LocalModelsRegressor(group_col=0).fit(Z, y).set_params(group_col=None)
    with pytest.raises(ValueError, match="3 features, X has 4 .*group_col, now None, was chang"):
        estimator.predict(Z, groups=as_floats(X, groups, 0)[:, 0])


# ------------------------------------------------------------------ without groups


def test_one_client_and_a_warning(rows):
    X, y, _ = rows
    with pytest.warns(SingleClientWarning, match="all rows are one client") as record:
        estimator = LocalModelsRegressor(alpha=0.01, standardize=False).fit(X, y)
    assert [warning.filename for warning in record] == [__file__]  # it points at the caller
    assert estimator.groups_.tolist() == estimator.labels_.tolist() == [0]
    expected = Ridge(alpha=0.01 * len(X)).fit(X, y)
    assert_allclose(estimator.coef_, [expected.coef_], rtol=1e-9)
    assert_allclose(estimator.predict(X), expected.predict(X))


@pytest.mark.filterwarnings("ignore::skcfl.exceptions.SingleClientWarning")
def test_ids_after_a_fit_without_groups(rows):
    X, y, _ = rows
    estimator = LocalModelsRegressor().fit(X, y)
    ids, message = np.arange(len(X)), "was fitted without groups and knows no client id"
    with pytest.raises(ValueError, match=message):
        estimator.predict(X, groups=ids)
    with pytest.raises(ValueError, match=message):
        estimator.sample_labels(ids)
    estimator.set_params(unseen="largest")
    assert_array_equal(estimator.predict(X, groups=ids), estimator.predict(X))
    assert (estimator.sample_labels(ids) == 0).all()


def test_more_clusters_than_clients(rows):
    X, y, groups = rows
    with pytest.raises(ValueError, match="n_clusters=6 is more than the number of clients, 5"):
        Fixed(n_clusters=6).fit(X, y, groups)
    assert Fixed(n_clusters=5).fit(X, y, groups).n_clusters_ == 1
    with pytest.warns(SingleClientWarning):
        assert Fixed(n_clusters=2).fit(X, y).n_clusters_ == 1


# ------------------------------------------------------------------ bad ids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: [None, *g[1:]], r"groups must name a client in every row, got 1 missing"),
        (lambda g: g[:-1], r"groups must hold one id per row: got \d+ ids for \d+ rows of X"),
        (lambda g: "site", "set group_col='site'"),
    ],
)
def test_bad_groups_are_refused_everywhere(rows, change, message):
    X, y, groups = rows
    bad = change(groups)
    estimator = LocalModelsRegressor().fit(X, y, groups=groups)
    for call in (LocalModelsRegressor().fit, estimator.score, estimator.assign):
        with pytest.raises(ValueError, match=message):
            call(X, y, groups=bad)
    with pytest.raises(ValueError, match=message):
        estimator.predict(X, groups=bad)


# ------------------------------------------------------------------ unseen clients


def test_unseen_is_an_error(rows):
    X, y, groups = rows
    estimator = LocalModelsRegressor().fit(X, y, groups)
    new = np.where(groups == "client a", "client z", groups)
    message = r"not seen in fit: \['client z'\].*unseen='average'.*adapt\(\).*ClientKFold"
    with pytest.raises(ValueError, match=message):
        estimator.predict(X, groups=new)
    with pytest.raises(ValueError, match=message):
        estimator.sample_labels(new)
    with pytest.raises(ValueError, match="another type.*dtype int64 now, dtype <U8 in fit"):
        estimator.predict(X, groups=np.ones(len(X), dtype=int))


@pytest.mark.parametrize("personal", [False, True])
def test_unseen_uses_the_largest_cluster(rows, personal):
    X, y, groups = rows
    estimator = Fixed(
        LinearModel(), labels=dict(LABELS, **{"client b": 4}), unseen="largest", personal=personal
    ).fit(X, y, groups)
    assert estimator.cluster_sizes_.tolist() == [3, 2]
    new = np.where(groups == "client a", "client z", groups)
    prediction = estimator.predict(X, groups=new)
    known = groups != "client a"
    largest = X @ estimator.cluster_coef_[0] + estimator.cluster_intercept_[0]
    assert_allclose(prediction[known], estimator.predict(X, groups)[known])
    assert_allclose(prediction[~known], largest[~known])
    assert (estimator.sample_labels(new)[~known] == 0).all()


# ------------------------------------------------------------------ whose model predicts


@pytest.mark.parametrize("personal", [False, True])
def test_each_row_has_its_clients_model(rows, personal):
    X, y, groups = rows
    estimator = Fixed(labels=LABELS, personal=personal).fit(X, y, groups)
    position = {g: i for i, g in enumerate(estimator.groups_)}
    rows_of = np.array([position[g] for g in groups])
    expected = np.einsum("nd,nd->n", X, estimator.coef_[rows_of]) + estimator.intercept_[rows_of]
    assert_allclose(estimator.predict(X, groups), expected)
    assert_allclose(  # a part of the rows, in another order
        estimator.predict(X[::-3], groups[::-3]), expected[::-3]
    )
    labels = estimator.sample_labels(groups)
    assert_array_equal(labels, estimator.labels_[rows_of])
    by_cluster = X @ estimator.cluster_coef_.T + estimator.cluster_intercept_
    assert_allclose(estimator.predict_cluster(X, 1), by_cluster[:, 1])
    for each in (labels, labels.tolist()):
        assert_allclose(estimator.predict_cluster(X, each), by_cluster[np.arange(len(X)), labels])


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (3, r"label must be in 0, ..., 2, as there are 3 clusters; got \[3\]"),
        (-1, r"got \[-1\]"),
        (0.0, "label must be an integer or .* got float64"),
        (True, "got bool"),
        ("a", "got <U1"),
        ([0, 1], r"one for each row, got int64 of shape \(2,\)"),
    ],
)
def test_bad_cluster_label(rows, label, message):
    X, y, groups = rows
    estimator = Fixed(labels=LABELS).fit(X, y, groups)
    with pytest.raises(ValueError, match=message):
        estimator.predict_cluster(X, label)


def test_assign(rows):
    X, y, groups = rows
    estimator = Fixed(labels={g: ord(g[-1]) % 2 for g in LABELS}).fit(X, y, groups)
    before = pickle.dumps(estimator)
    X2, y2, groups2 = make_federation(seed=1)
    renamed = np.array([int(g[-1], 16) for g in groups2])  # ids of another type are fine
    labels = estimator.assign(X2, y2, renamed)
    assert_array_equal(labels, estimator.labels_)
    assert pickle.dumps(estimator) == before
    own = renamed == 0xB
    assert estimator.assign(X2[own], y2[own]).tolist() == [estimator.labels_[1]]
    with pytest.raises(ValueError, match="requires y to be passed"):
        estimator.assign(X2, groups=renamed)


def test_assign_checks_targets():
    X, y, groups = make_federation(kind="classification")
    estimator = LocalModelsClassifier().fit(X, y, groups)
    assert_array_equal(estimator.assign(X, y, groups), np.arange(5))
    one_class = y == "yes"  # a client may show one class only
    assert estimator.assign(X[one_class], y[one_class]).shape == (1,)
    with pytest.raises(ValueError, match=r"y contains classes not seen in fit: \['maybe'\]"):
        estimator.assign(X, np.where(y == "yes", "maybe", y), groups)
    counts = LocalModelsRegressor(loss="poisson").fit(X, np.ones(len(X)), groups)
    with pytest.raises(ValueError, match="non-negative"):
        counts.assign(X, -np.ones(len(X)), groups)


@pytest.mark.parametrize("method", ["score", "assign", "predict_cluster", "sample_labels"])
def test_not_fitted(method):
    more = () if method == "sample_labels" else (np.zeros(3, dtype=int),)
    with pytest.raises(NotFittedError):
        getattr(LocalModelsClassifier(), method)(np.ones((3, 2)), *more)
    for name in ("params_", "coef_", "intercept_"):
        with pytest.raises(AttributeError, match=f"LocalModelsRegressor.*{name}"):
            getattr(LocalModelsRegressor(), name)


# ------------------------------------------------------------------ what kind of estimator


@pytest.mark.parametrize(
    ("estimator", "kind", "proba"),
    [
        (LocalModels(), "regressor", False),
        (LocalModels(LinearModel(loss="log_loss")), "classifier", True),
        (LocalModels(LinearModel(loss="squared_hinge")), "classifier", False),
        (LocalModels(Location()), None, False),
        (LocalModelsClassifier(), "classifier", True),
        (LocalModelsClassifier(loss="squared_hinge"), "classifier", False),
        (LocalModelsRegressor(), "regressor", False),
    ],
)
def test_kind_comes_from_the_local_model(estimator, kind, proba):
    assert is_classifier(estimator) == (kind == "classifier")
    assert is_regressor(estimator) == (kind == "regressor")
    assert not is_clusterer(estimator)
    tags = get_tags(estimator)
    assert tags.estimator_type == kind
    assert (tags.classifier_tags is not None) == (kind == "classifier")
    assert (tags.regressor_tags is not None) == (kind == "regressor")
    assert tags.target_tags.required == (kind is not None)
    assert tags.input_tags.sparse
    assert hasattr(estimator, "decision_function") == (kind == "classifier")
    for method in ("predict_proba", "predict_log_proba"):
        assert hasattr(estimator, method) == proba


def test_proba_has_a_column_for_every_class():
    """Clients saw {a, b}, {b, c} and c only; every client has a column for a, b and c."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    groups = np.repeat([1, 2, 3], 20)
    y = np.concatenate([np.tile(["a", "b"], 10), np.tile(["b", "c"], 10), np.tile("c", 20)])
    estimator = LocalModelsClassifier(alpha=0.01).fit(X, y, groups)
    assert estimator.classes_.tolist() == ["a", "b", "c"]
    assert (estimator.coef_.shape, estimator.intercept_.shape) == ((3, 3, 2), (3, 3))
    assert estimator.decision_function(X, groups).shape == (60, 3)
    proba = estimator.predict_proba(X, groups)
    assert proba.shape == (60, 3)
    assert_allclose(proba.sum(axis=1), 1)
    assert proba[groups == 1, 2].max() < 0.1
    assert proba[groups == 2, 0].max() < 0.1
    assert proba[groups == 3, 2].min() > 0.9
    assert (estimator.predict(X[40:], groups[40:]) == "c").all()
    assert_array_equal(estimator.predict(X, groups), estimator.classes_[proba.argmax(axis=1)])
    assert_allclose(estimator.predict_log_proba(X, groups), np.log(proba))


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        (np.array([True, False]), np.dtype(bool)),
        (np.array([3, -1]), np.dtype(int)),
        (np.array(["u", "v"], dtype=object), np.dtype(object)),
        (pd.Series(["u", "v"], dtype="category"), np.dtype(object)),
    ],
)
def test_classes_of_any_type(y, dtype):
    X, codes, groups = make_federation(kind="classification")
    target = y[(codes == "yes").astype(int)]
    estimator = LocalModelsClassifier().fit(X, target, groups)
    assert estimator.classes_.tolist() == sorted(np.asarray(y).tolist())
    prediction = estimator.predict(X, groups)
    assert prediction.dtype == dtype
    assert (prediction == np.asarray(target)).mean() > 0.9


# ------------------------------------------------------------------ score


# ------------------------------------------------------------------ validation of X, y, weights


@pytest.mark.parametrize(
    ("cls", "change", "message"),
    [
        (LocalModelsRegressor, lambda y: None, "requires y to be passed, but the target y is"),
        (LocalModelsClassifier, lambda y: y, "Unknown label type: continuous"),
        (LocalModelsClassifier, lambda y: ["a"] * len(y), "greater than one; got 1 class, 'a'"),
        (LocalModelsRegressor, lambda y: y[:-1], "inconsistent numbers of samples"),
        (LocalModelsRegressor, lambda y: y * np.nan, "Input y contains NaN"),
    ],
)
def test_target_is_needed_and_must_suit(rows, cls, change, message):
    X, y, groups = rows
    with pytest.raises(ValueError, match=message):
        cls().fit(X, change(y), groups)
    with pytest.raises(ValueError, match="requires y to be passed"):
        LocalModelsRegressor().fit(X, y, groups).score(X, groups=groups)


def test_scale_of_sparse_features_that_outnumber_the_rows():
    """Of the units, and not of how rare a feature is; fewer features have variance 1."""
    rng = np.random.RandomState(0)
    X = sparse.random_array((30, 80), density=0.1, format="csr", rng=0)
    X.data = 10.0 + rng.standard_normal(X.nnz)
    y, groups = rng.standard_normal(30), np.repeat([0, 1, 2], 10)
    units = sparse.diags_array(np.geomspace(1e-3, 1e3, 80))
    first = LocalModelsRegressor().fit(X, y, groups)
    second = LocalModelsRegressor().fit(sparse.csr_array(X @ units), y, groups)
    assert_allclose(first.predict(X, groups), second.predict(X @ units, groups))
    size = np.sqrt(np.mean(X.data**2))
    raw = LocalModelsRegressor(alpha=first.alpha_, standardize=False).fit(X / size, y, groups)
    assert_allclose(raw.predict(X / size, groups), first.predict(X, groups), atol=0.05)
    for most in (3, 7):  # fewer rows than features when they are repeated, and more
        weights = rng.randint(0, most, 30)
        again = np.repeat(np.arange(30), weights)
        assert (len(again) < 80) == (most == 3)
        weighted = LocalModelsRegressor(alpha=0.1).fit(X, y, groups, sample_weight=weights)
        repeated = LocalModelsRegressor(alpha=0.1).fit(X[again], y[again], groups[again])
        assert_allclose(weighted.predict(X, groups), repeated.predict(X, groups))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LocalModels(verbose=-1), "'verbose' parameter of LocalModels must be"),
        (LocalModels(LogisticRegression()), "'model' parameter of LocalModels must be"),
        (LocalModels(LinearModel), "'model' parameter of LocalModels must be"),
        (LocalModels(LinearModel(alpha=-1)), "'alpha' parameter of LinearModel"),
        (LocalModelsRegressor(loss="log_loss"), "'loss' parameter.*Regressor.*'huber'"),
        (LocalModelsClassifier(loss="squared_error"), "'loss' parameter of LocalModelsClassifier"),
        (LocalModelsRegressor(alpha=-1), "'alpha' parameter of LocalModelsRegressor"),
    ],
    ids=str,
)
def test_bad_parameters(rows, estimator, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(*rows)


# ------------------------------------------------------------------ all or nothing, warnings


def test_solvers_overwrite_nothing(rows):
    assert Fixed(extra={"note": 3}).fit(*rows).note_ == 3
    for name in ("floats_up", "coef", "labels", "alpha"):
        with pytest.raises(RuntimeError, match=f"'{name}_'"):
            Fixed(extra={name: 3}).fit(*rows)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_models_that_are_not_finite_are_not_published(rows, value):
    estimator = Fixed(value=value)
    with pytest.raises(ValueError, match="Fixed diverged: .*: scale X and y"):
        estimator.fit(*rows)
    assert not fitted_attributes(estimator)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda e, X, y, g: e.set_params(fail=True).fit(X[:, :2], y, g),
        lambda e, X, y, g: e.fit(X[:, :2], np.full(len(y), np.nan), g),
        lambda e, X, y, g: e.fit(X[:, :2], y, g[:-1]),
        lambda e, X, y, g: e.set_params(n_clusters=99).fit(X[:, :2], y, g),
    ],
)
def test_failed_refit_leaves_the_fit_before(rows, break_it):
    X, y, groups = rows
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    estimator = Fixed().fit(frame, y, groups)
    names, prediction = fitted_attributes(estimator), estimator.predict(frame, groups)
    with pytest.raises((ValueError, RuntimeError)):
        break_it(estimator, X, y, groups)
    assert fitted_attributes(estimator) == names
    assert estimator.n_features_in_ == 3
    assert_array_equal(estimator.predict(frame, groups), prediction)


def test_convergence_warning_once(rows):
    X, y, groups = rows
    with pytest.warns(ConvergenceWarning) as record:
        estimator = Fixed(converged=False).fit(X, y, groups)
    assert [str(w.message) for w in record] == ["the gap is 3, allowed 1: raise max_iter"]
    assert record[0].filename == __file__
    assert estimator.predict(X, groups).shape == y.shape
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Fixed().fit(X, y, groups)


# ------------------------------------------------------------------ scikit-learn's conventions


def test_representations(rows):
    X, y, groups = rows
    estimator = LocalModels(LinearModel(alpha=0.5), group_col="site")
    assert repr(estimator) == "LocalModels(group_col='site', model=LinearModel(alpha=0.5))"
    assert "LinearModel" in estimator._repr_html_()
    assert "fitted" in LocalModels().fit(X, y, groups)._repr_html_()
    LocalModels(model="not a model")._repr_html_()  # a wrong parameter is for fit to refuse


# ------------------------------------------------------------------ invariances


def test_random_state(rows):
    X, y, groups = rows
    expected = np.random.RandomState(3).uniform()
    assert Fixed(random_state=3).fit(X, y, groups).draw_ == expected
    estimator = Fixed(random_state=np.random.RandomState(3))
    assert estimator.fit(X, y, groups).draw_ == expected
    assert estimator.fit(X, y, groups).draw_ != expected
    assert Fixed().fit(X, y, groups).draw_ != Fixed().fit(X, y, groups).draw_
