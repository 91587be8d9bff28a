"""FPFC's rounds: against Algorithm 1 written out, convex references, and their own promises."""

import numpy as np
import pytest
from fusion_problems import same_partition
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse.csgraph import connected_components
from trials import examples

from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Objectives, ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.fpfc_problem import FPFCProblem
from skcfl.fusion.fpfc_rounds import FPFCOptions, fpfc, gap_threshold
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import complete_graph
from skcfl.models import LinearModel
from skcfl.penalties import L1, L2, MCP, SCAD
from skcfl.rounds.polish import solve_pooled
from skcfl.search.by_partitions import GridSearch

EXACT = {"local_steps": None, "n_iter_no_change": None}


def make_pool(
    n=6, n_rows=12, d=2, n_clusters=2, noise=0.3, spread=3.0, seed=0, loss="squared_error"
):
    rng = np.random.RandomState(seed)
    truth = spread * rng.standard_normal((n_clusters, d))
    labels = np.arange(n) % n_clusters
    codes = np.repeat(np.arange(n), n_rows)
    Z = rng.standard_normal((n * n_rows, d))
    t = np.einsum("rd,rd->r", Z, truth[labels[codes]]) + noise * rng.standard_normal(len(Z))
    if loss == "log_loss":
        t = (t > 0).astype(int)
    model = LinearModel(loss=loss, alpha=0.01, fit_intercept=False)
    bound = model.bind(d, n_classes=2 if loss == "log_loss" else None)
    pool = open_rows(bound, Z, t, codes, n, random_state=0)
    pool.labels = labels
    return pool


def run(pool, lam, penalty=None, *, strength=1.0, init="local", state=None, seed=0, **options):
    problem = FPFCProblem(pool, SCAD() if penalty is None else penalty, strength, init)
    options = FPFCOptions(**({"tol": 0.0} | options))
    return fpfc(problem, lam, options, np.random.RandomState(seed), state)


def pair_sum(W, function):
    """Sum over the unordered pairs of a function of (d, 1) differences."""
    n = len(W)
    return sum(float(function((W[i] - W[j])[:, None])[0]) for j in range(n) for i in range(j))


def objective(pool, W, penalty, strength=1.0):
    return float(pool.ask(Objectives, W).sum()) + strength / len(W) * pair_sum(W, penalty.value)


def stationarity(pool, W, penalty, strength=1.0):
    """Largest gradient of the objective of a smooth penalty, pair by pair."""
    n, g = len(W), pool.ask(ObjectivesGradients, W)[1]
    for i in range(n):
        for j in range(n):
            g[i] += strength / n * penalty.gradient((W[i] - W[j])[:, None])[:, 0]
    return np.abs(g).max()


# ------------------------------------------------------------------------ the algorithm


def algorithm_1(pool, penalty, s, rho, rate, steps, start, draws):
    """Algorithm 1 as it is printed, one client and one pair after the other."""
    n, d = start.shape
    w = start.copy()
    theta, v = np.zeros((n, n, d)), np.zeros((n, n, d))

    def update(i, j):
        delta = w[i] - w[j] + v[i, j] / rho
        theta[i, j] = penalty.prox(delta[:, None], s / rho)[:, 0]
        v[i, j] += rho * (w[i] - w[j] - theta[i, j])
        theta[j, i], v[j, i] = -theta[i, j], -v[i, j]

    def zetas():
        return np.array([np.mean(w + theta[i] - v[i] / rho, axis=0) for i in range(n)])

    for j in range(n):
        for i in range(j):
            update(i, j)
    zeta = zetas()
    for members in draws:
        for i in members:
            for _ in range(steps[i]):
                g = pool.subset([i]).ask(ObjectivesGradients, w[[i]])[1][0]
                w[i] = w[i] - rate * (g + rho * (w[i] - zeta[i]))
        for j in range(n):
            for i in range(j):
                if i in members or j in members:
                    update(i, j)
        zeta = zetas()
    return w, theta, v


@pytest.mark.parametrize(
    ("penalty", "participation"), [(SCAD(1.5), 1.0), (MCP(1.5), 0.5), (L1(), 0.5), (L2(), 1.0)]
)
def test_rounds_are_algorithm_1(penalty, participation):
    n, rounds, rho, s, lam = 5, 7, 2.5, 1.7, 1.5
    pool = make_pool(n, seed=3)
    steps = np.array([1, 4, 2, 3, 5])
    start = np.random.RandomState(1).standard_normal((n, 2))
    rng = np.random.RandomState(9)
    count = max(1, round(participation * n))
    draws = [
        np.arange(n) if count == n else np.sort(rng.choice(n, count, replace=False))
        for _ in range(rounds)
    ]
    weight = s if not penalty.convex else s * lam
    w, theta, v = algorithm_1(pool, penalty, weight, rho, 0.1, steps, start, draws)
    options = {"step_size": 0.1, "local_steps": steps, "participation": participation, "rho": rho}
    result, state = run(
        pool, lam, penalty, strength=s, init=start, seed=9, max_iter=rounds, **options
    )
    assert_allclose(result.params, w, rtol=1e-12, atol=1e-13)
    (block,) = FPFCProblem(pool, penalty, s).blocks
    assert block.shape == (n, n)
    assert_allclose(state.theta[0], theta.transpose(2, 0, 1), atol=1e-12)
    assert_allclose(rho * state.U[0], v.transpose(2, 0, 1), atol=1e-12)
    linked = np.linalg.norm(theta, axis=2) <= result.extra["nu"]
    assert same_partition(connected_components(linked)[1], result.labels)


def test_going_on_is_as_if_never_stopped():
    pool = make_pool(8)
    whole, _ = run(pool, 1.0, max_iter=20)
    _, state = run(pool, 1.0, max_iter=9)
    rest, _ = run(pool, 1.0, max_iter=11, state=state)
    assert_allclose(rest.params, whole.params, atol=1e-12)
    # at another lam only the models are taken
    other, _ = run(pool, 2.0, max_iter=4, state=state)
    fresh, _ = run(pool, 2.0, max_iter=4, init=state.W)
    assert_array_equal(other.params, fresh.params)


# -------------------------------------------------------------------------- objectives


@pytest.mark.parametrize("penalty", [SCAD(1.0, xi=0.05), MCP(1.0, xi=0.05), L2(), L1()])
def test_history_has_the_objective(penalty):
    pool = make_pool(6)
    result, _ = run(pool, 1.3, penalty, strength=0.7, max_iter=15, rho=3.0)
    penalty, weight = (penalty, 0.91) if penalty.convex else (penalty.set_params(lam=1.3), 0.7)
    wanted = objective(pool, result.params, penalty, weight)
    assert result.objective == pytest.approx(wanted, rel=1e-12)
    assert result.history["objective"][-1] == result.objective
    assert len({len(column) for column in result.history.values()}) == 1


@examples(5)
@given(st.integers(0, 10**6), st.sampled_from(["squared_error", "log_loss"]))
def test_objective_never_increases(seed, loss):
    """With all clients, exact updates and rho beyond twice the curvature of the penalty.

    Theorem 1's descent is that of the augmented Lagrangian; the objective itself follows.
    """
    pool = make_pool(6, seed=seed, noise=1.0, loss=loss)
    penalty = SCAD(1.0, xi=0.3)
    lam = np.random.RandomState(seed).uniform(0.5, 2.0)
    rho = 2.05 * penalty.set_params(lam=lam).curvature
    state, values = None, []
    for _ in range(12):
        result, state = run(pool, lam, SCAD(xi=0.3), max_iter=1, rho=rho, state=state, **EXACT)
        values.append((result.objective, result.history["lagrangian"][-1]))
    steps = np.diff(np.array(values), axis=0)
    assert (steps <= 1e-9 * np.abs(values[0][0])).all()


def test_stationary_point_of_a_concave_penalty():
    """Near clusters at which the penalty is not flat: the residual is that of the problem."""
    pool = make_pool(6, spread=1.0)
    penalty = SCAD(0.6, xi=0.01)
    result, _ = run(pool, 0.6, SCAD(xi=0.01), max_iter=20000, tol=1e-9, **EXACT)
    assert result.converged
    assert result.extra["residual"] <= 1e-9
    assert stationarity(pool, result.params, penalty) <= 1e-7
    assert 0 < pair_sum(result.params, lambda D: penalty.derivative(np.linalg.norm(D, axis=0)))


@pytest.mark.parametrize(("penalty", "loss"), [(L1(), "squared_error"), (L2(), "log_loss")])
def test_convex_penalties_reach_the_convex_solution(penalty, loss):
    """``ConvexClusteredFL`` at lam / m, to a residual of 1e-6."""
    pool, lam = make_pool(6, loss=loss, seed=2), 0.5
    result, _ = run(pool, lam, penalty, max_iter=5000, tol=1e-6, **EXACT)
    assert result.converged and result.extra["residual"] <= 1e-6
    problem = FusionProblem(pool, complete_graph(6), penalty)
    best, _ = admm(problem, lam / 6, tol=1e-12)
    assert_allclose(result.params, best.params, atol=1e-5)
    # what is left of a fused pair's difference counts at first order, as does the residual
    assert result.objective == pytest.approx(best.objective, rel=1e-6)
    inexact, _ = run(pool, lam, penalty, max_iter=5000, tol=1e-6, n_iter_no_change=None)
    assert_allclose(inexact.params, result.params, atol=1e-5)


def test_separated_clusters_are_not_biased():
    """Every client counts once in the problem, so the oracle weighs clients alike."""
    pool = make_pool(8, spread=5.0)
    oracle, *_ = solve_pooled(pool, pool.labels, np.zeros((2, 2)), weights=np.ones(8))
    concave, _ = run(pool, 1.0, SCAD(xi=1e-6), max_iter=2000, tol=1e-7, **EXACT)
    assert_array_equal(concave.labels, pool.labels)
    assert_allclose(concave.params, oracle[pool.labels], atol=1e-5)
    # the norm that makes clusters draws them to each other as well
    convex, _ = run(pool, 1.5, L2(), max_iter=3000, tol=1e-7, **EXACT)
    assert_array_equal(convex.labels, pool.labels)
    assert np.abs(convex.params - oracle[pool.labels]).max() > 0.1


def test_small_lam_leaves_local_models_and_stops_at_once():
    pool = make_pool(6)
    local, _ = pool.ask(Solve)
    result, _ = run(pool, 1e-3, tol=1e-6, max_iter=100)
    assert result.n_iter == 1 and result.converged
    assert_array_equal(result.labels, np.arange(6))
    assert_allclose(result.params, local, atol=1e-8)
    for some, lam in ((pool, 0.0), (make_pool(1), 1.0)):
        apart, state = run(some, lam)
        assert state is None and apart.n_iter == 1
        assert apart.extra["residual"] <= 1e-8
        assert_array_equal(apart.params, some.ask(Solve)[0])


def test_consensus_is_stationary_from_the_bound_on():
    pool = make_pool(6, noise=1.0)
    problem = FPFCProblem(pool, SCAD(), 1.0)
    lower, upper = problem.bounds()
    assert lower <= upper <= 1.01 * lower
    pooled, *_ = solve_pooled(pool, np.zeros(6, dtype=int), np.zeros((1, 2)), weights=np.ones(6))
    start, xi = np.repeat(pooled, 6, axis=0), 1e-7
    options = {"init": start, "max_iter": 300, "rho": 5.0, "nu": 1e-3, **EXACT}
    above, _ = run(pool, 1.1 * upper, SCAD(xi=xi), **options)
    assert_allclose(above.params, start, atol=1e-4)
    below, _ = run(pool, 0.5 * lower, SCAD(xi=xi), **options)
    assert np.abs(below.params - start).max() > 0.1


# ------------------------------------------------------------------------- participation


def test_numbers_sent():
    """A round moves a model down and up for every participant; a check asks all clients."""
    n, p = 10, 2
    pool = make_pool(n)
    problem = FPFCProblem(pool, SCAD(), 1.0, "local")
    problem.distances(), problem.typical_slope(), problem.curvatures()
    options = FPFCOptions(max_iter=21, participation=0.3, tol=0.0)
    result, _ = fpfc(problem, 1.0, options, np.random.RandomState(0))
    history = result.history
    assert_array_equal(history["round"], [1, 17, 21])
    rounds = np.diff(history["round"], prepend=0)
    assert_array_equal(history["participants"], 3 * rounds)
    assert_array_equal(history["floats_up"], 3 * p * rounds + n * (p + 1))
    assert_array_equal(history["floats_down"], 3 * p * rounds + n * p)


def test_sampled_clients_reach_the_same_clusters():
    pool = make_pool(10, n_rows=30)
    whole, _ = run(pool, 1.0, tol=1e-6, max_iter=500, n_iter_no_change=None)
    assert whole.converged
    options = {"tol": 1e-4, "max_iter": 4000, "participation": 0.3, "n_iter_no_change": None}
    part, _ = run(pool, 1.0, **options)
    assert part.converged, part.shortfall
    assert_array_equal(part.labels, whole.labels)
    assert_allclose(part.params, whole.params, atol=0.02)


def test_a_settled_partition_ends_the_rounds():
    pool = make_pool(8, noise=1.0)
    settled, _ = run(pool, 2.0, tol=1e-12, max_iter=1000, n_iter_no_change=10)
    assert settled.converged and settled.n_iter < 200
    assert settled.history["theta_residual"][-1] <= 1e-3
    assert_array_equal(settled.labels, pool.labels)
    short, _ = run(pool, 2.0, tol=1e-12, max_iter=5, n_iter_no_change=None)
    assert not short.converged
    assert "max_iter=5" in short.shortfall and "residual" in short.shortfall


def test_rho_must_be_larger_than_the_concavity():
    pool = make_pool(4)
    with pytest.raises(ValueError, match=r"rho must be larger than 0\.7407.*Got rho=0\.5"):
        run(pool, 1.0, strength=2.0, rho=0.5)
    assert run(pool, 1.0, L2(), rho=0.5, max_iter=1)[0].extra["rho"] == 0.5


# ------------------------------------------------------------------------------ clusters


def test_threshold_in_the_widest_gap():
    nu = gap_threshold(np.array([1e-3, 2e-3, 0.5, 0.8]), 1e-3, 1.0)
    assert 2e-3 < nu < 0.5
    # no distance between: nothing is linked, or everything
    assert gap_threshold(np.array([3.0, 4.0]), 1e-3, 1.0) == pytest.approx(1e-3**0.5)
    assert gap_threshold(np.array([1e-9, 1e-8]), 1e-3, 1.0) == pytest.approx(1e-3**0.5)
    assert 1.0 < gap_threshold(np.array([0.9, 1.0, 50.0]), 0.5, np.inf) < 50.0


def test_grid_and_search_find_the_window():
    pool = make_pool(12, n_rows=20, n_clusters=3, d=4, noise=0.5, seed=1)
    problem = FPFCProblem(pool, SCAD(), None)
    lams = problem.grid(12)
    d = problem.distances()[np.triu_indices(12, 1)]
    assert_allclose([lams[0], lams[-1]], [0.3 * d.min() / 3.7, 1.05 * d.max() / 3.7])
    assert_allclose(problem.grid(5, ratio=0.1)[0], 0.1 * lams[-1])

    def solve(lam):
        return fpfc(problem, lam, FPFCOptions(), np.random.RandomState(0))

    search = GridSearch(problem, solve)
    lam, result = search.run(lams)
    assert_array_equal(result.labels, pool.labels)
    record = search.record()
    assert lam in record["lam"] and record["n_clusters"][-1] == 1
    assert record["criterion"].min() == record["criterion"][record["lam"] == lam]


def test_grid_of_a_norm_ends_where_all_are_equal():
    problem = FPFCProblem(make_pool(6), L2())
    lams, options = problem.grid(5), FPFCOptions(max_iter=5000)
    numbers = [fpfc(problem, lam, options, None)[0].labels.max() + 1 for lam in lams]
    assert numbers[0] > 1 and numbers[-1] == 1
    assert lams[0] == pytest.approx(0.01 * lams[-1])


def test_at_least_one_client_takes_part():
    result, _ = run(make_pool(), 0.1, participation=0.01, max_iter=4, n_iter_no_change=None)
    some, _ = run(make_pool(), 0.1, participation=1 / 6, max_iter=4, n_iter_no_change=None)
    assert_array_equal(result.params, some.params)
    assert (result.params != make_pool().ask(Solve)[0]).any()
