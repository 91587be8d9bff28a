"""Flows against cvxpy, exact partitions, the reduced problem and where everything fuses."""

from itertools import product

import numpy as np
import pytest
from fusion_problems import (
    GRAPHS,
    LOSSES,
    flow_value,
    groups_of,
    make_graph,
    make_problem,
    make_rows,
    optimum,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist
from trials import examples, some, spread

import skcfl.fusion.flows
import skcfl.fusion.reduced_newton
import skcfl.graphs.edges
from skcfl import GTVRegressor
from skcfl.calls.curvatures import HessianProducts, Solve
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.calls.proofs_asked import Conjugate
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.flows import flow_values
from skcfl.fusion.inner_edges import Inside
from skcfl.fusion.problem import FusionProblem
from skcfl.fusion.reduced import (
    contract,
    contract_apart,
    lam_max_bounds,
    solve_reduced,
    split_torn,
)
from skcfl.fusion.reduced_newton import ReducedOracle, pairs_between
from skcfl.graphs import Graph, complete_graph, from_adjacency
from skcfl.graphs.edges import edge_blocks
from skcfl.models import LinearModel
from skcfl.penalties import L1, L2, SquaredL2

pytest.importorskip("cvxpy")

connected = st.sampled_from([kind for kind in GRAPHS if kind != "disconnected"])
seeds = st.integers(0, 2**31)
CLARABEL = 1e-6  # relative accuracy of the reference


def draw_flow(kind, seed):
    """A connected graph and outflows of its nodes, some much larger than others."""
    rng = np.random.RandomState(seed % 2**32)
    n, d = rng.randint(2, 12), rng.randint(1, 4)
    graph = make_graph(rng, n, kind)
    assume(graph.components().max() == 0)
    b = rng.standard_normal((n, d)) * rng.uniform(size=(n, 1)) ** 2
    return graph, b - b.mean(axis=0)


def bounds_of(graph, b, penalty=None, labels=None, *, stored=True, **options):
    """Bounds of flow values, of one cluster unless labels are given, by either search.

    With an edge array, or as of graphs too large for one.
    """
    labels = np.zeros(graph.n_nodes, dtype=int) if labels is None else labels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skcfl.fusion.flows, "MAX_STORED", 10**7 if stored else 0)
        return flow_values(graph, L2() if penalty is None else penalty, labels, b, **options)[:2]


# ------------------------------------------------------------------------------- flows


@pytest.mark.parametrize("penalty", [L2(), L1()], ids=repr)
@examples(10)
@given(kind=connected, seed=seeds, share=st.sampled_from([0.8, 0.97, 0.99, 1.01, 1.03, 1.3]))
def test_bounds_hold_the_flow_value_and_are_tight(penalty, kind, seed, share):
    """A level is decided on the right side, too."""
    graph, b = draw_flow(kind, seed)
    exact = flow_value(graph, -b, 2 if penalty.fuses else np.inf)
    for stored in (True, False):
        upper, lower = bounds_of(graph, b, penalty, stored=stored, tol=1e-3, max_iter=2000)
        assert lower[0] <= exact * (1 + CLARABEL)
        assert upper[0] >= exact * (1 - CLARABEL)
        assert upper[0] <= lower[0] * (1 + (1e-12 if kind == "tree" else 2e-3))
        level = share * exact
        if penalty.fuses and level > 1e-9:
            upper, lower = bounds_of(graph, b, stored=stored, level=level, max_iter=500)
            assert (upper[0] <= level) == (share > 1)
            assert (lower[0] > level) == (share < 1)


@pytest.mark.parametrize("stored", [True, False])
def test_several_clusters_at_once_and_one_at_a_time_agree(stored):
    rng = np.random.RandomState(0)
    labels = np.repeat([0, 1, 2, 3], [5, 1, 7, 4])
    rng.shuffle(labels)
    heads, tails = np.triu_indices(17, 1)
    for graph in (complete_graph(17), Graph(17, heads, tails, rng.uniform(0.5, 1.0, len(heads)))):
        b = rng.standard_normal((17, 2))
        for k in range(4):
            b[labels == k] -= b[labels == k].mean(axis=0)
        exact = np.zeros(4)
        for k in (0, 2, 3):
            mine = labels == k
            exact[k] = flow_value(from_adjacency(graph.adjacency()[mine][:, mine]), -b[mine])
        level = 0.5 * (exact[2] + exact[3])
        upper, lower = bounds_of(graph, b, None, labels, level=level, max_iter=500, stored=stored)
        assert_array_equal(upper <= level, exact <= level)
        assert_array_equal(lower > level, exact > level)
        assert upper[1] == lower[1] == 0.0
        # Only the largest value is asked for to the tolerance.
        upper, lower = bounds_of(graph, b, None, labels, tol=1e-3, max_iter=1000, stored=stored)
        assert lower.max() * (1 - 1e-6) <= exact.max() <= upper.max() * (1 + 1e-6)
        assert upper.max() <= lower.max() * (1 + 2e-3)
        assert (lower <= exact * (1 + 1e-5) + 1e-12).all()
        assert (upper >= exact * (1 - 1e-5)).all()


def test_a_cluster_in_two_pieces_has_no_flow():
    graph = Graph(4, [0, 2], [1, 3])
    assert np.isinf(bounds_of(graph, np.eye(4) - 0.25)).all()


@examples(7)
@given(n=st.integers(2, 25), seed=seeds)
def test_a_solvers_flow_within_clusters(n, seed):
    """Tiles of the whole graph, cut down to tiles within clusters, and lists of edges agree."""
    rng = np.random.RandomState(seed % 2**32)
    labels, d = rng.randint(3, size=n), 2
    labels = np.unique(labels, return_inverse=True)[1]
    heads, tails = np.triu_indices(n, 1)
    u = rng.standard_normal((d, len(heads)))
    full = np.zeros((d, n, n))
    full[:, heads, tails], full[:, tails, heads] = u, -u
    out = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skcfl.graphs.edges, "TILE_BYTES", 8 * 8**2)
        for graph in (complete_graph(n), Graph(n, heads, tails)):
            blocks = edge_blocks(graph, d)
            flow = [u] if not graph.is_complete else [full[:, b.rows, b.columns] for b in blocks]
            inside = Inside(graph, L2(), labels, d)
            divergence = np.zeros((d, n))
            for block, part in zip(inside.blocks, inside.restrict(flow, blocks), strict=True):
                block.add_divergence(part, divergence)
            by_node = np.zeros((d, n))
            by_node[:, inside.nodes] = divergence
            out.append(by_node)
    assert_allclose(out[0], out[1], atol=1e-12)


# -------------------------------------------------------------------------- partitions


def clear_solution(problem, lam):
    """Models and clusters by cvxpy, None where it is not clear which models are equal."""
    value, X = optimum(problem, lam)
    size = np.abs(X).max()
    labels = groups_of(X, 2e-5 * size)
    # Clusters of equal models that no edge joins are two clusters.
    labels = np.unique(split_torn(problem.graph, labels), return_inverse=True)[1]
    if not np.array_equal(groups_of(X, 2e-5 * size), groups_of(X, 2e-3 * size)):
        return None
    return value, X, labels


@pytest.mark.parametrize("graph", GRAPHS)
def test_certified_if_and_only_if_it_is_the_solutions(graph):
    """The solution's partition is proved, another one never is."""
    for loss, seed in spread(product(LOSSES, range(6)), 3):
        problem = make_problem(loss, 6, graph, seed=seed, alpha=0.1)
        lam = lam_max_bounds(problem)[1] * [0.1, 0.3, 0.5, 0.7, 0.9, 1.05][seed]
        found = clear_solution(problem, lam)
        if found is None:
            continue
        value, X, labels = found
        outcome = contract(problem, lam, labels, X)
        assert outcome.certified and not outcome.refuted
        assert_array_equal(outcome.labels, labels)
        assert_allclose(outcome.theta[labels], X, atol=1e-4 * np.abs(X).max())
        assert problem.primal(outcome.theta[labels], lam) <= value + 1e-8 * abs(value)

        rng = np.random.RandomState(seed)
        other = np.unique(rng.randint(1 + rng.randint(6), size=6), return_inverse=True)[1]
        outcome = contract(problem, lam, other, X)
        if outcome is not None:
            W = outcome.theta[outcome.labels]
            solves = problem.primal(W, lam) <= value + 1e-7 * abs(value)
            assert outcome.certified == solves
            assert outcome.refuted == (not solves)

        # From one cluster for each component, splits lead to the solution.
        outcome = contract(
            problem, lam, problem.graph.components(), np.zeros_like(X), max_splits=20
        )
        assert outcome is not None and outcome.certified
        W = outcome.theta[outcome.labels]
        assert_allclose(W, X, atol=1e-4 * np.abs(X).max())
        # A proved partition closes the duality gap, by a dual that is feasible.
        dual = -problem.pool.ask(Conjugate, -outcome.divergence, x0=W).sum()
        assert abs(problem.primal(W, lam) - dual) <= 1e-9 * problem.at_start
        left = [outcome.residual[outcome.labels == k].sum(axis=0) for k in set(outcome.labels)]
        assert_allclose(left, 0.0, atol=1e-9)


def test_reduced_problem_by_conjugate_gradients():
    """The same models where there are too many unknowns for a dense system."""
    for loss in LOSSES:
        problem = make_problem(loss, 9, "weighted", seed=5)
        lam = 0.05 * lam_max_bounds(problem)[0]
        labels = np.array([0, 0, 1, 2, 3, 4, 5, 6, 6])
        new, theta = solve_reduced(problem, lam, labels, problem.local_models())
        again, other = solve_reduced(problem, lam, labels, problem.local_models(), max_unknowns=3)
        assert_array_equal(new, again)
        assert_allclose(theta, other, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
def test_clients_of_few_rows_solve_seldom_where_models_nearly_meet(loss):
    """Directions of 150 unknowns take a few exchanges where some clients are drawn stiffly."""
    n = 30
    graph = Graph(n, [*range(n - 1), *range(n - 3)], [*range(1, n), *range(3, n)])
    problem = make_problem(loss, n, graph, n_rows=2, d=5, spread=0.3, alpha=0.01)
    labels, start = np.arange(n), problem.local_models()
    theta = start[labels - labels % 3] + 0.01 * start
    oracle = ReducedOracle(problem, 0.1, labels, n, pairs_between(graph, labels, n, n), 1500)
    _, g = oracle.at(theta.reshape(1, -1))
    problem.curvatures()
    before = problem.pool.ledger.calls
    step = oracle.direction(g, np.zeros(1)).reshape(n, -1)
    assert problem.pool.ledger.calls - before <= 16
    damping = np.full(n, 1e-4)
    product = problem.pool.ask(HessianProducts, theta, step, labels, np.ones(n), damping)
    missing = product + oracle._pull(step) + g.reshape(step.shape)
    assert np.linalg.norm(missing) <= 0.03 * np.linalg.norm(g)


def test_directions_on_the_complete_graph_need_no_sparse_factor(monkeypatch):
    """They are those of the same graph as a list of edges."""
    n, labels, steps = 12, np.arange(12), []
    failed = np.full((n * 5, n * 5), np.nan), 1
    for graph in (Graph(n, *np.triu_indices(n, 1)), *2 * [complete_graph(n)]):
        problem = make_problem("squared_error", n, graph, n_rows=2, d=5, spread=0.3, alpha=0.01)
        theta = problem.local_models()
        oracle = ReducedOracle(problem, 0.1, labels, n, pairs_between(graph, labels, n, n), 1500)
        _, g = oracle.at(theta.reshape(1, -1))
        steps.append(oracle.direction(g, np.zeros(1)))
        monkeypatch.setattr(skcfl.fusion.reduced_newton, "factor", None)
        if len(steps) == 2:  # a pivot that is not positive
            monkeypatch.undo()
            monkeypatch.setattr(skcfl.fusion.reduced_newton, "dpotrf", lambda *_, **__: failed)
    assert graph.is_complete
    assert_allclose(steps[1:], [steps[0], steps[0]], rtol=1e-6)


def test_too_large_a_reduced_problem_is_refused():
    problem = make_problem("squared_error", 6)
    for most, solved in ((12, True), (11, False), (3, False)):
        _, theta = solve_reduced(problem, 1e-3, np.arange(6), np.zeros((6, 2)), max_unknowns=most)
        assert (theta is not None) == solved


def test_rounding_is_left_to_clients_with_rows():
    """The conjugate of the others is finite at zero alone: else there would be no gap."""
    rng = np.random.RandomState(0)
    graph, truth = Graph(12, range(11), range(1, 12), [1.0] * 5 + [0.01] + [1.0] * 5), [1.0, -2.0]
    codes = np.repeat([0, 2, 3, 5, 6, 8, 9, 11], 4)
    Z = rng.standard_normal((len(codes), 6))
    t = Z.sum(axis=1) * np.where(codes < 6, *truth)
    problem = make_problem("squared_error", 12, graph, rows=(Z, t, codes), alpha=0.0)
    labels = np.repeat([0, 1], 6)
    outcome = contract(problem, 1e-3, labels, np.zeros((12, 6)))
    assert outcome.certified
    assert not outcome.divergence[problem.pool.without_rows].any()
    bounds = problem.pool.ask(Conjugate, -outcome.divergence)
    assert np.isfinite(bounds).all()


# ---------------------------------------------------------------------------- lam_max


@pytest.mark.parametrize("penalty", [L2(), L1()], ids=repr)
@pytest.mark.parametrize("graph", GRAPHS)
def test_lam_max_agrees_with_the_flow_of_the_pooled_gradients(graph, penalty):
    for seed, loss in some(enumerate(LOSSES), 2):
        problem = make_problem(loss, 7, graph, seed=seed, penalty=penalty, fit_intercept=True)
        lower, upper = lam_max_bounds(problem)
        component, exact = problem.graph.components(), 0.0
        _, X = optimum(problem, 0.0, component)
        gradients = problem.pool.ask(ObjectivesGradients, X)[1]
        for k in np.flatnonzero(np.bincount(component) > 1):
            mine = np.flatnonzero(component == k)
            q = gradients[mine] - gradients[mine].mean(axis=0)
            part = from_adjacency(problem.graph.adjacency()[mine][:, mine])
            exact = max(exact, flow_value(part, q, 2 if penalty.fuses else np.inf))
        assert lower <= exact * (1 + 1e-4)
        assert upper >= exact * (1 - 1e-4)
        assert upper <= 1.005 * lower
        if graph == "tree" or not penalty.fuses:
            assert upper == pytest.approx(lower, rel=1e-9)


def test_lam_max_without_edges_and_without_fusion():
    assert lam_max_bounds(make_problem("squared_error", 3, Graph(3, [], []))) == (0.0, 0.0)
    bounds = lam_max_bounds(make_problem("squared_error", 3, penalty=SquaredL2()))
    assert bounds == (np.inf, np.inf)


# --------------------------------------------------------------------- clients without rows


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2()], ids=str)
@examples(10)
@given(kind=st.sampled_from(GRAPHS), seed=seeds)
def test_mended_flows_are_feasible_and_conserved(penalty, kind, seed):
    """Whatever flows a solver has: within capacity, nothing stays at clients without rows."""
    rng = np.random.RandomState(seed % 2**31)
    empty = rng.uniform(size=8) < 0.4
    empty[0] = False
    graph, gone, lam = make_graph(rng, 8, kind), np.flatnonzero(empty), 0.1
    problem = make_problem("squared_error", 8, graph, penalty=penalty, seed=0, empty=gone)
    flows = [
        penalty.project(rng.standard_normal((2, *block.shape)), lam * block.weights)
        for block in problem.blocks
    ]
    if graph.is_complete:  # on diagonal tiles every pair stands twice, with opposite signs
        pairs = zip(problem.blocks, flows, strict=True)
        flows = [0.5 * (u - np.swapaxes(u, 1, 2)) if b.diagonal else u for b, u in pairs]
    divergence, conjugate, left = problem.conserved(flows, lam)
    assert left.max() <= 1e-13
    parts = graph.components()
    anchored = np.bincount(parts, ~empty)[parts] > 0
    assert not divergence[empty & anchored].any()
    assert_allclose(divergence.sum(axis=0), 0.0, atol=1e-12)
    bounds = problem.pool.ask(Conjugate, -divergence)
    if anchored.all():
        # Weak duality at any models.
        assert np.isfinite(bounds).all()
        X = rng.standard_normal((8, 2))
        assert -bounds.sum() - conjugate <= problem.primal(X, lam) + 1e-9


@given(kind=connected, seed=seeds)
def test_clients_without_rows_start_between_their_neighbours(kind, seed):
    """Their local models are harmonic: weighted means of the neighbours'."""
    rng = np.random.RandomState(seed)
    empty = rng.choice(7, 3, replace=False)
    graph = make_graph(rng, 7, kind)
    problem = make_problem("squared_error", 7, graph, seed=seed, empty=empty)
    W, A = problem.local_models(), graph.adjacency().toarray()
    means = A @ W / A.sum(axis=1)[:, None]
    assert_allclose(W[empty], means[empty], atol=1e-9)
    others = np.setdiff1d(np.arange(7), empty)
    assert_array_equal(W[others], problem.pool.ask(Solve)[0][others])


@pytest.mark.parametrize("loss", ["squared_error", "log_loss"])
@examples(5)
@given(kind=connected, seed=seeds)
def test_gaps_beside_a_client_without_weight(loss, kind, seed):
    """Its intercept is in no objective: what flows in has to flow out, or no gap is finite."""
    rng = np.random.RandomState(seed)
    Z, t, codes = make_rows(loss, 6, seed=seed % 2**31)
    weights = np.where(codes < 1 + seed % 2, 0.0, 1.0)
    model = LinearModel(loss=loss, alpha=0.1)
    bound = model.bind(2, n_classes=2 if loss == "log_loss" else None)
    pool = open_rows(bound, Z, t, codes, 6, weights)
    problem = FusionProblem(pool, make_graph(rng, 6, kind), L2())
    exact, _ = admm(problem, 0.05, tol=1e-9)
    rough, _ = admm(problem, 0.05, tol=1e-2, max_iter=200, contraction=False)
    assert rough.converged, rough.shortfall
    # Both gaps bound what is above the optimum.
    assert -exact.extra["dual_gap"] <= rough.objective - exact.objective
    assert rough.objective - exact.objective <= rough.extra["dual_gap"]


# ---------------------------------------------------------------------- models all apart


@pytest.mark.parametrize("loss", LOSSES)
@examples(5)
@given(kind=st.sampled_from(GRAPHS), seed=st.integers(0, 10**6))
def test_models_apart_are_found_or_left(loss, kind, seed):
    """Found from anywhere near, they are proved and optimal; else nothing is claimed."""
    problem = make_problem(loss, 6, kind, seed=seed)
    top = lam_max_bounds(problem)[1]
    assume(top > 0)
    for share in (1e-5, 0.05, 0.9):
        start = problem.local_models()
        outcome = contract_apart(problem, share * top, start)
        if share == 1e-5 and loss == "squared_error" and pdist(start).min() > 0.2:
            assert outcome is not None
        if outcome is None:
            continue
        whole = contract(problem, share * top, np.arange(6), start)
        assert outcome.certified and whole.certified
        assert_array_equal(outcome.labels, np.arange(6))
        assert_allclose(outcome.theta, whole.theta[whole.labels], atol=1e-7)


def test_clients_without_curvature_do_not_set_the_scale():
    Z, t, codes = make_rows("squared_error", 6)
    for alpha in (0.0, 0.1):
        full = make_problem("squared_error", rows=(Z, t, codes), alpha=alpha)
        some = make_problem("squared_error", 9, rows=(Z, t, codes), alpha=alpha)
        assert some.curvature() == pytest.approx(full.curvature(), rel=1e-12)
    nothing = make_problem("squared_error", rows=(0.0 * Z, t, codes), alpha=0.0)
    assert np.isfinite(nothing.curvature()) and nothing.curvature() > 0


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_splits_that_overflow_reject_nobody():
    """Of amounts and far-away features, along a potential that is steep."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(8), rng.integers(2, 28, 8))
    n = len(groups)
    X = np.c_[rng.normal(size=(n, 6)), np.eye(4)[rng.integers(0, 4, n)]] + 1e6
    z = np.clip((X - X.mean(axis=0)) @ rng.normal(size=10) * 1.5, -3, 3)
    y = np.where(groups == 0, 3.0, np.exp(z) * rng.gamma(2.0, 0.5, n) + 1e-9)
    model = GTVRegressor(lam=1.0, loss="gamma", fit_intercept=False, max_iter=50)
    assert not model.fit(X, y, groups=groups).rejected_clients_.size
