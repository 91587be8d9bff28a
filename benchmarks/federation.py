"""Calls a second of federations, what they cost beside the computation, and time by workers.

Five parts, each with its option::

    python benchmarks/federation.py --calls            # overhead of a call, by its size
    python benchmarks/federation.py --workers 1 2      # IFCA on many clients, by workers
    python benchmarks/federation.py --costs            # estimate_cost beside runs on dask
    python benchmarks/federation.py --search           # lam="auto" on dask over that in process
    python benchmarks/federation.py --nvflare          # calls of two sites in NVFlare's simulator

*Calls*: losses, gradients and local steps of few and of many clients, asked of a federation of
this process, of two in it, and of two workers of a local cluster. The overhead is the median time
of a call less that of half of the clients alone in this process, so that on a machine with as many
free cores as workers nothing is left but the way there and back.

*Search*: default fits of eight clients in process and on the two workers, by turns; medians of
seconds on the clock.

*Workers*: every worker generates its own rows (``--clients`` x ``--rows`` x ``--features``), so
that they never are in the server, whose greatest memory is told. Fits are IFCA, three clusters.
Where other work runs on the machine, CPU times are what to look at: those of the busiest worker
and of the server together are the time that a fit takes where every process has a core.
"""

import argparse
import resource
import time
from functools import partial

import numpy as np
from fits import make_few

import skcfl
from skcfl import ConvexClusteredFLRegressor, FedAvgRegressor, IFCARegressor
from skcfl.base.reporting import Reports
from skcfl.calls.first_order import LocalUpdate, Losses, ObjectivesGradients, Present
from skcfl.federation import DaskFederation, FanOutFederation, InProcessFederation, estimate_cost
from skcfl.federation.inprocess import InProcessSite
from skcfl.federation.rows import Rows
from skcfl.models import LinearModel

# Clients, rows per client, features.
SIZES = {"small": (20, 50, 10), "many clients": (5000, 20, 20), "many rows": (100, 2000, 50)}
N_CLUSTERS = 3


def make_rows(first, n_clients, n_rows, n_features):
    """Rows of some clients, in clusters by turns; a client's do not depend on the others."""
    rng = np.random.default_rng(first)
    models = np.random.default_rng(0).standard_normal((N_CLUSTERS, n_features))
    ids = np.repeat(np.arange(first, first + n_clients), n_rows)
    X = rng.standard_normal((len(ids), n_features))
    y = np.einsum("nd,nd->n", X, models[ids % N_CLUSTERS]) + rng.standard_normal(len(ids))
    return X, y, ids


def dealt(n_clients, n_parts, n_rows, n_features):
    """Functions that make the rows of equal parts."""
    firsts = np.linspace(0, n_clients, n_parts + 1).astype(int)
    return [
        partial(make_rows, int(a), int(b - a), n_rows, n_features)
        for a, b in zip(firsts[:-1], firsts[1:], strict=True)
    ]


def cluster_of(n_workers):
    """Local cluster whose workers keep the memory that they free, as the guide advises."""
    import dask
    from distributed import Client, LocalCluster

    dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None})
    cluster = LocalCluster(
        n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", memory_limit=None
    )
    return cluster, Client(cluster)


# ------------------------------------------------------------------------------- calls


def federations_of(size, client):
    """Name and federation of each kind; other engines are entered here."""
    loaders = dealt(SIZES[size][0], 2, *SIZES[size][1:])
    halves = [InProcessFederation(*load()) for load in loaders]
    yield "half, in process", halves[0]
    whole = [np.concatenate(parts) for parts in zip(*(load() for load in loaders), strict=True)]
    yield "in process", InProcessFederation(*whole)
    yield "fan-out of two", FanOutFederation(halves)
    yield "dask, two workers", DaskFederation(client, loaders)


def median_time(function, repeats):
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times)), min(times)


def measure_calls(repeats):
    cluster, client = cluster_of(2)
    print(f"{'size':<14}{'call':<12}{'federation':<20}{'calls/s':>9}{'ms':>8}{'least':>8}", end="")
    print(f"{'overhead ms':>13}{'least':>8}")
    for size, (_, _, d) in SIZES.items():
        pools = {}
        for name, federation in federations_of(size, client):
            model = LinearModel(alpha=0.1, standardize=False).bind(d)
            pools[name] = federation.open(model, 0)
        rng = np.random.default_rng(0)
        theta = rng.standard_normal((N_CLUSTERS, d + 1))
        for call in ("losses", "gradients", "update"):
            alone = None
            for name, pool in pools.items():
                w = np.zeros((pool.n_clients, d + 1))
                functions = {
                    "losses": lambda pool=pool, theta=theta: pool.ask(Losses, theta),
                    "gradients": lambda pool=pool, w=w: pool.ask(ObjectivesGradients, w)[1],
                    "update": lambda pool=pool, w=w: pool.ask(LocalUpdate, w, 5, 1e-3),
                }
                median, least = median_time(functions[call], repeats)
                alone = (median, least) if alone is None else alone
                over = 1e3 * (median - alone[0]), 1e3 * (least - alone[1])
                print(f"{size:<14}{call:<12}{name:<20}{1 / median:>9.0f}", end="")
                print(f"{1e3 * median:>8.2f}{1e3 * least:>8.2f}{over[0]:>13.2f}{over[1]:>8.2f}")
    client.close()
    cluster.close()


# ----------------------------------------------------------------------------- workers


def seconds_of_cpu(client):
    """CPU time that each worker has used."""

    def used():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    return client.run(used)


def measure_workers(numbers, n_clients, n_rows, n_features, max_iter):
    print(f"{n_clients} clients x {n_rows} rows x {n_features} features, IFCA, one start")
    print("workers  load s   fit s  calls  most CPU s of a worker  server CPU s  server peak MB")
    found = []
    for n_workers in numbers:
        cluster, client = cluster_of(n_workers)
        start = time.perf_counter()
        loaders = dealt(n_clients, n_workers, n_rows, n_features)
        federation = DaskFederation(client, loaders)
        loaded = time.perf_counter()
        before, server = seconds_of_cpu(client), time.process_time()
        model = IFCARegressor(N_CLUSTERS, n_init=1, random_state=0, max_iter=max_iter)
        model.fit_federation(federation)
        fitted = time.perf_counter()
        server = time.process_time() - server
        used = max(value - before[key] for key, value in seconds_of_cpu(client).items())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{n_workers:>7}{loaded - start:>8.1f}{fitted - loaded:>8.1f}{model.calls_:>7}"
            f"{used:>24.1f}{server:>14.1f}{peak:>16.0f}",
            flush=True,
        )
        found.append((n_workers, fitted - loaded, used + server))
        del federation
        client.close()
        cluster.close()
    return np.array(found).T


def draw_workers(found, path):
    """Time by workers, beside what is as fast as it can be."""
    import matplotlib.pyplot as plt

    workers, _, cpu = found
    figure, ax = plt.subplots(figsize=(4.8, 3.2), layout="constrained")
    ax.plot(workers, cpu, "o-", label="CPU time of the busiest worker and the server")
    ax.plot(workers, cpu[0] * workers[0] / workers, "k:", label="in proportion to the workers")
    ax.set(xlabel="workers", ylabel="seconds of the fit", xticks=workers, ylim=(0, None))
    ax.legend(frameon=False)
    figure.savefig(path, dpi=120)


# ------------------------------------------------------------------------------ search


def measure_search(repeats):
    """Seconds of default fits of eight clients in process and on two workers, in turns."""
    cluster, client = cluster_of(2)
    print("lam='auto', eight clients: exchanges, seconds in process, on two workers, ratio")
    for suffix in ("Regressor", "Classifier"):
        X, y, groups = make_few("crisp", 0, suffix == "Classifier")
        loaders = [partial(part_of, (X, y, groups), groups % 2 == k) for k in (0, 1)]
        places = InProcessFederation(X, y, groups), DaskFederation(client, loaders)
        for name in ("ConvexClusteredFL", "GTV", "FPFC"):
            model = getattr(skcfl, name + suffix)(random_state=0)
            times = [[], []]
            for k in range(2 * repeats + 2):
                start = time.perf_counter()
                model.fit_federation(places[k % 2])
                times[k % 2].append(time.perf_counter() - start)
            here, there = (float(np.median(some[1:])) for some in times)
            print(
                f"{name + suffix:<30}{model.calls_:>5}{here:>8.2f}{there:>8.2f}"
                f"{there / here:>7.2f}",
                flush=True,
            )
    client.close()
    cluster.close()


def part_of(rows, mask):
    """Some of the rows."""
    return [some[mask] for some in rows]


# ------------------------------------------------------------------------------- costs


class Clock:
    """CPU time of the clients of this process in the fits inside: their rows opened, and calls.

    The tests of a report, which clients in other places are not asked for, are left out.
    """

    CLIENTS = ((InProcessFederation, "rows_at"), (Rows, "moments"), (Rows, "site"))
    CLIENTS += ((InProcessSite, "answer"),)
    REPORT = (Reports, "_gather")

    def __enter__(self):
        self.seconds, self.report = 0.0, 0.0
        timed = (*self.CLIENTS, self.REPORT)
        self.methods = [(*where, getattr(*where)) for where in timed]
        for owner, name, method in self.methods:
            setattr(owner, name, self.timed(method, (owner, name) == self.REPORT))
        return self

    def timed(self, method, report):
        def call(*args, **kwargs):
            start, seconds = time.process_time(), self.seconds
            out = method(*args, **kwargs)
            took = time.process_time() - start
            if report:
                self.seconds, self.report = seconds, self.report + took
            else:
                self.seconds += took
            return out

        return call

    def __exit__(self, *error):
        for where in self.methods:
            setattr(*where)


def crowding(client, pool, half, repeats=20):
    """CPU time of the rows of half the clients while the others compute, over that of it alone."""
    theta = np.zeros((N_CLUSTERS, half.n_params))
    used = []
    for ask in (partial(pool.ask, Losses, theta), partial(pool.ask, Present)):
        before = seconds_of_cpu(client)
        for _ in range(repeats):
            ask()
        used.append(max(value - before[key] for key, value in seconds_of_cpu(client).items()))
    start = time.process_time()
    for _ in range(repeats):
        half.ask(Losses, theta)
    return max((used[0] - used[1]) / (time.process_time() - start), 1.0)


def measure_costs(n_clients, n_rows, n_features, repeats=5):
    """What estimate_cost says of fits on two workers, and what they take.

    The time of the clients and of the server's own work are measured in this process, latency and
    link on the cluster by calls that compute nothing. Workers of one machine share its caches and
    its memory: how much longer rows take while both compute is measured by one call.
    """
    cluster, client = cluster_of(2)
    loaders = dealt(n_clients, 2, n_rows, n_features)
    whole = [np.concatenate(parts) for parts in zip(*(load() for load in loaders), strict=True)]
    here, federation = InProcessFederation(*whole), DaskFederation(client, loaders)
    del whole
    model = LinearModel(alpha=0.1, standardize=False).bind(n_features)
    pool, w = federation.open(model, 0), np.zeros((n_clients, n_features + 1))
    half = InProcessFederation(*loaders[0]()).open(model, 0)
    print(f"{n_clients} clients x {n_rows} x {n_features}")
    print(
        "method, latency ms, rows' time beside another worker over that alone, estimated s, ",
        end="",
    )
    print("took s, ratio; clients' CPU s: estimated, took, ratio")
    for method in (
        FedAvgRegressor(),
        IFCARegressor(N_CLUSTERS, n_init=1, random_state=0),
        ConvexClusteredFLRegressor(lam=0.05, graph="knn", refit=False),
    ):
        ratios = []
        for _ in range(repeats):
            empty, _ = median_time(partial(pool.ask, Present), 30)
            full, _ = median_time(partial(pool.ask, ObjectivesGradients, w), 10)
            alone, _ = median_time(partial(half.ask, ObjectivesGradients, w[: half.n_clients]), 10)
            link = 64 * w.size / max(full - alone - empty, 1e-4)
            slower = crowding(client, pool, half)
            start = time.process_time()
            with Clock() as clock:
                method.fit_federation(here)
            server = time.process_time() - start - clock.seconds - clock.report
            cost = estimate_cost(
                method,
                latency=empty,
                uplink=link,
                downlink=link,
                seconds_per_row=slower * clock.seconds / (method.calls_ * n_clients * n_rows),
                n_sites=2,
                server_seconds=server,
            )
            before = seconds_of_cpu(client)
            start = time.perf_counter()
            method.fit_federation(federation)
            took = time.perf_counter() - start
            used = max(value - before[key] for key, value in seconds_of_cpu(client).items())
            ratios.append((empty, slower, cost.wall_time, took, cost.client_time, used))
        empty, slower, estimated, took, computed, used = np.median(ratios, axis=0)
        print(
            f"{type(method).__name__}, {1e3 * empty:.1f}, {slower:.2f}, "
            f"{estimated:.2f}, {took:.2f}, {estimated / took:.2f}; "
            f"{computed:.2f}, {used:.2f}, {computed / used:.2f}",
            flush=True,
        )
    client.close()
    cluster.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="*")
    parser.add_argument("--figure", help="where to draw the time by workers")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=30, help="rounds at most")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--nvflare", action="store_true")
    parser.add_argument("--search", action="store_true")
    options = parser.parse_args()
    sizes = options.clients, options.rows, options.features
    if options.calls:
        measure_calls(options.repeats)
    if options.workers:
        found = measure_workers(options.workers, *sizes, options.iterations)
        if options.figure:
            draw_workers(found, options.figure)
    if options.search:
        measure_search(min(options.repeats, 5))
    if options.nvflare:
        from nvflare_calls import measure_calls as measure_nvflare_calls

        measure_nvflare_calls(options.repeats)
    if options.costs:
        measure_costs(*sizes)


if __name__ == "__main__":
    main()
