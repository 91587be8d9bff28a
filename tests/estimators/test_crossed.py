"""Crossed and nested groupings: lme4's likelihoods, federations, invariances."""

import numpy as np
import pandas as pd
import pytest
from lme4_tables import pastes, penicillin
from numpy.testing import assert_allclose
from pickled_hosts import PickledHost
from scipy.optimize import approx_fprime
from scipy.sparse import csr_array
from scipy.special import expit
from scipy.stats import multivariate_normal
from sklearn.base import clone

from skcfl import PartialPooling, PartialPoolingClassifier, PartialPoolingRegressor
from skcfl.federation import InProcessFederation, SitePolicy
from skcfl.federation.inprocess import open_rows
from skcfl.federation.remote import RemoteFederation
from skcfl.models import MLP
from skcfl.models._levelled import LevelledModel
from skcfl.pooling.crossed import Deviance, fit_crossed
from skcfl.pooling.crossed_modes import LaplaceDeviance

ML = {"covariance": "diag", "prior": np.inf, "df": np.inf}


def generated(seed=0, n_clients=12, n=14, n_items=7, n_classes=3):
    """Rows of clients with slopes of their own, items that many meet, and classes inside."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n)
    item = rng.integers(n_items, size=n_clients * n)
    room = rng.integers(n_classes, size=n_clients * n)
    x = rng.normal(size=len(groups))
    y = 1.0 + (2.0 + rng.normal(size=n_clients)[groups]) * x + rng.normal(size=n_items)[item]
    y += 0.7 * rng.normal(size=(n_clients, n_classes))[groups, room]
    y += 0.5 * rng.normal(size=len(groups))
    return np.column_stack([x, item, room]), y, groups


def covariance_of(model, X, groups):
    """Marginal covariance of the rows, from its definition."""
    D = np.column_stack([X[:, :1], np.ones(len(X))])
    same = groups[:, None] == groups
    V = (D @ model.covariance_ @ D.T) * same + model.dispersion_ * np.eye(len(X))
    V += model.level_variances_["x1"] * (X[:, 1:2] == X[:, 1])
    return V + model.level_variances_["x2"] * (same & (X[:, 2:] == X[:, 2]))


@pytest.mark.parametrize(
    ("table", "levels", "loglik", "deviations", "mean", "error"),
    [
        (
            penicillin(),
            {"crossed": "sample"},
            -166.09417,
            [0.8455, 1.7706, 0.5499],
            22.9722,
            0.7446,
        ),
        (pastes(), {"nested": "cask"}, -123.99723, [1.0950, 2.9041, 0.8234], 60.0533, 0.6421),
    ],
    ids=["penicillin", "pastes"],
)
def test_lme4s_likelihoods(table, levels, loglik, deviations, mean, error):
    """As published, by maximum likelihood."""
    X, y, groups = table
    model = PartialPoolingRegressor(**levels, **ML).fit(X, y, groups=groups)
    assert_allclose(model.loglik_, loglik, atol=1e-4)
    (variance,) = model.level_variances_.values()
    sizes = np.sqrt([model.covariance_[0, 0], variance, model.dispersion_])
    assert_allclose(sizes, deviations, atol=1e-4)
    assert_allclose(model.cluster_intercept_, mean, atol=1e-4)
    assert_allclose(model.standard_errors_, error, atol=1e-3)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_the_likelihood_and_the_effects_from_their_definitions(covariance):
    X, y, groups = generated()
    model = PartialPoolingRegressor(crossed=[1], nested=[2], **ML | {"covariance": covariance})
    model.fit(X, y, groups=groups)
    V = covariance_of(model, X, groups)
    D = np.column_stack([X[:, :1], np.ones(len(X))])
    theta = np.append(model.cluster_coef_, model.cluster_intercept_)
    assert_allclose(model.loglik_, multivariate_normal(D @ theta, V).logpdf(y), rtol=1e-9)
    away = np.linalg.solve(V, y - D @ theta)
    assert_allclose(D.T @ away, 0.0, atol=1e-7)
    for item, effect in model.crossed_effects_["x1"].items():
        wanted = model.level_variances_["x1"] * away[X[:, 1] == item].sum()
        assert_allclose(effect, wanted, rtol=1e-7)
    # The errors of the effects, those of the fixed effects included.
    W = np.linalg.inv(V)
    P = W - W @ D @ np.linalg.solve(D.T @ W @ D, D.T @ W)
    variance = model.level_variances_["x1"]
    for item, std in model.crossed_effects_std_["x1"].items():
        here = (X[:, 1] == item).astype(float)
        assert_allclose(std**2, variance - variance**2 * (here @ P @ here), rtol=1e-6)
    for (client, room), effect in model.nested_effects_["x2"].items():
        here = (groups == client) & (X[:, 2] == room)
        wanted = model.level_variances_["x2"] * away[here].sum()
        assert_allclose(effect, wanted, rtol=1e-7)
    own = model.covariance_ @ D[groups == 3].T @ away[groups == 3]
    assert_allclose(model.params_[3], theta + own, rtol=1e-7)
    # Rows are predicted by all of it.
    assert_allclose(model.predict(X, groups=groups), y - model.dispersion_ * away, rtol=1e-7)


def test_gradients_are_those_of_differences():
    X, y, groups = generated()
    bound = LevelledModel(crossed=(7,), nested=(3,)).bind(3)
    pool = open_rows(bound, X, y, groups, 12)
    for kind, shrunken in (("full", True), ("diag", False)):
        free = np.array([False, True])
        deviance = Deviance(pool, kind, np.ones(2, dtype=bool), free, shrunken)
        x = np.linspace(0.4, 1.3, len(deviance.start()))
        x[-2:] *= -1  # the same model
        slopes = approx_fprime(x, lambda x, of=deviance: of(x)[0], 1e-6)
        assert_allclose(deviance(x)[1], slopes, rtol=1e-4, atol=1e-4)


def test_singular_covariances_are_found():
    """A triangular root has flat valleys there: 500 evaluations ended lower."""
    rng = np.random.default_rng(0)
    X, groups, item = rng.normal(size=(900, 8)), np.arange(900) % 30, rng.integers(20, size=900)
    own = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 4))
    y = X[:, 0] + (X[:, :4] * own[groups]).sum(axis=1) + 0.5 * rng.normal(size=20)[item]
    y += 0.3 * rng.normal(size=900)
    bound = LevelledModel(crossed=(20,)).bind(9)
    pool = open_rows(bound, np.column_stack([X, item]), y, groups, 30)
    about = np.ones(9, dtype=bool), np.arange(9) == 8, np.inf
    full = fit_crossed(pool, "full", *about, max_iter=200)
    assert full.converged
    assert full.n_variances == 9 * 10 / 2 + 1
    assert full.loglik > fit_crossed(pool, "diag", *about, max_iter=200).loglik


def test_variances_beyond_rounding_have_a_value():
    """The search may try them, and steps back: they were an error of the linear algebra."""
    X, y, groups = generated()
    bound = LevelledModel(crossed=(7,), nested=(3,)).bind(3)
    pool = open_rows(bound, X, y, groups, 12)
    free = np.array([False, True])
    deviance = Deviance(pool, "full", np.ones(2, dtype=bool), free, True)
    for large in (1e7, 1e9, 1e12):
        value, slopes = deviance(large * np.linspace(0.4, 1.3, len(deviance.start())))
        assert np.isfinite(value)
        assert np.isfinite(slopes).all()


@pytest.mark.parametrize(
    ("kind", "n", "n_rows", "effect", "seeds"),
    [
        (PartialPoolingRegressor, 10, 5, 0.35, range(3)),
        (PartialPoolingClassifier, 20, 10, 0.5, [5]),
    ],
)
def test_no_variance_stays_at_zero_where_another_is_more_likely(kind, n, n_rows, effect, seeds):
    """Steps from large variances end far below those of small effects."""
    above = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(n), 8 * n_rows)
        room = np.tile(np.repeat(np.arange(8), n_rows), n)
        x, size = rng.normal(size=len(groups)), len(groups)
        y = x + 0.7 * rng.normal(size=n)[groups] + effect * rng.normal(size=(n, 8))[groups, room]
        if kind is PartialPoolingClassifier:
            y = rng.uniform(size=size) < expit(y)
        else:
            y += rng.normal(size=size)
        X = np.column_stack([x, room])
        model = kind(nested=[1], random="intercept", prior=np.inf).fit(X, y, groups=groups)
        above += model.level_variances_["x1"] > 0
        bound = LevelledModel(loss=model.model_.loss, nested=(8,))
        bound = bound.bind(2, n_classes=model.model_.n_classes)
        pool = open_rows(bound, X, y.astype(float), groups, n)
        deviance = Deviance if kind is PartialPoolingRegressor else LaplaceDeviance
        free = np.array([False, True])
        of = deviance(pool, "intercept", np.ones(2, dtype=bool), free, False)
        own = np.sqrt(model.covariance_.diagonal()[-1] / model.dispersion_)
        means = [] if deviance is Deviance else model.cluster_params_[0]
        for spread in (0.0, 0.1, 0.2, 0.3, 0.5):
            value = of.solved(np.concatenate([[own, spread], means]))[0]
            assert value >= -2 * model.loglik_ - 1e-6
    assert above


@pytest.mark.parametrize("effect", [0.006, 0.0])
def test_small_variances_are_zero_only_if_they_are_none(effect):
    """Many rows tell deviations of half a percent of the noise from none."""
    axes = np.meshgrid(np.arange(4), np.arange(10), [-1.0, 1.0], indexing="ij")
    groups, item, sign = (axis.ravel() for axis in axes)
    y = sign + effect * np.linspace(-1.5, 1.5, 10)[item]
    X, weights = np.column_stack([0 * item, item]), np.full(80, 1e4)
    model = PartialPoolingRegressor(crossed=[1], random="intercept", prior=np.inf)
    found = model.fit(X, y, groups=groups, sample_weight=weights).level_variances_["x1"]
    # The variance of the levels' means, less that of their errors.
    wanted = np.var(effect * np.linspace(-1.5, 1.5, 10)) - 1.0 / 8e4
    assert_allclose(found, max(wanted, 0.0), rtol=1e-3, atol=0)


def test_large_integers_are_as_many_levels():
    """Floats cannot tell integers beyond 2**53 apart."""
    X, y, groups = generated()
    table = pd.DataFrame(X, columns=["x", "item", "room"]).astype({"item": int, "room": int})
    large = table.assign(item=2**60 + table["item"], room=2**60 + table["room"])
    model = PartialPoolingRegressor(crossed="item", nested="room", **ML)
    of_small, of_large = (clone(model).fit(rows, y, groups=groups) for rows in (table, large))
    assert_allclose(of_large.loglik_, of_small.loglik_, rtol=1e-9)
    assert of_large.crossed_effects_["item"].keys() == set(large["item"])
    predicted = of_large.predict(large, groups=groups)
    assert_allclose(predicted, of_small.predict(table, groups=groups), rtol=1e-6)
    with pytest.raises(ValueError, match="'item' of X of dtype float64 holds .* int or str"):
        clone(model).fit(large.astype(float), y, groups=groups)
    federation = InProcessFederation(large.to_numpy(float), y, groups)
    with pytest.raises(ValueError, match=r"column x1 of X must be below 2\*\*53"):
        PartialPoolingRegressor(crossed=[1], **ML).fit_federation(federation)


def test_targets_without_noise_have_fits():
    X, _, groups = generated(n_clients=8, n=10)
    effects = np.random.default_rng(1).normal(size=8)[groups] + X[:, 1]
    plain = {"covariance": "diag", "basis": "linear"}
    for y, unit in ((np.full(len(X), 3.0), 1.0), (X[:, 0], 1e-9), (effects, 1e-9)):
        model = PartialPoolingRegressor(crossed=[1], nested=[2], **plain).fit(X, unit * y, groups)
        assert 0 < model.dispersion_ < 1e-9 * unit**2
        assert_allclose(model.predict(X, groups=groups), unit * y, atol=1e-4 * unit)
    noisy = effects + np.random.default_rng(2).normal(size=len(X))
    free = PartialPoolingRegressor(crossed=[1], fit_intercept=False, **plain)
    pair = [clone(free).fit(X, k * noisy, groups=groups).dispersion_ for k in (1.0, unit)]
    assert_allclose(pair[1] / unit**2, pair[0], rtol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
def test_targets_far_from_zero_have_the_same_effects(standardize):
    X, y, groups = generated()
    model = PartialPoolingRegressor(crossed=[1], nested=[2], standardize=standardize, **ML)
    near, far = (clone(model).fit(X, y + away, groups=groups) for away in (0.0, 1e7))
    assert_allclose(far.loglik_, near.loglik_, rtol=1e-6)
    for name in ("level_variances_", "nested_effects_"):
        pairs = [list(getattr(fit, name).values())[0] for fit in (far, near)]
        values = [list(v.values()) if isinstance(v, dict) else v for v in pairs]
        assert_allclose(*values, rtol=1e-3, atol=1e-4)
    predicted = [fit.predict(X, groups=groups) for fit in (far, near)]
    assert_allclose(predicted[0] - 1e7, predicted[1], atol=1e-4)


def test_ids_of_any_type_have_their_nested_effects():
    X, y, groups = generated()
    days = np.datetime64("2020-01-01", "us") + groups * np.timedelta64(1, "D")
    model = PartialPoolingRegressor(nested=[2])
    expected = model.fit(X, y, groups=groups).predict(X, groups, return_std=True)
    tuples = [(int(group), "a") for group in groups]
    for ids in (days.tolist(), list(pd.to_datetime(days)), tuples):
        got = model.fit(X, y, groups=ids).predict(X, ids, return_std=True)
        assert_allclose(got, expected, rtol=1e-6)


def test_errors_where_there_is_little_noise(noise=1e-6):
    """The intercept is known as well as the means over clients and over items are."""
    X, _, groups = generated()
    n_clients, n_items = len(np.unique(groups)), len(np.unique(X[:, 1]))
    rng = np.random.default_rng(0)
    y = rng.normal(size=n_clients)[groups] + rng.normal(size=n_items)[X[:, 1].astype(int)]
    model = PartialPoolingRegressor(crossed=[1], random="intercept", **ML)
    model.fit(X[:, :2], y + X[:, 0] + noise * rng.normal(size=len(X)), groups=groups)
    variance = model.covariance_[-1, -1] / n_clients + model.level_variances_["x1"] / n_items
    assert_allclose(model.standard_errors_[0, -1], np.sqrt(variance), rtol=1e-2)


def test_predictions_by_clusters_have_the_effects_of_crossed_levels():
    X, y, groups = generated()
    model = PartialPoolingRegressor(crossed=[1], nested=[2], unseen="average", **ML)
    model.fit(X, y, groups=groups)
    found = model.predict_cluster(X, 0)
    assert_allclose(found, model.predict(X, groups=groups + 1000), rtol=1e-10)


def test_levels_not_seen_have_no_effect():
    X, y, groups = generated()
    model = PartialPoolingRegressor(crossed=[1], nested=[2], unseen="average", **ML)
    model.fit(X, y, groups)
    rows = np.array([[0.5, 99.0, 99.0]])
    assert_allclose(model.predict(rows, groups=[0]), model.params_[0] @ [0.5, 1.0])
    new = np.array([[0.5, 3.0, 0.0]])
    theta = np.append(model.cluster_coef_, model.cluster_intercept_)
    wanted = theta @ [0.5, 1.0] + model.crossed_effects_["x1"][3.0]
    assert_allclose(model.predict(new, groups=[77]), wanted)
    # Rows of such levels have the variance of their grouping besides.
    seen = X[groups == 0][:1]
    table = np.repeat(seen, 3, axis=0)
    table[1, 1] = table[2, 2] = 99.0
    std = model.predict(table, groups=[0, 0, 0], return_std=True)[1]
    added = list(model.level_variances_.values())
    assert_allclose(std[1:] ** 2 - std[0] ** 2, added, rtol=1e-6)
    few = groups < 2
    for known in (model.adapt, model.update):  # effects inside the clients would change
        with pytest.raises(ValueError, match="no nested groupings"):
            known(X[few], y[few], groups=groups[few] - 100)


@pytest.mark.parametrize("columns", [[0, 1], [1]], ids=["a feature", "levels only"])
def test_new_clients_have_the_posterior_of_their_rows(columns):
    """Whatever their ids, with the effects of crossed levels as they are."""
    X, y, groups = generated()
    X, few = X[:, columns], groups < 2
    model = PartialPoolingRegressor(crossed=[-1], **ML).fit(X, y, groups=groups)
    for away in (100, -100):
        adapted = model.adapt(X[few], y[few], groups=groups[few] + away)
        same = adapted.predict(X[few], groups=groups[few] + away)
        assert_allclose(same, model.predict(X[few], groups=groups[few]), rtol=1e-6)
        assert_allclose(adapted.predict(X, groups=groups), model.predict(X, groups=groups))
    updated = model.update(X[few], y[few], groups=groups[few])
    assert np.isfinite(updated.predict(X, groups=groups)).all()


@pytest.mark.parametrize("names", [False, True], ids=["numbers", "names"])
def test_levels_not_seen_are_noise_of_new_rows(names):
    """The posterior is that of rows which share the effects of their levels."""
    X, y, groups = generated()

    def table(x, levels):
        names_of = [f"level {k:g}" for k in levels] if names else levels
        return pd.DataFrame({"x": x, "level": names_of})

    model = PartialPoolingRegressor(crossed=["level"], random="intercept", **ML)
    model.fit(table(X[:, 0], X[:, 1]), y, groups=groups)
    effects, theta = model.crossed_effects_["level"], model.cluster_params_[0]
    phi, v, variance = (
        model.dispersion_,
        model.covariance_[-1, -1],
        model.level_variances_["level"],
    )
    x, targets = np.linspace(-1, 1, 5), np.array([3.0, 1.0, 4.0, 1.0, 5.0])
    for levels in ([3, 5, 3, 5, 2], [3, 97, 98, 98, 99]):
        known = np.isin(levels, X[:, 1])
        name = "level {:g}" if names else "{}"
        seen = [effects[name.format(k) if names else float(k)] if k < 90 else 0.0 for k in levels]
        same = (np.array(levels)[:, None] == np.array(levels)) & ~known
        V = phi * np.eye(5) + variance * same + v
        residuals = targets - x * theta[0] - theta[1] - seen
        weights = v * np.linalg.solve(V, np.ones(5))
        adapted = model.adapt(table(x, levels), targets, groups=np.full(5, 1000))
        assert_allclose(adapted.intercept_[-1], theta[1] + weights @ residuals, rtol=1e-8)
        # Two lots of rows that share no level.
        steps = model.adapt(table(x[:2], levels[:2]), targets[:2], groups=np.full(2, 1000))
        steps = steps.update(table(x[2:], levels[2:]), targets[2:], groups=np.full(3, 1000))
        assert_allclose(steps.params_[-1], adapted.params_[-1], rtol=1e-8)
        assert_allclose(steps.params_std_[-1], adapted.params_std_[-1], rtol=1e-8)
        # Clients share no noise: each has its posterior beside others as by itself.
        both = table(np.tile(x, 2), levels * 2), np.append(targets, -targets)
        both = model.adapt(*both, groups=np.repeat([1000, 1001], 5))
        assert_allclose(both.params_[-2], adapted.params_[-1], rtol=1e-8)


@pytest.mark.parametrize(
    ("kind", "levels", "covariance"),
    [
        ("squared_error", {}, "diag"),
        ("gamma", {}, "full"),
        ("squared_error", {"crossed": [1]}, "full"),
        ("squared_error", {"nested": [1]}, "diag"),
        ("poisson", {"crossed": [1]}, "diag"),
        ("classes", {"nested": [1]}, "full"),
    ],
)
def test_raw_features_have_any_unit(kind, levels, covariance):
    """Steps of the search were in the units of the features, and ended early or diverged."""
    X, y, groups = generated(n_clients=25)
    if kind in {"poisson", "gamma"}:
        eta = (y - y.mean()) / 6.0
        y = np.random.default_rng(0).poisson(np.exp(eta)) if kind == "poisson" else np.exp(eta)
    about = {**ML, "covariance": covariance, "basis": "linear", "standardize": False, **levels}
    if kind == "classes":
        y, model = y > 1.0, PartialPoolingClassifier(1, **about)
    else:
        model = PartialPoolingRegressor(1, loss=kind, **about)
    X = X[:, :2] if any(levels.values()) else X[:, :1]
    units, fits = (1e-7, 1e5), []
    for unit in units:
        scaled = X.copy()
        scaled[:, 0] *= unit
        fits.append(clone(model).fit(scaled, y, groups=groups))
    assert_allclose(fits[1].loglik_, fits[0].loglik_, rtol=1e-6)
    for name in ("cluster_coef_", "standard_errors_"):
        pair = [np.ravel(getattr(fit, name))[0] * u for fit, u in zip(fits, units, strict=True)]
        assert_allclose(*pair, rtol=1e-3)


@pytest.mark.parametrize("cls", [PartialPoolingRegressor, PartialPoolingClassifier])
def test_full_covariances_of_raw_features_about_any_row(cls):
    """The model is the same far from zero; the search ended at no variance of slopes."""
    X, y, groups = generated(n_clients=25)
    y = y > 1.0 if cls is PartialPoolingClassifier else y
    about = {**ML, "covariance": "full", "crossed": [1], "basis": "linear"}
    expected = cls(1, **about).fit(X[:, :2], y, groups=groups)
    fit = cls(1, standardize=False, **about).fit(X[:, :2] + [3000.0, 0.0], y, groups=groups)
    assert_allclose(fit.loglik_, expected.loglik_, rtol=1e-6)
    assert_allclose(fit.covariance_[0, 0], expected.covariance_[0, 0], rtol=1e-2)
    assert_allclose(fit.standard_errors_[0, 0], expected.standard_errors_[0, 0], rtol=1e-2)


def test_raw_features_too_far_from_zero_are_refused():
    X, y, groups = generated()
    about = {**ML, "crossed": [1], "basis": "linear", "standardize": False}
    with pytest.raises(ValueError, match="feature 0 with the mean .*, or set standardize=True"):
        PartialPoolingRegressor(1, **about).fit(X[:, :2] + [1e6, 0.0], y, groups=groups)
    # A constant is part of the intercept.
    X[:, 0] = 1e6
    assert np.isfinite(PartialPoolingRegressor(1, **about).fit(X[:, :2], y, groups=groups).loglik_)


def test_errors_of_columns_that_say_the_same():
    """They are of the least coefficients, as without levels, and were the inverse of rounding."""
    X, y, groups = generated()
    twice = np.column_stack([X[:, 0], 3.0 * X[:, 0], X[:, 1]])
    about = {**ML, "random": "intercept", "basis": "linear"}
    one = PartialPoolingRegressor(1, crossed=[1], **about).fit(X[:, :2], y, groups=groups)
    both = PartialPoolingRegressor(1, crossed=[2], **about).fit(twice, y, groups=groups)
    assert_allclose(both.cluster_coef_[0] * [2.0, 6.0], one.cluster_coef_[0, [0, 0]], rtol=1e-6)
    expected = one.standard_errors_[0, [0, 0, 1]] / [2.0, 6.0, 1.0]
    assert_allclose(both.standard_errors_[0], expected, rtol=1e-6)


def test_few_rows_and_one_client():
    X, y, groups = generated(n_clients=4, n=3)
    model = PartialPoolingRegressor(crossed=[1], nested=[2]).fit(X, y, groups=groups)
    assert np.isfinite(model.predict(X, groups=groups)).all()
    alone = PartialPoolingRegressor(crossed=[1]).fit(X[:, :2], y, groups=np.zeros(len(y)))
    assert np.isfinite(alone.predict(X[:, :2], groups=np.zeros(len(y)))).all()
    assert alone.covariance_type_ == "none"


def test_the_summary_names_the_groupings():
    X, y, groups = generated()
    frame = pd.DataFrame(X, columns=["x", "item", "room"])
    model = PartialPoolingRegressor(crossed="item", nested="room", **ML)
    model.fit(frame, y, groups=groups)
    text = model.summary()
    assert f"{np.sqrt(model.level_variances_['item']):.5g}" in text
    assert "Shares of variance at the mean row: clients 0." in text
    line = text.split("mean row: ")[1].split("\n")[0]
    shares = [float(part.split()[-1]) for part in line.split(", ")]
    assert_allclose(sum(shares), 1.0, atol=0.02)


@pytest.mark.reports
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_shares_of_variance_are_those_at_the_mean_row(fit_intercept, standardize):
    X, y, groups = generated()
    X, weights = X[:, :2] + [5.0, 0.0], 1 + np.arange(len(y)) % 3
    y = y + 0.1 * groups * X[:, 0]
    model = PartialPoolingRegressor(
        crossed=[1], fit_intercept=fit_intercept, standardize=standardize, **ML
    )
    model.fit(X, y, groups, sample_weight=weights)
    row = np.r_[np.average(X[:, 0], weights=weights), 1.0][: 1 + fit_intercept]
    parts = [row @ model.covariance_ @ row, model.level_variances_["x1"], model.dispersion_]
    text = "clients {:.2f}, x1 {:.2f}, residual {:.2f}".format(*parts / np.sum(parts))
    assert f"Shares of variance at the mean row: {text}" in model.summary()


@pytest.mark.reports
def test_shares_of_variance_are_left_out_where_the_mean_row_is_not_known():
    X, y, groups = generated()
    order = np.argsort(groups, kind="stable")
    host = PickledHost([(0, "all", (X[order, :2], y[order], groups[order]))])
    for standardize, evidence in ((True, False), (False, True), (False, False)):
        model = PartialPoolingRegressor(crossed=[1], standardize=standardize, **ML)
        text = model.fit_federation(RemoteFederation([host]), evidence=evidence).summary()
        assert ("Shares of variance" in text) is (standardize or evidence)


def test_what_is_refused():
    X, y, groups = generated()
    for changes, text in (
        ({"crossed": ["item"]}, "crossed must be a list of features"),
        ({"crossed": [1], "nested": [1]}, "name each column once"),
        ({"crossed": [1], "n_clusters": 2}, "n_clusters must be 'auto' or 1 with crossed"),
        ({"crossed": [1], "covariance": "spherical"}, "covariance must be no 'spherical'"),
    ):
        with pytest.raises(ValueError, match=text):
            PartialPoolingRegressor(**changes).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="log_loss of two classes or poisson with crossed"):
        PartialPoolingRegressor(loss="gamma", crossed=[1]).fit(X[:, :2], np.exp(y), groups=groups)
    with pytest.raises(ValueError, match="with 3 outputs"):
        PartialPoolingClassifier(crossed=[1]).fit(X[:, :2], np.round(y) % 3, groups=groups)
    with pytest.raises(ValueError, match="need a LinearModel"):
        PartialPooling(MLP(loss="squared_error"), crossed=[1]).fit(X[:, :2], y, groups=groups)
    for grouping in ("crossed", "nested"):
        model, rows = PartialPoolingRegressor(**{grouping: [1]}), csr_array(X[:, :2])
        with pytest.raises(ValueError, match="X must be dense .* by crossed, nested"):
            model.fit(rows, y, groups=groups)
        with pytest.raises(ValueError, match="X must be dense .* by crossed, nested"):
            model.fit_federation(InProcessFederation(rows, y, groups))
        with pytest.raises(ValueError, match="X must be dense .* by crossed, nested"):
            model.fit(X[:, :2], y, groups=groups).predict(rows, groups=groups)
    policy = SitePolicy(calls={"level_sums"})
    federation = InProcessFederation(X, y, groups, policy=policy)
    with pytest.raises(Exception, match="does not answer distinct"):
        PartialPoolingRegressor(crossed=[1]).fit_federation(federation)


def test_a_fit_forgets_the_levels_of_the_fit_before():
    """Text that a table had in place of codes is not that of another federation's codes."""
    X, y, groups = generated()
    table = pd.DataFrame({"x": X[:, 0], "item": [f"i{k:g}" for k in X[:, 1]]})
    model = PartialPoolingRegressor(crossed=[1], **ML).fit(table, y, groups=groups)
    assert "i0" in model.crossed_effects_["item"]
    with pytest.raises(ValueError, match="'item' of X holds levels of type int64, and of type"):
        model.predict(table.assign(item=X[:, 1].astype("int64")), groups=groups)
    table.loc[3, "item"] = None
    with pytest.raises(ValueError, match="column 'item' of X must have a level .* got 1 missing"):
        clone(model).fit(table, y, groups=groups)
    model.fit_federation(InProcessFederation(X[:, :2], y, groups))
    assert sorted(model.crossed_effects_["x1"]) == list(range(7))
