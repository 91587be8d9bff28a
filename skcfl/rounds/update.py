r"""Rules of update: what becomes of the models once the participants have theirs.

    gradient step      theta_j <- theta_j - rate_j sum_{i in S_j} u_i g_i / U_j
    model averaging    theta_j <- sum_{i in S_j} u_i LocalUpdate_i(theta_j) / U_j

(IFCA's lines 14 and 15.)  ``U_j = sum_{i in S_j} u_i`` (division="cluster") or the sum over all
participants (division="all", as printed in line 14, where the sum is divided by m).  Shared
parameters are averaged over all participants, whatever their clusters (weight sharing, section 4.3
of the paper).  A robust operator may take the place of the weighted means, against false clients
(``aggregation/``).
"""

from dataclasses import dataclass, replace

import numpy as np

from ..calls.curvatures import HessianProducts
from ..calls.first_order import ObjectivesGradients
from ..calls.summed import ClusterValues, GradientSums, TrainedMoves
from ..numerics.by_cluster import sum_by_cluster
from ..numerics.matrices import quotient
from ..numerics.quantiles import weighted_median
from .aggregation import Layout, aggregate_by_cluster, median_by_cluster
from .aggregation.aggregator import same_labels
from .state import weighted_mean
from .suspicion import unserved

__all__ = ["Average", "GradientStep", "Members", "ModelAverage", "StepSizes", "UpdateRule"]


# Rounds after which ensembles of fitted estimators move by half of the step before.
MOST_TURNS = 8


class UpdateRule:
    """Base of the rules of update: ask the clients, then compute the new models."""

    #: Whether a rule of choice may ask for gradients at the choice in its own call: "single" ones
    #: of the clients, or their "sums"; "" is that none are needed.
    gradients = ""
    #: Whether the rule needs each client's gradient or model, and not their sums.
    single = False

    def ask(self, answers, state):
        """Ask the participants at their models.

        Parameters
        ----------
        answers : Answers
            Their answers so far, with their choices.
        state : State
            State of the server.

        Returns
        -------
        answers : Answers
            With the objectives ``values`` at the choices, for the history, and what the update
            needs.
        """
        return ask_values(answers, state)

    def ask_trained(self, answers, state, single, summed, how):
        """Models that the participants have trained, or sums by cluster of what they moved.

        Parameters
        ----------
        answers : Answers
            Answers so far, with the values of these models: they are known.
        state : State
            State of the server.
        single, summed : type
            Calls for each client's model, and for the sums.
        how : dict
            How clients train, as the calls take it.
        """
        pool, theta, choice = answers.who.pool, state.theta, answers.choice
        if self.single:
            models = pool.ask(single, theta[choice], **how, known=True)
            return answers.heard(pool, models=models)
        weights = answers.who.weights
        answers.sums = pool.ask(summed, theta, choice, **how, weights=weights, known=True)
        return answers.heard(pool)

    def __call__(self, answers, state):
        """New models.

        Parameters
        ----------
        answers : Answers
            Returned by :meth:`ask`.
        state : State
            State of the server.

        Returns
        -------
        theta : ndarray of shape (K, n_params)
        """
        raise NotImplementedError

    def forget(self, clusters):
        """Models of some clusters were replaced: forget what was learned about their steps."""

    def grow(self, k):
        """There is one more model, the last, which was model `k` until now."""


class GradientStep(UpdateRule):
    """One step along the mean gradient of each cluster.

    Parameters
    ----------
    rates : StepSizes
        Length of the clusters' steps.
    average : Average, default=None
        How gradients are averaged; by cluster if not given.

    Attributes
    ----------
    last : Step or None
        The last step, so that one that was too long can be taken again.
    """

    def __init__(self, rates, average=None):
        self.rates, self.average = rates, Average() if average is None else average
        self.last, self.single = None, self.average.aggregator is not None

    @property
    def gradients(self):
        """How gradients at the choice are asked for."""
        return "single" if self.single else "sums"

    def ask(self, answers, state):
        """Values and gradients at the choices, where they have not come with them."""
        if answers.gradients is not None or answers.sums is not None:
            return ask_values(answers, state)
        pool, single = answers.who.pool, self.single
        how = {"known": answers.losses is not None, "searching": state.before is not None}

        def ask():
            if single:
                return pool.ask(ObjectivesGradients, state.theta[answers.choice], **how)
            return pool.ask(GradientSums, state.theta, answers.choice, answers.who.weights, **how)

        values, slopes = ask()
        if how["searching"] and not (np.isfinite(values).all() and np.isfinite(slopes).all()):
            # The last step may overflow: clients that do so at the models before it are rejected.
            pool.ask(ClusterValues, state.before, answers.choice, searching=False)
            if pool.answered is not None:
                values, slopes = ask()
        if single:
            return answers.heard(pool, values=values, gradients=slopes)
        answers.sums = slopes
        return answers.heard(pool, values=values)

    def __call__(self, answers, state):
        """New models."""
        rates = self.rates.of_clusters(answers)
        self.last = Step.of(answers, state, answers.gradients, rates)
        return self.average(self.last)

    def again(self, bad):
        """Take the last step of some clusters again, half as long, as all later ones.

        Parameters
        ----------
        bad : ndarray of shape (K,) of bool
            Which clusters.

        Returns
        -------
        theta : ndarray of shape (K, n_params)
            New models, after a step half as long.
        """
        self.rates.cuts[bad] *= 0.5
        self.last = replace(self.last, rates=np.where(bad, 0.5, 1.0) * self.last.rates)
        return self.average(self.last)

    def forget(self, clusters):
        """Steps of these clusters are as long as at first."""
        self.rates.cuts[clusters] = 1.0
        self.last = None

    def grow(self, k):
        """The new model's steps are as long as the old one's."""
        self.rates.K += 1
        self.rates.cuts = np.append(self.rates.cuts, self.rates.cuts[k])
        self.last = None


class ModelAverage(UpdateRule):
    """The mean of the models that the participants have trained from their cluster's.

    Parameters
    ----------
    steps : int
        Local steps.
    rates : callable
        ``rates(answers)`` is the length of the participants' steps.
    average : Average, default=None
        How models are averaged; by cluster if not given.
    optimizer, batch_size, monotone
        As for ``LocalUpdate``.
    """

    def __init__(
        self, steps, rates, average=None, optimizer="sgd", batch_size=None, monotone=False
    ):
        self.steps, self.rates = steps, rates
        self.average = Average() if average is None else average
        self.optimizer, self.batch_size, self.monotone = optimizer, batch_size, monotone
        self.single = self.average.aggregator is not None

    def how(self, answers):
        """How the participants train, as their calls take it."""
        return {
            "steps": self.steps,
            "step_size": self.rates(answers),
            "optimizer": self.optimizer,
            "batch_size": self.batch_size,
            "monotone": self.monotone,
        }

    def ask(self, answers, state):
        """Values at the choices, and models trained from there, unless there are some already."""
        if answers.values is None:
            answers = ask_values(answers, state)
        if answers.models is not None or answers.sums is not None:
            return answers
        calls = TrainedMoves.trains, TrainedMoves
        return self.ask_trained(answers, state, *calls, self.how(answers))

    def __call__(self, answers, state):
        """New models."""
        return self.average(Step.of_models(answers, state, answers.models))


class Members(UpdateRule):
    """The ensemble of the estimators of a cluster's clients: the mean of their predictions.

    Parameters
    ----------
    average : Average
        The plain mean by cluster.
    """

    def __init__(self, average):
        self.average = average

    def __call__(self, answers, state):
        """New models; a cluster without clients keeps its own."""
        pool, choice, weights = answers.who.pool, answers.choice, answers.who.weights
        K = len(state.theta)
        total = np.bincount(choice, weights=weights, minlength=K)
        summed = sum_by_cluster(pool.model.singles(pool.places), choice, K, weights)
        share = quotient(1.0, total)
        # An ensemble is not the minimiser of its clients' loss: partitions may take turns.
        step = 0.5 ** max(state.round - MOST_TURNS, 0)
        new = step * share[:, None] * summed + (1.0 - step) * state.theta
        return np.where(total[:, None] > 0, new, state.theta)


@dataclass
class Step:
    """Input of an update: clients' weighted moves from models, times a rate.

    Moves are those of each client, or None where there are sums of the weighted ones.
    """

    who: object
    choice: np.ndarray
    values: np.ndarray
    moves: np.ndarray | None
    theta: np.ndarray
    rates: np.ndarray
    sums: np.ndarray | None = None

    @classmethod
    def of_models(cls, answers, state, models):
        """The step to the mean of the participants' models, None where sums have come up."""
        moves = None if models is None else state.theta[answers.choice] - models
        return cls.of(answers, state, moves, np.ones(len(state.theta)))

    @classmethod
    def of(cls, answers, state, moves, rates):
        """The step by messages, which are None where sums of them have come up."""
        about = answers.who, answers.choice, answers.values, moves, state.theta
        return cls(*about, rates, answers.sums)


class Average:
    """``theta_j - rate_j sum_{i in S_j} u_i move_i / U_j``.

    Parameters
    ----------
    division : {"cluster", "all"}, default="cluster"
        The divisor ``U_j``: the weight of the participants of the cluster, or of all.
    shared : ndarray of shape (n_params,) of bool, default=None
        Parameters that all models have in common.
    aggregator : object, default=None
        Operator in place of the weighted mean, see :mod:`skcfl.rounds.aggregation`.

    Attributes
    ----------
    mixed : bool
        True if clusters may be of several kinds of clients, because they have yet to be split:
        more is then expected of an honest client.
    """

    def __init__(self, division="cluster", shared=None, aggregator=None):
        self.division, self.shared, self.aggregator = division, shared, aggregator
        self.layout, self.mixed = None, False

    def __call__(self, step):
        """New models."""
        weights, K = step.who.weights, len(step.theta)
        total = np.bincount(step.choice, weights=weights, minlength=K)
        if self.aggregator is not None:
            return self._robust(step, total)
        if self.division == "all":
            total = np.where(total > 0, weights.sum(), 0.0)
        factor = quotient(step.rates, total)
        summed = step.sums
        if summed is None:
            summed = sum_by_cluster(step.moves, step.choice, K, weights)
        with np.errstate(over="ignore", invalid="ignore"):
            moves = factor[:, None] * summed
            if self.shared is not None:
                everyone = max(weights.sum(), 1e-300)
                moves[:, self.shared] = step.rates @ summed[:, self.shared] / everyone
            return step.theta - moves.astype(step.theta.dtype)

    def _robust(self, step, total):
        """New models by an operator that bears false clients."""
        # Who is served by no model does not drag along the one that serves it best.
        weights, K = step.who.weights, len(step.theta)
        badly = unserved(step.values, step.choice, K, weights, self.mixed)
        if badly is not None:
            weights = np.where(badly, 0.0, weights)
        if self.layout is None or not self.layout.is_of(step.choice, K):
            self.layout = Layout(step.choice, K)
        centres = aggregate_by_cluster(
            self.aggregator, step.moves, step.choice, K, weights, self.layout
        )
        share = total > 0
        if self.division == "all":
            share = total / max(total.sum(), 1e-300)
        moves = (step.rates * share)[:, None] * centres
        if self.shared is not None:
            common = step.rates[step.choice, None] * step.moves[:, self.shared]
            together = np.zeros(len(common), dtype=np.intp)
            moves[:, self.shared] = aggregate_by_cluster(
                self.aggregator, common, together, 1, weights
            )
        return step.theta - moves.astype(step.theta.dtype)


class StepSizes:
    """Lengths of steps: given, or ``1 / (weighted mean of the clients' curvatures)``.

    Parameters
    ----------
    n_models : int
        Number of clusters.
    given : float, default=None
        The step of all clusters.
    lipschitz : ndarray of shape (n_clients,), default=None
        Curvatures of the clients, where no step is given.
    robust : bool, default=False
        True if the weighted median of the curvatures takes the place of their mean: what false
        clients say of theirs must not make the steps of all others short.

    Attributes
    ----------
    cuts : ndarray of shape (n_models,)
        Factors by which steps have been shortened.
    """

    def __init__(self, n_models, given=None, lipschitz=None, robust=False):
        self.K, self.given, self.lipschitz, self.robust = n_models, given, lipschitz, robust
        self.cuts, self.last = np.ones(n_models), None

    @classmethod
    def from_curvature(cls, pool, n_models, weights, division="cluster", robust=False):
        """Steps of the clusters' gradient updates from what the clients say of their curvature."""
        lipschitz = client_curvatures(pool)
        curvature = None
        if robust:
            typical = weighted_median(lipschitz, weights)
            given = 0.95 * n_models / typical if division == "all" else None
            return cls(n_models, given, lipschitz, robust=True)
        if pool.client_sizes.mean() < pool.n_params:
            # If clients have fewer rows than parameters, the mean of their bounds is far above the
            # curvature that they have in common.
            curvature = _pooled_curvature(pool, lipschitz, weights)
        if division == "all":
            # Stable for balanced clusters, unstable for one that took all clients: the way
            # out of a collapse.
            curvature = curvature or weighted_mean(lipschitz, weights)
            return cls(n_models, 0.95 * n_models / curvature, lipschitz)
        return cls(n_models, None if curvature is None else 1.0 / curvature, lipschitz)

    def of_clusters(self, answers):
        """Step of each cluster, (K,)."""
        if self.given is not None:
            return self.given * self.cuts
        choice, weights = answers.choice, answers.who.weights
        if self.robust:
            return self.cuts * self._typical(answers.who, choice)
        curvatures = weights * self.lipschitz[answers.who.index]
        total = np.bincount(choice, weights=weights, minlength=self.K)
        curvature = np.bincount(choice, weights=curvatures, minlength=self.K)
        return self.cuts * quotient(total, curvature)

    def _typical(self, who, choice):
        """One over the weighted median of the curvatures of each cluster."""
        if self.last is not None:
            before, chosen, out = self.last
            if before is who and len(out) == self.K and same_labels(chosen, choice):
                return out
        typical = median_by_cluster(self.lipschitz[who.index], choice, self.K, who.weights)
        out = quotient(1.0, typical)
        self.last = who, choice, out
        return out

    def of_members(self, answers):
        """Step of each participant by itself: that given, or one over its own curvature."""
        return self.given if self.lipschitz is None else 1.0 / self.lipschitz[answers.who.index]

    def of_their_clusters(self, answers):
        """Step of each participant: that of its cluster."""
        return self.of_clusters(answers)[answers.choice]


def ask_values(answers, state):
    """Objectives at the choices: from the losses on the clients' own rows, or asked for."""
    if answers.losses is not None and answers.who.judge is None:
        penalties = answers.who.pool.model.penalties(state.theta)
        own = answers.losses[np.arange(len(answers.choice)), answers.choice]
        answers.values = own + penalties[answers.choice]
        return answers
    pool, judged = answers.who.pool, answers.losses is not None
    about = state.theta, answers.choice
    values = pool.ask(ClusterValues, *about, known=judged, searching=False)
    return answers.heard(pool, values=values)


def client_curvatures(pool):
    """Upper bounds of the clients' curvatures, positive."""
    return np.maximum(pool.spectrum()[0], 1e-12)


def _pooled_curvature(pool, lipschitz, weights, n_iter=12):
    """Largest curvature of the pooled objective at zero, by power iteration."""
    labels = np.zeros(pool.n_clients, dtype=int)
    share = weights / weights.sum()
    u = np.ones((1, pool.n_params)) + np.arange(pool.n_params) % 7
    zero = np.zeros_like(u)
    value = 0.0
    for _ in range(n_iter):
        u /= max(np.linalg.norm(u), 1e-300)
        u = pool.ask(HessianProducts, zero, u, labels, share)
        value = float(np.linalg.norm(u))
    bound = weighted_mean(lipschitz, weights)
    # An estimate from below, with room for clusters unlike the whole.
    return min(1.5 * value, bound) if value > 0 else bound
