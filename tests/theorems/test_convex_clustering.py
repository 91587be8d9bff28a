r"""The convex clustering paper's theorems (Armacki et al., 2022), checked on random federations.

The convention is that of the package: ``sum_i f_i(x_i) + lam sum_{i<j} |x_i - x_j|``, each pair
once and no 1/N, under which the paper's statements are exact.  Every test draws problems and
partitions, asks whether a theorem's premise holds, and then checks its conclusion against a
solution by cvxpy or one that a duality gap of rounding size certifies.
"""

import numpy as np
import pytest
from fusion_problems import (
    GRAPHS,
    LOSSES,
    make_clustered,
    make_problem,
    optimum,
    same_partition,
    solve_exactly,
)
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from trials import examples, some, spread

from skcfl.calls.first_order import ObjectivesGradients
from skcfl.fusion.reduced import lam_max_bounds, solve_reduced
from skcfl.fusion.theorems import certify, theorem_bounds
from skcfl.rounds.polish import solve_pooled

pytest.importorskip("cvxpy")

KINDS = (*LOSSES, "points", "points, Huber")
kinds, seeds = st.sampled_from(KINDS), st.integers(0, 2**31)
# The share of lam_max at which a theorem is tried.
shares = st.floats(0.02, 1.2)

few = examples(10, suppress_health_check=list(HealthCheck))


def draw(kind, seed, n=None, spread=2.0):
    """A federation on the complete graph and the clusters its clients were drawn from."""
    rng = np.random.RandomState(seed % 2**32)
    n, d, K = n or rng.randint(3, 9), rng.randint(1, 4), rng.randint(1, 4)
    truth = np.unique(np.concatenate([np.arange(min(K, n)), rng.randint(K, size=n)])[:n])
    labels = rng.choice(truth, size=n)
    labels = np.unique(labels, return_inverse=True)[1]
    options = {} if kind.startswith("points") else {"alpha": 0.1}
    return make_clustered(rng, kind, labels, d, spread=spread, delta=1.5, **options), labels


def partition_near(labels, rng):
    """The partition, sometimes with a client moved or clusters joined."""
    labels = labels.copy()
    for _ in range(rng.choice([0, 0, 1, 2])):
        labels[rng.randint(len(labels))] = rng.randint(labels.max() + 2)
    return np.unique(labels, return_inverse=True)[1]


def bounds_apart(problem, labels):
    """Theorems 1 and 2 at each cluster's own minimiser: about what they are at any lam."""
    start = np.zeros((labels.max() + 1, problem.d))
    theta, *_ = solve_pooled(problem.pool, labels, start, weights=np.ones(problem.n))
    return theorem_1(problem, theta, labels), theorem_2(problem, theta, labels)[1]


def gradients(problem, w):
    """Gradients of all clients at one model."""
    return problem.pool.ask(ObjectivesGradients, np.tile(w, (problem.n, 1)))[1]


def reduced(problem, lam, labels):
    """Models of the clusters by cvxpy, a solution of the paper's (5)."""
    _, X = optimum(problem, lam, labels)
    return X[np.unique(labels, return_index=True)[1]]


def is_solution(problem, lam, X, tol=1e-6):
    """Whether models attain the optimum that cvxpy finds."""
    best, _ = optimum(problem, lam)
    return problem.primal(X, lam) <= best + tol * max(abs(best), 1e-3 * problem.at_start)


# ---------------------------------------------------------------------------- Theorem 1


def theorem_1(problem, w, labels):
    """The right-hand side of (6)."""
    bound = 0.0
    for k in range(len(w)):
        g = gradients(problem, w[k])[labels == k]
        bound = max(bound, np.linalg.norm(g[:, None] - g[None], axis=2).max() / len(g))
    return bound


@few
@given(kinds, seeds, st.floats(0.9, 2.0))
def test_theorem_1_clients_of_a_cluster_have_equal_models(kind, seed, factor):
    """``lam >= max |grad f_i(w_k) - grad f_j(w_k)| / n_k``: the w_k, repeated, are a solution."""
    problem, labels = draw(kind, seed)
    labels = partition_near(labels, np.random.RandomState((seed + 1) % 2**32))
    lam = factor * bounds_apart(problem, labels)[0]
    assume(lam > 1e-6)
    w = reduced(problem, lam, labels)
    assume(lam >= theorem_1(problem, w, labels) * (1 + 1e-6))
    assert is_solution(problem, lam, w[labels])


@few
@given(kinds, seeds, shares)
def test_theorem_1_bounds_the_exact_test_and_is_not_far_off(kind, seed, share):
    problem, labels = draw(kind, seed)
    lam = share * lam_max_bounds(problem, tol=0.1)[1]
    assume(lam > 1e-6)
    exact = certify(problem, lam, labels, problem.local_models())
    assume(exact.reason.startswith(("Flows", "In some")))
    bound = theorem_bounds(problem, lam, labels, exact.models).lower
    assert exact.lower * lam <= bound * (1 + 1e-6) + 1e-12
    # Median 1.3, never seen beyond 5.
    assert bound <= 8 * exact.ratio * lam + 1e-9


# ---------------------------------------------------------------------------- Theorem 2


def theorem_2(problem, w, labels):
    """The right-hand side of (13) as printed, and with ``2N - n_k - n_l`` for each pair."""
    sizes, n = np.bincount(labels), problem.n
    printed = sharper = np.inf
    for k in range(len(w)):
        g = gradients(problem, w[k])
        means = np.array([g[labels == m].mean(axis=0) for m in range(len(w))])
        for m in range(len(w)):
            if m != k:
                distance = np.linalg.norm(means[k] - means[m])
                printed = min(printed, distance / (2 * (n - sizes).max()))
                sharper = min(sharper, distance / (2 * n - sizes[k] - sizes[m]))
    return printed, sharper


@few
@given(kinds, seeds, st.floats(0.3, 1.0))
def test_theorem_2_models_of_different_clusters_differ(kind, seed, factor):
    """As printed, and sharper: for each pair of clusters ``2N - n_k - n_l``."""
    problem, labels = draw(kind, seed)
    labels = partition_near(labels, np.random.RandomState((seed + 1) % 2**32))
    assume(labels.max() > 0)
    lam = factor * bounds_apart(problem, labels)[1]
    assume(lam > 1e-6)
    w = reduced(problem, lam, labels)
    printed, sharper = theorem_2(problem, w, labels)
    assert printed <= sharper * (1 + 1e-12)
    assume(lam < sharper * (1 - 1e-3))
    distance = np.linalg.norm(w[:, None] - w[None], axis=2)
    size = np.linalg.norm(w, axis=1).max()
    assert distance[np.triu_indices(len(w), 1)].min() > 1e-6 * size


@few
@given(kinds, seeds, st.floats(0.3, 1.7))
def test_theorem_2_is_exact_for_two_clusters(kind, seed, share):
    """They differ iff ``lam < |grad g_1(y) - grad g_2(y)| / N`` at the pooled optimum y."""
    assume(abs(share - 1) > 1e-2)
    problem, labels = draw(kind, seed)
    labels = np.random.RandomState((seed + 1) % 2**32).randint(2, size=problem.n)
    assume(labels.min() < labels.max())
    one = np.zeros(problem.n, dtype=int)
    _, y = solve_reduced(problem, 0.0, one, np.zeros((problem.n, problem.d)))
    g = gradients(problem, y[0])
    exact = np.linalg.norm(g[labels == 0].mean(axis=0) - g[labels == 1].mean(axis=0)) / problem.n
    assume(exact > 1e-6)
    new, theta = solve_reduced(problem, share * exact, labels, problem.local_models())
    assert len(theta) == (2 if share < 1 else 1)


@few
@given(kinds, seeds, shares)
def test_coinciding_clusters_obey_every_split(kind, seed, share):
    """Clusters M of one model: ``|grad g_A(w) - grad g_{M - A}(w)| <= lam n_M`` for all A."""
    problem, labels = draw(kind, seed)
    lam = share * lam_max_bounds(problem, tol=0.1)[1]
    assume(lam > 1e-6)
    new, theta = solve_reduced(problem, lam, labels, problem.local_models())
    for k in range(len(theta)):
        mine = np.flatnonzero(new == k)
        clusters = np.unique(labels[mine])
        g = gradients(problem, theta[k])
        for code in range(1, 2 ** (len(clusters) - 1)):
            chosen = clusters[[bool(code >> b & 1) for b in range(len(clusters))]]
            in_a = np.isin(labels[mine], chosen)
            split = g[mine][in_a].mean(axis=0) - g[mine][~in_a].mean(axis=0)
            assert np.linalg.norm(split) <= lam * len(mine) * (1 + 1e-6) + 1e-9


@few
@given(kinds, seeds, st.floats(0.05, 0.9))
def test_both_theorems_recover_the_partition_exactly(kind, seed, place):
    """With lam between the two bounds the solution has these clusters and no others."""
    problem, labels = draw(kind, seed, spread=4.0)
    assume(labels.max() > 0)
    lower, upper = bounds_apart(problem, labels)
    assume(1e-6 < lower < upper)
    lam = lower ** (1 - place) * upper**place
    lower, upper = theorem_bounds(problem, lam, labels, problem.local_models())
    assume(lower * (1 + 1e-6) <= lam < upper * (1 - 1e-6))
    _, found = solve_exactly(problem, lam)
    assert same_partition(labels, found)


# ---------------------------------------------------------------------- Theorems 3 and 4


@few
@given(seeds, st.floats(0.0, 1.0))
def test_theorem_3_bounds_that_do_not_depend_on_lam(seed, place):
    """Objectives that differ by linear functions: recovery on the whole closed interval."""
    problem, labels = draw("points", seed, spread=8.0)
    assume(labels.max() > 0)
    interval = theorem_bounds(problem, 1.0, labels, problem.rows[0])
    lower, upper = interval.uniform
    # The paper's epsilon_k are positive.
    assume(0 < lower < upper)
    lam = lower + place * (upper - lower)
    at = theorem_bounds(problem, lam, labels, problem.rows[0])
    assert at.lower <= lam * (1 + 1e-9) and lam <= at.upper_printed * (1 + 1e-9)
    _, found = solve_exactly(problem, min(max(lam, lower * (1 + 1e-9)), upper * (1 - 1e-9)))
    assert same_partition(labels, found)


@given(st.sampled_from(LOSSES), seeds)
def test_theorem_4_distance_of_local_models(kind, seed):
    """``|grad f_j(x_i)| / L <= |x_i - x_j| <= |grad f_j(x_i)| / mu`` at the clients' minima.

    The paper takes suprema of gradient differences for the two bounds; at x_i, where f_i has
    none, the difference is f_j's gradient.
    """
    problem, _ = draw(kind, seed)
    x = problem.local_models()
    n = problem.n
    L, mu, _ = problem.pool.spectrum()
    assert (mu >= 0.1 * (1 - 1e-9)).all()
    for i in range(n):
        g = np.linalg.norm(gradients(problem, x[i]), axis=1)
        distance = np.linalg.norm(x - x[i], axis=1)
        assert (distance <= g / mu + 1e-6).all()
        if kind != "poisson":  # its curvature has no bound
            assert (distance >= g / L - 1e-6).all()


# ----------------------------------------------------------------------- the exact test


@few
@given(kinds, seeds, shares)
def test_exact_test_of_a_partition(kind, seed, share):
    """Flows inside the clusters: yes iff the reduced models solve the whole problem."""
    problem, labels = draw(kind, seed)
    labels = partition_near(labels, np.random.RandomState((seed + 1) % 2**32))
    lam = share * lam_max_bounds(problem, tol=0.1)[1]
    assume(lam > 1e-6)
    certificate = certify(problem, lam, labels, problem.local_models())
    best, X = optimum(problem, lam)
    scale = max(abs(best), 1e-3 * problem.at_start)
    excess = problem.primal(certificate.models, lam) - best
    if certificate.ratio <= 1:
        assert excess <= 1e-7 * scale
    elif certificate.lower > 1:
        # Near the limit an excess may be too small to see.
        assert excess > -1e-8 * scale
        assume(certificate.lower > 1.05)
        assert excess > 1e-8 * scale
    elif "lie on both sides" in certificate.reason:  # else rounding or flat objectives decide
        assert certificate.ratio < 1.01 * certificate.lower
    if certificate.optimal:
        for k in range(labels.max() + 1):
            spread = np.ptp(X[labels == k], axis=0).max()
            assert spread <= 1e-3 * max(np.abs(X).max(), 1.0)


PAIRS = [(loss, graph) for graph in GRAPHS for loss in LOSSES]


@pytest.mark.parametrize(("loss", "graph"), spread(PAIRS, 11))
def test_everything_is_fused_from_lam_max_on_and_not_below(loss, graph):
    """On federations of every kind, at several lam on each side."""
    for seed in some((0, 1), 1):
        problem = make_problem(loss, 6, graph, seed=seed, alpha=0.05)
        lower, upper = lam_max_bounds(problem)
        component = problem.graph.components()
        for share in some((1.001, 30.0, 1.7), 2):
            _, labels = solve_exactly(problem, share * upper)
            assert labels.max() == component.max()
        for share in some((0.999, 0.4, 0.9), 2):
            _, labels = solve_exactly(problem, share * lower)
            assert labels.max() > component.max()
