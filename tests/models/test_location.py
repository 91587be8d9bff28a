"""Location models: means and robust centres, near and far from the origin."""

import warnings

import numpy as np
import pytest
from client_rows import DELTA, ClientRows
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from trials import examples

from skcfl.calls.curvatures import Hessians, Prox, Solve
from skcfl.calls.first_order import Losses, Objectives, ObjectivesGradients
from skcfl.calls.proofs_asked import Conjugate

seeds = st.integers(0, 2**32 - 1)
SIZES = [1, 2, 0, 5, 30, 1]
both = pytest.mark.parametrize("loss", ["squared_error", "huber"])


class Problem(ClientRows):
    def __init__(self, loss, seed=0, sizes=SIZES, d=3, spread=1.0, delta=DELTA):
        super().__init__("location_" + loss, seed, sizes, d, units=spread)
        self.loss, self.delta = loss, delta
        self.model.set_params(delta=delta)

    def rows(self, i):
        A, _, w = self.of(i)
        return A, w / max(w.sum(), 1.0)

    def gradient(self, i, x):
        A, w = self.rows(i)
        E = x - A
        r = np.linalg.norm(E, axis=1)
        pull = w if self.loss == "squared_error" else w * self.delta / np.maximum(r, self.delta)
        return pull @ E


def test_predictions_are_the_locations():
    bound = Problem("huber", d=4).pool().model
    assert bound.coefficients(np.ones((2, 4))) == {}
    params, index = np.arange(8.0).reshape(2, 4), np.array([1, 0, 1])
    raw = bound.decision(np.zeros((3, 4)), params, index)
    assert_array_equal(bound.output(raw), params[index])


@both
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.csc_matrix])
def test_row_losses_are_the_pool_s(loss, form):
    problem = Problem(loss)
    pool = problem.pool()
    params = problem.rng.normal(size=(4, 3))
    X = form(problem.X)
    rows = [pool.model.row_losses(X, None, params, np.full(len(problem.X), k)) for k in range(4)]
    shares = [problem.weights * (problem.codes == i) for i in range(problem.m)]
    wanted = [np.average(rows, axis=1, weights=w) if w.any() else np.zeros(4) for w in shares]
    assert_allclose(pool.ask(Losses, params), wanted, rtol=1e-12)


@both
@examples(5)
@given(seed=seeds)
def test_minimisers(loss, seed):
    problem = Problem(loss, seed)
    pool = problem.pool()
    x, converged = pool.ask(Solve)
    assert converged.all()
    if loss == "squared_error":
        assert_allclose(pool.spectrum()[0], pool.client_sizes > 0)
    for i in np.flatnonzero(pool.client_sizes):
        A, w = problem.rows(i)
        assert_allclose(problem.gradient(i, x[i]), 0.0, atol=1e-11)
        if loss == "squared_error":
            assert_allclose(x[i], w @ A, rtol=1e-12, atol=1e-14)


@both
@examples(5)
@given(seed=seeds, log_spread=st.floats(-3, 3), start=st.sampled_from([None, 1.0, 1e3, 1e8]))
def test_prox_is_optimal(loss, seed, log_spread, start):
    spread = 10.0**log_spread
    problem = Problem(loss, seed, spread=spread)
    pool = problem.pool()
    rng = problem.rng
    v, rho = spread * rng.normal(size=(problem.m, 3)), 10.0 ** rng.uniform(-3, 3, size=problem.m)
    x = pool.ask(Prox, v, rho, None if start is None else start * rng.normal(size=v.shape))
    for i in range(problem.m):
        gradient = rho[i] * (x[i] - v[i]) + problem.gradient(i, x[i])
        assert_allclose(gradient, 0.0, atol=1e-10 * (1 + rho[i]) * spread + 1e-12)


# ------------------------------------------------------------------------------- numerics


@both
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
def test_far_away_data_cost_no_digits(loss, form):
    """All answers move with the data, up to the rounding of the data themselves."""
    problem = Problem(loss)
    offset = np.array([2.0**27, -(2.0**26), 2.0**27])
    problem.X = np.round(problem.X * 2**16) / 2**16  # exact also after the shift
    one = problem.pool(form)
    problem.X = problem.X + offset
    two = problem.pool(form)
    w = np.round(problem.centres(one) * 2**16) / 2**16
    full = one.client_sizes > 0
    close, tight = {"rtol": 1e-7, "atol": 1e-7}, {"rtol": 1e-10, "atol": 1e-12}
    assert_allclose(two.ask(Losses, w + offset), one.ask(Losses, w), **tight)
    slopes = two.ask(ObjectivesGradients, w + offset)[1], one.ask(ObjectivesGradients, w)[1]
    assert_allclose(*slopes, **tight)
    for moved, wanted in (
        (two.ask(Prox, w + offset, 0.3), one.ask(Prox, w, 0.3)),
        (two.ask(Solve)[0], one.ask(Solve)[0]),
    ):
        assert_allclose((moved - offset)[full], wanted[full], **close)
    # f*(s) moves by <s, offset>: nothing at the minimiser, s = 0.
    zero = np.zeros_like(w)
    assert_allclose(two.ask(Conjugate, zero), one.ask(Conjugate, zero), **close)
    labels = np.arange(problem.m)
    assert_allclose(
        two.ask(Hessians, w + offset, labels), one.ask(Hessians, w, labels), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("outlier", [1e3, 1e6, 1e8])
def test_outliers_cost_no_digits(outlier):
    """One wild row shifts the mean far away; distances to the others stay exact."""
    problem = Problem("huber", sizes=[20])
    problem.weights[:] = 1.0
    problem.X[3] = outlier
    pool = problem.pool()
    x, converged = pool.ask(Solve)
    assert converged.all()
    assert_allclose(problem.gradient(0, x[0]), 0.0, atol=1e-10)
    assert np.linalg.norm(x[0]) < 1.0
    w = np.array([[0.1, 0.2, 0.3]])
    assert_allclose(pool.ask(ObjectivesGradients, w)[1][0], problem.gradient(0, w[0]), rtol=1e-12)


@examples(5)
@given(seed=seeds, log_delta=st.floats(-6, 1), d=st.sampled_from([1, 2, 5]))
def test_spatial_medians(seed, log_delta, d):
    """A tiny delta: nearly no curvature anywhere, least of all in one dimension."""
    problem = Problem("huber", seed, sizes=[3, 4, 9, 40], d=d, delta=10.0**log_delta)
    problem.weights[:] = 1.0
    pool = problem.pool()
    x, converged = pool.ask(Solve)
    assert converged.all()
    for i in range(problem.m):
        assert_allclose(problem.gradient(i, x[i]) / problem.delta, 0.0, atol=1e-7)
        if d == 1:
            A = problem.rows(i)[0][:, 0]
            low, high = np.sort(A)[[(len(A) - 1) // 2, len(A) // 2]]
            assert low - 40 * problem.delta <= x[i, 0] <= high + 40 * problem.delta


@both
def test_nothing_warns_where_there_is_no_maximiser(loss):
    problem = Problem(loss)
    pool = problem.pool()
    s = np.full((problem.m, 3), 10.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bound = pool.ask(Conjugate, s)
    if loss == "huber":
        assert np.isinf(bound).all()
    else:
        assert_array_equal(np.isinf(bound), pool.client_sizes == 0)


# ----------------------------------------------------------------------------- conjugates


@both
@examples(5)
@given(seed=seeds, spread=st.sampled_from([0.1, 1.0, 5.0]))
@example(seed=262, spread=5.0)
def test_conjugate_is_tight_and_never_too_small(loss, seed, spread):
    problem = Problem(loss, seed, spread=spread)
    pool = problem.pool()
    x = problem.rng.normal(scale=2, size=(problem.m, 3))
    value, s = pool.ask(ObjectivesGradients, x)
    bound = pool.ask(Conjugate, s)
    assert_allclose(bound, (s * x).sum(axis=1) - value, rtol=1e-8, atol=1e-8)
    for scale in (0.1, 1.0, 10.0):
        w = problem.rng.normal(scale=scale, size=x.shape)
        assert (bound >= (s * w).sum(axis=1) - pool.ask(Objectives, w) - 1e-9).all()


def test_conjugate_of_one_row_in_closed_form():
    """Huber's: ``<s, a> + |s|^2 / 2`` for slopes up to delta."""
    huber = Problem("huber", sizes=[1] * 4)
    s = huber.rng.normal(size=(4, 3))
    s *= DELTA / np.linalg.norm(s, axis=1, keepdims=True)
    s *= np.array([[0.0], [0.5], [0.999], [1.001]])
    bound = huber.pool().ask(Conjugate, s)
    wanted = (s * huber.X).sum(axis=1) + 0.5 * (s**2).sum(axis=1)
    assert_allclose(bound[:3], wanted[:3], rtol=1e-9, atol=1e-10)
    assert np.isinf(bound[3])
