"""Ledger: how many floats the server and the clients have sent each other."""


class Ledger:
    """Count of the numbers sent between the clients and the server.

    Every call of a :class:`~skcfl.federation.ClientPool` books what it would cost over a
    network: parameters, gradients, losses and labels count as one float each.  Pools
    made from one another share their ledger.

    Attributes
    ----------
    up : int
        Floats sent by the clients to the server.
    down : int
        Floats sent by the server to the clients.
    calls : int
        Exchanges with the clients, however many of them took part.

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

    def __init__(self):
        self.up = 0
        self.down = 0
        self.calls = 0
        self._mark = (0, 0)

    def book(self, *, up=0, down=0):
        """Add one exchange: floats sent up (by clients) and down (to clients)."""
        self.calls += 1
        self.up += int(up)
        self.down += int(down)

    def take_over(self, other):
        """Add what another ledger has counted, as one exchange, and set that one to zero."""
        self.book(up=other.up, down=other.down)
        other.up = other.down = other.calls = 0
        other._mark = (0, 0)

    def since_mark(self):
        """Floats ``(up, down)`` since the last call, which marks the end of a round."""
        up, down = self.up - self._mark[0], self.down - self._mark[1]
        self._mark = (self.up, self.down)
        return up, down
