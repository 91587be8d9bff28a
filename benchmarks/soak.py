"""Many fits to the same sites, each a process of its own: is memory flat, who comes back?

    python benchmarks/soak.py --fits 60

Sites are processes that hold rows and answer NVFlare's messages over a pipe. Each fit has a
checkpoint. Methods take turns. Every ``--every`` fits the resident memory of server and sites is
printed. ``--away`` stops one site for some seconds in the middle of a fit (SIGSTOP, as a machine
that swaps does) and prints who was away, and when.
"""

import argparse
import os
import signal
import tempfile
import threading
import time
import warnings
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from skcfl import (
    ConvexClusteredFLRegressor,
    FedAvgRegressor,
    GTVRegressor,
    IFCARegressor,
    PartialPoolingRegressor,
)
from skcfl.datasets import make_clustered_regression
from skcfl.federation import SiteRows
from skcfl.federation.host import SiteHost
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.wire import WireTransport

METHODS = (
    FedAvgRegressor(),
    IFCARegressor(n_clusters=3, random_state=0),
    PartialPoolingRegressor(random_state=0),
    GTVRegressor(lam=0.1),
    ConvexClusteredFLRegressor(lam=0.1),
)


class Wards(SiteRows):
    """Rows that a site makes for itself."""

    def load(self):
        data = make_clustered_regression(12, 3, 8, n_samples=60, random_state=int(self.name))
        return data.X, data.y, data.groups


def serve(pipe, name):
    """What the process of a site does."""
    host = SiteHost(Wards(name))
    pipe.send_bytes(b"ready")
    while True:
        try:
            pipe.send_bytes(host.handle(pipe.recv_bytes()))
        except EOFError:
            return


class Pipe(WireTransport):
    """The way to a site in another process; answers that come too late are passed over."""

    def __init__(self, name, timeout):
        super().__init__(name)
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name), daemon=True)
        self.process.start()
        theirs.close()
        self.timeout, self._lock = timeout, threading.Lock()
        self._sent = self._received = 0

    def wait_until_ready(self):
        self._pipe.recv_bytes()

    def send(self, message):
        with self._lock:
            self._pipe.send_bytes(message)
            self._sent += 1
            number = self._sent

        def wait():
            until = time.monotonic() + self.timeout
            with self._lock:
                while self._pipe.poll(max(until - time.monotonic(), 0.0)):
                    reply = self._pipe.recv_bytes()
                    self._received += 1
                    if self._received == number:
                        return reply
            raise TimeoutError(f"no answer in {self.timeout} s")

        return wait


def megabytes(pid):
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(ways, n_fits, every, seconds, folder):
    federation, start = RemoteFederation(ways), time.perf_counter()
    for k, method in enumerate(islice(cycle(METHODS), n_fits), 1):
        method.fit_federation(federation, folder / "fit", every=0.0, resume=True)
        took = time.perf_counter() - start
        if k % every == 0 or k in (1, len(METHODS)) or took > seconds:
            sizes = ", ".join(f"{megabytes(way.process.pid):.1f}" for way in ways)
            print(
                f"{k:>5} fits, {took:6.1f} s: server {megabytes(os.getpid()):.1f} MB, sites "
                f"{sizes} MB, {len(os.listdir('/proc/self/fd'))} open files, "
                f"{threading.active_count()} threads, missing {len(method.missing_clients_)}",
                flush=True,
            )
        if took > seconds:
            return


def stop_for_a_while(ways, seconds):
    federation, away = RemoteFederation(ways, retries=2), ways[1].process.pid
    model = GTVRegressor(lam="auto")
    start = time.perf_counter()
    plain = model.fit_federation(federation)
    took, params = time.perf_counter() - start, plain.params_
    print(f"without a fault: {took:.1f} s, {plain.calls_} exchanges")
    timers = [
        threading.Timer(0.3 * took, os.kill, (away, signal.SIGSTOP)),
        threading.Timer(0.3 * took + seconds, os.kill, (away, signal.SIGCONT)),
    ]
    start = time.perf_counter()
    for timer in timers:
        timer.start()
    found = model.fit_federation(federation)
    took = time.perf_counter() - start
    for timer in timers:
        timer.join()
    spans = {(one["from_call"], one["to_call"]) for one in found.absences_}
    same = found.params_.shape == params.shape
    difference = np.nanmax(np.abs(found.params_ - params)) if same else np.nan
    print(
        f"one site away for {seconds} s, timeout {ways[1].timeout} s: {took:.1f} s, "
        f"{found.calls_} exchanges, {len(found.missing_clients_)} clients missing, away "
        f"{sorted(spans, key=str)} (from request, to request), largest difference {difference:.1e}"
    )
    time.sleep(1.0)
    again = model.fit_federation(federation)
    print(f"the next fit: missing {len(again.missing_clients_)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=int, default=60)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300.0, help="stop after so many")
    parser.add_argument("--away", type=float, help="seconds that a site is away")
    parser.add_argument("--timeout", type=float, default=2.0, help="of a site")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    ways = [Pipe(name, options.timeout if options.away else 60.0) for name in ("1", "2", "3")]
    for way in ways:
        way.wait_until_ready()
    if options.away:
        stop_for_a_while(ways, options.away)
    else:
        with tempfile.TemporaryDirectory() as folder:
            soak(ways, options.fits, options.every, options.seconds, Path(folder))


if __name__ == "__main__":
    main()
