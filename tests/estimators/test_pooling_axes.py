"""What every kind of population promises: places, order, names, units, weights, new clients.

The default kind is in the table of ``test_axes.py`` too.
"""

import functools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named
from sklearn.base import clone
from trials import some

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor, SplineBasis, TreeBasis
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.federation.remote import RemoteFederation
from skcfl.testing import StrictFederation

LEVELS = {"crossed": [2], "nested": [3], "covariance": "diag"}
ONE = {"n_clusters": 1, "basis": "linear"}
FEW_TREES = TreeBasis(3, learning_rate=0.3, max_bins=16)
GROWN = {"n_clusters": 1, "basis": FEW_TREES, "covariance": "diag"}
KINDS = {
    "stack": PartialPoolingRegressor(**ONE, df=np.inf),
    "stack of classes": PartialPoolingClassifier(**ONE),
    # With a smaller tol rounding decides how many steps there are.
    "heavy tails": PartialPoolingRegressor(**ONE, covariance="diag", df=3.0, tol=1e-7),
    "splines": PartialPoolingRegressor(1, basis=SplineBasis(3), covariance="diag", df=np.inf),
    "trees": PartialPoolingRegressor(**GROWN),
    "trees of three classes": PartialPoolingClassifier(**GROWN).set_params(basis__n_trees=1),
    "levels": PartialPoolingRegressor(**LEVELS),
    "levels of classes": PartialPoolingClassifier(**LEVELS),
    # The last three share all but the loss with kinds before.
    "trees of classes": PartialPoolingClassifier(**GROWN),
    "trees of counts": PartialPoolingRegressor(**GROWN, loss="poisson"),
    "levels of counts": PartialPoolingRegressor(**LEVELS, loss="poisson"),
}
every_kind = pytest.mark.parametrize("kind", some(KINDS, len(KINDS) - 3))


def rows_of(kind):
    """A wave, a slope of each client's own, and where they are modelled items and rooms."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), 15)
    x, (item, room) = rng.normal(size=(120, 2)), rng.integers([[5], [3]], size=(2, 120))
    y = np.sin(2 * x[:, 0]) + (1.0 + 0.6 * rng.normal(size=8)[groups]) * x[:, 1]
    y += 0.7 * rng.normal(size=8)[groups]
    if kind.startswith("levels"):
        y += rng.normal(size=5)[item] + 0.7 * rng.normal(size=(8, 3))[groups, room]
        x = np.column_stack([x, item, room])
    if kind.endswith("three classes"):
        few, y = groups < 5, np.digitize(y + rng.logistic(size=120), [-1.0, 1.0])
        return x[few], y[few], groups[few]
    if kind.endswith("classes"):
        return x, (y + rng.logistic(size=120) > 0).astype(int), groups
    if kind.endswith("counts"):
        return x, rng.poisson(np.exp(np.clip(y, -3, 2))), groups
    return x, y + 0.3 * rng.standard_t(4, size=120), groups


@functools.cache
def fitted(kind):
    """The fit to all rows, which no test may change."""
    X, y, groups = rows_of(kind)
    return clone(KINDS[kind]).fit(X, y, groups=groups)


def values(model, X, groups):
    output = model.decision_function if hasattr(model, "classes_") else model.predict
    return output(X, groups=groups)


@every_kind
def test_places(kind):
    """Several places, and hosts whose messages are pickled: one result, one account."""
    wanted, (X, y, groups) = fitted(kind), rows_of(kind)
    parts = [(X[part], y[part], groups[part]) for part in (groups < 4, groups >= 4)]
    fan = FanOutFederation([InProcessFederation(*part) for part in parts])
    hosts = RemoteFederation([PickledHost([part]) for part in named(parts)])
    model = clone(KINDS[kind]).fit_federation(StrictFederation(hosts))
    assert_allclose(model.loglik_, wanted.loglik_, rtol=1e-10)
    assert_allclose(model.params_, wanted.params_, rtol=1e-8, atol=1e-9)
    assert_allclose(model.params_std_, wanted.params_std_, rtol=1e-8, atol=1e-9)
    expected = values(wanted, X, groups)
    assert_allclose(values(model, X, groups), expected, rtol=1e-9, atol=1e-9)
    assert_array_equal(model.coef_names_, wanted.coef_names_)
    assert (model.calls_, model.floats_up_) == (wanted.calls_, wanted.floats_up_)
    if kind.startswith("levels"):
        return  # rows of theirs are predicted at hand only
    found = np.sort(wanted.predict_federation(hosts))
    assert_allclose(found, np.sort(wanted.predict(X, groups=groups)), rtol=1e-9)
    score = wanted.score(X, y, groups=groups)
    assert_allclose(wanted.score_federation(fan), score, rtol=1e-9)
    assert_array_equal(wanted.assign_federation(fan), wanted.labels_)


@every_kind
def test_order_of_rows_and_names_of_clients(kind):
    wanted, (X, y, groups) = fitted(kind), rows_of(kind)
    order = np.random.default_rng(1).permutation(len(y))
    model = clone(KINDS[kind]).fit(X[order], y[order], groups=100 - groups[order])
    assert_allclose(model.loglik_, wanted.loglik_, rtol=1e-10)
    expected = values(wanted, X, groups)
    assert_allclose(values(model, X, 100 - groups), expected, rtol=1e-8, atol=1e-9)


@every_kind
def test_units(kind):
    wanted, (X, y, groups) = fitted(kind), rows_of(kind)
    slope, constant = (1, 0) if kind.endswith(("classes", "counts")) else (100.0, 7.0)
    moved = X.copy()
    moved[:, :2] = X[:, :2] * [8.0, 1e3] + [5.0, 0.0]
    model = clone(KINDS[kind]).fit(moved, slope * y + constant, groups=groups)
    found = (values(model, moved, groups) - constant) / slope
    assert_allclose(found, values(wanted, X, groups), rtol=1e-5, atol=1e-5)


@every_kind
def test_rows_given_twice_weigh_twice(kind):
    X, y, groups = rows_of(kind)
    counts = np.random.default_rng(0).integers(0, 4, size=len(y))
    weighed = clone(KINDS[kind]).fit(X, y, groups=groups, sample_weight=counts)
    twice = clone(KINDS[kind]).fit(
        *(np.repeat(part, counts, axis=0) for part in (X, y)), groups=np.repeat(groups, counts)
    )
    assert_allclose(weighed.loglik_, twice.loglik_, rtol=1e-10)
    assert_allclose(weighed.params_, twice.params_, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in some(KINDS, 8) if not kind.startswith("levels")],
)
def test_new_clients_with_rows_of_known_ones_have_their_models(kind):
    wanted, (X, y, groups) = fitted(kind), rows_of(kind)
    few = groups < 3
    model = wanted.adapt(X[few], y[few], groups=groups[few] + 100)
    assert_allclose(model.params_[-3:], wanted.params_[:3], rtol=1e-8, atol=1e-9)
    assert_allclose(model.params_std_[-3:], wanted.params_std_[:3], rtol=1e-8)


@pytest.mark.parametrize("kind", ["diag", "stacked"])
def test_a_constant_column_says_nothing_of_intercepts(kind):
    """Its slope would be a part of them, and its deviation and error made up."""
    X, y, groups = rows_of("stack")
    model = PartialPoolingRegressor(**ONE, covariance=kind, df=np.inf)
    wanted = clone(model).fit(X, y, groups=groups)
    constants = np.column_stack([X, np.full(len(X), 2024.0), np.full(len(X), -3.0)])
    found = model.fit(constants, y, groups=groups)
    kept = [0, 1, -1]  # features, and the intercept
    assert found.loglik_ == pytest.approx(wanted.loglik_)
    for name in ("params_std_", "standard_errors_"):
        assert_allclose(getattr(found, name)[:, kept], getattr(wanted, name), rtol=1e-6)
    assert_allclose(found.covariance_[np.ix_(kept, kept)], wanted.covariance_, rtol=1e-6)
    assert_allclose(found.predict(constants, groups=groups), wanted.predict(X, groups=groups))


@pytest.mark.parametrize("kind", ["levels", "levels of classes"])
def test_constant_columns_beside_groupings(kind):
    X, y, groups = rows_of(kind)
    model = clone(KINDS[kind]).set_params(prior=np.inf)
    wanted = clone(model).fit(X, y, groups=groups)
    columns = np.column_stack([X, np.full(len(X), 2024.0)])
    found = clone(model).fit(columns, y, groups=groups)
    assert found.loglik_ == pytest.approx(wanted.loglik_, abs=1e-5)
    kept = [0, 1, -1]
    assert_allclose(found.standard_errors_[:, kept], wanted.standard_errors_, rtol=1e-3)
    scale = 1e-3 * np.abs(wanted.covariance_).max()
    assert_allclose(found.covariance_[np.ix_(kept, kept)], wanted.covariance_, atol=scale)


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
def test_bends_share_their_variance_beside_groupings(loss):
    """``crossed=[]`` is no grouping and, of squared error, the same likelihood."""
    kind = "splines" if loss == "squared_error" else "splines of classes"
    X, y, groups = rows_of(kind)
    cls = PartialPoolingRegressor if loss == "squared_error" else PartialPoolingClassifier
    about = {"n_clusters": 1, "basis": SplineBasis(4), "covariance": "diag", "prior": np.inf}
    beside = cls(**about, crossed=[]).fit(X, y, groups=groups)
    variances = np.diag(beside.covariance_)
    scale = beside._scaling.scale
    bends = [k for k, name in enumerate(beside.coef_names_) if "x0 curve" in name]
    spread = variances[bends] * np.square(scale[bends])
    assert_allclose(spread, spread[0], rtol=1e-6)
    if loss == "squared_error":
        wanted = cls(**about, df=np.inf).fit(X, y, groups=groups)
        assert beside.loglik_ == pytest.approx(wanted.loglik_, abs=1e-4)
        assert beside.bic_ == pytest.approx(wanted.bic_, abs=1e-4)
        auto = cls(**about | {"covariance": "auto"}, crossed=[]).fit(X, y, groups=groups)
        assert "full" not in auto.bic_path_["covariance_type"]


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 7.0), "one client"])
def test_a_column_with_the_spread_of_its_mean_is_no_constant(values):
    """Nor is one that is constant for all clients but one."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 20)
    x = np.ones(240) if values == "one client" else np.resize(values, 240)
    if values == "one client":
        x[:20] += rng.normal(size=20)
    slopes = rng.normal(size=12) * (values != "one client")
    y = slopes[groups] * x + rng.normal(size=240)
    model = PartialPoolingRegressor(**ONE, covariance="diag", prior=np.inf, df=np.inf)
    model.set_params(standardize=True).fit(x[:, None], y, groups=groups)
    errors = model.standard_errors_[0, 0]
    wanted = model.set_params(standardize=False).fit(x[:, None], y, groups=groups)
    # Of a diagonal covariance in other units.
    assert_allclose(errors, wanted.standard_errors_[0, 0], rtol=0.3)
    if values != "one client":
        assert np.sqrt(model.covariance_[0, 0]) * np.max(values) > 0.5
