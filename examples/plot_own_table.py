"""Your own table
==============

A CSV file of your own, from the file to a picture: are one model for all clients, one model for
each client, or partial pooling better, and in what do clients differ?

Name the columns of the clients and of the target; all other columns are features. A column of
text becomes a feature for each category but the first; a missing number is the mean of its
column, and another feature says that it was missing. A quarter of the rows of each client is held
out, and the three ways are judged by these rows. Without a file it reads Grunfeld's table of
eleven firms, which comes with skcfl.

Prints the scores, fits partial pooling to all rows, prints its report, and saves a picture (needs
pandas, and matplotlib for the picture)::

    python examples/plot_own_table.py table.csv --client hospital --target days --figure own.png
"""

import argparse
import sys

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

import skcfl
from skcfl.datasets import load_grunfeld
from skcfl.model_selection import ClientKFold

# What a fit takes of one column.
MOST_LEVELS = 255


def main():
    """Read the table, judge three ways, print the report, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", nargs="?", help="a CSV file; without one, Grunfeld's firms")
    parser.add_argument("--client", default="firm", help="the column with the id of the client")
    parser.add_argument("--target", default="invest", help="the column to predict")
    parser.add_argument("--figure", default="own_table.png", help="where to save the picture")
    args = parser.parse_args()
    X, y, groups = read(args.table, args.client, args.target)
    kind = "Classifier" if y.dtype == object or y.nunique() == 2 else "Regressor"
    score = "accuracy" if kind == "Classifier" else "R2"
    print(f"{len(y)} rows of {groups.nunique()} clients, {X.shape[1]} features: {kind.lower()}\n")

    train, test = split(X, y, groups)
    ways = {
        "one model for all": getattr(skcfl, f"FedAvg{kind}")(),
        "one model per client": getattr(skcfl, f"LocalModels{kind}")(),
        "partial pooling": getattr(skcfl, f"PartialPooling{kind}")(random_state=0),
    }
    scores = {}
    for name, model in ways.items():
        model.fit(X.iloc[train], y.iloc[train], groups=groups.iloc[train])
        scores[name] = model.score(X.iloc[test], y.iloc[test], groups=groups.iloc[test])
        print(f"{name:22} {score} of held-out rows {scores[name]:.3f}")
    final = ways["partial pooling"].fit(X, y, groups=groups)
    print(f"\nPartial pooling on all rows:\n\n{final.report()}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("No picture: matplotlib is not installed.")
    else:
        draw(scores, score, final, args.figure)
        print(f"Picture saved to {args.figure}.")


def split(X, y, groups):
    """Three quarters of the rows of each client, and the others; single rows are trained on."""
    several = np.flatnonzero(groups.map(groups.value_counts()) > 1)
    if not len(several):
        sys.exit("Each client has one row: there is none to hold out.")
    some = groups.iloc[several]
    if len(several) >= 4 * some.nunique():
        test = train_test_split(several, test_size=0.25, stratify=some, random_state=0)[1]
    else:  # too few to take a quarter of each
        folds = ClientKFold(4, random_state=0).split(X.iloc[several], y.iloc[several], some)
        test = several[next(folds)[1]]
    return np.setdiff1d(np.arange(len(y)), test), test


def read(path, client, target):
    """Features, target and clients of a CSV file, or of Grunfeld's firms."""
    if path is None:
        data = load_grunfeld(as_frame=True)
        # Elasticities, coefficients of logarithms, compare large firms with small ones.
        numbers = data.X.drop(columns="firm").assign(invest=data.y)
        frame = np.log(numbers).assign(firm=data.groups)
    else:
        frame = pd.read_csv(path)
    missing = {client, target} - set(frame.columns)
    if missing:
        raise SystemExit(f"no column {sorted(missing)}; the columns are {list(frame.columns)}")
    known = frame[[client, target]].notna().all(axis=1)
    if not known.all():
        print(f"{(~known).sum()} rows without a client or a target are left out.")
    frame = frame[known].dropna(axis=1, how="all")
    features = frame.drop(columns=[client, target])
    texts = features.select_dtypes(exclude="number").nunique()
    names = list(texts.index[texts > MOST_LEVELS])
    if names:
        print(f"Left out, as they have more than {MOST_LEVELS} texts: {', '.join(names)}.")
    return features.drop(columns=names), frame[target], frame[client]


def draw(scores, score, model, path):
    """Left, the score of each way on held-out rows; right, the effect that differs most."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import RandomEffectsDisplay

    plt.style.use("petroff10")
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    places = np.arange(len(scores))
    left.barh(places, scores.values(), color=["0.6", "0.6", "C0"], height=0.6)
    for place, value in zip(places, scores.values(), strict=True):
        left.annotate(f" {value:.3f}", (max(value, 0.0), place), va="center")
    left.set_yticks(places, scores)
    left.set(
        xlabel=f"{score} of held-out rows (more is better)",
        title="How well new rows are predicted",
    )
    left.margins(x=0.15)
    RandomEffectsDisplay.from_estimator(model, ax=right)
    right.set_title("In what clients differ most (95 %)")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
