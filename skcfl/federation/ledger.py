"""Ledger: how many floats the server and the clients have sent each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

#: What the history of a fit has of each round.
COLUMNS = ("floats_up", "floats_down", "calls", "seconds", "bytes_up", "bytes_down")


class Ledger:
    """Count of the numbers sent between the clients and the server.

    Every call of a :class:`~skcfl.federation.ClientPool` counts what it would cost over a
    network: parameters, gradients, losses and labels count as one float each.  Pools
    made from one another share their ledger.

    Attributes
    ----------
    up : int
        Floats sent by the clients to the server.
    down : int
        Floats sent by the server to the clients.
    calls : int
        Exchanges with the clients, however many of them took part, one after the other: what does
        not wait for each other's answers is asked at the same time, and counts once.
    client_calls : int
        Clients asked, summed over the exchanges.
    shared_bytes, own_bytes : tuple of int
        Bytes ``(up, down)`` of the messages of a site that holds all the clients: what is for all
        of them or summed over them, which travels once however many they are, and what is each
        client's own.  Settings, and what clients were sent before, travel here too.
    envelopes : tuple of int
        Bytes ``(up, down)`` around these values in the messages of one site.
    requests : int
        Requests that these messages hold; one for each exchange, and more in lockstep.
    counts : bool
        False if nothing that is booked is sent, so that nothing need be counted.
    in_series : bool
        If True, nothing that is booked here is asked at the same time as what others book.
    wire : callable or None
        Returns the bytes ``(up, down)`` that have travelled to and from other processes in this
        fit; None where there are none.

    Examples
    --------
    >>> from skcfl.federation.ledger import Ledger
    >>> ledger = Ledger()
    >>> ledger.book(up=10, down=30)
    >>> ledger.since_mark()
    (10, 30)
    >>> ledger.since_mark(), ledger.up, ledger.down
    ((0, 0), 10, 30)
    """

    counts = True

    def __init__(self, in_series: bool = False) -> None:
        self.in_series = in_series
        self.up = 0
        self.down = 0
        self.calls = 0
        self.client_calls = 0
        self.shared_bytes = (0, 0)
        self.own_bytes = (0, 0)
        self.envelopes = (0, 0)
        self.requests = 0
        self.wire: Callable[[], tuple[int, int]] | None = None
        self._mark = self._counts()

    @property
    def wire_bytes(self) -> tuple[int, int]:
        """Bytes ``(up, down)`` that have travelled."""
        return (0, 0) if self.wire is None else self.wire()

    def _counts(self) -> tuple[float, ...]:
        return self.up, self.down, self.calls, time.perf_counter(), *self.wire_bytes

    def book(
        self,
        *,
        up: float = 0,
        down: float = 0,
        clients: float = 0,
        shared_bytes: tuple[int, int] = (0, 0),
        own_bytes: tuple[int, int] = (0, 0),
        envelope: tuple[int, int] = (0, 0),
        calls: int = 1,
    ) -> None:
        """Add one exchange: floats sent up (by clients) and down (to clients), clients asked.

        And the bytes ``(up, down)`` that a site of all these clients sends and is sent: of the
        values, and around them.  What goes with the next exchange is none of its own,
        ``calls=0``.
        """
        self.calls += calls
        self.client_calls += int(clients)
        self.up += int(up)
        self.down += int(down)
        self.shared_bytes = _plus(self.shared_bytes, shared_bytes)
        self.own_bytes = _plus(self.own_bytes, own_bytes)
        self.envelopes = _plus(self.envelopes, envelope)
        self.requests += 1

    def take_over(self, others: Iterable[Ledger]) -> None:
        """Add what other ledgers have counted at the same time, and set them to zero.

        Their exchanges travel together, so that the longest series of them counts, unless they
        are in series.
        """
        others = list(others)
        longest = max(others, key=lambda other: other.calls)
        for other in others:
            if other is longest or other.in_series:
                self.calls += other.calls
                self.client_calls += other.client_calls
        for other in others:
            self.up += other.up
            self.down += other.down
            self.shared_bytes = _plus(self.shared_bytes, other.shared_bytes)
            self.own_bytes = _plus(self.own_bytes, other.own_bytes)
            self.envelopes = _plus(self.envelopes, other.envelopes)
            self.requests += other.requests
            vars(other).update({**vars(Ledger(other.in_series)), "wire": other.wire})
            other.close_round()

    def published(self) -> dict[str, Any]:
        """Attributes of a fit that say what it has sent."""
        return {
            "floats_up_": self.up,
            "floats_down_": self.down,
            "calls_": self.calls,
            "client_calls_": self.client_calls,
            "wire_bytes_": self.wire_bytes,
            "_site_bytes": (self.shared_bytes, self.own_bytes),
            "_envelopes": self.envelopes,
            "_requests": self.requests,
        }

    def close_round(self) -> dict[str, float]:
        """What has happened since the last call, by column of a fit's history."""
        before, self._mark = self._mark, self._counts()
        since = (new - old for new, old in zip(self._mark, before, strict=True))
        return dict(zip(COLUMNS, since, strict=True))

    def since_mark(self) -> tuple[int, int]:
        """Floats ``(up, down)`` since the last call, which marks the end of a round."""
        closed = self.close_round()
        return int(closed["floats_up"]), int(closed["floats_down"])


def _plus(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + int(b[0]), a[1] + int(b[1])
