"""Rules of choice: which model each participant of a round gets."""

import numpy as np

from ..calls.first_order import BestResponse, Losses
from ..calls.summed import BestResponseSums
from .state import Answers

__all__ = ["ChoiceRule", "DealtFirst", "Known", "LeastLoss"]


class ChoiceRule:
    """Base of the rules of choice.

    A rule asks the participants for its input, and assigns a model to each of them.  By default it
    asks for their losses under all models.
    """

    def ask(self, who, state, gradients=""):
        """Ask the participants for their answers to the models.

        Parameters
        ----------
        who : Participants
            Who is asked.
        state : State
            State of the server.
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
            Returned by :meth:`ask`.
        state : State
            State of the server; its labels are those of earlier rounds.
        final : bool, default=False
            True if this is the last choice, of all clients and from scratch: clients are not held
            to any model, and their models are not sent.

        Returns
        -------
        choice : ndarray of shape (n_members,)
        """
        raise NotImplementedError

    def prepare(self, update):
        """Receive the rule of update before the first round: some rules choose by what it trains.

        Parameters
        ----------
        update : UpdateRule
            Rule of update of these rounds.
        """

    def safeguards(self):
        """Safeguards of rounds with this rule, a list of Safeguard."""
        return []

    def last(self, state):
        """The rule by which clients choose between Newton's steps of polished models.

        Parameters
        ----------
        state : State
            State after the rounds, with the labels of all clients.

        Returns
        -------
        rule : ChoiceRule
            Clients choose by loss, unless the rule overrides it: groups of loss vectors are only
            needed on the way.
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
            return best_response(who, state, held, gradients)
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
        """Assigned labels at first; later those of the other rule."""
        if state.round:
            return self.rule.choose(answers, state, final)
        return answers.choice

    def prepare(self, update):
        """Let the other rule meet the rule of update."""
        self.rule.prepare(update)

    def safeguards(self):
        """Answers of the other rule."""
        return self.rule.safeguards()

    def last(self, state):
        """Labels of the other rule."""
        return self.rule.last(state)

    def report(self):
        """Report of the other rule."""
        return self.rule.report()


def least_loss(losses):
    """Best model of each client; a loss of NaN is never chosen."""
    return np.where(np.isfinite(losses), losses, np.inf).argmin(axis=1)


def _ask_assigned(who, state, assigned, gradients):
    """Send each participant its assigned model."""
    if gradients and who.judge is None:
        return best_response(who, state, assigned, gradients)
    return Answers(who, choice=assigned)


def best_response(who, state, held, gradients):
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
            # Asks all clients: a non-finite loss at a few of them is not the models' fault.
            pool.ask(Losses, state.before, n_shared=state.n_shared)
            if pool.answered is not None:
                losses, choice, slopes = ask()
    answers = Answers(who)
    if single:
        return answers.heard(pool, losses=losses, choice=choice, gradients=slopes)
    answers.sums = slopes
    return answers.heard(pool, losses=losses, choice=choice)
