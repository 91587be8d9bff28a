"""What a fusion method gains: error of the coefficients, by graph, with and without refit.

24 clients in 3 clusters, linear regression, few or many rows per client; ``lam="auto"``.  One
line a method: the mean squared distance of the clients' coefficients to the true ones, for each
number of rows, and the number of fits that found exactly the true clusters.
"""

import argparse
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from skcfl import (
    ConvexClusteredFLRegressor,
    FedAvgRegressor,
    LocalModelsRegressor,
    OracleClustersRegressor,
)
from skcfl.datasets import make_clustered_regression


def methods(labels):
    yield "pooled", FedAvgRegressor()
    yield "local", LocalModelsRegressor()
    yield "oracle", OracleClustersRegressor(labels)
    for graph in ("complete", "knn"):
        for refit in (False, True):
            name = f"{graph}{', refit' if refit else ''}"
            yield name, ConvexClusteredFLRegressor(graph=graph, refit=refit)


def study(rows, n_seeds, options):
    """Errors and numbers of exact recoveries of every method: {name: (error, recovered)}."""
    errors, recovered = {}, {}
    for seed in range(n_seeds):
        data = make_clustered_regression(n_samples=rows, random_state=seed, **options)
        truth = data.coef[data.labels]
        for name, estimator in methods(data.labels):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                estimator.fit(data.X, data.y, groups=data.groups)
            error = ((estimator.coef_ - truth) ** 2).sum(axis=1).mean()
            errors.setdefault(name, []).append(error)
            exact = adjusted_rand_score(data.labels, estimator.labels_) == 1.0
            recovered[name] = recovered.get(name, 0) + exact
    return {name: (np.mean(errors[name]), recovered[name]) for name in errors}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[12, 30, 100], help="rows per client"
    )
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--features", type=int, default=5)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=10)
    args = parser.parse_args()
    options = {
        "n_clients": args.clients,
        "n_clusters": args.clusters,
        "n_features": args.features,
        "noise": args.noise,
    }
    tables = [study(rows, args.seeds, options) for rows in args.rows]
    heads = "".join(f"{f'{rows} rows':>18}" for rows in args.rows)
    print(f"{'':18}{heads}    (exact clusters of {args.seeds})")
    for name in tables[0]:
        cells = (f"{error:12.4f} ({exact:>2})" for error, exact in (t[name] for t in tables))
        print(f"{name:18}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
