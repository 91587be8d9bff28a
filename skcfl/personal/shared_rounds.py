r"""Rounds in which one model is shared and clients have models of their own beside it.

The rounds are those of every method (:func:`~skcfl.rounds.loop.run_rounds`) with nothing to
choose: an update rule says what the participants do and what becomes of the shared model.

If clients differ, the fixed point of a robust operator is far from the mean's even if no client is
false.  So, as polishing does elsewhere, the last rounds of linear models take the mean over all
clients that are not set aside (:class:`TrustedAverage`).
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..calls.first_order import Objectives
from ..federation.result import Result
from ..rounds.alternate import client_weights
from ..rounds.choice import Known
from ..rounds.loop import run_rounds
from ..rounds.model_kinds import kind_of
from ..rounds.record import RoundRecord
from ..rounds.state import Draw, State, weighted_mean
from ..rounds.stop import StopRule
from ..rounds.suspicion import suspicions
from ..rounds.update import Average, Step, UpdateRule

__all__ = ["Fixpoint", "SharedUpdate", "TrustedAverage", "publish", "run_shared"]

# Models of earlier rounds that the acceleration combines.
WINDOW = 8
# How much longer than the last one a residual may be before the acceleration restarts.
GROWTH = 2.0
# How far beyond the image an iterate may be, in residuals.
FARTHEST = 1e6
# Relative changes of a model, in units of its rounding, that are no changes.
ROUNDING = 16.0
# Relative change of the shared model at which robust rounds give way to the mean of those trusted.
ROBUST_TOL = 1e-3


class Fixpoint:
    """Anderson acceleration (type II) of a map; the rounds look for its fixed point."""

    def __init__(self):
        self.points, self.residuals, self.last = [], [], np.inf
        #: The last point that was kept, its residual and merit; how much of residuals is taken,
        #: and whether what was tried since is beyond that.
        self.kept, self.length, self.ahead = None, 1.0, False

    def __call__(self, point, image, merit=None):
        """Next iterate after a point (p,) and its image.

        Parameters
        ----------
        point, image : ndarray of shape (n_params,)
            Points at which the map was evaluated, and its values.
        merit : float, default=None
            Function that the map lowers, at the point. If it rose the last iterate is taken back;
            if that was no acceleration, residuals are halved.

        Returns
        -------
        next_point : ndarray of shape (n_params,)
        """
        if merit is not None and self.kept is not None and self._rose(merit):
            self.length *= 1.0 if self.ahead else 0.5
            self.points, self.residuals, self.ahead = [], [], False
            return self.kept[0] + self.length * self.kept[1]
        self.kept, self.ahead = (np.array(point), image - point, merit), False
        residual = self.length * (image - point)
        image = point + residual
        size = float(np.linalg.norm(residual))
        if not size <= GROWTH * self.last:
            self.points, self.residuals = [], []
        self.last = size
        self.points = [*self.points[-WINDOW:], np.array(point)]
        self.residuals = [*self.residuals[-WINDOW:], residual]
        if len(self.points) == 1 or size == 0.0:
            return image
        moves, changes = np.diff(self.points, axis=0).T, np.diff(self.residuals, axis=0).T
        mixture = np.linalg.lstsq(changes, residual, rcond=1e-12)[0]
        way, self.ahead = -(moves + changes) @ mixture, True
        return image + way * min(1.0, FARTHEST * size / max(np.linalg.norm(way), 1e-300))

    def _rose(self, merit):
        """Whether the merit is larger than before, by more than rounding."""
        before = self.kept[2]
        return not merit <= before + ROUNDING * np.finfo(float).eps * abs(before)


class TrustedAverage(Average):
    """Aggregation by a robust operator, and later the mean over clients that are not set aside.

    Parameters
    ----------
    aggregator : object
        The operator.
    n_clients : int
        Number of clients.

    Attributes
    ----------
    suspicion : ndarray of shape (n_clients,)
        Suspicion of each client by its last message, see
        :func:`~skcfl.rounds.suspicion.suspicions`; once the mean is taken the largest since then,
        if all take part: a client that is set aside stays so, for the rounds to settle.
    trusts : bool
        True if it takes the mean.
    """

    def __init__(self, aggregator, n_clients):
        super().__init__(aggregator=aggregator)
        self.suspicion, self.trusts = np.zeros(n_clients), False

    def __call__(self, step):
        """New models."""
        who, K = step.who, len(step.theta)
        some = np.flatnonzero(who.weights > 0)
        members = who.members[some]
        now = suspicions(
            *(self.aggregator, step.moves[some], step.values[some], step.choice[some], K),
            *(who.weights[some], who.pool.client_weights[some]),
        )
        if not self.trusts:
            self.suspicion[members] = now
            return super().__call__(step)
        if len(who.members) == len(self.suspicion):
            # Some clients of a sample are far from the others by chance.
            now = np.maximum(now, self.suspicion[members])
        self.suspicion[members] = now
        weights = self.trusted(who)
        kept = np.flatnonzero(weights > 0)
        who = replace(who, weights=weights[kept])
        parts = {name: getattr(step, name)[kept] for name in ("choice", "values", "moves")}
        return Average()(replace(step, who=who, **parts))

    def trusted(self, who):
        """Weights of participants, zero of those set aside."""
        return np.where(self.suspicion[who.members] > 1.0, 0.0, who.weights)


class SharedUpdate(UpdateRule):
    """Base of the updates of one shared model: ask the participants, average their answers.

    Parameters
    ----------
    average : Average, default=None
        How models are averaged.
    accelerate : bool, default=False
        If True, look for the fixed point of the rounds by Anderson acceleration; only where all
        clients take part and nothing is drawn. While a robust operator is in the mean's place
        nothing is accelerated.
    """

    def __init__(self, average=None, accelerate=False):
        self.average = Average() if average is None else average
        self.accelerate = accelerate
        self.fixpoint = Fixpoint() if accelerate and self.average.aggregator is None else None

    def trust(self):
        """From now on take the mean over clients that are not set aside."""
        self.average.trusts = True
        self.fixpoint = Fixpoint() if self.accelerate else None

    def weights(self, who):
        """How much participants count in the mean."""
        return who.weights if self.average.aggregator is None else self.average.trusted(who)

    @property
    def single(self):
        """True if each client's model is needed, and not sums."""
        return self.average.aggregator is not None

    def mean(self, answers, state, models, merit=None):
        """Weighted mean of the participants' models (n_members, p) or of sums, accelerated."""
        theta = self.average(Step.of_models(answers, state, models))
        if self.fixpoint is None:
            return theta
        if answers.who is not answers.drawn:  # another map
            self.fixpoint = Fixpoint()
            return theta
        new = self.fixpoint(state.theta[0].astype(float), theta[0].astype(float), merit)
        return new[None].astype(theta.dtype)

    def __call__(self, answers, state):
        """New shared model."""
        return self.mean(answers, state, answers.models)


@dataclass
class Ended:
    """Rounds with one shared model that have ended.

    Attributes
    ----------
    theta : ndarray of shape (n_params,)
        The shared model.
    record : RoundRecord
        Record of the rounds.
    average : Average
        How they have averaged, which has the clients' suspicions under a robust operator.
    shortfall : str
        The criterion that was not met, or "".
    """

    theta: np.ndarray
    record: RoundRecord
    average: Any
    shortfall: str


def run_shared(pool, update, options, theta=None):
    """Run rounds with one shared model.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    update : UpdateRule
        Rule of update of the shared model.
    options : Options
        How to run.
    theta : ndarray of shape (n_params,), default=None
        Start; None is that of local training.

    Returns
    -------
    ended : Ended
    """
    theta = pool.start() if theta is None else theta
    labels = np.zeros(pool.n_clients, dtype=np.intp)
    draw = Draw(pool, options.participation, pool.random_state, client_weights(pool, options))
    rule, record = Known(labels), RoundRecord(pool.ledger)
    # Models move by their rounding for ever.
    least = ROUNDING * np.finfo(pool.dtype).eps if options.tol > 0 else 0.0
    stop = StopRule(max(options.tol, least), options.window)
    pool.ledger.since_mark()
    state = State(np.array(theta, dtype=pool.dtype)[None], labels, held=labels)
    left = options.max_iter
    if options.aggregator is not None and kind_of(pool).exact:
        near = StopRule(max(options.tol, ROBUST_TOL), options.window)
        state = run_rounds(state, draw, rule, update, record, near, (left + 1) // 2)
        left -= state.round
        state = replace(state, change=np.inf, stable=0)
        update.trust()
    state = run_rounds(state, draw, rule, update, record, stop, left)
    shortfall = ""
    if options.tol > 0 and not options.budget and not stop(state):
        shortfall = (
            f"After max_iter={options.max_iter} rounds the shared model still changes by "
            f"{state.change:.2g} (relative; tol={options.tol:g}). Increase max_iter or tol, or "
            "set tol=0 to train for max_iter rounds."
        )
    return Ended(state.theta[0], record, update.average, shortfall)


def publish(pool, options, ended, params, shared=None, known=True, **extra):
    """Result of an estimator: the shared model, and the clients' models.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    options : Options
        How clients count.
    ended : Ended
        The rounds.
    params : ndarray of shape (n_clients, n_params)
        Models of the clients.
    shared : ndarray of shape (n_params,), default=None
        The shared model, None for that of the rounds.
    known : bool, default=True
        True if clients know their models, from their training and the messages to them.
    **extra
        Further fitted attributes.

    Returns
    -------
    result : Result
    """
    values = pool.ask(Objectives, params, last=True, known=known, searching=False)
    here = slice(None) if pool.answered is None else pool.answered
    if ended.average.aggregator is not None:
        extra["suspicion"] = np.full(pool.n_clients, np.inf)
        extra["suspicion"][here] = ended.average.suspicion[here]
    history = ended.record.history.arrays()
    return Result(
        cluster_params=np.asarray(ended.theta if shared is None else shared)[None],
        labels=np.zeros(pool.n_clients, dtype=np.intp),
        params=params,
        objective=weighted_mean(values[here], client_weights(pool, options)[here]),
        n_iter=len(history["objective"]),
        history=history,
        shortfall=ended.shortfall,
        extra=extra,
    )
