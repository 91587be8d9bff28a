"""GTV minimisation: iterations and seconds to a relative gap of 1e-6, and a large graph.

The first table is SarcheshmehPour et al. (2023), Table I: a stochastic block model of two
clusters of 100 nodes, 10 rows a node, 100 features, noise 1e-3, lam = 1e-2 in the paper's
convention (5e-3 here).  With fewer rows than features the duality gap of the primal-dual
iterates is infinite: where no exact partition closes it, the gap printed is the residual gap.
The second is a graph of nearest neighbours in the plane, 10,000 nodes, d = 20, 20 rows a node::

    python benchmarks/gtv.py [--quick] [--skip-printed] [--nodes 10000] [--contraction]
"""

import argparse
import resource
import time

import numpy as np
from threadpoolctl import threadpool_limits

from skcfl._contraction import FusionProblem
from skcfl.clients import ClientPool
from skcfl.datasets import make_clustered_regression
from skcfl.graphs import knn_graph, stochastic_block_model
from skcfl.models import LinearModel
from skcfl.penalties import L2
from skcfl.solvers._admm import admm
from skcfl.solvers._primal_dual import PrimalDualState, primal_dual

TOL = 1e-6


def block_model_job(size, n_features, seed=0):
    """Pool, graph, and the true model of every node."""
    graph, labels = stochastic_block_model([size, size], 0.5, 0.01, random_state=seed)
    data = make_clustered_regression(
        2 * size,
        2,
        n_features,
        n_samples=10,
        coef="binary",
        radius=0.5,
        noise=1e-3,
        cluster_sizes=[size, size],
        id_format=None,
        shuffle=False,
        random_state=seed,
    )
    return make_pool(data, 0.0), graph, data.coef[labels]


def plane_job(n_nodes, n_features=20, n_rows=20, seed=0):
    """Nodes in the plane, four clusters by quadrant."""
    rng = np.random.RandomState(seed)
    points = rng.uniform(-1.0, 1.0, size=(n_nodes, 2))
    labels = 2 * (points[:, 0] > 0) + (points[:, 1] > 0)
    points = points[np.argsort(labels, kind="stable")]
    data = make_clustered_regression(
        n_nodes,
        4,
        n_features,
        n_samples=n_rows,
        noise=0.5,
        cluster_sizes=np.bincount(labels, minlength=4),
        id_format=None,
        shuffle=False,
        random_state=seed,
    )
    return make_pool(data, 1e-4), knn_graph(points, 5), data.coef[data.labels]


def make_pool(data, alpha):
    model = LinearModel(alpha=alpha, fit_intercept=False).bind(data.X.shape[1])
    return ClientPool(model, data.X, data.y, data.groups, int(data.groups.max()) + 1)


def printed(problem, lam, max_iter):
    """Algorithm 1 as printed: unit ratio, no relaxation, from zero."""
    zeros = [np.zeros((problem.d, *block.shape)) for block in problem.blocks]
    start = PrimalDualState(np.zeros((problem.n, problem.d)), zeros, 1.0, lam)
    options = dict(ratio=1.0, relaxation=1.0, state=start, contraction=False)
    return primal_dual(problem, lam, tol=TOL, max_iter=max_iter, **options)


def race(job, lam, solvers):
    """Run the solvers, each on a fresh problem, and print one line each."""
    pool, graph, true = job
    print(f"{graph}, d = {pool.n_params}, lam = {lam:g}")
    print(
        f"{'solver':32s} {'iterations':>10s} {'seconds':>8s} {'ms/it':>6s} {'rel. gap':>9s} "
        f"{'objective':>12s} {'clusters':>8s} {'MSE':>9s}"
    )
    for name, solve in solvers.items():
        start = time.perf_counter()
        problem = FusionProblem(pool, graph, L2())
        result, _ = solve(problem, lam)
        seconds = time.perf_counter() - start
        gap = result.extra["dual_gap"]
        mark = " "
        if not np.isfinite(gap):
            gap, mark = result.extra.get("residual_gap", np.inf), "r"
        error = ((result.params - true) ** 2).sum(axis=1).mean()
        print(
            f"{name:32s} {result.n_iter:10d} {seconds:8.2f} {1e3 * seconds / result.n_iter:6.1f} "
            f"{gap / problem.tolerance(result.objective, 1.0):8.1e}{mark} "
            f"{result.objective:12.6g} {result.labels.max() + 1:8d} {error:9.2e}",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory so far {peak:.0f} MB; gaps marked r are residual gaps\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a quarter of the sizes")
    parser.add_argument("--skip-printed", action="store_true", help="without the printed steps")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes of the large graph")
    parser.add_argument(
        "--contraction", action="store_true", help="the large graph with exact partitions too"
    )
    parser.add_argument("--max-iter", type=int, default=4000)
    args = parser.parse_args()
    scale = 4 if args.quick else 1

    def plain(problem, lam, **options):
        return primal_dual(problem, lam, tol=TOL, max_iter=args.max_iter, **options)

    solvers = {
        "admm, contraction": lambda p, lam: admm(p, lam, tol=TOL),
        "primal-dual, contraction": plain,
        "primal-dual": lambda p, lam: plain(p, lam, contraction=False),
        "primal-dual, ratio=20": lambda p, lam: plain(p, lam, ratio=20.0, contraction=False),
    }
    if not args.skip_printed:
        solvers["Algorithm 1 as printed"] = lambda p, lam: printed(p, lam, args.max_iter)
    with threadpool_limits(1):
        race(block_model_job(100 // scale, 100 // scale), 5e-3, solvers)
        for contraction in (False, True) if args.contraction else (False,):
            name = ", contraction" if contraction else ""
            options = dict(tol=TOL, contraction=contraction)
            large = {
                f"admm{name}": lambda p, lam, o=options: admm(p, lam, **o),
                f"primal-dual{name}": lambda p, lam, o=options: primal_dual(p, lam, **o),
            }
            race(plane_job(args.nodes // scale), 0.5, large)


if __name__ == "__main__":
    main()
