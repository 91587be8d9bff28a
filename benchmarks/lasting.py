"""Fits between the processes of a provisioned NVFlare: memory over many fits, and faults.

    python benchmarks/lasting.py --soak 200 --jobs 10    # memory of the processes
    python benchmarks/lasting.py --faults                # a job for each fault, or for those named
    python benchmarks/lasting.py --costs                 # estimate_cost beside the jobs
    python benchmarks/lasting.py --dask                  # a worker of dask that is killed

The first three need the extra ``nvflare``. They provision ``project.yml`` of
``examples/federation_sites`` in a temporary folder, and start a server and three sites with four
clients each. A site computes 50 ms for each message of the jobs with faults. ``--dask`` needs the
extra ``dask``. The full disk is a file system that only root can make.

Differences are those of the models from a fit in one process: to all clients, or without those
that the report calls missing or rejected.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from federation import Clock
from soak import METHODS, megabytes

import skcfl
from skcfl import IFCARegressor
from skcfl.calls.first_order import Present
from skcfl.datasets import make_clustered_regression
from skcfl.federation import SiteRows, estimate_cost
from skcfl.federation.host import SiteHost
from skcfl.federation.lanes import asked_at_once
from skcfl.federation.serialization import dumps, loads
from skcfl.models import LinearModel

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "examples" / "federation_sites" / "project.yml"
SITES = ["north", "south", "east"]
# Requests of an exchange in lockstep whose time is measured.
N_REQUESTS = 20
# The site with the fault, and the message with which the fault begins.
FAULTY, FIRST = "south", 10
# Seconds: of computing for each message, of waiting for a site, and until a killed site starts.
COMPUTING, TIMEOUT, AWAY = 0.05, 5.0, 20.0


# ------------------------------------------------------------------------------- the sites


def rows_of(name, classes=False):
    """The rows of a site: a third of the clients of one federation."""
    data = make_clustered_regression(12, 3, 5, n_samples=40, random_state=0)
    here = np.isin(data.groups, np.unique(data.groups)[SITES.index(name) :: len(SITES)])
    y = (data.y > np.median(data.y)).astype(int) if classes else data.y
    return data.X[here], y[here], data.groups[here]


class Wards(SiteRows):
    """A site: its clients, and a fault in the jobs of ``--faults``."""

    def load(self):
        folder = Path(os.environ["LASTING_FOLDER"])
        (folder / f"{self.name}.pid").write_text(str(os.getpid()))
        plan = json.loads((folder / "plan.json").read_text())
        if plan["fault"] is not None:
            add_fault(plan["fault"] if self.name == FAULTY else "none", folder)
        return rows_of(self.name, plan["classes"])


def add_fault(fault, folder):
    """Delay each answer of this process, and begin a fault with one of them."""
    handle, times = SiteHost.handle, iter(range(1, 10**9))

    def faulty(host, message):
        time.sleep(COMPUTING)
        k, reply = next(times), handle(host, message)
        if fault == "none" or (k < FIRST and fault != "slow"):
            return reply
        return FAULTS[fault](reply, k, folder)

    SiteHost.handle = faulty


def changed(reply, change):
    """The reply with other arrays."""

    def walk(value):
        if isinstance(value, np.ndarray):
            return change(value)
        if isinstance(value, dict):
            return {name: walk(entry) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(walk, value))
        return value

    return dumps(walk(loads(reply)), packages=())


def slow(reply, k, folder):
    time.sleep(2.0)
    return reply


def hangs(reply, k, folder):
    if k == FIRST:
        time.sleep(60.0)
    return reply


def noise(reply, k, folder):
    return os.urandom(len(reply))


def version(reply, k, folder):
    return reply.replace(b'"versions":["0', b'"versions":["9')


def nan(reply, k, folder):
    return changed(reply, lambda value: value * np.nan if value.dtype.kind == "f" else value)


def shape(reply, k, folder):
    return changed(reply, lambda value: value[:-1] if value.ndim else value)


def cluster(reply, k, folder):
    return changed(reply, lambda value: value + 99 if value.dtype.kind == "i" else value)


def killed_job(reply, k, folder):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_site(reply, k, folder):
    kill(folder, FAULTY)


def killed_server(reply, k, folder):
    once = folder / "killed"
    if not once.exists():
        time.sleep(1.0)  # a checkpoint is written after ten seconds
        if k == FIRST + 12:
            once.touch()
            kill(folder, "localhost", but="sub_start.sh")
    return reply


def later(reply, k, folder):
    time.sleep(1.0)
    return reply


def nothing(reply, k, folder):
    return reply


FAULTS = {
    "none": nothing,
    "slow": slow,
    "hangs": hangs,
    "noise": noise,
    "version": version,
    "nan": nan,
    "shape": shape,
    "cluster": cluster,
    "job killed": killed_job,
    "site killed": killed_site,
    "server killed": killed_server,
    "full disk": later,
}


# ------------------------------------------------------------------------------- processes


def processes(folder, name):
    """Process ids and commands of a participant: its starter, itself, its jobs."""
    kit, found = str(kits(folder) / name), {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = file.read_bytes().decode().replace("\0", " ")
            if kit in command:
                found[int(file.parent.name)] = command
    return found


def kill(folder, name, but=None):
    """``kill -9`` of all processes of a participant, this one last."""
    found = [
        pid for pid, command in processes(folder, name).items() if not but or but not in command
    ]
    for pid in sorted(found, key=lambda pid: pid == os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kits(folder):
    return folder / "workspace" / "hospitals" / "prod_00"


def start(folder, name):
    (kits(folder) / name / "daemon_pid.fl").unlink(missing_ok=True)
    command = [kits(folder) / name / "startup" / "start.sh"]
    with open(folder / f"{name}.out", "a") as out:
        subprocess.run(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=True)


@contextlib.contextmanager
def running(sites=SITES):
    """A server and sites, provisioned and started; gives their folder."""
    from skcfl.federation.nvflare import allow_jobs

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LASTING_FOLDER"] = name
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
        began = time.perf_counter()
        command = ["nvflare", "provision", "-p", str(PROJECT), "-w", str(folder / "workspace")]
        subprocess.run([*command, "--force"], check=True, capture_output=True)
        for participant in ["localhost", *sites]:
            allow_jobs(kits(folder) / participant, rows="lasting:Wards")
            start(folder, participant)
        try:
            wait_for_sites(folder, sites)
            print(f"provisioned and started in {time.perf_counter() - began:.0f} s", flush=True)
            yield folder
        finally:
            for participant in ["localhost", *sites]:
                kill(folder, participant)
            time.sleep(1.0)


def wait_for_sites(folder, sites, most=60.0):
    """Wait until the sites have registered."""
    until = time.monotonic() + most
    while time.monotonic() < until:
        logs = [kits(folder) / name / "log.txt" for name in sites]
        if all(log.exists() and "Successfully registered" in log.read_text() for log in logs):
            return
        time.sleep(0.5)
    raise TimeoutError("the sites have not registered")


# ------------------------------------------------------------------------------- jobs


def submit(folder, model, fault=None, classes=False, **settings):
    """Submit a job; returns its run."""
    from nvflare.recipe import ProdEnv

    from skcfl.federation.nvflare import fit_recipe

    about = {"fault": fault, "classes": classes}
    (folder / "plan.json").write_text(json.dumps(about))
    kit = kits(folder) / "lead@coordinator.org"
    env = ProdEnv(startup_kit_location=str(kit), username=kit.name)
    recipe = fit_recipe(model, "lasting:Wards", min_sites=2, trusted=["lasting"], **settings)
    return recipe.run(env)


def result(run):
    """The fitted estimator or the error, and the report of a job."""
    from skcfl.federation.nvflare import load_fitted

    folder = run.get_result(clean_up=False)
    reports = sorted(Path(folder).rglob("skcfl_report.json"))
    report = json.loads(reports[-1].read_text()) if reports else {}
    try:
        return load_fitted(folder, trusted=["lasting"]), report
    except Exception as error:
        return error, report


def quiet(function, *arguments, **settings):
    """Without what NVFlare prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return function(*arguments, **settings)


def in_process(model, without=(), classes=False, sites=SITES):
    """The fit of the same rows in one process, without some clients."""
    parts = [rows_of(name, classes) for name in sites]
    X, y, groups = (np.concatenate([part[k] for part in parts]) for k in range(3))
    names = np.concatenate(
        [np.repeat(name, len(part[1])) for name, part in zip(sites, parts, strict=True)]
    )
    groups = np.char.add(np.char.add(names, "/"), groups)
    here = ~np.isin(groups, list(without))
    return model.fit(X[here], y[here], groups=groups[here])


def params_of(model):
    """Coefficients of the clients that a fit has, by their ids."""
    return dict(zip(model.groups_.tolist(), np.asarray(model.coef_), strict=True))


def difference(found, model):
    """Largest difference of the clients' coefficients from those of the fit in one process."""
    away = [*found.missing_clients_, *getattr(found, "rejected_clients_", ())]
    found, wanted = params_of(found), params_of(in_process(model, away))
    return max(np.abs(found[key] - value).max() for key, value in wanted.items()), len(away)


def show_faults(names):
    model = IFCARegressor(n_clusters=3, random_state=0)
    with running() as folder:
        print("fault | what the user sees | exchanges | fit s | job s | missing | difference")
        for fault in names:
            settings = {"timeout": TIMEOUT}
            if fault == "server killed":
                settings["checkpoint"] = folder / "fit.checkpoint"
            if fault == "full disk":
                disk = folder / "disk"
                disk.mkdir()
                size = ["-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
                subprocess.run(["mount", *size], check=True)
                settings["checkpoint"] = disk / "fit.checkpoint"
            began = time.perf_counter()
            run = quiet(submit, folder, model, fault, **settings)
            if fault == "site killed":
                back = threading.Timer(AWAY, start, (folder, FAULTY))
                threading.Thread(target=when_gone, args=(folder, back), daemon=True).start()
            if fault == "server killed":
                while not (folder / "killed").exists():
                    time.sleep(0.2)
                print(f"  server killed after {time.perf_counter() - began:.0f} s", flush=True)
                time.sleep(15.0)
                began = time.perf_counter()
                run = quiet(submit, folder, model, fault, **settings)
            found, report = quiet(result, run)
            took = time.perf_counter() - began
            print(f"{fault} | {line(found, report, model, took)}", flush=True)
            if fault == "full disk":
                subprocess.run(["umount", str(disk)], check=True)
            if fault == "site killed":
                time.sleep(AWAY)


def when_gone(folder, timer):
    """Start a timer when the faulty site has no process."""
    while processes(folder, FAULTY):
        time.sleep(0.2)
    timer.start()


def line(found, report, model, took):
    """What a job of a fault has left."""
    reasons = report.get("failures", [])[:2]
    if rejected := report.get("rejected_clients"):
        reasons = [*reasons, f"{len(rejected)} rejected clients"]
    seen = "; ".join(reasons)[:200] or "nothing"
    if isinstance(found, Exception):
        text = str(found).replace("\n", " ")[:300]
        return f"{text} ({seen}) | - | {report.get('seconds', np.nan):.1f} | {took:.0f} | - | -"
    largest, n_away = difference(found, model)
    return (
        f"{seen} | {report['messages'] / len(SITES):.0f} | {report['seconds']:.1f} | {took:.0f} | "
        f"{n_away} | {largest:.0e}"
    )


# ------------------------------------------------------------------------------- memory


class ManyFits:
    """Fits of several methods by turns, in the place of an estimator."""

    def __init__(self, n_fits, every):
        self.n_fits, self.every = n_fits, every

    def fit_federation(self, federation):
        folder, start, self.lines, calls = (
            Path(os.environ["LASTING_FOLDER"]),
            time.perf_counter(),
            [],
            0,
        )
        for k, method in enumerate(islice(cycle(METHODS), self.n_fits), 1):
            method.fit_federation(federation)
            calls += method.calls_
            if k % self.every == 0 or k == len(METHODS):
                sites = [int((folder / f"{name}.pid").read_text()) for name in SITES]
                sizes = [megabytes(pid) for pid in [os.getpid(), *sites]]
                self.lines.append([k, time.perf_counter() - start, calls, *sizes])
        return self


def parents(folder):
    """Memory of the server and of the sites, beside that of their jobs."""
    pids = [int((kits(folder) / name / "pid.fl").read_text()) for name in ["localhost", *SITES]]
    return " ".join(f"{megabytes(pid):7.1f}" for pid in pids)


def show_memory(n_fits, n_jobs, every):
    with running() as folder:
        print(
            f"one job of {n_fits} fits: fits, seconds, exchanges; MB of server, {', '.join(SITES)}"
        )
        before, began = parents(folder), time.perf_counter()
        found, report = quiet(result, quiet(submit, folder, ManyFits(n_fits, every)))
        if isinstance(found, Exception):
            raise found
        for k, seconds, calls, *sizes in found.lines:
            print(f"{k:4.0f} {seconds:7.1f} {calls:6.0f}  " + " ".join(f"{x:7.1f}" for x in sizes))
        print(f"the job took {time.perf_counter() - began:.0f} s; the processes that started it:")
        print(f"   before {before}\n    after {parents(folder)}")
        print(
            f"{n_jobs} jobs of a fit: job, seconds, exchanges; MB of the processes that start them"
        )
        for k, method in enumerate(islice(cycle(METHODS), n_jobs), 1):
            began = time.perf_counter()
            found, report = quiet(result, quiet(submit, folder, method))
            if isinstance(found, Exception):
                raise found
            took = time.perf_counter() - began
            print(f"{k:4} {took:7.1f} {found.calls_:6}  {parents(folder)}", flush=True)


# ------------------------------------------------------------------------------- costs


class Timed:
    """Times of empty exchanges and of fits, in the place of an estimator."""

    def __init__(self, models):
        self.models = models

    def fit_federation(self, federation):
        pool = federation.open(LinearModel().bind(5), 0)
        one, several = median_times(pool, 1), median_times(pool, N_REQUESTS)
        # Two sites: what they do at the same time, and the server for one after the other.
        per_request = 2.0 / 3.0 * (several - one) / (N_REQUESTS - 1)
        self.network = {"latency": one - 1.5 * per_request, "seconds_per_request": per_request}
        self.lines = []
        for model in self.models:
            start = time.perf_counter()
            model.fit_federation(federation)
            took = time.perf_counter() - start
            up, down = (float(value) for value in model.wire_bytes_)
            self.lines.append([took, model.calls_, up, down])
        return self


def median_times(pool, n_requests):
    """Median seconds of an exchange with so many empty requests."""
    times = []
    for _ in range(51):
        start = time.perf_counter()
        asked_at_once(*[(pool, ask_present)] * n_requests)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:]))


def ask_present(pool):
    return pool.ask(Present)


def show_costs():
    models = [skcfl.IFCARegressor(), skcfl.PartialPoolingRegressor(), skcfl.FedAvgRegressor()]
    classifiers = [skcfl.IFCAClassifier(), skcfl.PartialPoolingClassifier()]
    with running(SITES[:2]) as folder:
        print("model: exchanges, seconds, kB up, kB down of two sites; ", end="")
        print("the same by estimate_cost; ratio of the seconds")
        for some, classes in ((models, False), (classifiers, True)):
            some = [model.set_params(**seed_of(model)) for model in some]
            found, _ = quiet(result, quiet(submit, folder, Timed(some), classes=classes))
            if isinstance(found, Exception):
                raise found
            print({name: f"{1e3 * value:.2f} ms" for name, value in found.network.items()})
            for model, (took, calls, up, down) in zip(some, found.lines, strict=True):
                cost = estimated(model, classes, found.network)
                print(
                    f"{type(model).__name__}: "
                    f"{calls:.0f} {took:.2f} {up / 1e3:.1f} {down / 1e3:.1f}; {cost.calls} "
                    f"{cost.wall_time:.2f} {cost.bytes_up / 1e3:.1f} {cost.bytes_down / 1e3:.1f}; "
                    f"{cost.wall_time / took:.2f}",
                    flush=True,
                )


def seed_of(model):
    return {"random_state": 0} if "random_state" in model.get_params() else {}


def estimated(model, classes, network):
    """The cost that a fit in this process foresees."""
    start = time.process_time()
    with Clock() as clock:
        model = in_process(model, classes=classes, sites=SITES[:2])
    server = time.process_time() - start - clock.seconds
    return estimate_cost(
        model,
        **network,
        uplink=1e9,
        downlink=1e9,
        seconds_per_row=clock.seconds / (model.calls_ * model._n_rows),
        n_sites=2,
        server_seconds=server,
    )


# ------------------------------------------------------------------------------- dask


def part(name, once):
    """Rows of a site for a worker, which is killed once if `once` is not there yet."""
    from skcfl.federation.inprocess import InProcessSite

    answer, times = InProcessSite.answer, iter(range(1, 10**9))

    def faulty(site, call, arguments):
        time.sleep(COMPUTING)
        if next(times) == FIRST and once is not None and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(site, call, arguments)

    InProcessSite.answer = faulty
    X, y, groups = rows_of(name)
    return X, y, np.char.add(f"{name}/", groups)


def show_dask():
    from dask.distributed import Client, LocalCluster

    from skcfl.federation import DaskFederation

    model = IFCARegressor(n_clusters=3, random_state=0)
    print("fault | what the user sees | exchanges | fit s | missing | difference")
    for fault, rebuild in (("none", False), ("worker killed", False), ("with rebuild=True", True)):
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalCluster(3, threads_per_worker=1, dashboard_address=":0") as cluster,
            Client(cluster) as client,
            warnings.catch_warnings(record=True) as seen,
        ):
            warnings.simplefilter("always")
            once = Path(folder) / "killed"
            onces = [once if name == FAULTY and fault != "none" else None for name in SITES]
            loaders = [partial(part, name, path) for name, path in zip(SITES, onces, strict=True)]
            federation = DaskFederation(client, loaders, rebuild=rebuild, timeout=TIMEOUT)
            start = time.perf_counter()
            found = model.fit_federation(federation)
            took = time.perf_counter() - start
        largest, n_away = difference(found, model)
        text = "; ".join(dict.fromkeys(str(one.message)[:150] for one in seen)) or "nothing"
        print(
            f"{fault} | {text} | {found.calls_} | {took:.1f} | {n_away} | {largest:.0e}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--soak", type=int, metavar="FITS", help="fits in one job")
    parser.add_argument("--jobs", type=int, default=10, help="jobs after it")
    parser.add_argument("--every", type=int, default=10, help="fits between two lines")
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--dask", action="store_true")
    parser.add_argument("--faults", nargs="*", metavar="NAME", help=", ".join(FAULTS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.soak:
        show_memory(options.soak, options.jobs, options.every)
    if options.faults is not None:
        show_faults(options.faults or list(FAULTS))
    if options.costs:
        show_costs()
    if options.dask:
        show_dask()


if __name__ == "__main__":
    # Objects of this module are sent by its name, which is not __main__ elsewhere.
    importlib.import_module("lasting").main()
