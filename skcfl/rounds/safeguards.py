"""Safeguards of the rounds: halved steps, reseeding, clients that stay with their model."""

import numpy as np

from ..calls.summed import ClusterValues
from .loop import choose_all
from .model_kinds import kind_of

__all__ = ["FrozenClients", "HalvedSteps", "Reseeding", "Safeguard"]

# Local steps of the client that refills an empty cluster.
RESEED_STEPS = 30
# Part of the objective of most clients by which a step under a robust aggregation may raise it.
MOST_RISE = 0.1
# Share of the clients, served worst, that fill no cluster under a robust aggregation.
FALSE_SHARE = 0.25


class Safeguard:
    """Base of what watches over the rounds; by default it lets them go on."""

    def instead(self, answers, state):
        """Models to go on from in the place of an update, or None.

        Parameters
        ----------
        answers : Answers
            Answers of the participants, with their choices and values.
        state : State
            State of the server.

        Returns
        -------
        theta : ndarray of shape (K, n_params) or None
        """

    def before(self):
        """Models before the last step, if the safeguard can take that step back; or None."""
        return None

    def mend(self, new, answers, state):
        """Change the state after an update, in place.

        Parameters
        ----------
        new, state : State
            After and before the round.
        answers : Answers
            Answers of the participants.
        """

    def confirm(self, state):
        """True if the rounds may end here; if not, the state may be changed in place.

        Parameters
        ----------
        state : State
            State of the server.

        Returns
        -------
        confirmed : bool
        """
        return True


class HalvedSteps(Safeguard):
    """A cluster with a rising objective takes its last step again, half as long.

    Parameters
    ----------
    update : GradientStep
        Rule of update that takes the steps.
    """

    def __init__(self, update):
        self.update = update

    def instead(self, answers, state):
        """Models after shorter steps; those of other clusters wait."""
        bad = self._rose(answers, state)
        if bad is None:
            return None
        if state.n_shared:
            # Shared parameters moved all of them.
            bad = np.ones_like(bad)
        return np.where(bad[:, None], self.update.again(bad), state.theta)

    def before(self):
        """Models before the last step; the overflow of few clients halves no robust step."""
        last = self.update.last
        return None if last is None or self.update.average.aggregator is not None else last.theta

    def _rose(self, answers, state):
        """Clusters with a rising objective after the last step, on the clients seen twice."""
        last, who, losses, theta = self.update.last, answers.who, answers.losses, state.theta
        if last is None:
            return None
        choice, values, weights, here = last.choice, last.values, last.who.weights, slice(None)
        both = last.who is who
        if not both:
            _, before, here = np.intersect1d(
                last.who.members, who.members, assume_unique=True, return_indices=True
            )
            choice, values, weights = choice[before], values[before], weights[before]
        if who.judge is None and losses is not None:
            penalties = who.pool.model.penalties(theta)
            now = losses[here][np.arange(len(choice)), choice] + penalties[choice]
        elif both:
            now = who.pool.ask(ClusterValues, theta, choice)
        else:
            return None
        with np.errstate(invalid="ignore"):
            rise = now - values
        finite = np.isfinite(now)
        if not finite.all():
            # A client that was not sent the model again says nothing of it.
            sent = True if state.held is None else np.isnan(now)
            rise = np.where(finite, rise, np.where(sent, np.inf, 0.0))
        if self.update.average.aggregator is not None:
            # Median by weight: false clients have no say in the length of steps.  Robust centres
            # do not descend, least before a cluster is split: steps are too long only if they
            # diverge.
            rose = weights * (rise > MOST_RISE * np.abs(values))
            if not rose.any():
                return None
            total = np.bincount(choice, weights=weights, minlength=len(theta))
            bad = np.bincount(choice, weights=rose, minlength=len(theta)) > 0.5 * total
            return bad if bad.any() else None
        level = np.bincount(choice, weights=weights * np.abs(values), minlength=len(theta))
        rise = np.bincount(choice, weights=weights * rise, minlength=len(theta))
        bad = ~(rise <= 64 * np.finfo(theta.dtype).eps * level)
        # Clients that were not part of the last step may be those where it overflows.
        if answers.gradients is not None:
            bad[answers.choice[~np.isfinite(answers.gradients).all(axis=1)]] = True
        elif answers.sums is not None:
            bad |= ~np.isfinite(answers.sums).all(axis=1)
        return bad if bad.any() else None


class Reseeding(Safeguard):
    """Empty clusters take the local models of the clients that are served worst.

    Parameters
    ----------
    update : UpdateRule
        Rule of update; it forgets the steps of those clusters.
    """

    def __init__(self, update):
        self.update, self.asked, self.count = update, None, 0

    def mend(self, new, answers, state):
        """Fill empty clusters, once all clients were asked."""
        K = len(state.theta)
        if self.asked is None:
            self.asked = np.zeros(len(new.labels), dtype=bool)
        self.asked[answers.drawn.index] = True
        if not self.asked.all():
            return
        # Nothing is known of clients that never answered.
        empty = np.flatnonzero(np.bincount(new.labels + 1, minlength=K + 1)[1:] == 0)
        if len(empty) == 0 or self.count >= 10 * K:
            return
        self.count += len(empty)
        who, choice = answers.who, answers.choice
        served = np.nan_to_num(who.weights * answers.values, nan=np.inf)
        worst = np.argsort(-served, kind="stable")
        if self.update.average.aggregator is not None:
            # The clients with the highest losses may be false.
            worst = worst[int(FALSE_SHARE * len(worst)) :]
        worst = worst[: len(empty)]
        theta = new.theta.copy()
        theta[empty[: len(worst)]] = kind_of(who.pool).first_steps(
            who.pool.subset(worst), state.theta[choice[worst]], RESEED_STEPS
        )
        shared = self.update.average.shared
        if shared is not None:
            theta[:, shared] = theta[choice[0], shared]
        new.theta = theta
        self.update.forget(empty)


class FrozenClients(Safeguard):
    """Clients that have kept their choice for some rounds are sent that model only.

    Parameters
    ----------
    stable_rounds : int
        For how many rounds.
    rule : ChoiceRule
        Rule by which all clients choose once more before the end.
    everyone : Participants
        All clients.
    """

    def __init__(self, stable_rounds, rule, everyone):
        self.stable_rounds, self.rule, self.everyone = stable_rounds, rule, everyone
        self.kept = np.zeros(len(everyone.members), dtype=int)

    def mend(self, new, answers, state):
        """Count the rounds for which each client has kept its choice."""
        index = answers.who.index
        same = answers.choice == state.labels[index]
        self.kept[index] = np.where(same, self.kept[index] + 1, 0)
        new.held = np.where(self.kept >= self.stable_rounds, new.labels, -1)

    def confirm(self, state):
        """Ask all clients once more where some were sent their own model only."""
        if state.held is None or (state.held < 0).all():
            return True
        labels = choose_all(self.rule, self.everyone, state)
        if np.array_equal(labels, state.labels):
            return True
        state.labels, state.held, state.stable = labels, None, 0
        self.kept[:] = 0
        return False
