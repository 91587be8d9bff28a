"""False clients: what honest ones keep, by method, attack, share of false clients and aggregation.

    python benchmarks/robust.py [--methods IFCA CLoVE ...] [--attacks ...] [--seeds 5] [--networks]

40 clients in 4 clusters, 80 rows of 10 features each, of which a quarter is held out.  One line a
case: score (R2 or accuracy) on the held-out rows of honest clients, adjusted Rand index of their
clusters, clients set aside who were honest and false ones who were not, seconds of process time a
fit; means over the seeds.  "one_y", "one_X": a single client with targets or features times 1e6.
Messages are attacked ("update_...") without polishing, in rounds.  Fusion methods have client_loss
"huber" in the place of aggregations, and choose their number of clusters.

    python benchmarks/robust.py --rounds

prints what a round of IFCA under each aggregation takes, as a multiple of the mean's: process time
on one thread, the least of some runs taken turn by turn.
"""

import argparse
import time
import warnings

import numpy as np
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

import skcfl
from skcfl import Training
from skcfl.datasets import corrupt, make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.aggregation import make_aggregator
from skcfl.rounds.alternate import Options, alternate

N_CLIENTS, N_CLUSTERS, N_ROWS, N_FEATURES = 40, 4, 80, 10
METHODS = ("FedAvg", "IFCA", "CLoVE", "RobustClusteredFL")
FUSION = ("ConvexClusteredFL", "GTV", "FPFC")
AGGREGATIONS = ("mean", "median", "trimmed_mean", "geometric_median")
ATTACKS = {
    "none": {},
    "flip": {},  # label_flip of classes, sign_flip of targets
    "noise": {"attack": "noise"},
    "one_y": {"attack": "scale_y", "fraction": 1 / N_CLIENTS},
    "one_X": {"attack": "scale_X", "fraction": 1 / N_CLIENTS},
    "update_sign_flip": {},
    "update_scale": {},
    "update_alie": {},
    "update_inner_product": {},
}


def one(kind, method, attack, share, aggregation, seed, networks, n_clusters):
    """Score, ARI, honest set aside, false kept, seconds of a fit; None where it cannot be."""
    regression = kind == "regression"
    if attack == "one_y" and not regression:
        return None
    make = make_clustered_regression if regression else make_clustered_classification
    sizes = {"n_features": N_FEATURES, "n_samples": N_ROWS}
    data = make(N_CLIENTS, N_CLUSTERS, **sizes, random_state=seed)
    X, y, groups = data.X, data.y, data.groups
    ids, codes = np.unique(groups, return_inverse=True)
    test = np.zeros(len(y), dtype=bool)
    for client in range(N_CLIENTS):
        test[np.flatnonzero(codes == client)[::4]] = True
    options = {"attack": "sign_flip" if regression else "label_flip", "fraction": share}
    options.update(ATTACKS[attack])
    faults = None
    if attack.startswith("update") or attack == "none":
        false = corrupt(
            X, y.astype(float), groups, **{**options, "attack": "noise"}, random_state=seed
        )
        is_false = false.is_false & (attack != "none")
        if attack != "none":
            faults = Faults(attack=attack.partition("_")[2], false=false.false)
    else:
        false = corrupt(X, y, groups, **options, random_state=seed)
        X, y, is_false = false.X, false.y, false.is_false
    parameters = {"aggregation": aggregation, "random_state": 0}
    if method in FUSION:
        if faults is not None:
            return None
        parameters = {"client_loss": None if aggregation == "mean" else aggregation}
    elif method not in ("FedAvg", "CFL"):
        parameters["n_clusters"] = n_clusters
    if faults is not None and not networks:
        parameters["training"] = Training(polish=False)
    if networks:
        parameters["hidden_layer_sizes"] = (16,)
    if share > 0.25 and method == "RobustClusteredFL":
        parameters["trim"] = 0.4
    if share > 0.25 and aggregation in ("trimmed_mean", "krum") and method not in FUSION:
        parameters["aggregation"] = make_aggregator(aggregation).set_params(trim=0.4)
    cls = getattr(skcfl, method + ("Regressor" if regression else "Classifier"))
    federation = InProcessFederation(X[~test], y[~test], groups[~test], faults=faults)
    start = time.process_time()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            model = cls(**parameters).fit_federation(federation)
        except ValueError:  # diverged
            return np.nan, 0.0, np.nan, np.nan, time.process_time() - start
    seconds = time.process_time() - start
    honest = test & ~is_false[codes]
    score = model.score(data.X[honest], data.y[honest], groups=groups[honest])
    ari = adjusted_rand_score(data.labels[~is_false], model.labels_[~is_false])
    aside = getattr(model, "suspicion_", np.zeros(N_CLIENTS)) > 1
    return score, ari, (aside & ~is_false).sum(), (is_false & ~aside).sum(), seconds


def round_costs(n_clients, n_rows, d, k, rounds, equal=True, repeats=7):
    """Milliseconds of a round by aggregation; clients weigh the same if rows are `equal`."""
    rng = np.random.RandomState(0)
    sizes = (
        np.full(n_clients, n_rows) if equal else rng.randint(n_rows - 20, n_rows + 21, n_clients)
    )
    codes = np.repeat(np.arange(n_clients), sizes)
    X, true = rng.standard_normal((len(codes), d)), rng.standard_normal((k, d))
    y = np.einsum("rd,rd->r", X, true[codes % k]) + 0.1 * rng.standard_normal(len(X))
    start = true + 0.3 * rng.standard_normal((k, d))
    model = LinearModel(alpha=1e-4, fit_intercept=False).bind(d)
    pool = open_rows(model, X, y, codes, n_clients)
    least = {name: np.full(2, np.inf) for name in AGGREGATIONS}
    for _ in range(repeats):
        for name, best in least.items():
            for i, n in enumerate((10, 10 + rounds)):
                operator = make_aggregator(name)
                options = Options(max_iter=n, tol=0, polish=False, aggregator=operator)
                began = time.process_time()
                alternate(pool, start, options, np.random.RandomState(0))
                best[i] = min(best[i], time.process_time() - began)
    return {name: 1e3 * (best[1] - best[0]) / rounds for name, best in least.items()}


def print_round_costs():
    """Print one line a job."""
    jobs = (
        (40, 60, 10, 4, 200),
        (1000, 60, 10, 4, 60),
        (1000, 60, 100, 10, 6),
        (100, 100, 1000, 4, 8),
    )
    for job in jobs:
        for equal in (True, False) if job[0] == 40 else (True,):
            with threadpool_limits(1):
                best = round_costs(*job, equal)
            ratios = "  ".join(f"{name} {best[name] / best['mean']:.2f}" for name in AGGREGATIONS)
            weights = "equal" if equal else "other"
            print(
                f"{job[:4]!s:22s} {weights} weights {best['mean']:6.2f} ms: {ratios}", flush=True
            )


def main():
    """Print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--aggregations", nargs="+", default=AGGREGATIONS)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.2, 0.3])
    parser.add_argument("--kinds", nargs="+", default=["regression", "classification"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--n-clusters", type=int, default=N_CLUSTERS)
    parser.add_argument("--rounds", action="store_true")
    given = parser.parse_args()
    if given.rounds:
        print_round_costs()
        return
    print(f"{'kind':15s}{'method':19s}{'attack':17s}share  aggregation        score    ARI  "
          "honest aside  false kept  seconds")  # fmt: skip
    for kind in given.kinds:
        for method in given.methods:
            for attack in given.attacks:
                single = attack == "none" or attack.startswith("one")
                for share in [0.0] if single else given.shares:
                    names = ("mean", "huber") if method in FUSION else given.aggregations
                    for aggregation in names:
                        case = kind, method, attack, share, aggregation
                        more = given.networks, given.n_clusters
                        runs = [one(*case, seed, *more) for seed in range(given.seeds)]
                        if runs[0] is None:
                            continue
                        score, ari, aside, kept, seconds = np.mean(runs, axis=0)
                        print(
                            f"{kind:15s}{method:19s}{attack:17s}{share:5.2f}  {aggregation:17s}"
                            f"{score:8.3f} {ari:6.2f} {aside:13.1f} {kept:11.1f} {seconds:8.2f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
