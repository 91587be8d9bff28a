"""Do clients differ? Probabilities are those that are said, and differences are seen.

benchmarks/how_sure.py counts with 200 draws each.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import kstest
from trials import some

import skcfl
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.reports.differences import common_models

LOSSES = {"normal": "squared_error", "few": "squared_error", "logit": "log_loss"}
LOSSES |= {"counts": "poisson", "uneven": "squared_error"}


def draw(kind, seed, intercepts=0.0, slopes=0.0):
    """Rows of clients, whose models differ as told."""
    rng = np.random.default_rng(seed)
    N, n = (40, 3) if kind == "few" else (20, 12)
    groups, X = np.repeat(np.arange(N), n), rng.standard_normal((N * n, 2))
    z = 0.3 + X @ [0.5, -0.3] + intercepts * rng.standard_normal(N)[groups]
    z += (X * (slopes * rng.standard_normal((N, 2)))[groups]).sum(axis=1)
    if kind == "logit":
        return X, (rng.random(N * n) < 1 / (1 + np.exp(-z))).astype(int), groups
    if kind == "counts":  # more scattered than Poisson's
        return X, rng.poisson(np.exp(z) * rng.gamma(2, 0.5, N * n)).astype(float), groups
    noise = rng.standard_normal(N * n)
    if kind == "uneven":  # heavy tails, and noisier clients
        noise = rng.standard_t(4, N * n) * np.exp(0.5 * rng.standard_normal(N))[groups]
    return X, z + noise, groups


def pool_of(X, y, groups, loss, **model):
    n_classes = len(np.unique(y)) if loss == "log_loss" else None
    model = LinearModel(loss=loss, alpha=0.0, **model).bind(X.shape[1], n_classes=n_classes)
    return open_rows(model, X, y, groups, groups.max() + 1, random_state=0)


def common(pool, within=False, start=0.0):
    """Common models of all clients, with or without an intercept of each."""
    n, start = pool.n_clients, np.full((1, pool.n_params), start)
    return common_models(pool, start, np.zeros(n, dtype=int), np.ones(n, dtype=bool), within)


def p_values(kind, n_draws, **differences):
    out = []
    for seed in range(n_draws):
        pool = pool_of(*draw(kind, seed, **differences), LOSSES[kind])
        out.append([common(pool, within).test.p_value for within in (False, True)])
    return np.array(out).T


@pytest.mark.parametrize("kind", some(LOSSES, 2))
def test_p_values_are_uniform_without_differences(kind):
    none, slopes = p_values(kind, 40)
    assert kstest(none, "uniform").pvalue > 1e-3
    assert kstest(slopes, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("kind", ["few", "logit", "counts"])
def test_differences_are_seen(kind):
    most = 0.1 if kind == "counts" else 0.05
    none, _ = p_values(kind, 8, intercepts=1.5)
    assert np.median(none) < most
    none, slopes = p_values(kind, 8, slopes=1.2)
    assert np.median(none) < most and np.median(slopes) < most


def test_intercepts_are_no_slopes():
    _, slopes = p_values("few", 20, intercepts=20.0)
    assert kstest(slopes, "uniform").pvalue > 1e-3


def test_common_models_are_those_of_all_rows_and_of_own_intercepts():
    X, y, groups = draw("normal", 0, intercepts=3.0)
    pool = pool_of(X, y, groups, "squared_error")
    design = np.column_stack([X, np.ones(len(X))])
    wanted = np.linalg.lstsq(design, y, rcond=None)[0]
    found = common(pool, start=1.0)
    assert_allclose(found.theta[0], wanted, atol=1e-8)
    # Robust errors of the rows: HC2.
    inverse = np.linalg.inv(design.T @ design)
    left = 1 - np.einsum("np,pq,nq->n", design, inverse, design)
    residuals = (y - design @ wanted) / np.sqrt(left)
    meat = (design * residuals[:, None] ** 2).T @ design
    assert_allclose(found.by_rows[0], inverse @ meat @ inverse, rtol=1e-7)
    # And of the clients.
    scores = np.eye(20)[groups].T @ ((y - design @ wanted)[:, None] * design)
    robust = 20 / 19 * inverse @ scores.T @ scores @ inverse
    assert_allclose(found.by_clients[0], robust, rtol=1e-7)
    dummies = np.column_stack([X, np.eye(20)[groups]])
    wanted = np.linalg.lstsq(dummies, y, rcond=None)[0][:2]
    assert_allclose(common(pool, True, 1.0).theta[0, :2], wanted, atol=1e-8)


def test_own_intercepts_of_classes():
    """As a fit with a dummy for each client, those of one class aside."""
    X, y, groups = draw("logit", 0, intercepts=1.0)
    y[groups == 3] = 1
    pool = pool_of(X, y, groups, "log_loss")
    keep = groups != 3
    dummies, all_one = np.column_stack([X, np.eye(20)[groups]])[keep], np.zeros(keep.sum(), int)
    wanted = common(pool_of(dummies, y[keep], all_one, "log_loss", fit_intercept=False))
    assert_allclose(common(pool, True).theta[0, :2], wanted.theta[0, :2], atol=1e-4)


def test_own_intercepts_of_classes_that_a_client_lacks():
    """Steps along the diagonal of softmax's curvature must not swing."""
    found = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        groups, X = np.repeat(np.arange(40), 5), rng.standard_normal((200, 2))
        z = np.column_stack([X @ [0.8, 0.0], X @ [0.0, 0.8], np.zeros(200)])
        y = np.argmax(z + rng.gumbel(size=z.shape), axis=1)
        model = LinearModel(loss="log_loss", alpha=0.0).bind(2, n_classes=3)
        pool = open_rows(model, X, y, groups, 40, random_state=0)
        found.append(common(pool, True).test.p_value)
    assert np.mean(np.array(found) <= 0.01) < 0.1 and np.mean(np.array(found) == 1.0) < 0.1


def test_scores_that_are_next_to_nothing():
    """Separable classes: products of the gradients of some clients have no digits left."""
    for seed in range(2):
        rng = np.random.default_rng(seed)
        groups, X = np.repeat(np.arange(20), 12), rng.standard_normal((240, 3))
        fit = skcfl.FedAvgClassifier().fit(X, X @ [1, 1, 0.0] > 0, groups=groups)
        assert fit._how_sure.reason == ""


def test_clients_of_one_row_and_one_client_have_no_say():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 1)), rng.standard_normal(12)
    pool = pool_of(X, y, np.zeros(12, dtype=int), "squared_error")
    assert np.isnan(common(pool).test.p_value)
    pool = pool_of(X, y, np.arange(12), "squared_error")
    assert np.isnan(common(pool, True).test.p_value)


def cells(seed, differences=0.0):
    """Rows of two classes, and of two values of a feature, counted: a weight for each cell."""
    rng = np.random.default_rng(seed)
    groups, X = np.repeat(np.arange(15), 2), np.tile([0.0, 1.0], 15)
    z = 0.5 * X - 0.5 + differences * rng.standard_normal(15)[groups]
    ones = rng.binomial(12, 1 / (1 + np.exp(-z)))
    weights = np.column_stack([ones, 12 - ones]).ravel()
    seen = weights > 0
    rows = np.repeat(X, 2)[:, None], np.tile([1, 0], 30), np.repeat(groups, 2), weights
    return [part[seen] for part in rows]


def pool_of_weighted(X, y, groups, weights, loss, **more):
    n_classes = 2 if loss == "log_loss" else None
    model = LinearModel(loss=loss, alpha=0.0).bind(1, n_classes=n_classes)
    rows = X, y, groups, groups.max() + 1, weights.astype(float)
    return open_rows(model, *rows, random_state=0, **more)


def weighted(X, y, groups, weights, within=False, loss="log_loss", **more):
    return common(pool_of_weighted(X, y, groups, weights, loss, **more), within)


def test_p_values_of_many_equal_rows_are_uniform_without_differences():
    """Few values, whose order by content puts equal rows together."""
    found = []
    for seed in range(15):
        rng = np.random.default_rng(seed)
        groups, X = np.repeat(np.arange(10), 240), rng.integers(2, size=(2400, 1)).astype(float)
        y = rng.integers(2, size=2400)
        found.append(common(pool_of(X, y, groups, "log_loss")).test.p_value)
    assert kstest(found, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_weights_are_rows_that_are_there_several_times(loss):
    for differences in (0.0, 0.8):
        X, y, groups, weights = cells(0, differences)
        each = np.repeat(np.arange(len(y)), weights)
        found = weighted(X, y, groups, weights, loss=loss)
        ones = np.ones(len(each))
        repeated = weighted(X[each], y[each], groups[each], ones, loss=loss)
        for name in ("theta", "by_rows", "by_clients"):
            wanted = getattr(repeated, name)
            assert_allclose(getattr(found, name), wanted, rtol=1e-6, atol=1e-9)
        assert_allclose(found.test.ratio, repeated.test.ratio, rtol=1e-6)
        assert found.test.p_value == repeated.test.p_value


def test_few_rows_that_weigh_more_are_not_few():
    """Three rows of weight two are six: their noise need not be of one size."""
    rng = np.random.default_rng(0)
    groups, X, y = np.repeat(np.arange(12), 3), rng.normal(size=(36, 1)), rng.normal(size=36)
    once = weighted(X, y, groups, np.ones(36), loss="squared_error").test
    twice = weighted(X, y, groups, np.full(36, 2.0), loss="squared_error").test
    repeated = np.repeat(np.arange(36), 2)
    rows = X[repeated], y[repeated], groups[repeated], np.ones(72)
    assert once.one_size and not twice.one_size
    assert_allclose(twice.ratio, weighted(*rows, loss="squared_error").test.ratio, rtol=1e-6)


def test_noise_that_depends_on_a_feature_is_no_difference():
    found = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        groups, X = np.repeat(np.arange(20), 12), rng.standard_normal((240, 3))
        y = X.sum(axis=1) + rng.standard_normal(240) * np.exp(0.7 * X[:, 0])
        found.append(common(pool_of(X, y, groups, "squared_error")).test.p_value)
    assert np.mean(np.array(found) <= 0.05) < 0.3


@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
def test_draws_of_weighted_rows_depend_on_no_order_and_no_place(loss):
    X, y, groups, weights = rows = cells(0, 0.3)
    wanted = weighted(*rows, loss=loss).test
    order = np.random.default_rng(0).permutation(len(y))
    assert weighted(*(part[order] for part in rows), loss=loss).test == wanted
    # The first client has more rows: those of others are padded, in blocks of many and of few.
    more = [np.concatenate([part, part[groups == 0]]) for part in rows]
    one, few = weighted(*more, loss=loss).test, weighted(*more, loss=loss, block_bytes=1).test
    assert_allclose([one.p_value, one.ratio], [few.p_value, few.ratio], rtol=1e-9)


def test_rows_of_odd_weights_are_one_row_each():
    X, y, groups, weights = cells(0)
    assert weighted(X, y, groups, weights).test.n_odd == 0
    # In another unit nothing else is known of them.
    half = weighted(X, y, groups, weights / 2).test
    odd = np.count_nonzero(weights % 2)
    assert half.n_odd == odd > 0
    assert weighted(X, y, groups, weights * np.pi).test.n_odd == len(y)
