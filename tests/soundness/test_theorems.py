"""Adversarial trials of theorems' premises: intervals of recovery, constants, connections.

References are rational numbers.  Weights of edges range over 24 decades and more, data are up to
1e12 away from zero, lam is a few units in the last place beside where a premise ends to hold.  An
answer may be None; none may be wrong, and no bound on the wrong side of what it bounds.
"""

from fractions import Fraction

import numpy as np
import pytest
from exact_fusion import (
    ExactLine,
    ExactRecovery,
    exact,
    exact_solution,
    exactly_well_connected,
    is_positive,
    laplacian_potentials,
)
from fusion_problems import make_points, make_problem, same_partition
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from line_trials import Tally, chain, draw_graph, draw_labels, draw_lam, draw_points, line_problem
from trials import examples

from skcfl.certificates import clustering_error_bound, well_connected
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.inner_edges import Inside
from skcfl.fusion.problem import FusionProblem
from skcfl.fusion.reduced import lam_max_bounds
from skcfl.fusion.theorems import constants_of, theorem_bounds
from skcfl.graphs import complete_graph
from skcfl.models import LinearModel, Location
from skcfl.penalties import L1, L2

seeds = st.integers(0, 2**31)
offsets = st.sampled_from([0.0, 1.0, 1e4, 1e8, 1e12])
kinds = st.sampled_from(["plain", "scales", "ties", "light", "mixed"])
some = examples(10, suppress_health_check=list(HealthCheck))


def rng_of(seed):
    return np.random.RandomState(seed % 2**32)


def near(rng, value):
    """A number a few units in the last place beside another, or equal to it."""
    return float(value) * (1.0 + rng.choice([-1, 0, 1]) * 10.0 ** -rng.randint(13, 17))


def draw_line(rng, kind, offset):
    """A problem in one parameter; exact minimisers and curvatures of its clients."""
    n = rng.randint(2, 6)
    graph = draw_graph(rng, n, kind)
    rows = [offset + own for own in draw_points(rng, n, kind)]
    if rng.uniform() < 0.6:
        problem, means = line_problem(rows, graph)
        return problem, means, [Fraction(1)] * n
    # Least squares of one feature, whose curvatures differ.
    z = [10.0 ** rng.uniform(-3, 3) * rng.standard_normal(rng.randint(1, 4)) for _ in range(n)]
    pairs = zip(z, rows, strict=True)
    t = [own * row[0] + 0.1 * rng.standard_normal(len(own)) for own, row in pairs]
    codes = np.repeat(np.arange(n), [len(own) for own in z])
    rows = np.concatenate(z)[:, None], np.concatenate(t), codes
    problem = make_problem("squared_error", n, graph, rows=rows, alpha=0.0)
    c = [exact(x) @ exact(x) / len(x) for x in z]
    b = [exact(x) @ exact(y) / len(x) for x, y in zip(z, t, strict=True)]
    return problem, [x / y for x, y in zip(b, c, strict=True)], c


# ------------------------------------------------------------------- Theorems 1, 2 and 3


@some
@given(seeds, kinds, offsets)
def test_intervals_on_a_line(seed, kind, offset):
    """The theorems' numbers in rational arithmetic are within the bounds of both sides."""
    rng = rng_of(seed)
    problem, a, c = draw_line(rng, kind, offset)
    lam = draw_lam(rng, problem.graph, [x - Fraction(offset) for x in a], kind)
    for _ in range(3):
        line = ExactLine(a, c, problem.graph, lam)
        other = draw_labels(rng, len(a))
        for labels in (line.labels, other):
            truth = ExactRecovery(a, c, problem.graph, labels, lam)
            interval = theorem_bounds(problem, lam, labels, line.models)
            least, most = interval.outer
            assert interval.upper <= truth.upper <= most
            assert interval.upper_printed <= interval.upper
            if truth.distinct:
                assert least <= truth.lower <= interval.lower
                assert interval.holds in (None, truth.holds(lam))
            assert not interval.holds or same_partition(labels, line.labels)
        # Once more where a premise ends to hold.
        ends = [x for x in (truth.lower, truth.upper) if x not in (None, 0, np.inf)]
        assume(ends)
        lam = near(rng, ends[rng.randint(len(ends))])


def test_intervals_are_decided_where_rounding_does_not_matter():
    rng, tally = np.random.RandomState(0), Tally()
    for trial in range(30):
        kind = ("plain", "light", "mixed")[trial % 3]
        problem, a, c = draw_line(rng, kind, 0.0)
        lam = draw_lam(rng, problem.graph, a, kind)
        line = ExactLine(a, c, problem.graph, lam)
        truth = ExactRecovery(a, c, problem.graph, line.labels, lam)
        answer = theorem_bounds(problem, lam, line.labels, line.models).holds
        clean = kind == "plain" and truth.distinct
        tally.note(answer, truth.holds(lam), clean, (trial, kind))
    tally.check(30)


@some
@given(seeds, offsets)
def test_intervals_of_points_in_space(seed, offset):
    """Differences of gradients are those of points: lengths whose squares are rational."""
    rng = rng_of(seed)
    n, d = rng.randint(2, 6), rng.randint(1, 4)
    labels = np.unique(rng.randint(1, 3, size=n), return_inverse=True)[1]
    points = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((n, d))
    points += offset + rng.choice([0.0, 1e3, 1e9]) * labels[:, None]
    weight = 10.0 ** rng.uniform(-12, 12)
    problem = make_points(points, complete_graph(n, weight))
    a = exact(points)
    sizes, w = np.bincount(labels), Fraction(weight)

    def square(x, y):
        return ((x - y) ** 2).sum()

    pairs = [(i, j) for j in range(n) for i in range(j)]
    within = [
        (square(a[i], a[j]), int(sizes[labels[i]])) for i, j in pairs if labels[i] == labels[j]
    ]
    first = max((s / (m * w) ** 2 for s, m in within), default=Fraction(0))
    second = np.inf
    if len(sizes) == 2:
        means = [a[labels == k].sum(axis=0) / int(m) for k, m in enumerate(sizes)]
        second = square(*means) / (n * w) ** 2
    lam = near(rng, float(first if second == np.inf or rng.uniform() < 0.5 else second) ** 0.5)
    assume(lam > 0)
    interval = theorem_bounds(problem, lam, labels, points)
    least, most = interval.outer
    assert Fraction(least) ** 2 <= first <= Fraction(interval.lower) ** 2
    if second < np.inf:
        assert Fraction(interval.upper) ** 2 <= second
        assert most == np.inf or second <= Fraction(most) ** 2
    truth = first <= Fraction(lam) ** 2 < second
    assert interval.holds in (None, truth)
    assert Fraction(interval.uniform[0]) ** 2 >= first
    if len(sizes) == 2:
        apart = min(float(square(a[i], a[j])) ** 0.5 for i, j in pairs if labels[i] != labels[j])
        wide = sum(
            max([float(s) ** 0.5 for s, _ in within if _ == m] or [0.0]) for m in sizes.tolist()
        )
        if len(set(sizes.tolist())) == 2:
            most = (apart - wide) / (2 * float(sizes.max()) * weight)
            assert interval.uniform[1] <= most + 1e-12 * abs(apart / weight)


@pytest.mark.parametrize("move", [0.0, 1e-13, 1e-9])
def test_theorem_3_asks_for_equal_hessians(move):
    """Features that differ, however little, make gradients differ by more the farther out."""
    rng = np.random.RandomState(0)
    A = rng.standard_normal((6, 2))
    Z, codes = np.tile(A, (4, 1)), np.repeat(np.arange(4), 6)
    Z[0, 0] += move
    t = Z @ [1.0, 2.0] + np.repeat([0.0, 0.0, 3.0, 3.0], 6)
    for order in (slice(None), slice(None, None, -1)):  # of the rows
        rows = Z[order], t[order], codes[order]
        problem = make_problem("squared_error", 4, rows=rows)
        interval = theorem_bounds(problem, 0.1, np.array([0, 0, 1, 1]), np.zeros((4, 2)))
        assert (interval.uniform is None) == (move > 0)


@some
@given(seeds, st.booleans(), st.sampled_from([0.0, 1e-12, 1e-3]))
def test_flow_of_least_energy(seed, far, wide):
    """Of outflows in several coordinates, on graphs whose weights range over 30 decades."""
    rng = rng_of(seed)
    n, d = rng.randint(2, 7), rng.randint(1, 4)
    graph = draw_graph(rng, n, "mixed" if far else "plain")
    assume(graph.components().max() == 0)
    # Numbers of unlike size and their opposites: the sums are zero, and floats round on the way.
    pairs = rng.standard_normal((n // 2, d)) * 10.0 ** rng.uniform(-6, 6, (n // 2, 1))
    b = rng.permutation(np.concatenate([pairs, -pairs, np.zeros((n % 2, d))]))
    # The outflows meant differ from these by vectors that sum to zero.
    move = exact(wide * np.abs(b).max() * rng.standard_normal((n - 1, d)))
    move = np.vstack([move, -move.sum(axis=0)])
    meant = exact(b) + move
    off = 1.000001 * np.linalg.norm(move.astype(float), axis=1)
    inside = Inside(graph, L2(), np.zeros(n, dtype=int), d)
    lower, upper = inside.least_energy(b[inside.nodes], off[inside.nodes])
    p = [laplacian_potentials(graph, np.zeros(n, dtype=int), column) for column in meant.T]
    ends = zip(graph.heads.tolist(), graph.tails.tolist(), strict=True)
    square = max(sum((x[i] - x[j]) ** 2 for x in p) for i, j in ends)
    assert Fraction(lower[0]) ** 2 <= square <= Fraction(upper[0]) ** 2
    assert far or wide or upper[0] <= lower[0] * (1 + 1e-9)


# ----------------------------------------------------------------- constants of a fit


def draw_squares(rng, offset):
    """Quadratic objectives of a few clients; their exact Hessians and right-hand sides."""
    n, d = rng.randint(1, 5), rng.randint(1, 4)
    counts = rng.randint(1, 6, n)
    codes = np.repeat(np.arange(n), counts)
    scale = 10.0 ** rng.uniform(-6, 6, d) if rng.uniform() < 0.3 else np.ones(d)
    Z = rng.standard_normal((len(codes), d)) * scale + offset * rng.choice([0, 1], d)
    Z = Z.astype(np.float32) if rng.uniform() < 0.2 else Z
    weights = rng.randint(1, 4, len(codes)).astype(float) if rng.uniform() < 0.3 else None
    mass = np.ones(len(codes)) if weights is None else weights
    total = np.bincount(codes, mass)[codes]
    share = exact(mass) / exact(total)
    rows, alpha = exact(Z), 0.0
    if rng.uniform() < 0.5:
        pool = open_rows(Location().bind(d, dtype=Z.dtype), Z, None, codes, n, weights)
        H = [exact(np.eye(d))] * n
        right = rows
    else:
        alpha, free = float(rng.choice([0.0, 1e-3, 0.1])), bool(rng.randint(2))
        t = Z.astype(float) @ rng.standard_normal(d) / max(1.0, offset)
        t += rng.standard_normal(len(codes)) + offset * rng.choice([0, 1])
        model = LinearModel(loss="squared_error", alpha=alpha, fit_intercept=free)
        pool = open_rows(model.bind(d, None, Z.dtype), Z, t, codes, n, weights)
        rows = np.hstack([rows, exact(np.ones((len(codes), int(free))))])
        decay = np.diag(exact([alpha] * d + [0.0] * free))
        right = rows * exact(t)[:, None]
        H = [(share * rows.T * (codes == i)) @ rows + decay for i in range(n)]
    return pool, H, [(share * right.T * (codes == i)).sum(axis=1) for i in range(n)]


@some
@given(seeds, offsets, st.sampled_from([L2(), L1()]))
def test_constants_are_bounds(seed, offset, penalty):
    """delta of gradients at the exact minimiser, alpha and beta of exact Hessians."""
    rng = rng_of(seed)
    pool, H, right = draw_squares(rng, offset)
    n, d = len(H), len(H[0])
    labels = draw_labels(rng, n, 2)
    try:
        c = constants_of(FusionProblem(pool, complete_graph(n), penalty), labels)
    except RuntimeError:  # Newton's method says that it failed
        assume(False)
    for i in range(n):
        assert is_positive(Fraction(float(c.beta[i])) * np.eye(d, dtype=int) - H[i])
    for k, strong in enumerate(c.alpha):
        mine = np.flatnonzero(labels == k)
        A = sum(H[i] for i in mine)
        # In the norm "l1" a model has d times less.
        strong = float(strong * (1 if penalty.fuses else d * (1 - 1e-15)))
        assert is_positive(A - Fraction(strong) * np.eye(d, dtype=int))
        try:
            w = exact_solution(A, sum(right[i] for i in mine))
        except StopIteration:  # several minimisers
            continue
        for i in mine:
            g = np.abs(H[i] @ w - right[i])
            square = g @ g if penalty.fuses else g.max() ** 2
            assert np.isinf(c.delta[i]) or square <= Fraction(c.delta[i]) ** 2


def test_constants_are_near_what_they_bound():
    """Rounding is a small part of them where nothing makes it large."""
    problem = make_problem("squared_error", 6, seed=1)
    labels = np.array([0, 0, 0, 1, 1, 2])
    c = constants_of(problem, labels)
    Z, t, codes = problem.rows
    H = [Z[codes == i].T @ Z[codes == i] / 8 + 0.1 * np.eye(2) for i in range(6)]
    np.testing.assert_allclose(c.beta, np.linalg.eigvalsh(H)[:, 1], rtol=1e-10)
    for k in range(3):
        total = sum(H[i] for i in np.flatnonzero(labels == k))
        assert c.alpha[k] == pytest.approx(np.linalg.eigvalsh(total)[0], rel=1e-10)


def test_curvature_of_many_rows_and_features_is_no_estimate():
    """Lanczos iterations from a vector that is known do not see what is orthogonal to it."""
    n = d = 140
    start = np.random.RandomState(0).standard_normal(d)
    basis = np.random.RandomState(1).standard_normal((d, d))
    basis[:, 0] -= start * (start @ basis[:, 0]) / (start @ start)
    values = np.concatenate([[1.004], np.linspace(0.5, 1.0, d - 1)])
    Z = np.sqrt(n * values)[:, None] * np.linalg.qr(basis)[0].T
    rows = Z, np.zeros(n), np.zeros(n, dtype=int)
    problem = make_problem("squared_error", 1, rows=rows, alpha=0.1)
    assert problem.curvatures()[0][0] < 1.103
    assert constants_of(problem, np.zeros(1, dtype=int)).beta[0] >= 1.104


def test_constants_of_a_minimiser_that_nothing_bounds():
    """Clients without a second class: their hinge is flat in the intercept."""
    Z, t = np.array([[3.0], [3.5], [1.0], [4.0], [4.5]]), np.array([1.0, 1.0, 1.0, 1.0, 0.0])
    rows = Z, t, np.array([0, 0, 1, 1, 2])
    problem = make_problem("squared_hinge", 3, rows=rows, fit_intercept=True, alpha=0.1)
    c = constants_of(problem, np.arange(3))
    assert np.isinf(c.delta[0]) and c.alpha[0] == 0.0
    interval = theorem_bounds(problem, 1e-12, np.array([0, 0, 1]), np.zeros((3, 2)))
    assert interval.lower == np.inf and interval.outer == (0.0, np.inf)
    assert interval.upper == 0.0 and interval.holds is None
    graph = chain(np.array([3.0, 0.5]))
    for delta, answer in (([np.inf, 0.0, 0.0], True), (np.inf, False)):
        found = well_connected(graph, [0, 0, 1], 1.0, delta, 1.0, 0.0)
        assert found.tolist() == [answer, True]


# -------------------------------------------------------------------- connections


def test_sets_that_ask_for_all_but_what_rounding_takes():
    """.1 + .2 as floats is less than their rounded sum, which is what the edge can carry."""
    for carries, answer in ((0.1 + 0.2, None), (np.nextafter(0.1 + 0.2, 0.0), False)):
        graph = chain(np.array([carries, 1.0]))
        delta = np.array([1.0, 0.1, 0.2])
        args = graph, np.zeros(3, dtype=int), 1.0, delta, np.ones(1), np.zeros(3)
        assert well_connected(*args)[0] is answer
        assert exactly_well_connected(*args)[0] is (answer is None)


@some
@given(seeds, st.sampled_from(["plain", "ties", "light", "mixed"]))
def test_well_connected_clusters(seed, kind):
    """(35) for all sets in rational arithmetic, also where a flow just suffices."""
    rng = rng_of(seed)
    n = rng.randint(2, 7)
    graph = draw_graph(rng, n, kind)
    labels = np.unique(rng.randint(rng.choice([1, 1, 2, 3]), size=n), return_inverse=True)[1]
    alpha = rng.randint(0, 4, labels.max() + 1).astype(float)
    lam = float(rng.choice([0.1, 1.0, 2.0, 3.0]))
    if kind == "ties":
        delta = rng.randint(0, 3, n) / rng.choice([1.0, 2.0, 3.0, 8.0])
        beta = rng.randint(0, 2, n).astype(float)
    else:
        size = np.exp(np.log(graph.weights).mean()) if graph.n_edges else 1.0
        delta = size * rng.uniform(size=n) * 10.0 ** rng.uniform(-6, 1)
        delta *= 10.0 ** rng.uniform(-12, 12, n) if kind == "mixed" else 1.0
        beta = rng.uniform(size=n) * rng.choice([0.0, 1e-3, 1.0])
        alpha = alpha * rng.uniform(size=len(alpha))

    def answers(delta):
        return well_connected(graph, labels, lam, delta, alpha, beta).tolist()

    def check(delta):
        truth = exactly_well_connected(graph, labels, lam, delta, alpha, beta)
        for answer, true in zip(answers(delta), truth, strict=True):
            assert answer in (None, true)

    check(delta)
    low, high = 1e-9, 1e9
    if answers(low * delta)[0] is not True or answers(high * delta)[0] is True:
        return
    for _ in range(45):
        middle = np.sqrt(low * high)
        if answers(middle * delta)[0] is True:
            low = middle
        else:
            high = middle
    check(low * (1.0 + rng.choice([0.0, 1e-15, 1e-9, 2e-9])) * delta)


@some
@given(seeds, kinds, offsets)
def test_well_connected_by_its_own_constants(seed, kind, offset):
    """Where it is true of all clusters, the exact solution gives each of them one model."""
    rng = rng_of(seed)
    problem, a, c = draw_line(rng, kind, offset)
    n, graph = len(a), problem.graph
    labels = np.zeros(n, dtype=int)
    if rng.uniform() < 0.5:
        graph = complete_graph(n, 10.0 ** rng.uniform(-12, 12))
        problem = FusionProblem(problem.pool, graph, L2())
    lower = lam_max_bounds(problem)[0]
    assume(graph.components().max() == 0 and lower > 0)
    constants = constants_of(problem, labels)
    args = constants.delta, constants.alpha, constants.beta
    for share in (0.9, 1 - 1e-6, 1 - 1e-10, 1.0, 1 + 1e-10, 1.1):
        lam = share * lower
        if well_connected(graph, labels, lam, *args)[0]:
            assert not ExactLine(a, c, graph, lam).labels.any()


@some
@given(seeds)
def test_error_bounds_are_rounded_up(seed):
    rng = rng_of(seed)
    n = rng.randint(2, 8)
    graph, labels = draw_graph(rng, n, "mixed"), np.arange(n) % 2
    lam, alpha = float(rng.uniform(0.1, 9.0)), rng.uniform(0.1, 9.0, 2)
    bound = clustering_error_bound(graph, labels, lam, alpha)
    across = graph.weights[labels[graph.heads] != labels[graph.tails]]
    boundary = sum(map(Fraction, across.tolist()))
    for value, strong in zip(bound, alpha, strict=True):
        exact = Fraction(lam) * boundary / Fraction(strong)
        assert exact <= Fraction(value) <= exact * (1 + Fraction(1, 10**12))
