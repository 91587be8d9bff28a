"""Sixty users and three hidden clusters
=====================================

Section V of the convex clustering paper: sixty users, ten points each, three hidden clusters.

Every user separates two overlapping ellipses in the plane. The ellipses lie in one of three
directions, and the users' directions are not known. One separator for all is near chance, and ten
points are few for a local model.  The penalty of Armacki et al. (2022) on the differences of the
users' separators makes those of alike users equal.  Drawn as in the paper: accuracy (its Fig. 2),
distance between the models of a cluster (Fig. 3), number of models (Fig. 6), and the convergence
of the parallel direction method of multipliers with 40 % of the users in a round (Fig. 5).

The paper's losses are ``c/2 ||w||^2`` plus the mean squared hinge, so that its c is ``alpha``; its
lambda is taken over unordered pairs and not divided by the number of users, which is ``lam``.  Its
squared penalty has no 1/2, so ``lam`` is twice its lambda there.  The coordinates of its ellipses
are not given; those of ``make_ellipses`` match its oracle.

Prints a comparison with the paper's figures and saves a picture (where matplotlib is installed)::

    python examples/plot_ellipses.py [--figure ellipses.png] [--seed 8]
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skcfl import (
    ConvexClusteredFLClassifier,
    FedAvgClassifier,
    LocalModelsClassifier,
    OracleClustersClassifier,
)
from skcfl.datasets import make_ellipses
from skcfl.fusion.solvers import PDMM

MODEL = {"loss": "squared_hinge", "alpha": 1e-3, "standardize": False}
LAMS = np.geomspace(0.001, 1.0, 40)
# The paper's Appendix C: values of lambda of Fig. 6, and parameters and lambda of Fig. 5.
PAPER_LAMS = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 1, 1000)
PAPER_PDMM = {"rho": 10.0, "eta": 10.0, "tau": 0.8, "nu": 0.2}
PDMM_LAM, PARTICIPATION, ROUNDS = 0.02, 0.4, 600
HALVINGS = 10  # of the intervals that hold the ends of exact recovery


def main():
    """Fit all methods, print the comparison, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="ellipses.png", help="where to save the picture")
    parser.add_argument("--seed", type=int, default=8, help="seed of the data")
    args = parser.parse_args()
    start = time.perf_counter()

    data = make_ellipses(n_test=2000, random_state=args.seed)
    levels = {
        "local": accuracy(fit(LocalModelsClassifier(**MODEL), data), data),
        "global": accuracy(fit(FedAvgClassifier(**MODEL), data), data),
        "oracle": accuracy(fit(OracleClustersClassifier(data.labels, **MODEL), data), data),
    }
    curves = {name: walk(name, data) for name in ("fusion", "squared")}
    low, high = recovery(curves["fusion"], data)
    best = {name: max(curve["accuracy"]) for name, curve in curves.items()}
    at = {name: LAMS[np.argmax(curve["accuracy"])] for name, curve in curves.items()}

    print("Section V: 60 users of 10 points in 3 clusters, squared hinge, c = 1e-3\n")
    print(f"{'test accuracy, %':42}{'here':>10}{'paper':>10}")
    for name, paper in (("local", "."), ("global", "."), ("oracle", ".")):
        print(f"  {name:40}{levels[name]:10.1f}{paper:>10}")
    print(f"  {'fusion, best at lam = ' + format(at['fusion'], '.3f'):40}", end="")
    print(f"{best['fusion']:10.1f}{86.8:>10}")
    print(f"  {'squared penalty, best at ' + format(at['squared'], '.3f'):40}", end="")
    print(f"{best['squared']:10.1f}{86.6:>10}")
    text = f"({low:.4f}, {high:.4f})" if low else "none"
    print(f"{'lam of exact recovery':32}{text:>20}  (.0892, .0919)")
    closer = np.mean(curves["fusion"]["within"] <= curves["squared"]["within"])
    print(f"fusion's clusters are the more compact ones at {closer:.0%} of the lams (paper: all)")

    appendix = make_ellipses(n_clients=30, n_samples=170, random_state=args.seed)
    print("\nAppendix C: 30 users of 170 points, number of models")
    counts = {name: models_at(name, appendix) for name in ("fusion", "squared")}
    print(f"{'  lambda':18}" + "".join(f"{lam:>7g}" for lam in PAPER_LAMS))
    for name, count in counts.items():
        print(f"  {name:16}" + "".join(f"{k:7d}" for k in count))

    runs = converge(appendix)
    print(f"\nPDMM at lam = {PDMM_LAM}, {PARTICIPATION:.0%} of the users in a round")
    print(f"{'':44}{'rounds':>8}{'gap':>11}{'MB sent':>9}")
    for name, run in runs.items():
        sent = (run.floats_up_ + run.floats_down_) * run.params_.itemsize / 1e6
        print(f"  {name:42}{run.n_iter_:8d}{run.dual_gap_:11.1e}{sent:9.2f}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(data, levels, curves, (low, high), counts, runs, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def fit(model, data):
    return model.fit(data.X, data.y, groups=data.groups)


def method(name, lam=0.0, **options):
    """The fusion penalty or the squared one, at a lambda of the paper."""
    if name == "squared":  # the paper's lambda |x|^2 is 2 lambda times |x|^2 / 2
        lam, options = 2.0 * lam, {**options, "penalty": "squared_l2"}
    return ConvexClusteredFLClassifier(lam, **MODEL, **options)


def accuracy(model, data):
    """Mean over the users of the accuracy on all test points of their clusters."""
    total = 0.0
    for user, label in zip(model.groups_, data.labels, strict=True):
        mine = data.labels_test == label
        X, y = data.X_test[mine], data.y_test[mine]
        total += np.mean(model.predict(X, groups=np.full(len(y), user)) == y)
    return 100.0 * total / len(data.labels)


def within_distance(model, data):
    """Mean distance of the models of two users of one cluster."""
    distances = []
    for k in np.unique(data.labels):
        W = model.params_[data.labels == k]
        pairs = np.triu_indices(len(W), 1)
        distances.append(np.linalg.norm(W[:, None] - W, axis=2)[pairs].mean())
    return np.mean(distances)


def recovers(model, data):
    """Whether the clusters found are exactly the hidden ones."""
    pairs = set(zip(model.labels_, data.labels, strict=True))
    return len(pairs) == model.n_clusters_ == data.labels.max() + 1


def walk(name, data):
    """What happens along lambda, each fit started from the last."""
    model = method(name, warm_start=True)
    columns = {"accuracy": [], "within": [], "n_clusters": [], "recovers": [], "params": []}
    for lam in LAMS:
        model.set_params(lam=method(name, lam).lam)
        fit(model, data)
        columns["accuracy"].append(accuracy(model, data))
        columns["within"].append(within_distance(model, data))
        columns["n_clusters"].append(model.n_clusters_)
        columns["recovers"].append(recovers(model, data))
        columns["params"].append(model.params_)
        columns.setdefault("labels", []).append(model.labels_)
    return {key: np.array(column) for key, column in columns.items()}


def recovery(curve, data):
    """Ends of the range of lambda around the recovering ones of the path, by bisection."""
    hits = np.flatnonzero(curve["recovers"])
    if not len(hits):
        return None, None
    ends = []
    for inside, outside in ((hits[0], hits[0] - 1), (hits[-1], hits[-1] + 1)):
        good, bad = LAMS[inside], LAMS[outside]
        for _ in range(HALVINGS):
            middle = 0.5 * (good + bad)
            if recovers(fit(method("fusion", middle), data), data):
                good = middle
            else:
                bad = middle
        ends.append(good)
    return tuple(ends)


def models_at(name, data):
    """Number of different models at the paper's values of lambda."""
    return [fit(method(name, lam), data).n_clusters_ for lam in PAPER_LAMS]


def converge(data):
    """PDMM with a step found by itself, with the paper's, and with exact partitions tried."""
    options = {"participation": PARTICIPATION, "check_every": 10, "contraction": False}
    variants = {
        "paper's rho = eta = 10": {**options, **PAPER_PDMM},
        "adaptive rho (the default)": options,
        "the same, exact partitions tried": {**options, "contraction": True},
    }
    runs = {}
    for name, variant in variants.items():
        model = method(
            "fusion",
            PDMM_LAM,
            solver=PDMM(**variant),
            max_iter=ROUNDS,
            tol=1e-8,
            random_state=0,
        )
        with warnings.catch_warnings():  # the paper's step is far from done after them
            warnings.simplefilter("ignore", ConvergenceWarning)
            runs[name] = fit(model, data)
    return runs


def draw(data, levels, curves, interval, counts, runs, path):
    """Six panels: the data, the paper's Figs. 2, 3, 6 and 5, and the path of the models."""
    from types import SimpleNamespace

    import matplotlib.pyplot as plt

    from skcfl.inspection import ClusterPathDisplay, ConvergenceDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, panels = plt.subplots(2, 3, figsize=(13, 7.6))
    (first, second, third), (fourth, fifth, sixth) = panels
    for ax in panels.flat:
        ax.spines[["top", "right"]].set_visible(False)
    cluster = data.labels[np.searchsorted(np.unique(data.groups), data.groups)]
    reach = np.array([-6.0, 6.0])
    for k, normal in enumerate(data.coef):
        for label, marker in ((1, "+"), (-1, "_")):
            rows = (cluster == k) & (data.y == label)
            first.plot(*data.X[rows].T, marker, color=f"C{k}", markersize=4.5)
        first.plot(*np.outer([-normal[1], normal[0]], reach), "--", color=f"C{k}", linewidth=1)
    first.set(xlim=(-5, 5), ylim=(-5, 5), aspect="equal", xlabel="feature 1", ylabel="feature 2")
    first.set_title("classes + and \N{MINUS SIGN} of three clusters", fontsize=10)

    style = {"fusion": ("C0", "fusion"), "squared": ("C1", "squared penalty")}
    for name, (colour, label) in style.items():
        second.plot(LAMS, curves[name]["accuracy"], "-", color=colour, label=label)
        third.plot(LAMS, curves[name]["within"], "-", color=colour, label=label)
    lines = {"oracle": ("C2", ":"), "local": ("C7", "--")}
    for name, (colour, line) in lines.items():
        second.axhline(levels[name], color=colour, linestyle=line, linewidth=1.2, label=name)
    second.set_title("predictions (paper's Fig. 2)", fontsize=10)
    # One model for all is far below: near chance.
    bottom, top = levels["local"] - 1.2, max(curves["fusion"]["accuracy"]) + 0.4
    second.set_ylim(bottom, top)
    second.set_ylabel("accuracy of test points, %")
    where = {"xy": (LAMS[-1], bottom), "xytext": (LAMS[-1], bottom + 0.6), "color": "C3"}
    arrow = {"arrowstyle": "->", "color": "C3"}
    second.annotate(f"global {levels['global']:.1f}", **where, ha="right", arrowprops=arrow)
    second.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0.17, 0.24))
    third.set_title("models of one cluster (Fig. 3)", fontsize=10)
    third.set_ylabel("distance within clusters")
    fusion = curves["fusion"]
    fourth.plot(LAMS, fusion["n_clusters"], "-", color="C0", label="fusion, 10 points")
    small = np.array(PAPER_LAMS) <= LAMS[-1]
    for name, marker, label in (
        ("fusion", "o", "fusion, 170 points"),
        ("squared", "s", "squared, 170 points"),
    ):
        lams, count = np.array(PAPER_LAMS)[small], np.array(counts[name])[small]
        fourth.plot(lams, count, marker, color=style[name][0], markersize=5, label=label)
    fourth.set_yscale("log")
    fourth.set_yticks([1, 3, 10, 30, 60], ["1", "3", "10", "30", "60"])
    fourth.set_yticks([], minor=True)
    fourth.set_title("distinct models (Fig. 6)", fontsize=10)
    fourth.set_ylabel("number of models")
    fourth.legend(frameon=False, fontsize=8, loc="lower left")
    for ax in (second, third, fourth):
        ax.set(xscale="log", xlabel="lambda of the paper")
        if interval[0]:
            ax.axvspan(*interval, color="0.9", zorder=0, label="three clusters found")

    third.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0.15, 1.0))
    journey = SimpleNamespace(lams=LAMS, params=fusion["params"], labels=fusion["labels"])
    ClusterPathDisplay.from_path(journey, partition=data.labels, ax=fifth)
    fifth.set_title("models along lam, coloured by hidden cluster", fontsize=10)

    # A gap of exactly 0 has no place on a logarithmic axis: it is drawn at the lower edge.
    for (name, run), colour in zip(runs.items(), ("C3", "C0", "C2"), strict=True):
        ConvergenceDisplay.from_estimator(run, name=name, ax=sixth, color=colour)
    sixth.set_ylim(1e-9, 10)
    sixth.legend(frameon=False, fontsize=8, loc="center right")
    sixth.set_title("PDMM, 40 % of the users per round (Fig. 5)", fontsize=10)
    figure.suptitle(
        "Convex clustering of 60 users in three hidden clusters, 10 points each", size=12
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
