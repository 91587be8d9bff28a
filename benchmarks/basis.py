"""Straight lines, curves or trees: what ``basis="auto"`` takes on generated clients, and its cost.

::

    python benchmarks/basis.py --draws 60        # a minute

The first table has linear populations of 10 to 40 clients, 6 to 24 rows and 1 to 4 features: how
often a look let curves or trees compete, and how often lines stayed. The second has what fits
send, of lines, of a sine that clients have to different degrees, and of the sign of a product of
two features. Real tables are in ``benchmarks/real.py`` (PP linear, PP splines, PP trees).
"""

import argparse
import time
import warnings

import numpy as np

from skcfl import PartialPoolingRegressor


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


def fit(basis, X, y, groups):
    begin = time.process_time()
    model = PartialPoolingRegressor(basis=basis, random_state=0).fit(X, y, groups=groups)
    return model, time.process_time() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--draws", type=int, default=60, help="linear populations")
    draws = parser.parse_args().draws
    warnings.simplefilter("ignore")
    competed = {"curves": 0, "trees": 0}
    kept = 0
    for seed in range(draws):
        size = [10, 20, 40][seed % 3], [6, 12, 24][seed % 3], [1, 2, 4][seed // 7 % 3]
        model, _ = fit("auto", *lines(np.random.default_rng(seed), *size))
        kept += model.basis_ == "linear"
        for name in competed:
            competed[name] += name in model.basis_losses_
    print(f"{draws} linear populations: lines stayed on {kept}; competed: {competed}")
    print("clients x rows x features: basis, exchanges, thousands of numbers up, CPU seconds")
    for made in (lines, waves, corners):
        for size in ((8, 30, 4), (40, 10, 3), (100, 20, 6)):
            data = made(np.random.default_rng(0), *size)
            texts = []
            for basis in ("linear", "auto"):
                model, seconds = fit(basis, *data)
                sent = model.floats_up_ / 1e3
                texts.append(f"{model.basis_} {model.calls_} {sent:.0f} {seconds:.1f}")
            print(f"{made.__name__} {' x '.join(map(str, size))}: {' | '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
