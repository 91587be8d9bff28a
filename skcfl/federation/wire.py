"""The way of a server to a site that answers in bytes."""

from __future__ import annotations

import warnings
from abc import abstractmethod

from ..exceptions import FederationError, MessageError
from .last_answers import Forgotten
from .remote import Transport
from .serialization import dumps, loads
from .sites import PlaceLost, Refused

#: What the reply of a site begins with: see :meth:`~skcfl.federation.host.SiteHost.handle`.
STATUSES = ("done", "unknown", "invalid", "forgotten", "lost", "refused")


class WireTransport(Transport):
    """The way to a :class:`~skcfl.federation.host.SiteHost`, whatever carries the bytes.

    A site that does not answer, for whatever reason, is lost: its clients are silent.  Rows that
    cannot be taken are an error.

    Parameters
    ----------
    name : str
        Name of the site.
    patience : int, default=3
        How many calls in a row a site may leave without an answer; it is not waited for again.
        Calls that were on their way at the same time count as one.

    Attributes
    ----------
    failures : list of str
        Why the site did not answer, each reason once; there is a warning with each.
    messages : int
        How many were sent.
    """

    def __init__(self, name, patience=3):
        self.name, self.patience = name, patience
        self.failures, self.messages, self._missed = [], 0, 0

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
        if self._missed >= self.patience:
            return _raising(self._lost(f"not asked again after {self.patience} calls"))
        self.messages += 1
        missed = self._missed
        try:
            receive = self.send(dumps(request))
        except FederationError:
            raise
        except Exception as error:
            receive = _raising(error)

        def wait():
            try:
                status, value, note = _reply(loads(receive()))
            except FederationError:
                raise
            except Exception as error:
                self._missed = max(self._missed, missed + 1)
                kind = "" if isinstance(error, PlaceLost) else f"{type(error).__name__}: "
                raise self._lost(f"{kind}{error}") from error
            self._missed = 0
            if note is not None:
                self._lost(note)
            if status == "invalid":
                raise ValueError(value)
            if status == "forgotten":
                raise Forgotten(value)
            if status in ("lost", "refused"):
                raise self._lost(value, Refused if status == "refused" else PlaceLost)
            return status, value

        return wait

    def _lost(self, reason, kind=PlaceLost):
        text = f"site {self.name!r}: {reason}"
        if text not in self.failures:
            self.failures.append(text)
            warnings.warn(f"No answer of {text}", stacklevel=2)
        return kind(text)


def _reply(message):
    """The reply of a site, or a MessageError if it is none."""
    if isinstance(message, tuple) and len(message) == 3 and message[0] in STATUSES:
        _, value, note = message
        if (message[0] in STATUSES[:2] or isinstance(value, str)) and isinstance(note, str | None):
            return message
    raise MessageError("it is no reply of a site.")


def _raising(error):
    def wait():
        raise error

    return wait
