"""Choice of the strength of the pull by rows held out inside the clients."""

import numpy as np

from .._progress import loop, quiet

__all__ = ["choose_pull", "pull_grid"]

# Folds of every client's rows, as for the number of clusters.
FOLDS = 4


def pull_grid(pool, count=11, ends=(1e-3, 1e2)):
    """Strengths from weak to strong in units of the clients' mean curvature, 0 and inf.

    Parameters
    ----------
    pool : ClientPool
        The federation, of models with second derivatives.
    count : int, default=11
        Number of strengths between.
    ends : tuple of float, default=(1e-3, 1e2)
        The weakest and the strongest of these.

    Returns
    -------
    lams : ndarray of shape (count + 2,)
        Descending, from inf to 0.
    """
    _, _, mean = pool.spectrum()
    counted = ~pool.without_rows
    weights = np.where(counted, pool.client_weights, 0.0)
    unit = float(weights @ mean / weights.sum())
    return np.concatenate([[np.inf], unit * np.geomspace(*ends[::-1], count), [0.0]])


def choose_pull(pool, lams, fit):
    """Strength of least held-out loss, ties to the strongest.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    lams : ndarray
        Strengths, descending.
    fit : callable
        ``fit(pool, lams)`` yields the clients' models (n_clients, n_params) under each.

    Returns
    -------
    lam : float
        The choice.
    losses : ndarray of shape (n_lams,)
        Mean losses of the held-out rows.
    """
    total, weight = np.zeros(len(lams)), 0.0
    with loop("fold", FOLDS, "search of lam, folds", sure=True) as folds:
        for train, held in pool.deal_folds(FOLDS, pool.random_state):
            weight += held.client_weights.sum()
            with quiet():
                for k, models in enumerate(fit(train, lams)):
                    total[k] += held.client_weights @ held.own_losses(models)
            folds.tell()
    losses = np.where(np.isfinite(total), total, np.inf) / max(weight, 1e-300)
    return float(lams[int(losses.argmin())]), losses
