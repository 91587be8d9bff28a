"""False clients
=============

One client of forty sends nonsense: what becomes of the models of the others?

Forty clients belong to four clusters. The features of one of them are in other units, a million
times too large. The mean of the clients' messages, which federated averaging takes, then ruins
the models of its clusters; the geometric median hardly changes. The fit also says which client it
distrusts.

Prints the R2 of new rows of the honest clients, and draws it with the suspicion of each client::

    python examples/plot_false_clients.py [--figure false_clients.png]
"""

import argparse
import warnings

import numpy as np

from skcfl import IFCARegressor
from skcfl.datasets import corrupt, make_clustered_regression
from skcfl.exceptions import UnitsWarning
from skcfl.inspection import SuspicionDisplay

OPERATORS = ("mean", "geometric_median", "median", "trimmed_mean")


def main():
    """Fit with each operator, with and without the false client, and save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="false_clients.png", help="where to save the picture")
    path = parser.parse_args().figure
    data = make_clustered_regression(
        n_clients=40, n_clusters=4, n_samples=90, noise=1.0, random_state=0
    )
    # Every third row of a client is kept for the test.
    test = np.arange(len(data.y)) % 3 == 0
    train = data.X[~test], data.y[~test], data.groups[~test]
    false = corrupt(*train, attack="scale_X", fraction=1 / 40, random_state=0)
    honest = test & ~np.isin(data.groups, false.false)
    scores, robust = {}, None
    for name in OPERATORS:
        scores[name] = []
        for rows in (train, (false.X, false.y, false.groups)):
            model = IFCARegressor(n_clusters=4, aggregation=name, random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UnitsWarning)  # it names the client
                model.fit(rows[0], rows[1], groups=rows[2])
            scores[name].append(
                model.score(data.X[honest], data.y[honest], groups=data.groups[honest])
            )
        robust = model if name == "geometric_median" else robust
        print(f"{name:18} all honest {scores[name][0]:.3f}   one false {scores[name][1]:.3f}")
    print(f"distrusted: {robust.groups_[robust.suspicion_ > 1].tolist()}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(scores, robust, path)
        print(f"Picture saved to {path}.")


def draw(scores, robust, path):
    """Left, scores with and without the false client; right, the suspicion of each client."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    places = np.arange(len(scores))[::-1]
    for shift, column, label, colour in (
        (0.19, 0, "all clients honest", "0.7"),
        (-0.19, 1, "one of 40 false", "C0"),
    ):
        values = [both[column] for both in scores.values()]
        left.barh(places + shift, values, 0.36, label=label, color=colour)
        for place, value in zip(places + shift, values, strict=True):
            left.annotate(f" {value:.2f}", (max(value, 0.0), place), va="center", size=8)
    left.set_yticks(places, [name.replace("_", " ") for name in scores])
    left.set(xlabel="R2 of new rows of honest clients", title="What the server makes of messages")
    left.margins(x=0.12)
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)
    SuspicionDisplay.from_estimator(robust, ax=right)
    right.set_title("Geometric median: above 1 is left out")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
