"""Straight lines, curves or trees: what ``basis="auto"`` takes on generated clients, and its cost.

::

    python benchmarks/basis.py --draws 60                      # a minute
    python benchmarks/basis.py --draws 20 --loss log_loss      # two classes; or poisson, gamma
    python benchmarks/basis.py --draws 20 --features 60        # wide tables, ten minutes

The first table has linear populations of 10 to 40 clients, 6 to 24 rows and 1 to 4 features: how
often a look let curves or trees compete, and how often lines stayed. The second has what fits
send, of lines, of a sine that clients have to different degrees, and of the sign of a product of
two features. Targets are normal, or drawn with these as logits (on every other draw one class is
rare), or with a third of these as logarithms of the means. Real tables are in
``benchmarks/real.py`` (PP linear, PP splines, PP trees).
"""

import argparse
import time
import warnings

import numpy as np

from skcfl import PartialPoolingClassifier, PartialPoolingRegressor


def lines(rng, n_clients, n, d):
    groups = np.repeat(np.arange(n_clients), n)
    X, slopes = rng.normal(size=(len(groups), d)), 1.0 + 0.5 * rng.normal(size=(n_clients, d))
    return X, (slopes[groups] * X).sum(axis=1) + rng.normal(size=len(groups)), groups


def waves(rng, n_clients, n, d):
    groups = np.repeat(np.arange(n_clients), n)
    X = rng.uniform(-3, 3, size=(len(groups), d))
    sizes, levels = 1.0 + 0.3 * rng.normal(size=n_clients), rng.normal(size=n_clients)
    y = sizes[groups] * np.sin(X[:, 0]) + levels[groups]
    return X, y + 0.2 * rng.normal(size=len(y)), groups


def corners(rng, n_clients, n, d):
    groups = np.repeat(np.arange(n_clients), n)
    X, levels = rng.normal(size=(len(groups), d)), rng.normal(size=n_clients)
    y = np.where(X[:, 0] * X[:, 1] > 0, 1.0, -1.0) + levels[groups]
    return X, y + 0.3 * rng.normal(size=len(y)), groups


def drawn(rng, raw, loss, shift=0.0):
    """Targets of a loss with raw predictions."""
    if loss == "log_loss":
        return (rng.uniform(size=len(raw)) < 1.0 / (1.0 + np.exp(-raw + shift))).astype(int)
    mean = np.exp(raw / 3.0)
    return rng.poisson(mean) if loss == "poisson" else rng.gamma(2.0, mean / 2.0)


def fit(basis, loss, X, y, groups):
    begin = time.process_time()
    if loss == "log_loss":
        model = PartialPoolingClassifier(basis=basis, random_state=0)
    else:
        model = PartialPoolingRegressor(basis=basis, loss=loss, random_state=0)
    return model.fit(X, y, groups=groups), time.process_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=60, help="linear populations")
    parser.add_argument("--loss", default="squared_error", help="that the targets are drawn for")
    parser.add_argument("--features", type=int, default=0, help="of all populations")
    given = parser.parse_args()
    draws, loss, wide = given.draws, given.loss, given.features
    warnings.simplefilter("ignore")
    competed = {"curves": 0, "trees": 0}
    kept = 0
    for seed in range(draws):
        size = [10, 20, 40][seed % 3], [6, 12, 24][seed % 3], [1, 2, 4][seed // 7 % 3]
        size = (*size[:2], wide or size[2])
        rng = np.random.default_rng(seed)
        X, y, groups = lines(rng, *size)
        if loss != "squared_error":
            y = drawn(rng, y, loss, 2.0 * (seed % 2))
        model, _ = fit("auto", loss, X, y, groups)
        kept += model.basis_ == "linear"
        for name in competed:
            competed[name] += name in model.basis_losses_
    print(f"{draws} linear populations: lines stayed on {kept}; competed: {competed}")
    print("clients x rows x features: basis, exchanges, thousands of numbers up, CPU seconds")
    for made in (lines, waves, corners):
        for size in ((8, 30, 4), (40, 10, 3), (100, 20, 6)):
            size = (*size[:2], wide or size[2])
            rng = np.random.default_rng(0)
            X, y, groups = made(rng, *size)
            if loss != "squared_error":
                y = drawn(rng, y, loss)
            texts = []
            for basis in ("linear", "auto"):
                model, seconds = fit(basis, loss, X, y, groups)
                sent = model.floats_up_ / 1e3
                texts.append(f"{model.basis_} {model.calls_} {sent:.0f} {seconds:.1f}")
            print(f"{made.__name__} {' x '.join(map(str, size))}: {' | '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
