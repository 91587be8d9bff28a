"""How many clusters: grow their number for as long as rows that were held out gain by it.

For K = 1, 2, ... fit on most rows of every client, and judge by the mean loss of each client's
model on the others, ``h_i(K)``, averaged over a few splits of the rows, the same for all K.  K
replaces the best number so far, B, if

    mean_i [h_i(B) - h_i(K)]  >  max(standard error of that mean, MIN_GAIN * mean_i h_i(B)),

clients weighted by the rows held out.  The search ends after `PATIENCE` numbers without a
replacement, or with as many clusters as clients.  The silhouette of loss vectors, which knows no
single cluster, is not used.
"""

import numpy as np

# Share of each client's rows that judge, and how often they are drawn.
FRACTION = 0.25
SPLITS = 3
# Numbers of clusters in a row without a gain after which the search ends.
PATIENCE = 2
# Least relative gain that makes another cluster worth its models.
MIN_GAIN = 0.01


def find_n_clusters(pool, fit, rng, verbose=0):
    """Choose the number of clusters by held-out loss, then fit on all rows.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    fit : callable
        ``fit(pool, n_clusters)`` returns a Result.
    rng : RandomState
        Source of the rows that are held out.
    verbose : int, default=0
        Whether to print what was found.

    Returns
    -------
    result : Result
        Of the chosen number, on all rows.  Its history has the rounds of all fits, one after the
        other, with the column "searched" (the K of the fit, 0 for the final one);
        ``extra["search"]`` has one entry a number tried: "n_clusters" (asked for), "found" (not
        empty, mean of the splits), "held_out_loss", "gain" and "standard_error" (against the
        best number before), "accepted", "floats_up" and "floats_down".
    """
    splits = [pool.hold_out(FRACTION, rng) for _ in range(SPLITS)]
    weights = sum(held.client_weights for _, held in splits)
    weights = weights / max(weights.sum(), 1e-300)
    names = ("n_clusters", "found", "held_out_loss", "gain", "standard_error", "accepted")
    search = {name: [] for name in (*names, "floats_up", "floats_down")}
    histories, best, waiting = [], None, 0
    ledger = pool.ledger
    for K in range(1, pool.n_clients + 1):
        up, down = ledger.up, ledger.down
        losses, found = np.zeros(pool.n_clients), []
        for train, held in splits:
            result = fit(train, K)
            losses += _held_losses(held, result) / SPLITS
            found.append(len(np.unique(result.labels)))
            histories.append((K, result.history))
        gain, error = _compare(None if best is None else best[1], losses, weights)
        accepted = best is None or gain > max(error, MIN_GAIN * abs(weights @ best[1]))
        row = (K, np.mean(found), weights @ losses, gain, error, accepted)
        row += (ledger.up - up, ledger.down - down)
        for name, value in zip(search, row, strict=True):
            search[name].append(value)
        if verbose:
            print(f"{K} clusters: held-out loss {row[2]:.6g}{', better' if accepted else ''}")
        best, waiting = ((K, losses), 0) if accepted else (best, waiting + 1)
        if waiting >= PATIENCE:
            break
    ledger.since_mark()
    result = fit(pool, best[0])
    histories.append((0, result.history))
    result.history = _join(histories)
    result.n_iter = len(result.history["searched"])
    result.extra["search"] = {name: np.array(column) for name, column in search.items()}
    return result


def _held_losses(held, result):
    """Mean loss of each client's model on its rows that were held out."""
    theta, labels = result.cluster_params, result.labels
    losses = held.objectives(theta[labels]) - held.penalties(theta)[labels]
    return np.nan_to_num(np.asarray(losses, dtype=float), nan=np.inf)


def _compare(before, losses, weights):
    """Mean gain of the clients over the losses before, and its standard error."""
    if before is None:
        return np.nan, np.nan
    with np.errstate(invalid="ignore"):
        gain = before - losses
    if not np.isfinite(gain).all():
        return (np.inf, 0.0) if np.isfinite(losses).all() else (-np.inf, 0.0)
    mean = weights @ gain
    n = max(np.count_nonzero(weights), 2)
    return mean, np.sqrt(n / (n - 1) * np.sum((weights * (gain - mean)) ** 2))


def _join(histories):
    """Histories of several fits, one after the other, with the K that each tried."""
    names = [name for name in histories[-1][1] if all(name in h for _, h in histories)]
    joined = {name: np.concatenate([h[name] for _, h in histories]) for name in names}
    tried = [np.full(len(h["objective"]), K) for K, h in histories]
    return joined | {"searched": np.concatenate(tried)}
