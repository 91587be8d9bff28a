"""Time of one communication round over the time of its bare matrix products.

"Bare" are the products that a round of IFCA cannot avoid, in the same floating type. With k
linear models they are two, on all rows at once: the predictions of every model on every row,
and the product of the chosen model's residuals with each client's rows. With networks
(one hidden layer, model averaging) they are the layers of every model on every row, and for
each client and local step the two products forward, the two for the gradient of the weights and
the one that takes the slopes back to the hidden layer. The naive loop does the same round
client by client, as published code does. All are measured in this run, turn by turn; the figures
are medians of the ratios, of CPU time on one thread::

    python benchmarks/rounds.py [--repeats 15] [--quick]
"""

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP, LinearModel
from skcfl.rounds.alternate import Options, alternate

JOBS = [
    # clients, rows per client, features, models, target of the ratio
    (100, 100, 1000, 2, 0.6),
    (400, 100, 1000, 4, 0.6),
    (200, 50, 20, 4, 4.0),
]
# Networks: clients, rows per client, features, hidden units, classes, models; and the targets.
NETWORK = (40, 100, 784, 200, 10, 4)
NETWORK_TARGETS = {"sgd": 1.35, "adam": 2.3}
LOCAL_STEPS = 10
ALPHA = 1e-4
ROUNDS = 10


def make_job(n_clients, n_rows, d, k, seed=0):
    """Rows, starts and the pool of one job; mixed linear regression."""
    rng = np.random.RandomState(seed)
    X = rng.standard_normal((n_clients * n_rows, d))
    codes = np.repeat(np.arange(n_clients), n_rows)
    true = rng.standard_normal((k, d))
    y = np.einsum("rd,rd->r", X, true[codes % k]) + 0.1 * rng.standard_normal(len(X))
    theta = true + 0.3 * rng.standard_normal((k, d))
    model = LinearModel(alpha=ALPHA, fit_intercept=False).bind(d)
    return X, y, theta, open_rows(model, X, y, codes, n_clients)


def bare(X, residuals, theta):
    """The two matrix products of a round."""
    n_clients, n_rows = residuals.shape
    theta @ X.T
    np.matmul(residuals[:, None, :], X.reshape(n_clients, n_rows, -1))


def naive(X, y, theta, n_clients, rate):
    """One round, one client after the other."""
    total, weight = np.zeros_like(theta), np.zeros(len(theta))
    for Xi, yi in zip(np.split(X, n_clients), np.split(y, n_clients), strict=True):
        R = Xi @ theta.T - yi[:, None]
        j = int((R**2).mean(axis=0).argmin())
        total[j] += Xi.T @ R[:, j] / len(yi) + ALPHA * theta[j]
        weight[j] += 1
    return theta - rate * total / np.maximum(weight, 1)[:, None]


def make_network_job(n_clients, n_rows, d, h, n_classes, k, seed=0):
    """Rows, starts and the pool of a job with networks; classes drawn by a network per cluster."""
    rng = np.random.RandomState(seed)
    X = rng.uniform(size=(n_clients * n_rows, d)).astype(np.float32)
    codes = np.repeat(np.arange(n_clients), n_rows)
    model = MLP((h,), alpha=ALPHA).bind(d, n_classes)
    true = model.init_params(k, seed)
    y = model.decision(X - 0.5, true, codes % k).argmax(axis=1)
    pool = open_rows(model, X, y, codes, n_clients)
    return X.reshape(n_clients, n_rows, d), y.reshape(n_clients, n_rows), true, pool


def bare_network(X, W, theta):
    """The matrix products of a round with networks; `W` are the clients' weights by layer."""
    n_clients, n_rows, d = X.shape
    rows = X.reshape(-1, d)
    for W1, W2 in zip(*theta, strict=True):
        (rows @ W1) @ W2
    h, n_classes = W[1].shape[1:]
    A, D = np.empty((2, n_rows, h), X.dtype)
    Z, G1, G2 = (np.empty(s, X.dtype) for s in ((n_rows, n_classes), (d, h), (h, n_classes)))
    for Xi, W1, W2 in zip(X, *W, strict=True):
        for _ in range(LOCAL_STEPS):
            np.matmul(Xi, W1, out=A)
            np.matmul(A, W2, out=Z)
            np.matmul(A.T, Z, out=G2)
            np.matmul(Z, W2.T, out=D)
            np.matmul(Xi.T, D, out=G1)


def _slopes(Z, yi):
    """Softmax minus the classes, over the number of rows."""
    P = np.exp(Z - Z.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    P[np.arange(len(yi)), yi] -= 1
    return P / len(yi)


def naive_network(X, y, theta, rate):
    """One round with gradient descent, one client after the other."""
    total = [[np.zeros_like(part) for part in model] for model in theta]
    count = np.zeros(len(theta))
    for Xi, yi in zip(X, y, strict=True):
        losses = []
        for W1, b1, W2, b2 in theta:
            Z = np.maximum(Xi @ W1 + b1, 0) @ W2 + b2
            Z -= Z.max(axis=1, keepdims=True)
            own = Z[np.arange(len(yi)), yi]
            losses.append((np.log(np.exp(Z).sum(axis=1)) - own).mean())
        j = int(np.argmin(losses))
        W1, b1, W2, b2 = (part.copy() for part in theta[j])
        for _ in range(LOCAL_STEPS):
            A = np.maximum(Xi @ W1 + b1, 0)
            R = _slopes(A @ W2 + b2, yi)
            D = (R @ W2.T) * (A > 0)
            W2 -= rate * (A.T @ R + ALPHA * W2)
            b2 -= rate * R.sum(axis=0)
            W1 -= rate * (Xi.T @ D + ALPHA * W1)
            b1 -= rate * D.sum(axis=0)
        for part, new in zip(total[j], (W1, b1, W2, b2), strict=True):
            part += new
        count[j] += 1
    return [[p / max(n, 1) for p in parts] for parts, n in zip(total, count, strict=True)]


def rounds(pool, theta, rate, **more):
    """Seconds of one round of the library, with all its bookkeeping."""
    options = Options(max_iter=ROUNDS, step_size=rate, tol=0, polish=False, **more)
    loop_only = Options(max_iter=1, step_size=rate, tol=0, polish=False, **more)
    start = time.process_time()
    alternate(pool, theta, loop_only, np.random.RandomState(0))
    once = time.process_time() - start
    start = time.process_time()
    alternate(pool, theta, options, np.random.RandomState(0))
    return (time.process_time() - start - once) / (ROUNDS - 1)


def clock(function, *args, least=0.02):
    """Seconds of a call, from as many calls as fill a fraction of a second."""
    count = 0
    start = time.process_time()
    while count == 0 or time.process_time() - start < least:
        function(*args)
        count += 1
    return (time.process_time() - start) / count


def report(name, times, target):
    """Print one line of medians; the first turn only warms up."""
    floor, ours, loop = np.array(times[1:]).T
    print(
        f"{name:34} {1e3 * np.median(floor):7.2f}ms {1e3 * np.median(ours):7.2f}ms "
        f"{np.median(ours / floor):6.2f} {np.median(loop / floor):6.2f} {target:7.2f}"
    )


def network_rows(repeats, quick):
    """Measure the rounds with networks."""
    n_clients, *shape = NETWORK
    n = n_clients // 4 if quick else n_clients
    X, y, theta, pool = make_network_job(n, *shape)
    parts = [pool.model.weights(t) for t in theta]
    parts = [[a for layer in model.values() for a in layer] for model in parts]
    starts = [np.stack([model[i] for model in parts]) for i in (0, 2)]
    W = [np.repeat(part[:1], n, axis=0) for part in starts]
    for optimizer, target in NETWORK_TARGETS.items():
        rate = 0.1 if optimizer == "sgd" else 0.005
        times = [
            (
                clock(bare_network, X, W, starts),
                rounds(
                    pool,
                    theta,
                    rate,
                    averaging="model",
                    local_steps=LOCAL_STEPS,
                    optimizer=optimizer,
                ),
                clock(naive_network, X, y, parts, rate) if optimizer == "sgd" else np.nan,
            )
            for _ in range(repeats + 1)
        ]
        layers = "-".join(str(units) for units in shape[1:4])
        report(f"IFCA {layers} {n} x {shape[0]}, k={shape[4]}, {optimizer}", times, target)


def main():
    """Measure every job and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="a quarter of the clients")
    args = parser.parse_args()
    print(f"{'job':34} {'bare':>9} {'round':>9} {'ratio':>6} {'naive':>6} {'target':>7}")
    with threadpool_limits(1):
        for n_clients, n_rows, d, k, target in JOBS:
            n = n_clients // 4 if args.quick else n_clients
            X, y, theta, pool = make_job(n, n_rows, d, k)
            residuals = np.random.RandomState(1).standard_normal((n, n_rows))
            rate = 0.5 / pool.spectrum()[0].mean()
            times = [
                (
                    clock(bare, X, residuals, theta),
                    rounds(pool, theta, rate),
                    clock(naive, X, y, theta, n, rate),
                )
                for _ in range(args.repeats + 1)
            ]
            report(f"IFCA linear {n} x {n_rows} x {d}, k={k}", times, target)
        network_rows(args.repeats, args.quick)


if __name__ == "__main__":
    main()
