"""What carries the messages of a server to one host, and its answers."""

import threading
import warnings
from abc import ABC, abstractmethod

from .sites import PlaceLost

#: Name of a request that holds others, and status of the reply that holds theirs.
SEVERAL = "several"


def outcomes(functions):
    """What functions return, or the exceptions that they raise."""
    found = []
    for function in functions:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)
    return found


class Transport(ABC):
    """What carries the messages to one host.

    Attributes
    ----------
    name : str
        What messages call the host.
    reachable : bool
        False if the host is known not to answer now, so that repeating a call is useless.
    wire_bytes : tuple of int
        Bytes of all replies and of all requests so far.
    site : str or None
        Name of the site if the host is one: the ids of its clients begin with it.
    pauses : tuple of float
        Seconds between the tries of a call that a host gives no answer to, see :meth:`pause`.
    """

    name = "host"
    reachable = True
    wire_bytes = (0, 0)
    site = None
    pauses: tuple[float, ...] = ()
    _counting = threading.Lock()

    @abstractmethod
    def start(self, request):
        """Send ``Host.ask(*request)``.

        Parameters
        ----------
        request : tuple
            Arguments of :meth:`Host.ask`.

        Returns
        -------
        wait : callable
            Gives its answer, or raises :class:`~skcfl.federation.sites.PlaceLost`.
        """

    def start_several(self, requests):
        """Send several requests, in one message if the transport can.

        Parameters
        ----------
        requests : list of tuple
            Arguments of :meth:`Host.ask` each.

        Returns
        -------
        wait : callable
            Gives the list of the answers, exceptions in the place of those that there are not;
            raises :class:`~skcfl.federation.sites.PlaceLost` if there is none.
        """
        waiting = [self.start(request) for request in requests]
        return lambda: outcomes(waiting)

    def _count(self, up=0, down=0):
        with self._counting:  # several threads may ask
            self.wire_bytes = self.wire_bytes[0] + up, self.wire_bytes[1] + down

    def report(self, reason):
        """Warn that the host gives no answer.

        Parameters
        ----------
        reason : str
            Why.

        Returns
        -------
        error : PlaceLost
            To be raised.
        """
        warnings.warn(f"No answer of {self.name}: {reason}", stacklevel=2)
        return PlaceLost(f"{self.name}: {reason}")

    def pause(self, last=False):
        """Wait a little before a host is asked again that has not replied.

        Parameters
        ----------
        last : bool, default=False
            Whether the fit goes on without the host for good if it does not reply.

        Returns
        -------
        again : bool
            False, at once, where the host was tried often enough since its last reply.
        """
        return False

    def restore(self):
        """Start a host with the same parts anew, where this one is lost.

        Returns
        -------
        restored : bool
        """
        return False
