"""Trees: those of the pooled rows, invariances, federations, what is published and refused."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from corners import booster, corners
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.inspection import partial_dependence
from sklearn.tree import DecisionTreeRegressor
from trials import some

from skcfl import PartialPooling, PartialPoolingClassifier, PartialPoolingRegressor, TreeBasis
from skcfl.exceptions import PrivacyError
from skcfl.federation import InProcessFederation
from skcfl.inspection import EffectDisplay
from skcfl.numerics.regression_trees import (
    LEAF,
    VALUE,
    dependence,
    empty_tree,
    forest_outputs,
    leaves_of,
    padded,
)
from skcfl.pooling.boosting import grown

FEW = TreeBasis(n_trees=10, learning_rate=0.3, max_bins=32)


@pytest.fixture(scope="module")
def fitted():
    X, y, groups = corners()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    return PartialPoolingRegressor(basis=FEW).fit(frame, y, groups=groups)


@pytest.mark.parametrize("max_leaf_nodes", [2, 5, 16])
def test_a_tree_is_scikit_learns_on_the_pooled_rows(max_leaf_nodes):
    """Grown from sums of histograms over twelve clients, on residuals without random effects."""
    X, y, groups = corners()
    basis = TreeBasis(1, max_leaf_nodes, learning_rate=1.0, max_bins=16, min_samples_leaf=7)
    basis.set_params(l2_regularization=0.0)
    found, bins = booster("numbers", (X, y, groups), basis)
    kept = found.population
    found.population.covariance[:] = 0.0
    residual = y - X @ kept.means[0, :-1] - kept.means[0, -1]
    found.stage(1)
    leaf = leaves_of(X, found.trees[0])
    limits = {"max_leaf_nodes": max_leaf_nodes, "min_samples_leaf": 7, "random_state": 0}
    tree = DecisionTreeRegressor(**limits).fit(bins, residual)
    assert len(np.unique(leaf)) == max_leaf_nodes
    assert_allclose(found.trees[0, leaf, VALUE], tree.predict(bins), atol=1e-10)
    limits.update(max_iter=1, learning_rate=1.0, max_depth=None, early_stopping=False)
    boosted = HistGradientBoostingRegressor(**limits).fit(bins, residual)
    wanted = boosted.predict(bins) - residual.mean()
    assert_allclose(found.trees[0, leaf, VALUE] - residual.mean(), wanted, atol=1e-5)


def test_leaf_values_are_generalised_least_squares():
    X, y, groups = corners()
    basis = TreeBasis(1, 4, learning_rate=1.0, max_bins=16, l2_regularization=0.5)
    found, _ = booster("numbers", (X, y, groups), basis)
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


def test_a_search_without_a_gain_ends_after_one_stage():
    X, _, groups = corners()
    y = X.sum(axis=1) + np.random.default_rng(0).normal(size=len(X))
    start, _ = booster("numbers", (X, y, groups), TreeBasis())
    forest = grown(start.base, start.cuts, start.basis, start.options)
    assert forest.n_rounds == 0 and len(forest.losses) == 2


def test_trees_that_still_gain_become_larger(monkeypatch):
    monkeypatch.setattr("skcfl.pooling.boosting.LARGER_AFTER", 3)
    rows = corners(n=60)
    found, small = (booster("numbers", rows, TreeBasis(6, most))[0] for most in ("auto", 8))
    for each in (found, small):
        each.stage(4)
    found.stage(2)
    assert_array_equal(found.trees[:3], padded(small.trees[:3], 12))
    n_leaves = 1 + (found.trees[:, :, LEAF] >= 0).sum(axis=1)
    assert (n_leaves[:3] == 8).all() and (n_leaves[3:] == 12).all()  # of 720 rows
    model = PartialPoolingRegressor(basis=TreeBasis(6)).fit(*rows[:2], groups=rows[2])
    assert model._effects[0].forest.trees.shape == (6, 12, 5)


def test_leaves_and_values_that_rows_keep_are_those_made_anew():
    """Trees that grow, and others; forests that grow, shrink, get room, and others."""
    rng = np.random.default_rng(0)
    X, cache, trees, found = rng.normal(size=(40, 2)), {}, [], []
    for _ in range(6):
        tree = empty_tree(6)
        for k in range(1, rng.integers(2, 6)):
            tree = tree.copy()
            tree[k, :VALUE] = rng.integers(k), rng.integers(2), rng.normal()
            found.append((leaves_of(X, tree, cache), leaves_of(X, tree)))
        tree[:, VALUE] = rng.normal(size=6)
        trees.append(tree)
    trees = np.array(trees)
    for part in (trees[:2], trees[:4], trees[:2], trees[2:], padded(trees[2:], 9), trees[:0]):
        found.append((forest_outputs(X, part, 2, cache), forest_outputs(X, part, 2)))
    for kept, anew in found:
        assert_array_equal(kept, anew)
    kept = forest_outputs(X, trees, 2, cache)
    assert np.ptp(kept, axis=0).min() > 0.1
    assert_array_equal(forest_outputs(np.zeros((40, 2)), trees, 2, cache), kept)


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
    assert_allclose(forest_outputs(X, ours[None], 1)[:, 0], tree.predict(X), atol=1e-12)
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


def test_looks_are_cheap_where_the_truth_is_linear():
    groups, cheap, seeds = np.repeat(np.arange(20), 15), 0, some(range(6), 1)
    for seed in seeds:
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
    assert cheap >= len(seeds) * 2 / 3


def test_looks_see_curves_of_the_clients_own():
    """Parabolas that cancel in the mean: of variance, and of no common curve."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 20)
    X = np.tile(rng.normal(size=(20, 1)), (20, 1))  # the same for all, so that they cancel
    y = np.where(groups % 2, 1.0, -1.0) * X[:, 0] ** 2 + 0.5 * rng.normal(size=400)
    model = PartialPoolingRegressor(covariance="diag", random_state=0).fit(X, y, groups=groups)
    assert model.basis_ == "splines"


def test_intervals_hold_new_rows():
    """The noise that trees leave in their own rows is too small: what they miss is added."""
    n, rng = 400, np.random.RandomState(0)
    X, y = make_friedman1(n + 2000, n_features=6, noise=1.0, random_state=0)
    groups = rng.randint(15, size=len(y))
    y += 2.0 * rng.standard_normal(15)[groups]
    model = PartialPoolingRegressor(basis="trees", n_clusters=1)
    model.fit(X[:n], y[:n], groups=groups[:n])
    assert model.dispersion_ < 1.0
    mean, std = model.predict(X[n:], groups=groups[n:], return_std=True)
    assert 0.93 < np.mean(np.abs(y[n:] - mean) < 1.96 * std) < 0.99
    assert (std**2 > model.dispersion_ + 1.0).all()
