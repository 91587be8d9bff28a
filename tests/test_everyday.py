"""What people do with a fitted model: new clients, plain models, names, accounts, classes."""

import pickle
from itertools import product

import numpy as np
import pytest
from clustered import lines
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from trials import THOROUGH, some

import skcfl
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import InProcessFederation
from skcfl.models import MLP, Autoencoder, LinearModel, Location
from skcfl.models.losses import Gamma, Huber, Quantile, Tweedie


def numbered(data):
    """The data with the clients' numbers as ids."""
    data.groups = np.unique(data.groups, return_inverse=True)[1]
    return data


REGRESSION = numbered(make_clustered_regression(n_clients=12, n_clusters=3, random_state=0))
CLASSES = numbered(make_clustered_classification(n_clients=12, n_clusters=2, random_state=0))
METHODS = {
    "FedAvg": {},
    "LocalModels": {},
    "OracleClusters": {"labels": [0, 0, 1] * 4},
    "IFCA": {"n_clusters": 2},
    "CLoVE": {"n_clusters": 2},
    "ConvexClusteredFL": {"lam": 0.05},
    "GTV": {"lam": 0.05, "graph": "knn"},
    "FPFC": {"lam": 0.5},
    "Ditto": {"lam": 0.1},
    "PFedMe": {"lam": 0.1},
    "PerFedAvg": {},
    "FedRep": {"max_iter": 60, "tol": 0},
    "FedALA": {"max_iter": 30, "tol": 0},
}
KINDS = ["Regressor", "Classifier"]
# Twins take newcomers in by the same code: one of each method in turn.
NEWCOMERS = [(name, KINDS[k % 2]) for k, name in enumerate(METHODS)]
NEWCOMERS = list(product(METHODS, KINDS)) if THOROUGH else NEWCOMERS


def everyday(name, kind, **params):
    params = {**METHODS[name], **params}
    cls = getattr(skcfl, name + kind)
    if "random_state" in cls().get_params():
        params.setdefault("random_state", 0)
    return cls(**params)


def rows(data, clients):
    keep = np.isin(data.groups, clients)
    return data.X[keep], data.y[keep], data.groups[keep]


# ------------------------------------------------------------------------------------ units


def test_one_model_for_all_is_ridge_of_standardised_features():
    data = REGRESSION
    alpha = 0.03
    model = skcfl.FedAvgRegressor(alpha=alpha).fit(data.X * 7 + 3, data.y, groups=data.groups)
    ridge = make_pipeline(StandardScaler(), Ridge(alpha=alpha * len(data.y)))
    ridge.fit(data.X * 7 + 3, data.y)
    found = model.predict(data.X, groups=data.groups)
    assert_allclose(found, ridge.predict(data.X), rtol=1e-8)


def test_automatic_penalty_of_one_model_is_that_of_scikit_learn():
    data = CLASSES
    model = skcfl.FedAvgClassifier().fit(data.X, data.y, groups=data.groups)
    assert model.alpha_ == pytest.approx(1 / len(data.y))
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=1, tol=1e-10, max_iter=1000))
    plain.fit(data.X, data.y)
    found = model.predict_proba(data.X, groups=data.groups)
    assert_allclose(found, plain.predict_proba(data.X), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "models"), [("FedAvg", 1), ("OracleClusters", 2), ("LocalModels", 12), ("IFCA", 2)]
)
def test_automatic_penalty_counts_models(name, models):
    data = CLASSES
    model = everyday(name, "Classifier").fit(data.X, data.y, groups=data.groups)
    assert model.alpha_ == pytest.approx(models / len(data.y))


def test_automatic_penalty_of_least_squares_has_the_ratio_of_the_noise():
    data, n = REGRESSION, len(REGRESSION.y)
    model = skcfl.FedAvgRegressor().fit(data.X, data.y, groups=data.groups)
    X = np.column_stack([data.X, np.ones(n)])
    residuals = data.y - X @ np.linalg.lstsq(X, data.y, rcond=None)[0]
    ratio = (residuals @ residuals / (n - X.shape[1])) / data.y.var(ddof=1)
    assert model.alpha_ == pytest.approx(ratio / n, rel=1e-6)
    # The units of the target change nothing, nor does counting rows twice as weights of two.
    other = skcfl.FedAvgRegressor().fit(data.X, data.y * 1e3 - 5, groups=data.groups)
    assert other.alpha_ == pytest.approx(model.alpha_, rel=1e-6)
    # Huber's loss and interpolation have a penalty too.
    huber = skcfl.FedAvgRegressor("huber").fit(data.X, data.y, groups=data.groups)
    assert 0 < huber.alpha_ < 1 / n
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(6, 8)), rng.normal(size=6)
    assert skcfl.FedAvgRegressor().fit(X, y, groups=[0] * 6).alpha_ == pytest.approx(1 / 6)


def test_automatic_penalty_of_many_features_has_the_largest_evidence():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(150, 40)), np.repeat(np.arange(3), 50)
    noise, classes = rng.integers(0, 2, 150), (X[:, 0] > 0).astype(int)
    model = skcfl.FedAvgClassifier().fit(X, noise, groups=groups)
    assert model.alpha_ == pytest.approx((40 - 10) / 2 / 150)
    few = skcfl.FedAvgClassifier().fit(X[:, :12], noise, groups=groups)
    assert few.alpha_ == pytest.approx(1 / 150)
    assert skcfl.LocalModelsClassifier().fit(X, noise, groups=groups).alpha_ == 3 * model.alpha_
    clear = skcfl.FedAvgClassifier().fit(np.vstack([X] * 9), np.tile(classes, 9), [*groups] * 9)
    assert clear.alpha_ == pytest.approx(1 / (9 * 150))
    # Neither who has which rows nor weights for repetitions change it.
    others = skcfl.FedAvgClassifier().fit(X, noise, groups=np.arange(150))
    assert others.alpha_ == pytest.approx(model.alpha_)
    weights = rng.integers(0, 4, 150)
    whole = [np.repeat(a, weights, axis=0) for a in (X, noise, groups)]
    twice = skcfl.FedAvgClassifier().fit(*whole[:2], groups=whole[2])
    assert twice.alpha_ == pytest.approx(
        skcfl.FedAvgClassifier().fit(X, noise, groups=groups, sample_weight=weights).alpha_
    )
    # Columns that are constant count for nothing.
    constant = np.hstack([X[:, :3], np.ones((150, 20))])
    assert skcfl.FedAvgClassifier().fit(constant, noise, groups=groups).alpha_ == 1 / 150
    # The Hessian of a single client would show its rows, and networks have none.
    single = skcfl.FedAvgClassifier().fit(X[:30], noise[:30], groups=[0] * 30)
    assert single.alpha_ == pytest.approx(15**0.5 / 30)
    network = skcfl.FedAvgClassifier(hidden_layer_sizes=2, random_state=0)
    network.fit(X, noise, groups=groups)
    assert network.alpha_ == pytest.approx(0.3 * 15**0.5 / 150)
    # Of sparse features that outnumber the rows the values that are not zero count.
    X = sparse.random_array((150, 400), density=0.1, rng=rng, format="csr")
    model = skcfl.FedAvgClassifier().fit(X, noise, groups=groups)
    assert model.alpha_ == pytest.approx((X.nnz / 150 - 10) / 2 / 150)


@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
def test_columns_of_noise_leave_one_model_for_all_near_a_constant(kind):
    rng = np.random.default_rng(1)
    X, groups = rng.normal(size=(400, 150)), np.repeat(np.arange(4), 100)
    y = rng.normal(size=400) if kind == "Regressor" else rng.integers(0, 2, 400)
    train = np.tile(np.arange(100) < 50, 4)
    model = everyday("FedAvg", kind).fit(X[train], y[train], groups=groups[train])
    if kind == "Regressor":
        found = model.predict(X[~train], groups=groups[~train])
        assert np.mean((found - y[~train]) ** 2) < 1.5 * y[~train].var()
    else:
        found = model.predict_proba(X[~train], groups=groups[~train])
        assert log_loss(y[~train], found) < 1.3 * np.log(2)


def test_standardising_is_booked_and_can_be_left_out():
    data = REGRESSION
    n, d = 12, data.X.shape[1]
    kw = {"alpha": 0.1, "random_state": 0}
    plain = skcfl.LocalModelsRegressor(standardize=False, **kw)
    plain.fit(data.X, data.y, groups=data.groups)
    scaled = skcfl.LocalModelsRegressor(**kw).fit(data.X, data.y, groups=data.groups)
    # Spreads of each client, sums and squares, of features and target at the same time.
    assert plain.floats_up_ + n * (5 * d + 1) + 6 * n == scaled.floats_up_
    assert plain.floats_down_ + 2 * n * d + 2 * n == scaled.floats_down_
    assert plain.calls_ + 3 == scaled.calls_
    ridge = Ridge(alpha=0.1 * np.sum(data.groups == 0))
    mine = data.groups == np.unique(data.groups)[0]
    ridge.fit(data.X[mine], data.y[mine])
    assert_allclose(plain.coef_[0], ridge.coef_, rtol=1e-8)


# ----------------------------------------------------------------------------------- classes


def test_networks_weigh_classes():
    """Other models in tests/test_updates.py."""
    data, share = CLASSES, []
    for weight in (None, {1: 50.0}):
        model = skcfl.FedAvg(MLP((4,), class_weight=weight), max_iter=5, tol=0, random_state=0)
        model.fit(data.X, data.y, groups=data.groups)
        share.append(model.predict(data.X, groups=data.groups).mean())
    assert share[1] > share[0]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (skcfl.FedAvgClassifier(class_weight={0: -1.0}), "not negative"),
        (skcfl.FedAvgClassifier(class_weight={7: 1.0, 0: np.nan}), "class_weight"),
        (skcfl.FedAvg(LinearModel(class_weight="balanced")), "class_weight is for classifiers"),
    ],
)
def test_class_weight_refuses_what_makes_no_sense(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(CLASSES.X, CLASSES.y, groups=CLASSES.groups)


# -------------------------------------------------------------------------------- new clients


@pytest.mark.parametrize(("name", "kind"), NEWCOMERS)
def test_adapt_knows_new_clients(name, kind):
    """At the places of their ids, between the others and after them."""
    data = REGRESSION if kind == "Regressor" else CLASSES
    ids = np.unique(data.groups)
    there = np.isin(ids, [2, 7, 11])
    old, new = ids[~there], ids[there]
    params = {"labels": [0, 0, 1] * 3} if name == "OracleClusters" else {}
    model = everyday(name, kind, **params)
    X, y, groups = rows(data, old)
    model.fit(X, y, groups=groups)
    before = pickle.dumps(model)
    Xn, yn, gn = rows(data, new)
    adapted = model.adapt(Xn, yn, groups=gn)
    assert pickle.dumps(model) == before
    assert np.array_equal(adapted.groups_, ids)
    assert np.array_equal(adapted.predict(X, groups=groups), model.predict(X, groups=groups))
    for attribute in ("labels_", "params_", "coef_", "intercept_"):
        assert len(getattr(adapted, attribute)) == 12
    assert adapted.cluster_sizes_.sum() == 12
    assert adapted.n_clusters_ == len(adapted.cluster_params_) == len(adapted.cluster_coef_)
    if name == "LocalModels":
        assert adapted.n_clusters_ == 12 and adapted.score(Xn, yn, groups=gn) > 0.8
    else:
        assert np.array_equal(adapted.labels_[there], model.assign(Xn, yn, groups=gn))
        for problem in ("graph_", "dual_coef_", "suspicion_", "tree_"):
            assert not hasattr(adapted, problem)  # positions in it are those of the fit
    if name == "FPFC":  # pulls of pairs are no noise
        models = model.cluster_params_[adapted.labels_[there]]
        assert np.array_equal(adapted.params_[there], models)


@pytest.mark.parametrize("kind", ["continuum", "clusters"])
def test_newcomers_of_few_rows_are_near_the_mean(kind):
    """One row cannot say whose model is a client's; rows in plenty can."""
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(54, 5))
    slopes = slopes[rng.integers(3, size=84)] if kind == "clusters" else slopes[0] + 0.5 * slopes
    model = skcfl.IFCARegressor(n_init=1, random_state=0, unseen="average")
    X, y, groups = lines(slopes[:24], 20, rng)
    model.fit(X, y, groups=groups)
    X, y, groups = lines(slopes[24:], 20, rng)
    adapts, assigns = [], []
    for n_rows in some((1, 4, 2, 16), 2):
        Xn, yn, new = lines(slopes[24:], n_rows, rng)
        labels = model.assign(Xn, yn, groups=new)
        first = np.array([np.flatnonzero(model.labels_ == k)[0] for k in labels])
        adapted = model.adapt(Xn, yn, groups=new + 100)
        adapts.append(adapted.score(X, y, groups=groups + 100))
        assigns.append(model.score(X, y, groups=first[groups]))
        assert adapts[-1] > model.score(X, y, groups=groups + 100)
    # A draw of two rows may be better off with the model of least loss by chance.
    assert np.mean(adapts) > np.mean(assigns)
    assert model.n_clusters_ == 3 or (kind == "continuum" and model.n_clusters_ > 12)


@pytest.mark.parametrize("unit", [1e-3, 1e3])
def test_models_of_newcomers_are_weighted_by_probabilities(unit):
    """By hand, whatever the units; rows in plenty give the cluster's model."""
    data = make_clustered_regression(12, 3, 4, n_samples=20, noise=1.0, random_state=0)
    model = skcfl.IFCARegressor(3, random_state=0).fit(data.X, unit * data.y, groups=data.groups)
    X, y = data.X[:2], unit * data.y[:2]
    noise = np.mean((unit * data.y - model.predict(data.X, groups=data.groups)) ** 2)
    share = 3 * 5 / len(data.y)
    noise *= (1 + share) / (1 - share)
    residuals = y[:, None] - X @ model.cluster_coef_.T - np.ravel(model.cluster_intercept_)
    shares = model.cluster_sizes_ * np.exp(-0.5 * (residuals**2).sum(axis=0) / noise)
    adapted = model.adapt(X, y, groups=["new", "new"])
    expected = shares @ model.cluster_coef_ / shares.sum()
    place = list(adapted.groups_).index("new")
    assert_allclose(adapted.coef_[place], expected, rtol=1e-6)
    own = data.groups == data.groups[0]
    many = model.adapt(data.X[own], unit * data.y[own], groups=np.full(own.sum(), "new"))
    assert_allclose(many.coef_[place], model.coef_[0], rtol=1e-3)


@pytest.mark.parametrize("text", [False, True])
def test_adapt_refuses_known_clients_and_ids_of_another_type_or_none(text):
    data, names = REGRESSION, REGRESSION.groups.astype(str)
    known, new = (names, data.groups + 100) if text else (data.groups, names)
    for method, y in ((skcfl.FedAvgRegressor(), data.y), (skcfl.KFED(2), None)):
        model = method.fit(data.X, y, groups=known)
        with pytest.raises(ValueError, match="groups must hold ids of one type: in fit"):
            model.adapt(data.X, y, groups=new)
        if y is not None:
            with pytest.raises(ValueError, match="seen in fit"):
                model.adapt(data.X, y, groups=known)
            with pytest.raises(ValueError, match="needs clients with ids"):
                model.adapt(data.X, y)


@pytest.mark.parametrize("name", ["FedAvg", "LocalModels", "IFCA", "ConvexClusteredFL"])
def test_unseen_clients_have_the_mean_model(name):
    data = REGRESSION
    keep = (data.groups > 0) | (np.arange(len(data.y)) % 2 == 0)  # a client with fewer rows
    X, y, groups = data.X[keep], data.y[keep], data.groups[keep]
    model = everyday(name, "Regressor", unseen="average").fit(X, y, groups=groups)
    share = np.bincount(groups) / len(groups)
    expected = data.X[:5] @ (share @ model.coef_) + share @ model.intercept_
    assert_allclose(model.predict(data.X[:5], groups=[99] * 5), expected)
    assert model.sample_labels([99]).tolist() == [-1]
    if name == "LocalModels":
        with pytest.raises(ValueError, match="unseen='average'"):
            model.set_params(unseen="largest").predict(data.X[:1], groups=[99])


# ------------------------------------------------------------------------------- plain models


@pytest.mark.parametrize(
    "loss", ["squared_error", "huber", "poisson", "gamma", "tweedie", "quantile"]
)
def test_client_model_of_regressors(loss):
    data = REGRESSION
    y = data.y
    if loss in ("poisson", "gamma", "tweedie"):
        y = np.exp(np.clip(data.y, -3, 3))
    model = skcfl.IFCARegressor(2, loss=loss, random_state=0).fit(data.X, y, groups=data.groups)
    for group in (0, 5):
        plain = pickle.loads(pickle.dumps(model.client_model(group)))
        assert type(plain).__module__.startswith("sklearn.")
        X, _, groups = rows(data, [group])
        assert_allclose(plain.predict(X), model.predict(X, groups=groups))


@pytest.mark.parametrize(
    ("loss", "hidden"),
    [
        (Tweedie(power=1.7), (6,)),
        (Gamma(), ()),
        (Quantile(quantile=0.9, smoothing=0.05), (6,)),
        (Huber(delta=0.5), ()),
    ],
    ids=str,
)
def test_parameters_of_losses_reach_the_model(loss, hidden):
    data = REGRESSION
    y = np.exp(np.clip(data.y, -3, 3))
    raw = {"standardize": not hidden, "random_state": 0}
    model = skcfl.FedAvgRegressor(loss, hidden_layer_sizes=hidden, **raw)
    model.fit(data.X, y, groups=data.groups)
    assert model.model_.kernel.get_params() == loss.get_params()
    assert model.__sklearn_tags__().target_tags.positive_only == (loss.link == "log")
    predicted = model.predict(data.X, groups=data.groups)
    if loss.name == "quantile":
        assert 0.85 <= (y <= predicted).mean() <= 0.95
    if loss.name == "gamma":
        with pytest.raises(ValueError, match="y must be positive for loss='gamma'"):
            model.fit(data.X, y - y.min(), groups=data.groups)


@pytest.mark.parametrize(("loss", "n_classes"), [("log_loss", 2), ("squared_hinge", 3)])
def test_client_model_of_classifiers(loss, n_classes):
    data = make_clustered_classification(n_clients=6, n_classes=n_classes, random_state=0)
    data = numbered(data)
    names = np.array(["a", "b", "c"])[data.y]
    model = skcfl.FedAvgClassifier(loss=loss).fit(data.X, names, groups=data.groups)
    plain = model.client_model(3)
    X, _, groups = rows(data, [3])
    assert np.array_equal(plain.predict(X), model.predict(X, groups=groups))
    if loss == "log_loss":
        assert_allclose(plain.predict_proba(X), model.predict_proba(X, groups=groups))


@pytest.mark.parametrize(
    ("network", "kind"),
    [
        (MLP((5, 4), "tanh"), MLPClassifier),
        (MLP((5,), loss="squared_error"), MLPRegressor),
        (Autoencoder((3,)), MLPRegressor),
    ],
)
def test_client_model_of_networks(network, kind):
    data = CLASSES
    model = skcfl.FedAvg(network, max_iter=3, tol=0, random_state=0)
    model.fit(data.X, data.y, groups=data.groups)
    plain = model.client_model(data.groups[0])
    assert isinstance(plain, kind)
    expected = model.predict(data.X, groups=data.groups)
    assert_allclose(plain.predict(data.X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:After max_iter")
@pytest.mark.parametrize(
    ("name", "kind"), [("IFCA", "Regressor"), ("LocalModels", "Classifier"), ("IFCA", "counts")]
)
def test_unseen_clients_have_the_mean_output_of_networks(name, kind):
    """The mean of the parameters of two networks is no network that has learned anything."""
    data = CLASSES if kind == "Classifier" else REGRESSION
    X, y, groups = data.X, data.y, data.groups
    y = np.floor(np.exp(0.3 * y)).clip(0, 20) if kind == "counts" else y
    more = {"n_clusters": 2} if name == "IFCA" else {}
    model = everyday(name, kind.replace("counts", "Regressor"), **more)
    model.set_params(hidden_layer_sizes=(4,), max_iter=3, tol=0.9, unseen="average")
    if kind == "counts":
        model.set_params(loss="poisson")
    model.fit(X, y, groups=groups)
    output = model.predict_proba if kind == "Classifier" else model.predict
    each = [output(X[:9], groups=np.full(9, k)) for k in model.groups_]
    rows = [(groups == k).sum() for k in model.groups_]
    found = output(X[:9], groups=np.full(9, 99))
    np.testing.assert_allclose(found, np.average(each, axis=0, weights=rows), rtol=1e-5)
    with pytest.raises(ValueError, match="networks predict for clients not seen in fit"):
        model.client_model(99)
    elsewhere = InProcessFederation(X, y, groups + 100)
    with pytest.raises(NotImplementedError, match="by the networks of several clusters"):
        model.score_federation(elsewhere)


def test_client_model_keeps_names_and_unseen():
    pd = pytest.importorskip("pandas")
    data = REGRESSION
    frame = pd.DataFrame(data.X, columns=[f"f{k}" for k in range(data.X.shape[1])])
    frame.insert(2, "site", data.groups)
    model = skcfl.FedAvgRegressor(group_col="site", unseen="average").fit(frame, data.y)
    assert "site" not in model.coef_names_
    assert len(model.coef_names_) == model.coef_.shape[1]
    features = frame.drop(columns="site")
    assert list(model.coef_names_) == list(features.columns)
    plain = model.client_model(0)
    assert_allclose(plain.predict(features), model.predict(frame))
    assert_allclose(model.client_model(99).coef_, model.coef_[0])
    unnamed = skcfl.FedAvgRegressor().fit(data.X, data.y, groups=data.groups)
    assert unnamed.coef_names_[:2].tolist() == ["x0", "x1"]
    with pytest.raises(ValueError, match="seen"):
        unnamed.client_model(99)
    with pytest.raises(ValueError, match="groups"):
        unnamed.client_model()


@pytest.mark.parametrize(
    ("local", "name"), [(Location(), "Location"), (MLP((2,), loss="squared_hinge"), "hinge")]
)
def test_client_model_says_what_scikit_learn_does_not_have(local, name):
    data = CLASSES
    model = skcfl.FedAvg(local, max_iter=2, tol=0, random_state=0)
    model.fit(data.X, None if name == "Location" else data.y, groups=data.groups)
    with pytest.raises(ValueError, match=name):
        model.client_model(data.groups[0])
