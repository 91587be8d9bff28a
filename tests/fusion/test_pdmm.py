"""PDMM: solutions, equations, sampling, messages, and the fault of the printed version."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trials import examples

from skcfl.calls.curvatures import Prox, Solve
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.pdmm import pdmm
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import Graph, complete_graph, knn_graph
from skcfl.models import LinearModel, Location
from skcfl.penalties import L1, L2, SquaredL2

LOSSES = ("squared_error", "log_loss", "squared_hinge")


def rows(loss, n_clients, n_rows=12, d=3, n_clusters=3, seed=0):
    """Rows of clients in clusters: X, y, codes."""
    rng = np.random.RandomState(seed)
    truth = 2.0 * rng.normal(size=(n_clusters, d))[np.arange(n_clients) % n_clusters]
    codes = np.repeat(np.arange(n_clients), n_rows)
    X = rng.normal(size=(len(codes), d))
    y = (X * truth[codes]).sum(axis=1) + rng.normal(size=len(codes))
    return X, y if loss == "squared_error" else (y > 0).astype(float), codes


def problem_of(loss, n_clients, graph=None, penalty=None, alpha=0.05, **options):
    X, y, codes = rows(loss, n_clients, **options)
    n_classes = None if loss == "squared_error" else 2
    model = LinearModel(loss=loss, alpha=alpha, fit_intercept=False)
    pool = open_rows(model.bind(X.shape[1], n_classes), X, y, codes, n_clients)
    graph = complete_graph(n_clients) if graph is None else graph
    return FusionProblem(pool, graph, L2() if penalty is None else penalty)


def points(a, graph=None, penalty=None):
    """Clients of one row each: ``f_i(x) = |x - a_i|^2 / 2``."""
    a = np.asarray(a, dtype=float).reshape(len(a), -1)
    pool = open_rows(Location().bind(a.shape[1]), a, None, np.arange(len(a)), len(a))
    graph = complete_graph(len(a)) if graph is None else graph
    return FusionProblem(pool, graph, L2() if penalty is None else penalty)


# ------------------------------------------------------------------------------ solutions


def reference(loss, lam, alpha=0.05, n_clients=6):
    """Optimal value by cvxpy."""
    cp = pytest.importorskip("cvxpy")
    X, y, codes = rows(loss, n_clients)
    W = cp.Variable((n_clients, X.shape[1]))
    value = 0
    for i in range(n_clients):
        A, b = X[codes == i], y[codes == i]
        s = 2 * b - 1
        if loss == "squared_error":
            f = cp.sum_squares(A @ W[i] - b) / 2
        elif loss == "log_loss":
            f = cp.sum(cp.logistic(cp.multiply(-s, A @ W[i])))
        else:
            f = cp.sum_squares(cp.pos(1 - cp.multiply(s, A @ W[i])))
        value += f / len(b) + alpha / 2 * cp.sum_squares(W[i])
        value += lam * sum(cp.norm(W[i] - W[j]) for j in range(i))
    problem = cp.Problem(cp.Minimize(value))
    return problem.solve(solver=cp.CLARABEL)


@pytest.mark.parametrize("loss", LOSSES)
def test_reaches_the_optimum_of_cvxpy(loss):
    lam = 0.05
    best = reference(loss, lam)
    for participation in (1.0, 0.4):
        problem = problem_of(loss, 6)
        result, _ = pdmm(
            problem, lam, tol=1e-7, participation=participation, rng=0, contraction=False
        )
        assert result.converged
        assert result.objective == pytest.approx(best, rel=1e-6)
        # The gap bounds the excess (up to what the reference itself is off).
        assert result.extra["dual_gap"] >= result.objective - best - 1e-8 * best


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lam", [0.02, 0.08])
def test_agrees_with_the_admm(loss, lam):
    problem = problem_of(loss, 15)
    best, _ = admm(problem, lam, tol=1e-9, max_iter=20000)
    for participation in (1.0, 0.4):
        result, _ = pdmm(problem, lam, participation=participation, rng=1, contraction=False)
        assert result.converged
        assert result.objective == pytest.approx(best.objective, rel=1.1e-6)
        assert result.extra["dual_gap"] >= result.objective - best.objective - 1e-12


def test_exact_clusters():
    problem = problem_of("squared_error", 15, n_rows=60)
    lam = 0.15
    expected, _ = admm(problem, lam)
    result, _ = pdmm(problem, lam, participation=0.4, rng=0)
    assert expected.extra["partition_optimal"] and result.extra["partition_optimal"]
    assert result.labels.max() == 2
    assert (result.labels[:, None] == result.labels).tolist() == (
        expected.labels[:, None] == expected.labels
    ).tolist()
    np.testing.assert_allclose(result.params, expected.params, atol=1e-7)
    # D'u is minus the clients' gradients.
    gradient = problem.pool.ask(ObjectivesGradients, result.params)[1]
    np.testing.assert_allclose(result.extra["dual_coef"], -gradient, atol=1e-6)


@pytest.mark.parametrize("penalty", [L1(), SquaredL2()], ids=["l1", "squared_l2"])
def test_other_penalties(penalty):
    problem = problem_of("squared_error", 10, penalty=penalty)
    best, _ = admm(problem, 0.05, tol=1e-9, max_iter=20000)
    result, _ = pdmm(problem, 0.05, participation=0.5, rng=0)
    assert result.converged
    assert result.objective == pytest.approx(best.objective, rel=1.1e-6)


@pytest.mark.parametrize("sampling", ["ends", "independent"])
def test_twenty_clients_at_forty_percent(sampling):
    problem = problem_of("squared_error", 20, n_rows=20)
    best, _ = admm(problem, 0.05, tol=1e-9, max_iter=20000)
    result, _ = pdmm(
        problem, 0.05, participation=0.4, dual_sampling=sampling, rng=0, contraction=False
    )
    assert result.converged and result.n_iter <= 1450
    assert result.extra["dual_gap"] <= 1e-6 * result.objective
    assert result.objective == pytest.approx(best.objective, rel=1.1e-6)
    gap = result.history["gap"]
    assert (np.diff(gap) <= 0).all() and (result.history["participants"] == 8).all()


@examples(9)
@given(data=st.data())
def test_gap_bounds_the_excess_on_any_graph(data):
    n = data.draw(st.integers(1, 7), label="clients")
    d = data.draw(st.integers(1, 3), label="d")
    seed = data.draw(st.integers(0, 10**6), label="seed")
    rng = np.random.RandomState(seed)
    heads, tails = np.triu_indices(n, 1)
    keep = rng.uniform(size=len(heads)) < data.draw(st.sampled_from([0.3, 0.7, 1.0]))
    weights = rng.uniform(0.2, 2.0, size=keep.sum())
    graph = Graph(n, heads[keep], tails[keep], weights)
    problem = points(rng.normal(size=(n, d)), graph)
    lam = data.draw(st.sampled_from([0.01, 0.2, 1.0]), label="lam")
    result, _ = pdmm(
        problem,
        lam,
        tol=1e-5,
        participation=data.draw(st.sampled_from([0.2, 0.5, 1.0]), label="participation"),
        dual_sampling=data.draw(st.sampled_from(["ends", "independent"]), label="sampling"),
        rng=seed,
    )
    best, _ = admm(problem, lam, tol=1e-9, max_iter=20000)
    assert result.converged
    excess = result.objective - best.objective
    assert excess <= result.extra["dual_gap"] + 1e-8 * problem.at_start
    assert result.extra["dual_gap"] <= problem.tolerance(result.objective, 1e-5)


def bipartite(n):
    heads, tails = np.divmod(np.arange(n * n), n)
    return Graph(2 * n, heads, tails + n)


def test_bipartite_graphs_need_the_damping_of_the_default():
    problem = points(np.random.RandomState(0).normal(size=(16, 2)), bipartite(8))
    options = {"rho": 10.0, "contraction": False, "max_iter": 3000}
    for lam in (0.1, 2.0):
        assert pdmm(problem, lam, **options)[0].converged
    literal, _ = pdmm(problem, 2.0, eta=10.0, **options)
    assert not literal.converged and "diverged" in literal.shortfall


# --------------------------------------------------------------- the algorithm, line by line


def one_round(a, lam, W, Z, M, sampled, rho, eta, tau, nu):
    """(16) to (19) on points, pair by pair; Z and M of the pairs i < j, in order."""
    n = len(a)
    pair = {p: e for e, p in enumerate((i, j) for i in range(n) for j in range(i + 1, n))}
    back = {(i, j): M[e] - nu * rho * (W[i] - W[j] - Z[e]) for (i, j), e in pair.items()}
    new_W, new_Z, new_M = W.copy(), Z.copy(), M.copy()
    for i in sampled:
        right, left = a[i] + eta * W[i], 1.0 + eta
        for j in range(n):
            if j != i:
                e, sign = pair[min(i, j), max(i, j)], 1.0 if i < j else -1.0
                right = right - sign * back[min(i, j), max(i, j)] + rho * (W[j] + sign * Z[e])
                left += rho
        new_W[i] = right / left
    for (i, j), e in pair.items():
        if i in sampled or j in sampled:
            q = (back[i, j] + rho * (W[i] - W[j]) + eta * Z[e]) / (rho + eta)
            length = np.linalg.norm(q)
            new_Z[e] = q * max(1 - lam / (rho + eta) / length, 0.0)
    for (i, j), e in pair.items():
        if i in sampled or j in sampled:
            new_M[e] = M[e] + tau * rho * (new_W[i] - new_W[j] - new_Z[e])
    return new_W, new_Z, new_M


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("complete", [True, False])
def test_rounds_follow_the_equations(participation, complete):
    rng = np.random.RandomState(0)
    n, d, lam, rho, eta, tau, nu = 5, 2, 0.3, 0.7, 0.4, 0.9, 0.3
    a = rng.normal(size=(n, d))
    upper = np.triu_indices(n, 1)
    problem = points(a, None if complete else Graph(n, *upper))
    W, Z, M = a.copy(), a[upper[0]] - a[upper[1]], np.zeros((len(upper[0]), d))
    draws = np.random.RandomState(3)
    for _ in range(6):
        sampled = range(n) if participation == 1 else draws.choice(n, size=2, replace=False)
        W, Z, M = one_round(a, lam, W, Z, M, set(sampled), rho, eta, tau, nu)
    _, state = pdmm(
        problem,
        lam,
        rho=rho,
        eta=eta,
        tau=tau,
        nu=nu,
        participation=participation,
        tol=0.0,
        max_iter=6,
        rng=3,
    )
    np.testing.assert_allclose(state.W, W, atol=1e-12)
    for ours, theirs in ((state.Z, Z), (state.M, M)):
        ours = ours[0]
        ours = ours[:, upper[0], upper[1]] if complete else ours
        np.testing.assert_allclose(ours.T, theirs, atol=1e-12)


def test_only_sampled_clients_compute():
    problem = problem_of("squared_error", 10)
    problem.local_models()
    asked = []

    class Spy(type(problem.pool)):
        def ask(self, call, *args, **options):
            asked.extend([self.n_clients] * (call is Prox))
            return super().ask(call, *args, **options)

    problem.pool.__class__ = Spy
    pdmm(problem, 0.05, participation=0.3, rng=0, max_iter=7)
    assert asked == [3] * 7


# ------------------------------------------------------------------ the printed version's fault


def printed(a, lam, rho, eta, tau, nu, share, rounds, seed):
    """Algorithm 1 as printed, d = 1: a z and a dual for each order of a pair, sampled apart."""
    n, rng = len(a), np.random.RandomState(seed)
    pairs = ~np.eye(n, dtype=bool)
    x, z, mu, back = np.zeros(n), np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    for _ in range(rounds):
        users = np.zeros(n, dtype=bool)
        users[rng.choice(n, size=max(1, round(share * n)), replace=False)] = True  # S1
        primal, dual = rng.uniform(size=(2, n, n)) < share
        pull = ((rho * (x[None] + z) - back) * pairs).sum(axis=1)
        new_x = (a + pull + eta * x) / (1.0 + rho * (n - 1) + eta)  # (16)
        q = (back + rho * (x[:, None] - x[None]) + eta * z) / (rho + eta)
        new_z = np.sign(q) * np.maximum(np.abs(q) - lam / (rho + eta), 0.0)  # (17)
        x, z = np.where(users, new_x, x), np.where(primal & pairs, new_z, z)
        residual = x[:, None] - x[None] - z
        mu = np.where(dual, mu + tau * rho * residual, mu)  # (18)
        back = np.where(dual, mu - nu * rho * residual, back)  # (19)
    return x, mu


def test_the_printed_algorithm_stops_at_wrong_points_and_the_corrected_one_does_not():
    # Two users, f_i = (x - a_i)^2 / 2: the solution is .5 for both from lam = .5 on.
    a, lam = np.array([0.0, 1.0]), 0.8
    options = {"rho": 10.0, "eta": 10.0, "tau": 0.8, "nu": 0.2}
    x, _ = printed(a, lam, **options, share=1.0, rounds=500, seed=0)
    np.testing.assert_allclose(x, 0.5, atol=1e-9)
    for seed in range(5):
        x, mu = printed(a, lam, **options, share=0.5, rounds=3000, seed=seed)
        # A fixed point, users agree, each has its own dual; and it is not the solution.
        np.testing.assert_allclose(x[0], x[1], atol=1e-9)
        np.testing.assert_allclose(x - a, [-mu[0, 1], -mu[1, 0]], atol=1e-9)
        assert np.abs(mu).max() <= lam + 1e-9
        assert 0.2 < x[0] < 0.49 and abs(mu[0, 1] + mu[1, 0]) > 0.02
        for sampling in ("ends", "independent"):
            result, state = pdmm(
                points(a),
                lam,
                **options,
                participation=0.5,
                dual_sampling=sampling,
                rng=seed,
                contraction=False,
                tol=1e-10,
            )
            assert result.converged
            np.testing.assert_allclose(state.W, 0.5, atol=1e-4)


# ------------------------------------------------------------------------------- messages


def floats_of_a_round(problem, k, **options):
    """Floats (up, down) of round k + 1: two runs that end with the same check."""
    ledger, totals = problem.pool.ledger, []
    problem.local_models(), problem.curvature()
    for max_iter in (k, k + 1):
        problem.pool.ask(
            Solve
        )  # so that the starts are what clients have answered last, as in a fit
        up, down = ledger.up, ledger.down
        pdmm(problem, 0.05, tol=0.0, max_iter=max_iter, rng=0, contraction=False, **options)
        totals.append((ledger.up - up, ledger.down - down))
    return tuple(np.subtract(totals[1], totals[0]))


@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_messages_of_a_round_on_the_complete_graph(participation):
    n, d = 10, 3
    m = round(participation * n)
    touched = n * (n - 1) // 2 - (n - m) * (n - m - 1) // 2
    up, down = floats_of_a_round(problem_of("squared_error", n), 2, participation=participation)
    # S5 the sampled models, S6 the z of their pairs.
    assert up == d * (m + touched)
    # S7 a sampled model to all other clients, S10 a dual to both ends.
    assert down == d * (m * (n - 1) + 2 * touched)


def test_messages_of_a_round_on_a_sparse_graph():
    n, d = 12, 3
    graph = knn_graph(np.random.RandomState(0).normal(size=(n, 2)), 2)
    E = graph.n_edges
    up, down = floats_of_a_round(problem_of("squared_error", n, graph=graph), 2)
    # Models go to neighbours only.
    assert (up, down) == (d * (n + E), d * (2 * E + 2 * E))


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize("sparse", [False, True])
def test_skipping_zeros_sends_less_and_changes_nothing_else(participation, sparse):
    n = 15
    graph = complete_graph(n)
    if sparse:
        graph = Graph(n, *np.triu_indices(n, 1))
    options = {"participation": participation, "contraction": False, "tol": 1e-9}
    results = []
    for skip_zeros in (False, True):
        # Clusters are clear, so that most z within them go to zero and stay.
        problem = problem_of("squared_error", n, graph=graph, n_rows=60)
        result, state = pdmm(problem, 0.15, skip_zeros=skip_zeros, rng=0, **options)
        assert result.converged
        results.append((result, state))
    (plain, a), (lean, b) = results
    assert plain.n_iter == lean.n_iter
    np.testing.assert_array_equal(a.W, b.W)
    for name in ("floats_up", "floats_down"):
        assert lean.history[name].sum() < 0.85 * plain.history[name].sum()
    assert lean.history["floats_up"][0] == plain.history["floats_up"][0]
    if participation == 1.0:
        # In the end: only the 75 pairs between clusters, one vector per client for the others;
        # for ten rounds and one check (an objective with gradients, a conjugate, rounding).
        d, n_pairs = 3, 75
        up, down = d * (n + n_pairs), d * (4 * n_pairs + n)
        assert lean.history["floats_up"][-1] == 10 * up + n * (d + 3)
        assert lean.history["floats_down"][-1] == 10 * down + 2 * n * d


def test_skipped_pairs_are_handed_back_where_they_have_to_part():
    problem = problem_of("squared_error", 12)
    options = {"skip_zeros": True, "contraction": False}
    fused, state = pdmm(problem, 2.0, **options)
    assert all((idle.max(initial=0) == 10) for idle in state.idle)
    np.testing.assert_allclose(fused.params, fused.params[:1].repeat(12, axis=0), atol=1e-3)
    best, _ = admm(problem, 0.02, tol=1e-9, max_iter=20000)
    result, state = pdmm(problem, 0.02, state=state, **options)
    assert result.converged
    assert result.objective == pytest.approx(best.objective, rel=1.1e-6)
    assert np.mean(state.idle[0] == 10) < 0.5


# ---------------------------------------------------------------------- runs and parameters


@pytest.mark.parametrize("sampling", ["ends", "independent"])
def test_random_state_fixes_the_run(sampling):
    problem = problem_of("squared_error", 12)
    options = {"participation": 0.4, "dual_sampling": sampling, "max_iter": 40, "tol": 0.0}

    def run(rng, **more):
        return pdmm(problem, 0.05, rng=rng, contraction=False, **options, **more)

    (first, a), (second, b), (_, c) = run(0), run(0), run(1)
    np.testing.assert_array_equal(a.W, b.W)
    np.testing.assert_array_equal(first.history["gap"], second.history["gap"])
    assert not np.array_equal(a.W, c.W)
    # How often the gap is looked at changes nothing but the history.
    every, e = run(0, check_every=1)
    np.testing.assert_array_equal(a.W, e.W)
    assert every.history["round"].tolist() == list(range(1, 41))
    assert len({len(column) for column in every.history.values()}) == 1


def test_warm_start():
    problem = problem_of("log_loss", 12)
    cold, state = pdmm(problem, 0.04, contraction=False)
    kept = state.W.copy(), [m.copy() for m in state.M]
    again, _ = pdmm(problem, 0.04, state=state, contraction=False)
    assert again.converged and again.n_iter <= 5 < cold.n_iter
    near, _ = pdmm(problem, 0.042, state=state, contraction=False)
    assert near.converged
    best, _ = admm(problem, 0.042, tol=1e-9, max_iter=20000)
    assert near.objective == pytest.approx(best.objective, rel=1.1e-6)
    # The state that was passed in is not touched.
    np.testing.assert_array_equal(state.W, kept[0])
    for m, old in zip(state.M, kept[1], strict=True):
        np.testing.assert_array_equal(m, old)


def test_one_client_and_no_edges():
    result, _ = pdmm(points([[1.0, 2.0]]), 0.5)
    np.testing.assert_allclose(result.params, [[1.0, 2.0]])
    assert result.converged
    result, _ = pdmm(points([[0.0], [1.0]], Graph(2, [], [])), 0.5, participation=0.5, rng=0)
    np.testing.assert_allclose(result.params, [[0.0], [1.0]])
    assert result.converged and result.labels.tolist() == [0, 1]


def test_falling_short_and_divergence_are_told():
    problem = problem_of("squared_error", 10)
    result, _ = pdmm(problem, 0.05, max_iter=6, contraction=False)
    assert not result.converged
    assert "max_iter=6" in result.shortfall and "gap" in result.shortfall
    result, _ = pdmm(problem, 0.05, tau=8.0, eta=0.0, contraction=False)
    assert not result.converged and result.n_iter < 500
    assert "diverged" in result.shortfall and "tau=8" in result.shortfall


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rho", 0.0),
        ("eta", -1.0),
        ("tau", 0.0),
        ("nu", 1.0),
        ("participation", 0.0),
        ("participation", 1.5),
        ("dual_sampling", "some"),
        ("check_every", 0),
    ],
)
def test_parameters_out_of_range(name, value):
    with pytest.raises(ValueError, match=f"'{name}' parameter of pdmm must be .*Got"):
        pdmm(points([[0.0], [1.0]]), 0.5, **{name: value})
