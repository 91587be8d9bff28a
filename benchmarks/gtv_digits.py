r"""Handwritten digits on a graph made of the rows (SarcheshmehPour et al. 2023, section VI-C).

40 clients: 20 have images of the digits 0 and 1, 20 of 2 and 3; each learns to tell its odd digit
from its even one.  As in the paper each client's rows are embedded in the plane, the distances of
clients are Kullback-Leibler estimates, each is joined to the 4 nearest with weights
exp(-distance), and the table has the accuracy on validation rows by lam: from models of their
own (lam = 0) to one model (lam to infinity on a connected graph; FedAvg on any).  Local models are
linear, logistic, or with ``--hidden 32`` networks with a hidden layer, as the paper's, whose
number of units it does not say; its log-loss is ours, and so is its lam.

Figs. 5, 6 and 7 are plots of the accuracy over 50 iterations without numbers in the text: Fig. 5
for values of lam, Figs. 6 (two clusters) and 7 (five, ``--clusters 5``) of lam = 1 beside IFCA,
pFedMe (6 only) and PyTorch's optimiser of the same objective, which the text has GTV better than
in accuracy and convergence.  ``--after 1 2 5 ...`` prints such curves: accuracy after so many
rounds of ten local steps each; "subgradients" are steps of Adam down the objective at lam = 1.
``--plot FILE`` draws them as the figures do, GTV by lam and the methods side by side.

    python benchmarks/gtv_digits.py [--mnist mnist.npz --components 50] [--embedding tsne]
    python benchmarks/gtv_digits.py --hidden 32
    python benchmarks/gtv_digits.py --mnist mnist.npz --components 50 --hidden 32 --clusters 5 \
        --after 1 2 5 10 20 50

By default the images are scikit-learn's, 8 x 8, 18 a client, of which 6 are for training; with
``--mnist`` (arrays ``X`` and ``y``, or ``x_train`` and ``y_train``) 500 a client, 400 for
training, and ``--components`` takes principal components of the images as features, which is much
faster than 784 pixels.  ``--clusters 5`` is the paper's second experiment: 100 clients, pairs of
digits up to 8 and 9.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from skcfl import (
    FedAvgClassifier,
    GTVClassifier,
    IFCAClassifier,
    LocalModelsClassifier,
    OracleClustersClassifier,
    PFedMeClassifier,
    Training,
)
from skcfl.fusion.solvers import InexactPrimalDual
from skcfl.graphs import kl_graph

LAMS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)


def images(path):
    """Images with entries in [0, 1], and their digits."""
    if path is None:
        return load_digits(return_X_y=True)[0] / 16.0, load_digits().target
    with np.load(path) as file:
        names = {name.lower().removesuffix("_train"): name for name in file}
        X, y = file[names["x"]], file[names["y"]]
    return X.reshape(len(X), -1) / 255.0, y.astype(int)


def federation(X, digits, n_clusters, per_cluster, n_rows, rng):
    """Rows of clients with two digits each: X, odd or even, client, cluster of each client."""
    rows, groups = [], []
    for k in range(n_clusters):
        mine = rng.permutation(np.flatnonzero(digits // 2 == k))
        size = min(n_rows, len(mine) // per_cluster)
        rows.append(mine[: size * per_cluster])
        groups.append(np.repeat(np.arange(per_cluster) + k * per_cluster, size))
    rows, groups = np.concatenate(rows), np.concatenate(groups)
    return X[rows], digits[rows] % 2, groups, np.repeat(np.arange(n_clusters), per_cluster)


def training_rows(y, groups, share, rng):
    """A share of every client's rows, of both classes in proportion."""
    train = np.zeros(len(y), dtype=bool)
    for i in np.unique(groups):
        mine = [rng.permutation(np.flatnonzero((groups == i) & (y == c))) for c in (0, 1)]
        for rows in mine:
            train[rows[: max(round(share * len(rows)), 1)]] = True
    return train


def embed(X, how, rng):
    """Coordinates in the plane."""
    if how == "pca":
        return PCA(2, random_state=rng).fit_transform(X)
    return TSNE(2, random_state=rng).fit_transform(X)


def methods(n_clusters, truth, graph, hidden, seed):
    """Names and estimators, in the order of the table."""
    same = {"hidden_layer_sizes": hidden, "standardize": not hidden, "random_state": seed}
    yield "local (lam = 0)", LocalModelsClassifier(**same)
    for lam in LAMS:
        yield f"GTV, lam = {lam:g}", GTVClassifier(lam, graph=graph, **same)
    yield "GTV, lam = auto", GTVClassifier(graph=graph, **same)
    yield "GTV, auto, refit", GTVClassifier(graph=graph, refit=True, **same)
    yield "FedAvg (one model)", FedAvgClassifier(**same)
    yield "IFCA", IFCAClassifier(n_clusters, **same)
    yield "pFedMe", PFedMeClassifier(**same)
    yield "oracle", OracleClustersClassifier(truth, **same)


class Subgradients:
    """Adam on the whole objective, networks and penalty, from one start for all clients."""

    def __init__(self, lam, graph, hidden, max_iter, random_state, local_steps=10, rate=0.005):
        self.lam, self.graph, self.hidden = lam, graph, hidden
        self.steps, self.rate, self.seed = max_iter * local_steps, rate, random_state

    def fit(self, X, y, groups):
        """Train."""
        mine = [np.flatnonzero(groups == client) for client in np.unique(groups)]
        clients, most = len(mine), max(map(len, mine))
        # Clients with fewer rows than the largest one have rows that count nothing.
        rows = np.array([np.resize(some, most) for some in mine])
        counts = np.array([(np.arange(most) < len(some)) / len(some) for some in mine])
        A, target = X[rows], y[rows]
        rng = np.random.RandomState(self.seed)
        shapes = [(X.shape[1], self.hidden), (1, self.hidden), (self.hidden, 1), (1, 1)]
        bounds = [np.sqrt(6 / sum(shape)) * (shape[0] > 1) for shape in shapes]
        self.parts = [
            np.tile(rng.uniform(-b, b, shape), (clients, 1, 1))
            for b, shape in zip(bounds, shapes, strict=True)
        ]
        sizes = np.cumsum([part[0].size for part in self.parts])[:-1]
        heads, tails = self.graph.heads, self.graph.tails
        first, second = 0.0, 0.0
        for step in range(1, self.steps + 1):
            hidden, z = self._forward(A)
            slope = ((1 / (1 + np.exp(-z)) - target) * counts)[..., None]
            back = (slope @ self.parts[2].transpose(0, 2, 1)) * (hidden > 0)
            own = [
                A.transpose(0, 2, 1) @ back,
                back.sum(axis=1, keepdims=True),
                hidden.transpose(0, 2, 1) @ slope,
                slope.sum(axis=1, keepdims=True),
            ]
            w = np.hstack([part.reshape(clients, -1) for part in self.parts])
            g = np.hstack([part.reshape(clients, -1) for part in own])
            apart = w[heads] - w[tails]
            norms = np.linalg.norm(apart, axis=1, keepdims=True)
            pull = self.lam * self.graph.weights[:, None] * apart / np.maximum(norms, 1e-12)
            np.add.at(g, heads, pull)
            np.add.at(g, tails, -pull)
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            size = np.sqrt(second / (1 - 0.999**step)) + 1e-8
            w -= self.rate * (first / (1 - 0.9**step)) / size
            self.parts = [
                v.reshape(part.shape)
                for v, part in zip(np.split(w, sizes, axis=1), self.parts, strict=True)
            ]
        return self

    def _forward(self, A):
        hidden = np.maximum(A @ self.parts[0] + self.parts[1], 0)
        return hidden, (hidden @ self.parts[2] + self.parts[3])[..., 0]

    def score(self, X, y, groups):
        """Accuracy."""
        right = 0
        for i, client in enumerate(np.unique(groups)):
            rows = groups == client
            W, b, v, c = (part[i] for part in self.parts)
            right += (((np.maximum(X[rows] @ W + b, 0) @ v + c)[:, 0] > 0) == y[rows]).sum()
        return right / len(y)


def curves(args, graph, truth, data, train):
    """Print the accuracy on validation rows after so many rounds (Figs. 6 and 7)."""
    X, y, groups = data
    same = {"hidden_layer_sizes": args.hidden, "random_state": args.seed}
    same |= {"standardize": not args.hidden}
    rounds = same | {"tol": 0, "training": Training(local_steps=10)}

    def gtv(lam):
        own = InexactPrimalDual(local_steps=10, n_iter_no_change=None)  # does not end before t
        return lambda t: GTVClassifier(
            lam, graph=graph, refit=False, max_iter=t, tol=0, solver=own, **same
        )

    makers = {f"GTV, lam = {lam:g}": gtv(lam) for lam in (1e-3, 1e-2, 1e-1, 1.0)}
    if len(args.hidden) == 1:
        makers["subgradients"] = lambda t: Subgradients(1.0, graph, *args.hidden, t, args.seed)
    k = args.clusters
    makers |= {
        "IFCA": lambda t: IFCAClassifier(k, max_iter=t, **rounds),
        "IFCA, random starts": lambda t: IFCAClassifier(
            k, init="random", empty_cluster="keep", max_iter=t, **rounds
        ),
        "pFedMe": lambda t: PFedMeClassifier(
            max_iter=t, tol=0, local_rounds=2, training=Training(local_steps=5), **same
        ),
        "FedAvg (one model)": lambda t: FedAvgClassifier(max_iter=t, **rounds),
        "local": lambda t: LocalModelsClassifier(max_iter=t, **rounds),
        "oracle": lambda t: OracleClustersClassifier(truth, max_iter=t, **rounds),
    }
    print(f"{'validation after':20}" + "".join(f"{t:8d}" for t in args.after) + "   seconds")
    found = {}
    for name, make in makers.items():
        if args.methods and not any(word in name for word in args.methods):
            continue
        start, scores = time.perf_counter(), []
        for t in args.after:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                fitted = make(t).fit(X[train], y[train], groups=groups[train])
            scores.append(fitted.score(X[~train], y[~train], groups=groups[~train]))
        line = "".join(f"{score:8.3f}" for score in scores)
        print(f"{name:20}{line}{time.perf_counter() - start:10.1f}", flush=True)
        found[name] = scores
    if args.plot:
        plot(args.after, found, args.plot)


def plot(after, found, path):
    """Draw accuracy by rounds: GTV by lam (Fig. 5), and the methods (Figs. 6 and 7)."""
    import matplotlib.pyplot as plt

    best = max((name for name in found if "GTV" in name), key=lambda name: found[name][-1])
    same = ("local", "FedAvg (one model)")  # lam = 0 and lam to infinity
    left = [name for name in found if "GTV" in name or name in same]
    right = [name for name in found if name in (best, "GTV, lam = 1") or name not in left]
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, constrained_layout=True)
    for ax, names, title in zip(axes, (left, right), ("by lam", "methods"), strict=True):
        for name, marker in zip(names, "osv^Dx+*<>", strict=False):
            ax.plot(after, found[name], marker=marker, ms=4, lw=1, label=name)
        ax.set(xlabel="rounds", xscale="log", title=title)
        ax.set_xticks(after, [str(t) for t in after])
        ax.minorticks_off()
        ax.legend(fontsize=7, loc="lower right")
    # What the first round has may be far below.
    low = min(scores[min(1, len(after) - 1)] for scores in found.values())
    axes[0].set(ylabel="validation accuracy", ylim=(low - 0.02, 1.0))
    fig.savefig(path, dpi=110)
    print(f"plotted to {path}")


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", help="an .npz file with the images of MNIST")
    parser.add_argument("--methods", nargs="+", help="words of the names, all by default")
    parser.add_argument("--clusters", type=int, default=2, choices=range(1, 6))
    parser.add_argument("--per-cluster", type=int, default=20, help="clients of a cluster")
    parser.add_argument("--rows", type=int, default=500, help="most rows of a client")
    parser.add_argument("--train", type=float, default=None, help="share of them for training")
    parser.add_argument("--embedding", choices=("pca", "tsne"), default="pca")
    parser.add_argument("--hidden", type=int, nargs="*", default=(), help="units of hidden layers")
    parser.add_argument("--components", type=int, help="principal components as features")
    parser.add_argument("--after", type=int, nargs="+", help="rounds, for curves of networks")
    parser.add_argument("--plot", metavar="FILE", help="draw the curves")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.RandomState(args.seed)
    X, digits = images(args.mnist)
    data = federation(X, digits, args.clusters, args.per_cluster, args.rows, rng)
    X, y, groups, truth = data
    train = training_rows(y, groups, args.train or (0.8 if args.mnist else 0.35), rng)
    start = time.perf_counter()
    graph = kl_graph(embed(X[train], args.embedding, rng), groups[train], n_neighbors=4)
    seconds = time.perf_counter() - start
    if args.components:
        X = PCA(args.components, random_state=args.seed).fit(X[train]).transform(X)
    across = graph.weights[truth[graph.heads] != truth[graph.tails]].sum() / graph.weights.sum()
    print(
        f"{len(truth)} clients in {args.clusters} clusters, {train.sum()} rows for training, "
        f"{(~train).sum()} for validation, {X.shape[1]} features, "
        + (f"hidden layers {args.hidden}" if args.hidden else "linear models")
    )
    print(
        f"{graph} from rows in the plane ({args.embedding}): {across:.1%} of the weight between "
        f"clusters, {graph.components().max() + 1} components, {seconds:.1f} s"
    )
    if args.after:
        return curves(args, graph, truth, (X, y, groups), train)
    print(
        f"{'':20} {'validation':>10} {'training':>8} {'clusters':>8} {'ARI':>5} {'lam':>8} {'':8} "
        f"{'rounds':>6} {'seconds':>7}"
    )
    for name, estimator in methods(args.clusters, truth, graph, args.hidden, args.seed):
        if args.methods and not any(word in name for word in args.methods):
            continue
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            estimator.fit(X[train], y[train], groups=groups[train])
        seconds = time.perf_counter() - start
        scores = [estimator.score(X[s], y[s], groups=groups[s]) for s in (~train, train)]
        found = adjusted_rand_score(truth, estimator.labels_)
        lam = f"{estimator.lam_:8.2g}" if hasattr(estimator, "lam_") else ""
        proved = "proved" if getattr(estimator, "partition_optimal_", False) else ""
        print(
            f"{name:20} {scores[0]:10.3f} {scores[1]:8.3f} {estimator.n_clusters_:8d} "
            f"{found:5.2f} {lam:8} {proved:8} {estimator.n_iter_:6d} {seconds:7.2f}",
            flush=True,
        )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
