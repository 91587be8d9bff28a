"""Reports: what they say is so, and nothing else is said."""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from cases import make
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from scipy.optimize import brentq
from scipy.special import xlogy
from scipy.stats import chi2
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from trials import some

import skcfl
import skcfl.formula
from skcfl.datasets import make_clustered_regression
from skcfl.exceptions import SingleClientWarning
from skcfl.federation.inprocess import open_rows
from skcfl.federation.remote import RemoteFederation
from skcfl.models import MLP, LinearModel
from skcfl.reports.differences import centre_of

DATA = make_clustered_regression(12, 2, 3, n_samples=15, noise=0.5, random_state=0)
# How the clients differ is measured after the fit: one population without correlations will do.
ONE = {"n_clusters": 1, "basis": "linear", "covariance": "diag", "df": np.inf}
lines = partial(skcfl.PartialPoolingRegressor, **ONE)
CLUSTERERS = ["PartialPooling", "IFCA", "CLoVE", "CFL", "FeSEM", "FlexCFL", "OneShot", "PACFL"]
CLUSTERERS += ["RobustClusteredFL", "ConvexClusteredFL", "FPFC", "GTV", "FedEM"]


def table(seed=0, N=30, n=12, deviations=(0.8, 0.5, 0.0)):
    """Rows far from zero, of clients whose values at the mean row and slopes differ."""
    rng = np.random.default_rng(seed)
    groups, size = np.repeat(np.arange(N), n), np.array([1.0, 5.0])
    Z = rng.standard_normal((N * n, 2))
    own = rng.standard_normal((N, 3)) * deviations
    y = 2 + Z.sum(axis=1) + own[groups, 0] + (Z * own[groups, 1:]).sum(axis=1)
    return Z * size + 30, y + rng.standard_normal(N * n), groups


@pytest.mark.parametrize("name", CLUSTERERS)
def test_every_clusterer_has_a_report(name):
    model = make(f"{name}Regressor", 500, n_clusters=2, lam=0.2, graph="complete")
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    report = model.report()
    assert report.findings["n_clusters"] == model.n_clusters_
    assert report.findings["p_no_difference"] < 0.01
    text, html = str(report), report._repr_html_()
    for section in report.sections:
        assert section.title in text and section.title in html
    assert "180 rows of 12 clients" in text and "nan" not in text
    assert len(report.findings["worst"]) == 5
    if hasattr(model, "partition_optimal_"):
        assert "no proof that the clusters are real" in text
    frame = model.to_frame()
    assert_array_equal(frame.index, model.groups_)
    assert_allclose(frame["x1"], model.coef_[:, 1])
    assert_array_equal(frame["cluster"], model.labels_)
    assert str(pickle.loads(pickle.dumps(model)).report()) == text


@pytest.mark.parametrize("loss", ["squared_error", "poisson", "log_loss"])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_effects_are_of_the_mean_row_and_of_standard_deviations(loss, fit_intercept, standardize):
    """Of the rows, whatever their curvature under the loss; as computed from what is published."""
    X, y, groups = table(7, N=20)
    rng = np.random.default_rng(7)
    X, weights = X - [29.0, 28.0], rng.integers(1, 4, len(y))
    if loss == "poisson":
        y = rng.poisson(np.exp(0.3 * y - 0.5))
    elif loss == "log_loss":
        y = y + rng.logistic(size=len(y)) > 2
    kind = "Classifier" if loss == "log_loss" else "Regressor"
    more = {} if loss == "log_loss" else {"loss": loss}
    model = getattr(skcfl, f"PartialPooling{kind}")(
        **ONE, **more, fit_intercept=fit_intercept, standardize=standardize, prior=np.inf
    )
    report = model.fit(X, y, groups, sample_weight=weights).report()
    mean, variance = np.average(X, axis=0, weights=weights), np.cov(X.T, fweights=weights, ddof=0)
    T = np.diag(np.append(np.sqrt(variance.diagonal()), 1.0))
    T[-1, :-1] = mean
    T, names = (T, ["x0", "x1", "at the mean row"]) if fit_intercept else (T[:2, :2], ["x0", "x1"])
    (effects,) = [section for section in report.sections if "mean of all" in section.title]
    found = {row[0]: row[1] for row in effects.parts[-1].rows}
    assert_allclose([found[name] for name in names], T @ model.cluster_params_[0], rtol=1e-9)
    wanted = np.sqrt((T @ model.covariance_ @ T.T).diagonal())
    assert_allclose(model._how_sure.deviations["fitted"], wanted, rtol=1e-6, atol=1e-9)
    values, std = model._client_effects()[1:]
    assert_allclose(values, model.params_ @ T.T, rtol=1e-9, atol=1e-9)
    assert (std > 0).any()
    if standardize:
        unlike = [[1e3, 0.2], fit_intercept * np.array([7.0, -3.0])]
        other = clone(model).fit(X * unlike[0] + unlike[1], y, groups, sample_weight=weights)
        assert_allclose(other._client_effects()[1], values, rtol=1e-4, atol=1e-6)


def test_p_values_of_counts_do_not_depend_on_standardize():
    X, y, groups = table(2, deviations=np.zeros(3))
    y = np.random.default_rng(2).poisson(np.exp(0.4 * y))
    found, wanted = (
        skcfl.FedAvgRegressor(loss="poisson", alpha=0.0, standardize=standardize)
        .fit(X, y, groups)
        .report()
        .findings
        for standardize in (False, True)
    )
    for name in ("p_no_difference", "p_intercepts_only"):
        assert found[name] == pytest.approx(wanted[name], abs=0.01)


def test_a_constant_feature_without_an_intercept_is_one():
    """Its effect is its value; the others are those of a model with an intercept."""
    X, y, groups = table(N=20)
    wanted = lines(prior=np.inf).fit(X - 30, y, groups).report().findings["deviations"]
    model = lines(prior=np.inf, fit_intercept=False)
    found = model.fit(np.c_[X - 30, np.full(len(y), 4.0)], y, groups).report()
    deviations = found.findings["deviations"]
    assert_allclose(deviations["x0"], wanted["x0"], rtol=0.05)
    assert_allclose(deviations["x2"], wanted["at the mean row"], rtol=0.05)


def test_deviations_between_clusters_are_of_standard_deviations():
    """A model without an intercept: they shrank with the number of features."""
    model = skcfl.IFCARegressor(2, fit_intercept=False, random_state=0)
    model.fit(DATA.X, DATA.y, groups=DATA.groups)
    shares = model.cluster_sizes_ / model.cluster_sizes_.sum()
    effects = model.cluster_coef_ * DATA.X.std(axis=0)
    wanted = np.sqrt(shares @ (effects - shares @ effects) ** 2)
    found = model.report().findings["deviations"]
    assert_allclose([found[f"x{j}"] for j in range(3)], wanted, rtol=1e-9)


def test_weights_that_are_no_whole_numbers_are_named():
    X, y, groups = table(n=5)
    weights = np.tile([1, 1, 2, 3, 4], 30)
    whole, odd = (
        str(lines().fit(X, y, groups, sample_weight=w).report()) for w in (weights, weights / 3)
    )
    assert "no whole numbers" not in whole
    assert "120 rows with weights that are no whole numbers" in odd


def test_reports_of_classes_do_not_depend_on_their_order():
    """Nor on what a rare class' rows are in the middle."""
    X, y, groups = table(4, N=12, n=40, deviations=(0.1, 0.4, 0.0))
    rng = np.random.default_rng(0)
    classes = np.digitize(y + rng.logistic(size=len(y)), [-1.5, 3.0])
    model = skcfl.FedAvgClassifier(alpha=1e-3, standardize=False)
    found = model.fit(X, classes, groups=groups).report().findings
    wanted = model.fit(X, 2 - classes, groups=groups).report().findings
    for name in ("p_no_difference", "p_intercepts_only"):
        assert found[name] == pytest.approx(wanted[name], abs=0.01)


def test_intervals_of_weighted_rows_have_their_degrees_of_freedom():
    X, y, groups = table(6, N=4, n=3, deviations=np.zeros(3))
    weights = np.tile([1, 2, 3], 4)
    each = np.repeat(np.arange(12), weights)
    plain = skcfl.FedAvgRegressor(alpha=0.0)
    weighted = plain.fit(X, y, groups, sample_weight=weights).report()
    repeated = plain.fit(X[each], y[each], groups[each]).report()
    (said, found), (_, wanted) = (report.sections[2].parts for report in (weighted, repeated))
    assert "where rows count" in said
    for row, expected in zip(found.rows, wanted.rows, strict=True):
        assert row[0] == expected[0]
        assert_allclose(row[1:], expected[1:], rtol=1e-9)


@pytest.mark.parametrize("more", ["", " + (1 | item)"], ids=["clients", "items"])
def test_counts_of_successes_are_rows(more):
    """With a crossed grouping the test is one of rows with other weights."""
    pytest.importorskip("formulae")
    rng = np.random.default_rng(0)
    herd, time = np.repeat(np.arange(25), 3), np.tile([0.0, 1.0, 2.0], 25)
    z = 0.3 * time - 1 + np.where(np.arange(25) % 2, 0.8, -0.8)[herd]
    cases, item = rng.binomial(30, 1 / (1 + np.exp(-z))), rng.integers(0, 4, 75)
    frame = {"herd": herd, "time": time, "cases": cases, "n": np.full(75, 30), "item": item}
    formula = "prop(cases, n) ~ time + (1 | herd)" + more
    fit = skcfl.formula.fit(formula, pd.DataFrame(frame), "binomial")
    report = fit.estimator_.report()
    assert report.findings["p_no_difference"] < 0.01
    assert report.findings["p_intercepts_only"] > 0.05
    assert "whole numbers" not in str(report)


@pytest.mark.parametrize("seed", range(2))
def test_trials_beside_items_are_tested_as_their_rows(seed):
    """Curvatures took the place of weights, and few lines counted as few rows."""
    pytest.importorskip("formulae")
    rng = np.random.default_rng(seed)
    herd, n = np.repeat(np.arange(25), 2), rng.integers(8, 15, 50)
    frame = pd.DataFrame(rng.normal(size=(50, 3)), columns=list("uvw"))
    z = 0.5 * frame["u"] + 0.15 * rng.normal(size=25)[herd]
    frame = frame.assign(herd=herd, item=rng.integers(0, 6, 50), n=n)
    frame["cases"] = rng.binomial(n, 1 / (1 + np.exp(-z)))
    rows = frame.loc[np.repeat(frame.index, n)]
    rows["y"] = np.concatenate([np.arange(k) < c for k, c in zip(n, frame["cases"], strict=True)])
    text = "~ u + v + w + (1 | herd) + (1 | item)"
    found, wanted = (
        skcfl.formula.fit(f"{y} {text}", table, "binomial").estimator_.report()
        for y, table in (("prop(cases, n)", frame), ("y", rows))
    )
    assert ("Rows are few" in str(found)) == ("Rows are few" in str(wanted))
    for name in ("p_no_difference", "p_intercepts_only"):
        # One draw of 511 is .002, and fits end at a tolerance.
        assert_allclose(found.findings[name], wanted.findings[name], atol=0.007)


def test_worst_losses_and_their_clients():
    model = skcfl.FedAvgRegressor().fit(DATA.X, DATA.y, groups=DATA.groups)
    errors = (model.predict(DATA.X, groups=DATA.groups) - DATA.y) ** 2
    own = np.array([np.sqrt(errors[DATA.groups == g].mean()) for g in model.groups_])
    report = model.report()
    assert report.findings["worst"] == model.groups_[np.argsort(-own)[:5]].tolist()
    (section,) = [s for s in report.sections if s.title.endswith("served worst?")]
    assert_allclose([row[2] for row in section.parts[0].rows], np.sort(own)[::-1][:5], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_losses_of_constant_targets_are_none():
    """Rounding leaves losses just below zero, of which there is no root."""
    groups, X = np.repeat(np.arange(7), 12)[:83], np.random.default_rng(0).normal(size=(83, 3))
    model = skcfl.FlexCFLRegressor(2, random_state=0).fit(X, np.full(83, 3.3), groups=groups)
    (section,) = [s for s in model.report().sections if s.title.endswith("served worst?")]
    assert max(abs(row[2]) for row in section.parts[0].rows) < 1e-9


def test_certainty_is_that_of_the_cluster_that_a_client_is_in():
    """Which has the least loss, and may be too small to be likely."""
    rng = np.random.default_rng(32)
    groups = np.repeat([f"c{i:02d}" for i in range(40)], 4)
    X, apart = rng.normal(size=(160, 1)), np.repeat(np.arange(40) < 4, 4)
    y = X[:, 0] * np.where(apart, 3.0, 0.0) + rng.normal(size=160) * 1.5
    report = skcfl.IFCARegressor(2, random_state=0).fit(X, y, groups=groups).report()
    assert report.findings["unsure"][0] == "c15" and "c15 (0.12)" in str(report)


def test_deviations_are_at_the_mean_row_and_null_ones_are_none():
    X, y, groups = table()
    model = lines().fit(X, y, groups=groups)
    found = model.report().findings["deviations"]
    assert list(found)[-1] == "x1" and found["x1"][1] == 0.0 and found["x1"][0] < 0.3
    for name, true in (("at the mean row", 0.8), ("x0", 0.5)):
        estimate, low, high = found[name]
        assert 0 < low < true < high and low < estimate < high
    # Units do not matter.
    other = lines().fit(X * [1e-3, 10.0] - 7, y, groups=groups)
    for name, values in other.report().findings["deviations"].items():
        assert_allclose(values, found[name], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("n", [3, 30])
def test_deviations_are_those_of_restricted_likelihood(n):
    """Of clients with as many rows, whose means say everything; the residual variance is given."""
    rng, m = np.random.default_rng(n), 10
    groups, X = np.repeat(np.arange(n), m), np.tile(np.arange(m) - 4.5, n)[:, None]
    y = rng.normal(size=n)[groups] + rng.normal(size=n * m)
    model = lines(random="intercept").fit(X, y, groups=groups)
    means = y.reshape(n, m).mean(axis=1)
    noise, left = model.dispersion_ / m, ((means - means.mean()) ** 2).sum()

    best = np.sqrt(left / (n - 1) - noise)

    def value(s):
        return -0.5 * ((n - 1) * np.log(s**2 + noise) + left / (s**2 + noise))

    def over(s):
        return value(s) - value(best) + chi2.ppf(0.95, 1) / 2

    wanted = best, brentq(over, 1e-9, best), brentq(over, best, 20.0)
    found = model.report().findings["deviations"]["at the mean row"]
    # The likelihood of three clients is far from a parabola.
    assert_allclose(found, wanted, rtol=0.01 if n > 3 else 0.02)


def test_intervals_of_deviations_and_means_hold_the_truth():
    """About 95 % of them; benchmarks/how_sure.py counts more."""
    held = []
    for seed in some(range(12), 3):
        X, y, groups = table(seed, N=25, n=8)
        report = lines().fit(X, y, groups=groups).report()
        found = report.findings["deviations"]
        for name, true in (("at the mean row", 0.8), ("x0", 0.5), ("x1", 0.0)):
            held.append(found[name][1] <= true <= found[name][2])
        (section,) = [s for s in report.sections if s.title.startswith("What is the mean")]
        rows = {row[0]: row[1:] for row in section.parts[1].rows}
        held += [low <= 1 <= high for _, low, high in (rows["x0"], rows["x1"])]
    assert np.mean(held) > 0.85  # five of each fit


@pytest.mark.parametrize("differ", [0.0, 0.4])
def test_intervals_of_clusters_hold_the_truth(differ):
    held = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        groups, X = np.repeat(np.arange(16), 20), rng.standard_normal((320, 2))
        own = np.where(np.arange(16) % 2, 4.0, -4.0)[:, None] + differ * rng.normal(size=(16, 2))
        y = (X * own[groups]).sum(axis=1) + rng.standard_normal(320)
        model = skcfl.IFCARegressor(2, n_init=2, random_state=0).fit(X, y, groups=groups)
        report = model.report()
        assert (report.findings["p_inside_clusters"] < 0.05) == (differ > 0) or not differ
        (section,) = [s for s in report.sections if s.title.startswith("What are the clusters")]
        spread = X.std(axis=0)
        name = ""
        for shown, _, mean, low, high in section.parts[1].rows:
            name = shown or name
            if name != "at the mean row":
                true = np.sign(mean) * 4.0 * spread[int(name[1])]
                held.append(low <= true <= high)
    assert np.mean(held) > 0.8  # 20 of them, in clusters of eight clients


@pytest.mark.parametrize("loss", ["squared_error", "log_loss", "poisson"])
@pytest.mark.parametrize("size, origin", [(0.01, 30.0), (200.0, -2000.0)])
def test_units_and_origins_of_features_change_no_report(loss, size, origin):
    """A calendar year far from zero is no intercept, though nothing is standardised."""
    X, y, groups = table(3, N=10, n=30, deviations=(0.1, 0.25, 0.0))
    y = {"squared_error": y, "log_loss": y > 2, "poisson": np.floor(abs(y))}[loss]
    kind = "Classifier" if loss == "log_loss" else "Regressor"
    start = getattr(skcfl, f"FedAvg{kind}")(loss=loss, alpha=0.0, standardize=False)
    findings, errors = [], []
    for unit, zero in ((1.0, 0.0), (size, origin)):
        Z = (X - 30) / [1.0, 5.0] * [1.0, unit] + [0.0, zero]
        model = clone(start).fit(Z, y, groups=groups)
        findings.append(model.report().findings)
        common = model._how_sure.common
        for cov in (common.by_rows, common.by_clients):
            errors.append(np.sqrt(cov[0, [0, 1], [0, 1]]) * [1.0, unit])
    for name in ("p_no_difference", "p_intercepts_only"):
        assert findings[0][name] == pytest.approx(findings[1][name], abs=0.01)
    assert_allclose(errors[:2], errors[2:], rtol=1e-5)


def test_no_differences_are_said_where_there_are_none():
    p_values, lows = [], []
    for seed in some(range(5), 3):
        X, y, groups = table(seed, deviations=(0.0, 0.0, 0.0))
        report = lines().fit(X, y, groups=groups).report()
        p_values.append(report.findings["p_no_difference"])
        lows += [low for _, low, _ in report.findings["deviations"].values()]
        assert ("Not visibly" in str(report)) == (p_values[-1] >= 0.05)
    assert np.median(p_values) > 0.1 and np.count_nonzero(lows) <= 3  # of 15


def test_parts_of_a_continuum_are_not_called_clusters():
    X, y, groups = table()
    report = skcfl.IFCARegressor(2, random_state=0).fit(X, y, groups=groups).report()
    assert report.findings["p_inside_clusters"] < 0.05
    assert "continuum" in str(report) and len(report.findings["not_settled"]) >= 2


def test_outliers_are_named():
    X, y, groups = table(deviations=(0.3, 0.0, 0.0))
    y[groups == 7] += 30 * np.sign(X[groups == 7, 0] - 30)
    report = skcfl.FedAvgRegressor().fit(X, y, groups=groups).report()
    assert report.findings["outliers"] == [7] and report.findings["worst"][0] == 7


def test_suspicious_clients_are_named_in_the_order_of_clients():
    X, y, groups = table(deviations=(0.3, 0.0, 0.0))
    model = skcfl.FedAvgRegressor(aggregation="geometric_median").fit(X, y, groups=groups)
    assert not model.report().findings["outliers"]
    model.suspicion_[[12, 3, 7]] = 1.1, 3.0, 2.0
    assert model.report().findings["outliers"] == [3, 7, 12]


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_clients_of_all_sizes_of_counts_are_compared(loss):
    """By their half deviance: small counts have a small loss without fitting badly."""
    rng = np.random.default_rng(0)
    groups, x = np.repeat(np.arange(30), 40), rng.normal(size=1200)
    level = np.exp(rng.normal(4.0, 1.0, size=30))
    y = rng.poisson(level[groups] * np.exp(0.3 * x)) + 0.5 * (loss == "gamma")
    bad = np.argsort(level)[15]
    y = np.where(groups == bad, np.round(y * np.exp(rng.normal(size=1200))) + 0.5, y)
    model = skcfl.LocalModelsRegressor(loss=loss).fit(x[:, None], y, groups=groups)
    report, mean = model.report(), model.predict(x[:, None], groups=groups)
    assert report.findings["worst"][0] == bad and report.findings["outliers"] == [bad]
    rows = {"poisson": xlogy(y, y / mean) - y + mean, "gamma": y / mean - np.log(y / mean) - 1}
    own = np.bincount(groups, rows[loss]) / 40
    (section,) = [s for s in report.sections if s.title.endswith("served worst?")]
    assert_allclose([row[2] for row in section.parts[0].rows], np.sort(own)[:-6:-1], rtol=1e-3)


def test_few_clients_that_are_alike_have_no_outliers():
    groups = np.repeat(np.arange(5), 20)
    for seed in range(30, 36):
        X = np.random.default_rng(seed).normal(size=(100, 2))
        model = skcfl.FedAvgRegressor().fit(X[:, :1], X.sum(axis=1), groups=groups)
        assert not model.report().findings["outliers"]


def test_candidates_differ_by_what_they_are_called():
    """Clients with noise of one size, and each with its own, competed."""
    X, y, groups = table()
    y += np.random.default_rng(1).standard_t(1.5, size=30)[groups] * np.sin(7.0 * y)
    model = skcfl.PartialPoolingRegressor(basis="linear", random_state=0).fit(X, y, groups=groups)
    (section,) = [s for s in model.report().sections if s.title == "How many clusters?"]
    (found,) = [part for part in section.parts if not isinstance(part, str)]
    at = found.columns.index("scale")
    assert {row[at] for row in found.rows} == {"one", "own"}
    called = [tuple(row[: at + 1]) for row in found.rows]
    assert len(set(called)) == len(called)


def test_classes_have_effects_of_their_own():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(240, 2)), np.repeat(np.arange(8), 30)
    own = rng.normal(size=8)[groups]
    y = np.array(["a", "b", "c"])[np.digitize(X[:, 0] + own + rng.logistic(size=240), [-1, 1])]
    for model in (skcfl.PartialPoolingClassifier(1), skcfl.IFCAClassifier(2, random_state=0)):
        model.fit(X, y, groups=groups)
        names = list(model.report().findings["deviations"])
        assert {name.split(" | ")[1] for name in names} <= {"a", "b", "c"}
        columns = model.to_frame().columns.tolist()[1:4]
        assert columns == [("a", name) for name in ("x0", "x1", "intercept")]
    assert "Certainties" in str(model.report())


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", [0, 4])
def test_errors_of_separated_classes_are_no_roots_of_negative_numbers(seed):
    """Where no row bends inverse curvatures are so large that rounding had a sign."""
    rng = np.random.RandomState(seed)
    X, y = rng.randn(33, 9), rng.randint(0, 4, 33)
    report = skcfl.FedAvgClassifier(random_state=0).fit(X, y, groups=np.arange(33) % 8).report()
    assert "nan" not in str(report)


def test_one_client_and_clients_of_one_row():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((20, 2)), rng.standard_normal(20)
    with pytest.warns(SingleClientWarning):
        alone = skcfl.PartialPoolingRegressor().fit(X, y)
    assert "Not tested: there is one client" in str(alone.report())
    assert np.isnan(alone.report().findings["p_no_difference"])
    each = skcfl.FedAvgRegressor().fit(X, y, groups=np.arange(20))
    assert "20 rows of 20 clients" in str(each.report())
    with pytest.raises(NotFittedError):
        skcfl.FedAvgRegressor().report()
    with pytest.raises(NotFittedError):
        skcfl.FedAvgRegressor().to_frame()


def test_other_models_say_what_is_not_known():
    model = skcfl.FedAvg(MLP((3,), loss="squared_error"), max_iter=2, random_state=0)
    with pytest.warns(Warning):
        model.fit(DATA.X, DATA.y, groups=DATA.groups)
    report = model.report()
    assert "the local model is not linear" in str(report)
    assert "the fit stopped before it reached its tolerance" in report.findings["not_settled"]
    with pytest.raises(ValueError, match="local model with coefficients"):
        model.to_frame()


@pytest.mark.parametrize("n_clusters", [1, 2])
def test_features_that_never_vary_have_no_effects(n_clusters):
    X = np.column_stack([np.full(len(DATA.X), 7.0), DATA.X, np.zeros(len(DATA.X))])
    options = {"covariance": "diag", "basis": "linear", "random_state": 0}
    model = skcfl.PartialPoolingRegressor(n_clusters, **options).fit(X, DATA.y, groups=DATA.groups)
    report = model.report()
    assert set(report.findings["deviations"]) == {"x1", "x2", "x3", "at the mean row"}
    assert "not shown" not in str(report) and " x3 " in str(report)
    assert " x0 " not in str(report) and " x4 " not in str(report)


@pytest.mark.parametrize("name", ["cluster", "intercept"])
def test_tables_lose_no_column(name):
    frame = pd.DataFrame(DATA.X[:, :2], columns=["x", name])
    model = skcfl.LocalModelsRegressor().fit(frame, DATA.y, groups=DATA.groups)
    with pytest.raises(ValueError, match=f"columns of its own, .* named {name}: give"):
        model.to_frame()
    classes = np.digitize(DATA.y, np.quantile(DATA.y, [0.3, 0.7]))
    several = skcfl.LocalModelsClassifier().fit(frame, classes, groups=DATA.groups)
    if name == "cluster":  # beside names of classes it is another one
        assert several.to_frame().columns.is_unique


def test_newcomers_are_counted():
    new = np.char.add("new ", DATA.groups[DATA.groups == "client03"])
    model = skcfl.PartialPoolingRegressor(2, random_state=0).fit(
        DATA.X, DATA.y, groups=DATA.groups
    )
    rows = DATA.groups == "client03"
    larger = model.adapt(DATA.X[rows], DATA.y[rows], groups=new)
    assert "180 rows of 12 clients, 2 clusters\nand 1 newcomer, see adapt" in larger.summary()
    assert "newcomer" not in model.summary()
    assert "180 rows of 12 clients and 1 newcomer" in str(larger.report())


def test_clients_elsewhere_are_asked_for_the_fit_alone():
    """The report says so, and nothing was sent that the ledger does not have."""
    hosts = [PickledHost([part]) for part in named(parts_of(DATA, 3))]
    model = skcfl.PartialPoolingRegressor(n_clusters=1).fit_federation(RemoteFederation(hosts))
    asked = [
        request[1][0] for host in hosts for request in host.requests if request[0] == "answer"
    ]
    assert not {"feature_sums", "score_sums", "score_draws"} & set(asked)
    assert "in other places, and are asked for fits only" in str(model.report())
    with pytest.raises(ValueError, match="posteriors, which are kept of rows in this process"):
        model.update(DATA.X, DATA.y, groups=DATA.groups)


def test_a_client_with_swapped_classes_is_an_outlier():
    """Losses of classes scatter less than deviances of normal noise."""
    found = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        groups, X = np.repeat(np.arange(20), 60), rng.standard_normal((1200, 2))
        y = X[:, 0] + rng.logistic(size=1200) > 0
        y[groups == 0] ^= True
        model = skcfl.FedAvgClassifier().fit(X, y, groups=groups)
        found.append(list(model.report().findings["outliers"]))
    assert found.count([0]) >= 2 and found.count([0]) + found.count([]) == 4


def correlated(seed, p, n=12, noise=1.0):
    """Rows five deviations from zero, where effects are independent; one slope differs."""
    rng = np.random.default_rng(seed)
    groups, X = np.repeat(np.arange(40), n), rng.standard_normal((40 * n, p)) + 5.0
    intercept, slope = rng.standard_normal((2, 40))[:, groups] * [[0.6], [0.5]]
    y = intercept + (1 + slope) * X[:, 0] + noise * rng.standard_normal(len(groups))
    return X, y, groups


def test_intervals_of_deviations_that_are_correlated_are_as_wide_as_others():
    """With little noise they are those of a variance of normal numbers."""
    model = lines(covariance="full", prior=np.inf).fit(*correlated(0, 1, noise=0.05))
    found = np.array(list(model.report().findings["deviations"].values()))
    ratios = (found[:, 0] / found[:, 1:].T) ** 2
    falls = 0.5 * 39 * (ratios - 1 - np.log(ratios))
    assert_allclose(falls, 1.92, atol=0.1)


def test_correlations_of_an_effect_are_no_evidence_that_it_differs():
    rejected = []
    for seed in range(10):
        model = lines(covariance="full", prior=np.inf).fit(*correlated(seed, 4))
        deviations = model.report().findings["deviations"]
        assert deviations["x0"][1] > 0
        rejected += [deviations[name][1] > 0 for name in ("x1", "x2", "x3")]
    assert np.sum(rejected) <= 4


def test_intervals_of_deviations_do_not_depend_on_units():
    """Without standardisation, beside a feature in thousands of others' units."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), 12)
    X, own = rng.normal(size=(96, 2)), 1.0 + 0.5 * rng.normal(size=(8, 2))
    y = (X * own[groups]).sum(axis=1) + rng.normal(size=96)
    how = {"covariance": "full", "n_clusters": 1, "prior": np.inf, "df": np.inf, "tol": 1e-9}
    found = []
    for units, standardize in (([1.0, 1.0], True), ([3e4, 3e-3], False)):
        model = skcfl.PartialPoolingRegressor(**how, basis="linear", standardize=standardize)
        model.fit(X * units + np.array([5e4, 5e-3]) * (not standardize), y, groups=groups)
        about = model.report().findings["deviations"]
        found.append([about[name] for name in ("at the mean row", "x0", "x1")])
    assert_allclose(found[1], found[0], rtol=5e-3)


def test_the_mean_row_is_of_the_clients_that_count():
    """A feature that varies by a millionth of its mean is no constant."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    X[:, 0] = 1.6e9 + 1e3 * X[:, 0]
    groups = np.repeat(np.arange(6), 10)
    model = LinearModel("squared_error", standardize=False).bind(2, None)
    centre, spread = centre_of(open_rows(model, X, X[:, 1], groups, 6), np.arange(6) < 4)
    assert_allclose(centre, [*X[:40].mean(axis=0), 1.0])
    assert_allclose(spread, [*X[:40].std(axis=0), 1.0], rtol=1e-2)


def test_beside_crossed_levels_the_mean_row_is_of_the_rows_not_of_their_curvatures():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(240, 2)), np.repeat(np.arange(12), 20)
    X[:, 1] = rng.integers(6, size=240)
    y = rng.poisson(np.exp(X[:, 0] + 0.3 * rng.normal(size=12)[groups]))
    model = skcfl.PartialPoolingRegressor(loss="poisson", crossed=[1], basis="linear")
    evidence = model.fit(X, y, groups=groups)._how_sure
    assert_allclose(evidence.centre, [0.0, 1.0], atol=1e-9)
    assert_allclose(evidence.spread, [1.0, 1.0], rtol=1e-9)
