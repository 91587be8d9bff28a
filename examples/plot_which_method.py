"""Which method, for which truth?
==============================

No difference, differences by degrees, or clusters: which method is right in each case?

Three generated tables have thirty clients with twelve rows each. In the first, all clients share
one model. In the second, each client has coefficients of its own, drawn from one normal
population. In the third, there are three models, and nothing says which client has which. Each
method gets the rows and the ids of the clients, and nothing else.

Prints and draws how far the coefficients are from the true ones::

    python examples/plot_which_method.py [--figure which_method.png]
"""

import argparse

import numpy as np

import skcfl

N_CLIENTS, N_ROWS, N_FEATURES = 30, 12, 3
DRAWS = 3
TRUTHS = ("no difference", "differences by degrees", "three clusters")
METHODS = ("FedAvg", "LocalModels", "IFCA", "ConvexClusteredFL", "PartialPooling")


def main():
    """Fit each method to each truth, print the errors, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="which_method.png", help="where to save the picture")
    path = parser.parse_args().figure
    errors = {truth: {name: [] for name in METHODS} for truth in TRUTHS}
    for truth in TRUTHS:
        for seed in range(DRAWS):
            X, y, groups, models = draw_table(truth, seed)
            for name in METHODS:
                estimator = getattr(skcfl, f"{name}Regressor")()
                if "random_state" in estimator.get_params():
                    estimator.set_params(random_state=0)
                found = estimator.fit(X, y, groups=groups).coef_
                errors[truth][name].append(np.sqrt(np.mean((found - models) ** 2)))
    print(f"{'error of coefficients':20}" + "".join(f"{truth:>24}" for truth in TRUTHS))
    for name in METHODS:
        means = [np.mean(errors[truth][name]) for truth in TRUTHS]
        print(f"{name:20}" + "".join(f"{mean:24.3f}" for mean in means))

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(errors, path)
        print(f"Picture saved to {path}.")


def draw_table(truth, seed):
    """Rows, targets, clients and the true coefficients of each client."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=N_FEATURES) * np.ones((N_CLIENTS, 1))
    if truth == "differences by degrees":
        models += 0.5 * rng.normal(size=models.shape)
    elif truth == "three clusters":
        models = rng.normal(size=(3, N_FEATURES))[np.arange(N_CLIENTS) % 3]
    groups = np.repeat(np.arange(N_CLIENTS), N_ROWS)
    X = rng.normal(size=(len(groups), N_FEATURES))
    return X, (X * models[groups]).sum(axis=1) + rng.normal(size=len(groups)), groups, models


def draw(errors, path):
    """One panel for each truth, one bar for each method."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")
    figure, axes = plt.subplots(1, len(errors), figsize=(11, 3.4), sharey=True)
    places = np.arange(len(METHODS))[::-1]
    for ax, (truth, by_method) in zip(axes, errors.items(), strict=True):
        means = np.array([np.mean(by_method[name]) for name in METHODS])
        spreads = [np.std(by_method[name]) for name in METHODS]
        best = means <= 1.1 * means.min()
        ax.barh(places, means, xerr=spreads, height=0.6, color=np.where(best, "C0", "0.7"))
        ax.set(title=truth, xlabel="error of the coefficients")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(places, METHODS)
    figure.suptitle(
        f"{N_CLIENTS} clients with {N_ROWS} rows (less is better; dark: within 10 % of the best)"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
