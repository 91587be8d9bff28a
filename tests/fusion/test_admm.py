"""ADMM of fusion problems: optima of cvxpy, honest gaps, exact partitions, hard clients."""

from itertools import product

import numpy as np
import pytest
from fusion_problems import (
    CLASSIFIERS,
    GRAPHS,
    LOSSES,
    MORE_LOSSES,
    make_graph,
    make_points,
    make_problem,
    make_rows,
    optimum,
    pool_of,
)
from hypothesis import given
from hypothesis import strategies as st
from trials import examples, some, spread

from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.calls.proofs_asked import Rounding
from skcfl.fusion.admm import admm
from skcfl.fusion.problem import FusionProblem
from skcfl.fusion.reduced import lam_max_bounds
from skcfl.graphs import Graph, complete_graph, knn_graph
from skcfl.penalties import L1, L2, SquaredL2

pytest.importorskip("cvxpy")

seeds = st.integers(0, 2**31)
FOUR = ["complete", "weighted", "knn", "disconnected"]


def excess(problem, lam, result):
    """How much a result exceeds the optimum, relative to it."""
    best, _ = optimum(problem, lam)
    return (result.objective - best) / max(abs(best), 1e-6 * problem.at_start)


# ------------------------------------------------------------------------------- optima


@pytest.mark.parametrize(("loss", "graph"), spread(product(MORE_LOSSES, FOUR), 11))
def test_reaches_the_optimum_of_cvxpy(loss, graph):
    """With and without local penalty, several lam, with and without exact partitions."""
    for seed, alpha in enumerate((0.0, 1e-3, 0.1)):
        problem = make_problem(loss, 7, graph, seed=seed, n_rows=14, alpha=alpha)
        top = lam_max_bounds(problem)[1]
        for k, share in some(enumerate((0.4, 0.03, 1.1)), 1 + (seed == 0)):
            result, _ = admm(problem, share * top, tol=1e-7, contraction=bool((seed + k) % 2))
            assert result.converged
            assert excess(problem, share * top, result) <= 2e-6


@pytest.mark.parametrize("loss", MORE_LOSSES)
def test_intercepts_reach_the_optimum(loss):
    problem = make_problem(loss, 6, "complete", n_rows=14, alpha=0.01, fit_intercept=True)
    for share in (0.1, 0.7):
        lam = share * lam_max_bounds(problem)[1]
        result, _ = admm(problem, lam, tol=1e-7)
        assert result.converged and excess(problem, lam, result) <= 2e-6


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("penalty", [L1(), SquaredL2(), SquaredL2(Q=[[2.0, 0.5], [0.5, 1.0]])])
def test_other_penalties_reach_the_optimum(penalty, graph):
    problem = make_problem("log_loss", 6, graph, seed=2, n_rows=14, penalty=penalty, alpha=0.01)
    for lam in (0.01, 0.3):
        result, _ = admm(problem, lam, tol=1e-7)
        assert result.converged
        if penalty == SquaredL2() or penalty == L1():
            assert excess(problem, lam, result) <= 2e-6


def test_a_matrix_of_the_squared_penalty_is_a_change_of_coordinates():
    """``z' Q z`` with Q = R' R is the squared norm of ``R z``."""
    rng = np.random.RandomState(0)
    R = rng.standard_normal((2, 2)) + 2 * np.eye(2)
    Z, t, codes = make_rows("squared_error", 6)
    plain = make_problem(
        "squared_error", rows=(Z, t, codes), penalty=SquaredL2(Q=R.T @ R), alpha=0
    )
    turned = make_problem(
        "squared_error", rows=(Z @ np.linalg.inv(R), t, codes), penalty=SquaredL2(), alpha=0
    )
    a, _ = admm(plain, 0.2, tol=1e-10)
    b, _ = admm(turned, 0.2, tol=1e-10)
    assert a.objective == pytest.approx(b.objective, rel=1e-8)
    np.testing.assert_allclose(a.params @ R.T, b.params, atol=1e-3)


def test_convex_clustering_of_points():
    rng = np.random.RandomState(0)
    a = np.concatenate([rng.standard_normal((5, 2)), 6 + rng.standard_normal((5, 2))])
    for loss in ("squared_error", "huber"):
        problem = make_points(a, loss=loss)
        for share in (0.1, 0.5, 1.1):
            lam = share * lam_max_bounds(problem)[1]
            result, _ = admm(problem, lam, tol=1e-7)
            assert result.converged and excess(problem, lam, result) <= 2e-6


def test_ends_of_the_path():
    """Local models for a small lam, the pooled one (clients alike) for a large one."""
    problem = make_problem("log_loss", 6, n_rows=14)
    top = lam_max_bounds(problem)[1]
    small, _ = admm(problem, 1e-6 * top, tol=1e-9)
    np.testing.assert_allclose(small.params, problem.local_models(), atol=1e-3)
    large, _ = admm(problem, 1.1 * top, tol=1e-9)
    pooled = optimum(problem, 0.0, np.zeros(6, dtype=int))[1]
    assert len(large.cluster_params) == 1 and large.extra["partition_optimal"]
    np.testing.assert_allclose(large.params, pooled, atol=1e-6)


# ------------------------------------------------------------------------ honest results


@examples(21)
@given(
    st.sampled_from(LOSSES),
    st.sampled_from(GRAPHS),
    st.floats(0.01, 1.2),
    st.integers(1, 60),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_the_gap_is_never_less_than_the_excess(
    loss, graph, share, max_iter, contraction, free, seed
):
    """At every check, whether the solver was stopped early or not; it never grows."""
    problem = make_problem(
        loss, 6, graph, seed=seed % 2**31, n_rows=10, alpha=0.01, fit_intercept=free
    )
    lam = share * lam_max_bounds(problem, tol=0.1)[1] or 1.0  # any, without edges
    result, _ = admm(problem, lam, tol=1e-7, max_iter=max_iter, contraction=contraction)
    best, _ = optimum(problem, lam)
    scale = max(abs(best), 1e-3 * problem.at_start)
    gaps, objectives = result.history["gap"], result.history["objective"]
    assert (gaps >= objectives - best - 1e-7 * scale).all()
    assert (np.diff(gaps[np.isfinite(gaps)]) <= 0).all()
    assert result.objective == pytest.approx(problem.primal(result.params, lam), rel=1e-12)
    assert result.extra["dual_gap"] == gaps[-1] >= 0
    assert result.converged == (gaps[-1] <= problem.tolerance(result.objective, 1e-7))
    assert bool(result.shortfall) == (not result.converged)


@pytest.mark.parametrize("loss", LOSSES)
def test_duals_pull_against_the_gradients(loss):
    """At the solution ``(D'u)_i = -grad f_i(x_i)``."""
    problem = make_problem(loss, 8, "weighted", seed=4)
    result, _ = admm(problem, 0.3 * lam_max_bounds(problem)[1], tol=1e-9)
    gradients = problem.pool.ask(ObjectivesGradients, result.params)[1]
    size = np.abs(gradients).max()
    np.testing.assert_allclose(result.extra["dual_coef"], -gradients, atol=1e-3 * size)


@pytest.mark.parametrize("graph", GRAPHS)
def test_partitions_are_exact_and_proved(graph):
    for seed, loss in enumerate(LOSSES):
        problem = make_problem(loss, 12, graph, seed=seed, alpha=0.01)
        for share in (0.3, 0.8):
            lam = share * lam_max_bounds(problem)[1]
            result, _ = admm(problem, lam, tol=1e-7)
            assert result.extra["partition_optimal"]
            np.testing.assert_array_equal(result.params, result.cluster_params[result.labels])
            assert result.extra["dual_gap"] <= 1e-9 * problem.at_start


# ---------------------------------------------------------------------------- invariance


@examples(5)
@given(st.sampled_from(LOSSES), st.sampled_from(GRAPHS), st.floats(0.05, 1.1), seeds)
def test_the_order_of_clients_does_not_matter(loss, graph, share, seed):
    n, rng = 7, np.random.RandomState(seed % 2**32)
    rows = make_rows(loss, n, seed=seed % 2**31)
    network = make_graph(rng, n, graph)
    problem = make_problem(loss, n, network, rows=rows)
    lam = share * lam_max_bounds(problem)[1]
    one, _ = admm(problem, lam, tol=1e-8)

    place = rng.permutation(n)  # client i becomes place[i]
    Z, t, codes = rows
    if not network.is_complete:
        ends = place[network.heads], place[network.tails]
        network = Graph(n, np.minimum(*ends), np.maximum(*ends), network.weights)
    other, _ = admm(make_problem(loss, n, network, rows=(Z, t, place[codes])), lam, tol=1e-8)
    assert other.objective == pytest.approx(one.objective, rel=1e-7, abs=1e-9)
    np.testing.assert_allclose(other.params[place], one.params, atol=1e-3)
    if one.extra["partition_optimal"] and other.extra["partition_optimal"]:
        pairs = set(zip(one.labels.tolist(), other.labels[place].tolist(), strict=True))
        assert len(pairs) == len(set(one.labels.tolist())) == len(set(other.labels.tolist()))


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
def test_complete_graph_equals_its_list_of_edges(loss):
    rows = make_rows(loss, 9)
    heads, tails = np.triu_indices(9, 1)
    short = make_problem(loss, 9, complete_graph(9, 0.7), rows=rows)
    long = make_problem(loss, 9, Graph(9, heads, tails, 0.7), rows=rows)
    for share in (0.1, 0.7):
        lam = share * lam_max_bounds(short)[1]
        a, _ = admm(short, lam, max_iter=30, tol=0.0, contraction=False)
        b, _ = admm(long, lam, max_iter=30, tol=0.0, contraction=False)
        np.testing.assert_allclose(a.params, b.params, atol=1e-10)
        np.testing.assert_allclose(a.history["gap"], b.history["gap"], rtol=1e-6, atol=1e-10)


def test_many_tiles_equal_one(monkeypatch):
    rows = make_rows("log_loss", 20)
    one = make_problem("log_loss", 20, rows=rows)
    monkeypatch.setattr("skcfl.graphs.edges.TILE_BYTES", 8 * 8**2)
    many = make_problem("log_loss", 20, rows=rows)
    assert len(many.blocks) > len(one.blocks) == 1
    lam = 0.5 * lam_max_bounds(one)[1]
    for contraction in (False, True):
        a, _ = admm(one, lam, tol=1e-8, contraction=contraction)
        b, _ = admm(many, lam, tol=1e-8, contraction=contraction)
        np.testing.assert_allclose(a.params, b.params, atol=1e-8)
        assert a.n_iter == b.n_iter


def test_conjugate_gradients_on_large_graphs(monkeypatch):
    problem = make_problem("squared_error", 30, "knn")
    lam = 0.3 * lam_max_bounds(problem)[1]
    a, _ = admm(problem, lam, tol=1e-8, contraction=False)
    monkeypatch.setattr("skcfl.fusion.admm.MAX_INVERSE", 5)
    b, _ = admm(problem, lam, tol=1e-8, contraction=False)
    assert a.objective == pytest.approx(b.objective, rel=1e-7)
    assert abs(a.n_iter - b.n_iter) <= 10


# --------------------------------------------------------------------------- warm starts


@pytest.mark.parametrize("contraction", [True, False])
@pytest.mark.parametrize("graph", ["complete", "knn"])
def test_warm_starts(graph, contraction):
    """From another lam the same optimum; from the solution itself at once."""
    for loss in ("squared_error", "log_loss"):
        problem = make_problem(loss, 12, graph, alpha=0.01)
        top, state = lam_max_bounds(problem)[1], None
        for share in (0.05, 0.2, 0.5, 1.1, 0.3):
            lam = share * top
            warm, state = admm(problem, lam, tol=1e-8, state=state, contraction=contraction)
            cold, _ = admm(problem, lam, tol=1e-8, contraction=contraction)
            assert warm.converged and cold.converged
            assert warm.objective == pytest.approx(cold.objective, rel=1e-7)
        again, _ = admm(problem, lam, tol=1e-7, state=state, contraction=contraction)
        assert again.n_iter <= max(cold.n_iter, 15)


def test_a_state_is_not_changed_by_what_follows():
    problem = make_problem("squared_error", 6)
    lam = 0.3 * lam_max_bounds(problem)[1]
    _, state = admm(problem, lam, max_iter=5, tol=0.0)
    kept = [state.W.copy(), state.V.copy(), state.A.copy(), *(t.copy() for t in state.T)]
    admm(problem, 2 * lam, state=state)
    for before, after in zip(kept, [state.W, state.V, state.A, *state.T], strict=True):
        np.testing.assert_array_equal(before, after)


# -------------------------------------------------------------------------- hard clients


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_clients_of_one_class(loss):
    """Their own problem has no minimum (a free intercept), the fusion problem has one."""
    Z, t, codes = make_rows(loss, 6, n_rows=12, seed=1)
    t[codes == 2], t[codes == 4] = 1.0, 0.0
    problem = make_problem(loss, 6, rows=(Z, t, codes), alpha=0.01, fit_intercept=True)
    top = lam_max_bounds(problem)[1]
    for share in (0.1, 0.6, 1.1):
        result, _ = admm(problem, share * top, tol=1e-7)
        assert result.converged and excess(problem, share * top, result) <= 2e-6


@pytest.mark.parametrize("alpha", [0.0, 0.01])
@pytest.mark.parametrize("loss", LOSSES)
def test_fewer_rows_than_features(loss, alpha):
    """Two rows and four features per client: only together they determine a model."""
    problem = make_problem(loss, 12, n_rows=2, d=4, seed=3, n_clusters=1, spread=0.7, alpha=alpha)
    if loss in CLASSIFIERS and alpha == 0.0:
        pytest.skip("classes that can be separated have no best model without a penalty")
    top = lam_max_bounds(problem)[1]
    for share in (0.5, 1.1):
        result, _ = admm(problem, share * top, tol=1e-7)
        assert result.converged and excess(problem, share * top, result) <= 2e-6


def test_certify_proves_where_many_models_meet_at_once():
    """What is proved from a rough solution is what a fine one shows."""
    proved = 0
    for seed in range(6):
        problem = make_problem("squared_error", 24, n_rows=12, d=4, seed=seed)
        top = lam_max_bounds(problem)[1]
        for share in (0.4, 0.6):
            plain, _ = admm(problem, share * top, tol=1e-5)
            result, _ = admm(problem, share * top, tol=1e-5, certify=True)
            assert result.extra["partition_optimal"] >= plain.extra["partition_optimal"]
            if result.extra["partition_optimal"]:
                fine, _ = admm(problem, share * top, tol=1e-11, certify=True)
                np.testing.assert_allclose(result.params, fine.params, atol=1e-4)
                assert result.objective <= plain.objective * (1 + 1e-12)
                proved += 1
    assert proved >= 8


@pytest.mark.parametrize("loss", LOSSES)
def test_clients_without_rows(loss):
    """GTV's inaccessible nodes: nothing of their own, not even a penalty."""
    Z, t, codes = make_rows(loss, 9, n_rows=14, seed=2)
    keep = ~np.isin(codes, [1, 5, 8])
    rows = Z[keep], t[keep], codes[keep]
    for graph in (complete_graph(9), Graph(9, range(8), range(1, 9))):
        problem = make_problem(loss, 9, graph, rows=rows, alpha=0.0)
        top = lam_max_bounds(problem)[1]
        for share in (0.2, 0.8):
            result, _ = admm(problem, share * top, tol=1e-7)
            assert result.converged and excess(problem, share * top, result) <= 2e-6


@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_a_client_alone_whose_objective_has_no_minimum(loss):
    """It is at its infimum but for rounding, and the gap knows that."""
    Z, t, codes = make_rows(loss, 4, n_rows=14, seed=1)
    t[codes == 3] = (Z[codes == 3, 0] > 0).astype(float)
    graph = Graph(4, [0, 1], [1, 2])
    problem = make_problem(loss, 4, graph, rows=(Z, t, codes), alpha=0.0)
    result, _ = admm(problem, 0.05, tol=1e-7)
    assert result.converged


def test_clients_without_neighbours_keep_their_own_model():
    problem = make_problem("log_loss", 5, Graph(5, [0, 1], [1, 2]), n_rows=14)
    result, _ = admm(problem, 10.0, tol=1e-9)
    np.testing.assert_allclose(result.params[3:], problem.local_models()[3:], atol=1e-4)
    assert len(np.unique(result.labels)) == 3
    alone = make_problem("squared_error", 3, Graph(3, [], []))
    result, _ = admm(alone, 1.0, tol=1e-9)
    assert result.converged and len(result.cluster_params) == 3


@pytest.mark.parametrize("share", [0.003, 0.03, 0.3])
@pytest.mark.parametrize("graph", ["complete", "knn"])
@pytest.mark.parametrize("loss", CLASSIFIERS)
def test_clients_whose_classes_are_nearly_separated(loss, graph, share):
    """Their curvature at the minimum is far below its bound: the step has to adapt.

    With residual balancing alone these took up to 3000 iterations.
    """
    rng = np.random.RandomState(0)
    n, d, n_rows = 40, 4, 12
    truth = rng.standard_normal((3, d)) * 2.0 / np.sqrt(d)
    cluster, codes = rng.randint(3, size=n), np.repeat(np.arange(n), n_rows)
    Z = rng.standard_normal((len(codes), d))
    z = np.einsum("rd,rd->r", Z, truth[cluster[codes]])
    t = (z + 0.7 * rng.logistic(size=len(z)) > 0).astype(float)
    local = pool_of(loss, Z, t, codes, n, alpha=0.05, fit_intercept=True).ask(Solve)[0]
    network = complete_graph(n) if graph == "complete" else knn_graph(local, 5)
    pool = pool_of(loss, Z, t, codes, n, alpha=1e-4, fit_intercept=True)
    problem = FusionProblem(pool, network, L2())
    lam = share * lam_max_bounds(problem, tol=0.05)[1]
    plain, _ = admm(problem, lam, tol=1e-6, contraction=False, max_iter=200)
    assert plain.converged
    exact, _ = admm(problem, lam, tol=1e-6, max_iter=100)
    assert exact.converged and exact.extra["partition_optimal"]
    assert exact.objective == pytest.approx(plain.objective, rel=2e-6)


def test_the_rounding_of_clients_is_in_every_gap(monkeypatch):
    """What came with the other numbers of a check is that of the models it is used for."""
    rounding, known = FusionProblem.rounding, []

    def checked(problem, X, lam, *args, of_clients=None, **how):
        if of_clients is not None:
            known.append(of_clients)
            np.testing.assert_array_equal(of_clients, problem.pool.ask(Rounding, X))
            assert of_clients.min() > 0.0
        return rounding(problem, X, lam, *args, of_clients=of_clients, **how)

    monkeypatch.setattr(FusionProblem, "rounding", checked)
    problem = make_problem("squared_error", 7, "complete", n_rows=14, alpha=0.01)
    admm(problem, 0.3 * lam_max_bounds(problem)[1], tol=1e-9)
    assert len(known) > 2
