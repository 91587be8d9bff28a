"""Calls a second of two sites in NVFlare's simulator, and what they cost beside the computation.

    python benchmarks/federation.py --nvflare

The calls, the rows and the columns are those of ``federation.py --calls``, which needs dask; this
needs the extra ``nvflare``, and an environment of its own. What stands in for an estimator at the
server asks the sites, and leaves the times as its fit. The simulator starts in about 20 seconds.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from federation import N_CLUSTERS, SIZES, dealt

from skcfl.calls.first_order import LocalUpdate, Losses, ObjectivesGradients
from skcfl.federation import InProcessFederation, SiteRows
from skcfl.models import LinearModel


class Half(SiteRows):
    """Half of the clients of a size: the environment says which."""

    def load(self):
        n_clients, n_rows, n_features = SIZES[os.environ["NVFLARE_CALLS_SIZE"]]
        load = dealt(n_clients, 2, n_rows, n_features)[["first", "second"].index(self.name)]
        return load()


class CallTimes:
    """Times of calls, in the place of an estimator."""

    def __init__(self, n_features, repeats):
        self.n_features, self.repeats = n_features, repeats

    def fit_federation(self, federation):
        model = LinearModel(alpha=0.1, standardize=False).bind(self.n_features)
        pool = federation.open(model, 0)
        theta = np.random.default_rng(0).standard_normal((N_CLUSTERS, pool.n_params))
        w = np.zeros((pool.n_clients, pool.n_params))
        self.seconds = {}
        for name, call in {
            "losses": lambda: pool.ask(Losses, theta),
            "gradients": lambda: pool.ask(ObjectivesGradients, w)[1],
            "update": lambda: pool.ask(LocalUpdate, w, 5, 1e-3),
        }.items():
            times = []
            for _ in range(self.repeats + 1):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            self.seconds[name] = float(np.median(times[1:])), min(times[1:])
        self.groups_, self.missing_clients_ = np.arange(pool.n_clients), np.zeros(0)
        self.calls_ = pool.ledger.calls
        return self


def measure(size, repeats, folder):
    """Seconds of each call at two sites, and of one of them in this process, (median, least)."""
    from nvflare.recipe import SimEnv

    from skcfl.federation.nvflare import fit_recipe, load_fitted

    os.environ["NVFLARE_CALLS_SIZE"] = size
    times = CallTimes(SIZES[size][2], repeats)
    recipe = fit_recipe(times, "nvflare_calls:Half", min_sites=2, trusted=["nvflare_calls"])
    env = SimEnv(clients=["first", "second"], workspace_root=folder, log_config="concise")
    found = load_fitted(recipe.run(env).get_result()).seconds
    half = InProcessFederation(*Half("first").load())
    return found, CallTimes(SIZES[size][2], repeats).fit_federation(half).seconds


def measure_calls(repeats):
    """Print a line for each size and call."""
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = here
    sys.path.insert(0, here)
    lines = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            sites, alone = measure(size, repeats, folder)
        for call, (median, least) in sites.items():
            over, under = 1e3 * (median - alone[call][0]), 1e3 * (least - alone[call][1])
            lines.append(
                f"{size:<14}{call:<12}{'NVFlare, two sites':<20}{1 / median:>9.0f}"
                f"{1e3 * median:>8.2f}{1e3 * least:>8.2f}{over:>13.2f}{under:>8.2f}"
            )
    print(f"{'size':<14}{'call':<12}{'federation':<20}{'calls/s':>9}{'ms':>8}{'least':>8}", end="")
    print(f"{'overhead ms':>13}{'least':>8}")
    print("\n".join(lines))
