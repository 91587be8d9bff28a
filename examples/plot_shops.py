"""Steps and streets
=================

Partial pooling with trees: what sells ice cream?

Thirty kiosks sell ice cream, each for some weeks. Below two euros it sells much better than above,
a step; warm days help where there is a beach, and nowhere else. Each kiosk has its own level, and
reacts to the price in its own way. A line for each kiosk sees neither the step nor the beach.

``basis="auto"`` compares straight lines, curves and trees on days held out inside the kiosks.
Prints what each of them is worth on new days, and what the trees use::

    python examples/plot_shops.py [--figure shops.png]
"""

import argparse
import time

import numpy as np
import pandas as pd

import skcfl

BASES = {"straight lines": "linear", "curves": "splines", "trees": "trees", "auto": "auto"}


def main():
    """Fit, print the scores, save the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", default="shops.png", help="where to save the picture")
    args = parser.parse_args()
    start = time.perf_counter()
    days, sales, kiosk = measure(np.random.RandomState(0), 25)
    new_days, new_sales, new_kiosk = measure(np.random.RandomState(0), 100, shift=1)

    print(f"{len(days)} days of {len(np.unique(kiosk))} kiosks; R2 of new days:\n")
    for name, basis in BASES.items():
        model = skcfl.PartialPoolingRegressor(basis=basis, random_state=0)
        model.fit(days, sales, groups=kiosk)
        print(f"{name:16}{model.score(new_days, new_sales, groups=new_kiosk):6.3f}")
    print(f"\nauto took {model.basis_}. Parts of the features in what they explain:")
    for name, part in zip(days.columns, model.feature_importances_, strict=True):
        print(f"{name:16}{part:6.2f}")

    try:
        import matplotlib

        matplotlib.use("Agg")
    except ImportError:
        print("\nNo picture: matplotlib is not installed.")
    else:
        draw(model, np.unique(kiosk)[:4], args.figure)
        print(f"\nPicture saved to {args.figure}.")
    print(f"{time.perf_counter() - start:.1f} seconds.")


def measure(rng, n_days, n_kiosks=30, shift=0):
    """Days as a frame, sales and kiosks; `shift` draws other days of the same kiosks."""
    level, slope = 20.0 + 4.0 * rng.normal(size=n_kiosks), -2.0 + rng.normal(size=n_kiosks)
    beach = rng.uniform(size=n_kiosks) < 0.5
    rng = np.random.RandomState(rng.randint(1000) + shift)
    i = np.repeat(np.arange(n_kiosks), n_days)
    price, heat = rng.uniform(1.0, 3.0, size=len(i)), rng.uniform(10.0, 35.0, size=len(i))
    sales = level[i] + slope[i] * price + 8.0 * (price < 2.0) + 12.0 * (beach[i] & (heat > 25.0))
    days = pd.DataFrame({"price": price, "heat": heat, "beach": beach[i].astype(float)})
    names = np.array([f"kiosk {k:02d}" for k in range(n_kiosks)])
    return days, sales + 2.0 * rng.normal(size=len(i)), names[i]


def draw(model, kiosks, path):
    """The effects of the price and of the heat, of the population and of some kiosks."""
    import matplotlib.pyplot as plt

    from skcfl.inspection import EffectDisplay

    plt.style.use("petroff10")  # safe for colour-blind readers
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    for ax, feature in zip(axes, ("price", "heat"), strict=True):
        EffectDisplay.from_estimator(model, feature, groups=kiosks, ax=ax)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_title("A step at two euros, and lines of four kiosks", size=10)
    axes[1].set_title("Warm days, a mean of kiosks at beaches and others", size=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
