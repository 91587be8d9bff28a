"""Rounds from starts to results, by clients' own choices and by those of the server."""

import numpy as np
import pytest
from line_clients import line_pool
from sklearn.cluster import KMeans

from skcfl.calls.first_order import LocalUpdate, Losses, Objectives, ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.alternate import Options, Rounds, alternate
from skcfl.rounds.loss_clusters import LossClusters, embed, match
from skcfl.rounds.polish import EXACT, ROUGH, solve_pooled


def test_a_diverged_model_is_left():
    pool = line_pool([1.0, 1.0, 3.0, 3.0], 10)
    result = alternate(
        pool, np.array([[np.nan], [1.2], [2.5]]), Options(), np.random.RandomState(0)
    )
    assert result.labels[0] == result.labels[1] != result.labels[2] == result.labels[3]
    np.testing.assert_allclose(result.cluster_params[result.labels, 0], [1, 1, 3, 3])


def test_starts_compete_by_the_loss_without_the_penalty():
    pool = line_pool([1.0, 3.0], 20, alpha=0.5, noise=1.0)
    starts = np.array([[1.0], [3.0]])
    result = Rounds(pool, starts, Options(), np.random.RandomState(0)).finish()
    theta = result.cluster_params[result.labels]
    loss = np.average(pool.ask(Losses, theta)[[0, 1], [0, 1]], weights=pool.client_weights)
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
        theta, *_ = solve_pooled(pool, labels, np.zeros((2, 1)))
        values.append(np.average(pool.ask(Objectives, theta[labels]), weights=pool.client_weights))
    assert abs(values[0] - values[1]) > 1e-3
    options = Options(max_iter=1, step_size=1e-12, empty_cluster="keep")
    start = np.array([[-2.1], [-0.5]])
    result = alternate(pool, start, options, np.random.RandomState(0))
    assert result.objective == pytest.approx(min(values), rel=1e-9)


def test_fits_that_are_only_compared_settle_where_few_choose_anew():
    rng = np.random.RandomState(0)
    pool = line_pool(rng.standard_normal(400), 3, curvature=rng.uniform(0.5, 2.0, 400))
    start = np.array([[0.0], [0.3], [0.6]])
    exact, rough = (
        alternate(pool, start, Options(exact=exact, max_iter=1, step_size=1e-12), rng)
        for exact in (EXACT, ROUGH)
    )
    losses = pool.ask(Losses, exact.cluster_params)
    np.testing.assert_array_equal(losses.argmin(axis=1), exact.labels)
    assert len(rough.history["objective"]) < len(exact.history["objective"]) / 2
    assert rough.objective == pytest.approx(exact.objective, rel=0.02)


def pool_of(seed=0, n_clients=12, d=4, sigma=0.1):
    rng = np.random.RandomState(seed)
    codes = np.repeat(np.arange(n_clients), 30)
    theta = rng.standard_normal((2, d)) + np.array([[2.0], [-2.0]])
    X = rng.standard_normal((len(codes), d))
    y = np.einsum("rd,rd->r", X, theta[codes % 2]) + sigma * rng.standard_normal(len(codes))
    return open_rows(LinearModel(fit_intercept=False).bind(d), X, y, codes, n_clients), theta


#: Rounds, as many as they are, and nothing after them.
STILL = {"tol": 0, "polish": False, "empty_cluster": "keep"}


def rule_for(pool, K=2, **options):
    return LossClusters(pool.n_clients, K, np.random.RandomState(0), **options)


@pytest.mark.parametrize("averaging", ["gradient", "model"])
def test_a_round_is_the_algorithms(averaging):
    """Options II and I: the weighted mean of a group's gradients, or of its trained models."""
    pool, _ = pool_of()
    theta = np.random.RandomState(1).standard_normal((2, 4))
    options = Options(max_iter=1, averaging=averaging, local_steps=3, step_size=0.05, **STILL)
    result = alternate(pool, theta, options, np.random.RandomState(0), rule=rule_for(pool))
    losses = pool.ask(Losses, theta)
    groups = KMeans(2, n_init=10, random_state=0).fit_predict(embed(losses, "log"))
    model = match(np.array([losses[groups == q].sum(axis=0) for q in range(2)]))
    choice = model[groups]
    if averaging == "model":
        moved = pool.ask(LocalUpdate, theta[choice], 3, 0.05)
    else:
        moved = theta[choice] - 0.05 * pool.ask(ObjectivesGradients, theta[choice])[1]
    expected = np.array([moved[choice == j].mean(axis=0) for j in range(2)])
    np.testing.assert_allclose(result.cluster_params, expected, rtol=1e-10)


@pytest.mark.parametrize("rule", ["IFCA", "CLoVE"])
def test_shared_parameters_stay_equal_and_are_sent_once(rule):
    pool, theta = pool_of()
    shared = np.array([True, False, True, False])
    options = Options(max_iter=6, step_size=0.1, shared=shared, **STILL)
    chosen = None if rule == "IFCA" else rule_for(pool)
    result = alternate(pool, theta, options, np.random.RandomState(0), rule=chosen)
    first, second = result.cluster_params
    np.testing.assert_array_equal(first[shared], second[shared])
    assert (first[~shared] != second[~shared]).all()
    # All models down once, their losses up; then the number of the cluster, and a gradient up.
    down = 12 * (2 * 4 - 2 + (rule == "CLoVE"))
    np.testing.assert_array_equal(result.history["floats_down"], down)
    if rule == "CLoVE":
        np.testing.assert_array_equal(result.history["floats_up"], 12 * (2 + 1 + 4))


def test_shared_parameters_move_by_all_participants():
    pool, theta = pool_of()
    shared = np.array([True, True, False, False])
    theta[1, :2] = theta[0, :2]
    options = Options(max_iter=1, step_size=0.1, tol=0, polish=False, shared=shared)
    result = alternate(pool, theta, options, np.random.RandomState(0))
    choice = pool.ask(Losses, theta).argmin(axis=1)
    g = pool.ask(ObjectivesGradients, theta[choice])[1]
    first, second = result.cluster_params
    together, of_second = g.mean(axis=0), g[choice == 1].mean(axis=0)
    np.testing.assert_allclose(first[:2], (theta[0] - 0.1 * together)[:2], rtol=1e-10)
    np.testing.assert_allclose(second[2:], (theta[1] - 0.1 * of_second)[2:], rtol=1e-10)


def test_too_long_a_step_with_shared_parameters_is_halved_for_all():
    """The safeguard of automatic steps never lets the shared parameters part."""
    pool, theta = pool_of(sigma=1.0)
    shared = np.array([True, False, False, False])
    options = Options(max_iter=40, tol=0, polish=False, shared=shared)
    result = alternate(pool, 100.0 * theta, options, np.random.RandomState(0))
    assert np.ptp(result.cluster_params[:, 0]) == 0.0
    objective = result.history["objective"]
    assert objective[-1] < 1e-2 * objective[0]


@pytest.mark.parametrize("averaging", ["gradient", "model"])
def test_a_first_round_that_is_dealt_deals_the_clients_evenly(averaging):
    pool, theta = pool_of()
    options = {"max_iter": 1, "averaging": averaging, "dealt_first": True, "keep_rounds": True}
    options = Options(tol=0, polish=False, **options)
    for rule in (None, rule_for(pool)):
        result = alternate(pool, theta, options, np.random.RandomState(3), rule=rule)
        np.testing.assert_array_equal(np.bincount(result.extra["round_labels"][0]), [6, 6])
