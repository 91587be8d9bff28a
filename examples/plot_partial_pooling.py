"""Drivers without sleep
=====================

Partial pooling of few measurements: which drivers suffer?

Forty drivers are kept awake for some days, and every day their reaction time is measured. Some
gave up after three days, some stayed for ten. How much slower does each of them get in a day? A
line a driver says it badly for those with few days, one line for all says the same of everybody.
And there may be two kinds of drivers, which is not known.

Partial pooling draws each driver's line from a population, in kinds or not: it finds how many
there are, how drivers differ within them, and each driver's line with its interval. Prints the
errors of the lines, the table that users of lme4 know, and what is expected of a driver after two
days::

    python examples/plot_partial_pooling.py [--figure partial_pooling.png]
"""

import argparse
import time

import numpy as np

import skcfl

KINDS, SHARES = {"steady": (250.0, 4.0), "sensitive": (265.0, 21.0)}, (26, 14)
SPREAD, NOISE = (18.0, 1.5), 24.0


def main():
    """Fit, print the errors, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--figure", default="partial_pooling.png", help="where to save the picture"
    )
    args = parser.parse_args()
    start = time.perf_counter()
    day, reaction, driver, lines = measure()

    model = skcfl.PartialPoolingRegressor(random_state=0)
    model.fit(day[:, None], reaction, groups=driver)
    others = {
        "one line for all": skcfl.FedAvgRegressor(),
        "one line a driver": skcfl.LocalModelsRegressor(alpha=0.0),
        "one population": skcfl.PartialPoolingRegressor(n_clusters=1),
    }
    for other in others.values():
        other.fit(day[:, None], reaction, groups=driver)
    fits = {**others, "partial pooling": model}

    sizes = " and ".join(map(str, model.cluster_sizes_))
    print(f"{len(lines)} drivers, {len(day)} days measured")
    print(f"{model.n_clusters_} kinds of drivers, of {sizes}\n")
    print("Error of the slowing in ms a day (root of the mean square)\n")
    for name, fit in fits.items():
        print(f"{name:24}{np.sqrt(np.mean((fit.coef_[:, 0] - lines[:, 1]) ** 2)):8.2f}")
    print(f"\n{model.summary()}\n")

    new = model.adapt([[0.0], [1.0]], [262.0, 290.0], groups=["new", "new"])
    mean, std = new.predict([[9.0]], groups=["new"], return_std=True)
    print("A new driver, 262 ms on the first day and 290 ms on the second:")
    print(f"expected on the tenth: {mean[0]:.0f} ms, standard deviation {std[0]:.0f} ms")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(model, others["one line a driver"], driver, lines, args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def measure(seed=3):
    """Days, reaction times and drivers of the measurements, and each driver's true line."""
    rng = np.random.RandomState(seed)
    lines = np.repeat(list(KINDS.values()), SHARES, axis=0)
    lines = rng.permutation(lines + rng.normal(size=lines.shape) * SPREAD)
    days = rng.randint(3, 11, size=len(lines))
    driver = np.repeat(np.arange(len(lines)), days)
    day = np.concatenate([np.arange(float(n)) for n in days])
    reaction = lines[driver, 0] + lines[driver, 1] * day + NOISE * rng.normal(size=len(day))
    names = np.array([f"driver {i:02d}" for i in range(len(lines))])
    return day, reaction, names[driver], lines


def draw(model, local, driver, lines, path):
    """Left every driver on his own, right the posterior."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import RandomEffectsDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 6), sharex=True, sharey=True)
    display = RandomEffectsDisplay.from_estimator(model, 0, ax=right)
    order, heights = display.order_, np.arange(len(lines))
    days = np.unique(driver, return_counts=True)[1]
    left.scatter(local.coef_[order, 0], heights, s=4 * days[order], c="0.35")
    for axes in (left, right):
        axes.plot(lines[order, 1], heights, "k|", markersize=7, label="truth")
        axes.set_xlabel("slower by ms a day")
        axes.spines[["top", "right"]].set_visible(False)
    left.tick_params(labelleft=True)
    left.set_title("One regression per driver (large dots: many days)", size=10)
    right.set_title("Partial pooling, 95 % intervals; colours: the two kinds found", size=10)
    right.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
