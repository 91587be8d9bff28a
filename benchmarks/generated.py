"""Generated federations: are clusters found where there are some, and one where there are none?

    python benchmarks/generated.py                                   # PartialPooling, three draws
    python benchmarks/generated.py --kinds one --draws 20            # populations without clusters
    python benchmarks/generated.py --methods PartialPooling IFCA CLoVE --draws 5
    python benchmarks/generated.py --results before.jsonl            # keeps every fit

prints, for each kind of federation and each everyday class with nothing but ``groups=``: the share
of draws in which the partition is exact (one cluster where nothing differs or clients are a
continuum), the numbers of clusters that were found, the score minus that of ``OracleClusters``
with the true clusters (R2, or minus log-loss or mean Poisson deviance, of 80 rows a client; no
outliers), and CPU seconds of a fit, means over draws. In brackets: how many of the exact draws, of
those that can be exact: where the clusters' true coefficients give each client's rows a larger
likelihood than those of other clusters do. To compare two versions of the package, run
it with each of them as ``PYTHONPATH``: draws depend on nothing else.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.metrics import adjusted_rand_score, log_loss, mean_poisson_deviance, r2_score

import skcfl

TEST = 80
# Rows of clients of unlike sizes, log-uniform.
SIZES = 3, 100


@dataclass(frozen=True)
class Kind:
    """A kind of federation.

    Coefficients of clusters are standard normal times ``distance``, zero but for the first
    ``matter`` features. Inside clusters clients differ by ``spread`` times t-distributed
    deviations (``df``), or along a ``line``, and in intercepts of a standard deviation. The last
    ``outliers`` clients have coefficients of their own, twice as large. Without ``rows``, clients
    have 3 to 100 of them.
    """

    rows: int | None = 10
    features: int = 5
    matter: int | None = None
    clusters: int = 3
    clients: int = 24
    target: str = "normal"
    classes: int = 2
    distance: float = 1.0
    spread: float = 0.0
    line: bool = False
    intercepts: float = 0.0
    df: float = np.inf
    outliers: int = 0
    correlation: float = 0.0


CLUSTERS = {
    "4 rows": Kind(4),
    "10 rows": Kind(),
    "40 rows": Kind(40),
    "12 clients, 40 rows": Kind(40, clients=12),
    "100 clients": Kind(clients=100),
    "300 clients": Kind(clients=300),
    "3 to 100 rows": Kind(None, clients=30),
    "25 features, 40 rows": Kind(40, 25, 5),
    "50 features, 40 rows": Kind(40, 50, 5),
    "correlation .9, 20 rows": Kind(20, correlation=0.9),
    "2 outliers, 20 rows": Kind(20, clients=26, clusters=2, outliers=2),
    "spread .2, 20 rows": Kind(20, spread=0.2),
    "15 features, 30 rows": Kind(30, 15, 4),
    "40 features, 30 rows": Kind(30, 40, 4, clients=40),
    "30 features, 20 rows": Kind(20, 30, 5, clients=30),
    "100 features, 60 rows": Kind(60, 100, 6),
    "8 clusters of 6 clients, 20 rows": Kind(20, clusters=8, clients=48),
    "8 clusters of 6 clients, 40 rows": Kind(40, clusters=8, clients=48),
    "12 clusters of 5 clients, 20 rows": Kind(20, clusters=12, clients=60),
    "binary, 40 rows": Kind(40, target="classes", distance=1.5),
    "3 classes, 20 rows": Kind(20, target="classes", classes=3, distance=1.5),
    "4 classes, 40 rows": Kind(40, target="classes", classes=4, distance=1.5),
    "counts, 20 rows": Kind(20, target="counts", distance=0.4),
}
ONE = {
    f"one: {name}, {target}, {rows} rows, {d} features": Kind(
        rows, d, clusters=1, target=kind, classes=classes, distance=0.5, **how
    )
    for target, (kind, classes) in {
        "normal": ("normal", 2),
        "binary": ("classes", 2),
        "3 classes": ("classes", 3),
        "counts": ("counts", 2),
    }.items()
    for name, how in {
        "no difference": {},
        "continuum": {"spread": 0.5},
        "heavy tails": {"spread": 0.3, "df": 3},
        "intercepts": {"intercepts": 1.0},
        "line": {"spread": 0.7, "line": True},
    }.items()
    for rows in (10, 20, 40)
    for d in (2, 5, 25)
    if kind == "normal" or d < 25
}
KINDS = CLUSTERS | ONE
SCORES = {
    "normal": r2_score,
    "classes": lambda y, p: -log_loss(y, p, labels=np.arange(p.shape[1])),
    "counts": lambda y, p: -mean_poisson_deviance(y, p),
}


def truth(kind, rng):
    """True cluster of each client, coefficients of the clusters, and of the clients."""
    N, K, d = kind.clients, kind.clusters, kind.features
    C = kind.classes if kind.target == "classes" and kind.classes > 2 else 1
    labels = np.arange(N) % K
    centres = kind.distance * rng.standard_normal((K, d, C))
    centres[:, kind.matter :] *= kind.matter is None
    away = rng.standard_normal((N, d, C))
    if np.isfinite(kind.df):
        away *= np.sqrt(kind.df / rng.chisquare(kind.df, N))[:, None, None]
    if kind.line:
        away = away[:, :1, :1] * rng.standard_normal((d, C))
    own = centres[labels] + kind.spread * away
    if kind.outliers:
        labels[-kind.outliers :] = K + np.arange(kind.outliers)
        own[-kind.outliers :] = 2.0 * rng.standard_normal((kind.outliers, d, C))
    return labels, np.concatenate([centres, own[N - kind.outliers :]]), own


def draw(kind, seed):
    """Training rows (X, y, groups), test rows, and the true cluster of each client."""
    rng = np.random.default_rng(seed)
    labels, _, own = truth(kind, rng)
    N, d, C = own.shape
    sizes = np.full(N, kind.rows or 0)
    if kind.rows is None:
        sizes = np.exp(rng.uniform(*np.log(SIZES), N)).round().astype(int)
    shifts = np.zeros((N, C))
    if kind.intercepts:
        shifts += kind.intercepts * rng.standard_normal((N, C))
    R = np.linalg.cholesky(np.eye(d) + kind.correlation * (1 - np.eye(d)))

    def rows(sizes):
        groups = np.repeat(np.arange(N), sizes)
        X = rng.standard_normal((len(groups), d)) @ R.T
        z = np.einsum("ij,ijc->ic", X, own[groups]) + shifts[groups]
        if kind.target == "normal":
            return X, z[:, 0] + rng.standard_normal(len(z)), groups
        if kind.target == "counts":
            return X, rng.poisson(np.exp(np.minimum(1.0 + z[:, 0], 8.0))).astype(float), groups
        shares = softmax(z if C > 1 else np.hstack([0 * z, z]), axis=1)
        return X, (rng.random((len(z), 1)) > shares.cumsum(axis=1)[:, :-1]).sum(axis=1), groups

    return rows(sizes), rows(np.full(N, TEST)), labels


def is_possible(kind, seed):
    """Whether the true coefficients of the clusters put each client of a draw where it belongs."""
    labels, centres, _ = truth(kind, np.random.default_rng(seed))
    X, y, groups = draw(kind, seed)[0]
    for i, label in enumerate(labels):
        x, target = X[groups == i], y[groups == i]
        z = np.einsum("ij,kjc->kic", x, centres)
        if kind.target == "normal":
            covariance = np.eye(len(x)) + kind.spread**2 * x @ x.T
            away = target - z[:, :, 0]
            likely = -(away * np.linalg.solve(covariance, away.T).T).sum(axis=1)
        elif kind.target == "counts":
            logs = np.minimum(1.0 + z[:, :, 0], 8.0)
            likely = (target * logs - np.exp(logs)).sum(axis=1)
        else:
            z = z if z.shape[2] > 1 else np.concatenate([0 * z, z], axis=2)
            likely = log_softmax(z, axis=2)[:, np.arange(len(x)), target].sum(axis=1)
        if likely.argmax() != label:
            return False
    return True


def fit(method, kind, seed):
    """What a class finds in a draw, as a record."""
    (X, y, groups), (X_test, y_test, tested), labels = draw(kind, seed)
    kept = labels[tested] < kind.clusters

    def scored(name, **how):
        flavour = "Classifier" if kind.target == "classes" else "Regressor"
        if kind.target == "counts":
            how["loss"] = "poisson"
        model = getattr(skcfl, name + flavour)(**how)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y, groups=groups)
        seconds = time.process_time() - start
        ask = model.predict_proba if kind.target == "classes" else model.predict
        predicted = ask(X_test[kept], groups=tested[kept])
        return model, SCORES[kind.target](y_test[kept], predicted), seconds

    model, score, seconds = scored(method, random_state=seed)
    oracle = scored("OracleClusters", labels=dict(enumerate(labels.tolist())))[1]
    return {
        "exact": adjusted_rand_score(labels, model.labels_) == 1.0,
        "possible": is_possible(kind, seed),
        "clusters": int(model.n_clusters_),
        "score": score - oracle,
        "seconds": seconds,
    }


def line(found):
    """Means of records, as text."""
    numbers = Counter(record["clusters"] for record in found)
    exact, score, seconds = (
        np.mean([record[name] for record in found]) for name in ("exact", "score", "seconds")
    )
    counts = " ".join(f"{K}x{n}" for K, n in sorted(numbers.items()))
    possible = [record["exact"] for record in found if record["possible"]]
    of = f"[{sum(possible)} of {len(possible)}]"
    return f"{exact:6.2f}  {of:10}  {score:+8.4f}  {seconds:7.2f}  {counts}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", default=["PartialPooling"])
    parser.add_argument("--kinds", nargs="+", default=[""], help="beginnings of names of kinds")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="seed of the first draw")
    parser.add_argument("--results", type=Path, help="file that JSON lines are added to")
    options = parser.parse_args()
    columns = f"{'exact':>6}  {'[possible]':10}  {'score':>8}  {'seconds':>7}"
    print(f"{'':48}  {columns}  clusters found x draws")
    for name, kind in KINDS.items():
        if not name.startswith(tuple(options.kinds)):
            continue
        for method in options.methods:
            found = []
            for seed in range(options.first, options.first + options.draws):
                found.append(fit(method, kind, seed))
                if options.results:
                    record = {"kind": name, "method": method, "seed": seed, **found[-1]}
                    with options.results.open("a") as file:
                        file.write(json.dumps(record, default=bool) + "\n")
            print(f"{name + '  ' + method:48}  {line(found)}", flush=True)


if __name__ == "__main__":
    main()
