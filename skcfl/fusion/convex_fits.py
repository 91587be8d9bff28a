"""Fits of convex fusion: at one lam, at the one that is best, over a path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from ..federation.presence import comparing
from ..graphs import Graph
from ..numerics.newton import MAX_DENSE
from ..penalties import name_of
from ..rounds.polish import EXACT, ROUGH
from ..search.by_partitions import PathSearch
from ..search.candidates import Family
from ..search.models import SEARCH_ITERATIONS, SEARCH_TOL
from .admm import admm
from .path import fusion_path

__all__ = ["ConvexFamily", "ConvexFits", "PointFits"]

# Parameters of all clients from which a search makes partitions on sparse graphs exact.
LARGE_PROBLEM = 5000
# Iterations after which it does so on any with a gap that is still far too large.
SLOW = 60
# Iterations for a lam in a search of partitions: of ADMM, and of the others.
ITERATIONS = 300, 600
# How far beyond the bound everything is fused.
BEYOND = 1.01


class Key(NamedTuple):
    """Problem of a state."""

    solve: Callable
    groups: np.ndarray | None
    d: int
    graph: Graph


class ConvexFits:
    """Fits by one solver.

    Parameters
    ----------
    solver : str or Solver
        Name or object; "auto" is the fastest for a problem.
    tol : float
        Relative duality gap to reach.
    max_iter : int
        Most iterations.
    """

    def __init__(self, solver, tol, max_iter):
        self.solver, self.tol, self.max_iter = solver, tol, max_iter

    def run(self, problem):
        """The solver with all its options, to be called with the problem and lam."""
        solve = problem.solver(self.solver)
        options = {} if isinstance(self.solver, str) else self.solver.get_params()
        extra = {"certify": True, "rng": problem.pool.random_state}
        given = {name: value for name, value in extra.items() if name in solve.extra}
        given.update(tol=self.tol, max_iter=self.max_iter)
        return partial(solve, **given, **options)

    def searcher(self, problem):
        """The fastest solver, which goes along a path, and its iterations for a lam."""
        solve = problem.solver()
        iterations = ITERATIONS[solve is not admm]
        return partial(solve, tol=self.tol), min(iterations, self.max_iter)

    def at(self, problem, lam, groups=None, last=None):
        """Fit at a lam, from the last solution if it was of the same problem.

        Parameters
        ----------
        problem : FusionProblem
            The problem.
        lam : float
            Weight of the penalty.
        groups : ndarray, default=None
            Ids of the clients.
        last : object, default=None
            State that the last fit returned.

        Returns
        -------
        result : Result
        last : object
            For the next fit.
        """
        run = self.run(problem)
        key = Key(run.func, groups, problem.d, problem.graph)
        if lam == 0.0 or problem.n == 1:
            # Nothing to compare: with one client any lam gives it its own model.
            result = problem.own_models(run)
        else:
            result, state = run(problem, lam, state=_state(last, key))
            last = key, state
        result.extra["lam"] = float(lam)
        return result, last

    def of_least_criterion(self, problem, lams=None):
        """Fit at the lam with the partition of least information criterion.

        Parameters
        ----------
        problem : FusionProblem
            The problem.
        lams : ndarray, default=None
            Values to try; None takes steps along a path by what it finds.

        Returns
        -------
        criterion : float
        result : Result
        """
        if not problem.exact:
            raise ValueError(
                "criterion='bic' needs a convex problem, and the problem of "
                f"{type(problem.pool.model).__name__} is not convex. Use criterion='held_out', "
                "for which a client needs two rows, or give lam a number."
            )
        if not problem.penalty.norm:
            raise ValueError(
                "criterion='bic' compares the clusters that different lam give, but the penalty "
                f"{problem.penalty!r} forms none."
            )
        solve, max_iter = self.searcher(problem)
        with comparing(problem.clients):
            search = PathSearch(problem, partial(solve, problem), max_iter)
            lam, result, state = search.run(lams)
        run = self.run(problem)
        if lam == 0.0:
            result = problem.own_models(run)
        elif solve.func is not run.func:
            result, state = run(problem, lam)  # a state means nothing to another solver
        elif not (result.converged and result.extra["partition_optimal"]):
            result, state = run(problem, lam, state=state)
        result.extra.update(lam=float(lam), lam_search=search.record())
        return search.criteria[search.best], result

    def roughly(self, problem, lam, state, expand=False):
        """Result and state at a lam, as accurate as a search needs; infinity fuses everything.

        With `expand` clients may be asked for expansions of their objectives.
        """
        run = self.run(problem)
        if lam == 0.0:
            return problem.own_models(run), None
        if np.isinf(lam):
            return problem.fused(), None
        if not problem.exact:
            # Models that are trained are judged as they are fitted, and start anew.
            return run(problem, lam)[0], None
        rough = {
            "tol": max(self.tol, SEARCH_TOL),
            "max_iter": min(self.max_iter, SEARCH_ITERATIONS),
        }
        # Partitions need no proof before one is chosen, but where clients are many it saves
        # iterations: along a path the next is proved at once.
        if "contraction" in run.func.options:
            # Reduced problems of many parameters take more exchanges than they save.
            large = problem.n * problem.d > LARGE_PROBLEM and problem.d <= MAX_DENSE
            large = large and not problem.graph.is_complete
            if "contract_from" in run.func.extra:
                rough["contract_from"] = 0 if large else SLOW
            else:
                rough["contraction"] = large and run.keywords.get("contraction", True)
        if "certify" in run.func.extra:
            rough["certify"] = False
        if "expand" in run.func.extra:
            rough["expand"] = expand and problem.trusted is None
        return run(problem, lam, state=state, **rough)

    def path(self, problem, lams, refit=False):
        """FusionPath over ascending `lams`, as fits at them would give it."""
        run = self.run(problem)

        def solve(lam, state):
            if lam == 0.0 or problem.n == 1:
                return problem.own_models(run), None
            result, state = run(problem, lam, state=state)
            # Models that are trained start anew at each, as fits do.
            return result, state if problem.exact else None

        return fusion_path(lams, solve, problem.refit if refit else None)


class PointFits(ConvexFits):
    """Fits of points by one algorithm, a function."""

    def run(self, problem):
        """The algorithm with its options."""
        proof = {"certify": True} if self.solver is admm else {}
        return partial(self.solver, tol=self.tol, max_iter=self.max_iter, **proof)

    def searcher(self, problem):
        """The algorithm along a path, where partitions need no proof before one is chosen."""
        if self.solver is admm:
            return partial(admm, tol=self.tol), 300
        return partial(self.solver, tol=self.tol, contraction=False), 1000


class ConvexFamily(Family):
    """One graph and one penalty over lam.

    Parameters
    ----------
    fits : ConvexFits
        The solver.
    make : callable
        ``make(pool)`` returns the problem of a pool.
    on_all : FusionProblem
        The problem of all rows.
    graph, penalty : object
        As the user gives them, for their names.
    lams : ndarray
        Values to begin with.
    refits : tuple of bool
        Whether the penalised models, the refitted ones, or both compete.
    grows : bool
        If True, others may be tried.
    """

    def __init__(self, fits, make, on_all, graph, penalty, lams, refits, grows):
        fuses = on_all.exact and on_all.penalty.norm and lams[-1] > 0.0
        super().__init__(
            name={
                "graph": graph if isinstance(graph, str) else "given",
                "penalty": name_of(penalty),
            },
            lams=lams,
            refits=refits if on_all.penalty.norm else refits[:1],
            fused=float(lams[-1]) if grows and fuses else np.inf,
            grows=grows,
            refines=on_all.exact,
            anew=not on_all.exact,
        )
        self.fits, self.make, self.on_all = fits, make, on_all
        #: If True, clients may be asked for expansions of their objectives.
        self.expands = False

    def problem(self, pool):
        """The problem of a pool, its refits as accurate as a search needs."""
        problem = self.make(pool)
        problem.pooled_tol = ROUGH
        return problem

    def solve(self, problem, lam, state):
        """Result and state at a lam, as accurate as a search needs."""
        return self.fits.roughly(problem, lam, state, self.expands)

    def best(self, pool, member):
        """The problem of all rows and the lam that a search has chosen."""
        lam, problem = member.lam, self.on_all
        if member.alpha is not None and member.alpha != pool.model.alpha_:
            problem = self.make(pool.penalised(member.alpha))
            problem.pooled_tol = EXACT
            if lam >= self.fused:
                lam = max(lam, BEYOND * problem.bounds(tol=1e9, max_iter=1)[1])
        return problem, float(lam)


def _state(last, key):
    """State of the last fit if it was by the same solver, of the same clients and graph."""
    if last is None or (last[0].solve, last[0].d) != (key.solve, key.d):
        return None
    same = np.array_equal(last[0].groups, key.groups) and _same_graph(last[0].graph, key.graph)
    return last[1] if same else None


def _same_graph(a, b):
    if a is b:
        return True
    if a.is_complete or b.is_complete:
        return a.is_complete and b.is_complete and (a.n_nodes, a.weight) == (b.n_nodes, b.weight)
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("heads", "tails", "weights")
    )
