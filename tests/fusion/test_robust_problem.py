"""Clients whose pull is bounded: optima of cvxpy, bounds of forces, who is left out."""

import numpy as np
import pytest
from fusion_problems import make_graph, make_rows, pool_of
from numpy.testing import assert_allclose, assert_array_equal

from skcfl.calls.curvatures import (
    HessianProducts,
    Hessians,
    HessianSolves,
    Prox,
    Solve,
    shows_rows,
)
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.calls.proofs_asked import Conjugate, Enclosures, Rounding
from skcfl.fusion.admm import admm
from skcfl.fusion.node_pool import NodePool
from skcfl.fusion.problem import FusionProblem
from skcfl.fusion.robust_problem import GROSS, BoundedProblem, ClientLimits
from skcfl.graphs import Graph
from skcfl.penalties import L1, L2, SquaredL2

cp = pytest.importorskip("cvxpy")

N, ALPHA = 6, 0.1


def make(factor, graph="complete", penalty=None, scale=1.0, seed=0):
    """A bounded problem of least squares, the targets of client 2 in other units."""
    Z, t, codes = make_rows("squared_error", N, seed=seed, n_rows=10, d=3)
    t = np.where(codes == 2, scale * t, t)
    graph = make_graph(np.random.RandomState(seed), N, graph)
    pool = pool_of("squared_error", Z, t, codes, N, alpha=ALPHA)
    problem = BoundedProblem(pool, graph, L2() if penalty is None else penalty, factor)
    problem.rows = Z, t, codes
    return problem


def optimum(problem, lam, norm=2):
    """Optimal value and models of the infimal convolutions' problem, by cvxpy."""
    Z, t, codes = problem.rows
    X, Y = cp.Variable((N, problem.d)), cp.Variable((N, problem.d))
    root = np.sqrt(1.0 / np.bincount(codes)[codes])
    residual = cp.sum(cp.multiply(Z, Y[codes]), axis=1) - t
    value = (cp.sum_squares(cp.multiply(root, residual)) + ALPHA * cp.sum_squares(Y)) / 2
    value += problem.limits.most * cp.sum(cp.norm(X - Y, norm, axis=1))
    graph = problem.graph
    value += lam * (graph.weights @ cp.norm(X[graph.heads] - X[graph.tails], norm, axis=1))
    solved = cp.Problem(cp.Minimize(value))
    solved.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return float(solved.value), X.value


@pytest.mark.parametrize(
    "solve, graph, penalty, options",
    [
        ("admm", "complete", L2(), {}),
        ("admm", "weighted", L2(), {"contraction": False}),
        ("admm", "weighted", L1(), {}),
        ("primal_dual", "weighted", L2(), {}),
        ("pdmm", "complete", L2(), {"max_iter": 20000, "tol": 1e-6}),
    ],
)
def test_reaches_the_optimum_of_cvxpy(solve, graph, penalty, options):
    """And the dual norm of the penalty bounds what a client pulls with."""
    primal, dual = (2, 2) if penalty.fuses else (1, np.inf)
    for factor, scale, times in ((0.3, 1.0, 1.5), (1.0, 10.0, 8.0)):
        problem = make(factor, graph, penalty, scale=scale)
        lam = times * problem.limits.most / problem.graph.degrees().min()
        assert not problem.is_slack(lam)
        result, _ = problem.solver(solve)(problem, lam, **{"tol": 1e-7, **options})
        best, models = optimum(problem, lam, primal)
        assert result.converged
        excess = result.objective - best
        assert -1e-7 * best <= excess <= result.extra["dual_gap"] + 1e-7 * best
        assert_allclose(result.params, models, atol=5e-3)
        force = np.linalg.norm(result.extra["dual_coef"], dual, axis=1)
        assert force.max() <= problem.limits.most * (1 + 1e-9)
        # The bound does bind.
        assert force.max() >= problem.limits.most * (1 - 1e-3)


@pytest.mark.parametrize("graph", ["complete", "weighted"])
def test_a_bound_that_binds_nobody_changes_nothing(graph):
    """By a problem without copies where that is sure beforehand, else with them."""
    problem = make(50.0, graph)
    plain = FusionProblem(problem.clients, problem.graph, L2())
    for lam in (0.05, 50.0):
        result, state = problem.solver("admm")(problem, lam, tol=1e-9)
        assert state.with_copies is (lam == 50.0)
        wanted, _ = admm(plain, lam, tol=1e-9)
        assert_allclose(result.params, wanted.params, atol=1e-5)
        assert_array_equal(result.labels, wanted.labels)
        assert result.objective == pytest.approx(wanted.objective, rel=1e-8)
        assert_allclose(result.extra["dual_coef"], wanted.extra["dual_coef"], atol=1e-4)


def test_a_partition_is_proved_through_the_copies():
    """One cluster for each part of the graph."""
    problem = make(1.0, scale=10.0)
    torn = BoundedProblem(problem.clients, Graph(N, [0, 0, 3], [1, 2, 4], 1.0), L2(), 1.0)
    for given in (problem, torn):
        lam, parts = 1.01 * given.bounds()[1], given.graph.components()
        result, _ = given.solver("admm")(given, lam, certify=True)
        assert result.extra["partition_optimal"]
        assert_array_equal(result.labels, parts)
        assert_array_equal(given.fused().labels, parts)
        assert_allclose(result.params, given.fused().params, atol=1e-5)
    result, _ = problem.solver("admm")(problem, 0.9 * problem.bounds()[0], certify=True)
    assert result.labels.max() > 0


def test_limits():
    """Half of the clients cannot move the bound; clients far beyond it are nodes without rows."""
    clean, far = make(2.0).limits, make(2.0, scale=1e6).limits
    assert far.most <= 2.0 * clean.most
    assert far.suspicion[2] > GROSS and far.left_out.sum() == 1
    assert (far.suspicion[np.arange(N) != 2] <= 1.0).all()
    problem = make(2.0, scale=1e6)
    assert problem.heard.tolist() == [0, 1, 3, 4, 5]
    assert problem.pool.without_rows.tolist() == [False, False, True, False, False, False]
    everybody = ClientLimits(problem.clients, 2.0)
    assert_array_equal(everybody.suspicion, problem.limits.suspicion)


def test_nodes_beside_clients_are_clients_without_rows():
    """The same answers, and the same bookings as of the clients alone."""
    Z, t, codes = make_rows("log_loss", 4, n_rows=9, d=3)
    places = np.array([0, 2, 3, 5])
    whole = pool_of("log_loss", Z, t, places[codes], 6, alpha=ALPHA)
    few = pool_of("log_loss", Z, t, codes, 4, alpha=ALPHA)
    nodes = NodePool(few, places, 6)
    rng = np.random.RandomState(0)
    w, u = rng.normal(size=(2, 6, 3))
    labels = np.array([0, 0, 1, 1, 2, 2])
    theta = rng.normal(size=(3, 3))
    order = np.array([5, 1, 0])
    calls = [
        lambda pool: pool.ask(ObjectivesGradients, w, dtype=np.float64),
        lambda pool: pool.ask(Prox, w, np.arange(1.0, 7.0)),
        lambda pool: pool.ask(Solve),
        lambda pool: pool.spectrum(),
        lambda pool: pool.ask(Rounding, w),
        lambda pool: pool.ask(Hessians, theta, labels, np.arange(6.0)),
        lambda pool: pool.ask(HessianProducts, theta, theta, labels, np.ones(6)),
        lambda pool: pool.ask(HessianSolves, theta, u[:3], labels, 2.0),
        lambda pool: pool.ask(Enclosures, theta, labels, np.ones_like(theta), True),
        lambda pool: shows_rows(pool, labels, 3),
        lambda pool: pool.ask(
            Conjugate, np.where(pool.without_rows[:, None], 0.0, 0.01 * u), x0=w
        ),
        lambda pool: pool.subset(order).ask(Prox, w[order], 1.0),
        lambda pool: (pool.client_weights, pool.client_sizes, pool.without_rows),
    ]
    for k, call in enumerate(calls):
        wanted, found = call(whole), call(nodes)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        found = found if isinstance(found, tuple) else (found,)
        for one, other in zip(wanted, found, strict=True):
            assert_allclose(other, one, rtol=1e-12, err_msg=f"call {k}")
    assert np.isinf(nodes.ask(Conjugate, u)[1]) and np.isinf(whole.ask(Conjugate, u)[1])
    before = few.ledger.up, few.ledger.down
    nodes.ask(Prox, w, 1.0)
    assert few.ledger.up - before[0] == 4 * 3


def test_penalties_without_a_bound_are_refused():
    with pytest.raises(ValueError, match="client_loss bounds the pull"):
        make(1.0, penalty=SquaredL2())


def test_paths_go_on_from_the_lam_before():
    """Warm starts across the lam from which on the bound may bind."""
    problem = make(1.0, scale=5.0)
    run, state = problem.solver("admm"), None
    for lam in (0.05, 0.3, 0.6):
        result, state = run(problem, lam, state=state, tol=1e-8)
        wanted, _ = run(problem, lam, tol=1e-8)
        assert result.objective == pytest.approx(wanted.objective, rel=1e-6)
    assert state.without_edges().labels is state.labels
