"""Clusters without bias by a concave penalty
==========================================

Eighteen clients in three hidden clusters, thirty rows each.  Fusion of all pairs with a norm
draws clusters to each other as much as it draws clients together; a concave penalty, smoothed
SCAD, lets go of distant models.  Its models within the clusters are those of an
oracle that knows the clusters.  The price is a window: ``a lam`` has to lie between the distances
of local models within clusters and those between clusters.

The norm does better with settings of its own: compared with nearest neighbours only, and with the
clusters refitted, it ends at the oracle's models, too.

Draws number of clusters and error of the coefficients along lambda for all three, and what
sampling clients costs in rounds and in bytes (where matplotlib is installed)::

    python examples/plot_fpfc.py [--figure fpfc.png]
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from skcfl import ConvexClusteredFLRegressor, FPFCRegressor, OracleClustersRegressor, Training
from skcfl.datasets import make_clustered_regression
from skcfl.fusion.solvers import FPFCRounds
from skcfl.model_selection import lam_path

N_LAMS, MAX_ITER = 24, 500
RATES = (1.0, 0.5, 0.3, 0.1)
SCAD = "SCAD (FPFC), all pairs"
# The distances of models are drawn in the units of the features.
MODEL = {"alpha": 1e-4, "standardize": False}
# Least distance to the oracle's models that is drawn: where clusters are refitted it is rounding.
FLOOR = 1e-5


def main():
    """Run both paths and the samples of clients, print the figures, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="fpfc.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    data = make_clustered_regression(
        n_clients=18, n_features=5, n_samples=30, noise=0.5, random_state=0
    )
    rows = {"X": data.X, "y": data.y, "groups": data.groups}
    oracle = OracleClustersRegressor(data.labels, **MODEL).fit(**rows).params_

    rounds = FPFCRounds(n_iter_no_change=None)
    how = {"init": "local", "max_iter": MAX_ITER, "solver": rounds, "tol": 1e-4}
    norm = {"penalty": "l2", **MODEL}
    methods = {
        SCAD: FPFCRegressor(refit=False, **how, **MODEL),
        "norm, all pairs": ConvexClusteredFLRegressor(graph="complete", refit=False, **norm),
        "norm, neighbours, refitted": ConvexClusteredFLRegressor(graph="knn", refit=True, **norm),
    }
    paths = {}
    for name, model in methods.items():
        with warnings.catch_warnings():
            # Where clusters are about to fuse, more rounds are needed than the picture does.
            warnings.simplefilter("ignore", ConvergenceWarning)
            path = lam_path(model, **rows, n_lams=N_LAMS)
        paths[name] = path, error(path.params, oracle)
        best = int(paths[name][1].argmin())
        print(f"{name}: at best {paths[name][1][best]:.2g} from the oracle's models, ", end="")
        print(f"{path.n_clusters[best]} clusters at lam = {path.lams[best]:.2g}")

    auto = FPFCRegressor(**MODEL).fit(**rows)
    print(f"lam='auto': {auto.n_clusters_} clusters at lam = {auto.lam_:.2g}")
    print(f"\n{'participation':>14}{'rounds':>8}{'kilobytes':>11}{'ARI':>6}")
    histories = {}
    for rate in RATES:
        model = FPFCRegressor(
            auto.lam_,
            training=Training(participation=rate),
            max_iter=2000,
            random_state=0,
            **MODEL,
        )
        model.fit(**rows)
        histories[rate] = model.history_
        sent = (model.history_["floats_up"] + model.history_["floats_down"]).sum() * 8e-3
        ari = adjusted_rand_score(data.labels, model.labels_)
        print(f"{rate:14.1f}{model.n_iter_:8d}{sent:11.0f}{ari:6.2f}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(paths, distances(data), histories, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def error(params, truth):
    """Root mean square distance of the clients' models to the oracle's, at each lam."""
    return np.sqrt(((params - truth) ** 2).sum(axis=-1).mean(axis=-1))


def distances(data):
    """Largest distance of local models within clusters, least one between."""
    model = FPFCRegressor(lam=0.0, **MODEL).fit(data.X, data.y, groups=data.groups)
    D = np.linalg.norm(model.params_[:, None] - model.params_, axis=2)
    same = data.labels[:, None] == data.labels
    return D[same].max(), D[~same].min()


def draw(paths, window, histories, path):
    """Above the paths, number of clusters and error; below the samples of clients."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, ((left, right), (rounds, kilobytes)) = plt.subplots(2, 2, figsize=(10.5, 7.6))
    for (name, (found, errors)), style in zip(paths.items(), ("o-", "s-", "^-"), strict=True):
        # Graphs weigh lam differently: it is drawn relative to where one cluster is left.
        fused = found.lams[np.flatnonzero(found.n_clusters == 1)[0]]
        shown = found.lams <= fused
        for ax, values in ((left, found.n_clusters), (right, errors)):
            values = np.maximum(values[shown], FLOOR if ax is right else 1)
            ax.plot(found.lams[shown] / fused, values, style, ms=4, label=name)
        if name == SCAD:
            edges = np.array(window) / 3.7 / fused
    for ax in (left, right):
        ax.axvspan(*edges, color="0.9", zorder=0, label="window of SCAD")
        ax.set(xscale="log", yscale="log", xlim=(0.01, 1.2), xticks=(0.01, 0.1, 1))
        ax.set_xticklabels(("1 %", "10 %", "100 %"))
        ax.set_xlabel("lam, as a share of the least with one cluster")
    numbers = (1, 2, 3, 6, 9, 18)
    left.axhline(3, color="black", linewidth=0.8, linestyle=":", label="hidden clusters")
    left.set(yticks=numbers, yticklabels=numbers, ylim=(0.9, 20))
    left.yaxis.set_minor_formatter(NullFormatter())
    left.set(title="Clusters found", ylabel="number of clusters")
    right.set(title="Distance to the models of an oracle", ylabel="root mean square distance")
    right.annotate("equal, but for rounding", (0.011, 1.3 * FLOOR), size=9)
    handles, names = left.get_legend_handles_labels()
    figure.legend(
        handles, names, loc="upper center", bbox_to_anchor=(0.5, 0.95), ncols=5, frameon=False
    )
    markers = "o-", "s--", "^-.", "D:"
    for (rate, history), marker in zip(histories.items(), markers, strict=False):
        label = f"{rate:.0%} of clients"
        sent = np.cumsum(history["floats_up"] + history["floats_down"]) * 8e-3
        rounds.plot(history["round"], history["residual"], marker, label=label)
        kilobytes.plot(sent, history["residual"], marker, label=label)
    counts = (1, 3, 10, 30, 100, 300)
    rounds.set(xscale="log", xticks=counts, xticklabels=counts, xlabel="communication rounds")
    rounds.set_title("Sampling clients: by round")
    kilobytes.set(xlabel="kilobytes sent, both ways", xlim=(0, None))
    kilobytes.set_title("Sampling clients: by what is sent")
    for ax in (rounds, kilobytes):
        ax.set(yscale="log", ylabel="stationarity residual", ylim=(1e-3, 0.3))
    rounds.legend(frameon=False, fontsize=9, loc="lower left")
    for ax in (left, right, rounds, kilobytes):
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle("18 clients in 3 hidden clusters, 30 rows each, noise 0.5", size=12)
    figure.tight_layout(rect=(0, 0, 1, 0.94))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
