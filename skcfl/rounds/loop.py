r"""Alternating methods: clients choose a model by loss, models are updated by cluster.

IFCA, Algorithm 1 of Ghosh et al. (2020); FedAvg (McMahan et al., 2017) is the case K = 1,
known labels make the oracle, and CLoVE (Bhatia et al., 2025) differs in the first line below
only: see :class:`LeastLoss` here and ``LossClusters`` in ``choice.py``.

One round, over the participants M_t:

    s_i      = argmin_j F_i(theta_j)                                   (line 6)
    option I,  averaging="gradient":
    theta_j <- theta_j - gamma_j sum_{i in S_j} u_i g_i / U_j          (line 14)
    option II, averaging="model":
    theta_j <- sum_{i in S_j} u_i LocalUpdate_i(theta_j) / U_j         (line 15)

with ``U_j = sum_{i in S_j} u_i`` (division="cluster") or the sum over all participants
(division="all", as printed in line 14, where the sum is divided by m).  Shared parameters are
averaged over all participants, whatever their clusters (weight sharing, section 4.3).

============  ================================  ==========================
paper         here                              parameter
============  ================================  ==========================
k             ``K = len(theta)``                ``n_clusters``
theta_j       ``theta[j]``                      ``init``
M_t           ``pool.subset(...)``              ``participation``
F_i           ``pool.losses`` (no penalty)      ``loss``
g_i           ``gradients`` (with penalty)
gamma         ``rate``                          ``step_size``
tau           ``options.local_steps``           ``local_steps``
T             ``options.max_iter``              ``max_iter``
============  ================================  ==========================
"""

from dataclasses import dataclass, replace

import numpy as np
from sklearn.metrics import adjusted_rand_score

from ..federation.result import Result
from ..numerics.by_cluster import sum_by_cluster
from .polish import solve_pooled
from .starts import train_locally

__all__ = ["LeastLoss", "Options", "alternate"]

# Most rounds of "Newton, then choose again" in polishing.
MAX_POLISH = 100
# Local steps of a client whose model fills an empty cluster.
RESEED_STEPS = 30


@dataclass
class Options:
    """What a server loop needs to know; the estimators' parameters, none automatic."""

    max_iter: int = 300
    budget: bool = False  # whether max_iter is how long to train, and not a limit
    averaging: str = "gradient"
    local_steps: int = 10
    optimizer: str = "sgd"
    step_size: float | None = None
    batch_size: int | None = None
    participation: float = 1.0
    division: str = "cluster"
    weights: str = "n_samples"
    empty_cluster: str = "reseed"
    hold_out: float = 0.0
    stable_rounds: int | None = None
    tol: float = 1e-4
    polish: bool = True
    # Rounds with the same partition after which polishing takes over.
    settled: int = 5
    verbose: int = 0
    # Who chooses in the first round: "loss", or "random" clusters.
    first_assignment: str = "loss"
    # Mask of the parameters that all clusters have in common.
    shared: np.ndarray | None = None
    # True clusters, for study: the history then has the adjusted Rand index.
    truth: np.ndarray | None = None
    # Whether to keep the models and labels of every round, for study.
    keep_rounds: bool = False


class LeastLoss:
    """Choice of clusters of IFCA, line 6: every client takes the model of least loss."""

    #: A client chooses by itself, and sends its gradient at the choice at once.
    by_client = True

    def choose(self, losses, members, old, final=False):
        """Models of the participants from their losses (n_members, K)."""
        return _argmin(losses)


def alternate(pool, theta, options, rng, labels=None, seen=None, rule=None):
    """Run the rounds from given models.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    theta : ndarray of shape (K, n_params)
        Starts.
    options : Options
        How to run.
    rng : RandomState
        Source of the participants.
    labels : ndarray of shape (n_clients,), default=None
        Known clusters: clients keep them.
    seen : set, default=None
        Partitions that earlier starts have polished; those of this run are added.
    rule : LeastLoss or LossClusters, default=None
        Who gets which model: what sets IFCA (None) and CLoVE apart.

    Returns
    -------
    result : Result or None
        None if the rounds ended in a partition that an earlier start has polished: the same
        clusters have the same models.  Its ``extra["loss"]`` is the mean loss of the final
        models, by which restarts are compared.
    """
    loop = _Rounds(pool, theta, options, rng, labels, LeastLoss() if rule is None else rule)
    loop.run()
    return loop.finish(set() if seen is None else seen)


@dataclass
class _Participants:
    """Who takes part in a round, and what the server knows of them."""

    members: np.ndarray
    pool: object
    judge: object
    weights: np.ndarray
    lipschitz: np.ndarray | None


@dataclass
class _Step:
    """What an update was made from, so that a step too long can be taken again."""

    members: np.ndarray
    weights: np.ndarray
    choice: np.ndarray
    values: np.ndarray
    gradients: np.ndarray
    theta: np.ndarray
    rates: np.ndarray


class _Rounds:
    """State of the server between rounds."""

    COLUMNS = ("objective", "change", "n_clusters", "participants", "floats_up", "floats_down")

    def __init__(self, pool, theta, options, rng, labels, rule):
        self.pool, self.options, self.rng, self.rule = pool, options, rng, rule
        self.theta = np.array(theta, dtype=pool.dtype)
        self.K, n = len(self.theta), pool.n_clients
        self.n_shared = 0
        if options.shared is not None and options.shared.any():
            self.n_shared = int(options.shared.sum())
            self.theta[:, options.shared] = self.theta[0, options.shared]
        self.known = labels is not None
        # Choices of the clients as the server last heard them; -1 before the first.
        self.labels = np.full(n, -1) if labels is None else np.array(labels)
        # Clients that are sent one model only, which they keep.
        self.fixed = np.array(labels) if self.known else None
        self.calm = np.zeros(n, dtype=int)
        weights = pool.client_weights if options.weights == "n_samples" else np.ones(n)
        train, judge = pool, None
        if options.hold_out and not self.known:
            train, judge = pool.hold_out(options.hold_out, rng)
        self.gradients_only = options.averaging == "gradient" and options.batch_size is None
        lipschitz = self._set_rates(train, weights)
        self.everyone = _Participants(np.arange(n), train, judge, weights, lipschitz)
        self.history = {name: [] for name in self.COLUMNS}
        if options.truth is not None:
            self.history["ari"] = []
        if not rule.by_client and not self.known:
            self.history["stale"] = []
        self.kept = []
        self.last = None
        self.stable = 0
        self.reseeds = 0
        self.shortfall = ""

    # ---------------------------------------------------------------------------- steps

    def _set_rates(self, pool, weights):
        """Choose the steps of the clusters' gradient updates; curvatures of the clients."""
        options = self.options
        self.cuts = np.ones(self.K)
        self.safeguard = options.step_size is None
        self.rates = None
        if options.step_size is not None:
            self.rates = np.full(self.K, float(options.step_size))
            return None
        lipschitz = np.maximum(pool.spectrum()[0], 1e-12)
        if options.averaging == "model":
            return lipschitz
        curvature = None
        if pool.client_sizes.mean() < pool.n_params:
            # Clients with fewer rows than parameters: the mean of their bounds is far
            # above the curvature of what they have in common.
            curvature = _pooled_curvature(pool, lipschitz, weights)
            self.rates = np.full(self.K, 1.0 / curvature)
        if options.division == "all":
            # Stable for balanced clusters, unstable for one that took all clients: the way
            # out of a collapse, so no safeguard.
            curvature = curvature or _average(lipschitz, weights)
            self.rates = np.full(self.K, 0.95 * self.K / curvature)
            self.safeguard = False
        return lipschitz

    def _cluster_rates(self, who, choice):
        """Step of each cluster: ``1 / (weighted mean of its clients' curvatures)``."""
        if self.rates is not None:
            return self.rates * self.cuts
        total = np.bincount(choice, weights=who.weights, minlength=self.K)
        curvature = np.bincount(choice, weights=who.weights * who.lipschitz, minlength=self.K)
        return self.cuts * np.divide(total, curvature, out=np.zeros(self.K), where=curvature > 0)

    # --------------------------------------------------------------------------- rounds

    def run(self):
        """Rounds until the partition and the models are stable, or `max_iter`."""
        options = self.options
        for t in range(options.max_iter):
            change, unchanged = self._round()
            self.stable = self.stable + 1 if unchanged else 0
            if options.verbose:
                print(
                    f"round {t + 1}: objective {self.history['objective'][-1]:.6g}, "
                    f"change {change:.3g}, {self.history['n_clusters'][-1]} clusters"
                )
            if self._settled(change) and self._confirmed():
                return
        trained = options.budget and self.stable >= self._window
        if options.tol > 0 and not options.polish and not trained:
            more = ", or participation (samples of clients keep the models moving)"
            self.shortfall = (
                f"After max_iter={options.max_iter} rounds the models still change by "
                f"{change:.2g} (relative; tol={options.tol:g}) and the partition has been "
                f"stable for {self.stable} rounds. Increase max_iter or tol"
                f"{more if options.participation < 1 else ''}."
            )

    def _settled(self, change):
        options = self.options
        if options.tol == 0:
            return False
        if options.polish and self.stable >= options.settled * self._window:
            return True
        return self.stable >= self._window and change < options.tol

    @property
    def _window(self):
        """Rounds in which every client takes part about once."""
        options = self.options
        return int(np.ceil(min(1.0 / options.participation, options.max_iter + 1)))

    def _confirmed(self):
        """Ask all clients once more where some were sent their own model only."""
        if self.known or self.fixed is None or (self.fixed < 0).all():
            return True
        labels = self._choose_all()
        if np.array_equal(labels, self.labels):
            return True
        self.labels, self.fixed, self.stable = labels, None, 0
        self.calm[:] = 0
        return False

    def _draw(self):
        """Participants of a round."""
        who, options = self.everyone, self.options
        if options.participation == 1:
            return who
        n = len(who.members)
        count = max(1, int(round(options.participation * n)))
        members = np.sort(self.rng.choice(n, size=count, replace=False))
        return _Participants(
            members,
            who.pool.subset(members),
            None if who.judge is None else who.judge.subset(members),
            who.weights[members],
            None if who.lipschitz is None else who.lipschitz[members],
        )

    def _round(self):
        """One round; the relative change of the models, and whether the partition held."""
        who = self._draw()
        losses, choice, values, gradients = self._respond(who)
        objective = _average(values, who.weights)
        old = self.labels[who.members]
        bad = self._rose(who, losses)
        if bad is not None:
            new, unchanged = self._step_again(bad), False
        else:
            unchanged = bool((choice == old).all())
            self.labels[who.members] = choice
            self._count_calm(who.members, choice, old)
            new = self._update(who, choice, values, gradients, losses is not None)
            new = self._reseed(who, new, choice, values)
        moved = new - self.theta
        size = np.einsum("kp,kp->k", self.theta, self.theta)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.einsum("kp,kp->k", moved, moved)
            change = float(np.sqrt(np.max(distance / np.maximum(size, 1e-24))))
        self.theta = new
        self._record(objective, change, int((np.bincount(choice) > 0).sum()), len(choice))
        return change, unchanged

    def _respond(self, who):
        """What the participants answer to the models.

        Losses under every model (infinite where a client was not sent it), choices, values
        of the objectives at the choice, and gradients there if they are averaged.
        """
        pool, theta = who.pool, self.theta
        fixed = None if self.fixed is None else self.fixed[who.members]
        drawn = self.options.first_assignment == "random" and not self.history["objective"]
        if drawn and not self.known:
            fixed = self.rng.permutation(np.arange(len(who.members)) % self.K)
        told = self.known or drawn
        penalties = pool.penalties(theta)
        if who.judge is None and self.gradients_only and (told or self.rule.by_client):
            losses, choice, gradients = pool.best_response(theta, fixed, shared=self.n_shared)
            return (
                losses,
                choice,
                losses[np.arange(len(choice)), choice] + penalties[choice],
                gradients,
            )
        if told:
            losses, choice = None, fixed
        else:
            losses = (who.judge or pool).losses(theta, shared=self.n_shared)
            choice = self.rule.choose(losses, who.members, self.labels)
            if fixed is not None:
                choice = np.where(fixed >= 0, fixed, choice)
            if not self.rule.by_client:
                pool.assign(choice)
        # Clients that have just judged the models need not be sent one of them again.
        kept = losses is not None
        if self.gradients_only:
            values, gradients = pool.objectives_gradients(theta[choice], kept=kept)
        elif losses is None or who.judge is not None:
            values, gradients = pool.objectives(theta[choice], kept=kept), None
        else:
            values = losses[np.arange(len(choice)), choice] + penalties[choice]
            gradients = None
        return losses, choice, values, gradients

    def _update(self, who, choice, values, gradients, kept):
        """Lines 14 and 15 of the algorithm."""
        options, theta = self.options, self.theta
        if self.gradients_only:
            rates = self._cluster_rates(who, choice)
            self.last = _Step(who.members, who.weights, choice, values, gradients, theta, rates)
            return self._move(self.last)
        if options.averaging == "gradient":
            # The stochastic gradient of each client, by one local step at its cluster's rate.
            steps, rates = 1, self._cluster_rates(who, choice)[choice]
        else:
            steps = options.local_steps
            rates = options.step_size if self.rates is not None else 1.0 / who.lipschitz
        start = theta[choice]
        trained = who.pool.local_update(
            start,
            steps,
            rates,
            options.optimizer,
            options.batch_size,
            monotone=self.safeguard and options.optimizer == "sgd" and options.batch_size is None,
            kept=kept,
        )
        moves = start - trained
        return self._move(
            _Step(who.members, who.weights, choice, values, moves, theta, np.ones(self.K))
        )

    def _move(self, step):
        """``theta_j - rate_j sum_{i in S_j} u_i g_i / U_j``."""
        total = np.bincount(step.choice, weights=step.weights, minlength=self.K)
        if self.options.division == "all":
            total = np.where(total > 0, step.weights.sum(), 0.0)
        factor = np.divide(step.rates, total, out=np.zeros(self.K), where=total > 0)
        summed = sum_by_cluster(step.gradients, step.choice, self.K, step.weights)
        with np.errstate(over="ignore", invalid="ignore"):
            moves = factor[:, None] * summed
            if self.n_shared:
                shared, everyone = self.options.shared, max(step.weights.sum(), 1e-300)
                moves[:, shared] = step.rates @ summed[:, shared] / everyone
            return step.theta - moves.astype(step.theta.dtype)

    # ------------------------------------------------------------- safeguards and savings

    def _rose(self, who, losses):
        """Clusters whose objective rose under the last step, on the clients seen twice."""
        last = self.last
        if last is None or not self.safeguard:
            return None
        theta, K = self.theta, self.K
        if self.options.participation == 1:
            choice, values, weights, here = last.choice, last.values, last.weights, slice(None)
        else:
            _, before, here = np.intersect1d(last.members, who.members, return_indices=True)
            choice, values, weights = (
                last.choice[before],
                last.values[before],
                last.weights[before],
            )
        if who.judge is not None or losses is None:
            if self.options.participation < 1:
                return None
            now = who.pool.objectives(theta[choice])
        else:
            now = losses[here][np.arange(len(choice)), choice] + who.pool.penalties(theta)[choice]
        # A client that was not sent the model again says nothing of it.
        told = np.isfinite(now) | np.isnan(now) if self.fixed is not None else True
        with np.errstate(invalid="ignore"):
            rise = np.where(np.isfinite(now), now - values, np.where(told, np.inf, 0.0))
        level = np.bincount(choice, weights=weights * np.abs(values), minlength=K)
        rise = np.bincount(choice, weights=weights * rise, minlength=K)
        bad = ~(rise <= 64 * np.finfo(theta.dtype).eps * level)
        return bad if bad.any() else None

    def _step_again(self, bad):
        """Take the last step of some clusters again, half as long."""
        if self.n_shared:
            # What is shared moved all of them.
            bad = np.ones_like(bad)
        self.cuts[bad] *= 0.5
        self.last = replace(self.last, rates=np.where(bad, 0.5, 1.0) * self.last.rates)
        return np.where(bad[:, None], self._move(self.last), self.theta)

    def _count_calm(self, members, choice, old):
        """Rounds for which each client has kept its choice: who may be sent one model."""
        if self.options.stable_rounds is not None and not self.known:
            self.calm[members] = np.where(choice == old, self.calm[members] + 1, 0)
            self.fixed = np.where(self.calm >= self.options.stable_rounds, self.labels, -1)

    def _reseed(self, who, theta, choice, values):
        """Fill empty clusters with the local models of the clients served worst."""
        if self.options.empty_cluster == "keep" or self.known or (self.labels < 0).any():
            return theta
        empty = np.flatnonzero(np.bincount(self.labels, minlength=self.K) == 0)
        if len(empty) == 0 or self.reseeds >= 10 * self.K:
            return theta
        self.reseeds += len(empty)
        served = np.nan_to_num(who.weights * values, nan=np.inf)
        worst = np.argsort(-served, kind="stable")[: len(empty)]
        theta = theta.copy()
        theta[empty[: len(worst)]] = train_locally(
            who.pool.subset(worst), self.theta[choice[worst]], RESEED_STEPS
        )
        if self.n_shared:
            theta[:, self.options.shared] = theta[choice[0], self.options.shared]
        self.cuts[empty] = 1.0
        self.last = None
        return theta

    def _record(self, objective, change, n_clusters, participants):
        row = (objective, change, n_clusters, participants, *self.pool.ledger.since_mark())
        for name, value in zip(self.COLUMNS, row, strict=True):
            self.history[name].append(value)
        if "ari" in self.history:
            self.history["ari"].append(adjusted_rand_score(self.options.truth, self.labels))
        if "stale" in self.history:
            self.history["stale"].append(self.rule.stale)
        if self.options.keep_rounds:
            self.kept.append((self.theta.copy(), self.labels.copy()))

    # ------------------------------------------------------------------------------ end

    def _choose_all(self, rule=None):
        """Choices of all clients under the present models."""
        if self.known:
            return self.labels
        everyone = self.everyone
        losses = (everyone.judge or self.pool).losses(self.theta, shared=self.n_shared)
        rule = self.rule if rule is None else rule
        return rule.choose(losses, everyone.members, self.labels, final=True)

    def finish(self, seen):
        """Final choices, polished if asked, and the result; None if `seen` has them."""
        pool, weights = self.pool, self.everyone.weights
        self.labels = self._choose_all()
        converged = not self.shortfall
        if self.options.polish:
            if _partition(self.labels) in seen:
                return None
            converged = self._polish(seen)
        values = pool.objectives(self.theta[self.labels])
        penalties = pool.penalties(self.theta)[self.labels]
        extra = {"loss": _average(values - penalties, weights)}
        if self.options.keep_rounds:
            extra["round_params"], extra["round_labels"] = map(
                np.array, zip(*self.kept, strict=True)
            )
        return Result(
            cluster_params=self.theta,
            labels=self.labels,
            objective=_average(values, weights),
            n_iter=len(self.history["objective"]),
            history={name: np.array(column) for name, column in self.history.items()},
            converged=converged,
            shortfall=self.shortfall,
            extra=extra,
        )

    def _polish(self, seen):
        """Newton on every cluster's pooled problem, choose again, until the partition repeats."""
        who, n = self.everyone, len(self.labels)
        self.theta = self.theta.astype(float)
        mine = {}
        for _ in range(MAX_POLISH):
            labels, n_clusters = self.labels, np.unique(self.labels).size
            self.theta, solved, decrement = solve_pooled(
                who.pool,
                labels,
                self.theta,
                who.weights,
                record=lambda value, change, k=n_clusters: self._record(value, change, k, n),
            )
            seen.add(_partition(labels))
            objective = _average(who.pool.objectives(self.theta[labels]), who.weights)
            mine[labels.tobytes()] = objective, labels, self.theta
            # By loss, whatever the rule: groups of loss vectors have served to get here.
            self.labels = self._choose_all(LeastLoss())
            self._record(objective, 0.0, n_clusters, n)
            if np.array_equal(labels, self.labels):
                break
            if self.labels.tobytes() in mine:
                # Ties, or the penalty, which is no part of the choice, made a cycle.
                _, self.labels, self.theta = min(mine.values(), key=lambda item: item[0])
                break
        else:
            self.shortfall = (
                f"The partition still changed after {MAX_POLISH} rounds of polishing. Set "
                "polish=False, or try another random_state or n_clusters."
            )
            return False
        if who.pool is not self.pool:
            # The rows held out have served: the final models are fitted to all rows.
            self.theta, solved, decrement = solve_pooled(
                self.pool, self.labels, self.theta, who.weights
            )
        if not solved:
            self.shortfall = (
                "Newton's method stopped short of a cluster's minimiser: relative squared "
                f"decrement {decrement:.2g}. Scale the features or raise alpha."
            )
        return solved


def _partition(labels):
    """A partition whatever its numbering: each client's first companion."""
    _, first, code = np.unique(labels, return_index=True, return_inverse=True)
    return first[code].tobytes()


def _argmin(losses):
    """Best model of each client; a loss that is no number is never chosen."""
    return np.where(np.isfinite(losses), losses, np.inf).argmin(axis=1)


def _average(values, weights):
    total = weights.sum()
    if total <= 0:
        return float(np.mean(values))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(values @ weights / total)


def _pooled_curvature(pool, lipschitz, weights, n_iter=12):
    """Largest curvature of the pooled objective at zero, by power iteration."""
    labels = np.zeros(pool.n_clients, dtype=int)
    share = weights / weights.sum()
    u = np.ones((1, pool.n_params)) + np.arange(pool.n_params) % 7
    zero = np.zeros_like(u)
    value = 0.0
    for _ in range(n_iter):
        u /= max(np.linalg.norm(u), 1e-300)
        u = pool.hessian_products(zero, u, labels, share)
        value = float(np.linalg.norm(u))
    bound = _average(lipschitz, weights)
    # An estimate from below, with room for clusters unlike the whole.
    return min(1.5 * value, bound) if value > 0 else bound
