"""How sure?
=========

Three kinds of clients, or a continuum that a clusterer cuts in three: which clusters are real?

Two federations look alike to IFCA, which is asked for three clusters. The first has three models;
the second has one for each client, from one normal population. Drawing the rows of each client
again shows the difference: real clusters are found again, and a continuum is cut elsewhere each
time. Prints what reports say, and draws how often clients are together::

    python examples/plot_how_sure.py [--figure how_sure.png]
"""

import argparse

import numpy as np

from skcfl import IFCARegressor
from skcfl.inspection import ClusterStabilityDisplay, cluster_stability

N_RESAMPLES = 10


def federation(crisp, n_clients=30, n_rows=12, random_state=0):
    """Rows of clients of three kinds, or of a continuum."""
    rng = np.random.default_rng(random_state)
    models = (0.8 * rng.standard_normal((3, 5)))[np.arange(n_clients) % 3]
    if not crisp:
        models = 0.6 * rng.standard_normal((n_clients, 5))
    groups = np.repeat(np.arange(n_clients), n_rows)
    X = rng.standard_normal((len(groups), 5))
    return X, (X * models[groups]).sum(axis=1) + 0.6 * rng.standard_normal(len(groups)), groups


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="how_sure.png", help="where to draw")
    path = parser.parse_args().figure
    found = {}
    for name, crisp in (("three kinds of clients", True), ("a continuum", False)):
        X, y, groups = federation(crisp)
        model = IFCARegressor(n_clusters=3, random_state=0).fit(X, y, groups=groups)
        found[name] = cluster_stability(model, X, y, groups, n_resamples=N_RESAMPLES)
        report = model.report(stability=found[name])
        print(f"{name}: stable {found[name].is_stable}, mean ARI {found[name].ari:.2f}")
    print(report)
    draw(found, path)


def draw(found, path):
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for ax, (name, stability) in zip(axes, found.items(), strict=True):
        ClusterStabilityDisplay(stability=stability).plot(ax)
        ax.set_title(f"{name}: {ax.get_title()}", size=10)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
