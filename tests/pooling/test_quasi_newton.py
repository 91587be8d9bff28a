"""The last steps: of squared errors to the likelihood's maximum, else to where slopes vanish."""

from dataclasses import dataclass

import numpy as np
import pytest
from linear_starts import linear_start
from numpy.testing import assert_allclose

from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling import quasi_newton
from skcfl.pooling.em import evaluate, maximise, step
from skcfl.pooling.normal_equations import whitening
from skcfl.pooling.population import Population
from skcfl.pooling.quasi_newton import PATIENCE, Chart, settle

PRIORS = [
    {},
    {"shrinkage": 5.0, "spent": 7.0},
    {"df": 3.5},
    {"shrinkage": 5.0, "off_zero": True, "free": np.array([False, True, True])},
]


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("kind", ["diag", "full", "spherical", "none"])
def test_gradient_is_that_of_differences(kind, prior):
    rng = np.random.default_rng(0)
    X, groups = rng.normal(size=(60, 2)), np.repeat(np.arange(10), 6)
    y = X @ [1.0, -1.0] + rng.normal(size=10)[groups] + rng.normal(size=60)
    pool = InProcessFederation(X, y, groups).open(LinearModel().bind(2), random_state=0)
    full = np.array([[0.5, 0.2, 0.1], [0.2, 0.3, -0.1], [0.1, -0.1, 0.8]])
    population = Population(
        kind,
        means=rng.normal(size=(2, 3)),
        covariance=full if kind == "full" else np.diag(full),
        weights=np.array([0.4, 0.6]),
        dispersion=0.7,
        prior=np.array([2.0, 3.0]),
        unit=np.array([1.0, 0.5, 2.0]),
        varying=np.ones(3, dtype=bool),
        **{"free": np.array([False, False, True]), **prior},
    )
    chart = Chart(evaluate(pool, population), np.eye(6), float, "df" not in prior)
    z = chart.start + 0.3 * rng.normal(size=len(chart.start))
    gradient = chart.gradient(z, evaluate(pool, chart.at(z)))
    for i, slope in enumerate(gradient):
        step = 1e-5 * np.eye(len(z))[i]
        ahead, back = (evaluate(pool, chart.at(z + s)).value for s in (step, -step))
        assert_allclose(slope, (ahead - back) / 2e-5, rtol=1e-5, atol=1e-6)
    # Where it would vanish the dispersion has a floor, and the degrees of freedom have bounds.
    least, most = chart.start.copy(), chart.start.copy()
    least[chart.sizes[2] :] = -1e6
    assert 0.0 < chart.at(least).dispersion < 1e-11
    if not chart.df_known:
        most[-1] = 1e6
        assert_allclose([chart.at(least).df, chart.at(most).df], [2.5, 1e3])


TARGETS = {
    "log_loss": lambda z, rng: np.where(z + rng.logistic(size=len(z)) > 0, 1.0, -1.0),
    "poisson": lambda z, rng: rng.poisson(np.exp(z)).astype(float),
    "gamma": lambda z, rng: np.exp(z) * rng.gamma(2.0, 0.5, size=len(z)) + 1e-9,
}


def opened(loss, prior=1.0, decades=0.0, kind="diag", n_clients=12, n_rows=20):
    """A pool, options of a linear fit, and where it begins."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_clients * n_rows, 2))
    groups = np.repeat(np.arange(n_clients), n_rows)
    W = 0.7 * rng.normal(size=(n_clients, 3))
    y = TARGETS[loss]((X * W[groups, :2]).sum(axis=1) + W[groups, 2], rng)
    weights = 10.0 ** rng.uniform(-decades, decades, len(y))
    pool = InProcessFederation(X, y, groups, sample_weight=weights)
    pool = pool.open(LinearModel(loss=loss, alpha=0.0).bind(2), random_state=0)
    options, start, _ = linear_start(pool, prior)
    return pool, options, start.of_kind(kind, np.ones(3))


@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("loss", TARGETS)
def test_steps_along_slopes_end_where_em_does(loss, kind):
    pool, options, population = opened(loss, kind=kind)
    begin, asked = maximise(pool, population, options), []

    def evaluated(at):
        asked.append(evaluate(pool, at))
        return asked[-1]

    whiten = whitening(begin.population, begin.sums)
    fit = settle(evaluated, begin, whiten, options.dispersion_of, True, 1000, 1e-12)
    assert fit.converged and fit.value == max(each.value for each in [begin, *asked])
    last = asked[-1]
    still = step(pool, last.population, last.sums, options, newton=False)
    assert_allclose(still.coordinates(), last.population.coordinates(), atol=1e-4)
    assert_allclose(still.means, last.population.means, atol=1e-4)
    assert still.dispersion == pytest.approx(last.population.dispersion, rel=1e-5)


@pytest.mark.parametrize("kind", ["diag", "full"])
def test_rows_of_great_weight_do_not_stop_fits_early_nor_late(kind):
    pool, options, population = opened("log_loss", "auto", 3.0, kind, n_rows=8)
    fit = maximise(pool, population, options)
    assert fit.converged and fit.n_iter < 300
    assert fit.value > 0.6 * evaluate(pool, population).value


@dataclass
class Point:
    """What :func:`settle` knows of a place, in one coordinate."""

    value: float
    slopes: np.ndarray
    n_iter: int = 0
    converged: bool = False
    trail: tuple = ()

    @property
    def loglik(self):
        """The value, as there is no penalty."""
        return self.value


def settled(value, slope, monkeypatch, start=1.0, max_iter=1000):
    """Where steps along a slope end, and the places on the way."""

    class Line:
        def __init__(self, *args):
            self.start = np.array([start])

        def at(self, z):
            return z

        def gradient(self, z, point):
            return point.slopes

    places = []

    def at(z):
        places.append(float(z[0]))
        return Point(value(z[0]), np.array([slope(z[0])]))

    monkeypatch.setattr(quasi_newton, "Chart", Line)
    return settle(at, at(np.array([start])), None, None, True, max_iter, 1e-9), places


def test_steps_that_are_too_long_are_shortened(monkeypatch):
    """Whether the slope behind says so, or there is no likelihood."""
    fit, places = settled(lambda z: -20 * z**2, lambda z: -40 * z, monkeypatch)
    assert fit.converged and fit.value == pytest.approx(0.0, abs=1e-8) and len(places) < 8
    # The first step goes from 1 to -2, which is left out.
    assert places[1:3] == pytest.approx([-2.0, 0.1])
    fit, places = settled(
        lambda z: np.log(z) - z if z > 0 else np.nan, lambda z: 1 / z - 1, monkeypatch, 10.0
    )
    assert fit.converged and fit.value == pytest.approx(-1.0) and len(places) < 25
    fit, places = settled(lambda z: np.nan if z < 1 else 0.0, lambda z: -1.0, monkeypatch)
    assert not fit.converged and fit.value == 0.0 and len(places) < 10


def test_steps_get_longer_where_the_slope_stays(monkeypatch):
    fit, places = settled(
        lambda z: -abs(z), lambda z: -1e4 * np.clip(z, -1, 1), monkeypatch, 1000.0
    )
    assert places[:4] == [1000.0, 997.0, 991.0, 979.0]
    assert fit.converged and fit.value == pytest.approx(0.0, abs=1e-3) and len(places) < 30


def test_slopes_and_likelihood_at_odds_end_at_the_most_likely_place(monkeypatch):
    fit, places = settled(lambda z: -((z - 3) ** 2), lambda z: 1.0, monkeypatch)
    assert fit.converged and fit.value == max(-((z - 3) ** 2) for z in places)
    assert len(places) - np.argmin(np.abs(np.array(places) - 3)) == PATIENCE + 1
    assert len(fit.trail) == np.argmin(np.abs(np.array(places) - 3))
    # A few steps down before the likelihood rises are no reason to end.
    fit, _ = settled(lambda z: (z - 4) ** 2, lambda z: np.clip(12 - z, -1, 1), monkeypatch)
    assert fit.converged and fit.value == 64.0
