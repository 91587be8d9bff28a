"""Convex clustering of points
===========================

Every point has a centre of its own, and a penalty on the distances between the centres of
neighbours. As lam grows the centres move towards each other and meet, and those that have met are
a cluster. Three round blobs: ``lam="auto"`` finds them. Two moons: no model of a cluster by its
mean can separate them, but the path can. The partition that holds over the widest range of lam, on
a logarithmic scale, is the two moons.

Prints how well both agree with the truth, and draws the paths (where matplotlib is installed)::

    python examples/plot_points.py [--figure points.png]
"""

import argparse
import time

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score

from skcfl import ConvexClustering
from skcfl.model_selection import lam_path

N_LAMS = 40


def main():
    """Fit both, print what was found, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="points.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    blobs = make_blobs(150, centers=[[0, 0], [5, 1], [2, 5]], cluster_std=0.9, random_state=0)
    moons = make_moons(150, noise=0.06, random_state=0)

    print("Agreement with the true clusters (adjusted Rand index)\n")
    auto = ConvexClustering().fit(blobs[0])
    report("blobs, lam=auto", auto, blobs[1])
    path = lam_path(ConvexClustering(), moons[0], n_lams=N_LAMS)
    chosen = ConvexClustering(lam=widest(path)).fit(moons[0])
    report("moons, widest range", chosen, moons[1])
    report("moons, lam=auto", ConvexClustering().fit(moons[0]), moons[1])
    means = KMeans(2, n_init=10, random_state=0).fit_predict(moons[0])
    print(f"{'moons, 2-means':22}{adjusted_rand_score(moons[1], means):6.2f}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        both = lam_path(auto, blobs[0], n_lams=N_LAMS), path
        draw(both, (auto, chosen), (blobs[0], moons[0]), args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def widest(path):
    """The middle of the widest range of lam with one partition into several clusters."""
    changes = np.any(path.labels[1:] != path.labels[:-1], axis=1)
    runs = np.split(np.arange(len(path.lams)), np.flatnonzero(changes) + 1)
    several = [run for run in runs if 1 < path.n_clusters[run[0]] < path.labels.shape[1]]
    run = max(several, key=len)
    return float(path.lams[run[len(run) // 2]])


def report(name, model, truth):
    """Print a line about a fit."""
    proved = "proved" if model.partition_optimal_ else "not proved"
    print(f"{name:22}{adjusted_rand_score(truth, model.labels_):6.2f}", end="")
    print(f"   ({model.n_clusters_} clusters at lam = {model.lam_:.3g}, {proved})")


def draw(paths, models, points, figure_path):
    """Above the paths of the centres, below the points that share one; one column a data set."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import ClusterPathDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, axes = plt.subplots(2, 2, figsize=(9.5, 7), height_ratios=[1.3, 1])
    titles = 'Three blobs, lam="auto"', "Two moons, the widest range of lam"
    for path, model, X, title, (top, bottom) in zip(
        paths, models, points, titles, axes.T, strict=True
    ):
        options = {"partition": model.labels_, "lam": model.lam_}
        ClusterPathDisplay.from_path(path, ax=top, **options)
        ClusterPathDisplay.from_path(path, ax=bottom, kind="tree", **options)
        top.scatter(*X.T, s=4, color="black", alpha=0.3, zorder=0)
        top.set(title=title, xlabel="feature 1", ylabel="feature 2")
        bottom.set(
            yticks=[], ylabel="points", title="which points share a centre (dotted: the lam taken)"
        )
        bottom.title.set_size(10)
        for ax in (top, bottom):
            ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(figure_path, dpi=110)


if __name__ == "__main__":
    main()
