"""Mixed models: PartialPooling over statsmodels' MixedLM, CPU seconds of the same fit.

Clients' rows are linear in some features, all of whose coefficients and the intercept are random
with one full covariance.  Both fit by maximum likelihood without priors.  MixedLM's default, BFGS,
and L-BFGS often stop short of the maximum, conjugate gradients mostly do not: all are tried.  The
lines below are ``PartialPoolingRegressor()``, which looks for clusters and has priors, and two of
its other covariances.  One line a fit: seconds, the log-likelihood and the number of clusters.

500 clients of 20 rows and five random coefficients, on one core: .12 s, log-likelihood -16310.103;
MixedLM 6.9 s and -16472.6 (BFGS), 9.0 s and -16453.2 (L-BFGS), 19.9 s and -16310.104 (conjugate
gradients), 57 to 166 times as long.  One BLAS thread::

    python benchmarks/mixed.py [--clients 500] [--rows 20] [--coefficients 5] [--runs 3]

``--laplace`` draws two classes instead, of clients with few rows, and prints the mean estimates of
the fit as it comes and of the likelihood's maximum, without statsmodels::

    python benchmarks/mixed.py --laplace [--runs 40]
"""

import argparse
import time
import warnings
from functools import partial

import numpy as np
from scipy.special import expit
from threadpoolctl import threadpool_limits

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor


def make(n_clients, n_rows, n_coefficients, seed=0):
    """Design with ones last, targets and clients of one normal population."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n_rows)
    Z = np.column_stack(
        [rng.standard_normal((len(groups), n_coefficients - 1)), np.ones_like(groups)]
    )
    L = np.tril(0.5 * rng.standard_normal((n_coefficients, n_coefficients)))
    B = rng.standard_normal((n_clients, n_coefficients)) @ L.T + rng.standard_normal(
        n_coefficients
    )
    return Z, (Z * B[groups]).sum(axis=1) + rng.standard_normal(len(groups)), groups


def tell(name, fit, runs=1):
    """Print the least CPU seconds of some runs, and what the last one ended at."""
    took = np.inf
    for _ in range(runs):
        start = time.process_time()
        loglik, n_clusters = fit()
        took = min(took, time.process_time() - start)
    print(
        f"{name:28} {took:8.2f} s  log-likelihood {loglik:.3f}  clusters {n_clusters}", flush=True
    )


def laplace(n_draws):
    """Print mean estimates of a slope of 1 and a deviation of 2, and how often intervals cover."""
    ways = {
        "as it comes": {"basis": "linear"},
        "prior=inf": {"random": "intercept", "n_clusters": 1, "basis": "linear", "prior": np.inf},
        "crossed=[]": {"random": "intercept", "prior": np.inf, "crossed": []},
    }
    for n, n_rows in ((200, 4), (100, 8), (100, 15)):
        found = {name: [] for name in ways}
        for seed in range(n_draws):
            rng = np.random.default_rng(seed)
            groups = np.repeat(np.arange(n), n_rows)
            X = rng.normal(size=(len(groups), 1))
            at = X[:, 0] - 0.5 + 2.0 * rng.normal(size=n)[groups]
            y = rng.uniform(size=len(groups)) < expit(at)
            for name, options in ways.items():
                model = PartialPoolingClassifier(**options).fit(X, y, groups=groups)
                slope, error = model.cluster_coef_[0, 0], model.standard_errors_[0, 0]
                deviation = np.sqrt(model.covariance_.diagonal()[-1])
                found[name].append([slope, abs(slope - 1) < 1.96 * error, deviation])
        for name, rows in found.items():
            slope, covered, deviation = np.mean(rows, axis=0)
            print(
                f"{n} x {n_rows:<3} {name:12} slope {slope:.2f}, covered {covered:.2f}, "
                f"deviation {deviation:.2f}",
                flush=True,
            )


def main():
    """Print one line a fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--coefficients", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--laplace", action="store_true")
    args = parser.parse_args()
    if args.laplace:
        laplace(args.runs)
        return
    from statsmodels.regression.mixed_linear_model import MixedLM

    Z, y, groups = make(args.clients, args.rows, args.coefficients)
    X = Z[:, :-1]

    def ours(**options):
        model = PartialPoolingRegressor(**options).fit(X, y, groups=groups)
        return model.loglik_, model.n_clusters_

    def theirs(method):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MixedLM(y, Z, groups, exog_re=Z).fit(reml=False, method=[method])
        return model.llf, 1

    same = partial(ours, n_clusters=1, covariance="full", prior=np.inf, df=np.inf)
    with threadpool_limits(1):
        tell("PartialPooling, the same", same, args.runs)
        for method in ("bfgs", "lbfgs", "cg"):
            tell(f"MixedLM, {method}", partial(theirs, method))
        tell("PartialPooling, as it comes", ours)
        for kind in ("diag", "auto"):
            tell(f'covariance="{kind}"', partial(ours, covariance=kind), args.runs)


if __name__ == "__main__":
    main()
