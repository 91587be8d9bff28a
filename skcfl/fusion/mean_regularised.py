r"""Squared penalty on the complete graph: clients are drawn to their mean.

    minimise  sum_i f_i(x_i) + lam w / 2 sum_{i<j} |x_i - x_j|^2

With ``c = lam w N`` the penalty is ``c / 2 sum_i |x_i - m|^2`` at its best m, the mean: mean
regularised multi-task learning (Evgeniou and Pontil, 2004).  What is left is one smooth problem
in m,

    minimise over m  F(m) = sum_i min_x [ f_i(x) + c / 2 |x - m|^2 ],
                     grad F = c sum_i (m - x_i(m)),

solved by L-BFGS: every evaluation sends m to the clients, which answer with their proximal points
and their objectives.  The Hessian of F is at most ``c N``, so that ``|grad F|^2 / (2 c N)``
estimates the possible gain, and when to check the gap.  No array has one entry a pair. For
outflows s of sum zero the best edge dual is ``u_ij = (s_i - s_j) / N``, which gives the bound

    D(s) = -sum_i f_i^*(-s_i) - sum_i |s_i|^2 / (2 c).
"""

from functools import partial

import numpy as np
from scipy.optimize import minimize

from ..calls.curvatures import Prox
from ..calls.proofs_asked import Conjugate
from ..penalties import SquaredL2
from .certified import HOPELESS, IDLE, CertifiedLoop
from .expansions import can_expand, questions
from .solvers import solver

__all__ = ["mean_regularised"]

# Evaluations between two looks at the duality gap, at most and at first.
CHUNK = 15
# Part of the gap allowed that one gradient step may gain at most at the first look, and factor of
# its root from look to look, down to where L-BFGS goes on as long as it can.
GAIN, FINER, FINEST = 1e-3, 0.1, 1e-5
# Evaluations between two looks in which an objective that does not fall is as good as it gets.
MOVES = 5
# Most solutions of expansions, and the share of the last gap above which they are left.
MAX_EXPANSIONS, FALL = 10, 0.5


def is_mean_regularised(problem):
    """True if all pairs of a fusion problem have the same plain squared penalty."""
    penalty = problem.penalty
    plain = isinstance(penalty, SquaredL2) and penalty.Q is None
    return plain and problem.graph.is_complete and problem.n > 1


@solver(extra={"certify": ["boolean"], "expand": ["boolean"]})
def mean_regularised(
    problem, lam, *, tol=1e-6, max_iter=2000, state=None, certify=True, expand=False
):
    """Solve a fusion problem with a squared penalty on the complete graph.

    Parameters
    ----------
    problem : FusionProblem
        The problem.
    lam : float
        Positive weight of the penalty.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most evaluations of F; in each of them every client solves a proximal problem.
    state : tuple of ndarray, default=None
        The mean and the models of an earlier solution, to start from.
    certify : bool
        If True, go on for a small gap where the objective no longer falls by what `tol` allows.
    expand : bool
        If True, expansions of the objectives are solved first, if these may be asked for
        (``skcfl.fusion.expansions``).

    Returns
    -------
    result : Result
        ``extra`` has ``dual_gap``, ``dual_coef`` (the clients' net outflows) and
        ``partition_optimal``.
    state : tuple of ndarray
        To go on from.
    """
    loop = _MeanRegularised(problem, lam, tol, max_iter, state)
    loop.certify, loop.expands = certify, expand and can_expand(problem.pool)
    result = loop.run()
    return result, (loop.mean, loop.x)


class _MeanRegularised(CertifiedLoop):
    unit = "evaluation"
    # True if expansions are solved first.
    expands = False

    def __init__(self, problem, lam, tol, max_iter, state):
        super().__init__(problem, lam, tol, max_iter, contraction=False)
        self.pool = problem.pool
        self.c = lam * problem.graph.weight * problem.n
        self.rows = ~self.pool.without_rows
        if state is None:
            self.x = problem.local_models().copy()
            self.mean = self.x[self.rows].mean(axis=0)
        else:
            self.mean, self.x = state[0].copy(), state[1].copy()
        self.n_evaluations, self.last = 0, None
        self.best = {"primal": np.inf, "dual": -np.inf, "rounding": 0.0}
        self.best |= {"labels": None, "certified": False}

    def _iterate(self):
        """Solutions of expansions, or chunks of L-BFGS, until the gap is small enough."""
        if not (self.expands and self._expanded()):
            self._evaluate()
        return self._result(self.n_evaluations)

    def _limit(self):
        return self.problem.tolerance(self.best["primal"], self.tol)

    def _expanded(self):
        """True if solutions of expansions lead to a gap that is small enough."""
        problem, gap = self.problem, np.inf
        expansions = problem.expansions(self.x)
        for _ in range(MAX_EXPANSIONS):
            if expansions is None:
                return False
            self.x = expansions.drawn_together(self.c, self.rows)
            self.mean, self.n_evaluations = self.x[self.rows].mean(axis=0), self.n_evaluations + 1
            allowed = min(self._limit(), problem.tolerance(problem.at_start, self.tol))
            before, allowed = gap, HOPELESS * allowed
            gap, answers = self._gap(allowed, questions(self.x))
            expansions = problem.expand(self.x, answers)
            if gap <= self._limit():
                return True
            if not gap <= FALL * before:
                return False
        return False

    def _evaluate(self):
        """Chunks of L-BFGS with growing accuracy."""
        problem, memory, chunk = self.problem, 20, CHUNK
        aim, max_iter = np.sqrt(GAIN), self.max_iter
        limit = problem.tolerance(self._value(self.mean)[0], self.tol)
        while True:
            self.progress.begin()
            gtol = aim * np.sqrt(2.0 * self.c * problem.n * limit)
            budget = min(chunk, max_iter - self.n_evaluations)
            before, primal = self.n_evaluations, self.best["primal"]
            found = minimize(
                self._value,
                self.mean,
                jac=True,
                method="L-BFGS-B",
                options={"maxfun": budget, "maxcor": memory, "ftol": 0.0, "gtol": gtol},
            )
            self.mean = found.x
            gap = self._gap_at_mean(HOPELESS * limit)
            limit = self._limit()
            moves = self.n_evaluations - before
            stuck = aim == 0.0 and moves <= 2
            if not self.certify and moves >= MOVES and gap > HOPELESS * limit:
                # Duals of clients of hardly any curvature are near long after their models.
                stuck |= primal - self.best["primal"] <= IDLE * limit
            if gap <= limit or self.n_evaluations >= max_iter or stuck or self.progress.stopped:
                break
            if moves < budget:
                aim = FINER * aim if aim > FINEST else 0.0
            else:
                chunk *= 2

    def _value(self, mean):
        """F and its gradient; clients keep their proximal points as starts of the next."""
        if self.last is not None and np.array_equal(self.last[0], mean):
            return self.last[1:]
        self.n_evaluations += 1
        centre = np.tile(mean, (self.problem.n, 1))
        self.x = self.pool.ask(Prox, centre, self.c, x0=self.x)
        move = centre - self.x
        value = self.problem.objectives(self.x).sum() + 0.5 * self.c * (move**2).sum()
        self.last = mean.copy(), float(value), self.c * move.sum(axis=0)
        return self.last[1:]

    def _gap_at_mean(self, allowed):
        """The gap at the present mean."""
        centre = np.tile(self.mean, (self.problem.n, 1))
        self.x = self.pool.ask(Prox, centre, self.c, x0=self.x)
        # Best models of clients without rows, for any mean.
        self.x[~self.rows] = self.x[self.rows].mean(axis=0)
        return self._gap(allowed)[0]

    def _gap(self, allowed, also=()):
        """The gap at the present models, and the answers to further questions."""
        problem, n, x = self.problem, self.problem.n, self.x
        outflow = np.zeros_like(x)
        outflow[self.rows] = self.c * (x[self.rows] - x[self.rows].mean(axis=0))
        objectives, bounds, *answers = problem.asked_at_once(
            partial(problem.objectives, x),
            lambda pool: pool.ask(Conjugate, -outflow, x, allowed),
            *also,
        )
        primal = float(objectives.sum())
        primal += 0.5 * self.c * float(((x - x.mean(axis=0)) ** 2).sum())
        dual = -float(bounds.sum()) - float((outflow**2).sum()) / (2.0 * self.c)
        self._keep(primal, dual, x, outflow)
        k, best, gap = self.n_evaluations, self.best["primal"], self.best["gap"]
        self._record(k, best, gap, n, n)
        self.progress.tell(partial(self._result, k), k=k, objective=best, gap=gap)
        return gap, answers

    def _shortfall(self, limit):
        gap = self.best["gap"]
        if gap <= limit:
            return ""
        return (
            f"The duality gap is {gap:.2g} after {self.n_evaluations} iterations "
            f"(max_iter={self.max_iter}), more than the tolerance allows ({limit:.2g}). Increase "
            "max_iter or tol."
        )
