"""Two sites that load their own rows, and wires of bytes to them: remote sites in this process."""

import threading

import numpy as np

from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import SiteRows
from skcfl.federation.host import SiteHost
from skcfl.federation.wire import WireTransport

REGRESSION = make_clustered_regression(6, 2, 3, n_samples=12, random_state=0)
CLASSES = make_clustered_classification(6, 2, 3, n_samples=14, random_state=0)
IDS = np.unique(REGRESSION.groups)
SITES = {"north": IDS[:2], "south": IDS[2:]}


class Table(SiteRows):
    """Rows of some clients of a data set, changed by a test."""

    def __init__(self, name, data=REGRESSION, change=None, policy=None):
        super().__init__(name)
        here = np.isin(data.groups, SITES[name])
        self.rows = data.X[here], data.y[here], data.groups[here]
        self.change, self.policy = change, policy

    def load(self):
        return self.rows if self.change is None else self.change(*self.rows)


class Given(SiteRows):
    """Rows of a site, as they are given."""

    def __init__(self, name, rows, policy=None):
        super().__init__(name)
        self.rows, self.policy = rows, policy

    def load(self):
        return self.rows


class Wire(WireTransport):
    """What NVFlare is in the tests: bytes there and back, to a site that may fail."""

    pauses = ()

    def __init__(self, rows, fails=lambda number: None):
        super().__init__(rows.name)
        self.host, self.fails, self.sent = SiteHost(rows), fails, []
        self.waiting, self.replies = [], []  # names of threads that have waited, and what came

    @property
    def n_waited(self):
        """How often the fit has waited for a reply."""
        return len(self.waiting) - self.waiting.count("skcfl call back")

    def send(self, message):
        assert isinstance(message, bytes)
        self.sent.append(message)
        number = len(self.sent)

        def wait():
            self.waiting.append(threading.current_thread().name)
            failure = self.fails(number)
            if failure is not None:
                raise failure
            reply = self.host.handle(message)
            assert isinstance(reply, bytes)
            self.replies.append(reply)
            return reply

        return wait


def named(data=REGRESSION):
    """The data as the server knows its clients."""
    site = np.where(np.isin(data.groups, SITES["north"]), "north/", "south/")
    return np.char.add(site, data.groups)


def wires(data=REGRESSION, **south):
    return [Wire(Table("north", data)), Wire(Table("south", data, **south))]
