"""Accuracy against megabytes: all rivals on one federation
========================================================

What does it cost to learn the digits from clients that name them differently?

Twenty-four clients have rows of scikit-learn's handwritten digits. They belong to four clusters,
and each cluster has swapped other labels: the same image is a 3 here and an 8 there. One model for
all cannot be right. Methods that look for clusters, and methods that give each client a model of
its own beside a shared one, train the same small network with the same local steps; what they send
is counted to the float.

Draws the accuracy on rows that were not trained on against the megabytes sent in both
directions (where matplotlib is installed)::

    python examples/plot_rivals.py [--figure rivals.png]
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

import skcfl
from skcfl import Training
from skcfl.datasets import partition_label_swaps

ROUNDS = (1, 2, 4, 8, 16, 32)
N_CLUSTERS = 4
SGD = Training(optimizer="sgd", step_size=0.3)
# Name in the picture, class, parameters, kind of method.
METHODS = [
    ("FedAvg", "FedAvg", {}, "one model"),
    ("local", "LocalModels", {}, "one model"),
    ("oracle", "OracleClusters", {}, "one model"),
    ("IFCA", "IFCA", {"n_clusters": N_CLUSTERS}, "clusters"),
    ("CLoVE", "CLoVE", {"n_clusters": N_CLUSTERS}, "clusters"),
    ("FeSEM", "FeSEM", {"n_clusters": N_CLUSTERS}, "clusters"),
    ("FlexCFL", "FlexCFL", {"n_clusters": N_CLUSTERS}, "clusters"),
    ("PACFL", "PACFL", {"n_clusters": N_CLUSTERS}, "clusters"),
    # It compares the lengths of updates, which Adam keeps alike.
    ("CFL", "CFL", {"training": SGD, "eps1": 0.2, "eps2": 0.4}, "clusters"),
    ("Ditto", "Ditto", {}, "personal"),
    ("pFedMe", "PFedMe", {}, "personal"),
    ("Per-FedAvg", "PerFedAvg", {}, "personal"),
    ("FedRep", "FedRep", {}, "personal"),
    ("FedPer", "FedRep", {"alternate": False}, "personal"),
    ("FedALA", "FedALA", {}, "personal"),
    ("FedProto", "FedProto", {}, "personal"),
    ("FedPAC", "FedPAC", {}, "personal"),
]
PANELS = {"clusters": "clusters of clients", "personal": "a model for each client"}
MARKERS = "os^vDP<X"
GREY, TICKS = "0.45", (0.5, 1, 2, 5, 10, 20, 40, 80)


def main():
    """Fit all methods for more and more rounds, print the last ones, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="rivals.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    digits = load_digits()
    data = partition_label_swaps(
        digits.data / 16, digits.target, N_CLUSTERS, 6, n_swaps=3, random_state=0
    )
    parts = train_test_split(
        data.X, data.y, data.groups, test_size=0.4, stratify=data.groups, random_state=0
    )
    labels = dict(zip(np.unique(data.groups), data.labels, strict=True))
    print(f"{'':12}{'accuracy':>10}{'megabytes':>11}{'seconds':>9}")
    curves = {}
    for title, name, params, _ in METHODS:
        params = {**params, **({"labels": labels} if title == "oracle" else {})}
        begun = time.process_time()
        curves[title] = np.array([judge(name, params, n, *parts) for n in ROUNDS])
        accuracy, megabytes = curves[title][-1]
        print(f"{title:12}{accuracy:10.3f}{megabytes:11.2f}{time.process_time() - begun:9.1f}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(curves, args.figure)
        print(f"Picture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def judge(name, params, rounds, X, X_test, y, y_test, groups, groups_test):
    """Accuracy on the other rows after some rounds, and megabytes sent, four bytes a float."""
    model = getattr(skcfl, f"{name}Classifier")(
        hidden_layer_sizes=(32,),
        standardize=False,  # pixels
        max_iter=rounds,
        tol=0,
        random_state=0,
        **params,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y, groups=groups)
    accuracy = model.score(X_test, y_test, groups=groups_test)
    return accuracy, 4e-6 * (model.floats_up_ + model.floats_down_)


def draw(curves, path):
    """One panel a kind of method, the others' curves behind in grey."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, sharex=True)
    kinds = {title: kind for title, _, _, kind in METHODS}
    for ax, kind in zip(axes, ("clusters", "personal"), strict=True):
        names = [title for title in curves if kinds[title] == kind]
        shades = plt.rcParams["axes.prop_cycle"].by_key()["color"]
        for title, curve in curves.items():
            accuracy, megabytes = curve.T
            if kinds[title] == "one model":
                ax.plot(megabytes, accuracy, "--", color=GREY, lw=1)
                aside = (2, 7) if title == "oracle" else (4, 0)
                ax.annotate(
                    title,
                    curve[-1][::-1],
                    aside,
                    textcoords="offset points",
                    color=GREY,
                    va="center",
                    size=8,
                )
            elif kinds[title] == kind:
                color = shades[names.index(title)]
                # CLoVE's curve lies on IFCA's.
                width = {"IFCA": 5, "CLoVE": 1.5}.get(title, 1.5)
                ax.plot(
                    megabytes,
                    accuracy,
                    MARKERS[names.index(title)] + "-",
                    color=color,
                    ms=4,
                    lw=width,
                    label=title,
                )
        ax.set(xscale="log", xlabel="megabytes sent, both ways", title=PANELS[kind])
        ax.set_xticks(TICKS, TICKS)
        ax.legend(frameon=False, fontsize=8, loc="lower right", ncols=2)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("accuracy on held-out rows")
    figure.suptitle(
        "24 clients, four ways to name the digits: 1, 2, ... 32 rounds of one network, the same "
        "local steps (CFL under SGD, the others under Adam)",
        size=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
