"""Trees under losses that are no parabolas: Newton trees of the pooled rows, and what fits are."""

import pickle

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from trials import some

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor, TreeBasis
from skcfl.federation import InProcessFederation
from skcfl.federation.inprocess import open_rows
from skcfl.inspection import EffectDisplay
from skcfl.models import LinearModel
from skcfl.models.losses import Gamma, Logistic, Poisson
from skcfl.models.losses.log_loss import Multinomial
from skcfl.models.losses.shifted import Shifted
from skcfl.numerics.regression_trees import VALUE, forest_outputs, leaves_of
from skcfl.pooling.basis_choice import _merged
from skcfl.pooling.boosting import MOST_STEP, Booster
from skcfl.pooling.em import Options

FEW = TreeBasis(n_trees=8, learning_rate=0.4, max_bins=32)
#: Loss, and number of classes, of each kind of targets.
KINDS = {
    "classes": ("log_loss", 2),
    "three classes": ("log_loss", 3),
    "counts": ("poisson", None),
    "amounts": ("gamma", None),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def corners(kind, n_clients=12, n=30, seed=0):
    """Targets with a step where two features change their signs, and levels of the clients."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n)
    X = rng.normal(size=(len(groups), 3))
    raw = np.where(X[:, 0] * X[:, 1] > 0, 1.5, -1.5) + X[:, 2] + rng.normal(size=n_clients)[groups]
    if kind == "classes":
        return X, (raw + rng.logistic(size=len(raw)) > 0).astype(int), groups
    if kind == "three classes":
        return X, np.digitize(raw + rng.logistic(size=len(raw)), [-1.0, 1.0]), groups
    mean = np.exp(raw / 2)
    return X, (rng.poisson(mean) if kind == "counts" else rng.gamma(3.0, mean / 3)), groups


def estimator(kind, **options):
    loss, n_classes = KINDS[kind]
    if n_classes:
        return PartialPoolingClassifier(**options)
    return PartialPoolingRegressor(loss=loss, **options)


def booster(kind, basis, root, dispersion=1.0):
    """A booster of rows in this process about constants, its bins, and rows."""
    (loss, n_classes), (X, y, groups) = KINDS[kind], corners(kind)
    model = LinearModel(loss, alpha=0.0, standardize=False).bind(3, n_classes)
    pool = open_rows(model, X, y, groups, groups.max() + 1)
    free = np.tile(np.arange(4) == 3, model.n_outputs)
    options = Options(5, 1e-3, "auto", free, np.ones(len(free), dtype=bool), None)
    shares = np.arange(1, basis.max_bins) / basis.max_bins
    cuts = np.quantile(X, shares, axis=0, method="averaged_inverted_cdf").T + 1e-9
    found = Booster(pool, np.ascontiguousarray(cuts), basis, options)
    mean = np.bincount(y) / len(y) if n_classes else np.array([y.mean()])
    constants = np.log(mean[1:] / mean[0]) if n_classes == 2 else np.log(mean)
    constants = constants - constants.mean() * (n_classes == 3)
    found.population.means[:] = 0.0
    found.population.means[0, 3::4] = constants
    found.population.covariance[:] = root**2
    found.population.dispersion = dispersion
    return found, cuts, constants


@every_kind
@pytest.mark.parametrize("max_leaf_nodes", [3, 12])
def test_a_round_is_scikit_learns_on_the_pooled_rows(kind, max_leaf_nodes):
    """Each output has a Newton tree, from sums over twelve clients without random effects."""
    basis = TreeBasis(1, max_leaf_nodes, 1.0, 16, min_samples_leaf=9, l2_regularization=1.0)
    found, cuts, constants = booster(kind, basis, 0.0)
    found.grow()
    (loss, n_classes), (X, y, _) = KINDS[kind], corners(kind)
    made = [np.searchsorted(c, x) for c, x in zip(cuts, X.T, strict=True)]
    limits = {"max_leaf_nodes": max_leaf_nodes, "min_samples_leaf": 9, "max_depth": None}
    limits |= {"max_iter": 1, "learning_rate": 1.0, "early_stopping": False}
    limits["l2_regularization"] = 1.0
    if n_classes:
        boosted = HistGradientBoostingClassifier(**limits)
    else:
        boosted = HistGradientBoostingRegressor(loss=loss, **limits)
    boosted.fit(np.column_stack(made), y)
    wanted = boosted._raw_predict(np.column_stack(made)).reshape(len(y), -1)
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
    found, *_ = booster(kind, basis, np.tile(root, C), dispersion)
    found.grow()
    first = found.trees.copy()
    found.grow()
    (_, y, groups), X = corners(kind), corners(kind)[0]
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
    y = loss.encode(
        rng.integers(0, C, size=5) if C > 1 else rng.integers(1, 3, size=5), C, float
    ).T
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
    return (
        model.predict_proba(X, groups=groups)
        if hasattr(model, "classes_")
        else model.predict(X, groups=groups)
    )


@every_kind
def test_fits(kind):
    """Corners are found; a client's plain model, pickles, new clients and new rows go on."""
    X, y, groups = corners(kind)
    model = estimator(kind, basis=FEW, covariance="diag", n_clusters=1)
    lines = clone(model).set_params(basis="linear").fit(table(X), y, groups=groups)
    model.fit(table(X), y, groups=groups)
    assert model.basis_ == "trees" and model.score(table(X), y, groups=groups) > 0.1 + lines.score(
        table(X), y, groups=groups
    )
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
    raw = model.model_.output(
        raw + forest_outputs(X, model._effects[0].forest.trees, raw.shape[1])
    )
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


def test_auto_takes_trees_of_classes():
    """And goes on with the trees that were judged: those of the same fit by name."""
    X, y, groups = corners("classes")
    auto = estimator("classes", covariance="diag").fit(X, y, groups=groups)
    named = estimator("classes", covariance="diag", basis="trees").fit(X, y, groups=groups)
    assert auto.basis_ == "trees"
    assert auto.basis_losses_["trees"] < auto.basis_losses_["linear"]
    assert_array_equal(auto._effects[0].forest.trees, named._effects[0].forest.trees)
    assert_array_equal(auto.params_, named.params_)


@pytest.mark.parametrize("kind", ["classes", "counts"])
def test_auto_keeps_lines_where_the_truth_is_linear(kind):
    kept = []
    for seed in some(range(6), 2):
        rng = np.random.default_rng(seed)
        groups = np.repeat(np.arange(15), 16)
        X = rng.normal(size=(240, 2))
        raw = X @ [0.7, -0.5] + 0.5 * rng.normal(size=15)[groups]
        y = rng.poisson(np.exp(raw)) if kind == "counts" else raw + rng.logistic(size=240) > 0
        model = estimator(kind, covariance="diag").fit(X, y, groups=groups)
        kept.append(model.basis_ == "linear")
    assert np.mean(kept) >= 0.5


def flat(case):
    """Rows that say little, or are of extreme size."""
    kind = "counts" if case.startswith("large") else "classes"
    X, y, groups = corners(kind, n_clients=6, n=8)
    if case == "few rows":
        X, y, groups = X[:5], np.array([0, 1, 0, 1, 1]), groups[:5]
    elif case == "one client":
        groups = np.zeros_like(groups)
    elif case == "rows alone":
        groups = np.arange(len(y))
    elif case == "a client of one class":
        y[groups == 2] = 1
    elif case == "separable":
        y = (X[:, 0] > 0).astype(int)
    elif case == "large features":
        X = X * 1e9 + 1e11
    elif case == "large counts":
        y = y * 1e7
    elif case == "large outlier":
        y[0] = 10**9
    return kind, X, y, groups


CASES = "few rows, one client, rows alone, a client of one class, separable, large features, "
CASES += "large counts, large outlier"


@pytest.mark.parametrize("case", CASES.split(", "))
def test_small_and_extreme_tables(case):
    kind, X, y, groups = flat(case)
    for basis in (TreeBasis(3, learning_rate=0.5, max_bins=16), "trees")[
        : 1 + (case == "few rows")
    ]:
        model = estimator(kind, basis=basis, covariance="diag", n_clusters=1)
        model.fit(X, y, groups=groups)
        found = values_of(model, X, groups)
        assert np.isfinite(found).all() and np.isfinite(model._effects[0].forest.trees).all()
    if case == "large features":
        _, small, y, _ = flat("large counts")
        other = clone(model).fit(small, y / 1e7, groups=groups)
        assert_allclose(found, values_of(other, small, groups), rtol=1e-4)
