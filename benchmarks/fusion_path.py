"""A path over lam against cold solves: 30 values of lam, warm started and certified.

Sum-of-norms fusion of linear models on the complete graph, from where hardly anything fuses to
where everything does, every solution to a relative duality gap of 1e-6, one BLAS thread. "path" is
the CPU time of ``lam_path``'s solver for all values, "slowest" the longest cold solve of one,
"cold" all cold solves together; the models start from what clients train on their own in both.
"ratio" is path over slowest. "rows" is the number of rows per client: with many the clusters are
solutions and can be proved, with few they are none.

    python benchmarks/fusion_path.py [--quick]
"""

import argparse
import time

import numpy as np
from fusion import make_problem, make_rows
from threadpoolctl import threadpool_limits

from skcfl.fusion.admm import admm
from skcfl.fusion.path import fusion_path, lam_grid

N_LAMS, TOL = 30, 1e-6


def race(n_clients, d, n_rows, loss, repeats):
    """One line: seconds of the path and of the cold solves."""
    rows = make_rows(n_clients, d, n_rows, loss)
    problem, _ = make_problem(n_clients, d, n_rows, loss, "complete", rows)
    lams = lam_grid(problem, N_LAMS)
    problem.local_models()

    def solve(lam, state):
        return admm(problem, lam, tol=TOL, state=state)

    times, cold = [], np.empty((repeats, N_LAMS))
    for r in range(repeats):
        start = time.process_time()
        path = fusion_path(lams, solve)
        times.append(time.process_time() - start)
        for k, lam in enumerate(lams):
            start = time.process_time()
            admm(problem, lam, tol=TOL)
            cold[r, k] = time.process_time() - start
    total, each = np.median(times), np.median(cold, axis=0)
    n_clusters = path.labels.max(axis=1) + 1
    print(
        f"{loss:14} {n_clients:5} {d:3} {n_rows:5} {total:8.2f} {each.max():8.3f} "
        f"{each.sum():8.2f} {total / each.max():6.1f} {path.optimal.sum():7} of {N_LAMS} "
        f"{len(set(n_clusters)):6} {path.converged.all()!s:>9}",
        flush=True,
    )


def main():
    """Print one line a problem."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat instead of three")
    repeats = 1 if parser.parse_args().quick else 3
    print(
        f"{'loss':14} {'n':>5} {'d':>3} {'rows':>5} {'path':>8} {'slowest':>8} {'cold':>8} "
        f"{'ratio':>6} {'certified':>13} {'sizes':>6} {'converged':>9}"
    )
    with threadpool_limits(1):
        race(200, 10, 30, "squared_error", repeats)
        race(200, 10, 200, "squared_error", repeats)
        race(200, 10, 30, "log_loss", repeats)
        race(200, 10, 200, "log_loss", repeats)


if __name__ == "__main__":
    main()
