"""Clients on the workers of a dask cluster.
=========================================

Every worker loads the rows of its own clients, and they stay there; what the server gets is models
and losses.  A cluster of this machine stands for one of many: with its scheduler's address in
``Client(...)``, nothing else changes::

    python examples/federation_dask.py [--workers 2] [--clients 600] [--dashboard :8787]

Needs ``pip install "skcfl[dask]"``.
"""

import argparse
import time
from functools import partial

import dask
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster
from sklearn.metrics import adjusted_rand_score

from skcfl import IFCARegressor
from skcfl.federation import DaskFederation, estimate_cost

ROWS, FEATURES, CLUSTERS = 60, 20, 3


def load(first, last):
    """Rows of some clients: called on the worker that holds them.  Here they are generated."""
    rng = np.random.default_rng(first)
    models = np.random.default_rng(0).standard_normal((CLUSTERS, FEATURES))
    clients = np.repeat(np.arange(first, last), ROWS)
    X = rng.standard_normal((len(clients), FEATURES))
    y = np.einsum("nd,nd->n", X, models[clients % CLUSTERS]) + rng.standard_normal(len(clients))
    # Names of columns are compared: of arrays nobody sees that the order is another one.
    return pd.DataFrame(X, columns=[f"sensor {k}" for k in range(FEATURES)]), y, clients


def main():
    """Fit on the workers, score and predict there, and say what it would cost elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=600)
    parser.add_argument("--dashboard", default=None, help="address of dask's dashboard")
    args = parser.parse_args()
    ends = np.linspace(0, args.clients, 2 * args.workers + 1).astype(int).tolist()
    parts = [partial(load, a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]
    # Workers that compute on many rows keep the memory that they free.
    dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": None})
    cluster = LocalCluster(
        n_workers=args.workers,
        threads_per_worker=1,
        dashboard_address=args.dashboard or ":0",
        scheduler_kwargs={"dashboard": args.dashboard is not None},
    )
    with cluster, Client(cluster) as client:
        federation = DaskFederation(client, parts, rebuild=True)
        start = time.perf_counter()
        model = IFCARegressor(n_clusters=CLUSTERS, random_state=0).fit_federation(federation)
        seconds = time.perf_counter() - start
        truth = model.groups_ % CLUSTERS
        print(f"{len(model.groups_)} clients on {args.workers} workers, {seconds:.1f} s")
        print(f"{model.calls_} calls, {1e3 * seconds / model.calls_:.1f} ms each")
        print(f"recovery of the clusters {adjusted_rand_score(truth, model.labels_):.2f}")
        print(f"R^2 of the rows, scored on the workers: {model.score_federation(federation):.3f}")
    cost = estimate_cost(
        model, latency=0.1, uplink=1e6, downlink=1e6, seconds_per_row=1e-6, n_clients=10**6
    )
    print(f"a million phones: {cost.wall_time:.0f} s, {cost.client_bytes_up / 1e3:.0f} kB up each")


if __name__ == "__main__":
    main()
