"""Fits of FPFC: at one lam, at the one that a search chooses, over a path."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._checks import about, real_array
from ..federation.presence import comparing
from ..penalties import CONCAVE, PENALTIES, name_of
from ..rounds.model_kinds import MINIMISED, NETWORK_STEP, TRAINED, kind_of
from ..rounds.polish import ROUGH
from ..rounds.training_options import LOCAL_STEPS, Training
from ..search.by_partitions import GridSearch
from ..search.candidates import Family
from ..search.judges import FEW_LAMS, is_large
from .expansions import can_expand
from .fpfc_problem import FPFCProblem, TrainedFPFCProblem
from .fpfc_rounds import FPFCOptions, FPFCState, fpfc
from .path import FusionPath, fusion_path
from .solvers import FPFCRounds

__all__ = ["FPFCFamily", "FPFCFits"]

# Values of lam that a search begins with: by partitions, by rows held out, by folds.
N_LAMS, N_LAMS_HELD_OUT, N_LAMS_FOLDS = 12, 8, 15
# Factor by which lam goes on where clients are still separate, and how often.
BEYOND, MAX_BEYOND = 1.5, 12
# Accuracy of the fits that are judged, and rounds that their partitions have to last.
SEARCH_TOL, SEARCH_PATIENCE = 1e-3, 10
# Most rounds at full participation.
MAX_ROUNDS = 500
# The problem that local models pose, by kind.
PROBLEMS = {MINIMISED: FPFCProblem, TRAINED: TrainedFPFCProblem}


@dataclass
class FPFCFits:
    """Fits with the parameters of :class:`~skcfl.FPFC`, which documents them."""

    penalty: Any = "scad"
    init: Any = "auto"
    refit: bool = True
    rounds: FPFCRounds | None = None
    training: Training | None = None
    max_iter: int | str = "auto"
    tol: float = 1e-5

    # ------------------------------------------------------------------------- the problem

    def problem(self, pool):
        """The clients and the kind of penalty, checked."""
        penalty, scale = self.penalty, None
        if isinstance(penalty, str):
            penalty = {**CONCAVE, **PENALTIES}[penalty]()
        elif penalty.scale is not None:
            scale, penalty = penalty.factor, clone(penalty).set_params(scale=None)
        return PROBLEMS[kind_of(pool)](pool, penalty, scale, self._start(pool))

    def _start(self, pool):
        """Which models to start from, or the models."""
        n, p = pool.n_clients, pool.n_params
        if isinstance(self.init, str):
            return self.init
        start = real_array(self.init, "init", finite=False)
        if start.shape != (n, p) or not np.isfinite(start).all():
            raise ValueError(
                f"init must have shape ({n}, {p}), a finite model for each client, got shape "
                f"{start.shape}."
            )
        return pool.units.from_user(start)

    def options(self, problem):
        """Options of the rounds, none automatic but what depends on the problem."""
        rounds, training = self.rounds or FPFCRounds(), self.training or Training()
        exact = isinstance(training.local_steps, str) and training.local_steps == "exact"
        if exact and not problem.exact:
            raise ValueError(
                "training: local_steps='exact' needs a local model with exact proximal points, "
                f"got {type(problem.pool.model).__name__}. Give a number of steps."
            )
        optimizer = problem.optimizer if training.optimizer == "auto" else training.optimizer
        step_size = training.step_size
        if step_size == "auto":
            step_size = NETWORK_STEP if optimizer == "adam" else problem.step_size
        max_iter = self.max_iter
        if max_iter == "auto":
            max_iter = int(np.ceil(MAX_ROUNDS / training.participation))
        return FPFCOptions(
            local_steps=None if exact else _steps(training.local_steps, problem.n),
            step_size=step_size,
            optimizer=optimizer,
            batch_size=training.batch_size,
            participation=float(training.participation),
            rho=None if rounds.rho == "auto" else float(rounds.rho),
            nu=None if rounds.nu == "auto" else float(rounds.nu),
            max_iter=max_iter,
            tol=self.tol,
            n_iter_no_change=rounds.n_iter_no_change,
        )

    # -------------------------------------------------------------------------------- fits

    def runner(self, problem):
        """The solver, ``run(lam, state=None)``; every run draws the same participants."""
        pool = problem.pool
        seed = pool.random_state.randint(np.iinfo(np.int32).max)
        problem.rng = check_random_state(seed)
        options = self.options(problem)

        def run(lam, state=None):
            pool.reseed(seed)
            return fpfc(problem, float(lam), options, pool.random_state, state)

        return run

    def at(self, pool, lam, last=None):
        """Fit at a lam, from where the last fit ended if it was of as many clients and parameters.

        Returns
        -------
        result : Result
        state : FPFCState
        """
        problem = self.problem(pool)
        if last is not None and last.W.shape != (problem.n, problem.d):
            last = None
        result, state = self.runner(problem)(lam, last)
        return self.finish(problem, result, lam), state

    def finish(self, problem, result, lam, **published):
        """Refit the clusters if that is asked for, and keep what the fit publishes."""
        result.model = problem.pool.model
        result.extra.update(
            lam=float(lam),
            fusion_params=result.params,
            penalty_scale=problem.strength,
            refit=bool(self.refit),
            **published,
        )
        result.params = None
        if self.refit:
            theta, rng = result.cluster_params, problem.pool.random_state
            result.cluster_params = problem.refit(result.labels, theta, rng)
        return result

    # ------------------------------------------------------------------------- choice of lam

    def of_least_criterion(self, pool, search):
        """Fit at the lam with the partition of least information criterion."""
        if not self.refit:
            raise ValueError(
                "criterion='bic' judges refitted models, which is what it returns: refit must be "
                "True, got False."
            )
        problem = self.problem(pool)
        with comparing(pool):
            tried = GridSearch(problem, self.runner(problem))
            lam, result = tried.run(search.grid(problem, N_LAMS), search.lams is None)
        return self.finish(problem, result, lam, lam_search=tried.record())

    def family(self, problem, search):
        """Candidates of a search by rows held out."""
        few = FEW_LAMS if is_large(problem.pool) else N_LAMS_HELD_OUT
        lams = search.grid(problem, few if search.cv is None else N_LAMS_FOLDS)
        return FPFCFamily(self, problem, lams, search.lams is None)

    def best(self, problem, found):
        """Fit what a search has chosen to all rows.

        Returns
        -------
        result : Result
        state : FPFCState
        """
        best, pool = found.best, problem.pool
        if best.alpha is not None and best.alpha != pool.model.alpha_:
            problem = self.problem(pool.penalised(best.alpha))
        lam, run = best.lam, self.runner(problem)
        result, state = run(lam)
        if lam >= found.families[0].fused:
            lam, result, state = _fuse(problem, run, lam, result, state)
        return self.finish(problem, result, lam, **found.published()), state

    def path(self, problem, lams):
        """FusionPath over `lams`, every one from the same start, as fits at them would give it."""
        run, pool = self.runner(problem), problem.pool
        if not self.refit:
            results = [run(lam)[0] for lam in lams]
            return FusionPath.of(lams, results, [r.cluster_params[r.labels] for r in results])

        def refit(labels, theta):
            return problem.refit(labels, theta, pool.random_state)

        return fusion_path(lams, lambda lam, state: run(lam), refit)


class FPFCFamily(Family):
    """FPFC over lam.

    Parameters
    ----------
    fits : FPFCFits
        How.
    problem : FPFCProblem
        Of all rows.
    lams : ndarray
        Values to begin with.
    grows : bool
        If True, others may be tried.
    """

    def __init__(self, fits, problem, lams, grows):
        super().__init__(
            name={"penalty": name_of(fits.penalty)},
            lams=lams,
            refits=(bool(fits.refit),),
            fused=BEYOND * float(lams[-1]) if grows and lams[-1] > 0.0 else np.inf,
            grows=grows,
            refines=problem.exact,
            anew=True,
        )
        self.fits = fits
        self.seed = problem.pool.random_state.randint(np.iinfo(np.int32).max)

    def problem(self, pool):
        """The problem of a pool, its refits as accurate as a search needs."""
        problem = self.fits.problem(pool)
        problem.pooled_tol = ROUGH
        return problem

    def prepare(self, problem):
        """Ask for the start of all values of lam, and what the rounds are measured by."""
        if not problem.exact or problem.n == 1:
            return False
        problem.prepare()
        if self.fits.refit and can_expand(problem.pool):
            problem.expansions(problem.start())
        return True

    def solve(self, problem, lam, state):
        """Result at a lam, as accurate as a search needs; infinity fuses everything."""
        if np.isinf(lam):
            return problem.fused(), None
        options = self.fits.options(problem)
        wait = options.n_iter_no_change
        options = replace(
            options,
            participation=1.0,
            tol=max(options.tol, SEARCH_TOL),
            n_iter_no_change=wait and min(wait, SEARCH_PATIENCE),
            # Refits of the clients' own models ask for the same Hessians.
            expand=self.fits.refit,
        )
        return fpfc(problem, float(lam), options, check_random_state(self.seed))[0], None

    def refit(self, problem, labels, theta):
        """Each cluster's model on its pooled rows."""
        return problem.refit(labels, theta, check_random_state(self.seed))


def _fuse(problem, run, lam, result, state):
    """Rounds at a lam that ends with one cluster."""
    for _ in range(MAX_BEYOND):
        if result.labels.max() == 0:
            return lam, result, state
        lam *= BEYOND
        result, state = run(lam)
    # From equal models, which are a stationary point, where those of the clients never meet.
    W = np.tile(problem.fused().cluster_params, (problem.n, 1))
    start = FPFCState(W, None, None, None, None, None)
    return lam, *run(lam, start)


def _steps(given, n):
    """Local steps, a number or one per client."""
    if isinstance(given, str):
        return LOCAL_STEPS
    with about("local_steps"):
        steps = np.asarray(given)
    integers = steps.dtype.kind in "iu" and (steps >= 1).all()
    if not integers or steps.shape not in ((), (n,)):
        raise ValueError(
            "training: local_steps must be a number of steps, or an array with one, at least 1, "
            f"for each of the {n} clients, got {given!r}."
        )
    return int(steps) if steps.ndim == 0 else steps
