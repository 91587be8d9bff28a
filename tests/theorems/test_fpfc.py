r"""Theorem 1 of the FPFC paper, where its conditions can be met.

Convex losses (so that ``L_- = 0`` and ``mu = rho``), all clients in every round (``p_i = 1``),
and a smoothed part wide enough that ``rho > 2 lambda / xi`` is no large number.  With the factor
1/m before penalty, multipliers and augmented term alike, multipliers v_ij of the paper are
v_ij / m here, and the gradients in v are divided by m; ``L_h`` of the constants, which the paper
does not define, is ``L_f + rho``, the curvature of a client's problem.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from trials import examples

from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Objectives, ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.fpfc_problem import FPFCProblem
from skcfl.fusion.fpfc_rounds import FPFCOptions, fpfc
from skcfl.models import LinearModel
from skcfl.penalties import SCAD

ROUNDS = 30


@st.composite
def problems(draw):
    """A small federation, a penalty, and steps that meet the conditions of the theorem."""
    rng = np.random.RandomState(draw(st.integers(0, 10**6)))
    m, n_rows, d = draw(st.integers(2, 5)), 8, 2
    codes = np.repeat(np.arange(m), n_rows)
    Z = rng.standard_normal((m * n_rows, d))
    truth = 3.0 * rng.standard_normal((2, d))
    t = np.einsum("rd,rd->r", Z, truth[codes % 2]) + 0.5 * rng.standard_normal(len(Z))
    classes = draw(st.booleans())
    model = LinearModel(loss="log_loss" if classes else "squared_error", alpha=0.05,
                        fit_intercept=False)  # fmt: skip
    target = (t > 0).astype(int) if classes else t
    pool = open_rows(model.bind(d, n_classes=2 if classes else None), Z, target, codes, m)
    lam = draw(st.floats(0.2, 2.0))
    xi = lam * draw(st.floats(0.2, 0.9))
    return FPFCProblem(pool, SCAD(xi=xi), 1.0, "common"), lam, xi


def conditions(lipschitz, lam, xi, a=3.7):
    """rho, step and number of local steps that meet the conditions, and the contraction."""
    rho = 1.1 * max(2.0 * lam / xi, 2.0 / (a - 1.0), 4.0 * lipschitz)
    step = 1.0 / (lipschitz + 2.0 * rho)
    c = 1.0 - step * 2.0 * rho * (lipschitz + rho) / (lipschitz + 2.0 * rho)
    steps = int(np.ceil(2.0 * np.log(50.0) / -np.log(c)))  # c^(T/2) is at most 1/50
    assert steps > -2.0 * np.log(2.0) / np.log(c)
    assert rho > lipschitz / (1.0 - 2.0 * c ** (steps / 2.0))
    return rho, step, steps, c


def run(problem, lam):
    """Sums over the rounds of the squared gradients, and the residuals of the prox in each."""
    lipschitz = float(problem.curvatures()[0].max())
    penalty, m, pool = problem.at(lam)[0], problem.n, problem.pool
    rho, step, steps, c = conditions(lipschitz, lam, penalty.xi)
    options = FPFCOptions(steps, step, rho=rho, max_iter=1, tol=0.0)
    state, in_w, in_v, distances = None, [], [], []
    for _ in range(ROUNDS):
        _, state = fpfc(problem, lam, options, np.random.RandomState(0), state)
        W, theta, v = state.W, state.theta[0], rho * state.U[0]
        slope = pool.ask(ObjectivesGradients, W)[1] + v.sum(axis=2).T / m
        gap = (W.T[:, :, None] - W.T[:, None, :] - theta) / m
        in_w.append((slope**2).sum())
        in_v.append(0.5 * (gap**2).sum())
        # prox of <v, .> and the penalty that is not smoothed, at theta
        sharp = SCAD(lam, xi=1e-9 * lam).prox(theta + v, 1.0)
        distances.append(np.linalg.norm(theta - sharp, axis=0))
    return np.array(in_w), np.array(in_v), np.array(distances), (rho, steps, c, lipschitz)


@examples(9)
@given(problems())
def test_theorem_1(drawn):
    """Averages of squared gradients fall as 1 / K, and the prox's residual is bounded."""
    problem, lam, xi = drawn
    m, pool = problem.n, problem.pool
    in_w, in_v, distances, (rho, steps, c, L_f) = run(problem, lam)

    start, penalty = problem.start(), problem.at(lam)[0]
    first = (
        float(pool.ask(Objectives, start).sum()) + (m - 1) / 2.0 * xi * lam / 2.0
    )  # all pairs at zero
    # each client at its best and each pair at zero bounds the minimum from below
    best = float(pool.ask(Objectives, pool.ask(Solve)[0]).sum()) + (m - 1) / 2.0 * xi * lam / 2.0
    rise = first - best + m * xi * lam / 4.0
    L_h, L_g = L_f + rho, penalty.curvature
    again = 1.0 / (c ** (-steps / 2.0) - 1.0)
    C1 = 6.0 * ((again * L_h) ** 2 + rho**2) / (rho - L_f - 2.0 * again * L_h)
    C1 += 12.0 * rho**3 / (rho**2 - L_g * rho - 2.0 * L_g**2)
    C2 = L_g**2 / (m * rho * (rho**2 - L_g * rho - 2.0 * L_g**2))
    K = np.arange(1, ROUNDS + 1)
    assert (in_w.cumsum() / K <= C1 * rise / K * (1 + 1e-9)).all()
    assert (in_v.cumsum() / K <= C2 * rise / K * (1 + 1e-9) + 1e-18).all()
    assert (distances <= lam * xi / (lam + xi) * (1 + 1e-6)).all()  # each pair
    assert ((distances**2).sum(axis=(1, 2)) <= (m * lam * xi / (lam + xi)) ** 2).all()
