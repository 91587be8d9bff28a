"""For which penalty are these the clusters?
=========================================

A proof for each penalty: the three clusters are the exact solution's, or they are not.

Twenty-four clients belong to three clusters. Convex clustering is fitted along its penalty, and
the certificate says for each fit how firmly each cluster holds together: the force that its
weakest edges have to carry, as a share of what they can carry. Below 1 the partition is proved; a
cluster near 1 is about to break. No cluster is compared with the truth: the proof is about the
problem that was solved.

Prints the answers, and draws the shares along the penalty::

    python examples/plot_certificates.py [--figure certificates.png]
"""

import argparse

import numpy as np

from skcfl import ConvexClusteredFLRegressor
from skcfl.certificates import certify_partition
from skcfl.datasets import make_clustered_regression

LAMS = np.geomspace(0.003, 30.0, 24)


def main():
    """Fit along the penalty, certify each fit, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="certificates.png", help="where to save the picture")
    path = parser.parse_args().figure
    data = make_clustered_regression(
        n_clients=24, n_clusters=3, n_features=5, n_samples=30, noise=1.0, random_state=0
    )
    rows = {"X": data.X, "y": data.y, "groups": data.groups}
    found = []
    for lam in LAMS:
        model = ConvexClusteredFLRegressor(lam, graph="knn").fit(**rows)
        certificate = certify_partition(model, **rows)
        found.append((model.n_clusters_, certificate.optimal, certificate.ratio))
        print(f"lam {lam:8.4f}: {found[-1][0]:2} clusters, proved: {found[-1][1]}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(found, path)
        print(f"Picture saved to {path}.")


def draw(found, path):
    """Left, the number of clusters and whether it is proved; right, the greatest share."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    numbers, proved, shares = map(np.array, zip(*found, strict=True))
    proved = proved.astype(object) == True  # noqa: E712  (None is not proved either)
    left.plot(LAMS[proved], numbers[proved], "o", label="proved to be the exact solution's")
    left.plot(LAMS[~proved], numbers[~proved], "x", color="0.4", label="not proved")
    left.set(yscale="log", ylabel="number of clusters", title="Clusters along the penalty")
    left.set_yticks([1, 3, 6, 12, 24], [1, 3, 6, 12, 24])
    left.legend(frameon=False)
    three = proved & (numbers == 3)
    right.plot(LAMS[three], shares[three], "o-")
    right.axhline(1.0, color="0.4", linestyle="--")
    right.annotate(
        "here a cluster breaks", (LAMS[three].max(), 0.97), ha="right", va="top", size=9
    )
    right.set(ylabel="force needed / force available", ylim=(0, 1.05))
    right.set_title("How firmly the weakest of the three clusters holds")
    for ax in (left, right):
        ax.set(xscale="log", xlabel="penalty lam")
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
