"""Which digit does each client write?
===================================

CLoVE finds out from the losses of autoencoders, with no labels.

Fifty clients have images of one digit each, five clients for every digit, from scikit-learn's 1797
handwritten digits.  Nobody has a label.  Ten small autoencoders start at random, as in the papers.
IFCA, where every client takes the model of least loss, sends all clients to the few models that
happened to start best, and never trains the others.  CLoVE compares clients by their *vectors* of
losses, which differ from digit to digit under any models.

Draws each method's losses, clients by models, the assignment outlined, and the recovery of the
digits by round (where matplotlib is installed)::

    python examples/plot_clove.py [--figure clove.png]
"""

import argparse
import time

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from skcfl import IFCA, CLoVE
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
    common = {
        "n_clusters": 10,
        "init": "different",
        "max_iter": ROUNDS,
        "tol": 0,
        "true_labels": data.labels,  # for the curves only: the fit does not use them
        "random_state": 0,
    }
    model = Autoencoder((16,), output_activation="sigmoid")
    # As in the paper, a model that nobody chose stays as it is.
    ifca = IFCA(model, empty_cluster="keep", **common)
    methods = {"IFCA": ifca, "CLoVE": CLoVE(model, **common)}

    print(f"{'':8}{'clusters found':>16}{'Rand index':>12}{'loss':>9}")
    for name, method in methods.items():
        method.fit(data.X, groups=data.groups)
        index = adjusted_rand_score(data.labels, method.labels_)
        loss = -method.score(data.X, groups=data.groups)
        print(f"{name:8}{method.n_clusters_:16}{index:12.2f}{loss:9.4f}")
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

    figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), width_ratios=[1, 1, 0.9])
    for ax, (name, method) in zip(axes, methods.items(), strict=False):
        LossMatrixDisplay.from_estimator(method, data.X, groups=data.groups, ax=ax)
        number = "one cluster" if method.n_clusters_ == 1 else f"{method.n_clusters_} clusters"
        ax.set_title(f"{name}: {number}")
    for method in methods.values():
        RoundsDisplay.from_estimator(method, ax=axes[2])
    axes[2].set(title="recovery of the digits", ylim=(-0.05, 1.05))
    axes[2].spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
