"""Clients in other processes, whatever carries the messages.

Where the rows are, a :class:`~skcfl.federation.hosted_parts.Host` holds them. What a server makes
of them, such as rows in other units, sites under a model, parts of them, stays there under a
number. The server's :class:`RemoteHandle` knows how the thing was made, so that a host that was
started again makes it anew. Between them is a :class:`Transport`: an actor of a cluster, a
connection.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial, partialmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from .._typing import Array, Kind
from ..calls.answer_bounds import OutOfBounds
from ..calls.answers import received
from ..calls.call import CALLS
from ..calls.first_order import Present
from ..calls.letters import sizes_of
from ..clients.ids import locate
from ..clients.last_answers import Forgotten
from ..exceptions import FederationError
from ..numerics.matrices import in_a_row
from .bounds import EXITS, Limits, check_hello
from .federation import Federation, checked
from .handshake import Handshake, joined_hellos
from .hosted_parts import ROOT, clients_of
from .made_columns import made_columns
from .sites import Endpoint, PlaceLost, Refused, Site, Unreached, count_derived, insisted, raising
from .turns import in_one_message, pass_turn, post

if TYPE_CHECKING:
    from ..models import LocalModel

#: Seconds to wait for an answer of a site, unless a job says otherwise.
TIMEOUT = 60.0
#: Why a host has no more part in a fit in which its clients have to remember models.
NO_MEMORY = "the models that its clients remember are lost, or not known to the server"


class RemoteHandle(Endpoint):
    """Something that a host keeps, as the server knows it.

    Parameters
    ----------
    line : HostConnection
        The way to the host.
    parent : RemoteHandle, default=None
        What it is made from; None is the host's root.
    method : str
        How.
    arguments : tuple
        What the method takes.
    """

    travels = True

    def __init__(self, line, parent=None, method=None, arguments=()):
        self.line, self.parent, self.step = line, parent, (method, arguments)
        self.key = ROOT
        if parent is not None:
            self.key = next(line.keys)
            weakref.finalize(self, line.dropped.append, self.key).atexit = False

    def recipe(self):
        """Steps from the root to here, see :meth:`Host.ask`."""
        if self.parent is None:
            return []
        return [*self.parent.recipe(), (self.key, self.parent.key, *self.step)]

    def start(self, name, *arguments):
        """Begin to answer; see :meth:`~skcfl.federation.sites.Endpoint.start`."""
        return self.line.start(self, name, arguments)

    def pause(self, last=False):
        """Wait a little before the host is asked again; see ``Transport.pause``."""
        return not self.is_lost and self.line.transport.pause(last)

    @property
    def is_lost(self):
        """Whether no more answers of the host are taken in this fit."""
        return self.line.lost is not None

    def lose(self, error):
        """Take no more answers of the host in this fit."""
        self.line.lost = error

    def disbelieve(self, reason):
        """Take no more answers of the host in this fit, with a warning."""
        self.line.lose(reason)


class HostConnection:
    """The server's end of the way to one host.

    Parameters
    ----------
    transport : Transport
        What carries the messages.
    """

    def __init__(self, transport):
        self.transport = transport
        # No number is that of another server's thing, which the host may keep too.
        self.keys = itertools.count(ROOT + 1 + secrets.randbits(62))
        self.dropped, self.made = deque(), set()
        #: Why the host did not agree to answer, each reason once.
        self.refusals = set()
        #: Whether what the host keeps may not be what the server thinks.
        self.doubtful = False
        #: Why no more answers of the host are taken in this fit; None if they are.
        self.lost = None
        #: Whether the host's rows were found to suit the fit.
        self.begun = False
        #: Whether clients remember models of this fit that the server does not have.
        self.remembers = False

    def lose(self, reason):
        """Take no more answers of the host in this fit; returns the error that says so."""
        if self.lost is None:
            self.lost = self.transport.report(f"{reason}; it has no more part in the fit")
        return self.lost

    def start(self, kept, name, arguments):
        """Begin a method of something that the host keeps."""
        if self.lost is not None:
            return raising(self.lost)
        if self.doubtful:
            if self.remembers:
                return raising(self.lose(NO_MEMORY))
            # A late host has sent answers that did not arrive: it starts anew.
            self.dropped.extend(self.made)
            self.made, self.doubtful = set(), False
        recipe = [step for step in kept.recipe() if step[0] not in self.made]
        dropped, wait = self._send(kept.key, recipe, name, arguments)

        def answer():
            try:
                status, value = wait()
            except Refused:
                raise
            except Forgotten:
                if name == "answer" and arguments[1].get("own") is not None:
                    raise
                raise self.lose("it forgot what it was not asked to remember") from None
            except ValueError as error:
                raise self._unsuitable(error) from error
            except PlaceLost:
                # The host may have done all of this, or nothing.
                self.dropped.extend(dropped)
                self.made.update(step[0] for step in recipe)
                self.doubtful = True
                if not self.transport.restore():
                    raise
                status, value = "unknown", None
            if status == "unknown":
                if self.remembers:
                    raise self.lose(NO_MEMORY)
                self.made, self.doubtful = set(), False
                status, value = self._send(kept.key, kept.recipe(), name, arguments)[1]()
            if status == "error":
                if isinstance(value, Refused) and str(value) not in self.refusals:
                    self.refusals.add(str(value))
                    self.transport.report(str(value))
                raise value
            if status != "done":
                self.lose("it does not know what it was asked for, nor how to make it")
            if self.lost is not None:
                raise self.lost
            self.made.update(step[0] for step in recipe)
            self.begun |= name not in {"hello", "load"}
            self.remembers |= name == "answer" and CALLS[arguments[0]].remembers
            return value

        return answer

    def _unsuitable(self, error):
        """What to raise where a host says that its rows do not suit.

        That ends a fit before it has begun. Later it is not to be believed.
        """
        site = self.transport.site
        if self.begun and site is not None:
            return self.lose(str(error))
        named = site is None or str(error).startswith(f"Site {site!r}")
        return error if named else ValueError(f"Site {site!r}: {error}")

    def _send(self, key, recipe, name, arguments):
        dropped = []
        with contextlib.suppress(IndexError):  # other threads take some, too
            while self.dropped:
                dropped.append(self.dropped.popleft())
        self.made.difference_update(dropped)
        return dropped, post(self.transport, (key, recipe, dropped, name, arguments))


class RemoteRows(RemoteHandle):
    """Rows of a host: what :class:`~skcfl.federation.rows.Rows` are, elsewhere.

    Parameters
    ----------
    places : ndarray of shape (n_clients,)
        Positions of the clients in the whole federation.
    limits : Limits
        What the host has said of them, by which its answers are checked.
    line, parent, method, arguments : object
        As of :class:`RemoteHandle`.
    """

    def __init__(self, places, limits, line, parent, method, *arguments):
        super().__init__(line, parent, method, arguments)
        self.places, self.limits, self._told = places, limits, {}

    def start(self, name, *arguments):
        """Begin to answer; an answer that is out of bounds loses the host."""
        wait = super().start(name, *arguments)

        def answer():
            value = wait()
            if name in EXITS:
                try:
                    EXITS[name](value, arguments, self.limits, self._told)
                except OutOfBounds as error:
                    raise self.line.lose(f"{name}: {error}") from error
            return value

        return answer

    def _made(self, method, *arguments, **limits):
        limits = replace(self.limits, **limits)
        return RemoteRows(self.places, limits, self.line, self, method, *arguments)

    def weighed(self, factors):
        """The rows, their weights multiplied by those of their classes."""
        most = float(np.max(factors))
        return self._made("weighed", factors, weights=self.limits.weights * most)

    def capped(self, most):
        """The rows, their weights scaled so that no client has more than some total weight."""
        return self._made("capped", most, weights=np.minimum(self.limits.weights, most))

    def without(self, lost):
        """The same clients, some of them without their rows."""
        there = ~np.isin(self.places, lost)
        sizes, weights = self.limits.sizes * there, self.limits.weights * there
        return self._made("without", lost, sizes=sizes, weights=weights)

    #: The rows in the units of a scaling, with their clients' predictions out of folds, beside the
    #: predictions of models, and training rows with the test rows of some clients.
    scaled = partialmethod(_made, "scaled")
    cross_fitted = partialmethod(_made, "cross_fitted")
    scored = partialmethod(_made, "scored")
    judged_by = partialmethod(_made, "judged_by")

    def made(self, recipe, trees=None, n_outputs=1):
        """The same rows with columns that are made of theirs, and trees beside models."""
        width = made_columns(np.zeros((0, self.limits.n_features)), recipe).shape[1]
        return self._made("made", recipe, trees, n_outputs, n_features=width)

    def folds(self, n_folds, seed, by_class):
        """Training and test rows."""
        dealt = RemoteHandle(self.line, self, "folds", (n_folds, seed, by_class))
        return [
            RemoteRows(self.places, self.limits, self.line, dealt, "__getitem__", k)
            for k in range(n_folds)
        ]

    def site(self, model):
        """Site of the rows, under a model; the host begins at once to make it."""
        about = len(self.places), model, None, self.limits
        return RemoteSite(*about, self.line, self, "site", model)


class RemoteSite(RemoteHandle, Site):
    """Clients of a host under a model.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    model : LocalModel
        Of which the server uses the shapes.
    facts : tuple of ndarray or None
        What is known of the clients; None asks the host.
    limits : Limits or None
        As of :class:`RemoteRows`; None checks nothing.
    line, parent, method, arguments : object
        As of :class:`RemoteHandle`.
    """

    def __init__(self, n_clients, model, facts, limits, line, parent, method, *arguments):
        super().__init__(line, parent, method, arguments)
        self.n_clients, self._facts, self._limits = n_clients, facts, limits
        self.model, self.n_params = model, model.n_params
        self._waiting = None if facts is not None else self.start("facts")

    def facts(self):
        """What is known of the clients; a host that does not say it when asked again is lost."""
        if self._facts is None:
            n = self.n_clients
            try:
                again = partial(self.start, "facts")
                facts = insisted(self, self._waiting, again, 1, known=PlaceLost)
                if self._limits is not None:
                    facts = self._limits.check_facts(facts)
            except (PlaceLost, OutOfBounds) as error:
                # Clients without rows would be no part of the fit, silently.
                if isinstance(error, OutOfBounds):
                    self.line.lose(str(error))
                else:
                    self.lose(error)
                facts = np.zeros(n, dtype=np.intp), np.zeros(n), np.ones(n, dtype=bool)
            self._facts, self._waiting = facts, None
        return self._facts

    @property
    def client_sizes(self):
        """Number of rows of each client."""
        return self.facts()[0]

    @property
    def client_weights(self):
        """Total weight of each client's rows."""
        return self.facts()[1]

    @property
    def without_rows(self):
        """Which clients own no row."""
        return self.facts()[2]

    @property
    def reachable(self):
        """Whether a call may be repeated for each client; see ``Transport.reachable``."""
        return np.full(self.n_clients, self.line.transport.reachable and not self.is_lost)

    def begin(self, call, sent):
        """Begin to answer; a host that is lost is one whose clients are silent."""
        ask = partial(self.start, "answer", call, CALLS[call].packed(sent))
        wait = ask()

        def answer():
            sizes, waiting = sizes_of(self, sent), wait
            for left in reversed(range(1 + 2 * len(self.line.transport.pauses))):
                try:
                    return received(call, waiting(), sent, sizes, self.client_weights)
                except OutOfBounds as error:
                    self.line.lose(str(error))
                    break
                except PlaceLost as error:
                    # Who does not say that it is there may be lost for good.
                    last = call == Present.name
                    if not (left and isinstance(error, Unreached) and self.pause(last)):
                        break
                    waiting = ask()
            none = np.zeros(sizes["n"], dtype=bool)
            return {**CALLS[call].silence(sent, sizes, self.model), "answered": none}

        return answer

    def answer(self, call, arguments):
        """Let the clients compute a call of the table."""
        wait = self.begin(call, arguments)
        pass_turn()
        return wait()

    def derive(self, step, *arguments):
        """Sites of the same clients, of some of them, or of parts of their rows."""
        facts, limits, model = None, None, self.model
        if step == "without_levels":
            model = model.plain_of()
        elif step == "linearised":  # the weights are other ones
            model = model.gaussian_of()
        if step == "subset":
            facts = tuple(value[arguments[0]] for value in self.facts())
        elif step in {"penalised", "without_levels", "without_trees"}:
            facts = self.facts()
        elif step != "linearised" and self._limits is not None:  # parts of these rows
            limits = Limits(*self.facts()[:2], self._limits.n_features)
        n = self.n_clients if facts is None else len(facts[0])
        made = RemoteHandle(self.line, self, "derive", (step, *arguments))
        about = n, model, facts, limits, self.line, made, "__getitem__"
        with in_one_message():
            return [RemoteSite(*about, k) for k in range(count_derived(step, *arguments))]


class RemoteFederation(Federation):
    """Clients of hosts in other processes.

    Parameters
    ----------
    transports : list of Transport
        The ways to the hosts.
    min_clients, retries, max_share : object
        As of :class:`~skcfl.federation.InProcessFederation`.
    """

    def __init__(
        self,
        transports: list[Any],
        *,
        min_clients: int = 1,
        retries: int = 10,
        max_share: float | None = None,
    ) -> None:
        self.min_clients, self.retries, self.max_share = checked(min_clients, retries, max_share)
        if all(transport.site is not None for transport in transports):
            # Sums do not depend on the order in which sites are listed.
            transports = sorted(transports, key=lambda transport: transport.site)
        self._roots = [RemoteHandle(HostConnection(transport)) for transport in transports]
        # What each place said last: numbers and rows of its parts, ids of their clients, a digest
        # of it; and why some did not answer.
        self._said: Any = None
        self._absent: list[str] = []
        # What had travelled before it.
        self._bytes_before = (0, 0)

    @property
    def wire_bytes(self) -> tuple[int, int]:  # type: ignore[override]
        """Bytes ``(up, down)`` that have travelled since the last hello."""
        up, down = self._bytes_so_far()
        return up - self._bytes_before[0], down - self._bytes_before[1]

    def _bytes_so_far(self):
        each = [root.line.transport.wire_bytes for root in self._roots]
        return sum(up for up, _ in each), sum(down for _, down in each)

    def hello(self, kind: Kind = None) -> Handshake:
        """Ask the clients who they are; see :meth:`Federation.hello`."""
        self._bytes_before = self._bytes_so_far()
        lines = [root.line for root in self._roots]
        for line in lines:
            line.lost, line.begun, line.remembers = None, False, False
            line.refusals = set()
        waiting = [root.start("hello", kind) for root in self._roots]
        answers: list[Any] = []
        self._absent, away = [], []
        for line, wait in zip(lines, waiting, strict=True):
            said = []
            try:
                said = wait()
                check_hello(said, kind, Handshake, line.transport.site)
            except OutOfBounds as error:
                said = []
                self._absent.append(str(line.lose(str(error))))
            except Refused as error:
                line.lost = error
                self._absent.append(str(error))
            except PlaceLost as error:
                away.append(str(error))
            answers.append(said)
        if away:
            raise FederationError(f"{len(away)} of {len(lines)} places do not answer: {away[0]}")
        parts = sorted((part for said in answers for part in said), key=lambda part: part[0])
        if self._absent and not parts:
            raise FederationError(
                f"{len(lines)} of {len(lines)} places do not take part: {self._absent[0]}"
            )
        if not parts:
            raise ValueError("parts must hold rows, got none.")
        hello = joined_hellos([(name, hello) for _, name, hello in parts])
        if self._absent and len(hello.ids) < self.min_clients:
            raise FederationError(
                f"{len(hello.ids)} clients take part, and min_clients={self.min_clients}: "
                f"{self._absent[0]}"
            )
        # Ids, sizes and weights are in the answer: there may be many clients.
        self._said = []
        for said in answers:
            ids = np.concatenate([own.ids for *_, own in said]) if said else hello.ids[:0]
            here = in_a_row(locate(hello.ids, ids)[0])
            numbered = [(k, own.n_rows) for k, _, own in said]
            self._said.append(said and (numbered, hello.ids[here], clients_of(said)))
        return hello

    def rows(self, model: LocalModel, hello: Handshake) -> list[Any]:
        """What the hosts hold, targets encoded."""
        if self._said is None:
            self.hello(model.estimator_type)
        rows = []
        for root, said in zip(self._roots, self._said, strict=True):
            if said:
                places = locate(hello.ids, said[1])[0]
                here = in_a_row(places)
                limits = Limits(hello.sizes[here], hello.weights[here], hello.n_features)
                settings = places, model, hello.dtype, hello.classes, said[2]
                rows.append(RemoteRows(places, limits, root.line, root, "rows", *settings))
        return rows

    def collected(self, answers: Iterator[Array]) -> Array:
        """Entries of all rows, part by part; see :meth:`Federation.collected`."""
        if self._absent:
            raise FederationError(f"Some rows are not there: {self._absent[0]}")
        parts: dict[int, Array] = {}
        for numbered, *_ in filter(None, self._said):
            numbers, n_rows = zip(*numbered, strict=True)
            split = np.split(next(answers), np.cumsum(n_rows)[:-1])
            parts.update(zip(numbers, split, strict=True))
        return np.concatenate([parts[number] for number in sorted(parts)])
