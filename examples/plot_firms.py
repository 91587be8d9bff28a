"""Eleven firms: how alike are they?
===================================

How much do firms invest, given their market value and their stock of capital?  Grunfeld's table of
eleven large firms and twenty years (1935 to 1954; in the public domain, it comes with skcfl) is
where random coefficients were first used (Swamy, 1970).  Elasticities, that is coefficients of
logarithms, compare a steel maker with a match factory.

The questions, in this order: what is a model worth for years that it has not seen, beside the
tools that people use?  What do the firms share?  How sure is that?

Five years of each firm, drawn at random, are known and fifteen are predicted, in ten draws.
Prints the errors with their standard errors and the table of the model, and saves a picture
(where matplotlib is installed)::

    python examples/plot_firms.py [--figure firms.png]
"""

import argparse
import time

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler, TargetEncoder

from skcfl import FedAvgRegressor, LocalModelsRegressor, PartialPoolingRegressor
from skcfl.datasets import load_grunfeld

KNOWN, DRAWS = 5, 10
# One population of firms, with coefficients that vary together.
POPULATION = {"n_clusters": 1, "covariance": "full"}
PENALTIES = np.logspace(-4, 3, 20)


def main():
    """Compare predictions, fit all years, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="firms.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    data = load_grunfeld()
    X, y, firm = np.log(data.X), np.log(data.y), data.groups
    code = np.unique(firm, return_inverse=True)[1]

    print(
        f"{len(y)} years of {code.max() + 1} firms; {KNOWN} years of each known, {DRAWS} draws.\n"
    )
    print(f"{'':42}{'error':>8}{'s.e.':>7}   (root mean square, logarithms)")
    errors = {}
    for seed in range(DRAWS):
        known = draw_years(code, seed)
        for name, predict in methods(X, y, firm, code).items():
            residual = y[~known] - predict(known, ~known)
            errors.setdefault(name, []).append(np.sqrt(np.mean(residual**2)))
    for name, values in errors.items():
        print(f"{name:42}{np.mean(values):8.3f}{np.std(values, ddof=1) / DRAWS**0.5:7.3f}")

    model = PartialPoolingRegressor(**POPULATION).fit(X, y, groups=firm)
    print("\nAll years; x0 is the logarithm of the value, x1 that of the capital.\n")
    print(f"{model.summary()}\n")
    low, high = model.coef_[:, 1].argmin(), model.coef_[:, 1].argmax()
    print("One per cent more capital goes with this much more investment:")
    for i in (low, high):
        print(f"  {model.groups_[i]:18} {model.coef_[i, 1]:.2f} per cent")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(model, errors, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def draw_years(code, seed):
    """Which rows are known: so many of each firm."""
    rng = np.random.RandomState(seed)
    known = np.zeros(len(code), dtype=bool)
    for i in range(code.max() + 1):
        known[rng.choice(np.flatnonzero(code == i), KNOWN, replace=False)] = True
    return known


def methods(X, y, firm, code):
    """Functions of known and unknown rows that predict the unknown ones."""
    table = np.column_stack([X, code])
    onehot = OneHotEncoder(sparse_output=False)
    columns = {
        "one-hot": make_column_transformer((StandardScaler(), [0, 1]), (onehot, [2])),
        "slopes": make_pipeline(
            make_column_transformer((StandardScaler(), [0, 1]), (onehot, [2])),
            FunctionTransformer(slopes_of_firms),
        ),
        "target": make_column_transformer(
            (StandardScaler(), [0, 1]),
            (TargetEncoder(target_type="continuous"), [2]),
        ),
    }
    trees = HistGradientBoostingRegressor(categorical_features=[2], random_state=0)

    def of_table(model):
        return lambda known, rest: model.fit(table[known], y[known]).predict(table[rest])

    def of_clients(model):
        return lambda known, rest: model.fit(X[known], y[known], groups=firm[known]).predict(
            X[rest], groups=firm[rest]
        )

    return {
        "gradient boosting, firm as category": of_table(trees),
        "one model for all firms (FedAvg)": of_clients(FedAvgRegressor()),
        "target encoding, ridge": of_table(make_pipeline(columns["target"], RidgeCV(PENALTIES))),
        "one-hot columns, ridge": of_table(make_pipeline(columns["one-hot"], RidgeCV(PENALTIES))),
        "one-hot columns and products, ridge": of_table(
            make_pipeline(columns["slopes"], RidgeCV(PENALTIES))
        ),
        "one model for each firm (LocalModels)": of_clients(LocalModelsRegressor()),
        "partial pooling (PartialPooling)": of_clients(PartialPoolingRegressor(**POPULATION)),
    }


def slopes_of_firms(Z):
    """Two numbers, indicators of firms, and the products of both."""
    numbers, firms = Z[:, :2], Z[:, 2:]
    return np.hstack([Z, numbers[:, :1] * firms, numbers[:, 1:] * firms])


def draw(model, errors, path):
    """Left, what each method errs; right, each firm's elasticity of capital."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import RandomEffectsDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=[1, 1])
    heights = np.arange(len(errors))[::-1]
    for height, (name, values) in zip(heights, errors.items(), strict=True):
        ours = "partial" in name
        left.errorbar(
            np.mean(values),
            height,
            xerr=np.std(values, ddof=1) / len(values) ** 0.5,
            fmt="o",
            color="C0" if ours else "0.4",
        )
    left.set_yticks(heights, errors)
    left.set(xlabel="error of unseen years (root mean square of logarithms)")
    left.set_title("Investment of 11 firms, five years of each known", fontsize=10)
    left.set_xlim(0, None)
    RandomEffectsDisplay.from_estimator(model, 1, ax=right)
    right.set(xlabel="elasticity of investment with respect to capital")
    right.set_title("All years: each firm, 95 % intervals (dashed: mean)", fontsize=10)
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
