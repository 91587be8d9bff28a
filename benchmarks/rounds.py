"""Time of one communication round over the time of its bare matrix products.

"Bare" are the two products that a round of IFCA with k linear models cannot avoid, in the
same floating type and on all rows at once: the predictions of every model on every row,
and the product of the chosen model's residuals with each client's rows. The naive loop
does the same round client by client, as published code does. All are measured in this run,
turn by turn; the figures are medians of the ratios::

    python benchmarks/rounds.py [--repeats 15] [--quick]
"""

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from skcfl.clients import ClientPool
from skcfl.models import LinearModel
from skcfl.solvers import Options, alternate

JOBS = [
    # clients, rows a client, features, models, target of the ratio
    (100, 100, 1000, 2, 0.6),
    (400, 100, 1000, 4, 0.6),
    (200, 50, 20, 4, 4.0),
]
ALPHA = 1e-4
ROUNDS = 10


def make_job(n_clients, n_rows, d, k, seed=0):
    """Rows, starts and the pool of one job; mixed linear regression."""
    rng = np.random.RandomState(seed)
    X = rng.standard_normal((n_clients * n_rows, d))
    codes = np.repeat(np.arange(n_clients), n_rows)
    true = rng.standard_normal((k, d))
    y = np.einsum("rd,rd->r", X, true[codes % k]) + 0.1 * rng.standard_normal(len(X))
    theta = true + 0.3 * rng.standard_normal((k, d))
    model = LinearModel(alpha=ALPHA, fit_intercept=False).bind(d)
    return X, y, theta, ClientPool(model, X, y, codes, n_clients)


def bare(X, residuals, theta):
    """The two matrix products of a round."""
    n_clients, n_rows = residuals.shape
    theta @ X.T
    np.matmul(residuals[:, None, :], X.reshape(n_clients, n_rows, -1))


def naive(X, y, theta, n_clients, rate):
    """One round, one client after the other."""
    total, weight = np.zeros_like(theta), np.zeros(len(theta))
    for Xi, yi in zip(np.split(X, n_clients), np.split(y, n_clients), strict=True):
        R = Xi @ theta.T - yi[:, None]
        j = int((R**2).mean(axis=0).argmin())
        total[j] += Xi.T @ R[:, j] / len(yi) + ALPHA * theta[j]
        weight[j] += 1
    return theta - rate * total / np.maximum(weight, 1)[:, None]


def rounds(pool, theta, rate):
    """Seconds of one round of the library, with all its bookkeeping."""
    options = Options(max_iter=ROUNDS, step_size=rate, tol=0, polish=False)
    loop_only = Options(max_iter=1, step_size=rate, tol=0, polish=False)
    start = time.perf_counter()
    alternate(pool, theta, loop_only, np.random.RandomState(0))
    once = time.perf_counter() - start
    start = time.perf_counter()
    alternate(pool, theta, options, np.random.RandomState(0))
    return (time.perf_counter() - start - once) / (ROUNDS - 1)


def clock(function, *args, least=0.02):
    """Seconds of a call, from as many calls as fill a fraction of a second."""
    count = 0
    start = time.perf_counter()
    while count == 0 or time.perf_counter() - start < least:
        function(*args)
        count += 1
    return (time.perf_counter() - start) / count


def main():
    """Measure every job and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a quarter of the clients")
    args = parser.parse_args()
    print(f"{'job':34} {'bare':>9} {'round':>9} {'ratio':>6} {'naive':>6} {'target':>7}")
    with threadpool_limits(1):
        for n_clients, n_rows, d, k, target in JOBS:
            n = n_clients // 4 if args.quick else n_clients
            X, y, theta, pool = make_job(n, n_rows, d, k)
            residuals = np.random.RandomState(1).standard_normal((n, n_rows))
            rate = 0.5 / pool.spectrum()[0].mean()
            times = []
            for _ in range(args.repeats + 1):
                times.append(
                    (
                        clock(bare, X, residuals, theta),
                        rounds(pool, theta, rate),
                        clock(naive, X, y, theta, n, rate),
                    )
                )
            floor, ours, loop = np.array(times[1:]).T
            name = f"IFCA linear {n} x {n_rows} x {d}, k={k}"
            print(
                f"{name:34} {1e3 * np.median(floor):7.2f}ms {1e3 * np.median(ours):7.2f}ms "
                f"{np.median(ours / floor):6.2f} {np.median(loop / floor):6.2f} {target:7.2f}"
            )


if __name__ == "__main__":
    main()
