"""What each threshold of the defaults is worth: fits with it and without, on the same rows.

    pip install --group real                            # the real tables, as benchmarks/real.py
    python benchmarks/heuristics.py                     # minutes a threshold
    python benchmarks/heuristics.py --only simplest     # thresholds whose name holds this
    python benchmarks/heuristics.py --results h.jsonl   # keeps every fit, repeats none

A threshold is switched off by the value that makes its rule do nothing. For each one the table
has, over all fits of the classes that use it:

- changed: fits whose score changes by more than a thousandth, out of all of them;
- score: mean change of the score without it, and its standard error. Scores are R2, or minus
  log-loss or mean Poisson deviance; negative means that the threshold helps;
- worst, best: the largest fall and rise of one fit;
- seconds: ratio of the CPU seconds without it to those with it.

Rows are real tables (a quarter of each client's rows is tested, training has all others or five a
client) and generated federations of benchmarks/generated.py, whose scores are relative to
``OracleClusters``.
"""

import argparse
import importlib
import json
from contextlib import contextmanager
from pathlib import Path

import generated
import numpy as np
import real

NEVER = np.inf
FUSION = "ConvexClusteredFL", "FPFC"
ROUNDS = "IFCA", "CLoVE"
# Name: module, values that switch it off by constant, and the classes that use it.
THRESHOLDS = {
    "simplest: hopeless members": ("search.simplest", {"HOPELESS": NEVER}, FUSION),
    "simplest: one model, 1.25": ("search.simplest", {"ONE_MODEL": 1.0}, FUSION),
    "simplest: stable clusters, 2": ("search.simplest", {"STABLE": 1.0}, FUSION),
    "simplest: within a standard error": ("search.simplest", {"SIMPLER": 0.0}, FUSION),
    "simplest: signed ranks": ("search.simplest", {"RANKS": NEVER}, FUSION),
    "simplest: one client outweighs all": ("search.simplest", {"OUTWEIGHS": NEVER}, FUSION),
    "simplest: clusters confirmed on all rows": ("search.simplest", {"CONFIRMATIONS": 0}, FUSION),
    "simplest: number within .75": ("search.simplest", {"WITHIN": 1e-9}, FUSION),
    "simplest: small clusters": ("search.simplest", {"SMALL": 0.0}, FUSION),
    "lam: beyond the grid": ("search.models", {"MAX_BEYOND": 0}, FUSION),
    "lam: around the best": ("search.models", {"ROUNDS": 0}, FUSION),
    "lam: wide gaps": ("search.models", {"LEAP": NEVER}, FUSION),
    "lam: sought under another alpha": ("search.models", {"MIN_GAIN": NEVER}, FUSION),
    "lam: five folds of few clients": ("search.judges", {"FEW_FOLDS": 3}, FUSION),
    "optimism of held-out losses": ("numerics.optimism", {"ERROR": 0.0}, FUSION),
    "knn: shrunken local models": ("fusion.problem", {"SHRINKAGE": 0.0}, ("GTV",)),
    "FPFC: shrunken start": ("fusion.problem", {"SHRINKAGE": 0.0}, ("FPFC",)),
    "FPFC: scale with few rows": ("fusion.fpfc_problem", {"STRENGTH_FEW_ROWS": 5.0}, ("FPFC",)),
    "K: patience 2": ("search.n_clusters", {"PATIENCE": 1}, ROUNDS),
    "K: least gain": ("search.n_clusters", {"MIN_GAIN": 0.0}, ROUNDS),
    "K: one model each, .5": ("search.n_clusters", {"ONE_EACH": 0.0}, ROUNDS),
    "K: ten folds of few rows": ("search.n_clusters", {"FEW_FOLDS": 4}, ROUNDS),
    "K: long steps": ("search.n_clusters", {"LONG_STEP": 0.25}, ROUNDS),
    "K: settled but for a hundredth": ("rounds.polish", {"FEW": 0.0}, ROUNDS),
    "K: brief fits": ("rounds.round_options", {"BRIEF": 300}, ROUNDS),
    "CLoVE: calm rounds": ("rounds.loss_clusters", {"CALM_ROUNDS": 10**9}, ("CLoVE",)),
    "pooling: heavy tails": ("pooling.scaled", {"MIN_SCALED": 10**9}, ("PartialPooling",)),
    "pooling: shrunken correlations": (
        "pooling.components",
        {"SHRINKAGE": 0.0},
        ("PartialPooling",),
    ),
    "pooling: two starts tried on": (
        "pooling.cluster_starts",
        {"MOST_TRIED": 10**9},
        ("PartialPooling",),
    ),
    "pooling: two rises": ("pooling.components", {"RISES": 1}, ("PartialPooling",)),
    "pooling: five numbers tried": ("pooling.components", {"LEAST_TRIED": 1}, ("PartialPooling",)),
    "pooling: strong evidence": ("pooling.criteria", {"STRONG": 0.0}, ("PartialPooling",)),
    "pooling: no clusters of one client": (
        "pooling.criteria",
        {"LEAST_CLIENTS": 1},
        ("PartialPooling",),
    ),
    "pooling: intercepts off zero": ("pooling.em", {"OFF_ZERO": False}, ("PartialPooling",)),
    "pooling: cost of slopes": ("pooling.stacking", {"SLOPE_COST": 0.0}, ("PartialPooling",)),
    "pooling: cost of other variances": (
        "pooling.stacking",
        {"OTHER_COST": 0.0},
        ("PartialPooling",),
    ),
}
TABLES = "sleepstudy", "Orthodont", "Grunfeld", "Cigar", "Gasoline", "Dialyzer", "radon"
KINDS = (
    *("4 rows", "10 rows", "12 clients, 40 rows", "2 outliers, 20 rows", "counts, 20 rows"),
    *("one: no difference, normal, 20 rows, 5", "one: continuum, normal, 20 rows, 5"),
)
# Scores that differ by less are equal.
SAME = 1e-3
# Most CPU seconds of a fit.
TIMEOUT = 60


@contextmanager
def switched(module, values):
    """Constants of a module have other values meanwhile."""
    module = importlib.import_module(f"skcfl.{module}")
    before = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def cells(tables, kinds, splits):
    """What is fitted: tables or kinds, rows, and the split or draw."""
    for split in range(splits):
        yield from ((name, rows, split) for name in tables for rows in ("all", "5"))
        yield from ((name, None, split) for name in kinds)


def fit(method, cell):
    """Score and seconds of a fit; the larger the score the better."""
    name, rows, split = cell
    if rows is None:
        kind = next(kind for key, kind in generated.KINDS.items() if key.startswith(name))
        record = generated.fit(method, kind, split)
        return record["score"], record["seconds"]
    method = {"ConvexClusteredFL": "CCFL"}.get(method, method)
    record = real.fit(name, "raw", rows, split, method, timeout=TIMEOUT)
    if "error" in record:
        return np.nan, np.nan
    sign = 1.0 if real.TABLES[name].loss == "squared_error" else -1.0
    return sign * record["score"], record["seconds"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the names of thresholds")
    parser.add_argument("--tables", nargs="*", default=TABLES)
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="beginnings of names")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--results", type=Path, help="file of JSON lines")
    options = parser.parse_args()
    known = {}
    if options.results and options.results.exists():
        for line in options.results.read_text().splitlines():
            *key, score, seconds = json.loads(line)
            known[tuple(map(str, key))] = score, seconds

    def result(threshold, method, cell):
        key = tuple(map(str, (threshold, method, *cell)))
        if key not in known:
            module, values, _ = THRESHOLDS.get(threshold, ("search.simplest", {}, ()))
            with switched(module, values):
                known[key] = fit(method, cell)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps([*key, *known[key]]) + "\n")
        return known[key]

    print(f"{'without':42} {'changed':>9} {'score':>18} {'worst':>8} {'best':>8} {'seconds':>8}")
    for threshold, (_, _, methods) in THRESHOLDS.items():
        if options.only not in threshold:
            continue
        pairs = [
            (result("", method, cell), result(threshold, method, cell))
            for cell in cells(options.tables, options.kinds, options.splits)
            for method in methods
        ]
        before, after = np.array(pairs, dtype=float).transpose(1, 2, 0)
        change = after[0] - before[0]
        change = change[np.isfinite(change)]
        error = change.std() / np.sqrt(len(change))
        changed = f"{int((np.abs(change) > SAME).sum())}/{len(change)}"
        seconds = np.nansum(after[1]) / np.nansum(before[1])
        print(
            f"{threshold:42} {changed:>9} {change.mean():+9.4f} +- {error:.4f} "
            f"{change.min():+8.3f} {change.max():+8.3f} {seconds:8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
