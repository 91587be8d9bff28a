"""Trees under losses that are no parabolas: Newton trees of the pooled rows, and what fits are."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from corners import KINDS, booster, corners, estimator
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from trials import some

from skcfl import TreeBasis
from skcfl.federation import InProcessFederation
from skcfl.inspection import EffectDisplay
from skcfl.models.losses import Gamma, Logistic, Poisson
from skcfl.models.losses.log_loss import Multinomial
from skcfl.models.losses.shifted import Shifted
from skcfl.numerics.regression_trees import VALUE, forest_outputs, leaves_of
from skcfl.pooling.basis_choice import _merged
from skcfl.pooling.boosting import MOST_STEP

FEW = TreeBasis(n_trees=8, learning_rate=0.4, max_bins=32)
#: Loss, and number of classes, of each kind of targets.


every_kind = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "numbers"])


def about_constants(kind, basis, root, dispersion=1.0):
    """A booster about constants, the bins of the rows, and the constants."""
    X, y, groups = corners(kind, n=30)
    found, bins = booster(kind, (X, y, groups), basis)
    n_classes = KINDS[kind][1]
    mean = np.bincount(y) / len(y) if n_classes else np.array([y.mean()])
    constants = np.log(mean[1:] / mean[0]) if n_classes == 2 else np.log(mean)
    constants = constants - constants.mean() * (n_classes == 3)
    found.population.means[:] = 0.0
    found.population.means[0, 3::4] = constants
    found.population.covariance[:] = root**2
    found.population.dispersion = dispersion
    return found, bins, constants


@every_kind
@pytest.mark.parametrize("max_leaf_nodes", [3, 12])
def test_a_round_is_scikit_learns_on_the_pooled_rows(kind, max_leaf_nodes):
    """Each output has a Newton tree, from sums over twelve clients without random effects.

    Trees of several outputs go in the exchanges of one.
    """
    basis = TreeBasis(1, max_leaf_nodes, 1.0, 16, min_samples_leaf=9, l2_regularization=1.0)
    found, bins, constants = about_constants(kind, basis, 0.0)
    before = found.pool.ledger.calls
    found.grow()
    assert found.pool.ledger.calls - before <= max_leaf_nodes + 1
    (loss, n_classes), (X, y, _) = KINDS[kind], corners(kind, n=30)
    limits = {"max_leaf_nodes": max_leaf_nodes, "min_samples_leaf": 9, "max_depth": None}
    limits |= {"max_iter": 1, "learning_rate": 1.0, "early_stopping": False}
    limits["l2_regularization"] = 1.0
    if n_classes:
        boosted = HistGradientBoostingClassifier(**limits)
    else:
        boosted = HistGradientBoostingRegressor(loss=loss, **limits)
    wanted = boosted.fit(bins, y)._raw_predict(bins).reshape(len(y), -1)
    added = forest_outputs(X, found.trees, len(constants))
    assert len(np.unique(added[:, 0])) == max_leaf_nodes
    # Steps beyond MOST_STEP are cut.
    wanted = np.clip(wanted - constants, -MOST_STEP, MOST_STEP)
    assert_allclose(added, wanted, atol=2e-5)


@every_kind
def test_leaf_values_are_a_newton_step_of_the_joint_likelihood(kind):
    """Of values and random coefficients, which are at their modes given the trees before."""
    basis = TreeBasis(2, 4, learning_rate=1.0, max_bins=16, l2_regularization=0.5)
    root, dispersion = np.linspace(0.3, 0.6, 4), 1.3
    C = 3 if kind == "three classes" else 1
    found, *_ = about_constants(kind, basis, np.tile(root, C), dispersion)
    found.grow()
    first = found.trees.copy()
    found.grow()
    X, y, groups = corners(kind, n=30)
    model = found.pool.model
    y = model.encode(y, len(y)).T
    D, kernel = np.column_stack([X, np.ones(len(X))]), model.kernel
    theta = found.population.means[0].reshape(C, 4)
    fixed = theta @ D.T + forest_outputs(X, first, C).T
    n_clients, leaf = groups.max() + 1, [leaves_of(X, tree) for tree in found.trees[C:]]

    def raw(u):
        b = root * u.reshape(n_clients, C, 4)
        return fixed + np.einsum("ncd,nd->cn", b[groups], D)

    def value(u):
        r = kernel.gradient(raw(u), y) / dispersion
        slopes = np.zeros((n_clients, C, 4))
        np.add.at(slopes, groups, r.T[:, :, None] * D[:, None])
        rows = kernel.value(raw(u), y).sum() / dispersion
        return rows + 0.5 * u @ u, (root * slopes).ravel() + u

    u = minimize(value, np.zeros(n_clients * C * 4), jac=True, method="BFGS", tol=1e-9).x
    z = raw(u)
    g, W = -kernel.gradient(z, y), np.zeros((C, C, len(X)))
    for a, outputs, h in kernel.curvature_blocks(z, y):
        W[a, outputs] = W[outputs, a] = h
    for a in range(C):
        H = (leaf[a][:, None] == np.arange(4)).astype(float)
        P, slopes = H.T @ (W[a, a][:, None] * H), H.T @ g[a]
        for i in range(n_clients):
            own = groups == i
            Z = np.kron(np.eye(C), D[own] * root)  # rows of each output, one after the other
            full = np.block([[np.diag(W[b, c, own]) for c in range(C)] for b in range(C)])
            A = np.eye(4 * C) + Z.T @ full @ Z / dispersion
            moved = Z.T @ full[:, a * own.sum() : (a + 1) * own.sum()] @ H[own]
            P -= moved.T @ np.linalg.solve(A, moved) / dispersion
        values = np.linalg.solve(P + 0.5 * np.eye(4), slopes)
        assert_allclose(found.trees[C + a, :, VALUE], values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(), Poisson(), Gamma()])
def test_a_loss_beside_an_offset(loss):
    rng = np.random.default_rng(0)
    C = 3 if isinstance(loss, Multinomial) else 1
    z, offset = rng.normal(size=(2, C, 5))
    drawn = rng.integers(0, C, size=5) if C > 1 else rng.integers(1, 3, size=5)
    y = loss.encode(drawn, C, float).T
    shifted = Shifted(loss, 1, C > 1)
    both = np.concatenate([y, offset])
    assert_allclose(shifted.value(z, both), loss.value(z + offset, y))
    a = shifted.gradient(z, both)
    assert_allclose(a, loss.gradient(z + offset, y))
    # Fenchel's equality holds at the slope of a loss.
    assert_allclose(shifted.value(z, both) + shifted.conjugate(a, both), (a * z).sum(axis=0))
    assert_allclose(shifted.targets_raw(both), loss.targets_raw(y) - offset)
    again = pickle.loads(pickle.dumps(shifted))
    assert again.name == loss.name and again.link == loss.link
    assert_allclose(again.curvature_product(z, both, z), loss.curvature_product(z + offset, y, z))


def test_pruned_trees():
    """The first splits of a tree grown best leaf first, and which leaves are in theirs."""
    tree = np.full((5, 5), -1.0)
    tree[1:, 0] = 0, 1, 0, 3
    assert_array_equal(_merged(tree, 5, 8), np.eye(5))
    assert_array_equal(_merged(tree, 5, 2), [[1, 0, 0, 1, 1], [0, 1, 1, 0, 0]])


def table(X):
    return pd.DataFrame(X, columns=["a", "b", "c"])


def values_of(model, X, groups):
    output = model.predict_proba if hasattr(model, "classes_") else model.predict
    return output(X, groups=groups)


@pytest.mark.parametrize("kind", KINDS)
def test_fits(kind):
    """Corners are found; a client's plain model, pickles, new clients and new rows go on."""
    X, y, groups = corners(kind, n_clients=8, n=30)
    model = estimator(kind, basis=FEW, covariance="diag", n_clusters=1)
    lines = clone(model).set_params(basis="linear").fit(table(X), y, groups=groups)
    model.fit(table(X), y, groups=groups)
    scores = [fit.score(table(X), y, groups=groups) for fit in (lines, model)]
    assert model.basis_ == "trees" and scores[1] > 0.1 + scores[0]
    if kind == "numbers":
        assert scores[0] < 0.6 < 0.9 < scores[1]
        assert (model.predict(table(X), groups=groups, return_std=True)[1] > 0).all()
    assert not hasattr(lines, "feature_importances_") and "trees" not in lines.summary()
    assert model.feature_importances_[:2].min() > 0.15
    assert_allclose(model.feature_importances_.sum(), 1.0)
    text = "8 trees of each class" if kind == "three classes" else "8 trees that"
    assert text in model.summary()
    found = values_of(model, table(X), groups)
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(values_of(again, table(X), groups), found)
    plain, mine = model.client_model(3), groups == 3
    output = plain.predict_proba if hasattr(model, "classes_") else plain.predict
    assert_allclose(output(X[mine]), found[mine], rtol=1e-9)
    assert type(plain[-1]).__module__.startswith("sklearn.")
    adapted = model.adapt(table(X)[mine], y[mine], groups=groups[mine] + 50)
    assert_allclose(adapted.params_[-1], model.params_[3], rtol=1e-6, atol=1e-7)
    updated = model.update(table(X)[mine], y[mine], groups=groups[mine])
    # Twice the same rows: farther from the population, on the same side.
    moved = updated.params_[3] - model.params_[3]
    assert moved @ (model.params_[3] - model.cluster_params_[0]) > 0
    assert_array_equal(model.assign(table(X), y, groups=groups), model.labels_)
    whole = model.predict_cluster(table(X), 0)
    raw = model.model_.decision(X, model.cluster_params_, np.zeros(len(X), dtype=int))
    raw = raw + forest_outputs(X, model._effects[0].forest.trees, raw.shape[1])
    raw = model.model_.output(raw)
    assert_allclose(whole, model.classes_[raw] if hasattr(model, "classes_") else raw)
    # Clients of a federation have the same models, given their rows.
    federation = InProcessFederation(X, y, groups)
    pool = model._pool_of(federation, model._hello_of(federation, model._kind()))
    found = pool.units.to_user(model._models_of(pool)[1])
    assert_allclose(found, model.params_, rtol=1e-6, atol=1e-7)
    if kind != "three classes":
        _, over_rows, _ = model.partial_effect("a", values=X[:, 0])
        assert_allclose(over_rows.mean(), 0.0, atol=1e-8)
        EffectDisplay.from_estimator(model, "a", groups=[0, 4])
        plt.close("all")


@pytest.mark.parametrize("kind", some(["classes", "numbers"], 1))
def test_auto_takes_trees_where_features_act_together(kind):
    """And goes on with the trees that were judged: those of the same fit by name."""
    X, y, groups = corners(kind, 6, 15 if kind == "numbers" else 40)
    one = {"covariance": "diag", "n_clusters": 1}
    auto = estimator(kind, **one).fit(X, y, groups=groups)
    named = estimator(kind, **one, basis="trees").fit(X, y, groups=groups)
    assert auto.basis_ == "trees"
    assert auto.basis_losses_["trees"] < auto.basis_losses_["linear"]
    assert_array_equal(auto._effects[0].forest.trees, named._effects[0].forest.trees)
    assert_array_equal(auto.params_, named.params_)


@pytest.mark.parametrize(("kind", "seed"), [("amounts", 1), ("counts", 0), ("numbers", 0)])
def test_levels_of_one_row_do_not_judge_trees(kind, seed):
    """Held out, such a level is constant in the training rows: a part of the intercept."""
    X, y, groups = corners(kind, n_clients=8, n=30, seed=seed)
    rare = np.eye(len(X))[:, np.random.default_rng(seed).choice(len(X), 4, replace=False)]
    model = estimator(kind, basis="trees", covariance="diag", n_clusters=1)
    without, beside = (
        clone(model).fit(rows, y, groups=groups)._effects[0].forest.losses
        for rows in (X, np.column_stack([X, rare]))
    )
    assert beside[0] < 1.1 * without[0] and beside.min() < 0.8 * beside[0]


CASES = [("numbers", case) for case in ("few rows", "one client", "rows alone", "constant")]
CASES += [("classes", case) for case in ("few rows", "one client", "rows alone", "one class")]
CASES += [("classes", "separable"), ("counts", "large features")]
CASES += [("counts", "large counts"), ("counts", "large outlier")]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_small_and_extreme_tables(kind, case):
    """Rows that say little, or are of extreme size."""
    X, y, groups = corners(kind, n_clients=6, n=8)
    rows = {
        "few rows": (X[:5], y[:5] if kind == "numbers" else np.arange(5) % 2, groups[:5]),
        "one client": (X, y, 0 * groups),
        "rows alone": (X, y, np.arange(len(y))),
        "constant": (np.where(np.arange(3) == 1, 3.0, X), y, groups),
        "one class": (X, np.where(groups == 2, 1, y), groups),
        "separable": (X, (X[:, 0] > 0).astype(int), groups),
        "large features": (X * 1e9 + 1e11, y, groups),
        "large counts": (X, y * 1e7, groups),
        "large outlier": (X, np.where(np.arange(len(y)) == 0, 10**9, y), groups),
    }[case]
    few = TreeBasis(3, learning_rate=0.5, max_bins=16)
    for basis in (few, "trees") if case == "few rows" else (few,):
        model = estimator(kind, basis=basis, covariance="diag", n_clusters=1)
        model.fit(*rows[:2], groups=rows[2])
        found = values_of(model, rows[0], rows[2])
        assert np.isfinite(found).all() and np.isfinite(model._effects[0].forest.trees).all()
    if case == "large features":
        plain = clone(model).fit(X, y, groups=groups)
        assert_allclose(found, values_of(plain, X, groups), rtol=1e-4)
    if case == "constant":
        assert model.feature_importances_[1] == 0.0
