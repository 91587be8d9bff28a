"""A score for every client
=========================

The mean score rose: which clients gained, and which lost?

Thirty clients of unlike sizes belong to three clusters. Rows are held out inside the clients,
which keeps every client in training. The right number of clusters is where the score stops
rising, and the scores of single clients show which clients one model for all serves badly.

Prints the scores by number of clusters, and draws them beside the scores of the clients::

    python examples/plot_per_client.py [--figure per_client.png]
"""

import argparse

import numpy as np
from sklearn.metrics import mean_absolute_error
from sklearn.model_selection import cross_validate

from skcfl import FedAvgRegressor, IFCARegressor
from skcfl.datasets import make_clustered_regression
from skcfl.model_selection import ClientKFold, per_client_scores

NUMBERS, N_FOLDS = (1, 2, 3, 4, 5, 6), 5


def main():
    """Score each number of clusters by folds inside the clients, and each client."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="per_client.png", help="where to save the picture")
    path = parser.parse_args().figure
    data = make_clustered_regression(
        n_clients=30, n_clusters=3, n_samples=(15, 60), noise=1.0, random_state=0
    )
    frame = np.column_stack([data.X, np.unique(data.groups, return_inverse=True)[1]])
    folds = ClientKFold(N_FOLDS, group_col=-1, random_state=0)
    errors = {}
    for number in NUMBERS:
        model = IFCARegressor(n_clusters=number, group_col=-1, random_state=0)
        result = cross_validate(model, frame, data.y, cv=folds, scoring="neg_mean_absolute_error")
        errors[number] = -result["test_score"]
        print(f"{number} clusters: mean absolute error {errors[number].mean():.2f}")

    train, test = next(ClientKFold(3, random_state=0).split(data.X, data.y, data.groups))
    clients = {}
    for model in (FedAvgRegressor(), IFCARegressor(n_clusters=3, random_state=0)):
        fitted = model.fit(data.X[train], data.y[train], groups=data.groups[train])
        clients[type(model).__name__] = per_client_scores(
            fitted, data.X[test], data.y[test], data.groups[test], scoring=mean_absolute_error
        ).scores

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(errors, clients, path)
        print(f"Picture saved to {path}.")


def draw(errors, clients, path):
    """Left, the error by number of clusters; right, the error of each client."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    means = np.array([values.mean() for values in errors.values()])
    spreads = [values.std(ddof=1) / N_FOLDS**0.5 for values in errors.values()]
    left.errorbar(list(errors), means, yerr=spreads, fmt="o-", capsize=3)
    left.set(
        xlabel="number of clusters", ylabel="mean absolute error of held-out rows", ylim=(0, None)
    )
    left.set_title("Three clusters are enough (bars: standard errors)")
    order = np.argsort(clients["FedAvgRegressor"])
    names = {"FedAvgRegressor": "one model for all", "IFCARegressor": "three clusters"}
    for (name, label), marker in zip(names.items(), "os", strict=True):
        right.plot(clients[name][order], marker, ms=5, label=label)
    right.set(xlabel="clients, by the error of one model for all", ylabel="mean absolute error")
    right.set(title="Who gains", ylim=(0, None))
    right.legend(frameon=False)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
