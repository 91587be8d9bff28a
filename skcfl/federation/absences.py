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
        self._open, self._found = {}, []

    def note(self, places, answered):
        """Note a request to some clients, and which of them have answered; None is all."""
        self.calls += 1
        if answered is None and not self._open:
            return
        places = np.asarray(places)
        here = places if answered is None else places[answered]
        now = time.perf_counter() - self._began
        for place in self._open.keys() & set(here.tolist()):
            first, since = self._open.pop(place)
            self._found.append((place, first, self.calls, since, now))
        if answered is not None:
            for place in places[~answered].tolist():
                self._open.setdefault(place, (self.calls, now))

    @property
    def n_silences(self):
        """How often a client was silent so far, however long."""
        return len(self._open) + len(self._found)

    def listed(self):
        """All silences, a dict each, in their order.

        Returns
        -------
        absences : list of dict
            "client", the number of the first request that it left unanswered and of the one that
            it answered again ("from_call", "to_call"), and the seconds of the fit at both. The
            end is None if the client did not come back.
        """
        still = [(place, first, None, since, None) for place, (first, since) in self._open.items()]
        return [
            {
                "client": self.ids[place : place + 1].tolist()[0],
                "from_call": first,
                "to_call": last,
                "from_seconds": since,
                "to_seconds": until,
            }
            for place, first, last, since, until in sorted(
                self._found + still, key=lambda one: (one[1], one[0])
            )
        ]
