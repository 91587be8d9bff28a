"""Pooled problem of each cluster: Newton's method on summed messages.

    minimise over theta_k:  sum_{i in C_k} u_i f_i(theta_k),   k = 0..K-1

In each iteration the clients send gradients and Hessians (or, for models of many parameters,
products of Hessians with a vector), summed by cluster, in one exchange: that of the trial at the
end of a step has the Hessians for the next one.  The only client of a cluster solves the problem
itself if its Hessian would show its rows.
"""

from functools import partial

import numpy as np

from .._progress import loop
from ..calls.curvatures import HessianDiagonals, HessianProducts, Hessians, Solve, shows_rows
from ..calls.first_order import Present
from ..calls.summed import GradientSums
from ..federation.lanes import asked_at_once
from ..federation.presence import needing_all
from ..numerics.conjugate_gradients import conjugate_gradients
from ..numerics.matrices import quotient
from ..numerics.newton import MAX_DENSE, MIN_DAMPING, newton, solve_scaled
from .loop import choose_all, so_far

__all__ = ["polish", "solve_pooled"]

# Most rounds of "Newton, then choose again".
MAX_POLISH = 100
# Squared Newton decrement of a minimiser that is published: working precision.
EXACT = 1e-16
# Runs of Newton's method, where clients were silent in the one before.
RUNS = 3
# Squared Newton decrement of a minimiser that is only compared with others.
ROUGH = 1e-6
# Share of clients that still choose anew in fits that are only compared with others.
FEW = 0.01
# Relative residuals of directions from products, at most and at least.
MAX_RESIDUAL, MIN_RESIDUAL = 0.1, 1e-8
# Squared decrement that the last of such steps leaves, relative to the one that ends the search.
LAST_DIGITS = 1e-8
# Most products for a direction.
MAX_PRODUCTS = 200
# Curvature below which a parameter stays where it is.
TINY = 1e-250


def solve_pooled(pool, labels, theta, weights=None, max_iter=100, record=None, tol=EXACT):
    """Minimise the pooled objective of every cluster.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    labels : ndarray of shape (n_clients,)
        Cluster of each client, in 0..K-1.
    theta : ndarray of shape (K, n_params)
        Starts; the model of a cluster without clients, or without rows, is returned unchanged.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.
    max_iter : int
        Most Newton steps.
    record : callable, default=None
        Called after every Newton step with the mean objective before it and the relative
        size of the step.
    tol : float
        Squared Newton decrement, relative to the objective, at which models are near enough.

    Returns
    -------
    theta : ndarray of shape (K, n_params)
        Minimisers.
    converged : bool
        True if all clusters reached working precision.
    decrement : float
        Largest squared Newton decrement of a cluster, relative to its objective.
    objective : float
        Mean of the clients' objectives, weighted.
    """
    weights = pool.client_weights if weights is None else weights
    if pool.without_rows.any():
        keep = np.flatnonzero(~pool.without_rows)
        pool, labels, weights = pool.subset(keep), labels[keep], weights[keep]
    used = np.unique(labels)
    place = np.full(len(theta), -1)
    place[used] = np.arange(len(used))
    oracle = _PooledOracle(pool, place[labels], len(used), weights, record, tol)
    # Sums of fewer clients have another minimum, and no later step would mend that.
    with needing_all(pool):
        start, scale = oracle.begin(pool.model.centre(np.asarray(theta, dtype=float)[used]))
        solved = oracle.solve_single(start)
        for left in reversed(range(RUNS)):
            x, decrement, converged = newton(oracle, start, scale, max_iter=max_iter, tol=tol)
            if not (left and oracle.is_heard_again()):
                break
            start = x
        x = oracle.with_half_rows(x)
        objective = float(oracle.mass @ oracle.at(x)[0])
    out = np.array(theta, dtype=float)
    out[used] = pool.model.centre(x)
    return out, bool(solved and converged.all()), float((decrement / scale).max()), objective


def polish(pool, state, everyone, rule, record, judge=None, tol=EXACT):
    """Newton on every cluster's pooled problem, choose again, until the partition repeats.

    Parameters
    ----------
    pool : ClientPool
        The federation: the final models are fitted to its rows.
    state : State
        State after the last round; its models and labels are changed in place.
    everyone : Participants
        All clients, with the rows they have not held out.
    rule : ChoiceRule
        Rule by which clients choose again.
    record : RoundRecord
        The history.
    judge : Suspects, default=None
        Who is false under a robust aggregation: they are left out, and found anew with the models
        that are polished without them.
    tol : float
        As of :func:`solve_pooled`; from `ROUGH` on a few clients may still choose anew at the end.

    Returns
    -------
    shortfall : str
        The criterion that was not met, or None.
    """
    train, weights, n = everyone.pool, everyone.weights, pool.n_clients
    state.theta = state.theta.astype(float)
    mine = []
    counted = weights
    few = 0 if tol < ROUGH else int(FEW * n)
    with loop("polishing step", MAX_POLISH, "polishing") as steps:
        for _ in steps:
            if judge is not None:
                counted = np.where(judge(train, state), 0.0, weights)
            labels, n_clusters = state.labels, np.unique(state.labels).size
            state.theta, solved, decrement, objective = solve_pooled(
                train,
                labels,
                state.theta,
                counted,
                record=lambda value, change, k=n_clusters: record.add(state, value, change, k, n),
                tol=tol,
            )
            mine.append((objective, labels, state.theta))
            state.labels = choose_all(rule, everyone, state)
            record.add(state, objective, 0.0, n_clusters, n)
            values = {"objective": objective, "n_clusters": n_clusters}
            steps.tell(partial(so_far, state, objective), **values)
            settled = judge is None or judge.settled(train, state)
            if np.count_nonzero(labels != state.labels) <= few and settled:
                break
            if any(np.array_equal(seen, state.labels) for _, seen, _ in mine) and settled:
                # Ties, or the penalty, which is no part of the choice, made a cycle.
                _, state.labels, state.theta = min(mine, key=lambda item: item[0])
                break
        else:
            if not steps.stopped:
                return (
                    f"The partition still changed after {MAX_POLISH} rounds of polishing. Set "
                    "polish=False, or try another random_state or n_clusters."
                )
    if train is not pool:
        # The rows held out have served: the final models are fitted to all rows.
        solution = solve_pooled(pool, state.labels, state.theta, counted, tol=tol)
        state.theta, solved, decrement, _ = solution
    if solved:
        return ""
    return (
        "Newton's method stopped short of a cluster's minimiser: relative squared "
        f"decrement {decrement:.2g}. Scale the features or raise alpha."
    )


def partition_key(labels):
    """A partition whatever its numbering: each client's first companion."""
    _, first, code = np.unique(labels, return_index=True, return_inverse=True)
    return first[code].tobytes()


class SummedHessians:
    """Hessians that clients sum by cluster, kept where they come before they are needed.

    Subclasses have the `pool`, the clusters `labels` of its clients and their weights `summed`.
    """

    #: Models and damping of the Hessians that came with a trial, and these Hessians.
    curvature = None

    def ask_hessians(self, x, damping, pool):
        """Hessians at models of the clusters; `pool` may be a lane."""
        return pool.ask(Hessians, x, self.labels, self.summed, damping)

    def hessians_at(self, x, damping):
        """Hessians at models of the clusters, asked for unless they came with the trial."""
        if self.curvature is not None:
            known, damped, H = self.curvature
            same = np.array_equal(known, x) and np.array_equal(damped, damping)
            if same or self.pool.model.quadratic:
                return H.copy()
        return self.ask_hessians(x, damping, self.pool)


class _PooledOracle(SummedHessians):
    """Mean objective of each cluster; messages go through the pool."""

    def __init__(self, pool, labels, n_clusters, weights, record, tol):
        self.pool, self.labels, self.K, self.record = pool, labels, n_clusters, record
        self.tol = tol
        total = np.bincount(labels, weights=weights, minlength=n_clusters)
        # A cluster of clients that weigh nothing has its penalty only.
        weights = np.where(total[labels] > 0, weights, 1.0)
        self.single = shows_rows(pool, labels, n_clusters, weights > 0)
        # The only client with rows has the model of its cluster.
        weights = np.where(self.single[labels] & (pool.client_sizes == 0), 0.0, weights)
        total = np.bincount(labels, weights=weights, minlength=n_clusters)
        self.share = weights / total[labels]
        self.mass = total / total.sum()
        self.totals = np.bincount(labels, pool.client_weights * (weights > 0), n_clusters)
        self.cached = None
        #: Clients that gave no answer to some question, (n_clients,) of bool.
        self.unheard = np.zeros(len(labels), dtype=bool)
        dense, model = pool.n_params <= MAX_DENSE, pool.model
        #: Parabolas have one curvature; others' is not asked for where a model may have diverged.
        self.parabolas = dense and model.quadratic
        self.curves = dense and model.bounded_curvature and not model.quadratic
        self.summed = np.where(self.single[labels], 0.0, self.share)

    def begin(self, theta):
        """The better of models and the common start, and the sizes of objectives at the latter."""
        common = self.common = np.zeros_like(theta) + self.pool.model.origin
        questions = [partial(self._evaluate, common), partial(self._evaluate, theta)]
        damping = np.full(self.K, MIN_DAMPING)
        if self.parabolas or self.curves:
            curved = common if self.parabolas else theta
            questions.append(partial(self.ask_hessians, curved, damping))
        at_common, at_theta, *H = asked_at_once(*((self.pool, ask) for ask in questions))
        self.absent = self.pool.model.absent_classes(at_common[1])
        # A model that diverged is a worse start than the common one.
        worse = ~(at_theta[0] <= at_common[0])[:, None]
        start = np.where(worse, common, theta)
        self.cached = (
            start.copy(),
            *(
                np.where(worse.reshape(self.K, *[1] * (there.ndim - 1)), here, there)
                for here, there in zip(at_common, at_theta, strict=True)
            ),
        )
        if H and (self.parabolas or not worse.any()):
            self.curvature = start, damping, H[0]
        self.scale = np.maximum(np.abs(at_common[0]), 1e-30)
        self.size_before = np.zeros(self.K)
        return start, self.scale

    def solve_single(self, theta):
        """Let clients solve in place if their Hessians would show rows; True if they converged."""
        who = np.flatnonzero(self.single[self.labels] & (self.share > 0))
        if not len(who):
            return True
        theta[self.labels[who]], converged = self.pool.subset(who).ask(Solve)
        return converged.all()

    def with_half_rows(self, x):
        """Minimisers, where they do not exist with half a row of each class that is absent."""
        if self.absent is None or not self.absent.any():
            return x
        model = self.pool.model

        def gradient_at(x):
            return self._evaluate(x, self.pool)[1]

        return model.with_half_rows(model.centre(x), self.absent, self.totals, gradient_at)

    def at(self, x):
        """Values and gradients."""
        if self.cached is None or not np.array_equal(self.cached[0], x):
            self.cached = x.copy(), *self._evaluate(x, self.pool)
        self.x, self.value, gradient = self.cached
        return self.value, gradient

    def _evaluate(self, x, pool):
        # Clients of single-client clusters are at the minimum.
        about = x, self.labels, self.summed, np.float64
        value, gradient = pool.ask(GradientSums, *about)
        if pool.answered is not None:
            self.unheard |= ~pool.answered
        with np.errstate(invalid="ignore"):
            value = np.bincount(self.labels, weights=self.share * value, minlength=self.K)
        return value, gradient

    def is_heard_again(self):
        """Whether a client that some sums lack is back: then there are other sums to ask for."""
        lacked, self.unheard = self.unheard, np.zeros_like(self.unheard)
        if not lacked.any():
            return False
        self.pool.ask(Present)
        self.cached = self.curvature = None
        heard = self.pool.answered is None or bool((lacked & self.pool.answered).any())
        if heard and self.absent is not None:
            self.absent = self.pool.model.absent_classes(self._evaluate(self.common, self.pool)[1])
        return heard

    def direction(self, g, damping):
        """Newton directions."""
        pool = self.pool
        if pool.n_params <= MAX_DENSE:
            step = -solve_scaled(pool.model.pin(self.hessians_at(self.x, damping)), g)
        else:
            step = -self._solve_by_products(g, damping)
        # After a whole step the damping falls.
        self.ahead = np.maximum(0.1 * damping, MIN_DAMPING)
        self.last_step = (np.abs(np.einsum("kp,kp->k", g, step)) <= self.tol * self.scale).all()
        if self.record is not None:
            length = np.linalg.norm(step, axis=1) / np.maximum(
                np.linalg.norm(self.x, axis=1), 1e-12
            )
            self.record(float(self.mass @ self.value), float(length.max()))
        return step

    def _solve_by_products(self, g, damping):
        """Solutions by conjugate gradients, in units of the curvature along each parameter."""
        pool, about = self.pool, (self.labels, self.summed, damping)
        # What outputs have in common changes no loss: a slope there is rounding.
        centre = pool.model.centre
        curvature = pool.ask(HessianDiagonals, self.x, *about)
        root = 1.0 / np.sqrt(np.where(curvature > TINY, curvature, np.inf))

        def product(u):
            u = centre(root * u)
            return root * centre(pool.ask(HessianProducts, self.x, u, *about))

        g = root * centre(g)
        size = np.einsum("kp,kp->k", g, g)
        # A parabola promises what it says, other losses no more than the gradient fell before
        # (Eisenstat and Walker).
        before, self.size_before = self.size_before, size
        fallen = np.divide(size, before, out=np.ones_like(size), where=before > 0)
        fallen *= not pool.model.quadratic
        least = np.sqrt(quotient(LAST_DIGITS * self.tol * self.scale, size))
        tol = np.clip(np.maximum(fallen, least), MIN_RESIDUAL, MAX_RESIDUAL)
        x = conjugate_gradients(product, np.ones_like(g), g, MAX_PRODUCTS, tol)
        return centre(root * x)

    def along(self, step, t):
        """Values at ``x + t * step``, kept for the next iteration."""
        x = self.x + np.where(t[:, None] > 0, t[:, None] * step, 0.0)
        questions = [partial(self._evaluate, x)]
        whole = ((t == 1.0) | (t == 0.0)).all() and not self.last_step
        if whole and self.curves:
            questions.append(partial(self.ask_hessians, x, self.ahead))
        values, *H = asked_at_once(*((self.pool, ask) for ask in questions))
        self.cached = x, *values
        if H:
            self.curvature = x, self.ahead, H[0]
        return self.cached[1]

    def arrive(self, x, value):
        """Take the values for those at models after the last step."""
        self.cached = x.copy(), value, np.zeros_like(x)

    def slopes(self, step):
        """Slopes along a step at the last trial."""
        return np.einsum("kp,kp->k", self.cached[2], step)
