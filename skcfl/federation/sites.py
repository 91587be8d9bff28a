"""Where rows are: what a place that holds clients can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np

from .._typing import Array
from ..calls import CALLS
from ..exceptions import FederationError, PrivacyError
from .turns import check_turn, pass_turn

#: Pauses for one answer: honest places take fewer, and one that comes and goes holds up no fit.
MOST_PAUSES = 32


class PlaceLost(Exception):
    """Raised where a place in another process does not answer; its clients are silent."""


class Unreached(PlaceLost):
    """Raised where no reply of a place has come; it may come to a later try."""


class Refused(PlaceLost):
    """Raised where a place does not agree to what it is asked; it has heard it."""


def raising(error: BaseException) -> Any:
    """What raises an error once it is waited for."""

    def wait() -> None:
        raise error

    return wait


class Endpoint:
    """What is asked by the names of its methods: rows, or clients under a model.

    Attributes
    ----------
    travels : bool
        Whether questions have a way to go, so that others are better asked meanwhile.
    """

    travels = False

    def start(self, name: str, *arguments: Any) -> Any:
        """Begin to answer; others can begin before this one has ended.

        Parameters
        ----------
        name : str
            A method.
        arguments : object
            What it takes.

        Returns
        -------
        wait : callable
            Gives the answer when it is there.  Raises PlaceLost where there is none.
        """
        answer = getattr(self, name)(*arguments)
        return lambda: answer

    def pause(self, last: bool = False) -> bool:
        """Wait a little before the place is asked again; see ``Transport.pause``."""
        return False

    #: Whether no more answers of the place are taken in this fit.
    is_lost = False

    def lose(self, error: PlaceLost) -> None:
        """Take no more answers of the place in this fit, if it is elsewhere.

        Parameters
        ----------
        error : PlaceLost
            Why; there was a warning.
        """

    def disbelieve(self, reason: str) -> None:
        """Take no more answers of a place that has sent one out of its bounds.

        Parameters
        ----------
        reason : str
            What is wrong with it; a warning has it if the place is elsewhere.

        Raises
        ------
        PrivacyError
            If the place is in this process.
        """
        raise PrivacyError(f"the answer of a place is wrong: {reason}.")


def ask_each(places, name, arguments=None, whole=False, retries=None, may_refuse=False):
    """Answers of several places that work at the same time.

    Parameters
    ----------
    places : list of Place
        Whom to ask.
    name : str
        A method.
    arguments : list of tuple, default=None
        What each place is sent; None is nothing.
    whole : bool, default=False
        Whether all places are needed.
    retries : int, default=None
        How often silent places are asked again. One that stays silent has no more part in the
        fit, because what follows depends on the answers; None lets it have its part.
    may_refuse : bool, default=False
        Whether a place that refuses has its part all the same.

    Returns
    -------
    answers : list
        Of those that answer.

    Raises
    ------
    FederationError
        If none does, or one does not and all are needed.
    """
    arguments = [()] * len(places) if arguments is None else arguments
    check_turn()
    waiting = [p.start(name, *some) for p, some in zip(places, arguments, strict=True)]
    pass_turn()
    answers, lost = [], []
    for place, some, wait in zip(places, arguments, waiting, strict=True):
        again = partial(place.start, name, *some)
        try:
            answers.append(wait() if retries is None else insisted(place, wait, again, retries))
        except PlaceLost as error:
            lost.append(error)
            if retries is not None and not (may_refuse and isinstance(error, Refused)):
                place.lose(error)
    if lost and (whole or not answers):
        raise FederationError(
            f"{len(lost)} of {len(places)} places do not answer: {lost[0]}"
        ) from lost[0]
    return answers


def insisted(place, wait, again, retries, known=Unreached):
    """The answer of a place, which is asked again if it is silent, and does not refuse.

    Parameters
    ----------
    place : Endpoint
        The place.
    wait, again : callable
        What waits for the first answer, and what asks again.
    retries : int
        How often the place is asked again, beside the pauses that it takes.
    known : type, default=Unreached
        The error after which it takes a pause.

    Raises
    ------
    PlaceLost
        If it stays silent, or comes and goes without an answer.
    """
    for left in reversed(range(1 + retries + MOST_PAUSES)):
        try:
            return wait()
        except PlaceLost as error:
            if left == 0 or isinstance(error, Refused):
                raise
            paused = isinstance(error, known) and place.pause(last=True)
            if not paused and retries == 0:
                raise
            retries -= not paused
            wait = again()


class Site(Endpoint, ABC):
    """Clients and their rows, in one place: this process, a worker, an organisation.

    The server's half, :class:`~skcfl.federation.ClientPool`, holds a site and nothing of what is
    in it.  Only what the methods below send and return ever leaves.

    Attributes
    ----------
    n_clients : int
        Number of clients.
    client_sizes, client_weights : ndarray of shape (n_clients,)
        Number of rows of each client, and their total weight.
    without_rows : ndarray of shape (n_clients,) of bool
        Which clients own no row.
    """

    n_clients: int
    client_sizes: Array
    client_weights: Array
    without_rows: Array

    @property
    def reachable(self) -> Array:
        """Clients that may answer if a call is repeated, (n_clients,) of bool."""
        return np.ones(self.n_clients, dtype=bool)

    @abstractmethod
    def answer(self, call: str, arguments: dict[str, Any]) -> dict[str, Array]:
        """Let the clients compute.

        Parameters
        ----------
        call : str
            A name in ``skcfl.calls.CALLS``.
        arguments : dict
            Its arguments.

        Returns
        -------
        answers : dict of str to ndarray
            As the table says.  Where some clients are lost also "answered", ndarray of shape
            (n_clients,) of bool; entries of the others are not looked at.  Where some have
            answered and are in no sum, as their part of it is not finite, "non_finite", too.
        """

    def begin(self, call: str, arguments: dict[str, Any]) -> Any:
        """Begin to answer; returns what waits for the answers of :meth:`answer`."""
        answers = self.answer(call, arguments)
        return lambda: answers

    def facts(self) -> tuple[Array, Array, Array]:
        """What is known of the clients: `client_sizes`, `client_weights`, `without_rows`."""
        return self.client_sizes, self.client_weights, self.without_rows

    @abstractmethod
    def derive(self, step: str, *arguments: Any) -> list[Any]:
        """Sites of the same clients, of some of them, or of parts of their rows.

        Parameters
        ----------
        step : {"subset", "penalised", "without_levels", "without_trees", "linearised", "held_out",
            "folds"}
            What is made: see the methods below, and ``ClientPool.without_effects``.
        *arguments : object
            What it takes.

        Returns
        -------
        sites : list of Site
            As many as ``count_derived`` says: parts of rows by twos, to train on and held out.
        """

    def subset(self, clients: Array) -> Any:
        """Site of some of the clients, by their positions, in that order."""
        return self.derive("subset", clients)[0]

    def penalised(self, alpha: float | None) -> Any:
        """Site of the same clients under another local penalty, with no memory of answers.

        Parameters
        ----------
        alpha : float or None
            The penalty; None is that of this site.
        """
        return self.derive("penalised", alpha)[0]

    def held_out(self, fraction: float, seed: int) -> tuple[Any, ...]:
        """Sites of the same clients with two parts of each one's rows: to train on, held out."""
        return tuple(self.derive("held_out", fraction, seed))

    def folds(self, n_folds: int, seed: int) -> list[tuple[Any, Any]]:
        """List of (training, held out) sites, every row held out in one of them."""
        made = self.derive("folds", n_folds, seed)
        return list(zip(made[::2], made[1::2], strict=True))


def count_derived(step, *arguments):
    """Number of sites that :meth:`Site.derive` makes."""
    if step == "folds":
        return 2 * arguments[0]
    return 2 if step == "held_out" else 1


class WrappedSite(Site):
    """Base of the sites that stand before another one, and answer otherwise.

    Parameters
    ----------
    site : Site
        The clients.
    """

    def __init__(self, site):
        self.site, self.n_clients = site, site.n_clients
        self.client_sizes, self.client_weights, self.without_rows = site.facts()
        self.travels = site.travels

    @property
    def reachable(self):
        """Clients that may answer if a call is repeated."""
        return self.site.reachable

    @property
    def model(self):
        """Bound local model of the clients."""
        return self.site.model

    @property
    def memory(self):
        """What the clients have answered last."""
        return self.site.memory

    def positions(self, clients):
        """Where the memory has some clients."""
        return self.site.positions(clients)

    @abstractmethod
    def _of(self, site, clients=slice(None)):
        """The same before another site, of some of the clients."""

    def derive(self, step, *arguments):
        """Sites behind as many of this kind, see :meth:`Site.derive`."""
        clients = arguments[0] if step == "subset" else slice(None)
        return [self._of(site, clients) for site in self.site.derive(step, *arguments)]


def answer_without(site, call, arguments, answered, compute=True):
    """Answers of some of the clients of a site, zeros of the others, who are in no sum.

    Parameters
    ----------
    site : Site
        The clients.
    call : str
        A name in ``skcfl.calls.CALLS``.
    arguments : dict
        Its arguments.
    answered : ndarray of shape (n_clients,) of bool
        Whose answers are taken.
    compute : bool, default=True
        If False, the others compute nothing, which may change the last bits of the answers.

    Returns
    -------
    answers : dict of str to ndarray
        With "answered", of those who also answer the site itself, and "non_finite", if any.
    """
    message = CALLS[call]
    if compute and not message.remembers and all(map(message.is_of_clients, message.up)):
        # Cheaper than to pick the others; what the rest compute goes nowhere.
        answers = site.answer(call, arguments)
        here = answers.pop("answered", None)
        answered = answered if here is None else answered & here
        for value in answers.values():
            value[~answered] = 0
        return {**answers, "answered": answered}
    some = np.flatnonzero(answered)
    own = {name: message.own(name, value, some) for name, value in arguments.items()}
    answers = site.subset(some).answer(call, own)
    here = answers.pop("answered", None)
    if here is not None:
        answered = answered.copy()
        answered[some] = here
    of_clients = {*filter(message.is_of_clients, message.up), "non_finite"}
    for name in of_clients & answers.keys():
        own = answers[name]
        answers[name] = np.zeros((site.n_clients, *own.shape[1:]), dtype=own.dtype)
        answers[name][some] = own
    return {**answers, "answered": answered}
