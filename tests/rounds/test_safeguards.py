"""Safeguards and savings of the rounds, one by one."""

from types import SimpleNamespace

import numpy as np
import pytest
from line_clients import line_pool

from skcfl import FedAvgRegressor, IFCARegressor
from skcfl.calls.first_order import LocalUpdate
from skcfl.federation.inprocess import InProcessSite
from skcfl.models._local_model import choose
from skcfl.rounds.alternate import Options, alternate
from skcfl.rounds.choice import Known, LeastLoss
from skcfl.rounds.loop import run_rounds
from skcfl.rounds.record import RoundRecord
from skcfl.rounds.safeguards import FrozenClients, HalvedSteps
from skcfl.rounds.state import Answers, Draw, State
from skcfl.rounds.stop import StopRule
from skcfl.rounds.update import Average, GradientStep, Step, StepSizes


def start(theta, n_clients):
    return State(np.array(theta, dtype=float), np.full(n_clients, -1))


def one_round(pool, state, update, rule=None):
    draw, record = Draw(pool), RoundRecord(pool.ledger)
    rule = LeastLoss() if rule is None else rule
    return run_rounds(state, draw, rule, update, record, StopRule(), max_iter=1)


def test_an_empty_cluster_takes_the_model_of_the_client_that_is_served_worst():
    pool = line_pool([1.0, 1.1, 0.9, 5.0], 10)
    options = Options(max_iter=1, polish=False, tol=0)
    result = alternate(pool, np.array([[1.0], [100.0]]), options, np.random.RandomState(0))
    assert result.cluster_params[1, 0] == pytest.approx(5.0, abs=0.1)


def test_clients_that_were_sent_one_model_are_asked_again_before_the_end():
    # Near the first models everybody is best served by the second; later some are not.
    pool = line_pool([0.0, 0.2, 1.0, 1.2], 10)
    draw, rule, record = Draw(pool), LeastLoss(), RoundRecord(pool.ledger)
    frozen = FrozenClients(1, rule, draw.everyone)
    asked = []
    confirm = frozen.confirm
    frozen.confirm = lambda state: asked.append((state.held >= 0).any()) or confirm(state)
    state = run_rounds(
        start([[-2.0], [0.6]], 4),
        draw,
        rule,
        GradientStep(StepSizes(2, 0.3)),
        record,
        StopRule(1e-6),
        300,
        [frozen],
    )
    assert asked == [True]
    # One of them would leave now: all are asked anew from here on.
    state.theta = np.array([[0.1], [1.1]])
    assert not confirm(state)
    np.testing.assert_array_equal(state.labels, [0, 0, 1, 1])
    assert state.held is None
    assert state.stable == 0
    assert confirm(state)


@pytest.mark.parametrize("estimator", [FedAvgRegressor, IFCARegressor])
@pytest.mark.parametrize("seed", [2, 9])
def test_a_step_that_overflows_at_some_clients_is_taken_back_and_blames_nobody(estimator, seed):
    """Counts and heavy-tailed features: the first step is too long for a few clients."""
    rng = np.random.default_rng(seed)
    groups, X = np.repeat(np.arange(30), 3), rng.standard_t(2, size=(90, 4))
    y = rng.poisson(np.exp(np.clip(2 + X[:, 0] + 0.5 * X[:, 1], -5, 8)))
    model = estimator(n_clusters=2) if estimator is IFCARegressor else estimator()
    model.set_params(loss="poisson", random_state=0).fit(X, y, groups=groups)
    assert len(model.rejected_clients_) == 0


def test_a_client_that_is_never_finite_again_is_rejected_and_halves_no_step(monkeypatch):
    """Models under which its answers were finite are not finite either now: no step's fault."""
    pool = line_pool([1.0, 1.1, 0.9, 1.05], 10)
    answer, asked = InProcessSite.answer, []

    def failing(site, call, arguments):
        asked.append(call)
        answers = answer(site, call, arguments)
        if asked.count("best_response_sums") > 3 and len(answers["losses"]) == 4:
            answers["losses"][3] = np.nan
            if call == "best_response_sums":
                answers["non_finite"] = np.arange(4) == 3
        return answers

    monkeypatch.setattr(InProcessSite, "answer", failing)
    update = GradientStep(StepSizes(1, 0.3))
    draw, record = Draw(pool), RoundRecord(pool.ledger)
    guards = [HalvedSteps(update)]
    state = start([[0.0]], 4)
    state = run_rounds(state, draw, LeastLoss(), update, record, StopRule(), 6, guards)
    assert np.flatnonzero(pool.rejected).tolist() == [3]
    assert (update.rates.cuts == 1.0).all() and np.isfinite(state.theta).all()
    # One look at the models before, and the round is asked again without the client.
    assert asked.count("best_response_sums") == 7 and asked.count("losses") == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_no_number_is_never_chosen(bad):
    losses = np.array([[bad, 2.0, 3.0], [4.0, bad, 5.0], [bad, bad, 6.0]])
    answers = Answers(None, losses=losses)
    np.testing.assert_array_equal(LeastLoss().choose(answers, None, final=True), [1, 0, 2])
    np.testing.assert_array_equal(choose(losses), [1, 0, 2])


@pytest.mark.parametrize("uniform", [False, True])
def test_steps_are_one_over_the_mean_curvature_by_rows(uniform):
    """A client of many rows has its share in its cluster's gradient, and in its curvature."""
    sizes, curvature = np.array([2, 18, 5, 5]), np.array([1.0, 9.0, 4.0, 2.0])
    pool = line_pool([1.0, 1.0, -1.0, -1.0], sizes, curvature=curvature)
    share = np.ones(4) if uniform else pool.client_weights
    together = np.array([0, 0, 1, 1])
    mean = np.bincount(together, share * curvature) / np.bincount(together, share)
    rates = StepSizes.from_curvature(pool, 2, share)
    answers = Answers(Draw(pool, weights=share).everyone, choice=together)
    np.testing.assert_allclose(rates.of_clusters(answers), 1.0 / mean)
    # One step of gradients is then the exact model of a cluster whose clients agree.
    state = start([[0.5], [-0.5]], 4)
    draw, record = Draw(pool, weights=share), RoundRecord(pool.ledger)
    state = run_rounds(state, draw, LeastLoss(), GradientStep(rates), record, StopRule(), 1)
    np.testing.assert_allclose(state.theta[:, 0], [1.0, -1.0])
    # The paper's division by all clients: the mean over all of them, for all clusters.
    rates = StepSizes.from_curvature(pool, 2, share, division="all")
    expected = 0.95 * 2 / np.average(curvature, weights=share)
    np.testing.assert_allclose(rates.of_clusters(answers), expected)


def test_a_step_that_was_too_long_is_halved_for_good():
    pool = line_pool([1.0, 1.0, -1.0, -1.0], 10)
    update = GradientStep(StepSizes.from_curvature(pool, 2, pool.client_weights))
    before = start([[0.5], [-0.5]], 4)
    first = one_round(pool, before, update).theta
    rates = update.last.rates.copy()
    new = update.again(np.array([True, False]))
    np.testing.assert_allclose(update.last.rates, rates * [0.5, 1.0])
    np.testing.assert_allclose(new - before.theta, (first - before.theta) * [[0.5], [1.0]])
    # Later steps of that cluster are as short, until its model is replaced.
    answers = Answers(Draw(pool).everyone, choice=np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(update.rates.of_clusters(answers), rates * [0.5, 1.0])
    update.forget(np.array([0]))
    np.testing.assert_allclose(update.rates.of_clusters(answers), rates)
    assert update.last is None


@pytest.mark.parametrize("rule", [LeastLoss(), Known([0, 0, 1, 1])])
def test_a_step_that_raised_the_loss_is_taken_again(rule):
    pool = line_pool([1.0, 1.2, -1.0, -1.2], 10)
    update = GradientStep(StepSizes(2, 2.5))
    guards = [HalvedSteps(update)]
    record = RoundRecord(pool.ledger, keep_rounds=True)
    state = start([[0.5], [-0.5]], 4)
    run_rounds(state, Draw(pool), rule, update, record, StopRule(0), 2, guards)
    first, second = (params for params, _ in record.kept)
    np.testing.assert_allclose(second - state.theta, 0.5 * (first - state.theta))


@pytest.mark.parametrize(
    "lost, held, bad",
    [
        (np.inf, None, True),
        (np.nan, None, True),
        (np.inf, np.array([1, -1, -1, -1]), False),  # it was not sent the model again
        (np.nan, np.array([1, -1, -1, -1]), True),
        (0.2, None, False),
        (0.4, None, True),
    ],
)
def test_a_step_after_which_a_loss_is_no_number_is_taken_again(lost, held, bad):
    who = Draw(line_pool([1.0, 1.0, -1.0, -1.0], 10)).everyone
    last = Step(who, np.array([0, 0, 1, 1]), np.full(4, 0.3), None, None, None)
    again = np.array([[7.0], [7.0]])
    update = SimpleNamespace(last=last, average=Average(), again=lambda some: again)
    losses = np.full((4, 2), 0.3)
    losses[0, 0] = lost
    state = start([[1.0], [-1.0]], 4)
    state.held = held
    theta = HalvedSteps(update).instead(Answers(who, losses), state)
    if bad:
        np.testing.assert_array_equal(theta, [[7.0], [-1.0]])
    else:
        assert theta is None


def test_local_steps_that_were_too_long_are_halved_for_good():
    pool = line_pool([1.0, 2.0], 10)
    w = pool.ask(LocalUpdate, np.zeros((2, 1)), 60, [15.0, 0.5], monotone=True)
    np.testing.assert_allclose(w[:, 0], [1.0, 2.0], atol=1e-3)


def test_rounds_have_a_participant_whose_rows_weigh():
    pool = line_pool([0.0, 1.0, 2.0, 3.0], 10)
    weights = np.array([0.0, 0.0, 0.0, 1.0])
    draw = Draw(pool, 0.25, np.random.RandomState(0), weights)
    assert all(draw().members == [3] for _ in range(5))
    assert len(Draw(pool, 0.01, np.random.RandomState(0))().members) == 1
    nobody = Draw(pool, 0.25, np.random.RandomState(0), np.zeros(4))
    assert len({draw.members[0] for draw in (nobody() for _ in range(20))}) == 4
