"""Coordinates of the last steps: their gradient is that of the likelihood."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling.em import evaluate
from skcfl.pooling.population import Population
from skcfl.pooling.quasi_newton import Chart


@pytest.mark.parametrize("prior", [{}, {"shrinkage": 5.0, "spent": 7.0}, {"df": 3.5}])
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
        free=np.array([False, False, True]),
        varying=np.ones(3, dtype=bool),
        **prior,
    )
    chart = Chart(evaluate(pool, population), np.eye(6), False, "df" not in prior)
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
