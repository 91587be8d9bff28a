"""Shared parts of the solvers of fusion problems: checks, exact partitions, history, result.

At a check a solver hands over primal points and a feasible dual.  The best of both are kept,
so that the duality gap never grows; from zeros that persist the exact partition is tried
(:func:`skcfl.fusion.reduced.contract`), and its dual closes the gap.

A gap includes the rounding of its arithmetic: of the objective, the conjugates and the sums of the
dual.  An exact partition closes it if a flow is found; it is proved only if that holds for all
values that rounding allows.
"""

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from .._progress import Stage, loop
from ..calls.proofs_asked import Conjugate, Rounding
from ..federation.result import Result
from ..numerics.by_cluster import components_of, mean_by_cluster
from ..rounds.record import History
from .reduced import contract, contract_apart
from .reduced_newton import MAX_UNKNOWNS

# Iterations of the first check, and from one check to the next (five times that after SETTLED).
FIRST_CHECK, CHECK_EVERY, SETTLED = 5, 10, 200
# Iterations after which partitions that change are tried too, and splits of their clusters.
PATIENCE, MAX_SPLITS = 25, 10
# Splits of the partition of the solution started from, for a rough solution.
FEW_SPLITS = 2
# Relative gap from which on a solution is a rough one, and how many times more patient it is:
# its iterations cost less than partitions that have yet to settle.
ROUGH, CALM = 1e-4, 4
# Unknowns up to which a rough solution begins with the partition of the one before.
SIMPLE = 200
# Tolerances that a client's part of the gap may be to be looked at more closely.
HOPELESS = 10.0
# Tolerances that the gap has to be above for partitions to be tried late: iterations will not
# suffice then.
FAR = 1e3
# Checks in which the objective of a rough solution that is as good as it gets does not fall by
# more than that part of the tolerance.
STILL, IDLE = 3, 0.1
# Share of the tolerance from which on rounding is looked at more closely.
FINE = 0.1
# Budget of one attempt for reduced problems.
EFFORT = 100.0
# Steps of a patient search for flows, and numbers of edges they may go through.
PATIENT_STEPS, PATIENT_WORK = 1000, 2e7
# Parameters of all clients up to which models that are all unlike are made exact.
MAX_LAST = 600
# Unknowns up to which a partition mostly of single clients is tried in any case.
FEW = 100
# What the history of a solver has of each check.
COLUMNS = ("round", "objective", "gap", "n_clusters", "participants")


@dataclass
class EdgeSums:
    """Sums of one pass over the edges.

    Attributes
    ----------
    outflow : ndarray of shape (n, d) or None
        What the next models of the nodes need.
    divergence : ndarray of shape (n, d) or None
        Net outflows of feasible edge duals.
    conjugate : float
        Conjugate of the penalty at these duals, zero for norms.
    zeros : list of tuple of ndarray
        Pairs with a difference of exactly zero.
    primal2, dual2 : float
        Squares by which the step sizes of a solver are balanced.
    """

    outflow: np.ndarray | None = None
    divergence: np.ndarray | None = None
    conjugate: float = 0.0
    zeros: list = field(default_factory=list)
    primal2: float = 0.0
    dual2: float = 0.0


class CertifiedLoop:
    """Base of the solvers.

    They have ``state.W``, `_iterate`, which returns the result, and `_edge_duals`, feasible duals
    of the present iterate, block by block.
    """

    certify = False
    # True if partitions mostly of single clients are left at that where the gap is small enough.
    thrifty = False
    # Iteration from which on partitions are tried; if not 0, then where the gap is far too large.
    contract_from = 0
    # The stage of the fit that the iterations are, and what they are called.
    progress = Stage()
    unit = "iteration"

    def __init__(self, problem, lam, tol, max_iter, contraction):
        self.problem, self.lam, self.tol, self.max_iter = problem, float(lam), tol, max_iter
        self.contraction = contraction and problem.penalty.fuses
        # Norms make models equal, also in partitions that cannot be proved.
        self.watches = problem.penalty.norm
        self.history, self.extras = History(problem.pool.ledger, *COLUMNS), {}
        self.best = None
        self.labels = None
        self.wait, self.spacing = 0, 1
        self.apart_at = FIRST_CHECK + 1
        # Partitions refuted, too hard, or tried twice: another try would tell the same.
        self.refuted, self.undecided = set(), set()

    def run(self):
        """Iterate until the gap is small enough."""
        with loop(self.unit, self.max_iter) as self.progress:
            return self._iterate()

    def _also(self):
        """Further questions of a check."""
        return ()

    def _learn(self, answers):
        """Take the answers to these."""

    def _last_answers(self):
        """The models that the clients have answered with last."""
        return self.state.W

    # -------------------------------------------------------------------------- checks

    def _check(self, k, candidates, edges, participants):
        """Gap of the present iterate, exact partition if it can be had; whether to stop."""
        problem, lam = self.problem, self.lam
        divergence, conjugate, left = edges.divergence, edges.conjugate, 0.0
        if problem.passive:
            divergence, conjugate, left = problem.conserved(self._edge_duals(), lam)
        # With one client so far off the gap is too large, whatever the others say.
        before = np.inf if self.best is None else self.best["primal"]
        allowed = HOPELESS * problem.tolerance(min(before, problem.at_start), self.tol)
        last = self._last_answers()
        bounds, rounding, *objectives = problem.asked_at_once(
            lambda pool: pool.ask(Conjugate, -divergence, last, allowed),
            lambda pool: pool.ask(
                Rounding, candidates[0]
            ),  # which is nearly always the better one
            *(partial(problem.objectives, c) for c in candidates),
            *self._also(),
        )
        self._learn(objectives[len(candidates) :])
        dual = -float(bounds.sum()) - conjugate
        values = [problem.primal(c, lam, f) for c, f in zip(candidates, objectives, strict=False)]
        which = int(np.argmin(values))
        primal, X = values[which], candidates[which]
        # Edges seldom reach their capacity: flows at capacity are counted if it matters.
        crossing = lambda: problem.crossing(self._edge_duals())  # noqa: E731
        enough = FINE * problem.tolerance(primal, self.tol)
        of_clients = None if which else rounding
        rounding = problem.rounding(X, lam, crossing, enough=enough, of_clients=of_clients)
        rounding += float(np.sum(left * np.linalg.norm(X, axis=1)))
        self._keep(primal, dual, X, divergence, rounding=rounding)
        n_clusters = problem.n
        if self.watches:
            labels = _components(edges.zeros, problem.n)
            n_clusters = int(labels.max()) + 1
            if self.contraction and self._may_contract(k):
                self._contract(k, labels, candidates[0], self._reached())
            else:
                self.labels = labels
        best = self.best
        self._record(k, best["primal"], best["gap"], n_clusters, participants)
        values = {"objective": best["primal"], "gap": best["gap"], "n_clusters": n_clusters}
        stop = self.progress.tell(partial(self._result, k), k=k, **values)
        return self._reached() or stop or self._stagnates(k)

    def _may_contract(self, k):
        """True if partitions are tried; if late only, then where the gap is far too large.

        Elsewhere a few iterations more cost less than proofs of partitions of a rough solution.
        """
        if not self.contract_from:
            return True
        limit = self.problem.tolerance(self.best["primal"], self.tol)
        return k >= self.contract_from and self.best["gap"] > FAR * limit

    def _stagnates(self, k):
        """True if a rough solution is as good as it gets, though its gap is far too large.

        Duals of clients with less curvature than rounding leaves of their forces never are.
        """
        if not (self.thrifty and self.tol >= ROUGH and k >= SETTLED // 4):
            return False
        best, objectives = self.best, self.history["objective"]
        limit = self.problem.tolerance(best["primal"], self.tol)
        fall = objectives[-1 - STILL] - objectives[-1]
        return best["gap"] > HOPELESS * limit and fall <= IDLE * limit

    def _reached(self):
        """True if the gap is small enough."""
        best = self.best
        return best["gap"] <= self.problem.tolerance(best["primal"], self.tol) < np.inf

    def _nearly_there(self):
        """True if the gap will do at the next check, if it falls as it did since the last."""
        best, gaps = self.best, self.history["gap"]
        if not gaps or not np.isfinite(gaps[-1]):
            return False
        forecast = best["gap"] * (best["gap"] / max(gaps[-1], 1e-300))
        return forecast <= self.problem.tolerance(best["primal"], self.tol)

    def _keep(self, primal, dual, W, divergence, rounding=0.0, labels=None, certified=False):
        """Remember the best primal point and the best dual bound; `labels` of exact partitions."""
        best = self.best
        if best is None:
            # Until an objective is finite: a false client is rejected after some checks.
            best = self.best = {"primal": np.inf, "dual": -np.inf, "rounding": 0.0, "W": W}
            best.update(labels=None, certified=False)
        # An exact solution is left only for another.
        exact = labels is not None
        if exact or (primal < best["primal"] and best["labels"] is None):
            best.update(primal=primal, rounding=rounding, W=np.array(W))
            best.update(labels=labels, certified=certified)
        if dual > best["dual"] or "divergence" not in best:
            best.update(dual=dual, divergence=divergence)
        best["gap"] = max(best["primal"] - best["dual"] + best["rounding"], 0.0)

    def _contract(self, k, labels, X, last):
        """Try the partition seen, at growing intervals while it fails.

        At first only a partition that was there at the last check too; later, where the
        iteration is slow, any, and clusters that are refuted are split.  At the last check
        one that is cheap to try.
        """
        problem, K = self.problem, int(labels.max()) + 1
        settled = self.labels is not None and np.array_equal(labels, self.labels)
        self.labels = labels
        if self.best["labels"] is None and self._try_apart(k, X):
            return
        if last:
            worth = K < problem.n or K * problem.d <= MAX_LAST
            if self.thrifty:
                worth = K * problem.d <= (MAX_LAST if 2 * K <= problem.n else FEW)
            if worth and self.best["labels"] is None:
                proved = self._try_partition(labels, X, MAX_SPLITS)
                if self.certify and not proved:
                    self._try_patiently(labels, X)
            return
        self.wait -= 1
        patience = PATIENCE if self.tol < ROUGH else CALM * PATIENCE
        slow = k >= patience and K * problem.d <= MAX_UNKNOWNS
        if self.wait > 0 or not (settled and K < problem.n or slow) or self._nearly_there():
            return
        if not self._try_partition(labels, X, MAX_SPLITS if slow else 0):
            self.wait = self.spacing = min(2 * self.spacing, 16)

    def _try_apart(self, k, X):
        """True if all models are unlike and proved to be, where that is found out in no time."""
        problem = self.problem
        if k < self.apart_at or problem.n * problem.d > MAX_LAST:
            return False
        outcome = contract_apart(problem, self.lam, X)
        if outcome is not None and outcome.carried:
            self._keep_contraction(outcome)
            return True
        self.apart_at = 4 * k
        return False

    def _is_solved_by(self, labels, X):
        """True if a known partition, with models near X, leads to a solution at once."""
        if labels is None or not self.contraction:
            return False
        rough = self.tol >= ROUGH
        if rough and (int(labels.max()) + 1) * self.problem.d > SIMPLE:
            return False
        splits = FEW_SPLITS if rough else MAX_SPLITS
        if not self._try_partition(labels, X, splits) or not self._reached():
            return False
        best = self.best
        self._record(0, best["primal"], best["gap"], int(best["labels"].max()) + 1, 0)
        return True

    def _try_partition(self, labels, X, max_splits):
        """Whether the partition, or one that it leads to, is a solution's; then it is kept."""
        problem, key = self.problem, (labels.tobytes(), max_splits > 0)
        if key in self.refuted:
            return False
        outcome = contract(problem, self.lam, labels, X, self._edge_duals, max_splits, EFFORT)
        if outcome is None or not outcome.carried:
            if outcome is None or outcome.refuted or key in self.undecided:
                self.refuted.add(key)
            self.undecided.add(key)
            return False
        self._keep_contraction(outcome)
        return True

    def _try_patiently(self, labels, X):
        """Try a partition once more, with more steps of the search for flows."""
        problem = self.problem
        steps = min(int(PATIENT_WORK / max(problem.graph.n_edges * problem.d, 1)), PATIENT_STEPS)
        duals = self._edge_duals
        outcome = contract(problem, self.lam, labels, X, duals, MAX_SPLITS, EFFORT, steps)
        if outcome is not None and outcome.carried:
            self._keep_contraction(outcome)

    def _keep_contraction(self, outcome):
        """Remember an exact partition's models and its dual."""
        problem, lam, W = self.problem, self.lam, outcome.theta[outcome.labels]
        bounds, rounding, objectives = problem.asked_at_once(
            lambda pool: pool.ask(Conjugate, -outcome.divergence, x0=W),
            lambda pool: pool.ask(Rounding, W),
            partial(problem.objectives, W),
        )
        rounding = problem.rounding(W, lam, outcome.crossing, of_clients=rounding)
        known = outcome.labels, outcome.certified
        primal, dual = problem.primal(W, lam, objectives), -float(bounds.sum())
        self._keep(primal, dual, W, outcome.divergence, rounding, *known)

    def _record(self, k, objective, gap, n_clusters, participants):
        self.history.add(
            round=k, objective=objective, gap=gap, n_clusters=n_clusters, participants=participants
        )

    # -------------------------------------------------------------------------- result

    def _result(self, n_iter):
        best, problem = self.best, self.problem
        limit = problem.tolerance(best["primal"], self.tol)
        labels, W, exact = best["labels"], best["W"], best["labels"] is not None
        if not exact:
            labels = self.labels if self.watches else np.arange(problem.n)
        if exact:
            theta = W[np.unique(labels, return_index=True)[1]]
        else:
            theta = mean_by_cluster(W, labels)
        return Result(
            cluster_params=theta,
            labels=labels,
            params=W,
            objective=best["primal"],
            n_iter=n_iter,
            history=self.history.arrays() | {k: np.array(v) for k, v in self.extras.items()},
            shortfall=self._shortfall(limit),
            extra={
                "dual_gap": best["gap"],
                "dual_coef": best["divergence"],
                "partition_optimal": best["certified"],
            },
        )

    def _shortfall(self, limit):
        """What the end fell short by, if the tolerance allows up to `limit`; empty if nothing."""
        return shortfall(self.best["gap"], limit, self.tol, self.max_iter)


def shortfall(gap, limit, tol, max_iter):
    """What to say of a gap that is too large; empty if it is not."""
    if gap <= limit:
        return ""
    return (
        f"The duality gap is {gap:.2g} after max_iter={max_iter} iterations, "
        f"more than tol={tol:g} allows ({limit:.2g}). Increase max_iter or tol."
    )


def _components(zeros, n):
    """Components of the pairs with a difference of exactly zero, numbered from 0."""
    heads = np.concatenate([pair[0] for pair in zeros])
    tails = np.concatenate([pair[1] for pair in zeros])
    return components_of(heads, tails, n)
