"""Damped Newton for many small convex problems at once.

Client side (each client's minimiser, prox, conjugate) and server side (each cluster's
pooled problem, from summed messages) minimise batches of ``m`` smooth convex functions;
they share the iteration and differ in the oracle.
"""

import numpy as np

# Parameters up to which Hessians are made, sent and solved with; beyond, directions come from
# products of Hessians with vectors, fewer numbers to send and less to compute.
MAX_DENSE = 256
ARMIJO = 1e-4
SHORTEST = 2.0**-60
# Rounding of a tangent, relative to its terms.
TANGENT_SLACK = 1e-12
# Relative decrements at which values say nothing any more.
BLIND = 1e-11
MAX_IDLE = 3
# Steps that a function has that falls by more than is allowed.
CHANCES = 3
# Fall, in units of a function, after which it is taken to have no minimum.
UNBOUNDED = 1e20
# Length of a last step, relative to the models, up to which it is taken without a trial.
SHORT = 1e-6
# If the curvature vanishes (beyond Huber's delta) an exact Newton step has no length.
MIN_DAMPING = 1e-14


def newton(oracle, x, scale, *, max_iter=100, tol=1e-16, stall=None, allowed=np.inf):
    """Minimise ``m`` convex functions by Newton's method with backtracking.

    Parameters
    ----------
    oracle : object
        ``oracle.at(x)`` returns values (m,) and gradients (m, p) and keeps the point;
        ``oracle.direction(g, damping)`` returns Newton directions (m, p) there, with curvature
        moved by `damping` (m,) of the way to that of a quadratic above the function;
        ``oracle.along(step, t)`` returns the values (m,) at ``x + t * step`` (t is (m,)). An
        oracle with an exchange for every trial has ``oracle.slopes(step)``, the slopes (m,) at the
        last one, and may have ``oracle.at_least(step, t)``, lower bounds of values: steps that
        these, or the tangent at the last trial, show to be too long are not tried. With
        ``oracle.arrive(x, value)`` short last steps are not tried either: it gets the models and
        the values that the decrement predicts.
    x : ndarray of shape (m, p)
        Start.
    scale : ndarray of shape (m,)
        Size of each function, in units of its values.
    max_iter : int
        Most Newton steps.
    tol : float
        Stop after the step with a squared Newton decrement below ``tol * scale``. Steps converge
        quadratically, so the square root of machine precision before the last step gives machine
        precision after it.
    stall : float, default=None
        Give up after a step with a decrement above this share of the one before.
    allowed : float
        Give up where a function has fallen by more than this in `CHANCES` steps: where the minimum
        is only good for something if it is near.

    Returns
    -------
    x : ndarray of shape (m, p)
        Minimisers.
    decrement : ndarray of shape (m,)
        Last squared Newton decrements, about twice the excess before the last step.
    converged : ndarray of shape (m,) of bool
        True if `tol` was met, or values could not fall any further in floating point.
    """
    x = np.array(x, dtype=float)
    m, eps = len(x), np.finfo(float).eps
    damping = np.full(m, MIN_DAMPING)
    last = np.full(m, np.inf)
    done, stuck, slow, blind, careful = np.zeros((5, m), dtype=bool)
    idle = np.zeros(m, dtype=int)
    before = step = x.copy()
    first = None
    for k in range(max_iter):
        value, gradient = oracle.at(x)
        first = value if first is None else first
        # Slopes judge the steps that values could not: one that did harm is taken back.
        harm = blind & ~(np.abs(np.einsum("ij,ij->i", gradient, step)) <= last)
        done |= blind & ~harm & (last <= tol * scale)
        if harm.any():
            x[harm] = before[harm]
            careful |= harm
            value, gradient = oracle.at(x)
        active = ~(done | stuck)
        if not active.any():
            break
        step = oracle.direction(np.where(active[:, None], gradient, 0.0), damping)
        decrement = -np.einsum("ij,ij->i", gradient, step)
        size = np.abs(decrement)
        # Values differ by little but their rounding: whole steps need not lower them.
        blind = active & ~careful & (size <= BLIND * scale)
        # No longer falling either: the rounding of gradients is reached.
        idle = np.where(size > 0.5 * last, idle + 1, 0)
        done |= blind & (idle >= MAX_IDLE)
        active &= ~done
        blind &= active
        if stall is not None:
            slow |= active & (size > stall * last) & (size > BLIND * scale)
        last = np.where(active, size, last)
        if hasattr(oracle, "arrive") and _is_last(x, step, size <= tol * scale, active):
            x[active] += step[active]
            oracle.arrive(x, value - 0.5 * np.where(active, size, 0.0))
            done |= active
            break
        rounding = 8 * eps * (np.abs(value) + scale)
        slack = np.where(blind, BLIND * scale, rounding)
        t, trial, stalled = _search(oracle, step, value, decrement, slack, active)
        blind &= ~(trial <= value + rounding)
        before = x.copy()
        moving = t > 0
        x[moving] += t[moving, None] * step[moving]
        # A short step says that the curvature was too small, by about that factor.
        damping = np.where(
            t < 0.5,
            np.minimum(damping / np.where(moving, t, 1.0), 1.0),
            np.where(t == 1.0, np.maximum(0.1 * damping, MIN_DAMPING), damping),
        )
        done |= active & ~blind & (size <= tol * scale)
        stuck |= stalled | ~(value > -UNBOUNDED * scale)
        if k + 1 >= CHANCES:
            stuck |= first - value > allowed
        if (done | stuck | slow).all():
            break
    converged = done | (stuck & (last <= 1e-8 * scale))
    return x, last, converged


def _is_last(x, step, small, active):
    """Whether no function needs more than a short step that leaves its minimiser to rounding."""
    short = np.abs(step).max(axis=1) <= SHORT * np.abs(x).max(axis=1)
    return bool((small & short)[active].all())


def _search(oracle, step, value, decrement, slack, active):
    """Lengths of the steps, values there, and where no step lowers the value, each (m,).

    Steps are halved until the value falls enough, and then for as long as it goes on falling.
    """
    t = np.where(active, 1.0, 0.0)
    enough = ARMIJO * np.maximum(decrement, 0.0)
    best = np.full(len(t), np.inf)
    searching, shortening = active.copy(), np.zeros(len(t), dtype=bool)
    bounds = _LowerBounds(oracle, step, slack) if hasattr(oracle, "slopes") else None
    again = searching
    while again.any():
        if bounds is not None:
            low = bounds(t)
            with np.errstate(invalid="ignore"):
                refused = again & searching & (low > value - enough * t + slack)
            ended = shortening & (low >= best)
            t[refused] *= 0.5
            t[ended] *= 2.0
            shortening &= ~ended
            again = (searching | shortening) & (t >= SHORTEST)
            if refused.any() or not again.any():
                continue
        trial = oracle.along(step, t)
        if bounds is not None:
            bounds.note(t, trial)
        with np.errstate(invalid="ignore"):
            good = searching & (trial <= value - enough * t + slack) & np.isfinite(trial)
            better = shortening & (trial < best)
        t[shortening & ~better] *= 2.0
        best[good | better] = trial[good | better]
        searching &= ~good
        # A whole step is never shortened: it is what makes convergence quadratic.
        shortening = better | (good & (t < 1.0))
        t[searching | shortening] *= 0.5
        again = (searching | shortening) & (t >= SHORTEST)
    t[shortening] *= 2.0
    # No step however small lowers the value: rounding decides, whatever tol asks.
    t[searching] = 0.0
    return t, best, searching


class _LowerBounds:
    """Bounds that convexity gives for values along a step."""

    def __init__(self, oracle, step, slack):
        self.oracle, self.step, self.slack = oracle, step, slack
        self.at_least = getattr(oracle, "at_least", None)
        self.tangent = None

    def note(self, t, trial):
        """Values (m,) at lengths (m,) of the steps."""
        self.tangent = t.copy(), trial, self.oracle.slopes(self.step)

    def __call__(self, t):
        """Lower bounds (m,) at other lengths, less their rounding."""
        low = np.full(len(t), -np.inf)
        if self.at_least is not None:
            low = self.at_least(self.step, t) - self.slack
        if self.tangent is not None:
            at, height, slope = self.tangent
            with np.errstate(invalid="ignore", over="ignore"):
                rise = slope * (t - at)
                below = TANGENT_SLACK * (np.abs(height) + np.abs(rise)) + self.slack
                low = np.fmax(low, height + rise - below)
        return low


def solve_scaled(H, g):
    """Solve ``H x = g`` for a batch of symmetric positive semi-definite matrices.

    Rows and columns are scaled to a unit diagonal first, so that columns in different
    units do no harm, and a little more than its rounding is added to it, so that a singular
    system with a right-hand side in its range has a finite solution.
    """
    shift = 1e-15 * (10 + H.shape[-1])
    S, inverse = _scaled(H, shift)
    b = (g * inverse)[:, :, None]
    try:
        x = np.linalg.solve(S, b)
    except np.linalg.LinAlgError:  # the sum of rounding and of what is added is zero
        x = np.linalg.pinv(S, rcond=10 * shift, hermitian=True) @ b
    return x[:, :, 0] * inverse


def invert_scaled(H):
    """Inverses of a batch of symmetric positive semi-definite matrices, to precondition with.

    A flat direction counts as one of little curvature.
    """
    S, inverse = _scaled(H, 1e-8)
    S = np.linalg.inv(S)
    S *= inverse[:, :, None]
    S *= inverse[:, None, :]
    return S


def _scaled(H, shift):
    """`H` scaled to a unit diagonal, plus `shift`, and the scale of its rows and columns."""
    diagonal = np.einsum("ijj->ij", H)
    root = np.sqrt(np.maximum(diagonal, 0.0))
    inverse = np.divide(1.0, root, out=np.ones_like(root), where=root > 0)
    S = H * inverse[:, :, None]
    S *= inverse[:, None, :]
    np.einsum("ijj->ij", S)[:] = np.where(root > 0, 1.0 + shift, 1.0)
    return S, inverse
