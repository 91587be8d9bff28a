"""Which digit does each client write?
===================================

CLoVE finds out from the losses of autoencoders, with no labels.

Fifty clients have images of one digit each, five clients for every digit, from scikit-learn's 1797
handwritten digits.  There are no labels.  Ten small autoencoders start at random, as in the
papers. IFCA, where every client takes the model of least loss, sends all clients to the few models
that happened to start best; as published it never trains the others, and drawing those anew helps
it part of the way.  CLoVE compares clients by their *vectors* of losses, which differ from digit
to digit under any models.  IFCA finds the digits as well from good starts: ``init="loss++"``, the
default here, takes models of clients that fit each other's rows worst.

Draws the losses of two fits, clients by models, the assignment outlined, and the recovery of the
digits by round (where matplotlib is installed)::

    python examples/plot_clove.py [--figure clove.png]
"""

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from skcfl import IFCA, CLoVE, Record
from skcfl.datasets import partition_label_skew
from skcfl.models import Autoencoder

ROUNDS = 15


def main():
    """Fit both methods, print what they found, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="clove.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    digits = load_digits()
    data = partition_label_skew(
        digits.data / 16, digits.target, n_clusters=10, n_unique=1, random_state=0
    )
    model = Autoencoder((16,), output_activation="sigmoid")
    common = {
        "n_clusters": 10,
        "max_iter": ROUNDS,
        "tol": 0,
        "record": Record(data.labels),  # for the curves only: the fit does not use it
        "random_state": 0,
    }
    random = {"init": "random", **common}
    methods = {
        # A model without clients stays as it is.
        "IFCA as published": IFCA(model, empty_cluster="keep", **random),
        "IFCA, unused models drawn anew": IFCA(model, **random),
        "IFCA, starts by loss++": IFCA(model, **common),
        "CLoVE": CLoVE(model, **random),
    }

    print(f"{'':32}{'clusters found':>16}{'Rand index':>12}{'loss':>9}")
    for name, method in methods.items():
        method.fit(data.X, groups=data.groups)
        index = adjusted_rand_score(data.labels, method.labels_)
        loss = -method.score(data.X, groups=data.groups)
        print(f"{name:32}{method.n_clusters_:16}{index:12.2f}{loss:9.4f}")
    first = int(np.argmax(methods["CLoVE"].history_["ari"] == 1.0)) + 1
    print(f"\nCLoVE has all ten digits after round {first}.")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(methods, data, args.figure)
        print(f"Picture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def draw(methods, data, path):
    """Two loss matrices and the curves of recovery."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import LossMatrixDisplay, RoundsDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.8), width_ratios=[1, 1, 1.1])
    for ax, name in zip(axes, ("IFCA as published", "CLoVE"), strict=False):
        method = methods[name]
        display = LossMatrixDisplay.from_estimator(method, data.X, groups=data.groups, ax=ax)
        display.image_.set_clim(0, 0.065)  # the same colours in both
        ax.set_title(f"{name}: {method.n_clusters_} clusters")
        ax.set_xlabel("autoencoder of cluster")
    styles = ("-", "-", "-", "--")  # the last two are one line
    for (name, method), style, width in zip(methods.items(), styles, (2, 2, 5, 2), strict=True):
        RoundsDisplay.from_estimator(
            method, name=name, ax=axes[2], linestyle=style, linewidth=width
        )
    axes[2].set(title="Recovery of the ten digits", xticks=(1, 5, 10, 15), ylim=(-0.05, 1.05))
    axes[2].set(xlabel="communication round", ylabel="adjusted Rand index (1: all right)")
    axes[2].legend(loc="center right", bbox_to_anchor=(1.02, 0.44), frameon=False, fontsize=9)
    axes[2].spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "50 clients of one digit each, no labels, ten autoencoders: losses of the clients, "
        "the one taken outlined"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
