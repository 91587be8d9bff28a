"""Messages of sites of this process: bytes beside the estimate, a large hello, many sites.

    python benchmarks/wires.py --bytes            # estimate_cost beside what travelled
    python benchmarks/wires.py --hello 1000000    # seconds and bytes a client of the first message
    python benchmarks/wires.py --sites 5000       # a fit to as many sites, one of which is late

The bytes are those of NVFlare's messages, handed over in this process. Its transport adds its
own, and time: see ``nvflare_calls.py``.
"""

import argparse
import itertools
import resource
import threading
import time
import warnings

import numpy as np

from skcfl import (
    FedAvgRegressor,
    GTVRegressor,
    IFCARegressor,
    LocalModelsRegressor,
    PartialPoolingRegressor,
)
from skcfl.datasets import make_clustered_regression
from skcfl.federation import SiteRows, estimate_cost
from skcfl.federation.host import SiteHost
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import MAX_BYTES
from skcfl.federation.wire import WireTransport

# Clients and features of the fits whose bytes are counted.
SIZES = ((10, 4), (30, 20), (100, 20))
# Messages after which a site is late.
LATE_AFTER = 12


class Table(SiteRows):
    """Rows that a function makes."""

    def __init__(self, name, make):
        super().__init__(name)
        self.make = make

    def load(self):
        return self.make()


class Way(WireTransport):
    """Messages to a site of this process, which may be late from some message on."""

    def __init__(self, name, make):
        super().__init__(name)
        self.host, self.late, self.number, self.waited = SiteHost(Table(name, make)), None, 0, 0

    def send(self, message):
        self.number += 1
        if self.late is None or self.number <= LATE_AFTER:
            reply = self.host.handle(message)
            return lambda: reply

        def wait():
            time.sleep(self.late)
            self.waited += threading.current_thread().name != "skcfl call back"
            raise TimeoutError(f"no answer in {self.late} s")

        return wait


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure_bytes():
    print("estimated over taken, of two sites: method, clients, features, exchanges, up, down")
    for n, d in SIZES:
        data = make_clustered_regression(n, 3, d, n_samples=30, random_state=0)
        ids = np.unique(data.groups)
        halves = {"a": ids[: n // 2], "b": ids[n // 2 :]}

        def rows(name, data=data, halves=halves):
            here = np.isin(data.groups, halves[name])
            return data.X[here], data.y[here], data.groups[here]

        groups = np.char.add(np.where(np.isin(data.groups, halves["a"]), "a/", "b/"), data.groups)
        for method in (
            FedAvgRegressor(),
            IFCARegressor(n_clusters=3, random_state=0),
            GTVRegressor(lam=0.1),
            LocalModelsRegressor(),
            PartialPoolingRegressor(),
        ):
            ways = [Way(name, lambda name=name: rows(name)) for name in halves]
            taken = method.fit_federation(RemoteFederation(ways)).wire_bytes_
            method.fit(data.X, data.y, groups=groups)
            free = {"latency": 0.0, "uplink": 1e9, "downlink": 1e9, "seconds_per_row": 0.0}
            cost = estimate_cost(method, **free, n_sites=2)
            print(
                f"{type(method).__name__:<26}{n:>5}{d:>4}{method.calls_:>6}"
                f"{cost.bytes_up / taken[0]:>8.3f}{cost.bytes_down / taken[1]:>8.3f}",
                flush=True,
            )


def measure_hello(n_clients):
    numbers = np.arange(n_clients)
    ids = {
        "numbers": numbers,
        "text": np.array([f"patient{k:07d}" for k in numbers], dtype=object),
    }
    for (kind, values), n_sites in itertools.product(ids.items(), (2, 1)):
        size = n_clients // n_sites

        def rows(values=values[:size]):
            return np.ones((len(values), 2)), np.ones(len(values)), values

        federation = RemoteFederation([Way(name, rows) for name in ("north", "south")[:n_sites]])
        for what in ("rows loaded", "rows there"):
            start = time.perf_counter()
            federation.hello("regressor")
            took = time.perf_counter() - start
            up, _ = federation.wire_bytes
            print(
                f"hello of {n_clients} clients, ids of {kind}, {n_sites} sites, {what}: "
                f"{took:.2f} s, {1e6 * took / n_clients:.2f} us and {up / n_clients:.0f} bytes a "
                f"client, {MAX_BYTES * n_clients // (up // n_sites) // n_sites} clients a site at "
                f"most, {peak()} MB at most",
                flush=True,
            )


def measure_sites(n_sites, timeout):
    def rows(k):
        rng = np.random.default_rng(k)
        X = rng.standard_normal((20, 5))
        return X, X.sum(axis=1) + rng.standard_normal(20), None

    ways = [Way(f"{k:05d}", lambda k=k: rows(k)) for k in range(n_sites)]
    federation, model = RemoteFederation(ways, retries=1), FedAvgRegressor(alpha=0.01, max_iter=5)
    took = []
    for late in (None, timeout):
        ways[7].late, ways[7].number = late, 0
        start = time.perf_counter()
        model.fit_federation(federation)
        took.append(time.perf_counter() - start)
        up, down = model.wire_bytes_
        print(
            f"{n_sites} sites, {'one late' if late else 'all answer'}: {took[-1]:.1f} s, "
            f"{model.calls_} exchanges, {up / n_sites:.0f} bytes up and {down / n_sites:.0f} down "
            f"a site, missing {model.missing_clients_.tolist()}, {peak()} MB at most",
            flush=True,
        )
    print(f"timeouts of {timeout} s that the fit waited for: {ways[7].waited}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", action="store_true")
    parser.add_argument("--hello", type=int, metavar="CLIENTS")
    parser.add_argument("--sites", type=int)
    parser.add_argument("--timeout", type=float, default=5.0, help="of the late site")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.bytes:
        measure_bytes()
    if options.hello:
        measure_hello(options.hello)
    if options.sites:
        measure_sites(options.sites, options.timeout)


if __name__ == "__main__":
    main()
