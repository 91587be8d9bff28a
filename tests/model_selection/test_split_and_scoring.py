"""Splits inside clients, scorers that carry groups, scores by client."""

import pickle
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import StackingRegressor
from sklearn.exceptions import NotFittedError, UndefinedMetricWarning
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    get_scorer,
    log_loss,
    make_scorer,
    max_error,
    mean_absolute_error,
    r2_score,
    roc_auc_score,
)
from sklearn.model_selection import (
    GridSearchCV,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import skcfl
from skcfl import (
    IFCA,
    FedAvgRegressor,
    IFCAClassifier,
    LocalModels,
    LocalModelsClassifier,
    LocalModelsRegressor,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.exceptions import SingleClientWarning
from skcfl.model_selection import ClientKFold, grouped_scorer, per_client_scores
from skcfl.model_selection._split import _halve
from skcfl.models import Location


@pytest.fixture(scope="module")
def regression():
    data = make_clustered_regression(
        n_clients=6, n_clusters=2, n_samples=(8, 20), n_features=3, random_state=0
    )
    return data.X, data.y, data.groups


@pytest.fixture(scope="module")
def classification():
    data = make_clustered_classification(
        n_clients=5, n_clusters=2, n_samples=24, n_features=3, random_state=0
    )
    return data.X, np.array(["no", "yes"])[data.y], data.groups


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def with_ids(X, groups):
    """X as a DataFrame, the ids in the middle."""
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])])
    frame.insert(1, "site", groups)
    return frame


def as_frame(X):
    return pd.DataFrame(X, columns=["a", "b", "site"])


def minus_log_loss(y, proba):
    return -log_loss(y, proba, labels=["no", "yes"])


def minus_absolute_error(y, predicted):
    return -mean_absolute_error(y, predicted)


def number_right(y, predicted):
    return (y == predicted).sum()


f1_of_no = partial(f1_score, pos_label="no")
SHARED = np.random.RandomState(0)


# ------------------------------------------------------------------ ClientKFold: the folds


@st.composite
def federations(draw):
    """Clients and classes of rows, some clients with one row, some classes rare."""
    n_samples = draw(st.integers(2, 80))
    n_clients = draw(st.integers(1, n_samples))
    n_classes = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = rng.dirichlet(np.full(n_classes, 0.5), size=n_clients)  # unlike shares of the classes
    clients = rng.integers(n_clients, size=n_samples)
    y = np.array([rng.choice(n_classes, p=share[i]) for i in clients])
    return clients, y


def spread(folds, codes, n_splits):
    """Largest difference between two folds of the number of rows with one code."""
    counts = np.zeros((codes.max() + 1, n_splits), dtype=int)
    np.add.at(counts, (codes, folds), 1)
    return np.ptp(counts, axis=1).max()


def test_folds_of(splitter, X, y, groups):
    """Fold in which each row is tested, -1 for never; checks that train is the complement."""
    folds = np.full(len(y), -1)
    for k, (train, test) in enumerate(splitter.split(X, y, groups)):
        assert (folds[test] == -1).all()
        folds[test] = k
        assert np.array_equal(np.sort(np.r_[train, test]), np.arange(len(y)))
        assert (np.diff(train) > 0).all() and (np.diff(test) > 0).all()
        assert len(test)
    assert k == splitter.get_n_splits() - 1
    return folds


test_folds_of.__test__ = False


@given(
    federations(),
    st.integers(2, 12),
    st.sampled_from([None, 0, 1]),
    st.sampled_from(["train", "test"]),
)
def test_folds_are_even_everywhere(federation, n_splits, seed, singletons):
    """By client, class, class of a client and in all; and no client is missing in training."""
    clients, y = federation
    splitter = ClientKFold(
        n_splits, shuffle=seed is not None, random_state=seed, singletons=singletons
    )
    alone = singletons == "train"
    tested = np.bincount(clients)[clients] > alone
    if tested.sum() < n_splits:
        message = rf"more than the number of rows that can be tested, {tested.sum()}\."
        with pytest.raises(ValueError, match=message):
            next(splitter.split(y, y, clients))
        return
    folds = test_folds_of(splitter, y, y, clients)
    assert_array_equal(folds >= 0, tested)
    kinds = [clients, y, np.zeros_like(y)]
    if alone:
        kinds.append(clients * (y.max() + 1) + y)
        for k in range(n_splits):
            assert set(clients[folds != k]) == set(clients)
    for codes in kinds:
        assert spread(folds[tested], codes[tested], n_splits) <= 1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=60))
def test_halves_of_a_bipartite_graph(edges):
    left, right = np.array(edges).T
    half = _halve(left, right)
    sides = half.astype(int)
    for nodes in (left, right, np.zeros_like(left)):
        assert spread(sides, nodes, 2) <= 1


def test_no_fold_is_preferred():
    """The row that is too many falls on every fold alike over many draws."""
    y = np.array([0, 0, 0, 1, 1, 1, 1])
    groups = np.array([0, 0, 1, 1, 1, 2, 2])
    where = np.zeros((7, 3))
    for seed in range(600):
        folds = test_folds_of(ClientKFold(3, random_state=seed), y, y, groups)
        where[np.arange(7), folds] += 1
    assert_allclose(where / 600, 1 / 3, atol=0.07)


@pytest.mark.parametrize(
    ("column", "container"),
    [
        ("site", as_frame),
        (2, as_frame),
        (-1, np.asarray),
        (2, np.asarray),
        (2, np.ndarray.tolist),
        (2, sparse.coo_array),
    ],
)
def test_ids_in_a_column(column, container):
    rng = np.random.default_rng(0)
    groups, y = rng.integers(4, size=40), rng.normal(size=40)
    X = np.c_[rng.normal(size=(40, 2)), groups]
    parameters = {"random_state": 3}
    expected = test_folds_of(ClientKFold(4, **parameters), X, y, groups)
    splitter = ClientKFold(4, group_col=column, **parameters)
    assert_array_equal(test_folds_of(splitter, container(X), y, None), expected)
    assert splitter.get_metadata_routing().split.requests == {"groups": False}


def test_what_is_stratified():
    groups = np.repeat([0, 1], 20)
    y = np.tile(np.repeat([0, 1], 10), 2)
    splitter = ClientKFold(5, random_state=0)
    by_class = test_folds_of(splitter, y, y, groups)
    for alike in (y.astype(float), y.astype(bool), np.array(["n", "y"])[y], y[:, None], list(y)):
        assert_array_equal(test_folds_of(splitter, y, alike, groups), by_class)
    plain = test_folds_of(splitter, y, y + 0.5, groups)
    assert (plain != by_class).any()
    for alike in (np.c_[y, y], np.where(y == 0, np.nan, 0.0), np.linspace(0, 1, 40)):
        assert_array_equal(test_folds_of(splitter, y, alike, groups), plain)
    # Without shuffling neighbours stay together.
    neighbours = test_folds_of(ClientKFold(5, shuffle=False), y, y + np.arange(40) / 99, groups)
    assert_array_equal(neighbours, np.tile(np.repeat(range(5), 4), 2))
    none = [test for _, test in splitter.split(y, groups=groups)]
    assert_array_equal(np.concatenate(none), np.argsort(plain, kind="stable"))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"random_state": 0}, {"random_state": 0}, True),
        ({"random_state": 0}, {"random_state": 1}, False),
        ({"random_state": SHARED}, {"random_state": SHARED}, False),
        ({}, {}, False),
        ({"shuffle": False}, {"shuffle": False}, True),
    ],
)
def test_random_state(one, other, same):
    groups, y = np.repeat(np.arange(5), 20), np.linspace(0, 1, 100)
    a, b = (test_folds_of(ClientKFold(**given), y, y, groups) for given in (one, other))
    assert np.array_equal(a, b) == same


def test_what_the_splitter_says_of_itself():
    assert repr(ClientKFold(3, group_col="site", random_state=0)) == (
        "ClientKFold(group_col='site', n_splits=3, random_state=0, shuffle=True,\n"
        "      singletons='train')"
    )
    assert ClientKFold().get_metadata_routing().split.requests == {"groups": True}
    assert ClientKFold().get_n_splits() == 5


@pytest.mark.parametrize(
    ("parameters", "changes", "message"),
    [
        ({"n_splits": 1}, {}, "n_splits must be an integer of at least 2, got 1"),
        ({"n_splits": 2.0}, {}, "n_splits must be an integer of at least 2, got 2.0"),
        ({"n_splits": True}, {}, "n_splits must be an integer"),
        ({"group_col": 1.5}, {}, "group_col must be a column's name, its position or None, got"),
        ({"shuffle": "no"}, {}, "shuffle must be True or False, got 'no'"),
        ({"shuffle": False, "random_state": 0}, {}, "random_state=0 has no effect"),
        ({"singletons": "drop"}, {}, "singletons must be 'train' or 'test', got 'drop'"),
        ({}, {"groups": None}, "pass groups= with one id per row, or set group_col"),
        ({}, {"groups": [1, 2, 1]}, "got 3 ids for 6 rows"),
        ({}, {"groups": [1, 2, 1, 2, None, 1]}, "missing id"),
        ({}, {"groups": [1, 2, 1, 2, "a", 1]}, "mixture"),
        ({}, {"groups": "site"}, "must hold one id per row"),
        ({"n_splits": 7}, {}, "n_splits=7 is more than the number of rows .* 6."),
        ({}, {"groups": [1, 2, 3, 4, 5, 5]}, r"2. 4 client\(s\) have a single row, which sing"),
        ({"group_col": 0}, {}, "got groups, but has group_col=0"),
        ({"group_col": 5}, {"groups": None}, "group_col=5 is out of range: X has 2 columns"),
        ({"group_col": "site"}, {"groups": None}, "'site' is a name, but X has no column names"),
        ({"group_col": 1}, {"groups": None}, "Column group_col=1 of X must name a client in ever"),
        ({"group_col": 0}, {"groups": None, "X": [1] * 6}, "needs an X of two dimensions"),
        ({}, {"y": [0, 1]}, "inconsistent numbers of samples"),
        ({}, {"y": np.array([0, 1, "a", None, 2, 1], object)}, "y must hold classes of one type"),
    ],
)
def test_refusals_of_the_splitter(parameters, changes, message):
    rows = {"X": np.c_[np.zeros(6), [np.nan] * 6], "y": np.zeros(6), "groups": [1] * 6}
    with pytest.raises(ValueError, match=message):
        next(ClientKFold(**parameters).split(**{**rows, **changes}))


# ------------------------------------------------------------------ ClientKFold in use


def test_singletons_in_use(regression):
    X, y, groups = regression
    groups = groups.astype(object)
    groups[0] = "alone"
    frame = with_ids(X, groups.tolist())
    cv = ClientKFold(3, group_col="site", random_state=0)
    estimator = FedAvgRegressor(group_col="site")
    assert np.isfinite(cross_val_score(estimator, frame, y, cv=cv)).all()
    cv = ClientKFold(3, group_col="site", random_state=0, singletons="test")
    with pytest.warns(UserWarning, match="not seen in fit.*alone"):
        assert np.isnan(cross_val_score(estimator, frame, y, cv=cv)).sum() == 1
    estimator.set_params(unseen="largest")
    assert np.isfinite(cross_val_score(estimator, frame, y, cv=cv)).all()


# ------------------------------------------------------------------ grouped_scorer


@pytest.mark.parametrize(
    ("name", "kwargs", "metric", "method"),
    [
        ("accuracy", {}, accuracy_score, "predict"),
        ("neg_log_loss", {}, minus_log_loss, "predict_proba"),
        ("roc_auc", {}, roc_auc_score, "decision_function"),
        ("f1", {"pos_label": "no"}, f1_of_no, "predict"),
        ("f1_macro", {}, partial(f1_score, average="macro"), "predict"),
    ],
)
def test_scorer_is_the_metric_of_grouped_predictions(classification, name, kwargs, metric, method):
    X, y, groups = classification
    estimator = LocalModelsClassifier(alpha=0.1).fit(X, y, groups)
    scorer = pickle.loads(pickle.dumps(grouped_scorer(name, **kwargs)))
    score = metric(y, getattr(estimator, method)(X, groups))
    assert scorer(estimator, X, y, groups=groups) == pytest.approx(score)
    # a pipeline hands groups on
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler(), clone(estimator)).fit(X, y, groups=groups)
        score = scorer(pipeline, X, y, groups=groups)
    assert score == pytest.approx(scorer(pipeline[-1], pipeline[0].transform(X), y, groups=groups))


def test_scorer_of_a_scorer(regression):
    """It keeps the scorer's sign and leaves the scorer as it was."""
    X, y, groups = regression
    estimator = FedAvgRegressor().fit(X, y, groups)
    plain = make_scorer(mean_absolute_error, greater_is_better=False)
    before = repr(plain)
    score = grouped_scorer(plain)(estimator, X, y, groups=groups)
    assert score == -mean_absolute_error(y, estimator.predict(X, groups))
    grouped_scorer(plain, multioutput="raw_values")
    assert repr(plain) == before
    # Estimators of others, and those with the ids in a column, are called without groups.
    column = LocalModelsRegressor(group_col="site").fit(with_ids(X, groups), y)
    for other, rows in ((Ridge().fit(X, y), X), (column, with_ids(X, groups))):
        expected = get_scorer("r2")(other, rows, y)
        assert grouped_scorer("r2")(other, rows, y, groups=groups) == expected
        assert grouped_scorer("r2")(other, rows, y) == expected
    assert repr(grouped_scorer("f1", average="macro")) == "grouped_scorer('f1', average='macro')"


def test_bad_scorers(classification):
    X, y, groups = classification
    with pytest.raises(ValueError, match="'acuracy' is not a valid scoring value"):
        grouped_scorer("acuracy")
    for bad in (accuracy_score, None, ["accuracy"], lambda e, X, y: 0.0):
        with pytest.raises(ValueError, match="scoring must be the name of a scorer or a scorer"):
            grouped_scorer(bad)
    estimator = LocalModelsClassifier().fit(X, y, groups)
    with pytest.raises(ValueError, match=r"grouped_scorer\('accuracy'\) got no groups, but Local"):
        grouped_scorer("accuracy")(estimator, X, y)


@pytest.mark.usefixtures("routing")
def test_scorer_asks_for_weights_if_told(regression):
    X, y, groups = regression
    weights = np.arange(len(y)) % 3 + 0.0
    estimator = LocalModelsRegressor().set_fit_request(sample_weight=True)
    cv = ClientKFold(3, random_state=0)
    scorers = {
        "weighted": grouped_scorer("r2").set_score_request(sample_weight=True),
        "plain": grouped_scorer("r2").set_score_request(sample_weight=False),
    }
    params = {"groups": groups, "sample_weight": weights}
    result = cross_validate(estimator, X, y, cv=cv, scoring=scorers, params=params)
    for k, (train, test) in enumerate(cv.split(X, y, groups)):
        fitted = LocalModelsRegressor().fit(X[train], y[train], groups[train], weights[train])
        for name, w in (("weighted", weights[test]), ("plain", None)):
            score = r2_score(y[test], fitted.predict(X[test], groups[test]), sample_weight=w)
            assert result[f"test_{name}"][k] == pytest.approx(score)


@pytest.mark.usefixtures("routing")
def test_scorer_in_nested_searches(classification):
    """The search within is scored by its best estimator, because its predict has no groups."""
    X, y, groups = classification
    search = GridSearchCV(
        IFCAClassifier(n_init=1, random_state=0),
        {"n_clusters": [1, 2]},
        scoring=grouped_scorer("accuracy"),
        cv=ClientKFold(2, random_state=0),
    )
    outer = ClientKFold(2, random_state=1)
    settings = {"scoring": grouped_scorer("neg_log_loss"), "params": {"groups": groups}}
    settings |= {"cv": outer, "return_estimator": True}
    result = cross_validate(search, X, y, **settings)
    for k, (_, test) in enumerate(outer.split(X, y, groups)):
        proba = result["estimator"][k].best_estimator_.predict_proba(X[test], groups[test])
        assert result["test_score"][k] == pytest.approx(-log_loss(y[test], proba))


# ------------------------------------------------------------------ per_client_scores


@pytest.mark.parametrize("estimator", [RidgeCV(), StackingRegressor([("ridge", Ridge())])])
def test_estimators_that_ask_their_scorer_for_its_routing(estimator):
    """RidgeCV asks its scorer, and that asks RidgeCV, without end."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(60, 2)), np.repeat(range(3), 20)
    y = X[:, 0] + rng.normal(size=60)
    estimator.fit(X, y)
    wanted = [estimator.score(X[groups == k], y[groups == k]) for k in range(3)]
    assert_allclose(per_client_scores(estimator, X, y, groups).scores, wanted)
    assert grouped_scorer("r2")(estimator, X, y, groups=groups) == estimator.score(X, y)


def test_scores_by_client(classification):
    X, y, groups = classification
    estimator = IFCAClassifier(2, random_state=0).fit(X, y, groups)
    result = per_client_scores(estimator, X, y, groups)
    assert pd.DataFrame(result).columns.tolist() == ["groups", "scores", "n_samples"]
    ids, sizes = np.unique(groups, return_counts=True)
    assert_array_equal(result.groups, ids)
    assert_array_equal(result.n_samples, sizes)
    total = estimator.score(X, y, groups=groups)
    assert np.average(result.scores, weights=result.n_samples) == pytest.approx(total)
    # rows of some clients only, in lists
    some = np.flatnonzero(groups != ids[0])
    part = per_client_scores(estimator, X[some], y[some].tolist(), groups[some].tolist())
    assert_array_equal(part.scores, result.scores[1:])


def by_hand(metric, y, response, groups):
    return [metric(y[groups == g], response[groups == g]) for g in np.unique(groups)]


@pytest.mark.parametrize(
    ("scoring", "metric", "method"),
    [
        (None, accuracy_score, "predict"),
        (grouped_scorer("accuracy"), accuracy_score, "predict"),
        (number_right, number_right, "predict"),
        (make_scorer(f1_score, pos_label="no"), f1_of_no, "predict"),
        ("neg_log_loss", minus_log_loss, "predict_proba"),
        ("roc_auc", roc_auc_score, "decision_function"),
        (None, r2_score, None),
        (mean_absolute_error, mean_absolute_error, None),
    ],
)
def test_scorings(classification, regression, scoring, metric, method):
    X, y, groups = regression if method is None else classification
    model = FedAvgRegressor() if method is None else LocalModelsClassifier(alpha=0.1)
    model.fit(X, y, groups)
    result = per_client_scores(model, X, y, groups, scoring=scoring)
    response = getattr(model, method or "predict")(X, groups)
    assert_allclose(result.scores, by_hand(metric, y, response, groups))


def test_scores_of_other_kinds(regression, classification):
    """Estimators of another package, without a target, and of a local model's kind."""
    X, y, groups = regression
    ridge = Ridge().fit(X, y)
    result = per_client_scores(ridge, X, y, groups)
    assert_allclose(result.scores, by_hand(r2_score, y, ridge.predict(X), groups))
    estimator = LocalModels(Location()).fit(X, groups=groups)
    column = LocalModels(Location(), group_col="site").fit(with_ids(X, groups))
    pipeline = make_pipeline(StandardScaler(with_mean=False, with_std=False), clone(estimator))
    pipeline.fit(X, localmodels__groups=groups)
    rows = [groups == g for g in np.unique(groups)]
    expected = [estimator.score(X[one], groups=groups[one]) for one in rows]
    for model in (estimator, column, pipeline):
        rows = (with_ids(X, groups),) if model is column else (X, None, groups)
        assert_allclose(per_client_scores(model, *rows).scores, expected)
    X, y, groups = classification
    frame = with_ids(X, groups)
    model = skcfl.models.LinearModel(loss="squared_hinge")
    estimator = IFCA(model, n_clusters=2, group_col="site", random_state=0).fit(frame, y)
    expected = by_hand(accuracy_score, y, estimator.predict(frame), groups)
    assert_allclose(per_client_scores(estimator, frame, y).scores, expected)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_scores_with_ids_in_a_column(regression):
    X, y, groups = regression
    expected = per_client_scores(LocalModelsRegressor().fit(X, y, groups), X, y, groups)
    frame = with_ids(X, groups)
    estimator = LocalModelsRegressor(group_col="site").fit(frame, y)
    for rows in (frame, frame.to_numpy()):
        result = per_client_scores(estimator, rows, y)
        assert_array_equal(result.groups, expected.groups)
        assert_allclose(result.scores, expected.scores)
    # scored by something else than the clients
    halves = np.arange(len(y)) % 2
    result = per_client_scores(estimator, frame, y, groups=halves)
    assert_allclose(result.scores, by_hand(r2_score, y, estimator.predict(frame), halves))


@pytest.mark.parametrize("enabled", [False, True])
def test_scores_of_pipelines_and_searches(regression, enabled):
    X, y, groups = regression
    frame = with_ids(X, groups)
    scaled = StandardScaler().fit_transform(X)
    expected = per_client_scores(
        LocalModelsRegressor(alpha=1e-4).fit(scaled, y, groups), scaled, y, groups
    )
    to_column = make_column_transformer(
        (StandardScaler(), ["x0", "x1", "x2"]), ("passthrough", ["site"])
    )
    to_name = make_column_transformer(
        ("passthrough", ["site"]),
        (StandardScaler(), ["x0", "x1", "x2"]),
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    with sklearn.config_context(enable_metadata_routing=enabled):
        key = "groups" if enabled else "localmodelsregressor__groups"
        plain = make_pipeline(StandardScaler(), LocalModelsRegressor(alpha=1e-4))
        last = make_pipeline(to_column, LocalModelsRegressor(alpha=1e-4, group_col=-1))
        named = make_pipeline(to_name, LocalModelsRegressor(alpha=1e-4, group_col="site"))
        fits = [
            (plain.fit(X, y, **{key: groups}), X),
            (make_pipeline(plain), X),  # a pipeline in a pipeline
            (last.fit(frame, y), frame),
            (named.fit(frame, y), frame),
        ]
        cv = ClientKFold(2, group_col="site")
        search = GridSearchCV(named, {"localmodelsregressor__alpha": [1e-4]}, cv=cv)
        fits.append((search.fit(frame, y), frame))
        for estimator, rows in fits:
            given_groups = groups if rows is X else None
            result = per_client_scores(estimator, rows, y, given_groups)
            assert result.groups.tolist() == expected.groups.tolist()
            assert_allclose(result.scores, expected.scores)


def test_client_with_some_classes_only():
    """Log loss needs all classes, whichever a client has."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    groups = np.repeat(["all", "one"], 20)
    y = np.where(groups == "all", rng.integers(3, size=40), 2)
    estimator = LocalModelsClassifier(alpha=0.1).fit(X, y, groups)
    result = per_client_scores(estimator, X, y, groups, scoring="neg_log_loss")
    proba = estimator.predict_proba(X, groups)
    expected = np.log(proba[np.arange(40), y])
    assert_allclose(result.scores, [expected[:20].mean(), expected[20:].mean()], atol=1e-14)
    y = (y == 2).astype(int)
    estimator.fit(X, y, groups)
    with pytest.warns(UndefinedMetricWarning, match="1 of 2 clients: 'one'") as caught:
        result = per_client_scores(estimator, X, y, groups, scoring="roc_auc")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert np.isfinite(result.scores[0]) and np.isnan(result.scores[1])


def test_client_with_one_row(regression):
    """Warnings of metrics but for these come through."""
    X, y, groups = regression
    estimator = LocalModelsRegressor().fit(X, y, groups)
    once = np.unique(groups, return_index=True)[1]
    rows = np.r_[once, np.flatnonzero(groups == groups[once[0]])]
    with pytest.warns(UndefinedMetricWarning, match="5 of 6 clients: .*nan") as caught:
        result = per_client_scores(estimator, X[rows], y[rows], groups[rows])
    assert len(caught) == 1
    assert_array_equal(np.isnan(result.scores), [False] + [True] * 5)

    def metric(y_true, y_pred):
        warnings.warn("so few rows", RuntimeWarning, stacklevel=1)
        return 0.0

    with pytest.warns(RuntimeWarning, match="so few rows"):
        per_client_scores(estimator, X, y, groups, scoring=metric)


def test_weights_in_scores_are_repetition(regression):
    X, y, groups = regression
    estimator = FedAvgRegressor().fit(X, y, groups)
    weights = np.arange(len(y)) % 3
    rows = np.repeat(np.arange(len(y)), weights)
    repeated = per_client_scores(estimator, X[rows], y[rows], groups[rows])
    weighted = per_client_scores(estimator, X, y, groups, sample_weight=weights)
    assert_allclose(weighted.scores, repeated.scores)
    assert_array_equal(weighted.n_samples, np.unique(groups, return_counts=True)[1])
    weights = (groups != weighted.groups[2]).astype(float)
    with pytest.warns(UndefinedMetricWarning, match=f"1 of 6 clients: '{weighted.groups[2]}'"):
        result = per_client_scores(estimator, X, y, groups, sample_weight=weights)
    assert np.flatnonzero(np.isnan(result.scores)).tolist() == [2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": None}, "per_client_scores needs to know the client"),
        ({"groups": ["a"] * 3}, "got 3 ids for"),
        ({"y": np.zeros(3)}, "inconsistent numbers of samples"),
        ({"y": None}, "scoring=None needs y, got None"),
        ({"scoring": "r3"}, "'r3' is not a valid scoring value"),
        ({"scoring": ["r2"]}, "For several metrics call per_client_scores for each"),
        ({"scoring": {"a": "r2"}}, "For several metrics call per_client_scores for each"),
    ],
)
def test_bad_calls_for_scores(regression, changes, message):
    X, y, groups = regression
    call = {"estimator": LocalModelsRegressor(), "y": y, "groups": groups}
    with pytest.raises(NotFittedError):
        per_client_scores(X=X, **call)
    call["estimator"].fit(X, y, groups)
    with pytest.raises(ValueError, match=message):
        per_client_scores(X=X, **{**call, **changes})


def test_scores_name_the_client_that_fails_and_fits_without_groups(regression):
    X, y, groups = regression
    estimator = LocalModelsRegressor().fit(X, y, groups)
    with pytest.raises(TypeError, match="sample_weight") as caught:
        per_client_scores(estimator, X, y, groups, scoring=max_error, sample_weight=y**2)
    assert caught.value.__notes__ == ["This happened on the rows of client 'client00'."]
    with pytest.raises(ValueError, match="not seen in fit"):
        per_client_scores(estimator, X, y, np.full(len(y), "stranger"))
    with pytest.warns(SingleClientWarning):
        pooled = LocalModelsRegressor().fit(X, y)
    with pytest.raises(ValueError, match="fitted without groups"):
        per_client_scores(pooled, X, y, groups)
