"""Clients of a pool among the nodes of a graph: the other nodes have no rows, and no client."""

import numpy as np

from ..calls.letters import sizes_of


class NodePool:
    """The pool as solvers of fusion problems use it, of nodes that include its clients.

    A node that is no client of the pool has no rows: its objective is zero, and nothing is sent or
    booked for it.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    places : ndarray of shape (pool.n_clients,)
        Their nodes, ascending.
    n_nodes : int
        Number of nodes.
    """

    #: Who has answered is asked of the pool of the clients.
    answered = None

    def __init__(self, pool, places, n_nodes):
        self.pool, self.places, self.n_clients = pool, np.asarray(places), n_nodes
        self.client_weights = self._of_nodes(pool.client_weights)
        self.client_sizes = self._of_nodes(pool.client_sizes)
        self.without_rows = self._of_nodes(pool.without_rows, True)
        for name in ("n_params", "dtype", "model", "ledger", "random_state", "travels"):
            setattr(self, name, getattr(pool, name))

    def _of_nodes(self, values, other=0):
        """Values of the clients (n_clients, ...) at their nodes, `other` elsewhere."""
        out = np.full((self.n_clients, *values.shape[1:]), other, dtype=values.dtype)
        out[self.places] = values
        return out

    def _of_clients(self, values):
        """Entries of the clients, of one for every node; a number is that of all."""
        return values if values is None or np.ndim(values) == 0 else values[self.places]

    def subset(self, nodes):
        """Some of the nodes, in the given order."""
        nodes = np.arange(self.n_clients)[nodes]
        client = np.full(self.n_clients, -1)
        client[self.places] = np.arange(len(self.places))
        client = client[nodes]
        here = np.flatnonzero(client >= 0)
        pool = self.pool.subset(client[here])
        return pool if len(here) == len(nodes) else NodePool(pool, here, len(nodes))

    def ask(self, call, *args, **options):
        """The answers of the clients; what nodes without rows answer is known.

        Parameters
        ----------
        call : type
            A class of :mod:`skcfl.calls`.
        *args, **options : object
            As of :meth:`skcfl.federation.ClientPool.ask`.

        Returns
        -------
        answers : object
        """
        named = {name: options.pop(name) for name in call.down.keys() & options.keys()}
        given = call.signature.bind(*args, **named).arguments
        sent = call.asked(self, **given)
        out = call.silence(sent, sizes_of(self, sent), self.model)
        call.begin(self, out, sent)
        start = sent.get(call.start)
        mine = {
            name: self._of_clients(value) if call.whose_down.get(name) == "n" else value
            for name, value in given.items()
        }
        answers = self.pool.ask(call, **mine, **options)
        out, several = call.result(self, out, sent, start), isinstance(answers, tuple)
        if not several:
            out, answers = (out,), (answers,)
        both = []
        for name, value, own in zip(call.up, out, answers, strict=True):
            if call.is_of_clients(name):
                value[self.places] = own
            both.append(value if call.is_of_clients(name) else own)
        return tuple(both) if several else both[0]

    def lane(self, **options):
        """The same nodes with a separate ledger, see :meth:`ClientPool.lane`."""
        return NodePool(self.pool.lane(**options), self.places, self.n_clients)

    def spectrum(self):
        """Curvatures, zero of nodes without rows."""
        return tuple(map(self._of_nodes, self.pool.spectrum()))

    def relay(self, up=0, down=0):
        """Book what clients send each other."""
        self.pool.relay(up, down)
