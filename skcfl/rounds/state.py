"""Parts of a round: participants, their answers, and the state of the server."""

from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np

__all__ = ["Answers", "Draw", "Participants", "State"]


@dataclass
class State:
    """State of the server between two rounds.

    Attributes
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    labels : ndarray of shape (n_clients,)
        Model of each client, as last chosen; -1 before the first choice.
    held : ndarray of shape (n_clients,), default=None
        Clients with an entry that is not negative are sent that model only, and keep it.
    n_shared : int, default=0
        How many parameters all models have in common and are sent once.
    round : int, default=0
        Rounds so far.
    change : float
        Largest relative change of a model in the last round.
    stable : int, default=0
        For how many rounds the labels have been the same.
    before : ndarray of shape (K, n_params), default=None
        Models before the last step, if a safeguard can take that step back.
    """

    theta: np.ndarray
    labels: np.ndarray
    held: np.ndarray | None = None
    n_shared: int = 0
    round: int = 0
    change: float = np.inf
    stable: int = 0
    before: np.ndarray | None = None

    def hold(self, choice, who):
        """Choices of participants, but for those that are held to a model."""
        if self.held is None:
            return choice
        held = self.held[who.index]
        return np.where(held >= 0, held, choice)


@dataclass
class Participants:
    """Clients that take part in a round.

    Attributes
    ----------
    members : ndarray of shape (n_members,)
        Which clients of the federation, ascending.
    pool : ClientPool
        The pool of these clients.
    weights : ndarray of shape (n_members,)
        How much each counts in sums over clients.
    judge : ClientPool or None
        The rows that they have held out to choose by.
    index : slice or ndarray
        Takes their entries out of arrays of all clients.
    """

    members: np.ndarray
    pool: object
    weights: np.ndarray
    judge: object = None
    index: object = field(default_factory=partial(slice, None))

    def subset(self, which):
        """Some of them, by position or mask."""
        members = self.members[which]
        return Participants(
            members,
            self.pool.subset(which),
            self.weights[which],
            None if self.judge is None else self.judge.subset(which),
            members,
        )


class Silence(Exception):
    """No client that was asked has answered."""


@dataclass
class Answers:
    """Answers of the participants of a round; None if not asked for.

    Attributes
    ----------
    who : Participants
        Clients that answered all calls of the round so far.
    drawn : Participants
        Clients that were asked at first.
    sums : ndarray of shape (K, n_params) or None
        Sums by cluster of the weighted gradients or moves, where these are not asked for singly.
    losses : ndarray of shape (n_members, K)
        Losses under all models, infinite where a client was not sent one.
    choice : ndarray of shape (n_members,)
        Models of the participants.
    values : ndarray of shape (n_members,)
        Objectives at these models.
    gradients : ndarray of shape (n_members, n_params)
        Gradients there.
    models : ndarray of shape (n_members, n_params)
        Models that the participants have trained.
    """

    who: Participants
    losses: np.ndarray | None = None
    choice: np.ndarray | None = None
    values: np.ndarray | None = None
    gradients: np.ndarray | None = None
    models: np.ndarray | None = None

    def __post_init__(self):
        self.drawn, self.sums = self.who, None

    def heard(self, pool, **arrays):
        """Take what came up in a call to a pool of the participants.

        Silent clients drop out of the round: they are no participants of its later calls, and keep
        their labels.

        Parameters
        ----------
        pool : ClientPool
            Pool that was called: ``who.pool`` or ``who.judge``.
        **arrays : ndarrays of shape (n_members, ...)
            Attributes of this object.

        Returns
        -------
        answers : Answers
            This object.

        Raises
        ------
        Silence
            If no participant is left.
        """
        for name, array in arrays.items():
            setattr(self, name, array)
        answered = pool.answered
        if answered is not None:
            if not answered.any():
                raise Silence
            self.who = self.who.subset(answered)
            for name in (part.name for part in fields(self) if part.name != "who"):
                array = getattr(self, name)
                setattr(self, name, None if array is None else array[answered])
        return self


class Draw:
    """Draws the participants of each round: all clients, or random samples of them.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    participation : float, default=1.0
        Share of the clients that take part in a round, at least one client.
    rng : RandomState, default=None
        Source of the samples.
    weights : ndarray of shape (n_clients,), default=None
        How much each client counts; its rows by default.
    judge : ClientPool, default=None
        The rows that clients have held out to choose by.

    Attributes
    ----------
    everyone : Participants
        All clients.
    n_drawn : int
        Participants of a round.

    Examples
    --------
    >>> import numpy as np
    >>> from skcfl.datasets import make_clustered_regression
    >>> from skcfl.federation import InProcessFederation
    >>> from skcfl.models import LinearModel
    >>> from skcfl.rounds.state import Draw
    >>> data = make_clustered_regression(n_clients=10, random_state=0)
    >>> federation = InProcessFederation(data.X, data.y, data.groups)
    >>> pool = federation.open(LinearModel().bind(data.X.shape[1]))
    >>> draw = Draw(pool, participation=0.3, rng=np.random.RandomState(0))
    >>> draw().members
    array([2, 4, 8])
    """

    def __init__(self, pool, participation=1.0, rng=None, weights=None, judge=None):
        weights = pool.client_weights if weights is None else weights
        self.everyone = Participants(np.arange(pool.n_clients), pool, weights, judge)
        self.n_drawn = max(1, int(round(participation * pool.n_clients)))
        self.rng = rng

    def __call__(self):
        """Participants of the next round."""
        n = len(self.everyone.members)
        if self.n_drawn == n:
            return self.everyone
        while True:
            drawn = np.sort(self.rng.choice(n, size=self.n_drawn, replace=False))
            # Clients without rows, by themselves, say nothing.
            if self.everyone.weights[drawn].any() or not self.everyone.weights.any():
                return self.everyone.subset(drawn)


def weighted_mean(values, weights):
    """Mean of numbers of the clients; the plain mean if all weights are zero."""
    total = weights.sum()
    if total <= 0:
        return float(np.mean(values))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(values @ weights / total)
