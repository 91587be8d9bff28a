r"""Alternating methods: clients choose a model by loss, models are updated by cluster.

IFCA, Algorithm 1 of Ghosh et al. (2020); FedAvg (McMahan et al., 2017) is the case K = 1,
known labels make the oracle, and CLoVE (Bhatia et al., 2025) differs in the choice only: see
:class:`~skcfl.rounds.choice.LeastLoss` and
:class:`~skcfl.rounds.loss_clusters.LossClusters`.

One round, over the participants M_t:

    s_i      = argmin_j F_i(theta_j)                                   (line 6)
    option I,  averaging="gradient":
    theta_j <- theta_j - gamma_j sum_{i in S_j} u_i g_i / U_j          (line 14)
    option II, averaging="model":
    theta_j <- sum_{i in S_j} u_i LocalUpdate_i(theta_j) / U_j         (line 15)

============  ================================  ==========================
paper         here                              parameter
============  ================================  ==========================
k             ``K = len(theta)``                ``n_clusters``
theta_j       ``state.theta[j]``                ``init``
M_t           ``Draw``                          ``participation``
F_i           ``Losses`` (no penalty)          ``loss``
g_i           ``gradients`` (with penalty)
gamma         ``StepSizes``                     ``step_size``
tau           ``options.local_steps``           ``local_steps``
T             ``options.max_iter``              ``max_iter``
============  ================================  ==========================
"""

from dataclasses import dataclass

import numpy as np

from ..calls.summed import ClusterValues
from ..federation.result import Result
from .choice import DealtFirst, Known, LeastLoss
from .loop import choose_all, run_rounds
from .polish import EXACT, partition_key, polish
from .record import RoundRecord
from .safeguards import FrozenClients, HalvedSteps, Reseeding
from .state import Draw, State, weighted_mean
from .stop import StopRule
from .suspicion import Suspects, capped_mean
from .update import Average, GradientStep, Members, ModelAverage, StepSizes, client_curvatures

__all__ = ["Options", "Rounds", "alternate"]

# Factor of the rounds before polishing under a robust aggregation: suspicions are judged at the
# models of the last round.
ROBUST_SETTLED = 4


@dataclass
class Options:
    """Options of a server loop: the estimators' parameters, none automatic."""

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
    # Squared Newton decrement of polished models of many parameters.
    exact: float = EXACT
    # Rounds with the same partition after which polishing takes over.
    settled: int = 5
    # True if clusters of the first round are dealt out: models are all the same.
    dealt_first: bool = False
    # Mask of the parameters that all clusters have in common.
    shared: np.ndarray | None = None
    # Operator in place of the weighted mean of a cluster, against false clients.
    aggregator: object = None
    # True clusters, for study: the history then has the adjusted Rand index.
    truth: np.ndarray | None = None
    # If True, keep the models and labels of every round, for study.
    keep_rounds: bool = False

    @property
    def window(self):
        """Rounds in which every client takes part about once."""
        return int(np.ceil(min(1.0 / self.participation, self.max_iter + 1)))


def alternate(pool, theta, options, rng, labels=None, rule=None, first=None):
    """Run the rounds from given models, and polish the clusters where they end.

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
    rule : ChoiceRule, default=None
        Rule of choice, which assigns models to clients: IFCA (None) and the others differ in it.
    first : ndarray of shape (n_clients,), default=None
        Models that the clients begin with, where the start knows; the rule chooses on from there.

    Returns
    -------
    result : Result
    """
    result = Rounds(pool, theta, options, rng, labels, rule, first).finish()
    del result.extra["loss"]  # by which restarts are compared
    return result


def common_model(pool, options, start=None):
    """The Result of one model for all clients, from `start` or the common start of training."""
    theta = (pool.start() if start is None else start)[None]
    labels = np.zeros(pool.n_clients, dtype=np.intp)
    return alternate(pool, theta, options, pool.random_state, labels)


class Rounds:
    """Rounds that have ended and are not polished yet; parameters: see ``alternate``.

    Attributes
    ----------
    key : bytes or None
        The partition to be polished, whatever its numbering: the same clusters have the same
        polished models.  None if nothing is polished.
    """

    def __init__(self, pool, theta, options, rng, labels=None, rule=None, first=None):
        self.pool, self.options = pool, options
        self.rule = rule = _choice(options, rng, labels, rule)
        train, judge = pool, None
        if options.hold_out and labels is None:
            train, judge = pool.hold_out(options.hold_out, rng)
        self.weights = client_weights(pool, options)
        draw = Draw(train, options.participation, rng, self.weights, judge)
        self.everyone = draw.everyone
        state = _start(pool, theta, options, labels, first)
        update, guards = _update(options, draw.everyone, len(theta))
        rule.prepare(update)
        guards += rule.safeguards()
        if labels is None:
            if options.empty_cluster != "keep":
                guards.append(Reseeding(update))
            if options.stable_rounds is not None:
                guards.append(FrozenClients(options.stable_rounds, rule, draw.everyone))
        settled = options.settled * (1 if options.aggregator is None else ROBUST_SETTLED)
        stop = StopRule(options.tol, options.window, settled if options.polish else None)
        self.record = RoundRecord(pool.ledger, rule, options.truth, options.keep_rounds)
        limits = stop, options.max_iter, guards
        state = run_rounds(state, draw, rule, update, self.record, *limits)
        self.shortfall = "" if options.polish or stop(state) else _shortfall(state, options)
        state.labels = choose_all(rule, draw.everyone, state)
        self.state, self.key = state, partition_key(state.labels) if options.polish else None

    def finish(self):
        """The result, polished if the options say so."""
        options, suspects, shortfall = self.options, None, self.shortfall
        if options.aggregator is not None:
            suspects = Suspects(options.aggregator, self.weights)
        if options.polish:
            last = self.rule.last(self.state)
            parts = self.state, self.everyone, last, self.record, suspects, options.exact
            shortfall = polish(self.pool, *parts)
        return _result(self.pool, self.state, self.weights, self.record, shortfall, suspects)


def _choice(options, rng, labels, rule):
    """Who gets which model."""
    if labels is not None:
        return Known(labels)
    rule = LeastLoss() if rule is None else rule
    return DealtFirst(rule, rng) if options.dealt_first else rule


def _start(pool, theta, options, labels, first):
    """State of the server at the start."""
    theta, n_shared = np.array(theta, dtype=pool.dtype), 0
    if options.shared is not None and options.shared.any():
        n_shared = int(options.shared.sum())
        theta[:, options.shared] = theta[0, options.shared]
    if labels is None:
        first = np.full(pool.n_clients, -1) if first is None else np.array(first)
        return State(theta, first, n_shared=n_shared)
    return State(theta, np.array(labels), held=np.array(labels), n_shared=n_shared)


def _update(options, everyone, K):
    """Rule of update, and the safeguards of automatic steps."""
    pool, weights, division = everyone.pool, everyone.weights, options.division
    shared = options.shared if options.shared is not None and options.shared.any() else None
    average, robust = Average(division, shared, options.aggregator), options.aggregator is not None
    if options.averaging == "members":
        return Members(average), []
    local = options.averaging == "model"
    if options.step_size is not None:
        rates = StepSizes(K, float(options.step_size))
    elif local:
        rates = StepSizes(K, lipschitz=client_curvatures(pool))
    else:
        rates = StepSizes.from_curvature(pool, K, weights, division, robust)
    # With the division by all clients steps are unstable on purpose, see `from_curvature`.
    automatic = options.step_size is None and (local or division != "all")
    if not local and options.batch_size is None:
        update = GradientStep(rates, average)
        return update, [HalvedSteps(update)] if automatic else []
    # The stochastic gradient of a client is one local step at its cluster's rate.
    steps = options.local_steps if local else 1
    member_rates = rates.of_members if local else rates.of_their_clusters
    optimizer, batch_size = options.optimizer, options.batch_size
    monotone = automatic and optimizer == "sgd" and batch_size is None
    return ModelAverage(steps, member_rates, average, optimizer, batch_size, monotone), []


def _shortfall(state, options):
    """The criterion that was not met within `max_iter` rounds, or None."""
    if options.tol == 0 or (options.budget and state.stable >= options.window):
        return ""
    more = ", or participation (samples of clients keep the models moving)"
    return (
        f"After max_iter={options.max_iter} rounds the models still change by "
        f"{state.change:.2g} (relative; tol={options.tol:g}) and the partition has been "
        f"stable for {state.stable} rounds. Increase max_iter or tol"
        f"{more if options.participation < 1 else ''}."
    )


def _result(pool, state, weights, record, shortfall, suspects=None):
    """Clusters, their models, and what the rounds came to."""
    theta, labels = state.theta, state.labels
    values = pool.ask(ClusterValues, theta, labels, searching=False)
    losses = values - pool.model.penalties(theta)[labels]
    here = slice(None) if pool.answered is None else pool.answered
    history, extra = record.history.arrays(), {}
    loss = weighted_mean(losses[here], weights[here])
    if suspects is not None:
        extra["suspicion"] = suspects.of(pool, state)
        loss = capped_mean(losses[here], weights[here])
    return Result(
        cluster_params=theta,
        labels=labels,
        objective=weighted_mean(values[here], weights[here]),
        n_iter=len(history["objective"]),
        history=history,
        shortfall=shortfall,
        extra={"loss": loss, **extra, **record.rounds()},
    )


def client_weights(pool, options):
    """How much each client counts in averages, (n_clients,); one without weight is not there."""
    weights = pool.client_weights
    return weights if options.weights == "n_samples" else (weights > 0).astype(float)
