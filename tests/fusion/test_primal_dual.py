"""The primal-dual solver against cvxpy, against the ADMM and in the cases without a gap."""

import cvxpy as cp
import numpy as np
import pytest

from skcfl.calls.curvatures import Prox
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.primal_dual import PrimalDualState, primal_dual
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import Graph, complete_graph, from_adjacency
from skcfl.models import LinearModel
from skcfl.penalties import L1, L2, SquaredL2

ALPHA = 1e-2


def random_graph(n, rng, density=0.5):
    A = np.triu((rng.uniform(size=(n, n)) < density) * rng.uniform(0.2, 2.0, size=(n, n)), 1)
    return from_adjacency(A + A.T)


def make(loss, graph, penalty, seed=0, d=3, rows=8, alpha=ALPHA):
    """A fusion problem and the rows behind it, client by client."""
    rng = np.random.RandomState(seed)
    n = graph.n_nodes
    sizes = np.broadcast_to(rows, (n,))
    codes = np.repeat(np.arange(n), sizes)
    true = rng.standard_normal((2, d))
    X = rng.standard_normal((len(codes), d))
    z = np.einsum("rd,rd->r", X, true[codes % 2]) + 0.5 * rng.standard_normal(len(codes))
    classifier = loss == "log_loss"
    y = (z > 0).astype(int) if classifier else z
    model = LinearModel(loss=loss, alpha=alpha, fit_intercept=False)
    bound = model.bind(d, n_classes=2 if classifier else None)
    problem = FusionProblem(open_rows(bound, X, y, codes, n), graph, penalty)
    return problem, [(X[codes == i], y[codes == i]) for i in range(n)]


def reference(clients, loss, graph, penalty, lam, alpha=ALPHA):
    """Optimal value and models by cvxpy."""
    n, d = len(clients), max(rows.shape[1] for rows, _ in clients)
    W = cp.Variable((n, d))
    total = 0.5 * alpha * cp.sum_squares(W) if alpha else 0.0
    for i, (rows, target) in enumerate(clients):
        if not len(rows):
            continue
        z = rows @ W[i]
        if loss == "log_loss":
            total += cp.sum(cp.logistic(cp.multiply(1.0 - 2.0 * target, z))) / len(rows)
        else:
            total += 0.5 * cp.sum_squares(z - target) / len(rows)
    for i, j, w in zip(graph.heads, graph.tails, graph.weights, strict=True):
        delta = W[int(i)] - W[int(j)]
        if isinstance(penalty, L2):
            phi = cp.norm2(delta)
        elif isinstance(penalty, L1):
            phi = cp.norm1(delta)
        else:
            Q = np.eye(d) if penalty.Q is None else penalty.Q
            phi = 0.5 * cp.quad_form(delta, Q)
        total += lam * w * phi
    problem = cp.Problem(cp.Minimize(total))
    value = problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return value, W.value


Q3 = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 0.5]])


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2(), SquaredL2(Q3)], ids=str)
@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
@pytest.mark.parametrize("lam", [0.02, 0.15])
def test_equal_to_cvxpy_and_admm(loss, penalty, lam):
    rng = np.random.RandomState(int(1000 * lam))
    graph = random_graph(8, rng)
    problem, clients = make(loss, graph, penalty, seed=rng.randint(1000))
    best, W = reference(clients, loss, graph, penalty, lam)
    result, _ = primal_dual(problem, lam, tol=1e-8)
    assert result.converged and result.shortfall == ""
    assert result.objective - best <= 3e-6 * best
    assert problem.primal(result.params, lam) == pytest.approx(result.objective, rel=1e-12)
    np.testing.assert_allclose(result.params, W, atol=1e-3)
    other, _ = admm(problem, lam, tol=1e-8)
    assert result.objective == pytest.approx(other.objective, rel=3e-8)
    # Strong duality: what is left of the gap is what was asked for.
    assert 0 <= result.extra["dual_gap"] <= 1e-8 * abs(result.objective)


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2()], ids=str)
def test_optimality_conditions(penalty):
    """(25), first line: net outflows are minus the gradients."""
    graph = random_graph(10, np.random.RandomState(1))
    problem, _ = make("squared_error", graph, penalty)
    result, _ = primal_dual(problem, 0.05, tol=1e-11)
    gradients = problem.pool.ask(ObjectivesGradients, result.params)[1]
    np.testing.assert_allclose(result.extra["dual_coef"], -gradients, atol=1e-4)


def test_printed_algorithm_step_by_step():
    """ratio=1, relaxation=1 from zero: Algorithm 1, as written."""
    graph = random_graph(6, np.random.RandomState(2))
    problem, clients = make("squared_error", graph, L2(), seed=3)
    lam, D, degree = 0.1, graph.incidence().toarray(), graph.degrees(weighted=False)
    W, U = np.zeros((6, 3)), np.zeros((graph.n_edges, 3))
    zeros = PrimalDualState(W.copy(), [np.zeros((3, graph.n_edges))], 1.0, lam)
    for _ in range(7):
        V = np.empty_like(W)
        centre = W - (D.T @ U) / degree[:, None]
        for i, (rows, target) in enumerate(clients):
            H = rows.T @ rows / len(rows) + (ALPHA + degree[i]) * np.eye(3)
            V[i] = np.linalg.solve(H, degree[i] * centre[i] + rows.T @ target / len(rows))
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
    graph = random_graph(12, np.random.RandomState(4), density=0.6)
    problem, _ = make("log_loss", graph, L2(), rows=15)
    options = dict(tol=1e-6, contraction=False)
    default, _ = primal_dual(problem, 0.02, **options)
    printed, _ = primal_dual(problem, 0.02, ratio=1.0, relaxation=1.0, **options)
    fixed, _ = primal_dual(problem, 0.02, ratio=30.0, **options)
    assert default.converged and fixed.converged
    assert 10 * default.n_iter < printed.n_iter
    assert fixed.objective == pytest.approx(default.objective, rel=2e-6)
    assert set(fixed.history["ratio"]) == {30.0}


@pytest.mark.parametrize("start", [1e-4, 1e4])
def test_ratio_adapts_from_a_bad_start(start):
    graph = random_graph(12, np.random.RandomState(5))
    problem, _ = make("squared_error", graph, L2(), rows=15)
    good, _ = primal_dual(problem, 0.1, tol=1e-7, contraction=False)
    state = PrimalDualState(
        np.zeros((12, 3)), [np.zeros((3, graph.n_edges))], start * good.extra["ratio"], 0.1
    )
    result, _ = primal_dual(problem, 0.1, tol=1e-7, state=state, contraction=False)
    assert result.converged
    assert 1e-2 < result.extra["ratio"] / good.extra["ratio"] < 1e2


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2()], ids=str)
def test_nodes_without_rows(penalty):
    """40 % of the nodes have a trivial loss: flows are mended so that the gap is finite."""
    rng = np.random.RandomState(6)
    graph = random_graph(15, rng)
    rows = np.where(np.arange(15) % 5 < 2, 0, 10)
    problem, clients = make("squared_error", graph, penalty, rows=rows, alpha=0.0)
    lam = 0.1
    best, _ = reference(clients, "squared_error", graph, penalty, lam, alpha=0.0)
    for solve in (primal_dual, admm):
        result, _ = solve(problem, lam, tol=1e-8, contraction=False, max_iter=5000)
        assert result.converged and result.extra["dual_gap"] <= 1e-8 * result.objective
        assert abs(result.objective - best) <= 3e-6 * best
        assert not result.extra["dual_coef"][rows == 0].round(9).any()


@pytest.mark.parametrize("case", ["no rows", "few rows"])
def test_contraction_makes_the_gap_finite(case):
    """Two cliques: the exact partition gives a feasible dual where iterates never do."""
    A = np.kron(np.eye(2), np.ones((6, 6)))
    A[0, 6] = A[6, 0] = 0.01
    graph = from_adjacency(A)
    rng = np.random.RandomState(7)
    rows = np.where(np.arange(12) % 3, 4, 0) if case == "no rows" else np.full(12, 3)
    codes = np.repeat(np.arange(12), rows)
    X = rng.standard_normal((len(codes), 5))
    true = np.array([np.ones(5), -np.ones(5)])
    y = np.einsum("rd,rd->r", X, true[codes // 6])
    model = LinearModel(alpha=0.0, fit_intercept=False).bind(5)
    problem = FusionProblem(open_rows(model, X, y, codes, 12), graph, L2())
    result, _ = primal_dual(problem, 0.1)
    assert result.converged and result.extra["partition_optimal"]
    assert result.labels.tolist() == [result.labels[0]] * 6 + [result.labels[6]] * 6
    assert np.isfinite(result.extra["dual_gap"]) and np.isnan(result.extra["residual_gap"])
    loose, _ = primal_dual(problem, 0.1, contraction=False)
    assert loose.extra["dual_gap"] == np.inf and loose.converged
    assert loose.objective == pytest.approx(result.objective, rel=1e-5)


def test_isolated_nodes_and_components():
    """An isolated node keeps its own model; components are solved apart from each other."""
    graph = Graph(7, [0, 1, 4], [1, 2, 5], [1.0, 2.0, 0.5])  # 3 and 6 are alone
    problem, clients = make("squared_error", graph, L2(), seed=8)
    best, W = reference(clients, "squared_error", graph, L2(), 0.1)
    result, state = primal_dual(problem, 0.1, tol=1e-9)
    assert result.converged and result.objective - best <= 3e-6 * best
    local = problem.local_models()
    np.testing.assert_allclose(result.params[[3, 6]], local[[3, 6]], atol=1e-10)
    np.testing.assert_allclose(result.params, W, atol=1e-4)
    assert not result.extra["dual_coef"][[3, 6]].any()


def test_graph_without_edges():
    problem, _ = make("log_loss", Graph(4, [], []), L2())
    result, _ = primal_dual(problem, 1.0)
    assert result.converged
    np.testing.assert_allclose(result.params, problem.local_models(), atol=1e-8)
    assert len(np.unique(result.labels)) == 4


def test_complete_graph_is_the_same_in_tiles_and_as_a_list():
    complete = complete_graph(9, 0.7)
    listed = Graph(9, complete.heads, complete.tails, 0.7)
    results = [
        primal_dual(make("squared_error", graph, L2(), seed=9)[0], 0.03, tol=1e-8)[0]
        for graph in (complete, listed)
    ]
    assert results[0].n_iter == results[1].n_iter
    np.testing.assert_allclose(results[0].params, results[1].params, atol=1e-10)


def test_warm_start():
    graph = random_graph(12, np.random.RandomState(10))
    problem, _ = make("squared_error", graph, L1())
    cold, state = primal_dual(problem, 0.1, tol=1e-8)
    again, _ = primal_dual(problem, 0.1, tol=1e-8, state=state)
    assert again.n_iter <= 10 < cold.n_iter
    near, _ = primal_dual(problem, 0.11, tol=1e-8, state=state)
    fresh, _ = primal_dual(problem, 0.11, tol=1e-8)
    assert near.objective == pytest.approx(fresh.objective, rel=2e-8)


@pytest.mark.parametrize("solve", [primal_dual, admm])
def test_a_partition_is_a_start_on_any_graph(solve):
    """That of another lam, graph or local penalty is proved before anything is iterated."""
    ring = [(i, (i + 2) % 12) for i in range(12)]
    graph = Graph(12, *np.sort(ring, axis=1).T, np.full(12, 3.0))
    more = Graph(12, *np.sort([*ring, (0, 1)], axis=1).T, np.append(np.full(12, 3.0), 0.01))
    problem, _ = make("squared_error", graph, L2(), rows=20)
    cold, state = solve(problem, 3.0)
    assert cold.extra["partition_optimal"] and cold.labels.max() == 1 and cold.n_iter > 0
    warm, _ = solve(problem, 4.0, state=state)
    assert warm.n_iter == 0 and warm.extra["partition_optimal"]
    assert len({len(column) for column in warm.history.values()}) == 1
    other, _ = make("squared_error", more, L2(), rows=20, alpha=2 * ALPHA)
    warm, after = solve(other, 3.0, state=state.without_edges())
    fresh, _ = solve(other, 3.0)
    assert warm.n_iter == 0 < fresh.n_iter
    assert warm.objective == pytest.approx(fresh.objective, rel=1e-8)
    # What follows begins with edges of its own.
    on, _ = solve(other, 2.9, state=after, contraction=False)
    assert on.converged and on.n_iter > 0


def test_inexact_updates_are_tolerated(monkeypatch):
    """Errors of (32) that are summable do no harm, and the gap stays a bound."""
    graph = random_graph(10, np.random.RandomState(11))
    problem, clients = make("squared_error", graph, L2(), seed=12)
    best, _ = reference(clients, "squared_error", graph, L2(), 0.05)
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
    assert result.converged and result.objective - best <= 3e-6 * best
    assert result.objective - best <= result.extra["dual_gap"] + 1e-8 * best


def test_messages_are_booked():
    graph = random_graph(10, np.random.RandomState(13))
    problem, _ = make("squared_error", graph, L2())
    problem.pool.ledger.since_mark()
    up, down = problem.pool.ledger.up, problem.pool.ledger.down
    result, _ = primal_dual(problem, 0.05, tol=1e-8)
    history = result.history
    assert history["messages"].sum() == 2 * graph.n_edges * result.n_iter
    assert history["message_floats"].sum() == 3 * history["messages"].sum()
    assert len({len(column) for column in history.values()}) == 1
    # The server's form: a vector each way, a node and iteration, and what the checks ask.
    assert history["floats_up"].sum() == problem.pool.ledger.up - up
    assert history["floats_down"].sum() >= 10 * 3 * result.n_iter
    assert problem.pool.ledger.down > down


@pytest.mark.parametrize("options", [dict(ratio=0.0), dict(relaxation=2.0)], ids=str)
def test_refusals(options):
    problem, _ = make("squared_error", complete_graph(3), L2())
    (name,) = options
    with pytest.raises(ValueError, match=name):
        primal_dual(problem, 0.1, **options)


def test_shortfall_names_what_to_change():
    graph = random_graph(10, np.random.RandomState(14))
    problem, _ = make("squared_error", graph, L1(), alpha=0.0, rows=2)
    result, _ = primal_dual(problem, 0.05, tol=1e-12, max_iter=12)
    assert not result.converged
    assert "residual gap" in result.shortfall and "max_iter=12" in result.shortfall
