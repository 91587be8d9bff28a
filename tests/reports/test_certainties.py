"""Certainties of clusters in reports: how likely a client's rows are without them in the fit."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from scipy.stats import multivariate_normal
from sklearn.base import clone

import skcfl
from skcfl.calls.call import CALLS
from skcfl.calls.curvatures import ErrorsOfModels
from skcfl.datasets import make_clustered_regression
from skcfl.federation import InProcessFederation, SitePolicy
from skcfl.federation.inprocess import open_rows
from skcfl.federation.row_calls import ROW_CALLS
from skcfl.models import LinearModel
from skcfl.reports.words import _Words, certainties_of

DATA = make_clustered_regression(12, 2, 3, n_samples=15, noise=0.5, random_state=0)


def thirds(seed, loss=None, n_clients=15, n=12):
    """Rows of clients of three kinds that can just be seen, and the kinds."""
    rng, away = np.random.default_rng(seed), (5.5 if loss else 3.0) / np.sqrt(n)
    kinds, groups = np.arange(n_clients) % 3, np.repeat(np.arange(n_clients), n)
    X = rng.standard_normal((len(groups), 3))
    y = away * X[np.arange(len(groups)), kinds[groups]]
    y = y + rng.logistic(size=len(y)) > 0 if loss else y + rng.standard_normal(len(y))
    return X, y, groups, kinds


@pytest.mark.parametrize(
    "kind",
    ["IFCARegressor", "CLoVERegressor", "FedEMRegressor", "PartialPoolingRegressor"]
    + ["IFCAClassifier"],
)
def test_certainties_are_how_often_labels_are_right(kind):
    """Clusters know their own clients too well, and with few rows their models have errors."""
    said, right = [], []
    for seed in range(16):
        loss = "log_loss" if kind.endswith("Classifier") else None
        X, y, groups, kinds = thirds(seed, loss)
        more = {"basis": "linear"} if kind.startswith("Partial") else {}
        model = getattr(skcfl, kind)(3, random_state=0, **more).fit(X, y, groups=groups)
        counts = np.array([np.bincount(kinds[model.labels_ == k], minlength=3) for k in range(3)])
        kind_of = linear_sum_assignment(-counts)[1]
        said.append(certainties_of(model)[np.arange(15), model.labels_])
        right.append(kind_of[model.labels_] == kinds)
    assert abs(np.mean(said) - np.mean(right)) < 0.05


def test_certainties_are_of_rows_predicted_without_them():
    """By the other clients of the cluster and a prior of one row, of normal noise exactly."""
    X, y, groups, _ = thirds(0)
    y[groups == 4] += 9.0  # a cluster of its own
    model = skcfl.IFCARegressor(3, random_state=0, n_init=5).fit(X, y, groups=groups)
    ids, A = np.arange(15), np.column_stack([X, np.ones(len(X))])
    prior, pooled = A.T @ A / len(y), np.linalg.lstsq(A, y, rcond=None)[0]
    assert 1 in model.cluster_sizes_
    found = model._how_sure.marginals.sum(axis=2)
    for i in ids:
        mine = groups == i
        for k in range(3):
            others = np.isin(groups, ids[(model.labels_ == k) & (ids != i)])
            if len(np.unique(groups[others])) == 1:
                continue  # the curvature of one client's rows is not asked for
            B = A[others]
            curvature = B.T @ B + prior
            theta = np.linalg.solve(curvature, B.T @ y[others] + prior @ pooled)
            spread = np.eye(mine.sum()) + A[mine] @ np.linalg.solve(curvature, A[mine].T)
            wanted = -multivariate_normal.logpdf(y[mine], A[mine] @ theta, spread)
            assert_allclose(found[i, k] + 6 * np.log(2 * np.pi), wanted, rtol=1e-6)
    others = model.cluster_sizes_ - np.eye(3)[model.labels_]
    losses, widths = np.moveaxis(model._how_sure.marginals, 2, 0)
    noise, degrees = _Words(model, None)._dispersion()
    gaps = (losses - losses.min(axis=1, keepdims=True)) / noise
    likely = (others + 1) * np.exp(-widths) * (1 + 2 * gaps / degrees) ** (-degrees / 2)
    assert_allclose(certainties_of(model), likely / likely.sum(axis=1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("root", [None, 0.4 * np.ones(2), np.array([[0.4, 0.0], [0.2, 0.1]])])
def test_errors_of_models_are_integrated(share, root):
    """Of normal noise exactly, without the share that a client's rows had in the fit."""
    rng = np.random.default_rng(0)
    X, theta, L = rng.normal(size=(7, 2)), rng.normal(size=2), np.array([[0.2, 0.1], [0.0, 0.3]])
    y = X @ theta + rng.normal(size=7)
    linear = LinearModel("squared_error", alpha=0.3, fit_intercept=False, standardize=False)
    pool = open_rows(linear.bind(2, None), X, y, np.zeros(7, dtype=int), 1)
    found = np.sum(pool.ask(ErrorsOfModels, theta[None], L[None], [[share]], root))
    S = np.zeros((2, 2)) if root is None else np.diag(root) if root.ndim == 1 else root
    noise = np.eye(7) + X @ S @ S.T @ X.T
    pull, H = (X.T @ np.linalg.solve(noise, part) for part in (X @ theta - y, X))
    left = np.linalg.inv(np.linalg.inv(L @ L.T) - share * H)
    mean, spread = X @ (theta + share * left @ pull), noise + X @ left @ X.T
    wanted = multivariate_normal.logpdf(y, X @ theta, noise)
    assert_allclose(found, wanted - multivariate_normal.logpdf(y, mean, spread), rtol=1e-9)


@pytest.mark.parametrize("power", [-9, 0, 5, 6, 7, 8, 9])
@pytest.mark.parametrize("graded", [False, True])
def test_errors_of_models_have_widths_at_any_scale(power, graded):
    """Few rows have no width in other directions: where X'X is large its rounding was one."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 8)), rng.normal(size=3)
    X *= 10.0 ** (power * np.linspace(0, 1, 8) if graded else power)
    X[:, 3] = 0.0
    linear = LinearModel("squared_error", alpha=0.0, fit_intercept=False, standardize=False)
    pool = open_rows(linear.bind(8, None), X, y, np.zeros(3, dtype=int), 1)
    U, s, _ = np.linalg.svd(X, full_matrices=False)
    for scale in (0.0, 1.0, 10.0 ** (9 - power)):  # the last deviations swallow the rows
        root = scale * np.ones(8) if scale else None
        found = pool.ask(ErrorsOfModels, np.zeros((1, 8)), np.eye(8)[None], [[0.0]], root)
        noise = 1.0 + (scale * s) ** 2
        excess = -0.5 * np.sum((U.T @ y * s) ** 2 / (noise * (noise + s**2)))
        width = np.log1p(s**2 / noise).sum() / 2
        assert_allclose(np.ravel(found), [excess, width], rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize("root", [None, np.ones(2)])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_errors_of_models_that_overflow_count_for_nothing(share, root):
    """The site's other clients have their answers."""
    X, y, groups = 1.0 + np.arange(8.0).reshape(4, 2) ** 2, np.ones(4), np.repeat([0, 1], 2)
    X[:2] *= 1e160
    linear = LinearModel("squared_error", alpha=0.0, fit_intercept=False, standardize=False)
    pool = open_rows(linear.bind(2, None), X, y, groups, 2)
    asked = np.zeros((1, 2)), 0.01 * np.eye(2)[None], np.full((2, 1), share), root
    found = np.array(pool.ask(ErrorsOfModels, *asked))[:, :, 0]
    assert_allclose(found[:, 0], 0.0)
    assert (np.abs(found[:, 1]) > 0.0).all()


@pytest.mark.parametrize("kind", ["IFCARegressor", "PartialPoolingRegressor", "IFCAClassifier"])
def test_certainties_do_not_depend_on_units_or_order(kind):
    """A row of weight two is two rows."""
    linear = kind.endswith("Regressor")
    X, y, groups, _ = thirds(1, None if linear else "log_loss")
    more = {"basis": "linear"} if kind.startswith("Partial") else {}
    start = getattr(skcfl, kind)(3, random_state=0, tol=1e-9, **more)
    rng = np.random.default_rng(0)
    weights, order = rng.integers(1, 3, len(y)), rng.permutation(len(y))
    ones, each = np.ones(len(y)), np.repeat(np.arange(len(y)), weights)
    other = 100.0 * y + 1e3 if linear else y
    pairs = [
        ((X, y, groups, ones), (X[order], y[order], groups[order], ones)),
        ((X, y, groups, ones), (X * [1e3, 0.01, 7.0] + [5.0, 0.0, -3.0], other, groups, ones)),
        ((X, y, groups, weights), (X[each], y[each], groups[each], np.ones(len(each)))),
    ]
    for one, same in pairs:
        wanted, found = (
            certainties_of(clone(start).fit(*rows, sample_weight=w)) for *rows, w in (one, same)
        )
        assert 0.4 < wanted.max(axis=1).mean() < 0.9999
        assert_allclose(found, wanted, atol=2e-3)


@pytest.mark.parametrize("kind", [skcfl.IFCARegressor, skcfl.PartialPoolingRegressor])
def test_sites_may_refuse_what_certainties_take(kind):
    policy = SitePolicy(calls={*CALLS, *ROW_CALLS} - {"errors_of_models"})
    federation = InProcessFederation(DATA.X, DATA.y, DATA.groups, policy=policy)
    report = kind(2, random_state=0).fit_federation(federation).report()
    settled = str(report.findings["not_settled"])
    assert "it does not answer errors_of_models" in settled
    assert ("with what certainty" in settled) == (kind is skcfl.IFCARegressor)
    known = "clusters' errors are not known" in str(report)
    assert known == (kind is skcfl.PartialPoolingRegressor)
