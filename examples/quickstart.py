"""One model for all, one for each client, or one for each cluster?
================================================================

The digits of scikit-learn, dealt to twenty clients.  Each client holds its paper at one of
four angles, and nothing says which: a 6 of one client is a 9 of another, so one model for all
is wrong, and ninety images are few for a network per client.  IFCA and CLoVE find the clients with
the same angle and train a network for each angle, from nothing but losses and models. IFCA looks
for the network that serves a client best, CLoVE for clients with similar losses under all
networks.

Prints a table and saves a picture (where matplotlib is installed)::

    python examples/quickstart.py [--figure quickstart.png]
"""

import argparse
import time

import numpy as np
from sklearn.metrics import adjusted_rand_score
from sklearn.model_selection import train_test_split

from skcfl import CLoVEClassifier, FedAvgClassifier, IFCAClassifier, LocalModelsClassifier
from skcfl.datasets import make_rotated_digits
from skcfl.model_selection import per_client_scores

NETWORK = {"hidden_layer_sizes": (64,), "standardize": False, "random_state": 0}  # pixels
ROUNDS = (1, 2, 3, 5, 8, 12, 20, 30, 50)


def main():
    """Fit three ways, print the table, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="quickstart.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()

    data = make_rotated_digits(n_rotations=4, clients_per_rotation=5, random_state=0)
    split = train_test_split(
        data.X, data.y, data.groups, test_size=0.3, stratify=data.groups, random_state=0
    )
    train, test = split[::2], split[1::2]
    models = {
        "one network for all (FedAvg)": FedAvgClassifier(**NETWORK),
        "one network per client": LocalModelsClassifier(**NETWORK),
        "one per cluster (IFCA)": IFCAClassifier(n_clusters=4, **NETWORK),
        "one per cluster (CLoVE)": CLoVEClassifier(n_clusters=4, **NETWORK),
    }
    print(
        f"{len(data.X)} images of {len(data.labels)} clients at {data.labels.max() + 1} angles; "
        f"{len(train[0])} to train, {len(test[0])} to test.\n"
    )
    print(f"{'':30}{'accuracy by client':^21}{'clusters':>9}{'ARI':>6}{'rounds':>8}{'MB sent':>9}")
    print(f"{'':30}{'mean':>10}{'worst':>11}")
    for name, model in models.items():
        fit(model, train)
        by_client = accuracies(model, test)
        sent = (model.floats_up_ + model.floats_down_) * model.params_.itemsize / 1e6
        print(
            f"{name:30}{by_client.mean():10.3f}{by_client.min():11.3f}{model.n_clusters_:9d}"
            f"{adjusted_rand_score(data.labels, model.labels_):6.2f}{model.n_iter_:8d}{sent:9.1f}"
        )
    clove = models["one per cluster (CLoVE)"]
    print("\nWho shares a network:")
    for k in range(clove.n_clusters_):
        print(f"  cluster {k}: {', '.join(clove.groups_[clove.labels_ == k])}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(models, train, test, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def fit(model, rows):
    """Fit on rows (X, y, groups)."""
    X, y, groups = rows
    return model.fit(X, y, groups=groups)


def accuracies(model, rows):
    """Accuracy of every client on its own rows."""
    X, y, groups = rows
    return per_client_scores(model, X, y, groups=groups).scores


def by_round(model, train, test):
    """Mean accuracy of the clients after so many rounds."""
    curve = []
    for rounds in ROUNDS:
        model.set_params(max_iter=rounds, tol=0)
        curve.append(accuracies(fit(model, train), test).mean())
    return curve


def draw(models, train, test, path):
    """Accuracy by round, and the mean image of each digit in each cluster found."""
    import matplotlib.pyplot as plt
    from sklearn.base import clone

    plt.style.use("petroff10")  # safe for colour-blind readers
    fed, local, _, clove = models.values()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=[1, 1.15])
    for model, label, line in (
        (clove, "one model per cluster (CLoVE)", "o-C0"),
        (fed, "one model for all (FedAvg)", "o-C3"),
    ):
        left.plot(ROUNDS, by_round(clone(model), train, test), line, label=label)
    level = accuracies(local, test).mean()
    left.axhline(level, color="C7", linestyle="--", label="one model per client")
    left.set(xlabel="round", ylabel="mean accuracy of the clients", ylim=(0, 1))
    left.legend(loc="lower right", frameon=False)
    left.spines[["top", "right"]].set_visible(False)

    X, y, groups = train
    cluster = clove.sample_labels(groups)
    tile = 8 + 2  # an image and its margin
    sheet = np.zeros((clove.n_clusters_ * tile, 10 * tile))
    for k in range(clove.n_clusters_):
        for digit in range(10):
            image = X[(cluster == k) & (y == digit)].mean(axis=0).reshape(8, 8)
            sheet[k * tile : (k + 1) * tile, digit * tile : (digit + 1) * tile] = np.pad(image, 1)
    right.imshow(sheet, cmap="gray_r")
    right.set_xticks(np.arange(10) * tile + tile / 2, range(10))
    right.set_yticks(
        np.arange(clove.n_clusters_) * tile + tile / 2,
        [f"cluster {k}\n{size} clients" for k, size in enumerate(clove.cluster_sizes_)],
    )
    right.tick_params(length=0)
    right.set_title("mean image of each digit, by cluster found", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
