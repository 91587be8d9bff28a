"""Penalties: Moreau's decomposition, optimality of the prox, conjugates, dual norms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skcfl.penalties import L1, L2, PENALTIES, SquaredL2, make_penalty

Q3 = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, -0.2], [0.0, -0.2, 0.3]])
PENALTY = st.sampled_from([L2(), L1(), SquaredL2(), SquaredL2(Q=Q3)])
NORM = st.sampled_from([L2(), L1()])
numbers = st.floats(-1e3, 1e3).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
edges = arrays(float, (3, 4), elements=numbers)
scales = st.one_of(st.floats(1e-3, 1e3), arrays(float, 4, elements=st.floats(1e-3, 1e3)))


def inner(A, B):
    return np.einsum("de,de->e", A, B)


def objective(penalty, Y, Z, t):
    return t * penalty.value(Y) + 0.5 * inner(Y - Z, Y - Z)


def size(Z, t):
    return 1.0 + np.abs(Z).max() ** 2 * (1.0 + np.max(t))


@given(PENALTY, edges, scales, st.integers(0, 2**31))
def test_prox_is_the_minimiser(penalty, Z, t, seed):
    """Strong convexity: any other point is worse by half its squared distance at least."""
    P = penalty.prox(Z, t)
    rng = np.random.RandomState(seed)
    for reach in (1e-3, 1.0, 1e2):
        Y = P + reach * rng.standard_normal(P.shape)
        excess = objective(penalty, Y, Z, t) - objective(penalty, P, Z, t)
        assert (excess >= 0.5 * inner(Y - P, Y - P) - 1e-9 * size(Z, t)).all()


@given(PENALTY, edges, scales)
def test_moreau_decomposition(penalty, Z, t):
    """``z = prox(z) + project(z)``; both meet Fenchel's inequality with equality."""
    P, U = penalty.prox(Z, t), penalty.project(Z, t)
    np.testing.assert_allclose(P + U, Z, atol=1e-12 * np.abs(Z).max())
    fenchel = t * penalty.value(P) + penalty.conjugate(U, t) - inner(U, P)
    np.testing.assert_allclose(fenchel, 0.0, atol=1e-9 * size(Z, t))


@given(PENALTY, edges, edges, scales)
def test_fenchel_young(penalty, Z, U, t):
    """``t phi(z) + (t phi)^*(u) >= <u, z>``."""
    left = t * penalty.value(Z) + penalty.conjugate(U, t)
    assert (left >= inner(U, Z) - 1e-9 * (1.0 + np.abs(inner(U, Z)))).all()


@given(NORM, edges, scales)
def test_projection_onto_the_dual_ball(penalty, Z, t):
    U = penalty.project(Z, t)
    assert (penalty.dual_norm(U) <= np.asarray(t) * (1 + 1e-12)).all()
    inside = penalty.dual_norm(Z) <= t
    np.testing.assert_array_equal(U[:, inside], Z[:, inside])
    assert not penalty.prox(Z, t)[:, inside].any(), "zeros must be exact"


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
    np.testing.assert_allclose(inner(U, best), dual, rtol=1e-12)
    rng = np.random.RandomState(0)
    for _ in range(5):
        Z = rng.standard_normal(U.shape)
        assert (inner(U, Z) <= dual * penalty.value(Z) * (1 + 1e-12) + 1e-300).all()


@given(NORM, edges, st.floats(0.1, 10.0))
def test_norms_are_norms(penalty, Z, a):
    np.testing.assert_allclose(penalty.value(a * Z), a * penalty.value(Z), rtol=1e-12)
    np.testing.assert_allclose(penalty.value(-Z), penalty.value(Z))
    assert (
        penalty.value(Z + Z[:, ::-1]) <= penalty.value(Z) + penalty.value(Z[:, ::-1]) + 1e-9
    ).all()


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2(), SquaredL2(Q=Q3)])
def test_prox_agrees_with_cvxpy(penalty):
    cp = pytest.importorskip("cvxpy")
    rng = np.random.RandomState(0)
    for t in (0.3, 1.5):
        z = rng.standard_normal(3)
        y = cp.Variable(3)
        if isinstance(penalty, SquaredL2):
            phi = cp.quad_form(y, np.eye(3) if penalty.Q is None else penalty.Q) / 2
        else:
            phi = cp.norm(y, 2 if isinstance(penalty, L2) else 1)
        cp.Problem(cp.Minimize(t * phi + cp.sum_squares(y - z) / 2)).solve(solver=cp.CLARABEL)
        np.testing.assert_allclose(penalty.prox(z[:, None], t)[:, 0], y.value, atol=1e-6)


@given(edges, scales)
def test_squared_norm_is_its_definition(Z, t):
    penalty = SquaredL2(Q=Q3)
    np.testing.assert_allclose(
        penalty.value(Z), 0.5 * np.einsum("de,df,fe->e", Z, Q3, Z), atol=1e-9 * size(Z, 1.0)
    )
    for e in range(Z.shape[1]):
        scale = np.broadcast_to(t, 4)[e]
        expected = np.linalg.solve(np.eye(3) + scale * Q3, Z[:, e])
        np.testing.assert_allclose(penalty.prox(Z, t)[:, e], expected, atol=1e-9 * size(Z, 1.0))
    identity = SquaredL2(Q=np.eye(3))
    np.testing.assert_allclose(identity.prox(Z, t), SquaredL2().prox(Z, t), atol=1e-9)


@pytest.mark.parametrize("penalty", [L2(), L1(), SquaredL2(), SquaredL2(Q=Q3)])
def test_any_shape_of_edges_and_nothing_is_changed(penalty):
    """Tiles are (d, rows, columns) with one scale for all; lists (d, E) with one each."""
    rng = np.random.RandomState(1)
    Z = rng.standard_normal((3, 4, 5))
    kept, t = Z.copy(), rng.uniform(0.1, 2.0, (4, 5))
    for method in ("prox", "project", "conjugate"):
        many = getattr(penalty, method)(Z, t)
        for i, j in np.ndindex(4, 5):
            one = getattr(penalty, method)(Z[:, i, j], t[i, j])
            np.testing.assert_allclose(many[..., i, j], one, atol=1e-14)
    np.testing.assert_array_equal(Z, kept)
    assert penalty.value(Z).shape == (4, 5)


def test_zero_weight_changes_nothing():
    Z = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    for penalty in (L2(), L1(), SquaredL2()):
        np.testing.assert_array_equal(penalty.prox(Z, 0.0), Z)


@pytest.mark.parametrize(
    ("Q", "message"),
    [
        (np.eye(2), "shape"),
        ([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]], "symmetric"),
        (np.diag([1.0, 1.0, 0.0]), "positive definite"),
    ],
)
def test_refuses_a_matrix_that_is_no_metric(Q, message):
    with pytest.raises(ValueError, match=message):
        SquaredL2(Q=Q).prox(np.ones((3, 2)), 1.0)


def test_public_names():
    for name, kind in PENALTIES.items():
        assert type(make_penalty(name)) is kind
    own = SquaredL2(Q=Q3)
    assert make_penalty(own) is own
