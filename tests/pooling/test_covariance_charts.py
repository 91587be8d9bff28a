"""Coordinates of covariances in units of the expected curvature, and the climb in them."""

from dataclasses import replace

import numpy as np
import pytest
from linear_starts import linear_start
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

import skcfl
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling import em
from skcfl.pooling.covariance_charts import covariance_chart
from skcfl.pooling.em import evaluate, maximise
from skcfl.pooling.normal_equations import LEAST_PRIOR, explaining_prior
from skcfl.pooling.population import FLOOR
from skcfl.pooling.quasi_newton import Chart, climb

FULL = np.array([[0.5, 0.2, 0.1], [0.2, 0.3, -0.1], [0.1, -0.1, 0.8]])


def drawn(n=12, n_rows=8, spread=0.5, seed=0, shift=0.0, covariance=FULL):
    """Rows with the same features at all clients, targets and clients."""
    rng = np.random.default_rng(seed)
    X = np.tile(rng.normal(size=(n_rows, 2)), (n, 1))
    groups = np.repeat(np.arange(n), n_rows)
    W = spread * rng.normal(size=(n, 3)) @ np.linalg.cholesky(covariance).T + shift
    y = (X * W[groups, :2]).sum(axis=1) + W[groups, 2] + 0.5 * rng.normal(size=len(X))
    return X, y, groups


def opened(X, y, groups, kind="full", prior=np.inf, shrinkage=0.0):
    """A pool, options of a linear fit, and where it begins."""
    p = X.shape[1] + 1
    pool = InProcessFederation(X, y, groups).open(
        LinearModel(alpha=0.0).bind(p - 1), random_state=0
    )
    options, start, _ = linear_start(pool, prior)
    return pool, options, replace(start.of_kind(kind, np.ones(p)), shrinkage=shrinkage)


def climbed(pool, fit, gain=1e-6, max_iter=1000):
    whiten = em.whitening(fit.population, fit.sums)
    return climb(lambda at: evaluate(pool, at), fit, whiten, float, True, max_iter, gain)


@pytest.mark.parametrize("shrinkage", [0.0, 4.0])
@pytest.mark.parametrize("kind", ["diag", "full", "spherical", "none"])
def test_charts_begin_at_the_covariance(kind, shrinkage):
    pool, _, start = opened(*drawn(), kind=kind)
    covariance = {"full": FULL, "none": np.zeros(3), "spherical": np.full(3, 0.4)}
    covariance = covariance.get(kind, np.diag(FULL))
    population = replace(start, covariance=covariance, shrinkage=shrinkage, unit=np.full(3, 2.0))
    chart = covariance_chart(population)
    assert_allclose(chart.covariance(chart.start), covariance, atol=3 * FLOOR)


@pytest.mark.parametrize("kind, tol", [("full", 0.01), ("spherical", 0.1)])
def test_likelihoods_curve_by_one(kind, tol, monkeypatch):
    """At the maximum, of clients that all know as much: a Newton step needs no other curvature."""
    monkeypatch.setattr("skcfl.pooling.covariance_charts.RIDGE", 1e-6)
    covariance = FULL if kind == "full" else np.diag(np.diag(FULL))
    rows = drawn(3000, 4, 1.0, covariance=covariance)
    pool, options, start = opened(*rows, kind=kind)
    fit = maximise(pool, start, options)
    for _ in range(3):
        fit = climbed(pool, fit, 1e-12)
    chart = Chart(fit, em.whitening(fit.population, fit.sums), float, True)
    moves = 1e-3 * np.eye(len(chart.start))
    slopes = [chart.gradient(z, evaluate(pool, chart.at(z))) for z in chart.start + moves]
    back = [chart.gradient(z, evaluate(pool, chart.at(z))) for z in chart.start - moves]
    curved = (np.array(back) - slopes) / 2e-3
    curved = np.delete(np.delete(curved, -2, 0), -2, 1)  # the share of one cluster
    assert_allclose(np.linalg.eigvalsh(curved), 1.0, atol=tol)


@pytest.mark.parametrize(
    "kind, free", [("diag", [False, True, True]), ("full", [False, False, True])]
)
def test_steps_have_the_prior_of_intercepts(kind, free):
    """Covariances of steps are the most probable ones, given squares of deviations."""
    pool, _, start = opened(*drawn(), kind=kind, prior="auto")
    start = replace(start, free=np.array(free), shrinkage=1e-9, unit=np.array([1.0, 2.0, 0.5]))
    n, rng = 7, np.random.default_rng(0)
    squares = n * (FULL if kind == "full" else np.diag(FULL))

    def value(population):
        S = population.covariance_matrix()
        of_rows = np.trace(np.linalg.solve(S, n * FULL))
        return -0.5 * (n * np.linalg.slogdet(S)[1] + of_rows) - population.penalty

    best = replace(start, covariance=start.shaped(squares, n))
    chart = covariance_chart(best)
    for _ in range(20):
        x = chart.start + 0.03 * rng.normal(size=len(chart.start))
        assert value(replace(best, covariance=chart.covariance(x))) < value(best)
    plain = replace(start, off_zero=False)
    plain = replace(plain, covariance=plain.shaped(squares, n))
    ratios = np.diag(best.covariance_matrix()) / np.diag(plain.covariance_matrix())
    assert_allclose(ratios[free], n / (n - 1))


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_deviations_of_intercepts_are_off_zero(kind):
    """Where no intercepts differ their deviation is the mode under a growing density."""
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(48, 2)), np.repeat(np.arange(12), 4)
    y = X[:, 0] + rng.normal(size=48)
    y -= np.bincount(groups, y)[groups] / 4
    pool, options, start = opened(X, y, groups, kind, "auto", 2.0)
    fit = maximise(pool, start, replace(options, tol=1e-8))
    variance = fit.population.covariance_matrix()[2, 2] / fit.population.unit[2]
    assert variance > 1e-3
    for factor in (0.8, 0.95, 1.05, 1.25):
        size = np.array([1.0, 1.0, factor])
        moved = fit.population.covariance * (size**2 if kind == "diag" else np.outer(size, size))
        assert evaluate(pool, replace(fit.population, covariance=moved)).value < fit.value
    # Maximum likelihood has none, or less.
    plain, options, start = opened(X, y, groups, kind)
    population = maximise(plain, start, options).population
    least = population.covariance_matrix()[2, 2] / population.unit[2]
    assert least < (1e-5 if kind == "diag" else variance)
    assert not population.kept.any()


@pytest.mark.parametrize("shrinkage", [0.0, 4.0])
def test_many_coordinates_have_the_curvature_of_each_row(shrinkage, monkeypatch):
    rng = np.random.default_rng(0)
    pool, _, start = opened(*drawn(), prior="auto", shrinkage=shrinkage)
    fit = evaluate(pool, replace(start, covariance=FULL, unit=rng.uniform(0.5, 2.0, 3)))
    chart = covariance_chart(fit.population)
    whole = chart.curvature(fit, 12)[0]
    monkeypatch.setattr("skcfl.pooling.covariance_charts.MOST_CURVED", 0)
    blocks = chart.curvature(fit, 12)[0]
    assert [len(block) for block in blocks] == [1, 2, 3]
    for k, block in enumerate(blocks):
        of_row = np.ix_(chart.lower[0] == k, chart.lower[0] == k)
        assert_allclose(block, whole[of_row], rtol=1e-10)


@pytest.mark.parametrize("most, shrinkage", [(300, 4.0), (0, 0.0)])
def test_slopes_are_those_of_the_posterior_density(shrinkage, most, monkeypatch):
    """Intercepts, which have a prior of their own, among them; the noise curves by one."""
    monkeypatch.setattr("skcfl.pooling.covariance_charts.MOST_CURVED", most)
    pool, _, start = opened(*drawn(40, 30), prior="auto", shrinkage=shrinkage)
    fit = evaluate(pool, replace(start, covariance=FULL, dispersion=0.3))
    chart = Chart(fit, em.whitening(fit.population, fit.sums), float, True)
    moves = 1e-4 * np.eye(len(chart.start))
    values, back = (
        np.array([evaluate(pool, chart.at(chart.start + z)).value for z in sign * moves])
        for sign in (1.0, -1.0)
    )
    slopes = chart.gradient(chart.start, fit)
    assert_allclose((values - back) / 2e-4, slopes, rtol=1e-5, atol=1e-4)
    curved = (2.0 * fit.value - values - back) / 1e-8
    assert 0.3 < curved[-1] < 3.0


def test_covariances_of_many_parameters_end_in_few_exchanges():
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(600, 30)), np.repeat(np.arange(20), 30)
    y = (X[:, :5] * rng.normal(1.0, 0.3, (20, 5))[groups]).sum(axis=1) + rng.normal(size=600)
    pool, options, start = opened(X, y, groups, prior="auto", shrinkage=62.0)
    fit = maximise(pool, start, options)
    assert fit.converged and fit.n_iter <= 80


def test_lengths_do_not_change_what_is_known_of_correlations():
    """However small a variance is, a prior of correlations curves along directions alone."""
    *_, start = opened(*drawn())
    population = replace(start, covariance=FULL, shrinkage=6.0)
    chart = covariance_chart(population)
    size = np.where(chart.lower[0] == chart.lower[1], 1.0, 0.0)
    penalty = population.penalty
    for length in (1e-2, 10.0):
        x = np.where(size * (chart.lower[0] == 1), length, chart.start)
        moved = replace(population, covariance=chart.covariance(x))
        assert_allclose(moved.penalty, penalty, rtol=1e-3)
        assert moved.covariance[1, 1] / population.unit[1] == pytest.approx(length**2, rel=1e-3)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e12, 1e60])
def test_steps_that_go_too_far_have_a_value(size):
    """Of singular covariances, too, which a search for a step's length meets."""
    *_, start = opened(*drawn(), kind="full", prior="auto")
    line = size * np.array([1.0, -0.5, 1e-20])
    population = replace(start, covariance=np.outer(line, line), shrinkage=6.0)
    assert np.isfinite(population.penalty)
    assert np.isfinite(population.penalty_slope(population.scaled)).all()


@pytest.mark.parametrize("spread", [0.5, 0.0])
@pytest.mark.parametrize("kind, shrinkage", [("diag", 0.0), ("full", 0.0), ("full", 6.0)])
def test_climbs_never_fall_and_end(kind, shrinkage, spread):
    pool, options, start = opened(*drawn(8, 30, spread), kind=kind, shrinkage=shrinkage)
    before = pool.ledger.calls
    fit = maximise(pool, start, options)
    values = [value for _, value in fit.trail]
    slack = 1e-9 * abs(values[-1])
    assert fit.converged and np.diff(values).min() >= -slack
    assert values[-1] == pytest.approx(fit.value, rel=1e-12)
    assert fit.n_iter == pool.ledger.calls - before <= 28
    # Nothing is asked where nothing is to gain.
    ended = climbed(pool, fit, 1e-3)
    assert (ended.n_iter, ended.value, ended.converged) == (fit.n_iter, fit.value, True)
    # No start finds a likelier one.
    other = maximise(pool, replace(start, covariance=25.0 * start.covariance), options)
    assert other.value == pytest.approx(fit.value, abs=1e-3)


def test_first_steps_that_overshoot_are_not_taken(monkeypatch):
    pool, _, start = opened(*drawn())
    fit = evaluate(pool, replace(start, covariance=1e-4 * start.covariance))
    monkeypatch.setattr("skcfl.pooling.quasi_newton.FIRST", 1e6)
    done = climbed(pool, fit)
    assert done.value > fit.value
    assert np.diff([fit.value, *(value for _, value in done.trail)]).min() >= 0.0


@pytest.mark.parametrize("shift, free", [(0.0, 1), (3.0, 1), (0.1, 0)])
def test_explaining_priors_have_the_greatest_marginal_likelihood(shift, free, monkeypatch):
    X, y, groups = drawn(40, 4, 0.3, shift=shift)
    pool, options, start = opened(X + 2.0, y, groups, prior="auto")
    start = replace(start, free=start.free & bool(free))
    fit = evaluate(pool, replace(start, covariance=start.covariance * 0.1))
    A, b = fit.sums["curvature"][0].copy(), fit.sums["slopes"][0]
    # Features and intercept are coupled, as those that are not centred.
    A[2, 0] = A[0, 2] = 0.6 * np.sqrt(A[0, 0] * A[2, 2])
    fit.sums["curvature"] = A[None]
    b = b + A @ fit.population.means[0]

    def minus(log):
        H = A + np.diag(np.where(start.free, 0.0, np.exp(-log)))
        return 0.5 * ((3 - free) * log + np.linalg.slogdet(H)[1] - b @ np.linalg.solve(H, b))

    best = np.exp(minimize_scalar(minus, bounds=(-25, 15), method="bounded").x)
    monkeypatch.setattr("skcfl.pooling.normal_equations.LEAST_PRIOR", 1e-9)
    fit.population.prior = np.array([10.0])
    assert_allclose(explaining_prior(fit.population, fit.sums), best, rtol=2e-3)


def test_explaining_priors_have_a_least_variance():
    pool, options, start = opened(*drawn(), prior="auto")
    fit = evaluate(pool, start)
    A = fit.sums["curvature"]
    fit.sums["slopes"] = -fit.population.means @ A[0]  # the rows are best without slopes
    for prior in (10.0, 1e-9):
        fit.population.prior = np.array([prior])
        found = explaining_prior(fit.population, fit.sums)
        known = np.linalg.inv(np.linalg.inv(A[0])[:2, :2])
        # A smaller one is not raised.
        assert_allclose(found, min(prior, LEAST_PRIOR / np.diag(known).mean()), rtol=1e-6)


@pytest.mark.parametrize(
    "n, n_rows, spread, kind, most", [(20, 12, 20.0, "diag", 23), (6, 3, 0.5, "diag", 105)]
)
def test_priors_settle_in_few_exchanges(n, n_rows, spread, kind, most):
    """Where the best prior has no variance, and where it changes with the covariance."""
    rng = np.random.RandomState(0)
    groups = np.repeat(np.arange(n), n_rows)
    X = rng.standard_normal((len(groups), 4))
    W = rng.standard_normal(4) + spread * rng.standard_normal((n, 4))
    y = (X * W[groups]).sum(axis=1) + spread * rng.standard_normal(n)[groups]
    y += rng.standard_normal(len(groups))
    pool, options, start = opened(X, y, groups, kind, "auto")
    fit = maximise(pool, start, options)
    assert fit.converged
    assert fit.n_iter <= most


def test_priors_that_move_by_a_ratio_are_moved_to_their_end():
    pool, _, start = opened(*drawn(), prior="auto")
    fit, move = evaluate(pool, replace(start, prior=np.array([8.0]))), None
    logs = [2.0, 1.0, 0.5]
    for last, new in zip(logs, logs[1:], strict=False):
        before = replace(fit.population, prior=np.exp([last]))
        fit.population.prior = np.exp([new])
        fit, move = em._farther(fit, before, move)
    assert move is None
    assert_allclose(np.log(fit.population.prior), 0.0, atol=1e-12)
    # Moves that grow are not extrapolated.
    fit, move = em._farther(fit, replace(before, prior=np.exp([0.5])), np.array([0.1, 0.0]))
    assert move is not None


@pytest.mark.parametrize("kind", ["one", "crisp", "continuum"])
def test_exchanges_of_default_fits_of_eight_clients(kind):
    rng = np.random.RandomState(0)
    groups = np.repeat(np.arange(8), 30)
    X, W = rng.standard_normal((240, 4)), rng.standard_normal((8, 4))
    W = {"one": 0 * W + W[0], "crisp": 2 * W[np.arange(8) % 2], "continuum": W[0] + W / 2}[kind]
    y = (X * W[groups]).sum(axis=1) + rng.standard_normal(240)
    model = skcfl.PartialPoolingRegressor(random_state=0).fit(X, y, groups=groups)
    assert model.calls_ <= 50
