"""Private fits: R2 of test rows at several epsilons, beside local models and fits of all rows.

Client level: generated clients on a continuum or in three crisp clusters, and real tables
(Chem97: 1,892 schools, InstEval: 1,128 lecturers, wages: 595 persons). Every client has test rows
of its own; delta is 1e-5, bounds are the mean plus and minus two standard deviations, and all
estimators have their defaults, or three clusters where the name says so. "local" releases
nothing: the best ridge penalty in hindsight. ``inf`` is the plain fit of all rows.

Record level: FedAvg, Ditto and PartialPooling with known noise on released second moments of Exam,
Chem97 by education authority and star.

Audit: the epsilon that a test of membership shows, by fits with and without one extreme client at
95 % confidence, beside the one that is promised.

Masks: seconds and the error of one sum of 200 numbers over parties of one client, with and without
lost ones, and seconds of rounds of FedAvg with masks and without, of 1,000 clients in one place,
in three places, and in 1,000.

One line a data set, epsilon and estimator. One thread::

    python benchmarks/private.py [client] [record] [audit] [masks] [--draws 4] [--sets crisp:200]
"""

import argparse
import time
import warnings

import numpy as np
import real
from scipy.stats import beta

from skcfl import DittoRegressor, FedAvgRegressor, IFCARegressor, PartialPoolingRegressor
from skcfl.calls.releases import Moves
from skcfl.exceptions import PrivacyWarning
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.federation.masks import MaskParty, decoded, encoded, scale_of
from skcfl.federation.private_sums import Releases
from skcfl.model_selection import ClientKFold
from skcfl.models import MLP

EPSILONS = (1.0, 2.0, 4.0, 8.0)
UNITS = {"features": (-2.0, 2.0), "target": (-2.0, 2.0)}
PULLS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
CLIENT_SETS = ("continuum:40", "continuum:200", "continuum:1000", "continuum:5000")
CLIENT_SETS += ("crisp:40", "crisp:200", "crisp:1000", "crisp:5000", "Chem97", "InstEval", "wages")
RECORD_SETS = ("Exam", "Chem97-lea", "star")
TABLES = {
    "Chem97": ("mlmRev/Chem97", "score", "school", "gcsescore age gender"),
    "InstEval": ("lme4/InstEval", "y", "d", "studage lectage service"),
    "Chem97-lea": ("mlmRev/Chem97", "score", "lea", "gcsescore age gender"),
    "star": ("mlmRev/star", "math", "sch", "exp ses sx gr"),
}


def generated(kind, n_clients, seed, n_rows=10, n_features=5):
    """Rows to fit and to judge, of clients on a continuum or in three clusters."""
    rng = np.random.default_rng(seed)
    p = n_features + 1
    centres = 0.7 * rng.standard_normal((3, p))
    if kind == "crisp":
        theta = centres[rng.integers(3, size=n_clients)]
    else:
        spread = np.r_[0.6, 0.5, 0.4, 0.3, 0.1, 0.0]
        theta = centres[0] + spread * rng.standard_normal((n_clients, p))
    ids = np.repeat(np.arange(n_clients), n_rows)
    parts = []
    for _ in range(2):
        X = rng.standard_normal((len(ids), n_features))
        signal = theta[ids, 0] + (X * theta[ids, 1:]).sum(axis=1)
        parts.append((X, signal + 0.7 * rng.standard_normal(len(ids)), ids))
    return parts


def table(name, seed, least=4):
    """Standardised rows of a real table, to fit and to judge."""
    if name in TABLES:
        real.TABLES[name] = real.Table(*TABLES[name])
    rows = real.load(name)
    keep = np.bincount(rows.ids)[rows.ids] >= least
    X, y = rows.X[keep], rows.y[keep]
    ids = np.unique(rows.ids[keep], return_inverse=True)[1]
    X, y = (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()
    folds = list(ClientKFold(4, random_state=seed // 4).split(X, None, ids))
    return [(X[some], y[some], ids[some]) for some in folds[seed % 4]]


def r2(y, predicted):
    """R2 about the mean of all test rows."""
    return 1.0 - np.square(y - predicted).sum() / np.square(y - y.mean()).sum()


def local(train, test):
    """R2 of ridge models of each client, the best of some penalties in hindsight."""
    (X, y, ids), (Xt, yt, idt) = train, test
    Z, Zt = (np.column_stack([np.ones(len(part)), part]) for part in (X, Xt))
    n = np.bincount(ids)
    G = np.zeros((len(n), Z.shape[1], Z.shape[1]))
    b = np.zeros(G.shape[:2])
    np.add.at(G, ids, Z[:, :, None] * Z[:, None])
    np.add.at(b, ids, Z * y[:, None])
    best = -np.inf
    for pull in PULLS:
        A = G / n[:, None, None] + pull * np.eye(Z.shape[1])
        theta = np.linalg.solve(A, (b / n[:, None])[:, :, None])[:, :, 0]
        best = max(best, r2(yt, (Zt * theta[idt]).sum(axis=1)))
    return best


def estimators():
    """The estimators by name; what is private of each is its default."""
    return {
        "PartialPooling": PartialPoolingRegressor(random_state=0),
        "PartialPooling, 3": PartialPoolingRegressor(3, random_state=0),
        "FedAvg": FedAvgRegressor(random_state=0),
        "Ditto": DittoRegressor(random_state=0),
        "IFCA, 3": IFCARegressor(3, random_state=0),
    }


def client_level(name, seed, out):
    """R2 of all estimators at all epsilons, into a dict of lists."""
    kind, _, size = name.partition(":")
    train, test = generated(kind, int(size), seed) if size else table(name, seed)
    X, y, ids = train
    out.setdefault(("local", 0.0), []).append(local(train, test))
    federation = InProcessFederation(X, y, ids)
    for label, model in estimators().items():
        for epsilon in EPSILONS:
            delta = min(1e-5, 0.5 / len(federation.ids))
            guarded = federation.private(epsilon, delta, bounds=UNITS, random_state=seed)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", PrivacyWarning)
                model.fit_federation(guarded)
            drowned = any(one.category is PrivacyWarning for one in caught)
            predicted = model.adapt(X, y, groups=ids).predict(test[0], groups=test[2])
            mark = f"{label} (local)" if drowned else label
            out.setdefault((mark, epsilon), []).append(r2(test[1], predicted))
        if label in {"PartialPooling", "FedAvg"}:
            predicted = model.fit(X, y, groups=ids).predict(test[0], groups=test[2])
            out.setdefault((label, np.inf), []).append(r2(test[1], predicted))


def record_level(name, seed, out):
    """R2 of fits to released second moments."""
    train, test = table(name, seed, least=8)
    federation = InProcessFederation(*train)
    plain = {"fit_intercept": False, "standardize": False}
    known = {"covariance": "diag", "basis": "linear", "dispersion": 1.0, "df": np.inf}
    pooling = PartialPoolingRegressor(1, **known, **plain)
    for epsilon in EPSILONS:
        released = federation.released(epsilon, bounds=UNITS, random_state=seed)
        for label, model, rows in (
            ("FedAvg", FedAvgRegressor(alpha=1e-4, **plain), released),
            ("Ditto", DittoRegressor(lam=1.0, **plain), released),
            ("PartialPooling", pooling, released.pooled()),
        ):
            model.fit_federation(rows)
            predicted = model.predict(released.design(test[0]), groups=test[2])
            out.setdefault((label, epsilon), []).append(r2(test[1], predicted))
    model = PartialPoolingRegressor().fit(*train[:2], groups=train[2])
    found = r2(test[1], model.predict(test[0], groups=test[2]))
    out.setdefault(("PartialPooling", np.inf), []).append(found)


def masked_sum(n, lost_share, length=200, seed=0):
    """Print seconds and the error of one masked sum over parties of their own."""
    rng = np.random.default_rng(seed)
    values, scale = rng.standard_normal((n, length)), scale_of(2.0**30)
    began = time.perf_counter()
    parties = [MaskParty(3) for _ in range(n)]
    keys = np.array([party.public_key() for party in parties])
    for k, party in enumerate(parties):
        party.agree(k, keys)
    keyed = time.perf_counter()
    everyone = np.ones(n, dtype=bool)
    sent = [
        party.masked(0, everyone, encoded(values[k], scale)) for k, party in enumerate(parties)
    ]
    masked = time.perf_counter()
    here = everyone.copy()
    lost = rng.permutation(n)[: int(n * lost_share)]
    here[lost] = False
    again = 0.0
    if len(lost):
        sent = [
            parties[k].masked(1, here, encoded(values[k], scale)) for k in np.flatnonzero(here)
        ]
        again = time.perf_counter() - masked
    added = time.perf_counter()
    total = decoded(np.sum(sent, axis=0, dtype=np.uint64), scale)
    ended = time.perf_counter()
    error = np.abs(total - values[here].sum(axis=0)).max()
    print(
        f"{n:5} parties, {len(lost)} lost: keys {1e3 * (keyed - began) / n:.2f} ms a party, "
        f"masks {1e3 * (masked - keyed) / n:.3f} ms, again after a loss "
        f"{1e3 * again / len(sent):.3f} ms, server {1e3 * (ended - added):.2f} ms, "
        f"error {error:.1e}, bytes up {sent[0].nbytes} (without masks {8 * length}) and "
        f"{keys[0].nbytes} a fit",
        flush=True,
    )


def rounds(n_places, n_clients=1000, n_rows=20, n_rounds=6):
    """Print seconds of rounds of FedAvg with 10 local steps on 190 weights, masked and plain."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(n_clients), n_rows)
    X = rng.standard_normal((len(ids), 19))
    y = X[:, 0] + rng.standard_normal(len(ids))
    parts = [
        InProcessFederation(X[some], y[some], ids[some])
        for some in (ids * n_places // n_clients == k for k in range(n_places))
    ]
    model = MLP((9,), loss="squared_error", alpha=0.1).bind(19)
    how = {"theta": np.zeros((1, model.n_params)), "unit": 1.0, "rho": 0.0, "step_size": 0.01}
    how |= {"steps": 10, "draw": 0, "known": None}
    plain = parts[0] if n_places == 1 else FanOutFederation(parts)
    # Its noise is 0 but for rounding; a sum without it is not to be had.
    wide = plain.private(1e6, bounds=UNITS)
    times = {}
    for name, federation in (("plain", wide), ("masked", plain.masked(3, bounds=UNITS))):
        hello = federation.hello("regressor")
        releases = Releases(federation, hello, model, n_rounds, np.random.RandomState(0))
        for _ in range(n_rounds):
            began = time.perf_counter()
            releases.ask(Moves, **how)
            times.setdefault(name, []).append(time.perf_counter() - began)
    later = {name: np.median(found[1:]) for name, found in times.items()}
    print(
        f"a round of {n_clients} clients in {n_places} places: plain {later['plain']:.3f} s, "
        f"masked {later['masked']:.3f} s, {later['masked'] / later['plain']:.2f} times; the first "
        f"one, with keys, {times['plain'][0]:.2f} s and {times['masked'][0]:.2f} s",
        flush=True,
    )


def lower_bound(out, inside, delta):
    """Epsilon that fits with and without a client show, at 95 % confidence.

    Parameters
    ----------
    out, inside : ndarray of shape (n_fits, n_params)
        Models without the client and with it. The first quarter of them chooses the test.
    delta : float
        The delta that is promised.
    """
    n = len(out) // 4
    spread = np.sqrt(0.5 * (out[:n].var(axis=0) + inside[:n].var(axis=0))) + 1e-300
    direction = (inside[:n].mean(axis=0) - out[:n].mean(axis=0)) / spread**2
    middle = 0.5 * (inside[:n].mean(axis=0) + out[:n].mean(axis=0)) @ direction
    rates = [(part[n:] @ direction > middle).sum() for part in (out, inside)]
    m, found = len(out) - n, 0.0
    # The client is there if the test says so, or if it says that it is not.
    for false, true in (rates, [m - rate for rate in reversed(rates)]):
        least = beta.ppf(0.025, true, m - true + 1) if true else 0.0
        most = beta.ppf(0.975, false + 1, m - false) if false < m else 1.0
        if least > delta:
            found = max(found, float(np.log((least - delta) / most)))
    return found


def audit(epsilon, n_fits, n_clients=400):
    """Print the epsilon that fits with and without one extreme client show."""
    (X, y, ids), _ = generated("continuum", n_clients, 0)
    worst = np.full((10, X.shape[1]), 50.0)
    more = np.vstack([X, worst]), np.r_[y, np.full(10, 1e4)], np.r_[ids, np.full(10, n_clients)]
    for label, model in (
        ("FedAvg, 1 release", FedAvgRegressor(max_iter=1)),
        ("FedAvg", FedAvgRegressor()),
        ("PartialPooling", PartialPoolingRegressor()),
    ):
        began, found = time.perf_counter(), []
        for rows in ((X, y, ids), more):
            federation = InProcessFederation(*rows)
            models = []
            for seed in range(n_fits):
                # Seeds of their own, or the noise would cancel.
                draw = 2 * seed + (len(rows[1]) > len(y))
                guarded = federation.private(epsilon, bounds=UNITS, random_state=draw)
                with warnings.catch_warnings():
                    warnings.simplefilter("error", PrivacyWarning)
                    fitted = model.set_params(random_state=0).fit_federation(guarded)
                models.append(fitted.cluster_params_[0])
            found.append(np.array(models))
        print(
            f"audit {label:18} epsilon {epsilon:g}: at least {lower_bound(*found, 1e-5):.2f} is "
            f"shown by {n_fits} fits with a client and {n_fits} without "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )


def show(name, out):
    """Print means and standard errors, one line an estimator."""
    for label in dict.fromkeys(label for label, _ in out):
        cells = [
            f"{epsilon:g}: {np.mean(v):.3f} ({np.std(v) / np.sqrt(len(v)):.3f})"
            for (other, epsilon), v in out.items()
            if other == label
        ]
        print(f"{name:16} {label:26} {'  '.join(cells)}", flush=True)


def main():
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=["client", "record", "audit", "masks"])
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--sets", nargs="*")
    parser.add_argument("--fits", type=int, default=300)
    args = parser.parse_args()
    for part, run, sets in (
        ("client", client_level, CLIENT_SETS),
        ("record", record_level, RECORD_SETS),
    ):
        if part not in args.parts:
            continue
        for name in args.sets or sets:
            out = {}
            for seed in range(args.draws):
                run(name, seed, out)
            show(f"{part} {name}", out)
    if "audit" in args.parts:
        for epsilon in (1.0, 2.0, 4.0):
            audit(epsilon, args.fits)
    if "masks" in args.parts:
        for n, lost in ((40, 0.0), (40, 0.3), (200, 0.1), (1000, 0.1)):
            masked_sum(n, lost)
        for n_places in (1, 3, 1000):
            rounds(n_places)


if __name__ == "__main__":
    main()
