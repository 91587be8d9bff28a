"""What a stack says of clients, against draws: one population by its share, then parameters."""

import numpy as np
import pytest

from skcfl import PartialPoolingRegressor
from skcfl.calls.posteriors_asked import LeftOutSums
from skcfl.federation import InProcessFederation
from skcfl.models import LinearModel
from skcfl.pooling.population import Population
from skcfl.pooling.stacking import Stack, _cost, _shares

N_DRAWS = 200_000
# Standard errors of the draws' moments within which exact ones lie; about 300 are compared.
WITHIN = 4.5
GROUPS = np.array([0, 0, 1, 1, 1, 1, 1, 1])
SHARES = np.array([0.5, 0.2, 0.3])


def opened():
    """Two clients, with fewer rows and with more rows than parameters."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(len(GROUPS), 2)), 2.0 + 3.0 * rng.normal(size=len(GROUPS))
    model = LinearModel(alpha=0.0, standardize=False).bind(2)
    pool = InProcessFederation(X, y, GROUPS).open(model, random_state=0)
    return pool, np.column_stack([X, np.ones(len(y))]), y


def made_stack():
    """Populations with means, covariances and noise unlike each other's."""
    rng = np.random.default_rng(1)
    square = 0.7 * rng.normal(size=(3, 3))
    covariances = np.array([2.0, 0.3, 1.0]), square @ square.T, np.array([0.0, 0.0, 0.8])
    populations = [
        Population(
            kind="full" if covariance.ndim == 2 else "diag",
            means=1.5 * rng.normal(size=(1, 3)),
            covariance=covariance,
            weights=np.ones(1),
            dispersion=dispersion,
            prior=np.full(1, np.inf),
            unit=np.ones(3),
            free=np.array([False, False, True]),
            varying=np.array([name != "intercept"] * 2 + [True]),
        )
        for name, covariance, dispersion in zip(
            ("diag", "full", "intercept"), covariances, (0.5, 1.0, 2.0), strict=True
        )
    ]
    roots = 0.4 * rng.normal(size=(3, 1, 3, 3))
    errors = list(roots @ roots.swapaxes(2, 3))
    return Stack(["diag", "full", "intercept"], populations, errors, SHARES)


def drawn(stack, rng):
    """Populations by their shares, means by what is known of these, and a client of each."""
    which = rng.choice(len(stack.shares), p=stack.shares, size=N_DRAWS)
    means, params = np.empty((2, N_DRAWS, 3))
    for c, (population, errors) in enumerate(zip(stack.populations, stack.errors, strict=True)):
        mine, S = which == c, population.covariance_matrix()
        means[mine] = rng.multivariate_normal(population.means[0], errors[0], mine.sum())
        params[mine] = means[mine] + rng.multivariate_normal(np.zeros(3), S, mine.sum())
    return which, means, params


def drawn_given_rows(stack, rng, Z, y):
    """Parameters of a client given its rows, by conditioning of draws (Matheron), and noise."""
    which, _, params = drawn(stack, rng)
    noise = np.array([population.dispersion for population in stack.populations])[which]
    said = params @ Z.T + np.sqrt(noise)[:, None] * rng.normal(size=(N_DRAWS, len(y)))
    for c, population in enumerate(stack.populations):
        mine, S = which == c, population.covariance_matrix()
        gain = S @ Z.T @ np.linalg.inv(Z @ S @ Z.T + population.dispersion * np.eye(len(y)))
        params[mine] += (y - said[mine]) @ gain.T
    return params, noise


def check_moments(draws, mean, covariance):
    """Mean and covariance of draws (n, p) are these, but for the error of the draws."""
    away = draws - mean
    error = away.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(away.mean(axis=0)) <= WITHIN * error).all()
    products = away[:, :, None] * away[:, None, :]
    error = products.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(products.mean(axis=0) - covariance) <= WITHIN * error).all()


def test_clients_with_rows():
    pool, Z, y = opened()
    stack = made_stack()
    _, means, covariances, noise = stack.posteriors(pool, dense=True)
    _, _, variances, _ = stack.posteriors(pool)
    rng = np.random.default_rng(2)
    for i in range(2):
        mine = i == GROUPS
        params, phi = drawn_given_rows(stack, rng, Z[mine], y[mine])
        check_moments(params, means[i], covariances[i])
        assert noise[i] == pytest.approx(SHARES @ [0.5, 1.0, 2.0])
        assert phi.mean() == pytest.approx(noise[i], rel=0.02)
        np.testing.assert_allclose(variances[i], np.diag(covariances[i]))


def test_population_and_new_clients():
    stack = made_stack()
    rng = np.random.default_rng(3)
    _, means, params = drawn(stack, rng)
    check_moments(means, stack.means[0], stack.mean_errors[0])
    check_moments(params, stack.means[0], stack.prior_covariance())


def test_standard_deviations_of_predictions():
    """Those of a fit are what its own stack draws, in the user's units."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(12), 5)
    X = 3.0 + 2.0 * rng.normal(size=(60, 2))
    own = rng.normal(size=(12, 2)) @ [[1.0, 0.6], [0.0, 0.5]]
    y = (X * own[groups]).sum(axis=1) + 2.0 * rng.normal(size=12)[groups] + rng.normal(size=60)
    model = PartialPoolingRegressor(n_clusters=1, df=np.inf)
    model.set_params(unseen="average").fit(X, y, groups=groups)
    stack = model._stack
    # Populations that nearly all counts for would show nothing.
    stack.shares = np.full(len(stack.shares), 1.0 / len(stack.shares))
    assert len(stack.shares) > 1
    new = np.array([[0.0, 5.0], [4.0, 4.0]])
    std = model.predict(new, groups=[99, 99], return_std=True)[1]
    which, _, params = drawn(stack, rng)
    Z = np.column_stack([model._scaling.transform(new), np.ones(2)])
    noise = np.array([population.dispersion for population in stack.populations])[which]
    said = params @ Z.T + np.sqrt(noise)[:, None] * rng.normal(size=(N_DRAWS, 2))
    squares = (said - said.mean(axis=0)) ** 2
    error = squares.std(axis=0) / np.sqrt(N_DRAWS)
    assert (np.abs(squares.mean(axis=0) - std**2) <= WITHIN * error).all()


def test_what_variances_cost():
    """A slope's variance 1.5 nats, an intercept's or a correlation's a tenth; none costs none."""
    pool, stack = opened()[0], made_stack()
    costs = [_cost(pool, population) for population in stack.populations]
    assert costs == pytest.approx([3 + 0.1, 3 + 0.1 + 0.3, 0.1])
    assert _cost(pool, stack.populations[0].crisp(estimated=False)) == 0.0


def test_shares_are_the_least_of_losses_and_costs():
    """Against a grid of the simplex: the loss of left-out rows, and costs in units of noise."""
    pool, _, _ = opened()
    stack = made_stack()
    shares, _, shortfall = _shares(pool, stack.populations, [None] * 3)
    assert not shortfall
    roots = [each.root for each in stack.populations]
    known = {
        "theta": np.concatenate([each.means for each in stack.populations]),
        "root": np.array([np.diag(root) if root.ndim == 1 else root for root in roots]),
        "dispersion": np.array([each.dispersion for each in stack.populations]),
    }

    def priced(w):
        return pool.ask(LeftOutSums, shares=w, **known)[0] + 0.5 * w @ [3.1, 3.4, 0.1]

    grid = np.array([[i, j, 20 - i - j] for i in range(21) for j in range(21 - i)]) / 20
    assert priced(shares) <= min(map(priced, grid)) + 1e-4
