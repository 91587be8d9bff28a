"""Parts of FPFC: all pairs of clients, a kind of penalty, and the start of the rounds.

Everything here is the same for every lam, and computed once.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import clone

from ..calls.curvatures import Prox
from ..calls.first_order import LocalUpdate, ObjectivesGradients
from ..federation.result import Result
from ..graphs import complete_graph
from ..graphs.edges import require_edges
from ..penalties import L2
from ..rounds.model_kinds import NETWORK_STEP
from ..rounds.polish import ROUGH, solve_pooled
from ..rounds.record import History
from .primal_dual_inexact import rms, trained_further
from .problem import FusionProblem, pulls
from .reduced import lam_max_bounds

# Strength of the penalty in units of the clients' curvature; if clients have fewer rows than
# parameters, in units of the curvature that remains on the way from the common model.
STRENGTH, STRENGTH_FEW_ROWS = 5.0, 25.0
# Weight of the augmented term over the concavity of the penalty.  The difference of a pair in the
# concave part changes by a factor of minus 1 over this less 1 a round: at 2 it goes to and fro.
AUGMENTED = 3.0
# Local training of models without second derivatives: steps, and the rule of the steps.
TRAINING = {"steps": 300, "step_size": NETWORK_STEP, "optimizer": "adam"}
# The grid of lam: its ends in units of the least and the largest distance over a; for norms, in
# units of where all models are equal.
GRID, NORM_GRID = (0.3, 1.05), (0.01, 1.01)


COLUMNS = (
    *("round", "objective", "lagrangian", "residual", "theta_residual"),
    *("n_clusters", "participants"),
)


class FPFCProblem(FusionProblem):
    """All pairs of clients, and the kind of penalty.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    penalty : Penalty
        A concave penalty with lam set by :meth:`at`, or a convex one, of weight lam.
    strength : float or None, default=None
        Factor s of the penalty; 1 is the paper's. None is some times the curvature of the
        clients' objectives, which makes the fit independent of the units of the features.
    init : {"auto", "local", "common"} or ndarray of shape (n_clients, n_params)
        The models that every lam starts from, :meth:`start`.
    """

    #: Automatic rule of the local steps, and their length; None is by the curvature.
    optimizer = "sgd"
    step_size: float | None = None
    #: Source of the batches of refits that are trained.
    rng: np.random.RandomState | None = None

    def __init__(self, pool, penalty, strength=None, init="auto"):
        super().__init__(pool, complete_graph(pool.n_clients), penalty)
        # Differences and duals.
        require_edges(self.graph, self.d, 2)
        self.init = init
        self._common, self._curvature = None, None
        self._start = None
        self._distances = None
        self._slope = None
        if strength is None:
            # Trained models have the unit of the paper: that of standardised rows.
            unit = penalty.convex or not self.exact
            strength = 1.0 if unit else self._automatic_strength()
        self.strength = float(strength)

    def at(self, lam):
        """The penalty at a lam, and its factor."""
        if self.penalty.convex:
            return self.penalty, self.strength * lam
        return clone(self.penalty).set_params(lam=lam), self.strength

    def curvature(self):
        """Typical curvature of the clients' objectives.

        The geometric mean over the directions, unless the curvature between the common model and
        the clients' models is larger: parameters that no row depends on, as of pixels that are
        always dark, have no curvature and do not count.
        """
        if self._curvature is None:
            self._curvature = max(super().curvature(), self._secant(self.local_models()))
        return self._curvature

    def _automatic_strength(self):
        """Strength that suffices to move the models of the start.

        With fewer rows than parameters that is more than the curvature at the clients' models,
        which nearly vanishes there: the way from the common model counts.
        """
        strength = STRENGTH * self.curvature()
        if self.n == 1:
            return strength
        few = self.pool.typical_size < self.pool.model.n_free
        factor = STRENGTH_FEW_ROWS if few else STRENGTH
        return max(strength, factor * self._secant(self.start()))

    def _secant(self, W):
        """Gradients at the common model over the distances of models `W` from it."""
        common = np.tile(self.common_model(), (self.n, 1))
        way, size = rms(W - common), rms(W)
        return (
            rms(self.pool.ask(ObjectivesGradients, common)[1]) / way if way > 1e-6 * size else 0.0
        )

    def common_model(self):
        """The model of all clients' pooled rows, (d,), computed once."""
        if self._common is None:
            together = np.zeros(self.n, dtype=np.intp)
            zero = np.zeros((1, self.d))
            self._common = solve_pooled(self.pool, together, zero, tol=ROUGH)[0][0]
        return self._common

    def start(self):
        """The models that every lam starts from, computed once."""
        if self._start is None:
            if not isinstance(self.init, str):
                self._start = np.array(self.init, dtype=float)
            elif self.init == "common":
                self._start = np.tile(self.pool.start().astype(float), (self.n, 1))
            elif self.init == "auto" and self.n > 1 and self.exact:
                self._start = self.shrunken_models()
            else:
                self._start = self.local_models()
        return self._start

    def shrunken_models(self):
        """Local models drawn to the common one as if that were worth some rows more.

        With many rows the same as local models; with few, those are mostly noise.
        """
        pool, pull = self.pool, pulls(self.pool, self.curvature())
        return pool.model.centre(pool.ask(Prox, np.tile(self.common_model(), (self.n, 1)), pull))

    def distances(self):
        """Distances of the local models, (n, n), drawn together as the start may be."""
        if self._distances is None:
            models = self.local_models() if self._common_start() else self.start()
            WT = np.ascontiguousarray(models.T)
            self._distances = self.matrix(lambda k, block: block.difference(WT))
        return self._distances

    def prepare(self):
        """Ask for all that does not depend on lam."""
        self.start()
        self.curvature()
        self.curvatures()
        self.typical_slope()
        self.typical_distance()

    def _common_start(self):
        """True if the distances of the start say nothing."""
        W = self.start()
        return bool((W == W[0]).all())

    def typical_distance(self):
        """Root mean square of these distances, the unit of differences."""
        n = self.n
        return max(float(np.sqrt((self.distances() ** 2).sum() / (n * (n - 1)))), 1e-300)

    def typical_slope(self):
        """Root mean square of the clients' gradients before any training, their unit."""
        if self._slope is None:
            start = np.tile(self.pool.start(), (self.n, 1))
            g = self.pool.ask(ObjectivesGradients, start, dtype=np.float64)[1]
            self._slope = max(rms(g), 1e-300)
        return self._slope

    def matrix(self, differences):
        """Lengths (n, n) of what ``differences(k, block)`` gives for every tile."""
        out = np.empty((self.n, self.n))
        for k, block in enumerate(self.blocks):
            length = L2().value(differences(k, block))
            out[block.rows, block.columns] = length
            out[block.columns, block.rows] = length.T
        return out

    def rho(self, penalty, strength):
        """Automatic weight of the augmented term: the curvature, and the prox must be unique."""
        least = 0.0 if penalty.convex else AUGMENTED * strength * penalty.concavity
        return max(self.curvature(), least)

    def bounds(self):
        """Bounds of the lam from which equal models of all clients are a stationary point.

        Near zero a concave penalty of slope lam is the norm: the bounds are those of the norm, in
        units of the factor s / m. Such a point need not be where a fit from local models ends.
        """
        if self.n == 1:
            return 0.0, 0.0
        norm = self.penalty if self.penalty.convex else L2()
        lower, upper = lam_max_bounds(FusionProblem(self.pool, self.graph, norm))
        factor = self.n / self.strength
        return factor * lower, factor * upper

    def grid(self, n_lams, ratio=None):
        """Values of lam around the useful window, ascending; a single 0 with one client.

        A concave penalty levels off at ``a lam``, so that the window is where ``a lam`` lies
        between the distances of local models within clusters and those between clusters: the
        grid goes from .3 times the least to 1.05 times the largest.  For a norm it ends where
        all are equal.
        """
        if self.n == 1:
            return np.zeros(1)
        if not self.penalty.convex:
            d = self.distances()[np.triu_indices(self.n, 1)] / float(self.penalty.a)
            d = d[d > 1e-12 * d.max()] if d.max() > 0.0 else np.ones(1)
            lower, upper = GRID[0] * float(d.min()), GRID[1] * float(d.max())
        else:
            upper = NORM_GRID[1] * self.bounds()[1]
            if not upper > 0.0:
                return np.zeros(1)
            lower = NORM_GRID[0] * upper
        lower = lower if ratio is None else ratio * upper
        return np.array([upper]) if n_lams == 1 else np.geomspace(lower, upper, n_lams)

    def own_models(self):
        """Each client's own model, the solution at lam = 0 and of a single client, as a Result."""
        W = self.local_models()
        value, g = self.pool.ask(ObjectivesGradients, W, dtype=np.float64)
        _, first, labels = np.unique(W, axis=0, return_index=True, return_inverse=True)
        objective, residual = float(value.sum()), rms(g) / self.typical_slope()
        history = History(self.pool.ledger, *COLUMNS)
        history.add(
            round=1,
            objective=objective,
            lagrangian=objective,
            residual=residual,
            theta_residual=0.0,
            n_clusters=len(first),
            participants=self.n,
        )
        return Result(
            cluster_params=W[first],
            labels=labels,
            params=W.copy(),
            objective=objective,
            n_iter=1,
            history=history.arrays(),
            extra={"residual": residual, "nu": 0.0, "rho": np.nan},
        )


class TrainedFPFCProblem(FPFCProblem):
    """The same of local models without second derivatives, which are trained."""

    exact = asks_for_minimisers = False
    optimizer, step_size = "adam", NETWORK_STEP

    def curvature(self):
        """Not known: 1."""
        return 1.0

    def local_models(self):
        """Models after training, from one start."""
        if self._local is None:
            start = np.tile(self.pool.start(), (self.n, 1))
            self._local = self.pool.ask(LocalUpdate, start, **TRAINING).astype(float)
        return self._local

    def fused(self):
        """The mean of the local models for all clients, as a Result."""
        labels = np.zeros(self.n, dtype=np.intp)
        theta = self.local_models().mean(axis=0, keepdims=True)
        return Result(cluster_params=theta, labels=labels, params=theta[labels])

    def refit(self, labels, theta, rng=None):
        """Each cluster's model, trained further in rounds of model averaging."""
        return trained_further(self.pool, theta, labels, self.rng if rng is None else rng)
