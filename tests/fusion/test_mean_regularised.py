"""The squared penalty on the complete graph, in one smooth problem: solution, bound, messages."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.mean_regularised import mean_regularised
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import chain_graph, complete_graph
from skcfl.models import LinearModel
from skcfl.penalties import L2, SquaredL2


def problem(loss, weight=1.0, empty=0, seed=0):
    make = make_clustered_regression if loss == "squared_error" else make_clustered_classification
    data = make(n_clients=8, n_features=3, n_samples=(5, 25), random_state=seed)
    codes = np.unique(data.groups, return_inverse=True)[1]
    classes = None if loss == "squared_error" else 2
    model = LinearModel(loss=loss, alpha=0.05).bind(3, n_classes=classes, dtype=float)
    pool = open_rows(model, data.X, data.y, codes, 8 + empty)
    return FusionProblem(pool, complete_graph(8 + empty, weight), SquaredL2())


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
@pytest.mark.parametrize("lam", [1e-4, 0.02, 3.0])
def test_it_is_the_solution_of_the_admm(loss, lam):
    given = problem(loss, weight=2.5, empty=2)
    mine, _ = mean_regularised(given, lam, tol=1e-10)
    best, _ = admm(given, lam, tol=1e-9, max_iter=5000)
    assert mine.converged and best.converged
    assert_allclose(mine.objective, best.objective, rtol=1e-8)
    assert_allclose(mine.params[:8], best.params[:8], atol=1e-3)
    assert_allclose(mine.params[8:], np.tile(mine.params[:8].mean(axis=0), (2, 1)))
    # The gap bounds the excess, and forces are the gradients.
    assert mine.objective - mine.extra["dual_gap"] <= best.objective * (1 + 1e-12)
    assert_allclose(mine.extra["dual_coef"], best.extra["dual_coef"], atol=1e-3)
    # Rough solutions: the gap is looked at where the gradient says that it will do.
    rough, _ = mean_regularised(given, lam, tol=1e-2)
    assert rough.converged and rough.n_iter <= min(8, mine.n_iter)
    assert rough.objective - mine.objective <= rough.extra["dual_gap"]


def test_a_start_saves_work_and_a_budget_is_kept():
    given = problem("log_loss")
    cold, state = mean_regularised(given, 0.02, tol=1e-8)
    warm, _ = mean_regularised(given, 0.021, tol=1e-4, state=state)
    assert warm.n_iter <= cold.n_iter
    short, _ = mean_regularised(given, 0.02, tol=1e-14, max_iter=3)
    assert short.n_iter <= 4 and not short.converged and "max_iter=3" in short.shortfall
    assert short.extra["dual_gap"] >= short.objective - cold.objective
    assert (np.diff(cold.history["objective"]) <= 0).all()


def test_what_is_sent_does_not_grow_with_the_pairs():
    given = problem("squared_error")
    given.local_models()
    ledger = given.pool.ledger
    before = ledger.up
    result, _ = mean_regularised(given, 0.1)
    checks = len(result.history["gap"])
    # A proximal point, an objective and its gradient an evaluation, one more and bounds a check.
    assert ledger.up - before <= 8 * (2 * 4 + 1) * (result.n_iter + 3 * checks)


def extreme(loss, graph, penalty):
    """Clients of rows whose weights range over 24 decades, and hardly any penalty."""
    data = make_clustered_classification(8, 2, 6, n_samples=20, random_state=0)
    codes = np.unique(data.groups, return_inverse=True)[1]
    rng = np.random.RandomState(0)
    weights = 10.0 ** rng.uniform(-12, 12, len(codes))
    y = data.y if loss == "log_loss" else rng.standard_normal(len(codes))
    classes = 2 if loss == "log_loss" else None
    model = LinearModel(loss, alpha=1e-13).bind(6, n_classes=classes, dtype=float)
    return FusionProblem(open_rows(model, data.X, y, codes, 8, weights), graph, penalty)


def test_without_certificate_the_objective_is_enough():
    """Models are there long before the duals of clients of hardly any curvature are."""
    given = extreme("log_loss", complete_graph(8), SquaredL2())
    whole, _ = mean_regularised(given, 1.0, tol=1e-3)
    rough, _ = mean_regularised(given, 1.0, tol=1e-3, certify=False)
    assert whole.converged and not rough.converged
    assert rough.n_iter <= 0.7 * whole.n_iter
    assert_allclose(rough.objective, whole.objective, rtol=1e-5)


def test_partitions_are_exact_where_iterations_will_not_do():
    """Rough solutions that are nearly there are not: Newton's method does not mind."""
    given = extreme("log_loss", chain_graph(8), L2())
    options = {"tol": 1e-3, "max_iter": 200}
    slow, _ = admm(given, 1.0, contraction=False, **options)
    late, _ = admm(given, 1.0, contract_from=60, **options)
    assert slow.n_iter > 120 and 60 < late.n_iter <= 100
    assert late.converged and late.extra["dual_gap"] < 1e-9 * late.objective
    assert late.objective <= slow.objective


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
def test_partitions_are_left_where_iterations_are_few_or_nearly_there(loss):
    """Proofs of partitions of rough solutions cost more than these iterations."""
    plain = problem(loss)
    jobs = [(FusionProblem(plain.pool, plain.graph, L2()), 0.02, 60)]
    if loss == "squared_error":
        jobs.append((extreme(loss, chain_graph(8), L2()), 1.0, 200))
    for given, lam, most in jobs:
        options = {"tol": 1e-3, "max_iter": 200, "contract_from": 60}
        fits = [admm(given, lam, contraction=c, **options)[0] for c in (False, True)]
        assert fits[0].n_iter == fits[1].n_iter < most
        assert fits[0].objective == fits[1].objective
