"""Rules of choice: which model each participant of a round gets."""

import numpy as np

from ..calls.first_order import BestResponse, Losses
from ..calls.summed import BestResponseSums
from .state import Answers

__all__ = ["ChoiceRule", "DealtFirst", "Known", "LeastLoss"]


class ChoiceRule:
    """Base of the rules of choice.

    A rule asks the participants for what it needs, and says which model each of them gets.  By
    default it asks for their losses under all models.
    """

    def ask(self, who, state, gradients=""):
        """What the participants answer to the models.

        Parameters
        ----------
        who : Participants
            Who is asked.
        state : State
            Where the server stands.
        gradients : {"", "single", "sums"}, default=""
            Which gradients at the choice the update needs: a rule by which clients choose for
            themselves may ask for them in the same call.

        Returns
        -------
        answers : Answers
        """
        pool = who.judge or who.pool
        return Answers(who).heard(
            pool, losses=pool.ask(Losses, state.theta, n_shared=state.n_shared)
        )

    def choose(self, answers, state, final=False):
        """Models of the participants.

        Parameters
        ----------
        answers : Answers
            What :meth:`ask` returned.
        state : State
            Where the server stands; its labels are those of earlier rounds.
        final : bool, default=False
            True if this is the last choice, of all clients and from scratch: clients are not held
            to any model, and their models are not sent.

        Returns
        -------
        choice : ndarray of shape (n_members,)
        """
        raise NotImplementedError

    def prepare(self, update):
        """Meet the rule of update, before the first round: some rules choose by what it trains.

        Parameters
        ----------
        update : UpdateRule
            Of these rounds.
        """

    def safeguards(self):
        """What has to watch over rounds with this rule, a list of Safeguard."""
        return []

    def last(self, state):
        """The rule by which clients choose between Newton's steps of polished models.

        Parameters
        ----------
        state : State
            Where the rounds ended, with the labels of all clients.

        Returns
        -------
        rule : ChoiceRule
            By loss, unless the rule says otherwise: groups of loss vectors have served to get
            there.
        """
        return LeastLoss()

    def report(self):
        """Numbers for the history of the round, by the names of their columns."""
        return {}


class LeastLoss(ChoiceRule):
    """Choice of clusters of IFCA, line 6: every client takes the model of least loss.

    A client chooses by itself, and sends its gradient at the choice in the same call.
    """

    def ask(self, who, state, gradients=""):
        """Losses, or choices and gradients at once."""
        if gradients and who.judge is None:
            held = None if state.held is None else state.held[who.index]
            return _best_response(who, state, held, gradients)
        return super().ask(who, state)

    def choose(self, answers, state, final=False):
        """The models of least loss."""
        if answers.choice is not None:
            return answers.choice
        choice = least_loss(answers.losses)
        return choice if final else state.hold(choice, answers.who)


class Known(ChoiceRule):
    """Clusters that are known: clients do not choose.

    Parameters
    ----------
    labels : ndarray of shape (n_clients,)
        Model of each client.
    """

    def __init__(self, labels):
        self.labels = np.asarray(labels)

    def ask(self, who, state, gradients=""):
        """Gradients, if they are needed; otherwise nothing."""
        return _ask_assigned(who, state, self.labels[who.index], gradients)

    def choose(self, answers, state, final=False):
        """The known labels."""
        return answers.choice

    def last(self, state):
        """The same rule."""
        return self


class DealtFirst(ChoiceRule):
    """Random clusters of equal size in the first round, then another rule.

    Parameters
    ----------
    rule : ChoiceRule
        The rule of the other rounds.
    rng : RandomState
        Source of the deal.
    """

    def __init__(self, rule, rng):
        self.rule, self.rng = rule, rng

    def ask(self, who, state, gradients=""):
        """Gradients at the models dealt out; later what the other rule asks for."""
        if state.round:
            return self.rule.ask(who, state, gradients)
        dealt = self.rng.permutation(np.arange(len(who.members)) % len(state.theta))
        return _ask_assigned(who, state, dealt, gradients)

    def choose(self, answers, state, final=False):
        """What was dealt; later what the other rule says."""
        if state.round:
            return self.rule.choose(answers, state, final)
        return answers.choice

    def prepare(self, update):
        """Let the other rule meet the rule of update."""
        self.rule.prepare(update)

    def safeguards(self):
        """Those of the other rule."""
        return self.rule.safeguards()

    def last(self, state):
        """What the other rule says."""
        return self.rule.last(state)

    def report(self):
        """What the other rule reports."""
        return self.rule.report()


def least_loss(losses):
    """Best model of each client; a loss that is no number is never chosen."""
    return np.where(np.isfinite(losses), losses, np.inf).argmin(axis=1)


def _ask_assigned(who, state, assigned, gradients):
    """Send each participant its assigned model."""
    if gradients and who.judge is None:
        return _best_response(who, state, assigned, gradients)
    return Answers(who, choice=assigned)


def _best_response(who, state, held, gradients):
    """Losses, choices and gradients at the choices in one call: answers of a round.

    The last step may overflow at some clients. They are rejected only if the models before that
    step do so, too.
    """
    pool, searching, single = who.pool, state.before is not None, gradients == "single"
    about = {"fixed": held, "n_shared": state.n_shared, "searching": searching}
    if not single:
        about["weights"] = who.weights

    def ask():
        call = BestResponse if single else BestResponseSums
        return pool.ask(call, state.theta, **about)

    losses, choice, slopes = ask()
    if searching:
        strange = ~np.isfinite(losses[np.arange(len(choice)), choice])
        if pool.answered is not None:
            strange &= pool.answered
        if strange.any() or not np.isfinite(slopes).all():
            # All clients: what is not finite at a few of them is not the models' fault.
            pool.ask(Losses, state.before, n_shared=state.n_shared)
            if pool.answered is not None:
                losses, choice, slopes = ask()
    answers = Answers(who)
    if single:
        return answers.heard(pool, losses=losses, choice=choice, gradients=slopes)
    answers.sums = slopes
    return answers.heard(pool, losses=losses, choice=choice)
