"""State that clients keep between calls, each for itself."""

import numpy as np


class ClientMemory:
    """State that clients keep between calls, by name: arrays with an entry per client.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    """

    def __init__(self, n_clients):
        self.n_clients, self._kept = n_clients, {}

    def knows(self, name, clients):
        """Which of some clients keep something of this name, (m,) of bool."""
        if name not in self._kept:
            return np.zeros(len(clients), dtype=bool)
        return self._kept[name][1][clients]

    def recall(self, name, clients, otherwise):
        """Copies of what some clients keep, (m, ...); of those that keep nothing `otherwise`."""
        out, known = np.array(otherwise), self.knows(name, clients)
        if known.any():
            out[known] = self._kept[name][0][clients[known]]
        return out

    def keep(self, name, clients, values):
        """Let some clients keep their entries of an array (m, ...)."""
        if name not in self._kept:
            everyone = np.zeros((self.n_clients, *values.shape[1:]), dtype=values.dtype)
            self._kept[name] = everyone, np.zeros(self.n_clients, dtype=bool)
        kept, known = self._kept[name]
        kept[clients], known[clients] = values, True
