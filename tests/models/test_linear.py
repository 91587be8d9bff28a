"""Linear models: exact prox, minimisers, conjugates and bounds, against other people's code."""

from functools import partial

import numpy as np
import pytest
from client_rows import DELTA, EVERY_LOSS, ClientRows
from hypothesis import assume, given
from hypothesis import strategies as st
from kernels import hessians, maximisers, minimisers_from
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, QuantileRegressor, Ridge, TweedieRegressor
from sklearn.metrics import mean_pinball_loss, mean_tweedie_deviance
from trials import examples, some

import skcfl.models._convex
import skcfl.models._linear
from skcfl import OracleClustersRegressor
from skcfl.calls.curvatures import Prox, Solve
from skcfl.calls.first_order import Losses, Objectives, ObjectivesGradients
from skcfl.calls.proofs_asked import Conjugate
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.models.losses import Quantile, Tweedie
from skcfl.models.losses.log_loss import Multinomial
from skcfl.rounds.polish import solve_pooled

seeds = st.integers(0, 2**32 - 1)
# Losses with a curvature that has no bound.
UNBOUNDED = ("poisson", "gamma", "tweedie")
every_loss = pytest.mark.parametrize("loss", EVERY_LOSS)
# What is the same for the locations of tests/models/test_location.py.
LOCATIONS = ["location_squared_error", "location_huber"]
every_convex = pytest.mark.parametrize("loss", [*EVERY_LOSS, *LOCATIONS])
UNITS = np.array([1e-3, 1e-1, 1.0, 1e2, 1e4])
in_units = st.sampled_from([1.0, UNITS])
alphas = st.sampled_from([0.0, 1e-4, 1.0])


class Problem(ClientRows):
    def residual(self, pool, i, x, v, rho):
        """Gradient of the (proximal) objective, each entry relative to what it sums up."""
        model, (X, y, w) = pool.model, self.of(i)
        x, v = x.reshape(model.n_outputs, -1), v.reshape(model.n_outputs, -1)
        # A client without rows has no objective at all.
        decay = model.decay.reshape(x.shape) * (len(X) > 0)
        gradient = decay * x + rho * (x - v)
        size = decay * np.abs(x) + rho * (np.abs(x) + np.abs(v)) + 1e-300
        if len(X):
            A, w = model.design(X), w / w.sum()
            target = model.encode(y, len(y)).T
            Z = x @ A.T
            gradient = gradient + (model.kernel.gradient(Z, target) * w) @ A
            # Rows' slopes are known up to the rounding of the predictions.
            curvature = model.kernel.max_curvature
            if np.isinf(curvature):
                curvature = model.kernel.curvature(Z, target)
            rows = curvature * (np.abs(x) @ np.abs(A).T) + 1.0
            if not self.classifier:
                rows = rows + np.abs(target)
            size = size + (rows * w) @ np.abs(A)
        return (np.abs(gradient) / size).max()

    def residuals(self, pool, x, v=None, rho=0.0, clients=None):
        """The largest of all clients, or of some."""
        v, rho = x if v is None else v, np.broadcast_to(rho, self.m)
        clients = range(self.m) if clients is None else clients
        return max(self.residual(pool, i, x[i], v[i], rho[i]) for i in clients)

    def solved(self, pool, tol=1e-8):
        """Models of all clients, which are their minimisers where there are any."""
        w, converged = pool.ask(Solve)
        assert converged.all() and np.isfinite(w).all()
        clients = [i for i in range(self.m) if self.has_minimum(pool, [i])]
        assert clients and self.residuals(pool, w, clients=clients) <= tol
        return w


# --------------------------------------------------------------------------------- model


def test_starts_are_reproducible_and_single_precision_stays():
    bound = LinearModel().bind(3, dtype=np.float32)
    one, two, other = (bound.init_params(4, seed) for seed in (0, 0, 1))
    assert_array_equal(one, two)
    assert np.abs(one - other).max() > 0.1
    assert one.dtype == bound.start().dtype == np.float32
    X, params = np.ones((2, 3), np.float32), np.ones((1, 4), np.float32)
    for form in (np.asarray, sparse.csr_array):
        assert bound.decision(form(X), params, np.zeros(2, int)).dtype == np.float32
    many = LinearModel().bind(99).init_params(200, 0)
    assert np.std(many @ np.ones(100)) == pytest.approx(1, 0.2)


@every_loss
@pytest.mark.parametrize(
    ("form", "fit_intercept"),
    [(np.asarray, False), (sparse.csr_array, True), (sparse.csc_matrix, True)],
)
def test_predictions_row_by_row(loss, form, fit_intercept, monkeypatch):
    problem = Problem(loss, sizes=[30], fit_intercept=fit_intercept)
    pool = problem.pool()
    bound, X = pool.model, problem.X
    params = problem.rng.normal(size=(4, bound.n_params))
    index = problem.rng.integers(4, size=30)
    coefficients = bound.coefficients(params)
    coef, intercept = coefficients["coef"], coefficients["intercept"]
    assert coef.shape == (4, 5) if bound.n_outputs == 1 else (4, 3, 5)
    assert intercept.shape == coef.shape[:-1]
    assert fit_intercept or not intercept.any()
    raw = np.stack(
        [np.atleast_1d(coef[k] @ x + intercept[k]) for k, x in zip(index, X, strict=True)]
    )
    # In chunks of a few rows.
    monkeypatch.setattr(skcfl.models._linear, "CHUNK_BYTES", 8 * bound.n_params * 7)
    assert_allclose(bound.decision(form(X), params, index), raw, atol=1e-13)
    scores = bound.scores(raw)
    assert_array_equal(scores, raw[:, 0] if bound.n_outputs == 1 else raw)
    output = bound.output(raw)
    assert output.shape == (30,)
    if problem.classifier:
        assert_array_equal(output, raw.argmax(axis=1) if bound.n_outputs > 1 else raw[:, 0] > 0)
    else:
        assert_allclose(output, np.exp(raw[:, 0]) if loss in UNBOUNDED else raw[:, 0])
    if bound.has_proba:
        proba = bound.proba(raw)
        assert proba.shape == (30, problem.C)
        assert_allclose(proba.sum(axis=1), 1.0)
        assert_array_equal(proba.argmax(axis=1), output)
    losses = bound.row_losses(form(X), problem.y, params, index)
    assert losses.shape == (30,)
    everyone = np.stack([bound.row_losses(X, problem.y, params, np.full(30, k)) for k in range(4)])
    assert_allclose(losses, everyone[index, np.arange(30)], rtol=1e-13)
    assert_allclose(
        pool.ask(Losses, params)[0], np.average(everyone, axis=1, weights=problem.weights)
    )


# ---------------------------------------------------------------------------------- prox


@every_loss
@examples(3)
@given(
    seed=seeds,
    alpha=st.sampled_from([0.0, 1e-3, 1.0]),
    fit_intercept=st.booleans(),
    units=in_units,
    form=st.sampled_from([np.asarray, sparse.csr_array]),
)
def test_proximal_points_and_minimisers_are_optimal(loss, seed, alpha, fit_intercept, units, form):
    problem = Problem(loss, seed, alpha=alpha, fit_intercept=fit_intercept, units=units)
    pool = problem.pool(form)
    v = problem.centres(pool)
    rho = 10.0 ** problem.rng.uniform(-3, 3, size=problem.m)
    assert problem.residuals(pool, pool.ask(Prox, v, rho), v, rho) <= 1e-10
    if alpha:
        w = problem.solved(pool)
        again, now = pool.ask(Objectives, minimisers_from(pool, w)), pool.ask(Objectives, w)
        clients = [i for i in range(problem.m) if problem.has_minimum(pool, [i])]
        assert_allclose(again[clients], now[clients], rtol=1e-10, atol=1e-12)


@every_loss
def test_prox_forgets_where_it_starts(loss):
    """Warm or wild starts and centres: Poisson overflows there."""
    problem = Problem(loss)
    pool = problem.pool()
    v = problem.centres(pool)
    plain = pool.ask(Prox, v, 0.5)
    for far in (3.0, 1e3, 1e8):
        wild = pool.ask(Prox, v, 0.5, x0=problem.centres(pool, far))
        assert_allclose(wild, plain, rtol=1e-7, atol=1e-8)
        assert problem.residuals(pool, pool.ask(Prox, far * v, 0.5), far * v, 0.5) <= 1e-10
    # Between the centre and, with more rows than parameters and all classes, the minimiser.
    assert_allclose(pool.ask(Prox, v, 1e10), v, atol=1e-8)
    w = pool.ask(Solve)[0]
    assert_allclose(pool.model.centre(pool.ask(Prox, v, 1e-10))[5], w[5], rtol=1e-6, atol=1e-6)


# --------------------------------------------------------------------------------- solve


POWERS = {"poisson": 1.0, "gamma": 2.0, "tweedie": 1.4}


def of_scikit_learn(name, weight, fit_intercept):
    """The estimator of the same objective, with an alpha of 0.02 a row."""
    if name == "squared_error":
        return Ridge(alpha=0.02 * weight, fit_intercept=fit_intercept)
    options = {"tol": 1e-12, "max_iter": 1000, "fit_intercept": fit_intercept}
    if name == "log_loss":
        return LogisticRegression(C=1 / (0.02 * weight), solver="newton-cg", **options)
    return TweedieRegressor(
        power=POWERS[name], link="log", alpha=0.02, solver="newton-cholesky", **options
    )


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("loss", ["squared_error", "log_loss", "log_loss-3", *POWERS])
def test_minimisers_are_those_of_scikit_learn(loss, fit_intercept):
    problem = Problem(loss, alpha=0.02, sizes=[40, 60, 25, 0, 9, 4], fit_intercept=fit_intercept)
    pool = problem.pool()
    found = pool.model.coefficients(pool.ask(Solve)[0])
    tol = 1e-9 if loss == "squared_error" else 1e-8
    for i in np.flatnonzero(pool.client_sizes > 8 * (loss != "squared_error")):
        X, y, w = problem.of(i)
        reference = of_scikit_learn(loss.partition("-")[0], w.sum(), fit_intercept).fit(X, y, w)
        coef, intercept = found["coef"][i].reshape(-1, 5), np.ravel(found["intercept"][i])
        assert_allclose(coef, np.atleast_2d(reference.coef_), rtol=10 * tol, atol=tol)
        assert_allclose(intercept, np.ravel(reference.intercept_), rtol=10 * tol, atol=tol)
        if loss in ("gamma", "tweedie"):
            options = {"sample_weight": w, "power": POWERS[loss]}
            value = mean_tweedie_deviance(y, reference.predict(X), **options) / 2
            value += 0.01 * reference.coef_ @ reference.coef_
            w = np.append(reference.coef_, [reference.intercept_] * fit_intercept)
            assert_allclose(pool.ask(Objectives, np.tile(w, (6, 1)))[i], value, rtol=1e-10)


@pytest.mark.parametrize("power", [1, 2])
def test_tweedie_ends_at_poisson_and_gamma(power):
    name = {1: "poisson", 2: "gamma"}[power]
    problem = Problem(name, sizes=[30, 20])
    end = problem.pool().ask(Solve)[0]
    problem.model = clone(problem.model).set_params(loss=Tweedie(power))
    assert_array_equal(problem.pool().ask(Solve)[0], end)
    problem.model = clone(problem.model).set_params(loss=Tweedie({1: 1.001, 2: 1.999}[power]))
    assert_allclose(problem.pool().ask(Solve)[0], end, atol=5e-3)


@pytest.mark.parametrize("quantile", [0.1, 0.5])
def test_quantiles_in_the_limit(quantile):
    """A narrow window: the minimum of the pinball loss, that of QuantileRegressor."""
    problem = Problem("quantile", sizes=[101, 57], d=2, alpha=0.0)
    errors = []
    for h in (0.1, 1e-3):
        problem.model = clone(problem.model).set_params(loss=Quantile(quantile, smoothing=h))
        w, converged = problem.pool().ask(Solve)
        assert converged.all()
        for i in range(2):
            X, y, weights = problem.of(i)
            reference = QuantileRegressor(quantile=quantile, alpha=0.0, solver="highs")
            reference.fit(X, y, weights)
            loss = partial(mean_pinball_loss, y, sample_weight=weights, alpha=quantile)
            least = loss(reference.predict(X))
            errors.append(loss(X @ w[i, :2] + w[i, 2]) - least)
    errors = np.array(errors)
    # The smoothed loss is within h / 8 of the other.
    assert (errors >= -1e-9).all() and (errors[:2] <= 0.1 / 8).all()
    assert (errors[2:] <= 1e-3 / 8).all()


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("units", [1.0, UNITS])
def test_least_norm_where_least_squares_has_many_minimisers(fit_intercept, units):
    problem = Problem("squared_error", alpha=0.0, fit_intercept=fit_intercept, units=units)
    pool = problem.pool()
    w, converged = pool.ask(Solve)
    assert converged.all()
    for i in range(problem.m):
        X, y, weights = problem.of(i)
        A, root = pool.model.design(X), np.sqrt(weights)
        wanted = np.linalg.lstsq(A * root[:, None], y * root, rcond=1e-13)[0]
        assert_allclose(w[i], wanted, rtol=1e-7, atol=1e-8 * max(np.abs(wanted).max(), 1e-300))


@examples(3)
@given(seed=seeds, alpha=st.sampled_from([1e-4, 1e-2]))
def test_multinomial_models_are_centred(seed, alpha):
    """Their free direction is at zero: intercepts sum to zero, as coefficients do anyway."""
    problem = Problem("log_loss-3", seed, alpha=alpha, units=UNITS)
    pool = problem.pool()
    w, _ = pool.ask(Solve)
    full = pool.client_sizes > 0
    W = w.reshape(problem.m, 3, 6)[full]
    size = np.abs(W).max(axis=(1, 2))[:, None]
    assert_allclose(W.sum(axis=1) / size, 0.0, atol=1e-8)
    theta = problem.centres(pool)
    centred = pool.model.centre(theta)
    assert_allclose(centred.reshape(-1, 3, 6).sum(axis=1), 0.0, atol=1e-12)
    assert_allclose(pool.ask(Losses, centred), pool.ask(Losses, theta), rtol=1e-10, atol=1e-9)
    # A start off centre ends where a centred one does.
    again = minimisers_from(pool, w + np.tile(np.eye(6)[-1], 3) * 7.0)
    again = again.reshape(problem.m, 3, 6)[full]
    size = np.abs(again).max(axis=(1, 2))[:, None]  # the search may go far where w has half a row
    assert_allclose(again.sum(axis=1) / size, 0.0, atol=1e-8)


def test_pinning_leaves_newton_directions_alone():
    """In the columns' own units: a pin of a foreign size would drown the curvature."""
    problem = Problem("log_loss-3", alpha=1e-2, units=UNITS)
    pool = problem.pool()
    theta = problem.centres(pool, 1e-4)[:1]
    labels = np.zeros(problem.m, dtype=int)
    H = hessians(pool, theta, labels)
    pinned = pool.model.pin(H.copy())
    free = np.zeros((3, 6))
    free[:, -1] = 1.0
    assert free.ravel() @ pinned[0] @ free.ravel() > 0
    extra = pinned[0] - H[0]
    assert extra.max() <= np.abs(np.diag(H[0]))[[5, 11, 17]].max()
    other = np.random.default_rng(0).normal(size=(3, 6))
    other -= other.mean(axis=0)
    assert_allclose(extra @ other.ravel(), 0.0, atol=1e-12)


CLASSIFIERS = ["log_loss", "log_loss-3", "squared_hinge", "squared_hinge-3"]


@pytest.mark.parametrize("loss", [*CLASSIFIERS, "poisson"])
def test_clients_of_one_class_or_without_events(loss):
    """A free intercept has no minimiser: finite, at the infimum or with half a row a class."""
    sizes = np.array([1, 5, 20])
    problem = Problem(loss, sizes=sizes)
    problem.y = np.repeat([0, 0, 0] if loss == "poisson" else [0, 1, 1], sizes)
    pool = problem.pool()
    w, converged = pool.ask(Solve)
    assert converged.all() and np.isfinite(w).all()
    value = pool.ask(Objectives, w)
    inverse = 2.0 * pool.client_weights + 1.0
    if loss.startswith("log_loss"):
        assert_allclose(np.exp(value), 1.0 + (problem.C - 1) / inverse)
    elif loss == "poisson":  # the mean of all counts is 1 where no client has measured it
        assert_allclose(value, 1.0 / inverse)
    else:
        assert (value <= 1e-10).all()
    assert (np.abs(w.reshape(3, -1, 6)[:, :, :-1]) <= 1e-6).all()


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_classes_without_rows_have_half_a_row(n_classes):
    """A client's own model, and that of a cluster with the same rows: mean odds and slopes."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(7), [15, 9, 30, 20, 7, 1, 2]), rng.normal(size=(84, 3))
    y = np.argmax(np.c_[X, X[:, 0]][:, :n_classes] + rng.normal(size=(84, n_classes)), axis=1)
    y[groups == 0] %= n_classes - 1
    y[groups == 1] = n_classes - 1
    weights = rng.integers(1, 4, size=84).astype(float)
    weights[((groups == 2) & (y == 1)) | (groups == 6)] = 0.0
    weights[(groups == 3) & (y == 0)] = 1e-6  # a rare class is there
    model = LinearModel("log_loss", alpha=0.02).bind(3, n_classes=n_classes)

    def opened(rows, ids):
        return open_rows(model, X[rows], y[rows], ids, ids.max() + 1, sample_weight=weights[rows])

    with np.errstate(divide="raise"):
        together, converged = opened(slice(None), groups).ask(Solve)
    assert converged.all() and np.isfinite(together).all()
    for client in range(6):
        mine = groups == client
        n, own, theirs = mine.sum(), y[mine], weights[mine]
        alone, _ = opened(mine, np.zeros(n, dtype=int)).ask(Solve)
        assert_allclose(together[client], alone[0], rtol=1e-9, atol=1e-12)
        if n > 1:
            # With a client that does not count, and a cluster that lacks nothing.
            rows = np.r_[np.flatnonzero(mine), np.arange(82)]
            pool = opened(rows, np.r_[np.arange(n) % 2, np.full(40, 2), np.full(42, 3)])
            counts = pool.client_weights * [1.0, 1.0, 0.0, 1.0]
            start = np.zeros((2, alone.shape[1]))
            clusters, *_, value = solve_pooled(pool, np.array([0, 0, 0, 1]), start, counts)
            assert_allclose(clusters[0], alone[0], rtol=1e-6, atol=1e-6)
            values = pool.ask(Objectives, clusters[[0, 0, 0, 1]])
            assert_allclose(value, np.average(values, weights=counts), rtol=1e-9)
        absent = np.setdiff1d(np.arange(n_classes), own[theirs > 0])
        W = np.vstack([np.zeros(4), alone[0]]) if n_classes == 2 else alone.reshape(n_classes, 4)
        odds = np.exp(W[:, :3] @ X[mine].T + W[:, 3:])
        odds /= np.delete(odds, absent, axis=0).sum(axis=0)
        wanted = 1.0 / (2.0 * theirs.sum() + n_classes - len(absent))
        assert_allclose(np.average(odds[absent], axis=1, weights=theirs), wanted, rtol=1e-6)
        if n_classes > 2:
            assert_allclose(W[absent, :3], 0.0, atol=1e-7)


@pytest.mark.parametrize("weight", [0.0, 1e-13, 1e-16])
def test_classes_of_next_to_no_weight_are_absent_from_clusters(weight):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), rng.integers(3, size=40)
    weights = np.where(y == 2, weight, 1.0)
    model = LinearModel("log_loss", alpha=0.02).bind(3, n_classes=3)
    pool = open_rows(model, X, y, np.arange(40) % 2, 2, sample_weight=weights)
    theta = solve_pooled(pool, np.zeros(2, dtype=int), np.zeros((1, 12)))[0]
    odds = np.exp(X @ theta.reshape(3, 4)[:, :3].T + theta.reshape(3, 4)[:, 3])
    odds = odds[:, 2] / odds[:, :2].sum(axis=1)
    assert_allclose(np.average(odds, weights=weights), 0.5 / (weights.sum() + 1.0), rtol=1e-5)
    # Where their odds cannot be measured, models stay as they are.
    absent = np.array([[False, False, True]])
    same = pool.model.with_half_rows(theta, absent, np.ones(1), np.zeros_like)
    assert_array_equal(same, theta)


def test_counts_that_are_all_zero_have_half_a_row_of_the_mean():
    """Of one client, of a cluster, and in units of the counts; few events are some."""
    rng = np.random.default_rng(0)
    groups, X = np.repeat(np.arange(5), [6, 4, 9, 20, 2]), rng.normal(size=(41, 2))
    y, weights = rng.poisson(2.0, size=41).astype(float), rng.integers(1, 3, size=41)
    y[groups < 3] = 0.0
    y[groups == 4] = 1e-6
    own = {i: i for i in range(5)}
    pairs = [(1.0, own), (1e3, own), (1.0, {**own, 1: 0, 2: 0}), (1.0, {**own, 2: 1, 4: 1})]
    for unit, labels in pairs:
        model = OracleClustersRegressor(labels=labels, alpha=0.1, loss="poisson")
        model.fit(X, unit * y, groups=groups, sample_weight=weights)
        codes = np.array([labels[g] for g in groups])
        for cluster in np.unique(codes):
            mine = codes == cluster
            found, w = model.predict(X[mine], groups=groups[mine]), weights[mine]
            if y[mine].any():
                assert abs(w @ (found - unit * y[mine])) <= 1e-6 * unit * (w @ y[mine])
            else:
                half = unit * np.average(y, weights=weights) / (2.0 * w.sum() + 1.0)
                assert_allclose(found, half)


def test_minima_of_other_coupled_losses_stay():
    """Smoothed labels give a class without rows a probability."""

    class Smoothed(Multinomial):
        def value(self, z, y):
            chosen = np.take_along_axis(z, self._codes(z, y), axis=-2)[..., 0, :]
            return super().value(z, y) + 0.1 * (chosen - z.mean(axis=-2))

        def gradient(self, z, y):
            is_chosen = self._codes(z, y) == np.arange(z.shape[-2])[:, None]
            return super().gradient(z, y) + 0.1 * (is_chosen - 1.0 / z.shape[-2])

    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 2)), rng.integers(2, size=60)
    model = LinearModel("log_loss", alpha=0.1).bind(2, n_classes=3)
    model.kernel = Smoothed()
    w, _ = open_rows(model, X, y, np.zeros(60, dtype=int), 1).ask(Solve)
    W = w.reshape(3, 3)
    z = X @ W[:, :2].T + W[:, 2]
    shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    assert_allclose(shares[:, 2].mean(), 0.1 / 3, rtol=1e-6)


@pytest.mark.parametrize("noise", [1e-3, 1.0, 1e3, 1e5])
@pytest.mark.parametrize(
    ("offset", "outlier", "alpha"), [(0.0, 0.0, 1e-4), (1e6, 0.0, 0.0), (0.0, 1e8, 0.0)]
)
def test_huber_of_targets_in_any_unit(offset, noise, outlier, alpha):
    """Nearly all rows beyond delta, where the second derivative vanishes."""
    problem = Problem("huber", sizes=[60, 8, 300, 30], alpha=alpha)
    rng = problem.rng
    n = len(problem.codes)
    problem.y = offset + problem.X @ rng.normal(size=5) + noise * rng.standard_t(2, size=n)
    problem.y += outlier * (rng.uniform(size=n) < 0.1)
    # Predictions are of the size of the targets, slopes at most delta.
    problem.solved(problem.pool())


@pytest.mark.parametrize("loss", ["poisson", "log_loss", "huber", "squared_hinge"])
def test_heavy_tails_in_the_features(loss):
    problem = Problem(loss, sizes=[200, 30])
    problem.X = np.exp(2.0 * problem.X)
    problem.solved(problem.pool())


# ---------------------------------------------------------------- models of many parameters


@pytest.fixture
def large(monkeypatch):
    """Take the path of many parameters for all models."""
    for module in (skcfl.models._convex, skcfl.models._linear):
        monkeypatch.setattr(module, "MAX_DENSE", 2)


#: Penalty, form of the rows, and whether there is an intercept: each value once, and the rest.
FORMS = [(1e-2, sparse.csr_array, True), (0.0, np.asarray, False), (1e-2, np.asarray, True)]
FORMS += [(1e-2, sparse.csr_array, False), (0.0, np.asarray, True), (1e-2, np.asarray, False)]
#: Each loss with one of them in turn, or with all.
TURNS = [
    (loss, *FORMS[(k + j) % 6]) for j in some(range(6), 1) for k, loss in enumerate(EVERY_LOSS)
] + [(loss, 1e-2, np.asarray, True) for loss in LOCATIONS]


@pytest.mark.parametrize(("loss", "alpha", "form", "fit_intercept"), TURNS)
def test_many_parameters_are_few_parameters(loss, alpha, fit_intercept, form, request):
    problem = Problem(loss, alpha=alpha, fit_intercept=fit_intercept)
    pool = problem.pool(form)
    v = problem.centres(pool)
    rho = np.linspace(0.1, 2, problem.m)
    slopes = pool.ask(ObjectivesGradients, v)[1]

    def answers():
        pool = problem.pool(form)
        # Without a penalty classes may have no minimiser.
        solved = pool.ask(Objectives, pool.ask(Solve)[0]) if alpha else np.zeros(problem.m)
        return pool.ask(Prox, v, rho), solved, pool.ask(Conjugate, slopes)

    few = answers()
    request.getfixturevalue("large")
    many = answers()
    assert_allclose(many[0], few[0], rtol=1e-8, atol=1e-9)
    assert_allclose(many[1], few[1], rtol=1e-9, atol=1e-10)
    assert_allclose(many[2], few[2], rtol=1e-8, atol=1e-9 if loss in LOCATIONS else 1e-8)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_softmax_of_many_parameters_needs_few_products(fit_intercept, monkeypatch):
    """Free directions and unlike classes slow conjugate gradients down no more."""
    rng = np.random.default_rng(0)
    m, n, d, C = 4, 40, 40, 8
    codes, y = np.repeat(np.arange(m), n), rng.integers(0, C, m * n)
    X = rng.normal(size=(m * n, d)) + rng.normal(size=(C, d))[y]
    model = LinearModel(loss="log_loss", alpha=1e-3, fit_intercept=fit_intercept)
    pool = open_rows(model.bind(d, C), X, y, codes, m)
    assert pool.n_params > skcfl.models._convex.MAX_DENSE
    products = []
    plain = LinearModel._loss_product

    def counted(*args):
        products.append(1)
        return plain(*args)

    monkeypatch.setattr(LinearModel, "_loss_product", counted)
    w, converged = pool.ask(Solve)
    assert converged.all() and np.abs(pool.ask(ObjectivesGradients, w)[1]).max() <= 1e-9
    s = pool.ask(ObjectivesGradients, 0.3 * w)[1]
    bound, x = pool.ask(Conjugate, s), maximisers(pool, s)
    assert_allclose(bound, (s * 0.3 * w).sum(axis=1) - pool.ask(Objectives, 0.3 * w), atol=1e-9)
    assert_allclose(x, 0.3 * w, atol=1e-6)
    assert len(products) < 300


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize(("dtype", "narrow"), [(float, False), (np.float32, True)])
def test_least_squares_is_factored_once(form, dtype, narrow, monkeypatch):
    """Participants of a round bring the factors that all clients were solved with."""
    if not narrow:
        monkeypatch.setattr(skcfl.models._linear, "MAX_DENSE", 3)
    problem = Problem("squared_error", sizes=[1, 2, 2, 4, 4, 3])
    pool = problem.pool(form, dtype)
    centres, chosen = problem.centres(pool), [4, 0, 3]
    whole = pool.ask(Prox, centres, 0.3)
    fresh = problem.pool(form, dtype).subset(chosen).ask(Prox, centres[chosen], 0.3)

    def refuse(*args):
        raise AssertionError("factored again")

    for name in ("Narrow", "Wide", "Sparse"):
        monkeypatch.setattr(skcfl.models._linear, name, refuse)
    part = pool.subset(chosen).ask(Prox, centres[chosen], 0.3)
    assert_allclose(part, whole[chosen], rtol=1e-10)
    assert_allclose(part, fresh, rtol=1e-6)
    # In double precision, whatever the pool's type.
    pool.ask(Conjugate, pool.ask(ObjectivesGradients, centres)[1])


@pytest.mark.parametrize("alpha", [1e-8, 1e-4, 1.0, 1e6])
@pytest.mark.parametrize("scaled", [False, True])
def test_wide_least_squares_with_a_free_intercept(alpha, scaled):
    """The rank-one update of the closed form cancels most where alpha is large."""
    units = np.geomspace(1e-3, 1e3, 300) if scaled else 1.0
    problem = Problem("squared_error", sizes=[12, 1, 30], d=300, alpha=alpha, units=units)
    problem.y = problem.y + 100.0
    pool = problem.pool()
    problem.solved(pool, 1e-10)
    v = problem.centres(pool)
    assert problem.residuals(pool, pool.ask(Prox, v, 0.01), v, 0.01) <= 1e-10


# ----------------------------------------------------------------------------- conjugates


@every_loss
@examples(3)
@given(
    seed=seeds,
    alpha=alphas,
    fit_intercept=st.booleans(),
    size=st.sampled_from([0.01, 1.0, 3.0, 30.0]),
)
def test_conjugate_is_tight_at_gradients(loss, seed, alpha, fit_intercept, size):
    """Fenchel's equality at ``s = grad f(x)``, from any start for slopes of usual size."""
    # Saturated probabilities have no curvature: only a penalty and a start nearby find the way.
    saturated = size > 1.0 and loss not in UNBOUNDED
    alpha = max(alpha, 1e-4) if saturated else alpha
    problem = Problem(loss, seed, alpha=alpha, fit_intercept=fit_intercept)
    pool = problem.pool()
    x = problem.centres(pool, min(size, 2.0) if loss in UNBOUNDED else size)
    value, s = pool.ask(ObjectivesGradients, x)
    # Slopes far below those of other clients are rounding (of exponentials, here).
    assume(np.abs(s).max() <= 1e9)
    bound = pool.ask(Conjugate, s, x0=x if saturated else None)
    inner = (s * x).sum(axis=1)
    unit = 1.0 + np.abs(value) + np.abs(inner)
    assert (bound - inner + value >= -1e-9 * unit).all()
    assert (bound - inner + value <= 1e-7 * unit).all()


def test_small_slopes_next_to_large_ones_are_not_lost():
    """A client that weighs nothing pays its penalty's conjugate, whatever the others' slopes."""
    problem = Problem("poisson", sizes=[2, 5], alpha=1e-4)
    problem.weights = np.where(problem.codes == 0, 0.0, 1.0)
    pool = problem.pool()
    s = np.zeros((2, 6))
    s[0, 0], s[1, -1] = 1e-2, 1e12
    bound = pool.ask(Conjugate, s)
    assert_allclose(bound[0], 0.5 * 1e-4 / 1e-4)
    # Its intercept is free: what rounding of the large slopes leaves there is nothing.
    s[0, -1] = 1e-5
    assert_allclose(pool.ask(Conjugate, s)[0], 0.5)
    s[1, -1] = 1.0
    assert np.isinf(pool.ask(Conjugate, s)[0])


@every_loss
@examples(2)
@given(seed=seeds, alpha=alphas, log_size=st.floats(-2, 1))
def test_conjugate_is_never_too_small(loss, seed, alpha, log_size):
    """``f*(s) >= <s, x> - f(x)`` for all s and x: slopes in and out of the domain."""
    problem = Problem(loss, seed, alpha=alpha)
    pool = problem.pool()
    s = problem.centres(pool, 10.0**log_size)
    bound, maximiser = pool.ask(Conjugate, s), maximisers(pool, s)
    assert not np.isnan(bound).any()
    points = [maximiser * t for t in (0.5, 1.0, 1.5)]
    points += [problem.centres(pool, scale) for scale in (0.1, 1.0, 10.0)]
    for x in points:
        with np.errstate(over="ignore", invalid="ignore"):
            gap = bound - ((s * x).sum(axis=1) - pool.ask(Objectives, x))
            unit = 1.0 + np.abs((s * x).sum(axis=1))
        known = np.isfinite(bound) & np.isfinite(gap)
        assert (gap[known] >= -1e-8 * unit[known]).all()


@every_convex
def test_conjugate_holds_however_short_the_search(loss, monkeypatch):
    """One Newton step instead of convergence: still an upper bound, perhaps infinite."""
    problem = Problem(loss)
    pool = problem.pool()
    x = problem.centres(pool)
    value, s = pool.ask(ObjectivesGradients, x)
    full = pool.ask(Conjugate, s)
    converged = skcfl.models._convex.newton

    def short(*args, **kwargs):
        return converged(*args, **{**kwargs, "max_iter": 1})

    monkeypatch.setattr(skcfl.models._convex, "newton", short)
    quick = pool.ask(Conjugate, s)
    assert (quick >= (s * x).sum(axis=1) - value - (1e-12 if loss in LOCATIONS else 1e-10)).all()
    assert loss.endswith("squared_error") or (quick > full + 1e-6).any()


def test_conjugate_where_the_search_overflows():
    """No penalty and slopes out of the domain: Poisson runs out of range on the way."""
    for seed in range(3):
        problem = Problem("poisson", seed, alpha=0.0)
        pool = problem.pool()
        bound = pool.ask(Conjugate, problem.centres(pool), x0=problem.centres(pool, 1e4))
        assert not np.isnan(bound).any()
        assert np.isinf(bound[[0, 1, 3]]).all()


def has_conjugate(problem, *slopes):
    """Whether the only client's conjugate is finite, by slopes of the intercepts."""
    pool = problem.pool()
    s = np.zeros((1, pool.n_params))
    found = []
    for slope in slopes:
        s.reshape(pool.model.n_outputs, -1)[:, -1] = slope
        found.append(bool(np.isfinite(pool.ask(Conjugate, s)[0])))
    return found


def test_conjugate_outside_of_its_domain():
    # One class: slopes are minus missing probabilities, of one sign and at most 1.
    problem = Problem("log_loss", sizes=[5])
    problem.y[:] = 1
    assert has_conjugate(problem, 0.3, -0.3, -1.001) == [False, True, False]
    # Class 1 is there: its intercept may fall, the others' may rise.
    problem = Problem("log_loss-3", sizes=[5])
    problem.y[:] = 1
    slopes = [0.0, 0.3, -0.3], [0.0, -0.3, 0.3], [1.001, -1.001, 0.0]
    assert has_conjugate(problem, *slopes) == [False, True, False]
    # Poisson: mean count minus something cannot be negative.
    problem = Problem("poisson", sizes=[6])
    mean = np.average(problem.y, weights=problem.weights)
    assert has_conjugate(problem, -mean - 1e-3, -mean + 1e-3, 5.0) == [False, True, True]
    # Huber: slopes of rows are at most delta.
    ends = DELTA + 1e-3, DELTA - 1e-3, -DELTA - 1e-3
    assert has_conjugate(Problem("huber", sizes=[6]), *ends) == [False, True, False]
    # Multinomial: slopes of the free intercepts sum to zero.
    assert has_conjugate(Problem("log_loss-3", sizes=[9]), [0.0, 0.0, 1e-3]) == [False]
    # No penalty and fewer rows than features: slopes in the span of the rows only.
    problem = Problem("squared_error", sizes=[3], alpha=0.0)
    pool = problem.pool()
    span = np.random.default_rng(0).normal(size=3) @ pool.model.design(problem.X)
    assert np.isfinite(pool.ask(Conjugate, span[None])[0])
    assert np.isinf(pool.ask(Conjugate, span[None] + 1e-3 * problem.centres(pool))[0])
    # No weight: the penalty's own conjugate, and nothing for the free intercept.
    problem = Problem("huber", sizes=[2, 1], alpha=0.5)
    problem.weights = np.array([0.0, 0.0, 1.0])
    pool = problem.pool()
    s = np.array([[1.0, 2.0, 0.0, 0.0, 2.0, 0.0]] * 2)
    assert_allclose(pool.ask(Conjugate, s)[0], 9.0)
    s[0, -1] = 1e-6
    assert np.isinf(pool.ask(Conjugate, s)[0])


# -------------------------------------------------------------------------------- spectrum


@every_convex
@examples(3)
@given(
    seed=seeds,
    alpha=alphas,
    fit_intercept=st.booleans(),
    units=in_units,
)
def test_spectrum_bounds_the_curvature(loss, seed, alpha, fit_intercept, units):
    problem = Problem(loss, seed, alpha=alpha, fit_intercept=fit_intercept, units=units)
    pool = problem.pool()
    lipschitz, strong, mean = pool.spectrum()
    labels = np.arange(problem.m)
    for scale in (0.0, 0.01, 1.0):
        w = problem.centres(pool, scale)
        H = hessians(pool, w, labels, np.ones(problem.m))
        if not np.isfinite(H).all():
            assert loss in UNBOUNDED
            continue
        values = np.linalg.eigvalsh(H)
        rounding = 1e-13 * np.maximum(lipschitz, values[:, -1])
        assert (strong <= values[:, 0] + rounding).all()
        if loss not in UNBOUNDED:
            assert (values[:, -1] <= lipschitz * (1 + 1e-10)).all()
            # Of use: not far above what the data can show.
            if scale == 0.0 and not loss.endswith(("huber", "quantile")):
                assert (lipschitz <= 5.0 * values[:, -1] + 1e-12).all()
    assert (strong <= mean + 1e-12 * lipschitz).all()
    assert (mean <= lipschitz * (1 + 1e-12) + 1e-290).all()


def test_spectrum_of_poisson_is_the_curvature_at_the_mean_count():
    problem = Problem("poisson", sizes=[50], alpha=0.0, fit_intercept=False)
    problem.y += 3.0
    X, y, w = problem.of(0)
    mean = np.average(y, weights=w)
    largest = np.linalg.eigvalsh((X.T * (w / w.sum())) @ X)[-1]
    assert_allclose(problem.pool().spectrum()[0], largest * mean)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_spectrum_of_many_rows_and_columns(form):
    problem = Problem("squared_error", sizes=[200, 140, 3, 0, 500], d=180, alpha=0.01)
    rng = problem.rng
    # Eigenvalues close to each other, a column a hundred times the others, opposed columns.
    problem.X[problem.codes == 0] = np.linalg.qr(rng.normal(size=(200, 180)))[0]
    problem.X[problem.codes == 1, 0] *= 100
    tall = problem.codes == 4
    problem.X[tall, 1] = -problem.X[tall, 0]
    problem.X[tall, :2] *= 30
    pool = problem.pool(form)
    lipschitz, strong, mean = pool.spectrum()
    H = hessians(pool, np.zeros((5, pool.n_params)), np.arange(5), np.ones(5))
    values = np.linalg.eigvalsh(H)
    assert (lipschitz >= values[:, -1]).all()
    # The penalty of the free intercept is counted too.
    assert_allclose(lipschitz, values[:, -1], rtol=2e-3, atol=0.011)
    assert (strong <= values[:, 0] + 1e-12).all()
    assert (mean <= lipschitz).all()


@pytest.mark.parametrize("loss", ["squared_error", "log_loss-3", "poisson"])
def test_spectrum_does_not_see_padding(loss):
    """A client alone and among longer ones; as many rows as columns, one fewer, one more."""
    sizes = [5, 6, 7, 8, 140, 128, 129]
    for d in (6, 130):
        problem = Problem(loss, sizes=sizes, d=d)
        pool = problem.pool()
        together = np.stack(pool.spectrum())
        for i in range(problem.m):
            alone = open_rows(
                pool.model, *problem.of(i)[:2], np.zeros(sizes[i], int), 1, problem.of(i)[2]
            )
            assert_allclose(np.stack(alone.spectrum())[:, 0], together[:, i], rtol=1e-9)
