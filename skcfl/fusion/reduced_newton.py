"""Newton's method for the reduced problem of a partition: one model for each cluster."""

from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import sparse
from scipy.linalg.lapack import dposv, dpotrf, dpotrs

from ..calls.curvatures import HessianSolves, shows_rows
from ..calls.first_order import ObjectivesGradients
from ..graphs.graph import outflows
from ..numerics.by_cluster import components_of, mean_by_cluster, sum_by_cluster
from ..numerics.conjugate_gradients import conjugate_gradients
from ..numerics.matrices import factor
from ..numerics.newton import MIN_DAMPING, newton, solve_scaled
from ..rounds.polish import EXACT, SummedHessians, solve_pooled

# Unknowns of the reduced problem up to which Newton's directions are exact.
MAX_UNKNOWNS = 1500
# Numbers of the blocks of its Hessian up to which it is solved at all, on sparse graphs.
MAX_BLOCKS = 10_000_000
# Newton steps between two looks for models that meet, and looks in vain before giving up.
NEWTON_STEPS, MAX_STALLS = 5, 4
# Most looks: where a fall is rounding of a huge objective, none of them is in vain.
MAX_LOOKS = 100
# Part of the decrement that a step leaves at most where Newton's method converges fast, and where
# it converges at all: else models meet.
FAST, STALL = 0.06, 0.2
# Unknowns up to which a sparse Hessian is factorised, to precondition with.
MAX_FACTORED = 5000
# Least shift of a client's Hessian, relative to its curvature and absolute: nothing pulls a client
# without neighbours.
ISOLATED, TINY = 1e-10, 1e-200
# Unknowns of a small reduced problem, with Newton steps that cost little more than its gradients.
SMALL = 300
# Residuals of Newton directions where clients solve with their Hessians: the first are coarse.
CAREFUL = 1e-3, 0.03
# Rounding of a value, relative to the sum of its terms, that lower bounds of it allow for.
BOUND_SLACK = 1e-12


def descend(problem, lam, labels, X, effort, max_unknowns=MAX_UNKNOWNS, max_stalls=MAX_STALLS):
    """Newton's method on the reduced problem; models that run into each other are joined.

    Joined clusters stay so, even if it were better to part again.  Returns labels and models as
    `solve_reduced` does, and the effort spent.
    """
    theta = mean_by_cluster(np.asarray(X, dtype=float), labels)
    scale = np.array([max(problem.at_start, 1e-30)])
    stalled, spent, last, most = 0, 0.0, None, 0.0
    for _ in range(MAX_LOOKS + len(theta)):  # each model can join others once
        if stalled >= max_stalls or spent >= effort:
            break
        K = len(theta)
        pairs = pairs_between(problem.graph, labels, K, max_unknowns)
        if pairs is None:
            break
        if not len(pairs.weights):
            return labels, solve_separately(problem, labels, theta), spent + 1.0
        if K * problem.d > max_unknowns and (
            problem.graph.is_complete or max(K, len(pairs.weights)) * problem.d**2 > MAX_BLOCKS
        ):
            break
        spent += max(1.0, (K * problem.d / SMALL) ** 2)
        oracle = ReducedOracle(problem, lam, labels, K, pairs, max_unknowns)
        start = theta.reshape(1, -1)
        x, decrement, converged = newton(oracle, start, scale, max_iter=NEWTON_STEPS, stall=STALL)
        theta = x.reshape(K, problem.d)
        value = oracle.value(theta)
        fall = 0.0 if last is None else last - value
        last, most = value, max(most, fall)
        # The shortfall of a Newton step from its prediction is the cost of a kink.
        slack = max(float(decrement[0]), 0.0) if stalled else 0.0
        together = meeting(oracle, theta, value + slack, converged.all())
        if together is not None:
            theta = mean_by_cluster(theta[labels], together[labels])
            labels, stalled = together[labels], 0
        elif converged.all():
            return labels, theta, spent
        elif not fall >= 0.1 * most or most == 0.0:
            # Far from the kinks progress may be steady and slow, as beyond Huber's delta.
            stalled += 1
    return labels, None, spent


def meeting(oracle, theta, value, converged):
    """Clusters of clusters with models that run into each other, (K,); None if none do.

    The objective has a kink where models meet, at which Newton's method stalls: there models
    that are near are made equal, if the objective then is at most `value`.
    """
    distance = np.linalg.norm(theta[oracle.heads] - theta[oracle.tails], axis=1)
    if len(distance) == 0:
        return None
    size = max(float(np.linalg.norm(theta - theta.mean(axis=0), axis=1).max()), 1e-12)
    least = distance.min()
    if converged:
        return oracle.join(distance <= 1e-8 * size) if least <= 1e-8 * size else None
    best, last = None, 0
    for reach in (1.5 * least, 10.0 * least, 1e-3 * size, 1e-2 * size, 1e-1 * size):
        near = distance <= reach
        count = np.count_nonzero(near)
        if count in (0, last):
            continue
        last = count
        together = oracle.join(near)
        means = mean_by_cluster(theta[oracle.labels], together[oracle.labels])
        trial = oracle.value(means[together])
        if trial <= value:
            best, value = together, trial
    return best


def solve_separately(problem, labels, start, tol=EXACT):
    """Models of clusters that nothing draws to each other; None if Newton's method failed."""
    theta, converged, *_ = solve_pooled(problem.pool, labels, start, np.ones(problem.n), tol=tol)
    return theta if converged else None


@dataclass
class _Pairs:
    """Pairs of clusters that edges join, each once."""

    heads: np.ndarray
    tails: np.ndarray
    weights: np.ndarray


def pairs_between(graph, labels, K, most):
    """Pairs of clusters with the total weights of their edges; None if there are too many."""
    if graph.is_complete:
        if K > most:
            return None
        heads, tails = np.triu_indices(K, 1)
        sizes = np.bincount(labels, minlength=K).astype(float)
        return _Pairs(heads, tails, graph.weight * sizes[heads] * sizes[tails])
    k, l = labels[graph.heads], labels[graph.tails]  # noqa: E741
    distinct = k != l
    low, high = np.minimum(k, l)[distinct], np.maximum(k, l)[distinct]
    W = sparse.coo_array((graph.weights[distinct], (low, high)), shape=(K, K))
    W.sum_duplicates()
    return _Pairs(*W.coords, W.data)


class ReducedOracle(SummedHessians):
    """Objective of the reduced problem as one function of (1, K * d)."""

    def __init__(self, problem, lam, labels, K, pairs, max_exact):
        self.problem, self.labels, self.K, self.max_exact = problem, labels, K, max_exact
        self.pool = problem.pool
        self.heads, self.tails, self.W = pairs.heads, pairs.tails, lam * pairs.weights
        self.outflow = outflows(self.heads, self.tails, K)
        self.touch = abs(self.outflow)
        self.memory = self.first = self.known = None
        # Single-client clusters with Hessians that would show rows: the client multiplies by it.
        single = shows_rows(self.pool, labels, K)[labels] & (self.pool.client_sizes > 0)
        self.summed = 1.0 - single
        self.clients = np.flatnonzero(single)
        self.single = labels[self.clients]
        if len(self.single):
            self.hidden = self.pool.subset(self.clients)
        model = self.pool.model
        #: If True, Hessians are asked for with the values; not where a model may have diverged.
        self.curves = K * problem.d <= SMALL and not len(self.single) and model.bounded_curvature

    def join(self, near):
        """Clusters of clusters that the pairs in the mask `near` join, (K,)."""
        return components_of(self.heads[near], self.tails[near], self.K)

    def value(self, theta):
        """The objective at models (K, d)."""
        return self._value(theta)[0]

    def _value(self, theta, damping=None):
        """Terms of the objective; with `damping` Hessians are asked for in the same exchange."""
        if self.known is not None and np.array_equal(self.known[0], theta):
            return self.known[1]
        problem, questions = self.problem, []
        if damping is not None and self._lacks_hessians():
            questions.append(partial(self.ask_hessians, theta, damping))
        (values, gradients), *H = problem.asked_at_once(
            lambda pool: pool.ask(ObjectivesGradients, theta[self.labels], dtype=np.float64),
            *questions,
        )
        if H:
            self.curvature = theta.copy(), damping, H[0]
        delta = theta[self.heads] - theta[self.tails]
        distance = np.sqrt(np.einsum("pd,pd->p", delta, delta))
        found = float(values.sum()) + float(self.W @ distance), gradients, delta, distance
        self.known = theta.copy(), found
        return found

    def _lacks_hessians(self):
        """Whether Hessians are worth asking for before they are needed: parabolas have one."""
        return self.curves and not (self.pool.model.quadratic and self.curvature)

    def at(self, x):
        """Value and gradient."""
        self.x, self.theta = x.copy(), x.reshape(self.K, -1).copy()
        value, gradients, delta, distance = self._value(self.theta, self._damping(MIN_DAMPING))
        distinct = distance > 0
        inverse = np.divide(1.0, distance, out=np.zeros_like(distance), where=distinct)
        self.unit, self.slope = delta * inverse[:, None], self.W * inverse
        self.gradient = sum_by_cluster(gradients, self.labels, self.K)
        self.smooth = value - float(self.W @ distance)
        g = self.gradient + self.outflow @ (self.W[:, None] * self.unit)
        return np.array([value]), g.reshape(1, -1)

    def _damping(self, damping):
        """Damping of each cluster, (K,)."""
        # The norms are flat along the differences: beside them no curvature may vanish.
        return np.repeat(np.maximum(damping, 1e-4), self.K)

    def direction(self, g, damping):
        """Newton direction."""
        K, d = self.K, self.problem.d
        # After a whole step the damping falls.
        self.ahead = self._damping(np.maximum(0.1 * damping, MIN_DAMPING))
        damping = self._damping(damping)
        single = self.single
        if len(single) < K:
            hessians = self.pool.model.pin(self.hessians_at(self.theta, damping))
        else:
            hessians = np.zeros((K, d, d))
        if K * d <= self.max_exact and not len(single):
            return self._exact(hessians, g)
        if len(single):
            return self._by_answers(hessians, g, damping)
        # Conjugate gradients in coordinates in which every cluster's own block is the identity.
        root = np.linalg.cholesky(self._diagonal_blocks(hessians))
        inverse = np.linalg.inv(root)

        def product(u):
            u = np.matmul(u.reshape(K, 1, d), inverse)[:, 0]
            u = np.matmul(hessians, u[:, :, None])[:, :, 0] + self._pull(u)
            return np.matmul(inverse, u[:, :, None]).reshape(1, -1)

        g = np.matmul(inverse, g.reshape(K, d, 1)).reshape(1, -1)
        x = conjugate_gradients(product, np.ones_like(g), g, 200)
        return -np.matmul(x.reshape(K, 1, d), inverse).reshape(1, -1)

    def _pull(self, u):
        """Product of the Hessian of the norms with u (K, d)."""
        difference = u[self.heads] - u[self.tails]
        along = np.einsum("pd,pd->p", self.unit, difference)
        return self.outflow @ (self.slope[:, None] * (difference - along[:, None] * self.unit))

    def _by_answers(self, hessians, g, damping):
        """Direction by conjugate gradients; single-client clusters solve with their Hessians.

        The preconditioner takes two half steps, as alternating directions do.  The server solves
        with its part of the Hessian and a shift for each unknown Hessian.  Then these clients
        solve with theirs and the same shift.
        """
        K, d = hessians.shape[:2]
        single, who, given = self.single, self.hidden, np.zeros_like(hessians)
        blocks = self._diagonal_blocks(hessians)
        # Their pulls count as if they were the same in all directions.
        shift = np.einsum("kii->k", blocks[single]) / d + TINY
        factored = K * d <= MAX_FACTORED
        if factored:
            # The best shift is that of the weaker part; a row shows in one of d directions.
            curvature = np.maximum(self.problem.curvatures()[0][self.clients], ISOLATED * shift)
            shift = curvature * (shift / (curvature + d * shift) + ISOLATED) + TINY
        given[single] = shift[:, None, None] * np.eye(d)
        if factored:
            blocks = self._diagonal_blocks(hessians + given)
            solve = self._factored(hessians + given, blocks)
        else:
            # The clients' half step only.
            inverse = np.linalg.inv(blocks)
            inverse[single] = 0.5 / shift[:, None, None] * np.eye(d)
            solve = lambda r: np.matmul(inverse, r[:, :, None])[:, :, 0]  # noqa: E731
        order, theta, damping = np.arange(len(single)), self.theta[single], damping[single]

        def precondition(r):
            z, answered = solve(r.reshape(K, d)), np.zeros((K, d))
            answered[single] = 2.0 * shift[:, None] * z[single]
            z[single] = who.ask(HessianSolves, theta, answered[single], order, shift, damping)
            return z.reshape(1, -1), answered.reshape(1, -1)

        def product(u):
            u = u.reshape(K, d)
            u = self._pull(u) + np.matmul(hessians - given, u[:, :, None])[:, :, 0]
            return u.reshape(1, -1)

        scale = np.einsum("kii->ki", blocks).reshape(1, -1)
        size = float(np.linalg.norm(g))
        self.first = size if self.first is None else self.first
        tol = np.array([np.clip(size / self.first, *CAREFUL)])
        most = min(200, K * d)
        return -conjugate_gradients(
            product, scale, g, most, tol, precondition, split=True, memory=True
        )

    def _factored(self, hessians, blocks):
        """Solves with the Hessian that has these blocks on its diagonal."""
        K, d = blocks.shape[:2]
        if self.problem.graph.is_complete:
            # No entry is zero: a dense factor takes a quarter of the time.
            dense, info = dpotrf(self._hessian(hessians).T, overwrite_a=True, clean=False)
            if not info:  # else rounding has left a pivot that is not positive
                return lambda r: dpotrs(dense, r.ravel())[0].reshape(K, d)
        across = self.unit[:, :, None] * self.unit[:, None, :] - np.eye(d)
        across *= self.slope[:, None, None]
        values = np.concatenate([across, across, blocks])
        i, j = np.arange(K * d).reshape(K, d), np.arange(K)
        pairs = [self.heads, self.tails], [self.tails, self.heads], [j, j]
        heads, tails = np.concatenate(pairs, axis=1)
        i, j = np.broadcast_arrays(i[heads][:, :, None], i[tails][:, None, :])
        H = sparse.coo_array((values.ravel(), (i.ravel(), j.ravel())), shape=(K * d, K * d))
        lu = factor(H.tocsc())
        return lambda r: lu.solve(r.ravel()).reshape(K, d)

    def _diagonal_blocks(self, hessians):
        """Blocks of the Hessian on its diagonal, (K, d, d), safely positive definite."""
        d = hessians.shape[1]
        total = self.touch @ self.slope
        across = self.touch @ np.einsum("p,pi,pj->pij", self.slope, self.unit, self.unit).reshape(
            len(self.slope), -1
        )
        blocks = hessians + total[:, None, None] * np.eye(d) - across.reshape(hessians.shape)
        diagonal = np.einsum("kii->ki", blocks)
        diagonal += 1e-10 * diagonal.max(axis=1, keepdims=True) + 1e-300
        return blocks

    def _exact(self, hessians, g):
        """Direction from one dense system."""
        # The lower half of H, row by row, is the upper half column by column, as LAPACK counts.
        _, x, info = dposv(self._hessian(hessians).T, g[0], overwrite_a=True)
        if info or not np.isfinite(x).all():
            H = np.tril(self._hessian(hessians))
            x = solve_scaled((H + np.tril(H, -1).T)[None], g)[0]
        return -x[None]

    def _hessian(self, hessians):
        """The Hessian, (K * d, K * d), in its lower half."""
        K, d = hessians.shape[:2]
        if self.memory is None:
            # New memory for every step would take longer than the step.
            self.memory = np.empty((K, d, K, d)), np.empty((len(self.W), d, d))
        H, curve = self.memory
        # Minus the Hessians of the norms.
        np.multiply(self.unit[:, :, None], self.unit[:, None, :], out=curve)
        curve *= self.slope[:, None, None]
        np.einsum("pii->pi", curve)[:] -= self.slope[:, None]
        H.fill(0.0)
        H[self.tails, :, self.heads, :] = curve
        total = (self.touch @ curve.reshape(len(curve), d * d)).reshape(hessians.shape)
        every = np.arange(K)
        H[every, :, every, :] = hessians - total
        H = H.reshape(K * d, K * d)
        np.einsum("ii->i", H)[:] *= 1.0 + 1e-15 * len(H)
        return H

    def at_least(self, step, t):
        """Lower bound of the value at ``x + t * step``: only the norms are not taken as linear.

        The clients' objective is convex, and so above its tangent.
        """
        move = (t[:, None] * step).reshape(self.K, -1)
        theta = self.theta + move
        delta = theta[self.heads] - theta[self.tails]
        tangent = self.smooth + float(np.sum(self.gradient * move))
        norms = float(self.W @ np.sqrt(np.einsum("pd,pd->p", delta, delta)))
        return np.array([tangent + norms - BOUND_SLACK * (abs(self.smooth) + norms)])

    def slopes(self, step):
        """Slope along a step at the last trial."""
        gradients, delta, distance = self.tried
        step = step.reshape(self.K, -1)
        slope = np.sum(sum_by_cluster(gradients, self.labels, self.K) * step)
        along = np.einsum("pd,pd->p", delta, step[self.heads] - step[self.tails])
        pull = np.divide(along, distance, out=np.zeros_like(along), where=distance > 0)
        return np.array([slope + self.W @ pull])

    def along(self, step, t):
        """Value at ``x + t * step``."""
        theta = (self.x + t[:, None] * step).reshape(self.K, -1)
        value, *self.tried = self._value(theta, self.ahead if t[0] == 1.0 else None)
        return np.array([value])
