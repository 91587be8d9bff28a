"""How sure are reports? Shares of p-values below a level, of intervals with the truth, stability.

    python benchmarks/how_sure.py [draws]

prints the figures of doc/benchmarks/how_sure.rst, 200 draws by default, in about six minutes on
one core: p-values of "do clients differ" without differences and with some, intervals of standard
deviations and of means, certainties of clusters, and the mean adjusted Rand index of clusters in
rows drawn again.
"""

import sys
import warnings

import numpy as np
from scipy.optimize import linear_sum_assignment

from skcfl import (
    CLoVERegressor,
    FedAvgClassifier,
    FedAvgRegressor,
    FedEMRegressor,
    IFCAClassifier,
    IFCARegressor,
    PartialPoolingRegressor,
)
from skcfl.inspection import cluster_stability
from skcfl.reports.words import certainties_of

LEVELS = 0.05, 0.1, 0.2, 0.5
KINDS = {
    "squared error": (20, 12),
    "squared error, 3 rows": (40, 3),
    "log loss": (20, 12),
    "counts": (20, 12),
    "heavy tails, unlike noise": (20, 12),
}


def draw(kind, seed, intercepts=0.0, slopes=0.0):
    """Rows of clients, and a model of what is drawn."""
    rng = np.random.default_rng(seed)
    N, n = KINDS[kind]
    groups, X = np.repeat(np.arange(N), n), rng.standard_normal((N * n, 2))
    z = 0.3 + X @ [0.5, -0.3] + intercepts * rng.standard_normal(N)[groups]
    z += (X * (slopes * rng.standard_normal((N, 2)))[groups]).sum(axis=1)
    if kind == "log loss":
        return FedAvgClassifier(), X, rng.random(N * n) < 1 / (1 + np.exp(-z)), groups
    if kind == "counts":
        y = rng.poisson(np.exp(z) * rng.gamma(2, 0.5, N * n)).astype(float)
        return FedAvgRegressor(loss="poisson"), X, y, groups
    noise = rng.standard_normal(N * n)
    if kind == "heavy tails, unlike noise":
        noise = rng.standard_t(4, N * n) * np.exp(0.5 * rng.standard_normal(N))[groups]
    return FedAvgRegressor(), X, z + noise, groups


def tests(n_draws):
    """p-values of FedAvg's reports."""
    print(f"{'share of p-values below':44}", *(f"{level:>6}" for level in LEVELS))
    cases = {"no difference": {}, "intercepts": {"intercepts": 0.5}, "slopes": {"slopes": 0.5}}
    for kind in KINDS:
        for name, differences in cases.items():
            found = {"p_no_difference": [], "p_intercepts_only": []}
            for seed in range(n_draws):
                model, X, y, groups = draw(kind, seed, **differences)
                findings = model.fit(X, y, groups=groups).report().findings
                for test, values in found.items():
                    values.append(findings[test])
            for test, values in found.items():
                shares = [np.mean(np.array(values) <= level) for level in LEVELS]
                print(f"{kind}, {name}, {test[2:]}"[:60].ljust(60), *(f"{s:6.3f}" for s in shares))
        sys.stdout.flush()


def intervals(n_draws, away=0.0):
    """Coverage of the intervals of PartialPooling's reports.

    The rows' mean of the first feature is `away` deviations from where effects are independent.
    """
    effects = 0.8, 0.5, 0.0
    true = {"at the mean row": np.hypot(0.8, 0.5 * away), "x0": 0.5, "x1": 0.0}
    deviations, means = {name: [] for name in true}, []
    for seed in range(n_draws):
        rng = np.random.default_rng(seed)
        groups, Z = np.repeat(np.arange(25), 8), rng.standard_normal((200, 2)) + [away, 0.0]
        own = rng.standard_normal((25, 3)) * effects
        y = 2 + Z.sum(axis=1) + own[groups, 0] + (Z * own[groups, 1:]).sum(axis=1)
        y += rng.standard_normal(200)
        model = PartialPoolingRegressor(1).fit(Z * [1, 5] + 30, y, groups=groups)
        report = model.report()
        for name, (_, low, high) in report.findings["deviations"].items():
            deviations[name].append((low <= true[name] <= high, low == 0.0))
        (section,) = [s for s in report.sections if s.title.startswith("What is the mean")]
        means += [
            low <= 1 <= high for name, _, low, high in section.parts[1].rows if name in "x0x1"
        ]
    for name, values in deviations.items():
        held, zero = np.mean(values, axis=0)
        print(
            f"mean {away:g} away, std. dev. {true[name]:.2f} {name}: inside {held:.3f}, "
            f"interval begins at zero {zero:.3f}"
        )
    print(f"means: inside {np.mean(means):.3f}")


def certainties(n_draws):
    """Mean certainty of the labels, how many are right, and log-loss of the true clusters."""
    print(f"{'certainty of clusters, clients x rows':60}   said   true log-loss")
    models = IFCARegressor(3), CLoVERegressor(3), FedEMRegressor(3), IFCAClassifier(3)
    for model in (*models, PartialPoolingRegressor(3, basis="linear")):
        classes = isinstance(model, IFCAClassifier)
        for N, n in ((12, 6), (12, 20), (24, 10), (24, 40), (48, 10)):
            values = []
            for seed in range(n_draws):
                rng, kinds = np.random.default_rng(seed), np.arange(N) % 3
                groups, X = np.repeat(np.arange(N), n), rng.standard_normal((N * n, 3))
                z = X[np.arange(N * n), kinds[groups]] * (5.5 if classes else 3.0) / np.sqrt(n)
                y = z + (rng.logistic if classes else rng.normal)(size=N * n)
                model.set_params(random_state=0).fit(X, y > 0 if classes else y, groups=groups)
                labels, shares, every = model.labels_, certainties_of(model), np.arange(N)
                if model.n_clusters_ < 3:  # PartialPooling joins clusters without clients
                    continue
                counts = np.array([np.bincount(kinds[labels == k], minlength=3) for k in range(3)])
                kind_of = linear_sum_assignment(-counts)[1]
                of_truth = shares[every, np.argsort(kind_of)[kinds]]
                loss = -np.log(np.maximum(of_truth, 1e-3))
                values.append([shares[every, labels], kind_of[labels] == kinds, loss])
            said, true, loss = np.mean(values, axis=(0, 2))
            name = f"{type(model).__name__}, {N} x {n}"
            print(f"{name:60} {said:6.3f} {true:6.3f} {loss:8.3f}")
        sys.stdout.flush()


def stability(n_federations=3):
    """Mean adjusted Rand index of IFCA's three clusters, crisp ones and parts of a population."""
    for kind in ("crisp", "continuum"):
        for seed in range(n_federations):
            rng = np.random.default_rng(seed)
            centres = 0.7 * rng.standard_normal((3, 5))
            models = centres[np.arange(30) % 3]
            if kind == "continuum":
                models = centres[0] + 0.6 * rng.standard_normal((30, 5))
            groups, X = np.repeat(np.arange(30), 12), rng.standard_normal((360, 5))
            y = (X * models[groups]).sum(axis=1) + 0.7 * rng.standard_normal(360)
            found = cluster_stability(IFCARegressor(3, random_state=0), X, y, groups)
            print(f"{kind}, seed {seed}: mean ARI {found.ari:.3f}, unsure {found.unsure:.3f}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    tests(n)
    for away in 0.0, 2.0, 5.0:
        intervals(n, away)
    certainties(n // 10)
    stability()
