"""Section 6.1 of the IFCA paper: how often random starts find the clusters.

Mixed linear regression of m clients with n rows in d dimensions, k clusters of equal size.
True parameters have independent Bernoulli(1/2) coordinates; starts are drawn in the same way.
IFCA runs 300 rounds of gradient averaging (option I, divided by m) for each step size of the
paper's grid.  A trial succeeds if among 10 starts and the step sizes one ends within
``dist = mean_j |theta_j - theta*_j| <= 0.6 sigma``.

The paper's text rescales the parameters to norm R; the authors' public code multiplies the
coordinates by R instead (norm about R sqrt(d / 2)), and that is where the figure's success
rates come out.  ``--scaling`` chooses.  The paper's squared error has no factor 1/2, so its steps
are twice as long here.  Fig. 2 is a plot without numbers: success rises with R in both panels, and
reaches 1.

    python benchmarks/ifca_synthetic.py [--shrink 5] [--trials 10] [--scaling coordinates]

``--shrink 1 --trials 40`` is the paper's size: (m, n, d) = (100, 100, 1000) for k = 2 and
(400, 100, 1000) for k = 4; a larger shrink divides n and d by it, which keeps the rows a
parameter.  The last column starts once from "loss++", the default of ``IFCARegressor``.
"""

import argparse
import time

import numpy as np
from scipy.optimize import linear_sum_assignment

from skcfl.datasets import make_clustered_regression
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.alternate import Options, alternate
from skcfl.rounds.starts import loss_plus_plus

PANELS = {2: (100, (0.01, 0.1, 1.0)), 4: (400, (0.5, 1.0, 2.0))}
SEPARATIONS = (0.01, 0.03, 0.1, 0.3, 1.0)
N_STARTS, N_ROUNDS, SIGMA = 10, 300, 0.1


def distance(theta, truth):
    """Mean distance of the models to the truth, best numbering."""
    D = np.linalg.norm(theta[:, None] - truth[None], axis=2)
    return D[linear_sum_assignment(D)].mean()


def run(pool, theta, step):
    """Rounds of option I from given starts; models."""
    options = Options(
        max_iter=N_ROUNDS,
        step_size=2 * step,
        division="all",
        weights="uniform",
        empty_cluster="keep",
        tol=0,
        polish=False,
    )
    with np.errstate(all="ignore"):
        return alternate(pool, theta, options, np.random.RandomState(0)).cluster_params


def trial(k, n_rows, d, radius, scaling, seed):
    """Success of random starts, of the first of them, and of one start by loss."""
    m, steps = PANELS[k]
    data = make_clustered_regression(
        n_clients=m,
        n_clusters=k,
        n_features=d,
        n_samples=n_rows,
        coef="binary" if scaling == "coordinates" else "bernoulli",
        radius=radius,
        noise=SIGMA,
        random_state=seed,
    )
    ids, codes = np.unique(data.groups, return_inverse=True)
    model = LinearModel(alpha=0.0, fit_intercept=False).bind(d, dtype=np.float32)
    pool = open_rows(model, data.X.astype(np.float32), data.y, codes, len(ids))
    rng = np.random.RandomState(seed)
    first = found = False
    for start in range(N_STARTS):
        theta = rng.randint(0, 2, (k, d)).astype(float)
        if scaling == "coordinates":
            theta *= radius
        else:
            theta *= radius / np.maximum(np.linalg.norm(theta, axis=1, keepdims=True), 1)
        found = any(distance(run(pool, theta, s), data.coef) <= 0.6 * SIGMA for s in steps)
        first |= found and start == 0
        if found:
            break
    theta = loss_plus_plus(pool, k, rng)
    result = alternate(pool, theta, Options(weights="uniform"), rng)
    return found, first, distance(result.cluster_params, data.coef) <= 0.6 * SIGMA


def main():
    """Print one line for each number of clusters and separation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shrink", type=int, default=5)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--scaling", choices=["coordinates", "norm"], default="coordinates")
    parser.add_argument("--clusters", type=int, nargs="+", default=[2, 4])
    args = parser.parse_args()
    n_rows, d = 100 // args.shrink, 1000 // args.shrink
    print(f"sigma {SIGMA}, {args.trials} trials, R scales the {args.scaling}")
    print(
        f"{'k':>2} {'m':>4} {'n':>4} {'d':>5} {'R':>6} {'10 starts':>10} {'1 start':>8} "
        f"{'loss++':>7} {'seconds':>8}"
    )
    for k in args.clusters:
        for radius in SEPARATIONS:
            start = time.perf_counter()
            wins = np.mean(
                [trial(k, n_rows, d, radius, args.scaling, seed) for seed in range(args.trials)],
                axis=0,
            )
            print(
                f"{k:2} {PANELS[k][0]:4} {n_rows:4} {d:5} {radius:6} {wins[0]:10.2f} "
                f"{wins[1]:8.2f} {wins[2]:7.2f} {time.perf_counter() - start:8.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
