"""The methods that the papers compare with, on the CLoVE paper's federations.

    python benchmarks/rivals.py [--mnist PATH] [--shifts ...] [--methods ...] [--paper]

Label skews 1 to 4, concept shift (swapped labels) and feature skew (rotations) as in
``clove_mnist.py``: five clusters of five clients (four for rotations), a network with one hidden
layer.  Printed are the accuracy on rows of the clients that were not trained on, the adjusted
Rand index (ARI) of the clusters, the first round in which it is .9 ("-": never; 0: clusters known
before the first round), megabytes sent (four bytes per number) and CPU seconds, means over the
seeds; beside them accuracy and ARI of the CLoVE paper's Tables 1, 2, 4, 7 and 8, of a
convolutional network.

With MNIST (an .npz file with X_train, y_train) clients have ``--rows`` training rows and each
round is one epoch of Adam with batches of ``--batch`` rows; ``--paper`` is 100 rounds and three
seeds.  Without it the images are scikit-learn's 8 x 8 digits.  With ``--conv small`` or ``wide``
clients train a convolutional network, as the paper describes its own; ``rivals_why.py`` has what
else differs, one factor at a time.

``--costs`` prints the CPU seconds of a round of each method over FedAvg's on the same job, how
many times its gradients a client computes by the method's definition, and the ratio of one.

A method is a row of ``METHODS``: a function of the number of clusters and of the parameters of
local training.
"""

import argparse
import time
import warnings

import numpy as np
from clove_mnist import dash, deal, load, run, split
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

import skcfl
from skcfl import Training

# Accuracy and ARI of the CLoVE paper's tables, in the order of SHIFTS and MORE_SHIFTS.
SHIFTS = ("label skew 1", "concept shift", "label skew 2", "feature skew")
MORE_SHIFTS = ("label skew 3", "label skew 4")
PAPER = {
    "FedAvg": ((87.4, 52.4, 76.4, 90.0, 99.0, 98.5), None),
    "local": ((99.5, 94.8, 94.2, 93.0, 85.9, 94.8), None),
    "Per-FedAvg": ((97.8, 80.2, 94.9, 87.8, 95.3, 95.6), None),
    "FedProto": ((99.2, 95.0, 94.4, 92.3, 88.8, 93.3), None),
    "FedALA": ((98.9, 96.7, 95.1, 90.2, 94.7, 96.8), None),
    "FedPAC": ((94.4, 90.7, 91.9, 87.6, 95.6, 96.1), None),
    "CFL": ((82.5, 97.5, 97.3, 95.1, 97.9, 97.8), (0.71, 1, 0, 0.48, 0, 0)),
    "FeSEM": ((73.2, 46.2, 89.1, 79.5, 94.0, 94.9), (0.18, 0, 0.18, 0, 0.18, 0.12)),
    "FlexCFL": ((99.4, 97.4, 95.6, 96.7, 92.2, 97.2), (1, 1, 1, 1, 1, 1)),
    "PACFL": ((99.1, 93.3, 92.0, 89.3, 82.8, 93.4), (0.39, 0, 0.35, 0, 0.20, 0.53)),
    "IFCA": ((99.1, 80.0, 96.8, 95.9, 94.2, 98.0), (0.83, 0.68, 0.83, 0.67, 0.92, 0.55)),
    "CLoVE": ((99.8, 97.6, 97.1, 97.7, 94.2, 97.8), (1, 1, 1, 1, 1, 0.60)),
}


def flavour(name, own):
    """The class of a method: for any local model, or with networks of its own."""
    return getattr(skcfl, name if "model" in own else f"{name}Classifier")


def retrained(own, **options):
    """The same parameters but for some options of training."""
    return own | {"training": clone(own.get("training", Training())).set_params(**options)}


def local_steps(own):
    """Steps of a client in a round."""
    return own.get("training", Training()).steps()


def known(name, **options):
    """A method that is told the number of clusters."""
    return lambda n_clusters, own: flavour(name, own)(n_clusters=n_clusters, **own | options)


def plain(name, **options):
    """A method that has no number of clusters."""
    return lambda n_clusters, own: flavour(name, own)(**own | options)


METHODS = {
    "FedAvg": plain("FedAvg"),
    "local": plain("LocalModels"),
    "oracle": plain("OracleClusters"),
    # It compares the lengths of updates, which Adam keeps alike.
    "CFL": lambda n_clusters, own: plain("CFL", eps1=0.2, eps2=0.4)(
        n_clusters, retrained(own, optimizer="sgd", step_size=0.1)
    ),
    "FeSEM": known("FeSEM"),
    "FeSEM, published": known("FeSEM", init="random", empty_cluster="keep"),
    "FlexCFL": known("FlexCFL"),
    "FL+HC": known("FlexCFL", embedding="flhc"),
    "one-shot": lambda n_clusters, own: known("OneShot", rounds=own["max_iter"])(
        n_clusters, {k: v for k, v in own.items() if k != "max_iter"}
    ),
    "PACFL": known("PACFL"),
    # A threshold of no degrees: every client its own cluster.
    "PACFL, alone": plain("PACFL", distance_threshold=1e-3),
    "FedEM": known("FedEM"),
    "IFCA": known("IFCA"),
    "IFCA, published": known("IFCA", init="random", empty_cluster="keep"),
    "CLoVE": known("CLoVE"),
    "Ditto": plain("Ditto"),
    # As many steps in all as the others, five to a proximal point.
    "pFedMe": lambda n_clusters, own: plain("PFedMe", local_rounds=max(local_steps(own) // 5, 1))(
        n_clusters, retrained(own, local_steps=5)
    ),
    "Per-FedAvg": plain("PerFedAvg"),
    "Per-FedAvg, published": plain("PerFedAvg", personal_steps=1),
    "FedRep": plain("FedRep"),
    "FedPer": plain("FedRep", alternate=False),
    "FedALA": plain("FedALA"),
    "FedProto": lambda n_clusters, own: skcfl.FedProtoClassifier(**own),
    "FedPAC": lambda n_clusters, own: skcfl.FedPACClassifier(**own),
    "FedPAC, published": lambda n_clusters, own: skcfl.FedPACClassifier(lam=1.0, **own),
}
# What would be chosen by rows held out, where rounds are timed.
GIVEN = {
    **dict.fromkeys(("Ditto", "pFedMe"), {"lam": 0.1}),
    "FedPAC": {"lam": 1.0},
    "Per-FedAvg": {"personal_steps": 1},
}
# Gradients that a client computes in a round over those of FedAvg, where they are more by the
# method's definition, of the steps of a round: two models, the client's own after the rounds, two
# batches a step, ten steps of its own layers before the shared ones, weights of a blend learned on
# four fifths of the rows.
GRADIENTS = {
    "Ditto": lambda steps: 2.0,
    "pFedMe": lambda steps: 2.0,
    "Per-FedAvg": lambda steps: 2.0,
    "FedRep": lambda steps: 1.0 + 10.0 / steps,
    "FedPAC": lambda steps: 1.0 + 10.0 / steps,
    "FedALA": lambda steps: 1.8,
}


def cost(name, n_clusters, own, data, train, few=2, more=6):
    """CPU seconds of a round: of some more rounds than a few, less those of the few."""
    spent = []
    for rounds in (few, few + more):
        start = time.process_time()
        method = METHODS[name](n_clusters, own | {"max_iter": rounds})
        run(method.set_params(**GIVEN.get(name, {})), data, train, 0, data.y)
        spent.append(time.process_time() - start)
    return max(spent[1] - spent[0], 0.0) / more


def print_costs(names, n_clusters, own, data, train, times=3):
    """CPU seconds of a round of each method, the least of some, and the ratio to FedAvg's.

    FedAvg and the others take turns, so that what else the machine does falls on all.
    """
    names = [name for name in names if name not in ("FedAvg", "one-shot")]
    spent = {name: [] for name in ["FedAvg", *names]}  # one-shot has another parameter of rounds
    for _ in range(times):
        for name, seconds in spent.items():
            seconds.append(cost(name, n_clusters, own, data, train))
    base, steps = min(spent["FedAvg"]), local_steps(own)
    print(f"{'method':19}{'CPU s a round':>14}{'of FedAvg':>11}{'gradients':>11}{'of one':>8}")
    for name, seconds in spent.items():
        ratio, gradients = min(seconds) / base, GRADIENTS.get(name, lambda steps: 1.0)(steps)
        print(
            f"{name:19}{min(seconds):14.4f}{ratio:11.2f}{gradients:11.1f}{ratio / gradients:8.2f}"
        )


def conv_net(n_classes, channels=(16, 32), hidden=None):
    """A network as the paper describes its own, 5 x 5 kernels and 2 x 2 pooling; channels ours."""
    from torch import nn

    layers, width = [], 1
    for more in channels:
        layers += [nn.Conv2d(width, more, 5), nn.ReLU(), nn.MaxPool2d(2)]
        width = more
    width *= 16
    layers.append(nn.Flatten())
    if hidden:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden or width, n_classes))


# Channels of two layers, and units of one behind them.
CONV = {"small": {}, "wide": {"channels": (32, 64), "hidden": 512}}


def convolutions(y, own, **net):
    """Local training of that network in place of the one with a hidden layer."""
    from skcfl.models import TorchModel

    layers = "hidden_layer_sizes", "standardize"
    rest = {name: value for name, value in own.items() if name not in layers}
    net["n_classes"] = len(np.unique(y))
    return rest | {"model": TorchModel(conv_net, input_shape=(1, 28, 28), **net)}


def study(name, n_clusters, own, data, train, test, seed):
    """Accuracy, ARI, first round of ARI .9, megabytes and seconds of one method on one draw."""
    start = time.process_time()
    model = METHODS[name](n_clusters, own)
    model, ari, first = run(model, data, train, seed, data.y)
    seconds = time.process_time() - start
    accuracy = 100 * model.score(data.X[test], data.y[test], groups=data.groups[test])
    if np.isnan(ari) and 1 < model.n_clusters_ < len(model.groups_) and name != "oracle":
        # Clusters found once, before the rounds.
        ari = adjusted_rand_score(data.labels, model.labels_)
        first = 0.0 if ari >= 0.9 else np.nan
    megabytes = 4e-6 * (model.floats_up_ + model.floats_down_)
    return accuracy, ari, first, megabytes, seconds


def main():
    """Print one line for each kind of shift and method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", metavar="PATH", help="an .npz file with X_train, y_train")
    parser.add_argument("--shifts", nargs="+", choices=SHIFTS + MORE_SHIFTS, default=SHIFTS)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--dirichlet", choices=["none", "cluster", "client"], default="none")
    parser.add_argument("--rows", type=int, default=500, help="training rows of a client of MNIST")
    parser.add_argument("--batch", type=int, default=100, help="rows of a batch, of MNIST")
    parser.add_argument("--sgd", type=float, metavar="RATE", help="plain steps, not Adam's")
    parser.add_argument("--hidden", type=int, default=200)
    parser.add_argument("--conv", choices=list(CONV), help="a convolutional network (PyTorch)")
    parser.add_argument("--centre", action="store_true", help="pixels of mean 0, variance 1")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--costs", action="store_true", help="CPU seconds of a round only")
    parser.add_argument("--paper", action="store_true", help="100 rounds, three seeds")
    args = parser.parse_args()
    if args.paper:
        args.rounds, args.seeds = 100, 3
    # Studies run a fixed number of rounds.
    warnings.simplefilter("ignore", ConvergenceWarning)
    if args.conv and not args.mnist:
        parser.error("--conv needs --mnist")
    X, y = load(args.mnist)
    if args.centre:
        X = (X - X.mean()) / X.std()
    rows = args.rows * 5 // 4 if args.mnist else None
    # Pixels have one unit.
    own = {"hidden_layer_sizes": (args.hidden,), "standardize": False}
    own |= {"max_iter": args.rounds, "tol": 0}
    if args.mnist:
        steps = max(args.rows // args.batch, 1)
        own = retrained(own, step_size=0.001, batch_size=args.batch, local_steps=steps)
    if args.sgd:
        own = retrained(own, optimizer="sgd", step_size=args.sgd)
    if args.costs:
        data = deal(X, y, args.shifts[0], rows, args.dirichlet, 0)
        train, _ = split(data, 0)
        return print_costs(args.methods, len(np.unique(data.labels)), own, data, train)
    print(f"{'':34}{'here':^38}{'the paper':^18}")
    print(
        f"{'shift':15}{'method':19}{'accuracy':>14}{'ARI':>6}{'round':>6}{'MB':>7}{'CPU s':>7}"
        f"{'accuracy':>10}{'ARI':>6}"
    )
    for shift in args.shifts:
        results = {name: [] for name in args.methods}
        for seed in range(args.seeds):
            data = deal(X, y, shift, rows, args.dirichlet, seed)
            train, test = split(data, seed)
            n_clusters = len(np.unique(data.labels))
            local = convolutions(data.y, own, **CONV[args.conv]) if args.conv else own
            for name in args.methods:
                results[name].append(study(name, n_clusters, local, data, train, test, seed))
        for name, values in results.items():
            accuracy, ari, first, megabytes, seconds = np.mean(values, axis=0)
            figures = PAPER.get(name.partition(",")[0], (None, None))
            place = (SHIFTS + MORE_SHIFTS).index(shift)
            paper = [np.nan if f is None or not args.mnist else f[place] for f in figures]
            print(
                f"{shift:15}{name:19}{accuracy:8.1f} +-{np.std(values, axis=0)[0]:4.1f}"
                f"{dash(ari, '.2f'):>6}{dash(first, '.1f'):>6}{megabytes:7.1f}{seconds:7.1f}"
                f"{dash(paper[0], '.1f'):>9}{dash(paper[1], '.2f'):>7}",
                flush=True,
            )


if __name__ == "__main__":
    main()
