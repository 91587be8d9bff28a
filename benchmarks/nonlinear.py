"""Crisp clusters of curves: linear models, networks, and any estimator of scikit-learn.

    python benchmarks/nonlinear.py                      # two draws of 24 clients with 40 rows
    python benchmarks/nonlinear.py --draws 5 --rows 120 --estimators trees svr

Clients are in three clusters, sine times product, absolute values, exclusive or, with noise of .4.
Prints R2 on 50 new rows a client, the adjusted Rand index of the clusters, their number and the
CPU seconds of a fit, means over draws.
"""

import argparse
import time

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.metrics import adjusted_rand_score
from sklearn.svm import SVR

import skcfl
from skcfl.models import SklearnModel

TEST = 50
CURVES = (
    lambda X: 2 * np.sin(2 * X[:, 0]) * X[:, 1],
    lambda X: 2 * np.abs(X[:, 0]) - np.abs(X[:, 1]),
    lambda X: 2 * ((X[:, 0] > 0) ^ (X[:, 2] > 0)) - 1.0,
)
ESTIMATORS = {
    "boosting": HistGradientBoostingRegressor(max_iter=40, min_samples_leaf=5),
    "trees": ExtraTreesRegressor(30),
    "svr": SVR(C=3),
}


def rows(n_rows, labels, rng):
    """Rows of all clients."""
    groups = np.repeat(np.arange(len(labels)), n_rows)
    X = rng.standard_normal((len(groups), 4))
    y = np.choose(labels[groups], [curve(X) for curve in CURVES])
    return X, y + 0.4 * rng.standard_normal(len(y)), groups


def methods(labels, names):
    """What is fitted, by name."""
    net = {"hidden_layer_sizes": (32,), "random_state": 0}
    yield "linear CLoVE", skcfl.CLoVERegressor(3, random_state=0)
    yield "linear PartialPooling", skcfl.PartialPoolingRegressor()
    yield "network CLoVE", skcfl.CLoVERegressor(3, max_iter=200, **net)
    for name in names:
        model = SklearnModel(ESTIMATORS[name])
        yield f"{name} CLoVE", skcfl.CLoVE(model, 3, random_state=0)
        yield f"{name} CLoVE auto", skcfl.CLoVE(model, random_state=0)
        yield f"{name} IFCA", skcfl.IFCA(model, 3, random_state=0)
        yield f"{name} OracleClusters", skcfl.OracleClusters(model, labels, random_state=0)
        yield f"{name} FedAvg", skcfl.FedAvg(model, random_state=0)
        yield f"{name} LocalModels", skcfl.LocalModels(model, random_state=0)


def main():
    """Print a line for each method."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--rows", type=int, default=40, help="rows of a client")
    parser.add_argument("--estimators", nargs="*", choices=list(ESTIMATORS), default=ESTIMATORS)
    args = parser.parse_args()
    found = {}
    labels = np.arange(args.clients) % len(CURVES)
    for seed in range(args.draws):
        rng = np.random.default_rng(seed)
        (X, y, groups), test = rows(args.rows, labels, rng), rows(TEST, labels, rng)
        for name, method in methods(labels, args.estimators):
            start = time.process_time()
            method.fit(X, y, groups=groups)
            seconds = time.process_time() - start
            ari = adjusted_rand_score(labels, method.labels_)
            figures = method.score(*test[:2], groups=test[2]), ari, method.n_clusters_, seconds
            found.setdefault(name, []).append(figures)
    print(f"{'method':28s}{'R2':>6}{'ARI':>6}{'K':>6}{'seconds':>9}")
    for name, figures in found.items():
        r2, ari, number, seconds = np.mean(figures, axis=0)
        print(f"{name:28s}{r2:6.2f}{ari:6.2f}{number:6.1f}{seconds:9.1f}")


if __name__ == "__main__":
    main()
