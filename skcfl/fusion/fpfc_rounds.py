r"""FPFC: fusion of all pairs of models with a concave penalty, by inexact, sampled clients.

    minimise  F(w) = sum_i f_i(w_i) + (s / m) sum_{i<j} g(|w_i - w_j|)

(Yu et al., 2023, Algorithm 1; there ``s = 1`` and g is the smoothed SCAD).  Splitting
``theta_ij = w_i - w_j``, with the factor 1/m before the penalty, its multipliers and the augmented
term alike,

    L(w, theta, v) = sum_i f_i(w_i) + (1 / m) sum_{i<j} [ s g(|theta_ij|)
                     + <v_ij, w_i - w_j - theta_ij> + rho / 2 |w_i - w_j - theta_ij|^2 ].

One round, over the participants A_k:

    zeta_i   <- (1 / m) sum_j (w_j + theta_ij - v_ij / rho)           server, last line
    w_i      <- T_i steps on f_i(w) + rho / 2 |w - zeta_i|^2          clients, line 3
    delta_ij <- w_i - w_j + v_ij / rho                                server, line 5
    theta_ij <- argmin s g(|theta|) + rho / 2 |delta_ij - theta|^2
    v_ij     <- rho (delta_ij - theta_ij)

The sum in zeta_i includes j = i: a proximal term, with which the clients' problems together are
an upper bound of L, so that all may move at once.  Pairs with exactly one participant are
undefined in the paper; here they are updated with the server's last copy of the other model.  With
a fraction q of the clients a pair is updated in a share ``2 q - q^2`` of the rounds: at q = .1
every 5, and if both clients had to take part every 100.

===============  =====================================  ==========================
paper            here                                   parameter
===============  =====================================  ==========================
m                ``problem.n``
omega_i          ``state.W[i]``                         ``init``
theta_ij         ``state.theta``, by tiles
v_ij / rho       ``state.U``, by tiles
zeta_i           ``state.zeta[i]``
A_k              ``members``                            ``participation``
T_i              ``options.local_steps``                ``local_steps``
alpha            ``rates``                              ``step_size``
rho              ``rho``                                ``rho``
nu               ``threshold``                          ``nu``
K                ``options.max_iter``                   ``max_iter``
lambda, a, xi    the penalty's parameters               ``lam``, ``a``, ``xi``
===============  =====================================  ==========================

Convex penalties, of weight lam, fit in the same frame: the paper's baseline FPFC-l1.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from .._checks import LARGEST
from .._progress import loop
from ..calls.curvatures import Prox
from ..calls.first_order import LocalUpdate, ObjectivesGradients
from ..federation.result import Result
from ..numerics.by_cluster import mean_by_cluster, numbered
from ..rounds.record import History
from ..rounds.state import Draw
from ..rounds.stop import rounds_stable
from .expansions import can_expand
from .fpfc_problem import COLUMNS
from .primal_dual_inexact import rms

__all__ = ["FPFCOptions", "fpfc"]

# Rounds between two checks at full participation; sampled clients are checked less often, because
# a check asks all of them.
CHECK_EVERY = 5
# A settled partition ends the rounds where theta differs from the models' differences by less
# than this fraction of the distances of the local models; the other one where samples of the
# clients, or networks under Adam, never rest.
SETTLED, NOISY_SETTLED = 1e-3, 1e-2
# Least difference under a norm that counts as non-zero, as a fraction of the median difference
# at the start; and the fraction above for norms, well below it.
FLOOR, NORM_SETTLED = 1e-3, 1e-4


@dataclass
class FPFCOptions:
    """How the rounds go; the estimators' parameters.

    Attributes
    ----------
    local_steps : int, ndarray of shape (n_clients,) or None
        Local steps ``T_i``; None solves the clients' problems exactly.
    step_size : float or None
        None is ``1 / (L_i + rho)``, with safeguards.
    rho, nu : float or None
        None is automatic.
    n_iter_no_change : int or None
        Rounds with the same partition, each client having taken part about that often, after
        which the rounds end.
    """

    local_steps: object = 10
    step_size: float | None = None
    optimizer: str = "sgd"
    batch_size: int | None = None
    participation: float = 1.0
    rho: float | None = None
    nu: float | None = None
    max_iter: int = 500
    tol: float = 1e-5
    n_iter_no_change: int | None = 20
    expand: bool = False

    @property
    def expands(self):
        """Whether local steps may be taken at the server, on expansions."""
        plain = self.optimizer == "sgd" and self.batch_size is None and self.step_size is None
        number = self.local_steps is None or np.ndim(self.local_steps) == 0
        return self.expand and plain and number and self.participation == 1.0


@dataclass
class FPFCState:
    """State of the rounds."""

    W: np.ndarray
    U: list
    theta: list
    zeta: np.ndarray
    rho: float
    key: tuple


@dataclass
class _Check:
    """Values that the server knows at a check."""

    objective: float
    lagrangian: float
    residual: float
    theta_residual: float
    labels: np.ndarray = field(repr=False)
    nu: float = 0.0


def fpfc(problem, lam, options, rng, state=None):
    """Run the rounds at one lam.

    Parameters
    ----------
    problem : FPFCProblem
        The clients and the kind of penalty.
    lam : float
        The paper's lambda; at 0, and with a single client, the answer is the local models.
    options : FPFCOptions
        How to run.
    rng : RandomState
        Source of the participants.
    state : FPFCState, default=None
        State of an earlier run: its models are the start, not those of the problem, and with the
        same penalty and rho its multipliers are used too.

    Returns
    -------
    result : Result
        ``params`` are the clients' own models ``w_i``, ``cluster_params`` their means in each
        cluster, weighted by the clients' rows.
    state : FPFCState or None
        To go on from; None where no rounds were run.

    Raises
    ------
    ValueError
        If the penalty's parameters are not valid, or rho is too small for it.
    """
    if lam == 0.0 or problem.n == 1:
        return problem.own_models(), None
    loop = _Rounds(problem, lam, options, rng, state)
    loop.run()
    return loop.result(), loop.state


class _Rounds:
    """State of the server between rounds."""

    def __init__(self, problem, lam, options, rng, state):
        self.problem, self.pool, self.lam = problem, problem.pool, lam
        self.options, self.draw = options, Draw(problem.pool, options.participation, rng)
        self.penalty, self.strength = problem.at(lam)
        self.rho = problem.rho(self.penalty, self.strength) if options.rho is None else options.rho
        self._check_rho()
        self.rates = self._rates()
        self.history, self.last = History(self.pool.ledger, *COLUMNS), None
        self.settled = 0
        self.participants = 0
        self.converged = False
        self.expansions = None
        key = (repr(self.penalty), self.strength, self.rho)
        W = problem.start() if state is None else state.W
        if state is not None and state.key == key:
            U, theta = ([a.copy() for a in part] for part in (state.U, state.theta))
            self.state = FPFCState(W.copy(), U, theta, state.zeta, self.rho, key)
        else:
            # multipliers zero, and the first update of theta and v at the start
            shapes = [(problem.d, *block.shape) for block in problem.blocks]
            U = [np.zeros(shape) for shape in shapes]
            theta = [np.zeros(shape) for shape in shapes]
            self.state = FPFCState(W.copy(), U, theta, None, self.rho, key)
            self._update_pairs(slice(None))
        if options.expands and can_expand(self.pool):
            self.expansions = problem.expansions(self.state.W)

    def _check_rho(self):
        if self.penalty.convex:
            return
        least = self.strength * self.penalty.concavity
        if not self.rho > least:
            raise ValueError(
                f"rho must be larger than {least:.4g}, the concavity of {self.penalty!r} times "
                f"its factor {self.strength:.4g}: the update of a pair has no minimiser "
                f"otherwise. Got rho={self.rho!r}; rho='auto' is three times that at least."
            )

    def _rates(self):
        """Local steps of every client."""
        options = self.options
        if options.local_steps is None:
            return None
        if options.step_size is not None:
            return np.full(self.problem.n, float(options.step_size))
        return 1.0 / (self.problem.curvatures()[0] + self.rho)

    # ----------------------------------------------------------------------------- rounds

    def run(self):
        """Rounds until the models are stationary or the partition is settled."""
        options = self.options
        every = int(np.ceil(min(CHECK_EVERY / options.participation, options.max_iter)))
        next_check, last = 1, 0
        self.pool.ledger.since_mark()
        with loop("round", options.max_iter) as self.progress:
            for k in self.progress:
                members = self._train(self.draw())
                self._check_size(k)
                check = k >= next_check or k == options.max_iter
                self._update_pairs(members, check)
                if check:
                    self._record(k, k - last)
                    last, next_check = k, (0 if k == 1 else k) + every
                    if self.converged:
                        return

    def _train(self, who):
        """Line 3: local updates of all participants; the clients that answered."""
        options, state = self.options, self.state
        W, zeta = state.W[who.index], state.zeta[who.index]
        if self.expansions is not None and options.local_steps is None:
            models = self.expansions.prox(zeta, self.rho)
        elif self.expansions is not None:
            models = self.expansions.steps(W, options.local_steps, self.rates, zeta, self.rho)
        elif options.local_steps is None:
            models = who.pool.ask(Prox, zeta, self.rho, x0=W)
        else:
            steps = options.local_steps
            models = who.pool.ask(
                LocalUpdate,
                W,
                steps if np.ndim(steps) == 0 else np.asarray(steps)[who.index],
                self.rates[who.index],
                options.optimizer,
                options.batch_size,
                center=zeta,
                rho=self.rho,
                monotone=options.step_size is None
                and options.optimizer == "sgd"
                and options.batch_size is None,
                last=True,
            )
        state.W[who.index] = models
        self.participants += len(who.members)
        return who.members

    def _check_size(self, k):
        """Stop where the models diverge: nothing that follows would mean anything."""
        W = self.state.W
        if np.abs(W).max(initial=0.0) <= LARGEST[self.pool.dtype]:  # false of NaN
            return
        step = self.options.step_size
        cause = (
            "X, y or a parameter (alpha, lam, rho, scale) is too large"
            if step is None
            else f"step_size={step:g} is too long for these X, y, alpha and rho: lower it"
        )
        raise ValueError(f"FPFC diverged: models are not finite after n_iter={k} rounds. {cause}.")

    def _update_pairs(self, members, check=False):
        """Line 5 for the pairs of the participants, tile by tile, and zeta of all clients."""
        state, problem, penalty = self.state, self.problem, self.penalty
        WT = np.ascontiguousarray(state.W.T)
        outflow = np.zeros_like(WT)
        self.dual = np.zeros_like(WT) if check else None
        self.pairs = np.zeros(3)
        takes_part = np.zeros(problem.n, dtype=bool)
        takes_part[members] = True
        everyone = takes_part.all()
        for k, block in enumerate(problem.blocks):
            mask = everyone or np.logical_or(*block.ends(takes_part))
            U, theta = state.U[k], state.theta[k]
            update = np.any(mask)
            if check or update:
                D = block.difference(WT)
            if update:
                delta = D + U if check else np.add(D, U, out=D)
                shrunk = penalty.prox(delta, self.strength / self.rho)
                delta -= shrunk
                if everyone:
                    U, theta = state.U[k], state.theta[k] = delta, shrunk
                else:
                    np.copyto(U, delta, where=mask)
                    np.copyto(theta, shrunk, where=mask)
            block.add_divergence(theta - U, outflow)
            if check:
                block.add_divergence(U, self.dual)
                self.pairs += self._measure(block, D, theta, U)
        state.zeta = state.W.mean(axis=0) + outflow.T / problem.n

    def _measure(self, block, D, theta, U):
        """Sums over the pairs: penalty, augmented terms, squared residual of theta."""
        value = self.penalty.value
        # on the diagonal a tile has each client with itself, where the penalty is not zero
        diagonal = 0.0
        if block.diagonal:
            diagonal = 0.5 * block.shape[0] * float(value(np.zeros((1, 1)))[0])
        gap = D - theta
        gap2 = block.total(np.einsum("d...,d...->...", gap, gap))
        inner = block.total(np.einsum("d...,d...->...", U, gap))
        penalty = self.strength * (block.total(value(D)) - diagonal)
        split = self.strength * (block.total(value(theta)) - diagonal)
        split += self.rho * inner + 0.5 * self.rho * gap2
        return np.array([penalty, split, gap2])

    # ----------------------------------------------------------------------------- checks

    def _record(self, k, rounds):
        """Ask all clients for their objectives, write the history, decide whether to stop."""
        check, options = self._look(), self.options
        old = None if self.last is None else self.last.labels
        self.settled = rounds_stable(self.settled, old, check.labels, rounds)
        self.last = check
        self.history.add(
            round=k,
            objective=check.objective,
            lagrangian=check.lagrangian,
            residual=check.residual,
            theta_residual=check.theta_residual,
            n_clusters=check.labels.max() + 1,
            participants=self.participants,
        )
        self.participants = 0
        values = {"objective": check.objective, "residual": check.residual}
        self.progress.tell(self.result, k=k, **values, n_clusters=int(check.labels.max()) + 1)
        wait = options.n_iter_no_change
        settled = (
            wait is not None
            and self.settled * options.participation >= wait
            and check.theta_residual <= self._near()
        )
        self.converged = options.tol > 0 and (check.residual <= options.tol or settled)

    def _near(self):
        """Residual of theta at which a settled partition ends the rounds."""
        if self.options.optimizer == "adam":
            # Steps of one length in every parameter: two clients do not get nearer than these.
            steps = 2.0 * self.rates.max() * np.sqrt(self.problem.d)
            return max(NOISY_SETTLED, steps / self.problem.typical_distance())
        if self.options.participation < 1.0 or not self.problem.exact:
            return NOISY_SETTLED
        return NORM_SETTLED if self.penalty.convex else SETTLED

    def _look(self):
        """Objective, residuals and clusters of the present models."""
        problem, state, n = self.problem, self.state, self.problem.n
        value, g = self._slopes()
        penalty, split, gap2 = self.pairs / n
        slope = g + self.rho / n * self.dual.T
        theta_residual = np.sqrt(gap2 / (0.5 * (n - 1))) / problem.typical_distance()
        lengths = problem.matrix(lambda k, block: state.theta[k])
        labels, nu = self._clusters(lengths)
        return _Check(
            objective=float(value.sum() + penalty),
            lagrangian=float(value.sum() + split),
            residual=max(rms(slope) / problem.typical_slope(), float(theta_residual)),
            theta_residual=float(theta_residual),
            labels=labels,
            nu=nu,
        )

    def _slopes(self):
        """Clients' objectives and gradients; expansions are about these models from here on."""
        problem, W = self.problem, self.state.W
        if self.expansions is None:
            return self.pool.ask(ObjectivesGradients, W, dtype=np.float64)
        before, self.expansions = self.expansions, problem.expansions(W)
        if self.expansions is None:
            return self._slopes()
        new = self.expansions
        if not before.foresees(W, new.gradients):
            self.expansions = None
        return new.values, new.gradients

    def _clusters(self, lengths):
        """Connected components of the pairs with a theta no longer than the threshold."""
        problem, nu = self.problem, self.options.nu
        tree = linkage(squareform(lengths, checks=False), "single")
        if nu is None:
            if self.penalty.convex:
                low, high = FLOOR * float(np.median(problem.distances())), np.inf
            else:
                low, high = self.penalty.smoothing, float(self.penalty.lam)
            nu = gap_threshold(tree[:, 2], low, high)
        return numbered(fcluster(tree, nu, "distance")), nu

    def result(self):
        """Clusters, their models, and what the rounds came to."""
        W, check, options = self.state.W, self.last, self.options
        labels = check.labels
        n_rounds = self.history["round"][-1]
        shortfall = ""
        if not self.converged and options.tol > 0:
            shortfall = (
                f"After max_iter={options.max_iter} rounds the stationarity residual is "
                f"{check.residual:.2g} (tol={options.tol:g}), that of theta "
                f"{check.theta_residual:.2g}, and the partition has been the same for "
                f"{self.settled} rounds. Increase max_iter, tol or local_steps."
            )
        return Result(
            cluster_params=mean_by_cluster(W, labels, self.pool.client_weights),
            labels=labels,
            params=W.copy(),
            objective=check.objective,
            n_iter=int(n_rounds),
            history=self.history.arrays(),
            shortfall=shortfall,
            extra={"residual": check.residual, "nu": float(check.nu), "rho": float(self.rho)},
        )


def gap_threshold(heights, low, high):
    """A threshold in the widest gap between distances, on a logarithmic scale.

    Only the heights at which clusters merge matter, and only thresholds from `low` to `high` make
    sense: where no distance lies between, the threshold is in their middle.

    Parameters
    ----------
    heights : ndarray
        Distances at which single linkage merges.
    low, high : float
        Range of the threshold; an infinite `high` is the largest distance.

    Returns
    -------
    threshold : float
    """
    high = max(float(heights.max()), low) if np.isinf(high) else high
    inner = np.clip(np.sort(heights), low, high)
    ladder = np.log(np.concatenate([[low], inner, [high]]))
    steps = np.diff(ladder)
    k = int(steps.argmax())
    return float(np.exp(0.5 * (ladder[k] + ladder[k + 1])))
