r"""The convex clustering paper's theorems (Armacki et al., 2022), checked on random federations.

The convention is that of the package: ``sum_i f_i(x_i) + lam sum_{i<j} |x_i - x_j|``, each pair
once and no 1/N, under which the paper's statements are exact.  Every test draws problems and
partitions, asks whether a theorem's premise holds, and then checks its conclusion against a
solution by cvxpy or one that a duality gap of rounding size certifies.  The bounds themselves are
compared with the printed formulas in tests/test_certificates.py.
"""

import numpy as np
import pytest
from fusion_problems import (
    LOSSES,
    make_clustered,
    make_points,
    make_problem,
    optimum,
    same_partition,
    solve_exactly,
)
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from trials import examples

from skcfl.calls.first_order import ObjectivesGradients
from skcfl.fusion.reduced import lam_max_bounds, solve_reduced
from skcfl.fusion.theorems import certify, theorem_bounds

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


def partition_near(labels, seed):
    """The partition, sometimes with a client moved or clusters joined."""
    labels, rng = labels.copy(), np.random.RandomState((seed + 1) % 2**32)
    for _ in range(rng.choice([0, 0, 1, 2])):
        labels[rng.randint(len(labels))] = rng.randint(labels.max() + 2)
    return np.unique(labels, return_inverse=True)[1]


def bounds_at(problem, lam, labels):
    return theorem_bounds(problem, lam, labels, problem.local_models())


# ------------------------------------------------------------------- Theorems 1, 2 and 3


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


@few
@given(kinds, seeds, st.floats(0.3, 1.0))
def test_theorem_2_models_of_different_clusters_differ(kind, seed, factor):
    """As printed, and sharper: for each pair of clusters ``2N - n_k - n_l``."""
    problem, labels = draw(kind, seed)
    labels = partition_near(labels, seed)
    assume(labels.max() > 0)
    # About the bound at any lam.
    lam = factor * bounds_at(problem, 1e-6, labels).upper
    assume(lam > 1e-6)
    bounds = bounds_at(problem, lam, labels)
    assert bounds.upper_printed <= bounds.upper * (1 + 1e-12)
    assume(lam < bounds.upper * (1 - 1e-3))
    _, X = optimum(problem, lam, labels)
    w = X[np.unique(labels, return_index=True)[1]]
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
    g = problem.pool.ask(ObjectivesGradients, np.tile(y, (problem.n, 1)))[1]
    exact = np.linalg.norm(g[labels == 0].mean(axis=0) - g[labels == 1].mean(axis=0)) / problem.n
    assume(exact > 1e-6)
    new, theta = solve_reduced(problem, share * exact, labels, problem.local_models())
    assert len(theta) == (2 if share < 1 else 1)


@few
@given(kinds, seeds, st.floats(0.05, 0.9))
def test_both_theorems_recover_the_partition_exactly(kind, seed, place):
    """With lam between the two bounds the solution has these clusters and no others."""
    problem, labels = draw(kind, seed, spread=4.0)
    assume(labels.max() > 0)
    lower, upper = bounds_at(problem, 1e-6, labels)
    assume(1e-6 < lower < upper)
    lam = lower ** (1 - place) * upper**place
    lower, upper = bounds_at(problem, lam, labels)
    assume(lower * (1 + 1e-6) <= lam < upper * (1 - 1e-6))
    _, found = solve_exactly(problem, lam)
    assert same_partition(labels, found)


@few
@given(seeds, st.floats(0.0, 1.0))
def test_theorem_3_bounds_that_do_not_depend_on_lam(seed, place):
    """Objectives that differ by linear functions: recovery on the whole closed interval."""
    problem, labels = draw("points", seed, spread=8.0)
    assume(labels.max() > 0)
    lower, upper = bounds_at(problem, 1.0, labels).uniform
    # The paper's epsilon_k are positive.
    assume(0 < lower < upper)
    lam = lower + place * (upper - lower)
    at = bounds_at(problem, lam, labels)
    assert at.lower <= lam * (1 + 1e-9) and lam <= at.upper_printed * (1 + 1e-9)
    _, found = solve_exactly(problem, min(max(lam, lower * (1 + 1e-9)), upper * (1 - 1e-9)))
    assert same_partition(labels, found)


# ----------------------------------------------------------------------- the exact test


@few
@given(kinds, seeds, shares)
def test_exact_test_of_a_partition(kind, seed, share):
    """Flows inside the clusters: yes iff the reduced models solve the whole problem."""
    problem, labels = draw(kind, seed)
    labels = partition_near(labels, seed)
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


# ------------------------------------------------------------------------ what is false


def test_false_the_number_of_models_never_grows_with_lam():
    """The paper's remark on the path (appendix A): clients that met can part again.

    ``f_i(x) = h_i (x - a_i)^2 / 2`` on the line: a soft client (h = 1) at 0, a stiff one
    (h = 10) at 1, and two clients at 100 that pull both.  The soft one gives way faster, reaches
    the stiff one at ``lam = 10 / 29``, and is pulled past it at ``lam = 10 / 7``.
    """
    h, a = np.array([1.0, 10.0, 1.0, 1.0]), np.array([0.0, 1.0, 100.0, 100.0])
    rows = np.sqrt(h)[:, None], np.sqrt(h) * a, np.arange(4)
    problem = make_problem("squared_error", 4, rows=rows, alpha=0.0)
    solutions = [solve_exactly(problem, lam) for lam in (0.1, 0.34, 0.35, 1.42, 1.43, 5.0, 60.0)]
    assert [labels.max() + 1 for _, labels in solutions] == [3, 3, 2, 2, 3, 3, 1]
    assert [np.sign(X[0, 0] - X[1, 0]) for X, _ in solutions] == [-1, -1, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("m", [1, 3])
def test_false_theorem_2_under_the_printed_objectives(m):
    """Read literally, with each ordered pair counted, (13) promises too much.

    Two clusters of m equal points at distance D: under (14), which is ours at ``2 lam``, they
    meet at ``lam = D / (4 m)``, but (13) holds up to ``lam < D / (2 m)``; under (3), which is
    ours at ``2 N lam``, the gap is N times wider still.  Theorem 1 stays true, but loose.
    """
    D = 3.0
    problem, labels = make_points(np.repeat([0.0, D], m)), np.repeat([0, 1], m)
    # Under our convention the bound is what it says, and exact.
    bounds = bounds_at(problem, 0.1, labels)
    assert bounds.upper_printed == pytest.approx(D / (2 * m))
    assert bounds.upper == pytest.approx(D / (2 * m))
    for share, clusters in ((0.999, 2), (1.001, 1), (2 * 0.8, 1), (2 * 0.8 * problem.n, 1)):
        # The last two are .8 of the bound under (14) and (3).
        _, found = solve_exactly(problem, share * D / (2 * m))
        assert found.max() + 1 == clusters
