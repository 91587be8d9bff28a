"""Fusion problems: skcfl's solver against cvxpy with Clarabel, and large problems alone.

Sum-of-norms fusion of linear models of clients in three clusters, on the complete graph
unless stated, at half of the lam where all models are equal.  Both solve to a relative duality gap
of 1e-6; times are CPU seconds of this run, one BLAS thread.  cvxpy's total includes building the
problem, as its users pay for it; beside it stands what its solver says it took.  "excess" is how
much skcfl's objective exceeds Clarabel's, relative; "gap" is skcfl's own bound of it.

    python benchmarks/fusion.py [--full]

``--full`` adds the logistic problem of 200 clients, for which cvxpy needs more than a minute.
Large problems run in a process of their own, whose peak memory is shown.
"""

import argparse
import multiprocessing
import resource
import time
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.fusion.admm import admm
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import complete_graph, knn_graph
from skcfl.models import LinearModel
from skcfl.penalties import L2
from skcfl.rounds.polish import solve_pooled

ALPHA = 1e-2


def make_rows(n_clients, d, n_rows, loss, seed=0):
    """Rows of clients in three clusters: X, y, owner of each row."""
    rng = np.random.RandomState(seed)
    codes = np.repeat(np.arange(n_clients), n_rows)
    W = 2.0 * rng.standard_normal((3, d))
    X = rng.standard_normal((len(codes), d))
    z = np.einsum("rd,rd->r", X, W[codes % 3])
    if loss == "squared_error":
        return X, z + rng.standard_normal(len(z)), codes
    return X, (rng.uniform(size=len(z)) < 1 / (1 + np.exp(-z))).astype(float), codes


def make_problem(n_clients, d, n_rows, loss, graph, rows):
    """The problem, and half of the lam at which all models are equal (an upper bound of it)."""
    X, y, codes = rows
    n_classes = None if loss == "squared_error" else 2
    model = LinearModel(loss=loss, alpha=ALPHA, fit_intercept=False).bind(d, n_classes)
    pool = open_rows(model, X, y, codes, n_clients)
    edges = complete_graph(n_clients) if graph == "complete" else knn_graph(pool.ask(Solve)[0], 10)
    problem = FusionProblem(pool, edges, L2())
    if graph != "complete":
        return problem, 0.02
    together = np.zeros(n_clients, dtype=int)
    theta, *_ = solve_pooled(pool, together, np.zeros((1, d)), np.ones(n_clients))
    q = pool.ask(ObjectivesGradients, theta[together])[1]
    return problem, 0.5 * np.linalg.norm(q, axis=1).max() / (n_clients - 1)


def with_cvxpy(rows, problem, lam, loss):
    """Optimum, total seconds and seconds of the solver by cvxpy and Clarabel."""
    import cvxpy as cp

    X, y, codes = rows
    start = time.process_time()
    W = cp.Variable((problem.n, problem.d))
    total = 0.5 * ALPHA * cp.sum_squares(W)
    for i in range(problem.n):
        mine = codes == i
        z = X[mine] @ W[i]
        if loss == "squared_error":
            total += cp.sum_squares(z - y[mine]) / (2 * mine.sum())
        elif loss == "log_loss":
            total += cp.sum(cp.logistic(-cp.multiply(2 * y[mine] - 1, z))) / mine.sum()
        else:
            total += cp.sum_squares(cp.pos(1 - cp.multiply(2 * y[mine] - 1, z))) / mine.sum()
    lengths = cp.norm(problem.graph.incidence() @ W, 2, axis=1)
    task = cp.Problem(cp.Minimize(total + lam * problem.graph.weights @ lengths))
    task.solve(solver=cp.CLARABEL, tol_gap_rel=1e-6, tol_gap_abs=1e-9)
    return task.value, time.process_time() - start, task.solver_stats.solve_time


def race(n_clients, d, n_rows, loss):
    """One line: seconds of both, and the ratio."""
    rows = make_rows(n_clients, d, n_rows, loss)
    times = []
    for _ in range(3):
        problem, lam = make_problem(n_clients, d, n_rows, loss, "complete", rows)
        start = time.process_time()
        result, _ = admm(problem, lam, tol=1e-6)
        times.append(time.process_time() - start)
    ours = float(np.median(times))
    best, total, solver = with_cvxpy(rows, problem, lam, loss)
    print(
        f"{loss:14} {n_clients:5} {d:3} {ours:8.3f} {total:8.2f} {solver:8.2f} "
        f"{total / ours:7.0f}x {(result.objective - best) / abs(best):9.1e} "
        f"{result.extra['dual_gap'] / abs(best):8.1e}",
        flush=True,
    )


def peak_memory():
    """Peak memory of this process in MB."""
    status = Path("/proc/self/status")
    if status.exists():
        # ru_maxrss would remember the process that started this one.
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def alone(n_clients, d, n_rows, loss, graph, fraction, queue):
    """Seconds, iterations, gap and peak memory of a large problem."""
    with threadpool_limits(1):
        rows = make_rows(n_clients, d, n_rows, loss)
        problem, lam = make_problem(n_clients, d, n_rows, loss, graph, rows)
        start = time.process_time()
        result, _ = admm(problem, 2 * fraction * lam, tol=1e-6)
        seconds = time.process_time() - start
    memory = peak_memory()
    gap = result.extra["dual_gap"] / abs(result.objective)
    queue.put((seconds, result.n_iter, gap, int(result.labels.max()) + 1, memory))


def main():
    """Print one line a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the slow peer runs too")
    args = parser.parse_args()
    print(f"{'':26}{'skcfl':>7} {'cvxpy':>8} {'solver':>8}")
    print(
        f"{'loss':14} {'n':>5} {'d':>3} {'seconds':>8} {'total':>8} {'only':>8} {'ratio':>8} "
        f"{'excess':>9} {'gap':>8}"
    )
    with threadpool_limits(1):
        race(60, 5, 20, "squared_error")
        race(60, 5, 20, "log_loss")
        race(60, 5, 20, "squared_hinge")
        race(200, 10, 30, "squared_error")
        if args.full:
            race(200, 10, 30, "log_loss")
    print(
        f"\n{'alone':14} {'n':>5} {'d':>3} {'graph':>9} {'lam/max':>8} {'seconds':>8} "
        f"{'iter':>5} {'gap':>8} {'clusters':>9} {'MB':>5}"
    )
    context = multiprocessing.get_context("spawn")
    for job in [
        (1000, 10, 30, "squared_error", "complete", 0.1),
        (1000, 10, 30, "squared_error", "complete", 0.5),
        (1000, 10, 30, "squared_error", "complete", 0.9),
        (1000, 10, 30, "log_loss", "complete", 0.5),
        (1000, 20, 30, "squared_error", "knn", 0.5),
        (10000, 20, 20, "squared_error", "knn", 0.5),
    ]:
        queue = context.Queue()
        process = context.Process(target=alone, args=(*job, queue))
        process.start()
        seconds, n_iter, gap, n_clusters, memory = queue.get()
        process.join()
        n_clients, d, _, loss, graph, fraction = job
        print(
            f"{loss:14} {n_clients:5} {d:3} {graph:>9} {fraction:8} {seconds:8.2f} {n_iter:5} "
            f"{gap:8.1e} {n_clusters:9} {memory:5.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
