"""Why the figures of ``rivals.py`` differ from the CLoVE paper's: one factor at a time.

    python benchmarks/rivals_why.py local --mnist PATH     # models of single clients
    python benchmarks/rivals_why.py alone --mnist PATH     # the same by rows and batches
    python benchmarks/rivals_why.py cluster --mnist PATH   # one cluster's clients together
    python benchmarks/rivals_why.py pacfl --mnist PATH     # the published code's angles
    python benchmarks/rivals_why.py personal --mnist PATH  # what is left open of three methods
    python benchmarks/rivals_why.py batches --mnist PATH   # batches of 10, as in public code

**local**, **alone**, **cluster** and **batches** need PyTorch for the convolutional networks of
``rivals.py --conv``. Five clients of concept shift train by themselves, and the clients of one
cluster as in ``FedAvg``, which is what every method that finds the clusters comes to. **alone**
has two clients, the wider network and 30 epochs, tested on 10,000 other rows. **batches** is
FedAvg with a hidden layer, 30 rounds, and on concept shift FedALA with the published step of 1
beside FedPer. **pacfl** prints the number of clusters and the adjusted Rand index (ARI) that the
published angles, the least entry of ``arccos(U_i' U_j)``, have at some thresholds, means over
three seeds; label skews 3 and 4 with Dirichlet proportions of each client. **personal** is
concept shift, 30 rounds.

Accuracies are of one seed, per cent, on rows that were not trained on.
"""

import argparse
import warnings
from types import SimpleNamespace

import numpy as np
from clove_mnist import deal, load, split
from rivals import CONV, METHODS, MORE_SHIFTS, SHIFTS, convolutions, retrained
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from skcfl import (
    FedALAClassifier,
    FedProtoClassifier,
    FedRepClassifier,
    PerFedAvgClassifier,
    Training,
)

ROWS = 500
OWN = {"hidden_layer_sizes": (200,), "standardize": False, "tol": 0, "max_iter": 100}
OWN["training"] = Training(step_size=0.001, batch_size=100, local_steps=5)
TEN = retrained(OWN, batch_size=10, local_steps=ROWS // 10)
THRESHOLDS = (3.5, 4.5, 6, 8, 10, 15)


def accuracy(model, data, rows):
    """Per cent of the rows (a pair of arrays, to train and to test on)."""
    train, test = rows
    model.set_params(random_state=0)
    model.fit(data.X[train], data.y[train], groups=data.groups[train])
    return 100 * model.score(data.X[test], data.y[test], groups=data.groups[test])


def some(data, clients):
    """Rows of some clients to train and to test on."""
    return [rows[np.isin(data.groups[rows], clients)] for rows in split(data, 0)]


def local(X, y):
    """Models of single clients."""
    data = deal(X, y, "concept shift", ROWS * 5 // 4, "none", 0)
    rows = some(data, np.unique(data.groups)[:5])
    scaled = type(data)(**data | {"X": (data.X - 0.1307) / 0.3081})
    wide = CONV["wide"]
    for name, rounds, more, net, of in (
        ("one hidden layer", 100, {}, None, data),
        ("one hidden layer", 10, {}, None, data),
        ("1000 hidden units", 100, {"hidden_layer_sizes": (1000,)}, None, data),
        ("no penalty", 100, {"alpha": 0.0}, None, data),
        ("batches of 10", 20, {"training": TEN["training"]}, None, data),
        ("pixels of mean 0, variance 1", 100, {}, None, scaled),
        ("convolutional", 10, {}, {}, data),
        ("convolutional", 100, {}, {}, data),
        ("wider", 30, {}, wide, data),
        ("wider, mean 0, variance 1", 30, {}, wide, scaled),
    ):
        own = OWN | more | {"max_iter": rounds}
        own = own if net is None else convolutions(data.y, own, **net)
        result = accuracy(METHODS["local"](5, own), of, rows)
        print(f"{name:32}{rounds:4d} rounds{result:6.1f}", flush=True)


def alone(X, y):
    """Models of two clients by the classes and rows that they have, and by batches."""
    for classes, n_rows, size in (
        (10, 500, 100),
        (10, 500, 10),
        (10, 1000, 10),
        (10, 200, 10),
        (4, 500, 100),
        (4, 200, 100),
        (4, 100, 100),
    ):
        order = np.random.RandomState(0).permutation(np.flatnonzero(y < classes))
        train, test = order[: 2 * n_rows], order[-10000:]
        data = SimpleNamespace(X=X, y=y, groups=np.zeros(len(y), dtype=int))
        data.groups[order[::2]] = 1
        own = retrained(OWN, batch_size=size, local_steps=n_rows // size) | {"max_iter": 30}
        model = METHODS["local"](2, convolutions(y[train], own, **CONV["wide"]))
        result = accuracy(model, data, (train, test))
        told = f"{classes} classes, {n_rows} rows, batches of {size}"
        print(f"{told:40}{result:6.1f}", flush=True)


def batches(X, y):
    """Batches of 10 in the place of 100."""
    for kind in ("feature skew", "label skew 1", "label skew 2"):
        data = deal(X, y, kind, ROWS * 5 // 4, "none", 0)
        model = METHODS["FedAvg"](5, TEN | {"max_iter": 30})
        print(f"{kind:15}FedAvg {accuracy(model, data, split(data, 0)):6.1f}", flush=True)
    data = deal(X, y, "concept shift", ROWS * 5 // 4, "none", 0)
    plain = TEN | {"max_iter": 10}
    for name, own in (
        ("one hidden layer, 10 rounds", plain),
        ("convolutional, 10 rounds", convolutions(data.y, plain)),
    ):
        for method in ("FedALA", "FedPer"):
            model = METHODS[method](5, own)
            if method == "FedALA":
                model.set_params(blend_rate=1.0)
            result = accuracy(model, data, split(data, 0))
            print(f"concept shift  {method:7}{name:30}{result:6.1f}", flush=True)


def cluster(X, y):
    """The clients of one cluster, with one model."""
    for kind in ("concept shift", "feature skew", "label skew 3", "label skew 4"):
        data = deal(X, y, kind, ROWS * 5 // 4, "none", 0)
        mine = np.unique(data.groups)[data.labels == data.labels[0]]
        rows = some(data, mine)
        there = data.y[np.isin(data.groups, mine)]
        for name, own in (("one hidden layer", OWN), ("convolutional", convolutions(there, OWN))):
            result = accuracy(METHODS["FedAvg"](5, own), data, rows)
            print(f"{kind:15}{name:20}{result:6.1f}", flush=True)


def angles(X, y, groups, n_vectors=3):
    """Distances of clients in the published code of PACFL, in degrees."""
    bases = []
    for client in np.unique(groups):
        mine = groups == client
        vectors = [
            np.linalg.svd(X[mine & (y == label)].T, full_matrices=False)[0][:, :n_vectors]
            for label in np.unique(y[mine])
        ]
        bases.append(np.hstack(vectors))
    entries = [[np.clip(U.T @ V, -1, 1).max() for V in bases] for U in bases]
    return np.degrees(np.arccos(entries))


def pacfl(X, y):
    """Clusters by those distances, which are cut at 3.5 degrees and more."""
    for kind in SHIFTS + MORE_SHIFTS:
        found = []
        for seed in range(3):
            uneven = "none" if kind in SHIFTS else "client"
            data = deal(X, y, kind, ROWS * 5 // 4, uneven, seed)
            train, _ = split(data, seed)
            away = angles(data.X[train], data.y[train], data.groups[train])
            np.fill_diagonal(away, 0.0)
            tree = linkage(squareform((away + away.T) / 2, checks=False), "weighted")
            for threshold in THRESHOLDS:
                labels = fcluster(tree, threshold, "distance")
                found.append((labels.max(), adjusted_rand_score(data.labels, labels)))
        means = np.mean(np.reshape(found, (3, len(THRESHOLDS), 2)), axis=0)
        line = "".join(
            f"{threshold:8g}: {number:4.1f}, {ari:.2f}"
            for threshold, (number, ari) in zip(THRESHOLDS, means, strict=True)
        )
        print(f"{kind:15}{line}", flush=True)


def personal(X, y):
    """Methods with models of the clients' own: what the paper leaves open."""
    data = deal(X, y, "concept shift", ROWS * 5 // 4, "none", 0)
    own = OWN | {"max_iter": 30}
    for method, options in (
        (FedALAClassifier, {"blend_rate": 1.0}),
        (FedALAClassifier, {"blend_rate": 50.0}),
        (FedALAClassifier, {"blend_rate": 200.0}),
        (FedALAClassifier, {"blend_rate": 1000.0}),
        (FedRepClassifier, {"alternate": False}),
        (FedProtoClassifier, {"lam": 0.01}),
        (FedProtoClassifier, {"lam": 0.1}),
        (FedProtoClassifier, {"lam": 1.0}),
        (FedProtoClassifier, {"lam": 10.0}),
        (PerFedAvgClassifier, {"inner_step": 0.1, "personal_steps": 1}),
        (PerFedAvgClassifier, {"inner_step": 0.3, "personal_steps": 1}),
        (PerFedAvgClassifier, {"inner_step": 1.0, "personal_steps": 1}),
        (PerFedAvgClassifier, {"inner_step": 0.1, "personal_steps": 10}),
    ):
        result = accuracy(method(**own | options), data, split(data, 0))
        told = ", ".join(f"{name}={value}" for name, value in options.items())
        print(f"{method.__name__:22}{told:38}{result:6.1f}", flush=True)


STUDIES = {
    "local": local,
    "alone": alone,
    "cluster": cluster,
    "pacfl": pacfl,
    "personal": personal,
    "batches": batches,
}


def main():
    """Run one study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--mnist", metavar="PATH", required=True, help="as of rivals.py")
    args = parser.parse_args()
    # Studies run a fixed number of rounds.
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y = load(args.mnist)
    STUDIES[args.study](X, y)


if __name__ == "__main__":
    main()
