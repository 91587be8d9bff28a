"""Convex clustering of points: seconds for a path of lam and for a single one, certified.

A path goes up 20 values of lam, warm started, every solution to a relative duality gap of 1e-6; a
single solution starts from nothing. One line a case: CPU seconds of one thread, the largest
relative gap, the objective (of a path the sum), the numbers of clusters, and how many partitions
were proved. "fit" is ``ConvexClustering`` as a user calls it, graph and proof included, with a
given lam and with "auto". The lines before it are the solvers alone, on a graph that is there.

Where CCMMPy (the C++ package ``ccmmpy``) is installed, the same problems on the same graphs go to
it as well, with its default options, and lines show the ratio of the seconds and by how much the
peer exceeds our objective, at the most: it has no certificate, and another kind of tolerance::

    python benchmarks/points.py [--quick] [--repeats 3]

Many points: one fit of ``ConvexClustering(lam=1)`` a size, graph included, in its own process,
with its peak memory in MB (1,000,000 points take minutes where the machine is busy)::

    python benchmarks/points.py --sizes 10000 50000 200000 1000000
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from fusion import peak_memory
from sklearn.datasets import make_blobs, make_moons
from threadpoolctl import threadpool_limits

from skcfl import ConvexClustering
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.ama import ama
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import complete_graph, knn_graph
from skcfl.models import Location
from skcfl.penalties import L2

try:
    from ccmmpy import _ccmmpy
except ImportError:
    _ccmmpy = None

TOL = 1e-6


def jobs(quick):
    """Name, points, graph ("knn" or "complete"), ends of the path."""
    for n in (500, 1000) if quick else (500, 1000, 5000):
        yield (
            f"moons {n} x 2, knn",
            make_moons(n, noise=0.05, random_state=0)[0],
            "knn",
            (0.01, 10),
        )
    for n in (1000,) if quick else (1000, 5000):
        points = make_blobs(n, n_features=20, centers=10, random_state=0)[0]
        yield f"blobs {n} x 20, knn", points, "knn", (0.01, 10)
    points = make_blobs(500, n_features=2, centers=4, random_state=0)[0]
    yield "blobs 500 x 2, complete", points, "complete", (1e-4, 0.1)


def seconds(function, repeats):
    """Least CPU seconds of some calls, and what the last returned."""
    least = np.inf
    for _ in range(repeats):
        start = time.process_time()
        result = function()
        least = min(least, time.process_time() - start)
    return least, result


def solve(problem, lams, solver, options):
    """Results along `lams`, each from the one before."""
    state, results = None, []
    for lam in lams:
        result, state = solver(problem, lam, tol=TOL, state=state, **options)
        results.append(result)
    return results


def peer(points, graph, lams, repeats):
    """CPU seconds and objectives of CCMMPy."""
    X = (points - points.mean(axis=0)).T.copy()
    heads, tails = graph.heads, graph.tails
    if graph.is_complete:
        heads, tails = np.triu_indices(graph.n_nodes, 1)
    weights = np.full(len(heads), graph.weight) if graph.is_complete else graph.weights
    rows, columns = np.append(heads, tails), np.append(tails, heads)
    order = np.lexsort((rows, columns))
    ends = np.array([rows[order], columns[order]], dtype=np.int32)
    threshold = _ccmmpy._fusion_threshold(X, 1e-3)
    arguments = (np.append(weights, weights)[order], np.asarray(lams), 1e-6, threshold)
    # Not scaled, paths not saved, 25 steps before they are doubled, at most 5000.
    total, result = seconds(
        lambda: _ccmmpy._convex_clusterpath(X, ends, *arguments, False, False, 25, 5000), repeats
    )
    return total, result["info_d"][1]


def line(what, total, objectives, gaps, numbers, proved, other=None):
    """Print one case."""
    numbers = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
    print(
        f"  {what:20}{total:8.3f} s, gap {max(gaps):7.1e}, objective {sum(objectives):11.6g}, "
        f"{numbers:>9} clusters, {proved:2} of {len(gaps):2} proved",
        end="",
    )
    if other is not None:
        excess = (other[1] / np.array(objectives) - 1.0).max()
        print(f"; {total / other[0]:.2f} x CCMMPy, whose excess is {excess:.0e}", end="")
    print(flush=True)


def race(what, problem, points, lams, solver, repeats, **options):
    """Time a solver and the peer."""
    total, results = seconds(lambda: solve(problem, lams, solver, options), repeats)
    line(
        what,
        total,
        [r.objective for r in results],
        [r.extra["dual_gap"] / r.objective for r in results],
        [len(r.cluster_params) for r in results],
        sum(r.extra["partition_optimal"] for r in results),
        None if _ccmmpy is None else peer(points, problem.graph, lams, repeats),
    )


def fit(points, lam, kind):
    """Time an estimator."""
    total, model = seconds(lambda: ConvexClustering(lam, graph=kind).fit(points), 1)
    name = "fit, auto" if lam == "auto" else f"fit, lam {lam:.3g}"
    gap = model.dual_gap_ / model.objective_
    line(name, total, [model.objective_], [gap], [model.n_clusters_], model.partition_optimal_)


def fit_many(n, shape):
    """CPU seconds, relative gap, clusters and peak memory of one fit of many points."""
    if shape == "moons":
        points = make_moons(n, noise=0.05, random_state=0)[0]
    else:
        points = make_blobs(n, n_features=2, centers=10, random_state=0)[0]
    with threadpool_limits(1):
        total, model = seconds(lambda: ConvexClustering(1.0).fit(points), 1)
    return total, model.dual_gap_ / model.objective_, model.n_clusters_, peak_memory()


def race_many(sizes):
    """One line a fit."""
    context = multiprocessing.get_context("spawn")
    print(f"{'points':>14} {'seconds':>8} {'gap':>8} {'clusters':>9} {'MB':>6}")
    for n in sizes:
        for shape in ("blobs", "moons"):
            with ProcessPoolExecutor(1, mp_context=context) as own:
                total, gap, number, memory = own.submit(fit_many, n, shape).result()
            print(f"{shape:>6}{n:8} {total:8.2f} {gap:8.1e} {number:9} {memory:6.0f}", flush=True)


def main():
    """Race all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out 5000 points")
    parser.add_argument("--repeats", type=int, default=3, help="the least time of so many counts")
    parser.add_argument("--sizes", type=int, nargs="+", help="fits of so many points instead")
    args = parser.parse_args()
    if args.sizes:
        race_many(args.sizes)
        return
    if _ccmmpy is None:
        print("CCMMPy is not installed: no ratios.")
    for name, points, kind, ends in jobs(args.quick):
        n, d = points.shape
        graph = knn_graph(points, 5) if kind == "knn" else complete_graph(n)
        pool = open_rows(Location().bind(d), points - points.mean(axis=0), None, np.arange(n), n)
        problem = FusionProblem(pool, graph, L2())
        lams = np.geomspace(*ends, 20)
        print(name)
        if kind == "knn":
            race("path", problem, points, lams, ama, args.repeats, contraction=False)
            race("path with proofs", problem, points, lams, ama, 1)
            for k in (5, 10, 15):
                what = f"lam {lams[k]:.3g}"
                race(what, problem, points, lams[[k]], ama, args.repeats, contraction=False)
        else:
            race("path, ADMM", problem, points, lams, admm, 1, contraction=False)
            race("path with proofs", problem, points, lams, admm, 1)
            for k in (5, 10, 15):
                race(f"lam {lams[k]:.3g}", problem, points, lams[[k]], admm, args.repeats)
        for lam in (lams[10], "auto"):
            fit(points, lam, kind)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
