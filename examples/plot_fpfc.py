"""Clusters without bias by a concave penalty
==========================================

Eighteen clients in three hidden clusters, thirty rows each.  Fusion of all pairs with a norm
draws clusters to each other as much as it draws clients together; a concave penalty, smoothed
SCAD, lets go of models that are far apart.  Its models within the clusters are those of an
oracle that knows the clusters.  The price is a window: ``a lam`` has to lie between the distances
of local models within clusters (left line) and those between clusters (right line).

Draws number of clusters and error of the coefficients along lambda for both penalties, and what
sampling clients costs in rounds and saves in bytes (where matplotlib is installed)::

    python examples/plot_fpfc.py [--figure fpfc.png]
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

from skcfl import FPFCRegressor, OracleClustersRegressor
from skcfl.datasets import make_clustered_regression
from skcfl.model_selection import lam_path

N_LAMS, MAX_ITER = 16, 500
RATES = (1.0, 0.5, 0.3, 0.1)
NAMES = {"scad": "SCAD", "l2": "norm"}
# The distances of models are drawn in the units of the features.
MODEL = {"alpha": 1e-4, "standardize": False}


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

    paths = {}
    for penalty, name in NAMES.items():
        model = FPFCRegressor(
            penalty=penalty,
            init="local",
            max_iter=MAX_ITER,
            n_iter_no_change=None,
            tol=1e-4,
            refit=False,
            **MODEL,
        )
        with warnings.catch_warnings():
            # Near where it fuses all, the norm needs more rounds than the picture does.
            warnings.simplefilter("ignore", ConvergenceWarning)
            path = lam_path(model, **rows, n_lams=N_LAMS)
        paths[penalty] = path, error(path.params, oracle)
        best = int(paths[penalty][1].argmin())
        print(f"{name}: at best {paths[penalty][1][best]:.2g} from the oracle's models, ", end="")
        print(f"{path.n_clusters[best]} clusters at lam = {path.lams[best]:.2g}")

    auto = FPFCRegressor(**MODEL).fit(**rows)
    print(f"lam='auto': {auto.n_clusters_} clusters at lam = {auto.lam_:.2g}")
    print(f"\n{'participation':>14}{'rounds':>8}{'kilobytes':>11}{'ARI':>6}")
    histories = {}
    for rate in RATES:
        model = FPFCRegressor(
            auto.lam_, participation=rate, max_iter=2000, random_state=0, **MODEL
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
    """Above both paths, number of clusters and error; below the samples of clients."""
    import matplotlib.pyplot as plt

    figure, ((left, right), (residual, bytes_)) = plt.subplots(2, 2, figsize=(9.5, 6))
    for (penalty, name), colour in zip(NAMES.items(), ("C0", "C3"), strict=True):
        found, errors = paths[penalty]
        left.plot(found.lams, found.n_clusters, marker=".", color=colour, label=name)
        right.plot(found.lams, errors, marker=".", color=colour, label=name)
    for ax in (left, right):
        for edge in window:
            ax.axvline(edge / 3.7, color="black", linestyle=":", linewidth=1)
        ax.set(xscale="log", xlabel="lam")
    left.set(yscale="log", ylabel="clusters")
    left.axhline(3, color="black", linewidth=0.5)
    right.set(yscale="log", ylabel="distance to the oracle's models")
    right.legend(frameon=False)
    for rate, history in histories.items():
        label = f"participation {rate:g}"
        sent = np.cumsum(history["floats_up"] + history["floats_down"]) * 8e-3
        residual.plot(history["round"], history["n_clusters"], label=label)
        bytes_.plot(sent, history["n_clusters"], label=label)
    residual.set(xscale="log", xlabel="round", ylabel="clusters", yticks=range(3, 6))
    bytes_.set(xlabel="kilobytes sent", ylabel="clusters", yticks=range(3, 6))
    residual.legend(frameon=False)
    for ax in (left, right, residual, bytes_):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
