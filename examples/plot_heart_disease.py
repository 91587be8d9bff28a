"""Four hospitals, one disease
===========================

One model for all, one for each hospital, or something between?

Patients of hospitals in Cleveland, Hungary, Switzerland and Long Beach (va), examined for narrowed
heart vessels: the UCI Heart Disease data (Janosi, Steinbrunn, Pfisterer, Detrano, 1988; CC BY
4.0).  The hospitals differ: in Hungary a third of the patients is ill, in Switzerland nearly all;
some hardly ever record some values.  One logistic regression for all of them misses that, four
separate ones waste what the hospitals have in common.  Convex clustering, with lambda chosen by
cross-validation, lets the data say how much they share.

Missing values are imputed in the pipeline; the hospital's name travels as a column of X
(``group_col``).  Patients are predicted in five folds, each with some of every hospital; lambda is
chosen by a cross-validation of its own among the patients that are not predicted.  Needs pandas.
Prints a table and saves a picture (where matplotlib is installed)::

    python examples/plot_heart_disease.py [heart_disease.csv] [--figure heart_disease.png]

The CSV has the columns hospital, the 13 features by their usual names, and target (0 is healthy).
Without it the four "processed" files are fetched from the UCI repository.
"""

# sphinx_gallery_thumbnail_path = 'images/heart_disease.png'
import argparse
import io
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.metrics import accuracy_score, log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skcfl import (
    ConvexClusteredFLClassifier,
    FedAvgClassifier,
    LamSearch,
    LocalModelsClassifier,
)
from skcfl.model_selection import ClientKFold

SOURCE = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
KINDS = ["cp", "restecg", "slope", "thal"]  # categories with a number each
NUMBERS = ["age", "sex", "trestbps", "chol", "fbs", "thalach", "exang", "oldpeak", "ca"]
# As they stand in the files.
COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang"]
COLUMNS += ["oldpeak", "slope", "ca", "thal", "target"]
ALPHA = 1e-2


def main():
    """Cross-validate three models, print the table, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("csv", nargs="?", help="the data; fetched if not given")
    parser.add_argument("--figure", default="heart_disease.png", help="where to save the picture")
    args = parser.parse_args()
    frame, y = load(args.csv)
    hospital = frame["hospital"].to_numpy()
    start = time.perf_counter()

    options = {"alpha": ALPHA, "group_col": "hospital"}
    # What is drawn below: models of the penalty that makes them equal, on all pairs.
    kind = {"graph": "complete", "penalty": "l2", "refit": False}
    fusion = ConvexClusteredFLClassifier(
        search=LamSearch(cv=ClientKFold(5, random_state=0), n_lams=12), tol=1e-4, **kind, **options
    )
    models = {
        "one model for all": pipeline(FedAvgClassifier(**options)),
        "one model per hospital": pipeline(LocalModelsClassifier(**options)),
        "fusion, lam by cross-validation": pipeline(fusion),
    }
    folds = ClientKFold(5, group_col="hospital", random_state=0)
    print(f"{len(y)} patients of {len(set(hospital))} hospitals; five folds within hospitals.\n")
    print(f"{'':34}{'log-loss':>9}{'accuracy':>10}   log-loss by hospital")
    print(f"{'':53}   " + "".join(f"{name:>13}" for name in np.unique(hospital)))
    results = {}
    for name, model in models.items():
        proba = cross_val_predict(model, frame, y, cv=folds, method="predict_proba")[:, 1]
        results[name] = log_loss(y, proba)
        each = [log_loss(y[hospital == h], proba[hospital == h]) for h in np.unique(hospital)]
        correct = accuracy_score(y, proba > 0.5)
        print(f"{name:34}{results[name]:9.3f}{correct:10.3f}   ", end="")
        print("".join(f"{value:13.3f}" for value in each))

    final = models["fusion, lam by cross-validation"].fit(frame, y)
    fusion = final[-1]
    print(f"\nOn all patients lam = {fusion.lam_:.3g} is chosen. Clusters of hospitals:")
    for k in range(fusion.n_clusters_):
        print(f"  {', '.join(fusion.groups_[fusion.labels_ == k])}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(final, frame, y, results, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def load(path):
    """Patients as a frame, whether they are ill as an array; ends with a message if it cannot."""
    if path is None:
        parts = []
        for name in HOSPITALS:
            url = f"{SOURCE}processed.{name}.data"
            try:
                with urllib.request.urlopen(url, timeout=20) as answer:
                    text = answer.read().decode("ascii")
            except (OSError, urllib.error.URLError) as error:
                sys.exit(
                    f"The data could not be fetched from {url} ({error}).\nWithout a network give "
                    "the path of a CSV file: python examples/plot_heart_disease.py FILE"
                )
            parts.append(pd.read_csv(io.StringIO(text), names=COLUMNS, na_values="?"))
            parts[-1].insert(0, "hospital", name)
        frame = pd.concat(parts, ignore_index=True)
    else:
        try:
            frame = pd.read_csv(path, na_values="?")
        except (OSError, ValueError) as error:
            sys.exit(f"{path} could not be read: {error}")
    missing = {"hospital", *COLUMNS} - set(frame.columns)
    if missing:
        sys.exit(f"{path} has no columns {', '.join(sorted(missing))}.")
    return frame[["hospital", *NUMBERS, *KINDS]], (frame["target"] > 0).to_numpy().astype(int)


def pipeline(model):
    """Imputed, scaled, categories as indicators; the hospital's name passes by."""
    preparation = make_column_transformer(
        ("passthrough", ["hospital"]),
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), NUMBERS),
        (
            make_pipeline(
                SimpleImputer(strategy="most_frequent"),
                OneHotEncoder(sparse_output=False, handle_unknown="ignore"),
            ),
            KINDS,
        ),
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    return make_pipeline(preparation, model)


def draw(final, frame, y, results, path):
    """Cross-validated loss over lambda, and hospitals that share a model."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import ClusterPathDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    preparation, fusion = final[:-1], final[-1]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(7.2, 5.6), sharex=True, height_ratios=[1.5, 1]
    )
    for name, colour, line in (
        ("one model for all", "C1", "-."),
        ("one model per hospital", "C7", "--"),
    ):
        top.axhline(results[name], color=colour, linestyle=line, label=name)
    loss = -fusion.cv_scores_.mean(axis=0)
    top.plot(fusion.lams_, loss, "o-", markersize=4, color="C0", label="fusion")
    top.axvline(fusion.lam_, color="black", linestyle=":", linewidth=1, label="lam chosen")
    top.set_ylabel("log-loss of held-out patients")
    top.legend(frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    ClusterPathDisplay.from_estimator(
        fusion, preparation.transform(frame), y, n_lams=40, kind="tree", ax=bottom, linewidth=2
    )
    bottom.set(ylabel="hospitals that share a model", xlabel="penalty lam")
    for ax in (top, bottom):
        ax.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
