"""The way of a server to a site that answers in bytes."""

import itertools
import logging
import secrets
import threading
import time
import warnings
from abc import abstractmethod
from functools import partial

from ..clients.last_answers import Forgotten
from ..exceptions import FederationError, MessageError
from .serialization import dumps, loads, number_of
from .sites import PlaceLost, Refused, Unreached, raising
from .transport import SEVERAL, Transport, outcomes

#: Largest number of a site's reasons that are kept.
MOST_REASONS = 100
#: Characters of a reason that are kept.
LONGEST_REASON = 500
#: What the reply of a site begins with: see :meth:`~skcfl.federation.host.SiteHost.handle`.
STATUSES = ("done", "unknown", "invalid", "forgotten", "lost", "refused")

logger = logging.getLogger(__name__)


class WireTransport(Transport):
    """The way to a :class:`~skcfl.federation.host.SiteHost`, whatever carries the bytes.

    A site that does not answer, for whatever reason, is lost: its clients are silent.  Rows that
    cannot be taken are an error.

    Parameters
    ----------
    name : str
        Name of the site.
    patience : int, default=3
        How many calls in a row a site may leave without an answer; then calls do not wait for it
        until it answers again, or until a new fit begins. Calls that were on their way at the same
        time count as one. A site that is late once is not waited for again: it costs one timeout.
        One that refuses, as while it is started again, is tried after each of the `pauses` first.

    Attributes
    ----------
    failures : list of str
        Why the site did not answer, each reason once; there is a warning with each.
    messages : int
        How many were sent.
    pauses : tuple of float
        Seconds between tries: six seconds in all, for one silence, and as many before the fit
        goes on without the site for good.
    """

    pauses = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)

    def __init__(self, name, patience=3):
        self.name, self.site, self.patience = name, name, patience
        self.failures, self.messages, self._missed, self._paused = [], 0, 0, 0
        self._calling = threading.Lock()
        # No number is that of another server's message.
        self._numbers = itertools.count(1 + secrets.randbits(62))

    @property
    def reachable(self):
        """Whether calls wait for the site; see ``Transport.reachable``."""
        return self._missed < self.patience

    @abstractmethod
    def send(self, message):
        """Send a message.

        Parameters
        ----------
        message : bytes
            What :meth:`~skcfl.federation.host.SiteHost.handle` takes.

        Returns
        -------
        wait : callable
            Gives the reply, bytes, or raises an error that says why there is none; a
            FederationError ends the fit.
        """

    def start(self, request):
        """Send a request; see ``Transport.start``."""
        receive = self._start(request)
        return lambda: self._taken(*receive())

    def start_several(self, requests):
        """Send requests in one message; see ``Transport.start_several``."""
        if len(requests) == 1:
            return super().start_several(requests)
        receive = self._start((0, [], [], SEVERAL, (requests,)))

        def wait():
            status, value, note = receive()
            if status != SEVERAL:
                return [self._taken(status, value, note)] * len(requests)
            if len(value) != len(requests):
                raise self.report(f"it replied to {len(value)} of {len(requests)} requests")
            return outcomes([partial(self._taken, *reply) for reply in value])

        return wait

    def _start(self, request):
        """Send a request; the function returned gives status, value and note of the reply."""
        if not self.reachable and request[3] != "hello":  # a new fit waits again
            if self._calling.acquire(blocking=False):
                about = {"name": "skcfl call back", "args": (request,), "daemon": True}
                threading.Thread(target=self._call_back, **about).start()
            return raising(self.report("not waited for until it answers again", Unreached))
        missed = self._missed
        try:
            receive = self._send(request)
        except FederationError:
            raise
        except Exception as error:
            receive = raising(error)

        def wait():
            try:
                reply = receive()
            except FederationError:
                raise
            except Exception as error:
                late = self.patience if isinstance(error, TimeoutError) else missed + 1
                self._missed = max(self._missed, late)
                kind = "" if isinstance(error, PlaceLost) else f"{type(error).__name__}: "
                lost = PlaceLost if isinstance(error, MessageError) else Unreached
                raise self.report(f"{kind}{error}", lost) from error
            self._missed = self._paused = 0
            return reply

        return wait

    def pause(self, last=False):
        """Wait a little before the next try, which counts as the same call."""
        if not self._missed:
            return True  # it has replied to others meanwhile
        number = len(self.pauses)
        if self._paused >= number * (1 + last) or not (last or self.reachable):
            return False
        time.sleep(self.pauses[self._paused % number])
        self._paused += 1
        if self.reachable:
            self._missed = 0
        return True

    def _taken(self, status, value, note):
        """Status and value of a reply, or what is raised for it."""
        if note is not None:
            self.report(note)
        if status == "invalid":
            raise ValueError(value)
        if status == "forgotten":
            raise Forgotten(value)
        if status in ("lost", "refused"):
            raise self.report(value, Refused if status == "refused" else PlaceLost)
        return status, value

    def _send(self, request):
        """Send a request, and count it; returns what waits for the reply."""
        number = next(self._numbers)
        data = dumps(request, number=number)
        self.messages += 1
        self._count(down=len(data))
        receive = self.send(data)

        def wait():
            reply = receive()
            self._count(up=len(reply))
            taken = _reply(loads(reply))
            if number_of(reply) != number:
                raise MessageError("it replied to another message.")
            return taken

        return wait

    def _call_back(self, request):
        """Send a site that is away what it is asked; once it replies, calls wait for it again.

        The reply is dropped. The next call resends what the site needs to know.
        """
        try:
            self._send(request)()
        except Exception as error:
            logger.debug("site %r is still away: %s", self.name, error)
        else:
            self._missed = self._paused = 0
            logger.info("site %r answers again", self.name)
        finally:
            self._calling.release()

    def report(self, reason, kind=PlaceLost):
        """Warn that the site gives no answer; see ``Transport.report``."""
        # A site chooses its reasons: neither they nor their number fill a log.
        text = f"site {self.name!r}: {reason:.{LONGEST_REASON}}"
        if text not in self.failures and len(self.failures) < MOST_REASONS:
            self.failures.append(text)
            warnings.warn(f"No answer of {text}", stacklevel=2)
        return kind(text)


def _reply(message):
    """The reply of a site, or a MessageError if it is none."""
    if isinstance(message, tuple) and len(message) == 3 and message[0] == SEVERAL:
        if isinstance(message[1], list):
            return SEVERAL, [_reply(part) for part in message[1]], None
    elif isinstance(message, tuple) and len(message) == 3 and message[0] in STATUSES:
        _, value, note = message
        if (message[0] in STATUSES[:2] or isinstance(value, str)) and isinstance(note, str | None):
            return message
    raise MessageError("it is no reply of a site.")
