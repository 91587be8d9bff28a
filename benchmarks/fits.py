"""Seconds of CPU of whole fits with nothing chosen: many small clients, and a table of schools.

"knn" are least squares of clients in three clusters, 20 rows of 10 features each, fitted by
``ConvexClusteredFL(graph="knn", refit=True)``.  "schools" is a made table in the shape of the
school data of multi-task learning: 139 clients, 15,362 rows, 27 features of which 24 are binary,
and coefficients that differ a little from client to client.  "sparse" are 20 clients of 100 rows
with 50 of 50,000 columns each, few columns popular and most of them rare, as words are; the R2 of
as many new rows is told, and that of ``Ridge()`` on all rows.  "few" are eight clients of 30 rows,
without weights of the rows and with weights over 24 decades, and the exchanges of the fits.
"classes" are 30 clients of 100 rows of 40 features, three classes, and 60 clients of 10 rows of 30
features, five classes.  "exchanges" are those of default fits of eight clients, a line a class:
one population, two clusters and a continuum, three seeds of each.  "weights" are 60 tables of two
classes, half of them with weights over 4 or 12 decades: exchanges and log-likelihood of
``PartialPoolingClassifier``, a line a table, by which two versions are compared.  "many" are
100,000 clients of 100 rows of 20 features in four clusters, with one thread and with two: its
lines tell the time on the clock, as threads share the work, and the peak memory, that of the data
included (3.5 GB while they are made).

On two cores "knn" takes 1.6 s for 1000 clients, 5.6 s for 3000 and 18 s for 10,000: a search
solves about twenty problems (a grid of lam, values around the best, local penalties), each
in a tenth of a second or, for 3000, in a third, half of which proves its partition.  One BLAS
thread::

    python benchmarks/fits.py [--clients 1000] [--only knn schools sparse few classes many]
    python benchmarks/fits.py --only exchanges weights
"""

import argparse
import resource
import time
import warnings

import numpy as np
from scipy import sparse
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

import skcfl
from skcfl import (
    IFCA,
    CLoVE,
    ConvexClusteredFL,
    ConvexClusteredFLClassifier,
    ConvexClusteredFLRegressor,
    FPFCClassifier,
    FPFCRegressor,
    GTVClassifier,
    GTVRegressor,
    LamSearch,
    LocalModelsRegressor,
    PartialPoolingClassifier,
)
from skcfl.datasets import make_clustered_classification, make_clustered_regression

REGRESSORS = ConvexClusteredFLRegressor, GTVRegressor, FPFCRegressor
CLASSIFIERS = ConvexClusteredFLClassifier, GTVClassifier, FPFCClassifier


def make_three(n, seed=0):
    """Rows, targets and clients of `n` clients in three clusters."""
    rng = np.random.RandomState(seed)
    codes = np.repeat(np.arange(n), 20)
    W = 2.0 * rng.standard_normal((3, 10))
    X = rng.standard_normal((len(codes), 10))
    return X, (X * W[codes % 3]).sum(axis=1) + rng.standard_normal(len(codes)), codes


def make_schools(n=139, n_rows=15362, seed=0):
    """Rows, targets and clients in the shape of the school data."""
    rng = np.random.RandomState(seed)
    sizes = np.exp(rng.normal(4.55, 0.55, n))
    sizes = np.maximum((sizes * n_rows / sizes.sum()).round().astype(int), 20)
    sizes[0] += n_rows - sizes.sum()
    codes = np.repeat(np.arange(n), sizes)
    binary = rng.uniform(size=(n_rows, 24)) < rng.beta(0.6, 1.5, (n, 24))[codes]
    X = np.hstack([binary, rng.standard_normal((n_rows, 3)) * [10, 1, 3] + [25, 0, 5]])
    size = np.append(np.full(24, 2.0), [0.1, 1.0, 0.2])
    W = size * (rng.standard_normal(27) + 0.3 * rng.standard_normal((n, 27)))
    noise = 3.0 * rng.standard_normal(n)[codes] + 10.0 * rng.standard_normal(n_rows)
    return X, (X * W[codes]).sum(axis=1) + noise, codes


def make_wide(n=20, n_rows=100, d=50_000, n_words=50, seed=0):
    """Sparse rows, targets and clients, in three clusters; the second half is to test on."""
    rng = np.random.RandomState(seed)
    codes = np.tile(np.repeat(np.arange(n), n_rows), 2)
    popularity = np.cumsum(np.arange(1, d + 1) ** -1.1)
    places = rng.uniform(high=popularity[-1], size=(len(codes), n_words))
    columns = np.searchsorted(popularity, places).clip(0, d - 1)
    values = rng.uniform(0.5, 1.5, size=columns.size)
    rows = np.repeat(np.arange(len(codes)), n_words)
    X = sparse.csr_array((values, (rows, columns.ravel())), shape=(len(codes), d))
    X = sparse.csr_array(sparse.diags_array(1.0 / np.sqrt(X.power(2).sum(axis=1))) @ X)
    W = 0.5 * rng.standard_normal((3, d)) + 1.5 * rng.standard_normal(d)
    y = np.choose(codes % 3, (X @ W.T).T) + 0.5 * rng.standard_normal(len(codes))
    return X, y, codes


def make_many(n=100_000, n_rows=100, d=20, seed=0):
    """Rows, targets and clients of many clients in four clusters."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), n_rows)
    X, W = rng.standard_normal((len(codes), d)), rng.standard_normal((4, d))
    y = 0.3 * rng.standard_normal(len(codes))
    for k in range(4):
        mine = codes % 4 == k
        y[mine] += X[mine] @ W[k]
    return X, y, codes


def line(name, estimator, rows, clock=time.process_time, sample_weight=None):
    """Fit and print."""
    X, y, groups = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = clock()
        estimator.fit(X, y, groups=groups, sample_weight=sample_weight)
        seconds = clock() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name:38} {seconds:8.2f} s {estimator.n_clusters_:6} clusters {memory:6.0f} MB",
        flush=True,
    )


def few():
    """Default fits of eight clients: lines of times, and their exchanges."""
    options = {"n_clients": 8, "n_clusters": 2, "n_samples": 30, "random_state": 0}
    weights = 10.0 ** np.random.RandomState(0).uniform(-12, 12, 240)
    for data, kinds in (
        (make_clustered_regression(**options), REGRESSORS),
        (make_clustered_classification(**options), CLASSIFIERS),
    ):
        for kind in kinds:
            for given in (None, weights):
                estimator = kind(random_state=0)
                name = kind.__name__ + (", weights" if given is not None else "")
                line(name, estimator, (data.X, data.y, data.groups), sample_weight=given)
                print(f"{'':38} {estimator.calls_} exchanges")


def classes():
    """Default fits of several classes."""
    for shape in ((30, 3, 40, 100, 3), (60, 3, 30, 10, 5)):
        names = "n_clients", "n_clusters", "n_features", "n_samples", "n_classes"
        given = dict(zip(names, shape, strict=True))
        data = make_clustered_classification(**given, random_state=0)
        for kind in (*CLASSIFIERS, PartialPoolingClassifier):
            name = f"{kind.__name__}, {shape[-1]} classes"
            line(name, kind(random_state=0), (data.X, data.y, data.groups))


def make_few(kind, seed, classes=False):
    """Rows, targets and clients of eight clients: one population, two clusters or a continuum."""
    rng = np.random.RandomState(seed)
    codes = np.repeat(np.arange(8), 30)
    X, W = rng.standard_normal((240, 4)), rng.standard_normal((8, 4))
    W = {"one": 0 * W + W[0], "crisp": 2 * W[np.arange(8) % 2], "continuum": W[0] + W / 2}[kind]
    y = (X * W[codes]).sum(axis=1)
    return X, (y + rng.logistic(size=240) > 0) if classes else y + rng.standard_normal(240), codes


def exchanges():
    """Exchanges of default fits of eight clients, of three seeds each: a line a class."""
    for name in ("PartialPooling", "ConvexClusteredFL", "GTV", "FPFC", "IFCA", "CLoVE"):
        for suffix in ("Regressor", "Classifier"):
            numbers = []
            for kind in ("one", "crisp", "continuum"):
                for seed in range(3):
                    X, y, groups = make_few(kind, seed, suffix == "Classifier")
                    estimator = getattr(skcfl, name + suffix)(random_state=0)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        numbers.append(estimator.fit(X, y, groups=groups).calls_)
            print(f"{name + suffix:30}", *(f"{number:5}" for number in numbers), flush=True)


def make_weighed(seed):
    """Rows, targets, clients and weights of two classes, with unlike sizes and units."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 20)), int(rng.integers(1, 6))
    codes = np.repeat(np.arange(n), rng.integers(2, 30, n))
    X = rng.normal(size=(len(codes), d)) * 10.0 ** rng.uniform(-2, 2, d)
    W = rng.normal(size=(n, d)) * rng.choice([0.1, 1, 3]) + rng.normal(size=d)
    z = ((X / np.abs(X).mean(axis=0)) * W[codes]).sum(axis=1) + 2 * rng.normal()
    y = z + rng.logistic(size=len(z)) * rng.choice([1e-3, 1, 1]) > 0
    if y.all() or not y.any():
        y[0] = ~y[0]
    decades = rng.choice([0, 0, 2, 6])
    return X, y, codes, 10.0 ** rng.uniform(-decades, decades, len(y)) if decades else None


def weights():
    """Exchanges and log-likelihoods of 60 tables of two classes, and the mean of the first."""
    numbers = []
    for seed in range(60):
        X, y, groups, weight = make_weighed(seed)
        estimator = PartialPoolingClassifier(basis="linear", random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(X, y, groups=groups, sample_weight=weight)
        numbers.append(estimator.calls_)
        print(f"{seed:4}{numbers[-1]:7}{estimator.loglik_:16.2f}", flush=True)
    print(f"{np.mean(numbers):11.0f} exchanges, at most {max(numbers)}")


def main():
    """One line a fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 3000])
    kinds = ["knn", "schools", "sparse", "few", "classes", "many", "exchanges", "weights"]
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds[:3])
    args = parser.parse_args()
    with threadpool_limits(1):
        for n in args.clients if "knn" in args.only else ():
            line(f"knn, {n} clients", ConvexClusteredFL(graph="knn", refit=True), make_three(n))
        if "schools" in args.only:
            rows = make_schools()
            line("schools, IFCA", IFCA(random_state=0), rows)
            line("schools, CLoVE", CLoVE(random_state=0), rows)
            line("schools, ConvexClusteredFL", ConvexClusteredFL(), rows)
            line("schools, its CV", ConvexClusteredFLRegressor(search=LamSearch(cv=5)), rows)
        if "sparse" in args.only:
            X, y, groups = make_wide()
            rows, new = slice(len(y) // 2), slice(len(y) // 2, None)
            print(f"sparse, Ridge: R2 {Ridge().fit(X[rows], y[rows]).score(X[new], y[new]):.3f}")
            for kind in (
                LocalModelsRegressor,
                ConvexClusteredFLRegressor,
                GTVRegressor,
                FPFCRegressor,
            ):
                estimator = kind(random_state=0)
                line(f"sparse, {kind.__name__}", estimator, (X[rows], y[rows], groups[rows]))
                print(f"{'':38} R2 {estimator.score(X[new], y[new], groups=groups[new]):.3f}")
        if "few" in args.only:
            few()
        if "classes" in args.only:
            classes()
        if "exchanges" in args.only:
            exchanges()
        if "weights" in args.only:
            weights()
        if "many" in args.only:
            rows = make_many()
            for method in (IFCA, CLoVE):
                for n_jobs in (1, 2):
                    estimator = method(n_clusters=4, random_state=0, n_jobs=n_jobs)
                    name = f"many, {method.__name__}, n_jobs={n_jobs}"
                    line(name, estimator, rows, time.perf_counter)


if __name__ == "__main__":
    main()
