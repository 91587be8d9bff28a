"""Networks by default: every method with nothing but the size of a layer.

    python benchmarks/networks.py                     # all methods, three draws
    python benchmarks/networks.py --methods Ditto PFedMe --clients 8 --rows 12

Clients' targets are a sum of hyperbolic tangents of six features, with the same weights for all
("alike"), weights that differ a little from client to client ("degrees"), or weights of three
clusters ("clusters"); classes are their signs.  Prints R2 or accuracy on 100 new rows a client,
means over draws, and CPU seconds of a fit.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

import skcfl

UNITS, FEATURES, NOISE, TEST = 8, 6, 0.1, 100
METHODS = ["FedAvg", "LocalModels", "IFCA", "CLoVE", "FeSEM", "FlexCFL", "CFL", "OneShot", "FPFC"]
METHODS += ["RobustClusteredFL", "FedEM", "Ditto", "PFedMe", "PerFedAvg", "FedRep", "FedALA"]
METHODS += ["FedProto", "FedPAC"]


def weights(kind, n_clients, rng):
    """Inner and outer weights of every client."""
    n, labels = {
        "alike": (1, np.zeros(n_clients, dtype=int)),
        "degrees": (n_clients, np.arange(n_clients)),
        "clusters": (3, np.arange(n_clients) % 3),
    }[kind]
    spread = 0.3 if kind == "degrees" else 1.0
    common = [rng.normal(size=(FEATURES, UNITS)), rng.normal(size=UNITS)]
    parts = [spread * rng.normal(size=(n, *part.shape)) for part in common]
    if kind == "degrees":
        parts = [part + one for part, one in zip(parts, common, strict=True)]
    return [part[labels] for part in parts]


def table(n_rows, inner, outer, rng):
    """Rows of all clients: features, targets, ids."""
    groups = np.repeat(np.arange(len(inner)), n_rows)
    X = rng.normal(size=(len(groups), FEATURES))
    hidden = np.tanh(np.einsum("nd,ndu->nu", X, inner[groups]))
    y = np.einsum("nu,nu->n", hidden, outer[groups])
    return X, y + NOISE * rng.normal(size=len(y)), groups


def judge(method, family, train, test):
    """Score on the new rows, and CPU seconds of the fit."""
    model = getattr(skcfl, method + family)(hidden_layer_sizes=16, random_state=0)
    targets = [(y > 0 if family == "Classifier" else y) for _, y, _ in (train, test)]
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(train[0], targets[0], groups=train[2])
    seconds = time.process_time() - start
    return model.score(test[0], targets[1], groups=test[2]), seconds


def main():
    """Print a line for each method, a column for each kind of clients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--rows", type=int, default=40, help="rows of a client")
    args = parser.parse_args()
    kinds = [
        (kind, f) for f in ("Regressor", "Classifier") for kind in ("alike", "degrees", "clusters")
    ]
    print(f"{'':18}{'R2':>9}{'':18}{'accuracy':>9}")
    print(f"{'method':18}" + "".join(f"{kind:>9}" for kind, _ in kinds) + f"{'seconds':>9}")
    for method in args.methods:
        line, seconds = "", []
        for kind, family in kinds:
            scores = []
            for seed in range(args.draws):
                rng = np.random.default_rng(seed)
                how = weights(kind, args.clients, rng)
                train, test = (table(n, *how, rng) for n in (args.rows, TEST))
                if not hasattr(skcfl, method + family):
                    continue
                score, spent = judge(method, family, train, test)
                scores.append(score)
                seconds.append(spent)
            line += f"{np.mean(scores):9.3f}" if scores else f"{'-':>9}"
        print(f"{method:18}{line}{np.mean(seconds):9.1f}", flush=True)


if __name__ == "__main__":
    main()
