"""The CLoVE paper's studies: mixed linear regression, starts, ablations.

    python benchmarks/clove.py mixed [--seeds 3]         # Appendix C.1.1, Fig. 3
    python benchmarks/clove.py starts [--mnist PATH]     # robustness to the start, Fig. 2
    python benchmarks/clove.py ablations [--mnist PATH]  # Section 5.3 and Table 12

**mixed**: K = 5 clusters of 5 clients with 1000 rows, models on the unit sphere with distances
in [Delta, 5 Delta], noise .001.  CLoVE and IFCA with their defaults, both from one random start as
in the papers, and the paper's competitor k-FED on the rows (x, y): ``KFED`` with one centre from
each client, the mean of its rows, and with five, by Awasthi and Sheffet's method; a client is of
the cluster of most of its rows.  "k-means" is that of the clients' means.  Printed: the adjusted
Rand index at the end and the first round where it is .9 (0: never), means over the seeds.

**starts**: autoencoders find each client's digit, 10 digits of 5 clients, without any label.
Equal models, to which clients are dealt at random in the first round, or random models.

**ablations**: a network on digits of which each cluster but the last misses one class, five
clusters of five clients; accuracy on rows that were not trained on (a fifth of every client's).
Rows of a class are dealt to clients by a Dirichlet distribution as in the paper, with 500 rows per
client on MNIST; scikit-learn's digits are too few for that (70 rows per client), and dealt evenly.

Digits are scikit-learn's 8 x 8 images, or MNIST from a file with ``X_train`` and ``y_train``.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from skcfl import (
    IFCA,
    KFED,
    CLoVE,
    CLoVEClassifier,
    CLoVERegressor,
    FedAvgClassifier,
    IFCARegressor,
    LocalModelsClassifier,
    OracleClustersClassifier,
    Record,
    Training,
)
from skcfl.datasets import (
    make_clustered_regression,
    partition_label_skew,
    partition_missing_class,
)
from skcfl.model_selection import ClientKFold
from skcfl.models import Autoencoder

SEPARATIONS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)


def first_round(history):
    """Round, from 1, where the index first is .9; 0 for never."""
    good = np.flatnonzero(np.asarray(history["ari"]) >= 0.9)
    return int(good[0]) + 1 if len(good) else 0


def load(path):
    """Images with pixels in [0, 1], and their classes."""
    if path is None:
        digits = load_digits()
        return (digits.data / 16).astype(np.float32), digits.target
    with np.load(path) as file:
        return (file["X_train"] / 255).astype(np.float32), file["y_train"].astype(int)


def k_means_on_data(data, seed):
    """Labels of the clients by the means of their rows."""
    rows = np.column_stack([data.X, data.y])
    ids, codes = np.unique(data.groups, return_inverse=True)
    means = np.array([rows[codes == i].mean(axis=0) for i in range(len(ids))])
    return KMeans(5, n_init=10, random_state=seed).fit_predict(means)


def mixed(args):
    """Print one line for each separation."""
    plain = {"alpha": 1e-4, "standardize": False}  # as in the paper
    methods = {
        "CLoVE": CLoVERegressor(5, **plain),
        "CLoVE random": CLoVERegressor(
            5, init="random", n_init=1, training=Training(polish=False), max_iter=60, **plain
        ),
        "CLoVE raw": CLoVERegressor(
            5,
            init="random",
            embedding="raw",
            training=Training(averaging="model", local_steps=25, polish=False),
            max_iter=60,
            **plain,
        ),
        "IFCA": IFCARegressor(5, **plain),
        "IFCA random": IFCARegressor(
            5,
            init="random",
            n_init=1,
            empty_cluster="keep",
            training=Training(polish=False),
            max_iter=60,
            **plain,
        ),
    }
    methods = {name: methods[name] for name in args.methods or methods if name in methods}
    print("adjusted Rand index, and the round where it first is .9")
    on_rows = ["k-means", "k-FED, 1", "k-FED, 5"]
    heading = "".join(f"{name:>9}" for name in on_rows)
    print(f"{'Delta':>7}", *(f"{name:>14}" for name in methods), f"{heading}{'seconds':>9}")
    for separation in args.separations:
        start, columns = time.perf_counter(), {name: [] for name in [*methods, *on_rows]}
        for seed in range(args.seeds):
            data = make_clustered_regression(
                n_clients=25,
                n_clusters=5,
                n_samples=1000,
                coef="sphere",
                separation=separation,
                noise=1e-3,
                random_state=seed,
            )
            for name, model in methods.items():
                model.set_params(record=Record(data.labels), random_state=seed)
                model.fit(data.X, data.y, groups=data.groups)
                ari = adjusted_rand_score(data.labels, model.labels_)
                columns[name].append((ari, first_round(model.history_)))
            ari = adjusted_rand_score(data.labels, k_means_on_data(data, seed))
            columns["k-means"].append((ari, 0))
            rows = np.column_stack([data.X, data.y])
            for n_local in (1, 5):
                kfed = KFED(5, n_local=n_local, random_state=seed).fit(rows, groups=data.groups)
                ari = adjusted_rand_score(data.labels, kfed.client_labels_)
                columns[f"k-FED, {n_local}"].append((ari, 0))
        means = {name: np.mean(values, axis=0) for name, values in columns.items()}
        print(
            f"{separation:7g}",
            *(f"{means[name][0]:7.2f} {means[name][1]:6.1f}" for name in methods),
            "".join(f"{means[name][0]:9.2f}" for name in on_rows)
            + f"{time.perf_counter() - start:9.1f}",
            flush=True,
        )


def starts(args):
    """Print one line for each start: index by round, of CLoVE and IFCA."""
    images, classes = load(args.mnist)
    per_client = 500 if args.mnist else 30
    hidden = (64,) if args.mnist else (16,)
    rounds = [*(t for t in (1, 2, 3, 5, 10) if t < args.rounds), args.rounds]
    print(f"adjusted Rand index after round {', '.join(map(str, rounds))}; first round of .9")
    for init in ("same", "random"):
        for name, cls in (("CLoVE", CLoVE), ("IFCA", IFCA)):
            curves, begin = [], time.perf_counter()
            for seed in range(args.seeds):
                data = partition_label_skew(
                    images,
                    classes,
                    10,
                    5,
                    n_unique=1,
                    samples_per_client=per_client,
                    random_state=seed,
                )
                model = cls(
                    Autoencoder(hidden, output_activation="sigmoid"),
                    n_clusters=10,
                    init=init,
                    max_iter=args.rounds,
                    tol=0,
                    record=Record(data.labels),
                    random_state=seed,
                )
                if cls is IFCA:
                    model.set_params(empty_cluster="keep")
                model.fit(data.X, groups=data.groups)
                curves.append(model.history_)
            ari = np.mean([c["ari"] for c in curves], axis=0)
            print(
                f"init: {init:8}{name:6}",
                *(f"{ari[t - 1]:6.2f}" for t in rounds),
                f"{str([first_round(c) for c in curves]):>14}",
                f"{time.perf_counter() - begin:6.1f} s",
                flush=True,
            )


def ablations(args):
    """Print one line for each variant: test accuracy, index, first round of .9."""
    images, classes = load(args.mnist)
    hidden = (100,) if args.mnist else (64,)
    own = {"hidden_layer_sizes": hidden, "standardize": False, "max_iter": args.rounds, "tol": 0}
    paper = own | {"n_clusters": 5, "init": "random"}
    variants = {
        "CLoVE, defaults": CLoVEClassifier(5, **own),
        "log vectors": CLoVEClassifier(**paper),
        "raw losses (the paper's)": CLoVEClassifier(embedding="raw", **paper),
        "square roots": CLoVEClassifier(embedding="sqrt", **paper),
        "centred losses": CLoVEClassifier(embedding="centered", **paper),
        "agglomerative": CLoVEClassifier(clusterer=AgglomerativeClustering(), **paper),
        "oracle": OracleClustersClassifier(**own),
        "FedAvg": FedAvgClassifier(**own),
        "local models": LocalModelsClassifier(hidden_layer_sizes=hidden, standardize=False),
    }
    results = {name: [] for name in variants}
    for seed in range(args.seeds):
        rows = {"samples_per_client": 500, "alpha": 0.5} if args.mnist else {}
        data = partition_missing_class(images, classes, 5, 5, **rows, random_state=seed)
        splits = ClientKFold(5, random_state=seed).split(data.X, data.y, data.groups)
        train, test = next(iter(splits))
        for name, model in variants.items():
            known = model.get_params()
            if "record" in known:
                model.set_params(record=Record(data.labels))
            elif "labels" in known:
                model.set_params(labels=data.labels)
            model.set_params(random_state=seed)
            model.fit(data.X[train], data.y[train], groups=data.groups[train])
            score = model.score(data.X[test], data.y[test], groups=data.groups[test])
            history = model.history_ if "ari" in model.history_ else {"ari": []}
            ari = adjusted_rand_score(data.labels, model.labels_)
            results[name].append((100 * score, ari, first_round(history)))
    print(f"{'variant':26}{'accuracy':>16}{'ARI':>7}{'round of .9':>13}")
    for name, values in results.items():
        mean, spread = np.mean(values, axis=0), np.std(values, axis=0)
        print(f"{name:26}{mean[0]:9.1f} +- {spread[0]:3.1f}{mean[1]:7.2f}{mean[2]:13.1f}")


def main():
    """Run one study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=["mixed", "starts", "ablations"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--separations", type=float, nargs="+", default=SEPARATIONS)
    parser.add_argument("--methods", nargs="+", help="of mixed; what clusters rows is in any case")
    parser.add_argument("--mnist", metavar="PATH", help="an .npz file with X_train, y_train")
    args = parser.parse_args()
    # Studies run a fixed number of rounds.
    warnings.simplefilter("ignore", ConvergenceWarning)
    {"mixed": mixed, "starts": starts, "ablations": ablations}[args.study](args)


if __name__ == "__main__":
    main()
