"""Which clients were away in a fit, and when."""

import time

import numpy as np


class Absences:
    """Silences of clients, each from the first request without an answer to the next answer.

    Requests are numbered in their order, also those of parallel tasks; retries have no number.

    Parameters
    ----------
    ids : ndarray of shape (n_clients,)
        The clients' ids.
    """

    def __init__(self, ids):
        self.ids, self.calls, self._began = ids, 0, time.perf_counter()
        self._all, self._open = [], {}

    def note(self, places, answered):
        """Note a request to some clients, and which of them have answered; None is all."""
        self.calls += 1
        if answered is None and not self._open:
            return
        places = np.asarray(places)
        here = places if answered is None else places[answered]
        now = time.perf_counter() - self._began
        for place in self._open.keys() & set(here.tolist()):
            self._open.pop(place).update(to_call=self.calls, to_seconds=now)
        if answered is not None:
            for place in np.sort(places[~answered]).tolist():
                if place not in self._open:
                    self._open[place] = self._begun(place, now)

    def _begun(self, place, now):
        """A new silence of a client, in the list."""
        silence = {
            "client": self.ids[place : place + 1].tolist()[0],
            "from_call": self.calls,
            "to_call": None,
            "from_seconds": now,
            "to_seconds": None,
        }
        self._all.append(silence)
        return silence

    @property
    def n_silences(self):
        """How often a client was silent so far, however long."""
        return len(self._all)

    def listed(self):
        """All silences, a dict each, in their order.

        Returns
        -------
        absences : list of dict
            "client", the number of the first request that it left unanswered and of the one that
            it answered again ("from_call", "to_call"), and the seconds of the fit at both. The
            end is None if the client did not come back.
        """
        return [dict(silence) for silence in self._all]
