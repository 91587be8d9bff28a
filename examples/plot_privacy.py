"""What privacy costs
==================

How much worse do clients predict if a server may know sums with noise only?

Clients have coefficients on a continuum, ten rows each. With a small epsilon the noise hides each
client well, and what clients have in common with it; the noise does not depend on the number of
clients, so many of them pay nearly nothing.

Prints R2 of test rows by number of clients and epsilon, and draws it between local models, which
release nothing, and the fit of all rows::

    python examples/plot_privacy.py [--figure privacy.png]
"""

import argparse
import warnings

import numpy as np

from skcfl import LocalModelsRegressor, PartialPoolingRegressor
from skcfl.exceptions import PrivacyWarning
from skcfl.federation import InProcessFederation

NUMBERS, EPSILONS = (50, 200, 800), (0.5, 1.0, 2.0, 4.0, 8.0)
BOUNDS = {"features": (-2, 2), "target": (-3, 3)}


def make(n_clients, seed=0):
    """Rows of clients on a continuum, to fit and to judge."""
    rng = np.random.default_rng(seed)
    theta = [0.8, -0.5, 0.3, 0.0] + [0.5, 0.4, 0.3, 0.3] * rng.standard_normal((n_clients, 4))
    ids = np.repeat(np.arange(n_clients), 10)
    parts = []
    for _ in range(2):
        X = rng.standard_normal((len(ids), 3))
        y = theta[ids, 3] + (X * theta[ids, :3]).sum(axis=1) + 0.7 * rng.standard_normal(len(ids))
        parts.append((X, y, ids))
    return parts


def main():
    """Fit at each number of clients and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="privacy.png", help="where to save the picture")
    path = parser.parse_args().figure
    scores, ends = {}, {}
    for n_clients in NUMBERS:
        (X, y, ids), (X_test, y_test, _) = make(n_clients)
        federation, model = InProcessFederation(X, y, ids), PartialPoolingRegressor()
        scores[n_clients] = []
        for epsilon in EPSILONS:
            private = federation.private(epsilon, bounds=BOUNDS, random_state=0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", PrivacyWarning)
                model.fit_federation(private)
            # Each client finds its model from its rows, which never leave it.
            at_home = model.adapt(X, y, groups=ids)
            scores[n_clients].append(at_home.score(X_test, y_test, groups=ids))
            drowned = any(one.category is PrivacyWarning for one in caught)
            print(
                f"{n_clients} clients, epsilon {epsilon:g}: R2 {scores[n_clients][-1]:.3f}"
                f"{' (nothing was released)' if drowned else ''}"
            )
        ends[n_clients] = [
            one.fit(X, y, groups=ids).score(X_test, y_test, groups=ids)
            for one in (LocalModelsRegressor(), PartialPoolingRegressor())
        ]
    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(scores, ends, path)


def draw(scores, ends, path):
    """One panel for each number of clients, saved to a file."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(NUMBERS), figsize=(9, 3), sharey=True)
    for ax, n_clients in zip(axes, NUMBERS, strict=True):
        local, pooled = ends[n_clients]
        ax.axhline(pooled, color="0.2", linestyle="--", label="all rows")
        ax.axhline(local, color="0.6", linestyle=":", label="local models")
        ax.plot(EPSILONS, scores[n_clients], "o-", label="private")
        ax.set_xscale("log", base=2)
        ax.set(title=f"{n_clients} clients", xlabel="epsilon")
    axes[0].set_ylabel("R2 of test rows")
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"Saved {path}.")


if __name__ == "__main__":
    main()
