"""Curves: a pooled mixed model of the same columns, what is drawn, federations, the choice."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.preprocessing import SplineTransformer

from skcfl import (
    LocalModelsRegressor,
    PartialPooling,
    PartialPoolingClassifier,
    PartialPoolingRegressor,
    SplineBasis,
)
from skcfl.federation import ClientPrivacy, FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.ledger import Ledger
from skcfl.federation.made import quantiles
from skcfl.federation.made_columns import bends, line_of, spline_of
from skcfl.inspection import EffectDisplay
from skcfl.models import LinearModel


def waves(n_clients=12, n=25, seed=0, slope=1.0):
    """A sine of the first feature that clients have to different degrees, two straight lines."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n)
    X = rng.uniform(-3, 3, size=(len(groups), 3))
    X[:, 2] = rng.integers(2, size=len(X))
    size = 1.0 + 0.3 * rng.normal(size=n_clients)
    y = size[groups] * np.sin(X[:, 0]) + slope * X[:, 1] + X[:, 2]
    return X, y + 0.2 * rng.normal(size=len(y)) + rng.normal(size=n_clients)[groups], groups


def test_columns_span_the_splines():
    """The straight line, and bends with unit second differences."""
    values = np.array([3.0, 0.0, 1.0, 2.5, 3.0, 7.0])
    x = np.linspace(-2.0, 9.0, 60)[:, None]
    B = SplineTransformer(knots=values[1:, None], extrapolation="linear").fit_transform(x)
    assert_allclose(spline_of(values).transform(x), B)
    assert_allclose(B @ line_of(values), x[:, 0], atol=1e-12)
    D = bends(values)
    assert D.shape == (7, 5) and np.linalg.matrix_rank(np.column_stack([B, B @ D])) == 7
    both = np.column_stack([np.ones(7), line_of(values)])
    assert np.linalg.matrix_rank(np.hstack([both, D])) == 7


def test_quantiles_are_those_of_the_rows():
    X, y, groups = waves()
    model, shares = LinearModel().bind(3), np.array([0.01, 0.25, 0.5, 0.99])
    wanted = np.quantile(X, shares, axis=0, method="inverted_cdf").T
    parts = [(X[s], y[s], groups[s]) for s in (groups < 5, groups >= 5)]
    fan = FanOutFederation([InProcessFederation(*part) for part in parts])
    for federation in (InProcessFederation(X, y, groups), fan):
        ledger, hello = Ledger(), federation.hello("regressor")
        found, n_values = quantiles(federation, model, hello, shares, ledger)
        assert_allclose(found, wanted, atol=1e-6)
        assert n_values[2] == 2 and n_values[:2].min() > 20
        # Two for the range, a grid that all shares have, a finer one each time, cells at the end.
        assert ledger.calls == 2 + 1 + 7 + 1
        sums = 3 * (5 + 127 + 7 * 7 * 4 + 65) + 1 + 9 * 3
        assert ledger.up == len(hello.ids) * sums


def test_it_is_the_mixed_model_of_these_columns():
    """A fit with curves is the fit of the made columns as features."""
    X, y, groups = waves()
    common = {"covariance": "full", "prior": np.inf, "df": np.inf, "n_clusters": 1}
    model = PartialPoolingRegressor(basis=SplineBasis(n_knots=3, random="none"), **common)
    columns = model.fit(X, y, groups=groups)._design.columns
    made = columns.made(X)
    assert columns.is_curve.tolist() == [False] * 3 + [True] * 6
    raw = PartialPoolingRegressor(random=[0, 1, 2], basis="linear", **common).fit(made, y, groups)
    assert_allclose(model.loglik_, raw.loglik_, rtol=1e-8)
    assert_allclose(model.predict(X, groups=groups), raw.predict(made, groups=groups), rtol=1e-6)
    assert model.coef_names_[3] == "x0 curve 1" and model.basis_ == "shared splines"


def test_parts_of_a_curve_share_a_variance():
    X, y, groups = waves()
    model = PartialPoolingRegressor(basis="splines", covariance="diag", df=np.inf, n_clusters=1)
    model.fit(X, y, groups=groups)
    variances, unit = model._stack.populations[0].covariance, model._stack.populations[0].unit
    ratios = (variances / unit)[:-1]
    sources, curves = model._design.columns.sources, model._design.columns.is_curve
    for j in (0, 1):
        assert_allclose(ratios[curves & (sources == j)], ratios[curves & (sources == j)][0])
    assert ratios[curves & (sources == 0)][0] > 3.0 * ratios[curves & (sources == 1)][0]
    assert len(np.unique(np.round(ratios, 12))) <= 5


def test_the_curve_is_found():
    X, y, groups = waves()
    straight, model = (
        PartialPoolingRegressor(1, basis=basis, covariance="diag").fit(X, y, groups=groups)
        for basis in ("linear", "splines")
    )
    assert straight.score(X, y, groups=groups) < 0.96 < 0.975 < model.score(X, y, groups=groups)
    x, effect, std = model.partial_effect("x0")
    assert_allclose(effect - effect.mean(), np.sin(x) - np.sin(x).mean(), atol=0.25)
    assert (std > 0).all() and std.max() < 0.5
    x, effects, stds = model.partial_effect(0, groups=[3, 5], values=[-1.0, 0.0, 1.0])
    assert effects.shape == stds.shape == (2, 3)
    # Differences of predictions are those of the effects.
    rows = np.zeros((3, 3))
    rows[:, 0] = x
    predicted = model.predict(rows, groups=[5, 5, 5])
    assert_allclose(np.diff(effects[1]), np.diff(predicted), rtol=1e-8)
    # The effect is zero on average over the rows.
    _, over_rows, _ = model.partial_effect(0, values=X[:, 0])
    assert_allclose(over_rows.mean(), 0.0, atol=1e-8)
    with pytest.raises(ValueError, match="feature must be one of .*got 'x9'"):
        model.partial_effect("x9")


def test_a_clients_model_is_a_plain_pipeline():
    X, y, groups = waves()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for features in (X, frame):
        model = PartialPoolingRegressor(1, basis="splines", covariance="diag", df=np.inf)
        plain = model.fit(features, y, groups).client_model(3)
        got, wanted = plain.predict(X), model.predict(features, groups=np.full(len(X), 3))
        assert_allclose(got, wanted, rtol=1e-8, atol=1e-8)
    assert type(plain[-1]).__module__.startswith("sklearn.")
    wide = np.array([[9.0, -9.0, 1.0]])
    wanted = model.predict(pd.DataFrame(wide, columns=list("abc")), groups=[3])
    assert_allclose(plain.predict(wide), wanted, rtol=1e-8)


def test_auto_takes_curves_where_there_are_some():
    X, y, groups = waves()
    auto, named = (
        PartialPoolingRegressor(1, basis=basis, covariance="diag", random_state=0)
        for basis in ("auto", "splines")
    )
    assert auto.fit(X, y, groups=groups).basis_ == "splines"
    assert auto.basis_losses_["own curves"] < auto.basis_losses_["linear"]
    # To the last digit those of a fit without the choice.
    assert_array_equal(auto.params_, named.fit(X, y, groups=groups).params_)


@pytest.mark.parametrize("most, basis", [(13, "splines"), (12, "trees"), (2, "linear")])
def test_trees_compete_where_curves_have_too_many_columns(most, basis, monkeypatch):
    X, y, groups = waves()
    monkeypatch.setattr("skcfl.base.basis_choices.MOST_COLUMNS", most)
    model = PartialPoolingRegressor(1, covariance="diag", random_state=0)
    assert model.fit(X, y, groups=groups).basis_ == basis
    assert ("own curves" in model.basis_losses_) == (basis == "splines")
    assert ("trees" in model.basis_losses_) == (basis != "linear")


def test_a_look_counts_the_coefficients_that_are_free(monkeypatch):
    """Adding a curve to all classes changes nothing: three have twice the curves of two."""
    freedom = []
    score = SimpleNamespace(sf=lambda gain, df: freedom.append(df) or 1.0)
    monkeypatch.setattr("skcfl.pooling.basis_choice.chi2", score)
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(6), 20)
    X = rng.normal(size=(120, 2))
    raw = X[:, 0] + rng.logistic(size=120)
    for ends in ([0.0], [-1.0, 1.0]):
        how = {"random": "intercept", "covariance": "diag"}
        PartialPoolingClassifier(1, **how).fit(X, np.digitize(raw, ends), groups=groups)
    assert freedom[1] == 2 * freedom[0] > 0


def test_few_values_few_clients_and_sparse_rows_stay_linear():
    X, y, groups = waves()
    for features, ids in (
        (np.round(X[:, 2:]), groups),
        (X, groups % 2),
        (sparse.csr_array(X), groups),
        (X[:20], groups[:20] // 5),
    ):
        model = PartialPoolingRegressor(1, basis="auto", covariance="diag")
        model.fit(features, y[: features.shape[0]], groups=ids)
        assert model.basis_ == "linear"
    with pytest.raises(ValueError, match="X must be dense"):
        PartialPoolingRegressor(basis="splines").fit(sparse.csr_array(X), y, groups=groups)


def test_options_are_checked():
    X, y, groups = waves()
    with pytest.raises(ValueError, match="n_knots"):
        PartialPoolingRegressor(basis=SplineBasis(n_knots=2)).fit(X, y, groups=groups)
    model = PartialPooling(n_clusters=1, covariance="diag", basis=SplineBasis())
    model.set_params(basis__n_knots=4)
    assert model.fit(X, y, groups=groups).model_.n_features == 3 + 2 * 4


def test_the_display():
    X, y, groups = waves()
    model = PartialPoolingRegressor(1, basis="splines", covariance="diag", df=np.inf)
    model.fit(X, y, groups=groups)
    display = EffectDisplay.from_estimator(model, "x0", groups=[0, 4])
    assert_allclose(display.line_.get_ydata(), model.partial_effect("x0")[1])
    assert [line.get_label() for line in display.client_lines_] == ["0", "4"]
    assert display.ax_.get_xlabel() == "x0"
    with pytest.raises(ValueError, match="level must be"):
        display.plot(level=2.0)
    other = LocalModelsRegressor().fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="has no partial_effect: fit PartialPooling"):
        EffectDisplay.from_estimator(other, "x0")
    plt.close("all")


def test_the_curve_of_several_clusters_is_a_mean_over_them():
    """A feature whose effect has one population is known as well in two clusters as in one."""
    rng = np.random.default_rng(0)
    groups, stds = np.repeat(np.arange(40), 15), []
    X = rng.normal(size=(600, 2))
    own = np.column_stack([np.zeros(40), 1 + 0.5 * rng.normal(size=40)])
    noise = rng.normal(size=600) + rng.normal(size=40)[groups]
    for K in (1, 2):
        own[:, 0] = 20.0 * (np.arange(40) % K)
        y = (X * own[groups]).sum(axis=1) + noise
        options = {"covariance": "diag", "basis": "linear", "prior": np.inf, "df": np.inf}
        model = PartialPoolingRegressor(K, **options).fit(X, y, groups=groups)
        stds.append(model.partial_effect("x1", values=[1.0])[2][0])
    assert_allclose(stds[0], stds[1], rtol=0.1)


@pytest.mark.reports
def test_effects_of_sparse_rows_are_about_the_mean_row():
    X, y, groups = waves()
    X, weights = X + [5.0, 0.0, 0.0], 1 + np.arange(len(y)) % 3
    options = {"basis": "linear", "covariance": "full", "prior": np.inf, "df": np.inf}
    dense, sparsely = (
        PartialPoolingRegressor(1, tol=1e-12, **options).fit(
            rows, y, groups=groups, sample_weight=weights
        )
        for rows in (X, sparse.csr_array(X))
    )
    for ids in (None, [3, 5]):
        pairs = zip(dense.partial_effect(0, ids), sparsely.partial_effect(0, ids), strict=True)
        for wanted, found in pairs:
            assert_allclose(found, wanted, rtol=1e-6, atol=1e-8)
    _, over_rows, _ = sparsely.partial_effect(0, values=X[:, 0])
    assert_allclose(np.average(over_rows, weights=weights), 0.0, atol=1e-8)
    # A single client sends no mean row.
    one = PartialPoolingRegressor(1, basis="linear").fit(sparse.csr_array(X), y, 0 * groups)
    assert_allclose(one.partial_effect(0, values=[0.0])[1], 0.0, atol=1e-12)


def test_effects_of_a_private_fit_are_zero_in_the_middle_of_the_bounds():
    X, y, groups = waves()
    bounds = {"features": (-3.0, 3.0), "target": (-9.0, 9.0)}
    federation = InProcessFederation(
        X, y, groups, policy=SitePolicy(privacy=ClientPrivacy(50.0, 1e-5, bounds=bounds))
    )
    model = PartialPoolingRegressor(1, basis="linear").fit_federation(federation)
    values, effect, _ = model.partial_effect(0)
    assert_allclose(values[[0, -1]], [-3.0, 3.0])
    assert_allclose(effect + effect[::-1], 0.0, atol=1e-8)


@pytest.mark.parametrize("changes", [{"standardize": False}, {"fit_intercept": False}])
def test_effects_need_standardised_features_and_an_intercept(changes):
    X, y, groups = waves()
    for rows in (X, sparse.csr_array(X)):
        model = PartialPoolingRegressor(1, basis="linear", **changes).fit(rows, y, groups=groups)
        with pytest.raises(ValueError, match="needs a model with standardize=True and"):
            model.partial_effect(0)
