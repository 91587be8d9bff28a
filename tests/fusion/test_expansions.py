"""Expansions of the clients' objectives, with which a server goes on between two checks."""

import numpy as np
import pytest
from fusion_problems import make_problem, make_rows
from numpy.testing import assert_allclose

import skcfl
from skcfl.calls.curvatures import Prox
from skcfl.calls.first_order import LocalUpdate, ObjectivesGradients
from skcfl.federation import Faults, InProcessFederation
from skcfl.fusion.admm import admm
from skcfl.fusion.expansions import can_expand
from skcfl.fusion.fpfc_problem import FPFCProblem
from skcfl.fusion.fpfc_rounds import FPFCOptions, fpfc
from skcfl.fusion.mean_regularised import mean_regularised
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import complete_graph
from skcfl.models import LinearModel
from skcfl.penalties import L2, SCAD, SquaredL2

N = 6


def posed(loss, penalty=None, **options):
    given = {"n_rows": 25, "d": 3, "n_clusters": 2, "alpha": 0.05, "fit_intercept": True}
    return make_problem(loss, N, penalty=penalty, **{**given, **options})


def test_expansions_of_parabolas_are_the_objectives():
    problem, rng = posed("squared_error"), np.random.RandomState(1)
    pool, (W, V) = problem.pool, rng.standard_normal((2, N, 4))
    expansions, rates = problem.expansions(W), rng.uniform(0.01, 0.1, N)
    assert_allclose(expansions.slopes(V), pool.ask(ObjectivesGradients, V)[1], rtol=1e-9)
    assert_allclose(expansions.prox(V, 0.3), pool.ask(Prox, V, 0.3), rtol=1e-9)
    assert_allclose(expansions.prox(V, 0.7), pool.ask(Prox, V, 0.7), rtol=1e-9)
    ours = expansions.steps(V, 5, rates, W, 0.3)
    assert_allclose(ours, pool.ask(LocalUpdate, V, 5, rates, center=W, rho=0.3), rtol=1e-9)


def test_expansions_of_other_losses():
    """Asked for once; proximal points are Newton steps; what they do not foresee is noticed."""
    problem, V = posed("log_loss"), np.random.RandomState(1).standard_normal((N, 4))
    pool, W = problem.pool, np.zeros((N, 4))
    before, expansions = pool.ledger.calls, problem.expansions(W)
    assert problem.expansions(W.copy()) is expansions and pool.ledger.calls == before + 1
    newton_step = pool.ask(Prox, V, 0.3, x0=W, max_iter=1)
    assert_allclose(expansions.prox(V, 0.3), newton_step, rtol=1e-8, atol=1e-10)
    for away, wanted in ((0.1, True), (100.0, False)):
        slopes = pool.ask(ObjectivesGradients, W + away)[1]
        assert expansions.foresees(W + away, slopes) == wanted
    assert problem.expansions(W + 1.0) is not expansions


@pytest.mark.parametrize(
    ("loss", "n_rows", "wanted"),
    [
        ("log_loss", 25, True),
        ("huber", 25, True),
        ("log_loss", 3, False),  # their Hessians would show rows
        ("poisson", 25, False),  # curvatures have no bound
    ],
)
def test_who_is_expanded(loss, n_rows, wanted):
    assert can_expand(posed(loss, n_rows=n_rows).pool) == wanted


def test_clients_that_do_not_answer_are_not_expanded():
    federation = InProcessFederation(*make_rows("log_loss", N, 25), faults=Faults(dead=[3]))
    pool = federation.open(LinearModel("log_loss").bind(2, n_classes=2), random_state=0)
    problem = FusionProblem(pool, complete_graph(N), L2())
    assert problem.expansions(np.zeros((N, 3))) is None
    assert not can_expand(pool)


@pytest.mark.parametrize(
    ("solve", "loss"),
    [(admm, "log_loss"), (admm, "huber"), (mean_regularised, "log_loss"), (admm, "squared_error")],
)
def test_the_same_solution_takes_fewer_exchanges(solve, loss):
    penalty = L2() if solve is admm else SquaredL2()
    problem, calls, found = posed(loss, penalty), [], []
    problem.local_models()
    for expand in (False, True):
        before = problem.pool.ledger.calls
        result = solve(problem, 0.01, tol=1e-7, expand=expand)[0]
        found.append(result)
        calls.append(problem.pool.ledger.calls - before)
        assert result.converged
        assert result.extra["dual_gap"] <= 1e-7 * result.objective
    assert_allclose(found[0].objective, found[1].objective, rtol=2e-7)
    assert_allclose(found[0].params, found[1].params, atol=5e-3)
    assert calls[1] < calls[0]


@pytest.mark.parametrize(
    ("loss", "local_steps"), [("log_loss", 10), ("log_loss", None), ("squared_error", None)]
)
def test_stationary_points_of_expanded_rounds_are_the_true_ones(loss, local_steps):
    problem = FPFCProblem(posed(loss).pool, SCAD())
    problem.prepare()
    calls, found = [], []
    for expand in (False, True):
        before = problem.pool.ledger.calls
        options = FPFCOptions(
            local_steps=local_steps, tol=1e-4, n_iter_no_change=None, expand=expand
        )
        result, _ = fpfc(problem, 0.3, options, np.random.RandomState(0))
        assert result.converged and result.extra["residual"] <= 1e-4
        found.append(result)
        calls.append(problem.pool.ledger.calls - before)
    assert_allclose(found[0].params, found[1].params, atol=1e-3)
    assert 3 * calls[1] < calls[0]


def test_default_fits_of_classifiers_take_few_exchanges():
    """Counts do not vary; benchmarks/fits.py --only exchanges prints them for more tables."""
    rng = np.random.RandomState(0)
    X, g = rng.standard_normal((180, 4)), np.repeat(np.arange(6), 30)
    z = (X * 2.0 * rng.standard_normal((2, 4))[g % 2]).sum(axis=1)
    y = (z + rng.logistic(size=180) > 0).astype(int)
    model = skcfl.ConvexClusteredFLClassifier(random_state=0).fit(X, y, groups=g)
    assert model.calls_ <= 200
