"""The primal-dual solver: the printed algorithm, its ratio, and the cases without a gap."""

import numpy as np
import pytest
from fusion_problems import make_problem, optimum

from skcfl.calls.curvatures import Prox
from skcfl.fusion.primal_dual import PrimalDualState, primal_dual
from skcfl.graphs import from_adjacency
from skcfl.penalties import L1

pytest.importorskip("cvxpy")

ALPHA = 1e-2


def make(loss="squared_error", n=10, seed=0, **options):
    """A fusion problem of three features on a random graph."""
    return make_problem(loss, n, "weighted", seed=seed, **{"alpha": ALPHA, "d": 3, **options})


def test_printed_algorithm_step_by_step():
    """ratio=1, relaxation=1 from zero: Algorithm 1, as written."""
    problem = make(n=6, seed=3)
    Z, t, codes = problem.rows
    graph = problem.graph
    lam, D, degree = 0.1, graph.incidence().toarray(), graph.degrees(weighted=False)
    W, U = np.zeros((6, 3)), np.zeros((graph.n_edges, 3))
    zeros = PrimalDualState(W.copy(), [np.zeros((3, graph.n_edges))], 1.0, lam)
    for _ in range(7):
        V = np.empty_like(W)
        centre = W - (D.T @ U) / degree[:, None]
        for i in range(6):
            A, b = Z[codes == i], t[codes == i]
            H = A.T @ A / len(b) + (ALPHA + degree[i]) * np.eye(3)
            V[i] = np.linalg.solve(H, degree[i] * centre[i] + A.T @ b / len(b))
        U = U + 0.5 * D @ (2 * V - W)
        length = np.linalg.norm(U, axis=1)
        U *= np.minimum(1.0, lam * graph.weights / length)[:, None]
        W = V
    _, state = primal_dual(
        problem, lam, tol=0, max_iter=7, ratio=1.0, relaxation=1.0, state=zeros, contraction=False
    )
    np.testing.assert_allclose(state.W, W, atol=1e-12)
    np.testing.assert_allclose(0.5 * state.U[0].T, U, atol=1e-12)


def test_automatic_ratio_beats_the_printed_one():
    """The default needs a fraction of the iterations; another fixed ratio gets there too."""
    problem = make("log_loss", 12, seed=4, n_rows=15)
    options = dict(tol=1e-6, contraction=False)
    default, _ = primal_dual(problem, 0.02, **options)
    printed, _ = primal_dual(problem, 0.02, ratio=1.0, relaxation=1.0, **options)
    fixed, _ = primal_dual(problem, 0.02, ratio=30.0, **options)
    assert default.converged and fixed.converged
    assert 10 * default.n_iter < printed.n_iter
    assert fixed.objective == pytest.approx(default.objective, rel=2e-6)
    assert set(fixed.history["ratio"]) == {30.0}


def test_ratio_adapts_from_a_bad_start():
    problem = make(n=12, seed=5, n_rows=15)
    good, _ = primal_dual(problem, 0.1, tol=1e-7, contraction=False)
    for start in (1e-4, 1e4):
        flows = [np.zeros((3, problem.graph.n_edges))]
        state = PrimalDualState(np.zeros((12, 3)), flows, start * good.extra["ratio"], 0.1)
        result, _ = primal_dual(problem, 0.1, tol=1e-7, state=state, contraction=False)
        assert result.converged
        assert 1e-2 < result.extra["ratio"] / good.extra["ratio"] < 1e2


@pytest.mark.parametrize("case", ["no rows", "few rows"])
def test_contraction_makes_the_gap_finite(case):
    """Two cliques: the exact partition gives a feasible dual where iterates never do."""
    A = np.kron(np.eye(2), np.ones((6, 6)))
    A[0, 6] = A[6, 0] = 0.01
    rng = np.random.RandomState(7)
    counts = np.where(np.arange(12) % 3, 4, 0) if case == "no rows" else np.full(12, 3)
    codes = np.repeat(np.arange(12), counts)
    Z = rng.standard_normal((len(codes), 5))
    t = Z.sum(axis=1) * np.where(codes < 6, 1.0, -1.0)
    problem = make_problem("squared_error", 12, from_adjacency(A), rows=(Z, t, codes), alpha=0.0)
    result, _ = primal_dual(problem, 0.1)
    assert result.converged and result.extra["partition_optimal"]
    assert result.labels.tolist() == [result.labels[0]] * 6 + [result.labels[6]] * 6
    assert np.isfinite(result.extra["dual_gap"]) and np.isnan(result.extra["residual_gap"])
    loose, _ = primal_dual(problem, 0.1, contraction=False)
    assert loose.extra["dual_gap"] == np.inf and loose.converged
    assert loose.objective == pytest.approx(result.objective, rel=1e-5)


def test_inexact_updates_are_tolerated(monkeypatch):
    """Errors of (32) that are summable do no harm, and the gap stays a bound."""
    problem = make(seed=12)
    best, _ = optimum(problem, 0.05)
    rng, calls = np.random.RandomState(0), []
    exact = problem.pool.ask

    def inexact(call, *args, **kwargs):
        W = exact(call, *args, **kwargs)
        if call is not Prox:
            return W
        calls.append(1)
        return W + 0.3 * 0.8 ** len(calls) * rng.standard_normal(W.shape)

    monkeypatch.setattr(problem.pool, "ask", inexact)
    result, _ = primal_dual(problem, 0.05, tol=1e-8, contraction=False)
    assert calls and result.converged and result.objective - best <= 3e-6 * best
    assert result.objective - best <= result.extra["dual_gap"] + 1e-8 * best


def test_messages_are_booked():
    problem = make(seed=13)
    problem.pool.ledger.since_mark()
    up, down = problem.pool.ledger.up, problem.pool.ledger.down
    result, _ = primal_dual(problem, 0.05, tol=1e-8)
    history = result.history
    assert history["messages"].sum() == 2 * problem.graph.n_edges * result.n_iter
    assert history["message_floats"].sum() == 3 * history["messages"].sum()
    assert len({len(column) for column in history.values()}) == 1
    # The server's form: a vector each way, a node and iteration, and what the checks ask.
    assert history["floats_up"].sum() == problem.pool.ledger.up - up
    assert history["floats_down"].sum() >= 10 * 3 * result.n_iter
    assert problem.pool.ledger.down > down


def test_shortfall_names_what_to_change():
    problem = make(seed=14, penalty=L1(), alpha=0.0, n_rows=2)
    result, _ = primal_dual(problem, 0.05, tol=1e-12, max_iter=12)
    assert not result.converged
    assert "residual gap" in result.shortfall and "max_iter=12" in result.shortfall
