"""Penalties: Moreau's decomposition, optimality of the prox, conjugates, dual norms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from trials import examples

from skcfl.penalties import L1, L2, MCP, PENALTIES, SCAD, SquaredL2, make_penalty
from skcfl.testing import check_penalty

Q3 = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.2], [0.0, -0.2, 0.3]])
NORM = st.sampled_from([L2(), L1()])
CONVEX = [L2(), L1(), SquaredL2(), SquaredL2(Q=Q3)]
CHECKED = [*CONVEX, SCAD(0.7), MCP(20.0, a=1.5, xi=0.1), SCAD(0.7, scale=3.0)]
seeds = st.integers(0, 2**31)
numbers = st.floats(-1e3, 1e3).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
edges = arrays(float, (3, 4), elements=numbers)
scales = st.one_of(st.floats(1e-3, 1e3), arrays(float, 4, elements=st.floats(1e-3, 1e3)))


def inner(A, B):
    return np.einsum("de,de->e", A, B)


def objective(penalty, Y, Z, t):
    return t * penalty.value(Y) + 0.5 * inner(Y - Z, Y - Z)


def size(Z, t):
    return 1.0 + np.abs(Z).max() ** 2 * (1.0 + np.max(t))


class Short(L2):
    """Projections onto too small a ball."""

    def project(self, Z, t):
        return super().project(Z, 0.9 * np.asarray(t))


class Free(L2):
    """A conjugate that is less than it must be."""

    norm = False

    def conjugate(self, U, t):
        return super().conjugate(U, 2.0 * np.asarray(t)) - 1.0


class Odd(L1):
    """Depends on which client is first."""

    def value(self, Z):
        return super().value(Z) + np.maximum(np.asarray(Z)[0], 0.0)


class Shared(SquaredL2):
    """Edges depend on each other."""

    def prox(self, Z, t):
        Y = super().prox(Z, t)
        return Y * (1.0 + 1e-6 * np.abs(Y).max() * (np.size(t) > 1))


class Soft(SquaredL2):
    """Says that it fuses."""

    fuses = True


class Steep(MCP):
    """A gradient that is not one."""

    def gradient(self, Z):
        return 1.01 * super().gradient(Z)


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (Short(), "prox is not the minimiser"),
        (Free(), "equality at the prox"),
        (Odd(), "the sign of their difference"),
        (Shared(), "must not depend on other edges"),
        (Soft(), "to exactly zero"),
        (Steep(2.0), "gradient is not the derivative"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_check_says_what_is_wrong(penalty, message):
    with pytest.raises(AssertionError, match=rf"{type(penalty).__name__}\(.*{message}"):
        check_penalty(penalty)


@given(NORM, edges)
def test_dual_norm(penalty, U):
    """The largest ``<u, z>`` over the unit ball, attained."""
    dual = penalty.dual_norm(U)
    if isinstance(penalty, L2):
        best = U / np.maximum(np.linalg.norm(U, axis=0), 1e-300)
    else:
        best = np.zeros_like(U)
        most = np.abs(U).argmax(axis=0), np.arange(U.shape[1])
        best[most] = np.sign(U[most])
    assert (penalty.value(best) <= 1 + 1e-12).all()
    assert_allclose(inner(U, best), dual, rtol=1e-12)
    rng = np.random.RandomState(0)
    for _ in range(5):
        Z = rng.standard_normal(U.shape)
        assert (inner(U, Z) <= dual * penalty.value(Z) * (1 + 1e-12) + 1e-300).all()


@given(edges, scales)
def test_squared_norm_is_its_definition(Z, t):
    penalty = SquaredL2(Q=Q3)
    expected = 0.5 * np.einsum("de,df,fe->e", Z, Q3, Z)
    assert_allclose(penalty.value(Z), expected, atol=1e-9 * size(Z, 1.0))
    for e in range(Z.shape[1]):
        scale = np.broadcast_to(t, 4)[e]
        expected = np.linalg.solve(np.eye(3) + scale * Q3, Z[:, e])
        assert_allclose(penalty.prox(Z, t)[:, e], expected, atol=1e-9 * size(Z, 1.0))
    identity = SquaredL2(Q=np.eye(3))
    assert_allclose(identity.prox(Z, t), SquaredL2().prox(Z, t), atol=1e-9)


CONCAVE = [SCAD(0.7, xi=0.1), MCP(0.7, xi=0.1), SCAD(0.7, xi=0.1, scale=1.2), MCP(0.7, scale=0.1)]


@pytest.mark.parametrize("penalty", CONVEX + CONCAVE)
def test_any_shape_of_edges_and_nothing_is_changed(penalty):
    """Tiles are (d, rows, columns) with one scale for all; lists (d, E) with one each."""
    rng = np.random.RandomState(1)
    Z = rng.standard_normal((3, 4, 5))
    kept, t = Z.copy(), rng.uniform(0.1, 2.0, (4, 5))
    for method in ("prox", "project", "conjugate")[: 1 if penalty in CONCAVE else 3]:
        many = getattr(penalty, method)(Z, t)
        for i, j in np.ndindex(4, 5):
            one = getattr(penalty, method)(Z[:, i, j], t[i, j])
            assert_allclose(many[..., i, j], one, atol=1e-14)
    assert_array_equal(Z, kept)
    assert penalty.value(Z).shape == (4, 5)
    assert_allclose(penalty.prox(Z, 0.0), Z, rtol=1e-14)
    assert_allclose(penalty.project(Z, t), Z - penalty.prox(Z, t), atol=1e-14)


def test_public_names():
    for name, kind in PENALTIES.items():
        assert type(make_penalty(name)) is kind
    own = SquaredL2(Q=Q3)
    assert make_penalty(own) is own


# --------------------------------------------------------------------- concave penalties


@st.composite
def concave(draw):
    """A concave penalty and a scale small enough for its prox."""
    lam = draw(st.floats(0.01, 100.0))
    xi = lam * draw(st.floats(1e-5, 0.99))
    kind, least = draw(st.sampled_from([(SCAD, 2.01), (MCP, 1.01)]))
    penalty = kind(lam, a=draw(st.floats(least, 20.0)), xi=xi)
    return penalty, draw(st.floats(0.001, 0.99)) / penalty.concavity


@examples(10)
@given(st.one_of(st.sampled_from(CHECKED), concave().map(lambda drawn: drawn[0])), seeds)
def test_every_penalty_passes_the_check(penalty, seed):
    check_penalty(penalty, random_state=seed)


def radii(penalty, n=200):
    """Lengths around all knots, in one coordinate."""
    lam, a, xi = penalty.lam, penalty.a, penalty.smoothing
    return np.unique(np.concatenate([np.linspace(0, 1.3 * k, n) for k in (xi, lam, a * lam)]))


def scad_as_printed(r, lam, a, xi):
    """The smoothed SCAD as in the paper, case by case."""
    if r <= xi:
        return lam / (2 * xi) * r**2 + xi * lam / 2
    if r <= lam:
        return lam * r
    if r <= a * lam:
        return (a * lam * r - 0.5 * (r**2 + lam**2)) / (a - 1)
    return lam**2 * (a + 1) / 2


@given(st.floats(0.01, 10.0), st.floats(2.1, 10.0), st.floats(1e-3, 0.9))
def test_scad_is_the_papers(lam, a, share):
    penalty = SCAD(lam, a=a, xi=share * lam)
    r = radii(penalty)
    expected = [scad_as_printed(x, lam, a, share * lam) for x in r]
    assert_allclose(penalty.value(r[None]), expected, rtol=1e-10)
    assert penalty.concavity == 1 / (a - 1)


@given(concave())
def test_concave_penalties_grow_less_and_less_beyond_the_smoothed_part(drawn):
    penalty, _ = drawn
    r = radii(penalty)
    value, slope = penalty.value(r[None]), penalty.derivative(r)
    size = penalty.lam * penalty.a * penalty.lam
    assert (np.diff(value) >= -1e-12 * size).all()
    assert (slope >= 0).all() and slope.max() <= penalty.lam * (1 + 1e-12)
    assert (np.diff(slope[r >= penalty.smoothing]) <= 1e-12 * penalty.lam).all()
    assert not slope[r > penalty.a * penalty.lam].any(), "no pull on models that are far apart"
    # weakly convex with the constant it says, and smooth with the other
    move = np.diff(r)
    assert (np.diff(slope) >= -penalty.concavity * move * (1 + 1e-9) - 1e-9 * penalty.lam).all()
    assert (np.abs(np.diff(slope)) <= penalty.curvature * move * (1 + 1e-9) + 1e-12).all()


@given(concave(), arrays(float, (3, 4), elements=numbers))
def test_concave_prox_is_stationary(drawn, Z):
    """``t g'(|y|) y / |y| + y - z = 0``, also where the length is at a knot."""
    penalty, t = drawn
    at_knots = radii(penalty, 20)[None] * np.ones((3, 1)) / 3**0.5
    Z = np.concatenate([Z * penalty.lam / 100.0, at_knots], 1)
    Y = penalty.prox(Z, t)
    gap = t * penalty.gradient(Y) + Y - Z
    # an error of rounding of y changes the gradient by the curvature times it
    scale = (1.0 + t * penalty.curvature) * np.abs(Z).max()
    assert_allclose(gap, 0.0, atol=1e-13 * scale)
    length = np.linalg.norm(Y, axis=0)
    slope = np.where(Y == 0, 0, Y / np.maximum(length, 1e-300)) * penalty.derivative(length)
    assert_allclose(penalty.gradient(Y), slope, atol=1e-9 * penalty.lam)
    kept = np.linalg.norm(Z, axis=0) > penalty.a * penalty.lam * (1 + 1e-12)
    assert_array_equal(Y[:, kept], Z[:, kept])


@given(concave(), edges, edges)
def test_concave_conjugate(drawn, Z, U):
    """The penalty is bounded: any slope but zero beats it somewhere."""
    penalty, t = drawn
    at_zero = penalty.conjugate(np.zeros((3, 2)), t)
    assert_allclose(at_zero, -t * penalty.value(np.zeros((3, 1)))[0])
    bound = penalty.conjugate(U, t)
    assert (np.isinf(bound) == U.any(axis=0)).all()
    assert (t * penalty.value(Z) + bound >= inner(U, Z) - 1e-9 * np.abs(inner(U, Z))).all()


@pytest.mark.parametrize(
    ("penalty", "t", "message"),
    [
        (SquaredL2(Q=np.eye(2)), 1.0, "shape"),
        (SquaredL2(Q=np.eye(3) + np.eye(3, k=-1)), 1.0, "symmetric"),
        (SquaredL2(Q=np.diag([1.0, 1.0, 0.0])), 1.0, "positive definite"),
        (SCAD(1.0, xi=1.0), 0.1, r"xi of SCAD must be in \(0, lam\) = \(0, 1\)"),
        (SCAD(0.0), 0.1, "lam of SCAD must be a number between"),
        (SCAD(1.0, a=2.0), 0.1, "a of SCAD must be larger than 2"),
        (MCP(1.0, a=1.0), 0.1, "a of MCP must be larger than 1"),
        (MCP(1.0, xi=0.0), 0.1, "xi of MCP must be in"),
        (SCAD(1.0), 2.7, r"smaller than 2\.7, so rho larger than 0\.3704"),
        (MCP(1.0), np.array([0.1, 3.5]), r"smaller than 3, so rho larger than 0\.3333"),
    ],
)
def test_penalties_say_what_they_refuse(penalty, t, message):
    with pytest.raises(ValueError, match=message):
        penalty.prox(np.ones((3, 2)), t)


@pytest.mark.parametrize("kind", [SCAD, MCP])
def test_scale_is_a_factor(kind):
    Z = np.random.RandomState(0).standard_normal((2, 7))
    plain, scaled = kind(0.7), kind(0.7, scale=1.7)
    for name in ("value", "gradient"):
        assert_allclose(getattr(scaled, name)(Z), 1.7 * getattr(plain, name)(Z))
    assert_allclose(scaled.derivative(Z), 1.7 * plain.derivative(Z))
    assert_allclose(scaled.prox(Z, 0.3), plain.prox(Z, 0.51))
    for name in ("curvature", "concavity"):
        assert_allclose(getattr(scaled, name), 1.7 * getattr(plain, name))
    for bad in (0.0, -1.0, np.inf, "two"):
        with pytest.raises((ValueError, TypeError), match="scale"):
            kind(0.7, scale=bad).value(Z)
