"""Pooled problems of clusters: Newton on messages against fits of the pooled rows."""

import numpy as np
import pytest
from client_rows import ClientRows
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from trials import examples

import skcfl.rounds.polish
from skcfl.calls.curvatures import Hessians, Solve
from skcfl.calls.first_order import Objectives, ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.polish import solve_pooled

seeds = st.integers(0, 2**32 - 1)
SIZES = [12, 5, 0, 30, 1, 8, 20]
LABELS = np.array([0, 1, 0, 2, 1, 2, 0])
ALPHA = 0.03
LOSSES = ["squared_error", "huber", "poisson", "log_loss", "log_loss-3", "squared_hinge-3"]
LOCATIONS = ["location_squared_error", "location_huber"]


class Problem(ClientRows):
    """By default rows of each cluster are of all classes."""

    def __init__(self, loss, seed=1, sizes=SIZES, d=4, alpha=ALPHA, units=1.0):
        super().__init__(loss, seed, sizes, d, alpha, units)

    def rows(self, k, uniform=False):
        """Rows of a cluster with their weights in its objective, which sum to 1."""
        mine = np.isin(self.codes, np.flatnonzero(LABELS == k))
        w = self.weights[mine]
        if uniform:
            w = w / np.bincount(self.codes, self.weights, self.m)[self.codes[mine]]
        return self.X[mine], None if self.y is None else self.y[mine], w / w.sum()


def zeros(pool, K=3):
    return np.zeros((K, pool.n_params))


def solved(pool, labels=LABELS, start=None, weights=None):
    """The models, of which the search says that they are solved for."""
    start = zeros(pool, labels.max() + 1) if start is None else start
    theta, converged, *_ = solve_pooled(pool, labels, start, weights)
    assert converged
    return theta


def assert_stationary(pool, labels, theta, weights=None, units=1.0, atol=1e-9):
    weights = pool.client_weights if weights is None else weights
    g = pool.ask(ObjectivesGradients, theta[labels])[1] / units
    for k in np.unique(labels):
        mine = labels == k
        assert_allclose(weights[mine] @ g[mine] / weights[mine].sum(), 0.0, atol=atol)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("uniform", [False, True], ids=["n_i", "uniform"])
def test_clusters_are_scikit_learn_s_fits_of_their_rows(form, uniform):
    makers = {
        "squared_error": lambda n: Ridge(alpha=ALPHA * n),
        "poisson": lambda n: PoissonRegressor(alpha=ALPHA, tol=1e-12, max_iter=1000),
        "log_loss": lambda n: LogisticRegression(
            C=1 / (ALPHA * n), solver="newton-cg", tol=1e-12, max_iter=1000
        ),
    }
    makers["log_loss-3"] = makers["log_loss"]
    for loss, make in makers.items():
        problem = Problem(loss)
        pool = problem.pool(form)
        # Only clients with rows have a say; one weight each, or their rows' weights.
        weights = (pool.client_sizes > 0).astype(float) if uniform else None
        theta, converged, decrement, _ = solve_pooled(pool, LABELS, zeros(pool), weights)
        assert converged and decrement <= 1e-11
        found = pool.model.coefficients(theta)
        for k in range(3):
            X, y, w = problem.rows(k, uniform=uniform)
            reference = make(len(X)).fit(X, y, w * len(X))
            for name, value in found.items():
                wanted = np.ravel(getattr(reference, name + "_"))
                assert_allclose(np.ravel(value[k]), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES + LOCATIONS)
@examples(6)
@given(seed=seeds, K=st.integers(1, 4), scale=st.sampled_from([0.0, 1.0, 30.0]))
def test_clusters_are_stationary_from_any_start(loss, seed, K, scale):
    problem = Problem(loss, seed)
    pool = problem.pool()
    rng = problem.rng
    labels = rng.integers(K, size=problem.m)
    weights = rng.uniform(0.1, 2, size=problem.m)
    start = scale * rng.normal(size=(K, pool.n_params))
    kept = start.copy()
    theta = solved(pool, labels, start, weights)
    assert_array_equal(start, kept)
    members = [np.flatnonzero(labels == k) for k in labels]
    some = np.array([problem.has_minimum(pool, mine) for mine in members])
    if some.any():
        assert_stationary(pool.subset(some), labels[some], theta, weights[some])
    # A cluster without clients keeps its model.
    for k in np.setdiff1d(np.arange(K), labels):
        assert_array_equal(theta[k], start[k])


@pytest.mark.parametrize("loss", LOSSES + LOCATIONS)
def test_products_are_hessians(loss, monkeypatch):
    """Models of many parameters take conjugate gradients."""
    problem = Problem(loss)
    start = problem.centres(problem.pool())[:3]
    wanted = solved(problem.pool(), LABELS, start)
    monkeypatch.setattr(skcfl.rounds.polish, "MAX_DENSE", 1)
    monkeypatch.setattr(Hessians, "asked", None)
    assert_allclose(solved(problem.pool(), LABELS, start), wanted, rtol=1e-6, atol=1e-7)


def test_clients_and_clusters_that_weigh_nothing():
    problem = Problem("log_loss")
    pool = problem.pool()
    weights = np.array([1.0, 0.0, 0.0, 2.0, 0.0, 1.0, 3.0])
    theta = solved(pool, LABELS, zeros(pool) + 1.0, weights)
    assert np.isfinite(theta).all()
    # Without client 1 nor 4 cluster 1 has its clients' objectives with equal weights.
    assert_stationary(pool, LABELS, theta, np.where(LABELS == 1, 1.0, weights))


def test_a_client_without_rows_alone_in_its_cluster():
    """Nothing asks for a model: the start is returned."""
    problem = Problem("squared_error")
    pool = problem.pool()
    labels = np.where(pool.client_sizes > 0, 0, 1)
    theta = solved(pool, labels, zeros(pool, 2) + 1.0)
    assert_array_equal(theta[1], 1.0)
    others = pool.subset(labels == 0)
    alone = solved(others, np.zeros(others.n_clients, int), theta[:1])
    assert_allclose(theta[:1], alone, rtol=1e-9)


@pytest.mark.parametrize("bad", [np.nan, 1e8])
def test_models_that_diverged_are_no_start(bad):
    for loss in ("poisson", "log_loss", "squared_error"):
        pool = Problem(loss).pool()
        start = zeros(pool)
        start[1] = bad
        assert_allclose(solved(pool, LABELS, start), solved(pool), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("loss", LOSSES)
def test_columns_in_unlike_units(loss):
    units = np.array([1e-3, 1e-1, 1e2, 1e4])
    pool = Problem(loss, units=units, alpha=1e-4).pool()
    scale = np.tile(np.append(units, 1.0), pool.model.n_outputs)
    assert_stationary(pool, LABELS, solved(pool), units=scale)


@pytest.mark.parametrize("noise", [1.0, 1e6])
def test_huber_of_targets_in_any_unit(noise):
    problem = Problem("huber", sizes=[30, 20, 5])
    problem.y = 1e4 * noise + noise * problem.y
    pool, labels = problem.pool(), np.array([0, 0, 1])
    assert_stationary(pool, labels, solved(pool, labels), atol=1e-6)


@pytest.mark.parametrize("loss", LOCATIONS)
def test_far_away_locations(loss):
    problem = Problem(loss)
    near = solved(problem.pool())
    problem.X = problem.X + 1e6
    assert_allclose(solved(problem.pool()) - 1e6, near, atol=1e-6)


def test_float32_rows_are_solved_in_double():
    for loss in ("log_loss", "squared_error"):
        problem = Problem(loss)
        problem.X = problem.X.astype(np.float32).astype(float)
        if problem.y.dtype.kind == "f":
            problem.y = problem.y.astype(np.float32).astype(float)
        problem.weights[:] = 1.0
        found = solved(problem.pool(dtype=np.float32))
        assert found.dtype == np.float64
        # The weights 1 / n_i of rows are stored in single precision.
        assert_allclose(found, solved(problem.pool()), rtol=1e-5, atol=1e-6)


def test_short_of_iterations_is_told():
    pool = Problem("log_loss").pool()
    _, converged, decrement, _ = solve_pooled(pool, LABELS, zeros(pool), max_iter=1)
    assert not converged and decrement > 1e-6


def test_steps_are_recorded_and_booked():
    problem = Problem("log_loss")
    pool = problem.pool()
    n, p = problem.m, pool.n_params
    steps = []
    pool.ledger.since_mark()
    theta, *_ = solve_pooled(pool, LABELS, zeros(pool), record=lambda *step: steps.append(step))
    values, changes = np.array(steps).T
    assert len(steps) >= 3
    assert (np.diff(values) <= 1e-12).all()
    mean = np.average(pool.ask(Objectives, theta[LABELS]), weights=pool.client_weights)
    assert_allclose(values[-1], mean, rtol=1e-9)
    assert changes[-1] < 1e-6
    up, down = pool.ledger.since_mark()
    # Values and gradients at every point, Hessians at every step, and the objectives above.
    triangle = p * (p + 1) // 2
    m = int((~pool.without_rows).sum())  # the others are not asked
    points = (up - n - len(steps) * m * triangle) / (m + m * p)
    assert points == int(points)
    assert len(steps) <= points <= 2 * len(steps) + 2
    assert down == m * p * (points + len(steps)) + n * p


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_one_client_with_few_rows_beside_clients_whose_rows_weigh_nothing(share):
    """Its Hessian is not asked for: the model is its own."""
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(40, 6)), np.repeat(np.arange(4), [4, 4, 16, 16])
    model = LinearModel(loss="log_loss", alpha=ALPHA).bind(6, 2)
    weight = np.where(codes == 1, 0.0, 1.0)
    pool = open_rows(model, X, codes % 2 ^ (X[:, 0] > 0), codes, 4, sample_weight=weight)
    weights = np.where(pool.client_sizes > 0, pool.client_weights, share)
    labels = np.array([0, 0, 1, 1])
    theta = solved(pool, labels, weights=weights)
    assert_allclose(theta[0], pool.subset([0]).ask(Solve)[0][0], rtol=1e-10)
    together = pool.ask(ObjectivesGradients, theta[labels])[1]
    assert np.abs(together[2] + together[3]).max() < 1e-10


@pytest.mark.parametrize("units", [1.0, 1e3])
def test_wide_models_of_classes_take_few_exchanges(units):
    """Whatever the units of the columns; none are for the intercepts' flat direction."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((600, 101), density=0.05, format="csr", rng=rng)
    y = (X @ (4 * rng.normal(size=(101, 3))) + rng.gumbel(size=(600, 3))).argmax(axis=1)
    X = sparse.csr_array(X * units ** np.linspace(-1, 1, 101))
    model = LinearModel(loss="log_loss", alpha=1e-6).bind(101, 3)
    pool, labels = open_rows(model, X, y, np.arange(600) % 6, 6), np.arange(6) % 2
    before = pool.ledger.calls
    theta = solved(pool, labels)
    assert pool.n_params > 256 and pool.ledger.calls - before < 500
    assert_stationary(pool, labels, theta, units=units)
