"""What every solver of convex fusion promises: optima of cvxpy, honest gaps, duals and starts."""

import pickle
from functools import partial
from itertools import product

import numpy as np
import pytest
from fusion_problems import (
    GRAPHS,
    LOSSES,
    MORE_LOSSES,
    assert_optimal,
    make_points,
    make_problem,
    make_rows,
    optimum,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from trials import THOROUGH, examples, some, spread

from skcfl.calls.first_order import ObjectivesGradients
from skcfl.fusion.admm import admm
from skcfl.fusion.pdmm import pdmm
from skcfl.fusion.primal_dual import primal_dual
from skcfl.fusion.reduced import lam_max_bounds
from skcfl.graphs import Graph, complete_graph
from skcfl.penalties import L1, L2, SquaredL2

pytest.importorskip("cvxpy")

SOLVERS = {"admm": admm, "primal_dual": primal_dual, "pdmm": pdmm}
SAMPLED = {
    "ends": partial(pdmm, participation=0.4, rng=0),
    "independent": partial(pdmm, participation=0.4, dual_sampling="independent", rng=0),
}
ALL = SOLVERS | SAMPLED
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS)
PENALTIES = [L2(), L1(), SquaredL2(), SquaredL2(Q=[[2.0, 0.5], [0.5, 1.0]])]
KINDS = [(loss, L2()) for loss in LOSSES]
KINDS += [("squared_error", L1()), ("squared_error", SquaredL2())]
losses_and_penalties = pytest.mark.parametrize("loss, penalty", KINDS, ids=str)
SEVERAL = ["squared_error", "log_loss", "squared_hinge"]
FOUR = ["complete", "weighted", "knn", "disconnected"]


# ------------------------------------------------------------------------------- optima


@pytest.mark.parametrize(("loss", "graph"), spread(product(MORE_LOSSES, FOUR), 4))
def test_admm_reaches_the_optimum_of_cvxpy(loss, graph):
    """Local penalties and intercepts, several lam, with and without exact partitions."""
    kinds = ((0.0, False), (1e-3, False), (0.1, False), (0.01, True))
    for seed, (alpha, free) in enumerate(kinds):
        problem = make_problem(
            loss, 6, graph, seed=seed, n_rows=12, alpha=alpha, fit_intercept=free
        )
        top = lam_max_bounds(problem)[1]
        for k, share in some(enumerate((0.4, 0.03, 1.1)), 1):
            contraction = bool((seed + k) % 2)
            result, _ = admm(problem, share * top, tol=1e-7, contraction=contraction)
            assert_optimal(problem, share * top, result)


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_penalties_reach_the_optimum_of_cvxpy(penalty):
    graphs = [*enumerate(GRAPHS)]
    for k, graph in graphs if THOROUGH else graphs[PENALTIES.index(penalty) % 2 :: 2]:
        loss = SEVERAL[k % 2]
        problem = make_problem(loss, 5, graph, seed=2, n_rows=14, penalty=penalty, alpha=0.01)
        lam = (0.01, 0.3)[k // 2 % 2]
        results = [solve(problem, lam, tol=1e-8)[0] for solve in SOLVERS.values()]
        assert_optimal(problem, lam, *results, models=True)


# ------------------------------------------------------------------------ honest results


@examples(20)
@given(
    st.sampled_from(list(ALL)),
    st.sampled_from(LOSSES),
    st.sampled_from(GRAPHS),
    st.floats(0.01, 1.2),
    st.integers(1, 60),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_the_gap_is_never_less_than_the_excess(
    name, loss, graph, share, max_iter, contraction, free, seed
):
    """At every check, whether the solver was stopped early or not; it never grows."""
    problem = make_problem(loss, 6, graph, seed=seed, n_rows=10, alpha=0.01, fit_intercept=free)
    lam = share * lam_max_bounds(problem, tol=0.1)[1] or 1.0  # any, without edges
    result, _ = ALL[name](problem, lam, tol=1e-7, max_iter=max_iter, contraction=contraction)
    best, _ = optimum(problem, lam)
    scale = max(abs(best), 1e-3 * problem.at_start)
    gaps, objectives = result.history["gap"], result.history["objective"]
    assert (gaps >= objectives - best - 1e-7 * scale).all()
    assert (np.diff(gaps[np.isfinite(gaps)]) <= 0).all()
    assert result.objective == pytest.approx(problem.primal(result.params, lam), rel=1e-12)
    assert result.extra["dual_gap"] == gaps[-1] >= 0
    assert result.converged == (gaps[-1] <= problem.tolerance(result.objective, 1e-7))
    assert (f"max_iter={max_iter}" in result.shortfall) == (not result.converged)


@pytest.mark.parametrize(("name", "kind"), spread(product(SOLVERS, KINDS), 5), ids=str)
def test_duals_pull_against_the_gradients(name, kind):
    """At the solution ``(D'u)_i = -grad f_i(x_i)``."""
    loss, penalty = kind
    problem = make_problem(loss, 8, "weighted", seed=4, penalty=penalty)
    lam = 0.3 * lam_max_bounds(problem)[1] if penalty.fuses else 0.05
    result, _ = SOLVERS[name](problem, lam, tol=1e-9)
    gradients = problem.pool.ask(ObjectivesGradients, result.params)[1]
    size = np.abs(gradients).max()
    assert_allclose(result.extra["dual_coef"], -gradients, atol=1e-3 * size)


@every_solver
def test_complete_graph_equals_its_list_of_edges(solve):
    rows = make_rows("log_loss", 9)
    short = make_problem("log_loss", 9, complete_graph(9, 0.7), rows=rows)
    long = make_problem("log_loss", 9, Graph(9, *np.triu_indices(9, 1), 0.7), rows=rows)
    for share in (0.1, 0.7):
        lam = share * lam_max_bounds(short)[1]
        a, b = (
            solve(problem, lam, max_iter=30, tol=0.0, contraction=False)[0]
            for problem in (short, long)
        )
        assert_allclose(a.params, b.params, atol=1e-10)
        assert_allclose(a.history["gap"], b.history["gap"], rtol=1e-6, atol=1e-10)


# -------------------------------------------------------------------------------- starts


@every_solver
@pytest.mark.parametrize(
    ("graph", "contraction", "loss"),
    [("complete", False, "squared_error"), ("knn", True, "log_loss")],
)
def test_warm_starts(solve, graph, contraction, loss):
    """From another lam the same optimum; from the solution itself at once; states are kept."""
    problem = make_problem(loss, 8, graph, seed=1, alpha=0.01)
    top, state = lam_max_bounds(problem)[1], None
    for share in (0.05, 1.1, 0.3):
        lam, kept, start = share * top, pickle.dumps(state), state
        warm, state = solve(problem, lam, tol=1e-8, state=start, contraction=contraction)
        assert pickle.dumps(start) == kept
        cold, _ = solve(problem, lam, tol=1e-8, contraction=contraction)
        assert warm.converged and cold.converged
        assert warm.objective == pytest.approx(cold.objective, rel=2e-8)
    again, _ = solve(problem, lam, tol=1e-7, state=state, contraction=contraction)
    assert again.n_iter <= (15 if contraction else min(10, cold.n_iter - 1))


@pytest.mark.parametrize("solve", [primal_dual, admm])
def test_a_partition_is_a_start_on_any_graph(solve):
    """That of another lam, graph or local penalty is proved before anything is iterated."""
    ring = [(i, (i + 2) % 12) for i in range(12)]
    graph = Graph(12, *np.sort(ring, axis=1).T, np.full(12, 3.0))
    more = Graph(12, *np.sort([*ring, (0, 1)], axis=1).T, np.append(np.full(12, 3.0), 0.01))
    Z, _, codes = make_rows("squared_error", 12, n_rows=20, d=3)
    rng = np.random.RandomState(0)
    t = (Z * rng.standard_normal((2, 3))[codes % 2]).sum(axis=1) + 0.5 * rng.standard_normal(240)
    problem = make_problem("squared_error", 12, graph, rows=(Z, t, codes), alpha=0.01)
    cold, state = solve(problem, 3.0)
    assert cold.extra["partition_optimal"] and cold.labels.max() == 1 and cold.n_iter > 0
    warm, _ = solve(problem, 4.0, state=state)
    assert warm.n_iter == 0 and warm.extra["partition_optimal"]
    assert len({len(column) for column in warm.history.values()}) == 1
    other = make_problem("squared_error", 12, more, rows=(Z, t, codes), alpha=0.02)
    warm, after = solve(other, 3.0, state=state.without_edges())
    fresh, _ = solve(other, 3.0)
    assert warm.n_iter == 0 < fresh.n_iter
    assert warm.objective == pytest.approx(fresh.objective, rel=1e-8)
    # What follows begins with edges of its own.
    on, _ = solve(other, 2.9, state=after, contraction=False)
    assert on.converged and on.n_iter > 0


# -------------------------------------------------------------------------- odd clients


@losses_and_penalties
def test_clients_without_rows(loss, penalty):
    """GTV's inaccessible nodes, nothing of their own, not even a penalty: flows are mended."""
    rows = make_rows(loss, 7, n_rows=14, seed=0, empty=[1, 4, 6])
    kinds = [(complete_graph(7), 0.2), (Graph(7, range(6), range(1, 7)), 0.8)]
    if not THOROUGH and isinstance(penalty, L2):
        kinds = kinds[LOSSES.index(loss) % 2 :][:1]
    for graph, share in kinds:
        problem = make_problem(loss, 7, graph, penalty=penalty, rows=rows, alpha=0.0)
        lam = share * (lam_max_bounds(problem)[1] if penalty.fuses else 0.1)
        results = [solve(problem, lam, tol=1e-7)[0] for solve in SOLVERS.values()]
        assert_optimal(problem, lam, *results)
        for result in results:
            assert not result.extra["dual_coef"][[1, 4, 6]].round(9).any()


@every_solver
def test_clients_without_neighbours_keep_their_own_models(solve):
    for loss in ("squared_error", "log_loss"):
        graph = Graph(7, [0, 1, 4], [1, 2, 5], [1.0, 2.0, 0.5])
        problem = make_problem(loss, 7, graph, n_rows=14)
        result, _ = solve(problem, 10.0, tol=1e-9)
        assert_optimal(problem, 10.0, result)
        local = problem.local_models()
        assert_allclose(result.params[[3, 6]], local[[3, 6]], atol=1e-8)
        assert not result.extra["dual_coef"][[3, 6]].any()
        assert result.labels.max() == 3
        for n in (1, 4):
            lone = make_problem(loss, n, Graph(n, [], []), n_rows=14)
            result, _ = solve(lone, 1.0)
            assert result.converged and len(np.unique(result.labels)) == n
            assert_allclose(result.params, lone.local_models(), atol=1e-8)


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    "solve, name, value",
    [
        (primal_dual, "ratio", 0.0),
        (primal_dual, "relaxation", 2.0),
        (pdmm, "rho", 0.0),
        (pdmm, "eta", -1.0),
        (pdmm, "tau", 0.0),
        (pdmm, "nu", 1.0),
        (pdmm, "participation", 0.0),
        (pdmm, "participation", 1.5),
        (pdmm, "dual_sampling", "some"),
        (pdmm, "check_every", 0),
    ],
)
def test_parameters_out_of_range(solve, name, value):
    message = f"'{name}' parameter of {solve.__name__} must be .*Got"
    with pytest.raises(ValueError, match=message):
        solve(make_points([[0.0], [1.0]]), 0.5, **{name: value})
