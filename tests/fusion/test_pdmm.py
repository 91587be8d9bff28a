"""PDMM: solutions, equations, sampling and messages."""

import numpy as np
import pytest
from fusion_problems import make_points, make_problem
from numpy.testing import assert_allclose, assert_array_equal

from skcfl.calls.curvatures import Solve
from skcfl.fusion.admm import admm
from skcfl.fusion.pdmm import pdmm
from skcfl.graphs import Graph, knn_graph


def clustered(n, graph=None, n_rows=12):
    """Clients of least squares in three clusters that are clear."""
    rng = np.random.RandomState(0)
    truth = 2.0 * rng.normal(size=(3, 3))[np.arange(n) % 3]
    codes = np.repeat(np.arange(n), n_rows)
    Z = rng.normal(size=(len(codes), 3))
    rows = Z, (Z * truth[codes]).sum(axis=1) + rng.normal(size=len(codes)), codes
    return make_problem("squared_error", n, graph or "complete", rows=rows, alpha=0.05)


# ------------------------------------------------------------------------------ solutions


@pytest.mark.parametrize("sampling", ["ends", "independent"])
def test_twenty_clients_at_forty_percent(sampling):
    problem = clustered(20, n_rows=20)
    options = {"participation": 0.4, "dual_sampling": sampling, "rng": 0, "contraction": False}
    result, _ = pdmm(problem, 0.05, **options)
    assert result.converged and result.n_iter <= 1450
    assert (result.history["participants"] == 8).all()
    best, _ = admm(problem, 0.05, tol=1e-9, max_iter=20000)
    assert result.objective == pytest.approx(best.objective, rel=1.1e-6)


def test_bipartite_graphs_need_the_damping_of_the_default():
    heads, tails = np.divmod(np.arange(64), 8)
    graph = Graph(16, heads, tails + 8)
    problem = make_points(np.random.RandomState(0).normal(size=(16, 2)), graph)
    options = {"rho": 10.0, "contraction": False, "max_iter": 3000}
    for lam in (0.1, 2.0):
        assert pdmm(problem, lam, **options)[0].converged
    literal, _ = pdmm(problem, 2.0, eta=10.0, **options)
    assert not literal.converged and literal.n_iter < 500
    assert "diverged" in literal.shortfall and "tau=0.8" in literal.shortfall


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


@pytest.mark.parametrize(("participation", "complete"), [(1.0, False), (0.4, True)])
def test_rounds_follow_the_equations(participation, complete):
    rng = np.random.RandomState(0)
    n, d, lam, steps = 5, 2, 0.3, {"rho": 0.7, "eta": 0.4, "tau": 0.9, "nu": 0.3}
    a = rng.normal(size=(n, d))
    upper = np.triu_indices(n, 1)
    problem = make_points(a, None if complete else Graph(n, *upper))
    W, Z, M = a.copy(), a[upper[0]] - a[upper[1]], np.zeros((len(upper[0]), d))
    draws = np.random.RandomState(3)
    for _ in range(6):
        sampled = range(n) if participation == 1 else draws.choice(n, size=2, replace=False)
        W, Z, M = one_round(a, lam, W, Z, M, set(sampled), **steps)
    options = {"participation": participation, "tol": 0.0, "max_iter": 6, "rng": 3}
    _, state = pdmm(problem, lam, **steps, **options)
    assert_allclose(state.W, W, atol=1e-12)
    for ours, theirs in ((state.Z, Z), (state.M, M)):
        ours = ours[0][:, *upper] if complete else ours[0]
        assert_allclose(ours.T, theirs, atol=1e-12)


# ------------------------------------------------------------------------------- messages


def floats_of_a_round(problem, k, **options):
    """Floats (up, down) of round k + 1: two runs that end with the same check."""
    ledger, totals = problem.pool.ledger, []
    problem.local_models(), problem.curvature()
    for max_iter in (k, k + 1):
        problem.pool.ask(Solve)  # starts are what clients have answered last, as in a fit
        up, down = ledger.up, ledger.down
        pdmm(problem, 0.05, tol=0.0, max_iter=max_iter, rng=0, contraction=False, **options)
        totals.append((ledger.up - up, ledger.down - down))
    return tuple(np.subtract(totals[1], totals[0]))


@pytest.mark.parametrize("participation", [1.0, 0.3])
def test_messages_of_a_round_on_the_complete_graph(participation):
    n, d = 10, 3
    m = round(participation * n)
    touched = n * (n - 1) // 2 - (n - m) * (n - m - 1) // 2
    up, down = floats_of_a_round(clustered(n), 2, participation=participation)
    # S5 the sampled models, S6 the z of their pairs.
    assert up == d * (m + touched)
    # S7 a sampled model to all other clients, S10 a dual to both ends.
    assert down == d * (m * (n - 1) + 2 * touched)


def test_messages_of_a_round_on_a_sparse_graph():
    """Models go to neighbours only."""
    graph = knn_graph(np.random.RandomState(0).normal(size=(12, 2)), 2)
    up, down = floats_of_a_round(clustered(12, graph=graph), 2)
    assert (up, down) == (3 * (12 + graph.n_edges), 3 * 4 * graph.n_edges)


@pytest.mark.parametrize(("participation", "sparse"), [(1.0, False), (0.4, True)])
def test_skipping_zeros_sends_less_and_changes_nothing_else(participation, sparse):
    n = 15
    graph = Graph(n, *np.triu_indices(n, 1)) if sparse else None
    options = {"participation": participation, "contraction": False, "tol": 1e-9}
    results = []
    for skip_zeros in (False, True):
        # Clusters are clear, so that most z within them go to zero and stay.
        problem = clustered(n, graph=graph, n_rows=60)
        result, state = pdmm(problem, 0.15, skip_zeros=skip_zeros, rng=0, **options)
        assert result.converged
        results.append((result, state))
    (plain, a), (lean, b) = results
    assert plain.n_iter == lean.n_iter
    assert_array_equal(a.W, b.W)
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
    problem = clustered(12)
    options = {"skip_zeros": True, "contraction": False}
    fused, state = pdmm(problem, 2.0, **options)
    assert all((idle.max(initial=0) == 10) for idle in state.idle)
    assert_allclose(fused.params, fused.params[:1].repeat(12, axis=0), atol=1e-3)
    best, _ = admm(problem, 0.02, tol=1e-9, max_iter=20000)
    result, state = pdmm(problem, 0.02, state=state, **options)
    assert result.converged
    assert result.objective == pytest.approx(best.objective, rel=1.1e-6)
    assert np.mean(state.idle[0] == 10) < 0.5


# ---------------------------------------------------------------------- runs and parameters


@pytest.mark.parametrize("sampling", ["ends", "independent"])
def test_random_state_fixes_the_run(sampling):
    problem = clustered(12)
    options = {"participation": 0.4, "dual_sampling": sampling, "max_iter": 40, "tol": 0.0}

    def run(rng, **more):
        return pdmm(problem, 0.05, rng=rng, contraction=False, **options, **more)

    (first, a), (second, b), (_, c) = run(0), run(0), run(1)
    assert_array_equal(a.W, b.W)
    assert_array_equal(first.history["gap"], second.history["gap"])
    assert not np.array_equal(a.W, c.W)
    # How often the gap is looked at changes nothing but the history.
    every, e = run(0, check_every=1)
    assert_array_equal(a.W, e.W)
    assert every.history["round"].tolist() == list(range(1, 41))
    assert len({len(column) for column in every.history.values()}) == 1
