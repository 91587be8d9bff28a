"""Sensors on a map, a third of them without data
==============================================

GTV minimisation on the graph of neighbours.

Ninety stations measure how the load of a power line follows temperature and wind.  Coast, plain
and mountains behave differently, and their borders are not known. Each station has eight rows, but
a third of them were put up today and have none.  But neighbours on the map are mostly alike.  GTV
minimisation compares the models of neighbours, finds the regions, and gives the new stations their
region's model.

Prints the errors of the coefficients, for stations with rows and without, and draws the graph:
nodes by region found, hollow ones without rows, edges where the regions meet saturated, the true
borders dotted.  The mean of the five nearest stations' models stands beside it::

    python examples/plot_gtv_sensors.py [--figure gtv_sensors.png]
"""

import argparse
import time

import numpy as np
from sklearn.metrics import adjusted_rand_score

from skcfl import FedAvgRegressor, GTVRegressor, LamSearch, LocalModelsRegressor
from skcfl.graphs import knn_graph

N_STATIONS, N_ROWS, NOISE = 90, 8, 0.7
REGIONS = ("coast", "plain", "mountains")
COEF = np.array([[1.5, 0.3, -0.8], [-0.5, 1.2, 0.4], [0.2, -1.4, 1.0]])


def main():
    """Fit, print the errors, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="gtv_sensors.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    places, region, X, y, station = measure()
    truth = COEF[region]
    new = ~np.isin(np.arange(N_STATIONS), station)

    graph = knn_graph(places, n_neighbors=5, scale=1.0)  # weights fall little with distance
    gtv = GTVRegressor(
        graph=graph, nodes=np.arange(N_STATIONS), refit=True, search=LamSearch("bic")
    )
    gtv.fit(X, y, groups=station)
    local = LocalModelsRegressor().fit(X, y, groups=station)
    common = FedAvgRegressor().fit(X, y, groups=station)
    errors = {
        "one model for all": error(np.repeat(common.cluster_coef_, N_STATIONS, axis=0), truth),
        "one model a station": np.full(N_STATIONS, np.nan),
        "mean of five nearest": None,
        "GTV, penalised": error(gtv.fusion_params_[:, :3], truth),
        "GTV, refitted": error(gtv.coef_, truth),
    }
    errors["one model a station"][local.groups_] = error(local.coef_, truth[local.groups_])
    errors["mean of five nearest"] = error(nearest_mean(places, local), truth)

    print(f"{N_STATIONS} stations, {new.sum()} of them without rows; lam = {gtv.lam_:.3g}")
    print(
        f"{gtv.n_clusters_} regions found, of {gtv.cluster_sizes_.tolist()} stations, "
        f"{'proved' if gtv.partition_optimal_ else 'not proved'} to be the solution's"
    )
    print(f"agreement with the true ones (adjusted Rand index): {_rand(region, gtv.labels_)}\n")
    print("Mean squared distance of the coefficients to the truth\n")
    print(f"{'':24}{'with rows':>12}{'without':>12}")
    for name, values in errors.items():
        without = "none" if np.isnan(values[new]).all() else f"{values[new].mean():.3f}"
        print(f"{name:24}{values[~new].mean():12.3f}{without:>12}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(gtv, places, region, errors, new, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def measure(seed=0):
    """Places and regions of the stations, and the rows of those that have any."""
    rng = np.random.RandomState(seed)
    places = rng.uniform(size=(N_STATIONS, 2)) * (1.6, 1.0)
    region = np.where(
        places[:, 0] < shore(places[:, 1]), 0, np.where(places[:, 1] < foot(places[:, 0]), 1, 2)
    )
    station = np.repeat(np.flatnonzero(rng.uniform(size=N_STATIONS) > 1 / 3), N_ROWS)
    X = rng.normal(size=(len(station), 3))
    y = np.einsum("rd,rd->r", X, COEF[region[station]]) + NOISE * rng.normal(size=len(station))
    return places, region, X, y, station


def shore(north):
    """How far to the east the coast reaches."""
    return 0.45 + 0.12 * np.sin(5.0 * north)


def foot(east):
    """How far to the north the plain reaches."""
    return 0.55 + 0.15 * np.cos(3.0 * east)


def nearest_mean(places, local):
    """Mean coefficients of the five nearest stations that have a model."""
    known = places[local.groups_]
    away = np.linalg.norm(places[:, None] - known, axis=2)
    return local.coef_[np.argsort(away, axis=1)[:, :5]].mean(axis=1)


def error(coef, truth):
    """Squared distance of every station's coefficients."""
    return ((coef - truth) ** 2).sum(axis=1)


def _rand(region, labels):
    return f"{adjusted_rand_score(region, labels):.2f}"


def draw(gtv, places, region, errors, new, path):
    """Left the map with the graph, right the errors."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    from skcfl.inspection import EmpiricalGraphDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), width_ratios=[1.7, 1])
    EmpiricalGraphDisplay.from_estimator(gtv, positions=places, ax=left)
    north = np.linspace(-0.02, 1.02, 200)
    border = {"color": "black", "linestyle": ":", "linewidth": 1.2, "zorder": 0}
    left.plot(shore(north), north, **border)
    east = np.linspace(0.3, 1.62, 400)
    inland = east > shore(foot(east))
    left.plot(east[inland], foot(east[inland]), **border)
    for name, place in zip(REGIONS, ((0.15, 1.04), (1.05, -0.09), (1.05, 1.04)), strict=True):
        left.annotate(name, place, ha="center", weight="bold")
    left.update_datalim([(0.0, -0.1), (1.6, 1.1)])
    left.autoscale_view()
    left.set_title("Stations by region found, on the graph of neighbours")
    node = {"linestyle": "", "marker": "o", "markersize": 7}
    handles = {
        "with rows": Line2D([], [], color="C0", markeredgecolor="black", **node),
        "without rows": Line2D([], [], markerfacecolor="white", color="C0", mew=2, **node),
        "neighbours": Line2D([], [], color="0.4"),
        "saturated edges": Line2D([], [], color=(0.84, 0.15, 0.16)),
        "true border": Line2D([], [], color="black", linestyle=":"),
    }
    left.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.01),
        ncols=5,
        columnspacing=1.2,
        frameon=False,
        fontsize=8.5,
    )
    names = list(errors)
    heights = np.arange(len(names))[::-1]
    for shift, mask, colour, label in (
        (0.2, ~new, "0.35", "stations with rows"),
        (-0.2, new, "0.75", "stations without"),
    ):
        means = [np.mean(errors[name][mask]) for name in names]
        right.barh(heights + shift, np.nan_to_num(means), 0.36, color=colour, label=label)
        for y, mean in zip(heights + shift, means, strict=True):
            text = "no model" if np.isnan(mean) else f"{mean:.2f}"
            right.annotate(
                text,
                (np.nan_to_num(mean), y),
                (3, 0),
                va="center",
                size=9,
                textcoords="offset points",
            )
    right.set(yticks=heights, yticklabels=names, xlim=(0, 2.9), xticks=(0, 0.5, 1, 1.5, 2, 2.5))
    right.set(title="Error of the coefficients", xlabel="mean squared distance to the truth")
    right.legend(frameon=False, fontsize=9, loc="center right")
    right.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
