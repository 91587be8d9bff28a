"""Several sites as one: arguments are split by client, answers are joined."""

import numpy as np

from ..calls import CALLS
from ..numerics.matrices import in_a_row
from .sites import Site
from .turns import pass_turn


class FanOut(Site):
    """Clients that are in several places.

    Parameters
    ----------
    parts : list of (Site, ndarray)
        Sites, and the positions of their clients in the whole federation.

    Notes
    -----
    Answers are those of one site with all clients but for the rounding of sums, because each
    client's answer depends on what it is sent and on who it is, see
    :mod:`skcfl.clients.draws`.
    """

    def __init__(self, parts):
        parts = [(site, np.asarray(places)) for site, places in parts]
        self.parts = [part for part in parts if len(part[1])] or parts[:1]
        self.n_clients = sum(len(places) for _, places in self.parts)
        self.travels = any(site.travels for site, _ in self.parts)
        self.client_sizes = self._gathered("client_sizes")
        self.client_weights = self._gathered("client_weights")
        self.without_rows = self._gathered("without_rows")

    def _gathered(self, name):
        return self._joined([getattr(site, name) for site, _ in self.parts])

    def _joined(self, answers):
        """One array of the clients' entries, in their order; `answers` is used up."""
        shape = np.shape(answers[0])[1:]
        out = np.empty((self.n_clients, *shape), dtype=np.result_type(*answers))
        for _, places in self.parts:
            out[in_a_row(places)] = answers.pop(0)
        return out

    @property
    def reachable(self):
        """Clients that may answer if a call is repeated."""
        return self._gathered("reachable")

    def answer(self, call, arguments):
        """Ask every site for its clients, and join what they say."""
        message = CALLS[call]
        waiting, clusters = [], []
        for site, places in self.parts:
            own = {name: message.own(name, value, places) for name, value in arguments.items()}
            # A site gets no models of clusters that are elsewhere.
            own, used = message.narrowed(own)
            waiting.append(site.begin(call, own))
            clusters.append(used)
        pass_turn()
        answers = []
        while waiting:  # which hold what has come
            answers.append(waiting.pop(0)())
        joined = {}
        for name, shape in message.up.items():
            values = [answer.pop(name) for answer in answers]
            if message.is_of_clients(name):
                joined[name] = self._joined(values)
            elif shape.startswith("K"):
                joined[name] = _sum_of_clusters(values, clusters, len(arguments["theta"]))
            else:
                joined[name] = sum(values)
        for name, otherwise in (("answered", True), ("non_finite", False)):
            if any(name in answer for answer in answers):
                nothing = [np.full(len(places), otherwise) for _, places in self.parts]
                masks = zip(answers, nothing, strict=True)
                joined[name] = self._joined([answer.get(name, mask) for answer, mask in masks])
        return joined

    def derive(self, step, *arguments):
        """Sites of the same clients, of some of them, or of parts of their rows."""
        own, places = [arguments] * len(self.parts), [places for _, places in self.parts]
        if step == "subset":
            position = np.full(self.n_clients, -1)
            position[arguments[0]] = np.arange(len(arguments[0]))
            here = [np.flatnonzero(position[some] >= 0) for some in places]
            own = [(some,) for some in here]
            places = [position[every[some]] for every, some in zip(places, here, strict=True)]
        made = [site.derive(step, *some) for (site, _), some in zip(self.parts, own, strict=True)]
        return [FanOut(zip(sites, places, strict=True)) for sites in zip(*made, strict=True)]


def _sum_of_clusters(values, clusters, n_clusters):
    """Sums of values (k, ...) of some clusters each, all if None: (n_clusters, ...)."""
    total = np.zeros((n_clusters, *values[0].shape[1:]), dtype=np.result_type(*values))
    for value, used in zip(values, clusters, strict=True):
        total[slice(None) if used is None else used] += value
    return total


def joined(parts):
    """One site of (Site, positions) pairs: the only one itself if in order, else a fan-out."""
    site, places = parts[0]
    alone = len(parts) == 1 and np.array_equal(places, np.arange(len(places)))
    return site if alone else FanOut(parts)
