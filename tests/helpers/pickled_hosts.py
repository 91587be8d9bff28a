"""Hosts whose messages go through pickle, and that can be lost: remote places in this process."""

import pickle

import numpy as np

from skcfl.federation.hosted_parts import Host
from skcfl.federation.sites import PlaceLost
from skcfl.federation.transport import Transport


class PickledHost(Transport):
    """Transport to a host of this process."""

    def __init__(self, parts, restorable=False, **options):
        self.parts, self.options, self.restorable = parts, options, restorable
        self.name = "host of " + ", ".join(name for _, name, _ in parts)
        self.lost_after, self.n_asked, self.n_restored, self.requests = None, 0, 0, []
        self.host = Host(parts, **options)

    def start(self, request):
        self.n_asked += 1
        self.requests.append(request[3:5])
        if self.lost_after is not None and self.n_asked > self.lost_after:
            self.host = None

        host = self.host
        answer = None if host is None else through(host.ask(*through(request)))

        def wait():
            # Answers of a host that was lost meanwhile do not come.
            if host is None or self.host is None:
                raise PlaceLost(f"{self.name} is lost.")
            return answer

        return wait

    def restore(self):
        if self.restorable and self.host is None:
            self.lost_after, self.n_restored = None, self.n_restored + 1
            self.host = Host(self.parts, **self.options)
        return self.restorable


def through(message):
    """A message as it arrives: arrays are read-only, as over a network."""
    buffers = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers])


def parts_of(data, n_parts, loaded=False):
    """The clients, dealt to parts in no order, some of which are loaded when they are needed."""
    ids, codes = np.unique(data.groups, return_inverse=True)
    place = np.random.RandomState(1).permutation(np.arange(len(ids)) % n_parts)[codes]
    parts = []
    for k in range(n_parts):
        rows = tuple(values[place == k] for values in (data.X, data.y, data.groups))
        parts.append((lambda rows=rows: rows) if loaded else rows)
    return parts


def named(parts):
    return [(k, f"part {k}", part) for k, part in enumerate(parts)]
