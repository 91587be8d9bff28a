"""Dual ascent for points: the solution, its gap, its partition."""

import numpy as np
import pytest
from fusion_problems import make_points
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import adjusted_rand_score
from trials import examples

from skcfl.calls.proofs_asked import Conjugate
from skcfl.fusion import ama as _ama
from skcfl.fusion.admm import admm
from skcfl.fusion.ama import ama
from skcfl.graphs import Graph, chain_graph, knn_graph


def assert_solved(problem, lam, **options):
    """The objective of the ADMM's solution, but for the tolerance; the fit."""
    result, state = ama(problem, lam, **options)
    exact, _ = admm(problem, lam, tol=1e-9)
    assert result.converged
    assert -1e-8 <= result.objective / exact.objective - 1.0 <= 1.1e-6
    return result, state


def draw(seed):
    """Points of any shape, some far from the origin, and a graph on them."""
    rng = np.random.RandomState(seed)
    n, d = rng.randint(2, 60), rng.randint(1, 5)
    points = rng.standard_t(3, size=(n, d)) + rng.choice([0.0, 3.0], size=(n, 1))
    points = points * 10 ** rng.uniform(-2, 2) + rng.choice([0.0, 1e3])
    if rng.rand() < 0.3:
        points[rng.randint(n)] = points[0]
    graph = knn_graph(points, rng.randint(1, 6), connected=rng.rand() < 0.7)
    # Points that are all equal have no size, but lam has to be positive.
    size = max(np.abs(points - points.mean(axis=0)).mean(), 1e-3)
    return make_points(points, graph), size * 10 ** rng.uniform(-3, 2)


@examples(10)
@given(seed=st.integers(0, 10**6), proof=st.booleans())
# A proof about a rough reduced solution; all clusters taken apart; two points at one place.
@example(seed=2039, proof=True)
@example(seed=428, proof=False)
@example(seed=118, proof=False)
def test_gap_bounds_the_excess_and_is_reached(seed, proof):
    problem, lam = draw(seed)
    result, _ = ama(problem, lam, tol=1e-7, contraction=proof)
    assert result.converged
    exact, _ = admm(problem, lam, tol=1e-10, max_iter=5000)
    rounding = 1e-12 * (problem.at_start + lam)
    excess = result.objective - exact.objective
    assert excess <= result.extra["dual_gap"] + exact.extra["dual_gap"] + rounding
    assert -exact.extra["dual_gap"] - rounding <= excess
    assert result.extra["dual_gap"] <= problem.tolerance(result.objective, 1e-7) + rounding
    value = problem.primal(result.params, lam)
    assert value == pytest.approx(result.objective, rel=1e-9, abs=rounding)
    models, size = result.cluster_params[result.labels], np.abs(result.params).max()
    assert_allclose(models, result.params, atol=1e-9 * size)
    if result.extra["partition_optimal"] and exact.extra["partition_optimal"]:
        assert adjusted_rand_score(result.labels, exact.labels) == 1.0


@examples(5)
@given(seed=st.integers(0, 10**6))
def test_path_of_any_points_is_certified(seed):
    """Up and down, over five orders of lam, with and without proofs in between."""
    problem, lam = draw(seed)
    rng, state = np.random.RandomState(seed), None
    for factor in 10 ** np.concatenate([np.linspace(-2, 3, 8), rng.uniform(-2, 3, 4)]):
        proof = rng.rand() < 0.5
        result, state = ama(problem, factor * lam, state=state, contraction=proof)
        assert result.converged
        assert result.extra["dual_gap"] <= problem.tolerance(result.objective, 1e-6)
        value = problem.primal(result.params, factor * lam)
        assert value == pytest.approx(result.objective, rel=1e-9, abs=1e-12 * problem.at_start)
        # The dual solution belongs to this lam: its value is the objective less the gap.
        dual = -problem.pool.ask(Conjugate, -result.extra["dual_coef"], x0=result.params).sum()
        slack = 1e-9 * (abs(value) + problem.at_start * 1e-3)
        assert value - dual <= result.extra["dual_gap"] + slack


@pytest.mark.parametrize("d", [1, 3, 12])
def test_any_number_of_coordinates(d, monkeypatch):
    """Short and long rows, factorised and iterative potentials, blocks take different ways."""
    rng = np.random.RandomState(d)
    points = rng.standard_normal((80, d)) + 4.0 * rng.randint(2, size=(80, 1))
    problem = make_points(points, knn_graph(points, 5, connected=True))
    for lam in (0.05, 0.5, 5.0):
        whole, _ = assert_solved(problem, lam, contraction=False)
    monkeypatch.setattr(_ama, "BLOCK", 50)
    blocks, _ = ama(problem, lam, contraction=False)
    assert blocks.n_iter == whole.n_iter
    assert_allclose(blocks.params, whole.params, rtol=1e-9)


def test_state_of_other_points_is_only_a_start():
    rng = np.random.RandomState(0)
    points = rng.standard_normal((40, 2))
    graph = knn_graph(points, 4)
    _, state = ama(make_points(points, graph), 0.2)
    other = make_points(points + 0.3 * rng.standard_normal((40, 2)), graph)
    started, _ = ama(other, 0.3, state=state, tol=1e-9)
    fresh, _ = ama(other, 0.3, tol=1e-9)
    assert started.objective == pytest.approx(fresh.objective, rel=1e-8)


def test_lam_has_to_be_positive_and_may_be_tiny():
    points = np.random.RandomState(0).standard_normal((10, 2))
    problem = make_points(points, knn_graph(points, 3))
    for lam in (0.0, -1.0, np.nan):
        with pytest.raises(ValueError, match="'lam' parameter of ama"):
            ama(problem, lam)
    result, _ = ama(problem, 5e-324)
    assert result.converged
    assert_allclose(result.params, points, atol=1e-12)


def test_points_at_one_place():
    problem = make_points(np.ones((5, 2)), chain_graph(5))
    for proof in (False, True):
        result, _ = ama(problem, 1.0, contraction=proof)
        assert result.converged
        assert_array_equal(result.params, np.ones((5, 2)))


def test_clients_with_several_rows_and_nodes_without_edges():
    rng = np.random.RandomState(0)
    points, codes = rng.standard_normal((30, 2)), np.repeat(np.arange(6), 5)
    graph = Graph(6, [0, 1, 3], [1, 2, 4])
    problem = make_points(points, graph, codes)
    result, _ = ama(problem, 0.1, tol=1e-9)
    exact, _ = admm(problem, 0.1, tol=1e-9)
    assert result.objective == pytest.approx(exact.objective, rel=1e-8)
    assert_allclose(result.params[5], points[25:].mean(axis=0))
    assert_allclose(result.extra["dual_coef"][5], 0.0, atol=1e-12)


def test_short_runs_say_so_and_go_on():
    rng = np.random.RandomState(0)
    points = rng.standard_normal((60, 1)).cumsum(axis=0)
    problem = make_points(points, chain_graph(60))
    result, state = ama(problem, 3.0, tol=1e-10, max_iter=3, contraction=False)
    assert not result.converged and result.n_iter == 3
    assert "after max_iter=3 iterations" in result.shortfall
    for _ in range(300):
        result, state = ama(problem, 3.0, tol=1e-10, max_iter=30, state=state, contraction=False)
        if result.converged:
            break
    assert result.converged


def test_many_clusters_are_numbered_without_overflow():
    """Pairs of more than 46340 clusters have no number in 32 bits."""
    n, d = 100_000, 1
    heads, tails = np.arange(n - 1), np.arange(1, n)
    network = _ama._Network(heads, tails, np.ones(n - 1), np.ones(n), np.zeros((n, d)))
    labels = _ama._components(heads[::2].copy(), tails[::2].copy(), n)
    merged, _, _ = network.merge(labels, np.zeros((n - 1, d)))
    assert_array_equal(merged.heads, np.arange(n // 2 - 1))
    assert_array_equal(merged.tails, np.arange(1, n // 2))


def test_clusters_that_lack_flows_are_parted_and_the_gap_is_reached(monkeypatch):
    """Mergers far too early are taken back, on systems that shrink on the way."""
    rng = np.random.RandomState(0)
    points = rng.standard_normal((400, 2)) + 6.0 * rng.randint(3, size=(400, 1))
    problem = make_points(points, knn_graph(points, 5, connected=True))
    parted, shrunk = [], []
    part, keep = _ama._AMA._part, _ama._Interior.keep
    monkeypatch.setattr(_ama._AMA, "_part", lambda *a: parted.append(1) or part(*a))
    monkeypatch.setattr(_ama._Interior, "keep", lambda *a: shrunk.append(1) or keep(*a))
    monkeypatch.setattr(_ama, "MERGE_FROM", 1e4)
    for lam in (0.1, 1.0, 10.0):
        assert_solved(problem, lam, contraction=False)
    assert parted and shrunk
