"""The server's own work with up to a million clients, who are generated and have no rows.

Client i has the quadratic objective ``|w - c_i|^2 / 2``, its minimiser near that of its cluster,
and answers calls in closed form: what is timed is the server, its calls included, less the time in
which answers are made::

    python benchmarks/at_scale.py [--clients 1000 10000 100000] [--features 20] [--seconds 60]

``--dask`` fits IFCA with three clusters, 20 rows and 20 features a client, to clients on two dask
workers, which generate the rows, and ``--network`` FedAvg and IFCA with a network of 157,201
parameters: told are seconds, and the peak memory of the server before the fit, when rounds have
ended, and with the models of all clients published (``params_``)::

    python benchmarks/at_scale.py --dask 100000 1000000
    MALLOC_MMAP_THRESHOLD_=65536 python benchmarks/at_scale.py --dask 1000000
    python benchmarks/at_scale.py --network 500 2000

A method is left out at sizes from where it took more than ``--seconds`` before. ``--costs``
tells what fits would cost hospitals and phones instead, by ``estimate_cost``, as in the guide.
"""

import argparse
import multiprocessing
import resource
import time
import warnings
from functools import partial

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import skcfl
from skcfl.base import BaseFederated
from skcfl.datasets import make_clustered_regression
from skcfl.federation import Federation, Handshake, Site, estimate_cost
from skcfl.federation.sites import count_derived
from skcfl.models import MLP, LinearModel
from skcfl.numerics.by_cluster import sum_by_cluster

N_CLUSTERS = 5
# Methods that are asked about, besides fusion; and those that the generated clients cannot answer.
ROUNDS = ("FedAvg", "LocalModels", "IFCA", "CLoVE", "FeSEM", "OneShot", "FlexCFL")
OTHERS = ("PartialPooling", "CFL", "PACFL", "FedEM", "RobustClusteredFL")
PERSONAL = ("Ditto", "PFedMe", "PerFedAvg", "FedRep", "FedALA")
# Seconds, bits a second, seconds for a row of 20 features in a call, clients asked in a call.
HOSPITALS = {"latency": 0.02, "uplink": 1e8, "downlink": 1e8, "seconds_per_row": 1e-7}
PHONES = {"latency": 0.1, "uplink": 1e6, "downlink": 1e6, "seconds_per_row": 1e-6}
PARTICIPANTS = 1000
# Bits a second of the server.
SERVER_LINK = 1e10
# Methods whose rounds need everybody.
ALL_AT_ONCE = {"LocalModels", "OneShot"}


class GeneratedSite(Site):
    """Clients whose objectives are paraboloids."""

    travels = True  # reports ask clients of this process only

    def __init__(self, centers, sizes, clock):
        self.centers, self.client_sizes, self.clock = centers, sizes, clock
        self.client_weights = sizes.astype(float)
        self.without_rows = sizes == 0
        self.last = None

    @property
    def n_clients(self):
        return len(self.centers)

    def answer(self, call, arguments):
        start = time.process_time()
        out = getattr(self, f"_{call}")(**arguments)
        self.clock[0] += time.process_time() - start
        return out

    def _start(self, sent, own):
        if own is None:
            return sent
        return self.last if sent is None else np.where(own[:, None], self.last, sent)

    def _present(self):
        return {}

    def _squares(self, theta):
        cross = self.centers @ theta.T
        squares = np.einsum("np,np->n", self.centers, self.centers)
        return 0.5 * (squares[:, None] - 2.0 * cross + (theta**2).sum(axis=1))

    def _losses(self, theta):
        return {"losses": self._squares(theta)}

    def _best_response(self, theta, fixed):
        losses = self._squares(theta)
        choice = losses.argmin(axis=1)
        if fixed is not None:
            choice = np.where(fixed >= 0, fixed, choice)
        return {"losses": losses, "choice": choice, "gradients": theta[choice] - self.centers}

    def _objectives(self, w, own):
        w = self._start(w, own)
        return {"values": 0.5 * ((w - self.centers) ** 2).sum(axis=1)}

    _own_losses = _objectives

    def _objectives_gradients(self, w, own, dtype):
        w = self._start(w, own)
        gradients = w - self.centers
        return {"values": 0.5 * (gradients**2).sum(axis=1), "gradients": gradients}

    def _cluster_values(self, theta, labels):
        return self._objectives(theta[labels], None)

    def _sum(self, parts, labels, theta, weights):
        weights = self.client_weights if weights is None else weights
        return sum_by_cluster(parts, labels, len(theta), weights)

    def _gradient_sums(self, theta, labels, weights, dtype):
        out = self._objectives_gradients(theta[labels], None, dtype)
        return out | {"gradients": self._sum(out["gradients"], labels, theta, weights)}

    def _best_response_sums(self, theta, fixed, weights):
        out = self._best_response(theta, fixed)
        return out | {"gradients": self._sum(out["gradients"], out["choice"], theta, weights)}

    def _trained_moves(self, theta, labels, steps, step_size, weights, **how):
        shrink = (1.0 - np.minimum(step_size, 1.0)) ** steps
        parts = (1.0 - shrink[:, None]) * (theta[labels] - self.centers)
        return {"moves": self._sum(parts, labels, theta, weights)}

    def _nearest_moves(self, theta, begun, steps, step_size, weights, **how):
        shrink = (1.0 - np.minimum(step_size, 1.0)) ** steps
        every = np.vstack([theta, theta.mean(axis=0)])
        trained = self.centers + shrink[:, None] * (every[begun] - self.centers)
        choice = ((trained[:, None] - theta) ** 2).sum(axis=2).argmin(axis=1)
        parts = theta[choice] - trained
        return {"choice": choice, "moves": self._sum(parts, choice, theta, weights)}

    def _local_update(self, w, own, center, steps, step_size, rho, keep, **how):
        w = self._start(w, own)
        shrink = (1.0 - np.minimum(step_size, 1.0)) ** steps
        out = self.centers + shrink[:, None] * (w - self.centers)
        if center is not None:
            out = (out + rho[:, None] * center) / (1.0 + rho[:, None])
        if keep:
            self.last = out
        return {"w": out}

    def _hessians(self, theta, labels, weights, damping, members):
        weights = self.client_weights if weights is None else weights
        total = np.bincount(labels, weights=weights, minlength=len(theta))
        return {"H": total[:, None, None] * np.eye(theta.shape[1])}

    def _hessian_products(self, theta, u, labels, weights, damping):
        return {"products": self._sum(u[labels], labels, theta, weights)}

    def _solve(self):
        self.last = self.centers
        return {"w": self.centers.copy(), "converged": np.ones(self.n_clients, dtype=bool)}

    def _prox(self, v, rho, x0, own, max_iter, metric=None):
        self.last = (self.centers + rho[:, None] * v) / (1.0 + rho[:, None])
        return {"x": self.last.copy()}

    def _conjugate(self, s, x0, own, largest, allowed):
        return {"bounds": 0.5 * (s**2).sum(axis=1) + (s * self.centers).sum(axis=1)}

    def _spectrum(self):
        return {"spectrum": np.ones((self.n_clients, 3))}

    def _rounding(self, w):
        return {"rounding": np.full(self.n_clients, 1e-12)}

    def _fingerprints(self, key, targets):
        return {"digests": self.centers[:, :2].copy()}

    def _enclosures(self, theta, box, labels, dense, members):
        p = theta.shape[1]
        total = np.bincount(labels, minlength=len(theta)).astype(float)
        floor = total[:, None, None] * np.eye(p) if dense else total[:, None] * np.ones(3)
        rounding = np.full((self.n_clients, p), 1e-12)
        return {"rounding": rounding, "drift": np.zeros(self.n_clients), "floor": floor}

    def derive(self, step, *arguments):
        if step != "subset":
            return [self] * count_derived(step, *arguments)
        (clients,) = arguments
        site = GeneratedSite(self.centers[clients], self.client_sizes[clients], self.clock)
        site.last = None if self.last is None else self.last[clients]
        return [site]


class GeneratedRows:
    travels = False

    def __init__(self, site):
        self.clients, self.places = site, np.arange(site.n_clients)

    def site(self, model):
        return self.clients


class GeneratedFederation(Federation):
    """A federation without rows."""

    def __init__(self, n_clients, n_features, seed=0):
        rng = np.random.default_rng(seed)
        means = 3.0 * rng.standard_normal((N_CLUSTERS, n_features))
        labels = np.arange(n_clients) % N_CLUSTERS
        centers = means[labels] + 0.1 * rng.standard_normal((n_clients, n_features))
        self.clock = [0.0]
        self.clients = GeneratedSite(centers, np.full(n_clients, 100), self.clock)

    def hello(self, kind=None):
        n, d = self.clients.centers.shape
        return Handshake(np.arange(n), d, None, np.dtype(float), None, 100 * n)

    def rows(self, model, hello):
        return [GeneratedRows(self.clients)]


def methods():
    """Name and estimator, told what it would search for."""
    told = {"n_clusters": N_CLUSTERS, "random_state": 0, "alpha": 1e-8, "n_init": 1}
    told |= {"standardize": False, "fit_intercept": False}
    for name in ROUNDS:
        yield name, told
    fusion = {**told, "lam": 1e-3, "refit": False, "max_iter": 200, "tol": 1e-3}
    yield "ConvexClusteredFL", {**fusion, "graph": "knn"}
    yield "ConvexClusteredFL", {**fusion, "graph": "complete"}
    yield "GTV", {**fusion, "graph": "knn"}
    yield "FPFC", {**fusion, "lam": 0.5}


def made(name, told):
    cls = getattr(skcfl, f"{name}Regressor", None)
    if cls is None:
        return None
    known = cls().get_params()
    return cls(**{key: value for key, value in told.items() if key in known})


def of_some_clients(estimator):
    """Parameters of rounds in which a tenth of the clients take part; none where all have to."""
    share = {"participation": 0.1}
    if "training" not in estimator.get_params(deep=False):
        return share if "participation" in estimator.get_params(deep=False) else {}
    wanted = {**share, "polish": False}
    used = type(estimator)._option_names.get("training", wanted)
    if "participation" not in used:
        return {}
    return {"training": skcfl.Training(**{key: wanted[key] for key in wanted if key in used})}


def estimated(n_features, chosen):
    """What fits to 1000 clients with rows would cost more clients elsewhere."""
    data = make_clustered_regression(
        1000, N_CLUSTERS, n_features, n_samples=100, noise=1.0, random_state=0
    )
    print("method                     calls  a client, a call  a client, the fit", end="")
    print("   hospitals 1e3   phones 1e3  1e5  1e7")
    others = [(name, next(methods())[1]) for name in OTHERS + PERSONAL]
    for name, told in [*methods(), *others]:
        if chosen and name not in chosen:
            continue
        # The complete graph has too many edges; phones take part in turns where they can.
        if told.get("graph") == "complete" or getattr(skcfl, f"{name}Regressor", None) is None:
            continue
        given = {**told, "standardize": True, "fit_intercept": True, "alpha": "auto"}
        given.update(lam=0.05, max_iter=500, tol=1e-4)
        whole = made(name, given).fit(data.X, data.y, groups=data.groups)
        hospitals = estimate_cost(whole, **HOSPITALS)
        line = f"{name:<26}{whole.calls_:>6}"
        floats = whole.floats_up_ + whole.floats_down_
        line += f"{8 * floats / whole.client_calls_:>14.0f} B{8e-3 * floats / 1000:>13.1f} kB"
        line += f"{hospitals.wall_time:>16.1f} s"
        some = whole
        some_clients = of_some_clients(whole)
        if some_clients and name not in ALL_AT_ONCE:
            rounds = {**given, **some_clients, "max_iter": 100}
            some = made(name, rounds).fit(data.X, data.y, groups=data.groups)
        for n in (10**3, 10**5, 10**7):
            who = None if some is whole else min(PARTICIPANTS, n)
            cost = estimate_cost(
                some, **PHONES, n_clients=n, participants=who, server_link=SERVER_LINK
            )
            line += f"{cost.wall_time:>9.0f} s {(cost.bytes_up + cost.bytes_down) / 1e9:.1f} GB"
        print(line + f" ({some.calls_} calls)", flush=True)


def made_rows(first, n_clients, n_rows, n_features, dtype):
    """Rows of some clients in three clusters, and whether their targets are classes."""
    rng = np.random.default_rng(first)
    means = np.random.default_rng(7).standard_normal((3, n_features))
    codes = np.repeat(np.arange(first, first + n_clients), n_rows)
    X = rng.standard_normal((len(codes), n_features), dtype=dtype)
    y = np.einsum("nd,nd->n", X, means[codes % 3])
    y = y > 0 if dtype == np.float32 else y + rng.standard_normal(len(codes))
    return X, y.astype(int if dtype == np.float32 else float), codes


def peak():
    """Largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fit_on_workers(title, model, n_clients, *rows):
    """Fit to generated rows on two dask workers, and print what it took here."""
    # The processes start anew: so does the peak.
    from distributed import Client, LocalCluster

    from skcfl.federation import DaskFederation

    ends, n = [], n_clients // 8
    told, publish = {"memory_limit": None, "dashboard_address": None}, BaseFederated._publish

    def noted(*args):
        ends.append(peak())
        return publish(*args)

    BaseFederated._publish = noted
    with LocalCluster(n_workers=2, threads_per_worker=1, **told) as cluster, Client(cluster) as at:
        parts = [partial(made_rows, k * n, n, *rows) for k in range(8)]
        federation, before, start = DaskFederation(at, parts, timeout=600), peak(), time.time()
        model.fit_federation(federation)
        print(
            f"{title:<10}{n_clients:>9} clients {time.time() - start:>7.1f} s  peak {before:.0f}, "
            f"{ends[-1]:.0f} MB, published {peak():.0f} MB",
            flush=True,
        )


def on_workers(linear, network):
    """Fits to clients whose rows are on two workers, each in a process of its own."""
    jobs = []
    for n in linear:
        clusters = skcfl.IFCA(LinearModel(alpha=1e-3), n_clusters=3, random_state=0)
        jobs.append(("IFCA", clusters, n, 20, 20, np.float64))
    told = {"max_iter": 2, "training": skcfl.Training(local_steps=2), "random_state": 0}
    drawn = {"n_clusters": 3, "init": "random", "empty_cluster": "keep"}
    for n in network:
        for model in (skcfl.FedAvg(MLP((200,)), **told), skcfl.IFCA(MLP((200,)), **drawn, **told)):
            jobs.append((type(model).__name__, model, n, 5, 784, np.float32))
    for job in jobs:
        process = multiprocessing.get_context("spawn").Process(target=fit_on_workers, args=job)
        process.start()
        process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--dask", type=int, nargs="*", default=[])
    parser.add_argument("--network", type=int, nargs="*", default=[])
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    if options.dask or options.network:
        return on_workers(options.dask, options.network)
    if options.costs:
        return estimated(options.features, options.methods)
    print("method                      clients  calls  server s  answers s  peak MB  kB up, down")
    for name, told in methods():
        if options.methods and name not in options.methods:
            continue
        title = name if "graph" not in told else f"{name}, {told['graph']}"
        for n in options.clients:
            model = made(name, told)
            if model is None:
                break
            federation = GeneratedFederation(n, options.features)
            start = time.process_time()
            try:
                model.fit_federation(federation)
            except (MemoryError, ValueError) as error:
                print(f"{title:<26}{n:>9}  {type(error).__name__}: {str(error)[:120]}", flush=True)
                break
            answers = federation.clock[0]
            server = time.process_time() - start - answers
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            up, down = 8e-3 * model.floats_up_ / n, 8e-3 * model.floats_down_ / n
            print(
                f"{title:<26}{n:>9}{model.calls_:>7}{server:>10.2f}{answers:>11.2f}{peak:>9.0f}"
                f"{up:>8.1f}{down:>7.1f}",
                flush=True,
            )
            if server > options.seconds:
                break


if __name__ == "__main__":
    main()
