"""The shared Newton iteration and the linear solvers below it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from trials import examples

import skcfl.numerics.newton
from skcfl import GTVRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.graphs import chain_graph
from skcfl.numerics.conjugate_gradients import conjugate_gradients
from skcfl.numerics.newton import invert_scaled, newton, solve_scaled

seeds = st.integers(0, 2**32 - 1)


class Oracle:
    """Functions given one by one, as triples of value, gradient and curvature matrix."""

    def __init__(self, functions):
        self.functions, self.points, self.values = functions, 0, 0

    def at(self, x):
        self.points += 1
        self.x = x.copy()
        results = [f(p) for f, p in zip(self.functions, x, strict=True)]
        self.H = np.stack([H for *_, H in results])
        return np.array([v for v, *_ in results]), np.stack([g for _, g, _ in results])

    def direction(self, g, damping):
        self.damping = damping
        return -solve_scaled(self.H, g)

    def along(self, step, t):
        self.values += 1
        x = self.x + t[:, None] * step
        with np.errstate(over="ignore", invalid="ignore"):
            return np.array([f(p)[0] for f, p in zip(self.functions, x, strict=True)])


def quadratic(H, b):
    return lambda x: (0.5 * x @ H @ x - b @ x, H @ x - b, H)


def exponential(A, b, alpha=1e-3):
    """Poisson-like: curvature without bound, overflow from far starts."""

    def f(x):
        z = A @ x
        with np.errstate(over="ignore", invalid="ignore"):
            e = np.exp(z)
            value = e.sum() - b @ x + 0.5 * alpha * x @ x
            H = (A.T * np.minimum(e, 1e300)) @ A + alpha * np.eye(len(x))
            return value, A.T @ e - b + alpha * x, H

    return f


def positive_definite(rng, p, condition=1e3):
    Q, _ = np.linalg.qr(rng.normal(size=(p, p)))
    return (Q * np.geomspace(1, condition, p)) @ Q.T


@examples(10)
@given(seed=seeds, m=st.integers(1, 5), p=st.integers(1, 6))
def test_quadratics_take_one_step_and_refinements(seed, m, p):
    rng = np.random.default_rng(seed)
    H = [positive_definite(rng, p) for _ in range(m)]
    b = rng.normal(size=(m, p))
    oracle = Oracle([quadratic(*args) for args in zip(H, b, strict=True)])
    x, decrement, converged = newton(oracle, rng.normal(size=(m, p)), np.ones(m))
    assert converged.all()
    assert oracle.points <= 5
    assert_allclose(x, np.linalg.solve(np.stack(H), b[:, :, None])[:, :, 0], rtol=1e-9, atol=1e-12)
    assert (decrement <= 1e-16).all()


@examples(7)
@given(seed=seeds)
def test_a_function_is_minimised_as_if_it_were_alone(seed):
    """Easy and hard functions side by side, starts from which exp overflows."""
    rng = np.random.default_rng(seed)
    p, functions = 3, []
    for _ in range(4):
        A = rng.normal(size=(8, p))
        functions.append(exponential(A, A.T @ rng.poisson(2.0, size=8)))
    functions.append(quadratic(positive_definite(rng, p), rng.normal(size=p)))
    start = rng.normal(size=(5, p))
    together, _, converged = newton(Oracle(functions), start, np.ones(5))
    assert converged.all()
    for i, f in enumerate(functions):
        alone, _, ok = newton(Oracle([f]), start[i : i + 1], np.ones(1))
        assert ok.all()
        assert_allclose(together[i], alone[0], rtol=1e-9, atol=1e-10)
        reference = minimize(lambda x, f=f: f(x)[:2], alone[0], jac=True, tol=1e-14)
        assert f(alone[0])[0] <= reference.fun + 1e-12 * (1 + abs(reference.fun))
        assert np.abs(f(alone[0])[1]).max() <= 1e-10 * (1 + abs(f(alone[0])[0]))


def test_steps_that_overflow_are_cut_back_and_counted():
    f = exponential(np.array([[1.0]]), np.array([1e6]), alpha=0.0)
    x, _, converged = newton(Oracle([f]), np.zeros((1, 1)), np.ones(1))
    assert converged.all()
    assert_allclose(x, np.log(1e6), rtol=1e-12)
    f = exponential(np.array([[1.0]]), np.array([1e-8]), alpha=0.0)
    _, decrement, converged = newton(Oracle([f]), np.full((1, 1), 10.0), np.ones(1), max_iter=5)
    assert not converged.any() and decrement[0] > 1.0


def test_what_has_no_minimum_or_no_number_to_start_from_is_given_up():
    """Linear, with a curvature that vanishes on the way: values fall for ever."""
    bowl = quadratic(np.eye(2), np.ones(2))
    endless = lambda x: (x.sum(), np.ones(2), np.eye(2) / (1 + x @ x))  # noqa: E731
    oracle, start = Oracle([endless, bowl, bowl]), np.zeros((3, 2))
    start[2, 0] = np.nan
    x, _, converged = newton(oracle, start, np.ones(3))
    assert_array_equal(converged, [False, True, False])
    assert_allclose(x[1], 1.0, rtol=1e-14)
    assert oracle.points < 100


def test_ascent_directions_are_never_taken_for_the_minimum():
    class Wrong(Oracle):
        def direction(self, g, damping):
            return g

    f = quadratic(np.eye(2), np.ones(2))
    x, _, converged = newton(Wrong([f]), np.zeros((1, 2)), np.ones(1))
    assert not converged.any()
    assert f(x[0])[0] <= 1e-12


def test_damping_rises_where_steps_overshoot_and_falls_again():
    """Absolute values, rounded: exact curvature is zero almost everywhere."""
    delta, seen = 1e-3, []

    class Robust(Oracle):
        def direction(self, g, damping):
            seen.append(damping[0])
            r = self.x - target
            h = np.where(np.abs(r) <= delta, 1.0, damping[:, None] * delta / np.abs(r))
            return -g / h.mean(axis=1, keepdims=True)

    target = np.array([[0.0, 1.0, 50.0, 1e3, 1e5]])

    def f(x):
        r = x - target[0]
        inner = np.minimum(np.abs(r), delta)
        value = (inner * (np.abs(r) - inner / 2)).mean()
        return value, np.array([np.clip(r, -delta, delta).mean()]), np.eye(1)

    x, _, converged = newton(Robust([f]), np.full((1, 1), 777.0), np.full(1, f(np.zeros(1))[0]))
    assert converged.all()
    assert_allclose(x, 50.0, atol=delta)
    assert max(seen) > 1e-6
    assert seen[-1] < max(seen)


# -------------------------------------------------------------------------- linear systems


@examples(10)
@given(seed=seeds, p=st.integers(1, 8))
def test_solve_scaled_does_not_see_units(seed, p):
    rng = np.random.default_rng(seed)
    H, x = positive_definite(rng, p), rng.normal(size=p)
    units = 10.0 ** rng.uniform(-6, 6, size=p)
    scaled = H * units[:, None] * units
    found = solve_scaled(scaled[None], (scaled @ (x / units))[None])[0] * units
    assert_allclose(found, x, rtol=1e-8, atol=1e-9)


@examples(10)
@given(seed=seeds, p=st.integers(2, 8))
def test_solve_scaled_solves_singular_systems_in_their_range(seed, p):
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(p - 1, p))
    H = U.T @ U
    g = H @ rng.normal(size=p)
    x = solve_scaled(H[None], g[None])[0]
    assert np.isfinite(x).all()
    assert_allclose(H @ x, g, rtol=1e-8, atol=1e-9 * np.abs(g).max())


def test_solve_scaled_where_what_is_added_is_rounded_away():
    """Another system of the batch has its own solution."""
    whole = 1.0 + 1e-15 * 12
    H = np.array([[[1.0, whole], [whole, 1.0]], [[2.0, 0.0], [0.0, 4.0]]])
    assert_allclose(solve_scaled(H, np.ones((2, 2))), [[0.5, 0.5], [0.5, 0.25]], rtol=1e-10)


def test_solve_scaled_steps_along_the_slope_where_nothing_is_curved():
    H, g = np.zeros((1, 2, 2)), np.array([[3.0, -4.0]])
    assert_array_equal(solve_scaled(H, g), g)


class Products:
    """Products with matrices (m, p, p), and how often they were asked for."""

    def __init__(self, H):
        self.H, self.calls = H, 0
        self.diagonal = np.einsum("ijj->ij", H)

    def __call__(self, u):
        self.calls += 1
        return np.einsum("ijk,ik->ij", self.H, u)


@examples(10)
@given(seed=seeds, m=st.integers(1, 4), p=st.integers(1, 8))
def test_conjugate_gradients_solve_and_precondition(seed, m, p):
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-2, 2, size=(m, p))
    H = np.stack([positive_definite(rng, p, 10.0) for _ in range(m)])
    product, g = Products(H * units[:, :, None] * units[:, None, :]), rng.normal(size=(m, p))
    x = conjugate_gradients(product, product.diagonal, g, 200, tol=np.full(m, 1e-12))
    assert_allclose(product(x), g, rtol=0, atol=1e-10 * np.abs(g).max())
    assert product.calls <= 3 * p + 10


@examples(7)
@given(seed=seeds, p=st.integers(1, 8))
def test_the_inverse_is_the_best_preconditioner(seed, p):
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-3, 3, size=p)
    H = (positive_definite(rng, p, 100.0) * units[:, None] * units)[None]
    g = rng.normal(size=(1, p)) * units
    product, inverse = Products(H), Products(invert_scaled(H))
    assert_allclose(inverse.H[0] @ H[0] * units[:, None] / units, np.eye(p), atol=1e-4)
    options = {"tol": np.full(1, 1e-10), "precondition": inverse}
    x = conjugate_gradients(product, product.diagonal, g, 200, **options)
    assert_allclose(product(x), g, rtol=0, atol=1e-9 * np.abs(g).max())
    assert product.calls <= 6


@examples(7)
@given(seed=seeds, m=st.integers(1, 3), p=st.integers(2, 12))
def test_directions_in_memory_stay_conjugate(seed, m, p):
    """As many products as unknowns, however ill-conditioned, the sum of two parts or not."""
    rng = np.random.default_rng(seed)
    rest = np.stack([positive_definite(rng, p, 1e10) for _ in range(m)])
    part = 1e-3 + rng.uniform(size=(m, p))
    H = rest + part[:, :, None] * np.eye(p)
    x = rng.normal(size=(m, p))
    whole, product = Products(H), Products(rest)
    g = whole(x)
    inverse = Products(np.linalg.inv(part[:, :, None] * np.eye(p)))
    options = {"tol": np.full(m, 1e-9), "precondition": lambda r: (inverse(r), r)}
    found = conjugate_gradients(
        product, whole.diagonal, g, p + 2, split=True, memory=True, **options
    )
    missing = np.linalg.norm(whole(found) - g, axis=1)
    assert (missing <= 2e-9 * np.linalg.norm(g, axis=1)).all()
    # No exchange is wasted once the residuals are reached.
    assert inverse.calls == product.calls <= p + 2


def test_gives_up_where_progress_stalls():
    """Of x^6 every step leaves a quarter of the decrement; a quadratic is solved to the end."""

    def flat(x):
        return (x**6).sum(), 6 * x**5, np.diag(30 * x**4)

    start = np.array([[1.0, 2.0]])
    oracle = Oracle([flat])
    _, _, converged = newton(oracle, start, np.ones(1), stall=0.2, max_iter=100)
    assert not converged[0] and oracle.points == 2
    assert newton(oracle, start, np.ones(1), max_iter=100)[2][0]
    oracle = Oracle([quadratic(np.eye(2), np.ones(2))])
    x, _, converged = newton(oracle, start, np.ones(1), stall=0.2)
    assert converged[0]
    assert_allclose(x, np.ones((1, 2)), atol=1e-12)


def test_conjugate_gradients_never_ascend():
    """Every iterate is a descent direction, whatever number of products is allowed."""
    rng = np.random.default_rng(0)
    H, g = positive_definite(rng, 30, 1e6), rng.normal(size=(1, 30))
    for k in (1, 2, 5, 20):
        x = conjugate_gradients(lambda u: u @ H, np.ones((1, 30)), g, k)
        assert g[0] @ x[0] > 0
    # A slope of zero, and a system without curvature.
    g = np.array([[0.0, 0.0], [1.0, 1.0]])
    x = conjugate_gradients(lambda u: u * [[1.0], [0.0]], np.ones((2, 2)), g, 50)
    assert_array_equal(x, np.zeros((2, 2)))


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_newton_directions_need_less_accuracy_far_from_the_minimum(size):
    rng = np.random.default_rng(0)
    product, g = Products(positive_definite(rng, 60, 1e4)[None]), rng.normal(size=(1, 60)) * size
    x = conjugate_gradients(product, np.ones((1, 60)), g, 500)
    norm, calls = np.linalg.norm(g), product.calls
    assert np.linalg.norm(g - product(x)) <= min(0.1, norm / (1 + norm)) * norm * (1 + 1e-6)
    if size > 1e-6:
        assert calls < 60


class SlopeOracle(Oracle):
    """The same whose trials come with slopes, and with tangents of half of each function."""

    def along(self, step, t):
        self.last = self.x + t[:, None] * step
        return super().along(step, t)

    def slopes(self, step):
        return np.array(
            [f(p)[1] @ s for f, p, s in zip(self.functions, self.last, step, strict=True)]
        )


def nearly_kinked(A, y, width):
    """Sum of smoothed absolute residuals, and a small parabola."""

    def f(x):
        r = A @ x - y
        inner = np.minimum(np.abs(r), width)
        value = (inner / width * (np.abs(r) - 0.5 * inner)).sum() + 1e-3 * x @ x
        g = A.T @ np.clip(r / width, -1, 1) + 2e-3 * x
        return value, g, (A.T * (np.abs(r) <= width)) @ A / width + 2e-3 * np.eye(len(x))

    return f


@pytest.mark.parametrize("width", [1.0, 1e-2, 1e-4])
def test_convexity_saves_trials(width):
    """Steps that a tangent shows to be too long are not tried: the same steps, fewer trials.

    Fewest near kinks.
    """
    rng = np.random.RandomState(0)
    functions = [
        nearly_kinked(rng.normal(size=(40, 5)), rng.normal(size=40), width) for _ in range(3)
    ]
    for some in (functions[:1], functions):
        start, scale = np.zeros((len(some), 5)), np.full(len(some), 10.0)
        plain, told = Oracle(some), SlopeOracle(some)
        x = newton(plain, start, scale)[0]
        assert_allclose(newton(told, start, scale)[0], x, rtol=1e-9, atol=1e-12)
        assert told.points == plain.points
        assert told.values <= (0.7 if width == 1e-4 else 1.0) * plain.values


def test_searches_near_kinks_take_few_exchanges(monkeypatch):
    """What convexity says of a step is not asked for: the same fit in fewer exchanges."""
    model = GTVRegressor(lam=0.3, graph=chain_graph(18))
    data = make_clustered_regression(18, 3, n_samples=25, random_state=0)
    model.fit(data.X, data.y, groups=data.groups)
    calls, objective, coef = model.calls_, model.objective_, model.coef_
    monkeypatch.setattr(
        skcfl.numerics.newton._LowerBounds, "__call__", lambda self, t: np.full(len(t), -np.inf)
    )
    model.fit(data.X, data.y, groups=data.groups)
    assert calls < 0.8 * model.calls_
    assert_allclose(objective, model.objective_, rtol=1e-10)
    assert_allclose(coef, model.coef_, rtol=1e-8, atol=1e-10)


def test_what_falls_by_more_than_is_allowed_is_given_up():
    """Of a function whose minimum is too far away a few steps are taken, of others all."""

    def falling(x):
        return np.exp(-x[0]), -np.exp(-x), np.exp(-x)[None]

    def bowl(x):
        return np.cosh(x[0]) - 1.0, np.sinh(x), np.cosh(x)[None]

    start, scale = np.array([[0.0], [3.0]]), np.ones(2)
    x, _, converged = newton(Oracle([falling, bowl]), start, scale)
    assert converged.all() and x[0] > 20.0
    # Both fall by more than that, the second one to its minimum in the steps that it has.
    cut, _, converged = newton(Oracle([falling, bowl]), start, scale, allowed=0.5)
    assert converged.tolist() == [False, False] and 2.0 < cut[0] < 4.0
    cut, _, converged = newton(Oracle([falling, bowl]), start / 3.0, scale, allowed=0.7)
    assert converged.tolist() == [False, True] and abs(cut[1]) < 1e-8
