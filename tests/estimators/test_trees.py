"""Trees: those of the pooled rows, invariances, federations, what is published and refused."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import partial_dependence
from sklearn.tree import DecisionTreeRegressor
from trials import some

from skcfl import PartialPooling, PartialPoolingClassifier, PartialPoolingRegressor, TreeBasis
from skcfl.exceptions import PrivacyError
from skcfl.federation import InProcessFederation
from skcfl.federation.inprocess import open_rows
from skcfl.inspection import EffectDisplay
from skcfl.models import LinearModel
from skcfl.numerics.regression_trees import (
    VALUE,
    dependence,
    empty_tree,
    forest_values,
    leaves_of,
)
from skcfl.pooling.boosting import Booster
from skcfl.pooling.em import Options

FEW = TreeBasis(n_trees=10, learning_rate=0.3, max_bins=32)
FEWER = TreeBasis(n_trees=3, learning_rate=0.3, max_bins=16)


def corners(n_clients=12, n=25, seed=0):
    """A step where two features change their signs, slopes and intercepts of the clients."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n)
    X = rng.normal(size=(len(groups), 3))
    slopes, intercepts = 1.0 + 0.6 * rng.normal(size=n_clients), rng.normal(size=n_clients)
    y = np.where(X[:, 0] * X[:, 1] > 0, 1.5, -1.5) + slopes[groups] * X[:, 2]
    return X, y + 0.2 * rng.normal(size=len(y)) + intercepts[groups], groups


def booster(X, y, groups, basis, weights=None, random=True):
    """A booster of rows in this process, and its bins."""
    n_features = X.shape[1]
    n_clients = groups.max() + 1
    model = LinearModel(alpha=0.0, standardize=False).bind(n_features)
    pool = open_rows(model, X, y, groups, n_clients, weights)
    free = np.arange(n_features + 1) == n_features
    options = Options(
        max_iter=20,
        tol=1e-4,
        prior="auto",
        free=free,
        varying=np.full(n_features + 1, random),
        dispersion_of=model.describe_loss().dispersion_of,
    )
    shares = np.arange(1, basis.max_bins) / basis.max_bins
    cuts = np.quantile(X, shares, axis=0, method="averaged_inverted_cdf").T + 1e-9
    return Booster(pool, np.ascontiguousarray(cuts), basis, options), cuts


def bins(X, cuts):
    return np.column_stack([np.searchsorted(c, x) for c, x in zip(cuts, X.T, strict=True)])


@pytest.mark.parametrize("max_leaf_nodes", [2, 5, 16])
def test_a_tree_is_scikit_learns_on_the_pooled_rows(max_leaf_nodes):
    """Grown from sums of histograms over twelve clients, on residuals without random effects."""
    X, y, groups = corners()
    basis = TreeBasis(1, max_leaf_nodes, learning_rate=1.0, max_bins=16, min_samples_leaf=7)
    basis.set_params(l2_regularization=0.0)
    found, cuts = booster(X, y, groups, basis)
    kept = found.population
    found.population.covariance[:] = 0.0
    residual = y - X @ kept.means[0, :-1] - kept.means[0, -1]
    found.stage(1)
    leaf = leaves_of(X, found.trees[0])
    limits = {"max_leaf_nodes": max_leaf_nodes, "min_samples_leaf": 7, "random_state": 0}
    tree = DecisionTreeRegressor(**limits).fit(bins(X, cuts), residual)
    assert len(np.unique(leaf)) == max_leaf_nodes
    assert_allclose(found.trees[0, leaf, VALUE], tree.predict(bins(X, cuts)), atol=1e-10)
    limits.update(max_iter=1, learning_rate=1.0, max_depth=None, early_stopping=False)
    boosted = HistGradientBoostingRegressor(**limits).fit(bins(X, cuts), residual)
    wanted = boosted.predict(bins(X, cuts)) - residual.mean()
    assert_allclose(found.trees[0, leaf, VALUE] - residual.mean(), wanted, atol=1e-5)


def test_leaf_values_are_generalised_least_squares():
    X, y, groups = corners()
    basis = TreeBasis(1, 4, learning_rate=1.0, max_bins=16, l2_regularization=0.5)
    found, _ = booster(X, y, groups, basis)
    kept = found.population
    found.stage(1)
    D = np.column_stack([X, np.ones(len(X))])
    same = groups[:, None] == groups
    V = kept.dispersion * np.eye(len(y)) + same * ((D * kept.covariance) @ D.T)
    H = leaves_of(X, found.trees[0])[:, None] == np.arange(4)
    P = kept.dispersion * np.linalg.inv(V)
    right = H.T @ P @ (y - D @ kept.means[0])
    wanted = np.linalg.solve(H.T @ P @ H + 0.5 * np.eye(4), right)
    assert_allclose(found.trees[0, :, VALUE], wanted, rtol=1e-9)


@pytest.fixture(scope="module")
def fitted():
    X, y, groups = corners()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    return PartialPoolingRegressor(basis=FEW).fit(frame, y, groups=groups)


def test_the_corners_are_found(fitted):
    X, y, groups = corners()
    lines = PartialPoolingRegressor(1, basis="linear").fit(X, y, groups=groups)
    assert fitted.basis_ == "trees"
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    assert lines.score(X, y, groups=groups) < 0.6 < 0.9 < fitted.score(frame, y, groups=groups)
    assert fitted.feature_importances_[:2].min() > 0.2 > fitted.feature_importances_[2]
    assert_allclose(fitted.feature_importances_.sum(), 1.0)
    assert not hasattr(lines, "feature_importances_")
    assert "10 trees" in fitted.summary() and "trees" not in lines.summary()
    again = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(again.predict(frame, groups=groups), fitted.predict(frame, groups=groups))


def test_predictions_of_single_clients(fitted):
    X, y, groups = corners()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    plain = fitted.client_model(3)
    same = np.full(len(X), 3)
    assert_allclose(plain.predict(X), fitted.predict(frame, groups=same), rtol=1e-9)
    assert type(plain[-1]).__module__.startswith("sklearn.")
    _, std = fitted.predict(frame, groups=groups, return_std=True)
    assert (std > 0).all()
    some = groups < 2
    adapted = fitted.adapt(frame[some], y[some], groups=groups[some] + 50)
    assert_allclose(adapted.params_[-2:], fitted.params_[:2], rtol=0.3, atol=0.2)
    updated = fitted.update(frame[some], y[some], groups=groups[some])
    assert updated.score(frame, y, groups=groups) > 0.85
    assert_array_equal(fitted.assign(frame, y, groups=groups), fitted.labels_)
    mean = fitted.predict(frame, groups=groups) - fitted.predict_cluster(frame, 0)
    raw = (fitted.params_ - fitted.cluster_params_[0])[groups]
    assert_allclose(mean, (raw[:, :-1] * X).sum(axis=1) + raw[:, -1], atol=1e-9)


def as_array(tree):
    """A fitted tree of scikit-learn as an array of splits."""
    t, out, number, leaf = tree.tree_, empty_tree(tree.get_n_leaves()), {0: 0}, 1
    for node in range(t.node_count):  # parents come first
        at = number[node]
        if t.children_left[node] < 0:
            out[at, VALUE:] = t.value[node, 0, 0], t.n_node_samples[node]
            continue
        out[leaf, :VALUE] = at, t.feature[node], t.threshold[node]
        number[t.children_left[node]], number[t.children_right[node]] = at, leaf
        leaf += 1
    return out


def test_dependence_is_scikit_learns():
    X, y, _ = corners()
    X = X.astype(np.float32)  # as scikit-learn compares
    tree = DecisionTreeRegressor(max_depth=4, random_state=0).fit(X, y)
    ours = as_array(tree)
    assert_allclose(forest_values(X, ours[None]), tree.predict(X), atol=1e-12)
    for j in range(3):
        how = {"method": "recursion", "kind": "average", "grid_resolution": 9}
        wanted = partial_dependence(tree, X, [j], **how)
        x = wanted["grid_values"][0]
        assert len(np.unique(wanted["average"])) > 1
        assert_allclose(dependence(ours[None], j, x), wanted["average"][0], atol=1e-9)


def test_effects_of_features(fitted):
    X, _, _ = corners()
    x, effect, std = fitted.partial_effect("c")
    assert np.corrcoef(effect, x)[0, 1] > 0.99 and (std > 0).all()
    for j in range(3):
        _, over_rows, _ = fitted.partial_effect(j, values=X[:, j])
        assert_allclose(over_rows.mean(), 0.0, atol=1e-8)
    x, effects, _ = fitted.partial_effect(0, groups=[3, 5])
    slopes = fitted.coef_[3, 0] - fitted.coef_[5, 0]
    assert_allclose(effects[0] - effects[1], slopes * (x - X[:, 0].mean()), atol=1e-9)
    display = EffectDisplay.from_estimator(fitted, "c", groups=[0, 4])
    assert_allclose(display.line_.get_ydata(), effect)
    plt.close("all")


def test_few_trees_or_none_where_the_truth_is_linear():
    counts = []
    seeds = some(range(4), 2)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(12), 15)
        X = rng.normal(size=(180, 2))
        y = X @ [1.0, -2.0] + rng.normal(size=180)
        model = PartialPoolingRegressor(basis="trees", covariance="diag").fit(X, y, groups=groups)
        counts.append(len(model._effects[0].forest.trees))
        if not counts[-1]:  # then the fit is that of straight lines
            lines = PartialPoolingRegressor(basis="linear", covariance="diag").fit(
                X, y, groups=groups
            )
            got, wanted = (each.predict(X, groups=groups) for each in (model, lines))
            assert_allclose(got, wanted, rtol=1e-9)
            assert_array_equal(model.feature_importances_, 0.0)
    assert counts.count(0) >= len(seeds) / 2 and max(counts) <= 15


@pytest.mark.parametrize("case", ["few rows", "one client", "constant", "rows alone"])
def test_small_and_flat_tables(case):
    X, y, groups = corners(n_clients=6, n=8)
    if case == "few rows":
        X, y, groups = X[:5], y[:5], groups[:5]
    elif case == "one client":
        groups = np.zeros_like(groups)
    elif case == "constant":
        X[:, 1] = 3.0
    else:
        groups = np.arange(len(y))
    for basis in (FEWER, "trees")[: 2 if case == "few rows" else 1]:
        model = PartialPoolingRegressor(basis=basis, covariance="diag").fit(X, y, groups=groups)
        assert np.isfinite(model.predict(X, groups=groups)).all()
    if case == "constant":
        assert model.feature_importances_[1] == 0.0


def test_what_trees_cannot_be_beside():
    X, y, groups = corners(n_clients=6, n=8)
    with pytest.raises(ValueError, match="basis='trees' cannot be beside crossed or nested"):
        PartialPoolingRegressor(basis=FEW, crossed=[2]).fit(X, y, groups=groups)
    for model, target in ((PartialPoolingRegressor, y), (PartialPoolingClassifier, y > 0)):
        with pytest.raises(ValueError, match="X must be dense"):
            model(basis=FEW).fit(sparse.csr_array(X), target, groups=groups)
    with pytest.raises(ValueError, match="learning_rate"):
        PartialPoolingRegressor(basis=TreeBasis(learning_rate=0.0)).fit(X, y, groups=groups)
    bounds = {"features": (-3, 3), "target": (-4, 4)}
    federation = InProcessFederation(X, y, groups)
    for private in (federation.private(4.0, bounds=bounds), federation.masked(3, bounds)):
        with pytest.raises(PrivacyError, match="basis must be 'auto' or 'linear' where clients"):
            PartialPoolingRegressor(basis="trees").fit_federation(private)
    model = PartialPooling(basis=TreeBasis()).set_params(basis__n_trees=2)
    assert len(model.fit(X, y, groups=groups)._effects[0].forest.trees) == 2


def test_auto_takes_trees_where_features_act_together():
    """And goes on with the trees that were judged: those of the same fit by name."""
    X, y, groups = corners(n_clients=8, n=15)
    auto = PartialPoolingRegressor(basis="auto", covariance="diag").fit(X, y, groups=groups)
    named = PartialPoolingRegressor(basis="trees", covariance="diag").fit(X, y, groups=groups)
    assert auto.basis_ == "trees"
    assert auto.basis_losses_["trees"] < auto.basis_losses_["linear"]
    assert_array_equal(auto._effects[0].forest.trees, named._effects[0].forest.trees)
    assert_array_equal(auto.params_, named.params_)


def test_looks_are_cheap_where_the_truth_is_linear():
    groups, cheap = np.repeat(np.arange(20), 15), 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(300, 3))
        y = X @ [1.0, -2.0, 0.5] + rng.normal(size=20)[groups] + rng.normal(size=300)
        lines = PartialPoolingRegressor(basis="linear", random_state=0).fit(X, y, groups=groups)
        auto = PartialPoolingRegressor(random_state=0).fit(X, y, groups=groups)
        assert auto.basis_ == "linear"
        assert_array_equal(auto.params_, lines.params_)
        if auto.basis_losses_ == {}:
            cheap += 1
            # Looks go in the exchanges of the fit; most of what they send are quantiles.
            assert auto.calls_ <= lines.calls_ + 5
            assert auto.floats_up_ < 1.35 * lines.floats_up_
    assert cheap >= 2


def test_looks_see_curves_of_the_clients_own():
    """Parabolas that cancel in the mean: of variance, and of no common curve."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 20)
    X = np.tile(rng.normal(size=(20, 1)), (20, 1))  # the same for all, so that they cancel
    y = np.where(groups % 2, 1.0, -1.0) * X[:, 0] ** 2 + 0.5 * rng.normal(size=400)
    model = PartialPoolingRegressor(covariance="diag", random_state=0).fit(X, y, groups=groups)
    assert model.basis_ == "splines"
