"""Paths of convex clustering: which graph, and why refit
======================================================

Twenty-four clients in three hidden clusters, thirty rows each.  With a penalty on all pairs,
models of unlike clients pull at each other as well: the clusters come together before each of
them is one.  With a penalty on the pairs of nearest neighbours they are found cleanly.  And
whatever the graph, the penalty shrinks; refitting each cluster on its clients' pooled rows takes
that away.

Draws which clients share a model along lam, and the error of the coefficients with and without
refit, against one model per client and an oracle that knows the clusters (where matplotlib is
installed)::

    python examples/plot_fusion_path.py [--figure fusion_path.png]
"""

import argparse
import time

import numpy as np

from skcfl import (
    ConvexClusteredFLRegressor,
    LocalModelsRegressor,
    OracleClustersRegressor,
)
from skcfl.datasets import make_clustered_regression
from skcfl.model_selection import lam_path

GRAPHS = {"complete": "all pairs", "knn": "nearest neighbours"}
N_LAMS = 40


def main():
    """Compute both paths, print their errors, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="fusion_path.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    data = make_clustered_regression(
        n_clients=24, n_clusters=3, n_features=5, n_samples=30, noise=1.0, random_state=0
    )
    truth = data.coef[data.labels]
    rows = {"X": data.X, "y": data.y, "groups": data.groups}

    paths, errors = {}, {}
    for graph in GRAPHS:
        path = lam_path(ConvexClusteredFLRegressor(graph=graph, refit=True), **rows, n_lams=N_LAMS)
        paths[graph] = path
        errors[graph] = error(path.fusion_params, truth)
        errors[graph, "refit"] = error(path.params, truth)
    levels = {
        "one model per client": LocalModelsRegressor().fit(**rows),
        "oracle": OracleClustersRegressor(data.labels).fit(**rows),
    }
    levels = {name: float(error(model.params_, truth)) for name, model in levels.items()}

    print("Mean squared distance of the clients' coefficients to the truth\n")
    for name, value in levels.items():
        print(f"{name:36}{value:8.3f}")
    for graph, name in GRAPHS.items():
        for key, label in ((graph, name), ((graph, "refit"), f"{name}, refitted")):
            best = int(np.argmin(errors[key]))
            print(f"{label + ', best lam':36}{errors[key][best]:8.3f}", end="")
            print(f"   ({paths[graph].n_clusters[best]} models at lam = ", end="")
            print(f"{paths[graph].lams[best]:.3g})")
        auto = ConvexClusteredFLRegressor(graph=graph, refit=True).fit(**rows)
        print(f"{name + ', refitted, lam=auto':36}{error(auto.params_, truth):8.3f}", end="")
        print(f"   ({auto.n_clusters_} models at lam = {auto.lam_:.3g})")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(paths, errors, levels, data.labels, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def error(params, truth):
    """Mean squared distance of the coefficients, without the intercept, at each lam."""
    return ((params[..., : truth.shape[1]] - truth) ** 2).sum(axis=-1).mean(axis=-1)


def draw(paths, errors, levels, labels, path):
    """Above the clients that share a model, below the errors; one column a graph."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import ClusterPathDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, axes = plt.subplots(
        2, 2, figsize=(9.5, 6), sharex="col", sharey="row", height_ratios=[1.2, 1]
    )
    for (graph, name), (top, bottom) in zip(GRAPHS.items(), axes.T, strict=True):
        lams = paths[graph].lams
        ClusterPathDisplay.from_path(paths[graph], partition=labels, kind="tree", ax=top)
        top.set(title=name, xlabel="", yticks=[])
        top.set_ylabel("clients, by hidden cluster" if graph == "complete" else "")
        bottom.plot(lams, errors[graph], color="C0", label="penalised")
        bottom.plot(lams, errors[graph, "refit"], color="C1", linestyle="-.", label="refitted")
        for (level, value), line in zip(levels.items(), ("--", ":"), strict=True):
            bottom.axhline(value, color="black", linestyle=line, linewidth=1, label=level)
        bottom.set(yscale="log", xlabel="penalty lam")
        bottom.set_ylabel("error of the coefficients" if graph == "complete" else "")
    axes[1, 1].legend(frameon=False, fontsize=9)
    figure.suptitle(
        "24 clients in three hidden clusters: which clients share a model along lam, and the error"
    )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
