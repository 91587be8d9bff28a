"""Safeguards and savings of the rounds, one by one."""

import numpy as np
import pytest

from skcfl import IFCARegressor
from skcfl.datasets import make_clustered_regression
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.models._local_model import choose
from skcfl.rounds.loop import LeastLoss, Options, _Rounds, alternate
from skcfl.rounds.polish import solve_pooled


def line_pool(slopes, sizes, alpha=0.0, noise=0.0, curvature=1.0, seed=0):
    """Clients of one feature and no intercept, each with its own slope."""
    rng = np.random.RandomState(seed)
    codes = np.repeat(np.arange(len(slopes)), sizes)
    size = np.sqrt(np.broadcast_to(curvature, len(slopes)))[codes]
    X = (size * rng.choice([-1.0, 1.0], size=len(codes)))[:, None]
    y = X[:, 0] * np.asarray(slopes)[codes] + noise * rng.standard_normal(len(codes))
    model = LinearModel(alpha=alpha, fit_intercept=False, standardize=False).bind(1)
    return open_rows(model, X, y, codes, len(slopes))


def rounds(pool, theta, **options):
    return _Rounds(pool, theta, Options(**options), np.random.RandomState(0), None, LeastLoss())


def test_at_least_one_client_takes_part():
    data = make_clustered_regression(n_clients=8, n_clusters=2, random_state=0)
    model = IFCARegressor(2, participation=0.01, max_iter=5, polish=False, tol=0, random_state=0)
    model.fit(data.X, data.y, groups=data.groups)
    np.testing.assert_array_equal(model.history_["participants"], 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_is_never_chosen(bad):
    losses = np.array([[bad, 2.0, 3.0], [4.0, bad, 5.0], [bad, bad, 6.0]])
    np.testing.assert_array_equal(LeastLoss().choose(losses, None, None), [1, 0, 2])
    np.testing.assert_array_equal(choose(losses), [1, 0, 2])


def test_a_diverged_model_is_left():
    pool = line_pool([1.0, 1.0, 3.0, 3.0], 10)
    result = alternate(
        pool, np.array([[np.nan], [1.2], [2.5]]), Options(), np.random.RandomState(0)
    )
    assert result.labels[0] == result.labels[1] != result.labels[2] == result.labels[3]
    np.testing.assert_allclose(result.cluster_params[result.labels, 0], [1, 1, 3, 3])


def test_an_empty_cluster_takes_the_model_of_the_client_that_is_served_worst():
    pool = line_pool([1.0, 1.1, 0.9, 5.0], 10)
    loop = rounds(pool, [[1.0], [100.0]], max_iter=1, polish=False, tol=0)
    loop.run()
    assert loop.theta[1, 0] == pytest.approx(5.0, abs=0.1)


def test_starts_compete_by_the_loss_without_the_penalty():
    pool = line_pool([1.0, 3.0], 20, alpha=0.5, noise=1.0)
    result = alternate(pool, np.array([[1.0], [3.0]]), Options(), np.random.RandomState(0))
    theta = result.cluster_params[result.labels]
    loss = np.average(pool.losses(theta)[[0, 1], [0, 1]], weights=pool.client_weights)
    assert result.extra["loss"] == pytest.approx(loss, rel=1e-12)
    assert result.objective > loss + 0.1


def test_of_a_cycle_of_partitions_polishing_keeps_the_best():
    """The penalty is no part of the choice: a client leaves, its model shrinks, it comes back."""
    a = [9.09875769, 0.34486235, 1.26813442]
    b = [-0.51975065, -1.22830374, -0.33486015]
    pool = line_pool(b, [2, 1, 4], alpha=3.3783, curvature=a)
    together, apart = np.array([1, 1, 1]), np.array([1, 0, 1])
    values = []
    for labels in (together, apart):
        theta, _, _ = solve_pooled(pool, labels, np.zeros((2, 1)))
        values.append(np.average(pool.objectives(theta[labels]), weights=pool.client_weights))
    assert abs(values[0] - values[1]) > 1e-3
    options = Options(max_iter=1, step_size=1e-12, empty_cluster="keep")
    start = np.array([[-2.1], [-0.5]])
    result = alternate(pool, start, options, np.random.RandomState(0))
    assert result.objective == pytest.approx(min(values), rel=1e-9)


def test_clients_that_were_sent_one_model_are_asked_again_before_the_end():
    # Near the first models everybody is best served by the second; later some are not.
    pool = line_pool([0.0, 0.2, 1.0, 1.2], 10)
    start = np.array([[-2.0], [0.6]])
    options = {"empty_cluster": "keep", "step_size": 0.3, "polish": False, "tol": 1e-6}
    saving = rounds(pool, start, stable_rounds=1, **options)
    asked = []
    ask = saving._choose_all
    saving._choose_all = lambda rule=None: asked.append(saving.fixed is not None) or ask(rule)
    saving.run()
    assert asked == [True]
    # One of them would leave now: all are asked anew from here on.
    saving.theta = np.array([[0.1], [1.1]])
    assert not saving._confirmed()
    np.testing.assert_array_equal(saving.labels, [0, 0, 1, 1])
    assert saving.fixed is None
    assert saving._confirmed()


@pytest.mark.parametrize("weights", ["n_samples", "uniform"])
def test_steps_are_one_over_the_mean_curvature_by_rows(weights):
    """A client of many rows has its share in its cluster's gradient, and in its curvature."""
    sizes, curvature = np.array([2, 18, 5, 5]), np.array([1.0, 9.0, 4.0, 2.0])
    pool = line_pool([1.0, 1.0, -1.0, -1.0], sizes, curvature=curvature)
    share = sizes if weights == "n_samples" else np.ones(4)
    together = np.array([0, 0, 1, 1])
    mean = np.bincount(together, share * curvature) / np.bincount(together, share)
    loop = rounds(pool, [[0.5], [-0.5]], weights=weights)
    np.testing.assert_allclose(loop._cluster_rates(loop.everyone, together), 1.0 / mean)
    # One step of gradients is then the exact model of a cluster whose clients agree.
    loop._round()
    np.testing.assert_allclose(loop.theta[:, 0], [1.0, -1.0])
    # The paper's division by all clients: the mean over all of them, for all clusters.
    loop = rounds(pool, [[0.5], [-0.5]], weights=weights, division="all")
    expected = 0.95 * 2 / np.average(curvature, weights=share)
    np.testing.assert_allclose(loop._cluster_rates(loop.everyone, together), expected)


def test_a_step_that_was_too_long_is_halved_for_good():
    pool = line_pool([1.0, 1.0, -1.0, -1.0], 10)
    loop = rounds(pool, [[0.5], [-0.5]], polish=False)
    loop._round()
    start, first, rates = loop.last.theta, loop.theta.copy(), loop.last.rates.copy()
    new = loop._step_again(np.array([True, False]))
    np.testing.assert_allclose(loop.last.rates, rates * [0.5, 1.0])
    np.testing.assert_allclose(new - start, (first - start) * [[0.5], [1.0]])
    # Later steps of that cluster are as short.
    np.testing.assert_allclose(
        loop._cluster_rates(loop.everyone, np.array([0, 0, 1, 1])), rates * [0.5, 1.0]
    )


def test_local_steps_that_were_too_long_are_halved_for_good():
    pool = line_pool([1.0, 2.0], 10)
    w = pool.local_update(np.zeros((2, 1)), 60, [15.0, 0.5], monotone=True)
    np.testing.assert_allclose(w[:, 0], [1.0, 2.0], atol=1e-3)
